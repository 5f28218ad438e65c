"""The model as a worker's requests go through it: budgets, usage, the message log."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from copy import copy
from dataclasses import replace
from time import perf_counter
from typing import Any, NoReturn

from pydantic_ai import RunContext
from pydantic_ai.exceptions import ModelHTTPError, UserError
from pydantic_ai.messages import (
    ModelMessage,
    ModelResponse,
    NativeToolCallPart,
    NativeToolReturnPart,
)
from pydantic_ai.models import Model, ModelRequestContext, ModelRequestParameters, StreamedResponse
from pydantic_ai.models.concurrency import ConcurrencyLimitedModel
from pydantic_ai.models.fallback import FallbackModel
from pydantic_ai.models.wrapper import WrapperModel
from pydantic_ai.settings import ModelSettings

from ..budgets.limits import full_name
from ..budgets.prices import is_plausible, was_reported
from ..errors import AnswerCutOff
from ..models.answers import refuse_empty_response, refuse_empty_stream, unreadable_answer
from ..models.cutoff import describe_missing_end
from ..values.texts import text_of
from .events import RequestStarted
from .executor import PendingRequest, answers_requests
from .frame import CallFrame
from .recorder import tags
from .request_record import describe_start, note_calls, reject_unmade_calls, request_digest
from .reserving import ReservedRequest, open_requests_above, reserve
from .session import Session
from .stream_in_task import StreamInTask
from .trace import ModelUsage

_TURNED_AWAY = frozenset({*range(400, 500), 501, 503, 529})
"""HTTP codes of servers that refuse a request. No provider charges for one."""


def metered(model: Model, session: Session, frame: CallFrame) -> Model:
    """Return `model` with a meter around it; around each candidate, where it tries several one after the other."""
    if is_metered(model, frame):
        return model
    if isinstance(model, MeteredModel) and model._session is session:  # the model of the caller
        return metered(model.wrapped, session, frame)
    if isinstance(model, FallbackModel):
        several = copy(model)
        several.models = [metered(each, session, frame) for each in model.models]
        return several
    if isinstance(model, WrapperModel) and _is_metered_inside(model, session):
        wrapper = copy(model)
        wrapper.wrapped = metered(model.wrapped, session, frame)
        return wrapper
    return MeteredModel(model, session, frame)


def is_metered(model: Any, frame: CallFrame) -> bool:
    """Tell whether every request to a model is counted for this call, by the model or by one that it hands it on to."""
    if isinstance(model, MeteredModel) and model._frame is frame:
        return True
    if isinstance(model, WrapperModel):
        return is_metered(model.wrapped, frame)
    return isinstance(model, FallbackModel) and all(is_metered(each, frame) for each in model.models)


def _is_metered_inside(model: Model, session: Session) -> bool:
    """Tell whether a wrapper leads to candidates, to a queue of its own, or to the meter of a caller."""
    if isinstance(model, MeteredModel):
        return model._session is session
    if isinstance(model, FallbackModel | ConcurrencyLimitedModel):
        return True
    return isinstance(model, WrapperModel) and _is_metered_inside(model.wrapped, session)


class MeteredModel(WrapperModel):
    """Reserves, sends and counts what one worker call asks of one model."""

    def __init__(self, wrapped: Model, session: Session, frame: CallFrame) -> None:
        super().__init__(wrapped)
        self._session = session
        self._frame = frame
        self._admitted: set[str] = set()
        """The provider's own tools that the rules were asked about."""

    async def request(
        self,
        messages: list[ModelMessage],
        model_settings: ModelSettings | None,
        model_request_parameters: ModelRequestParameters,
    ) -> ModelResponse:
        if getattr(self.wrapped, "request_is_a_stream", False):
            # What is used before it fails counts too.
            async with self.request_stream(messages, model_settings, model_request_parameters) as stream:
                async for _ in stream:
                    pass
            return stream.get()

        async def send() -> ModelResponse:
            request = await self._reserve(number, messages, model_settings, model_request_parameters)
            return await self._send(
                request, lambda: self.wrapped.request(request.messages, request.settings, model_request_parameters)
            )

        number = self._begin(messages)
        return await self._remember(number, messages, model_settings, model_request_parameters, send)

    @asynccontextmanager
    async def request_stream(
        self,
        messages: list[ModelMessage],
        model_settings: ModelSettings | None,
        model_request_parameters: ModelRequestParameters,
        run_context: RunContext[Any] | None = None,
    ) -> AsyncGenerator[StreamedResponse]:
        number = self._begin(messages)
        made = self._stream(number, messages, model_settings, model_request_parameters, run_context)
        if not self._remembers:
            async with made as stream:
                yield stream
            return
        opened = StreamInTask(made)

        async def answer() -> ModelResponse:
            return await self._remember(number, messages, model_settings, model_request_parameters, opened.send)

        async with opened.answered_by(answer, model_request_parameters) as stream:
            yield stream

    @asynccontextmanager
    async def _stream(
        self,
        number: int,
        messages: list[ModelMessage],
        settings: ModelSettings | None,
        parameters: ModelRequestParameters,
        run_context: RunContext[Any] | None,
    ) -> AsyncGenerator[StreamedResponse]:
        """Reserve and send a request whose response is streamed."""
        request = await self._reserve(number, messages, settings, parameters)
        async with self._sending(request):
            stream: StreamedResponse | None = None
            try:
                async with self.wrapped.request_stream(
                    request.messages, request.settings, parameters, run_context
                ) as stream:
                    # PydanticAI replaces the iterator in the same way, to look at the first event.
                    stream._event_iterator = refuse_empty_stream(stream, aiter(stream), self.wrapped)
                    yield stream
            except BaseException as exc:
                if stream is None:
                    self._fail(request, exc)
                else:  # it was broken off, and what it has used is spent all the same
                    self._finish(request, stream.get(), failed=exc)
                self._raise_if_unreadable(exc)
                raise
            response = stream.get()
            cut_off = request.describe_cutoff(response) or describe_missing_end(response, self.wrapped)
            refused = self._refuse_cut_off(cut_off)
            self._finish(request, response, cut_off, refused)
        if refused is not None:
            raise refused

    async def compact_messages(
        self, request_context: ModelRequestContext, *, instructions: str | None = None
    ) -> ModelResponse:
        messages, parameters = request_context.messages, request_context.model_request_parameters

        async def send() -> ModelResponse:
            request = await self._reserve(number, messages, request_context.model_settings, parameters)
            context = replace(request_context, messages=request.messages, model_settings=request.settings)
            return await self._send(request, lambda: self.wrapped.compact_messages(context, instructions=instructions))

        number = self._begin(messages)
        return await self._remember(number, messages, request_context.model_settings, parameters, send)

    # -- before and around a request -----------------------------------------------------------------

    def _begin(self, messages: list[ModelMessage]) -> int:
        """Return the number of a request that is about to be made."""
        frame = self._frame
        reject_unmade_calls(self._session.recorder, frame, messages)
        frame.request_number += 1
        return frame.request_number

    @property
    def _remembers(self) -> bool:
        """Whether an executor stands around requests."""
        executor = self._session.executor
        return executor is not None and answers_requests(executor)

    async def _remember(
        self,
        number: int,
        messages: list[ModelMessage],
        settings: ModelSettings | None,
        parameters: ModelRequestParameters,
        send: Callable[[], Awaitable[ModelResponse]],
    ) -> ModelResponse:
        """Send a request, or take its response from the executor, which may have it from an earlier run."""
        executor, was_sent = self._session.executor, False
        if executor is None or not self._remembers:
            return await send()

        async def send_now() -> ModelResponse:
            nonlocal was_sent
            was_sent = True
            return await send()

        request = PendingRequest(
            call=self._frame,
            number=number,
            model=self._full_name,
            messages=messages,
            settings=settings,
            parameters=parameters,
            digest=request_digest(self._session.recorder, self.wrapped, messages, settings, parameters),
        )
        response = await executor.request(request, send_now)
        if not was_sent:
            self._restore(request, response)
        return response

    def _restore(self, request: PendingRequest, response: ModelResponse) -> None:
        """Record a request whose response is one of an earlier run. It is counted, and not spent again."""
        self._session.recorder.log_message(self._frame, request.messages[-1])
        self._tell_start(request.number, list(request.messages), request.settings, request.parameters)
        spent = self._spent_by(response)
        for each in spent:
            self._session.spending.meter.count_usage(each.model, each.provider, each.usage)
        self._record_response(request.number, response, request.parameters, spent, restored=True)

    async def batch_create(self, requests: Any) -> NoReturn:
        raise UserError("A batch goes past the budgets of the session. Make its requests one by one.")

    async def _admit_native_tools(self, asked: ModelRequestParameters) -> None:
        """A provider runs its own tools without asking, so rules on them are heard before it is given any."""
        for tool in asked.native_tools:
            if tool.kind not in self._admitted:
                await self._session.gate.approve_native(self._frame, tool.kind)
                self._admitted.add(tool.kind)

    async def _reserve(
        self,
        number: int,
        messages: list[ModelMessage],
        settings: ModelSettings | None,
        parameters: ModelRequestParameters,
    ) -> ReservedRequest:
        if parameters.native_tools:
            await self._admit_native_tools(parameters)
        return await reserve(self._session, self._frame, self.wrapped, number, messages, settings, parameters)

    async def _send(self, request: ReservedRequest, ask: Callable[[], Awaitable[ModelResponse]]) -> ModelResponse:
        async with self._sending(request):
            try:
                response = await ask()
            except BaseException as exc:
                self._fail(request, exc)
                self._raise_if_unreadable(exc)
                raise
            cut_off = request.describe_cutoff(response)
            refused = self._refuse_cut_off(cut_off)
            self._finish(request, response, cut_off, refused)
            refuse_empty_response(response, self.wrapped)
        if refused is not None:
            raise refused
        return response

    def _raise_if_unreadable(self, exc: BaseException) -> None:
        """Raise the named error for an answer that could not be read, so that a `FallbackModel` tries the next one."""
        if (error := unreadable_answer(exc, self.wrapped, self._session.recorder.secrets.redact)) is not None:
            raise error from exc

    @asynccontextmanager
    async def _sending(self, request: ReservedRequest) -> AsyncIterator[None]:
        """Hold one of the session's slots. A request that gets none was not sent. None is left open in the end."""
        slots, frame = self._session.loop.request_slots, self._frame
        try:
            self._session.recorder.log_message(frame, request.messages[-1])
            # One of a worker above may wait for this request, and hold the last slot.
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
        request.clock = perf_counter()
        try:
            try:
                self._tell_start(request.number, request.messages, request.settings, request.parameters)
            except BaseException:  # of a journal: nothing was sent
                request.reservation.cancel()
                raise
            yield
        finally:
            self._session.loop.requests_in_flight -= 1
            frame.open_requests = tuple(each for each in frame.open_requests if each is not request.reservation)
            if has_slot:
                slots.release()
            request.reservation.settle((), whole=False)  # where settling it failed

    def _fail(self, request: ReservedRequest, exc: BaseException) -> None:
        """Settle a request without a response. It may be paid, unless the provider cannot have worked on it."""
        request.reservation.settle((), whole=_was_not_worked_on(exc))
        if request.bounded_by_budget and isinstance(exc, ModelHTTPError) and exc.status_code in (400, 422):
            exc.add_note(
                f"max_tokens={request.reservation.output_tokens} was sent because there is a limit of money or tokens. "
                "If the provider refuses that number, set `max_tokens` in `model_settings` of the worker."
            )
        self._session.recorder.finish_request(
            self._frame,
            (),
            model=self._full_name,
            number=request.number,
            duration=perf_counter() - request.clock,
            error=_error_text(exc),
        )

    @property
    def _full_name(self) -> str:
        return full_name(self.wrapped.system, self.model_name)

    def _tell_start(
        self,
        number: int,
        messages: list[ModelMessage],
        settings: ModelSettings | None,
        parameters: ModelRequestParameters,
    ) -> None:
        recorder, frame = self._session.recorder, self._frame
        if recorder.observed:
            fields = describe_start(recorder, frame, self.wrapped, messages, settings, parameters)
            recorder.stream.emit(RequestStarted, {**tags(frame), "model": self._full_name, "number": number, **fields})

    def _refuse_cut_off(self, cut_off: str | None) -> AnswerCutOff | None:
        """Return the error for an answer that was cut off, where the worker says that half an answer is none."""
        entry = self._frame.entry
        if cut_off is None or entry is None or entry.on_cut_off != "error":
            return None
        return AnswerCutOff(
            f"{self._frame.path}: an answer of model {self._full_name!r} was cut off: {cut_off} "
            f"(`on_cut_off: error` of worker {entry.name!r})."
        )

    def _finish(
        self,
        request: ReservedRequest,
        response: ModelResponse,
        cut_off: str | None = None,
        failed: BaseException | None = None,
    ) -> None:
        """Settle a request by its response, and log that."""
        session, usage = self._session, response.usage
        reports_usage = is_plausible(usage)
        usage.cost = session.spending.prices.cost(self.wrapped, response) if reports_usage else None
        is_whole = response.state != "incomplete" and response.state != "interrupted"
        spent = self._spent_by(response)
        unreported = len(response.failed_attempts or ()) - (len(spent) - 1)
        over = request.reservation.settle(
            [each.usage for each in (spent if reports_usage else spent[:-1])],
            whole=reports_usage and was_reported(usage) and is_whole,
            unreported=unreported,
        )
        for meter in (session.spending.meter, *self._frame.meters):
            for each in spent:
                meter.count_usage(each.model, each.provider, each.usage)
        if over:
            model = spent[-1].model
            session.recorder.notice(
                self._frame, f"Model {model!r} used more than the most that was reserved for a request. It is counted."
            )
        if cut_off is not None and not session.recorder.observed and failed is None:
            # Sinks learn it from the end of the request.
            session.recorder.notice(self._frame, f"An answer of model {self._full_name!r} was cut off: {cut_off}.")
        error = None if failed is None else _error_text(failed)
        took = perf_counter() - request.clock
        self._record_response(request.number, response, request.parameters, spent, took, error, cut_off)

    def _spent_by(self, response: ModelResponse) -> list[ModelUsage]:
        """Return the usage of a response, after that of attempts which its model moved on from: all are paid."""
        attempts = [
            ModelUsage(attempt.model_name, attempt.provider_name, attempt.usage)
            for attempt in response.failed_attempts or ()
            if attempt.usage is not None and is_plausible(attempt.usage)
        ]
        return [*attempts, ModelUsage(response.model_name or self.model_name, self.wrapped.system, response.usage)]

    def _record_response(
        self,
        number: int,
        response: ModelResponse,
        parameters: ModelRequestParameters,
        spent: list[ModelUsage],
        duration: float = 0.0,
        error: str | None = None,
        cut_off: str | None = None,
        *,
        restored: bool = False,
    ) -> None:
        """Record a response, with the calls that it asks for and those that ran at the provider."""
        recorder, frame, tools = (
            self._session.recorder,
            self._frame,
            (*parameters.function_tools, *parameters.output_tools),
        )
        note_calls(frame, number, response, parameters)
        recorder.log_message(frame, response, tools)
        for part in response.parts:
            if isinstance(part, NativeToolCallPart):
                self._record_native_tool(part, response)
        recorder.finish_request(
            frame,
            [replace(each, usage=copy(each.usage)) for each in spent],
            cut_off,
            model=full_name(self.wrapped.system, spent[-1].model),
            number=number,
            duration=duration,
            response=recorder.without_marked(frame, response, tools) if recorder.observed else None,
            usage=copy(response.usage),
            error=error,
            restored=restored,
        )

    def _record_native_tool(self, call: NativeToolCallPart, response: ModelResponse) -> None:
        output = next(
            (
                part.content
                for part in response.parts
                if isinstance(part, NativeToolReturnPart) and part.tool_call_id == call.tool_call_id
            ),
            None,
        )
        self._session.recorder.add_native(self._frame, call.tool_name, call.args_as_dict(), output)


def _error_text(exc: BaseException) -> str:
    return "cancelled" if isinstance(exc, asyncio.CancelledError) else f"{type(exc).__name__}: {text_of(exc)}"


def _was_not_worked_on(exc: BaseException | None) -> bool:
    """Tell whether a request failed before a provider could work on it."""
    if isinstance(exc, ModelHTTPError):
        return exc.status_code in _TURNED_AWAY
    seen = 0
    while exc is not None and seen < 20:
        if isinstance(exc, UserError | NotImplementedError | ConnectionRefusedError | socket.gaierror):
            return True
        # Not what was merely being handled: an attempt before this one may have failed so.
        exc, seen = exc.__cause__, seen + 1
    return False
