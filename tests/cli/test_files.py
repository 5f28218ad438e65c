"""A worker that is given as a file, and what is said about files that are none; what is printed of files."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from llm_do.cli.terminal.errors import Exit

from ..processes import PATIENCE
from .in_process import RunHere, run_here

__all__ = ["run_here"]


@pytest.fixture
def project(tmp_path: Path) -> Path:
    files = {
        "workers/hi.md": "---\nmodel: test\n---\nSay hi.",
        "workers/calc/worker.md": "---\nmodel: test\n---\nCalculate.",
        "workers/calc/hi.md": "Notes.",
        "workers/worker.md": "x",
        "workers/my worker.md": "x",
        "workers/generated/hi.yaml": "instructions: another",
        "notes.txt": "x",
        "deep/file": "",
        "lone.md": "Alone.",
    }
    for path, text in files.items():
        (tmp_path / "p" / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "p" / path).write_text(text)
    return tmp_path / "p"


def llm_do(*args: object, cwd: Path, **env: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "llm_do", *map(str, args)],
        cwd=cwd,
        env={**os.environ, "LLM_DO_NO_LOCAL": "1", **env},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=PATIENCE,
    )


@pytest.mark.parametrize(
    ("folder", "file", "title"),
    [
        ("p", "workers/hi.md", "hi: a worker (workers/hi.md)"),
        ("p", "workers/calc/worker.md", "calc: a worker (workers/calc/worker.md)"),
        ("p", "lone.md", "lone: a worker (lone.md)"),
        ("p/workers", "hi.md", "hi: a worker (workers/hi.md)"),
        ("p/deep", "../workers/hi.md", "hi: a worker (workers/hi.md)"),
    ],
)
def test_a_file_is_seen_from_the_folder_that_is_named(
    run_here: RunHere, project: Path, folder: str, file: str, title: str
) -> None:
    done = run_here("-C", folder, "show", file, cwd=project.parent)
    assert done.stdout.startswith(title), done.stderr


def test_a_file_of_another_folder_runs(project: Path) -> None:
    assert "success" in llm_do("-C", "p", "run", "workers/hi.md", "x", cwd=project.parent).stdout


@pytest.mark.parametrize(
    ("file", "said"),
    [
        ("workers/my worker.md", "'my worker' cannot be a name"),
        ("workers/worker.md", "no worker can be named 'worker'"),
        ("workers/calc/hi.md", "is not a worker of the project; 'hi' is workers/hi.md"),
        ("workers/generated/hi.yaml", "is not a worker of the project; 'hi' is workers/hi.md"),
        ("workers/calc", "is a folder"),
        ("./notes.txt", "is not a worker's file: these end with .md or .yaml"),
        ("/x/missing.md", "There is no file '/x/missing.md'."),
        ("hii.md", "/hii.md'. Did you mean 'hi'?"),
        ("workers/hii", "/workers/hii'. Did you mean 'hi'?"),
        ("a\x1b[31m.md", "There is no file"),
        (f"{'x' * 5000}.md", "There is no file"),
    ],
)
def test_what_is_wrong_with_a_file_is_said(run_here: RunHere, project: Path, file: str, said: str) -> None:
    done = run_here("run", file, "x", cwd=project)
    assert (done.returncode, done.stdout) == (Exit.USAGE, "")
    assert said in " ".join(done.stderr.split()) and "\x1b" not in done.stderr and "Traceback" not in done.stderr


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("my worker.md", "'my worker' cannot be a name: use letters"),
        ("worker.md", "no worker can be named 'worker'"),
        (".md", "There is no file"),
    ],
)
def test_what_is_wrong_with_the_name_of_a_lone_file_is_said(tmp_path: Path, name: str, said: str) -> None:
    if name != ".md":
        (tmp_path / name).write_text("---\nmodel: test\n---\nx")
    done = llm_do("run", name, "x", cwd=tmp_path)
    assert done.returncode == Exit.USAGE and said in " ".join(done.stderr.split())


def test_nothing_of_a_file_steers_the_screen(project: Path) -> None:
    (project / "workers/esc.yaml").write_text('model: "foo\\e[31m:bar"\ndescription: "a \\e[31m"\n')
    (project / "llm-do.toml").write_text('model = "toml\\u001b[31m:bar"\n')
    (project / "tools.py").write_text("from llm_do import entry\n@entry(name='n\\x1b[31m')\ndef f() -> None: ...\n")
    listed = llm_do("list", cwd=project)
    assert "foo\\x1b[31m:bar" in listed.stdout and "n\\x1b[31m" in listed.stdout and "\x1b" not in listed.stdout
    seen = llm_do("doctor", cwd=project, LLM_DO_MODEL="")
    assert "toml\\x1b[31m:bar" in seen.stdout and "\x1b" not in seen.stdout
    (project / "tools.py").unlink()
    shown = llm_do("show", "esc", cwd=project)
    assert "foo\\x1b[31m:bar" in shown.stdout and "\x1b" not in shown.stdout


def test_the_title_of_what_is_shown_is_clean(project: Path) -> None:
    (project / "workers/generated/made.yaml").write_text('created_by: "a\\e[31m"\ninstructions: x\n')
    done = llm_do("show", "made", cwd=project)
    assert "created by no one that its seal names)" in done.stdout and "\x1b" not in done.stdout
