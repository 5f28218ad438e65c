"""What docs/comparison.md says about the OpenAI Agents SDK, shown with scripted models."""

import json
from importlib.util import find_spec
from typing import Any

from agents import (
    Agent,
    FunctionTool,
    MaxTurnsExceeded,
    Model,
    ModelResponse,
    RunContextWrapper,
    Runner,
    RunState,
    Span,
    Trace,
    TracingProcessor,
    Usage,
    function_tool,
    set_trace_processors,
)
from facts import check
from openai.types.responses import ResponseFunctionToolCall, ResponseOutputMessage, ResponseOutputText

set_trace_processors([])  # the default processor sends traces to OpenAI's servers


class Script(Model):
    """Says its steps one after the other: a text, or a tool's name with arguments."""

    def __init__(self, *steps: str | tuple[str, dict[str, Any]]) -> None:
        self.steps = list(steps)
        self.requests = 0

    async def get_response(self, *args: Any, **kwargs: Any) -> ModelResponse:
        step = self.steps[self.requests]
        self.requests += 1
        output: Any
        if isinstance(step, str):
            text = ResponseOutputText(annotations=[], text=step, type="output_text")
            output = ResponseOutputMessage(id="m", content=[text], role="assistant", status="completed", type="message")
        else:
            name, arguments = step
            output = ResponseFunctionToolCall(
                arguments=json.dumps(arguments), call_id=f"{id(self)}-{self.requests}", name=name, type="function_call"
            )
        usage = Usage(requests=1, input_tokens=10, output_tokens=5, total_tokens=15)
        return ModelResponse(output=[output], usage=usage, response_id=None)

    def stream_response(self, *args: Any, **kwargs: Any) -> Any:
        raise NotImplementedError


filed: list[str] = []


@function_tool(needs_approval=True)
def file_ticket(title: str) -> str:
    """File a ticket."""
    filed.append(title)
    return f"filed {title}"


@function_tool
def lookup(word: str) -> str:
    """Look a word up."""
    return word.upper()


def clerk() -> Agent[None]:
    model = Script(("file_ticket", {"title": "flood"}), "The ticket is filed.")
    return Agent(name="clerk", model=model, tools=[file_ticket])


def desk(*below: Any) -> Agent[None]:
    return Agent(name="desk", model=Script(("ask_clerk", {"input": "Flood!"}), "Done."), tools=list(below))


def fact_kinds_of_call() -> None:
    """For a model, an agent (`as_tool`) and a function are both a FunctionTool. Python runs an agent with Runner."""
    assert isinstance(clerk().as_tool("ask_clerk", "Ask."), FunctionTool)
    assert isinstance(lookup, FunctionTool)
    assert not callable(clerk())
    assert not callable(lookup)


async def fact_nested_approval_resumes() -> None:
    """An approval inside an agent used as a tool reaches the outer result with its arguments; JSON state resumes it."""
    filed.clear()
    inner = clerk()
    outer = desk(inner.as_tool("ask_clerk", "Ask."))
    paused = await Runner.run(outer, "Flood!")
    assert [(item.name, item.arguments) for item in paused.interruptions] == [("file_ticket", '{"title": "flood"}')]
    assert filed == []
    state = await RunState.from_string(outer, paused.to_state().to_string())
    state.approve(state.get_interruptions()[0])
    assert (await Runner.run(outer, state)).final_output == "Done."
    assert filed == ["flood"]
    assert (inner.model.requests, outer.model.requests) == (2, 2)  # nothing was asked of a model twice


async def fact_approval_through_code_is_yours() -> None:
    """Where your own function runs the sub-agent, its pause does not reach the caller's run by itself."""
    filed.clear()
    inner, seen = clerk(), []

    @function_tool
    async def ask_clerk(input: str) -> str:  # noqa: A002 - the name that the script uses, as `as_tool` does
        """Ask."""
        result = await Runner.run(inner, input)
        seen.extend(result.interruptions)
        return str(result.final_output)

    done = await Runner.run(desk(ask_clerk), "Flood!")
    assert (done.final_output, done.interruptions, filed) == ("Done.", [], [])
    assert len(seen) == 1


async def fact_approval_by_arguments() -> None:
    """`needs_approval` may be a function of the arguments."""

    async def urgent(context: RunContextWrapper[Any], arguments: dict[str, Any], call_id: str) -> bool:
        return arguments["title"] == "flood"

    @function_tool(needs_approval=urgent)
    def note(title: str) -> str:
        return title

    for title, pauses in (("flood", 1), ("lunch", 0)):
        agent = Agent(name="a", model=Script(("note", {"title": title}), "ok"), tools=[note])
        assert len((await Runner.run(agent, "go")).interruptions) == pauses


async def fact_a_sub_agent_has_its_own_tools() -> None:
    """A sub-agent runs tools that its caller does not have: it is not held to what its caller has."""
    inner = Agent(name="clerk", model=Script(("lookup", {"word": "x"}), "found"), tools=[lookup])
    outer = desk(inner.as_tool("ask_clerk", "Ask."))
    assert [tool.name for tool in outer.tools] == ["ask_clerk"]
    assert (await Runner.run(outer, "go")).final_output == "Done."
    assert inner.model.requests == 2


async def fact_max_turns_is_per_run() -> None:
    """`max_turns` counts the turns of one run; those of an agent used as a tool are counted on their own."""
    inner = Agent(name="c", model=Script(*[("lookup", {"word": "x"})] * 5, "found"), tools=[lookup])
    assert (await Runner.run(desk(inner.as_tool("ask_clerk", "Ask.")), "go", max_turns=2)).final_output == "Done."
    assert inner.model.requests == 6
    try:
        await Runner.run(desk(inner.as_tool("ask_clerk", "Ask.")), "go", max_turns=1)
    except MaxTurnsExceeded:
        return
    raise AssertionError("max_turns=1 did not stop the outer run")


async def fact_usage_adds_up() -> None:
    """Usage includes that of an agent used as a tool: a sum, and entries per request that name no agent or model."""
    inner = Agent(name="clerk", model=Script(("lookup", {"word": "x"}), "found"), tools=[lookup])
    usage = (await Runner.run(desk(inner.as_tool("ask_clerk", "Ask.")), "go")).context_wrapper.usage
    assert (usage.requests, usage.total_tokens) == (4, 60)
    assert len(usage.request_usage_entries) == 4
    assert not {"agent", "agent_name", "model", "model_name"} & set(vars(usage.request_usage_entries[0]))


async def fact_spans_nest() -> None:
    """Spans of nested agents and tools have parents, and reach a processor of your own."""

    class Keep(TracingProcessor):
        def __init__(self) -> None:
            self.spans: list[Span[Any]] = []

        def on_span_end(self, span: Span[Any]) -> None:
            self.spans.append(span)

        def on_trace_start(self, trace: Trace) -> None: ...
        def on_trace_end(self, trace: Trace) -> None: ...
        def on_span_start(self, span: Span[Any]) -> None: ...
        def shutdown(self) -> None: ...
        def force_flush(self) -> None: ...

    keep = Keep()
    set_trace_processors([keep])
    inner = Agent(name="clerk", model=Script(("lookup", {"word": "x"}), "found"), tools=[lookup])
    await Runner.run(desk(inner.as_tool("ask_clerk", "Ask.")), "go")
    set_trace_processors([])
    spans = {span.span_id: span for span in keep.spans}
    leaf = next(span for span in keep.spans if getattr(span.span_data, "name", "") == "lookup")
    path = []
    while leaf:
        path.append(getattr(leaf.span_data, "name", leaf.span_data.type))
        leaf = spans.get(leaf.parent_id)
    assert [name for name in path if name not in ("turn", "Agent workflow")] == ["lookup", "clerk", "ask_clerk", "desk"]


def fact_it_speaks() -> None:
    """There are agents for voice and for realtime models."""
    assert find_spec("agents.voice")
    assert find_spec("agents.realtime")


if __name__ == "__main__":
    check(globals(), "openai-agents", "openai")
