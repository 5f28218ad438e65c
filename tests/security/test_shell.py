"""Attacks by commands: what a program can do in the sandbox, and what it takes to get a program to run at all."""

import logging
import os
import shlex
import stat
import subprocess
from pathlib import Path
from typing import Any

import pytest
from pydantic_ai.messages import ModelMessagesTypeAdapter

from llm_do import Runtime, WorkerRegistry

from ..processes import PATIENCE
from ..scripted import calls, says, scripted
from .world import CANARY, Person, World, call, together

ROOTS = "toolsets: [shell]\nsandbox: {paths: {in: {root: in}, out: {root: out, mode: rw}}}\n"


def python(code: str) -> str:
    """A command that runs some Python."""
    return "/usr/bin/python3 -c '" + code.replace("'", '"') + "'"


@pytest.fixture
def shell(world: World) -> World:
    world.worker("a", ROOTS)
    return world


# -- what runs at all ------------------------------------------------------------------------------------

HIDDEN = [
    "true; touch out/ran",
    "true & touch out/ran",
    "false || touch out/ran",
    "true |& touch out/ran",
    "echo x > out/ran",
    "echo x >> out/ran",
    "echo x 2> out/ran",
    "echo x >| out/ran",
    "cat < /dev/null > out/ran",
    "echo $(touch out/ran)",
    "echo `touch out/ran`",
    'echo "$(touch out/ran)"',
    'echo "`touch out/ran`"',
    "echo ${x:=$(touch out/ran)}",
    "cat <(touch out/ran)",
    "(touch out/ran)",
    "{ touch out/ran; }",
    "true\ntouch out/ran",
    "true #\ntouch out/ran",
    "X=1 touch out/ran",
    "sh -c 'touch out/ran'",
    "/bin/sh -c 'touch out/ran'",
    "/usr/bin/../bin/bash -c 'touch out/ran'",
    "'s'h -c 'touch out/ran'",
    "b\\ash -c 'touch out/ran'",
    "env sh -c 'touch out/ran'",
    "env -S 'touch out/ran'",
    "timeout 5 sh -c 'touch out/ran'",
    "nice -n 1 sh -c 'touch out/ran'",
    "xargs sh -c 'touch out/ran'",
    "find in -name plain.txt -exec sh -c 'touch out/ran' +",
    "setsid bash -c 'touch out/ran'",
    "script -c 'touch out/ran' /dev/null",
    "watch -n 1 touch out/ran",
    "su -c 'touch out/ran'",
    "unshare -r touch out/ran",
    "chroot / touch out/ran",
    "busybox touch out/ran",
    "eval touch out/ran",
    "exec touch out/ran",
    "command touch out/ra?",
    "if true",
    "touch out/r*n",
    "touch out/{ran,ran2}",
    "touch ~/../work/out/ran",
    "! touch out/ran",
    "touch out/ran \u202e",
    "touch out/ran \x00",
    "touch out/ran \x1b[2K",
    "touch out/ran " + "x" * 30_000,
    "touch out/ran " + "x " * 2000,
    "",
    "   ",
    "| touch out/ran",
    "touch out/ran |",
    "&& touch out/ran",
    "touch 'out/ran",
    'touch "out/ran',
    "touch out/ran \\",
]


@pytest.mark.parametrize("command", HIDDEN, ids=lambda command: repr(command)[:40])
def test_what_only_a_shell_could_read_never_runs_though_everything_is_approved(shell: World, command: str) -> None:
    with shell.untouched():
        shell.attack(call("shell", command=command), callback=Person())


@pytest.mark.parametrize(
    "command",
    [
        "rm out/keep",
        "/usr/bin/rm out/keep",
        "/usr/bin/../bin/rm out/keep",
        "./../usr/bin/rm out/keep",
        "'r'm out/keep",
        'r"m" out/keep',
        "r\\m out/keep",
        "true && rm out/keep",
        "true | rm out/keep",
        "env rm out/keep",
        "env -i X=1 rm out/keep",
        "env -u X -- rm out/keep",
        "timeout 5 rm out/keep",
        "timeout -s KILL 5 /bin/rm out/keep",
        "nice -n 5 nohup setsid rm out/keep",
        "stdbuf -o0 rm out/keep",
        "ionice rm out/keep",
        "taskset 1 rm out/keep",
        "flock /tmp/x rm out/keep",
        "echo out/keep | xargs rm",
        "find out -name keep -exec rm {} ;",
        "find out -name keep -exec rm '{}' +",
        "find out -name keep -execdir rm '{}' +",
        "chrt -o 0 rm out/keep",
        "setpriv rm out/keep",
        "prlimit rm out/keep",
        "setarch x86_64 rm out/keep",
        "linux64 rm out/keep",
        "/usr/bin/time rm out/keep",
    ],
)
def test_a_denied_program_does_not_run_by_any_name_or_wrapper(shell: World, command: str) -> None:
    shell.write("out/keep", "x")
    rules = "tool_rules:\n  shell: [allow, {rule: deny, when: {command: rm **}}]\n"
    shell.worker("a", ROOTS + rules)
    with shell.untouched():
        shell.attack(call("shell", command=command), callback=Person())


def test_a_denied_program_does_not_run_by_way_of_the_loader(shell: World) -> None:
    shell.write("out/keep", "x")
    shell.worker("a", ROOTS + "tool_rules:\n  shell: [allow, {rule: deny, when: {command: rm **}}]\n")
    with shell.untouched():
        shell.attack(call("shell", command="/lib64/ld-linux-x86-64.so.2 /usr/bin/rm out/keep"), callback=Person())


@pytest.mark.parametrize("callback", [None, Person(False)], ids=["headless", "refused"])
def test_no_command_runs_that_nobody_approved(shell: World, callback: Any) -> None:
    commands = ["touch out/ran", "true", f"cat {shell.secret}", "sleep 100"]
    with shell.untouched():
        outcome = shell.attack(together(*(call("shell", command=each) for each in commands)), callback=callback)
    assert "shell" not in outcome.ran


def test_an_allowed_command_does_not_carry_others_along(shell: World) -> None:
    shell.worker("a", ROOTS + "tool_rules:\n  shell: {rule: allow, when: {command: ls **}}\n")
    commands = ["ls in && touch out/ran", "ls in | touch out/ran", "touch out/ran && ls in", "env ls in && rm out/x"]
    with shell.untouched():
        shell.attack(*(call("shell", command=command) for command in commands), call("shell", command="lsof in"))


def test_an_allowed_pattern_does_not_match_a_program_of_the_same_name_elsewhere(shell: World) -> None:
    (shell.project / "out" / "ls").write_text(f"#!/bin/sh\ntouch /work/out/ran-{shell.mark}\n")
    (shell.project / "out" / "ls").chmod(0o755)
    shell.worker("a", ROOTS + "tool_rules:\n  shell: {rule: allow, when: {command: ls **}}\n")
    with shell.untouched():
        shell.attack(call("shell", command="out/ls in"), call("shell", command="/work/out/ls in"))


# -- what a program can reach ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "command",
    [
        "cat {secret}",
        "cat in/../../outside/secret.txt",
        "cat /proc/1/root{secret}",
        "cat /proc/self/root{secret}",
        "cp {secret} out/stolen",
        "cat out/link",
        "cat out/folder/secret.txt",
        "tar cf out/stolen.tar {outside}",
        "find /root /home /tmp /var /work /proc/1/root -maxdepth 4 -name secret.txt",
        "grep -r canary- /root /home /etc /var /tmp /work /mnt /media /srv /opt",
        "cat /etc/passwd /etc/shadow /etc/hostname",
        "git -c alias.x='!cat {secret}' x",
        "dd if={secret}",
        "python3 {outside}/x.py",
    ],
)
def test_no_command_reads_what_is_outside(shell: World, command: str) -> None:
    (shell.project / "out" / "link").symlink_to(shell.secret)
    (shell.project / "out" / "folder").symlink_to(shell.outside)
    (shell.outside / "x.py").write_text("print(1)")
    command = command.format(secret=shell.secret, outside=shell.outside)
    with shell.untouched("out"):
        outcome = shell.attack(call("shell", command=command), callback=Person())
    assert not outcome.told(CANARY)
    assert not outcome.told("root:x:0")
    left = [each for each in (shell.project / "out").iterdir() if each.is_file() and not each.is_symlink()]
    assert not any(CANARY.encode() in each.read_bytes() for each in left)


@pytest.mark.parametrize(
    "command",
    [
        "touch in/new",
        "rm in/plain.txt",
        "mv in/plain.txt out/plain.txt",
        "chmod 777 in/plain.txt",
        "ln -sf /etc in/link",
        "sed -i s/plain/x/ in/plain.txt",
        "truncate -s 0 in/plain.txt",
        "mount -o remount,rw /work/in",
        "umount /work/in",
        "touch {outside}/new",
        "mkdir -p {outside}/new",
        "rm -rf {outside}",
        "rm -rf /work/in",
        "mv /work/in /work/out/in",
        "cp in/plain.txt {secret}",
        "ln -sfn {outside} /work/in",
        "ln {secret} out/hard",
        "tee {secret} in/plain.txt",
        "cp in/plain.txt out/folder/secret.txt",
        "cp in/plain.txt out/link",
        "rm -rf out/folder/",
        "chmod -R 777 out/folder/",
        "touch /usr/bin/new",
        "python3 -c \"open('/proc/sys/kernel/hostname','w').write('x')\"",
        "python3 -c \"open('/proc/self/mem','r+b'); open('/proc/1/mem','r+b').write(b'x')\"",
    ],
)
def test_no_command_writes_outside_of_its_writable_roots(shell: World, command: str) -> None:
    (shell.project / "out" / "link").symlink_to(shell.secret)
    (shell.project / "out" / "folder").symlink_to(shell.outside)
    host = os.uname().nodename
    with shell.untouched("out"):
        shell.attack(
            call("shell", command=command.format(outside=shell.outside, secret=shell.secret)), callback=Person()
        )
    assert os.uname().nodename == host
    assert (shell.project / "out").is_dir() and not (shell.project / "out").is_symlink()


def test_a_command_in_a_root_around_the_project_sees_nothing_that_it_is_made_of(world: World) -> None:
    for path in (".git/config", "llm-do.toml", "tools.py", "other.py", "workers/generated/x.yaml"):
        world.write(path, f"# {CANARY}\n")
    world.worker("a", "toolsets: [shell]\nsandbox: {paths: {all: {root: .}, out: {root: out, mode: rw}}}\n")
    commands = ["grep -r canary- all", "cat all/tools.py", "cat all/.git/config", "ls -laR all/workers all/.git"]
    with world.untouched("out"):
        outcome = world.attack(*(call("shell", command=command) for command in commands), callback=Person())
    assert not outcome.told(CANARY)
    assert not outcome.told("x.yaml")


SOCKETS = {
    "tcp": "s=socket.socket(); s.settimeout(2); s.connect(('127.0.0.1', {port}))",
    "udp": "s=socket.socket(type=socket.SOCK_DGRAM); s.sendto(b'x', ('127.0.0.1', {port}))",
    "abstract": "s=socket.socket(socket.AF_UNIX); s.connect(chr(0) + '{mark}')",
    "unix": "s=socket.socket(socket.AF_UNIX); s.connect('{path}')",
}


@pytest.mark.parametrize("kind", SOCKETS)
def test_no_command_reaches_a_socket_of_the_host(shell: World, kind: str) -> None:
    ear = shell.listen(kind, shell.outside / "s")
    code = "import socket; " + SOCKETS[kind].format(port=ear.port, mark=shell.mark, path=shell.outside / "s")
    shell.attack(call("shell", command=python(code)), callback=Person())
    assert not ear.heard()


def test_a_command_does_not_bring_a_socket_to_listen_on_the_host(shell: World) -> None:
    ear = shell.listen("tcp")
    bind = f"s=socket.socket(); s.bind(('0.0.0.0', {ear.port})); s.listen()"
    shell.attack(
        call("shell", command=python(f"import socket; {bind}; open('/work/out/bound', 'w')")), callback=Person()
    )
    # The port is taken on the host, so whoever can have it has a network of their own.
    assert (shell.project / "out/bound").exists()


def test_no_command_sees_the_environment_or_processes_or_descriptors_of_the_host(
    shell: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SOME_API_KEY", CANARY)
    code = "import os; print(chr(10).join(os.listdir(chr(47) + 'proc')))"
    look = (
        "import os; found=[]\n"
        "for fd in range(256):\n"
        " try: os.open('..', os.O_RDONLY, dir_fd=fd); found.append(fd)\n"
        " except OSError: pass\n"
        "open('/work/out/found', 'w').write(repr(found))\n"
    )
    shell.write("in/look.py", look)
    outcome = shell.attack(
        call("shell", command="env"),
        call("shell", command="cat /proc/1/environ /proc/self/environ"),
        call("shell", command=python(code)),
        call("shell", command="python3 in/look.py"),
        callback=Person(),
    )
    assert not outcome.told(CANARY)
    assert not outcome.told(f"\n{os.getpid()}\n")
    assert (shell.project / "out/found").read_text() == "[]"


@pytest.mark.parametrize("mode", ["plain", "two_forks", "ignores_signals"])
def test_no_process_outlives_its_command(shell: World, mode: str) -> None:
    code = {
        "plain": "import subprocess\nsubprocess.Popen(['sleep', 'MARK'], start_new_session=True)\n",
        "two_forks": (
            "import os, time\nif os.fork() == 0:\n os.setsid()\n if os.fork() == 0:\n"
            "  os.closerange(0, 3)\n  os.execvp('sleep', ['sleep', 'MARK'])\n os._exit(0)\ntime.sleep(0.2)\n"
        ),
        "ignores_signals": (
            "import signal, subprocess\n[signal.signal(n, signal.SIG_IGN) for n in (1, 2, 13, 15)]\n"
            "subprocess.Popen(['sleep', 'MARK'], start_new_session=True)\n"
        ),
    }[mode]
    shell.write("in/daemon.py", code.replace("MARK", shell.mark))
    shell.attack(call("shell", command="python3 in/daemon.py"), callback=Person())
    assert not shell.processes()


def test_no_process_outlives_a_timeout(shell: World) -> None:
    shell.write(
        "in/hang.py",
        f"import signal, os\nsignal.signal(15, signal.SIG_IGN)\nos.execvp('sleep', ['sleep', '{shell.mark}'])",
    )
    shell.attack(call("shell", command="python3 in/hang.py | cat", timeout=0.4), callback=Person())
    assert not shell.processes()


def test_a_crowd_of_processes_is_ended_and_none_is_left(shell: World) -> None:
    code = (
        "import subprocess\nheld = []\nfor n in range(90):\n"
        f" held.append(subprocess.Popen(['sleep', '{shell.mark}']))\n[each.wait() for each in held]\n"
    )
    shell.write("in/crowd.py", code)
    outcome = shell.attack(call("shell", command="python3 in/crowd.py", timeout=PATIENCE), callback=Person())
    assert not outcome.told("timed out")
    assert not shell.processes()


def test_output_without_an_end_does_not_fill_memory_or_the_next_request(shell: World) -> None:
    outcome = shell.attack(call("shell", command="yes hostile", timeout=0.7), callback=Person())
    assert max(map(len, outcome.sent)) < 300_000
    assert outcome.requests == 2


def test_a_command_cannot_fill_tmp_or_write_a_file_over_the_limit(world: World) -> None:
    world.worker("a", "toolsets: [shell]\nsandbox: {paths: {out: {root: out, mode: rw, max_file_bytes: 100000}}}\n")
    world.attack(
        call("shell", command="dd if=/dev/zero of=out/big bs=1000 count=1000"),
        call("shell", command="dd if=/dev/zero of=/tmp/big bs=1000 count=1000 && cp /tmp/big out/copied"),
        call("shell", command="truncate -s 1G out/sparse"),
        callback=Person(),
    )
    sizes = [path.stat().st_size for path in (world.project / "out").iterdir()]
    assert all(size <= 100_000 for size in sizes)


def test_no_memory_beyond_the_limit(shell: World) -> None:
    code = "x = bytearray(3 << 30); open('/work/out/had-it', 'w')"
    shell.attack(call("shell", command=python(code)), callback=Person())
    assert not (shell.project / "out/had-it").exists()


@pytest.mark.parametrize(
    "code",
    [
        "import os; os.mknod('/work/out/did', 0o60666, os.makedev(8, 0))",
        "import os; os.setuid(0); open('/work/out/did', 'w')",
        "import os; os.chroot('/work'); open('/out/did', 'w')",
        "import ctypes; ctypes.CDLL(None).unshare(0x10000000) == 0 and open('/work/out/did', 'w')",
        "import ctypes; ctypes.CDLL(None).mount(b'/', b'/tmp', None, 4096, None) == 0 and open('/work/out/did', 'w')",
        "import os; os.nice(-5); open('/work/out/did', 'w')",
        "import resource as r; r.setrlimit(r.RLIMIT_FSIZE, (-1, -1)); open('/work/out/did', 'w')",
        "import socket; socket.socket(socket.AF_PACKET, socket.SOCK_RAW); open('/work/out/did', 'w')",
        "import os; os.chown('/work/out', 0, 0); open('/work/out/did', 'w')",
    ],
    ids=["device", "setuid", "chroot", "namespace", "mount", "priority", "limits", "raw_socket", "chown"],
)
def test_no_privilege_is_to_be_had(shell: World, code: str) -> None:
    shell.attack(call("shell", command=python(code)), callback=Person())
    assert not os.path.lexists(shell.project / "out/did")


def test_a_command_that_holds_the_first_process_of_its_sandbox_is_ended_all_the_same(shell: World) -> None:
    code = f"import ctypes, os; ctypes.CDLL(None).ptrace(16, 1, 0, 0); os.execvp('sleep', ['sleep', '{shell.mark}'])"
    shell.attack(call("shell", command=python(code), timeout=0.5), callback=Person())
    assert not shell.processes()


def test_a_suffixed_root_is_not_there_for_commands(world: World) -> None:
    world.write("in/secret.key", CANARY)
    head = "toolsets: [shell]\nsandbox: {paths: {in: {root: in, suffixes: [.txt]}, out: {root: out, mode: rw}}}\n"
    world.worker("a", head)
    outcome = world.attack(call("shell", command="cat in/secret.key"), callback=Person())
    assert not outcome.told(CANARY)


# -- holes -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", ["ro", "rw"])
def test_a_folder_that_is_a_root_elsewhere_cannot_be_swapped_for_a_way_out(world: World, mode: str) -> None:
    world.write("work/data/x.txt", "x")
    world.worker("a", "toolsets: [shell]\nallow_workers: [b]\nsandbox: {paths: {work: {root: work, mode: rw}}}\n")
    rules = "tool_rules: {sandbox.write: allow}" if mode == "rw" else ""
    world.worker("b", f"sandbox: {{paths: {{data: {{root: work/data, mode: {mode}}}}}}}\n{rules}")
    with world.untouched("work"):
        outcome = world.attack(
            call("shell", command="mv work/data work/old"),
            call("shell", command=f"ln -s {world.outside} work/data"),
            call("worker_call", worker="b", input_data="go"),
            b=[call("read_file", path="data/secret.txt"), call("write_file", path="data/secret.txt", content="x")],
            callback=Person(),
        )
        assert not outcome.told(CANARY)


@pytest.mark.parametrize("mode", ["4755", "2755"])
def test_no_command_leaves_a_program_that_runs_as_its_owner(shell: World, mode: str) -> None:
    shell.attack(call("shell", command=f"cp /usr/bin/id out/id && chmod {mode} out/id"), callback=Person())
    modes = [path.stat().st_mode for path in (shell.project / "out").iterdir()]
    assert not any(each & (stat.S_ISUID | stat.S_ISGID) for each in modes)


@pytest.mark.parametrize("root", ["in", "out"])
def test_no_command_reaches_a_socket_in_a_root(shell: World, root: str) -> None:
    ear = shell.listen("unix", shell.project / root / "s")
    code = f"import socket; socket.socket(socket.AF_UNIX).connect('/work/{root}/s')"
    shell.attack(call("shell", command=python(code)), callback=Person())
    assert not ear.heard()


@pytest.mark.parametrize("command", ["cat out/keep/key.txt", "rm out/keep/key.txt"])
def test_a_deny_on_files_holds_for_commands_too(shell: World, command: str) -> None:
    shell.write("out/keep/key.txt", CANARY)
    rule = "{rule: deny, when: {path: out/keep/**}}"
    shell.worker("a", ROOTS + f"tool_rules:\n  sandbox.read: {rule}\n  sandbox.write: {rule}\n")
    with shell.untouched():
        assert not shell.attack(call("shell", command=command), callback=Person()).told(CANARY)


# -- prefix rules: what docs/rules.md says of them ---------------------------------------------------------

BEHIND_A_PREFIX = [
    "git -c core.fsmonitor='touch /work/out/ran; false' -C in/repo status",
    "git -c alias.x='!touch /work/out/ran' x",
    "git -C in/repo -c diff.external='touch /work/out/ran' diff HEAD~1",
    "git -C in/repo grep -O'touch /work/out/ran; true' plain",
    "git ls-remote --upload-pack='touch /work/out/ran;' in/repo",
    "git -C in/repo log --output=/work/out/ran",
    "tar -cf /dev/null --checkpoint=1 --checkpoint-action=exec='touch out/ran' in",
    "tar -cf /dev/null -I 'touch out/ran; cat' in",
    "tar -xf in/a.tar --to-command='touch out/ran'",
    "tar -cf out/ran in",
    "find in -maxdepth 0 -exec touch out/ran ';'",
    "find in -maxdepth 0 -fprint out/ran",
    "sort -o out/ran in/plain.txt",
    "sed -n 'w out/ran' in/plain.txt",
    "awk 'BEGIN { system(\"touch out/ran\") }'",
]


@pytest.mark.parametrize("command", BEHIND_A_PREFIX)
def test_a_rule_that_allows_a_program_with_any_arguments_allows_all_that_it_can_do(world: World, command: str) -> None:
    """It is no fence, as the documentation says; the sandbox is one."""
    for words in ("init -q repo", "-C repo commit -q --allow-empty -m 1", "-C repo add .", "-C repo commit -q -m 2"):
        if "add" in words:
            world.write("in/repo/plain.txt", "plain\n")
        names = {f"GIT_{who}_{what}": "x@example.org" for who in ("AUTHOR", "COMMITTER") for what in ("NAME", "EMAIL")}
        subprocess.run(["git", *words.split()], cwd=world.project / "in", env={**os.environ, **names}, check=True)
    subprocess.run(["tar", "-cf", "a.tar", "plain.txt"], cwd=world.project / "in", check=True)
    program = command.split()[0]
    world.worker("a", f"{ROOTS}tool_rules: {{shell: {{rule: allow, when: {{command: '{program} **'}}}}}}\n")
    person = Person(False)
    with world.untouched("out"):
        outcome = world.attack(call("shell", command=command), callback=person)
    assert not person.asked
    assert (world.project / "out" / "ran").exists(), outcome.sent[-1][-600:]


def test_an_exact_rule_allows_nothing_else(world: World) -> None:
    world.worker("a", f"{ROOTS}tool_rules: {{shell: {{rule: allow, when: {{command: ['git -C in/repo status']}}}}}}\n")
    person = Person(False)
    world.attack(*(call("shell", command=command) for command in BEHIND_A_PREFIX), callback=person)
    assert len(person.asked) == len(BEHIND_A_PREFIX)
    assert not (world.project / "out" / "ran").exists()


# -- what is no file ---------------------------------------------------------------------------------------


def test_nothing_waits_for_a_pipe(world: World) -> None:
    """Neither a tool nor an attachment nor a question about one opens a pipe that nothing writes to."""
    os.mkfifo(world.project / "out" / "pipe")
    os.mkfifo(world.project / "out" / "pipe.py")
    allow = "tool_rules: {sandbox.write: {rule: ask}}\nallow_workers: [b]\ntoolsets: [shell]\n"
    world.worker("a", ROOTS.replace("toolsets: [shell]\n", "") + allow)
    world.worker("b", "attachment_policy: {max_attachments: 3}\n")
    outcome = world.attack(
        call("read_file", path="out/pipe"),
        call("list_files", path="out"),
        call("search_files", text="x", pattern="out/**"),
        call("write_file", path="out/pipe", content="x"),
        call("edit_file", path="out/pipe", old="x", new="y"),
        call("move_file", source="out/pipe", destination="out/other"),
        call("delete_file", path="out/pipe"),
        call("shell", command="python3 out/pipe.py", timeout=1),
        call("worker_call", worker="b", input_data="go", attachments=["out/pipe"]),
        callback=Person(True),
    )
    assert outcome.error is None
    assert stat.S_ISFIFO((world.project / "out" / "pipe").stat().st_mode)
    attached = world.attack(data="go", attachments=[world.project / "out" / "pipe"], callback=Person(True))
    assert "it is a pipe, a device or a socket" in str(attached.error)


# -- names that a command leaves ----------------------------------------------------------------------------------

NAMES = [b"a\xff", b"a\x1b[2J\x1b]0;x\x07", b"a\nError: all is fine", b"a\r\xe2\x80\xa8\xc2\x85b", b"\xed\xa0\x80"]


@pytest.mark.parametrize("name", NAMES)
async def test_a_name_that_a_command_leaves_ends_no_run_and_forges_no_line(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, name: bytes
) -> None:
    """Of a repository or a file: every result can be sent, and the name is in one line, spelled out, or left out."""
    out = tmp_path / "out"
    (tmp_path / "workers").mkdir()
    out.mkdir()
    (tmp_path / "workers/w.yaml").write_text(
        "sandbox: {paths: {out: {root: out, mode: rw}}}\ntoolsets: [shell]\n"
        "tool_rules: {shell: allow, sandbox.write: allow}\ninstructions: x\n"
    )
    make = f"os.chdir('out'); os.makedirs({name!r} + b'/.git'); open({name!r} + b'.txt', 'w').write('word')"
    text = name.decode(errors="replace")
    steps = [
        ("shell", {"command": f"/usr/bin/python3 -c {shlex.quote(f'import os; {make}')}"}),
        ("list_files", {"path": "out"}),
        ("find_files", {"pattern": "out/**"}),
        ("search_files", {"text": "word", "pattern": "out/**"}),
        ("read_file", {"path": "out/b.txt"}),
        ("read_file", {"path": f"out/{text}.txt"}),
        ("write_file", {"path": f"out/{text}.txt", "content": "x"}),
        ("edit_file", {"path": f"out/{text}.txt", "old": "word", "new": "x"}),
        ("move_file", {"source": f"out/{text}.txt", "destination": "out/b.txt"}),
        ("shell", {"command": f"/usr/bin/python3 {shlex.quote(f'out/{text}.txt')}"}),
        ("shell", {"command": shlex.quote(f"out/{text}.txt")}),
    ]
    told: list[Any] = []

    def look(messages: list[Any], info: Any) -> Any:
        ModelMessagesTypeAdapter.dump_json(messages)
        told.extend(part for message in messages for part in message.parts if hasattr(part, "tool_name"))
        return says("end")

    model = scripted(*(calls(step) for step in steps), look)
    with caplog.at_level(logging.WARNING, "llm_do"):
        assert await Runtime(WorkerRegistry(tmp_path), model=model).call("w", "go") == "end"
    results = [str(part.content) for part in told if part.part_kind in ("tool-return", "retry-prompt")]
    assert len(results) == len(steps)
    assert results[0].startswith("\n(out/") and ".git was renamed" in results[0]
    for said in [results[0].removeprefix("\n"), *results[1:-2], *(record.getMessage() for record in caplog.records)]:
        assert all(line.isprintable() for line in said.split("\n")), said
        assert not any(line.startswith("Error") for line in said.split("\n"))
    assert len(caplog.records) == 1
