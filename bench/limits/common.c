#include "peer.h"

#include <errno.h>
#include <sched.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

_Noreturn void fail(int status, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    fprintf(stderr, "%s: ", program_invocation_short_name);
    vfprintf(stderr, format, args);
    fputc('\n', stderr);
    va_end(args);
    peer_kill();
    _exit(status);
}

uint64_t now_ns(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

void pin(int cpu)
{
    cpu_set_t set;
    CPU_ZERO(&set);
    CPU_SET(cpu, &set);
    if (sched_setaffinity(0, sizeof set, &set) != 0)
        fail(STATUS_USAGE, "cannot run on CPU %d: %s; name two of those that `taskset -p $$` lists with --cpus A,B", cpu,
             strerror(errno));
}

void *map(size_t bytes, bool shared)
{
    int flags = MAP_ANONYMOUS | MAP_POPULATE | (shared ? MAP_SHARED : MAP_PRIVATE);
    void *at = mmap(NULL, bytes, PROT_READ | PROT_WRITE, flags, -1, 0);
    if (at == MAP_FAILED)
        fail(STATUS_FAILED, "cannot map %zu bytes: %s; free some memory or raise `ulimit -v`", bytes, strerror(errno));
    return at;
}

/* The receivers of weft do the same by the same instructions: their program is made for every x86-64. */
#ifdef __x86_64__
#define LIKE_WEFT __attribute__((target("no-avx")))
#else
#define LIKE_WEFT
#endif

typedef uint64_t two_words __attribute__((vector_size(16), aligned(8), may_alias));

LIKE_WEFT __attribute__((noinline)) uint64_t sum_bytes(const void *bytes, size_t n)
{
    const unsigned char *at = bytes;
    two_words even = { 0 }, odd = { 0 };
    for (; n >= 32; at += 32, n -= 32) {
        even += *(const two_words *)at;
        odd += *(const two_words *)(at + 16);
    }
    even += odd;
    uint64_t sum = even[0] + even[1];
    for (; n >= 8; at += 8, n -= 8) {
        uint64_t word;
        memcpy(&word, at, 8);
        sum += word;
    }
    for (; n > 0; at++, n--)
        sum += *at;
    return sum;
}

/* ---- samples ---- */

/* A tenth of the time warms up. A sample of a rate is half a millisecond: longer than the bursts between two publications
 * of a ring's head, shorter than the time slices in which other programs take the CPU, so that the median is of the
 * slices without them. The mean, beside it, is of all. */
struct meter meter_start(enum unit unit, double seconds)
{
    enum { CAPACITY = 1 << 18 };
    static double *samples;
    if (samples == NULL)
        samples = malloc(CAPACITY * sizeof *samples);
    if (samples == NULL)
        fail(STATUS_FAILED, "no memory for the samples");
    double ns = seconds * 1e9;
    uint64_t now = now_ns();
    return (struct meter){
        .unit = unit,
        .warm_until = now + (uint64_t)(ns / 10),
        .end = now + (uint64_t)(ns * 1.1),
        .sample_start = now,
        .min_ns = unit == NS_PER_UNIT ? 0 : ns / 5 < 5e5 ? (uint64_t)(ns / 5) : 500000,
        .samples = samples,
        .capacity = CAPACITY,
    };
}

bool meter_tick(struct meter *m, double units)
{
    uint64_t now = now_ns();
    m->pending += units;
    if (m->warm_until != 0) {
        if (now < m->warm_until)
            return true;
        m->warm_until = 0;
    } else {
        uint64_t passed = now - m->sample_start;
        if (passed < m->min_ns || passed == 0)
            return true;
        m->total_units += m->pending;
        m->total_ns += (double)passed;
        m->samples[m->n++] = m->unit == NS_PER_UNIT ? (double)passed / m->pending : m->pending * 1e9 / (double)passed;
    }
    m->sample_start = now;
    m->pending = 0;
    return m->n == 0 || (now < m->end && m->n < m->capacity);
}

bool better(enum unit unit, double a, double b)
{
    return unit == NS_PER_UNIT ? a < b : a > b;
}

static int ascending(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

struct result meter_finish(struct meter *m)
{
    qsort(m->samples, m->n, sizeof *m->samples, ascending);
    size_t tail = (m->n - 1) * 99 / 100;
    if (m->unit == UNITS_PER_SECOND)
        tail = m->n - 1 - tail;
    double ns = m->total_ns, units = m->total_units;
    double mean = m->unit == NS_PER_UNIT ? ns / units : units * 1e9 / ns;
    return (struct result){ m->samples[m->n / 2], m->samples[tail], mean, m->n };
}

/* ---- the source ---- */

enum { SOURCE_BYTES = 64 << 20 };
/* Word i of the source is i times an odd constant: all words differ, and the inverse gives i back. */
#define SPREAD UINT64_C(0x9e3779b97f4a7c15)
#define GATHER UINT64_C(0xf1de83e19937733d)
_Static_assert(SPREAD * GATHER == 1, "inverse modulo 2^64");

static uint64_t *source;

void source_map(void)
{
    source = map(SOURCE_BYTES, false);
    for (size_t i = 0; i < SOURCE_BYTES / 8; i++)
        source[i] = (i + 1) * SPREAD;
}

struct source source_start(size_t size, bool second_half)
{
    size_t stride = (size + LINE - 1) / LINE * LINE;
    size_t slots = SOURCE_BYTES / stride;
    return (struct source){ (const char *)source, size, stride, slots, second_half ? slots / 2 : 0 };
}

uint64_t source_sum(size_t size, bool second_half, uint64_t n)
{
    struct source s = source_start(size, second_half);
    uint64_t laps = n / s.slots, lap = 0, rest = 0;
    for (size_t i = 0; laps > 0 && i < s.slots; i++)
        lap += sum_bytes(source_next(&s), size);
    for (uint64_t i = 0; i < n % s.slots; i++)
        rest += sum_bytes(source_next(&s), size);
    return laps * lap + rest;
}

size_t source_slot(size_t size, const void *message)
{
    uint64_t word;
    memcpy(&word, message, 8);
    struct source s = source_start(size, false);
    size_t slot = (size_t)((word * GATHER - 1) * 8 / s.stride);
    return slot < s.slots ? slot : s.slots;
}

/* ---- output ---- */

void print_row(struct row row, struct result r)
{
    printf("{\"metric\":\"%s\",\"size\":%zu,\"unit\":\"%s\",\"system\":\"%s\"", row.metric, row.size, row.unit, row.system);
    printf(",\"median\":%.6g,\"p99\":%.6g,\"mean\":%.6g,\"n\":%zu,\"detail\":\"%s\"", r.median, r.p99, r.mean, r.n, row.detail);
    if (row.variant != NULL)
        printf(",\"variant\":\"%s\"", row.variant);
    if (row.line_before > 0)
        printf(",\"line_before\":%.4g,\"line_after\":%.4g", row.line_before, row.line_after);
    puts("}");
}
