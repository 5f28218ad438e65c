"""`llm-do` with MCP servers: what a person sees of them, and what not."""

import json
import sys
from pathlib import Path

import pytest

from llm_do.cli.terminal.live import tree_lines
from llm_do.cli.terminal.tree import CallTree
from llm_do.core.events import CallOpened, CallProgress

from .in_process import RunHere, run_here
from .test_terminal_chat import Terminal, start

__all__ = ["run_here"]

SERVER = Path(__file__).parent.parent / "stdio_mcp.py"


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    (tmp_path / "workers").mkdir()
    return tmp_path


def write_worker(project: Path, *args: str, **more: object) -> None:
    command = [sys.executable, "-S", str(SERVER), *args]
    lines = [
        "---",
        "description: Helps.",
        f"toolsets: {json.dumps([{'mcp': {'command': command, **more}, 'name': 'small'}])}",
        "tool_rules: {small/increment: allow}",
        "---",
        "Help.",
    ]
    (project / "workers/helper.md").write_text("\n".join(lines))


def test_with_json_a_noisy_server_leaves_one_object_on_standard_output(project: Path, run_here: RunHere) -> None:
    write_worker(project, "noisy")
    done = run_here("run", "helper", "hi", "--json", "-m", "test", cwd=project)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["output"]
    assert "NOISE" not in done.stdout + done.stderr


@pytest.mark.parametrize("command", ["run", "chat"])
def test_a_server_that_takes_long_is_said_to_be_still_starting(
    project: Path, run_here: RunHere, command: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("llm_do.toolsets.mcp.toolset.STILL_STARTING_SECONDS", 0.01)
    write_worker(project, "waits", str(project), start_timeout=0.3)
    done = run_here(command, "helper", "-m", "test", cwd=project, input="hi\n")
    assert "MCP server 'small' of worker 'helper' is still starting" in done.stdout + done.stderr
    assert "took more than 0.3 seconds" in done.stdout + done.stderr


def test_the_end_of_a_server_is_told_once_and_is_no_call(project: Path, run_here: RunHere) -> None:
    write_worker(project)
    file = project / "workers/helper.md"
    file.write_text(file.read_text().replace("small/increment", "small/die"))
    done = run_here("chat", "helper", "-m", "test", cwd=project, input="hi\n")
    said = done.stdout + done.stderr
    assert said.count("MCP server 'small' of worker 'helper' has ended by itself") == 1
    assert "> die()" in said and "small()" not in said and "! small" not in said


def test_a_run_spells_the_last_words_of_a_server_once(project: Path, run_here: RunHere) -> None:
    write_worker(project)
    file = project / "workers/helper.md"
    file.write_text(file.read_text().replace("small/increment", "small/die"))
    done = run_here("run", "helper", "hi", "-m", "test", cwd=project)
    assert "giving up\\x1b[2J" in done.stderr and "\x1b" not in done.stderr


def test_standard_error_of_a_server_never_reaches_the_screen_of_a_chat(project: Path) -> None:
    write_worker(project, "noisy")
    terminal = Terminal(project)
    try:
        start(terminal)
        terminal.wait_for("Talking to helper: Helps.")
        terminal.send("h", "i", "Enter")
        seen = terminal.wait_for('{"increment":')
        assert "NOISE" not in seen and "█ hi" in seen
        terminal.send("C-c")
        terminal.wait_for("Press Ctrl+C again to quit")
        terminal.send("C-c")
        assert "NOISE" not in terminal.wait_for("code 0")
    finally:
        terminal.close()


def test_progress_stands_beside_the_call_without_what_could_lie() -> None:
    tree = CallTree()
    where = {"call_id": 1, "parent_id": None, "name": "work", "worker": None, "depth": 0}
    tree.on_event(CallOpened(**where, kind="tool", arguments={}))
    tree.on_event(CallProgress(**where, progress=2, total=5, message="two\x1b of five"))
    (line,) = map(str, tree_lines(tree))
    assert line.endswith("2/5 two\\x1b of five")
