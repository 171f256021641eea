/* Preloaded before libc: makes calls on some files fail, kills the process at one of them, or shifts the clock.

   FAULT_SUFFIX   files whose path ends so are affected
   FAULT_CALLS    comma-separated: write, sync, open
   FAULT_ERRNO    what they fail with; 0: they work
   FAULT_KILL_AT  SIGKILL at the N-th such call; 0: never
   FAULT_WHILE    all of that only while this file exists
   FAULT_CLOCK    a file that says how many seconds CLOCK_REALTIME is off */

#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

#define REAL(name) ((__typeof__(&name))dlsym(RTLD_NEXT, #name))

static long number(const char *variable) {
    const char *text = getenv(variable);
    return text ? atol(text) : 0;
}

static int ends_with(const char *path, const char *suffix) {
    size_t length = strlen(path), tail = strlen(suffix);
    return tail && length >= tail && !strcmp(path + length - tail, suffix);
}

/* Whether this call on this path is to fail; sets errno. */
static int is_faulty(const char *call, const char *path) {
    static long seen = 0;
    const char *suffix = getenv("FAULT_SUFFIX"), *calls = getenv("FAULT_CALLS"), *flag = getenv("FAULT_WHILE");
    if (!suffix || !calls || !strstr(calls, call) || !ends_with(path, suffix)) return 0;
    if (flag && syscall(SYS_access, flag, F_OK)) return 0;
    long kill_at = number("FAULT_KILL_AT");
    if (kill_at && __sync_add_and_fetch(&seen, 1) >= kill_at) kill(getpid(), SIGKILL);
    errno = (int)number("FAULT_ERRNO");
    return errno != 0;
}

static int lie_about(const char *call, int descriptor) {
    char link[64], path[4096];
    if (!getenv("FAULT_SUFFIX")) return 0;
    snprintf(link, sizeof link, "/proc/self/fd/%d", descriptor);
    ssize_t length = syscall(SYS_readlink, link, path, sizeof path - 1);
    if (length < 0) return 0;
    path[length] = 0;
    return is_faulty(call, path);
}

ssize_t write(int descriptor, const void *data, size_t size) {
    static ssize_t (*real)(int, const void *, size_t);
    if (!real) real = REAL(write);
    return lie_about("write", descriptor) ? -1 : real(descriptor, data, size);
}

ssize_t pwrite64(int descriptor, const void *data, size_t size, off64_t offset) {
    static ssize_t (*real)(int, const void *, size_t, off64_t);
    if (!real) real = REAL(pwrite64);
    return lie_about("write", descriptor) ? -1 : real(descriptor, data, size, offset);
}

ssize_t pwrite(int descriptor, const void *data, size_t size, off_t offset) {
    static ssize_t (*real)(int, const void *, size_t, off_t);
    if (!real) real = REAL(pwrite);
    return lie_about("write", descriptor) ? -1 : real(descriptor, data, size, offset);
}

int fsync(int descriptor) {
    static int (*real)(int);
    if (!real) real = REAL(fsync);
    return lie_about("sync", descriptor) ? -1 : real(descriptor);
}

int fdatasync(int descriptor) {
    static int (*real)(int);
    if (!real) real = REAL(fdatasync);
    return lie_about("sync", descriptor) ? -1 : real(descriptor);
}

int open64(const char *path, int flags, ...) {
    static int (*real)(const char *, int, ...);
    va_list rest;
    va_start(rest, flags);
    int mode = flags & (O_CREAT | O_TMPFILE) ? va_arg(rest, int) : 0;
    va_end(rest);
    if (!real) real = REAL(open64);
    if ((flags & O_ACCMODE) != O_RDONLY && is_faulty("open", path)) return -1;
    return real(path, flags, mode);
}

static time_t seconds_off(void) {
    char text[32];
    const char *path = getenv("FAULT_CLOCK");
    if (!path) return 0;
    int saved = errno, file = (int)syscall(SYS_openat, AT_FDCWD, path, O_RDONLY | O_CLOEXEC);
    if (file < 0) {
        errno = saved;
        return 0;
    }
    ssize_t length = syscall(SYS_read, file, text, sizeof text - 1);
    syscall(SYS_close, file);
    errno = saved;
    text[length > 0 ? length : 0] = 0;
    return atol(text);
}

int clock_gettime(clockid_t clock, struct timespec *now) {
    int result = (int)syscall(SYS_clock_gettime, clock, now);
    if (!result && (clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE)) now->tv_sec += seconds_off();
    return result;
}

int gettimeofday(struct timeval *now, void *zone) {
    (void)zone;
    struct timespec exact;
    clock_gettime(CLOCK_REALTIME, &exact);
    now->tv_sec = exact.tv_sec;
    now->tv_usec = exact.tv_nsec / 1000;
    return 0;
}

time_t time(time_t *where) {
    struct timespec exact;
    clock_gettime(CLOCK_REALTIME, &exact);
    if (where) *where = exact.tv_sec;
    return exact.tv_sec;
}
