"""The model as a worker's requests go through it: budgets, usage, the message log."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

from pydantic_ai import RunContext
from pydantic_ai.messages import (
    ModelMessage,
    ModelRequest,
    ModelResponse,
    NativeToolCallPart,
    NativeToolReturnPart,
    SystemPromptPart,
    UserPromptPart,
)
from pydantic_ai.models import Model, ModelRequestParameters, StreamedResponse
from pydantic_ai.models.wrapper import WrapperModel
from pydantic_ai.settings import ModelSettings
from pydantic_ai.usage import RequestUsage

from .errors import CallCancelled, LimitExceeded, ModelChoiceError
from .frame import CallFrame
from .secrets import Values
from .state import SessionState


class MeteredModel(WrapperModel):
    """Counts what one worker call asks of a model, as responses arrive."""

    def __init__(self, wrapped: Model, session: SessionState, frame: CallFrame) -> None:
        super().__init__(wrapped)
        self._session = session
        self._frame = frame
        self._admitted: set[str] = set()
        """The provider's own tools that the rules were asked about."""

    async def request(
        self,
        messages: list[ModelMessage],
        model_settings: ModelSettings | None,
        model_request_parameters: ModelRequestParameters,
    ) -> ModelResponse:
        if getattr(self.wrapped, "request_is_a_stream", False):
            # What is used before it fails counts too.
            async with self.request_stream(messages, model_settings, model_request_parameters) as stream:
                async for _ in stream:
                    pass
            return stream.get()
        if model_request_parameters.native_tools:
            await self._admit_native_tools(model_request_parameters)
        self._start(messages)
        if self._session.recorder.secrets.configured is not None:
            messages = self._without_secrets(messages, self._session.recorder.secrets.configured)
        async with self._session.request_slots:
            response = await self.wrapped.request(messages, model_settings, model_request_parameters)
        self._finish(response, model_request_parameters)
        return response

    @asynccontextmanager
    async def request_stream(
        self,
        messages: list[ModelMessage],
        model_settings: ModelSettings | None,
        model_request_parameters: ModelRequestParameters,
        run_context: RunContext[Any] | None = None,
    ) -> AsyncGenerator[StreamedResponse]:
        if model_request_parameters.native_tools:
            await self._admit_native_tools(model_request_parameters)
        self._start(messages)
        if self._session.recorder.secrets.configured is not None:
            messages = self._without_secrets(messages, self._session.recorder.secrets.configured)
        async with (
            self._session.request_slots,
            self.wrapped.request_stream(messages, model_settings, model_request_parameters, run_context) as stream,
        ):
            try:
                yield stream
            except BaseException:
                # What a broken-off stream has used is spent all the same.
                self._count(stream.get(), model_request_parameters)
                raise
            self._finish(stream.get(), model_request_parameters)

    def _without_secrets(self, messages: list[ModelMessage], configured: Values) -> list[ModelMessage]:
        """What validators say about a call goes to the model past everybody else, and may quote anything."""

        def clean(message: ModelMessage) -> ModelMessage:
            if not isinstance(message, ModelRequest):
                return message
            said = (UserPromptPart, SystemPromptPart)
            parts = [part if isinstance(part, said) else configured.redact(part) for part in message.parts]
            return replace(message, parts=parts)

        return [clean(message) for message in messages]

    async def _admit_native_tools(self, asked: ModelRequestParameters) -> None:
        """A provider runs its own tools without asking, so rules on them are heard before it is given any."""
        for tool in asked.native_tools:
            if tool.kind not in self._admitted:
                await self._session.permissions.approve_native(self._frame, tool.kind)
                self._admitted.add(tool.kind)

    def _start(self, messages: list[ModelMessage]) -> None:
        if self._session.permissions.ended and self._session.permissions.has_ended(self._frame):
            raise CallCancelled(f"{self._frame.path} stops: somebody ended the run.")
        for meter in (self._session.meter, *self._frame.meters):
            if (problem := meter.start_request()) is not None:
                raise LimitExceeded(f"{self._frame.path} stops: {problem}.")
        self._session.recorder.log_message(self._frame, messages[-1])

    def _finish(self, response: ModelResponse, asked: ModelRequestParameters) -> None:
        problem = self._count(response, asked)
        if problem is not None:
            raise LimitExceeded(f"{self._frame.path} stops: {problem}.")

    def _count(self, response: ModelResponse, asked: ModelRequestParameters) -> str | None:
        record = self._frame.record
        assert record is not None
        # A fallback model moved on from some attempts, and they are paid all the same.
        attempts = [attempt for attempt in response.failed_attempts or () if attempt.usage is not None]
        problem: str | None = None
        for meter in (self._session.meter, *self._frame.meters):
            for attempt in attempts:
                meter.add_usage(attempt.model_name, attempt.usage or RequestUsage())
            problem = meter.add(response.model_name or self.model_name, response) or problem
        record.requests = [*record.requests, *(attempt.usage or RequestUsage() for attempt in attempts), response.usage]
        self._session.recorder.log_message(self._frame, response, (*asked.function_tools, *asked.output_tools))
        for part in response.parts:
            if isinstance(part, NativeToolCallPart):
                self._record_native_tool(part, response)
        return problem

    def _record_native_tool(self, call: NativeToolCallPart, response: ModelResponse) -> None:
        output = next(
            (
                part.content
                for part in response.parts
                if isinstance(part, NativeToolReturnPart) and part.tool_call_id == call.tool_call_id
            ),
            None,
        )
        self._session.recorder.add_native(self._frame, call.tool_name, call.args_as_dict(), output)


class NoModel(Model):
    """Stands where PydanticAI wants a model and there is none: in a function that no worker called."""

    def __init__(self, entry: str) -> None:
        super().__init__()
        self._entry = entry

    @property
    def model_name(self) -> str:
        return "none"

    @property
    def system(self) -> str:
        return "none"

    async def request(
        self,
        messages: list[ModelMessage],
        model_settings: ModelSettings | None,
        model_request_parameters: ModelRequestParameters,
    ) -> ModelResponse:
        raise ModelChoiceError(
            f"{self._entry!r} was not called by a worker, so its RunContext has no model to ask. Call a worker instead."
        )
