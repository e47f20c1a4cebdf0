/* A backend that copies each request's first input to the output OUTPUT0, for `cargo xtask bench reference`.
 *
 * It does what any backend has to do and nothing else, statistics included, so that the same library measures the server
 * around it. Needs its inputs in host memory.
 *
 * Compiled by the measurement: cc -O2 -shared -fPIC echo.c -o libtriton_echo.so
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "triton.h"

static void must(TRITONSERVER_Error* error)
{
    if (error == NULL) return;
    fprintf(stderr, "echo: %s\n", TRITONSERVER_ErrorMessage(error));
    abort();
}

static uint64_t now(void)
{
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (uint64_t)time.tv_sec * 1000000000 + (uint64_t)time.tv_nsec;
}

static TRITONBACKEND_Response* answer(TRITONBACKEND_Request* request, uint64_t* rows)
{
    TRITONBACKEND_Input* input = NULL;
    TRITONBACKEND_Response* response = NULL;
    TRITONBACKEND_Output* output = NULL;
    TRITONSERVER_DataType type;
    TRITONSERVER_MemoryType kind = TRITONSERVER_MEMORY_CPU;
    const int64_t* shape = NULL;
    int64_t id = 0;
    uint32_t dims = 0, pieces = 0;
    uint64_t size = 0;
    void* buffer = NULL;
    must(TRITONBACKEND_RequestInputByIndex(request, 0, &input));
    must(TRITONBACKEND_InputProperties(input, NULL, &type, &shape, &dims, &size, &pieces));
    must(TRITONBACKEND_ResponseNew(&response, request));
    must(TRITONBACKEND_ResponseOutput(response, &output, "OUTPUT0", type, shape, dims));
    must(TRITONBACKEND_OutputBuffer(output, &buffer, size, &kind, &id));
    for (uint32_t i = 0; i < pieces; ++i) {
        const void* piece = NULL;
        uint64_t length = 0;
        must(TRITONBACKEND_InputBuffer(input, i, &piece, &length, &kind, &id));
        memcpy(buffer, piece, length);
        buffer = (char*)buffer + length;
    }
    *rows += (uint64_t)shape[0];
    return response;
}

TRITONSERVER_Error* TRITONBACKEND_ModelInstanceExecute(
    TRITONBACKEND_ModelInstance* instance, TRITONBACKEND_Request** requests, const uint32_t count)
{
    const uint64_t start = now();
    uint64_t rows = 0;
    for (uint32_t i = 0; i < count; ++i) {
        TRITONBACKEND_Response* response = answer(requests[i], &rows);
        const uint64_t end = now();
        must(TRITONBACKEND_ResponseSend(response, TRITONSERVER_RESPONSE_COMPLETE_FINAL, NULL));
        must(TRITONBACKEND_ModelInstanceReportStatistics(instance, requests[i], true, start, start, end, end));
        must(TRITONBACKEND_RequestRelease(requests[i], TRITONSERVER_REQUEST_RELEASE_ALL));
    }
    const uint64_t end = now();
    must(TRITONBACKEND_ModelInstanceReportBatchStatistics(instance, rows, start, start, end, end));
    return NULL;
}
