"""`CallScope`: the lifetime of a worker's call, over one or many turns."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterable, Callable, Sequence
from types import TracebackType
from typing import Any, Generic, Self

from pydantic import ValidationError
from pydantic_ai import RunContext, capture_run_messages
from pydantic_ai.exceptions import UnexpectedModelBehavior
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
from pydantic_ai.usage import UsageLimits
from typing_extensions import TypeVar

from ..arguments.inputs import misspelled_names
from ..arguments.prompts import AttachmentInput, name_of, prompt_of
from ..errors import (
    LlmDoError,
    ModelBehaviorError,
    ModelChoiceError,
    OutputError,
    ScopeBusyError,
    ScopeClosedError,
    attach_partial_messages,
    raised_in_nested_call,
    summarize,
)
from ..machine.waiting import wait_shielded
from ..models.compatibility import candidates, capability_for, id_of, lacks
from ..privacy.secrets import StreamedText
from .attachments import attach, bind_call
from .context import Context, dispatch
from .entry import EntryBase
from .events import TextDelta
from .outputs import name_of_type
from .plane import Governor
from .recorder import logger, tags
from .request_record import reject_unmade_calls
from .tasks import abandoned_by_pydantic_ai, end_tasks, run_with_time_to_end
from .toolset_owner import CLOSING_SECONDS, ToolsetOwner

T = TypeVar("T", default=Any)


# The budgets of the session hold. PydanticAI's default would end a long task at its 51st request.
_NO_LIMITS = UsageLimits(request_limit=None)


class CallScope(Generic[T]):
    """One call of a worker, which owns the frame with the conversation, and the instances of toolsets.

        async with worker.start(runtime) as scope:
            first = await scope.run_turn("hello")
            second = await scope.run_turn("and then?")

    A turn that fails or is cancelled leaves the conversation as it was.
    """

    def __init__(self, worker: EntryBase, context: Context, *, is_conversation: bool = True) -> None:
        self._worker = worker
        self._context = context
        self._session = context.runtime
        self._is_conversation = is_conversation
        """Whether its calls are turns, and it is not for a single call."""
        self.frame = context.worker_frame
        self._toolsets: ToolsetOwner | None = None
        self._checked_toolsets: ToolsetOwner | None = None
        """The toolsets that rules were checked against."""
        self._turn: asyncio.Task[Any] | None = None
        self._idle: asyncio.Event | None = None
        """Set when the running turn is over."""
        self._is_closed = False

    @property
    def messages(self) -> list[ModelMessage]:
        """The conversation so far."""
        return list(self.frame.conversation.messages)

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
        self._is_closed = True  # no other turn may start
        if self._turn is not None and self._idle is not None:  # in another task, which may never end
            self._turn.cancel()
            try:
                await wait_shielded(asyncio.wait_for(self._idle.wait(), CLOSING_SECONDS))
            except TimeoutError:
                logger.error("A turn of worker %r does not end; the scope is closed without it.", self._worker.name)
        await self.close(in_time=exc_type is None or not issubclass(exc_type, asyncio.CancelledError))

    async def open(self) -> None:
        """Open the sandbox and build the toolsets, unless that is done."""
        self._check_open()
        worker = self._worker
        self._session.check_caller_runs(self.frame)
        if self._is_conversation:
            self._session.recorder.open_scope(self.frame)
        if self.frame.conversation.sandbox is None:
            self.frame.conversation.sandbox = worker.open_sandbox()
        if not worker.toolsets:
            self._session.rule_checks.check_worker(worker, {})
            return
        if self._toolsets is not None and self._toolsets.is_over:
            logger.error("The toolsets of worker %r are gone, and are built anew.", worker.name)
            self._toolsets = None
        toolsets = self._toolsets = self._toolsets or ToolsetOwner(self._worker, self._context)
        self._session.loop.toolsets_opening += 1
        try:
            await toolsets.open()
            if toolsets is not self._checked_toolsets:
                self._session.rule_checks.check_toolsets(await toolsets.tools(), self.frame)
                self._checked_toolsets = toolsets
        except BaseException:
            if toolsets.is_over and self._toolsets is toolsets:
                self._toolsets = None  # so that the next attempt builds them anew
            raise
        finally:
            self._session.loop.toolsets_opening -= 1

    def _check_open(self) -> None:
        if self._is_closed:
            raise ScopeClosedError(f"The scope of worker {self._worker.name!r} is closed. Start a new one.")

    async def close(self, *, in_time: bool = True) -> None:
        """Close the toolsets, in reverse order. Closing twice is harmless.

        If it is cancelled, or not `in_time`, it does not wait long for toolsets, which go on closing without it.
        """
        if self._turn is not None:
            raise ScopeBusyError(
                f"A turn of worker {self._worker.name!r} is running. Cancel or await it before close()."
            )
        self._is_closed = True
        try:
            if self._toolsets is not None:
                await self._toolsets.close(in_time)
        finally:
            if self.frame.conversation.sandbox is not None:
                self.frame.conversation.sandbox.manager.close()
            self._session.recorder.close_scope(self.frame)

    async def run_turn(self, *args: Any, **kwargs: Any) -> T:
        """Run one turn with the arguments of a call of the worker, and return its output."""
        return await self._take_turn(lambda: bind_call(self.frame, args, kwargs, self._session.gate), args, kwargs)

    async def take_turn(self, arguments: dict[str, Any], files: Sequence[AttachmentInput] = ()) -> T:
        """Run one turn with bound arguments and files. This is internal: use `run_turn`."""

        def prepare() -> dict[str, Any]:
            attach(self.frame, arguments, files, self._session.gate)
            return arguments

        return await self._take_turn(prepare, (), arguments)

    async def _take_turn(
        self, prepare: Callable[[], dict[str, Any]], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> T:
        if self._turn is not None:
            raise ScopeBusyError(f"A turn of worker {self._worker.name!r} is running. A scope runs one turn at a time.")
        self._check_open()
        self._turn = asyncio.current_task()
        idle = self._idle = asyncio.Event()
        try:
            if self._is_conversation:
                self._session.recorder.open_scope(self.frame)
            before = self.frame.begin_turn()
            self.frame.conversation.scope = self
            self.frame.is_turn = True
            try:
                arguments = prepare()
            except BaseException as exc:
                self.frame.take_back_turn(before)
                if isinstance(exc, LlmDoError):
                    self._session.reject(self.frame.caller, self._worker, args, kwargs, exc)
                raise
            parent = Context(self._session, self.frame.caller, self.frame.branch)
            messages, digest = self.frame.conversation.messages, self.frame.history_digest
            try:
                output: T = await dispatch(parent, self._worker, arguments, frame=self.frame)
            except BaseException:  # perhaps after the answer: an executor or a journal may fail
                self.frame.conversation.messages, self.frame.history_digest = messages, digest
                raise
            return output
        finally:
            self._turn = None
            idle.set()

    async def answer(self, arguments: dict[str, Any]) -> T:
        """Let the model answer. This is the body of a turn: use `run_turn`."""
        worker, frame, session = self._worker, self.frame, self._session
        if frame.model is None:
            raise ModelChoiceError(
                f"Worker {worker.name!r} has no model. Give it one: WorkerEntry(model=...), or `model:` in its file. "
                "Or give the session one for all workers that have none: Runtime(model=...)."
            )
        await self.open()
        for name, field in misspelled_names(arguments) if worker.input_type is None else ():
            session.recorder.notice(
                frame,
                f"{frame.path} got {name!r} and no {field!r}: it is data. Write {field}=... if you meant that.",
            )
        agent, own_names = worker.agent_for(session.resolve_at_top)
        governors = None
        if worker.capabilities:
            governors = [Governor(self._context, own_names, at) for at in ("innermost", "outermost")]
        prompt, sandbox = self._prompt(arguments), frame.conversation.sandbox
        self._check_can_be_sent(frame.model)
        with capture_run_messages() as captured:
            try:
                run = agent.run(
                    prompt,
                    deps=self._context,
                    model=frame.model,
                    instructions=sandbox.manager.describe() if sandbox is not None else None,
                    message_history=frame.conversation.messages or None,
                    toolsets=self._toolsets.for_run(own_names) if self._toolsets is not None else None,
                    capabilities=governors,
                    usage_limits=_NO_LIMITS,
                    event_stream_handler=self._stream if session.text_deltas else None,
                    infer_name=False,
                )
                result = await (run_with_time_to_end(run, f"run of {worker.name}") if session.text_deltas else run)
            except BaseException as exc:
                frame.partial_messages = captured
                with session.recorder.keep_error(exc):
                    session.recorder.log_rest(frame, captured)
                    nested = raised_in_nested_call(exc, frame.record)
                    reject_unmade_calls(session.recorder, frame, captured, None if nested else exc)
                error = self._explain(exc)
                attach_partial_messages(error, captured)
                if abandoned := abandoned_by_pydantic_ai(exc):
                    await end_tasks(abandoned)
                if error is exc:
                    raise
                raise error from exc
        frame.continue_with(result.all_messages())
        session.recorder.log_rest(frame, frame.messages)
        output: T = result.output
        return output

    def _check_can_be_sent(self, model: Model) -> None:
        """Refuse files that cannot be sent to any of the models that may answer, before anything is sent."""
        for file in self.frame.attachments:
            capability = capability_for(file)
            behind = list(candidates(model)) if capability is not None else []
            if capability is not None and behind and all(lacks(each, capability) for each in behind):
                raise ModelChoiceError(
                    f"{self.frame.path}: model {id_of(behind[0])!r} cannot be sent {name_of(file)!r}. "
                    f"Use a model with the capability {capability!r}, or send the text of the file."
                )

    def _prompt(self, arguments: dict[str, Any]) -> str | Sequence[UserContent]:
        """Return the prompt of a call, without secrets except in files."""
        frame, recorder = self.frame, self._session.recorder
        if frame.prompt is None:
            visible = recorder.redaction.visible_arguments(frame, arguments)
            return prompt_of(visible, frame.attachments, declared=self._worker.input_type is not None)
        items = [recorder.redaction.for_model(item) if isinstance(item, str) else item for item in frame.prompt]
        return items[0] if len(items) == 1 and isinstance(items[0], str) else items

    def _explain(self, exc: BaseException) -> BaseException:
        """Return an error of ours for one of the model. Other errors stay as they are."""
        if not isinstance(exc, UnexpectedModelBehavior) or raised_in_nested_call(exc, self.frame.record):
            return exc
        worker, model, cause = self._worker, self.frame.model, exc.__cause__
        assert model is not None
        reason = summarize(cause) if isinstance(cause, ValidationError) else " ".join(str(cause or exc).split())
        where = f"{self.frame.path}: model {model.model_name!r}"
        # PydanticAI 2 has one class for both, which differ only in their texts.
        if "output retries" in str(exc):
            name = name_of_type(worker.output_type)
            return OutputError(f"{where} gave no valid {name} after {worker.retries + 1} tries: {reason}")
        return ModelBehaviorError(f"{where} did not behave: {reason}")

    async def _stream(self, run_ctx: RunContext[Context], stream: AsyncIterable[AgentStreamEvent]) -> None:
        recorder = self._session.recorder
        texts = {thinking: StreamedText(recorder.secrets) for thinking in (False, True)}

        def send(text: str, thinking: bool) -> None:
            if text and recorder.observed:
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
            send(texts[thinking].add(text), thinking)
        for thinking, held in texts.items():
            send(held.rest(), thinking)
