"""How a model's calls come back to `dispatch`.

The agent gets a worker's own tools as proxies, with the schema and the validator of the tool and a body that
dispatches. Foreign tools (of toolsets, MCP servers and capabilities) are behind a wrapper whose `call_tool`
dispatches. Both are the last layer before the tool, so other hooks cannot change what was approved.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Hashable, Mapping, Sequence
from copy import copy
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, Literal, Self

from pydantic import ValidationError
from pydantic_ai import Agent, RunContext, Tool, ToolDenied, ToolFailed, ToolReturn
from pydantic_ai.capabilities import AbstractCapability, CapabilityOrdering
from pydantic_ai.exceptions import ModelRetry
from pydantic_ai.models import Model
from pydantic_ai.toolsets import AbstractToolset, ToolsetTool, WrapperToolset
from pydantic_ai.toolsets.abstract import AGENT_TOOLSET_ID

from ..arguments.inputs import WithFiles
from ..arguments.parameters import Parameters
from ..arguments.vocabulary import Vocabulary
from ..errors import (
    ApprovalDenied,
    ArgumentError,
    LlmDoError,
    PathDenied,
    PathMissing,
    PromptError,
    ToolTimeout,
    summarize,
    was_raised_at,
)
from ..policy.rules import denies_any
from ..privacy.secret_fields import SecretFields
from ..values.canonical import SameObject
from ..values.snapshots import snapshot
from .attachments import attach
from .context import Context, dispatch
from .definition_digest import ToolOfToolset
from .entry import EntryBase
from .frame import CallFrame, RequestFrame, WorkerFrame, make_frame
from .metering import metered
from .session_tools import fingerprint, qualified_name, shapes_of
from .threads import ThreadsOfCall


async def call_from_model(
    run_ctx: RunContext[Context], entry: EntryBase, arguments: dict[str, Any], files: Sequence[str] = ()
) -> Any:
    """Make a call that a model asked for, to a worker perhaps with files. The answer has no configured secrets."""
    filtered = run_ctx.deps.runtime.recorder.redaction.without_configured
    try:
        output = filtered(await _answer(run_ctx, entry, arguments, files))
        if issubclass(type(output), ToolReturn):  # the tool may still write to its content, which becomes a prompt
            output = copy(output)
            object.__setattr__(output, "content", snapshot(output.content))  # also of a class that is frozen
        return output
    except (ModelRetry, ToolFailed) as told:
        if (text := filtered(told.message)) == told.message:
            raise
        raise type(told)(text) from None


async def _answer(
    run_ctx: RunContext[Context], entry: EntryBase, arguments: dict[str, Any], files: Sequence[str]
) -> Any:
    ctx = run_ctx.deps
    frame = make_frame(entry, ctx.frame)
    frame.tool_call_id = run_ctx.tool_call_id
    if isinstance(ctx.frame, RequestFrame):
        frame.request_place = ctx.frame.claim_call(run_ctx.tool_name, run_ctx.tool_call_id)
    if isinstance(frame, WorkerFrame) and entry.attachment_policy is not None:
        try:
            attach(frame, arguments, files, ctx.runtime.gate)
        except LlmDoError as problem:
            recorder, given = ctx.runtime.recorder, {**arguments, "attachments": list(files)}
            visible = recorder.redaction.visible_arguments(frame, given)
            recorder.reject(ctx.frame, entry.name, visible, str(problem), frame.tool_call_id)
            raise ToolFailed(_error_for_model(problem, ctx.frame)) from problem
    try:
        with ctx.runtime.loop.inner_task():  # the worker waits for everything that this task does
            return await dispatch(ctx, entry, arguments, run_ctx, frame)
    except ApprovalDenied as denied:
        return ToolDenied(str(denied))
    except ToolTimeout as timeout:
        if not was_raised_at(timeout, frame.path):
            raise
        raise ModelRetry(str(timeout)) from timeout
    except LlmDoError as problem:
        is_about_input = problem is frame.input_error and not isinstance(problem, PromptError)
        is_for_model = isinstance(problem, entry.errors_for_model) and was_raised_at(problem, frame.path)
        if not (is_about_input or is_for_model):
            raise
        raise ToolFailed(_error_for_model(problem, ctx.frame)) from problem


def _error_for_model(problem: LlmDoError, caller: CallFrame) -> str:
    """Return the text of an error for a model, without names of files that a rule may hide from it."""
    brief = problem.brief if isinstance(problem, PathMissing | PathDenied) else None
    return str(problem) if brief is None or not denies_any("sandbox.read", caller.inherited.rules) else brief


def proxy_tool(entry: EntryBase, original: Tool[Any] | None = None, *, with_files: bool = False) -> Tool[Context]:
    """Return the tool that a worker's model sees for `entry`.

    It keeps the options of `original`, the PydanticAI tool behind the entry, if there is one. With `with_files`, the
    model can hand on files of its roots.
    """

    async def call_entry(run_ctx: RunContext[Context], /, **arguments: Any) -> Any:
        files = arguments.pop("attachments", None) if with_files else None
        return await call_from_model(run_ctx, entry, arguments, files or ())

    if original is None:
        shape = WithFiles(entry.parameters) if with_files else entry.parameters
        tool = Tool[Context].from_schema(call_entry, entry.name, entry.description, shape.json_schema, takes_ctx=True)
        tool.function_schema = replace(tool.function_schema, validator=shape.validator)
        return tool
    tool = copy(original)
    tool.name = entry.name
    tool.function = call_entry
    tool.takes_ctx = True
    tool.function_schema = replace(
        original.function_schema,
        function=call_entry,
        takes_ctx=True,
        is_async=True,
        positional_fields=[],
        var_positional_field=None,
    )
    # The runtime does both. PydanticAI would defer the call, and count the time until a person answers.
    tool.requires_approval = False
    tool.timeout = None
    return tool


class ForeignParameters(Parameters):
    def __init__(self, name: str, tool: ToolsetTool[Any]) -> None:
        self.entry = name
        self.json_schema = tool.tool_def.parameters_json_schema
        self.validator = tool.args_validator
        self.secret_fields = SecretFields.of(self.json_schema)
        may_wrap = not _keeps_names(self.validator)
        self.vocabulary = Vocabulary(name, self.json_schema, unchecked=True, may_wrap=may_wrap)

    def bind(self, args: tuple[Any, ...], kwargs: dict[str, Any], *, has_files: bool = False) -> dict[str, Any]:
        return self.bind_named(kwargs)

    def bind_named(
        self, values: Mapping[str, Any], *, by_name: bool = False, has_files: bool = False
    ) -> dict[str, Any]:
        names: dict[str, Any] = {"by_alias": True, "by_name": True} if by_name else {}
        try:
            bound: dict[str, Any] = self.validator.validate_python(dict(values), **names)
        except ValidationError as exc:
            raise ArgumentError(f"{self.entry}(): {summarize(exc)}") from exc
        return bound


def _keeps_names(validator: Any) -> bool:
    """Return whether a validator passes on unknown arguments, as that of an MCP server's tool does."""
    unknown: dict[str, Any] = {"no argument has this name": {}}
    try:
        return bool(validator.validate_python(unknown) == unknown)
    except Exception:  # users' validators may raise anything
        return False


class ToolsetToolEntry(EntryBase):
    """A tool of a foreign toolset, as an entry for a single call."""

    kind = "tool"
    errors_for_model = (ArgumentError,)

    def __init__(self, name: str, tool: ToolsetTool[Context], governed: GovernedToolset) -> None:
        self.name = name
        self.qualified_name = qualified_name(name, tool)
        self.requires_approval = name in governed.unapproved
        self.parameters = ForeignParameters(name, tool)
        self.secret_fields = self.parameters.secret_fields
        self._tool = tool
        self._governed = governed

    @cached_property
    def identity(self) -> Hashable:  # type: ignore[override]
        """Its identity in grants, which changes with its description."""
        return ToolOfToolset(self._governed.identity, self.name, self.qualified_name, fingerprint(self._tool.tool_def))

    async def call(self, input_data: dict[str, Any], ctx: Context, run_ctx: RunContext[Context]) -> Any:
        threads = ThreadsOfCall(ctx.runtime.loop.threads, ctx.frame)
        with Agent.using_thread_executor(threads):
            try:
                return await self._governed.wrapped.call_tool(self.name, input_data, run_ctx, self._tool)
            except asyncio.CancelledError as exc:
                threads.abandon(exc)
                raise


@dataclass
class HeldToolset(WrapperToolset[Context]):
    """A toolset that its scope holds open over all turns, so that runs do not enter or leave it."""

    @property
    def label(self) -> str:
        return self.wrapped.label

    async def for_run(self, ctx: RunContext[Context]) -> AbstractToolset[Context]:
        fresh = await self.wrapped.for_run(ctx)
        # If a toolset makes a new one for each run, the run enters and leaves that one.
        return self if fresh is self.wrapped else fresh

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *args: Any) -> bool | None:
        return None


@dataclass
class GovernedToolset(WrapperToolset[Context]):
    """A foreign toolset whose calls go through the runtime."""

    identity: Hashable
    """Its identity in grants, the same for the instances of all calls."""
    own_names: Collection[str] = ()
    with_own: bool = False
    """Whether it also wraps the worker's own tools, which dispatch by themselves."""
    unapproved: set[str] = field(default_factory=set)
    """Names of tools for which their toolset requires approval."""
    checked: dict[str, str] = field(default_factory=dict)
    """Fingerprints of the tools that rules were checked against."""

    async def get_tools(self, ctx: RunContext[Context]) -> dict[str, ToolsetTool[Context]]:
        tools = await super().get_tools(ctx)
        foreign = {name: tool for name, tool in tools.items() if not self._is_ours(name, tool)}
        ctx.deps.runtime.rule_checks.check_names(foreign, ctx.deps.frame, self.own_names)
        self._check_rules(foreign, ctx.deps)
        for name, tool in list(tools.items()):
            if tool.tool_def.kind == "unapproved":
                # PydanticAI would end the run to ask. Here the runtime asks, at the call.
                self.unapproved.add(name)
                tools[name] = replace(tool, tool_def=replace(tool.tool_def, kind="function"))
        return tools

    def _is_ours(self, name: str, tool: ToolsetTool[Context]) -> bool:
        # Our proxies are in the agent's own toolset, under their names. Both are needed: a tool of ours may be hidden,
        # and a toolset of another agent has the same id.
        return self.with_own and name in self.own_names and tool.tool_def.toolset_id == AGENT_TOOLSET_ID

    def _check_rules(self, tools: Mapping[str, ToolsetTool[Context]], ctx: Context) -> None:
        """Check the rules on tools that are new, or have changed since they were checked."""
        if not ctx.frame.inherited.rules:
            return
        fingerprints = {name: fingerprint(tool.tool_def) for name, tool in tools.items()}
        changed = {name: tool for name, tool in tools.items() if self.checked.get(name) != fingerprints[name]}
        if changed:
            ctx.runtime.rule_checks.check_rules_for(shapes_of(changed), ctx.frame.inherited.rules)
            self.checked.update(fingerprints)

    async def call_tool(
        self, name: str, tool_args: dict[str, Any], ctx: RunContext[Context], tool: ToolsetTool[Context]
    ) -> Any:
        if self._is_ours(name, tool):
            return await super().call_tool(name, tool_args, ctx, tool)
        return await call_from_model(ctx, ToolsetToolEntry(name, tool, self), tool_args)


@dataclass
class Governor(AbstractCapability[Context]):
    """Wraps the tools and models of a worker's capabilities.

    The innermost one wraps all tools, and every model that they choose. The outermost one is for a model that one of
    them uses instead of the one that it is given.
    """

    context: Context
    own_names: Collection[str]
    position: Literal["innermost", "outermost"]

    def get_ordering(self) -> CapabilityOrdering:
        return CapabilityOrdering(position=self.position)

    def get_wrapper_toolset(self, toolset: AbstractToolset[Context]) -> AbstractToolset[Context] | None:
        if self.position == "outermost":
            return None
        return GovernedToolset(toolset, SameObject(self.context.frame.entry), self.own_names, with_own=True)

    def get_wrapper_model(self, model: Model) -> Model | None:
        frame = self.context.worker_frame
        self.context.runtime.models.check_compatible(frame, model)
        return metered(model, self.context.runtime, frame)
