"""A model server on loopback that says what it is told to: what `llm-do` in a process of its own talks with."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


@dataclass
class Step:
    """One answer: a text, a call of a tool, or an error."""

    text: str | None = None
    tool: str | None = None
    arguments: dict[str, Any] = field(default_factory=dict)
    status: int = 200
    finish: str | None = None
    """The finish reason, where it is not that of a whole answer."""
    seconds: float = 0.0
    """How long it takes, spread over its words."""


@dataclass
class Server:
    """What was asked, and where to ask."""

    steps: list[Step]
    requests: list[dict[str, Any]] = field(default_factory=list)
    url: str = ""
    connections: list[str] = field(default_factory=list)
    """The paths that were asked for, by any method."""

    @property
    def environment(self) -> dict[str, str]:
        """The variables with which `llm-do` finds this server and nothing else."""
        return {
            "OPENAI_BASE_URL": f"{self.url}/v1",
            "OPENAI_API_KEY": "sk-test-0123456789",
            "LLM_DO_MODEL": "openai-chat:scripted",
            "LLM_DO_NO_LOCAL": "1",
        }


@contextmanager
def serve(*steps: Step) -> Iterator[Server]:
    """A server that gives these answers, one after the other, and the last one for ever."""
    server = Server(list(steps))

    class Handler(BaseHTTPRequestHandler):
        def parse_request(self) -> bool:
            parsed = super().parse_request()
            server.connections.append(self.path)
            return parsed

        def do_GET(self) -> None:
            """Answer as Ollama does when it is asked for its models."""
            self._send(200, json.dumps({"models": [{"name": "scripted"}]}))

        def do_POST(self) -> None:
            request = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            server.requests.append(request)
            step = server.steps[min(len(server.requests), len(server.steps)) - 1]
            if step.status != 200:
                self._send(step.status, json.dumps({"error": {"message": f"status {step.status}"}}))
            elif request.get("stream"):
                self._stream(step)
            else:
                time.sleep(step.seconds)
                self._send(200, json.dumps(_completion(step)))

        def _stream(self, step: Step) -> None:
            self.send_response(200)
            self.send_header("Content-Type", "text/event-stream")
            self.end_headers()
            deltas = _deltas(step)
            for delta in deltas:
                self._chunk({"delta": delta, "index": 0})
                time.sleep(step.seconds / len(deltas))
            self._chunk({"delta": {}, "index": 0, "finish_reason": _reason(step)}, _USAGE)
            self.wfile.write(b"data: [DONE]\n\n")

        def _chunk(self, choice: dict[str, Any], usage: dict[str, int] | None = None) -> None:
            made = {
                "id": "1",
                "object": "chat.completion.chunk",
                "created": 1,
                "model": "scripted",
                "choices": [choice],
            }
            data = json.dumps(made if usage is None else {**made, "usage": usage})
            self.wfile.write(f"data: {data}\n\n".encode())
            self.wfile.flush()

        def _send(self, status: int, body: str) -> None:
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(body.encode())))
            self.end_headers()
            self.wfile.write(body.encode())

        def log_message(self, *args: Any) -> None: ...

    class Quiet(ThreadingHTTPServer):
        def handle_error(self, request: Any, client_address: Any) -> None: ...  # a client that left

    listening = Quiet(("127.0.0.1", 0), Handler)
    listening.daemon_threads = True
    server.url = f"http://127.0.0.1:{listening.server_port}"
    thread = threading.Thread(target=listening.serve_forever, daemon=True)
    thread.start()
    try:
        yield server
    finally:
        listening.shutdown()
        listening.server_close()


_USAGE = {"prompt_tokens": 10, "completion_tokens": 5, "total_tokens": 15}


def _reason(step: Step) -> str:
    return step.finish or ("tool_calls" if step.tool else "stop")


def _call(step: Step) -> dict[str, Any]:
    function = {"name": step.tool, "arguments": json.dumps(step.arguments)}
    return {"id": f"call-{time.monotonic_ns()}", "type": "function", "function": function}


def _completion(step: Step) -> dict[str, Any]:
    message: dict[str, Any] = {"role": "assistant", "content": step.text}
    if step.tool is not None:
        message["tool_calls"] = [_call(step)]
    choice = {"index": 0, "finish_reason": _reason(step), "message": message}
    made = {"id": "1", "object": "chat.completion", "created": 1, "model": "scripted", "choices": [choice]}
    return {**made, "usage": _USAGE}


def _deltas(step: Step) -> list[dict[str, Any]]:
    if step.tool is not None:
        return [{"role": "assistant", "tool_calls": [{"index": 0, **_call(step)}]}]
    return [{"content": word} for word in (step.text or "").replace(" ", " \0").split("\0")]
