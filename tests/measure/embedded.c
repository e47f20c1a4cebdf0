/* Asks the model `identity` of a server within this program as often as it is told to, one request after the other:
 *
 *     embedded REPOSITORY REQUESTS
 *
 * Each request is made, sent, waited for, read and deleted, as an application does that makes one for each of its own. */
#include "../applications/application.h"

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t changed = PTHREAD_COND_INITIALIZER;
static TRITONSERVER_InferenceResponse* arrived;
static char memory[4096];

static TRITONSERVER_Error* place(
    TRITONSERVER_ResponseAllocator* allocator, char const* name, size_t size, TRITONSERVER_MemoryType preferred,
    int64_t preferred_id, void* userp, void** buffer, void** buffer_userp, TRITONSERVER_MemoryType* type, int64_t* id)
{
    (void)allocator, (void)name, (void)preferred, (void)preferred_id, (void)userp, (void)size;
    *buffer = memory;
    *buffer_userp = NULL;
    *type = TRITONSERVER_MEMORY_CPU;
    *id = 0;
    return NULL;
}

static TRITONSERVER_Error* take_back(
    TRITONSERVER_ResponseAllocator* allocator, void* buffer, void* userp, size_t size, TRITONSERVER_MemoryType type,
    int64_t id)
{
    (void)allocator, (void)buffer, (void)userp, (void)size, (void)type, (void)id;
    return NULL;
}

static void released(TRITONSERVER_InferenceRequest* request, uint32_t flags, void* userp)
{
    (void)flags, (void)userp;
    must("delete", TRITONSERVER_InferenceRequestDelete(request));
}

static void answered(TRITONSERVER_InferenceResponse* response, uint32_t flags, void* userp)
{
    (void)flags, (void)userp;
    if (!response) return;
    pthread_mutex_lock(&lock);
    arrived = response;
    pthread_cond_signal(&changed);
    pthread_mutex_unlock(&lock);
}

int main(int count, char** arguments)
{
    if (count != 3) return 2;
    TRITONSERVER_ServerOptions* options =
        options_of(arguments[1], TRITONSERVER_MODEL_CONTROL_NONE, "/nonexistent/backends");
    TRITONSERVER_Server* server = NULL;
    MUST(TRITONSERVER_ServerNew(&server, options));
    TRITONSERVER_ResponseAllocator* allocator = NULL;
    MUST(TRITONSERVER_ResponseAllocatorNew(&allocator, place, take_back, NULL));
    static float const values[16];
    int64_t const shape[] = {1, 16};
    for (long left = atol(arguments[2]); left > 0; left--) {
        TRITONSERVER_InferenceRequest* request = NULL;
        MUST(TRITONSERVER_InferenceRequestNew(&request, server, "identity", -1));
        MUST(TRITONSERVER_InferenceRequestAddInput(request, "INPUT0", TRITONSERVER_TYPE_FP32, shape, 2));
        MUST(TRITONSERVER_InferenceRequestAppendInputData(
            request, "INPUT0", values, sizeof values, TRITONSERVER_MEMORY_CPU, 0));
        MUST(TRITONSERVER_InferenceRequestSetReleaseCallback(request, released, NULL));
        MUST(TRITONSERVER_InferenceRequestSetResponseCallback(request, allocator, NULL, answered, NULL));
        MUST(TRITONSERVER_ServerInferAsync(server, request, NULL));
        pthread_mutex_lock(&lock);
        while (!arrived) pthread_cond_wait(&changed, &lock);
        TRITONSERVER_InferenceResponse* response = arrived;
        arrived = NULL;
        pthread_mutex_unlock(&lock);
        MUST(TRITONSERVER_InferenceResponseError(response));
        char const* name;
        TRITONSERVER_DataType type;
        int64_t const* dimensions;
        uint64_t dimension_count;
        void const* base;
        size_t size;
        TRITONSERVER_MemoryType memory_type;
        int64_t memory_id;
        void* userp;
        MUST(TRITONSERVER_InferenceResponseOutput(
            response, 0, &name, &type, &dimensions, &dimension_count, &base, &size, &memory_type, &memory_id, &userp));
        if (size != sizeof values) return 3;
        MUST(TRITONSERVER_InferenceResponseDelete(response));
    }
    MUST(TRITONSERVER_ServerDelete(server));
    return 0;
}
