/* Exchanges messages in all ways of MPI, and checks every byte: exchange [ROUNDS]. The number of ranks must be a power of two.
 * Exits with 0 if all is right; otherwise prints the fault, and aborts the run. */
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MOST = 4 << 20, GUARD = 64, WINDOW = 64, WAITING = 4000, FLOOD = 20000 };

static int rank, ranks;
static const char *part = "start";

#define CHECK(what)                                                                                                             \
    do {                                                                                                                        \
        if (!(what)) {                                                                                                          \
            fprintf(stderr, "exchange: rank %d, %s, line %d: not so: %s\n", rank, part, __LINE__, #what);                       \
            MPI_Abort(MPI_COMM_WORLD, 1);                                                                                       \
        }                                                                                                                       \
    } while (0)

/* Below and above every power of two at which a transport may change its protocol, and some odd sizes between. */
static const int sizes[] = {0,     1,     2,     3,     7,     8,     9,     15,    16,    17,     24,     25,     31,      32,      33,
                            48,    63,    64,    65,    100,   127,   128,   129,   191,   192,    193,    255,    256,     257,     511,
                            512,   513,   1000,  1023,  1024,  1025,  1400,  1500,  2047,  2048,   2049,   4095,   4096,    4097,    8191,
                            8192,  8193,  12345, 16383, 16384, 16385, 30000, 32767, 32768, 32769,  65535,  65536,  65537,   100003,  131072,
                            131073, 262143, 262144, 300007, 524289, 1048575, 1048576, 1048577, 2097153, 3000017, 4194303, 4194304};
enum { SIZES = sizeof sizes / sizeof *sizes };

static unsigned char *sent, *got;

/* Byte `at` of the message `seed`. */
static unsigned char byte_of(unsigned seed, unsigned at) { return (unsigned char)((at * 131) ^ (at >> 8) ^ (at >> 16) ^ (seed * 29)); }

static void fill(unsigned char *bytes, int size, unsigned seed) {
    for (int i = 0; i < size; i++) bytes[i] = byte_of(seed, i);
}
static void clear(unsigned char *bytes, int size) { memset(bytes, 0xEE, size + GUARD); }
/* Whether the message is right, and nothing was written behind it. */
static int is_right(const unsigned char *bytes, int size, unsigned seed) {
    for (int i = 0; i < size; i++)
        if (bytes[i] != byte_of(seed, i)) return fprintf(stderr, "exchange: rank %d: byte %d of %d is wrong\n", rank, i, size), 0;
    for (int i = size; i < size + GUARD; i++)
        if (bytes[i] != 0xEE) return fprintf(stderr, "exchange: rank %d: byte %d behind %d was written\n", rank, i, size), 0;
    return 1;
}
static int is_told(MPI_Status *status, int source, int tag, int size) {
    int count;
    MPI_Get_count(status, MPI_BYTE, &count);
    return status->MPI_SOURCE == source && status->MPI_TAG == tag && count == size;
}

static void send(int size, int to, int tag, unsigned seed) {
    fill(sent, size, seed);
    MPI_Send(sent, size, MPI_BYTE, to, tag, MPI_COMM_WORLD);
}
static void receive(int size, int from, int tag, int asked_from, int asked_tag, unsigned seed) {
    MPI_Status status;
    clear(got, size);
    MPI_Recv(got, size, MPI_BYTE, asked_from, asked_tag, MPI_COMM_WORLD, &status);
    CHECK(is_told(&status, from, tag, size));
    CHECK(is_right(got, size, seed));
}

/* Every size there and back: blocking, from any source, synchronous, and both ways at once. */
static void ping_pong(int peer) {
    part = "ping-pong";
    for (int i = 0; i < SIZES; i++) {
        int size = sizes[i], any = i % 2;
        int from = any ? MPI_ANY_SOURCE : peer, tag = any ? MPI_ANY_TAG : i;
        if (rank < peer) send(size, peer, i, i), receive(size, peer, i, from, tag, i + 1);
        else receive(size, peer, i, from, tag, i), send(size, peer, i, i + 1);

        MPI_Request requests[2];
        MPI_Status status[2];
        fill(sent, size, rank + i);
        clear(got, size);
        if (any) MPI_Issend(sent, size, MPI_BYTE, peer, i, MPI_COMM_WORLD, &requests[0]);
        else MPI_Isend(sent, size, MPI_BYTE, peer, i, MPI_COMM_WORLD, &requests[0]);
        MPI_Irecv(got, size, MPI_BYTE, from, tag, MPI_COMM_WORLD, &requests[1]);
        MPI_Waitall(2, requests, status);
        CHECK(is_told(&status[1], peer, i, size));
        CHECK(is_right(got, size, peer + i));
    }
}

/* Many under way at once, both ways, with receives posted before or after. */
static void window(int peer, int size, int is_late) {
    part = is_late ? "window, late receives" : "window";
    unsigned char *out = malloc((size_t)WINDOW * size + 1), *in = malloc((size_t)WINDOW * (size + GUARD));
    MPI_Request sends[WINDOW], receives[WINDOW];
    for (int i = 0; i < WINDOW; i++) fill(out + (size_t)i * size, size, rank + i), clear(in + (size_t)i * (size + GUARD), size);
    for (int pass = 0; pass < 2; pass++)
        for (int i = 0; i < WINDOW; i++) {
            if (pass == is_late) MPI_Irecv(in + (size_t)i * (size + GUARD), size, MPI_BYTE, peer, 7, MPI_COMM_WORLD, &receives[i]);
            else MPI_Isend(out + (size_t)i * size, size, MPI_BYTE, peer, 7, MPI_COMM_WORLD, &sends[i]);
        }
    MPI_Waitall(WINDOW, receives, MPI_STATUSES_IGNORE);
    MPI_Waitall(WINDOW, sends, MPI_STATUSES_IGNORE);
    for (int i = 0; i < WINDOW; i++) CHECK(is_right(in + (size_t)i * (size + GUARD), size, peer + i));
    free(out), free(in);
}

/* All to rank 0, which takes any message: those of one peer come in order. */
static void anything(void) {
    enum { EACH = 300 };
    part = "any source and tag";
    if (rank != 0) {
        for (int i = 0; i < EACH; i++) send(sizes[i % SIZES] % 40000, 0, i, rank + i);
    } else {
        int *next = calloc(ranks, sizeof *next);
        for (int n = 0; n < EACH * (ranks - 1); n++) {
            MPI_Status status;
            clear(got, 40000);
            MPI_Recv(got, 40000, MPI_BYTE, MPI_ANY_SOURCE, MPI_ANY_TAG, MPI_COMM_WORLD, &status);
            int from = status.MPI_SOURCE, i = next[from]++;
            CHECK(is_told(&status, from, i, sizes[i % SIZES] % 40000));
            CHECK(is_right(got, sizes[i % SIZES] % 40000, from + i));
        }
        free(next);
    }
    MPI_Barrier(MPI_COMM_WORLD);
}

/* Many small messages before their receives, taken by tag, last sent first; then more than any window holds, in order. */
static void unexpected(int peer) {
    MPI_Request *requests = malloc(FLOOD * sizeof *requests);
    int *values = malloc(FLOOD * sizeof *values);
    part = "unexpected messages";
    for (int i = 0; i < WAITING; i++) {
        values[i] = rank * FLOOD + i;
        MPI_Isend(&values[i], 1, MPI_INT, peer, i, MPI_COMM_WORLD, &requests[i]);
    }
    MPI_Barrier(MPI_COMM_WORLD);
    for (int i = WAITING - 1, value; i >= 0; i--) {
        MPI_Recv(&value, 1, MPI_INT, peer, i, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
        CHECK(value == peer * FLOOD + i);
    }
    MPI_Waitall(WAITING, requests, MPI_STATUSES_IGNORE);
    part = "flood";
    for (int i = 0; i < FLOOD; i++) {
        values[i] = rank * FLOOD + i;
        MPI_Isend(&values[i], 1, MPI_INT, peer, 3, MPI_COMM_WORLD, &requests[i]);
    }
    for (int i = 0, value; i < FLOOD; i++) {
        MPI_Recv(&value, 1, MPI_INT, peer, 3, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
        CHECK(value == peer * FLOOD + i);
    }
    MPI_Waitall(FLOOD, requests, MPI_STATUSES_IGNORE);
    free(requests), free(values);
}

static void probe(int peer) {
    part = "probe";
    int is_there;
    MPI_Status status;
    MPI_Message message;
    MPI_Iprobe(peer, 999, MPI_COMM_WORLD, &is_there, &status);
    CHECK(!is_there);
    MPI_Improbe(MPI_ANY_SOURCE, 999, MPI_COMM_WORLD, &is_there, &message, &status);
    CHECK(!is_there);
    for (int i = 0; i < SIZES; i++) {
        int size = sizes[i];
        MPI_Request request;
        fill(sent, size, rank + i);
        MPI_Isend(sent, size, MPI_BYTE, peer, i, MPI_COMM_WORLD, &request);
        clear(got, size);
        switch (i % 4) {
        case 0: MPI_Probe(MPI_ANY_SOURCE, MPI_ANY_TAG, MPI_COMM_WORLD, &status); break;
        case 1:
            do MPI_Iprobe(peer, i, MPI_COMM_WORLD, &is_there, &status);
            while (!is_there);
            break;
        case 2: MPI_Mprobe(peer, MPI_ANY_TAG, MPI_COMM_WORLD, &message, &status); break;
        case 3:
            do MPI_Improbe(MPI_ANY_SOURCE, i, MPI_COMM_WORLD, &is_there, &message, &status);
            while (!is_there);
        }
        CHECK(is_told(&status, peer, i, size));
        if (i % 4 < 2) MPI_Recv(got, size, MPI_BYTE, status.MPI_SOURCE, status.MPI_TAG, MPI_COMM_WORLD, &status);
        else MPI_Mrecv(got, size, MPI_BYTE, &message, &status);
        CHECK(is_told(&status, peer, i, size));
        CHECK(is_right(got, size, peer + i));
        MPI_Wait(&request, MPI_STATUS_IGNORE);
    }
}

/* A cancelled receive takes no message; the one posted after it does. */
static void cancel(int peer) {
    part = "cancel";
    unsigned char untouched[64 + GUARD];
    for (int i = 0; i < 100; i++) {
        MPI_Request first, second;
        MPI_Status status;
        int is_cancelled;
        clear(untouched, 64), clear(got, 64);
        MPI_Irecv(untouched, 64, MPI_BYTE, i % 2 ? peer : MPI_ANY_SOURCE, 5, MPI_COMM_WORLD, &first);
        MPI_Irecv(got, 64, MPI_BYTE, peer, 5, MPI_COMM_WORLD, &second);
        MPI_Cancel(&first);
        MPI_Wait(&first, &status);
        MPI_Test_cancelled(&status, &is_cancelled);
        CHECK(is_cancelled);
        MPI_Barrier(MPI_COMM_WORLD);
        send(64, peer, 5, rank + i);
        MPI_Wait(&second, &status);
        CHECK(is_told(&status, peer, 5, 64));
        CHECK(is_right(got, 64, peer + i));
        CHECK(is_right(untouched, 0, 0));
    }
}

/* A message longer than its buffer is an error, writes nothing behind the buffer, and harms no other message. */
static void truncation(int peer) {
    part = "truncation";
    MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN);
    for (int i = 0; i < SIZES; i++) {
        int size = sizes[i], room = size / 3, class;
        if (size == 0) continue;
        MPI_Request requests[2];
        fill(sent, size, rank);
        MPI_Isend(sent, size, MPI_BYTE, peer, 1, MPI_COMM_WORLD, &requests[0]);
        MPI_Isend(&i, 1, MPI_INT, peer, 2, MPI_COMM_WORLD, &requests[1]);
        clear(got, room);
        int said = MPI_Recv(got, room, MPI_BYTE, peer, 1, MPI_COMM_WORLD, MPI_STATUS_IGNORE), next = -1;
        MPI_Error_class(said, &class);
        CHECK(class == MPI_ERR_TRUNCATE);
        for (int at = room; at < room + GUARD; at++) CHECK(got[at] == 0xEE);
        CHECK(MPI_Recv(&next, 1, MPI_INT, peer, 2, MPI_COMM_WORLD, MPI_STATUS_IGNORE) == MPI_SUCCESS && next == i);
        CHECK(MPI_Waitall(2, requests, MPI_STATUSES_IGNORE) == MPI_SUCCESS);
    }
    MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_ARE_FATAL);
}

/* To the rank itself, with the receive before and after. */
static void self(void) {
    part = "messages to oneself";
    for (int i = 0; i < SIZES; i++) {
        MPI_Request requests[2];
        fill(sent, sizes[i], i);
        clear(got, sizes[i]);
        for (int pass = 0; pass < 2; pass++) {
            if (pass == i % 2) MPI_Isend(sent, sizes[i], MPI_BYTE, rank, i, MPI_COMM_WORLD, &requests[0]);
            else MPI_Irecv(got, sizes[i], MPI_BYTE, i % 3 ? rank : MPI_ANY_SOURCE, i, MPI_COMM_WORLD, &requests[1]);
        }
        MPI_Waitall(2, requests, MPI_STATUSES_IGNORE);
        CHECK(is_right(got, sizes[i], i));
    }
}

/* Every other integer of a buffer into every third of another. */
static void pieces(int peer) {
    enum { COUNT = 20000 };
    part = "data in pieces";
    int *out = malloc(3 * COUNT * sizeof *out), *in = calloc(3 * COUNT, sizeof *in);
    MPI_Datatype second, third;
    MPI_Type_vector(COUNT, 1, 2, MPI_INT, &second), MPI_Type_commit(&second);
    MPI_Type_vector(COUNT, 1, 3, MPI_INT, &third), MPI_Type_commit(&third);
    for (int i = 0; i < 3 * COUNT; i++) out[i] = rank + i;
    MPI_Sendrecv(out, 1, second, peer, 4, in, 1, third, peer, 4, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
    for (int i = 0; i < 3 * COUNT; i++) CHECK(in[i] == (i % 3 ? 0 : peer + i / 3 * 2));
    MPI_Type_free(&second), MPI_Type_free(&third);
    free(out), free(in);
}

static void all_reduce(void) {
    part = "all-reduce";
    for (int count = 1; count <= 200000; count = count * 3 + 1) {
        long long *mine = malloc(count * sizeof *mine), *sum = malloc(count * sizeof *sum);
        for (int i = 0; i < count; i++) mine[i] = (long long)(rank + 1) * (i + 1);
        MPI_Allreduce(mine, sum, count, MPI_LONG_LONG, MPI_SUM, MPI_COMM_WORLD);
        for (int i = 0; i < count; i++) CHECK(sum[i] == (long long)ranks * (ranks + 1) / 2 * (i + 1));
        MPI_Allreduce(MPI_IN_PLACE, mine, count, MPI_LONG_LONG, MPI_MAX, MPI_COMM_WORLD);
        for (int i = 0; i < count; i++) CHECK(mine[i] == (long long)ranks * (i + 1));
        free(mine), free(sum);
    }
}

static void all_to_all(void) {
    part = "all-to-all";
    for (int i = 0; i < SIZES && sizes[i] <= 300007; i++) {
        int size = sizes[i];
        unsigned char *out = malloc((size_t)ranks * size + 1), *in = malloc((size_t)ranks * size + GUARD);
        for (int to = 0; to < ranks; to++) fill(out + (size_t)to * size, size, rank * ranks + to + i);
        MPI_Alltoall(out, size, MPI_BYTE, in, size, MPI_BYTE, MPI_COMM_WORLD);
        for (int from = 0; from < ranks; from++)
            for (int at = 0; at < size; at++) CHECK(in[(size_t)from * size + at] == byte_of(from * ranks + rank + i, at));
        free(out), free(in);
    }
}

int main(int argc, char **argv) {
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &ranks);
    CHECK(ranks >= 2 && (ranks & (ranks - 1)) == 0);
    int rounds = argc > 1 ? atoi(argv[1]) : 1;
    sent = malloc(MOST + GUARD), got = malloc(MOST + GUARD);
    for (int round = 0; round < rounds; round++) {
        for (int other = 1; other < ranks; other++) {
            int peer = rank ^ other;
            ping_pong(peer);
            for (int i = 0; i < SIZES; i += 5) window(peer, sizes[i] % 300000, i % 2);
            unexpected(peer);
            probe(peer);
            cancel(peer);
            truncation(peer);
            pieces(peer);
            MPI_Barrier(MPI_COMM_WORLD); /* receives from any source must get this peer's messages only */
        }
        anything();
        self();
        all_reduce();
        all_to_all();
    }
    part = "end";
    MPI_Barrier(MPI_COMM_WORLD);
    if (rank == 0) printf("exchange: %d ranks, %d rounds: all as it should be\n", ranks, rounds);
    free(sent), free(got);
    return MPI_Finalize();
}
