"""The events of a session, which sinks receive: plain data, tagged by `type`.

They are the record of a session: its trace and its usage can be folded from them, as `tests/core/fold.py` does.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Any, Literal, TypeAlias

from pydantic_ai.messages import ModelMessage, ModelResponse, MultiModalContent
from pydantic_ai.tools import ToolDefinition
from pydantic_ai.usage import RequestUsage, RunUsage

from ..policy.requests import ApprovalOutcome
from ..policy.rules import Case
from .trace import CallState, ModelUsage


@dataclass(frozen=True, kw_only=True)
class _Event:
    session_id: str = ""
    """The id of the session, unlike that of any other."""
    seq: int = 0
    """Its number in the session, from 1."""
    at: float = 0.0
    """When it happened, in seconds since the epoch."""


@dataclass(frozen=True, kw_only=True)
class _CallerEvent(_Event):
    """An event with the call that it is about; if it is about something else, with the call that made that."""

    key: str | None = None
    """The key of the call, or of the scope: equal in another run, and empty at the top. See `TraceEntry.key`."""
    call_id: int | None
    """The `id` of its record in the trace; `None` at the top."""
    parent_id: int | None
    """The `id` of the call that made it; `None` at the top."""
    name: str
    """The name of the entry that was called or could not be called, or whose conversation it is."""
    worker: str | None = None
    """The running worker: the entry itself, or the nearest worker above it."""
    depth: int = -1
    """How deep the call is nested: 0 for a top-level call, -1 for the program that makes top-level calls."""


@dataclass(frozen=True, kw_only=True)
class _CallEvent(_CallerEvent):
    call_id: int
    """The `id` of its record in the trace."""


@dataclass(frozen=True, kw_only=True)
class CallOpened(_CallEvent):
    """A call was made. It may still be refused."""

    kind: str
    arguments: Any
    """The arguments as the call was made."""
    asked_by: Literal["python", "model"] = "python"
    """Whether code made the call, or a model asked for it."""
    tool_call_id: str | None = None
    """The id that the model or its provider gave the call. Two calls may have the same."""
    scope: str | None = None
    """The key of the scope, if the call is a turn of a conversation."""
    replayable: bool = True
    """Whether only this call has its key: not if its arguments, its entry or a call above it have no canonical form.
    Calls that differ only in declared secrets have different ordinals, in the order in which they start."""
    attachments: Sequence[MultiModalContent] = ()
    """The files that go to a worker beside its arguments."""
    type: Literal["call_opened"] = field(default="call_opened", init=False)


@dataclass(frozen=True, kw_only=True)
class CallRejected(_CallerEvent):
    """A call that could not be made: its arguments or files do not fit, or there is no such entry. It has no record."""

    arguments: Any
    """The arguments as written, without their values if some are secret, or if Python calls an unknown name."""
    error: str
    tool_call_id: str | None = None
    """The id of the tool call, where a model asked for it."""
    type: Literal["call_rejected"] = field(default="call_rejected", init=False)


@dataclass(frozen=True, kw_only=True)
class ApprovalRequested(_CallEvent):
    """A person is being asked whether the call may run."""

    arguments: Any
    reason: str
    count: int = 1
    """The number of identical calls that wait for the answer, this one included."""
    type: Literal["approval_requested"] = field(default="approval_requested", init=False)


@dataclass(frozen=True, kw_only=True)
class ApprovalDecided(_CallEvent):
    """The approval of the call is decided."""

    outcome: ApprovalOutcome
    """The decision, with the rule and its place."""
    arguments: Any = None
    """The arguments that a person wrote in place of those of the call; `None` if they were not changed."""
    attachments: Sequence[MultiModalContent] = ()
    """The files that go with edited arguments."""
    cases: Sequence[Case] = ()
    """Everything that was judged."""
    type: Literal["approval_decided"] = field(default="approval_decided", init=False)


@dataclass(frozen=True, kw_only=True)
class CallStarted(_CallEvent):
    """The entry of a call begins to run."""

    arguments: Any
    """The arguments that run."""
    model: str | None = None
    """The model of a worker, as `provider:model`."""
    definition: str = ""
    """A digest of the entry's definition: the prompt and settings of a worker, the code of a function."""
    type: Literal["call_started"] = field(default="call_started", init=False)


@dataclass(frozen=True, kw_only=True)
class MessageLogged(_CallEvent):
    """A worker and its model exchanged a message."""

    message: ModelMessage
    type: Literal["message"] = field(default="message", init=False)


@dataclass(frozen=True, kw_only=True)
class RequestSetup:
    """The settings and tools of a request, as its model gets them."""

    settings: Mapping[str, Any]
    output_mode: str
    tools: Sequence[ToolDefinition]
    output_tools: Sequence[ToolDefinition]
    native_tools: Sequence[str]
    """The kinds of tools that the provider runs."""
    output_schema: Any = None
    """The JSON Schema of the output, where the provider holds the model to it."""


@dataclass(frozen=True, kw_only=True)
class _RequestEvent(_CallEvent):
    model: str
    """The model, as `provider:model`: at the end, the one that answered, if the provider reports it."""
    number: int = 1
    """Its number within the call, from 1."""


@dataclass(frozen=True, kw_only=True)
class RequestStarted(_RequestEvent):
    """A request is sent to a worker's model."""

    messages: Sequence[ModelMessage] = ()
    """The messages from the first one that differs from the request before it, of the same conversation."""
    messages_from: int = 0
    """How many messages come before these: they are those of the request before it, or of the history."""
    setup: RequestSetup | None = None
    """The settings and tools as the model gets them; `None` if they are those of the request before it."""
    setup_digest: str = ""
    """A digest of the settings and tools."""
    type: Literal["request_started"] = field(default="request_started", init=False)


@dataclass(frozen=True, kw_only=True)
class RequestEnded(_RequestEvent):
    """A request to a worker's model was answered, or failed."""

    duration: float
    """Seconds since it was sent."""
    response: ModelResponse | None = None
    """The response, or as much of it as there is."""
    usage: RequestUsage | None = None
    """The usage; `None` where it failed."""
    spent: Sequence[ModelUsage] = ()
    """The usage by model: of failed attempts, if the model tries several models, and of the answer."""
    restored: bool = False
    """Whether the response is one of an earlier run, so that nothing was spent."""
    error: str | None = None
    """The error, if there is no answer, or only a part of it."""
    cut_off: str | None = None
    """The cause, if the answer was cut off."""
    type: Literal["request_ended"] = field(default="request_ended", init=False)


@dataclass(frozen=True, kw_only=True)
class TextDelta(_CallEvent):
    """A piece of a worker's answer, while it is being written. Only with `Runtime(text_deltas=True)`."""

    text: str
    thinking: bool = False
    """Whether the model is thinking rather than answering."""
    type: Literal["text_delta"] = field(default="text_delta", init=False)


@dataclass(frozen=True, kw_only=True)
class Notice(_CallEvent):
    """A warning about a call, which goes on. Each text is sent once in a session."""

    text: str
    type: Literal["notice"] = field(default="notice", init=False)


@dataclass(frozen=True, kw_only=True)
class CallProgress(_CallEvent):
    """A server reports the progress of a call. The text is the server's own: truncated, and not to be trusted."""

    progress: float
    total: float | None = None
    message: str | None = None
    type: Literal["progress"] = field(default="progress", init=False)


@dataclass(frozen=True, kw_only=True)
class CallClosed(_CallEvent):
    """A call returned, failed, or was refused or cancelled."""

    kind: str
    output: Any
    error: str | None
    error_type: str | None = None
    """The name of the error's class."""
    state: CallState = "ok"
    """How it ended. A dropped call left a thread that could not be stopped, and its result is discarded."""
    cost: Decimal | None = None
    """The price of the call's own requests in US dollars, where it is known."""
    requests: Sequence[RequestUsage] = ()
    """The usage of each of the call's own requests."""
    restored: bool = False
    """Whether the answer is one of an earlier run, and nothing ran."""
    spent: Sequence[ModelUsage] = ()
    """The usage in that run, by model."""
    duration: float
    """Seconds, without those for which a person was asked."""
    usage: RunUsage | None
    waited: float = 0.0
    """Seconds for which a person was asked, about this call or one below it."""
    failure: str | None = None
    """The failure that the result of a returned call reports: the exit code of a command."""
    cut_off: str | None = None
    """The cause, if an answer of the model was cut off."""
    type: Literal["call_closed"] = field(default="call_closed", init=False)


@dataclass(frozen=True, kw_only=True)
class ScopeOpened(_CallerEvent):
    """A conversation with a worker begins. Its turns are calls."""

    history: Sequence[ModelMessage] = ()
    """The messages that it was started with."""
    type: Literal["scope_opened"] = field(default="scope_opened", init=False)


@dataclass(frozen=True, kw_only=True)
class ScopeClosed(_CallerEvent):
    """A conversation is over."""

    type: Literal["scope_closed"] = field(default="scope_closed", init=False)


Event: TypeAlias = (
    ScopeOpened
    | CallRejected
    | CallOpened
    | ApprovalRequested
    | ApprovalDecided
    | CallStarted
    | RequestStarted
    | MessageLogged
    | TextDelta
    | RequestEnded
    | Notice
    | CallProgress
    | CallClosed
    | ScopeClosed
)
"""An event of a session. The `type` says which it is."""

PAYLOAD = frozenset(
    (
        *("arguments", "attachments", "cases", "error", "failure", "history", "message", "messages", "outcome"),
        *("output", "reason", "response", "setup", "text"),
    )
)
"""The fields of events that users, models and tools write, which may have secrets. The record needs all others."""
