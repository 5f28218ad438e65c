"""What a type checker knows about calls. `make check` runs mypy over this file; nothing here is executed."""

from typing import Any, assert_type

from pydantic import BaseModel
from pydantic_ai import RunContext, Tool

from llm_do import BoundEntry, CallScope, Context, Entry, Runtime, ToolEntry, WorkerEntry, entry


class Report(BaseModel):
    title: str


@entry
async def count(ctx: RunContext[Context], text: str) -> int:
    return len(text)


@entry
def shout(text: str) -> str:
    return text.upper()


@entry(name="careful", requires_approval=True)
async def careful_count(text: str) -> int:
    return len(text)


reporter = WorkerEntry(name="reporter", output_type=Report)
plain = WorkerEntry(name="plain")
wrapped = ToolEntry(tool=Tool(len))


class Custom:
    name = "custom"
    kind = "tool"
    requires_approval = False
    model = None

    async def call(self, input_data: Any, ctx: Context, run_ctx: RunContext[Context]) -> bytes:
        return b""


async def entries_keep_their_output_type(runtime: Runtime, ctx: Context) -> None:
    assert_type(count, ToolEntry[int])
    assert_type(shout, ToolEntry[str])
    assert_type(careful_count, ToolEntry[int])
    assert_type(await ctx.call(count, "x"), int)
    assert_type(await runtime.call(shout, "x"), str)
    assert_type(await runtime.call(reporter, "x"), Report)
    assert_type(await ctx.call(plain, "x"), str)
    assert_type(await ctx.call(Custom(), "x"), bytes)
    assert_type(runtime.bind(reporter), BoundEntry[Report])
    assert_type(await runtime.bind(reporter)("x"), Report)
    assert_type(runtime.call_sync(count, "x"), int)
    assert_type(ctx.call_sync(count, "x"), int)
    assert_type(reporter.start(runtime), CallScope[Report])
    async with reporter.start(runtime) as scope:
        assert_type(await scope.run_turn("x"), Report)


async def names_do_not(runtime: Runtime) -> None:
    assert_type(await runtime.call("count", "x"), Any)


def every_kind_is_an_entry() -> list[Entry[Any]]:
    return [count, shout, reporter, plain, wrapped, Custom()]


def wrong_uses_are_found(runtime: Runtime) -> None:
    runtime.bind(len)  # type: ignore[call-overload]
