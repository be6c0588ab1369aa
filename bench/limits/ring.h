/*
 * A ring for one writer and one reader, bare: no keys, no handlers, no checks of what comes.
 *
 * A message starts on a line of its own; its first word is the header (never 0), the payload follows. The header is
 * written last, with release; before it the header behind the message has been zeroed. The reader polls the next header
 * and writes nothing but `head`, a quarter of the ring at a time. Two slots behind the last message always stay free.
 */
#ifndef LIMITS_RING_H
#define LIMITS_RING_H

#include "copy.h"

#include <stdatomic.h>
#include <string.h>
#ifdef __x86_64__
#include <immintrin.h>
#endif

/*
 * How the writer stores: libc's memcpy; a loop of vector stores; the same non-temporal. These zero the header behind the
 * message just before they publish, which costs a transfer of its line while the reader waits. The early ones have done
 * it before, right after the publication of the message before (all messages are of one size, so they know where);
 * `ahead` has also asked for the ownership of the lines then.
 */
enum store { STORE_MEMCPY, STORE_VECTOR, STORE_NT, STORE_EARLY, STORE_EARLY_NT, STORE_AHEAD, STORES };
/* How the reader reads: memcpy or vector loop to private memory and sums that; sums in place; the last two after it
 * has prefetched the lines, 4 KiB at a time. */
enum read { READ_MEMCPY, READ_VECTOR, READ_PLACE, READ_VECTOR_PREFETCH, READ_PREFETCH, READS };

struct variant {
    size_t ring; /* bytes */
    enum store store;
    enum read read;
};

enum { RING_MAX = 8 << 20, HEADER = 8, BLOCK = 4096 };

/* What both processes share of one ring. */
struct ring {
    _Alignas(LINE) _Atomic uint64_t head; /* messages consumed, written by the reader */
    _Alignas(BLOCK) char data[RING_MAX];
};

/* What one process knows of one ring; private. */
struct end {
    struct ring *ring;
    size_t size, slot, slots, at, used; /* at, used: bytes */
    uint64_t count;                     /* messages sent or received */
    uint64_t limit;                     /* writer: count at which it must look at head */
    uint64_t published;                 /* reader: value of head */
    char *copy;                         /* reader: where it copies to */
};

static inline _Atomic uint64_t *ring_header(const struct end *e)
{
    return (_Atomic uint64_t *)(e->ring->data + e->at);
}

static inline void ring_advance(struct end *e)
{
    e->at = e->at + e->slot == e->used ? 0 : e->at + e->slot;
    e->count++;
}

/* ---- copying past the caches; n is a multiple of 8 ---- */

static inline void copy_lines_nt(char *to, const char *from, size_t n) /* `to` starts a line */
{
    size_t i = 0;
    for (; i + LINE <= n; i += LINE) {
#if defined(__AVX512F__)
        _mm512_stream_si512((void *)(to + i), _mm512_loadu_si512(from + i));
#elif defined(__SSE2__)
        for (size_t j = i; j < i + LINE; j += 16)
            _mm_stream_si128((__m128i *)(to + j), _mm_loadu_si128((const __m128i *)(from + j)));
#else
        *(line_of_words *)(to + i) = *(const line_of_words *)(from + i);
#endif
    }
    copy_words(to + i, from + i, n - i);
}

static inline void store_fence(void)
{
#ifdef __SSE2__
    _mm_sfence(); /* non-temporal stores are not ordered by release */
#endif
}

/* ---- writer ---- */

static inline void ring_store(char *to, const char *from, size_t n, enum store how)
{
    const size_t first = LINE - HEADER; /* what fits beside the header; later stores are then aligned */
    if (n == 16) {
        memcpy(to, from, 16);
    } else if (n <= first) {
        copy_words(to, from, n);
    } else if (how == STORE_MEMCPY) {
        memcpy(to, from, n);
    } else {
        memcpy(to, from, first);
        if (how == STORE_NT || how == STORE_EARLY_NT) {
            copy_lines_nt(to + first, from + first, n - first);
            store_fence();
        } else {
            copy_lines(to + first, from + first, n - first);
        }
    }
}

static inline bool ring_has_room(struct end *e)
{
    if (e->count == e->limit) /* pairs with the release of head: what was read there may be overwritten */
        e->limit = atomic_load_explicit(&e->ring->head, memory_order_acquire) + e->slots - 2;
    return e->count != e->limit;
}

static inline void ring_zero_header(struct end *e, size_t at)
{
    atomic_store_explicit((_Atomic uint64_t *)(e->ring->data + at), 0, memory_order_relaxed);
}

/* The caller has seen that there is room. */
static inline void ring_send(struct end *e, const char *message, enum store how)
{
    _Atomic uint64_t *header = ring_header(e);
    ring_store((char *)header + HEADER, message, e->size, how);
    ring_advance(e);
    if (how < STORE_EARLY) {
        ring_zero_header(e, e->at);
        atomic_store_explicit(header, e->size, memory_order_release);
        return;
    }
    atomic_store_explicit(header, e->size, memory_order_release);
    ring_zero_header(e, e->at + e->slot == e->used ? 0 : e->at + e->slot);
    if (how == STORE_AHEAD)
        for (size_t i = LINE; i < e->slot; i += LINE)
            __builtin_prefetch(e->ring->data + e->at + i, 1, 3);
}

/* ---- reader ---- */

static inline uint64_t ring_read_blocks(char *copy, const char *message, size_t n)
{
    uint64_t sum = 0;
    for (size_t i = 0; i < n; i += BLOCK) {
        size_t block = n - i < BLOCK ? n - i : BLOCK;
        for (size_t j = 0; j < block + LINE; j += LINE)
            __builtin_prefetch(message + i + j, 0, 3);
        if (copy != NULL)
            copy_lines(copy + i, message + i, block);
        sum += sum_bytes((copy != NULL ? copy : message) + i, block);
    }
    return sum;
}

static inline uint64_t ring_read(char *copy, const char *message, size_t n, enum read how)
{
    switch (how) {
    case READ_PLACE:
        return sum_bytes(message, n);
    case READ_PREFETCH:
        return ring_read_blocks(NULL, message, n);
    case READ_VECTOR_PREFETCH:
        return ring_read_blocks(copy, message, n);
    case READ_MEMCPY:
        memcpy(copy, message, n);
        break;
    default:
        copy_lines(copy, message, n);
    }
    return sum_bytes(copy, n);
}

static inline bool ring_try_receive(struct end *e, enum read how, uint64_t *sum)
{
    _Atomic uint64_t *header = ring_header(e);
    size_t size = atomic_load_explicit(header, memory_order_acquire); /* pairs with the release in ring_send */
    if (size == 0)
        return false;
    *sum += ring_read(e->copy, (const char *)header + HEADER, size, how);
    ring_advance(e);
    if (e->count - e->published >= (e->slots + 3) / 4) {
        atomic_store_explicit(&e->ring->head, e->count, memory_order_release);
        e->published = e->count;
    }
    return true;
}

/* ---- variants ---- */

/* What the two processes of a ring program share. */
struct channel {
    struct variant variant; /* of the job under way */
    size_t size;
    struct ring there, back;
};

/* Maps the channel and the source, forks the peer. */
struct channel *channel_open(const struct options *o);
/* Prepares both rings for a job. The peer must be at rest. */
void channel_reset(struct channel *c, struct variant v);
/* This process' end of one of its rings, after channel_reset. */
struct end channel_end(struct channel *c, struct ring *r);

/* Measures one variant. */
typedef struct result (*measure_fn)(struct channel *c, const struct options *o, double seconds);

/* Screens the variants (those of --variant, or all that make sense at this size), measures the best two for the full
 * time and prints the better. `what` begins the row's detail. */
void ring_best(struct channel *c, const struct options *o, enum unit unit, measure_fn measure, struct row row, const char *what);

#endif
