"""The file of a local model: from the catalogue, downloaded if need be, or a file of the user."""

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
from .catalogue import EMBEDDED, Weights, is_file_path, lookup
from .fetch import Progress
from .progress import pull_with_progress
from .store import cached_path, pull

_MAGIC = b"GGUF"
_SECONDS_TO_CLEAN_UP = 3.0


@dataclass(frozen=True)
class ModelFile:
    """The file that `local:NAME` or `local:/path/model.gguf` names."""

    name: str
    weights: Weights | None
    """`None` for a file of the user."""

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
        """Return the path, after a download if need be. Unless `quiet`, its progress goes to standard error."""
        weights = self.weights
        if weights is None:
            return check_gguf(self.name)
        if (path := cached_path(weights)) is not None:
            return path
        if find_spec("xllamacpp") is None:  # before a download in vain
            raise LocalModelError(f"Local models need `{install_extra('local')}`.")
        is_cancelled, is_finished = threading.Event(), threading.Event()

        def stop_if_cancelled(_: Progress) -> None:
            if is_cancelled.is_set():
                raise LocalModelError(f"Fetching {self.name} was cancelled.")

        def fetch() -> Path:
            try:
                return (pull if quiet else pull_with_progress)(weights, stop_if_cancelled)
            finally:
                is_finished.set()

        try:
            return await pool.run(fetch)
        except anyio.get_cancelled_exc_class():
            is_cancelled.set()
            # The download checks several times a second, and then cleans up.
            with anyio.CancelScope(shield=True):
                await pool.run(is_finished.wait, _SECONDS_TO_CLEAN_UP)
            raise


def check_gguf(name: str) -> Path:
    """Return the path of a file that begins like weights do; llama.cpp must not read any other."""
    try:
        path = Path(name).expanduser().absolute()
        if path.exists() and not path.is_file():
            raise OSError(0, "it is no file")
        with path.open("rb") as file:
            start = file.read(len(_MAGIC))
    except (OSError, ValueError, RuntimeError) as exc:  # also for an invalid path or a missing home
        reason = exc.strerror if isinstance(exc, OSError) else exc
        raise LocalModelError(f"The model local:{visible(name)} cannot be read: {reason}.") from exc
    if start != _MAGIC:
        raise LocalModelError(f"{path} is no GGUF file, so it is no model that llama.cpp can load.")
    return path
