"""The session's default model: what was asked for, else what this machine offers.

Nothing here imports a provider's package until a model server was found on loopback.
"""

from __future__ import annotations

import json
import os
import socket
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from http.client import HTTPConnection, HTTPException
from importlib.util import find_spec
from time import monotonic
from typing import TYPE_CHECKING, Any

from ..protocols import ModelLike

if TYPE_CHECKING:
    from pydantic_ai.models import Model
    from typing_extensions import Buffer

LOCAL_PACKAGE = "xllamacpp"
"""The module that runs local models; looked for, not imported."""
_LOOPBACK = "127.0.0.1"
_SECONDS = 0.3
_MAX_BODY = 1_000_000
_MAX_NAME = 200
_SENT = {"host", "connection", "accept", "accept-encoding", "content-type", "content-length", "user-agent"}


@dataclass(frozen=True)
class ModelChoice:
    """A model, and why it is this one."""

    model: ModelLike
    reason: str
    """A short clause, such as `ANTHROPIC_API_KEY is set`. Never holds the value of a key."""
    found: bool = False
    """Nobody asked for this model: the machine offered it, so it is announced."""


@dataclass(frozen=True)
class KeyOffer:
    """A provider that can be used when one of its keys is in the environment."""

    variables: tuple[str, ...]
    model: str
    package: str
    """The module that the provider needs; looked for, not imported."""
    extra: str
    """The extra of `pydantic-ai-slim` that installs it."""


@dataclass(frozen=True, kw_only=True)
class LocalServer:
    """A model server that may run on this machine. Its address is always 127.0.0.1."""

    name: str
    port: int
    path: str
    """Where it lists its models."""
    rows: str
    """The key of the list in its answer."""
    key: str
    """The key of a model's name in a row."""

    @property
    def address(self) -> str:
        return f"{_LOOPBACK}:{self.port}"


# Each provider's current general model of the middle tier: good at tools, not the most expensive one. OpenRouter sells
# the others' models, so a key of their own comes first.
KEY_OFFERS = (
    KeyOffer(("ANTHROPIC_API_KEY",), "anthropic:claude-sonnet-5-5", package="anthropic", extra="anthropic"),
    KeyOffer(("OPENAI_API_KEY",), "openai:gpt-6.1-sol", package="openai", extra="openai"),
    KeyOffer(("GOOGLE_API_KEY", "GEMINI_API_KEY"), "google:gemini-3.8-flash", package="google.genai", extra="google"),
    KeyOffer(("GROQ_API_KEY",), "groq:openai/gpt-oss-120b", package="groq", extra="groq"),
    KeyOffer(("MISTRAL_API_KEY",), "mistral:mistral-large-latest", package="mistralai", extra="mistral"),
    KeyOffer(("OPENROUTER_API_KEY",), "openrouter:anthropic/claude-sonnet-5.5", package="openai", extra="openai"),
)

LOCAL_SERVERS = (
    LocalServer(name="Ollama", port=11434, path="/api/tags", rows="models", key="name"),
    LocalServer(name="llama-server", port=8080, path="/v1/models", rows="data", key="id"),
    LocalServer(name="vLLM", port=8000, path="/v1/models", rows="data", key="id"),
)


def choose_default_model(
    explicit: ModelLike | None = None,
    configured: str | None = None,
    environ: Mapping[str, str] = os.environ,
    *,
    key_offers: Sequence[KeyOffer] = KEY_OFFERS,
    local_servers: Sequence[LocalServer] = LOCAL_SERVERS,
) -> ModelChoice | None:
    """The model of workers that name none, or `None`. A scripted model is only ever one that was asked for.

    It blocks for up to 0.3 seconds per local server that accepts a connection and does not answer.
    """
    if explicit is not None:
        return ModelChoice(explicit, "asked for")
    if name := _variable(environ, "LLM_DO_MODEL"):
        return ModelChoice(name, "LLM_DO_MODEL")
    if configured is not None:
        return ModelChoice(configured, "llm-do.toml")
    if (by_key := _choose_by_key(environ, key_offers)) is not None:
        return by_key
    local = _choose_local(environ, local_servers)
    unusable = [f"{name} needs pydantic-ai-slim[{offer.extra}]" for name, offer in _present(environ, key_offers)]
    return replace(local, reason="; ".join([local.reason, *unusable])) if local is not None else None


def may_look_for_local(environ: Mapping[str, str] = os.environ) -> bool:
    """Whether a model of this machine may be used although nobody named it."""
    return _variable(environ, "LLM_DO_NO_LOCAL") in ("", "0")


def announce(choice: ModelChoice) -> str:
    """The line for stderr about a model that nobody asked for; empty for one that somebody did."""
    if not choice.found:
        return ""
    name = choice.model if isinstance(choice.model, str) else choice.model.model_name
    return f"llm-do: using {name} ({choice.reason})"


def explain_missing(worker: str) -> str:
    """What to say when a worker has no model: the ways to set one, the strongest first."""
    keys = ", ".join(
        " or ".join(offer.variables)
        + ("" if _is_installed(offer.package) else f" (needs pydantic-ai-slim[{offer.extra}])")
        for offer in KEY_OFFERS
    )
    servers = ", ".join(f"{server.name} on {server.address}" for server in LOCAL_SERVERS)
    needs = "" if _is_installed("openai") else "; needs pydantic-ai-slim[openai]"
    ways = (
        "the worker's own `model`",
        "`--model NAME`, or `model=` / `cli_model=` in Python",
        "LLM_DO_MODEL=NAME in the environment",
        "the default model in the project's llm-do.toml",
        f"an API key in the environment: {keys}",
        f"a model server on this machine: {servers} (not with LLM_DO_NO_LOCAL=1{needs})",
        f"a small model on this machine, with no key: `{how_to_have_embedded()}`, or LLM_DO_MODEL=local",
    )
    listed = "".join(f"\n  {number}. {way}" for number, way in enumerate(ways, 1))
    return f"Worker {worker!r} has no model. Give it one by any of these; the first wins:{listed}"


def largest_here() -> str | None:
    """The name of the largest local model whose weights are here."""
    from .local.store import cached_models  # noqa: PLC0415 - for those who have neither a key nor a server

    largest = max(cached_models(), key=lambda weights: weights.size, default=None)
    return None if largest is None else largest.name


def how_to_have_embedded() -> str:
    """The command that brings the embedded model here."""
    from .local.catalogue import EMBEDDED  # noqa: PLC0415 - for those who have no model at all

    install = "" if _is_installed(LOCAL_PACKAGE) else "pip install 'llm-do[local]' && "
    return f"{install}llm-do models pull {EMBEDDED}"


def _variable(environ: Mapping[str, str], name: str) -> str:
    return environ.get(name, "").strip()


def _is_installed(package: str) -> bool:
    try:
        return find_spec(package) is not None
    except (ImportError, ValueError):  # the parent of a dotted name is missing, or is no package
        return False


def _choose_by_key(environ: Mapping[str, str], offers: Sequence[KeyOffer]) -> ModelChoice | None:
    present = _present(environ, offers)
    usable = [(name, offer) for name, offer in present if _is_installed(offer.package)]
    if not usable:
        return None
    (name, chosen), *others = usable
    reason = f"{name} is set"
    if others:
        reason += f", and comes before {', '.join(other for other, _ in others)}"
    for other, offer in present[: present.index((name, chosen))]:
        reason += f"; {other} needs pydantic-ai-slim[{offer.extra}]"
    return ModelChoice(chosen.model, reason, found=True)


def _present(environ: Mapping[str, str], offers: Sequence[KeyOffer]) -> list[tuple[str, KeyOffer]]:
    """The keys that are set, with what they are for."""
    return [(name, offer) for offer in offers if (name := _first_set(environ, offer.variables))]


def _first_set(environ: Mapping[str, str], names: Sequence[str]) -> str | None:
    return next((name for name in names if _variable(environ, name)), None)


def _choose_local(environ: Mapping[str, str], servers: Sequence[LocalServer]) -> ModelChoice | None:
    """A model server on this machine, or else the largest model whose weights are here."""
    if not may_look_for_local(environ):
        return None
    for server in servers if _is_installed("openai") else ():
        if name := _first_model(server, _get_json(server)):
            return ModelChoice(_served_model(server, name), f"{server.name} is running on {server.address}", found=True)
    if not _is_installed(LOCAL_PACKAGE) or (largest := largest_here()) is None:
        return None
    return ModelChoice(f"local:{largest}", "neither a usable key nor a model server was found; it is here", found=True)


def _first_model(server: LocalServer, answer: Any) -> str | None:
    rows = answer.get(server.rows) if isinstance(answer, dict) else None
    for row in rows if isinstance(rows, list) else ():
        # Ollama also lists models that it forwards to its cloud: those are not on this machine.
        if not isinstance(row, dict) or row.get("remote_host") or row.get("remote_model"):
            continue
        name = row.get(server.key)
        # The name is shown on a terminal, so what could steer one is no name.
        if isinstance(name, str) and 0 < len(name) <= _MAX_NAME and name.isprintable() and "embed" not in name.lower():
            return name
    return None


class _ImpatientSocket(socket.socket):
    """A socket whose timeout is for the whole conversation: plain ones start anew with each byte that drips in."""

    deadline: float

    def recv_into(self, buffer: Buffer, nbytes: int = 0, flags: int = 0) -> int:
        left = self.deadline - monotonic()
        if left <= 0:
            raise TimeoutError
        self.settimeout(left)
        return super().recv_into(buffer, nbytes, flags)


def _get_json(server: LocalServer) -> Any:
    """What a server answers, or `None` for anything but a prompt, small, plain answer.

    `http.client` rather than `urllib.request`: it knows neither proxies nor redirects, so none can be followed.
    """
    connection = HTTPConnection(_LOOPBACK, server.port)
    with _ImpatientSocket() as sock:
        sock.deadline = monotonic() + _SECONDS
        sock.settimeout(_SECONDS)
        try:
            sock.connect((_LOOPBACK, server.port))
            connection.sock = sock
            connection.request("GET", server.path, headers={"Accept": "application/json", "Connection": "close"})
            with connection.getresponse() as response:
                body = response.read(_MAX_BODY + 1) if response.status == 200 else b""
            return json.loads(body) if len(body) <= _MAX_BODY else None
        except (OSError, HTTPException, ValueError, RecursionError):
            return None


def _served_model(server: LocalServer, name: str) -> Model:
    """The one place that imports a provider's package, which takes most of a second, when a server is there to use."""
    from openai import DefaultAsyncHttpxClient  # noqa: PLC0415
    from pydantic_ai.models.ollama import OllamaModel  # noqa: PLC0415
    from pydantic_ai.models.openai import OpenAIChatModel  # noqa: PLC0415
    from pydantic_ai.providers.ollama import OllamaProvider  # noqa: PLC0415
    from pydantic_ai.providers.openai import OpenAIProvider  # noqa: PLC0415
    from pydantic_ai.providers.vllm import VLLMProvider  # noqa: PLC0415

    base_url, no_key = f"http://{server.address}/v1", "none"
    # Prompts must not leave the machine by a proxy or a redirect. A connection that is not kept can be followed by one
    # from another event loop.
    client = DefaultAsyncHttpxClient(
        trust_env=False,
        follow_redirects=False,
        headers={"Connection": "close"},
        event_hooks={"request": [_send_no_secrets]},
    )
    if server.name == "Ollama":
        return OllamaModel(name, provider=OllamaProvider(base_url=base_url, api_key=no_key, http_client=client))
    if server.name == "vLLM":
        return OpenAIChatModel(name, provider=VLLMProvider(base_url=base_url, api_key=no_key, http_client=client))
    return OpenAIChatModel(name, provider=OpenAIProvider(base_url=base_url, api_key=no_key, http_client=client))


async def _send_no_secrets(request: Any) -> None:
    """Drop what OpenAI's client adds from the environment: whoever listens on a port of this machine gets no key."""
    for name in set(request.headers) - _SENT:
        del request.headers[name]
