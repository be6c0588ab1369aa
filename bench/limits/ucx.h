/* What the two interfaces of UCX share: how the two processes find each other, and the round trip. */
#ifndef LIMITS_UCX_H
#define LIMITS_UCX_H

#include "peer.h"

#include <ucs/type/status.h>

/* Both processes have this number for their handler of active messages. */
enum { AM_ID = 3 };

/* Fails if that is not UCS_OK. */
void must(ucs_status_t status, const char *what);

/* ---- addresses: each process writes its own before it reads the other's ---- */

enum address { ADDRESS_DEVICE, ADDRESS_ENDPOINT, ADDRESSES };

/* Maps where they are written; before the fork. */
void addresses_map(void);
void address_tell(enum address which, const void *address, size_t length);
/* Says that all are told, and waits until the other process does. */
void addresses_wait(void);
const void *address_of_other(enum address which);

/* ---- the round trip ---- */

/* What came to this process: its handler adds to it, and to nothing else. */
struct inbox {
    uint64_t count, sum;
};

typedef void (*send_fn)(const char *message, size_t size);
typedef void (*progress_fn)(void);

/* Both are given as constants to functions that are always inlined, so that no call goes through a pointer. */
#define INLINED static inline __attribute__((always_inline))

INLINED void echo_through(struct inbox *inbox, size_t size, send_fn send, progress_fn progress)
{
    struct source source = source_start(size, true);
    uint64_t answered = 0;
    *inbox = (struct inbox){ 0 };
    for (;; answered++) {
        while (inbox->count == answered) {
            progress();
            if (inbox->count == answered && peer_told_to_stop())
                goto told;
        }
        send(source_next(&source), size);
    }
told:
    shared->received_sum = inbox->sum;
    shared->sent_sum = source_sum(size, true, answered);
}

INLINED struct result round_trips_through(struct inbox *inbox, const struct options *o, send_fn send, progress_fn progress)
{
    struct source source = source_start(o->size, false);
    uint64_t sent = 0;
    int batch = o->size <= 1024 ? 64 : 16;
    *inbox = (struct inbox){ 0 };
    struct meter meter = meter_start(NS_PER_UNIT, o->seconds);
    do {
        for (int i = 0; i < batch; i++) {
            send(source_next(&source), o->size);
            sent++;
            while (inbox->count != sent)
                progress();
        }
    } while (meter_tick(&meter, batch));
    atomic_store(&shared->stop, true);
    uint64_t sent_sum = source_sum(o->size, false, sent);
    peer_wait();
    peer_compare(sent_sum, inbox->sum);
    return meter_finish(&meter);
}

/* ---- the interfaces ---- */

/* One of them, as both processes see it. The functions are jobs: the peer does the first, second and last of them. */
struct interface {
    const char *how, *system;
    void (*open)(void *options);  /* with both addresses told and read; exits if it cannot */
    void (*echo)(void *options);
    struct result (*round_trips)(const struct options *o);
    const char *(*detail)(size_t size); /* NULL: it does not take this size, and has said so */
    void (*close)(void *nothing);
};

extern const struct interface UCP, UCT;

#endif
