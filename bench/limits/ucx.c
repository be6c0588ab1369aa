/* ucx-read: round trips through UCX whose receivers read every byte, as those of weft and of the limit programs do.
 * UCX's own ucx_perftest sends the same bytes every time and reads next to nothing of them. */
#include "ucx.h"

#include "options.h"

#include <getopt.h>
#include <stdio.h>
#include <string.h>
#include <ucs/config/global_opts.h>

static const char HELP[] =
    "usage: ucx-read --how ucp|uct [options]\n"
    "\n"
    "Round trip of --size bytes through active messages of UCX, over posix shared memory. Both sides read every byte.\n"
    "\n"
    "  --how NAME        ucp: the protocol layer, eager; uct: the transport layer, short or copied in\n"
    "  --size N          bytes of a message, a multiple of 8 (default 64)\n"
    "  --seconds S       0.001 to 5 (default 0.15)\n"
    "  --cpus A,B        CPUs of the two processes (default: the first two allowed)\n"
    "  --help\n"
    "\n"
    "exit status: 1 failed, 2 wrong use or one CPU only, 3 sums differ, 4 no end after 20 s\n";

static const struct interface *interface;

void must(ucs_status_t status, const char *what)
{
    if (status != UCS_OK)
        fail(STATUS_FAILED, "%s cannot %s: %s; does `ucx_info -d` list posix?", interface->how, what, ucs_status_string(status));
}

/* ---- addresses ---- */

enum { ADDRESS_MOST = 4096 };

/* Of one process. */
struct told {
    _Alignas(LINE) atomic_bool all;
    char bytes[ADDRESSES][ADDRESS_MOST];
};

static struct told *told; /* the parent's, the peer's */
static int self;

void addresses_map(void)
{
    told = map(2 * sizeof *told, true);
}

void address_tell(enum address which, const void *address, size_t length)
{
    if (length > ADDRESS_MOST)
        fail(STATUS_FAILED, "UCX has an address of %zu bytes, and there is room for %d", length, ADDRESS_MOST);
    memcpy(told[self].bytes[which], address, length);
}

void addresses_wait(void)
{
    atomic_store_explicit(&told[self].all, true, memory_order_release);
    while (!atomic_load_explicit(&told[1 - self].all, memory_order_acquire))
        ;
}

const void *address_of_other(enum address which)
{
    return told[1 - self].bytes[which];
}

/* ---- the program ---- */

/* After the parent's part, so that what fails on both sides is told once. */
static void open_theirs(void *options)
{
    self = 1;
    while (!atomic_load_explicit(&told[0].all, memory_order_acquire))
        ;
    interface->open(options);
}

/* What UCX holds must be made after the fork: its contexts are of one process. */
static void measure(struct options *o)
{
    source_map();
    addresses_map();
    peer_fork(o);
    peer_start(open_theirs, o);
    interface->open(o);
    peer_wait();
    struct row row = { .metric = "rtt", .size = o->size, .unit = "ns", .system = interface->system, .detail = interface->detail(o->size) };
    if (row.detail != NULL) {
        row.line_before = line_ns();
        peer_start(interface->echo, o);
        struct result result = interface->round_trips(o);
        row.line_after = line_ns();
        print_row(row, result);
    }
    peer_start(interface->close, NULL);
    interface->close(NULL);
    peer_wait();
    peer_end();
}

int main(int argc, char **argv)
{
    struct options o = options_read(argc, argv, HELP);
    static const struct interface *const ALL[] = { &UCP, &UCT };
    for (size_t i = 0; o.how != NULL && i < sizeof ALL / sizeof *ALL; i++)
        if (strcmp(ALL[i]->how, o.how) == 0)
            interface = ALL[i];
    if (optind != argc || interface == NULL)
        fail(STATUS_USAGE, "say --how ucp or --how uct, and nothing that is no option; see `ucx-read --help`");
    options_settle(&o, 64);
    ucs_global_opts_set_value("LOG_LEVEL", "error"); /* the environment is read by now */
    measure(&o);
    return 0;
}
