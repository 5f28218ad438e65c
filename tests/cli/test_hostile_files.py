"""Files of a project that are none, or that are made to hang or to fill the memory of what reads them."""

import os
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from llm_do import LlmDoError, PathDenied, WorkerRegistry
from llm_do.cli.main import run_program
from llm_do.cli.support.inputs import MAX_INPUT
from llm_do.cli.terminal.errors import Exit
from llm_do.core.attachments import load
from llm_do.definitions.fields import AttachmentPolicy
from llm_do.machine.files import read_file

Run = Callable[..., tuple[int, str]]


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    """The program in this process: its exit code, and all that it printed."""
    monkeypatch.setenv("LLM_DO_NO_LOCAL", "1")

    def run(*args: object) -> tuple[int, str]:
        monkeypatch.setattr(sys, "argv", ["llm-do", *map(str, args)])
        capsys.readouterr()
        with pytest.raises(SystemExit) as end:
            run_program()
        out, err = capsys.readouterr()
        return end.value.code or 0, out + err  # type: ignore[return-value]

    return run


@pytest.fixture
def project(tmp_path: Path) -> Path:
    (tmp_path / "workers/good").mkdir(parents=True)
    (tmp_path / "workers/good/worker.md").write_text("Do it.")
    return tmp_path


def pipe(path: Path) -> None:
    os.mkfifo(path)


def folder(path: Path) -> None:
    path.mkdir()


def loop(path: Path) -> None:
    path.symlink_to(path.name)


def endless(path: Path) -> None:
    path.symlink_to("/dev/zero")


def huge(path: Path) -> None:
    with path.open("wb") as file:
        file.truncate(1 << 33)


KINDS = {pipe: "pipe", folder: "folder", loop: "symbolic links", endless: "device", huge: "bytes"}
PLACES = [
    "llm-do.toml",
    "tools.py",
    "workers/bad.md",
    "workers/bad.yaml",
    "workers/bad/worker.yaml",
    "workers/generated/bad.yaml",
    "workers/good/tools.py",
]


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
@pytest.mark.parametrize("place", PLACES)
def test_what_is_no_file_of_a_usual_size_is_told(
    project: Path, run: Run, place: str, kind: Callable[[Path], None]
) -> None:
    """`list` goes on without it, and `check` names the file and says what it is."""
    (project / place).parent.mkdir(parents=True, exist_ok=True)
    kind(project / place)
    code, said = run("-C", project, "list")
    assert (code, "good" in said) == (Exit.OK, True)
    code, said = run("-C", project, "check")
    assert code == Exit.INVALID
    assert any(Path(place).name in line and KINDS[kind] in line for line in said.splitlines()), said


@pytest.mark.parametrize("kind", [pipe, loop, endless, huge], ids=lambda kind: kind.__name__)
def test_a_seal_that_is_no_file_is_no_seal(project: Path, kind: Callable[[Path], None]) -> None:
    """A generated worker whose seal cannot be read has nothing but its words."""
    (project / "workers/generated").mkdir()
    (project / "workers/generated/g.yaml").write_text("created_by: (project)\nallow_workers: ['*']\ninstructions: x\n")
    kind(project / "workers/generated/.g.seal")
    assert WorkerRegistry(project)["g"].allow_workers == ()  # type: ignore[attr-defined]


MERGES = "\n".join(["a0: &a0 {x: 1}", *(f"a{n}: &a{n} {{<<: [{', '.join([f'*a{n - 1}'] * 9)}]}}" for n in range(1, 9))])
ALIASES = "\n".join(["a0: &a0 [x]", *(f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 9)}]" for n in range(1, 30))])
BOMBS = {
    "merge_keys": f"{MERGES}\ndescription: 'x'\n",
    "aliases": f"{ALIASES}\ndescription: 'x'\n",
    "lists": f"description: 'x'\na: {'[' * 400_000}\n",
    "mappings": f"description: 'x'\na: {'{a: ' * 200_000}\n",
    "digits": f"description: 'x'\na: {'9' * 900_000}\n",
    "sixties": f"description: 'x'\na: {':'.join(['59'] * 200_000)}\n",
    "dates": "description: 'x'\na: 9999999-99-99T99:99:99Z\n",
    "many_aliases": "a: &a x\nb:\n" + "- *a\n" * 100_000 + "description: 'x'\n",
    "a_key_again_and_again": "model: x\n" * 100_000,
    "directives": "".join(f"%TAG !a{n}! b\n" for n in range(60_000)) + "---\ndescription: 'x'\n",
    "tools_that_are_not_there": f"tools: [{', '.join(f'a{n}' for n in range(100_000))}]\n",
    "a_tool_again_and_again": f"tools: [{'a, ' * 300_000}]\n",
    "workers_that_are_not_there": f"allow_workers: [{', '.join(f'a{n}' for n in range(100_000))}]\n",
    "a_key_without_end": f"? {'a' * 900_000}\n: 'x'\n",
}


@pytest.mark.parametrize("bomb", BOMBS)
@pytest.mark.parametrize("form", ["{}instructions: x\n", "---\n{}---\nx"], ids=["yaml", "md"])
def test_no_file_makes_reading_it_take_long(project: Path, run: Run, bomb: str, form: str) -> None:
    """Aliases are not followed, and nothing grows while it is read. The test has a time limit like all others."""
    file = project / f"workers/bad.{'md' if form.startswith('---') else 'yaml'}"
    file.write_text(form.format(BOMBS[bomb]))
    code, said = run("-C", project, "list")
    assert (code, "bad" in said, "good" in said) == (Exit.OK, True, True)
    code, said = run("-C", project, "check")
    assert code == Exit.INVALID
    assert file.name in said


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("a" + ".a" * 40_000 + " = 1", "too long"),
        ('"a"' + '."a"' * 20_000 + " = 1", "too long"),
        ("a = " + "[" * 90_000, "nested too deeply"),
        ("a = " + "{a = " * 18_000, "nested too deeply"),
        ("a = " + "9" * 90_000, "4300 digits"),
        ("a = 2020-99-99", "llm-do.toml"),
    ],
    ids=["dots", "quoted_dots", "lists", "tables", "digits", "date"],
)
def test_no_configuration_makes_reading_it_take_long(project: Path, run: Run, text: str, said: str) -> None:
    """A key of 5,000 parts took Python's parser three seconds, and one of 50,000 five minutes."""
    (project / "llm-do.toml").write_text(text)
    code, output = run("-C", project, "check")
    assert code == Exit.INVALID
    assert said in output


def test_dots_in_texts_are_no_keys(project: Path) -> None:
    """A long text may have as many dots as it likes."""
    (project / "llm-do.toml").write_text(f'[tool_rules.good]\nrule = "deny"\nreason = "{"a." * 500}"\n')
    assert WorkerRegistry(project).config.tool_rules


def test_a_file_that_is_given_as_text_is_not_read_without_end(project: Path, run: Run) -> None:
    """`@FILE` may be a pipe, which somebody fills, but no more than so much is read of it."""
    (project / "tools.py").write_text(
        "from llm_do import entry\n@entry\ndef count(text: str) -> int:\n    return len(text)\n"
    )
    code, said = run("-C", project, "run", "count", "text=@/dev/zero")
    assert (code, f"more than {MAX_INPUT:,} bytes" in said) == (Exit.USAGE, True)


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
def test_what_is_no_file_is_not_attached(tmp_path: Path, kind: Callable[[Path], None]) -> None:
    """An attachment is a regular file, and not larger than what the worker takes."""
    kind(tmp_path / "a.txt")
    with pytest.raises(PathDenied, match="a.txt"):
        load([tmp_path / "a.txt"], AttachmentPolicy(), "w")


def test_a_file_is_read_up_to_its_limit(tmp_path: Path) -> None:
    """The limit itself is allowed, also for files that do not tell their size."""
    (tmp_path / "a").write_bytes(b"12345")
    assert read_file(tmp_path / "a", 5) == b"12345"
    with pytest.raises(OSError, match="it has 5 bytes, and a file here has 4 at most"):
        read_file(tmp_path / "a", 4)
    assert read_file(Path("/proc/self/stat")).startswith(str(os.getpid()).encode())


def test_code_that_is_too_large_for_a_glance_is_told(project: Path, run: Run) -> None:
    """The syntax tree of ten megabytes of statements takes half a minute. `list` and TAB must answer at once."""
    (project / "tools.py").write_text("a\n" * 4_900_000)
    code, said = run("-C", project, "list")
    assert (code, "too large to be read at a glance" in said, "good" in said) == (Exit.OK, True, True)


def test_a_lone_file_that_is_a_pipe_is_an_error(tmp_path: Path, run: Run) -> None:
    """A worker's file can be given by its path."""
    os.mkfifo(tmp_path / "lone.md")
    code, said = run("-C", tmp_path, "show", "./lone.md")
    assert code == Exit.INVALID
    assert "lone.md cannot be read: it is a pipe" in said


def test_a_worker_that_cannot_be_read_is_an_error_for_python(project: Path) -> None:
    """The registry says the same as the command line."""
    os.mkfifo(project / "workers/bad.yaml")
    with pytest.raises(LlmDoError, match=r"workers/bad\.yaml cannot be read: it is a pipe, a device or a socket"):
        WorkerRegistry(project).definition("bad")
