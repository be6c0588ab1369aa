/* Round trips through two bare rings, and the choice among the variants of rings. */
#include "ring.h"

#include "peer.h"

#include <stdio.h>

/* ---- channel ---- */

static size_t slot_of(size_t size)
{
    return (HEADER + size + LINE - 1) / LINE * LINE;
}

static bool fits(size_t ring, size_t size)
{
    return ring / slot_of(size) >= 3;
}

struct channel *channel_open(const struct options *o)
{
    if (!fits(RING_MAX, o->size))
        fail(STATUS_USAGE, "messages of %zu bytes do not fit the rings; take a --size of at most 2 MiB", o->size);
    source_map();
    struct channel *c = map(sizeof *c, true);
    c->size = o->size;
    peer_fork(o);
    return c;
}

void channel_reset(struct channel *c, struct variant v)
{
    c->variant = v;
    struct ring *rings[] = { &c->there, &c->back };
    for (int i = 0; i < 2; i++) {
        atomic_store(&rings[i]->head, 0);
        atomic_store((_Atomic uint64_t *)rings[i]->data, 0);
        atomic_store((_Atomic uint64_t *)(rings[i]->data + slot_of(c->size)), 0); /* for the early ones */
    }
}

struct end channel_end(struct channel *c, struct ring *r)
{
    static _Alignas(BLOCK) char copy[RING_MAX / 2];
    size_t slot = slot_of(c->size), slots = c->variant.ring / slot;
    return (struct end){ .ring = r, .size = c->size, .slot = slot, .slots = slots, .used = slots * slot, .limit = slots - 2, .copy = copy };
}

/* ---- variants ---- */

static const size_t RINGS[] = { 64 << 10, 256 << 10, 1 << 20, 2 << 20, 8 << 20 };
enum { RING_SIZES = sizeof RINGS / sizeof *RINGS };
static const char *const RING_NAMES[RING_SIZES] = { "64K", "256K", "1M", "2M", "8M" };
static const char *const RING_WORDS[RING_SIZES] = { "64 KiB", "256 KiB", "1 MiB", "2 MiB", "8 MiB" };
static const char *const STORE_NAMES[STORES] = { "memcpy", "vector", "nt", "early", "early-nt", "ahead" };
static const char *const STORE_WORDS[STORES] = { "memcpy in", "vector stores", "non-temporal stores", "vector stores and early zero",
                                                 "non-temporal stores and early zero", "vector stores, early zero and prefetchw" };
static const char *const READ_NAMES[READS] = { "memcpy", "vector", "place", "vector-prefetch", "prefetch" };
static const char *const READ_WORDS[READS] = { "memcpy out", "vector copy out", "read in place", "vector copy out after prefetch",
                                               "read in place after prefetch" };

static int ring_index(size_t ring)
{
    int i = 0;
    while (RINGS[i] != ring)
        i++;
    return i;
}

static void variant_name(struct variant v, char *name, size_t n)
{
    snprintf(name, n, "%s,%s,%s", RING_NAMES[ring_index(v.ring)], STORE_NAMES[v.store], READ_NAMES[v.read]);
}

/* What loses or ties everywhere is left to --variant; within one line most stores and reads do not differ. */
static bool worth_trying(struct variant v, size_t size)
{
    if (!fits(v.ring, size) || v.read == READ_MEMCPY || v.read == READ_VECTOR_PREFETCH)
        return false;
    bool one_line = size + HEADER <= LINE;
    return !one_line || ((v.store == STORE_VECTOR || v.store == STORE_EARLY) && v.read != READ_PREFETCH);
}

enum { VARIANTS_MAX = RING_SIZES * STORES * READS };

static int variants_of(const struct options *o, struct variant list[VARIANTS_MAX])
{
    int n = 0;
    for (int i = 0; i < VARIANTS_MAX; i++) {
        struct variant v = { RINGS[i / (STORES * READS)], i / READS % STORES, i % READS };
        char name[64];
        variant_name(v, name, sizeof name);
        if (o->variant != NULL ? strcmp(o->variant, name) == 0 && fits(v.ring, o->size) : worth_trying(v, o->size))
            list[n++] = v;
    }
    if (n == 0)
        fail(STATUS_USAGE, "no variant `%s` at %zu bytes; see --help for their names", o->variant, o->size);
    return n;
}

/* Every variant is tried in two rounds and judged by its better one: a single try may fall into a pause of the machine. */
enum { ROUNDS = 2 };
static const double SCREEN_SECONDS = 0.001; /* of one try, at least */

/* Leaves the best two in best[]. Gives how many there are. */
static int screen(struct channel *c, const struct options *o, enum unit unit, measure_fn measure, struct variant best[2])
{
    struct variant list[VARIANTS_MAX];
    double median[VARIANTS_MAX];
    int n = variants_of(o, list);
    double seconds = o->seconds / (n * ROUNDS) > SCREEN_SECONDS ? o->seconds / (n * ROUNDS) : SCREEN_SECONDS;
    best[0] = list[0];
    if (n == 1)
        return 1;
    for (int i = 0; i < n * ROUNDS; i++) {
        channel_reset(c, list[i % n]);
        double found = measure(c, o, seconds).median;
        if (i < n || better(unit, found, median[i % n]))
            median[i % n] = found;
    }
    int first = 0, second = -1;
    for (int i = 1; i < n; i++)
        if (better(unit, median[i], median[first]))
            second = first, first = i;
        else if (second < 0 || better(unit, median[i], median[second]))
            second = i;
    best[0] = list[first];
    best[1] = list[second];
    return 2;
}

void ring_best(struct channel *c, const struct options *o, enum unit unit, measure_fn measure, struct row row, const char *what)
{
    struct variant variants[2], best = { 0 };
    struct result best_result = { 0 };
    int n = screen(c, o, unit, measure, variants);
    for (int i = 0; i < n; i++) {
        channel_reset(c, variants[i]);
        double before = line_ns();
        struct result result = measure(c, o, o->seconds);
        if (i == 0 || better(unit, result.median, best_result.median)) {
            best = variants[i], best_result = result;
            row.line_before = before, row.line_after = line_ns();
        }
    }
    char name[64], detail[192];
    variant_name(best, name, sizeof name);
    snprintf(detail, sizeof detail, "%sring %s, %s, %s", what, RING_WORDS[ring_index(best.ring)], STORE_WORDS[best.store], READ_WORDS[best.read]);
    row.size = o->size;
    row.detail = detail;
    row.variant = name;
    print_row(row, best_result);
}

/* ---- request and reply ---- */

static void echo(void *argument)
{
    struct channel *c = argument;
    struct end in = channel_end(c, &c->there), out = channel_end(c, &c->back);
    struct source source = source_start(c->size, true);
    struct variant v = c->variant;
    uint64_t sum = 0;
    for (;;) {
        while (!ring_try_receive(&in, v.read, &sum))
            if (peer_told_to_stop())
                goto told;
        while (!ring_has_room(&out))
            ;
        ring_send(&out, source_next(&source), v.store);
    }
told:
    shared->received_sum = sum;
    shared->sent_sum = source_sum(c->size, true, out.count);
}

static void finish(struct channel *c, uint64_t sent, uint64_t received_sum)
{
    atomic_store(&shared->stop, true);
    uint64_t sent_sum = source_sum(c->size, false, sent);
    peer_wait();
    peer_compare(sent_sum, received_sum);
}

static struct result round_trips(struct channel *c, const struct options *o, double seconds)
{
    struct end out = channel_end(c, &c->there), in = channel_end(c, &c->back);
    struct source source = source_start(c->size, false);
    struct variant v = c->variant;
    uint64_t sum = 0;
    int batch = o->size <= 1024 ? 64 : 16;
    peer_start(echo, c);
    struct meter meter = meter_start(NS_PER_UNIT, seconds);
    do {
        for (int i = 0; i < batch; i++) {
            while (!ring_has_room(&out))
                ;
            ring_send(&out, source_next(&source), v.store);
            while (!ring_try_receive(&in, v.read, &sum))
                ;
        }
    } while (meter_tick(&meter, batch));
    finish(c, out.count, sum);
    return meter_finish(&meter);
}

static struct result windowed(struct channel *c, const struct options *o, double seconds)
{
    enum { BATCH = 256 };
    struct end out = channel_end(c, &c->there), in = channel_end(c, &c->back);
    struct source source = source_start(c->size, false);
    struct variant v = c->variant;
    uint64_t sum = 0, ticked = 0;
    bool more = true;
    peer_start(echo, c);
    struct meter meter = meter_start(UNITS_PER_SECOND, seconds);
    while (more || in.count < out.count) {
        if (more && out.count - in.count < o->window && ring_has_room(&out))
            ring_send(&out, source_next(&source), v.store);
        while (ring_try_receive(&in, v.read, &sum))
            ;
        if (in.count - ticked >= BATCH) {
            more = more && meter_tick(&meter, (double)(in.count - ticked));
            ticked = in.count;
        }
    }
    finish(c, out.count, sum);
    return meter_finish(&meter);
}

void ring(const struct options *o)
{
    struct channel *c = channel_open(o);
    ring_best(c, o, NS_PER_UNIT, round_trips, (struct row){ .metric = "rtt", .unit = "ns", .system = "ring" }, "");
    peer_end();
}

void two_rings(const struct options *o)
{
    struct channel *c = channel_open(o);
    if (o->window == 1) {
        ring_best(c, o, NS_PER_UNIT, round_trips, (struct row){ .metric = "rtt", .unit = "ns", .system = "ring" }, "two rings, window 1, ");
    } else {
        char what[64];
        snprintf(what, sizeof what, "two rings, window %u, ", o->window);
        ring_best(c, o, UNITS_PER_SECOND, windowed, (struct row){ .metric = "rate", .unit = "1/s", .system = "ring" }, what);
    }
    peer_end();
}
