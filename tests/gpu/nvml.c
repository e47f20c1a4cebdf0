/* A stand-in for NVIDIA's management library on machines without a GPU: what the server's metrics call of libnvidia-ml.so.1.
 *
 * STANDIN_GPUS names a file that is read at each call, with a line "busy used milliwatts" for each GPU of 4 GiB: percent, bytes, and -
 * where the GPU does not report a value.
 *
 * Compiled by the tests: cc -std=gnu11 -shared -fPIC nvml.c -o libnvidia-ml.so.1
 */
#define _GNU_SOURCE
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { SUCCESS = 0, INVALID_ARGUMENT = 2, NOT_SUPPORTED = 3 };
enum { BUSY, USED, MILLIWATTS, FIELDS };

#define TOTAL (4ULL << 30)

struct memory {
    unsigned version;
    unsigned long long total, reserved, free, used;
};

struct utilization {
    unsigned gpu, memory;
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
    unsigned long long used = 0;
    int code = value(device, USED, &used);
    *memory = (struct memory){memory->version, TOTAL, 0, TOTAL - used, used};
    return code;
}

int nvmlDeviceGetPowerUsage(void* device, unsigned* milliwatts) {
    unsigned long long found = 0;
    int code = value(device, MILLIWATTS, &found);
    *milliwatts = (unsigned)found;
    return code;
}
