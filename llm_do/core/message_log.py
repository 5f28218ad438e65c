"""The messages between workers and their models, as they are written down: without marked arguments."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from pydantic_ai.messages import BaseToolCallPart, ModelMessage, ModelRequest, ModelResponse
from pydantic_ai.tools import ToolDefinition

from ..privacy.secret_fields import DELEGATED, HIDDEN, SecretFields
from ..privacy.secrets import Secrets
from .adapt import adapt
from .frame import CallFrame


def find_new_parts(frame: CallFrame, request: ModelRequest) -> ModelRequest | None:
    """Return what a request has that the one before it did not have; `None` if that is nothing.

    PydanticAI merges the end of one turn with the prompt of the next.
    """
    before, frame.last_request = frame.last_request, list(request.parts)
    if not before:
        return request
    new = [part for part in request.parts if not any(part is known for known in before)]
    if len(new) == len(request.parts):
        return request
    return replace(request, parts=new) if new else None


class ResponseFilter:
    """Takes marked arguments out of responses: they are logged before the calls that they ask for are made.

    So this is where the values become known.
    """

    def __init__(self, secrets: Secrets, secret_fields: Any) -> None:
        self._secrets = secrets
        self._secret_fields = secret_fields
        """Returns the secret fields that hold for very arguments."""

    def without_marked(
        self, response: ModelResponse, tools: Sequence[ToolDefinition], frame: CallFrame
    ) -> ModelResponse:
        """Return a response without the marked arguments of the calls that it asks for."""
        names = {part.tool_name for part in response.parts if isinstance(part, BaseToolCallPart)}
        if not names and not self._secrets.active:
            return response
        marked = self._find_marked(names, tools, frame)
        if not self._secrets.active and not any(marked.values()):
            return response
        parts: list[Any] = []
        for part in response.parts:
            if isinstance(part, BaseToolCallPart) and part.args:
                args: Any = self._hide(part.args, marked.get(part.tool_name))
                parts.append(replace(part, args=args))
            else:
                parts.append(part)
        return replace(response, parts=parts)

    def _find_marked(
        self, names: set[str], tools: Sequence[ToolDefinition], frame: CallFrame
    ) -> dict[str, SecretFields | None]:
        """Return the secret fields of the tools that are called."""
        own, found = frame.called.own_entries, dict[str, SecretFields | None]()
        for tool in tools:
            if tool.name not in names:
                continue
            entry = adapt(own[tool.name]) if tool.name in own else None
            if entry is not None and (entry.secret_fields is None or entry.secret_fields is DELEGATED):
                found[tool.name] = entry.secret_fields
            else:  # what a model is told may have other names
                found[tool.name] = SecretFields.of(tool.parameters_json_schema)
        for name in names & own.keys() - found.keys():  # of a history, whose tools are not on offer
            found[name] = adapt(own[name]).secret_fields
        return found

    def _hide(self, args: Any, secret_fields: SecretFields | None) -> str | dict[str, Any]:
        if not isinstance(args, str):
            return self._secrets.arguments(args, self._secret_fields(secret_fields, args))
        try:
            given = json.loads(args)
        except ValueError:
            given = None
        if not isinstance(given, dict):  # nothing that can be told apart
            return HIDDEN if secret_fields is not None else args
        shown = self._secrets.arguments(given, self._secret_fields(secret_fields, given))
        return args if shown == given else json.dumps(shown, ensure_ascii=False)


def messages_after_last_response(messages: Sequence[ModelMessage]) -> Sequence[ModelMessage]:
    """Return the results of tools that no model was sent."""
    end = len(messages)
    while end and isinstance(messages[end - 1], ModelRequest):
        end -= 1
    return messages[end:]
