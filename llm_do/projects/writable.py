"""The folders that the workers of a project can write, and files that must not be in them.

A worker that could write its own file, or code that runs here, could give itself any rights.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

from ..errors import LlmDoError, WorkerFileError
from ..sandbox import RootConfig, SandboxConfig
from ..sandbox.roots.repositories import repository_around
from .code import ProjectCode
from .config import ProjectConfig
from .import_guard import all_around, first_around, is_within, python_code_in
from .layout import CONFIG
from .worker_files import BY_PROJECT, FileCache, WorkerFiles


class WritableFolders:
    """The folders that any worker of a project can write, including workers made in modules that were imported."""

    def __init__(
        self, root: Path, files: WorkerFiles, code: ProjectCode, read_config: Callable[[], ProjectConfig]
    ) -> None:
        """`read_config` must not check symlinks: that check needs the folders that this class finds."""
        self._root = root
        self._files = files
        self._code = code
        self._read_config = read_config
        self._cache = FileCache()

    def folders(self) -> list[Path]:
        """Return the folders that any worker can write."""
        roots = self._cache.get("roots", (self._root / CONFIG,), self._roots_of_files, self._files.stamp())
        # Paths are resolved every time: they may lead through symlinks.
        folders = {root.folder(self._root) for root in roots}
        for _, worker in self._code.workers():
            folders.update(folder for _, folder in _writable_roots(worker.sandbox, worker.base))
        # Roots around the project are left out: a worker that has one is refused.
        return list(folders.difference(all_around(self._root / "_", folders)))

    def _roots_of_files(self) -> list[RootConfig]:
        """Return the writable roots that files declare, also files that are refused: a worker may have written them."""
        found: list[SandboxConfig | None] = []
        with suppress(LlmDoError):
            found.append(self._read_config().sandbox)
        for name in self._files.names():
            with suppress(LlmDoError):  # a worker does not run if its file cannot be read
                file = self._files.find(name)
                # A worker that another one created has no roots but those of its creator.
                if file is not None and (not file.generated or self._files.creator(name, file) == BY_PROJECT):
                    found.append(self._files.read(name, file)[0].sandbox)
        roots = [root for sandbox in found if sandbox is not None for root in sandbox.paths.values()]
        return list({root.root: root for root in roots if root.mode == "rw"}.values())

    def check_symlinks(self, file: Path) -> None:
        """Refuse a file that gives rights to workers if a symlink leads to it through a folder that they can write."""
        # Without a symlink it is safe: no worker can write the project's own folder or `workers/`.
        if not _has_link(file, self._root):
            return
        if (folder := first_around(file, self.folders())) is not None:
            raise WorkerFileError(
                f"{file.relative_to(self._root)} is not used: a symlink leads to it through {folder.name}/, which "
                "workers can change. Put the file in the place of the symlink, or make their root read only."
            )

    def check_roots(self, sandbox: SandboxConfig | None, base: Path, where: str) -> None:
        """Refuse roots where a worker could write code that is imported later, or settings of a repository."""
        for name, folder in _writable_roots(sandbox, base):
            if (repository := repository_around(folder)) is not None:  # its settings name programs, which git runs
                raise WorkerFileError(
                    f"{where}: root {name!r} cannot be writable: {repository.name!r} is a repository. "
                    "Use a folder of its work tree, or mode: ro."
                )
            if is_within(self._root, folder):
                raise WorkerFileError(f"{where}: the root {name!r} has the project in it. Use a folder of its own.")
            for code in self._code.files():
                if first_around(code, [folder]):
                    shown = code.relative_to(self._root.resolve())
                    raise WorkerFileError(
                        f"{where}: the root {name!r} has code of the project in it, {shown}. Move the code."
                    )
            if python := python_code_in(folder):
                raise WorkerFileError(
                    f"{where}: the root {name!r} has code in it that Python imports here, {python}. Use another folder."
                )

    def check_made_in_python(self) -> None:
        """Check the roots of workers that modules of the project made, at any depth."""
        self._cache.get("made", (), self._check_made_in_python, self._code.stamp())

    def _check_made_in_python(self) -> None:
        for file, worker in self._code.workers():
            where = f"{file.relative_to(self._root)}: worker {worker.name!r}"
            self.check_roots(worker.sandbox, worker.base.absolute(), where)
            for name, folder in _writable_roots(worker.sandbox, worker.base):
                if (path := next(self._files_in(folder), None)) is not None:
                    raise WorkerFileError(
                        f"{where}: the root {name!r} reaches {path.relative_to(self._root)}, which has rights of "
                        "workers. Use another folder, or mode: ro."
                    )

    def _files_in(self, folder: Path) -> Iterator[Path]:
        """Yield the files that give rights to workers and can be changed in a folder."""
        workers = self._files.folder
        if is_within(workers, folder) or is_within(folder, workers):
            yield workers
        yield from (path for path in (self._root / CONFIG, *self._files.links()) if first_around(path, [folder]))


def _writable_roots(sandbox: SandboxConfig | None, base: Path) -> list[tuple[str, Path]]:
    roots = {} if sandbox is None else sandbox.paths
    return [(name, root.folder(base.absolute())) for name, root in roots.items() if root.mode == "rw"]


def _has_link(file: Path, root: Path) -> bool:
    """Return whether a symlink is on the way from the project's folder to a file."""
    path, top = str(file), len(str(root))
    while len(path) > top:  # not with `Path.parents`: every call of a worker does this
        if os.path.islink(path):  # noqa: PTH114
            return True
        path = path.rpartition("/")[0]
    return False
