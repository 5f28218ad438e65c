"""`llm-do` as a process of its own, with a terminal or without one. A module has a fixture `project` of its own."""

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from ..processes import PATIENCE
from .test_terminal_chat import Terminal

PROGRAM = [sys.executable, "-m", "llm_do"]
Run = Callable[..., "subprocess.CompletedProcess[str]"]
Start = Callable[..., Terminal]


@pytest.fixture
def run(project: Path) -> Run:
    """Runs `llm-do` without a terminal."""

    def start(*words: str, **env: str) -> "subprocess.CompletedProcess[str]":
        return subprocess.run(
            [*PROGRAM, *words],
            cwd=project,
            env={**os.environ, **env},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            encoding="utf-8",
            timeout=PATIENCE,
            check=False,
        )

    return start


@pytest.fixture
def start(project: Path) -> Iterator[Start]:
    """Starts `llm-do` in a terminal."""
    opened: list[Terminal] = []

    def begin(words: str, **env: str) -> Terminal:
        terminal = Terminal(project, width=110, height=40)
        opened.append(terminal)
        values = " ".join(f"{name}='{value}'" for name, value in {"TERM": "screen-256color", **env}.items())
        terminal.type(f"unset COLUMNS LINES; clear; {values} {' '.join(PROGRAM)} {words}; echo code $?")
        return terminal

    yield begin
    for terminal in opened:
        terminal.close()
