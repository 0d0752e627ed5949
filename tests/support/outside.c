/* Put before the C library of a server under test: a disk that stalls and a clock that jumps.

   The file named by MILLSTREAM_TEST_OUTSIDE is shared with the test: an int64 that is added to the
   wall clock, in milliseconds, and an int64: 1 while syncs do not return, 2 while they fail. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

static volatile int64_t *shared;
static int (*real_clock)(clockid_t, struct timespec *);
static int (*real_fdatasync)(int);
static int (*real_fsync)(int);

__attribute__((constructor)) static void begin(void) {
    const char *path = getenv("MILLSTREAM_TEST_OUTSIDE");
    int file = path ? open(path, O_RDONLY | O_CLOEXEC) : -1;
    real_clock = dlsym(RTLD_NEXT, "clock_gettime");
    real_fdatasync = dlsym(RTLD_NEXT, "fdatasync");
    real_fsync = dlsym(RTLD_NEXT, "fsync");
    if (file >= 0) {
        void *at = mmap(NULL, 16, PROT_READ, MAP_SHARED, file, 0);
        shared = at == MAP_FAILED ? NULL : at;
        close(file);
    }
}

int clock_gettime(clockid_t clock, struct timespec *out) {
    int result = real_clock(clock, out);
    if (result == 0 && shared && (clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE)) {
        int64_t total_ms = shared[0] + out->tv_nsec / 1000000;
        int64_t seconds = total_ms / 1000, rest_ms = total_ms % 1000;
        if (rest_ms < 0) {
            seconds -= 1;
            rest_ms += 1000;
        }
        out->tv_sec += seconds;
        out->tv_nsec = rest_ms * 1000000 + out->tv_nsec % 1000000;
    }
    return result;
}

static int disk_works(void) {
    while (shared && shared[1] == 1)
        usleep(2000);
    if (!shared || shared[1] == 0)
        return 1;
    errno = EIO;
    return 0;
}

int fdatasync(int file) {
    return disk_works() ? real_fdatasync(file) : -1;
}

int fsync(int file) {
    return disk_works() ? real_fsync(file) : -1;
}
