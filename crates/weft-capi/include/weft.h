/* weft.h: fast, protected communication between processes of Linux machines.
 *
 * docs/c.md shows first programs. The functions that return int return WEFT_OK or a WEFT_ERROR_ code. All arguments are checked.
 * Pointers to the opaque types are numbers that are never followed: one of an object that is gone gives WEFT_ERROR_HANDLE.
 *
 * This file is generated from crates/weft-capi/src/native: `WRITE_HEADERS=1 cargo test -p weft-capi --test headers` writes it. */
#ifndef WEFT_H
#define WEFT_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* A process's network interface. */
typedef struct weft_node weft_node;

/* Endpoints that are polled and waited for together. */
typedef struct weft_bundle weft_bundle;

/* The object that a program communicates through. */
typedef struct weft_endpoint weft_endpoint;

/* A message, until its handler returns. */
typedef struct weft_message weft_message;

/* The right to reply to a request later. */
typedef struct weft_reply weft_reply;

/* No error. */
#define WEFT_OK 0

/* Errors of calls. weft_error_text has the cause and the way out of each. */
enum weft_error {
    /* An argument is NULL, or out of its range. */
    WEFT_ERROR_ARGUMENT = 1,
    /* The object was freed, or the handle is of another kind. */
    WEFT_ERROR_HANDLE = 2,
    /* A handler calls the bundle that runs it. */
    WEFT_ERROR_IN_HANDLER = 3,
    /* Another thread is using this sequential bundle. */
    WEFT_ERROR_BUSY = 4,
    /* This is a forked child of the process that made the object. */
    WEFT_ERROR_FORKED = 5,
    /* There is no room. Poll, take events, and send again. */
    WEFT_ERROR_FULL = 6,
    /* The time limit is over. Nothing was sent. */
    WEFT_ERROR_TIMED_OUT = 7,
    /* More than 16 arguments, or more than 65,536 bytes. */
    WEFT_ERROR_TOO_LARGE = 8,
    /* The translation table has no entry at that index. */
    WEFT_ERROR_NOT_MAPPED = 9,
    /* The local endpoint was freed. */
    WEFT_ERROR_NO_ENDPOINT = 10,
    /* The endpoint is used for something else. */
    WEFT_ERROR_OTHER_CLIENT = 11,
    /* The message is no request, or was answered already. */
    WEFT_ERROR_NOT_A_REQUEST = 12,
    /* The peer is gone. */
    WEFT_ERROR_PEER_LOST = 13,
    /* The operating system refused something: weft_last_error says what. */
    WEFT_ERROR_SYSTEM = 14,
    /* The text or the bytes are no name or key. */
    WEFT_ERROR_NAME = 15,
    /* The endpoint does not live in that bundle, or the bundles are of different nodes. */
    WEFT_ERROR_NOT_IN_BUNDLE = 16,
    /* An error inside of weft. */
    WEFT_ERROR_BROKEN = 17
};

/* Bytes of a name as text, with its end. */
#define WEFT_NAME_TEXT 61

/* An endpoint's name: 40 bytes that may be sent and stored as they are. */
typedef struct weft_name {
    uint8_t bytes[40];
} weft_name;

/* Settings of a bundle. Zero selects weft's default. */
typedef struct weft_options {
    /* 1 if several threads use the bundle at once. */
    int is_parallel;
    /* Bytes of messages that wait at the bundle's endpoints while these are not served. */
    size_t parked_bytes_most;
    /* Bytes of events that wait for the program. */
    size_t events_bytes_most;
    /* Sessions with peers. */
    uint32_t sessions_most;
    /* Milliseconds until a silent peer on another host is lost. */
    uint32_t suspicion;
    /* Milliseconds that freeing the bundle waits for its sent messages to leave. */
    uint32_t linger;
} weft_options;

/* A message that came back. What it points to is good until its handler returns, or until this thread takes the next event. */
typedef struct weft_returned {
    /* The index in the translation table that it was sent to; UINT32_MAX for a reply. */
    uint32_t destination;
    /* Its handler's number. */
    uint8_t handler;
    /* 1 if it is certain that it was not delivered. */
    uint8_t is_certain;
    /* The code of the reason, for weft_reason_text. */
    int reason;
    const uint32_t *args;
    size_t numargs;
    const void *payload;
    size_t bytes;
} weft_returned;

/* Something that happened to a bundle. */
typedef struct weft_event {
    /* One of WEFT_EVENT_... */
    int kind;
    /* The endpoint. NULL if it was freed. */
    weft_endpoint *endpoint;
    /* Its index in the translation table. */
    uint32_t destination;
    /* For WEFT_EVENT_PEER_LOST and WEFT_EVENT_REPLY_REFUSED: why, for weft_reason_text. */
    int reason;
    /* For WEFT_EVENT_RETURNED. */
    weft_returned returned;
} weft_event;

/* There is no event. */
#define WEFT_EVENT_NONE 0

/* A send that was full may be tried again. */
#define WEFT_EVENT_CAN_SEND 1

/* A message came back, and its endpoint has no handler for that. */
#define WEFT_EVENT_RETURNED 2

/* The peer of an entry is gone. What was under way to it has come back. */
#define WEFT_EVENT_PEER_LOST 3

/* The endpoint refused a reply to its own request. */
#define WEFT_EVENT_REPLY_REFUSED 4

/* A handler. `args` and `payload` are good until it returns. */
typedef void (*weft_handler)(void *context, weft_message *message, const uint32_t *args, size_t numargs, const void *payload, size_t bytes);

/* A handler for messages that come back. */
typedef void (*weft_return_handler)(void *context, const weft_returned *returned);

/* Nobody may send to the endpoint. */
#define WEFT_ADMIT_NOBODY 0

/* Processes of its own user that know the key. The default. */
#define WEFT_ADMIT_OWN_USER 1

/* Processes of any user that know the key. */
#define WEFT_ADMIT_ANY_USER 2

/* As WEFT_ADMIT_OWN_USER, but processes of its own user on this host need no key. */
#define WEFT_ADMIT_OWN_USER_WITHOUT_KEY 3

/* All processes, without a key. */
#define WEFT_ADMIT_ANYBODY 4

/* A message came. */
#define WEFT_WAKE_NOT_EMPTY 1

/* A send that was full may be tried again. */
#define WEFT_WAKE_CAN_SEND 2

/* A message came back. */
#define WEFT_WAKE_RETURNED 4

/* A peer is gone. */
#define WEFT_WAKE_PEER_LOST 8

/* A one-way message. */
#define WEFT_ONE_WAY 0

/* A request. */
#define WEFT_REQUEST 1

/* A reply. */
#define WEFT_REPLY 2

/* The text of a result, with its cause and the way out. Do not free it. Never NULL. */
const char *weft_error_text(int error);

/* Details of this thread's last error WEFT_ERROR_SYSTEM or WEFT_ERROR_NAME, or of its last AM_ERR_ code. Valid until the next such
 * error. Never NULL. */
const char *weft_last_error(void);

/* The library's version, as text. */
const char *weft_version(void);

/* Writes a name as text, with a NUL at its end: WEFT_NAME_TEXT bytes. */
int weft_name_print(const weft_name *name, char *text, size_t size);

/* Reads a name as weft_name_print writes it. */
int weft_name_parse(const char *text, weft_name *name);

/* Whether two names mean the same endpoint: 1 or 0. Their bytes may differ in the address. */
int weft_name_equal(const weft_name *one, const weft_name *other);

/* Reads a key: 1 to 16 hexadecimal digits. */
int weft_key_parse(const char *text, uint64_t *key);

/* Asks a name server for a name and its key: `place` is HOST:PORT or HOST:PORT/LABEL. Blocks for `milliseconds` at most; if that is
 * negative, for 10 s. */
int weft_resolve(const char *place, int milliseconds, weft_name *name, uint64_t *key);

/* Makes a node. A process needs one. */
int weft_node_new(weft_node **node);

/* Gives a node up. Its bundles stay until they are freed. */
int weft_node_free(weft_node *node);

/* Makes a bundle of a node. `options` may be NULL. */
int weft_bundle_new(weft_node *node, const weft_options *options, weft_bundle **bundle);

/* Frees a bundle and its endpoints. Blocks until its sent messages have left, for its linger time at most. */
int weft_bundle_free(weft_bundle *bundle);

/* Runs handlers for messages that came. Does not block. Unless `taken` is NULL, it gets the number of messages. */
int weft_bundle_poll(weft_bundle *bundle, uint32_t *taken);

/* Waits until a message was taken or an event came, and runs handlers. Blocks for `milliseconds` at most; without limit if that is
 * negative. WEFT_ERROR_TIMED_OUT if nothing came. weft_bundle_wake ends it, too. */
int weft_bundle_wait(weft_bundle *bundle, int milliseconds);

/* Ends a wait of the bundle, or the next one if there is none. From any thread. */
int weft_bundle_wake(weft_bundle *bundle);

/* The descriptor that becomes readable when something comes for an armed bundle. Use it only with epoll, poll or select: it belongs to the
 * bundle, so do not read or close it. A parallel bundle has none (WEFT_ERROR_ARGUMENT). */
int weft_bundle_wait_fd(weft_bundle *bundle, int *descriptor);

/* Arms the descriptor of a sequential bundle. `is_armed` gets 0 if there was something to do: do it and call this again. Once armed, poll
 * when the descriptor is readable, and at the latest after the time that `milliseconds` gets. */
int weft_bundle_arm(weft_bundle *bundle, int *is_armed, int *milliseconds);

/* Waits until everything sent has ended: delivered, answered or come back. Blocks for `milliseconds` at most; without limit if
 * that is negative. */
int weft_bundle_drain(weft_bundle *bundle, int milliseconds);

/* Takes the oldest event. Its kind is WEFT_EVENT_NONE if there is none. After the first call no event is lost, and sends return
 * WEFT_ERROR_FULL while many events wait. */
int weft_bundle_next_event(weft_bundle *bundle, weft_event *event);

/* Sends what waits in this process, as far as there is room. Does not block. */
int weft_bundle_flush(weft_bundle *bundle);

/* Sets the longest time that a wait spins before it sleeps. */
int weft_bundle_set_spin_limit(weft_bundle *bundle, uint32_t microseconds);

/* Makes an endpoint that accepts messages which carry `key`. */
int weft_endpoint_new(weft_bundle *bundle, uint64_t key, weft_endpoint **endpoint);

/* Makes an endpoint with a random key. weft_endpoint_key returns it. */
int weft_endpoint_new_random(weft_bundle *bundle, weft_endpoint **endpoint);

/* Frees an endpoint. From now on messages for it come back to their senders. */
int weft_endpoint_free(weft_endpoint *endpoint);

/* Moves an endpoint to another bundle of its node, with all that belongs to it. No message is lost. */
int weft_endpoint_move(weft_endpoint *endpoint, weft_bundle *from, weft_bundle *to);

/* The endpoint's name, which peers need to send to it. */
int weft_endpoint_name(weft_endpoint *endpoint, weft_name *name);

/* The endpoint's key, which peers need to send to it. */
int weft_endpoint_key(weft_endpoint *endpoint, uint64_t *key);

/* Changes the key. Messages that carry the old one come back to their senders. */
int weft_endpoint_set_key(weft_endpoint *endpoint, uint64_t key);

/* Sets who may send to the endpoint: one of WEFT_ADMIT_... */
int weft_endpoint_set_admission(weft_endpoint *endpoint, int admission);

/* Sets whether messages are delivered (1, the default) or wait at the endpoint (0). */
int weft_endpoint_set_served(weft_endpoint *endpoint, int is_served);

/* Sets what ends a wait: the sum of WEFT_WAKE_... */
int weft_endpoint_set_event_mask(weft_endpoint *endpoint, uint32_t mask);

/* Enters a peer's name and key at an index of the endpoint's translation table. */
int weft_endpoint_map(weft_endpoint *endpoint, uint32_t index, const weft_name *name, uint64_t key);

/* As weft_endpoint_map, for a peer that may admit callers without its key. The peer need not know the key, and learns it. */
int weft_endpoint_map_unproven(weft_endpoint *endpoint, uint32_t index, const weft_name *name, uint64_t key);

/* Empties an index of the translation table. */
int weft_endpoint_unmap(weft_endpoint *endpoint, uint32_t index);

/* Sets the handler of a number, in place of the one before. */
int weft_on(weft_endpoint *endpoint, uint8_t number, weft_handler handler, void *context);

/* Sets the handler for messages that come back. Without one they are events. */
int weft_on_return(weft_endpoint *endpoint, weft_return_handler handler, void *context);

/* Sends a request to the peer at index `to` of the translation table. Blocks until there is room, for `milliseconds` at most; without limit
 * if that is negative. With 0 it does not block: WEFT_ERROR_FULL if there is no room. */
int weft_request(weft_endpoint *endpoint, uint32_t to, uint8_t handler, const uint32_t *args, size_t numargs, const void *payload, size_t bytes, int milliseconds);

/* Sends a one-way message, as weft_request sends a request. */
int weft_send(weft_endpoint *endpoint, uint32_t to, uint8_t handler, const uint32_t *args, size_t numargs, const void *payload, size_t bytes, int milliseconds);

/* The text of a reason, with its cause and the way out. Do not free it. Never NULL. */
const char *weft_reason_text(int reason);

/* Replies to a request, once. Does not block. */
int weft_message_reply(weft_message *message, uint8_t handler, const uint32_t *args, size_t numargs, const void *payload, size_t bytes);

/* Takes the right to reply, for use after the handler and in any thread. */
int weft_message_defer(weft_message *message, weft_reply **reply);

/* Replies to a request by a deferred right, from any thread. The right is used up unless the result is WEFT_ERROR_TOO_LARGE or
 * WEFT_ERROR_ARGUMENT. The reply leaves with the bundle's next poll or wait. */
int weft_reply_send(weft_reply *reply, uint8_t handler, const uint32_t *args, size_t numargs, const void *payload, size_t bytes);

/* Gives a deferred right up: the request ends without a reply. From any thread. */
int weft_reply_free(weft_reply *reply);

/* The name of the endpoint that sent the message. WEFT_ERROR_PEER_LOST if the sender is gone. */
int weft_message_source(weft_message *message, weft_name *name);

/* The endpoint that the message came to. */
int weft_message_endpoint(weft_message *message, weft_endpoint **endpoint);

/* The kind of the message: WEFT_ONE_WAY, WEFT_REQUEST or WEFT_REPLY. */
int weft_message_kind(weft_message *message, int *kind);

/* Sends a request from the handler of a message, from an endpoint of the same bundle. Does not block. */
int weft_message_request(weft_message *message, weft_endpoint *endpoint, uint32_t to, uint8_t handler, const uint32_t *args, size_t numargs, const void *payload, size_t bytes);

/* Sends a one-way message from the handler of a message, from an endpoint of the same bundle. Does not block. */
int weft_message_send(weft_message *message, weft_endpoint *endpoint, uint32_t to, uint8_t handler, const uint32_t *args, size_t numargs, const void *payload, size_t bytes);

/* Enters a peer in the translation table of an endpoint of the same bundle, from the handler of a message. */
int weft_message_map(weft_message *message, weft_endpoint *endpoint, uint32_t index, const weft_name *name, uint64_t key);


#ifdef __cplusplus
}
#endif

#endif
