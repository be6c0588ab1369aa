/* Active messages of UCX's transport layer, over posix shared memory. */
#include "copy.h"
#include "ucx.h"

#include <alloca.h>
#include <stdio.h>
#include <string.h>
#include <ucs/async/async_fwd.h>
#include <uct/api/uct.h>

/* What ucx_perftest is told to send as `short` at most: what fits an element of the transport's queue, with header. */
enum { SHORT_MOST = 92 };

static ucs_async_context_t *async;
static uct_worker_h worker;
static uct_md_h domain;
static uct_iface_h iface;
static uct_iface_attr_t attributes;
static uct_ep_h endpoint;
static struct inbox inbox;

/* The bytes are read where UCT hands them; the answer follows once this has returned, as UCT wants it. */
static ucs_status_t on_message(void *argument, void *data, size_t length, unsigned flags)
{
    (void)argument, (void)flags;
    inbox.sum += sum_bytes(data, length);
    inbox.count++;
    return UCS_OK;
}

static inline void progress(void)
{
    uct_worker_progress(worker);
}

/* ---- sending ---- */

static inline ucs_status_t try_short(const char *message, size_t size)
{
    uint64_t first; /* goes as the header, which the handler gets in front of the rest */
    memcpy(&first, message, sizeof first);
    return uct_ep_am_short(endpoint, AM_ID, first, message + sizeof first, (unsigned)(size - sizeof first));
}

static void send_short(const char *message, size_t size)
{
    while (try_short(message, size) == UCS_ERR_NO_RESOURCE)
        progress();
}

struct packed {
    const char *message;
    size_t size;
};

/* A loop, and not memcpy: a round trip of 1 KiB takes 0.7 of the time, 8 KiB 0.95. */
static size_t pack(void *into, void *argument)
{
    const struct packed *p = argument;
    copy_lines(into, p->message, p->size);
    return p->size;
}

static inline void send_copied(const char *message, size_t size)
{
    struct packed p = { message, size };
    while (uct_ep_am_bcopy(endpoint, AM_ID, pack, &p, 0) == UCS_ERR_NO_RESOURCE)
        progress();
}

/* ---- opening and closing ---- */

static bool try_domain(uct_component_h component)
{
    uct_component_attr_t found = { .field_mask = UCT_COMPONENT_ATTR_FIELD_NAME | UCT_COMPONENT_ATTR_FIELD_MD_RESOURCE_COUNT };
    if (uct_component_query(component, &found) != UCS_OK || strcmp(found.name, "posix") != 0 || found.md_resource_count == 0)
        return false;
    uct_md_config_t *config;
    must(uct_md_config_read(component, NULL, NULL, &config), "read how posix is set");
    ucs_status_t status = uct_md_open(component, "posix", config, &domain);
    uct_config_release(config);
    must(status, "open the memory domain posix");
    return true;
}

static void open_domain(void)
{
    uct_component_h *components;
    unsigned n;
    must(uct_query_components(&components, &n), "list its components");
    bool is_open = false;
    for (unsigned i = 0; i < n && !is_open; i++)
        is_open = try_domain(components[i]);
    uct_release_component_list(components);
    if (!is_open)
        fail(STATUS_FAILED, "UCT has no posix shared memory; see `ucx_info -d`");
}

static void open_iface(void)
{
    uct_iface_config_t *config;
    must(uct_md_iface_config_read(domain, "posix", NULL, NULL, &config), "read how posix is set");
    uct_iface_params_t params = {
        .field_mask = UCT_IFACE_PARAM_FIELD_OPEN_MODE | UCT_IFACE_PARAM_FIELD_DEVICE,
        .open_mode = UCT_IFACE_OPEN_MODE_DEVICE,
        .mode.device = { .tl_name = "posix", .dev_name = "memory" },
    };
    ucs_status_t status = uct_iface_open(domain, worker, &params, config, &iface);
    uct_config_release(config);
    must(status, "open posix on memory");
    must(uct_iface_query(iface, &attributes), "tell what posix can do");
    must(uct_iface_set_am_handler(iface, AM_ID, on_message, NULL, 0), "take a handler");
    uct_iface_progress_enable(iface, UCT_PROGRESS_SEND | UCT_PROGRESS_RECV);
}

static void open_endpoint(void)
{
    void *device = alloca(attributes.device_addr_len), *of_iface = alloca(attributes.iface_addr_len);
    must(uct_iface_get_device_address(iface, device), "tell its device's address");
    must(uct_iface_get_address(iface, of_iface), "tell its address");
    address_tell(ADDRESS_DEVICE, device, attributes.device_addr_len);
    address_tell(ADDRESS_ENDPOINT, of_iface, attributes.iface_addr_len);
    addresses_wait();
    uct_ep_params_t params = {
        .field_mask = UCT_EP_PARAM_FIELD_IFACE | UCT_EP_PARAM_FIELD_DEV_ADDR | UCT_EP_PARAM_FIELD_IFACE_ADDR,
        .iface = iface,
        .dev_addr = address_of_other(ADDRESS_DEVICE),
        .iface_addr = address_of_other(ADDRESS_ENDPOINT),
    };
    must(uct_ep_create(&params, &endpoint), "reach the other process");
}

static void open(void *options)
{
    (void)options;
    must(ucs_async_context_create(UCS_ASYNC_MODE_THREAD_SPINLOCK, &async), "start");
    must(uct_worker_create(async, UCS_THREAD_MODE_SINGLE, &worker), "make a worker");
    open_domain();
    open_iface();
    open_endpoint();
}

static void close_all(void *nothing)
{
    (void)nothing;
    uct_ep_destroy(endpoint);
    uct_iface_close(iface);
    uct_md_close(domain);
    uct_worker_destroy(worker);
    ucs_async_context_destroy(async);
}

/* ---- the round trip ---- */

static bool is_short(size_t size)
{
    return size <= SHORT_MOST && size <= attributes.cap.am.max_short;
}

static void echo(void *options)
{
    const struct options *o = options;
    if (is_short(o->size))
        echo_through(&inbox, o->size, send_short, progress);
    else
        echo_through(&inbox, o->size, send_copied, progress);
}

static struct result round_trips(const struct options *o)
{
    if (is_short(o->size))
        return round_trips_through(&inbox, o, send_short, progress);
    return round_trips_through(&inbox, o, send_copied, progress);
}

static const char *detail(size_t size)
{
    if (is_short(size))
        return "active messages of UCT over posix, short; both sides read all bytes";
    if (size <= attributes.cap.am.max_bcopy)
        return "active messages of UCT over posix, copied in; both sides read all bytes";
    fprintf(stderr, "ucx-read: skipped: an active message of UCT holds at most %zu bytes, not %zu\n", attributes.cap.am.max_bcopy, size);
    return NULL;
}

const struct interface UCT = { "uct", "ucx-uct-am", open, echo, round_trips, detail, close_all };
