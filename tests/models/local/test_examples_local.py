"""Examples that are within the reach of the embedded model, as their READMEs run them: forms, not knowledge."""

import json
import os
import re
import shutil
import sys
from pathlib import Path
from typing import Any

import pytest

from ...test_examples import EXAMPLES, command_of, shell


@pytest.fixture
def clone(tmp_path: Path) -> Path:
    """A folder as it is above `examples/`, whose environment is the one of the tests."""
    shutil.copytree(EXAMPLES, tmp_path / "examples", ignore=shutil.ignore_patterns("__pycache__", "generated"))
    (tmp_path / ".venv").symlink_to(sys.prefix)
    return tmp_path


def run(command: str, clone: Path, smollm2: Path) -> Any:
    """The result of a command, with a yes to what asks."""
    done = shell(f"{command} --json --approve-all", clone, LLM_DO_CACHE=str(smollm2))
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout)
    assert result["usage"]["local:smollm2-135m"]["output_tokens"] > 0
    return result["output"]


def test_the_greeter_says_something(clone: Path, smollm2: Path) -> None:
    assert run(command_of("greeter", "-m local"), clone, smollm2).strip()


def test_the_first_worker_of_the_readme_counts_right(tmp_path: Path, smollm2: Path) -> None:
    lines = (EXAMPLES.parent / "README.md").read_text().splitlines()
    make, ask = (next(line for line in lines if line.startswith(f"llm-do {word}")) for word in ("new", "run"))
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    done = shell(f"{make} && {ask}", tmp_path, LLM_DO_CACHE=str(smollm2), PATH=path)
    assert done.returncode == 0, done.stderr
    assert " 6" in done.stdout


def test_every_document_is_judged_and_the_average_is_right(clone: Path, smollm2: Path) -> None:
    """The model decides on nothing but the scores and their reasons."""
    output = run(command_of("evaluation", "-m local"), clone, smollm2)
    scores = [document["score"] for document in output["documents"]]
    assert {document["name"] for document in output["documents"]} == {"bakery.txt", "moon.txt", "repair.txt"}
    assert all(0 <= score <= 10 for score in scores) and scores == sorted(scores, reverse=True)
    assert all(isinstance(document["reason"], str) for document in output["documents"])
    assert output["average"] == round(sum(scores) / 3, 1)


def test_the_list_lives_as_long_as_a_chat_with_the_local_model(clone: Path, smollm2: Path) -> None:
    command = f"{command_of('todo')} -m local"
    done = shell(command, clone, typed="Add milk to my list.\n", LLM_DO_CACHE=str(smollm2))
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip()
    opened, closed = re.findall("todo: .*", done.stderr)
    assert opened == "todo: list 1 is opened" and closed.startswith("todo: list 1 is closed, with ")
