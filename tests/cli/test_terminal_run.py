"""`llm-do run` in a real terminal: the tree while it runs, the questions, and Ctrl-C."""

import asyncio
import os
import sys
import termios
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from llm_do.cli.terminal.keys import Keyboard

from .server import Server, Step, serve
from .test_terminal_chat import Terminal

FILES = {
    "tools.py": """
import asyncio
from pathlib import Path
from pydantic_ai import RunContext
from llm_do import Context, entry

@entry
def add(a: int, b: int) -> int:
    return a + b

@entry(requires_approval=True)
async def pay(amount: int) -> None:
    with Path("paid.txt").open("a") as file:
        file.write(f"{amount}\\n")

@entry
async def pay_all(ctx: RunContext[Context], number: int) -> str:
    made = await asyncio.gather(*(ctx.deps.call("pay", 5) for _ in range(number)), return_exceptions=True)
    return f"{made.count(None)} paid"

@entry
async def ask_later(ctx: RunContext[Context], question: str) -> str:
    await asyncio.sleep(1)
    return await ctx.deps.call("adder", question)
""",
    "workers/adder.md": "---\ntools: [add]\n---\nAdd.",
    "workers/boss.md": (
        "---\ntools: [adder]\nsandbox: {paths: {out: {root: out, mode: rw}}}\n"
        "tool_rules: {sandbox.write: {rule: ask, when: {path: 'out/**'}, reason: Others read it.}}\n---\nx"
    ),
    "out/report.md": "# Report\n\nold line\nkept\n",
}
Start = Callable[..., Terminal]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """Starts `llm-do run` in a terminal that talks with a server."""
    for path, text in FILES.items():
        (tmp_path / path).parent.mkdir(exist_ok=True)
        (tmp_path / path).write_text(text)
    opened: list[Terminal] = []

    def run(server: Server, command: str, width: int = 90, **env: str) -> Terminal:
        terminal = Terminal(tmp_path, width=width, height=70)
        opened.append(terminal)
        values = {"TERM": "screen-256color", "PS1": "READY ", "PYDANTIC_AI_NO_BANNER": "1", **server.environment}
        terminal.type("export " + " ".join(f"{name}='{value}'" for name, value in values.items()) + "; clear")
        terminal.wait_for(lambda screen: screen.strip() == "READY")
        words = " ".join(
            ["env", *(f"{name}='{value}'" for name, value in env.items()), sys.executable, "-m llm_do run"]
        )
        terminal.type(f"{command.format(program=words)}; echo code $?")
        return terminal

    yield run
    for terminal in opened:
        terminal.close()


def writes(content: str = "# Report\n\nnew line\nkept\n", path: str = "out/report.md") -> Step:
    return Step(tool="write_file", arguments={"path": path, "content": content})


def test_the_tree_lives_while_it_runs_and_leaves_the_answer(start: Start) -> None:
    steps = [
        Step(tool="adder", arguments={"input": "1 + 2"}),
        Step(tool="add", arguments={"a": 1, "b": 2}),
        Step("three, says the adder", seconds=1),
        Step("It is three.", seconds=1),
    ]
    with serve(*steps) as server:
        terminal = start(server, "{program} boss go --usage")
        seen = terminal.wait_for("says the")
        assert "… boss" in seen
        assert "└─ … adder" in seen
        assert "   └─ ✓ add" in seen
        seen = terminal.wait_for("code 0")
    assert "It is three." in seen
    assert "scripted: 4 requests" in seen
    assert "✓" not in seen  # the tree is gone


def test_a_notice_is_a_line_of_its_own_above_the_tree(start: Start) -> None:
    with serve(Step("It is three.", seconds=1)) as server:
        terminal = start(server, "{program} ask_later 'What is 1 + 2?'", width=200)
        terminal.wait_for("… ask_later")
        seen = terminal.wait_for("code 0")
    notice = [line for line in seen.splitlines() if "The price of model" in line]
    assert [line.startswith("llm-do: The price of model 'openai:scripted' is not known") for line in notice] == [True]
    assert "ask_later  " not in seen  # the tree is gone


@pytest.mark.parametrize(
    ("answers", "code", "written"),
    [
        ([["y"], ["y"]], 0, True),
        ([["s"]], 0, True),
        ([["1"]], 0, True),
        ([["x", "n", "not today", "Enter"], ["n", "Enter"]], 4, False),
        ([["q"]], 4, False),
    ],
)
def test_each_key_is_a_decision(
    start: Start, tmp_path: Path, answers: list[list[str]], code: int, written: bool
) -> None:
    with serve(writes(), writes(), Step("Done.")) as server:
        terminal = start(server, "{program} boss go")
        for number, keys in enumerate(answers, 1):
            seen = terminal.wait_for(lambda screen, number=number: screen.count("q  no, and end the run") == number)
            for key in keys:
                time.sleep(0.3)
                terminal.send(key)
                if key == "n":
                    terminal.wait_for(lambda screen, number=number: screen.count("Why not?") == number)
        assert "- old line" in seen
        assert "+ new line" in seen
        assert "(workers/boss.md:4)" in seen
        assert "Others read it." in seen
        seen = terminal.wait_for(f"code {code}")
    assert ("new line" in (tmp_path / "out/report.md").read_text()) is written
    assert seen.count("wants to run") == len(answers)
    if len(answers[0]) > 1:
        assert "not today" in str(server.requests[1])


def test_arguments_can_be_edited(start: Start, tmp_path: Path) -> None:
    (tmp_path / "editor").write_text("#!/bin/sh\nsed -i 's/new line/my line/' \"$1\"\n")
    (tmp_path / "editor").chmod(0o755)
    with serve(writes(), Step("Done.")) as server:
        terminal = start(server, "{program} boss go", EDITOR=str(tmp_path / "editor"))
        terminal.wait_for("q  no, and end the run")
        terminal.send("e")
        terminal.wait_for("code 0")
    assert (tmp_path / "out/report.md").read_text() == "# Report\n\nmy line\nkept\n"


def test_ctrl_c_in_the_editor_is_for_the_editor(start: Start, tmp_path: Path) -> None:
    (tmp_path / "editor").write_text("#!/bin/sh\necho Editing.\nexec sleep 1000\n")
    (tmp_path / "editor").chmod(0o755)
    with serve(writes(), Step("Done.")) as server:
        terminal = start(server, "{program} boss go", EDITOR=str(tmp_path / "editor"))
        terminal.wait_for("q  no, and end the run")
        terminal.send("e")
        terminal.wait_for("Editing.")
        terminal.send("C-c")
        terminal.wait_for("The arguments were not edited")
        terminal.send("q")
        terminal.wait_for("code 4")
    assert (tmp_path / "out/report.md").read_text() == FILES["out/report.md"]


@pytest.mark.parametrize(
    ("editor", "told"), [("true", "Nothing was changed"), ("false", "The arguments were not edited")]
)
def test_an_editor_that_was_left_is_no_yes(start: Start, tmp_path: Path, editor: str, told: str) -> None:
    with serve(writes(), Step("Done.")) as server:
        terminal = start(server, "{program} boss go", EDITOR=editor)
        terminal.wait_for("q  no, and end the run")
        terminal.send("e")
        terminal.wait_for(told)
        terminal.send("q")
        terminal.wait_for("code 4")
    assert (tmp_path / "out/report.md").read_text() == FILES["out/report.md"]


def test_what_was_typed_before_is_no_answer(start: Start, tmp_path: Path) -> None:
    slow = Step(tool="write_file", arguments={"path": "out/report.md", "content": "x"}, seconds=1.5)
    with serve(slow, Step("Done.")) as server:
        terminal = start(server, "{program} boss go")
        terminal.wait_for("… boss")
        terminal.send("y")
        terminal.wait_for("q  no, and end the run")
        time.sleep(0.5)
        assert "code" not in terminal.screen().replace("echo code", "")
        terminal.send("q")
        terminal.wait_for("code 4")
    assert (tmp_path / "out/report.md").read_text() == FILES["out/report.md"]


@pytest.mark.parametrize(("answers", "paid"), [("yyn", 2), ("a", 25), ("s", 25), ("n", 0), ("yq", 1)])
def test_identical_calls_are_one_question_that_says_how_many(
    start: Start, tmp_path: Path, answers: str, paid: int
) -> None:
    with serve() as server:
        terminal = start(server, "{program} pay_all number=25")
        for number, key in enumerate(answers, 1):
            seen = terminal.wait_for(lambda screen, number=number: screen.count("q  no, and end the run") == number)
            assert f"? {26 - number} identical calls of pay wait" in seen
            assert f"a  yes, to all {26 - number}" in seen
            terminal.send(key)
            if key == "n":
                terminal.wait_for("Why not?")
                terminal.send("Enter")
        terminal.wait_for(lambda screen: "code" in screen.replace("echo code", ""))
    made = (tmp_path / "paid.txt").read_text() if paid else ""
    assert made == "5\n" * paid


def test_a_paste_is_no_answer(start: Start, tmp_path: Path) -> None:
    with serve() as server:
        terminal = start(server, "{program} pay_all number=3")
        terminal.wait_for("q  no, and end the run")
        for text in ("ya", "y\n", "a\na\n", "sssssssssss"):
            terminal.paste(text)
            time.sleep(0.3)
        terminal.send("q")
        seen = terminal.wait_for(lambda screen: "code" in screen.replace("echo code", ""))
    assert "→ yes" not in seen
    assert not (tmp_path / "paid.txt").exists()


def test_keys_count_when_none_came_for_a_moment(monkeypatch: pytest.MonkeyPatch) -> None:
    """Who goes on typing has not read the question."""
    monkeypatch.setattr("llm_do.cli.terminal.keys._IDLE", 2.0)

    async def scenario() -> str:
        terminal, program = os.openpty()
        keyboard = Keyboard(program)
        resting = asyncio.create_task(keyboard.wait_until_idle())
        for _ in range(10):
            await asyncio.sleep(0.3)
            os.write(terminal, b"y")
        assert not resting.done()  # though three seconds are over
        await resting
        answer = asyncio.create_task(keyboard.read_key())
        await asyncio.sleep(0.1)
        os.write(terminal, b"n")
        key = await answer
        os.close(terminal)
        os.close(program)
        return key

    assert asyncio.run(scenario()) == "n"


def test_a_terminal_that_is_gone_is_no_answer() -> None:
    async def scenario() -> None:
        terminal, program = os.openpty()
        answer = asyncio.create_task(Keyboard(program).read_key())
        await asyncio.sleep(0.1)
        os.close(terminal)
        with pytest.raises((EOFError, OSError, termios.error)):
            await answer
        os.close(program)

    asyncio.run(scenario())


@pytest.mark.parametrize(
    "piped", ["echo 'do it' | {program} boss", """echo '{{"input": "do it"}}' | {program} boss --input-json -"""]
)
def test_a_question_is_asked_also_where_the_input_is_piped_in(start: Start, tmp_path: Path, piped: str) -> None:
    with serve(writes(), Step("Done.")) as server:
        terminal = start(server, piped)
        terminal.wait_for("q  no, and end the run")
        terminal.send("y")
        terminal.wait_for("code 0")
    assert "new line" in (tmp_path / "out/report.md").read_text()


@pytest.mark.parametrize("moment", ["running", "asking"])
def test_ctrl_c_ends_it_and_tells_what_was_done(start: Start, moment: str) -> None:
    second = Step("slow words that go on and on", seconds=20) if moment == "running" else writes()
    with serve(Step(tool="adder", arguments={"input": "x"}), Step("three"), second) as server:
        terminal = start(server, "{program} boss go")
        terminal.wait_for("words" if moment == "running" else "q  no, and end the run")
        terminal.send("C-c")
        seen = terminal.wait_for("code 130")
    assert "Interrupted." in seen
    assert "✓ adder" in seen
    assert "requests" in seen
    terminal.type("stty -a | tr ';' '\\n' | grep -c -e '-echo$' -e ' -icanon'; echo over")
    assert "\n0" in terminal.wait_for("over\nREADY")  # the terminal is as it was


@pytest.mark.parametrize(("width", "env"), [(40, {}), (90, {"NO_COLOR": "1"}), (90, {"TERM": "dumb"})])
def test_narrow_and_plain_terminals(start: Start, width: int, env: dict[str, str]) -> None:
    with serve(Step(tool="adder", arguments={"input": "x"}), Step("three"), Step("It is three.")) as server:
        terminal = start(server, "{program} boss go", width=width, **env)
        seen = terminal.wait_for("code 0")
    assert "It is three." in seen
    assert "\x1b" not in seen
