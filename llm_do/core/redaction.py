"""Calls as the record and a person see them: their arguments, and the responses that ask for them, without secrets."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from contextlib import suppress
from copy import copy
from dataclasses import replace
from operator import is_
from typing import Any

from pydantic_ai.messages import BaseToolCallPart, ModelMessage, ModelResponse, RetryPromptPart, ToolCallPart

from ..errors import ArgumentError
from ..policy.requests import ApprovalRequest
from ..policy.rules import Case
from ..privacy.secret_fields import DELEGATED, HIDDEN, SecretFields, delegated_secret_fields
from ..privacy.secrets import Secrets
from ..values.canonical import is_same
from ..values.snapshots import snapshot
from ..values.texts import safe_repr
from .adapt import adapt
from .entry import Entry, EntryBase
from .frame import CallFrame, RequestFrame


class Redaction:
    """Hides the secrets of calls: fields that entries declare secret, and values known as secret."""

    def __init__(self, secrets: Secrets, entries: Mapping[str, Entry[Any]]) -> None:
        self._secrets = secrets
        self._entries = entries

    def secret_fields(self, declared: SecretFields | None, arguments: Any) -> SecretFields | None:
        """Return the secret fields of arguments. A delegation has those of the worker that its arguments name."""
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
        secret_fields = self.secret_fields(frame.entry.secret_fields, arguments)
        if secret_fields is not None:
            try:
                arguments = secret_fields.split(arguments)[0]
            except Exception:  # of a class that cannot be taken apart: no other arguments may have the same key
                arguments = dict.fromkeys(arguments, object())
        return arguments

    def without_configured(self, value: Any) -> Any:
        """Return a value without the secrets of the environment, which no result of a tool may bring to a model."""
        configured = self._secrets.configured
        return value if configured is None else configured.redact(value)

    def for_model(self, value: Any) -> Any:
        """Return a value without any secret, for a model that gets it from another model, or from a server."""
        return self._secrets.redact(value)

    def question(self, request: ApprovalRequest) -> ApprovalRequest:
        """Return a question without secrets, and without offers that cannot be shown in full because of one."""
        if not self._secrets.active:
            return request
        shown: ApprovalRequest = self._secrets.redact(replace(request, offers=()))
        offers = tuple(offer for offer in request.offers if self._secrets.text(offer.text) == offer.text)
        return replace(shown, offers=offers)

    def visible_cases(self, frame: CallFrame, cases: Sequence[Case]) -> tuple[Case, ...]:
        """Return a copy of the judged cases of a call, without its secret arguments."""
        declared = frame.entry.secret_fields
        if declared is None or declared is DELEGATED:
            return tuple(snapshot(cases))
        visible = frame.recorded.input_data
        return tuple(
            replace(case, facts={name: visible.get(name, HIDDEN) for name in case.facts}) for case in snapshot(cases)
        )

    def visible_messages(
        self, frame: RequestFrame, messages: Sequence[ModelMessage], *, unknown_tools: bool = False
    ) -> tuple[ModelMessage, ...]:
        """Return messages as they may be recorded. `unknown_tools` hides the arguments of such tools: in a history."""
        return tuple(self.visible_message(frame, message, unknown_tools=unknown_tools) for message in messages)

    def visible_message(
        self, frame: RequestFrame, message: ModelMessage, *, unknown_tools: bool = False
    ) -> ModelMessage:
        parts: Any
        if isinstance(message, ModelResponse):
            parts = [self._visible_call(frame, part, unknown_tools=unknown_tools) for part in message.parts]
        else:
            parts = [self._without_input(frame, part) for part in message.parts]
        return message if all(map(is_, parts, message.parts)) else replace(message, parts=parts)

    def _without_input(self, frame: RequestFrame, part: Any) -> Any:
        """Return a retry prompt without the arguments that did not fit, if the tool has secrets."""
        is_retry = isinstance(part, RetryPromptPart) or getattr(part, "outcome", None) == "retried"
        if not is_retry or not isinstance(part.content, list) or self._declared_by(frame, part.tool_name) is None:
            return part
        part = copy(part)
        part.content = [{**each, "input": HIDDEN} if isinstance(each, dict) else each for each in part.content]
        return part

    def _visible_call(self, frame: RequestFrame, part: Any, *, unknown_tools: bool) -> Any:
        """Return a part of a response without the secret arguments of the call that it asks for."""
        if not isinstance(part, BaseToolCallPart) or not part.args:
            return part
        declared = self._declared_by(frame, part.tool_name)
        if declared is not None or self._secrets.active:
            # A response is logged before its calls are made: here their values become known as secret.
            args: Any = self._visible_args(part.args, declared)
            part = replace(part, args=args)
        if unknown_tools and isinstance(part, ToolCallPart) and not self._is_known(frame, part.tool_name):
            part = replace(part, args=_hide_all(part.args))
        return part

    def hide_unfit_arguments(self, frame: RequestFrame, tool: str, arguments: Any) -> Any:
        """Return the arguments of a call that does not fit its tool, only by name if a secret may be in any place."""
        return arguments if self._declared_by(frame, tool) is None else _hide_all(arguments)

    def _entry_of(self, frame: RequestFrame, tool: str) -> EntryBase | None:
        """Return the entry of the worker, or of the project, that a tool calls."""
        own_entries = frame.entry.own_entries
        with suppress(Exception):  # an error in that worker is reported when it is called
            return adapt(own_entries[tool] if tool in own_entries else self._entries[tool])
        return None

    def _is_known(self, frame: RequestFrame, tool: str) -> bool:
        return tool in frame.conversation.tools or self._entry_of(frame, tool) is not None

    def _declared_by(self, frame: RequestFrame, tool: str | None) -> SecretFields | None:
        if tool is None:
            return None
        definition, is_own = frame.conversation.tools.get(tool), tool in frame.entry.own_entries
        entry = self._entry_of(frame, tool) if is_own or definition is None else None
        declared = None if entry is None else entry.secret_fields
        if definition is None or declared is DELEGATED or (is_own and declared is None):
            return declared
        return SecretFields.of(definition.parameters_json_schema)  # the model may know its fields by other names

    def restore_secrets(
        self, frame: CallFrame, original: dict[str, Any], edited: dict[str, Any]
    ) -> tuple[dict[str, Any], set[str]]:
        """Return arguments that a person edited, the unchanged ones with their secrets, and the names of these."""
        visible = self.visible_arguments(frame, original)
        unchanged = {name for name in edited.keys() & visible.keys() if is_same(edited[name], visible[name])}
        for name in (edited.keys() & visible.keys()) - unchanged:
            if all(HIDDEN[:-1] in safe_repr(value) for value in (visible[name], edited[name])):
                raise ArgumentError(f"{name!r} has a secret that is not shown: leave it alone, or replace all of it.")
        return {name: original[name] if name in unchanged else value for name, value in edited.items()}, unchanged

    def _visible_args(self, args: Any, declared: SecretFields | None) -> str | dict[str, Any]:
        if not isinstance(args, str):
            return self._without_secrets(args, declared)
        arguments: Any = None
        with suppress(ValueError):
            arguments = json.loads(args)
        if not isinstance(arguments, dict):  # a text in which secrets cannot be located
            if declared is not None and args.lstrip().startswith("{"):  # broken JSON, which errors quote
                self._secrets.learn([args])
            return HIDDEN if declared is not None else args
        visible = self._without_secrets(arguments, declared)
        return args if visible == arguments else json.dumps(visible, ensure_ascii=False)

    def _without_secrets(self, arguments: Mapping[str, Any], declared: SecretFields | None) -> dict[str, Any]:
        secret_fields = self.secret_fields(declared, arguments)
        visible = self._secrets.arguments(arguments, secret_fields)
        return visible if secret_fields is None else secret_fields.hide_forbidden(visible)


def _hide_all(arguments: Any) -> Any:
    return dict.fromkeys(arguments, HIDDEN) if isinstance(arguments, dict) else HIDDEN
