"""`Executor`: the interface for code that remembers calls, such as a journal or a durable run."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from pydantic_ai.messages import ModelMessage, ModelResponse
from pydantic_ai.models import ModelRequestParameters
from pydantic_ai.settings import ModelSettings

from ..policy.approvals import Answer
from ..policy.requests import ApprovalRequest
from .frame import CallFrame
from .trace import ModelUsage


@dataclass(frozen=True, slots=True, kw_only=True)
class Recalled:
    """The answer of a call that ended in an earlier run."""

    output: Any = None
    error: Exception | None = None
    """Raised instead of returning the output: a failure that the caller handled is an answer, too."""
    is_from_nested_call: bool = False
    """Whether the error was raised in a nested call: the result of `raised_in_nested_call(error, call.record)`."""
    spent: Sequence[ModelUsage] = ()
    """The usage of the call and of all below it, which is restored and not spent again."""
    digest: str | None = None
    """The `digest` of the call in the earlier run. If it differs, or is `None` for a turn of a conversation, the key
    of which does not have it, the call is made again."""
    messages: Sequence[ModelMessage] | None = None
    """The conversation after a turn. If it is `None`, a turn that returned is made again."""

    def is_for(self, call: CallFrame) -> bool:
        """Return whether it is the answer of this call, and for a turn has all that is needed to continue."""
        is_bound = self.digest is not None or call.scope_key is not None
        if is_bound and self.digest != call.digest:
            return False
        return not call.is_turn or self.messages is not None or self.error is not None


@dataclass(frozen=True, slots=True, kw_only=True)
class PendingRequest:
    """A model request that is about to be made."""

    call: CallFrame
    """The call of the worker that makes it."""
    number: int
    """Its number within the call, from 1."""
    model: str
    """The model, as `provider:model`."""
    messages: Sequence[ModelMessage]
    settings: ModelSettings | None
    parameters: ModelRequestParameters = field(repr=False)
    digest: str
    """A digest of the messages, settings and tools, without times and ids, which differ from run to run."""


class Executor:
    """Wraps every call, question and model request of a session, after the checks.

    The defaults remember nothing. An object with only some of these methods is also accepted.
    """

    async def recall(self, call: CallFrame) -> Recalled | None:
        """Return the answer of a call that an earlier run has finished. No rule is checked, since nothing runs."""
        return None

    async def decide(self, request: ApprovalRequest, ask: Callable[[], Awaitable[Answer]]) -> Answer:
        """Return the answer to a question: a stored one, if it is for the same `request.digest`, else that of `ask`."""
        return await ask()

    async def begin(self, call: CallFrame) -> None:
        """Note that a call is approved and about to run."""

    async def execute(self, entry: Any, arguments: dict[str, Any], ctx: Any, run_ctx: Any) -> Any:
        """Run the entry of a call, and return its result. It must call this very `entry.call`."""
        return await entry.call(arguments, ctx, run_ctx)

    async def request(self, request: PendingRequest, send: Callable[[], Awaitable[ModelResponse]]) -> ModelResponse:
        """Return the response to a request: a stored one, or that of `send`, which reserves, waits and pays."""
        return await send()


class Executes(Protocol):
    async def execute(self, entry: Any, arguments: dict[str, Any], ctx: Any, run_ctx: Any) -> Any:
        """Run the entry of a call, and return its result."""


class _Completed(Executor):
    """An executor of a user's own class, with defaults for the methods that it does not have."""

    def __init__(self, executor: Any) -> None:
        for name in ("recall", "decide", "begin", "execute", "request"):
            if (method := getattr(executor, name, None)) is not None:
                setattr(self, name, method)


def complete_executor(executor: Executor | Executes | None) -> Executor | None:
    return executor if executor is None or isinstance(executor, Executor) else _Completed(executor)


def answers_requests(executor: Executor) -> bool:
    """Return whether an executor has its own `request`."""
    return getattr(executor.request, "__func__", executor.request) is not Executor.request
