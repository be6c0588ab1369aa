/* Reads, writes and changes memory of other ranks in all ways of MPI, and checks every byte: onesided [COMMAND [called]]. Rank 0 runs
 * the command at the end, while the windows still exist. With `called` no rank computes meanwhile: MPICH takes a lock by a message, for
 * which the target must call MPI. Exits with 0 if all is right; otherwise prints the fault, and aborts the run. */
#include <mpi.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MOST = 4 << 20, TIMES = 200 };

static int rank, ranks;
static const char *part = "start";

#define CHECK(what)                                                                                                             \
    do {                                                                                                                        \
        if (!(what)) {                                                                                                          \
            fprintf(stderr, "onesided: rank %d, %s, line %d: not so: %s\n", rank, part, __LINE__, #what);                       \
            MPI_Abort(MPI_COMM_WORLD, 1);                                                                                       \
        }                                                                                                                       \
    } while (0)

static const int sizes[] = {1, 4, 7, 8, 64, 65, 1000, 4096, 4097, 16384, 16385, 65536, 100003, 1048576, 3000017, 4194304};
enum { SIZES = sizeof sizes / sizeof *sizes };

/* Byte `at` of the contents `seed`. */
static unsigned char byte_of(unsigned seed, unsigned at) { return (unsigned char)((at * 131) ^ (at >> 8) ^ (at >> 16) ^ (seed * 29)); }

static void fill(unsigned char *bytes, int size, unsigned seed) {
    for (int i = 0; i < size; i++) bytes[i] = byte_of(seed, i);
}
static int is_right(const unsigned char *bytes, int size, unsigned seed) {
    for (int i = 0; i < size; i++)
        if (bytes[i] != byte_of(seed, i)) return 0;
    return 1;
}

/* Every rank writes to the next one, and reads from the one before. */
static void put_and_get(MPI_Win win, unsigned char *mine, unsigned char *buffer) {
    int next = (rank + 1) % ranks, before = (rank + ranks - 1) % ranks;
    for (int i = 0; i < SIZES; i++) {
        int size = sizes[i], at = MOST - size;
        part = "writes between fences";
        MPI_Win_fence(0, win);
        fill(buffer, size, rank + i);
        MPI_Put(buffer, size, MPI_BYTE, next, at, size, MPI_BYTE, win);
        MPI_Win_fence(0, win);
        CHECK(is_right(mine + at, size, before + i));
        part = "reads under a lock";
        memset(buffer, 0xEE, size + 1);
        MPI_Win_lock(MPI_LOCK_SHARED, before, 0, win);
        MPI_Get(buffer, size, MPI_BYTE, before, at, size, MPI_BYTE, win);
        MPI_Win_unlock(before, win);
        CHECK(is_right(buffer, size, (rank + 2 * ranks - 2) % ranks + i) && buffer[size] == 0xEE);
    }
    MPI_Win_fence(0, win);
}

/* All ranks change the same words of every rank. */
static void changes(MPI_Win win, int64_t *mine) {
    part = "changes";
    memset(mine, 0, 4096);
    MPI_Win_fence(0, win);
    MPI_Win_lock_all(0, win);
    int64_t one = 1, ten = 10, old = -1;
    double half = 0.5;
    int *tickets = calloc(ranks * TIMES, sizeof *tickets);
    for (int time = 0; time < TIMES; time++) {
        int64_t most = rank * TIMES + time;
        for (int to = 0; to < ranks; to++) {
            MPI_Accumulate(&one, 1, MPI_INT64_T, to, 0, 1, MPI_INT64_T, MPI_SUM, win);
            MPI_Accumulate(&most, 1, MPI_INT64_T, to, 8, 1, MPI_INT64_T, MPI_MAX, win);
            MPI_Accumulate(&half, 1, MPI_DOUBLE, to, 16, 1, MPI_DOUBLE, MPI_SUM, win);
        }
        MPI_Fetch_and_op(&one, &old, MPI_INT64_T, 0, 24, MPI_SUM, win);
        MPI_Win_flush(0, win);
        CHECK(old >= 0 && old < ranks * TIMES);
        tickets[old]++;
        /* A lock of the program's own, around a sum that is no atomic operation. */
        int64_t free = 0, held = rank + 1, was;
        do {
            MPI_Compare_and_swap(&held, &free, &was, MPI_INT64_T, 0, 32, win);
            MPI_Win_flush(0, win);
        } while (was != 0);
        int64_t sum;
        MPI_Get(&sum, 1, MPI_INT64_T, 0, 40, 1, MPI_INT64_T, win);
        MPI_Win_flush(0, win);
        sum += ten;
        MPI_Put(&sum, 1, MPI_INT64_T, 0, 40, 1, MPI_INT64_T, win);
        MPI_Win_flush(0, win);
        MPI_Compare_and_swap(&free, &held, &was, MPI_INT64_T, 0, 32, win);
        MPI_Win_flush(0, win);
        CHECK(was == held);
    }
    MPI_Win_unlock_all(win);
    MPI_Win_fence(0, win);
    MPI_Allreduce(MPI_IN_PLACE, tickets, ranks * TIMES, MPI_INT, MPI_SUM, MPI_COMM_WORLD);
    for (int i = 0; i < ranks * TIMES; i++) CHECK(tickets[i] == 1);
    free(tickets);
    CHECK(mine[0] == (int64_t)ranks * TIMES && mine[1] == (int64_t)ranks * TIMES - 1);
    CHECK(((double *)mine)[2] == 0.5 * ranks * TIMES);
    if (rank == 0) CHECK(mine[3] == (int64_t)ranks * TIMES && mine[4] == 0 && mine[5] == 10 * (int64_t)ranks * TIMES);
    /* Many words at once, with their old values. */
    part = "many words";
    enum { WORDS = 20000 };
    int64_t *out = malloc(WORDS * sizeof *out), *in = calloc(WORDS, sizeof *in);
    for (int i = 0; i < WORDS; i++) mine[i] = i, out[i] = rank + 1;
    MPI_Win_fence(0, win);
    MPI_Win_lock(MPI_LOCK_EXCLUSIVE, 0, 0, win);
    MPI_Get_accumulate(out, WORDS, MPI_INT64_T, in, WORDS, MPI_INT64_T, 0, 0, WORDS, MPI_INT64_T, MPI_SUM, win);
    MPI_Win_unlock(0, win);
    int64_t before = in[0];
    for (int i = 0; i < WORDS; i++) CHECK(in[i] == i + before);
    MPI_Win_fence(0, win);
    if (rank == 0)
        for (int i = 0; i < WORDS; i++) CHECK(mine[i] == i + ranks * (ranks + 1) / 2);
    free(out), free(in);
}

/* Writes reach a rank while it computes. */
static void computing(MPI_Win win, int64_t *mine) {
    part = "a rank that computes";
    double seconds = 1;
    mine[0] = 0;
    MPI_Barrier(MPI_COMM_WORLD);
    MPI_Win_fence(0, win);
    if (rank == 1) {
        volatile double sum = 0;
        double begin = MPI_Wtime();
        while (MPI_Wtime() - begin < seconds)
            for (int i = 0; i < 100000; i++) sum += i;
    } else if (rank == 0) {
        int64_t word = 77, got = 0;
        double begin = MPI_Wtime();
        MPI_Win_lock(MPI_LOCK_SHARED, 1, 0, win);
        MPI_Put(&word, 1, MPI_INT64_T, 1, 0, 1, MPI_INT64_T, win);
        MPI_Win_flush(1, win);
        MPI_Get(&got, 1, MPI_INT64_T, 1, 0, 1, MPI_INT64_T, win);
        MPI_Win_unlock(1, win);
        double took = MPI_Wtime() - begin;
        CHECK(got == 77);
        printf("onesided: a rank that computes was written to and read within %.1f ms\n", took * 1e3);
        CHECK(took < seconds * 0.8);
    }
    MPI_Barrier(MPI_COMM_WORLD);
    MPI_Win_fence(0, win);
    if (rank == 1) CHECK(mine[0] == 77);
}

/* Memory that becomes part of a window later, named by its address. */
static void dynamic(void) {
    part = "memory that is attached";
    MPI_Win win;
    int next = (rank + 1) % ranks, before = (rank + ranks - 1) % ranks;
    unsigned char *mine = malloc(65536), *out = malloc(65536);
    MPI_Aint here, there;
    MPI_Win_create_dynamic(MPI_INFO_NULL, MPI_COMM_WORLD, &win);
    MPI_Win_attach(win, mine, 65536);
    MPI_Get_address(mine, &here);
    MPI_Sendrecv(&here, 1, MPI_AINT, before, 0, &there, 1, MPI_AINT, next, 0, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
    fill(out, 65536, rank);
    MPI_Win_fence(0, win);
    MPI_Put(out, 65536, MPI_BYTE, next, there, 65536, MPI_BYTE, win);
    MPI_Win_fence(0, win);
    CHECK(is_right(mine, 65536, before));
    MPI_Barrier(MPI_COMM_WORLD);
    MPI_Win_detach(win, mine);
    MPI_Win_free(&win);
    free(mine), free(out);
}

int main(int argc, char **argv) {
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &ranks);
    CHECK(ranks >= 2);
    unsigned char *mine = calloc(MOST, 1), *buffer = malloc(MOST + 1);
    MPI_Win win;
    MPI_Win_create(mine, MOST, 1, MPI_INFO_NULL, MPI_COMM_WORLD, &win);
    put_and_get(win, mine, buffer);
    changes(win, (int64_t *)mine);
    if (argc < 3) computing(win, (int64_t *)mine);
    dynamic();
    part = "end";
    MPI_Barrier(MPI_COMM_WORLD);
    if (rank == 0 && argc > 1) CHECK(system(argv[1]) == 0);
    MPI_Barrier(MPI_COMM_WORLD);
    MPI_Win_free(&win);
    if (rank == 0) printf("onesided: %d ranks: all as it should be\n", ranks);
    free(mine), free(buffer);
    return MPI_Finalize();
}
