"""A project's files as entries: names, forms, references, changes, delegation, creation and authority."""

import contextlib
import itertools
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pydantic_ai.messages import ModelMessage, ModelResponse
from pydantic_ai.models.function import AgentInfo

from llm_do import (
    ApprovalDecision,
    ArgumentError,
    DuplicateEntryError,
    LimitExceeded,
    Limits,
    LlmDoError,
    OutputError,
    ProjectCodeError,
    Runtime,
    UnknownEntryError,
    WorkerEntry,
    WorkerFileError,
    WorkerRegistry,
    WorkerSpec,
    approve_all_callback,
)

from ..processes import PATIENCE
from ..scripted import answers, by_tools, calls, says, scripted, tool_results
from ..sealing import seal

Make = Callable[..., WorkerRegistry]

TOOLS = """
from llm_do import entry

@entry
def add(a: int, b: int) -> int:
    return a + b

@entry
def wipe() -> str:
    return "wiped"
"""

RW = "sandbox: {paths: {out: {root: out, mode: rw}}}\n"


@pytest.fixture
def make(tmp_path: Path) -> Make:
    """Makes a project of files: paths, and what is in them."""

    def project(files: dict[str, str], root: str = "project") -> WorkerRegistry:
        for path, text in {"workers/.keep": "", **files}.items():
            (tmp_path / root / path).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / root / path).write_text(text)
            seal(tmp_path / root / path)
        return WorkerRegistry(tmp_path / root)

    return project


class Guard:
    """Says yes, and remembers what it was asked."""

    def __init__(self, **decision: Any) -> None:
        self.decision = ApprovalDecision(**{"approved": True, **decision})
        self.asked: list[tuple[str, dict[str, Any]]] = []

    def __call__(self, tool_name: str, payload: dict[str, Any], reason: str) -> ApprovalDecision:
        self.asked.append((tool_name, payload))
        return self.decision


_LATER = itertools.count(10, 10)


def write(registry: WorkerRegistry, path: str, text: str) -> None:
    """Change a file, in a way that no clock is too coarse for."""
    file = registry.root / path
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text)
    seal(file)
    later = time.time() + next(_LATER)
    os.utime(file, (later, later))


def tool_names(registry: WorkerRegistry, worker: str) -> list[str]:
    entry = registry[worker]
    assert isinstance(entry, WorkerEntry)
    return [tool if isinstance(tool, str) else tool.name for tool in entry.tools]


def worker_of(registry: WorkerRegistry, name: str) -> WorkerEntry[Any]:
    entry = registry[name]
    assert isinstance(entry, WorkerEntry)
    return entry


# -- forms and names -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("path", "text"),
    [
        ("workers/greeter.md", "---\ndescription: Greets.\ntools: [add]\n---\nSay hello.\n"),
        ("workers/greeter.yaml", "description: Greets.\ntools: [add]\ninstructions: Say hello.\n"),
        ("workers/greeter/worker.md", "---\ndescription: Greets.\ntools: [add]\n---\nSay hello.\n"),
        ("workers/greeter/worker.yaml", "name: greeter\ndescription: Greets.\ntools: [add]\ninstructions: Say hello."),
        ("workers/generated/greeter.yaml", None),
    ],
)
async def test_every_form_of_a_worker_file_is_the_same_worker(make: Make, path: str, text: str | None) -> None:
    registry = make({"tools.py": TOOLS} if text is None else {path: text, "tools.py": TOOLS})
    if text is None:
        registry.create(WorkerSpec(name="greeter", description="Greets.", tools=("add",), instructions="Say hello."))
    assert (registry.root / path).is_file()
    assert registry.workers() == ["greeter"]
    definition = registry.definition("greeter")
    assert (definition.description, definition.tools, definition.instructions) == ("Greets.", ("add",), "Say hello.")
    model = scripted(calls(("add", {"a": 2, "b": 3})), lambda messages, info: says(str(tool_results(messages)[-1])))
    assert await Runtime(registry, model=model).call("greeter", "hi") == "5"


def test_a_registry_is_a_mapping_of_workers_and_functions(make: Make) -> None:
    registry = make({"workers/b.md": "b", "workers/generated/c.yaml": "instructions: c", "tools.py": TOOLS})
    assert list(registry) == ["add", "b", "c", "wipe"]
    assert len(registry) == 4
    assert registry["add"].kind == "tool"
    assert registry.get("nothing") is None
    assert "nothing" not in registry


async def test_a_disk_that_takes_no_worker_is_an_error_for_the_model(make: Make) -> None:
    """Its run goes on, as with any other creation that is refused."""
    registry = make({"workers/boss.yaml": BOSS, "tools.py": TOOLS, "workers/generated": "in the way of the folder"})
    assert "Worker 'helper' cannot be written in workers/generated/: " in await create_by_model(registry, "helper")


@pytest.mark.parametrize("name", ["../../evil", "greeter\n", "grеeter", "", ".", "greeter.md", "a/b", "/etc/passwd"])
async def test_a_name_that_is_none_finds_nothing(make: Make, name: str) -> None:
    registry = make({"workers/greeter.md": "Hello."})
    (registry.root.parent / "evil.md").write_text("Evil.")
    (registry.root / "workers" / "grеeter.md").write_text("A twin.")
    assert registry.file_of(name) is None
    assert registry.workers() == ["greeter"]
    with pytest.raises(UnknownEntryError):
        registry.definition(name)
    with pytest.raises(UnknownEntryError):
        await Runtime(registry, model=scripted(says("x"))).call(name, "go")


def test_a_misspelled_name_gets_a_hint(make: Make) -> None:
    with pytest.raises(UnknownEntryError, match="Did you mean 'greeter'"):
        make({"workers/greeter.md": "Hello."}).definition("greter")


def test_a_project_that_is_no_folder(tmp_path: Path) -> None:
    with pytest.raises(WorkerFileError, match="not a folder"):
        WorkerRegistry(tmp_path / "nothing")


def test_a_project_without_anything_is_empty(tmp_path: Path) -> None:
    assert list(WorkerRegistry(tmp_path)) == []


@pytest.mark.parametrize("other", ["workers/a.yaml", "workers/a/worker.md", "workers/a/worker.yaml"])
def test_two_files_of_one_name_are_an_error_that_names_both(make: Make, other: str) -> None:
    registry = make({"workers/a.md": "a", other: "instructions: a" if other.endswith("yaml") else "a"})
    with pytest.raises(DuplicateEntryError) as error:
        registry["a"]
    assert "workers/a.md" in str(error.value)
    assert other in str(error.value)


def test_a_worker_and_a_function_of_one_name_are_an_error(make: Make) -> None:
    with pytest.raises(DuplicateEntryError, match="'add' is a worker, workers/add.md, and also tool 'add'"):
        make({"workers/add.md": "x", "tools.py": TOOLS})["add"]


def test_two_functions_of_one_name_are_an_error(make: Make) -> None:
    code = TOOLS + "\n@entry(name='add')\ndef more(a: int) -> int:\n    return a\n"
    with pytest.raises(DuplicateEntryError, match="'add'"):
        make({"tools.py": code})["add"]


def test_a_file_that_a_person_wrote_stands_before_a_generated_one(make: Make) -> None:
    registry = make({"workers/a.md": "mine", "workers/generated/a.yaml": "instructions: theirs"})
    assert registry.definition("a").instructions == "mine"
    assert worker_of(registry, "a").generated is False


# -- what a file names must be there -----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("tools: [ad]\n", "workers/a.yaml:1: there is no tool 'ad'. Did you mean 'add'"),
        ("allow_workers: [bb]\n", "workers/a.yaml:1: there is no worker 'bb'."),
        ("toolsets: [files]\n", "workers/a.yaml: the toolset 'files' needs a sandbox"),
        ("toolsets: [shell]\n", "workers/a.yaml: the toolset 'shell' needs a sandbox"),
        (
            "tool_rules: {ad: deny}\n",
            "workers/a.yaml:1: there is no tool 'ad' for rules to speak of. Did you mean 'add'",
        ),
        ("tool_rules: {write_file: deny}\n", "Rules speak of it as 'sandbox.write'"),
        (
            "tools: [add]\ntool_rules: {add: {rule: deny, when: {c: 1}}}\n",
            "workers/a.yaml:2: add: there is no argument",
        ),
        (
            "tools: [add]\ntool_rules:\n  add:\n  - ask\n  - {rule: deny, when: {a: x}}\n",
            "workers/a.yaml:5: add: a: it is",
        ),
        (RW + "tool_rules: {sandbox.write: {rule: deny, when: {path: oout/x}}}\n", "'oout/x' starts with no root"),
        (
            "tool_rules: {b: {rule: deny, when: {inputt: x}}}\n",
            "b: there is no argument 'inputt'. Did you mean 'input'",
        ),
        ("toolsets: ['tools.py:NUMBER']\n", "is no toolset factory: it is 3"),
    ],
)
def test_what_a_file_names_must_be_there(make: Make, text: str, message: str) -> None:
    registry = make({"workers/a.yaml": text, "workers/b.md": "b", "tools.py": TOOLS + "NUMBER = 3\n"})
    with pytest.raises(WorkerFileError) as error:
        registry["a"]
    assert message in str(error.value)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("input: no_such_module_here:Deck\n", "ModuleNotFoundError: No module named 'no_such_module_here'"),
        ("input: schemas.py:Deck\n", "the project has no file 'schemas.py'"),
        ("output: shapes.py:Nothing\n", "shapes.py has no 'Nothing'"),
        ("output: broken.py:Deck\n", "broken.py cannot be imported, line 2 of broken.py: ZeroDivisionError"),
        ("toolsets: ['shapes.py:nothing']\n", "shapes.py has no 'nothing'"),
    ],
)
def test_a_reference_to_what_is_not_there(make: Make, text: str, message: str) -> None:
    registry = make({"workers/a.yaml": text, "shapes.py": "X = 1\n", "broken.py": "import os\n1 / 0\n"})
    registry.definition("a")  # which imports nothing
    with pytest.raises(ProjectCodeError) as error:
        registry["a"]
    assert message in str(error.value)


async def test_a_reference_is_used(make: Make) -> None:
    shapes = "from pydantic import BaseModel\nclass Deck(BaseModel):\n    title: str\n    pages: int = 1\n"
    registry = make({"workers/a.yaml": "input: shapes.py:Deck\noutput: shapes.py:Deck\n", "shapes.py": shapes})
    runtime = Runtime(registry, model=scripted(answers({"title": "x", "pages": 4})))
    output = await runtime.call("a", title="t")
    assert (type(output).__name__, output.pages) == ("Deck", 4)
    with pytest.raises(ArgumentError):
        await runtime.call("a", pages=2)


async def test_tools_that_raise_on_import_are_reported_and_nothing_is_swallowed(make: Make) -> None:
    path, modules = list(sys.path), set(sys.modules)
    registry = make({"workers/a.md": "x", "tools.py": "import os\n\nraise RuntimeError('no database')\n"})
    for _ in range(2):
        with pytest.raises(ProjectCodeError) as error:
            await Runtime(registry, model=scripted(says("x"))).call("a", "go")
        assert str(error.value) == "tools.py cannot be imported, line 3 of tools.py: RuntimeError: no database"
        assert isinstance(error.value.__cause__, RuntimeError)
    assert sys.path == path
    assert {name for name in set(sys.modules) - modules if "llm_do_project" in name} == set()
    assert registry.definition("a").instructions == "x"
    write(registry, "tools.py", TOOLS)
    assert await Runtime(registry, model=scripted(says("x"))).call("a", "go") == "x"


def test_own_tools_that_raise_on_import_are_reported(make: Make) -> None:
    registry = make({"workers/a/worker.md": "x", "workers/a/tools.py": "boom\n"})
    with pytest.raises(ProjectCodeError, match="line 1 of tools.py: NameError: name 'boom' is not defined"):
        registry["a"]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("model = ", "llm-do.toml"),
        ("modle = 'x'\n", "modle"),
        ("model = 3\n", "model"),
        ("[limits]\nmax_calls = -1\n", "limits.max_calls"),
        ("[tool_rules]\nshell = 'perhaps'\n", "perhaps.* is no rule"),
        ("[tool_rules]\n'sandbox.wrte' = 'deny'\n", "sandbox.write"),
        ("[sandbox.paths.o]\nroot = '~/x'\n", "no folder"),
    ],
)
def test_a_bad_configuration_is_an_error_that_names_it(make: Make, text: str, message: str) -> None:
    registry = make({"workers/a.md": "x", "llm-do.toml": text})
    with pytest.raises(WorkerFileError, match=message) as error:
        _ = registry.config
    assert str(error.value).startswith("llm-do.toml:")
    with pytest.raises(WorkerFileError):
        registry["a"]


# -- when files are read ------------------------------------------------------------------------------------


def test_definitions_are_read_without_importing_code(make: Make) -> None:
    trap = "import pathlib\npathlib.Path(__file__).with_suffix('.ran').touch()\n"
    registry = make(
        {
            "tools.py": trap,
            "shapes.py": trap,
            "workers/a/tools.py": trap,
            "workers/a/worker.yaml": "input: shapes.py:Deck\ntoolsets: ['shapes.py:make']\ninstructions: x\n",
        }
    )
    assert registry.workers() == ["a"]
    assert registry.definition("a").input == "shapes.py:Deck"
    assert not list(registry.root.rglob("*.ran"))


async def test_a_changed_file_is_seen_at_the_next_call(make: Make) -> None:
    registry = make(
        {
            "workers/a.yaml": "tools: [add]\ninstructions: one\n",
            "workers/own/worker.md": "x",
            "workers/own/tools.py": "def first() -> int:\n    return 1\n",
            "tools.py": TOOLS,
        }
    )
    runtime = Runtime(registry, model=scripted(says("x")))
    assert registry["a"] is registry["a"]
    assert await runtime.call("add", 2, 3) == 5
    assert tool_names(registry, "own") == ["first"]
    write(registry, "workers/a.yaml", "tools: [wipe]\ninstructions: two\n")
    write(registry, "tools.py", TOOLS.replace("a + b", "a * b"))
    write(registry, "workers/own/tools.py", "def second() -> int:\n    return 2\n")
    assert (worker_of(registry, "a").instructions, tool_names(registry, "a")) == ("two", ["wipe"])
    assert await runtime.call("add", 2, 3) == 6
    assert tool_names(registry, "own") == ["second"]
    write(registry, "workers/new.md", "new")
    assert await runtime.call("new", "go") == "x"
    (registry.root / "workers" / "new.md").unlink()
    with pytest.raises(UnknownEntryError):
        await runtime.call("new", "go")
    (registry.root / "tools.py").unlink()
    with pytest.raises(UnknownEntryError):
        await runtime.call("add", 2, 3)


@pytest.mark.parametrize("path", ["workers/a.yaml", "tools.py"])
async def test_a_changed_file_is_seen_though_its_size_and_time_are_the_same(make: Make, path: str) -> None:
    """A program can set back the time of a change, but not the one that the kernel keeps."""
    registry = make({"workers/a.yaml": "instructions: one\n", "tools.py": TOOLS})
    runtime = Runtime(registry, model=scripted(says("x")))
    assert (worker_of(registry, "a").instructions, await runtime.call("add", 2, 3)) == ("one", 5)
    file = registry.root / path
    before = file.stat()
    while file.stat().st_ctime_ns == before.st_ctime_ns:  # some clocks are coarse
        with file.open("r+") as same:
            same.write(file.read_text().replace("one", "two").replace("a + b", "a * b"))
        os.utime(file, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert (file.stat().st_size, file.stat().st_mtime_ns) == (before.st_size, before.st_mtime_ns)
    seen = worker_of(registry, "a").instructions, await runtime.call("add", 2, 3)
    assert seen == (("two", 5) if path == "workers/a.yaml" else ("one", 6))


def test_a_changed_configuration_is_seen(make: Make) -> None:
    registry = make({"workers/a.md": "x"})
    assert registry.config.model is None
    assert worker_of(registry, "a").sandbox is None
    write(registry, "llm-do.toml", "model = 'test'\n[limits]\nmax_calls = 3\n[sandbox.paths.in]\nroot = 'in'\n")
    assert registry.config.model == "test"
    assert registry.config.session_limits().max_calls == 3
    sandbox = worker_of(registry, "a").sandbox
    assert sandbox is not None
    assert list(sandbox.paths) == ["in"]


async def test_a_session_has_the_limits_and_the_model_of_its_project(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`registry.runtime` takes the options of `Runtime`, which stand before what the project says."""
    monkeypatch.delenv("LLM_DO_MODEL", raising=False)
    registry = make({"workers/a.md": "x", "llm-do.toml": "model = 'test'\n[limits]\nmax_calls = 1\n"})
    runtime = registry.runtime()
    assert await runtime.call("a", "x") == "success (no tool calls)"
    with pytest.raises(LimitExceeded):
        await runtime.call("a", "x")
    other = registry.runtime(model=scripted(says("mine"), says("again")), limits=Limits(max_calls=2))
    assert [await other.call("a", "x"), await other.call("a", "x")] == ["mine", "again"]


async def test_a_thousand_workers_are_not_read_to_call_one(make: Make) -> None:
    registry = make({"workers/good.yaml": "allow_workers: [bad7]\ninstructions: x\n"})
    for number in range(1000):
        (registry.root / "workers" / f"bad{number}.yaml").write_text("no: [worker\n")
    assert len(registry.workers()) == 1001
    assert await Runtime(registry, model=scripted(says("fine"))).call("good", "go") == "fine"
    with pytest.raises(WorkerFileError, match="workers/bad7.yaml:"):
        registry["bad7"]


# -- schemas, own tools, files --------------------------------------------------------------------------------


async def test_an_inline_input_is_checked(make: Make) -> None:
    schema = "input: {type: object, properties: {n: {type: integer, minimum: 1}}, required: [n]}\ninstructions: x\n"
    runtime = Runtime(make({"workers/a.yaml": schema}), model=scripted(says("ok")))
    assert await runtime.call("a", n=2) == "ok"
    assert await runtime.call("a", {"n": 2}) == "ok"
    for wrong in ({"n": 0}, {"n": "two"}, {}, {"n": 1, "m": 2}):
        before = len(runtime.messages)
        with pytest.raises(ArgumentError, match=r"^a\(\)"):
            await runtime.call("a", **wrong)
        assert len(runtime.messages) == before


async def test_an_inline_output_is_checked_and_the_model_asked_again(make: Make) -> None:
    text = "output: {type: object, properties: {n: {type: integer, minimum: 1}}, required: [n]}\ninstructions: x\n"
    registry = make({"workers/a.yaml": text})
    runtime = Runtime(registry, model=scripted(answers({"n": 0}), answers({"n": 5})))
    assert await runtime.call("a", "go") == {"n": 5}
    assert "less than the minimum of 1" in str(runtime.messages[2])
    with pytest.raises(OutputError, match="gave no valid .* after 2 tries: .*less than the minimum"):
        await Runtime(registry, model=scripted(answers({"n": 0}))).call("a", "go")


async def test_a_folder_worker_has_tools_of_its_own_and_nobody_else_has_them(make: Make) -> None:
    own = """
from helpers import double

def twice(n: int) -> int:
    return double(n)

def _hidden() -> int:
    return 0
"""
    registry = make(
        {
            "workers/a/worker.yaml": "tools: [add]\ninstructions: x\n",
            "workers/a/tools.py": own,
            "helpers.py": "def double(n):\n    return 2 * n\n",
            "workers/b.yaml": "tools: [twice]\ninstructions: x\n",
            "tools.py": TOOLS,
        }
    )
    assert tool_names(registry, "a") == ["twice", "add"]
    model = scripted(calls(("twice", {"n": 21})), lambda messages, info: says(str(tool_results(messages)[0])))
    assert await Runtime(registry, model=model).call("a", "go") == "42"
    assert "twice" not in registry
    with pytest.raises(WorkerFileError, match="no tool 'twice'"):
        registry["b"]


async def test_the_files_of_the_project_are_the_default(make: Make) -> None:
    registry = make(
        {
            "llm-do.toml": "[sandbox.paths.in]\nroot = 'in'\n",
            "in/a.txt": "alpha",
            "workers/a.md": "x",
            "workers/b.yaml": RW,
        }
    )
    model = scripted(calls(("read_file", {"path": "in/a.txt"})), lambda messages, info: says(tool_results(messages)[0]))
    assert await Runtime(registry, model=model).call("a", "go") == "alpha"
    sandbox = worker_of(registry, "b").sandbox
    assert sandbox is not None
    assert list(sandbox.paths) == ["out"]


@pytest.mark.parametrize("path", ["a.yaml", "new.yaml", "generated/x.yaml"])
async def test_no_worker_writes_the_files_that_say_what_it_may(make: Make, path: str) -> None:
    text = "sandbox: {paths: {all: {root: workers, mode: rw}}}\ntool_rules: {sandbox.write: allow}\ninstructions: x\n"
    registry = make({"workers/a.yaml": text})
    before = {file: file.read_bytes() for file in registry.root.rglob("*") if file.is_file()}
    model = scripted(calls(("write_file", {"path": f"all/{path}", "content": "instructions: y"})), says("ok"))
    await Runtime(registry, model=model, approval_callback=approve_all_callback).call("a", "go")
    assert {file: file.read_bytes() for file in registry.root.rglob("*") if file.is_file()} == before


@pytest.mark.parametrize("root", [".", "..", "/"])
def test_no_root_that_can_be_written_holds_the_project(make: Make, root: str) -> None:
    """A file that a model writes there could be the next thing that is imported."""
    registry = make({"workers/a.yaml": f"sandbox: {{paths: {{all: {{root: {root}, mode: rw}}}}}}\ninstructions: x\n"})
    with pytest.raises(WorkerFileError, match="has the project in it"):
        registry["a"]


# -- delegation -----------------------------------------------------------------------------------------------


def delegating(worker: str, input_data: Any = "task", **more: Any) -> Any:
    """The model of a tree: whoever can delegate does it once, and the others say what they got."""

    def step(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
        if not any(tool.name == "worker_call" for tool in info.function_tools):
            return says("did it")
        if results := tool_results(messages):
            return says(str(results[0]))
        return calls(("worker_call", {"worker": worker, "input_data": input_data, **more}))

    return scripted(step)


async def test_a_worker_delegates_to_those_it_names(make: Make) -> None:
    registry = make({"workers/a.yaml": "allow_workers: [b]\ninstructions: x\n", "workers/b.md": "b"})
    runtime = Runtime(registry, model=delegating("b"))
    assert await runtime.call("a", "go") == "did it"
    assert [(record.name, record.depth) for record in runtime.trace] == [("a", 0), ("worker_call", 1), ("b", 2)]


@pytest.mark.parametrize(("allowed", "target"), [("[b]", "c"), ("[b]", "a"), ("[b]", "../c"), ("[b]", "b\n")])
async def test_a_worker_that_is_not_allowed_is_not_started(make: Make, allowed: str, target: str) -> None:
    files = {"workers/a.yaml": f"allow_workers: {allowed}\ninstructions: x\n", "workers/b.md": "b", "workers/c.md": "c"}
    runtime = Runtime(make(files), model=delegating(target), approval_callback=approve_all_callback)
    assert "may not call worker" in await runtime.call("a", "go")
    assert [record.name for record in runtime.trace] == ["a", "worker_call"]
    assert str(runtime.trace[1].error).startswith("DelegationDenied")
    part = runtime.messages[2].parts[0]
    assert getattr(part, "outcome", None) == "denied"


async def test_any_worker_but_no_function_and_nothing_unknown(make: Make) -> None:
    files = {"workers/a.yaml": 'allow_workers: ["*"]\ninstructions: x\n', "workers/b.md": "b", "tools.py": TOOLS}
    registry = make(files)
    assert await Runtime(registry, model=delegating("b")).call("a", "go") == "did it"
    for target in ("wipe", "c", "../b"):
        runtime = Runtime(registry, model=delegating(target))
        assert f"There is no worker {target!r}" in await runtime.call("a", "go")
        assert [record.name for record in runtime.trace] == ["a", "worker_call"]


def test_without_names_there_is_no_tool_to_delegate(make: Make) -> None:
    registry = make({"workers/a.yaml": "allow_workers: []\ninstructions: x\n", "workers/b.md": "b"})
    assert tool_names(registry, "a") == []


async def test_a_worker_as_a_tool_has_its_own_schema(make: Make) -> None:
    schema = "input: {type: object, properties: {n: {type: integer}}, required: [n]}\ninstructions: x\n"
    registry = make({"workers/a.yaml": "tools: [b]\ninstructions: x\n", "workers/b.yaml": schema})
    seen: list[Any] = []

    def look(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
        seen.extend(tool.parameters_json_schema for tool in info.function_tools)
        return says("ok")

    await Runtime(registry, model=scripted(look)).call("a", "go")
    assert seen[0]["properties"] == {"n": {"type": "integer"}}
    assert seen[0]["required"] == ["n"]


async def test_a_rule_on_delegation_asks_or_forbids(make: Make) -> None:
    text = "allow_workers: [b]\ntool_rules: {worker.call: %s}\ninstructions: x\n"
    registry = make({"workers/a.yaml": text % "ask", "workers/b.md": "b"})
    guard = Guard()
    assert await Runtime(registry, model=delegating("b"), approval_callback=guard).call("a", "go") == "did it"
    assert guard.asked == [("worker.call", {"worker": "b", "input_data": "task", "attachments": None})]
    write(registry, "workers/a.yaml", text % "deny")
    runtime = Runtime(registry, model=delegating("b"), approval_callback=approve_all_callback)
    assert "was refused" in await runtime.call("a", "go")
    assert [record.name for record in runtime.trace] == ["a", "worker_call"]


@pytest.mark.parametrize(
    ("attachments", "expected"),
    [
        (["in/a.txt"], "did it"),
        (["in/a.txt", "in/b.txt"], "takes 1 attachment at most, got 2"),
        (["in/big.txt"], "takes 10 bytes of attachments at most, got 11"),
        (["in/a.png"], "it takes .txt"),
        (["in/../secret.txt"], ".."),
        (["/etc/passwd"], "'/etc/passwd' starts with no root"),
        (["other/a.txt"], "other"),
        (["in/missing.txt"], "missing.txt"),
        (["in/link.txt"], "link.txt"),
    ],
)
async def test_attachments_come_from_the_callers_files_and_fit_the_target(
    make: Make, attachments: list[str], expected: str
) -> None:
    registry = make(
        {
            "workers/a.yaml": "allow_workers: [b]\nsandbox: {paths: {in: {root: in}}}\ninstructions: x\n",
            "workers/b.yaml": "attachment_policy: {max_attachments: 1, max_total_bytes: 10, suffixes: [.TXT]}\n"
            "sandbox: {paths: {other: {root: other}}}\ninstructions: x\n",
            "in/a.txt": "alpha",
            "in/b.txt": "b",
            "in/a.png": "png",
            "in/big.txt": "x" * 11,
            "secret.txt": "s",
            "other/a.txt": "o",
        }
    )
    (registry.root / "in" / "link.txt").symlink_to(registry.root / "secret.txt")
    runtime = Runtime(registry, model=delegating("b", attachments=attachments))
    assert expected in await runtime.call("a", "go")
    started = [record for record in runtime.trace if record.name == "b"]
    assert len(started) == (expected == "did it")
    if started:
        (content,) = started[0].attachments
        assert (content.data, content.media_type) == (b"alpha", "text/plain")


FILES = "allow_workers: [b]\nsandbox: {paths: {in: {root: in}}}\ntool_rules: {b: ask}\ninstructions: x\n"
OPEN = "input: {type: object, properties: {deck: {type: string}}, additionalProperties: true}\ninstructions: x\n"


async def test_a_worker_that_declares_its_input_is_given_files_and_whoever_is_asked_sees_them(make: Make) -> None:
    registry = make({"workers/a.yaml": FILES, "workers/b.yaml": OPEN, "in/a.txt": "alpha"})
    guard = Guard(approve_for_session=True)
    seen: list[Any] = []

    def step(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
        if not info.function_tools or not any(tool.name == "worker_call" for tool in info.function_tools):
            seen.append(messages[0].parts[0].content)  # type: ignore[union-attr]
            return says("did it")
        if results := tool_results(messages):
            return says(str(results[-1]))
        return calls(("worker_call", {"worker": "b", "input_data": {"deck": "d"}, "attachments": ["in/a.txt"]}))

    runtime = Runtime(registry, model=scripted(step), approval_callback=guard)
    for content, asked in ((b"alpha", 1), (b"alpha", 1), (b"other", 2)):  # another file is another question
        (registry.root / "in" / "a.txt").write_bytes(content)
        assert await runtime.call("a", "go") == "did it"
        assert len(guard.asked) == asked
        assert [item if isinstance(item, str) else item.data for item in seen[-1]] == ['{\n  "deck": "d"\n}', content]
    name, payload = guard.asked[0]
    assert (name, payload["deck"]) == ("b", "d")
    assert [(file.identifier, file.data) for file in payload["attachments"]] == [("in/a.txt", b"alpha")]
    record = next(record for record in runtime.trace if record.name == "b")
    assert (record.input_data, [file.identifier for file in record.attachments]) == ({"deck": "d"}, ["in/a.txt"])


async def test_no_argument_hides_the_files_that_go_beside_it(make: Make) -> None:
    registry = make({"workers/a.yaml": FILES, "workers/b.yaml": OPEN, "in/a.txt": "alpha"})
    hidden = {"deck": "d", "attachments": [], "(attachments)": "none"}
    guard = Guard(approved=False)
    model = delegating("b", input_data=hidden, attachments=["in/a.txt"])
    await Runtime(registry, model=model, approval_callback=guard).call("a", "go")
    ((_, payload),) = guard.asked
    assert [file.data for file in payload.pop("((attachments))")] == [b"alpha"]
    assert payload == hidden


async def test_whoever_edits_the_arguments_leaves_the_files_as_they_are(make: Make) -> None:
    registry = make({"workers/a.yaml": FILES, "workers/b.yaml": OPEN, "in/a.txt": "alpha"})

    def edit(tool_name: str, payload: dict[str, Any], reason: str) -> ApprovalDecision:
        return ApprovalDecision(approved=True, arguments={**payload, "deck": "another"})

    model = delegating("b", input_data={"deck": "d"}, attachments=["in/a.txt"])
    runtime = Runtime(registry, model=model, approval_callback=edit)
    assert await runtime.call("a", "go") == "did it"
    record = next(record for record in runtime.trace if record.name == "b")
    assert (record.input_data, [file.data for file in record.attachments]) == ({"deck": "another"}, [b"alpha"])


async def test_a_model_smuggles_no_files_into_a_declared_input(make: Make) -> None:
    link = {"kind": "image-url", "url": "http://127.0.0.1/x.png", "force_download": "allow-local"}
    closed = OPEN.replace(", additionalProperties: true", "")
    allow = FILES.replace("tool_rules: {b: ask}\n", "")
    registry = make({"workers/a.yaml": allow, "workers/b.yaml": closed})
    model = delegating("b", input_data={"deck": "d", "attachments": [link]})
    runtime = Runtime(registry, model=model)
    assert "'attachments' was unexpected" in await runtime.call("a", "go")
    write(registry, "workers/b.yaml", OPEN)
    runtime = Runtime(registry, model=model)
    assert await runtime.call("a", "go") == "did it"
    assert all(record.attachments == () for record in runtime.trace)
    prompts = [
        part.content for message in runtime.messages for part in message.parts if part.part_kind == "user-prompt"
    ]
    assert [type(prompt) for prompt in prompts] == [str, str]


# -- creation ---------------------------------------------------------------------------------------------------

BOSS = "toolsets: [worker_create]\nallow_workers: ['*']\ntools: [add]\ninstructions: x\n"


def creating(name: str, **more: Any) -> tuple[str, dict[str, Any]]:
    return "worker_create", {"name": name, "instructions": "Help.", **more}


async def test_a_created_worker_is_a_file_and_can_be_called_at_once(make: Make) -> None:
    registry = make({"workers/boss.yaml": BOSS, "tools.py": TOOLS})
    model = scripted(
        calls(creating("helper", tools=["add"], description="Adds.")),
        calls(("worker_call", {"worker": "helper", "input_data": "1+2"})),
        calls(("add", {"a": 1, "b": 2})),
        lambda messages, info: says(f"helped {tool_results(messages)}"),
        lambda messages, info: says(str(tool_results(messages)[-1])),
    )
    guard = Guard()
    runtime = Runtime(registry, model=model, approval_callback=guard)
    assert await runtime.call("boss", "go") == "helped [3]"
    assert [name for name, _ in guard.asked] == ["worker.create"]
    assert guard.asked[0][1]["name"] == "helper"
    assert generated(registry) == [".helper.seal", "helper.yaml"]
    definition = registry.definition("helper")
    assert (definition.created_by, definition.tools, definition.description) == ("boss", ("add",), "Adds.")
    assert worker_of(registry, "helper").generated


async def create_by_model(registry: WorkerRegistry, name: str, **more: Any) -> Any:
    callback = more.pop("callback", approve_all_callback)
    model = scripted(calls(creating(name, **more)), lambda messages, info: says(str(tool_results(messages)[-1])))
    return await Runtime(registry, model=model, approval_callback=callback).call("boss", "go")


async def test_creation_asks_and_without_an_answer_nothing_is_written(make: Make) -> None:
    registry = make({"workers/boss.yaml": BOSS, "tools.py": TOOLS})
    assert "was refused" in await create_by_model(registry, "helper", callback=None)
    assert not (registry.root / "workers" / "generated").exists()


@pytest.mark.parametrize("name", ["../../evil", "x\n", "grеeter", "", "a b", "boss", "add", "-x", "x" * 65])
async def test_names_that_cannot_be_created(make: Make, name: str) -> None:
    registry = make({"workers/boss.yaml": BOSS, "tools.py": TOOLS})
    before = {path for path in registry.root.parent.rglob("*") if "__pycache__" not in path.parts}
    result = await create_by_model(registry, name, force=True)
    assert "created" not in result
    assert {path for path in registry.root.parent.rglob("*") if "__pycache__" not in path.parts} == before


async def test_force_replaces_ones_own_and_nothing_that_is_locked_or_anothers(make: Make) -> None:
    registry = make(
        {
            "workers/boss.yaml": BOSS,
            "tools.py": TOOLS,
            "workers/generated/mine.yaml": "created_by: boss\ninstructions: old\n",
            "workers/generated/locked.yaml": "created_by: boss\nlocked: true\ninstructions: old\n",
            "workers/generated/other.yaml": "created_by: somebody\ninstructions: old\n",
            "workers/generated/project.yaml": "created_by: (project)\ninstructions: old\n",
        }
    )
    assert "exists" in await create_by_model(registry, "mine")
    assert registry.definition("mine").instructions == "old"
    for name in ("locked", "other", "project"):
        assert "is locked, or of another creator" in await create_by_model(registry, name, force=True)
        assert registry.definition(name).instructions == "old"
    assert "is created" in await create_by_model(registry, "mine", force=True)
    assert registry.definition("mine").instructions == "Help."
    # A person may replace all of them.
    registry.create(WorkerSpec(name="locked", instructions="new"), force=True)
    assert registry.definition("locked").instructions == "new"


def test_a_file_that_cannot_be_written_leaves_nothing(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    registry = make({"workers/generated/mine.yaml": "instructions: old\n"})

    def fail(self: Path, target: Any) -> None:
        raise OSError("disk full")

    monkeypatch.setattr(Path, "replace", fail)
    with pytest.raises(WorkerFileError, match="disk full"):
        registry.create(WorkerSpec(name="mine", instructions="new"), force=True)
    assert [path.name for path in (registry.root / "workers" / "generated").iterdir()] == ["mine.yaml"]
    assert registry.definition("mine").instructions == "old"


# -- authority ---------------------------------------------------------------------------------------------------

GREEDY = """
created_by: boss
tools: [add, wipe]
toolsets: [shell, worker_create]
allow_workers: ['*']
sandbox:
  paths:
    input: {root: in, mode: rw}
    deep: {root: in/deep, mode: rw}
    all: {root: ., mode: rw}
    etc: {root: /etc}
tool_rules: {sandbox.write: allow, wipe: allow, add: allow}
attachment_policy: {max_attachments: 100, max_total_bytes: 100000000}
limits: {max_calls: 100}
native: [web_search]
instructions: x
"""
MODEST = """
tools: [add]
toolsets: [worker_create]
allow_workers: [helper]
sandbox: {paths: {in: {root: in, suffixes: [.txt], max_file_bytes: 10}}}
tool_rules: {add: ask, worker.create: deny}
attachment_policy: {max_attachments: 1, suffixes: [.txt]}
limits: {max_calls: 5}
instructions: x
"""


def test_a_generated_worker_has_no_more_than_its_creator(make: Make) -> None:
    registry = make(
        {
            "workers/boss.yaml": MODEST,
            "workers/helper.md": "h",
            "workers/generated/g.yaml": GREEDY,
            "in/deep/.x": "",
            "tools.py": TOOLS,
        }
    )
    worker = worker_of(registry, "g")
    tools = {tool if isinstance(tool, str) else tool.name for tool in worker.tools}
    assert {"add", "worker_create", "worker_call", "read_file"} <= tools
    assert not {"wipe", "shell"} & tools
    assert worker.allow_workers == ("helper",)
    assert worker.sandbox is not None
    assert set(worker.sandbox.paths) == {"input", "deep"}
    for root in worker.sandbox.paths.values():
        assert (root.mode, root.suffixes, root.max_file_bytes) == ("ro", (".txt",), 10)
    rules = {name: rule.disposition for name, (rule,) in worker.tool_rules.items()}
    assert rules == {"add": "ask", "worker.create": "deny"}
    assert worker.attachment_policy.max_attachments == 1
    assert worker.attachment_policy.suffixes == (".txt",)
    assert worker.limits is not None
    assert worker.limits.max_calls == 5
    assert list(worker.capabilities) == []


def test_what_the_creator_has_now_is_what_counts(make: Make) -> None:
    registry = make({"workers/boss.md": "x", "workers/generated/g.yaml": GREEDY, "tools.py": TOOLS})
    assert tool_names(registry, "g") == []
    write(registry, "workers/boss.yaml", "tools: [wipe]\ninstructions: x\n")
    (registry.root / "workers" / "boss.md").unlink()
    assert tool_names(registry, "g") == ["wipe"]
    write(registry, "workers/boss.yaml", "tools: [add, wipe]\ninstructions: x\n")
    assert tool_names(registry, "g") == ["add", "wipe"]
    (registry.root / "workers" / "boss.yaml").unlink()
    assert tool_names(registry, "g") == []
    assert worker_of(registry, "g").sandbox is None
    assert worker_of(registry, "g").tool_rules == {}


async def test_it_counts_in_a_session_that_runs_too(make: Make) -> None:
    files = {"workers/boss.yaml": "tools: [wipe]\n", "workers/generated/g.yaml": GREEDY, "tools.py": TOOLS}
    registry = make(files)
    runtime = Runtime(registry, model=by_tools({"wipe": calls(("wipe", {}))}))
    assert await runtime.call("g", "go") == "wiped"
    write(registry, "workers/boss.yaml", "tools: [add]\ninstructions: x\n")
    assert await runtime.call("g", "go") == "done"


def test_a_chain_of_creators_is_as_strong_as_its_weakest(make: Make) -> None:
    registry = make(
        {
            "workers/boss.yaml": "tools: [add]\n",
            "workers/generated/g.yaml": "created_by: boss\ntools: [add, wipe]\n",
            "workers/generated/h.yaml": "created_by: g\ntools: [add, wipe]\n",
            "workers/generated/i.yaml": "created_by: h\ntools: [wipe, add]\n",
            "tools.py": TOOLS,
        }
    )
    assert [tool_names(registry, name) for name in "ghi"] == [["add"]] * 3
    write(registry, "workers/generated/g.yaml", "created_by: boss\ntools: [wipe]\n")
    assert [tool_names(registry, name) for name in "ghi"] == [[]] * 3


def test_creators_that_created_each_other_have_nothing(make: Make) -> None:
    registry = make(
        {
            "workers/generated/g.yaml": "created_by: h\ntools: [add]\n",
            "workers/generated/h.yaml": "created_by: g\ntools: [add]\n",
            "workers/generated/me.yaml": "created_by: me\ntools: [add]\n",
            "workers/generated/fn.yaml": "created_by: add\ntools: [add]\n",
            "workers/generated/path.yaml": "created_by: ../boss\ntools: [add]\n",
            "workers/boss.yaml": "tools: [add]\n",
            "tools.py": TOOLS,
        }
    )
    for name in ("g", "h", "me", "fn", "path"):
        assert tool_names(registry, name) == []


def test_a_person_promotes_a_worker_by_moving_its_file(make: Make) -> None:
    registry = make({"workers/generated/g.yaml": "created_by: nobody\ntools: [add]\n", "tools.py": TOOLS})
    assert tool_names(registry, "g") == []
    (registry.root / "workers" / "generated" / "g.yaml").rename(registry.root / "workers" / "g.yaml")
    assert tool_names(registry, "g") == ["add"]


# -- the project's own ---------------------------------------------------------------------------------------------

OWN = WorkerSpec(name="g", tools=("add", "wipe"), instructions="Old.")


def generated(registry: WorkerRegistry) -> list[str]:
    """The files of generated workers, and the seals beside them."""
    return sorted(path.name for path in (registry.root / "workers" / "generated").iterdir())


def test_a_file_that_only_says_that_it_is_the_projects_has_nothing(
    make: Make, caplog: pytest.LogCaptureFixture
) -> None:
    text = "created_by: (project)\ntools: [wipe]\nsandbox: {paths: {o: {root: o, mode: rw}}}\ninstructions: x\n"
    registry = make({"workers/generated/g.yaml": text, "tools.py": TOOLS})
    for _ in range(3):
        assert tool_names(registry, "g") == []
        assert worker_of(registry, "g").sandbox is None
    assert [record.getMessage() for record in caplog.records] == [
        "workers/generated/g.yaml was edited, or not created by a worker or a program, so it has no rights, only its "
        "instructions. Move it to workers/ to give it what it asks for, or create it again."
    ]


def test_a_worker_of_the_project_loses_all_with_the_first_byte_that_is_edited(
    make: Make, caplog: pytest.LogCaptureFixture
) -> None:
    registry = make({"tools.py": TOOLS})
    registry.create(OWN)
    text = (registry.root / "workers/generated/g.yaml").read_text()
    assert tool_names(registry, "g") == ["add", "wipe"]
    assert tool_names(WorkerRegistry(registry.root), "g") == ["add", "wipe"]  # for everybody who opens the project
    write(registry, "workers/generated/g.yaml", f"{text}# a comment\n")
    assert tool_names(registry, "g") == []
    assert len(caplog.records) == 1
    write(registry, "workers/generated/g.yaml", text)
    assert tool_names(registry, "g") == ["add", "wipe"]
    (registry.root / "workers/generated/.g.seal").unlink()
    assert tool_names(registry, "g") == []
    registry.create(OWN, force=True)
    assert tool_names(registry, "g") == ["add", "wipe"]


def test_a_creator_whose_seal_is_broken_has_nothing_to_hand_on(make: Make) -> None:
    registry = make({"tools.py": TOOLS, "workers/generated/h.yaml": "created_by: g\ntools: [add]\n"})
    registry.create(OWN)
    assert tool_names(registry, "h") == ["add"]
    write(registry, "workers/generated/g.yaml", "created_by: (project)\ntools: [add]\n")
    assert tool_names(registry, "h") == []


def test_an_edit_that_asks_for_nothing_is_no_reason_to_warn(make: Make, caplog: pytest.LogCaptureFixture) -> None:
    registry = make({"workers/generated/g.yaml": "created_by: (project)\ninstructions: Words.\n"})
    assert worker_of(registry, "g").instructions == "Words."
    assert caplog.records == []


def test_a_seal_goes_with_its_worker(make: Make) -> None:
    registry = make({"tools.py": TOOLS, "workers/boss.yaml": "tools: [add]\n"})
    registry.create(OWN)
    assert generated(registry) == [".g.seal", "g.yaml"]
    registry.create(WorkerSpec(name="g", tools=("add",), instructions="New."), force=True)
    assert tool_names(registry, "g") == ["add"]
    # Another creator's is its own.
    for by_model in (False, True):
        registry.create(OWN, force=True)
        (registry.root / "workers/generated/g.yaml").unlink()
        spec = WorkerSpec(name="g", tools=("add",), instructions="Mine.")
        registry.create(spec, created_by="boss", by_model=by_model)
        assert generated(registry) == [".g.seal", "g.yaml"]
        assert tool_names(registry, "g") == ["add"]
    # Nor does one outlive a worker that was deleted, or promoted.
    registry.create(OWN, force=True)
    (registry.root / "workers/generated/g.yaml").rename(registry.root / "workers/g.yaml")
    registry.create(WorkerSpec(name="h", instructions="x"))
    assert generated(registry) == [".h.seal", "h.yaml"]
    assert tool_names(registry, "g") == ["add", "wipe"]


def test_a_model_that_claims_to_be_the_project_gets_no_seal(make: Make) -> None:
    registry = make({"tools.py": TOOLS})
    registry.create(OWN, by_model=True)
    assert generated(registry) == ["g.yaml"]
    assert tool_names(registry, "g") == []
    with pytest.raises(WorkerFileError, match="of another creator"):
        registry.create(OWN, created_by="(project)", by_model=True, force=True)
    assert generated(registry) == ["g.yaml"]


def test_a_worker_that_could_not_be_replaced_keeps_its_seal(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    registry = make({"tools.py": TOOLS})
    registry.create(OWN)

    def fail(self: Path, target: Any) -> None:
        raise OSError("disk full")

    with monkeypatch.context() as patch:
        patch.setattr(Path, "replace", fail)
        with pytest.raises(WorkerFileError, match="disk full"):
            registry.create(WorkerSpec(name="g", instructions="new"), force=True)
    with pytest.raises(WorkerFileError, match="exists"):
        registry.create(WorkerSpec(name="g", instructions="new"))
    assert tool_names(registry, "g") == ["add", "wipe"]


CREATE_ON_A_FULL_DISK = """
import resource, sys
from llm_do import WorkerFileError, WorkerRegistry, WorkerSpec
registry = WorkerRegistry(sys.argv[1])
resource.setrlimit(resource.RLIMIT_FSIZE, (100, 100))  # enough for the worker, and not for its seal
try:
    registry.create(WorkerSpec(name="g", instructions="New."), force=True)
except WorkerFileError as exc:
    print(exc)
"""


@pytest.mark.parametrize("exists", [False, True])
def test_a_worker_whose_seal_cannot_be_written_is_not_written(make: Make, exists: bool) -> None:
    """A new one would be in the way of the next attempt, and an old one would have nothing but its words."""
    registry = make({"tools.py": TOOLS})
    if exists:
        registry.create(OWN)
    full = [sys.executable, "-c", CREATE_ON_A_FULL_DISK, str(registry.root)]
    said = subprocess.run(full, capture_output=True, text=True, timeout=PATIENCE, check=True).stdout
    assert "Worker 'g' cannot be written in workers/generated/: File too large." in said
    assert generated(registry) == ([".g.seal", "g.yaml"] if exists else [])
    if exists:
        assert tool_names(registry, "g") == ["add", "wipe"]
    registry.create(OWN, force=exists)


CREATE = """
import sys
from llm_do import WorkerRegistry, WorkerSpec
registry = WorkerRegistry(sys.argv[1])
for number in range(40):
    registry.create(WorkerSpec(name="g", tools=("add",), instructions=f"{sys.argv[2]} {number}"), force=True)
"""


def test_processes_that_replace_one_worker_at_once_leave_a_seal_that_fits(make: Make) -> None:
    registry = make({"tools.py": TOOLS})
    registry.create(OWN)
    running = [subprocess.Popen([sys.executable, "-c", CREATE, str(registry.root), str(n)]) for n in range(3)]
    while any(process.poll() is None for process in running):
        assert "add" in tool_names(registry, "g")  # at any moment, too
    assert [process.returncode for process in running] == [0, 0, 0]
    assert tool_names(WorkerRegistry(registry.root), "g") == ["add"]
    assert generated(registry) == [".g.seal", "g.yaml"]


@pytest.mark.parametrize("root", ["workers", "workers/generated"])
async def test_no_root_reaches_a_seal(make: Make, root: str) -> None:
    sandbox = f"sandbox: {{paths: {{o: {{root: {root}, mode: rw}}}}}}\ntool_rules: {{sandbox.write: allow}}\n"
    registry = make({"workers/a.yaml": f"{sandbox}instructions: x\n", "tools.py": TOOLS})
    registry.create(WorkerSpec(name="g", tools=("add",), instructions="x"))
    before = (registry.root / "workers/generated/.g.seal").read_text()
    for name in (".g.seal", "generated/.g.seal", ".new.seal", "generated/.new.seal"):
        model = scripted(
            calls(("write_file", {"path": f"o/{name}", "content": "0"}), ("delete_file", {"path": f"o/{name}"})),
            says("done"),
        )
        with contextlib.suppress(LlmDoError):
            await Runtime(registry, model=model, approval_callback=approve_all_callback).call("a", "go")
    assert generated(registry) == [".g.seal", "g.yaml"]
    assert not list(registry.root.rglob(".new.seal"))
    assert (registry.root / "workers/generated/.g.seal").read_text() == before


async def test_a_grant_does_not_cross_to_a_path_with_a_generated_worker(make: Make) -> None:
    code = TOOLS.replace("@entry\ndef wipe", "@entry(requires_approval=True)\ndef wipe")
    registry = make(
        {
            "workers/boss.yaml": "tools: [cleaner]\n",
            "workers/cleaner.yaml": "tools: [wipe]\n",
            "workers/generated/g.yaml": "created_by: boss\ntools: [cleaner]\n",
            "tools.py": code,
        }
    )
    guard = Guard(approve_for_session=True)
    model = by_tools({"cleaner": calls(("cleaner", {"input": "x"})), "wipe": calls(("wipe", {}))})
    runtime = Runtime(registry, model=model, approval_callback=guard)
    for caller, asked in (("boss", 1), ("boss", 1), ("cleaner", 1), ("g", 2), ("g", 2)):
        assert await runtime.call(caller, "go") == "wiped"
        assert len(guard.asked) == asked


# -- limits --------------------------------------------------------------------------------------------------------


async def test_the_limits_of_a_worker_hold_for_one_call_and_what_is_below_it(make: Make) -> None:
    registry = make(
        {
            "workers/a.yaml": "tools: [b]\nlimits: {max_calls: 2}\n",
            "workers/b.yaml": "tools: [add]\ninstructions: x\n",
            "tools.py": TOOLS,
        }
    )
    one = by_tools({"b": calls(("b", {"input": "x"})), "add": calls(("add", {"a": 1, "b": 1}))})
    runtime = Runtime(registry, model=one)
    for _ in range(3):  # each call anew
        assert await runtime.call("a", "go") == "2"
    add = ("add", {"a": 1, "b": 1})
    two = by_tools({"b": calls(("b", {"input": "x"})), "add": calls(add, add)})
    runtime = Runtime(registry, model=two)
    with pytest.raises(LimitExceeded, match=r"the 2 calls of worker 'a' are used up"):
        await runtime.call("a", "go")
    assert await runtime.call("b", "go") == "2 2"


@pytest.mark.parametrize("sandbox", ["", "sandbox: {paths: {input: {root: ., mode: ro}}}\n"])
def test_a_root_that_a_server_is_told_must_be_one_of_the_worker(tmp_path: Path, sandbox: str) -> None:
    (tmp_path / "workers").mkdir()
    (tmp_path / "workers/w.yaml").write_text(
        f"{sandbox}toolsets:\n  - mcp: {{command: [x],\n      roots: [inputs]}}\ninstructions: Go.\n"
    )
    line = 3 + bool(sandbox)
    with pytest.raises(WorkerFileError, match=rf"workers/w.yaml:{line}: the worker has no root 'inputs' to announce"):
        WorkerRegistry(tmp_path)["w"]
