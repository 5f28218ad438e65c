"""A model by its name."""

from __future__ import annotations

from pydantic_ai.models import Model, infer_model


def is_own_file(name: str | None) -> bool:
    """Whether a model's name is a path: llama.cpp, which is no fortress, would read whatever is there."""
    kind, _, rest = (name or "").partition(":")
    return kind == "local" and names_a_file(rest)


def names_a_file(rest: str) -> bool:
    """Whether what stands after `local:` is a path, and no name of the catalogue."""
    return rest.lower().endswith(".gguf") or "/" in rest or "\\" in rest


def resolve_model(name: str) -> Model:
    """The model of this name: `local` and `local:...` run on this machine, all others are PydanticAI's."""
    kind, _, rest = name.partition(":")
    if kind == "local":
        # Its modules are for those who use it.
        from .local.model import LocalModel  # noqa: PLC0415

        return LocalModel(rest)
    return infer_model(name)
