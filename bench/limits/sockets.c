#include "sockets.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

void must(bool done, const char *what)
{
    if (!done)
        fail(STATUS_FAILED, "%s: %s; check `ulimit -n` and that the network is up (`ip link set lo up`)", what, strerror(errno));
}

bool again(void)
{
    return errno == EAGAIN || errno == EINTR || errno == ENOBUFS;
}

void send_message(int fd, const char *message, size_t n)
{
    while (n > 0) {
        ssize_t sent = write(fd, message, n);
        if (sent < 0) {
            must(again(), "cannot send");
            continue;
        }
        message += sent;
        n -= (size_t)sent;
    }
}

bool receive_message(int fd, char *message, size_t n)
{
    while (n > 0) {
        ssize_t got = read(fd, message, n);
        if (got == 0)
            return false;
        if (got < 0) {
            must(again(), "cannot receive");
            continue;
        }
        message += got;
        n -= (size_t)got;
    }
    return true;
}

/* Takes what is there, up to 64 KiB or a message; words may be split between two reads. */
struct result stream_receive(struct stream *s, double seconds)
{
    enum { TICK = 16384, LEAST = 65536 }; /* bytes between two reads of the clock, and of the buffer */
    size_t most = s->size > LEAST ? s->size : LEAST, carried = 0, pending = 0;
    char *buffer = map(most + 8, false);
    bool more = true;
    struct meter meter = meter_start(UNITS_PER_SECOND, seconds);
    for (;;) {
        ssize_t got = read(s->fd, buffer + carried, most);
        if (got == 0)
            break;
        must(got > 0 || again(), "cannot receive");
        if (got < 0)
            continue;
        size_t whole = (carried + (size_t)got) / 8 * 8;
        s->sum += sum_bytes(buffer, whole);
        carried = carried + (size_t)got - whole;
        memmove(buffer, buffer + whole, carried);
        pending += (size_t)got;
        if (more && pending >= TICK) {
            more = meter_tick(&meter, (double)pending * s->units_per_byte);
            pending = 0;
            if (!more)
                s->stop(s->argument);
        }
    }
    return meter_finish(&meter);
}

struct tally tally_start(size_t size, bool second_half)
{
    struct tally t = { .source = source_start(size, second_half) };
    t.hits = calloc(t.source.slots, sizeof *t.hits);
    must(t.hits != NULL, "no memory for the account of datagrams");
    return t;
}

void tally_take(struct tally *t, const char *message, size_t got)
{
    size_t slot = source_slot(t->source.size, message);
    if (got != t->source.size || slot == t->source.slots)
        fail(STATUS_SUM, "a datagram came that was never sent; the limit program is wrong, do not use its numbers");
    t->hits[slot]++;
    t->n++;
    t->sum += sum_bytes(message, got);
}

void tally_finish(struct tally *t)
{
    uint64_t expected = 0;
    for (size_t i = 0; i < t->source.slots; i++)
        if (t->hits[i] > 0)
            expected += t->hits[i] * sum_bytes(t->source.base + i * t->source.stride, t->source.size);
    free(t->hits);
    if (t->sum != expected)
        fail(STATUS_SUM, "sums of the datagrams differ; the limit program is wrong, do not use its numbers");
}
