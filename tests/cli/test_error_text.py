"""Error messages, and the tree of calls."""

import subprocess
import sys

import pytest
from pydantic_ai.exceptions import (
    FallbackExceptionGroup,
    ModelAPIError,
    ModelConnectionError,
    ModelHTTPError,
    UsageLimitExceeded,
    UserError,
)

from llm_do import ApprovalDecided, ApprovalOutcome, ApprovalRequested, CallClosed, CallOpened
from llm_do.cli.terminal.errors import describe_error
from llm_do.cli.terminal.live import tree_lines
from llm_do.cli.terminal.tree import CallTree
from llm_do.errors import ApprovalDenied, LimitExceeded, ModelChoiceError, RunEnded


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (
            ModelHTTPError(429, "gpt", {"error": {"message": "slow\x1b[2J"}}),
            "The provider of gpt answered that there were too many requests, or that the account is empty (429). "
            "slow\\x1b[2J",
        ),
        (ModelHTTPError(401, "gpt"), "The provider of gpt answered that the key is not valid (401)."),
        (ModelHTTPError(500, "gpt", "oops\n"), "The provider of gpt answered with the error 500. oops"),
        (ModelConnectionError("gpt", "No route."), "The provider of gpt could not be reached: No route."),
        (ModelConnectionError("gpt", "Gone.", phase="read"), "The answer of gpt broke off: Gone."),
        (ModelAPIError("gpt", "boom"), "The provider of gpt failed: boom"),
        (UserError("Set OPENAI_API_KEY."), "Set OPENAI_API_KEY."),
        (ModelChoiceError("No model."), "No model."),
        (LimitExceeded("Used up.", limit="max_cost"), "Used up. Raise the limit with --max-cost DOLLARS."),
        (
            LimitExceeded("Used up.", limit="max_calls"),
            "Used up. Raise the limit with max_calls under [limits] in llm-do.toml.",
        ),
        (
            LimitExceeded("Used up.", limit="max_cost", worker="w"),
            "Used up. Raise the limit under `limits` in the file of worker 'w'.",
        ),
        (ApprovalDenied("wipe was refused."), "wipe was refused."),
        (RunEnded("x", note="enough"), "You ended the run. (enough)"),
        (
            FallbackExceptionGroup("x", [ModelHTTPError(401, "a"), ModelAPIError("b", "no")]),
            "No model answered.\nThe provider of a answered that the key is not valid (401).\n"
            "The provider of b failed: no",
        ),
        (ZeroDivisionError("by zero"), "ZeroDivisionError: by zero"),
        (KeyboardInterrupt(), "KeyboardInterrupt"),
    ],
)
def test_errors_in_words(error: BaseException, words: str) -> None:
    assert describe_error(error) == words


def test_a_limit_of_the_library() -> None:
    assert describe_error(UsageLimitExceeded("5 requests")).startswith("A limit is used up: 5 requests")


def test_a_secret_is_taken_out_before_it_is_cut_in_half() -> None:
    body = "a" * 145 + "SECRET-OF-SOME-LENGTH" + "b" * 1000
    said = describe_error(
        ModelHTTPError(400, "gpt", body), redact=lambda text: text.replace("SECRET-OF-SOME-LENGTH", "***")
    )
    assert "SEC" not in said and "***" in said and "not shown" in said


def test_it_is_cheap_to_import() -> None:
    names = "[name for name in ('pydantic_ai', 'pydantic') if name in sys.modules]"
    code = f"import sys, llm_do.cli.terminal.errors\nprint({names})"
    assert subprocess.check_output([sys.executable, "-c", code], text=True).strip() == "[]"


def test_a_command_that_failed_has_no_tick_and_the_wait_is_told_apart() -> None:
    """Whatever the code is: the call returned, and what it returned is a failure."""
    where = {"call_id": 1, "parent_id": None, "name": "shell", "worker": None, "depth": 0}
    for failure, mark in ((None, "✓"), ("exit code 128", "✗"), ("exit code 137", "✗")):
        tree = CallTree()
        tree.on_event(CallOpened(**where, kind="tool", arguments={}))
        closed = {"kind": "tool", "output": "x", "error": None, "usage": None}
        tree.on_event(CallClosed(**where, **closed, duration=1.0, waited=12.0, failure=failure))
        (line,) = map(str, tree_lines(tree))
        assert line.startswith(f"{mark} shell  1.0 s (+12.0 s waiting for you)")
        assert line.endswith(failure or "you)")


def test_a_clock_stands_still_while_a_person_is_asked() -> None:
    """Also that of the call above, until the last of its questions is answered."""
    tree = CallTree()
    for number, parent in ((1, None), (2, 1), (3, 1)):
        where = {"call_id": number, "parent_id": parent, "name": "f", "worker": None, "depth": 0}
        tree.on_event(CallOpened(**where, kind="tool", arguments={}))
        if parent:
            tree.on_event(ApprovalRequested(**where, arguments={}, reason=""))
    outer = tree.nodes[1]
    assert outer.elapsed(0.0) == outer.elapsed(1e9) == outer.asked_at - outer.started
    yes = ApprovalOutcome(approved=True, by="callback")
    tree.on_event(ApprovalDecided(call_id=2, parent_id=1, name="f", worker=None, depth=0, outcome=yes))
    assert (outer.open_questions, outer.waited) == (1, 0.0)
    tree.on_event(ApprovalDecided(call_id=3, parent_id=1, name="f", worker=None, depth=0, outcome=yes))
    assert outer.open_questions == 0 and outer.waited > 0
