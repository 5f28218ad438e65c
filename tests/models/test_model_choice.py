"""The default model: one of a setting, then of a key, then of a server with consent. All servers here are real."""

import asyncio
import os
import socket
import subprocess
import sys
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any, get_args

import pytest
from inline_snapshot import snapshot
from pydantic_ai import Agent
from pydantic_ai.exceptions import ModelAPIError
from pydantic_ai.models import KnownModelName, Model, infer_model
from pydantic_ai.models.test import TestModel

from llm_do import ModelChoiceError, Runtime, WorkerEntry
from llm_do.models.addresses import listening_user
from llm_do.models.choice import KEY_OFFERS, ModelChoice, announce, choose_default_model, explain_missing
from llm_do.models.resolve import resolve_model
from llm_do.models.servers import MODEL_SERVERS, ModelServer, has_agreed, remember_consent, withdraw_consent

from .served_models import (
    COMPLETION,
    MODELS,
    OLLAMA,
    SOME_OFFERS,
    TAGS,
    VLLM,
    Redirect,
    at,
    choose_agreed,
    finds_nothing,
    free_port,
    serving,
)
from .served_models import state as state

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
        remember_consent(offer)
        assert choose_default_model(environ={}, servers=at(OLLAMA, one.server_port)).found
        assert not choose_default_model(environ={}, servers=at(OLLAMA, other.server_port)).found
        assert not choose_default_model(environ={}, servers=at(VLLM, one.server_port)).found
        assert not has_agreed(replace(offer, user=offer.user + 1))
        assert len(withdraw_consent()) == 1
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


# -- using what was found --------------------------------------------------------------------------


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
        "import sys; from llm_do.models.choice import choose_default_model as choose;"
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
