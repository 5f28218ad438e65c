"""The session's default model: named by a setting, or found on this machine."""

from __future__ import annotations

import os
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TypeAlias

from pydantic_ai.models import KnownModelName, Model

from ..errors import ModelChoiceError
from ..machine.installation import install_extra, is_installed
from .local import LOCAL_PACKAGE
from .servers import MODEL_SERVERS, ModelServer, OfferedModel, find_offer, has_agreed, make_served_model


@dataclass(frozen=True)
class ModelChoice:
    """The default model, and why it was chosen."""

    model: ModelLike | None
    """`None` if none is named and none was found."""
    reason: str
    """A short clause, such as `ANTHROPIC_API_KEY is set`. It never contains a key."""
    found: bool = False
    """Whether it was found rather than named by a setting; then it is announced."""
    remote: str = ""
    """A warning that prompts leave this machine, for a server that a variable names."""
    passed_over: tuple[OfferedModel, ...] = ()
    """Models of servers that were skipped because the user has not agreed to them."""


@dataclass(frozen=True)
class KeyOffer:
    """A provider, and its default model if one of its keys is in the environment."""

    variables: tuple[str, ...]
    model: str
    package: str
    """The module that the provider needs."""
    extra: str
    """The extra of `pydantic-ai-slim` that installs it."""


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


def choose_default_model(
    explicit: ModelLike | None = None,
    configured: str | None = None,
    environ: Mapping[str, str] = os.environ,
    *,
    key_offers: Sequence[KeyOffer] = KEY_OFFERS,
    servers: Sequence[ModelServer] = MODEL_SERVERS,
) -> ModelChoice:
    """Return the default model.

    A model server is chosen if the user has agreed to it, or if a variable names its address; an invalid address is an
    error. The servers are asked in turn, and each has 0.3 seconds to answer, or 3 if it is on another machine.
    """
    if (named := named_model(explicit, configured, environ)) is not None:
        return named
    present = _offers_with_keys(environ, key_offers)
    usable = [(name, offer) for name, offer in present if is_installed(offer.package)]
    choice = _choose_by_key(usable) if usable else _choose_local(environ, servers)
    unusable = present[: present.index(usable[0])] if usable else present
    needs = [f"{name} needs pydantic-ai-slim[{offer.extra}]" for name, offer in unusable]
    return replace(choice, reason="; ".join([choice.reason, *needs]))


def named_model(
    explicit: ModelLike | None, configured: str | None, environ: Mapping[str, str] = os.environ
) -> ModelChoice | None:
    """Return the default model that a setting names, if one does."""
    if explicit is not None:
        return ModelChoice(explicit, "asked for")
    if name := _variable(environ, "LLM_DO_MODEL"):
        return ModelChoice(name, "LLM_DO_MODEL")
    return None if configured is None else ModelChoice(configured, "llm-do.toml")


def choose_offer(offer: OfferedModel, environ: Mapping[str, str] = os.environ) -> ModelChoice:
    """Return the choice of a server's model, without asking for consent."""
    server = offer.server
    origin = f", which {server.named_by} names" if server.named_by else ""
    model = make_served_model(server, offer.model, environ)
    return ModelChoice(model, f"{offer.place}{origin}", found=True, remote=server.describe_remote())


def local_models_enabled(environ: Mapping[str, str] = os.environ) -> bool:
    """Return whether a model of this machine may be used without being named."""
    return _variable(environ, "LLM_DO_NO_LOCAL") in ("", "0")


def announce(choice: ModelChoice) -> list[str]:
    """Return the lines for stderr about servers that need consent, and about a model that was found."""
    lines = [
        f"{offer.place} offers {offer.model!r}, and is not used without your yes: "
        f"set {offer.setting}, or let `llm-do run` ask you at a terminal"
        for offer in choice.passed_over
    ]
    if choice.found and choice.model is not None:
        name = choice.model if isinstance(choice.model, str) else choice.model.model_name
        lines.append(f"using {name} ({choice.reason})")
    if choice.remote:
        lines.append(choice.remote)
    return [f"llm-do: {line}" for line in lines]


def explain_missing(worker: str) -> str:
    """Return the error for a worker without a model: all ways to set one, in order of precedence."""
    keys = ", ".join(
        " or ".join(offer.variables)
        + ("" if is_installed(offer.package) else f" (needs pydantic-ai-slim[{offer.extra}])")
        for offer in KEY_OFFERS
    )
    servers = ", ".join(f"{server.name} on {_place_of(server)}" for server in MODEL_SERVERS)
    needs = "" if is_installed("openai") else "; needs pydantic-ai-slim[openai]"
    ways = (
        "the worker's own `model`",
        "`--model NAME`, or `model=` / `cli_model=` in Python",
        "LLM_DO_MODEL=NAME in the environment",
        "the default model in the project's llm-do.toml",
        f"an API key in the environment: {keys}",
        f"a model server: {servers}, after your yes, for which `llm-do run` asks at a terminal, or where"
        f" OLLAMA_HOST names it (not with LLM_DO_NO_LOCAL=1{needs})",
        f"a small model on this machine, with no key: `{embedded_install_command()}`, or LLM_DO_MODEL=local",
    )
    lines = "".join(f"\n  {number}. {way}" for number, way in enumerate(ways, 1))
    return f"Worker {worker!r} has no model. Give it one by any of these; the first wins:{lines}"


def largest_cached_model() -> str | None:
    """Return the name of the largest local model whose weights are cached."""
    from .local.store import cached_models  # noqa: PLC0415 - only without a key and a server

    largest = max(cached_models(), key=lambda weights: weights.size, default=None)
    return None if largest is None else largest.name


def embedded_install_command() -> str:
    from .local.catalogue import EMBEDDED  # noqa: PLC0415 - only without any model

    install = "" if is_installed(LOCAL_PACKAGE) else f"{install_extra('local')} && "
    return f"{install}llm-do models pull {EMBEDDED}"


def _variable(environ: Mapping[str, str], name: str) -> str:
    return environ.get(name, "").strip()


def _choose_by_key(usable: Sequence[tuple[str, KeyOffer]]) -> ModelChoice:
    (name, chosen), *others = usable
    behind = f", and comes before {', '.join(other for other, _ in others)}" if others else ""
    return ModelChoice(chosen.model, f"{name} is set{behind}", found=True)


def _offers_with_keys(environ: Mapping[str, str], offers: Sequence[KeyOffer]) -> list[tuple[str, KeyOffer]]:
    """Return each provider with a key in the environment, and the first variable that has one."""
    named = ((offer, [name for name in offer.variables if _variable(environ, name)]) for offer in offers)
    return [(names[0], offer) for offer, names in named if names]


def _choose_local(environ: Mapping[str, str], servers: Sequence[ModelServer]) -> ModelChoice:
    """Choose a model server, else the largest model whose weights are cached."""
    nothing = ModelChoice(None, "nothing names a model, and none is here")
    if not local_models_enabled(environ):
        return nothing
    passed_over: list[OfferedModel] = []
    for server in servers if is_installed("openai") else ():
        offer = find_offer(server.locate(environ), environ)
        if offer is not None and (offer.server.named_by is not None or has_agreed(offer)):
            return replace(choose_offer(offer, environ), passed_over=tuple(passed_over))
        if offer is not None:
            passed_over.append(offer)
    if not is_installed(LOCAL_PACKAGE) or (largest := largest_cached_model()) is None:
        return replace(nothing, passed_over=tuple(passed_over))
    reason = "no key and no model server can be used; its weights are installed"
    return ModelChoice(f"local:{largest}", reason, found=True, passed_over=tuple(passed_over))


def _place_of(server: ModelServer) -> str:
    try:
        return str(server.locate(os.environ).address)
    except ModelChoiceError:
        return str(server.address)


ModelLike: TypeAlias = Model | KnownModelName | str
"""A PydanticAI model, or its name."""

DefaultModel: TypeAlias = Callable[[str, Callable[[str], None]], Awaitable[ModelLike]]
"""Chooses the default model on first use, given the worker's name and a function that sends a `Notice` to sinks."""
