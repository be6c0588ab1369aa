/* Transfers memory to another process in long messages, and shows the progress.
 *
 *     transfer MEBIBYTES
 *
 * The receiver lends its memory as the segment of its endpoint. When a handler runs, the bytes are in place, after a single copy there.
 */
#include "common.h"

#include <string.h>

enum { PLACED = 1, MORE = 2, READY = 3 };
enum { PIECE = 1 << 20 };

static size_t arrived, acknowledged;
static int is_ready;

static void placed(void *token, void *piece, size_t bytes, int number) {
    unsigned char *bytes_here = piece;
    arrived += bytes;
    if (bytes_here[0] != (unsigned char)number || bytes_here[bytes - 1] != (unsigned char)number) exit(1);
    OK(AM_Reply0(token, MORE));
}

static void more(void *token) {
    (void)token;
    acknowledged += PIECE;
}

static void ready(void *token) {
    (void)token;
    is_ready = 1;
}

int main(int argc, char **argv) {
    struct job job = start_job(2);
    size_t total = (size_t)(argc > 1 ? atoi(argv[1]) : 64) * PIECE;
    OK(AM_SetHandler(job.endpoint, PLACED, placed));
    OK(AM_SetHandler(job.endpoint, MORE, more));
    OK(AM_SetHandler(job.endpoint, READY, ready));
    OK(AM_SetEventMask(job.bundle, AM_NOTEMPTY));

    if (job.rank == 1) {
        unsigned char *memory = malloc(total);
        if (!memory) return 1;
        OK(AM_SetSeg(job.endpoint, memory, total));
        OK(AM_Request0(job.endpoint, 0, READY));
        while (arrived < total) OK(AM_WaitSema(job.bundle));
    } else {
        unsigned char *piece = malloc(PIECE);
        if (!piece) return 1;
        while (!is_ready) OK(AM_WaitSema(job.bundle));
        for (size_t offset = 0; offset < total; offset += PIECE) {
            int number = (int)(offset / PIECE);
            memset(piece, number, PIECE); /* a call has copied the piece when it returns */
            OK(AM_RequestXfer1(job.endpoint, 1, offset, PLACED, piece, PIECE, number));
            if (isatty(1)) printf("\r%zu of %zu MiB", acknowledged / PIECE, total / PIECE), fflush(stdout);
        }
        while (acknowledged < total) OK(AM_WaitSema(job.bundle));
        printf("%s%zu MiB are there\n", isatty(1) ? "\r" : "", acknowledged / PIECE);
        free(piece);
    }
    return end_job(&job);
}
