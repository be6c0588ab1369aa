/* Counts the locked operations of calls in a parallel bundle by single-stepping a child. x86-64 only. */
#include "check.h"

#ifdef __x86_64__
#include <errno.h>
#include <signal.h>
#include <sys/ptrace.h>
#include <sys/user.h>
#include <sys/wait.h>
#include <unistd.h>

/* The window is 32, and the other side does not poll. */
enum { CALLS = 30 };

static int answers;

static void server(void *token, int x) { AM_Reply1(token, 2, x); }
static void client(void *token, int x) {
    (void)token;
    answers += x;
}

#define MARK() __asm__ volatile("int3")

static void child(void) {
    OK(AM_Init());
    a = make_side(AM_PAR, TAG_A);
    b = make_side(AM_SEQ, TAG_B);
    OK(AM_Map(a.endpoint, 0, b.name, TAG_B));
    OK(AM_SetHandler(b.endpoint, 1, server));
    OK(AM_SetHandler(a.endpoint, 2, client));
    for (int times = 1; times <= 100; times++) {
        OK(AM_Request1(a.endpoint, 0, 1, 1));
        UNTIL(answers == times);
    }
    if (ptrace(PTRACE_TRACEME, 0, NULL, NULL) != 0) exit(77);
    for (int call = 0; call < CALLS; call++) {
        MARK();
        AM_Poll(a.bundle);
    }
    for (int call = 0; call < CALLS; call++) {
        MARK();
        AM_Request1(a.endpoint, 0, 1, 1);
    }
    MARK();
    exit(0);
}

/* Whether the instruction at an address is a locked one: with a LOCK prefix, or an exchange with memory, which locks without. */
static int is_locked(pid_t pid, unsigned long address) {
    errno = 0;
    unsigned long word = (unsigned long)ptrace(PTRACE_PEEKTEXT, pid, (void *)address, NULL);
    if (errno != 0) return 0;
    const unsigned char *code = (const unsigned char *)&word;
    int at = 0;
    while (at < 4 && (code[at] == 0x66 || code[at] == 0xf2 || code[at] == 0xf3 || code[at] == 0xf0)) {
        if (code[at++] == 0xf0) return 1;
    }
    if ((code[at] & 0xf0) == 0x40) at++; /* REX */
    return (code[at] == 0x86 || code[at] == 0x87) && (code[at + 1] & 0xc0) != 0xc0;
}

/* Steps to the next mark. */
static long locked_to_mark(pid_t pid) {
    long locked = 0;
    for (;;) {
        struct user_regs_struct registers;
        int status;
        CHECK(ptrace(PTRACE_GETREGS, pid, NULL, &registers) == 0);
        errno = 0;
        long word = ptrace(PTRACE_PEEKTEXT, pid, (void *)registers.rip, NULL);
        if ((word & 0xff) == 0xcc) {
            CHECK(ptrace(PTRACE_CONT, pid, NULL, NULL) == 0);
            CHECK(waitpid(pid, &status, 0) == pid && WIFSTOPPED(status) && WSTOPSIG(status) == SIGTRAP);
            return locked;
        }
        locked += is_locked(pid, registers.rip);
        CHECK(ptrace(PTRACE_SINGLESTEP, pid, NULL, NULL) == 0);
        CHECK(waitpid(pid, &status, 0) == pid);
        CHECK(WIFSTOPPED(status) && WSTOPSIG(status) == SIGTRAP);
    }
}

static int by_number(const void *one, const void *other) { return *(const int *)one - *(const int *)other; }

/* The median: a poll among many does more. */
static int usual(pid_t pid) {
    int counts[CALLS];
    for (int call = 0; call < CALLS; call++) counts[call] = (int)locked_to_mark(pid);
    qsort(counts, CALLS, sizeof *counts, by_number);
    return counts[CALLS / 2];
}

int main(void) {
    int status;
    pid_t pid = fork();
    if (pid == 0) child();
    CHECK(waitpid(pid, &status, 0) == pid);
    if (WIFEXITED(status) && WEXITSTATUS(status) == 77) {
        puts("left out: this machine traces no processes");
        return 0;
    }
    CHECK(WIFSTOPPED(status) && WSTOPSIG(status) == SIGTRAP);
    int polls = usual(pid), requests = usual(pid);
    ptrace(PTRACE_CONT, pid, NULL, NULL);
    waitpid(pid, &status, 0);
    printf("locked operations: %d a poll, %d a request\n", polls, requests);
    /* The bundle's lock takes two. None at all would mean that this program cannot see them. */
    CHECK(polls >= 1 && polls <= 2 && requests >= 1 && requests <= 2);
    return 0;
}
#else
int main(void) {
    puts("left out: locked operations are counted on x86-64");
    return 0;
}
#endif
