/* A parallel bundle: eight threads on one endpoint, and threads that wait. And a sequential one that two threads use at once. */
#include "check.h"

#include <pthread.h>
#include <stdatomic.h>
#include <unistd.h>
#include <weft.h>

enum { THREADS = 8 };

static int each = 20000;
static atomic_int answered, is_over, told_in_use;
static unsigned char *once;

static void add(void *token, int number) { OK(AM_Reply1(token, 2, number)); }

static void note(void *token, int number) {
    (void)token;
    once[number]++; /* handlers of an endpoint run one at a time */
    atomic_fetch_add(&answered, 1);
}

static void *serve(void *unused) {
    (void)unused;
    while (!atomic_load(&is_over)) OK(AM_Poll(b.bundle));
    return NULL;
}

static void *ask(void *from) {
    int first = *(int *)from;
    for (int number = first; number < first + each; number++) OK(AM_Request1(a.endpoint, 0, 1, number));
    while (atomic_load(&answered) < THREADS * each) OK(AM_Poll(a.bundle));
    return NULL;
}

static void eight_threads(void) {
    pthread_t server, threads[THREADS];
    int firsts[THREADS];
    const char *many = getenv("REQUESTS");
    if (many) each = atoi(many) / THREADS;
    once = calloc((size_t)(THREADS * each), 1);
    CHECK(once != NULL);
    OK(AM_Init());
    a = make_side(AM_PAR, TAG_A);
    b = make_side(AM_PAR, TAG_B);
    OK(AM_Map(a.endpoint, 0, b.name, TAG_B));
    OK(AM_SetHandler(b.endpoint, 1, add));
    OK(AM_SetHandler(a.endpoint, 2, note));
    CHECK(pthread_create(&server, NULL, serve, NULL) == 0);
    for (int at = 0; at < THREADS; at++) {
        firsts[at] = at * each;
        CHECK(pthread_create(&threads[at], NULL, ask, &firsts[at]) == 0);
    }
    for (int at = 0; at < THREADS; at++) CHECK(pthread_join(threads[at], NULL) == 0);
    atomic_store(&is_over, 1);
    CHECK(pthread_join(server, NULL) == 0);
    for (int number = 0; number < THREADS * each; number++) CHECK(once[number] == 1);
    free(once);
    OK(AM_Terminate());
}

static void *wait_in_line(void *unused) {
    (void)unused;
    while (!atomic_load(&is_over)) OK(AM_WaitSema(b.bundle));
    return NULL;
}

/* Threads that wait in one bundle: each message is handled once, and all of them end. */
static void several_wait(void) {
    pthread_t waiters[3];
    each = 125;
    once = calloc(1000, 1);
    OK(AM_Init());
    a = make_side(AM_SEQ, TAG_A);
    b = make_side(AM_PAR, TAG_B);
    OK(AM_Map(a.endpoint, 0, b.name, TAG_B));
    OK(AM_SetHandler(b.endpoint, 1, add));
    OK(AM_SetHandler(a.endpoint, 2, note));
    OK(AM_SetEventMask(b.bundle, AM_NOTEMPTY));
    for (int at = 0; at < 3; at++) CHECK(pthread_create(&waiters[at], NULL, wait_in_line, NULL) == 0);
    for (int number = 0; number < 1000; number++) OK(AM_Request1(a.endpoint, 0, 1, number));
    while (atomic_load(&answered) < 1000) OK(AM_Poll(a.bundle));
    atomic_store(&is_over, 1);
    CHECK(weft_bundle_wake((weft_bundle *)b.bundle) == WEFT_OK);
    for (int at = 0; at < 3; at++) CHECK(pthread_join(waiters[at], NULL) == 0);
    for (int number = 0; number < 1000; number++) CHECK(once[number] == 1);
    free(once);
    OK(AM_Terminate());
}

static void *use_too(void *unused) {
    (void)unused;
    for (int turn = 0; turn < 20000; turn++) {
        int code = AM_Poll(a.bundle);
        CHECK(code == AM_OK || code == AM_ERR_IN_USE);
        if (code == AM_ERR_IN_USE) atomic_fetch_add(&told_in_use, 1);
    }
    return NULL;
}

static void *use_later(void *unused) {
    (void)unused;
    OK(AM_Poll(a.bundle));
    return NULL;
}

/* Two threads in a sequential bundle at once: one of them gets an error, and nothing breaks. One after the other is fine. */
static void sequential_used_twice(void) {
    pthread_t other;
    make_pair();
    OK(AM_Poll(a.bundle));
    CHECK(pthread_create(&other, NULL, use_later, NULL) == 0 && pthread_join(other, NULL) == 0);
    OK(AM_Poll(a.bundle));
    CHECK(pthread_create(&other, NULL, use_too, NULL) == 0);
    use_too(NULL);
    CHECK(pthread_join(other, NULL) == 0);
    OK(AM_Poll(a.bundle));
    OK(AM_Terminate());
}

static void *end_it(void *unused) {
    (void)unused;
    usleep(20000);
    OK(AM_FreeBundle(b.bundle));
    return NULL;
}

/* A bundle that is freed while another thread waits in it: the wait ends, and the next call fails. */
static void freed_while_waited_for(void) {
    pthread_t other;
    OK(AM_Init());
    b = make_side(AM_PAR, TAG_B);
    OK(AM_SetEventMask(b.bundle, AM_NOTEMPTY));
    CHECK(pthread_create(&other, NULL, end_it, NULL) == 0);
    int code;
    while ((code = AM_WaitSema(b.bundle)) == AM_OK) continue;
    CHECK(code == AM_ERR_BAD_ARG);
    CHECK(pthread_join(other, NULL) == 0);
    OK(AM_Terminate());
}

static const struct test tests[] = {
    {"eight_threads", eight_threads},
    {"several_wait", several_wait},
    {"sequential_used_twice", sequential_used_twice},
    {"freed_while_waited_for", freed_while_waited_for},
};

int main(int argc, char **argv) { return run_test(tests, sizeof tests / sizeof *tests, argc, argv); }
