/*
 * The kernel's channels between two hosts, or two network namespaces. Each side is a process that somebody starts there:
 * one listens, the other connects and measures. They share no memory; beside the measured socket they have a TCP
 * connection, which is silent during the run: by it the listener is told to stop, and tells its account.
 */
#include "peer.h"
#include "sockets.h"

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <netinet/tcp.h>
#include <netinet/udp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

enum {
    LOOK_EVERY = 4096,           /* empty looks at a socket between two at the control connection or the clock */
    LOST_NS = 20000000,          /* a datagram that is not answered by then is taken for lost */
    CONNECT_US = 5000, /* between two attempts to connect */
    CONNECT_ATTEMPTS = 1000,
    BUFFER_BYTES = 4 << 20, /* of a socket that receives datagrams */
    DATAGRAMS = 64,         /* of one sendmmsg or recvmmsg */
    SEGMENTS_MOST = 64,     /* of one send with segmentation offload: UDP_MAX_SEGMENTS of the older kernels */
    LONE_MOST = 4096,
};

/* What a side has of the other one. */
struct link {
    int control, data;
    bool spin;
};

/* What the listener tells at the end. */
struct account {
    uint64_t received, received_sum, sent, sent_sum;
};

static char message[MESSAGE_MAX];

/* ---- opening ---- */

static struct sockaddr_in address_of(const char *text, unsigned port)
{
    struct sockaddr_in address = { .sin_family = AF_INET, .sin_port = htons((uint16_t)port) };
    if (inet_pton(AF_INET, text, &address.sin_addr) != 1)
        fail(STATUS_USAGE, "`%s` is no IPv4 address; give one as in --listen 10.0.0.1", text);
    return address;
}

static int bound(int type, struct sockaddr_in address)
{
    int on = 1, fd = socket(AF_INET, type, 0);
    must(fd >= 0 && setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on) == 0, "cannot open a socket");
    must(bind(fd, (struct sockaddr *)&address, sizeof address) == 0, "cannot take the address and port of this side");
    return fd;
}

static void no_delay(int fd)
{
    int on = 1;
    must(setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on) == 0, "cannot set TCP_NODELAY");
}

/* A spinning socket never waits; a blocking one that carries datagrams wakes up now and then to see whether it is over. */
static void set_waiting(struct link *l, int type)
{
    struct timeval lost = { .tv_usec = LOST_NS / 1000 };
    int bytes = BUFFER_BYTES;
    if (l->spin)
        must(fcntl(l->data, F_SETFL, O_NONBLOCK) == 0, "cannot set O_NONBLOCK");
    if (type == SOCK_STREAM) {
        no_delay(l->data);
        return;
    }
    must(setsockopt(l->data, SOL_SOCKET, SO_RCVTIMEO, &lost, sizeof lost) == 0, "cannot set SO_RCVTIMEO");
    if (setsockopt(l->data, SOL_SOCKET, SO_RCVBUFFORCE, &bytes, sizeof bytes) != 0) /* needs root; else what is allowed */
        must(setsockopt(l->data, SOL_SOCKET, SO_RCVBUF, &bytes, sizeof bytes) == 0, "cannot set SO_RCVBUF");
}

static struct link link_listen(const struct options *o, int type, bool spin)
{
    struct sockaddr_in address = address_of(o->listen, o->port), peer;
    socklen_t length = sizeof peer;
    struct link l = { .spin = spin };
    if (type == SOCK_DGRAM)
        l.data = bound(SOCK_DGRAM, address);
    int listener = bound(SOCK_STREAM, address);
    must(listen(listener, 2) == 0, "cannot listen");
    l.control = accept(listener, (struct sockaddr *)&peer, &length);
    must(l.control >= 0, "cannot accept");
    if (type == SOCK_STREAM) {
        l.data = accept(listener, NULL, NULL);
        must(l.data >= 0, "cannot accept");
    } else {
        if (!receive_message(l.control, (char *)&peer.sin_port, sizeof peer.sin_port))
            fail(STATUS_FAILED, "the other side went away; look at what it said");
        must(connect(l.data, (struct sockaddr *)&peer, sizeof peer) == 0, "cannot connect UDP");
    }
    close(listener);
    no_delay(l.control);
    set_waiting(&l, type);
    send_message(l.control, "", 1);
    return l;
}

static int connected(struct sockaddr_in address)
{
    for (int i = 0; i < CONNECT_ATTEMPTS; i++) {
        int fd = socket(AF_INET, SOCK_STREAM, 0);
        must(fd >= 0, "cannot open a socket");
        if (connect(fd, (struct sockaddr *)&address, sizeof address) == 0)
            return fd;
        must(errno == ECONNREFUSED, "cannot connect to the other side");
        close(fd);
        usleep(CONNECT_US);
    }
    fail(STATUS_FAILED, "nobody listens there; start the other side with --listen first");
}

static struct link link_connect(const struct options *o, int type, bool spin)
{
    struct sockaddr_in address = address_of(o->connect, o->port), mine;
    socklen_t length = sizeof mine;
    struct link l = { .spin = spin, .control = connected(address) };
    no_delay(l.control);
    if (type == SOCK_STREAM) {
        l.data = connected(address);
    } else {
        must(getsockname(l.control, (struct sockaddr *)&mine, &length) == 0, "cannot ask for this side's address");
        mine.sin_port = 0;
        l.data = bound(SOCK_DGRAM, mine);
        must(connect(l.data, (struct sockaddr *)&address, sizeof address) == 0 &&
                 getsockname(l.data, (struct sockaddr *)&mine, &length) == 0, "cannot connect UDP");
        send_message(l.control, (const char *)&mine.sin_port, sizeof mine.sin_port);
    }
    set_waiting(&l, type);
    char ready;
    if (!receive_message(l.control, &ready, 1))
        fail(STATUS_FAILED, "the listening side ended; look at what it said");
    return l;
}

/* ---- the control connection ---- */

/* A byte lies there, or the end of the connection. */
static bool control_speaks(const struct link *l)
{
    char byte;
    return recv(l->control, &byte, 1, MSG_PEEK | MSG_DONTWAIT) >= 0;
}

static void tell_to_stop(void *link)
{
    send_message(((struct link *)link)->control, "", 1);
}

static struct account hear_account(struct link *l)
{
    struct account account;
    if (!receive_message(l->control, (char *)&account, sizeof account))
        fail(STATUS_FAILED, "the listening side ended; look at what it said");
    return account;
}

static void expect_other_side(const struct link *l)
{
    if (control_speaks(l))
        fail(STATUS_FAILED, "the listening side ended; look at what it said");
}

static void compare(uint64_t sent, uint64_t received)
{
    if (sent != received)
        fail(STATUS_SUM, "sums differ: sent %016" PRIx64 ", received %016" PRIx64 "; the limit program is wrong, do not use its numbers",
             sent, received);
}

/* ---- datagrams ---- */

/* Refused: the other side has closed its socket, which the control connection tells as well. */
static void send_datagram(const struct link *l, const char *from, size_t n)
{
    while (send(l->data, from, n, 0) < 0)
        if (!again()) {
            must(errno == ECONNREFUSED, "cannot send");
            return;
        }
}

/* Below 0 if there is none at the moment. */
static ssize_t receive_datagram(const struct link *l, size_t n)
{
    ssize_t got = recv(l->data, message, n, l->spin ? MSG_DONTWAIT : 0);
    must(got >= 0 || again() || errno == ECONNREFUSED, "cannot receive");
    return got;
}

/* ---- round trips ---- */

static struct account echo_datagrams(struct link *l, size_t size)
{
    struct tally tally = tally_start(size, false);
    struct source source = source_start(size, true);
    for (unsigned idle = 0;;) {
        ssize_t got = receive_datagram(l, size);
        if (got >= 0) {
            tally_take(&tally, message, (size_t)got);
            send_datagram(l, source_next(&source), size);
        } else if ((!l->spin || ++idle % LOOK_EVERY == 0) && control_speaks(l)) {
            break;
        }
    }
    tally_finish(&tally);
    return (struct account){ .received = tally.n };
}

/* Waits for the answer; false if it is taken for lost. */
static bool await_datagram(const struct link *l, struct tally *tally, size_t size)
{
    uint64_t end = 0;
    for (unsigned idle = 1;; idle++) {
        ssize_t got = receive_datagram(l, size);
        if (got >= 0) {
            tally_take(tally, message, (size_t)got);
            return true;
        }
        if (l->spin && idle % LOOK_EVERY != 0)
            continue;
        expect_other_side(l);
        if (!l->spin)
            return false;
        uint64_t now = now_ns();
        end = end == 0 ? now + LOST_NS : end;
        if (now > end)
            return false;
    }
}

/* After a loss: answers that come late must not be taken for those of later requests. */
static void drain_datagrams(const struct link *l, struct tally *tally, size_t size)
{
    usleep(LOST_NS / 1000);
    ssize_t got;
    while ((got = recv(l->data, message, size, MSG_DONTWAIT)) >= 0)
        tally_take(tally, message, (size_t)got);
}

static struct result trips_of_datagrams(struct link *l, const struct options *o, int batch, uint64_t *lost)
{
    struct tally tally = tally_start(o->size, true);
    struct source source = source_start(o->size, false);
    struct meter meter = meter_start(NS_PER_UNIT, o->seconds);
    do {
        for (int i = 0; i < batch; i++) {
            send_datagram(l, source_next(&source), o->size);
            if (!await_datagram(l, &tally, o->size)) {
                ++*lost;
                drain_datagrams(l, &tally, o->size);
            }
        }
    } while (meter_tick(&meter, batch));
    tell_to_stop(l);
    hear_account(l);
    tally_finish(&tally);
    return meter_finish(&meter);
}

static struct account echo_stream(struct link *l, size_t size)
{
    struct source source = source_start(size, true);
    uint64_t sum = 0, n = 0;
    for (; receive_message(l->data, message, size); n++) {
        sum += sum_bytes(message, size);
        send_message(l->data, source_next(&source), size);
    }
    return (struct account){ n, sum, n, source_sum(size, true, n) };
}

static struct result trips_of_stream(struct link *l, const struct options *o, int batch)
{
    struct source source = source_start(o->size, false);
    uint64_t sum = 0, n = 0;
    struct meter meter = meter_start(NS_PER_UNIT, o->seconds);
    do {
        for (int i = 0; i < batch; i++, n++) {
            send_message(l->data, source_next(&source), o->size);
            if (!receive_message(l->data, message, o->size))
                fail(STATUS_FAILED, "the listening side closed its end; look at what it said");
            sum += sum_bytes(message, o->size);
        }
    } while (meter_tick(&meter, batch));
    close(l->data);
    struct account account = hear_account(l);
    compare(source_sum(o->size, false, n), account.received_sum);
    compare(account.sent_sum, sum);
    return meter_finish(&meter);
}

/* ---- datagrams one way, many with each call ---- */

static struct account send_datagrams(struct link *l, size_t size)
{
    struct source source = source_start(size, false);
    struct iovec parts[DATAGRAMS];
    struct mmsghdr list[DATAGRAMS] = { 0 };
    uint64_t n = 0;
    for (int i = 0; i < DATAGRAMS; i++)
        list[i].msg_hdr = (struct msghdr){ .msg_iov = &parts[i], .msg_iovlen = 1 };
    while (!control_speaks(l)) {
        for (int i = 0; i < DATAGRAMS; i++)
            parts[i] = (struct iovec){ (void *)source_next(&source), size };
        for (int i = 0; i < DATAGRAMS;) {
            int sent = sendmmsg(l->data, list + i, (unsigned)(DATAGRAMS - i), 0);
            must(sent >= 0 || again() || errno == ECONNREFUSED, "cannot send");
            i += sent > 0 ? sent : 0;
        }
        n += DATAGRAMS;
    }
    return (struct account){ .sent = n };
}

/* Takes what there is. Gives the number of datagrams. */
static unsigned take_datagrams(const struct link *l, struct tally *tally, size_t size)
{
    struct iovec parts[DATAGRAMS];
    struct mmsghdr list[DATAGRAMS] = { 0 };
    for (int i = 0; i < DATAGRAMS; i++) {
        parts[i] = (struct iovec){ message + (size_t)i * size, size };
        list[i].msg_hdr = (struct msghdr){ .msg_iov = &parts[i], .msg_iovlen = 1 };
    }
    int got = recvmmsg(l->data, list, DATAGRAMS, MSG_DONTWAIT, NULL);
    must(got >= 0 || again() || errno == ECONNREFUSED, "cannot receive");
    for (int i = 0; i < got; i++)
        tally_take(tally, parts[i].iov_base, list[i].msg_len);
    return got > 0 ? (unsigned)got : 0;
}

/* ---- a stream of datagrams, cut up by the kernel or the network card and put together again ---- */

/* Bytes of one datagram: as many as the network takes, and whole lines of the source, so that a burst is contiguous in it. */
static size_t segment_bytes(const struct link *l)
{
    enum { HEADERS = 28 };
    int mtu = 0;
    socklen_t length = sizeof mtu;
    must(getsockopt(l->data, IPPROTO_IP, IP_MTU, &mtu, &length) == 0, "cannot ask for the MTU");
    size_t most = (size_t)mtu - HEADERS < UDP_MAX ? (size_t)mtu - HEADERS : UDP_MAX;
    return most / LINE * LINE;
}

static size_t burst_segments(size_t segment)
{
    size_t n = UDP_MAX / segment;
    return n < SEGMENTS_MOST ? n : SEGMENTS_MOST;
}

static struct account send_bursts(struct link *l)
{
    int segment = (int)segment_bytes(l);
    struct source source = source_start((size_t)segment, false);
    size_t most = burst_segments(source.size), at = 0;
    uint64_t n = 0;
    must(setsockopt(l->data, SOL_UDP, UDP_SEGMENT, &segment, sizeof segment) == 0,
         "no segmentation offload for UDP (Linux has it from 4.18 on)");
    while (!control_speaks(l)) {
        for (int i = 0; i < 4; i++) {
            size_t burst = most < source.slots - at ? most : source.slots - at;
            send_datagram(l, source.base + at * source.stride, burst * source.size);
            n += burst;
            at = at + burst == source.slots ? 0 : at + burst;
        }
    }
    return (struct account){ .sent = n };
}

/* Takes one burst, or a part of it. Gives the number of datagrams. */
static unsigned take_burst(const struct link *l, struct tally *tally)
{
    char space[CMSG_SPACE(sizeof(int))];
    struct iovec part = { message, sizeof message };
    struct msghdr header = { .msg_iov = &part, .msg_iovlen = 1, .msg_control = space, .msg_controllen = sizeof space };
    ssize_t got = recvmsg(l->data, &header, MSG_DONTWAIT);
    must(got >= 0 || again() || errno == ECONNREFUSED, "cannot receive");
    if (got <= 0)
        return 0;
    int segment = (int)got;
    for (struct cmsghdr *c = CMSG_FIRSTHDR(&header); c != NULL; c = CMSG_NXTHDR(&header, c))
        if (c->cmsg_level == SOL_UDP && c->cmsg_type == UDP_GRO)
            memcpy(&segment, CMSG_DATA(c), sizeof segment);
    unsigned n = 0;
    for (size_t at = 0; at < (size_t)got; at += (size_t)segment, n++) {
        size_t rest = (size_t)got - at;
        tally_take(tally, message + at, rest < (size_t)segment ? rest : (size_t)segment);
    }
    return n;
}

/* Receives datagrams of `size` until the time is up, then what is still under way. With `offload`, bursts of them. */
static struct result receive_datagrams(struct link *l, double seconds, size_t size, bool offload, double units, double *lost)
{
    int on = 1;
    if (offload)
        must(setsockopt(l->data, SOL_UDP, UDP_GRO, &on, sizeof on) == 0,
             "no receive offload for UDP (Linux has it from 5.0 on)");
    struct tally tally = tally_start(size, false);
    bool more = true;
    unsigned idle = 0;
    struct meter meter = meter_start(UNITS_PER_SECOND, seconds);
    for (;;) {
        bool ended = !more && control_speaks(l); /* asked before the queue: what was sent before is then in it */
        unsigned got = offload ? take_burst(l, &tally) : take_datagrams(l, &tally, size);
        if (got == 0 && ended)
            break;
        if (got == 0 && more && ++idle % LOOK_EVERY == 0)
            expect_other_side(l);
        bool look = got > 0 || idle % LOOK_EVERY == 0; /* the time passes too when nothing comes */
        if (more && look && !(more = meter_tick(&meter, got * units)))
            tell_to_stop(l);
    }
    struct account account = hear_account(l);
    tally_finish(&tally);
    *lost = 1 - (double)tally.n / (double)account.sent;
    return meter_finish(&meter);
}

static struct account send_stream(struct link *l, size_t size)
{
    struct source source = source_start(size, false);
    uint64_t n = 0;
    for (; n % 16 != 0 || !control_speaks(l); n++)
        send_message(l->data, source_next(&source), size);
    close(l->data);
    return (struct account){ .sent = n, .sent_sum = source_sum(size, false, n) };
}

/* ---- a lone message, behind which its sender computes ---- */

/* Both sides must share a clock: two network namespaces of one host do. */
struct lone {
    uint64_t sent_ns, number;
};

static void compute(uint64_t ns)
{
    volatile uint64_t x = 1;
    for (uint64_t end = now_ns() + ns; now_ns() < end;)
        for (int i = 0; i < 1000; i++)
            x = x * 5 + 1;
}

static void receive_lone(struct link *l)
{
    static double taken[LONE_MOST];
    uint64_t n = 0;
    for (unsigned idle = 0;;) {
        if (receive_datagram(l, sizeof(struct lone)) >= 0) {
            struct lone lone;
            memcpy(&lone, message, sizeof lone);
            if (lone.number > 0 && n < LONE_MOST) /* number 0 warms up */
                taken[n++] = (double)(now_ns() - lone.sent_ns);
        } else if (++idle % LOOK_EVERY == 0 && control_speaks(l)) {
            break;
        }
    }
    send_message(l->control, (const char *)&n, sizeof n);
    send_message(l->control, (const char *)taken, n * sizeof *taken);
}

static struct result send_lone(struct link *l, const struct options *o)
{
    uint64_t count = (uint64_t)(o->seconds / o->pause), n = 0;
    count = count < 1 ? 1 : count < LONE_MOST ? count : LONE_MOST;
    for (uint64_t i = 0; i <= count; i++) {
        struct lone lone = { now_ns(), i };
        send_datagram(l, (const char *)&lone, sizeof lone);
        compute((uint64_t)(o->pause * 1e9));
        expect_other_side(l);
    }
    tell_to_stop(l);
    struct meter meter = meter_start(NS_PER_UNIT, o->seconds);
    bool whole = receive_message(l->control, (char *)&n, sizeof n) && n <= LONE_MOST &&
                 receive_message(l->control, (char *)meter.samples, n * sizeof *meter.samples);
    if (!whole || n == 0)
        fail(STATUS_FAILED, "no datagram arrived; run again");
    meter.n = n;
    meter.total_units = (double)n;
    for (size_t i = 0; i < n; i++)
        meter.total_ns += meter.samples[i];
    return meter_finish(&meter);
}

/* ---- programs ---- */

/* Prepares this side. Leaves the listener's account of its work to the caller. */
static struct link open_link(const struct options *o, int type, bool spin)
{
    if ((o->listen == NULL) == (o->connect == NULL))
        fail(STATUS_USAGE, "say which side this is: --listen ADDRESS there, then --connect ADDRESS here");
    if (o->size > MESSAGE_MAX)
        fail(STATUS_USAGE, "--size %zu: sockets are measured up to 65536 bytes", o->size);
    peer_watch();
    pin(o->cpu[o->listen != NULL]);
    source_map();
    return o->listen != NULL ? link_listen(o, type, spin) : link_connect(o, type, spin);
}

static void tell(struct link *l, struct account account)
{
    send_message(l->control, (const char *)&account, sizeof account);
}

static bool is(const struct options *o, const char *how)
{
    return o->how != NULL && strcmp(o->how, how) == 0;
}

void host_rtt(const struct options *o)
{
    bool tcp = is(o, "tcp-spin") || is(o, "tcp-block"), spin = is(o, "tcp-spin") || is(o, "udp-spin");
    if (!tcp && !spin && !is(o, "udp-block"))
        fail(STATUS_USAGE, "--how must be udp-spin, udp-block, tcp-spin or tcp-block");
    if (!tcp && o->size > UDP_MAX)
        fail(STATUS_USAGE, "--size %zu: a UDP datagram holds at most 65507 bytes", o->size);
    struct link l = open_link(o, tcp ? SOCK_STREAM : SOCK_DGRAM, spin);
    if (o->listen != NULL) {
        tell(&l, tcp ? echo_stream(&l, o->size) : echo_datagrams(&l, o->size));
        return;
    }
    uint64_t lost = 0;
    int batch = spin ? 16 : 4;
    struct result result = tcp ? trips_of_stream(&l, o, batch) : trips_of_datagrams(&l, o, batch, &lost);
    char detail[96];
    snprintf(detail, sizeof detail, "%s%s, %" PRIu64 " lost", tcp ? "TCP_NODELAY, " : "",
             spin ? "never waits in the kernel" : "sleeps in the kernel", lost);
    print_row((struct row){ .metric = "rtt", .size = o->size, .unit = "ns", .system = o->how, .detail = detail }, result);
}

void host_rate(const struct options *o)
{
    if (!is(o, "udp") || o->size * DATAGRAMS > MESSAGE_MAX)
        fail(STATUS_USAGE, "--how must be udp, and --size at most %d", MESSAGE_MAX / DATAGRAMS);
    struct link l = open_link(o, SOCK_DGRAM, o->connect != NULL);
    if (o->listen != NULL) {
        tell(&l, send_datagrams(&l, o->size));
        return;
    }
    double lost;
    struct result result = receive_datagrams(&l, o->seconds, o->size, false, 1, &lost);
    char detail[96];
    snprintf(detail, sizeof detail, "sendmmsg and recvmmsg of up to %d, %.1f %% lost", DATAGRAMS, 100 * lost);
    print_row((struct row){ .metric = "rate", .size = o->size, .unit = "1/s", .system = "udp-mmsg", .detail = detail }, result);
}

static void bandwidth_of_datagrams(const struct options *o)
{
    struct link l = open_link(o, SOCK_DGRAM, o->connect != NULL);
    if (o->listen != NULL) {
        tell(&l, send_bursts(&l));
        return;
    }
    double lost;
    size_t segment = segment_bytes(&l);
    struct result result = receive_datagrams(&l, o->seconds, segment, true, (double)segment, &lost);
    char detail[96];
    snprintf(detail, sizeof detail, "bursts of %zu datagrams of %zu B, %.1f %% lost", burst_segments(segment), segment, 100 * lost);
    print_row((struct row){ .metric = "bandwidth", .size = o->size, .unit = "B/s", .system = "udp-offload", .detail = detail }, result);
}

static void bandwidth_of_stream(const struct options *o)
{
    struct link l = open_link(o, SOCK_STREAM, o->connect != NULL);
    if (o->listen != NULL) {
        tell(&l, send_stream(&l, o->size));
        return;
    }
    struct stream s = { .fd = l.data, .size = o->size, .units_per_byte = 1, .stop = tell_to_stop, .argument = &l };
    struct result result = stream_receive(&s, o->seconds);
    compare(hear_account(&l).sent_sum, s.sum);
    print_row((struct row){ .metric = "bandwidth", .size = o->size, .unit = "B/s", .system = "tcp-stream",
                            .detail = "one write per message, the receiver never waits in the kernel" }, result);
}

void host_bandwidth(const struct options *o)
{
    if (is(o, "udp"))
        bandwidth_of_datagrams(o);
    else if (is(o, "tcp"))
        bandwidth_of_stream(o);
    else
        fail(STATUS_USAGE, "--how must be udp or tcp");
}

void host_lone(const struct options *o)
{
    struct link l = open_link(o, SOCK_DGRAM, o->listen != NULL);
    if (o->listen != NULL) {
        receive_lone(&l);
        return;
    }
    struct result result = send_lone(&l, o);
    char detail[96];
    snprintf(detail, sizeof detail, "one way, behind it %.0f ms of computing", o->pause * 1e3);
    print_row((struct row){ .metric = "lone", .size = sizeof(struct lone), .unit = "ns", .system = "udp-spin", .detail = detail }, result);
}
