"""What docs/comparison.md says about delegation between plain PydanticAI agents, shown with scripted models."""

from tempfile import NamedTemporaryFile
from typing import Any

from facts import check
from pydantic_ai import Agent, DeferredToolRequests, DeferredToolResults, RunContext, UsageLimitExceeded, UsageLimits
from pydantic_ai.agent.spec import AgentSpec
from pydantic_ai.capabilities import HandleDeferredToolCalls
from pydantic_ai.exceptions import UserError
from pydantic_ai.messages import ModelMessage, ModelMessagesTypeAdapter, ModelResponse, TextPart, ToolCallPart
from pydantic_ai.models.function import AgentInfo, FunctionModel


def script(*steps: str | tuple[str, dict[str, Any]]) -> FunctionModel:
    left = list(steps)

    def say(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
        step = left.pop(0)
        return ModelResponse(parts=[TextPart(step) if isinstance(step, str) else ToolCallPart(*step)])

    return FunctionModel(say)


filed: list[str] = []


def clerk(**options: Any) -> Agent[None, Any]:
    filed.clear()
    agent = Agent(script(("file_ticket", {"title": "flood"}), "Filed."), **options)

    @agent.tool_plain(requires_approval=True)
    def file_ticket(title: str) -> str:
        filed.append(title)
        return f"filed {title}"

    return agent


def desk(below: Agent[None, Any], *, share: bool = False) -> Agent[None, str]:
    agent = Agent(script(("ask_clerk", {"text": "Flood!"}), "Done."))

    @agent.tool
    async def ask_clerk(ctx: RunContext[None], text: str) -> str:
        shared: Any = {"usage": ctx.usage, "usage_limits": ctx.usage_limits} if share else {}
        return str((await below.run(text, **shared)).output)

    return agent


async def fact_approval_at_the_top_resumes() -> None:
    """A run ends with DeferredToolRequests; messages are JSON, and a later run with the answers goes on."""
    agent = clerk(output_type=[str, DeferredToolRequests])
    paused = await agent.run("Flood!")
    (call,) = paused.output.approvals
    assert (call.tool_name, call.args_as_dict(), filed) == ("file_ticket", {"title": "flood"}, [])
    history = ModelMessagesTypeAdapter.validate_json(paused.all_messages_json())
    answers = DeferredToolResults(approvals={call.tool_call_id: True})
    done = await agent.run(message_history=history, deferred_tool_results=answers)
    assert (done.output, filed) == ("Filed.", ["flood"])


async def fact_a_nested_approval_is_not_handed_up() -> None:
    """In an agent that a tool runs, an approval is an error, or the output of that run; the outer run goes on."""
    try:
        await desk(clerk()).run("Flood!")
    except UserError:
        pass
    else:
        raise AssertionError("no error")
    done = await desk(clerk(output_type=[str, DeferredToolRequests])).run("Flood!")
    assert (done.output, filed) == ("Done.", [])


async def fact_a_handler_answers_inline() -> None:
    """An agent with the capability HandleDeferredToolCalls asks inline, nested too; each agent has its own."""
    asked: list[Any] = []

    def answer(ctx: RunContext[None], requests: DeferredToolRequests) -> DeferredToolResults:
        asked.extend((call.tool_name, call.args_as_dict()) for call in requests.approvals)
        return requests.build_results(approve_all=True)

    handler = HandleDeferredToolCalls(handler=answer)
    assert (await desk(clerk(capabilities=[handler])).run("Flood!")).output == "Done."
    assert (asked, filed) == ([("file_ticket", {"title": "flood"})], ["flood"])
    outer = desk(clerk())
    try:
        await outer.run("Flood!", capabilities=[handler])
    except UserError:
        return
    raise AssertionError("a handler of the outer run answered for the inner one")


async def fact_usage_is_shared_where_you_pass_it() -> None:
    """Usage and limits reach a sub-agent if its tool passes them on, and not otherwise."""
    for share, requests in ((False, 2), (True, 4)):
        inner = Agent(script(("look", {}), "found"))
        inner.tool_plain(lambda: "x", name="look")
        assert (await desk(inner, share=share).run("go")).usage.requests == requests
    inner = Agent(script(("look", {}), "found"))
    inner.tool_plain(lambda: "x", name="look")
    try:
        await desk(inner, share=True).run("go", usage_limits=UsageLimits(request_limit=2))
    except UsageLimitExceeded:
        return
    raise AssertionError("no limit")


async def fact_a_sub_agent_has_its_own_tools() -> None:
    """A sub-agent runs tools that its caller does not have."""
    looked: list[str] = []
    inner = Agent(script(("look", {}), "found"))
    inner.tool_plain(lambda: looked.append("x"), name="look")
    await desk(inner).run("go")
    assert looked == ["x"]


def fact_python_calls_functions_directly() -> None:
    """A tool's function is a function: Python that calls it is not asked, also where the tool requires approval."""
    agent = Agent(script("x"))

    @agent.tool_plain(requires_approval=True)
    def file_ticket(title: str) -> str:
        return title

    assert file_ticket("by hand") == "by hand"


def fact_a_spec_has_no_tools() -> None:
    """An agent can be a YAML file, which says nothing about function tools."""
    assert "tools" not in AgentSpec.model_fields
    with NamedTemporaryFile("w", suffix=".yaml") as file:
        file.write("model: test\ninstructions: Be brief.\n")
        file.flush()
        assert Agent.from_file(file.name).run_sync("Hello.").output == "success (no tool calls)"


if __name__ == "__main__":
    check(globals(), "pydantic-ai-slim")
