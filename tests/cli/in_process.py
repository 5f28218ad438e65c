"""`llm-do` in the process of the tests: for tables of many cases, as a process takes a second to start."""

import gc
import os
import pty
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Protocol

import pytest

from llm_do.cli.main import run_program
from llm_do.projects.code import ProjectCode


class RunHere(Protocol):
    def __call__(
        self, *words: object, cwd: Path, input: str | bytes = "", **env: str
    ) -> "subprocess.CompletedProcess[str]": ...


AtTerminal = Callable[..., tuple[int, str]]


@pytest.fixture
def run_here(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Iterator[RunHere]:
    """Runs the program here: with its exit code, and what it printed."""
    monkeypatch.setattr(ProjectCode, "keeps_output_clean", ProjectCode.keeps_output_clean)

    with tempfile.TemporaryFile("w+") as stdin:

        def run(*words: object, cwd: Path, input: str | bytes = "", **env: str) -> "subprocess.CompletedProcess[str]":
            stdin.seek(0)
            stdin.truncate()
            stdin.buffer.write(input.encode() if isinstance(input, str) else input)
            stdin.seek(0)
            capsys.readouterr()
            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(sys, "stdin", stdin)
                code = _run(patch, words, cwd, env)
            out, err = capsys.readouterr()
            return subprocess.CompletedProcess(["llm-do", *map(str, words)], code, out, err)

        yield run


@pytest.fixture
def run_in_project(run_here: RunHere, project: Path) -> Callable[..., "subprocess.CompletedProcess[str]"]:
    """Runs the program here as the fixture `run` does in a process: in the project, and free to look for models."""

    def run(*words: str, **env: str) -> "subprocess.CompletedProcess[str]":
        return run_here(*words, cwd=project, **({"LLM_DO_NO_LOCAL": ""} | env))

    return run


@pytest.fixture
def at_terminal_here(monkeypatch: pytest.MonkeyPatch) -> AtTerminal:
    """Runs the program here with its three streams at a terminal: its exit code, and what was on the screen.

    When it asks a question that takes a yes, `answer` is typed; without one, the terminal is closed. A question that
    drops what was typed before it needs a process.
    """
    monkeypatch.setattr(ProjectCode, "keeps_output_clean", ProjectCode.keeps_output_clean)

    def run(*words: object, cwd: Path, answer: str = "", **env: str) -> tuple[int, str]:
        said = bytearray()
        screen, terminal = pty.openpty()

        def type_and_read() -> None:
            with suppress(OSError):  # the program has ended
                while b"[y/N]" not in said:
                    said.extend(os.read(screen, 4096))
                if answer:
                    os.write(screen, f"{answer}\n".encode())
                    while True:
                        said.extend(os.read(screen, 4096))
            os.close(screen)

        person = threading.Thread(target=type_and_read)
        with ExitStack() as stack:
            stack.callback(person.join)
            patch = stack.enter_context(pytest.MonkeyPatch.context())
            for name in ("stdin", "stdout", "stderr"):
                stream = os.fdopen(os.dup(terminal), "r" if name == "stdin" else "w", buffering=1, encoding="utf-8")
                patch.setattr(sys, name, stack.enter_context(stream))
            os.close(terminal)
            person.start()
            code = _run(patch, words, cwd, {"TERM": "screen-256color"} | env)
        return code, said.decode(errors="replace")

    return run


def _run(patch: pytest.MonkeyPatch, words: tuple[object, ...], cwd: Path, env: dict[str, str]) -> int:
    patch.setattr(sys, "argv", ["llm-do", *map(str, words)])
    patch.chdir(cwd)
    patch.setenv("LLM_DO_NO_LOCAL", "1")
    for name in [name for name in os.environ if name.endswith("_API_KEY")]:
        patch.delenv(name)
    for name, value in env.items():
        patch.setenv(name, value)
    try:
        with pytest.raises(SystemExit) as end:
            run_program()
    finally:  # a program leaves this to its end
        gc.enable()
        gc.unfreeze()
    assert isinstance(end.value.code, int)
    return end.value.code
