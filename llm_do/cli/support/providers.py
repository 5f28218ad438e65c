"""Whether a model that a file names can be used here: its provider, the package for it, and the key."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from pydantic_ai.models import Model


class ModelProblem(NamedTuple):
    """Why a model cannot be used."""

    message: str
    hopeless: bool
    """Whether it is the name that is wrong, and not something that this machine lacks."""


@cache
def look_at_model(name: str) -> ModelProblem | Model:
    """Return the model of this name, or why it cannot be used. Nothing is sent."""
    # Both take long, and only a model that somebody names needs them.
    from pydantic_ai.exceptions import UserError  # noqa: PLC0415

    from ...errors import LocalModelError, ModelChoiceError  # noqa: PLC0415
    from ...models import resolve_model  # noqa: PLC0415
    from ...models.unusable import explain_unusable, missing_variable  # noqa: PLC0415

    try:
        return resolve_model(name)
    except LocalModelError as exc:
        return ModelProblem(f"{exc}", hopeless=True)
    except ModelChoiceError as exc:
        return ModelProblem(f"{exc}", hopeless=False)
    except ImportError as exc:
        return ModelProblem(explain_unusable(name, exc), hopeless=False)
    except UserError as exc:
        return ModelProblem(explain_unusable(name, exc), hopeless=missing_variable(exc) is None)
    except Exception as exc:  # whatever a provider's package thinks of its surroundings
        return ModelProblem(f"{type(exc).__name__}: {exc}", hopeless=False)
