"""A command sees its mounts and nothing else, keeps to its limits, and leaves nothing behind."""

import asyncio
import ctypes
import os
import resource
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from llm_do.commands import parse
from llm_do.errors import PathDenied, PathFailed
from llm_do.sandbox import bubble
from llm_do.sandbox.bubble import CommandResult, Mount, ShellLimits, run_sandboxed, run_unsandboxed, why_not

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
    return await run_sandboxed(parse(text), mounts, limits)


def ro(path: Path, *protected: Path, name: str = "data", fd: int | None = None) -> Mount:
    return Mount(name=name, folder=path, writable=False, protected=protected, fd=fd)


def rw(path: Path, *protected: Path, name: str = "data", fd: int | None = None) -> Mount:
    return Mount(name=name, folder=path, writable=True, protected=protected, fd=fd)


def test_it_works_here() -> None:
    assert why_not() is None


def test_why_not(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    check = bubble.why_not.__wrapped__
    monkeypatch.setenv("PATH", str(tmp_path))
    assert "`bwrap` is not on PATH" in check() and "apt-get install" in check()
    fake = tmp_path / "bwrap"
    fake.write_text("#!/bin/sh\necho --bind-fd\n")
    fake.chmod(0o755)
    assert "too old: it has no --disable-userns" in check()
    fake.write_text(
        "#!/bin/sh\ncase $1 in --help) echo --bind-fd --disable-userns --size --json-status-fd;;\n"
        "*) echo 'No permissions to create new namespace' >&2; exit 1;; esac\n"
    )
    assert "it says: 'No permissions to create new namespace'" in check()
    monkeypatch.setattr(sys, "platform", "darwin")
    assert "needs Linux" in check()


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
        assert (await run_unsandboxed(parse(f"{PYTHON} -c '{text}'"), Path("/"), LIMITS)).stdout == "there\nthere\n"
        done = await sandboxed(f"{PYTHON} -c '{text}'")
    assert done.stdout == "111\n111\n"


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
        await run_unsandboxed(parse("ls"), folder, LIMITS)


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


@pytest.mark.parametrize("kind", ["sandboxed", "plain"])
async def test_a_large_file(folder: Path, kind: str) -> None:
    limits = ShellLimits(seconds=20, file_bytes=1_000_000)
    command = parse("dd if=/dev/zero of=/work/data/big bs=100000 count=50")
    if kind == "sandboxed":
        done = await run_sandboxed(command, [rw(folder)], limits)
    else:
        done = await run_unsandboxed(parse("dd if=/dev/zero of=big bs=100000 count=50"), folder, limits)
    assert done.exit_code in (1, 128 + signal.SIGXFSZ)
    assert (folder / "big").stat().st_size <= 1_000_000


async def test_other_limits() -> None:
    done = await sandboxed("ulimit -c; ulimit -n; cat /proc/self/limits")
    assert done.stdout.startswith("0\n1024\n")


async def test_much_output() -> None:
    limits = ShellLimits(seconds=1, output_bytes=2000)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    done = await sandboxed("sh -c 'echo start; exec yes'", limits=limits)
    assert done.timed_out and done.truncated and done.exit_code == 124
    assert done.left_out > 1_000_000 and f"[... {done.left_out} bytes left out ...]" in done.stdout
    assert done.stdout.startswith("start\ny\n") and done.stdout.endswith("y\n") and len(done.stdout) < 2100
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 20_000  # KiB
    done = await sandboxed("sh -c 'seq 100 >&2; echo end >&2'", limits=ShellLimits(output_bytes=20))
    assert done.stderr.endswith("end\n") and done.truncated and not done.timed_out
    assert not (await sandboxed("seq 5", limits=ShellLimits(output_bytes=10))).truncated


def assert_too_many(done: CommandResult) -> None:
    """The kernel does not let a program have more processes. Those of root it does not count, and we end them."""
    assert done.exit_code in (1, 2, 137)
    if os.getuid() == 0:
        assert done.exit_code == 137 and "processes and threads, which is too many" in done.stderr


@pytest.mark.parametrize("wait", ["", "; sleep 50"])
async def test_a_fork_bomb(wait: str) -> None:
    start = time.monotonic()
    mark = f"5{os.getpid()}.5"
    limits = ShellLimits(seconds=10, processes=30)
    done = await sandboxed(f"b() {{ sleep {mark} & b & b; }}; b{wait}", limits=limits)
    assert_too_many(done)
    assert not done.timed_out and time.monotonic() - start < 9
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


@pytest.mark.parametrize("kind", ["sandboxed", "plain"])
@pytest.mark.parametrize("end", ["timeout", "cancel", "leave"])
async def test_nothing_is_left(folder: Path, kind: str, end: str) -> None:
    (folder / "stubborn.py").write_text(STUBBORN)
    mark = f"mark-{os.urandom(8).hex()}"
    limits = ShellLimits(seconds=0.7 if end == "timeout" else 20)
    name = "data/stubborn.py" if kind == "sandboxed" else "stubborn.py"
    command = parse(f"{PYTHON} {name} {end} {mark} | cat")

    async def run() -> CommandResult:
        if kind == "sandboxed":
            return await run_sandboxed(command, [ro(folder)], limits)
        return await run_unsandboxed(command, folder, limits)

    task = asyncio.create_task(run())
    if end == "cancel":
        async with asyncio.timeout(10):
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
        "import asyncio\nfrom llm_do.commands import parse\nfrom llm_do.sandbox.bubble import *\n"
        f"asyncio.run(run_sandboxed(parse('sleep {mark} | cat'), [], ShellLimits()), debug=True)"
    )
    process = subprocess.Popen([sys.executable, "-X", "dev", "-c", program], stderr=subprocess.PIPE, text=True)
    while not any(Path(f"/proc/{pid}/comm").read_text() == "sleep\n" for pid in having(mark)):
        time.sleep(0.02)
    process.send_signal(signal.SIGINT)
    _, said = process.communicate(timeout=10)
    assert having(mark) == []
    assert said.rstrip().endswith("KeyboardInterrupt") and "Warning" not in said and "never retrieved" not in said


async def test_the_loop_goes_on(folder: Path) -> None:
    """While commands run, and several at once."""
    longest, over = 0.0, False

    async def watch() -> None:
        nonlocal longest
        while not over:
            start = time.monotonic()
            await asyncio.sleep(0.001)
            longest = max(longest, time.monotonic() - start)

    watching = asyncio.create_task(watch())
    done = await asyncio.gather(*(sandboxed(f"sh -c 'sleep 0.3; echo {i}'", ro(folder)) for i in range(8)))
    over = True
    await watching
    assert [(one.stdout, one.stderr) for one in done] == [(f"{i}\n", "") for i in range(8)]
    assert longest < 0.25


async def test_without_a_sandbox(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LLM_DO_TEST_KEY", "key")
    done = await run_unsandboxed(parse("cat a.txt | wc -l && pwd && env"), folder, LIMITS)
    count, cwd, *variables = done.stdout.split()
    assert (count, cwd) == ("2", str(folder))
    assert {line.partition("=")[0] for line in variables} <= {"PATH", "HOME", "LANG", "PWD", "LLM_DO_COMMAND"}
    done = await run_unsandboxed(parse("nosuch x"), folder, LIMITS)
    assert (done.exit_code, done.stderr) == (127, "nosuch: not found.\n")
    assert (await run_unsandboxed(parse("exit 3"), folder, LIMITS)).exit_code == 3
    assert (await run_unsandboxed(parse("kill -9 $$"), folder, LIMITS)).exit_code == 137
    assert (await run_unsandboxed(parse("printf '%s,' 'a b' '' '$x'"), folder, LIMITS)).stdout == "a b,,$x,"
    limits = ShellLimits(memory_bytes=200_000_000)
    done = await run_unsandboxed(parse(f"{PYTHON} -c 'bytes(400000000)'"), folder, limits)
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
