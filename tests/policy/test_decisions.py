"""What a person who is asked can say: once, for the session, for a folder, otherwise, no, and no more."""

import asyncio
import gc
import weakref
from pathlib import Path
from typing import Any

import pytest
from pydantic_ai import FunctionToolset, RunContext, Tool
from pydantic_ai.exceptions import ModelRetry

from llm_do import (
    FILE_TOOLS,
    ApprovalDecision,
    ApprovalDenied,
    ApprovalRequest,
    CallCancelled,
    Context,
    RootConfig,
    RunEnded,
    Runtime,
    SandboxConfig,
    ToolEntry,
    WorkerEntry,
    approve_all_callback,
    entry,
)
from llm_do.policy.rules import Grant, Places

from ..scripted import calls, says, scripted

YES = ApprovalDecision(approved=True)


class Person:
    """Says what it was told to say, and remembers what it was asked."""

    def __init__(self, *answers: Any) -> None:
        self.answers = list(answers)
        self.asked: list[ApprovalRequest] = []

    def ask(self, request: ApprovalRequest) -> ApprovalDecision:
        self.asked.append(request)
        answer = self.answers.pop(0) if self.answers else ApprovalDecision(approved=False, note="asked too often")
        decision: ApprovalDecision = answer(request) if callable(answer) else answer
        return decision


def folder_of(request: ApprovalRequest) -> ApprovalDecision:
    return ApprovalDecision(approved=True, grant=request.offers[0])


def writer(tmp_path: Path, *paths: str, **options: Any) -> WorkerEntry[str]:
    steps = [calls(("write_file", {"path": path, "content": "x"})) for path in paths]
    return WorkerEntry(
        name="writer",
        sandbox=SandboxConfig(paths={"out": RootConfig(root=str(tmp_path / "out"), mode="rw")}),
        tools=[*FILE_TOOLS],
        model=scripted(*steps, says("done")),
        **options,
    )


def written(tmp_path: Path) -> list[str]:
    return sorted(str(path.relative_to(tmp_path / "out")) for path in (tmp_path / "out").rglob("*") if path.is_file())


# -- the request ---------------------------------------------------------------------------------------


async def test_a_request_says_who_wants_what_and_which_rule_asks(tmp_path: Path) -> None:
    person = Person(YES)
    rules = {"sandbox.write": {"rule": "ask", "when": {"path": "out/**"}, "reason": "it is read by others"}}
    await Runtime(approval_callback=person).call(writer(tmp_path, "out/a/b.txt", tool_rules=rules), "go")
    (request,) = person.asked
    assert (request.tool_name, request.entry, request.worker) == ("sandbox.write", "write_file", "writer")
    assert request.call_path == "writer > write_file"
    assert request.payload == {"path": "out/a/b.txt", "content": "x"}
    assert request.ruling is not None
    assert request.ruling.because == "worker 'writer' says sandbox.write: ask when path: \"out/**\""
    assert [offer.text for offer in request.offers] == ["sandbox.write with path out/a/*"]
    assert request.text() == (
        "write_file (sandbox.write)\n"
        "  call path: writer > write_file\n"
        "  rule: worker 'writer' says sandbox.write: ask when path: \"out/**\"\n"
        "  reason: it is read by others\n"
        "  path: out/a/b.txt\n"
        "  content: x"
    )


async def test_what_a_model_says_cannot_hide_in_a_request() -> None:
    @entry(requires_approval=True)
    async def send(to: str) -> str:
        return "sent"

    hostile = "good\x1b[2K\rbad\u202egnp.exe\u200b" + "x" * 5000
    person = Person(YES)
    await Runtime([send], approval_callback=person).call("send", hostile)
    text = person.asked[0].text()
    assert all(char.isprintable() or char == "\n" for char in text)
    assert len(text) < 3000
    assert "\\x1b" in text
    assert "\\u202e" in text
    full = person.asked[0].text(full=True)
    assert full.count("x") > 5000


# -- grants --------------------------------------------------------------------------------------------------


async def test_a_grant_for_a_folder_covers_the_folder_and_nothing_else(tmp_path: Path) -> None:
    person = Person(folder_of)
    worker = writer(tmp_path, "out/a/1", "out/a/2", "out/a/deeper/3", "out/4", "out/a/../5")
    runtime = Runtime(approval_callback=person)
    await runtime.call(worker, "go")
    assert written(tmp_path) == ["a/1", "a/2"]
    assert [request.payload["path"] for request in person.asked] == ["out/a/1", "out/a/deeper/3", "out/4"]
    outcomes = [record.approval for record in runtime.trace if record.approval is not None]
    assert [(outcome.by, outcome.grant) for outcome in outcomes[:2]] == [
        ("callback", "sandbox.write with path out/a/*"),
        ("grant", "sandbox.write with path out/a/*"),
    ]


async def test_a_grant_does_not_cross_to_another_worker_tool_or_generated_path(tmp_path: Path) -> None:
    one = writer(tmp_path, "out/a/1")
    other = writer(tmp_path, "out/a/2")
    generated = writer(tmp_path, "out/a/3", generated=True)
    person = Person(folder_of)
    runtime = Runtime(approval_callback=person)
    for worker in (one, other, generated):
        await runtime.call(worker, "go")
    assert written(tmp_path) == ["a/1"]
    assert len(person.asked) == 3


async def test_only_what_was_offered_can_be_granted(tmp_path: Path) -> None:
    everything = Grant("sandbox.write", {"path": "/**"}, Places())
    person = Person(ApprovalDecision(approved=True, grant=everything))
    runtime = Runtime(approval_callback=person)
    await runtime.call(writer(tmp_path, "out/a"), "go")
    assert not written(tmp_path)
    refused = [record.approval for record in runtime.trace if record.approval is not None]
    assert [outcome.by for outcome in refused] == ["error"]


async def test_a_grant_says_nothing_about_a_deny(tmp_path: Path) -> None:
    rules = {"sandbox.write": {"rule": "deny", "when": {"path": "out/a/no"}}}
    person = Person(folder_of)
    await Runtime(approval_callback=person).call(writer(tmp_path, "out/a/1", "out/a/no", tool_rules=rules), "go")
    assert written(tmp_path) == ["a/1"]


# -- edited arguments ------------------------------------------------------------------------------------------


class Bank:
    def __init__(self, **options: Any) -> None:
        self.paid: list[tuple[int, str]] = []

        @entry(requires_approval=True, **options)
        async def pay(amount: int, to: str = "bob") -> str:
            self.paid.append((amount, to))
            return f"paid {amount} to {to}"

        self.pay = pay


def instead(**arguments: Any) -> ApprovalDecision:
    return ApprovalDecision(approved=True, arguments=arguments)


async def test_edited_arguments_run_and_are_what_the_trace_shows() -> None:
    bank = Bank()
    runtime = Runtime([bank.pay], approval_callback=Person(instead(amount="5")))
    assert await runtime.call("pay", 500) == "paid 5 to bob"
    record = runtime.trace[0]
    assert record.input_data["amount"] == 5
    assert record.approval is not None
    assert (record.approval.approved, record.approval.edited) == (True, True)


@pytest.mark.parametrize(
    "edited", [{}, {"amount": "many"}, {"amount": 5, "extra": 1}, {"amount": 5, "to": "eve"}, {"amount": 10**9}]
)
async def test_edited_arguments_are_validated_and_judged_again(edited: dict[str, Any]) -> None:
    bank = Bank()
    rules = {"pay": [{"rule": "deny", "when": {"to": "eve"}}, {"rule": "deny", "when": {"amount": {"over": 1000}}}]}
    runtime = Runtime([bank.pay], approval_callback=Person(instead(**edited)), tool_rules=rules)
    with pytest.raises(ApprovalDenied):
        await runtime.call("pay", 500)
    assert not bank.paid
    assert runtime.trace[0].approval is not None
    assert not runtime.trace[0].approval.approved


async def test_edited_arguments_pass_the_tools_own_check() -> None:
    async def check(ctx: RunContext[Context], amount: int) -> None:
        if amount % 2:
            raise ModelRetry("odd amounts are not paid")

    paid: list[int] = []

    async def pay(amount: int) -> str:
        paid.append(amount)
        return "paid"

    tool = ToolEntry(Tool(pay, args_validator=check), requires_approval=True)  # type: ignore[arg-type]
    runtime = Runtime([tool], approval_callback=Person(instead(amount=3), instead(amount=4)))
    with pytest.raises(ApprovalDenied, match="odd amounts"):
        await runtime.call("pay", 2)
    await runtime.call("pay", 2)
    assert paid == [4]


async def test_an_edit_is_no_grant_for_what_was_asked() -> None:
    bank = Bank()
    always = ApprovalDecision(approved=True, approve_for_session=True, arguments={"amount": 1})
    person = Person(always, ApprovalDecision(approved=False))
    runtime = Runtime([bank.pay], approval_callback=person)
    await runtime.call("pay", 500)
    with pytest.raises(ApprovalDenied):
        await runtime.call("pay", 500)
    assert bank.paid == [(1, "bob")]


async def test_a_model_gets_the_result_of_what_really_ran() -> None:
    bank = Bank()
    worker = WorkerEntry(name="w", tools=[bank.pay], model=scripted(calls(("pay", {"amount": 500})), says("ok")))
    runtime = Runtime(approval_callback=Person(instead(amount=7, to="carol")))
    await runtime.call(worker, "go")
    assert bank.paid == [(7, "carol")]
    assert "paid 7 to carol" in str(runtime.messages)


# -- the end of a run ------------------------------------------------------------------------------------------

STOP = ApprovalDecision(approved=False, note="enough", end_run=True)


async def test_ending_the_run_reaches_the_caller_and_no_model() -> None:
    bank = Bank()
    requests: list[int] = []

    def model() -> Any:
        def step(messages: Any, info: Any) -> Any:
            requests.append(1)
            return calls(("pay", {"amount": 1}))

        return scripted(step)

    inner = WorkerEntry(name="inner", tools=[bank.pay], model=model())
    outer = WorkerEntry(name="outer", tools=[inner], model=scripted(calls(("inner", {"input": "x"}))))
    runtime = Runtime([outer], approval_callback=Person(STOP))
    with pytest.raises(RunEnded, match="outer > inner > pay was refused: enough. The run was ended") as caught:
        await runtime.call("outer", "go")
    assert caught.value.note == "enough"
    assert len(requests) == 1
    assert not bank.paid


async def test_the_end_of_a_run_is_its_error_though_other_calls_stop_beside_it() -> None:
    """PydanticAI raises the error of any of the calls of a response, whichever it finds first in a set."""
    ends = set()
    for _ in range(30):
        bank = Bank()
        model = scripted(calls(("pay", {"amount": 1}), ("pay", {"amount": 2})))
        runtime = Runtime([WorkerEntry(name="w", tools=[bank.pay], model=model)], approval_callback=Person(STOP))
        with pytest.raises(RunEnded, match="w > pay was refused: enough") as caught:
            await runtime.call("w", "go")
        assert caught.value.note == "enough"
        ends.add((runtime.trace[0].error_type, runtime.trace[0].state))
    assert ends == {("RunEnded", "failed")}


async def test_the_caller_of_code_that_goes_on_after_the_end_gets_it() -> None:
    bank = Bank()

    @entry
    async def stubborn(ctx: RunContext[Context]) -> None:
        try:
            await ctx.deps.call(bank.pay, 1)
        except PermissionError:
            await ctx.deps.call(bank.pay, 2)

    runtime = Runtime([stubborn], approval_callback=Person(STOP))
    with pytest.raises(RunEnded, match="stubborn > pay was refused: enough. The run was ended"):
        await runtime.call("stubborn")
    assert [record.error_type for record in runtime.trace] == ["RunEnded", "RunEnded", "CallCancelled"]


async def test_an_ended_run_keeps_nothing_of_its_callers() -> None:
    class Large:
        pass

    bank, kept = Bank(), list[Any]()
    runtime = Runtime([bank.pay], approval_callback=Person(STOP))

    async def request() -> None:
        large = Large()
        kept.append(weakref.ref(large))
        with pytest.raises(RunEnded):
            await runtime.call(bank.pay, 1)

    await request()
    gc.collect()
    assert kept[0]() is None


async def test_the_end_of_a_run_while_toolsets_open_ends_no_other_one() -> None:
    bank = Bank()

    async def connect(ctx: Context) -> FunctionToolset[Any]:
        await ctx.call(bank.pay, 1)
        return FunctionToolset()

    worker = WorkerEntry(name="w", toolsets=[connect], model=scripted(says("ok")))
    runtime = Runtime([worker], approval_callback=Person(STOP, YES))
    with pytest.raises(RunEnded):
        await worker.start(runtime).open()
    async with worker.start(runtime) as scope:
        assert await scope.run_turn("hello") == "ok"


async def test_nobody_who_catches_the_end_can_go_on() -> None:
    bank = Bank()
    caught: list[str] = []

    @entry
    async def stubborn(ctx: RunContext[Context]) -> str:
        for _ in range(3):
            try:
                await ctx.deps.call(bank.pay, 1)
            except (RunEnded, CallCancelled) as exc:
                caught.append(type(exc).__name__)
        return "done"

    person = Person(STOP, YES, YES)
    runtime = Runtime([stubborn], approval_callback=person)
    await runtime.call("stubborn")
    assert caught == ["RunEnded", "CallCancelled", "CallCancelled"]
    assert not bank.paid
    # Another call from the top is another run.
    assert await runtime.call(bank.pay, 1) == "paid 1 to bob"


async def test_a_chat_goes_on_after_a_turn_that_was_ended() -> None:
    bank = Bank()
    model = scripted(calls(("pay", {"amount": 1})), calls(("pay", {"amount": 2})), says("paid"))
    worker = WorkerEntry(name="w", tools=[bank.pay], model=model)
    async with worker.start(Runtime(approval_callback=Person(STOP, YES))) as scope:
        with pytest.raises(RunEnded):
            await scope.run_turn("pay")
        assert await scope.run_turn("pay then") == "paid"
    assert bank.paid == [(2, "bob")]


# -- what is no decision ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "fields",
    [
        {"approved": "no"},
        {"approved": True, "end_run": True},
        {"approved": False, "arguments": {}},
        {"approved": False, "approve_for_session": True},
        {"approved": False, "end_run": 1},
    ],
)
def test_a_decision_that_contradicts_itself(fields: dict[str, Any]) -> None:
    with pytest.raises((TypeError, ValueError), match="ApprovalDecision"):
        ApprovalDecision(**fields)


class Uncopied(list[str]):
    """A list that cannot be copied, so that its owner can still change it."""

    def __deepcopy__(self, memo: Any) -> Any:
        raise TypeError

    __copy__ = __deepcopy__
    __reduce_ex__ = __deepcopy__  # type: ignore[assignment]


@pytest.mark.parametrize("kind", [list, Uncopied])
async def test_arguments_that_change_while_somebody_is_asked(kind: type[list[str]]) -> None:
    """Whatever runs is what was shown: a copy, or nothing."""
    seen: list[str] = []

    @entry(requires_approval=True)
    async def send(what: Any) -> str:
        seen.extend(what)
        return "sent"

    words = kind(["harmless"])

    async def slow(tool_name: str, payload: dict[str, Any], reason: str) -> ApprovalDecision:
        words[0] = "evil"
        await asyncio.sleep(0)
        return YES

    runtime = Runtime([send], approval_callback=slow)
    if kind is list:
        await runtime.call("send", words)
        assert seen == ["harmless"]
    else:
        with pytest.raises(ApprovalDenied, match="changed while it was asked"):
            await runtime.call("send", words)
        assert not seen


# -- effects ---------------------------------------------------------------------------------------------------


async def test_the_default_follows_from_declared_effects() -> None:
    @entry(effects=["read"])
    async def peek() -> str:
        return "ok"

    @entry(effects=["read", "network"])
    async def fetch() -> str:
        return "ok"

    @entry(effects=["write"])
    async def save() -> str:
        return "ok"

    @entry
    async def delete_everything_on_the_network() -> str:
        return "ok"

    entries = [peek, fetch, save, delete_everything_on_the_network]
    runtime = Runtime(entries)
    asks = [each.name for each in entries if runtime.why(each).disposition == "ask"]
    assert asks == ["fetch", "save"]
    with pytest.raises(ApprovalDenied):
        await runtime.call("fetch")
    assert await Runtime(entries, approval_callback=approve_all_callback).call("fetch") == "ok"
    assert await Runtime(entries, tool_rules={"fetch": "allow"}).call("fetch") == "ok"
    with pytest.raises(ValueError, match="no effect 'wirte'"):
        entry(name="x", effects=["wirte"])(lambda: None)  # type: ignore[list-item]
