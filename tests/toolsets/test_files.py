"""A worker's files: named roots, tools for its model, and the same roots for Python."""

import os
from pathlib import Path
from typing import Any

import pytest
from pydantic_ai import BinaryContent, RunContext
from pydantic_ai.messages import ModelMessage, ModelRequest, ModelResponse
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

from ..scripted import calls, says, scripted
from .file_worker import SANDBOX, use


@pytest.fixture
def project(tmp_path: Path) -> Path:
    (tmp_path / "in" / "deep").mkdir(parents=True)
    (tmp_path / "in" / "a.txt").write_text("alpha\nbeta\n")
    (tmp_path / "in" / "deep" / "b.txt").write_text("beta again")
    (tmp_path / "in" / "dot.png").write_bytes(b"\x89PNG")
    (tmp_path / "out").mkdir()
    (tmp_path / "secret.txt").write_text("outside")
    return tmp_path


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
    assert "no worker is running here" in str(errors[1])


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
    assert "It changed after each of 5 approvals" in str(results[0].content)
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
