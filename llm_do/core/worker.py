"""`WorkerEntry`: a prompt with a model and tools as an entry, and its agent."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any, Generic, Literal, cast

from pydantic_ai import Agent, RunContext, Tool
from pydantic_ai.capabilities import AgentCapability
from pydantic_ai.exceptions import ModelRetry
from pydantic_ai.messages import ModelMessage, ModelRequest, ModelResponse
from pydantic_ai.models import Model
from pydantic_ai.output import OutputSpec, StructuredDict
from pydantic_ai.settings import ModelSettings
from typing_extensions import TypeVar

from ..arguments.inputs import NoParameters, OpenParameters
from ..arguments.parameters import Parameters
from ..arguments.prompts import writes_prompt
from ..arguments.signatures import model_parameters, schema_parameters
from ..arguments.validation import schema_validator
from ..budgets.limits import Limits
from ..definitions.definition import WorkerDefinition, places_of
from ..definitions.fields import AttachmentPolicy
from ..errors import ModelChoiceError
from ..models.choice import ModelLike
from ..models.compatibility import check_requirement, find_unfit_model
from ..policy.rules import RuleBook, read_rules
from ..privacy.secret_fields import SecretFields
from ..sandbox import SandboxConfig, SandboxManager, SandboxToolset
from ..values.canonical import SameObject
from ..values.names import check_name
from ..values.snapshots import snapshot
from ..values.texts import quote
from .adapt import adapt, as_list, index_by_name
from .attachments import takes_files, takes_separate_files
from .context import Context
from .entry import Entry, EntryBase, Repeat, ToolsetFactory
from .frame import WorkerFrame
from .plane import proxy_tool
from .runtime import Runtime
from .scope import CallScope

OutputT = TypeVar("OutputT", default=str)


@dataclass(eq=False, frozen=True, kw_only=True)
class WorkerEntry(EntryBase, Generic[OutputT]):
    """A prompt with a model and tools, as an entry."""

    name: str
    """Its name."""
    instructions: str | Callable[..., Any] | None = None
    """The instructions of its model: text, or a PydanticAI instructions function."""
    description: str | None = None
    """Its description for the models of other workers."""
    model: ModelLike | None = None
    """Its model; `None` means the session's default."""
    compatible_models: Sequence[str] = ()
    """Which models it can use: patterns such as `anthropic:*`, one of which must match, and capabilities (`vision`,
    `pdf`, `audio`, `video`), all of which it needs. An empty list allows any model."""
    tools: Sequence[Entry[Any] | str] = ()
    """Its own tools: entries, or names of entries of the project."""
    toolsets: Sequence[ToolsetFactory | str] = ()
    """Factories of toolsets, or names that the runtime knows. Each call makes its own instances."""
    input_type: type[Any] | dict[str, Any] | Literal["none"] | None = None
    """A pydantic model, a dataclass or a JSON Schema whose fields are the parameters; `"none"` for a worker without
    any. By default it takes `input` and any other keywords."""
    output_type: OutputSpec[OutputT] = cast("OutputSpec[OutputT]", str)  # noqa: RUF009
    """The type of its output. A model that answers something else is asked again."""
    output_schema: dict[str, Any] | None = None
    """A JSON Schema of its output, instead of `output_type`."""
    requires_approval: bool = False
    """Whether a person must approve each call, from Python or a model."""
    model_settings: ModelSettings | None = None
    """PydanticAI settings of its requests."""
    limits: Limits | None = None
    """Budgets for each call, over everything below it."""
    on_cut_off: Literal["note", "error"] = "note"
    """The reaction to an answer of its model that is cut off: a note in the record, or an `AnswerCutOff`."""
    allow_workers: Sequence[str] = ()
    """Workers that its model may call with `worker_call`; `["*"]` is any of the project."""
    attachment_policy: AttachmentPolicy = field(default_factory=AttachmentPolicy)
    """Which files it may get, and may hand on to workers that it calls."""
    tool_rules: Mapping[str, Any] = field(default_factory=dict)
    """`allow`, `ask` or `deny` by names of tools: for its own calls, and `ask` and `deny` also for all below them."""
    sandbox: SandboxConfig | None = None
    """Named folders that it may use: through the tools in `FILE_TOOLS`, and in Python as `ctx.sandbox_toolset`."""
    base: Path = field(default_factory=Path)
    """The folder that the folders of the sandbox are relative to."""
    protected: Sequence[Path] = ()
    """Paths that the sandbox cannot reach, even inside its roots."""
    capabilities: Sequence[AgentCapability[Context]] = ()
    """PydanticAI capabilities of the agent. Their tools and models are governed like all others."""
    definition: WorkerDefinition | None = None
    """The definition in its file, if it was made from one."""
    custom_tools_path: Path | None = None
    """The file with its own tools, if it has one."""
    generated: bool = False
    """Whether a model made it, so that grants to other workers do not hold for it."""
    creators: Sequence[str] = ()
    """The worker that created it, the creator of that one, and so on: rules on these callers hold for it too."""
    repeat: Repeat = field(default="safe", init=False)
    retries: int = 1
    """How often the model may try again, for its output and for each tool."""
    kind: str = field(default="worker", init=False)
    needs_run_context: bool = field(default=False, init=False)

    def __post_init__(self) -> None:
        check_name(self.name)
        if self.on_cut_off not in ("note", "error"):
            raise ValueError(f"on_cut_off of worker {self.name!r} must be 'note' or 'error', got {self.on_cut_off!r}.")
        for attribute in ("tools", "toolsets", "capabilities", "compatible_models"):
            values = as_list(getattr(self, attribute), f"{attribute} of worker {self.name!r}")
            object.__setattr__(self, attribute, tuple(values))
        for requirement in self.compatible_models:
            check_requirement(requirement)
        misfit = find_unfit_model(self.model, self.compatible_models) if isinstance(self.model, Model) else None
        if misfit is not None:
            allowed = ", ".join(self.compatible_models)
            raise ModelChoiceError(
                f"Worker {self.name!r} has the model {misfit!r}, and its compatible_models are {allowed}. "
                "Change either."
            )
        # So errors in a worker are raised where it is made, not where it is first called.
        _ = self.parameters, self.own_entries, self.rule_book

    @cached_property
    def parameters(self) -> Parameters:  # type: ignore[override]
        if self.input_type is None:
            return OpenParameters(self.name, of_worker=True)
        if self.input_type == "none":
            return NoParameters(self.name)
        if isinstance(self.input_type, dict):
            return schema_parameters(self.name, self.input_type)
        return model_parameters(self.name, self.input_type)

    @cached_property
    def secret_fields(self) -> SecretFields | None:  # type: ignore[override]
        return self.parameters.secret_fields

    @cached_property
    def rule_book(self) -> RuleBook | None:  # type: ignore[override]
        if not self.tool_rules:
            return None
        places = places_of(self.sandbox, self.base.absolute())
        return read_rules(self.tool_rules, f"worker {self.name!r}", places)

    def open_sandbox(self) -> SandboxToolset | None:
        if self.sandbox is None:
            return None
        return SandboxToolset(SandboxManager(self.sandbox, base=self.base.absolute(), protected=self.protected))

    @cached_property
    def own_entries(self) -> Mapping[str, Entry[Any]]:  # type: ignore[override]
        owner = f"worker {self.name!r}"
        return index_by_name([tool for tool in self.tools if not isinstance(tool, str)], owner)

    @cached_property
    def proxy(self) -> Tool[Context]:  # type: ignore[override]
        return proxy_tool(self)

    @cached_property
    def proxy_with_files(self) -> Tool[Context] | None:  # type: ignore[override]
        if not takes_files(self) or (self.input_type is not None and not takes_separate_files(self)):
            return None
        return proxy_tool(self, with_files=True)

    @cached_property
    def writes_prompt(self) -> bool:  # type: ignore[override]
        return writes_prompt(self.input_type)

    @cached_property
    def source(self) -> str | None:  # type: ignore[override]
        if not isinstance(self.instructions, str):
            return None
        return f"the instructions {self.instructions.strip()[:40]!r}"

    def start(
        self,
        runtime: Runtime | Context,
        *,
        message_history: Sequence[ModelMessage] | None = None,
        is_conversation: bool = True,
    ) -> CallScope[OutputT]:
        """Return a scope for a conversation with this worker. Nothing is built or run until it is entered.

        With `is_conversation=False` it is for one turn, which is recorded as a call like any other.
        """
        parent = runtime.context() if isinstance(runtime, Runtime) else runtime
        if not isinstance(parent, Context):
            raise TypeError(f"A scope is started on a Runtime or a Context, got {quote(runtime)}.")
        frame = WorkerFrame(self, parent.frame)
        frame.branch = parent.branches
        messages = list(message_history or ())
        if not all(isinstance(message, ModelRequest | ModelResponse) for message in messages):
            raise TypeError("message_history must be a list of PydanticAI messages, such as scope.messages.")
        frame.conversation.messages = messages
        if is_conversation and parent.runtime.recorder.observed:  # the record of its beginning has them
            frame.conversation.sent_messages, frame.conversation.recorded_messages = messages, snapshot(messages)
        if messages and isinstance(messages[-1], ModelRequest):
            frame.conversation.logged_parts = list(messages[-1].parts)
        if parent.runtime.recorder.keeps_keys:
            parent.runtime.tell_from_namesakes(frame)
            parent.runtime.recorder.note_history(frame)
        return CallScope(self, Context(parent.runtime, frame), is_conversation=is_conversation)

    async def call(
        self, input_data: dict[str, Any], ctx: Context, run_ctx: RunContext[Context] | None = None
    ) -> OutputT:
        scope: CallScope[OutputT] | None = ctx.worker_frame.conversation.scope
        if scope is not None:  # a turn of a conversation
            return await scope.answer(input_data)
        scope = CallScope(self, ctx, is_conversation=False)
        async with AsyncExitStack() as stack:
            stack.push_async_exit(scope)  # `answer` opens it
            return await scope.answer(input_data)

    def agent_for(self, resolve: Callable[[str], EntryBase]) -> tuple[Agent[Context, OutputT], Sequence[str]]:
        # The agent holds no data of a call, so it is kept as long as the names of tools mean the very same objects:
        # equal tools may do something else.
        return self._agent_with(*(SameObject(resolve(tool) if isinstance(tool, str) else tool) for tool in self.tools))

    @cached_property
    def _agent_with(self) -> Callable[..., tuple[Agent[Context, OutputT], Sequence[str]]]:
        return lru_cache(maxsize=1)(self._build_agent)

    def _build_agent(self, *meant: SameObject) -> tuple[Agent[Context, OutputT], Sequence[str]]:
        entries: list[Any] = [tool.target for tool in meant]
        tools = index_by_name(entries, f"worker {self.name!r}")
        output_type: Any = self.output_type
        if self.output_schema is not None:
            output_type = StructuredDict(self.output_schema, name=f"{self.name}_output")
        agent = Agent[Context, OutputT](
            name=self.name,
            description=self.description,
            instructions=self.instructions,
            output_type=output_type,
            deps_type=Context,
            tools=[self.proxy_of(tool) for tool in tools.values()],
            model_settings=self.model_settings,
            capabilities=self.capabilities,
            retries=self.retries,
            defer_model_check=True,
        )
        if self.output_schema is not None:  # PydanticAI shows the schema to the model, and believes the answer
            validate = schema_validator(self.output_schema)

            @agent.output_validator
            def check(output: Any) -> Any:
                if problem := validate(output):
                    raise ModelRetry(problem)
                return output

        return agent, list(tools)

    def proxy_of(self, entry: Entry[Any]) -> Tool[Context]:
        """Return the tool for an entry that this worker's model sees. It takes files if this worker has any."""
        adapted = adapt(entry)
        has_files = self.sandbox is not None and bool(self.sandbox.paths) and takes_files(self)
        return (adapted.proxy_with_files if has_files else None) or adapted.proxy or proxy_tool(adapted)

    def __repr__(self) -> str:
        return f"<WorkerEntry {self.name!r}>"
