"""The line mode of `llm-do chat`, for pipes and screen readers. Only answers go to standard output."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

import click
from pydantic_ai.messages import MultiModalContent

from ...core.events import Event
from ...core.worker import WorkerEntry
from ...projects.registry import WorkerRegistry
from ..terminal.approver import TerminalApprover
from ..terminal.errors import Exit, describe_notice, escape_controls, exit_code_of, report_error
from ..terminal.keys import Keyboard
from .conversation import Conversation, describe_call
from .options import SessionOptions
from .sessions import model_chooser, open_session


def run_line_chat(
    registry: WorkerRegistry, worker: WorkerEntry[Any], options: SessionOptions, files: Sequence[MultiModalContent] = ()
) -> int:
    """Talk until the input ends, and return the exit code of the last turn."""
    keyboard = Keyboard.open()
    printer = Printer(quiet=options.quiet)
    runtime = open_session(
        registry,
        options,
        approver=None if keyboard is None else TerminalApprover(keyboard),
        sinks=[printer],
        text_deltas=True,
        asks_for_more=True,
        choose_model=model_chooser(registry, options, asks=True),
    )
    chat = LineChat(Conversation(worker, runtime, files), printer)
    # One loop for all turns. It does not run while a line is read, so that an interrupt raises KeyboardInterrupt.
    with asyncio.Runner() as runner:
        try:
            return chat.run(runner)
        except BrokenPipeError as exc:  # which click would report as a failure
            return report_error(exc)
        finally:
            runner.run(chat.conversation.close())


class Printer:
    """Prints answers as they come, and a line for each call."""

    def __init__(self, *, quiet: bool = False) -> None:
        self._quiet = quiet
        self._terminal = sys.stdout.isatty()
        self._turn: int | None = None
        self._column = 0
        self.has_text = False
        """Whether there was text since the last call."""
        self.broken: OSError | None = None
        """The error that ended the printing."""

    def on_event(self, event: Event) -> None:
        match event.type:
            case "call_opened" | "call_closed" if event.kind == "server":  # reported as a notice
                pass
            case "call_opened" if event.parent_id is None:
                self._turn = event.call_id
            case "call_opened":
                self.end_line()
                self.has_text = False
                self.note(f"{'  ' * event.depth}> {describe_call(event.name, event.arguments)}")
            case "call_closed" if event.parent_id is not None and (problem := event.error or event.failure):
                self.note(f"{'  ' * event.depth}! {event.name}: {escape_controls(problem)}")
            case "request_ended" | "notice" if (text := describe_notice(event)) is not None:
                self.end_line()
                self.note(f"llm-do: {text}")
            case "text_delta" if event.call_id == self._turn and not event.thinking:
                self.write(event.text)

    def write(self, text: str) -> None:
        """Print a piece of the answer: unchanged to a program, with control characters escaped to a terminal."""
        if not text.strip() and not self.has_text:
            return
        self.has_text = True
        self._put(escape_controls(text) if self._terminal else text)
        self._column = 0 if text.endswith("\n") else 1

    def _put(self, text: str) -> None:
        if self.broken is not None:
            return
        try:
            sys.stdout.write(text)
            sys.stdout.flush()
        except OSError as exc:  # the reader has gone, or the disk is full
            self.broken = exc

    def end_line(self) -> None:
        if self._column:
            self._put("\n")
            self._column = 0

    def note(self, text: str, *, always: bool = False) -> None:
        if always or not self._quiet:
            click.echo(text, err=True)


class LineChat:
    """A conversation in lines: each is a turn or a command."""

    def __init__(self, conversation: Conversation, printer: Printer) -> None:
        self.conversation = conversation
        self._printer = printer
        self._interactive = sys.stdin.isatty()
        self._code = Exit.OK

    def run(self, runner: asyncio.Runner) -> int:
        if self._interactive:
            name, model = self.conversation.worker.name, self.conversation.model
            self._printer.note(f"Talking to {name} ({escape_controls(model)}). /help lists the commands, Ctrl-D ends.")
            with suppress(ImportError):
                import readline  # noqa: F401, PLC0415 - it gives `input` editing and a history
        while (line := self._read_text()) is not None:
            if not line.strip():
                continue
            try:
                if not runner.run(self._handle(line)):
                    break
            except KeyboardInterrupt:
                self._printer.end_line()
                self._printer.note(self.conversation.describe_cancelled(), always=True)
                self._code = Exit.INTERRUPTED
        return self._code

    def _read_text(self) -> str | None:
        """Read the next text, or `None` at the end. A backslash at the end of a line continues it."""
        lines: list[str] = []
        while True:
            try:
                line = self._read_line("... " if lines else "> ")
            except EOFError:
                return "\n".join(lines) if lines else None
            except KeyboardInterrupt:
                if not self._interactive:
                    raise
                self._printer.note("\nCtrl-D ends.")
                lines = []
                continue
            if not line.endswith("\\"):
                return "\n".join([*lines, line])
            lines.append(line[:-1])

    def _read_line(self, prompt: str) -> str:
        if self._interactive and sys.stdout.isatty():
            return input(prompt)
        if self._interactive:
            click.echo(prompt, err=True, nl=False)
        try:
            line = sys.stdin.readline()
        except UnicodeDecodeError:
            raise click.UsageError("Standard input is not text.") from None
        if not line:
            raise EOFError
        return line.removesuffix("\n")

    async def _handle(self, line: str) -> bool:
        """Take a turn or run a command, and return whether to go on."""
        text = line.strip()
        if text.startswith("/") and not text.startswith("//"):
            reply = await self.conversation.command(text)
            if reply.text:
                self._printer.note(reply.text, always=True)
            return not reply.quit
        self._printer.has_text = False
        try:
            answer = await self.conversation.take_turn(text.removeprefix("/") if text.startswith("//") else line)
        except Exception as exc:
            self._printer.end_line()
            self._printer.note(f"Error: {self.conversation.describe_error(exc)}", always=True)
            self._code = exit_code_of(exc)
            return True
        if not self._printer.has_text or answer.startswith("```json"):
            self._printer.write(answer)
        self._printer.end_line()
        if self._printer.broken is not None:
            raise self._printer.broken
        self._code = Exit.OK
        return True
