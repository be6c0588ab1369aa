/* weft.h: objects and their errors, handlers with a context, replies at once and later, events, waiting in other loops. */
#include "check.h"

#include <poll.h>
#include <weft.h>

#define WELL(call) IS(WEFT_OK, call)

static weft_node *node;
static weft_bundle *one, *two;
static weft_endpoint *here, *there;
static weft_name name_of_there;

static void make_two(void) {
    WELL(weft_node_new(&node));
    WELL(weft_bundle_new(node, NULL, &one));
    WELL(weft_bundle_new(node, NULL, &two));
    WELL(weft_endpoint_new(one, 1, &here));
    WELL(weft_endpoint_new(two, 2, &there));
    WELL(weft_endpoint_name(there, &name_of_there));
    WELL(weft_endpoint_map(here, 0, &name_of_there, 2));
}

static void free_two(void) {
    WELL(weft_bundle_free(one));
    WELL(weft_bundle_free(two));
    WELL(weft_node_free(node));
}

#define BOTH_UNTIL(condition) \
    do { \
        double begin_ = seconds(); \
        while (!(condition)) { \
            WELL(weft_bundle_poll(one, NULL)); \
            WELL(weft_bundle_poll(two, NULL)); \
            check_(seconds() - begin_ < 60, "in time: " #condition, __FILE__, __LINE__); \
        } \
    } while (0)

struct told {
    int times;
    uint32_t sum;
    char text[100];
    weft_reply *later;
    int code;
};

static void add(void *context, weft_message *message, const uint32_t *args, size_t numargs, const void *payload, size_t bytes) {
    struct told *told = context;
    weft_endpoint *endpoint;
    weft_name source;
    int kind;
    uint32_t sum = 0;
    for (size_t at = 0; at < numargs; at++) sum += args[at];
    told->times++;
    WELL(weft_message_endpoint(message, &endpoint));
    WELL(weft_message_source(message, &source));
    WELL(weft_message_kind(message, &kind));
    CHECK(endpoint == there && kind == WEFT_REQUEST);
    IS(WEFT_ERROR_IN_HANDLER, weft_bundle_poll(two, NULL));
    IS(WEFT_ERROR_IN_HANDLER, weft_send(there, 0, 1, NULL, 0, NULL, 0, 0));
    WELL(weft_message_reply(message, 2, &sum, 1, payload, bytes));
    IS(WEFT_ERROR_NOT_A_REQUEST, weft_message_reply(message, 2, &sum, 1, payload, bytes));
    IS(WEFT_ERROR_NOT_A_REQUEST, weft_message_defer(message, &told->later));
}

static void hear(void *context, weft_message *message, const uint32_t *args, size_t numargs, const void *payload, size_t bytes) {
    struct told *told = context;
    (void)message;
    told->times++;
    CHECK(numargs == 1 && bytes < sizeof told->text);
    told->sum = args[0];
    if (bytes) memcpy(told->text, payload, bytes);
    told->text[bytes] = 0;
}

static void request_and_reply(void) {
    struct told asked = {0}, answered = {0};
    uint32_t args[] = {40, 2};
    make_two();
    WELL(weft_on(there, 1, add, &asked));
    WELL(weft_on(here, 2, hear, &answered));
    WELL(weft_request(here, 0, 1, args, 2, "with text", 9, -1));
    BOTH_UNTIL(answered.times == 1);
    CHECK(asked.times == 1 && answered.sum == 42 && strcmp(answered.text, "with text") == 0);
    free_two();
}

static void defer(void *context, weft_message *message, const uint32_t *args, size_t numargs, const void *payload, size_t bytes) {
    struct told *told = context;
    (void)args;
    (void)numargs;
    (void)payload;
    (void)bytes;
    told->times++;
    WELL(weft_message_defer(message, &told->later));
}

static void reply_later(void) {
    struct told asked = {0}, answered = {0};
    uint32_t sum = 5;
    make_two();
    WELL(weft_on(there, 1, defer, &asked));
    WELL(weft_on(here, 2, hear, &answered));
    WELL(weft_request(here, 0, 1, NULL, 0, NULL, 0, -1));
    BOTH_UNTIL(asked.times == 1);
    IS(WEFT_ERROR_TOO_LARGE, weft_reply_send(asked.later, 2, &sum, 17, NULL, 0));
    WELL(weft_reply_send(asked.later, 2, &sum, 1, NULL, 0));
    IS(WEFT_ERROR_HANDLE, weft_reply_send(asked.later, 2, &sum, 1, NULL, 0));
    IS(WEFT_ERROR_HANDLE, weft_reply_free(asked.later));
    BOTH_UNTIL(answered.times == 1);
    CHECK(answered.sum == 5);
    /* Given up: the request still ends. */
    WELL(weft_request(here, 0, 1, NULL, 0, NULL, 0, -1));
    BOTH_UNTIL(asked.times == 2);
    WELL(weft_reply_free(asked.later));
    double begin = seconds();
    while (weft_bundle_drain(one, 1) != WEFT_OK) {
        WELL(weft_bundle_poll(two, NULL));
        CHECK(seconds() - begin < 60);
    }
    free_two();
}

static void came_back(void *context, const weft_returned *returned) {
    struct told *told = context;
    told->times++;
    CHECK(returned->destination == 0 && returned->handler == 9 && returned->is_certain && returned->numargs == 1);
    CHECK(strstr(weft_reason_text(returned->reason), "no handler"));
    memcpy(told->text, returned->payload, returned->bytes);
    told->sum = returned->args[0];
}

static void returned_messages(void) {
    struct told told = {0};
    uint32_t arg = 3;
    weft_event event;
    make_two();
    WELL(weft_bundle_next_event(one, &event));
    CHECK(event.kind == WEFT_EVENT_NONE);
    /* As an event. */
    WELL(weft_send(here, 0, 9, &arg, 1, "kept", 4, -1));
    do {
        WELL(weft_bundle_poll(one, NULL));
        WELL(weft_bundle_poll(two, NULL));
        WELL(weft_bundle_next_event(one, &event));
    } while (event.kind != WEFT_EVENT_RETURNED);
    CHECK(event.endpoint == here && event.returned.bytes == 4 && memcmp(event.returned.payload, "kept", 4) == 0);
    /* To a handler. */
    WELL(weft_on_return(here, came_back, &told));
    WELL(weft_send(here, 0, 9, &arg, 1, "again", 5, -1));
    BOTH_UNTIL(told.times == 1);
    CHECK(told.sum == 3 && memcmp(told.text, "again", 5) == 0);
    free_two();
}

static void waits(void) {
    struct told answered = {0};
    uint32_t arg = 8;
    int descriptor, is_armed = 0, most = 0;
    make_two();
    WELL(weft_on(there, 2, hear, &answered));
    IS(WEFT_ERROR_TIMED_OUT, weft_bundle_wait(two, 0));
    IS(WEFT_ERROR_TIMED_OUT, weft_bundle_wait(two, 5));
    WELL(weft_bundle_wake(two));
    WELL(weft_bundle_wait(two, -1));
    WELL(weft_bundle_set_spin_limit(two, 0));
    WELL(weft_send(here, 0, 2, &arg, 1, NULL, 0, -1));
    BOTH_UNTIL(answered.times == 1);
    /* By a descriptor. */
    WELL(weft_bundle_wait_fd(two, &descriptor));
    while (!is_armed) WELL(weft_bundle_arm(two, &is_armed, &most));
    CHECK(most > 0);
    WELL(weft_send(here, 0, 2, &arg, 1, NULL, 0, -1));
    double begin = seconds();
    while (answered.times < 2) {
        struct pollfd entry = {.fd = descriptor, .events = POLLIN};
        poll(&entry, 1, most);
        WELL(weft_bundle_poll(two, NULL));
        CHECK(seconds() - begin < 60);
    }
    free_two();
}

static void names(void) {
    char text[WEFT_NAME_TEXT], small[10];
    weft_name read;
    uint64_t key = 0;
    make_two();
    WELL(weft_name_print(&name_of_there, text, sizeof text));
    CHECK(strlen(text) == WEFT_NAME_TEXT - 1 && strncmp(text, "weft1:", 6) == 0);
    WELL(weft_name_parse(text, &read));
    CHECK(weft_name_equal(&read, &name_of_there) == 1);
    IS(WEFT_ERROR_ARGUMENT, weft_name_print(&name_of_there, small, sizeof small));
    IS(WEFT_ERROR_ARGUMENT, weft_name_print(NULL, text, sizeof text));
    IS(WEFT_ERROR_NAME, weft_name_parse("weft1:short", &read));
    CHECK(strlen(weft_last_error()) > 10);
    IS(WEFT_ERROR_ARGUMENT, weft_name_parse(NULL, &read));
    memset(&read, 0xff, sizeof read);
    IS(WEFT_ERROR_NAME, weft_endpoint_map(here, 1, &read, 1));
    CHECK(weft_name_equal(&read, &name_of_there) == 0 && weft_name_equal(NULL, NULL) == 0);
    WELL(weft_key_parse("00ff", &key));
    CHECK(key == 255);
    IS(WEFT_ERROR_NAME, weft_key_parse("nothing", &key));
    WELL(weft_endpoint_key(there, &key));
    CHECK(key == 2);
    WELL(weft_endpoint_set_key(there, 77));
    WELL(weft_endpoint_key(there, &key));
    CHECK(key == 77);
    IS(WEFT_ERROR_SYSTEM, weft_resolve("no-port", 1000, &read, &key));
    CHECK(strstr(weft_last_error(), "HOST:PORT"));
    free_two();
}

static void errors(void) {
    int garbage = 3;
    void *strange[] = {NULL, &garbage, (void *)(uintptr_t)-1, (void *)(uintptr_t)0x2000000000f00000};
    make_two();
    for (size_t at = 0; at < sizeof strange / sizeof *strange; at++) {
        weft_bundle *bundle = strange[at];
        weft_endpoint *endpoint = strange[at];
        weft_message *message = strange[at];
        weft_bundle *made;
        uint64_t key;
        weft_name name;
        int number;
        IS(WEFT_ERROR_HANDLE, weft_node_free(strange[at]));
        IS(WEFT_ERROR_HANDLE, weft_bundle_new(strange[at], NULL, &made));
        IS(WEFT_ERROR_HANDLE, weft_bundle_free(bundle));
        IS(WEFT_ERROR_HANDLE, weft_bundle_poll(bundle, NULL));
        IS(WEFT_ERROR_HANDLE, weft_bundle_wait(bundle, 0));
        IS(WEFT_ERROR_HANDLE, weft_bundle_wake(bundle));
        IS(WEFT_ERROR_HANDLE, weft_bundle_wait_fd(bundle, &number));
        IS(WEFT_ERROR_HANDLE, weft_bundle_drain(bundle, 0));
        IS(WEFT_ERROR_HANDLE, weft_bundle_flush(bundle));
        IS(WEFT_ERROR_HANDLE, weft_endpoint_new(bundle, 1, &endpoint));
        endpoint = strange[at];
        IS(WEFT_ERROR_HANDLE, weft_endpoint_free(endpoint));
        IS(WEFT_ERROR_HANDLE, weft_endpoint_name(endpoint, &name));
        IS(WEFT_ERROR_HANDLE, weft_endpoint_key(endpoint, &key));
        IS(WEFT_ERROR_HANDLE, weft_endpoint_set_key(endpoint, 1));
        IS(WEFT_ERROR_HANDLE, weft_endpoint_set_admission(endpoint, WEFT_ADMIT_NOBODY));
        IS(WEFT_ERROR_HANDLE, weft_endpoint_set_served(endpoint, 1));
        IS(WEFT_ERROR_HANDLE, weft_endpoint_set_event_mask(endpoint, WEFT_WAKE_NOT_EMPTY));
        IS(WEFT_ERROR_HANDLE, weft_endpoint_map(endpoint, 0, &name_of_there, 1));
        IS(WEFT_ERROR_HANDLE, weft_endpoint_unmap(endpoint, 0));
        IS(WEFT_ERROR_HANDLE, weft_endpoint_move(endpoint, one, two));
        IS(WEFT_ERROR_HANDLE, weft_on(endpoint, 1, hear, NULL));
        IS(WEFT_ERROR_HANDLE, weft_on_return(endpoint, came_back, NULL));
        IS(WEFT_ERROR_HANDLE, weft_request(endpoint, 0, 1, NULL, 0, NULL, 0, 0));
        IS(WEFT_ERROR_HANDLE, weft_send(endpoint, 0, 1, NULL, 0, NULL, 0, 0));
        IS(WEFT_ERROR_HANDLE, weft_message_reply(message, 1, NULL, 0, NULL, 0));
        IS(WEFT_ERROR_HANDLE, weft_message_kind(message, &number));
        IS(WEFT_ERROR_HANDLE, weft_reply_free(strange[at]));
    }
    IS(WEFT_ERROR_ARGUMENT, weft_node_new(NULL));
    IS(WEFT_ERROR_ARGUMENT, weft_bundle_new(node, NULL, NULL));
    IS(WEFT_ERROR_ARGUMENT, weft_endpoint_new(one, 1, NULL));
    IS(WEFT_ERROR_ARGUMENT, weft_endpoint_name(here, NULL));
    IS(WEFT_ERROR_ARGUMENT, weft_endpoint_map(here, 0, NULL, 1));
    IS(WEFT_ERROR_ARGUMENT, weft_endpoint_set_admission(here, 5));
    IS(WEFT_ERROR_ARGUMENT, weft_endpoint_set_event_mask(here, 16));
    IS(WEFT_ERROR_ARGUMENT, weft_on(here, 1, NULL, NULL));
    IS(WEFT_ERROR_ARGUMENT, weft_bundle_next_event(one, NULL));
    IS(WEFT_ERROR_ARGUMENT, weft_request(here, 0, 1, NULL, 1, NULL, 0, 0));
    IS(WEFT_ERROR_ARGUMENT, weft_request(here, 0, 1, NULL, 0, NULL, 1, 0));
    IS(WEFT_ERROR_TOO_LARGE, weft_request(here, 0, 1, NULL, 17, NULL, 0, 0));
    IS(WEFT_ERROR_TOO_LARGE, weft_send(here, 0, 1, NULL, 0, "", 65537, 0));
    IS(WEFT_ERROR_NOT_MAPPED, weft_request(here, 7, 1, NULL, 0, NULL, 0, 0));
    IS(WEFT_ERROR_NOT_MAPPED, weft_endpoint_unmap(here, 7));
    IS(WEFT_ERROR_NOT_IN_BUNDLE, weft_endpoint_move(here, two, one));
    /* Nobody polls the other side, so the window of 32 fills up. */
    int code = WEFT_OK;
    for (int sent = 0; sent < 100 && code == WEFT_OK; sent++) code = weft_request(here, 0, 1, NULL, 0, NULL, 0, 5);
    CHECK(code == WEFT_ERROR_TIMED_OUT);
    IS(WEFT_ERROR_FULL, weft_request(here, 0, 1, NULL, 0, NULL, 0, 0));
    for (int error = 0; error <= WEFT_ERROR_BROKEN; error++) CHECK(strlen(weft_error_text(error)) >= 8);
    CHECK(weft_error_text(12345) != NULL && weft_reason_text(-1) != NULL && strlen(weft_version()) >= 5);
    free_two();
}

static const struct test tests[] = {
    {"request_and_reply", request_and_reply}, {"reply_later", reply_later},
    {"returned_messages", returned_messages}, {"waits", waits},
    {"names", names},                         {"errors", errors},
};

int main(int argc, char **argv) { return run_test(tests, sizeof tests / sizeof *tests, argc, argv); }
