"""Streamed responses for an executor, which stands around requests and knows only whole responses."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Coroutine
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any

import anyio
from pydantic_ai.exceptions import UserError
from pydantic_ai.messages import ModelResponse
from pydantic_ai.models import CompletedStreamedResponse, ModelRequestParameters, StreamedResponse

from .tasks import LEAVING_SECONDS, end_tasks


class StreamInTask:
    """Opens a stream in the task that answers a request, and lends it to the task that reads it."""

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
