"""Properties that hold for whatever a model comes up with. `make fuzz` tries many thousand times."""

import asyncio
import json
import os
import re
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from llm_do import LlmDoError, Runtime, WorkerEntry, WorkerRegistry

from ..conftest import SETTINGS
from ..world import CANARY, COUNTED, Person, World, call, calls_made, everything
from . import strategies

pytestmark = pytest.mark.timeout(0 if os.environ.get("HYPOTHESIS_PROFILE") == "fuzz" else 600)


@contextmanager
def a_world() -> Iterator[World]:
    """A world for one example."""
    with tempfile.TemporaryDirectory() as folder:
        world = World(Path(folder).resolve())
        try:
            yield world
        finally:
            world.close()


@SETTINGS
@given(made=st.lists(strategies.file_calls(), min_size=1, max_size=6))
def test_no_calls_of_the_file_tools_touch_or_tell_what_is_outside(made: list[tuple[str, dict[str, str]]]) -> None:
    with a_world() as world:
        out = world.project / "out"
        (out / "file_link").symlink_to(world.secret)
        (out / "folder_link").symlink_to(world.outside)
        (out / "loop").symlink_to("loop")
        os.link(world.secret, out / "hard.txt")
        os.mkfifo(out / "pipe")
        world.write(".git/config", CANARY)
        world.worker(
            "a",
            "sandbox: {paths: {in: {root: in}, all: {root: .}, out: {root: out, mode: rw, max_file_bytes: 200}}}\n"
            "tool_rules: {sandbox.write: allow}\n",
        )
        with world.untouched("out"):
            outcome = world.attack(*(call(name, **arguments) for name, arguments in made))
        assert not outcome.told(CANARY)
        assert outcome.error is None
        files = [path for path in out.rglob("*") if path.is_file() and not path.is_symlink()]
        assert all(path.stat().st_size <= 200 for path in files)
        assert not [path for path in files if path.name.startswith(".llm-do-")]


def _regex(pattern: str) -> re.Pattern[str]:
    """What a pattern of a rule means, written down a second time."""
    steps = [
        "(?:/[^/]+)*" if step == "**" else "/" + ".*".join(map(re.escape, step.split("*"))).replace(".*", "[^/]*")
        for step in pattern.split("/")
    ]
    return re.compile("".join(steps))


@SETTINGS
@given(pattern=strategies.patterns(), made=st.lists(strategies.spellings(), min_size=1, max_size=4))
def test_no_spelling_reads_what_a_rule_denies(pattern: str, made: list[tuple[str, dict[str, str]]]) -> None:
    with a_world() as world:
        shutil.rmtree(world.project / "in")
        denied, wanted = [], _regex(pattern)
        files = [name for name in strategies.TREE if name != "s"]
        for number, name in enumerate(files):
            world.write(f"in/{name}", f"token {number}-of-{world.mark}")
            if wanted.fullmatch(f"/{name}"):
                denied.append(number)
        world.worker(
            "a",
            "sandbox: {paths: {in: {root: in}, again: {root: ./in/../in}}}\n"
            f"tool_rules:\n  sandbox.read: {{rule: deny, when: {{path: 'in/{pattern}'}}}}\n",
        )
        outcome = world.attack(*(call(name, **arguments) for name, arguments in made))
        told = [number for number in denied if outcome.told(f"token {number}-of-{world.mark}")]
        assert told == []
        assert outcome.error is None


@SETTINGS
@given(made=st.lists(strategies.commands(), min_size=1, max_size=5))
def test_no_command_line_runs_a_program_that_is_denied(made: list[str]) -> None:
    with a_world() as world:
        world.worker(
            "a",
            "toolsets: [shell]\nsandbox: {paths: {out: {root: out, mode: rw}}}\n"
            "tool_rules:\n  shell: [allow, {rule: deny, when: {command: touch **}}]\n",
        )
        with world.untouched():
            outcome = world.attack(*(call("shell", command=each, timeout=3) for each in made), callback=Person())
        assert outcome.error is None


@SETTINGS
@given(instructions=strategies.words(), description=strategies.words(), name=st.text(max_size=10) | st.just("g"))
def test_words_of_a_created_worker_stay_words(instructions: str, description: str, name: str) -> None:
    with a_world() as world:
        world.write("tools.py", COUNTED)
        world.worker("a", "tools: [look]\ntoolsets: [worker_create]")
        arguments = {"instructions": instructions, "description": description}
        with world.untouched("workers/generated"):
            world.attack(call("worker_create", name=name, **arguments), callback=Person())
        folder = world.project / "workers/generated"
        created = [path for path in (folder.iterdir() if folder.exists() else ()) if path.suffix == ".yaml"]
        assert len(created) <= 1
        for path in created:
            made = WorkerRegistry(world.project).definition(path.stem)
            assert (made.tools, made.toolsets, made.sandbox, made.created_by) == ((), (), None, "a")
            assert made.name == name
            assert made.description == description
            assert made.instructions.split() == instructions.split()


@SETTINGS
@given(text=st.one_of(strategies.words(), st.binary(max_size=60)), below=strategies.words())
def test_no_text_as_a_worker_file_does_anything_but_work_or_fail(text: str | bytes, below: str) -> None:
    with a_world() as world:
        world.write("tools.py", COUNTED)
        raw = text if isinstance(text, bytes) else text.encode(errors="surrogatepass")
        world.write("workers/a.yaml", raw)
        world.write("workers/b.md", b"---\n" + raw + b"\n---\n" + below.encode(errors="surrogatepass"))
        for worker in ("a", "b"):
            with world.untouched():
                outcome = world.attack(call("wipe", place="x"), worker=worker)
            assert outcome.error is None or isinstance(outcome.error, LlmDoError)
        assert calls_made(world) == []


@SETTINGS
@given(creator=strategies.definitions(None), creature=strategies.definitions("boss"))
def test_a_creature_has_nothing_that_its_creator_has_not(creator: dict[str, Any], creature: dict[str, Any]) -> None:
    with a_world() as world:
        world.write("tools.py", COUNTED)
        world.write("in/d/x.txt", "x")
        world.worker("other")
        world.write("workers/boss.yaml", strategies.as_yaml(creator))
        world.write("workers/generated/g.yaml", strategies.as_yaml(creature))
        registry = WorkerRegistry(world.project)
        try:
            have, above = registry["g"], registry["boss"]
        except LlmDoError:
            return
        assert isinstance(have, WorkerEntry) and isinstance(above, WorkerEntry)
        assert have.definition is not None and above.definition is not None
        mine, theirs = have.definition, above.definition
        assert set(mine.tools) <= set(theirs.tools)
        assert set(mine.toolsets) <= set(theirs.toolsets)
        assert set(mine.native) <= set(theirs.native)
        assert set(mine.allow_workers) <= set(theirs.allow_workers) or "*" in theirs.allow_workers
        base = world.project
        for root in (mine.sandbox.paths if mine.sandbox is not None else {}).values():
            around = [
                each
                for each in (theirs.sandbox.paths if theirs.sandbox is not None else {}).values()
                if root.folder(base).is_relative_to(each.folder(base))
                and (root.mode == "ro" or each.mode == "rw")
                and root.max_file_bytes <= each.max_file_bytes
            ]
            assert around
        for name, said in mine.tool_rules.items():
            if any(rule.disposition == "allow" for rule in said):
                assert any(rule.disposition == "allow" for rule in theirs.tool_rules.get(name, ()))
        for name, said in theirs.tool_rules.items():
            if any(rule.disposition == "deny" for rule in said):
                assert any(rule.disposition == "deny" for rule in mine.tool_rules.get(name, ()))
        if theirs.limits is not None and theirs.limits.max_requests is not None:
            assert mine.limits is not None and mine.limits.max_requests is not None
            assert mine.limits.max_requests <= theirs.limits.max_requests


HOSTILE_KEYS = st.text(st.characters(exclude_categories=["Cs"]), min_size=6, max_size=20).filter(
    lambda text: len(text.strip()) > 5 and "\0" not in text
)


@SETTINGS
@given(data=st.data(), key=st.one_of(HOSTILE_KEYS, st.just('k"e\\y-\u00fc/9')))
def test_no_value_of_a_tool_tells_a_model_a_key(data: st.DataObject, key: str) -> None:
    value = data.draw(strategies.wrapped(key))
    with a_world() as world:
        world.write("value.json", json.dumps(value))
        world.write(
            "tools.py",
            "import json\nfrom pathlib import Path\nfrom typing import Any\nfrom llm_do import entry\n"
            "@entry\ndef tell() -> Any:\n    return json.loads((Path(__file__).parent / 'value.json').read_text())\n",
        )
        world.worker("a", "tools: [tell]")
        os.environ["FUZZED_KEY"] = key
        try:
            runtime = Runtime(
                WorkerRegistry(world.project), model=world.model({"a": [call("tell")]}), secrets=["FUZZED_KEY"]
            )
            asyncio.run(runtime.call("a", "go"))
        finally:
            del os.environ["FUZZED_KEY"]
        assert key not in " ".join(world.sent[1:]).replace(world.sent[0], "")
        told = [(each.input_data, each.output_data, each.error, each.failure) for each in runtime.trace]
        assert key not in everything(told)  # times and usage have digits of their own


TOOLS = ["wipe", "pay", "anything", "worker_call", "worker_create", "shell", "write_file"]
ARGUMENTS = ["place", "amount", "to", "value", "worker", "input_data", "attachments", "name", "command", "path"]
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)


@SETTINGS
@given(
    tool=st.sampled_from(TOOLS) | st.text(max_size=9),
    arguments=st.dictionaries(
        st.sampled_from(ARGUMENTS) | st.text(max_size=5),
        JSON,
        max_size=4,
    ),
)
def test_no_call_of_any_shape_does_anything_that_nobody_approved(tool: str, arguments: dict[str, Any]) -> None:
    with a_world() as world:
        world.write("tools.py", COUNTED)
        world.worker(
            "a",
            "tools: [wipe, pay, anything]\ntoolsets: [shell, worker_create]\nallow_workers: [b]\n"
            "sandbox: {paths: {out: {root: out, mode: rw}}}\n"
            "tool_rules: {pay: {rule: deny, when: {amount: {over: 5}}}}\n",
        )
        world.worker("b")
        with world.untouched():
            world.attack(call(tool, **arguments))
        assert all(name == "pay" and amount <= 5 for name, amount, *_ in calls_made(world))
