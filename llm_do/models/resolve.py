"""A model by its name."""

from __future__ import annotations

from pydantic_ai.models import Model, infer_model


def resolve_model(name: str) -> Model:
    """The model of this name: `local` and `local:...` run on this machine, all others are PydanticAI's."""
    kind, _, rest = name.partition(":")
    if kind == "local":
        # Its modules are for those who use it.
        from .local.model import LocalModel  # noqa: PLC0415

        return LocalModel(rest)
    return infer_model(name)
