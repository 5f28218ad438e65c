"""What all ways of fetching weights have in common: how far it is, and what to do when it fails."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from .catalogue import Weights

REPORT_INTERVAL = 0.2
"""Seconds between two reports."""


@dataclass(frozen=True, slots=True)
class Progress:
    """How far it is. `waiting` is for another process that fetches the same file."""

    stage: Literal["waiting", "fetching", "checking"]
    done: int
    """Bytes."""
    total: int


ProgressCallback = Callable[[Progress], None]
"""Is called several times a second, in the thread that fetches. What it raises ends the fetching, cleanly."""


def retry_advice(weights: Weights) -> str:
    """The end of every error about weights that could not be fetched."""
    return (
        f"Try again: llm-do models pull {weights.name}\n"
        f"Or bring the file here by hand, and name it in place of the model: local:/path/to/{weights.file}"
    )


def mask_credentials(text: str) -> str:
    """Text without the passwords and tokens that stand in its addresses."""
    text = re.sub(r"://[^\s'\"<>]*@", "://***@", text)
    return re.sub(r"(://[^\s'\"<>?]*\?)[^\s'\"<>)]+", r"\1***", text)
