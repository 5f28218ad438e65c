"""What a run shows: the answer on standard output, and the way to it on standard error."""

from __future__ import annotations

import os
import sys
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

import click

from ...core.entry import Entry, Sink
from ...core.events import Event
from ...core.runtime import Runtime
from ...errors import ApprovalDenied
from ...privacy.display import visible
from ...projects.api import WorkerRunResult, run_entry
from ...projects.registry import WorkerRegistry
from ...values.fields import fields_of, with_extra_apart
from ...values.texts import json_text, text_of
from ..terminal.error_text import cut_off_line, readable
from ..terminal.stdout import Output, ReaderLeft
from ..terminal.tree import CallTree
from .exits import Exit, code_of
from .model_offer import choose_later, settle_model
from .options import SessionOptions
from .sessions import open_session

if TYPE_CHECKING:
    from pydantic_ai.messages import MultiModalContent

    from ..terminal.approver import TerminalApprover
    from ..terminal.live import LiveTree

EVENTS_VERSION = 1
"""Of the lines that `--events` prints. It changes when a program that reads them would have to."""
_NO_PERSON = "No person could be asked. Run it in a terminal, give --approve-all, or allow the call with a rule."


@dataclass(kw_only=True)
class Reporter:
    """Runs an entry and tells about it as the command line wants it."""

    out: Output
    options: SessionOptions
    style: Literal["text", "json", "events"] = "text"
    usage: bool = False
    verbose: bool = False
    allow_refusals: bool = False
    exit_code: int = Exit.OK
    cancel: Callable[[], object] = lambda: None
    broken: BaseException | None = None
    """Why events cannot be printed any more."""
    _runtime: Runtime | None = None
    _tree: CallTree = field(default_factory=CallTree)
    _live: LiveTree | None = None

    async def run(
        self, registry: WorkerRegistry, entry: Entry[Any], arguments: dict[str, Any], files: list[MultiModalContent]
    ) -> None:
        """Run the entry, and print what came of it."""
        self.options = await settle_model(registry, entry, self.options, asks=self.style == "text")
        live = self._live = self._live_tree()
        if live is not None:
            self._tree = live.tree
        sinks: list[Sink] = [live if live is not None else self._tree]
        if self.style == "events":
            sinks.append(self)
        elif not self.options.quiet:
            sinks.append(Notices(echo_line if live is None else live.print_above))
        runtime = self._runtime = open_session(
            registry,
            self.options,
            approver=self._approver(live),
            sinks=sinks,
            text_deltas=live is not None or self.style == "events",
            choose_model=choose_later(registry, self.options, asks=self.style == "text", screen=live),
        )
        if live is not None:
            live.start()
        try:
            result = await run_entry(runtime, entry, arguments, files)
        finally:
            if live is not None:
                live.stop()
        self._told(result)

    def on_event(self, event: Event) -> None:
        """Print an event as a line of JSON. When nobody takes it any more, the run is over."""
        try:
            if self.broken is None:
                self.out.write(f"{event_line(event)}\n")
        except (ReaderLeft, OSError) as exc:
            self.broken = exc
            self.cancel()

    def redact(self, text: str) -> str:
        """A text without secrets."""
        if self._runtime is None:
            return text
        clean: str = self._runtime.recorder.secrets.redact(text)
        return clean

    def clear_screen(self) -> None:
        """Leave the terminal as it was, when there is no time for anything else."""
        if self._live is not None:
            self._live.stop()

    def _live_tree(self) -> LiveTree | None:
        """The tree that a person sees while it runs, if one looks."""
        if self.options.quiet or not sees_progress():
            return None
        from ..terminal.live import LiveTree, stderr_console  # noqa: PLC0415 - rich takes a while, and mostly nobody looks

        return LiveTree(stderr_console())

    def _approver(self, live: LiveTree | None) -> TerminalApprover | None:
        if self.options.approve_all or self.options.strict or not sees_progress():
            return None
        from ..terminal.approver import TerminalApprover  # noqa: PLC0415
        from ..terminal.keys import Keyboard  # noqa: PLC0415
        from ..terminal.live import stderr_console  # noqa: PLC0415

        if (keyboard := Keyboard.open()) is None:
            return None
        return TerminalApprover(stderr_console(), keyboard, live)

    def _told(self, result: WorkerRunResult) -> None:
        refused = [record.name for record in result.refusals]
        if refused and not self.allow_refusals:
            self.exit_code = Exit.REFUSED
        text = result.output if isinstance(result.output, str) else json_text(result.output, indent=2)
        if self.style == "text":
            self.out.answer(text)
        else:
            self._result(output=result.output, error=None)
        self._tell_left_running()
        self._afterwards()
        if refused and not self.allow_refusals and not self.options.quiet:
            names = [
                visible(name) if n == 1 else f"{visible(name)} ({n:,} calls)" for name, n in Counter(refused).items()
            ]
            advice = f" {_NO_PERSON}" if self._found_no_person() else ""
            click.echo(f"Refused: {', '.join(names)}. The worker went on without.{advice}", err=True)

    def _found_no_person(self) -> bool:
        """Whether a call was refused because no person could be asked."""
        records = [] if self._runtime is None else self._runtime.trace
        return any(record.approval is not None and record.approval.by == "nobody" for record in records)

    def _result(self, *, output: Any, error: BaseException | None) -> None:
        """One object with all that there is to know."""
        runtime = self._runtime
        trace = [] if runtime is None else list(runtime.trace)
        made = {
            "type": "result",
            "version": EVENTS_VERSION,
            "output": output,
            "error": None if error is None else {"type": type(error).__name__, "message": self.redact(_said(error))},
            "exit_code": int(self.exit_code),
            "refusals": [
                {"name": record.name, "note": record.approval.note, "rule": record.approval.rule}
                for record in trace
                if record.approval is not None and not record.approval.approved
            ],
            "usage": {} if runtime is None else _usage(runtime),
            "budget": None if runtime is None else _budget(runtime),
        }
        line = json_text(made, indent=2 if self.style == "json" else None)
        if self.style == "json":
            self.out.answer(line)
        else:
            self.out.write(f"{line}\n")

    def failed(self, exc: BaseException) -> int:
        """The run ended with an error, which somebody else tells. Returns the code for it."""
        ended = self._runtime is not None and bool(self._runtime.gate.ended)
        self.exit_code = Exit.REFUSED if ended else code_of(exc)
        if isinstance(exc, ApprovalDenied) and self._found_no_person():
            exc.add_note(_NO_PERSON)
        self._over(exc)
        return self.exit_code

    def interrupted(self) -> None:
        """Somebody interrupted the run: what it did until then is worth knowing."""
        click.echo("Interrupted.", err=True)
        self._tell_left_running()
        self.exit_code = Exit.INTERRUPTED
        self._over(KeyboardInterrupt("interrupted"))

    def _tell_left_running(self) -> None:
        """Name the synchronous functions whose threads end with the process. An error of the time says it itself."""
        left = "" if self._runtime is None else self._runtime.loop.threads.tell_left_running()
        if left:
            click.echo(visible(left), err=True)

    def _over(self, exc: BaseException) -> None:
        if self.style != "text" and self.broken is None:
            with suppress(ReaderLeft):
                self._result(output=None, error=exc)
        self._afterwards(partial=True)

    def _afterwards(self, *, partial: bool = False) -> None:
        if self._runtime is None or self.options.quiet:
            return
        shows_tree = self.verbose or (partial and len(self._tree.nodes) > 1)
        shows_usage = self.usage or (partial and bool(self._runtime.usage))
        if not shows_tree and not shows_usage:
            return
        from ..terminal.live import stderr_console, tree_lines  # noqa: PLC0415

        console = stderr_console()
        for line in tree_lines(self._tree) if shows_tree else ():
            console.print(line, no_wrap=True, overflow="ellipsis")
        if shows_usage:
            console.print(usage_line(self._runtime), style="dim", markup=False)


@dataclass
class Notices:
    """Tells a person what they should know, in a line each."""

    tell: Callable[[str], None]

    def on_event(self, event: Event) -> None:
        if event.type == "notice":
            # What a server wrote is spelled out in it already, and one line stays one.
            self.tell(f"llm-do: {readable(event.text)}".replace("\n", "\\n"))
        elif event.type == "request_ended" and event.cut_off is not None and event.error is None:
            self.tell(f"llm-do: {cut_off_line(event)}")


def echo_line(text: str) -> None:
    """Print a line on standard error."""
    click.echo(text, err=True)


def sees_progress() -> bool:
    """Whether standard error is a terminal on which lines can be drawn again."""
    return sys.stderr.isatty() and os.environ.get("TERM") != "dumb"


def _said(error: BaseException) -> str:
    return error.format_message() if isinstance(error, click.ClickException) else text_of(error)


def event_line(event: Event) -> str:
    """Return an event as a line of JSON, in which extra values of arguments stand apart from fields."""
    fields = fields_of(event)
    assert fields is not None
    made = {"version": EVENTS_VERSION, **fields.declared}
    if "arguments" in made:
        made["arguments"] = with_extra_apart(made["arguments"])
    return json_text(made)


def _usage(runtime: Runtime) -> dict[str, Any]:
    return {
        model: {
            "requests": used.requests,
            "input_tokens": used.input_tokens,
            "output_tokens": used.output_tokens,
            "cost": None if used.cost is None else float(used.cost),
        }
        for model, used in runtime.usage_by_provider.items()
    }


def _budget(runtime: Runtime) -> dict[str, Any]:
    budget = runtime.budget
    return {
        "max_cost": None if budget.limit is None else float(budget.limit),
        "spent": float(budget.spent),
        "estimated": float(budget.estimated),
        "left": None if budget.left is None else float(budget.left),
    }


def usage_line(runtime: Runtime) -> str:
    """What a run used, in one line for each model."""
    lines = []
    for model, used in runtime.usage_by_provider.items():
        requests = "1 request" if used.requests == 1 else f"{used.requests} requests"
        cost = "" if used.cost is None else f", ${used.cost:.4f}"
        lines.append(f"{model}: {requests}, {used.input_tokens} tokens in, {used.output_tokens} out{cost}")
    return "\n".join(lines) or "no model was used"
