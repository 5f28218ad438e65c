"""Errors for the person who runs the program: texts that are safe for a terminal, and exit codes."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from enum import IntEnum
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from ...core.events import Event
    from ...errors import LimitExceeded

# Characters that move the cursor, change the direction of writing or take no room. Unlike `visible`, this leaves what
# ordinary text has: backslashes, and the joiners and variation selectors of emoji and many scripts.
_UNSAFE = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u00ad\u061c\u200b\u200e\u200f\u2028-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb"
    "\ud800-\uf8ff\U000e0000-\U000e007f]"
)
_MAX_PROVIDER_MESSAGE = 300


def escape(text: object) -> str:
    """Return a text in one line that cannot control the terminal."""
    from ...privacy.display import visible  # noqa: PLC0415 - it imports pydantic

    return visible(str(text))


def escape_controls(text: str) -> str:
    """Escape all characters of a foreign text that could control a terminal. Lines and tabs stay."""
    return _UNSAFE.sub(lambda found: escape(found[0]), text.replace("\r", ""))


def safe_text(text: str, redact: Callable[[str], str], *, longest: int | None = None) -> str:
    """Return a foreign text without secrets, then cut, then unable to control a terminal."""
    text = redact(text)  # before it is cut: half a secret is not recognized
    if longest is not None:
        from ...privacy.display import abridge  # noqa: PLC0415 - it imports pydantic

        text = abridge(" ".join(text.split()), longest)
    return escape_controls(text)


def describe_notice(event: Event) -> str | None:
    """Return the text of a notice or about an answer that was cut off, and `None` for other events."""
    if event.type == "notice":
        return escape_controls(event.text)
    if event.type == "request_ended" and event.cut_off is not None and event.error is None:
        return escape_controls(f"An answer of {event.worker} ({event.model}) was cut off: {event.cut_off}.")
    return None


def describe_error(exc: BaseException, *, redact: Callable[[str], str] = str) -> str:
    """Return the text of an error, safe to print and without the secrets that `redact` knows."""
    if isinstance(exc, click.ClickException):
        return safe_text(exc.format_message(), redact)
    from pydantic_ai import exceptions as theirs  # noqa: PLC0415 - it is slow, and only errors need it

    if isinstance(exc, theirs.FallbackExceptionGroup):
        return "\n".join(["No model answered.", *(describe_error(each, redact=redact) for each in exc.exceptions)])
    answer = _detail(exc.body) if isinstance(exc, theirs.ModelHTTPError) else ""
    return f"{safe_text(_message(exc), redact)} {safe_text(answer, redact, longest=_MAX_PROVIDER_MESSAGE)}".strip()


def _message(exc: BaseException) -> str:
    from pydantic_ai import exceptions as theirs  # noqa: PLC0415 - as above

    from ... import errors as ours  # noqa: PLC0415
    from ...values.texts import text_of  # noqa: PLC0415

    match exc:
        case ours.RunEnded():
            return f"You ended the run.{f' ({exc.note})' if exc.note else ''}"
        case ours.LimitExceeded():
            return f"{exc}{_how_to_raise(exc)}"
        case ours.LlmDoError() | theirs.UserError():  # a missing key, a limit, an argument: they are sentences
            return str(exc) or type(exc).__name__
        case theirs.ModelHTTPError():
            return f"The provider of {exc.model_name} answered {_status(exc.status_code)}."
        case theirs.ModelConnectionError(phase="read"):
            return f"The answer of {exc.model_name} broke off: {exc}"
        case theirs.ModelConnectionError():
            return f"The provider of {exc.model_name} could not be reached: {exc}"
        case theirs.ModelAPIError():
            return f"The provider of {exc.model_name} failed: {exc}"
        case theirs.UsageLimitExceeded():
            return f"A limit is used up: {exc}"
    return f"{type(exc).__name__}: {text}" if (text := text_of(exc)) else type(exc).__name__


def _how_to_raise(exceeded: LimitExceeded) -> str:
    options = {
        "max_cost": "--max-cost DOLLARS",
        "max_unpriced_tokens": "--max-tokens N, or give the model's price under [prices] in llm-do.toml",
        "max_tokens": "--max-tokens N",
        "timeout": "--timeout SECONDS",
    }
    if not exceeded.limit:  # no price is known
        return " Or limit only its tokens: --max-cost none --max-tokens N."
    if exceeded.worker is not None:
        return f" Raise the limit under `limits` in the file of worker {exceeded.worker!r}."
    option = options.get(exceeded.limit)
    return f" Raise the limit with {option or f'{exceeded.limit} under [limits] in llm-do.toml'}."


def _status(code: int) -> str:
    known = {
        401: "that the key is not valid",
        403: "that this is not allowed",
        404: "that there is no such model",
        429: "that there were too many requests, or that the account is empty",
    }
    return f"{known[code]} ({code})" if code in known else f"with the error {code}"


def _detail(body: object) -> str:
    """Return the error message in the body of a provider's answer."""
    for key in ("error", "message"):
        if isinstance(body, Mapping) and key in body:
            body = body[key]
    return body if isinstance(body, str) else repr(body) if body else ""


class Exit(IntEnum):
    OK = 0
    FAILED = 1
    """A worker, a function, a model or its provider failed."""
    USAGE = 2
    """The command line is wrong, or the input does not fit."""
    INVALID = 3
    """A file of the project is wrong."""
    REFUSED = 4
    """An approval was refused, even if the model went on without it."""
    OVER_BUDGET = 5
    TIMED_OUT = 6
    INTERRUPTED = 130


class Refusal(click.ClickException):
    """An error of a well-formed command, printed without usage."""

    exit_code = Exit.USAGE


def report_error(exc: BaseException, redact: Callable[[str], str] = str) -> int:
    """Print an error on standard error without its secrets, and return the exit code."""
    if isinstance(exc, SystemExit):
        return exc.code if isinstance(exc.code, int) else Exit.FAILED
    if isinstance(exc, click.exceptions.Exit):
        return exc.exit_code
    if isinstance(exc, click.exceptions.Abort | KeyboardInterrupt):
        click.echo("Interrupted.", err=True)
        return Exit.INTERRUPTED
    if isinstance(exc, click.exceptions.NoArgsIsHelpError):
        exc.show()
        return Exit.USAGE
    if isinstance(exc, click.UsageError) and exc.ctx is not None:
        click.echo(f"{exc.ctx.get_usage()}\nTry '{exc.ctx.command_path} --help' for help.\n", err=True)
    click.echo(f"Error: {describe_error(exc, redact=redact)}", err=True)
    for note in getattr(exc, "__notes__", ()):
        click.echo(f"  {safe_text(note, redact)}", err=True)
    return exc.exit_code if isinstance(exc, click.ClickException) else exit_code_of(exc)


def exit_code_of(exc: BaseException) -> Exit:
    from ... import errors  # noqa: PLC0415

    if isinstance(exc, errors.ModelChoiceError) and isinstance(exc.__cause__, errors.ProjectCodeError):
        return Exit.INVALID  # the project's code that makes the model is wrong
    table: list[tuple[Any, Exit]] = [
        ((errors.WorkerFileError, errors.RuleError, errors.ProjectCodeError, errors.DuplicateEntryError), Exit.INVALID),
        ((errors.ApprovalDenied, errors.RunEnded), Exit.REFUSED),
        (errors.CallTimeout, Exit.TIMED_OUT),
        ((errors.LimitExceeded, errors.DepthLimitError), Exit.OVER_BUDGET),
        ((errors.ArgumentError, errors.UnknownEntryError, errors.ModelChoiceError), Exit.USAGE),
        (click.ClickException, Exit.USAGE),
        (KeyboardInterrupt, Exit.INTERRUPTED),
    ]
    return next((code for kinds, code in table if isinstance(exc, kinds)), Exit.FAILED)
