/* Particles that attract each other, all with all: a step by two ranks, and the same step by one. */
#include "measure.h"
#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { PARTICLES_MOST = 4096, CHECKED_STEPS = 5 };

typedef struct {
    double x, y, z;
} Vector;

/* Of one way to compute it: both ways have their own. */
typedef struct {
    Vector at[PARTICLES_MOST], speed[PARTICLES_MOST];
} Bodies;

static Bodies shared, alone;

static void place(Bodies *bodies, int particles) {
    uint64_t state = 88172645463325252u;
    for (int i = 0; i < particles; i++) {
        double *at = &bodies->at[i].x;
        for (int axis = 0; axis < 3; axis++) {
            state ^= state << 13, state ^= state >> 7, state ^= state << 17;
            at[axis] = (double)(state >> 11) / 9007199254740992.0;
        }
        bodies->speed[i] = (Vector){ 0, 0, 0 };
    }
}

/* Moves the particles from `first` on, before `end`, by the attraction of all. Their new places go to `to`. */
static void move(Bodies *bodies, int particles, int first, int end, Vector *to) {
    const double dt = 1e-6, softening = 1e-4;
    for (int i = first; i < end; i++) {
        Vector at = bodies->at[i], pull = { 0, 0, 0 };
        for (int j = 0; j < particles; j++) {
            double x = bodies->at[j].x - at.x, y = bodies->at[j].y - at.y, z = bodies->at[j].z - at.z;
            double square = x * x + y * y + z * z + softening;
            double by = 1 / (square * sqrt(square));
            pull.x += x * by, pull.y += y * by, pull.z += z * by;
        }
        Vector *speed = &bodies->speed[i];
        speed->x += pull.x * dt, speed->y += pull.y * dt, speed->z += pull.z * dt;
        to[i - first] = (Vector){ at.x + speed->x * dt, at.y + speed->y * dt, at.z + speed->z * dt };
    }
}

/* Steps by both ranks: each moves half of the particles, and tells the other where they are. */
static double by_both(int particles, int steps) {
    static Vector moved[PARTICLES_MOST];
    int half = particles / RANKS, first = rank * half;
    double began = now();
    for (int s = 0; s < steps; s++) {
        move(&shared, particles, first, first + half, moved);
        MPI_Allgather(moved, 3 * half, MPI_DOUBLE, shared.at, 3 * half, MPI_DOUBLE, MPI_COMM_WORLD);
    }
    return now() - began;
}

/* Steps by rank 0, while the other one waits. */
static double by_one(int particles, int steps) {
    static Vector moved[PARTICLES_MOST];
    if (rank != 0) return 0;
    double began = now();
    for (int s = 0; s < steps; s++) {
        move(&alone, particles, 0, particles, moved);
        memcpy(alone.at, moved, (size_t)particles * sizeof *moved);
    }
    return now() - began;
}

void measure_nbody(int particles) {
    particles -= particles % RANKS;
    place(&shared, particles);
    place(&alone, particles);
    by_both(particles, CHECKED_STEPS);
    by_one(particles, CHECKED_STEPS);
    /* Each particle's sum has the same order in both ways, so that no bit may differ. */
    if (rank == 0 && memcmp(shared.at, alone.at, (size_t)particles * sizeof *shared.at) != 0) wrong("n-body", particles);
    Sampled both, faster;
    sampled_in_turn(by_both, by_one, particles, &both, &faster);
    tell("nbody", particles, both);
    tell("nbody.speedup", particles, faster);
}
