"""Repositories in writable roots: no command and no tool of a model decides what a person's next `git status` runs."""

import asyncio
import errno
import logging
import os
import shutil
import subprocess
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from llm_do import (
    PathDenied,
    PathFailed,
    RootConfig,
    SandboxConfig,
    SandboxManager,
    SandboxToolset,
    WorkerFileError,
    WorkerRegistry,
)
from llm_do.sandbox.commands.bwrap import BwrapRunner, find_sandbox_problem
from llm_do.sandbox.commands.bwrap_program import BwrapProgram
from llm_do.sandbox.commands.command_line import parse
from llm_do.sandbox.commands.mounts import Mount, RepositoryGuard, open_mount, plan_mounts
from llm_do.sandbox.commands.processes import CommandResult, ShellLimits
from llm_do.sandbox.roots import system_calls
from llm_do.sandbox.roots.repositories import DISABLED, disable_new, is_repository_name, repository_around

SETTINGS = "[core]\n\trepositoryformatversion = 0\n\tfsmonitor = touch {}\n"


@pytest.fixture
def out(tmp_path: Path) -> Path:
    folder = tmp_path / "out"
    folder.mkdir()
    return folder


@pytest.fixture
def files(out: Path) -> SandboxToolset:
    config = SandboxConfig(paths={"out": RootConfig(root="out", mode="rw")})
    return SandboxToolset(SandboxManager(config, base=out.parent))


def git(folder: Path, *words: str) -> str:
    """Run git as a person does who trusts no setting but those of repositories."""
    environment = {"PATH": os.environ["PATH"], "HOME": "/nonexistent", "GIT_CONFIG_NOSYSTEM": "1"}
    names = {f"GIT_{who}_{what}": "x@example.org" for who in ("AUTHOR", "COMMITTER") for what in ("NAME", "EMAIL")}
    done = subprocess.run(["git", *words], cwd=folder, env=environment | names, capture_output=True, text=True)
    return done.stdout + done.stderr


async def command(out: Path, text: str, **limits: Any) -> CommandResult:
    mounts = [Mount(name="out", folder=out, writable=True)]
    return await BwrapRunner(mounts).run(parse(text), ShellLimits(**limits))


def script(*lines: str) -> str:
    """A command that runs some lines in a shell."""
    return "sh -c '" + "; ".join(lines).replace("'", "'\\''") + "'"


def planted(folder: str, mark: Path) -> list[str]:
    """Lines that make a repository without the name, whose settings run a program."""
    settings = SETTINGS.format(mark).replace("\n", "\\n").replace("\t", "\\t")
    make = f"mkdir -p {folder}/objects {folder}/refs"
    return [make, f'printf "ref: refs/heads/main\\n" > {folder}/HEAD', f'printf "{settings}" > {folder}/config']


def ran_nothing(out: Path, mark: Path) -> bool:
    """Go into every folder as a person does, and see whether that ran anything."""
    for folder in (out, *(path for path in out.rglob("*") if path.is_dir())):
        for words in (["status"], ["--work-tree=.", "status"]):
            git(folder, *words)
    return not mark.exists()


# -- commands ----------------------------------------------------------------------------------------------


async def test_settings_of_a_repository_that_is_there_cannot_be_changed(out: Path, tmp_path: Path) -> None:
    mark = tmp_path / "mark"
    for name in ("repo", "deep/er/repo"):
        (out / name).mkdir(parents=True)
        git(out / name, "init")
    result = await command(
        out,
        script(
            f"git -C out/repo config core.fsmonitor \"touch {mark}\"",
            "echo x >> out/deep/er/repo/.git/config",
            "rm -rf out/repo/.git",
            "mv out/repo/.git out/repo/old",
            "chmod 777 out/repo/.git",
            "touch out/repo/file",
            "git -C out/repo status --short",
        ),
    )  # fmt: skip
    assert "?? file" in result.stdout
    assert result.disabled == ()
    assert git(out / "repo", "status", "--short") == "?? file\n"
    assert ran_nothing(out, mark)


async def test_a_work_tree_and_a_bare_repository_that_are_there_cannot_be_changed(out: Path, tmp_path: Path) -> None:
    mark = tmp_path / "mark"
    git(out, "init", "--bare", "store")
    git(tmp_path, "init", "main")
    git(tmp_path / "main", "commit", "--allow-empty", "-m", "x")
    git(tmp_path / "main", "worktree", "add", str(out / "tree"))
    before = (out / "tree" / ".git").read_text()
    lines = [
        "echo gitdir: /tmp > out/tree/.git",
        "rm -f out/tree/.git",
        f"git -C out/store config core.fsmonitor \"touch {mark}\"",
        "mv out/store/config out/store/old",
        "mkdir out/store/hooks2",
    ]  # fmt: skip
    result = await command(out, script(*lines))
    assert result.disabled == ()
    assert (out / "tree" / ".git").read_text() == before
    assert not (out / "store" / "hooks2").exists()
    assert ran_nothing(out, mark)


async def test_a_repository_that_a_command_makes_is_disabled_and_told(out: Path, tmp_path: Path, caplog: Any) -> None:
    mark = tmp_path / "mark"
    lines = ["git init -q out/new", f"git -C out/new config core.fsmonitor \"touch {mark}\""]  # fmt: skip
    with caplog.at_level(logging.WARNING, "llm_do"):
        result = await command(out, script(*lines))
    assert any(each.startswith("out/new/.git was renamed") for each in result.disabled)
    assert "out/new/.git was renamed" in caplog.text
    assert (out / "new" / f".git{DISABLED}" / "config").exists()
    assert ran_nothing(out, mark)


HIDING = {
    "without the name": planted("out/a", Path("MARK")),
    "at the top of the root": planted("out", Path("MARK")),
    "under a name of its own": [*planted("out/store", Path("MARK")), "echo gitdir: store > out/.git"],
    "by a symlink": [*planted("out/store", Path("MARK")), "ln -s store out/.git"],
    "in a disabled one": [*planted(f"out/.git{DISABLED}", Path("MARK"))],
    "inside of another": ["git init -q out/a", *planted("out/a/.git/modules/b", Path("MARK"))],
    "with shared settings": [
        *planted("out/store", Path("MARK")),
        "mkdir out/a",
        "cp out/store/HEAD out/a",
        "echo ../store > out/a/commondir",
    ],
    "that cannot be listed": ["mkdir out/a", *planted("out/a/.git", Path("MARK")), "chmod 311 out/a"],
    "that cannot be written": ["mkdir out/a", *planted("out/a/.git", Path("MARK")), "chmod 555 out/a out/a/.git"],
    "among many": [
        "mkdir out/many; cd out/many",
        "for a in $(seq 40)",
        "do mkdir $a $a/x",
        "touch $a/1 $a/2",
        "done",
        "cd ../..",
        *planted("out/many/40/x/.git", Path("MARK")),
    ],
    "deep down": [*planted("out/" + "d/" * 40 + "x", Path("MARK"))],
}


@pytest.mark.parametrize("where", HIDING)
async def test_no_repository_that_a_command_makes_stays(out: Path, tmp_path: Path, where: str) -> None:
    mark = tmp_path / "mark"
    text = script(*HIDING[where]).replace("MARK", str(mark)).replace("; do ", " ; do ").replace("do;", "do")
    result = await command(out, text)
    assert result.disabled, result
    assert ran_nothing(out, mark)


@pytest.mark.parametrize("end", ["timeout", "cancel"])
async def test_a_command_that_is_stopped_leaves_no_repository_either(out: Path, tmp_path: Path, end: str) -> None:
    mark = tmp_path / "mark"
    settings = f"git -C out/new config core.fsmonitor \"touch {mark}\""  # fmt: skip
    text = script("git init -q out/new", settings, "sleep 300")
    if end == "timeout":
        result = await command(out, text, seconds=3)
        assert result.timed_out
    else:
        running = asyncio.ensure_future(command(out, text))
        while "fsmonitor" not in _text(out / "new" / ".git" / "config"):
            await asyncio.sleep(0.02)
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running
    assert not (out / "new" / ".git").exists()
    assert ran_nothing(out, mark)


def _text(file: Path) -> str:
    return file.read_text() if file.exists() else ""


async def test_a_repository_that_is_moved_with_its_folder_stays_what_it_is(out: Path) -> None:
    (out / "repo").mkdir()
    git(out / "repo", "init")
    result = await command(out, script("mv out/repo out/moved", "git init -q out/repo"))
    assert (out / "moved" / ".git" / "HEAD").exists()
    assert [each.split()[0] for each in result.disabled] == ["out/repo/.git", f"out/repo/.git{DISABLED}/HEAD"]


@pytest.mark.parametrize("missing", ["nothing", "flags of renameat2", "flags and hard links"])
@pytest.mark.parametrize("kind", ["folder", "file", "symlink", "bare"])
def test_a_new_repository_is_disabled_whatever_the_system_lacks(
    out: Path, tmp_path: Path, kind: str, missing: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also without the flags of `renameat2` and without hard links; what has the new name already stays as it is."""

    def no_hard_links(*args: Any, **options: Any) -> None:
        raise PermissionError(errno.EPERM, os.strerror(errno.EPERM))

    if missing != "nothing":
        monkeypatch.setattr(system_calls, "_renameat2", None)
    if missing == "flags and hard links":
        monkeypatch.setattr(os, "link", no_hard_links)
    mark, elsewhere = tmp_path / "mark", tmp_path / "elsewhere"
    git(tmp_path, "init", "--bare", str(elsewhere))
    (elsewhere / "config").write_text(SETTINGS.format(mark))
    if kind == "folder":
        elsewhere.rename(out / ".git")
    elif kind == "file":
        (out / ".git").write_text(f"gitdir: {elsewhere}\n")
    elif kind == "symlink":
        (out / ".git").symlink_to(elsewhere)
    else:
        elsewhere.rename(out / "bare")
    folder, name = (out / "bare", "HEAD") if kind == "bare" else (out, ".git")
    (folder / f"{name}{DISABLED}").mkdir()
    top = os.open(out, os.O_RDONLY)
    try:
        renamed, failed = disable_new(top, frozenset())
    finally:
        os.close(top)
    assert str((folder / name).relative_to(out)) in renamed and not failed
    assert not os.path.lexists(folder / name) and os.path.lexists(folder / f"{name}{DISABLED}1")
    assert list((folder / f"{name}{DISABLED}").iterdir()) == []
    git(folder, "--work-tree=.", "status")
    git(folder, "status")
    assert not mark.exists()


async def test_a_repository_in_the_deepest_folder_that_git_enters_is_disabled(out: Path, tmp_path: Path) -> None:
    """A link with a short name leads a person there, and git follows as long as the whole path is not too long."""
    mark = tmp_path / "mark"
    length = 4095 - len(f"{out}//.git/objects")
    names = ["d" * 250] * (length // 251)
    names += ["e" * (length - 251 * len(names))]
    (out / "docs").symlink_to("/".join(names))
    lines = [f"cd {name}" for name in ("out", *names)]
    result = await command(out, script(*(f"mkdir -p {line[3:]}; {line}" for line in lines), *planted(".git", mark)))
    assert result.disabled, result
    git(out / "docs", "status")
    assert not mark.exists()


async def test_a_repository_that_is_moved_while_a_command_starts_is_not_left_open(
    out: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another command may move its folder between the search and the mount. Then nothing runs."""
    git(out, "init", "repo")
    before = (out / "repo/.git/config").read_text()
    real = shutil.which("bwrap")
    bwrap = tmp_path / "bin" / "bwrap"
    bwrap.parent.mkdir()
    bwrap.write_text(f'#!/bin/sh\nif [ -e {out}/repo ]; then /bin/mv {out}/repo {out}/moved; fi\nexec {real} "$@"\n')
    bwrap.chmod(0o755)
    assert find_sandbox_problem() is None  # which is found out with the real one
    monkeypatch.setenv("PATH", f"{bwrap.parent}:{os.environ['PATH']}")
    stop = BwrapProgram.stop

    async def stop_late(program: BwrapProgram) -> None:
        await asyncio.sleep(0.3)  # as on a busy machine
        await stop(program)

    monkeypatch.setattr(BwrapProgram, "stop", stop_late)
    with pytest.raises(PathFailed, match="changed while the sandbox was set up"):
        await command(out, script("echo planted >> out/moved/.git/config"))
    assert (out / "moved/.git/config").read_text() == before


def test_a_repository_that_is_gone_when_it_is_to_be_mounted_stops_the_command(out: Path) -> None:
    """It may be elsewhere, where the command could change it."""
    git(out, "init", "repo")
    with ExitStack() as stack:
        mounts = [open_mount(Mount(name="out", folder=out, writable=True), stack)]
        guard = RepositoryGuard(mounts)
        (out / "repo").rename(out / "moved")
        for again in (False, True):
            if again:
                git(out, "init", "repo")
            with pytest.raises(PathFailed, match="changed while the sandbox was set up"):
                plan_mounts(mounts, guard, stack, {})


async def test_what_is_called_like_a_repository_and_cannot_be_kept_read_only_is_renamed(out: Path) -> None:
    """A command could replace a pipe by a folder with the same inode, which would be taken for what was there."""
    os.mkfifo(out / ".git")
    result = await command(out, "true")
    assert result.disabled, result
    assert not (out / ".git").exists()


@pytest.mark.parametrize("there", ["a folder", "nothing"])
@pytest.mark.parametrize("name", ["repo/.git", "store", "link/.git"])
async def test_no_command_runs_beside_a_repository_that_has_its_settings_in_another_folder(
    out: Path, tmp_path: Path, name: str, there: str
) -> None:
    """That folder needs no `HEAD`, so it is no repository, and its place can change when a folder around it moves."""
    mark = tmp_path / "mark"
    shared = out / "shared"
    if there == "a folder":
        shared.mkdir()
    (out / name).parent.mkdir(exist_ok=True)
    folder = tmp_path / "outside" if name.startswith("link") else out / name
    folder.mkdir(parents=True)
    if name.startswith("link"):
        (out / name).symlink_to(folder)
    (folder / "HEAD").write_text("ref: refs/heads/main\n")
    (folder / "commondir").write_text(f"{shared}\n")
    said = ""
    try:
        await command(out, script(*planted("out/shared", mark)[::2]))
    except PathDenied as exc:
        said = str(exc)
    assert ran_nothing(out, mark)
    assert said.startswith(
        f"No command can run here: 'out/{name}' is a repository whose file 'commondir' names another"
    )


async def test_commands_run_beside_work_trees_of_a_repository(out: Path) -> None:
    """Each has a `commondir`, inside of the repository that it belongs to."""
    for main in (["main"], ["--bare", "store"]):
        git(out, "init", *main)
        tree = git(out / main[-1], "hash-object", "-w", "-t", "tree", "/dev/null").strip()
        commit = git(out / main[-1], "commit-tree", tree, "-m", "x").strip()
        git(out / main[-1], "worktree", "add", "--detach", str(out / f"tree-{main[-1]}"), commit)
    assert len(list(out.rglob("commondir"))) == 2
    result = await command(out, script("git -C out/main status --short", "touch out/tree-store/file"))
    assert (result.exit_code, result.disabled) == (0, ())


async def test_a_repository_in_a_folder_of_any_name_is_mounted(out: Path) -> None:
    """A form feed in a name is no end of a line in the kernel's list of mounts."""
    git(out, "init", "a\x0cb\x85c")
    result = await command(out, "touch out/done")
    assert (result.exit_code, result.disabled) == (0, ())


async def test_what_is_no_repository_is_left_alone(out: Path) -> None:
    result = await command(
        out, script("mkdir out/objects out/refs out/a", "touch out/config out/a/HEAD out/.gitignore")
    )
    assert result.disabled == ()
    assert sorted(path.name for path in out.rglob("*")) == [".gitignore", "HEAD", "a", "config", "objects", "refs"]


# -- file tools --------------------------------------------------------------------------------------------

NAMES = [
    ".git",
    ".GIT",
    ".Git",
    ".git ",
    ".git.",
    ".git . .",
    ".git::$INDEX_ALLOCATION",
    "git~1",
    "GIT~2",
    ".g\u200cit",
    ".hg",
]


@pytest.mark.parametrize("name", NAMES)
def test_file_tools_make_nothing_that_is_taken_for_a_repository(files: SandboxToolset, out: Path, name: str) -> None:
    assert is_repository_name(name)
    (out / "x").write_text("x")
    for path in (name, f"{name}/config", f"a/{name}/hooks/pre-commit"):
        with pytest.raises(PathDenied):
            files.write_text("out", path, "x")
        with pytest.raises(PathDenied):
            files.move("out", "x", "out", path)
    assert [path.name for path in out.rglob("*")] == ["x"]


@pytest.mark.parametrize("name", [".gitignore", ".github", "git", ".gitattributes", "git~", "x.git", ".git-blame"])
def test_other_names_are_fine(name: str) -> None:
    assert not is_repository_name(name)


def test_file_tools_read_a_repository_and_change_nothing_in_it(files: SandboxToolset, out: Path) -> None:
    git(out, "init", "a")
    git(out, "init", "--bare", "b")
    before = {path: path.read_bytes() for path in out.rglob("*") if path.is_file()}
    assert "[core]" in files.read_text("out", "a/.git/config")
    for path in ("a/.git/config", "b/config", "b/hooks/post-commit", "b/info/exclude"):
        with pytest.raises(PathDenied, match="it belongs to a repository"):
            files.write_text("out", path, SETTINGS)
    for path in ("a/.git/config", "b/config", "b/HEAD"):
        with pytest.raises(PathDenied, match="it belongs to a repository"):
            files.edit_text("out", path, files.read_text("out", path)[:8], "x")
        with pytest.raises(PathDenied, match="it belongs to a repository"):
            files.delete("out", path)
        with pytest.raises(PathDenied, match="it belongs to a repository"):
            files.move("out", path, "out", "elsewhere")
    assert {path: path.read_bytes() for path in out.rglob("*") if path.is_file()} == before
    files.write_text("out", "a/file.txt", "the work tree is no repository")


@pytest.mark.parametrize(
    ("first", "last"),
    [("a/HEAD", "a/config"), ("a/config", "a/HEAD"), ("a/objects/x", "a/HEAD"), ("a/HEAD", "a/refs/heads/main"),
     ("HEAD", "config"), ("a/HEAD", "a/Config"), ("a/HEAD", "a/commondir")],
)  # fmt: skip
def test_file_tools_do_not_complete_a_repository_without_the_name(
    files: SandboxToolset, out: Path, first: str, last: str
) -> None:
    files.write_text("out", first, "ref: refs/heads/main\n")
    with pytest.raises(PathDenied, match="it belongs to a repository"):
        files.write_text("out", last, "x")
    files.write_text("out", "x", "x")
    with pytest.raises(PathDenied, match="it belongs to a repository"):
        files.move("out", "x", "out", last)
    assert not (out / last).exists() or (out / last).samefile(out / first)


# -- roots -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("root", ["repo/.git", "repo/.git/hooks", "store", "store/hooks"])
def test_a_root_that_is_a_repository_cannot_be_writable(tmp_path: Path, root: str) -> None:
    git(tmp_path, "init", "repo")
    git(tmp_path, "init", "--bare", "store")
    (tmp_path / "workers").mkdir()
    (tmp_path / "workers" / "a.yaml").write_text(
        f"sandbox: {{paths: {{r: {{root: {root}, mode: rw}}}}}}\ninstructions: x\n"
    )
    with pytest.raises(WorkerFileError, match=r"workers/a.yaml: root 'r' cannot be writable"):
        WorkerRegistry(tmp_path)["a"]
    config = SandboxConfig(paths={"r": RootConfig(root=root, mode="rw")})
    with pytest.raises(PathDenied, match="cannot be writable"):
        SandboxToolset(SandboxManager(config, base=tmp_path)).write_text("r", "x", "x")


def test_a_root_in_a_work_tree_can_be_writable(tmp_path: Path) -> None:
    """Also where work trees lie inside of the bare repository that they belong to."""
    git(tmp_path, "init", "--bare", "store")
    (tmp_path / "store" / "main" / "out").mkdir(parents=True)
    git(tmp_path, "init", "repo")
    assert repository_around(tmp_path / "store" / "main" / "out") is None
    assert repository_around(tmp_path / "repo" / "out") is None
