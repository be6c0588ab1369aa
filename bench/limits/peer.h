/* The second process: forked once, pinned to its CPU, given one job after the other. */
#ifndef LIMITS_PEER_H
#define LIMITS_PEER_H

#include "common.h"

#include <stdatomic.h>

/* Shared by both processes; a line each for what one of them writes while the other polls. */
struct shared {
    _Alignas(LINE) atomic_uint job;   /* number of the job given, written by the parent */
    void (*work)(void *argument);     /* same addresses in both: forked */
    void *argument;
    _Alignas(LINE) atomic_bool stop;  /* written by the parent: finish the job */
    _Alignas(LINE) atomic_uint done;  /* number of the job done, written by the peer */
    _Alignas(LINE) _Atomic uint64_t there; /* line_ns: written by the parent */
    _Alignas(LINE) _Atomic uint64_t back;  /* line_ns: written by the peer */
    _Alignas(LINE) uint64_t sent_count;
    uint64_t sent_sum, received_sum; /* the peer's account of the job */
};

extern struct shared *shared;

/* Ends this process after 20 s. For those whose peer somebody else starts; peer_fork does it too. */
void peer_watch(void);
/* Forks the peer and pins both. Memory that the two share must be mapped before. */
void peer_fork(const struct options *o);
/* Jobs end when they see shared->stop (or the end of a stream). */
void peer_start(void (*work)(void *argument), void *argument);
bool peer_done(void);
void peer_wait(void);
/* After the job's end: do both processes agree on the sums of what went there and what came back? */
void peer_compare(uint64_t sent_sum, uint64_t received_sum);
/* Ends and reaps the peer. */
void peer_end(void);
/* The same without asking it; does nothing in the peer, or without one. */
void peer_kill(void);

/* The cache-line round trip of this moment, in a millisecond. A virtual CPU moves between physical ones from second to
 * second; two measurements compare only if their lines do. */
double line_ns(void);

static inline bool peer_told_to_stop(void)
{
    return atomic_load_explicit(&shared->stop, memory_order_relaxed);
}

#endif
