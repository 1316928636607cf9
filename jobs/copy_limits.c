/* What two processes on two cores reach in plain C for an allreduce of float32, without Python, MPI or anybody's library.
 *
 *     gcc -O3 -march=native -o copy_limits jobs/copy_limits.c && ./copy_limits        (x86-64, Linux; seconds)
 *
 * One line per size, up to 16 MiB or so many KiB as the argument says, microseconds of each way, back to back, every answer checked.
 * "staged": copied into memory that both map, in pieces, and read from there; direct: each sums everything, two shot: each sums a half
 * and hands it out, with the result staged in the same pass. "streamed": results written past the caches. "read": out of the other's own
 * memory with process_vm_readv, as MPI libraries do.
 */
#define _GNU_SOURCE
#include <immintrin.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { SLOTS = 8, CAPACITY = 256 << 10, MOST = 16 << 20 };
typedef struct { _Alignas(64) atomic_long count; } line;
static struct shared { line posted[2], used[2], met[2]; char *sent[2], *result[2]; pid_t pid[2]; } *all;
static char *stage[2], *scratch;
static int me, streamed;
static long nposted, nused, nmet, piece;

static void tell(line *lines, long count) { atomic_store_explicit(&lines[me].count, count, memory_order_release); }
static void await(line *lines, long count) {
    for (long spins = 0; atomic_load_explicit(&lines[1 - me].count, memory_order_acquire) < count; spins++)
        if (spins < 10000) _mm_pause(); else sched_yield();
}
static void meet(void) { tell(all->met, ++nmet); await(all->met, nmet); }
static double now(void) { struct timespec t; clock_gettime(CLOCK_MONOTONIC, &t); return t.tv_sec * 1e6 + t.tv_nsec * 1e-3; }
static long least(long a, long b) { return a < b ? a : b; }

/* to = a, or a + b where there is one; the same to "also" where there is one */
static void combine(char *to, char *also, const char *a, const char *b, long n) {
    for (long i = 0; i < n; i += 16) {
        __m128 x = _mm_loadu_ps((const float *)(a + i));
        if (b) x = _mm_add_ps(x, _mm_loadu_ps((const float *)(b + i)));
        if (also) _mm_storeu_ps((float *)(also + i), x);
        if (streamed) _mm_stream_ps((float *)(to + i), x); else _mm_storeu_ps((float *)(to + i), x);
    }
}
static char *slot(int who, long number) { return stage[who] + number % SLOTS * CAPACITY; }
static void free_slot(long base) { if (nposted - base >= SLOTS) await(all->used, nposted - SLOTS + 1); }

static void direct(char *in, char *out, long n) {
    long pieces = (n + piece - 1) / piece, base = nposted;
    for (long s = 0, f = 0; f < pieces; f++) {
        for (; s < pieces && s < f + SLOTS / 2; s++) {
            free_slot(base);
            memcpy(slot(me, nposted), in + s * piece, least(piece, n - s * piece));
            tell(all->posted, ++nposted);
        }
        await(all->posted, nused + 1);
        combine(out + f * piece, NULL, in + f * piece, slot(1 - me, nused), least(piece, n - f * piece));
        tell(all->used, ++nused);
    }
    await(all->used, nposted);
}

/* Step t stages piece t of the other's half, sums piece t - AHEAD of its own and hands that out, and takes result t - 2 AHEAD. */
static void two_shot(char *in, char *out, long n) {
    enum { AHEAD = SLOTS / 4 };
    long half = n / 2, pieces = (half + piece - 1) / piece, mine = me ? half : 0, theirs = half - mine, base = nposted, first = nused;
    for (long t = 0; t < pieces + 2 * AHEAD; t++) {
        if (t < pieces) {
            free_slot(base);
            memcpy(slot(me, nposted), in + theirs + t * piece, least(piece, half - t * piece));
            tell(all->posted, ++nposted);
        }
        long f = t - AHEAD, c = t - 2 * AHEAD;
        if (0 <= f && f < pieces) {
            long number = first + (f < AHEAD ? f : 2 * f - AHEAD), at = mine + f * piece;
            await(all->posted, number + 1);
            free_slot(base);
            combine(out + at, slot(me, nposted), in + at, slot(1 - me, number), least(piece, half - f * piece));
            tell(all->posted, ++nposted), tell(all->used, ++nused);
        }
        if (0 <= c && c < pieces) {
            long number = first + (c + AHEAD < pieces ? c + AHEAD + 1 : pieces) + c, at = theirs + c * piece;
            await(all->posted, number + 1);
            combine(out + at, NULL, slot(1 - me, number), NULL, least(piece, half - c * piece));
            tell(all->used, ++nused);
        }
    }
    await(all->used, nposted);
}

static void read_from(char *to, char *from, long n) {
    struct iovec here = {to, n}, there = {from, n};
    if (process_vm_readv(all->pid[1 - me], &here, 1, &there, 1, 0) != n) perror("process_vm_readv"), _exit(1);
}
static void two_shot_read(char *in, char *out, long n) {
    long half = n / 2, mine = me ? half : 0, theirs = half - mine;
    all->sent[me] = in, all->result[me] = out;
    meet();
    for (long at = mine; at < mine + half; at += piece) {
        long m = least(piece, mine + half - at);
        read_from(scratch, all->sent[1 - me] + at, m);
        combine(out + at, NULL, in + at, scratch, m);
    }
    meet();
    read_from(out + theirs, all->result[1 - me] + theirs, half);
    meet();
}

static const struct { const char *name; void (*run)(char *, char *, long); long piece; int streamed; } ways[] = {
    {"direct, staged", direct, 128 << 10, 0}, {"two shot, staged", two_shot, 128 << 10, 0}, {"in pieces of 64K", two_shot, 64 << 10, 0},
    {"256K", two_shot, 256 << 10, 0}, {"streamed", two_shot, 128 << 10, 1}, {"two shot, read", two_shot_read, 128 << 10, 0},
};

static double timed(unsigned way, char *in, char *out, long n) {
    int calls = n > 1 << 20 ? 40 : 400;
    piece = ways[way].piece, streamed = ways[way].streamed;
    memset(out, 0, n);
    for (int i = 0; i < 5; i++) ways[way].run(in, out, n);
    for (long i = 0; i < n / 4; i++)
        if (((float *)out)[i] != 3 + 2 * (float)(i % 7)) printf("wrong: %s\n", ways[way].name), _exit(1);
    meet();
    double start = now();
    for (int i = 0; i < calls; i++) ways[way].run(in, out, n);
    return (now() - start) / calls;
}

int main(int nwords, char **words) {
    long most = nwords > 1 ? atol(words[1]) << 10 : MOST;
    int share = PROT_READ | PROT_WRITE;
    all = mmap(NULL, sizeof *all, share, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    for (int i = 0; i < 2; i++) stage[i] = mmap(NULL, SLOTS * CAPACITY, share, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    me = fork() == 0;
    if (me) prctl(PR_SET_PDEATHSIG, SIGKILL);
    prctl(PR_SET_PTRACER, PR_SET_PTRACER_ANY, 0, 0, 0);
    cpu_set_t cores;
    CPU_ZERO(&cores);
    CPU_SET(me, &cores);
    sched_setaffinity(0, sizeof cores, &cores);
    all->pid[me] = getpid();
    memset(stage[me], 0, SLOTS * CAPACITY);
    scratch = aligned_alloc(4096, CAPACITY);
    char *in = aligned_alloc(2 << 20, MOST), *out = aligned_alloc(2 << 20, MOST);
    for (long i = 0; i < MOST / 4; i++) ((float *)in)[i] = me + 1 + i % 7;
    meet();
    for (long n = 64 << 10; n <= least(most, MOST); n *= 2) {
        if (!me) printf("%6ld KiB", n >> 10);
        for (unsigned way = 0; way < sizeof ways / sizeof *ways; way++) {
            double us = timed(way, in, out, n);
            if (!me) printf("; %s %.1f", ways[way].name, us);
        }
        if (!me) printf(" us\n"), fflush(stdout);
    }
    if (!me) wait(NULL);
    return 0;
}
