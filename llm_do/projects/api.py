"""One call, from a project's files to a result: `run_worker`, `call_worker`, `create_worker`.

A thin layer over the runtime, for those who want no more than to run a worker.
"""

from __future__ import annotations

import asyncio
import contextvars
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path
from typing import Any

from pydantic_ai.messages import ModelMessage, MultiModalContent
from pydantic_ai.usage import RunUsage

from .. import toolsets
from ..arguments.inputs import WorkerInput, bind_input, set_fields
from ..arguments.payloads import AttachmentInput
from ..core.adapt import parameters_of
from ..core.attachments import load
from ..core.context import Context, call_bound
from ..core.entries import WorkerEntry
from ..core.entry import Entry, MessageCallback
from ..core.runtime import Runtime
from ..core.trace import Trace, TraceEntry
from ..definitions.definition import WorkerCreationDefaults, WorkerDefinition, WorkerSpec
from ..errors import ArgumentError, EventLoopError, ModelChoiceError
from ..machine import pool
from ..models import announce, choose_default_model, explain_missing, named_model
from ..models.choice import ModelLike
from ..policy.requests import ApprovalCallback, Approver
from ..values.fields import fields_of
from .registry import WorkerRegistry


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerRunResult:
    """What a run gave, and what it took."""

    output: Any
    """What the worker returned."""
    messages: list[ModelMessage]
    """What the worker and its model said to each other, without secrets."""
    trace: Trace
    """Every call of the run."""
    usage: dict[str, RunUsage]
    """What was used, by model name."""

    @property
    def cost(self) -> Decimal | None:
        """US dollars, where all prices are known."""
        costs = [usage.cost for usage in self.usage.values()]
        return None if None in costs else sum((cost for cost in costs if cost is not None), Decimal(0))

    @property
    def refusals(self) -> list[TraceEntry]:
        """The calls that were refused."""
        return [record for record in self.trace if record.approval is not None and not record.approval.approved]


async def run_worker_async(
    *,
    registry: WorkerRegistry,
    worker: str,
    input_data: Any = None,
    attachments: Sequence[AttachmentInput] | None = None,
    cli_model: ModelLike | None = None,
    approval_callback: ApprovalCallback | Approver | None = None,
    message_callback: MessageCallback | None = None,
    creation_defaults: WorkerCreationDefaults | None = None,
    stream: bool = False,
) -> WorkerRunResult:
    """Run a worker, or a function, of a project.

    Args:
        registry: The project.
        worker: Its name.
        input_data: Text, or a mapping from the names of arguments to their values.
        attachments: Paths of files, or names with bytes, that go to the worker.
        cli_model: The model of workers that have none of their own, before anything that is configured.
        approval_callback: Asked before calls that need approval.
        message_callback: Told everything that happens, with the start and the end of each model request.
        creation_defaults: What workers that are created in this run have where nothing else is said.
        stream: Tell `message_callback` the text of answers as it comes. It makes every request a stream.
    """
    config = registry.config
    named = named_model(cli_model, config.model)

    async def choose_model(worker: str, notice: Callable[[str], None]) -> ModelLike:
        choice = await pool.run(choose_default_model)
        for line in announce(choice):
            print(line, file=sys.stderr)  # noqa: T201
        if choice.model is None:
            raise ModelChoiceError(explain_missing(worker))
        return choice.model

    runtime = Runtime(
        registry,
        model=None if named is None else named.model,
        choose_model=choose_model,
        approval_callback=approval_callback,
        tool_rules=registry.rule_book(),
        limits=config.session_limits(),
        message_callback=message_callback,
        creation_defaults=creation_defaults,
        text_deltas=stream,
    )
    entry = registry[worker]
    arguments = bind_input(parameters_of(entry), input_data, has_files=bool(attachments))
    return await run_entry(runtime, entry, arguments, load_files(attachments, entry))


async def run_entry(
    runtime: Runtime, entry: Entry[Any], arguments: dict[str, Any], files: list[MultiModalContent]
) -> WorkerRunResult:
    """Run an entry at the top of a session, with arguments that are bound and files that it may have."""
    if not isinstance(entry, WorkerEntry):
        output = await call_bound(runtime.context(), entry, arguments)
        return WorkerRunResult(output=output, messages=[], trace=runtime.trace, usage=runtime.usage)
    scope = entry.start(runtime)  # opened within its turn, so that sinks learn what its toolsets wait for
    try:
        output = await scope.take_turn(arguments, files)
        messages = runtime.recorder.secrets.redact(scope.messages)
        return WorkerRunResult(output=output, messages=messages, trace=runtime.trace, usage=runtime.usage)
    finally:
        await scope.close()


def load_files(attachments: Sequence[AttachmentInput] | None, entry: Any) -> list[MultiModalContent]:
    """Read the files that a person, or a program of theirs, gives an entry, and check that it may have them."""
    if isinstance(attachments, str | Path):
        raise TypeError(f"attachments must be a list, got {attachments!r}.")
    if not attachments:
        return []
    if not isinstance(entry, WorkerEntry):
        raise ArgumentError(f"{entry.name!r} is a function: it takes the input that it declares, and no attachments.")
    return load(attachments, entry.attachment_policy, entry.name)


def run_worker(
    *,
    registry: WorkerRegistry,
    worker: str,
    input_data: Any = None,
    attachments: Sequence[AttachmentInput] | None = None,
    cli_model: ModelLike | None = None,
    approval_callback: ApprovalCallback | Approver | None = None,
    message_callback: MessageCallback | None = None,
    creation_defaults: WorkerCreationDefaults | None = None,
    stream: bool = False,
) -> WorkerRunResult:
    """`run_worker_async` for synchronous code."""
    running = run_worker_async(
        registry=registry,
        worker=worker,
        input_data=input_data,
        attachments=attachments,
        cli_model=cli_model,
        approval_callback=approval_callback,
        message_callback=message_callback,
        creation_defaults=creation_defaults,
        stream=stream,
    )
    try:
        asyncio.get_running_loop()
    except RuntimeError:  # as it should be
        # In a context of its own: a thread that a loop started has inherited that loop's variables.
        return contextvars.Context().run(asyncio.run, running)
    running.close()
    raise EventLoopError("An event loop is running: use `await run_worker_async(...)`.")


async def call_worker_async(
    *,
    registry: WorkerRegistry,
    worker: str,
    input_data: Any,
    caller_context: Context,
    attachments: Sequence[str] | None = None,
) -> Any:
    """Call a worker on behalf of another one, whose file must allow it. `registry` is that of the caller's session."""
    if caller_context.registry is not registry:
        raise ValueError("caller_context belongs to a session of another registry.")
    return await RuntimeDelegator(caller_context).call_async(worker, input_data, list(attachments or ()))


def call_worker(
    *,
    registry: WorkerRegistry,
    worker: str,
    input_data: Any,
    caller_context: Context,
    attachments: Sequence[str] | None = None,
) -> Any:
    """`call_worker_async` for a synchronous tool."""
    if caller_context.registry is not registry:
        raise ValueError("caller_context belongs to a session of another registry.")
    _check_no_loop("call_worker", "await call_worker_async(...)")
    given = {"input_data": _as_mapping(input_data), "attachments": list(attachments or ())}
    return caller_context.call_sync(toolsets.worker_call, worker=worker, **given)


def _as_mapping(input_data: Any) -> Any:
    """Return the fields of a model or a dataclass, which is the arguments; anything else as it is."""
    if isinstance(input_data, WorkerInput):
        return set_fields(input_data)
    fields = None if isinstance(input_data, type) else fields_of(input_data)
    return input_data if fields is None else {**fields.declared, **fields.extra}


def _check_no_loop(what: str, instead: str) -> None:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return
    raise EventLoopError(f"{what} would block the event loop that has to serve the call. Use `{instead}` here.")


def create_worker(
    *,
    registry: WorkerRegistry,
    spec: WorkerSpec,
    defaults: WorkerCreationDefaults | None = None,
    force: bool = False,
) -> WorkerDefinition:
    """Write a worker to `workers/generated/NAME.yaml`, on behalf of the project."""
    return registry.create(spec, defaults, force=force)


class RuntimeDelegator:
    """The `WorkerDelegator` of a session: what `worker_call` does, with its rules and its record."""

    def __init__(self, context: Context) -> None:
        self._context = context

    async def call_async(self, worker: str, input_data: Any, attachments: list[str]) -> Any:
        """Call a worker, with files from the roots of the worker that calls."""
        return await self._context.call(
            toolsets.worker_call, worker=worker, input_data=_as_mapping(input_data), attachments=list(attachments)
        )


class RuntimeCreator:
    """The `WorkerCreator` of a session: what `worker_create` does, with its rules and its record."""

    def __init__(self, context: Context) -> None:
        self._context = context

    def create(self, name: str, instructions: str, **options: Any) -> dict[str, Any]:
        """Create a worker, and return what its file says. `options` are `description`, `tools` and `force`."""
        _check_no_loop("RuntimeCreator.create", "await RuntimeCreator(ctx.deps).create_async(...)")
        self._context.call_sync(toolsets.worker_create, name=name, instructions=instructions, **options)
        return self._definition(name)

    async def create_async(self, name: str, instructions: str, **options: Any) -> dict[str, Any]:
        """Do the same in an asynchronous tool."""
        await self._context.call(toolsets.worker_create, name=name, instructions=instructions, **options)
        return self._definition(name)

    def _definition(self, name: str) -> dict[str, Any]:
        registry = self._context.registry
        assert isinstance(registry, WorkerRegistry)
        return registry.definition(name).model_dump(exclude_defaults=True)
