"""The user whose process listens on a port of this machine, as far as the kernel tells (Linux)."""

from __future__ import annotations

import os
import pwd
import socket
import sys
from collections.abc import Iterator
from contextlib import suppress
from ipaddress import IPv4Address, IPv6Address, ip_address
from pathlib import Path

_LISTENS = "0A"


def listening_user(host: str, port: int) -> int | None:
    """Return the user id of the process that a connection to this port would reach; `None` if it is not known.

    The most specific address wins, as it does in the kernel.
    """
    order = _reached_by(host)
    found = [(order.index(address), uid) for address, at, uid in _listeners() if at == port and address in order]
    return min(found)[1] if found else None


def user_name(uid: int) -> str:
    """Return a user's name for messages."""
    with suppress(KeyError):
        return repr(pwd.getpwuid(uid).pw_name)
    return str(uid)


def is_other_ordinary_user(uid: int | None) -> bool:
    """Return whether a process belongs to an account that is neither this one nor root."""
    return uid is not None and uid not in (0, os.geteuid())


def _reached_by(host: str) -> list[IPv4Address | IPv6Address]:
    """Return the addresses of sockets that a connection to a host reaches, the most specific first."""
    with suppress(OSError, ValueError):
        found = [ip_address(info[4][0]) for info in socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)]
        in_both = [ip_address(f"::ffff:{each}") for each in found if isinstance(each, IPv4Address)]
        everywhere = [IPv4Address(0), IPv6Address(0)] if in_both else [IPv6Address(0)]
        return [*found, *in_both, *everywhere]
    return []


def _listeners() -> Iterator[tuple[IPv4Address | IPv6Address, int, int]]:
    """Yield the address, the port and the user of all sockets that listen."""
    for table in ("tcp", "tcp6"):
        with suppress(OSError, ValueError, IndexError):
            for line in Path("/proc/net", table).read_text(encoding="ascii").splitlines()[1:]:
                fields = line.split()
                if fields[3] == _LISTENS:
                    address, _, port = fields[1].partition(":")
                    yield _decoded(address), int(port, 16), int(fields[7])


def _decoded(digits: str) -> IPv4Address | IPv6Address:
    """Return an address that the kernel printed as 32-bit words in the order of this machine."""
    words = [int(digits[at : at + 8], 16).to_bytes(4, sys.byteorder) for at in range(0, len(digits), 8)]
    return ip_address(b"".join(words))
