"""Models by name, and explanations of why a named model cannot be used."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable

from pydantic_ai.exceptions import UserError
from pydantic_ai.models import Model, infer_model, known_model_names, parse_model_id

from ..errors import LocalModelError, ModelChoiceError, ProjectCodeError, did_you_mean
from ..machine.installation import install_package
from .choice import KEY_OFFERS
from .local import is_file_path
from .servers import make_served_model, server_of

_VARIABLE = re.compile(r"Set the `(\w+)`")
_EXTRA = re.compile(r'"(pydantic-ai-slim\[[\w-]+\])"')


def names_model_file(name: str | None) -> bool:
    """Return whether a model's name is a path. llama.cpp, which is not hardened, would read any file there."""
    kind, _, rest = (name or "").strip().partition(":")
    return kind == "local" and is_file_path(rest)


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
        mentioned = (name for name in _empty_variables(kind) if name in str(exc))
        variable = missing_variable(exc) if isinstance(exc, UserError) else next(mentioned, None)
        if variable is not None and variable in os.environ:
            raise _empty(variable) from exc
        raise
    _refuse_empty_key(model, kind)
    return model


def _refuse_empty_key(model: Model, provider: str) -> None:
    """Raise if a model would send the empty key of a variable. A key that is not used does not count."""
    client = getattr(model, "client", None)
    key = getattr(client, "api_key", None)
    if not isinstance(key, str) or key.strip() or getattr(client, "_api_key_provider", None) is not None:
        return
    for name in _empty_variables(provider):
        raise _empty(name)


def _empty_variables(provider: str) -> list[str]:
    """Return the variables for the key of a provider that are set and empty."""
    offered = [offer.variables for offer in KEY_OFFERS if offer.model.partition(":")[0] == provider]
    variables = [*(offered[0] if offered else ()), f"{provider.partition('-')[0].upper()}_API_KEY"]
    return [name for name in variables if name in os.environ and not os.environ[name].strip()]


def _empty(variable: str) -> ModelChoiceError:
    return ModelChoiceError(f"{variable} is set in the environment, and is empty. Give it a key, or unset it.")


def describe_remote(name: str) -> str:
    """Return a warning that prompts leave this machine, for models of servers that usually are on it; else nothing."""
    server = server_of(name.partition(":")[0])
    return server.locate(os.environ).describe_remote() if server is not None else ""


def missing_variable(error: BaseException) -> str | None:
    """Return the unset variable for a provider's key, if the error is about one."""
    found = _VARIABLE.search(str(error))
    return found[1] if found is not None else None


def explain_unusable(name: str, error: BaseException, custom_providers: Iterable[str] = ()) -> str:
    """Return why a model that a file or a command line names cannot be used.

    `custom_providers` are the prefixes that the project declares.
    """
    if isinstance(error, LocalModelError | ModelChoiceError | ProjectCodeError):
        return f"{error}"
    if isinstance(error, ImportError):
        extra = _EXTRA.search(str(error))
        return f"its provider needs `{install_package(extra[1])}`." if extra else f"{error}."
    if (variable := missing_variable(error)) is not None:
        return f"{variable} is not set in the environment."
    provider, _ = parse_model_id(name)
    from .local.catalogue import CATALOGUE  # noqa: PLC0415 - only for errors

    if provider is None and name in CATALOGUE:
        return f"it has no provider. Did you mean 'local:{name}'?"
    if provider is None:
        hint = did_you_mean(name, known_model_names())
        return f"it has no provider: write PROVIDER:MODEL.{hint if 'Did you mean' in hint else ''}"
    providers = {each.partition(":")[0] for each in known_model_names() if ":" in each}
    if isinstance(error, UserError) and provider not in providers:
        hint = did_you_mean(provider, {*providers, *custom_providers})
        advice = "" if "Did you mean" in hint else " One of your own goes under [providers] in llm-do.toml."
        return f"there is no provider {provider!r}.{hint}{advice}"
    return f"{error}" if isinstance(error, UserError) else f"{type(error).__name__}: {error}"
