"""Commands of a worker: judged part by part, and run in a sandbox that has only the worker's roots."""

import asyncio
import os
from pathlib import Path
from typing import Any

import pytest

from llm_do import (
    ApprovalDecision,
    ApprovalRequest,
    WorkerRegistry,
    run_worker_async,
    strict_mode_callback,
)
from llm_do.sandbox.commands.command_line import Command, parse

from ..scripted import calls, says, scripted
from .commands import HEAD, Person, Shell, printed, rule

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


def test_a_grant_for_commands_in_the_sandbox_is_for_none_outside_of_it(shell: Shell) -> None:
    very = "expr length outside"
    rules = rule(
        f"[{{rule: ask, when: {{command: 'expr **'}}}}, {{rule: allow, when: {{command: {very}}}, unsandboxed: true}}]"
    )
    person = Person(
        lambda request: ApprovalDecision(approved=True, grant=request.offers[0]), ApprovalDecision(approved=False)
    )
    shell("expr length one", "expr length two", very, rules=rules, callback=person)
    assert [request.payload["command"] for request in person.asked] == ["expr length one", very]
    assert "OUTSIDE of the sandbox" in person.asked[1].text()


def test_without_bubblewrap_nothing_runs_and_no_one_is_asked(
    shell: Shell, project: Path, monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory
) -> None:
    from llm_do.sandbox.commands.bwrap import find_sandbox_problem

    programs = tmp_path_factory.mktemp("bin")
    for name in ("cat", "env"):
        (programs / name).symlink_to(f"/bin/{name}")
    monkeypatch.setenv("PATH", str(programs))
    find_sandbox_problem.cache_clear()
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
        find_sandbox_problem.cache_clear()


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
