/* A repository agent that notes every call in the file record.txt beside its folder, and does what its parameters say.
 *
 *   fail=ACTION       the action, INITIALIZE or FINALIZE fails
 *   move=yes          LOAD acquires a folder, copies the model there and updates the location
 *   fnv:FILE=DIGEST   LOAD is refused unless a file of the model has this digest, FNV-1a in 16 digits
 *   update=PLACE      LOAD updates the location to this folder, or address with ://
 *   exercise=yes      LOAD calls every function, also with wrong arguments, and notes how each ends
 *   hostile=yes       LOAD passes null pointers and objects of other kinds, which only some servers survive
 *
 * Each line begins with the agent's name, which is that of its folder, and the number of the model among those that it has
 * seen since it was initialized, or 0.
 *
 * Compiled by the tests: cc -shared -fPIC recorder.c -o libtritonrepoagent_<name>.so
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <libgen.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "../backends/triton.h"

static const char* const ACTIONS[] = {"LOAD", "LOAD_COMPLETE", "LOAD_FAIL", "UNLOAD", "UNLOAD_COMPLETE"};

/* The folder of this library. */
static void own_folder(char* folder, size_t size)
{
    Dl_info info;
    dladdr((void*)own_folder, &info);
    snprintf(folder, size, "%s", info.dli_fname);
    dirname(folder);
}

static const char* own_name(void)
{
    static char folder[4096];
    own_folder(folder, sizeof folder);
    return basename(folder);
}

/* The number of the model that the agent is called for. */
static _Thread_local unsigned current;

/* How many it has seen since it was initialized. */
static _Atomic uintptr_t count;

static void note(const char* format, ...)
{
    char folder[4096], path[5000], line[8192];
    own_folder(folder, sizeof folder);
    snprintf(path, sizeof path, "%s/../record.txt", folder);
    int length = snprintf(line, sizeof line, "%s %u ", own_name(), current);
    va_list arguments;
    va_start(arguments, format);
    length += vsnprintf(line + length, sizeof line - length - 1, format, arguments);
    va_end(arguments);
    line[length++] = '\n';
    int file = open(path, O_WRONLY | O_CREAT | O_APPEND, 0666);
    if (write(file, line, length) != length) abort();
    close(file);
}

/* The code of an error, which ends here. */
static const char* code(TRITONSERVER_Error* error)
{
    if (error == NULL) return "ok";
    const char* text = TRITONSERVER_ErrorCodeString(error);
    TRITONSERVER_ErrorDelete(error);
    return text;
}

static void must(TRITONSERVER_Error* error)
{
    if (error == NULL) return;
    note("UNEXPECTED %s", TRITONSERVER_ErrorMessage(error));
    TRITONSERVER_ErrorDelete(error);
}

/* The agent is called for this model. */
static void enter(TRITONREPOAGENT_AgentModel* model)
{
    void* number = NULL;
    must(TRITONREPOAGENT_ModelState(model, &number));
    current = (unsigned)(uintptr_t)number;
}

static TRITONSERVER_Error* refuse(const char* what)
{
    char message[200];
    snprintf(message, sizeof message, "%s refuses %s", own_name(), what);
    return TRITONSERVER_ErrorNew(TRITONSERVER_ERROR_INVALID_ARG, message);
}

/* A parameter's value, or null. */
static const char* parameter(TRITONREPOAGENT_Agent* agent, TRITONREPOAGENT_AgentModel* model, const char* wanted)
{
    uint32_t count = 0;
    must(TRITONREPOAGENT_ModelParameterCount(agent, model, &count));
    for (uint32_t i = 0; i < count; ++i) {
        const char *name = NULL, *value = NULL;
        must(TRITONREPOAGENT_ModelParameter(agent, model, i, &name, &value));
        if (strcmp(name, wanted) == 0) return value;
    }
    return NULL;
}

static int has(TRITONREPOAGENT_Agent* agent, TRITONREPOAGENT_AgentModel* model, const char* name, const char* value)
{
    const char* found = parameter(agent, model, name);
    return found != NULL && strcmp(found, value) == 0;
}

static void copy_model(TRITONREPOAGENT_Agent* agent, TRITONREPOAGENT_AgentModel* model, const char* from)
{
    const char* to = NULL;
    char command[9000];
    must(TRITONREPOAGENT_ModelRepositoryLocationAcquire(agent, model, TRITONREPOAGENT_ARTIFACT_FILESYSTEM, &to));
    snprintf(command, sizeof command, "cp -r '%s'/. '%s'", from, to);
    if (system(command) != 0) note("UNEXPECTED copy");
    must(TRITONREPOAGENT_ModelRepositoryUpdate(agent, model, TRITONREPOAGENT_ARTIFACT_FILESYSTEM, to));
}

/* The digest of a file below a folder; empty if it cannot be read. */
static void digest(const char* folder, const char* file, char* text, size_t size)
{
    char path[9000];
    snprintf(path, sizeof path, "%s/%s", folder, file);
    FILE* stream = fopen(path, "rb");
    text[0] = '\0';
    if (stream == NULL) return;
    uint64_t sum = 0xcbf29ce484222325u;
    for (int byte; (byte = fgetc(stream)) != EOF;) sum = (sum ^ (uint64_t)byte) * 0x100000001b3u;
    fclose(stream);
    snprintf(text, size, "%016llx", (unsigned long long)sum);
}

/* An error if a file is not as the parameters say. */
static TRITONSERVER_Error* check_files(TRITONREPOAGENT_Agent* agent, TRITONREPOAGENT_AgentModel* model, const char* folder)
{
    uint32_t count = 0;
    must(TRITONREPOAGENT_ModelParameterCount(agent, model, &count));
    for (uint32_t i = 0; i < count; ++i) {
        const char *name = NULL, *expected = NULL;
        char found[17];
        must(TRITONREPOAGENT_ModelParameter(agent, model, i, &name, &expected));
        if (strncmp(name, "fnv:", 4) != 0) continue;
        digest(folder, name + 4, found, sizeof found);
        note("digest of %s: %s", name + 4, found);
        if (strcmp(found, expected) != 0) return refuse(name + 4);
    }
    return NULL;
}

static void exercise(TRITONREPOAGENT_Agent* agent, TRITONREPOAGENT_AgentModel* model)
{
    uint32_t major = 99, minor = 99, count = 99;
    const char *name = NULL, *value = NULL, *first = NULL, *second = NULL;
    TRITONSERVER_Message* message = NULL;
    TRITONREPOAGENT_ArtifactType type;
    void* state = &count;
    must(TRITONREPOAGENT_ApiVersion(&major, &minor));
    note("version %u.%u", major, minor);
    must(TRITONREPOAGENT_ModelParameterCount(agent, model, &count));
    note("parameters %u", count);
    note("parameter out of range: %s", code(TRITONREPOAGENT_ModelParameter(agent, model, count, &name, &value)));
    note("config version 2: %s", code(TRITONREPOAGENT_ModelConfig(agent, model, 2, &message)));
    must(TRITONREPOAGENT_ModelConfig(agent, model, 1, &message));
    const char* json = NULL;
    size_t size = 0;
    must(TRITONSERVER_MessageSerializeToJson(message, &json, &size));
    note("config %.*s", (int)size, json);
    must(TRITONSERVER_MessageDelete(message));
    must(TRITONREPOAGENT_State(agent, &state));
    note("state %s", state == NULL ? "null" : (const char*)state);
    void* before = NULL;
    must(TRITONREPOAGENT_ModelState(model, &before));
    must(TRITONREPOAGENT_ModelSetState(model, "of the model"));
    must(TRITONREPOAGENT_ModelState(model, &state));
    note("model state %s", (const char*)state);
    must(TRITONREPOAGENT_ModelSetState(model, before));
    note("release before acquire: %s", code(TRITONREPOAGENT_ModelRepositoryLocationRelease(agent, model, "x")));
    note("acquire remote: %s",
         code(TRITONREPOAGENT_ModelRepositoryLocationAcquire(
             agent, model, TRITONREPOAGENT_ARTIFACT_REMOTE_FILESYSTEM, &first)));
    must(TRITONREPOAGENT_ModelRepositoryLocationAcquire(agent, model, TRITONREPOAGENT_ARTIFACT_FILESYSTEM, &first));
    must(TRITONREPOAGENT_ModelRepositoryLocationAcquire(agent, model, TRITONREPOAGENT_ARTIFACT_FILESYSTEM, &second));
    note("acquired twice: %s", strcmp(first, second) == 0 ? "the same" : "another");
    note("it is there: %s", access(first, W_OK) == 0 ? "yes" : "no");
    char kept[4096];
    snprintf(kept, sizeof kept, "%s", first);
    note("release: %s", code(TRITONREPOAGENT_ModelRepositoryLocationRelease(agent, model, first)));
    note("it is there: %s", access(kept, F_OK) == 0 ? "yes" : "no");
    note("release again: %s", code(TRITONREPOAGENT_ModelRepositoryLocationRelease(agent, model, kept)));
    must(TRITONREPOAGENT_ModelRepositoryLocation(agent, model, &type, &first));
    must(TRITONREPOAGENT_ModelRepositoryUpdate(agent, model, TRITONREPOAGENT_ARTIFACT_REMOTE_FILESYSTEM, "s3://b/m"));
    TRITONREPOAGENT_ArtifactType updated;
    must(TRITONREPOAGENT_ModelRepositoryLocation(agent, model, &updated, &second));
    note("updated to %s of type %u", second, (unsigned)updated);
    /* The text of the location before is still there in some servers only. */
    char folder[4096];
    snprintf(folder, sizeof folder, "%s", parameter(agent, model, "home"));
    must(TRITONREPOAGENT_ModelRepositoryUpdate(agent, model, type, folder));
}

static void hostile(TRITONREPOAGENT_Agent* agent, TRITONREPOAGENT_AgentModel* model)
{
    const char* text = NULL;
    uint32_t number = 0;
    void* state = NULL;
    TRITONREPOAGENT_ArtifactType type;
    TRITONREPOAGENT_AgentModel* other = (TRITONREPOAGENT_AgentModel*)agent;
    note("version: %s", code(TRITONREPOAGENT_ApiVersion(NULL, NULL)));
    note("location: %s", code(TRITONREPOAGENT_ModelRepositoryLocation(agent, model, NULL, NULL)));
    note("location of null: %s", code(TRITONREPOAGENT_ModelRepositoryLocation(agent, NULL, &type, &text)));
    note("location of an agent: %s", code(TRITONREPOAGENT_ModelRepositoryLocation(agent, other, &type, &text)));
    note("acquire: %s",
         code(TRITONREPOAGENT_ModelRepositoryLocationAcquire(agent, model, TRITONREPOAGENT_ARTIFACT_FILESYSTEM, NULL)));
    note("acquire type 7: %s",
         code(TRITONREPOAGENT_ModelRepositoryLocationAcquire(agent, model, (TRITONREPOAGENT_ArtifactType)7, &text)));
    note("release: %s", code(TRITONREPOAGENT_ModelRepositoryLocationRelease(agent, NULL, NULL)));
    note("update: %s",
         code(TRITONREPOAGENT_ModelRepositoryUpdate(agent, model, TRITONREPOAGENT_ARTIFACT_FILESYSTEM, NULL)));
    note("update to nothing: %s",
         code(TRITONREPOAGENT_ModelRepositoryUpdate(agent, model, TRITONREPOAGENT_ARTIFACT_FILESYSTEM, "")));
    note("update type 7: %s",
         code(TRITONREPOAGENT_ModelRepositoryUpdate(agent, model, (TRITONREPOAGENT_ArtifactType)7, "x")));
    note("count: %s", code(TRITONREPOAGENT_ModelParameterCount(agent, model, NULL)));
    note("count of null: %s", code(TRITONREPOAGENT_ModelParameterCount(agent, NULL, &number)));
    note("parameter: %s", code(TRITONREPOAGENT_ModelParameter(agent, model, 0, NULL, NULL)));
    note("parameter -1: %s", code(TRITONREPOAGENT_ModelParameter(agent, model, UINT32_MAX, &text, &text)));
    note("config: %s", code(TRITONREPOAGENT_ModelConfig(agent, model, 1, NULL)));
    note("model state: %s", code(TRITONREPOAGENT_ModelState(NULL, &state)));
    note("set model state: %s", code(TRITONREPOAGENT_ModelSetState(NULL, &state)));
    note("state: %s", code(TRITONREPOAGENT_State(NULL, &state)));
    note("state of a model: %s", code(TRITONREPOAGENT_State((TRITONREPOAGENT_Agent*)model, &state)));
    note("set state: %s", code(TRITONREPOAGENT_SetState(NULL, &state)));
}

TRITONSERVER_Error* TRITONREPOAGENT_Initialize(TRITONREPOAGENT_Agent* agent)
{
    current = 0;
    count = 0;
    note("Initialize");
    must(TRITONREPOAGENT_SetState(agent, "of the agent"));
    return NULL;
}

TRITONSERVER_Error* TRITONREPOAGENT_Finalize(TRITONREPOAGENT_Agent* agent)
{
    (void)agent;
    current = 0;
    note("Finalize");
    return NULL;
}

TRITONSERVER_Error* TRITONREPOAGENT_ModelInitialize(TRITONREPOAGENT_Agent* agent, TRITONREPOAGENT_AgentModel* model)
{
    TRITONREPOAGENT_ArtifactType type;
    const char* location = NULL;
    must(TRITONREPOAGENT_ModelSetState(model, (void*)++count));
    enter(model);
    must(TRITONREPOAGENT_ModelRepositoryLocation(agent, model, &type, &location));
    note("ModelInitialize type %u at %s", (unsigned)type, location);
    note("update before LOAD: %s", code(TRITONREPOAGENT_ModelRepositoryUpdate(agent, model, type, location)));
    return has(agent, model, "fail", "INITIALIZE") ? refuse("INITIALIZE") : NULL;
}

TRITONSERVER_Error* TRITONREPOAGENT_ModelFinalize(TRITONREPOAGENT_Agent* agent, TRITONREPOAGENT_AgentModel* model)
{
    enter(model);
    note("ModelFinalize");
    return has(agent, model, "fail", "FINALIZE") ? refuse("FINALIZE") : NULL;
}

TRITONSERVER_Error* TRITONREPOAGENT_ModelAction(
    TRITONREPOAGENT_Agent* agent, TRITONREPOAGENT_AgentModel* model, const TRITONREPOAGENT_ActionType action)
{
    TRITONREPOAGENT_ArtifactType type;
    const char* location = NULL;
    enter(model);
    must(TRITONREPOAGENT_ModelRepositoryLocation(agent, model, &type, &location));
    note("%s at %s", ACTIONS[action], location);
    /* Whether a location may be updated when a load fails differs between servers. */
    if (action != TRITONREPOAGENT_ACTION_LOAD && action != TRITONREPOAGENT_ACTION_LOAD_FAIL) {
        note("update after LOAD: %s", code(TRITONREPOAGENT_ModelRepositoryUpdate(agent, model, type, location)));
    }
    if (action == TRITONREPOAGENT_ACTION_LOAD) {
        const char* place = parameter(agent, model, "update");
        TRITONSERVER_Error* wrong = check_files(agent, model, location);
        if (wrong != NULL) return wrong;
        if (has(agent, model, "move", "yes")) copy_model(agent, model, location);
        if (has(agent, model, "exercise", "yes")) exercise(agent, model);
        if (has(agent, model, "hostile", "yes")) hostile(agent, model);
        if (place != NULL) {
            type = strstr(place, "://") ? TRITONREPOAGENT_ARTIFACT_REMOTE_FILESYSTEM : TRITONREPOAGENT_ARTIFACT_FILESYSTEM;
            must(TRITONREPOAGENT_ModelRepositoryUpdate(agent, model, type, place));
        }
    }
    return has(agent, model, "fail", ACTIONS[action]) ? refuse(ACTIONS[action]) : NULL;
}
