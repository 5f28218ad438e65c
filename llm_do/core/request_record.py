"""Requests as they are recorded: what is new in them, which calls they ask for, and digests of them."""

from __future__ import annotations

import re
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

from pydantic_ai.exceptions import UserError
from pydantic_ai.messages import (
    ModelMessage,
    ModelMessagesTypeAdapter,
    ModelRequest,
    ModelResponse,
    RetryPromptPart,
    ToolCallPart,
    ToolReturnPart,
)
from pydantic_ai.models import Model, ModelRequestParameters
from pydantic_ai.settings import ModelSettings, merge_model_settings

from ..privacy.secret_fields import HIDDEN
from ..values.canonical import digest_of_text
from ..values.texts import json_text
from .events import RequestSetup
from .frame import AskedCall, CallFrame
from .recorder import Recorder

_UNLIKE_IN_EACH_RUN = frozenset({"timestamp", "run_id", "conversation_id", "provider_response_id"})
_NAMES_A_SECRET = re.compile(r"(?i)(^|[_-])(api_?key|key|token|secret|password|authorization|credentials?)$").search


def setup_of(model: Model, settings: ModelSettings | None, parameters: ModelRequestParameters) -> RequestSetup:
    """Return the settings and tools of a request as a model gets them. Headers may have keys, which are hidden."""
    with suppress(UserError):  # the request itself will say it
        parameters = model.prepare_request(settings, parameters)[1]
    schema = None if parameters.output_object is None else parameters.output_object.json_schema
    return RequestSetup(
        settings=settings_sent(model, settings),
        output_mode=parameters.output_mode,
        tools=tuple(parameters.function_tools),
        output_tools=tuple(parameters.output_tools),
        native_tools=tuple(tool.kind for tool in parameters.native_tools),
        output_schema=schema,
    )


def settings_sent(model: Model, settings: ModelSettings | None) -> dict[str, Any]:
    """Return the settings of a request as they may be written down: headers, and what is named like a key, are hidden.

    So a new key makes no other request of one that was recorded with the old one.
    """
    sent: dict[str, Any] = dict(merge_model_settings(model.settings, settings) or {})
    if isinstance(headers := sent.get("extra_headers"), dict):
        sent["extra_headers"] = dict.fromkeys(headers, HIDDEN)
    for name in ("extra_body", "extra_query"):
        if name in sent:
            sent[name] = _without_keys(sent[name])
    return sent


def _without_keys(data: Any) -> Any:
    if isinstance(data, dict):
        return {key: HIDDEN if _NAMES_A_SECRET(str(key)) else _without_keys(item) for key, item in data.items()}
    return [_without_keys(item) for item in data] if isinstance(data, list) else data


def describe_start(
    recorder: Recorder,
    frame: CallFrame,
    model: Model,
    messages: Sequence[ModelMessage],
    settings: ModelSettings | None,
    parameters: ModelRequestParameters,
) -> dict[str, Any]:
    """Return what `RequestStarted` says of a request beside its model and its number."""
    before, frame.sent_messages = frame.sent_messages, list(messages)
    is_longer = len(before) <= len(messages) and all(
        one is other or one == other for one, other in zip(before, messages, strict=False)
    )
    tools = (*parameters.function_tools, *parameters.output_tools)
    new = recorder.all_without_marked(frame, messages[len(before) :] if is_longer else messages, tools)
    setup = setup_of(model, settings, parameters)
    is_same = frame.setup is not None and frame.setup[0] == setup
    if frame.setup is None or not is_same:
        frame.setup = setup, digest_of_text(json_text(_without_configured(recorder, setup)))
    return {"messages": new, "setup": None if is_same else setup, "setup_digest": frame.setup[1]}


def request_digest(
    recorder: Recorder,
    model: Model,
    messages: Sequence[ModelMessage],
    settings: ModelSettings | None,
    parameters: ModelRequestParameters,
) -> str:
    """Return a digest of a request, without secrets, and without the times and ids that differ from run to run."""
    ids: dict[Any, int] = {}
    data = [
        {**_alike(message), "parts": [_alike(part, ids) for part in message["parts"]]}
        for message in ModelMessagesTypeAdapter.dump_python(list(messages), mode="json")
    ]
    asked = [data, settings_sent(model, settings), parameters]
    return digest_of_text(json_text(_without_configured(recorder, asked)))


def _alike(data: dict[str, Any], ids: dict[Any, int] | None = None) -> dict[str, Any]:
    """Return a message or a part of one with its tool call numbered. What a tool got and returned is left as it is."""
    alike = {key: item for key, item in data.items() if key not in _UNLIKE_IN_EACH_RUN}
    if ids is not None and "tool_call_id" in alike:
        alike["tool_call_id"] = ids.setdefault(alike["tool_call_id"], len(ids))
    return alike


def _without_configured(recorder: Recorder, value: Any) -> Any:
    configured = recorder.secrets.configured
    return value if configured is None else configured.redact(value)


def note_calls(frame: CallFrame, number: int, response: ModelResponse, parameters: ModelRequestParameters) -> None:
    """Note the calls that a response asks for, so that each can be told from its equals when it is made."""
    outputs = {tool.name for tool in parameters.output_tools}
    parts = [part for part in response.parts if isinstance(part, ToolCallPart)]
    # Those of another response wait, too: a tool may run an agent of its own with the model of its worker.
    frame.asked_calls += tuple(
        AskedCall(part.tool_name, part.tool_call_id, (number, position), part.args)
        for position, part in enumerate(parts)
        if part.tool_name not in outputs
    )


def reject_unmade_calls(recorder: Recorder, frame: CallFrame, messages: Sequence[ModelMessage]) -> None:
    """Record the calls of the last response that could not be made, as the next request tells the model."""
    if not frame.asked_calls or not messages:
        return
    message, response = (
        messages[-1],
        next((each for each in reversed(messages) if isinstance(each, ModelResponse)), None),
    )
    parts = () if response is None else response.parts
    ids = {(part.tool_name, part.tool_call_id) for part in parts if isinstance(part, ToolCallPart)}
    asked = [call for call in frame.asked_calls if (call.name, call.tool_call_id) in ids]
    frame.asked_calls = tuple(call for call in frame.asked_calls if call not in asked)
    if not asked or not recorder.observed or not isinstance(message, ModelRequest):
        return
    errors: dict[str | None, str] = {}
    for part in message.parts:  # PydanticAI has two forms for it, by its version
        if isinstance(part, RetryPromptPart):
            errors[part.tool_call_id] = part.model_response()
        elif isinstance(part, ToolReturnPart) and part.outcome == "retried":
            errors[part.tool_call_id] = part.model_response_str()
    for call in asked:
        if (error := errors.get(call.tool_call_id)) is not None:
            recorder.reject(frame, call.name, _arguments_of(frame, call), error, call.tool_call_id)


def reject_last_calls(recorder: Recorder, frame: CallFrame, error: BaseException) -> None:
    """Record the calls that could not be made when that ended the run of a worker."""
    asked, frame.asked_calls = frame.asked_calls, ()
    for call in asked:
        if recorder.observed and repr(call.name) in str(error):
            recorder.reject(frame, call.name, _arguments_of(frame, call), str(error), call.tool_call_id)


def _arguments_of(frame: CallFrame, call: AskedCall) -> Any:
    """Return the arguments of a call that could not be made: only their names, where some of them are secret."""
    own = frame.called.own_entries.get(call.name)
    if getattr(own, "secret_fields", None) is None:
        return call.arguments
    return dict.fromkeys(call.arguments, HIDDEN) if isinstance(call.arguments, dict) else HIDDEN
