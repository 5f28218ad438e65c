"""Progress and error texts of all downloads of weights."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from .catalogue import Weights

REPORT_INTERVAL = 0.2
"""Seconds between two reports of progress."""


@dataclass(frozen=True, slots=True)
class Progress:
    """The progress of a download. `waiting` is for another process that downloads the same file."""

    stage: Literal["waiting", "fetching", "checking"]
    done: int
    """Bytes."""
    total: int


ProgressCallback = Callable[[Progress], None]
"""Called several times a second in the downloading thread. An exception that it raises ends the download cleanly."""


def retry_advice(weights: Weights) -> str:
    """Return the last lines of an error about a failed download."""
    return (
        f"Try again: llm-do models pull {weights.name}\n"
        f"Or bring the file here by hand, and name it in place of the model: local:/path/to/{weights.file}"
    )


def mask_credentials(text: str) -> str:
    """Return a text without the passwords and tokens in its URLs."""
    text = re.sub(r"://[^\s'\"<>]*@", "://***@", text)
    return re.sub(r"(://[^\s'\"<>?]*\?)[^\s'\"<>)]+", r"\1***", text)
