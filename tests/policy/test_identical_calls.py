"""Identical calls that wait at the same time: an answer covers one of them, or as many as were shown."""

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic_ai import RunContext
from pydantic_ai.capabilities import AbstractCapability
from pydantic_ai.toolsets import AbstractToolset, FunctionToolset

from llm_do import (
    FILE_TOOLS,
    ApprovalController,
    ApprovalDecision,
    ApprovalDenied,
    ApprovalRequest,
    CallCancelled,
    Context,
    Event,
    RootConfig,
    RunEnded,
    Runtime,
    SandboxConfig,
    WorkerEntry,
    approve_all_callback,
    entry,
)

from ..scripted import calls, says, scripted

ONE = ApprovalDecision(approved=True)
ALL = ApprovalDecision(approved=True, all_calls=True)
ALWAYS = ApprovalDecision(approved=True, approve_for_session=True)
NOT_ONE = ApprovalDecision(approved=False, note="no")
NONE = ApprovalDecision(approved=False, note="no", all_calls=True)
END = ApprovalDecision(approved=False, end_run=True)


class Bank:
    """An entry that needs approval, and its real effects."""

    def __init__(self) -> None:
        self.paid: list[Any] = []

        @entry(requires_approval=True)
        async def pay(amount: Any = 1) -> str:
            self.paid.append(amount)
            return "paid"

        self.pay = pay


class Person:
    """Is asked, and answers when the test says so. `counts` are the numbers that the person saw."""

    one_at_a_time = False

    def __init__(self) -> None:
        self.asked: list[ApprovalRequest] = []
        self._answers: list[asyncio.Future[ApprovalDecision]] = []

    @property
    def counts(self) -> list[int]:
        return [request.count for request in self.asked]

    @property
    def waits(self) -> bool:
        return bool(self._answers) and not self._answers[-1].done()

    async def ask(self, request: ApprovalRequest) -> ApprovalDecision:
        self.asked.append(request)
        self._answers.append(asyncio.get_running_loop().create_future())
        return await self._answers[-1]

    async def answer(self, decision: ApprovalDecision, number: int = -1) -> None:
        self._answers[number].set_result(decision)
        await turns()


class Script:
    """Answers at once, with one decision after the other; the last one is repeated."""

    def __init__(self, *decisions: ApprovalDecision | Callable[[ApprovalRequest], ApprovalDecision]) -> None:
        self._decisions = list(decisions)
        self.asked: list[ApprovalRequest] = []

    @property
    def counts(self) -> list[int]:
        return [request.count for request in self.asked]

    def ask(self, request: ApprovalRequest) -> ApprovalDecision:
        self.asked.append(request)
        decision = self._decisions.pop(0) if len(self._decisions) > 1 else self._decisions[0]
        return decision(request) if callable(decision) else decision


async def turns() -> None:
    """Let everything go on that can."""
    for _ in range(50):
        await asyncio.sleep(0)


def start(runtime: Runtime, number: int, amount: Any = 1) -> list[asyncio.Task[Any]]:
    return [asyncio.create_task(runtime.call("pay", amount)) for _ in range(number)]


async def ends(tasks: list[asyncio.Task[Any]]) -> list[Any]:
    return [
        type(result) if isinstance(result, BaseException) else result
        for result in await asyncio.gather(*tasks, return_exceptions=True)
    ]


# -- how many are shown ----------------------------------------------------------------------------------------


def own_tool(paid: list[int]) -> dict[str, Any]:
    @entry(requires_approval=True)
    async def pay(amount: int) -> str:
        paid.append(amount)
        return "paid"

    return {"tools": [pay]}


def synchronous_tool(paid: list[int]) -> dict[str, Any]:
    @entry(requires_approval=True)
    def pay(amount: int) -> str:
        paid.append(amount)
        return "paid"

    return {"tools": [pay]}


def foreign_tool(paid: list[int]) -> dict[str, Any]:
    def factory(ctx: Context) -> AbstractToolset[Any]:
        toolset: FunctionToolset[Any] = FunctionToolset()

        async def pay(amount: int) -> str:
            paid.append(amount)
            return "paid"

        toolset.add_function(pay, requires_approval=True)
        return toolset

    return {"toolsets": [factory]}


def beside_a_capability(paid: list[int]) -> dict[str, Any]:
    class Idle(AbstractCapability[Any]):
        pass

    return {**own_tool(paid), "capabilities": [Idle()]}


KINDS = [own_tool, synchronous_tool, foreign_tool, beside_a_capability]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    ("decisions", "counts", "effects"),
    [
        ([ONE, NONE], [25, 24], 1),
        ([ONE, ONE, NONE], [25, 24, 23], 2),
        ([ALL], [25], 25),
        ([ONE, ALL], [25, 24], 25),
        ([NONE], [25], 0),
        ([NOT_ONE, ALL], [25, 24], 24),
        ([ALWAYS], [25], 25),
    ],
    ids=["one", "two", "all", "one_then_all", "none", "all_but_one", "session"],
)
async def test_parallel_calls_of_a_response_are_one_question_with_their_number(
    kind: Callable[[list[int]], dict[str, Any]], decisions: list[ApprovalDecision], counts: list[int], effects: int
) -> None:
    """The answer covers one call, or all that were shown."""
    paid: list[int] = []
    script = calls(*[("pay", {"amount": 1})] * 25)
    worker = WorkerEntry(name="w", model=scripted(script, says("done")), **kind(paid))
    person = Script(*decisions)
    assert await Runtime(approval_callback=person).call(worker, "go") == "done"
    assert person.counts == counts
    assert len(paid) == effects


async def test_calls_of_a_worker_are_counted_as_well() -> None:
    worker = WorkerEntry(name="below", model=scripted(says("done")), requires_approval=True)
    above = WorkerEntry(
        name="above", tools=[worker], model=scripted(calls(*[("below", {"input": "x"})] * 5), says("k"))
    )
    person = Script(ONE, NONE)
    runtime = Runtime(approval_callback=person)
    await runtime.call(above, "go")
    assert person.counts == [5, 4]
    assert sum(record.model is not None for record in runtime.trace if record.name == "below") == 1


async def test_a_request_says_the_number() -> None:
    bank, person = Bank(), Script(NONE)
    await ends(start(Runtime([bank.pay], approval_callback=person), 25))
    (request,) = person.asked
    assert request.text().startswith("25 identical calls of pay (pay)\n")


@pytest.mark.parametrize("flag", [1, "yes", None])
def test_only_a_bool_says_all(flag: Any) -> None:
    with pytest.raises(TypeError, match="all_calls must be True or False"):
        ApprovalDecision(approved=True, all_calls=flag)


# -- those who come later --------------------------------------------------------------------------------------


async def test_calls_that_join_later_are_asked_about_next() -> None:
    bank, person = Bank(), Person()
    runtime = Runtime([bank.pay], approval_callback=person)
    tasks = start(runtime, 3)
    await turns()
    tasks += start(runtime, 4)
    await turns()
    assert (person.counts, bank.paid) == ([3], [])
    await person.answer(ALL)
    assert (person.counts, len(bank.paid)) == ([3, 4], 3)
    tasks += start(runtime, 1)
    await person.answer(ONE)
    assert (person.counts, len(bank.paid)) == ([3, 4, 4], 4)
    await person.answer(NONE)
    assert await ends(tasks) == ["paid"] * 4 + [ApprovalDenied] * 4
    assert len(bank.paid) == 4


async def test_an_answer_is_for_those_who_came_first() -> None:
    bank = Bank()
    runtime = Runtime([bank.pay], approval_callback=Script(ONE, NOT_ONE, ONE, NONE))
    assert await ends(start(runtime, 6)) == ["paid", ApprovalDenied, "paid", *[ApprovalDenied] * 3]


async def test_a_run_that_is_ended_ends_for_all_who_wait() -> None:
    bank, person = Bank(), Person()
    runtime = Runtime([bank.pay], approval_callback=person)
    tasks = start(runtime, 3)
    await turns()
    tasks += start(runtime, 2)
    await turns()
    await person.answer(END)
    assert await ends(tasks) == [RunEnded] * 5
    assert (person.counts, bank.paid) == ([3], [])


@pytest.mark.parametrize("serial", [False, True])
async def test_a_run_that_is_ended_asks_and_runs_nothing_more(serial: bool) -> None:
    """Neither the questions that wait for their turn, nor those that somebody else answers with yes."""
    bank, person = Bank(), Person()
    person.one_at_a_time = serial

    @entry
    async def pay_all(ctx: RunContext[Context]) -> list[Any]:
        return await ends([asyncio.ensure_future(ctx.deps.call("pay", amount)) for amount in (1, 2, 3)])

    run = asyncio.create_task(Runtime([bank.pay, pay_all], approval_callback=person).call("pay_all"))
    await turns()
    assert len(person.asked) == (1 if serial else 3)
    await person.answer(END, 0)
    for number in range(1, len(person.asked)):
        await person.answer(ONE, number)
    assert await run == [RunEnded, CallCancelled, CallCancelled]
    assert len(person.asked) == (1 if serial else 3)
    assert bank.paid == []


# -- cancelled calls -------------------------------------------------------------------------------------------


async def test_when_the_call_that_asks_is_cancelled_the_next_one_asks_with_the_right_number() -> None:
    bank, person = Bank(), Person()
    tasks = start(Runtime([bank.pay], approval_callback=person), 4)
    await turns()
    tasks[0].cancel()
    await turns()
    assert person.counts == [4, 3]
    await person.answer(ALL)
    assert await ends(tasks) == [asyncio.CancelledError, "paid", "paid", "paid"]
    assert len(bank.paid) == 3


@pytest.mark.parametrize("late", [False, True])
async def test_a_call_that_is_cancelled_while_it_waits_leaves_the_line(late: bool) -> None:
    """Neither does it take the answer of another one, nor does a later call get its place."""
    bank, person = Bank(), Person()
    runtime = Runtime([bank.pay], approval_callback=person)
    tasks = start(runtime, 3)
    await turns()
    joined = start(runtime, 1)
    await turns()
    tasks[1].cancel()
    if not late:  # otherwise it is cancelled and answered in the same turn
        await turns()
    await person.answer(ALL)
    assert (person.counts, len(bank.paid)) == ([3, 1], 2)
    await person.answer(NONE)
    assert await ends([*tasks, *joined]) == ["paid", asyncio.CancelledError, "paid", ApprovalDenied]
    assert len(bank.paid) == 2


async def test_a_call_that_is_cancelled_when_it_is_its_turn_passes_it_on() -> None:
    bank, person = Bank(), Person()
    tasks = start(Runtime([bank.pay], approval_callback=person), 3)
    await turns()
    person._answers[-1].set_result(ONE)
    await asyncio.sleep(0)  # the first one runs, the second one is called to ask
    tasks[1].cancel()
    await turns()
    assert person.counts == [3, 1]
    await person.answer(ONE)
    assert await ends(tasks) == ["paid", asyncio.CancelledError, "paid"]


STEPS = st.lists(
    st.tuples(st.just("join"), st.integers(1, 4))
    | st.tuples(st.just("answer"), st.sampled_from([ONE, ALL, NOT_ONE, NONE]))
    | st.tuples(st.just("cancel"), st.integers(0, 20)),
    max_size=20,
)


@given(STEPS, st.booleans())
@settings(deadline=None)
def test_effects_never_exceed_what_the_answers_covered(steps: list[tuple[str, Any]], serial: bool) -> None:
    """Whoever joins and is cancelled meanwhile, and no call is left without an answer."""

    async def scenario() -> None:
        bank, person = Bank(), Person()
        person.one_at_a_time = serial
        runtime = Runtime([bank.pay], approval_callback=person)
        tasks: list[asyncio.Task[Any]] = []
        bound = 0
        for what, value in steps:
            if what == "join":
                tasks += start(runtime, value)
            elif what == "cancel" and tasks:
                tasks[value % len(tasks)].cancel()
            elif what == "answer" and person.waits:
                if value.approved:
                    bound += person.counts[-1] if value.all_calls else 1
                await person.answer(value)
            await turns()
            assert len(bank.paid) <= bound
        while person.waits:
            await person.answer(NONE)
        results = await ends(tasks)
        assert results.count("paid") == len(bank.paid) <= bound
        assert not runtime.gate.approvals._lines

    asyncio.run(scenario())


# -- other answers ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("every", "paid"), [(False, [[2]]), (True, [[2], [2], [2]])])
async def test_edited_arguments_are_for_one_call_unless_all_is_said(every: bool, paid: list[Any]) -> None:
    edited = ApprovalDecision(approved=True, arguments={"amount": [2]}, all_calls=every)
    bank, person = Bank(), Script(edited, NONE)
    await ends(start(Runtime([bank.pay], approval_callback=person), 3))
    assert bank.paid == paid
    assert len({id(amount) for amount in bank.paid}) == len(paid)  # none can change those of another


async def test_a_grant_for_the_session_answers_those_who_joined_later_too() -> None:
    bank, person = Bank(), Person()
    runtime = Runtime([bank.pay], approval_callback=person)
    tasks = start(runtime, 2)
    await turns()
    tasks += start(runtime, 3)
    await turns()
    await person.answer(ALWAYS)
    assert await ends(tasks) == ["paid"] * 5
    assert person.counts == [2]
    assert [record.approval.by for record in runtime.trace if record.approval] == ["callback", *["grant"] * 4]


async def test_a_grant_for_a_folder_answers_the_rest(tmp_path: Path) -> None:
    person = Script(lambda request: ApprovalDecision(approved=True, grant=request.offers[0]), NONE)
    sandbox = SandboxConfig(paths={"out": RootConfig(root=str(tmp_path), mode="rw")})
    script = calls(*[("write_file", {"path": "out/a.txt", "content": "x"})] * 4)
    worker = WorkerEntry(name="w", sandbox=sandbox, tools=[*FILE_TOOLS], model=scripted(script, says("done")))
    runtime = Runtime(approval_callback=person)
    await runtime.call(worker, "go")
    assert person.counts == [4]
    decided = [record.approval.by for record in runtime.trace if record.approval is not None]
    # Whichever was ready first; the one that was asked about comes again if another has written the file before it.
    assert len(decided) == 4 and decided.count("grant") >= 3


async def test_arguments_without_a_canonical_form_are_asked_about_one_by_one() -> None:
    bank, person = Bank(), Script(ALL, NONE)
    thing = object()
    await ends(start(Runtime([bank.pay], approval_callback=person), 3, thing))
    assert person.counts == [1, 1, 1]
    assert bank.paid == [thing]


async def test_identical_questions_of_two_workers_stay_apart() -> None:
    bank, person = Bank(), Script(ALL, NONE)
    script = calls(*[("pay", {"amount": 1})] * 3)
    workers = [WorkerEntry(name=name, tools=[bank.pay], model=scripted(script, says("done"))) for name in "ab"]
    runtime = Runtime(approval_callback=person)
    await asyncio.gather(*(runtime.call(worker, "go") for worker in workers))
    assert sorted((str(request.worker), request.count) for request in person.asked) == [("a", 3), ("b", 3)]
    assert len(bank.paid) == 3


# -- a plain callback ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("decision", [ONE, ALL])
async def test_a_plain_callback_answers_one_call_at_a_time(decision: ApprovalDecision) -> None:
    """It is shown no count, so it cannot mean all."""
    bank, seen = Bank(), list[int]()
    answers = iter([decision, decision, NOT_ONE, NONE, decision])

    async def callback(tool_name: str, payload: dict[str, Any], reason: str) -> ApprovalDecision:
        await turns()
        seen.append(len(bank.paid))
        return next(answers)

    assert await ends(start(Runtime([bank.pay], approval_callback=callback), 5)) == [
        "paid",
        "paid",
        ApprovalDenied,
        ApprovalDenied,
        "paid",
    ]
    assert seen == [0, 1, 2, 2, 2]


async def test_a_session_grant_of_a_plain_callback_answers_the_rest() -> None:
    bank, asked = Bank(), list[str]()

    async def callback(tool_name: str, payload: dict[str, Any], reason: str) -> ApprovalDecision:
        asked.append(tool_name)
        await turns()
        return ONE if len(asked) == 1 else ALWAYS

    assert await ends(start(Runtime([bank.pay], approval_callback=callback), 5)) == ["paid"] * 5
    assert len(asked) == 2


async def test_who_approves_everything_still_does() -> None:
    bank = Bank()
    runtime = Runtime([bank.pay], approval_callback=approve_all_callback)
    assert await ends(start(runtime, 25)) == ["paid"] * 25
    assert {record.approval.count for record in runtime.trace if record.approval} == {1}


@pytest.mark.parametrize("number", [1, 3])
async def test_an_approver_that_fails_refuses_one_call_after_the_other(number: int) -> None:
    class Broken:
        asked = 0

        def ask(self, request: ApprovalRequest) -> ApprovalDecision:
            self.asked += 1
            raise OSError("the terminal is gone")

    bank, broken = Bank(), Broken()
    assert await ends(start(Runtime([bank.pay], approval_callback=broken), number)) == [ApprovalDenied] * number
    assert broken.asked == number


# -- one question at a time ------------------------------------------------------------------------------------


async def test_who_shows_one_question_at_a_time_sees_the_number_of_that_moment() -> None:
    bank, person = Bank(), Person()
    person.one_at_a_time = True
    runtime = Runtime([bank.pay], approval_callback=person)
    tasks = start(runtime, 2, "a")
    await turns()
    tasks += start(runtime, 1, "b")
    await turns()
    tasks += start(runtime, 4, "b")
    await turns()
    assert person.counts == [2]
    await person.answer(ALL)
    assert person.counts == [2, 5]
    await person.answer(ALL)
    assert await ends(tasks) == ["paid"] * 7
    assert bank.paid == ["a"] * 2 + ["b"] * 5


async def test_who_does_not_say_so_is_asked_different_questions_side_by_side() -> None:
    bank, person = Bank(), Person()
    runtime = Runtime([bank.pay], approval_callback=person)
    tasks = [*start(runtime, 2, "a"), *start(runtime, 3, "b")]
    await turns()
    assert person.counts == [2, 3]
    await person.answer(ONE, 1)
    await person.answer(ALL, 0)
    await person.answer(NONE)
    assert await ends(tasks) == ["paid", "paid", "paid", ApprovalDenied, ApprovalDenied]


async def test_a_grant_answers_the_questions_that_wait_for_their_turn(tmp_path: Path) -> None:
    """Ten files of one folder, one question: the others are not asked about any more."""
    person = Script(lambda request: ApprovalDecision(approved=True, grant=request.offers[0]), NONE)
    person.one_at_a_time = True  # type: ignore[attr-defined]
    sandbox = SandboxConfig(paths={"out": RootConfig(root=str(tmp_path), mode="rw")})
    script = calls(*(("write_file", {"path": f"out/{number}.txt", "content": "x"}) for number in range(10)))
    worker = WorkerEntry(name="w", sandbox=sandbox, tools=[*FILE_TOOLS], model=scripted(script, says("done")))
    await Runtime(approval_callback=person).call(worker, "go")
    assert person.counts == [1]
    assert len(list(tmp_path.iterdir())) == 10


async def test_who_is_cancelled_while_it_waits_for_its_turn_holds_nobody_up() -> None:
    bank, person = Bank(), Person()
    person.one_at_a_time = True
    runtime = Runtime([bank.pay], approval_callback=person)
    first, second, third = start(runtime, 1, "a"), start(runtime, 2, "b"), start(runtime, 1, "c")
    await turns()
    second[0].cancel()
    await turns()
    await person.answer(ONE)
    await person.answer(ONE)
    await person.answer(ONE)
    assert await ends([*first, *second, *third]) == ["paid", asyncio.CancelledError, "paid", "paid"]
    assert person.counts == [1, 1, 1]


# -- what is written down --------------------------------------------------------------------------------------


async def test_each_call_has_its_own_outcome_with_the_number_of_the_answer() -> None:
    bank, heard = Bank(), list[Event]()
    runtime = Runtime([bank.pay], approval_callback=Script(ONE, ALL), message_callback=heard.append)
    await ends(start(runtime, 4))
    outcomes = [record.approval for record in runtime.trace]
    assert [(outcome.approved, outcome.by, outcome.count) for outcome in outcomes if outcome is not None] == [
        (True, "callback", 1),
        (True, "callback", 3),
        (True, "callback", 3),
        (True, "callback", 3),
    ]
    assert [(event.call_id, event.count) for event in heard if event.type == "approval_requested"] == [(1, 4), (2, 3)]
    decided = [(event.call_id, event.outcome.count) for event in heard if event.type == "approval_decided"]
    assert decided == [(1, 1), (2, 3), (3, 3), (4, 3)]


# -- a controller by itself ------------------------------------------------------------------------------------


async def test_a_controller_counts_too() -> None:
    person, ran = Script(ONE, NONE), list[int]()
    controller = ApprovalController({"pay": "ask"}, person)
    runs: list[Awaitable[None]] = [controller.maybe_run_async("pay", {"n": 1}, lambda: ran.append(1)) for _ in range(3)]
    await asyncio.gather(*runs, return_exceptions=True)
    assert (person.counts, ran) == ([3, 2], [1])


async def test_synchronous_code_in_a_running_loop_is_asked_at_once() -> None:
    ran: list[int] = []
    ApprovalController({"pay": "ask"}, Script(ONE)).maybe_run("pay", {"n": 1}, lambda: ran.append(1))
    assert ran == [1]
