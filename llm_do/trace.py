"""What happened in a session: one record for each call, written as it happens."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Any, Literal, overload

from pydantic_ai import BinaryContent
from pydantic_ai.usage import RequestUsage, RunUsage

from .texts import encodable
from .values import shorten


@dataclass(slots=True, frozen=True, kw_only=True)
class ApprovalOutcome:
    """How the approval of one call was decided."""

    approved: bool
    """Whether the call could run."""
    by: Literal["callback", "grant", "rule", "nobody", "error"]
    """A callback, an earlier decision for the session, a rule, nobody to ask, or a callback that failed."""
    note: str | None = None
    """What the person who decided had to say."""
    rule: str | None = None
    """Who allowed it, denied it, or wanted somebody to be asked; with the file and the line of a rule in a file."""
    grant: str | None = None
    """What holds for the rest of the session: given with this decision, or, where `by` is "grant", used for it."""
    edited: bool = False
    """Whether the call ran with other arguments than those that were asked about."""
    count: int = 1
    """The number of identical calls that the answer was for, this one included."""
    at: float = field(default=0.0, compare=False)
    """When it was decided, in seconds since the epoch."""


@dataclass(eq=False, init=False)
class TraceEntry:
    """The record of one call."""

    id: int
    """1 for the first call of the session, and so on."""
    parent_id: int | None
    """The `id` of the call that made this one; `None` at the top."""
    name: str
    """The name of the entry."""
    kind: str
    """`"tool"`, `"worker"`, or `"native"` for a tool that ran at the model's provider."""
    depth: int
    """How deep the call is nested; a top-level call has depth 0."""
    input_data: Any
    """The arguments as they were when the call was made."""
    started_at: float
    """When the call was made, in seconds since the epoch."""
    output_data: Any = None
    """What the call returned, as it was then."""
    error: str | None = None
    """Why it did not return, if it did not."""
    duration: float | None = None
    """Seconds from call to return; `None` while the call runs."""
    model: str | None = None
    """The name of the model that a worker used."""
    approval: ApprovalOutcome | None = None
    """How it was allowed or refused, where a rule or a person decided."""
    attachments: Sequence[BinaryContent] = ()
    """The files that went to a worker beside the arguments that it declares."""
    requests: Sequence[RequestUsage] = ()
    """What each of this call's own model requests used."""

    # Written by hand, and the other defaults left on the class: one is made for every call.
    def __init__(
        self,
        id: int,  # noqa: A002 - the field's name
        parent_id: int | None,
        name: str,
        kind: str,
        depth: int,
        input_data: Any,
        started_at: float,
    ) -> None:
        self.id = id
        self.parent_id = parent_id
        self.name = name
        self.kind = kind
        self.depth = depth
        self.input_data = input_data
        self.started_at = started_at

    @property
    def usage(self) -> RunUsage | None:
        """What this call's own model requests used, without those of the calls it made."""
        if not self.requests:
            return None
        total = RunUsage(requests=len(self.requests))
        for request in self.requests:
            total.incr(request)
        return total

    @property
    def cost(self) -> Decimal | None:
        """The price of this call's own model requests in US dollars, where it is known."""
        usage = self.usage
        return None if usage is None else usage.cost

    def __str__(self) -> str:
        state = "..." if self.duration is None else f"{self.duration * 1000:.0f} ms"
        outcome = (
            f" !! {self.error}" if self.error else ("" if self.duration is None else f" -> {shorten(self.output_data)}")
        )
        files = "".join(f" + {file.identifier} ({len(file.data)} bytes)" for file in self.attachments)
        return encodable(f"{self.name}({shorten(self.input_data)}){files} [{self.kind}, {state}]{outcome}")


@dataclass(slots=True)
class TraceNode:
    """A record with the records of the calls that it made."""

    entry: TraceEntry
    children: list[TraceNode] = field(default_factory=list)


class Trace(Sequence[TraceEntry]):
    """The records of a session, in the order in which the calls were made."""

    __slots__ = ("_entries", "append")

    def __init__(self) -> None:
        self._entries: list[TraceEntry] = []
        self.append = self._entries.append

    @overload
    def __getitem__(self, index: int) -> TraceEntry: ...
    @overload
    def __getitem__(self, index: slice) -> list[TraceEntry]: ...
    def __getitem__(self, index: int | slice) -> TraceEntry | list[TraceEntry]:
        return self._entries[index]

    def __len__(self) -> int:
        return len(self._entries)

    def __iter__(self) -> Iterator[TraceEntry]:
        return iter(self._entries)

    def __repr__(self) -> str:
        return f"<Trace of {len(self._entries)} calls>"

    def tree(self) -> list[TraceNode]:
        """The top-level calls, each with the calls below it."""
        roots: list[TraceNode] = []
        nodes: dict[int, TraceNode] = {}
        for entry in self._entries:
            node = nodes[entry.id] = TraceNode(entry)
            parent = nodes.get(entry.parent_id) if entry.parent_id is not None else None
            (roots if parent is None else parent.children).append(node)
        return roots

    def __str__(self) -> str:
        lines: list[str] = []
        stack = [(node, "", "") for node in reversed(self.tree())]
        while stack:
            node, first, rest = stack.pop()
            lines.append(f"{first}{node.entry}")
            for child in reversed(node.children):
                last = child is node.children[-1]
                stack.append((child, f"{rest}{'└─ ' if last else '├─ '}", f"{rest}{'   ' if last else '│  '}"))
        return "\n".join(lines)
