"""Every block of code in the README and in the docs is run, or checked as what it is.

How to write a page, so that all of it can be run:

- `python` runs by itself and prints what its `#>` lines say. After the comment `<!-- continues -->` it goes on with
  the names of the block above it.
- A block with `title="..."` is a file. The files of a page stand in one folder, in which its other blocks run. The
  `test_*.py` among them are run by pytest, and every other Python file must be used by one of the page's blocks.
- `markdown` and `yaml` are worker files, unless a title says that they are something else; `toml` is `llm-do.toml`;
  `json` is JSON.
- `console` and `sh` are commands that another test runs: `RUN_ELSEWHERE` says which.
- `bash` is for the reader's own machine: what it calls must exist.
- `text` is what something looks like, and no code.
"""

import json
import os
import re
import shlex
import subprocess
import sys
import tomllib
import traceback
from collections.abc import Iterator
from fnmatch import fnmatch
from pathlib import Path
from typing import NamedTuple
from urllib.parse import urlsplit

import pytest
import yaml
from pytest_examples import CodeExample, EvalExample, find_examples

import llm_do
from llm_do import RuleBook, WorkerRegistry

from .processes import PATIENCE

ROOT = Path(__file__).parent.parent
PAGES = [
    ROOT / "README.md",
    ROOT / "CONTRIBUTING.md",
    ROOT / "CHANGELOG.md",
    *sorted((ROOT / "docs").rglob("*.md")),
    *sorted((ROOT / "examples").rglob("README.md")),
]
NOTEBOOKS = sorted((ROOT / "docs").rglob("*.ipynb"))
RUN_ELSEWHERE = {
    ("docs/getting-started.md", "console"): "tests/cli/test_cli_docs.py",
    ("docs/getting-started.md", "sh"): "tests/cli/test_cli_docs.py",
    ("examples/*README.md", "python"): "tests/test_examples.py",
}
_BLOCK = re.compile(r"^( *)(```+)([^`\n]*)\n(.*?)^\1\2 *$", re.MULTILINE | re.DOTALL)


class Block(NamedTuple):
    """A block of code in a page."""

    page: str
    line: int
    language: str
    title: str | None
    text: str
    continues: bool

    def __str__(self) -> str:
        return f"{self.page}:{self.line}"

    @property
    def elsewhere(self) -> str | None:
        """The test that runs it, where that is not one of these."""
        for (page, language), test in RUN_ELSEWHERE.items():
            if fnmatch(self.page, page) and language == self.language:
                return test
        return None


def blocks_of(page: Path) -> Iterator[Block]:
    text = page.read_text()
    for found in _BLOCK.finditer(text):
        indent, _, info, body = found.groups()
        language, _, options = info.strip().partition(" ")
        title = re.search(r'title="([^"]+)"', options)
        yield Block(
            page=str(page.relative_to(ROOT)),
            line=text.count("\n", 0, found.start()) + 1,
            language=language,
            title=title and title[1],
            text=re.sub(f"^{indent}", "", body, flags=re.MULTILINE),
            continues=text[: found.start()].rstrip().endswith("<!-- continues -->"),
        )


BLOCKS = [block for page in PAGES for block in blocks_of(page)]


def files_of(page: str) -> dict[str, str]:
    return {block.title: block.text for block in BLOCKS if block.page == page and block.title is not None}


def write_files(page: str, folder: Path) -> bool:
    """Make the folder that a page is about. False means that it is about none."""
    files = files_of(page)
    for name, text in files.items():
        path = folder / name
        assert path.resolve().is_relative_to(folder.resolve())
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return bool(files)


def chosen(*languages: str, titled: bool | None = None) -> list[Block]:
    """The blocks in some languages that are checked here."""
    return [
        block
        for block in BLOCKS
        if block.language in languages
        and block.elsewhere is None
        and (titled is None or titled == (block.title is not None))
    ]


# -- all of them -------------------------------------------------------------------------------------


def test_somebody_runs_or_checks_every_block() -> None:
    known = {"python", "markdown", "yaml", "toml", "json", "bash", "text"}
    assert [str(block) for block in BLOCKS if block.language not in known and block.elsewhere is None] == []
    for page in PAGES:  # what the expression above does not find
        fences = re.findall(r"^ *(?:```|~~~)", page.read_text(), re.MULTILINE)
        assert len(fences) == 2 * sum(block.page == str(page.relative_to(ROOT)) for block in BLOCKS), page


def test_what_runs_elsewhere_does_run_there() -> None:
    for (page, _), test in RUN_ELSEWHERE.items():
        assert Path(page).name.lstrip("*") in (ROOT / test).read_text()


# -- Python ------------------------------------------------------------------------------------------


def chains() -> list[list[CodeExample]]:
    """The Python blocks of all pages, each with those that continue it."""
    found: list[list[CodeExample]] = []
    for block in chosen("python", titled=False):
        examples = {example.start_line: example for example in find_examples(ROOT / block.page)}
        example = examples[block.line]
        if block.continues:
            assert found and found[-1][0].path == example.path, f"{block} continues nothing"
            found[-1].append(example)
        else:
            found.append([example])
    return found


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder for the page. What it calls `python` is this one."""
    monkeypatch.setenv("PATH", os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]]))
    monkeypatch.setenv("LLM_DO_NO_LOCAL", "1")
    return tmp_path


@pytest.mark.parametrize("chain", chains(), ids=lambda chain: str(chain[0]))
def test_python_runs_and_prints_what_it_says(
    chain: list[CodeExample], eval_example: EvalExample, machine: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if write_files(str(chain[0].path.relative_to(ROOT)), machine):
        monkeypatch.chdir(machine)
    eval_example.set_config(line_length=120)
    names: dict[str, object] = {}
    for example in chain:
        try:
            names = eval_example.run_print_check(example, module_globals=names)
        except Exception as error:  # its traceback is one that pytest cannot always show
            pytest.fail(f"{example}\n{''.join(traceback.format_exception(error))}", pytrace=False)


@pytest.mark.parametrize("page", sorted({block.page for block in chosen("python", titled=True)}))
def test_files_of_a_page_are_tested_or_used(page: str, machine: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_files(page, machine)
    for block in chosen("python", titled=True):
        name = block.title or ""
        if block.page != page or Path(name).name.startswith("test_") or Path(name).name in ("conftest.py", "tools.py"):
            continue
        uses = rf"\bfrom {Path(name).stem} import|\bimport {Path(name).stem}\b|{re.escape(name)}"
        others = [other.text for other in BLOCKS if other.page == page and other is not block]
        assert re.search(uses, "\n".join(others)), f"{block}: nothing uses {name}"
    if not list(machine.glob("test_*.py")):
        return
    # A name of a model lets what is for real models run as well.
    monkeypatch.setenv("LLM_DO_MODEL", "test")
    # Plugins of this project, which take seconds to load, are none that a page could count on.
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "anyio", "-p", "no:cacheprovider", "--rootdir", machine, machine],
        cwd=machine,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "skipped" not in done.stdout


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.name)
def test_a_notebook_prints_what_it_shows(path: Path, machine: Path) -> None:
    import nbformat
    from nbclient import NotebookClient

    shown = nbformat.read(path, as_version=4)
    run = nbformat.read(path, as_version=4)
    NotebookClient(
        run, timeout=PATIENCE, kernel_name="python3", resources={"metadata": {"path": str(machine)}}
    ).execute()
    assert [cell.get("outputs") for cell in run.cells] == [cell.get("outputs") for cell in shown.cells]


# -- other languages ---------------------------------------------------------------------------------


@pytest.mark.parametrize("block", chosen("markdown", "yaml"), ids=str)
def test_worker_files_can_be_read(block: Block, tmp_path: Path) -> None:
    if block.language == "yaml" and not isinstance(yaml.safe_load(block.text), dict):
        return  # a part of some other file, which is YAML at least
    if block.title is not None and not block.title.startswith("workers/"):
        return
    declared = re.search(r"^name: (\S+)$", block.text, re.MULTILINE)
    name = declared[1] if declared else "some"
    file = tmp_path / (block.title or f"workers/{name}.{'md' if block.language == 'markdown' else 'yaml'}")
    file.parent.mkdir(parents=True)
    file.write_text(block.text)
    (name,) = WorkerRegistry(tmp_path).workers()
    definition = WorkerRegistry(tmp_path).definition(name)
    assert definition.model_dump(exclude_defaults=True, exclude={"name"})


@pytest.mark.parametrize("block", chosen("toml"), ids=str)
def test_settings_can_be_read(block: Block, tmp_path: Path) -> None:
    if block.title not in (None, "llm-do.toml"):
        import tomllib

        tomllib.loads(block.text)
        return
    (tmp_path / "llm-do.toml").write_text(block.text)
    config = WorkerRegistry(tmp_path).config
    assert config.model_dump(exclude_defaults=True)
    RuleBook("llm-do.toml", config.tool_rules)  # without the tools that they are about, which are elsewhere


@pytest.mark.parametrize("block", chosen("json"), ids=str)
def test_json_can_be_read(block: Block) -> None:
    json.loads(block.text)


@pytest.mark.parametrize("block", chosen("bash"), ids=str)
def test_commands_exist(block: Block) -> None:
    subprocess.run(["bash", "-n"], input=block.text, text=True, check=True)
    targets = re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE)
    for command in re.split(r"\n|&&|\|\|?|;", block.text):
        words = shlex.split(command, comments=True)
        while words and re.match(r"[A-Z_]+=", words[0]):
            del words[0]
        if words[:1] == ["make"]:
            assert set(words[1:]) <= set(targets), command
        elif words[:1] == ["llm-do"] and len(words) > 1:
            check_program_call(words[1:])


def check_program_call(words: list[str]) -> None:
    """The command is there, and so are the options that are given to it."""
    if words[0] == "-C":
        words = words[2:]
    path = [] if words[0].startswith("-") else words[:1]
    help_text = help_of(*path)
    if path and "COMMAND" in help_text.partition("\n")[0]:
        help_text = help_of(*words[:2])
    for word in words:
        if word.startswith("-") and len(word) > 1:
            option = word.partition("=")[0]
            assert re.search(rf"(?<![\w-]){re.escape(option)}(?![\w-])", help_text), f"{words}: there is no {option}"


def help_of(*path: str) -> str:
    done = subprocess.run(
        [sys.executable, "-m", "llm_do", *path, "--help"], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, f"llm-do {' '.join(path)}: {done.stderr}"
    return done.stdout


# -- links and names ---------------------------------------------------------------------------------


def anchors_of(page: Path) -> set[str]:
    """The anchors of the headings of a page, as the site and the usual viewers make them."""
    text = _BLOCK.sub("", page.read_text())
    headings = re.findall(r"^#+ +(.*?) *$", text, re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).strip().replace(" ", "-") for heading in headings}


def links_of(page: Path) -> list[str]:
    return re.findall(r"\]\(([^)\s]+)\)", _BLOCK.sub("", page.read_text()))


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_somewhere(page: Path) -> None:
    for link in links_of(page):
        if "://" in link:
            parts = urlsplit(link)
            assert parts.scheme == "https" and parts.hostname and "." in parts.hostname, link
            continue
        target, _, anchor = link.partition("#")
        path = page.parent / target if target else page
        assert path.exists(), link
        if anchor:
            assert anchor in anchors_of(path), link


def test_every_public_name_is_in_the_reference() -> None:
    text = "".join(page.read_text() for page in (ROOT / "docs" / "reference").glob("*.md"))
    documented = re.findall(r"^::: llm_do\.(\w+)$", text, re.MULTILINE)
    assert sorted(documented) == sorted(llm_do.__all__)


# -- the page about the architecture ---------------------------------------------------------------------


def rooms_in_order() -> list[set[str]]:
    """The rooms that `pyproject.toml` lists, the highest first. Those of one layer stand beside each other."""
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]
    (layers,) = [contract["layers"] for contract in contracts if contract["name"].startswith("Rooms")]
    return [{name.strip().removeprefix("llm_do.") for name in layer.split("|")} for layer in layers]


def room_rows() -> dict[str, str]:
    """The rooms of the page, in its order, with what it says of each."""
    page = (ROOT / "docs/architecture.md").read_text()
    return dict(re.findall(r"^\| `(\w+)`(?: \*+)? \| (.*) \|$", page.partition("## The rooms")[2], re.MULTILINE))


def modules() -> list[tuple[str, str]]:
    """Each module of a room, without those of packages that the page names as a whole."""
    source = Path(llm_do.__file__).parent
    wholes = (
        "cli/commands/",
        "cli/support/project_check/",
        "cli/terminal/",
        "cli/tui/",
        "models/local/",
        "policy/rules/",
    )
    paths = [path.relative_to(source) for path in source.glob("*/**/*.py") if path.stem != "__init__"]
    return sorted((path.parts[0], path.stem) for path in paths if not path.as_posix().startswith(wholes))


def test_every_module_has_its_place_on_the_page_about_the_architecture() -> None:
    rows = room_rows()
    named = {room: set(re.findall(r"`(\w+)`", text)) for room, text in rows.items()}
    assert [f"{room}/{name}" for room, name in modules() if name not in named[room]] == []


def test_the_page_about_the_architecture_has_the_order_of_the_rooms() -> None:
    depth = {room: number for number, layer in enumerate(rooms_in_order()) for room in layer}
    rows = list(room_rows())
    assert [depth[room] for room in rows] == sorted(depth.values())
    source = Path(llm_do.__file__).parent
    assert {path.parent.name for path in source.glob("*/__init__.py")} | {"errors"} == set(rows)


def test_the_files_of_a_call_are_few_and_there() -> None:
    page = (ROOT / "docs/architecture.md").read_text()
    table = page.partition("### The files of a call")[2].partition("## ")[0].partition("|---")[2]
    files = set(re.findall(r"`(\w+\.py)`", table))
    assert len(files) <= 14
    assert [name for name in files if not (Path(llm_do.__file__).parent / "core" / name).exists()] == []
