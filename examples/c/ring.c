/* Passes a token around a ring of processes.
 *
 *     ring N ROUNDS   N processes; the token goes round ROUNDS times, and each process adds one to it
 *
 * A handler may not send requests, so it only notes that the token is here; the main loop passes it on.
 */
#include "common.h"

enum { PASS = 1, STOP = 2 };

static int has_token, value, is_over;

static void pass(void *token, int count) {
    (void)token;
    has_token = 1;
    value = count;
}

static void stop(void *token, int count) {
    (void)token;
    is_over = 1;
    value = count;
}

int main(int argc, char **argv) {
    struct job job = start_job(argc > 1 ? atoi(argv[1]) : 4);
    int rounds = argc > 2 ? atoi(argv[2]) : 1000;
    unsigned next = (unsigned)((job.rank + 1) % job.size);
    OK(AM_SetHandler(job.endpoint, PASS, pass));
    OK(AM_SetHandler(job.endpoint, STOP, stop));
    OK(AM_SetEventMask(job.bundle, AM_NOTEMPTY));

    if (job.rank == 0) has_token = 1;
    while (!is_over) {
        if (!has_token) {
            OK(AM_WaitSema(job.bundle)); /* sleeps until the token comes */
            continue;
        }
        has_token = 0;
        if (job.rank == 0 && value >= rounds * job.size) {
            OK(AM_Request1(job.endpoint, next, STOP, value));
            while (!is_over) OK(AM_WaitSema(job.bundle)); /* until that comes round as well */
        } else {
            OK(AM_Request1(job.endpoint, next, PASS, value + 1));
        }
    }
    if (job.rank == 0)
        printf("the token was passed on %d times\n", value);
    else
        OK(AM_Request1(job.endpoint, next, STOP, value));
    return end_job(&job);
}
