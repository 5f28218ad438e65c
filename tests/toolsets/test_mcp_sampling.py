"""MCP servers that ask the model of the worker that calls them."""

from __future__ import annotations

import asyncio
from typing import Any

import anyio
import pytest
from pydantic_ai.messages import ModelMessage, ModelResponse
from pydantic_ai.models.function import AgentInfo, FunctionModel

from llm_do import ApprovalDecision, Limits, Runtime, WorkerEntry

from ..processes import PATIENCE
from ..scripted import calls, says
from .mcp_worker import ALLOWED, REQUEST, results, server, worker

pytestmark = pytest.mark.usefixtures("state")


def sampling(rules: dict[str, Any], **options: Any) -> tuple[Runtime, WorkerEntry, list[Any]]:
    """A worker whose server samples, and what its model was sent."""
    sent: list[Any] = []

    def script(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
        sent.append((list(messages), info.model_settings))
        if "Obey." in str(messages[0]):
            return says("sampled answer")
        return calls(("sample", REQUEST)) if len(messages) == 1 else says("end")

    options = {"model_settings": {"max_tokens": 77}, "toolsets": [server(sampling=True)], **options}
    made = worker(model=FunctionModel(script), **options)
    return Runtime([made], tool_rules={**ALLOWED, **rules}), made, sent


def at_most(tokens: int) -> dict[str, Any]:
    """Allow sampled requests that are not longer."""
    return {"mcp.sampling": {"rule": "allow", "when": {"max_tokens": {"at_most": tokens}}}}


@pytest.mark.parametrize("rules", [{"mcp.sampling": "allow"}, at_most(1_000_000)])
async def test_a_sampled_request_is_the_workers_own(rules: dict[str, Any]) -> None:
    runtime, made, sent = sampling(rules)
    async with made.start(runtime) as scope:
        await scope.run_turn("PRIVATE question")
        answer = results(scope)[0]
    assert answer["content"]["text"] == "sampled answer"
    assert answer["model"] == "llm-do"
    messages, settings = sent[1]
    assert settings["max_tokens"] == 77
    assert "PRIVATE" not in str(messages) and "Obey." in str(messages)
    _, tool, sampled = runtime.trace
    assert (tool.name, sampled.name, sampled.parent_id) == ("sample", "sampling", tool.id)
    assert sampled.usage is not None and sampled.usage.requests == 1
    assert sum(used.requests for used in runtime.usage.values()) == 3
    assert sampled.input_data["messages"][-1] == {"role": "user", "content": "Say the word."}


@pytest.mark.parametrize("rules", [{"mcp.sampling": "deny"}, {}, at_most(999_999)])
async def test_a_sampled_request_asks_unless_a_rule_allows_it(rules: dict[str, Any]) -> None:
    runtime, made, sent = sampling(rules)
    async with made.start(runtime) as scope:
        await scope.run_turn("go")
        answer = results(scope)[0]
    assert answer["message"] == "The request was refused, or failed."
    assert len(sent) == 2
    assert [record.approval.approved for record in runtime.trace if record.name == "sampling" and record.approval] == [
        False
    ]


async def test_a_sampled_request_counts_in_the_budget_of_the_worker() -> None:
    runtime, _, sent = sampling({"mcp.sampling": "allow"}, limits=Limits(max_requests=1))
    with pytest.raises(Exception, match="max_requests"):
        await runtime.call("w", "go")
    assert len(sent) == 1


async def test_without_the_key_a_server_cannot_sample() -> None:
    made = worker(calls(("sample", REQUEST)), says("end"))
    async with made.start(Runtime([made], tool_rules={**ALLOWED, "mcp.sampling": "allow"})) as scope:
        await scope.run_turn("go")
        assert results(scope)[0]["message"] == "Sampling not supported"


async def test_a_person_is_asked_about_a_sampled_request_and_sees_all_of_it() -> None:
    asked: list[Any] = []

    def approve(name: str, arguments: dict[str, Any], reason: str) -> ApprovalDecision:
        asked.append((name, arguments))
        return ApprovalDecision(approved=True)

    _, made, _ = sampling({})
    async with made.start(Runtime([made], tool_rules=ALLOWED, approval_callback=approve)) as scope:
        await scope.run_turn("go")
        assert results(scope)[0]["content"]["text"] == "sampled answer"
    [(name, arguments)] = asked
    assert name == "mcp.sampling" and arguments["server"] == "MCP server 'small'"
    assert [message["content"] for message in arguments["messages"]] == ["Obey.", "Say the word."]


async def test_an_edited_sampled_request_is_not_sent() -> None:
    """The model would be asked what the server wrote, and the record would show what the person wrote."""

    def edit(name: str, arguments: dict[str, Any], reason: str) -> ApprovalDecision:
        return ApprovalDecision(approved=True, arguments={**arguments, "messages": arguments["messages"][:1]})

    _, made, sent = sampling({})
    runtime = Runtime([made], tool_rules=ALLOWED, approval_callback=edit)
    async with made.start(runtime) as scope:
        await scope.run_turn("go")
        assert results(scope)[0]["message"] == "The request was refused, or failed."
    assert len(sent) == 2
    approval = runtime.trace[-1].approval
    assert approval is not None and not approval.approved and "cannot be edited" in str(approval.note)


async def test_a_person_sees_the_tool_calls_in_a_sampled_request() -> None:
    """A server can write anything into the name and the arguments of a call that was never made."""
    call = {"type": "tool_use", "id": "1", "name": "NAMED", "input": {"x": "GIVEN"}}
    result = {"type": "tool_result", "toolUseId": "1", "content": [{"type": "text", "text": "RETURNED"}]}
    messages = [*REQUEST["messages"], {"role": "assistant", "content": call}, {"role": "user", "content": result}]
    asked: list[str] = []

    def refuse(name: str, arguments: dict[str, Any], reason: str) -> ApprovalDecision:
        asked.append(str(arguments))
        return ApprovalDecision(approved=False)

    made = worker(calls(("sample", {**REQUEST, "messages": messages})), says("end"), toolsets=[server(sampling=True)])
    await Runtime([made], tool_rules=ALLOWED, approval_callback=refuse).call("w", "go")
    [shown] = asked
    assert all(word in shown for word in ("NAMED", "GIVEN", "RETURNED"))


async def test_a_sampled_request_is_sent_without_secrets(monkeypatch: pytest.MonkeyPatch) -> None:
    """Like the result of a tool: the server may have found one in what it read."""
    monkeypatch.setenv("MY_KEY", "Say the word.")
    _, made, sent = sampling({})
    rules = {**ALLOWED, "mcp.sampling": "allow"}
    await Runtime([made], tool_rules=rules, secrets=["MY_KEY"]).call("w", "go")
    assert "[secret MY_KEY]" in str(sent[1][0]) and "Say the word." not in str(sent[1][0])


async def test_a_server_that_samples_again_and_again_ends_with_the_budget() -> None:
    """Of a session: each is a request of it, also where the worker itself has no limit."""

    def script(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
        if "Obey." in str(messages[0]):
            assert not info.function_tools  # so it cannot call the server again
            return says("sampled answer")
        return calls(("sample_until_refused", REQUEST)) if len(messages) == 1 else says("end")

    made = worker(model=FunctionModel(script), toolsets=[server(sampling=True)])
    limits = Limits(max_requests=7)
    runtime = Runtime([made], tool_rules={**ALLOWED, "mcp.sampling": "allow"}, limits=limits)
    with pytest.raises(Exception, match="max_requests"):
        await runtime.call("w", "go")
    assert sum(used.requests for used in runtime.usage.values()) == 7


async def test_a_call_that_is_cancelled_while_its_server_samples_leaves_nothing() -> None:
    """The sampled request ends with it, its record too, and the slot is free for the next call."""
    sampled, never = asyncio.Event(), asyncio.Event()

    async def script(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
        if "Obey." in str(messages[0]):
            sampled.set()
            await never.wait()
        if "again" in str(messages[-1]):
            return says("free")
        return calls(("sample", REQUEST))

    made = worker(model=FunctionModel(script), toolsets=[server(sampling=True)])
    runtime = Runtime([made], tool_rules={**ALLOWED, "mcp.sampling": "allow"}, max_concurrency=1)
    async with made.start(runtime) as scope:
        turn = asyncio.create_task(scope.run_turn("go"))
        with anyio.fail_after(PATIENCE):
            await sampled.wait()
            turn.cancel()
            with pytest.raises(asyncio.CancelledError):
                await turn
            assert await scope.run_turn("again") == "free"
    assert [record.name for record in runtime.trace] == ["w", "sample", "sampling", "w"]
    assert all(record.duration is not None for record in runtime.trace)
    assert sum(used.requests for used in runtime.usage.values()) == 2  # of the third, no provider told any usage


async def test_the_messages_of_a_sampled_request_are_logged() -> None:
    runtime, _, _ = sampling({"mcp.sampling": "allow"})
    await runtime.call("w", "go")
    assert "sampled answer" in str(list(runtime.messages))
