/* Active messages of UCX's protocol layer, eager, over posix shared memory. */
#include "ucx.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <ucp/api/ucp.h>

static ucp_context_h context;
static ucp_worker_h worker;
static ucp_ep_h endpoint;
static struct inbox inbox;

/* The bytes are read where UCP hands them. Each message is whole: it would put fragments together before. */
static ucs_status_t on_message(void *argument, const void *header, size_t header_length, void *data, size_t length,
                               const ucp_am_recv_param_t *param)
{
    (void)argument, (void)header, (void)header_length, (void)param;
    inbox.sum += sum_bytes(data, length);
    inbox.count++;
    return UCS_OK;
}

static inline void progress(void)
{
    ucp_worker_progress(worker);
}

static void finish_request(ucs_status_ptr_t request, const char *what)
{
    if (UCS_PTR_IS_ERR(request))
        must(UCS_PTR_STATUS(request), what);
    if (!UCS_PTR_IS_PTR(request))
        return;
    while (ucp_request_check_status(request) == UCS_INPROGRESS)
        progress();
    must(ucp_request_check_status(request), what);
    ucp_request_free(request);
}

static inline void send_eager(const char *message, size_t size)
{
    static const ucp_request_param_t EAGER = {
        .op_attr_mask = UCP_OP_ATTR_FIELD_FLAGS | UCP_OP_ATTR_FIELD_MEMORY_TYPE,
        .flags = UCP_AM_SEND_FLAG_EAGER,
        .memory_type = UCS_MEMORY_TYPE_HOST,
    };
    ucs_status_ptr_t request = ucp_am_send_nbx(endpoint, AM_ID, NULL, 0, message, size, &EAGER);
    if (request != NULL) /* as a rule it is done by now */
        finish_request(request, "send");
}

/* The user's environment goes before what is set here, and may name other transports. */
static void check_transport(void)
{
    char *text = NULL;
    size_t length;
    FILE *stream = open_memstream(&text, &length);
    if (stream == NULL)
        fail(STATUS_FAILED, "no memory for what UCP says of its endpoint");
    ucp_ep_print_info(endpoint, stream);
    fclose(stream);
    if (strstr(text, "posix/memory") == NULL)
        fail(STATUS_FAILED, "UCP does not go through posix shared memory; unset UCX_TLS");
    free(text);
}

static void open(void *options)
{
    (void)options;
    setenv("UCX_TLS", "posix,self", false);
    setenv("UCX_RNDV_THRESH", "inf", false);
    ucp_params_t params = { .field_mask = UCP_PARAM_FIELD_FEATURES, .features = UCP_FEATURE_AM };
    must(ucp_init(&params, NULL, &context), "start");
    ucp_worker_params_t of_worker = { .field_mask = UCP_WORKER_PARAM_FIELD_THREAD_MODE, .thread_mode = UCS_THREAD_MODE_SINGLE };
    must(ucp_worker_create(context, &of_worker, &worker), "make a worker");
    ucp_am_handler_param_t handler = {
        .field_mask = UCP_AM_HANDLER_PARAM_FIELD_ID | UCP_AM_HANDLER_PARAM_FIELD_FLAGS | UCP_AM_HANDLER_PARAM_FIELD_CB,
        .id = AM_ID,
        .flags = UCP_AM_FLAG_WHOLE_MSG,
        .cb = on_message,
    };
    must(ucp_worker_set_am_recv_handler(worker, &handler), "take a handler");
    ucp_address_t *address;
    size_t length;
    must(ucp_worker_get_address(worker, &address, &length), "tell its address");
    address_tell(ADDRESS_ENDPOINT, address, length);
    ucp_worker_release_address(worker, address);
    addresses_wait();
    ucp_ep_params_t of_endpoint = { .field_mask = UCP_EP_PARAM_FIELD_REMOTE_ADDRESS, .address = address_of_other(ADDRESS_ENDPOINT) };
    must(ucp_ep_create(worker, &of_endpoint, &endpoint), "reach the other process");
}

static void echo(void *options)
{
    const struct options *o = options;
    echo_through(&inbox, o->size, send_eager, progress);
}

static struct result round_trips(const struct options *o)
{
    return round_trips_through(&inbox, o, send_eager, progress);
}

static const char *detail(size_t size)
{
    (void)size;
    check_transport();
    return "active messages of UCP over posix, eager; both sides read all bytes";
}

/* The endpoint ends with its worker. */
static void close_all(void *nothing)
{
    (void)nothing;
    ucp_worker_destroy(worker);
    ucp_cleanup(context);
}

const struct interface UCP = { "ucp", "ucx-ucp-am", open, echo, round_trips, detail, close_all };
