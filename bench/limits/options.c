#include "options.h"

#include <ctype.h>
#include <errno.h>
#include <getopt.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>

static unsigned long number(const char *text, const char *option, unsigned long least, unsigned long most)
{
    char *end;
    unsigned long n = strtoul(text, &end, 10);
    if (!isdigit((unsigned char)*text) || *end != '\0' || n < least || n > most)
        fail(STATUS_USAGE, "--%s %s: give a whole number from %lu to %lu", option, text, least, most);
    return n;
}

static double seconds(const char *text, const char *option)
{
    char *end;
    double s = strtod(text, &end);
    if (end == text || *end != '\0' || !(s >= 0.001 && s <= 5))
        fail(STATUS_USAGE, "--%s %s: give a number from 0.001 to 5", option, text);
    return s;
}

static void cpus(const char *text, int cpu[2])
{
    char rest;
    if (sscanf(text, "%d,%d%c", &cpu[0], &cpu[1], &rest) != 2 || cpu[0] == cpu[1] || cpu[0] < 0 || cpu[1] < 0 ||
        cpu[0] >= CPU_SETSIZE || cpu[1] >= CPU_SETSIZE)
        fail(STATUS_USAGE, "--cpus %s: give the numbers of two different CPUs, as in --cpus 0,1", text);
}

static void first_two_cpus(int cpu[2])
{
    cpu_set_t set;
    int found = 0;
    if (sched_getaffinity(0, sizeof set, &set) != 0)
        fail(STATUS_FAILED, "cannot ask which CPUs are allowed; name two with --cpus A,B");
    for (int i = 0; i < CPU_SETSIZE && found < 2; i++)
        if (CPU_ISSET(i, &set))
            cpu[found++] = i;
    if (found < 2)
        fail(STATUS_USAGE, "only one CPU is available, two processes need two; give the machine a second one or widen `taskset`");
}

struct options options_read(int argc, char **argv, const char *help)
{
    static const struct option OPTIONS[] = {
        { "size", required_argument, NULL, 'n' },   { "seconds", required_argument, NULL, 's' },
        { "cpus", required_argument, NULL, 'c' },   { "window", required_argument, NULL, 'w' },
        { "how", required_argument, NULL, 'k' },    { "variant", required_argument, NULL, 'v' },
        { "listen", required_argument, NULL, 'l' }, { "connect", required_argument, NULL, 't' },
        { "port", required_argument, NULL, 'p' },   { "pause", required_argument, NULL, 'z' },
        { "help", no_argument, NULL, 'h' },         { 0 },
    };
    struct options o = { .seconds = 0.15, .window = 1, .cpu = { -1, -1 }, .port = 7117, .pause = 1 };
    int option;
    while ((option = getopt_long(argc, argv, "h", OPTIONS, NULL)) != -1) {
        switch (option) {
        case 'n': o.size = number(optarg, "size", 8, 2 << 20); break;
        case 's': o.seconds = seconds(optarg, "seconds"); break;
        case 'c': cpus(optarg, o.cpu); break;
        case 'w': o.window = (unsigned)number(optarg, "window", 1, 1024); break;
        case 'k': o.how = optarg; break;
        case 'v': o.variant = optarg; break;
        case 'l': o.listen = optarg; break;
        case 't': o.connect = optarg; break;
        case 'p': o.port = (unsigned)number(optarg, "port", 1, 65535); break;
        case 'z': o.pause = seconds(optarg, "pause"); break;
        case 'h': fputs(help, stdout); exit(0);
        default: fail(STATUS_USAGE, "see `%s --help`", program_invocation_short_name);
        }
    }
    return o;
}

void options_settle(struct options *o, size_t usual_size)
{
    if (o->size == 0)
        o->size = usual_size;
    if (o->size % 8 != 0)
        fail(STATUS_USAGE, "--size %zu: give a multiple of 8", o->size);
    if (o->cpu[0] < 0)
        first_two_cpus(o->cpu);
}
