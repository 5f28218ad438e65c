"""A conversation with a worker, for both modes of `llm-do chat`: turns, `/` commands and a transcript."""

from __future__ import annotations

from asyncio import CancelledError
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import anyio.to_thread
from pydantic_ai.messages import ModelMessage, MultiModalContent
from pydantic_core import from_json

from ...arguments.inputs import bind_input
from ...core.runtime import Runtime
from ...core.scope import CallScope
from ...core.trace import TraceEntry
from ...core.worker import WorkerEntry
from ...errors import ArgumentError, LlmDoError, RunEnded, did_you_mean
from ...privacy.display import visible
from ...values.texts import shorten
from ..terminal.errors import describe_error
from .reporting import format_usage, format_without_secrets
from .sessions import missing_file

COMMANDS = {
    "/help": "list the commands",
    "/model": "show the model; with a name, switch to it and keep the conversation",
    "/usage": "show the usage and its cost so far",
    "/tools": "list the tools of the worker",
    "/save": "write the conversation to a file, as Markdown",
    "/clear": "start a new conversation; the worker forgets this one",
    "/quit": "end the chat",
}


@dataclass
class Turn:
    question: str
    answer: str = ""
    calls: list[str] = field(default_factory=list)
    problem: str | None = None


@dataclass(frozen=True)
class Reply:
    """The reply to a `/` command, and what the chat does after it."""

    text: str
    failed: bool = False
    clear: bool = False
    quit: bool = False


class Conversation:
    """Turns with one worker in one session. When the model changes, the history stays."""

    def __init__(
        self, worker: WorkerEntry[Any], runtime: Runtime, attachments: Sequence[MultiModalContent] = ()
    ) -> None:
        self.worker = worker
        self.runtime = runtime
        self.turns: list[Turn] = []
        self._attachments = tuple(attachments)
        """Files for the first turn that succeeds."""
        self._scope: CallScope[Any] = worker.start(runtime)

    @property
    def model(self) -> str:
        model = self.worker.model if self.worker.model is not None else self.runtime.context().model
        return "no model" if model is None else model if isinstance(model, str) else model.model_name

    async def take_turn(self, text: str) -> str:
        """Take a turn, and return the answer as Markdown. A turn that fails leaves the history as it was."""
        turn, before = Turn(text), len(self.runtime.trace)
        self.turns.append(turn)
        try:
            output = await self._scope.take_turn(self._bind(text), self._attachments)
        except CancelledError:
            turn.problem = "The turn was cancelled."
            raise
        except Exception as exc:
            turn.problem = self.describe_error(exc)
            if isinstance(exc, RunEnded):  # the scope has ended, so the conversation goes on in another one
                await self._continue_with(self.worker)
            raise
        finally:
            turn.calls = [_summarize(call) for call in self.runtime.trace[before:] if call.depth == 1]
        self._attachments = ()
        answer = self._format(output)
        turn.answer = answer if isinstance(output, str) else f"```json\n{answer}\n```"
        return turn.answer

    async def close(self) -> None:
        await self._scope.close()

    def _bind(self, text: str) -> dict[str, Any]:
        """Return the arguments of a turn. For declared inputs, the text is a JSON object or the first argument."""
        worker, value = self.worker, text
        if worker.input_type is not None and text.lstrip().startswith("{"):
            try:
                value = from_json(text)
            except ValueError as exc:
                raise ArgumentError(f"The input starts like JSON, but is not valid: {exc}") from None
        try:
            return bind_input(worker.parameters, value, has_files=bool(self._attachments))
        except ArgumentError as exc:
            if worker.input_type is None:
                raise
            names = worker.parameters.json_schema.get("properties", {})
            example = ", ".join(f'"{name}": ...' for name in names)
            raise ArgumentError(f"{exc}. Write the input as JSON: {{{example}}}") from exc

    def _format(self, value: Any) -> str:
        return format_without_secrets(value, self.runtime)

    def describe_cancelled(self) -> str:
        left = self.runtime.loop.threads.describe_left_running()
        return f"The turn was cancelled. The worker does not remember it. {visible(left)}".rstrip()

    def describe_error(self, exc: BaseException) -> str:
        text = describe_error(exc, redact=self._format)
        return text.replace("You ended the run.", "You ended the turn.", 1) if isinstance(exc, RunEnded) else text

    async def command(self, line: str) -> Reply:
        """Run the command in a line that starts with a slash."""
        name, _, rest = map(str.strip, line.strip().partition(" "))
        match name:
            case "/help":
                commands = "\n".join(f"{command:<8} {text}" for command, text in COMMANDS.items())
                return Reply(f"{commands}\n//       send a text that starts with a slash")
            case "/quit" | "/exit":
                return Reply("", quit=True)
            case "/usage":
                return Reply(format_usage(self.runtime, unpriced=", price not known") or "No model was used yet.")
            case "/tools":
                return Reply(self._list_tools())
            case "/model":
                return await self._switch(rest) if rest else Reply(f"The model is {self.model}.")
            case "/save":
                return await anyio.to_thread.run_sync(self._save, rest)
            case "/clear":
                await self._continue_with(self.worker, [])
                self.turns = []
                return Reply("This is a new conversation.", clear=True)
        hint = did_you_mean(name, COMMANDS)
        return Reply(
            f"There is no command {visible(name)}.{hint} To send it to the worker, write /{visible(name)}", True
        )

    async def _switch(self, name: str) -> Reply:
        worker = replace(self.worker, model=name)
        choose = self.runtime.models.choose
        try:
            # It may have to import the provider's package.
            await anyio.to_thread.run_sync(choose, worker.start(self.runtime).frame)
        except LlmDoError as exc:
            return Reply(f"{self.describe_error(exc)}\nThe model is still {self.model}.", failed=True)
        await self._continue_with(worker)
        text = f"The model is now {visible(name)}. It knows the conversation; other workers keep their models."
        if (file := missing_file(name)) is not None and file.weights is not None:
            from ...models.local.files import describe_download  # noqa: PLC0415 - only for models to fetch

            # Fetched in a turn, which can be cancelled and does not block the screen.
            text += f"\nIts weights are fetched with your next turn. {describe_download(file.weights)}"
        return Reply(text)

    async def _continue_with(self, worker: WorkerEntry[Any], history: Sequence[ModelMessage] | None = None) -> None:
        """Go on in another scope, by default with the same history."""
        before = self._scope
        self._scope = worker.start(self.runtime, message_history=before.messages if history is None else history)
        self.worker = worker
        await before.close()

    def _list_tools(self) -> str:
        session = self.runtime
        lines = []
        for tool in self.worker.tools:
            try:
                entry = session.resolve(tool, session.root) if isinstance(tool, str) else tool
                description = (getattr(entry, "description", None) or "").strip().partition("\n")[0]
                flags = {"a worker": entry.kind == "worker", "asks": entry.requires_approval}
                about = ", ".join(flag for flag, is_set in flags.items() if is_set)
                name = f"{visible(entry.name)} ({about})" if about else visible(entry.name)
                lines.append(f"{name}: {visible(description)}" if description else name)
            except LlmDoError as exc:
                lines.append(f"{visible(str(tool))}: {visible(str(exc))}")
        for number, toolset in enumerate(self.worker.toolsets):
            label = toolset if isinstance(toolset, str) else getattr(toolset, "__name__", f"number {number + 1}")
            lines.append(f"a toolset: {visible(label)}")
        lines += [
            f"may call {'any worker' if name == '*' else f'the worker {visible(name)}'}"
            for name in self.worker.allow_workers
        ]
        return "\n".join(lines) or "It has no tools."

    def _save(self, file_name: str) -> Reply:
        if not file_name:
            return Reply("No file is named. Write /save FILE.md", failed=True)
        path = Path(file_name).expanduser()
        is_created = False
        try:
            with path.open("x", encoding="utf-8") as file:
                is_created = True
                file.write(self.markdown())
        except FileExistsError:
            return Reply(f"{visible(str(path))} exists already. Nothing was written: choose another name.", True)
        except OSError as exc:
            if is_created:  # leave no partial file
                path.unlink(missing_ok=True)
            return Reply(f"{visible(str(path))} cannot be written: {exc.strerror or exc}.", failed=True)
        return Reply(f"The conversation is in {visible(str(path))}.")

    def markdown(self) -> str:
        parts = [f"# Conversation with {self.worker.name}", f"Model: {self.model}"]
        for turn in self.turns:
            parts += ["## You", turn.question, f"## {self.worker.name}"]
            parts += ["\n".join(f"- `{call}`" for call in turn.calls)] if turn.calls else []
            parts += [turn.answer] if turn.answer else []
            parts += [f"*{turn.problem}*"] if turn.problem else []
        return self._format("\n\n".join(parts)) + "\n"


def describe_call(name: str, arguments: Any) -> str:
    """Return a call in one line that is safe to print."""
    return visible(f"{name}({shorten(arguments)})")


def _summarize(call: TraceEntry) -> str:
    refused = call.approval is not None and not call.approval.approved
    problem = call.error or call.failure
    outcome = " refused" if refused else f" failed: {visible(problem)}" if problem else ""
    return f"{describe_call(call.name, call.input_data)}{outcome}".replace("`", "'")
