"""Explanations of why a named model cannot be used, and what to do."""

from __future__ import annotations

import re
from collections.abc import Iterable

from pydantic_ai.exceptions import UserError
from pydantic_ai.models import known_model_names, parse_model_id

from ..errors import LocalModelError, ModelChoiceError, ProjectCodeError, did_you_mean
from ..machine.installation import install_package

_VARIABLE = re.compile(r"Set the `(\w+)`")
_EXTRA = re.compile(r'"(pydantic-ai-slim\[[\w-]+\])"')


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
