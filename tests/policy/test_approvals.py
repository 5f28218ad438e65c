"""Approvals hold whoever calls, at any depth, on exactly what runs."""

import asyncio
import threading
from collections import OrderedDict, defaultdict, deque
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta, timezone
from decimal import Decimal
from enum import Enum, IntFlag
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel, PrivateAttr, RootModel
from pydantic_ai import RunContext
from pydantic_ai.exceptions import ApprovalRequired
from pydantic_ai.messages import ModelMessage, ModelResponse, ToolReturnPart
from pydantic_ai.models.function import AgentInfo

from llm_do import (
    ApprovalDecision,
    ApprovalDenied,
    ApprovalOutcome,
    Context,
    Runtime,
    WorkerEntry,
    approve_all_callback,
    entry,
    strict_mode_callback,
)
from llm_do.values.canonical import NoCanonicalForm, canonical

from ..scripted import calls, says, scripted


class Door:
    """An entry that needs approval, and what went through it."""

    def __init__(self) -> None:
        self.opened: list[Any] = []

        @entry(requires_approval=True)
        async def open_door(number: Any = 1) -> str:
            self.opened.append(number)
            return f"opened {number}"

        self.entry = open_door


class Guard:
    """A callback that remembers what it was asked."""

    def __init__(self, *decisions: ApprovalDecision) -> None:
        self.decisions = decisions
        self.asked: list[tuple[str, dict[str, Any], str]] = []

    def __call__(self, tool_name: str, payload: dict[str, Any], reason: str) -> ApprovalDecision:
        self.asked.append((tool_name, payload, reason))
        return self.decisions[min(len(self.asked), len(self.decisions)) - 1]


YES = ApprovalDecision(approved=True)
ALWAYS = ApprovalDecision(approved=True, approve_for_session=True)
NO = ApprovalDecision(approved=False, note="the paint is wet")


async def test_python_is_refused_with_an_exception() -> None:
    door, guard = Door(), Guard(NO)
    runtime = Runtime([door.entry], approval_callback=guard)
    with pytest.raises(PermissionError) as caught:
        await runtime.call("open_door", 2)
    assert isinstance(caught.value, ApprovalDenied)
    assert str(caught.value) == "open_door was refused: the paint is wet."
    assert caught.value.note == "the paint is wet"
    assert guard.asked == [("open_door", {"number": 2}, "tool 'open_door' requires approval; call path: open_door")]
    assert not door.opened
    rule = "tool 'open_door' requires approval"
    expected = ApprovalOutcome(approved=False, by="callback", note="the paint is wet", rule=rule)
    assert runtime.trace[0].approval == expected
    assert runtime.trace[0].error == "ApprovalDenied: open_door was refused: the paint is wet."


async def test_a_model_is_refused_with_a_denied_result_and_goes_on() -> None:
    door = Door()
    seen: list[ToolReturnPart] = []

    def look(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
        seen.extend(part for part in messages[-1].parts if isinstance(part, ToolReturnPart))
        return says("I could not.")

    runtime = Runtime(model=scripted(calls(("open_door", {"number": 2})), look), approval_callback=Guard(NO))
    assert await runtime.call(WorkerEntry(name="w", tools=[door.entry]), "go") == "I could not."
    assert (seen[0].outcome, seen[0].content) == ("denied", "w > open_door was refused: the paint is wet.")
    assert not door.opened


async def test_a_refusal_that_escapes_a_tool_is_a_denied_result_of_that_tool() -> None:
    door = Door()
    seen: list[ToolReturnPart] = []

    @entry
    async def helper(ctx: RunContext[Context]) -> str:
        return await ctx.deps.call(door.entry)

    def look(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
        seen.extend(part for part in messages[-1].parts if isinstance(part, ToolReturnPart))
        return says("ok")

    runtime = Runtime(model=scripted(calls(("helper", {})), look))
    assert await runtime.call(WorkerEntry(name="w", tools=[helper]), "go") == "ok"
    assert (seen[0].tool_name, seen[0].outcome) == ("helper", "denied")
    assert "w > helper > open_door was refused" in str(seen[0].content)


async def test_approvals_hold_at_every_depth_and_for_workers() -> None:
    """Nested workers ask through the same callback; a refused worker asks no model."""
    door, guard = Door(), Guard(YES, YES, NO)
    inner = WorkerEntry(
        name="inner", tools=[door.entry], requires_approval=True, model=scripted(calls(("open_door", {})), says("in"))
    )
    outer = WorkerEntry(name="outer", tools=[inner], model=scripted(calls(("inner", {"input": "x"})), says("out")))
    runtime = Runtime([outer, inner], approval_callback=guard)
    assert await runtime.call("outer", "go") == "out"
    assert [name for name, _, _ in guard.asked] == ["inner", "open_door"]
    assert guard.asked[1][2].endswith("call path: outer > inner > open_door")
    before = dict(runtime.usage)
    with pytest.raises(ApprovalDenied):
        await runtime.call("inner", "go")
    assert runtime.usage == before


async def test_nobody_to_ask_is_a_refusal_that_says_so() -> None:
    door = Door()
    runtime = Runtime([door.entry])
    with pytest.raises(ApprovalDenied, match="nobody can be asked: there is no approval_callback"):
        await runtime.call("open_door")
    assert runtime.trace[0].approval is not None
    assert runtime.trace[0].approval.by == "nobody"
    assert not door.opened


async def test_ready_made_callbacks() -> None:
    door = Door()
    assert await Runtime(approval_callback=approve_all_callback).call(door.entry) == "opened 1"
    with pytest.raises(ApprovalDenied, match="strict mode"):
        await Runtime(approval_callback=strict_mode_callback).call(door.entry)


def _raise(*args: Any) -> Any:
    raise RuntimeError("window closed")


async def _raise_later(*args: Any) -> Any:
    raise RuntimeError("window closed")


@pytest.mark.parametrize(
    "callback",
    [
        _raise,
        _raise_later,
        lambda *args: None,
        lambda *args: True,
        lambda *args: "yes",
        lambda *args: {"approved": True},
        lambda *args: ApprovalDecision(approved="no"),  # type: ignore[arg-type]
        lambda *args: ApprovalDecision(approved=1),  # type: ignore[arg-type]
        lambda: YES,
    ],
)
async def test_a_callback_that_fails_or_answers_nonsense_refuses(callback: Any) -> None:
    door = Door()
    runtime = Runtime([door.entry], approval_callback=callback)
    with pytest.raises(ApprovalDenied, match="the approval callback"):
        await runtime.call("open_door")
    assert not door.opened
    assert runtime.trace[0].approval is not None
    assert runtime.trace[0].approval.by == "error"


async def test_a_callback_cannot_change_what_runs_and_neither_can_anybody_else() -> None:
    """The payload is a copy, and what runs was out of reach while the person was thinking."""
    door = Door()
    mine = {"target": "cat", "list": [1]}

    async def meddle(tool_name: str, payload: dict[str, Any], reason: str) -> ApprovalDecision:
        payload["number"]["target"] = "payload"
        payload["number"]["list"].append(2)
        mine["target"] = "caller"
        mine["list"].append(3)  # type: ignore[attr-defined]
        return YES

    runtime = Runtime([door.entry], approval_callback=meddle)
    await runtime.call("open_door", number=mine)
    assert door.opened == [{"target": "cat", "list": [1]}]
    assert runtime.trace[0].input_data == {"number": {"target": "cat", "list": [1]}}


async def test_approve_for_session_is_asked_once_for_the_same_arguments_only() -> None:
    door, guard = Door(), Guard(ALWAYS)
    runtime = Runtime([door.entry], approval_callback=guard)
    for number in (1, 1, 1.0, True, "1", 1, [1], (1,), {"a": 1}, {"a": 1}):
        await runtime.call("open_door", number=number)
    assert [payload["number"] for _, payload, _ in guard.asked] == [1, 1.0, True, "1", [1], (1,), {"a": 1}]
    assert [type(payload["number"]) for _, payload, _ in guard.asked] == [int, float, bool, str, list, tuple, dict]
    assert [t.approval.by for t in runtime.trace if t.approval][:3] == ["callback", "grant", "callback"]


async def test_a_grant_belongs_to_one_worker_and_one_entry() -> None:
    """Equal names and equal arguments are not enough."""
    door, twin, guard = Door(), Door(), Guard(ALWAYS)
    step = calls(("open_door", {"number": 1}))

    def model() -> Any:
        return scripted(step, says("ok"))

    a = WorkerEntry(name="a", tools=[door.entry], model=model())
    b = WorkerEntry(name="b", tools=[door.entry], model=model())
    runtime = Runtime([a, b], approval_callback=guard)
    await runtime.call("a", "x")
    await runtime.call("b", "x")
    await runtime.call(door.entry, 1)
    await runtime.call(twin.entry, 1)
    assert len(guard.asked) == 4
    await runtime.call(door.entry, 1)
    assert len(guard.asked) == 4


async def test_a_grant_for_a_foreign_tool_survives_the_toolsets_instances() -> None:
    from pydantic_ai.toolsets import AbstractToolset, FunctionToolset

    def factory(ctx: Context) -> AbstractToolset[Any]:
        toolset: FunctionToolset[Any] = FunctionToolset()
        toolset.add_function(lambda: "sent", name="send", requires_approval=True)
        return toolset

    guard = Guard(ALWAYS)
    worker = WorkerEntry(name="w", toolsets=[factory])
    runtime = Runtime(model=scripted(*[calls(("send", {})), says("ok")] * 3), approval_callback=guard)
    for _ in range(3):
        await runtime.call(worker, "x")
    assert len(guard.asked) == 1


async def test_arguments_without_a_canonical_form_are_never_granted_for_the_session() -> None:
    door, guard = Door(), Guard(ALWAYS)
    runtime = Runtime([door.entry], approval_callback=guard)
    connection = object()
    for _ in range(3):
        await runtime.call("open_door", number=connection)
    assert len(guard.asked) == 3


class Color(Enum):
    RED = "red"


@dataclass
class Point:
    x: int


class Model(BaseModel):
    x: Any


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text() | st.binary(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner) | st.builds(tuple, st.lists(inner)),
    max_leaves=8,
)


def same(one: Any, other: Any) -> bool:
    """Equality that does not take 1 for True."""
    if type(one) is not type(other):
        return False
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(same(one[key], other[key]) for key in one)
    if isinstance(one, list | tuple):
        return len(one) == len(other) and all(map(same, one, other))
    return repr(one) == repr(other)


@given(VALUES, VALUES)
def test_canonical_keys_are_equal_exactly_for_equal_values(one: Any, other: Any) -> None:
    assert (canonical(one) == canonical(other)) is same(one, other)


def test_canonical_forms_of_objects() -> None:
    distinct = [
        1,
        1.0,
        True,
        "1",
        b"1",
        Color.RED,
        "red",
        Point(1),
        Model(x=1),
        Model(x=True),
        Path("a"),
        "a",
        (1,),
        {1},
    ]
    assert len({canonical(value) for value in distinct}) == len(distinct)
    assert canonical({"a": 1, "b": 2}) == canonical({"b": 2, "a": 1})
    for value in (object(), [lambda: None], open):
        with pytest.raises(NoCanonicalForm):
            canonical(value)


# -- what only looks equal, or only looks copied ---------------------------------------------------------


class Perm(IntFlag):
    READ = 1


class Commands(RootModel[list[tuple[str, str]]]):
    def __iter__(self) -> Any:  # as the documentation of pydantic suggests
        return iter(self.root)


class Secretive(BaseModel):
    name: str
    _hidden: str = PrivateAttr("safe")


def test_keys_of_values_that_only_look_equal() -> None:
    different = [
        Perm(8),
        Perm(16),
        Commands([("cmd", "rm"), ("cmd", "ls")]),
        Commands([("cmd", "ls")]),
        Decimal(1),
        Decimal("1.00"),
        datetime(2026, 1, 1, 12, tzinfo=UTC),
        datetime(2026, 1, 1, 13, tzinfo=timezone(timedelta(hours=1))),
        0.0,
        -0.0,
    ]
    assert len({canonical(value) for value in different}) == len(different)
    point = Point(1)
    point.label = "more than its fields"  # type: ignore[attr-defined]
    endless: list[Any] = []
    endless.append(endless)
    for value in (Secretive(name="x"), point, endless):
        with pytest.raises(NoCanonicalForm):
            canonical(value)


class Pair(NamedTuple):
    items: list[str]


class Locked(BaseModel):
    model_config = {"arbitrary_types_allowed": True}
    lock: Any
    items: list[str]


@pytest.mark.parametrize(
    ("value", "meddle"),
    [
        (deque(["a"]), lambda v: v.append("rm -rf")),
        (OrderedDict(a=1), lambda v: v.update(b=2)),
        (defaultdict(list, a=[1]), lambda v: v["a"].append(2)),
        (bytearray(b"a"), lambda v: v.extend(b"b")),
        (Pair(["a"]), lambda v: v.items.append("b")),
        (Locked(lock=threading.Lock(), items=["a"]), lambda v: v.items.append("b")),
    ],
    ids=lambda value: type(value).__name__,
)
async def test_whatever_holds_values_is_copied_before_somebody_is_asked(value: Any, meddle: Any) -> None:
    door = Door()
    shown = repr(value)

    def callback(tool_name: str, payload: dict[str, Any], reason: str) -> ApprovalDecision:
        meddle(payload["number"])
        meddle(value)
        return YES

    runtime = Runtime([door.entry], approval_callback=callback)
    await runtime.call("open_door", number=value)
    assert repr(door.opened[0]) == shown
    assert repr(runtime.trace[0].input_data["number"]) == shown


async def test_an_attribute_of_ones_own_entry_means_nothing_to_approvals() -> None:
    """Two entries of one identity, or whatever their author called it, share no grant."""
    ran: list[str] = []

    class Mine:
        kind = "tool"
        requires_approval = True
        model = None
        identity = "user-1"
        proxy = "http://proxy.example"
        check_arguments = "yes"
        own_entries = 3
        source = None
        parameters = "none"

        def __init__(self, name: str) -> None:
            self.name = name

        async def call(self, input_data: Any, ctx: Context, run_ctx: RunContext[Context]) -> str:
            ran.append(self.name)
            return self.name

    guard = Guard(ALWAYS, NO)
    read, wipe = Mine("read"), Mine("wipe")
    runtime = Runtime([read, wipe], approval_callback=guard, model=scripted(calls(("read", {"input": "x"})), says("k")))
    await runtime.call("read")
    with pytest.raises(ApprovalDenied):
        await runtime.call("wipe")
    assert ran == ["read"]
    assert await runtime.call(WorkerEntry(name="w", tools=[read]), "go") == "k"


async def test_data_that_contains_itself_is_asked_about() -> None:
    door, guard = Door(), Guard(ALWAYS)
    endless: list[Any] = []
    endless.append(endless)
    runtime = Runtime([door.entry], approval_callback=guard)
    await runtime.call("open_door", number=endless)
    await runtime.call("open_door", number=endless)
    assert len(guard.asked) == 2


async def test_sinks_hear_that_somebody_is_asked_only_when_somebody_is() -> None:
    door = Door()
    heard: list[str] = []
    runtime = Runtime([door.entry], approval_callback=Guard(ALWAYS), message_callback=lambda e: heard.append(e.type))
    await runtime.call("open_door", 1)
    assert "approval_requested" in heard
    heard.clear()
    await runtime.call("open_door", 1)
    assert heard == ["call_opened", "approval_decided", "call_started", "call_closed"]
    heard.clear()
    lonely = Runtime([door.entry], message_callback=lambda e: heard.append(e.type))
    with pytest.raises(ApprovalDenied):
        await lonely.call("open_door", 1)
    assert heard == ["call_opened", "approval_decided", "call_closed"]


async def test_any_entry_may_ask_from_within() -> None:
    """With the arguments as they were given, whatever the first attempt did to them."""
    guard = Guard(YES)
    ran: list[Any] = []

    class Mine:
        name = "mine"
        kind = "tool"
        requires_approval = False
        model = None

        async def call(self, input_data: Any, ctx: Context, run_ctx: RunContext[Context]) -> str:
            if not run_ctx.tool_call_approved:
                input_data["input"].append(99)
                raise ApprovalRequired
            ran.append(list(input_data["input"]))
            return "done"

    runtime = Runtime([Mine()], approval_callback=guard)
    assert await runtime.call("mine", [1]) == "done"
    assert guard.asked[0][1] == {"input": [1]}
    assert ran == [[1]]


async def test_a_call_that_asked_from_within_and_was_denied_below_does_not_run_its_caller_again() -> None:
    effects: list[str] = []

    @entry
    async def insists() -> None:
        raise ApprovalRequired

    @entry
    async def outer(ctx: RunContext[Context]) -> None:
        effects.append("outer")
        await ctx.deps.call(insists)

    guard = Guard(YES)
    with pytest.raises(ApprovalRequired):
        await Runtime([outer], approval_callback=guard).call("outer")
    assert effects == ["outer"]
    assert [name for name, _, _ in guard.asked] == ["insists"]


async def test_a_callback_that_fails_silently_is_named() -> None:
    def end_of_file(*args: Any) -> ApprovalDecision:
        raise EOFError

    with pytest.raises(ApprovalDenied, match=r"the approval callback failed: EOFError\.$"):
        await Runtime(approval_callback=end_of_file).call(Door().entry)


async def test_a_callback_that_is_cancelled_by_itself_refuses() -> None:
    async def gives_up(tool_name: str, payload: dict[str, Any], reason: str) -> ApprovalDecision:
        future: asyncio.Future[ApprovalDecision] = asyncio.get_running_loop().create_future()
        future.cancel()
        return await future

    door = Door()
    with pytest.raises(ApprovalDenied, match="CancelledError"):
        await Runtime(approval_callback=gives_up).call(door.entry)
    assert not door.opened
