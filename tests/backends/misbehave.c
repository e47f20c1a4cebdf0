/* A backend that does what a backend must not do, or only just may.
 *
 * The model's parameter "fail" names a call that returns an error: model, instance, ready. The backend's setting "fail"
 * does so for: backend, attribute. The model's parameter "mood" names a file: while it says "wait" nobody learns whether
 * an instance is ready, and when it says "no" none is. The request's parameter "do" says what its execution does:
 *   error       returns an error, so that the requests stay the server's
 *   late        answers, and gives the request back 200 ms later on another thread
 *   early       gives the request back, and answers 200 ms later through a factory
 *   hold        answers nothing and keeps the request until "let_go"
 *   keep        answers and keeps the request until "let_go"
 *   let_go      answers, and then whatever is held, and gives back whatever is kept
 *   drop        gives the request back without an answer
 *   many        answers as often as the parameter "count" says, and ends with the flag alone
 *   send_error  answers with an error, which has the code of the parameter "count" if there is one
 *   twice       gives the request back twice
 *   answer_twice  sends two last answers
 *   wrong_output  answers with an output that the configuration does not have
 *
 * Compiled by the tests: cc -shared -fPIC misbehave.c -o libtriton_misbehave.so
 */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "triton.h"

enum { MOST_HELD = 64 };

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t news = PTHREAD_COND_INITIALIZER;
static TRITONBACKEND_Request* held[MOST_HELD];
static bool held_is_answered[MOST_HELD];
static int held_count;
static int threads; /* that still run */

static TRITONSERVER_Error* refusal(const char* what)
{
    char text[128];
    snprintf(text, sizeof text, "misbehave: %s fails on purpose", what);
    return TRITONSERVER_ErrorNew(TRITONSERVER_ERROR_UNAVAILABLE, text);
}

/* Logs an error and deletes it; the calls of this backend have no other use for one. */
static void expect(const char* what, TRITONSERVER_Error* error)
{
    if (error == NULL) return;
    char text[512];
    snprintf(text, sizeof text, "misbehave: %s: %s", what, TRITONSERVER_ErrorMessage(error));
    TRITONSERVER_LogMessage(TRITONSERVER_LOG_WARN, "misbehave.c", 1, text);
    TRITONSERVER_ErrorDelete(error);
}

/* Whether a document of the server has a text. */
static bool has(TRITONSERVER_Message* message, const char* part)
{
    const char* base = NULL;
    size_t size = 0;
    expect("serialize", TRITONSERVER_MessageSerializeToJson(message, &base, &size));
    char* text = strndup(base, size);
    bool found = strstr(text, part) != NULL;
    free(text);
    return found;
}

static bool backend_fails(TRITONBACKEND_Backend* backend, const char* what)
{
    TRITONSERVER_Message* config = NULL;
    expect("config", TRITONBACKEND_BackendConfig(backend, &config));
    char part[64];
    snprintf(part, sizeof part, "\"fail\":\"%s\"", what);
    return has(config, part);
}

static bool model_fails(TRITONBACKEND_Model* model, const char* what)
{
    TRITONSERVER_Message* config = NULL;
    expect("config", TRITONBACKEND_ModelConfig(model, 1, &config));
    char part[64];
    snprintf(part, sizeof part, "\"fail\":{\"string_value\":\"%s\"}", what);
    bool found = has(config, part);
    expect("delete", TRITONSERVER_MessageDelete(config));
    return found;
}

/* What the file says that the model's parameter "mood" names; nothing where there is none. */
static void mood(TRITONBACKEND_Model* model, char* text, size_t room)
{
    const char* base = NULL;
    size_t size = 0;
    TRITONSERVER_Message* config = NULL;
    expect("config", TRITONBACKEND_ModelConfig(model, 1, &config));
    expect("serialize", TRITONSERVER_MessageSerializeToJson(config, &base, &size));
    char* json = strndup(base, size);
    expect("delete", TRITONSERVER_MessageDelete(config));
    const char before[] = "\"mood\":{\"string_value\":\"";
    char* path = strstr(json, before);
    text[0] = 0;
    if (path != NULL) {
        path += sizeof before - 1;
        path[strcspn(path, "\"")] = 0;
        FILE* file = fopen(path, "r");
        if (file != NULL) {
            text[fread(text, 1, room - 1, file)] = 0;
            fclose(file);
        }
    }
    free(json);
}

TRITONSERVER_Error* TRITONBACKEND_Initialize(TRITONBACKEND_Backend* backend)
{
    return backend_fails(backend, "backend") ? refusal("the backend") : NULL;
}

TRITONSERVER_Error* TRITONBACKEND_GetBackendAttribute(
    TRITONBACKEND_Backend* backend, TRITONBACKEND_BackendAttribute* attributes)
{
    (void)attributes;
    return backend_fails(backend, "attribute") ? refusal("the attribute") : NULL;
}

TRITONSERVER_Error* TRITONBACKEND_ModelInitialize(TRITONBACKEND_Model* model)
{
    return model_fails(model, "model") ? refusal("the model") : NULL;
}

TRITONSERVER_Error* TRITONBACKEND_ModelFinalize(TRITONBACKEND_Model* model)
{
    (void)model;
    TRITONSERVER_LogMessage(TRITONSERVER_LOG_INFO, "misbehave.c", 1, "misbehave: a model ends");
    return refusal("the model's end");
}

TRITONSERVER_Error* TRITONBACKEND_ModelInstanceInitialize(TRITONBACKEND_ModelInstance* instance)
{
    TRITONBACKEND_Model* model = NULL;
    expect("model", TRITONBACKEND_ModelInstanceModel(instance, &model));
    return model_fails(model, "instance") ? refusal("the instance") : NULL;
}

TRITONSERVER_Error* TRITONBACKEND_ModelInstanceFinalize(TRITONBACKEND_ModelInstance* instance)
{
    (void)instance;
    pthread_mutex_lock(&lock);
    while (threads > 0) pthread_cond_wait(&news, &lock);
    pthread_mutex_unlock(&lock);
    TRITONSERVER_LogMessage(TRITONSERVER_LOG_INFO, "misbehave.c", 1, "misbehave: an instance ends");
    return refusal("the instance's end");
}

TRITONSERVER_Error* TRITONBACKEND_ModelInstanceReady(TRITONBACKEND_ModelInstance* instance)
{
    TRITONBACKEND_Model* model = NULL;
    expect("model", TRITONBACKEND_ModelInstanceModel(instance, &model));
    char says[16];
    for (mood(model, says, sizeof says); strcmp(says, "wait") == 0; mood(model, says, sizeof says)) usleep(10 * 1000);
    return strcmp(says, "no") == 0 || model_fails(model, "ready") ? refusal("the readiness") : NULL;
}

/* The request's parameter "do", and its "count". */
static const char* deed(TRITONBACKEND_Request* request, int64_t* how_often)
{
    const char* found = "";
    uint32_t count = 0;
    expect("parameters", TRITONBACKEND_RequestParameterCount(request, &count));
    for (uint32_t i = 0; i < count; ++i) {
        const char* key = NULL;
        TRITONSERVER_ParameterType type;
        const void* value = NULL;
        expect("parameter", TRITONBACKEND_RequestParameter(request, i, &key, &type, &value));
        if (strcmp(key, "do") == 0 && type == TRITONSERVER_PARAMETER_STRING) found = value;
        if (strcmp(key, "count") == 0 && type == TRITONSERVER_PARAMETER_INT) *how_often = *(const int64_t*)value;
    }
    return found;
}

/* Puts one number into an output. */
static void fill(TRITONBACKEND_Response* response, const char* name, int32_t number)
{
    TRITONBACKEND_Output* output = NULL;
    void* buffer = NULL;
    TRITONSERVER_MemoryType kind = TRITONSERVER_MEMORY_CPU;
    int64_t id = 0, shape[] = {1};
    TRITONSERVER_Error* error =
        TRITONBACKEND_ResponseOutput(response, &output, name, TRITONSERVER_TYPE_INT32, shape, 1);
    if (error != NULL) {
        expect("output", error);
        return;
    }
    expect("buffer", TRITONBACKEND_OutputBuffer(output, &buffer, sizeof number, &kind, &id));
    memcpy(buffer, &number, sizeof number);
}

static void answer(TRITONBACKEND_Request* request, int32_t number)
{
    TRITONBACKEND_Response* response = NULL;
    expect("response", TRITONBACKEND_ResponseNew(&response, request));
    fill(response, "OUT", number);
    expect("send", TRITONBACKEND_ResponseSend(response, TRITONSERVER_RESPONSE_COMPLETE_FINAL, NULL));
}

static void release(TRITONBACKEND_Request* request)
{
    expect("release", TRITONBACKEND_RequestRelease(request, TRITONSERVER_REQUEST_RELEASE_ALL));
}

static void thread_ends(void)
{
    pthread_mutex_lock(&lock);
    --threads;
    pthread_cond_broadcast(&news);
    pthread_mutex_unlock(&lock);
}

static void* release_late(void* request)
{
    usleep(200 * 1000);
    release(request);
    thread_ends();
    return NULL;
}

static void* answer_late(void* factory)
{
    usleep(200 * 1000);
    TRITONBACKEND_Response* response = NULL;
    expect("response", TRITONBACKEND_ResponseNewFromFactory(&response, factory));
    fill(response, "OUT", 2);
    expect("send", TRITONBACKEND_ResponseSend(response, TRITONSERVER_RESPONSE_COMPLETE_FINAL, NULL));
    expect("delete", TRITONBACKEND_ResponseFactoryDelete(factory));
    thread_ends();
    return NULL;
}

static void start(void* (*work)(void*), void* with)
{
    pthread_mutex_lock(&lock);
    ++threads;
    pthread_mutex_unlock(&lock);
    pthread_t thread;
    if (pthread_create(&thread, NULL, work, with) != 0) abort();
    pthread_detach(thread);
}

static void execute(TRITONBACKEND_Request* request)
{
    int64_t how_often = -1;
    const char* what = deed(request, &how_often);
    if (strcmp(what, "late") == 0) {
        answer(request, 1);
        start(release_late, request);
    } else if (strcmp(what, "early") == 0) {
        TRITONBACKEND_ResponseFactory* factory = NULL;
        expect("factory", TRITONBACKEND_ResponseFactoryNew(&factory, request));
        release(request);
        start(answer_late, factory);
    } else if (strcmp(what, "hold") == 0 || strcmp(what, "keep") == 0) {
        bool answers = strcmp(what, "keep") == 0;
        if (answers) answer(request, 9);
        pthread_mutex_lock(&lock);
        if (held_count == MOST_HELD) abort();
        held_is_answered[held_count] = answers;
        held[held_count++] = request;
        pthread_mutex_unlock(&lock);
        TRITONSERVER_LogMessage(TRITONSERVER_LOG_INFO, "misbehave.c", 1, "misbehave: holds a request");
    } else if (strcmp(what, "let_go") == 0) {
        answer(request, 3);
        release(request);
        pthread_mutex_lock(&lock);
        for (; held_count > 0; --held_count) {
            if (!held_is_answered[held_count - 1]) answer(held[held_count - 1], 4);
            release(held[held_count - 1]);
        }
        pthread_mutex_unlock(&lock);
    } else if (strcmp(what, "drop") == 0) {
        release(request);
    } else if (strcmp(what, "many") == 0) {
        TRITONBACKEND_ResponseFactory* factory = NULL;
        expect("factory", TRITONBACKEND_ResponseFactoryNew(&factory, request));
        for (int64_t i = 0; i < how_often; ++i) {
            TRITONBACKEND_Response* response = NULL;
            expect("response", TRITONBACKEND_ResponseNewFromFactory(&response, factory));
            fill(response, "OUT", (int32_t)i);
            expect("send", TRITONBACKEND_ResponseSend(response, 0, NULL));
        }
        expect("flags", TRITONBACKEND_ResponseFactorySendFlags(factory, TRITONSERVER_RESPONSE_COMPLETE_FINAL));
        expect("delete", TRITONBACKEND_ResponseFactoryDelete(factory));
        release(request);
    } else if (strcmp(what, "send_error") == 0) {
        TRITONBACKEND_Response* response = NULL;
        expect("response", TRITONBACKEND_ResponseNew(&response, request));
        TRITONSERVER_Error* error = how_often < 0
            ? refusal("the answer")
            : TRITONSERVER_ErrorNew((TRITONSERVER_Error_Code)how_often, "misbehave: an error of that code");
        expect("send", TRITONBACKEND_ResponseSend(response, TRITONSERVER_RESPONSE_COMPLETE_FINAL, error));
        TRITONSERVER_ErrorDelete(error);
        release(request);
    } else if (strcmp(what, "twice") == 0) {
        answer(request, 5);
        release(request);
        release(request);
    } else if (strcmp(what, "answer_twice") == 0) {
        answer(request, 6);
        answer(request, 7);
        release(request);
    } else if (strcmp(what, "wrong_output") == 0) {
        TRITONBACKEND_Response* response = NULL;
        expect("response", TRITONBACKEND_ResponseNew(&response, request));
        fill(response, "NONE", 8);
        expect("send", TRITONBACKEND_ResponseSend(response, TRITONSERVER_RESPONSE_COMPLETE_FINAL, NULL));
        release(request);
    } else {
        answer(request, 0);
        release(request);
    }
}

TRITONSERVER_Error* TRITONBACKEND_ModelInstanceExecute(
    TRITONBACKEND_ModelInstance* instance, TRITONBACKEND_Request** requests, const uint32_t count)
{
    (void)instance;
    int64_t how_often = 0;
    if (count > 0 && strcmp(deed(requests[0], &how_often), "error") == 0) return refusal("the execution");
    for (uint32_t i = 0; i < count; ++i) execute(requests[i]);
    return NULL;
}
