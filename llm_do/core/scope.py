"""`CallScope`: the lifetime of one worker call, over one turn or many."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import AsyncIterable, Callable, Hashable, Sequence
from contextlib import AsyncExitStack, suppress
from types import TracebackType, UnionType
from typing import TYPE_CHECKING, Annotated, Any, Generic, Self, Union, get_args, get_origin, get_type_hints

import anyio
from pydantic import ValidationError
from pydantic_ai import (
    NativeOutput,
    PromptedOutput,
    RunContext,
    TextOutput,
    ToolOutput,
    capture_run_messages,
)
from pydantic_ai.exceptions import UnexpectedModelBehavior, UserError
from pydantic_ai.messages import (
    AgentStreamEvent,
    ModelMessage,
    PartDeltaEvent,
    PartStartEvent,
    TextPart,
    TextPartDelta,
    ThinkingPart,
    ThinkingPartDelta,
    UserContent,
)
from pydantic_ai.models import Model
from pydantic_ai.toolsets import AbstractToolset, ToolsetTool, WrapperToolset
from pydantic_ai.usage import UsageLimits
from typing_extensions import TypeVar

from ..arguments.inputs import misspelled_names
from ..arguments.payloads import AttachmentInput, name_of
from ..arguments.prompts import prompt_of
from ..errors import (
    EventLoopError,
    ModelBehaviorError,
    ModelChoiceError,
    OutputError,
    ScopeBusyError,
    ScopeClosedError,
    ToolsetError,
    attach_partial_messages,
    raised_in_nested_call,
    summarize,
)
from ..machine.waiting import wait_shielded
from ..models.compatibility import candidates, capability_for, id_of, lacks
from ..privacy.secrets import StreamedText
from ..values.canonical import SameObject
from ..values.texts import quote
from . import tasks
from .attachments import attach, bind_call
from .context import Context, dispatch, run_context
from .entry import StartsBeside
from .events import TextDelta
from .foreign import check_servers, check_tools, shapes_of
from .plane import GovernedToolset, Governor, HeldToolset
from .recorder import logger, tags
from .request_record import reject_last_calls
from .tasks import abandoned_by_pydantic_ai, end_tasks, run_with_time_to_end

if TYPE_CHECKING:
    from .worker import WorkerEntry

T = TypeVar("T", default=Any)

CLOSING_SECONDS = 30.0
"""How long a toolset may take to close before it is cancelled."""

# The session's own budgets hold; PydanticAI's default would end a long task at its 51st request.
_NO_LIMITS = UsageLimits(request_limit=None)


class CallScope(Generic[T]):
    """One call of a worker: it owns the frame, with the conversation, and the toolset instances.

        async with worker.start(runtime) as scope:
            first = await scope.run_turn("hello")
            second = await scope.run_turn("and then?")

    A turn that fails or is cancelled leaves the conversation as it was.
    """

    def __init__(self, worker: WorkerEntry[T], context: Context, *, is_conversation: bool = True) -> None:
        self._worker = worker
        self._context = context
        self._is_conversation = is_conversation
        """Whether turns are its calls. The scope of a lone call is no conversation."""
        self.frame = context.frame
        self._toolsets: _Toolsets | None = None
        self._judged: _Toolsets | None = None
        """The toolsets that rules were checked against."""
        self._turn: asyncio.Task[Any] | None = None
        self._idle: asyncio.Event | None = None
        """Set when the turn that runs is over."""
        self._closed = False

    @property
    def messages(self) -> list[ModelMessage]:
        """The conversation so far."""
        return list(self.frame.messages)

    async def __aenter__(self) -> Self:
        try:
            await self.open()
        except BaseException as exc:  # there will be no `__aexit__`
            await self.close(in_time=not isinstance(exc, asyncio.CancelledError))
            raise
        return self

    async def __aexit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._closed = True  # so that nobody starts another turn
        if self._turn is not None and self._idle is not None:  # of another task, which nobody waits for any more
            self._turn.cancel()
            try:
                await wait_shielded(asyncio.wait_for(self._idle.wait(), CLOSING_SECONDS))
            except TimeoutError:
                logger.error("A turn of worker %r does not end; the scope is closed without it.", self._worker.name)
        await self.close(in_time=exc_type is None or not issubclass(exc_type, asyncio.CancelledError))

    async def open(self) -> None:
        """Build the toolsets, and open the sandbox, if that has not been done."""
        self._check_open()
        worker = self._worker
        self._context.runtime.check_caller_runs(self.frame)
        self._begin_conversation()
        if self.frame.sandbox is None:
            self.frame.sandbox = worker.open_sandbox()
        if not worker.toolsets:
            self._context.runtime.gate.check_rules_of(worker, {})
            return
        if self._toolsets is not None and self._toolsets.gone:
            logger.error("The toolsets of worker %r are gone, and are built anew.", worker.name)
            self._toolsets = None
        toolsets = self._toolsets = self._toolsets or _Toolsets(self._worker, self._context)
        session = self._context.runtime
        session.loop.toolsets_opening += 1
        try:
            await toolsets.open()
            if toolsets is not self._judged:
                await self._check_rules(toolsets)
                self._judged = toolsets
        except BaseException:
            if toolsets.gone and self._toolsets is toolsets:
                self._toolsets = None  # the next attempt builds them anew
            raise
        finally:
            session.loop.toolsets_opening -= 1

    def _begin_conversation(self) -> None:
        if self._is_conversation:
            self._context.runtime.recorder.open_scope(self.frame)

    async def _check_rules(self, toolsets: _Toolsets) -> None:
        """Check what the toolsets turned out to have, and the rules of the worker, and those above it, against that."""
        tools = await toolsets.tools()
        check_tools(tools, self._context, self._worker.own_entries)
        if self.frame.rules:
            check_servers(tools, self.frame.rules)
            self._context.runtime.gate.check_rules_of(self._worker, shapes_of(tools), self.frame.rules)

    def _check_open(self) -> None:
        if self._closed:
            raise ScopeClosedError(f"The scope of worker {self._worker.name!r} is closed. Start a new one.")

    async def close(self, *, in_time: bool = True) -> None:
        """Close the toolsets, in reverse order. Closing twice is harmless.

        When it is cancelled, or not `in_time`, toolsets that do not close soon go on closing without it.
        """
        if self._turn is not None:
            raise ScopeBusyError(
                f"A turn of worker {self._worker.name!r} is running. Cancel or await it before close()."
            )
        self._closed = True
        try:
            if self._toolsets is not None:
                await self._toolsets.close(in_time)
        finally:
            if self.frame.sandbox is not None:
                self.frame.sandbox.manager.close()
            self._context.runtime.recorder.close_scope(self.frame)

    async def run_turn(self, *args: Any, **kwargs: Any) -> T:
        """Run one turn, with the arguments of a call of the worker, and return its output."""
        judge = self._context.runtime.gate
        return await self._take_turn(lambda: bind_call(self.frame, args, kwargs, judge))

    async def take_turn(self, arguments: dict[str, Any], files: Sequence[AttachmentInput] = ()) -> T:
        """Run one turn with arguments that are bound, and files beside them. `run_turn` is how to make one."""

        def prepare() -> dict[str, Any]:
            attach(self.frame, arguments, files, self._context.runtime.gate)
            return arguments

        return await self._take_turn(prepare)

    async def _take_turn(self, prepare: Callable[[], dict[str, Any]]) -> T:
        if self._turn is not None:
            raise ScopeBusyError(f"A turn of worker {self._worker.name!r} is running. A scope runs one turn at a time.")
        self._check_open()
        self._turn = asyncio.current_task()
        idle = self._idle = asyncio.Event()
        try:
            self._begin_conversation()
            self.frame.renew()
            self.frame.scope = self
            arguments = prepare()
            parent = Context(self._context.runtime, self.frame.caller)
            output: T = await dispatch(parent, self._worker, arguments, frame=self.frame)
            return output
        finally:
            self._turn = None
            idle.set()

    async def answer(self, arguments: dict[str, Any]) -> T:
        """Let the model answer. This is the body of a turn; `run_turn` is how to make one."""
        worker, frame, session = self._worker, self.frame, self._context.runtime
        if frame.model is None:
            raise ModelChoiceError(
                f"Worker {worker.name!r} has no model. Give it one: WorkerEntry(model=...), or `model:` in its file. "
                "Or give the session one for all workers that have none: Runtime(model=...)."
            )
        await self.open()
        for name, meant in misspelled_names(arguments) if worker.input_type is None else ():
            session.recorder.notice(
                frame,
                f"{frame.path} got {name!r} and no {meant!r}: it is data. Write {meant}=... if you meant that.",
            )
        agent, own_names = worker.agent_for(session)
        governors = None
        if worker.capabilities:
            governors = [Governor(self._context, own_names, at) for at in ("innermost", "outermost")]
        prompt = self._prompt(arguments)
        self._check_can_be_sent(frame.model)
        with capture_run_messages() as captured:
            try:
                run = agent.run(
                    prompt,
                    deps=self._context,
                    model=frame.model,
                    instructions=frame.sandbox.manager.describe() if frame.sandbox is not None else None,
                    message_history=frame.messages or None,
                    toolsets=self._toolsets.for_run(own_names) if self._toolsets is not None else None,
                    capabilities=governors,
                    usage_limits=_NO_LIMITS,
                    event_stream_handler=self._stream if session.text_deltas else None,
                    infer_name=False,
                )
                result = await (run_with_time_to_end(run, f"run of {worker.name}") if session.text_deltas else run)
            except BaseException as exc:
                frame.partial_messages = captured
                session.recorder.log_rest(frame, captured)
                reject_last_calls(session.recorder, frame, exc)
                error = self._explain(exc)
                attach_partial_messages(error, captured)
                if left := abandoned_by_pydantic_ai(exc):
                    await end_tasks(left)
                if error is exc:
                    raise
                raise error from exc
        frame.messages = result.all_messages()
        session.recorder.log_rest(frame, frame.messages)
        return result.output

    def _check_can_be_sent(self, model: Model) -> None:
        """Refuse files that none of the models that may answer can be sent, before anything is sent."""
        for file in self.frame.attachments:
            capability = capability_for(file)
            behind = list(candidates(model)) if capability is not None else []
            if capability is not None and behind and all(lacks(each, capability) for each in behind):
                raise ModelChoiceError(
                    f"{self.frame.path}: model {id_of(behind[0])!r} cannot be sent {name_of(file)!r}. "
                    f"Use a model with the capability {capability!r}, or send the text of the file."
                )

    def _prompt(self, arguments: dict[str, Any]) -> str | Sequence[UserContent]:
        """Return what the model is shown of a call: without secrets. Files are sent as they are."""
        frame, recorder = self.frame, self._context.runtime.recorder
        if frame.prompt is None:
            shown = recorder.arguments_shown(frame, arguments)
            return prompt_of(shown, frame.attachments, declared=self._worker.input_type is not None)
        items = [recorder.secrets.redact(item) if isinstance(item, str) else item for item in frame.prompt]
        return items[0] if len(items) == 1 and isinstance(items[0], str) else items

    def _explain(self, exc: BaseException) -> BaseException:
        """What a model did wrong, in words that name the worker. Errors of anybody else stay as they are."""
        if not isinstance(exc, UnexpectedModelBehavior) or raised_in_nested_call(exc, self.frame.record):
            return exc
        worker, model, cause = self._worker, self.frame.model, exc.__cause__
        assert model is not None
        reason = summarize(cause) if isinstance(cause, ValidationError) else " ".join(str(cause or exc).split())
        where = f"{self.frame.path}: model {model.model_name!r}"
        # PydanticAI 2 has one class for both, and says which it is in its text only.
        if "output retries" in str(exc):
            name = type_in_words(worker.output_type)
            return OutputError(f"{where} gave no valid {name} after {worker.retries + 1} tries: {reason}")
        return ModelBehaviorError(f"{where} did not behave: {reason}")

    async def _stream(self, run_ctx: RunContext[Context], stream: AsyncIterable[AgentStreamEvent]) -> None:
        """Tell the sinks the text as it comes."""
        recorder = self._context.runtime.recorder
        said = {thinking: StreamedText(recorder.secrets) for thinking in (False, True)}

        def tell(text: str, thinking: bool) -> None:
            if text:
                recorder.stream.emit(TextDelta, tags(self.frame), text=text, thinking=thinking)

        async for event in stream:
            match event:
                case PartStartEvent(part=TextPart(content=text)):
                    thinking = False
                case PartStartEvent(part=ThinkingPart(content=text)):
                    thinking = True
                case PartDeltaEvent(delta=TextPartDelta(content_delta=text)):
                    thinking = False
                case PartDeltaEvent(delta=ThinkingPartDelta(content_delta=str(text))):
                    thinking = True
                case _:
                    continue
            tell(said[thinking].add(text), thinking)
        for thinking, held in said.items():
            tell(held.rest(), thinking)


class _Toolsets:
    """The toolsets of one scope, held open by a task of their own.

    A toolset may keep a task group open, as MCP sessions do, which only the task that entered it can
    leave. The turns and the end of a chat may come from different tasks, so neither can be that task.
    """

    def __init__(self, worker: WorkerEntry[Any], context: Context) -> None:
        self._worker = worker
        self._context = context
        self._built: list[tuple[AbstractToolset[Context], Hashable]] = []
        self._opened = asyncio.Event()
        self._done = asyncio.Event()
        self._openers = 0
        self._closing = ""
        """The toolset that is being closed."""
        self._timer: asyncio.TimerHandle | None = None
        session = context.runtime
        session.loop.enter()
        self._owner = asyncio.create_task(self._own(), name=f"toolsets of {worker.name}")
        session.loop.tasks.add(self._owner)
        self._owner.add_done_callback(self._end)

    def _end(self, owner: asyncio.Task[None]) -> None:
        self._context.runtime.loop.tasks.discard(owner)
        if self._timer is not None:
            self._timer.cancel()
        self._opened.set()  # those that wait find out that it is over
        if not owner.cancelled():
            owner.exception()  # told to those who open and close, if there are any

    @property
    def gone(self) -> bool:
        """Whether the toolsets are closed, or never were open."""
        return self._owner.done()

    async def open(self) -> None:
        """Wait until the toolsets are built. The only one that waits takes them down again when it is cancelled."""
        self._check_loop()
        self._openers += 1
        try:
            await self._opened.wait()
        except asyncio.CancelledError:
            if self._openers == 1 and not self._opened.is_set():
                self._end_owner(cancel=True)
                await self._wait_or_leave(in_time=False)
            raise
        finally:
            self._openers -= 1
        if self._owner.done():
            if not self._owner.cancelled():
                self._owner.result()
            raise ScopeClosedError(f"The toolsets of worker {self._worker.name!r} were closed before they were open.")

    async def close(self, in_time: bool) -> None:
        self._check_loop()
        self._end_owner(cancel=not self._opened.is_set())
        await self._wait_or_leave(in_time)
        if self._owner.done() and not self._owner.cancelled():
            self._owner.result()

    def _end_owner(self, *, cancel: bool) -> None:
        """Let the owner close the toolsets, or take down what it has opened so far. It has some time for that."""
        self._done.set()
        if cancel:
            self._owner.cancel()
        if self._timer is None and not self._owner.done():
            self._timer = self._owner.get_loop().call_later(CLOSING_SECONDS, self._give_up)

    def _give_up(self) -> None:
        """Cancel the owner, again and again: a toolset may take a cancellation for an error like others."""
        logger.error("Toolset %s of worker %r does not close; it is cancelled.", self._closing, self._worker.name)
        self._owner.cancel()
        self._timer = self._owner.get_loop().call_later(CLOSING_SECONDS, self._give_up)

    async def _wait_or_leave(self, in_time: bool) -> None:
        """Wait until the toolsets are closed; after a cancellation, only a little longer."""
        cancelled: asyncio.CancelledError | None = None
        if in_time:
            try:
                await asyncio.wait([self._owner])
                return
            except asyncio.CancelledError as exc:
                cancelled = exc
        until = anyio.current_time() + tasks.LEAVING_SECONDS
        with anyio.CancelScope(shield=True):
            while not self._owner.done() and (left := until - anyio.current_time()) > 0:
                try:
                    await asyncio.wait([self._owner], timeout=left)
                except asyncio.CancelledError as exc:
                    cancelled = exc
        if not self._owner.done():
            self._tell(
                f"Toolset {self._closing} of worker {self._worker.name!r} takes long to close. The call ends "
                f"without it, and it is cancelled after {CLOSING_SECONDS:g} s."
            )
        if cancelled is not None:
            raise cancelled

    def _tell(self, text: str) -> None:
        frame = self._context.frame
        if frame.record is not None:
            self._context.runtime.recorder.notice(frame, text)
        else:
            logger.warning("%s", text)

    def _check_loop(self) -> None:
        if not self._owner.done() and self._owner.get_loop() is not asyncio.get_running_loop():
            raise EventLoopError(f"The toolsets of worker {self._worker.name!r} belong to another event loop.")

    async def tools(self) -> dict[str, ToolsetTool[Context]]:
        """Return what the toolsets have."""
        run_ctx = run_context(self._context, self._worker)
        found: dict[str, ToolsetTool[Context]] = {}
        for toolset, _ in self._built:
            with suppress(UserError):  # it connects for each run, and is checked there
                found.update(await toolset.get_tools(run_ctx))
        return found

    def for_run(self, own_names: Sequence[str]) -> list[AbstractToolset[Context]]:
        """The toolsets as a run sees them: held open, and behind the runtime."""
        if self._worker.capabilities:  # the governor stands around all tools at once
            return [HeldToolset(toolset) for toolset, _ in self._built]
        return [GovernedToolset(HeldToolset(toolset), identity, own_names) for toolset, identity in self._built]

    async def _own(self) -> None:
        async with AsyncExitStack() as stack:
            for declared in self._worker.toolsets:
                await self._build(declared, stack)
            await _all_started([toolset for toolset, _ in self._built])
            self._opened.set()
            await self._done.wait()

    async def _build(self, declared: Any, stack: AsyncExitStack) -> None:
        worker = self._worker
        factory = self._context.runtime.toolsets.resolve(declared, worker.name)
        try:
            with self._context.runtime.loop.inner_task():  # the worker waits for whatever the factory calls
                made = factory(self._context)
                toolset = await made if inspect.isawaitable(made) else made
        except Exception as exc:
            exc.add_note(f"while {quote(factory)} built a toolset of worker {worker.name!r}")
            raise
        if not isinstance(toolset, AbstractToolset):
            raise ToolsetError(
                f"The toolset factory {quote(factory)} of worker {worker.name!r} returned {quote(toolset)}, "
                "not a toolset."
            )
        self._closing = toolset.label
        await stack.enter_async_context(toolset)
        stack.callback(setattr, self, "_closing", toolset.label)
        self._built.append((toolset, SameObject(factory)))


async def _all_started(toolsets: Sequence[AbstractToolset[Any]]) -> None:
    """Wait for toolsets that start side by side. When one fails, its error ends the wait for the others."""
    starting: list[asyncio.Task[None]] = []
    for toolset in toolsets:
        while isinstance(toolset, WrapperToolset) and not isinstance(toolset, StartsBeside):
            toolset = toolset.wrapped
        if isinstance(toolset, StartsBeside):
            starting.append(asyncio.create_task(toolset.started(), name=f"start of {toolset.label}"))
    if not starting:
        return
    try:
        await asyncio.wait(starting, return_when=asyncio.FIRST_EXCEPTION)
        for task in starting:
            if task.done():
                task.result()
    finally:
        for task in starting:
            task.cancel()
        await asyncio.gather(*starting, return_exceptions=True)


def type_in_words(wanted: Any) -> str:
    """Return the name of a type that a model should give, as a person would write it."""
    if isinstance(wanted, NativeOutput | PromptedOutput):
        wanted = wanted.outputs
    elif isinstance(wanted, ToolOutput):
        wanted = wanted.output
    elif isinstance(wanted, TextOutput):
        wanted = str
    if isinstance(wanted, list | tuple):
        return " or ".join(map(type_in_words, wanted))
    if get_origin(wanted) in (Union, UnionType):
        return " or ".join(map(type_in_words, get_args(wanted)))
    if inspect.isroutine(wanted):  # its argument is what the model gives
        hints = [hint for name, hint in get_type_hints(wanted).items() if name != "return"]
        return type_in_words(hints[-1]) if hints else wanted.__name__
    if wanted in (str, None, type(None)):
        return "text" if wanted is str else "nothing (None)"
    return _name_of(wanted)


def _name_of(kind: Any) -> str:
    """Return a type without the modules that its parts are in."""
    origin, parts = get_origin(kind), get_args(kind)
    if origin is Annotated:
        return _name_of(parts[0])
    if origin in (Union, UnionType):
        return " | ".join(map(_name_of, parts))
    if isinstance(origin, type):
        return f"{origin.__name__}[{', '.join(map(_name_of, parts))}]"
    if kind is type(None):
        return "None"
    return kind.__name__ if isinstance(kind, type) else str(kind).replace("typing.", "")
