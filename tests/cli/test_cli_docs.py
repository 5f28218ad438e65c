"""The pages about the command line say what the program does."""

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

from llm_do.cli.terminal.errors import Exit

from ..processes import PATIENCE

ROOT = Path(__file__).parents[2]
STARTED = ROOT / "docs" / "getting-started.md"
_BLOCK = re.compile(r"^```(console|sh)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def test_the_page_has_what_help_says_now() -> None:
    done = subprocess.run(
        [sys.executable, ROOT / "tools" / "write-cli-docs", "--check"], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr


def test_every_exit_code_is_in_the_page() -> None:
    rows = re.findall(r"^\| (\d+) \|", (ROOT / "docs" / "cli.md").read_text(), re.MULTILINE)
    assert [int(row) for row in rows] == [int(code) for code in Exit]


def test_the_versions_of_what_programs_read_are_in_the_page() -> None:
    from llm_do.cli.commands.check import FORMAT
    from llm_do.cli.support.reporting import EVENTS_VERSION

    versions = re.findall(r'^  "version": (\d+),$', (ROOT / "docs" / "cli.md").read_text(), re.MULTILINE)
    assert versions == [str(EVENTS_VERSION), str(FORMAT)]


class Step(NamedTuple):
    """A command of a page, and what the page says it prints."""

    command: str
    shown: list[str]


def steps_of(page: str) -> list[Step]:
    """The commands of a page: in `console` each line with a `$`, with its output below; `sh` is one as a whole."""
    steps: list[Step] = []
    for kind, text in _BLOCK.findall(page):
        if kind == "sh":
            steps.append(Step(text, []))
            continue
        for line in text.splitlines():
            if line.startswith("$ "):
                steps.append(Step(line.removeprefix("$ "), []))
            else:
                steps[-1].shown.append(line)
    return steps


def expected_code(steps: list[Step], number: int) -> int:
    """The exit code of a command: the one that the page prints after it, or 0."""
    following = steps[number + 1] if number + 1 < len(steps) else None
    return int(following.shown[0]) if following is not None and following.command == "echo $?" else 0


def is_in_order(shown: list[str], printed: list[str]) -> str | None:
    """The first line that is shown and not printed, in this order. `...` is any text, up to the end of a line."""
    rest = iter(printed)
    for line in shown:
        start, dots, _ = line.partition("...")
        if not any(given == line or (dots and given.startswith(start.rstrip())) for given in rest):
            return line
    return None


def test_getting_started_can_be_followed(tmp_path: Path) -> None:
    steps = steps_of(STARTED.read_text())
    assert len(steps) > 12
    # One shell for all, as the reader has it. A mark after each command has its code, which `$?` keeps.
    script = "".join(f"{step.command}\n__c=$?; printf '\\n@@ %s\\n' $__c; (exit $__c)\n" for step in steps)
    done = subprocess.run(
        ["bash", "-c", script],
        cwd=tmp_path,
        # A machine without keys, with the program that is tested first on its path.
        env={
            "PATH": os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]]),
            "HOME": str(tmp_path),
            "LANG": "C.UTF-8",
            "LLM_DO_NO_LOCAL": "1",
        },
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        encoding="utf-8",
        timeout=PATIENCE,
        check=False,
    )
    parts = re.split(r"\n@@ (\d+)\n", done.stdout)
    printed, codes = parts[:-1:2], parts[1::2]
    assert len(codes) == len(steps), done.stdout
    for number, step in enumerate(steps):
        assert int(codes[number]) == expected_code(steps, number), f"{step.command}\n{printed[number]}"
        missing = is_in_order(step.shown, printed[number].splitlines())
        assert missing is None, f"{step.command}\nshown: {missing}\nprinted: {printed[number]}"
