/* Shared by the parts of the program: measuring, telling, checking. */
#ifndef MEASURE_H
#define MEASURE_H

#include <mpi.h>
#include <stdint.h>

/* Ranks 0 and 1 measure; there are no others. */
enum { RANKS = 2, MOST = 1 << 20, WINDOW = 32 };

extern int rank;

/* Median, slow tail and mean of the samples of a run. */
typedef struct {
    double median, p99, mean;
    int n;
} Sampled;

/* Does so many units of work, of that size each. Returns the nanoseconds that they took. Both ranks call it with the same numbers. */
typedef double (*Work)(int size, int times);

typedef enum { NANOSECONDS_EACH, UNITS_PER_SECOND } Per;

/* Samples the work for as long as the command line says. The result is rank 0's. `value` is how much one unit counts for in a rate. */
Sampled sampled(Work work, int size, Per per, double value);

/* Samples two works in turn, for twice that time: the time of a unit of the first, and the time of the second divided by it. */
void sampled_in_turn(Work work, Work other, int size, Sampled *each, Sampled *ratio);

/* Prints a line of results, at rank 0. */
void tell(const char *metric, int size, Sampled sampled);

/* Nanoseconds since some moment. */
double now(void);

/* Ends all ranks: something arrived that was not sent. */
_Noreturn void wrong(const char *what, int size);

/* Fills memory with bytes that depend on the seed, and tells whether they are all there. */
void fill(void *memory, int size, uint64_t seed);
int is_filled(const void *memory, int size, uint64_t seed);

/* Writes a number at the beginning and at the end, and tells whether it is there. */
void stamp(void *memory, int size, uint64_t number);
int is_stamped(const void *memory, int size, uint64_t number);

/* One-sided operations are in onesided.c, particles in nbody.c. */
void measure_put(int size);
void measure_get(int size);
void measure_put_bytes(int size);
void measure_get_bytes(int size);
void measure_nbody(int particles);

#endif
