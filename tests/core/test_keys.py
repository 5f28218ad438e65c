"""Keys of calls: equal for the same call of another run, and unlike those of all others."""

import asyncio
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime, time, timedelta, tzinfo
from enum import IntFlag
from typing import Annotated, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel
from pydantic_ai import Agent, BinaryContent, ModelRetry, RunContext, Tool

from llm_do import (
    ApprovalDecision,
    ArgumentError,
    CallClosed,
    CallOpened,
    CallRejected,
    Context,
    Event,
    Runtime,
    Secret,
    ToolEntry,
    WorkerEntry,
    entry,
)
from llm_do.core.definition_digest import definition_digest
from llm_do.values.canonical import NoCanonicalForm, canonical, digest

from ..scripted import calls, says, scripted


async def keys_of(*entries: Any, make: Any, **options: Any) -> list[str]:
    events = list[Event]()
    runtime = Runtime(entries, message_callback=events.append, **options)
    await make(runtime)
    return [str(event.key) for event in events if isinstance(event, CallOpened)]


@entry
def add(a: int, b: int = 0) -> int:
    return a + b


async def test_equal_calls_have_an_ordinal_and_others_have_none() -> None:
    async def make(runtime: Runtime) -> None:
        for a in (1, 1, 2, 1):
            await runtime.call("add", a)

    one, again, two, third = await keys_of(add, make=make)
    assert again == f"{one}#1" and third == f"{one}#2" and two.startswith("/add:") and "#" not in one + two
    assert await keys_of(add, make=make) == [one, again, two, third]


async def test_how_a_call_was_written_does_not_matter() -> None:
    async def make(runtime: Runtime) -> None:
        await runtime.call("add", 1, 0)
        await runtime.call("add", b=0, a=1)
        await runtime.call("add", {"a": 1})

    one, two, three = await keys_of(add, make=make)
    assert (two, three) == (f"{one}#1", f"{one}#2")


async def test_calls_of_a_model_have_their_request_and_position() -> None:
    """Also where a response repeats a call. The ids of tool calls are no part of it: two responses have the same."""
    step = calls(("add", {"a": 1}), ("add", {"a": 1}), ("add", {"a": 2}))
    again = calls(("add", {"a": 1}))
    for response in (step, again):
        for number, part in enumerate(response.parts):
            part.tool_call_id = f"id{number}"  # type: ignore[union-attr]
    worker = WorkerEntry(name="w", tools=[add], model=scripted(step, again, says("done")))
    keys = await keys_of(worker, make=lambda runtime: runtime.call("w", "go"))
    top, *below = keys
    assert [key.removeprefix(f"{top}/add:").partition(":")[2] for key in below] == ["1.0", "1.1", "1.2", "2.0"]
    assert len(set(keys)) == 5


async def test_calls_keep_their_place_while_a_tool_runs_an_agent_with_the_same_model() -> None:
    @entry
    async def think(ctx: RunContext[Context]) -> str:
        agent = Agent(ctx.model)

        @agent.tool_plain
        def look() -> int:
            return 1

        return (await agent.run("think")).output

    after = ToolEntry(tool=Tool(add.tool.function, name="after", sequential=True))
    model = scripted(
        calls(("think", {}), ("after", {"a": 1}), ("after", {"a": "none"})),
        calls(("look", {})),
        says("seen"),
        says("done"),
    )
    events = list[Event]()
    worker = WorkerEntry(name="w", tools=[think, after], model=model)
    await Runtime([worker], message_callback=events.append).call("w", "go")
    keys = [str(event.key) for event in events if isinstance(event, CallOpened)]
    assert [key.rpartition(":")[2] for key in keys[1:]] == ["1.0", "1.1"]
    (rejected,) = [event for event in events if isinstance(event, CallRejected)]
    assert rejected.arguments == {"a": "none"}


async def test_an_edit_does_not_change_the_key() -> None:
    @entry(requires_approval=True)
    def pay(amount: int) -> int:
        return amount

    def edit(name: str, payload: dict[str, Any], reason: str) -> ApprovalDecision:
        return ApprovalDecision(approved=True, arguments={"amount": 1})

    def keep(name: str, payload: dict[str, Any], reason: str) -> ApprovalDecision:
        return ApprovalDecision(approved=True)

    async def make(runtime: Runtime) -> None:
        await runtime.call("pay", 5)

    assert await keys_of(pay, make=make, approval_callback=edit) == await keys_of(
        pay, make=make, approval_callback=keep
    )


async def test_an_edit_does_not_change_a_key_that_is_made_after_it() -> None:
    keys: list[str | None] = []

    @entry(requires_approval=True)
    async def pay(ctx: RunContext[Context], amount: int) -> None:
        _ = ctx.deps.idempotency_key
        keys.append(ctx.deps.frame.key)

    def edit(name: str, payload: dict[str, Any], reason: str) -> ApprovalDecision:
        return ApprovalDecision(approved=True, arguments={"amount": 1})

    await Runtime([pay], approval_callback=edit).call("pay", 5)
    await Runtime([pay], approval_callback=lambda *_: ApprovalDecision(approved=True)).call("pay", 5)
    assert keys[0] == keys[1]


@pytest.mark.parametrize("slower", [0, 1])
async def test_entries_of_one_name_keep_their_keys_whichever_is_faster(slower: int) -> None:
    """Else the memory of a run would give the answer of one to the other."""

    def worker_with(instructions: str) -> WorkerEntry[str]:
        return WorkerEntry(name="same", instructions=instructions, model=scripted(says(instructions)))

    one, other = worker_with("one"), worker_with("other")

    @entry
    async def both(ctx: RunContext[Context]) -> None:
        async def call(number: int, worker: WorkerEntry[str]) -> None:
            await asyncio.sleep(0.02 if number == slower else 0)
            await ctx.deps.call(worker, "go")

        await asyncio.gather(call(0, one), call(1, other))

    events = list[Event]()
    await Runtime([both], message_callback=events.append).call("both")
    keys = {event.output: event.key for event in events if isinstance(event, CallClosed) and event.name == "same"}
    assert "#" not in f"{keys}" and keys["one"] != keys["other"]
    assert all(f"~{definition_digest(worker).text}:" in str(keys[str(worker.instructions)]) for worker in (one, other))


async def test_the_files_of_a_call_are_part_of_its_key() -> None:
    """Else the answer about one file would be recalled for another."""
    worker = WorkerEntry(name="w", model=scripted(*[says("read")] * 3))

    async def make(runtime: Runtime) -> None:
        for data in (b"one", b"two", b"one"):
            await runtime.call("w", "go", attachments=[BinaryContent(data, media_type="text/plain")])

    one, two, again = await keys_of(worker, make=make)
    assert two.partition("#")[0] != one and again == f"{one}#1"


async def test_secrets_are_no_part_of_a_key(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fields that are declared secret, and configured values; not values that become known during the run."""

    @entry
    def login(user: str, token: Annotated[str, Secret]) -> str:
        return user

    @entry
    def note(text: str) -> str:
        return text

    async def make(runtime: Runtime) -> None:
        await runtime.call("note", "it is hunter22 and abc-123")
        await runtime.call("login", "ann", "hunter22")
        await runtime.call("note", "it is hunter22 and abc-123")
        await runtime.call("login", "ann", "another")

    monkeypatch.setenv("MY_KEY", "abc-123")
    first, login_key, second, other = await keys_of(login, note, make=make, secrets=["MY_KEY"])
    assert second == f"{first}#1" and other == f"{login_key}#1"
    monkeypatch.setenv("MY_KEY", "xyz-789")

    async def make_other(runtime: Runtime) -> None:
        await runtime.call("note", "it is hunter22 and xyz-789")

    assert await keys_of(login, note, make=make_other, secrets=["MY_KEY"]) == [first]


async def test_a_configured_secret_in_a_file_is_no_part_of_a_key(monkeypatch: pytest.MonkeyPatch) -> None:
    worker, keys = WorkerEntry(name="w", model=scripted(*[says("read")] * 3)), list[str]()
    for value, text in (("abc-123", "key=abc-123"), ("xyz-789", "key=xyz-789"), ("xyz-789", "key=none")):
        monkeypatch.setenv("MY_KEY", value)
        file = BinaryContent(text.encode(), media_type="text/plain")
        keys += await keys_of(
            worker, make=lambda runtime, file=file: runtime.call("w", "go", attachments=[file]), secrets=["MY_KEY"]
        )
    assert keys[0] == keys[1] != keys[2]


async def test_branches_tell_equal_calls_apart_in_any_order() -> None:
    async def run(delays: dict[str, int]) -> dict[str, str]:
        found: dict[str, str] = {}

        @entry
        async def leaf(ctx: RunContext[Context], x: int) -> str:
            return str(ctx.deps.frame.key)

        @entry
        async def glue(ctx: RunContext[Context]) -> None:
            async def branch(name: str) -> None:
                for _ in range(delays[name]):
                    await asyncio.sleep(0)
                found[name] = await ctx.deps.branch(name).call("leaf", 1)

            await asyncio.gather(branch("left"), branch("right"))

        await Runtime([glue, leaf], message_callback=lambda event: None).call("glue")
        return found

    assert await run({"left": 0, "right": 5}) == await run({"left": 5, "right": 0})
    names = await run({"left": 0, "right": 0})
    assert "/left~leaf:" in names["left"] and "/right~leaf:" in names["right"]
    with pytest.raises(ValueError, match="'no/name' cannot be a branch's name"):
        Runtime().context().branch("no/name")


@pytest.mark.parametrize("secrets", [[], ["MY_KEY"]])
async def test_arguments_without_a_canonical_form_are_not_replayable(
    secrets: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    class Connection:
        def __repr__(self) -> str:
            return "Connection(key=abc-123)"

    @entry
    def use(thing: Any) -> None: ...

    monkeypatch.setenv("MY_KEY", "abc-123")
    events = list[Event]()
    runtime = Runtime([use], message_callback=events.append, secrets=secrets)
    await runtime.call("use", Connection())
    await runtime.call("use", Connection())
    await runtime.call("use", [1, 2])
    opened = [event for event in events if isinstance(event, CallOpened)]
    assert [event.replayable for event in opened] == [False, False, True]
    assert opened[1].key == f"{opened[0].key}#1"


@dataclass
class Unwilling:
    password: Annotated[str, Secret]

    def __copy__(self) -> Any:
        raise RuntimeError("cannot be copied")


async def test_arguments_whose_secrets_cannot_be_taken_out_are_no_part_of_a_key() -> None:
    @entry
    def login(details: Unwilling) -> None: ...

    async def make(runtime: Runtime) -> None:
        for password in ("hunter2hunter2", "another one"):
            await runtime.call("login", Unwilling(password))

    one, two = await keys_of(login, make=make)
    assert two == f"{one}#1"


class Point(BaseModel):
    x: int | float | str
    y: Any = None


@dataclass
class Pair:
    x: Any
    y: Any


ATOMS = st.none() | st.booleans() | st.integers(-3, 3) | st.floats(allow_nan=False, width=16) | st.text(max_size=3)
VALUES = st.recursive(
    ATOMS,
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.lists(inner, max_size=2).map(tuple)
        | st.dictionaries(st.text(max_size=2), inner, max_size=3)
        | st.builds(Pair, inner, inner)
        | st.builds(Point, x=st.integers(0, 2), y=inner)
    ),
    max_leaves=6,
)


@given(VALUES, VALUES)
def test_digests_are_equal_exactly_for_values_with_equal_keys(left: Any, right: Any) -> None:
    assert digest(left)[1] and digest(right)[1]
    assert (digest(left) == digest(right)) == (canonical(left) == canonical(right))


class Marks(IntFlag):
    READ = 1


def test_flags_without_a_name_have_digests_of_their_own() -> None:
    assert len({digest(mark)[0] for mark in (Marks(0), Marks.READ, Marks(8), Marks(16))}) == 4


def test_a_digest_does_not_depend_on_the_order_of_keys_and_sets() -> None:
    assert digest({"a": 1, "b": {3, 1, 2}}) == digest({"b": {2, 3, 1}, "a": 1})
    assert len({digest(value)[0] for value in (1, 1.0, True, "1", b"1", [1], (1,), {1}, {1: 1}, {"1": 1})}) == 10
    loop: list[Any] = []
    loop.append(loop)
    assert not digest(loop)[1] and not digest({"x": 10**5000})[1]
    with pytest.raises(NoCanonicalForm):
        canonical(loop)


async def test_an_idempotency_key_of_a_session_that_goes_on_is_equal_whoever_listens() -> None:
    keys: list[str] = []
    turns = iter(range(100))

    @entry(repeat="keyed", effects=())
    def pay(ctx: RunContext[Context], amount: int) -> None:
        keys.append(ctx.deps.idempotency_key)

    @entry
    async def second_of_two(ctx: RunContext[Context]) -> None:
        if next(turns) % 2:  # so the first call of this name makes no key of its own
            await ctx.deps.call("pay", 5)

    for listener in (None, lambda event: None):
        runtime = Runtime([pay, second_of_two], session_id="run-1", message_callback=listener)
        await runtime.call("second_of_two")
        await runtime.call("second_of_two")
    assert keys[0] == keys[1]


@pytest.mark.parametrize("slow", [1, 2])
async def test_equal_calls_have_keys_in_the_order_in_which_they_are_made_however_long_their_checks_take(
    slow: int,
) -> None:
    checks = iter((1, 2))

    async def check(ctx: RunContext[Context], a: int) -> None:
        if next(checks) == slow:
            await asyncio.sleep(0.01)

    ran: list[str] = []

    def note(ctx: RunContext[Context], a: int) -> None:
        ran.append(str(ctx.deps.frame.key))

    tool = ToolEntry(Tool(note, args_validator=check))
    events = list[Event]()
    runtime = Runtime([tool], message_callback=events.append)
    await asyncio.gather(runtime.call("note", 1), runtime.call("note", 1))
    assert [key.endswith("#1") for key in ran] == ([True, False] if slow == 1 else [False, True])


def test_a_time_in_a_time_zone_that_nothing_describes_has_no_key() -> None:
    class Zone(tzinfo):
        def utcoffset(self, moment: datetime | None) -> timedelta:
            return timedelta(0)

    class Named(Zone):
        def __repr__(self) -> str:
            return "Named()"

    assert digest(datetime(2026, 1, 1, tzinfo=UTC))[1]
    assert digest(time(9, tzinfo=Named()))[1] and canonical(time(9, tzinfo=Named()))
    assert not digest(datetime(2026, 1, 1, tzinfo=Zone()))[1]
    with pytest.raises(NoCanonicalForm):
        canonical(datetime(2026, 1, 1, tzinfo=Zone()))


@pytest.mark.parametrize("first", ["bad-1", "bad-2"])
async def test_keys_of_refused_calls_are_released_in_any_order(first: str) -> None:
    async def check(ctx: RunContext[Context], who: str, pin: Annotated[str, Secret]) -> None:
        await asyncio.sleep(0 if pin == first else 0.01)
        if pin.startswith("bad"):
            raise ValueError("wrong pin")

    def login(ctx: RunContext[Context], who: str, pin: Annotated[str, Secret]) -> str:
        return str(ctx.deps.frame.key).partition("#")[2]

    runtime = Runtime([ToolEntry(Tool(login, args_validator=check))], session_id="s")
    bad = [runtime.call("login", "ann", pin) for pin in ("bad-1", "bad-2")]
    await asyncio.gather(*bad, return_exceptions=True)
    assert [await runtime.call("login", "ann", pin) for pin in ("good-1", "good-2")] == ["", "1"]


async def test_a_call_that_its_check_refused_leaves_its_key_to_the_next() -> None:
    busy = [True]

    def check(ctx: RunContext[Context], amount: int) -> None:
        if busy and busy.pop():
            raise ModelRetry("the bank is busy")

    keys: list[str] = []

    def pay(ctx: RunContext[Context], amount: int) -> None:
        keys.append(ctx.deps.idempotency_key)

    tool = ToolEntry(tool=Tool(pay, args_validator=check), repeat="keyed")
    for _ in range(2):
        runtime = Runtime([tool], session_id="s")
        with suppress(ArgumentError):
            await runtime.call("pay", 7)
        await runtime.call("pay", 7)
    first, again, other = keys[0], keys[1], keys[2]
    assert first == again != other
