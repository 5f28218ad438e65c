"""Which calls an answer of an earlier run is used for: only those whose answer it is."""

import asyncio
from dataclasses import replace
from typing import Any

import pytest
from pydantic_ai import RunContext
from pydantic_ai.messages import ModelMessage, ModelRequest, ModelResponse, UserPromptPart
from pydantic_ai.models.function import AgentInfo, FunctionModel

from llm_do import CallOpened, Context, Event, Runtime, WorkerEntry, entry
from llm_do.errors import LlmDoError

from ..scripted import says, scripted
from .test_executor import Memory


class Turns(Memory):
    """Remembers conversations, too."""

    async def execute(self, entry: Any, arguments: dict[str, Any], ctx: Any, run_ctx: Any) -> Any:
        output = await super().execute(entry, arguments, ctx, run_ctx)
        key = str(ctx.frame.key)
        self.finished[key] = replace(self.finished[key], messages=ctx.frame.messages)
        return output


def prompts(messages: list[ModelMessage]) -> str:
    parts = [part for message in messages if isinstance(message, ModelRequest) for part in message.parts]
    return " / ".join(str(part.content).strip() for part in parts)


def answer(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
    return says(prompts(messages))


ECHO = WorkerEntry(name="w", model=FunctionModel(answer))


async def side_by_side(make: Any, slower: str) -> list[Any]:
    async def one(name: str) -> Any:
        for _ in range(20 if name == slower else 0):
            await asyncio.sleep(0.001)
        return await make(name)

    return await asyncio.gather(one("Ann"), one("Bob"))


async def test_chats_side_by_side_keep_their_answers_whichever_is_faster() -> None:
    """Their scopes are told apart by their ordinals, which may be swapped."""
    memory = Turns()
    expected = [["I am Ann", "I am Ann / Who am I?"], ["I am Bob", "I am Bob / Who am I?"]]
    for slower in ("Bob", "Ann", "Ann"):
        runtime = Runtime([ECHO], executor=memory)

        async def chat(name: str, runtime: Runtime = runtime) -> list[str]:
            async with ECHO.start(runtime) as scope:
                return [await scope.run_turn(text) for text in (f"I am {name}", "Who am I?")]

        memory.forget_sent()
        assert await side_by_side(chat, slower) == expected
    assert memory.sent == memory.intents == []


async def test_a_turn_with_another_text_is_made_again() -> None:
    memory = Turns()
    for text in ("delete nothing", "delete everything"):
        async with ECHO.start(Runtime([ECHO], executor=memory)) as scope:
            assert await scope.run_turn(text) == text


async def test_a_turn_whose_digest_is_not_known_is_made_again() -> None:
    memory = Turns()
    for _ in range(2):
        memory.finished = {key: replace(recalled, digest=None) for key, recalled in memory.finished.items()}
        memory.forget_sent()
        async with ECHO.start(Runtime([ECHO], executor=memory)) as scope:
            assert await scope.run_turn("go") == "go"
        assert len(memory.intents) == 1


@pytest.mark.parametrize("is_conversation", [False, True])
async def test_the_history_of_a_worker_is_part_of_its_key(is_conversation: bool) -> None:
    """Its times and ids are not: they differ from run to run."""
    memory = Turns()

    def history(name: str) -> list[ModelMessage]:
        return [ModelRequest(parts=[UserPromptPart(f"I am {name}")]), says("hello")]

    for slower in ("Bob", "Ann"):
        runtime = Runtime([ECHO], executor=memory)

        async def run(name: str, runtime: Runtime = runtime) -> tuple[str, int]:
            scope = ECHO.start(runtime, message_history=history(name), is_conversation=is_conversation)
            output = await scope.run_turn("Who am I?")
            await scope.close()
            return output, len(scope.messages)

        memory.forget_sent()
        assert await side_by_side(run, slower) == [("I am Ann / Who am I?", 4), ("I am Bob / Who am I?", 4)]
    assert memory.sent == memory.intents == []


async def test_a_lone_run_whose_conversation_is_not_known_is_made_again() -> None:
    memory = Memory()
    for _ in range(2):
        memory.forget_sent()
        scope = ECHO.start(Runtime([ECHO], executor=memory), is_conversation=False)
        assert await scope.run_turn("go") == "go"
        assert len(scope.messages) == 2 and len(memory.intents) == 1
        await scope.close()


async def test_a_turn_that_cannot_be_made_takes_no_number() -> None:
    """A conversation that is taken up from its record has the same keys."""
    keys = list[list[str]]()
    for turns in (("one", "missing", "two"), ("one", "two")):
        events = list[Event]()
        worker = WorkerEntry(name="w", model=scripted(*map(says, turns)))
        async with worker.start(Runtime([worker], message_callback=events.append)) as scope:
            for turn in turns:
                files = ["/missing.txt"] if turn == "missing" else []
                if files:
                    with pytest.raises(LlmDoError):
                        await scope.run_turn(turn, attachments=files)
                    assert scope.frame.ended and scope.frame.record is not None
                else:
                    await scope.run_turn(turn)
        keys.append([str(event.key) for event in events if isinstance(event, CallOpened)])
    assert keys[0] == keys[1] == ["/w@.1", "/w@.2"]


class Account:
    def __init__(self, owner: str) -> None:
        self.owner = owner


async def test_calls_below_one_whose_arguments_have_no_canonical_form_are_not_recalled() -> None:
    memory = Memory()

    async def run(slower: str) -> list[Any]:
        current = list[str]()

        @entry
        async def confirm(question: str) -> str:
            return f"yes, {current[-1]}"

        @entry
        async def handle(ctx: RunContext[Context], account: Any) -> str:
            current.append(account.owner)
            return str(await ctx.deps.call("confirm", "may I?"))

        @entry
        async def top(ctx: RunContext[Context]) -> list[Any]:
            return await side_by_side(lambda name: ctx.deps.call("handle", Account(name)), slower)

        memory.finished = {key: known for key, known in memory.finished.items() if key.count("/") > 1}
        return list(await Runtime([confirm, handle, top], executor=memory).call("top"))

    assert await run("Bob") == await run("Ann") == ["yes, Ann", "yes, Bob"]


async def test_turns_after_one_whose_arguments_have_no_canonical_form_are_not_recalled() -> None:
    memory = Turns()
    for owner in ("Ann", "Bob"):
        async with ECHO.start(Runtime([ECHO], executor=memory)) as scope:
            await scope.run_turn(f"I am {owner}", account=Account(owner))
            assert await scope.run_turn("Who am I?") == f"{prompts(scope.messages[:1])} / Who am I?"
    assert len(memory.intents) == 4
