"""Entries: their types, how user code calls them, and the other types that user code can implement."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Hashable, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Generic, Literal, Protocol, TypeAlias, cast, get_args, runtime_checkable

from pydantic_ai import Agent, RunContext, Tool
from pydantic_ai.toolsets import AbstractToolset
from typing_extensions import TypeVar

from ..arguments.parameters import Parameters
from ..budgets.limits import Limits
from ..definitions.definition import WorkerDefinition
from ..definitions.fields import AttachmentPolicy
from ..errors import UnknownAttributeError, UnknownEntryError
from ..models.choice import ModelLike
from ..policy.plan import Plan
from ..policy.rules import RuleBook
from ..privacy.secret_fields import SecretFields
from ..sandbox import SandboxToolset
from .events import Event

if TYPE_CHECKING:
    from .context import Context


Effect: TypeAlias = Literal["read", "write", "execute", "network"]
"""An effect of a function beyond computing. A function that sends data out has `network`, even if it only fetches."""

EFFECTS: tuple[Effect, ...] = get_args(Effect)

Repeat: TypeAlias = Literal["safe", "keyed", "never"]
"""How a resumed run treats a call that had begun: repeat it, repeat it with the same `ctx.idempotency_key`, by
which the other system recognises it, or ask a person what happened."""

REPEATS: tuple[Repeat, ...] = get_args(Repeat)


def check_repeat(repeat: Any, name: str) -> Repeat:
    if repeat not in REPEATS:
        raise ValueError(f"{name}: repeat must be one of {', '.join(REPEATS)}, got {repeat!r}.")
    return cast(Repeat, repeat)


T = TypeVar("T", default=Any)
OutputT_co = TypeVar("OutputT_co", covariant=True, default=Any)


class Entry(Protocol[OutputT_co]):
    """Anything that can be called by name: a Python function, an LLM worker, or a class of yours.

    A class with these members is an entry. These are optional:

    - `input_type`: a pydantic model (or dataclass) whose fields are its parameters. Without one it
      takes `input` and any other keywords, as a worker does;
    - `description`: its description for models;
    - `schema_out`: the type its output must have;
    - `repeat`: what a resumed run does with a call that had begun: `safe`, `keyed` or `never`, the default;
    - `needs_run_context = False`: `run_ctx` is then `None`, which makes a call several times cheaper.
    """

    @property
    def name(self) -> str:
        """Its name: letters, digits, `_` and `-`, 64 at most."""

    @property
    def kind(self) -> str:
        """`"tool"` for what is computed, `"worker"` for what a model answers."""

    @property
    def requires_approval(self) -> bool:
        """Whether a person must approve each call that no rule decides."""

    @property
    def model(self) -> ModelLike | None:
        """The model of a worker; `None` means the session's default, and is right for everything else."""

    async def call(self, input_data: Any, ctx: Context, run_ctx: RunContext[Context]) -> OutputT_co:
        """Run the entry. `input_data` maps parameter names to values; `ctx` makes calls on behalf of this one."""


class EntryBase:
    """The base of all entries in the runtime, with defaults for everything that an entry may declare.

    `adapt` wraps entries of users' own classes in one, so that none of their attributes has a meaning by accident.
    """

    name: str
    kind: str
    requires_approval: bool = False
    model: ModelLike | None = None
    description: str | None = None
    schema_out: Any = None
    needs_run_context: bool = True
    parameters: Parameters
    input_type: Any = None
    """The type whose fields are its parameters, if it declares one."""
    own_entries: Mapping[str, Entry[Any]] = MappingProxyType({})
    """The tools that belong to a worker, by name."""
    proxy: Tool[Context] | None = None
    """The tool for models that call it, if there is one for all of them."""
    proxy_with_files: Tool[Context] | None = None
    """The same for callers that have files to hand on, if the entry takes files."""
    writes_prompt: bool = False
    """Whether a worker's input type writes its prompt."""
    check_arguments: Callable[[dict[str, Any], Context], Awaitable[None]] | None = None
    """Checks the bound arguments of a call from Python."""
    identity: Hashable = None
    """Its identity in grants, if the object is made anew for each call. `None` is the object itself."""
    source: str | None = None
    """Where it comes from, for error messages."""
    qualified_name: str | None = None
    """`server/tool`, the other name that rules can use for a tool of a server."""
    rule_book: RuleBook | None = None
    """The rules of a worker, for its calls and everything below them."""

    # The fields of a tool, which `ToolEntry` describes.
    plan: Callable[[dict[str, Any], Any], Plan] | None = None
    plans_in_thread: bool = False
    errors_for_model: tuple[type[Exception], ...] = ()
    effects: Collection[Effect] | None = None
    repeat: Repeat = "never"
    rule: str | None = None
    secret_fields: SecretFields | None = None

    # The fields of a worker, which `WorkerEntry` describes.
    definition: WorkerDefinition | None = None
    custom_tools_path: Path | None = None
    tools: Sequence[Entry[Any] | str] = ()
    toolsets: Sequence[Any] = ()
    capabilities: Sequence[Any] = ()
    allow_workers: Sequence[str] = ()
    attachment_policy: AttachmentPolicy | None = None
    compatible_models: Sequence[str] = ()
    generated: bool = False
    creators: Sequence[str] = ()
    output_type: Any = str
    retries: int = 1
    limits: Limits | None = None
    on_cut_off: Literal["note", "error"] = "note"

    async def call(self, input_data: Any, ctx: Context, run_ctx: RunContext[Context]) -> Any:
        raise TypeError(f"{self.name!r} does not run in a session.")

    def open_sandbox(self) -> SandboxToolset | None:
        """Open the files of a worker for one call. The caller closes them."""
        return None

    def agent_for(self, resolve: Callable[[str], EntryBase]) -> tuple[Agent[Context, Any], Sequence[str]]:
        """Return the agent that answers for a worker, and the names of its tools that dispatch by themselves."""
        raise TypeError(f"{self.name!r} has no agent.")


class BoundEntry(Generic[T]):
    """An entry bound to a context or a runtime: call it like an async function."""

    __slots__ = ("_context", "_entry")

    def __init__(self, context: Context, entry: str | Entry[T]) -> None:
        self._context = context
        self._entry = entry

    async def __call__(self, *args: Any, **kwargs: Any) -> T:
        # By name again at each call: what a registry has under it may have changed.
        output: T = await self._context.call(self._entry, *args, **kwargs)
        return output

    def call_sync(self, *args: Any, **kwargs: Any) -> T:
        """Call it from synchronous code."""
        output: T = self._context.call_sync(self._entry, *args, **kwargs)
        return output

    def __repr__(self) -> str:
        name = self._entry if isinstance(self._entry, str) else self._entry.name
        return f"<BoundEntry {name!r} of {self._context!r}>"


class ToolsProxy:
    """The entries that a context can call, as attributes and as items."""

    __slots__ = ("_context",)

    def __init__(self, context: Context) -> None:
        self._context = context

    def __getattr__(self, name: str) -> BoundEntry[Any]:
        if name.startswith("_"):  # copy, pickle and debuggers look for such names
            raise AttributeError(name)
        try:
            return self._context.bind(name)
        except UnknownEntryError as exc:  # hasattr and getattr expect an AttributeError
            raise UnknownAttributeError(str(exc)) from None

    def __getitem__(self, name: str) -> BoundEntry[Any]:
        return self._context.bind(name)

    def __contains__(self, name: object) -> bool:
        try:
            return isinstance(name, str) and self._context.bind(name) is not None
        except UnknownEntryError:
            return False

    # Otherwise Python would iterate by asking for the items 0, 1, 2 and so on.
    __iter__ = None


@runtime_checkable
class StartsConcurrently(Protocol):
    """A toolset that only begins to start when it is entered, so that several start at the same time."""

    async def started(self) -> None:
        """Wait until it is ready, or raise if it fails to start. Cancelling the wait does not stop the start."""


CallableEntry: TypeAlias = Entry
"""Another name of `Entry`."""


class Sink(Protocol):
    """Observes a session. `on_event` is called in the session's event loop and must not block."""

    def on_event(self, event: Event) -> None:
        """Observe an event."""


MessageCallback: TypeAlias = Callable[[Event], None]
"""A function that observes a session: the short form of a `Sink`."""

ToolsetFactory: TypeAlias = Callable[["Context"], AbstractToolset[Any] | Awaitable[AbstractToolset[Any]]]
"""Makes a toolset for one call. Toolsets hold state and connections, so each call gets its own."""


class WorkerDelegator(Protocol):
    """Calls workers for a tool. A test can stand in for it."""

    async def call_async(self, worker: str, input_data: Any, attachments: list[str]) -> Any:
        """Call a worker, with files from the roots of the worker that calls."""


class WorkerCreator(Protocol):
    """Creates workers for a tool. A test can stand in for it."""

    def create(self, name: str, instructions: str, **options: Any) -> dict[str, Any]:
        """Create a worker, and return what its file says."""
