"""The model as a worker's requests go through it: budgets, usage, the message log."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from copy import copy
from dataclasses import dataclass, replace
from time import perf_counter
from typing import Any, NoReturn, cast

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
from pydantic_ai.settings import ModelSettings, merge_model_settings

from ..budgets.estimates import InputBound, thinking_tokens
from ..budgets.ledger import DEFAULT_OUTPUT_TOKENS, GIVE_PRICE, LEAST_OUTPUT_TOKENS, Quote, Reservation
from ..budgets.limits import full_name
from ..budgets.prices import FREE, is_plausible, was_reported
from ..errors import AnswerCutOff, CallCancelled, LimitExceeded, ModelChoiceError
from ..models.answers import refuse_empty_stream, refuse_nothing, unreadable_answer
from ..models.cutoff import find_missing_end, name_limit
from ..privacy.histories import SentHistory
from ..values.texts import text_of
from .events import RequestEnded, RequestStarted
from .frame import CallFrame
from .recorder import tags
from .session import Session

_NOTHING = Quote(model="", input_tokens=0, output_tokens=0, least_output_tokens=0, price=None)
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


@dataclass(slots=True)
class _Request:
    """A request that is reserved, as it is sent."""

    messages: list[ModelMessage]
    settings: ModelSettings | None
    asked: ModelRequestParameters
    reservation: Reservation
    bounded_by_budget: bool
    """Whether `max_tokens` of the settings is the budget's and not the user's."""
    max_tokens: int | None
    """The bound of the output that is sent, if any."""
    clock: float = 0.0
    """When it was sent, on the clock that durations are measured with."""

    def name_limit(self, response: ModelResponse) -> str | None:
        return name_limit(response, self.max_tokens, bounded_by_budget=self.bounded_by_budget)


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
        request = await self._reserve(messages, model_settings, model_request_parameters)
        return await self._send(
            request, lambda: self.wrapped.request(request.messages, request.settings, model_request_parameters)
        )

    @asynccontextmanager
    async def request_stream(
        self,
        messages: list[ModelMessage],
        model_settings: ModelSettings | None,
        model_request_parameters: ModelRequestParameters,
        run_context: RunContext[Any] | None = None,
    ) -> AsyncGenerator[StreamedResponse]:
        request = await self._reserve(messages, model_settings, model_request_parameters)
        async with self._sending(request):
            stream: StreamedResponse | None = None
            try:
                async with self.wrapped.request_stream(
                    request.messages, request.settings, model_request_parameters, run_context
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
            cut_off = request.name_limit(response) or find_missing_end(response, self.wrapped)
            refused = self._refuse_cut_off(cut_off)
            self._finish(request, response, cut_off, refused)
        if refused is not None:
            raise refused

    async def compact_messages(
        self, request_context: ModelRequestContext, *, instructions: str | None = None
    ) -> ModelResponse:
        request = await self._reserve(
            request_context.messages, request_context.model_settings, request_context.model_request_parameters
        )
        context = replace(request_context, messages=request.messages, model_settings=request.settings)
        return await self._send(request, lambda: self.wrapped.compact_messages(context, instructions=instructions))

    async def batch_create(self, requests: Any) -> NoReturn:
        raise UserError("A batch goes past the budgets of the session. Make its requests one by one.")

    async def _admit_native_tools(self, asked: ModelRequestParameters) -> None:
        """A provider runs its own tools without asking, so rules on them are heard before it is given any."""
        for tool in asked.native_tools:
            if tool.kind not in self._admitted:
                await self._session.gate.approve_native(self._frame, tool.kind)
                self._admitted.add(tool.kind)

    async def _reserve(
        self, messages: list[ModelMessage], settings: ModelSettings | None, asked: ModelRequestParameters
    ) -> _Request:
        """Reserve the worst case of a request. What is sent has no secrets, and the bound that was reserved."""
        session, frame = self._session, self._frame
        if asked.native_tools:
            await self._admit_native_tools(asked)
        if session.gate.ended and session.gate.has_ended(frame):
            raise CallCancelled(f"{frame.path} stops: somebody ended the run.")
        if session.recorder.secrets.configured is not None:
            frame.sent_history = frame.sent_history or SentHistory()
            messages = frame.sent_history.without_secrets(messages, session.recorder.secrets.configured)
        meters = (session.spending.meter, *frame.meters)
        agreed_to = None
        while True:
            quote = self._quote(messages, settings, asked)
            answer = await session.spending.ledger.reserve(meters, quote, _open_above(frame))
            if isinstance(answer, Reservation):
                break
            problem, limit, worker = answer.problem, answer.limit, answer.meter.worker
            exceeded = LimitExceeded(f"{frame.path} stops: {problem}.", problem=problem, limit=limit, worker=worker)
            # Limits that leave the problem as it was are no answer, and would be asked for again and again.
            if not limit or worker is not None or problem == agreed_to:
                raise exceeded
            agreed = await session.spending.raise_limits(frame, exceeded)
            if agreed is False:
                raise exceeded
            agreed_to = problem if agreed else agreed_to
        sent = merge_model_settings(self.wrapped.settings, settings)
        most = _max_tokens(sent)
        by_budget = most is None and answer.output_tokens > 0
        if by_budget:
            most = answer.output_tokens
            settings = cast(ModelSettings, {**(settings or {}), "max_tokens": most})
        return _Request(messages, settings, asked, answer, by_budget, most)

    def _quote(
        self, messages: list[ModelMessage], settings: ModelSettings | None, asked: ModelRequestParameters
    ) -> Quote:
        """Return the worst case of a request; nothing, where no budget asks for it."""
        session = self._session
        meters = [meter for meter in (session.spending.meter, *self._frame.meters) if meter.reserves]
        if not meters:
            return _NOTHING
        price = session.spending.prices.dearest(self.wrapped)
        of_cost = [meter for meter in meters if meter.cost.limit is not None]
        if price is None and of_cost and all(meter.unpriced.limit is not None for meter in of_cost):
            session.recorder.notice(
                self._frame,
                f"The price of model {self._full_name!r} is not known, so its tokens are limited in place of its cost. "
                f"To limit that, {GIVE_PRICE}.",
            )
        if price == FREE and not any(meter.tokens.limit is not None for meter in meters):
            return replace(_NOTHING, price=price)
        # Some models are sent schemas in another form, which may be much longer.
        sent = merge_model_settings(self.wrapped.settings, settings)
        bound = InputBound(messages, self.wrapped.prepare_request(settings, asked)[1], sent)
        if bound.unbounded is not None:
            session.recorder.notice(
                self._frame,
                f"The cost of {bound.unbounded} is not known before it is paid: the limit may be passed by the "
                "requests in flight.",
            )
        default: int = getattr(self.wrapped, "default_max_tokens", DEFAULT_OUTPUT_TOKENS)
        thinking, max_tokens = thinking_tokens(sent), _max_tokens(sent)
        wanted = max_tokens or thinking + default
        return Quote(
            model=self._full_name,
            input_tokens=bound.tokens,
            output_tokens=wanted,
            least_output_tokens=max_tokens or min(wanted, thinking + LEAST_OUTPUT_TOKENS),
            price=price,
        )

    async def _send(self, request: _Request, ask: Callable[[], Awaitable[ModelResponse]]) -> ModelResponse:
        async with self._sending(request):
            try:
                response = await ask()
            except BaseException as exc:
                self._fail(request, exc)
                self._raise_if_unreadable(exc)
                raise
            cut_off = request.name_limit(response)
            refused = self._refuse_cut_off(cut_off)
            self._finish(request, response, cut_off, refused)
            refuse_nothing(response, self.wrapped)
        if refused is not None:
            raise refused
        return response

    def _raise_if_unreadable(self, exc: BaseException) -> None:
        """Raise the named error for an answer that could not be read, so that a `FallbackModel` tries the next one."""
        if (error := unreadable_answer(exc, self.wrapped, self._session.recorder.secrets.redact)) is not None:
            raise error from exc

    @asynccontextmanager
    async def _sending(self, request: _Request) -> AsyncIterator[None]:
        """Hold one of the session's slots. A request that gets none was not sent. None is left open in the end."""
        slots, frame = self._session.loop.request_slots, self._frame
        try:
            self._session.recorder.log_message(frame, request.messages[-1])
            # One of a worker above may wait for this request, and hold the last slot.
            has_slot = not _open_above(frame) or slots.value > 0
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
            if self._session.recorder.observed:
                self._session.recorder.emit(RequestStarted(**tags(frame), model=self._full_name))
            yield
        finally:
            self._session.loop.requests_in_flight -= 1
            frame.open_requests = tuple(each for each in frame.open_requests if each is not request.reservation)
            if has_slot:
                slots.release()
            request.reservation.settle((), whole=False)  # where settling it failed

    def _fail(self, request: _Request, exc: BaseException) -> None:
        """Settle a request without a response. It may be paid, unless the provider cannot have worked on it."""
        request.reservation.settle((), whole=_was_not_worked_on(exc))
        if request.bounded_by_budget and isinstance(exc, ModelHTTPError) and exc.status_code in (400, 422):
            exc.add_note(
                f"max_tokens={request.reservation.output_tokens} was sent because there is a limit of money or tokens. "
                "If the provider refuses that number, set `max_tokens` in `model_settings` of the worker."
            )
        self._tell_end(request, self._full_name, error=_said(exc))

    @property
    def _full_name(self) -> str:
        return full_name(self.wrapped.system, self.model_name)

    def _tell_end(self, request: _Request, model: str, **facts: Any) -> None:
        recorder = self._session.recorder
        if recorder.observed:
            took = perf_counter() - request.clock
            recorder.emit(RequestEnded(**tags(self._frame), model=model, duration=took, **facts))

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
        request: _Request,
        response: ModelResponse,
        cut_off: str | None = None,
        failed: BaseException | None = None,
    ) -> None:
        """Settle a request by its response, and log that."""
        session, record = self._session, self._frame.record
        assert record is not None
        usage, model = response.usage, response.model_name or self.model_name
        told = is_plausible(usage)
        usage.cost = (
            session.spending.prices.cost(self.wrapped, response) if told else None
        )  # PydanticAI keeps what is there
        whole = told and was_reported(usage) and response.state != "incomplete" and response.state != "interrupted"
        # A model that tries several by itself moved on from some attempts, and they are paid all the same.
        attempts = [
            (attempt.model_name, attempt.provider_name, attempt.usage)
            for attempt in response.failed_attempts or ()
            if attempt.usage is not None and is_plausible(attempt.usage)
        ]
        usages = [*(used for _, _, used in attempts), usage]
        unreported = len(response.failed_attempts or ()) - len(attempts)
        over = request.reservation.settle(usages if told else usages[:-1], whole=whole, unreported=unreported)
        for meter in (session.spending.meter, *self._frame.meters):
            for name, provider, used in (*attempts, (model, self.wrapped.system, usage)):
                meter.count_usage(name, provider, used)
        record.requests = [*record.requests, *usages]
        if over:
            session.recorder.notice(
                self._frame, f"Model {model!r} used more than the most that was reserved for a request. It is counted."
            )
        if cut_off is not None:
            record.cut_off = cut_off
            if not session.recorder.observed and failed is None:  # sinks learn it from the end of the request
                session.recorder.notice(self._frame, f"An answer of model {self._full_name!r} was cut off: {cut_off}.")
        asked = request.asked
        session.recorder.log_message(self._frame, response, (*asked.function_tools, *asked.output_tools))
        for part in response.parts:
            if isinstance(part, NativeToolCallPart):
                self._record_native_tool(part, response)
        error = None if failed is None else _said(failed)
        full = full_name(self.wrapped.system, model)
        self._tell_end(request, full, usage=copy(usage), error=error, cut_off=cut_off)

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


def _said(exc: BaseException) -> str:
    return "cancelled" if isinstance(exc, asyncio.CancelledError) else f"{type(exc).__name__}: {text_of(exc)}"


def _open_above(frame: CallFrame) -> tuple[Reservation, ...]:
    """Return the requests in flight of the workers above, which may end only when this one has: in a stream's body."""
    found: tuple[Reservation, ...] = ()
    above = frame.called_in or frame.parent
    while above is not None:
        found += above.open_requests
        above = above.called_in or above.parent
    return found


def _max_tokens(settings: ModelSettings | None) -> int | None:
    """Return the bound of the output that settings send, if they send one."""
    if not settings:
        return None
    body = settings.get("extra_body")
    sent = [settings.get("max_tokens")]
    if isinstance(body, dict):
        sent += [body.get(name) for name in ("max_tokens", "max_completion_tokens", "max_output_tokens")]
    return max((each for each in sent if isinstance(each, int) and each > 0), default=None)


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


class NoModel(Model):
    """Stands where PydanticAI wants a model and there is none: in a function that no worker called."""

    def __init__(self, entry: str) -> None:
        super().__init__()
        self._entry = entry

    @property
    def model_name(self) -> str:
        return "none"

    @property
    def system(self) -> str:
        return "none"

    async def request(
        self,
        messages: list[ModelMessage],
        model_settings: ModelSettings | None,
        model_request_parameters: ModelRequestParameters,
    ) -> ModelResponse:
        raise ModelChoiceError(
            f"{self._entry!r} was not called by a worker, so its RunContext has no model to ask. Call a worker instead."
        )
