"""Whether a model that a file names can be used here: its provider, the package for it, and the key."""

from __future__ import annotations

import re
from functools import cache
from typing import Any, NamedTuple

from ..errors import did_you_mean

_VARIABLE = re.compile(r"Set the `(\w+)`")
_EXTRA = re.compile(r'"(pydantic-ai-slim\[[\w-]+\])"')


class ModelProblem(NamedTuple):
    """Why a model cannot be used."""

    message: str
    hopeless: bool
    """Whether it is the name that is wrong, and not something that this machine lacks."""


@cache
def look_at_model(name: str) -> ModelProblem | frozenset[type[Any]] | None:
    """Why a model cannot be used; otherwise the native tools that it has, where that is known. Nothing is sent."""
    # Both take long, and only a model that somebody names needs them.
    from pydantic_ai.exceptions import UserError  # noqa: PLC0415
    from pydantic_ai.models import infer_model, known_model_names, parse_model_id  # noqa: PLC0415

    try:
        model = infer_model(name)
    except ImportError as exc:
        extra = _EXTRA.search(str(exc))
        return ModelProblem(f"its provider needs `pip install '{extra[1]}'`." if extra else f"{exc}.", hopeless=False)
    except UserError as exc:
        if (variable := _VARIABLE.search(str(exc))) is not None:
            return ModelProblem(f"{variable[1]} is not set in the environment.", hopeless=False)
        provider, _ = parse_model_id(name)
        known = {known_name.partition(":")[0] for known_name in known_model_names() if ":" in known_name}
        if provider is None:
            likely = did_you_mean(name, known_model_names()) if _is_close(name, known_model_names()) else ""
            return ModelProblem(f"it has no provider: write PROVIDER:MODEL.{likely}", hopeless=True)
        if provider not in known:
            return ModelProblem(f"there is no provider {provider!r}.{did_you_mean(provider, known)}", hopeless=True)
        return ModelProblem(f"{exc}", hopeless=True)
    except Exception as exc:  # whatever a provider's package thinks of its surroundings
        return ModelProblem(f"{type(exc).__name__}: {exc}", hopeless=False)
    supported = model.profile.get("supported_native_tools")
    return frozenset(supported) if supported is not None else None


def _is_close(name: str, known: Any) -> bool:
    return "Did you mean" in did_you_mean(name, known)
