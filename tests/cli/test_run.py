"""`llm-do run`, as a program in a process of its own, where nobody sits at a terminal."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from llm_do.cli.terminal.errors import Exit

from ..processes import PATIENCE, start_interruptible, start_uninterruptible
from .in_process import RunHere, run_here
from .server import Server, Step, serve

TOOLS = '''
from llm_do import entry

@entry
def add(a: int, b: int = 1) -> int:
    """Add two numbers."""
    return a + b

@entry(effects=["write"])
def wipe(what: str) -> str:
    """Wipe something."""
    return f"wiped {what}"

@entry
def fail() -> str:
    raise RuntimeError("it broke")

@entry
def text(what: str) -> str:
    return what
'''
PROJECT = {
    "tools.py": TOOLS,
    "workers/greeter.md": "---\ndescription: Greets.\n---\nGreet.",
    "workers/adder.md": "---\ntools: [add, wipe, fail]\n---\nAdd.",
    "workers/reader.yaml": "attachment_policy: {suffixes: [.txt]}\n",
    "workers/declared.yaml": (
        "input: {type: object, properties: {name: {type: string}, age: {type: integer}}, required: [name]}\n"
    ),
}
__all__ = ["run_here"]

Run = Callable[..., "subprocess.CompletedProcess[str]"]


@pytest.fixture
def project(tmp_path: Path) -> Path:
    for path, text in PROJECT.items():
        (tmp_path / path).parent.mkdir(exist_ok=True)
        (tmp_path / path).write_text(text)
    return tmp_path


@pytest.fixture
def run(project: Path, run_here: RunHere) -> Run:
    """Runs it in the process of the tests."""

    def start(*words: str, server: Server | None = None, cwd: Path | None = None, **more: str) -> Any:
        given = server.environment if server is not None else {}
        return run_here("run", *words, cwd=cwd or project, **{**given, **more})

    return start


@pytest.fixture
def run_process(project: Path) -> Run:
    """Runs it in a process of its own."""

    def start(*words: str, server: Server | None = None) -> Any:
        given = {name: value for name, value in os.environ.items() if not name.endswith("_API_KEY")}
        return subprocess.run(
            [sys.executable, "-m", "llm_do", "run", *words],
            cwd=project,
            env={**given, "LLM_DO_NO_LOCAL": "1", **(server.environment if server is not None else {})},
            input="",
            capture_output=True,
            text=True,
            timeout=PATIENCE,
            check=False,
        )

    return start


# -- answers and input -----------------------------------------------------------------------------------


def test_the_answer_alone_is_on_standard_output(run_process: Run) -> None:
    with serve(Step("Hello, Ada!")) as server:
        done = run_process("greeter", "Greet", "Ada", server=server)
    assert (done.returncode, done.stdout) == (Exit.OK, "Hello, Ada!\n")
    assert server.requests[0]["messages"][-1]["content"] == "Greet Ada"


@pytest.mark.parametrize(
    ("words", "piped", "expected"),
    [
        (["add", "a=1", "b=2"], "", "3\n"),
        (["add", "41"], "", "42\n"),
        (["add", "--input-json", '{"a": 5}'], "", "6\n"),
        (["text", "what=12"], "", "12\n"),
        (["text", "what=@words.txt"], "", "from a file\n"),
        (["text", "@words.txt"], "", "from a file\n"),
        (["text", "@@home"], "", "@home\n"),
        (["text"], "piped in", "piped in\n"),
        (["text", "-"], "piped in", "piped in\n"),
    ],
)
def test_a_function_runs_like_a_worker(
    run_here: RunHere, project: Path, words: list[str], piped: str, expected: str
) -> None:
    (project / "words.txt").write_text("from a file\n")
    done = run_here("run", *words, cwd=project, input=piped)
    assert (done.returncode, done.stdout, done.stderr) == (Exit.OK, expected, "")


@pytest.mark.parametrize(
    ("words", "piped", "message"),
    [
        (["add", "a=1", "c=2"], "", "There is no argument 'c'"),
        (["add", "a=x"], "", "argument 'a'"),
        (["add"], "", "missing argument 'a'"),
        (["add", "1", "2"], "", "takes its arguments as name=value: a, b"),
        (["add", "--input-json", "[1]"], "", "must be an object"),
        (["add", "--input-json", "{"], "", "Give a JSON object, @FILE with one"),
        (["add", "a=1", "--input-json", "{}"], "", "not both"),
        (["text", "hello"], "piped", "on the command line and on standard input"),
        (["text", "@nowhere.txt"], "", "nowhere.txt cannot be read"),
        (["greter", "x"], "", "Did you mean 'greeter'"),
        (["greeter", "x", "-a", "nowhere.pdf"], "", "nowhere.pdf"),
        (["add", "a=1", "-a", "tools.py"], "", "no attachments"),
        (["greeter", "x", "-m", "test", *["-a", "tools.py"] * 5], "", "takes 4 attachments at most"),
        (["reader", "x", "-a", "tools.py", "-m", "test"], "", "'tools.py' cannot be given to worker 'reader'"),
        (["greeter", "x", "--json", "--events"], "", "Give one of them"),
        (["greeter", "x", "--strict", "--approve-all"], "", "opposites"),
        (["declared", "age=5", "-m", "test"], "", "name"),
        (["greeter", "x"], "", "has no model"),
        (["greeter", "x", "-m", "opnai:gpt-5"], "", "there is no provider 'opnai'. Did you mean 'openai'"),
        (["greeter", "x", "-m", "openai:gpt-5"], "", "OPENAI_API_KEY"),
    ],
)
def test_what_is_wrong_with_a_command_line(
    run_here: RunHere, project: Path, words: list[str], piped: str, message: str
) -> None:
    done = run_here("run", *words, cwd=project, input=piped)
    assert done.returncode == Exit.USAGE
    assert done.stdout == ""
    assert message in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("factory", ["nowhere:make", "tools:nowhere", "tools:TOOLS"])
def test_a_provider_whose_code_cannot_be_had_is_a_wrong_file(run_here: RunHere, project: Path, factory: str) -> None:
    """`run` ends as `check` does: the project is wrong, and not the command line."""
    (project / "tools.py").write_text("TOOLS = 5\n")
    (project / "workers/adder.md").unlink()
    (project / "llm-do.toml").write_text(f'model = "acme:x"\n\n[providers]\nacme = "{factory}"\n')
    for words in (["run", "greeter", "x"], ["check"]):
        done = run_here(*words, cwd=project, input="")
        assert done.returncode == Exit.INVALID, done.stderr
        assert f"the factory {factory}" in done.stdout + done.stderr


def test_a_project_is_found_from_below_and_by_name(
    run: Run, project: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    (project / "deep/er").mkdir(parents=True)
    assert run("add", "a=1", cwd=project / "deep/er").stdout == "2\n"
    elsewhere = tmp_path_factory.mktemp("elsewhere")
    nowhere = run("add", "a=1", cwd=elsewhere)
    assert nowhere.returncode == Exit.USAGE
    assert "Make one with `llm-do new`" in nowhere.stderr
    named = subprocess.run(
        [sys.executable, "-m", "llm_do", "-C", str(project), "run", "add", "a=1"],
        cwd=elsewhere, capture_output=True, text=True, check=True, stdin=subprocess.DEVNULL,
    )  # fmt: skip
    assert named.stdout == "2\n"
    (elsewhere / "lone.md").write_text("---\nmodel: test\n---\nSay something.")
    assert "success" in run("lone.md", "x", cwd=elsewhere).stdout


# -- ways to print ---------------------------------------------------------------------------------------------


def test_json_is_one_object(run: Run) -> None:
    with serve(Step(tool="add", arguments={"a": 20, "b": 22}), Step("42")) as server:
        done = run("adder", "20 + 22", "--json", server=server)
    made = json.loads(done.stdout)
    assert (made["output"], made["error"], made["exit_code"], made["refusals"]) == ("42", None, 0, [])
    assert made["usage"]["openai:scripted"]["requests"] == 2


def test_an_answer_that_was_cut_off_is_told(run: Run, project: Path) -> None:
    """With the worker, the model and what to do; also where the worker says that it is an error."""
    (project / "workers/strict.md").write_text("---\non_cut_off: error\nmodel_settings: {max_tokens: 7}\n---\nWrite.")
    with serve(Step("half an", finish="length")) as server:
        done = run("greeter", "x", "--max-cost", "none", server=server)
        strict = run("strict", "x", "--max-cost", "none", server=server)
    assert (done.returncode, done.stdout) == (Exit.OK, "half an\n")
    assert (
        "llm-do: An answer of greeter (openai:scripted) was cut off: the model's own limit was reached" in done.stderr
    )
    assert strict.returncode == Exit.FAILED
    told = "was cut off: max_tokens=7 of its settings was reached; raise it in `model_settings`"
    assert strict.stderr.count(told) == 1


def test_events_are_lines_and_the_last_is_the_result(run: Run) -> None:
    with serve(Step(tool="add", arguments={"a": 20, "b": 22}), Step("42")) as server:
        done = run("adder", "20 + 22", "--events", server=server)
    lines = [json.loads(line) for line in done.stdout.splitlines()]
    assert {line["version"] for line in lines} == {1}
    kinds = [line["type"] for line in lines]
    assert kinds[0] == "call_opened"
    assert kinds[-1] == "result"
    assert [line["name"] for line in lines if line["type"] == "call_opened"] == ["adder", "add"]


def test_an_error_is_told_in_json_too(run: Run) -> None:
    made = json.loads(run("fail", "--json").stdout)
    assert made["error"] == {"type": "RuntimeError", "message": "it broke"}
    assert made["exit_code"] == Exit.FAILED


def test_the_answer_can_go_to_a_file(run: Run, project: Path) -> None:
    done = run("add", "a=1", "-o", "answer.txt")
    assert (done.stdout, (project / "answer.txt").read_text()) == ("", "2\n")
    failed = run("add", "a=1", "-o", "nowhere/answer.txt")
    assert failed.returncode == Exit.USAGE
    assert "cannot be written" in failed.stderr


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="there is no /dev/full")
@pytest.mark.parametrize("command", ["run text what=hello", "list", "list --help", "--help", ""])
def test_a_full_disk_is_an_error_and_a_reader_that_left_is_none(project: Path, command: str) -> None:
    def in_shell(line: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            line, shell=True, cwd=project, capture_output=True, text=True, check=False, stdin=subprocess.DEVNULL
        )

    full = in_shell(f"{sys.executable} -m llm_do {command} > /dev/full")
    assert full.returncode == Exit.FAILED
    assert "No space left" in full.stderr
    assert len(full.stderr.splitlines()) == 1
    left = in_shell(f"{sys.executable} -m llm_do {command} | true")
    assert left.stderr == ""


def test_usage_and_calls_are_on_standard_error(run: Run) -> None:
    with serve(Step(tool="add", arguments={"a": 20}), Step("21")) as server:
        done = run("adder", "x", "--usage", "-v", server=server)
    assert done.stdout == "21\n"
    assert "✓ adder" in done.stderr
    assert "└─ ✓ add" in done.stderr
    assert "scripted: 2 requests, 20 tokens in, 10 out" in done.stderr


# -- how it ends -----------------------------------------------------------------------------------------------


def test_a_refusal_has_a_code_of_its_own_also_where_the_model_went_on(run: Run) -> None:
    steps = [Step(tool="wipe", arguments={"what": "disk"}), Step("I could not.")]
    with serve(*steps) as server:
        done = run("adder", "x", server=server)
        assert (done.returncode, done.stdout) == (Exit.REFUSED, "I could not.\n")
        advice = "No person could be asked. Run it in a terminal, give --approve-all, or allow the call with a rule."
        assert f"Refused: wipe. The worker went on without them. {advice}\n" in done.stderr
    with serve(*steps) as server:
        assert run("adder", "x", "--allow-refusals", server=server).returncode == Exit.OK
    with serve(*steps) as server:
        assert run("adder", "x", "--approve-all", server=server).returncode == Exit.OK
    done = run("wipe", "disk")
    assert done.returncode == Exit.REFUSED
    assert advice in done.stderr
    assert advice not in run("wipe", "disk", "--strict").stderr
    assert run("wipe", "disk", "--approve-all").stdout == "wiped disk\n"


@pytest.mark.parametrize(
    ("words", "code"),
    [
        (["fail"], Exit.FAILED),
        (["adder", "x", "--timeout", "0.3"], Exit.TIMED_OUT),
        (["adder", "x", "--max-cost", "0.000001"], Exit.OVER_BUDGET),
        (["adder", "x", "--max-depth", "1"], Exit.OVER_BUDGET),
    ],
)
def test_every_end_has_its_code(run: Run, words: list[str], code: Exit) -> None:
    with serve(Step(tool="add", arguments={"a": 1}, seconds=1), Step("2")) as server:
        done = run(*words, server=server)
    assert done.returncode == code
    assert done.stdout == ""
    assert "Traceback" not in done.stderr


def test_a_broken_file_has_a_code_of_its_own(run: Run, project: Path) -> None:
    (project / "workers/broken.md").write_text("---\ntool: [add]\n---\nx")
    done = run("broken", "x")
    assert done.returncode == Exit.INVALID
    assert "workers/broken.md:2: unknown key 'tool'" in done.stderr
    (project / "tools.py").write_text("import nowhere_at_all\n")
    assert run("greeter", "x").returncode == Exit.INVALID


def test_a_provider_is_asked_again_and_then_it_is_said(run: Run) -> None:
    with serve(Step(status=429), Step("there you are")) as server:
        assert run("greeter", "x", server=server).stdout == "there you are\n"
        assert len(server.requests) == 2
    with serve(Step(status=500)) as server:
        done = run("greeter", "x", server=server)
    assert done.returncode == Exit.FAILED
    assert "500" in done.stderr
    assert "Traceback" not in done.stderr


def test_no_network_is_said_in_words(run: Run) -> None:
    with serve(Step("x")) as server:
        pass
    done = run("greeter", "x", server=server)
    assert done.returncode == Exit.FAILED
    assert "Connection" in done.stderr
    assert "Traceback" not in done.stderr


def test_an_interrupt_ends_the_run_and_tells_what_it_did(project: Path) -> None:
    with serve(Step(tool="add", arguments={"a": 1}), Step("slow", seconds=30)) as server:
        process = start_interruptible(
            [sys.executable, "-m", "llm_do", "run", "adder", "x"],
            cwd=project, env={**os.environ, **server.environment}, stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        )  # fmt: skip
        while len(server.requests) < 2:
            assert process.poll() is None
            time.sleep(0.02)
        process.send_signal(signal.SIGINT)
        out, err = process.communicate()
    assert process.returncode == Exit.INTERRUPTED
    assert out == ""
    assert "Interrupted." in err
    assert "✓ add" in err
    assert "scripted: 1 request" in err
    assert "Traceback" not in err


SLOW = (
    "import threading\nfrom llm_do import entry\n\n@entry\ndef slow() -> str:\n"
    "    open('started', 'w').close()\n    threading.Event().wait()\n    return 'x'\n"
)


def test_when_time_is_up_what_cannot_be_stopped_is_named_and_left(project: Path, run_process: Run) -> None:
    (project / "tools.py").write_text(SLOW)
    (project / "workers/adder.md").unlink()
    done = run_process("slow", "--timeout", "0.2")
    assert (done.returncode, done.stdout) == (Exit.TIMED_OUT, "")
    assert done.stderr.startswith(
        "Error: Time is up after 0.2 s (Limits.timeout), in slow. "
        "Left running, since threads cannot be stopped: slow. Raise the limit with --timeout SECONDS.\n"
    )


@pytest.mark.parametrize("times", [1, 2])
def test_what_cannot_be_stopped_does_not_keep_the_program(project: Path, times: int) -> None:
    (project / "tools.py").write_text(SLOW)
    (project / "workers/adder.md").unlink()
    process = start_interruptible(
        [sys.executable, "-m", "llm_do", "run", "slow"],
        cwd=project, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    )  # fmt: skip
    while not (project / "started").exists():
        assert process.poll() is None
        time.sleep(0.02)
    for _ in range(times):
        process.send_signal(signal.SIGINT)
    _, err = process.communicate()
    assert process.returncode == Exit.INTERRUPTED
    assert "Traceback" not in err
    if times == 1:
        assert err == "Interrupted.\nLeft running, since threads cannot be stopped: slow.\n"


def test_an_interrupt_that_was_ignored_when_it_started_stays_ignored(project: Path) -> None:
    """As in `llm-do run ... &` of a script: Ctrl-C is for the script. SIGTERM ends it as ever."""
    code = (
        "import asyncio, os, signal\nfrom llm_do import entry\n\n@entry\nasync def slow(end: int) -> str:\n"
        "    os.kill(os.getpid(), end)\n    for _ in range(100):\n        await asyncio.sleep(0)\n"
        "    if end == signal.SIGTERM:\n        await asyncio.Event().wait()\n    return 'went on'\n"
    )
    (project / "tools.py").write_text(code)
    (project / "workers/adder.md").unlink()

    def run(number: int) -> tuple[int, str]:
        process = start_uninterruptible(
            [sys.executable, "-m", "llm_do", "run", "slow", f"end={number}"],
            cwd=project, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
        )  # fmt: skip
        out, _ = process.communicate()
        return process.returncode, out

    assert run(signal.SIGINT) == (Exit.OK, "went on\n")
    assert run(signal.SIGTERM) == (128 + signal.SIGTERM, "")


@pytest.mark.parametrize("end", [signal.SIGTERM, signal.SIGHUP])
def test_a_run_that_is_ended_ends_in_order(tmp_path: Path, end: signal.Signals) -> None:
    """Also when its terminal is closed: what has to be done at the end of a call is done."""
    (tmp_path / "workers").mkdir()
    (tmp_path / "tools.py").write_text(
        "import asyncio, os, signal\nfrom llm_do import entry\n@entry\nasync def wait(end: int) -> str:\n"
        "    try:\n        os.kill(os.getpid(), end)\n        await asyncio.Event().wait()\n"
        "    finally:\n        open('done', 'w').close()\n    return ''\n"
    )
    done = subprocess.run(
        [sys.executable, "-m", "llm_do", "run", "wait", f"end={int(end)}"],
        cwd=tmp_path,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        timeout=PATIENCE,
        preexec_fn=lambda: signal.signal(end, signal.SIG_DFL),
    )
    assert done.returncode == 128 + end, done
    assert (tmp_path / "done").exists()


# -- what is told, and what is not -------------------------------------------------------------------------------


def with_tools(project: Path, code: str) -> None:
    (project / "workers/adder.md").unlink()
    (project / "tools.py").write_text(f"import os, sys\nfrom llm_do import entry\n\n{code}")


def test_what_the_project_prints_is_no_answer(run: Run, project: Path) -> None:
    with_tools(
        project, "print('loading')\n\n@entry\ndef noisy() -> str:\n    print('noise')\n    return 'the answer'\n"
    )
    done = run("noisy")
    assert done.stdout == "the answer\n"
    assert "noise" in done.stderr
    assert json.loads(run("noisy", "--json").stdout)["output"] == "the answer"


@pytest.mark.parametrize("words", [["check", "--json"], ["show", "greeter", "--json"]])
def test_what_is_printed_at_import_is_no_answer_of_any_command(project: Path, words: list[str]) -> None:
    with_tools(project, "print('loading')\n")
    done = subprocess.run(
        [sys.executable, "-m", "llm_do", *words], cwd=project, capture_output=True, text=True, check=False
    )
    json.loads(done.stdout)
    assert "loading" in done.stderr


def test_errors_have_no_secrets_and_do_nothing_to_a_terminal(run: Run, project: Path) -> None:
    (project / "llm-do.toml").write_text('secrets = ["MY_SECRET"]\n')
    with_tools(
        project,
        "@entry\ndef leak() -> str:\n"
        "    raise ValueError('cannot log in with ' + os.environ['MY_SECRET'] + chr(27) + '[31m')\n",
    )
    for words in (["leak"], ["leak", "--json"]):
        done = run(*words, MY_SECRET="hunter2secret")
        assert done.returncode == Exit.FAILED
        assert "hunter2secret" not in done.stdout + done.stderr
        assert "\x1b" not in done.stderr


def test_answers_have_no_secrets_and_json_stays_json(run: Run, project: Path) -> None:
    (project / "llm-do.toml").write_text('secrets = ["MY_SECRET", "MY_NUMBER"]\n')
    with_tools(
        project, "@entry\ndef leak() -> list:\n    return [os.environ['MY_SECRET'], int(os.environ['MY_NUMBER'])]\n"
    )
    env = {"MY_SECRET": "hunter2secret", "MY_NUMBER": "73196428"}
    hidden = ["[secret MY_SECRET]", "[secret MY_NUMBER]"]
    assert json.loads(run("leak", **env).stdout) == hidden
    assert json.loads(run("leak", "--json", **env).stdout)["output"] == hidden
    assert json.loads(run("leak", "--events", **env).stdout.splitlines()[-1])["output"] == hidden
    assert run("leak", "-o", "answer.json", **env).returncode == Exit.OK
    assert json.loads((project / "answer.json").read_text()) == hidden


@pytest.mark.parametrize("code", ["sys.exit(0)", "raise BrokenPipeError", "os.write(-1, b'')"])
def test_nothing_that_a_function_does_looks_like_success(run: Run, project: Path, code: str) -> None:
    with_tools(project, f"@entry\ndef leave() -> str:\n    {code}\n    return 'x'\n")
    done = run("leave", "--json")
    assert done.returncode == Exit.FAILED
    assert json.loads(done.stdout)["error"] is not None
    assert "Error: " in done.stderr


def test_an_answer_is_printed_as_it_is(run: Run, project: Path) -> None:
    with_tools(
        project,
        "@entry\ndef red() -> str:\n    return chr(27) + '[31mred'\n\n"
        "@entry\ndef half() -> str:\n    return 'a' + chr(0xd800)\n\n"
        "@entry\ndef nan() -> dict[str, float]:\n    return {'x': float('nan')}\n",
    )
    assert run("red").stdout == "\x1b[31mred\n"
    assert run("half").stdout == "a\\ud800\n"
    assert json.loads(run("nan", "--json").stdout)["output"] == {"x": None}


@pytest.mark.parametrize("words", [["nope", "x"], ["add", "a=x"], ["broken", "x"]])
def test_json_is_printed_for_every_error(run: Run, project: Path, words: list[str]) -> None:
    (project / "workers/broken.md").write_text("---\ntool: [add]\n---\nx")
    done = run(*words, "--json")
    assert json.loads(done.stdout)["exit_code"] == done.returncode > 1


def test_an_output_file_is_what_it_was(run: Run, project: Path) -> None:
    (project / "real.txt").write_text("old")
    (project / "real.txt").chmod(0o640)
    (project / "link.txt").symlink_to("real.txt")
    assert run("add", "a=1", "-o", "link.txt").returncode == Exit.OK
    assert (project / "link.txt").is_symlink()
    assert (project / "real.txt").read_text() == "2\n"
    assert (project / "real.txt").stat().st_mode & 0o777 == 0o640
    assert run("add", "a=1", "-o", "/dev/null").returncode == Exit.OK
    assert Path("/dev/null").is_char_device()


@pytest.mark.parametrize("closed", ["<&-", ">&-", "2>&-"])
def test_a_stream_that_is_closed_is_nobody(project: Path, closed: str) -> None:
    command = f"{sys.executable} -m llm_do run add a=1 {closed}"
    done = subprocess.run(command, shell=True, cwd=project, capture_output=True, text=True, check=False)
    assert done.returncode == Exit.OK
    assert done.stderr == ""


def test_events_end_with_their_reader(project: Path) -> None:
    command = f"{sys.executable} -m llm_do run greeter x -m test --events </dev/null | head -1"
    done = subprocess.run(command, shell=True, cwd=project, capture_output=True, text=True, check=False)
    assert len(done.stdout.splitlines()) == 1
    assert done.stderr == ""


# -- arguments -----------------------------------------------------------------------------------------------

ARGUMENTS = """
from typing import Any, Literal
from pydantic import BaseModel
from pydantic_ai import Agent
from llm_do import entry

class Brief(BaseModel):
    topic: str

@entry
def keep(data: Any, n: int = 0) -> Any:
    return [data, n]

@entry
def note(label: str | None = None, size: Literal["5", "6"] = "6", **more: Any) -> Any:
    return [label, size, more]

@entry
def brief(brief: Brief) -> str:
    return brief.topic

def plain(x: int) -> int:
    return x

helper = Agent("test", name="helper")
"""


@pytest.mark.parametrize(
    ("words", "input", "output"),
    [
        (["keep", "data=5", "n=3"], "", [5, 3]),
        (["keep", "--input-json", '{"data": {"n": 3}}'], "", [{"n": 3}, 0]),
        (["keep", "--input-json", "-"], '\ufeff{"data": [1]}', [[1], 0]),
        (["note", "label=5", "size=5", "other=5"], "", ["5", "5", {"other": 5}]),
        (["brief", 'brief={"topic": "tea"}'], "", "tea"),
    ],
)
def test_arguments_are_keywords_and_have_the_types_that_are_declared(
    run: Run, project: Path, words: list[str], input: str, output: Any
) -> None:
    with_tools(project, ARGUMENTS)
    made = run(*words, "--json", input=input)
    assert (made.returncode, json.loads(made.stdout)["output"]) == (Exit.OK, output), made.stderr


@pytest.mark.parametrize(
    ("words", "input", "message"),
    [
        (["keep", "data=1", "data=2"], "", "The argument 'data' is given twice."),
        (["keep", "--input-json", '{"data": 1, "data": 2}'], "", "'data' is given twice"),
        (["keep", "--input-json", '{"n": {"a": 1}, "x": 1}'], "", 'write {"data": {...}}.'),
        (["keep", "--input-json", "-"], "", "reads standard input, which is empty"),
        (["keep", "--input-json", "-"], "tea", "--input-json is not JSON"),
        pytest.param(
            ["keep", "--input-json", "-"],
            "x" * 10_000_001,
            "Standard input has more than 10,000,000 bytes",
            id="more bytes than are read",  # or else the text is in the name of the test, and in its environment
        ),
        (["keep", "--input-json", "-"], b'{"data": "\xff"}', "Standard input is not text: write JSON in UTF-8."),
        (["keep", "--input-json", "@latin.json"], "", "latin.json is not text: write JSON in UTF-8."),
        (["greeter"], b"\xff\xfe", "Standard input is not text: give it as a file, with -a."),
        (["brief", "topic=tea"], "", "There is no argument 'topic'. Known names: 'brief'."),
        (["greeter", " \u200b"], "", "greeter(): argument 'input' is blank"),
        (["greeter"], " \n", "greeter(): argument 'input' is blank"),
        (["greeter"], "", "greeter(): missing argument 'input'"),
        (["daily", "now"], "", "daily() takes no input"),
        (["plain", "x=1"], "", "No entry is named 'plain'. The function at tools.py:25 has no @entry: write @entry"),
        (["helper", "x"], "", "tools.py has the PydanticAI agent 'helper' as it is"),
    ],
)
def test_arguments_that_cannot_be_meant_start_nothing(
    run: Run, project: Path, words: list[str], input: str | bytes, message: str
) -> None:
    """And no model is looked for."""
    with_tools(project, ARGUMENTS)
    (project / "workers/daily.yaml").write_text("input: none\ninstructions: Report.\n")
    (project / "latin.json").write_bytes('{"data": "\u00fc"}'.encode("latin-1"))
    made = run(*words, input=input)
    assert (made.returncode, made.stdout) == (Exit.USAGE, "")
    assert message in made.stderr


def test_a_worker_without_input_runs_without_any_and_says_so(run: Run, project: Path, run_here: RunHere) -> None:
    (project / "workers/daily.md").write_text("---\ndescription: Reports.\ninput: none\n---\nReport.\n")
    assert run("daily", "-m", "test").returncode == Exit.OK
    assert "Reports. (takes no input)" in run_here("list", cwd=project).stdout
    assert "no input: its instructions are enough" in run_here("show", "daily", cwd=project).stdout
    assert "Run it: llm-do run daily" in run_here("chat", "daily", cwd=project).stderr


VALIDATOR = """
from typing import Annotated
from pydantic import AfterValidator
from llm_do import entry

seen = []

@entry
def keep(data: Annotated[int, AfterValidator(lambda value: seen.append(value) or value)]) -> list[int]:
    return seen
"""


def test_arguments_are_validated_once(run: Run, project: Path) -> None:
    """A validator of the project may do more than to look."""
    with_tools(project, VALIDATOR)
    assert json.loads(run("keep", "data=5").stdout) == [5]


def test_a_misspelled_input_is_told(run: Run) -> None:
    made = run("greeter", "--input-json", '{"inptu": "hi"}', "-m", "test")
    assert made.returncode == Exit.OK
    assert "greeter got 'inptu' and no 'input'" in made.stderr


def test_attachments_of_a_record_are_data(run: Run, project: Path) -> None:
    """And no file is sent, whatever it names."""
    (project / "secret.txt").write_text("TOP SECRET")
    record = json.dumps({"subject": "hi", "attachments": [str(project / "secret.txt")]})
    made = run("greeter", "--input-json", record, "-m", "test", "--events")
    assert made.returncode == Exit.OK, made.stderr
    assert "TOP SECRET" not in made.stdout
    opened = json.loads(made.stdout.splitlines()[0])
    assert (opened["attachments"], opened["arguments"]) == ([], json.loads(record))


def test_rules_why_reads_values_as_run_does(run_here: RunHere, project: Path) -> None:
    with_tools(project, ARGUMENTS)
    rule = "tools: [note]\ntool_rules: {note: {rule: deny, when: {label: '5'}}}\ninstructions: x\n"
    (project / "workers/noter.yaml").write_text(rule)
    made = run_here("rules", "why", "noter", "note", "label=5", cwd=project)
    assert made.stdout.startswith("deny"), made.stderr
    piped = run_here("rules", "why", "noter", "note", "--args-json", "-", cwd=project, input='{"label": "5"}')
    assert piped.stdout.startswith("deny"), piped.stderr


def test_an_input_type_that_writes_its_prompt_does_so_on_the_command_line(run: Run, project: Path) -> None:
    """Fields, text and files stand where it puts them; a path that it names is one of this machine."""
    with_tools(
        project,
        "from dataclasses import dataclass\nfrom pathlib import Path\n\n\n@dataclass\nclass Pitch:\n    company: str\n"
        "    deck: str\n\n    def to_prompt(self):\n"
        "        return [f'Judge {self.company}.', Path(self.deck), 'Be brief.']\n",
    )
    (project / "workers/judge.yaml").write_text("input: tools:Pitch\ninstructions: x\n")
    (project / "deck.txt").write_text("We sell tea.")
    made = run("judge", "company=Acme", f"deck={project / 'deck.txt'}", "-m", "test", "--events")
    assert made.returncode == Exit.OK, made.stderr
    events = [json.loads(line) for line in made.stdout.splitlines()]
    assert [file["identifier"] for file in events[0]["attachments"]] == ["deck.txt"]
    request = next(event["message"] for event in events if event["type"] == "message")
    text, file, end = request["parts"][-1]["content"]
    assert (text, file["identifier"], end) == ("Judge Acme.", "deck.txt", "Be brief.")
