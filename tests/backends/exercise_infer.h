/* A request that the backend itself makes, to the model "callee". */

/* What the allocator gives along with a buffer. */
typedef struct {
    struct Waiting* waiting;
    int number;
} Place;

typedef struct Waiting {
    pthread_mutex_t lock;
    pthread_cond_t news;
    TRITONSERVER_InferenceResponse* response;
    bool final;
    bool released;
    uint32_t release_flags;
    int started;
    int placed;
    int unplaced;
    int attributes_asked;
    Place places[8];
    /* Given before any other memory, so that buffers lie where others lay before them. */
    char room[64];
    bool room_is_given;
} Waiting;

static TRITONSERVER_Error* infer_start(TRITONSERVER_ResponseAllocator* allocator, void* userp)
{
    (void)allocator;
    ++((Waiting*)userp)->started;
    return NULL;
}

static TRITONSERVER_Error* infer_place(
    TRITONSERVER_ResponseAllocator* allocator, const char* name, size_t byte_size, TRITONSERVER_MemoryType wanted,
    int64_t wanted_id, void* userp, void** buffer, void** buffer_userp, TRITONSERVER_MemoryType* kind, int64_t* id)
{
    (void)allocator, (void)name, (void)wanted, (void)wanted_id;
    Waiting* waiting = userp;
    if (waiting->placed >= 8) abort();
    Place* place = &waiting->places[waiting->placed];
    place->waiting = waiting;
    place->number = ++waiting->placed;
    bool fits = !waiting->room_is_given && byte_size <= sizeof waiting->room;
    if (fits) waiting->room_is_given = true;
    *buffer = fits ? waiting->room : malloc(byte_size + 1);
    *buffer_userp = place;
    *kind = TRITONSERVER_MEMORY_CPU;
    *id = 0;
    return NULL;
}

static TRITONSERVER_Error* infer_attributes(
    TRITONSERVER_ResponseAllocator* allocator, const char* name, TRITONSERVER_BufferAttributes* attributes,
    void* userp, void* buffer_userp)
{
    (void)allocator, (void)name, (void)attributes, (void)buffer_userp;
    ++((Waiting*)userp)->attributes_asked;
    return NULL;
}

static TRITONSERVER_Error* infer_query(
    TRITONSERVER_ResponseAllocator* allocator, void* userp, const char* name, size_t* byte_size,
    TRITONSERVER_MemoryType* kind, int64_t* id)
{
    (void)allocator, (void)userp, (void)name, (void)byte_size;
    *kind = TRITONSERVER_MEMORY_CPU;
    *id = 0;
    return NULL;
}

static TRITONSERVER_Error* infer_unplace(
    TRITONSERVER_ResponseAllocator* allocator, void* buffer, void* buffer_userp, size_t byte_size,
    TRITONSERVER_MemoryType kind, int64_t id)
{
    (void)allocator, (void)byte_size, (void)kind, (void)id;
    Waiting* waiting = ((Place*)buffer_userp)->waiting;
    ++waiting->unplaced;
    if (buffer == waiting->room) {
        waiting->room_is_given = false;
    } else {
        free(buffer);
    }
    return NULL;
}

static void infer_released(TRITONSERVER_InferenceRequest* request, const uint32_t flags, void* userp)
{
    (void)request;
    Waiting* waiting = userp;
    pthread_mutex_lock(&waiting->lock);
    waiting->released = true;
    waiting->release_flags = flags;
    pthread_cond_broadcast(&waiting->news);
    pthread_mutex_unlock(&waiting->lock);
}

static void infer_answered(TRITONSERVER_InferenceResponse* response, const uint32_t flags, void* userp)
{
    Waiting* waiting = userp;
    pthread_mutex_lock(&waiting->lock);
    if (response != NULL) waiting->response = response;
    if (flags & TRITONSERVER_RESPONSE_COMPLETE_FINAL) waiting->final = true;
    pthread_cond_broadcast(&waiting->news);
    pthread_mutex_unlock(&waiting->lock);
}

static void note_response(Report* r, TRITONSERVER_InferenceResponse* response)
{
    TRITONSERVER_Error* error = TRITONSERVER_InferenceResponseError(response);
    note(r, "response error: %s", error == NULL ? "(null)" : TRITONSERVER_ErrorMessage(error));
    const char* text = NULL;
    int64_t version = 0;
    CALL(r, "TRITONSERVER_InferenceResponseModel", TRITONSERVER_InferenceResponseModel(response, &text, &version));
    note(r, "response model: %s %lld", or_null(text), (long long)version);
    CALL(r, "TRITONSERVER_InferenceResponseId", TRITONSERVER_InferenceResponseId(response, &text));
    note(r, "response id: %s", or_null(text));
    uint32_t count = 99;
    CALL(r, "TRITONSERVER_InferenceResponseParameterCount",
         TRITONSERVER_InferenceResponseParameterCount(response, &count));
    note(r, "response parameters: %u", count);
    TRITONSERVER_ParameterType type = 99;
    const void* value = NULL;
    for (uint32_t i = 0; i < count; ++i) {
        CALL(r, "TRITONSERVER_InferenceResponseParameter",
             TRITONSERVER_InferenceResponseParameter(response, i, &text, &type, &value));
        bool is_text = type == TRITONSERVER_PARAMETER_STRING;
        note(r, "response parameter: %s of type %u: %s", or_null(text), type, is_text ? (const char*)value : "");
    }
    CALL(r, "response parameter out of range",
         TRITONSERVER_InferenceResponseParameter(response, 99, &text, &type, &value));
    CALL(r, "TRITONSERVER_InferenceResponseOutputCount", TRITONSERVER_InferenceResponseOutputCount(response, &count));
    note(r, "response outputs: %u", count);
    TRITONSERVER_DataType data_type = 99;
    const int64_t* shape = NULL;
    uint64_t dims = 0;
    const void* base = NULL;
    size_t size = 0;
    TRITONSERVER_MemoryType kind = 99;
    int64_t id = -7;
    void* userp = NULL;
    for (uint32_t i = 0; i < count; ++i) {
        CALL(r, "TRITONSERVER_InferenceResponseOutput",
             TRITONSERVER_InferenceResponseOutput(response, i, &text, &data_type, &shape, &dims, &base, &size, &kind,
                                                  &id, &userp));
        note(r, "response output: %s %s, %llu dimensions, first %lld, %zu bytes in memory %u, first value %d",
             or_null(text), TRITONSERVER_DataTypeString(data_type), (unsigned long long)dims,
             dims > 0 ? (long long)shape[0] : -1, size, kind, size >= 4 ? *(const int32_t*)base : -1);
        note(r, "output in place: %d", userp == NULL ? -1 : ((Place*)userp)->number);
        const char* label = "";
        CALL(r, "TRITONSERVER_InferenceResponseOutputClassificationLabel",
             TRITONSERVER_InferenceResponseOutputClassificationLabel(response, i, 0, &label));
        note(r, "label: %s", or_null(label));
    }
    CALL(r, "response output out of range",
         TRITONSERVER_InferenceResponseOutput(response, 99, &text, &data_type, &shape, &dims, &base, &size, &kind, &id,
                                              &userp));
    CALL(r, "TRITONSERVER_InferenceResponseDelete", TRITONSERVER_InferenceResponseDelete(response));
}

static void exercise_infer(Report* r, TRITONSERVER_Server* server)
{
    TRITONSERVER_InferenceRequest* request = NULL;
    CALL(r, "request to an unknown model", TRITONSERVER_InferenceRequestNew(&request, server, "nobody", -1));
    CALL(r, "request to an unknown version", TRITONSERVER_InferenceRequestNew(&request, server, "callee", 9));
    if (!CALL(r, "TRITONSERVER_InferenceRequestNew", TRITONSERVER_InferenceRequestNew(&request, server, "callee", -1)))
        return;
    const char* text = NULL;
    uint32_t small = 99;
    uint64_t large = 99;
    bool yes = true;
    CALL(r, "new id", TRITONSERVER_InferenceRequestId(request, &text));
    note(r, "new id: '%s'", or_null(text));
    CALL(r, "set id", TRITONSERVER_InferenceRequestSetId(request, "inner"));
    TRITONSERVER_InferenceRequestId(request, &text);
    note(r, "id: '%s'", or_null(text));
    CALL(r, "flags", TRITONSERVER_InferenceRequestFlags(request, &small));
    note(r, "flags: %u", small);
    CALL(r, "set flags", TRITONSERVER_InferenceRequestSetFlags(request, 0));
    CALL(r, "correlation id", TRITONSERVER_InferenceRequestCorrelationId(request, &large));
    note(r, "correlation id: %llu", (unsigned long long)large);
    CALL(r, "correlation id as text", TRITONSERVER_InferenceRequestCorrelationIdString(request, &text));
    CALL(r, "set correlation id as text", TRITONSERVER_InferenceRequestSetCorrelationIdString(request, "seven"));
    CALL(r, "correlation id as text now", TRITONSERVER_InferenceRequestCorrelationIdString(request, &text));
    note(r, "correlation id: %s", or_null(text));
    CALL(r, "correlation id as number now", TRITONSERVER_InferenceRequestCorrelationId(request, &large));
    CALL(r, "set correlation id", TRITONSERVER_InferenceRequestSetCorrelationId(request, 0));
    CALL(r, "priority", TRITONSERVER_InferenceRequestPriority(request, &small));
    CALL(r, "set priority", TRITONSERVER_InferenceRequestSetPriority(request, 1));
    CALL(r, "set wide priority", TRITONSERVER_InferenceRequestSetPriorityUInt64(request, 0));
    CALL(r, "wide priority", TRITONSERVER_InferenceRequestPriorityUInt64(request, &large));
    note(r, "priority: %llu", (unsigned long long)large);
    CALL(r, "set timeout", TRITONSERVER_InferenceRequestSetTimeoutMicroseconds(request, 30000000));
    CALL(r, "timeout", TRITONSERVER_InferenceRequestTimeoutMicroseconds(request, &large));
    note(r, "timeout: %llu", (unsigned long long)large);
    CALL(r, "text parameter", TRITONSERVER_InferenceRequestSetStringParameter(request, "s", "text"));
    CALL(r, "whole parameter", TRITONSERVER_InferenceRequestSetIntParameter(request, "i", 5));
    CALL(r, "truth parameter", TRITONSERVER_InferenceRequestSetBoolParameter(request, "b", true));
    CALL(r, "real parameter", TRITONSERVER_InferenceRequestSetDoubleParameter(request, "d", 0.5));
    CALL(r, "a parameter's name again", TRITONSERVER_InferenceRequestSetIntParameter(request, "i", 6));
    CALL(r, "reserved parameter", TRITONSERVER_InferenceRequestSetIntParameter(request, "sequence_id", 6));

    int32_t values[] = {41, 42, 43}, near_values[] = {51, 52, 53};
    int64_t shape[] = {1, 3};
    CALL(r, "input", TRITONSERVER_InferenceRequestAddInput(request, "IN", TRITONSERVER_TYPE_INT32, shape, 2));
    CALL(r, "input again", TRITONSERVER_InferenceRequestAddInput(request, "IN", TRITONSERVER_TYPE_INT32, shape, 2));
    CALL(r, "remove input", TRITONSERVER_InferenceRequestRemoveInput(request, "IN"));
    CALL(r, "remove unknown input", TRITONSERVER_InferenceRequestRemoveInput(request, "IN"));
    CALL(r, "raw input", TRITONSERVER_InferenceRequestAddRawInput(request, "IN"));
    CALL(r, "remove all inputs", TRITONSERVER_InferenceRequestRemoveAllInputs(request));
    TRITONSERVER_InferenceRequestAddInput(request, "IN", TRITONSERVER_TYPE_INT32, shape, 2);
    CALL(r, "data", TRITONSERVER_InferenceRequestAppendInputData(request, "IN", values, 4, TRITONSERVER_MEMORY_CPU, 0));
    CALL(r, "data to be removed for a host policy", TRITONSERVER_InferenceRequestAppendInputDataWithHostPolicy(
                                                        request, "IN", values, 8, TRITONSERVER_MEMORY_CPU, 0, "far"));
    CALL(r, "remove all data", TRITONSERVER_InferenceRequestRemoveAllInputData(request, "IN"));
    TRITONSERVER_InferenceRequestAppendInputData(request, "IN", values, 4, TRITONSERVER_MEMORY_CPU, 0);
    TRITONSERVER_BufferAttributes* attributes = NULL;
    TRITONSERVER_BufferAttributesNew(&attributes);
    TRITONSERVER_BufferAttributesSetMemoryType(attributes, TRITONSERVER_MEMORY_CPU);
    TRITONSERVER_BufferAttributesSetMemoryTypeId(attributes, 0);
    TRITONSERVER_BufferAttributesSetByteSize(attributes, 8);
    CALL(r, "data with attributes", TRITONSERVER_InferenceRequestAppendInputDataWithBufferAttributes(
                                        request, "IN", values + 1, attributes));
    TRITONSERVER_BufferAttributesDelete(attributes);
    CALL(r, "data of an unknown input",
         TRITONSERVER_InferenceRequestAppendInputData(request, "X", values, 4, TRITONSERVER_MEMORY_CPU, 0));
    CALL(r, "data for a host policy", TRITONSERVER_InferenceRequestAppendInputDataWithHostPolicy(
                                          request, "IN", near_values, 12, TRITONSERVER_MEMORY_CPU, 0, "near"));
    CALL(r, "no data for a host policy", TRITONSERVER_InferenceRequestAppendInputDataWithHostPolicy(
                                             request, "IN", near_values, 0, TRITONSERVER_MEMORY_CPU, 0, "near"));
    CALL(r, "data of an unknown input for a host policy",
         TRITONSERVER_InferenceRequestAppendInputDataWithHostPolicy(request, "X", near_values, 12,
                                                                    TRITONSERVER_MEMORY_CPU, 0, "near"));
    CALL(r, "requested output", TRITONSERVER_InferenceRequestAddRequestedOutput(request, "OUT"));
    CALL(r, "remove requested output", TRITONSERVER_InferenceRequestRemoveRequestedOutput(request, "OUT"));
    CALL(r, "remove all requested outputs", TRITONSERVER_InferenceRequestRemoveAllRequestedOutputs(request));
    TRITONSERVER_InferenceRequestAddRequestedOutput(request, "OUT");

    Waiting waiting;
    memset(&waiting, 0, sizeof waiting);
    pthread_mutex_init(&waiting.lock, NULL);
    pthread_cond_init(&waiting.news, NULL);
    TRITONSERVER_ResponseAllocator* allocator = NULL;
    CALL(r, "allocator", TRITONSERVER_ResponseAllocatorNew(&allocator, infer_place, infer_unplace, infer_start));
    CALL(r, "query function", TRITONSERVER_ResponseAllocatorSetQueryFunction(allocator, infer_query));
    CALL(r, "attributes function",
         TRITONSERVER_ResponseAllocatorSetBufferAttributesFunction(allocator, infer_attributes));
    CALL(r, "release callback", TRITONSERVER_InferenceRequestSetReleaseCallback(request, infer_released, &waiting));
    CALL(r, "response callback", TRITONSERVER_InferenceRequestSetResponseCallback(request, allocator, &waiting,
                                                                                 infer_answered, &waiting));
    if (CALL(r, "TRITONSERVER_ServerInferAsync", TRITONSERVER_ServerInferAsync(server, request, NULL))) {
        pthread_mutex_lock(&waiting.lock);
        while (!waiting.final || !waiting.released) pthread_cond_wait(&waiting.news, &waiting.lock);
        pthread_mutex_unlock(&waiting.lock);
        note(r, "release flags: %u", waiting.release_flags);
        if (waiting.response != NULL) note_response(r, waiting.response);
        note(r, "allocator: %d started, %d placed, %d given back, attributes asked %s", waiting.started, waiting.placed,
             waiting.unplaced, waiting.attributes_asked > 0 ? "yes" : "no");
    }
    CALL(r, "cancelled", TRITONSERVER_InferenceRequestIsCancelled(request, &yes));
    note(r, "cancelled: %d", yes);
    CALL(r, "TRITONSERVER_InferenceRequestDelete", TRITONSERVER_InferenceRequestDelete(request));
    CALL(r, "TRITONSERVER_ResponseAllocatorDelete", TRITONSERVER_ResponseAllocatorDelete(allocator));
}
