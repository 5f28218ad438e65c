"""The commands that look at a project and run nothing: list, show, check, rules, schema, new, doctor, completion."""

import json
import os
import pty
import select
import shutil
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any, NamedTuple

import click
import jsonschema
import pytest

from llm_do import WorkerRegistry, WorkerSpec, create_worker
from llm_do.cli.help import COMMANDS, HELP
from llm_do.cli.main import program, run_program
from llm_do.cli.support.project_check.check import check_project
from llm_do.cli.support.projects import trust
from llm_do.cli.terminal.errors import Exit
from llm_do.definitions.call_graph import connected_groups
from llm_do.models.addresses import Address
from llm_do.models.choice import KEY_OFFERS
from llm_do.models.servers import ModelServer
from llm_do.projects import discovery as light

from ..processes import PATIENCE, heed_interrupts
from ..sealing import seal

LLM_DO = Path(sys.executable).with_name("llm-do")
TOOLS = '''
from llm_do import entry

@entry
def add(a: int, b: int = 2) -> int:
    """Add two numbers.

    More about it.
    """
    return a + b

@entry(name="wipe-all", effects=["write"], description="Remove everything.")
async def wipe(disk: str) -> str:
    return disk

def plain() -> None: ...
'''
SECRETARY = """\
---
description: Writes minutes.
sandbox: {paths: {minutes: {root: minutes, mode: rw, suffixes: [.md]}}}
tools: [add]
tool_rules:
  sandbox.write:
    - {rule: allow, when: {path: minutes/drafts/**}}
    - {rule: deny, when: {path: minutes/signed/**}, reason: They are signed.}
  add: {rule: deny, when: {a: {over: 10}}}
limits: {max_requests: 3}
---
Write the minutes.
"""


class Result(NamedTuple):
    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        return json.loads(self.out)


Run = Callable[..., Result]
Make = Callable[[dict[str, str]], Path]


@pytest.fixture(autouse=True)
def _bare(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """No key and no model of whoever runs the tests."""
    for name in [name for offer in KEY_OFFERS for name in offer.variables] + ["LLM_DO_MODEL", "NO_COLOR"]:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("LLM_DO_NO_LOCAL", "1")
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def make(tmp_path: Path) -> Make:
    def project(files: dict[str, str]) -> Path:
        root = tmp_path / "project"
        for path, text in {"workers/.keep": "", **files}.items():
            (root / path).parent.mkdir(parents=True, exist_ok=True)
            (root / path).write_text(text)
        trust(root)
        return root

    return project


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    """The program, in this process: with its exit code, and what it printed."""

    def program_run(*args: object, at: Path | None = None) -> Result:
        monkeypatch.setattr(sys, "argv", ["llm-do", *(["-C", str(at)] if at is not None else []), *map(str, args)])
        capsys.readouterr()
        code = 0
        try:
            run_program()
        except SystemExit as exc:
            code = exc.code if isinstance(exc.code, int) else 1
        out, err = capsys.readouterr()
        return Result(code, out, err)

    return program_run


def real(*args: str, cwd: Path | None = None, **env: str) -> subprocess.CompletedProcess[str]:
    """The program as users start it, with nothing on its standard input."""
    return subprocess.run(
        [str(LLM_DO), *args],
        cwd=cwd,
        env={**os.environ, **env},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=PATIENCE,
    )


def talk(command: list[str], answers: list[tuple[str, str]], cwd: Path) -> tuple[int, str]:
    """Run a program in a terminal, and answer what it asks."""
    pid, terminal = pty.fork()
    if pid == 0:  # pragma: no cover - another process
        os.chdir(cwd)
        heed_interrupts()
        os.execvp(command[0], command)
    said, waiting, until = "", list(answers), time.monotonic() + PATIENCE
    try:
        while time.monotonic() < until:
            if not select.select([terminal], [], [], 0.5)[0]:
                if not waiting and answers[-1][1] == "\x03":
                    os.write(terminal, b"\x03")  # a signal may come just before Python starts to wait for keys
                continue
            try:
                said += os.read(terminal, 4096).decode(errors="replace")
            except OSError:  # it has ended
                break
            if waiting and waiting[0][0] in said:
                os.write(terminal, waiting.pop(0)[1].encode())
    finally:
        os.close(terminal)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), said


# -- the program -------------------------------------------------------------------------------------


def test_the_help_that_is_printed_at_once_is_the_help_that_click_would_print() -> None:
    with click.Context(program, info_name="llm-do") as ctx:
        ctx.help_option_names = ["-h", "--help"]
        assert program.get_help(ctx) + "\n" == HELP


@pytest.mark.parametrize("name", [name for name in COMMANDS if name not in ("run", "chat")])
def test_each_command_has_the_short_help_of_the_table(name: str, run: Run) -> None:
    command = program.get_command(click.Context(program), name)
    assert command is not None and command.name == name
    assert command.get_short_help_str(100) == COMMANDS[name]
    said = run(name, "--help")
    assert said.code == 0 and said.err == "" and f"llm-do {name}" in said.out


@pytest.mark.parametrize("group", ["rules", "models"])
def test_a_group_without_a_command_shows_its_help(group: str, run: Run) -> None:
    said = run(group)
    assert said.code == Exit.USAGE
    assert said.err.startswith(f"Usage: llm-do {group}")
    assert "Error:" not in said.err


def test_a_current_folder_that_was_removed_is_told(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "gone").mkdir()
    monkeypatch.chdir(tmp_path / "gone")
    (tmp_path / "gone").rmdir()
    said = run("list")
    assert (said.code, said.out) == (Exit.FAILED, "")
    assert said.err == "Error: The current folder no longer exists. Change to another one.\n"


def test_help_can_be_read_in_a_narrow_terminal(run: Run) -> None:
    said = run("check", "--help").out
    assert "\b" not in said and "\n  Warnings  will not work here" in said


@pytest.mark.parametrize("command", ["list", "check", "show x", "rules why a b", "rules list", "new worker x"])
def test_without_a_project_it_says_how_to_make_one(command: str, run: Run) -> None:
    said = run(*command.split())
    assert (said.code, said.out) == (Exit.USAGE, "")
    assert "llm-do new" in said.err and "-C" in said.err


@pytest.mark.parametrize("command", ["list", "check", "show x", "rules list", "doctor"])
def test_a_folder_that_is_not_there_is_named(command: str, run: Run, tmp_path: Path) -> None:
    said = run(*command.split(), at=tmp_path / "nowhere")
    assert said.code == Exit.USAGE and "nowhere" in said.err and said.out == ""


def test_it_works_in_any_folder_below(make: Make, run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    root = make({"workers/greeter.md": "Greet.", "deep/er/file": ""})
    monkeypatch.chdir(root / "deep" / "er")
    assert run("list", "--json").json[0]["name"] == "greeter"


# -- list --------------------------------------------------------------------------------------------

FORMS = {
    "plain.md": "---\ndescription: Plain text: no, a colon is in a word:like\n---\nx",
    "plain2.md": "---\ndescription: Says hello\nmodel: anthropic:claude-haiku-4-5\ntools: [add]\n---\nx",
    "quoted.md": '---\ndescription: "A: b"\n---\nx',
    "single.yaml": "description: 'It''s'\ninstructions: x",
    "folded.yaml": "description: >-\n  two\n  lines\ninstructions: x",
    "literal.yaml": "description: |\n  two\n  lines\ninstructions: x",
    "going_on.yaml": "description: two\n  lines\ninstructions: x",
    "after_blank.yaml": "description: two\n\n  lines\ninstructions: x",
    "comment.yaml": "# description: no\ndescription: yes and no  # a comment\ninstructions: x",
    "nothing.yaml": "description:\ninstructions: x",
    "null.yaml": "description: null\ninstructions: x",
    "tilde.yaml": "description: ~\ninstructions: x",
    "braces.yaml": "{description: inside, instructions: x}",
    "key_quoted.yaml": '"description": quoted key\ninstructions: x',
    "nested.yaml": "input: {type: object, properties: {a: {description: inner}}}\ninstructions: x",
    "nested2.yaml": "input:\n  type: object\n  description: inner\ninstructions: x",
    "in_text.yaml": "instructions: |\n  description: no\n  model: no",
    "list_below.yaml": "tools:\n- add\ndescription: after a list\ninstructions: x",
    "unicode.md": "---\ndescription: Grüße an 世界\n---\nx",
    "crlf.md": "---\r\ndescription: with returns\r\n---\r\nx",
    "bom.md": "\ufeff---\ndescription: with a mark\n---\nx",
    "spaces.md": "---\ndescription:    many spaces   \n---\nx",
    "no_front.md": "description: this is text",
    "dashes.md": "---\ndescription: first\n---\ntext\n---\ndescription: second\n---\n",
    "escape.yaml": 'description: "tab\\tand\\u00e9"\ninstructions: x',
}


def test_a_glance_at_a_file_sees_what_the_parser_reads(make: Make) -> None:
    forms = {f"workers/{name}": text for name, text in FORMS.items()}
    forms["workers/plain.md"] = forms["workers/plain.md"].replace(": no,", " - no,")
    root = make({**forms, "tools.py": TOOLS})
    registry = WorkerRegistry(root)
    seen = {found.name: found for found in light.list_entries(root) if found.kind == "worker"}
    assert list(seen) == registry.workers()
    for name, found in seen.items():
        definition = registry.definition(name)
        assert (found.description, found.model) == (definition.description, definition.model), name
        assert found.problem is None


def test_names_are_what_the_registry_says(make: Make) -> None:
    root = make(
        {
            "workers/a.md": "x",
            "workers/b.yaml": "instructions: x",
            "workers/c/worker.md": "x",
            "workers/d/worker.yaml": "instructions: x",
            "workers/e/notes.md": "x",
            "workers/generated/f.yaml": "instructions: x",
            "workers/generated/a.yaml": "instructions: x",
            "workers/bad name.md": "x",
            "workers/worker.md": "x",
            "workers/.hidden.md": "x",
            "tools.py": TOOLS + "from more import *\nfrom other import third, WORKER\n",
            "more.py": "from llm_do import entry\n\n@entry\ndef second() -> None: ...\n",
            "other.py": "import llm_do\n\n@llm_do.entry\ndef third(): ...\n\n@llm_do.entry\ndef no(): ...\n"
            "WORKER = llm_do.WorkerEntry(name='in-python', description='Made by hand.')\n",
        }
    )
    assert light.names_in(root) == list(WorkerRegistry(root))
    assert light.names_in(root, functions=False) == sorted([*WorkerRegistry(root).workers(), "in-python"])


def test_two_functions_of_one_name_are_listed_in_their_order(make: Make) -> None:
    code = "from llm_do import entry\n\n@entry\ndef a():\n    'First.'\n\nif True:\n    @entry\n    def a(): ...\n"
    root = make({"tools.py": code, "llm-do.toml": ""})
    assert [(found.name, found.description) for found in light.list_entries(root)] == [("a", "First."), ("a", None)]


def test_list_tells_all_at_a_glance(make: Make, run: Run) -> None:
    root = make({"workers/secretary.md": SECRETARY, "workers/odd.md": "---\nmodel: test\n", "tools.py": TOOLS})
    said = run("list", at=root)
    assert said.code == 0 and said.err == ""
    lines = [line.split(maxsplit=4) for line in said.out.splitlines()]
    assert lines[0] == ["NAME", "KIND", "MODEL", "FILE", "DESCRIPTION"]
    assert ["add", "function", "-", "tools.py:4", "Add two numbers."] in lines
    assert ["wipe-all", "function", "-", "tools.py:12", "Remove everything."] in lines
    assert ["secretary", "worker", "-", "workers/secretary.md", "Writes minutes."] in lines
    assert "llm-do check" in said.out
    found = {row["name"]: row for row in run("list", "--json", at=root).json}
    assert found["secretary"] == {
        "name": "secretary",
        "kind": "worker",
        "description": "Writes minutes.",
        "model": None,
        "file": "workers/secretary.md",
        "line": None,
        "problem": None,
        "input": None,
    }
    assert found["odd"]["problem"]


def test_lines_fit_on_a_screen(make: Make) -> None:
    root = make({"workers/secretary.md": SECRETARY, "tools.py": TOOLS})
    code, said = talk(["sh", "-c", f"unset COLUMNS; stty cols 50; {LLM_DO} list"], [("", "")], root)
    shown = said.splitlines()
    assert code == 0 and len(shown) == 4 and max(map(len, shown)) == 50 and shown[1].endswith("…")


def test_list_survives_every_broken_file(make: Make, run: Run) -> None:
    root = make({"workers/two.md": "x", "workers/two.yaml": "instructions: x", "tools.py": "def f(:\n"})
    (root / "workers/binary.md").write_bytes(b"---\n\xff\xfe\n---")
    (root / "workers/large.md").write_bytes(b"x" * 1_000_001)
    (root / "workers/gone.md").symlink_to(root / "nothing")
    (root / "workers/folder.md").mkdir()
    (root / "workers/yaml.yaml").write_text("description: [unclosed\n")
    (root / "workers/esc.yaml").write_text('description: "a \\e[31m red \\u202e one"\n')
    said = run("list", at=root)
    assert said.code == 0
    assert "\x1b" not in said.out and "\u202e" not in said.out
    assert "two files" in said.out and said.out.count("llm-do check") == 6


def test_an_empty_project_says_what_to_do(make: Make, run: Run) -> None:
    said = run("list", at=make({}))
    assert (said.code, said.out) == (0, "") and "llm-do new worker" in said.err


def test_list_imports_nothing_heavy_and_runs_no_code(make: Make) -> None:
    root = make({"workers/a.md": "---\ndescription: x\n---\nx", "tools.py": TOOLS + "raise SystemExit('it ran')\n"})
    code = (
        "import sys; sys.argv = ['llm-do', 'list']\n"
        "from llm_do.cli import main\n"
        "try: main()\n"
        "except SystemExit as exc: assert not exc.code, exc.code\n"
        "heavy = {'pydantic', 'pydantic_ai', 'yaml', 'rich', 'asyncio'} & set(sys.modules)\n"
        "assert not heavy, heavy\n"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=root, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "wipe-all" in done.stdout


# -- show --------------------------------------------------------------------------------------------


def test_show_tells_what_the_model_will_see(make: Make, run: Run) -> None:
    root = make(
        {
            "workers/secretary.md": SECRETARY.replace("tools: [add]", "tools: [add, helper]\nallow_workers: [helper]"),
            "workers/helper.md": "---\ndescription: Helps.\nmodel: test\noutput: schemas.py:Out\n---\nHelp.",
            "schemas.py": "import pydantic\nclass Out(pydantic.BaseModel):\n    good: bool\n",
            "tools.py": TOOLS,
            "llm-do.toml": 'model = "openai:gpt-5"\n[tool_rules]\nadd = "ask"\n[limits]\nmax_cost = 2.5\n',
        }
    )
    told = run("show", "secretary", "--json", at=root).json
    assert told["instructions"].startswith("Write the minutes.")
    assert "minutes: read and write" in told["instructions"]  # as the model is told about its roots
    assert told["model"] == {"name": "openai:gpt-5", "reason": "llm-do.toml"}
    tools = {tool["name"]: tool for tool in told["tools"]}
    assert tools["add"]["parameters"]["properties"]["b"] == {"default": 2, "type": "integer"}
    assert tools["helper"]["kind"] == "worker" and tools["helper"]["description"] == "Helps."
    assert tools["delete_file"]["rule_name"] == "sandbox.write"
    assert (tools["read_file"]["without_a_rule"], tools["delete_file"]["without_a_rule"]) == ("allow", "ask")
    assert "worker_call" in tools and told["allow_workers"] == ["helper"]
    assert {rule["where"] for rule in told["rules"]} == {
        *(f"workers/secretary.md:{line}" for line in (8, 9, 10)),
        "llm-do.toml:3",
    }
    assert told["roots"][0]["mode"] == "rw" and told["roots"][0]["exists"] is False
    assert told["limits"]["max_requests"] == 3 and told["session_limits"]["max_cost"] == 2.5
    text = run("show", "secretary", at=root)
    assert text.code == 0 and text.err == ""
    for part in ("Write the minutes.", "llm-do.toml:3: add: ask", "They are signed.", '"default": 2', "max_requests 3"):
        assert part in text.out
    helper = run("show", "helper", "--json", at=root).json
    assert helper["model"] == {"name": "test", "reason": "the worker's own"}
    assert helper["output"]["properties"]["good"] == {"type": "boolean", "title": "Good"} or helper["output"]


def test_show_tells_what_a_function_takes(make: Make, run: Run) -> None:
    root = make({"tools.py": TOOLS, "llm-do.toml": '[tool_rules]\n"wipe-all" = "deny"\n'})
    told = run("show", "wipe-all", "--json", at=root).json
    assert told["kind"] == "function" and told["effects"] == ["write"] and told["without_a_rule"] == "ask"
    assert told["signature"] == "wipe-all(disk: str) -> str" and told["source"] == "tools.py:12"
    assert told["rules"][0]["where"] == "llm-do.toml:2"
    assert "tools.py:12" in run("show", "wipe-all", at=root).out


def test_code_beside_a_lone_worker_prints_to_standard_error(tmp_path: Path) -> None:
    (tmp_path / "lone.md").write_text("---\ntools: [hi]\nmodel: test\n---\nAlone.")
    code = "from llm_do import entry\n\nprint('loading')\n\n@entry\ndef hi() -> str:\n    return 'hi'\n"
    (tmp_path / "tools.py").write_text(code)
    done = real("show", "./lone.md", "--json", cwd=tmp_path)
    assert "loading" in done.stderr
    assert json.loads(done.stdout)["name"] == "lone"


def test_show_takes_the_file_of_a_lone_worker(tmp_path: Path, run: Run) -> None:
    file = tmp_path / "lone.md"
    file.write_text("---\nmodel: test\n---\nAlone.")
    told = run("show", file, "--json").json
    assert (told["name"], told["instructions"], told["file"]) == ("lone", "Alone.", "lone.md")


def test_show_takes_a_file_of_a_project(make: Make, run: Run) -> None:
    root = make({"workers/calc/worker.md": "Calculate.", "workers/calc/tools.py": "def double(n: int) -> int: ...\n"})
    told = run("show", root / "workers/calc/worker.md", "--json").json
    assert told["name"] == "calc" and [tool["name"] for tool in told["tools"]] == ["double"]


def test_show_tells_what_is_left_of_a_generated_worker(make: Make, run: Run) -> None:
    root = make({"tools.py": TOOLS, "workers/boss.md": "---\ntools: [add]\n---\nx"})
    create_worker(registry=WorkerRegistry(root), spec=WorkerSpec(name="mine", instructions="x", tools=("add",)))
    generated = root / "workers/generated"
    (generated / "forged.yaml").write_text("created_by: (project)\ntools: [add]\ninstructions: x\n")
    (generated / "child.yaml").write_text("created_by: boss\ntools: [add, wipe-all]\ninstructions: x\n")
    seal(generated / "child.yaml")
    told = {name: run("show", name, "--json", at=root).json for name in ("mine", "forged", "child")}
    have = {name: [tool["name"] for tool in told[name]["tools"]] for name in told}
    assert have == {"mine": ["add"], "forged": [], "child": ["add"]}
    creators = {name: told[name]["created_by"] for name in told}
    assert creators == {"mine": "(project)", "forged": None, "child": "boss"}


def test_show_tells_the_limit_of_money_that_a_run_has(make: Make, run: Run) -> None:
    root = make({"workers/a.md": "x"})
    assert run("show", "a", "--json", at=root).json["session_limits"]["max_cost"] == 5
    assert "max_cost 5.0" in run("show", "a", at=root).out


def test_show_hides_what_is_a_key_as_a_rule(make: Make, run: Run) -> None:
    worker = (
        "toolsets:\n  - mcp: {command: [server], env: {TOKEN: hunter2}}\n"
        "  - mcp: {url: 'https://example.com/mcp', headers: {Authorization: hunter3}}\ninstructions: x\n"
    )
    root = make({"workers/a.yaml": worker})
    for said in (run("show", "a", at=root), run("show", "a", "--json", at=root)):
        assert said.code == 0 and "TOKEN" in said.out and "Authorization" in said.out and "hunter" not in said.out


@pytest.mark.parametrize(
    ("name", "hint"),
    [("secretry", "'secretary'"), ("../secretary", "'secretary'"), ("", "Known names"), ("a\x1b[31m", "Known names")],
)
def test_an_unknown_worker_gets_the_nearest_names(name: str, hint: str, make: Make, run: Run) -> None:
    root = make({"workers/secretary.md": SECRETARY, "tools.py": TOOLS})
    said = run("show", name, at=root)
    assert (said.code, said.out) == (Exit.USAGE, "") and hint in said.err and "\x1b" not in said.err


def test_show_of_a_broken_file_says_what_is_wrong(make: Make, run: Run) -> None:
    said = run("show", "a", at=make({"workers/a.md": "---\nmodle: x\n---\n"}))
    assert said.code == Exit.INVALID and "workers/a.md:2: unknown key 'modle'. Did you mean 'model'" in said.err


# -- check -------------------------------------------------------------------------------------------


def lines(root: Path, run: Run, *args: str) -> list[str]:
    return run("check", *args, at=root).out.splitlines()


def test_a_good_project_passes(make: Make, run: Run) -> None:
    root = make(
        {
            "workers/secretary.md": SECRETARY.replace("root: minutes", "root: workers/../minutes"),
            "minutes/.keep": "",
            "tools.py": TOOLS.split("@entry(name")[0],
            "llm-do.toml": 'model = "test"\n',
        }
    )
    said = run("check", "--strict", at=root)
    assert (said.code, said.out, said.err) == (0, "1 worker, 1 function: 0 errors, 0 warnings.\n", "")


def test_check_says_all_that_is_wrong_at_once(make: Make, run: Run) -> None:
    root = make(
        {
            "llm-do.toml": 'model = "opnai:gpt-5"\n[tool_rules]\nnobody = "deny"\n',
            "tools.py": TOOLS,
            "schemas.py": "x = 1\n",
            "workers/a.md": "---\ntools: [ad, b, nope]\nallow_workers: [zzz]\noutput: schemas.py:Nope\n"
            "toolsets: ['nothere:x']\ntool_rules: {add: {rule: deny, when: {c: 1}}}\n---\nHi",
            "workers/b.md": "---\nmodle: x\nlimits: {max_cost: -1}\n---\nHi",
            "workers/c.yaml": "instructions: hi\ntool_rules: {add: {rule: deny, when: {c: 1}}}\ntools: [add]\n",
            "workers/add.md": "x",
            "workers/calc/worker.md": "x",
            "workers/calc/tools.py": "def f(:\n",
            "workers/made/worker.md": "x",
            "workers/made/tools.py": "\n\ndef f():\n    yield 1\n",
            "workers/two.md": "x",
            "workers/two.yaml": "instructions: x",
            "workers/bad name.md": "x",
            "workers/old.yml": "x",
            "workers/worker.md": "x",
            "workers/lost/notes.md": "x",
        }
    )
    said = run("check", at=root)
    assert said.code == Exit.INVALID and said.err == ""
    for start, part in {
        "llm-do.toml:1: error": "no provider 'opnai'. Did you mean 'openai'",
        "llm-do.toml: note": "not compared with tools",
        "workers/a.md:2: error": "there is no tool 'nope'",
        "workers/a.md:3: error": "there is no worker 'zzz'",
        "workers/a.md:4: error": "schemas.py has no 'Nope'",
        "workers/a.md:5: error": "nothere cannot be imported",
        "workers/a.md:6: error": "there is no argument 'c'",
        "workers/b.md:2: error": "unknown key 'modle'. Did you mean 'model'",
        "workers/b.md:3: error": "limits.max_cost",
        "workers/c.yaml:2: error": "there is no argument 'c'",
        "workers/add.md: error": "also tool 'add'",
        "workers/calc/tools.py:1: error": "SyntaxError",
        "workers/made/tools.py: error": "generator function",
        "workers/two.md: error": "has two files",
        "workers/bad name.md: error": "cannot be a worker's name",
        "workers/old.yml: error": "ends with .yaml or .md",
        "workers/worker.md: error": "no worker can be called 'worker'",
        "workers/lost: warning": "no worker in this folder",
    }.items():
        assert any(line.startswith(start) and part in line for line in said.out.splitlines()), (start, said.out)
    assert "there is no tool 'ad'. Did you mean 'add'" in said.out
    found = run("check", "--json", at=root).json
    assert found["ok"] is False and found["version"] == 1 and found["errors"] == said.out.count(": error: ")
    assert {"level", "code", "message", "file", "line", "names"} == set(found["problems"][0])
    assert [problem["line"] for problem in found["problems"] if problem["code"] == "no-worker"] == [3]


@pytest.mark.parametrize(
    ("config", "place", "part"),
    [
        ('model = "x\n', "llm-do.toml:1", "Illegal character"),
        ("modle = 'x'\n", "llm-do.toml:1", "modle: unknown key. Did you mean 'model'"),
        ("\n[limits]\nmax_cots = 3\n", "llm-do.toml:3", "Did you mean 'max_cost'"),
        ("[sandbox.paths.x]\nroot = 'a'\nmoed = 'rw'\n", "llm-do.toml:3", "Did you mean 'mode'"),
        ("[tool_rules]\n'sandbox.writ' = 'ask'\n", "llm-do.toml:2", "Did you mean 'sandbox.write'"),
        ("[tool_rules]\nadd = 'perhaps'\n", "llm-do.toml:2", "is no rule"),
    ],
)
def test_a_broken_configuration_hides_no_other_error(config: str, place: str, part: str, make: Make, run: Run) -> None:
    root = make(
        {"llm-do.toml": config, "workers/a.md": "---\ntools: [zip]\n---\nx", "workers/b.md": "---\nx: 1\n---\n"}
    )
    said = run("check", at=root)
    assert said.code == Exit.INVALID
    assert any(line.startswith(f"{place}: error") and part in line for line in said.out.splitlines()), said.out
    assert "workers/a.md:2: error: there is no tool 'zip'" in said.out and "workers/b.md:2: error" in said.out
    assert "No worker was built, since llm-do.toml cannot be used" in said.out


@pytest.mark.parametrize("code", ["import nopkg\n", "raise SystemExit(3)\n", "1 / 0\n", "def f(:\n", "x = \x00\n"])
def test_code_that_cannot_be_imported_is_one_error(code: str, make: Make, run: Run) -> None:
    root = make({"tools.py": f"y = 1\n{code}", "workers/a.md": "x", "workers/b.md": "---\nx: 1\n---\n"})
    said = run("check", at=root)
    assert said.code == Exit.INVALID and said.out.count("cannot be imported") == 1
    assert said.out.startswith("tools.py:") and "workers/b.md:2: error" in said.out


def test_check_knows_who_can_call_whom(make: Make, run: Run) -> None:
    root = make(
        {
            "llm-do.toml": 'model = "test"\n',
            "workers/a.md": "---\ntools: [b, add]\n---\nx",
            "workers/b.md": "---\nallow_workers: [c]\n---\nx",
            "workers/c.md": "---\ntools:\n  - a\n---\nx",
            "workers/self.md": "---\nallow_workers: ['*']\n---\nx",
            "workers/alone.md": "x",
            "workers/by_code.md": "x",
            "tools.py": TOOLS + "\n@entry\ndef go() -> str:\n    return 'by_code'\n",
        }
    )
    found = {problem["code"]: problem for problem in run("check", "--json", at=root).json["problems"]}
    cycle = found["cycle"]
    assert cycle["level"] == "warning" and "max_depth" in cycle["message"]
    (root / "workers/self.md").unlink()
    told = run("check", "--json", at=root).json["problems"]
    cycle = next(problem for problem in told if problem["code"] == "cycle")
    assert cycle["names"] == ["a", "b", "c"] and "a > b > c > a" in cycle["message"]
    assert (cycle["file"], cycle["line"]) == ("workers/a.md", 2)
    assert next(problem for problem in told if problem["code"] == "unreached")["names"] == ["alone"]
    assert next(problem for problem in told if problem["code"] == "unused")["names"] == ["go", "wipe-all"]
    assert run("check", at=root).code == 0
    assert run("check", "--strict", at=root).code == Exit.INVALID


@pytest.mark.parametrize(
    ("edges", "found"),
    [
        ({}, []),
        ({"a": ["b"], "b": ["c"], "c": []}, []),
        ({"a": ["a"]}, [["a"]]),
        ({"a": ["b"], "b": ["a"], "c": ["a"]}, [["a", "b"]]),
        ({"a": ["b", "c"], "b": ["d"], "c": ["d"], "d": []}, []),
        ({"a": ["b"], "b": ["a", "c"], "c": ["d"], "d": ["c", "e"], "e": ["e"]}, [["a", "b"], ["c", "d"], ["e"]]),
        ({"d": ["a"], "a": ["b"], "b": ["c"], "c": ["a", "x"]}, [["a", "b", "c"]]),
    ],
)
def test_circles_of_calls(edges: dict[str, list[str]], found: list[list[str]]) -> None:
    assert connected_groups(edges) == found


def test_a_thousand_workers_that_call_anybody_are_checked() -> None:
    """In time, too: to follow every path of calls among them would not end."""
    many = [f"w{number}" for number in range(1000)]
    assert connected_groups(dict.fromkeys(many, many)) == [sorted(many)]


def test_check_looks_at_models_and_keys(make: Make, run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    root = make(
        {
            "workers/a.md": "---\nmodel: openai:gpt-5\nnative: [web_search, memory]\n---\nx",
            "workers/b.md": "---\nmodel: groq:x\n---\nx",
            "workers/c.md": "---\nmodel: gpt-5\n---\nx",
            "workers/d.md": "x",
        }
    )
    out = "\n".join(lines(root, run))
    assert "workers/a.md:2: warning: model 'openai:gpt-5': OPENAI_API_KEY is not set" in out
    assert "workers/b.md:2: warning: model 'groq:x'" in out and "pydantic-ai-slim[groq]" in out
    assert "workers/c.md:2: error: model 'gpt-5': it has no provider" in out
    assert "no model is set for d" in out
    from llm_do.cli.support.project_check.models import find_model

    find_model.cache_clear()
    monkeypatch.setenv("OPENAI_API_KEY", "sk-hunter2")
    out = "\n".join(lines(root, run))
    find_model.cache_clear()
    assert "OPENAI_API_KEY" not in out and "hunter2" not in out and "no model is set" not in out
    assert "does not support the native tool memory" in out and "web_search" not in out


def test_check_tells_of_a_setting_that_is_misspelled(make: Make, run: Run) -> None:
    """Those of a provider are not known here, and not judged."""
    root = make({"workers/a.md": "---\nmodel_settings: {max_token: 9, seed: 1, openai_store: false}\n---\nx"})
    out = "\n".join(lines(root, run))
    told = "model_settings has 'max_token', which no model knows. Did you mean 'max_tokens'?"
    assert f"workers/a.md:2: warning: {told}" in out
    assert "seed" not in out and "openai_store" not in out


def test_check_and_show_tell_which_models_a_worker_can_use(
    make: Make, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A model that can be had is known not to fit; of any other, the name is compared."""
    from llm_do.cli.support.project_check.models import find_model

    root = make(
        {
            "workers/a.md": "---\nmodel: openai:gpt-5\ncompatible_models: [anthropic:*]\n---\nx",
            "workers/b.md": "---\nmodel: openai:gpt-5\ncompatible_models: [openai:*, vision]\n---\nx",
            "workers/c.md": "---\nmodel: local:smollm2-135m\ncompatible_models: [vision]\n---\nx",
            "workers/d.md": "---\ncompatible_models: [openai:*]\n---\nx",
            "llm-do.toml": 'model = "local:smollm2-135m"\n',
        }
    )
    problem = "its model 'openai:gpt-5' is none of its compatible_models: anthropic:*."
    out = "\n".join(lines(root, run))
    assert f"workers/a.md:3: warning: worker 'a': {problem}" in out
    find_model.cache_clear()
    monkeypatch.setenv("OPENAI_API_KEY", "sk-x")
    out = "\n".join(lines(root, run))
    find_model.cache_clear()
    assert f"workers/a.md:3: error: worker 'a': {problem}" in out
    assert "worker 'b'" not in out
    assert "workers/c.md:3: error: worker 'c': its model 'local:smollm2-135m' is none" in out
    assert "workers/d.md:2: error: worker 'd': the model 'local:smollm2-135m' of llm-do.toml is none" in out
    assert "it can use: openai:*, vision" in run("show", "b", at=root).out


def test_rules_why_judges_files_that_go_to_a_worker(make: Make, run: Run) -> None:
    """As its model would hand them over."""
    root = make(
        {
            "workers/a.md": "---\ntools: [b]\nsandbox: {paths: {in: {root: in}}}\n"
            "tool_rules: {sandbox.read: {rule: deny, when: {path: in/secret.txt}}}\n---\nx",
            "workers/b.md": "x",
            "in/a.txt": "alpha",
        }
    )
    for name, decided in (("a", "allow"), ("secret", "deny")):
        made = run("rules", "why", "a", "b", "input=x", f'attachments=["in/{name}.txt"]', at=root)
        assert made.out.startswith(decided), made
    assert '"attachments"' in run("show", "a", at=root).out


def test_check_imports_nothing_that_only_a_generated_worker_names(make: Make, run: Run) -> None:
    forged = "created_by: (project)\ntoolsets: ['evil:make']\ntools: [nope]\nallow_workers: ['*']\ninstructions: x\n"
    root = make({"workers/generated/forged.yaml": forged, "llm-do.toml": 'model = "test"\n'})
    (root / "evil.py").write_text(f"from pathlib import Path\nPath({str(root / 'ran')!r}).touch()\n")
    said = run("check", at=root)
    assert (said.code, said.out) == (0, "1 worker, 0 functions: 0 errors, 0 warnings.\n")
    assert not (root / "ran").exists()


def test_check_starts_no_server(make: Make, run: Run) -> None:
    root = make(
        {
            "workers/a.yaml": "model: test\ntoolsets:\n  - mcp: {command: [sh, -c, touch started]}\n"
            "  - mcp: {command: [no-such-program]}\ntool_rules: {whatever: ask}\ninstructions: x\n"
        }
    )
    said = run("check", at=root)
    assert said.code == 0 and "'no-such-program' of an MCP server is not on PATH" in said.out
    assert not list(root.glob("**/started"))


def test_rules_of_the_project_speak_of_tools_that_are_there(make: Make, run: Run) -> None:
    said = run("check", at=make({"tools.py": TOOLS, "llm-do.toml": "[tool_rules]\nad = 'deny'\n"}))
    assert said.code == Exit.INVALID and "llm-do.toml:2: error: there is no tool 'ad'" in said.out
    assert "Did you mean 'add'" in said.out


def test_check_does_not_stop_at_what_a_class_is_not(make: Make, run: Run) -> None:
    root = make({"workers/a.md": "---\ninput: schemas.py:f\n---\nx", "schemas.py": "def f(): ...\n"})
    said = run("check", at=root)
    assert said.code == Exit.INVALID and "workers/a.md: error: 'schemas.py:f' is not a class" in said.out


@pytest.mark.parametrize(
    "example",
    sorted(Path(__file__).parents[2].joinpath("examples").glob("*/workers")),
    ids=lambda path: path.parent.name,
)
def test_the_examples_pass(example: Path) -> None:
    found = check_project(WorkerRegistry(example.parent))
    assert [problem for problem in found.problems if problem.level == "error"] == []


# -- rules -------------------------------------------------------------------------------------------


@pytest.fixture
def ruled(make: Make) -> Path:
    return make(
        {
            "workers/secretary.md": SECRETARY,
            "workers/web.yaml": "native: [web_search]\ntoolsets:\n  - {mcp: {command: [x]}, name: github}\n"
            "instructions: x\ntool_rules: {web_search: deny, github/wipe: deny, read: allow}\n",
            "tools.py": TOOLS,
            "llm-do.toml": '[tool_rules]\n"wipe-all" = { rule = "deny", reason = "Never." }\n',
        }
    )


@pytest.mark.parametrize(
    ("words", "decision", "where"),
    [
        ("secretary delete_file path=minutes/signed/x.md", "deny", "workers/secretary.md:8"),
        ("secretary delete_file path=minutes/drafts/x.md", "allow", "workers/secretary.md:7"),
        ("secretary delete_file path=minutes/x.md", "ask", None),
        ("secretary sandbox.write path=minutes/signed/x.md", "deny", "workers/secretary.md:8"),
        ("secretary sandbox.write path=minutes/signed/x.md content=7", "deny", "workers/secretary.md:8"),
        ("secretary sandbox.read path=minutes/x.md", "allow", None),
        ("secretary add a=11", "deny", "workers/secretary.md:9"),
        ("secretary add a=1 b=3", "allow", None),
        ('secretary add --args-json {"a":11}', "deny", "workers/secretary.md:9"),
        ("secretary wipe-all disk=1", "deny", "llm-do.toml:2"),
        ("web web_search", "deny", "workers/web.yaml:5"),
        ("web something", "ask", None),
        ("web github/wipe", "deny", "workers/web.yaml:5"),
        ("web github/read", "allow", "workers/web.yaml:5"),
        ("web gitlab/wipe", "ask", None),
    ],
)
def test_why_says_what_is_decided(words: str, decision: str, where: str | None, ruled: Path, run: Run) -> None:
    said = run("rules", "why", *words.split(), "--json", at=ruled)
    assert said.code == 0, said.err
    assert (said.json["decision"], said.json["where"]) == (decision, where)
    assert run("rules", "why", *words.split(), at=ruled).out.splitlines()[0] == decision


def test_why_calls_a_tool_of_a_server_a_tool(ruled: Path, run: Run) -> None:
    assert "because: tool 'gitlab/wipe' requires approval" in run("rules", "why", "web", "gitlab/wipe", at=ruled).out


@pytest.mark.parametrize("name", ["shell", "sandbox.write", "write_file"])
def test_why_takes_no_name_of_our_own_for_a_tool_of_a_server(name: str, ruled: Path, run: Run) -> None:
    said = run("rules", "why", "web", name, at=ruled)
    assert said.code != 0
    assert f"has no tool '{name}'" in said.err


def test_why_says_which_tool_was_meant(ruled: Path, run: Run) -> None:
    said = run("rules", "why", "secretary", "sandbox.write", "path=minutes/signed/x.md", at=ruled)
    assert "delete_file" in said.err and "They are signed." in said.out and "workers/secretary.md:8" in said.out
    assert "does not have wipe-all" in run("rules", "why", "secretary", "wipe-all", "disk=a", at=ruled).err


@pytest.mark.parametrize(
    ("words", "part"),
    [
        ("secretary sandbx.write", "Did you mean 'sandbox.write'"),
        ("secretry add", "Did you mean 'secretary'"),
        ("add add", "is a function"),
        ("secretary add a", "write NAME=VALUE"),
        ("secretary add =1", "write NAME=VALUE"),
        ("secretary add a=1 a=2", "given twice"),
        ("secretary add a=x", "'a'"),
        ("secretary add c=1", "'c'"),
        ("secretary add --args-json [1]", "must be an object"),
        ("secretary add --args-json {", "is not JSON"),
        ("secretary", "Missing argument 'TOOL'"),
    ],
)
def test_why_says_what_is_wrong_with_a_question(words: str, part: str, ruled: Path, run: Run) -> None:
    said = run("rules", "why", *words.split(), at=ruled)
    assert (said.code, said.out) == (Exit.USAGE, "") and part in said.err


def test_rules_are_listed_with_where_they_stand(ruled: Path, run: Run) -> None:
    said = run("rules", "list", at=ruled)
    assert [line.split(": ")[0] for line in said.out.splitlines()] == [
        "llm-do.toml:2",
        "workers/secretary.md:7",
        "workers/secretary.md:8",
        "workers/secretary.md:9",
        "workers/web.yaml:5",
        "workers/web.yaml:5",
        "workers/web.yaml:5",
    ]
    assert len(run("rules", "list", "web", "--json", at=ruled).json) == 4
    (ruled / "llm-do.toml").unlink()
    (ruled / "workers/web.yaml").write_text("instructions: x")
    said = run("rules", "list", "web", at=ruled)
    assert (said.code, said.out) == (0, "") and "no rules" in said.err


# -- schema ------------------------------------------------------------------------------------------


def test_the_schema_is_one(run: Run, tmp_path: Path) -> None:
    said = run("schema")
    jsonschema.Draft202012Validator.check_schema(said.json)
    assert "tool_rules" in said.json["properties"]
    assert run("schema", "-o", tmp_path / "s.json") == Result(0, "", "")
    assert json.loads((tmp_path / "s.json").read_text()) == said.json
    failed = run("schema", "--output", tmp_path / "no/where.json")
    assert failed.code == Exit.FAILED and "where.json cannot be written: No such file" in failed.err
    assert run("schema", "--output", tmp_path).code == Exit.USAGE


# -- new ---------------------------------------------------------------------------------------------


def test_a_new_project_passes_check_and_runs(run: Run, tmp_path: Path) -> None:
    said = run("new", "project", "mine")
    assert (said.code, said.out) == (0, "mine\n") and "cd mine" in said.err and "llm-do run" in said.err
    root = tmp_path / "mine"
    assert sorted(str(path.relative_to(root)) for path in root.rglob("*") if path.is_file()) == [
        ".gitignore",
        "README.md",
        "llm-do.toml",
        "tools.py",
        "workers/helper.md",
    ]
    checked = run("check", "--strict", at=root)
    assert checked.code == 0 and "0 errors, 0 warnings" in checked.out
    # What stands behind # in the configuration is right as well.
    config = root / "llm-do.toml"
    config.write_text(
        "\n".join(
            line.removeprefix("# ") if any(sign in line for sign in ("= ", "[")) else line
            for line in config.read_text().splitlines()
        )
    )
    assert run("check", at=root).code == 0, run("check", at=root).out
    from pydantic_ai.models.test import TestModel

    from llm_do import run_worker

    config.unlink()
    registry = WorkerRegistry(root)
    assert run_worker(registry=registry, worker="count_words", input_data="one two three").output == 3
    output = run_worker(registry=registry, worker="helper", input_data="Hi", cli_model=TestModel()).output
    assert "count_words" in output


def test_nothing_is_overwritten(run: Run, tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    said = run("new", "project", "mine")
    assert (said.code, said.out) == (Exit.USAGE, "") and "exists already" in said.err
    assert list((tmp_path / "mine").iterdir()) == []
    (tmp_path / "there").mkdir()
    assert run("new", "project", "mine", "--dir", tmp_path / "there").out == f"{tmp_path}/there/mine\n"
    assert run("new", "project", "x", "--dir", tmp_path / "nowhere").code == Exit.USAGE


@pytest.mark.parametrize(
    "name", ["", ".", "..", "../x", "/tmp/x", "a/b", "a b", "-x", "ä", "a" * 65, "a\nb", "a\x00b", "$(x)", "~"]
)
@pytest.mark.parametrize("what", ["project", "worker"])
def test_hostile_names_are_refused(what: str, name: str, make: Make, run: Run) -> None:
    root = make({})
    before = sorted(root.parent.rglob("*"))
    said = run("new", what, "--", name, at=root)
    assert (said.code, said.out) == (Exit.USAGE, "") and "cannot be the name" in said.err
    assert sorted(root.parent.rglob("*")) == before


def test_a_new_worker_is_what_was_asked_for(make: Make, run: Run) -> None:
    root = make({"tools.py": TOOLS, "workers/old.md": "x"})
    hard = 'Says: "hi" # not\nin two lines'
    said = run("new", "worker", "one", "-d", hard, "-t", "add", "-t", "old", "-t", "add", "-m", "test", at=root)
    assert said.code == 0 and said.out == f"{root}/workers/one.md\n" and "llm-do run one" in said.err
    assert run("new", "worker", "two", "--description", hard, "--tool", "add", "--yaml", at=root).code == 0
    assert run("new", "worker", "three", at=root).code == 0
    registry = WorkerRegistry(root)
    one, two, three = (registry.definition(name) for name in ("one", "two", "three"))
    assert (one.description, one.tools, one.model) == (hard, ("add", "old"), "test")
    assert (two.description, two.tools) == (hard, ("add",)) and three.description is None
    assert run("check", at=root).code == 0
    listed = {row["name"]: row["description"] for row in run("list", "--json", at=root).json}
    assert listed["one"] == listed["two"] == hard


@pytest.mark.parametrize(
    ("words", "part"),
    [
        ("old", "old.md exists already"),
        ("folder", "worker.md exists already"),
        ("born", "born.yaml exists already"),
        ("legacy", "legacy.yml exists already"),
        ("add", "the name of a function"),
        ("generated", "cannot be the name"),
        ("worker", "cannot be the name"),
        ("x --tool ad", "Did you mean 'add'"),
        ("", "Missing argument 'NAME'"),
    ],
)
def test_a_new_worker_clashes_with_nothing(words: str, part: str, make: Make, run: Run) -> None:
    files = {"workers/old.md": "x", "workers/folder/worker.md": "x", "workers/legacy.yml": "x", "tools.py": TOOLS}
    root = make({**files, "workers/generated/born.yaml": "instructions: x"})
    before = {path: path.read_text() for path in root.rglob("*") if path.is_file()}
    said = run("new", "worker", *words.split(), at=root)
    assert (said.code, said.out) == (Exit.USAGE, "") and part in said.err
    assert {path: path.read_text() for path in root.rglob("*") if path.is_file()} == before


def test_what_cannot_be_read_again_is_not_written(make: Make, run: Run) -> None:
    root = make({})
    said = run("new", "worker", "x", "-d", "bell \x07", at=root)
    assert said.code in (0, Exit.INVALID)
    if said.code:
        assert list(root.glob("workers/x*")) == []
    else:
        assert WorkerRegistry(root).definition("x").description == "bell \x07"


def test_new_asks_nobody_without_a_terminal(tmp_path: Path) -> None:
    done = real("new", cwd=tmp_path)
    assert done.returncode == Exit.USAGE and done.stdout == "" and "llm-do new project NAME" in done.stderr


def test_new_asks_in_a_terminal(tmp_path: Path) -> None:
    asked = [("A project or a worker", "\n"), ("Its name", "mine\n")]
    code, said = talk([str(LLM_DO), "new"], asked, tmp_path)
    assert code == 0, said
    assert (tmp_path / "mine/workers/helper.md").is_file() and "cd mine" in said
    asked = [("A project or a worker", "\n"), ("Its name", "second\n"), ("What it is for", "Seconds.\n")]
    code, said = talk([str(LLM_DO), "new"], asked, tmp_path / "mine/workers")
    assert code == 0, said
    assert WorkerRegistry(tmp_path / "mine").definition("second").description == "Seconds."
    code, said = talk([str(LLM_DO), "new"], [("A project or a worker", "\x03")], tmp_path)
    assert code == Exit.INTERRUPTED and "Traceback" not in said


# -- doctor ------------------------------------------------------------------------------------------


def test_the_doctor_names_keys_and_never_prints_them(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "sk-hunter2")
    monkeypatch.setenv("GEMINI_API_KEY", "hunter3")
    for said in (run("doctor"), run("doctor", "--json")):
        assert said.code == 0 and said.err == ""
        assert "OPENAI_API_KEY" in said.out and "GEMINI_API_KEY" in said.out and "hunter" not in said.out
    found = {finding["what"]: finding for finding in run("doctor", "--json").json["findings"]}
    assert found["OPENAI_API_KEY"]["state"] == "ok" and found["ANTHROPIC_API_KEY"]["state"] == "missing"
    assert found["default model"]["detail"].endswith("(OPENAI_API_KEY is set)")
    assert {"python", "llm-do", "pydantic-ai-slim", "bubblewrap", "sqlite", "terminal", "project"} <= set(found)
    assert found["project"]["state"] == "missing" and "llm-do new" in found["project"]["detail"]


def test_the_doctor_asks_model_servers_on_this_machine(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            body = b'{"data": [{"id": "tiny-model"}]}'
            self.send_response(200)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *args: object) -> None: ...

    monkeypatch.delenv("LLM_DO_NO_LOCAL")
    monkeypatch.setenv("LLM_DO_MODEL", "test")
    with HTTPServer(("127.0.0.1", 0), Handler) as served, socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))  # and nobody listens
        thread = threading.Thread(target=served.serve_forever)
        thread.start()
        ports = {"here": served.server_port, "gone": closed.getsockname()[1]}
        servers = [
            ModelServer(name=name, provider=name, address=Address(port=port), path="/v1/models", rows="data", key="id")
            for name, port in ports.items()
        ]
        monkeypatch.setattr("llm_do.models.servers.MODEL_SERVERS", servers)
        found = {finding["what"]: finding for finding in run("doctor", "--json").json["findings"]}
        served.shutdown()
        thread.join()
    assert found["here"]["state"] == "ok" and "tiny-model; not used without your yes" in found["here"]["detail"]
    assert found["gone"]["state"] == "missing" and found["default model"]["detail"] == "test (LLM_DO_MODEL)"


def test_the_doctor_says_what_is_wrong_with_the_configuration(make: Make, run: Run) -> None:
    said = run("doctor", at=make({"llm-do.toml": "modle = 1\n"}))
    assert said.code == 0 and "Did you mean 'model'" in said.out


# -- completion --------------------------------------------------------------------------------------


def offered(root: Path, *words: str, shell: str = "bash") -> list[str]:
    """What the program answers to a shell: the texts, or `file` where the shell should look for files."""
    number = len(words) if shell != "fish" else words[-1]
    env = {
        "_LLM_DO_COMPLETE": f"{shell}_complete",
        "COMP_WORDS": "\n".join(["llm-do", *words]),
        "COMP_CWORD": str(number),
    }
    done = real(cwd=root, **env)
    assert done.returncode == 0 and done.stderr == ""
    answers = done.stdout.splitlines()
    if shell == "zsh":
        return answers[1::3]
    return [text if kind == "plain" else kind for kind, _, text in (answer.partition(",") for answer in answers)]


def test_tab_offers_words(make: Make) -> None:
    root = make({"workers/greeter.md": "x", "workers/great-one.md": "x", "tools.py": TOOLS, "deep/x": ""})
    assert offered(root, "s") == ["show", "schema"]
    assert offered(root, "") == list(COMMANDS)
    assert offered(root / "deep", "run", "gre") == ["great-one", "greeter"]
    assert offered(root, "run", "a") == ["add"] and offered(root, "chat", "a") == ["file"]
    assert offered(root, "rules", "w") == ["why"]
    assert offered(root, "rules", "why", "gree") == ["greeter"]
    assert offered(root, "completion", "") == ["bash", "zsh", "fish"]
    assert offered(root.parent, "-C", "project", "show", "gree") == ["greeter"]
    assert offered(root, "show", "./") == ["file"]
    assert offered(root, "list", "--js") == ["--json"]
    assert offered(root, "nonsense", "") == [] and offered(root, "nonsense", "--") == []
    assert offered(root, "show", '"gree') == ["greeter"]
    assert offered(root.parent, "-Cproject", "show", "gree") == ["greeter"]
    assert offered(root, "run", "--model", "test", "gree") == ["greeter"]
    assert offered(root, "show", "gree", shell="zsh") == ["greeter"]
    assert offered(root, "show", "gree", shell="fish") == ["greeter"]
    assert offered(root, "sh", shell="fish") == ["show\tShow a worker as a model sees it."]


def test_tab_disturbs_nobody(make: Make) -> None:
    root = make({"tools.py": "def f(:\n"})
    assert offered(root, "run", "x") == ["file"]
    for env in (
        {"_LLM_DO_COMPLETE": "nonsense"},
        {"_LLM_DO_COMPLETE": "bash_complete"},
        {"_LLM_DO_COMPLETE": "bash_complete", "COMP_WORDS": "llm-do x", "COMP_CWORD": "x"},
    ):
        done = real(cwd=root, **env)
        assert done.stdout + done.stderr == ""


def test_tab_imports_nothing_heavy(make: Make) -> None:
    root = make({"workers/greeter.md": "x", "tools.py": TOOLS})
    code = (
        "import sys; from llm_do.cli import main; main()\n"
        "heavy = {'pydantic', 'pydantic_ai', 'yaml', 'rich'} & set(sys.modules)\n"
        "assert not heavy, heavy\n"
    )
    env = {**os.environ, "_LLM_DO_COMPLETE": "bash_complete", "COMP_WORDS": "llm-do run gr", "COMP_CWORD": "2"}
    done = subprocess.run([sys.executable, "-c", code], cwd=root, env=env, capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (0, "plain,greeter\n"), done.stderr


def test_help_of_a_command_imports_nothing_heavy() -> None:
    modules = ", ".join(f"llm_do.cli.commands.{name}" for name in COMMANDS)
    code = f"import sys, {modules}\nprint({{'pydantic', 'pydantic_ai', 'yaml', 'rich', 'textual'}} & set(sys.modules))"
    assert subprocess.check_output([sys.executable, "-c", code], text=True) == "set()\n"


def in_bash(root: Path, line: str) -> list[str]:
    """What bash would offer for a line, with the script as users install it."""
    script = f"""
        PATH={LLM_DO.parent}:$PATH
        eval "$(llm-do completion bash)"
        complete -p llm-do >&2
        COMP_WORDS=({line}) COMP_CWORD=$((${{#COMP_WORDS[@]}} - 1))
        COMPREPLY=()
        _llm_do_completion llm-do
        printf '%s\\n' "${{COMPREPLY[@]}}"
    """
    done = subprocess.run(["bash", "--norc", "-c", script], cwd=root, capture_output=True, text=True, timeout=PATIENCE)
    assert "_llm_do_completion" in done.stderr, done.stderr
    return done.stdout.split()


def test_bash_completes(make: Make) -> None:
    root = make({"workers/greeter.md": "x", "tools.py": TOOLS})
    assert in_bash(root, "llm-do sch") == ["schema"]
    assert in_bash(root, "llm-do run gre") == ["greeter"]
    assert in_bash(root, "llm-do show ''") == ["add", "greeter", "wipe-all"]


@pytest.mark.parametrize(
    ("shell", "parts"),
    [
        ("bash", ["complete -o nosort -F _llm_do_completion llm-do", "bash-completion/completions/llm-do"]),
        ("zsh", ["compdef _llm_do_completion llm-do", "_LLM_DO_COMPLETE=zsh_complete llm-do"]),
        ("fish", ["complete --no-files --command llm-do", ".config/fish/completions/llm-do.fish"]),
    ],
)
def test_each_shell_has_a_script(shell: str, parts: list[str], run: Run) -> None:
    """Where the shell is installed it reads the script as well; where it is not, the text is all that can be tested."""
    said = run("completion", shell)
    assert said.code == 0 and said.err == "" and all(part in said.out for part in parts)
    assert f"llm-do completion {shell} >" in said.out
    assert said.out.startswith("#compdef llm-do\n" if shell == "zsh" else "# Completion")
    if (program_of_shell := shutil.which(shell)) is not None:
        flag = "--no-execute" if shell == "fish" else "-n"
        done = subprocess.run([program_of_shell, flag], input=said.out, capture_output=True, text=True)
        assert (done.returncode, done.stderr) == (0, "")


def test_an_unknown_shell_is_an_error(run: Run) -> None:
    said = run("completion", "tcsh")
    assert said.code == Exit.USAGE and "bash" in said.err and said.out == ""


# -- as users start it -------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def hundred(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("hundred")
    (root / "workers").mkdir()
    for number in range(100):
        text = f"---\ndescription: Number {number} of many.\nmodel: anthropic:claude-haiku-4-5\n---\nDo it.\n"
        (root / f"workers/w{number}.md").write_text(text)
    return root


def test_the_installed_program_and_the_module_are_the_same(make: Make) -> None:
    root = make({"workers/a.md": "---\ntools: [nope]\n---\nx"})
    done = real("check", cwd=root, LLM_DO_NO_LOCAL="1")
    module = [sys.executable, "-m", "llm_do", "check"]
    again = subprocess.run(module, cwd=root, capture_output=True, text=True, stdin=subprocess.DEVNULL)
    assert done.returncode == again.returncode == Exit.INVALID
    assert done.stdout == again.stdout and "workers/a.md:2: error: there is no tool 'nope'" in done.stdout


def test_a_reader_that_leaves_is_no_error(hundred: Path) -> None:
    done = subprocess.run(
        ["bash", "-c", f"set -o pipefail; {LLM_DO} list --json | head -1"], cwd=hundred, capture_output=True, text=True
    )
    assert done.stdout == "[\n" and done.stderr == ""
