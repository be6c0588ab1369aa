/* Two cache lines, one per direction, each written by one process and polled by the other: the least a round trip can cost. */
#include "peer.h"

static void echo(void *argument)
{
    (void)argument;
    for (uint64_t i = 1;; i++) {
        while (atomic_load_explicit(&shared->there, memory_order_acquire) != i)
            if (peer_told_to_stop())
                goto told;
        atomic_store_explicit(&shared->back, i, memory_order_release);
    }
told:
    shared->received_sum = shared->sent_sum = 0;
}

static struct result round_trips(double seconds)
{
    enum { BATCH = 64 };
    atomic_store(&shared->there, 0);
    atomic_store(&shared->back, 0);
    peer_start(echo, NULL);
    uint64_t i = 0;
    struct meter meter = meter_start(NS_PER_UNIT, seconds);
    do {
        for (int n = 0; n < BATCH; n++) {
            atomic_store_explicit(&shared->there, ++i, memory_order_release);
            while (atomic_load_explicit(&shared->back, memory_order_acquire) != i)
                ;
        }
    } while (meter_tick(&meter, BATCH));
    atomic_store(&shared->stop, true);
    peer_wait();
    return meter_finish(&meter);
}

double line_ns(void)
{
    return round_trips(0.001).median;
}

void cacheline(const struct options *o)
{
    peer_fork(o);
    struct row row = { .metric = "rtt", .size = 8, .unit = "ns", .system = "cache-line", .detail = "two lines, one per direction" };
    print_row(row, round_trips(o->seconds));
    peer_end();
}
