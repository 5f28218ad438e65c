"""The trace of a session, with one record for each call, and its log of messages, written as it happens."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Any, Literal, TypeAlias, overload

from pydantic_ai import BinaryContent
from pydantic_ai.messages import ModelMessage, MultiModalContent
from pydantic_ai.usage import RequestUsage, RunUsage

from ..arguments.prompts import name_of
from ..policy.requests import ApprovalOutcome
from ..values.texts import escape_surrogates, shorten

CallState: TypeAlias = Literal["ok", "failed", "refused", "cancelled", "dropped"]
"""How a call ended. A dropped call left a thread that could not be stopped, and its result is discarded."""


@dataclass(frozen=True, slots=True)
class ModelUsage:
    """The usage of one request, by the model that answered it."""

    model: str
    provider: str | None
    usage: RequestUsage


@dataclass(eq=False)
class TraceEntry:
    """The record of one call."""

    id: int
    """1 for the first call of the session, and so on."""
    parent_id: int | None
    """The `id` of the call that made this one; `None` at the top."""
    name: str
    """The name of the entry."""
    kind: str
    """`"tool"`, `"worker"`, `"native"` for a tool that ran at the model's provider, `"server"` for an MCP server that
    ended by itself."""
    depth: int
    """How deep the call is nested; a top-level call has depth 0."""
    input_data: Any
    """The arguments, or those that a person wrote in their place. `CallOpened` has the former."""
    started_at: float
    """When the call was made, in seconds since the epoch."""
    # A record is made for every call, so what is written later has its defaults on the class.
    output_data: Any = field(default=None, init=False)
    """The output of the call, as it was when the call returned."""
    error: str | None = field(default=None, init=False)
    """The error, if the call did not return."""
    duration: float | None = field(default=None, init=False)
    """Seconds from call to return, without those for which a person was asked; `None` while the call runs."""
    waited: float = field(default=0.0, init=False)
    """Seconds for which a person was asked, about this call or one below it. They are no part of `duration`."""
    failure: str | None = field(default=None, init=False)
    """The failure that the result of a returned call reports: the exit code of a command."""
    cut_off: str | None = field(default=None, init=False)
    """Why an answer of the model was cut off; of several, the last."""
    model: str | None = field(default=None, init=False)
    """The model that a worker used, as `provider:model`."""
    approval: ApprovalOutcome | None = field(default=None, init=False)
    """How it was allowed or refused, if a rule or a person decided."""
    attachments: Sequence[MultiModalContent] = field(default=(), init=False)
    """The files that went to a worker beside its arguments."""
    requests: Sequence[RequestUsage] = field(default=(), init=False)
    """The usage of each of this call's own model requests."""
    key: str | None = field(default=None, init=False)
    """The key of the call, equal for the same call of another run; `None` if no sink and no executor needs it.

    It is the key of the calling call, the name, a digest of the arguments as the call was made, for a call of a model
    the number of its request and the position in the response, and an ordinal among equal ones.
    """
    state: CallState | None = field(default=None, init=False)
    """How it ended; `None` while it runs."""
    error_type: str | None = field(default=None, init=False)
    """The name of the error's class."""

    def close(
        self,
        state: CallState,
        duration: float = 0.0,
        output: Any = None,
        error: str | None = None,
        failure: str | None = None,
        error_type: str | None = None,
        waited: float = 0.0,
    ) -> None:
        self.state, self.duration, self.output_data = state, duration, output
        if error is not None or failure is not None or waited:  # assigning them takes longer than all the rest
            self.error, self.failure, self.error_type, self.waited = error, failure, error_type, waited

    def add_requests(self, spent: Sequence[ModelUsage], cut_off: str | None) -> None:
        self.requests = [*self.requests, *(each.usage for each in spent)]
        if cut_off is not None:
            self.cut_off = cut_off

    @property
    def usage(self) -> RunUsage | None:
        """The usage of this call's own model requests, without those of the calls it made."""
        if not self.requests:
            return None
        total = RunUsage(requests=len(self.requests))
        for request in self.requests:
            total.incr(request)
        return total

    @property
    def cost(self) -> Decimal | None:
        """The price of this call's own model requests in US dollars; `None` if it is not known."""
        usage = self.usage
        return None if usage is None else usage.cost

    def __str__(self) -> str:
        state = "..." if self.duration is None else f"{self.duration * 1000:.0f} ms"
        if self.waited >= 0.001:
            state += f", +{self.waited * 1000:.0f} ms waiting for a person"
        if self.failure is not None:
            state += f", {self.failure}"
        if self.cut_off is not None:
            state += ", cut off"
        outcome = (
            f" !! {self.error}" if self.error else ("" if self.duration is None else f" -> {shorten(self.output_data)}")
        )
        files = "".join(f" + {_file_in_words(file)}" for file in self.attachments)
        return escape_surrogates(f"{self.name}({shorten(self.input_data)}){files} [{self.kind}, {state}]{outcome}")


def _file_in_words(file: MultiModalContent) -> str:
    return f"{name_of(file)} ({len(file.data)} bytes)" if isinstance(file, BinaryContent) else name_of(file)


@dataclass(slots=True)
class TraceNode:
    """A record with the records of the calls that it made."""

    entry: TraceEntry
    children: list[TraceNode] = field(default_factory=list)


class Trace(Sequence[TraceEntry]):
    """The records of a session, in the order in which the calls were made."""

    left_out = 0
    """How many records were dropped: with `Runtime(max_records=...)`, those of the calls that ended first."""

    def __init__(self) -> None:
        self._entries: list[TraceEntry] = []
        self.append: Callable[[TraceEntry], None] = self._entries.append

    def close(self, record: TraceEntry) -> None:
        """Note that a call is over."""

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
        left_out = f", {self.left_out} more left out" if self.left_out else ""
        return f"<Trace of {len(self)} calls{left_out}>"

    def tree(self) -> list[TraceNode]:
        """Return the top-level calls, each with the calls below it."""
        roots: list[TraceNode] = []
        nodes: dict[int, TraceNode] = {}
        for entry in self:
            node = nodes[entry.id] = TraceNode(entry)
            parent = nodes.get(entry.parent_id) if entry.parent_id is not None else None
            (roots if parent is None else parent.children).append(node)
        return roots

    def __str__(self) -> str:
        lines = [f"({self.left_out} calls that ended earlier are left out)"] if self.left_out else []
        stack = [(node, "", "") for node in reversed(self.tree())]
        while stack:
            node, first, rest = stack.pop()
            lines.append(f"{first}{node.entry}")
            for child in reversed(node.children):
                last = child is node.children[-1]
                stack.append((child, f"{rest}{'└─ ' if last else '├─ '}", f"{rest}{'   ' if last else '│  '}"))
        return "\n".join(lines)


class BoundedTrace(Trace):
    """A trace of the running calls, of those above them, and of the `most` others that ended last."""

    def __init__(self, most: int) -> None:
        super().__init__()
        self._most = most
        self._records: dict[int, TraceEntry] = {}
        self._holders: dict[int, int] = {}
        """How often each record is held: once while its call runs, and once by each held record of a call it made."""
        self._closed_records: OrderedDict[int, TraceEntry] = OrderedDict()
        """The records that nothing holds, in the order in which they were released: calls before their callers."""
        self.append = self._open

    def __getitem__(self, index: int | slice) -> Any:
        return list(self._records.values())[index]

    def __len__(self) -> int:
        return len(self._records)

    def __iter__(self) -> Iterator[TraceEntry]:
        return iter(list(self._records.values()))

    def _open(self, record: TraceEntry) -> None:
        self._records[record.id] = record
        self._hold(record)

    def _hold(self, record: TraceEntry | None) -> None:
        while record is not None:
            count = self._holders.get(record.id, 0)
            self._holders[record.id] = count + 1
            if count:
                return
            self._closed_records.pop(record.id, None)  # a call was made on behalf of one that is over
            record = self._above(record)

    def close(self, record: TraceEntry) -> None:
        """Note that a call is over, and drop the records that were released first, if there are too many."""
        above: TraceEntry | None = record
        while above is not None and self._holders.get(above.id):
            self._holders[above.id] -= 1
            if self._holders[above.id]:
                break
            self._closed_records[above.id] = above
            above = self._above(above)
        while len(self._closed_records) > self._most:
            oldest, _ = self._closed_records.popitem(last=False)
            del self._records[oldest], self._holders[oldest]
            self.left_out += 1

    def _above(self, record: TraceEntry) -> TraceEntry | None:
        return None if record.parent_id is None else self._records.get(record.parent_id)


class MessageLog(list[ModelMessage]):
    """The messages of a session, in the order in which they were exchanged. With `most`, the last of them."""

    def __init__(self, most: int | None = None) -> None:
        super().__init__()
        self._most = most
        self.left_out = 0
        """How many messages before these were dropped."""

    def add(self, message: ModelMessage) -> None:
        """Add a message. Old ones are dropped in batches, so that this stays fast in a long session."""
        self.append(message)
        if self._most is not None and len(self) > 2 * self._most + 16:
            self.trim()

    def trim(self) -> None:
        """Drop all but the last `most`."""
        if self._most is not None and (excess := len(self) - self._most) > 0:
            del self[:excess]
            self.left_out += excess

    def __repr__(self) -> str:
        left_out = f", {self.left_out} earlier ones left out" if self.left_out else ""
        return f"<MessageLog of {len(self)} messages{left_out}>" if left_out else super().__repr__()
