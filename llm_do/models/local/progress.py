"""Downloads of weights with progress on standard error."""

from __future__ import annotations

import sys
import threading
from pathlib import Path

from .catalogue import PackageSource, Weights, format_size
from .fetch import Progress, ProgressCallback
from .store import cached_path, pull

_one_at_a_time = threading.Lock()
_WORDS = {"waiting": "waiting for another process", "fetching": "fetching", "checking": "checking"}


def describe_download(weights: Weights) -> str:
    """Return name, size, licence and source of a download."""
    source = weights.source
    where = f"the package {source.requirement}" if isinstance(source, PackageSource) else f"hub: {source.repository}"
    size = source.wheel_size if isinstance(source, PackageSource) else weights.size
    return f"{weights.name}: {format_size(size)}, licence {weights.licence}, from {where}"


def pull_with_progress(weights: Weights, watch: ProgressCallback | None = None) -> Path:
    """Download weights that are not cached. `watch` is called with the progress too, and can end it by raising."""
    with _one_at_a_time:  # workers that start together announce it once
        path = cached_path(weights)
        return path if path is not None else _pull_with_words(weights, watch)


def _pull_with_words(weights: Weights, watch: ProgressCallback | None) -> Path:
    from rich.console import Console  # noqa: PLC0415 - large, and only for downloads
    from rich.file_proxy import FileProxy  # noqa: PLC0415
    from rich.progress import BarColumn, DownloadColumn, TextColumn, TimeRemainingColumn  # noqa: PLC0415
    from rich.progress import Progress as Bar  # noqa: PLC0415

    # A live display, such as the tree of calls, takes printed lines. A second console would draw across it.
    console = Console(file=sys.stderr)
    is_alone = console.is_terminal and not isinstance(sys.stderr, FileProxy)
    _print(f"llm-do: fetching {describe_download(weights)}")
    columns = TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TimeRemainingColumn()
    with Bar(*columns, console=console, transient=True, disable=not is_alone) as bar:
        task = bar.add_task(_WORDS["fetching"], total=None)

        def report(progress: Progress) -> None:
            bar.update(task, description=_WORDS[progress.stage], completed=progress.done, total=progress.total or None)
            if watch is not None:
                watch(progress)

        path = pull(weights, report)
    _print(f"llm-do: {weights.name} is in {path.parent}")
    return path


def _print(line: str) -> None:
    sys.stderr.write(f"{line}\n")
    sys.stderr.flush()
