"""`Runtime`: a session with the methods that programs use."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, overload

from pydantic_ai.usage import RunUsage
from typing_extensions import TypeVar

from ..budgets.limits import Budget
from ..policy.rules import Ruling
from .adapt import adapt
from .context import Context
from .entry import BoundEntry, Entry
from .frame import WorkerFrame, make_frame
from .session import Session
from .trace import MessageLog, Trace

T = TypeVar("T", default=Any)


class Runtime(Session):
    """One session, which has its own trace, usage, grants and budgets. Runtimes are cheap.

    Args:
        entries: The entries that can be called by name: workers, tools, or a mapping from names to them.
        model: The model of workers that have none of their own.
        approval_callback: Asked before a call that requires approval: a function, or an `Approver`, which sees more.
            Without one, such calls are refused.
        tool_rules: Rules for the whole session: which calls are allowed, are asked about, or are denied.
        max_depth: A call at this depth or deeper is refused. Top-level calls have depth 0.
        limits: Budgets over the whole tree of calls.
        max_concurrency: How many workers one call runs side by side, and how many model requests are in
            flight in the whole session.
        message_callback: A function that gets every event: the short form of a sink.
        sinks: Observers of the session.
        journal: A sink that must not fail: if it does, the call fails.
        executor: Wraps calls, questions and model requests: an `Executor`, or an object with some of its methods.
        toolsets: Toolset factories that workers refer to by name.
        creation_defaults: Defaults of the workers that are created in the session.
        text_deltas: Send sinks the text of answers while it is written. Every request is then a stream.
        secrets: Names of environment variables whose values are never recorded, and that no tool sends to a model.
            They are read when the session starts. Those of `llm-do.toml` are added in every `Runtime(registry)`.
        prices: Prices of models, by name, if the public price list does not have them or you pay others. Those of
            `llm-do.toml` hold in every `Runtime(registry)` that does not give others.
        limit_callback: Asked when a limit of the session on requests, tokens or money refuses a request. It gets the
            `LimitExceeded` and the limits, and returns new limits, or `None` to refuse, as the same limits do. It
            cannot call the session itself, since calls wait for its answer.
        choose_model: Asked for the default model, if `model` is not given, when a worker without one is first called.
            It gets the worker's name and a function that sends the sinks a notice, and raises if there is no model.
        max_records: How many records of finished calls the trace keeps, and how many messages the message log, for a
            long-lived session. Sinks get everything. `None` keeps all.
        session_id: The id of an earlier session that it continues: `ctx.idempotency_key` is then the same, too.
    """

    @overload
    async def call(self, entry: str, /, *args: Any, **kwargs: Any) -> Any: ...
    @overload
    async def call(self, entry: Entry[T], /, *args: Any, **kwargs: Any) -> T: ...
    async def call(self, entry: str | Entry[Any], /, *args: Any, **kwargs: Any) -> Any:
        """Call an entry at the top level."""
        return await self.context().call(entry, *args, **kwargs)

    @overload
    def call_sync(self, entry: str, /, *args: Any, **kwargs: Any) -> Any: ...
    @overload
    def call_sync(self, entry: Entry[T], /, *args: Any, **kwargs: Any) -> T: ...
    def call_sync(self, entry: str | Entry[Any], /, *args: Any, **kwargs: Any) -> Any:
        """Call an entry at the top level from synchronous code."""
        return self.context().call_sync(entry, *args, **kwargs)

    @overload
    def bind(self, entry: str, /) -> BoundEntry[Any]: ...
    @overload
    def bind(self, entry: Entry[T], /) -> BoundEntry[T]: ...
    def bind(self, entry: str | Entry[Any], /) -> BoundEntry[Any]:
        """Return an entry as a function that makes its calls through this runtime."""
        return self.context().bind(entry)

    def why(
        self,
        entry: str | Entry[Any],
        arguments: Mapping[str, Any] | None = None,
        *,
        worker: str | Entry[Any] | None = None,
    ) -> Ruling:
        """Return the decision of the rules about a call, and the rule that decides. Nothing runs, and no one is asked.

        Args:
            entry: The entry that would be called.
            arguments: Its arguments.
            worker: The worker that would call it; `None` means Python code at the top.
        """
        caller, sandbox = self.root, None
        if worker is not None:
            caller = WorkerFrame(self.resolve(worker, caller) if isinstance(worker, str) else adapt(worker), caller)
            sandbox = caller.conversation.sandbox = caller.entry.open_sandbox()
        try:
            target = self.resolve(entry, caller) if isinstance(entry, str) else adapt(entry)
            return self.gate.explain(make_frame(target, caller), arguments or {})
        finally:
            if sandbox is not None:
                sandbox.manager.close()

    def context(self) -> Context:
        """Return the context at the top of the session."""
        return Context(self, self.root)

    @property
    def trace(self) -> Trace:
        """The records of all calls so far."""
        return self.recorder.read_trace()

    @property
    def usage(self) -> dict[str, RunUsage]:
        """The usage so far, by model name."""
        return self.spending.meter.by_model

    @property
    def usage_by_provider(self) -> dict[str, RunUsage]:
        """The usage so far, by `provider:model`."""
        return self.spending.meter.by_provider

    @property
    def budget(self) -> Budget:
        """The money and the tokens of the session: spent, estimated, reserved and left."""
        return self.spending.meter.budget()

    @property
    def messages(self) -> MessageLog:
        """All messages between workers and their models, in order of time."""
        return self.recorder.read_messages()
