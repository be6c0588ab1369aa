/* Calls of am_spmd.h, chosen by tests/spmd.rs. */
#include "check.h"
#include <am_spmd.h>
#include <unistd.h>
#include <weft.h>

enum { ASK = 1, ANSWER = 2, END = 3 };

static int answers;
static int from_handler;

static void on_ask(void *token, int number) {
    CHECK(am_spmd_rank() >= 0);
    /* A handler cannot make these calls, and gets an error. */
    from_handler = am_spmd_barrier();
    OK(AM_Reply1(token, ANSWER, number + 1));
}

static void on_answer(void *token, int number) {
    (void)token;
    CHECK(number >= 1);
    answers++;
}

static void on_end(void *token, int status) {
    (void)token;
    am_spmd_exit(status);
}

static void calls(eb_t bundle, ep_t endpoint) {
    int rank = am_spmd_rank(), size = am_spmd_size();
    CHECK(rank >= 0 && rank < size);
    eb_t second_bundle;
    ep_t second;
    IS(AM_ERR_RESOURCE, am_spmd_begin(&second_bundle, &second));
    CHECK(strstr(am_spmd_error(), "has begun") != NULL);
    IS(AM_ERR_BAD_ARG, am_spmd_begin(NULL, NULL));
    for (int peer = 0; peer < size; peer++) {
        OK(AM_GetTranslationInuse(endpoint, peer));
        OK(AM_Request1(endpoint, peer, ASK, peer));
    }
    IS(AM_ERR_RESOURCE, AM_GetTranslationInuse(endpoint, size));
    while (answers < size) OK(AM_Poll(bundle));
    OK(am_spmd_barrier());
    /* Requests came here in a poll or in the barrier; in both a barrier is refused. */
    CHECK(from_handler != AM_OK);

    long *all = malloc((size_t)size * 2 * sizeof *all);
    CHECK(all != NULL);
    long mine[2] = {rank * 10L, rank + 1L};
    OK(am_spmd_all_gather(mine, all, sizeof mine));
    for (int peer = 0; peer < size; peer++) CHECK(all[peer * 2] == peer * 10L && all[peer * 2 + 1] == peer + 1L);
    OK(am_spmd_all_gather(NULL, NULL, 0));
    IS(AM_ERR_BAD_ARG, am_spmd_all_gather(NULL, all, 8));
    IS(AM_ERR_BAD_ARG, am_spmd_all_gather(mine, NULL, 8));
    free(all);
    for (int round = 0; round < 50; round++) OK(am_spmd_barrier());
    OK(am_spmd_end());
    CHECK(am_spmd_rank() == -1 && am_spmd_size() == -1);
    IS(AM_ERR_NOT_INIT, am_spmd_end());
    puts("all is well");
}

/* Nobody polls after these requests. The end of the job waits for the replies, those of the rank itself too. No handler 0 is set, so
 * a reply that came back would end the program. */
static void answered_at_the_end(ep_t endpoint) {
    int size = am_spmd_size();
    for (int peer = 0; peer < size; peer++) OK(AM_Request1(endpoint, peer, ASK, peer));
    OK(am_spmd_end());
    CHECK(answers == size);
    puts("all is well");
}

/* Handlers run in barriers of a job of one, too. */
static void barriers_alone(ep_t endpoint) {
    OK(AM_Request1(endpoint, 0, ASK, 0));
    for (int round = 0; round < 100000 && answers == 0; round++) OK(am_spmd_barrier());
    CHECK(answers == 1);
    OK(am_spmd_end());
}

/* Runs after the thread's local storage has ended. */
static void at_exit(void) {
    weft_name name;
    if (am_spmd_end() != AM_ERR_NOT_INIT || weft_name_parse("no name", &name) != WEFT_ERROR_NAME || !weft_last_error()) _exit(1);
    AM_Terminate();
    _exit(0);
}

int main(int argc, char **argv) {
    eb_t bundle;
    ep_t endpoint;
    CHECK(argc > 1);
    CHECK(am_spmd_rank() == -1 && am_spmd_size() == -1);
    IS(AM_ERR_NOT_INIT, am_spmd_barrier());
    CHECK(strstr(am_spmd_error(), "am_spmd_begin") != NULL);
    if (strcmp(argv[1], "exiting") == 0) {
        atexit(at_exit);
        return 1;
    }
    OK(am_spmd_begin(&bundle, &endpoint));
    OK(AM_SetHandler(endpoint, ASK, on_ask));
    OK(AM_SetHandler(endpoint, ANSWER, on_answer));
    OK(AM_SetHandler(endpoint, END, on_end));
    OK(am_spmd_barrier());
    if (strcmp(argv[1], "calls") == 0) {
        calls(bundle, endpoint);
    } else if (strcmp(argv[1], "answered") == 0) {
        answered_at_the_end(endpoint);
    } else if (strcmp(argv[1], "alone") == 0) {
        barriers_alone(endpoint);
    } else if (strcmp(argv[1], "exit") == 0) {
        if (am_spmd_rank() == 1) am_spmd_exit(atoi(argv[2]));
        am_spmd_barrier();
        return 1; /* not reached: the job has ended */
    } else if (strcmp(argv[1], "handler") == 0) {
        if (am_spmd_rank() == 0) OK(AM_Request1(endpoint, 1, END, atoi(argv[2])));
        /* Rank 1 may have entered the first barrier when the request comes, so others leave that one. It enters no second one. */
        am_spmd_barrier();
        am_spmd_barrier();
        return 1;
    } else {
        int one = 1, all[2];
        int result = am_spmd_rank() == 0 ? am_spmd_barrier() : am_spmd_all_gather(&one, all, sizeof one);
        IS(AM_ERR_NOT_SENT, result);
        puts(am_spmd_error());
    }
    return 0;
}
