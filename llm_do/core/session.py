"""What the calls of one session share: names, records, budgets, approvals, models, observers."""

from __future__ import annotations

import asyncio
import inspect
import logging
import os
from collections.abc import Callable, Coroutine, Iterable, Iterator, Mapping
from contextlib import AbstractAsyncContextManager, contextmanager, nullcontext
from functools import partial
from typing import Any, TypeVar

import anyio
from pydantic_ai._run_context import get_current_run_context
from pydantic_ai.models import Model

from ..budgets.ledger import Ledger
from ..budgets.limits import Limits, UsageMeter
from ..budgets.prices import HasPrices, Price, PriceList
from ..definitions.definition import WorkerCreationDefaults
from ..errors import (
    CallCancelled,
    CallEnded,
    CallTimeout,
    DepthLimitError,
    EventLoopError,
    LimitExceeded,
    ModelChoiceError,
    UnknownEntryError,
    did_you_mean,
)
from ..models import HasProviders, describe_remote, explain_unusable, resolve_model
from ..models.choice import DefaultModel, ModelLike
from ..models.compatibility import find_misfit, find_unknown
from ..policy.approvals import ApprovalCallback, ApprovalController, Approver
from ..policy.rules import RuleBook
from ..privacy.secrets import HasSecrets, Secrets
from ..values.texts import quoted
from .entry import Entry, EntryBase, Executor, LimitCallback, MessageCallback, Sink, ToolsetFactory
from .frame import CallFrame, Deadline
from .gate import HasRules, Permissions
from .names import ExplainsNames, ToolsetResolver, index_by_name, workers_below
from .recorder import Recorder
from .shared_loop import SharedLoop
from .slots import WorkerSlots
from .threads import Threads

T = TypeVar("T")

logger = logging.getLogger("llm_do")


class SessionState:
    """What the calls of one session share. `Runtime` is its face."""

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
        executor: Executor | None = None,
        text_deltas: bool = False,
        creation_defaults: WorkerCreationDefaults | None = None,
        secrets: Iterable[str] = (),
        prices: Mapping[str, Price | Mapping[str, Any]] | None = None,
        limit_callback: LimitCallback | None = None,
        choose_model: DefaultModel | None = None,
        max_records: int | None = None,
    ) -> None:
        if max_depth < 1 or max_concurrency < 1:
            raise ValueError("max_depth and max_concurrency must be at least 1.")
        if limits is not None and not isinstance(limits, Limits):
            raise TypeError(f"limits must be Limits(...), got {quoted(limits)}.")
        self.entries = entries if isinstance(entries, Mapping) else index_by_name(entries)
        for name, entry in entries.items() if isinstance(entries, dict) else ():
            if entry is not index_by_name([entry]).get(name):
                raise ValueError(f"The entry {entry.name!r} cannot be called {name!r}: names are the entries' own.")
        self.model = model
        self.default_model = choose_model if model is None else None
        """Asked for the model when it is first needed; `None` once it was."""
        projects = self.entries.rule_book() if isinstance(self.entries, HasRules) else None
        self.approvals = ApprovalController(tool_rules if tool_rules is not None else projects, approval_callback)
        self.toolsets = ToolsetResolver(toolsets)
        self.limits = limits or Limits()
        self.max_depth = max_depth
        self.max_concurrency = max_concurrency
        self.executor = executor
        self.bounded = executor is not None or self.limits.timeout is not None
        """Whether more stands around a call than its checks and its record."""
        self.text_deltas = text_deltas
        self.message_callback = message_callback
        self.creation_defaults = creation_defaults
        # What a program keeps secret is added to what the project keeps secret.
        own = self.entries.secret_names() if isinstance(self.entries, HasSecrets) else ()
        is_count = isinstance(max_records, int) and not isinstance(max_records, bool) and max_records >= 0
        if max_records is not None and not is_count:
            raise ValueError(f"max_records must be a number of records, or None for all of them; got {max_records!r}.")
        known = Secrets(secrets, os.environ, own)
        self.recorder = Recorder(sinks, message_callback, journal, known, self.entries, max_records)
        self.threads = Threads(self.recorder.notice)
        self.permissions = Permissions(self.approvals, self.recorder, self.entries)
        self._ended = self.permissions.ended
        self.meter = UsageMeter(self.limits)
        self.ledger = Ledger()
        projects_prices = self.entries.model_prices() if isinstance(self.entries, HasPrices) else {}
        self.prices = PriceList(prices or {}, projects_prices)
        self.limit_callback = limit_callback
        self.limit_question: tuple[str, asyncio.Future[bool | None], CallFrame] | None = None
        """The limit of the open question, its answer, and the call that asks it."""
        self.root = CallFrame(None, None)
        books = [book for book in (self.approvals.rule_book, projects) if book is not None]
        if books:  # what a program allows cannot take back what the project denies
            self.root.has_inherited, self.root.rules = True, tuple(dict.fromkeys(books))
        self.loop: asyncio.AbstractEventLoop | None = None
        """The event loop that serves the session."""
        self._process = os.getpid()
        """Where it does: a forked process has a copy that looks as if it ran."""
        self.request_slots: anyio.Semaphore
        self._models: dict[str, Model] = {}
        self.tasks: set[asyncio.Task[Any]] = set()
        """Tasks of the session's own, kept from the garbage collector."""
        self._inner_tasks: set[asyncio.Task[Any]] = set()
        """Tasks that serve a call which a worker, or a thread, waits for."""
        self.requests_in_flight = 0
        self.toolsets_opening = 0
        self.shared_loop = SharedLoop()

    # -- names -------------------------------------------------------------------------------------

    def resolve(self, name: str, frame: CallFrame) -> Entry[Any]:
        """The entry of that name: of the calling worker's own tools first, then of the project."""
        worker = frame.worker.entry if frame.worker is not None else None
        if isinstance(worker, EntryBase) and name in worker.own_entries:
            return worker.own_entries[name]
        try:
            return self.entries[name]
        except KeyError:
            raise UnknownEntryError(self._unknown(name, frame)) from None

    def _unknown(self, name: str, frame: CallFrame) -> str:
        # A registry would have to read every file to tell, and says itself what it has.
        known = self.entries.values() if isinstance(self.entries, dict) else ()
        owners = [worker.name for worker in workers_below(known) if name in worker.own_entries]
        where = f" (called from {frame.path})" if frame.path else ""
        if owners:
            tool_of = " and of ".join(f"worker {owner!r}" for owner in owners)
            return f"{name!r} is a tool of {tool_of}, not of this caller{where}. Pass the entry itself, not its name."
        why = self.entries.explain_name(name) if isinstance(self.entries, ExplainsNames) else None
        if why is not None:
            return f"No entry is named {name!r}{where}. {why}"
        worker = frame.worker.entry if frame.worker is not None else None
        own = worker.own_entries if isinstance(worker, EntryBase) else ()
        return f"No entry is named {name!r}{where}.{did_you_mean(name, {*self.entries, *own})}"

    # -- one event loop at a time ------------------------------------------------------------------

    def enter_loop(self) -> None:
        """Bind the session to the running loop: its counters are not made for two threads at once."""
        loop = asyncio.get_running_loop()
        if loop is self.loop:
            return
        if self.running_loop() is not None:
            raise EventLoopError(
                "This runtime is in use by another event loop that is still running. "
                "A runtime is one session: make one for each thread or request."
            )
        self.loop, self._process = loop, os.getpid()
        self.request_slots = anyio.Semaphore(self.max_concurrency, fast_acquire=True)
        self.requests_in_flight = self.toolsets_opening = 0
        self.root.worker_slots = None
        self.ledger.leave_loop()
        self.limit_question = None
        self._choosing = asyncio.Lock()

    def running_loop(self) -> asyncio.AbstractEventLoop | None:
        """Return the loop that serves the session, if it runs, or is about to go on in another thread."""
        loop = self.loop
        if loop is None or loop.is_closed() or loop is self.shared_loop.ended or self._process != os.getpid():
            return None
        return loop if loop.is_running() or self.shared_loop.is_open else None

    def run_in_thread(self, frame: CallFrame, function: Callable[[], T]) -> Coroutine[Any, Any, T]:
        """Run a synchronous function of a call beside the loop."""
        return self.threads.run(frame, function, has_place=not frame.top.is_inner)

    def worker_slots(self, frame: CallFrame) -> AbstractAsyncContextManager[Any]:
        """Slots for the worker calls that `frame` makes. Each parent has its own, so nesting cannot deadlock.

        A call that is known to be made below a worker of `frame`, or in a thread, goes without: what waits for it may
        hold the slot that it would wait for. Where that is not known, it goes without when nothing else happens.
        """
        if (frame is self.root and self._is_inner_task()) or self._is_used_from_below(frame):
            return nullcontext()
        if frame.worker_slots is None:
            frame.worker_slots = WorkerSlots(self.max_concurrency, self._progress)
        return frame.worker_slots

    def _progress(self) -> Any:
        """Return a value that changes with every call and request; `None` while it is sure that something goes on."""
        if self.requests_in_flight or self.toolsets_opening or self.permissions.asking or self.limit_question:
            return None
        return self.meter.calls, self.meter.requests

    def call_around(self) -> CallFrame | None:
        """Return the worker whose run the code that runs now belongs to, also in tasks that it started.

        It is known from PydanticAI's own context variable, and is a hint against calls that wait for themselves.
        """
        run_ctx = get_current_run_context()
        deps: Any = run_ctx.deps if run_ctx is not None else None
        if getattr(deps, "session", None) is not self:
            return None
        frame: CallFrame = deps.frame
        return None if frame.ended else frame

    def _is_used_from_below(self, frame: CallFrame) -> bool:
        around = self.call_around()
        return around is not None and around.is_below(frame)

    @contextmanager
    def inner_task(self) -> Iterator[None]:
        """Mark the running task as one that serves a call which a worker, or a thread, waits for."""
        task = asyncio.current_task()
        if task is None or task in self._inner_tasks:
            yield
            return
        self._inner_tasks.add(task)
        try:
            yield
        finally:
            self._inner_tasks.discard(task)

    def find_call_around(self, frame: CallFrame) -> None:
        """Find out whether a top-level call is made inside another one, which may wait for it.

        Then it goes without places for threads, at every depth below it: what waits for it may hold them all.
        """
        if self.requests_in_flight or self.limit_question is not None:
            frame.called_in = self.call_around()
        if self._inner_tasks:
            frame.is_inner = self._is_inner_task() or self.call_around() is not None

    def _is_inner_task(self) -> bool:
        return asyncio.current_task() in self._inner_tasks

    # -- whether a call may run --------------------------------------------------------------------

    def admit(self, frame: CallFrame) -> None:
        """Check depth, cancellation, deadline and budget."""
        parent = frame.parent
        assert parent is not None
        if frame.depth >= self.max_depth:
            raise DepthLimitError(
                f"Calls are nested deeper than max_depth={self.max_depth} allows: {frame.path}. "
                "Raise Runtime(max_depth=...), or look for a recursion that does not end."
            )
        if parent.cancelled or (self._ended and self.permissions.has_ended(frame)):
            raise CallCancelled(f"{frame.path} does not run: the call that makes it was cancelled.")
        self.check_caller_runs(frame)
        if frame.deadline is not None and frame.deadline.expired:
            raise self.timed_out(frame.deadline, frame.path)
        meters = (self.meter, *parent.meters)
        for meter in meters:  # a call counts in all of them, or in none
            if (problem := meter.no_more_calls()) is not None:
                raise LimitExceeded(
                    f"{frame.path} does not run: {problem}.", problem=problem, limit="max_calls", worker=meter.worker
                )
        for meter in meters:
            meter.count_call()

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

    async def raise_limits(self, frame: CallFrame, exceeded: LimitExceeded) -> bool | None:
        """Ask whether to go on, where a limit of the session says no. All calls that wait for it share one answer.

        `None` is no answer: another limit was asked about, and the one that says no may have been raised with it.
        """
        if self.limit_callback is None:
            return False
        with frame.asking():
            while self.limit_question is not None:
                limit, question, asker = self.limit_question
                if frame.is_below(asker):  # the callback itself makes this call, and would wait for its own answer
                    return False
                agreed = await asyncio.shield(question)
                if agreed is not None:
                    return agreed if limit == exceeded.limit else None
            return await self._ask_for_limits(self.limit_callback, exceeded, frame)

    async def _ask_for_limits(self, callback: LimitCallback, exceeded: LimitExceeded, frame: CallFrame) -> bool:
        """Ask for other limits. The same are none: the request would be refused, and asked about, without end."""
        question: asyncio.Future[bool | None] = asyncio.get_running_loop().create_future()
        self.limit_question = exceeded.limit, question, frame
        agreed: bool | None = None  # without an answer, the next call that waits asks
        try:
            answer = callback(exceeded, self.meter.limits)
            limits = await answer if inspect.isawaitable(answer) else answer
            if not isinstance(limits, Limits | None):
                raise TypeError(f"limit_callback must return Limits or None, got {quoted(limits)}.")
            agreed = limits is not None and limits != self.meter.limits
            if limits is not None and agreed:
                self.meter.limits = limits
                self.ledger.serve()
                await asyncio.sleep(0)  # limits that never suffice must not keep a timeout from ending it
            return agreed
        finally:
            self.limit_question = None
            question.set_result(agreed)

    def timed_out(self, deadline: Deadline, path: str) -> CallTimeout:
        said = f"Time is up after {deadline.seconds:g} s (Limits.timeout), in {deadline.interrupted or path}."
        left = self.threads.tell_left_running(deadline)
        return CallTimeout(f"{said} {left}".rstrip(), limit="timeout")

    # -- models ------------------------------------------------------------------------------------

    async def find_default_model(self, frame: CallFrame) -> None:
        """Choose the session's model, once. The time of a call stops meanwhile: a person may be asked."""
        assert frame.entry is not None
        deadline = frame.deadline
        if deadline is not None:
            deadline.pause()
        try:
            async with self._choosing:
                if self.default_model is not None:
                    self.model = await self.default_model(frame.entry.name, partial(self.recorder.notice, frame))
                    self.default_model = None
        finally:
            if deadline is not None:
                deadline.resume()

    def choose_model(self, frame: CallFrame) -> Model | None:
        """The worker's own model, else the session's, if any. A caller's model is not inherited."""
        entry = frame.entry
        assert entry is not None
        choice = entry.model if entry.model is not None else self.model
        if choice is None:
            return None
        if isinstance(choice, Model):
            self.check_compatible(frame, choice)
            return choice
        if not isinstance(choice, str):
            raise ModelChoiceError(
                f"Worker {entry.name!r} cannot use {quoted(choice)}: give a model's name, or a model."
            )
        if choice not in self._models:
            try:
                self._models[choice] = self._make_model(choice)
            except Exception as exc:  # a provider's package may raise anything of its own
                own = self.entries.providers() if isinstance(self.entries, HasProviders) else ()
                why = explain_unusable(choice, exc, own)
                raise ModelChoiceError(f"Worker {entry.name!r} cannot use model {choice!r}: {why}") from exc
        self.check_compatible(frame, self._models[choice], choice)
        return self._models[choice]

    def _make_model(self, name: str) -> Model:
        own = self.entries.make_model(name) if isinstance(self.entries, HasProviders) else None
        if own is not None:
            return own
        model = resolve_model(name)
        if remote := describe_remote(name):
            logger.warning("llm-do: %s", remote)
        return model

    def check_compatible(self, frame: CallFrame, model: Model, named: str | None = None) -> None:
        """Refuse a model that is known not to be one of those that a worker can use."""
        entry = frame.entry
        wanted = entry.compatible_models if isinstance(entry, EntryBase) else ()
        if entry is None or not wanted:
            return
        listed = ", ".join(wanted)
        if (misfit := find_misfit(model, wanted, named)) is not None:
            by = "" if entry.model is not None else ", the session's default"
            raise ModelChoiceError(
                f"Worker {entry.name!r} cannot use model {misfit!r}{by}: its compatible_models are {listed}. Give it a "
                "`model` of its own that fits, or the session one: `--model NAME`, `model=` / `cli_model=` in Python, "
                "LLM_DO_MODEL=NAME, or `model` in llm-do.toml."
            )
        if (unknown := find_unknown(model, wanted, named)) is not None:
            name, what = unknown
            self.recorder.notice(
                frame,
                f"It is not known whether model {name!r} {what}, as worker {entry.name!r} asks for "
                f"(compatible_models: {listed}). It is used all the same.",
            )
