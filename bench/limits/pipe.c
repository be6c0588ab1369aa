/* One way through a bare ring in shared memory: messages or bytes per second, counted by the receiver. */
#include "ring.h"

#include "peer.h"

static void send_until_stopped(void *argument)
{
    struct channel *c = argument;
    struct end out = channel_end(c, &c->there);
    struct source source = source_start(c->size, false);
    struct variant v = c->variant;
    while (!peer_told_to_stop()) {
        if (ring_has_room(&out))
            ring_send(&out, source_next(&source), v.store);
    }
    shared->sent_count = out.count;
    shared->sent_sum = source_sum(c->size, false, out.count);
    shared->received_sum = 0;
}

static struct result receive(struct channel *c, double seconds, double units_per_message)
{
    struct end in = channel_end(c, &c->there);
    struct variant v = c->variant;
    uint64_t sum = 0;
    int batch = c->size >= 16384 ? 1 : c->size >= 1024 ? 16 : 256; /* reads of the clock must not count */
    peer_start(send_until_stopped, c);
    struct meter meter = meter_start(UNITS_PER_SECOND, seconds);
    do {
        for (int i = 0; i < batch; i++)
            while (!ring_try_receive(&in, v.read, &sum))
                ;
    } while (meter_tick(&meter, batch * units_per_message));
    atomic_store(&shared->stop, true);
    peer_wait();
    while (in.count < shared->sent_count)
        ring_try_receive(&in, v.read, &sum);
    peer_compare(0, sum);
    return meter_finish(&meter);
}

static struct result messages(struct channel *c, const struct options *o, double seconds)
{
    (void)o;
    return receive(c, seconds, 1);
}

static struct result bytes(struct channel *c, const struct options *o, double seconds)
{
    return receive(c, seconds, (double)o->size);
}

void ring_rate(const struct options *o)
{
    struct channel *c = channel_open(o);
    ring_best(c, o, UNITS_PER_SECOND, messages, (struct row){ .metric = "rate", .unit = "1/s", .system = "ring" }, "");
    peer_end();
}

void pipe_bandwidth(const struct options *o)
{
    struct channel *c = channel_open(o);
    ring_best(c, o, UNITS_PER_SECOND, bytes, (struct row){ .metric = "bandwidth", .unit = "B/s", .system = "pipe" }, "");
    peer_end();
}
