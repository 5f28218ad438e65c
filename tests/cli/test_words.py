"""Errors in words."""

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

from llm_do.cli.words import in_words
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
        (LimitExceeded("Used up.", limit="max_cost"), "Used up. Raise it with --max-cost DOLLARS."),
        (
            LimitExceeded("Used up.", limit="max_calls"),
            "Used up. Raise it with max_calls under [limits] in llm-do.toml.",
        ),
        (
            LimitExceeded("Used up.", limit="max_cost", worker="w"),
            "Used up. Raise it under `limits` in the file of worker 'w'.",
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
    assert in_words(error) == words


def test_a_limit_of_the_library() -> None:
    assert in_words(UsageLimitExceeded("5 requests")).startswith("A limit is used up: 5 requests")


def test_a_secret_is_taken_out_before_it_is_cut_in_half() -> None:
    body = "a" * 145 + "SECRET-OF-SOME-LENGTH" + "b" * 1000
    said = in_words(ModelHTTPError(400, "gpt", body), redact=lambda text: text.replace("SECRET-OF-SOME-LENGTH", "***"))
    assert "SEC" not in said and "***" in said and "not shown" in said


def test_it_is_cheap_to_import() -> None:
    code = "import sys, llm_do.cli.words\nprint([name for name in ('pydantic_ai', 'pydantic') if name in sys.modules])"
    assert subprocess.check_output([sys.executable, "-c", code], text=True).strip() == "[]"
