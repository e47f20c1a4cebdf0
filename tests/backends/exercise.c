/* A backend that calls every function of tritonbackend.h, and what of tritonserver.h a backend may call, and reports what
 * came back.
 *
 * Each answer is a line "what: outcome" of the output REPORT. A test compares the lines with those of another server.
 * The model's parameter "mode" chooses what is called:
 *   plain   everything as it should be called
 *   wrong   with wrong arguments that any server survives: indices out of range, unknown names
 *   null    with null for every handle and address, one at a time
 *   callee  gives IN back as OUT, for the requests that "plain" makes to another model
 *
 * Compiled by the tests: cc -shared -fPIC exercise.c -o libtriton_exercise.so
 */
#define _GNU_SOURCE
#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "triton.h"

/* ---- the report ---- */

static const char* or_null(const char* text) { return text == NULL ? "(null)" : text; }

typedef struct {
    char* text;
    size_t length;
    size_t room;
} Report;

static void note(Report* report, const char* form, ...)
{
    char line[4096];
    va_list arguments;
    va_start(arguments, form);
    int length = vsnprintf(line, sizeof line - 1, form, arguments);
    va_end(arguments);
    if (length < 0) abort();
    if ((size_t)length > sizeof line - 2) length = sizeof line - 2;
    for (int i = 0; i < length; ++i)
        if (line[i] == '\n') line[i] = ' ';
    line[length++] = '\n';
    if (report->length + (size_t)length > report->room) {
        report->room = (report->length + (size_t)length) * 2;
        report->text = realloc(report->text, report->room);
        if (report->text == NULL) abort();
    }
    memcpy(report->text + report->length, line, (size_t)length);
    report->length += (size_t)length;
}

/* Notes how a call ended: the error's code, since servers word their messages differently. Deletes the error. True if
 * there was none. */
static bool outcome(Report* report, const char* what, TRITONSERVER_Error* error)
{
    if (error == NULL) {
        note(report, "%s: ok", what);
        return true;
    }
    note(report, "%s: %s%s", what, TRITONSERVER_ErrorCodeString(error),
         or_null(TRITONSERVER_ErrorMessage(error))[0] == 0 ? " without a message" : "");
    TRITONSERVER_ErrorDelete(error);
    return false;
}

#define CALL(report, what, ...) outcome(report, what, __VA_ARGS__)

/* The message's text, or "(error)"; ends with a zero, to be freed. */
static char* message_text(TRITONSERVER_Message* message)
{
    const char* base = NULL;
    size_t size = 0;
    TRITONSERVER_Error* error = TRITONSERVER_MessageSerializeToJson(message, &base, &size);
    if (error != NULL) {
        TRITONSERVER_ErrorDelete(error);
        return strdup("(error)");
    }
    char* text = malloc(size + 1);
    if (text == NULL) abort();
    memcpy(text, base, size);
    text[size] = 0;
    return text;
}

static bool contains(TRITONSERVER_Message* message, const char* part)
{
    char* text = message_text(message);
    bool found = strstr(text, part) != NULL;
    free(text);
    return found;
}

static uint64_t now_ns(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

/* ---- what is kept ---- */

static Report backend_report; /* of Initialize and GetBackendAttribute */
static TRITONBACKEND_Backend* the_backend;

typedef struct {
    Report report; /* of ModelInitialize */
    char mode[16];
    TRITONSERVER_Server* server;
} Model;

typedef struct {
    Report report; /* of ModelInstanceInitialize */
    Report groups; /* what the configuration said of instances meanwhile */
    Model* model;
    TRITONBACKEND_Model* model_handle;
} Instance;

/* Notes how many instances the configuration of the model asks for. */
static void note_groups(Report* r, const char* when, TRITONBACKEND_Model* model)
{
    TRITONSERVER_Message* config = NULL;
    if (TRITONBACKEND_ModelConfig(model, 1, &config) != NULL) abort();
    char* text = message_text(config);
    const char* at = strstr(text, "\"instance_group\":");
    const char* end = at == NULL ? NULL : strstr(at, "\"default_model_filename\"");
    int instances = 0;
    while (end != NULL && (at = strstr(at, "\"count\":")) != NULL && at < end) instances += atoi(at += 8);
    note(r, "instances, %s: %d", when, instances);
    free(text);
    TRITONSERVER_MessageDelete(config);
}

/* ---- backend ---- */

TRITONSERVER_Error* TRITONBACKEND_Initialize(TRITONBACKEND_Backend* backend)
{
    Report* r = &backend_report;
    the_backend = backend;
    uint32_t major = 0, minor = 0;
    CALL(r, "TRITONBACKEND_ApiVersion", TRITONBACKEND_ApiVersion(&major, &minor));
    note(r, "backend version: %u, at least 19: %d", major, minor >= 19);
    CALL(r, "TRITONSERVER_ApiVersion", TRITONSERVER_ApiVersion(&major, &minor));
    note(r, "server version: %u, at least 34: %d", major, minor >= 34);
    const char* name = NULL;
    CALL(r, "TRITONBACKEND_BackendName", TRITONBACKEND_BackendName(backend, &name));
    note(r, "backend name: %s", or_null(name));
    TRITONSERVER_Message* config = NULL;
    CALL(r, "TRITONBACKEND_BackendConfig", TRITONBACKEND_BackendConfig(backend, &config));
    note(r, "backend config: cmdline %d auto-complete-config %d default-max-batch-size %d backend-directory %d "
            "min-compute-capability %d own-setting %d",
         contains(config, "\"cmdline\":{"), contains(config, "\"auto-complete-config\":\"true\""),
         contains(config, "\"default-max-batch-size\":\"4\""), contains(config, "\"backend-directory\":\""),
         contains(config, "\"min-compute-capability\":\"6.0"), contains(config, "\"own-setting\":\"7\""));
    TRITONBACKEND_ExecutionPolicy policy = 99;
    CALL(r, "TRITONBACKEND_BackendExecutionPolicy", TRITONBACKEND_BackendExecutionPolicy(backend, &policy));
    note(r, "execution policy: %u", policy);
    CALL(r, "TRITONBACKEND_BackendSetExecutionPolicy",
         TRITONBACKEND_BackendSetExecutionPolicy(backend, TRITONBACKEND_EXECUTION_DEVICE_BLOCKING));
    TRITONBACKEND_BackendExecutionPolicy(backend, &policy);
    note(r, "execution policy: %u", policy);
    TRITONBACKEND_BackendSetExecutionPolicy(backend, TRITONBACKEND_EXECUTION_BLOCKING);
    TRITONBACKEND_ArtifactType kind = 99;
    const char* location = NULL;
    CALL(r, "TRITONBACKEND_BackendArtifacts", TRITONBACKEND_BackendArtifacts(backend, &kind, &location));
    const char* last = location == NULL ? NULL : strrchr(location, '/');
    note(r, "artifacts: kind %u, folder %s", kind, last == NULL ? "(none)" : last + 1);
    TRITONBACKEND_MemoryManager* manager = NULL;
    CALL(r, "TRITONBACKEND_BackendMemoryManager", TRITONBACKEND_BackendMemoryManager(backend, &manager));
    note(r, "memory manager: %s", manager == NULL ? "(null)" : "there");
    void* memory = NULL;
    if (CALL(r, "TRITONBACKEND_MemoryManagerAllocate",
             TRITONBACKEND_MemoryManagerAllocate(manager, &memory, TRITONSERVER_MEMORY_CPU, 0, 4096))) {
        memset(memory, 7, 4096);
        CALL(r, "TRITONBACKEND_MemoryManagerFree",
             TRITONBACKEND_MemoryManagerFree(manager, memory, TRITONSERVER_MEMORY_CPU, 0));
    }
    void* state = &state;
    CALL(r, "TRITONBACKEND_BackendState", TRITONBACKEND_BackendState(backend, &state));
    note(r, "backend state: %s", state == NULL ? "(null)" : "there");
    CALL(r, "TRITONBACKEND_BackendSetState", TRITONBACKEND_BackendSetState(backend, r));
    TRITONBACKEND_BackendState(backend, &state);
    note(r, "backend state is what was set: %d", state == (void*)r);
    return NULL;
}

TRITONSERVER_Error* TRITONBACKEND_Finalize(TRITONBACKEND_Backend* backend)
{
    (void)backend;
    free(backend_report.text);
    memset(&backend_report, 0, sizeof backend_report);
    TRITONSERVER_LogMessage(TRITONSERVER_LOG_INFO, "exercise.c", 1, "exercise: backend ended");
    return NULL;
}

TRITONSERVER_Error* TRITONBACKEND_GetBackendAttribute(
    TRITONBACKEND_Backend* backend, TRITONBACKEND_BackendAttribute* attributes)
{
    Report* r = &backend_report;
    static bool noted;
    TRITONSERVER_Error* error = TRITONBACKEND_BackendAttributeAddPreferredInstanceGroup(
        attributes, TRITONSERVER_INSTANCEGROUPKIND_CPU, 2, NULL, 0);
    TRITONSERVER_Error* other =
        TRITONBACKEND_BackendAttributeSetParallelModelInstanceLoading(attributes, false);
    if (!noted) { /* a server may ask for each model */
        noted = true;
        note(r, "attributes of the backend itself: %d", backend == the_backend);
        outcome(r, "TRITONBACKEND_BackendAttributeAddPreferredInstanceGroup", error);
        outcome(r, "TRITONBACKEND_BackendAttributeSetParallelModelInstanceLoading", other);
        return NULL;
    }
    TRITONSERVER_ErrorDelete(error);
    TRITONSERVER_ErrorDelete(other);
    return NULL;
}

/* ---- model ---- */

/* Memory that a model or instance says it uses: stays with the caller until it says otherwise. */
static TRITONSERVER_Error* memory_usage(TRITONSERVER_BufferAttributes** usage, size_t byte_size)
{
    TRITONSERVER_BufferAttributesNew(usage);
    TRITONSERVER_BufferAttributesSetMemoryType(*usage, TRITONSERVER_MEMORY_CPU);
    TRITONSERVER_BufferAttributesSetMemoryTypeId(*usage, 0);
    return TRITONSERVER_BufferAttributesSetByteSize(*usage, byte_size);
}

TRITONSERVER_Error* TRITONBACKEND_ModelInitialize(TRITONBACKEND_Model* model)
{
    Model* state = calloc(1, sizeof *state);
    if (state == NULL) abort();
    Report* r = &state->report;
    const char* name = NULL;
    uint64_t version = 0;
    CALL(r, "TRITONBACKEND_ModelName", TRITONBACKEND_ModelName(model, &name));
    CALL(r, "TRITONBACKEND_ModelVersion", TRITONBACKEND_ModelVersion(model, &version));
    note(r, "model: %s version %llu", or_null(name), (unsigned long long)version);
    TRITONBACKEND_ArtifactType kind = 99;
    const char* location = NULL;
    CALL(r, "TRITONBACKEND_ModelRepository", TRITONBACKEND_ModelRepository(model, &kind, &location));
    const char* last = location == NULL ? NULL : strrchr(location, '/');
    note(r, "repository: kind %u, folder %s", kind, last == NULL ? "(none)" : last + 1);
    bool complete = false;
    CALL(r, "TRITONBACKEND_ModelAutoCompleteConfig", TRITONBACKEND_ModelAutoCompleteConfig(model, &complete));
    note(r, "completes: %d", complete);
    TRITONSERVER_Message* config = NULL;
    if (CALL(r, "TRITONBACKEND_ModelConfig", TRITONBACKEND_ModelConfig(model, 1, &config))) {
        char* text = message_text(config);
        const char* modes[] = {"plain", "wrong", "null", "callee", "groups"};
        for (size_t i = 0; i < 5; ++i) {
            char parameter[64];
            snprintf(parameter, sizeof parameter, "\"mode\":{\"string_value\":\"%s\"}", modes[i]);
            if (strstr(text, parameter) != NULL) strcpy(state->mode, modes[i]);
        }
        /* The model's output REPORT is left for completion: the closing bracket of an empty list is found. */
        char* empty = strstr(text, "\"output\":[]");
        if (empty != NULL && strcmp(state->mode, "callee") != 0) {
            char* completed = malloc(strlen(text) + 256);
            if (completed == NULL) abort();
            size_t before = (size_t)(empty - text);
            memcpy(completed, text, before);
            strcpy(completed + before,
                   "\"output\":[{\"name\":\"REPORT\",\"data_type\":\"TYPE_STRING\",\"dims\":[1]},"
                   "{\"name\":\"EXTRA\",\"data_type\":\"TYPE_INT32\",\"dims\":[-1,2]}]");
            strcat(completed, empty + strlen("\"output\":[]"));
            TRITONSERVER_Message* message = NULL;
            CALL(r, "TRITONSERVER_MessageNewFromSerializedJson",
                 TRITONSERVER_MessageNewFromSerializedJson(&message, completed, strlen(completed)));
            CALL(r, "TRITONBACKEND_ModelSetConfig", TRITONBACKEND_ModelSetConfig(model, 1, message));
            TRITONSERVER_MessageDelete(message);
            free(completed);
            TRITONSERVER_Message* again = NULL;
            TRITONBACKEND_ModelConfig(model, 1, &again);
            note(r, "config is completed: %d", contains(again, "\"EXTRA\""));
            TRITONSERVER_MessageDelete(again);
        } else {
            note(r, "no empty list of outputs in the configuration");
        }
        free(text);
        CALL(r, "TRITONSERVER_MessageDelete", TRITONSERVER_MessageDelete(config));
    }
    note_groups(r, "while the model was made", model);
    TRITONSERVER_Message* unknown = NULL;
    CALL(r, "TRITONBACKEND_ModelConfig of another version", TRITONBACKEND_ModelConfig(model, 2, &unknown));
    CALL(r, "TRITONBACKEND_ModelServer", TRITONBACKEND_ModelServer(model, &state->server));
    note(r, "server: %s", state->server == NULL ? "(null)" : "there");
    TRITONBACKEND_Backend* backend = NULL;
    CALL(r, "TRITONBACKEND_ModelBackend", TRITONBACKEND_ModelBackend(model, &backend));
    note(r, "model's backend is the backend: %d", backend == the_backend);
    void* kept = &kept;
    CALL(r, "TRITONBACKEND_ModelState", TRITONBACKEND_ModelState(model, &kept));
    note(r, "model state: %s", kept == NULL ? "(null)" : "there");
    CALL(r, "TRITONBACKEND_ModelSetState", TRITONBACKEND_ModelSetState(model, state));
    TRITONBACKEND_ModelState(model, &kept);
    note(r, "model state is what was set: %d", kept == (void*)state);
    TRITONSERVER_BufferAttributes* usage = NULL;
    memory_usage(&usage, 1000);
    CALL(r, "TRITONBACKEND_ModelReportMemoryUsage", TRITONBACKEND_ModelReportMemoryUsage(model, &usage, 1));
    TRITONSERVER_BufferAttributesDelete(usage);
    return NULL;
}

TRITONSERVER_Error* TRITONBACKEND_ModelFinalize(TRITONBACKEND_Model* model)
{
    void* state = NULL;
    TRITONBACKEND_ModelState(model, &state);
    if (state != NULL) {
        free(((Model*)state)->report.text);
        free(state);
    }
    return NULL;
}

/* ---- instance ---- */

TRITONSERVER_Error* TRITONBACKEND_ModelInstanceInitialize(TRITONBACKEND_ModelInstance* instance)
{
    Instance* state = calloc(1, sizeof *state);
    if (state == NULL) abort();
    Report* r = &state->report;
    const char* name = NULL;
    CALL(r, "TRITONBACKEND_ModelInstanceName", TRITONBACKEND_ModelInstanceName(instance, &name));
    /* Which of two instances answers is open: they differ in the last digit of the name. */
    note(r, "instance name: %.*s", name == NULL ? 0 : (int)strlen(name) - 1, or_null(name));
    TRITONSERVER_InstanceGroupKind kind = 99;
    CALL(r, "TRITONBACKEND_ModelInstanceKind", TRITONBACKEND_ModelInstanceKind(instance, &kind));
    note(r, "kind: %u %s", kind, TRITONSERVER_InstanceGroupKindString(kind));
    int32_t device = -7;
    CALL(r, "TRITONBACKEND_ModelInstanceDeviceId", TRITONBACKEND_ModelInstanceDeviceId(instance, &device));
    note(r, "device: %d", device);
    TRITONSERVER_Message* policy = NULL;
    if (CALL(r, "TRITONBACKEND_ModelInstanceHostPolicy", TRITONBACKEND_ModelInstanceHostPolicy(instance, &policy))) {
        char* text = message_text(policy);
        note(r, "host policy: %s", text);
        free(text);
    }
    bool passive = true;
    CALL(r, "TRITONBACKEND_ModelInstanceIsPassive", TRITONBACKEND_ModelInstanceIsPassive(instance, &passive));
    note(r, "passive: %d", passive);
    uint32_t count = 99;
    CALL(r, "TRITONBACKEND_ModelInstanceProfileCount", TRITONBACKEND_ModelInstanceProfileCount(instance, &count));
    note(r, "profiles: %u", count);
    for (uint32_t i = 0; i < count; ++i) {
        const char* profile = NULL;
        CALL(r, "TRITONBACKEND_ModelInstanceProfileName", TRITONBACKEND_ModelInstanceProfileName(instance, i, &profile));
        note(r, "profile: %s", or_null(profile));
    }
    CALL(r, "TRITONBACKEND_ModelInstanceSecondaryDeviceCount",
         TRITONBACKEND_ModelInstanceSecondaryDeviceCount(instance, &count));
    note(r, "secondary devices: %u", count);
    for (uint32_t i = 0; i < count; ++i) {
        const char* device_kind = NULL;
        int64_t id = -1;
        CALL(r, "TRITONBACKEND_ModelInstanceSecondaryDeviceProperties",
             TRITONBACKEND_ModelInstanceSecondaryDeviceProperties(instance, i, &device_kind, &id));
        note(r, "secondary device: %s %lld", or_null(device_kind), (long long)id);
    }
    const char* text = NULL;
    int64_t id = 0;
    CALL(r, "profile out of range", TRITONBACKEND_ModelInstanceProfileName(instance, 9, &text));
    CALL(r, "secondary device out of range",
         TRITONBACKEND_ModelInstanceSecondaryDeviceProperties(instance, 9, &text, &id));
    CALL(r, "TRITONBACKEND_ModelInstanceModel", TRITONBACKEND_ModelInstanceModel(instance, &state->model_handle));
    void* model = NULL;
    TRITONBACKEND_ModelState(state->model_handle, &model);
    state->model = model;
    note_groups(&state->groups, "while the instance was made", state->model_handle);
    void* kept = &kept;
    CALL(r, "TRITONBACKEND_ModelInstanceState", TRITONBACKEND_ModelInstanceState(instance, &kept));
    note(r, "instance state: %s", kept == NULL ? "(null)" : "there");
    CALL(r, "TRITONBACKEND_ModelInstanceSetState", TRITONBACKEND_ModelInstanceSetState(instance, state));
    TRITONBACKEND_ModelInstanceState(instance, &kept);
    note(r, "instance state is what was set: %d", kept == (void*)state);
    TRITONSERVER_BufferAttributes* usage = NULL;
    memory_usage(&usage, 10);
    CALL(r, "TRITONBACKEND_ModelInstanceReportMemoryUsage",
         TRITONBACKEND_ModelInstanceReportMemoryUsage(instance, &usage, 1));
    TRITONSERVER_BufferAttributesDelete(usage);
    return NULL;
}

TRITONSERVER_Error* TRITONBACKEND_ModelInstanceFinalize(TRITONBACKEND_ModelInstance* instance)
{
    void* state = NULL;
    TRITONBACKEND_ModelInstanceState(instance, &state);
    if (state != NULL) {
        free(((Instance*)state)->report.text);
        free(((Instance*)state)->groups.text);
        free(state);
    }
    return NULL;
}

TRITONSERVER_Error* TRITONBACKEND_ModelInstanceReady(TRITONBACKEND_ModelInstance* instance)
{
    (void)instance;
    return NULL;
}

#include "exercise_values.h"
#include "exercise_infer.h"
#include "exercise_request.h"
