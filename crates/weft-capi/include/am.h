/* am.h: Active Messages II.
 *
 * Functions, types and constants of the interface of Mainwaring and Culler, on weft. docs/am2.md lists each function and says
 * which behaviour weft chose where implementations of the interface differ. Names that begin with `am_` are weft's own.
 *
 * All functions return AM_OK or an AM_ERR_ code, unless said otherwise. All arguments are checked. Handles (`ep_t`, `eb_t`,
 * tokens) are numbers and never dereferenced: that of a freed object gives AM_ERR_BAD_ARG.
 */
#ifndef WEFT_AM_H
#define WEFT_AM_H

#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* The version of this interface, for am_check_version. */
#define AM_VERSION 1

/* Types. A bundle and an endpoint are those of weft.h, whose functions take them too. */
typedef struct weft_bundle *eb_t;
typedef struct weft_endpoint *ep_t;
typedef uint64_t tag_t;
typedef uint8_t handler_t; /* 0 to 255: C cuts larger numbers off */
typedef int op_t;

/* An endpoint's name. It is passed by value, may be sent and stored, and is the same in all processes. */
typedef struct en_t {
    uint8_t bytes[40];
} en_t;

/* A handler with any parameters. AM_SetHandler casts to it. */
typedef void (*am_handler_t)(void);
/* The first parameters of handlers. After them come as many `int`s as were sent. */
typedef void (*am_return_handler_t)(int status, op_t opcode, void *token);

/* Tags. */
#define AM_NONE ((tag_t)0)
#define AM_ALL ((tag_t)1)

/* Modes of bundles: used by one thread at a time, or by several at once. */
#define AM_SEQ 0
#define AM_PAR 1
#define AM_NUM_BUNDLE_MODES 2

/* Event masks. */
#define AM_NOEVENTS 0
#define AM_NOTEMPTY 1
#define AM_NUMEVENTMASKS 2

/* Results. */
#define AM_OK 0
#define AM_ERR_NOT_INIT 1
#define AM_ERR_BAD_ARG 2
#define AM_ERR_RESOURCE 3
#define AM_ERR_NOT_SENT 4
#define AM_ERR_IN_USE 5
/* For old programs. No function returns it: AM_Init counts its calls. */
#define AM_ERR_NOT_TERM 6

/* Opcodes that handler 0 gets. */
#define AM_REQUEST_M 1
#define AM_REQUEST_IM 2
#define AM_REQUEST_XFER_M 3
#define AM_REPLY_M 4
#define AM_REPLY_IM 5
#define AM_REPLY_XFER_M 6

/* Statuses that handler 0 gets. */
#define EBADARGS 1
#define EBADENTRY 2
#define EBADTAG 3
#define EBADHANDLER 4
#define EBADSEGOFF 5
#define EBADLENGTH 6
#define EBADENDPOINT 7
#define ECONGESTION 8
#define EUNREACHABLE 9
#define EREPLYREJECTED 10

/* Categories that am_get_token_info returns. */
#define AM_SHORT 0
#define AM_MEDIUM 1
#define AM_LONG 2
#define AM_NUM_CATEGORIES 3

/* Limits. */
#define AM_MaxShort() 16
#define AM_MaxMedium() 65536
#define AM_MaxLong() 0x40000000
#define AM_MaxNumTranslations(p) (*(p) = 1048576, AM_OK)

/* ---- The system. Calls of AM_Init and AM_Terminate are counted. The last AM_Terminate frees all bundles of
 * AM_AllocateBundle. It frees none, and is not counted, if a handler calls it (AM_ERR_RESOURCE) or another thread is
 * using a sequential bundle (AM_ERR_IN_USE). A forked child calls AM_Init anew. */
int AM_Init(void);
int AM_Terminate(void);
int AM_MaxSegLength(uintptr_t *nbytes);
/* The library's version, as text. */
const char *am_version(void);
/* AM_OK if the library fits this header: call am_check_version(AM_VERSION). */
int am_check_version(int version);
/* 1 if the library has a feature: "parallel", "move", "remap", "long", "get", "returned", "wait", "tags". */
int am_has(const char *feature);
/* What an AM_ERR_ code means, and what helps. Do not free it. Never NULL. */
const char *am_error_text(int error);

/* ---- Bundles and endpoints. A handler cannot use the bundle that runs it: AM_ERR_RESOURCE. A sequential bundle that another
 * thread is using gives AM_ERR_IN_USE. */
int AM_AllocateBundle(int mode, eb_t *bundle);
int AM_FreeBundle(eb_t bundle);
int AM_AllocateEndpoint(eb_t bundle, ep_t *endpoint, en_t *name);
int AM_FreeEndpoint(ep_t endpoint);
int AM_MoveEndpoint(ep_t endpoint, eb_t from, eb_t to);

/* ---- Segment and tag. */
int AM_GetSeg(ep_t endpoint, void **address, uintptr_t *nbytes);
int AM_SetSeg(ep_t endpoint, void *address, uintptr_t nbytes);
int AM_GetTag(ep_t endpoint, tag_t *tag);
int AM_SetTag(ep_t endpoint, tag_t tag);

/* ---- Translation table. AM_GetTranslationInuse returns AM_OK for an index in use, and AM_ERR_RESOURCE for a free one. */
int AM_Map(ep_t endpoint, int index, en_t name, tag_t tag);
int AM_MapAny(ep_t endpoint, int *index, en_t name, tag_t tag);
int AM_UnMap(ep_t endpoint, int index);
int AM_GetTranslationInuse(ep_t endpoint, int index);
int AM_GetTranslationTag(ep_t endpoint, int index, tag_t *tag);
int AM_GetTranslationName(ep_t endpoint, int index, en_t *name);
int AM_GetNumTranslations(ep_t endpoint, int *count);
int AM_SetNumTranslations(ep_t endpoint, int count);
int AM_SetExpectedResources(ep_t endpoint, int endpoints, int outstanding);
int am_set_translation_tag(ep_t endpoint, int index, tag_t tag);

/* ---- Handlers. Handler 0 gets messages that come back; until it is set, one that comes back ends the program with a line that
 * says why. */
int am_set_handler(ep_t endpoint, handler_t number, am_handler_t handler);
int am_set_handler_any(ep_t endpoint, handler_t *number, am_handler_t handler);
#define AM_SetHandler(ep, number, fn) am_set_handler((ep), (number), (am_handler_t)(fn))
#define AM_SetHandlerAny(ep, number, fn) am_set_handler_any((ep), (number), (am_handler_t)(fn))
int AM_MaxNumHandlers(void);
int AM_GetNumHandlers(ep_t endpoint, int *count);
int AM_SetNumHandlers(ep_t endpoint, int count);

/* ---- Events and progress. AM_Wait and AM_WaitSema are the same: they wait for a message, run handlers, and keep the mask. With
 * AM_NOEVENTS they return at once. */
int AM_Poll(eb_t bundle);
int AM_GetEventMask(eb_t bundle, int *mask);
int AM_SetEventMask(eb_t bundle, int mask);
int AM_Wait(eb_t bundle);
int AM_WaitSema(eb_t bundle);

/* ---- In a handler: about its message. A token is valid in the thread that runs the handler, until the handler returns. */
int AM_GetSourceEndpoint(void *token, en_t *name);
int AM_GetDestEndpoint(void *token, ep_t *endpoint);
int AM_GetMsgTag(void *token, tag_t *tag);
int am_get_source_index(void *token, int *index);
int am_get_token_info(void *token, handler_t *handler, int *category, int *is_request);
int am_same_name(en_t one, en_t other);

/* A message that came back, in handler 0. `contents` and `reason` are valid until the handler returns. */
typedef struct am_returned {
    int status;
    op_t opcode;
    int index; /* of its destination in the translation table; -1 for a reply */
    int handler;
    int numargs;
    int32_t args[16];
    const void *contents;
    size_t nbytes;
    int is_certain; /* 1: it was not delivered. 0: unknown */
    const char *reason;
} am_returned_t;

int am_get_returned(void *token, am_returned_t *returned);
/* Whether a request that cannot be sent because the call is wrong comes back to handler 0, with EBADARGS or EBADENTRY, as the report
 * says (1), or the call returns AM_ERR_BAD_ARG (0, at first). */
int am_set_returns_misuse(ep_t endpoint, int is_on);
const char *am_status_text(int status);

/* ---- Requests and replies: what the macros below call. A request blocks while there is no room, and
 * polls meanwhile. Every 16th polls in any case. The memory at `src` may be reused when the call returns, even an asynchronous one. */
int am_request(ep_t endpoint, uint32_t dest, handler_t handler, int numargs, const int32_t *args);
int am_request_i(ep_t endpoint, uint32_t dest, handler_t handler, const void *src, size_t nbytes, int numargs,
                 const int32_t *args);
int am_request_xfer(ep_t endpoint, uint32_t dest, uintptr_t offset, handler_t handler, const void *src, size_t nbytes,
                    int is_async, int numargs, const int32_t *args);
int am_get_xfer(ep_t endpoint, uint32_t dest, uintptr_t source_offset, handler_t handler, uintptr_t offset, size_t nbytes,
                int is_async, int numargs, const int32_t *args);
int am_reply(void *token, handler_t handler, int numargs, const int32_t *args);
int am_reply_i(void *token, handler_t handler, const void *src, size_t nbytes, int numargs, const int32_t *args);
int am_reply_xfer(void *token, uintptr_t offset, handler_t handler, const void *src, size_t nbytes, int numargs,
                  const int32_t *args);

#ifdef __cplusplus
}
#endif

/* ---- With a number of arguments that is known at run time: `int`s. The functions whose names end in VA take a va_list. */

/* Takes the arguments out. Returns AM_ERR_BAD_ARG if there are more than 16. */
static inline int am_take_args_(int numargs, va_list list, int32_t args[16]) {
    if (numargs < 0 || numargs > 16) return AM_ERR_BAD_ARG;
    for (int at = 0; at < numargs; at++) args[at] = va_arg(list, int);
    return AM_OK;
}

static inline int AM_RequestVA(ep_t ep, uint32_t dest, handler_t handler, int numargs, va_list list) {
    int32_t args[16];
    int code = am_take_args_(numargs, list, args);
    return code != AM_OK ? code : am_request(ep, dest, handler, numargs, args);
}

static inline int AM_RequestIVA(ep_t ep, uint32_t dest, handler_t handler, const void *src, size_t nbytes, int numargs,
                                va_list list) {
    int32_t args[16];
    int code = am_take_args_(numargs, list, args);
    return code != AM_OK ? code : am_request_i(ep, dest, handler, src, nbytes, numargs, args);
}

static inline int AM_RequestXferVA(ep_t ep, uint32_t dest, handler_t handler, const void *src, size_t nbytes,
                                   uintptr_t offset, int is_async, int numargs, va_list list) {
    int32_t args[16];
    int code = am_take_args_(numargs, list, args);
    return code != AM_OK ? code : am_request_xfer(ep, dest, offset, handler, src, nbytes, is_async, numargs, args);
}

static inline int AM_ReplyVA(void *token, handler_t handler, int numargs, va_list list) {
    int32_t args[16];
    int code = am_take_args_(numargs, list, args);
    return code != AM_OK ? code : am_reply(token, handler, numargs, args);
}

static inline int AM_ReplyIVA(void *token, handler_t handler, const void *src, size_t nbytes, int numargs, va_list list) {
    int32_t args[16];
    int code = am_take_args_(numargs, list, args);
    return code != AM_OK ? code : am_reply_i(token, handler, src, nbytes, numargs, args);
}

static inline int AM_ReplyXferVA(void *token, handler_t handler, const void *src, size_t nbytes, uintptr_t offset,
                                 int numargs, va_list list) {
    int32_t args[16];
    int code = am_take_args_(numargs, list, args);
    return code != AM_OK ? code : am_reply_xfer(token, offset, handler, src, nbytes, numargs, args);
}

static inline int AM_Request(ep_t ep, uint32_t dest, handler_t handler, int numargs, ...) {
    va_list list;
    va_start(list, numargs);
    int code = AM_RequestVA(ep, dest, handler, numargs, list);
    va_end(list);
    return code;
}

static inline int AM_RequestI(ep_t ep, uint32_t dest, handler_t handler, const void *src, size_t nbytes, int numargs, ...) {
    va_list list;
    va_start(list, numargs);
    int code = AM_RequestIVA(ep, dest, handler, src, nbytes, numargs, list);
    va_end(list);
    return code;
}

static inline int AM_RequestXfer(ep_t ep, uint32_t dest, handler_t handler, const void *src, size_t nbytes,
                                 uintptr_t offset, int is_async, int numargs, ...) {
    va_list list;
    va_start(list, numargs);
    int code = AM_RequestXferVA(ep, dest, handler, src, nbytes, offset, is_async, numargs, list);
    va_end(list);
    return code;
}

static inline int AM_Reply(void *token, handler_t handler, int numargs, ...) {
    va_list list;
    va_start(list, numargs);
    int code = AM_ReplyVA(token, handler, numargs, list);
    va_end(list);
    return code;
}

static inline int AM_ReplyI(void *token, handler_t handler, const void *src, size_t nbytes, int numargs, ...) {
    va_list list;
    va_start(list, numargs);
    int code = AM_ReplyIVA(token, handler, src, nbytes, numargs, list);
    va_end(list);
    return code;
}

static inline int AM_ReplyXfer(void *token, handler_t handler, const void *src, size_t nbytes, uintptr_t offset,
                               int numargs, ...) {
    va_list list;
    va_start(list, numargs);
    int code = AM_ReplyXferVA(token, handler, src, nbytes, offset, numargs, list);
    va_end(list);
    return code;
}

/* ---- With a number of arguments that is part of the name: 0 to 16. Each argument is cast to int32_t. */

#define AM_NO_ARGS_ NULL
#ifdef __cplusplus
/* C++ has no compound literals. This lives as long: to the end of the call. */
template <int n> struct am_args_ {
    int32_t values[n];
};
#define AM_ARGS_OF_(n, ...) (am_args_<n>{{__VA_ARGS__}}.values)
#else
#define AM_ARGS_OF_(n, ...) ((const int32_t[n]){__VA_ARGS__})
#endif

/* generated from here on: tests/headers.rs writes it */
#define AM_ARGS_0() 0, AM_NO_ARGS_
#define AM_ARGS_1(a0) 1, AM_ARGS_OF_(1, (int32_t)(a0))
#define AM_ARGS_2(a0, a1) 2, AM_ARGS_OF_(2, (int32_t)(a0), (int32_t)(a1))
#define AM_ARGS_3(a0, a1, a2) 3, AM_ARGS_OF_(3, (int32_t)(a0), (int32_t)(a1), (int32_t)(a2))
#define AM_ARGS_4(a0, a1, a2, a3) 4, AM_ARGS_OF_(4, (int32_t)(a0), (int32_t)(a1), (int32_t)(a2), (int32_t)(a3))
#define AM_ARGS_5(a0, a1, a2, a3, a4) 5, AM_ARGS_OF_(5, (int32_t)(a0), (int32_t)(a1), (int32_t)(a2), (int32_t)(a3), (int32_t)(a4))
#define AM_ARGS_6(a0, a1, a2, a3, a4, a5) 6, AM_ARGS_OF_(6, (int32_t)(a0), (int32_t)(a1), (int32_t)(a2), (int32_t)(a3), (int32_t)(a4), (int32_t)(a5))
#define AM_ARGS_7(a0, a1, a2, a3, a4, a5, a6) 7, AM_ARGS_OF_(7, (int32_t)(a0), (int32_t)(a1), (int32_t)(a2), (int32_t)(a3), (int32_t)(a4), (int32_t)(a5), (int32_t)(a6))
#define AM_ARGS_8(a0, a1, a2, a3, a4, a5, a6, a7) 8, AM_ARGS_OF_(8, (int32_t)(a0), (int32_t)(a1), (int32_t)(a2), (int32_t)(a3), (int32_t)(a4), (int32_t)(a5), (int32_t)(a6), (int32_t)(a7))
#define AM_ARGS_9(a0, a1, a2, a3, a4, a5, a6, a7, a8) 9, AM_ARGS_OF_(9, (int32_t)(a0), (int32_t)(a1), (int32_t)(a2), (int32_t)(a3), (int32_t)(a4), (int32_t)(a5), (int32_t)(a6), (int32_t)(a7), (int32_t)(a8))
#define AM_ARGS_10(a0, a1, a2, a3, a4, a5, a6, a7, a8, a9) 10, AM_ARGS_OF_(10, (int32_t)(a0), (int32_t)(a1), (int32_t)(a2), (int32_t)(a3), (int32_t)(a4), (int32_t)(a5), (int32_t)(a6), (int32_t)(a7), (int32_t)(a8), (int32_t)(a9))
#define AM_ARGS_11(a0, a1, a2, a3, a4, a5, a6, a7, a8, a9, a10) 11, AM_ARGS_OF_(11, (int32_t)(a0), (int32_t)(a1), (int32_t)(a2), (int32_t)(a3), (int32_t)(a4), (int32_t)(a5), (int32_t)(a6), (int32_t)(a7), (int32_t)(a8), (int32_t)(a9), (int32_t)(a10))
#define AM_ARGS_12(a0, a1, a2, a3, a4, a5, a6, a7, a8, a9, a10, a11) 12, AM_ARGS_OF_(12, (int32_t)(a0), (int32_t)(a1), (int32_t)(a2), (int32_t)(a3), (int32_t)(a4), (int32_t)(a5), (int32_t)(a6), (int32_t)(a7), (int32_t)(a8), (int32_t)(a9), (int32_t)(a10), (int32_t)(a11))
#define AM_ARGS_13(a0, a1, a2, a3, a4, a5, a6, a7, a8, a9, a10, a11, a12) 13, AM_ARGS_OF_(13, (int32_t)(a0), (int32_t)(a1), (int32_t)(a2), (int32_t)(a3), (int32_t)(a4), (int32_t)(a5), (int32_t)(a6), (int32_t)(a7), (int32_t)(a8), (int32_t)(a9), (int32_t)(a10), (int32_t)(a11), (int32_t)(a12))
#define AM_ARGS_14(a0, a1, a2, a3, a4, a5, a6, a7, a8, a9, a10, a11, a12, a13) 14, AM_ARGS_OF_(14, (int32_t)(a0), (int32_t)(a1), (int32_t)(a2), (int32_t)(a3), (int32_t)(a4), (int32_t)(a5), (int32_t)(a6), (int32_t)(a7), (int32_t)(a8), (int32_t)(a9), (int32_t)(a10), (int32_t)(a11), (int32_t)(a12), (int32_t)(a13))
#define AM_ARGS_15(a0, a1, a2, a3, a4, a5, a6, a7, a8, a9, a10, a11, a12, a13, a14) 15, AM_ARGS_OF_(15, (int32_t)(a0), (int32_t)(a1), (int32_t)(a2), (int32_t)(a3), (int32_t)(a4), (int32_t)(a5), (int32_t)(a6), (int32_t)(a7), (int32_t)(a8), (int32_t)(a9), (int32_t)(a10), (int32_t)(a11), (int32_t)(a12), (int32_t)(a13), (int32_t)(a14))
#define AM_ARGS_16(a0, a1, a2, a3, a4, a5, a6, a7, a8, a9, a10, a11, a12, a13, a14, a15) 16, AM_ARGS_OF_(16, (int32_t)(a0), (int32_t)(a1), (int32_t)(a2), (int32_t)(a3), (int32_t)(a4), (int32_t)(a5), (int32_t)(a6), (int32_t)(a7), (int32_t)(a8), (int32_t)(a9), (int32_t)(a10), (int32_t)(a11), (int32_t)(a12), (int32_t)(a13), (int32_t)(a14), (int32_t)(a15))

#define AM_Request0(ep, dest, h) am_request((ep), (dest), (h), AM_ARGS_0())
#define AM_Request1(ep, dest, h, a0) am_request((ep), (dest), (h), AM_ARGS_1(a0))
#define AM_Request2(ep, dest, h, a0, a1) am_request((ep), (dest), (h), AM_ARGS_2(a0, a1))
#define AM_Request3(ep, dest, h, a0, a1, a2) am_request((ep), (dest), (h), AM_ARGS_3(a0, a1, a2))
#define AM_Request4(ep, dest, h, a0, a1, a2, a3) am_request((ep), (dest), (h), AM_ARGS_4(a0, a1, a2, a3))
#define AM_Request5(ep, dest, h, a0, a1, a2, a3, a4) am_request((ep), (dest), (h), AM_ARGS_5(a0, a1, a2, a3, a4))
#define AM_Request6(ep, dest, h, a0, a1, a2, a3, a4, a5) am_request((ep), (dest), (h), AM_ARGS_6(a0, a1, a2, a3, a4, a5))
#define AM_Request7(ep, dest, h, a0, a1, a2, a3, a4, a5, a6) am_request((ep), (dest), (h), AM_ARGS_7(a0, a1, a2, a3, a4, a5, a6))
#define AM_Request8(ep, dest, h, a0, a1, a2, a3, a4, a5, a6, a7) am_request((ep), (dest), (h), AM_ARGS_8(a0, a1, a2, a3, a4, a5, a6, a7))
#define AM_Request9(ep, dest, h, a0, a1, a2, a3, a4, a5, a6, a7, a8) am_request((ep), (dest), (h), AM_ARGS_9(a0, a1, a2, a3, a4, a5, a6, a7, a8))
#define AM_Request10(ep, dest, h, a0, a1, a2, a3, a4, a5, a6, a7, a8, a9) am_request((ep), (dest), (h), AM_ARGS_10(a0, a1, a2, a3, a4, a5, a6, a7, a8, a9))
#define AM_Request11(ep, dest, h, a0, a1, a2, a3, a4, a5, a6, a7, a8, a9, a10) am_request((ep), (dest), (h), AM_ARGS_11(a0, a1, a2, a3, a4, a5, a6, a7, a8, a9, a10))
#define AM_Request12(ep, dest, h, a0, a1, a2, a3, a4, a5, a6, a7, a8, a9, a10, a11) am_request((ep), (dest), (h), AM_ARGS_12(a0, a1, a2, a3, a4, a5, a6, a7, a8, a9, a10, a11))
#define AM_Request13(ep, dest, h, a0, a1, a2, a3, a4, a5, a6, a7, a8, a9, a10, a11, a12) am_request((ep), (dest), (h), AM_ARGS_13(a0, a1, a2, a3, a4, a5, a6, a7, a8, a9, a10, a11, a12))
#define AM_Request14(ep, dest, h, a0, a1, a2, a3, a4, a5, a6, a7, a8, a9, a10, a11, a12, a13) am_request((ep), (dest), (h), AM_ARGS_14(a0, a1, a2, a3, a4, a5, a6, a7, a8, a9, a10, a11, a12, a13))
#define AM_Request15(ep, dest, h, a0, a1, a2, a3, a4, a5, a6, a7, a8, a9, a10, a11, a12, a13, a14) am_request((ep), (dest), (h), AM_ARGS_15(a0, a1, a2, a3, a4, a5, a6, a7, a8, a9, a10, a11, a12, a13, a14))
#define AM_Request16(ep, dest, h, a0, a1, a2, a3, a4, a5, a6, a7, a8, a9, a10, a11, a12, a13, a14, a15) am_request((ep), (dest), (h), AM_ARGS_16(a0, a1, a2, a3, a4, a5, a6, a7, a8, a9, a10, a11, a12, a13, a14, a15))

#define AM_RequestI0(ep, dest, h, src, nbytes) am_request_i((ep), (dest), (h), (src), (nbytes), AM_ARGS_0())
#define AM_RequestI1(ep, dest, h, src, nbytes, a0) am_request_i((ep), (dest), (h), (src), (nbytes), AM_ARGS_1(a0))
#define AM_RequestI2(ep, dest, h, src, nbytes, a0, a1) am_request_i((ep), (dest), (h), (src), (nbytes), AM_ARGS_2(a0, a1))
#define AM_RequestI3(ep, dest, h, src, nbytes, a0, a1, a2) am_request_i((ep), (dest), (h), (src), (nbytes), AM_ARGS_3(a0, a1, a2))
#define AM_RequestI4(ep, dest, h, src, nbytes, a0, a1, a2, a3) am_request_i((ep), (dest), (h), (src), (nbytes), AM_ARGS_4(a0, a1, a2, a3))
#define AM_RequestI5(ep, dest, h, src, nbytes, a0, a1, a2, a3, a4) am_request_i((ep), (dest), (h), (src), (nbytes), AM_ARGS_5(a0, a1, a2, a3, a4))
#define AM_RequestI6(ep, dest, h, src, nbytes, a0, a1, a2, a3, a4, a5) am_request_i((ep), (dest), (h), (src), (nbytes), AM_ARGS_6(a0, a1, a2, a3, a4, a5))
#define AM_RequestI7(ep, dest, h, src, nbytes, a0, a1, a2, a3, a4, a5, a6) am_request_i((ep), (dest), (h), (src), (nbytes), AM_ARGS_7(a0, a1, a2, a3, a4, a5, a6))
#define AM_RequestI8(ep, dest, h, src, nbytes, a0, a1, a2, a3, a4, a5, a6, a7) am_request_i((ep), (dest), (h), (src), (nbytes), AM_ARGS_8(a0, a1, a2, a3, a4, a5, a6, a7))
#define AM_RequestI9(ep, dest, h, src, nbytes, a0, a1, a2, a3, a4, a5, a6, a7, a8) am_request_i((ep), (dest), (h), (src), (nbytes), AM_ARGS_9(a0, a1, a2, a3, a4, a5, a6, a7, a8))
#define AM_RequestI10(ep, dest, h, src, nbytes, a0, a1, a2, a3, a4, a5, a6, a7, a8, a9) am_request_i((ep), (dest), (h), (src), (nbytes), AM_ARGS_10(a0, a1, a2, a3, a4, a5, a6, a7, a8, a9))
#define AM_RequestI11(ep, dest, h, src, nbytes, a0, a1, a2, a3, a4, a5, a6, a7, a8, a9, a10) am_request_i((ep), (dest), (h), (src), (nbytes), AM_ARGS_11(a0, a1, a2, a3, a4, a5, a6, a7, a8, a9, a10))
#define AM_RequestI12(ep, dest, h, src, nbytes, a0, a1, a2, a3, a4, a5, a6, a7, a8, a9, a10, a11) am_request_i((ep), (dest), (h), (src), (nbytes), AM_ARGS_12(a0, a1, a2, a3, a4, a5, a6, a7, a8, a9, a10, a11))
#define AM_RequestI13(ep, dest, h, src, nbytes, a0, a1, a2, a3, a4, a5, a6, a7, a8, a9, a10, a11, a12) am_request_i((ep), (dest), (h), (src), (nbytes), AM_ARGS_13(a0, a1, a2, a3, a4, a5, a6, a7, a8, a9, a10, a11, a12))
#define AM_RequestI14(ep, dest, h, src, nbytes, a0, a1, a2, a3, a4, a5, a6, a7, a8, a9, a10, a11, a12, a13) am_request_i((ep), (dest), (h), (src), (nbytes), AM_ARGS_14(a0, a1, a2, a3, a4, a5, a6, a7, a8, a9, a10, a11, a12, a13))
#define AM_RequestI15(ep, dest, h, src, nbytes, a0, a1, a2, a3, a4, a5, a6, a7, a8, a9, a10, a11, a12, a13, a14) am_request_i((ep), (dest), (h), (src), (nbytes), AM_ARGS_15(a0, a1, a2, a3, a4, a5, a6, a7, a8, a9, a10, a11, a12, a13, a14))
#define AM_RequestI16(ep, dest, h, src, nbytes, a0, a1, a2, a3, a4, a5, a6, a7, a8, a9, a10, a11, a12, a13, a14, a15) am_request_i((ep), (dest), (h), (src), (nbytes), AM_ARGS_16(a0, a1, a2, a3, a4, a5, a6, a7, a8, a9, a10, a11, a12, a13, a14, a15))

#define AM_RequestXfer0(ep, dest, off, h, src, nbytes) am_request_xfer((ep), (dest), (off), (h), (src), (nbytes), 0, AM_ARGS_0())
#define AM_RequestXfer1(ep, dest, off, h, src, nbytes, a0) am_request_xfer((ep), (dest), (off), (h), (src), (nbytes), 0, AM_ARGS_1(a0))
#define AM_RequestXfer2(ep, dest, off, h, src, nbytes, a0, a1) am_request_xfer((ep), (dest), (off), (h), (src), (nbytes), 0, AM_ARGS_2(a0, a1))
#define AM_RequestXfer3(ep, dest, off, h, src, nbytes, a0, a1, a2) am_request_xfer((ep), (dest), (off), (h), (src), (nbytes), 0, AM_ARGS_3(a0, a1, a2))
#define AM_RequestXfer4(ep, dest, off, h, src, nbytes, a0, a1, a2, a3) am_request_xfer((ep), (dest), (off), (h), (src), (nbytes), 0, AM_ARGS_4(a0, a1, a2, a3))
#define AM_RequestXfer5(ep, dest, off, h, src, nbytes, a0, a1, a2, a3, a4) am_request_xfer((ep), (dest), (off), (h), (src), (nbytes), 0, AM_ARGS_5(a0, a1, a2, a3, a4))
#define AM_RequestXfer6(ep, dest, off, h, src, nbytes, a0, a1, a2, a3, a4, a5) am_request_xfer((ep), (dest), (off), (h), (src), (nbytes), 0, AM_ARGS_6(a0, a1, a2, a3, a4, a5))
#define AM_RequestXfer7(ep, dest, off, h, src, nbytes, a0, a1, a2, a3, a4, a5, a6) am_request_xfer((ep), (dest), (off), (h), (src), (nbytes), 0, AM_ARGS_7(a0, a1, a2, a3, a4, a5, a6))
#define AM_RequestXfer8(ep, dest, off, h, src, nbytes, a0, a1, a2, a3, a4, a5, a6, a7) am_request_xfer((ep), (dest), (off), (h), (src), (nbytes), 0, AM_ARGS_8(a0, a1, a2, a3, a4, a5, a6, a7))
#define AM_RequestXfer9(ep, dest, off, h, src, nbytes, a0, a1, a2, a3, a4, a5, a6, a7, a8) am_request_xfer((ep), (dest), (off), (h), (src), (nbytes), 0, AM_ARGS_9(a0, a1, a2, a3, a4, a5, a6, a7, a8))
#define AM_RequestXfer10(ep, dest, off, h, src, nbytes, a0, a1, a2, a3, a4, a5, a6, a7, a8, a9) am_request_xfer((ep), (dest), (off), (h), (src), (nbytes), 0, AM_ARGS_10(a0, a1, a2, a3, a4, a5, a6, a7, a8, a9))
#define AM_RequestXfer11(ep, dest, off, h, src, nbytes, a0, a1, a2, a3, a4, a5, a6, a7, a8, a9, a10) am_request_xfer((ep), (dest), (off), (h), (src), (nbytes), 0, AM_ARGS_11(a0, a1, a2, a3, a4, a5, a6, a7, a8, a9, a10))
#define AM_RequestXfer12(ep, dest, off, h, src, nbytes, a0, a1, a2, a3, a4, a5, a6, a7, a8, a9, a10, a11) am_request_xfer((ep), (dest), (off), (h), (src), (nbytes), 0, AM_ARGS_12(a0, a1, a2, a3, a4, a5, a6, a7, a8, a9, a10, a11))
#define AM_RequestXfer13(ep, dest, off, h, src, nbytes, a0, a1, a2, a3, a4, a5, a6, a7, a8, a9, a10, a11, a12) am_request_xfer((ep), (dest), (off), (h), (src), (nbytes), 0, AM_ARGS_13(a0, a1, a2, a3, a4, a5, a6, a7, a8, a9, a10, a11, a12))
#define AM_RequestXfer14(ep, dest, off, h, src, nbytes, a0, a1, a2, a3, a4, a5, a6, a7, a8, a9, a10, a11, a12, a13) am_request_xfer((ep), (dest), (off), (h), (src), (nbytes), 0, AM_ARGS_14(a0, a1, a2, a3, a4, a5, a6, a7, a8, a9, a10, a11, a12, a13))
#define AM_RequestXfer15(ep, dest, off, h, src, nbytes, a0, a1, a2, a3, a4, a5, a6, a7, a8, a9, a10, a11, a12, a13, a14) am_request_xfer((ep), (dest), (off), (h), (src), (nbytes), 0, AM_ARGS_15(a0, a1, a2, a3, a4, a5, a6, a7, a8, a9, a10, a11, a12, a13, a14))
#define AM_RequestXfer16(ep, dest, off, h, src, nbytes, a0, a1, a2, a3, a4, a5, a6, a7, a8, a9, a10, a11, a12, a13, a14, a15) am_request_xfer((ep), (dest), (off), (h), (src), (nbytes), 0, AM_ARGS_16(a0, a1, a2, a3, a4, a5, a6, a7, a8, a9, a10, a11, a12, a13, a14, a15))

#define AM_RequestXferAsync0(ep, dest, off, h, src, nbytes) am_request_xfer((ep), (dest), (off), (h), (src), (nbytes), 1, AM_ARGS_0())
#define AM_RequestXferAsync1(ep, dest, off, h, src, nbytes, a0) am_request_xfer((ep), (dest), (off), (h), (src), (nbytes), 1, AM_ARGS_1(a0))
#define AM_RequestXferAsync2(ep, dest, off, h, src, nbytes, a0, a1) am_request_xfer((ep), (dest), (off), (h), (src), (nbytes), 1, AM_ARGS_2(a0, a1))
#define AM_RequestXferAsync3(ep, dest, off, h, src, nbytes, a0, a1, a2) am_request_xfer((ep), (dest), (off), (h), (src), (nbytes), 1, AM_ARGS_3(a0, a1, a2))
#define AM_RequestXferAsync4(ep, dest, off, h, src, nbytes, a0, a1, a2, a3) am_request_xfer((ep), (dest), (off), (h), (src), (nbytes), 1, AM_ARGS_4(a0, a1, a2, a3))
#define AM_RequestXferAsync5(ep, dest, off, h, src, nbytes, a0, a1, a2, a3, a4) am_request_xfer((ep), (dest), (off), (h), (src), (nbytes), 1, AM_ARGS_5(a0, a1, a2, a3, a4))
#define AM_RequestXferAsync6(ep, dest, off, h, src, nbytes, a0, a1, a2, a3, a4, a5) am_request_xfer((ep), (dest), (off), (h), (src), (nbytes), 1, AM_ARGS_6(a0, a1, a2, a3, a4, a5))
#define AM_RequestXferAsync7(ep, dest, off, h, src, nbytes, a0, a1, a2, a3, a4, a5, a6) am_request_xfer((ep), (dest), (off), (h), (src), (nbytes), 1, AM_ARGS_7(a0, a1, a2, a3, a4, a5, a6))
#define AM_RequestXferAsync8(ep, dest, off, h, src, nbytes, a0, a1, a2, a3, a4, a5, a6, a7) am_request_xfer((ep), (dest), (off), (h), (src), (nbytes), 1, AM_ARGS_8(a0, a1, a2, a3, a4, a5, a6, a7))
#define AM_RequestXferAsync9(ep, dest, off, h, src, nbytes, a0, a1, a2, a3, a4, a5, a6, a7, a8) am_request_xfer((ep), (dest), (off), (h), (src), (nbytes), 1, AM_ARGS_9(a0, a1, a2, a3, a4, a5, a6, a7, a8))
#define AM_RequestXferAsync10(ep, dest, off, h, src, nbytes, a0, a1, a2, a3, a4, a5, a6, a7, a8, a9) am_request_xfer((ep), (dest), (off), (h), (src), (nbytes), 1, AM_ARGS_10(a0, a1, a2, a3, a4, a5, a6, a7, a8, a9))
#define AM_RequestXferAsync11(ep, dest, off, h, src, nbytes, a0, a1, a2, a3, a4, a5, a6, a7, a8, a9, a10) am_request_xfer((ep), (dest), (off), (h), (src), (nbytes), 1, AM_ARGS_11(a0, a1, a2, a3, a4, a5, a6, a7, a8, a9, a10))
#define AM_RequestXferAsync12(ep, dest, off, h, src, nbytes, a0, a1, a2, a3, a4, a5, a6, a7, a8, a9, a10, a11) am_request_xfer((ep), (dest), (off), (h), (src), (nbytes), 1, AM_ARGS_12(a0, a1, a2, a3, a4, a5, a6, a7, a8, a9, a10, a11))
#define AM_RequestXferAsync13(ep, dest, off, h, src, nbytes, a0, a1, a2, a3, a4, a5, a6, a7, a8, a9, a10, a11, a12) am_request_xfer((ep), (dest), (off), (h), (src), (nbytes), 1, AM_ARGS_13(a0, a1, a2, a3, a4, a5, a6, a7, a8, a9, a10, a11, a12))
#define AM_RequestXferAsync14(ep, dest, off, h, src, nbytes, a0, a1, a2, a3, a4, a5, a6, a7, a8, a9, a10, a11, a12, a13) am_request_xfer((ep), (dest), (off), (h), (src), (nbytes), 1, AM_ARGS_14(a0, a1, a2, a3, a4, a5, a6, a7, a8, a9, a10, a11, a12, a13))
#define AM_RequestXferAsync15(ep, dest, off, h, src, nbytes, a0, a1, a2, a3, a4, a5, a6, a7, a8, a9, a10, a11, a12, a13, a14) am_request_xfer((ep), (dest), (off), (h), (src), (nbytes), 1, AM_ARGS_15(a0, a1, a2, a3, a4, a5, a6, a7, a8, a9, a10, a11, a12, a13, a14))
#define AM_RequestXferAsync16(ep, dest, off, h, src, nbytes, a0, a1, a2, a3, a4, a5, a6, a7, a8, a9, a10, a11, a12, a13, a14, a15) am_request_xfer((ep), (dest), (off), (h), (src), (nbytes), 1, AM_ARGS_16(a0, a1, a2, a3, a4, a5, a6, a7, a8, a9, a10, a11, a12, a13, a14, a15))

#define AM_Reply0(token, h) am_reply((token), (h), AM_ARGS_0())
#define AM_Reply1(token, h, a0) am_reply((token), (h), AM_ARGS_1(a0))
#define AM_Reply2(token, h, a0, a1) am_reply((token), (h), AM_ARGS_2(a0, a1))
#define AM_Reply3(token, h, a0, a1, a2) am_reply((token), (h), AM_ARGS_3(a0, a1, a2))
#define AM_Reply4(token, h, a0, a1, a2, a3) am_reply((token), (h), AM_ARGS_4(a0, a1, a2, a3))
#define AM_Reply5(token, h, a0, a1, a2, a3, a4) am_reply((token), (h), AM_ARGS_5(a0, a1, a2, a3, a4))
#define AM_Reply6(token, h, a0, a1, a2, a3, a4, a5) am_reply((token), (h), AM_ARGS_6(a0, a1, a2, a3, a4, a5))
#define AM_Reply7(token, h, a0, a1, a2, a3, a4, a5, a6) am_reply((token), (h), AM_ARGS_7(a0, a1, a2, a3, a4, a5, a6))
#define AM_Reply8(token, h, a0, a1, a2, a3, a4, a5, a6, a7) am_reply((token), (h), AM_ARGS_8(a0, a1, a2, a3, a4, a5, a6, a7))
#define AM_Reply9(token, h, a0, a1, a2, a3, a4, a5, a6, a7, a8) am_reply((token), (h), AM_ARGS_9(a0, a1, a2, a3, a4, a5, a6, a7, a8))
#define AM_Reply10(token, h, a0, a1, a2, a3, a4, a5, a6, a7, a8, a9) am_reply((token), (h), AM_ARGS_10(a0, a1, a2, a3, a4, a5, a6, a7, a8, a9))
#define AM_Reply11(token, h, a0, a1, a2, a3, a4, a5, a6, a7, a8, a9, a10) am_reply((token), (h), AM_ARGS_11(a0, a1, a2, a3, a4, a5, a6, a7, a8, a9, a10))
#define AM_Reply12(token, h, a0, a1, a2, a3, a4, a5, a6, a7, a8, a9, a10, a11) am_reply((token), (h), AM_ARGS_12(a0, a1, a2, a3, a4, a5, a6, a7, a8, a9, a10, a11))
#define AM_Reply13(token, h, a0, a1, a2, a3, a4, a5, a6, a7, a8, a9, a10, a11, a12) am_reply((token), (h), AM_ARGS_13(a0, a1, a2, a3, a4, a5, a6, a7, a8, a9, a10, a11, a12))
#define AM_Reply14(token, h, a0, a1, a2, a3, a4, a5, a6, a7, a8, a9, a10, a11, a12, a13) am_reply((token), (h), AM_ARGS_14(a0, a1, a2, a3, a4, a5, a6, a7, a8, a9, a10, a11, a12, a13))
#define AM_Reply15(token, h, a0, a1, a2, a3, a4, a5, a6, a7, a8, a9, a10, a11, a12, a13, a14) am_reply((token), (h), AM_ARGS_15(a0, a1, a2, a3, a4, a5, a6, a7, a8, a9, a10, a11, a12, a13, a14))
#define AM_Reply16(token, h, a0, a1, a2, a3, a4, a5, a6, a7, a8, a9, a10, a11, a12, a13, a14, a15) am_reply((token), (h), AM_ARGS_16(a0, a1, a2, a3, a4, a5, a6, a7, a8, a9, a10, a11, a12, a13, a14, a15))

#define AM_ReplyI0(token, h, src, nbytes) am_reply_i((token), (h), (src), (nbytes), AM_ARGS_0())
#define AM_ReplyI1(token, h, src, nbytes, a0) am_reply_i((token), (h), (src), (nbytes), AM_ARGS_1(a0))
#define AM_ReplyI2(token, h, src, nbytes, a0, a1) am_reply_i((token), (h), (src), (nbytes), AM_ARGS_2(a0, a1))
#define AM_ReplyI3(token, h, src, nbytes, a0, a1, a2) am_reply_i((token), (h), (src), (nbytes), AM_ARGS_3(a0, a1, a2))
#define AM_ReplyI4(token, h, src, nbytes, a0, a1, a2, a3) am_reply_i((token), (h), (src), (nbytes), AM_ARGS_4(a0, a1, a2, a3))
#define AM_ReplyI5(token, h, src, nbytes, a0, a1, a2, a3, a4) am_reply_i((token), (h), (src), (nbytes), AM_ARGS_5(a0, a1, a2, a3, a4))
#define AM_ReplyI6(token, h, src, nbytes, a0, a1, a2, a3, a4, a5) am_reply_i((token), (h), (src), (nbytes), AM_ARGS_6(a0, a1, a2, a3, a4, a5))
#define AM_ReplyI7(token, h, src, nbytes, a0, a1, a2, a3, a4, a5, a6) am_reply_i((token), (h), (src), (nbytes), AM_ARGS_7(a0, a1, a2, a3, a4, a5, a6))
#define AM_ReplyI8(token, h, src, nbytes, a0, a1, a2, a3, a4, a5, a6, a7) am_reply_i((token), (h), (src), (nbytes), AM_ARGS_8(a0, a1, a2, a3, a4, a5, a6, a7))
#define AM_ReplyI9(token, h, src, nbytes, a0, a1, a2, a3, a4, a5, a6, a7, a8) am_reply_i((token), (h), (src), (nbytes), AM_ARGS_9(a0, a1, a2, a3, a4, a5, a6, a7, a8))
#define AM_ReplyI10(token, h, src, nbytes, a0, a1, a2, a3, a4, a5, a6, a7, a8, a9) am_reply_i((token), (h), (src), (nbytes), AM_ARGS_10(a0, a1, a2, a3, a4, a5, a6, a7, a8, a9))
#define AM_ReplyI11(token, h, src, nbytes, a0, a1, a2, a3, a4, a5, a6, a7, a8, a9, a10) am_reply_i((token), (h), (src), (nbytes), AM_ARGS_11(a0, a1, a2, a3, a4, a5, a6, a7, a8, a9, a10))
#define AM_ReplyI12(token, h, src, nbytes, a0, a1, a2, a3, a4, a5, a6, a7, a8, a9, a10, a11) am_reply_i((token), (h), (src), (nbytes), AM_ARGS_12(a0, a1, a2, a3, a4, a5, a6, a7, a8, a9, a10, a11))
#define AM_ReplyI13(token, h, src, nbytes, a0, a1, a2, a3, a4, a5, a6, a7, a8, a9, a10, a11, a12) am_reply_i((token), (h), (src), (nbytes), AM_ARGS_13(a0, a1, a2, a3, a4, a5, a6, a7, a8, a9, a10, a11, a12))
#define AM_ReplyI14(token, h, src, nbytes, a0, a1, a2, a3, a4, a5, a6, a7, a8, a9, a10, a11, a12, a13) am_reply_i((token), (h), (src), (nbytes), AM_ARGS_14(a0, a1, a2, a3, a4, a5, a6, a7, a8, a9, a10, a11, a12, a13))
#define AM_ReplyI15(token, h, src, nbytes, a0, a1, a2, a3, a4, a5, a6, a7, a8, a9, a10, a11, a12, a13, a14) am_reply_i((token), (h), (src), (nbytes), AM_ARGS_15(a0, a1, a2, a3, a4, a5, a6, a7, a8, a9, a10, a11, a12, a13, a14))
#define AM_ReplyI16(token, h, src, nbytes, a0, a1, a2, a3, a4, a5, a6, a7, a8, a9, a10, a11, a12, a13, a14, a15) am_reply_i((token), (h), (src), (nbytes), AM_ARGS_16(a0, a1, a2, a3, a4, a5, a6, a7, a8, a9, a10, a11, a12, a13, a14, a15))

#define AM_ReplyXfer0(token, off, h, src, nbytes) am_reply_xfer((token), (off), (h), (src), (nbytes), AM_ARGS_0())
#define AM_ReplyXfer1(token, off, h, src, nbytes, a0) am_reply_xfer((token), (off), (h), (src), (nbytes), AM_ARGS_1(a0))
#define AM_ReplyXfer2(token, off, h, src, nbytes, a0, a1) am_reply_xfer((token), (off), (h), (src), (nbytes), AM_ARGS_2(a0, a1))
#define AM_ReplyXfer3(token, off, h, src, nbytes, a0, a1, a2) am_reply_xfer((token), (off), (h), (src), (nbytes), AM_ARGS_3(a0, a1, a2))
#define AM_ReplyXfer4(token, off, h, src, nbytes, a0, a1, a2, a3) am_reply_xfer((token), (off), (h), (src), (nbytes), AM_ARGS_4(a0, a1, a2, a3))
#define AM_ReplyXfer5(token, off, h, src, nbytes, a0, a1, a2, a3, a4) am_reply_xfer((token), (off), (h), (src), (nbytes), AM_ARGS_5(a0, a1, a2, a3, a4))
#define AM_ReplyXfer6(token, off, h, src, nbytes, a0, a1, a2, a3, a4, a5) am_reply_xfer((token), (off), (h), (src), (nbytes), AM_ARGS_6(a0, a1, a2, a3, a4, a5))
#define AM_ReplyXfer7(token, off, h, src, nbytes, a0, a1, a2, a3, a4, a5, a6) am_reply_xfer((token), (off), (h), (src), (nbytes), AM_ARGS_7(a0, a1, a2, a3, a4, a5, a6))
#define AM_ReplyXfer8(token, off, h, src, nbytes, a0, a1, a2, a3, a4, a5, a6, a7) am_reply_xfer((token), (off), (h), (src), (nbytes), AM_ARGS_8(a0, a1, a2, a3, a4, a5, a6, a7))
#define AM_ReplyXfer9(token, off, h, src, nbytes, a0, a1, a2, a3, a4, a5, a6, a7, a8) am_reply_xfer((token), (off), (h), (src), (nbytes), AM_ARGS_9(a0, a1, a2, a3, a4, a5, a6, a7, a8))
#define AM_ReplyXfer10(token, off, h, src, nbytes, a0, a1, a2, a3, a4, a5, a6, a7, a8, a9) am_reply_xfer((token), (off), (h), (src), (nbytes), AM_ARGS_10(a0, a1, a2, a3, a4, a5, a6, a7, a8, a9))
#define AM_ReplyXfer11(token, off, h, src, nbytes, a0, a1, a2, a3, a4, a5, a6, a7, a8, a9, a10) am_reply_xfer((token), (off), (h), (src), (nbytes), AM_ARGS_11(a0, a1, a2, a3, a4, a5, a6, a7, a8, a9, a10))
#define AM_ReplyXfer12(token, off, h, src, nbytes, a0, a1, a2, a3, a4, a5, a6, a7, a8, a9, a10, a11) am_reply_xfer((token), (off), (h), (src), (nbytes), AM_ARGS_12(a0, a1, a2, a3, a4, a5, a6, a7, a8, a9, a10, a11))
#define AM_ReplyXfer13(token, off, h, src, nbytes, a0, a1, a2, a3, a4, a5, a6, a7, a8, a9, a10, a11, a12) am_reply_xfer((token), (off), (h), (src), (nbytes), AM_ARGS_13(a0, a1, a2, a3, a4, a5, a6, a7, a8, a9, a10, a11, a12))
#define AM_ReplyXfer14(token, off, h, src, nbytes, a0, a1, a2, a3, a4, a5, a6, a7, a8, a9, a10, a11, a12, a13) am_reply_xfer((token), (off), (h), (src), (nbytes), AM_ARGS_14(a0, a1, a2, a3, a4, a5, a6, a7, a8, a9, a10, a11, a12, a13))
#define AM_ReplyXfer15(token, off, h, src, nbytes, a0, a1, a2, a3, a4, a5, a6, a7, a8, a9, a10, a11, a12, a13, a14) am_reply_xfer((token), (off), (h), (src), (nbytes), AM_ARGS_15(a0, a1, a2, a3, a4, a5, a6, a7, a8, a9, a10, a11, a12, a13, a14))
#define AM_ReplyXfer16(token, off, h, src, nbytes, a0, a1, a2, a3, a4, a5, a6, a7, a8, a9, a10, a11, a12, a13, a14, a15) am_reply_xfer((token), (off), (h), (src), (nbytes), AM_ARGS_16(a0, a1, a2, a3, a4, a5, a6, a7, a8, a9, a10, a11, a12, a13, a14, a15))

#define AM_GetXfer4(ep, dest, src_off, h, off, nbytes, a0, a1, a2, a3) am_get_xfer((ep), (dest), (src_off), (h), (off), (nbytes), 0, AM_ARGS_4(a0, a1, a2, a3))
#define AM_GetXferAsynch4(ep, dest, src_off, h, off, nbytes, a0, a1, a2, a3) am_get_xfer((ep), (dest), (src_off), (h), (off), (nbytes), 1, AM_ARGS_4(a0, a1, a2, a3))
#define AM_GetXfer8(ep, dest, src_off, h, off, nbytes, a0, a1, a2, a3, a4, a5, a6, a7) am_get_xfer((ep), (dest), (src_off), (h), (off), (nbytes), 0, AM_ARGS_8(a0, a1, a2, a3, a4, a5, a6, a7))
#define AM_GetXferAsynch8(ep, dest, src_off, h, off, nbytes, a0, a1, a2, a3, a4, a5, a6, a7) am_get_xfer((ep), (dest), (src_off), (h), (off), (nbytes), 1, AM_ARGS_8(a0, a1, a2, a3, a4, a5, a6, a7))
/* generated up to here */

#endif
