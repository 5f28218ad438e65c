"""Which model is the default: what was asked for, then keys, then model servers. All servers here are real."""

import asyncio
import json
import os
import shutil
import socket
import ssl
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import MappingProxyType
from typing import Any, get_args

import pytest
from inline_snapshot import snapshot
from pydantic_ai import Agent
from pydantic_ai.exceptions import ModelAPIError
from pydantic_ai.models import KnownModelName, Model, infer_model
from pydantic_ai.models.ollama import OllamaModel
from pydantic_ai.models.openai import OpenAIChatModel
from pydantic_ai.models.test import TestModel

from llm_do import ModelChoiceError, Runtime, WorkerEntry
from llm_do.models import ModelChoice, announce, choose_default_model, explain_missing, resolve_model
from llm_do.models.addresses import Address, read_address
from llm_do.models.choice import KEY_OFFERS, KeyOffer
from llm_do.models.consent import forget_all, has_agreed, remember
from llm_do.models.listeners import listening_user
from llm_do.models.servers import MODEL_SERVERS, ModelServer

from ..processes import PATIENCE

OLLAMA, LLAMA_SERVER, VLLM = MODEL_SERVERS
TAGS = {"models": [{"name": "qwen3:8b", "model": "qwen3:8b"}, {"name": "llama3:latest"}]}
MODELS = {"object": "list", "data": [{"id": "served.gguf", "object": "model"}]}
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
        remember(offer)
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


# -- what was asked for ----------------------------------------------------------------------------


def test_what_was_asked_for_wins_in_order() -> None:
    """The argument, the variable, the project, the keys; a model object is handed back as it is."""
    model = TestModel()
    environ = {"LLM_DO_MODEL": " groq:a ", "FIRST_KEY": "secret"}

    def choose(*args: Any) -> ModelChoice:
        return choose_default_model(*args, key_offers=SOME_OFFERS, servers=())

    assert choose(model, "mistral:b", environ) == ModelChoice(model, "asked for")
    assert choose("openai:c", "mistral:b", environ) == ModelChoice("openai:c", "asked for")
    assert choose(None, "mistral:b", environ) == ModelChoice("groq:a", "LLM_DO_MODEL")
    assert choose(None, "mistral:b", {"FIRST_KEY": "secret"}) == ModelChoice("mistral:b", "llm-do.toml")
    assert choose(None, "mistral:b", {"LLM_DO_MODEL": ""}) == ModelChoice("mistral:b", "llm-do.toml")
    assert choose(None, None, environ | {"LLM_DO_MODEL": " "}) == ModelChoice("first:big", "FIRST_KEY is set", True)


def test_what_was_asked_for_asks_no_server() -> None:
    with serving({OLLAMA.path: TAGS}) as server:
        servers = at(OLLAMA, server.server_port)
        choose_default_model("openai:c", environ={}, servers=servers)
        choose_default_model(environ={"FIRST_KEY": "x"}, key_offers=SOME_OFFERS, servers=servers)
        assert server.requests == []


def test_nothing_found_is_none() -> None:
    """No scripted model stands in for a missing one."""
    assert finds_nothing(*at(OLLAMA, free_port()))


# -- keys ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("environ", "expected"),
    [
        ({"FIRST_KEY": "k"}, ("first:big", "FIRST_KEY is set")),
        ({"OLD_FIRST_KEY": "k"}, ("first:big", "OLD_FIRST_KEY is set")),
        ({"OLD_FIRST_KEY": "k", "FIRST_KEY": "k"}, ("first:big", "FIRST_KEY is set")),
        ({"SECOND_KEY": "k", "FIRST_KEY": "k"}, ("first:big", "FIRST_KEY is set, and comes before SECOND_KEY")),
        ({"SECOND_KEY": "k", "FIRST_KEY": " "}, ("second:big", "SECOND_KEY is set")),
        (
            {"ABSENT_KEY": "k", "SECOND_KEY": "k"},
            ("second:big", "SECOND_KEY is set; ABSENT_KEY needs pydantic-ai-slim[absent]"),
        ),
        ({"ABSENT_KEY": "k", "NESTED_KEY": "k"}, None),
        ({"first_key": "k"}, None),
    ],
)
def test_a_key_offers_the_model_of_an_installed_provider(
    environ: dict[str, str], expected: tuple[str, str] | None
) -> None:
    choice = choose_default_model(environ=environ, key_offers=SOME_OFFERS, servers=())
    if expected is None:
        assert choice.model is None
    else:
        assert choice == ModelChoice(*expected, found=True)


def test_default_names_are_known_to_pydantic_ai() -> None:
    """Each is a known name, or (OpenRouter, of which none is known) one whose provider is."""
    known = get_args(KnownModelName.__value__)
    assert not any(name.startswith("openrouter:") for name in known), "check our OpenRouter default against these"
    assert [offer.model for offer in KEY_OFFERS if offer.model not in known] == [KEY_OFFERS[-1].model]


@pytest.mark.parametrize("variable", ["OPENAI_API_KEY", "OPENROUTER_API_KEY"])
def test_a_real_key_gives_a_model_that_can_be_made(variable: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """With the packages of the development environment."""
    monkeypatch.setenv(variable, "sk-secret")
    choice = choose_default_model(environ={variable: "sk-secret"}, servers=())
    assert isinstance(choice.model, str)
    assert infer_model(choice.model).model_name == choice.model.partition(":")[2]
    assert "secret" not in f"{choice}{announce(choice)}"


# -- servers on loopback ---------------------------------------------------------------------------


def test_a_server_on_loopback_is_found() -> None:
    """Each kind gives its first model, through its own provider, and no request but one is made."""
    for kind, answer, expected, system in [
        (OLLAMA, TAGS, (OllamaModel, "qwen3:8b"), "ollama"),
        (LLAMA_SERVER, MODELS, (OpenAIChatModel, "served.gguf"), "openai"),
        (VLLM, MODELS, (OpenAIChatModel, "served.gguf"), "vllm"),
    ]:
        with serving({kind.path: answer}) as server:
            choice = choose_agreed(*at(kind, server.server_port))
            address = f"127.0.0.1:{server.server_port}"
            assert found(choice) == (*expected, f"{kind.name} on {address}")
            assert isinstance(choice.model, Model)
            assert (choice.model.system, choice.model.base_url) == (system, f"http://{address}/v1/")
            assert [path for path, _ in server.requests] == [kind.path] * 2
            assert announce(choice) == [f"llm-do: using {expected[1]} ({kind.name} on {address})"]


def test_the_first_server_that_answers_is_taken() -> None:
    with serving({}) as other, serving({VLLM.path: MODELS}) as vllm:
        servers = (
            *at(OLLAMA, free_port()),
            *at(LLAMA_SERVER, other.server_port),  # some web server that knows nothing of models
            *at(VLLM, vllm.server_port),
        )
        assert found(choose_agreed(*servers))[2].startswith("vLLM on ")


@pytest.mark.parametrize(("value", "asked"), [("1", False), ("yes", False), ("", True), ("0", True)])
def test_no_local_turns_servers_off(value: str, asked: bool) -> None:
    with serving({OLLAMA.path: TAGS}) as server:
        choice = choose_agreed(*at(OLLAMA, server.server_port), environ={"LLM_DO_NO_LOCAL": value})
        assert (choice.model is not None, bool(server.requests)) == (asked, asked)


def test_models_that_cannot_serve_are_passed_over() -> None:
    """Ollama's list also has embedding models, and models that it forwards to a cloud."""
    rows = [
        {"name": "nomic-embed-text:latest"},
        {"name": "gpt-oss:120b-cloud", "remote_host": "https://ollama.com:443", "remote_model": "gpt-oss:120b"},
        {"name": "llama3:latest"},
    ]
    with serving({OLLAMA.path: {"models": rows}}) as server:
        choice = choose_agreed(*at(OLLAMA, server.server_port))
        assert found(choice)[1] == "llama3:latest"


@pytest.mark.parametrize(
    "answer",
    [
        [], "models", 7, {}, {"models": None}, {"models": {}}, {"models": "qwen3"}, {"models": []},
        {"models": [[], None, 1]},
        {"models": [{}]}, {"models": [{"name": 3}]}, {"models": [{"name": ""}]}, {"models": [{"name": "a" * 201}]},
        {"models": [{"name": "\x1b[2Jqwen3"}]}, {"models": [{"name": "a\nllm-do: using b"}]}, {"data": [{"id": "x"}]},
    ],
)  # fmt: skip
def test_an_answer_of_another_shape_is_no_server(answer: Any) -> None:
    """Nor is a name that would steer a terminal a name."""
    with serving({OLLAMA.path: answer}) as server:
        assert finds_nothing(*at(OLLAMA, server.server_port))


OK = b"HTTP/1.1 200 OK\r\n"
BODY = json.dumps(TAGS).encode()


def flood(connection: socket.socket) -> None:
    connection.sendall(OK + b"\r\n")
    while True:
        connection.sendall(b" " * 65536)


def drip(start: bytes, drop: bytes) -> Callable[[socket.socket], None]:
    """Never silent for as long as the timeout, and never done: it ends when the other end hangs up."""

    def talk(connection: socket.socket) -> None:
        connection.sendall(start)
        while True:
            connection.sendall(drop)
            time.sleep(0.05)

    return talk


def listen(connection: socket.socket) -> None:
    """Say nothing until the other end hangs up."""
    while connection.recv(65536):
        pass


def say(data: bytes) -> Callable[[socket.socket], None]:
    return lambda connection: connection.sendall(data)


@pytest.mark.parametrize(
    "talk",
    [
        pytest.param(say(b""), id="hangs up"),
        pytest.param(say(b"\x00\xff garbage \r\n\r\n"), id="no HTTP"),
        pytest.param(say(OK + b"\r\n\xff\xfe not json"), id="no JSON"),
        pytest.param(say(OK + b"\r\n" + b"[" * 900_000), id="deeply nested"),
        pytest.param(say(OK + b'\r\n{"models": ' + b"9" * 10_000 + b"}"), id="huge number"),
        pytest.param(say(OK + b"Content-Length: 999\r\n\r\n" + BODY[:20]), id="cut off"),
        pytest.param(say(OK + b"Content-Length: -5\r\n\r\n{"), id="negative length"),
        pytest.param(say(OK + b"Transfer-Encoding: chunked\r\n\r\nzz\r\n"), id="bad chunk"),
        pytest.param(say(OK + b"A: b\r\n" * 200 + b"\r\n" + BODY), id="too many headers"),
        pytest.param(say(b"HTTP/1.1 500 no\r\n\r\n" + BODY), id="an error"),
        pytest.param(say(OK + b"\r\n" + BODY + b" " * 1_000_000), id="too large"),
        pytest.param(flood, id="endless"),
        pytest.param(listen, id="silent"),
        pytest.param(drip(b"", b"H"), id="dripping status"),
        pytest.param(drip(OK, b"A: b\r\n"), id="dripping headers"),
        pytest.param(drip(OK + b"\r\n", b" "), id="dripping body"),
        pytest.param(drip(b"", b"HTTP/1.1 100 Continue\r\n\r\n"), id="never ready"),
        pytest.param(drip(OK + b"Transfer-Encoding: chunked\r\n\r\n0\r\n", b"A: b\r\n"), id="dripping trailers"),
    ],
)
def test_a_hostile_server_is_no_server(talk: Callable[[socket.socket], None]) -> None:
    """It neither raises nor waits for an end that never comes."""
    with talking(talk) as port:
        assert finds_nothing(*at(OLLAMA, port))


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A certificate for localhost, with its key."""
    if shutil.which("openssl") is None:
        pytest.skip("there is no openssl to make a certificate with")
    file = tmp_path_factory.mktemp("tls") / "localhost.pem"
    words = "req -x509 -newkey rsa:2048 -nodes -days 2 -subj /CN=localhost -addext subjectAltName=DNS:localhost"
    subprocess.run(["openssl", *words.split(), "-keyout", file, "-out", f"{file}.crt"], check=True, capture_output=True)
    with file.open("a") as both:
        both.write(Path(f"{file}.crt").read_text())
    return file


@pytest.mark.parametrize(
    "talk",
    [
        pytest.param(flood, id="endless"),
        pytest.param(listen, id="silent"),
        pytest.param(drip(b"", b"H"), id="dripping status"),
        pytest.param(drip(OK + b"Content-Length: 900000\r\n\r\n", b" "), id="dripping body"),
    ],
)
def test_a_hostile_server_behind_tls_is_no_server(
    talk: Callable[[socket.socket], None], certificate: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One deadline is for the whole exchange, whatever the scheme."""
    monkeypatch.setenv("SSL_CERT_FILE", str(certificate))
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    tls.load_cert_chain(certificate)
    with talking(talk, tls) as port:
        assert finds_nothing(replace(OLLAMA, address=Address(host="localhost", port=port, scheme="https")))


def test_a_server_behind_tls_is_found(certificate: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("llm_do.models.servers._SECONDS", PATIENCE)
    monkeypatch.setenv("SSL_CERT_FILE", str(certificate))
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    tls.load_cert_chain(certificate)
    with talking(say(OK + b"\r\n" + BODY), tls) as port:
        address = Address(host="localhost", port=port, scheme="https")
        (offer,) = choose_default_model(environ={}, servers=[replace(OLLAMA, address=address)]).passed_over
    assert offer.name == "ollama:qwen3:8b"


def test_a_server_that_never_answers_a_handshake_is_no_server() -> None:
    with talking(listen) as port:
        assert finds_nothing(replace(OLLAMA, address=Address(port=port, scheme="https")))


def test_a_name_that_takes_long_to_look_up_is_no_server(monkeypatch: pytest.MonkeyPatch) -> None:
    """Looking up a name has no timeout of its own."""
    is_over = threading.Event()

    def look_up(*args: Any, **options: Any) -> list[Any]:
        is_over.wait()
        return []

    monkeypatch.setattr(socket, "getaddrinfo", look_up)
    try:
        assert finds_nothing(replace(OLLAMA, address=Address(host="localhost", port=1)))
    finally:
        is_over.set()


def test_a_server_that_accepts_nothing_is_no_server() -> None:
    """Its backlog is full, so connecting itself hangs."""
    with socket.create_server(("127.0.0.1", 0), backlog=0) as listener, ExitStack() as stack:
        for _ in range(8):
            client = stack.enter_context(socket.socket())
            client.setblocking(False)
            client.connect_ex(listener.getsockname())
        assert finds_nothing(*at(OLLAMA, listener.getsockname()[1]))


def test_redirects_are_not_followed() -> None:
    with serving({OLLAMA.path: TAGS}) as elsewhere:
        redirect = Redirect(f"http://127.0.0.1:{elsewhere.server_port}{OLLAMA.path}")
        with serving({OLLAMA.path: redirect}) as server:
            assert finds_nothing(*at(OLLAMA, server.server_port))
        assert elsewhere.requests == []


# -- servers need a yes ----------------------------------------------------------------------------


def test_a_server_that_was_not_agreed_to_is_passed_over() -> None:
    """It is named, with the way to take it, and gets no prompt. The next server is no better."""
    with serving({OLLAMA.path: TAGS}) as ollama, serving({VLLM.path: MODELS}) as vllm:
        choice = choose_default_model(
            environ={}, servers=(*at(OLLAMA, ollama.server_port), *at(VLLM, vllm.server_port))
        )
        assert (choice.model, choice.found) == (None, False)
        assert announce(choice) == [
            f"llm-do: Ollama on 127.0.0.1:{ollama.server_port} offers 'qwen3:8b', and is not used without your yes: "
            "set LLM_DO_MODEL=ollama:qwen3:8b, or let `llm-do run` ask you at a terminal",
            f"llm-do: vLLM on 127.0.0.1:{vllm.server_port} offers 'served.gguf', and is not used without your yes: "
            "set LLM_DO_MODEL=vllm:served.gguf, or let `llm-do run` ask you at a terminal",
        ]


def test_a_yes_is_for_one_server_at_one_address_of_one_account(state: Path) -> None:
    """It outlives the process, and another port, kind or account needs its own."""
    with serving({OLLAMA.path: TAGS, VLLM.path: MODELS}) as one, serving({OLLAMA.path: TAGS}) as other:
        (offer,) = choose_default_model(environ={}, servers=at(OLLAMA, one.server_port)).passed_over
        assert offer.user == os.geteuid()
        remember(offer)
        assert choose_default_model(environ={}, servers=at(OLLAMA, one.server_port)).found
        assert not choose_default_model(environ={}, servers=at(OLLAMA, other.server_port)).found
        assert not choose_default_model(environ={}, servers=at(VLLM, one.server_port)).found
        assert not has_agreed(replace(offer, user=offer.user + 1))
        assert len(forget_all()) == 1
        assert not choose_default_model(environ={}, servers=at(OLLAMA, one.server_port)).found


def test_answers_that_cannot_be_believed_are_no_yes(state: Path, caplog: pytest.LogCaptureFixture) -> None:
    """A file of answers that others can write is told, and counts as empty."""
    with serving({OLLAMA.path: TAGS}) as server:
        assert choose_agreed(*at(OLLAMA, server.server_port)).found
        (state / "llm-do" / "remembered.json").chmod(0o666)
        assert not choose_default_model(environ={}, servers=at(OLLAMA, server.server_port)).found
        assert "is not trusted" in caplog.text


@pytest.mark.skipif(sys.platform != "linux", reason="the kernel tells who listens on Linux only")
def test_the_account_that_listens_is_known() -> None:
    """On either family, for a socket of one address and for one of all."""
    with ExitStack() as stack:
        listeners = {
            "127.0.0.1": stack.enter_context(socket.create_server(("127.0.0.1", 0))),
            "0.0.0.0": stack.enter_context(socket.create_server(("", 0))),
            "::1": stack.enter_context(socket.create_server(("::1", 0), family=socket.AF_INET6)),
            "::": stack.enter_context(
                socket.create_server(("::", 0), family=socket.AF_INET6, dualstack_ipv6=True),
            ),
        }
        me = os.geteuid()
        known = {
            bound: [listening_user(host, sock.getsockname()[1]) for host in ("127.0.0.1", "::1")]
            for bound, sock in listeners.items()
        }
    assert known == {"127.0.0.1": [me, None], "0.0.0.0": [me, None], "::1": [None, me], "::": [me, me]}
    assert listening_user("127.0.0.1", free_port()) is None


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can be another user")
def test_a_server_of_another_account_needs_its_own_yes() -> None:
    """The same port, taken over by another account, is not what the user agreed to."""
    with serving({OLLAMA.path: TAGS}) as server:
        port = server.server_port
        assert choose_agreed(*at(OLLAMA, port)).found
    with serving({OLLAMA.path: TAGS}, port=port, user=54321):
        choice = choose_default_model(environ={}, servers=at(OLLAMA, port))
    assert choice.model is None
    assert f"Ollama on 127.0.0.1:{port}, run by user 54321 offers" in announce(choice)[0]


# -- servers that a variable names -----------------------------------------------------------------


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ("gpubox", "http://gpubox:11434"),
        ("gpubox:1234", "http://gpubox:1234"),
        (" 'gpubox' ", "http://gpubox:11434"),
        (":1234", "http://127.0.0.1:1234"),
        ("0.0.0.0", "http://127.0.0.1:11434"),
        ("0.0.0.0:1234", "http://127.0.0.1:1234"),
        ("::", "http://[::1]:11434"),
        ("::1", "http://[::1]:11434"),
        ("[::1]:1234", "http://[::1]:1234"),
        ("localhost", "http://localhost:11434"),
        ("http://gpubox", "http://gpubox:80"),
        ("https://gpubox", "https://gpubox:443"),
        ("http://gpubox:1234/", "http://gpubox:1234"),
        ("https://gpubox/ollama/v1/", "https://gpubox:443/ollama"),
        ("http://127.0.0.1:11434/v1", "http://127.0.0.1:11434"),
    ],
)
def test_an_address_is_read_as_ollama_reads_it(value: str, expected: str) -> None:
    """And with the `/v1` that PydanticAI wants in its URL."""
    assert read_address("OLLAMA_HOST", value, 11434).url == expected


@pytest.mark.parametrize(
    "value",
    [
        "http://user:hunter2@gpubox", "hunter2:x@gpubox:1", "file:///hunter2", "ftp://hunter2", "gpubox?key=hunter2",
        "gpubox#hunter2", "hunter2\nllm-do: fine", "hunter2 x", "hunter2\x1b[2J", "gpubox:hunter2", "gpubox:99999",
        "gpubox:0", "[::1", "gpubox:1:2", "fe80::1%hunter2", "h\u00e9te", "-hunter2", "..", "//hunter2", "a/b?c",
        "x" * 2000,
    ],
)  # fmt: skip
def test_a_value_that_is_no_address_is_an_error_without_the_value(value: str) -> None:
    """It names the variable and what can be written, and repeats nothing that may be a password."""
    with pytest.raises(ModelChoiceError, match=r"OLLAMA_HOST is not the address of a server: .* Write HOST") as caught:
        choose_default_model(environ={"OLLAMA_HOST": value}, servers=at(OLLAMA, 1))
    assert "hunter2" not in str(caught.value)
    assert choose_default_model("test", environ={"OLLAMA_HOST": value}).model == "test"


@pytest.mark.parametrize(
    ("host", "here"),
    [
        ("127.0.0.1", True), ("127.9.9.9", True), ("localhost", True), ("[::1]", True), ("[::ffff:127.0.0.1]", True),
        ("0.0.0.0", True), ("10.0.0.1", False), ("gpubox", False), ("localhost.example", False),
        ("[2001:db8::1]", False), ("127.0.0.1.example", False), ("2130706433", False),
    ],
)  # fmt: skip
def test_loopback_is_told_from_other_machines(host: str, here: bool) -> None:
    assert read_address("OLLAMA_HOST", host, 11434).is_loopback is here


@pytest.mark.parametrize("variable", ["OLLAMA_HOST", "OLLAMA_BASE_URL"])
def test_a_server_that_a_variable_names_is_used_without_a_question(variable: str) -> None:
    """`OLLAMA_BASE_URL` comes before `OLLAMA_HOST`."""
    with serving({OLLAMA.path: TAGS}) as server, serving({}) as usual:
        address = f"127.0.0.1:{server.server_port}"
        environ = {"OLLAMA_HOST": "127.0.0.1:1", variable: f"http://{address}"}
        choice = choose_default_model(environ=environ, servers=at(OLLAMA, usual.server_port))
        assert found(choice) == (OllamaModel, "qwen3:8b", f"Ollama on {address}, which {variable} names")
        assert announce(choice) == [f"llm-do: using qwen3:8b ({choice.reason})"]
        assert usual.requests == []


def machine_address() -> str:
    """An address of this machine that is not loopback; no packet is sent to find it."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        try:
            sock.connect(("192.0.2.1", 9))
        except OSError:
            pytest.skip("this machine has no network")
        host: str = sock.getsockname()[0]
        return host


async def test_an_address_that_is_not_loopback_is_said_aloud(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """As the default model, and as a model that is named."""
    host = machine_address()
    with serving({OLLAMA.path: TAGS, "/v1/chat/completions": COMPLETION}, host=host) as server:
        address = f"{host}:{server.server_port}"
        said = f"llm-do: {address} (OLLAMA_HOST) is not this machine: prompts, and what workers read, are sent there"
        environ = {"OLLAMA_HOST": address}
        choice = choose_default_model(environ=environ, servers=[OLLAMA])
        assert announce(choice) == [f"llm-do: using qwen3:8b (Ollama on {address}, which OLLAMA_HOST names)", said]
        monkeypatch.setenv("OLLAMA_HOST", address)
        runtime = Runtime([WorkerEntry(name="w")], model="ollama:llama3")
        assert [await runtime.call("w", text) for text in ("a", "b")] == ["hello", "hello"]
        assert caplog.messages == [said]


@pytest.mark.parametrize("provider", ["ollama", "vllm"])
async def test_a_named_model_is_asked_where_the_variable_says(
    provider: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Its own key goes there, and no other."""
    for name in ("OLLAMA_HOST", "OLLAMA_BASE_URL", "VLLM_BASE_URL"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("OPENAI_API_KEY", "sk-secret")
    monkeypatch.setenv("OPENAI_CUSTOM_HEADERS", "Authorization: Bearer secret")
    monkeypatch.setenv(f"{provider.upper()}_API_KEY", "own-key")
    usual = [resolve_model(f"{server.provider}:llama3").base_url for server in MODEL_SERVERS]
    assert usual == [f"http://127.0.0.1:{port}/v1/" for port in (11434, 8080, 8000)]
    with serving({"/v1/chat/completions": COMPLETION}) as server:
        monkeypatch.setenv(f"{provider.upper()}_BASE_URL", f"http://127.0.0.1:{server.server_port}/v1")
        assert (await Agent(resolve_model(f"{provider}:llama3")).run("hi")).output == "hello"
        ((_, headers),) = server.requests
    assert "Bearer own-key" in headers.values() and "secret" not in str(headers)
    assert caplog.messages == []


def test_a_key_goes_to_no_server_that_only_holds_the_usual_port() -> None:
    with serving({OLLAMA.path: TAGS}) as server:
        (usual,) = at(OLLAMA, server.server_port)
        environ = {"OLLAMA_API_KEY": "own-key"}
        assert usual.locate(environ).api_key(environ) is None
        choose_default_model(environ=environ, servers=[usual])
        assert "own-key" not in str(server.requests)


@pytest.mark.parametrize(("name", "why"), [("ollama:", "write ollama:MODEL"), ("ollama:a", "OLLAMA_HOST is not the")])
async def test_a_named_model_that_cannot_be_asked_is_an_error(
    name: str, why: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OLLAMA_HOST", "file:///etc/passwd" if name == "ollama:a" else "127.0.0.1")
    monkeypatch.delenv("OLLAMA_BASE_URL", raising=False)
    with pytest.raises(ModelChoiceError, match=f"Worker 'w' cannot use model '{name}': .*{why}"):
        await Runtime([WorkerEntry(name="w")], model=name).call("w", "a")


# -- using what was found --------------------------------------------------------------------------

COMPLETION = {
    "id": "1",
    "object": "chat.completion",
    "created": 1,
    "model": "m",
    "choices": [{"index": 0, "finish_reason": "stop", "message": {"role": "assistant", "content": "hello"}}],
}


@pytest.mark.parametrize("kind", MODEL_SERVERS, ids=lambda kind: kind.name)
def test_nothing_leaves_the_machine(kind: ModelServer, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither the search nor the model uses a proxy or sends a key, and one model serves several event loops."""
    with serving({}) as proxy, serving({kind.path: TAGS | MODELS, "/v1/chat/completions": COMPLETION}) as server:
        for name in ("http_proxy", "HTTP_PROXY", "ALL_PROXY", "all_proxy"):
            monkeypatch.setenv(name, f"http://127.0.0.1:{proxy.server_port}")
        for name in ("no_proxy", "NO_PROXY"):
            monkeypatch.delenv(name, raising=False)
        for name in ("OPENAI_API_KEY", "OPENAI_ADMIN_KEY", "OLLAMA_API_KEY", "VLLM_API_KEY"):
            monkeypatch.setenv(name, "sk-secret")
        monkeypatch.setenv("OPENAI_ORG_ID", "org-secret")
        monkeypatch.setenv("OPENAI_CUSTOM_HEADERS", "Authorization: Bearer secret\nX-Gateway: secret")
        choice = choose_agreed(*at(kind, server.server_port))
        assert isinstance(choice.model, Model)

        async def ask() -> str:
            return (await Agent(choice.model).run("hi")).output

        assert [asyncio.run(ask()) for _ in range(3)] == ["hello"] * 3
        assert len(server.requests) == 5 and proxy.requests == []
        assert "secret" not in str(server.requests)


async def test_a_model_that_was_found_follows_no_redirect() -> None:
    """A prompt goes to the server that was announced, or nowhere."""
    path = "/v1/chat/completions"
    with serving({path: COMPLETION}) as elsewhere:
        redirect = Redirect(f"http://127.0.0.1:{elsewhere.server_port}{path}")
        with serving({VLLM.path: MODELS, path: redirect}) as server:
            choice = choose_agreed(*at(VLLM, server.server_port))
            assert isinstance(choice.model, Model)
            with pytest.raises(ModelAPIError, match="307"):
                await Agent(choice.model).run("hi")
        assert elsewhere.requests == []


# -- what is said ----------------------------------------------------------------------------------


def test_only_what_nobody_asked_for_is_announced() -> None:
    assert announce(ModelChoice("openai:a", "LLM_DO_MODEL")) == []
    lines = announce(ModelChoice("anthropic:a", "ANTHROPIC_API_KEY is set", found=True))
    assert lines == snapshot(["llm-do: using anthropic:a (ANTHROPIC_API_KEY is set)"])


def test_the_error_names_the_worker_and_every_way() -> None:
    """In the order in which they count, one line each."""
    first, *ways = explain_missing("summarizer").splitlines()
    assert first == snapshot("Worker 'summarizer' has no model. Give it one by any of these; the first wins:")
    secret_fields = ["own `model`", "--model", "LLM_DO_MODEL", "llm-do.toml", "API key", "model server", "models pull"]
    assert len(ways) == len(secret_fields) and all(mark in way for mark, way in zip(secret_fields, ways, strict=True))
    assert all(variable in ways[4] for offer in KEY_OFFERS for variable in offer.variables)
    assert "OPENAI_API_KEY," in ways[4], "what is installed needs nothing"


def test_choosing_by_key_imports_no_provider() -> None:
    script = (
        "import sys; from llm_do.models import choose_default_model as choose;"
        "assert choose(environ={'OPENAI_API_KEY': 'k'}); choose(environ={}, servers=());"
        "print([name for name in ('openai', 'anthropic', 'google.genai', 'groq', 'mistralai') if name in sys.modules])"
    )
    assert subprocess.run([sys.executable, "-c", script], capture_output=True, check=True).stdout.strip() == b"[]"


def test_a_key_that_cannot_be_used_is_told_beside_what_is_used_in_its_place() -> None:
    with serving({OLLAMA.path: TAGS}) as server:
        servers = at(OLLAMA, server.server_port)
        choice = choose_agreed(*servers, environ={"ABSENT_KEY": "x"}, key_offers=SOME_OFFERS)
    assert choice.reason.endswith("ABSENT_KEY needs pydantic-ai-slim[absent]") and "Ollama on" in choice.reason


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("openai:", "the name of the model is missing: write openai:MODEL."),
        (" openai: ", "the name of the model is missing: write openai:MODEL."),
        (":gpt", "the provider is missing: write PROVIDER:gpt."),
        ("local:", "the name of the model is missing: write local:MODEL."),
        ("openai:gpt-4o", "OPENAI_API_KEY is set in the environment, and is empty. Give it a key, or unset it."),
    ],
)
@pytest.mark.parametrize("key", ["", " "])
async def test_the_part_of_a_models_name_that_is_missing(
    monkeypatch: pytest.MonkeyPatch, name: str, words: str, key: str
) -> None:
    """An empty key is said to be empty, and not to be missing."""
    monkeypatch.setenv("OPENAI_API_KEY", key)
    with pytest.raises(ModelChoiceError) as caught:
        await Runtime(model=name).call(WorkerEntry(name="w"), "hi")
    assert str(caught.value) == f"Worker 'w' cannot use model {name!r}: {words}"


def test_an_empty_key_that_is_not_used_refuses_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is asked with another key, or through a variable of another provider, is none of its business."""
    for name in ("OPENAI_API_KEY", "AZURE_API_KEY"):
        monkeypatch.setenv(name, "")
    monkeypatch.setenv("AZURE_OPENAI_API_KEY", "key")
    monkeypatch.setenv("AZURE_OPENAI_ENDPOINT", "https://example.invalid")
    monkeypatch.setenv("OPENAI_API_VERSION", "2024-06-01")
    assert resolve_model("azure:gpt-4o").model_name == "gpt-4o"


async def test_whatever_a_providers_package_raises_is_told_with_the_worker(monkeypatch: pytest.MonkeyPatch) -> None:
    """Such an error need be neither a `UserError` nor a `ValueError`."""
    monkeypatch.setenv("OPENAI_API_KEY", "key")
    monkeypatch.setenv("OPENAI_BASE_URL", "http://a:b")
    with pytest.raises(ModelChoiceError, match="Worker 'w' cannot use model 'openai:gpt-4o': "):
        await Runtime(model="openai:gpt-4o").call(WorkerEntry(name="w"), "hi")
