"""Tools with which a worker's model calls other workers, and creates new ones."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any, Protocol, runtime_checkable

from pydantic import ValidationError
from pydantic_ai import RunContext, Tool

from ..arguments.inputs import bind_input
from ..arguments.prompts import AttachmentPayload
from ..core.attachments import attach, check_handed_on, check_names, read_shared
from ..core.context import Context, dispatch
from ..core.frame import CallFrame, WorkerFrame
from ..core.tool import ToolEntry
from ..core.worker import WorkerEntry
from ..definitions.definition import WorkerCreationDefaults, WorkerDefinition, WorkerSpec
from ..errors import (
    ArgumentError,
    DelegationDenied,
    DuplicateEntryError,
    LlmDoError,
    NoSandboxError,
    PathChanged,
    PathDenied,
    PathFailed,
    PathMissing,
    ProjectCodeError,
    RuleError,
    UnknownEntryError,
    WorkerFileError,
    did_you_mean,
    summarize,
)
from ..policy.plan import Plan, pin_files
from ..policy.rules import Case, Ruling
from ..privacy.secret_fields import DELEGATED
from ..sandbox import Pins


def may_call(caller: Any, worker: str) -> bool:
    """Return whether a worker's file allows it to call another one."""
    allowed = getattr(caller, "allow_workers", ())
    return "*" in allowed or worker in allowed


def check_may_call(caller: CallFrame | None, worker: str, path: str) -> Any:
    """Return the calling worker, if it may call the other one. `path` is the call path, for the error."""
    entry = caller.entry if caller is not None else None
    if entry is None or not may_call(entry, worker):
        allowed = list(getattr(entry, "allow_workers", ()))
        raise DelegationDenied(
            f"{path} may not call worker {worker!r}: "
            + (f"it may call {', '.join(allowed)}." if allowed else "it may call none. Name it in allow_workers.")
        )
    return entry


def _read_attachment(ctx: Context, path: str) -> AttachmentPayload:
    """Read a file to hand over, without secrets. If a person was asked, it must be the file that they saw."""
    payload, pins = read_shared(ctx.sandbox_toolset, path), ctx.frame.pins
    if pins is not None and pins.files[path].content != payload.data:
        raise PathChanged(f"{path!r} has changed since it was looked at, and was not handed on.")
    return replace(payload, data=ctx.runtime.gate.redaction.for_model(payload.data))


async def _worker_call(
    ctx: RunContext[Context],
    worker: str,
    input_data: str | dict[str, Any] | list[Any] | int | float | bool | None = None,
    attachments: list[str] | None = None,
) -> Any:
    """Give a task to another worker, and return its answer.

    Args:
        worker: Name of the worker.
        input_data: The task as text, or the arguments as an object. Leave out if the worker takes no input, or if the
            attachments say everything.
        attachments: Paths of files to hand over, for example ROOT/folder/file.pdf.
    """
    context, paths = ctx.deps, list(attachments or ())
    caller = check_may_call(context.frame.worker, worker, context.frame.path)
    target = context.registry.get(worker)
    if not isinstance(target, WorkerEntry):
        callable_names = [name for name in context.registry if may_call(caller, name)]
        raise UnknownEntryError(f"There is no worker {worker!r}.{did_you_mean(worker, callable_names)}")
    arguments = bind_input(target.parameters, input_data, has_files=bool(paths))
    frame = WorkerFrame(target, context.frame)
    check_names(frame, paths)
    attach(frame, arguments, [_read_attachment(context, path) for path in paths], context.runtime.gate)
    try:
        return await dispatch(context, target, arguments, frame=frame)
    except LlmDoError as exc:
        if exc is frame.input_error:  # the input of this call is wrong, so the call itself failed
            failed = type(exc)(str(exc))
            if isinstance(exc, PathMissing | PathDenied) and isinstance(failed, PathMissing | PathDenied):
                failed.brief = exc.brief
            raise failed from exc
        raise


@dataclass(frozen=True, kw_only=True)
class _DelegationPlan(Plan):
    arguments: dict[str, Any]
    caller: WorkerFrame | None
    """The worker that calls; not the frame of the call, which has this plan."""
    path: str

    def pins(self, ruling: Ruling) -> Pins:
        """Return the attached files, if the worker may hand on so many."""
        paths = self.arguments.get("attachments")
        if self.caller is None or not paths:
            return Pins({}, exact=True)
        check_handed_on(self.caller, paths)
        return pin_files(self.caller.files.manager, paths, exact=True)

    def view(self, ruling: Ruling, pins: Pins | None) -> dict[str, Any]:
        """Return the arguments with the sizes of the files, or refuse the call."""
        check_may_call(self.caller, self.arguments["worker"], self.path)
        files = self.caller.conversation.sandbox if self.caller is not None else None
        shared = []
        for path in self.arguments.get("attachments") or ():
            root, _, rest = path.partition("/")
            size = None
            with suppress(LlmDoError):  # what cannot be read is refused when it is read
                size = files.stat(root, rest).st_size if files is not None else None
            shared.append({"root": root, "path": rest, "bytes": size})
        return {**self.arguments, "attachments": shared} if shared else self.arguments


def _plan(arguments: dict[str, Any], frame: CallFrame) -> Plan:
    """Return the plan of a call. Rules judge the worker, and each attached file by its path on this machine."""
    worker, shared = arguments["worker"], arguments.get("attachments") or ()
    places = {path: frame.files.manager.host_path(path) for path in shared}
    cases = [Case({"worker": worker, "attachments": place}, path) for path, place in places.items()]
    cases += [Case({"path": place}, path, name="sandbox.read") for path, place in places.items()]
    cases = cases or [Case({"worker": worker, "attachments": None})]
    return _DelegationPlan(cases=cases, arguments=arguments, caller=frame.worker, path=frame.path)


worker_call = ToolEntry[Any](
    Tool(_worker_call, name="worker_call"),
    rule="worker.call",
    plan=_plan,
    errors_for_model=(
        *(ArgumentError, NoSandboxError, PathDenied, PathFailed, PathMissing),
        *(ProjectCodeError, UnknownEntryError, WorkerFileError),
    ),
    secret_fields=DELEGATED,
)


@runtime_checkable
class WorkerStore(Protocol):
    """Where workers can be created: a `WorkerRegistry`."""

    def create(
        self, spec: WorkerSpec, defaults: WorkerCreationDefaults | None, *, created_by: str, force: bool, by_model: bool
    ) -> WorkerDefinition: ...


async def _worker_create(
    ctx: RunContext[Context],
    name: str,
    instructions: str,
    description: str | None = None,
    tools: list[str] | None = None,
    force: bool = False,
) -> str:
    """Create a worker that you can then call with worker_call. It can do no more than you can.

    Args:
        name: Name of the worker, of letters, digits, _ and -.
        instructions: Instructions that the worker follows in every call.
        description: Purpose of the worker, in one sentence.
        tools: Names of those of your tools that it may use.
        force: Replace a worker of that name that you created before.
    """
    store, frame = ctx.deps.registry, ctx.deps.frame.worker
    if not isinstance(store, WorkerStore) or frame is None:
        raise WorkerFileError("Workers can be created only by a worker of a project.")
    try:
        spec = WorkerSpec(name=name, instructions=instructions, description=description, tools=tuple(tools or ()))
    except ValidationError as exc:
        raise WorkerFileError(summarize(exc)) from exc
    store.create(spec, ctx.deps.creation_defaults, created_by=frame.entry.name, force=force, by_model=True)
    return f"Worker {name!r} is created."


worker_create = ToolEntry[str](
    Tool(_worker_create, name="worker_create"),
    rule="worker.create",
    effects=["write"],
    errors_for_model=(WorkerFileError, DuplicateEntryError, ProjectCodeError, RuleError),
)
