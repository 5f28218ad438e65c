"""Addresses of model servers, and the users whose processes listen there (known on Linux only)."""

from __future__ import annotations

import os
import pwd
import re
import socket
import sys
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv6Address, ip_address
from pathlib import Path
from typing import TypeGuard
from urllib.parse import SplitResult, urlsplit

from ..errors import ModelChoiceError

LOOPBACK = "127.0.0.1"
_MAX_LENGTH = 1000
_HOST = re.compile(r"[A-Za-z0-9]([A-Za-z0-9._-]*[A-Za-z0-9])?\.?")
_PATH = re.compile(r"(/[A-Za-z0-9._~-]+)*")
_WILDCARDS = {"": LOOPBACK, "0.0.0.0": LOOPBACK, "::": "::1"}  # noqa: S104 - where a server listens; nothing is bound here
_PORTS = {"http": 80, "https": 443}
_LISTEN_STATE = "0A"


@dataclass(frozen=True, kw_only=True)
class Address:
    """The address of a model server; on this machine by default."""

    host: str = LOOPBACK
    port: int
    scheme: str = "http"
    path: str = ""
    """A prefix of all paths of the server, such as `/ollama`; usually empty."""

    @property
    def is_loopback(self) -> bool:
        """Return whether requests stay on this machine. `localhost` is the only name that counts."""
        try:
            address = ip_address(self.host)
        except ValueError:
            return self.host.lower().rstrip(".") == "localhost"
        if isinstance(address, IPv6Address) and address.ipv4_mapped is not None:
            address = address.ipv4_mapped
        return address.is_loopback

    @property
    def url(self) -> str:
        """The base URL, to which the paths of the server are appended."""
        return f"{self.scheme}://{self._netloc}{self.path}"

    def __str__(self) -> str:
        """Return `HOST:PORT`, or the URL if it is not just `http://HOST:PORT`."""
        return self.url if self.scheme != "http" or self.path else self._netloc

    @property
    def _netloc(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


def read_address(variable: str, value: str, port: int) -> Address:
    """Parse the value of a variable: `HOST`, `HOST:PORT`, `:PORT`, or a URL. `port` is the default except for URLs.

    The wildcard addresses that a server listens on (`0.0.0.0`, `::`) become loopback. Errors never contain the value:
    it may hold a password.
    """
    value = value.strip().strip("\"'")
    if len(value) > _MAX_LENGTH or not value.isascii() or not value.isprintable() or " " in value:
        raise _refusal(variable, "it has characters that no address has, or is too long")
    if "://" not in value:
        value = f"http://[{value}]:{port}" if _is_ipv6(value) else f"http://{value}"
        default_port = port
    else:
        default_port = _PORTS.get(value.partition("://")[0].lower(), port)
    try:
        parts = urlsplit(value)
        explicit_port = parts.port
    except ValueError:
        raise _refusal(variable, "its port or its IPv6 address cannot be read") from None
    _check(variable, parts)
    host = parts.hostname or ""
    path = parts.path.rstrip("/").removesuffix("/v1")  # the root of the OpenAI-compatible interface
    if explicit_port == 0 or not _PATH.fullmatch(path):
        raise _refusal(variable, "its port or its path cannot be used")
    port = default_port if explicit_port is None else explicit_port
    return Address(host=_WILDCARDS.get(host, host), port=port, scheme=parts.scheme, path=path)


def _check(variable: str, parts: SplitResult) -> None:
    if parts.scheme not in _PORTS:
        raise _refusal(variable, "only http:// and https:// can be used")
    if "@" in parts.netloc:
        raise _refusal(variable, "a user name or a password cannot be part of it")
    if parts.query or parts.fragment:
        raise _refusal(variable, "nothing can follow its path")
    host = parts.hostname or ""
    if host and not _HOST.fullmatch(host) and not _is_ipv6(host):
        raise _refusal(variable, "its host cannot be read")


def _is_ipv6(host: str) -> bool:
    try:
        return isinstance(ip_address(host), IPv6Address) and "%" not in host
    except ValueError:
        return False


def _refusal(variable: str, why: str) -> ModelChoiceError:
    return ModelChoiceError(
        f"{variable} is not the address of a server: {why}. Write HOST, HOST:PORT, or http://HOST:PORT."
    )


def listening_user(host: str, port: int) -> int | None:
    """Return the user id of the process that a connection to this port would reach; `None` if unknown.

    The most specific address wins, as it does in the kernel.
    """
    order = _reached_by(host)
    found = [(order.index(address), uid) for address, at, uid in _listeners() if at == port and address in order]
    return min(found)[1] if found else None


def user_name(uid: int) -> str:
    """Return a user's name in quotes, or the id if it has no name."""
    with suppress(KeyError):
        return repr(pwd.getpwuid(uid).pw_name)
    return str(uid)


def is_other_ordinary_user(uid: int | None) -> TypeGuard[int]:
    """Return whether a process belongs to an account that is neither this one nor root."""
    return uid is not None and uid not in (0, os.geteuid())


def _reached_by(host: str) -> list[IPv4Address | IPv6Address]:
    """Return the socket addresses that a connection to a host can reach, the most specific first."""
    with suppress(OSError, ValueError):
        found = [ip_address(info[4][0]) for info in socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)]
        in_both = [ip_address(f"::ffff:{each}") for each in found if isinstance(each, IPv4Address)]
        everywhere = [IPv4Address(0), IPv6Address(0)] if in_both else [IPv6Address(0)]
        return [*found, *in_both, *everywhere]
    return []


def _listeners() -> Iterator[tuple[IPv4Address | IPv6Address, int, int]]:
    """Yield the address, the port and the user id of each listening socket."""
    for table in ("tcp", "tcp6"):
        with suppress(OSError, ValueError, IndexError):
            for line in Path("/proc/net", table).read_text(encoding="ascii").splitlines()[1:]:
                fields = line.split()
                if fields[3] == _LISTEN_STATE:
                    address, _, port = fields[1].partition(":")
                    yield _decoded(address), int(port, 16), int(fields[7])


def _decoded(digits: str) -> IPv4Address | IPv6Address:
    """Return an address that the kernel printed as 32-bit words in the order of this machine."""
    words = [int(digits[at : at + 8], 16).to_bytes(4, sys.byteorder) for at in range(0, len(digits), 8)]
    return ip_address(b"".join(words))
