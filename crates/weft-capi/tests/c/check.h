/* Shared by the C tests: checks that report where they failed, and two endpoints that know each other. */
#ifndef CHECK_H
#define CHECK_H

#include <am.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

static inline void check_(int is_good, const char *what, const char *file, int line) {
    if (!is_good) {
        fprintf(stderr, "%s:%d: %s\n", file, line, what);
        exit(1);
    }
}
#define CHECK(what) check_((what) != 0, #what, __FILE__, __LINE__)

/* A call that returns a certain code. */
static inline void code_(int code, int expected, const char *what, const char *file, int line) {
    if (code != expected) {
        fprintf(stderr, "%s:%d: %s is %d, not %d\n", file, line, what, code, expected);
        exit(1);
    }
}
#define IS(expected, call) code_((call), (expected), #call, __FILE__, __LINE__)
#define OK(call) IS(AM_OK, call)

static inline double seconds(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + (double)now.tv_nsec * 1e-9;
}

/* An endpoint, in a bundle of its own. */
struct side {
    eb_t bundle;
    ep_t endpoint;
    en_t name;
};

static inline struct side make_side(int mode, tag_t tag) {
    struct side side;
    OK(AM_AllocateBundle(mode, &side.bundle));
    OK(AM_AllocateEndpoint(side.bundle, &side.endpoint, &side.name));
    OK(AM_SetTag(side.endpoint, tag));
    return side;
}

/* Two sides: `a` has `b` at index 0, with its tag. */
static struct side a, b;
#define TAG_A ((tag_t)100)
#define TAG_B ((tag_t)200)

static inline void make_pair(void) {
    OK(AM_Init());
    a = make_side(AM_SEQ, TAG_A);
    b = make_side(AM_SEQ, TAG_B);
    OK(AM_Map(a.endpoint, 0, b.name, TAG_B));
}

/* Polls both sides until a condition holds. */
#define UNTIL(condition) \
    do { \
        double begin_ = seconds(); \
        while (!(condition)) { \
            OK(AM_Poll(a.bundle)); \
            OK(AM_Poll(b.bundle)); \
            check_(seconds() - begin_ < 60, "in time: " #condition, __FILE__, __LINE__); \
        } \
    } while (0)

/* Polls both sides for a while, to check that something does not happen. */
static inline void pump(void) {
    for (int turn = 0; turn < 2000; turn++) {
        OK(AM_Poll(a.bundle));
        OK(AM_Poll(b.bundle));
    }
}

/* A return handler that keeps what it was told. */
static struct {
    int times, status;
    unsigned firsts; /* first arguments, a bit for each */
    op_t opcode;
    am_returned_t told;
    unsigned char contents[65536];
    en_t source;
    ep_t endpoint;
    tag_t tag;
    int reply_code;
} back;

static inline void keep(int status, op_t opcode, void *token) {
    back.times++;
    back.status = status;
    back.opcode = opcode;
    OK(am_get_returned(token, &back.told));
    if (back.told.numargs) back.firsts |= 1u << (back.told.args[0] & 31);
    CHECK(back.told.nbytes <= sizeof back.contents);
    if (back.told.nbytes) memcpy(back.contents, back.told.contents, back.told.nbytes);
    OK(AM_GetSourceEndpoint(token, &back.source));
    OK(AM_GetDestEndpoint(token, &back.endpoint));
    OK(AM_GetMsgTag(token, &back.tag));
    back.reply_code = AM_Reply0(token, 1);
}

/* A case of a test program, chosen by its name. */
struct test {
    const char *name;
    void (*run)(void);
};

static inline int run_test(const struct test *tests, size_t count, int argc, char **argv) {
    for (size_t at = 0; at < count; at++) {
        if (argc < 2) puts(tests[at].name);
        if (argc >= 2 && strcmp(tests[at].name, argv[1]) == 0) {
            tests[at].run();
            return 0;
        }
    }
    return argc < 2 ? 0 : 2;
}

#endif
