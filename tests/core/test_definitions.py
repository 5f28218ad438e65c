"""Digests of definitions, and the keys of entries that are passed as objects: there may be others of their name."""

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
from pydantic import BaseModel
from pydantic_ai import FunctionToolset, RunContext
from pydantic_ai.messages import ModelMessage, ModelResponse
from pydantic_ai.models.function import AgentInfo, FunctionModel

from llm_do import CallOpened, Context, Entry, Event, RootConfig, Runtime, SandboxConfig, ToolEntry, WorkerEntry, entry
from llm_do.core.adapt import adapt
from llm_do.core.definition_digest import definition_digest

from ..scripted import says, scripted
from .test_executor import Memory


def be_kind(ctx: Any) -> str:
    return "Be kind."


def be_cruel(ctx: Any) -> str:
    return "Be cruel."


def make_toolset(ctx: Context) -> FunctionToolset[Any]:
    return FunctionToolset([])


def post_to(url: str) -> ToolEntry[str]:
    @entry
    async def post(x: int) -> str:
        return f"posted to {url}"

    return post


class Poster:
    def __init__(self, url: str) -> None:
        self.url = url

    def post(self, x: int) -> str:
        return f"posted to {self.url}"


class Own:
    name = "post"
    kind = "tool"
    requires_approval = False
    model = None

    def __init__(self, url: str) -> None:
        self.url = url

    async def call(self, input_data: Any, ctx: Any, run_ctx: Any) -> str:
        return f"posted to {self.url}"


def worker(**options: Any) -> WorkerEntry[Any]:
    return WorkerEntry(name="w", **options)


def local_type(answer: Any) -> type[BaseModel]:
    class Answer(BaseModel):
        value: Any = answer

    return Answer


def sandbox(folder: str) -> SandboxConfig:
    return SandboxConfig(paths={"data": RootConfig(root=folder, mode="ro")})


@pytest.mark.parametrize(
    "make",
    [
        lambda: [worker(instructions=each) for each in (be_kind, be_cruel)],
        lambda: [worker(sandbox=sandbox(each)) for each in ("/tmp/one", "/tmp/two")],
        lambda: [worker(toolsets=each) for each in ([], [make_toolset])],
        lambda: [worker(model=scripted(says("x"), name=each)) for each in ("small", "large")],
        lambda: [worker(tools=[post_to(each)]) for each in ("test", "production")],
        lambda: [worker(output_type=local_type(each)) for each in (1, 2)],
        lambda: [worker(model_settings={"temperature": each}) for each in (0.0, 1.0)],
        lambda: [post_to(each) for each in ("test", "production")],
        lambda: [ToolEntry.from_function(Poster(each).post) for each in ("test", "production")],
        lambda: [Own(each) for each in ("test", "production")],
    ],
)
def test_definitions_that_differ_have_other_digests_or_are_not_told_apart(make: Callable[[], list[Any]]) -> None:
    one, other = [definition_digest(adapt(each)) for each in make()]
    assert one != other or not one.is_exact
    one, again = [definition_digest(adapt(make()[0])) for _ in range(2)]
    assert one == again


def test_a_new_api_key_is_no_other_definition() -> None:
    one, other, third = [
        definition_digest(
            worker(model_settings={"extra_headers": {"Authorization": key}, "extra_body": {"accessToken": key, "n": n}})
        )
        for key, n in (("aaaa", 1), ("bbbb", 1), ("bbbb", 2))
    ]
    assert one == other != third and one.is_exact


def instructed(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
    return says(str(info.instructions))


@pytest.mark.parametrize(
    "make",
    [
        lambda: [post_to(each) for each in ("test", "production")],
        lambda: [ToolEntry.from_function(Poster(each).post) for each in ("test", "production")],
        lambda: [Own(each) for each in ("test", "production")],
        lambda: [worker(instructions=each, model=FunctionModel(instructed)) for each in (be_kind, be_cruel)],
    ],
)
async def test_entries_of_one_name_keep_their_answers_whichever_is_faster(make: Callable[[], list[Entry[Any]]]) -> None:
    memory = Memory()

    async def run(slower: int) -> Any:
        @entry
        async def glue(ctx: RunContext[Context]) -> list[Any]:
            async def one(number: int, each: Entry[Any]) -> Any:
                await asyncio.sleep(0.02 if number == slower else 0)
                return await ctx.deps.call(each, 1)

            return await asyncio.gather(*(one(number, each) for number, each in enumerate(make())))

        memory.finished = {key: known for key, known in memory.finished.items() if key.count("/") > 1}
        return await Runtime([glue], executor=memory).call("glue")

    first = await run(1)
    assert first[0] != first[1]
    assert await run(0) == first


async def test_an_entry_that_nothing_tells_from_others_of_its_name_is_replayable_by_its_name_alone() -> None:
    events, own = list[Event](), Own("test")
    runtime = Runtime([own], message_callback=events.append)
    for each in ("post", own, Own("test"), post_to("test")):
        await runtime.call(each, 1)
    opened = [event for event in events if isinstance(event, CallOpened)]
    assert [event.replayable for event in opened] == [True, True, False, True]
