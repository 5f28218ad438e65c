"""`Session`: what the calls of one session share, with a part for each concern. `Runtime` is its public class."""

from __future__ import annotations

import os
from collections.abc import Awaitable, Callable, Iterable, Mapping
from contextlib import suppress
from typing import Any

from ..budgets.limits import Limits
from ..budgets.prices import HasPrices, Price, PriceList
from ..definitions.definition import WorkerCreationDefaults
from ..errors import (
    CallCancelled,
    CallEnded,
    CallTimeout,
    DepthLimitError,
    LlmDoError,
    UnknownEntryError,
    attach_partial_messages,
    did_you_mean,
    mark_restored,
)
from ..models.choice import DefaultModel, ModelLike
from ..policy.approvals import ApprovalController
from ..policy.requests import ApprovalCallback, Approver
from ..policy.rules import RuleBook
from ..privacy.secret_fields import HIDDEN
from ..privacy.secrets import HasSecrets, Secrets
from ..values.texts import quote
from .adapt import ExplainsNames, adapt, entries_below, index_by_name
from .definition_digest import definition_digest
from .entry import Entry, EntryBase, MessageCallback, Sink, ToolsetFactory
from .executor import Executes, Executor, Recalled, complete_executor
from .frame import CallFrame, Deadline, Inherited, WorkerFrame
from .gate import Gate
from .loop import SessionLoop
from .recorder import Recorder
from .session_models import SessionModels
from .session_tools import HasRules, RuleChecks, ToolsetResolver
from .spending import LimitCallback, Spending
from .stream import EventStream


class Session:
    """The names, the policy, the record, the budgets, the models and the event loop of one session."""

    def __init__(
        self,
        entries: Mapping[str, Entry[Any]] | Iterable[Entry[Any]] = (),
        *,
        model: ModelLike | None = None,
        approval_callback: ApprovalCallback | Approver | None = None,
        tool_rules: Mapping[str, Any] | RuleBook | None = None,
        toolsets: Mapping[str, ToolsetFactory] | None = None,
        max_depth: int = 16,
        limits: Limits | None = None,
        max_concurrency: int = 32,
        message_callback: MessageCallback | None = None,
        sinks: Iterable[Sink] = (),
        journal: Sink | None = None,
        executor: Executor | Executes | None = None,
        text_deltas: bool = False,
        creation_defaults: WorkerCreationDefaults | None = None,
        secrets: Iterable[str] = (),
        prices: Mapping[str, Price | Mapping[str, Any]] | None = None,
        limit_callback: LimitCallback | None = None,
        choose_model: DefaultModel | None = None,
        max_records: int | None = None,
        session_id: str | None = None,
    ) -> None:
        if max_depth < 1 or max_concurrency < 1:
            raise ValueError(f"max_depth and max_concurrency must be at least 1, got {max_depth}, {max_concurrency}.")
        if limits is not None and not isinstance(limits, Limits):
            raise TypeError(f"limits must be Limits(...), got {quote(limits)}.")
        is_count = isinstance(max_records, int) and not isinstance(max_records, bool) and max_records >= 0
        if max_records is not None and not is_count:
            raise ValueError(f"max_records must be a number of records, or None for all of them; got {max_records!r}.")
        self.entries = _by_own_names(entries)
        self.toolsets = ToolsetResolver(toolsets)
        self.max_depth, self.max_concurrency = max_depth, max_concurrency
        self.executor = complete_executor(executor)
        self.text_deltas = text_deltas
        self.message_callback = message_callback
        self.creation_defaults = creation_defaults
        self.root = CallFrame()
        """The frame that top-level calls are made from."""
        self.root.key = ""
        # What a program keeps secret is added to what the project keeps secret.
        projects_secrets = self.entries.secret_names() if isinstance(self.entries, HasSecrets) else ()
        known = Secrets(secrets, os.environ, projects_secrets)
        stream = EventStream(sinks, message_callback, journal, known, session_id)
        # A session that continues an earlier one has the same keys, whether or not anything listens.
        keeps_keys = executor is not None or session_id is not None
        self.recorder = Recorder(stream, known, self.entries, max_records, keeps_keys=keeps_keys)
        projects_rules = self.entries.rule_book() if isinstance(self.entries, HasRules) else None
        approvals = ApprovalController(tool_rules if tool_rules is not None else projects_rules, approval_callback)
        self.gate = Gate(approvals, self.recorder, self.executor)
        self.rule_checks = RuleChecks(self.entries, approvals.rule_book)
        books = [book for book in (approvals.rule_book, projects_rules) if book is not None]
        if books:  # the rules of a program cannot allow what those of the project deny
            self.root.inherited = Inherited(tuple(dict.fromkeys(books)))
        projects_prices = self.entries.model_prices() if isinstance(self.entries, HasPrices) else {}
        self.spending = Spending(limits or Limits(), PriceList(prices or {}, projects_prices), limit_callback)
        self.models = SessionModels(self.entries, self.recorder, model, choose_model)
        self.loop = SessionLoop(self.root, max_concurrency, self.recorder.notice, self._enter_loop, self._find_progress)
        self.has_timeout_or_executor = executor is not None or self.spending.limits.timeout is not None

    def _enter_loop(self) -> None:
        self.spending.enter_loop()
        self.models.enter_loop()

    def _find_progress(self) -> Any:
        """Return a value that changes with every call and request; `None` while a person or a server has to answer."""
        loop = self.loop
        if self.gate.asking or self.spending.question or loop.requests_in_flight or loop.toolsets_opening:
            return None
        return self.spending.meter.calls, self.spending.meter.requests

    # -- names -------------------------------------------------------------------------------------

    def resolve(self, name: str, frame: CallFrame) -> EntryBase:
        """Return the entry of that name: a tool of the calling worker, else an entry of the project."""
        if (worker := frame.worker) is not None and name in worker.entry.own_entries:
            return adapt(worker.entry.own_entries[name])
        try:
            return adapt(self.entries[name])
        except KeyError:
            raise UnknownEntryError(self._explain_unknown(name, frame)) from None

    def resolve_at_top(self, name: str) -> EntryBase:
        return self.resolve(name, self.root)

    def find(self, name: str, frame: CallFrame) -> EntryBase | None:
        with suppress(LlmDoError):
            return self.resolve(name, frame)
        return None

    def reject(
        self,
        caller: CallFrame,
        entry: str | Entry[Any],
        args: tuple[Any, ...],
        kwargs: Mapping[str, Any],
        error: LlmDoError,
    ) -> None:
        """Record a call from Python that failed before its dispatch, without arguments that are or may be secret."""
        target = adapt(entry) if not isinstance(entry, str) else self.find(entry, caller)
        arguments: dict[str, Any] = {**{str(number): value for number, value in enumerate(args)}, **kwargs}
        if target is None or target.secret_fields is not None:
            arguments = dict.fromkeys(arguments, HIDDEN)
        name = entry if isinstance(entry, str) else entry.name
        self.recorder.reject(caller, name, arguments, str(error))

    def tell_from_namesakes(self, frame: CallFrame) -> None:
        """Note what distinguishes an entry that was passed as an object from others of its name, if anything does."""
        if self.find(frame.entry.name, frame.caller) is not frame.entry:
            definition = definition_digest(frame.entry)
            frame.variant, frame.replayable = f"~{definition.text}", definition.is_exact

    def _explain_unknown(self, name: str, frame: CallFrame) -> str:
        # A registry would have to read every file for this. It explains names itself.
        entries = self.entries.values() if isinstance(self.entries, dict) else ()
        owners = [worker.name for worker in entries_below(entries) if name in adapt(worker).own_entries]
        where = f" (called from {frame.path})" if frame.path else ""
        if owners:
            tool_of = " and of ".join(f"worker {owner!r}" for owner in owners)
            return f"{name!r} is a tool of {tool_of}, not of this caller{where}. Pass the entry itself, not its name."
        reason = self.entries.explain_name(name) if isinstance(self.entries, ExplainsNames) else None
        if reason is not None:
            return f"No entry is named {name!r}{where}. {reason}"
        worker = frame.worker_entry
        own_names = worker.own_entries if worker is not None else ()
        return f"No entry is named {name!r}{where}.{did_you_mean(name, {*self.entries, *own_names})}"

    # -- whether a call may run --------------------------------------------------------------------

    def check_may_run(self, frame: CallFrame) -> None:
        """Check depth, time, and that no call above has ended. This is checked again after each wait."""
        if frame.depth >= self.max_depth:
            raise DepthLimitError(
                f"Calls are nested deeper than max_depth={self.max_depth} allows: {frame.path}. "
                "Raise Runtime(max_depth=...), or look for a recursion that does not end."
            )
        if frame.caller.cancelled or self.gate.is_ended(frame):
            reason = "the run was ended" if self.gate.is_ended(frame) else "the call that makes it was cancelled"
            raise CallCancelled(f"{frame.path} does not run: {reason}.")
        if frame.depth:
            self.check_caller_runs(frame)
        if frame.deadline is not None and frame.deadline.expired:
            raise self.timed_out(frame.deadline, frame.path)

    def check_caller_runs(self, frame: CallFrame) -> None:
        """Raise `CallEnded` if the call that wants to make this one, or any call above that, has ended."""
        above = frame.parent
        while above is not None:
            if above.ended:
                raise CallEnded(
                    f"{frame.path} does not run: the call {above.path} has ended, and its context makes no more calls. "
                    "Await what a call starts before it returns, or make the call through the runtime."
                )
            above = above.parent

    # -- running it --------------------------------------------------------------------------------

    async def run_in_time(self, frame: CallFrame, start: Callable[[], Awaitable[Any]]) -> Any:
        """Run a call within its time limit, and in a slot if it calls a worker."""
        timeout = self._own_timeout(frame)
        if timeout is None:
            return await self._run_in_slot(frame, start)
        deadline = frame.deadline = Deadline(timeout, frame.deadline)
        deadline.active = True
        try:
            with deadline.scope:
                output = await self._run_in_slot(frame, start)
                if not deadline.expired:
                    return output
        finally:
            deadline.active = False
        error = self.timed_out(deadline, f"{frame.path}{frame.waits_for}")
        attach_partial_messages(error, list(frame.partial_messages))
        raise error

    async def _run_in_slot(self, frame: CallFrame, start: Callable[[], Awaitable[Any]]) -> Any:
        if frame.entry.kind != "worker":
            return await start()
        frame.waits_for = f", which waits for a slot ({self.max_concurrency} workers are running: max_concurrency)"
        async with self.loop.worker_slots(frame.caller):
            frame.waits_for = ""
            return await start()

    def _own_timeout(self, frame: CallFrame) -> float | None:
        """Return the time limit that begins with a call: that of a worker, or of the session for a top-level call."""
        limits = frame.entry.limits
        timeout, whole = None if limits is None else limits.timeout, self.spending.limits.timeout
        if frame.deadline is not None or whole is None:
            return timeout
        return whole if timeout is None else min(timeout, whole)

    def restore(self, frame: CallFrame, recalled: Recalled) -> Any:
        """Close a call with its answer from an earlier run. It counts as a call, and spends nothing."""
        self.spending.restore(recalled.spent)
        self.recorder.restore_usage(frame, recalled.spent)
        if recalled.error is not None:
            mark_restored(recalled.error, frame.path, frame.record, is_from_nested_call=recalled.is_from_nested_call)
            raise recalled.error
        if isinstance(frame, WorkerFrame) and frame.is_turn:
            frame.continue_with(list(recalled.messages or ()))
        frame.end()
        self.recorder.close(frame, recalled.output)
        return recalled.output

    def timed_out(self, deadline: Deadline, path: str) -> CallTimeout:
        """Return the error of a call that timed out. It names the functions that go on running in threads."""
        where = f"Time is up after {deadline.seconds:g} s (Limits.timeout), in {deadline.interrupted or path}."
        still_running = self.loop.threads.describe_left_running(deadline)
        return CallTimeout(f"{where} {still_running}".rstrip(), limit="timeout")


def _by_own_names(entries: Mapping[str, Entry[Any]] | Iterable[Entry[Any]]) -> Mapping[str, Entry[Any]]:
    """Return entries by name. Raise for one that a dictionary has under another name than its own."""
    for name, entry in entries.items() if isinstance(entries, dict) else ():
        if entry is not index_by_name([entry]).get(name):
            raise ValueError(f"The entry {entry.name!r} cannot be called {name!r}: names are the entries' own.")
    return entries if isinstance(entries, Mapping) else index_by_name(entries)
