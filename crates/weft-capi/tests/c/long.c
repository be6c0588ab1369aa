/* Segments, long messages, gets, and mediums without bytes. */
#include "check.h"

static unsigned char mine[1 << 20], theirs[1 << 20];
static int got, answered;
static void *seen_buffer;
static size_t seen_bytes;

static unsigned char byte_of(size_t at) { return (unsigned char)(at * 31 + (at >> 8)); }

static void fill(unsigned char *bytes, size_t count) {
    for (size_t at = 0; at < count; at++) bytes[at] = byte_of(at);
}

static void placed(void *token, void *buffer, size_t bytes, int x) {
    int category, is_request;
    handler_t number;
    got++;
    seen_buffer = buffer;
    seen_bytes = bytes;
    OK(am_get_token_info(token, &number, &category, &is_request));
    CHECK(x == 7 && is_request && category == AM_LONG);
}

static void make_segments(void) {
    make_pair();
    OK(AM_SetSeg(a.endpoint, mine, sizeof mine));
    OK(AM_SetSeg(b.endpoint, theirs, sizeof theirs));
    OK(AM_SetHandler(a.endpoint, 0, keep));
}

static void segments(void) {
    void *address;
    uintptr_t bytes;
    make_pair();
    OK(AM_SetSeg(a.endpoint, mine, 100));
    OK(AM_GetSeg(a.endpoint, &address, &bytes));
    CHECK(address == mine && bytes == 100);
    OK(AM_SetSeg(a.endpoint, theirs, 200)); /* again */
    OK(AM_GetSeg(a.endpoint, &address, &bytes));
    CHECK(address == theirs && bytes == 200);
    OK(AM_SetSeg(a.endpoint, NULL, 0)); /* none */
    OK(AM_GetSeg(a.endpoint, &address, &bytes));
    CHECK(address == NULL && bytes == 0);
    IS(AM_ERR_BAD_ARG, AM_SetSeg(a.endpoint, NULL, 5));
    IS(AM_ERR_BAD_ARG, AM_SetSeg(a.endpoint, mine, (uintptr_t)-1));
    OK(AM_Terminate());
}

static void long_requests(void) {
    static const size_t sizes[] = {1, 7, 4096, 16383, 16384, 16385, 65535, 65536, 65537, 1000000};
    static unsigned char contents[1000000];
    make_segments();
    OK(AM_SetHandler(b.endpoint, 1, placed));
    for (int at = 0; at < (int)(sizeof sizes / sizeof *sizes); at++) {
        size_t bytes = sizes[at], offset = (size_t)at * 100;
        memset(theirs, 0, sizeof theirs);
        fill(contents, bytes);
        OK(AM_RequestXfer1(a.endpoint, 0, offset, 1, contents, bytes, 7));
        memset(contents, 0, bytes); /* the buffer may be reused */
        UNTIL(got == at + 1);
        CHECK(seen_buffer == theirs + offset && seen_bytes == bytes);
        for (size_t byte = 0; byte < bytes; byte++) CHECK(theirs[offset + byte] == byte_of(byte));
        CHECK(theirs[offset + bytes] == 0 && (offset == 0 || theirs[offset - 1] == 0));
    }
    OK(AM_RequestXfer(a.endpoint, 0, 1, "run time", 8, 50, 0, 1, 7));
    UNTIL(got == (int)(sizeof sizes / sizeof *sizes) + 1);
    CHECK(memcmp(theirs + 50, "run time", 8) == 0);
    IS(AM_ERR_BAD_ARG, AM_RequestXfer1(a.endpoint, 0, 0, 1, NULL, 1, 7));
    IS(AM_ERR_BAD_ARG, AM_RequestXfer1(a.endpoint, 0, 0, 1, contents, (size_t)AM_MaxLong() + 1, 7));
    IS(AM_ERR_BAD_ARG, AM_RequestXfer1(a.endpoint, 0, (uintptr_t)-1, 1, contents, 2, 7));
    IS(AM_ERR_BAD_ARG, AM_RequestXfer1(a.endpoint, 77, 0, 1, contents, 2, 7));
    CHECK(back.times == 0);
    OK(AM_Terminate());
}

static void counts(void *token, void *buffer, size_t bytes) {
    (void)token;
    (void)buffer;
    (void)bytes;
    got++;
}

static void asynchronous(void) {
    static unsigned char contents[100000];
    make_segments();
    OK(AM_SetHandler(b.endpoint, 1, counts));
    OK(AM_RequestXfer0(a.endpoint, 0, 0, 1, "x", 1));
    UNTIL(got == 1);
    /* It does not block: nobody takes the messages, so the window of 32 fills up. */
    int sent = 0, code;
    while ((code = AM_RequestXferAsync0(a.endpoint, 0, 0, 1, contents, sizeof contents)) == AM_OK) CHECK(++sent <= 40);
    CHECK(code == AM_ERR_IN_USE && sent >= 1);
    UNTIL(got == sent + 1);
    OK(AM_RequestXferAsync0(a.endpoint, 0, 0, 1, contents, sizeof contents));
    UNTIL(got == sent + 2);
    OK(AM_Terminate());
}

static void answers_long(void *token, void *buffer, size_t bytes, int offset) {
    got++;
    OK(AM_ReplyXfer2(token, (uintptr_t)offset, 2, buffer, bytes, (int)bytes, 3));
    IS(AM_ERR_RESOURCE, AM_ReplyXfer0(token, 0, 2, "x", 1));
    IS(AM_ERR_RESOURCE, AM_Reply0(token, 2));
}

static void long_answer(void *token, void *buffer, size_t bytes, int count, int three) {
    (void)token;
    answered++;
    CHECK((size_t)count == bytes && three == 3 && buffer == mine + 64);
    for (size_t at = 0; at < bytes; at++) CHECK(mine[64 + at] == byte_of(at));
}

static void long_replies(void) {
    static unsigned char contents[300000];
    make_segments();
    OK(AM_SetHandler(b.endpoint, 1, answers_long));
    OK(AM_SetHandler(a.endpoint, 2, long_answer));
    fill(contents, sizeof contents);
    for (int times = 1; times <= 20; times++) {
        memset(mine, 0, sizeof mine);
        OK(AM_RequestXfer1(a.endpoint, 0, 0, 1, contents, sizeof contents / (size_t)times, 64));
        UNTIL(answered == times);
    }
    CHECK(got == 20 && back.times == 0);
    OK(AM_Terminate());
}

static void fetched(void *token, void *buffer, size_t bytes, int x0, int x1, int x2, int x3) {
    (void)token;
    answered++;
    seen_buffer = buffer;
    seen_bytes = bytes;
    CHECK(x0 == 1 && x1 == 2 && x2 == 3 && x3 == 4);
}

static void fetched8(void *token, void *buffer, size_t bytes, int x0, int x1, int x2, int x3, int x4, int x5, int x6, int x7) {
    fetched(token, buffer, bytes, x0, x1, x2, x3);
    CHECK(x4 == 5 && x5 == 6 && x6 == 7 && x7 == 8);
}

static void gets(void) {
    make_segments();
    fill(theirs, sizeof theirs);
    OK(AM_SetHandler(a.endpoint, 5, fetched));
    OK(AM_SetHandler(a.endpoint, 6, fetched8));
    OK(AM_GetXfer4(a.endpoint, 0, 1000, 5, 16, 200000, 1, 2, 3, 4));
    UNTIL(answered == 1);
    CHECK(seen_buffer == mine + 16 && seen_bytes == 200000);
    for (size_t at = 0; at < 200000; at++) CHECK(mine[16 + at] == byte_of(1000 + at));
    OK(AM_GetXferAsynch8(a.endpoint, 0, 3, 6, 0, 10, 1, 2, 3, 4, 5, 6, 7, 8));
    UNTIL(answered == 2);
    CHECK(mine[0] == byte_of(3) && mine[9] == byte_of(12));
    /* Past the end there, and with no segment there. */
    OK(AM_GetXfer4(a.endpoint, 0, sizeof theirs - 5, 5, 0, 10, 1, 2, 3, 4));
    UNTIL(back.times == 1);
    CHECK(back.status == EBADLENGTH);
    OK(AM_SetSeg(b.endpoint, NULL, 0));
    OK(AM_GetXfer4(a.endpoint, 0, 0, 5, 0, 10, 1, 2, 3, 4));
    UNTIL(back.times == 2);
    CHECK(back.status == EBADSEGOFF && answered == 2);
    IS(AM_ERR_BAD_ARG, AM_GetXfer4(a.endpoint, 9, 0, 5, 0, 10, 1, 2, 3, 4));
    IS(AM_ERR_BAD_ARG, AM_GetXfer4(a.endpoint, 0, (uintptr_t)-1, 5, 0, 10, 1, 2, 3, 4));
    OK(AM_Terminate());
}

static void returned_bad_offset(void) {
    make_segments();
    OK(AM_SetHandler(b.endpoint, 1, placed));
    OK(AM_SetSeg(b.endpoint, NULL, 0));
    OK(AM_RequestXfer1(a.endpoint, 0, 0, 1, "without a segment", 17, 7));
    UNTIL(back.times == 1);
    CHECK(back.status == EBADSEGOFF && back.opcode == AM_REQUEST_XFER_M);
    CHECK(back.told.nbytes == 17 && memcmp(back.contents, "without a segment", 17) == 0 && back.told.args[0] == 7);
    OK(AM_SetSeg(b.endpoint, theirs, 1000));
    OK(AM_RequestXfer1(a.endpoint, 0, 1000, 1, "behind it", 9, 7));
    UNTIL(back.times == 2);
    CHECK(back.status == EBADSEGOFF && got == 0);
    OK(AM_Terminate());
}

static void returned_bad_length(void) {
    static unsigned char contents[40000];
    make_segments();
    OK(AM_SetHandler(b.endpoint, 1, placed));
    OK(AM_SetSeg(b.endpoint, theirs, 30000));
    memset(theirs, 0, sizeof theirs);
    fill(contents, sizeof contents);
    OK(AM_RequestXfer1(a.endpoint, 0, 0, 1, contents, sizeof contents, 7));
    UNTIL(back.times == 1);
    CHECK(back.status == EBADLENGTH && back.opcode == AM_REQUEST_XFER_M && back.told.nbytes == sizeof contents);
    for (size_t at = 0; at < sizeof contents; at++) CHECK(back.contents[at] == byte_of(at));
    for (size_t at = 30000; at < sizeof theirs; at++) CHECK(theirs[at] == 0);
    /* To the last byte it goes. */
    OK(AM_RequestXfer1(a.endpoint, 0, 29990, 1, contents, 10, 7));
    UNTIL(got == 1);
    CHECK(back.times == 1);
    OK(AM_Terminate());
}

static void whole_address_space(void) {
    static unsigned char anywhere[5000];
    make_segments();
    OK(AM_SetHandler(b.endpoint, 1, placed));
    int code = AM_SetSeg(b.endpoint, NULL, (uintptr_t)-1);
    if (code == AM_ERR_RESOURCE) return; /* this kernel does not allow it */
    OK(code);
    void *address = mine;
    uintptr_t bytes = 0;
    OK(AM_GetSeg(b.endpoint, &address, &bytes));
    CHECK(address == NULL && bytes == (uintptr_t)-1);
    OK(AM_RequestXfer1(a.endpoint, 0, (uintptr_t)anywhere + 100, 1, "anywhere", 8, 7));
    UNTIL(got == 1);
    CHECK(seen_buffer == anywhere + 100 && memcmp(anywhere + 100, "anywhere", 8) == 0);
    /* Where nothing is mapped, the message just comes back. */
    OK(AM_RequestXfer1(a.endpoint, 0, 8, 1, "nowhere", 7, 7));
    UNTIL(back.times == 1);
    CHECK((back.status == EBADSEGOFF || back.status == EBADLENGTH) && got == 1);
    OK(AM_Terminate());
}

static int empty_category;

static void empty(void *token, void *buffer, size_t bytes, int x) {
    int is_request;
    handler_t number;
    got++;
    CHECK(bytes == 0 && buffer != NULL && x == 5);
    OK(am_get_token_info(token, &number, &empty_category, &is_request));
    OK(AM_ReplyI1(token, 2, NULL, 0, 6));
}

static void empty_answer(void *token, void *buffer, size_t bytes, int x) {
    (void)token;
    (void)buffer;
    answered++;
    CHECK(bytes == 0 && x == 6);
}

/* A medium message without bytes still has a buffer, which its handler takes. */
static void without_bytes(void) {
    make_segments();
    OK(AM_SetHandler(b.endpoint, 1, empty));
    OK(AM_SetHandler(b.endpoint, 3, placed));
    OK(AM_SetHandler(a.endpoint, 2, empty_answer));
    OK(AM_RequestI1(a.endpoint, 0, 1, NULL, 0, 5));
    UNTIL(answered == 1);
    CHECK(empty_category == AM_MEDIUM);
    OK(AM_RequestXfer1(a.endpoint, 0, 99, 3, NULL, 0, 7));
    UNTIL(got == 2);
    CHECK(seen_bytes == 0 && seen_buffer == theirs + 99);
    OK(AM_RequestI0(a.endpoint, 0, 99, NULL, 0));
    UNTIL(back.times == 1);
    CHECK(back.status == EBADHANDLER && back.opcode == AM_REQUEST_IM);
    OK(AM_Terminate());
}

static void returned_reply_outside(void) {
    make_segments();
    OK(AM_Map(b.endpoint, 0, a.name, TAG_A));
    OK(AM_SetHandler(a.endpoint, 1, answers_long));
    OK(AM_SetSeg(b.endpoint, theirs, 10));
    OK(AM_RequestXfer1(b.endpoint, 0, 0, 1, "longer than ten bytes", 21, 0));
    UNTIL(back.times == 1);
    CHECK(back.status == EREPLYREJECTED && back.opcode == AM_REPLY_XFER_M && back.told.index == -1);
    CHECK(back.told.nbytes == 21 && memcmp(back.contents, "longer than ten bytes", 21) == 0);
    OK(AM_Terminate());
}

static const struct test tests[] = {
    {"segments", segments},
    {"long_requests", long_requests},
    {"asynchronous", asynchronous},
    {"long_replies", long_replies},
    {"gets", gets},
    {"returned_bad_offset", returned_bad_offset},
    {"returned_bad_length", returned_bad_length},
    {"returned_reply_outside", returned_reply_outside},
    {"whole_address_space", whole_address_space},
    {"without_bytes", without_bytes},
};

int main(int argc, char **argv) { return run_test(tests, sizeof tests / sizeof *tests, argc, argv); }
