"""The owner of the toolsets of a scope: a task that enters them, holds them open and closes them."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Hashable, Sequence
from contextlib import AsyncExitStack, suppress
from typing import Any

import anyio
from pydantic_ai.exceptions import UserError
from pydantic_ai.toolsets import AbstractToolset, ToolsetTool, WrapperToolset

from ..errors import EventLoopError, ScopeClosedError, ToolsetError
from ..values.canonical import SameObject
from ..values.texts import quote
from . import tasks
from .context import Context, run_context
from .entry import EntryBase, StartsConcurrently
from .plane import GovernedToolset, HeldToolset
from .recorder import logger

CLOSING_SECONDS = 30.0
"""How long a toolset may take to close before it is cancelled."""


class ToolsetOwner:
    """The toolsets of one scope, held open by a separate task.

    A toolset may keep a task group open, as MCP sessions do, which only the task that entered it can leave. The turns
    and the end of a chat may come from different tasks.
    """

    def __init__(self, worker: EntryBase, context: Context) -> None:
        self._worker = worker
        self._context = context
        self._toolsets: list[tuple[AbstractToolset[Context], Hashable]] = []
        self._are_open = asyncio.Event()
        self._done = asyncio.Event()
        self._openers = 0
        self._closing_label = ""
        self._timer: asyncio.TimerHandle | None = None
        session = context.runtime
        session.loop.enter()
        self._owner = asyncio.create_task(self._hold_open(), name=f"toolsets of {worker.name}")
        session.loop.tasks.add(self._owner)
        self._owner.add_done_callback(self._end)

    def _end(self, owner: asyncio.Task[None]) -> None:
        self._context.runtime.loop.tasks.discard(owner)
        if self._timer is not None:
            self._timer.cancel()
        self._are_open.set()  # wakes those that wait in `open`
        if not owner.cancelled():
            owner.exception()  # retrieved, since asyncio would log it; `open` and `close` raise it

    @property
    def is_over(self) -> bool:
        return self._owner.done()

    async def open(self) -> None:
        """Wait until the toolsets are built. If the last task that waits is cancelled, they are closed again."""
        self._check_loop()
        self._openers += 1
        try:
            await self._are_open.wait()
        except asyncio.CancelledError:
            if self._openers == 1 and not self._are_open.is_set():
                self._end_owner(cancel=True)
                await self._wait_or_leave(in_time=False)
            raise
        finally:
            self._openers -= 1
        if self._owner.done():
            if not self._owner.cancelled():
                self._owner.result()
            raise ScopeClosedError(f"The toolsets of worker {self._worker.name!r} were closed before they were open.")

    async def close(self, in_time: bool) -> None:
        self._check_loop()
        self._end_owner(cancel=not self._are_open.is_set())
        await self._wait_or_leave(in_time)
        if self._owner.done() and not self._owner.cancelled():
            self._owner.result()

    def _end_owner(self, *, cancel: bool) -> None:
        """Let the owner close the toolsets that it has opened so far. After `CLOSING_SECONDS` it is cancelled."""
        self._done.set()
        if cancel:
            self._owner.cancel()
        if self._timer is None and not self._owner.done():
            self._timer = self._owner.get_loop().call_later(CLOSING_SECONDS, self._give_up)

    def _give_up(self) -> None:
        """Cancel the owner, repeatedly, since a toolset may suppress a cancellation like other errors."""
        logger.error("Toolset %s of worker %r does not close; it is cancelled.", self._closing_label, self._worker.name)
        self._owner.cancel()
        self._timer = self._owner.get_loop().call_later(CLOSING_SECONDS, self._give_up)

    async def _wait_or_leave(self, in_time: bool) -> None:
        """Wait until the toolsets are closed; after a cancellation, only a little longer."""
        cancelled: asyncio.CancelledError | None = None
        if in_time:
            try:
                await asyncio.wait([self._owner])
                return
            except asyncio.CancelledError as exc:
                cancelled = exc
        until = anyio.current_time() + tasks.LEAVING_SECONDS
        with anyio.CancelScope(shield=True):
            while not self._owner.done() and (seconds := until - anyio.current_time()) > 0:
                try:
                    await asyncio.wait([self._owner], timeout=seconds)
                except asyncio.CancelledError as exc:
                    cancelled = exc
        if not self._owner.done():
            self._tell(
                f"Toolset {self._closing_label} of worker {self._worker.name!r} takes long to close. The call ends "
                f"without it, and it is cancelled after {CLOSING_SECONDS:g} s."
            )
        if cancelled is not None:
            raise cancelled

    def _tell(self, text: str) -> None:
        frame = self._context.frame
        if frame.record is not None:
            self._context.runtime.recorder.notice(frame, text)
        else:
            logger.warning("%s", text)

    def _check_loop(self) -> None:
        if not self._owner.done() and self._owner.get_loop() is not asyncio.get_running_loop():
            raise EventLoopError(f"The toolsets of worker {self._worker.name!r} belong to another event loop.")

    async def tools(self) -> dict[str, ToolsetTool[Context]]:
        run_ctx = run_context(self._context, self._worker)
        tools: dict[str, ToolsetTool[Context]] = {}
        for toolset, _ in self._toolsets:
            with suppress(UserError):  # a toolset that connects for each run is checked there
                tools.update(await toolset.get_tools(run_ctx))
        return tools

    def for_run(self, own_names: Sequence[str]) -> list[AbstractToolset[Context]]:
        """Return the toolsets for a run: held open, and governed by the runtime."""
        if self._worker.capabilities:  # its `Governor` wraps all tools
            return [HeldToolset(toolset) for toolset, _ in self._toolsets]
        return [GovernedToolset(HeldToolset(toolset), identity, own_names) for toolset, identity in self._toolsets]

    async def _hold_open(self) -> None:
        async with AsyncExitStack() as stack:
            for declared in self._worker.toolsets:
                await self._build(declared, stack)
            await _wait_for_starts([toolset for toolset, _ in self._toolsets])
            self._are_open.set()
            await self._done.wait()

    async def _build(self, declared: Any, stack: AsyncExitStack) -> None:
        worker = self._worker
        factory = self._context.runtime.toolsets.resolve(declared, worker.name)
        try:
            with self._context.runtime.loop.inner_task():  # the worker waits for everything that the factory calls
                product = factory(self._context)
                toolset = await product if inspect.isawaitable(product) else product
        except Exception as exc:
            exc.add_note(f"while {quote(factory)} built a toolset of worker {worker.name!r}")
            raise
        if not isinstance(toolset, AbstractToolset):
            raise ToolsetError(
                f"The toolset factory {quote(factory)} of worker {worker.name!r} returned {quote(toolset)}, "
                "not a toolset."
            )
        self._closing_label = toolset.label
        await stack.enter_async_context(toolset)
        stack.callback(setattr, self, "_closing_label", toolset.label)
        self._toolsets.append((toolset, SameObject(factory)))


async def _wait_for_starts(toolsets: Sequence[AbstractToolset[Any]]) -> None:
    """Wait for toolsets that start concurrently. The error of one ends the wait for the others."""
    starting: list[asyncio.Task[None]] = []
    for toolset in toolsets:
        while isinstance(toolset, WrapperToolset) and not isinstance(toolset, StartsConcurrently):
            toolset = toolset.wrapped
        if isinstance(toolset, StartsConcurrently):
            starting.append(asyncio.create_task(toolset.started(), name=f"start of {toolset.label}"))
    try:
        await asyncio.gather(*starting)
    finally:
        for task in starting:
            task.cancel()
        await asyncio.gather(*starting, return_exceptions=True)
