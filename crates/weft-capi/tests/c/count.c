/* For counting instructions: what examples/count_rust.rs does, in C. `count COUNT requests` or `count COUNT polls`. */
#include "check.h"

static long answers;

static void server(void *token, int x0, int x1, int x2, int x3) { AM_Reply4(token, 2, x0, x1, x2, x3); }

static void client(void *token, int x0, int x1, int x2, int x3) {
    (void)token;
    (void)x1;
    (void)x2;
    (void)x3;
    answers += x0;
}

int main(int argc, char **argv) {
    CHECK(argc == 3);
    long count = atol(argv[1]);
    make_pair();
    OK(AM_SetHandler(b.endpoint, 1, server));
    OK(AM_SetHandler(a.endpoint, 2, client));
    /* The first request blocks until helper threads have set up its session. That cost does not depend on the number of requests. */
    OK(AM_Request4(a.endpoint, 0, 1, 1, 2, 3, 4));
    while (answers == 0) {
        struct timespec moment = {0, 1000000};
        OK(AM_Poll(b.bundle));
        OK(AM_Poll(a.bundle));
        nanosleep(&moment, NULL);
    }
    if (strcmp(argv[2], "requests") == 0) {
        for (long answered = 1; answered <= count; answered++) {
            AM_Request4(a.endpoint, 0, 1, 1, 2, 3, 4);
            while (answers == answered) {
                AM_Poll(b.bundle);
                AM_Poll(a.bundle);
            }
        }
    } else {
        CHECK(strcmp(argv[2], "polls") == 0);
        for (long polled = 0; polled < count; polled++) AM_Poll(a.bundle);
    }
    return 0;
}
