"""Commands in a sandbox of the kernel (bubblewrap): the roots, what is under /usr, and nothing else of the host.

Each program has a sandbox of its own: no network, no other processes, no capabilities, its own /tmp, and a filter of
what it asks the kernel for (see `seccomp`). The sandbox is set up first and waits; its limits are put on it from
outside; then the program starts. Its first process is the one of a process namespace, so the kernel ends all others
with it.

What it still sees of the host is what /proc tells of the kernel, the load and the memory, and, in its mountinfo, where
its folders really are. Nothing can be mounted on the files of a process, so that cannot be covered.
"""

from __future__ import annotations

import asyncio
import logging
import os
import shutil
import stat
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path

from ..commands import Command
from ..errors import PathDenied, PathFailed
from .beneath import FOLDER_FLAGS, best_opener
from .bubbled import Plan, in_memory, start_bubble
from .masks import host_mounts, masks
from .plain import run_unsandboxed
from .processes import Argv, CommandResult, Running, ShellLimits, run, to_the_end
from .repositories import disable_new, find_repositories
from .seccomp import no_filter, system_call_filter

__all__ = ["CommandResult", "Mount", "ShellLimits", "run_sandboxed", "run_unsandboxed", "why_not"]

logger = logging.getLogger("llm_do")

WORK = "/work"
_ENVIRONMENT = {"PATH": "/usr/local/bin:/usr/bin:/bin", "HOME": "/tmp", "LANG": "C.UTF-8", "TERM": "dumb"}  # noqa: S108
_TOP_FOLDERS = ("bin", "sbin", "lib", "lib32", "lib64", "libx32")
_PROC = (
    *("cmdline", "bootconfig", "keys", "key-users", "modules", "kallsyms", "interrupts", "timer_list"),
    *("partitions", "diskstats", "swaps", "iomem", "ioports"),
)
"""What /proc tells of the host and not of the processes there."""
_ETC = ("/etc/ld.so.cache", "/etc/alternatives")
_NEEDED = ("--bind-fd", "--disable-userns", "--size", "--json-status-fd", "--seccomp")
_INSTALL = "Install it (Debian, Ubuntu: apt-get install bubblewrap; Fedora: dnf install bubblewrap)."


@dataclass(frozen=True, slots=True, kw_only=True)
class Mount:
    """A folder that commands see as /work/NAME."""

    name: str
    folder: Path
    writable: bool
    fd: int | None = None
    """The folder, if it is open already. Then it is this one, whatever its path means by now."""
    protected: Sequence[Path] = ()
    """Absolute paths that commands must not see, in whichever mount they would show up."""


@cache
def why_not() -> str | None:
    """Why commands cannot be sandboxed here, found out by trying it once; `None` if they can."""
    if sys.platform != "linux":
        return f"Commands are sandboxed with bubblewrap, which needs Linux; this is {sys.platform}."
    if problem := no_filter():
        return problem
    if (bwrap := shutil.which("bwrap")) is None:
        return f"Commands are sandboxed with bubblewrap, and `bwrap` is not on PATH. {_INSTALL}"
    offers = subprocess.run([bwrap, "--help"], capture_output=True, text=True, check=False)  # noqa: S603
    if missing := [option for option in _NEEDED if option not in offers.stdout + offers.stderr]:
        return f"This bubblewrap is too old: it has no {', '.join(missing)}. Use 0.10, or 0.8 with Debian's fixes."
    fd = in_memory(system_call_filter())
    options = [*_base_options(ShellLimits()), "--remount-ro", "/", "--seccomp", str(fd), "--", "/bin/sh", "-c", ":"]
    try:
        tried = subprocess.run(  # noqa: S603
            [bwrap, *options], capture_output=True, text=True, timeout=30, check=False, pass_fds=[fd]
        )
    except subprocess.TimeoutExpired:
        return "Bubblewrap does not work here: it did not finish an empty command."
    finally:
        os.close(fd)
    if tried.returncode:
        return (
            f"The kernel does not let bubblewrap make a sandbox; it says: {tried.stderr.strip()!r}. User namespaces "
            "must be allowed (in a container: --privileged, or --security-opt seccomp=unconfined)."
        )
    return None


async def run_sandboxed(command: Command, mounts: Sequence[Mount], limits: ShellLimits) -> CommandResult:
    """Run a command in /work, where each mount is under its name. What needs a shell has one, inside."""
    if problem := why_not():
        raise PathFailed(problem)
    if len({mount.name for mount in mounts}) < len(mounts):
        raise PathDenied("Two mounts have one name.")
    with ExitStack() as stack:
        opened = [_open(mount, stack) for mount in mounts]
        guard = await to_the_end(asyncio.to_thread(RepositoryGuard, [one for one in opened if one.mount.writable]))
        plan = _plan(opened, guard, stack)
        options = [*_base_options(limits), *plan.options, "--chdir", WORK, "--remount-ro", "/"]

        async def start(argv: Argv, stdin: int, stdout: int, stderr: int) -> Running:
            return await start_bubble(argv, (stdin, stdout, stderr), replace(plan, options=options), limits)

        try:
            result = await run(command, start, limits)
        finally:
            # Also when time is up or the run is cancelled: all processes are gone by now.
            left = await to_the_end(asyncio.to_thread(guard.disable_new))
        return replace(result, disabled=left)


def _base_options(limits: ShellLimits) -> list[str]:
    options = ["--unshare-all", "--unshare-user", "--disable-userns", "--uid", "1000", "--gid", "1000"]
    options += ["--hostname", "sandbox", "--die-with-parent", "--new-session", "--clearenv", "--cap-drop", "ALL"]
    options += ["--ro-bind", "/usr", "/usr"]
    for name, value in _ENVIRONMENT.items():
        options += ["--setenv", name, value]
    for top in _TOP_FOLDERS:
        path = Path("/", top)
        if path.is_symlink():
            options += ["--symlink", str(path.readlink()), str(path)]
        elif path.is_dir():
            options += ["--ro-bind", str(path), str(path)]
    for path in map(Path, _ETC):
        options += ["--ro-bind-try", str(path), str(path)]
    # Who is root outside could write to parts of /proc without any capability.
    options += ["--proc", "/proc", "--remount-ro", "/proc", "--dev", "/dev"]
    for path in (Path("/proc", name) for name in _PROC):
        if path.exists():
            options += ["--ro-bind", os.devnull, str(path)]  # without devices: it cannot be opened
    for folder in ("/dev/shm", "/tmp"):  # noqa: S108
        options += ["--perms", "1777", "--size", str(max(limits.file_bytes, 4096)), "--tmpfs", folder]
    return [*options, "--remount-ro", "/dev", "--dir", WORK]


@dataclass(frozen=True, slots=True)
class _OpenMount:
    mount: Mount
    fd: int
    folder: Path
    """Where the open folder is now: it may have been moved, with what is protected in it."""

    @property
    def to(self) -> str:
        return f"{WORK}/{self.mount.name}"


class RepositoryGuard:
    """The repositories in the folders that a command can write, before it runs and afterwards."""

    def __init__(self, mounts: Sequence[_OpenMount]) -> None:
        self._mounts = mounts
        self._found = {mount.mount.name: find_repositories(mount.fd) for mount in mounts}
        self._known = frozenset(each for found in self._found.values() for each in found.known)

    def places(self, mount: _OpenMount) -> tuple[tuple[str, ...], ...]:
        """Where there are repositories in a mount."""
        found = self._found.get(mount.mount.name)
        return () if found is None else found.places

    def disable_new(self) -> tuple[str, ...]:
        """Make harmless what has become a repository meanwhile, and tell what it was."""
        told = list[str]()
        for mount in self._mounts:
            renamed, failed = disable_new(mount.fd, self._known)
            told += [f"{mount.mount.name}/{name} was renamed: a repository that a command made" for name in renamed]
            told += [f"{mount.mount.name}/{name}, so a repository there may run programs of its own" for name in failed]
        for each in told:
            logger.warning("A command left a repository: %s.", each)
        return tuple(told)


def _plan(mounts: Sequence[_OpenMount], guard: RepositoryGuard, stack: ExitStack) -> Plan:
    """Options for the mounts, the descriptors that they name, and the files that are to be covered."""
    options, fds, files, places = list[str](), list[int](), list[str](), list[str]()
    seen = host_mounts()

    def bind(fd: int, to: str, writable: bool) -> None:
        stack.callback(os.close, fd)
        fds.append(fd)
        places.append(to)
        options.extend(["--bind-fd" if writable else "--ro-bind-fd", str(fd), to])

    for each in mounts:
        mount, to = each.mount, each.to
        covered = masks(each.folder, _protected(mounts, each), seen, writable=mount.writable)
        if Path() in covered:
            options += _empty(to)
            continue
        bind(os.dup(each.fd), to, mount.writable)
        # A folder around a mask must not be moved away, for another could take its place. A mount point cannot be.
        around = {above for name in covered for above in name.parents if above.parts} if mount.writable else set()
        for name in sorted(around):
            bind(best_opener()(each.fd, name.parts), f"{to}/{name}", True)
        for names in guard.places(each):
            name = Path(*names)
            if not any(name == mask or mask in name.parents for mask in covered):
                for fd, below in _open_place(each.fd, names):
                    bind(fd, "/".join((to, *below)), False)
        for name in sorted(covered):
            places.append(f"{to}/{name}")
            if (each.folder / name).is_dir():
                options += _empty(f"{to}/{name}")
            else:
                files.append(f"{to}/{name}")
    return Plan(options, fds, files, places)


def _open_place(top: int, names: tuple[str, ...]) -> Iterator[tuple[int, tuple[str, ...]]]:
    """Open a repository, or the nearest folder around it that can be opened. A symlink cannot be mounted on."""
    for end in range(len(names), 0, -1):
        try:
            parent = best_opener()(top, names[: end - 1])
        except PermissionError:
            continue
        except OSError:
            return  # gone meanwhile: the command cannot have it either
        try:
            fd = os.open(names[end - 1], os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=parent)
        except PermissionError:
            continue
        except OSError:
            return
        finally:
            os.close(parent)
        if stat.S_ISDIR(mode := os.fstat(fd).st_mode) or stat.S_ISREG(mode):
            yield fd, names[:end]
        else:
            os.close(fd)
        return


def _open(mount: Mount, stack: ExitStack) -> _OpenMount:
    if "/" in mount.name or mount.name in ("", ".", ".."):
        raise PathDenied(f"{mount.name!r} cannot be the name of a mount.")
    fd = _open_folder(mount)
    stack.callback(os.close, fd)
    if os.fstat(fd).st_nlink == 0:
        raise PathDenied(f"The folder of {mount.name!r} cannot be mounted: it was removed.")
    return _OpenMount(mount, fd, Path(f"/proc/self/fd/{fd}").readlink())


def _open_folder(mount: Mount) -> int:
    if mount.fd is not None:
        return os.dup(mount.fd)
    slash = os.open("/", FOLDER_FLAGS)
    try:
        return best_opener()(slash, mount.folder.parts[1:])
    except OSError as exc:
        raise PathDenied(f"The folder of {mount.name!r} cannot be mounted: {exc.strerror}.") from None
    finally:
        os.close(slash)


def _protected(mounts: Sequence[_OpenMount], mount: _OpenMount) -> set[Path]:
    """All protected paths, and, if the folder of this mount was moved, where those in it are now."""
    found = {path for one in mounts for path in one.mount.protected}
    before = mount.mount.folder
    inside = (path.relative_to(before) for path in found if path.is_relative_to(before))
    return found | {mount.folder / name for name in inside}


def _empty(folder: str) -> list[str]:
    return ["--size", "4096", "--tmpfs", folder, "--remount-ro", folder]
