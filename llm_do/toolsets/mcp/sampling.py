"""Sampling: during a tool call, an MCP server asks the model of the worker.

Each request is a call below the tool call, with rules, budgets and a record. Its text is not trusted. The server cannot
choose the model and sees nothing of the conversation.
"""

from __future__ import annotations

from typing import Any, cast

from pydantic_ai import RunContext
from pydantic_ai.messages import ModelMessage, ModelMessagesTypeAdapter, ModelResponse
from pydantic_ai.models import ModelRequestParameters
from pydantic_ai.settings import ModelSettings

from ...arguments.inputs import OpenParameters
from ...budgets.ledger import DEFAULT_OUTPUT_TOKENS
from ...budgets.limits import full_name
from ...core.context import Context
from ...core.entry import EntryBase
from ...core.frame import CallFrame, RequestFrame
from ...core.metering import metered
from ...errors import ArgumentError, NoWorkerError
from ...policy.plan import Plan
from ...policy.rules import Case


class SamplingEntry(EntryBase):
    """One request of a server to the worker's model."""

    kind = "tool"
    name = "sampling"
    rule = "mcp.sampling"
    requires_approval = True
    needs_run_context = False

    def __init__(self, server: str, messages: list[ModelMessage], settings: ModelSettings) -> None:
        self.parameters = OpenParameters(self.name)
        self.identity = ("mcp.sampling", server)
        self._server = server
        self._messages = messages
        self._settings = settings

    @property
    def arguments(self) -> dict[str, Any]:
        """Return the request as a person sees it, and as the record has it."""
        dumped = ModelMessagesTypeAdapter.dump_python(self._messages, mode="json")
        parts = [_server_part(part) for message in dumped for part in message["parts"]]
        return {"server": self._server, "messages": parts, "max_tokens": self._settings.get("max_tokens")}

    async def check_arguments(self, arguments: dict[str, Any], ctx: Context) -> None:
        """Refuse arguments that a person edited: the model gets what the server wrote."""
        if arguments != self.arguments:
            raise ArgumentError("the request of a server cannot be edited. Approve it as it is, or refuse it.")

    def plan(self, arguments: dict[str, Any], frame: CallFrame) -> Plan:
        """Return the plan of the request. Rules judge its server and its length, not its messages."""
        return Plan(cases=(Case({"server": self._server, "max_tokens": self._settings.get("max_tokens")}),))

    async def call(self, input_data: dict[str, Any], ctx: Context, run_ctx: RunContext[Context]) -> ModelResponse:
        """Ask the worker's model, within the budgets of the call."""
        worker, frame = ctx.frame.worker, ctx.frame
        if worker is None or worker.model is None or not isinstance(frame, RequestFrame):
            raise NoWorkerError("There is no running worker, so there is no model to ask.")
        model = metered(worker.model, ctx.runtime, frame)
        limits: Any = getattr(worker.entry, "model_settings", None) or {}
        most: int = limits.get("max_tokens") or getattr(model, "default_max_tokens", DEFAULT_OUTPUT_TOKENS)
        tokens = min(max(1, self._settings.get("max_tokens") or most), most)
        settings = cast(ModelSettings, {**self._settings, "max_tokens": tokens})
        frame.recorded.model = full_name(model.system, model.model_name)
        return await model.request(self._messages, settings, ModelRequestParameters())


_SERVER_KEYS = ("tool_name", "args", "content")


def _server_part(part: dict[str, Any]) -> dict[str, Any]:
    """Return what the server wrote in a part of a message."""
    values = {name: value for name, value in part.items() if name in _SERVER_KEYS}
    return {"role": part["part_kind"].removesuffix("-prompt"), **values}
