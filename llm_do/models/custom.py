"""Models of a project's custom providers: `[providers]` of `llm-do.toml` maps a prefix to `module:factory`."""

from __future__ import annotations

import inspect
import re
import traceback
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

from pydantic_ai.models import Model
from pydantic_ai.models.wrapper import WrapperModel
from pydantic_ai.providers import infer_provider_class

from ..errors import LlmDoError, ModelChoiceError, ProjectCodeError
from .servers import server_of

_PREFIX = re.compile(r"[a-z][a-z0-9_-]{0,63}")
_REFERENCE = re.compile(r"[^\s:]+:[^\s:]+")
_RESERVED = frozenset({"local", "test", "function", "fallback", "gateway", "none", "google-gla", "google-vertex"})
"""Prefixes with a meaning that are no names of providers."""


@runtime_checkable
class HasProviders(Protocol):
    """Entries of a project with custom providers."""

    def providers(self) -> Mapping[str, str]: ...

    def make_model(self, name: str) -> Model | None:
        """Return the model of this name, if its prefix is one of these providers. This runs code of the project."""


class CustomModel(WrapperModel):
    """A model that a project's factory made, under the name by which it was requested: in records, usage and prices."""

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
    """Return why a project cannot have such a provider, or `None`. This imports nothing of the project."""
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
        factory = load(reference)
    except LlmDoError as exc:
        why = str(exc).removeprefix(f"{reference!r}: ")
        raise ProjectCodeError(f"{_whose(prefix, reference)}: {why}") from exc
    if not callable(factory):
        raise ProjectCodeError(
            f"{_whose(prefix, reference)} is no function: it is {factory!r:.60}. "
            "Write one that takes a model's name and returns a PydanticAI Model."
        )
    checked: Callable[[str], Any] = factory
    return checked


def make_custom_model(name: str, providers: Mapping[str, str], load: Callable[[str], Any], root: Path) -> Model | None:
    """Return the model that a provider of the project makes; `None` for the names of other providers.

    If the factory fails, or returns no model, the error is a `ModelChoiceError`.
    """
    prefix = custom_provider(name, providers)
    if prefix is None:
        return None
    reference, rest = providers[prefix], name.strip().partition(":")[2].strip()
    factory = load_factory(prefix, reference, load)
    try:
        model = factory(rest)
    except Exception as exc:
        error = traceback.format_exception_only(exc)[-1].strip()
        raise ModelChoiceError(f"{_whose(prefix, reference)} failed{_line(exc, root)}: {error}") from exc
    if inspect.iscoroutine(model):
        model.close()
        raise ModelChoiceError(f"{_whose(prefix, reference)} is async. Write `def`, without `async`.")
    if not isinstance(model, Model):
        raise ModelChoiceError(
            f"{_whose(prefix, reference)} returned {model!r:.60}, which is no model. Return a PydanticAI Model."
        )
    return CustomModel(model, prefix, rest)


def _whose(prefix: str, reference: str) -> str:
    return f"llm-do.toml, provider {prefix!r}: the factory {reference}"


def _line(exc: Exception, root: Path) -> str:
    """Return the innermost line of the project's code in the traceback, in brackets."""
    frames = [at for at in traceback.extract_tb(exc.__traceback__) if Path(at.filename).is_relative_to(root)]
    return f" ({Path(frames[-1].filename).relative_to(root)}:{frames[-1].lineno})" if frames else ""
