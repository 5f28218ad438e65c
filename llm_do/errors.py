"""Every error that llm-do raises, by its cause. Most are also the built-in exception of the same meaning.

- The caller's code is wrong: `UnknownEntryError`, and of that `UnknownAttributeError`; `DuplicateEntryError`,
  `ArgumentError`, `EventLoopError`, `ScopeClosedError`, `ScopeBusyError`, `ModelChoiceError`, `LocalModelError`, and of
  that `LocalRequestError` (in `models/local`); `ToolsetError`, `NoWorkerError`, `NoSandboxError`, `WorkerFileError`,
  `RuleError`, `ProjectCodeError`, `PathMissing`, `PromptError`, `ContentError`, `CommandError`.
- The runtime refuses: `ApprovalDenied`, and of that `DelegationDenied`; `RunEnded`, `PathDenied`, `PathChanged`,
  `DepthLimitError`, `CallCancelled`, `CallEnded`, `LimitExceeded`, and of that `CallTimeout`.
- The machine fails: `PathFailed`, `RememberedError`, `ModelAnswerError` (in `models/answers.py`).
- A callee broke its contract: `OutputError`, `ModelBehaviorError`, `AnswerCutOff`, `ToolTimeout`.

All of them are an `LlmDoError`. Errors of a model's provider (`pydantic_ai.exceptions.ModelAPIError` and others) and
exceptions of your own functions pass through unchanged, with a note that names the call path.
"""

from collections.abc import Iterable
from contextlib import suppress
from difflib import get_close_matches
from typing import TYPE_CHECKING

from pydantic import ValidationError

if TYPE_CHECKING:
    from pydantic_ai.messages import ModelMessage


class LlmDoError(Exception):
    """Base of every error that llm-do raises."""

    # KeyError shows the repr of its argument, and OSError formats its arguments as an errno.
    __str__ = Exception.__str__


class UnknownEntryError(LlmDoError, KeyError):
    """Raised when no entry has the name that is called."""


class UnknownAttributeError(UnknownEntryError, AttributeError):
    """Raised when no entry has the name of an attribute of `ctx.tools`, so that `hasattr` is false."""


class DuplicateEntryError(LlmDoError, ValueError):
    """Raised when two entries have one name."""


class ArgumentError(LlmDoError, TypeError):
    """Raised when the arguments of a call do not fit its entry, before anything runs."""


class EventLoopError(LlmDoError, RuntimeError):
    """Raised when a call would block the event loop that serves it, or comes from a second event loop."""


class ScopeClosedError(LlmDoError, RuntimeError):
    """Raised when a turn starts on a scope that is closed."""


class ScopeBusyError(LlmDoError, RuntimeError):
    """Raised when a turn starts, or the scope closes, while another turn runs."""


class ModelChoiceError(LlmDoError, ValueError):
    """Raised when a worker has no model, or one that cannot be used."""


class LocalModelError(LlmDoError, ValueError):
    """Raised when a local model is unknown, or cannot be fetched or loaded, or its process ends."""


class ToolsetError(LlmDoError, TypeError):
    """Raised when a toolset cannot be built, or has a tool with the name of one of the worker's own."""


class NoWorkerError(LlmDoError, RuntimeError):
    """Raised when a call that no worker made needs what only a worker has."""


class NoSandboxError(LlmDoError, RuntimeError):
    """Raised when files are used in a call that no worker with a sandbox made."""


class WorkerFileError(LlmDoError, ValueError):
    """Raised when a worker file is not valid. Each line of the message starts with `path:line: `."""


class RuleError(LlmDoError, ValueError):
    """Raised when rules are not valid, or speak of what does not exist."""


class ProjectCodeError(LlmDoError, ImportError):
    """Raised when code of a project cannot be imported, or lacks a name that a file refers to."""


class PathDenied(LlmDoError, PermissionError):
    """Raised when a path may not be used like this, before anything is read or written."""

    brief: str | None = None
    """The message as if nothing was there, for callers that must not know."""


class PathChanged(LlmDoError, PermissionError):
    """Raised when a file is not the one that was approved. It is left as it is."""


class PathMissing(LlmDoError, FileNotFoundError):
    """Raised when nothing is at a path that is allowed."""

    brief: str | None = None
    """The message without the names of other files, for callers that must not know them."""


class RememberedError(LlmDoError, OSError):
    """Raised when the file of remembered answers cannot be read, trusted or written."""


class PathFailed(LlmDoError, OSError):
    """Raised when the operating system fails, such as for a full disk. An existing file is unchanged."""


class ContentError(LlmDoError, ValueError):
    """Raised when the content of a file, or the new content, is not what the call needs. Nothing is written."""


class PromptError(LlmDoError, ValueError):
    """Raised when `to_prompt` of an input type fails, or returns no prompt. Nothing is sent."""


class CommandError(LlmDoError, ValueError):
    """Raised when a command line cannot be parsed."""


class _WithNote(PermissionError):
    def __init__(self, message: str, *, note: str | None = None) -> None:
        super().__init__(message)
        self.note = note
        """The comment of the person who refused, or ended the run."""


class ApprovalDenied(LlmDoError, _WithNote):
    """Raised when a rule or a person refuses a call. It does not run."""


class DelegationDenied(ApprovalDenied):
    """Raised when a worker calls a worker that its file does not allow. Nothing is started."""


class RunEnded(LlmDoError, _WithNote):
    """Raised when a person ends the run. No model sees it, and code that catches it can make no more calls."""


class DepthLimitError(LlmDoError):
    """Raised when calls are nested deeper than the runtime allows."""


class CallCancelled(LlmDoError):
    """Raised when a call is made on behalf of a cancelled one, before anything runs."""


class CallEnded(LlmDoError, RuntimeError):
    """Raised when a call is made with the context of a call that is over, or is nested in one that is."""


class LimitExceeded(LlmDoError):
    """Raised when a budget of the session, or of a worker's call, is used up."""

    def __init__(self, message: str = "", *, problem: str = "", limit: str = "", worker: str | None = None) -> None:
        super().__init__(message)
        self.problem = problem
        """The limit and its use, without the path of the call."""
        self.limit = limit
        """The field of `Limits`, such as `max_cost`; empty where no higher number would help."""
        self.worker = worker
        """The worker whose limit it is. `None` is the session."""


class CallTimeout(LimitExceeded, TimeoutError):
    """Raised when a top-level call or turn takes longer than `Limits.timeout`."""


class OutputError(LlmDoError, ValueError):
    """Raised when an entry's output does not fit the type that the entry declares."""


class ModelBehaviorError(LlmDoError):
    """Raised when a model keeps calling tools that do not exist, or answers nothing."""


class AnswerCutOff(LlmDoError):
    """Raised when a model's answer is cut off, and its worker treats that as an error (`on_cut_off`)."""


class ToolTimeout(LlmDoError, TimeoutError):
    """Raised when a tool runs longer than the `timeout` that it declares."""


def did_you_mean(word: str, known: Iterable[str], prefix: str = "") -> str:
    """Return a sentence that names the closest of `known`, or all when none is close. `prefix` is the path to them."""
    names = sorted(known)
    if not names:
        return ""
    if close := get_close_matches(word, names, n=3, cutoff=0.6):
        return f" Did you mean {' or '.join(repr(prefix + name) for name in close)}?"
    first, where = ", ".join(map(repr, names[:20])), f" in {prefix.rstrip('/')!r}" if prefix else ""
    return f" Known names{where}: {first}{f' and {len(names) - 20} more' if len(names) > 20 else ''}."


def summarize(exc: ValidationError) -> str:
    """Return all problems that pydantic found as one line."""
    problems = []
    for error in exc.errors(include_url=False, include_context=False, include_input=False):
        where = ".".join(str(part) for part in error["loc"] if part != "[key]")
        message = error["msg"].removeprefix("Value error, ")  # our own messages need no such prefix
        problems.append(f"{where}: {message}" if where else message)
    return "; ".join(problems)


def partial_messages(error: BaseException) -> "list[ModelMessage]":
    """Return the messages that the failed or cancelled worker call behind `error` had exchanged so far.

    Each call on the way up replaces those of the call below it, so code that catches an error sees the messages of the
    call that it made. Empty when no worker was involved.
    """
    return list(getattr(error, _PARTIAL_MESSAGES, ()))


def attach_partial_messages(error: BaseException, messages: "list[ModelMessage]") -> None:
    with suppress(Exception):  # an exception may refuse attributes
        setattr(error, _PARTIAL_MESSAGES, messages)


def note_path(error: BaseException, path: str, call: object, caller: object) -> None:
    """Note on an exception the call in which it was raised, once for each raise. The innermost call comes first.

    `call` and `caller` are the records of the call that the exception leaves, and of the one that it reaches next.
    """
    with suppress(Exception):  # an exception may refuse attributes
        if not raised_in_nested_call(error, call):
            setattr(error, _PATH, path)
            # An object that is raised again, by another call, has the note of the call before.
            if notes := getattr(error, "__notes__", None):
                notes[:] = [note for note in notes if not str(note).startswith(_NOTE)]
            if not _names_path(error, path):
                error.add_note(f"{_NOTE}{path}")
        setattr(error, _REACHES, caller)


def _names_path(error: BaseException, path: str) -> bool:
    """Return whether an error of ours names the path in its text. The text of other errors is not trusted."""
    if not isinstance(error, LlmDoError):
        return False
    text = str(error)
    return text.startswith((f"{path} ", f"{path}:")) or (" > " in path and path in text)


def raised_in_nested_call(error: BaseException, call: object) -> bool:
    """Return whether an error reached a call from one nested in it. `call` is the record of the call."""
    return call is not None and getattr(error, _REACHES, None) is call


def mark_restored(error: BaseException, path: str, call: object, *, is_from_nested_call: bool) -> None:
    """Mark an error of an earlier run as raised in a call, or as one that reached it from a nested call."""
    with suppress(Exception):  # an exception may refuse attributes
        setattr(error, _PATH, f"{path} > " if is_from_nested_call else path)
        setattr(error, _REACHES, call if is_from_nested_call else None)


def was_raised_at(error: BaseException, path: str) -> bool:
    """Return whether an error was raised in the call at this path itself, and not in one nested in it."""
    return getattr(error, _PATH, None) == path


_PATH = "_llm_do_path"
_REACHES = "_llm_do_reaches"
_NOTE = "llm-do call path: "
_PARTIAL_MESSAGES = "_llm_do_partial_messages"
