/* A backend that reports where an instance of it was created and executes, and what the server says of that.
 *
 * Each answer is the output REPORT, with lines "what: it is":
 *   policy     the message of the host policy
 *   profiles   the names of the profiles
 *   devices    the secondary devices
 *   made on    the processors of the thread that made the instance, and the nodes whose memory it may use
 *   runs on    the same of the thread that executes
 *
 * Compiled by the tests: cc -shared -fPIC place.c -o libtriton_place.so
 */
#define _GNU_SOURCE
#include <sched.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "triton.h"

enum { ROOM = 4096 };

static void must(TRITONSERVER_Error* error)
{
    if (error == NULL) return;
    fprintf(stderr, "place: %s\n", TRITONSERVER_ErrorMessage(error));
    abort();
}

__attribute__((format(printf, 2, 3))) static void add(char* text, const char* form, ...)
{
    size_t length = strlen(text);
    va_list arguments;
    va_start(arguments, form);
    vsnprintf(text + length, ROOM - length, form, arguments);
    va_end(arguments);
}

/* Where the calling thread runs. */
static void add_place(char* text, const char* what)
{
    cpu_set_t processors;
    CPU_ZERO(&processors);
    if (sched_getaffinity(0, sizeof processors, &processors) != 0) abort();
    add(text, "%s:", what);
    for (int i = 0; i < CPU_SETSIZE; ++i)
        if (CPU_ISSET(i, &processors)) add(text, " %d", i);
    int mode = 0;
    unsigned long nodes[16] = {0};
    /* Not every container lets a program ask. */
    if (syscall(SYS_get_mempolicy, &mode, nodes, 8 * sizeof nodes, NULL, 0) != 0) mode = 0;
    add(text, ", memory policy %d of nodes %lx\n", mode, nodes[0]);
}

TRITONSERVER_Error* TRITONBACKEND_ModelInstanceInitialize(TRITONBACKEND_ModelInstance* instance)
{
    char* text = calloc(1, ROOM);
    if (text == NULL) abort();
    TRITONSERVER_Message* policy = NULL;
    must(TRITONBACKEND_ModelInstanceHostPolicy(instance, &policy));
    const char* base = NULL;
    size_t size = 0;
    must(TRITONSERVER_MessageSerializeToJson(policy, &base, &size));
    add(text, "policy: %.*s\nprofiles:", (int)size, base);
    uint32_t count = 0;
    must(TRITONBACKEND_ModelInstanceProfileCount(instance, &count));
    for (uint32_t i = 0; i < count; ++i) {
        const char* name = NULL;
        must(TRITONBACKEND_ModelInstanceProfileName(instance, i, &name));
        add(text, " %s", name);
    }
    add(text, "\ndevices:");
    must(TRITONBACKEND_ModelInstanceSecondaryDeviceCount(instance, &count));
    for (uint32_t i = 0; i < count; ++i) {
        const char* kind = NULL;
        int64_t id = 0;
        must(TRITONBACKEND_ModelInstanceSecondaryDeviceProperties(instance, i, &kind, &id));
        add(text, " %s %ld", kind, (long)id);
    }
    add(text, "\n");
    add_place(text, "made on");
    must(TRITONBACKEND_ModelInstanceSetState(instance, text));
    return NULL;
}

TRITONSERVER_Error* TRITONBACKEND_ModelInstanceFinalize(TRITONBACKEND_ModelInstance* instance)
{
    void* text = NULL;
    must(TRITONBACKEND_ModelInstanceState(instance, &text));
    free(text);
    return NULL;
}

TRITONSERVER_Error* TRITONBACKEND_ModelInstanceExecute(
    TRITONBACKEND_ModelInstance* instance, TRITONBACKEND_Request** requests, const uint32_t count)
{
    void* made = NULL;
    must(TRITONBACKEND_ModelInstanceState(instance, &made));
    for (uint32_t i = 0; i < count; ++i) {
        char text[ROOM] = "";
        add(text, "%s", (const char*)made);
        add_place(text, "runs on");
        uint32_t length = (uint32_t)strlen(text);
        TRITONBACKEND_Response* response = NULL;
        TRITONBACKEND_Output* output = NULL;
        TRITONSERVER_MemoryType kind = TRITONSERVER_MEMORY_CPU;
        int64_t id = 0, shape[] = {1};
        void* buffer = NULL;
        must(TRITONBACKEND_ResponseNew(&response, requests[i]));
        must(TRITONBACKEND_ResponseOutput(response, &output, "REPORT", TRITONSERVER_TYPE_BYTES, shape, 1));
        must(TRITONBACKEND_OutputBuffer(output, &buffer, sizeof length + length, &kind, &id));
        memcpy(buffer, &length, sizeof length);
        memcpy((char*)buffer + sizeof length, text, length);
        must(TRITONBACKEND_ResponseSend(response, TRITONSERVER_RESPONSE_COMPLETE_FINAL, NULL));
        must(TRITONBACKEND_RequestRelease(requests[i], TRITONSERVER_REQUEST_RELEASE_ALL));
    }
    return NULL;
}
