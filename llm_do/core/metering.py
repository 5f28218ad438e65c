"""The model that a worker's requests go through, with budgets, usage and the message log."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from copy import copy
from dataclasses import replace
from functools import partial
from operator import is_
from time import perf_counter
from typing import Any, NoReturn

from pydantic_ai import RunContext
from pydantic_ai.exceptions import UserError
from pydantic_ai.messages import ModelMessage, ModelResponse
from pydantic_ai.models import Model, ModelRequestContext, ModelRequestParameters, StreamedResponse
from pydantic_ai.models.concurrency import ConcurrencyLimitedModel
from pydantic_ai.models.fallback import FallbackModel
from pydantic_ai.models.wrapper import WrapperModel
from pydantic_ai.settings import ModelSettings

from ..budgets.limits import UsageMeter, full_name
from ..errors import AnswerCutOff
from ..models.answers import (
    describe_cutoff,
    describe_missing_end,
    refuse_empty_response,
    refuse_empty_stream,
    unreadable_answer,
)
from .executor import PendingRequest, StreamInTask, answers_requests
from .frame import RequestFrame, WorkerFrame
from .request_record import RequestRecorder, reject_unmade_calls, request_digest
from .reserving import OutgoingRequest, ReservedRequest, open_requests_above, reserve
from .session import Session


async def prepare_worker(session: Session, frame: WorkerFrame) -> None:
    """Give the call of a worker its model and its own budget, or raise the error of its files or its prompt."""
    if frame.input_error is not None:
        raise frame.input_error
    await session.models.prepare_default(frame)
    if (model := session.models.choose(frame)) is not None:
        frame.model = metered(model, session, frame)
        frame.recorded.model = full_name(model.system, model.model_name)
    if (limits := frame.entry.limits) is not None:
        meters = (*frame.caller.inherited.meters, UsageMeter(limits, frame.entry.name))
        frame.inherited = frame.inherited._replace(meters=meters)


def metered(model: Model, session: Session, frame: RequestFrame) -> Model:
    """Return `model` with a meter around it, or around each model that it tries, unless this call has it already."""
    if isinstance(model, MeteredModel) and model._session is session:
        return model if model._frame is frame else metered(model.wrapped, session, frame)  # the caller's
    if isinstance(model, FallbackModel):
        candidates = [metered(each, session, frame) for each in model.models]
        return model if all(map(is_, candidates, model.models)) else _copy_with(model, "models", candidates)
    if isinstance(model, WrapperModel) and _is_metered_inside(model, session):
        wrapped = metered(model.wrapped, session, frame)
        return model if wrapped is model.wrapped else _copy_with(model, "wrapped", wrapped)
    return MeteredModel(model, session, frame)


def _copy_with(model: Model, name: str, value: Any) -> Model:
    changed = copy(model)
    setattr(changed, name, value)
    return changed


def _is_metered_inside(model: Model, session: Session) -> bool:
    """Return whether a wrapper has inside a model that tries several, one with its own queue, or a caller's meter."""
    if isinstance(model, MeteredModel):
        return model._session is session
    if isinstance(model, FallbackModel | ConcurrencyLimitedModel):
        return True
    return isinstance(model, WrapperModel) and _is_metered_inside(model.wrapped, session)


class MeteredModel(WrapperModel):
    """Reserves, sends and counts the requests of one worker call to one model."""

    def __init__(self, wrapped: Model, session: Session, frame: RequestFrame) -> None:
        super().__init__(wrapped)
        self._session = session
        self._frame = frame
        self._requests = RequestRecorder(session, frame, wrapped)
        self._admitted: set[str] = set()
        """The provider's own tools that rules have allowed."""

    async def request(
        self,
        messages: list[ModelMessage],
        model_settings: ModelSettings | None,
        model_request_parameters: ModelRequestParameters,
    ) -> ModelResponse:
        if getattr(self.wrapped, "request_is_a_stream", False):
            # A stream reports what was used before it fails.
            async with self.request_stream(messages, model_settings, model_request_parameters) as stream:
                async for _ in stream:
                    pass
            return stream.get()

        def ask(sent: ReservedRequest) -> Awaitable[ModelResponse]:
            return self.wrapped.request(sent.messages, sent.settings, sent.parameters)

        request = self._begin(messages, model_settings, model_request_parameters)
        return await self._remember(request, partial(self._send, request, ask))

    @asynccontextmanager
    async def request_stream(
        self,
        messages: list[ModelMessage],
        model_settings: ModelSettings | None,
        model_request_parameters: ModelRequestParameters,
        run_context: RunContext[Any] | None = None,
    ) -> AsyncGenerator[StreamedResponse]:
        request = self._begin(messages, model_settings, model_request_parameters)
        start = partial(self._stream, request, run_context)
        if not answers_requests(self._session.executor):
            async with start() as stream:
                yield stream
            return
        in_task = StreamInTask(start)

        async def answer() -> ModelResponse:
            return await self._remember(request, in_task.send)

        async with in_task.answered_by(answer, model_request_parameters) as stream:
            yield stream

    @asynccontextmanager
    async def _stream(
        self, outgoing: OutgoingRequest, run_context: RunContext[Any] | None
    ) -> AsyncGenerator[StreamedResponse]:
        request = await self._reserve(outgoing)
        async with self._sending(request):
            stream: StreamedResponse | None = None
            try:
                async with self.wrapped.request_stream(
                    request.messages, request.settings, request.parameters, run_context
                ) as stream:
                    # PydanticAI replaces the iterator in the same way, to look at the first event.
                    stream._event_iterator = refuse_empty_stream(stream, aiter(stream), self.wrapped)
                    yield stream
            except BaseException as exc:
                if stream is None:
                    self._requests.fail(request, exc)
                else:  # what an interrupted stream has used is spent
                    self._requests.finish(request, stream.get(), failed=exc)
                self._raise_if_unreadable(exc)
                raise
            response = stream.get()
            cut_off = request.describe_cutoff(response) or describe_missing_end(response, self.wrapped)
            refused = self._refuse_cut_off(cut_off)
            self._requests.finish(request, response, cut_off, refused)
        if refused is not None:
            raise refused

    async def compact_messages(
        self, request_context: ModelRequestContext, *, instructions: str | None = None
    ) -> ModelResponse:
        def ask(sent: ReservedRequest) -> Awaitable[ModelResponse]:
            context = replace(request_context, messages=sent.messages, model_settings=sent.settings)
            return self.wrapped.compact_messages(context, instructions=instructions)

        request = self._begin(
            request_context.messages, request_context.model_settings, request_context.model_request_parameters
        )
        return await self._remember(request, partial(self._send, request, ask))

    def _begin(
        self, messages: list[ModelMessage], settings: ModelSettings | None, parameters: ModelRequestParameters
    ) -> OutgoingRequest:
        """Number a request, and note the tools that the model is offered."""
        frame = self._frame
        reject_unmade_calls(self._session.recorder, frame, messages)
        tools = (*parameters.function_tools, *parameters.output_tools)
        frame.conversation.tools = {**frame.conversation.tools, **{tool.name: tool for tool in tools}}
        frame.request_number += 1
        return OutgoingRequest(frame.request_number, messages, settings, parameters)

    async def _remember(self, request: OutgoingRequest, send: Callable[[], Awaitable[ModelResponse]]) -> ModelResponse:
        """Send a request, unless the executor has its response from an earlier run."""
        executor, was_sent = self._session.executor, False
        if not answers_requests(executor):
            return await send()

        async def send_now() -> ModelResponse:
            nonlocal was_sent
            was_sent = True
            return await send()

        pending = PendingRequest(
            call=self._frame,
            number=request.number,
            model=self._requests.model_name,
            messages=request.messages,
            settings=request.settings,
            parameters=request.parameters,
            digest=request_digest(self._session.recorder, self.wrapped, request),
        )
        try:
            response = await executor.request(pending, send_now)
        except Exception as exc:
            if not was_sent:
                self._requests.restore_failure(request, exc)
            raise
        if not was_sent:
            cut_off = describe_cutoff(response, None, bounded_by_budget=False)
            self._requests.restore(request, response, cut_off)
            if (refused := self._refuse_cut_off(cut_off)) is not None:
                raise refused
        return response

    async def batch_create(self, requests: Any) -> NoReturn:
        raise UserError(
            "Batches are not supported, since they bypass the session's budgets. Send the requests one by one."
        )

    async def _reserve(self, request: OutgoingRequest) -> ReservedRequest:
        """Reserve a request, once the rules allow the provider's own tools, which it runs without asking."""
        for tool in request.parameters.native_tools:
            if tool.kind not in self._admitted:
                await self._session.gate.approve_native(self._frame, tool.kind)
                self._admitted.add(tool.kind)
        return await reserve(self._session, self._frame, self.wrapped, request)

    async def _send(
        self, outgoing: OutgoingRequest, ask: Callable[[ReservedRequest], Awaitable[ModelResponse]]
    ) -> ModelResponse:
        request = await self._reserve(outgoing)
        async with self._sending(request):
            try:
                response = await ask(request)
            except BaseException as exc:
                self._requests.fail(request, exc)
                self._raise_if_unreadable(exc)
                raise
            cut_off = request.describe_cutoff(response)
            refused = self._refuse_cut_off(cut_off)
            self._requests.finish(request, response, cut_off, refused)
            refuse_empty_response(response, self.wrapped)
        if refused is not None:
            raise refused
        return response

    def _raise_if_unreadable(self, exc: BaseException) -> None:
        """Raise our error if an answer could not be read, so that a `FallbackModel` tries the next model."""
        if (error := unreadable_answer(exc, self.wrapped, self._session.recorder.secrets.redact)) is not None:
            raise error from exc

    @asynccontextmanager
    async def _sending(self, request: ReservedRequest) -> AsyncIterator[None]:
        """Hold a slot of the session. In the end the reservation is settled, or cancelled if nothing was sent."""
        slots, frame = self._session.loop.request_slots, self._frame
        try:
            self._session.recorder.log_message(frame, request.messages[-1])
            # A request of a worker above may hold the last slot while it waits for this one.
            has_slot = not open_requests_above(frame) or slots.value > 0
            if has_slot:
                frame.waits_for = f", which waits to send a request ({self._session.max_concurrency}: max_concurrency)"
                await slots.acquire()
                frame.waits_for = ""
        except BaseException:
            request.reservation.cancel()
            raise
        frame.open_requests += (request.reservation,)
        self._session.loop.requests_in_flight += 1
        request.sent_at = perf_counter()
        try:
            try:
                self._requests.start(request)
            except BaseException as exc:  # from a journal: nothing was sent
                request.reservation.cancel()
                self._requests.record_failure(request, exc)
                raise
            yield
        finally:
            self._session.loop.requests_in_flight -= 1
            frame.open_requests = tuple(each for each in frame.open_requests if each is not request.reservation)
            if has_slot:
                slots.release()
            request.reservation.settle((), whole=False)  # if settling it failed

    def _refuse_cut_off(self, cut_off: str | None) -> AnswerCutOff | None:
        """Return the error for an answer that was cut off, if the worker has `on_cut_off: error`."""
        entry = self._frame.entry
        if cut_off is None or entry.on_cut_off != "error":
            return None
        return AnswerCutOff(
            f"{self._frame.path}: an answer of model {self._requests.model_name!r} was cut off: {cut_off} "
            f"(`on_cut_off: error` of worker {entry.name!r})."
        )
