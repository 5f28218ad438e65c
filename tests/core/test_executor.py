"""The executor as the seam of memory: a run that is recorded once and made again is answered from the record."""

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from pydantic_ai import RunContext, Tool
from pydantic_ai.exceptions import ApprovalRequired, ModelHTTPError
from pydantic_ai.messages import ModelMessage, ModelResponse, TextPart, ToolReturn
from pydantic_ai.models.fallback import FallbackModel
from pydantic_ai.models.function import AgentInfo, FunctionModel

from llm_do import (
    FILE_TOOLS,
    AnswerCutOff,
    ApprovalDecision,
    ApprovalDenied,
    ApprovalRequest,
    CallClosed,
    CallEnded,
    CallFrame,
    CallTimeout,
    Context,
    Event,
    Executor,
    Limits,
    PathMissing,
    PendingRequest,
    Recalled,
    RequestEnded,
    RequestStarted,
    RootConfig,
    Runtime,
    SandboxConfig,
    ToolEntry,
    WorkerEntry,
    approve_all_callback,
    entry,
)
from llm_do.core.stream import EventStream
from llm_do.core.trace import ModelUsage
from llm_do.errors import raised_in_nested_call
from llm_do.policy.approvals import Answer

from ..processes import PATIENCE
from ..scripted import calls, says, scripted
from .fold import fold
from .trees import PLANS, World

RULES = {"pay": {"rule": "ask", "reason": "money"}}


class Memory(Executor):
    """Remembers all that a run needs to be made again: responses, answers of calls, and decisions of a person."""

    def __init__(self) -> None:
        self.finished: dict[str, Recalled] = {}
        self.responses: dict[tuple[str | None, int, str], ModelResponse] = {}
        self.decisions: dict[tuple[str | None, str], Answer] = {}
        self.intents: list[str | None] = []
        self.sent: list[str] = []
        self.asked: list[str] = []
        self.recalls = True

    async def recall(self, call: CallFrame) -> Recalled | None:
        assert call.key is not None
        return self.finished.get(call.key) if self.recalls else None

    async def decide(self, request: ApprovalRequest, ask: Callable[[], Awaitable[Answer]]) -> Answer:
        question = request.key, request.digest
        if question not in self.decisions:
            self.asked.append(request.tool_name)
            self.decisions[question] = await ask()
        return self.decisions[question]

    async def begin(self, call: CallFrame) -> None:
        self.intents.append(call.key)

    async def execute(self, entry: Any, arguments: dict[str, Any], ctx: Any, run_ctx: Any) -> Any:
        call: CallFrame = ctx.frame
        try:
            output = await entry.call(arguments, ctx, run_ctx)
        except Exception as exc:
            is_nested = raised_in_nested_call(exc, call.record)
            self.finished[str(call.key)] = Recalled(error=exc, is_from_nested_call=is_nested, digest=call.digest)
            raise
        assert call.record is not None
        spent = [ModelUsage("tree", "function", usage) for usage in call.record.requests]
        self.finished[str(call.key)] = Recalled(output=output, spent=spent, digest=call.digest)
        return output

    async def request(self, request: PendingRequest, send: Callable[[], Awaitable[ModelResponse]]) -> ModelResponse:
        place = request.call.key, request.number, request.digest
        if place not in self.responses:
            self.sent.append(request.digest)
            self.responses[place] = await send()
        return self.responses[place]

    def forget_sent(self) -> None:
        self.sent, self.asked, self.intents = [], [], []


def runtime_of(world: World, memory: Memory, **options: Any) -> Runtime:
    def approve(name: str, payload: dict[str, Any], reason: str) -> ApprovalDecision:
        return ApprovalDecision(approved=payload["amount"] != 1)

    return Runtime(world.entries, executor=memory, approval_callback=approve, tool_rules=RULES, **options)


@pytest.mark.parametrize("text_deltas", [False, True])
@given(plan=PLANS)
@settings(max_examples=40)
async def test_a_run_is_made_again_from_its_record(plan: list[Any], text_deltas: bool) -> None:
    """In another order and with other latencies. Only the top call runs: glue has branches with equal calls in them."""
    memory, first, again = Memory(), World(seed=1), World(seed=2)
    output = await runtime_of(first, memory).call("glue", plan=json.dumps(plan))
    del memory.finished[next(key for key in memory.finished if key.startswith("/glue") and key.count("/") == 1)]
    memory.forget_sent()
    assert await runtime_of(again, memory).call("glue", plan=json.dumps(plan)) == output
    assert again.ran == [] and memory.sent == [] and memory.asked == []


@given(plan=PLANS)
@settings(max_examples=40)
async def test_without_finished_calls_no_request_is_sent_and_nothing_is_asked_twice(plan: list[Any]) -> None:
    """The functions run again, as after a kill in which their answers were lost."""
    memory, first, again = Memory(), World(seed=3), World(seed=4)
    output = await runtime_of(first, memory).call("glue", plan=json.dumps(plan))
    memory.forget_sent()
    memory.recalls = False
    assert await runtime_of(again, memory).call("glue", plan=json.dumps(plan)) == output
    assert "request" not in again.ran
    assert memory.sent == [] and memory.asked == []


async def test_a_recalled_call_counts_as_a_call_and_spends_nothing() -> None:
    memory, events = Memory(), list[Event]()
    model = scripted(says("4", input_tokens=7, output_tokens=3))
    worker = WorkerEntry(name="w", model=model)
    await Runtime([worker], executor=memory).call("w", "go")
    runtime = Runtime(
        [worker], executor=memory, limits=Limits(max_calls=1, max_tokens=1), message_callback=events.append
    )
    assert await runtime.call("w", "go") == "4"
    assert runtime.budget.tokens.spent == 0
    assert sum(usage.total_tokens for usage in runtime.usage.values()) == 10
    (closed,) = [event for event in events if isinstance(event, CallClosed)]
    assert closed.restored and closed.state == "ok" and closed.usage is not None
    assert fold(events).meter.by_model == runtime.usage
    with pytest.raises(Exception, match="max_calls"):
        await runtime.call("w", "more")


async def test_a_restored_response_is_in_the_record_and_spends_nothing() -> None:
    memory, events = Memory(), list[Event]()
    worker = WorkerEntry(name="w", model=scripted(says("4", input_tokens=7, output_tokens=3)))
    for number in range(2):
        memory.finished.clear()
        runtime = Runtime([worker], executor=memory, message_callback=events.append if number else None)
        assert await runtime.call("w", "go") == "4"
    (ended,) = [event for event in events if isinstance(event, RequestEnded)]
    assert ended.restored and ended.usage is not None and ended.usage.total_tokens == 10
    assert runtime.budget.tokens.spent == 0 and len(memory.sent) == 1
    assert fold(events).meter.by_model == runtime.usage
    assert runtime.trace[0].usage is not None and runtime.trace[0].usage.total_tokens == 10


async def test_an_answer_is_only_for_what_was_shown() -> None:
    """The same call with another view is asked about again."""
    memory, asked = Memory(), list[str]()

    @entry(requires_approval=True)
    def pay(amount: int) -> int:
        return amount

    def approve(name: str, payload: dict[str, Any], reason: str) -> ApprovalDecision:
        asked.append(reason)
        return ApprovalDecision(approved=True)

    for rules in (None, None, {"pay": {"rule": "ask", "reason": "it is Friday"}}):
        memory.finished.clear()
        await Runtime([pay], executor=memory, approval_callback=approve, tool_rules=rules).call("pay", 5)
    assert len(asked) == 2


async def test_a_refusal_is_an_answer_too() -> None:
    memory, asked = Memory(), list[str]()

    @entry(requires_approval=True)
    def pay(amount: int) -> int:
        return amount

    def refuse(name: str, payload: dict[str, Any], reason: str) -> ApprovalDecision:
        asked.append(reason)
        return ApprovalDecision(approved=False, note="too much")

    for _ in range(2):
        with pytest.raises(ApprovalDenied, match="too much"):
            await Runtime([pay], executor=memory, approval_callback=refuse).call("pay", 5)
    assert len(asked) == 1 and memory.intents == []


async def test_an_object_with_execute_alone_is_an_executor() -> None:
    ran: list[str] = []

    class Old:
        async def execute(self, entry: Any, arguments: dict[str, Any], ctx: Any, run_ctx: Any) -> Any:
            ran.append(entry.name)
            return await entry.call(arguments, ctx, run_ctx)

    worker = WorkerEntry(name="w", model=scripted(calls(("double", {"x": 2})), says("4")), tools=[double])
    assert await Runtime([worker], executor=Old()).call("w", "go") == "4"
    assert ran == ["w", "double"]


@entry(effects=[])
def double(x: int) -> int:
    return 2 * x


async def test_the_order_of_the_seams() -> None:
    """After the checks, `recall`; after the approval, `begin`; nothing begins that is refused."""
    order: list[str] = []

    class Seams(Memory):
        async def recall(self, call: CallFrame) -> Recalled | None:
            order.append("recall")
            return None

        async def begin(self, call: CallFrame) -> None:
            order.append("begin")

        async def execute(self, entry: Any, arguments: dict[str, Any], ctx: Any, run_ctx: Any) -> Any:
            order.append("execute")
            return await entry.call(arguments, ctx, run_ctx)

    def approve(name: str, payload: dict[str, Any], reason: str) -> ApprovalDecision:
        order.append("ask")
        return ApprovalDecision(approved=len(order) < 4)

    runtime = Runtime([double], executor=Seams(), approval_callback=approve, tool_rules={"double": "ask"})
    await runtime.call("double", 2)
    with pytest.raises(ApprovalDenied):
        await runtime.call("double", 3)
    assert order == ["recall", "ask", "begin", "execute", "recall", "ask"]


async def test_an_idempotency_key_is_of_the_run_and_of_the_call() -> None:
    keys: list[str] = []

    @entry(repeat="keyed", effects=["network"])
    async def pay(ctx: RunContext[Context], amount: int) -> None:
        keys.append(ctx.deps.idempotency_key)

    for _ in range(2):
        runtime = Runtime([pay], tool_rules={"pay": "allow"})
        for amount in (5, 5, 6):
            await runtime.call("pay", amount)
    assert len(set(keys)) == 6
    keys.clear()
    for _ in range(2):
        await Runtime([pay], tool_rules={"pay": "allow"}, session_id="run-1").call("pay", 5)
    assert len(set(keys)) == 1


def test_entries_say_what_a_resumed_run_may_repeat() -> None:
    def plain() -> None: ...

    async def glue(ctx: RunContext[Context]) -> None: ...

    made = entry(plain)
    assert (made.effects, made.repeat, made.requires_approval) == (None, "never", False)
    assert entry(glue).repeat == "safe"
    assert entry(effects=[])(plain).repeat == entry(effects=["read"])(plain).repeat == "safe"
    assert entry(effects=["network"])(glue).repeat == "never"
    assert entry(repeat="keyed")(plain).repeat == "keyed"
    with pytest.raises(ValueError, match="repeat must be one of safe, keyed, never"):
        entry(repeat="sometimes")(plain)  # type: ignore[arg-type]


async def test_the_digest_of_a_request_tells_the_answers_of_tools_apart_and_no_secrets(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Not the ids of tool calls either; what a tool returns may be named like a time or an id of a run."""

    async def digests(returned: Any, key: str) -> list[str]:
        monkeypatch.setenv("MY_KEY", f"abc-{key}")
        memory = Memory()

        @entry
        def look() -> Any:
            return returned

        settings: Any = {
            "extra_headers": {"Authorization": key},
            "extra_body": {"api_key": key, "n": 1},
            "stop_sequences": [f"abc-{key}"],
        }
        model = scripted(calls(("look", {})), says("done"))  # ids are made for its calls
        worker = WorkerEntry(name="w", model=model, tools=[look], model_settings=settings)
        await Runtime([worker], executor=memory, secrets=["MY_KEY"]).call("w", "go")
        return memory.sent

    one = await digests({"run_id": 1, "timestamp": 1}, "12345678")
    assert await digests({"run_id": 1, "timestamp": 1}, "87654321") == one
    other = await digests({"run_id": 1, "timestamp": 2}, "12345678")
    assert other[0] == one[0] and other[1] != one[1]
    assert (await digests({"run_id": 2, "timestamp": 1}, "12345678"))[1] not in (one[1], other[1])


@pytest.mark.parametrize("text_deltas", [False, True])
@pytest.mark.parametrize("limits", [None, Limits(timeout=0.3)])
async def test_a_request_that_an_executor_holds_up_ends_with_its_call(text_deltas: bool, limits: Limits | None) -> None:
    """After the response came, too: nothing of it is left when the call is cancelled, or its time is up."""
    came = asyncio.Event()

    class Slow(Executor):
        async def request(self, request: PendingRequest, send: Callable[[], Awaitable[ModelResponse]]) -> ModelResponse:
            await send()
            came.set()
            await asyncio.sleep(PATIENCE)
            raise AssertionError

    worker = WorkerEntry(name="w", model=scripted(says("ok")), limits=limits)
    runtime = Runtime([worker], executor=Slow(), text_deltas=text_deltas)
    before = asyncio.all_tasks()
    call = asyncio.create_task(runtime.call("w", "go"))
    await came.wait()
    if limits is None:
        call.cancel()
    with pytest.raises(CallTimeout if limits is not None else asyncio.CancelledError):
        await call
    assert asyncio.all_tasks() == before


@pytest.mark.parametrize("keeps_messages", [False, True])
async def test_a_turn_is_recalled_with_its_conversation_or_not_at_all(keeps_messages: bool) -> None:
    class Turns(Memory):
        async def execute(self, entry: Any, arguments: dict[str, Any], ctx: Any, run_ctx: Any) -> Any:
            output = await super().execute(entry, arguments, ctx, run_ctx)
            if keeps_messages:
                known = self.finished[ctx.frame.key]
                self.finished[ctx.frame.key] = replace(known, messages=ctx.frame.messages)
            return output

    memory = Turns()
    for turns in (["one", "two"], ["one", "two", "three"]):
        worker = WorkerEntry(
            name="w", model=scripted(*map(says, turns)) if len(turns) == 2 else scripted(says("three"))
        )
        memory.forget_sent()
        async with worker.start(Runtime([worker], executor=memory)) as scope:
            assert [await scope.run_turn(f"say {turn}") for turn in turns] == turns
            assert len(scope.messages) == 2 * len(turns)
    assert len(memory.sent) == 1  # that of the turn that is new
    assert (len(memory.intents) == 1) is keeps_messages


@pytest.mark.parametrize("text_deltas", [False, True])
async def test_an_executor_may_send_a_failed_request_again(text_deltas: bool) -> None:
    sent: list[int] = []

    class Again(Executor):
        async def request(self, request: PendingRequest, send: Callable[[], Awaitable[ModelResponse]]) -> ModelResponse:
            try:
                return await send()
            except ModelHTTPError:
                return await send()

    def answer() -> str:
        sent.append(len(sent))
        if len(sent) == 1:
            raise ModelHTTPError(503, "busy")
        return "ok"

    async def whole(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
        return says(answer())

    async def stream(messages: list[ModelMessage], info: AgentInfo) -> AsyncIterator[str]:
        yield answer()

    events = list[Event]()
    worker = WorkerEntry(name="w", model=FunctionModel(whole, stream_function=stream))
    runtime = Runtime([worker], executor=Again(), text_deltas=text_deltas, message_callback=events.append)
    assert await runtime.call("w", "go") == "ok"
    ended = [event for event in events if isinstance(event, RequestEnded)]
    assert [event.error is None for event in ended] == [False, True]
    assert fold(events).meter.by_model == runtime.usage


async def test_a_call_whose_key_does_not_tell_its_arguments_is_not_recalled() -> None:
    class Account:
        def __init__(self, balance: int) -> None:
            self.balance = balance

    @entry
    def look(account: Any) -> int:
        return int(account.balance)

    memory = Memory()
    for balance in (5, 7):
        assert await Runtime([look], executor=memory).call("look", Account(balance)) == balance


async def test_no_stored_answer_is_for_a_question_that_its_key_does_not_tell_from_others() -> None:
    class Account:
        pass

    @entry(requires_approval=True)
    def close(account: Any) -> None: ...

    memory = Memory()
    for _ in range(2):
        runtime = Runtime([close], executor=memory, approval_callback=lambda *_: ApprovalDecision(approved=True))
        await runtime.call("close", Account())
        memory.finished.clear()
    assert memory.asked == []  # each time the person is asked, and the memory is not


@pytest.mark.parametrize("seam", ["recall", "begin"])
async def test_a_call_that_waits_for_the_executor_does_not_run_after_the_run_was_ended(seam: str) -> None:
    ran: list[str] = []
    was_ended = asyncio.Event()

    class Slow(Executor):
        async def recall(self, call: CallFrame) -> Recalled | None:
            if seam == "recall" and call.entry.name == "delete":
                await was_ended.wait()
            return None

        async def begin(self, call: CallFrame) -> None:
            if seam == "begin" and call.entry.name == "delete":
                await was_ended.wait()

    @entry
    async def delete() -> None:
        ran.append("deleted")

    @entry(requires_approval=True)
    async def pay() -> None: ...

    @entry
    async def both(ctx: RunContext[Context]) -> None:
        async def end() -> None:
            try:
                await ctx.deps.call("pay")
            finally:
                was_ended.set()

        await asyncio.gather(end(), ctx.deps.call("delete"), return_exceptions=True)

    def end_run(*_: Any) -> ApprovalDecision:
        return ApprovalDecision(approved=False, end_run=True)

    runtime = Runtime([both, pay, delete], executor=Slow(), approval_callback=end_run)
    await runtime.call("both")
    assert ran == [] and runtime.trace[2].error_type == "CallCancelled"


async def test_a_call_does_not_run_when_its_caller_returned_while_a_person_was_asked() -> None:
    ran: list[str] = []
    asked, answer = asyncio.Event(), asyncio.Event()
    tasks: list[asyncio.Task[Any]] = []

    @entry(requires_approval=True)
    async def delete() -> None:
        ran.append("deleted")

    @entry
    async def start(ctx: RunContext[Context]) -> None:
        tasks.append(asyncio.create_task(ctx.deps.call("delete")))
        await asked.wait()

    async def approve(*_: Any) -> ApprovalDecision:
        asked.set()
        await answer.wait()
        return ApprovalDecision(approved=True)

    await Runtime([start, delete], approval_callback=approve).call("start")
    answer.set()
    with pytest.raises(CallEnded):
        await tasks[0]
    assert ran == []


async def test_a_call_that_asked_from_within_is_no_finished_call() -> None:
    @entry
    async def pay(ctx: RunContext[Context], amount: int) -> int:
        if not ctx.tool_call_approved:
            raise ApprovalRequired
        return amount

    memory = Memory()
    for _ in range(2):
        runtime = Runtime([pay], executor=memory, approval_callback=lambda *_: ApprovalDecision(approved=False))
        with pytest.raises(ApprovalDenied):
            await runtime.call("pay", 5)


async def test_a_recalled_error_takes_the_course_that_it_took() -> None:
    """One of the tool itself is reported to the model; one from below it ends the run."""

    @entry
    def inner() -> None:
        raise PathMissing("There is no file.")

    async def read(ctx: RunContext[Context], below: bool) -> None:
        if below:
            await ctx.deps.call("inner")
        raise PathMissing("There is no file.")

    async def wait() -> None:
        await asyncio.sleep(PATIENCE)

    tools = [ToolEntry(Tool(read), errors_for_model=(PathMissing,)), ToolEntry(tool=Tool(wait, timeout=0.01))]
    asked_for = calls(("read", {"below": False}), ("wait", {})), calls(("read", {"below": True}))

    memory, messages = Memory(), list[Any]()
    for _ in range(2):
        worker = WorkerEntry(name="w", tools=tools, model=scripted(*asked_for), retries=3)
        runtime = Runtime([worker, inner], executor=memory)
        with pytest.raises(PathMissing):
            await runtime.call("w", "go")
        messages.append(
            [part.content for message in runtime.messages for part in message.parts if "return" in part.part_kind]
        )
        del memory.finished[str(runtime.trace[0].key)]
    assert messages[0] == messages[1] and [record.name for record in runtime.trace] == ["w", "read", "wait", "read"]


async def test_an_answer_that_was_cut_off_is_so_when_it_is_restored() -> None:
    cut = ModelResponse(parts=[TextPart("half")], finish_reason="length")

    class Stored(Executor):
        async def request(self, request: PendingRequest, send: Callable[[], Awaitable[ModelResponse]]) -> ModelResponse:
            return cut

    worker = WorkerEntry(name="w", model=scripted(says("never sent")), on_cut_off="error")
    with pytest.raises(AnswerCutOff):
        await Runtime([worker], executor=Stored()).call("w", "go")


async def test_metadata_of_tools_is_no_part_of_a_request() -> None:
    """No model is sent it, and it may be of any kind."""

    async def look() -> ToolReturn[str]:
        return ToolReturn("seen", metadata={"of": object()})

    digests: list[list[str]] = []
    for number in range(2):
        tool = ToolEntry(tool=Tool(look, metadata={"run": number, "of": object()}))
        memory = Memory()
        worker = WorkerEntry(name="w", tools=[tool], model=scripted(calls(("look", {})), says("done")))
        await Runtime([worker], executor=memory).call("w", "go")
        digests.append(memory.sent)
    assert digests[0] == digests[1] and len(digests[0]) == 2


async def test_a_request_that_failed_is_recalled_as_one() -> None:
    """Its error is the answer to it, from which a `FallbackModel` goes on as it did; the record is that of the run."""

    class Errors(Memory):
        def __init__(self) -> None:
            super().__init__()
            self.errors: dict[tuple[str | None, int, str], Exception] = {}

        async def request(self, request: PendingRequest, send: Callable[[], Awaitable[ModelResponse]]) -> ModelResponse:
            place = request.call.key, request.number, request.digest
            if place in self.errors:
                raise self.errors[place]
            try:
                return await super().request(request, send)
            except Exception as exc:
                self.errors[place] = exc
                raise

    def busy(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
        raise ModelHTTPError(503, "busy")

    @entry
    def look() -> str:
        return "tea"

    memory, runs = Errors(), []
    memory.recalls = False
    for _ in range(2):
        memory.forget_sent()
        events: list[Event] = []
        model = FallbackModel(FunctionModel(busy), scripted(calls(("look", {})), says("fine")))
        worker = WorkerEntry(name="w", tools=[look], model=model)
        runtime = Runtime([worker], executor=memory, message_callback=events.append)
        assert await runtime.call("w", "go") == "fine"
        runs.append(
            [
                (e.type, e.number, getattr(e, "error", None))
                for e in events
                if isinstance(e, RequestStarted | RequestEnded)
            ]
        )
        assert fold(events).meter.by_model == runtime.usage
    assert memory.sent == [] and len(runs[0]) == 8
    assert runs[0] == runs[1]


async def test_a_recalled_refusal_is_no_rule_of_this_run() -> None:
    @entry
    def pay(amount: int) -> None:
        raise AssertionError

    async def recall(call: CallFrame) -> Recalled:
        return Recalled(error=ApprovalDenied("pay was refused"), digest=call.digest)

    executor, events = Executor(), list[Event]()
    executor.recall = recall  # type: ignore[method-assign]
    runtime = Runtime([pay], executor=executor, message_callback=events.append)
    with pytest.raises(ApprovalDenied):
        await runtime.call("pay", 1)
    assert [event.type for event in events] == ["call_opened", "call_closed"]
    assert runtime.trace[0].state == "refused" and runtime.trace[0].approval is None


async def test_a_stored_answer_is_for_the_files_that_it_was_about(tmp_path: Path) -> None:
    """Binary ones, too, whose contents no person is shown."""
    memory = Memory()
    memory.recalls = False
    (tmp_path / "out").mkdir()
    for content in (b"\x89PNG one", b"\x89PNG the only copy"):
        (tmp_path / "out" / "a.png").write_bytes(content)
        worker = WorkerEntry(
            name="w",
            base=tmp_path,
            tools=FILE_TOOLS,
            sandbox=SandboxConfig(paths={"output": RootConfig(root="out", mode="rw")}),
            model=scripted(calls(("delete_file", {"path": "output/a.png"})), says("done")),
        )
        await Runtime([worker], executor=memory, approval_callback=approve_all_callback).call("w", "go")
        assert not (tmp_path / "out" / "a.png").exists()
    assert memory.asked == ["sandbox.write", "sandbox.write"]


async def test_no_text_is_told_to_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[Any] = []
    monkeypatch.setattr(EventStream, "emit", lambda self, kind, *args, **fields: made.append(kind))
    assert await Runtime(text_deltas=True).call(WorkerEntry(name="w", model=scripted(says("a b c"))), "go")
    assert made == []
