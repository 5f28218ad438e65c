"""Whose project runs: one of another user is refused, and looking at one asks before its code is imported."""

import os
import pty
import select
import shlex
import shutil
import stat
import subprocess
import sys
import time
from pathlib import Path

import pytest

from llm_do import SandboxConfig, SandboxManager, WorkerFileError, WorkerRegistry
from llm_do.cli.support.projects import is_trusted
from llm_do.errors import PathDenied, ProjectCodeError
from llm_do.machine.files import foreign_part, own_users
from llm_do.machine.remembered import Remembered

from ..processes import PATIENCE
from .in_process import AtTerminal, RunHere, at_terminal_here, run_here

__all__ = ["at_terminal_here", "run_here"]

LLM_DO = str(Path(sys.executable).with_name("llm-do"))
OTHER = 54321
"""A user who is not the one of the tests."""
AS_ROOT = os.geteuid() == 0
needs_root = pytest.mark.skipif(not AS_ROOT, reason="only root can be another user than the owner of a whole folder")


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A project with code that leaves a mark when it runs, and a folder below it."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.setenv("LLM_DO_NO_LOCAL", "1")
    monkeypatch.delenv("SUDO_UID", raising=False)
    root = tmp_path / "project"
    (root / "workers/calc").mkdir(parents=True)
    (root / "sub").mkdir()
    (root / "workers/helper.md").write_text("---\nmodel: test\ntools: [add]\n---\nHelp.\n")
    (root / "workers/calc/worker.md").write_text("Count.\n")
    (root / "workers/calc/tools.py").write_text("def one() -> int:\n    return 1\n")
    (root / "shapes.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w').close()\n")
    (root / "tools.py").write_text(
        "import shapes\nfrom llm_do import entry\n@entry\ndef add(a: int) -> int:\n    return a + 1\n"
    )
    return root


def llm_do(*args: str, cwd: Path, user: int | None = None) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [LLM_DO, *args], cwd=cwd, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=PATIENCE, user=user
    )


def at_a_terminal(*args: str, cwd: Path, answer: str = "") -> tuple[int, str]:
    """Run the program at a terminal, and answer when it asks whether the project is trusted."""
    pid, terminal = pty.fork()
    if pid == 0:  # pragma: no cover - another process
        os.chdir(cwd)
        os.execv(LLM_DO, [LLM_DO, *args])
    said, until = "", time.monotonic() + PATIENCE
    while time.monotonic() < until:
        if not select.select([terminal], [], [], 0.5)[0]:
            continue
        try:
            said += os.read(terminal, 4096).decode(errors="replace")
        except OSError:  # it has ended
            break
        if answer and "Do you trust this project?" in said:
            os.write(terminal, f"{answer}\n".encode())
            answer = ""
    os.close(terminal)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), said


def give_away(path: Path) -> None:
    """Make something belong to another user. Who is not root puts a link to something of root in its place."""
    if AS_ROOT:
        os.chown(path, OTHER, -1)
    elif path.is_dir():
        shutil.rmtree(path)
        path.symlink_to("/etc")
    else:
        path.unlink()
        path.symlink_to("/etc/passwd")


def ran(project: Path) -> bool:
    """Whether code of the project ran since the last time."""
    mark = project.parent / "ran"
    found = mark.exists()
    mark.unlink(missing_ok=True)
    return found


# -- projects of other users -----------------------------------------------------------------------------


PARTS = [
    pytest.param(".", marks=needs_root),
    "workers",
    "tools.py",
    "shapes.py",
    "workers/helper.md",
    pytest.param("workers/calc", marks=needs_root),
    "workers/calc/tools.py",
]


@pytest.mark.parametrize("part", PARTS)
def test_a_project_above_of_another_user_is_refused(project: Path, part: str, run_here: RunHere) -> None:
    """Neither the project nor any file of it that would run may belong to another user. `llm-do trust` says yes."""
    give_away(project / part)
    name = "calc" if part.startswith("workers/calc") else "helper"
    done = run_here("run", name, "x", "-m", "test", cwd=project / "sub")
    assert done.returncode != 0
    assert "belongs to another user" in done.stderr and f"llm-do trust {project}" in done.stderr
    assert "Usage:" not in done.stderr
    if part != "workers/helper.md" and not part.startswith("workers/calc"):
        assert not ran(project)
    assert run_here("trust", str(project), cwd=project).returncode == 0
    done = run_here("run", name, "x", "-m", "test", cwd=project / "sub")
    assert "belongs to another user" not in done.stderr
    assert done.returncode == 0 or not AS_ROOT  # what is in /etc is no worker


@needs_root
def test_a_link_of_another_user_is_not_followed(project: Path, run_here: RunHere) -> None:
    """A link to one's own file is still somebody else's choice of what runs."""
    (project / "tools.py").rename(project.parent / "mine.py")
    (project / "tools.py").symlink_to(project.parent / "mine.py")
    os.chown(project / "tools.py", OTHER, -1, follow_symlinks=False)
    assert "belongs to another user" in run_here("run", "helper", "x", cwd=project / "sub").stderr
    assert not ran(project)


@needs_root
def test_a_link_of_another_user_that_leads_nowhere_is_foreign_too(tmp_path: Path) -> None:
    """What it leads to may come to be between the check and the use."""
    link = tmp_path / "tools.py"
    link.symlink_to(tmp_path / "missing")
    os.chown(link, OTHER, -1, follow_symlinks=False)
    assert foreign_part(link, tmp_path, own_users()) == link


@needs_root
def test_a_project_that_is_named_runs(project: Path, run_here: RunHere) -> None:
    """Who goes to its folder, or names it, wants it."""
    for path in (project, *project.rglob("*")):
        os.chown(path, OTHER, -1)
    assert run_here("run", "add", "a=1", cwd=project).stdout == "2\n"
    assert run_here("-C", str(project), "run", "add", "a=1", cwd=project / "sub").stdout == "2\n"
    assert run_here("-C", str(project / "sub"), "run", "add", "a=1", cwd=project).returncode == 2


@needs_root
def test_files_of_the_user_who_called_sudo_are_ones_own(
    project: Path, monkeypatch: pytest.MonkeyPatch, run_here: RunHere
) -> None:
    """As git does it."""
    for path in (project, *project.rglob("*")):
        os.chown(path, OTHER, -1)
    assert run_here("run", "add", "a=1", cwd=project / "sub").returncode == 2
    monkeypatch.setenv("SUDO_UID", str(OTHER))
    assert run_here("run", "add", "a=1", cwd=project / "sub").stdout == "2\n"


def test_code_of_another_user_beside_a_lone_worker_is_refused(project: Path, run_here: RunHere) -> None:
    """A worker in a folder for everybody, such as /tmp, brings no code of others along."""
    lone = project / "sub" / "lone.md"
    lone.write_text("---\nmodel: test\n---\nHelp.\n")
    (project / "sub/tools.py").write_text((project / "shapes.py").read_text())
    if AS_ROOT:
        give_away(project / "sub")
    assert run_here("run", "./lone.md", "x", cwd=project / "sub").returncode == 0
    assert ran(project)
    give_away(project / "sub/tools.py")
    done = run_here("run", "./lone.md", "x", cwd=project / "sub")
    assert (done.returncode, "belongs to another user" in done.stderr, ran(project)) == (2, True, False)


LONE = {
    "a module that its code imports": ("tools.py", "import planted\n", "planted.py"),
    "a module of a package": ("tools.py", "from lib import planted\n", "lib/planted.py"),
    "the class of its input": ("lone.md", "---\nmodel: test\ninput: planted.py:X\n---\nHelp.\n", "planted.py"),
    "settings": ("tools.py", "", "llm-do.toml"),
}


@pytest.mark.parametrize("what", LONE)
def test_nothing_of_another_user_is_used_for_a_lone_worker(project: Path, what: str, run_here: RunHere) -> None:
    """What is planted beside a worker in a folder for everybody does not run, until the folder is trusted."""
    folder = project / "sub"
    (folder / "lone.md").write_text("---\nmodel: test\n---\nHelp.\n")
    (folder / "lib").mkdir()
    path, text, planted = LONE[what]
    said = [] if path == "lone.md" else ["x"]
    (folder / path).write_text(text)
    if planted.endswith(".py"):
        (folder / planted).write_text((project / "shapes.py").read_text() + "from pydantic import BaseModel as X\n")
    elif planted.endswith(".toml"):
        (folder / planted).write_text("")
    if AS_ROOT:
        give_away(folder)
    assert run_here("run", "./lone.md", *said, cwd=folder).returncode == 0
    assert ran(project) == planted.endswith(".py")
    give_away(folder / planted)
    done = run_here("run", "./lone.md", *said, cwd=folder)
    assert f"{planted} belongs to another user" in done.stderr and f"llm-do trust {folder}" in done.stderr
    assert (done.returncode != 0, ran(project)) == (True, False)
    run_here("trust", str(folder), cwd=folder)
    assert "belongs to another user" not in run_here("run", "./lone.md", *said, cwd=folder).stderr


@needs_root
def test_a_lone_worker_that_is_named_runs(tmp_path: Path, run_here: RunHere) -> None:
    """As a project that is named does: it may be one that root installed for all."""
    lone = tmp_path / "lone.md"
    lone.write_text("---\nmodel: test\n---\nHelp.\n")
    give_away(lone)
    assert run_here("run", str(lone), "x", cwd=tmp_path).returncode == 0


def test_a_planted_project_in_a_folder_for_everybody_is_refused(project: Path, run_here: RunHere) -> None:
    """What another user left in /tmp is not the project of a folder below it."""
    top = project.parent
    top.chmod(0o1777)
    (top / "workers").mkdir()
    (top / "tools.py").write_text((project / "shapes.py").read_text())
    give_away(top / "tools.py")
    shutil.rmtree(project)
    (top / "mine").mkdir()
    done = run_here("run", "add", "a=1", cwd=top / "mine")
    assert (done.returncode, "belongs to another user" in done.stderr) == (2, True)
    assert not (top / "ran").exists()


@needs_root
def test_an_ordinary_user_is_held_to_the_same(project: Path) -> None:
    """Files of root are those of another user, too."""
    for folder in (project.parent, *project.parent.parents):
        if not os.access(folder, os.X_OK) or not folder.stat().st_mode & stat.S_IXOTH:
            pytest.skip(f"no other user can enter {folder}")
    done = llm_do("list", cwd=project / "sub", user=OTHER)
    assert "belongs to another user" in done.stderr


def test_what_belongs_to_root_is_foreign_to_others() -> None:
    """For whoever runs the tests: files of the system belong to root."""
    etc = Path("/etc/passwd")
    assert foreign_part(etc, Path("/etc"), {OTHER}) == Path("/etc")
    assert foreign_part(etc, Path("/etc"), {0}) is None
    assert os.geteuid() in own_users()


@pytest.mark.parametrize("what", ["worker", "config", "code", "own_tools"])
def test_a_registry_uses_no_file_of_others(project: Path, what: str) -> None:
    """The same for Python: `owners` are the users whose files are used."""
    (project / "llm-do.toml").write_text("")
    registry = WorkerRegistry(project, owners={OTHER})  # the files are those of the user of the tests
    with pytest.raises((WorkerFileError, ProjectCodeError), match="belongs to another user"):
        if what == "worker":
            registry.definition("helper")
        elif what == "config":
            _ = registry.config
        elif what == "code":
            registry["add"]
        else:
            registry.own_tools("calc")
    assert not ran(project)
    assert WorkerRegistry(project, owners=own_users())["add"].name == "add"


def test_a_refusal_is_no_mistake_on_the_command_line(project: Path, run_here: RunHere) -> None:
    """Of a project of another user, or of none at all, only the error is printed."""
    give_away(project / "tools.py")
    done = run_here("list", cwd=project / "sub")
    assert done.returncode == 2 and done.stderr.startswith("Error: The project in ") and "Usage:" not in done.stderr
    done = run_here("list", cwd=project.parent)
    assert done.returncode == 2 and done.stderr.startswith("Error: There is no project in ")


def test_the_command_in_a_refusal_can_be_copied(project: Path) -> None:
    """Also where the path of the project has a space."""
    registry = WorkerRegistry(project.rename(project.with_name("my project")), owners={OTHER})
    with pytest.raises(WorkerFileError) as of_worker:
        registry.definition("helper")
    with pytest.raises(ProjectCodeError) as of_code:
        registry["add"]
    for refusal in (of_worker.value, of_code.value):
        assert shlex.split(str(refusal).rpartition(": ")[2]) == ["llm-do", "trust", str(registry.root)]


# -- asking before code runs -----------------------------------------------------------------------------


COMMANDS = [["check"], ["show", "helper"], ["rules", "list"], ["rules", "why", "helper", "add", "a=1"]]


@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
def test_looking_at_a_project_asks_once_at_a_terminal(
    project: Path, command: list[str], at_terminal_here: AtTerminal
) -> None:
    """A no runs nothing, and a yes is remembered."""
    code, said = at_terminal_here(*command, cwd=project, answer="n")
    assert (code, "not trusted" in said, ran(project)) == (2, True, False)
    assert "Usage:" not in said and f"llm-do trust {project}" in said.replace("\r\n", "")
    code, said = at_a_terminal(*command, cwd=project, answer="y")
    assert (code, ran(project)) == (0, True)
    assert f"imports the Python code of {project}" in " ".join(said.split())
    code, said = at_terminal_here(*command, cwd=project)
    assert (code, "trust" in said, ran(project)) == (0, False, True)


def test_the_name_of_a_folder_does_not_rewrite_the_question(
    project: Path, run_here: RunHere, at_terminal_here: AtTerminal
) -> None:
    hostile = project.rename(project.with_name("p\x1b[2K\rup to date.\nPress y to see news\x1b[8m"))
    _, said = at_terminal_here("check", cwd=hostile, answer="y")
    assert "\x1b[2K" not in said and "\x1b[8m" not in said and "\nPress y" not in said
    assert "Press y to see news" not in run_here("trust", "--list", cwd=hostile).stdout.splitlines()


@pytest.mark.parametrize("hidden", [".lib", "lib"])
def test_code_behind_a_link_is_asked_about(project: Path, hidden: str, at_terminal_here: AtTerminal) -> None:
    """Python follows links, also into folders that are hidden."""
    away = project / hidden if hidden.startswith(".") else project.parent / hidden
    for file in project.rglob("*.py"):
        file.unlink()
    away.mkdir()
    (away / "__init__.py").write_text(f"open({str(project.parent / 'ran')!r}, 'w').close()\n")
    (project / "tools").symlink_to(away)
    (project / "workers/helper.md").write_text("---\nmodel: test\n---\nHelp.\n")
    code, said = at_terminal_here("check", cwd=project, answer="n")
    assert (code, "not trusted" in said, ran(project)) == (2, True, False)


def test_who_has_no_home_works_without_answers(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A container's user may be a bare number. Such a user has said yes to nothing, and workers have their files."""

    def no_such_user(uid: int) -> None:
        raise KeyError(uid)

    monkeypatch.delenv("HOME", raising=False)
    monkeypatch.setattr("pwd.getpwuid", no_such_user)
    for named in ("", "relative"):
        monkeypatch.setenv("XDG_STATE_HOME", named)
        assert not is_trusted(project)
        config = SandboxConfig.model_validate({"paths": {"in": {"root": "sub"}}})
        assert SandboxManager(config, base=project).protected == []


def test_without_a_terminal_it_is_said_in_one_line(project: Path, run_here: RunHere) -> None:
    """In CI, nobody could answer."""
    done = run_here("check", "--json", cwd=project)
    assert (done.returncode, ran(project)) == (0, True)
    assert len(done.stderr.splitlines()) == 1 and f"imports the Python code of {project}" in done.stderr
    assert done.stdout.startswith("{")
    run_here("trust", cwd=project / "sub")
    assert run_here("check", "--json", cwd=project).stderr == ""


def test_a_project_without_code_is_not_asked_about(project: Path, run_here: RunHere) -> None:
    """There is nothing that could run."""
    for file in project.rglob("*.py"):
        file.unlink()
    (project / "workers/helper.md").write_text("---\nmodel: test\n---\nHelp.\n")
    assert run_here("check", cwd=project).stderr == ""


def test_running_asks_nothing_about_trust(project: Path) -> None:
    """To run a project of one's own is to trust it, also at a terminal."""
    code, said = at_a_terminal("run", "add", "a=1", cwd=project)
    assert (code, "trust" in said, ran(project)) == (0, False, True)


def test_what_new_made_is_trusted(project: Path, run_here: RunHere, at_terminal_here: AtTerminal) -> None:
    """The first hour has no question about it."""
    done = run_here("new", "project", "mine", cwd=project.parent)
    assert done.returncode == 0 and "trust" not in done.stderr
    made = project.parent / "mine"
    for command in (["check"], ["show", "helper"], ["rules", "list"]):
        code, said = at_terminal_here(*command, cwd=made)
        assert (code, "trust" in said) == (0, False)


def test_a_project_is_made_though_nothing_can_be_remembered(
    project: Path, monkeypatch: pytest.MonkeyPatch, run_here: RunHere
) -> None:
    """A home that cannot be written is no reason to fail."""
    monkeypatch.setenv("XDG_STATE_HOME", str(project / "tools.py"))
    done = run_here("new", "project", "mine", cwd=project.parent)
    assert (done.returncode, (project.parent / "mine/workers").is_dir()) == (0, True)
    assert "the answer is not remembered" in done.stderr


# -- llm-do trust ----------------------------------------------------------------------------------------


def test_trust_is_listed_and_removed(project: Path, run_here: RunHere) -> None:
    """By real paths, also when the folder is gone."""
    (project.parent / "link").symlink_to(project)
    assert run_here("trust", "link", cwd=project.parent).returncode == 0
    assert run_here("trust", "--list", cwd=project).stdout == f"{project}\n"
    shutil.rmtree(project)
    assert run_here("trust", "--remove", str(project), cwd=project.parent).returncode == 0
    assert run_here("trust", "--list", cwd=project.parent).stdout == ""
    done = run_here("trust", "--remove", str(project), cwd=project.parent)
    assert (done.returncode, "is not trusted" in done.stderr) == (2, True)
    assert "There is no folder" in run_here("trust", str(project), cwd=project.parent).stderr


@pytest.mark.parametrize("words", ["--list --remove foo", "--list --remove", "--list foo"])
def test_listing_goes_with_nothing_else(project: Path, run_here: RunHere, words: str) -> None:
    """Words that would be ignored are a mistake on the command line."""
    done = run_here("trust", *words.split(), cwd=project)
    assert (done.returncode, done.stdout) == (2, "")
    assert "Usage:" in done.stderr and "--list takes neither --remove nor a folder" in done.stderr


def test_a_folder_that_is_no_project_is_not_trusted(project: Path, run_here: RunHere) -> None:
    """There is nothing in it that llm-do would run; the project around it is named, if there is one."""
    done = run_here("trust", project.parent, cwd=project)
    assert (done.returncode, "is not a project" in done.stderr) == (2, True)
    done = run_here("trust", "sub", cwd=project)
    assert (done.returncode, done.stderr.endswith(f"llm-do trust {project}\n")) == (2, True)
    assert Remembered.load().subjects("project") == []
    (project / "sub/tools.py").write_text("")  # of a lone worker, which is asked about as well
    assert run_here("trust", "sub", cwd=project).returncode == 0


OPEN_PARTS = {".": 0o777, "workers": 0o1777, "tools.py": 0o666, "..": 0o777}


@pytest.mark.parametrize("part", OPEN_PARTS)
def test_what_every_user_can_write_is_not_trusted(project: Path, run_here: RunHere, part: str) -> None:
    """Any other user could change what runs. The error says what to do, and that is enough."""
    path = (project / part).resolve()
    path.chmod(OPEN_PARTS[part])
    done = run_here("trust", cwd=project)
    assert done.returncode == 2 and done.stderr.startswith(f"Error: {path} can be written by every user")
    assert Remembered.load().subjects("project") == []
    subprocess.run(done.stderr.strip().rpartition(": ")[2].split(), check=True)
    assert run_here("trust", cwd=project).returncode == 0


def test_a_folder_for_all_users_is_not_to_be_closed(project: Path, run_here: RunHere) -> None:
    """`chmod o-w /tmp` would be bad advice."""
    project.chmod(0o1777)
    done = run_here("trust", cwd=project)
    assert (done.returncode, "chmod" in done.stderr) == (2, False)
    assert "Move it to a folder of yours." in done.stderr


def test_what_a_group_can_write_is_trusted(project: Path, run_here: RunHere) -> None:
    """As git has it: many systems give each user a group of their own. So is a project in a folder such as /tmp."""
    for path in (project, *project.rglob("*")):
        path.chmod(path.stat().st_mode | stat.S_IWGRP)
    project.parent.chmod(0o1777)
    assert run_here("trust", cwd=project).returncode == 0


def test_a_yes_to_what_every_user_can_write_is_for_this_time(project: Path, at_terminal_here: AtTerminal) -> None:
    """The person said yes, and is asked again."""
    project.chmod(0o777)
    code, said = at_terminal_here("check", cwd=project, answer="y")
    assert (code, ran(project), "can be written by every user" in said) == (0, True, True)
    assert not is_trusted(project)


def test_a_yes_that_cannot_be_kept_is_for_this_time(
    project: Path, monkeypatch: pytest.MonkeyPatch, at_terminal_here: AtTerminal
) -> None:
    """A home that cannot be written is no reason to fail. The yes counts for files of other users, too."""
    monkeypatch.setenv("XDG_STATE_HOME", "/proc/nothing")
    give_away(project / "shapes.py")
    code, said = at_terminal_here("check", cwd=project / "sub", answer="y")
    assert "the answer is not remembered" in " ".join(said.split())
    assert "belongs to another user" not in " ".join(said.split())
    assert (code, ran(project)) == (0, True) or not AS_ROOT  # what is in /etc is no code


@pytest.mark.parametrize("command", [["check"], ["run", "add", "a=1"]], ids=" ".join)
def test_a_broken_file_of_answers_is_told_and_has_no_yes(project: Path, command: list[str], run_here: RunHere) -> None:
    """A command that needs no yes goes on, also from a folder below; what needs one is refused."""
    file = project.parent / "state/llm-do/remembered.json"
    file.parent.mkdir(parents=True)
    file.write_text("{")
    done = llm_do(*command, cwd=project / "sub")  # a process: its log is on standard error
    assert (done.returncode, ran(project)) == (0, True)
    assert done.stderr.count(f"{file} is broken: move it away") == 1
    give_away(project / "tools.py")
    done = run_here(*command, cwd=project / "sub")
    assert (done.returncode, ran(project)) == (2, False)
    assert "belongs to another user" in done.stderr and "Usage:" not in done.stderr


@pytest.fixture
def answers(project: Path) -> Path:
    Remembered.load().add("project", "/somewhere")
    return project.parent / "state"


@pytest.mark.parametrize("path", ["llm-do/remembered.json", "LLM-DO/Remembered.json", "llm-do/new.json"])
def test_no_root_reaches_the_answers(answers: Path, path: str) -> None:
    """A worker with a folder around them neither reads nor writes them."""
    config = SandboxConfig.model_validate({"paths": {"home": {"root": str(answers), "mode": "rw"}}})
    with SandboxManager(config, base=answers) as manager:
        with pytest.raises(PathDenied):
            manager.root("home").scan(path, b"".join)
        with pytest.raises(PathDenied):
            manager.root("home").write(path, b"{}")
    assert Remembered.load().subjects("project") == ["/somewhere"]


# -- python -m llm_do ------------------------------------------------------------------------------------


@pytest.mark.parametrize("args", [["--help"], ["list"], ["check"]], ids=" ".join)
def test_the_module_imports_nothing_from_the_current_folder(project: Path, args: list[str]) -> None:
    """A file there that is called like a library does not run, though Python looks there first."""
    here = project / "sub" / "here"
    here.mkdir()
    names = ("typing", "json", "click", "pathlib", "yaml", "rich", "pydantic", "re", "shutil", "lazy_loader", "anyio")
    for name in names:
        (here / f"{name}.py").write_text("open('ran-here', 'w').close()\n")
    done = subprocess.run(
        [sys.executable, "-m", "llm_do", *args], cwd=here, capture_output=True, text=True, timeout=PATIENCE
    )
    assert done.returncode == 0, done.stderr
    assert not (here / "ran-here").exists()
