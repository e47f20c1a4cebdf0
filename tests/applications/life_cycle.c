/* An application with servers inside: makes, asks, changes and ends them, and records the outcomes.
 *
 *   life_cycle REPOSITORY BACKENDS      what Triton's library does, too
 *   life_cycle REPOSITORY BACKENDS own  misuse, which it does not survive, and what is newer than it
 *   life_cycle REPOSITORY BACKENDS COUNT  makes and deletes that many servers, and prints what the process then has
 *
 * The repository has the models `echo` and `slow`, which answers 500 ms later; the folder `other` beside it has the
 * model `kept`; the folder `broken` has one that cannot be loaded.
 */
#include <dirent.h>
#include <unistd.h>

#include "application.h"

static char other[512], broken[512], missing[512];

static void print_message(char const* label, TRITONSERVER_Error* error, TRITONSERVER_Message* const* place)
{
    if (!record(label, error)) return;
    TRITONSERVER_Message* message = *place;
    char const* base = NULL;
    size_t size = 0;
    MUST(TRITONSERVER_MessageSerializeToJson(message, &base, &size));
    printf("%s: %.*s\n", label, (int)size, base);
    MUST(TRITONSERVER_MessageDelete(message));
}

static void print_state(char const* label, TRITONSERVER_Server* server)
{
    bool live = false, ready = false, echo = false, slow = false, kept = false;
    RECORD(TRITONSERVER_ServerIsLive(server, &live));
    RECORD(TRITONSERVER_ServerIsReady(server, &ready));
    TRITONSERVER_Error* errors[] = {
        TRITONSERVER_ServerModelIsReady(server, "echo", -1, &echo),
        TRITONSERVER_ServerModelIsReady(server, "slow", 1, &slow),
        TRITONSERVER_ServerModelIsReady(server, "kept", -1, &kept),
    };
    for (size_t i = 0; i < 3; i++) TRITONSERVER_ErrorDelete(errors[i]);
    printf("%s: live %d ready %d echo %d slow %d kept %d\n", label, live, ready, echo, slow, kept);
}

static void every_option(void)
{
    TRITONSERVER_ServerOptions* options = NULL;
    RECORD(TRITONSERVER_ServerOptionsNew(&options));
    RECORD(TRITONSERVER_ServerOptionsSetServerId(options, "a-server"));
    RECORD(TRITONSERVER_ServerOptionsSetModelRepositoryPath(options, missing));
    for (unsigned mode = 0; mode < 4; mode++)
        RECORD(TRITONSERVER_ServerOptionsSetModelControlMode(options, (TRITONSERVER_ModelControlMode)mode));
    RECORD(TRITONSERVER_ServerOptionsSetStartupModel(options, "a-model"));
    RECORD(TRITONSERVER_ServerOptionsSetStrictModelConfig(options, false));
    RECORD(TRITONSERVER_ServerOptionsSetModelConfigName(options, "a-name"));
    RECORD(TRITONSERVER_ServerOptionsSetModelConfigName(options, ""));
    for (unsigned mode = 0; mode < 3; mode++)
        RECORD(TRITONSERVER_ServerOptionsSetRateLimiterMode(options, (TRITONSERVER_RateLimitMode)mode));
    RECORD(TRITONSERVER_ServerOptionsAddRateLimiterResource(options, "R1", 3, -1));
    RECORD(TRITONSERVER_ServerOptionsAddRateLimiterResource(options, "R2", 5, 0));
    RECORD(TRITONSERVER_ServerOptionsSetPinnedMemoryPoolByteSize(options, 1 << 20));
    RECORD(TRITONSERVER_ServerOptionsSetCudaMemoryPoolByteSize(options, 0, 1 << 20));
    RECORD(TRITONSERVER_ServerOptionsSetCudaVirtualAddressSize(options, 0, 1 << 20));
    RECORD(TRITONSERVER_ServerOptionsSetResponseCacheByteSize(options, 0));
    RECORD(TRITONSERVER_ServerOptionsSetResponseCacheByteSize(options, 1 << 20));
    RECORD(TRITONSERVER_ServerOptionsSetCacheConfig(options, "local", "{\"size\": \"1048576\"}"));
    RECORD(TRITONSERVER_ServerOptionsSetCacheDirectory(options, "/opt/tritonserver/caches"));
    RECORD(TRITONSERVER_ServerOptionsSetMinSupportedComputeCapability(options, 7.5));
    RECORD(TRITONSERVER_ServerOptionsSetExitOnError(options, false));
    RECORD(TRITONSERVER_ServerOptionsSetStrictReadiness(options, false));
    RECORD(TRITONSERVER_ServerOptionsSetExitTimeout(options, 7));
    RECORD(TRITONSERVER_ServerOptionsSetBufferManagerThreadCount(options, 2));
    RECORD(TRITONSERVER_ServerOptionsSetModelLoadThreadCount(options, 3));
    RECORD(TRITONSERVER_ServerOptionsSetModelLoadRetryCount(options, 1));
    RECORD(TRITONSERVER_ServerOptionsSetModelNamespacing(options, true));
    RECORD(TRITONSERVER_ServerOptionsSetEnablePeerAccess(options, true));
    RECORD(TRITONSERVER_ServerOptionsSetMetrics(options, true));
    RECORD(TRITONSERVER_ServerOptionsSetGpuMetrics(options, false));
    RECORD(TRITONSERVER_ServerOptionsSetCpuMetrics(options, false));
    RECORD(TRITONSERVER_ServerOptionsSetMetricsInterval(options, 500));
    RECORD(TRITONSERVER_ServerOptionsSetMetricsConfig(options, "", "summary_latencies", "true"));
    RECORD(TRITONSERVER_ServerOptionsSetBackendDirectory(options, "/opt/tritonserver/backends"));
    RECORD(TRITONSERVER_ServerOptionsSetRepoAgentDirectory(options, "/opt/tritonserver/repoagents"));
    RECORD(TRITONSERVER_ServerOptionsSetBackendConfig(options, "", "default-max-batch-size", "2"));
    RECORD(TRITONSERVER_ServerOptionsSetBackendConfig(options, "python", "shm-region-prefix-name", "a"));
    RECORD(TRITONSERVER_ServerOptionsSetHostPolicy(options, "gpu_0", "numa-node", "0"));
    RECORD(TRITONSERVER_ServerOptionsSetHostPolicy(options, "gpu_0", "cpu-cores", "0-0"));
    RECORD(TRITONSERVER_ServerOptionsSetHostPolicy(options, "gpu_0", "colour", "red"));
    struct { TRITONSERVER_InstanceGroupKind kind; int device; double fraction; } const limits[] = {
        {TRITONSERVER_INSTANCEGROUPKIND_GPU, 0, 0.5},   {TRITONSERVER_INSTANCEGROUPKIND_GPU, -1, 0.5},
        {TRITONSERVER_INSTANCEGROUPKIND_GPU, 0, 1.5},   {TRITONSERVER_INSTANCEGROUPKIND_GPU, 0, -0.5},
        {TRITONSERVER_INSTANCEGROUPKIND_CPU, 0, 0.5},   {TRITONSERVER_INSTANCEGROUPKIND_GPU, 3, 0},
    };
    for (size_t i = 0; i < sizeof limits / sizeof *limits; i++)
        RECORD(TRITONSERVER_ServerOptionsSetModelLoadDeviceLimit(
            options, limits[i].kind, limits[i].device, limits[i].fraction));
    /* The log is the process's: these need no options. */
    RECORD(TRITONSERVER_ServerOptionsSetLogFile(options, ""));
    RECORD(TRITONSERVER_ServerOptionsSetLogFile(NULL, NULL));
    RECORD(TRITONSERVER_ServerOptionsSetLogFile(NULL, "/nonexistent/folder/log"));
    RECORD(TRITONSERVER_ServerOptionsSetLogFormat(NULL, TRITONSERVER_LOG_ISO8601));
    RECORD(TRITONSERVER_ServerOptionsSetLogFormat(NULL, TRITONSERVER_LOG_DEFAULT));
    RECORD(TRITONSERVER_ServerOptionsSetLogInfo(NULL, false));
    RECORD(TRITONSERVER_ServerOptionsSetLogWarn(NULL, false));
    RECORD(TRITONSERVER_ServerOptionsSetLogError(NULL, getenv("SHOW_ERRORS") != NULL));
    RECORD(TRITONSERVER_ServerOptionsSetLogVerbose(NULL, 0));
    RECORD(TRITONSERVER_ServerOptionsDelete(options));
}

static void servers_that_do_not_start(char const* backends)
{
    char const* repositories[] = {NULL, missing, broken};
    for (size_t i = 0; i < 3; i++) {
        for (int exits = 1; exits >= 0; exits--) {
            /* Ours needs a repository in any case. */
            if (repositories[i] == NULL && !exits) continue;
            TRITONSERVER_Server* server = NULL;
            TRITONSERVER_ServerOptions* options = options_of(repositories[i], TRITONSERVER_MODEL_CONTROL_NONE, backends);
            MUST(TRITONSERVER_ServerOptionsSetExitOnError(options, exits));
            printf("repository %d, exit on error %d\n", (int)i, exits);
            bool const made = RECORD(TRITONSERVER_ServerNew(&server, options));
            MUST(TRITONSERVER_ServerOptionsDelete(options));
            if (made && i == 2) print_state("broken", server);
            if (made) RECORD(TRITONSERVER_ServerDelete(server));
        }
    }
}

static void documents(TRITONSERVER_Server* server)
{
    TRITONSERVER_Message* message = NULL;
    uint32_t flags = 0;
    void* voidp = NULL;
    RECORD(TRITONSERVER_ServerModelBatchProperties(server, "echo", -1, &flags, &voidp));
    printf("batch flags %u\n", flags);
    RECORD(TRITONSERVER_ServerModelTransactionProperties(server, "echo", -1, &flags, &voidp));
    printf("transaction flags %u\n", flags);
    /* Names and versions of servers differ, and so do statistics' times. */
    record("server metadata", TRITONSERVER_ServerMetadata(server, &message));
    MUST(TRITONSERVER_MessageDelete(message));
    print_message("model metadata", TRITONSERVER_ServerModelMetadata(server, "echo", -1, &message), &message);
    print_message("no metadata", TRITONSERVER_ServerModelMetadata(server, "none", -1, &message), &message);
    record("statistics", TRITONSERVER_ServerModelStatistics(server, "echo", -1, &message));
    MUST(TRITONSERVER_MessageDelete(message));
    print_message("no statistics", TRITONSERVER_ServerModelStatistics(server, "none", -1, &message), &message);
    record("config", TRITONSERVER_ServerModelConfig(server, "echo", -1, 1, &message));
    MUST(TRITONSERVER_MessageDelete(message));
    print_message("no config", TRITONSERVER_ServerModelConfig(server, "echo", -1, 2, &message), &message);
    print_message("index", TRITONSERVER_ServerModelIndex(server, 0, &message), &message);
    print_message("ready index", TRITONSERVER_ServerModelIndex(server, TRITONSERVER_INDEX_FLAG_READY, &message), &message);
    TRITONSERVER_Metrics* metrics = NULL;
    char const* text = NULL;
    size_t size = 0;
    RECORD(TRITONSERVER_ServerMetrics(server, &metrics));
    RECORD(TRITONSERVER_MetricsFormatted(metrics, TRITONSERVER_METRIC_PROMETHEUS, &text, &size));
    printf("metrics: %d\n", text != NULL && strstr(text, "nv_inference_request_success{model=\"echo\"") != NULL);
    RECORD(TRITONSERVER_MetricsDelete(metrics));
}

static void loads(TRITONSERVER_Server* server)
{
    print_state("nothing loaded", server);
    RECORD(TRITONSERVER_ServerLoadModel(server, "echo"));
    RECORD(TRITONSERVER_ServerLoadModel(server, "none"));
    print_state("one loaded", server);
    ask(server, "echo", "one", 1);
    ask(server, "none", "of none", 1);
    documents(server);
    char const config[] = "{\"name\":\"slow\",\"backend\":\"echo\",\"max_batch_size\":4,"
        "\"input\":[{\"name\":\"INPUT0\",\"data_type\":\"TYPE_FP32\",\"dims\":[4]}],"
        "\"output\":[{\"name\":\"OUTPUT0\",\"data_type\":\"TYPE_FP32\",\"dims\":[4]}]}";
    TRITONSERVER_Parameter const* parameter = TRITONSERVER_ParameterNew("config", TRITONSERVER_PARAMETER_STRING, config);
    RECORD(TRITONSERVER_ServerLoadModelWithParameters(server, "slow", &parameter, 1));
    TRITONSERVER_ParameterDelete((TRITONSERVER_Parameter*)parameter);
    ask(server, "slow", "with another config", 2);
    RECORD(TRITONSERVER_ServerUnloadModel(server, "echo"));
    RECORD(TRITONSERVER_ServerUnloadModelAndDependents(server, "slow"));
    RECORD(TRITONSERVER_ServerUnloadModel(server, "none"));
}

static void repositories(TRITONSERVER_Server* server, char const* repository)
{
    TRITONSERVER_Parameter const* names[] = {
        TRITONSERVER_ParameterNew("kept", TRITONSERVER_PARAMETER_STRING, "renamed"),
        TRITONSERVER_ParameterNew("another", TRITONSERVER_PARAMETER_STRING, "renamed"),
    };
    RECORD(TRITONSERVER_ServerRegisterModelRepository(server, missing, NULL, 0));
    RECORD(TRITONSERVER_ServerRegisterModelRepository(server, repository, NULL, 0));
    RECORD(TRITONSERVER_ServerRegisterModelRepository(server, other, NULL, 1));
    RECORD(TRITONSERVER_ServerRegisterModelRepository(server, other, names, 2));
    RECORD(TRITONSERVER_ServerRegisterModelRepository(server, other, names, 0));
    RECORD(TRITONSERVER_ServerRegisterModelRepository(server, other, NULL, 0));
    RECORD(TRITONSERVER_ServerLoadModel(server, "kept"));
    ask(server, "kept", "of another repository", 3);
    RECORD(TRITONSERVER_ServerUnregisterModelRepository(server, other));
    RECORD(TRITONSERVER_ServerUnregisterModelRepository(server, other));
    ask(server, "kept", "of a repository that has gone", 4);
    RECORD(TRITONSERVER_ServerUnloadModel(server, "kept"));
    RECORD(TRITONSERVER_ServerLoadModel(server, "kept"));
    RECORD(TRITONSERVER_ServerRegisterModelRepository(server, other, names, 1));
    RECORD(TRITONSERVER_ServerLoadModel(server, "renamed"));
    ask(server, "renamed", "under another name", 5);
    RECORD(TRITONSERVER_ServerUnregisterModelRepository(server, other));
    RECORD(TRITONSERVER_ServerUnregisterModelRepository(server, repository));
    RECORD(TRITONSERVER_ServerLoadModel(server, "echo"));
    RECORD(TRITONSERVER_ServerRegisterModelRepository(server, repository, NULL, 0));
    RECORD(TRITONSERVER_ServerLoadModel(server, "echo"));
    RECORD(TRITONSERVER_ServerPollModelRepository(server));
    for (size_t i = 0; i < 2; i++) TRITONSERVER_ParameterDelete((TRITONSERVER_Parameter*)names[i]);
}

static void polled(char const* repository, char const* backends)
{
    char from[600], to[600];
    snprintf(from, sizeof from, "%s/kept", other);
    snprintf(to, sizeof to, "%s/kept", repository);
    TRITONSERVER_Server* server = NULL;
    /* Polling is the interface's default. */
    TRITONSERVER_ServerOptions* options = NULL;
    MUST(TRITONSERVER_ServerOptionsNew(&options));
    MUST(TRITONSERVER_ServerOptionsSetModelRepositoryPath(options, repository));
    MUST(TRITONSERVER_ServerOptionsSetBackendDirectory(options, backends));
    RECORD(TRITONSERVER_ServerNew(&server, options));
    MUST(TRITONSERVER_ServerOptionsDelete(options));
    print_state("before a poll", server);
    if (rename(from, to) != 0) perror(to);
    RECORD(TRITONSERVER_ServerPollModelRepository(server));
    print_state("one more", server);
    ask(server, "kept", "of a model that came", 6);
    if (rename(to, from) != 0) perror(from);
    RECORD(TRITONSERVER_ServerPollModelRepository(server));
    /* Whether a server is ready from which a model has gone is another question. */
    ask(server, "kept", "of a model that has gone", 7);
    ask(server, "echo", "of one that is left", 8);
    RECORD(TRITONSERVER_ServerLoadModel(server, "echo"));
    RECORD(TRITONSERVER_ServerRegisterModelRepository(server, other, NULL, 0));
    RECORD(TRITONSERVER_ServerUnregisterModelRepository(server, repository));
    RECORD(TRITONSERVER_ServerDelete(server));
}

static void ends(char const* repository, char const* backends)
{
    TRITONSERVER_Server *server = NULL, *second = NULL;
    TRITONSERVER_ServerOptions* options = options_of(repository, TRITONSERVER_MODEL_CONTROL_NONE, backends);
    RECORD(TRITONSERVER_ServerNew(&server, options));
    RECORD(TRITONSERVER_ServerNew(&second, options));
    MUST(TRITONSERVER_ServerOptionsDelete(options));
    RECORD(TRITONSERVER_ServerPollModelRepository(server));
    RECORD(TRITONSERVER_ServerLoadModel(server, "echo"));
    Exchange* exchange = exchange_new(server, "slow", "in flight", 7);
    exchange->is_deleted_at_release = true;
    RECORD(TRITONSERVER_ServerInferAsync(server, exchange->request, NULL));
    RECORD(TRITONSERVER_ServerStop(server));
    exchange_wait("in flight", exchange);
    exchange_delete(exchange);
    print_state("stopped", server);
    ask(server, "echo", "of a stopped server", 8);
    RECORD(TRITONSERVER_ServerLoadModel(server, "echo"));
    RECORD(TRITONSERVER_ServerStop(server));
    RECORD(TRITONSERVER_ServerDelete(server));
    print_state("second", second);
    ask(second, "echo", "of the second", 9);
    exchange = exchange_new(second, "slow", "in flight at deletion", 10);
    exchange->is_deleted_at_release = true;
    RECORD(TRITONSERVER_ServerInferAsync(second, exchange->request, NULL));
    RECORD(TRITONSERVER_ServerSetExitTimeout(second, 20));
    RECORD(TRITONSERVER_ServerDelete(second));
    exchange_wait("in flight at deletion", exchange);
    exchange_delete(exchange);
    RECORD(TRITONSERVER_ServerDelete(NULL));
    RECORD(TRITONSERVER_ServerStop(NULL));
    RECORD(TRITONSERVER_ServerSetExitTimeout(NULL, 1));
}

static void priorities(TRITONSERVER_Server* server)
{
    uint64_t const given[] = {0, 1, 10, 11, UINT64_MAX};
    Exchange* exchange = exchange_new(server, "slow", "of a priority", 13);
    for (size_t i = 0; i < sizeof given / sizeof *given; i++) {
        uint64_t found = 99;
        RECORD(TRITONSERVER_InferenceRequestSetPriorityUInt64(exchange->request, given[i]));
        RECORD(TRITONSERVER_InferenceRequestPriorityUInt64(exchange->request, &found));
        printf("priority: %llu\n", (unsigned long long)found);
    }
    exchange_delete(exchange);
}

static void cancelled(TRITONSERVER_Server* server)
{
    bool is_cancelled = false;
    Exchange* exchange = exchange_new(server, "slow", "cancelled", 11);
    RECORD(TRITONSERVER_ServerInferAsync(server, exchange->request, NULL));
    RECORD(TRITONSERVER_InferenceRequestCancel(exchange->request));
    RECORD(TRITONSERVER_InferenceRequestIsCancelled(exchange->request, &is_cancelled));
    printf("is cancelled: %d\n", is_cancelled);
    exchange_wait("cancelled", exchange);
    exchange_delete(exchange);
}

/* -- A trace comes back when its request is answered, though the request is kept. */

static unsigned activities;

static void on_activity(
    TRITONSERVER_InferenceTrace* trace, TRITONSERVER_InferenceTraceActivity activity, uint64_t nanos, void* userp)
{
    (void)trace, (void)nanos, (void)userp;
    __atomic_or_fetch(&activities, 1u << activity, __ATOMIC_SEQ_CST);
}

static void on_trace_release(TRITONSERVER_InferenceTrace* trace, void* userp)
{
    Exchange* exchange = userp;
    MUST(TRITONSERVER_InferenceTraceDelete(trace));
    pthread_mutex_lock(&exchange->lock);
    exchange->is_trace_released = true;
    pthread_cond_broadcast(&exchange->changed);
    pthread_mutex_unlock(&exchange->lock);
}

static void traced(TRITONSERVER_Server* server)
{
    TRITONSERVER_InferenceTrace* trace = NULL;
    Exchange* exchange = exchange_new(server, "slow", "traced", 12);
    RECORD(TRITONSERVER_InferenceTraceNew(
        &trace, TRITONSERVER_TRACE_LEVEL_TIMESTAMPS, 0, on_activity, on_trace_release, exchange));
    RECORD(TRITONSERVER_ServerInferAsync(server, exchange->request, trace));
    exchange_wait("traced", exchange);
    pthread_mutex_lock(&exchange->lock);
    while (!exchange->is_trace_released) pthread_cond_wait(&exchange->changed, &exchange->lock);
    pthread_mutex_unlock(&exchange->lock);
    printf("activities: %x\n", activities);
    for (unsigned level = 0; level <= 9; level++)
        printf("level %u: %s\n", level, TRITONSERVER_InferenceTraceLevelString((TRITONSERVER_InferenceTraceLevel)level));
    exchange_delete(exchange);
}

/* -- What Triton's library does not survive, or does not have. */

static unsigned reports;

static void on_log(
    TRITONSERVER_LogLevel level, char const* file, int line, uint64_t micros, char const* message, void* userp)
{
    (void)micros;
    if (userp == &reports && strstr(message, "of the application") != NULL) {
        reports++;
        printf("log: level %u %s:%d %s\n", (unsigned)level, file, line, message);
    }
}

static void misuse(char const* repository, char const* backends)
{
    TRITONSERVER_Server* server = NULL;
    TRITONSERVER_Message* message = NULL;
    bool flag = false;
    RECORD(TRITONSERVER_ServerOptionsNew(NULL));
    RECORD(TRITONSERVER_ServerOptionsDelete(NULL));
    RECORD(TRITONSERVER_ServerOptionsSetServerId(NULL, "a"));
    RECORD(TRITONSERVER_ServerNew(&server, NULL));
    TRITONSERVER_ServerOptions* options = options_of(repository, TRITONSERVER_MODEL_CONTROL_EXPLICIT, backends);
    RECORD(TRITONSERVER_ServerOptionsSetServerId(options, NULL));
    RECORD(TRITONSERVER_ServerOptionsSetModelRepositoryPath(options, NULL));
    RECORD(TRITONSERVER_ServerOptionsSetCacheConfig(options, "local", "no json"));
    RECORD(TRITONSERVER_ServerOptionsSetCacheConfig(options, "local", "[1]"));
    RECORD(TRITONSERVER_ServerOptionsSetLogFormat(NULL, (TRITONSERVER_LogFormat)9));
    RECORD(TRITONSERVER_ServerNew(NULL, options));
    RECORD(TRITONSERVER_ServerNew(&server, options));
    RECORD(TRITONSERVER_ServerOptionsDelete(options));
    RECORD(TRITONSERVER_ServerOptionsDelete(options));
    RECORD(TRITONSERVER_ServerOptionsSetExitTimeout(options, 1));
    RECORD(TRITONSERVER_ServerNew(&server, options));
    RECORD(TRITONSERVER_ServerIsLive((TRITONSERVER_Server*)options, &flag));
    RECORD(TRITONSERVER_ServerIsLive(server, NULL));
    RECORD(TRITONSERVER_ServerIsLive(NULL, &flag));
    RECORD(TRITONSERVER_ServerLoadModel(server, NULL));
    RECORD(TRITONSERVER_ServerRegisterModelRepository(server, NULL, NULL, 0));
    RECORD(TRITONSERVER_ServerRegisterModelRepository(NULL, repository, NULL, 0));
    RECORD(TRITONSERVER_ServerUnregisterModelRepository(server, NULL));
    RECORD(TRITONSERVER_ServerPollModelRepository(NULL));
    MUST(TRITONSERVER_ServerLoadModel(server, "echo"));
    Exchange* exchange = exchange_new(server, "echo", "of a deleted server", 1);
    RECORD(TRITONSERVER_InferenceRequestAddRequestedOutput(exchange->request, "OUTPUT0"));
    RECORD(TRITONSERVER_ServerInferAsync(NULL, exchange->request, NULL));
    RECORD(TRITONSERVER_ServerInferAsync(server, NULL, NULL));
    RECORD(TRITONSERVER_ServerDelete(server));
    RECORD(TRITONSERVER_ServerDelete(server));
    RECORD(TRITONSERVER_ServerStop(server));
    RECORD(TRITONSERVER_ServerIsReady(server, &flag));
    RECORD(TRITONSERVER_ServerModelIndex(server, 0, &message));
    RECORD(TRITONSERVER_ServerInferAsync(server, exchange->request, NULL));
    RECORD(TRITONSERVER_ServerSetExitTimeout(server, 1));
    exchange_delete(exchange);
}

static int lines_of(char const* path)
{
    int lines = 0;
    FILE* file = fopen(path, "r");
    if (file == NULL) exit(1);
    for (int character; (character = fgetc(file)) != EOF;) lines += character == '\n';
    fclose(file);
    return lines;
}

/* While a callback is set, records go only there; without one, to the file. */
static void log_callback(char const* repository)
{
    char path[600];
    snprintf(path, sizeof path, "%s/../log", repository);
    MUST(TRITONSERVER_ServerOptionsSetLogInfo(NULL, false));
    MUST(TRITONSERVER_ServerOptionsSetLogWarn(NULL, true));
    MUST(TRITONSERVER_ServerOptionsSetLogFile(NULL, path));
    MUST(TRITONSERVER_LogMessage(TRITONSERVER_LOG_WARN, "application.c", 6, "not reported of the application"));
    printf("lines in the file: %d\n", lines_of(path));
    RECORD(TRITONSERVER_ServerOptionsSetLogCallback(NULL, on_log, &reports));
    for (unsigned level = 0; level < 4; level++)
        RECORD(TRITONSERVER_LogMessage((TRITONSERVER_LogLevel)level, "/a/b/application.c", 7, "of the application"));
    MUST(TRITONSERVER_ServerOptionsSetLogInfo(NULL, true));
    MUST(TRITONSERVER_ServerOptionsSetLogVerbose(NULL, 1));
    for (unsigned level = 0; level < 4; level++)
        MUST(TRITONSERVER_LogMessage((TRITONSERVER_LogLevel)level, "application.c", 8, "again of the application"));
    printf("lines in the file: %d\n", lines_of(path));
    RECORD(TRITONSERVER_ServerOptionsSetLogCallback(NULL, NULL, NULL));
    MUST(TRITONSERVER_LogMessage(TRITONSERVER_LOG_WARN, "application.c", 9, "not heard of the application"));
    printf("reports: %u, lines in the file: %d\n", reports, lines_of(path));
}

static long resident_kib(void)
{
    long pages = 0;
    FILE* file = fopen("/proc/self/statm", "r");
    if (file == NULL || fscanf(file, "%*s %ld", &pages) != 1) exit(1);
    fclose(file);
    return pages * (sysconf(_SC_PAGESIZE) / 1024);
}

static int entries(char const* folder)
{
    int count = 0;
    DIR* directory = opendir(folder);
    while (directory != NULL && readdir(directory) != NULL) count++;
    closedir(directory);
    return count;
}

/* Makes and deletes servers. Prints growth since the first quarter of them. */
static void churn(char const* repository, char const* backends, int count)
{
    long before = 0;
    int descriptors = 0, threads = 0;
    for (int i = 0; i < count; i++) {
        if (i == count / 4) {
            before = resident_kib();
            descriptors = entries("/proc/self/fd");
            threads = entries("/proc/self/task");
        }
        TRITONSERVER_Server* server = NULL;
        TRITONSERVER_ServerOptions* options = options_of(repository, TRITONSERVER_MODEL_CONTROL_NONE, backends);
        MUST(TRITONSERVER_ServerNew(&server, options));
        MUST(TRITONSERVER_ServerOptionsDelete(options));
        Exchange* exchange = exchange_new(server, "echo", "x", (float)i);
        MUST(TRITONSERVER_ServerInferAsync(server, exchange->request, NULL));
        exchange_wait("x", exchange);
        exchange_delete(exchange);
        MUST(TRITONSERVER_ServerDelete(server));
    }
    printf("growth: %ld KiB, %d descriptors, %d threads\n", resident_kib() - before,
        entries("/proc/self/fd") - descriptors, entries("/proc/self/task") - threads);
}

int main(int argc, char** argv)
{
    if (argc < 3) return 2;
    char const *repository = argv[1], *backends = argv[2], *mode = argc > 3 ? argv[3] : "";
    snprintf(other, sizeof other, "%s/../other", repository);
    snprintf(broken, sizeof broken, "%s/../broken", repository);
    snprintf(missing, sizeof missing, "%s/../missing", repository);
    if (atoi(mode) > 0) {
        churn(repository, backends, atoi(mode));
        return 0;
    }
    if (strcmp(mode, "own") == 0) {
        misuse(repository, backends);
        log_callback(repository);
        return 0;
    }
    every_option();
    servers_that_do_not_start(backends);
    TRITONSERVER_Server* server = NULL;
    TRITONSERVER_ServerOptions* options = options_of(repository, TRITONSERVER_MODEL_CONTROL_EXPLICIT, backends);
    MUST(TRITONSERVER_ServerOptionsSetServerId(options, "an application's"));
    RECORD(TRITONSERVER_ServerNew(&server, options));
    MUST(TRITONSERVER_ServerOptionsDelete(options));
    loads(server);
    repositories(server, repository);
    RECORD(TRITONSERVER_ServerLoadModel(server, "slow"));
    priorities(server);
    cancelled(server);
    traced(server);
    RECORD(TRITONSERVER_ServerDelete(server));
    polled(repository, backends);
    ends(repository, backends);
    return 0;
}
