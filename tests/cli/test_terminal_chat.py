"""`llm-do chat` in a real terminal."""

import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from uuid import uuid4

import pytest

from ..processes import PATIENCE

TMUX = shutil.which("tmux")
PROGRAM = [sys.executable, "-m", "llm_do"]


class Terminal:
    """A terminal with a shell of its own, on a server of its own."""

    def __init__(self, folder: Path, width: int = 90, height: int = 24) -> None:
        assert TMUX is not None, "tmux is missing: run tools/install-programs bwrap tmux"
        self._server = f"llm-do-{uuid4().hex[:12]}"
        self._tmux("new-session", "-d", "-x", str(width), "-y", str(height), "-c", str(folder), "sh")

    def _tmux(self, *words: str) -> str:
        made = subprocess.run(
            [TMUX or "tmux", "-L", self._server, "-f", "/dev/null", *words],
            capture_output=True,
            text=True,
            check=True,
            timeout=PATIENCE,
        )
        return made.stdout

    def send(self, *keys: str) -> None:
        self._tmux("send-keys", *keys)

    def type(self, text: str) -> None:
        self._tmux("send-keys", "-l", text)
        self.send("Enter")

    def paste(self, text: str) -> None:
        """Paste a text, in brackets if the program wants them."""
        self._tmux("set-buffer", text)
        self._tmux("paste-buffer", "-p")

    def resize(self, width: int, height: int) -> None:
        self._tmux("resize-window", "-x", str(width), "-y", str(height))

    def screen(self) -> str:
        return self._tmux("capture-pane", "-p")

    def wait_for(self, found: str | Callable[[str], object]) -> str:
        """Wait until a text stands on the screen."""
        seen, until = "", time.monotonic() + PATIENCE
        while time.monotonic() < until:
            seen = self.screen()
            if found in seen if isinstance(found, str) else found(seen):
                return seen
            time.sleep(0.05)
        raise AssertionError(f"{found!r} is not on the screen:\n{seen}")

    def close(self) -> None:
        self._tmux("kill-server")


@pytest.fixture
def terminal(tmp_path: Path) -> Iterator[Terminal]:
    (tmp_path / "workers").mkdir()
    (tmp_path / "workers" / "helper.md").write_text(
        "---\nname: helper\ndescription: Helps.\ntools: [wipe]\n---\nHelp.\n"
    )
    (tmp_path / "tools.py").write_text(
        "from llm_do import entry\n\n@entry(requires_approval=True)\ndef wipe(path: str) -> str:\n    return 'wiped'\n"
    )
    made = Terminal(tmp_path)
    yield made
    made.close()


def start(terminal: Terminal, *words: str) -> None:
    env = "LLM_DO_MODEL=test TERM=screen-256color PYDANTIC_AI_NO_BANNER=1 COLORTERM="
    terminal.type(f"unset COLUMNS LINES; {env} {' '.join([*PROGRAM, 'chat', 'helper', *words])}; echo code $?")


def test_a_chat_on_a_screen(terminal: Terminal) -> None:
    start(terminal)
    terminal.wait_for("Talking to helper: Helps.")
    terminal.send("f", "i", "r", "s", "t", "Enter")
    terminal.wait_for("wipe wants to run")
    terminal.send("C-c")  # the turn is cancelled, and the conversation goes on
    terminal.wait_for("The turn was cancelled")
    terminal.send("h", "i", "C-j", "y", "o", "u", "Enter")
    terminal.wait_for("wipe wants to run")
    time.sleep(0.7)  # a question is deaf at first
    terminal.send("y")
    seen = terminal.wait_for('{"wipe":"wiped"}')
    assert "wipe: allowed once" in seen and "█ hi" in seen and "█ you" in seen
    terminal.send("C-c")
    terminal.wait_for("Press Ctrl+C again to quit")
    terminal.send("C-c")
    seen = terminal.wait_for("code 0")
    assert "Talking to" not in seen  # the screen is as it was


def test_nothing_but_a_key_answers_a_question(terminal: Terminal) -> None:
    """Neither a paste, nor keys while the terminal is too small to show it, nor whoever quits."""
    start(terminal)
    terminal.wait_for("Talking to helper: Helps.")
    terminal.type("go")
    terminal.wait_for("wipe wants to run")
    time.sleep(0.7)  # a question is deaf at first
    for text in ("y", "y\n", "s\ny\n"):
        terminal.paste(text)
    terminal.resize(30, 8)
    terminal.wait_for("Too small")
    terminal.send("y", "Down", "Enter", "s")
    terminal.resize(80, 24)
    seen = terminal.wait_for("yes, this once")
    assert "wipe wants to run" in seen and "wiped" not in seen
    terminal.send("C-q")
    seen = terminal.wait_for("code 0")
    assert "Traceback" not in seen and "Error" not in seen


@pytest.mark.parametrize("inherited", ["heeded", "ignored"])
def test_a_chat_line_by_line(terminal: Terminal, inherited: str) -> None:
    """Ctrl-C cancels a turn, also where the program was started with interrupts ignored."""
    if inherited == "ignored":
        terminal.type("trap '' INT")
    start(terminal, "--plain")
    terminal.wait_for("Talking to helper (test). /help lists the commands, Ctrl-D ends.")
    terminal.type("first")
    terminal.wait_for("yes, this once")
    terminal.send("C-c")
    terminal.wait_for("The turn was cancelled")
    terminal.type("hello")
    terminal.wait_for(lambda seen: seen.count("yes, this once") == 2)
    terminal.send("n")
    terminal.wait_for("Why not")
    terminal.type("not now")
    terminal.wait_for('{"wipe":"helper > wipe was refused: not now."}')
    terminal.type("/usage")
    terminal.wait_for("test: ")
    terminal.send("C-d")
    terminal.wait_for("code 0")
