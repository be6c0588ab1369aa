/* Measures what a message costs between two ranks: latency. Says, a line each, "rtt_8 NANOSECONDS", "bandwidth_65536 MB/S" and
 * "bandwidth_1048576 MB/S", each the median of BATCHES. Rank n runs on CPU n. */
#define _GNU_SOURCE
#include <mpi.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>

enum { BATCHES = 21, ROUND_TRIPS = 5000, WINDOW = 32, MOST = 1 << 20 };
/* What a batch may take, so that a machine with other work ends, too. */
static const double batch_ns = 50e6;

static int rank;
static char *buffer;

/* Before MPI_Init, so that all threads that it starts are there, too. Each MPI's launcher says the rank in a way of its own. */
static void pin(void) {
    const char *said = getenv("OMPI_COMM_WORLD_RANK");
    if (said == NULL) said = getenv("PMI_RANK");
    cpu_set_t cpus;
    CPU_ZERO(&cpus);
    CPU_SET(said == NULL ? 0 : atoi(said), &cpus);
    if (said == NULL || sched_setaffinity(0, sizeof cpus, &cpus) != 0) {
        fprintf(stderr, "latency: cannot run on the CPU of its rank\n");
        exit(1);
    }
}

static int ascending(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}
static double median(double *values, int count) {
    qsort(values, count, sizeof *values, ascending);
    return values[count / 2];
}

/* Nanoseconds from a send to its answer. */
static double round_trip(int size, int times) {
    double began = MPI_Wtime();
    for (int i = 0; i < times; i++) {
        if (rank == 0) {
            MPI_Send(buffer, size, MPI_BYTE, 1, 1, MPI_COMM_WORLD);
            MPI_Recv(buffer, size, MPI_BYTE, 1, 1, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
        } else {
            MPI_Recv(buffer, size, MPI_BYTE, 0, 1, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
            MPI_Send(buffer, size, MPI_BYTE, 0, 1, MPI_COMM_WORLD);
        }
    }
    return (MPI_Wtime() - began) / times * 1e9;
}

/* Megabytes in a second, one way: windows of messages with a buffer each, and a word back for each window. */
static double bandwidth(int size, int windows) {
    MPI_Request requests[WINDOW];
    double began = MPI_Wtime();
    for (int w = 0; w < windows; w++) {
        for (int i = 0; i < WINDOW; i++) {
            char *at = buffer + (size_t)i * size;
            if (rank == 0) MPI_Isend(at, size, MPI_BYTE, 1, 2, MPI_COMM_WORLD, &requests[i]);
            else MPI_Irecv(at, size, MPI_BYTE, 0, 2, MPI_COMM_WORLD, &requests[i]);
        }
        MPI_Waitall(WINDOW, requests, MPI_STATUSES_IGNORE);
        if (rank == 0) MPI_Recv(NULL, 0, MPI_BYTE, 1, 3, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
        else MPI_Send(NULL, 0, MPI_BYTE, 0, 3, MPI_COMM_WORLD);
    }
    return (double)size * WINDOW * windows / (MPI_Wtime() - began) / 1e6;
}

/* How many times something of this cost fits in a batch: the same for both ranks. */
static int times_in_batch(double cost_ns, int most) {
    int times = cost_ns * most < batch_ns ? most : (int)(batch_ns / cost_ns) + 1;
    MPI_Bcast(&times, 1, MPI_INT, 0, MPI_COMM_WORLD);
    return times;
}

int main(int argc, char **argv) {
    pin();
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    buffer = calloc(WINDOW, MOST);
    double values[BATCHES];
    int times = times_in_batch(round_trip(8, 100), ROUND_TRIPS);
    round_trip(8, times);
    for (int i = 0; i < BATCHES; i++) values[i] = round_trip(8, times);
    if (rank == 0) printf("rtt_8 %.1f\n", median(values, BATCHES));
    for (int size = 65536; size <= MOST; size *= 16) {
        double window_ns = (double)size * WINDOW / bandwidth(size, 1) * 1e3;
        int windows = times_in_batch(window_ns, 16);
        for (int i = 0; i < BATCHES; i++) values[i] = bandwidth(size, windows);
        if (rank == 0) printf("bandwidth_%d %.1f\n", size, median(values, BATCHES));
    }
    free(buffer);
    return MPI_Finalize();
}
