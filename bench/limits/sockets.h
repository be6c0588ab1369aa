/* What the programs over the kernel's sockets share: moving messages and streams, and the account of datagrams. */
#ifndef LIMITS_SOCKETS_H
#define LIMITS_SOCKETS_H

#include "common.h"

enum { MESSAGE_MAX = 65536, UDP_MAX = 65507 };

/* Fails with errno's cause and the way out. */
void must(bool done, const char *what);
/* Whether errno says that the same call may work later. */
bool again(void);

/* All of it, however often that takes. */
void send_message(int fd, const char *message, size_t n);
/* False at the stream's end, or on an empty datagram, which stands for it. */
bool receive_message(int fd, char *message, size_t n);

/* A stream that is received to its end. Its writer is told to stop, by `stop(argument)`, when the time is up. */
struct stream {
    int fd;
    size_t size; /* of one write */
    double units_per_byte;
    void (*stop)(void *argument);
    void *argument;
    uint64_t sum; /* of all bytes received */
};
struct result stream_receive(struct stream *s, double seconds);

/* Datagrams may be lost: each one that comes tells by its first word which message of the source it is. */
struct tally {
    struct source source;
    uint32_t *hits; /* of each message */
    uint64_t n, sum;
};
struct tally tally_start(size_t size, bool second_half);
/* Reads the datagram and enters it. */
void tally_take(struct tally *t, const char *message, size_t got);
/* After the run: is the sum that of the messages that came? */
void tally_finish(struct tally *t);

#endif
