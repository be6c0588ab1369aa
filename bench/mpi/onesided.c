/* One-sided operations of rank 0 on memory of rank 1, which waits meanwhile. */
#include "measure.h"
#include <stdlib.h>

static char *theirs, *ours;
static MPI_Win window;
static uint64_t number;

static char *slot(char *memory, int at, int size) { return memory + (size_t)at * (size_t)size; }

/* Memory of the program, in one epoch of passive target. In memory that an MPI allocates itself, its ranks of one host store and load
 * directly, and the transport carries nothing. */
static void open_window(void) {
    theirs = calloc(WINDOW, MOST);
    ours = calloc(WINDOW, MOST);
    MPI_Win_create(theirs, (MPI_Aint)WINDOW * MOST, 1, MPI_INFO_NULL, MPI_COMM_WORLD, &window);
    MPI_Win_lock_all(0, window);
    MPI_Win_sync(window);
    MPI_Barrier(MPI_COMM_WORLD);
}

static void close_window(void) {
    MPI_Win_unlock_all(window);
    MPI_Win_free(&window);
    free(theirs);
    free(ours);
}

/* One put, and the flush that says that it is there. */
static double puts_alone(int size, int times) {
    if (rank != 0) return 0;
    double began = now();
    for (int i = 0; i < times; i++) {
        stamp(ours, size, ++number);
        MPI_Put(ours, size, MPI_BYTE, 1, 0, size, MPI_BYTE, window);
        MPI_Win_flush(1, window);
    }
    return now() - began;
}

static double gets_alone(int size, int times) {
    if (rank != 0) return 0;
    double began = now();
    for (int i = 0; i < times; i++) {
        stamp(ours, size, 0);
        MPI_Get(ours, size, MPI_BYTE, 1, 0, size, MPI_BYTE, window);
        MPI_Win_flush(1, window);
        if (!is_stamped(ours, size, number)) wrong("get", size);
    }
    return now() - began;
}

/* Many, each in a place of its own, and one flush. */
static double puts_in_windows(int size, int times) {
    if (rank != 0) return 0;
    double began = now();
    for (int w = 0; w < times; w++) {
        for (int i = 0; i < WINDOW; i++) {
            stamp(slot(ours, i, size), size, ++number);
            MPI_Put(slot(ours, i, size), size, MPI_BYTE, 1, (MPI_Aint)i * size, size, MPI_BYTE, window);
        }
        MPI_Win_flush(1, window);
    }
    return now() - began;
}

static double gets_in_windows(int size, int times) {
    if (rank != 0) return 0;
    double began = now();
    for (int w = 0; w < times; w++) {
        for (int i = 0; i < WINDOW; i++) {
            stamp(slot(ours, i, size), size, 0);
            MPI_Get(slot(ours, i, size), size, MPI_BYTE, 1, (MPI_Aint)i * size, size, MPI_BYTE, window);
        }
        MPI_Win_flush(1, window);
        for (int i = 0; i < WINDOW; i++)
            if (!is_stamped(slot(ours, i, size), size, number + (uint64_t)i)) wrong("get", size);
    }
    return now() - began;
}

/* The last puts must be there, in so many places; then comes a put of which every byte is compared. */
static void check_puts(int size, int places) {
    MPI_Bcast(&number, 1, MPI_UINT64_T, 0, MPI_COMM_WORLD);
    MPI_Win_sync(window);
    for (int i = 0; rank == 1 && i < places; i++)
        if (!is_stamped(slot(theirs, i, size), size, number - (uint64_t)(places - 1 - i))) wrong("put", size);
    MPI_Barrier(MPI_COMM_WORLD);
    if (rank == 0) {
        fill(ours, size, number);
        MPI_Put(ours, size, MPI_BYTE, 1, 0, size, MPI_BYTE, window);
        MPI_Win_flush(1, window);
    }
    MPI_Barrier(MPI_COMM_WORLD);
    MPI_Win_sync(window);
    if (rank == 1 && !is_filled(theirs, size, number)) wrong("put", size);
}

/* Stamps what is to be read. */
static void prepare_gets(int size, int places) {
    number = 1000;
    if (rank == 1) {
        for (int i = 0; i < places; i++) stamp(slot(theirs, i, size), size, number + (uint64_t)i);
        MPI_Win_sync(window);
    }
    MPI_Barrier(MPI_COMM_WORLD);
}

static void check_get(int size) {
    if (rank == 1) {
        fill(theirs, size, number);
        MPI_Win_sync(window);
    }
    MPI_Barrier(MPI_COMM_WORLD);
    if (rank == 0) {
        MPI_Get(ours, size, MPI_BYTE, 1, 0, size, MPI_BYTE, window);
        MPI_Win_flush(1, window);
        if (!is_filled(ours, size, number)) wrong("get", size);
    }
    MPI_Barrier(MPI_COMM_WORLD);
}

void measure_put(int size) {
    open_window();
    tell("put", size, sampled(puts_alone, size, NANOSECONDS_EACH, 1));
    check_puts(size, 1);
    close_window();
}

void measure_put_bytes(int size) {
    open_window();
    tell("put.bandwidth", size, sampled(puts_in_windows, size, UNITS_PER_SECOND, (double)WINDOW * size));
    check_puts(size, WINDOW);
    close_window();
}

void measure_get(int size) {
    open_window();
    prepare_gets(size, 1);
    tell("get", size, sampled(gets_alone, size, NANOSECONDS_EACH, 1));
    check_get(size);
    close_window();
}

void measure_get_bytes(int size) {
    open_window();
    prepare_gets(size, WINDOW);
    tell("get.bandwidth", size, sampled(gets_in_windows, size, UNITS_PER_SECOND, (double)WINDOW * size));
    check_get(size);
    close_window();
}
