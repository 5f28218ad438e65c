"""PydanticAI's model class for local models."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterator
from contextlib import aclosing, asynccontextmanager, closing, contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

from pydantic_ai import RunContext
from pydantic_ai.exceptions import ModelAPIError, UnexpectedModelBehavior
from pydantic_ai.messages import ModelMessage, ModelResponse, ModelResponseStreamEvent
from pydantic_ai.models import Model, ModelRequestParameters, StreamedResponse, check_allow_model_requests
from pydantic_ai.profiles import ModelProfile
from pydantic_ai.settings import ModelSettings
from pydantic_ai.usage import RequestUsage
from pydantic_core import from_json, to_json

from ...errors import LocalModelError
from .engine import Answer, Chunk, End, Engine, get_engine
from .files import ModelFile
from .messages import Conversation, Messages, Option, list_options
from .schema import GrammarSchema, make_validator

PROVIDER = "local"
CONTEXT = 8192
"""The most tokens of a conversation: as many as small models can use. They take a few hundred MB of memory."""

_LEAST_CONTEXT = 64
_MAX_TOKENS = 1024
_MAX_NAME_TOKENS = 128
_ATTEMPTS = 3
_LONGEST_PERIOD, _REPEATED_LENGTH = 32, 160
_PASSED_SETTINGS = ("max_tokens", "temperature", "top_p", "top_k", "seed", "presence_penalty", "frequency_penalty")
# Against the repetitions of small models. It harms longer passages that are copied on purpose.
_REPLY_SETTINGS = {"dry_multiplier": 0.8, "dry_allowed_length": 16, "dry_penalty_last_n": 256}
_RETRY_SETTINGS = {"temperature": 0.7, "dry_multiplier": 0.8, "dry_allowed_length": 3, "dry_penalty_last_n": 128}


class LocalRequestError(LocalModelError, ModelAPIError):
    """A request to a local model failed. As this is a `ModelAPIError`, a `FallbackModel` tries its next model."""

    def __init__(self, model_name: str, message: str) -> None:
        ModelAPIError.__init__(self, model_name, message)


class LocalModel(Model[None]):
    """A model that runs on this machine, with no key and no network: `local:NAME`, or `local:/path/model.gguf`.

    Names are those of `llm-do models list`. Weights are fetched when the model is first used. Tool calls and structured
    outputs are constrained to their JSON Schemas while they are generated, and checked afterwards, so they are always
    valid. Requests are answered one at a time, and without a `temperature` the same request has the same answer.
    `context` is the most tokens of a conversation.
    """

    system = PROVIDER
    request_is_a_stream = True
    """Usage is known while a request runs, and so also if it fails."""
    default_max_tokens = _MAX_TOKENS
    """The limit of an answer if the settings have none."""
    unsupported_settings = frozenset({"timeout", "logit_bias", "service_tier", "extra_headers", "max_retries"})

    def __init__(self, name: str, *, context: int = CONTEXT, settings: ModelSettings | None = None) -> None:
        super().__init__(
            settings=settings,
            profile=ModelProfile(
                supports_json_schema_output=True,
                supports_json_object_output=True,
                supports_image_input=False,
                supports_audio_file_input=False,
                supports_video_input=False,
                supports_document_input=False,
                # They become user messages. A small model would repeat PydanticAI's explanation of them.
                supports_inline_system_prompts=True,
                context_window=context,
            ),
        )
        if context < _LEAST_CONTEXT:
            raise LocalModelError(f"A local model needs context={_LEAST_CONTEXT} or more, unlike {context!r}.")
        self._file = ModelFile.from_name(name)
        self._context = context
        self._path: Path | None = None

    @property
    def model_name(self) -> str:
        return self._file.name

    async def request(
        self,
        messages: list[ModelMessage],
        model_settings: ModelSettings | None,
        model_request_parameters: ModelRequestParameters,
    ) -> ModelResponse:
        async with self.request_stream(messages, model_settings, model_request_parameters) as stream:
            async for _ in stream:
                pass
        return stream.get()

    @asynccontextmanager
    async def request_stream(
        self,
        messages: list[ModelMessage],
        model_settings: ModelSettings | None,
        model_request_parameters: ModelRequestParameters,
        run_context: RunContext[Any] | None = None,
    ) -> AsyncGenerator[StreamedResponse]:
        check_allow_model_requests()
        settings, parameters = self.prepare_request(model_settings, model_request_parameters)
        settings = settings or {}
        instructions = [part.content for part in self._get_instruction_parts(messages, parameters) or ()]
        conversation = Conversation(messages, instructions)
        options = list_options(settings, parameters)
        if self._path is None:
            with _request_errors(self.model_name):
                self._path = await self._file.find()
        engine = get_engine(self._path, self._context)
        stream = LocalStreamedResponse(
            parameters,
            _model_name=self.model_name,
            _engine=engine,
            _conversation=conversation,
            _options=options,
            _settings=_llama_settings(settings),
        )
        try:
            yield stream
        finally:
            await stream.close_stream()


@contextmanager
def _request_errors(model_name: str) -> Iterator[None]:
    try:
        yield
    except LocalModelError as exc:
        raise LocalRequestError(model_name, str(exc)) from exc


def _llama_settings(settings: ModelSettings) -> dict[str, Any]:
    """Return the parameters of llama.cpp for these settings; `extra_body` can add others."""
    body = settings.get("extra_body")
    return {
        "max_tokens": _MAX_TOKENS,
        "temperature": 0.0,
        **{name: value for name, value in settings.items() if name in _PASSED_SETTINGS},
        "stop": settings.get("stop_sequences", []),
        **(body if isinstance(body, dict) else {}),
    }


@dataclass
class LocalStreamedResponse(StreamedResponse):
    """Text is streamed. A call or an object comes when it is complete, so that a truncated one can be retried."""

    provider_name = PROVIDER
    provider_url = None
    _model_name: str = field(kw_only=True)
    _engine: Engine = field(kw_only=True)
    _conversation: Conversation = field(kw_only=True)
    _options: list[Option] = field(kw_only=True)
    _settings: dict[str, Any] = field(kw_only=True)
    _answer: Answer | None = field(default=None, init=False)
    _timestamp: datetime = field(default_factory=lambda: datetime.now(UTC), init=False)

    def __post_init__(self) -> None:
        self._usage = RequestUsage(cost=Decimal(0))

    async def _get_event_iterator(self) -> AsyncIterator[ModelResponseStreamEvent]:
        options = self._options
        while True:
            option = options[0] if len(options) == 1 else await self._choose(options)
            prompt = self._conversation.answer_prompt(option)
            if option.schema is None:
                async for event in self._reply(prompt):
                    yield event
                return
            schema = GrammarSchema(option.schema).schema
            answer = await self._generate(prompt, schema, make_validator(option.schema))
            endings = [other for other in options if other.is_final]
            if option.is_final or not endings or not answer or (option.name, answer) != self._conversation.last_call:
                break
            options = endings  # the same call again would bring nothing new
        for event in self._finish(option, answer):
            yield event

    def _finish(self, option: Option, answer: Any) -> Iterator[ModelResponseStreamEvent]:
        if option.tool is None:
            return self._parts_manager.handle_text_delta(vendor_part_id=0, content=to_json(answer).decode())
        self.finish_reason = "tool_call"
        return self._parts_manager.handle_tool_call_delta_events(vendor_part_id=0, tool_name=option.name, args=answer)

    async def _choose(self, options: list[Option]) -> Option:
        prompt = self._conversation.choice_prompt(options)
        names = {"enum": [option.name for option in options]}
        name = await self._generate(prompt, names, max_tokens=_MAX_NAME_TOKENS)
        return next(option for option in options if option.name == name)

    async def _reply(self, messages: Messages) -> AsyncIterator[ModelResponseStreamEvent]:
        request = {**_REPLY_SETTINGS, **self._settings, "messages": messages}
        async for chunk in self._chunks(request):
            if chunk.thinking:
                for event in self._parts_manager.handle_thinking_delta(vendor_part_id=0, content=chunk.thinking):
                    yield event
            if chunk.text:
                for event in self._parts_manager.handle_text_delta(vendor_part_id=1, content=chunk.text):
                    yield event

    async def _generate(
        self,
        messages: Messages,
        schema: dict[str, Any],
        problem: Callable[[Any], str | None] = lambda value: None,
        max_tokens: int | None = None,
    ) -> Any:
        """Generate a value of this schema. If it is truncated or invalid, it is retried with other settings."""
        max_tokens = max_tokens or self._settings["max_tokens"]
        request = {
            **self._settings,
            "max_tokens": max_tokens,
            "stop": [],  # those of the settings are for replies in words
            "messages": messages,
            "response_format": {"type": "json_schema", "json_schema": {"name": "answer", "schema": schema}},
            "chat_template_kwargs": {"enable_thinking": False},
        }
        text = reason = ""
        for attempt in range(_ATTEMPTS):
            text, reason = "", f"it did not come to an end in {max_tokens} tokens (max_tokens)"
            changes = {**_RETRY_SETTINGS, "seed": attempt} if attempt else {}
            async with aclosing(self._chunks({**request, **changes})) as chunks:
                async for chunk in chunks:
                    text += chunk.text
                    if _is_repeating(text):
                        reason = "it repeated itself without an end"
                        break
            try:
                value = from_json(text)
            except ValueError:
                continue
            if (reason := problem(value) or "") == "":
                return value
        raise UnexpectedModelBehavior(
            f"{PROVIDER}:{self._model_name} gave no valid answer in {_ATTEMPTS} attempts. The last time {reason}. "
            "Ask for less in one step, or use a larger model.",
            body=text,
        )

    async def _chunks(self, request: dict[str, Any]) -> AsyncGenerator[Chunk]:
        """Yield the chunks of an answer. Usage is counted chunk by chunk, since the answer may be cancelled."""
        chunk_tokens = 0
        self.finish_reason = None
        if self.cancelled:
            raise LocalRequestError(self._model_name, "The answer was broken off.")
        with _request_errors(self._model_name), closing(self._engine.answer(request)) as self._answer:
            async for chunk in self._answer:
                if isinstance(chunk, End):
                    self.finish_reason = "length" if chunk.finish == "length" else "stop"
                    self._usage.output_tokens += chunk.output_tokens - chunk_tokens
                    self._usage.cache_read_tokens += chunk.cached_tokens
                    return
                self._usage.input_tokens += chunk.input_tokens
                if chunk.text or chunk.thinking:
                    chunk_tokens += 1
                    self._usage.output_tokens += 1
                    yield chunk

    def get_stream_cancel_errors(self) -> tuple[type[BaseException], ...]:
        return (LocalModelError,)

    async def close_stream(self) -> None:
        if self._answer is not None:
            self._answer.close()

    @property
    def model_name(self) -> str:
        return self._model_name

    @property
    def timestamp(self) -> datetime:
        return self._timestamp


def _is_repeating(text: str) -> bool:
    """Return whether a text ends with repetitions in an open string, as small models generate them without end."""
    end = text[-_REPEATED_LENGTH:]
    periods = range(1, _LONGEST_PERIOD + 1)
    if len(end) < _REPEATED_LENGTH or not any(end[period:] == end[:-period] for period in periods):
        return False
    return text.replace("\\\\", "").replace('\\"', "").count('"') % 2 == 1
