"""What sinks are told: plain data, tagged by `type`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias

from pydantic_ai.messages import ModelMessage, MultiModalContent
from pydantic_ai.usage import RequestUsage, RunUsage

from ..policy.requests import ApprovalOutcome


@dataclass(slots=True, frozen=True, kw_only=True)
class _CallEvent:
    """Which call an event belongs to."""

    call_id: int
    """The `id` of its record in the trace."""
    parent_id: int | None
    """That of the call that made it; `None` at the top."""
    name: str
    """The name of the entry that was called."""
    worker: str | None
    """The worker at work: the entry itself, or the nearest worker above it."""
    depth: int
    """How deep it is nested; 0 at the top."""


@dataclass(slots=True, frozen=True, kw_only=True)
class CallOpened(_CallEvent):
    """A call was made. It may still be refused."""

    kind: str
    arguments: Any
    attachments: Sequence[MultiModalContent] = ()
    """The files that go to a worker beside its arguments."""
    type: Literal["call_opened"] = field(default="call_opened", init=False)


@dataclass(slots=True, frozen=True, kw_only=True)
class ApprovalRequested(_CallEvent):
    """Somebody is being asked whether the call may run."""

    arguments: Any
    reason: str
    count: int = 1
    """The number of identical calls that wait for the answer, this one included."""
    type: Literal["approval_requested"] = field(default="approval_requested", init=False)


@dataclass(slots=True, frozen=True, kw_only=True)
class ApprovalDecided(_CallEvent):
    """The approval of the call is decided."""

    outcome: ApprovalOutcome
    type: Literal["approval_decided"] = field(default="approval_decided", init=False)


@dataclass(slots=True, frozen=True, kw_only=True)
class MessageLogged(_CallEvent):
    """A worker and its model exchanged a message."""

    message: ModelMessage
    type: Literal["message"] = field(default="message", init=False)


@dataclass(slots=True, frozen=True, kw_only=True)
class RequestStarted(_CallEvent):
    """A request is sent to a worker's model."""

    model: str
    """The model, as `provider:model`."""
    type: Literal["request_started"] = field(default="request_started", init=False)


@dataclass(slots=True, frozen=True, kw_only=True)
class RequestEnded(_CallEvent):
    """A request to a worker's model was answered, or failed."""

    model: str
    """The model, as `provider:model`: the one that answered, where the provider says which."""
    duration: float
    """Seconds since it was sent."""
    usage: RequestUsage | None = None
    """The usage; `None` where it failed."""
    error: str | None = None
    """Why there is no answer, or not all of one, if so."""
    cut_off: str | None = None
    """The cause, if the answer was cut off."""
    type: Literal["request_ended"] = field(default="request_ended", init=False)


@dataclass(slots=True, frozen=True, kw_only=True)
class TextDelta(_CallEvent):
    """A piece of a worker's answer, while it is being written. Only with `Runtime(text_deltas=True)`."""

    text: str
    thinking: bool = False
    """Whether the model is thinking rather than answering."""
    type: Literal["text_delta"] = field(default="text_delta", init=False)


@dataclass(slots=True, frozen=True, kw_only=True)
class Notice(_CallEvent):
    """Something that a person should know about a call, and that stops nothing. Each is given once in a session."""

    text: str
    type: Literal["notice"] = field(default="notice", init=False)


@dataclass(slots=True, frozen=True, kw_only=True)
class CallProgress(_CallEvent):
    """The server that works on a call says how far it is. It wrote the text, which is cut and cannot be trusted."""

    progress: float
    total: float | None = None
    message: str | None = None
    type: Literal["progress"] = field(default="progress", init=False)


@dataclass(slots=True, frozen=True, kw_only=True)
class CallClosed(_CallEvent):
    """A call returned, failed, or was refused or cancelled."""

    kind: str
    output: Any
    error: str | None
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


Event: TypeAlias = (
    CallOpened
    | ApprovalRequested
    | ApprovalDecided
    | RequestStarted
    | MessageLogged
    | TextDelta
    | RequestEnded
    | Notice
    | CallProgress
    | CallClosed
)
"""What a sink is told. The `type` says which it is."""
