"""The files that may be given to a worker."""

from __future__ import annotations

from .fields import Count, Section, Suffix


class AttachmentPolicy(Section):
    """Which files may be given to a worker."""

    max_attachments: Count = 4
    max_total_bytes: Count = 10_000_000
    suffixes: tuple[Suffix, ...] | None = None
    """How their names end, in upper or lower case. `None` is any way."""
