/* More ranks than processors, and several threads in each: many to one, gathered, summed, and by threads: crowd. Checks every byte.
 * Exits with 0 if all is right; otherwise prints the fault, and aborts the run. */
#include <mpi.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { TIMES = 30, THREADS = 3, MOST = 65536 };

static int rank, ranks;
static const char *part = "start";

#define CHECK(what)                                                                                                             \
    do {                                                                                                                        \
        if (!(what)) {                                                                                                          \
            fprintf(stderr, "crowd: rank %d, %s, line %d: not so: %s\n", rank, part, __LINE__, #what);                          \
            MPI_Abort(MPI_COMM_WORLD, 1);                                                                                       \
        }                                                                                                                       \
    } while (0)

/* Around the sizes at which Open MPI, MPICH and weft itself change their protocol. */
static const int sizes[] = {16384, 16385, 65536};
enum { SIZES = sizeof sizes / sizeof *sizes };

/* Byte `at` of the message `seed`. */
static unsigned char byte_of(unsigned seed, unsigned at) { return (unsigned char)((at * 131) ^ (at >> 8) ^ (seed * 29)); }

static void fill(unsigned char *bytes, int size, unsigned seed) {
    for (int i = 0; i < size; i++) bytes[i] = byte_of(seed, i);
}
static int is_right(const unsigned char *bytes, int size, unsigned seed) {
    for (int i = 0; i < size; i++)
        if (bytes[i] != byte_of(seed, i)) return 0;
    return 1;
}

/* All to rank 0, which takes any message. */
static void many_to_one(int size, unsigned char *bytes) {
    part = "many to one";
    if (rank != 0) {
        for (int i = 0; i < TIMES; i++) {
            fill(bytes, size, rank + i);
            MPI_Send(bytes, size, MPI_BYTE, 0, i, MPI_COMM_WORLD);
        }
        return;
    }
    int *next = calloc(ranks, sizeof *next);
    for (int n = 0; n < TIMES * (ranks - 1); n++) {
        MPI_Status status;
        memset(bytes, 0xEE, MOST);
        MPI_Recv(bytes, size, MPI_BYTE, MPI_ANY_SOURCE, MPI_ANY_TAG, MPI_COMM_WORLD, &status);
        int from = status.MPI_SOURCE, i = next[from]++;
        CHECK(status.MPI_TAG == i);
        CHECK(is_right(bytes, size, from + i));
    }
    free(next);
}

static void gather(int size, unsigned char *bytes) {
    part = "gather";
    unsigned char *all = malloc((size_t)ranks * size);
    for (int i = 0; i < TIMES; i++) {
        fill(bytes, size, rank + i);
        MPI_Gather(bytes, size, MPI_BYTE, all, size, MPI_BYTE, i % ranks, MPI_COMM_WORLD);
        for (int from = 0; rank == i % ranks && from < ranks; from++) CHECK(is_right(all + (size_t)from * size, size, from + i));
    }
    free(all);
}

static void all_reduce(int size) {
    part = "all-reduce";
    int count = size / sizeof(double);
    double *mine = malloc(size), *sum = malloc(size);
    for (int i = 0; i < TIMES; i++) {
        for (int at = 0; at < count; at++) mine[at] = rank + at + i;
        MPI_Allreduce(mine, sum, count, MPI_DOUBLE, MPI_SUM, MPI_COMM_WORLD);
        for (int at = 0; at < count; at++) CHECK(sum[at] == ranks * (ranks - 1) / 2 + ranks * (double)(at + i));
    }
    free(mine), free(sum);
}

/* Each thread sends round the ranks in a ring of its own, marked by its tag. */
static void *in_a_thread(void *argument) {
    int tag = (int)(size_t)argument, next = (rank + 1) % ranks, before = (rank + ranks - 1) % ranks;
    unsigned char *out = malloc(MOST), *in = malloc(MOST);
    for (int i = 0; i < TIMES; i++) {
        int size = sizes[i % SIZES];
        fill(out, size, rank + i + 100 * tag);
        memset(in, 0xEE, MOST);
        MPI_Sendrecv(out, size, MPI_BYTE, next, tag, in, size, MPI_BYTE, before, tag, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
        CHECK(is_right(in, size, before + i + 100 * tag));
    }
    free(out), free(in);
    return NULL;
}
static void threads(void) {
    part = "threads";
    pthread_t running[THREADS];
    for (size_t i = 0; i < THREADS; i++) CHECK(pthread_create(&running[i], NULL, in_a_thread, (void *)i) == 0);
    for (int i = 0; i < THREADS; i++) CHECK(pthread_join(running[i], NULL) == 0);
}

int main(int argc, char **argv) {
    int provided;
    MPI_Init_thread(&argc, &argv, MPI_THREAD_MULTIPLE, &provided);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &ranks);
    CHECK(provided == MPI_THREAD_MULTIPLE);
    unsigned char *bytes = malloc(MOST);
    for (int i = 0; i < SIZES; i++) {
        many_to_one(sizes[i], bytes);
        gather(sizes[i], bytes);
        all_reduce(sizes[i]);
        MPI_Barrier(MPI_COMM_WORLD);
    }
    threads();
    MPI_Barrier(MPI_COMM_WORLD);
    if (rank == 0) printf("crowd: %d ranks: all as it should be\n", ranks);
    free(bytes);
    return MPI_Finalize();
}
