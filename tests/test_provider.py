"""A real provider's client against a real server on loopback: the way that a scripted model does not take."""

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest
from pydantic_ai.exceptions import ModelHTTPError
from pydantic_ai.models.openai import OpenAIChatModel
from pydantic_ai.providers.openai import OpenAIProvider

from llm_do import Event, Runtime, WorkerEntry, entry


class Handler(BaseHTTPRequestHandler):
    """Answers as an OpenAI-compatible server: first with a call of the first tool, then with text."""

    def do_POST(self) -> None:
        request = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        messages = request["messages"]
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
            chunks.append({**self._chunk({"delta": {}, "index": 0, "finish_reason": "stop"}), "usage": usage})
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
