"""`ToolEntry` and `@entry`: a Python callable as an entry."""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Collection
from dataclasses import KW_ONLY, dataclass, field
from functools import cached_property, partial
from typing import Any, Generic, NoReturn, Protocol, cast, overload

import anyio
from pydantic.errors import PydanticSchemaGenerationError
from pydantic_ai import RunContext, Tool
from pydantic_ai.exceptions import ModelRetry, ToolFailed
from typing_extensions import TypedDict, TypeVar, Unpack

from ..arguments.parameters import DeclaredParameters
from ..arguments.signatures import tool_parameters
from ..errors import ArgumentError, ToolTimeout
from ..policy.plan import Plan
from ..privacy.secret_fields import SecretFields
from ..values.names import check_name
from .context import Context, run_context
from .entry import EFFECTS, Effect, EntryBase, Repeat, check_repeat
from .frame import CallFrame
from .plane import proxy_tool
from .recorder import THREAD_DROPPED

T = TypeVar("T", default=Any)


class ToolOptions(TypedDict, total=False):
    """The options of `@entry` and `ToolEntry.from_function`."""

    name: str | None
    description: str | None
    requires_approval: bool
    schema_out: Any
    rule: str | None
    effects: Collection[Effect] | None
    repeat: Repeat | None


@dataclass(eq=False, frozen=True)
class ToolEntry(EntryBase, Generic[T]):
    """A Python callable as an entry, around a PydanticAI `Tool`.

    Call it through a context or a runtime. Its own method `call` only runs the function: no approval, limits or record.
    """

    tool: Tool[Any]
    """The function, with its name, its description and its schema."""
    _: KW_ONLY
    requires_approval: bool = False
    """Whether a person must approve each call, from Python or a model."""
    schema_out: Any = None
    """The type that its output must have, checked strictly. The original object is returned."""
    rule: str | None = None
    """The name that rules use for it, if that is not its own."""
    effects: Collection[Effect] | None = None
    """Its effects beyond computing: `read`, `write`, `execute`, `network`. All but `read` require approval. `()` means
    that it has none, `None` that they are not declared."""
    repeat: Repeat | None = None  # type: ignore[assignment]
    """How a resumed run treats a call that had begun: repeat it (`safe`), repeat it with the same
    `ctx.idempotency_key` (`keyed`), or ask a person (`never`). The default is `safe` for effects `()` or `read`, and
    for a function that takes the context and declares none, since its calls have their own; else `never`."""
    plan: Callable[[dict[str, Any], CallFrame], Plan] | None = None
    """Returns the plan of a call, if its arguments alone do not show what it would do: cases for rules, a view."""
    plans_in_thread: bool = False
    """Whether calls are planned and judged in a thread, because planning walks through folders."""
    errors_for_model: tuple[type[Exception], ...] = ()
    """Exceptions reported to the calling model as a failed tool result instead of ending the run."""
    secret_fields: SecretFields | None = None
    """Which arguments are secret, if their schema does not say so."""
    kind: str = field(default="tool", init=False)

    # Plain attributes instead of properties: they are read at every call.
    name: str = field(init=False)
    description: str | None = field(init=False)
    needs_run_context: bool = field(init=False)
    parameters: DeclaredParameters = field(init=False)
    proxy: Tool[Context] = field(init=False)
    check_arguments: Callable[[dict[str, Any], Context], Awaitable[None]] | None = field(init=False)
    _function: Callable[..., Any] = field(init=False)
    _plain: bool = field(init=False)
    """Whether a call only has to await the function with keywords."""

    def __post_init__(self) -> None:
        tool, schema = self.tool, self.tool.function_schema
        check_name(tool.name)
        _check_function(tool)
        effects = _check_effects(self.effects, tool.name)
        parameters = tool_parameters(tool)
        special = schema.takes_ctx or schema.positional_fields or schema.var_positional_field or tool.timeout
        unchecked = (ArgumentError,) if parameters.vocabulary.unchecked else ()
        only_reads = effects is not None and effects <= {"read"}
        has_side_effects = effects is not None and not only_reads
        repeat: Repeat = "safe" if only_reads or (effects is None and tool.takes_ctx) else "never"
        derived = {
            "name": tool.name,
            "description": tool.description,
            "effects": effects,
            "repeat": repeat if self.repeat is None else check_repeat(self.repeat, tool.name),
            "requires_approval": self.requires_approval or tool.requires_approval or has_side_effects,
            "needs_run_context": tool.takes_ctx,
            "parameters": parameters,
            "secret_fields": self.secret_fields or parameters.secret_fields,
            "errors_for_model": (*self.errors_for_model, *unchecked),
            # PydanticAI validates only the calls of a model.
            "check_arguments": None if tool.args_validator is None else self._check_arguments,
            "_function": schema.function,
            "_plain": schema.is_async and not special,
        }
        for name, value in derived.items():
            object.__setattr__(self, name, value)
        object.__setattr__(self, "proxy", proxy_tool(self, tool))

    @overload
    @classmethod
    def from_function(cls, function: Callable[..., Awaitable[T]], **options: Unpack[ToolOptions]) -> ToolEntry[T]: ...
    @overload
    @classmethod
    def from_function(cls, function: Callable[..., T], **options: Unpack[ToolOptions]) -> ToolEntry[T]: ...
    @classmethod
    def from_function(
        cls, function: Callable[..., Any], *, name: str | None = None, description: str | None = None, **options: Any
    ) -> ToolEntry[Any]:
        """Return an entry for a function, sync or async, with or without a `RunContext`. Options as in `@entry`."""
        if not callable(function):
            raise TypeError(f"An entry is made from a function, got {function!r}. A name is given with name=...")
        try:
            tool = Tool(function, name=name, description=description)
        except PydanticSchemaGenerationError as exc:
            raise TypeError(
                f"{function!r} has a parameter that pydantic has no schema for: {exc}. "
                "A context is taken as `ctx: RunContext[Context]`, first, and used as `ctx.deps`."
            ) from exc
        return cls(tool, **options)

    @cached_property
    def source(self) -> str:  # type: ignore[override]
        """The file and line of the function."""
        function = inspect.unwrap(self.tool.function)
        code = getattr(function, "__code__", None)
        return f"{code.co_filename}:{code.co_firstlineno}" if code is not None else repr(function)

    async def _check_arguments(self, arguments: dict[str, Any], ctx: Context) -> None:
        validator = cast("Callable[..., Any]", self.tool.args_validator)
        try:
            result = validator(run_context(ctx, self), **arguments)
            if inspect.isawaitable(result):
                await result
        except (ModelRetry, ToolFailed) as exc:
            raise ArgumentError(f"{self.name}(): {exc}") from exc

    async def call(self, input_data: dict[str, Any], ctx: Context, run_ctx: RunContext[Context] | None = None) -> T:
        if self._plain:  # the common case, and the cheapest
            result: T = await self._function(**input_data)
            return result
        if self.tool.timeout is None:
            return await self._call_function(input_data, ctx, run_ctx)
        with anyio.move_on_after(self.tool.timeout):
            return await self._call_function(input_data, ctx, run_ctx)
        frame, message = ctx.frame, f"{self.name}() timed out after {self.tool.timeout:g} seconds."
        if frame.thread_dropped:
            message += f" {THREAD_DROPPED.capitalize()}."
        elif frame.thread_wait:
            message += f" It {frame.thread_wait}."
        raise ToolTimeout(message)

    async def _call_function(self, arguments: dict[str, Any], ctx: Context, run_ctx: RunContext[Context] | None) -> T:
        schema = self.tool.function_schema
        args: list[Any] = [run_ctx] if schema.takes_ctx else []
        kwargs = dict(arguments)
        args.extend(kwargs.pop(name) for name in schema.positional_fields)
        if schema.var_positional_field:
            args.extend(kwargs.pop(schema.var_positional_field))
        if schema.is_async:
            output: Any = self._function(*args, **kwargs)
        else:
            output = await ctx.runtime.loop.threads.run(ctx.frame, partial(self._function, *args, **kwargs))
        # A synchronous function may return an awaitable, as a lambda around a coroutine function does.
        result: T = await output if inspect.isawaitable(output) else output
        return result

    def __call__(self, *args: Any, **kwargs: Any) -> NoReturn:
        raise TypeError(
            f"{self.name!r} is an entry: call it through a context, `await ctx.call({self.name}, ...)`, "
            f"or through a runtime. The plain function is {self.name}.tool.function."
        )

    def __repr__(self) -> str:
        return f"<ToolEntry {self.name!r} from {self.source}>"


class _EntryDecorator(Protocol):
    """The decorator that `@entry(...)` returns, which keeps the function's output type."""

    @overload
    def __call__(self, function: Callable[..., Awaitable[T]], /) -> ToolEntry[T]: ...
    @overload
    def __call__(self, function: Callable[..., T], /) -> ToolEntry[T]: ...


@overload
def entry(function: Callable[..., Awaitable[T]], /) -> ToolEntry[T]: ...


@overload
def entry(function: Callable[..., T], /) -> ToolEntry[T]: ...


@overload
def entry(**options: Unpack[ToolOptions]) -> _EntryDecorator: ...


def entry(function: Callable[..., Any] | None = None, /, **options: Any) -> Any:
    """Make a function an entry: `@entry`, or `@entry(name=..., requires_approval=True)`."""
    if function is None:
        return partial(ToolEntry.from_function, **options)
    return ToolEntry.from_function(function)


def _check_effects(effects: Collection[Effect] | None, name: str) -> frozenset[Effect] | None:
    if effects is None:
        return None
    if isinstance(effects, str):
        raise TypeError(f"{name}: the effects must be a list, got {effects!r}.")
    for effect in effects:
        if effect not in EFFECTS:
            raise ValueError(f"{name}: there is no effect {effect!r}: there are {', '.join(EFFECTS)}.")
    return frozenset(effects)


def _check_function(tool: Tool[Any]) -> None:
    function = inspect.unwrap(tool.function)
    if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
        raise TypeError(f"{tool.name!r} is a generator function, and a call returns once: return a list instead.")
    first = next(iter(inspect.signature(function).parameters.values()), None)
    if first is not None and first.name == "ctx" and first.annotation is inspect.Parameter.empty and not tool.takes_ctx:
        raise TypeError(f"{tool.name!r} takes an unannotated `ctx`. Annotate it: `ctx: RunContext[Context]`.")
