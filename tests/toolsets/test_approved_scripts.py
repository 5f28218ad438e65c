"""Files that a command runs: the content that a person approved is the one that runs."""

import asyncio
from collections.abc import Callable
from pathlib import Path
from shutil import which

import pytest

from llm_do import (
    ApprovalDecision,
    ApprovalRequest,
    WorkerRegistry,
    approve_all_callback,
    run_worker_async,
)

from ..scripted import calls, says, scripted
from .commands import HEAD, Person, Shell, printed, rule

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
