"""Waiting for work that must not stop halfway."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

import anyio

T = TypeVar("T")


async def wait_shielded(work: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine to its end and return its result. A cancellation meanwhile is raised afterwards."""
    task = asyncio.ensure_future(work)
    cancelled: asyncio.CancelledError | None = None
    # The scope holds off a cancellation by anyio; one by asyncio comes through, and is kept for later.
    with anyio.CancelScope(shield=True):
        while not task.done():
            try:
                await asyncio.wait([task])
            except asyncio.CancelledError as exc:
                cancelled = exc
    if cancelled is not None:
        task.exception()  # looked at, or asyncio would complain
        raise cancelled
    return task.result()
