"""Files for workers: by path, with their bytes, or as PydanticAI content."""

from __future__ import annotations

import mimetypes
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any, TypeAlias
from urllib.parse import urlsplit

from pydantic_ai import BinaryContent
from pydantic_ai.messages import MULTI_MODAL_CONTENT_TYPES, MultiModalContent


@dataclass(frozen=True, slots=True)
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
    """Return the name of content: its identifier, or its address. Without a suffix, that of its media type is added."""
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
