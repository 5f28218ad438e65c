"""The file of a model that somebody named: of the catalogue, fetched if need be, or of their own."""

from __future__ import annotations

import threading
from dataclasses import dataclass
from pathlib import Path

import anyio.to_thread

from ...errors import LocalModelError
from .catalogue import EMBEDDED, Weights, lookup
from .fetch import Progress
from .progress import pull_with_words
from .store import cached

_MAGIC = b"GGUF"


@dataclass(frozen=True)
class ModelFile:
    """What `local:NAME` or `local:/path/model.gguf` means."""

    name: str
    weights: Weights | None
    """`None` for a file of somebody's own."""

    @classmethod
    def named(cls, name: str) -> ModelFile:
        if name.endswith(".gguf") or "/" in name or "\\" in name:
            return cls(name, None)
        weights = lookup(name or EMBEDDED)
        return cls(weights.name, weights)

    @property
    def is_here(self) -> bool:
        return self.weights is None or cached(self.weights) is not None

    async def find(self) -> Path:
        """Where the file is. What is not here is fetched, and told on standard error."""
        if self.weights is None:
            return own_file(self.name)
        if (path := cached(self.weights)) is not None:
            return path
        stopped = threading.Event()

        def stop_if_cancelled(_: Progress) -> None:
            if stopped.is_set():
                raise LocalModelError(f"Fetching {self.name} was cancelled.")

        try:
            return await anyio.to_thread.run_sync(
                pull_with_words, self.weights, stop_if_cancelled, abandon_on_cancel=True
            )
        finally:
            stopped.set()


def own_file(name: str) -> Path:
    """Check that a file has the form of weights, before llama.cpp reads it."""
    path = Path(name).expanduser().absolute()
    try:
        with path.open("rb") as file:
            start = file.read(len(_MAGIC))
    except OSError as exc:
        raise LocalModelError(f"The model local:{name} cannot be read: {exc.strerror}.") from exc
    if start != _MAGIC:
        raise LocalModelError(f"{path} is no GGUF file, so it is no model that llama.cpp can load.")
    return path
