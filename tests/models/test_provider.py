"""A real provider's client against a real server on loopback: the way that a scripted model does not take."""

import json
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import quote, unquote

import pytest
from anthropic import AsyncAnthropic
from pydantic_ai.exceptions import ModelAPIError, ModelHTTPError
from pydantic_ai.messages import ModelMessage, ModelResponse, TextPart
from pydantic_ai.models import Model
from pydantic_ai.models.anthropic import AnthropicModel
from pydantic_ai.models.fallback import FallbackModel
from pydantic_ai.models.function import AgentInfo, FunctionModel
from pydantic_ai.models.mistral import MistralModel
from pydantic_ai.models.openai import OpenAIChatModel, OpenAIResponsesModel
from pydantic_ai.models.snowflake import SnowflakeModel
from pydantic_ai.models.wrapper import WrapperModel
from pydantic_ai.providers.anthropic import AnthropicProvider
from pydantic_ai.providers.mistral import MistralProvider
from pydantic_ai.providers.openai import OpenAIProvider

from llm_do import AnswerCutOff, Event, Limits, ModelAnswerError, Runtime, WorkerEntry, entry
from llm_do.cli.terminal.errors import describe_error
from llm_do.models.answers import describe_missing_end

HTML = "<!DOCTYPE html>\n<html><title>Sign in\x1b[2J</title></html>"
NO_CHOICES = {"id": "1", "object": "chat.completion", "created": 1, "model": "m", "choices": []}
WHOLE = {
    **NO_CHOICES,
    "choices": [{"index": 0, "finish_reason": "stop", "message": {"role": "assistant", "content": "a"}}],
}
ERROR = {"error": {"message": "the account is out of credit", "code": 402}}
NO_ANSWERS = {
    "html": (HTML, "text/html"),
    "html that claims to be JSON": (HTML, "application/json"),
    "empty": ("", "application/json"),
    "empty text": ("", "text/plain"),
    "blank": (" \n", "application/json"),
    "cut-off": ('{"id": "1", "object": "chat.comp', "application/json"),
    "null": ("null", "application/json"),
    "no choices": (json.dumps(NO_CHOICES), "application/json"),
    "a choice of nothing": (json.dumps({**NO_CHOICES, "choices": [None]}), "application/json"),
    "a time after all times": (json.dumps({**WHOLE, "created": 10**18}), "application/json"),
    "an error": (json.dumps(ERROR), "application/json"),
    "no events": ("", "text/event-stream"),
    "events of HTML": (HTML, "text/event-stream"),
    "a cut-off event": ('data: {"id": "1", "obj\n\n', "text/event-stream"),
    "an event of null": ("data: null\n\n", "text/event-stream"),
    "an event without choices": (f"data: {json.dumps(NO_CHOICES)}\n\ndata: [DONE]\n\n", "text/event-stream"),
}
"""Bodies that are no answer, whatever was asked for."""


class Handler(BaseHTTPRequestHandler):
    """Answers as an OpenAI-compatible server: first with a call of the first tool, then with text."""

    def do_POST(self) -> None:
        request = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        fault = self.headers["X-Broken"] or unquote(self.path.split("/")[1])
        if (broken := NO_ANSWERS.get(fault)) is not None:
            self._send(200, *broken)
            return
        messages = request.get("messages") or request["input"]
        if "fail" in str(messages[-1].get("content")):
            self._send(500, {"error": {"message": "the server is on fire"}})
            return
        if request.get("tools") and messages[-1]["role"] == "user":
            function = {"name": request["tools"][0]["function"]["name"], "arguments": '{"x": 21}'}
            message: dict[str, Any] = {"tool_calls": [{"id": "1", "type": "function", "function": function}]}
        else:
            message = {"content": f"answer to {messages[-1]['content']}"}
        usage = {"prompt_tokens": 10, "completion_tokens": 5, "total_tokens": 15}
        if request.get("stream"):
            deltas = [{"content": word + " "} for word in message["content"].split()]
            chunks = [self._chunk({"delta": delta, "index": 0}) for delta in deltas]
            reason = next((each for each in ("length", "odd", "null") if each in message["content"]), "stop")
            end = {"delta": {}, "index": 0, "finish_reason": None if reason == "null" else reason}
            if "vanish" not in message["content"]:
                chunks.append({**self._chunk(end), "usage": usage})
            body = "".join(f"data: {json.dumps(chunk)}\n\n" for chunk in chunks) + "data: [DONE]\n\n"
            self._send(200, body, "text/event-stream")
            return
        choice = {"index": 0, "finish_reason": "stop", "message": {"role": "assistant", "content": None, **message}}
        self._send(200, {**self._chunk(choice), "object": "chat.completion", "usage": usage})

    def _chunk(self, choice: dict[str, Any]) -> dict[str, Any]:
        kind = "chat.completion.chunk"
        return {"id": "1", "object": kind, "created": 1, "model": "served-model", "choices": [choice]}

    def _send(self, status: int, body: Any, kind: str = "application/json") -> None:
        data = (body if isinstance(body, str) else json.dumps(body)).encode()
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, *args: Any) -> None: ...


@pytest.fixture
def model() -> Iterator[OpenAIChatModel]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    provider = OpenAIProvider(base_url=f"http://127.0.0.1:{server.server_port}/v1", api_key="none")
    # The client's own retries would only make the failing case slow.
    provider.client.max_retries = 0
    yield OpenAIChatModel("asked-model", provider=provider)
    server.shutdown()
    server.server_close()
    thread.join()


@entry
def double(x: int) -> int:
    return x * 2


def test_one_model_serves_many_synchronous_calls(model: OpenAIChatModel) -> None:
    """Each `call_sync` runs in an event loop of its own; the model's connections must not outlive it."""
    runtime = Runtime([WorkerEntry(name="w", tools=[double])], model=model)
    for _ in range(3):
        assert runtime.call_sync("w", "hi") == "answer to 42"
    assert runtime.usage["served-model"].requests == 6
    assert runtime.usage["served-model"].total_tokens == 90
    assert [t.name for t in runtime.trace] == ["w", "double"] * 3


async def test_streaming_a_chat(model: OpenAIChatModel) -> None:
    told: list[Event] = []
    worker = WorkerEntry(name="w")
    runtime = Runtime(model=model, message_callback=told.append, text_deltas=True)
    async with worker.start(runtime) as scope:
        assert (await scope.run_turn("one")).strip() == "answer to one"
        assert (await scope.run_turn("two")).strip() == "answer to two"
    assert "".join(event.text for event in told if event.type == "text_delta") == "answer to one answer to two "
    assert runtime.usage["served-model"].total_tokens == 30


async def test_a_providers_error_reaches_the_caller_with_the_path_of_calls(model: OpenAIChatModel) -> None:
    with pytest.raises(ModelHTTPError) as caught:
        await Runtime(model=model).call(WorkerEntry(name="w"), "fail")
    assert caught.value.status_code == 500
    assert caught.value.__notes__ == ["llm-do call path: w"]


def broken(model: OpenAIChatModel, kind: type[OpenAIChatModel | OpenAIResponsesModel], fault: str) -> Model:
    client = model.client.with_options(default_headers={"X-Broken": fault}, max_retries=0)
    return kind("asked-model", provider=OpenAIProvider(openai_client=client))


async def say_well(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
    return ModelResponse([TextPart("well")])


async def stream_well(messages: list[ModelMessage], info: AgentInfo) -> AsyncIterator[str]:
    yield "well"


@pytest.mark.parametrize("streamed", [False, True])
@pytest.mark.parametrize("kind", [OpenAIChatModel, OpenAIResponsesModel])
@pytest.mark.parametrize("fault", NO_ANSWERS)
async def test_what_is_no_answer_is_a_named_error_from_which_a_fallback_goes_on(
    model: OpenAIChatModel, kind: type[OpenAIChatModel | OpenAIResponsesModel], fault: str, streamed: bool
) -> None:
    """The error names the model and its address; what was not reported counts as spent."""
    bad, good = broken(model, kind, fault), FunctionModel(say_well, stream_function=stream_well)
    runtime = Runtime(model=bad, text_deltas=streamed, limits=Limits(max_tokens=100_000))
    with pytest.raises(ModelAnswerError) as caught:
        await runtime.call(WorkerEntry(name="w"), "hi")
    assert isinstance(caught.value, ModelAPIError)
    words = describe_error(caught.value)
    assert words.startswith(f"Model 'asked-model' at {model.base_url.rstrip('/')}") and "cannot be read: " in words
    assert "could not be reached" not in words and "\x1b" not in words
    tokens = runtime.budget.tokens
    assert tokens.estimated > 0 and tokens.spent == tokens.reserved == 0
    several = Runtime(model=FallbackModel(bad, good), text_deltas=streamed)
    assert await several.call(WorkerEntry(name="w"), "hi") == "well"


def anthropic_model(url: str) -> Model:
    client = AsyncAnthropic(api_key="k", base_url=url, max_retries=0)
    return AnthropicModel("asked-model", provider=AnthropicProvider(anthropic_client=client))


def mistral_model(url: str) -> Model:
    return MistralModel("asked-model", provider=MistralProvider(api_key="k", base_url=url))


@pytest.mark.parametrize("streamed", [False, True])
@pytest.mark.parametrize("make", [anthropic_model, mistral_model])
async def test_clients_of_other_providers_name_what_is_no_answer(
    model: OpenAIChatModel, make: Callable[[str], Model], streamed: bool
) -> None:
    place = model.base_url.removesuffix("/v1/")
    for fault in NO_ANSWERS:
        runtime = Runtime(model=make(f"{place}/{quote(fault)}"), text_deltas=streamed)
        with pytest.raises(ModelAnswerError, match="cannot be read: "):
            await runtime.call(WorkerEntry(name="w"), "hi")


@pytest.mark.parametrize(
    ("fault", "what"),
    [
        ("html", "it is HTML, not JSON; it begins with <!DOCTYPE html>"),
        ("html that claims to be JSON", "it is HTML, not JSON; it begins with <!DOCTYPE html>"),
        ("empty", "it is empty. Check"),
        ("cut-off", 'it is JSON that was cut off; it begins with {"id": "1"'),
        ("an error", "the account is out of credit"),
        ("no choices", 'it lacks what an answer has; it begins with {"id":"1","choices":[]'),
    ],
)
async def test_the_error_says_what_came(model: OpenAIChatModel, fault: str, what: str) -> None:
    with pytest.raises(ModelAnswerError) as caught:
        await Runtime(model=broken(model, OpenAIChatModel, fault)).call(WorkerEntry(name="w"), "hi")
    assert what in str(caught.value)


@pytest.mark.parametrize("error", [IndexError("mine"), TypeError("mine"), json.JSONDecodeError("mine", "", 0)])
async def test_a_mistake_in_a_users_model_stays_what_it_is(error: Exception) -> None:
    """No fallback hides it."""

    async def fail(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
        raise error

    with pytest.raises(type(error), match="mine"):
        await Runtime(model=FallbackModel(FunctionModel(fail), FunctionModel(say_well))).call(
            WorkerEntry(name="w"), "hi"
        )


async def test_a_stream_that_ends_without_a_finish_reason_is_an_answer_cut_off(model: OpenAIChatModel) -> None:
    """PydanticAI takes it for a whole one."""
    worker = WorkerEntry(name="w")
    runtime = Runtime(model=model, text_deltas=True)
    for text in ("whole", "vanish"):
        await runtime.call(worker, text)
    whole, vanished = runtime.trace
    assert whole.cut_off is None
    assert vanished.cut_off is not None and "ended without a finish reason" in vanished.cut_off
    with pytest.raises(AnswerCutOff, match="ended without a finish reason"):
        await runtime.call(WorkerEntry(name="w", on_cut_off="error"), "vanish")
    assert runtime.trace[0].model == "openai:asked-model"
    assert list(runtime.usage_by_provider) == ["openai:served-model"]


async def test_a_stream_is_cut_off_by_a_limit_and_not_by_what_a_server_leaves_out(model: OpenAIChatModel) -> None:
    """A server that never sends a finish reason sends its usage in the end; an unknown reason is one all the same."""
    runtime = Runtime(model=model, text_deltas=True)
    for text in ("length", "odd", "null"):
        await runtime.call(WorkerEntry(name="w"), text)
    limit = "the model's own limit was reached; ask for a shorter answer, or set `max_tokens` in `model_settings`"
    assert [record.cut_off for record in runtime.trace] == [limit, None, None]


def test_only_models_that_report_ends_can_miss_one() -> None:
    """Claude behind Snowflake never sends a finish reason; a user's own model may not know of any."""

    class Own(FunctionModel):
        system = "mine"  # type: ignore[assignment]

    provider = OpenAIProvider(base_url="http://127.0.0.1:1/v1", api_key="none")
    response = ModelResponse(parts=[TextPart("half an")], finish_reason="stop")
    assert describe_missing_end(response, OpenAIChatModel("m", provider=provider)) is not None
    assert describe_missing_end(response, WrapperModel(OpenAIChatModel("m", provider=provider))) is not None
    assert describe_missing_end(response, OpenAIResponsesModel("m", provider=provider)) is None
    assert describe_missing_end(replace(response, finish_reason=None), OpenAIResponsesModel("m", provider=provider))
    assert describe_missing_end(response, SnowflakeModel("claude-4-sonnet", provider=provider)) is None
    assert describe_missing_end(replace(response, state="interrupted"), OpenAIChatModel("m", provider=provider)) is None
    assert describe_missing_end(replace(response, finish_reason=None), Own(lambda messages, info: response)) is None
