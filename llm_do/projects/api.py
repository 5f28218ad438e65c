"""Run, call and create workers with one function each: a thin layer over the runtime."""

from __future__ import annotations

import asyncio
import contextvars
import sys
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass
from decimal import Decimal
from functools import wraps
from pathlib import Path
from typing import Any, ParamSpec, TypeVar

from pydantic_ai.messages import ModelMessage, MultiModalContent
from pydantic_ai.usage import RunUsage

from ..arguments.inputs import WorkerInput, bind_input, set_fields
from ..arguments.prompts import AttachmentInput
from ..core.adapt import parameters_of
from ..core.attachments import load
from ..core.context import Context, call_bound
from ..core.entry import Entry, MessageCallback
from ..core.runtime import Runtime
from ..core.trace import Trace, TraceEntry
from ..core.worker import WorkerEntry
from ..definitions.definition import WorkerCreationDefaults, WorkerDefinition, WorkerSpec
from ..errors import ArgumentError, EventLoopError, ModelChoiceError
from ..machine import pool
from ..models.choice import ModelLike, announce, choose_default_model, explain_missing, named_model
from ..policy.requests import ApprovalCallback, Approver
from ..toolsets.delegation import worker_call, worker_create
from ..values.fields import fields_of
from .registry import WorkerRegistry

P = ParamSpec("P")
T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerRunResult:
    """The result of a run, and its costs."""

    output: Any
    """The worker's result."""
    messages: list[ModelMessage]
    """The messages between the worker and its model, without secrets."""
    trace: Trace
    """Every call of the run."""
    usage: dict[str, RunUsage]
    """Usage by model name."""

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
        creation_defaults: Values of workers that are created in this run, for fields that are left out.
        stream: Tell `message_callback` the text of answers as it comes. It makes every request a stream.
    """
    named = named_model(cli_model, registry.config.model)

    async def choose_model(worker: str, notice: Callable[[str], None]) -> ModelLike:
        choice = await pool.run(choose_default_model)
        for line in announce(choice):
            print(line, file=sys.stderr)  # noqa: T201
        if choice.model is None:
            raise ModelChoiceError(explain_missing(worker))
        return choice.model

    runtime = registry.runtime(
        model=None if named is None else named.model,
        choose_model=choose_model,
        approval_callback=approval_callback,
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
    """Run an entry at the top of a session, with arguments that are bound and files that were checked."""
    if not isinstance(entry, WorkerEntry):
        output = await call_bound(runtime.context(), entry, arguments)
        return WorkerRunResult(output=output, messages=[], trace=runtime.trace, usage=runtime.usage)
    # Opened within its turn, so that sinks learn what its toolsets wait for.
    scope = entry.start(runtime, is_conversation=False)
    try:
        output = await scope.take_turn(arguments, files)
        messages = runtime.recorder.secrets.redact(scope.messages)
        return WorkerRunResult(output=output, messages=messages, trace=runtime.trace, usage=runtime.usage)
    finally:
        await scope.close()


def load_files(attachments: Sequence[AttachmentInput] | None, entry: Any) -> list[MultiModalContent]:
    """Read the attachments of a call from outside, and check that the entry may have them."""
    if isinstance(attachments, str | Path):
        raise TypeError(f"attachments must be a list, got {attachments!r}.")
    if not attachments:
        return []
    if not isinstance(entry, WorkerEntry):
        raise ArgumentError(f"{entry.name!r} is a function: it takes the input that it declares, and no attachments.")
    return load(attachments, entry.attachment_policy, entry.name)


def _for_synchronous_code(function: Callable[P, Coroutine[Any, Any, T]]) -> Callable[P, T]:
    name = function.__name__.removesuffix("_async")

    @wraps(function)
    def run(*args: P.args, **kwargs: P.kwargs) -> T:
        _check_no_loop(name, f"await {function.__name__}(...)")
        # A thread that an event loop started has inherited the variables of that loop: run in an empty context.
        return contextvars.Context().run(asyncio.run, function(*args, **kwargs))

    run.__name__ = run.__qualname__ = name
    return run


run_worker = _for_synchronous_code(run_worker_async)
"""`run_worker_async` for synchronous code, with the same parameters."""


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
    return caller_context.call_sync(
        worker_call, worker=worker, input_data=_as_mapping(input_data), attachments=list(attachments or ())
    )


def _as_mapping(input_data: Any) -> Any:
    """Return the fields of a model or a dataclass as arguments, and any other value as it is."""
    if isinstance(input_data, WorkerInput):
        return set_fields(input_data)
    fields = fields_of(input_data)
    return input_data if fields is None else {**fields.declared, **fields.extra}


def _check_no_loop(function: str, instead: str) -> None:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return
    raise EventLoopError(f"{function} would block the running event loop: use `{instead}`.")


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
    """The `WorkerDelegator` of a session, which calls `worker_call`, with its rules and its record."""

    def __init__(self, context: Context) -> None:
        self._context = context

    async def call_async(self, worker: str, input_data: Any, attachments: list[str]) -> Any:
        """Call a worker, with files from the roots of the worker that calls."""
        return await self._context.call(
            worker_call, worker=worker, input_data=_as_mapping(input_data), attachments=list(attachments)
        )


class RuntimeCreator:
    """The `WorkerCreator` of a session, which calls `worker_create`, with its rules and its record."""

    def __init__(self, context: Context) -> None:
        self._context = context

    def create(self, name: str, instructions: str, **options: Any) -> dict[str, Any]:
        """Create a worker, and return the content of its file. `options` are `description`, `tools` and `force`."""
        _check_no_loop("RuntimeCreator.create", "await RuntimeCreator(ctx.deps).create_async(...)")
        self._context.call_sync(worker_create, name=name, instructions=instructions, **options)
        return self._definition(name)

    async def create_async(self, name: str, instructions: str, **options: Any) -> dict[str, Any]:
        """Do the same in an asynchronous tool."""
        await self._context.call(worker_create, name=name, instructions=instructions, **options)
        return self._definition(name)

    def _definition(self, name: str) -> dict[str, Any]:
        registry = self._context.registry
        assert isinstance(registry, WorkerRegistry)
        return registry.definition(name).model_dump(exclude_defaults=True)
