"""`Context.call` and `dispatch`, the only way to run an entry, from Python or a model."""

from __future__ import annotations

from asyncio import get_running_loop
from collections.abc import Awaitable, Mapping
from copy import copy
from functools import partial
from pathlib import Path
from typing import Any, overload

from pydantic_ai import BinaryContent, RunContext
from pydantic_ai.exceptions import ApprovalRequired
from pydantic_ai.models import Model
from pydantic_ai.usage import RunUsage
from typing_extensions import TypeVar

from ..arguments.prompts import AttachmentPayload
from ..definitions.definition import WorkerCreationDefaults, WorkerDefinition
from ..errors import LlmDoError, NoWorkerError, PathChanged, PathFailed, raised_in_nested_call
from ..models.choice import ModelLike
from ..policy.approvals import ApprovalController
from ..sandbox import SandboxManager, SandboxToolset
from ..values.canonical import digest_of_text
from ..values.names import check_name
from ..values.snapshots import snapshot
from .adapt import adapt, reachable
from .attachments import bind_call
from .entry import BoundEntry, Entry, EntryBase, MessageCallback, ToolsProxy
from .executor import Recalled
from .frame import CallFrame, WorkerFrame, make_frame
from .keys import release_key
from .metering import prepare_worker
from .outputs import check_output
from .session import Session
from .session_models import no_model
from .threads import cancel_thread_calls
from .trace import Trace

T = TypeVar("T", default=Any)

_MAX_APPROVALS = 5
"""The most times that a call is approved whose files keep changing."""


class Context:
    """The handle that user code holds: a session, seen from one call. PydanticAI tools reach it as `ctx.deps`."""

    __slots__ = ("branches", "frame", "runtime")

    def __init__(self, runtime: Session, frame: CallFrame, branches: str = "") -> None:
        self.runtime = runtime
        """The session, with its parts. They are for llm-do itself."""
        self.branches = branches
        """The names of its branches, as in keys."""
        self.frame = frame
        """The data of the call that this context belongs to."""

    @classmethod
    def from_worker(cls, worker: Entry[Any], *, model: ModelLike | None = None, **runtime_options: Any) -> Context:
        """Return a context at the top of a new session with `worker` and all it reaches. Options as in `Runtime`."""
        session = Session(reachable(worker), model=model, **runtime_options)
        return cls(session, session.root)

    # -- calling -----------------------------------------------------------------------------------

    @overload
    async def call(self, entry: str, /, *args: Any, **kwargs: Any) -> Any: ...
    @overload
    async def call(self, entry: Entry[T], /, *args: Any, **kwargs: Any) -> T: ...
    async def call(self, entry: str | Entry[Any], /, *args: Any, **kwargs: Any) -> Any:
        """Call an entry, by name or as an object, as if it were a Python function."""
        frame: CallFrame | None = None
        try:
            target = self.runtime.resolve(entry, self.frame) if isinstance(entry, str) else adapt(entry)
            if target.attachment_policy is not None:
                frame = worker_frame = WorkerFrame(target, self.frame)
                arguments = bind_call(worker_frame, args, kwargs, self.runtime.gate)
            else:
                arguments = target.parameters.bind(args, kwargs)
            if self.runtime.recorder.keeps_keys and (target.check_arguments is not None or not isinstance(entry, str)):
                frame = frame or make_frame(target, self.frame)
                if not isinstance(entry, str):
                    self.runtime.tell_from_namesakes(frame)
            if target.check_arguments is not None:
                await self._check_arguments(target, arguments, frame)
        except LlmDoError as exc:
            self.runtime.reject(self.frame, entry, args, kwargs, exc)
            raise
        return await dispatch(self, target, arguments, frame=frame)

    async def _check_arguments(self, target: EntryBase, arguments: dict[str, Any], frame: CallFrame | None) -> None:
        """Check arguments with the entry's own code. Equal calls get their keys in the order in which they are made."""
        assert target.check_arguments is not None
        if frame is not None:
            self.runtime.recorder.give_key(frame, arguments, self.branches)
        try:
            await target.check_arguments(arguments, self)
        except BaseException:
            if frame is not None:
                release_key(frame)
            raise

    @overload
    def call_sync(self, entry: str, /, *args: Any, **kwargs: Any) -> Any: ...
    @overload
    def call_sync(self, entry: Entry[T], /, *args: Any, **kwargs: Any) -> T: ...
    def call_sync(self, entry: str | Entry[Any], /, *args: Any, **kwargs: Any) -> Any:
        """Call an entry from synchronous code: at the top level, or in a synchronous entry, which runs in a thread."""
        return self.runtime.loop.call_sync(self.frame, partial(self.call, entry, *args, **kwargs))

    @overload
    def bind(self, entry: str, /) -> BoundEntry[Any]: ...
    @overload
    def bind(self, entry: Entry[T], /) -> BoundEntry[T]: ...
    def bind(self, entry: str | Entry[Any], /) -> BoundEntry[Any]:
        """Return an entry as a function that makes its calls through this context."""
        if isinstance(entry, str):
            self.runtime.resolve(entry, self.frame)
        else:
            adapt(entry)
        return BoundEntry(self, entry)

    def branch(self, name: str) -> Context:
        """Return a context whose calls have `name` in their keys.

        Use one for each concurrent branch of a function, so that equal calls in them have the same keys in every run,
        whichever branch is faster.
        """
        return Context(self.runtime, self.frame, f"{self.branches}{check_name(name, owner='a branch', hint='')}~")

    @property
    def idempotency_key(self) -> str:
        """A key by which another system can recognise a repetition of this call. Only a resumed run has the same."""
        recorder = self.runtime.recorder
        return digest_of_text(f"{recorder.stream.session_id} {recorder.key_of(self.frame)}")

    @property
    def tools(self) -> ToolsProxy:
        """Entries as attributes: `await ctx.tools.search(query="x")`, `ctx.tools["my-worker"]`."""
        return ToolsProxy(self)

    # -- the session, seen from here ---------------------------------------------------------------

    @property
    def registry(self) -> Mapping[str, Entry[Any]]:
        """The entries of the project, by name."""
        return self.runtime.entries

    @property
    def model(self) -> ModelLike | None:
        """The session's default model, for workers without their own."""
        return self.runtime.models.default

    @property
    def trace(self) -> Trace:
        """The records of all calls of the session so far."""
        return self.runtime.recorder.read_trace()

    @property
    def usage(self) -> dict[str, RunUsage]:
        """The usage of the session so far, by model name."""
        return self.runtime.spending.meter.by_model

    @property
    def depth(self) -> int:
        """The depth of the next call made from here; 0 at the top."""
        return self.frame.depth + 1

    @property
    def sandbox_toolset(self) -> SandboxToolset:
        """The files of the running worker: `ctx.sandbox_toolset.read_text("input", "a.txt")`."""
        return self.frame.files

    @property
    def sandbox_manager(self) -> SandboxManager:
        """The roots of the running worker."""
        return self.sandbox_toolset.manager

    @property
    def approval_controller(self) -> ApprovalController:
        """Asks for approvals, and remembers grants."""
        return self.runtime.gate.approvals

    @property
    def message_callback(self) -> MessageCallback | None:
        """The session's `message_callback`, if it has one."""
        return self.runtime.message_callback

    @property
    def creation_defaults(self) -> WorkerCreationDefaults:
        """The defaults of workers that are created in the session."""
        return self.runtime.creation_defaults or WorkerCreationDefaults()

    # -- the running worker, if there is one ---------------------------------------------------------

    @property
    def worker(self) -> WorkerDefinition:
        """The definition in the file of the running worker."""
        definition = self.worker_frame.entry.definition
        if definition is None:
            raise NoWorkerError(f"{self.worker_frame.path} has no definition: it was not made from a worker file.")
        return definition

    @property
    def effective_model(self) -> Model:
        """The model of the running worker, as its requests go through it."""
        model = self.worker_frame.model
        if model is None:
            raise NoWorkerError(f"{self.worker_frame.path} is not running, so it has no model.")
        return model

    @property
    def attachments(self) -> list[AttachmentPayload]:
        """The files of the running worker, without content that is only an address, such as `ImageUrl`."""
        files = self.worker_frame.attachments
        return [AttachmentPayload.of(file) for file in files if isinstance(file, BinaryContent)]

    @property
    def custom_tools_path(self) -> Path | None:
        """The file with the own tools of the running worker, if it has one."""
        return self.worker_frame.entry.custom_tools_path

    @property
    def worker_frame(self) -> WorkerFrame:
        """The data of the call of the running worker."""
        frame = self.frame.worker
        if frame is None:
            raise NoWorkerError("There is no running worker: this call was made from Python.")
        return frame

    def __repr__(self) -> str:
        return f"<Context at {self.frame.path or 'the top'}>"


WorkerContext = Context
"""Another name of `Context`."""


async def call_bound(ctx: Context, entry: Entry[T], arguments: dict[str, Any]) -> T:
    target = adapt(entry)
    if target.check_arguments is not None:
        await target.check_arguments(arguments, ctx)
    output: T = await dispatch(ctx, target, arguments)
    return output


async def dispatch(
    ctx: Context,
    entry: EntryBase,
    arguments: dict[str, Any],
    run_ctx: RunContext[Context] | None = None,
    frame: CallFrame | None = None,
) -> Any:
    """Make one call on behalf of `ctx`, with validated arguments. Every call of a session passes here.

    A call from Python comes from `Context.call`, a call from a model from `plane` with its `run_ctx`, and a turn of a
    chat brings the frame of its scope.
    """
    session = ctx.runtime
    if get_running_loop() is not session.loop.current:
        session.loop.enter()
    if frame is None:
        frame = make_frame(entry, ctx.frame)
    frame.branch = ctx.branches
    if ctx.frame is session.root:
        session.loop.mark_inner(frame, session.spending.question is not None)
    recorder = session.recorder
    try:
        recorder.open(frame, arguments)
        session.check_may_run(frame)
        session.spending.count_call(frame)
        if session.executor is not None and (recalled := await _recall(session, frame, arguments)) is not None:
            return session.restore(frame, recalled)
        if entry.requires_approval or ctx.frame.inherited.rules:
            arguments = await session.gate.approve(frame, arguments, ctx)
        frame.arguments = arguments
        child = Context(session, frame)
        if recorder.observed or session.executor is not None or frame.asked_at or isinstance(frame, WorkerFrame):
            await _begin(session, frame)
        # `run_ctx` is None for an entry that does not need it, although the protocol promises one.
        own_ctx: Any = run_context(child, entry, run_ctx) if entry.needs_run_context else None
        try:
            if session.has_timeout_or_executor or entry.kind == "worker":
                output = await session.run_in_time(frame, partial(_start, child, own_ctx))
            else:
                output = await entry.call(arguments, child, own_ctx)
        except (ApprovalRequired, PathChanged) as exc:
            output = await _ask_and_run(ctx, child, own_ctx, exc)
        if (schema_out := entry.schema_out) is not None:
            check_output(entry.name, schema_out, output)
        frame.end()
        recorder.close(frame, output)
    except BaseException as exc:
        error = session.gate.error_of_end(frame, exc)
        await _fail(session, frame, error)
        if error is not exc:
            raise error from exc
        raise
    return output


async def _recall(session: Session, frame: CallFrame, arguments: dict[str, Any]) -> Recalled | None:
    frame.arguments = arguments
    if session.executor is None or not frame.replayable:  # calls with other arguments may have the same key
        return None
    recalled = await session.executor.recall(frame)
    session.check_may_run(frame)
    # A call that raised these was not over yet.
    if recalled is None or isinstance(recalled.error, ApprovalRequired | PathChanged):
        return None
    return recalled if recalled.is_for(frame) else None


async def _begin(session: Session, frame: CallFrame, *, is_again: bool = False) -> None:
    """Prepare an approved call, tell the sinks and the executor that it begins, and check again that it may run."""
    if isinstance(frame, WorkerFrame) and not is_again:
        await prepare_worker(session, frame)
    if session.recorder.observed:
        session.recorder.start(frame)
    if session.executor is not None:
        await session.executor.begin(frame)
    session.check_may_run(frame)


async def _fail(session: Session, frame: CallFrame, exc: BaseException) -> None:
    try:
        if frame.thread_calls:
            await cancel_thread_calls(frame)
    finally:
        frame.end()
        session.recorder.fail(frame, exc)


async def _ask_and_run(ctx: Context, child: Context, run_ctx: Any, reason: ApprovalRequired | PathChanged) -> Any:
    """Ask for the approval of a call that has begun, and run it again.

    A tool raises PydanticAI's `ApprovalRequired` to ask from within. `PathChanged` means that a file is no longer the
    one that a person was shown.
    """
    frame, from_within = child.frame, False
    for _ in range(_MAX_APPROVALS - 1):
        if isinstance(reason, PathChanged):
            answerable = frame.pins is not None
        else:
            answerable = from_within = not frame.approved and not raised_in_nested_call(reason, frame.record)
        if not answerable:
            raise reason
        arguments = snapshot(frame.original_arguments)
        frame.arguments = await ctx.runtime.gate.approve(frame, arguments, ctx, asked_from_within=from_within)
        frame.deadline = ctx.frame.live_deadline
        await _begin(ctx.runtime, frame, is_again=True)  # perhaps with other arguments
        again = run_ctx and run_context(child, frame.entry, run_ctx)
        try:
            return await ctx.runtime.run_in_time(frame, partial(_start, child, again))
        except (ApprovalRequired, PathChanged) as exc:
            reason = exc
    raise PathFailed(
        f"{reason} It changed after each of {_MAX_APPROVALS} approvals. Try again when nothing else writes to it."
    )


def _start(child: Context, run_ctx: Any) -> Awaitable[Any]:
    entry, arguments, executor = child.frame.entry, child.frame.arguments, child.runtime.executor
    if executor is None:
        return entry.call(arguments, child, run_ctx)
    return executor.execute(entry, arguments, child, run_ctx)


def run_context(ctx: Context, entry: EntryBase, base: RunContext[Context] | None = None) -> RunContext[Context]:
    """Return a `RunContext` with `ctx` as its `deps`."""
    frame = ctx.frame
    if base is not None:
        run_ctx = copy(base)
        run_ctx.deps = ctx
    else:
        worker = frame.worker
        model = worker.model if worker is not None and worker.model is not None else no_model(entry.name)
        run_ctx = RunContext(deps=ctx, model=model, usage=RunUsage(), tool_name=entry.name, max_retries=1)
    run_ctx.tool_call_approved = frame.approved
    return run_ctx
