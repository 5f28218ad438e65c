"""`llm-do` in the process of the tests: for tables of many cases, as a process takes a second to start."""

import gc
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Protocol

import pytest

from llm_do.cli.main import run_program
from llm_do.project import ProjectCode


class RunHere(Protocol):
    def __call__(
        self, *words: object, cwd: Path, input: str | bytes = "", **env: str
    ) -> "subprocess.CompletedProcess[str]": ...


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
            monkeypatch.setattr(sys, "stdin", stdin)
            monkeypatch.setattr(sys, "argv", ["llm-do", *map(str, words)])
            monkeypatch.chdir(cwd)
            monkeypatch.setenv("LLM_DO_NO_LOCAL", "1")
            for name in [name for name in os.environ if name.endswith("_API_KEY")]:
                monkeypatch.delenv(name)
            for name, value in env.items():
                monkeypatch.setenv(name, value)
            capsys.readouterr()
            try:
                with pytest.raises(SystemExit) as end:
                    run_program()
            finally:  # a program leaves this to its end
                gc.enable()
                gc.unfreeze()
            out, err = capsys.readouterr()
            assert isinstance(end.value.code, int)
            return subprocess.CompletedProcess(sys.argv, end.value.code, out, err)

        yield run
