"""`CallScope`: the lifetime of one worker call, over one turn or many."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import AsyncIterable, Sequence
from contextlib import AsyncExitStack
from types import TracebackType
from typing import TYPE_CHECKING, Any, Generic, Self

import anyio
from pydantic import ValidationError
from pydantic_ai import RunContext, capture_run_messages
from pydantic_ai.exceptions import UnexpectedModelBehavior
from pydantic_ai.messages import (
    AgentStreamEvent,
    ModelMessage,
    PartDeltaEvent,
    PartStartEvent,
    TextPart,
    TextPartDelta,
    ThinkingPart,
    ThinkingPartDelta,
)
from pydantic_ai.toolsets import AbstractToolset
from pydantic_ai.usage import UsageLimits
from typing_extensions import TypeVar

from .approval import SameObject
from .context import Context
from .errors import (
    ModelBehaviorError,
    ModelChoiceError,
    OutputError,
    ScopeBusyError,
    ScopeClosedError,
    ToolsetError,
    attach_partial_messages,
    summarize,
)
from .events import TextDelta
from .inputs import prompt_of
from .plane import GovernedToolset, Governor, HeldToolset
from .recorder import tags

if TYPE_CHECKING:
    from .entries import WorkerEntry

T = TypeVar("T", default=Any)

# The session's own budgets hold; PydanticAI's default would end a long task at its 51st request.
_NO_LIMITS = UsageLimits(request_limit=None)


class CallScope(Generic[T]):
    """One call of a worker: it owns the frame, with the conversation, and the toolset instances.

        async with worker.start(runtime) as scope:
            first = await scope.run_turn("hello")
            second = await scope.run_turn("and then?")

    A turn that fails or is cancelled leaves the conversation as it was.
    """

    def __init__(self, worker: WorkerEntry[T], context: Context) -> None:
        self._worker = worker
        self._context = context
        self.frame = context.frame
        self._toolsets: _Toolsets | None = None
        self._running = False
        self._closed = False

    @property
    def messages(self) -> list[ModelMessage]:
        """The conversation so far."""
        return list(self.frame.messages)

    async def __aenter__(self) -> Self:
        await self.open()
        return self

    async def __aexit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.close()

    async def open(self) -> None:
        """Build the toolsets, if that has not been done."""
        self._check_open()
        if self._toolsets is None and self._worker.toolsets:
            toolsets = self._toolsets = _Toolsets(self._worker, self._context)
            try:
                await toolsets.open()
            except BaseException:
                self._toolsets = None
                raise

    def _check_open(self) -> None:
        if self._closed:
            raise ScopeClosedError(f"The scope of worker {self._worker.name!r} is closed. Start a new one.")

    async def close(self) -> None:
        """Close the toolsets, in reverse order. Closing twice is harmless."""
        if self._running:
            raise ScopeBusyError(
                f"A turn of worker {self._worker.name!r} is running. Cancel or await it before close()."
            )
        self._closed = True
        toolsets, self._toolsets = self._toolsets, None
        if toolsets is not None:
            await toolsets.close()

    async def run_turn(self, *args: Any, **kwargs: Any) -> T:
        """Run one turn, with the arguments of a call of the worker, and return its output."""
        arguments = self._worker.parameters.bind(args, kwargs)
        if self._running:
            raise ScopeBusyError(f"A turn of worker {self._worker.name!r} is running. A scope runs one turn at a time.")
        self._check_open()
        self._running = True
        try:
            parent = self.frame.parent
            assert parent is not None
            self.frame.renew()
            self.frame.scope = self
            return await Context(self._context.session, parent).dispatch(self._worker, arguments, frame=self.frame)
        finally:
            self._running = False

    async def answer(self, arguments: dict[str, Any]) -> T:
        """Let the model answer. This is the body of a turn; `run_turn` is how to make one."""
        worker, frame, session = self._worker, self.frame, self._context.session
        if frame.model is None:
            raise ModelChoiceError(
                f"Worker {worker.name!r} has no model. Give it one with WorkerEntry(model=...), "
                "or set the session's default with Runtime(model=...)."
            )
        await self.open()
        agent, proxies = worker.agent_for(session)
        frame.logged = 0
        history = len(frame.messages)
        with capture_run_messages() as captured:
            try:
                result = await agent.run(
                    prompt_of(arguments, declared=worker.input_type is not None),
                    deps=self._context,
                    model=frame.model,
                    message_history=frame.messages or None,
                    toolsets=self._toolsets.instances if self._toolsets is not None else None,
                    capabilities=[Governor(self._context, proxies)] if worker.capabilities else None,
                    usage_limits=_NO_LIMITS,
                    event_stream_handler=self._stream if session.text_deltas else None,
                    infer_name=False,
                )
            except BaseException as exc:
                error = self._explain(exc)
                attach_partial_messages(error, captured)
                self._log_rest(captured[history:])
                if error is exc:
                    raise
                raise error from exc
        self._log_rest(result.new_messages())
        frame.messages = result.all_messages()
        return result.output

    def _log_rest(self, turn: Sequence[ModelMessage]) -> None:
        """Log what no model was shown: the results of the last tools."""
        for message in turn[self.frame.logged :]:
            self._context.session.recorder.log_message(self.frame, message)

    def _explain(self, exc: BaseException) -> BaseException:
        if not isinstance(exc, UnexpectedModelBehavior):
            return exc
        worker, model, cause = self._worker, self.frame.model, exc.__cause__
        assert model is not None
        reason = summarize(cause) if isinstance(cause, ValidationError) else str(cause or exc)
        where = f"{self.frame.path}: model {model.model_name!r}"
        if "output retries" in str(exc):
            return OutputError(f"{where} gave no valid {worker.output_name} after {worker.retries + 1} tries: {reason}")
        return ModelBehaviorError(f"{where} did not behave: {reason}")

    async def _stream(self, run_ctx: RunContext[Context], stream: AsyncIterable[AgentStreamEvent]) -> None:
        """Tell the sinks the text as it comes."""
        recorder = self._context.session.recorder
        async for event in stream:
            match event:
                case PartStartEvent(part=TextPart(content=text)):
                    thinking = False
                case PartStartEvent(part=ThinkingPart(content=text)):
                    thinking = True
                case PartDeltaEvent(delta=TextPartDelta(content_delta=text)):
                    thinking = False
                case PartDeltaEvent(delta=ThinkingPartDelta(content_delta=str(text))):
                    thinking = True
                case _:
                    continue
            if text:
                recorder.emit(TextDelta(**tags(self.frame), text=text, thinking=thinking))


class _Toolsets:
    """The toolsets of one scope, held open by a task of their own.

    A toolset may keep a task group open, as MCP sessions do, which only the task that entered it can
    leave. The turns and the end of a chat may come from different tasks, so neither can be that task.
    """

    def __init__(self, worker: WorkerEntry[Any], context: Context) -> None:
        self.instances: list[AbstractToolset[Context]] = []
        self._worker = worker
        self._context = context
        self._opened = anyio.Event()
        self._done = anyio.Event()
        self._owner: asyncio.Task[None] | None = None

    async def open(self) -> None:
        self._owner = asyncio.create_task(self._own(), name=f"toolsets of {self._worker.name}")
        try:
            await self._opened.wait()
        except BaseException:
            await self.close(cancel=True)
            raise
        if self._owner.done():
            await self._owner

    async def close(self, *, cancel: bool = False) -> None:
        owner, self._owner = self._owner, None
        if owner is None:
            return
        self._done.set()
        if cancel:
            owner.cancel()
        with anyio.CancelScope(shield=True):
            await asyncio.wait([owner])
        if not owner.cancelled() and not cancel:
            owner.result()

    async def _own(self) -> None:
        try:
            async with AsyncExitStack() as stack:
                for declared in self._worker.toolsets:
                    await self._build(declared, stack)
                self._opened.set()
                await self._done.wait()
        finally:
            self._opened.set()

    async def _build(self, declared: Any, stack: AsyncExitStack) -> None:
        worker = self._worker
        factory = self._context.session.toolsets.resolve(declared, worker.name)
        made = factory(self._context)
        toolset = await made if inspect.isawaitable(made) else made
        if not isinstance(toolset, AbstractToolset):
            raise ToolsetError(
                f"The toolset factory {factory!r} of worker {worker.name!r} returned {toolset!r:.80}, not a toolset."
            )
        await stack.enter_async_context(toolset)
        held = HeldToolset(toolset)
        # With capabilities about, the governor stands around all tools at once.
        self.instances.append(held if worker.capabilities else GovernedToolset(held, SameObject(factory)))
