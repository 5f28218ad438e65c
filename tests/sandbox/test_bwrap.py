"""A command sees its mounts and nothing else, keeps to its limits, and leaves nothing behind."""

import asyncio
import ctypes
import errno
import os
import re
import resource
import shutil
import signal
import socket
import stat
import struct
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest

from llm_do.errors import PathDenied, PathFailed
from llm_do.sandbox.commands.bwrap import BwrapRunner, find_sandbox_problem
from llm_do.sandbox.commands.command_line import parse
from llm_do.sandbox.commands.mounts import Mount
from llm_do.sandbox.commands.processes import CommandResult, ShellLimits
from llm_do.sandbox.commands.seccomp import ARCHITECTURES, call_numbers, system_call_filter
from llm_do.sandbox.commands.unsandboxed import UnsandboxedRunner

from ..processes import PATIENCE, start_interruptible

pytestmark = pytest.mark.anyio
LIMITS = ShellLimits(seconds=20)
# One that is there inside, too.
PYTHON = shutil.which("python3", path="/usr/local/bin:/usr/bin:/bin") or pytest.fail("install python3 under /usr")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    path = tmp_path / "data"
    path.mkdir()
    (path / "a.txt").write_text("one\ntwo\n")
    return path


@pytest.fixture(autouse=True)
def nothing_stays_open() -> Iterator[None]:
    before = len(os.listdir("/proc/self/fd"))
    yield
    assert len(os.listdir("/proc/self/fd")) == before
    assert child_processes() == []


def child_processes() -> list[str]:
    """Children of this process, zombies too."""
    return Path(f"/proc/{os.getpid()}/task/{os.getpid()}/children").read_text().split()


def having(word: str) -> list[int]:
    """The processes with a word on their command line."""
    found = []
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            if word.encode() in (entry / "cmdline").read_bytes() and int(entry.name) != os.getpid():
                found.append(int(entry.name))
        except OSError:
            continue
    return found


async def sandboxed(text: str, *mounts: Mount, limits: ShellLimits = LIMITS) -> CommandResult:
    return await BwrapRunner(mounts).run(parse(text), limits)


async def unsandboxed(text: str, folder: Path, limits: ShellLimits = LIMITS) -> CommandResult:
    return await UnsandboxedRunner(folder).run(parse(text), limits)


def ro(path: Path, *protected: Path, name: str = "data", fd: int | None = None) -> Mount:
    return Mount(name=name, folder=path, writable=False, protected=protected, fd=fd)


def rw(path: Path, *protected: Path, name: str = "data", fd: int | None = None) -> Mount:
    return Mount(name=name, folder=path, writable=True, protected=protected, fd=fd)


def test_it_works_here() -> None:
    assert find_sandbox_problem() is None


def test_unavailable_reason(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    check = find_sandbox_problem.__wrapped__
    monkeypatch.setenv("PATH", str(tmp_path))
    assert "`bwrap` is not on PATH" in check() and "apt-get install" in check()
    fake = tmp_path / "bwrap"
    fake.write_text("#!/bin/sh\necho --bind-fd\n")
    fake.chmod(0o755)
    assert "too old: it has no --disable-userns" in check()
    fake.write_text(
        "#!/bin/sh\ncase $1 in --help) echo --bind-fd --disable-userns --size --json-status-fd --seccomp;;\n"
        "*) echo 'No permissions to create new namespace' >&2; exit 1;; esac\n"
    )
    assert "it says: 'No permissions to create new namespace'" in check()
    with monkeypatch.context() as patch:
        patch.setattr(os, "uname", lambda: SimpleNamespace(machine="riscv64"))
        assert check() == "Commands are sandboxed with a filter of system calls, and there is none for riscv64."
    monkeypatch.setattr(sys, "platform", "darwin")
    assert "needs Linux" in check()


async def test_a_sandbox_that_cannot_be_set_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The error says what bubblewrap says."""
    assert find_sandbox_problem() is None  # with the real one
    fake = tmp_path / "bwrap"
    fake.write_text("#!/bin/sh\necho 'bwrap: no room' >&2\nexit 1\n")
    fake.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    with pytest.raises(PathFailed, match="^The sandbox of 'ls' could not be set up. Bubblewrap says: no room$"):
        await sandboxed("ls")


async def test_pipes_and_conditions(folder: Path) -> None:
    done = await sandboxed("cat data/a.txt | tr a-z A-Z | tail -n 1 && pwd && false && echo never", ro(folder))
    assert (done.exit_code, done.stdout, done.stderr) == (1, "TWO\n/work\n", "")
    assert (await sandboxed("false | true")).exit_code == 0
    assert (await sandboxed("true | false")).exit_code == 1
    assert (await sandboxed("yes | head -n 2")).stdout == "y\ny\n"
    assert (await sandboxed("printf '%s,' 'a b' '' '$x' '*'")).stdout == "a b,,$x,*,"
    assert (await sandboxed("sh -c 'kill -9 $$'")).exit_code == 137


async def test_a_shell_where_one_is_needed(folder: Path) -> None:
    done = await sandboxed("for x in data/*; do echo $x; done > data/list; cat data/list; exit 7", rw(folder))
    assert (done.exit_code, done.stdout) == (7, "data/a.txt\ndata/list\n")


async def test_a_program_that_is_not_there(folder: Path) -> None:
    done = await sandboxed("nosuch -x")
    assert (done.exit_code, done.stdout) == (127, "")
    assert done.stderr == "nosuch: not found. Of the host, only what is under /usr exists here.\n"
    done = await sandboxed("data/a.txt", ro(folder))
    assert done.exit_code == 127 and "data/a.txt: cannot be run: Permission denied" in done.stderr
    done = await sandboxed("nosuch | echo b")
    assert (done.exit_code, done.stdout) == (0, "b\n") and "nosuch: not found" in done.stderr


async def test_nothing_else_of_the_host(folder: Path) -> None:
    secret = folder.parent / "secret"
    secret.write_text("secret")
    (folder / "link").symlink_to(secret)
    (folder / "up").symlink_to("..")
    os.environ["LLM_DO_TEST_KEY"] = "key"
    try:
        done = await sandboxed("ls / && ls /etc && env", ro(folder))
    finally:
        del os.environ["LLM_DO_TEST_KEY"]
    words = set(done.stdout.split())
    folders = "bin dev etc lib lib32 lib64 libx32 proc sbin tmp usr work alternatives ld.so.cache"
    variables = "PATH=/usr/local/bin:/usr/bin:/bin HOME=/tmp LANG=C.UTF-8 TERM=dumb PWD=/work"
    assert words <= {*folders.split(), *variables.split()}
    for path in ("/root", "/home", "/etc/shadow", "/etc/passwd", "/etc/hosts", str(secret), "/sys", "data/link"):
        assert (await sandboxed(f"cat {path}", ro(folder))).exit_code == 1, path
    assert (await sandboxed("ls data/up", ro(folder))).stdout == "data\n"
    processes = (await sandboxed("ls /proc", ro(folder))).stdout.split()
    assert {name for name in processes if name.isdigit()} == {"1", "2"}
    # Neither the options of bubblewrap nor its environment say where things are.
    seen = (await sandboxed("cat /proc/1/cmdline /proc/1/environ", ro(folder))).stdout
    assert str(folder) not in seen and "=" not in seen
    assert (await sandboxed("uname -n")).stdout == "sandbox\n"


async def test_nothing_to_write_and_no_privileges(folder: Path) -> None:
    for path in ("/x", "/etc/x", "/work/x", "/dev/x", "/usr/x", "/proc/sys/kernel/core_pattern", "data/x"):
        assert (await sandboxed(f"touch {path} && tee {path}", ro(folder))).exit_code == 1, path
    assert list(folder.iterdir()) == [folder / "a.txt"]
    status = (await sandboxed("cat /proc/self/status")).stdout
    assert all(line.split()[1].strip("0") == "" for line in status.splitlines() if line.startswith("Cap"))
    assert "NoNewPrivs:\t1" in status
    assert (await sandboxed("sh -c 'unshare -U true'")).exit_code == 1


async def test_descriptors_are_closed(folder: Path) -> None:
    (folder / "hidden").touch()
    fd = os.open(folder, os.O_RDONLY)
    os.set_inheritable(fd, True)
    try:
        mount = rw(folder, folder / "hidden", fd=fd)
        done = await sandboxed("ls /proc/self/fd", mount)
    finally:
        os.close(fd)
    assert done.stdout.split() == ["0", "1", "2", "3"]  # and 3 is this listing


async def test_no_network() -> None:
    program = (
        "import socket, sys\nfor kind, address in [(2, ('127.0.0.1', {port})), (1, '\\0llm-do-{port}')]:\n"
        "    try: socket.socket(kind).connect(address)\n    except OSError as e: print(e.errno)\n"
        "    else: print('there')"
    )
    with socket.create_server(("127.0.0.1", 0)) as server, socket.socket(socket.AF_UNIX) as other:
        port = server.getsockname()[1]
        other.bind(f"\0llm-do-{port}")
        other.listen()
        text = program.format(port=port).replace("'", '"')
        assert (await unsandboxed(f"{PYTHON} -c '{text}'", Path("/"))).stdout == "there\nthere\n"
        done = await sandboxed(f"{PYTHON} -c '{text}'")
    assert done.stdout == "111\n97\n"


def answers(machine: str, number: int, *arguments: int, architecture: int | None = None) -> str:
    """What the filter of a machine says to a call: as the kernel would, but also for machines that this is not."""
    program = [*struct.iter_unpack("<HBBI", system_call_filter(machine))]
    architecture = ARCHITECTURES[machine] if architecture is None else architecture
    values = [*arguments, *[0] * (6 - len(arguments))]
    data = struct.pack("<IIQ6Q", number & 0xFFFFFFFF, architecture, 0, *(value & (1 << 64) - 1 for value in values))
    at = loaded = 0
    while True:
        code, yes, no, operand = program[at]
        at += 1
        match code:
            case 0x20:
                (loaded,) = struct.unpack_from("<I", data, operand)
            case 0x54:
                loaded &= operand
            case 0x15 | 0x35 | 0x45:
                holds = {0x15: loaded == operand, 0x35: loaded >= operand, 0x45: bool(loaded & operand)}[code]
                at += yes if holds else no
            case 0x06:
                kind = {0x7FFF0000: "allow", 0x80000000: "kill"}.get(operand)
                return kind or errno.errorcode[operand ^ 0x50000]
            case _:
                pytest.fail(f"the filter has an instruction {code:#x}")


HIGH = 1 << 32  # the kernel does not look at this half of the arguments


@pytest.mark.parametrize("machine", ARCHITECTURES)
def test_the_filter_of_each_machine(machine: str) -> None:
    calls = call_numbers(machine)

    def says(call: str, *arguments: int) -> str:
        return answers(machine, calls[call], *arguments)

    for bits in (0o4000, 0o2000, 0o6755, 0o4000 | HIGH):
        assert says("fchmod", 3, bits) == "EPERM"
        for call in ("fchmodat", "fchmodat2", "mkdirat", "mknodat"):
            assert says(call, 3, 0, bits) == "EPERM"
        for flags in (os.O_CREAT, os.O_CREAT | os.O_WRONLY | HIGH, os.O_TMPFILE | os.O_RDWR):
            assert says("openat", -100, 0, flags, bits) == "EPERM"
        assert says("openat", -100, 0, os.O_RDWR | os.O_DIRECTORY, bits) == "allow"  # then it is no mode
    for mode in (0o777, 0o1777, 0o644, 0o4000 << 32):
        assert says("fchmod", 3, mode) == says("fchmodat", 3, 0, mode) == "allow"
        assert says("openat", 3, 0, os.O_CREAT, mode) == "allow"
    families = {family for family in range(64) if says("socket", family | HIGH, 1, 0) == "allow"}
    assert families == {socket.AF_INET, socket.AF_INET6, socket.AF_NETLINK}
    assert says("socket", socket.AF_NETLINK, 3, 15) == "EAFNOSUPPORT"
    pairs = {(f, t) for f in range(64) for t in range(16) if says("socketpair", f, t | 0o2000000) == "allow"}
    assert pairs == {(socket.AF_UNIX, socket.SOCK_STREAM), (socket.AF_UNIX, socket.SOCK_SEQPACKET)}
    assert says("clone", signal.SIGCHLD) == says("clone", 0x3D0F00) == "allow"  # a process, a thread
    for shift in (17, *range(25, 31)):
        assert says("clone", 1 << shift | signal.SIGCHLD) == "EPERM"
    assert says("openat2") == says("clone3") == says("io_uring_setup") == "ENOSYS"
    for number in range(470):
        if number not in calls.values():
            assert answers(machine, number, *[-1] * 6) == "allow"
    for number in (470, 521, 0x40000000, 0x40000000 | 90, 0x7FFFFFFF, -1):
        assert answers(machine, number) == "ENOSYS"
    for other in (0x40000003, 0x40000028, 0):  # 32 bit
        assert answers(machine, 1, architecture=other) == "kill"


def test_no_machine_lacks_a_rule() -> None:
    old = {"open", "creat", "chmod", "mkdir", "mknod"}  # those that are not everywhere
    assert call_numbers("x86_64").keys() - call_numbers("aarch64").keys() == old
    assert not call_numbers("aarch64").keys() - call_numbers("x86_64").keys()
    for call, arguments in {
        "open": (0, os.O_CREAT),
        "creat": (0,),
        "chmod": (0,),
        "mkdir": (0,),
        "mknod": (0,),
    }.items():
        assert answers("x86_64", call_numbers("x86_64")[call], *arguments, 0o4755) == "EPERM"


RUN_AS_OWNER = """
import ctypes, errno, os, sys
calls, mode, errors = CALLS, int(sys.argv[1], 8), set()
libc = ctypes.CDLL(None, use_errno=True)
os.umask(0)
open("f", "w").close()
handle = os.open("f", os.O_RDONLY)
create, regular = os.O_CREAT | os.O_WRONLY, 0o100000
how = (ctypes.c_uint64 * 3)(create, mode, 0)
for call, *arguments in [
    ("chmod", b"f", mode), ("fchmod", handle, mode), ("fchmodat", -100, b"f", mode), ("fchmodat2", -100, b"f", mode, 0),
    ("open", b"1", create, mode), ("openat", -100, b"2", create, mode), ("openat2", -100, b"3", how, 24),
    ("creat", b"4", mode), ("mknod", b"5", regular | mode, 0), ("mknodat", -100, b"6", regular | mode, 0),
    ("mkdir", b"7", mode), ("mkdirat", -100, b"8", mode),
]:
    if call in calls and libc.syscall(calls[call], *arguments) < 0:
        errors.add(errno.errorcode[ctypes.get_errno()])
try:
    hidden = os.open(".", os.O_TMPFILE | os.O_RDWR, mode)
    os.link(f"/proc/self/fd/{hidden}", "9", src_dir_fd=hidden)  # so that it follows the link
except OSError as exc:
    errors.add(errno.errorcode[exc.errno])
print(*sorted(errors))
"""


def special(folder: Path) -> set[str]:
    """What is in a folder and runs as its owner or group."""
    bits = stat.S_ISUID | stat.S_ISGID
    return {path.name for path in (folder, *folder.rglob("*")) if path.lstat().st_mode & bits}


@pytest.mark.parametrize("mode", ["4755", "2755", "6711"])
async def test_no_file_that_runs_as_its_owner(folder: Path, mode: str) -> None:
    program = RUN_AS_OWNER.replace("CALLS", str(call_numbers(os.uname().machine)))
    (folder / "attack.py").write_text(program)
    done = await sandboxed(f"cd data && {PYTHON} attack.py {mode}", rw(folder))
    assert (done.exit_code, done.stdout) == (0, "ENOSYS EPERM\n"), done.stderr
    assert special(folder) == set()
    for text in (
        f"cp /usr/bin/id data/id && chmod {mode} data/id",
        "cp /usr/bin/id data/id2 && chmod ug+s data/id2",
        f"install -m {mode} /usr/bin/id data/id3",
        f"mkdir -m {mode} data/folder",
        f"perl -e 'umask 0; sysopen(F, \"data/p\", 0101, 0{mode}) or exit 1; close F'",
        f"perl -e 'chmod(0{mode}, \"data\") or exit 1'",
    ):
        assert (await sandboxed(text, rw(folder))).exit_code != 0, text
        assert special(folder) == set(), text
    # Who cannot give a file to its owner gets a copy without the bit, and no error.
    done = await sandboxed("cp -p /usr/bin/passwd data/passwd", rw(folder))
    assert special(folder) == set() and (done.exit_code != 0 or os.getuid() != 0)
    done = await sandboxed("chmod 1777 data && chmod 700 data/id && mkdir -m 750 data/other", rw(folder))
    assert done.exit_code == 0, done.stderr
    assert [stat.S_IMODE((folder / name).stat().st_mode) for name in (".", "id", "other")] == [0o1777, 0o700, 0o750]
    # And this is what the attack does elsewhere.
    shutil.rmtree(folder)
    folder.mkdir()
    (folder / "attack.py").write_text(program)
    await unsandboxed(f"{PYTHON} attack.py {mode}", folder)
    left = special(folder)
    shutil.rmtree(folder)
    assert {"f", "2", "6", "9"} <= left


async def test_an_archive_brings_no_file_that_runs_as_its_owner(folder: Path) -> None:
    tool = folder / "tool"
    tool.touch()
    tool.chmod(0o6755)
    subprocess.run(["tar", "cf", "a.tar", "tool"], cwd=folder, check=True)  # noqa: ASYNC221
    tool.unlink()
    await sandboxed("tar xpf data/a.tar -C data", rw(folder))
    assert special(folder) == set()


TALK = """
import os, socket, sys
unix, tried = socket.AF_UNIX, []
def attempt(what):
    try: what()
    except OSError: tried.append(0)
    else: tried.append(1)
def pair(kind): return socket.socketpair(unix, kind)
def left(kind):  # one whose partner is gone
    one, other = pair(kind)
    other.close()
    return one
for path in sys.argv[1:]:
    for kind in (socket.SOCK_STREAM, socket.SOCK_DGRAM, socket.SOCK_SEQPACKET, socket.SOCK_RAW):
        attempt(lambda: socket.socket(unix, kind).connect(path))
        attempt(lambda: socket.socket(unix, kind).sendto(b"x", path))
        attempt(lambda: pair(kind)[0].connect(path))
        attempt(lambda: pair(kind)[0].sendto(b"x", path))
        attempt(lambda: left(kind).connect(path))
        attempt(lambda: left(kind).sendto(b"x", path))
        attempt(lambda: left(kind).sendmsg([b"x"], [], 0, path))
print(sum(tried))
"""


@pytest.mark.parametrize("writable", [False, True])
async def test_no_socket_that_is_a_file(folder: Path, writable: bool) -> None:
    kinds = {"stream": socket.SOCK_STREAM, "dgram": socket.SOCK_DGRAM, "packet": socket.SOCK_SEQPACKET}
    ears = []
    here = Path.cwd()
    os.chdir(folder)  # the address must be short
    try:
        for name, kind in kinds.items():
            ears.append(socket.socket(socket.AF_UNIX, kind))
            ears[-1].bind(name)
            ears[-1].setblocking(False)
            if kind != socket.SOCK_DGRAM:
                ears[-1].listen(100)

        def heard(ear: socket.socket) -> bool:
            try:
                if ear.type == socket.SOCK_DGRAM:
                    ear.recv(1)
                else:
                    ear.accept()[0].close()
            except BlockingIOError:
                return False
            return True

        (folder / "talk.py").write_text(TALK)
        mount = rw(folder) if writable else ro(folder)
        done = await sandboxed(f"{PYTHON} data/talk.py data/stream data/dgram data/packet", mount)
        # What succeeds is a message to a partner.
        assert done.exit_code == 0, done.stderr
        assert [heard(ear) for ear in ears] == [False] * 3
        await unsandboxed(f"{PYTHON} talk.py stream dgram packet", folder)
        assert [heard(ear) for ear in ears] == [True] * 3
    finally:
        os.chdir(here)
        for ear in ears:
            ear.close()


async def test_families_of_sockets() -> None:
    text = (
        "import socket\nfound = []\nfor family in range(64):\n for kind in range(1, 8):\n  try:\n"
        "   socket.socket(family, kind).close(); found.append(family)\n  except OSError: pass\nprint(*sorted({*found}))"
    )
    assert (await sandboxed(f"{PYTHON} -c '{text}'")).stdout in ("2 10 16\n", "2 16\n")
    text = "import socket; print([s.family.name for s in socket.socketpair()], socket.if_nameindex()[0][1])"
    assert (await sandboxed(f"{PYTHON} -c '{text}'")).stdout == "['AF_UNIX', 'AF_UNIX'] lo\n"


async def test_calls_that_are_not_for_programs(folder: Path) -> None:
    program = (
        "import ctypes, errno, sys\nlibc = ctypes.CDLL(None, use_errno=True)\n"
        "for number in map(int, sys.argv[1:]):\n ctypes.set_errno(0)\n"
        " print(errno.errorcode.get(libc.syscall(number, 0, 0, 0, 0, 0, 0) < 0 and ctypes.get_errno()))\n"
    )
    (folder / "call.py").write_text(program)
    numbers = call_numbers(os.uname().machine)
    missing = ("io_uring_setup", "io_uring_enter", "openat2", "clone3", "open_tree", "fsopen", "mount_setattr")
    denied = (
        *("mount", "umount2", "unshare", "setns", "ptrace", "process_vm_readv", "pidfd_getfd", "keyctl", "add_key"),
        *("request_key", "syslog", "bpf", "perf_event_open", "userfaultfd", "open_by_handle_at", "chroot"),
    )
    for names, error in ((missing, "ENOSYS"), (denied, "EPERM")):
        done = await sandboxed(f"{PYTHON} data/call.py {' '.join(str(numbers[name]) for name in names)}", ro(folder))
        assert done.stdout.split() == [error] * len(names)
    done = await sandboxed(f"{PYTHON} data/call.py 470 521 {0x40000000 | 39} {0x40000000 | 90}", ro(folder))
    assert done.stdout.split() == ["ENOSYS"] * 4
    # The first process in the sandbox has the filter, too: no program can make it act for it. It is set a moment after
    # that process started the program.
    wait = (
        "import time\nuntil = time.monotonic() + 60\n"
        "while 'Seccomp:\\t2' not in open('/proc/1/status').read() and time.monotonic() < until:\n time.sleep(0.01)\n"
        "for name in ('1', 'self'):\n"
        " print(*[line for line in open(f'/proc/{name}/status') if line.startswith('Seccomp:')], end='')\n"
    )
    (folder / "wait.py").write_text(wait)
    assert (await sandboxed(f"{PYTHON} data/wait.py", ro(folder))).stdout == "Seccomp:\t2\n" * 2


@pytest.mark.skipif(os.uname().machine != "x86_64" or not shutil.which("gcc"), reason="for x86_64, with a compiler")
async def test_the_calls_of_32_bit(folder: Path) -> None:
    (folder / "a.c").write_text(
        '#include <stdio.h>\nint main(void) { int n; __asm__ volatile("int $0x80" : "=a"(n) : "a"(20) : "memory");'
        ' printf("%d\\n", n > 0); return 0; }\n'
    )
    done = await sandboxed("gcc -o data/a data/a.c && data/a", rw(folder))
    assert (done.exit_code, done.stdout) == (128 + signal.SIGSYS, ""), done.stderr


POOL = """
import asyncio, concurrent.futures, multiprocessing, subprocess, tempfile, threading
def double(x): return 2 * x
if __name__ == "__main__":
    for method in ("fork", "spawn"):
        with multiprocessing.get_context(method).Pool(2) as pool: print(sum(pool.map(double, range(10))))
    with concurrent.futures.ProcessPoolExecutor(2) as pool: print(sum(pool.map(double, range(10))))
    with concurrent.futures.ThreadPoolExecutor(4) as pool: print(sum(pool.map(double, range(10))))
    one, other = multiprocessing.Pipe()
    one.send("pipe"); print(other.recv())
    print(subprocess.run("echo sub; (exit 3)", shell=True, capture_output=True, text=True))
    async def main():
        process = await asyncio.create_subprocess_exec("echo", "async", stdout=-1)
        print((await process.communicate())[0])
        async def serve(reader, writer): writer.write(b"served"); writer.close()
        server = await asyncio.start_server(serve, "127.0.0.1", 0)
        async with server:
            reader, writer = await asyncio.open_connection(*server.sockets[0].getsockname())
            print(await reader.read()); writer.close()
    asyncio.run(main())
    with tempfile.TemporaryFile() as file: print(file.write(b"x"))
"""

ORDINARY = {
    "git": (
        "cd data && git init -q r && cd r && echo x > f && git add f"
        " && git -c user.name=a -c user.email=a@b commit -qm m && git gc -q && git log --format=%s"
        " && git clone -q . ../copy && cat ../copy/f",
        "m\nx\n",
    ),
    "gcc": (
        "cd data && printf '#include <stdio.h>\\nint main(void){puts(\"hello\");}\\n' > h.c"
        " && printf 'h: h.c\\n\\tgcc -pipe -O2 -o h h.c\\n' > Makefile && make -sj2 && ./h",
        "hello\n",
    ),
    "tar": (
        "cd data && mkdir t && cp a.txt t && tar czf t.tgz t && rm -r t && tar xzf t.tgz && cat t/a.txt",
        "one\ntwo\n",
    ),
    "find": ("find data -type f -name 'a*' -exec sort -r --parallel=2 {} + | sed s/o/0/", "tw0\n0ne\n"),
    "sed": (
        "cd data && sed -i s/one/1/ a.txt && cp -a a.txt b && mv b c && ln -s c d && cat d",
        "1\ntwo\n",
    ),
    "perl": ('perl -e \'print `echo x`; open(F, "-|", "cat data/a.txt"); print <F>\'', "x\none\ntwo\n"),
    "node": (
        'node -e \'const c = require("child_process"); console.log(c.execSync("echo x").toString(),'
        ' require("fs").readFileSync("data/a.txt", "utf8"))\'',
        "x\n one\ntwo\n\n",
    ),
}


@pytest.mark.parametrize("program", ORDINARY)
async def test_ordinary_programs(folder: Path, program: str) -> None:
    if not shutil.which(program, path="/usr/local/bin:/usr/bin:/bin"):
        pytest.skip(f"there is no {program}")
    text, expected = ORDINARY[program]
    # Some reserve much more memory than they use.
    done = await sandboxed(text, rw(folder), limits=ShellLimits(seconds=30, memory_bytes=1 << 40))
    assert (done.exit_code, done.stdout) == (0, expected), done.stderr


async def test_ordinary_python(folder: Path) -> None:
    (folder / "pool.py").write_text(POOL)
    done = await sandboxed(f"{PYTHON} -W error data/pool.py", ro(folder), limits=ShellLimits(seconds=40))
    assert done.exit_code == 0, done.stderr
    assert done.stdout.startswith("90\n90\n90\n90\npipe\n")
    assert all(word in done.stdout for word in ("stdout='sub\\n'", "b'async\\n'", "b'served'"))


async def test_what_proc_tells(folder: Path) -> None:
    for name in ("cmdline", "keys", "key-users", "modules", "partitions", "diskstats", "interrupts"):
        if Path("/proc", name).exists():
            done = await sandboxed(f"cat /proc/{name}")
            assert (done.exit_code, done.stdout) == (1, ""), name
            assert (await sandboxed(f"chmod 0 /proc/{name}")).exit_code == 1, name
    assert stat.S_IMODE(Path(os.devnull).stat().st_mode) == 0o666
    assert "MemTotal" in (await sandboxed("cat /proc/meminfo /proc/cpuinfo")).stdout


async def test_modes_are_those_of_each_mount(folder: Path) -> None:
    below = folder / "below"
    below.mkdir()
    mounts = [ro(below, name="read"), rw(folder, name="all"), ro(folder, name="same")]
    assert (await sandboxed("touch read/x", *mounts)).exit_code == 1
    assert (await sandboxed("touch same/below/x", *mounts)).exit_code == 1
    assert (await sandboxed("touch all/below/x", *mounts)).exit_code == 0
    assert (below / "x").stat().st_uid == os.getuid()
    with pytest.raises(PathDenied, match="Two mounts have one name"):
        await sandboxed("ls", *mounts, mounts[0])
    with pytest.raises(PathDenied, match="cannot be the name"):
        await sandboxed("ls", ro(folder, name="../x"))
    with pytest.raises(PathDenied, match="cannot be mounted: No such file"):
        await sandboxed("ls", ro(folder / "none"))
    (folder / "link").symlink_to(below)
    with pytest.raises(PathDenied, match="cannot be mounted: Too many levels of symbolic links"):
        await sandboxed("ls", ro(folder / "link"))


async def test_an_open_folder_is_mounted_whatever_takes_its_place(folder: Path) -> None:
    (folder / "git").mkdir()
    (folder / "git" / "key").write_text("secret")
    outside = folder.parent / "outside"
    outside.mkdir()
    (outside / "secret").touch()
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        folder.rename(folder.parent / "moved")
        folder.symlink_to(outside)
        done = await sandboxed("ls -R data && touch data/new", rw(folder, folder / "git", fd=fd))
    finally:
        os.close(fd)
    assert (done.exit_code, done.stdout.split()) == (0, ["data:", "a.txt", "git", "data/git:"])
    assert not (outside / "new").exists()


async def test_a_folder_that_was_removed(folder: Path) -> None:
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    shutil.rmtree(folder)
    try:
        with pytest.raises(PathDenied, match="it was removed"):
            await sandboxed("ls", ro(folder, fd=fd))
    finally:
        os.close(fd)
    with pytest.raises(PathFailed, match="'ls' cannot be started: No such file"):
        await unsandboxed("ls", folder)


async def test_a_swap_while_it_is_mounted(folder: Path) -> None:
    """Whoever swaps the folder all the time makes commands fail, and never shows them another folder."""
    outside, aside = folder.parent / "outside", folder.parent / "aside"
    outside.mkdir()
    (outside / "secret").touch()
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    over = threading.Event()

    def swap() -> None:
        while not over.is_set():
            folder.rename(aside)
            folder.symlink_to(outside)
            folder.unlink()
            aside.rename(folder)

    thread = threading.Thread(target=swap)
    thread.start()
    printed = set()
    try:
        for _ in range(30):
            try:
                printed.add((await sandboxed("ls data", ro(folder, fd=fd))).stdout)
            except PathFailed:
                printed.add("")
    finally:
        over.set()
        thread.join()
        os.close(fd)
    assert printed <= {"", "a.txt\n"}


async def test_protected_paths(folder: Path) -> None:
    git, key = folder / "sub" / "git", folder / "sub" / "deep" / "key"
    for path in (git, key.parent):
        path.mkdir(parents=True)
    for path in (git / "config", key):
        path.write_text("secret")
    (folder / "link").symlink_to("sub/git")
    both = (git, key)
    for mounts in (
        [rw(folder, *both)],
        [ro(folder, *both)],
        [rw(folder / "sub", name="other"), rw(folder, *both)],
        [ro(folder), rw(folder / "sub", *both, name="other")],
        [rw(folder.parent, *both, name="above"), ro(folder)],
    ):
        done = await sandboxed("grep -rs secret /work", *mounts)
        assert (done.exit_code, done.stdout) == (1, "")
        assert (await sandboxed("ls data/link", *mounts)).stdout == ""
        for attack in (
            "rm -rf data/sub",
            "mv data/sub data/x",
            "mv data/sub/deep data/x",
            "mv data/sub/git data/x",
            "touch data/sub/git/x",
            "tee data/sub/deep/key",
            "umount data/sub/git",
            "ln data/sub/deep/key data/x",
        ):
            assert (await sandboxed(attack, *mounts)).exit_code != 0, attack
    assert (git / "config").read_text() == key.read_text() == "secret"
    assert sorted(path.name for path in git.iterdir()) == ["config"]
    found = subprocess.run(["grep", "-rl", "secret", folder], capture_output=True, text=True).stdout.split()  # noqa: ASYNC221
    assert sorted(found) == sorted(map(str, [git / "config", key]))
    # A mount that is protected as a whole is empty, also if it is a part of something protected.
    assert (await sandboxed("ls data/", rw(git, git))).stdout == ""
    assert (await sandboxed("ls data/", rw(key.parent, folder))).stdout == ""


async def test_protected_paths_that_cannot_be_covered(folder: Path) -> None:
    missing, link = folder / "sub" / "none", folder / "link"
    link.symlink_to("a.txt")
    with pytest.raises(PathDenied, match="'sub/none' is protected and does not exist"):
        await sandboxed("ls", rw(folder, missing))
    with pytest.raises(PathDenied, match="'link' is protected, and a symlink"):
        await sandboxed("ls", rw(folder, link))
    assert (await sandboxed("cat data/link data/a.txt", ro(folder, missing, link))).stdout == ""


async def test_protected_paths_that_the_host_mounts_elsewhere(folder: Path) -> None:
    kept, seen, part = folder.parent / "kept", folder / "seen", folder / "part"
    for path in (kept / "git" / "below", seen, part):
        path.mkdir(parents=True)
    (kept / "git" / "below" / "key").write_text("secret")
    for source, to in ((kept, seen), (kept / "git" / "below", part)):
        made = subprocess.run(["mount", "--bind", source, to], check=False, capture_output=True, text=True)  # noqa: ASYNC221
        if made.returncode:
            pytest.skip(f"mounting is not possible here: {made.stderr}")
    try:
        done = await sandboxed("grep -rs secret /work", rw(folder, kept / "git"))
        assert (await sandboxed("ls data/seen data/part", rw(folder))).stdout.split() == [
            *["data/part:", "key", "data/seen:", "git"]
        ]
    finally:
        subprocess.run(["umount", seen, part], check=True)  # noqa: ASYNC221
    assert (done.exit_code, done.stdout) == (1, "")


async def test_memory(folder: Path) -> None:
    limits = ShellLimits(seconds=20, memory_bytes=200_000_000)
    done = await sandboxed(f"{PYTHON} -c 'print(len(bytes(400000000)))'", limits=limits)
    assert done.exit_code == 1 and "MemoryError" in done.stderr
    # And not by way of files in memory.
    limits = ShellLimits(seconds=20, file_bytes=1_000_000)
    for place in ("/tmp", "/dev/shm"):
        text = f"for i in 1 2 3; do head -c 700000 /dev/zero > {place}/$i || echo full; done"
        assert "full" in (await sandboxed(text, limits=limits)).stdout


@pytest.mark.parametrize("kind", ["sandboxed", "unsandboxed"])
async def test_a_large_file(folder: Path, kind: str) -> None:
    limits = ShellLimits(seconds=20, file_bytes=1_000_000)
    if kind == "sandboxed":
        done = await sandboxed("dd if=/dev/zero of=/work/data/big bs=100000 count=50", rw(folder), limits=limits)
    else:
        done = await unsandboxed("dd if=/dev/zero of=big bs=100000 count=50", folder, limits)
    assert done.exit_code in (1, 128 + signal.SIGXFSZ)
    assert (folder / "big").stat().st_size <= 1_000_000


async def test_other_limits() -> None:
    done = await sandboxed("ulimit -c; ulimit -n; cat /proc/self/limits")
    assert done.stdout.startswith("0\n1024\n")


async def test_much_output() -> None:
    limits = ShellLimits(seconds=1, output_characters=2000)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    done = await sandboxed("sh -c 'echo start; exec yes'", limits=limits)
    assert done.timed_out and done.truncated and done.exit_code == 124
    omitted = re.search(r"\(([0-9,]+) characters\) are left out here\.\]", done.stdout)
    assert omitted is not None and int(omitted[1].replace(",", "")) > 1_000_000
    assert done.stdout.startswith("start\ny\n") and done.stdout.endswith("y\n") and len(done.stdout) < 2100
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 20_000  # KiB
    done = await sandboxed("sh -c 'seq 100 >&2; echo end >&2'", limits=ShellLimits(output_characters=20))
    assert done.stderr.endswith("end\n") and done.truncated and not done.timed_out
    assert not (await sandboxed("seq 5", limits=ShellLimits(output_characters=10))).truncated


def assert_too_many(done: CommandResult) -> None:
    """The kernel does not let a program have more processes. Those of root it does not count, and we end them."""
    assert done.exit_code in (1, 2, 137)
    if os.getuid() == 0:
        assert done.exit_code == 137 and "processes and threads, which is too many" in done.stderr


@pytest.mark.parametrize("wait", ["", "; sleep 1000"])
async def test_a_fork_bomb(wait: str) -> None:
    mark = f"5{os.getpid()}.5"
    limits = ShellLimits(seconds=PATIENCE, processes=30)
    done = await sandboxed(f"b() {{ sleep {mark} & b & b; }}; b{wait}", limits=limits)
    assert_too_many(done)
    assert not done.timed_out
    assert having(mark) == []


async def test_many_threads() -> None:
    limits = ShellLimits(seconds=20, processes=30, memory_bytes=1 << 36)
    text = "import threading, time\nfor _ in range(60): threading.Thread(target=time.sleep, args=(9,)).start()"
    done = await sandboxed(f"{PYTHON} -c '{text}'", limits=limits)
    assert_too_many(done)


STUBBORN = """
import os, signal, sys, time
signal.signal(signal.SIGTERM, signal.SIG_IGN); signal.signal(signal.SIGHUP, signal.SIG_IGN)
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        while True: time.sleep(1)
    os._exit(0)
print("ready", flush=True)
while sys.argv[1] != "leave": time.sleep(1)
"""


@pytest.mark.parametrize("kind", ["sandboxed", "unsandboxed"])
@pytest.mark.parametrize("end", ["timeout", "cancel", "leave"])
async def test_nothing_is_left(folder: Path, kind: str, end: str) -> None:
    (folder / "stubborn.py").write_text(STUBBORN)
    mark = f"mark-{os.urandom(8).hex()}"
    limits = ShellLimits(seconds=3 if end == "timeout" else PATIENCE)
    name = "data/stubborn.py" if kind == "sandboxed" else "stubborn.py"
    command = f"{PYTHON} {name} {end} {mark} | cat"

    async def run() -> CommandResult:
        if kind == "sandboxed":
            return await sandboxed(command, ro(folder), limits=limits)
        return await unsandboxed(command, folder, limits)

    task = asyncio.create_task(run())
    if end == "cancel":
        async with asyncio.timeout(PATIENCE):
            while len([pid for pid in having(mark) if "python" in Path(f"/proc/{pid}/comm").read_text()]) < 2:
                await asyncio.sleep(0.01)
        task.cancel()
        await asyncio.sleep(0)
        task.cancel()  # who is impatient does not stop the cleaning up
        with pytest.raises(asyncio.CancelledError):
            await task
    else:
        done = await task
        assert (done.timed_out, done.exit_code, done.stdout) == (end == "timeout", 124 * (end == "timeout"), "ready\n")
    assert having(mark) == []


async def test_cancelled_at_any_moment(folder: Path) -> None:
    mark = f"7{os.getpid()}.7"
    for step in range(24):
        task = asyncio.create_task(sandboxed(f"sleep {mark} | sleep {mark}", ro(folder)))
        await asyncio.sleep(step * 0.0015)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert having(mark) == []


def test_an_interrupt(folder: Path) -> None:
    mark = f"8{os.getpid()}.8"
    program = (
        "import asyncio\nfrom llm_do.sandbox.commands.command_line import parse\n"
        "from llm_do.sandbox.commands.bwrap import BwrapRunner, ShellLimits\n"
        f"asyncio.run(BwrapRunner([]).run(parse('sleep {mark} | cat'), ShellLimits()), debug=True)"
    )
    process = start_interruptible([sys.executable, "-X", "dev", "-c", program], stderr=subprocess.PIPE)
    while not any(Path(f"/proc/{pid}/comm").read_text() == "sleep\n" for pid in having(mark)):
        time.sleep(0.02)
    process.send_signal(signal.SIGINT)
    _, said = process.communicate()
    assert having(mark) == []
    assert said.rstrip().endswith("KeyboardInterrupt") and "Warning" not in said and "never retrieved" not in said


async def test_the_loop_goes_on(folder: Path) -> None:
    """While commands run, and several at once: they wait for something that is done in this loop."""
    wait = "while test ! -e data/go; do sleep 0.05; done"
    commands = [f"sh -c 'touch data/started-{i}; {wait}; echo {i}'" for i in range(8)]
    running = asyncio.gather(*(sandboxed(command, rw(folder)) for command in commands))
    while len(list(folder.glob("started-*"))) < len(commands):
        assert not running.done(), running.result()
        await asyncio.sleep(0.01)
    (folder / "go").touch()
    assert [(one.stdout, one.stderr) for one in await running] == [(f"{i}\n", "") for i in range(8)]


async def test_without_a_sandbox(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LLM_DO_TEST_KEY", "key")
    done = await unsandboxed("cat a.txt | wc -l && pwd && env", folder)
    count, cwd, *variables = done.stdout.split()
    assert (count, cwd) == ("2", str(folder))
    assert {line.partition("=")[0] for line in variables} <= {"PATH", "HOME", "LANG", "PWD", "LLM_DO_COMMAND"}
    done = await unsandboxed("nosuch x", folder)
    assert (done.exit_code, done.stderr) == (127, "nosuch: not found.\n")
    assert (await unsandboxed("exit 3", folder)).exit_code == 3
    assert (await unsandboxed("kill -9 $$", folder)).exit_code == 137
    assert (await unsandboxed("printf '%s,' 'a b' '' '$x'", folder)).stdout == "a b,,$x,"
    limits = ShellLimits(memory_bytes=200_000_000)
    done = await unsandboxed(f"{PYTHON} -c 'bytes(400000000)'", folder, limits)
    assert "MemoryError" in done.stderr


@pytest.mark.skipif(os.getuid() != 0, reason="this is what everybody else tests all the time")
def test_as_another_user() -> None:
    """Who is not root has the same sandbox, and there the kernel counts the processes."""
    home = Path(tempfile.mkdtemp())
    home.chmod(0o777)
    read, write = os.pipe()
    if (child := os.fork()) == 0:
        try:  # a process of our own that gives up its rights: another user may not be able to run this Python
            os.setgroups([])
            os.setresgid(65534, 65534, 65534)
            os.setresuid(65534, 65534, 65534)
            ctypes.CDLL(None).prctl(4, 1)  # PR_SET_DUMPABLE: what it had before it changed its user
            limits = ShellLimits(processes=20)
            for text in ("touch data/x && id -u", "for i in $(seq 40); do sleep 9 & done; echo never"):
                done = asyncio.run(sandboxed(text, rw(home), limits=limits))
                os.write(write, f"{done}\n".encode())
        except BaseException as exc:
            os.write(write, f"{exc!r}\n".encode())
        finally:
            os._exit(0)
    os.close(write)
    os.waitpid(child, 0)
    try:
        with os.fdopen(read) as stream:
            first, second = stream.read().splitlines()
        assert "exit_code=0, stdout='1000\\n'" in first
        assert "exit_code=2" in second and "Cannot fork" in second and "never" not in second
        assert (home / "x").stat().st_uid == 65534
    finally:
        shutil.rmtree(home)
