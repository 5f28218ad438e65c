"""Files that are given to a worker, and which of them it may be given."""

from __future__ import annotations

import mimetypes
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

from pydantic_ai import BinaryContent

from .definition import AttachmentPolicy
from .errors import PathDenied, PathMissing
from .fileio import read_file
from .inputs import has_attachments


@dataclass(frozen=True, slots=True)
class AttachmentPayload:
    """A file by its name and its content."""

    name: str
    data: bytes

    def content(self) -> BinaryContent:
        """The file as a model is shown it."""
        media_type, _ = mimetypes.guess_type(self.name)
        return BinaryContent(self.data, media_type=media_type or "application/octet-stream", identifier=self.name)


AttachmentInput: TypeAlias = str | Path | AttachmentPayload
"""A path on this machine, or a name and bytes."""


def load(attachments: Sequence[AttachmentInput], policy: AttachmentPolicy, worker: str) -> list[BinaryContent]:
    """Read attachments that a person, or a program of theirs, gives, and check that the worker may have them."""
    return check([_read(attachment, policy.max_total_bytes) for attachment in attachments], policy, worker)


def _read(attachment: AttachmentInput, limit: int) -> AttachmentPayload:
    if isinstance(attachment, AttachmentPayload):
        return attachment
    path = Path(attachment)
    try:
        return AttachmentPayload(path.name, read_file(path, limit))
    except FileNotFoundError:
        raise PathMissing(f"There is no file {str(path)!r} to attach.") from None
    except OSError as exc:
        raise PathDenied(f"{str(path)!r} cannot be attached: {exc.strerror or exc}.") from exc


def refuse_hidden(input_data: Any) -> None:
    """Refuse attachments among the arguments of a worker that declares none: they go where they are checked.

    Next to other names, `attachments` is data, and stays it.
    """
    if isinstance(input_data, Mapping) and has_attachments(input_data):
        raise PathDenied("Attachments are given as `attachments`, and not among the input data.")


def key_beside(arguments: Mapping[str, Any]) -> str:
    """The name under which attachments are shown beside arguments, none of which can pass for them."""
    key = "attachments"
    while key in arguments:
        key = f"({key})"
    return key


def beside(arguments: dict[str, Any], attachments: Sequence[BinaryContent]) -> dict[str, Any]:
    """The arguments of a worker that declares its input, with the files that go along, as somebody is shown them."""
    return {**arguments, key_beside(arguments): list(attachments)} if attachments else arguments


def check(attachments: Sequence[AttachmentPayload], policy: AttachmentPolicy, worker: str) -> list[BinaryContent]:
    """The attachments as content, if the worker may have them."""
    if len(attachments) > policy.max_attachments:
        raise PathDenied(
            f"Worker {worker!r} takes {policy.max_attachments} attachments at most, got {len(attachments)}."
        )
    for attachment in attachments:
        if policy.suffixes is not None and not attachment.name.casefold().endswith(policy.suffixes):
            allowed = ", ".join(policy.suffixes) or "none"
            raise PathDenied(f"{attachment.name!r} cannot be given to worker {worker!r}: it takes {allowed}.")
    total = sum(len(attachment.data) for attachment in attachments)
    if total > policy.max_total_bytes:
        raise PathDenied(f"Worker {worker!r} takes {policy.max_total_bytes} bytes of attachments at most, got {total}.")
    return [attachment.content() for attachment in attachments]
