/* A stand-in for NVIDIA's management library on machines without a GPU: what the server calls of libnvidia-ml.so.1.
 *
 * STANDIN_GPUS names a file that is read at each call, with a line "busy used milliwatts" for each GPU of 4 GiB: percent, bytes, and -
 * where the GPU does not report a value.
 *
 * STANDIN_GPU_PROCESSES names a file that is read at each call, with lines "GPU process bytes" of what processes take of a GPU, in
 * addition to the above, as long as they live. A process number below zero is one that only other namespaces know by that number
 * without the sign.
 *
 * Compiled by the tests: cc -std=gnu11 -shared -fPIC nvml.c -o libnvidia-ml.so.1
 */
#define _GNU_SOURCE
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { SUCCESS = 0, INVALID_ARGUMENT = 2, NOT_SUPPORTED = 3, INSUFFICIENT_SIZE = 7 };
enum { BUSY, USED, MILLIWATTS, FIELDS };

#define TOTAL (4ULL << 30)

struct memory {
    unsigned version;
    unsigned long long total, reserved, free, used;
};

struct utilization {
    unsigned gpu, memory;
};

struct process {
    unsigned number;
    unsigned long long used;
    unsigned gpu_instance, compute_instance;
};

/* The line of a GPU; the number of lines for -1. */
static int line_of(long gpu, char fields[FIELDS][32]) {
    const char* path = getenv("STANDIN_GPUS");
    FILE* file = path ? fopen(path, "r") : NULL;
    int lines = 0;
    if (!file) return 0;
    while (fscanf(file, "%31s %31s %31s", fields[BUSY], fields[USED], fields[MILLIWATTS]) == FIELDS && lines++ != gpu) {
    }
    fclose(file);
    return lines;
}

static int value(void* device, int field, unsigned long long* found) {
    long gpu = (long)device - 1;
    char fields[FIELDS][32];
    if (line_of(gpu, fields) != gpu + 1) return INVALID_ARGUMENT;
    if (strcmp(fields[field], "-") == 0) return NOT_SUPPORTED;
    *found = strtoull(fields[field], NULL, 10);
    return SUCCESS;
}

/* The living processes on a GPU, at most this many of them written, and what they take; how many there are. */
static unsigned processes_of(long gpu, struct process* found, unsigned most, unsigned long long* used) {
    const char* path = getenv("STANDIN_GPU_PROCESSES");
    FILE* file = path ? fopen(path, "r") : NULL;
    unsigned count = 0;
    long on, number;
    unsigned long long bytes;
    *used = 0;
    if (!file) return 0;
    while (fscanf(file, "%ld %ld %llu", &on, &number, &bytes) == 3) {
        if (on != gpu || kill((pid_t)labs(number), 0)) continue;
        *used += bytes;
        /* Elsewhere, the process has a number that none has here. */
        if (count < most) found[count] = (struct process){number < 0 ? 1U << 30 : (unsigned)number, bytes, -1U, -1U};
        ++count;
    }
    fclose(file);
    return count;
}

int nvmlInit_v2(void) { return SUCCESS; }

int nvmlShutdown(void) { return SUCCESS; }

int nvmlDeviceGetCount_v2(unsigned* count) {
    char fields[FIELDS][32];
    *count = (unsigned)line_of(-1, fields);
    return SUCCESS;
}

int nvmlDeviceGetHandleByIndex_v2(unsigned index, void** device) {
    *device = (void*)((long)index + 1);
    return SUCCESS;
}

int nvmlDeviceGetHandleByPciBusId_v2(const char* address, void** device) {
    /* The driver's stand-in has the last of its devices at the first address. */
    char fields[FIELDS][32];
    long place = 0, count = line_of(-1, fields);
    if (sscanf(address, "0000:%2lx:00.0", &place) != 1 || place < 1 || place > count) return INVALID_ARGUMENT;
    *device = (void*)(count - place + 1);
    return SUCCESS;
}

int nvmlDeviceGetComputeRunningProcesses_v3(void* device, unsigned* count, struct process* found) {
    unsigned long long used;
    unsigned room = found ? *count : 0;
    *count = processes_of((long)device - 1, found, room, &used);
    return *count > room ? INSUFFICIENT_SIZE : SUCCESS;
}

int nvmlDeviceGetUUID(void* device, char* uuid, unsigned length) {
    snprintf(uuid, length, "GPU-standin-%ld", (long)device - 1);
    return SUCCESS;
}

int nvmlDeviceGetUtilizationRates(void* device, struct utilization* rates) {
    unsigned long long busy = 0;
    int code = value(device, BUSY, &busy);
    *rates = (struct utilization){(unsigned)busy, 0};
    return code;
}

int nvmlDeviceGetMemoryInfo_v2(void* device, struct memory* memory) {
    unsigned long long used = 0, of_processes;
    int code = value(device, USED, &used);
    processes_of((long)device - 1, NULL, 0, &of_processes);
    used += of_processes;
    *memory = (struct memory){memory->version, TOTAL, 0, TOTAL - used, used};
    return code;
}

int nvmlDeviceGetPowerUsage(void* device, unsigned* milliwatts) {
    unsigned long long found = 0;
    int code = value(device, MILLIWATTS, &found);
    *milliwatts = (unsigned)found;
    return code;
}
