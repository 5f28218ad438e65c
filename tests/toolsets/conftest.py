"""Fixtures of the tests of toolsets."""

from pathlib import Path
from typing import Any

import pytest

from llm_do import WorkerRegistry, WorkerRunResult, approve_all_callback, run_worker

from ..scripted import calls, says, scripted
from .commands import HEAD, Shell


@pytest.fixture
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the folder of the logs of MCP servers."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    return tmp_path / "state/llm-do/mcp"


@pytest.fixture
def project(tmp_path: Path) -> Path:
    for folder in ("workers", "in", "out"):
        (tmp_path / folder).mkdir()
    (tmp_path / "in" / "names.txt").write_text("b\na\nb\n")
    return tmp_path


@pytest.fixture
def shell(project: Path) -> Shell:
    """Return a function that has a worker run some commands, one after the other."""

    def run(
        *commands: str, rules: str = "", callback: Any = approve_all_callback, head: str = HEAD, **arguments: Any
    ) -> WorkerRunResult:
        (project / "workers" / "a.yaml").write_text(head + rules)
        model = scripted(*(calls(("shell", {"command": command, **arguments})) for command in commands), says("done"))
        return run_worker(
            registry=WorkerRegistry(project), worker="a", input_data="go", cli_model=model, approval_callback=callback
        )

    return run
