/* Requests, replies, returned messages, the rules for handlers, waiting, moving. */
#include "check.h"

#include <pthread.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>
#include <weft.h>

static int got, answered;
static int32_t seen[16];
static size_t seen_bytes;
static unsigned char seen_contents[65536];

/* ---- Every number of arguments, in all four kinds. */

#define LIST1 int a0
#define LIST2 LIST1, int a1
#define LIST3 LIST2, int a2
#define LIST4 LIST3, int a3
#define LIST8 LIST4, int a4, int a5, int a6, int a7
#define LIST15 LIST8, int a8, int a9, int a10, int a11, int a12, int a13, int a14
#define LIST16 LIST15, int a15
#define KEEP(...) \
    do { \
        int32_t all_[] = {__VA_ARGS__}; \
        memcpy(seen, all_, sizeof all_); \
    } while (0)

static void none(void *token) {
    (void)token;
    got++;
}

static void answer0(void *token) {
    (void)token;
    answered++;
}

static void short0(void *token) {
    got++;
    OK(AM_Reply0(token, 100));
}
static void short1(void *token, LIST1) {
    got++;
    KEEP(a0);
    OK(AM_Reply1(token, 101, a0));
}
static void short4(void *token, LIST4) {
    got++;
    KEEP(a0, a1, a2, a3);
    OK(AM_Reply4(token, 104, a0, a1, a2, a3));
}
static void short8(void *token, LIST8) {
    got++;
    KEEP(a0, a1, a2, a3, a4, a5, a6, a7);
    OK(AM_Reply8(token, 108, a0, a1, a2, a3, a4, a5, a6, a7));
}
static void short15(void *token, LIST15) {
    got++;
    KEEP(a0, a1, a2, a3, a4, a5, a6, a7, a8, a9, a10, a11, a12, a13, a14);
    OK(AM_Reply15(token, 115, a0, a1, a2, a3, a4, a5, a6, a7, a8, a9, a10, a11, a12, a13, a14));
}
static void short16(void *token, LIST16) {
    got++;
    KEEP(a0, a1, a2, a3, a4, a5, a6, a7, a8, a9, a10, a11, a12, a13, a14, a15);
    OK(AM_Reply16(token, 116, a0, a1, a2, a3, a4, a5, a6, a7, a8, a9, a10, a11, a12, a13, a14, a15));
}
static void reply1(void *token, LIST1) {
    (void)token;
    answered++;
    CHECK(a0 == seen[0]);
}
static void reply4(void *token, LIST4) {
    (void)token;
    answered++;
    CHECK(a0 == seen[0] && a1 == seen[1] && a2 == seen[2] && a3 == seen[3]);
}
static void reply8(void *token, LIST8) {
    (void)token;
    answered++;
    CHECK(a0 + a1 + a2 + a3 + a4 + a5 + a6 + a7 == 36);
}
static void reply15(void *token, LIST15) {
    (void)token;
    answered++;
    CHECK(a0 + a1 + a2 + a3 + a4 + a5 + a6 + a7 + a8 + a9 + a10 + a11 + a12 + a13 + a14 == 120);
}
static void reply16(void *token, LIST16) {
    (void)token;
    answered++;
    CHECK(a0 + a1 + a2 + a3 + a4 + a5 + a6 + a7 + a8 + a9 + a10 + a11 + a12 + a13 + a14 == 120 && a15 == -16);
}

static void short_messages(void) {
    make_pair();
    OK(AM_SetHandler(b.endpoint, 1, short0));
    OK(AM_SetHandler(b.endpoint, 2, short1));
    OK(AM_SetHandler(b.endpoint, 3, short4));
    OK(AM_SetHandler(b.endpoint, 4, short8));
    OK(AM_SetHandler(b.endpoint, 5, short15));
    OK(AM_SetHandler(b.endpoint, 6, short16));
    OK(AM_SetHandler(a.endpoint, 100, answer0));
    OK(AM_SetHandler(a.endpoint, 101, reply1));
    OK(AM_SetHandler(a.endpoint, 104, reply4));
    OK(AM_SetHandler(a.endpoint, 108, reply8));
    OK(AM_SetHandler(a.endpoint, 115, reply15));
    OK(AM_SetHandler(a.endpoint, 116, reply16));
    OK(AM_Request0(a.endpoint, 0, 1));
    UNTIL(answered == 1);
    OK(AM_Request1(a.endpoint, 0, 2, -7));
    UNTIL(answered == 2);
    CHECK(seen[0] == -7);
    OK(AM_Request4(a.endpoint, 0, 3, 1, 2.9, 3L, INT32_MIN)); /* a float is cut */
    UNTIL(answered == 3);
    CHECK(seen[1] == 2 && seen[3] == INT32_MIN);
    OK(AM_Request8(a.endpoint, 0, 4, 1, 2, 3, 4, 5, 6, 7, 8));
    UNTIL(answered == 4);
    OK(AM_Request15(a.endpoint, 0, 5, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15));
    UNTIL(answered == 5);
    OK(AM_Request16(a.endpoint, 0, 6, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, -16));
    UNTIL(answered == 6);
    /* The number of arguments may be known at run time, and a handler may take fewer than were sent. */
    OK(AM_Request(a.endpoint, 0, 2, 1, 9));
    UNTIL(answered == 7);
    CHECK(seen[0] == 9);
    CHECK(got == 7);
    OK(AM_SetHandler(b.endpoint, 7, none));
    OK(AM_Request3(a.endpoint, 0, 7, 1, 2, 3));
    UNTIL(got == 8);
    OK(AM_Terminate());
}

static void medium_in(void *token, void *buffer, size_t bytes, int first) {
    got++;
    CHECK((uintptr_t)buffer % 8 == 0 && bytes <= sizeof seen_contents);
    memcpy(seen_contents, buffer, bytes);
    seen_bytes = bytes;
    CHECK(first == 42);
    /* The buffer is the handler's to write to. */
    for (size_t at = 0; at < bytes; at++) ((unsigned char *)buffer)[at] ^= 0xff;
    OK(AM_ReplyI2(token, 2, buffer, bytes, (int)bytes, 43));
}

static void medium_out(void *token, void *buffer, size_t bytes, int count, int second) {
    (void)token;
    answered++;
    CHECK((size_t)count == bytes && second == 43);
    for (size_t at = 0; at < bytes; at++) CHECK(((unsigned char *)buffer)[at] == (unsigned char)~seen_contents[at]);
}

static void medium_messages(void) {
    static const size_t sizes[] = {1, 2, 7, 8, 63, 64, 65, 255, 256, 257, 1023, 1024, 4096, 65535, 65536};
    static unsigned char contents[65536];
    make_pair();
    OK(AM_SetHandler(b.endpoint, 1, medium_in));
    OK(AM_SetHandler(a.endpoint, 2, medium_out));
    for (size_t at = 0; at < sizeof sizes / sizeof *sizes; at++) {
        for (size_t byte = 0; byte < sizes[at]; byte++) contents[byte] = (unsigned char)(byte * 7 + at);
        OK(AM_RequestI1(a.endpoint, 0, 1, contents, sizes[at], 42));
        /* The buffer may be reused at once. */
        unsigned char first = contents[0];
        memset(contents, 0xee, sizes[at]);
        UNTIL(answered == (int)at + 1);
        CHECK(seen_bytes == sizes[at] && seen_contents[0] == first);
    }
    IS(AM_ERR_BAD_ARG, AM_RequestI1(a.endpoint, 0, 1, contents, 65537, 42));
    IS(AM_ERR_BAD_ARG, AM_RequestI1(a.endpoint, 0, 1, NULL, 1, 42));
    OK(AM_RequestI(a.endpoint, 0, 1, contents, 3, 1, 42));
    UNTIL(answered == (int)(sizeof sizes / sizeof *sizes) + 1);
    OK(AM_Terminate());
}

/* ---- Wrong arguments of calls. */

static void bad_arguments(void) {
    make_pair();
    int32_t args[17] = {0};
    IS(AM_ERR_BAD_ARG, am_request(a.endpoint, 0, 1, 17, args));
    IS(AM_ERR_BAD_ARG, am_request(a.endpoint, 0, 1, -1, args));
    IS(AM_ERR_BAD_ARG, am_request(a.endpoint, 0, 1, 1, NULL));
    IS(AM_ERR_BAD_ARG, AM_Request(a.endpoint, 0, 1, 17));
    IS(AM_ERR_BAD_ARG, AM_RequestI(a.endpoint, 0, 1, "x", 1, -1));
    IS(AM_ERR_BAD_ARG, am_request_i(a.endpoint, 0, 1, NULL, 9, 0, NULL));
    IS(AM_ERR_BAD_ARG, AM_Request0(a.endpoint, 5, 1));          /* nothing is mapped there */
    IS(AM_ERR_BAD_ARG, AM_Request0(a.endpoint, 1 << 30, 1));    /* there is no such index */
    IS(AM_ERR_BAD_ARG, AM_RequestI0(a.endpoint, UINT32_MAX, 1, "x", 1));
    CHECK(back.times == 0);
    OK(AM_Terminate());
}

/* ---- Returned messages, and their reasons. */

static void expect_back(int times, int status, op_t opcode) {
    UNTIL(back.times == times);
    CHECK(back.status == status && back.told.status == status);
    CHECK(back.opcode == opcode && back.told.opcode == opcode);
    CHECK(back.endpoint == a.endpoint && am_same_name(back.source, a.name));
    CHECK(back.reply_code == AM_ERR_RESOURCE);
    CHECK(back.told.reason != NULL && strlen(back.told.reason) > 10);
}

static void returned_bad_args(void) {
    make_pair();
    OK(AM_SetHandler(a.endpoint, 0, keep));
    OK(am_set_returns_misuse(a.endpoint, 1));
    OK(am_request(a.endpoint, 0, 9, 17, NULL));
    expect_back(1, EBADARGS, AM_REQUEST_M);
    CHECK(back.told.handler == 9 && back.told.index == 0 && back.told.is_certain);
    OK(am_set_returns_misuse(a.endpoint, 0));
    IS(AM_ERR_BAD_ARG, am_request(a.endpoint, 0, 9, 17, NULL));
    CHECK(back.times == 1);
    OK(AM_Terminate());
}

static void returned_bad_entry(void) {
    make_pair();
    OK(AM_SetHandler(a.endpoint, 0, keep));
    OK(am_set_returns_misuse(a.endpoint, 1));
    OK(AM_RequestI2(a.endpoint, 9, 3, "lost", 4, 5, 6));
    expect_back(1, EBADENTRY, AM_REQUEST_IM);
    CHECK(back.told.index == 9 && back.told.handler == 3 && back.told.numargs == 2);
    CHECK(back.told.args[0] == 5 && back.told.args[1] == 6 && memcmp(back.contents, "lost", 4) == 0);
    OK(AM_Terminate());
}

static void returned_bad_tag(void) {
    make_pair();
    OK(AM_SetHandler(a.endpoint, 0, keep));
    OK(AM_SetHandler(b.endpoint, 1, none));
    OK(AM_Map(a.endpoint, 1, b.name, TAG_B + 1));
    OK(AM_RequestI3(a.endpoint, 1, 1, "kept", 4, 7, 8, 9));
    expect_back(1, EBADTAG, AM_REQUEST_IM);
    CHECK(back.told.index == 1 && back.told.handler == 1 && back.told.numargs == 3 && back.told.args[2] == 9);
    CHECK(back.told.nbytes == 4 && memcmp(back.contents, "kept", 4) == 0);
    CHECK(back.tag == TAG_B + 1 && back.told.is_certain);
    /* With the right tag it arrives. After the tag has changed it no longer does. */
    OK(AM_Request0(a.endpoint, 0, 1));
    UNTIL(got == 1);
    OK(AM_SetTag(b.endpoint, TAG_B + 5));
    OK(AM_Request0(a.endpoint, 0, 1));
    expect_back(2, EBADTAG, AM_REQUEST_M);
    OK(am_set_translation_tag(a.endpoint, 0, TAG_B + 5));
    OK(AM_Request0(a.endpoint, 0, 1));
    UNTIL(got == 2);
    CHECK(back.times == 2);
    OK(AM_Terminate());
}

static tag_t carried;
static void tell_tag(void *token) {
    got++;
    OK(AM_GetMsgTag(token, &carried));
}

static void tag_none_admits_nobody(void) {
    make_pair();
    OK(AM_SetHandler(a.endpoint, 0, keep));
    OK(AM_SetHandler(b.endpoint, 1, none));
    OK(AM_SetTag(b.endpoint, AM_NONE));
    OK(AM_Request0(a.endpoint, 0, 1));
    expect_back(1, EBADTAG, AM_REQUEST_M);
    OK(AM_Map(a.endpoint, 1, b.name, AM_NONE));
    OK(AM_Request0(a.endpoint, 1, 1));
    expect_back(2, EBADTAG, AM_REQUEST_M);
    OK(AM_SetTag(b.endpoint, TAG_B));
    OK(AM_Request0(a.endpoint, 0, 1));
    UNTIL(got == 1);
    OK(AM_Terminate());
}

static void tag_all_admits_all(void) {
    make_pair();
    OK(AM_SetHandler(a.endpoint, 0, keep));
    OK(AM_SetHandler(b.endpoint, 1, tell_tag));
    OK(AM_SetTag(b.endpoint, AM_ALL));
    OK(AM_Map(a.endpoint, 1, b.name, 987654321));
    OK(AM_Map(a.endpoint, 2, b.name, AM_NONE));
    OK(AM_Request0(a.endpoint, 0, 1));
    UNTIL(got == 1);
    CHECK(carried == TAG_B);
    OK(AM_Request0(a.endpoint, 1, 1));
    UNTIL(got == 2);
    CHECK(carried == 987654321);
    OK(AM_Request0(a.endpoint, 2, 1));
    UNTIL(got == 3);
    CHECK(carried == AM_NONE && back.times == 0);
    OK(AM_Terminate());
}

static void returned_bad_handler(void) {
    make_pair();
    OK(AM_SetHandler(a.endpoint, 0, keep));
    OK(AM_Request2(a.endpoint, 0, 17, 1, 2));
    expect_back(1, EBADHANDLER, AM_REQUEST_M);
    CHECK(back.told.handler == 17 && back.told.numargs == 2 && back.told.args[1] == 2);
    /* Handler 0 takes no messages from peers. */
    OK(AM_Request0(a.endpoint, 0, 0));
    expect_back(2, EBADHANDLER, AM_REQUEST_M);
    OK(AM_Terminate());
}

static void returned_bad_endpoint(void) {
    make_pair();
    OK(AM_SetHandler(a.endpoint, 0, keep));
    OK(AM_SetHandler(b.endpoint, 1, none));
    OK(AM_Request0(a.endpoint, 0, 1));
    UNTIL(got == 1);
    OK(AM_FreeEndpoint(b.endpoint));
    OK(AM_Request0(a.endpoint, 0, 1));
    expect_back(1, EBADENDPOINT, AM_REQUEST_M);
    /* A peer that was never called. */
    ep_t other;
    en_t name;
    OK(AM_AllocateEndpoint(b.bundle, &other, &name));
    OK(AM_Map(a.endpoint, 1, name, 5));
    OK(AM_FreeEndpoint(other));
    OK(AM_Request0(a.endpoint, 1, 1));
    expect_back(2, EBADENDPOINT, AM_REQUEST_M);
    OK(AM_Terminate());
}

static void returned_congestion(void) {
    OK(AM_Init());
    a = make_side(AM_SEQ, TAG_A);
    /* A bundle that may hold nearly nothing for endpoints that are not served. */
    weft_node *node;
    weft_options options = {.parked_bytes_most = 1};
    weft_bundle *bundle;
    CHECK(weft_node_new(&node) == WEFT_OK && weft_bundle_new(node, &options, &bundle) == WEFT_OK);
    b.bundle = bundle;
    OK(AM_AllocateEndpoint(b.bundle, &b.endpoint, &b.name));
    OK(AM_SetTag(b.endpoint, TAG_B));
    OK(AM_Map(a.endpoint, 0, b.name, TAG_B));
    OK(AM_SetHandler(a.endpoint, 0, keep));
    OK(AM_SetHandler(b.endpoint, 1, none));
    CHECK(weft_endpoint_set_served(b.endpoint, 0) == WEFT_OK);
    OK(AM_RequestI1(a.endpoint, 0, 1, "no room for this", 16, 4));
    expect_back(1, ECONGESTION, AM_REQUEST_IM);
    CHECK(back.told.nbytes == 16 && memcmp(back.contents, "no room for this", 16) == 0 && got == 0);
    CHECK(weft_endpoint_set_served(b.endpoint, 1) == WEFT_OK);
    OK(AM_RequestI0(a.endpoint, 0, 1, "room", 4));
    UNTIL(got == 1);
    OK(AM_Terminate());
    CHECK(weft_bundle_free(bundle) == WEFT_OK && weft_node_free(node) == WEFT_OK);
}

static void returned_unreachable(void) {
    int from_child[2];
    CHECK(pipe(from_child) == 0);
    pid_t child = fork();
    OK(AM_Init());
    if (child == 0) {
        b = make_side(AM_SEQ, TAG_B);
        OK(AM_SetHandler(b.endpoint, 1, none));
        CHECK(write(from_child[1], &b.name, sizeof b.name) == sizeof b.name);
        for (;;) OK(AM_Poll(b.bundle));
    }
    a = b = make_side(AM_SEQ, TAG_A);
    en_t peer;
    CHECK(read(from_child[0], &peer, sizeof peer) == sizeof peer);
    OK(AM_Map(a.endpoint, 0, peer, TAG_B));
    OK(AM_SetHandler(a.endpoint, 0, keep));
    OK(AM_Request0(a.endpoint, 0, 1));
    CHECK(kill(child, SIGKILL) == 0 && waitpid(child, NULL, 0) == child);
    for (int sent = 0; sent < 3; sent++) OK(AM_RequestI1(a.endpoint, 0, 1, "to nobody", 9, sent));
    UNTIL(back.firsts == 7);
    CHECK(back.status == EUNREACHABLE && back.opcode == AM_REQUEST_IM);
    /* Later messages come back too. */
    int before = back.times;
    OK(AM_Request0(a.endpoint, 0, 1));
    expect_back(before + 1, EUNREACHABLE, AM_REQUEST_M);
    OK(AM_Terminate());
}

static void reply_to_nobody(void *token, void *buffer, size_t bytes) {
    got++;
    OK(AM_ReplyI1(token, 55, buffer, bytes, 11));
}

static void returned_reply_rejected(void) {
    make_pair();
    /* `a` answers, and `b` has no handler for the answer. */
    OK(AM_Map(b.endpoint, 0, a.name, TAG_A));
    OK(AM_SetHandler(a.endpoint, 0, keep));
    OK(AM_SetHandler(a.endpoint, 1, reply_to_nobody));
    OK(AM_RequestI0(b.endpoint, 0, 1, "answer me", 9));
    expect_back(1, EREPLYREJECTED, AM_REPLY_IM);
    CHECK(back.told.index == -1 && back.told.handler == 55 && back.told.args[0] == 11);
    CHECK(memcmp(back.contents, "answer me", 9) == 0);
    OK(AM_Terminate());
}

static void default_handler_ends_the_program(void) {
    fflush(stdout);
    int errors[2];
    CHECK(pipe(errors) == 0);
    pid_t child = fork();
    if (child == 0) {
        dup2(errors[1], 2);
        make_pair();
        OK(AM_Request1(a.endpoint, 0, 33, 1));
        for (;;) {
            OK(AM_Poll(a.bundle));
            OK(AM_Poll(b.bundle));
        }
    }
    close(errors[1]);
    char line[1000] = {0};
    size_t length = 0;
    for (ssize_t more; length < sizeof line - 1 && (more = read(errors[0], line + length, sizeof line - 1 - length)) > 0;)
        length += (size_t)more;
    int status;
    CHECK(waitpid(child, &status, 0) == child && WIFSIGNALED(status) && WTERMSIG(status) == SIGABRT);
    CHECK(strstr(line, "EBADHANDLER") && strstr(line, "handler 33") && strchr(line, '\n') == line + length - 1);
}

/* ---- The rules for handlers. */

static void *old_token;
static int codes[16];

static void breaks_rules(void *token, int x) {
    ep_t endpoint;
    int mask;
    en_t source;
    tag_t tag;
    int index, category, is_request;
    handler_t number;
    am_returned_t returned;
    got++;
    CHECK(x == 5);
    /* Questions about the message. */
    OK(AM_GetDestEndpoint(token, &endpoint));
    OK(AM_GetSourceEndpoint(token, &source));
    OK(AM_GetMsgTag(token, &tag));
    OK(am_get_source_index(token, &index));
    OK(am_get_token_info(token, &number, &category, &is_request));
    CHECK(endpoint == b.endpoint && am_same_name(source, a.name) && tag == TAG_B && index == 3);
    CHECK(number == 1 && category == AM_SHORT && is_request == 1);
    IS(AM_ERR_RESOURCE, am_get_returned(token, &returned));
    IS(AM_ERR_BAD_ARG, AM_GetDestEndpoint(token, NULL));
    IS(AM_ERR_BAD_ARG, AM_GetSourceEndpoint(token, NULL));
    IS(AM_ERR_BAD_ARG, AM_GetMsgTag(token, NULL));
    IS(AM_ERR_BAD_ARG, am_get_token_info(token, NULL, &category, &is_request));
    /* Calls that the handler may not make on the bundle that runs it. */
    IS(AM_ERR_RESOURCE, AM_Poll(b.bundle));
    IS(AM_ERR_RESOURCE, AM_Wait(b.bundle));
    IS(AM_ERR_RESOURCE, AM_WaitSema(b.bundle));
    IS(AM_ERR_RESOURCE, AM_Request0(b.endpoint, 3, 1));
    IS(AM_ERR_RESOURCE, AM_RequestI0(b.endpoint, 3, 1, "x", 1));
    IS(AM_ERR_RESOURCE, AM_RequestXfer0(b.endpoint, 3, 0, 1, "x", 1));
    IS(AM_ERR_RESOURCE, AM_FreeEndpoint(b.endpoint));
    IS(AM_ERR_RESOURCE, AM_FreeBundle(b.bundle));
    IS(AM_ERR_RESOURCE, AM_MoveEndpoint(b.endpoint, b.bundle, a.bundle));
    IS(AM_ERR_RESOURCE, AM_SetTag(b.endpoint, 1));
    IS(AM_ERR_RESOURCE, AM_Map(b.endpoint, 9, a.name, 1));
    IS(AM_ERR_RESOURCE, AM_SetHandler(b.endpoint, 9, none));
    /* Calls that it may make. */
    OK(AM_GetTag(b.endpoint, &tag));
    OK(AM_GetEventMask(b.bundle, &mask));
    OK(AM_GetTranslationInuse(b.endpoint, 3));
    /* Only one reply. */
    IS(AM_ERR_BAD_ARG, am_reply(token, 2, 17, NULL));
    OK(AM_Reply1(token, 2, 6));
    IS(AM_ERR_RESOURCE, AM_Reply1(token, 2, 6));
    IS(AM_ERR_RESOURCE, AM_ReplyI1(token, 2, "x", 1, 6));
    if (old_token) IS(AM_ERR_BAD_ARG, AM_Reply0(old_token, 2));
    old_token = token;
}

static void may_not_reply(void *token, int x) {
    int category, is_request;
    handler_t number;
    answered++;
    CHECK(x == 6);
    OK(am_get_token_info(token, &number, &category, &is_request));
    CHECK(number == 2 && is_request == 0);
    codes[0] = AM_Reply0(token, 1);
    codes[1] = AM_ReplyI0(token, 1, "x", 1);
    codes[2] = AM_Request0(a.endpoint, 0, 1);
    codes[3] = AM_Poll(a.bundle);
}

static void rules_of_handlers(void) {
    for (int mode = AM_SEQ; mode <= AM_PAR; mode++) {
        got = answered = 0;
        old_token = NULL;
        OK(AM_Init());
        a = make_side(mode, TAG_A);
        b = make_side(mode, TAG_B);
        OK(AM_Map(a.endpoint, 0, b.name, TAG_B));
        OK(AM_Map(b.endpoint, 3, a.name, TAG_A));
        OK(AM_SetHandler(b.endpoint, 1, breaks_rules));
        OK(AM_SetHandler(a.endpoint, 2, may_not_reply));
        for (int times = 1; times <= 2; times++) {
            OK(AM_Request1(a.endpoint, 0, 1, 5));
            UNTIL(answered == times);
            CHECK(got == times);
            for (int at = 0; at < 4; at++) CHECK(codes[at] == AM_ERR_RESOURCE);
        }
        IS(AM_ERR_BAD_ARG, AM_Reply0(old_token, 2));
        IS(AM_ERR_BAD_ARG, AM_GetMsgTag(old_token, &carried));
        OK(AM_Terminate());
    }
}

/* ---- Credit: a request without an answer gives it back. */

static void automatic_reply(void) {
    make_pair();
    OK(AM_SetHandler(b.endpoint, 1, none));
    OK(AM_Request0(a.endpoint, 0, 1));
    UNTIL(got == 1);
    int sent = 1;
    for (int round = 0; round < 100; round++) {
        for (int burst = 0; burst < 32; burst++, sent++) OK(AM_Request0(a.endpoint, 0, 1));
        UNTIL(got == sent);
        pump();
    }
    OK(AM_Terminate());
}

/* ---- Waiting: the sender is a process of its own. */

static int wait_bundle_mode;

static void waiting_in(int mode) {
    int to_child[2], from_child[2];
    CHECK(pipe(to_child) == 0 && pipe(from_child) == 0);
    pid_t child = fork();
    OK(AM_Init());
    wait_bundle_mode = mode;
    a = make_side(mode, TAG_A);
    if (child == 0) {
        en_t peer;
        char word;
        close(to_child[1]);
        CHECK(read(to_child[0], &peer, sizeof peer) == sizeof peer);
        OK(AM_Map(a.endpoint, 0, peer, TAG_A));
        for (int sent = 0; sent < 20; sent++) {
            CHECK(read(to_child[0], &word, 1) == 1);
            OK(AM_Request0(a.endpoint, 0, 1));
            CHECK(write(from_child[1], "x", 1) == 1);
        }
        CHECK(read(to_child[0], &word, 1) == 0); /* until the other process has everything */
        OK(AM_Terminate());
        exit(0);
    }
    close(to_child[0]);
    OK(AM_SetHandler(a.endpoint, 1, none));
    CHECK(write(to_child[1], &a.name, sizeof a.name) == sizeof a.name);
    /* No events: returns at once, though nothing comes. */
    double begin = seconds();
    OK(AM_WaitSema(a.bundle));
    OK(AM_Wait(a.bundle));
    CHECK(seconds() - begin < 5 && got == 0);
    OK(AM_SetEventMask(a.bundle, AM_NOTEMPTY));
    for (int expected = 1; expected <= 20; expected++) {
        char word;
        CHECK(write(to_child[1], "x", 1) == 1);
        /* The message may come before the wait, or during it: as the first one, whose session is set up with both sides. The handler has
         * run when the wait is over, and the mask stays. */
        if (expected % 2 == 0) CHECK(read(from_child[0], &word, 1) == 1);
        while (got < expected) OK(expected % 3 ? AM_WaitSema(a.bundle) : AM_Wait(a.bundle));
        if (expected % 2) {
            struct timespec moment = {0, 1000000};
            nanosleep(&moment, NULL);
            CHECK(read(from_child[0], &word, 1) == 1);
        }
        int mask;
        OK(AM_GetEventMask(a.bundle, &mask));
        CHECK(mask == AM_NOTEMPTY && got == expected);
    }
    /* The mask may be taken off again. */
    OK(AM_SetEventMask(a.bundle, AM_NOEVENTS));
    OK(AM_WaitSema(a.bundle));
    close(to_child[1]);
    int status;
    CHECK(waitpid(child, &status, 0) == child && status == 0);
    OK(AM_Terminate());
}

static void waiting(void) { waiting_in(AM_SEQ); }
static void waiting_parallel(void) { waiting_in(AM_PAR); }

/* ---- Moving an endpoint while messages come. */

static int per_sequence[10000];

static void count_sequence(void *token, int number) {
    got++;
    per_sequence[number]++;
    OK(AM_Reply1(token, 2, number));
}

static void count_answer(void *token, int number) {
    (void)token;
    (void)number;
    answered++;
}

static void moving(void) {
    enum { COUNT = 10000 };
    make_pair();
    struct side other = make_side(AM_PAR, 1);
    OK(AM_SetHandler(b.endpoint, 1, count_sequence));
    OK(AM_SetHandler(a.endpoint, 2, count_answer));
    IS(AM_ERR_RESOURCE, AM_MoveEndpoint(b.endpoint, a.bundle, b.bundle));
    OK(AM_MoveEndpoint(b.endpoint, b.bundle, b.bundle));
    eb_t at = b.bundle, next = other.bundle;
    for (int sent = 0; sent < COUNT; sent++) {
        /* Below the window of 32, so no send waits here for the side that only this thread polls. */
        while (sent - answered >= 30) {
            OK(AM_Poll(a.bundle));
            OK(AM_Poll(b.bundle));
            OK(AM_Poll(other.bundle));
        }
        OK(AM_Request1(a.endpoint, 0, 1, sent));
        if (sent % 500 == 499) {
            OK(AM_MoveEndpoint(b.endpoint, at, next));
            eb_t old = at;
            at = next;
            next = old;
        }
    }
    double begin = seconds();
    while (answered < COUNT) {
        OK(AM_Poll(a.bundle));
        OK(AM_Poll(b.bundle));
        OK(AM_Poll(other.bundle));
        CHECK(seconds() - begin < 60);
    }
    for (int number = 0; number < COUNT; number++) CHECK(per_sequence[number] == 1);
    /* Its settings moved along. */
    tag_t tag;
    OK(AM_GetTag(b.endpoint, &tag));
    CHECK(tag == TAG_B && got == COUNT);
    OK(AM_Terminate());
}

/* ---- Remapping under traffic. */

static void remapping(void) {
    make_pair();
    struct side other = make_side(AM_SEQ, TAG_B);
    (void)other;
    ep_t second;
    en_t name;
    OK(AM_AllocateEndpoint(b.bundle, &second, &name));
    OK(AM_SetTag(second, 300));
    OK(AM_SetHandler(b.endpoint, 1, short1));
    OK(AM_SetHandler(second, 1, short1));
    OK(AM_SetHandler(a.endpoint, 101, answer0));
    for (int round = 1; round <= 50; round++) {
        OK(AM_Request1(a.endpoint, 0, 1, round));
        UNTIL(answered == round);
        OK(AM_UnMap(a.endpoint, 0));
        IS(AM_ERR_BAD_ARG, AM_Request1(a.endpoint, 0, 1, round));
        OK(AM_Map(a.endpoint, 0, round % 2 ? name : b.name, round % 2 ? 300 : TAG_B));
    }
    OK(AM_Terminate());
}

/* ---- A message to the sending endpoint itself. */

static void loopback(void) {
    OK(AM_Init());
    a = b = make_side(AM_SEQ, TAG_A);
    OK(AM_Map(a.endpoint, 0, a.name, TAG_A));
    OK(AM_SetHandler(a.endpoint, 1, short1));
    OK(AM_SetHandler(a.endpoint, 101, reply1));
    for (int times = 1; times <= 100; times++) {
        OK(AM_Request1(a.endpoint, 0, 1, times));
        UNTIL(answered == times);
        CHECK(got == times);
    }
    OK(AM_Terminate());
}

/* ---- A forked child has nothing of its parent. */

static void forked_child(void) {
    make_pair();
    pid_t child = fork();
    if (child == 0) {
        IS(AM_ERR_NOT_INIT, AM_Poll(a.bundle));
        IS(AM_ERR_NOT_INIT, AM_Request0(a.endpoint, 0, 1));
        IS(AM_ERR_NOT_INIT, AM_SetTag(a.endpoint, 5));
        IS(AM_ERR_NOT_INIT, AM_Terminate());
        /* It may have its own. */
        ep_t parents = a.endpoint;
        make_pair();
        IS(AM_ERR_NOT_INIT, AM_SetTag(parents, 5));
        OK(AM_SetHandler(b.endpoint, 1, short1));
        OK(AM_SetHandler(a.endpoint, 101, reply1));
        OK(AM_Request1(a.endpoint, 0, 1, 5));
        UNTIL(answered == 1);
        OK(AM_Terminate());
        _exit(0);
    }
    int status;
    CHECK(waitpid(child, &status, 0) == child && status == 0);
    OK(AM_Poll(a.bundle));
    OK(AM_Terminate());
}

/* ---- The last AM_Terminate ends nothing while something is in use. */

static int ends_in_handler = -1;

static void end_in_handler(void *token, int argument) {
    (void)token, (void)argument;
    ends_in_handler = AM_Terminate();
}

static volatile int is_over;

static void end_wait(void *token) {
    (void)token;
    is_over = 1;
}

static void *wait_in_bundle(void *bundle) {
    while (!is_over) {
        int code = AM_WaitSema(bundle);
        CHECK(code == AM_OK || code == AM_ERR_IN_USE);
    }
    return NULL;
}

static void terminate_in_use(void) {
    make_pair();
    OK(AM_SetHandler(b.endpoint, 1, end_in_handler));
    OK(AM_Request1(a.endpoint, 0, 1, 5));
    UNTIL(ends_in_handler != -1);
    IS(AM_ERR_RESOURCE, ends_in_handler);
    OK(AM_Poll(a.bundle));
    /* Another thread waits in `b`. */
    pthread_t waiter;
    OK(AM_SetHandler(b.endpoint, 2, end_wait));
    OK(AM_SetEventMask(b.bundle, AM_NOTEMPTY));
    CHECK(pthread_create(&waiter, NULL, wait_in_bundle, b.bundle) == 0);
    /* It sleeps in the bundle once the bundle is in use all the time. */
    for (int times = 0; times < 100; usleep(100))
        times = AM_Poll(b.bundle) == AM_ERR_IN_USE ? times + 1 : 0;
    IS(AM_ERR_IN_USE, AM_Terminate());
    /* Neither of the two was freed. A child has not the thread that waits. */
    pid_t child = fork();
    if (child == 0) {
        IS(AM_ERR_NOT_INIT, AM_Poll(b.bundle));
        _exit(0);
    }
    int status;
    CHECK(waitpid(child, &status, 0) == child && status == 0);
    OK(AM_Request0(a.endpoint, 0, 2));
    CHECK(pthread_join(waiter, NULL) == 0);
    OK(AM_Poll(b.bundle));
    OK(AM_Terminate());
    IS(AM_ERR_NOT_INIT, AM_Poll(a.bundle));
}

static const struct test tests[] = {
    {"short_messages", short_messages},
    {"medium_messages", medium_messages},
    {"bad_arguments", bad_arguments},
    {"returned_bad_args", returned_bad_args},
    {"returned_bad_entry", returned_bad_entry},
    {"returned_bad_tag", returned_bad_tag},
    {"returned_bad_handler", returned_bad_handler},
    {"returned_bad_endpoint", returned_bad_endpoint},
    {"returned_congestion", returned_congestion},
    {"returned_unreachable", returned_unreachable},
    {"returned_reply_rejected", returned_reply_rejected},
    {"default_handler_ends_the_program", default_handler_ends_the_program},
    {"tag_none_admits_nobody", tag_none_admits_nobody},
    {"tag_all_admits_all", tag_all_admits_all},
    {"rules_of_handlers", rules_of_handlers},
    {"automatic_reply", automatic_reply},
    {"waiting", waiting},
    {"waiting_parallel", waiting_parallel},
    {"moving", moving},
    {"remapping", remapping},
    {"loopback", loopback},
    {"forked_child", forked_child},
    {"terminate_in_use", terminate_in_use},
};

int main(int argc, char **argv) { return run_test(tests, sizeof tests / sizeof *tests, argc, argv); }
