"""`Executor`: the interface for code that remembers calls, such as a journal. It gets only whole responses."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeGuard

import anyio
from pydantic_ai.exceptions import UserError
from pydantic_ai.messages import ModelMessage, ModelResponse
from pydantic_ai.models import CompletedStreamedResponse, ModelRequestParameters, StreamedResponse
from pydantic_ai.settings import ModelSettings

from ..policy.approvals import Answer
from ..policy.requests import ApprovalRequest
from .frame import CallFrame
from .tasks import LEAVING_SECONDS, end_tasks
from .trace import ModelUsage


@dataclass(frozen=True, slots=True, kw_only=True)
class Recalled:
    """The answer of a call that ended in an earlier run."""

    output: Any = None
    error: Exception | None = None
    """Raised instead of returning the output: a failure that the caller handled is an answer, too."""
    is_from_nested_call: bool = False
    """Whether the error was raised in a nested call: the result of `raised_in_nested_call(error, call.record)`."""
    spent: Sequence[ModelUsage] = ()
    """The usage of the call and of all below it, which is restored and not spent again."""
    digest: str | None = None
    """The `digest` of the call in the earlier run. If it differs, the call is made again. So is a turn of a
    conversation if this is `None`, since its key does not have the digest."""
    messages: Sequence[ModelMessage] | None = None
    """The conversation after a turn. If it is `None`, a turn that returned is made again."""

    def is_for(self, call: CallFrame) -> bool:
        """Return whether it is the answer of this call, and for a turn has all that is needed to continue."""
        is_bound = self.digest is not None or call.scope_key is not None
        if is_bound and self.digest != call.digest:
            return False
        return not call.is_turn or self.messages is not None or self.error is not None


@dataclass(frozen=True, slots=True, kw_only=True)
class PendingRequest:
    """A model request that is about to be made."""

    call: CallFrame
    """The call of the worker that makes it."""
    number: int
    """Its number within the call, from 1."""
    model: str
    """The model, as `provider:model`."""
    messages: Sequence[ModelMessage]
    settings: ModelSettings | None
    parameters: ModelRequestParameters = field(repr=False)
    digest: str
    """A digest of the messages, settings and tools, without times and ids, which differ from run to run."""


class Executor:
    """Wraps every call, question and model request of a session, after the checks.

    The defaults remember nothing. An object with only some of these methods is also accepted.
    """

    async def recall(self, call: CallFrame) -> Recalled | None:
        """Return the answer of a call that an earlier run has finished. No rule is checked, since nothing runs."""
        return None

    async def decide(self, request: ApprovalRequest, ask: Callable[[], Awaitable[Answer]]) -> Answer:
        """Return the answer to a question: a stored one, if it is for the same `request.digest`, else that of `ask`."""
        return await ask()

    async def begin(self, call: CallFrame) -> None:
        """Note that a call is approved and about to run."""

    async def execute(self, entry: Any, arguments: dict[str, Any], ctx: Any, run_ctx: Any) -> Any:
        """Run the entry of a call, and return its result. It must call this very `entry.call`."""
        return await entry.call(arguments, ctx, run_ctx)

    async def request(self, request: PendingRequest, send: Callable[[], Awaitable[ModelResponse]]) -> ModelResponse:
        """Return the response to a request: a stored one, or that of `send`, which reserves, waits and pays."""
        return await send()


class Executes(Protocol):
    async def execute(self, entry: Any, arguments: dict[str, Any], ctx: Any, run_ctx: Any) -> Any:
        """Run the entry of a call, and return its result."""


def complete_executor(executor: Executor | Executes | None) -> Executor | None:
    """Return an executor with all methods: an object of a user's class gets defaults for those that it lacks."""
    if executor is None or isinstance(executor, Executor):
        return executor
    completed = Executor()
    for name in ("recall", "decide", "begin", "execute", "request"):
        if (method := getattr(executor, name, None)) is not None:
            setattr(completed, name, method)
    return completed


def answers_requests(executor: Executor | None) -> TypeGuard[Executor]:
    """Return whether there is an executor with its own `request`."""
    return executor is not None and getattr(executor.request, "__func__", executor.request) is not Executor.request


class StreamInTask:
    """Opens a stream in the task in which an executor answers a request, and lends it to the task that reads it."""

    def __init__(self, start: Callable[[], AbstractAsyncContextManager[StreamedResponse]]) -> None:
        self._start = start
        self._open_stream: asyncio.Future[StreamedResponse] = asyncio.get_running_loop().create_future()
        self._was_read = asyncio.Event()
        self._error: BaseException | None = None
        """The reason why it was not read to its end."""

    async def send(self) -> ModelResponse:
        """Open the stream, wait until it was read, and return the whole response. One that failed may be sent again."""
        if self._open_stream.done():
            raise UserError("A streamed request cannot be sent again, since its response is being read already.")
        async with self._start() as stream:
            self._open_stream.set_result(stream)
            await self._was_read.wait()
            if self._error is not None:
                raise self._error
        return stream.get()

    @asynccontextmanager
    async def answered_by(
        self, answer: Callable[[], Coroutine[Any, Any, ModelResponse]], parameters: ModelRequestParameters
    ) -> AsyncGenerator[StreamedResponse]:
        """Yield the stream that `answer` opened, or one of the response that it returned without opening any."""
        task = asyncio.create_task(answer())
        try:
            waiting: list[asyncio.Future[Any]] = [task, self._open_stream]
            await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
            if self._open_stream.done():
                yield self._open_stream.result()
            else:
                yield CompletedStreamedResponse(await task, model_request_parameters=parameters, replay_events=True)
        except BaseException as exc:
            self._error = exc
            if not self._open_stream.done():
                task.cancel()
            raise
        finally:
            self._was_read.set()
            await self._end(task)
            if self._error is None:
                task.result()
            elif not task.cancelled():
                task.exception()  # it is the one that is raised

    async def _end(self, task: asyncio.Task[ModelResponse]) -> None:
        """Wait until the request is over. One that is cancelled has some time to close its stream."""
        is_cancelled = self._error is not None and not isinstance(self._error, Exception)
        try:
            with anyio.CancelScope(shield=is_cancelled):
                await asyncio.wait([task], timeout=LEAVING_SECONDS if is_cancelled else None)
        finally:
            await end_tasks([task])
