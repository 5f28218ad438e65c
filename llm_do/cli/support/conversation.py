"""A conversation with a worker, as both faces of `llm-do chat` have it: turns, `/` commands, and what can be saved."""

from __future__ import annotations

from asyncio import CancelledError
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from decimal import Decimal
from pathlib import Path
from typing import Any

import anyio.to_thread
from pydantic_ai.messages import ModelMessage, MultiModalContent
from pydantic_core import from_json

from ...arguments.inputs import bind_input
from ...core.entries import WorkerEntry
from ...core.runtime import Runtime
from ...core.scope import CallScope
from ...core.trace import TraceEntry
from ...errors import ArgumentError, LlmDoError, RunEnded, did_you_mean
from ...privacy.display import visible
from ...values.texts import json_text, shorten
from ..terminal.error_text import in_words
from ..terminal.error_text import readable as readable
from .model_offer import file_of

COMMANDS = {
    "/help": "what can be typed here",
    "/model": "which model answers; with a name: let that one answer, and keep the conversation",
    "/usage": "what was used so far, and what it cost",
    "/tools": "what the worker can call",
    "/save": "with a file: write the conversation to it, as markdown",
    "/clear": "start anew; the worker forgets what was said",
    "/quit": "end",
}


@dataclass
class Turn:
    """What was said in one turn."""

    question: str
    answer: str = ""
    calls: list[str] = field(default_factory=list)
    problem: str | None = None


@dataclass(frozen=True)
class Reply:
    """What a `/` command says, and what should happen."""

    text: str
    failed: bool = False
    clear: bool = False
    quit: bool = False


class Conversation:
    """Turns with one worker in one session. Another model takes over with all that was said."""

    def __init__(
        self, worker: WorkerEntry[Any], runtime: Runtime, attachments: Sequence[MultiModalContent] = ()
    ) -> None:
        self.worker = worker
        self.runtime = runtime
        self.turns: list[Turn] = []
        self._attachments = tuple(attachments)
        """The files that go with the first turn that succeeds."""
        self._scope: CallScope[Any] = worker.start(runtime)

    @property
    def model(self) -> str:
        """The name of the model that answers."""
        model = self.worker.model if self.worker.model is not None else self.runtime.context().model
        return "no model" if model is None else model if isinstance(model, str) else model.model_name

    async def take(self, text: str) -> str:
        """One turn: what the worker answers, as markdown. A turn that fails leaves the conversation as it was."""
        turn, before = Turn(text), len(self.runtime.trace)
        self.turns.append(turn)
        try:
            arguments, beside = self._read(text)
            output = await self._scope.take_turn(arguments, beside)
        except CancelledError:
            turn.problem = "The turn was cancelled."
            raise
        except Exception as exc:
            turn.problem = self.in_words(exc)
            if isinstance(exc, RunEnded):  # what was ended stays so; the conversation goes on in another scope
                await self._continue_with(self.worker)
            raise
        finally:
            turn.calls = [_in_a_line(call) for call in self.runtime.trace[before:] if call.depth == 1]
        self._attachments = ()
        turn.answer = self._as_markdown(output)
        return turn.answer

    async def close(self) -> None:
        """Close what the worker had open."""
        await self._scope.close()

    def _read(self, text: str) -> tuple[dict[str, Any], Sequence[MultiModalContent]]:
        """The arguments of a turn. A worker that declares its input takes them as JSON, or the text as the first."""
        worker = self.worker
        has_files = bool(self._attachments)
        if worker.input_type is None:
            return bind_input(worker.parameters, text, has_files=has_files), self._attachments
        given: Any = text
        if text.lstrip().startswith("{"):
            try:
                given = from_json(text)
            except ValueError as exc:
                raise ArgumentError(f"That looks like JSON, and is not: {exc}") from None
        try:
            return bind_input(worker.parameters, given, has_files=has_files), self._attachments
        except ArgumentError as exc:
            names = worker.parameters.json_schema.get("properties", {})
            example = ", ".join(f'"{name}": ...' for name in names)
            raise ArgumentError(f"{exc}. Write the input as JSON: {{{example}}}") from exc

    def _as_markdown(self, output: Any) -> str:
        output = self._redact(output)
        if isinstance(output, str):
            return output
        return f"```json\n{json_text(output, indent=2)}\n```"

    def _redact(self, value: Any) -> Any:
        return self.runtime.recorder.secrets.redact(value)

    def cancelled_in_words(self) -> str:
        """Return the text for a person who cancelled a turn."""
        left = self.runtime.loop.threads.tell_left_running()
        return f"The turn was cancelled. The worker does not remember it. {visible(left)}".rstrip()

    def in_words(self, exc: BaseException) -> str:
        """An error as somebody is told who talks with a worker."""
        said = in_words(exc, redact=self._redact)
        return said.replace("You ended the run.", "You ended the turn.", 1) if isinstance(exc, RunEnded) else said

    # -- commands ------------------------------------------------------------------------------------

    async def command(self, line: str) -> Reply:
        """Do what a line that starts with a slash says."""
        name, _, rest = line.strip().partition(" ")
        rest = rest.strip()
        match name:
            case "/help":
                listed = "\n".join(f"{command:<8} {text}" for command, text in COMMANDS.items())
                return Reply(f"{listed}\n//       a text that starts with a slash")
            case "/quit" | "/exit":
                return Reply("", quit=True)
            case "/usage":
                return Reply(self.usage())
            case "/tools":
                return Reply(self.tools())
            case "/model":
                return await self._switch(rest) if rest else Reply(f"{self.model} answers.")
            case "/save":
                return await anyio.to_thread.run_sync(self._save, rest)
            case "/clear":
                await self._continue_with(self.worker, [])
                self.turns = []
                return Reply("This is a new conversation.", clear=True)
        hint = did_you_mean(name, COMMANDS)
        return Reply(
            f"There is no command {visible(name)}.{hint} To say it to the worker, write /{visible(name)}", True
        )

    async def _switch(self, name: str) -> Reply:
        worker = replace(self.worker, model=name)
        choose = self.runtime.models.choose
        try:
            # It may have to import the provider's package.
            await anyio.to_thread.run_sync(choose, worker.start(self.runtime).frame)
        except LlmDoError as exc:
            return Reply(f"{self.in_words(exc)}\n{self.model} goes on answering.", failed=True)
        await self._continue_with(worker)
        said = f"{visible(name)} answers from now on. It knows what was said; workers that it calls keep theirs."
        if (file := file_of(name)) is not None and file.weights is not None and not file.is_here:
            from ...models.local.progress import describe_download  # noqa: PLC0415 - for those who fetch something

            # In a turn, because a turn can be cancelled, and goes on while the screen does.
            said += f"\nIts weights are fetched with your next turn. {describe_download(file.weights)}"
        return Reply(said)

    async def _continue_with(self, worker: WorkerEntry[Any], history: Sequence[ModelMessage] | None = None) -> None:
        """Go on in another scope, with all that was said, or with another history."""
        before = self._scope
        self._scope = worker.start(self.runtime, message_history=before.messages if history is None else history)
        self.worker = worker
        await before.close()

    def usage(self) -> str:
        """What was used, by model."""
        lines = []
        for model, used in self.runtime.usage_by_provider.items():
            cost = "price not known" if used.cost is None else f"${used.cost:.4f}"
            counts = f"{used.input_tokens:,} tokens in, {used.output_tokens:,} out"
            lines.append(f"{visible(model)}: {_plural(used.requests, 'request')}, {counts}, {cost}")
        return "\n".join(lines) or "Nothing was used yet."

    @property
    def tokens(self) -> int:
        """All tokens so far."""
        return sum(used.total_tokens for used in self.runtime.usage.values())

    @property
    def cost(self) -> Decimal:
        """The dollars so far, as far as prices are known."""
        return sum((used.cost for used in self.runtime.usage.values() if used.cost is not None), Decimal(0))

    def tools(self) -> str:
        """What the worker can call."""
        session = self.runtime
        lines = []
        for tool in self.worker.tools:
            try:
                entry = session.resolve(tool, session.root) if isinstance(tool, str) else tool
                said = (getattr(entry, "description", None) or "").strip().partition("\n")[0]
                marks = {"a worker": entry.kind == "worker", "asks": entry.requires_approval}
                about = ", ".join(mark for mark, holds in marks.items() if holds)
                name = f"{visible(entry.name)} ({about})" if about else visible(entry.name)
                lines.append(f"{name}: {visible(said)}" if said else name)
            except LlmDoError as exc:
                lines.append(f"{visible(str(tool))}: {visible(str(exc))}")
        definition = self.worker.definition
        for number, toolset in enumerate(self.worker.toolsets):
            named = toolset if isinstance(toolset, str) else getattr(toolset, "__name__", f"number {number + 1}")
            lines.append(f"a toolset: {visible(named)}")
        lines += [
            f"may call {'any worker' if name == '*' else f'the worker {visible(name)}'}"
            for name in (definition.allow_workers if definition is not None else ())
        ]
        return "\n".join(lines) or "It has no tools."

    def _save(self, given: str) -> Reply:
        if not given:
            return Reply("Save it where? Write /save FILE.md", failed=True)
        path = Path(given).expanduser()
        made = False
        try:
            with path.open("x", encoding="utf-8") as file:
                made = True
                file.write(self.markdown())
        except FileExistsError:
            return Reply(f"{visible(str(path))} is there already. Nothing was written; choose another name.", True)
        except OSError as exc:
            if made:  # half a file is none
                path.unlink(missing_ok=True)
            return Reply(f"{visible(str(path))} cannot be written: {exc.strerror or exc}.", failed=True)
        return Reply(f"The conversation is in {visible(str(path))}.")

    def markdown(self) -> str:
        """The conversation as a document."""
        parts = [f"# Conversation with {self.worker.name}", f"Model: {self.model}"]
        for turn in self.turns:
            parts += ["## You", self._redact(turn.question), f"## {self.worker.name}"]
            parts += ["\n".join(f"- `{call}`" for call in turn.calls)] if turn.calls else []
            parts += [turn.answer] if turn.answer else []
            parts += [f"*{turn.problem}*"] if turn.problem else []
        return "\n\n".join(parts) + "\n"


def call_in_words(name: str, arguments: Any) -> str:
    """A call in one line that is safe to show."""
    return visible(f"{name}({shorten(arguments)})")


def _in_a_line(call: TraceEntry) -> str:
    refused = call.approval is not None and not call.approval.approved
    problem = call.error or call.failure
    outcome = " refused" if refused else f" failed: {visible(problem)}" if problem else ""
    return f"{call_in_words(call.name, call.input_data)}{outcome}".replace("`", "'")


def _plural(count: int, what: str) -> str:
    return f"{count:,} {what}{'' if count == 1 else 's'}"
