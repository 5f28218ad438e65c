"""`Context.call`: the one way to invoke an entry, whoever makes the call."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from contextlib import nullcontext
from copy import copy
from functools import lru_cache, partial
from typing import Any, Generic, overload

import anyio
import anyio.from_thread
from pydantic import TypeAdapter, ValidationError
from pydantic_ai import RunContext
from pydantic_ai.exceptions import ApprovalRequired
from pydantic_ai.messages import ToolReturn
from pydantic_ai.usage import RunUsage
from typing_extensions import TypeVar

from .approval import ApprovalController
from .errors import EventLoopError, NoSandboxError, OutputError, attach_partial_messages, came_from_below, summarize
from .frame import CallFrame, Deadline
from .metering import MeteredModel, NoModel
from .names import reachable
from .protocols import Entry, EntryBase, ModelLike
from .sandbox import SandboxManager, SandboxToolset
from .state import SessionState
from .trace import Trace
from .usage import UsageMeter

T = TypeVar("T", default=Any)


class Context:
    """The handle that user code holds: a session, seen from one call.

    It is the `deps` of every PydanticAI run, so a tool reaches it as `ctx.deps`.
    """

    __slots__ = ("_session", "frame")

    def __init__(self, session: SessionState, frame: CallFrame) -> None:
        self._session = session
        self.frame = frame
        """The data of the call that this context belongs to."""

    @classmethod
    def from_worker(cls, worker: Entry[Any], *, model: ModelLike | None = None, **runtime_options: Any) -> Context:
        """A context at the top of a new session that knows `worker` and everything it reaches.

        `runtime_options` are those of `Runtime`.
        """
        session = SessionState(reachable(worker), model=model, **runtime_options)
        return cls(session, session.root)

    # -- calling -----------------------------------------------------------------------------------

    @overload
    async def call(self, entry: str, /, *args: Any, **kwargs: Any) -> Any: ...
    @overload
    async def call(self, entry: Entry[T], /, *args: Any, **kwargs: Any) -> T: ...
    async def call(self, entry: str | Entry[Any], /, *args: Any, **kwargs: Any) -> Any:
        """Call an entry, by name or as an object, as if it were a Python function."""
        target = self._session.resolve(entry, self.frame) if isinstance(entry, str) else entry
        if not isinstance(target, EntryBase):
            return await dispatch(self, target, self._session.parameters_of(target).bind(args, kwargs))
        arguments = target.parameters.bind(args, kwargs)
        if target.check_arguments is not None:
            await target.check_arguments(arguments, self)
        return await dispatch(self, target, arguments)

    @overload
    def call_sync(self, entry: str, /, *args: Any, **kwargs: Any) -> Any: ...
    @overload
    def call_sync(self, entry: Entry[T], /, *args: Any, **kwargs: Any) -> T: ...
    def call_sync(self, entry: str | Entry[Any], /, *args: Any, **kwargs: Any) -> Any:
        """`call` for synchronous code: at the top level, or in a synchronous entry, which runs in a thread."""
        try:
            asyncio.get_running_loop()
        except RuntimeError:
            pass
        else:
            raise EventLoopError(
                "call_sync would block the event loop that has to serve the call. Use `await ctx.call(...)` here."
            )
        loop_token = self._session.running_loop()
        if loop_token is not None:
            return anyio.from_thread.run(partial(self._call_from_thread, entry, args, kwargs), token=loop_token)
        if self.frame.entry is None:
            return anyio.run(partial(self._call_in_own_loop, entry, args, kwargs))
        raise EventLoopError(f"The event loop that {self.frame.path} ran in has ended, so it can make no more calls.")

    async def _call_from_thread(self, entry: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        task = asyncio.current_task()
        assert task is not None
        calls, inner = self.frame.thread_calls, self._session.inner_tasks
        inner.add(task)
        if calls is not None:
            calls.add(task)
        try:
            return await self.call(entry, *args, **kwargs)
        finally:
            inner.discard(task)
            if calls is not None:
                calls.discard(task)

    async def _call_in_own_loop(self, entry: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        try:
            return await self.call(entry, *args, **kwargs)
        finally:
            # Other threads may have come along, and the loop must not end under their calls.
            while calls := self._session.root.thread_calls:
                await asyncio.wait(calls)

    @overload
    def bind(self, entry: str, /) -> BoundEntry[Any]: ...
    @overload
    def bind(self, entry: Entry[T], /) -> BoundEntry[T]: ...
    def bind(self, entry: str | Entry[Any], /) -> BoundEntry[Any]:
        """An entry as a function that makes its calls through this context."""
        if isinstance(entry, str):
            self._session.resolve(entry, self.frame)
        return BoundEntry(self, entry)

    @property
    def tools(self) -> ToolsProxy:
        """Entries as attributes: `await ctx.tools.search(query="x")`, `ctx.tools["my-worker"]`."""
        return ToolsProxy(self)

    # -- the session, seen from here ---------------------------------------------------------------

    @property
    def session(self) -> SessionState:
        """What all calls of the session share: for the parts of llm-do, which user code does not need."""
        return self._session

    @property
    def registry(self) -> Mapping[str, Entry[Any]]:
        """The entries of the project, by name."""
        return self._session.entries

    @property
    def model(self) -> ModelLike | None:
        """The session's default model, for workers that have none of their own."""
        return self._session.model

    @property
    def trace(self) -> Trace:
        """The records of all calls of the session so far."""
        return self._session.recorder.trace

    @property
    def usage(self) -> dict[str, RunUsage]:
        """What the session has used so far, by model name."""
        return self._session.meter.by_model

    @property
    def depth(self) -> int:
        """The depth of the next call made from here; 0 at the top."""
        return self.frame.depth + 1

    @property
    def sandbox_toolset(self) -> SandboxToolset:
        """The files of the worker at work: `ctx.sandbox_toolset.read_text("input", "a.txt")`."""
        worker = self.frame.worker
        if worker is None or worker.sandbox is None:
            whose = f"worker {worker.path!r} has none" if worker is not None else "no worker is at work here"
            raise NoSandboxError(f"There is no sandbox: {whose}. Give a worker one with WorkerEntry(sandbox=...).")
        return worker.sandbox

    @property
    def sandbox_manager(self) -> SandboxManager:
        """The roots of the worker at work."""
        return self.sandbox_toolset.manager

    @property
    def approval_controller(self) -> ApprovalController:
        return self._session.approvals

    def __repr__(self) -> str:
        return f"<Context at {self.frame.path or 'the top'}>"


async def dispatch(
    ctx: Context,
    entry: Entry[T],
    arguments: dict[str, Any],
    run_ctx: RunContext[Context] | None = None,
    frame: CallFrame | None = None,
) -> T:
    """Make one call on behalf of `ctx`, with arguments that are validated. Every call of a session passes here.

    Python code comes from `Context.call`. A model's calls come from the tools that `plane` gave it, with
    their `run_ctx`. A turn of a chat brings the frame of its scope.
    """
    session = ctx._session
    if asyncio.get_running_loop() is not session.loop:
        session.enter_loop()
    if frame is None:
        frame = CallFrame(entry, ctx.frame)
    recorder = session.recorder
    try:
        recorder.open(frame, arguments)
        session.admit(frame)
        if entry.requires_approval or ctx.frame.rules:
            arguments = await session.approve(frame, arguments)
        frame.arguments = arguments
        child = Context(session, frame)
        if entry.kind == "worker":
            choose_model(child)
            if isinstance(entry, EntryBase) and entry.limits is not None:
                frame.meters = (*ctx.frame.meters, UsageMeter(entry.limits, f"worker {entry.name!r}"))
        # `run_ctx` is None for an entry that says it needs none, whatever the protocol promises to others.
        own: Any = run_context(child, entry, run_ctx) if getattr(entry, "needs_run_context", True) else None
        output: T
        try:
            if entry.kind == "worker" or session.bounded:
                output = await _run_bounded(ctx, child, entry, own)
            else:
                output = await entry.call(arguments, child, own)
        except ApprovalRequired as exc:
            # PydanticAI's way for a tool to ask from within. The runtime asks, and the tool runs again.
            if frame.approved or frame.record is None or came_from_below(exc):
                raise
            frame.arguments = await session.approve(frame, frame.record.input_data, asked_from_within=True)
            output = await _run_bounded(ctx, child, entry, own and run_context(child, entry, own))
        if (schema_out := getattr(entry, "schema_out", None)) is not None:
            check_output(entry, schema_out, output)
    except BaseException as exc:
        recorder.fail(frame, exc)
        raise
    recorder.close(frame, output)
    return output


async def _run_bounded(ctx: Context, child: Context, entry: Entry[Any], run_ctx: Any) -> Any:
    """Run the call that `child` belongs to, in time, and beside no more workers of its caller than may be."""
    session, frame = ctx.session, child.frame
    async with session.worker_slots(ctx.frame) if entry.kind == "worker" else nullcontext():
        try:
            timeout = _timeout(session, frame, entry)
            if timeout is None:
                return await session.executor.execute(entry, frame.arguments, child, run_ctx)
            deadline = frame.deadline = Deadline(timeout, frame.deadline)
            with deadline.scope:
                output = await session.executor.execute(entry, frame.arguments, child, run_ctx)
                if not deadline.expired:
                    return output
        finally:
            frame.model = None  # it points back to the frame, which nothing needs any more
    error = session.timed_out(deadline, frame.path)
    attach_partial_messages(error, list(frame.partial_messages))
    raise error


def _timeout(session: SessionState, frame: CallFrame, entry: Entry[Any]) -> float | None:
    """The time that a call has beyond what the calls above it have: a worker's own, or a top-level call's."""
    own = entry.limits.timeout if isinstance(entry, EntryBase) and entry.limits is not None else None
    if frame.deadline is not None or session.limits.timeout is None:
        return own
    return session.limits.timeout if own is None else min(own, session.limits.timeout)


def choose_model(ctx: Context) -> None:
    """Give a worker's call the model that its requests go through."""
    frame = ctx.frame
    assert frame.record is not None
    if (model := ctx.session.choose_model(frame)) is not None:
        frame.model = MeteredModel(model, ctx.session, frame)
        frame.record.model = model.model_name


def run_context(ctx: Context, entry: Entry[Any], base: RunContext[Context] | None = None) -> RunContext[Context]:
    """A `RunContext` whose `deps` make calls on behalf of the call that `ctx` belongs to."""
    frame = ctx.frame
    if base is not None:
        run_ctx = copy(base)
        run_ctx.deps = ctx
    else:
        worker = frame.worker
        model = worker.model if worker is not None and worker.model is not None else NoModel(entry.name)
        run_ctx = RunContext(deps=ctx, model=model, usage=RunUsage(), tool_name=entry.name, max_retries=1)
    run_ctx.tool_call_approved = frame.approved
    return run_ctx


class BoundEntry(Generic[T]):
    """An entry bound to a context or a runtime: call it like an async function."""

    __slots__ = ("_context", "_entry")

    def __init__(self, context: Context, entry: str | Entry[T]) -> None:
        self._context = context
        self._entry = entry

    async def __call__(self, *args: Any, **kwargs: Any) -> T:
        # By name again at each call: what a registry has under it may have changed.
        return await self._context.call(self._entry, *args, **kwargs)

    def call_sync(self, *args: Any, **kwargs: Any) -> T:
        return self._context.call_sync(self._entry, *args, **kwargs)

    def __repr__(self) -> str:
        name = self._entry if isinstance(self._entry, str) else self._entry.name
        return f"<BoundEntry {name!r} of {self._context!r}>"


class ToolsProxy:
    """The entries that a context can call, as attributes and as items."""

    __slots__ = ("_context",)

    def __init__(self, context: Context) -> None:
        self._context = context

    def __getattr__(self, name: str) -> BoundEntry[Any]:
        if name.startswith("_"):  # what copy, pickle and debuggers look for is no entry
            raise AttributeError(name)
        return self._context.bind(name)

    def __getitem__(self, name: str) -> BoundEntry[Any]:
        return self._context.bind(name)


def check_output(entry: Entry[Any], schema_out: Any, output: Any) -> None:
    """Check an output strictly against the type that its entry declares."""
    value = output.return_value if isinstance(output, ToolReturn) else output
    try:
        _adapter(schema_out).validate_python(value, strict=True)
    except ValidationError as exc:
        raise OutputError(f"{entry.name}() returned what its schema_out does not allow: {summarize(exc)}") from exc


def _adapter(schema_out: Any) -> TypeAdapter[Any]:
    try:
        return _known_adapter(schema_out)
    except TypeError:  # an annotation may hold what cannot be hashed
        return TypeAdapter(schema_out)


@lru_cache(maxsize=1024)
def _known_adapter(schema_out: Any) -> TypeAdapter[Any]:
    return TypeAdapter(schema_out)
