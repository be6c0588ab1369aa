/* One of the two processes in C that `weft bench am` compares with two in Rust: one answers, the other asks and keeps the time.
 *
 * Jobs come by standard input, a line each, and answers go to standard output as JSON, a line each:
 *
 *   answer WAY FORM SIZE                           its name and tag, and at the end what it received
 *   ask WAY FORM SIZE SECONDS BATCH NAME TAG       what it measured, and what it received
 *
 * WAY is `trip` (a request and a reply of the same form and size) or `rate` (requests that the library answers by itself). FORM is
 * `short`, `medium` or `long`. The messages are taken from the source of bench/limits, as those in Rust are, and both sides add up
 * what came. */
#include "../limits/common.h"

#include <am.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/random.h>
#include <unistd.h>

/* A job that does not get on for so many seconds ends the process: the other one may be gone. */
enum { PATIENCE = 20 };

/* Long messages take turns at so many places of the segment: as many as are under way. */
enum { PLACES = 32 };

/* Handlers. Those of a rate do not reply. */
enum { RETURNED, NONE, ARGS, BYTES, LONG_BYTES, TAKE_NONE, TAKE_ARGS, TAKE_BYTES, STOP, STOPPED };

enum form { SHORT, MEDIUM, LONG };

static struct job {
    enum form form;
    bool is_rate;
    size_t size;
} job;

/* What came, and how many requests went. */
static uint64_t count, sum, requests;

/* Whether all messages have come. The asking process repeats how many there are, because this word may overtake the last messages. */
static bool is_stopped, is_told;

static struct source source;
static eb_t bundle;
static ep_t endpoint;

/* Where long messages are placed, and which of their places is next at the other process. */
static void *segment;
static unsigned next_place;

/* In common.c, a failing process ends its peer. This one has started none. */
void peer_kill(void)
{
}

static void must(int code, const char *call)
{
    if (code != AM_OK)
        fail(STATUS_FAILED, "%s gave the error %d; run it again, and report it if it happens again", call, code);
}

/* What is said of a job that does not end. A signal's handler may only write it. */
static char complaint[160];

static void hung(int signal)
{
    (void)signal;
    static uint64_t seen;
    uint64_t now = count + requests;
    if (now != seen) {
        seen = now;
        alarm(PATIENCE);
        return;
    }
    if (write(STDERR_FILENO, complaint, strlen(complaint)) < 0)
        _exit(STATUS_FAILED);
    _exit(STATUS_HUNG);
}

static void next_args(int32_t args[4])
{
    memcpy(args, source_next(&source), 16);
}

static size_t next_offset(void)
{
    return next_place++ % PLACES * job.size;
}

static uint64_t pair_of(int low, int high)
{
    return (uint32_t)low | (uint64_t)(uint32_t)high << 32;
}

/* ---- handlers of the process that answers ---- */

static void answer_none(void *token)
{
    count++;
    must(AM_Reply0(token, NONE), "AM_Reply0");
}

static void answer_args(void *token, int a, int b, int c, int d)
{
    int32_t args[4];
    count++;
    sum += pair_of(a, b) + pair_of(c, d);
    next_args(args);
    must(AM_Reply4(token, ARGS, args[0], args[1], args[2], args[3]), "AM_Reply4");
}

static void answer_bytes(void *token, void *bytes, size_t n)
{
    count++;
    sum += sum_bytes(bytes, n);
    must(AM_ReplyI0(token, BYTES, source_next(&source), job.size), "AM_ReplyI0");
}

static void answer_long(void *token, void *bytes, size_t n)
{
    count++;
    sum += sum_bytes(bytes, n);
    must(AM_ReplyXfer0(token, next_offset(), BYTES, source_next(&source), job.size), "AM_ReplyXfer0");
}

static void stop(void *token, int low, int high)
{
    is_stopped = count >= pair_of(low, high);
    must(AM_Reply1(token, STOPPED, is_stopped), "AM_Reply1");
}

/* ---- handlers of the process that asks, and of requests that nobody answers ---- */

static void take_none(void *token)
{
    (void)token;
    count++;
}

static void take_args(void *token, int a, int b, int c, int d)
{
    (void)token;
    count++;
    sum += pair_of(a, b) + pair_of(c, d);
}

static void take_bytes(void *token, void *bytes, size_t n)
{
    (void)token;
    count++;
    sum += sum_bytes(bytes, n);
}

static void stopped(void *token, int is_so)
{
    (void)token;
    is_stopped = is_so;
    is_told = true;
}

/* ---- jobs ---- */

static void open_endpoint(en_t *name, tag_t *tag)
{
    must(AM_AllocateBundle(AM_SEQ, &bundle), "AM_AllocateBundle");
    must(AM_AllocateEndpoint(bundle, &endpoint, name), "AM_AllocateEndpoint");
    if (getrandom(tag, sizeof *tag, 0) != sizeof *tag)
        fail(STATUS_FAILED, "no random number for a tag");
    must(AM_SetTag(endpoint, *tag), "AM_SetTag");
    next_place = 0;
    if (job.form == LONG) {
        segment = map(PLACES * job.size, false);
        must(AM_SetSeg(endpoint, segment, PLACES * job.size), "AM_SetSeg");
    }
    count = sum = requests = 0;
    is_stopped = false;
    alarm(PATIENCE);
}

static void close_endpoint(void)
{
    alarm(0);
    must(AM_FreeEndpoint(endpoint), "AM_FreeEndpoint");
    must(AM_FreeBundle(bundle), "AM_FreeBundle");
    if (job.form == LONG && munmap(segment, PLACES * job.size) != 0)
        fail(STATUS_FAILED, "cannot unmap the segment");
}

static void poll(void)
{
    must(AM_Poll(bundle), "AM_Poll");
}

static void start_source(bool second_half)
{
    if (job.size > 0)
        source = source_start(job.size, second_half);
}

static void answer(void)
{
    en_t name;
    tag_t tag;
    open_endpoint(&name, &tag);
    start_source(true);
    must(AM_SetHandler(endpoint, NONE, answer_none), "AM_SetHandler");
    must(AM_SetHandler(endpoint, ARGS, answer_args), "AM_SetHandler");
    must(AM_SetHandler(endpoint, BYTES, answer_bytes), "AM_SetHandler");
    must(AM_SetHandler(endpoint, LONG_BYTES, answer_long), "AM_SetHandler");
    must(AM_SetHandler(endpoint, TAKE_NONE, take_none), "AM_SetHandler");
    must(AM_SetHandler(endpoint, TAKE_ARGS, take_args), "AM_SetHandler");
    must(AM_SetHandler(endpoint, TAKE_BYTES, take_bytes), "AM_SetHandler");
    must(AM_SetHandler(endpoint, STOP, stop), "AM_SetHandler");
    printf("{\"name\":\"");
    for (size_t at = 0; at < sizeof name.bytes; at++)
        printf("%02x", name.bytes[at]);
    printf("\",\"tag\":\"%016llx\"}\n", (unsigned long long)tag);
    fflush(stdout);
    while (!is_stopped)
        poll();
    printf("{\"count\":%llu,\"sum\":%llu}\n", (unsigned long long)count, (unsigned long long)sum);
    close_endpoint();
}

/* One request, of the job's form. Blocks while 32 are under way. */
static void request(void)
{
    int32_t args[4];
    requests++;
    switch (job.form) {
    case SHORT:
        if (job.size == 0) {
            must(AM_Request0(endpoint, 0, job.is_rate ? TAKE_NONE : NONE), "AM_Request0");
        } else {
            next_args(args);
            must(AM_Request4(endpoint, 0, job.is_rate ? TAKE_ARGS : ARGS, args[0], args[1], args[2], args[3]), "AM_Request4");
        }
        break;
    case MEDIUM:
        must(AM_RequestI0(endpoint, 0, job.is_rate ? TAKE_BYTES : BYTES, source_next(&source), job.size), "AM_RequestI0");
        break;
    case LONG:
        must(AM_RequestXfer0(endpoint, 0, next_offset(), job.is_rate ? TAKE_BYTES : LONG_BYTES, source_next(&source), job.size),
             "AM_RequestXfer0");
        break;
    }
}

static void trip(void)
{
    uint64_t answers = count + 1;
    request();
    while (count < answers)
        poll();
}

static struct result trips(double seconds, unsigned batch)
{
    trip(); /* sets the session up */
    struct meter meter = meter_start(NS_PER_UNIT, seconds);
    do
        for (unsigned i = 0; i < batch; i++)
            trip();
    while (meter_tick(&meter, batch));
    return meter_finish(&meter);
}

static struct result rate(double seconds, unsigned batch)
{
    request();
    struct meter meter = meter_start(UNITS_PER_SECOND, seconds);
    do
        for (unsigned i = 0; i < batch; i++)
            request();
    while (meter_tick(&meter, batch));
    return meter_finish(&meter);
}

static void ask(double seconds, unsigned batch, en_t to, tag_t to_tag)
{
    en_t name;
    tag_t tag;
    open_endpoint(&name, &tag);
    start_source(false);
    must(AM_SetHandler(endpoint, NONE, take_none), "AM_SetHandler");
    must(AM_SetHandler(endpoint, ARGS, take_args), "AM_SetHandler");
    must(AM_SetHandler(endpoint, BYTES, take_bytes), "AM_SetHandler");
    must(AM_SetHandler(endpoint, STOPPED, stopped), "AM_SetHandler");
    must(AM_Map(endpoint, 0, to, to_tag), "AM_Map");
    struct result r = job.is_rate ? rate(seconds, batch) : trips(seconds, batch);
    while (!is_stopped) {
        is_told = false;
        must(AM_Request2(endpoint, 0, STOP, (uint32_t)requests, (uint32_t)(requests >> 32)), "AM_Request2");
        while (!is_told)
            poll();
    }
    printf("{\"median\":%.6g,\"p99\":%.6g,\"mean\":%.6g,\"n\":%zu", r.median, r.p99, r.mean, r.n);
    printf(",\"sent\":%llu,\"count\":%llu,\"sum\":%llu}\n", (unsigned long long)requests, (unsigned long long)count,
           (unsigned long long)sum);
    close_endpoint();
}

/* ---- the lines ---- */

static _Noreturn void not_a_job(const char *line)
{
    fail(STATUS_USAGE, "this is no job: %s; `weft bench am` starts this program", line);
}

static void read_name(const char *line, const char *hex, en_t *name)
{
    for (size_t at = 0; at < sizeof name->bytes; at++) {
        unsigned byte;
        if (sscanf(hex + 2 * at, "%2x", &byte) != 1)
            not_a_job(line);
        name->bytes[at] = (uint8_t)byte;
    }
}

static void read_job(const char *line, const char *way, const char *form, size_t size)
{
    static const char *const forms[] = { "short", "medium", "long" };
    job.is_rate = strcmp(way, "rate") == 0;
    job.size = size;
    for (int at = SHORT; at <= LONG; at++)
        if (strcmp(form, forms[at]) == 0)
            job.form = (enum form)at;
    bool is_good = strcmp(forms[job.form], form) == 0 && (job.is_rate || strcmp(way, "trip") == 0);
    if (!is_good || (job.form == SHORT ? size != 0 && size != 16 : size == 0 || size > 1 << 20))
        not_a_job(line);
}

static void work(const char *line)
{
    char way[8], form[8], hex[2 * sizeof(en_t) + 1];
    size_t size;
    double seconds;
    unsigned batch;
    unsigned long long tag;
    snprintf(complaint, sizeof complaint, "pair: no end after %d s: %.30s; look at what the other process said\n", PATIENCE, line);
    if (sscanf(line, "answer %7s %7s %zu", way, form, &size) == 3) {
        read_job(line, way, form, size);
        answer();
    } else if (sscanf(line, "ask %7s %7s %zu %lf %u %80s %llx", way, form, &size, &seconds, &batch, hex, &tag) == 7) {
        en_t name;
        read_job(line, way, form, size);
        if (batch == 0 || !(seconds > 0) || strlen(hex) != 2 * sizeof(en_t))
            not_a_job(line);
        read_name(line, hex, &name);
        ask(seconds, batch, name, tag);
    } else {
        not_a_job(line);
    }
    fflush(stdout);
}

int main(int argc, char **argv)
{
    /* Before anything else: it must not outlive the command, however that ends. */
    if (prctl(PR_SET_PDEATHSIG, SIGKILL) != 0)
        fail(STATUS_FAILED, "cannot ask for the end of the parent process");
    if (argc != 2)
        fail(STATUS_USAGE, "usage: pair CPU; `weft bench am` starts this program");
    pin(atoi(argv[1]));
    signal(SIGALRM, hung);
    must(am_check_version(AM_VERSION), "am_check_version");
    must(AM_Init(), "AM_Init");
    source_map();
    printf("{\"version\":\"%s\"}\n", am_version());
    fflush(stdout);
    char *line = NULL;
    for (size_t room = 0; getline(&line, &room, stdin) > 0;) {
        line[strcspn(line, "\n")] = '\0';
        work(line);
    }
    free(line);
    must(AM_Terminate(), "AM_Terminate");
    return 0;
}
