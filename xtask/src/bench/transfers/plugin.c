/* A plugin of QEMU's user emulation that counts the cache lines which pass from one thread to another.
 *
 * The model: each thread has a core with a cache of its own that is never full. A line passes when a thread reads what
 * another one wrote last, or writes what others have. What the kernel does with memory is not seen.
 *
 * Arguments: control=FILE, lines=FILE. The first byte of the control file says what to do: 0 nothing, 1 count, 2 write
 * what was counted and go back to 0. Each line of the output is a passage: the cache line, the thread, r or w, and the
 * symbol of the instruction.
 *
 * The declarations are those of QEMU's interface for plugins, version 1, of which Debian has no header. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

struct qemu_plugin_tb;
struct qemu_plugin_insn;
typedef void (*translated_fn)(uint64_t id, struct qemu_plugin_tb* block);
typedef void (*accessed_fn)(unsigned thread, uint32_t access, uint64_t address, void* data);

void qemu_plugin_register_vcpu_tb_trans_cb(uint64_t id, translated_fn callback);
size_t qemu_plugin_tb_n_insns(struct qemu_plugin_tb const* block);
struct qemu_plugin_insn* qemu_plugin_tb_get_insn(struct qemu_plugin_tb const* block, size_t index);
char const* qemu_plugin_insn_symbol(struct qemu_plugin_insn const* instruction);
void qemu_plugin_register_vcpu_mem_cb(
    struct qemu_plugin_insn* instruction, accessed_fn callback, int flags, int kinds, void* data);
bool qemu_plugin_mem_is_store(uint32_t access);

#define EXPORTED __attribute__((visibility("default")))
#define READS_AND_WRITES 3
#define LINE_BITS 6
#define TABLE_BITS 22
/* A line is looked for within a group of places, which share a lock. */
#define GROUP 64
#define LOCKS 4096
#define MOST_PASSAGES (1u << 23)
/* Threads are bits of a word. */
#define MOST_THREADS 128

EXPORTED int qemu_plugin_version = 1;

typedef unsigned __int128 threads_t;

struct line {
    threads_t holders;
    uint64_t number;
    /* Whether the last access that found it elsewhere was a write. */
    bool is_written;
};

struct passage {
    uint64_t line;
    char const* symbol;
    unsigned thread;
    bool is_write;
};

static struct line* table;
static pthread_spinlock_t locks[LOCKS];
static struct passage* passages;
static uint64_t passed;
static char volatile* control;
static char* output;

static void* memory(size_t size)
{
    void* mapped = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (mapped == MAP_FAILED) {
        perror("memory for the counts");
        abort();
    }
    return mapped;
}

static struct line* find(uint64_t number, uint64_t place)
{
    struct line* group = table + (place & ~(uint64_t)(GROUP - 1));
    for (unsigned step = 0; step < GROUP; step++) {
        struct line* line = group + ((place + step) % GROUP);
        if (line->number == 0) {
            line->number = number;
        }
        if (line->number == number) {
            return line;
        }
    }
    fputs("the table of cache lines is full\n", stderr);
    abort();
}

static void accessed(unsigned thread, uint32_t access, uint64_t address, void* symbol)
{
    uint64_t number = address >> LINE_BITS;
    uint64_t place = (number * UINT64_C(0x9E3779B97F4A7C15)) >> (64 - TABLE_BITS);
    pthread_spinlock_t* lock = &locks[place / GROUP % LOCKS];
    threads_t self = (threads_t)1 << (thread % MOST_THREADS);
    bool is_write = qemu_plugin_mem_is_store(access);
    bool passes;

    pthread_spin_lock(lock);
    struct line* line = find(number, place);
    if (is_write) {
        passes = (line->holders & ~self) != 0;
        line->holders = self;
        line->is_written = true;
    } else {
        bool is_missing = (line->holders & self) == 0;
        passes = is_missing && line->holders != 0 && line->is_written;
        line->is_written = line->is_written && !is_missing;
        line->holders |= self;
    }
    pthread_spin_unlock(lock);

    if (passes && *control == 1) {
        uint64_t index = __atomic_fetch_add(&passed, 1, __ATOMIC_RELAXED);
        if (index < MOST_PASSAGES) {
            passages[index] = (struct passage){number, symbol, thread, is_write};
        }
    }
}

static void translated(uint64_t id, struct qemu_plugin_tb* block)
{
    (void)id;
    size_t count = qemu_plugin_tb_n_insns(block);
    for (size_t index = 0; index < count; index++) {
        struct qemu_plugin_insn* instruction = qemu_plugin_tb_get_insn(block, index);
        char const* symbol = qemu_plugin_insn_symbol(instruction);
        qemu_plugin_register_vcpu_mem_cb(instruction, accessed, 0, READS_AND_WRITES, (void*)(symbol ? symbol : "?"));
    }
}

static void write_out(void)
{
    if (passed > MOST_PASSAGES) {
        fputs("more passages than there is memory for\n", stderr);
        abort();
    }
    FILE* file = fopen(output, "w");
    if (file == NULL) {
        perror(output);
        abort();
    }
    for (uint64_t index = 0; index < passed; index++) {
        struct passage const* it = &passages[index];
        fprintf(file, "%lx %u %c %s\n", (unsigned long)it->line, it->thread, it->is_write ? 'w' : 'r', it->symbol);
    }
    if (fclose(file) != 0) {
        perror(output);
        abort();
    }
    passed = 0;
}

static void* watch(void* unused)
{
    for (;; usleep(10000)) {
        if (*control == 2) {
            write_out();
            *control = 0;
        }
    }
    return unused;
}

static char* argument(int count, char** arguments, char const* name)
{
    for (int index = 0; index < count; index++) {
        if (strncmp(arguments[index], name, strlen(name)) == 0) {
            return strdup(arguments[index] + strlen(name));
        }
    }
    fprintf(stderr, "the plugin needs %sFILE\n", name);
    abort();
}

EXPORTED int qemu_plugin_install(uint64_t id, void const* target, int count, char** arguments)
{
    (void)target;
    char* path = argument(count, arguments, "control=");
    output = argument(count, arguments, "lines=");
    int file = open(path, O_RDWR);
    control = mmap(NULL, 1, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    if (file < 0 || control == MAP_FAILED) {
        perror(path);
        return 1;
    }
    table = memory(sizeof *table << TABLE_BITS);
    passages = memory(sizeof *passages * MOST_PASSAGES);
    for (unsigned index = 0; index < LOCKS; index++) {
        pthread_spin_init(&locks[index], PTHREAD_PROCESS_PRIVATE);
    }
    pthread_t thread;
    if (pthread_create(&thread, NULL, watch, NULL) != 0) {
        return 1;
    }
    qemu_plugin_register_vcpu_tb_trans_cb(id, translated);
    return 0;
}
