"""Entries bound to a context, as functions and as attributes."""

from __future__ import annotations

from typing import Any, Generic, Protocol

from typing_extensions import TypeVar

from ..errors import UnknownAttributeError, UnknownEntryError
from .entry import Entry

T = TypeVar("T", default=Any)


class Caller(Protocol):
    """Makes calls: a context."""

    async def call(self, entry: str | Entry[Any], /, *args: Any, **kwargs: Any) -> Any: ...

    def call_sync(self, entry: str | Entry[Any], /, *args: Any, **kwargs: Any) -> Any: ...

    def bind(self, entry: str, /) -> BoundEntry[Any]: ...


class BoundEntry(Generic[T]):
    """An entry bound to a context or a runtime: call it like an async function."""

    __slots__ = ("_context", "_entry")

    def __init__(self, context: Caller, entry: str | Entry[T]) -> None:
        self._context = context
        self._entry = entry

    async def __call__(self, *args: Any, **kwargs: Any) -> T:
        # By name again at each call: what a registry has under it may have changed.
        output: T = await self._context.call(self._entry, *args, **kwargs)
        return output

    def call_sync(self, *args: Any, **kwargs: Any) -> T:
        """Call it from synchronous code."""
        output: T = self._context.call_sync(self._entry, *args, **kwargs)
        return output

    def __repr__(self) -> str:
        name = self._entry if isinstance(self._entry, str) else self._entry.name
        return f"<BoundEntry {name!r} of {self._context!r}>"


class ToolsProxy:
    """The entries that a context can call, as attributes and as items."""

    __slots__ = ("_context",)

    def __init__(self, context: Caller) -> None:
        self._context = context

    def __getattr__(self, name: str) -> BoundEntry[Any]:
        if name.startswith("_"):  # what copy, pickle and debuggers look for is no entry
            raise AttributeError(name)
        try:
            return self._context.bind(name)
        except UnknownEntryError as exc:  # so that hasattr and getattr can ask
            raise UnknownAttributeError(str(exc)) from None

    def __getitem__(self, name: str) -> BoundEntry[Any]:
        return self._context.bind(name)

    def __contains__(self, name: object) -> bool:
        try:
            return isinstance(name, str) and self._context.bind(name) is not None
        except UnknownEntryError:
            return False

    # Without it, Python would ask for the items 0, 1, 2 and so on.
    __iter__ = None
