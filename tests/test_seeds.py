"""The examples of the documents that this project implements, as near to verbatim as can be.

Only the import paths and the models differ: `ctx` and `entries` are `llm_do`, and the models are scripted.
"""

from typing import Any

from pydantic_ai.models.test import TestModel
from pydantic_ai.tools import RunContext, Tool

from llm_do import CallableEntry, Context, Runtime, ToolEntry, WorkerEntry, entry

from .scripted import says, scripted


async def test_calls_feel_like_python_calls() -> None:
    """Seed 001: keyword style, plain text, mappings, and callables that are bound to a runtime."""

    @entry
    async def name(ctx: RunContext[Context], input: str) -> str:
        return input.upper()

    async def my_tool(ctx: RunContext[Context]) -> list[str]:
        return [
            await ctx.deps.call("name", {"input": "mapping"}),
            await ctx.deps.call("name", "text"),
            await ctx.deps.call("name", input="keyword"),
            await ctx.deps.tools.name(input="attribute"),
        ]

    runtime = Runtime([name, ToolEntry(tool=Tool(my_tool))])
    assert await runtime.call("my_tool") == ["MAPPING", "TEXT", "KEYWORD", "ATTRIBUTE"]
    bound = runtime.bind("name")
    assert await bound("bound") == "BOUND"


async def test_standard_tool_signature() -> None:
    """Seed 002: a tool takes `RunContext[Context]` and orchestrates through `ctx.deps`."""

    async def my_tool(ctx: RunContext[Context], query: str, limit: int = 10) -> list[dict[str, Any]]:
        # Access orchestration via ctx.deps
        result = await ctx.deps.call("other_tool", {"q": query})
        return result

    async def other_tool(q: str) -> list[dict[str, Any]]:
        return [{"found": q}]

    runtime = Runtime([ToolEntry(tool=Tool(my_tool)), ToolEntry(tool=Tool(other_tool))])
    assert await runtime.call("my_tool", query="x") == [{"found": "x"}]


async def test_callable_protocol() -> None:
    """Seed 002: a class with the protocol's members is an entry."""

    class Doubler:
        name: str = "double"
        kind: str = "tool"
        requires_approval: bool = False
        model: None = None

        async def call(self, input_data: Any, ctx: Context, run_ctx: RunContext[Context]) -> Any:
            assert run_ctx.deps is ctx
            return input_data["input"] * 2

    double: CallableEntry = Doubler()
    assert await Runtime([double]).call("double", 21) == 42


async def test_context_centric_example() -> None:
    """Seed 002: the example at its end."""

    # Standard PydanticAI tool signature
    async def search(ctx: RunContext[Context], query: str) -> list[str]:
        """Search for documents."""
        return ["doc1.pdf", "doc2.pdf"]

    # Create entries
    search_tool = ToolEntry(tool=Tool(search, name="search"))

    researcher = WorkerEntry(
        name="researcher",
        instructions="Research the topic using available tools.",
        model=TestModel(model_name="haiku"),  # or None to use ctx.model
        tools=[search_tool],
    )

    # Run
    ctx = Context.from_worker(researcher, model=TestModel(model_name="sonnet"))
    result = await ctx.call("researcher", {"topic": "AI safety"})
    assert result == '{"search":["doc1.pdf","doc2.pdf"]}'

    # Inspect
    seen = [f"{t.name} ({t.kind}) depth={t.depth}" for t in ctx.trace]
    assert seen == ["researcher (worker) depth=0", "search (tool) depth=1"]
    assert list(ctx.usage) == ["haiku"]
    assert ctx.trace[0].input_data == {"topic": "AI safety"}


async def test_calls_and_turns() -> None:
    """Seed 003: one scope, several turns, one conversation."""
    worker = WorkerEntry(name="chat", instructions="Be brief.")
    runtime = Runtime([worker], model=scripted(says("first"), says("second")))
    prompt, another_prompt = "hello", "and then?"

    async with worker.start(runtime) as scope:
        result = await scope.run_turn({"input": prompt})
        assert result == "first"
        result = await scope.run_turn({"input": another_prompt})
        assert result == "second"
        assert len(scope.messages) == 4
