/* limits: what this machine and its kernel can do. One JSON object per line; see README.md. */
#include "options.h"

#include <getopt.h>
#include <stdio.h>
#include <string.h>

static const char HELP[] =
    "usage: limits WHAT [options]\n"
    "\n"
    "WHAT\n"
    "  cache-line        round trip of two cache lines, one per direction\n"
    "  ring              round trip of --size bytes through bare rings, best variant\n"
    "  two-rings         request and reply through two bare rings; --window 32 for the rate\n"
    "  ring-rate         one-way messages per second through a bare ring, best variant\n"
    "  pipe-bandwidth    one-way bytes per second through a bare ring, best variant\n"
    "  memcpy            one core copying out of a 64 MiB source\n"
    "  sum               one core adding up with the function that all receivers use\n"
    "  kernel            round trip; --how pipe-spin|pipe-block|unix-...|tcp-...|udp-...\n"
    "  kernel-rate       one-way messages per second; --how pipe|unix|tcp|udp\n"
    "  kernel-bandwidth  one-way bytes per second; --how pipe|unix|tcp|udp\n"
    "  host-rtt          between hosts, one process on each: round trip; --how udp-spin|udp-block|tcp-...\n"
    "  host-rate         likewise, one-way datagrams per second with sendmmsg; --how udp\n"
    "  host-bandwidth    likewise, one-way bytes per second; --how udp (segmentation offload) or tcp\n"
    "  host-lone         likewise, one datagram's way while its sender computes; both on one clock; --how udp\n"
    "\n"
    "options\n"
    "  --size N          bytes of a message, a multiple of 8 (default 16; memcpy, sum and bandwidths 65536)\n"
    "  --seconds S       per measurement, 0.001 to 5 (default 0.15); screening takes about as long again\n"
    "  --cpus A,B        CPUs of the two processes (default: the first two allowed)\n"
    "  --window N        two-rings: requests outstanding (default 1)\n"
    "  --how NAME        kernel and host programs: the channel\n"
    "  --listen ADDRESS  host programs: the side that is started first; its own IPv4 address\n"
    "  --connect ADDRESS host programs: the side that measures and prints; the other's address\n"
    "  --port N          host programs: TCP and UDP port of the listening side (default 7117)\n"
    "  --pause S         host-lone: computing behind each message, 0.001 to 5 s (default 1)\n"
    "  --variant R,S,T   ring programs: this variant only, no screening;\n"
    "                    R: 64K 256K 1M 2M 8M; S (stores): memcpy vector nt early early-nt ahead;\n"
    "                    T (reads): memcpy vector place vector-prefetch prefetch\n"
    "  --help\n"
    "\n"
    "exit status: 1 failed, 2 wrong use or one CPU only, 3 sums differ, 4 no end after 20 s\n";

static const struct program {
    const char *name;
    void (*run)(const struct options *o);
    size_t size;
} PROGRAMS[] = {
    { "cache-line", cacheline, 8 },
    { "ring", ring, 16 },
    { "two-rings", two_rings, 16 },
    { "ring-rate", ring_rate, 16 },
    { "pipe-bandwidth", pipe_bandwidth, 65536 },
    { "memcpy", memcpy_bandwidth, 65536 },
    { "sum", sum_bandwidth, 65536 },
    { "kernel", kernel_rtt, 16 },
    { "kernel-rate", kernel_rate, 16 },
    { "kernel-bandwidth", kernel_bandwidth, 65536 },
    { "host-rtt", host_rtt, 16 },
    { "host-rate", host_rate, 16 },
    { "host-bandwidth", host_bandwidth, 65536 },
    { "host-lone", host_lone, 16 },
};

static const struct program *program_named(const char *name)
{
    for (size_t i = 0; i < sizeof PROGRAMS / sizeof *PROGRAMS; i++)
        if (strcmp(PROGRAMS[i].name, name) == 0)
            return &PROGRAMS[i];
    fail(STATUS_USAGE, "there is no `%s`; see `limits --help`", name);
}

int main(int argc, char **argv)
{
    struct options o = options_read(argc, argv, HELP);
    if (optind + 1 != argc)
        fail(STATUS_USAGE, "name one program; see `limits --help`");
    const struct program *program = program_named(argv[optind]);
    options_settle(&o, program->size);
    program->run(&o);
    return 0;
}
