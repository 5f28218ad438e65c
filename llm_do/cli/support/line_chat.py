"""The line mode of `llm-do chat`, for pipes and screen readers. Standard output has the answers and nothing else."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

import click
from pydantic_ai.messages import MultiModalContent

from ...core.entries import WorkerEntry
from ...core.events import Event
from ...projects.registry import WorkerRegistry
from ..terminal.approver import TerminalApprover
from ..terminal.error_text import cut_off_line
from ..terminal.keys import Keyboard
from ..terminal.live import stderr_console
from .conversation import Conversation, call_in_words, readable
from .exits import Exit, code_of, report
from .model_offer import choose_later
from .options import SessionOptions
from .sessions import open_session


def chat_by_lines(
    registry: WorkerRegistry, worker: WorkerEntry[Any], options: SessionOptions, files: Sequence[MultiModalContent] = ()
) -> int:
    """Talk until the input ends. The code says how the last turn went."""
    keyboard = Keyboard.open()
    printer = Printer(quiet=options.quiet)
    approver = None
    if keyboard is not None:
        approver = TerminalApprover(stderr_console(), keyboard)
    runtime = open_session(
        registry,
        options,
        approver=approver,
        sinks=[printer],
        text_deltas=True,
        asks_for_more=True,
        choose_model=choose_later(registry, options, asks=True),
    )
    chat = PlainChat(Conversation(worker, runtime, files), printer)
    # One loop for all turns, which stands still while a line is read: what interrupts a read interrupts Python.
    with asyncio.Runner() as runner:
        try:
            return chat.run(runner)
        except BrokenPipeError as exc:  # click would call it a failure
            return report(exc)
        finally:
            runner.run(chat.conversation.close())


class Printer:
    """Prints answers as they come, and a line for each call."""

    def __init__(self, *, quiet: bool = False) -> None:
        self._quiet = quiet
        self._terminal = sys.stdout.isatty()
        self._turn: int | None = None
        self._column = 0
        self.spoke = False
        """Whether there was any text since the last call."""
        self.broken: OSError | None = None
        """Why nothing more can be printed."""

    def on_event(self, event: Event) -> None:
        match event.type:
            case "call_opened" | "call_closed" if event.kind == "server":  # a notice tells it
                pass
            case "call_opened" if event.parent_id is None:
                self._turn = event.call_id
            case "call_opened":
                self.end_line()
                self.spoke = False
                self.tell(f"{'  ' * event.depth}> {call_in_words(event.name, event.arguments)}")
            case "call_closed" if event.parent_id is not None and (problem := event.error or event.failure):
                self.tell(f"{'  ' * event.depth}! {event.name}: {readable(problem)}")
            case "request_ended" if event.cut_off is not None and event.error is None:
                self.end_line()
                self.tell(f"llm-do: {cut_off_line(event)}")
            case "notice":
                self.end_line()
                self.tell(f"llm-do: {readable(event.text)}")
            case "text_delta" if event.call_id == self._turn and not event.thinking:
                self.write(event.text)

    def write(self, text: str) -> None:
        """Print a piece of the answer. A program that reads it gets it as it is; a terminal must not obey it."""
        if not text.strip() and not self.spoke:
            return
        self.spoke = True
        self._put(readable(text) if self._terminal else text)
        self._column = 0 if text.endswith("\n") else 1

    def _put(self, text: str) -> None:
        if self.broken is not None:
            return
        try:
            sys.stdout.write(text)
            sys.stdout.flush()
        except OSError as exc:  # whoever read it has left, or the disk is full
            self.broken = exc

    def end_line(self) -> None:
        if self._column:
            self._put("\n")
            self._column = 0

    def tell(self, text: str, *, always: bool = False) -> None:
        if always or not self._quiet:
            click.echo(text, err=True)


class PlainChat:
    """Reads lines, and takes a turn for each."""

    def __init__(self, conversation: Conversation, printer: Printer) -> None:
        self.conversation = conversation
        self._printer = printer
        self._interactive = sys.stdin.isatty()
        self._code = Exit.OK

    def run(self, runner: asyncio.Runner) -> int:
        """Talk until the input ends."""
        if self._interactive:
            name, model = self.conversation.worker.name, self.conversation.model
            self._printer.tell(f"You talk with {name} ({readable(model)}). /help tells more, Ctrl-D ends.")
            with suppress(ImportError):
                import readline  # noqa: F401, PLC0415 - it makes `input` editable, with a history
        while (line := self._read()) is not None:
            if not line.strip():
                continue
            try:
                if not runner.run(self._do(line)):
                    break
            except KeyboardInterrupt:
                self._printer.end_line()
                self._printer.tell(self.conversation.cancelled_in_words(), always=True)
                self._code = Exit.INTERRUPTED
        return self._code

    def _read(self) -> str | None:
        """The next text, or nothing at the end. A line that ends with a backslash goes on with the next one."""
        lines: list[str] = []
        while True:
            try:
                line = self._line("... " if lines else "> ")
            except EOFError:
                return "\n".join(lines) if lines else None
            except KeyboardInterrupt:
                if not self._interactive:
                    raise
                self._printer.tell("\nCtrl-D ends.")
                lines = []
                continue
            if not line.endswith("\\"):
                return "\n".join([*lines, line])
            lines.append(line[:-1])

    def _line(self, prompt: str) -> str:
        if self._interactive and sys.stdout.isatty():
            return input(prompt)
        if self._interactive:
            click.echo(prompt, err=True, nl=False)
        try:
            line = sys.stdin.readline()
        except UnicodeDecodeError:
            raise click.UsageError("Standard input is no text.") from None
        if not line:
            raise EOFError
        return line.removesuffix("\n")

    async def _do(self, line: str) -> bool:
        """Take a turn, or do what a command says. Whether to go on."""
        text = line.strip()
        if text.startswith("/") and not text.startswith("//"):
            reply = await self.conversation.command(text)
            if reply.text:
                self._printer.tell(reply.text, always=True)
            return not reply.quit
        self._printer.spoke = False
        try:
            answer = await self.conversation.take(text.removeprefix("/") if text.startswith("//") else line)
        except Exception as exc:
            self._printer.end_line()
            self._printer.tell(f"Error: {self.conversation.in_words(exc)}", always=True)
            self._code = code_of(exc)
            return True
        if not self._printer.spoke or answer.startswith("```json"):
            self._printer.write(answer)
        self._printer.end_line()
        if self._printer.broken is not None:
            raise self._printer.broken
        self._code = Exit.OK
        return True
