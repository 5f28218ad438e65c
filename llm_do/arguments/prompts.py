"""Prompts of worker calls: files, and the arguments as text or JSON, or as the worker's input type writes them."""

from __future__ import annotations

import dataclasses
import inspect
import mimetypes
from collections.abc import Mapping, Sequence
from pathlib import Path, PurePath, PurePosixPath
from typing import Any, Protocol, TypeAlias, runtime_checkable
from urllib.parse import urlsplit

from pydantic import BaseModel, SecretBytes, SecretStr
from pydantic_ai import BinaryContent
from pydantic_ai.messages import MULTI_MODAL_CONTENT_TYPES, MultiModalContent, UserContent

from ..errors import PromptError
from ..privacy.secret_fields import HIDDEN
from ..values.fields import separate_extra
from ..values.texts import is_blank, is_none_or_blank, json_text, quote, text_of

NO_INPUT = "Do what your instructions say."
"""The message for a worker's model when a call has no input: providers refuse a request without one."""


@dataclasses.dataclass(frozen=True, slots=True)
class AttachmentPayload:
    """A file by its name and its content."""

    name: str
    data: bytes
    media_type: str | None = None
    """Its media type, such as `image/png`. `None` derives it from the name."""

    @classmethod
    def of(cls, content: BinaryContent) -> AttachmentPayload:
        """Return the file behind PydanticAI content."""
        return cls(name_of(content), content.data, content.media_type)

    def content(self) -> BinaryContent:
        """Return the file as content for a model."""
        media_type = self.media_type or mimetypes.guess_type(self.name)[0] or "application/octet-stream"
        return BinaryContent(self.data, media_type=media_type, identifier=self.name)


AttachmentInput: TypeAlias = str | Path | AttachmentPayload | MultiModalContent
"""A file for a worker: a path, a name with bytes, or PydanticAI content such as `BinaryContent`."""


def is_content(value: Any) -> bool:
    """Return whether a value is PydanticAI content, which goes to a model as it is."""
    return isinstance(value, MULTI_MODAL_CONTENT_TYPES)


def name_of(content: Any) -> str:
    """Return the name of content: its address, or its identifier, with the suffix of its media type if it has none."""
    url = getattr(content, "url", None)
    if isinstance(url, str):
        return PurePosixPath(urlsplit(url).path).name or url
    name = str(content.identifier)
    if PurePosixPath(name).suffix:
        return name
    return name + (mimetypes.guess_extension(content.media_type) or "")


def attachments_key(arguments: Mapping[str, Any]) -> str:
    """Return a name for attachments beside arguments that no argument has."""
    key = "attachments"
    while key in arguments:
        key = f"({key})"
    return key


def add_attachments(arguments: dict[str, Any], attachments: Sequence[Any]) -> dict[str, Any]:
    """Return arguments with the attachments, for a person to see."""
    return {**arguments, attachments_key(arguments): list(attachments)} if attachments else arguments


def prompt_of(
    arguments: Mapping[str, Any], files: Sequence[UserContent] = (), *, declared: bool
) -> str | Sequence[UserContent]:
    """Return the prompt for a worker's model: a lone `input` as text, any other arguments as JSON.

    `declared` says whether the worker declares its input. The prompt is never blank.
    """
    value = arguments.get("input")
    text = None
    if not arguments:
        text = NO_INPUT if declared or not files else None
    elif arguments.keys() != {"input"} or (declared and is_none_or_blank(value)):
        text = _as_json(arguments)
    elif value is not None:
        text = value if isinstance(value, str) else _as_json(value)
    if text is None or is_blank(text):
        return list(files) or NO_INPUT
    return [text, *files] if files else text


def _as_json(value: Any) -> str:
    return json_text(separate_extra(value), indent=2, inf_nan_mode="constants")


def writes_prompt(input_type: Any) -> bool:
    """Return whether an input type has a method that writes the prompt."""
    method = inspect.getattr_static(input_type, "to_prompt", None) if isinstance(input_type, type) else None
    return callable(method) and not isinstance(method, staticmethod | classmethod)


def write_prompt(input_type: type, arguments: Mapping[str, Any], redacted: Mapping[str, Any]) -> list[Any]:
    """Return the prompt that an input type writes: texts, and files at their places between them.

    `redacted` are the arguments without secrets. The method sees nothing else.
    """
    where = f"{input_type.__name__}.to_prompt()"
    values = {name: _same_kind(arguments.get(name), value) for name, value in redacted.items()}
    try:
        prompt = _instance(input_type, values).to_prompt()
        if inspect.iscoroutine(prompt):
            prompt.close()
            raise TypeError("it is a coroutine function, and must be a plain one")
    except Exception as exc:
        raise PromptError(f"{where} failed: {type(exc).__name__}: {text_of(exc)}") from exc
    if isinstance(prompt, str):
        return [prompt]
    if not isinstance(prompt, Sequence) or isinstance(prompt, bytes | bytearray):
        raise PromptError(f"{where} must return a text, or a list of texts and files; got {quote(prompt)}.")
    for item in prompt:
        if not isinstance(item, str | PurePath | AttachmentPayload) and not is_content(item):
            raise PromptError(
                f"{where} must return texts and files (Path, AttachmentPayload or PydanticAI content); "
                f"got {quote(item)} among them."
            )
    return list(prompt)


def _same_kind(value: Any, redacted: Any) -> Any:
    """Return a hidden secret as an object of the type that the field has."""
    if redacted == HIDDEN and isinstance(value, SecretStr):
        return SecretStr(HIDDEN)
    return SecretBytes(HIDDEN.encode()) if redacted == HIDDEN and isinstance(value, SecretBytes) else redacted


def _instance(input_type: type, values: dict[str, Any]) -> Any:
    """Return the input with validated values as they are: validating again may change them."""
    if not issubclass(input_type, BaseModel):
        assert dataclasses.is_dataclass(input_type)
        return input_type(**values)
    declared = {name: value for name, value in values.items() if name in input_type.model_fields}
    instance = input_type.__new__(input_type)
    object.__setattr__(instance, "__dict__", declared)
    object.__setattr__(instance, "__pydantic_fields_set__", set(declared))
    extra = {name: value for name, value in values.items() if name not in declared}
    object.__setattr__(
        instance, "__pydantic_extra__", extra if input_type.model_config.get("extra") == "allow" else None
    )
    object.__setattr__(instance, "__pydantic_private__", None)
    if input_type.__private_attributes__ or input_type.model_post_init is not BaseModel.model_post_init:
        instance.model_post_init(None)
    return instance


@runtime_checkable
class HasPrompt(Protocol):
    """An input type that writes its own prompt: a pydantic model or a dataclass with this method.

    Without it, a model sees the fields as JSON.
    """

    def to_prompt(self) -> str | Sequence[str | Path | AttachmentPayload | MultiModalContent]:
        """Return the prompt for the worker's model: a text, or texts and files in their order.

        A `str` is text. A `Path` is a file, which is found and checked like an attachment of the call. A secret field
        has the text `[secret]` in place of its value.
        """
