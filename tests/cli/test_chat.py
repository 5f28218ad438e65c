"""`llm-do chat` on a screen, with a pilot in place of a person."""

import asyncio
import io
import math
import os
import pty
import re
import sys
import threading
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import click
import pytest
from inline_snapshot import snapshot
from pydantic import BaseModel
from pydantic_ai import BinaryContent, RunContext
from pydantic_ai.exceptions import ModelHTTPError
from pydantic_ai.messages import ModelMessage, ModelRequest, UserPromptPart
from pydantic_ai.models import Model
from pydantic_ai.models.function import AgentInfo, DeltaToolCall, FunctionModel
from pydantic_ai.models.openai import OpenAIChatModel
from pydantic_ai.providers.openai import OpenAIProvider
from textual import events
from textual.pilot import Pilot
from textual.widgets import OptionList

from llm_do import (
    Context,
    Limits,
    RootConfig,
    Runtime,
    SandboxConfig,
    UnknownEntryError,
    WorkerEntry,
    WorkerRegistry,
    entry,
)
from llm_do.cli.commands.chat import has_full_terminal
from llm_do.cli.main import program
from llm_do.cli.support.line_chat import run_line_chat
from llm_do.cli.support.options import SessionOptions
from llm_do.cli.terminal.errors import Exit
from llm_do.cli.tui.app import ChatApp
from llm_do.cli.tui.approval import ApprovalPanel, ArgumentsArea, Choices
from llm_do.cli.tui.widgets import Answer, Calls, Log, Notice, Prompt, Question
from llm_do.toolsets.files import FILE_TOOLS
from llm_do.toolsets.shell import shell

from ..processes import PATIENCE
from ..scripted import answers, calls, says, scripted
from .server import Step, serve

pytestmark = pytest.mark.anyio


@entry
async def search(query: str) -> str:
    """Search for documents."""
    return f"found {query}"


ran: list[dict[str, Any]] = []


@entry(requires_approval=True)
async def send(to: str, text: str = "") -> str:
    """Send a letter."""
    ran.append({"to": to, "text": text})
    return "sent"


@pytest.fixture(autouse=True)
def _nothing_ran() -> None:
    ran.clear()


class Chat:
    """A person in front of the screen."""

    def __init__(self, app: ChatApp, pilot: Pilot[int]) -> None:
        self.app = app
        self.pilot = pilot
        self.press = pilot.press

    async def until(self, condition: Callable[[], object]) -> None:
        end = time.monotonic() + PATIENCE
        while not condition():
            assert time.monotonic() < end, self.screen()
            await asyncio.sleep(0.005)
        await self.pilot.pause()

    async def type(self, text: str) -> None:
        """Write into the prompt and send it."""
        self.app.query_one(Prompt).text = text
        await self.press("enter")
        await self.pilot.pause()

    async def say(self, text: str) -> None:
        """Take a turn to its end."""
        await self.type(text)
        await self.until(lambda: not self.app.busy)

    async def be_asked(self, text: str = "go") -> ApprovalPanel:
        await self.type(text)
        await self.until(lambda: self.panels and isinstance(self.app.focused, Choices))
        return self.panels[0]

    async def decide(self, *keys: str) -> None:
        await self.press(*keys)
        await self.until(lambda: not self.app.busy)

    @property
    def panels(self) -> list[ApprovalPanel]:
        return [panel for panel in self.app.query(ApprovalPanel) if panel.waits]

    def lines(self) -> list[str]:
        """What stands on the screen. Times are made the same, and the room on the right is left out."""
        strips = self.app.screen._compositor.render_strips()
        lines = ["".join(segment.text for segment in strip).rstrip() for strip in strips]
        return [re.sub(r"\d+\.\d+s", "0.0s", line) for line in lines]

    def screen(self) -> str:
        return "\n" + "\n".join(self.lines()) + "\n"

    async def screen_at_rest(self) -> str:
        """The screen, when nothing scrolls any more."""
        seen = [self.screen()]
        while len(seen) < 4 or len(set(seen[-4:])) > 1:
            await asyncio.sleep(0.02)
            await self.pilot.pause()
            seen.append(self.screen())
        return seen[-1]

    def said(self) -> list[str]:
        """The conversation, in words."""
        found = []
        for child in self.app.query_one(Log).children:
            if isinstance(child, Answer):
                found.append(child.source)
            elif isinstance(child, Question | Notice):
                found.append(str(child.content))
        return found[1:]  # without the greeting


@asynccontextmanager
async def chat(
    model: Model,
    *,
    worker: WorkerEntry[Any] | None = None,
    size: tuple[int, int] = (100, 30),
    grace: float = 0,
    **options: Any,
) -> AsyncIterator[Chat]:
    worker = worker or WorkerEntry(name="helper", instructions="Help.", tools=[search, send])
    app = ChatApp(
        worker,
        lambda feed: Runtime([worker], model=model, approval_callback=feed, sinks=[feed], text_deltas=True, **options),
        grace=grace,
    )
    app.animation_level = "none"
    async with app.run_test(size=size) as pilot:
        yield Chat(app, pilot)
    await app.close()


def prompts(messages: list[ModelMessage]) -> list[Any]:
    return [
        part.content
        for message in messages
        if isinstance(message, ModelRequest)
        for part in message.parts
        if isinstance(part, UserPromptPart)
    ]


def echo() -> FunctionModel:
    """Answers with all that it was ever asked."""
    return scripted(lambda messages, info: says(" and ".join(map(str, prompts(messages)))))


class Slow:
    """A model that says a word, and the rest when it may."""

    def __init__(self) -> None:
        self.go_on = asyncio.Event()
        self.cancelled = False

        async def stream(messages: list[ModelMessage], info: AgentInfo) -> AsyncIterator[str]:
            yield "first "
            try:
                await self.go_on.wait()
            except asyncio.CancelledError:
                self.cancelled = True
                raise
            yield f"then {prompts(messages)}"

        self.model = FunctionModel(stream_function=stream, model_name="slow")


# -- turns -------------------------------------------------------------------------------------------


async def test_a_conversation_of_several_turns() -> None:
    async with chat(echo()) as person:
        await person.say("one")
        await person.say("two")
        assert [text.strip() for text in person.said()] == ["one", "one", "two", "one and two"]
        assert person.app.focused is person.app.query_one(Prompt)


async def test_the_answer_is_seen_while_it_is_written() -> None:
    slow = Slow()
    async with chat(slow.model) as person:
        await person.type("hello")
        await person.until(lambda: len(person.said()) == 2)
        assert person.said() == ["hello", "first "] and person.app.busy
        await person.type("are you there?")  # it is kept until the turn is over
        assert person.app.query_one(Prompt).text == "are you there?"
        slow.go_on.set()
        await person.until(lambda: not person.app.busy)
        assert person.said() == ["hello", "first then ['hello']"]


async def test_a_turn_can_be_cancelled_and_the_conversation_goes_on() -> None:
    slow = Slow()
    async with chat(slow.model) as person:
        slow.go_on.set()
        await person.say("one")
        for key in ("escape", "ctrl+c"):
            slow.go_on.clear()
            slow.cancelled = False
            before = len(person.said())
            await person.type("two")
            await person.until(lambda before=before: len(person.said()) == before + 2)
            await person.press(key)
            await person.until(lambda: not person.app.busy)
            assert slow.cancelled
            assert person.said()[-1] == "The turn was cancelled. The worker does not remember it."
        slow.go_on.set()
        await person.say("three")
        assert person.said()[-1] == "first then ['one', 'three']"
        await person.press("ctrl+c")
        assert person.app._exit is False
        await person.press("ctrl+c")  # only the second one quits
        assert person.app._exit is True


async def test_a_cancelled_turn_tells_which_synchronous_tool_it_left_running() -> None:
    started, go_on = threading.Event(), threading.Event()

    @entry
    def hang() -> str:
        started.set()
        go_on.wait()
        return "over"

    worker = WorkerEntry(name="helper", tools=[hang])
    async with chat(scripted(calls(("hang", {}))), worker=worker) as person:
        await person.type("go")
        await person.until(started.is_set)
        await person.press("escape")
        await person.until(lambda: not person.app.busy)
        go_on.set()
        assert person.said()[-1] == (
            "The turn was cancelled. The worker does not remember it. "
            "Left running, since threads cannot be stopped: helper > hang."
        )


async def test_errors_of_a_turn_are_told_and_the_conversation_goes_on() -> None:
    def fail(messages: list[ModelMessage], info: AgentInfo) -> Any:
        raise ModelHTTPError(429, "gpt", {"error": {"message": "slow [b]down[/b]\x1b[2J"}})

    async with chat(scripted(fail, says("fine")), limits=Limits(max_requests=2)) as person:
        await person.say("one")
        assert person.said()[-1].startswith(
            "The provider of gpt answered that there were too many requests, or that the account is empty (429). "
            "slow [b]down[/b]\\x1b[2J"
        )
        await person.say("two")
        assert person.said()[-1].strip() == "fine"
        await person.say("three")
        assert "the 2 model requests of the session are used up" in person.said()[-1]


async def test_an_output_that_is_no_text_and_an_input_that_is_declared() -> None:
    class Verdict(BaseModel):
        score: int

    class Deck(BaseModel):
        name: str
        pages: int

    judge = WorkerEntry(name="judge", instructions="Judge.", input_type=Deck, output_type=Verdict)
    async with chat(scripted(answers({"score": 3})), worker=judge) as person:
        await person.say("acme")
        assert "missing argument 'pages'" in person.said()[-1]
        assert 'Write the input as JSON: {"name": ..., "pages": ...}' in person.said()[-1]
        await person.say('{"name": "acme", "pages": 3}')
        assert person.said()[-1] == '```json\n{\n  "score": 3\n}\n```'


# -- approvals ---------------------------------------------------------------------------------------

LETTER = calls(("send", {"to": "ann", "text": "hi"}))


async def test_yes_once_and_for_the_session() -> None:
    async with chat(scripted(LETTER, LETTER, LETTER, says("done"))) as person:
        await person.be_asked()
        await person.press("p", "1")  # no pattern is offered
        assert person.panels and not ran
        await person.press("y")
        await person.until(lambda: len(ran) == 1 and person.panels)
        await person.decide("s")
        assert ran == [{"to": "ann", "text": "hi"}] * 3


async def test_a_choice_by_arrows_and_by_mouse() -> None:
    async with chat(scripted(LETTER, says("one"), LETTER, says("two"))) as person:
        await person.be_asked()
        await person.press("enter")  # nothing is chosen yet
        assert not ran and person.panels
        await person.decide("down", "enter")
        assert len(ran) == 1
        panel = await person.be_asked()
        await person.pilot.click(panel.query_one(OptionList), offset=(5, 0))
        await person.until(lambda: not person.app.busy)
        assert len(ran) == 2


def keeper(folder: Path) -> WorkerEntry[Any]:
    (folder / "out").mkdir()
    (folder / "out" / "notes.md").write_text("# Notes\n\none\ntwo\nthree\n")
    sandbox = SandboxConfig(paths={"out": RootConfig(root="out", mode="rw")})
    return WorkerEntry(
        name="keeper", instructions="Keep notes.", sandbox=sandbox, base=folder, tools=[*FILE_TOOLS, shell]
    )


async def test_a_pattern(tmp_path: Path) -> None:
    write = [calls(("write_file", {"path": f"out/{number}.md", "content": "x"})) for number in (1, 2)]
    async with chat(scripted(*write, says("done")), worker=keeper(tmp_path)) as person:
        await person.be_asked()
        assert any("yes, in this session: sandbox.write with path out/*" in line for line in person.lines())
        await person.decide("p")
        assert (tmp_path / "out" / "2.md").read_text() == "x"


async def test_other_arguments() -> None:
    async with chat(scripted(LETTER, says("done"))) as person:
        panel = await person.be_asked()
        await person.press("e")
        area = panel.query_one(ArgumentsArea)
        assert area.text == '{\n  "to": "ann",\n  "text": "hi"\n}'
        area.text = '{"to": "bob"'
        await person.press("ctrl+s")
        assert any("The text is not JSON" in line for line in person.lines())
        await person.press("escape")
        await person.press("e")
        area.text = '{"to": "bob"}'
        await person.decide("ctrl+s")
        assert ran == [{"to": "bob", "text": ""}]


async def test_a_command_is_edited_without_what_is_shown_beside_it(tmp_path: Path) -> None:
    run = calls(("shell", {"command": "echo a | cat"}))
    async with chat(scripted(run, says("done")), worker=keeper(tmp_path)) as person:
        panel = await person.be_asked()
        await person.press("e")
        area = panel.query_one(ArgumentsArea)
        assert '"runs"' not in area.text
        await person.press("escape")
        await person.decide("q")


async def test_no_with_a_note() -> None:
    seen: list[str] = []

    def read(messages: list[ModelMessage], info: AgentInfo) -> Any:
        seen.append(str(messages[-1].parts[0]))
        return says("a pity")

    async with chat(scripted(LETTER, read)) as person:
        await person.be_asked()
        await person.decide("n", *"yes", "enter")  # letters in a note are no answers
        assert not ran and "yes" in seen[0]
        assert person.said()[-1].strip() == "a pity"
        assert any("send: refused: yes" in line for line in person.lines())


async def test_no_and_end_the_turn() -> None:
    async with chat(scripted(LETTER, says("go on"))) as person:
        await person.be_asked()
        await person.decide("q")
        assert not ran and person.said()[-1].startswith("You ended the turn.")
        await person.say("and now?")
        assert person.said()[-1].strip() == "go on"


async def test_a_turn_is_cancelled_while_it_asks() -> None:
    async with chat(scripted(LETTER, says("fine"))) as person:
        await person.be_asked()
        await person.decide("escape")
        assert not ran and not person.panels
        await person.until(lambda: any("not answered" in line for line in person.lines()))
        await person.say("again")
        assert person.said()[-1].strip() == "fine"


async def test_two_questions_come_one_after_the_other() -> None:
    both = calls(("send", {"to": "ann"}), ("send", {"to": "bob"}))
    async with chat(scripted(both, says("done"))) as person:
        first = await person.be_asked()
        assert person.panels == [first]
        await person.press("y")
        await person.until(lambda: person.panels not in ([], [first]) and isinstance(person.app.focused, Choices))
        await person.decide("n", "enter")
        assert [letter["to"] for letter in ran] == ["ann"]


MANY = calls(*[("send", {"to": "ann"})] * 25)


async def test_identical_calls_are_one_question_that_says_how_many() -> None:
    async with chat(scripted(MANY, says("done")), size=(80, 24)) as person:
        first = await person.be_asked()
        assert "25 identical calls of send wait" in person.screen() and "yes, to all 25" in person.screen()
        await person.press("y")
        await person.until(lambda: person.panels not in ([], [first]) and isinstance(person.app.focused, Choices))
        assert "send: one of 25 allowed" in person.screen()
        assert "24 identical calls of send wait" in person.screen()
        await person.decide("n", "enter")
        assert len(ran) == 1
        assert any("send: all 24 refused" in line for line in person.lines())


async def test_all_identical_calls_can_be_allowed_at_once() -> None:
    async with chat(scripted(MANY, says("done"))) as person:
        await person.be_asked()
        await person.decide("a")
        assert len(ran) == 25
        assert any("send: all 25 allowed" in line for line in person.lines())


async def test_other_arguments_are_for_one_of_the_identical_calls() -> None:
    async with chat(scripted(MANY, says("done"))) as person:
        first = await person.be_asked()
        await person.press("e")
        first.query_one(ArgumentsArea).text = '{"to": "bob"}'
        await person.press("ctrl+s")
        await person.until(lambda: person.panels not in ([], [first]) and isinstance(person.app.focused, Choices))
        await person.decide("n", "enter")
        assert [letter["to"] for letter in ran] == ["bob"]


async def test_all_is_no_answer_where_one_call_waits() -> None:
    async with chat(scripted(LETTER, says("done"))) as person:
        await person.be_asked()
        await person.press("a")
        assert person.panels and not ran
        await person.decide("q")


async def test_a_question_is_deaf_at_first() -> None:
    """Somebody who writes while it comes up must not have answered it."""
    async with chat(scripted(LETTER, says("done")), grace=600) as person:
        await person.be_asked()
        await person.press("y", "s", "q")
        assert person.panels and not ran
        await person.decide("escape")


async def test_a_question_stays_deaf_while_somebody_types(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever they type: a key that means nothing shows as well that the question is not read yet."""
    now = [1000.0]
    monkeypatch.setattr("llm_do.cli.tui.approval.monotonic", lambda: now[0])
    async with chat(scripted(LETTER, says("done")), grace=0.5) as person:
        await person.be_asked()
        for letter in "maybe yes, why not say y ":
            now[0] += 0.4
            await person.press("space" if letter == " " else "comma" if letter == "," else letter)
        assert person.panels and not ran
        assert "Not answered yet" in person.screen()
        now[0] += 0.6
        await person.decide("y")
        assert len(ran) == 1


async def test_a_question_does_not_take_the_keys_from_a_text_that_is_being_written() -> None:
    slow = Slow()

    async def stream(messages: list[ModelMessage], info: AgentInfo) -> AsyncIterator[Any]:
        if len(messages) > 1:
            yield "done"
            return
        await slow.go_on.wait()
        yield {0: DeltaToolCall(name="send", json_args='{"to": "ann"}')}

    async with chat(FunctionModel(stream_function=stream)) as person:
        await person.type("go")
        await person.press("w", "h")
        slow.go_on.set()
        await person.until(lambda: person.panels)
        await person.press("y", "s")
        assert person.panels and not ran
        assert person.app.query_one(Prompt).text == "whys"
        await person.press("enter")  # goes to the question, and keeps the text
        await person.until(lambda: isinstance(person.app.focused, Choices))
        await person.decide("y")
        assert len(ran) == 1
        assert person.app.query_one(Prompt).text == "whys"


@pytest.mark.parametrize("text", ["y", "y\n", "a\n", "s\ny\n"])
async def test_a_paste_is_no_answer(text: str) -> None:
    async with chat(scripted(MANY, says("done"))) as person:
        await person.be_asked()
        person.app.post_message(events.Paste(text))
        await person.pilot.pause()
        assert person.panels and not ran
        await person.press("n")
        person.app.post_message(events.Paste(text))
        await person.pilot.pause()
        assert person.panels
        await person.decide("escape", "escape")
        assert not ran


async def test_a_question_that_cannot_be_seen_takes_no_answer() -> None:
    """In a terminal that is too small; afterwards it goes on."""
    async with chat(scripted(LETTER, says("done"))) as person:
        await person.be_asked()
        await person.pilot.resize_terminal(30, 8)
        await person.until(lambda: "Too small" in person.screen())
        await person.press("y", "down", "enter", "s", "q")
        assert person.panels and not ran
        await person.pilot.resize_terminal(80, 24)
        await person.until(lambda: "send wants to run" in person.screen())
        await person.until(lambda: isinstance(person.app.focused, Choices))
        await person.decide("y")
        assert len(ran) == 1


LONG = calls(("send", {"to": "ann", "text": "\n".join(f"line {number}" for number in range(1000))}))


@pytest.mark.parametrize("size", [(80, 24), (120, 40), (200, 24), (60, 24)])
async def test_all_of_a_question_is_on_the_screen(size: tuple[int, int]) -> None:
    """However long what would run is; and what is left out is said."""
    async with chat(scripted(LONG, says("done")), size=size) as person:
        await person.be_asked()
        await person.until(lambda: "send wants to run" in person.screen())
        seen = person.screen()
        assert all(text in seen for text in ("to: ann", "not all of it", "yes, this once", "no, and end the turn"))
        await person.decide("q")


@pytest.mark.parametrize("size", [(36, 10), (40, 12), (80, 14)])
async def test_where_a_question_does_not_fit_its_beginning_is_seen(size: tuple[int, int]) -> None:
    async with chat(scripted(LONG, says("done")), size=(100, 30)) as person:
        await person.be_asked()
        await person.pilot.resize_terminal(*size)
        await person.until(lambda: "send wants to run" in person.screen())
        await person.press(*["pagedown"] * 10)
        await person.until(lambda: "no, and end the turn" in person.screen())
        await person.decide("q")


async def test_all_of_a_long_text_is_shown_from_its_beginning() -> None:
    async with chat(scripted(LONG, says("done")), size=(80, 24)) as person:
        await person.be_asked()
        await person.press("f")
        await person.until(lambda: "line 1 " in person.screen() and "send wants to run" in person.screen())
        for _ in range(200):
            await person.press("pagedown")
            if "line 999" in person.screen():
                break
        await person.until(lambda: "line 999" in person.screen())
        await person.decide("q")


@pytest.mark.parametrize("keys", [["ctrl+q"], ["ctrl+c"], ["escape"], ["n", "ctrl+q"], ["e", "ctrl+c"]], ids="-".join)
async def test_whoever_leaves_while_asked_allows_nothing(keys: list[str]) -> None:
    async with chat(scripted(MANY, says("done"))) as person:
        await person.be_asked()
        await person.press(*keys)
        await person.until(lambda: not person.app.busy or not person.app.is_running)
    assert not ran


async def test_long_values_are_shown_on_demand() -> None:
    text = "a" * 1500 + "NEEDLE" + "b" * 1500
    async with chat(scripted(calls(("send", {"to": "ann", "text": text})), says("done")), size=(100, 40)) as person:
        await person.be_asked()
        assert "NEEDLE" not in person.screen() and "show all of it" in person.screen()
        await person.press("f", "pagedown")
        await person.until(lambda: "NEEDLE" in person.screen() and "show all of it" not in person.screen())
        await person.decide("q")


async def test_a_diff(tmp_path: Path) -> None:
    content = "# Notes\n\none\n2\nthree\n\tfour \x1b[31m[red]\n"
    write = calls(("write_file", {"path": "out/notes.md", "content": content}))
    async with chat(scripted(write, says("done")), worker=keeper(tmp_path), size=(90, 32)) as person:
        await person.be_asked("write")
        await person.until(lambda: "f1 Help" in person.screen())
        assert await person.screen_at_rest() == snapshot("""\

 keeper · scripted · 59 tok
  /help lists the commands.                         ▏ ▼ ● keeper 0.0s 59 tok
                                                  ▂ ▏ └ ? write_file waits for you 0.0s
 █ write                                            ▏
  · write_file(path='out/notes.md', content='# N…   ▏
                                                    ▏
 ╭─ write_file wants to run ─────────────────────╮  ▏
 │ calls: keeper > write_file                    │  ▏
 │ rule: tool 'write_file' requires approval     │  ▏
 │                                               │  ▏
 │ path: out/notes.md                            │  ▏
 │ @ -1,5 +1,6                                   │  ▏
 │   # Notes                                     │  ▏
 │                                               │  ▏
 │   one                                         │  ▏
 │ - two                                         │  ▏
 │ + 2                                           │  ▏
 │   three                                       │  ▏
 │ + →   four \\x1b[31m[red]                      │  ▏
 │                                               │  ▏
 │  y  yes, this once                            │  ▏
 │  s  yes, in this session with these arguments │  ▏
 │  p  yes, in this session: sandbox.write with  │  ▏
 │ path out/*                                    │  ▏
 │  e  edit the arguments                        │  ▏
 │  n  no, with a note                           │  ▏
 │  q  no, and end the turn                      │  ▏
 ╰───────────────────────────────────────────────╯  ▏
╭─ A question above waits: Enter goes to it ─────────────────────────────────────────────╮
│                                                                                        │
╰──────────────────────────────────────────────── Enter sends, Ctrl+J starts a new line ─╯
 ^q Quit  esc Cancel the turn  ^t Calls  f1 Help
""")
        await person.decide("n", "enter")


async def test_diffs_of_edits_and_of_new_files(tmp_path: Path) -> None:
    steps = [
        calls(("edit_file", {"path": "out/notes.md", "old": "two", "new": "2"})),
        calls(("edit_file", {"path": "out/notes.md", "old": "nowhere", "new": "2"})),
        calls(("write_file", {"path": "out/new.md", "content": "fresh\n"})),
        calls(("write_file", {"path": "elsewhere/new.md", "content": "fresh\n"})),
    ]
    async with chat(scripted(*steps, says("done")), worker=keeper(tmp_path), size=(100, 60)) as person:
        await person.be_asked()
        assert "- two" in person.screen() and "+ 2" in person.screen() and "one" in person.screen()
        await person.press("y")
        await person.until(lambda: "exactly once: this" in person.screen())
        await person.press("n", "enter")
        await person.until(lambda: "a new file" in person.screen())
        assert "+ fresh" in person.screen()
        await person.decide("y")


# -- commands ----------------------------------------------------------------------------------------


async def test_commands(tmp_path: Path) -> None:
    async with chat(echo()) as person:
        await person.type("/usage")
        assert person.said()[-1] == "No model was used yet."
        await person.say("one")
        await person.type("/usage")
        assert re.fullmatch(r"scripted: 1 request, [\d,]+ tokens in, \d+ out, price not known", person.said()[-1])
        await person.type("/tools")
        assert person.said()[-1] == "search: Search for documents.\nsend (asks): Send a letter."
        await person.type("/model")
        assert person.said()[-1] == "The model is scripted."
        await person.type("/hepl")
        assert "There is no command /hepl. Did you mean '/help'" in person.said()[-1]
        await person.say("//slash")
        assert person.said()[-1].strip() == "one and /slash"
        await person.press("f1")
        assert "/save" in person.said()[-1]
        await person.type("/clear")
        assert not list(person.app.query_one(Calls).root.children)
        await person.say("two")
        assert [text.strip() for text in person.said()][-2:] == ["two", "two"]
        await person.type("/quit")
        assert person.app._exit is True and person.app.return_value == 0


async def test_another_model_knows_what_was_said() -> None:
    async with chat(echo()) as person:
        await person.say("one")
        await person.type("/model nowhere:nothing")
        await person.until(lambda: "cannot use model 'nowhere:nothing'" in person.said()[-1])
        assert "The model is still scripted." in person.said()[-1]
        await person.type("/model test")
        await person.until(lambda: "The model is now test." in person.said()[-1])
        await person.press("ctrl+t")
        talk = person.app.conversation
        assert talk.model == "test" and len(talk._scope.messages) == 2
        assert "helper · test" in person.lines()[0]


async def test_save_as_markdown(tmp_path: Path) -> None:
    path = tmp_path / "talk.md"
    async with chat(scripted(calls(("search", {"query": "tea"})), says("It is *good*."))) as person:
        await person.say("tea?")
        assert any("✓ search(query='tea')" in line for line in person.lines())
        await person.type(f"/save {path}")
        await person.until(lambda: "The conversation is in" in person.said()[-1])
        assert path.read_text() == snapshot("""\
# Conversation with helper

Model: scripted

## You

tea?

## helper

- `search(query='tea')`

It is *good*. \n\
""")
        await person.type(f"/save {path}")
        await person.until(lambda: "exists already" in person.said()[-1])
        await person.type(f"/save {tmp_path / 'no' / 'where.md'}")
        await person.until(lambda: "No such file or directory" in person.said()[-1])
        await person.type("/save")
        assert "No file is named." in person.said()[-1]


# -- the prompt --------------------------------------------------------------------------------------


async def test_lines_and_history() -> None:
    async with chat(echo()) as person:
        prompt = person.app.query_one(Prompt)
        await person.press(*"one", "ctrl+j", *"more", "enter")
        await person.until(lambda: not person.app.busy and len(person.said()) == 2)
        assert person.said()[0] == "one\nmore" and prompt.text == ""
        await person.say("two")
        await person.press(*"draft", "up")
        assert prompt.text == "two"
        await person.press("up")
        assert prompt.text == "one\nmore"
        await person.press("up")  # the cursor is in the second line
        assert prompt.cursor_location[0] == 0 and prompt.text == "one\nmore"
        await person.press("down", "down")
        assert prompt.text == "two"
        await person.press("down")
        assert prompt.text == "draft"
        await person.press("ctrl+d")
        assert person.app._exit is False
        prompt.text = ""
        await person.press("ctrl+d")
        assert person.app._exit is True


# -- the screen --------------------------------------------------------------------------------------


async def test_calls_beside_the_conversation() -> None:
    inner = WorkerEntry(
        name="inner",
        instructions="Search.",
        tools=[search],
        model=scripted(calls(("search", {"query": "x"})), says("x")),
    )
    outer = WorkerEntry(name="outer", instructions="Delegate.", tools=[inner])
    model = scripted(calls(("inner", {"input": "x"})), says("# Result\n\nIt is **x**, and a list:\n\n- one\n- two"))
    async with chat(model, worker=outer, size=(90, 20)) as person:
        await person.say("go")
        assert await person.screen_at_rest() == snapshot("""\

 outer · scripted · 222 tok
                                                    ▏ ▼ ✓ outer 0.0s 117 tok
                                                    ▏ └ ▼ ✓ inner 0.0s 105 tok
  Talking to outer                                  ▏   └ ✓ search 0.0s
  /help lists the commands.                         ▏
                                                    ▏
 █ go                                               ▏
  ✓ inner(input='x')                                ▏
                                                    ▏
  Result                                            ▏
                                                    ▏
  It is x, and a list:                              ▏
                                                    ▏
  • one                                             ▏
  • two                                             ▏
                                                    ▏
╭────────────────────────────────────────────────────────────────────────────────────────╮
│                                                                                        │
╰──────────────────────────────────────────────── Enter sends, Ctrl+J starts a new line ─╯
 ^q Quit  esc Cancel the turn  ^t Calls  f1 Help
""")


async def test_a_server_that_ended_is_no_call_of_the_worker() -> None:
    """It stands in the tree, and a notice tells it."""

    @entry
    def lose(ctx: RunContext[Context]) -> str:
        worker = ctx.deps.frame.worker
        assert worker is not None
        ctx.deps.runtime.recorder.add_whole(worker, "small", "server", {}, error="It ended.")
        return "lost"

    worker = WorkerEntry(name="w", instructions="x", tools=[lose])
    async with chat(scripted(calls(("lose", {})), says("x")), worker=worker, size=(90, 20)) as person:
        await person.say("go")
        screen = await person.screen_at_rest()
    assert "✓ lose()" in screen and "small()" not in screen
    assert "✗ small" in screen


async def test_a_command_that_failed_and_an_answer_that_was_cut_off_are_marked(tmp_path: Path) -> None:
    """The command has a cross in the conversation and beside it; the answer, a line that says what cut it off."""
    steps = Step(tool="shell", arguments={"command": "cat missing.txt"}), Step("half an", finish="length")
    with serve(*steps) as server:
        provider = OpenAIProvider(base_url=f"{server.url}/v1", api_key="none")
        async with chat(OpenAIChatModel("m", provider=provider), worker=keeper(tmp_path), size=(120, 30)) as person:
            await person.be_asked()
            await person.decide("y")
            screen = await person.screen_at_rest()
            said = " ".join(person.said())
    assert screen.count("✗ shell") == 2 and "✓ shell" not in screen
    assert "✓ keeper 0.0s cut off" in screen
    assert "An answer of keeper (openai:scripted) was cut off: the model's own limit was reached" in said


async def test_a_narrow_terminal() -> None:
    async with chat(echo(), size=(60, 16)) as person:
        await person.say("one")
        assert not person.app.query_one(Calls).display
        await person.press("ctrl+t")
        assert person.app.query_one(Calls).display
        await person.pilot.pause()
        assert await person.screen_at_rest() == snapshot("""\

 helper · scripted · 51 tok
  Talking to helper                                       ▁
  /help lists the commands.

 █ one

  one

─Calls──────────────────────────────────────────────────────
 ✓ helper 0.0s 51 tok


╭──────────────────────────────────────────────────────────╮
│                                                          │
╰────────────────── Enter sends, Ctrl+J starts a new line ─╯
 ^q Quit  esc Cancel the turn  ^t Calls  f1 Help
""")
        await person.press("ctrl+t")
        assert not person.app.query_one(Calls).display


async def test_a_tiny_terminal_says_so_and_recovers() -> None:
    async with chat(echo(), size=(30, 8)) as person:
        assert "Too small: 30 x 8." in person.screen() and "36 x 10" in person.screen()
        await person.pilot.resize_terminal(90, 20)
        await person.until(lambda: "helper · scripted" in person.screen())
        await person.say("one")
        assert "Too small" not in person.screen()


HOSTILE = "[bold red]markup[/] \x1b]0;title\x07 \x1b[2J \u202eevil\u202c <b>html</b> [@click=app.quit]x[/] `[/]`"


async def test_hostile_text_is_only_text() -> None:
    hostile = WorkerEntry(name="helper", description=HOSTILE, instructions="x", tools=[search, send])
    steps = [
        calls(("search", {"query": HOSTILE}), ("send", {"to": HOSTILE, HOSTILE: 1})),
        calls(("send", {"to": HOSTILE, "text": f"{HOSTILE}\nto: somebody else"})),
        says(HOSTILE),
    ]
    async with chat(scripted(*steps), worker=hostile, size=(120, 60)) as person:
        await person.be_asked(HOSTILE)
        await person.until(lambda: "to: somebody else" in person.screen())
        assert "│ to: somebody else" in person.screen()
        await person.decide("n", "enter")
        text = person.screen()
        assert not any((ord(char) < 32 and char != "\n") or char in "\x7f\x9b\u202e\u202c" for char in text)
        assert "[bold red]markup[/]" in text and "<b>html</b>" in text and "[@click=app.quit]x[/]" in text
        assert "\\x1b[2J" in text and "\\u202eevil\\u202c" in text


async def test_no_color(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NO_COLOR", "1")
    async with chat(scripted(LETTER, says("done"))) as person:
        await person.be_asked()
        svg = person.app.export_screenshot()
        colours = {colour.lower() for colour in re.findall(r"-r\d+ { fill: (#[0-9a-fA-F]{6})", svg)}
        colours.discard("#c5c8c6")  # of the picture, not of the app
        assert colours and all(colour[1:3] == colour[3:5] == colour[5:7] for colour in colours)
        await person.decide("q")


# -- line by line ------------------------------------------------------------------------------------


@pytest.fixture
def project(tmp_path: Path) -> Path:
    (tmp_path / "workers").mkdir()
    (tmp_path / "tools.py").write_text(
        "from llm_do import entry\n\n@entry\ndef twice(n: int) -> int:\n    return 2 * n\n\n"
        "@entry(requires_approval=True)\ndef wipe(path: str) -> str:\n    return 'wiped'\n"
    )
    (tmp_path / "workers" / "helper.md").write_text("---\nname: helper\ntools: [twice, wipe]\n---\nHelp.\n")
    return tmp_path


@pytest.fixture
def by_lines(project: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., int]:
    def talk(text: str, model: Model, files: Sequence[BinaryContent] = (), **options: Any) -> int:
        monkeypatch.setattr("sys.stdin", io.StringIO(text))
        registry = WorkerRegistry(project)
        worker = registry["helper"]
        assert isinstance(worker, WorkerEntry)
        return run_line_chat(registry, worker, SessionOptions(model=model, **options), files)

    return talk


def test_lines_are_turns(by_lines: Callable[..., int], capsys: pytest.CaptureFixture[str]) -> None:
    code = by_lines("one\n\ntwo \\\nand more\n/usage\n//x", echo())
    said = capsys.readouterr()
    assert [line.rstrip() for line in said.out.splitlines()] == [
        "one",
        "one and two",
        "and more",
        "one and two",
        "and more and /x",
    ]
    assert "scripted: 2 requests" in said.err and code == Exit.OK


def test_calls_go_to_standard_error(by_lines: Callable[..., int], capsys: pytest.CaptureFixture[str]) -> None:
    steps = calls(("twice", {"n": 2})), says("four"), answers({"x": 1})
    assert by_lines("go", scripted(*steps)) == Exit.OK
    said = capsys.readouterr()
    assert said.out.strip() == "four"
    assert said.err.splitlines()[1:] == ["  > twice(n=2)"] and "The price of model 'scripted'" in said.err
    assert by_lines("go", scripted(calls(("twice", {"n": 2})), says("four")), quiet=True) == Exit.OK
    assert capsys.readouterr().err == ""


def test_an_answer_that_was_cut_off_is_told_after_it(
    by_lines: Callable[..., int], capsys: pytest.CaptureFixture[str]
) -> None:
    """On standard error, as calls are."""
    with serve(Step("half an", finish="length")) as server:
        provider = OpenAIProvider(base_url=f"{server.url}/v1", api_key="none")
        assert by_lines("go", OpenAIChatModel("m", provider=provider), max_cost=math.inf) == Exit.OK
    said = capsys.readouterr()
    assert said.out.strip() == "half an"
    assert "llm-do: An answer of helper (openai:scripted) was cut off: the model's own limit was reached" in said.err


def test_nobody_is_asked_without_a_terminal(by_lines: Callable[..., int], capsys: pytest.CaptureFixture[str]) -> None:
    steps = calls(("wipe", {"path": "x"})), says("it was refused")
    assert by_lines("go\n/quit\nmore\n", scripted(*steps)) == Exit.OK
    said = capsys.readouterr()
    assert said.out.strip() == "it was refused"
    assert "! wipe: ApprovalDenied: helper > wipe was refused: nobody can be asked" in said.err
    assert by_lines("go", scripted(*steps), approve_all=True) == Exit.OK
    assert "refused" not in capsys.readouterr().err


def test_the_last_turn_decides_the_code(by_lines: Callable[..., int], capsys: pytest.CaptureFixture[str]) -> None:
    def fail(messages: list[ModelMessage], info: AgentInfo) -> Any:
        raise ModelHTTPError(500, "gpt", "oops")

    assert by_lines("one\ntwo\n", scripted(fail, says("fine"))) == Exit.OK
    assert "Error: The provider of gpt answered with the error 500. oops" in capsys.readouterr().err
    assert by_lines("one\ntwo\n", scripted(says("fine"), fail)) == Exit.FAILED
    assert by_lines("one\n", echo(), max_cost=1.0) == Exit.OVER_BUDGET


def test_who_can_be_talked_with(project: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO(""))

    def run(*words: str) -> Any:
        return program.main(["-C", str(project), "chat", *words], standalone_mode=False)

    with pytest.raises(UnknownEntryError, match="Did you mean 'helper'"):
        run("helpr")
    with pytest.raises(click.UsageError, match="'twice' is a function, not a worker"):
        run("twice")
    with pytest.raises(click.UsageError, match="opposites"):
        run("helper", "--strict", "--approve-all")
    with pytest.raises(click.UsageError, match="does not exist"):
        run("helper", "-a", str(tmp_path / "nothing"))
    assert run("helper", "--model", "test") == Exit.OK


def test_an_attachment_goes_with_the_first_turn(
    project: Path, by_lines: Callable[..., int], monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[Any] = []

    def look(messages: list[ModelMessage], info: AgentInfo) -> Any:
        seen.append(prompts(messages)[-1])
        return says("ok")

    by_lines("one\ntwo\n", scripted(look), files=[BinaryContent(b"x", media_type="text/plain")])
    assert len(seen[0]) == 2 and seen[1] == "two"
    (project / "a.txt").write_text("hello")
    monkeypatch.setattr("sys.stdin", io.StringIO("one"))
    words = ["-C", str(project), "chat", "helper", "--model", "test", "-a", str(project / "a.txt"), "--strict"]
    assert program.main(words, standalone_mode=False) == Exit.OK


@pytest.mark.parametrize("elsewhere", ["stdin", "stdout", "stderr", None])
def test_the_screen_needs_all_three_streams(
    elsewhere: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`llm-do chat 2>log` is line by line: a screen would be drawn into the file, and the terminal stay empty."""
    monkeypatch.setenv("TERM", "xterm")
    ends = pty.openpty()
    with os.fdopen(ends[0], "rb"), os.fdopen(ends[1], "r+b", 0) as terminal, (tmp_path / "log").open("w+b") as log:
        for name in ("stdin", "stdout", "stderr"):
            monkeypatch.setattr(sys, name, log if name == elsewhere else terminal)
        fits = has_full_terminal()
        monkeypatch.undo()
    assert fits == (elsewhere is None)
