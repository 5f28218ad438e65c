"""Models by their names."""

from __future__ import annotations

import os

from pydantic_ai.models import Model, infer_model

from .servers import make_served_model, server_of


def is_own_file(name: str | None) -> bool:
    """Whether a model's name is a path: llama.cpp, which is no fortress, would read whatever is there."""
    kind, _, rest = (name or "").partition(":")
    return kind == "local" and names_a_file(rest)


def names_a_file(rest: str) -> bool:
    """Whether what stands after `local:` is a path, and no name of the catalogue."""
    return rest.lower().endswith(".gguf") or "/" in rest or "\\" in rest


def resolve_model(name: str) -> Model:
    """Return the model of this name.

    `local` and `local:...` run on this machine, `ollama:...`, `llama-server:...` and `vllm:...` are asked where their
    server is, and all others are PydanticAI's.
    """
    kind, _, rest = name.partition(":")
    if kind == "local":
        # Its modules are for those who use it.
        from .local.model import LocalModel  # noqa: PLC0415

        return LocalModel(rest)
    if (server := server_of(kind)) is not None:
        return make_served_model(server.locate(os.environ), rest, os.environ)
    return infer_model(name)


def describe_remote(name: str) -> str:
    """Return a sentence about where the prompts of a model go, if it is a server's that looks like one of this machine.

    Empty for all others.
    """
    server = server_of(name.partition(":")[0])
    return server.locate(os.environ).describe_remote() if server is not None else ""
