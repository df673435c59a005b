/* Clocks that a test moves, for a process that is started with this library preloaded. The file that
 * DRACPU_TEST_CLOCK names holds two numbers of seconds, each a 64-bit integer: what is added to the time of day, and what is
 * added to the clocks that only go forward. Sleeps are the kernel's and stay as long as they are. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

static const volatile int64_t *moved;
static int (*kernels)(clockid_t, struct timespec *);

__attribute__((constructor)) static void begin(void) {
    kernels = (int (*)(clockid_t, struct timespec *))dlsym(RTLD_NEXT, "clock_gettime");
    const char *path = getenv("DRACPU_TEST_CLOCK");
    int file = path ? open(path, O_RDONLY | O_CLOEXEC) : -1;
    if (file < 0)
        return;
    void *shared = mmap(NULL, 2 * sizeof(int64_t), PROT_READ, MAP_SHARED, file, 0);
    close(file);
    if (shared != MAP_FAILED)
        moved = shared;
}

int clock_gettime(clockid_t clock, struct timespec *time) {
    if (!kernels)
        begin();
    int result = kernels(clock, time);
    if (result != 0 || !moved)
        return result;
    switch (clock) {
    case CLOCK_REALTIME:
    case CLOCK_REALTIME_COARSE:
        time->tv_sec += moved[0];
        break;
    case CLOCK_MONOTONIC:
    case CLOCK_MONOTONIC_COARSE:
    case CLOCK_MONOTONIC_RAW:
    case CLOCK_BOOTTIME:
        time->tv_sec += moved[1];
        break;
    }
    return result;
}
