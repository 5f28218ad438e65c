"""Model servers are found on loopback or by a variable, whatever they answer."""

import json
import shutil
import socket
import ssl
import subprocess
import threading
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from pydantic_ai import Agent
from pydantic_ai.models import Model
from pydantic_ai.models.ollama import OllamaModel
from pydantic_ai.models.openai import OpenAIChatModel

from llm_do import ModelChoiceError, Runtime, WorkerEntry
from llm_do.models.addresses import Address, read_address
from llm_do.models.choice import announce, choose_default_model
from llm_do.models.resolve import resolve_model
from llm_do.models.servers import MODEL_SERVERS

from ..processes import PATIENCE
from .served_models import (
    COMPLETION,
    LLAMA_SERVER,
    MODELS,
    OLLAMA,
    TAGS,
    VLLM,
    Redirect,
    at,
    choose_agreed,
    finds_nothing,
    found,
    free_port,
    serving,
    talking,
)
from .served_models import state as state

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
    monkeypatch.setattr("llm_do.models.servers._ANSWER_SECONDS", PATIENCE)
    monkeypatch.setenv("SSL_CERT_FILE", str(certificate))
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    tls.load_cert_chain(certificate)
    with talking(say(OK + b"\r\n" + BODY), tls) as port:
        address = Address(host="localhost", port=port, scheme="https")
        (offer,) = choose_default_model(environ={}, servers=[replace(OLLAMA, address=address)]).passed_over
    assert offer.setting == "LLM_DO_MODEL=ollama:qwen3:8b"


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
