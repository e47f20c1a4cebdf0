/* The requests that the server gives the backend to execute. */

static void note_input(Report* r, TRITONBACKEND_Input* input)
{
    const char* name = NULL;
    TRITONSERVER_DataType type = 99;
    const int64_t* shape = NULL;
    uint32_t dims = 99, buffers = 99;
    uint64_t size = 99;
    CALL(r, "TRITONBACKEND_InputProperties",
         TRITONBACKEND_InputProperties(input, &name, &type, &shape, &dims, &size, &buffers));
    note(r, "input: %s %s, %u dimensions, first %lld, %llu bytes", or_null(name), TRITONSERVER_DataTypeString(type), dims,
         dims > 0 ? (long long)shape[0] : -1, (unsigned long long)size);
    CALL(r, "input properties that nobody wants",
         TRITONBACKEND_InputProperties(input, NULL, NULL, NULL, NULL, NULL, NULL));
    uint64_t policy_size = 99;
    uint32_t policy_buffers = 99;
    CALL(r, "TRITONBACKEND_InputPropertiesForHostPolicy",
         TRITONBACKEND_InputPropertiesForHostPolicy(input, "none", NULL, NULL, NULL, NULL, &policy_size, &policy_buffers));
    note(r, "the same for an unknown host policy: %d", policy_size == size && policy_buffers == buffers);
    CALL(r, "properties without a host policy",
         TRITONBACKEND_InputPropertiesForHostPolicy(input, NULL, NULL, NULL, NULL, NULL, &policy_size, &policy_buffers));
    uint64_t sum = 0;
    for (uint32_t i = 0; i < buffers; ++i) {
        const void* base = NULL;
        uint64_t length = 0;
        TRITONSERVER_MemoryType kind = 99;
        int64_t id = -7;
        if (!CALL(r, "TRITONBACKEND_InputBuffer", TRITONBACKEND_InputBuffer(input, i, &base, &length, &kind, &id))) return;
        note(r, "buffer: memory %u %lld, first byte %d", kind, (long long)id, length > 0 ? *(const uint8_t*)base : -1);
        sum += length;
        const void* policy_base = NULL;
        CALL(r, "TRITONBACKEND_InputBufferForHostPolicy",
             TRITONBACKEND_InputBufferForHostPolicy(input, "none", i, &policy_base, &length, &kind, &id));
        note(r, "the same buffer for an unknown host policy: %d", base == policy_base);
        TRITONSERVER_BufferAttributes* attributes = NULL;
        const void* again = NULL;
        size_t attributes_size = 0;
        CALL(r, "TRITONBACKEND_InputBufferAttributes",
             TRITONBACKEND_InputBufferAttributes(input, i, &again, &attributes));
        TRITONSERVER_BufferAttributesByteSize(attributes, &attributes_size);
        note(r, "the same buffer with attributes: %d %d", base == again, attributes_size == length);
    }
    note(r, "the buffers are the input: %d", sum == size);
}

static void note_parameters(Report* r, TRITONBACKEND_Request* request)
{
    uint32_t count = 99;
    CALL(r, "TRITONBACKEND_RequestParameterCount", TRITONBACKEND_RequestParameterCount(request, &count));
    for (uint32_t i = 0; i < count; ++i) {
        const char* key = NULL;
        TRITONSERVER_ParameterType type = 99;
        const void* value = NULL;
        if (!CALL(r, "TRITONBACKEND_RequestParameter",
                  TRITONBACKEND_RequestParameter(request, i, &key, &type, &value)))
            continue;
        switch (type) {
        case TRITONSERVER_PARAMETER_STRING: note(r, "parameter %s: '%s'", key, (const char*)value); break;
        case TRITONSERVER_PARAMETER_INT: note(r, "parameter %s: %lld", key, (long long)*(const int64_t*)value); break;
        case TRITONSERVER_PARAMETER_BOOL: note(r, "parameter %s: %d", key, *(const bool*)value); break;
        case TRITONSERVER_PARAMETER_DOUBLE: note(r, "parameter %s: %g", key, *(const double*)value); break;
        default: note(r, "parameter %s of type %u", key, type);
        }
    }
}

static void note_request(Report* r, TRITONBACKEND_Request* request)
{
    const char* text = NULL;
    uint64_t large = 99;
    uint32_t small = 99, count = 99;
    bool yes = true;
    CALL(r, "TRITONBACKEND_RequestId", TRITONBACKEND_RequestId(request, &text));
    note(r, "request id: '%s'", or_null(text));
    CALL(r, "TRITONBACKEND_RequestCorrelationId", TRITONBACKEND_RequestCorrelationId(request, &large));
    note(r, "correlation id: %llu", (unsigned long long)large);
    CALL(r, "TRITONBACKEND_RequestCorrelationIdString", TRITONBACKEND_RequestCorrelationIdString(request, &text));
    note(r, "correlation id: %s", or_null(text));
    CALL(r, "TRITONBACKEND_RequestFlags", TRITONBACKEND_RequestFlags(request, &small));
    note(r, "flags: %u", small);
    CALL(r, "TRITONBACKEND_InferenceRequestTimeoutMicroseconds",
         TRITONBACKEND_InferenceRequestTimeoutMicroseconds(request, &large));
    note(r, "timeout: %llu", (unsigned long long)large);
    CALL(r, "TRITONBACKEND_RequestIsCancelled", TRITONBACKEND_RequestIsCancelled(request, &yes));
    note(r, "cancelled: %d", yes);
    note_parameters(r, request);
    CALL(r, "TRITONBACKEND_RequestInputCount", TRITONBACKEND_RequestInputCount(request, &count));
    note(r, "inputs: %u", count);
    for (uint32_t i = 0; i < count; ++i) {
        CALL(r, "TRITONBACKEND_RequestInputName", TRITONBACKEND_RequestInputName(request, i, &text));
        note(r, "input name: %s", or_null(text));
        TRITONBACKEND_Input* by_name = NULL;
        TRITONBACKEND_Input* by_index = NULL;
        CALL(r, "TRITONBACKEND_RequestInput", TRITONBACKEND_RequestInput(request, text, &by_name));
        CALL(r, "TRITONBACKEND_RequestInputByIndex", TRITONBACKEND_RequestInputByIndex(request, i, &by_index));
        note(r, "the same input both ways: %d", by_name == by_index);
        note_input(r, by_index);
    }
    CALL(r, "TRITONBACKEND_RequestOutputCount", TRITONBACKEND_RequestOutputCount(request, &count));
    note(r, "requested outputs: %u", count);
    for (uint32_t i = 0; i < count; ++i) {
        CALL(r, "TRITONBACKEND_RequestOutputName", TRITONBACKEND_RequestOutputName(request, i, &text));
        note(r, "requested output: %s", or_null(text));
    }
    size_t size = 16;
    TRITONSERVER_MemoryType kind = TRITONSERVER_MEMORY_GPU;
    int64_t id = 5;
    CALL(r, "TRITONBACKEND_RequestOutputBufferProperties",
         TRITONBACKEND_RequestOutputBufferProperties(request, "REPORT", &size, &kind, &id));
    note(r, "output would lie in memory: %u %lld", kind, (long long)id);
    TRITONSERVER_InferenceTrace* trace = (void*)&trace;
    CALL(r, "TRITONBACKEND_RequestTrace", TRITONBACKEND_RequestTrace(request, &trace));
    note(r, "trace: %s", trace == NULL ? "(null)" : "there");
    TRITONBACKEND_State* state = NULL;
    int64_t shape[] = {1};
    CALL(r, "state of a model without states",
         TRITONBACKEND_StateNew(&state, request, "S", TRITONSERVER_TYPE_INT32, shape, 1));
}

static void exercise_wrong(Report* r, TRITONBACKEND_Request* request)
{
    const char* text = "unchanged";
    TRITONBACKEND_Input* input = (void*)&input;
    TRITONSERVER_ParameterType type = 99;
    const void* value = NULL;
    CALL(r, "input name out of range", TRITONBACKEND_RequestInputName(request, 99, &text));
    note(r, "name: %s", or_null(text));
    CALL(r, "unknown input", TRITONBACKEND_RequestInput(request, "NONE", &input));
    note(r, "input: %s", input == NULL ? "(null)" : "unchanged");
    CALL(r, "input out of range", TRITONBACKEND_RequestInputByIndex(request, 99, &input));
    text = "unchanged";
    CALL(r, "output name out of range", TRITONBACKEND_RequestOutputName(request, 99, &text));
    note(r, "name: %s", or_null(text));
    CALL(r, "parameter out of range", TRITONBACKEND_RequestParameter(request, 99, &text, &type, &value));
    if (CALL(r, "first input", TRITONBACKEND_RequestInputByIndex(request, 0, &input))) {
        const void* base = &base;
        uint64_t length = 99;
        TRITONSERVER_MemoryType kind = TRITONSERVER_MEMORY_CPU;
        int64_t id = 0;
        CALL(r, "buffer out of range", TRITONBACKEND_InputBuffer(input, 99, &base, &length, &kind, &id));
        note(r, "buffer: %s of %llu bytes", base == NULL ? "(null)" : "unchanged", (unsigned long long)length);
        CALL(r, "buffer of a host policy out of range",
             TRITONBACKEND_InputBufferForHostPolicy(input, "none", 99, &base, &length, &kind, &id));
        TRITONSERVER_BufferAttributes* attributes = (void*)&attributes;
        CALL(r, "buffer attributes out of range", TRITONBACKEND_InputBufferAttributes(input, 99, &base, &attributes));
        note(r, "attributes: %s", attributes == NULL ? "(null)" : "unchanged");
    }
    CALL(r, "null response: text parameter", TRITONBACKEND_ResponseSetStringParameter(NULL, "a", "b"));
    CALL(r, "null response: whole parameter", TRITONBACKEND_ResponseSetIntParameter(NULL, "a", 1));
    CALL(r, "null response: truth parameter", TRITONBACKEND_ResponseSetBoolParameter(NULL, "a", true));
    CALL(r, "null response: real parameter", TRITONBACKEND_ResponseSetDoubleParameter(NULL, "a", 1));
    TRITONBACKEND_Output* output = NULL;
    int64_t shape[] = {1, 2};
    CALL(r, "null response: output",
         TRITONBACKEND_ResponseOutput(NULL, &output, "REPORT", TRITONSERVER_TYPE_INT32, shape, 2));
    CALL(r, "null response: send", TRITONBACKEND_ResponseSend(NULL, TRITONSERVER_RESPONSE_COMPLETE_FINAL, NULL));
    TRITONBACKEND_Response* response = NULL;
    CALL(r, "response", TRITONBACKEND_ResponseNew(&response, request));
    CALL(r, "unknown output",
         TRITONBACKEND_ResponseOutput(response, &output, "NONE", TRITONSERVER_TYPE_INT32, shape, 2));
    CALL(r, "TRITONBACKEND_ResponseDelete", TRITONBACKEND_ResponseDelete(response));
    TRITONBACKEND_ResponseNew(&response, request);
    TRITONSERVER_DataType data_type = 99;
    const int64_t* found = NULL;
    uint64_t dims = 0;
    CALL(r, "response output out of range",
         TRITONBACKEND_InferenceResponseOutput(response, 0, &text, &data_type, &found, &dims));
    CALL(r, "response output of an unknown name",
         TRITONBACKEND_InferenceResponseOutputByName(response, "NONE", &data_type, &found, &dims));
    TRITONBACKEND_ResponseDelete(response);
}

/* What a null does, without its message: "refused" or "ok". */
#define REFUSED(report, call)                                                               \
    do {                                                                                    \
        TRITONSERVER_Error* error_ = (call);                                                \
        note(report, #call ": %s", error_ == NULL ? "ok" : TRITONSERVER_ErrorCodeString(error_)); \
        if (error_ != NULL) TRITONSERVER_ErrorDelete(error_);                               \
    } while (0)

/* Data that cannot be those of an input. */
static void exercise_wrong_data(Report* r, TRITONSERVER_Server* server)
{
    int32_t values[] = {1, 2, 3};
    int64_t shape[] = {1, 3};
    TRITONSERVER_MemoryType kind = TRITONSERVER_MEMORY_CPU;
    TRITONSERVER_InferenceRequest* request = NULL;
    TRITONSERVER_ResponseAllocator* allocator = NULL;
    TRITONSERVER_InferenceRequestNew(&request, server, "null", -1);
    REFUSED(r, TRITONSERVER_InferenceRequestAddInput(request, "IN", TRITONSERVER_TYPE_INT32, shape, UINT64_MAX));
    REFUSED(r, TRITONSERVER_InferenceRequestAddInput(request, "IN", TRITONSERVER_TYPE_INT32, shape, UINT64_MAX / 8));
    TRITONSERVER_InferenceRequestAddInput(request, "IN", TRITONSERVER_TYPE_INT32, shape, 2);
    REFUSED(r, TRITONSERVER_InferenceRequestAppendInputData(request, "IN", NULL, 12, kind, 0));
    REFUSED(r, TRITONSERVER_InferenceRequestAppendInputData(request, "IN", values, SIZE_MAX, kind, 0));
    TRITONSERVER_InferenceRequestAppendInputData(request, "IN", values, 12, kind, 0);
    REFUSED(r, TRITONSERVER_InferenceRequestAppendInputDataWithHostPolicy(request, "IN", NULL, 8, kind, 0, "near"));
    TRITONSERVER_InferenceRequestAppendInputDataWithHostPolicy(request, "IN", values, 8, kind, 0, "near");
    TRITONSERVER_ResponseAllocatorNew(&allocator, infer_place, infer_unplace, infer_start);
    TRITONSERVER_InferenceRequestSetResponseCallback(request, allocator, NULL, infer_answered, NULL);
    /* It is for that policy alone that data are missing. */
    REFUSED(r, TRITONSERVER_ServerInferAsync(server, request, NULL));
    TRITONSERVER_InferenceRequestDelete(request);
    TRITONSERVER_ResponseAllocatorDelete(allocator);
}

static void exercise_null(Report* r, TRITONBACKEND_ModelInstance* instance, TRITONBACKEND_Model* model,
                          TRITONBACKEND_Request* request)
{
    const char* text = NULL;
    uint32_t count = 0;
    uint64_t large = 0;
    bool yes = false;
    void* state = NULL;
    TRITONSERVER_Message* message = NULL;
    TRITONBACKEND_Input* input = NULL;
    TRITONBACKEND_ResponseFactory* factory = NULL;
    TRITONBACKEND_Response* response = NULL;
    REFUSED(r, TRITONBACKEND_ApiVersion(NULL, NULL));
    REFUSED(r, TRITONBACKEND_BackendName(NULL, &text));
    REFUSED(r, TRITONBACKEND_BackendName(the_backend, NULL));
    REFUSED(r, TRITONBACKEND_BackendConfig(NULL, &message));
    REFUSED(r, TRITONBACKEND_BackendState(NULL, &state));
    REFUSED(r, TRITONBACKEND_ModelName(NULL, &text));
    REFUSED(r, TRITONBACKEND_ModelName(model, NULL));
    REFUSED(r, TRITONBACKEND_ModelVersion(model, NULL));
    REFUSED(r, TRITONBACKEND_ModelConfig(NULL, 1, &message));
    REFUSED(r, TRITONBACKEND_ModelSetConfig(model, 1, NULL));
    REFUSED(r, TRITONBACKEND_ModelState(NULL, &state));
    REFUSED(r, TRITONBACKEND_ModelInstanceName(NULL, &text));
    REFUSED(r, TRITONBACKEND_ModelInstanceName(instance, NULL));
    REFUSED(r, TRITONBACKEND_ModelInstanceState(NULL, &state));
    REFUSED(r, TRITONBACKEND_RequestId(NULL, &text));
    REFUSED(r, TRITONBACKEND_RequestId(request, NULL));
    REFUSED(r, TRITONBACKEND_RequestCorrelationId(NULL, &large));
    REFUSED(r, TRITONBACKEND_RequestFlags(request, NULL));
    REFUSED(r, TRITONBACKEND_RequestIsCancelled(NULL, &yes));
    REFUSED(r, TRITONBACKEND_RequestParameterCount(NULL, &count));
    REFUSED(r, TRITONBACKEND_RequestInputCount(NULL, &count));
    REFUSED(r, TRITONBACKEND_RequestInput(request, NULL, &input));
    REFUSED(r, TRITONBACKEND_RequestInput(NULL, "IN", &input));
    REFUSED(r, TRITONBACKEND_RequestInputByIndex(request, 0, NULL));
    REFUSED(r, TRITONBACKEND_RequestOutputCount(NULL, &count));
    REFUSED(r, TRITONBACKEND_RequestRelease(NULL, TRITONSERVER_REQUEST_RELEASE_ALL));
    REFUSED(r, TRITONBACKEND_InputProperties(NULL, &text, NULL, NULL, NULL, NULL, NULL));
    REFUSED(r, TRITONBACKEND_InputBuffer(NULL, 0, (void*)&state, &large, NULL, NULL));
    REFUSED(r, TRITONBACKEND_OutputBuffer(NULL, &state, 4, NULL, NULL));
    REFUSED(r, TRITONBACKEND_ResponseFactoryNew(&factory, NULL));
    REFUSED(r, TRITONBACKEND_ResponseFactorySendFlags(NULL, 1));
    REFUSED(r, TRITONBACKEND_ResponseFactoryIsCancelled(NULL, &yes));
    REFUSED(r, TRITONBACKEND_ResponseNew(&response, NULL));
    REFUSED(r, TRITONBACKEND_ResponseNewFromFactory(&response, NULL));
    REFUSED(r, TRITONBACKEND_StateUpdate(NULL));
    REFUSED(r, TRITONBACKEND_MemoryManagerAllocate(NULL, &state, TRITONSERVER_MEMORY_CPU, 0, 4));
    REFUSED(r, TRITONSERVER_MessageNewFromSerializedJson(NULL, "{}", 2));
    REFUSED(r, TRITONSERVER_MessageNewFromSerializedJson(&message, NULL, 2));
    REFUSED(r, TRITONSERVER_ServerIsLive(NULL, &yes));
    TRITONSERVER_ErrorDelete(NULL);
    note(r, "TRITONSERVER_ErrorDelete(NULL): survived");
}

/* Calls every way of answering on responses that are thrown away. */
static void exercise_response(Report* r, TRITONBACKEND_Request* request)
{
    TRITONBACKEND_Response* response = NULL;
    CALL(r, "TRITONBACKEND_ResponseNew", TRITONBACKEND_ResponseNew(&response, request));
    CALL(r, "TRITONBACKEND_ResponseSetStringParameter", TRITONBACKEND_ResponseSetStringParameter(response, "s", "text"));
    CALL(r, "TRITONBACKEND_ResponseSetIntParameter", TRITONBACKEND_ResponseSetIntParameter(response, "i", 5));
    CALL(r, "TRITONBACKEND_ResponseSetBoolParameter", TRITONBACKEND_ResponseSetBoolParameter(response, "b", true));
    CALL(r, "TRITONBACKEND_ResponseSetDoubleParameter", TRITONBACKEND_ResponseSetDoubleParameter(response, "d", 0.5));
    TRITONBACKEND_Output* output = NULL;
    int64_t shape[] = {1, 2};
    CALL(r, "TRITONBACKEND_ResponseOutput",
         TRITONBACKEND_ResponseOutput(response, &output, "EXTRA", TRITONSERVER_TYPE_INT32, shape, 2));
    void* buffer = NULL;
    TRITONSERVER_MemoryType kind = TRITONSERVER_MEMORY_GPU;
    int64_t id = 0;
    CALL(r, "TRITONBACKEND_OutputBuffer", TRITONBACKEND_OutputBuffer(output, &buffer, 8, &kind, &id));
    note(r, "output buffer: %s in memory %u", buffer == NULL ? "(null)" : "there", kind);
    TRITONSERVER_BufferAttributes* attributes = NULL;
    size_t size = 0;
    CALL(r, "TRITONBACKEND_OutputBufferAttributes", TRITONBACKEND_OutputBufferAttributes(output, &attributes));
    TRITONSERVER_BufferAttributesByteSize(attributes, &size);
    note(r, "output buffer attributes: %zu bytes", size);
    const char* name = NULL;
    TRITONSERVER_DataType type = 99;
    const int64_t* found = NULL;
    uint64_t dims = 0;
    CALL(r, "TRITONBACKEND_InferenceResponseOutput",
         TRITONBACKEND_InferenceResponseOutput(response, 0, &name, &type, &found, &dims));
    note(r, "output: %s %u, %llu dimensions", or_null(name), type, (unsigned long long)dims);
    type = 99;
    CALL(r, "TRITONBACKEND_InferenceResponseOutputByName",
         TRITONBACKEND_InferenceResponseOutputByName(response, "EXTRA", &type, &found, &dims));
    note(r, "output by name: %u, %llu dimensions", type, (unsigned long long)dims);
    CALL(r, "TRITONBACKEND_ResponseDelete", TRITONBACKEND_ResponseDelete(response));

    TRITONBACKEND_ResponseFactory* factory = NULL;
    bool yes = true;
    CALL(r, "TRITONBACKEND_ResponseFactoryNew", TRITONBACKEND_ResponseFactoryNew(&factory, request));
    CALL(r, "TRITONBACKEND_ResponseFactoryIsCancelled", TRITONBACKEND_ResponseFactoryIsCancelled(factory, &yes));
    note(r, "factory is cancelled: %d", yes);
    CALL(r, "TRITONBACKEND_ResponseNewFromFactory", TRITONBACKEND_ResponseNewFromFactory(&response, factory));
    TRITONBACKEND_ResponseDelete(response);
    CALL(r, "TRITONBACKEND_ResponseFactoryDelete", TRITONBACKEND_ResponseFactoryDelete(factory));
}

/* Gives bytes as an output of the response. */
static void give(TRITONBACKEND_Response* response, const char* name, TRITONSERVER_DataType type, const int64_t* shape,
                 uint32_t dims, const void* bytes, size_t size)
{
    TRITONBACKEND_Output* output = NULL;
    void* buffer = NULL;
    TRITONSERVER_MemoryType kind = TRITONSERVER_MEMORY_CPU;
    int64_t id = 0;
    TRITONSERVER_Error* error = TRITONBACKEND_ResponseOutput(response, &output, name, type, shape, dims);
    if (error == NULL) error = TRITONBACKEND_OutputBuffer(output, &buffer, size, &kind, &id);
    if (error != NULL) {
        fprintf(stderr, "exercise: output %s: %s\n", name, TRITONSERVER_ErrorMessage(error));
        TRITONSERVER_ErrorDelete(error);
        return;
    }
    memcpy(buffer, bytes, size);
}

static void give_report(TRITONBACKEND_Response* response, const Report* parts, size_t count)
{
    size_t length = 0;
    for (size_t i = 0; i < count; ++i) length += parts[i].length;
    char* bytes = malloc(length + 4);
    if (bytes == NULL) abort();
    uint32_t prefix = (uint32_t)length;
    memcpy(bytes, &prefix, 4);
    size_t at = 4;
    for (size_t i = 0; i < count; ++i) {
        memcpy(bytes + at, parts[i].text, parts[i].length);
        at += parts[i].length;
    }
    int64_t shape[] = {1};
    give(response, "REPORT", TRITONSERVER_TYPE_BYTES, shape, 1, bytes, length + 4);
    free(bytes);
}

/* Adds how an input looks to instances under a host policy. */
static void tell_policy(char* text, size_t room, TRITONBACKEND_Input* input, const char* policy)
{
    uint64_t size = 0, length = 0;
    uint32_t buffers = 0;
    const void* base = NULL;
    TRITONSERVER_MemoryType kind = TRITONSERVER_MEMORY_CPU;
    int64_t id = 0;
    TRITONBACKEND_InputPropertiesForHostPolicy(input, policy, NULL, NULL, NULL, NULL, &size, &buffers);
    TRITONBACKEND_InputBufferForHostPolicy(input, policy, 0, &base, &length, &kind, &id);
    size_t at = strlen(text);
    snprintf(text + at, room - at, ", for %s %llu bytes in %u from %d", policy == NULL ? "none" : policy,
             (unsigned long long)size, buffers, length >= 4 ? *(const int32_t*)base : -1);
}

/* Gives IN back as OUT. */
static void answer_callee(TRITONBACKEND_Request* request, TRITONBACKEND_Response* response)
{
    TRITONBACKEND_Input* input = NULL;
    const int64_t* shape = NULL;
    uint32_t dims = 0, buffers = 0;
    uint64_t size = 0, at = 0;
    TRITONBACKEND_RequestInput(request, "IN", &input);
    TRITONBACKEND_InputProperties(input, NULL, NULL, &shape, &dims, &size, &buffers);
    char* bytes = malloc(size + 1);
    if (bytes == NULL) abort();
    for (uint32_t i = 0; i < buffers; ++i) {
        const void* base = NULL;
        uint64_t length = 0;
        TRITONSERVER_MemoryType kind = TRITONSERVER_MEMORY_CPU;
        int64_t id = 0;
        TRITONBACKEND_InputBuffer(input, i, &base, &length, &kind, &id);
        memcpy(bytes + at, base, length);
        at += length;
    }
    char told[256] = "by callee";
    tell_policy(told, sizeof told, input, NULL);
    tell_policy(told, sizeof told, input, "near");
    tell_policy(told, sizeof told, input, "far");
    TRITONBACKEND_ResponseSetStringParameter(response, "told", told);
    /* A response that is never sent had its memory first. */
    TRITONBACKEND_Response* unsent = NULL;
    TRITONBACKEND_ResponseNew(&unsent, request);
    give(unsent, "OUT", TRITONSERVER_TYPE_INT32, shape, dims, bytes, size);
    TRITONBACKEND_ResponseDelete(unsent);
    give(response, "OUT", TRITONSERVER_TYPE_INT32, shape, dims, bytes, size);
    free(bytes);
}

static void exercise_statistics(Report* r, TRITONBACKEND_ModelInstance* instance, TRITONBACKEND_Request* request,
                                uint64_t start)
{
    TRITONBACKEND_ModelInstanceResponseStatistics* statistics = NULL;
    TRITONBACKEND_ResponseFactory* factory = NULL;
    TRITONBACKEND_ResponseFactoryNew(&factory, request);
    CALL(r, "TRITONBACKEND_ModelInstanceResponseStatisticsNew",
         TRITONBACKEND_ModelInstanceResponseStatisticsNew(&statistics));
    CALL(r, "TRITONBACKEND_ModelInstanceResponseStatisticsSetModelInstance",
         TRITONBACKEND_ModelInstanceResponseStatisticsSetModelInstance(statistics, instance));
    CALL(r, "TRITONBACKEND_ModelInstanceResponseStatisticsSetResponseFactory",
         TRITONBACKEND_ModelInstanceResponseStatisticsSetResponseFactory(statistics, factory));
    CALL(r, "TRITONBACKEND_ModelInstanceResponseStatisticsSetResponseStart",
         TRITONBACKEND_ModelInstanceResponseStatisticsSetResponseStart(statistics, start));
    CALL(r, "TRITONBACKEND_ModelInstanceResponseStatisticsSetComputeOutputStart",
         TRITONBACKEND_ModelInstanceResponseStatisticsSetComputeOutputStart(statistics, start + 10));
    CALL(r, "TRITONBACKEND_ModelInstanceResponseStatisticsSetResponseEnd",
         TRITONBACKEND_ModelInstanceResponseStatisticsSetResponseEnd(statistics, start + 30));
    CALL(r, "TRITONBACKEND_ModelInstanceResponseStatisticsSetError",
         TRITONBACKEND_ModelInstanceResponseStatisticsSetError(statistics, NULL));
    CALL(r, "TRITONBACKEND_ModelInstanceReportResponseStatistics",
         TRITONBACKEND_ModelInstanceReportResponseStatistics(statistics));
    CALL(r, "TRITONBACKEND_ModelInstanceResponseStatisticsDelete",
         TRITONBACKEND_ModelInstanceResponseStatisticsDelete(statistics));
    TRITONBACKEND_ResponseFactoryDelete(factory);
}

TRITONSERVER_Error* TRITONBACKEND_ModelInstanceExecute(
    TRITONBACKEND_ModelInstance* instance, TRITONBACKEND_Request** requests, const uint32_t count)
{
    uint64_t start = now_ns();
    void* kept = NULL;
    TRITONBACKEND_ModelInstanceState(instance, &kept);
    Instance* state = kept;
    for (uint32_t i = 0; i < count; ++i) {
        TRITONBACKEND_Request* request = requests[i];
        Report report = {0};
        const char* mode = state->model->mode;
        if (strcmp(mode, "plain") == 0) {
            exercise_types(&report);
            exercise_errors(&report);
            exercise_messages(&report);
            exercise_parameters(&report);
            exercise_buffer_attributes(&report);
            exercise_log(&report);
            exercise_metrics(&report);
            exercise_server(&report, state->model->server);
            note_request(&report, request);
            exercise_response(&report, request);
            exercise_infer(&report, state->model->server);
            exercise_statistics(&report, instance, request, start);
        } else if (strcmp(mode, "wrong") == 0) {
            exercise_wrong(&report, request);
        } else if (strcmp(mode, "groups") == 0) {
            note(&report, "%.*s", (int)state->groups.length - 1, state->groups.text);
            note_groups(&report, "now", state->model_handle);
        } else if (strcmp(mode, "null") == 0) {
            exercise_null(&report, instance, state->model_handle, request);
            exercise_wrong_data(&report, state->model->server);
        }
        uint64_t end = now_ns();
        TRITONBACKEND_Response* response = NULL;
        TRITONBACKEND_ResponseNew(&response, request);
        if (strcmp(mode, "callee") == 0) {
            answer_callee(request, response);
        } else {
            CALL(&report, "TRITONBACKEND_ModelInstanceReportStatistics",
                 TRITONBACKEND_ModelInstanceReportStatistics(instance, request, true, start, start + 10, end, end));
            CALL(&report, "TRITONBACKEND_ModelInstanceReportBatchStatistics",
                 TRITONBACKEND_ModelInstanceReportBatchStatistics(instance, 1, start, start + 10, end, end));
            Report parts[] = {backend_report, state->model->report, state->report, report};
            give_report(response, strcmp(mode, "plain") == 0 ? parts : parts + 3, strcmp(mode, "plain") == 0 ? 4 : 1);
        }
        free(report.text);
        TRITONSERVER_Error* error = TRITONBACKEND_ResponseSend(response, TRITONSERVER_RESPONSE_COMPLETE_FINAL, NULL);
        if (error == NULL) error = TRITONBACKEND_RequestRelease(request, TRITONSERVER_REQUEST_RELEASE_ALL);
        if (error != NULL) {
            fprintf(stderr, "exercise: %s\n", TRITONSERVER_ErrorMessage(error));
            TRITONSERVER_ErrorDelete(error);
        }
    }
    return NULL;
}
