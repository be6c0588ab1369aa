/* One core alone: copying messages out of the rotating source, and the speed of the common sum. */
#include "ring.h"

enum { AIM = 65536 }; /* bytes between two reads of the clock */

static struct result copy(const struct options *o, enum store how, char *to)
{
    struct source source = source_start(o->size, false);
    size_t batch = o->size < AIM ? AIM / o->size : 1;
    const char *message = NULL;
    struct meter meter = meter_start(UNITS_PER_SECOND, o->seconds);
    do {
        for (size_t i = 0; i < batch; i++) {
            message = source_next(&source);
            if (how == STORE_MEMCPY)
                memcpy(to, message, o->size);
            else
                copy_lines(to, message, o->size);
            __asm__ volatile("" ::: "memory"); /* every copy counts, not only the last */
        }
    } while (meter_tick(&meter, (double)(batch * o->size)));
    if (sum_bytes(to, o->size) != sum_bytes(message, o->size))
        fail(STATUS_SUM, "the copy differs from its source; the limit program is wrong, do not use its numbers");
    return meter_finish(&meter);
}

void memcpy_bandwidth(const struct options *o)
{
    pin(o->cpu[0]);
    source_map();
    char *to = map(o->size + LINE, false);
    struct result libc = copy(o, STORE_MEMCPY, to), vector = copy(o, STORE_VECTOR, to);
    bool libc_wins = better(UNITS_PER_SECOND, libc.median, vector.median);
    print_row((struct row){ .metric = "bandwidth", .size = o->size, .unit = "B/s", .system = "memcpy",
                            .detail = libc_wins ? "libc memcpy, 64 MiB source" : "vector loop, 64 MiB source" },
              libc_wins ? libc : vector);
}

void sum_bandwidth(const struct options *o)
{
    pin(o->cpu[0]);
    char *bytes = map(o->size, false);
    size_t batch = o->size < AIM ? AIM / o->size : 1;
    volatile uint64_t keep = 0;
    memset(bytes, 1, o->size);
    struct meter meter = meter_start(UNITS_PER_SECOND, o->seconds);
    do {
        for (size_t i = 0; i < batch; i++)
            keep = keep + sum_bytes(bytes, o->size);
    } while (meter_tick(&meter, (double)(batch * o->size)));
    print_row((struct row){ .metric = "bandwidth", .size = o->size, .unit = "B/s", .system = "sum", .detail = "one buffer, in the caches" },
              meter_finish(&meter));
}
