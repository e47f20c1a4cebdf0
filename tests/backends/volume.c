/* A library that chooses batches by the bytes of their inputs, and a backend that reports how many requests shared one.
 *
 * As `batchstrategy.so` it lets requests join a batch while the batch's inputs have no more bytes than the model's
 * parameter "most_bytes" says. The request's parameter "fail" has it fail to judge the request; the model's parameter
 * "fail" has it fail to start. Each call without a visible effect is logged, with the path of the library.
 *
 * As `libtriton_volume.so` it answers each request with the number of requests in its execution.
 *
 * Compiled by the tests: cc -shared -fPIC volume.c -o libtriton_volume.so, with -DPARTIAL for one that has not all
 * functions, and -DNONE for one that has none.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "triton.h"

static void must(TRITONSERVER_Error* error)
{
    if (error == NULL) return;
    fprintf(stderr, "volume: %s\n", TRITONSERVER_ErrorMessage(error));
    abort();
}

#ifndef NONE
typedef struct {
    uint64_t most;
} Rules;

typedef struct {
    uint64_t left;
} Batch;

static void say(const char* what)
{
    Dl_info library;
    char text[4096];
    if (dladdr((void*)say, &library) == 0) abort();
    snprintf(text, sizeof text, "volume: %s by %s", what, library.dli_fname);
    TRITONSERVER_LogMessage(TRITONSERVER_LOG_INFO, "volume.c", 1, text);
}

/* The text of a model's parameter, or null. */
static char* parameter(TRITONBACKEND_Model* model, const char* name)
{
    TRITONSERVER_Message* config = NULL;
    const char* base = NULL;
    size_t size = 0;
    must(TRITONBACKEND_ModelConfig(model, 1, &config));
    must(TRITONSERVER_MessageSerializeToJson(config, &base, &size));
    char* json = strndup(base, size);
    char before[128];
    snprintf(before, sizeof before, "\"%s\":{\"string_value\":\"", name);
    char* found = strstr(json, before);
    char* value = found == NULL ? NULL : strndup(found + strlen(before), strcspn(found + strlen(before), "\""));
    free(json);
    must(TRITONSERVER_MessageDelete(config));
    return value;
}

TRITONSERVER_Error* TRITONBACKEND_ModelBatcherInitialize(TRITONBACKEND_Batcher** batcher, TRITONBACKEND_Model* model)
{
    say("batches begin to be chosen");
    char* fail = parameter(model, "fail");
    bool fails = fail != NULL;
    free(fail);
    if (fails) return TRITONSERVER_ErrorNew(TRITONSERVER_ERROR_INVALID_ARG, "volume: it does not start");
    char* most = parameter(model, "most_bytes");
    Rules* rules = malloc(sizeof *rules);
    if (rules == NULL) abort();
    rules->most = most == NULL ? UINT64_MAX : strtoull(most, NULL, 10);
    free(most);
    *batcher = (TRITONBACKEND_Batcher*)rules;
    return NULL;
}

#ifndef PARTIAL
TRITONSERVER_Error* TRITONBACKEND_ModelBatcherFinalize(TRITONBACKEND_Batcher* batcher)
{
    say("batches end to be chosen");
    free(batcher);
    return NULL;
}
#endif

TRITONSERVER_Error* TRITONBACKEND_ModelBatchInitialize(const TRITONBACKEND_Batcher* batcher, void** batch)
{
    Batch* begun = malloc(sizeof *begun);
    if (begun == NULL) abort();
    begun->left = ((const Rules*)batcher)->most;
    *batch = begun;
    return NULL;
}

TRITONSERVER_Error* TRITONBACKEND_ModelBatchIncludeRequest(TRITONBACKEND_Request* request, void* batch, bool* include)
{
    uint32_t count = 0;
    must(TRITONBACKEND_RequestParameterCount(request, &count));
    for (uint32_t i = 0; i < count; ++i) {
        const char* key = NULL;
        TRITONSERVER_ParameterType type;
        const void* value = NULL;
        must(TRITONBACKEND_RequestParameter(request, i, &key, &type, &value));
        if (strcmp(key, "fail") == 0)
            return TRITONSERVER_ErrorNew(TRITONSERVER_ERROR_INTERNAL, "volume: it cannot judge the request");
    }
    uint64_t bytes = 0;
    must(TRITONBACKEND_RequestInputCount(request, &count));
    for (uint32_t i = 0; i < count; ++i) {
        TRITONBACKEND_Input* input = NULL;
        uint64_t size = 0;
        must(TRITONBACKEND_RequestInputByIndex(request, i, &input));
        must(TRITONBACKEND_InputProperties(input, NULL, NULL, NULL, NULL, &size, NULL));
        bytes += size;
    }
    Batch* begun = batch;
    *include = bytes <= begun->left;
    if (*include) begun->left -= bytes;
    return NULL;
}

TRITONSERVER_Error* TRITONBACKEND_ModelBatchFinalize(void* batch)
{
    free(batch);
    return NULL;
}
#endif

TRITONSERVER_Error* TRITONBACKEND_ModelInstanceExecute(
    TRITONBACKEND_ModelInstance* instance, TRITONBACKEND_Request** requests, const uint32_t count)
{
    (void)instance;
    for (uint32_t i = 0; i < count; ++i) {
        TRITONBACKEND_Response* response = NULL;
        TRITONBACKEND_Output* output = NULL;
        TRITONSERVER_MemoryType kind = TRITONSERVER_MEMORY_CPU;
        int64_t id = 0, shape[] = {1, 1};
        void* buffer = NULL;
        must(TRITONBACKEND_ResponseNew(&response, requests[i]));
        must(TRITONBACKEND_ResponseOutput(response, &output, "COUNT", TRITONSERVER_TYPE_UINT32, shape, 2));
        must(TRITONBACKEND_OutputBuffer(output, &buffer, sizeof count, &kind, &id));
        memcpy(buffer, &count, sizeof count);
        must(TRITONBACKEND_ResponseSend(response, TRITONSERVER_RESPONSE_COMPLETE_FINAL, NULL));
        must(TRITONBACKEND_RequestRelease(requests[i], TRITONSERVER_REQUEST_RELEASE_ALL));
    }
    return NULL;
}
