"""Models by name, or the reason why they cannot be used here: the provider, its package, the key."""

from __future__ import annotations

from functools import cache
from typing import NamedTuple

from pydantic_ai.exceptions import UserError
from pydantic_ai.models import Model

from ....errors import LocalModelError, ModelChoiceError
from ....models import resolve_model
from ....models.unusable import explain_unusable, missing_variable


class ModelProblem(NamedTuple):
    """Why a model cannot be used."""

    message: str
    is_name_wrong: bool
    """If not, something is missing on this machine."""


@cache
def find_model(name: str) -> ModelProblem | Model:
    """Return the model of this name, or why it cannot be used. Nothing is sent."""
    try:
        return resolve_model(name)
    except LocalModelError as exc:
        return ModelProblem(f"{exc}", is_name_wrong=True)
    except ModelChoiceError as exc:
        return ModelProblem(f"{exc}", is_name_wrong=False)
    except ImportError as exc:
        return ModelProblem(explain_unusable(name, exc), is_name_wrong=False)
    except UserError as exc:
        return ModelProblem(explain_unusable(name, exc), is_name_wrong=missing_variable(exc) is None)
    except Exception as exc:  # a provider's package may raise anything
        return ModelProblem(f"{type(exc).__name__}: {exc}", is_name_wrong=False)
