/* A backend that works on the memory of a GPU: it returns IN as OUT, copied with NVIDIA's driver.
 *
 * The request's parameter "want" says where it asks for the output's memory: "GPU 0", "CPU", and so on. "do" says what
 * else it does:
 *   pools  borrows from the server's pools before, and tells what came of it
 *   keep   borrows pinned memory of the input's size until the next request with "keep"
 *   inner  has the model "floats" give IN back, with inputs and outputs in the pool of the GPU
 * The parameters of the answer tell where the memory was.
 *
 * The driver is the library that the environment variable GPU_BACKEND_DRIVER names.
 *
 * Compiled by the tests: cc -shared -fPIC gpu.c -o libtriton_gpu.so
 */
#include <dlfcn.h>
#include <semaphore.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "triton.h"

static struct {
    int (*init)(unsigned);
    int (*retain)(void**, int);
    int (*push)(void*);
    int (*pop)(void**);
    int (*to_device)(uint64_t, const void*, size_t);
    int (*to_host)(void*, uint64_t, size_t);
    int (*on_device)(uint64_t, uint64_t, size_t);
} cuda;

static TRITONBACKEND_MemoryManager* manager;
static TRITONSERVER_Server* server;

/* Ends the test, and the server: nothing here may fail. */
static void must(int fine, const char* what)
{
    if (fine) return;
    fprintf(stderr, "gpu backend: %s failed\n", what);
    abort();
}

#define MUST(...)                                                              \
    do {                                                                       \
        TRITONSERVER_Error* error_ = (__VA_ARGS__);                            \
        if (error_ != NULL) fprintf(stderr, "%s\n", TRITONSERVER_ErrorMessage(error_)); \
        must(error_ == NULL, #__VA_ARGS__);                                    \
    } while (0)

TRITONSERVER_Error* TRITONBACKEND_Initialize(TRITONBACKEND_Backend* backend)
{
    void* library = dlopen(getenv("GPU_BACKEND_DRIVER"), RTLD_NOW);
    if (library == NULL) return TRITONSERVER_ErrorNew(TRITONSERVER_ERROR_UNAVAILABLE, dlerror());
    *(void**)&cuda.init = dlsym(library, "cuInit");
    *(void**)&cuda.retain = dlsym(library, "cuDevicePrimaryCtxRetain");
    *(void**)&cuda.push = dlsym(library, "cuCtxPushCurrent_v2");
    *(void**)&cuda.pop = dlsym(library, "cuCtxPopCurrent_v2");
    *(void**)&cuda.to_device = dlsym(library, "cuMemcpyHtoD_v2");
    *(void**)&cuda.to_host = dlsym(library, "cuMemcpyDtoH_v2");
    *(void**)&cuda.on_device = dlsym(library, "cuMemcpyDtoD_v2");
    MUST(TRITONBACKEND_BackendMemoryManager(backend, &manager));
    return NULL;
}

TRITONSERVER_Error* TRITONBACKEND_ModelInitialize(TRITONBACKEND_Model* model)
{
    return TRITONBACKEND_ModelServer(model, &server);
}

typedef struct {
    void* address;
    uint64_t size;
    TRITONSERVER_MemoryType kind;
    int64_t device;
} Memory;

static void copy(Memory to, Memory from)
{
    int to_device = to.kind == TRITONSERVER_MEMORY_GPU, from_device = from.kind == TRITONSERVER_MEMORY_GPU;
    uint64_t target = (uint64_t)(uintptr_t)to.address, source = (uint64_t)(uintptr_t)from.address;
    if (!to_device && !from_device) {
        memcpy(to.address, from.address, from.size);
        return;
    }
    void* context = NULL;
    must(cuda.init(0) == 0 && cuda.retain(&context, 0) == 0 && cuda.push(context) == 0, "the context");
    if (to_device && from_device)
        must(cuda.on_device(target, source, from.size) == 0, "cuMemcpyDtoD");
    else if (to_device)
        must(cuda.to_device(target, from.address, from.size) == 0, "cuMemcpyHtoD");
    else
        must(cuda.to_host(to.address, source, from.size) == 0, "cuMemcpyDtoH");
    must(cuda.pop(&context) == 0, "the context");
}

static const char* described(Memory memory, char text[32])
{
    snprintf(text, 32, "%s %d", TRITONSERVER_MemoryTypeString(memory.kind), (int)memory.device);
    return text;
}

static void tell(TRITONBACKEND_Response* response, const char* name, const char* value)
{
    MUST(TRITONBACKEND_ResponseSetStringParameter(response, name, value));
}

static void parameter(TRITONBACKEND_Request* request, const char* name, char value[32])
{
    uint32_t count = 0;
    value[0] = 0;
    MUST(TRITONBACKEND_RequestParameterCount(request, &count));
    for (uint32_t i = 0; i < count; ++i) {
        const char* key = NULL;
        const void* given = NULL;
        TRITONSERVER_ParameterType type;
        MUST(TRITONBACKEND_RequestParameter(request, i, &key, &type, &given));
        if (strcmp(key, name) == 0 && type == TRITONSERVER_PARAMETER_STRING) snprintf(value, 32, "%s", (const char*)given);
    }
}

/* "ok", or the code of the error, which is deleted. */
static void outcome(TRITONBACKEND_Response* response, const char* name, TRITONSERVER_Error* error)
{
    tell(response, name, error == NULL ? "ok" : TRITONSERVER_ErrorCodeString(error));
    TRITONSERVER_ErrorDelete(error);
}

static void borrow(TRITONBACKEND_Response* response, Memory in)
{
    void* nothing = NULL;
    outcome(response, "no_room", TRITONBACKEND_MemoryManagerAllocate(manager, &nothing, TRITONSERVER_MEMORY_GPU, 0, (uint64_t)1 << 60));
    outcome(response, "no_gpu", TRITONBACKEND_MemoryManagerAllocate(manager, &nothing, TRITONSERVER_MEMORY_GPU, 99, 1));
    Memory pinned = {.size = in.size, .kind = TRITONSERVER_MEMORY_CPU_PINNED};
    Memory device = {.size = in.size, .kind = TRITONSERVER_MEMORY_GPU};
    TRITONSERVER_Error* error =
        TRITONBACKEND_MemoryManagerAllocate(manager, &pinned.address, pinned.kind, 0, pinned.size);
    if (error == NULL) {
        copy(pinned, in);
        error = TRITONBACKEND_MemoryManagerFree(manager, pinned.address, pinned.kind, 0);
    }
    outcome(response, "pinned", error);
    error = TRITONBACKEND_MemoryManagerAllocate(manager, &device.address, device.kind, 0, device.size);
    if (error == NULL) {
        copy(device, in);
        MUST(TRITONBACKEND_MemoryManagerFree(manager, device.address, device.kind, 0));
        outcome(response, "twice", TRITONBACKEND_MemoryManagerFree(manager, device.address, device.kind, 0));
    }
    outcome(response, "device", error);
}

/* Gives back what it kept, or else borrows and keeps. */
static void keep(Memory in)
{
    static void* kept;
    if (kept != NULL) {
        MUST(TRITONBACKEND_MemoryManagerFree(manager, kept, TRITONSERVER_MEMORY_CPU_PINNED, 0));
        kept = NULL;
        return;
    }
    MUST(TRITONBACKEND_MemoryManagerAllocate(manager, &kept, TRITONSERVER_MEMORY_CPU_PINNED, 0, in.size));
    memcpy(kept, "pinned", 6);
}

/* An inference within: its output is placed in `out`. */
typedef struct {
    Memory out;
    unsigned char handle[64];
    sem_t done;
    sem_t released;
    TRITONSERVER_InferenceResponse* answer;
} Inner;

static TRITONSERVER_Error* place(
    TRITONSERVER_ResponseAllocator* allocator, const char* name, size_t size, TRITONSERVER_MemoryType preferred,
    int64_t preferred_device, void* userp, void** buffer, void** given, TRITONSERVER_MemoryType* kind, int64_t* device)
{
    (void)allocator, (void)name, (void)preferred, (void)preferred_device;
    Inner* inner = userp;
    must(size == inner->out.size, "the size of the inner output");
    *buffer = inner->out.address;
    *given = inner;
    *kind = inner->out.kind;
    *device = inner->out.device;
    return NULL;
}

static TRITONSERVER_Error* take_back(
    TRITONSERVER_ResponseAllocator* allocator, void* buffer, void* given, size_t size, TRITONSERVER_MemoryType kind,
    int64_t device)
{
    (void)allocator, (void)size, (void)device;
    Inner* inner = given;
    must(buffer == inner->out.address && kind == inner->out.kind, "the memory that comes back");
    return NULL;
}

static void completed(TRITONSERVER_InferenceResponse* answer, const uint32_t flags, void* userp)
{
    (void)flags;
    Inner* inner = userp;
    if (answer != NULL) inner->answer = answer;
    if (flags & TRITONSERVER_RESPONSE_COMPLETE_FINAL) sem_post(&inner->done);
}

static void released(TRITONSERVER_InferenceRequest* request, const uint32_t flags, void* userp)
{
    (void)request, (void)flags;
    sem_post(&((Inner*)userp)->released);
}

static void infer_within(TRITONBACKEND_Response* response, Memory in, Memory out)
{
    Inner inner = {.out = in};
    Memory input = in;
    inner.out.kind = input.kind = TRITONSERVER_MEMORY_GPU;
    inner.out.device = input.device = 0;
    sem_init(&inner.done, 0, 0);
    sem_init(&inner.released, 0, 0);
    MUST(TRITONBACKEND_MemoryManagerAllocate(manager, &input.address, input.kind, 0, input.size));
    MUST(TRITONBACKEND_MemoryManagerAllocate(manager, &inner.out.address, input.kind, 0, input.size));
    copy(input, in);

    TRITONSERVER_ResponseAllocator* allocator = NULL;
    TRITONSERVER_InferenceRequest* request = NULL;
    int64_t shape[] = {(int64_t)(in.size / 4)};
    MUST(TRITONSERVER_ResponseAllocatorNew(&allocator, place, take_back, NULL));
    MUST(TRITONSERVER_InferenceRequestNew(&request, server, "floats", -1));
    MUST(TRITONSERVER_InferenceRequestAddInput(request, "INPUT0", TRITONSERVER_TYPE_FP32, shape, 1));
    MUST(TRITONSERVER_InferenceRequestAppendInputData(request, "INPUT0", input.address, input.size, input.kind, 0));
    MUST(TRITONSERVER_InferenceRequestSetReleaseCallback(request, released, &inner));
    MUST(TRITONSERVER_InferenceRequestSetResponseCallback(request, allocator, &inner, completed, &inner));
    MUST(TRITONSERVER_ServerInferAsync(server, request, NULL));
    sem_wait(&inner.done);
    MUST(TRITONSERVER_InferenceResponseError(inner.answer));

    const char* name = NULL;
    TRITONSERVER_DataType type;
    const int64_t* dims = NULL;
    uint64_t dim_count = 0;
    const void* base = NULL;
    void* given = NULL;
    Memory answered = {0};
    MUST(TRITONSERVER_InferenceResponseOutput(
        inner.answer, 0, &name, &type, &dims, &dim_count, &base, &answered.size, &answered.kind, &answered.device, &given));
    char text[32];
    tell(response, "inner", described(answered, text));
    must(base == inner.out.address && given == &inner, "the place of the inner output");
    copy(out, inner.out);
    MUST(TRITONSERVER_InferenceResponseDelete(inner.answer));
    sem_wait(&inner.released);
    MUST(TRITONSERVER_InferenceRequestDelete(request));
    MUST(TRITONSERVER_ResponseAllocatorDelete(allocator));
    MUST(TRITONBACKEND_MemoryManagerFree(manager, input.address, input.kind, 0));
    MUST(TRITONBACKEND_MemoryManagerFree(manager, inner.out.address, input.kind, 0));
}

/* Whether memory has a handle that other processes open it with. */
static const char* shared(TRITONSERVER_BufferAttributes* attributes)
{
    void* handle = NULL;
    MUST(TRITONSERVER_BufferAttributesCudaIpcHandle(attributes, &handle));
    static const unsigned char none[64];
    return handle != NULL && memcmp(handle, none, sizeof none) != 0 ? "shared" : "not shared";
}

static void execute(TRITONBACKEND_Request* request)
{
    char text[32], want[32], deed[32];
    parameter(request, "want", want);
    parameter(request, "do", deed);
    TRITONBACKEND_Response* response = NULL;
    MUST(TRITONBACKEND_ResponseNew(&response, request));

    TRITONBACKEND_Input* input = NULL;
    Memory in = {0};
    const void* base = NULL;
    TRITONSERVER_DataType type;
    const int64_t* shape = NULL;
    uint32_t dims = 0;
    MUST(TRITONBACKEND_RequestInput(request, "IN", &input));
    MUST(TRITONBACKEND_InputProperties(input, NULL, &type, &shape, &dims, NULL, NULL));
    MUST(TRITONBACKEND_InputBuffer(input, 0, &base, &in.size, &in.kind, &in.device));
    in.address = (void*)base;
    tell(response, "in", described(in, text));
    TRITONSERVER_BufferAttributes* attributes = NULL;
    MUST(TRITONBACKEND_InputBufferAttributes(input, 0, &base, &attributes));
    tell(response, "in_handle", shared(attributes));

    Memory asked = {.kind = TRITONSERVER_MEMORY_CPU};
    MUST(TRITONBACKEND_RequestOutputBufferProperties(request, "OUT", NULL, &asked.kind, &asked.device));
    tell(response, "asked", described(asked, text));

    Memory out = {.size = in.size, .kind = TRITONSERVER_MEMORY_CPU};
    if (strncmp(want, "GPU ", 4) == 0) {
        out.kind = TRITONSERVER_MEMORY_GPU;
        out.device = atoi(want + 4);
    }
    TRITONBACKEND_Output* output = NULL;
    MUST(TRITONBACKEND_ResponseOutput(response, &output, "OUT", type, shape, dims));
    TRITONSERVER_Error* error = TRITONBACKEND_OutputBuffer(output, &out.address, out.size, &out.kind, &out.device);
    if (error == NULL) {
        tell(response, "out", described(out, text));
        MUST(TRITONBACKEND_OutputBufferAttributes(output, &attributes));
        tell(response, "out_handle", shared(attributes));
        if (strcmp(deed, "pools") == 0) borrow(response, in);
        if (strcmp(deed, "keep") == 0) keep(in);
        if (strcmp(deed, "inner") == 0)
            infer_within(response, in, out);
        else
            copy(out, in);
    }
    MUST(TRITONBACKEND_ResponseSend(response, TRITONSERVER_RESPONSE_COMPLETE_FINAL, error));
    TRITONSERVER_ErrorDelete(error);
    MUST(TRITONBACKEND_RequestRelease(request, TRITONSERVER_REQUEST_RELEASE_ALL));
}

TRITONSERVER_Error* TRITONBACKEND_ModelInstanceExecute(
    TRITONBACKEND_ModelInstance* instance, TRITONBACKEND_Request** requests, const uint32_t count)
{
    (void)instance;
    for (uint32_t i = 0; i < count; ++i) execute(requests[i]);
    return NULL;
}
