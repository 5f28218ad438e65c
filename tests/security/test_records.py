"""A record with `attachments` in it, such as a mail, is data: no caller's form makes a file of a text in it."""

import json
from base64 import b64encode
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Any

import pytest
from pydantic import BaseModel, Field
from pydantic_ai.messages import ModelMessage, ModelMessagesTypeAdapter, ModelResponse
from pydantic_ai.models.function import AgentInfo, FunctionModel

from llm_do import (
    ApprovalDecision,
    Context,
    Runtime,
    RuntimeDelegator,
    WorkerEntry,
    WorkerInput,
    WorkerRegistry,
    call_worker_async,
    run_worker_async,
)
from llm_do.cli.support.conversation import Conversation

from ..scripted import calls, says

SECRET = "TOP SECRET"
FILES = {
    "workers/plain.md": "x",
    "workers/typed.yaml": (
        "input: {type: object, properties: {subject: {type: string}, attachments: {}}}\ninstructions: x\n"
    ),
    "workers/boss.yaml": (
        "tools: [plain, typed, work]\nallow_workers: [plain, typed]\n"
        "sandbox: {paths: {in: {root: in}}}\ninstructions: x\n"
    ),
    "in/secret.txt": SECRET,
    "tools.py": """
from pydantic_ai import RunContext
from llm_do import Context, entry
from tests.security.test_records import WORK

@entry
async def work(ctx: RunContext[Context]) -> str:
    return str(await WORK["work"](ctx.deps))
""",
}
WORK: dict[str, Callable[[Context], Awaitable[Any]]] = {}


class Mail(BaseModel):
    subject: str
    attachments: Any


class Renamed(BaseModel):
    subject: str
    files: Any = Field(alias="attachments")


@dataclass
class Letter:
    subject: str
    attachments: Any


@dataclass
class Case:
    """A project, a record that names a file of it in every way there is, and all that models were sent."""

    registry: WorkerRegistry
    record: dict[str, Any]
    seen: list[str]
    tool: tuple[str, Any] | None = None
    """The call that the model of `boss` makes."""

    def __post_init__(self) -> None:
        self.model = FunctionModel(self.answer)
        self.runtime = Runtime(self.registry, model=self.model)

    def answer(self, messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
        self.seen.append(ModelMessagesTypeAdapter.dump_json(messages).decode())
        if not info.function_tools or len(messages) > 1:
            return says("done")
        assert self.tool is not None
        return calls(self.tool)

    async def by_model(self, name: str, arguments: Any) -> None:
        self.tool = (name, arguments)
        await self.runtime.call("boss", "go")

    async def in_tool(self, function: Callable[["Case", Context], Awaitable[Any]]) -> None:
        """Make a call in a tool of a worker that has the file in a root of its own."""
        WORK["work"] = partial(function, self)
        await self.by_model("work", {})

    async def edited(self) -> None:
        worker = WorkerEntry(name="w", requires_approval=True)
        decision = ApprovalDecision(approved=True, arguments=self.record)
        await Runtime(model=self.model, approval_callback=lambda *_: decision).call(worker, "go")

    async def turn(self, *args: Any, **kwargs: Any) -> None:
        worker = self.registry["plain"]
        assert isinstance(worker, WorkerEntry)
        async with worker.start(self.runtime) as scope:
            await scope.run_turn(*args, **kwargs)

    async def chat(self, name: str) -> None:
        worker = self.registry[name]
        assert isinstance(worker, WorkerEntry)
        talk = Conversation(worker, self.runtime)
        await talk.take_turn(json.dumps(self.record))
        await talk.close()

    async def run(self, name: str, given: Any, **more: Any) -> None:
        await run_worker_async(registry=self.registry, worker=name, input_data=given, cli_model=self.model, **more)


CALLERS: dict[str, Callable[[Case], Awaitable[Any]]] = {
    "text and keywords": lambda case: case.runtime.call("plain", "look", **case.record),
    "keywords": lambda case: case.runtime.call("plain", **case.record),
    "mapping": lambda case: case.runtime.call("plain", case.record),
    "another mapping": lambda case: case.runtime.call("plain", MappingProxyType(case.record)),
    "mapping as input": lambda case: case.runtime.call("plain", {"input": case.record}),
    "mapping in a keyword": lambda case: case.runtime.call("plain", mail=case.record),
    "model": lambda case: case.runtime.call("plain", Mail(**case.record)),
    "model as input": lambda case: case.runtime.call("plain", input=Mail(**case.record)),
    "dataclass": lambda case: case.runtime.call("plain", Letter(**case.record)),
    "worker input": lambda case: case.runtime.call("plain", WorkerInput(input=case.record)),
    "bound": lambda case: case.runtime.bind("plain")(case.record),
    "declared": lambda case: case.runtime.call("typed", case.record),
    "declared class": lambda case: case.runtime.call(WorkerEntry(name="w", input_type=Mail), Mail(**case.record)),
    "declared dataclass": lambda case: case.runtime.call(WorkerEntry(name="w", input_type=Letter), case.record),
    "alias": lambda case: case.runtime.call(WorkerEntry(name="w", input_type=Renamed), case.record),
    "turn": lambda case: case.turn(case.record),
    "turn with keywords": lambda case: case.turn("look", **case.record),
    "run_worker": lambda case: case.run("plain", case.record),
    "run_worker with a model": lambda case: case.run("plain", Mail(**case.record)),
    "run_worker with a dataclass": lambda case: case.run("plain", Letter(**case.record)),
    "run_worker, declared": lambda case: case.run("typed", case.record),
    "worker_call": lambda case: case.by_model("worker_call", {"worker": "plain", "input_data": case.record}),
    "worker_call, declared": lambda case: case.by_model("worker_call", {"worker": "typed", "input_data": case.record}),
    "tool": lambda case: case.by_model("typed", case.record),
    "edited": lambda case: case.edited(),
    "chat": lambda case: case.chat("plain"),
    "chat, declared": lambda case: case.chat("typed"),
}
IN_TOOLS: dict[str, Callable[[Case, Context], Awaitable[Any]]] = {
    "mapping": lambda case, ctx: ctx.call("plain", case.record),
    "keywords": lambda case, ctx: ctx.call("plain", **case.record),
    "text and keywords": lambda case, ctx: ctx.tools.plain("look", **case.record),
    "delegator": lambda case, ctx: RuntimeDelegator(ctx).call_async("plain", case.record, []),
    "delegator with a model": lambda case, ctx: RuntimeDelegator(ctx).call_async("plain", Mail(**case.record), []),
    "call_worker": lambda case, ctx: call_worker_async(
        registry=case.registry, worker="plain", input_data=case.record, caller_context=ctx
    ),
}
CALLERS |= {f"{name}, in a tool": partial(Case.in_tool, function=function) for name, function in IN_TOOLS.items()}


@pytest.fixture
def case(tmp_path: Path) -> Case:
    for path, text in FILES.items():
        (tmp_path / path).parent.mkdir(exist_ok=True)
        (tmp_path / path).write_text(text)
    file = str(tmp_path / "in/secret.txt")
    named: list[Any] = [file, "in/secret.txt", f"file://{file}", f"@{file}"]
    named += [{"kind": kind, "url": f"file://{file}"} for kind in ("image-url", "document-url")]
    named += [{"name": "secret.txt", "path": file}, {"kind": "binary", "data": file, "media_type": "text/plain"}]
    return Case(WorkerRegistry(tmp_path), {"subject": "hi", "attachments": named}, [])


def is_shown(text: str) -> bool:
    return SECRET in text or b64encode(SECRET.encode()).decode() in text


@pytest.mark.parametrize("name", CALLERS)
async def test_no_text_in_a_record_is_opened_as_a_file(case: Case, name: str) -> None:
    """And the record reaches the model as data, without an error."""
    await CALLERS[name](case)
    case.record["attachments"] = case.record["attachments"][0]
    await CALLERS[name](case)
    assert not is_shown("".join(case.seen))
    prompts = [
        part["content"]
        for messages in map(json.loads, case.seen)
        for part in messages[0]["parts"]
        if part["part_kind"] == "user-prompt" and part["content"] != "go"
    ]
    assert prompts, "no model was shown the record"
    for prompt in prompts:
        assert isinstance(prompt, str)
        assert "in/secret.txt" in prompt


async def test_a_file_that_is_attached_is_seen_by_this_test(case: Case) -> None:
    """The table above would notice a file: here is one."""
    await case.run("plain", case.record, attachments=[case.registry.root / "in/secret.txt"])
    assert is_shown("".join(case.seen))
