"""The conversation of a worker with its model, which a chat keeps over all turns, and the calls that it asks for."""

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
    """A worker and its model: what lives over all turns of a chat."""

    is_closed = False
    """Whether its end is recorded."""
    scope: Any = None
    """The `CallScope` whose turns the frame carries, if any."""
    messages: Sequence[ModelMessage] = ()
    """The messages so far."""
    sent_history: SentHistory | None = None
    """The same without secrets, where a session has any."""
    sent_messages: Sequence[ModelMessage] = ()
    """The messages of the last request."""
    recorded_messages: Sequence[ModelMessage] = ()
    """The same as they were then, where anything listens."""
    logged_parts: Sequence[ModelRequestPart] = ()
    """The parts of the last request in the message log."""
    tools: Mapping[str, ToolDefinition] = MappingProxyType({})
    """The tools that its models were offered so far, by name."""
    setup: tuple[RequestSetup, str] | None = None
    """The settings and tools of the last request, with their digest."""
    sandbox: SandboxToolset | None = None
    """The files of the worker, while its scope is open."""


class AskedCall(NamedTuple):
    """A call that a model's response asks for, and that was not made yet."""

    name: str
    tool_call_id: str
    place: tuple[int, int]
    """The number of the request, and the position among the calls of its response."""
    arguments: Any
