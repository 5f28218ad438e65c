"""Secret parts of data: of arguments, as their JSON Schema marks them, and of the settings of requests, by name."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import lru_cache
from typing import Any

from pydantic import GetJsonSchemaHandler
from pydantic_core import CoreSchema

from ..values.canonical import SameObject
from ..values.fields import Fields, alias_map, parts_of, replace_items
from ..values.json_schema import COMBINATIONS, CONTENTS, follow, leaves

HIDDEN = "[secret]"
_OF_ONE_VALUE = (*COMBINATIONS, "contentSchema")


class Secret:
    """Marks a parameter whose value must not be recorded or shown: `token: Annotated[str, Secret]`."""

    @classmethod
    def __get_pydantic_json_schema__(cls, schema: CoreSchema, handler: GetJsonSchemaHandler) -> dict[str, Any]:
        return {**handler(schema), "format": "password", "writeOnly": True}


class SecretFields:
    """The secret parts of arguments, from a JSON Schema."""

    def __init__(self, schema: dict[str, Any]) -> None:
        self._root = schema
        self.any = self._has_secrets(schema)

    @staticmethod
    def of(schema: dict[str, Any]) -> SecretFields | None:
        """Return the secret fields of a schema, if it has any. The result is cached."""
        return _secret_fields_of(SameObject(schema))

    def has_secret_in(self, name: Any) -> bool:
        """Return whether an argument, or a part of it, is secret."""
        return _is_secret_schema(self._root) or any(map(self._has_secrets, _property([self._root], [name])))

    def split(self, arguments: Mapping[str, Any]) -> tuple[dict[str, Any], list[Any]]:
        """Return the arguments without secret values, and these values."""
        if any(map(_is_secret_schema, follow(self._root, [self._root], _OF_ONE_VALUE))):
            return dict.fromkeys(arguments, HIDDEN), list(arguments.values())
        secret: list[Any] = []
        visible = dict(self._split([self._root], arguments, secret))
        parts = list(follow(self._root, [self._root]))
        for name, value in visible.items():
            # The schema of a lone model has its fields, and PydanticAI puts it under the name of its parameter.
            schemas = [part for part in _property(parts, [name]) if part is True or isinstance(part, dict)]
            kinds = [str(leaf.get("type", "object")) for schema in schemas for leaf in leaves(self._root, schema)]
            if not kinds or not (isinstance(value, str) or any("object" in kind for kind in kinds)):
                visible[name] = self._split([self._root], value, secret)
        return visible, secret

    def hide_forbidden(self, arguments: dict[str, Any]) -> dict[str, Any]:
        """Return arguments without the values of those that the schema forbids: a secret may have a wrong name."""
        if self._root.get("additionalProperties") is not False or "patternProperties" in self._root:
            return arguments
        declared = _dict(self._root, "properties")
        return {name: value if name in declared else HIDDEN for name, value in arguments.items()}

    def _split(self, schemas: Iterable[Any], value: Any, secret: list[Any]) -> Any:
        parts = [part for part in follow(self._root, schemas, _OF_ONE_VALUE) if part]
        if value is None or not parts:
            return value
        if any(_is_secret_schema(part) for part in parts):
            secret.append(value)
            return HIDDEN
        if isinstance(value, str) and value.lstrip().startswith(("{", "[")) and any(map(self._has_secrets, parts)):
            return self._hide_text(parts, value, secret)
        container = parts_of(value)
        aliases = alias_map(type(value)) if isinstance(container, Fields) else {}
        has_names = isinstance(container, Fields | Mapping)

        def split(key: Any, item: Any) -> Any:
            # An extra value with the name of a field may be meant for it, and is hidden like it.
            inner = _property(parts, [key, *aliases.get(key, ())]) if has_names else _item(parts, key)
            return self._split(inner, item, secret)

        result = replace_items(value, split)
        return value if result is None else result

    def _hide_text(self, schemas: Sequence[Any], text: str, secret: list[Any]) -> str:
        """Hide a text in place of an object with secret fields. It may be JSON, perhaps broken."""
        secret.append(text)
        with suppress(ValueError):
            self._split(schemas, json.loads(text), secret)
        return HIDDEN

    def _has_secrets(self, schema: Any) -> bool:
        return any(map(_is_secret_schema, follow(self._root, [schema], (*_OF_ONE_VALUE, *CONTENTS))))


@lru_cache(maxsize=1024)
def _secret_fields_of(schema: SameObject) -> SecretFields | None:
    fields = SecretFields(schema.target) if isinstance(schema.target, dict) else None
    return fields if fields is not None and fields.any else None


def _is_secret_schema(schema: Mapping[str, Any]) -> bool:
    return schema.get("writeOnly") is True or schema.get("format") == "password"


# A schema may come from anywhere, and say anything.
def _dict(schema: Mapping[str, Any], key: str) -> dict[str, Any]:
    return value if isinstance(value := schema.get(key), dict) else {}


def _property(parts: Sequence[Mapping[str, Any]], names: Sequence[Any]) -> Iterator[Any]:
    for part in parts:
        properties = _dict(part, "properties")
        matches = [properties[name] for name in names if name in properties]
        yield from matches or [part.get("additionalProperties")]
        yield from _dict(part, "patternProperties").values()


def _item(parts: Sequence[Mapping[str, Any]], index: int) -> Iterator[Any]:
    for part in parts:
        first, rest = part.get("prefixItems"), part.get("items")
        if isinstance(rest, list):  # in older drafts
            first, rest = rest, part.get("additionalItems")
        yield first[index] if isinstance(first, list) and index < len(first) else rest


DELEGATED = SecretFields({})
"""Stands for the secret fields of the called worker, whose arguments are a parameter of `worker_call`."""


def delegated_secret_fields(schema: dict[str, Any]) -> SecretFields | None:
    """Return the secret fields of `worker_call`, for a worker whose parameters have a schema."""
    inner = {key: value for key, value in schema.items() if key != "$defs"}
    secret_fields = SecretFields({"properties": {"input_data": inner}, "$defs": schema.get("$defs", {})})
    return secret_fields if secret_fields.any else None


_names_a_secret = re.compile(
    r"(^|[_-]|(?<=[a-z0-9])(?=[A-Z]))(?i:api_?key|key|token|secret|password|authorization|credentials?)$"
).search


def hide_credentials(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return settings without credentials, to record and digest: a new key does not make them other settings."""
    hidden = dict(settings)
    if isinstance(headers := hidden.get("extra_headers"), dict):
        hidden["extra_headers"] = dict.fromkeys(headers, HIDDEN)
    for name in ("extra_body", "extra_query"):
        if name in hidden:
            hidden[name] = hide_keys(hidden[name])
    return hidden


def hide_keys(data: Any) -> Any:
    """Return JSON data without the values under names of credentials."""
    if isinstance(data, dict):
        return {key: HIDDEN if _names_a_secret(str(key)) else hide_keys(item) for key, item in data.items()}
    return [hide_keys(item) for item in data] if isinstance(data, list) else data
