"""One program in its sandbox: started with limits, watched, and ended with everything that it started."""

from __future__ import annotations

import asyncio
import json
import os
import re
import resource
import select
import shutil
import signal
import subprocess
from collections.abc import Iterable
from contextlib import suppress

import anyio

from ...errors import PathFailed
from ...machine.files import closing_fd, write_all
from ..roots.system_calls import FOLDER_FLAGS
from .mounts import WORK, Plan, find_self_mounts, host_mounts
from .processes import Argv, ShellLimits, close_all, exit_code, wait_exit
from .seccomp import system_call_filter

_OPEN_FILES = 1024
_WATCH_SECONDS = 0.01
_PER_NAMESPACE = (5, 14)
"""Since this kernel, processes are counted in each user namespace. Before, they were counted for a user as a whole."""


async def start_program(argv: Argv, streams: tuple[int, ...], plan: Plan, limits: ShellLimits) -> BwrapProgram:
    """Set up a sandbox, set its limits and start the program in it. Must not be cancelled."""
    status, status_write = os.pipe()
    block_read, block = os.pipe()
    passed = [status_write, block_read]
    try:
        options = [*plan.options, "--json-status-fd", str(status_write), "--block-fd", str(block_read)]
        for file, state in plan.copies.items():
            assert state.content is not None
            passed.append(in_memory(state.content))
            options += ["--perms", f"{state.mode & 0o555:04o}", "--ro-bind-data", str(passed[-1]), file]
        for file in plan.files:
            passed.append(os.open(os.devnull, os.O_RDONLY))
            options += ["--ro-bind-data", str(passed[-1]), file]
        passed.append(in_memory(system_call_filter()))
        options += ["--seccomp", str(passed[-1])]
        # From a file in memory: the program in the sandbox may read the command line of bubblewrap.
        passed.append(in_memory(os.fsencode("\0".join(options))))
        process = subprocess.Popen(  # noqa: S603, ASYNC220
            ["bwrap", "--args", str(passed[-1]), "--", *argv],  # noqa: S607
            executable=shutil.which("bwrap"),
            stdin=streams[0],
            stdout=streams[1],
            stderr=streams[2],
            pass_fds=[*passed, *plan.fds],
            env={},
            start_new_session=True,  # an interrupt from the terminal is for us, and we end it
        )
    except BaseException:
        close_all(status, block)
        raise
    finally:
        close_all(*passed)
    program = BwrapProgram(argv, process, status, plan)
    try:
        await program.release(block, limits)
    except BaseException:
        await program.stop()
        raise
    finally:
        os.close(block)  # this lets the program start unless it was stopped
    return program


class BwrapProgram:
    def __init__(self, argv: Argv, process: subprocess.Popen[bytes], status: int, plan: Plan) -> None:
        self._argv = argv
        self._plan = plan
        self._copies: MountedCopies | None = None
        self._process = process
        self._outer = os.pidfd_open(process.pid)
        self._init: int | None = None  # the first process inside
        self._init_pid = 0
        self._status = status
        self._status_output = b""
        self._watcher: asyncio.Task[None] | None = None
        self._excess_count: int | None = None
        self._failed = False
        self._stopped = False
        self._replaced: list[str] = []

    async def release(self, block: int, limits: ShellLimits) -> None:
        """Set the limits of the sandbox as soon as it exists, then let the program start."""
        while b"\n" not in self._status_output:
            await anyio.wait_readable(self._status)
            if not (chunk := os.read(self._status, 4096)):
                return  # bubblewrap failed, and ends
            self._status_output += chunk
        pid = int(json.loads(self._status_output.split(b"\n")[0])["child-pid"])
        with suppress(ProcessLookupError):  # it may have failed meanwhile
            self._init, self._init_pid = os.pidfd_open(pid), pid
            _set_limits(pid, limits)
            await self._check_places()
            self._watcher = asyncio.ensure_future(self._watch(limits.processes))
        with suppress(BrokenPipeError):
            os.write(block, b".")

    async def _check_places(self) -> None:
        """Wait until everything is mounted, and check its places: a folder on the way may have been moved."""
        assert self._init is not None
        while not _is_set_up(self._init_pid):
            if select.select([self._init], [], [], 0)[0]:
                return  # bubblewrap failed, and says why
            await anyio.sleep(0.001)
        mounts = host_mounts(self._init_pid)
        mounted, self_mounts = {str(mount.at) for mount in mounts}, find_self_mounts(mounts)
        missing = [place for place in self._plan.places if place not in mounted]
        # Bubblewrap makes a missing folder, while the one that was there is elsewhere and not masked.
        missing += [place for place in self._plan.self_mounts if place not in self_mounts]
        if missing:
            raise PathFailed(f"{missing[0]!r} changed while the sandbox was set up, so nothing was run. Try again.")
        if self._plan.copies:
            self._copies = MountedCopies(self._init_pid, self._plan.copies)

    async def wait(self) -> int | None:
        await wait_exit(self._process.pid, self._outer)
        returned = self._process.wait()
        while chunk := os.read(self._status, 4096):  # bubblewrap has ended, so this pipe has an end
            self._status_output += chunk
        # Bubblewrap reports an exit code only if the program was started.
        self._failed = b"exit-code" not in self._status_output and self._excess_count is None
        return None if self._failed else exit_code(returned)

    async def stop(self) -> None:
        if self._stopped:
            return
        self._stopped = True
        try:
            if self._watcher is not None:
                self._watcher.cancel()
                await asyncio.wait([self._watcher])
            if self._init is None:
                self._process.kill()
            else:
                # It ends after all others in its namespace.
                self._kill()
                await anyio.wait_readable(self._init)
            await wait_exit(self._process.pid, self._outer)
            self._process.wait()
            self._replaced = self._copies.replaced() if self._copies is not None else []
        finally:
            if self._copies is not None:
                self._copies.close()
            close_all(self._init, self._outer, self._status)

    def explain(self, stderr: str) -> str:
        if self._excess_count:
            stderr += f"\nstopped: the program had {self._excess_count} processes and threads, which is too many\n"
        for place in self._replaced:
            stderr += f"\n{place} was replaced while it ran, so it may not have run what was approved\n"
        if not self._failed:
            return stderr
        name = self._argv[0]
        failed = f"bwrap: execvp {name}: "
        if failed in stderr:
            before, _, rest = stderr.partition(failed)
            why, _, after = rest.partition("\n")
            problem = "not found" if why.startswith("No such file") else f"cannot be run: {why}"
            return f"{before}{name}: {problem}. Of the host, only what is under /usr exists here.\n{after}"
        if found := re.search(r"^bwrap: .*$", stderr, re.MULTILINE):
            raise PathFailed(f"The sandbox of {name!r} could not be set up. Bubblewrap says: {found[0][7:]}")
        return stderr

    async def _watch(self, most: int) -> None:
        """End the program if it has too many processes. The kernel does not count those of root."""
        while True:
            await anyio.sleep(_WATCH_SECONDS)
            with suppress(OSError):
                if (count := _count_processes(self._init_pid, most)) > most:
                    self._excess_count = count
                    self._kill()
                    return

    def _kill(self) -> None:
        assert self._init is not None
        with suppress(ProcessLookupError, PermissionError):
            signal.pidfd_send_signal(self._init, signal.SIGKILL)
            if os.geteuid() == 0:  # among very many processes, it would wait long for its turn to end
                os.setpriority(os.PRIO_PROCESS, self._init_pid, -20)


class MountedCopies:
    """The private copies in a sandbox. A program outside that replaces a file removes the mount on it for good."""

    def __init__(self, pid: int, places: Iterable[str]) -> None:
        # The namespace, with its mounts, lives as long as this descriptor.
        self._namespace = os.open(f"/proc/{pid}/ns/mnt", os.O_RDONLY | os.O_CLOEXEC)
        self._root = _open_root(pid)
        self._inodes = {place: self._inode(place) for place in places}

    def replaced(self) -> list[str]:
        return [place for place, inode in self._inodes.items() if self._inode(place) != inode]

    def close(self) -> None:
        close_all(self._namespace, self._root)

    def _inode(self, place: str) -> tuple[int, int] | None:
        with suppress(OSError):
            status = os.stat(place.lstrip("/"), dir_fd=self._root)
            return status.st_dev, status.st_ino
        return None


def _is_set_up(pid: int) -> bool:
    """Return whether bubblewrap has entered the sandbox's root, as it does after everything is mounted."""
    try:
        root = _open_root(pid)
    except OSError:
        return False
    with closing_fd(root):
        # Before that it has our root, which may have such a folder, too.
        return not os.path.samestat(os.fstat(root), os.stat("/")) and WORK.lstrip("/") in os.listdir(root)  # noqa: PTH116, PTH208


def _open_root(pid: int) -> int:
    return os.open(f"/proc/{pid}/root", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)


def in_memory(content: bytes) -> int:
    """Return an unnamed file for one reader, since reading moves its position."""
    fd = os.memfd_create("for-bwrap")
    try:
        write_all(fd, content)
        os.lseek(fd, 0, os.SEEK_SET)
    except BaseException:
        os.close(fd)
        raise
    return fd


def _set_limits(pid: int, limits: ShellLimits) -> None:
    """Set the limits of a waiting process. Its later children inherit them."""
    most = {
        resource.RLIMIT_AS: limits.memory_bytes,
        resource.RLIMIT_FSIZE: limits.file_bytes,
        resource.RLIMIT_NOFILE: _OPEN_FILES,
        resource.RLIMIT_CORE: 0,
    }
    if os.geteuid() == 0:
        os.setpriority(os.PRIO_PROCESS, pid, 10)  # so that very many processes cannot keep us from ending it
    elif tuple(int(part) for part in re.findall(r"\d+", os.uname().release)[:2]) >= _PER_NAMESPACE:
        most[resource.RLIMIT_NPROC] = limits.processes + 1  # and the init process
    for kind, value in most.items():
        _, hard = resource.prlimit(pid, kind)
        value = value if hard == resource.RLIM_INFINITY else min(value, hard)
        resource.prlimit(pid, kind, (value, value))


def _count_processes(pid: int, most: int) -> int:
    """Count the processes and threads in a sandbox, without its init process, as its own /proc shows them."""
    with closing_fd(_open_root(pid)) as root:
        if os.path.samestat(os.fstat(root), os.stat("/")):  # noqa: PTH116
            return 0  # not set up yet: it still has our /proc
        proc = os.open("proc", FOLDER_FLAGS, dir_fd=root)
    with closing_fd(proc):
        processes = [name for name in os.listdir(proc) if name.isdigit() and name != "1"]  # noqa: PTH208
        if len(processes) > most:
            return len(processes)
        threads = 0
        for name in processes:
            with suppress(OSError):  # it ended meanwhile
                threads += os.stat(f"{name}/task", dir_fd=proc).st_nlink - 2
        return threads
