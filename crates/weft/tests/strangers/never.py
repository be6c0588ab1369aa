"""A process with a page that never comes: whoever reads it waits for ever.

The page is registered with userfaultfd, and nobody serves its faults. First the address of the page is printed, or why there is none.
Then each line of the input is an order:

    call NAME HEX     connects to the abstract Unix socket NAME, and says the bytes
    listen NAME       listens at NAME, and prints the first message of the first caller
    say HEX           says the bytes to that caller
"""

import ctypes
import mmap
import os
import platform
import socket
import struct
import sys

USERFAULTFD = {"x86_64": 323, "aarch64": 282}[platform.machine()]
UFFDIO_API = 0xC018AA3F
UFFDIO_REGISTER = 0xC020AA00
MISSING = 1


def never(libc):
    """The address of a page that never comes, and what keeps it."""
    faults = libc.syscall(USERFAULTFD, os.O_CLOEXEC)
    if faults < 0:
        raise OSError(ctypes.get_errno(), "userfaultfd: " + os.strerror(ctypes.get_errno()))
    page = mmap.mmap(-1, mmap.PAGESIZE, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    at = ctypes.addressof(ctypes.c_char.from_buffer(page))
    api = ctypes.create_string_buffer(struct.pack("QQQ", 0xAA, 0, 0))
    registered = ctypes.create_string_buffer(struct.pack("QQQQ", at, mmap.PAGESIZE, MISSING, 0))
    for request, argument in ((UFFDIO_API, api), (UFFDIO_REGISTER, registered)):
        if libc.ioctl(faults, ctypes.c_ulong(request), argument) < 0:
            raise OSError(ctypes.get_errno(), "userfaultfd: " + os.strerror(ctypes.get_errno()))
    return at, page


def seqpacket():
    return socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)


def main():
    try:
        at, page = never(ctypes.CDLL(None, use_errno=True))
    except OSError as error:
        print(f"none: {error}", flush=True)
        return
    print(at, flush=True)
    sockets = [page]
    caller = None
    for line in sys.stdin:
        order, *words = line.split()
        if order == "call":
            sockets.append(seqpacket())
            sockets[-1].connect("\0" + words[0])
            sockets[-1].send(bytes.fromhex(words[1]))
            print("called", flush=True)
        elif order == "listen":
            listener = seqpacket()
            listener.bind("\0" + words[0])
            listener.listen()
            print("listening", flush=True)
            caller, _ = listener.accept()
            print(caller.recv(1000).hex(), flush=True)
        elif order == "say":
            caller.send(bytes.fromhex(words[0]))
            print("said", flush=True)


main()
