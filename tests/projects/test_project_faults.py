"""Faults that were found in projects, authority, delegation, attachments and commands, and are gone."""

import asyncio
import contextlib
import importlib
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import anyio
import pytest
from pydantic_ai.messages import ModelMessage, ModelResponse
from pydantic_ai.models import Model
from pydantic_ai.models.function import AgentInfo

from llm_do import (
    ApprovalDecision,
    AttachmentPayload,
    LlmDoError,
    ProjectCodeError,
    RootConfig,
    Runtime,
    SandboxConfig,
    UnknownEntryError,
    WorkerCreationDefaults,
    WorkerEntry,
    WorkerFileError,
    WorkerRegistry,
    WorkerRunResult,
    WorkerSpec,
    approve_all_callback,
    create_worker,
    run_worker,
)
from llm_do.definitions.file_format import dump_worker

from ..processes import PATIENCE
from ..scripted import answers, by_tools, calls, says, scripted, tool_results
from ..sealing import seal

Make = Callable[[dict[str, str]], WorkerRegistry]

WIPE = "from llm_do import entry\n@entry\ndef wipe() -> str:\n    return 'wiped'\n"
DELEGATES = "allow_workers: [b]\ninstructions: x\n"


@pytest.fixture
def make(tmp_path: Path) -> Make:
    """Makes a project of files: paths, and what is in them."""

    def project(files: dict[str, str]) -> WorkerRegistry:
        for path, text in {"workers/.keep": "", **files}.items():
            (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / path).write_text(text)
            seal(tmp_path / path)
        return WorkerRegistry(tmp_path)

    return project


def run(registry: WorkerRegistry, worker: str, model: Model | None = None, **options: Any) -> WorkerRunResult:
    """Run a worker whose model says "k" if nothing else is wanted."""
    model = model or scripted(says("k"))
    return run_worker(registry=registry, worker=worker, input_data="x", cli_model=model, **options)


def output_of(registry: WorkerRegistry, function: str) -> Any:
    """What a function of the project returns."""
    return run_worker(registry=registry, worker=function).output


def worker_of(registry: WorkerRegistry, name: str) -> WorkerEntry[Any]:
    entry = registry[name]
    assert isinstance(entry, WorkerEntry)
    return entry


class Witness:
    """Says yes, and remembers what it was shown."""

    def __init__(self) -> None:
        self.seen: list[dict[str, Any]] = []

    def __call__(self, tool_name: str, payload: dict[str, Any], reason: str) -> ApprovalDecision:
        self.seen.append(payload)
        return ApprovalDecision(approved=True)


# -- the project's code ------------------------------------------------------------------------------------------


def test_modules_below_the_root_that_are_not_of_the_project_stay(
    make: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    registry = make({"tools.py": WIPE, ".venv/site-packages/vlib.py": "x = 1\n"})
    monkeypatch.syspath_prepend(tmp_path / ".venv/site-packages")
    library = importlib.import_module("vlib")
    assert output_of(registry, "wipe") == "wiped"
    assert sys.modules.get("vlib") is library


def test_main_stays(make: Make, tmp_path: Path) -> None:
    code = (
        "import sys\nfrom llm_do import *\nfrom pathlib import Path\n"
        "run_worker(registry=WorkerRegistry(Path(__file__).parent), worker='wipe')\nassert '__main__' in sys.modules\n"
    )
    make({"tools.py": WIPE, "main.py": code})
    assert subprocess.run([sys.executable, str(tmp_path / "main.py")]).returncode == 0


def test_names_in_annotations_are_found_at_the_call(make: Make) -> None:
    code = (
        "from __future__ import annotations\nfrom pydantic import BaseModel\nfrom llm_do import entry\n"
        "class A(BaseModel):\n    b: B | None = None\nclass B(BaseModel):\n    n: int = 1\n"
        "@entry\ndef f() -> int:\n    return A.model_validate({'b': {'n': 3}}).b.n\n"
    )
    assert output_of(make({"tools.py": code}), "f") == 3


def test_own_tools_import_their_neighbours(make: Make) -> None:
    registry = make(
        {
            "workers/a/worker.md": "x",
            "workers/a/tools.py": "import nb_own\ndef f() -> int:\n    return 1\n",
            "workers/a/nb_own.py": "",
        }
    )
    assert worker_of(registry, "a").tools


def test_a_changed_neighbour_is_seen(make: Make, tmp_path: Path) -> None:
    registry = make(
        {
            "tools.py": "from llm_do import entry\nimport nb_ch\n@entry\ndef f() -> int:\n    return nb_ch.x\n",
            "nb_ch.py": "x = 1\n",
        }
    )
    assert output_of(registry, "f") == 1
    (tmp_path / "nb_ch.py").write_text("x = 22\n")
    assert output_of(registry, "f") == 22


LATE = """
from llm_do import entry

@entry
def late() -> object:
    {statement}
    return {value}

@entry
async def late_too() -> object:
    {statement}
    return {value}
"""


@pytest.mark.parametrize(
    ("statement", "value", "expected"),
    [
        ("import nb_late", "nb_late.x", 1),
        ("from nb_late import x as y", "y", 1),
        ("from nb_pack import inner", "inner.x", 3),
        ("import nb_pack.inner", "nb_pack.inner.x", 3),
        ("from nb_folder.leaf import x", "x", 4),
        ("import nb_chain", "nb_chain.late()", 1),
        ("import this_library_is_loaded_late as library", "library.x", 5),
        ("import colorsys", "colorsys.__name__", "colorsys"),
    ],
)
def test_an_import_inside_a_function_finds_the_neighbours(
    make: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, statement: str, value: str, expected: Any
) -> None:
    library = tmp_path / "elsewhere"
    library.mkdir()
    (library / "this_library_is_loaded_late.py").write_text("x = 5\n")
    monkeypatch.syspath_prepend(library)
    registry = make(
        {
            "tools.py": LATE.format(statement=statement, value=value),
            "nb_late.py": "x = 1\n",
            "nb_chain.py": "def late():\n    import nb_late\n    return nb_late.x\n",
            "nb_pack/__init__.py": "",
            "nb_pack/inner.py": "from .deeper import x\n",
            "nb_pack/deeper.py": "x = 3\n",
            "nb_folder/leaf.py": "x = 4\n",
        }
    )
    path, finders = list(sys.path), list(sys.meta_path)
    for _ in range(2):
        assert output_of(registry, "late") == expected
        assert output_of(registry, "late_too") == expected
    assert (sys.path, sys.meta_path) == (path, finders)


def test_an_import_inside_a_function_of_a_workers_own_tools(make: Make) -> None:
    registry = make(
        {
            "workers/a/worker.md": "x",
            "workers/a/tools.py": "def f() -> int:\n    import nb_late_own\n    return nb_late_own.x\n",
            "workers/a/nb_late_own.py": "x = 7\n",
        }
    )
    result = run(registry, "a", by_tools({"f": calls(("f", {}))}))
    assert result.output == "7"


def test_late_imports_of_two_projects_do_not_meet(tmp_path: Path) -> None:
    registries = []
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "nb_both.py").write_text(f"x = {name!r}\n")
        (tmp_path / name / "tools.py").write_text(LATE.format(statement="import nb_both", value="nb_both.x"))
        registries.append(WorkerRegistry(tmp_path / name))
    entries = [registry["late"] for registry in registries]  # both are open before either is called
    runtimes = [Runtime(registry) for registry in registries]
    for _ in range(2):
        assert [runtime.call_sync(entry) for runtime, entry in zip(runtimes, entries, strict=True)] == ["one", "two"]


def test_a_neighbour_that_was_imported_late_is_seen_when_it_changes(make: Make, tmp_path: Path) -> None:
    code = LATE.format(statement="import nb_late_change", value="nb_late_change.x")
    registry = make({"tools.py": code, "nb_late_change.py": "x = 1\n"})
    assert output_of(registry, "late") == 1
    (tmp_path / "nb_late_change.py").write_text("x = 22\n")
    assert output_of(registry, "late") == 22


def test_a_late_import_that_finds_nothing_fails_as_ever(make: Make) -> None:
    registry = make({"tools.py": LATE.format(statement="import nb_nowhere", value="1")})
    with pytest.raises(ModuleNotFoundError, match="nb_nowhere"):
        output_of(registry, "late")
    with pytest.raises(ModuleNotFoundError):  # and nobody else finds what is a project's
        importlib.import_module("nb_late")


def test_late_imports_in_many_threads_at_once(make: Make) -> None:
    code = (
        "import asyncio\nfrom pydantic_ai import RunContext\nfrom llm_do import Context, entry\n"
        "@entry\ndef one(n: int) -> int:\n    import nb_slow\n    return nb_slow.x + n\n"
        "@entry\nasync def all_of_them(ctx: RunContext[Context]) -> int:\n"
        "    return sum(await asyncio.gather(*(ctx.deps.call('one', n) for n in range(20))))\n"
    )
    registry = make({"tools.py": code, "nb_slow.py": "import time\ntime.sleep(0.05)\nx = 0\n"})
    assert output_of(registry, "all_of_them") == 190


@pytest.mark.parametrize(("code", "message"), [("import sys\nsys.exit(3)\n", "line 2"), ("x = 1\ndef f(:\n", "line 2")])
def test_whatever_tools_raise(make: Make, code: str, message: str) -> None:
    registry = make({"tools.py": code, "workers/a.md": "x"})
    with pytest.raises(ProjectCodeError, match=message):
        registry["a"]


def test_a_package_of_entries(make: Make) -> None:
    assert list(make({"tools/__init__.py": WIPE})) == ["wipe"]


# -- files of workers --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("server", ["{command: [x], env: {A: b}}", "{url: 'http://x/y', headers: {A: b}}"])
def test_a_server_with_env_or_headers(make: Make, server: str) -> None:
    registry = make({"workers/a.yaml": f"toolsets: [{{mcp: {server}}}]\ninstructions: x\n"})
    assert worker_of(registry, "a").toolsets


def test_an_unknown_name_is_said_though_another_file_is_broken(make: Make) -> None:
    runtime = Runtime(make({"workers/a.yaml": "bad: 1\n"}))
    with pytest.raises(UnknownEntryError):
        runtime.call_sync("b")


def test_yml_is_not_skipped_silently(make: Make) -> None:
    registry = make({"workers/g.yml": "instructions: x\n"})
    with pytest.raises(LlmDoError, match="yml"):
        registry.definition("g")


# -- authority and creation ----------------------------------------------------------------------------------------


def test_a_generated_file_cannot_name_a_function_as_its_output(make: Make) -> None:
    registry = make(
        {
            "workers/boss.md": "x",
            "workers/generated/g.yaml": "created_by: boss\noutput: subprocess:getoutput\ninstructions: x\n",
        }
    )
    try:
        output = run(registry, "g", scripted(answers({"cmd": "echo pwned"}))).output
    except Exception:  # however it fails, nothing ran
        return
    assert output != "pwned"


def test_a_creator_gives_files_that_it_has(make: Make) -> None:
    registry = make({"workers/boss.yaml": "toolsets: [worker_create]\nsandbox: {paths: {i: {root: i, mode: rw}}}\n"})
    defaults = WorkerCreationDefaults(default_sandbox=SandboxConfig(paths={"i": RootConfig(root="i")}))
    model = scripted(calls(("worker_create", {"name": "g", "instructions": "x"})), says("k"))
    run(registry, "boss", model, creation_defaults=defaults, approval_callback=approve_all_callback)
    assert registry.definition("g").sandbox is not None


def test_an_allow_that_the_file_does_not_say(make: Make) -> None:
    registry = make(
        {
            "workers/boss.md": "---\ntool_rules: {sandbox.write: allow}\n---\nx",
            "workers/generated/g.yaml": "created_by: boss\n",
        }
    )
    assert worker_of(registry, "g").tool_rules == {}


def test_force_false_never_overwrites(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    registry, made, barrier = make({}), list[int](), threading.Barrier(2, timeout=PATIENCE)

    def meet(*args: Any, **options: Any) -> str:
        with contextlib.suppress(threading.BrokenBarrierError):
            barrier.wait()  # so that both have found no file of that name
        return dump_worker(*args, **options)

    monkeypatch.setattr("llm_do.projects.worker_files.dump_worker", meet)

    def create(number: int) -> None:
        with contextlib.suppress(WorkerFileError):
            create_worker(registry=registry, spec=WorkerSpec(name="g", instructions=str(number)))
            made.append(number)

    threads = [threading.Thread(target=create, args=(number,)) for number in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [str(number) for number in made] == [registry.definition("g").instructions]


def test_force_replaces_a_broken_file(make: Make) -> None:
    registry = make({"workers/generated/g.yaml": "bad: 1\n"})
    create_worker(registry=registry, spec=WorkerSpec(name="g", instructions="x"), force=True)
    assert registry.definition("g").instructions == "x"


# -- delegation and attachments -------------------------------------------------------------------------------------


def test_attachments_are_not_smuggled_in_the_input(make: Make) -> None:
    registry = make(
        {"workers/a.yaml": DELEGATES, "workers/b.yaml": "attachment_policy: {max_attachments: 0}\ninstructions: b\n"}
    )
    link = {"kind": "image-url", "url": "http://127.0.0.1/x.png", "force_download": "allow-local"}
    smuggled = {"worker": "b", "input_data": {"input": "x", "attachments": [link]}}
    seen: list[Any] = []

    def step(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
        if not info.function_tools:
            seen.append(messages[0].parts[0].content)  # type: ignore[union-attr]
            return says("b")
        return says("k") if tool_results(messages) else calls(("worker_call", smuggled))

    run(registry, "a", scripted(step))
    assert "ImageUrl" not in str(seen)


@pytest.mark.parametrize(
    ("target", "arguments"),
    [
        ("instructions: b\n", {"input_data": "x", "attachments": ["i/x"]}),
        ("input: {type: object, properties: {n: {type: integer}}, required: [n]}\n", {"input_data": "hello"}),
        ("bad: 1\n", {"input_data": "x"}),
    ],
)
def test_a_models_mistake_in_delegating_is_told_to_it(make: Make, target: str, arguments: dict[str, Any]) -> None:
    registry = make({"workers/a.yaml": DELEGATES, "workers/b.yaml": target})
    model = scripted(calls(("worker_call", {"worker": "b", **arguments})), says("k"))
    assert run(registry, "a", model).output == "k"


def test_the_payload_shows_what_is_shared(make: Make) -> None:
    registry = make(
        {
            "workers/a.yaml": DELEGATES + "sandbox: {paths: {i: {root: i}}}\ntool_rules: {worker.call: ask}\n",
            "workers/b.md": "b",
            "i/a.txt": "hello",
        }
    )
    shared = {"worker": "b", "input_data": "x", "attachments": ["i/a.txt"]}
    witness = Witness()
    run(registry, "a", by_tools({"worker_call": calls(("worker_call", shared))}), approval_callback=witness)
    assert "5" in str(witness.seen[0]["attachments"])


def test_nobody_is_asked_about_what_is_not_allowed(make: Make) -> None:
    registry = make(
        {"workers/a.yaml": DELEGATES + "tool_rules: {worker.call: ask}\n", "workers/b.md": "b", "workers/c.md": "c"}
    )
    model = scripted(calls(("worker_call", {"worker": "c", "input_data": "x"})), says("k"))
    witness = Witness()
    run(registry, "a", model, approval_callback=witness)
    assert witness.seen == []


def test_a_suffix_of_two_parts(make: Make) -> None:
    registry = make({"workers/a.yaml": "attachment_policy: {suffixes: [.tar.gz]}\ninstructions: x\n"})
    assert run(registry, "a", attachments=[AttachmentPayload("x.tar.gz", b"x")]).output == "k"


def test_input_data_of_any_kind(make: Make) -> None:
    code = (
        "from llm_do import *\nfrom pydantic_ai import RunContext\n@entry\n"
        "async def t(ctx: RunContext[Context]) -> str:\n"
        "    return await RuntimeDelegator(ctx.deps).call_async('b', [1, 2], [])\n"
    )
    registry = make({"workers/a.yaml": "tools: [t]\n" + DELEGATES, "workers/b.md": "b", "tools.py": code})
    assert run(registry, "a", by_tools({"t": calls(("t", {}))})).output == "done"


# -- running -------------------------------------------------------------------------------------------------------


def test_run_worker_in_a_thread_of_a_loop(make: Make) -> None:
    registry = make({"workers/a.md": "x"})

    async def main() -> Any:
        return (await asyncio.to_thread(run, registry, "a")).output

    assert anyio.run(main) == "k"


def test_a_folder_that_is_a_package_of_one_project_is_none_of_another(tmp_path: Path) -> None:
    """Also a folder without an `__init__.py`, which Python takes for a package."""
    code = "from llm_do import entry\nimport parts.{0}\n\n@entry\ndef own() -> str:\n    return parts.{0}.NAME\n"
    for name in ("one", "two"):
        (tmp_path / name / "parts").mkdir(parents=True)
        (tmp_path / name / f"parts/{name}.py").write_text(f"NAME = {name!r}\n")
        (tmp_path / name / "tools.py").write_text(code.format(name))
    (tmp_path / "two/parts/__init__.py").write_text("")
    for name in ("one", "two", "one"):
        assert Runtime(WorkerRegistry(tmp_path / name)).call_sync("own") == name


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ('a = 1\nsecrets = ["x" "y"]\n', '  secrets = ["x" "y"]\n                 ^'),
        ("secrets = [", "  secrets = [\n             ^"),
    ],
)
def test_a_syntax_error_in_the_configuration_shows_its_line(tmp_path: Path, text: str, expected: str) -> None:
    """With a mark below the place, as errors in YAML have it."""
    (tmp_path / "llm-do.toml").write_text(text)
    with pytest.raises(WorkerFileError) as caught:
        _ = WorkerRegistry(tmp_path).config
    assert expected in str(caught.value)
    assert str(caught.value).startswith(f"llm-do.toml:{len(text.splitlines())}: ")
