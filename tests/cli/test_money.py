"""What the command line spends: its default limit, options, prices of a project, and going on at a limit."""

import json
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest

from llm_do import ApprovalDecision, ApprovalRequest, LimitExceeded, WorkerRegistry
from llm_do.cli.support.options import SessionOptions
from llm_do.cli.support.sessions import open_session
from llm_do.cli.terminal.errors import Exit
from llm_do.cli.tui.app import ChatApp

from ..scripted import says, scripted
from .in_process import RunHere, run_here
from .server import Step, serve
from .test_chat import Chat
from .test_run import Run, project, run

__all__ = ["project", "run", "run_here"]

PRICES = '[prices."openai-chat:scripted"]\nrequest = 0.02\n'


def test_a_model_without_a_price_runs_under_the_default_limit_and_is_told_once(run: Run) -> None:
    with serve(Step(tool="add", arguments={"a": 1}), Step("2")) as server:
        done = run("adder", "x", server=server)
    assert (done.returncode, done.stdout) == (Exit.OK, "2\n")
    assert done.stderr.count("The price of model 'openai:scripted' is not known") == 1
    assert [request["max_completion_tokens"] for request in server.requests] == [8192, 8192]


def test_a_model_without_a_price_is_refused_under_a_limit_that_was_set(run: Run, project: Path) -> None:
    with serve(Step("2")) as server:
        done = run("adder", "x", "--max-cost", "1", server=server)
        assert done.returncode == Exit.OVER_BUDGET
        assert "no price is known for model 'openai:scripted'" in done.stderr
        (project / "llm-do.toml").write_text("[limits]\nmax_cost = 1\n")
        assert run("adder", "x", server=server).returncode == Exit.OVER_BUDGET
        assert not server.requests
        done = run("adder", "x", "--max-cost", "none", server=server)
    assert (done.returncode, done.stderr) == (Exit.OK, "")
    assert "max_completion_tokens" not in server.requests[0]


def test_a_price_of_the_project_is_spent_and_the_error_names_the_option_that_raises_the_limit(
    run: Run, project: Path
) -> None:
    (project / "llm-do.toml").write_text(PRICES)
    with serve(Step(tool="add", arguments={"a": 1}), Step("2")) as server:
        done = run("adder", "x", "--max-cost", "0.04", "--json", server=server)
    result = json.loads(done.stdout)
    assert (done.returncode, result["output"], done.stderr) == (Exit.OK, "2", "")
    assert result["budget"] == {"max_cost": 0.04, "spent": 0.04, "estimated": 0.0, "left": 0.0}
    with serve(Step(tool="add", arguments={"a": 1})) as server:
        done = run("adder", "x", "--max-cost", "0.05", server=server)
    assert (done.returncode, len(server.requests)) == (Exit.OVER_BUDGET, 2)
    assert "Raise the limit with --max-cost DOLLARS." in done.stderr


@pytest.mark.parametrize("price", ["{inputs = 1}", "1", "{input = -1}"])
def test_a_price_that_is_none_is_told(run: Run, project: Path, price: str) -> None:
    (project / "llm-do.toml").write_text(f"[prices]\ngpt-unknown = {price}\n")
    done = run("add", "1")
    assert done.returncode == Exit.INVALID
    assert "llm-do.toml: prices.gpt-unknown" in done.stderr
    assert "A price has input and output, for a million tokens, and request, for each one." in done.stderr


def test_a_price_for_a_pattern_is_refused(run: Run, project: Path) -> None:
    (project / "llm-do.toml").write_text('[prices]\n"acme:*" = {input = 1}\n')
    done = run("add", "1")
    assert done.returncode == Exit.INVALID
    assert "'acme:*' is no model: a price is for one model, so write one for each." in done.stderr


def test_tokens_can_be_limited(run: Run) -> None:
    with serve(Step("2")) as server:
        done = run("adder", "x", "--max-tokens", "50", server=server)
    assert (done.returncode, server.requests) == (Exit.OVER_BUDGET, [])
    assert "Raise the limit with --max-tokens N." in done.stderr


@pytest.mark.parametrize("amount", ["-1", "nan", "inf", "much", ""])
def test_an_amount_that_is_none_is_told(run_here: RunHere, project: Path, amount: str) -> None:
    done = run_here("run", "add", "1", "--max-cost", amount, cwd=project)
    assert done.returncode == Exit.USAGE
    assert "is not an amount: give dollars, such as 2.50, or none for no limit" in done.stderr


# -- going on at a limit -----------------------------------------------------------------------------------


@pytest.mark.anyio
@pytest.mark.parametrize(("key", "answers"), [("y", 3), ("n", 2)])
async def test_a_chat_asks_at_the_limit_whether_to_go_on(tmp_path: Path, key: str, answers: int) -> None:
    """Four cents buy two answers. A yes buys two more, and the turn goes on; a no ends the turn only."""
    (tmp_path / "workers").mkdir()
    (tmp_path / "workers/helper.md").write_text("Help.")
    (tmp_path / "llm-do.toml").write_text("[prices.scripted]\nrequest = 0.02\n[limits]\nmax_cost = 0.04\n")
    registry = WorkerRegistry(tmp_path)
    options = SessionOptions(model=scripted(says("fine", input_tokens=1)), is_settled=True)
    open_runtime: Callable[[Any], Any] = lambda feed: open_session(  # noqa: E731
        registry, options, approver=feed, sinks=[feed], text_deltas=True, asks_for_more=True
    )
    app = ChatApp(registry["helper"], open_runtime, grace=0)  # type: ignore[arg-type]
    async with app.run_test(size=(100, 30)) as pilot:
        person = Chat(app, pilot)
        await person.say("one")
        await person.say("two")
        await person.be_asked("three")
        assert any("$0.04 of $0.04" in line for line in person.lines())
        await person.decide(key)
        assert sum("fine" in text for text in person.said()) == answers
        assert app.conversation.runtime.usage["scripted"].requests == answers
    await app.close()


class Agreeing:
    """An approver that says yes to everything, and counts."""

    def __init__(self) -> None:
        self.reasons: list[str] = []

    async def ask(self, request: ApprovalRequest) -> ApprovalDecision:
        self.reasons.append(request.reason)
        return ApprovalDecision(approved=True)


@pytest.mark.anyio
@pytest.mark.parametrize(
    ("limits", "asked"),
    [("max_requests = 1", True), ("max_requests = 0", False), ("max_cost = 0", False), ("max_cost = 1", False)],
)
async def test_a_yes_raises_the_limit_that_was_reached_and_no_other(tmp_path: Path, limits: str, asked: bool) -> None:
    """Nobody is asked where as much again would not help: twice nothing, or a model without a price."""
    (tmp_path / "workers").mkdir()
    (tmp_path / "workers/helper.md").write_text("Help.")
    price = "" if limits == "max_cost = 1" else "[prices.scripted]\nrequest = 0.02\n"
    (tmp_path / "llm-do.toml").write_text(f"{price}[limits]\n{limits}\n")
    model = scripted(*[says("fine", input_tokens=1)] * 2)
    person, options = Agreeing(), SessionOptions(model=model, is_settled=True)
    runtime = open_session(WorkerRegistry(tmp_path), options, approver=person, asks_for_more=True)
    with nullcontext() if asked else pytest.raises(LimitExceeded):
        for text in ("one", "two"):
            await runtime.call("helper", text)
    assert len(person.reasons) == asked
    now = runtime.spending.meter.limits
    assert now.max_requests == {"max_requests = 1": 2, "max_requests = 0": 0}.get(limits, 1000)
    assert now.max_cost == {"max_cost = 0": 0, "max_cost = 1": 1}.get(limits, 5)
