"""Calls as the record and a person see them: their arguments, and the responses that ask for them, without secrets."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any

from pydantic_ai.messages import BaseToolCallPart, ModelMessage, ModelResponse
from pydantic_ai.tools import ToolDefinition

from ..errors import ArgumentError
from ..policy.requests import ApprovalRequest
from ..privacy.secret_fields import DELEGATED, HIDDEN, SecretFields, delegated_secret_fields
from ..privacy.secrets import Secrets
from ..values.canonical import is_same
from ..values.texts import safe_repr
from .adapt import adapt
from .entry import Entry
from .frame import CallFrame


class Redaction:
    """Hides the secrets of calls: the fields that their entries declare secret, and values known as secret.

    Inside of a session values stay whole: a tool gets its secret. They are filtered at three doors: on the way into the
    record (`Recorder`, `Stream`), to a person (`question`), and to a model (`for_model`, `without_configured`).
    """

    def __init__(self, secrets: Secrets, entries: Mapping[str, Entry[Any]]) -> None:
        self._secrets = secrets
        self._entries = entries

    def secret_fields(self, declared: SecretFields | None, arguments: Any) -> SecretFields | None:
        """Return the secret fields of these very arguments: a delegation has those of the worker that it names."""
        if declared is not DELEGATED:
            return declared
        with suppress(Exception):  # an error in that worker is reported when it is called
            return delegated_secret_fields(adapt(self._entries[arguments["worker"]]).parameters.json_schema)
        return None

    def visible_arguments(self, frame: CallFrame, arguments: dict[str, Any]) -> dict[str, Any]:
        """Return the arguments of a call, or a view of them, as they may be recorded and shown."""
        secret_fields = self.secret_fields(frame.entry.secret_fields, arguments)
        is_open = secret_fields is None and not self._secrets.active
        return arguments if is_open else self._secrets.arguments(arguments, secret_fields)

    def without_declared(self, frame: CallFrame, arguments: Any) -> Any:
        """Return arguments without the secrets known before the run: declared fields and configured values."""
        secret_fields = self.secret_fields(frame.entry.secret_fields, arguments)
        if secret_fields is not None:
            try:
                arguments = secret_fields.split(arguments)[0]
            except Exception:  # of a class that cannot be taken apart: what stands for it is equal to nothing
                arguments = dict.fromkeys(arguments, object())
        return self.without_configured(arguments)

    def without_configured(self, value: Any) -> Any:
        """Return a value without the secrets of the environment, which no tool's result may bring to a model."""
        configured = self._secrets.configured
        return value if configured is None else configured.redact(value)

    def for_model(self, value: Any) -> Any:
        """Return a value without any secret, for a model that is sent it by another one, or by a server."""
        return self._secrets.redact(value)

    def question(self, request: ApprovalRequest) -> ApprovalRequest:
        """Return a question without secrets. An offer that has one cannot be shown in full, and is left out."""
        if not self._secrets.active:
            return request
        shown: ApprovalRequest = self._secrets.redact(replace(request, offers=()))
        offers = tuple(offer for offer in request.offers if self._secrets.text(offer.text) == offer.text)
        return replace(shown, offers=offers)

    def visible_messages(
        self, frame: CallFrame, messages: Sequence[ModelMessage], tools: Sequence[ToolDefinition] = ()
    ) -> tuple[ModelMessage, ...]:
        """Return messages as they may be recorded. Secrets of a history become known here."""
        filtered = self.visible_response
        return tuple(filtered(each, tools, frame) if isinstance(each, ModelResponse) else each for each in messages)

    def restore_secrets(
        self, frame: CallFrame, original: dict[str, Any], edited: dict[str, Any]
    ) -> tuple[dict[str, Any], set[str]]:
        """Return arguments that a person edited without seeing their secrets, and the names of unchanged ones.

        Unchanged arguments have their original values, with their secrets.
        """
        visible = self.visible_arguments(frame, original)
        unchanged = {name for name in edited.keys() & visible.keys() if is_same(edited[name], visible[name])}
        for name in (edited.keys() & visible.keys()) - unchanged:
            if all(HIDDEN[:-1] in safe_repr(value) for value in (visible[name], edited[name])):
                raise ArgumentError(f"{name!r} has a secret that is not shown: leave it alone, or replace all of it.")
        return {name: original[name] if name in unchanged else value for name, value in edited.items()}, unchanged

    def visible_response(
        self, response: ModelResponse, tools: Sequence[ToolDefinition], frame: CallFrame
    ) -> ModelResponse:
        """Return a response without the secret arguments of the calls that it asks for.

        It is logged before the calls are made, so this is where their values become known as secret.
        """
        names = {part.tool_name for part in response.parts if isinstance(part, BaseToolCallPart)}
        if not names and not self._secrets.active:
            return response
        declared = self._declared_by_tools(names, tools, frame)
        if not self._secrets.active and not any(declared.values()):
            return response
        parts: list[Any] = []
        for part in response.parts:
            if isinstance(part, BaseToolCallPart) and part.args:
                args: Any = self._visible_args(part.args, declared.get(part.tool_name))
                parts.append(replace(part, args=args))
            else:
                parts.append(part)
        return replace(response, parts=parts)

    def _declared_by_tools(
        self, names: set[str], tools: Sequence[ToolDefinition], frame: CallFrame
    ) -> dict[str, SecretFields | None]:
        """Return the declared secret fields of the tools that are called."""
        own_entries, declared = frame.entry.own_entries, dict[str, SecretFields | None]()
        for tool in tools:
            if tool.name not in names:
                continue
            entry = adapt(own_entries[tool.name]) if tool.name in own_entries else None
            if entry is not None and (entry.secret_fields is None or entry.secret_fields is DELEGATED):
                declared[tool.name] = entry.secret_fields
            else:  # the schema that a model gets may have other names
                declared[tool.name] = SecretFields.of(tool.parameters_json_schema)
        for name in names & own_entries.keys() - declared.keys():  # of a history, whose tools are not on offer
            declared[name] = adapt(own_entries[name]).secret_fields
        return declared

    def _visible_args(self, args: Any, declared: SecretFields | None) -> str | dict[str, Any]:
        if not isinstance(args, str):
            return self._secrets.arguments(args, self.secret_fields(declared, args))
        try:
            arguments = json.loads(args)
        except ValueError:
            arguments = None
        if not isinstance(arguments, dict):  # a text whose secrets cannot be located
            return HIDDEN if declared is not None else args
        visible = self._secrets.arguments(arguments, self.secret_fields(declared, arguments))
        return args if visible == arguments else json.dumps(visible, ensure_ascii=False)
