"""Models by name, why a named model cannot be used, and the custom providers of projects.

`[providers]` of a project's `llm-do.toml` maps a prefix of names to `module:factory`.
"""

from __future__ import annotations

import inspect
import os
import re
import traceback
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

from pydantic_ai.exceptions import UserError
from pydantic_ai.models import Model, infer_model, known_model_names, parse_model_id
from pydantic_ai.models.wrapper import WrapperModel
from pydantic_ai.providers import infer_provider_class

from ..errors import LlmDoError, LocalModelError, ModelChoiceError, ProjectCodeError, did_you_mean
from ..machine.installation import install_package
from .choice import KEY_OFFERS
from .local import is_file_path
from .servers import make_served_model, server_of

_VARIABLE = re.compile(r"Set the `(\w+)`")
_EXTRA = re.compile(r'"(pydantic-ai-slim\[[\w-]+\])"')
_PREFIX = re.compile(r"[a-z][a-z0-9_-]{0,63}")
_REFERENCE = re.compile(r"[^\s:]+:[^\s:]+")
_RESERVED = frozenset({"local", "test", "function", "fallback", "gateway", "none", "google-gla", "google-vertex"})


def names_model_file(name: str | None) -> bool:
    """Return whether a model's name is a path. llama.cpp, which is not hardened, would read any file there."""
    kind, _, rest = (name or "").strip().partition(":")
    return kind == "local" and is_file_path(rest)


def resolve_model(name: str) -> Model:
    """Return the model of this name: a local one (`local:...`), one of a model server, or one of PydanticAI."""
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
            raise _empty_key_error(variable) from exc
        raise
    _refuse_empty_key(model, kind)
    return model


def _refuse_empty_key(model: Model, provider: str) -> None:
    """Raise if a model would send the empty value of a variable as its key."""
    client = getattr(model, "client", None)
    key = getattr(client, "api_key", None)
    if not isinstance(key, str) or key.strip() or getattr(client, "_api_key_provider", None) is not None:
        return
    if variables := _empty_variables(provider):
        raise _empty_key_error(variables[0])


def _empty_variables(provider: str) -> list[str]:
    """Return the variables for a provider's key that are set but empty."""
    offered = [offer.variables for offer in KEY_OFFERS if offer.model.partition(":")[0] == provider]
    variables = [*(offered[0] if offered else ()), f"{provider.partition('-')[0].upper()}_API_KEY"]
    return [name for name in variables if name in os.environ and not os.environ[name].strip()]


def _empty_key_error(variable: str) -> ModelChoiceError:
    return ModelChoiceError(f"{variable} is set in the environment, and is empty. Give it a key, or unset it.")


def describe_remote(name: str) -> str:
    """Return a warning if this model is on a model server of another machine; otherwise an empty string."""
    server = server_of(name.partition(":")[0])
    return server.locate(os.environ).describe_remote() if server is not None else ""


def missing_variable(error: BaseException) -> str | None:
    """Return the unset variable of a provider's key, if the error is about one."""
    found = _VARIABLE.search(str(error))
    return found[1] if found is not None else None


def explain_unusable(name: str, error: BaseException, custom_providers: Iterable[str] = ()) -> str:
    """Return why a model cannot be used. `custom_providers` are the prefixes that the project declares."""
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


@runtime_checkable
class HasProviders(Protocol):
    """Entries of a project with custom providers."""

    def providers(self) -> Mapping[str, str]: ...

    def make_model(self, name: str) -> Model | None:
        """Return the model of this name, if its prefix is one of the providers. This runs code of the project."""


class CustomModel(WrapperModel):
    """A model from a project's factory. Records, usage and prices show it under the name that was requested."""

    def __init__(self, wrapped: Model, provider: str, name: str) -> None:
        super().__init__(wrapped)
        self._prefix = provider
        self._requested_name = name

    @property
    def system(self) -> str:
        return self._prefix

    @property
    def model_name(self) -> str:
        return self._requested_name


def invalid_provider_reason(prefix: str, reference: str) -> str | None:
    """Return why a project cannot declare this provider, or `None`. No code of the project is imported."""
    if not _PREFIX.fullmatch(prefix):
        return f"{prefix!r} cannot be a provider's prefix: use lower-case letters, digits, '-' and '_'."
    if _is_taken(prefix):
        return f"the prefix {prefix!r} means another provider already. Choose another one."
    if not _REFERENCE.fullmatch(reference):
        return f'{reference!r} is no factory of provider {prefix!r}: write {prefix} = "module:function".'
    return None


def _is_taken(prefix: str) -> bool:
    if prefix in _RESERVED or server_of(prefix) is not None:
        return True
    try:
        infer_provider_class(prefix)
    except ImportError:  # a provider of PydanticAI whose package is not installed
        return True
    except ValueError:
        return False
    return True


def custom_provider(name: str | None, providers: Mapping[str, str]) -> str | None:
    """Return the prefix of a model's name, if it is one of these providers."""
    prefix, colon, rest = (name or "").strip().partition(":")
    return prefix if colon and rest.strip() and prefix in providers else None


def load_factory(prefix: str, reference: str, load: Callable[[str], Any]) -> Callable[[str], Any]:
    """Return the factory of a provider, imported by `load`; raise `ProjectCodeError` if there is no such function."""
    try:
        factory: Callable[[str], Any] = load(reference)
    except LlmDoError as exc:
        why = str(exc).removeprefix(f"{reference!r}: ")
        raise ProjectCodeError(f"{_factory_name(prefix, reference)}: {why}") from exc
    if not callable(factory):
        raise ProjectCodeError(
            f"{_factory_name(prefix, reference)} is no function: it is {factory!r:.60}. "
            "Write one that takes a model's name and returns a PydanticAI Model."
        )
    return factory


def make_custom_model(name: str, providers: Mapping[str, str], load: Callable[[str], Any], root: Path) -> Model | None:
    """Return the model that a provider of the project makes, or `None` if the name has another provider."""
    prefix = custom_provider(name, providers)
    if prefix is None:
        return None
    reference, rest = providers[prefix], name.strip().partition(":")[2].strip()
    factory = load_factory(prefix, reference, load)
    try:
        model = factory(rest)
    except Exception as exc:
        error = traceback.format_exception_only(exc)[-1].strip()
        raise ModelChoiceError(f"{_factory_name(prefix, reference)} failed{_place_of(exc, root)}: {error}") from exc
    if inspect.iscoroutine(model):
        model.close()
        raise ModelChoiceError(f"{_factory_name(prefix, reference)} is async. Write `def`, without `async`.")
    if not isinstance(model, Model):
        raise ModelChoiceError(
            f"{_factory_name(prefix, reference)} returned {model!r:.60}, which is no model. Return a PydanticAI Model."
        )
    return CustomModel(model, prefix, rest)


def _factory_name(prefix: str, reference: str) -> str:
    return f"llm-do.toml, provider {prefix!r}: the factory {reference}"


def _place_of(exc: Exception, root: Path) -> str:
    """Return the innermost line of the project's code in the traceback, in brackets."""
    frames = [at for at in traceback.extract_tb(exc.__traceback__) if Path(at.filename).is_relative_to(root)]
    return f" ({Path(frames[-1].filename).relative_to(root)}:{frames[-1].lineno})" if frames else ""
