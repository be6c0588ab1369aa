/* Shared by the examples: a failed call ends the program, and processes learn each other's names. */
#ifndef COMMON_H
#define COMMON_H

#include <am.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#define OK(call) \
    do { \
        int code_ = (call); \
        if (code_ != AM_OK) { \
            fprintf(stderr, "%s:%d: %s: %s\n", __FILE__, __LINE__, #call, am_error_text(code_)); \
            exit(1); \
        } \
    } while (0)

/* The processes of a job on this machine: process `rank` has the endpoints of all at the indices of their ranks. */
struct job {
    int rank, size;
    eb_t bundle;
    ep_t endpoint;
};

#define JOB_TAG ((tag_t)42)
enum { JOB_MOST = 64 };

/* Makes `size` processes of this one and returns in each. Names are exchanged in memory that they share. */
static inline struct job start_job(int size) {
    struct board {
        atomic_int ready;
        en_t names[JOB_MOST];
    };
    struct job job = {.rank = 0, .size = size < 1 ? 1 : size > JOB_MOST ? JOB_MOST : size};
    struct board *board = (struct board *)mmap(NULL, sizeof *board, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (board == MAP_FAILED) exit(1);
    for (int rank = 1; rank < job.size && job.rank == 0; rank++)
        if (fork() == 0) job.rank = rank;
    OK(AM_Init());
    OK(AM_AllocateBundle(AM_SEQ, &job.bundle));
    OK(AM_AllocateEndpoint(job.bundle, &job.endpoint, &board->names[job.rank]));
    OK(AM_SetTag(job.endpoint, JOB_TAG));
    atomic_fetch_add(&board->ready, 1);
    while (atomic_load(&board->ready) < job.size) usleep(100);
    for (int rank = 0; rank < job.size; rank++) OK(AM_Map(job.endpoint, rank, board->names[rank], JOB_TAG));
    return job;
}

/* Ends this process's part. The first process waits for the others; returns 1 if one of them failed. */
static inline int end_job(struct job *job) {
    int failed = 0, status;
    OK(AM_Terminate());
    while (job->rank == 0 && wait(&status) > 0) failed |= status != 0;
    return failed;
}

#endif
