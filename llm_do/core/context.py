"""`Context.call`: the one way to invoke an entry, whoever makes the call."""

from __future__ import annotations

import asyncio
import concurrent.futures
from asyncio import get_running_loop
from collections.abc import Awaitable, Callable, Mapping
from copy import copy
from functools import lru_cache, partial
from pathlib import Path
from typing import Any, Generic, overload

from pydantic import TypeAdapter, ValidationError
from pydantic_ai import BinaryContent, RunContext
from pydantic_ai.exceptions import ApprovalRequired
from pydantic_ai.messages import ToolReturn
from pydantic_ai.models import Model
from pydantic_ai.usage import RunUsage
from typing_extensions import TypeVar

from ..arguments.payloads import AttachmentPayload
from ..budgets.limits import UsageMeter, full_name
from ..definitions.definition import WorkerCreationDefaults, WorkerDefinition
from ..errors import (
    EventLoopError,
    NoWorkerError,
    OutputError,
    PathChanged,
    PathFailed,
    UnknownAttributeError,
    UnknownEntryError,
    attach_partial_messages,
    raised_in_nested_call,
    summarize,
)
from ..models.choice import ModelLike
from ..policy.approvals import ApprovalController
from ..sandbox import SandboxManager, SandboxToolset
from .attachments import bind_call
from .entry import Entry, EntryBase, MessageCallback
from .frame import CallFrame, Deadline
from .gate import parameters_of
from .metering import NoModel, metered
from .names import check_entry, reachable
from .session import SessionState
from .threads import cancel_thread_calls
from .trace import Trace

T = TypeVar("T", default=Any)

_LOOP_ENDED = "The event loop that served the call ended before the call did. Keep it running until its calls are over."
_MOST_QUESTIONS = 4
"""How many more times a call is asked about when its files keep changing."""


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
            return await dispatch(self, target, parameters_of(target).bind(args, kwargs))
        if target.attachment_policy is not None:
            frame = CallFrame(target, self.frame)
            arguments = bind_call(frame, args, kwargs, self._session.permissions)
            return await dispatch(self, target, arguments, frame=frame)
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
        session, call = self._session, partial(self.call, entry, *args, **kwargs)
        if self.frame.entry is not None:
            loop = session.running_loop()
            if loop is None:
                raise EventLoopError(f"The event loop that {self.frame.path} ran in has ended, and so have its calls.")
            return self._join(loop, call)
        loop = session.shared_loop.find(session.running_loop)
        if loop is None:
            return session.shared_loop.run(self._open_loop(call))
        with session.shared_loop.guest():
            return self._join(loop, call)

    async def _open_loop(self, call: Callable[[], Awaitable[Any]]) -> Any:
        """Make a call in a loop of its own, which other threads may use from now on."""
        self._session.enter_loop()
        self._session.shared_loop.is_open = True
        return await call()

    def _join(self, loop: asyncio.AbstractEventLoop, call: Callable[[], Awaitable[Any]]) -> Any:
        """Make a call from a thread in a loop that runs in another one."""
        made = self._call_for_thread(call)
        try:
            future = asyncio.run_coroutine_threadsafe(made, loop)
        except RuntimeError:  # it is closed
            made.close()
            raise EventLoopError(_LOOP_ENDED) from None
        try:
            while not concurrent.futures.wait([future], timeout=0.5).done:
                if self._session.running_loop() is not loop and not future.done():
                    raise EventLoopError(_LOOP_ENDED)
        except KeyboardInterrupt:  # it ends the wait of this thread, and has to end the call in the other one
            future.cancel()
            raise
        try:
            output, stop = future.result()
        except concurrent.futures.CancelledError:
            if self.frame.entry is not None:  # the call whose thread this is was cancelled
                raise
            raise EventLoopError(f"The call was cancelled. {_LOOP_ENDED}") from None
        if stop is not None:
            raise stop
        return output

    async def _call_for_thread(self, call: Callable[[], Awaitable[Any]]) -> tuple[Any, SystemExit | None]:
        """Return the output of a call, or the `SystemExit` that is meant for its thread: a task would end the loop."""
        task, frame = asyncio.current_task(), self.frame
        assert task is not None
        if frame.thread_calls is None:
            frame.thread_calls = set()
        frame.thread_calls.add(task)
        try:
            with self._session.inner_task():
                return await call(), None
        except SystemExit as exc:
            return None, exc
        finally:
            frame.thread_calls.discard(task)

    @overload
    def bind(self, entry: str, /) -> BoundEntry[Any]: ...
    @overload
    def bind(self, entry: Entry[T], /) -> BoundEntry[T]: ...
    def bind(self, entry: str | Entry[Any], /) -> BoundEntry[Any]:
        """An entry as a function that makes its calls through this context."""
        if isinstance(entry, str):
            self._session.resolve(entry, self.frame)
        elif not isinstance(entry, EntryBase):
            check_entry(entry, "this runtime")
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
        return self._session.recorder.read_trace()

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
        return self.frame.files

    @property
    def sandbox_manager(self) -> SandboxManager:
        """The roots of the worker at work."""
        return self.sandbox_toolset.manager

    @property
    def approval_controller(self) -> ApprovalController:
        """What asks, and remembers what was granted."""
        return self._session.approvals

    @property
    def message_callback(self) -> MessageCallback | None:
        """Who is told everything, if anybody is."""
        return self._session.message_callback

    @property
    def creation_defaults(self) -> WorkerCreationDefaults:
        """What workers that are created in the session have where nothing else is said."""
        return self._session.creation_defaults or WorkerCreationDefaults()

    # -- the worker at work, where there is one ------------------------------------------------------

    @property
    def worker(self) -> WorkerDefinition:
        """What the file of the worker at work says."""
        definition: WorkerDefinition | None = getattr(self._worker_frame().entry, "definition", None)
        if definition is None:
            raise NoWorkerError(f"{self._worker_frame().path} is no worker of a file, so it has no definition.")
        return definition

    @property
    def effective_model(self) -> Model:
        """The model of the worker at work, as its requests go through it."""
        model = self._worker_frame().model
        if model is None:
            raise NoWorkerError(f"{self._worker_frame().path} is not at work, so it has no model.")
        return model

    @property
    def attachments(self) -> list[AttachmentPayload]:
        """The files that the worker at work was given. Content with no more than an address, as `ImageUrl`, is none."""
        files = self._worker_frame().attachments
        return [AttachmentPayload.of(file) for file in files if isinstance(file, BinaryContent)]

    @property
    def custom_tools_path(self) -> Path | None:
        """The file with the own tools of the worker at work, if it has one."""
        path: Path | None = getattr(self._worker_frame().entry, "custom_tools_path", None)
        return path

    def _worker_frame(self) -> CallFrame:
        frame = self.frame.worker
        if frame is None:
            raise NoWorkerError("No worker is at work here: this was called from Python.")
        return frame

    def __repr__(self) -> str:
        return f"<Context at {self.frame.path or 'the top'}>"


async def call_bound(ctx: Context, entry: Entry[T], arguments: dict[str, Any]) -> T:
    """Call an entry with arguments that are bound."""
    if isinstance(entry, EntryBase) and entry.check_arguments is not None:
        await entry.check_arguments(arguments, ctx)
    return await dispatch(ctx, entry, arguments)


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
    if get_running_loop() is not session.loop:
        session.enter_loop()
    if frame is None:
        frame = CallFrame(entry, ctx.frame)
    if ctx.frame is session.root:
        session.find_call_around(frame)
    recorder = session.recorder
    try:
        recorder.open(frame, arguments)
        session.admit(frame)
        if entry.requires_approval or ctx.frame.rules:
            arguments = await session.permissions.approve(ctx, frame, arguments)
        frame.arguments = arguments
        child = Context(session, frame)
        if entry.kind == "worker":
            await _prepare_worker(child, entry)
        # `run_ctx` is None for an entry that says it needs none, whatever the protocol promises to others.
        own: Any = run_context(child, entry, run_ctx) if getattr(entry, "needs_run_context", True) else None
        output: T
        try:
            if entry.kind == "worker" or session.bounded:
                output = await _run_bounded(ctx, child, entry, own)
            else:
                output = await entry.call(arguments, child, own)
        except (ApprovalRequired, PathChanged) as exc:
            output = await _ask_and_run(ctx, child, entry, own, exc)
        finally:
            # They point back to the frame, or to another call, which nothing needs any more.
            frame.model = frame.called_in = None
        if (schema_out := getattr(entry, "schema_out", None)) is not None:
            check_output(entry, schema_out, output)
    except BaseException as exc:
        try:
            if frame.thread_calls:
                await cancel_thread_calls(frame)
        finally:
            frame.ended = True
            recorder.fail(frame, exc)
        raise
    frame.ended = True
    recorder.close(frame, output)
    return output


async def _prepare_worker(ctx: Context, entry: Entry[Any]) -> None:
    """Give the call of a worker its model and its own budget, if nothing is wrong with its files."""
    frame, parent = ctx.frame, ctx.frame.parent
    assert parent is not None
    if frame.problem is not None:
        raise frame.problem
    await choose_model(ctx)
    if isinstance(entry, EntryBase) and entry.limits is not None:
        frame.has_inherited = True
        frame.meters = (*parent.meters, UsageMeter(entry.limits, entry.name))


async def _ask_and_run(
    ctx: Context, child: Context, entry: Entry[Any], run_ctx: Any, why: ApprovalRequired | PathChanged
) -> Any:
    """Ask about a call that turned out to need it, and run it again.

    `ApprovalRequired` is PydanticAI's way for a tool to ask from within. `PathChanged` says that a file is no longer
    the one that a person was shown.
    """
    frame, from_within = child.frame, False
    for _ in range(_MOST_QUESTIONS):
        if isinstance(why, PathChanged):
            answerable = frame.pins is not None
        else:
            answerable = from_within = not frame.approved and not raised_in_nested_call(why, frame.record)
        if not answerable or frame.record is None:
            raise why
        approve = ctx.session.permissions.approve
        frame.arguments = await approve(ctx, frame, frame.given, asked_from_within=from_within)
        frame.deadline = ctx.frame.live_deadline
        try:
            return await _run_bounded(ctx, child, entry, run_ctx and run_context(child, entry, run_ctx))
        except (ApprovalRequired, PathChanged) as exc:
            why = exc
    raise PathFailed(f"{why} So it was after each of {_MOST_QUESTIONS + 1} approvals. Try again when it is left alone.")


async def _run_bounded(ctx: Context, child: Context, entry: Entry[Any], run_ctx: Any) -> Any:
    """Run the call that `child` belongs to, in time, and beside no more workers of its caller than may be."""
    session, frame = ctx.session, child.frame
    timeout = _timeout(session, frame, entry)
    if timeout is None:
        return await _run_in_slot(ctx, child, entry, run_ctx)
    deadline = frame.deadline = Deadline(timeout, frame.deadline)
    deadline.active = True
    try:
        with deadline.scope:
            output = await _run_in_slot(ctx, child, entry, run_ctx)
            if not deadline.expired:
                return output
    finally:
        deadline.active = False
    error = session.timed_out(deadline, f"{frame.path}{frame.waits_for}")
    attach_partial_messages(error, list(frame.partial_messages))
    raise error


async def _run_in_slot(ctx: Context, child: Context, entry: Entry[Any], run_ctx: Any) -> Any:
    session, frame = ctx.session, child.frame
    if entry.kind != "worker":
        return await _start(session, entry, child, run_ctx)
    frame.waits_for = f", which waits for a slot ({session.max_concurrency} workers are at work: max_concurrency)"
    async with session.worker_slots(ctx.frame):
        frame.waits_for = ""
        return await _start(session, entry, child, run_ctx)


def _start(session: SessionState, entry: Entry[Any], child: Context, run_ctx: Any) -> Awaitable[Any]:
    if session.executor is None:
        return entry.call(child.frame.arguments, child, run_ctx)
    return session.executor.execute(entry, child.frame.arguments, child, run_ctx)


def _timeout(session: SessionState, frame: CallFrame, entry: Entry[Any]) -> float | None:
    """The time that a call has beyond what the calls above it have: a worker's own, or a top-level call's."""
    own = entry.limits.timeout if isinstance(entry, EntryBase) and entry.limits is not None else None
    if frame.deadline is not None or session.limits.timeout is None:
        return own
    return session.limits.timeout if own is None else min(own, session.limits.timeout)


async def choose_model(ctx: Context) -> None:
    """Give a worker's call the model that its requests go through."""
    frame = ctx.frame
    assert frame.record is not None
    if ctx.session.default_model is not None and frame.entry is not None and frame.entry.model is None:
        await ctx.session.find_default_model(frame)
    if (model := ctx.session.choose_model(frame)) is not None:
        frame.model = metered(model, ctx.session, frame)
        frame.record.model = full_name(model.system, model.model_name)


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
        """Call it from synchronous code."""
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
        try:
            return self._context.bind(name)
        except UnknownEntryError as exc:  # so that hasattr and getattr can ask
            raise UnknownAttributeError(str(exc)) from None

    def __getitem__(self, name: str) -> BoundEntry[Any]:
        return self._context.bind(name)

    def __contains__(self, name: object) -> bool:
        try:
            return isinstance(name, str) and self._context.bind(name) is not None
        except UnknownEntryError:
            return False

    # Without it, Python would ask for the items 0, 1, 2 and so on.
    __iter__ = None


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
