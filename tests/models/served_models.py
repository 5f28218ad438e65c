"""Model servers on loopback, and the choice among them."""

import json
import os
import socket
import ssl
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import MappingProxyType
from typing import Any

import pytest
from pydantic_ai.models import Model

from llm_do.models.addresses import Address
from llm_do.models.choice import KeyOffer, ModelChoice, choose_default_model
from llm_do.models.servers import MODEL_SERVERS, ModelServer, remember_consent

OLLAMA, LLAMA_SERVER, VLLM = MODEL_SERVERS
TAGS = {"models": [{"name": "qwen3:8b", "model": "qwen3:8b"}, {"name": "llama3:latest"}]}
MODELS = {"object": "list", "data": [{"id": "served.gguf", "object": "model"}]}
COMPLETION = {
    "id": "1",
    "object": "chat.completion",
    "created": 1,
    "model": "m",
    "choices": [{"index": 0, "finish_reason": "stop", "message": {"role": "assistant", "content": "hello"}}],
}
SOME_OFFERS = (  # packages that are and are not there, whatever is installed where the tests run
    KeyOffer(("ABSENT_KEY",), "absent:big", package="no_such_package", extra="absent"),
    KeyOffer(("NESTED_KEY",), "nested:big", package="no_such_package.inner", extra="nested"),
    KeyOffer(("FIRST_KEY", "OLD_FIRST_KEY"), "first:big", package="json", extra="first"),
    KeyOffer(("SECOND_KEY",), "second:big", package="email.mime", extra="second"),
)


@dataclass
class Redirect:
    """An answer that sends the client elsewhere."""

    location: str


class Served(ThreadingHTTPServer):
    daemon_threads = True
    answers: dict[str, Any]
    requests: list[tuple[str, dict[str, str]]]


class Handler(BaseHTTPRequestHandler):
    """Answers paths from a table, keeps connections open unless told not to, and remembers what came."""

    protocol_version = "HTTP/1.1"
    server: Served

    def do_GET(self) -> None:
        self.server.requests.append((self.path, dict(self.headers)))
        answer = self.server.answers.get(self.path)
        data = b"" if isinstance(answer, Redirect) else json.dumps(answer).encode()
        if isinstance(answer, Redirect):
            self.send_response(307)
            self.send_header("Location", answer.location)
        else:
            self.send_response(404 if answer is None else 200)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["Content-Length"]))
        self.do_GET()

    def log_message(self, *args: Any) -> None: ...


@contextmanager
def serving(
    answers: dict[str, Any], host: str = "127.0.0.1", port: int = 0, user: int | None = None
) -> Iterator[Served]:
    """A server; its socket belongs to another user if root says so."""
    before = os.geteuid()
    os.seteuid(before if user is None else user)
    try:
        server = Served((host, port), Handler)
    finally:
        os.seteuid(before)
    server.answers, server.requests = answers, []
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield server
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


@contextmanager
def talking(talk: Callable[[socket.socket], None], tls: ssl.SSLContext | None = None) -> Iterator[int]:
    """The port of a server that says whatever it likes to one client."""
    with ExitStack() as stack:
        listener = stack.enter_context(socket.create_server(("127.0.0.1", 0)))

        def serve() -> None:
            try:
                connection, _ = listener.accept()
                with connection if tls is None else tls.wrap_socket(connection, server_side=True) as connection:
                    connection.recv(65536)
                    talk(connection)
            except OSError:  # the client hung up, as it should on most of these
                return

        thread = threading.Thread(target=serve)
        thread.start()
        yield listener.getsockname()[1]
        listener.shutdown(socket.SHUT_RDWR)
        thread.join()


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port: int = listener.getsockname()[1]
        return port


def at(server: ModelServer, port: int) -> tuple[ModelServer]:
    return (replace(server, address=Address(port=port)),)


def choose_agreed(*servers: ModelServer, environ: Mapping[str, str] = MappingProxyType({}), **more: Any) -> ModelChoice:
    """The choice of a user who says yes to all that is asked."""
    for offer in choose_default_model(environ=environ, servers=servers, **more).passed_over:
        remember_consent(offer)
    return choose_default_model(environ=environ, servers=servers, **more)


def found(choice: ModelChoice) -> tuple[type, str, str]:
    assert choice.found and isinstance(choice.model, Model)
    return type(choice.model), choice.model.model_name, choice.reason


def finds_nothing(*servers: ModelServer) -> bool:
    choice = choose_default_model(environ={}, servers=servers)
    return choice.model is None and not choice.passed_over


@pytest.fixture(autouse=True)
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A user who has agreed to nothing yet."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    return tmp_path / "state"
