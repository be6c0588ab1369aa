#include "peer.h"

#include <errno.h>
#include <inttypes.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

enum { WATCHDOG_SECONDS = 20 };

struct shared *shared;
static volatile pid_t peer; /* 0 in the peer itself, and when there is none; the handler reaps */

/* In a handler of signals, so without stdio. */
static void say(const char *line)
{
    const char *parts[] = { program_invocation_short_name, ": ", line, "\n" };
    for (size_t i = 0; i < sizeof parts / sizeof *parts; i++) {
        ssize_t ignored = write(STDERR_FILENO, parts[i], strlen(parts[i]));
        (void)ignored;
    }
}

void peer_kill(void)
{
    pid_t pid = peer;
    peer = 0;
    if (pid > 0 && kill(pid, SIGKILL) == 0)
        waitpid(pid, NULL, 0);
}

static void on_alarm(int signal)
{
    (void)signal;
    say("no end after 20 s; is another program pinned to the same CPUs? try others with --cpus A,B");
    peer_kill();
    _exit(STATUS_HUNG);
}

/* The parent polls memory that a dead peer will never write, so it must be told. */
static void on_child(int signal)
{
    (void)signal;
    int status;
    if (peer <= 0 || waitpid(peer, &status, WNOHANG) != peer)
        return;
    peer = 0;
    if (WIFEXITED(status) && WEXITSTATUS(status) == 0)
        return;
    if (WIFSIGNALED(status))
        say("the second process was killed; run again");
    _exit(WIFEXITED(status) ? WEXITSTATUS(status) : STATUS_FAILED);
}

static void handle(int signal, void (*handler)(int))
{
    struct sigaction action = { .sa_handler = handler, .sa_flags = SA_RESTART | SA_NOCLDSTOP };
    sigaction(signal, &action, NULL);
}

static _Noreturn void serve(pid_t parent)
{
    alarm(WATCHDOG_SECONDS);
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() != parent) /* it died before prctl */
        _exit(STATUS_FAILED);
    for (unsigned next = 1;; next++) {
        while (atomic_load_explicit(&shared->job, memory_order_acquire) != next)
            ;
        if (shared->work == NULL)
            _exit(0);
        shared->work(shared->argument);
        atomic_store_explicit(&shared->done, next, memory_order_release);
    }
}

void peer_watch(void)
{
    handle(SIGALRM, on_alarm);
    handle(SIGPIPE, SIG_IGN); /* writing to a dead peer is an error like others */
    alarm(WATCHDOG_SECONDS);
}

void peer_fork(const struct options *o)
{
    shared = map(sizeof *shared, true);
    handle(SIGCHLD, on_child);
    peer_watch();
    sigset_t child, before; /* the handler must know the pid before it runs */
    sigemptyset(&child);
    sigaddset(&child, SIGCHLD);
    sigprocmask(SIG_BLOCK, &child, &before);
    pid_t parent = getpid();
    peer = fork();
    if (peer < 0)
        fail(STATUS_FAILED, "cannot fork: %s; raise `ulimit -u`", strerror(errno));
    sigprocmask(SIG_SETMASK, &before, NULL);
    pin(o->cpu[peer == 0]);
    if (peer == 0)
        serve(parent);
}

void peer_start(void (*work)(void *argument), void *argument)
{
    shared->work = work;
    shared->argument = argument;
    atomic_store_explicit(&shared->stop, false, memory_order_relaxed);
    atomic_fetch_add_explicit(&shared->job, 1, memory_order_release);
}

bool peer_done(void)
{
    unsigned job = atomic_load_explicit(&shared->job, memory_order_relaxed);
    return atomic_load_explicit(&shared->done, memory_order_acquire) == job;
}

void peer_wait(void)
{
    while (!peer_done())
        ;
}

void peer_compare(uint64_t sent_sum, uint64_t received_sum)
{
    if (shared->received_sum != sent_sum || shared->sent_sum != received_sum)
        fail(STATUS_SUM, "sums differ: there %016" PRIx64 " of %016" PRIx64 ", back %016" PRIx64 " of %016" PRIx64
             "; the limit program is wrong, do not use its numbers", shared->received_sum, sent_sum, received_sum, shared->sent_sum);
}

void peer_end(void)
{
    peer_start(NULL, NULL);
    while (peer != 0)
        usleep(50);
}
