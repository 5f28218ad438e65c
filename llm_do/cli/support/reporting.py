"""Output of a run: the answer on standard output, progress on standard error."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections import Counter
from collections.abc import Awaitable, Callable
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

import click

from ...core.entry import Entry
from ...core.events import Event
from ...core.runtime import Runtime
from ...errors import ApprovalDenied
from ...privacy.display import visible
from ...projects.api import WorkerRunResult, run_entry
from ...projects.registry import WorkerRegistry
from ...values.fields import fields_of, separate_extra
from ...values.texts import json_text, text_of
from ..terminal.errors import Exit, describe_notice, exit_code_of, report_error
from ..terminal.keys import Keyboard
from ..terminal.stdout import Output, ReaderGone, count
from ..terminal.tree import CallTree
from .options import SessionOptions
from .sessions import model_chooser, open_session, resolve_session_model

if TYPE_CHECKING:
    from pydantic_ai.messages import MultiModalContent

    from ..terminal.approver import TerminalApprover
    from ..terminal.live import LiveTree

EVENTS_VERSION = 1
"""The version of the lines that `--events` prints. It changes when programs that read them must change."""
_ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
"""Signals that end a run cleanly, with the processes that its commands left. SIGHUP means a closed terminal."""
_NO_PERSON = "No person could be asked. Run it in a terminal, give --approve-all, or allow the call with a rule."


@dataclass(kw_only=True)
class Reporter:
    """Runs an entry, and prints its result and progress as the options say."""

    out: Output
    options: SessionOptions
    style: Literal["text", "json", "events"] = "text"
    usage: bool = False
    verbose: bool = False
    allow_refusals: bool = False
    exit_code: int = Exit.OK
    cancel: Callable[[], object] = lambda: None
    broken: BaseException | None = None
    """The error that ended the printing of events."""
    _runtime: Runtime | None = None
    _tree: CallTree = field(default_factory=CallTree)
    _live: LiveTree | None = None

    async def run(
        self, registry: WorkerRegistry, entry: Entry[Any], arguments: dict[str, Any], files: list[MultiModalContent]
    ) -> None:
        self.options = await resolve_session_model(registry, entry, self.options, asks=self.style == "text")
        live = self._live = self._live_tree()
        runtime = self._runtime = open_session(
            registry,
            self.options,
            approver=self._approver(),
            sinks=[self._tree, self],
            text_deltas=live is not None or self.style == "events",
            choose_model=model_chooser(registry, self.options, asks=self.style == "text", pause=self._pause),
        )
        if live is not None:
            live.start()
        try:
            result = await run_entry(runtime, entry, arguments, files)
        finally:
            self.clear_screen()
        self._report_result(result)

    def on_event(self, event: Event) -> None:
        """Print an event as a line of JSON, or only notices. Cancel the run if the reader is gone."""
        if self.style != "events":
            if not self.options.quiet and (notice := describe_notice(event)) is not None:
                line = f"llm-do: {notice}".replace("\n", "\\n")
                if self._live is None:
                    click.echo(line, err=True)
                else:
                    self._live.print_above(line)
            return
        try:
            if self.broken is None:
                self.out.write(f"{event_line(event)}\n")
        except (ReaderGone, OSError) as exc:
            self.broken = exc
            self.cancel()

    def format(self, value: Any, indent: int | None = 2) -> str:
        return format_without_secrets(value, self._runtime, indent)

    def clear_screen(self) -> None:
        """Restore the terminal, after the run or before the process ends at once."""
        if self._live is not None:
            self._live.stop()

    def _live_tree(self) -> LiveTree | None:
        """Return the tree that is drawn during the run, if a person can see it."""
        if self.options.quiet or not sys.stderr.isatty() or os.environ.get("TERM") == "dumb":
            return None
        from ..terminal.live import LiveTree  # noqa: PLC0415 - rich is slow to import, and only terminals need it

        return LiveTree(self._tree)

    def _pause(self) -> AbstractContextManager[None]:
        return nullcontext() if self._live is None else self._live.paused()

    def _approver(self) -> TerminalApprover | None:
        if self.options.approve_all or self.options.strict or (keyboard := Keyboard.open()) is None:
            return None
        from ..terminal.approver import TerminalApprover  # noqa: PLC0415

        return TerminalApprover(keyboard, self._pause)

    def _report_result(self, result: WorkerRunResult) -> None:
        refused = [] if self.allow_refusals else [record.name for record in result.refusals]
        if refused:
            self.exit_code = Exit.REFUSED
        if self.style == "text":
            self.out.write_answer(self.format(result.output))
        else:
            self._write_result(output=result.output, error=None)
        self._report_left_running()
        self._print_summary()
        if refused and not self.options.quiet:
            names = [
                visible(name) if n == 1 else f"{visible(name)} ({n:,} calls)" for name, n in Counter(refused).items()
            ]
            advice = f" {_NO_PERSON}" if self._lacked_approver() else ""
            click.echo(f"Refused: {', '.join(names)}. The worker went on without them.{advice}", err=True)

    def _lacked_approver(self) -> bool:
        records = [] if self._runtime is None else self._runtime.trace
        return any(record.approval is not None and record.approval.by == "nobody" for record in records)

    def _write_result(self, *, output: Any, error: BaseException | None) -> None:
        runtime, problem = self._runtime, None
        if error is not None:
            message = error.format_message() if isinstance(error, click.ClickException) else text_of(error)
            problem = {"type": type(error).__name__, "message": message}
        result = {
            "type": "result",
            "version": EVENTS_VERSION,
            "output": output,
            "error": problem,
            "exit_code": int(self.exit_code),
            "refusals": [
                {"name": record.name, "note": record.approval.note, "rule": record.approval.rule}
                for record in (() if runtime is None else runtime.trace)
                if record.approval is not None and not record.approval.approved
            ],
            "usage": {} if runtime is None else _usage(runtime),
            "budget": None if runtime is None else _budget(runtime),
        }
        if self.style == "json":
            self.out.write_answer(self.format(result))
        else:
            self.out.write(f"{self.format(result, indent=None)}\n")

    def report_failure(self, exc: BaseException) -> None:
        is_ended = self._runtime is not None and bool(self._runtime.gate.ended_runs)
        self.exit_code = Exit.REFUSED if is_ended else exit_code_of(exc)
        if isinstance(exc, ApprovalDenied) and self._lacked_approver():
            exc.add_note(_NO_PERSON)
        self._report_end(exc)
        report_error(exc, self.format)

    def report_interrupt(self) -> None:
        click.echo("Interrupted.", err=True)
        self._report_left_running()
        self.exit_code = Exit.INTERRUPTED
        self._report_end(KeyboardInterrupt("interrupted"))

    def _report_left_running(self) -> None:
        """Name synchronous functions that still run. They end with the process; a timeout error names them itself."""
        left = "" if self._runtime is None else self._runtime.loop.threads.describe_left_running()
        if left:
            click.echo(visible(left), err=True)

    def _report_end(self, exc: BaseException) -> None:
        if self.style != "text" and self.broken is None:
            with suppress(ReaderGone):
                self._write_result(output=None, error=exc)
        self._print_summary(partial=True)

    def _print_summary(self, *, partial: bool = False) -> None:
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
            console.print(format_usage(self._runtime) or "no model was used", style="dim", markup=False)


def run_to_end(reporter: Reporter, work: Callable[[], Awaitable[None]]) -> int:
    """Run to the end, and return the exit code. The first interrupt ends the run cleanly, the second one at once."""
    ended_by: list[int] = []
    try:
        asyncio.run(_interruptible(work, reporter, ended_by))
        return reporter.exit_code
    except (KeyboardInterrupt, asyncio.CancelledError):
        if reporter.broken is not None:
            return Exit.OK if isinstance(reporter.broken, ReaderGone) else report_error(reporter.broken)
        reporter.report_interrupt()
        return 128 + (ended_by or [signal.SIGINT])[0]
    except ReaderGone:
        return Exit.OK
    except BaseException as exc:
        if isinstance(exc, SystemExit):
            exc = RuntimeError(f"the project's code ended the program, with sys.exit({exc.code!r})")
        reporter.report_failure(exc)
        return reporter.exit_code


async def _interruptible(work: Callable[[], Awaitable[None]], reporter: Reporter, ended_by: list[int]) -> None:
    task, loop = asyncio.current_task(), asyncio.get_running_loop()
    assert task is not None
    reporter.cancel = task.cancel

    def interrupt(number: int) -> None:
        ended_by.append(number)
        if len(ended_by) > 1:  # end at once
            reporter.clear_screen()
            os._exit(128 + number)
        task.cancel()

    # A signal that was ignored at the start, as for jobs in the background of a script, stays ignored.
    handled = [number for number in _ENDING if signal.getsignal(number) != signal.SIG_IGN]
    for number in handled:
        loop.add_signal_handler(number, interrupt, number)
    try:
        await work()
    finally:
        for number in handled:
            loop.remove_signal_handler(number)


def event_line(event: Event) -> str:
    """Return an event as a line of JSON, with extra arguments apart from the declared ones."""
    fields = fields_of(event)
    assert fields is not None
    values = {"version": EVENTS_VERSION, **fields.declared}
    if "arguments" in values:
        values["arguments"] = separate_extra(values["arguments"])
    return json_text(values)


def format_without_secrets(value: Any, runtime: Runtime | None, indent: int | None = 2) -> str:
    """Return a text as it is, and any other value as JSON, without the secrets of the session.

    All output of the command line passes this function, or is an event of the session.
    """
    if runtime is not None:
        value = runtime.recorder.secrets.redact(value)
    return value if isinstance(value, str) else json_text(value, indent=indent)


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


def format_usage(runtime: Runtime, *, unpriced: str = "") -> str:
    """Return the usage of a session, with a line for each model. `unpriced` stands for an unknown cost."""
    return "\n".join(
        f"{visible(model)}: {count(used.requests, 'request')}, {used.input_tokens:,} tokens in, "
        f"{used.output_tokens:,} out{unpriced if used.cost is None else f', ${used.cost:.4f}'}"
        for model, used in runtime.usage_by_provider.items()
    )
