/* Clocks of emulated hosts: preloaded, it shifts CLOCK_MONOTONIC by what HOST_CLOCKS says of this host, and lets it drift from HOST_CLOCKS_FROM on.
 *
 * HOST_CLOCKS=host0=0:0,host1=-3:50 has for each host the nanoseconds that its clock is ahead, and by how many parts in a million it is fast. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <pthread.h>
#include <semaphore.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

typedef long long ns_t;
typedef struct timespec spec_t;

static ns_t ahead, from;
static double fast;
static int (*gettime)(clockid_t, spec_t *);

static ns_t of(const spec_t *spec) { return spec->tv_sec * 1000000000LL + spec->tv_nsec; }
static spec_t to(ns_t ns) { return (spec_t){ns / 1000000000LL, ns % 1000000000LL}; }
static ns_t shifted(ns_t ns) { return ns + ahead + (ns_t)(fast * (ns - from)); }
static spec_t real(const spec_t *spec) {
    ns_t ns = from + (ns_t)((of(spec) - ahead - from) / (1 + fast));
    return to(ns > 0 ? ns : 0);
}

__attribute__((constructor)) static void begin(void) {
    char name[65] = "", *all = getenv("HOST_CLOCKS"), *start = getenv("HOST_CLOCKS_FROM"), *end;
    gettime = dlsym(RTLD_NEXT, "clock_gettime");
    gethostname(name, 63);
    strcat(name, "=");
    char *mine = all ? strstr(all, name) : NULL;
    if (!mine)
        return;
    from = start ? atoll(start) : 0;
    ahead = strtoll(mine + strlen(name), &end, 10);
    fast = *end == ':' ? atof(end + 1) * 1e-6 : 0;
}

int clock_gettime(clockid_t which, spec_t *spec) {
    if (!gettime)
        begin();
    int failed = gettime(which, spec);
    if (!failed && (which == CLOCK_MONOTONIC || which == CLOCK_MONOTONIC_COARSE))
        *spec = to(shifted(of(spec)));
    return failed;
}

/* What waits until a time of that clock. */
#define NEXT(name) static __typeof__(&name) next; if (!next) next = (__typeof__(&name))dlsym(RTLD_NEXT, #name)

int clock_nanosleep(clockid_t which, int flags, const spec_t *spec, spec_t *left) {
    NEXT(clock_nanosleep);
    spec_t until = which == CLOCK_MONOTONIC && flags & TIMER_ABSTIME ? real(spec) : *spec;
    return next(which, flags, &until, left);
}

int sem_clockwait(sem_t *sem, clockid_t which, const spec_t *spec) {
    NEXT(sem_clockwait);
    spec_t until = which == CLOCK_MONOTONIC ? real(spec) : *spec;
    return next(sem, which, &until);
}

int pthread_cond_clockwait(pthread_cond_t *cond, pthread_mutex_t *mutex, clockid_t which, const spec_t *spec) {
    NEXT(pthread_cond_clockwait);
    spec_t until = which == CLOCK_MONOTONIC ? real(spec) : *spec;
    return next(cond, mutex, which, &until);
}
