/* A backend that uses traces. What a model does follows from its name:
 *   callee       answers, and reports an activity of its own to the trace of its request
 *   child        asks "callee" with a trace derived from that of its own request, and answers what it saw of both
 *   told         asks "callee" with a trace of its own, and answers what the trace reported
 *   told_tensors the same, with tensors
 *
 * Compiled by the tests: cc -shared -fPIC trace.c -o libtriton_trace.so
 */
#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "triton.h"

typedef struct {
    pthread_mutex_t lock;
    pthread_cond_t news;
    char text[8192];
    bool answered;
    bool released;
} Seen;

static void fail(const char* what, TRITONSERVER_Error* error)
{
    if (error == NULL) return;
    fprintf(stderr, "trace: %s: %s\n", what, TRITONSERVER_ErrorMessage(error));
    abort();
}

static void note(Seen* seen, const char* form, ...)
{
    pthread_mutex_lock(&seen->lock);
    size_t length = strlen(seen->text);
    va_list values;
    va_start(values, form);
    vsnprintf(seen->text + length, sizeof seen->text - length, form, values);
    va_end(values);
    pthread_mutex_unlock(&seen->lock);
}

static uint64_t now_ns(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

/* What a trace says of itself; ids are given in relation to each other. */
static void describe(Seen* seen, const char* who, TRITONSERVER_InferenceTrace* trace, uint64_t parent)
{
    uint64_t id = 0, above = 0;
    const char *model = NULL, *request = NULL;
    int64_t version = 0;
    fail("id", TRITONSERVER_InferenceTraceId(trace, &id));
    fail("parent id", TRITONSERVER_InferenceTraceParentId(trace, &above));
    fail("model name", TRITONSERVER_InferenceTraceModelName(trace, &model));
    fail("model version", TRITONSERVER_InferenceTraceModelVersion(trace, &version));
    fail("request id", TRITONSERVER_InferenceTraceRequestId(trace, &request));
    note(seen, "%s: has id %d, parent %s, model %s %lld, request %s\n", who, id > 0,
         above == 0 ? "none" : above == parent ? "as it should be" : "another", model, model[0] ? (long long)version : -1,
         request);
}

/* ---- what a trace of this backend's own reports ---- */

static void told(TRITONSERVER_InferenceTrace* trace, TRITONSERVER_InferenceTraceActivity activity, uint64_t at, void* userp)
{
    if (activity == TRITONSERVER_TRACE_REQUEST_START) describe(userp, "told", trace, 7);
    const char* name = TRITONSERVER_InferenceTraceActivityString(activity);
    char own[64] = "";
    if (activity == TRITONSERVER_TRACE_CUSTOM_ACTIVITY) {
        /* Its name stands in the trace's context, under its time. */
        const char* context = NULL;
        fail("context", TRITONSERVER_InferenceTraceContext(trace, &context));
        char key[32];
        snprintf(key, sizeof key, "\"%llu\":\"", (unsigned long long)at);
        const char* found = strstr(context, key);
        if (found != NULL) sscanf(found + strlen(key), "%63[^\"]", own);
    }
    note(userp, "%s%s%s\n", name, own[0] ? " " : "", own);
    if (at == 0 || at > now_ns()) note(userp, "at an impossible time\n");
}

static void told_tensor(
    TRITONSERVER_InferenceTrace* trace, TRITONSERVER_InferenceTraceActivity activity, const char* name,
    TRITONSERVER_DataType type, const void* base, size_t size, const int64_t* shape, uint64_t dims,
    TRITONSERVER_MemoryType memory, int64_t memory_id, void* userp)
{
    (void)trace, (void)memory_id;
    note(userp, "%s %s %s, %zu bytes, %llu dimensions, last %lld, memory %u, first value %d\n",
         TRITONSERVER_InferenceTraceActivityString(activity), name, TRITONSERVER_DataTypeString(type), size,
         (unsigned long long)dims, (long long)shape[dims - 1], memory, *(const int32_t*)base);
}

static void over(TRITONSERVER_InferenceTrace* trace, void* userp)
{
    Seen* seen = userp;
    fail("delete", TRITONSERVER_InferenceTraceDelete(trace));
    pthread_mutex_lock(&seen->lock);
    seen->released = true;
    pthread_cond_broadcast(&seen->news);
    pthread_mutex_unlock(&seen->lock);
}

/* ---- the inner request ---- */

static TRITONSERVER_Error* place(
    TRITONSERVER_ResponseAllocator* allocator, const char* name, size_t size, TRITONSERVER_MemoryType wanted,
    int64_t wanted_id, void* userp, void** buffer, void** buffer_userp, TRITONSERVER_MemoryType* kind, int64_t* id)
{
    (void)allocator, (void)name, (void)wanted, (void)wanted_id, (void)userp;
    *buffer = malloc(size + 1);
    *buffer_userp = NULL;
    *kind = TRITONSERVER_MEMORY_CPU;
    *id = 0;
    return NULL;
}

static TRITONSERVER_Error* unplace(
    TRITONSERVER_ResponseAllocator* allocator, void* buffer, void* buffer_userp, size_t size,
    TRITONSERVER_MemoryType kind, int64_t id)
{
    (void)allocator, (void)buffer_userp, (void)size, (void)kind, (void)id;
    free(buffer);
    return NULL;
}

static void request_released(TRITONSERVER_InferenceRequest* request, const uint32_t flags, void* userp)
{
    (void)flags, (void)userp;
    fail("delete request", TRITONSERVER_InferenceRequestDelete(request));
}

static void answered(TRITONSERVER_InferenceResponse* response, const uint32_t flags, void* userp)
{
    Seen* seen = userp;
    if (response != NULL) {
        fail("response", TRITONSERVER_InferenceResponseError(response));
        fail("delete response", TRITONSERVER_InferenceResponseDelete(response));
    }
    if (!(flags & TRITONSERVER_RESPONSE_COMPLETE_FINAL)) return;
    pthread_mutex_lock(&seen->lock);
    seen->answered = true;
    pthread_cond_broadcast(&seen->news);
    pthread_mutex_unlock(&seen->lock);
}

static void ask_callee(TRITONSERVER_Server* server, Seen* seen, TRITONSERVER_InferenceTrace* trace, bool own)
{
    static int32_t values[] = {41, 42, 43};
    int64_t shape[] = {3};
    TRITONSERVER_InferenceRequest* request = NULL;
    TRITONSERVER_ResponseAllocator* allocator = NULL;
    fail("request", TRITONSERVER_InferenceRequestNew(&request, server, "callee", -1));
    fail("id", TRITONSERVER_InferenceRequestSetId(request, "inner"));
    fail("input", TRITONSERVER_InferenceRequestAddInput(request, "IN", TRITONSERVER_TYPE_INT32, shape, 1));
    fail("data", TRITONSERVER_InferenceRequestAppendInputData(request, "IN", values, 12, TRITONSERVER_MEMORY_CPU, 0));
    fail("release", TRITONSERVER_InferenceRequestSetReleaseCallback(request, request_released, NULL));
    fail("allocator", TRITONSERVER_ResponseAllocatorNew(&allocator, place, unplace, NULL));
    fail("response", TRITONSERVER_InferenceRequestSetResponseCallback(request, allocator, NULL, answered, seen));
    fail("infer", TRITONSERVER_ServerInferAsync(server, request, trace));
    pthread_mutex_lock(&seen->lock);
    while (!seen->answered || (own && !seen->released)) pthread_cond_wait(&seen->news, &seen->lock);
    pthread_mutex_unlock(&seen->lock);
    fail("delete allocator", TRITONSERVER_ResponseAllocatorDelete(allocator));
}

/* ---- what each model does ---- */

static void child(TRITONSERVER_Server* server, TRITONBACKEND_Request* request, Seen* seen)
{
    TRITONSERVER_InferenceTrace *trace = NULL, *derived = NULL;
    fail("trace", TRITONBACKEND_RequestTrace(request, &trace));
    if (trace == NULL) {
        note(seen, "no trace\n");
        return;
    }
    uint64_t id = 0;
    fail("id", TRITONSERVER_InferenceTraceId(trace, &id));
    describe(seen, "own", trace, 0);
    fail("report", TRITONSERVER_InferenceTraceReportActivity(trace, now_ns(), "WORK_START"));
    fail("spawn", TRITONSERVER_InferenceTraceSpawnChildTrace(trace, &derived));
    describe(seen, "derived", derived, id);
    fail("set context", TRITONSERVER_InferenceTraceSetContext(derived, "{\"mine\":1}"));
    const char* context = NULL;
    fail("context", TRITONSERVER_InferenceTraceContext(derived, &context));
    note(seen, "context: %s\n", context);
    ask_callee(server, seen, derived, false);
    fail("report", TRITONSERVER_InferenceTraceReportActivity(trace, now_ns(), "WORK_END"));
}

static void told_of(TRITONSERVER_Server* server, Seen* seen, bool tensors)
{
    TRITONSERVER_InferenceTrace* trace = NULL;
    if (tensors) {
        fail("new", TRITONSERVER_InferenceTraceTensorNew(
                        &trace, TRITONSERVER_TRACE_LEVEL_TIMESTAMPS | TRITONSERVER_TRACE_LEVEL_TENSORS, 7, told,
                        told_tensor, over, seen));
    } else {
        fail("new", TRITONSERVER_InferenceTraceNew(&trace, TRITONSERVER_TRACE_LEVEL_TIMESTAMPS, 7, told, over, seen));
    }
    ask_callee(server, seen, trace, true);
}

static void callee(TRITONBACKEND_Request* request)
{
    TRITONSERVER_InferenceTrace* trace = NULL;
    fail("trace", TRITONBACKEND_RequestTrace(request, &trace));
    if (trace != NULL) fail("report", TRITONSERVER_InferenceTraceReportActivity(trace, now_ns(), "CALLEE"));
}

static void execute(const char* model, TRITONSERVER_Server* server, TRITONBACKEND_ModelInstance* instance,
                    TRITONBACKEND_Request* request)
{
    uint64_t start = now_ns();
    Seen seen;
    memset(&seen, 0, sizeof seen);
    pthread_mutex_init(&seen.lock, NULL);
    pthread_cond_init(&seen.news, NULL);
    if (strcmp(model, "child") == 0) child(server, request, &seen);
    else if (strcmp(model, "told") == 0) told_of(server, &seen, false);
    else if (strcmp(model, "told_tensors") == 0) told_of(server, &seen, true);
    else callee(request);

    TRITONBACKEND_Response* response = NULL;
    TRITONBACKEND_Output* output = NULL;
    void* buffer = NULL;
    TRITONSERVER_MemoryType kind = TRITONSERVER_MEMORY_CPU;
    int64_t id = 0, shape[] = {1};
    uint32_t length = strlen(seen.text);
    fail("response", TRITONBACKEND_ResponseNew(&response, request));
    fail("output", TRITONBACKEND_ResponseOutput(response, &output, "SEEN", TRITONSERVER_TYPE_BYTES, shape, 1));
    fail("buffer", TRITONBACKEND_OutputBuffer(output, &buffer, 4 + length, &kind, &id));
    memcpy(buffer, &length, 4);
    memcpy((char*)buffer + 4, seen.text, length);
    fail("send", TRITONBACKEND_ResponseSend(response, TRITONSERVER_RESPONSE_COMPLETE_FINAL, NULL));
    uint64_t end = now_ns();
    fail("statistics", TRITONBACKEND_ModelInstanceReportStatistics(instance, request, true, start, start, end, end));
    fail("release", TRITONBACKEND_RequestRelease(request, TRITONSERVER_REQUEST_RELEASE_ALL));
    pthread_mutex_destroy(&seen.lock);
    pthread_cond_destroy(&seen.news);
}

TRITONSERVER_Error* TRITONBACKEND_ModelInstanceExecute(
    TRITONBACKEND_ModelInstance* instance, TRITONBACKEND_Request** requests, const uint32_t count)
{
    TRITONBACKEND_Model* model = NULL;
    TRITONSERVER_Server* server = NULL;
    const char* name = NULL;
    fail("model", TRITONBACKEND_ModelInstanceModel(instance, &model));
    fail("server", TRITONBACKEND_ModelServer(model, &server));
    fail("name", TRITONBACKEND_ModelName(model, &name));
    for (uint32_t i = 0; i < count; ++i) execute(name, server, instance, requests[i]);
    return NULL;
}
