"""The data of a call: the entry, the arguments, the caller, and the deadline."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, contextmanager
from pathlib import Path
from time import perf_counter
from types import MappingProxyType
from typing import Any, NamedTuple

import anyio
from pydantic_ai.messages import ModelMessage, MultiModalContent, UserContent
from pydantic_ai.models import Model

from ..budgets.ledger import Reservation
from ..budgets.limits import UsageMeter
from ..errors import NoSandboxError
from ..policy.plan import Judgement
from ..policy.rules import RuleBook
from ..sandbox import Pins, SandboxToolset
from .conversation import AskedCall, Conversation
from .entry import EntryBase
from .trace import ModelUsage, TraceEntry


class Deadline:
    """The clock of one call. It stops while a person is asked, and so do the clocks of the calls above."""

    __slots__ = ("_asking", "_left", "_outer", "active", "interrupted", "scope", "seconds")

    def __init__(self, seconds: float, outer: Deadline | None = None) -> None:
        self.seconds = seconds
        self._outer = outer
        self.scope = anyio.CancelScope(deadline=anyio.current_time() + seconds)
        self.active = False
        """Whether its call is running."""
        self.interrupted: str | None = None
        """The path of the innermost call that was running when the time was up."""
        self._asking = 0
        self._left = 0.0

    @property
    def expired(self) -> bool:
        return not self._asking and anyio.current_time() >= self.scope.deadline

    def interrupt(self, where: str) -> None:
        """Note where the time ran out, on this clock and those of the calls above, if they have expired."""
        if self.interrupted is None and self.expired:
            self.interrupted = where
        if self._outer is not None:
            self._outer.interrupt(where)

    def covers(self, inner: Deadline | None) -> bool:
        """Return whether a call with the clock `inner` has to end when this time is up."""
        while inner is not None and inner is not self:
            inner = inner._outer
        return inner is self

    def pause(self) -> None:
        if not self._asking:
            self._left = self.scope.deadline - anyio.current_time()
            self.scope.deadline = float("inf")
        self._asking += 1
        if self._outer is not None:
            self._outer.pause()

    def resume(self) -> None:
        self._asking -= 1
        if not self._asking:
            self.scope.deadline = anyio.current_time() + self._left
        if self._outer is not None:
            self._outer.resume()


class Inherited(NamedTuple):
    """The rules and budgets that hold for all calls below a call."""

    rules: tuple[RuleBook, ...] = ()
    """The rules: the session's, and those of every worker on the path."""
    meters: tuple[UsageMeter, ...] = ()
    """The budgets beside the session's: those of workers on the path that have limits."""
    generated: bool = False
    """Whether a worker that a model made is on the path."""


class _Top(EntryBase):
    """The program that makes the top-level calls of a session."""

    name = ""
    kind = "top"


_TOP = _Top()
_NOTHING = Inherited()
_KEPT_OVER_TURNS = frozenset(
    (
        *("entry", "parent", "branch", "variant", "conversation", "scope_key", "turn"),
        *("replayable", "history_digest"),
        *("thread_calls", "_open_questions", "asked_at"),
    )
)


class CallFrame:
    """The data of one call."""

    # The defaults are on the class, since a frame is made for every call, and most calls need none of these.
    record: TraceEntry | None = None
    inherited = _NOTHING
    """The rules and budgets of the calls made from here."""
    attachments: Sequence[MultiModalContent] = ()
    """The files that a worker gets beside its arguments."""
    shared_files: Mapping[str, Path] = MappingProxyType({})
    """Files of the caller's roots among them: the paths as the caller wrote them, and their paths on this machine."""
    model: Model | None = None
    """The model of a worker, as its requests go through it."""
    input_error: Exception | None = None
    """A problem with the files or the prompt of the call, which is raised only after the rules allow the call."""
    partial_messages: Sequence[ModelMessage] = ()
    """The messages of a worker up to its failure or cancellation."""
    tags: dict[str, Any] | None = None
    """The fields about the call in each of its events, made for the first event."""
    key: str | None = None
    """The key of the call, made when it is first needed. See `core/keys.py`."""
    digest = ""
    """A digest of its original arguments and files, and of the conversation before it, if it has a key."""
    history_digest = ""
    """A digest of the messages that a worker began with, and of its turns since; empty if it has neither."""
    replayable = True
    """Whether other calls have other keys: not if its arguments, its entry, an earlier turn or a call above it has no
    canonical form. Declared secrets are in no key, so calls that differ only in these differ only in the ordinal."""
    branch = ""
    """The names of the branches of the context that made the call, which are part of its key."""
    variant = ""
    """A part of its key that distinguishes its entry from others of the same name."""
    ordinals: dict[str, int] | None = None
    """The number of calls made from here, by the last step of their keys without an ordinal."""
    tool_call_id: str | None = None
    """The id of the tool call, if a model asked for the call."""
    request_place: tuple[int, int] | None = None
    """The number of the model's request and the position in its response, if a model asked for the call."""
    scope_key: str | None = None
    """The key of the conversation, if the call is a turn of one."""
    turn = 0
    is_turn = False
    """Whether a `CallScope` makes the call, whose messages are read after it."""
    restored_usage: Sequence[ModelUsage] | None = None
    """The usage in the earlier run that the answer comes from."""
    original_arguments: Any = None
    """A copy of the arguments before the entry runs, with their secrets: those of the call, or the edited ones."""
    made_at = 0.0
    """When the call was made, by `perf_counter`."""
    failure: str | None = None
    """A failure that is a result and not an exception: the exit code of a command."""
    waited = 0.0
    """Seconds for which a person was asked, about this call or one below it."""
    _open_questions = 0
    asked_at = 0.0
    """When a person was last asked, by `perf_counter`; 0 if never."""
    approved = False
    judgement: Judgement | None = None
    """The plan of the call and the decision of the rules about it, if there are any."""
    pins: Pins | None = None
    """The files in the question about the call, as they were then."""
    cancelled = False
    ended = False
    """Whether the call is over. In a conversation it is between two turns, until the next one begins."""
    waits_for = ""
    """Text for messages: the slot that the call waits for."""
    thread_dropped = False
    """Whether a thread of the call, which cannot be stopped, was left running."""
    thread_wait = ""
    """Why a synchronous entry never ran, if it was cancelled while it waited for a thread."""
    thread_calls: set[asyncio.Task[Any]] | None = None
    """Running calls that the thread of this synchronous entry waits for."""
    worker_slots: AbstractAsyncContextManager[Any] | None = None
    called_in: CallFrame | None = None
    """The worker during whose request a top-level call was made, for instance by a model that is a Python function."""
    is_inner = False
    """Whether a top-level call was made inside another call, which may wait for it in a thread."""
    parent: CallFrame | None = None
    """The frame of the call that made this one; `None` in the root frame, from which top-level calls are made."""
    caller: CallFrame
    """The same, with a type without `None`. The root frame does not have it."""
    arguments: dict[str, Any]
    """The arguments that run, once the call may run."""
    depth = -1
    deadline: Deadline | None = None
    _worker_above: WorkerFrame | None = None

    def __init__(self, entry: EntryBase = _TOP, parent: CallFrame | None = None) -> None:
        self.entry = entry
        """The entry that is called."""
        if parent is not None:
            self.parent = self.caller = parent
            self.depth = parent.depth + 1
            self.inherited = parent.inherited
            if parent.depth >= 0:
                # No frame refers to itself, so that reference counting frees a call's data when the call is over.
                self._worker_above = parent.worker
            if parent.deadline is not None:
                self.deadline = parent.live_deadline

    @property
    def recorded(self) -> TraceEntry:
        assert self.record is not None
        return self.record

    @property
    def worker(self) -> WorkerFrame | None:
        """The frame of the running worker: this one, or the nearest above it."""
        return self._worker_above

    @property
    def messages(self) -> Sequence[ModelMessage]:
        """The conversation of a worker so far."""
        return ()

    @property
    def worker_entry(self) -> EntryBase | None:
        worker = self.worker
        return None if worker is None else worker.entry

    @property
    def top(self) -> CallFrame:
        """The top-level call that this one belongs to."""
        frame = self
        while frame.depth > 0:
            frame = frame.caller
        return frame

    @property
    def files(self) -> SandboxToolset:
        """The files of the running worker."""
        worker = self.worker
        sandbox = None if worker is None else worker.conversation.sandbox
        if sandbox is None:
            whose = f"worker {worker.path!r} has none" if worker is not None else "no worker is running here"
            raise NoSandboxError(f"There is no sandbox: {whose}. Give a worker one with WorkerEntry(sandbox=...).")
        return sandbox

    @property
    def live_deadline(self) -> Deadline | None:
        """The clock of this call, while it is active."""
        return self.deadline if self.deadline is not None and self.deadline.active else None

    @property
    def call_id(self) -> int | None:
        return self.record.id if self.record is not None else None

    @property
    def chain(self) -> list[CallFrame]:
        """The call and those above it, up to the top-level call."""
        chain, frame = list[CallFrame](), self
        while frame.parent is not None:
            chain.append(frame)
            frame = frame.parent
        return chain

    @property
    def names(self) -> list[str]:
        """The names of the calls from the top down to this one."""
        return [frame.entry.name for frame in reversed(self.chain)]

    @property
    def path(self) -> str:
        """The names of the calls from the top down to this one, as messages show them."""
        return " > ".join(self.names)

    @contextmanager
    def stop_clocks(self) -> Iterator[None]:
        """Stop the clocks of this call, and of those above it, while a person is asked."""
        calls, deadline = self.chain, self.deadline
        if deadline is not None:
            deadline.pause()
        for call in calls:
            if not call._open_questions:
                call.asked_at = perf_counter()
            call._open_questions += 1
        try:
            yield
        finally:
            for call in calls:
                call._open_questions -= 1
                if not call._open_questions:  # questions that were open side by side count once
                    call.waited += perf_counter() - call.asked_at
            if deadline is not None:
                deadline.resume()

    def end(self) -> None:
        """Mark the call as over, and drop its references to other calls."""
        self.ended = True
        self.called_in = None

    def seconds_waited(self) -> float:
        """Return for how long a person was asked so far, including open questions."""
        return self.waited + (perf_counter() - self.asked_at if self._open_questions else 0.0)

    def is_below(self, other: CallFrame) -> bool:
        """Return whether this call was made by the other one, directly or through calls between them."""
        return any(above is other for above in self.callers())

    def callers(self) -> Iterator[CallFrame]:
        """Yield the calls that this one was made by or in, from the nearest to the top."""
        above = self.called_in or self.parent
        while above is not None:
            yield above
            above = above.called_in or above.parent


class RequestFrame(CallFrame):
    """The data of one call that asks a model."""

    request_number = 0
    """The number of requests that the call has made."""
    asked_calls: tuple[AskedCall, ...] = ()
    """The calls in responses that were not made yet."""
    open_requests: tuple[Reservation, ...] = ()
    """The requests in flight."""

    def __init__(self, entry: EntryBase, parent: CallFrame) -> None:
        super().__init__(entry, parent)
        self.conversation = Conversation()

    @property
    def messages(self) -> Sequence[ModelMessage]:
        return self.conversation.messages

    def claim_call(self, name: str | None, tool_call_id: str | None) -> tuple[int, int] | None:
        """Return the place of a call that a model asked for, once: two calls of a response may have the same id."""
        asked = [call for call in self.asked_calls if call.tool_call_id == tool_call_id]
        # For the model, a capability may have given the tool another name.
        call = next((call for call in asked if call.name == name), asked[0] if asked else None)
        if call is None:
            return None
        self.asked_calls = tuple(each for each in self.asked_calls if each is not call)
        return call.place


class WorkerFrame(RequestFrame):
    """The data of one call of a worker. In a chat it lives over all turns."""

    caller_files: Sequence[MultiModalContent] = ()
    """Its files that the caller gave. Others are part of `prompt`."""
    prompt: Sequence[UserContent] | None = None
    """The prompt, if the worker's input type writes it."""

    def __init__(self, entry: EntryBase, parent: CallFrame) -> None:
        super().__init__(entry, parent)
        if entry.rule_book is not None:
            self.inherited = self.inherited._replace(rules=(*self.inherited.rules, entry.rule_book))
        if entry.generated:
            self.inherited = self.inherited._replace(generated=True)

    @property
    def worker(self) -> WorkerFrame:
        return self

    def end(self) -> None:
        super().end()
        self.model = None

    def continue_with(self, messages: Sequence[ModelMessage]) -> None:
        self.conversation.messages = messages
        self.history_digest = self.digest

    def begin_turn(self) -> dict[str, Any]:
        """Begin another turn, for which only the conversation and open calls are kept. Return the data of the last."""
        before, self.__dict__ = self.__dict__, {}
        kept = {name: value for name, value in before.items() if name in _KEPT_OVER_TURNS}
        WorkerFrame.__init__(self, kept.pop("entry"), kept.pop("parent"))
        self.__dict__.update(kept)
        self.turn += 1
        return before

    def take_back_turn(self, before: dict[str, Any]) -> None:
        """Undo `begin_turn` for a turn without a call. The next one gets its number."""
        self.__dict__ = before


def make_frame(entry: EntryBase, parent: CallFrame) -> CallFrame:
    return WorkerFrame(entry, parent) if entry.kind == "worker" else CallFrame(entry, parent)
