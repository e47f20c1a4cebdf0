/* A backend that reports what it sees of sequences, and keeps a sum in a state.
 *
 * Each answer has an output TEXT of one string: a part for each request of the batch, fillers too, with "|" between
 * them. A part holds the correlation id, the flags, how many outputs are wanted, and each input with its first value.
 * Where a request has an input SUM_IN, it and IN are added, and the sum is the state SUM_OUT.
 *
 * If the model's configuration has "iterative_sequence":true, a request is answered as often as IN says: after each
 * answer but the last it is given back to come again. SUM_IN counts how often it came. The request's parameter "do" says
 * what else its execution does:
 *   keep_factories  makes a response factory each time and deletes them all in the end
 *   forget          is never answered to the end: the request is given back without a last answer
 *   bad_states      requests states that do not exist or do not fit, and answers with the errors
 *
 * Other requests may have these values of "do":
 *   write           writes the sum to the state's buffer without an update, and reports where that buffer is
 *   write_update    the same with an update
 *
 * Compiled by the tests: cc -shared -fPIC sequences.c -o libtriton_sequences.so
 */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "triton.h"

enum { MOST_FACTORIES = 1024 };

typedef struct {
    char text[8192];
    size_t length;
} Report;

static TRITONBACKEND_ResponseFactory* factories[MOST_FACTORIES];
static int factory_count;

static void say(Report* r, const char* format, ...) __attribute__((format(printf, 2, 3)));

static void say(Report* r, const char* format, ...)
{
    __builtin_va_list arguments;
    __builtin_va_start(arguments, format);
    int written = vsnprintf(r->text + r->length, sizeof r->text - r->length, format, arguments);
    __builtin_va_end(arguments);
    if (written > 0) r->length += (size_t)written;
    if (r->length >= sizeof r->text) r->length = sizeof r->text - 1;
}

/* Logs an error and deletes it. */
static bool fails(const char* what, TRITONSERVER_Error* error)
{
    if (error == NULL) return false;
    char text[512];
    snprintf(text, sizeof text, "sequences: %s: %s", what, TRITONSERVER_ErrorMessage(error));
    TRITONSERVER_LogMessage(TRITONSERVER_LOG_WARN, "sequences.c", 1, text);
    TRITONSERVER_ErrorDelete(error);
    return true;
}

/* Tells how a call that is wrong ends. */
static void tell(Report* r, const char* what, TRITONSERVER_Error* error)
{
    say(r, "%s: %s; ", what, error == NULL ? "ok" : TRITONSERVER_ErrorCodeString(error));
    if (error != NULL) TRITONSERVER_ErrorDelete(error);
}

/* The bytes of an input; 0 if there is none of that name. */
static size_t contents(TRITONBACKEND_Request* request, const char* name, void* target, size_t most)
{
    TRITONBACKEND_Input* input = NULL;
    TRITONSERVER_Error* error = TRITONBACKEND_RequestInput(request, name, &input);
    if (error != NULL) {
        TRITONSERVER_ErrorDelete(error);
        return 0;
    }
    const void* base = NULL;
    uint64_t size = 0;
    TRITONSERVER_MemoryType type = TRITONSERVER_MEMORY_CPU;
    int64_t id = 0;
    if (fails("input buffer", TRITONBACKEND_InputBuffer(input, 0, &base, &size, &type, &id))) return 0;
    memcpy(target, base, size < most ? size : most);
    return size;
}

static int32_t number(TRITONBACKEND_Request* request, const char* name)
{
    int32_t value = 0;
    contents(request, name, &value, sizeof value);
    return value;
}

static void describe_input(Report* r, TRITONBACKEND_Request* request, const char* name)
{
    TRITONBACKEND_Input* input = NULL;
    const char* given = NULL;
    TRITONSERVER_DataType type = TRITONSERVER_TYPE_INVALID;
    const int64_t* shape = NULL;
    uint32_t dims = 0, buffers = 0;
    uint64_t size = 0;
    TRITONSERVER_Error* error = TRITONBACKEND_RequestInput(request, name, &input);
    if (error != NULL) {
        TRITONSERVER_ErrorDelete(error);
        return;
    }
    fails("properties", TRITONBACKEND_InputProperties(input, &given, &type, &shape, &dims, &size, &buffers));
    say(r, " %s:%s[", given, TRITONSERVER_DataTypeString(type));
    for (uint32_t d = 0; d < dims; ++d) say(r, "%s%" PRId64, d ? "," : "", shape[d]);
    char bytes[128] = {0};
    size_t length = contents(request, name, bytes, sizeof bytes - 1);
    say(r, "]=");
    if (type == TRITONSERVER_TYPE_BYTES) {
        say(r, "'%s'", length > 4 ? bytes + 4 : "");
    } else {
        int64_t value = 0;
        memcpy(&value, bytes, size < sizeof value ? size : sizeof value);
        if (size == 4 && type == TRITONSERVER_TYPE_FP32) {
            float real;
            memcpy(&real, bytes, sizeof real);
            say(r, "%g", (double)real);
        } else {
            say(r, "%" PRId64, value);
        }
    }
}

static void describe(Report* r, TRITONBACKEND_Request* request)
{
    static const char* const names[] = {"IN", "SUM_IN", "START", "END", "READY", "CORRID"};
    uint32_t flags = 0, inputs = 0, outputs = 0;
    uint64_t id = 0;
    fails("flags", TRITONBACKEND_RequestFlags(request, &flags));
    fails("inputs", TRITONBACKEND_RequestInputCount(request, &inputs));
    fails("outputs", TRITONBACKEND_RequestOutputCount(request, &outputs));
    TRITONSERVER_Error* error = TRITONBACKEND_RequestCorrelationId(request, &id);
    if (error == NULL) {
        say(r, "id %" PRIu64, id);
    } else {
        const char* text = NULL;
        TRITONSERVER_ErrorDelete(error);
        fails("text id", TRITONBACKEND_RequestCorrelationIdString(request, &text));
        say(r, "id '%s'", text ? text : "?");
    }
    say(r, " flags %u inputs %u outputs %u", flags, inputs, outputs);
    for (size_t i = 0; i < sizeof names / sizeof *names; ++i) describe_input(r, request, names[i]);
}

static void answer(TRITONBACKEND_Request* request, TRITONBACKEND_ResponseFactory* factory, const char* text, uint32_t flags)
{
    TRITONBACKEND_Response* response = NULL;
    TRITONBACKEND_Output* output = NULL;
    uint32_t wanted = 0;
    if (factory != NULL) {
        fails("response", TRITONBACKEND_ResponseNewFromFactory(&response, factory));
    } else {
        fails("response", TRITONBACKEND_ResponseNew(&response, request));
    }
    fails("outputs", TRITONBACKEND_RequestOutputCount(request, &wanted));
    if (wanted > 0) {
        int64_t shape[2] = {1, 1};
        uint32_t dims = 1;
        TRITONBACKEND_Input* input = NULL;
        fails("input", TRITONBACKEND_RequestInput(request, "IN", &input));
        fails("dims", TRITONBACKEND_InputProperties(input, NULL, NULL, NULL, &dims, NULL, NULL));
        fails("output", TRITONBACKEND_ResponseOutput(response, &output, "TEXT", TRITONSERVER_TYPE_BYTES, shape, dims));
        uint32_t length = (uint32_t)strlen(text);
        void* buffer = NULL;
        TRITONSERVER_MemoryType type = TRITONSERVER_MEMORY_CPU;
        int64_t id = 0;
        if (!fails("buffer", TRITONBACKEND_OutputBuffer(output, &buffer, length + 4, &type, &id))) {
            memcpy(buffer, &length, 4);
            memcpy((char*)buffer + 4, text, length);
        }
    }
    fails("send", TRITONBACKEND_ResponseSend(response, flags, NULL));
}

/* Replaces the state by a number. */
static void keep(TRITONBACKEND_Request* request, int32_t value, uint32_t dims)
{
    const int64_t shape[2] = {1, 1};
    TRITONBACKEND_State* state = NULL;
    TRITONSERVER_MemoryType type = TRITONSERVER_MEMORY_CPU;
    int64_t id = 0;
    void* buffer = NULL;
    if (fails("state", TRITONBACKEND_StateNew(&state, request, "SUM_OUT", TRITONSERVER_TYPE_INT32, shape, dims))) return;
    if (fails("state buffer", TRITONBACKEND_StateBuffer(state, &buffer, sizeof value, &type, &id))) return;
    memcpy(buffer, &value, sizeof value);
    TRITONSERVER_BufferAttributes* attributes = NULL;
    size_t size = 0;
    if (!fails("state attributes", TRITONBACKEND_StateBufferAttributes(state, &attributes))) {
        fails("state size", TRITONSERVER_BufferAttributesByteSize(attributes, &size));
        if (size != sizeof value) fails("state size", TRITONSERVER_ErrorNew(TRITONSERVER_ERROR_INTERNAL, "is wrong"));
    }
    fails("state update", TRITONBACKEND_StateUpdate(state));
}

static void bad_states(Report* r, TRITONBACKEND_Request* request)
{
    const int64_t shape[1] = {1};
    TRITONBACKEND_State* state = NULL;
    TRITONSERVER_MemoryType type = TRITONSERVER_MEMORY_CPU;
    TRITONSERVER_BufferAttributes* attributes = NULL;
    int64_t id = 0;
    void* buffer = NULL;
    tell(r, "unknown", TRITONBACKEND_StateNew(&state, request, "SUM_IN", TRITONSERVER_TYPE_INT32, shape, 1));
    tell(r, "no name", TRITONBACKEND_StateNew(&state, request, NULL, TRITONSERVER_TYPE_INT32, shape, 1));
    tell(r, "no place", TRITONBACKEND_StateNew(NULL, request, "SUM_OUT", TRITONSERVER_TYPE_INT32, shape, 1));
    tell(r, "no request", TRITONBACKEND_StateNew(&state, NULL, "SUM_OUT", TRITONSERVER_TYPE_INT32, shape, 1));
    tell(r, "no shape", TRITONBACKEND_StateNew(&state, request, "SUM_OUT", TRITONSERVER_TYPE_INT32, NULL, 1));
    tell(r, "new", TRITONBACKEND_StateNew(&state, request, "SUM_OUT", TRITONSERVER_TYPE_INT32, shape, 1));
    tell(r, "attributes before", TRITONBACKEND_StateBufferAttributes(state, &attributes));
    tell(r, "update before", TRITONBACKEND_StateUpdate(state));
    tell(r, "huge", TRITONBACKEND_StateBuffer(state, &buffer, UINT64_MAX / 2, &type, &id));
    tell(r, "no buffer", TRITONBACKEND_StateBuffer(state, NULL, 4, &type, &id));
    tell(r, "short", TRITONBACKEND_StateBuffer(state, &buffer, 3, &type, &id));
    tell(r, "update short", TRITONBACKEND_StateUpdate(state));
    tell(r, "null", TRITONBACKEND_StateUpdate(NULL));
    tell(r, "other kind", TRITONBACKEND_StateUpdate((TRITONBACKEND_State*)request));
}

/* Adds IN to the number in the state's buffer. Reports where the buffer is, and the sum. */
static void write_state(Report* r, TRITONBACKEND_Request* request, uint32_t dims, bool updates)
{
    const int64_t shape[2] = {1, 1};
    TRITONBACKEND_State* state = NULL;
    TRITONBACKEND_Input* input = NULL;
    TRITONSERVER_MemoryType type = TRITONSERVER_MEMORY_CPU;
    int64_t id = 0;
    const void* base = NULL;
    uint64_t size = 0;
    void* buffer = NULL;
    fails("input", TRITONBACKEND_RequestInput(request, "SUM_IN", &input));
    fails("input buffer", TRITONBACKEND_InputBuffer(input, 0, &base, &size, &type, &id));
    if (fails("state", TRITONBACKEND_StateNew(&state, request, "SUM_OUT", TRITONSERVER_TYPE_INT32, shape, dims))) return;
    if (fails("state buffer", TRITONBACKEND_StateBuffer(state, &buffer, sizeof(int32_t), &type, &id))) return;
    int32_t before = 0;
    memcpy(&before, base, sizeof before);
    int32_t sum = before + number(request, "IN");
    memcpy(buffer, &sum, sizeof sum);
    if (updates) fails("state update", TRITONBACKEND_StateUpdate(state));
    say(r, "%s buffer, %d", buffer == base ? "same" : "another", sum);
}

static bool wants(TRITONBACKEND_Request* request, const char* what)
{
    uint32_t count = 0;
    fails("parameters", TRITONBACKEND_RequestParameterCount(request, &count));
    for (uint32_t i = 0; i < count; ++i) {
        const char* key = NULL;
        TRITONSERVER_ParameterType type = TRITONSERVER_PARAMETER_STRING;
        const void* value = NULL;
        fails("parameter", TRITONBACKEND_RequestParameter(request, i, &key, &type, &value));
        if (strcmp(key, "do") == 0) return strcmp(value, what) == 0;
    }
    return false;
}

/* One step of a request that comes again. */
static void iterate(TRITONBACKEND_Request* request, const char* text, uint32_t dims)
{
    int32_t count = number(request, "SUM_IN") + 1;
    bool last = count >= number(request, "IN");
    bool factory_wanted = wants(request, "keep_factories");
    TRITONBACKEND_ResponseFactory* factory = NULL;
    if (factory_wanted && factory_count < MOST_FACTORIES) {
        fails("factory", TRITONBACKEND_ResponseFactoryNew(&factory, request));
        factories[factory_count++] = factory;
    }
    keep(request, count, dims);
    bool forgets = last && wants(request, "forget");
    answer(request, factory, text, last && !forgets ? TRITONSERVER_RESPONSE_COMPLETE_FINAL : 0);
    uint32_t release = last ? TRITONSERVER_REQUEST_RELEASE_ALL : TRITONSERVER_REQUEST_RELEASE_RESCHEDULE;
    fails("release", TRITONBACKEND_RequestRelease(request, release));
    if (last) {
        while (factory_count > 0) fails("factory", TRITONBACKEND_ResponseFactoryDelete(factories[--factory_count]));
    }
}

static bool iterates(TRITONBACKEND_ModelInstance* instance)
{
    TRITONBACKEND_Model* model = NULL;
    TRITONSERVER_Message* config = NULL;
    const char* base = NULL;
    size_t size = 0;
    fails("model", TRITONBACKEND_ModelInstanceModel(instance, &model));
    fails("config", TRITONBACKEND_ModelConfig(model, 1, &config));
    fails("serialize", TRITONSERVER_MessageSerializeToJson(config, &base, &size));
    char* text = strndup(base, size);
    bool found = strstr(text, "\"iterative_sequence\":true") != NULL;
    free(text);
    fails("config", TRITONSERVER_MessageDelete(config));
    return found;
}

TRITONSERVER_Error* TRITONBACKEND_ModelInstanceExecute(
    TRITONBACKEND_ModelInstance* instance, TRITONBACKEND_Request** requests, const uint32_t count)
{
    Report report = {0};
    bool again = iterates(instance);
    for (uint32_t i = 0; i < count; ++i) {
        if (i > 0) say(&report, "|");
        describe(&report, requests[i]);
    }
    for (uint32_t i = 0; i < count; ++i) {
        TRITONBACKEND_Request* request = requests[i];
        TRITONBACKEND_Input* input = NULL;
        uint32_t dims = 1;
        fails("input", TRITONBACKEND_RequestInput(request, "IN", &input));
        fails("dims", TRITONBACKEND_InputProperties(input, NULL, NULL, NULL, &dims, NULL, NULL));
        if (again) {
            iterate(request, report.text, dims);
            continue;
        }
        if (wants(request, "bad_states")) {
            Report told = {0};
            bad_states(&told, request);
            answer(request, NULL, told.text, TRITONSERVER_RESPONSE_COMPLETE_FINAL);
        } else if (wants(request, "write") || wants(request, "write_update")) {
            Report told = {0};
            write_state(&told, request, dims, wants(request, "write_update"));
            answer(request, NULL, told.text, TRITONSERVER_RESPONSE_COMPLETE_FINAL);
        } else {
            int32_t sum = 0;
            if (contents(request, "SUM_IN", &sum, sizeof sum) > 0) keep(request, sum + number(request, "IN"), dims);
            answer(request, NULL, report.text, TRITONSERVER_RESPONSE_COMPLETE_FINAL);
        }
        fails("release", TRITONBACKEND_RequestRelease(request, TRITONSERVER_REQUEST_RELEASE_ALL));
    }
    return NULL;
}
