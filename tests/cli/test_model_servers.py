"""How `llm-do` comes to use a model server that nothing names: a person says yes, or it is not used."""

import json
import os
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from llm_do.cli.terminal.errors import Exit
from llm_do.models.addresses import user_name
from llm_do.models.choice import KEY_OFFERS
from llm_do.models.servers import MODEL_SERVERS

from .in_process import AtTerminal, RunHere, at_terminal_here, run_here, run_in_project
from .programs import Run, Start, run, start
from .server import Server, Step, serve

__all__ = ["at_terminal_here", "run", "run_here", "run_in_project", "start"]

USUAL_PORT = """
import os, sys
if "llm_do" in sys.orig_argv:
    from llm_do.models import addresses, servers
    address = addresses.Address(port=int(os.environ["TEST_USUAL_PORT"]))
    object.__setattr__(servers.MODEL_SERVERS[0], "address", address)
"""


@pytest.fixture
def server() -> Iterator[Server]:
    with serve(Step(text="Served tea.")) as made:
        yield made


@pytest.fixture
def project(tmp_path: Path) -> Path:
    (tmp_path / "project" / "workers").mkdir(parents=True)
    (tmp_path / "project" / "workers" / "helper.md").write_text("Help.\n")
    return tmp_path / "project"


@pytest.fixture(autouse=True)
def machine(tmp_path: Path, server: Server, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """No key, no model, no answer, and a machine where the usual port of Ollama is that of the server of the test."""
    (tmp_path / "site").mkdir()
    (tmp_path / "site" / "sitecustomize.py").write_text(USUAL_PORT)
    keys = [name for offer in KEY_OFFERS for name in offer.variables]
    for name in [*keys, "LLM_DO_MODEL", "LLM_DO_NO_LOCAL", "OLLAMA_HOST", "OLLAMA_BASE_URL", "OLLAMA_API_KEY", "CI"]:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path / "site"))
    monkeypatch.setenv("PYDANTIC_AI_NO_BANNER", "1")
    monkeypatch.setenv("TEST_USUAL_PORT", server.url.rpartition(":")[2])
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    ollama, usual = MODEL_SERVERS[0], MODEL_SERVERS[0].address
    object.__setattr__(ollama, "address", replace(usual, port=int(server.url.rpartition(":")[2])))  # of this process
    yield
    object.__setattr__(ollama, "address", usual)


def test_a_yes_at_a_terminal_is_asked_for_once(start: Start, run: Run, run_in_project: Run, server: Server) -> None:
    """The question names the server, the address, the account and what is sent; then no other run asks."""
    address = server.url.removeprefix("http://")
    terminal = start("run helper hi")
    seen = terminal.wait_for("[y/N]")
    assert f"Ollama on {address}, run by you" in seen and "offers 'scripted'" in seen
    assert "all prompts, the contents of files" in seen and "llm-do models forget" in seen
    assert server.requests == []
    terminal.type("y")
    seen = terminal.wait_for("code 0")
    assert "Served tea." in seen and f"llm-do: using scripted (Ollama on {address})" in seen
    again = run("run", "helper", "hi")
    assert (again.returncode, again.stdout) == (0, "Served tea.\n")
    assert "you agreed to use it" in run_in_project("doctor").stdout
    forgotten = run("models", "forget")
    line = f"No longer used without a question: Ollama on {server.url}, run by user {user_name(os.geteuid())}\n"
    assert (forgotten.returncode, forgotten.stdout) == (0, line)
    assert run_in_project("run", "helper", "hi").returncode == Exit.USAGE
    assert len(server.requests) == 2


@pytest.mark.parametrize("answer", ["n", "", "Y E S"])
def test_anything_else_is_no(start: Start, server: Server, tmp_path: Path, answer: str) -> None:
    """The server gets nothing, is not asked about twice, and nothing is remembered."""
    terminal = start("run helper hi", PYTHONDONTWRITEBYTECODE="1")
    terminal.wait_for("Use Ollama? [y/N]")
    terminal.type(answer)
    seen = terminal.wait_for(lambda screen: "code 2" in screen or "Fetch it now? [y/N]" in screen)
    if "Fetch it now" in seen:  # where local models can run, one is offered next
        assert "no model server is used" in seen
        terminal.type("n")
        seen = terminal.wait_for("code 2")
    assert seen.count("Use Ollama?") == 1 and "has no model" in seen
    assert server.requests == [] and not (tmp_path / "state").exists()


def test_a_chat_asks_before_there_is_a_screen(start: Start, server: Server) -> None:
    terminal = start("chat helper")
    terminal.wait_for("Use Ollama? [y/N]")
    terminal.type("yes")
    terminal.wait_for("Talking to helper")
    terminal.send("h", "i", "Enter")
    terminal.wait_for("Served tea.")
    terminal.send("C-q")
    terminal.wait_for("code 0")


@pytest.mark.parametrize("words", ["< /dev/null", "2> errors"])
def test_no_question_where_a_stream_is_no_terminal(start: Start, server: Server, words: str) -> None:
    seen = start(f"run helper hi {words}").wait_for("code 2")
    assert "[y/N]" not in seen and server.requests == []


@pytest.mark.parametrize("word", ["--json", "--events", "-q"])
def test_no_question_with_an_option_for_scripts(
    at_terminal_here: AtTerminal, project: Path, server: Server, word: str
) -> None:
    code, seen = at_terminal_here("run", "helper", "hi", word, cwd=project, LLM_DO_NO_LOCAL="")
    assert code == 2 and "[y/N]" not in seen and server.requests == []


def test_no_question_in_a_ci_job_with_a_terminal(at_terminal_here: AtTerminal, project: Path, server: Server) -> None:
    code, seen = at_terminal_here("run", "helper", "hi", cwd=project, LLM_DO_NO_LOCAL="", CI="true")
    assert code == 2 and "[y/N]" not in seen and server.requests == []
    assert "is not used without your yes" in seen.replace("\r\n", "")


def test_without_a_terminal_a_line_says_how_to_name_it(run_in_project: Run, server: Server) -> None:
    """What it says works."""
    done = run_in_project("run", "helper", "hi")
    assert done.returncode == Exit.USAGE and server.requests == []
    line = done.stderr.splitlines()[0]
    assert line.startswith(f"llm-do: Ollama on {server.url.removeprefix('http://')} offers 'scripted', and is not used")
    assert "set LLM_DO_MODEL=ollama:scripted," in line
    named = run_in_project("run", "helper", "hi", LLM_DO_MODEL="ollama:scripted")
    assert (named.returncode, named.stdout, named.stderr) == (0, "Served tea.\n", "")
    assert "not used without your yes" in run_in_project("doctor").stdout
    quiet = run_in_project("run", "helper", "hi", "-q")
    assert quiet.returncode == Exit.USAGE and quiet.stderr.startswith("Error: Worker 'helper' has no model.")


def test_a_variable_names_the_server(run: Run, server: Server) -> None:
    done = run("run", "helper", "hi", OLLAMA_HOST=server.url, TEST_USUAL_PORT="1")
    assert (done.returncode, done.stdout) == (0, "Served tea.\n")
    address = server.url.removeprefix("http://")
    assert done.stderr == f"llm-do: using scripted (Ollama on {address}, which OLLAMA_HOST names)\n"


def test_a_variable_that_has_no_address_is_an_error(run_in_project: Run, project: Path) -> None:
    """`doctor`, `show` and `check` tell it, and go on; where another model is named, it does not matter."""
    bad = {"OLLAMA_HOST": "http://ada:hunter2@gpubox"}
    done = run_in_project("run", "helper", "hi", **bad)
    assert done.returncode == Exit.USAGE
    assert done.stderr.startswith("Error: OLLAMA_HOST is not the address of a server: a user name or a password")
    doctor, shown = run_in_project("doctor", **bad), run_in_project("show", "helper", "--json", **bad)
    assert (doctor.returncode, shown.returncode) == (0, 0)
    assert "OLLAMA_HOST is not the address" in doctor.stdout
    assert json.loads(shown.stdout)["model"]["reason"].startswith("OLLAMA_HOST is not the address")
    assert run_in_project("run", "helper", "hi", "-m", "test", **bad).returncode == 0
    (project / "workers" / "helper.md").write_text("---\nmodel: ollama:a\n---\nHelp.\n")
    checked = run_in_project("check", **bad)
    assert checked.returncode == 0 and "warning: model 'ollama:a': OLLAMA_HOST is not the address" in checked.stdout
    assert "hunter2" not in done.stderr + doctor.stdout + shown.stdout


def test_a_yes_that_cannot_be_kept_holds_for_this_run(start: Start, tmp_path: Path) -> None:
    """The file of answers cannot be written: that is said, and the run goes on."""
    (tmp_path / "state").write_text("a file where a folder should be")
    terminal = start("run helper hi")
    terminal.wait_for("[y/N]")
    terminal.type("y")
    seen = terminal.wait_for("code 0").replace("\n", "")
    assert "Served tea." in seen and "so the answer is not remembered" in seen


@pytest.mark.parametrize("name", ["double", "own", "caller"])
def test_a_model_is_looked_for_only_where_one_is_needed(
    run_here: RunHere, project: Path, server: Server, name: str
) -> None:
    """A function, and a worker with its own model, ask no server and name no model; a nested worker does."""
    (project / "workers" / "own.md").write_text("---\nmodel: test\n---\nHelp.\n")
    (project / "workers" / "bare.md").write_text("Help.\n")
    (project / "tools.py").write_text(
        "from pydantic_ai import RunContext\nfrom llm_do import Context, entry\n"
        "@entry\ndef double(input: str) -> str:\n    return input * 2\n"
        "@entry\nasync def caller(ctx: RunContext[Context], input: str) -> str:\n"
        "    return await ctx.deps.call('bare', input)\n"
    )
    address = server.url.removeprefix("http://")
    done = run_here("run", name, "input=hi", cwd=project, OLLAMA_HOST=address, LLM_DO_NO_LOCAL="0")
    assert done.returncode == 0, done.stderr
    if name == "caller":
        assert done.stdout == "Served tea.\n" and done.stderr.count("llm-do: using scripted (Ollama on") == 1
        assert server.connections
    else:
        assert done.stderr == "" and not server.connections
