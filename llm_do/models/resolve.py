"""Models by name."""

from __future__ import annotations

import os
from collections.abc import Mapping

from pydantic_ai.exceptions import UserError
from pydantic_ai.models import Model, infer_model

from ..errors import ModelChoiceError
from .choice import KEY_OFFERS
from .servers import make_served_model, server_of
from .unusable import missing_variable


def names_model_file(name: str | None) -> bool:
    """Return whether a model's name is a path. llama.cpp, which is not hardened, would read any file there."""
    kind, _, rest = (name or "").strip().partition(":")
    return kind == "local" and is_file_path(rest)


def is_file_path(rest: str) -> bool:
    """Return whether the part after `local:` is a path rather than a name of the catalogue."""
    return rest.lower().endswith(".gguf") or "/" in rest or "\\" in rest


def resolve_model(name: str) -> Model:
    """Return the model of this name.

    `local` and `local:...` run on this machine, `ollama:...`, `llama-server:...` and `vllm:...` are models of servers,
    and all others are PydanticAI's.
    """
    name = name.strip()
    kind, colon, rest = name.partition(":")
    if not kind or (colon and not rest.strip()):
        missing = "the name of the model is missing" if kind else "the provider is missing"
        raise ModelChoiceError(f"{missing}: write {kind or 'PROVIDER'}:{rest.strip() or 'MODEL'}.")
    if kind == "local":
        from .local.model import LocalModel  # noqa: PLC0415 - only for local models

        return LocalModel(rest)
    if (server := server_of(kind)) is not None:
        return make_served_model(server.locate(os.environ), rest, os.environ)
    try:
        model = infer_model(name)
    except Exception as exc:  # a provider's package may raise one of its own
        mentioned = (name for name in _empty_variables(kind, os.environ) if name in str(exc))
        variable = missing_variable(exc) if isinstance(exc, UserError) else next(mentioned, None)
        if variable is not None and variable in os.environ:
            raise _empty(variable) from exc
        raise
    _refuse_empty_key(model, kind, os.environ)
    return model


def _refuse_empty_key(model: Model, provider: str, environ: Mapping[str, str]) -> None:
    """Raise if a model would send the empty key of a variable. A key that is not used does not count."""
    client = getattr(model, "client", None)
    key = getattr(client, "api_key", None)
    if not isinstance(key, str) or key.strip() or getattr(client, "_api_key_provider", None) is not None:
        return
    for name in _empty_variables(provider, environ):
        raise _empty(name)


def _empty_variables(provider: str, environ: Mapping[str, str]) -> list[str]:
    """Return the variables for the key of a provider that are set and empty."""
    offered = [offer.variables for offer in KEY_OFFERS if offer.model.partition(":")[0] == provider]
    variables = [*(offered[0] if offered else ()), f"{provider.partition('-')[0].upper()}_API_KEY"]
    return [name for name in variables if name in environ and not environ[name].strip()]


def _empty(variable: str) -> ModelChoiceError:
    return ModelChoiceError(f"{variable} is set in the environment, and is empty. Give it a key, or unset it.")


def describe_remote(name: str) -> str:
    """Return a warning that prompts leave this machine, for models of servers that usually are on it; else nothing."""
    server = server_of(name.partition(":")[0])
    return server.locate(os.environ).describe_remote() if server is not None else ""
