/* What the applications of the tests share: records of outcomes, and requests that are waited for. */
#pragma once

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <triton/core/tritonserver.h>

/* Prints a label and "ok", or the code of the error, which it deletes. Gives whether it was a success. */
static inline bool record(char const* label, TRITONSERVER_Error* error)
{
    bool const good = error == NULL;
    printf("%s: %s\n", label, good ? "ok" : TRITONSERVER_ErrorCodeString(error));
    if (!good && getenv("SHOW_ERRORS")) fprintf(stderr, "%s: %s\n", label, TRITONSERVER_ErrorMessage(error));
    if (!good) TRITONSERVER_ErrorDelete(error);
    fflush(stdout);
    return good;
}

/* Ends the program unless it is a success. */
static inline void must(char const* label, TRITONSERVER_Error* error)
{
    if (error == NULL) return;
    fprintf(stderr, "%s: %s\n", label, TRITONSERVER_ErrorMessage(error));
    exit(1);
}

#define RECORD(call) record(#call, call)
#define MUST(call) must(#call, call)

/* Options of a server: its repository, the mode of model control, and the folder of backends. */
static inline TRITONSERVER_ServerOptions* options_of(
    char const* repository, TRITONSERVER_ModelControlMode mode, char const* backends)
{
    TRITONSERVER_ServerOptions* options = NULL;
    MUST(TRITONSERVER_ServerOptionsNew(&options));
    if (repository) MUST(TRITONSERVER_ServerOptionsSetModelRepositoryPath(options, repository));
    MUST(TRITONSERVER_ServerOptionsSetModelControlMode(options, mode));
    MUST(TRITONSERVER_ServerOptionsSetBackendDirectory(options, backends));
    MUST(TRITONSERVER_ServerOptionsSetStrictModelConfig(options, true));
    MUST(TRITONSERVER_ServerOptionsSetMinSupportedComputeCapability(options, 6.0));
    MUST(TRITONSERVER_ServerOptionsSetLogVerbose(options, 0));
    MUST(TRITONSERVER_ServerOptionsSetLogInfo(options, false));
    MUST(TRITONSERVER_ServerOptionsSetLogWarn(options, false));
    MUST(TRITONSERVER_ServerOptionsSetLogError(options, getenv("SHOW_ERRORS") != NULL));
    return options;
}

/* A request whose response is waited for. */
typedef struct {
    pthread_mutex_t lock;
    pthread_cond_t changed;
    TRITONSERVER_InferenceRequest* request;
    TRITONSERVER_ResponseAllocator* allocator;
    float input[4];
    float output[4];
    /* The code of its error; -1 where there is none. */
    int error;
    bool answered, released, is_trace_released;
    /* Whether it is deleted when it is released, as applications do that keep no requests. */
    bool is_deleted_at_release;
    unsigned buffers;
    /* What the response says of itself. */
    char model[64], id[64], name[64];
    int64_t version, shape[2];
    uint64_t dims;
    TRITONSERVER_DataType type;
} Exchange;

static inline TRITONSERVER_Error* allocate(
    TRITONSERVER_ResponseAllocator* allocator, char const* name, size_t size, TRITONSERVER_MemoryType kind, int64_t id,
    void* userp, void** buffer, void** buffer_userp, TRITONSERVER_MemoryType* actual_kind, int64_t* actual_id)
{
    (void)allocator, (void)name, (void)kind, (void)id;
    *buffer = size ? malloc(size) : NULL;
    *buffer_userp = userp;
    *actual_kind = TRITONSERVER_MEMORY_CPU;
    *actual_id = 0;
    __atomic_add_fetch(&((Exchange*)userp)->buffers, 1, __ATOMIC_SEQ_CST);
    return NULL;
}

static inline TRITONSERVER_Error* give_back(
    TRITONSERVER_ResponseAllocator* allocator, void* buffer, void* userp, size_t size, TRITONSERVER_MemoryType kind,
    int64_t id)
{
    (void)allocator, (void)size, (void)kind, (void)id;
    free(buffer);
    __atomic_sub_fetch(&((Exchange*)userp)->buffers, 1, __ATOMIC_SEQ_CST);
    return NULL;
}

static inline void on_release(TRITONSERVER_InferenceRequest* request, uint32_t flags, void* userp)
{
    Exchange* exchange = userp;
    (void)flags;
    if (exchange->is_deleted_at_release) MUST(TRITONSERVER_InferenceRequestDelete(request));
    pthread_mutex_lock(&exchange->lock);
    exchange->released = true;
    pthread_cond_broadcast(&exchange->changed);
    pthread_mutex_unlock(&exchange->lock);
}

static inline void read_response(Exchange* exchange, TRITONSERVER_InferenceResponse* response)
{
    TRITONSERVER_Error* error = TRITONSERVER_InferenceResponseError(response);
    if (error != NULL) {
        exchange->error = (int)TRITONSERVER_ErrorCode(error);
        TRITONSERVER_ErrorDelete(error);
        return;
    }
    char const *model = NULL, *id = NULL, *name = NULL;
    MUST(TRITONSERVER_InferenceResponseModel(response, &model, &exchange->version));
    MUST(TRITONSERVER_InferenceResponseId(response, &id));
    snprintf(exchange->model, sizeof exchange->model, "%s", model);
    snprintf(exchange->id, sizeof exchange->id, "%s", id);
    int64_t const* shape = NULL;
    void const* base = NULL;
    void* userp = NULL;
    size_t size = 0;
    TRITONSERVER_MemoryType kind = TRITONSERVER_MEMORY_CPU;
    int64_t kind_id = 0;
    MUST(TRITONSERVER_InferenceResponseOutput(
        response, 0, &name, &exchange->type, &shape, &exchange->dims, &base, &size, &kind, &kind_id, &userp));
    snprintf(exchange->name, sizeof exchange->name, "%s", name);
    if (exchange->dims <= 2) memcpy(exchange->shape, shape, exchange->dims * sizeof *shape);
    if (size == sizeof exchange->output) memcpy(exchange->output, base, size);
}

static inline void on_response(TRITONSERVER_InferenceResponse* response, uint32_t flags, void* userp)
{
    Exchange* exchange = userp;
    if (response != NULL) {
        read_response(exchange, response);
        MUST(TRITONSERVER_InferenceResponseDelete(response));
    }
    pthread_mutex_lock(&exchange->lock);
    if (flags & TRITONSERVER_RESPONSE_COMPLETE_FINAL) exchange->answered = true;
    pthread_cond_broadcast(&exchange->changed);
    pthread_mutex_unlock(&exchange->lock);
}

/* A request to a model that returns its input INPUT0, of four numbers from `first` on. NULL if it cannot be made. */
static inline Exchange* exchange_new(TRITONSERVER_Server* server, char const* model, char const* id, float first)
{
    Exchange* exchange = calloc(1, sizeof *exchange);
    pthread_mutex_init(&exchange->lock, NULL);
    pthread_cond_init(&exchange->changed, NULL);
    exchange->error = -1;
    MUST(TRITONSERVER_ResponseAllocatorNew(&exchange->allocator, allocate, give_back, NULL));
    TRITONSERVER_Error* error = TRITONSERVER_InferenceRequestNew(&exchange->request, server, model, -1);
    if (error != NULL) {
        record("TRITONSERVER_InferenceRequestNew", error);
        MUST(TRITONSERVER_ResponseAllocatorDelete(exchange->allocator));
        free(exchange);
        return NULL;
    }
    int64_t const shape[] = {1, 4};
    for (int i = 0; i < 4; i++) exchange->input[i] = first + (float)i;
    TRITONSERVER_InferenceRequest* request = exchange->request;
    MUST(TRITONSERVER_InferenceRequestSetId(request, id));
    MUST(TRITONSERVER_InferenceRequestAddInput(request, "INPUT0", TRITONSERVER_TYPE_FP32, shape, 2));
    MUST(TRITONSERVER_InferenceRequestAppendInputData(
        request, "INPUT0", exchange->input, sizeof exchange->input, TRITONSERVER_MEMORY_CPU, 0));
    MUST(TRITONSERVER_InferenceRequestAddRequestedOutput(request, "OUTPUT0"));
    MUST(TRITONSERVER_InferenceRequestSetReleaseCallback(request, on_release, exchange));
    MUST(TRITONSERVER_InferenceRequestSetResponseCallback(request, exchange->allocator, exchange, on_response, exchange));
    return exchange;
}

/* Waits until it is answered and released, and prints what came of it. */
static inline void exchange_wait(char const* label, Exchange* exchange)
{
    pthread_mutex_lock(&exchange->lock);
    while (!exchange->answered || !exchange->released) pthread_cond_wait(&exchange->changed, &exchange->lock);
    pthread_mutex_unlock(&exchange->lock);
    if (exchange->error >= 0) {
        printf("%s: error %d\n", label, exchange->error);
        return;
    }
    bool const same = memcmp(exchange->input, exchange->output, sizeof exchange->input) == 0;
    printf("%s: %s version %d of '%s': %s %s [%d,%d] %s\n", label, exchange->id, (int)exchange->version, exchange->model,
        exchange->name, TRITONSERVER_DataTypeString(exchange->type), (int)exchange->shape[0], (int)exchange->shape[1],
        same ? "as sent" : "different");
    fflush(stdout);
}

static inline void exchange_delete(Exchange* exchange)
{
    if (!exchange->is_deleted_at_release) MUST(TRITONSERVER_InferenceRequestDelete(exchange->request));
    MUST(TRITONSERVER_ResponseAllocatorDelete(exchange->allocator));
    printf("buffers left: %u\n", exchange->buffers);
    pthread_mutex_destroy(&exchange->lock);
    pthread_cond_destroy(&exchange->changed);
    free(exchange);
}

/* Sends a request, waits for the answer and deletes all of it. */
static inline void ask(TRITONSERVER_Server* server, char const* model, char const* id, float first)
{
    Exchange* exchange = exchange_new(server, model, id, first);
    if (exchange == NULL) return;
    if (record(id, TRITONSERVER_ServerInferAsync(server, exchange->request, NULL))) exchange_wait(id, exchange);
    exchange_delete(exchange);
}
