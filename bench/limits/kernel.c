/* What the kernel's own channels do between the same two processes: pipes, Unix, TCP and UDP sockets on loopback. */
#include "peer.h"
#include "sockets.h"

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/tcp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

enum kind { PIPE, UNIX, TCP, UDP, KINDS };
static const char *const KIND_NAMES[KINDS] = { "pipe", "unix", "tcp", "udp" };

struct end {
    int in, out;
};

struct channel {
    enum kind kind;
    size_t size;
    struct end parent, child;
};

/* ---- opening ---- */

static void loopback_socket(int *fd, struct sockaddr_in *address, int type)
{
    socklen_t length = sizeof *address;
    *address = (struct sockaddr_in){ .sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
    *fd = socket(AF_INET, type, 0);
    must(*fd >= 0 && bind(*fd, (struct sockaddr *)address, sizeof *address) == 0 &&
             getsockname(*fd, (struct sockaddr *)address, &length) == 0, "cannot open a loopback socket");
}

static void open_udp(int fd[2])
{
    struct sockaddr_in address[2];
    for (int i = 0; i < 2; i++)
        loopback_socket(&fd[i], &address[i], SOCK_DGRAM);
    for (int i = 0; i < 2; i++)
        must(connect(fd[i], (struct sockaddr *)&address[!i], sizeof *address) == 0, "cannot connect UDP on loopback");
}

static void open_tcp(int fd[2])
{
    struct sockaddr_in address, mine, theirs;
    socklen_t mine_length = sizeof mine, theirs_length = sizeof theirs;
    int listener, on = 1;
    loopback_socket(&listener, &address, SOCK_STREAM);
    fd[0] = socket(AF_INET, SOCK_STREAM, 0);
    must(fd[0] >= 0 && listen(listener, 1) == 0 && connect(fd[0], (struct sockaddr *)&address, sizeof address) == 0,
         "cannot connect TCP on loopback");
    fd[1] = accept(listener, (struct sockaddr *)&theirs, &theirs_length);
    must(fd[1] >= 0 && getsockname(fd[0], (struct sockaddr *)&mine, &mine_length) == 0, "cannot accept TCP on loopback");
    if (mine.sin_port != theirs.sin_port)
        fail(STATUS_FAILED, "another program connected to our loopback port; run again");
    close(listener);
    for (int i = 0; i < 2; i++)
        must(setsockopt(fd[i], IPPROTO_TCP, TCP_NODELAY, &on, sizeof on) == 0, "cannot set TCP_NODELAY");
}

static struct channel channel_open(enum kind kind, size_t size, bool spin)
{
    struct channel c = { .kind = kind, .size = size };
    int fd[2], back[2];
    if (kind == PIPE) {
        must(pipe(fd) == 0 && pipe(back) == 0, "cannot open pipes");
        c.child.in = fd[0], c.parent.out = fd[1], c.parent.in = back[0], c.child.out = back[1];
    } else {
        if (kind == UNIX)
            must(socketpair(AF_UNIX, SOCK_STREAM, 0, fd) == 0, "cannot open a socket pair");
        else if (kind == TCP)
            open_tcp(fd);
        else
            open_udp(fd);
        c.parent.in = c.parent.out = fd[0];
        c.child.in = c.child.out = fd[1];
    }
    int all[] = { c.parent.in, c.parent.out, c.child.in, c.child.out };
    for (int i = 0; spin && i < 4; i++)
        must(fcntl(all[i], F_SETFL, O_NONBLOCK) == 0, "cannot set O_NONBLOCK");
    return c;
}

static void end_close(struct end e)
{
    close(e.in);
    if (e.out != e.in)
        close(e.out);
}

/* ---- round trips ---- */

static char message[MESSAGE_MAX];

static void echo(void *argument)
{
    struct channel c = *(struct channel *)argument;
    struct source source = source_start(c.size, true);
    uint64_t sum = 0, n = 0;
    end_close(c.parent);
    for (; receive_message(c.child.in, message, c.size); n++) {
        sum += sum_bytes(message, c.size);
        send_message(c.child.out, source_next(&source), c.size);
    }
    shared->received_sum = sum;
    shared->sent_sum = source_sum(c.size, true, n);
}

static struct result round_trips(struct channel *c, double seconds, int batch)
{
    struct source source = source_start(c->size, false);
    uint64_t sum = 0, n = 0;
    end_close(c->child);
    peer_start(echo, c);
    struct meter meter = meter_start(NS_PER_UNIT, seconds);
    do {
        for (int i = 0; i < batch; i++, n++) {
            send_message(c->parent.out, source_next(&source), c->size);
            if (!receive_message(c->parent.in, message, c->size))
                fail(STATUS_FAILED, "the second process closed its end; run again");
            sum += sum_bytes(message, c->size);
        }
    } while (meter_tick(&meter, batch));
    if (c->kind == UDP)
        must(send(c->parent.out, message, 0, 0) == 0, "cannot send the end");
    end_close(c->parent);
    uint64_t sent_sum = source_sum(c->size, false, n);
    peer_wait();
    peer_compare(sent_sum, sum);
    return meter_finish(&meter);
}

/* ---- one way ---- */

static void send_until_stopped(void *argument)
{
    struct channel c = *(struct channel *)argument;
    struct source source = source_start(c.size, false);
    uint64_t n = 0;
    end_close(c.parent);
    for (; !peer_told_to_stop(); n++)
        send_message(c.child.out, source_next(&source), c.size);
    end_close(c.child);
    shared->sent_count = n;
    shared->sent_sum = source_sum(c.size, false, n);
    shared->received_sum = 0;
}

static void stop_peer(void *argument)
{
    (void)argument;
    atomic_store(&shared->stop, true);
}

static struct result receive_stream(struct channel *c, double seconds, double units_per_byte)
{
    struct stream s = { .fd = c->parent.in, .size = c->size, .units_per_byte = units_per_byte, .stop = stop_peer };
    struct result result = stream_receive(&s, seconds);
    peer_wait();
    peer_compare(0, s.sum);
    return result;
}

static struct result receive_datagrams(struct channel *c, double seconds, double units_per_byte, double *lost)
{
    struct tally tally = tally_start(c->size, false);
    bool more = true;
    struct meter meter = meter_start(UNITS_PER_SECOND, seconds);
    for (;;) {
        bool ended = peer_done(); /* asked before the queue: what was sent before is then in it */
        ssize_t got = read(c->parent.in, message, c->size);
        if (got < 0 && ended)
            break;
        /* ECONNREFUSED: the sender has closed its socket */
        must(got >= 0 || again() || errno == ECONNREFUSED, "cannot receive");
        if (got < 0)
            continue;
        tally_take(&tally, message, (size_t)got);
        if (more && tally.n % 8 == 0 && !(more = meter_tick(&meter, 8 * units_per_byte * (double)c->size)))
            atomic_store(&shared->stop, true);
    }
    tally_finish(&tally);
    *lost = 1 - (double)tally.n / (double)shared->sent_count;
    return meter_finish(&meter);
}

/* ---- programs ---- */

static enum kind kind_of(const struct options *o, const char *forms, const char **rest)
{
    for (int k = 0; o->how != NULL && k < KINDS; k++) {
        size_t length = strlen(KIND_NAMES[k]);
        *rest = o->how + length;
        if (strncmp(o->how, KIND_NAMES[k], length) == 0)
            return k;
    }
    fail(STATUS_USAGE, "--how must be pipe, unix, tcp or udp%s", forms);
}

/* Opens the channel where both processes find it, maps the source, forks. */
static struct channel *start(enum kind kind, const struct options *o, bool spin)
{
    if (o->size > MESSAGE_MAX)
        fail(STATUS_USAGE, "--size %zu: the kernel's channels are measured up to 65536 bytes", o->size);
    if (kind == UDP && o->size > UDP_MAX) {
        fprintf(stderr, "limits: skipped: a UDP datagram holds at most 65507 bytes, not %zu\n", o->size);
        exit(0);
    }
    source_map();
    struct channel *c = map(sizeof *c, true);
    *c = channel_open(kind, o->size, spin);
    peer_fork(o);
    return c;
}

void kernel_rtt(const struct options *o)
{
    const char *how;
    enum kind kind = kind_of(o, ", followed by -spin or -block", &how);
    bool spin = strcmp(how, "-spin") == 0;
    if (!spin && strcmp(how, "-block") != 0)
        fail(STATUS_USAGE, "--how %s: end it with -spin or -block", o->how);
    struct channel *c = start(kind, o, spin);
    struct row row = { .metric = "rtt", .size = o->size, .unit = "ns", .line_before = line_ns() };
    struct result result = round_trips(c, o->seconds, spin ? 16 : 4);
    row.line_after = line_ns();
    char system[32];
    snprintf(system, sizeof system, "%s%s", kind == PIPE ? "k" : "", o->how);
    row.system = system;
    row.detail = spin ? "O_NONBLOCK, retried" : "blocking read and write";
    print_row(row, result);
    peer_end();
}

static void one_way(const struct options *o, struct row row, double units_per_byte)
{
    const char *rest;
    enum kind kind = kind_of(o, "", &rest);
    if (*rest != '\0')
        fail(STATUS_USAGE, "--how %s: must be pipe, unix, tcp or udp", o->how);
    struct channel *c = start(kind, o, kind == UDP);
    row.size = o->size;
    row.line_before = line_ns();
    end_close(c->child);
    peer_start(send_until_stopped, c);
    char system[32], detail[64] = "one write per message, blocking";
    snprintf(system, sizeof system, "%s%s-%s", kind == PIPE ? "k" : "", KIND_NAMES[kind], kind == UDP ? "spin" : "stream");
    struct result result;
    if (kind == UDP) {
        double lost;
        result = receive_datagrams(c, o->seconds, units_per_byte, &lost);
        snprintf(detail, sizeof detail, "one write per datagram, %.1f %% lost", 100 * lost);
    } else {
        result = receive_stream(c, o->seconds, units_per_byte);
    }
    row.line_after = line_ns();
    row.system = system;
    row.detail = detail;
    print_row(row, result);
    peer_end();
}

void kernel_rate(const struct options *o)
{
    one_way(o, (struct row){ .metric = "rate", .unit = "1/s" }, 1.0 / (double)o->size);
}

void kernel_bandwidth(const struct options *o)
{
    one_way(o, (struct row){ .metric = "bandwidth", .unit = "B/s" }, 1);
}
