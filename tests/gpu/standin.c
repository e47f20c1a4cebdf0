/* A stand-in for NVIDIA's driver library on machines without a GPU: what Nereid and its tests call of libcuda.so.1, over
 * ordinary memory.
 *
 * It is stricter than it need be, so that tests find what a GPU would not forgive:
 *   - The address of device memory lies in a range that nobody may touch: a processor that reads it ends the process.
 *     The contents lie elsewhere, in a file without a name, and only the copies of the driver get at them.
 *   - Calls that take a context fail without a current one, or with that of another device than the memory's.
 *   - A handle for other processes is not opened by who made it. Each loaded copy of this library counts as a process.
 *
 * Told by the environment, when it is initialised:
 *   STANDIN_DEVICES  the compute capability of each device, as "9.0,5.2"; as compiled (-DDEVICES) if it is not set
 *   STANDIN_USED     bytes of each device's 4 GiB that others use; none if it is not set
 *   STANDIN_FAIL     a file that is read at each call; its lines "call code" make that call fail with that code
 *   STANDIN_LOG      a file that takes a line "call bytes" for each copy and allocation
 * By standin_fail, a thread has a call of its own fail.
 *
 * Compiled by the tests: cc -std=gnu11 -shared -fPIC -pthread standin.c -o libcuda.so.1
 */
#define _GNU_SOURCE
#include <fcntl.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#ifndef DEVICES
#define DEVICES "9.0"
#endif

enum {
    SUCCESS = 0,
    INVALID_VALUE = 1,
    OUT_OF_MEMORY = 2,
    NOT_INITIALIZED = 3,
    NO_DEVICE = 100,
    INVALID_DEVICE = 101,
    INVALID_CONTEXT = 201,
    PEER_ACCESS_UNSUPPORTED = 217,
    ILLEGAL_ADDRESS = 700,
    UNKNOWN = 999,
};

static const struct {
    int code;
    const char* name;
    const char* text;
} codes[] = {
    {SUCCESS, "CUDA_SUCCESS", "no error"},
    {INVALID_VALUE, "CUDA_ERROR_INVALID_VALUE", "invalid argument"},
    {OUT_OF_MEMORY, "CUDA_ERROR_OUT_OF_MEMORY", "out of memory"},
    {NOT_INITIALIZED, "CUDA_ERROR_NOT_INITIALIZED", "initialization error"},
    {NO_DEVICE, "CUDA_ERROR_NO_DEVICE", "no CUDA-capable device is detected"},
    {INVALID_DEVICE, "CUDA_ERROR_INVALID_DEVICE", "invalid device ordinal"},
    {INVALID_CONTEXT, "CUDA_ERROR_INVALID_CONTEXT", "invalid device context"},
    {PEER_ACCESS_UNSUPPORTED, "CUDA_ERROR_PEER_ACCESS_UNSUPPORTED", "peer access is not supported"},
    {ILLEGAL_ADDRESS, "CUDA_ERROR_ILLEGAL_ADDRESS", "an illegal memory access was encountered"},
    {UNKNOWN, "CUDA_ERROR_UNKNOWN", "unknown error"},
};

typedef struct {
    int major, minor;
    int retained;
} Device;

/* A context is its device. */
typedef Device* Context;

/* Device memory, as this process sees it. */
typedef struct Memory {
    uint64_t address;
    size_t size;
    size_t mapped;
    unsigned char* contents;
    int device;
    /* The file, which is gone with the process that allocated it; -1 where another did. */
    int file;
    uint32_t inode;
    /* Whether another process allocated it, and how often it was opened. */
    int opened;
    struct Memory* next;
} Memory;

/* What other processes open: 64 bytes. */
typedef struct {
    char magic[8];
    char path[32];
    uint64_t size;
    uint64_t process;
    int32_t device;
    uint32_t inode;
} Handle;
_Static_assert(sizeof(Handle) == 64, "as long as the driver's");

#define DEVICES_AT_MOST 8
#define DEPTH_AT_MOST 16

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static Device devices[DEVICES_AT_MOST];
static int device_count;
static int initialized;
static Memory* memories;
/* Its address tells this copy of the library from others. */
static char here;
static __thread Context stack[DEPTH_AT_MOST];
static __thread int depth;
static __thread char failing[64];
static __thread int failing_code;

/* From now on, that call fails in this thread; none does where the name is empty. */
void standin_fail(const char* call, int code)
{
    snprintf(failing, sizeof failing, "%s", call);
    failing_code = code;
}

/* How much of device memory is allocated or opened: for tests that look for leaks. */
int standin_memories(void)
{
    int count = 0;
    pthread_mutex_lock(&lock);
    for (Memory* memory = memories; memory != NULL; memory = memory->next) ++count;
    pthread_mutex_unlock(&lock);
    return count;
}

/* How often contexts are retained, over all devices. */
int standin_retained(void)
{
    int count = 0;
    pthread_mutex_lock(&lock);
    for (int i = 0; i < device_count; ++i) count += devices[i].retained;
    pthread_mutex_unlock(&lock);
    return count;
}

static int fails(const char* call)
{
    if (strcmp(call, failing) == 0) return failing_code;
    const char* path = getenv("STANDIN_FAIL");
    FILE* file = path == NULL ? NULL : fopen(path, "r");
    if (file == NULL) return SUCCESS;
    char named[64];
    int code, found = SUCCESS;
    while (fscanf(file, "%63s %d", named, &code) == 2)
        if (strcmp(named, call) == 0) found = code;
    fclose(file);
    return found;
}

static void tell(const char* call, size_t bytes)
{
    const char* path = getenv("STANDIN_LOG");
    FILE* file = path == NULL ? NULL : fopen(path, "a");
    if (file == NULL) return;
    fprintf(file, "%s %zu\n", call, bytes);
    fclose(file);
}

#define MAY_FAIL                             \
    do {                                     \
        int code_ = fails(__func__);         \
        if (code_ != SUCCESS) return code_;  \
        if (!initialized) return NOT_INITIALIZED; \
    } while (0)

static Context current(void) { return depth == 0 ? NULL : stack[depth - 1]; }

static int device_of(Context context) { return (int)(context - devices); }

/* Called with the lock. */
static Memory* find(uint64_t address)
{
    for (Memory* memory = memories; memory != NULL; memory = memory->next)
        if (address >= memory->address && address - memory->address < memory->size) return memory;
    return NULL;
}

static uint64_t process(void) { return ((uint64_t)getpid() << 32) ^ (uint64_t)(uintptr_t)&here; }

static uint32_t inode(int file)
{
    struct stat status;
    return file >= 0 && fstat(file, &status) == 0 ? (uint32_t)status.st_ino : 0;
}

static Memory* map(int file, size_t size, int device)
{
    size_t page = (size_t)sysconf(_SC_PAGESIZE);
    Memory* memory = calloc(1, sizeof *memory);
    memory->size = size;
    memory->mapped = (size + page - 1) / page * page;
    memory->device = device;
    memory->file = -1;
    memory->inode = inode(file);
    memory->contents = mmap(NULL, memory->mapped, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    void* address =
        mmap(NULL, memory->mapped, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (memory->contents == MAP_FAILED || address == MAP_FAILED) abort();
    memory->address = (uint64_t)(uintptr_t)address;
    memory->next = memories;
    memories = memory;
    return memory;
}

static void unmap(Memory* memory)
{
    Memory** place = &memories;
    while (*place != memory) place = &(*place)->next;
    *place = memory->next;
    if (memory->file >= 0) close(memory->file);
    munmap(memory->contents, memory->mapped);
    munmap((void*)(uintptr_t)memory->address, memory->mapped);
    free(memory);
}

int cuInit(unsigned flags)
{
    int code = fails(__func__);
    if (code != SUCCESS) return code;
    if (flags != 0) return INVALID_VALUE;
    pthread_mutex_lock(&lock);
    if (!initialized) {
        const char* list = getenv("STANDIN_DEVICES");
        if (list == NULL) list = DEVICES;
        int major, minor, length;
        while (device_count < DEVICES_AT_MOST && sscanf(list, "%d.%d%n", &major, &minor, &length) == 2) {
            devices[device_count++] = (Device){.major = major, .minor = minor};
            list += length;
            if (*list == ',') ++list;
        }
        initialized = device_count > 0;
    }
    pthread_mutex_unlock(&lock);
    return initialized ? SUCCESS : NO_DEVICE;
}

int cuDriverGetVersion(int* version)
{
    int code = fails(__func__);
    if (code != SUCCESS) return code;
    *version = 12040;
    return SUCCESS;
}

int cuGetErrorName(int code, const char** name)
{
    for (size_t i = 0; i < sizeof codes / sizeof *codes; ++i)
        if (codes[i].code == code) return *name = codes[i].name, SUCCESS;
    *name = NULL;
    return INVALID_VALUE;
}

int cuGetErrorString(int code, const char** text)
{
    for (size_t i = 0; i < sizeof codes / sizeof *codes; ++i)
        if (codes[i].code == code) return *text = codes[i].text, SUCCESS;
    *text = NULL;
    return INVALID_VALUE;
}

int cuDeviceGetCount(int* count)
{
    MAY_FAIL;
    *count = device_count;
    return SUCCESS;
}

int cuDeviceGet(int* device, int ordinal)
{
    MAY_FAIL;
    if (ordinal < 0 || ordinal >= device_count) return INVALID_DEVICE;
    *device = ordinal;
    return SUCCESS;
}

int cuDeviceGetName(char* name, int length, int device)
{
    MAY_FAIL;
    if (device < 0 || device >= device_count) return INVALID_DEVICE;
    snprintf(name, (size_t)length, "Stand-in %d", device);
    return SUCCESS;
}

int cuDeviceGetPCIBusId(char* address, int length, int device)
{
    MAY_FAIL;
    if (device < 0 || device >= device_count) return INVALID_DEVICE;
    /* Not in the order of the numbers, as on machines where the fastest device comes first. */
    snprintf(address, (size_t)length, "0000:%02x:00.0", device_count - device);
    return SUCCESS;
}

int cuDeviceGetAttribute(int* value, int attribute, int device)
{
    MAY_FAIL;
    if (device < 0 || device >= device_count) return INVALID_DEVICE;
    switch (attribute) {
    case 75: *value = devices[device].major; return SUCCESS;
    case 76: *value = devices[device].minor; return SUCCESS;
    default: return INVALID_VALUE;
    }
}

int cuDevicePrimaryCtxRetain(Context* context, int device)
{
    MAY_FAIL;
    if (device < 0 || device >= device_count) return INVALID_DEVICE;
    pthread_mutex_lock(&lock);
    ++devices[device].retained;
    pthread_mutex_unlock(&lock);
    *context = &devices[device];
    return SUCCESS;
}

int cuDevicePrimaryCtxRelease_v2(int device)
{
    MAY_FAIL;
    if (device < 0 || device >= device_count) return INVALID_DEVICE;
    pthread_mutex_lock(&lock);
    int retained = devices[device].retained;
    if (retained > 0) --devices[device].retained;
    pthread_mutex_unlock(&lock);
    return retained > 0 ? SUCCESS : INVALID_CONTEXT;
}

int cuCtxPushCurrent_v2(Context context)
{
    MAY_FAIL;
    if (context < devices || context >= devices + device_count || context->retained == 0) return INVALID_CONTEXT;
    if (depth == DEPTH_AT_MOST) return INVALID_VALUE;
    stack[depth++] = context;
    return SUCCESS;
}

int cuCtxPopCurrent_v2(Context* context)
{
    MAY_FAIL;
    if (depth == 0) return INVALID_CONTEXT;
    --depth;
    if (context != NULL) *context = stack[depth];
    return SUCCESS;
}

int cuCtxSynchronize(void)
{
    MAY_FAIL;
    return current() == NULL ? INVALID_CONTEXT : SUCCESS;
}

int cuMemAlloc_v2(uint64_t* address, size_t size)
{
    MAY_FAIL;
    Context context = current();
    if (context == NULL) return INVALID_CONTEXT;
    if (size == 0) return INVALID_VALUE;
    if (size > (size_t)1 << 32) return OUT_OF_MEMORY;
    pthread_mutex_lock(&lock);
    int file = memfd_create("standin", MFD_CLOEXEC);
    if (file < 0 || ftruncate(file, (off_t)size) != 0) abort();
    Memory* memory = map(file, size, device_of(context));
    memory->file = file;
    *address = memory->address;
    pthread_mutex_unlock(&lock);
    tell(__func__, size);
    return SUCCESS;
}

int cuMemFree_v2(uint64_t address)
{
    MAY_FAIL;
    if (current() == NULL) return INVALID_CONTEXT;
    pthread_mutex_lock(&lock);
    Memory* memory = find(address);
    int found = memory != NULL && memory->address == address && memory->opened == 0;
    if (found) unmap(memory);
    pthread_mutex_unlock(&lock);
    return found ? SUCCESS : INVALID_VALUE;
}

int cuMemGetInfo_v2(size_t* free, size_t* total)
{
    MAY_FAIL;
    if (current() == NULL) return INVALID_CONTEXT;
    const char* used = getenv("STANDIN_USED");
    *total = (size_t)1 << 32;
    *free = *total - (used == NULL ? 0 : strtoul(used, NULL, 10));
    return SUCCESS;
}

int cuMemGetAddressRange_v2(uint64_t* base, size_t* size, uint64_t address)
{
    MAY_FAIL;
    if (current() == NULL) return INVALID_CONTEXT;
    pthread_mutex_lock(&lock);
    Memory* memory = find(address);
    if (memory != NULL) {
        if (base != NULL) *base = memory->address;
        if (size != NULL) *size = memory->size;
    }
    pthread_mutex_unlock(&lock);
    return memory != NULL ? SUCCESS : INVALID_VALUE;
}

int cuMemHostAlloc(void** address, size_t size, unsigned flags)
{
    MAY_FAIL;
    if (current() == NULL) return INVALID_CONTEXT;
    if (flags > 1 || size == 0) return INVALID_VALUE;
    *address = mmap(NULL, size + 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (*address == MAP_FAILED) return OUT_OF_MEMORY;
    /* Its length, for who frees it. */
    *(size_t*)*address = size + 4096;
    *address = (char*)*address + 4096;
    tell(__func__, size);
    return SUCCESS;
}

int cuMemFreeHost(void* address)
{
    MAY_FAIL;
    if (current() == NULL) return INVALID_CONTEXT;
    void* start = (char*)address - 4096;
    munmap(start, *(size_t*)start);
    return SUCCESS;
}

/* Called with the lock: where the contents lie, if all of them lie in memory of the current context's device. */
static int contents(uint64_t address, size_t size, unsigned char** found)
{
    if (current() == NULL) return INVALID_CONTEXT;
    Memory* memory = find(address);
    if (memory == NULL || size > memory->size - (address - memory->address)) return INVALID_VALUE;
    if (memory->device != device_of(current())) return INVALID_CONTEXT;
    *found = memory->contents + (address - memory->address);
    return SUCCESS;
}

int cuMemcpyHtoD_v2(uint64_t target, const void* source, size_t size)
{
    MAY_FAIL;
    pthread_mutex_lock(&lock);
    unsigned char* to = NULL;
    int code = contents(target, size, &to);
    if (code == SUCCESS) memcpy(to, source, size);
    pthread_mutex_unlock(&lock);
    tell(__func__, size);
    return code;
}

int cuMemcpyDtoH_v2(void* target, uint64_t source, size_t size)
{
    MAY_FAIL;
    pthread_mutex_lock(&lock);
    unsigned char* from = NULL;
    int code = contents(source, size, &from);
    if (code == SUCCESS) memcpy(target, from, size);
    pthread_mutex_unlock(&lock);
    tell(__func__, size);
    return code;
}

int cuMemcpyDtoD_v2(uint64_t target, uint64_t source, size_t size)
{
    MAY_FAIL;
    pthread_mutex_lock(&lock);
    unsigned char *from = NULL, *to = NULL;
    int code = contents(source, size, &from);
    if (code == SUCCESS) code = contents(target, size, &to);
    if (code == SUCCESS) memmove(to, from, size);
    pthread_mutex_unlock(&lock);
    tell(__func__, size);
    return code;
}

int cuStreamSynchronize(void* stream)
{
    MAY_FAIL;
    if (current() == NULL) return INVALID_CONTEXT;
    return stream == NULL ? SUCCESS : INVALID_VALUE;
}

int cuIpcGetMemHandle(Handle* handle, uint64_t address)
{
    MAY_FAIL;
    if (current() == NULL) return INVALID_CONTEXT;
    memset(handle, 0, sizeof *handle);
    pthread_mutex_lock(&lock);
    Memory* memory = find(address);
    int found = memory != NULL && memory->opened == 0;
    if (found) {
        memcpy(handle->magic, "standin", 8);
        snprintf(handle->path, sizeof handle->path, "/proc/%d/fd/%d", getpid(), memory->file);
        handle->size = memory->size;
        handle->process = process();
        handle->device = memory->device;
        handle->inode = memory->inode;
    }
    pthread_mutex_unlock(&lock);
    return found ? SUCCESS : INVALID_VALUE;
}

int cuIpcOpenMemHandle_v2(uint64_t* address, Handle handle, unsigned flags)
{
    MAY_FAIL;
    if (current() == NULL) return INVALID_CONTEXT;
    if (flags != 1 || memcmp(handle.magic, "standin", 8) != 0) return INVALID_VALUE;
    if (handle.process == process()) return INVALID_CONTEXT;
    if (handle.device != device_of(current())) return PEER_ACCESS_UNSUPPORTED;
    handle.path[sizeof handle.path - 1] = 0;
    pthread_mutex_lock(&lock);
    Memory* memory = memories;
    while (memory != NULL && (memory->opened == 0 || memory->inode != handle.inode)) memory = memory->next;
    if (memory == NULL) {
        int file = open(handle.path, O_RDWR | O_CLOEXEC);
        /* The file's number may be another's by now. */
        if (inode(file) == handle.inode) memory = map(file, handle.size, handle.device);
        if (file >= 0) close(file);
    }
    if (memory != NULL) {
        ++memory->opened;
        *address = memory->address;
    }
    pthread_mutex_unlock(&lock);
    return memory != NULL ? SUCCESS : INVALID_VALUE;
}

int cuIpcCloseMemHandle(uint64_t address)
{
    MAY_FAIL;
    if (current() == NULL) return INVALID_CONTEXT;
    pthread_mutex_lock(&lock);
    Memory* memory = find(address);
    int found = memory != NULL && memory->opened > 0;
    if (found && --memory->opened == 0) unmap(memory);
    pthread_mutex_unlock(&lock);
    return found ? SUCCESS : INVALID_VALUE;
}
