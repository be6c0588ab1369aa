/* What all limit programs share: failing, time, samples, the sum, the rotating source, the output. */
#ifndef LIMITS_COMMON_H
#define LIMITS_COMMON_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { LINE = 64 };
enum { STATUS_FAILED = 1, STATUS_USAGE = 2, STATUS_SUM = 3, STATUS_HUNG = 4 };

struct options {
    size_t size;         /* bytes of one message, a multiple of 8 */
    double seconds;      /* of one measurement, screening not counted */
    int cpu[2];          /* of the measuring process and of its peer */
    unsigned window;     /* two-rings: requests outstanding */
    const char *variant; /* ring, pipe: measure this one only */
    const char *how;     /* kernel and host programs: which channel */
    const char *listen;  /* host programs: this side's address, of the side that is started first */
    const char *connect; /* host programs: the other side's address, of the side that measures */
    unsigned port;       /* host programs */
    double pause;        /* host-lone: seconds of computing behind each message */
};

/* One line on stderr: the cause and the way out. Ends the process. */
_Noreturn void fail(int status, const char *format, ...) __attribute__((format(printf, 2, 3)));

uint64_t now_ns(void);
void pin(int cpu);

/* Anonymous memory, present before it returns; `shared` memory stays common after fork. */
void *map(size_t bytes, bool shared);

/* Little-endian u64 words, then the tail as bytes, added modulo 2^64. The receivers of weft use the same loop. */
uint64_t sum_bytes(const void *bytes, size_t n);

/* ---- samples ---- */

enum unit { NS_PER_UNIT, UNITS_PER_SECOND };

/* Turns "so many units are done" into samples: one per tick, or per min_ns if ticks come faster. */
struct meter {
    enum unit unit;
    uint64_t warm_until, end, sample_start, min_ns;
    double pending, total_units, total_ns, *samples;
    size_t n, capacity;
};

struct meter meter_start(enum unit unit, double seconds);
bool meter_tick(struct meter *m, double units); /* false: time is up */

struct result {
    double median, p99, mean; /* p99 is the slow tail: for rates 99 % of the samples were faster */
    size_t n;
};
struct result meter_finish(struct meter *m);

bool better(enum unit unit, double a, double b);

/* ---- the source: 64 MiB that messages are taken from in turn, so that no cache holds what is sent ---- */

struct source {
    const char *base;
    size_t size, stride, slots, at;
};

void source_map(void); /* before fork; both processes then read the same pages */
struct source source_start(size_t size, bool second_half);
/* Sum of the first `n` messages that this start of the source gives. */
uint64_t source_sum(size_t size, bool second_half, uint64_t n);
/* Which message a received one is, told by its first word. */
size_t source_slot(size_t size, const void *message);

static inline const char *source_next(struct source *s)
{
    const char *message = s->base + s->at * s->stride;
    s->at = s->at + 1 == s->slots ? 0 : s->at + 1;
    return message;
}

/* ---- output ---- */

struct row {
    const char *metric, *unit, *system, *detail, *variant; /* variant may be NULL */
    size_t size;
    double line_before, line_after; /* ns, 0 if not known; see line_ns in peer.h */
};
void print_row(struct row row, struct result result);

/* ---- the programs ---- */

void cacheline(const struct options *o);
void ring(const struct options *o);
void two_rings(const struct options *o);
void ring_rate(const struct options *o);
void pipe_bandwidth(const struct options *o);
void memcpy_bandwidth(const struct options *o);
void sum_bandwidth(const struct options *o);
void kernel_rtt(const struct options *o);
void kernel_rate(const struct options *o);
void kernel_bandwidth(const struct options *o);
void host_rtt(const struct options *o);
void host_rate(const struct options *o);
void host_bandwidth(const struct options *o);
void host_lone(const struct options *o);

#endif
