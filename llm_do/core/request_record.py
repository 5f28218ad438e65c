"""Records of model requests: their new messages, the calls in their responses, their usage, and their digests."""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import Iterator, Sequence
from contextlib import nullcontext, suppress
from copy import copy
from dataclasses import asdict, replace
from itertools import chain, takewhile
from time import perf_counter
from typing import Any

from pydantic import ValidationError
from pydantic_ai.exceptions import ModelHTTPError, UnexpectedModelBehavior, UserError
from pydantic_ai.messages import (
    ModelMessage,
    ModelResponse,
    NativeToolCallPart,
    NativeToolReturnPart,
    RetryPromptPart,
    ToolCallPart,
    ToolReturnPart,
)
from pydantic_ai.models import Model, ModelRequestParameters
from pydantic_ai.settings import ModelSettings, merge_model_settings

from ..budgets.limits import full_name
from ..budgets.prices import is_plausible, was_reported
from ..privacy.secret_fields import hide_credentials, hide_keys
from ..values.canonical import digest_of_text
from ..values.snapshots import snapshot
from ..values.texts import json_text, text_of
from .conversation import AskedCall
from .events import RequestSetup, RequestStarted
from .frame import RequestFrame
from .keys import comparable_messages
from .recorder import Recorder, messages_after_last_response, tags
from .reserving import OutgoingRequest, ReservedRequest
from .session import Session
from .trace import ModelUsage

_TURNED_AWAY = frozenset({*range(400, 500), 501, 503, 529})
"""HTTP codes with which servers refuse a request. No provider charges for these."""


class RequestRecorder:
    """Records the requests of one worker call to one model, and settles their reservations."""

    def __init__(self, session: Session, frame: RequestFrame, model: Model) -> None:
        self._session = session
        self._frame = frame
        self._model = model

    @property
    def model_name(self) -> str:
        return full_name(self._model.system, self._model.model_name)

    def start(self, request: OutgoingRequest) -> None:
        recorder, frame = self._session.recorder, self._frame
        if not recorder.observed:
            return
        conversation, messages = frame.conversation, request.messages
        before = zip(conversation.sent_messages, conversation.recorded_messages, messages, strict=False)
        start = sum(1 for _ in takewhile(lambda each: _is_unchanged(*each), before))
        # A copy: a tool may still change a list that it returned.
        new = snapshot(recorder.redaction.visible_messages(frame, messages[start:]))
        conversation.sent_messages = list(messages)
        conversation.recorded_messages = [*conversation.recorded_messages[:start], *snapshot(messages[start:])]
        setup = setup_of(self._model, request.settings, request.parameters)
        is_same = conversation.setup is not None and conversation.setup[0] == setup
        if conversation.setup is None or not is_same:
            conversation.setup = setup, digest_of_text(json_text(recorder.redaction.without_configured(setup)))
        recorder.stream.emit(
            RequestStarted,
            tags(frame),
            model=self.model_name,
            number=request.number,
            messages=new,
            messages_from=start,
            setup=None if is_same else snapshot(setup),
            setup_digest=conversation.setup[1],
        )

    def fail(self, request: ReservedRequest, exc: BaseException) -> None:
        """Settle a request without a response. It may be billed, unless the provider cannot have worked on it."""
        request.reservation.settle((), whole=_was_not_worked_on(exc))
        if request.bounded_by_budget and isinstance(exc, ModelHTTPError) and exc.status_code in (400, 422):
            exc.add_note(
                f"max_tokens={request.reservation.output_tokens} was sent because there is a limit of money or tokens. "
                "If the provider refuses that number, set `max_tokens` in `model_settings` of the worker."
            )
        self.record_failure(request, exc, perf_counter() - request.sent_at)

    def record_failure(
        self, request: OutgoingRequest, exc: BaseException, duration: float = 0.0, *, restored: bool = False
    ) -> None:
        """Record the end of a request without a response."""
        what = {"model": self.model_name, "number": request.number, "error": _error_text(exc)}
        with self._session.recorder.keep_error(exc):
            self._session.recorder.finish_request(self._frame, (), None, duration=duration, restored=restored, **what)

    def finish(
        self,
        request: ReservedRequest,
        response: ModelResponse,
        cut_off: str | None = None,
        failed: BaseException | None = None,
    ) -> None:
        """Settle a request by its response, and record it."""
        session, usage = self._session, response.usage
        reports_usage = is_plausible(usage)
        usage.cost = session.spending.prices.cost(self._model, response) if reports_usage else None
        is_whole = response.state != "incomplete" and response.state != "interrupted"
        spent = self._spent_by(response)
        unreported = len(response.failed_attempts or ()) - (len(spent) - 1)
        over = request.reservation.settle(
            [each.usage for each in (spent if reports_usage else spent[:-1])],
            whole=reports_usage and was_reported(usage) and is_whole,
            unreported=unreported,
        )
        for meter in (session.spending.meter, *self._frame.inherited.meters):
            for each in spent:
                meter.count_usage(each.model, each.provider, each.usage)
        if over:
            model = spent[-1].model
            session.recorder.notice(
                self._frame, f"Model {model!r} used more than the most that was reserved for a request. It is counted."
            )
        if cut_off is not None and not session.recorder.observed and failed is None:
            # Sinks have it in `RequestEnded`.
            session.recorder.notice(self._frame, f"An answer of model {self.model_name!r} was cut off: {cut_off}.")
        error = None if failed is None else _error_text(failed)
        took = perf_counter() - request.sent_at
        with nullcontext() if failed is None else session.recorder.keep_error(failed):
            self._record_response(request, response, spent, took, error, cut_off)

    def _spent_by(self, response: ModelResponse) -> list[ModelUsage]:
        """Return the usage of each failed attempt before a response, which is billed too, and of the response."""
        attempts = [
            ModelUsage(attempt.model_name, attempt.provider_name, attempt.usage)
            for attempt in response.failed_attempts or ()
            if attempt.usage is not None and is_plausible(attempt.usage)
        ]
        name = response.model_name or self._model.model_name
        return [*attempts, ModelUsage(name, self._model.system, response.usage)]

    def _record_response(
        self,
        request: OutgoingRequest,
        response: ModelResponse,
        spent: list[ModelUsage],
        duration: float = 0.0,
        error: str | None = None,
        cut_off: str | None = None,
        *,
        restored: bool = False,
    ) -> None:
        """Record a response, the calls that it asks for, and those that ran at the provider."""
        recorder, frame, parameters = self._session.recorder, self._frame, request.parameters
        note_calls(frame, request.number, response, parameters)
        try:
            recorder.log_message(frame, response)
            outputs = {
                part.tool_call_id: part.content
                for part in reversed(response.parts)  # of two, the first counts
                if isinstance(part, NativeToolReturnPart)
            }
            for part in response.parts:
                if isinstance(part, NativeToolCallPart):
                    output = outputs.get(part.tool_call_id)
                    recorder.add_whole(frame, part.tool_name, "native", part.args_as_dict(), output=output)
        finally:  # if the journal fails, the usage is counted nevertheless
            recorder.finish_request(
                frame,
                [replace(each, usage=copy(each.usage)) for each in spent],
                cut_off,
                model=full_name(self._model.system, spent[-1].model),
                number=request.number,
                duration=duration,
                response=snapshot(recorder.redaction.visible_message(frame, response)) if recorder.observed else None,
                usage=copy(response.usage),
                error=error,
                restored=restored,
            )

    def restore_failure(self, request: OutgoingRequest, exc: BaseException) -> None:
        """Record a request that is not sent, since it failed in an earlier run."""
        with self._session.recorder.keep_error(exc):
            self._start_unsent(request)
        self.record_failure(request, exc, restored=True)

    def _start_unsent(self, request: OutgoingRequest) -> None:
        self._session.recorder.log_message(self._frame, request.messages[-1])
        self.start(request)

    def restore(self, request: OutgoingRequest, response: ModelResponse, cut_off: str | None) -> None:
        """Record a request whose response is from an earlier run. Its usage is counted, but not spent again."""
        self._start_unsent(request)
        spent = self._spent_by(response)
        self._session.spending.restore(spent)
        self._record_response(request, response, spent, cut_off=cut_off, restored=True)


def setup_of(model: Model, settings: ModelSettings | None, parameters: ModelRequestParameters) -> RequestSetup:
    """Return the settings and tools of a request as a model gets them, without credentials."""
    with suppress(UserError):  # sending it raises the same
        parameters = model.prepare_request(settings, parameters)[1]
    parameters = _without_metadata(parameters)
    output = parameters.output_object
    return RequestSetup(
        settings=settings_sent(model, settings),
        output_mode=parameters.output_mode,
        tools=tuple(parameters.function_tools),
        output_tools=tuple(parameters.output_tools),
        native_tools=tuple(tool.kind for tool in parameters.native_tools),
        output_schema=None if output is None else output.json_schema,
    )


def _without_metadata(parameters: ModelRequestParameters) -> ModelRequestParameters:
    """Return the parameters of a request without metadata of tools, which is not sent."""
    function_tools = [replace(tool, metadata=None) for tool in parameters.function_tools]
    output_tools = [replace(tool, metadata=None) for tool in parameters.output_tools]
    return replace(parameters, function_tools=function_tools, output_tools=output_tools)


def settings_sent(model: Model, settings: ModelSettings | None) -> dict[str, Any]:
    """Return the settings of a request without credentials."""
    return hide_credentials(merge_model_settings(model.settings, settings) or {})


def _is_unchanged(sent: ModelMessage, as_sent: ModelMessage, message: ModelMessage) -> bool:
    """Return whether a message was sent before, and is as it was then."""
    try:
        if as_sent == message:
            return True
        return sent is message and snapshot(as_sent) != as_sent  # it has a value that no copy is equal to
    except Exception:  # from values that cannot be compared
        return sent is message


def request_digest(recorder: Recorder, model: Model, request: OutgoingRequest) -> str:
    """Return a digest of a request without secrets, and without times and ids, which differ from run to run."""
    native = [hide_keys(asdict(tool)) for tool in request.parameters.native_tools]
    parameters = replace(_without_metadata(request.parameters), native_tools=[])
    content = [comparable_messages(request.messages), settings_sent(model, request.settings), parameters, native]
    return digest_of_text(json_text(recorder.redaction.without_configured(content)))


def note_calls(frame: RequestFrame, number: int, response: ModelResponse, parameters: ModelRequestParameters) -> None:
    """Note the calls that a response asks for, so that equal ones can be told apart when they are made."""
    outputs = {tool.name for tool in parameters.output_tools}
    parts = [part for part in response.parts if isinstance(part, ToolCallPart)]
    # Those of another response may still wait: a tool may run an agent of its own with the model of its worker.
    frame.asked_calls += tuple(
        AskedCall(part.tool_name, part.tool_call_id, (number, position), part.args)
        for position, part in enumerate(parts)
        if part.tool_name not in outputs
    )


def reject_unmade_calls(
    recorder: Recorder, frame: RequestFrame, messages: Sequence[ModelMessage], ended_by: BaseException | None = None
) -> None:
    """Record unmade calls of the last response, with the errors of the next request, or with `ended_by`."""
    if not frame.asked_calls or not messages:
        return
    response = next((each for each in reversed(messages) if isinstance(each, ModelResponse)), None)
    parts = () if response is None else response.parts
    ids = {(part.tool_name, part.tool_call_id) for part in parts if isinstance(part, ToolCallPart)}
    pending = [call for call in frame.asked_calls if (call.name, call.tool_call_id) in ids]
    frame.asked_calls = tuple(call for call in frame.asked_calls if call not in pending)
    if not pending or not recorder.observed:
        return
    told = recorder.redaction.visible_messages(frame, messages_after_last_response(messages))
    errors = {part.tool_call_id: text for part, text in _retries(told)}
    last = None if ended_by is None else _out_of_retries(pending, ended_by)
    for call in pending:
        error = str(ended_by) if call is last else errors.get(call.tool_call_id)
        if error is not None:
            arguments = recorder.redaction.hide_unfit_arguments(frame, call.name, call.arguments)
            recorder.reject(frame, call.name, arguments, error, call.tool_call_id)


def _retries(messages: Sequence[ModelMessage]) -> Iterator[tuple[RetryPromptPart | ToolReturnPart, str]]:
    """Yield the parts that tell a model that a call could not be made, with their texts."""
    for part in chain.from_iterable(message.parts for message in messages):
        if isinstance(part, RetryPromptPart):  # the form depends on the version of PydanticAI
            yield part, part.model_response()
        elif isinstance(part, ToolReturnPart) and part.outcome == "retried":
            yield part, part.model_response_str()


def _out_of_retries(calls: Sequence[AskedCall], error: BaseException) -> AskedCall | None:
    """Return the call whose tool had too many retries, if that ended the run."""
    text = str(error) if isinstance(error, UnexpectedModelBehavior) else ""
    # PydanticAI names the tool only in its text.
    named = [call for call in calls if text.startswith(f"Tool {call.name!r} exceeded ")]
    cause = error.__cause__
    inputs = [each["input"] for each in cause.errors()] if isinstance(cause, ValidationError) else []
    wrong = (call for call in named if any(each in inputs for each in _inputs_of(call)))
    return next(wrong, named[0] if named else None)


def _inputs_of(call: AskedCall) -> list[Any]:
    """Return what a validation error may quote of a call: all its arguments, or one of them."""
    arguments = call.arguments
    if isinstance(arguments, str):
        with suppress(ValueError):
            arguments = json.loads(arguments)
    items = list(arguments.values()) if isinstance(arguments, dict) else []
    return [call.arguments, arguments, *items]


def _error_text(exc: BaseException) -> str:
    return "cancelled" if isinstance(exc, asyncio.CancelledError) else f"{type(exc).__name__}: {text_of(exc)}"


def _was_not_worked_on(exc: BaseException | None) -> bool:
    """Return whether a request failed before a provider could work on it."""
    if isinstance(exc, ModelHTTPError):
        return exc.status_code in _TURNED_AWAY
    depth = 0
    while exc is not None and depth < 20:
        if isinstance(exc, UserError | NotImplementedError | ConnectionRefusedError | socket.gaierror):
            return True
        # Not `__context__`: that may be the error of an earlier attempt.
        exc, depth = exc.__cause__, depth + 1
    return False
