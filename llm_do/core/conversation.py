"""The conversation of a worker with its model, and the calls that the model asks for."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any, NamedTuple

from pydantic_ai.messages import ModelMessage, ModelRequestPart
from pydantic_ai.tools import ToolDefinition

from ..privacy.histories import SentHistory
from ..sandbox import SandboxToolset
from .events import RequestSetup


class Conversation:
    """The data of a worker that a chat keeps over all turns."""

    is_closed = False
    """Whether its end is recorded."""
    scope: Any = None
    """The `CallScope`, if the call is a turn of one."""
    messages: Sequence[ModelMessage] = ()
    sent_history: SentHistory | None = None
    """The messages without secrets, if the session has any secrets."""
    sent_messages: Sequence[ModelMessage] = ()
    """The messages of the last request."""
    recorded_messages: Sequence[ModelMessage] = ()
    """A copy of them from that time, if anything listens."""
    logged_parts: Sequence[ModelRequestPart] = ()
    """The parts of the last request in the message log."""
    tools: Mapping[str, ToolDefinition] = MappingProxyType({})
    """All tools that its models were offered so far, by name."""
    setup: tuple[RequestSetup, str] | None = None
    """The settings and tools of the last request, with their digest."""
    sandbox: SandboxToolset | None = None
    """The files of the worker, while its scope is open."""


class AskedCall(NamedTuple):
    """A call that a model's response asks for, and that is not made yet."""

    name: str
    tool_call_id: str
    place: tuple[int, int]
    """The number of the request, and the position among the calls of its response."""
    arguments: Any
