/* Measures what an MPI costs between two ranks: measure CPU,CPU MILLISECONDS METRIC:SIZE...
 *
 * Rank 0 prints "library VERSION" first. Before each measurement it prints "begin METRIC SIZE", and behind it "result METRIC SIZE
 * MEDIAN P99 MEAN SAMPLES" in one line, in nanoseconds, bytes per second, or messages per second. At the end it prints "end".
 * `weft bench mpi` builds and runs this, and reads that.
 *
 * Each message has a number at both ends, which its receiver checks; and each measurement ends with a transfer of which every byte
 * is checked. SPOIL is defined to see that these checks find something. */
#define _GNU_SOURCE
#include "measure.h"
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <time.h>

enum { SAMPLES_MOST = 1 << 18, SMALL = 1024, TAG = 1, ACK = 2 };

/* A sample of a rate is half a millisecond, as in the other benchmarks of weft: longer than bursts, shorter than time slices. */
static const double rate_sample_ns = 5e5;

int rank;
static double budget_ns;
static char *send_buffer, *receive_buffer;
static uint64_t number;

double now(void) {
    struct timespec at;
    clock_gettime(CLOCK_MONOTONIC, &at);
    return (double)at.tv_sec * 1e9 + (double)at.tv_nsec;
}

void wrong(const char *what, int size) {
    fprintf(stderr, "measure: %s, %d B: what arrived is not what was sent\n", what, size);
    fflush(stderr);
    MPI_Abort(MPI_COMM_WORLD, 3);
    abort();
}

/* "library Open MPI v5.0.11", or as this MPI has it: the first line of what it says, up to a comma. */
static void tell_library(void) {
    char text[MPI_MAX_LIBRARY_VERSION_STRING];
    int length;
    MPI_Get_library_version(text, &length);
    text[strcspn(text, ",\n")] = '\0';
    for (char *c = text; *c != '\0'; c++)
        if (*c == '\t') *c = ' ';
    printf("library %s\n", text);
    fflush(stdout);
}

/* A byte of a pattern without a short period. */
static unsigned char pattern(uint64_t seed, int at) {
    uint64_t x = (seed + (uint64_t)at) * 0x9e3779b97f4a7c15u;
    return (unsigned char)(x >> 56);
}

void fill(void *memory, int size, uint64_t seed) {
    unsigned char *bytes = memory;
    for (int i = 0; i < size; i++) bytes[i] = pattern(seed, i);
}

int is_filled(const void *memory, int size, uint64_t seed) {
    const unsigned char *bytes = memory;
    for (int i = 0; i < size; i++)
        if (bytes[i] != pattern(seed, i)) return 0;
#ifdef SPOIL
    return 0;
#endif
    return 1;
}

void stamp(void *memory, int size, uint64_t stamped) {
    char *bytes = memory;
    memcpy(bytes, &stamped, sizeof stamped);
    memcpy(bytes + size - sizeof stamped, &stamped, sizeof stamped);
}

int is_stamped(const void *memory, int size, uint64_t stamped) {
    const char *bytes = memory;
    return memcmp(bytes, &stamped, sizeof stamped) == 0 && memcmp(bytes + size - sizeof stamped, &stamped, sizeof stamped) == 0;
}

static int ascending(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* Rank 0's number, at both. */
static double of_rank_0(double value) {
    MPI_Bcast(&value, 1, MPI_DOUBLE, 0, MPI_COMM_WORLD);
    return value;
}

/* Warms up, and finds what a unit costs. */
static double unit_ns_of(Work work, int size) {
    int times = 1;
    double took;
    while ((took = of_rank_0(work(size, times))) < budget_ns / 10 && times < 1 << 20) times *= 2;
    return took / times + 1e-3;
}

/* Sorts the samples. The slow tail is at the end of times, and at the beginning of rates. */
static Sampled summary(double *samples, int n, int more_is_better, double mean) {
    qsort(samples, (size_t)n, sizeof *samples, ascending);
    int tail = (n - 1) * 99 / 100;
    return (Sampled){ samples[n / 2], samples[more_is_better ? n - 1 - tail : tail], mean, n };
}

Sampled sampled(Work work, int size, Per per, double value) {
    static double samples[SAMPLES_MOST];
    double unit_ns = unit_ns_of(work, size);
    double sample_ns = per == UNITS_PER_SECOND ? rate_sample_ns : unit_ns * (size <= SMALL ? 64 : 16);
    if (sample_ns > budget_ns / 5) sample_ns = budget_ns / 5;
    int times = (int)(sample_ns / unit_ns);
    if (times < 1) times = 1;
    /* Between these the ranks agree to go on: a time of a busy machine says nothing of the next one. */
    int chunk = (int)(budget_ns / 20 / (unit_ns * times)) + 1;
    int n = 0;
    double all_ns = 0, began = now();
    do {
        for (int i = 0; i < chunk && n < SAMPLES_MOST; i++) {
            double ns = work(size, times);
            all_ns += ns;
            samples[n++] = per == UNITS_PER_SECOND ? times * value * 1e9 / ns : ns / times;
        }
    } while (of_rank_0(now() - began < budget_ns) != 0 && n < SAMPLES_MOST);
    double units = (double)n * times;
    return summary(samples, n, per == UNITS_PER_SECOND, per == UNITS_PER_SECOND ? units * value * 1e9 / all_ns : all_ns / units);
}

void sampled_in_turn(Work work, Work other, int size, Sampled *each, Sampled *ratio) {
    enum { IN_TURN = 20, PAIRS_MOST = 4096 };
    static double times_of_work[PAIRS_MOST], ratios[PAIRS_MOST];
    int times = (int)(budget_ns / IN_TURN / unit_ns_of(work, size));
    if (times < 1) times = 1;
    int n = 0;
    double work_ns = 0, other_ns = 0, began = now();
    do {
        double theirs = other(size, times);
        /* The other rank has not begun before. */
        MPI_Barrier(MPI_COMM_WORLD);
        double ours = work(size, times);
        work_ns += ours;
        other_ns += theirs;
        times_of_work[n] = ours / times;
        ratios[n++] = theirs / ours;
    } while (of_rank_0(now() - began < 2 * budget_ns) != 0 && n < PAIRS_MOST);
    *each = summary(times_of_work, n, 0, work_ns / ((double)n * times));
    *ratio = summary(ratios, n, 1, other_ns / work_ns);
}

void tell(const char *metric, int size, Sampled s) {
    if (rank != 0) return;
    printf("result %s %d %.17g %.17g %.17g %d\n", metric, size, s.median, s.p99, s.mean, s.n);
    fflush(stdout);
}

/* One message there and one back, in turn, each with the number before plus one. */
static double round_trips(int size, int times) {
    double began = now();
    for (int i = 0; i < times; i++) {
        if (rank == 0) {
            stamp(send_buffer, size, ++number);
            MPI_Send(send_buffer, size, MPI_BYTE, 1, TAG, MPI_COMM_WORLD);
            MPI_Recv(receive_buffer, size, MPI_BYTE, 1, TAG, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
            if (!is_stamped(receive_buffer, size, ~number)) wrong("round trip", size);
        } else {
            MPI_Recv(receive_buffer, size, MPI_BYTE, 0, TAG, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
            if (!is_stamped(receive_buffer, size, ++number)) wrong("round trip", size);
            stamp(send_buffer, size, ~number);
            MPI_Send(send_buffer, size, MPI_BYTE, 0, TAG, MPI_COMM_WORLD);
        }
    }
    return now() - began;
}

/* One way: so many windows of messages, each message in a buffer of its own, and a word back for each window. */
static double windows(int size, int times) {
    MPI_Request requests[WINDOW];
    double began = now();
    for (int w = 0; w < times; w++) {
        for (int i = 0; i < WINDOW; i++) {
            if (rank == 0) {
                char *at = send_buffer + (size_t)i * (size_t)size;
                stamp(at, size, ++number);
                MPI_Isend(at, size, MPI_BYTE, 1, TAG, MPI_COMM_WORLD, &requests[i]);
            } else {
                char *at = receive_buffer + (size_t)i * (size_t)size;
                MPI_Irecv(at, size, MPI_BYTE, 0, TAG, MPI_COMM_WORLD, &requests[i]);
            }
        }
        MPI_Waitall(WINDOW, requests, MPI_STATUSES_IGNORE);
        if (rank == 0) {
            MPI_Recv(NULL, 0, MPI_BYTE, 1, ACK, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
        } else {
            for (int i = 0; i < WINDOW; i++)
                if (!is_stamped(receive_buffer + (size_t)i * (size_t)size, size, ++number)) wrong("one way", size);
            MPI_Send(NULL, 0, MPI_BYTE, 0, ACK, MPI_COMM_WORLD);
        }
    }
    return now() - began;
}

static double barriers(int size, int times) {
    (void)size;
    double began = now();
    for (int i = 0; i < times; i++) MPI_Barrier(MPI_COMM_WORLD);
    return now() - began;
}

/* The sum of as many doubles as have room, at all ranks. */
static double all_reduces(int size, int times) {
    int count = size / (int)sizeof(double);
    double *ours = (double *)send_buffer, *sum = (double *)receive_buffer, began = now();
    for (int i = 0; i < times; i++) {
        double n = (double)++number;
        ours[0] = ours[count - 1] = n + rank;
        MPI_Allreduce(ours, sum, count, MPI_DOUBLE, MPI_SUM, MPI_COMM_WORLD);
        if (sum[0] != 2 * n + 1 || sum[count - 1] != 2 * n + 1) wrong("all-reduce", size);
    }
    return now() - began;
}

/* A message of which every byte is looked at, there and back. */
static void check_message(int size) {
    if (rank == 0) {
        fill(send_buffer, size, number);
        MPI_Send(send_buffer, size, MPI_BYTE, 1, TAG, MPI_COMM_WORLD);
        MPI_Recv(receive_buffer, size, MPI_BYTE, 1, TAG, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
        if (!is_filled(receive_buffer, size, number + 1)) wrong("a message back", size);
    } else {
        MPI_Recv(receive_buffer, size, MPI_BYTE, 0, TAG, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
        if (!is_filled(receive_buffer, size, number)) wrong("a message", size);
        fill(send_buffer, size, number + 1);
        MPI_Send(send_buffer, size, MPI_BYTE, 0, TAG, MPI_COMM_WORLD);
    }
}

static void check_all_reduce(int size) {
    int count = size / (int)sizeof(double);
    double *ours = (double *)send_buffer, *sum = (double *)receive_buffer;
    for (int i = 0; i < count; i++) ours[i] = i + (rank == 0 ? 0.0 : 0.5);
    MPI_Allreduce(ours, sum, count, MPI_DOUBLE, MPI_SUM, MPI_COMM_WORLD);
    for (int i = 0; i < count; i++)
        if (sum[i] != 2.0 * i + 0.5) wrong("all-reduce", size);
}

static void measure_rtt(int size) {
    tell("rtt", size, sampled(round_trips, size, NANOSECONDS_EACH, 1));
    check_message(size);
}
static void measure_bandwidth(int size) {
    tell("bandwidth", size, sampled(windows, size, UNITS_PER_SECOND, (double)WINDOW * size));
    check_message(size);
}
static void measure_rate(int size) {
    tell("rate", size, sampled(windows, size, UNITS_PER_SECOND, WINDOW));
    check_message(size);
}
static void measure_barrier(int size) {
    tell("barrier", size, sampled(barriers, size, NANOSECONDS_EACH, 1));
}
static void measure_all_reduce(int size) {
    memset(send_buffer, 0, (size_t)size);
    tell("allreduce", size, sampled(all_reduces, size, NANOSECONDS_EACH, 1));
    check_all_reduce(size);
}

/* The metrics, and the sizes that each may have. */
static const struct {
    const char *name;
    void (*measure)(int size);
    int least, most;
} metrics[] = {
    { "rtt", measure_rtt, 8, MOST },
    { "bandwidth", measure_bandwidth, 8, MOST },
    { "rate", measure_rate, 8, MOST },
    { "barrier", measure_barrier, 0, 0 },
    { "allreduce", measure_all_reduce, 8, MOST },
    { "put", measure_put, 8, MOST },
    { "get", measure_get, 8, MOST },
    { "put.bandwidth", measure_put_bytes, 8, MOST },
    { "get.bandwidth", measure_get_bytes, 8, MOST },
    { "nbody", measure_nbody, 2, 4096 },
};

static _Noreturn void misused(const char *why) {
    fprintf(stderr, "measure: %s\nusage: measure CPU,CPU MILLISECONDS METRIC:SIZE...\n", why);
    exit(2);
}

/* Before MPI_Init, so that all threads that it starts are there, too. Each MPI's launcher says the rank in a way of its own. */
static void pin(const char *cpus) {
    const char *said = getenv("OMPI_COMM_WORLD_RANK");
    if (said == NULL) said = getenv("PMI_RANK");
    if (said == NULL) misused("no launcher of MPI says which rank this is");
    const char *ours = strcmp(said, "0") == 0 ? cpus : strchr(cpus, ',');
    if (ours == NULL) misused("two CPUs are needed");
    cpu_set_t set;
    CPU_ZERO(&set);
    CPU_SET(atoi(*ours == ',' ? ours + 1 : ours), &set);
    if (sched_setaffinity(0, sizeof set, &set) != 0) misused("it cannot run on that CPU");
}

static void measure(const char *probe) {
    const char *colon = strchr(probe, ':');
    if (colon == NULL) misused(probe);
    size_t length = (size_t)(colon - probe);
    int size = atoi(colon + 1);
    for (size_t i = 0; i < sizeof metrics / sizeof *metrics; i++) {
        if (strlen(metrics[i].name) != length || strncmp(metrics[i].name, probe, length) != 0) continue;
        if (size < metrics[i].least || size > metrics[i].most) misused(probe);
        if (rank == 0) {
            printf("begin %s %d\n", metrics[i].name, size);
            fflush(stdout);
        }
        MPI_Barrier(MPI_COMM_WORLD);
        metrics[i].measure(size);
        return;
    }
    misused(probe);
}

int main(int argc, char **argv) {
    /* A launcher that is killed takes its ranks with it. */
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (argc < 3) misused("there is something missing");
    pin(argv[1]);
    budget_ns = atof(argv[2]) * 1e6;
    MPI_Init(&argc, &argv);
    int ranks;
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &ranks);
    if (ranks != RANKS) misused("it takes two ranks");
    if (rank == 0) tell_library();
    send_buffer = calloc(WINDOW, MOST);
    receive_buffer = calloc(WINDOW, MOST);
    if (send_buffer == NULL || receive_buffer == NULL) misused("there is not enough memory");
    for (int i = 3; i < argc; i++) measure(argv[i]);
    if (rank == 0) {
        printf("end\n");
        fflush(stdout);
    }
    free(send_buffer);
    free(receive_buffer);
    return MPI_Finalize();
}
