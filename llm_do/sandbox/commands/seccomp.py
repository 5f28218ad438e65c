"""A filter of the system calls of programs in a sandbox, assembled for this machine.

A mounted folder stays a folder of the host, and namespaces do not isolate everything. So no program can

- set the bits that make a file run as its owner or group, which the file would keep on the host;
- connect to a socket that is a file, also in a folder that it may only read;
- have a socket of a family that is not limited to its network namespace;
- use parts of the kernel that ordinary programs do not need, or that would get around this filter.

Calls that are unknown here, or have arguments in memory, where the filter cannot read them, do not exist: programs take
that for an older kernel, and do without.
"""

from __future__ import annotations

import errno
import os
import socket
import stat
import struct
from functools import cache

_KILL, _ERRNO, _ALLOW = 0x80000000, 0x00050000, 0x7FFF0000
_LOAD, _EQUAL, _AT_LEAST, _ANY_BIT, _AND, _RETURN = 0x20, 0x15, 0x35, 0x45, 0x54, 0x06
_NUMBER, _ARCHITECTURE, _ARGUMENTS = 0, 4, 16

_RUNS_AS = stat.S_ISUID | stat.S_ISGID
_CREATES = 0o100 | 0o20000000  # O_CREAT, O_TMPFILE: without, the mode has no meaning
_NAMESPACES = 0x7E020000  # CLONE_NEW...
_SOCKET_TYPE = 0xF  # of a socket, without its flags
_FIRST_UNKNOWN = 470  # the calls of the x32 interface on x86_64 are above it, too

_MISSING = (
    *("io_uring_setup", "io_uring_enter", "io_uring_register"),  # opens files where no filter sees it
    *("openat2", "clone3"),  # have their arguments in memory
    *("open_tree", "move_mount", "fsopen", "fsconfig", "fsmount", "fspick", "mount_setattr", "open_tree_attr"),
)
_DENIED = (
    *("mount", "umount2", "pivot_root", "chroot", "unshare", "setns", "open_by_handle_at"),
    *("ptrace", "process_vm_readv", "process_vm_writev", "pidfd_getfd"),
    *("add_key", "request_key", "keyctl", "syslog"),  # keys and messages of the host
    *("bpf", "perf_event_open", "userfaultfd"),
)
_MODES = {1: ("chmod", "fchmod", "creat", "mkdir", "mknod"), 2: ("fchmodat", "fchmodat2", "mkdirat", "mknodat")}
"""Calls by the index of the argument that is the mode."""
_OPENS = {"open": (1, 2), "openat": (2, 3)}
"""The indexes of the flags and the mode among the arguments."""

_EVERYWHERE = """
    io_uring_setup 425 io_uring_enter 426 io_uring_register 427 open_tree 428 move_mount 429 fsopen 430 fsconfig 431
    fsmount 432 fspick 433 clone3 435 openat2 437 pidfd_getfd 438 mount_setattr 442 fchmodat2 452 open_tree_attr 467
"""
_ON_MACHINE = {
    "x86_64": """
        open 2 socket 41 socketpair 53 clone 56 mkdir 83 creat 85 chmod 90 fchmod 91 ptrace 101 syslog 103 mknod 133
        pivot_root 155 chroot 161 mount 165 umount2 166 add_key 248 request_key 249 keyctl 250 openat 257 mkdirat 258
        mknodat 259 fchmodat 268 unshare 272 perf_event_open 298 open_by_handle_at 304 setns 308 process_vm_readv 310
        process_vm_writev 311 bpf 321 userfaultfd 323
    """,
    "aarch64": """
        mknodat 33 mkdirat 34 umount2 39 mount 40 pivot_root 41 chroot 51 fchmod 52 fchmodat 53 openat 56 unshare 97
        syslog 116 ptrace 117 socket 198 socketpair 199 add_key 217 request_key 218 keyctl 219 clone 220
        perf_event_open 241 open_by_handle_at 265 setns 268 process_vm_readv 270 process_vm_writev 271 bpf 280
        userfaultfd 282
    """,
}
ARCHITECTURES = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}
"""The machines for which there is a filter, as the kernel names them."""
_Code = list[bytes]


def call_numbers(machine: str) -> dict[str, int]:
    """Return the numbers of the system calls of a machine. Some machines have `openat`, but no `open`."""
    words = (_ON_MACHINE[machine] + _EVERYWHERE).split()
    return dict(zip(words[::2], map(int, words[1::2]), strict=True))


@cache
def system_call_filter(machine: str | None = None) -> bytes:
    """Return the filter for a machine, by default this one, in the kernel's format."""
    machine = machine or os.uname().machine
    code = [_op(_LOAD, _ARCHITECTURE), _op(_EQUAL, ARCHITECTURES[machine], yes=1), _op(_RETURN, _KILL)]
    code += [_op(_LOAD, _NUMBER), _op(_AT_LEAST, _FIRST_UNKNOWN, no=1), _error(errno.ENOSYS)]
    rules = _rules()
    for call, number in call_numbers(machine).items():
        code += _if_equal(number, rules[call])
    return b"".join([*code, _op(_RETURN, _ALLOW)])


def _rules() -> dict[str, _Code]:
    """Return the code for each call. It always ends with an answer."""
    rules = {call: [_error(errno.ENOSYS)] for call in _MISSING}
    rules |= {call: [_error(errno.EPERM)] for call in _DENIED}
    rules |= {call: _deny_if_any(mode, _RUNS_AS) for mode, calls in _MODES.items() for call in calls}
    for call, (flags, mode) in _OPENS.items():
        rules[call] = [
            _argument(flags),
            _op(_ANY_BIT, _CREATES, yes=1),
            _op(_RETURN, _ALLOW),
            *_deny_if_any(mode, _RUNS_AS),
        ]
    rules["clone"] = _deny_if_any(0, _NAMESPACES)
    allow, foreign = [_op(_RETURN, _ALLOW)], _error(errno.EAFNOSUPPORT)
    # Of netlink only routes: some programs ask them for their addresses.
    routes = [_argument(2), *_if_equal(0, allow), foreign]
    internet = [*_if_equal(socket.AF_INET, allow), *_if_equal(socket.AF_INET6, allow)]
    rules["socket"] = [_argument(0), *internet, *_if_equal(socket.AF_NETLINK, routes), foreign]
    # A datagram socket of a pair could send to any address. A stream socket cannot.
    stream = [*_if_equal(socket.SOCK_STREAM, allow), *_if_equal(socket.SOCK_SEQPACKET, allow)]
    pair = [_argument(1), _op(_AND, _SOCKET_TYPE), *stream, foreign]
    rules["socketpair"] = [_argument(0), *_if_equal(socket.AF_UNIX, pair), foreign]
    return rules


def _if_equal(value: int, then: _Code) -> _Code:
    return [_op(_EQUAL, value, no=len(then)), *then]


def _deny_if_any(argument: int, bits: int) -> _Code:
    return [_argument(argument), _op(_ANY_BIT, bits, no=1), _error(errno.EPERM), _op(_RETURN, _ALLOW)]


def _argument(index: int) -> bytes:
    """Load the lower half of an argument: the kernel uses no more of these."""
    return _op(_LOAD, _ARGUMENTS + 8 * index)


def _error(number: int) -> bytes:
    return _op(_RETURN, _ERRNO | number)


def _op(what: int, operand: int, *, yes: int = 0, no: int = 0) -> bytes:
    """Return an instruction. `yes` and `no` are how many of the next ones to skip after a comparison."""
    return struct.pack("<HBBI", what, yes, no, operand)
