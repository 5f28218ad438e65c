"""What the calls of one session share: names, records, budgets, approvals, models, observers."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping
from typing import Any

import anyio
import anyio.lowlevel
from pydantic_ai.exceptions import UserError
from pydantic_ai.models import Model, infer_model

from .approval import ApprovalCallback, ApprovalController, SameObject
from .errors import (
    ApprovalDenied,
    CallCancelled,
    CallTimeout,
    DepthLimitError,
    LimitExceeded,
    ModelChoiceError,
    SyncCallError,
    UnknownEntryError,
    did_you_mean,
)
from .events import ApprovalDecided, ApprovalRequested
from .frame import CallFrame, Deadline
from .inputs import DeclaredParameters, OpenParameters, Parameters, model_parameters
from .names import ToolsetResolver, check_entry, index_by_name, workers_below
from .protocols import Entry, Executor, MessageCallback, ModelLike, Sink, ToolsetFactory
from .recorder import Recorder, tags
from .trace import ApprovalOutcome, TraceEntry
from .usage import Limits, UsageMeter
from .values import snapshot

THREADS_PER_DEPTH = 40


class SessionState:
    """What the calls of one session share. `Runtime` is its face."""

    def __init__(
        self,
        entries: Mapping[str, Entry[Any]] | Iterable[Entry[Any]] = (),
        *,
        model: ModelLike | None = None,
        approval_callback: ApprovalCallback | None = None,
        toolsets: Mapping[str, ToolsetFactory] | None = None,
        max_depth: int = 16,
        limits: Limits | None = None,
        max_concurrency: int = 32,
        message_callback: MessageCallback | None = None,
        sinks: Iterable[Sink] = (),
        journal: Sink | None = None,
        executor: Executor | None = None,
        text_deltas: bool = False,
    ) -> None:
        if max_depth < 1 or max_concurrency < 1:
            raise ValueError("max_depth and max_concurrency must be at least 1.")
        self.entries = entries if isinstance(entries, Mapping) else index_by_name(entries)
        self.model = model
        self.approvals = ApprovalController(approval_callback)
        self.toolsets = ToolsetResolver(toolsets)
        self.limits = limits or Limits()
        self.max_depth = max_depth
        self.max_concurrency = max_concurrency
        self.executor: Executor = executor or InlineExecutor()
        self.bounded = executor is not None or self.limits.timeout is not None
        """Whether more stands around a call than its checks and its record."""
        self.text_deltas = text_deltas
        self.recorder = Recorder(sinks, message_callback, journal)
        self.meter = UsageMeter(self.limits)
        self.root = CallFrame(None, None)
        self._loop: asyncio.AbstractEventLoop | None = None
        self._loop_token: anyio.lowlevel.EventLoopToken
        self.request_slots: anyio.Semaphore
        self._thread_limiters: dict[int, anyio.CapacityLimiter]
        self._models: dict[str, Model] = {}
        # By id, with the entry beside it so that the id stays its own: a user's class may not be hashable.
        self._parameters: dict[int, tuple[Entry[Any], Parameters]] = {}

    # -- names -------------------------------------------------------------------------------------

    def resolve(self, name: str, frame: CallFrame) -> Entry[Any]:
        """The entry of that name: of the calling worker's own tools first, then of the project."""
        if frame.worker is not None:
            own = getattr(frame.worker.entry, "own_entries", None)
            if own is not None and name in own:
                return own[name]  # type: ignore[no-any-return]
        try:
            return self.entries[name]
        except KeyError:
            raise UnknownEntryError(self._unknown(name, frame)) from None

    def _unknown(self, name: str, frame: CallFrame) -> str:
        owners = [w.name for w in workers_below(self.entries.values()) if name in getattr(w, "own_entries", ())]
        where = f" (called from {frame.path})" if frame.path else ""
        if owners:
            tool_of = " and of ".join(f"worker {owner!r}" for owner in owners)
            return f"{name!r} is a tool of {tool_of}, not of this caller{where}. Pass the entry itself, not its name."
        own = getattr(frame.worker.entry, "own_entries", ()) if frame.worker is not None else ()
        return f"No entry is named {name!r}{where}.{did_you_mean(name, {*self.entries, *own})}"

    def parameters_of(self, entry: Entry[Any]) -> Parameters:
        """What an entry takes. A user's own class says it with `input_type`, or takes what a worker takes."""
        declared = getattr(entry, "parameters", None)
        if isinstance(declared, _PARAMETERS):
            return declared
        if (known := self._parameters.get(id(entry))) is None:
            check_entry(entry, "this runtime")
            input_type = getattr(entry, "input_type", None)
            made = OpenParameters(entry.name) if input_type is None else model_parameters(entry.name, input_type)
            known = self._parameters[id(entry)] = (entry, made)
        return known[1]

    # -- one event loop at a time ------------------------------------------------------------------

    def enter_loop(self) -> None:
        """Bind the session to the running loop: its counters are not made for two threads at once."""
        loop = asyncio.get_running_loop()
        if loop is self._loop:
            return
        if self._loop is not None and self._loop.is_running():
            raise SyncCallError(
                "This runtime is in use by another event loop that is still running. "
                "A runtime is one session: make one for each thread or request."
            )
        self._loop = loop
        self._loop_token = anyio.lowlevel.current_token()
        self.request_slots = anyio.Semaphore(self.max_concurrency, fast_acquire=True)
        self._thread_limiters = {}
        self.root.worker_slots = None

    def running_loop(self) -> anyio.lowlevel.EventLoopToken | None:
        """A way back into the loop that serves the session, if there is one."""
        return self._loop_token if self._loop is not None and self._loop.is_running() else None

    def threads(self, depth: int) -> anyio.CapacityLimiter:
        """Threads for synchronous entries at `depth`. One pool for all depths would let callers starve callees."""
        if (limiter := self._thread_limiters.get(depth)) is None:
            limiter = self._thread_limiters[depth] = anyio.CapacityLimiter(THREADS_PER_DEPTH)
        return limiter

    def worker_slots(self, frame: CallFrame) -> anyio.Semaphore:
        """Slots for the worker calls that `frame` makes. Each parent has its own, so nesting cannot deadlock."""
        if frame.worker_slots is None:
            frame.worker_slots = anyio.Semaphore(self.max_concurrency, fast_acquire=True)
        return frame.worker_slots

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
        if parent.cancelled:
            raise CallCancelled(f"{frame.path} does not run: the call that makes it was cancelled.")
        if frame.deadline is not None and frame.deadline.expired:
            raise self.timed_out(frame.deadline, frame.path)
        if (problem := self.meter.start_call()) is not None:
            raise LimitExceeded(f"{frame.path} does not run: {problem}.")

    def timed_out(self, deadline: Deadline, path: str) -> CallTimeout:
        return CallTimeout(
            f"Time is up after {deadline.seconds:g} s (Limits.timeout), in {deadline.interrupted or path}."
        )

    async def approve(self, frame: CallFrame, arguments: dict[str, Any]) -> dict[str, Any]:
        """The arguments that were approved, out of anybody's reach, or `ApprovalDenied`."""
        entry, record, deadline = frame.entry, frame.record, frame.deadline
        assert entry is not None and record is not None
        # While a person thinks, nobody may change what they were shown.
        arguments = snapshot(arguments)
        reason = f"{entry.kind} {entry.name!r} requires approval; call path: {frame.path}"
        worker = frame.parent.worker.entry if frame.parent is not None and frame.parent.worker is not None else None
        subject = (SameObject(worker), getattr(entry, "identity", None) or SameObject(entry))
        if self.recorder.observed:
            self.recorder.emit(ApprovalRequested(**tags(frame), arguments=record.input_data, reason=reason))
        if deadline is not None:
            deadline.pause()
        try:
            outcome = await self.approvals.decide(entry.name, arguments, reason, subject=subject)
        finally:
            if deadline is not None:
                deadline.resume()
        self._decided(frame, record, outcome)
        return arguments

    def _decided(self, frame: CallFrame, record: TraceEntry, outcome: ApprovalOutcome) -> None:
        record.approval = outcome
        frame.approved = outcome.approved
        if self.recorder.observed:
            self.recorder.emit(ApprovalDecided(**tags(frame), outcome=outcome))
        if not outcome.approved:
            because = f": {outcome.note}" if outcome.note else ""
            raise ApprovalDenied(f"{frame.path} was refused{because}.", note=outcome.note)

    # -- models ------------------------------------------------------------------------------------

    def choose_model(self, frame: CallFrame) -> Model | None:
        """The worker's own model, else the session's, if any. A caller's model is not inherited."""
        entry = frame.entry
        assert entry is not None
        choice = entry.model if entry.model is not None else self.model
        if choice is None or not isinstance(choice, str):
            return choice
        if choice not in self._models:
            try:
                self._models[choice] = infer_model(choice)
            except (UserError, ValueError, ImportError) as exc:
                raise ModelChoiceError(f"Worker {entry.name!r} cannot use model {choice!r}: {exc}") from exc
        return self._models[choice]


_PARAMETERS = (DeclaredParameters, OpenParameters)


class InlineExecutor:
    """Just calls."""

    async def execute(self, entry: Entry[Any], arguments: dict[str, Any], ctx: Any, run_ctx: Any) -> Any:
        return await entry.call(arguments, ctx, run_ctx)
