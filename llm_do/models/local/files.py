"""The file of a model that somebody named: of the catalogue, fetched if need be, or of their own."""

from __future__ import annotations

import threading
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

import anyio

from ...errors import LocalModelError
from ...machine import pool
from ...machine.installation import install_extra
from ...privacy.display import visible
from ..resolve import is_file_path
from .catalogue import EMBEDDED, Weights, lookup
from .fetch import Progress
from .progress import pull_with_progress
from .store import cached_path, pull

_MAGIC = b"GGUF"
_SECONDS_TO_CLEAN_UP = 3.0


@dataclass(frozen=True)
class ModelFile:
    """What `local:NAME` or `local:/path/model.gguf` means."""

    name: str
    weights: Weights | None
    """`None` for a file of somebody's own."""

    @classmethod
    def from_name(cls, name: str) -> ModelFile:
        if is_file_path(name):
            return cls(name, None)
        weights = lookup(name or EMBEDDED)
        return cls(weights.name, weights)

    @property
    def is_here(self) -> bool:
        return self.weights is None or cached_path(self.weights) is not None

    async def find(self, *, quiet: bool = False) -> Path:
        """Where the file is. What is not here is fetched, and told on standard error, unless it should be quiet."""
        weights = self.weights
        if weights is None:
            return check_gguf(self.name)
        if (path := cached_path(weights)) is not None:
            return path
        if find_spec("xllamacpp") is None:  # before all that is fetched in vain
            raise LocalModelError(f"Local models need `{install_extra('local')}`.")
        stopped, over = threading.Event(), threading.Event()

        def stop_if_cancelled(_: Progress) -> None:
            if stopped.is_set():
                raise LocalModelError(f"Fetching {self.name} was cancelled.")

        def fetch() -> Path:
            try:
                return (pull if quiet else pull_with_progress)(weights, stop_if_cancelled)
            finally:
                over.set()

        try:
            return await pool.run(fetch)
        except anyio.get_cancelled_exc_class():
            stopped.set()
            # It looks several times a second, and then takes away what there is of it, if the program does not end.
            with anyio.CancelScope(shield=True):
                await pool.run(over.wait, _SECONDS_TO_CLEAN_UP)
            raise


def check_gguf(name: str) -> Path:
    """Check that a file has the form of weights, before llama.cpp reads it."""
    try:
        path = Path(name).expanduser().absolute()
        if path.exists() and not path.is_file():
            raise OSError(0, "it is no file")
        with path.open("rb") as file:
            start = file.read(len(_MAGIC))
    except (OSError, ValueError, RuntimeError) as exc:  # also what cannot be a path, and a home that is not there
        why = exc.strerror if isinstance(exc, OSError) else exc
        raise LocalModelError(f"The model local:{visible(name)} cannot be read: {why}.") from exc
    if start != _MAGIC:
        raise LocalModelError(f"{path} is no GGUF file, so it is no model that llama.cpp can load.")
    return path
