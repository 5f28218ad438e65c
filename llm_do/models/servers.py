"""Model servers that workers can use without a provider's key, and the user's consent to them.

Any account of this machine can listen on the usual port of a server, and would then receive the prompts. So the
user is asked once, and the consent is remembered until it is withdrawn.
"""

from __future__ import annotations

import json
import shlex
import socket
import threading
from collections.abc import Mapping
from contextlib import closing, suppress
from dataclasses import dataclass, replace
from http.client import HTTPConnection, HTTPException, HTTPSConnection
from time import monotonic
from typing import TYPE_CHECKING, Any

from ..errors import ModelChoiceError
from ..machine.remembered import Remembered, is_remembered
from .addresses import Address, is_other_ordinary_user, listening_user, read_address, user_name

if TYPE_CHECKING:
    from pydantic_ai.models import Model

_ANSWER_SECONDS = 0.3
_REMOTE_ANSWER_SECONDS = 3.0
_MAX_BODY = 1_000_000
_MAX_NAME = 200
_CONSENT = "model-server"
_SENT_HEADERS = {"host", "connection", "accept", "accept-encoding", "content-type", "content-length", "user-agent"}


@dataclass(frozen=True, kw_only=True)
class ModelServer:
    """A kind of model server, and its address: its usual port on this machine, or one from the environment."""

    name: str
    provider: str
    """The part of a model's name in front of the colon, such as `ollama`."""
    address: Address
    path: str = "/v1/models"
    """The path of its list of models. The defaults of this and the next two are those of OpenAI's API."""
    rows: str = "data"
    """The key of the list in its answer."""
    key: str = "id"
    """The key of a model's name in a row."""
    variables: tuple[str, ...] = ()
    """The environment variables for its address; the first that is set counts."""
    key_variable: str = ""
    """The environment variable for its API key, which is sent only to an address from the environment."""
    named_by: str | None = None
    """The variable that the address came from."""

    def locate(self, environ: Mapping[str, str]) -> ModelServer:
        """Return the server with its address from the environment; raise `ModelChoiceError` if that is invalid."""
        for variable in self.variables:
            if value := environ.get(variable, "").strip():
                return replace(self, address=read_address(variable, value, self.address.port), named_by=variable)
        return self

    def api_key(self, environ: Mapping[str, str]) -> str | None:
        return environ.get(self.key_variable, "").strip() or None if self.named_by is not None else None

    def describe_remote(self) -> str:
        """Return a warning that prompts leave this machine; empty if they do not."""
        if self.address.is_loopback:
            return ""
        return f"{self.address} ({self.named_by}) is not this machine: prompts, and what workers read, are sent there"


@dataclass(frozen=True)
class OfferedModel:
    """A model of a server that answered."""

    server: ModelServer
    model: str
    user: int | None
    """The id of the user whose process listens there, if known."""

    @property
    def setting(self) -> str:
        """The environment setting that names the model."""
        return f"LLM_DO_MODEL={shlex.quote(f'{self.server.provider}:{self.model}')}"

    @property
    def place(self) -> str:
        """The server, its address, and who runs it if that is another user."""
        owner = f", run by user {user_name(self.user)}" if is_other_ordinary_user(self.user) else ""
        return f"{self.server.name} on {self.server.address}{owner}"


MODEL_SERVERS = (
    ModelServer(
        name="Ollama",
        provider="ollama",
        address=Address(port=11434),
        path="/api/tags",
        rows="models",
        key="name",
        variables=("OLLAMA_BASE_URL", "OLLAMA_HOST"),
        key_variable="OLLAMA_API_KEY",
    ),
    ModelServer(name="llama-server", provider="llama-server", address=Address(port=8080)),
    ModelServer(
        name="vLLM",
        provider="vllm",
        address=Address(port=8000),
        variables=("VLLM_BASE_URL",),
        key_variable="VLLM_API_KEY",
    ),
)


def server_of(provider: str) -> ModelServer | None:
    """Return the server whose models have this provider as prefix."""
    return next((server for server in MODEL_SERVERS if server.provider == provider), None)


def find_offer(server: ModelServer, environ: Mapping[str, str]) -> OfferedModel | None:
    """Ask a server for its first model. It has 0.3 seconds to answer, or 3 if it is on another machine."""
    model = _first_model(server, _get_json(server, server.api_key(environ)))
    if model is None:
        return None
    address = server.address
    return OfferedModel(server, model, listening_user(address.host, address.port) if address.is_loopback else None)


def _first_model(server: ModelServer, answer: Any) -> str | None:
    rows = answer.get(server.rows) if isinstance(answer, dict) else None
    for row in rows if isinstance(rows, list) else ():
        # Ollama also lists models that it forwards to its cloud: those are not on this machine.
        if not isinstance(row, dict) or row.get("remote_host") or row.get("remote_model"):
            continue
        name = row.get(server.key)
        # The name goes to a terminal, so no control characters.
        if isinstance(name, str) and 0 < len(name) <= _MAX_NAME and name.isprintable() and "embed" not in name.lower():
            return name
    return None


def _get_json(server: ModelServer, api_key: str | None) -> Any:
    """Return the JSON that a server answers; `None` on any failure."""
    headers = {"Accept": "application/json", "Connection": "close"}
    if api_key is not None:
        headers["Authorization"] = f"Bearer {api_key}"
    with suppress(OSError, HTTPException, ValueError, RecursionError):
        return json.loads(_fetch(server.address, server.path, headers))
    return None


def _fetch(address: Address, path: str, headers: Mapping[str, str]) -> bytes:
    """Return the body of an answer; empty on a timeout, an error, or an answer that is too large.

    The request runs in a thread, since neither name resolution nor many small reads have a timeout as a whole.
    `http.client` rather than `urllib.request`: it uses no proxies and follows no redirects.
    """
    seconds = _ANSWER_SECONDS if address.is_loopback else _REMOTE_ANSWER_SECONDS
    kind = HTTPSConnection if address.scheme == "https" else HTTPConnection
    connection = kind(address.host, address.port, timeout=seconds)
    deadline = monotonic() + seconds
    opened: list[socket.socket] = []
    bodies: list[bytes] = []

    def exchange() -> None:
        with suppress(OSError, HTTPException, ValueError), closing(connection):
            connection.connect()
            opened.append(connection.sock)
            if monotonic() >= deadline:  # the other thread has stopped waiting
                return
            connection.request("GET", f"{address.path}{path}", headers=headers)
            with connection.getresponse() as response:
                if response.status == 200:
                    bodies.append(response.read(_MAX_BODY + 1))

    thread = threading.Thread(target=exchange, name="llm-do model server", daemon=True)
    thread.start()
    thread.join(max(deadline - monotonic(), 0))
    if thread.is_alive():  # it closes its socket itself
        for sock in opened:
            with suppress(OSError):
                # Not the method of a TLS socket: it would drop the state that the other thread uses.
                socket.socket.shutdown(sock, socket.SHUT_RDWR)
        return b""
    return bodies[0] if bodies and len(bodies[0]) <= _MAX_BODY else b""


def has_agreed(offer: OfferedModel) -> bool:
    """Return whether the user agreed to this server, at this address, run by this account."""
    return is_remembered(_CONSENT, _subject(offer))


def remember_consent(offer: OfferedModel) -> None:
    """Remember the consent, or raise `RememberedError` if it cannot be written."""
    Remembered.load().add(_CONSENT, _subject(offer))


def withdraw_consent() -> list[str]:
    """Withdraw all consent, and return a line about each server that had it."""
    return [_describe_subject(subject) for subject in Remembered.load().remove_all(_CONSENT)]


def _subject(offer: OfferedModel) -> str:
    account = "" if offer.user is None else f" of user {offer.user}"
    return f"{offer.server.provider} {offer.server.address.url}{account}"


def _describe_subject(subject: str) -> str:
    place, _, uid = subject.partition(" of user ")
    provider, _, url = place.partition(" ")
    server = server_of(provider)
    account = f", run by user {user_name(int(uid))}" if uid.isdecimal() else ""
    return f"{provider if server is None else server.name} on {url}{account}"


def make_served_model(server: ModelServer, name: str, environ: Mapping[str, str]) -> Model:
    """Make the model of a server. This imports a provider's package, which takes most of a second."""
    if not name:
        raise ModelChoiceError(f"the model is missing: write {server.provider}:MODEL.")
    from pydantic_ai.models.ollama import OllamaModel  # noqa: PLC0415 - this comes first: it says what to install
    from pydantic_ai.models.openai import OpenAIChatModel  # noqa: PLC0415
    from pydantic_ai.providers.ollama import OllamaProvider  # noqa: PLC0415
    from pydantic_ai.providers.openai import OpenAIProvider  # noqa: PLC0415
    from pydantic_ai.providers.vllm import VLLMProvider  # noqa: PLC0415

    base_url, client = f"{server.address.url}/v1", _make_client(server.address, server.api_key(environ))
    if server.provider == "ollama":
        return OllamaModel(name, provider=OllamaProvider(base_url=base_url, api_key="none", http_client=client))
    provider = VLLMProvider if server.provider == "vllm" else OpenAIProvider
    return OpenAIChatModel(name, provider=provider(base_url=base_url, api_key="none", http_client=client))


def _make_client(address: Address, api_key: str | None) -> Any:
    """Make an HTTP client without redirects, and without a proxy for loopback.

    It closes each connection, since the next request may come from another event loop.
    """
    from openai import DefaultAsyncHttpxClient  # noqa: PLC0415 - as above

    async def send_own_key(request: Any) -> None:
        """Drop the keys and headers that OpenAI's client adds from the environment."""
        for name in set(request.headers) - _SENT_HEADERS:
            del request.headers[name]
        if api_key is not None:
            request.headers["Authorization"] = f"Bearer {api_key}"

    return DefaultAsyncHttpxClient(
        trust_env=not address.is_loopback,
        follow_redirects=False,
        headers={"Connection": "close"},
        event_hooks={"request": [send_own_key]},
    )
