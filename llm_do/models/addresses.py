"""The address of a model server, as an environment variable has it."""

from __future__ import annotations

import re
from dataclasses import dataclass
from ipaddress import IPv6Address, ip_address
from urllib.parse import SplitResult, urlsplit

from ..errors import ModelChoiceError

LOOPBACK = "127.0.0.1"
_MAX_LENGTH = 1000
_HOST = re.compile(r"[A-Za-z0-9]([A-Za-z0-9._-]*[A-Za-z0-9])?\.?")
_PATH = re.compile(r"(/[A-Za-z0-9._~-]+)*")
_ANY = {"": LOOPBACK, "0.0.0.0": LOOPBACK, "::": "::1"}  # noqa: S104 - where a server listens; nothing is bound here
_PORTS = {"http": 80, "https": 443}


@dataclass(frozen=True, kw_only=True)
class Address:
    """Where a server is: on this machine, unless a variable says otherwise."""

    host: str = LOOPBACK
    port: int
    scheme: str = "http"
    path: str = ""
    """The path in front of the paths of the server, such as `/ollama`; empty for most."""

    @property
    def is_loopback(self) -> bool:
        """Whether what is sent there stays on this machine. A name that is not `localhost` counts as elsewhere."""
        try:
            address = ip_address(self.host)
        except ValueError:
            return self.host.lower().rstrip(".") == "localhost"
        if isinstance(address, IPv6Address) and address.ipv4_mapped is not None:
            address = address.ipv4_mapped
        return address.is_loopback

    @property
    def url(self) -> str:
        """The URL that the paths of the server are appended to."""
        return f"{self.scheme}://{self._netloc}{self.path}"

    def __str__(self) -> str:
        """The host and the port, with the scheme and the path where they are not the usual ones."""
        return self.url if self.scheme != "http" or self.path else self._netloc

    @property
    def _netloc(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


def read_address(variable: str, value: str, port: int) -> Address:
    """Return the address that a variable has: `HOST`, `HOST:PORT`, `:PORT`, or a URL. `port` is that of no URL.

    What a server listens on when it listens everywhere (`0.0.0.0`) is loopback for its clients. The value is in no
    error: it may hold a password.
    """
    value = value.strip().strip("\"'")
    if len(value) > _MAX_LENGTH or not value.isascii() or not value.isprintable() or " " in value:
        raise _refusal(variable, "it has characters that no address has, or is too long")
    if "://" not in value:
        value = f"http://[{value}]:{port}" if _is_ipv6(value) else f"http://{value}"
        usual = port
    else:
        usual = _PORTS.get(value.partition("://")[0].lower(), port)
    try:
        parts = urlsplit(value)
        given = parts.port
    except ValueError:
        raise _refusal(variable, "its port or its IPv6 address cannot be read") from None
    _check(variable, parts)
    host = parts.hostname or ""
    path = parts.path.rstrip("/").removesuffix("/v1")  # with it, it is the URL of the interface that OpenAI's has
    if given == 0 or not _PATH.fullmatch(path):
        raise _refusal(variable, "its port or its path cannot be used")
    return Address(host=_ANY.get(host, host), port=usual if given is None else given, scheme=parts.scheme, path=path)


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
