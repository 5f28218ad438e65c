"""Commands of a worker: judged part by part, and run in a sandbox that has only the worker's roots."""

import asyncio
import os
from collections.abc import Callable
from pathlib import Path
from shutil import which
from typing import Any

import pytest

from llm_do import (
    ApprovalDecision,
    ApprovalRequest,
    WorkerRegistry,
    WorkerRunResult,
    approve_all_callback,
    run_worker,
    run_worker_async,
    strict_mode_callback,
)
from llm_do.sandbox.commands.command_line import Command, parse

from ..scripted import calls, says, scripted, tool_results

HEAD = "toolsets: [shell]\nsandbox: {paths: {in: {root: in}, out: {root: out, mode: rw}}}\ninstructions: x\n"
Shell = Callable[..., WorkerRunResult]


@pytest.fixture
def project(tmp_path: Path) -> Path:
    for folder in ("workers", "in", "out"):
        (tmp_path / folder).mkdir()
    (tmp_path / "in" / "names.txt").write_text("b\na\nb\n")
    return tmp_path


@pytest.fixture
def shell(project: Path) -> Shell:
    """Return a function that has a worker run some commands, one after the other."""

    def run(
        *commands: str, rules: str = "", callback: Any = approve_all_callback, head: str = HEAD, **arguments: Any
    ) -> WorkerRunResult:
        (project / "workers" / "a.yaml").write_text(head + rules)
        model = scripted(*(calls(("shell", {"command": command, **arguments})) for command in commands), says("done"))
        return run_worker(
            registry=WorkerRegistry(project), worker="a", input_data="go", cli_model=model, approval_callback=callback
        )

    return run


def printed(result: WorkerRunResult) -> list[str]:
    return [str(each) for each in tool_results(result.messages)]


def rule(text: str) -> str:
    return f"tool_rules:\n  shell: {text}\n"


class Person:
    def __init__(self, *answers: Any) -> None:
        self.answers, self.asked = list(answers), list[ApprovalRequest]()

    def ask(self, request: ApprovalRequest) -> ApprovalDecision:
        self.asked.append(request)
        answer = self.answers.pop(0) if self.answers else ApprovalDecision(approved=False)
        return answer(request) if callable(answer) else answer


# -- running ---------------------------------------------------------------------------------------------


def test_programs_see_the_roots_under_their_names_and_no_shell(shell: Shell, project: Path) -> None:
    result = shell(
        "sort -u in/names.txt | wc -l",
        "echo 'a  b' '$HOME' '*'",
        "cp in/names.txt out/copy.txt && cat out/copy.txt",
        "touch in/new.txt",
        "false && touch out/never.txt",
        "no-such-program",
    )
    outputs = printed(result)
    assert outputs[0] == "2\n"
    assert outputs[1] == "a  b $HOME *\n"
    assert outputs[2] == "b\na\nb\n"
    assert "Read-only" in outputs[3]
    assert "(exit code 1)" in outputs[4]
    assert "no-such-program" in outputs[5]
    assert "(exit code 127)" in outputs[5]
    assert sorted(path.name for path in project.rglob("*.txt")) == ["copy.txt", "names.txt"]
    failures = [record.failure for record in result.trace if record.name == "shell"]
    assert failures == [None, None, None, "exit code 1", "exit code 1", "exit code 127"]


@pytest.mark.parametrize("callback", [None, strict_mode_callback])
def test_nothing_runs_without_an_approval(shell: Shell, project: Path, callback: Any) -> None:
    result = shell("touch out/here.txt", callback=callback)
    assert [record.name for record in result.refusals] == ["shell"]
    assert not list(project.rglob("here.txt"))


def test_nothing_of_the_host_is_there(shell: Shell, monkeypatch: pytest.MonkeyPatch, project: Path) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "sk-very-secret")
    (project / "elsewhere.txt").write_text("elsewhere")
    outside = [f"cat {project}/elsewhere.txt", "ls /root /home", "cat in/../../elsewhere.txt"]
    outputs = printed(shell("env", *outside, "ls /work"))
    assert "secret" not in outputs[0]
    assert all("No such file" in output for output in outputs[1:4])
    assert outputs[4].split() == ["in", "out"]


def test_processes_of_a_command_end_with_it(shell: Shell, project: Path) -> None:
    mark = f"31{os.getpid()}.25"
    outputs = printed(shell(f"sleep {mark} | cat", timeout=0.5))
    assert "timed out" in outputs[0]
    assert not running(mark)


async def test_a_cancelled_run_leaves_no_process(project: Path) -> None:
    mark = f"32{os.getpid()}.25"
    (project / "workers" / "a.yaml").write_text(HEAD + rule("allow"))
    model = scripted(calls(("shell", {"command": f"sleep {mark}"})), says("done"))
    running_task = asyncio.create_task(
        run_worker_async(registry=WorkerRegistry(project), worker="a", input_data="go", cli_model=model)
    )
    while not running(mark):
        await asyncio.sleep(0.02)
    running_task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running_task
    assert not running(mark)


def running(mark: str) -> bool:
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            if mark.encode() in path.read_bytes().split(b"\0"):
                return True
        except OSError:
            continue
    return False


def test_the_output_is_limited(shell: Shell) -> None:
    (output,) = printed(shell("head -c 3000000 /dev/zero"))
    assert 40_000 < len(output) < 110_000
    assert "characters are left out here.]" in output and "pipe the output into grep" in output


def test_secrets_are_removed_before_output_is_cut(shell: Shell, project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the head of a long output ends, and where its tail begins, no half of a secret is left."""
    key = "Zq8Rk2Vn7Wm4Xt1Yb6Uc3Jd9"
    monkeypatch.setenv("KEY", key)
    (project / "llm-do.toml").write_text('secrets = ["KEY"]\n')
    (project / "in" / "long.txt").write_text(f"{'-' * 24_990}{key}{'-' * 30_000}{key}{'-' * 24_990}")
    seen = "".join(printed(shell("cat in/long.txt")))
    assert seen.count("characters are left out here") == 1 and "[secret" in seen
    assert not any(key[at : at + 4] in seen for at in range(21))


def test_a_root_with_suffixes_is_not_mounted(shell: Shell, project: Path) -> None:
    (project / "in" / "secret.key").write_text("key")
    head = (
        "toolsets: [shell]\nsandbox: {paths: {in: {root: in, suffixes: [.txt]}, out: {root: out}}}\ninstructions: x\n"
    )
    (output,) = printed(shell("cat in/secret.key", head=head))
    assert "key" not in output.replace("secret.key", "")
    assert "not available: in, because programs cannot be restricted to its suffixes" in output


def test_protected_paths_are_masked(shell: Shell, project: Path) -> None:
    head = "toolsets: [shell]\nsandbox: {paths: {all: {root: .}}}\ninstructions: x\n"
    (project / "llm-do.toml").write_text("model = 'test'\n")
    (project / "tools.py").write_text("# tools\n")
    outputs = printed(
        shell("ls all/workers", "cat all/llm-do.toml", "cat all/tools.py", "cat all/in/names.txt", head=head)
    )
    assert outputs[:3] == ["(no output)"] * 3
    assert outputs[3] == "b\na\nb\n"


# -- rules -------------------------------------------------------------------------------------------------


def test_an_allowed_command_asks_no_one_and_a_denied_one_never_runs(shell: Shell, project: Path) -> None:
    rules = rule("[{rule: allow, when: {command: ['cat in/*', 'wc **']}}, {rule: deny, when: {command: 'rm **'}}]")
    person = Person()
    (project / "out" / "keep").write_text("x")
    result = shell(
        "cat in/names.txt | wc -l", "rm out/keep", "cat in/names.txt && /bin/rm out/keep", "env rm out/keep",
        "timeout 5 rm out/keep", "ls out", rules=rules, callback=person,
    )  # fmt: skip
    assert printed(result)[0] == "3\n"
    assert (project / "out" / "keep").exists()
    assert [request.payload["command"] for request in person.asked] == ["ls out"]
    assert [record.approval.by for record in result.refusals if record.approval] == ["rule"] * 4 + ["callback"]


@pytest.mark.parametrize(
    "command",
    [
        "cat in/names.txt; touch out/evil",
        "cat in/names.txt > out/evil",
        "cat in/names.txt || touch out/evil",
        "cat $(touch out/evil)",
        "cat `touch out/evil`",
        "cat in/names.txt & touch out/evil",
        "cat in/names.txt\ntouch out/evil",
        "sh -c 'touch out/evil'",
        "env bash -c 'touch out/evil'",
        "cat <(touch out/evil)",
        "X=1 touch out/evil",
        "touch out/{evil,b}",
    ],
)
def test_shell_syntax_needs_a_rule_of_its_own(shell: Shell, project: Path, command: str) -> None:
    person = Person(*[ApprovalDecision(approved=True)] * 9)
    result = shell(command, rules=rule("allow"), callback=person)
    assert len(result.refusals) == 1
    assert not person.asked
    assert not list(project.glob("out/*"))


def test_a_rule_can_allow_a_shell_which_is_in_the_sandbox_too(shell: Shell, project: Path) -> None:
    rules = rule("[{rule: ask, shell: true}, {rule: allow}]")
    person = Person(ApprovalDecision(approved=True), ApprovalDecision(approved=True))
    result = shell(
        "for n in 1 2; do echo $n; done > out/n; cat out/n",
        "ls / > out/ls; cat /etc/shadow",
        rules=rules,
        callback=person,
    )
    assert printed(result)[0] == "1\n2\n"
    assert "in a shell, because of" in person.asked[0].text()
    assert "root" not in (project / "out" / "ls").read_text().split()
    assert "No such file" in printed(result)[1]


def test_only_the_very_command_runs_outside_of_the_sandbox(shell: Shell, project: Path) -> None:
    (project / "outside.txt").write_text("outside")
    very = f"cat {project}/outside.txt"
    rules = rule(
        f"[{{rule: ask, when: {{command: '{very}'}}, unsandboxed: true}}, {{rule: allow, when: {{command: 'cat **'}}}}]"
    )
    person = Person(ApprovalDecision(approved=True))
    result = shell(very, f"cat -- {project}/outside.txt", f"{very} | cat", rules=rules, callback=person)
    assert printed(result)[0] == "outside"
    assert "OUTSIDE of the sandbox" in person.asked[0].text()
    assert "No such file" in printed(result)[1]
    assert "outside" not in printed(result)[2].replace("outside.txt", "")


def test_without_bubblewrap_nothing_runs_and_no_one_is_asked(
    shell: Shell, project: Path, monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory
) -> None:
    from llm_do.sandbox.commands.bwrap import why_not

    programs = tmp_path_factory.mktemp("bin")
    for name in ("cat", "env"):
        (programs / name).symlink_to(f"/bin/{name}")
    monkeypatch.setenv("PATH", str(programs))
    why_not.cache_clear()
    try:
        person = Person(*[ApprovalDecision(approved=True)] * 3)
        rules = rule("[{rule: allow, when: {command: 'cat in/names.txt'}, unsandboxed: true}]")
        result = shell("touch out/x", "cat in/names.txt", rules=rules, callback=person)
        assert "`bwrap` is not on PATH" in printed(result)[0]
        assert "apt-get install bubblewrap" in printed(result)[0]
        assert not person.asked
        assert not (project / "out" / "x").exists()
        assert printed(result)[1] == "b\na\nb\n"
    finally:
        why_not.cache_clear()


def test_a_grant_for_a_command_shows_what_it_covers(shell: Shell) -> None:
    def broad(request: ApprovalRequest) -> ApprovalDecision:
        assert [offer.text for offer in request.offers] == ["shell with command git log **"]
        return ApprovalDecision(approved=True, grant=request.offers[0])

    person = Person(broad)
    result = shell("git log", "git log -n 1", "git push", "git log | cat", "git log; git push", callback=person)
    assert [request.payload["command"] for request in person.asked] == ["git log", "git push", "git log | cat"]
    assert [record.approval.by for record in result.trace if record.approval][:2] == ["callback", "grant"]


def test_a_command_is_parsed_once(shell: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rules judge, a person sees, grants offer and the sandbox runs the same reading of the line."""
    parsed: list[str] = []

    def count(text: str) -> Command:
        parsed.append(text)
        return parse(text)

    monkeypatch.setattr("llm_do.toolsets.shell.parse", count)
    person = Person(ApprovalDecision(approved=True), ApprovalDecision(approved=True, arguments={"command": "echo c"}))
    assert printed(shell("echo a", "echo b", callback=person)) == ["a\n", "c\n"]
    assert parsed == ["echo a", "echo b", "echo c"]


@pytest.mark.parametrize("command", ["", "echo 'a", "a && ", "| b", "echo a\0b", "x" * 30_000])
def test_a_command_that_cannot_be_parsed_is_an_error_for_the_model_and_asks_no_one(shell: Shell, command: str) -> None:
    person = Person(ApprovalDecision(approved=True))
    result = shell(command, callback=person)
    assert not person.asked
    assert result.output == "done"
    assert result.trace[1].error is not None


# -- the content of programs -------------------------------------------------------------------------------

APPROVED, OTHER = "print('approved')\n", "print('another one')\n"


def replaced(file: Path, text: str, decision: ApprovalDecision) -> Callable[[ApprovalRequest], ApprovalDecision]:
    """Return an answer before which a file is replaced."""

    def answer(request: ApprovalRequest) -> ApprovalDecision:
        other = file.with_name("other")
        other.write_text(text)
        other.chmod(0o755)
        other.replace(file)
        return decision

    return answer


YES = ApprovalDecision(approved=True)
PROGRAMS = {
    "python3 out/build.py": APPROVED,
    "python3 -W ignore /work/out/../out/build.py x": APPROVED,
    "timeout 20 python3 out/build.py": APPROVED,
    "python3 -m out.build": APPROVED,
    "echo x | python3 out/build.py": APPROVED,
    "out/build.py": f"#!/usr/bin/env python3\n{APPROVED}",
    "env out/build.py": f"#!/usr/bin/env python3\n{APPROVED}",
    "perl out/build.py": "print('approved' . chr(10));",
    "awk -f out/build.py in/names.txt": "NR == 1 { print \"approved\" }",
    "make -s -f out/build.py": "all:\n\t@echo approved\n",
}  # fmt: skip


@pytest.mark.parametrize("command", PROGRAMS)
def test_the_content_that_was_approved_runs(shell: Shell, project: Path, command: str) -> None:
    """A file that is replaced during an approval stays the same for the command that is approved."""
    file = project / "out" / "build.py"
    file.write_text(PROGRAMS[command])
    file.chmod(0o755)
    person = Person(replaced(file, PROGRAMS[command].replace("approved", "another one"), YES))
    result = shell(command, callback=person)
    assert printed(result) == ["approved\n"]
    assert "another one" in file.read_text()
    assert list(person.asked[0].payload["files"]) == ["out/build.py"]


PRINTS = {
    "python": APPROVED,
    "perl": "print('approved' . chr(10));",
    "node": "console.log('approved')",
    "bash": "echo approved\n",
    "helper": "#!/bin/sh\necho approved >&2\ncat\n",
}
DECOYS = {
    "python3 -W out/decoy out/build.py": "python",
    "python3 -X out/decoy out/build.py": "python",
    "python3 -uW out/decoy out/build.py": "python",
    "python3 --check-hash-based-pycs default out/build.py": "python",
    "python3 -W -c out/build.py": "python",
    "python3 -Wc out/build.py": "python",
    "python3 -X -W -m out.build": "python",
    "python3 //work/out/build.py": "python",
    "perl -I out/decoy out/build.py": "perl",
    "perl -ie out/build.py": "perl",
    "node --conditions out/decoy out/build.py": "node",
    "bash +O extglob -O extglob out/build.py out/decoy": "bash",
    "cd out && bash -oo errexit nounset build.py": "bash",
    "split --filter=out/build.py in/names.txt": "helper",
    "split --filter='sh out/build.py' in/names.txt": "helper",
    "tar -c --use-compress-program=out/build.py -f out/decoy in/names.txt": "helper",
    "tar -c -Iout/build.py -f out/decoy in/names.txt": "helper",
    "flock out/decoy out/build.py": "helper",
    "make -s -f in/Makefile SHELL=out/build.py": "helper",
}


@pytest.mark.parametrize("command", DECOYS)
def test_no_other_word_keeps_the_content_of_a_script_from_being_approved(
    shell: Shell, project: Path, command: str
) -> None:
    """The value of an option looks like a script, an option like the value of another, or a helper is run."""
    if DECOYS[command] == "node" and which("node") is None:
        pytest.skip("node is not installed")
    approved = PRINTS[DECOYS[command]]
    for name in ("decoy", "errexit", "nounset"):
        (project / "out" / name).touch()
    (project / "in" / "Makefile").write_text("all:\n\t@echo x\n")
    file = project / "out" / "build.py"
    file.write_text(approved)
    file.chmod(0o755)
    person = Person(replaced(file, approved.replace("approved", "another one"), YES))
    result = shell(command, rules=rule("{rule: ask, shell: true}"), callback=person)
    assert "out/build.py" in person.asked[0].payload["files"]
    assert "approved" in printed(result)[0]
    assert "another one" not in printed(result)[0]


@pytest.mark.parametrize("late", ["absent", "not executable"])
def test_a_program_that_appears_during_an_approval_is_asked_about(shell: Shell, project: Path, late: str) -> None:
    file = project / "out" / "build.py"
    if late == "not executable":
        file.write_text("x")
    person = Person(replaced(file, f"#!/usr/bin/env python3\n{OTHER}", YES))
    result = shell("timeout 20 out/build.py", callback=person)
    assert ["files" in request.payload for request in person.asked] == [False, True]
    assert "another one" not in printed(result)[0]


def test_a_path_that_may_lead_elsewhere_cannot_be_approved_as_a_program(shell: Shell, project: Path) -> None:
    """With `..` behind a symlink, the names do not tell which file is run."""
    for name in ("build.py", "a/build.py"):
        (project / "out" / name).parent.mkdir(exist_ok=True)
        (project / "out" / name).write_text(APPROVED)
    (project / "out" / "a" / "b").mkdir()
    (project / "out" / "link").symlink_to("a/b")
    person = Person(*[YES] * 3)
    detours = ("/work/out/link/../build.py", "/proc/self/cwd/out/build.py", "/usr/bin/../../work/out/build.py")
    result = shell(*(f"python3 {path}" for path in detours), callback=person)
    assert not person.asked
    assert all("without '..'" in each for each in printed(result))


@pytest.mark.parametrize("options", ["", "-u", "-B -W ignore", "-X utf8 --"])
def test_a_script_may_write_an_existing_file_that_is_its_argument(shell: Shell, project: Path, options: str) -> None:
    (project / "out" / "result.csv").write_text("old")
    (project / "out" / "convert.py").write_text("import sys\nopen(sys.argv[1], 'w').write('new')\n")
    shell(f"python3 {options} out/convert.py out/result.csv")
    assert (project / "out" / "result.csv").read_text() == "new"


def test_a_shell_runs_the_content_that_was_approved(shell: Shell, project: Path) -> None:
    file = project / "out" / "build.sh"
    file.write_text("echo approved\n")
    person = Person(*[replaced(file, "echo another one\n", YES), YES])
    result = shell(
        "sh out/build.sh > out/log; cat out/log", "bash -c '. out/build.sh'", rules=rule("{rule: ask, shell: true}"),
        callback=person,
    )  # fmt: skip
    assert printed(result) == ["approved\n", "another one\n"]


def test_a_script_in_the_folder_that_a_command_goes_to_is_the_one_that_was_approved(
    shell: Shell, project: Path
) -> None:
    file = project / "out" / "build.py"
    file.write_text(APPROVED)
    person = Person(replaced(file, OTHER, YES))
    result = shell("cd out && python3 build.py", rules=rule("{rule: ask, shell: true}"), callback=person)
    assert printed(result) == ["approved\n"]
    assert file.read_text() == OTHER


def test_a_grant_for_a_command_ends_when_the_content_of_its_program_changes(shell: Shell, project: Path) -> None:
    file = project / "out" / "build.py"
    file.write_text(APPROVED)
    session = ApprovalDecision(approved=True, approve_for_session=True)

    def change(request: ApprovalRequest) -> ApprovalDecision:
        file.write_text(OTHER)
        return YES

    person = Person(session, change)
    result = shell(*["python3 out/build.py"] * 2, "touch out/x", *["python3 out/build.py"] * 2, callback=person)
    assert printed(result)[:2] == ["approved\n"] * 2
    assert [request.payload["command"] for request in person.asked] == [
        "python3 out/build.py",
        "touch out/x",
        "python3 out/build.py",
        "python3 out/build.py",
    ]
    assert person.asked[0].payload["files"] != person.asked[2].payload["files"]


def test_a_wider_grant_does_not_cover_other_programs_than_those_it_was_given_with(shell: Shell, project: Path) -> None:
    (project / "out" / "Makefile").write_text("all:\n\t@echo made\n")

    def broad(request: ApprovalRequest) -> ApprovalDecision:
        return ApprovalDecision(approved=True, grant=request.offers[0])

    person = Person(broad)
    shell("make all", "make all -n", "make all -f out/Makefile", callback=person)
    assert [request.payload["command"] for request in person.asked] == ["make all", "make all -f out/Makefile"]


def test_files_beside_an_approved_script_are_there_and_can_be_written(shell: Shell, project: Path) -> None:
    (project / "out" / "helper.py").write_text("WORD = 'from beside'\n")
    (project / "out" / "result.txt").write_text("old")
    (project / "out" / "build.py").write_text(
        "import helper, pathlib, sys\nprint(helper.WORD, sys.argv)\n"
        "pathlib.Path(__file__).with_name('made.txt').write_text('x')\nopen(sys.argv[1], 'w').write('new')\n"
    )
    result = shell("python3 out/build.py out/result.txt")
    assert printed(result) == ["from beside ['out/build.py', 'out/result.txt']\n"]
    assert (project / "out" / "result.txt").read_text() == "new"
    assert (project / "out" / "made.txt").exists()


def test_a_script_that_is_gone_when_it_should_run_is_asked_about_again(shell: Shell, project: Path) -> None:
    file = project / "out" / "build.py"
    file.write_text(APPROVED)

    def gone(request: ApprovalRequest) -> ApprovalDecision:
        file.unlink()
        return YES

    person = Person(gone)
    shell("python3 out/build.py", callback=person)
    assert [request.payload.get("files") is None for request in person.asked] == [False, True]
    assert not file.exists()


def test_a_symlink_cannot_be_approved_as_a_program(shell: Shell, project: Path) -> None:
    (project / "out" / "build.py").write_text(APPROVED)
    (project / "out" / "link.py").symlink_to("build.py")
    (project / "out" / "folder").symlink_to(".")
    person = Person(YES, YES)
    result = shell("python3 out/link.py", "python3 out/folder/build.py", callback=person)
    assert not person.asked
    assert "Name the file itself" in printed(result)[0]
    assert "use the path of the file itself" in printed(result)[1]


def test_a_rule_that_allows_a_command_allows_whatever_its_program_is(shell: Shell, project: Path) -> None:
    """No content was approved, so none is held on to; symlinks are fine too."""
    (project / "out" / "build.py").write_text(APPROVED)
    (project / "out" / "link.py").symlink_to("build.py")
    assert printed(shell("python3 out/link.py", rules=rule("allow"))) == ["approved\n"]


def test_a_program_outside_of_the_sandbox_is_asked_about_again_when_it_changed(shell: Shell, project: Path) -> None:
    file = project / "out" / "build.py"
    file.write_text(APPROVED)
    rules = rule("{rule: ask, when: {command: 'python3 out/build.py'}, unsandboxed: true}")
    person = Person(replaced(file, OTHER, YES), YES)
    result = shell("python3 out/build.py", rules=rules, callback=person)
    assert printed(result) == ["another one\n"]
    assert [list(request.payload["files"]) for request in person.asked] == [["out/build.py"]] * 2
    assert person.asked[0].payload["files"] != person.asked[1].payload["files"]


def test_an_approved_program_shows_nothing_of_what_a_rule_hides(shell: Shell, project: Path) -> None:
    (project / "out" / "hidden.py").write_text("print('hidden')\n")
    rules = "tool_rules:\n  sandbox.read: {rule: deny, when: {path: out/hidden.py}}\n"
    assert "hidden\n" not in printed(shell("python3 out/hidden.py", rules=rules))[0]


async def test_a_script_that_is_replaced_while_it_runs_is_reported(project: Path) -> None:
    """The kernel takes the private copy away with the file that it is on, which can be seen afterwards."""
    out = project / "out"
    (out / "build.py").write_text(
        "import pathlib, time\npathlib.Path('out/started').touch()\n"
        "while not pathlib.Path('out/go').exists():\n    time.sleep(0.02)\nprint('done')\n"
    )
    (project / "workers" / "a.yaml").write_text(HEAD)
    model = scripted(calls(("shell", {"command": "python3 out/build.py"})), says("done"))
    running_task = asyncio.create_task(
        run_worker_async(
            registry=WorkerRegistry(project), worker="a", input_data="go", cli_model=model,
            approval_callback=approve_all_callback,
        )
    )  # fmt: skip
    while not (out / "started").exists():
        await asyncio.sleep(0.02)
    (out / "other").write_text(OTHER)
    (out / "other").replace(out / "build.py")
    (out / "go").touch()
    (output,) = printed(await running_task)
    assert output.startswith("done\n")
    assert "/work/out/build.py was replaced while it ran" in output
