"""Runs a program as if on a kernel before 6.16: it cannot have its sockets refuse descriptors (SO_PASSRIGHTS)."""

import ctypes
import errno
import os
import struct
import sys

PR_SET_NO_NEW_PRIVS = 38
PR_SET_SECCOMP = 22
SECCOMP_MODE_FILTER = 2
SO_PASSRIGHTS = 83
SETSOCKOPT = {"x86_64": 54, "aarch64": 208}[os.uname().machine]
# What a seccomp filter reads: the call's number, and its third argument (the option), of which the low half comes first.
NUMBER, OPTION = 0, 16 + 2 * 8
LOAD, JUMP_IF_EQUAL, RETURN = 0x20, 0x15, 0x06
ALLOW, REFUSE = 0x7FFF0000, 0x00050000 | errno.ENOPROTOOPT

filters = b"".join(
    struct.pack("HBBI", *instruction)
    for instruction in (
        (LOAD, 0, 0, NUMBER),
        (JUMP_IF_EQUAL, 0, 3, SETSOCKOPT),
        (LOAD, 0, 0, OPTION),
        (JUMP_IF_EQUAL, 0, 1, SO_PASSRIGHTS),
        (RETURN, 0, 0, REFUSE),
        (RETURN, 0, 0, ALLOW),
    )
)
held = ctypes.create_string_buffer(filters)
program = ctypes.create_string_buffer(struct.pack("HxxxxxxQ", len(filters) // 8, ctypes.addressof(held)))
libc = ctypes.CDLL(None, use_errno=True)
for arguments in ((PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), (PR_SET_SECCOMP, SECCOMP_MODE_FILTER, program, 0, 0)):
    if libc.prctl(*arguments) != 0:
        sys.exit("prctl: " + os.strerror(ctypes.get_errno()))
os.execv(sys.argv[1], sys.argv[1:])
