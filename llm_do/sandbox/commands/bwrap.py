"""Commands in a sandbox (bubblewrap) that shows the roots, what is under /usr, and nothing else of the host.

Each program has its own sandbox: no network, no other processes, no capabilities, its own /tmp, and a filter of system
calls (see `seccomp`). The sandbox is set up first and waits; its limits are set from outside; then the program starts.
Its first process is the init process of a process namespace, so the kernel ends all others with it.

The program still sees the kernel, the load and the memory of the host in /proc, and in its mountinfo where its folders
really are: nothing can be mounted on the files of a process, so that cannot be masked.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path

from ...errors import PathDenied, PathFailed
from ...machine import pool
from ...machine.files import closing_fd
from ...machine.waiting import wait_shielded
from ..excerpts import MakeCleaner
from ..roots.states import FileState
from .bwrap_program import BwrapProgram, in_memory, start_program
from .command_line import Command
from .mounts import WORK, Mount, RepositoryGuard, open_mount, plan_mounts
from .processes import Argv, CommandResult, ShellLimits, run_pipelines
from .seccomp import ARCHITECTURES, system_call_filter

_ENVIRONMENT = {"PATH": "/usr/local/bin:/usr/bin:/bin", "HOME": "/tmp", "LANG": "C.UTF-8", "TERM": "dumb"}  # noqa: S108
_TOP_FOLDERS = ("bin", "sbin", "lib", "lib32", "lib64", "libx32")
_PROC = (
    *("cmdline", "bootconfig", "keys", "key-users", "modules", "kallsyms", "interrupts", "timer_list"),
    *("partitions", "diskstats", "swaps", "iomem", "ioports"),
)
"""Files in /proc about the host, not about processes."""
_ETC = ("/etc/ld.so.cache", "/etc/alternatives")
_NEEDED = ("--bind-fd", "--disable-userns", "--size", "--json-status-fd", "--seccomp")
_INSTALL = "Install it (Debian, Ubuntu: apt-get install bubblewrap; Fedora: dnf install bubblewrap)."


@cache
def find_sandbox_problem() -> str | None:
    """Return why commands cannot be sandboxed here, or `None` if they can. This is tried once."""
    if sys.platform != "linux":
        return f"Commands are sandboxed with bubblewrap, which needs Linux; this is {sys.platform}."
    if (machine := os.uname().machine) not in ARCHITECTURES:
        return f"Commands are sandboxed with a filter of system calls, and there is none for {machine}."
    if (bwrap := shutil.which("bwrap")) is None:
        return f"Commands are sandboxed with bubblewrap, and `bwrap` is not on PATH. {_INSTALL}"
    offers = subprocess.run([bwrap, "--help"], capture_output=True, text=True, check=False)  # noqa: S603
    if missing := [option for option in _NEEDED if option not in offers.stdout + offers.stderr]:
        return f"This bubblewrap is too old: it has no {', '.join(missing)}. Use 0.10, or 0.8 with Debian's fixes."
    with closing_fd(in_memory(system_call_filter())) as fd:
        options = [*_base_options(ShellLimits()), "--remount-ro", "/", "--seccomp", str(fd), "--", "/bin/sh", "-c", ":"]
        try:
            tried = subprocess.run(  # noqa: S603
                [bwrap, *options], capture_output=True, text=True, timeout=30, check=False, pass_fds=[fd]
            )
        except subprocess.TimeoutExpired:
            return "Bubblewrap does not work here: it did not finish an empty command."
    if tried.returncode:
        return (
            f"The kernel does not let bubblewrap make a sandbox; it says: {tried.stderr.strip()!r}. User namespaces "
            "must be allowed (in a container: --privileged, or --security-opt seccomp=unconfined)."
        )
    return None


@dataclass(frozen=True, slots=True)
class BwrapRunner:
    """Runs commands in /work, where each mount has its name. A command that needs a shell has one inside."""

    mounts: Sequence[Mount]
    copies: Mapping[str, FileState] = field(default_factory=dict)
    """Files by their path below /work. Programs see a private copy of each, with that content."""

    async def run(
        self, command: Command, limits: ShellLimits, make_cleaner: MakeCleaner | None = None
    ) -> CommandResult:
        if problem := find_sandbox_problem():
            raise PathFailed(problem)
        if len({mount.name for mount in self.mounts}) < len(self.mounts):
            raise PathDenied("Two mounts have one name.")
        with ExitStack() as stack:
            open_mounts = [open_mount(mount, stack) for mount in self.mounts]
            guard = await wait_shielded(pool.run(RepositoryGuard, open_mounts))
            plan = plan_mounts(open_mounts, guard, stack, self.copies)
            plan.options = [*_base_options(limits), *plan.options, "--chdir", WORK, "--remount-ro", "/"]

            async def start(argv: Argv, *streams: int) -> BwrapProgram:
                return await start_program(argv, streams, plan, limits)

            try:
                result = await run_pipelines(command, start, limits, make_cleaner)
            finally:
                # Also if time is up or the run is cancelled: all processes are gone by now.
                disabled = await wait_shielded(pool.run(guard.disable_new))
            return replace(result, disabled=disabled)


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
    # Root outside could write to parts of /proc without any capability.
    options += ["--proc", "/proc", "--remount-ro", "/proc", "--dev", "/dev"]
    for path in (Path("/proc", name) for name in _PROC):
        if path.exists():
            options += ["--ro-bind", os.devnull, str(path)]  # without devices: it cannot be opened
    for folder in ("/dev/shm", "/tmp"):  # noqa: S108
        options += ["--perms", "1777", "--size", str(max(limits.file_bytes, 4096)), "--tmpfs", folder]
    return [*options, "--remount-ro", "/dev", "--dir", WORK]
