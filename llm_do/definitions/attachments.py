"""The files that may be given to a worker."""

from __future__ import annotations

from .fields import Count, Section, Suffix


class AttachmentPolicy(Section):
    """Limits of the files that may be given to a worker."""

    max_attachments: Count = 4
    max_total_bytes: Count = 10_000_000
    suffixes: tuple[Suffix, ...] | None = None
    """Allowed ends of their names, in upper or lower case. `None` allows all."""
