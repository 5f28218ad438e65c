"""Rules by name: restrictions flow down the path of calls, permissions do not, and the strictest word wins."""

import asyncio
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic_ai import RunContext, Tool
from pydantic_ai.capabilities import NativeTool
from pydantic_ai.exceptions import ApprovalRequired
from pydantic_ai.messages import ModelMessage, ModelResponse
from pydantic_ai.models.function import AgentInfo, FunctionModel
from pydantic_ai.native_tools import WebSearchTool
from pydantic_ai.toolsets import AbstractToolset, FunctionToolset

from llm_do import (
    ApprovalController,
    ApprovalDecision,
    ApprovalDenied,
    Context,
    EventLoopError,
    Runtime,
    ToolEntry,
    WorkerEntry,
    approve_all_callback,
    entry,
    strict_mode_callback,
)
from llm_do.policy.rules import Call, RuleBook, Ruling, ToolRule, judge

from ..scripted import calls, says, scripted, tool_results


class Guard:
    def __init__(self, decision: ApprovalDecision | None = None) -> None:
        self.decision = decision or ApprovalDecision(approved=True)
        self.asked: list[tuple[str, str]] = []

    def __call__(self, tool_name: str, payload: dict[str, Any], reason: str) -> ApprovalDecision:
        self.asked.append((tool_name, reason))
        return self.decision


def book(speaker: str, **rules: str) -> RuleBook:
    return RuleBook(speaker, {name: [ToolRule(rule)] for name, rule in rules.items()})  # type: ignore[arg-type]


def chain(*names: str) -> Any:
    """A model for workers that each call the one tool they have, and say what came back."""

    def step(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
        if results := tool_results(messages):
            return says(str(results[0]))
        tool = info.function_tools[0]
        arguments = {"input": "x"} if "input" in tool.parameters_json_schema["properties"] else {}
        return calls((tool.name, arguments))

    return scripted(step)


@pytest.fixture
def wipe() -> ToolEntry[str]:
    @entry
    async def wipe() -> str:
        return "wiped"

    return wipe


# -- the judgement -------------------------------------------------------------------------------------


NOTHING = Ruling("allow", "nobody says anything", explicit=False)


def test_the_strictest_word_wins_and_an_allow_counts_only_for_ones_own_calls() -> None:
    own, above, session = book("own", a="allow"), book("above", a="deny"), book("session", a="ask")
    assert judge(Call("a"), own=own).disposition == "allow"
    assert judge(Call("a"), own=own, path=[above]).disposition == "deny"
    assert judge(Call("a"), own=own, session=session).because == "session says a: ask"
    assert judge(Call("a"), path=[book("above", a="allow")], default=NOTHING) is NOTHING
    assert judge(Call("b"), own=own, path=[above], session=session, default=NOTHING) is NOTHING


WORDS = st.sampled_from(["allow", "ask", "deny"])
STRICT = {"allow": 0, "ask": 1, "deny": 2}


@given(own=st.none() | WORDS, session=st.none() | WORDS, path=st.lists(WORDS, max_size=4), more=WORDS)
def test_one_more_rule_above_never_loosens_anything(
    own: str | None, session: str | None, path: list[str], more: str
) -> None:
    def said(words: list[str]) -> str | None:
        ruling = judge(
            Call("x"),
            own=book("own", x=own) if own else None,
            session=book("session", x=session) if session else None,
            path=[book(f"w{number}", x=word) for number, word in enumerate(words)],
            default=NOTHING,
        )
        return ruling.disposition if ruling is not NOTHING else None

    before, after = said(path), said([*path, more])
    if before is not None:
        assert after is not None
        assert STRICT[after] >= STRICT[before]
    else:
        assert after in (None, "ask", "deny")


# -- in a session --------------------------------------------------------------------------------------------


async def test_a_deny_of_the_session_holds_for_everybody_and_no_callback_is_asked(wipe: ToolEntry[str]) -> None:
    worker = WorkerEntry(name="w", tools=[wipe], tool_rules={"wipe": "allow"}, model=chain())
    guard = Guard()
    runtime = Runtime([worker, wipe], tool_rules={"wipe": "deny"}, approval_callback=guard)
    with pytest.raises(ApprovalDenied, match="wipe was refused: the session says wipe: deny"):
        await runtime.call("wipe")
    assert "w > wipe was refused" in await runtime.call("w", "go")
    assert not guard.asked
    assert [t.approval.by for t in runtime.trace if t.approval] == ["rule", "rule"]
    loud = Runtime([wipe], tool_rules={"wipe": "deny"}, approval_callback=approve_all_callback)
    with pytest.raises(ApprovalDenied):
        await loud.call("wipe")


async def test_restrictions_of_a_caller_hold_for_everything_below_it(wipe: ToolEntry[str]) -> None:
    @entry
    async def helper(ctx: RunContext[Context]) -> str:
        return await ctx.deps.call(wipe)

    inner = WorkerEntry(name="inner", tools=[helper], model=chain(), tool_rules={"wipe": "allow"})
    for rule, asked in (("deny", []), ("ask", ["wipe"])):
        outer = WorkerEntry(name="outer", tools=[inner], model=chain(), tool_rules={"wipe": rule})
        guard = Guard()
        runtime = Runtime([outer, wipe], approval_callback=guard)
        answer = await runtime.call("outer", "go")
        assert [name for name, _ in guard.asked] == asked
        assert ("wiped" in answer) is bool(asked)
    assert guard.asked[0][1] == "worker 'outer' says wipe: ask; call path: outer > inner > helper > wipe"


async def test_permissions_do_not_flow_down() -> None:
    """What a worker may do unasked, the workers that it calls may not."""
    ran: list[str] = []

    @entry(requires_approval=True)
    async def wipe() -> str:
        ran.append("wiped")
        return "wiped"

    inner = WorkerEntry(name="inner", tools=[wipe], model=chain())
    outer = WorkerEntry(name="outer", tools=[inner], model=chain(), tool_rules={"wipe": "allow"})
    alone = WorkerEntry(name="alone", tools=[wipe], model=chain(), tool_rules={"wipe": "allow"})
    runtime = Runtime([outer, alone], approval_callback=strict_mode_callback)
    await runtime.call("outer", "go")
    assert not ran
    assert await runtime.call("alone", "go") == "wiped"
    assert [(t.name, t.approval.by) for t in runtime.trace if t.approval] == [("wipe", "callback"), ("wipe", "rule")]


async def test_rules_of_one_worker_do_not_touch_its_siblings(wipe: ToolEntry[str]) -> None:
    strict = WorkerEntry(name="strict", tools=[wipe], model=chain(), tool_rules={"wipe": "deny"})
    free = WorkerEntry(name="free", tools=[wipe], model=chain())
    runtime = Runtime([strict, free])
    results = await asyncio.gather(runtime.call("strict", "x"), runtime.call("free", "x"))
    assert "refused" in results[0]
    assert results[1] == "wiped"


async def test_a_worker_can_be_ruled_like_any_entry() -> None:
    child = WorkerEntry(name="child", model=scripted(says("hi")))
    parent = WorkerEntry(name="parent", tools=[child], model=chain(), tool_rules={"child": "deny"})
    runtime = Runtime([parent, child])
    assert "refused" in await runtime.call("parent", "x")
    assert await runtime.call("child", "x") == "hi"


async def test_tools_of_others_follow_the_rules_too() -> None:
    def factory(ctx: Context) -> AbstractToolset[Any]:
        toolset: FunctionToolset[Any] = FunctionToolset()
        toolset.add_function(lambda: "sent", name="send")
        return toolset

    worker = WorkerEntry(name="w", toolsets=[factory], model=chain(), tool_rules={"send": "deny"})
    assert "refused" in await Runtime([worker]).call("w", "x")


async def test_a_description_reaches_the_person_who_is_asked(wipe: ToolEntry[str]) -> None:
    guard = Guard(ApprovalDecision(approved=False))
    rules = {"wipe": {"allowed": True, "approval_required": True, "description": "it cannot be undone"}}
    with pytest.raises(ApprovalDenied):
        await Runtime([wipe], tool_rules=rules, approval_callback=guard).call("wipe")
    assert guard.asked == [("wipe", "the session says wipe: ask (it cannot be undone); call path: wipe")]


async def test_a_grant_is_for_the_rule_that_asked(wipe: ToolEntry[str]) -> None:
    """A yes to one worker's rule is no yes to another's."""
    inner = WorkerEntry(name="inner", tools=[wipe], model=chain(), tool_rules={"wipe": "ask"})
    strict = WorkerEntry(name="strict", tools=[inner], model=chain(), tool_rules={"wipe": "deny"})
    guard = Guard(ApprovalDecision(approved=True, approve_for_session=True))
    runtime = Runtime([inner, strict], approval_callback=guard)
    await runtime.call("inner", "x")
    await runtime.call("inner", "x")
    assert len(guard.asked) == 1
    assert "refused" in await runtime.call("strict", "x")


async def test_a_tool_that_asks_from_within_obeys_an_allow_of_its_caller() -> None:
    async def pay(ctx: RunContext[Context]) -> str:
        if not ctx.tool_call_approved:
            raise ApprovalRequired
        return "paid"

    tool = ToolEntry(tool=Tool(pay))
    worker = WorkerEntry(name="w", tools=[tool], model=chain(), tool_rules={"pay": "allow"})
    assert await Runtime([worker]).call("w", "x") == "paid"


@pytest.mark.parametrize(
    "rules",
    [
        {"x": "maybe"},
        {"x": True},
        {"x": {}},
        {"x": {"description": "d"}},
        {"x": {"allowed": "no"}},
        {"sandbox.rite": "deny"},
    ],
)
def test_what_is_no_rule_is_refused_where_it_is_given(rules: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="The rules of the session"):
        Runtime(tool_rules=rules)
    with pytest.raises(ValueError, match="The rules of worker 'w'"):
        WorkerEntry(name="w", tool_rules=rules)


# -- tools of a model's provider -------------------------------------------------------------------------------


@pytest.mark.parametrize("rule", [None, "allow", "ask", "deny"])
@pytest.mark.parametrize("above", [False, True])
async def test_rules_on_a_providers_own_tool_are_heard_before_it_has_it(rule: str | None, above: bool) -> None:
    requests: list[list[str]] = []

    def look(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
        requests.append([tool.kind for tool in info.model_request_parameters.native_tools])
        return says("ok")

    rules = {} if rule is None else {"web_search": rule}
    model = FunctionModel(look, profile={"supported_native_tools": frozenset({WebSearchTool})})
    searcher = WorkerEntry(
        name="searcher", capabilities=[NativeTool(WebSearchTool())], model=model, tool_rules={} if above else rules
    )
    outer = WorkerEntry(name="outer", tools=[searcher], model=chain(), tool_rules=rules if above else {})
    guard = Guard(ApprovalDecision(approved=False))
    runtime = Runtime([outer, searcher], approval_callback=guard)
    await runtime.call("outer", "go")
    refused = rule in ("deny", "ask")
    assert requests == ([] if refused else [["web_search"]])
    assert [name for name, _ in guard.asked] == (["web_search"] if rule == "ask" else [])
    decided = [record.approval.approved for record in runtime.trace if record.kind == "native" and record.approval]
    assert decided == ([False] if refused else [True] if rule == "allow" and not above else [])


# -- outside a runtime -----------------------------------------------------------------------------------------


def test_maybe_run_follows_the_rules_and_asks_once() -> None:
    guard = Guard(ApprovalDecision(approved=True, approve_for_session=True))
    controller = ApprovalController(tool_rules={"sandbox.write": "ask", "shell": "deny"}, approval_callback=guard)
    payload = {"path": "output/file.txt"}
    for _ in range(2):
        assert controller.maybe_run(tool_name="sandbox.write", payload=payload, func=lambda: "written") == "written"
    assert [name for name, _ in guard.asked] == ["sandbox.write"]
    ran: list[int] = []
    with pytest.raises(ApprovalDenied, match="shell was refused: the session says shell: deny"):
        controller.maybe_run("shell", {}, lambda: ran.append(1))
    assert not ran
    assert controller.maybe_run("sandbox.read", {}, lambda: "read") == "read"
    with pytest.raises(ApprovalDenied):
        ApprovalController(approval_callback=strict_mode_callback).maybe_run("worker.create", {}, lambda: None)


async def test_maybe_run_in_a_running_loop() -> None:
    """A plain callback is asked; an async one needs the async twin, and is not even started."""
    started: list[int] = []

    async def later(tool_name: str, payload: dict[str, Any], reason: str) -> ApprovalDecision:
        started.append(1)
        await asyncio.sleep(0)
        return ApprovalDecision(approved=True)

    plain = ApprovalController({"x": "ask"}, approve_all_callback)
    assert plain.maybe_run("x", {}, lambda: 1) == 1
    controller = ApprovalController({"x": "ask"}, later)
    with pytest.raises(EventLoopError, match="maybe_run_async"):
        controller.maybe_run("x", {}, lambda: 1)
    assert not started

    async def work() -> int:
        return 2

    assert await controller.maybe_run_async("x", {}, lambda: 1) == 1
    assert await controller.maybe_run_async("x", {}, work) == 2


def test_an_async_callback_serves_synchronous_code_where_no_loop_runs() -> None:
    async def later(tool_name: str, payload: dict[str, Any], reason: str) -> ApprovalDecision:
        await asyncio.sleep(0)
        return ApprovalDecision(approved=True)

    assert ApprovalController({"x": "ask"}, later).maybe_run("x", {}, lambda: 1) == 1
