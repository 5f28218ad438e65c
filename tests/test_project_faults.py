"""Faults that were found in projects, authority, delegation, attachments and commands, and are gone."""

import asyncio
import contextlib
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import anyio
import pytest

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
    WorkerFileError,
    WorkerRegistry,
    WorkerSpec,
    approve_all_callback,
    create_worker,
    run_worker,
)
from llm_do import registry as registry_module

from .scripted import answers, by_tools, calls, says, scripted, tool_results

WIPE = "from llm_do import entry\n@entry\ndef wipe() -> str:\n    return 'wiped'\n"
RW = "sandbox: {paths: {o: {root: ., mode: rw}}}\ntool_rules: {sandbox.write: allow}\ninstructions: x\n"
DELEGATES = "allow_workers: [b]\ninstructions: x\n"


@pytest.fixture
def make(tmp_path: Path):
    def project(files):
        for path, text in {"workers/.keep": "", **files}.items():
            (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / path).write_text(text)
        return WorkerRegistry(tmp_path)

    return project


def run(registry, worker, model=None, **options):
    return run_worker(
        registry=registry, worker=worker, input_data="x", cli_model=model or scripted(says("k")), **options
    )


def test_modules_below_the_root_that_are_not_of_the_project_stay(make, tmp_path):
    registry = make({"tools.py": WIPE, ".venv/site-packages/vlib.py": "x = 1\n"})
    sys.path.insert(0, str(tmp_path / ".venv/site-packages"))
    import vlib

    run(registry, "wipe") if False else run_worker(registry=registry, worker="wipe")
    sys.path.pop(0)
    assert sys.modules.get("vlib") is vlib


def test_main_stays(make, tmp_path):
    code = (
        "import sys\nfrom llm_do import *\nfrom pathlib import Path\n"
        "run_worker(registry=WorkerRegistry(Path(__file__).parent), worker='wipe')\nassert '__main__' in sys.modules\n"
    )
    make({"tools.py": WIPE, "main.py": code})
    assert subprocess.run([sys.executable, str(tmp_path / "main.py")]).returncode == 0


def test_names_in_annotations_are_found_at_the_call(make):
    code = (
        "from __future__ import annotations\nfrom pydantic import BaseModel\nfrom llm_do import entry\n"
        "class A(BaseModel):\n    b: B | None = None\nclass B(BaseModel):\n    n: int = 1\n"
        "@entry\ndef f() -> int:\n    return A.model_validate({'b': {'n': 3}}).b.n\n"
    )
    assert run_worker(registry=make({"tools.py": code}), worker="f").output == 3


def test_own_tools_import_their_neighbours(make):
    registry = make(
        {
            "workers/a/worker.md": "x",
            "workers/a/tools.py": "import nb_own\ndef f() -> int:\n    return 1\n",
            "workers/a/nb_own.py": "",
        }
    )
    assert registry["a"].tools


def test_a_changed_neighbour_is_seen(make, tmp_path):
    registry = make(
        {
            "tools.py": "from llm_do import entry\nimport nb_ch\n@entry\ndef f() -> int:\n    return nb_ch.x\n",
            "nb_ch.py": "x = 1\n",
        }
    )
    assert run_worker(registry=registry, worker="f").output == 1
    (tmp_path / "nb_ch.py").write_text("x = 22\n")
    assert run_worker(registry=registry, worker="f").output == 22


def test_a_generated_file_cannot_name_a_function_as_its_output(make):
    registry = make(
        {
            "workers/boss.md": "x",
            "workers/generated/g.yaml": "created_by: boss\noutput: subprocess:getoutput\ninstructions: x\n",
        }
    )
    try:
        output = run(registry, "g", scripted(answers({"cmd": "echo pwned"}))).output
    except Exception:
        return
    assert output != "pwned"


def test_attachments_are_not_smuggled_in_the_input(make):
    registry = make(
        {"workers/a.yaml": DELEGATES, "workers/b.yaml": "attachment_policy: {max_attachments: 0}\ninstructions: b\n"}
    )
    seen = []

    def model(messages, info):
        if not info.function_tools:
            seen.append(messages[0].parts[0].content)
            return says("b")
        return (
            says("k")
            if tool_results(messages)
            else calls(
                (
                    "worker_call",
                    {
                        "worker": "b",
                        "input_data": {
                            "input": "x",
                            "attachments": [
                                {"kind": "image-url", "url": "http://127.0.0.1/x.png", "force_download": "allow-local"}
                            ],
                        },
                    },
                )
            )
        )

    run(registry, "a", scripted(model))
    assert "ImageUrl" not in str(seen)


@pytest.mark.parametrize("server", ["{command: [x], env: {A: b}}", "{url: 'http://x/y', headers: {A: b}}"])
def test_a_server_with_env_or_headers(make, server):
    assert make({"workers/a.yaml": f"toolsets: [{{mcp: {server}}}]\ninstructions: x\n"})["a"].toolsets


@pytest.mark.parametrize(
    ("target", "arguments"),
    [
        ("instructions: b\n", {"input_data": "x", "attachments": ["i/x"]}),
        ("input: {type: object, properties: {n: {type: integer}}, required: [n]}\n", {"input_data": "hello"}),
        ("bad: 1\n", {"input_data": "x"}),
    ],
)
def test_a_models_mistake_in_delegating_is_told_to_it(make, target, arguments):
    registry = make({"workers/a.yaml": DELEGATES, "workers/b.yaml": target})
    assert run(registry, "a", scripted(calls(("worker_call", {"worker": "b", **arguments})), says("k"))).output == "k"


def test_a_creator_gives_files_that_it_has(make):
    registry = make({"workers/boss.yaml": "toolsets: [worker_create]\nsandbox: {paths: {i: {root: i, mode: rw}}}\n"})
    defaults = WorkerCreationDefaults(default_sandbox=SandboxConfig(paths={"i": RootConfig(root="i")}))
    model = scripted(calls(("worker_create", {"name": "g", "instructions": "x"})), says("k"))
    run(registry, "boss", model, creation_defaults=defaults, approval_callback=approve_all_callback)
    assert registry.definition("g").sandbox is not None


def test_an_allow_that_the_file_does_not_say(make):
    registry = make(
        {
            "workers/boss.md": "---\ntool_rules: {sandbox.write: allow}\n---\nx",
            "workers/generated/g.yaml": "created_by: boss\n",
        }
    )
    assert registry["g"].tool_rules == {}


def test_an_unknown_name_is_said_though_another_file_is_broken(make):
    with pytest.raises(UnknownEntryError):
        Runtime(make({"workers/a.yaml": "bad: 1\n"})).call_sync("b")


def test_force_false_never_overwrites(make, monkeypatch):
    registry, made, barrier = make({}), [], threading.Barrier(2, timeout=2)
    original = registry_module.write_atomically

    def slow(*args, **kw):
        with contextlib.suppress(threading.BrokenBarrierError):
            barrier.wait()
        return original(*args, **kw)

    monkeypatch.setattr(registry_module, "write_atomically", slow)

    def one(n):
        try:
            create_worker(registry=registry, spec=WorkerSpec(name="g", instructions=str(n)))
            made.append(n)
        except WorkerFileError:
            pass

    threads = [threading.Thread(target=one, args=(n,)) for n in range(2)]
    [t.start() for t in threads]
    [t.join() for t in threads]
    assert len(made) == 1


def test_run_worker_in_a_thread_of_a_loop(make):
    registry = make({"workers/a.md": "x"})

    async def main():
        return (await asyncio.to_thread(run, registry, "a")).output

    assert anyio.run(main) == "k"


def test_the_payload_shows_what_is_shared(make):
    registry = make(
        {
            "workers/a.yaml": DELEGATES + "sandbox: {paths: {i: {root: i}}}\ntool_rules: {worker.call: ask}\n",
            "workers/b.md": "b",
            "i/a.txt": "hello",
        }
    )
    seen: list[Any] = []

    def ask(name, payload, why):
        seen.append(payload)
        return ApprovalDecision(approved=True)

    run(
        registry,
        "a",
        by_tools(
            {"worker_call": calls(("worker_call", {"worker": "b", "input_data": "x", "attachments": ["i/a.txt"]}))}
        ),
        approval_callback=ask,
    )
    assert "5" in str(seen[0]["attachments"])


def test_nobody_is_asked_about_what_is_not_allowed(make):
    registry = make(
        {"workers/a.yaml": DELEGATES + "tool_rules: {worker.call: ask}\n", "workers/b.md": "b", "workers/c.md": "c"}
    )
    seen = []

    def ask(name, payload, why):
        seen.append(payload)
        return ApprovalDecision(approved=True)

    run(
        registry,
        "a",
        scripted(calls(("worker_call", {"worker": "c", "input_data": "x"})), says("k")),
        approval_callback=ask,
    )
    assert seen == []


@pytest.mark.parametrize(("code", "message"), [("import sys\nsys.exit(3)\n", "line 2"), ("x = 1\ndef f(:\n", "line 2")])
def test_whatever_tools_raise(make, code, message):
    with pytest.raises(ProjectCodeError, match=message):
        make({"tools.py": code, "workers/a.md": "x"})["a"]


SHELL = "toolsets: [shell]\nsandbox: {paths: {o: {root: o, mode: rw}}}\ninstructions: x\n"


@pytest.mark.parametrize(("command", "expected"), [("echo a\0b", "cannot"), ("sh -c 'echo hi; sleep 30 &'", "hi")])
def test_commands(make, command, expected):
    result = run(
        make({"workers/a.yaml": SHELL}),
        "a",
        scripted(calls(("shell", {"command": command, "timeout": 2})), says("k")),
        approval_callback=approve_all_callback,
    )
    assert expected in str(tool_results(result.messages)[0])


def test_a_suffix_of_two_parts(make):
    registry = make({"workers/a.yaml": "attachment_policy: {suffixes: [.tar.gz]}\ninstructions: x\n"})
    assert run(registry, "a", attachments=[AttachmentPayload("x.tar.gz", b"x")]).output == "k"


def test_force_replaces_a_broken_file(make):
    create_worker(
        registry=make({"workers/generated/g.yaml": "bad: 1\n"}), spec=WorkerSpec(name="g", instructions="x"), force=True
    )


def test_yml_is_not_skipped_silently(make):
    with pytest.raises(LlmDoError, match="yml"):
        make({"workers/g.yml": "instructions: x\n"}).definition("g")


def test_a_package_of_entries(make):
    assert list(make({"tools/__init__.py": WIPE})) == ["wipe"]


def test_input_data_of_any_kind(make):
    code = (
        "from llm_do import *\nfrom pydantic_ai import RunContext\n@entry\n"
        "async def t(ctx: RunContext[Context]) -> str:\n"
        "    return await RuntimeDelegator(ctx.deps).call_async('b', [1, 2], [])\n"
    )
    registry = make({"workers/a.yaml": "tools: [t]\n" + DELEGATES, "workers/b.md": "b", "tools.py": code})
    assert run(registry, "a", by_tools({"t": calls(("t", {}))})).output == "done"
