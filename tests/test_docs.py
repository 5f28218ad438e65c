"""Every example in the README and in the docs runs, and prints what it says."""

import re
from pathlib import Path

import pytest
from pytest_examples import CodeExample, EvalExample, find_examples

ROOT = Path(__file__).parent.parent
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]


@pytest.mark.parametrize("example", list(find_examples(*PAGES)), ids=str)
def test_examples_run(example: CodeExample, eval_example: EvalExample) -> None:
    if example.prefix.split()[:1] != ["python"]:
        return
    eval_example.set_config(line_length=120)
    eval_example.run_print_check(example)


@pytest.mark.parametrize("page", [*PAGES, ROOT / "CHANGELOG.md"], ids=lambda page: page.name)
def test_links_lead_somewhere(page: Path) -> None:
    for target in re.findall(r"\]\(([^)#]+)[^)]*\)", page.read_text()):
        if not target.startswith("http"):
            assert (page.parent / target).exists(), target


def test_every_public_name_is_in_the_docs() -> None:
    import llm_do

    text = " ".join(page.read_text() for page in PAGES)
    assert [name for name in llm_do.__all__ if name not in text] == []


def test_the_demo_says_first_that_its_model_is_scripted_and_then_does_its_work() -> None:
    import subprocess
    import sys

    done = subprocess.run(
        [sys.executable, ROOT / "examples" / "demo.py"],
        capture_output=True,
        text=True,
        check=True,
        stdin=subprocess.DEVNULL,
    )
    assert "scripted model" in done.stdout.splitlines()[0]
    assert "ticket opened: The server room is flooding." in done.stdout
    assert done.stdout.count("classifier(") == 3
    assert done.stderr == ""
