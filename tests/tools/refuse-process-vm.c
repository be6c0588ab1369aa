/* Runs a command with process_vm_readv and process_vm_writev refused, as hardened hosts and containers do:
 *
 *     refuse-process-vm COMMAND [ARGUMENT...]
 *
 * It installs a seccomp filter that answers EPERM, tries both calls on itself before and after, says what it saw, and only
 * runs the command if both were really refused. It also says how much memory may be locked. Exit status 125: set-up failed.
 * x86-64 and aarch64; needs no library and no privilege. */
#define _GNU_SOURCE
#include <errno.h>
#include <linux/audit.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

#if defined(__x86_64__)
#define NATIVE AUDIT_ARCH_X86_64
#elif defined(__aarch64__)
#define NATIVE AUDIT_ARCH_AARCH64
#else
#error "add this machine's AUDIT_ARCH"
#endif

enum { SETUP_FAILED = 125, X32_BIT = 0x40000000 };

#define LOAD(field) BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, field))
#define ANSWER(what) BPF_STMT(BPF_RET | BPF_K, (what))
#define SKIP_UNLESS_EQUAL(value, skip) BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, (value), 0, (skip))
#define SKIP_IF_EQUAL(value, skip) BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, (value), (skip), 0)
#define SKIP_IF_AT_LEAST(value, skip) BPF_JUMP(BPF_JMP | BPF_JGE | BPF_K, (value), (skip), 0)

static int refuse(void) {
    struct sock_filter rules[] = {
        LOAD(arch),
        SKIP_UNLESS_EQUAL(NATIVE, 5), /* the numbers of another architecture mean other calls: refuse them all */
        LOAD(nr),
        SKIP_IF_AT_LEAST(X32_BIT, 3), /* x32 on x86-64 likewise */
        SKIP_IF_EQUAL(SYS_process_vm_readv, 2),
        SKIP_IF_EQUAL(SYS_process_vm_writev, 1),
        ANSWER(SECCOMP_RET_ALLOW),
        ANSWER(SECCOMP_RET_ERRNO | EPERM),
    };
    struct sock_fprog program = {sizeof rules / sizeof *rules, rules};
    if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0))
        return -1;
    return prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program);
}

/* The kernel's result for a read or a write of the process's own memory: 0 or an errno. */
static int try_self(int writing) {
    char from[8] = "weft", to[8] = "";
    struct iovec local = {writing ? from : to, sizeof from}, remote = {writing ? to : from, sizeof to};
    ssize_t n = writing ? process_vm_writev(getpid(), &local, 1, &remote, 1, 0)
                        : process_vm_readv(getpid(), &local, 1, &remote, 1, 0);
    return n == (ssize_t)sizeof from ? 0 : n < 0 ? errno : EIO;
}

static const char *word(int error) { return error == 0 ? "allowed" : error == EPERM ? "refused" : strerror(error); }

int main(int argc, char **argv) {
    if (argc < 2) {
        fprintf(stderr, "usage: refuse-process-vm COMMAND [ARGUMENT...]\n");
        return SETUP_FAILED;
    }
    int read_before = try_self(0), write_before = try_self(1);
    if (refuse()) {
        perror("refuse-process-vm: seccomp filter");
        return SETUP_FAILED;
    }
    int read_after = try_self(0), write_after = try_self(1);
    char page[1];
    int locked = mlock(page, sizeof page) ? errno : 0;
    if (!locked)
        munlock(page, sizeof page);
    fprintf(stderr, "weft: ordinary user, called uid %d: process_vm_readv was %s, now %s; process_vm_writev was %s, now %s; mlock %s\n",
            (int)getuid(), word(read_before), word(read_after), word(write_before), word(write_after), word(locked));
    if (read_after != EPERM || write_after != EPERM) {
        fprintf(stderr, "refuse-process-vm: the filter does not refuse\n");
        return SETUP_FAILED;
    }
    if (!locked) {
        fprintf(stderr, "refuse-process-vm: memory may be locked; set `ulimit -l 0` and be an ordinary user\n");
        return SETUP_FAILED;
    }
    execvp(argv[1], argv + 1);
    fprintf(stderr, "refuse-process-vm: %s: %s\n", argv[1], strerror(errno));
    return SETUP_FAILED;
}
