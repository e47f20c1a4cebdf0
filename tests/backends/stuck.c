/* A backend that gets stuck for ever. The model's parameter "where" says in which call: load, instance, execute, instance_end,
 * model_end, or exit, which is the end of the process. The parameter "how" says how: "spin" keeps a processor busy, anything
 * else sleeps.
 *
 * Compiled by the tests: cc -shared -fPIC stuck.c -o libtriton_stuck.so
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "triton.h"

static volatile bool stuck_at_exit;
static volatile unsigned long spun;

/* Whether the configuration has a parameter with that value. */
static bool says(TRITONBACKEND_Model* model, const char* key, const char* value)
{
    TRITONSERVER_Message* config = NULL;
    const char* base = NULL;
    size_t size = 0;
    if (TRITONBACKEND_ModelConfig(model, 1, &config) != NULL) abort();
    if (TRITONSERVER_MessageSerializeToJson(config, &base, &size) != NULL) abort();
    char* json = strndup(base, size);
    char part[96];
    snprintf(part, sizeof part, "\"%s\":{\"string_value\":\"%s\"}", key, value);
    bool found = strstr(json, part) != NULL;
    free(json);
    if (TRITONSERVER_MessageDelete(config) != NULL) abort();
    return found;
}

static void perhaps_stuck(TRITONBACKEND_Model* model, const char* where)
{
    if (!says(model, "where", where)) return;
    bool spins = says(model, "how", "spin");
    char text[64];
    snprintf(text, sizeof text, "stuck in %s", where);
    TRITONSERVER_LogMessage(TRITONSERVER_LOG_INFO, "stuck.c", 1, text);
    for (;;) {
        if (spins) ++spun;
        else sleep(1000);
    }
}

static TRITONBACKEND_Model* model_of(TRITONBACKEND_ModelInstance* instance)
{
    TRITONBACKEND_Model* model = NULL;
    if (TRITONBACKEND_ModelInstanceModel(instance, &model) != NULL) abort();
    return model;
}

__attribute__((destructor)) static void unloaded(void)
{
    while (stuck_at_exit) sleep(1000);
}

TRITONSERVER_Error* TRITONBACKEND_ModelInitialize(TRITONBACKEND_Model* model)
{
    stuck_at_exit |= says(model, "where", "exit");
    perhaps_stuck(model, "load");
    return NULL;
}

TRITONSERVER_Error* TRITONBACKEND_ModelFinalize(TRITONBACKEND_Model* model)
{
    perhaps_stuck(model, "model_end");
    return NULL;
}

TRITONSERVER_Error* TRITONBACKEND_ModelInstanceInitialize(TRITONBACKEND_ModelInstance* instance)
{
    perhaps_stuck(model_of(instance), "instance");
    return NULL;
}

TRITONSERVER_Error* TRITONBACKEND_ModelInstanceFinalize(TRITONBACKEND_ModelInstance* instance)
{
    perhaps_stuck(model_of(instance), "instance_end");
    return NULL;
}

TRITONSERVER_Error* TRITONBACKEND_ModelInstanceExecute(
    TRITONBACKEND_ModelInstance* instance, TRITONBACKEND_Request** requests, const uint32_t count)
{
    perhaps_stuck(model_of(instance), "execute");
    for (uint32_t i = 0; i < count; ++i) {
        TRITONBACKEND_Response* response = NULL;
        if (TRITONBACKEND_ResponseNew(&response, requests[i]) != NULL) abort();
        if (TRITONBACKEND_ResponseSend(response, TRITONSERVER_RESPONSE_COMPLETE_FINAL, NULL) != NULL) abort();
        if (TRITONBACKEND_RequestRelease(requests[i], TRITONSERVER_REQUEST_RELEASE_ALL) != NULL) abort();
    }
    return NULL;
}
