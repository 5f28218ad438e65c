"""`Context.call`: the one way to invoke an entry, whoever makes the call."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from copy import copy
from functools import lru_cache, partial
from typing import Any, Generic, overload

import anyio
import anyio.from_thread
from pydantic import TypeAdapter, ValidationError
from pydantic_ai import RunContext
from pydantic_ai.messages import ToolReturn
from pydantic_ai.usage import RunUsage
from typing_extensions import TypeVar

from .approval import ApprovalController
from .errors import OutputError, SyncCallError, summarize
from .frame import CallFrame, Deadline
from .metering import MeteredModel, NoModel
from .names import reachable
from .protocols import Entry, ModelLike
from .state import SessionState
from .trace import Trace

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
        arguments = self._session.parameters_of(target).bind(args, kwargs)
        if (check := getattr(target, "check_arguments", None)) is not None:
            await check(arguments, self)
        return await self.dispatch(target, arguments)

    async def dispatch(
        self,
        entry: Entry[T],
        arguments: dict[str, Any],
        run_ctx: RunContext[Context] | None = None,
        frame: CallFrame | None = None,
    ) -> T:
        """Make one call, with arguments that are bound and validated. Every call of a session passes here.

        Python code comes from `call`. A model's calls come from the tools that `plane` gave it, with
        their `run_ctx`. A turn of a chat brings the frame of its scope.
        """
        session = self._session
        if frame is None:
            frame = CallFrame(entry, self.frame)
        if frame.depth == 0:
            session.enter_loop()
        recorder = session.recorder
        try:
            recorder.open(frame, arguments)
            session.admit(frame)
            if entry.requires_approval:
                arguments = await session.approve(frame, arguments)
            frame.arguments = arguments
            child = Context(session, frame)
            # `run_ctx` is None for an entry that says it needs none, whatever the protocol promises to others.
            own: Any = child.run_context(entry, run_ctx) if getattr(entry, "needs_run_context", True) else None
            output: T
            if entry.kind == "worker" or session.bounded:
                output = await self._run_bounded(entry, child, own)
            else:
                output = await entry.call(arguments, child, own)
            if (schema_out := getattr(entry, "schema_out", None)) is not None:
                check_output(entry, schema_out, output)
        except BaseException as exc:
            recorder.fail(frame, exc)
            raise
        recorder.close(frame, output)
        return output

    async def _run_bounded(self, entry: Entry[Any], child: Context, run_ctx: Any) -> Any:
        """Run a call in time, and beside no more workers of this caller than the runtime allows."""
        session, frame = self._session, child.frame
        if frame.deadline is None and session.limits.timeout is not None:
            deadline = frame.deadline = Deadline(session.limits.timeout)
            with deadline.scope:
                output = await self._run_bounded(entry, child, run_ctx)
                if not deadline.expired:
                    return output
            raise session.timed_out(deadline, frame.path)
        if entry.kind == "worker":
            child._choose_model()
            async with session.worker_slots(self.frame):
                return await session.executor.execute(entry, frame.arguments, child, run_ctx)
        return await session.executor.execute(entry, frame.arguments, child, run_ctx)

    async def approve_from_within(self) -> None:
        """Ask for this call while it runs: a PydanticAI tool may find out only then that it must."""
        self.frame.arguments = await self._session.approve(self.frame, self.frame.arguments)

    def _choose_model(self) -> None:
        """Give the call the model that its requests go through."""
        frame = self.frame
        assert frame.record is not None
        if (model := self._session.choose_model(frame)) is not None:
            frame.model = MeteredModel(model, self._session, frame)
            frame.record.model = model.model_name

    def run_context(self, entry: Entry[Any], base: RunContext[Context] | None = None) -> RunContext[Context]:
        """A `RunContext` whose `deps` make calls on behalf of this call."""
        frame = self.frame
        if base is not None:
            run_ctx = copy(base)
            run_ctx.deps = self
        else:
            worker = frame.worker
            model = worker.model if worker is not None and worker.model is not None else NoModel(entry.name)
            run_ctx = RunContext(deps=self, model=model, usage=RunUsage(), tool_name=entry.name, max_retries=1)
        run_ctx.tool_call_approved = frame.approved
        return run_ctx

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
            raise SyncCallError(
                "call_sync would block the event loop that has to serve the call. Use `await ctx.call(...)` here."
            )
        call = partial(self._call_from_thread, entry, args, kwargs)
        loop_token = self._session.running_loop()
        if loop_token is not None:
            return anyio.from_thread.run(call, token=loop_token)
        if self.frame.entry is None:
            return anyio.run(call)
        raise SyncCallError(f"The event loop that {self.frame.path} ran in has ended, so it can make no more calls.")

    async def _call_from_thread(self, entry: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        calls, task = self.frame.thread_calls, asyncio.current_task()
        if calls is None or task is None:
            return await self.call(entry, *args, **kwargs)
        calls.add(task)
        try:
            return await self.call(entry, *args, **kwargs)
        finally:
            calls.discard(task)

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
        """What all calls of the session share. For the parts of llm-do; user code needs the rest of this class."""
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
    def approval_controller(self) -> ApprovalController:
        return self._session.approvals

    def __repr__(self) -> str:
        return f"<Context at {self.frame.path or 'the top'}>"


class BoundEntry(Generic[T]):
    """An entry bound to a context or a runtime: call it like an async function."""

    __slots__ = ("_context", "_entry")

    def __init__(self, context: Context, entry: str | Entry[T]) -> None:
        self._context = context
        self._entry = entry

    async def __call__(self, *args: Any, **kwargs: Any) -> T:
        # By name again at each call: a file of that name may have changed.
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


@lru_cache(maxsize=1024)
def _adapter(schema_out: Any) -> TypeAdapter[Any]:
    return TypeAdapter(schema_out)
