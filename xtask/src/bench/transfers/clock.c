/* Slows the clocks of the emulated program down by as much as the emulation slows the program, more or less. Otherwise,
 * executions would seem so long that none would be done by the thread that takes the request. */
#define _GNU_SOURCE
#include <stdint.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#define SLOWER 100
#define SECOND UINT64_C(1000000000)

int clock_gettime(clockid_t clock, struct timespec* time)
{
    int result = (int)syscall(SYS_clock_gettime, clock, time);
    if (result == 0 && clock != CLOCK_REALTIME) {
        uint64_t slowed = ((uint64_t)time->tv_sec * SECOND + (uint64_t)time->tv_nsec) / SLOWER;
        time->tv_sec = (time_t)(slowed / SECOND);
        time->tv_nsec = (long)(slowed % SECOND);
    }
    return result;
}
