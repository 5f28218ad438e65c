"""A worker's files: named roots, tools for its model, and the same roots for Python."""

import asyncio
import json
import os
import re
import tracemalloc
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic_ai import BinaryContent, RunContext
from pydantic_ai.messages import ModelMessage, ModelRequest, ModelResponse, ToolReturnPart
from pydantic_ai.models.function import AgentInfo

from llm_do import (
    FILE_TOOLS,
    ApprovalDecision,
    ApprovalRequest,
    Context,
    NoSandboxError,
    PathDenied,
    PathMissing,
    RootConfig,
    Runtime,
    SandboxConfig,
    WorkerEntry,
    approve_all_callback,
    entry,
)
from llm_do.core.events import Event
from llm_do.privacy.secrets import Secrets
from llm_do.sandbox import FoundLine, SandboxManager, SandboxToolset
from llm_do.sandbox.excerpts import HeadAndTail, read_range

from ..scripted import calls, says, scripted

SANDBOX = SandboxConfig(
    paths={
        "input": RootConfig(root="in", suffixes=(".txt", ".png")),
        "output": RootConfig(root="out", mode="rw", max_file_bytes=1000),
    }
)


@pytest.fixture
def project(tmp_path: Path) -> Path:
    (tmp_path / "in" / "deep").mkdir(parents=True)
    (tmp_path / "in" / "a.txt").write_text("alpha\nbeta\n")
    (tmp_path / "in" / "deep" / "b.txt").write_text("beta again")
    (tmp_path / "in" / "dot.png").write_bytes(b"\x89PNG")
    (tmp_path / "out").mkdir()
    (tmp_path / "secret.txt").write_text("outside")
    return tmp_path


async def use(project: Path, *tools: tuple[str, dict[str, Any]], **options: Any) -> list[ToolReturnPart]:
    """Return what a model gets when it calls these tools one after the other."""
    seen: list[ToolReturnPart] = []

    def look(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
        parts = (part for message in messages for part in message.parts if isinstance(part, ToolReturnPart))
        seen[:] = list(parts)
        return says("done")

    worker = WorkerEntry(name="w", sandbox=SANDBOX, base=project, tools=FILE_TOOLS, **options.pop("worker", {}))
    runtime = Runtime([worker], model=scripted(*[calls(tool) for tool in tools], look), **options)
    await runtime.call("w", "go")
    return seen


async def test_a_model_reads_lists_finds_and_searches(project: Path) -> None:
    results = await use(
        project,
        ("list_files", {}),
        ("list_files", {"path": "input"}),
        ("find_files", {"pattern": "input/**/*.txt"}),
        ("search_files", {"text": "beta", "pattern": "input/**"}),
        ("read_file", {"path": "input/a.txt"}),
        ("list_files", {"path": "output"}),
    )
    assert [part.content for part in results] == [
        "input/\noutput/",
        "input/a.txt\ninput/deep/\ninput/dot.png",
        "input/a.txt\ninput/deep/b.txt",
        "input/a.txt:2: beta\ninput/deep/b.txt:1: beta again",
        "alpha\nbeta\n",
        "(nothing)",
    ]


async def test_a_picture_is_read_as_one(project: Path) -> None:
    worker = WorkerEntry(name="w", sandbox=SANDBOX, base=project, tools=FILE_TOOLS)
    runtime = Runtime([worker], model=scripted(calls(("read_file", {"path": "input/dot.png"})), says("ok")))
    await runtime.call("w", "go")
    assert runtime.trace[1].output_data == BinaryContent(b"\x89PNG", media_type="image/png")


async def test_changes_ask_and_what_was_approved_is_written(project: Path) -> None:
    asked: list[tuple[str, dict[str, Any]]] = []

    def callback(tool_name: str, payload: dict[str, Any], reason: str) -> ApprovalDecision:
        asked.append((tool_name, payload))
        return ApprovalDecision(approved=True)

    await use(
        project,
        ("write_file", {"path": "output/new/a.txt", "content": "one two"}),
        ("edit_file", {"path": "output/new/a.txt", "old": "two", "new": "three"}),
        ("move_file", {"source": "output/new/a.txt", "destination": "output/b.txt"}),
        ("write_file", {"path": "output/c.txt", "content": "x"}),
        ("delete_file", {"path": "output/c.txt"}),
        approval_callback=callback,
    )
    assert [name for name, _ in asked] == ["sandbox.write"] * 5
    assert asked[0][1] == {"path": "output/new/a.txt", "content": "one two"}
    assert (project / "out" / "b.txt").read_text() == "one three"
    assert sorted(path.name for path in (project / "out").rglob("*") if path.is_file()) == ["b.txt"]


async def test_without_an_approval_nothing_is_written(project: Path) -> None:
    results = await use(project, ("write_file", {"path": "output/a.txt", "content": "x"}))
    assert results[0].outcome == "denied"
    assert not list((project / "out").iterdir())


async def test_rules_speak_of_reading_and_writing(project: Path) -> None:
    write = ("write_file", {"path": "output/a.txt", "content": "x"})
    await use(project, write, worker={"tool_rules": {"sandbox.write": "allow"}})
    assert (project / "out" / "a.txt").read_text() == "x"
    read = ("read_file", {"path": "input/a.txt"})
    (result,) = await use(project, read, tool_rules={"sandbox.read": "deny"}, approval_callback=approve_all_callback)
    assert result.outcome == "denied"


@pytest.mark.parametrize(
    ("tool", "arguments"),
    [
        ("read_file", {"path": "input/../secret.txt"}),
        ("read_file", {"path": "/etc/passwd"}),
        ("read_file", {"path": "nowhere/a.txt"}),
        ("read_file", {"path": "input/missing.txt"}),
        ("read_file", {"path": "input/a.pdf"}),
        ("write_file", {"path": "input/a.txt", "content": "x"}),
        ("write_file", {"path": "output/a.txt", "content": "x" * 2000}),
        ("move_file", {"source": "output/x.txt", "destination": "input/x.txt"}),
        ("edit_file", {"path": "output/none.txt", "old": "a", "new": "b"}),
    ],
)
async def test_a_model_gets_the_error_of_a_path_and_goes_on(
    project: Path, tool: str, arguments: dict[str, Any]
) -> None:
    before = {path: path.read_bytes() for path in project.rglob("*") if path.is_file()}
    (result,) = await use(project, (tool, arguments), approval_callback=approve_all_callback)
    assert result.outcome == "failed"
    assert str(project) not in str(result.content)
    assert {path: path.read_bytes() for path in project.rglob("*") if path.is_file()} == before


async def test_python_uses_the_same_roots(project: Path) -> None:
    """`ctx.deps.sandbox_toolset`, with the errors that Python expects."""
    seen: list[Any] = []

    @entry
    async def evaluate(ctx: RunContext[Context]) -> str:
        files = ctx.deps.sandbox_toolset
        seen.append(files.read_text("input", "a.txt"))
        with pytest.raises(PathDenied):
            files.write_text("input", "a.txt", "x")
        with pytest.raises(PathMissing):
            await ctx.deps.call("read_file", "input/nothing.txt")
        return str(await ctx.deps.call("read_file", "input/a.txt"))

    worker = WorkerEntry(name="w", sandbox=SANDBOX, base=project, tools=[evaluate, *FILE_TOOLS])
    runtime = Runtime([worker], model=scripted(calls(("evaluate", {})), says("ok")))
    await runtime.call("w", "go")
    assert seen == ["alpha\nbeta\n"]
    assert runtime.trace[1].output_data == "alpha\nbeta\n"


async def test_a_nested_worker_has_its_own_files_or_none(project: Path) -> None:
    errors: list[BaseException] = []

    @entry
    async def peek(ctx: RunContext[Context]) -> str:
        try:
            return ctx.deps.sandbox_toolset.read_text("input", "a.txt")
        except NoSandboxError as exc:
            errors.append(exc)
            return "none"

    inner = WorkerEntry(name="inner", tools=[peek], model=scripted(calls(("peek", {})), says("in")))
    outer = WorkerEntry(
        name="outer",
        sandbox=SANDBOX,
        base=project,
        tools=[inner],
        model=scripted(calls(("inner", {"input": "x"})), says("o")),
    )
    runtime = Runtime([outer, peek])
    await runtime.call("outer", "go")
    assert await runtime.call("peek") == "none"
    assert "worker 'outer > inner' has none" in str(errors[0])
    assert "no worker is at work here" in str(errors[1])


async def test_instructions_name_the_roots_and_the_files_are_closed_with_the_scope(project: Path) -> None:
    told: list[str] = []

    def look(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
        request = messages[-1]
        assert isinstance(request, ModelRequest)
        told.append(request.instructions or "")
        return says("ok") if len(messages) > 1 else calls(("read_file", {"path": "input/a.txt"}))

    worker = WorkerEntry(name="w", instructions="Read.", sandbox=SANDBOX, base=project, tools=FILE_TOOLS)
    before = len(os.listdir("/proc/self/fd"))
    async with worker.start(Runtime(model=scripted(look))) as scope:
        await scope.run_turn("x")
        assert len(os.listdir("/proc/self/fd")) > before
    assert len(os.listdir("/proc/self/fd")) == before
    assert told[0].startswith("Read.")
    assert "- input: read only, files that end with .txt, .png" in told[0]
    assert str(project) not in told[0]


async def test_protected_paths_stay_out_of_reach(project: Path) -> None:
    (project / "workers").mkdir()
    (project / "workers" / "w.txt").write_text("me")
    sandbox = SandboxConfig(paths={"all": RootConfig(root=".", mode="rw")})
    worker = WorkerEntry(
        name="w",
        sandbox=sandbox,
        base=project,
        protected=[project / "workers"],
        tools=FILE_TOOLS,
        model=scripted(calls(("write_file", {"path": "all/workers/w.txt", "content": "x"})), says("ok")),
    )
    await Runtime([worker], approval_callback=approve_all_callback).call("w", "go")
    assert (project / "workers" / "w.txt").read_text() == "me"


# -- changes during an approval -----------------------------------------------------------------------------

CHANGES = {
    "write_file": {"path": "output/a.txt", "content": "by the model"},
    "edit_file": {"path": "output/a.txt", "old": "old", "new": "new"},
    "move_file": {"source": "output/a.txt", "destination": "output/b.txt"},
    "delete_file": {"path": "output/a.txt"},
}


class Person:
    """An approver that changes a file before each yes, as long as there are texts for it."""

    def __init__(self, file: Path, *texts: str, in_place: bool = False, **answer: Any) -> None:
        self.file, self.texts, self.in_place, self.answer = file, list(texts), in_place, answer
        self.before: list[dict[str, str | None]] = []

    def ask(self, request: ApprovalRequest) -> ApprovalDecision:
        self.before.append(dict(request.before))
        if self.texts:
            other = self.file.with_name("other")
            (self.file if self.in_place else other).write_text(self.texts.pop(0))
            if not self.in_place:
                other.replace(self.file)
        return ApprovalDecision(approved=True, **self.answer)


def texts(folder: Path) -> dict[str, str]:
    return {path.name: path.read_text() for path in folder.iterdir()}


AFTERWARDS = {
    "write_file": {"a.txt": "by the model"},
    "edit_file": {"a.txt": "new, by a person"},
    "move_file": {"b.txt": "old, by a person"},
    "delete_file": {},
}


@pytest.mark.parametrize("in_place", [False, True])
@pytest.mark.parametrize("tool", CHANGES)
async def test_a_file_that_changes_during_an_approval_is_asked_about_again(
    project: Path, tool: str, in_place: bool
) -> None:
    """The second question shows the file as it is by then, and the change is made to that one."""
    file = project / "out" / "a.txt"
    file.write_text("old")
    person = Person(file, "old, by a person", in_place=in_place)
    await use(project, (tool, CHANGES[tool]), approval_callback=person)
    assert person.before == [{"output/a.txt": "old"}, {"output/a.txt": "old, by a person"}]
    assert texts(project / "out") == AFTERWARDS[tool]


@pytest.mark.parametrize("tool", CHANGES)
async def test_a_person_who_says_no_to_the_second_question_keeps_their_file(project: Path, tool: str) -> None:
    file = project / "out" / "a.txt"
    file.write_text("old")
    asked: list[ApprovalRequest] = []

    class Once:
        def ask(self, request: ApprovalRequest) -> ApprovalDecision:
            asked.append(request)
            file.write_text("mine")
            return ApprovalDecision(approved=len(asked) == 1)

    results = await use(project, (tool, CHANGES[tool]), approval_callback=Once())
    assert len(asked) == 2
    assert results[0].outcome == "denied"
    assert texts(project / "out") == {"a.txt": "mine"}


async def test_a_file_that_appears_during_an_approval_is_not_overwritten_unseen(project: Path) -> None:
    file = project / "out" / "a.txt"
    person = Person(file, "by a person")
    await use(project, ("write_file", CHANGES["write_file"]), approval_callback=person)
    assert person.before == [{"output/a.txt": None}, {"output/a.txt": "by a person"}]
    assert file.read_text() == "by the model"


@pytest.mark.parametrize("tool", CHANGES)
async def test_a_file_that_changes_with_every_answer_is_left_alone_in_the_end(project: Path, tool: str) -> None:
    file = project / "out" / "a.txt"
    file.write_text("old")
    person = Person(file, *(f"old {number}" for number in range(50)))
    results = await use(project, (tool, CHANGES[tool]), approval_callback=person)
    assert "So it was after each of 5 approvals" in str(results[0].content)
    assert texts(project / "out") == {"a.txt": "old 4"}


async def test_a_plain_callback_is_asked_again_too(project: Path) -> None:
    file = project / "out" / "a.txt"
    asked: list[str] = []

    def callback(tool_name: str, payload: dict[str, Any], reason: str) -> ApprovalDecision:
        asked.append(tool_name)
        if len(asked) == 1:
            file.write_text("by a person")
        return ApprovalDecision(approved=len(asked) == 1)

    await use(project, ("write_file", CHANGES["write_file"]), approval_callback=callback)
    assert len(asked) == 2
    assert file.read_text() == "by a person"


async def test_a_grant_for_the_same_arguments_asks_once(project: Path) -> None:
    """The second call finds what the first one wrote, and that is no other question."""
    file = project / "out" / "a.txt"
    write = ("write_file", CHANGES["write_file"])
    person = Person(file, approve_for_session=True)
    await use(project, write, write, write, approval_callback=person)
    assert person.before == [{"output/a.txt": None}]
    assert file.read_text() == "by the model"


async def test_a_grant_for_a_folder_writes_whatever_is_there(project: Path) -> None:
    """A person gives it for writes that they do not see, so there is nothing to compare."""
    file = project / "out" / "a.txt"
    asked: list[ApprovalRequest] = []

    class Folder:
        def ask(self, request: ApprovalRequest) -> ApprovalDecision:
            asked.append(request)
            return ApprovalDecision(approved=True, grant=request.offers[0])

    more = ("write_file", {"path": "output/a.txt", "content": "more"})
    await use(project, ("write_file", CHANGES["write_file"]), more, approval_callback=Folder())
    assert len(asked) == 1
    assert file.read_text() == "more"


async def test_edited_arguments_apply_only_to_the_file_that_was_shown(project: Path) -> None:
    file = project / "out" / "a.txt"
    file.write_text("old")
    edited = {"path": "output/a.txt", "content": "edited"}
    person = Person(file, "by a person", arguments=edited)
    await use(project, ("write_file", CHANGES["write_file"]), approval_callback=person)
    assert person.before == [{"output/a.txt": "old"}, {"output/a.txt": "by a person"}]
    assert file.read_text() == "edited"


async def test_secrets_are_not_in_the_text_that_is_shown(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MY_KEY", "sk-123456789")
    file = project / "out" / "a.txt"
    file.write_text("key sk-123456789")
    person = Person(file)
    await use(project, ("write_file", CHANGES["write_file"]), approval_callback=person, secrets=["MY_KEY"])
    assert "sk-123456789" not in str(person.before)


# -- long files, long lists, and secrets in them -------------------------------------------------------------

KEY = "-----BEGIN KEY-----\nMIIEow+IBAAKC\nAQEAx/8zQ9vT\n-----END KEY-----"
LONG = SandboxConfig(paths={"d": RootConfig(root="d", mode="rw", max_file_bytes=50_000_000)})


async def read_as_model(project: Path, *tools: tuple[str, dict[str, Any]], **options: Any) -> list[str]:
    """Return the texts that a model gets when it calls these tools on the folder `d`."""
    (project / "d").mkdir(exist_ok=True)
    seen: list[str] = []

    def look(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
        seen[:] = [str(p.content) for m in messages for p in m.parts if isinstance(p, ToolReturnPart)]
        return says("done")

    worker = WorkerEntry(name="w", sandbox=LONG, base=project, tools=FILE_TOOLS)
    runtime = Runtime([worker], model=scripted(*[calls(tool) for tool in tools], look), **options)
    await runtime.call("w", "go")
    assert [str(record.output_data) for record in runtime.trace[1:] if record.error is None] == seen[: len(tools)][
        : sum(record.error is None for record in runtime.trace[1:])
    ]
    return seen


async def test_a_long_file_is_read_in_parts_and_the_last_line_says_how_to_go_on(project: Path) -> None:
    """Lines end with a line feed and nothing else; the parts put together are the file."""
    (project / "d").mkdir()
    lines = [f"line {n}\x0b\u2028 of many\r\n" for n in range(1, 4501)]
    (project / "d" / "a.txt").write_text("".join(lines), newline="")
    first, second, last, few, beyond = await read_as_model(
        project,
        ("read_file", {"path": "d/a.txt"}),
        ("read_file", {"path": "d/a.txt", "offset": 2001}),
        ("read_file", {"path": "d/a.txt", "offset": 4001}),
        ("read_file", {"path": "d/a.txt", "offset": 7, "limit": 1}),
        ("read_file", {"path": "d/a.txt", "offset": 4501}),
    )
    assert first == "".join(lines[:2000]) + "[Lines 1-2000 of 4,500. Call read_file with offset=2001 to read on.]"
    assert (
        second == "".join(lines[2000:4000]) + "[Lines 2001-4000 of 4,500. Call read_file with offset=4001 to read on.]"
    )
    assert last == "".join(lines[4000:]) + "[Lines 4001-4500 of 4,500. The file ends here.]"
    assert few == lines[6] + "[Line 7 of 4,500. Call read_file with offset=8 to read on.]"
    assert beyond == (
        "offset=4501 is behind the end of 'd/a.txt', which has 4,500 lines. Use an offset from 1 to 4500."
    )


async def test_no_more_than_100_000_characters_of_a_file_reach_a_model(project: Path) -> None:
    """Of 10 MB in lines, whole lines; of a line of 5 MB, a part, and where it goes on."""
    (project / "d").mkdir()
    (project / "d" / "large.txt").write_text(("x" * 999 + "\n") * 10_000)
    (project / "d" / "line.json").write_text("".join(f"{n:07}" for n in range(700_000)))
    large, line, rest = await read_as_model(
        project,
        ("read_file", {"path": "d/large.txt", "limit": 10_000}),
        ("read_file", {"path": "d/line.json"}),
        ("read_file", {"path": "d/line.json", "offset": 1, "column": 4_899_994}),
    )
    assert large.endswith("\n[Lines 1-99 of 10,000. Call read_file with offset=100 to read on.]")
    assert max(map(len, (large, line))) <= 100_000
    assert line.endswith(
        "\n[Line 1 of 1, characters 1-99700 of that line. Call read_file with offset=1 and column=99701 to read on.]"
    )
    assert rest == "0699999\n[Line 1 of 1, from character 4899994 on. The file ends here.]"


async def test_a_list_of_many_files_is_cut_and_a_pattern_narrows_it(project: Path) -> None:
    """Folders are listed with a slash, and `**` looks below."""
    (project / "d" / "sub").mkdir(parents=True)
    for n in range(1_500):
        os.close(os.open(project / "d" / f"f{n:05}.txt", os.O_CREAT | os.O_WRONLY))
    (project / "d" / "sub" / "a.md").write_text("needle")
    whole, some, below, folders = await read_as_model(
        project,
        ("list_files", {"path": "d"}),
        ("list_files", {"path": "d", "pattern": "f0000[12]*"}),
        ("list_files", {"path": "d", "pattern": "**/*.md"}),
        ("list_files", {"path": "d", "pattern": "s*"}),
    )
    assert whole.count("\n") == 1000
    assert whole.endswith(
        "\n[The first 1,000. There are more: call list_files with a pattern, such as a*, or with a folder below.]"
    )
    assert (some, below, folders) == ("d/f00001.txt\nd/f00002.txt", "d/sub/a.md", "d/sub/")


async def _read_with_private_names(
    project: Path, rule: dict[str, Any], *tools: tuple[str, dict[str, Any]]
) -> list[str]:
    (project / "d" / "private").mkdir(parents=True, exist_ok=True)
    (project / "d" / "private" / "plan.txt").write_text("the plan\n" * 300)
    (project / "d" / "open.txt").write_text("no plan")
    return await read_as_model(project, *tools, tool_rules={"sandbox.read": rule, "sandbox.write": "allow"})


_HIDDEN = [
    lambda guess: ("list_files", {"path": "d", "pattern": f"**/{guess}*"}),
    lambda guess: ("list_files", {"path": "d", "pattern": f"*/{guess}*.txt"}),
    lambda guess: ("list_files", {"path": f"d/private/{guess}lan.txt", "pattern": "**"}),
    lambda guess: ("find_files", {"pattern": f"d/**/{guess}*"}),
    lambda guess: ("find_files", {"pattern": f"d/private/{guess}lan.txt"}),
    lambda guess: ("find_files", {"pattern": f"d/private/[{guess}]*"}),
    lambda guess: ("search_files", {"text": "plan", "pattern": f"d/**/{guess}*"}),
    lambda guess: ("search_files", {"text": f"the {guess}lan", "pattern": "d/**"}),
]


@pytest.mark.parametrize("call", _HIDDEN)
@pytest.mark.parametrize(
    "rule",
    [
        {"rule": "deny", "when": {"path": "{project}/d/private/**"}},
        {"rule": "deny", "except": {"path": "{project}/d/*.txt"}},
    ],
    ids=["a folder is denied", "all but some files are denied"],
)
async def test_no_pattern_tells_a_model_which_names_there_are_in_a_folder_that_is_denied(
    project: Path, call: Callable[[str], tuple[str, Any]], rule: dict[str, Any]
) -> None:
    """A right guess is answered as a wrong one is."""
    name = "when" if "when" in rule else "except"
    rule = {**rule, name: {"path": rule[name]["path"].format(project=project)}}
    right, wrong = await _read_with_private_names(project, rule, call("p"), call("q"))
    assert right == wrong
    assert "plan.txt" not in right


async def test_denied_files_are_left_out_of_lists_and_searches(project: Path) -> None:
    """The rest is listed, with a sentence that there are such rules. The folder itself is refused."""
    rule = {"rule": "deny", "when": {"path": f"{project}/d/private/**"}}
    flat, *below, folder = await _read_with_private_names(
        project,
        rule,
        ("list_files", {"path": "d"}),
        ("list_files", {"path": "d", "pattern": "**"}),
        ("find_files", {"pattern": "d/**"}),
        ("search_files", {"text": "plan", "pattern": "d/**"}),
        ("find_files", {"pattern": "d/private/**"}),
    )
    assert flat == "d/open.txt\nd/private/"
    said = "\n[Files that a rule denies are not shown.]"
    assert below == [f"d/open.txt{said}", f"d/open.txt{said}", f"d/open.txt:1: no plan{said}"]
    assert "deny" in folder


@pytest.mark.parametrize(
    ("tool", "path", "rule"),
    [
        ("delete_file", "d/private/plan.tx", {"rule": "deny", "when": {"path": "d/private/**"}}),
        ("read_file", "d/private/plan.md", {"rule": "deny", "except": {"path": "d/**/*.md"}}),
        ("read_file", "d/private/plan.txt/plan.md", {"rule": "deny", "except": {"path": "d/**/*.md"}}),
        ("list_files", "d/private/open", {"rule": "deny", "except": {"path": "d/private/open/**"}}),
    ],
)
async def test_an_error_about_a_missing_file_names_none_of_a_folder_that_is_denied(
    project: Path, tool: str, path: str, rule: dict[str, Any]
) -> None:
    """Who may delete a file there, or read another one, learns nothing of what else is in it."""
    anchored = {key: {"path": f"{project}/{value['path']}"} for key, value in rule.items() if key != "rule"}
    (said,) = await _read_with_private_names(project, {**rule, **anchored}, (tool, {"path": path}))
    assert said == f"{path!r} does not exist."


async def test_a_grant_for_a_file_is_for_any_range_of_it(project: Path) -> None:
    """`offset`, `limit` and `column` are no part of it. Another file needs another approval."""
    (project / "d").mkdir()
    for name in ("a.txt", "b.txt"):
        (project / "d" / name).write_text("1\n2\n3\n")
    asked: list[dict[str, Any]] = []

    def callback(tool_name: str, payload: dict[str, Any], reason: str) -> ApprovalDecision:
        asked.append(payload)
        return ApprovalDecision(approved=True, approve_for_session=True)

    await read_as_model(
        project,
        ("read_file", {"path": "d/a.txt"}),
        ("read_file", {"path": "d/a.txt", "offset": 2}),
        ("read_file", {"path": "d/a.txt", "offset": 2, "limit": 1, "column": 1}),
        ("read_file", {"path": "d/b.txt", "offset": 2}),
        tool_rules={"sandbox.read": "ask"},
        approval_callback=callback,
    )
    assert [payload["path"] for payload in asked] == ["d/a.txt", "d/b.txt"]


async def test_the_words_of_a_grant_say_which_arguments_it_leaves_open(project: Path) -> None:
    """In the question and in the records: a yes to a part of a file is for all of it, and one to a list is not."""
    (project / "d").mkdir()
    (project / "d" / "a.txt").write_text("1\n2\n")
    tools: list[tuple[str, dict[str, Any]]] = [("read_file", {"path": "d/a.txt", "offset": n}) for n in (1, 2)]
    tools += [("list_files", {"path": "d"})] * 2
    asked: list[ApprovalRequest] = []

    class Approver:
        def ask(self, request: ApprovalRequest) -> ApprovalDecision:
            asked.append(request)
            return ApprovalDecision(approved=True, approve_for_session=True)

    worker = WorkerEntry(name="w", sandbox=LONG, base=project, tools=FILE_TOOLS)
    model = scripted(*map(calls, tools), says("done"))
    runtime = Runtime([worker], model=model, tool_rules={"sandbox.read": "ask"}, approval_callback=Approver())
    await runtime.call("w", "go")
    words = ["these arguments and any offset, limit and column", "exactly these arguments"]
    assert [request.session_grant for request in asked] == words
    granted = [record.approval.grant for record in runtime.trace if record.approval is not None]
    assert granted == [words[0]] * 2 + [words[1]] * 2


async def test_no_range_shows_a_part_of_a_secret(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A key of several lines leaves its lines empty, so that the lines behind it keep their numbers."""
    monkeypatch.setenv("KEY", KEY)
    (project / "d").mkdir()
    (project / "d" / "a.txt").write_text(f"one\nkey: {KEY}\nsix\n")
    (project / "d" / "long.txt").write_text("x" * 99_695 + KEY.replace("\n", "") + "\n" + KEY)
    tools = [("read_file", {"path": "d/a.txt", "offset": n}) for n in range(1, 7)]
    search = ("search_files", {"text": "AQEA", "pattern": "d/**"})
    *parts, found = await read_as_model(project, *tools, search, secrets=["KEY"])
    assert parts[0] == "one\nkey: [secret KEY]\n\n\n\nsix\n"
    assert parts[3] == "\n\nsix\n[Lines 4-6 of 6. The file ends here.]"
    assert not any(piece in text for text in parts for piece in KEY.split("\n"))
    # Without its line ends it is another text, which no search for the key knows; in the other lines nothing is found.
    assert found.count("\n") == 0 and found.startswith("d/long.txt:1: ")


@given(
    secret=st.text(alphabet="ab\n+/%&é", min_size=8, max_size=30).map(str.strip).filter(lambda text: len(text) >= 8),
    before=st.text(alphabet="xy\n\u2028", max_size=40),
    after=st.text(alphabet="xy\n\r", max_size=40),
    offset=st.integers(1, 12),
    limit=st.integers(1, 12),
    column=st.integers(1, 60),
    most=st.integers(301, 360),
    size=st.integers(1, 50),
    write=st.sampled_from([str, quote, lambda text: json.dumps(text)[1:-1]]),
)
def test_no_range_and_no_end_of_a_text_shows_a_part_of_a_secret(
    secret: str,
    before: str,
    after: str,
    offset: int,
    limit: int,
    column: int,
    most: int,
    size: int,
    write: Callable[[str], str],
) -> None:
    """No character of it is shown, wherever the text is cut, and in whichever pieces it comes."""
    secrets = Secrets(["KEY"], {"KEY": secret})
    data = f"{before}{write(secret)}{after}".encode()
    chunks = [data[at : at + size] for at in range(0, len(data), size)]
    make = secrets.make_cleaner()
    found = read_range(chunks, offset=offset, limit=limit, column=column, most=most, make_cleaner=make)
    ends = HeadAndTail(most - 300, make)
    for chunk in chunks:
        ends.add(chunk)
    shown = found.text + re.sub(r"\[[\d,]+ (lines|char).*? are left out here.\]", "", ends.text())
    left = re.sub(r"\[?s?e?c?r?e?t? ?K?E?Y?\]?", "", shown)
    assert not set(left) & set("ab+/%&é"), shown
    assert found.lines == data.count(b"\n") + (not data.endswith(b"\n"))


def test_a_file_larger_than_memory_is_read_line_by_line() -> None:
    """Behind a range, lines are counted for a while, and then the count is a lower bound."""

    def endless() -> Iterator[bytes]:
        while True:
            yield b"x" * 999 + b"\n" + b"y" * 999_000

    found = read_range(endless(), offset=3, limit=1)
    assert found.for_model().startswith("y" * 99_700 + "\n[Line 3 of more than 6")


@pytest.mark.parametrize(
    "tool",
    [
        ("find_files", {"pattern": "input/**"}),
        ("search_files", {"text": "x", "pattern": "input/**"}),
        ("list_files", {"path": "input", "pattern": "**"}),
    ],
    ids=lambda tool: tool[0],
)
async def test_the_event_loop_goes_on_while_rules_judge_every_file(project: Path, tool: tuple[str, Any]) -> None:
    """A search is judged by all files that it finds. One refused, since there are too many, does no more."""
    (project / "in" / "many").mkdir()
    for number in range(2001):
        (project / "in" / "many" / f"{number}.txt").touch()
    beats = 0
    seen: dict[str, int] = {}

    async def beat() -> None:
        nonlocal beats
        while True:
            beats += 1
            await asyncio.sleep(0)

    def hear(event: Event) -> None:
        if event.name == tool[0]:
            seen[event.type] = beats

    beating = asyncio.create_task(beat())
    rules = {"sandbox.read": {"rule": "deny", "when": {"path": "input/none/**"}}}
    (refused,) = await use(project, tool, worker={"tool_rules": rules}, message_callback=hear)
    beating.cancel()
    assert "was refused" in str(refused.content)
    assert seen["call_closed"] - seen["call_opened"] > 20


async def test_the_content_of_a_file_decides_whether_it_is_read_as_text(project: Path) -> None:
    """Some suffixes of programs are media types of something else, and a file of text may be called anything."""
    (project / "d").mkdir()
    files = {
        **dict.fromkeys(("a.rs", "b.ts", "c.sql", "d.svg", "e.mp4", "f.md", "g.tex", "h.m"), "some tëxt\n".encode()),
        "p.pdf": b"%PDF-1.4\nall of it is ASCII\n",
        "q.mp4": b"\0\0\0\x18ftypmp42",
        "r.png": b"\x89PNG",
    }
    for name, content in files.items():
        (project / "d" / name).write_bytes(content)
    worker = WorkerEntry(name="w", sandbox=LONG, base=project, tools=FILE_TOOLS)
    tools = [calls(("read_file", {"path": f"d/{name}"})) for name in files]
    runtime = Runtime([worker], model=scripted(*tools, says("done")))
    await runtime.call("w", "go")
    got = {name: record.output_data for name, record in zip(files, runtime.trace[1:], strict=True)}
    assert {name for name, output in got.items() if output == "some tëxt\n"} == set(files) - {"p.pdf", "q.mp4", "r.png"}
    assert all(isinstance(got[name], BinaryContent) for name in ("p.pdf", "q.mp4", "r.png"))


async def test_secrets_are_removed_before_a_found_line_is_cut(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A long line is cut around the text, and never within a secret, wherever that begins or ends."""
    monkeypatch.setenv("KEY", "Zq8Rk2Vn7Wm4Xt1Yb6Uc3Jd9")
    (project / "d").mkdir()
    text = "".join(f"{'-' * n}Zq8Rk2Vn7Wm4Xt1Yb6Uc3Jd9{'-' * 300}needle{'-' * 300}\n" for n in range(0, 300, 12))
    text += "".join(f"{'-' * 300}needle{'-' * n}Zq8Rk2Vn7Wm4Xt1Yb6Uc3Jd9{'-' * 300}\n" for n in range(100, 400, 12))
    (project / "d" / "a.txt").write_text(text)
    (found,) = await read_as_model(project, ("search_files", {"text": "needle", "pattern": "d/**"}), secrets=["KEY"])
    assert found.count("needle") == 50 and "[secret KEY]" in found
    assert not any("Zq8Rk2Vn7Wm4Xt1Yb6Uc3Jd9"[at : at + 4] in found for at in range(21))


def test_a_search_makes_no_more_lines_than_it_returns(tmp_path: Path) -> None:
    """A file of nothing but hits costs as much memory as it has bytes, and no object for each line."""
    (tmp_path / "d").mkdir()
    (tmp_path / "d" / "a.txt").write_text("ab\r\n" * 100_000)
    (tmp_path / "d" / "b.txt").write_text("ab\nx\n\nxab ab\nab")
    files = SandboxToolset(SandboxManager(LONG, base=tmp_path))
    tracemalloc.start()
    found = files.search("d", "ab", limit=50)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert (len(found), found.truncated, found[49]) == (50, True, FoundLine(path="a.txt", line=50, text="ab"))
    assert peak < 4_000_000
    assert [(line.line, line.text) for line in files.search("d", "ab", pattern="b.txt")] == [
        (1, "ab"),
        (4, "xab ab"),
        (5, "ab"),
    ]
