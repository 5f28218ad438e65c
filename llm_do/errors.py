"""Every error llm-do raises, by whom it addresses.

    LlmDoError
    ├── the caller's code is wrong
    │   ├── UnknownEntryError   (KeyError)         no entry has that name
    │   │   └── UnknownAttributeError (AttributeError) the same, of `ctx.tools.name`
    │   ├── DuplicateEntryError (ValueError)       two entries have one name
    │   ├── ArgumentError       (TypeError)        the arguments do not fit the entry
    │   ├── EventLoopError      (RuntimeError)     `call_sync` where a loop runs, or a runtime in two loops
    │   ├── ScopeClosedError    (RuntimeError)     a turn after `close()`
    │   ├── ScopeBusyError      (RuntimeError)     a turn while another one runs
    │   ├── ModelChoiceError    (ValueError)       a worker has no model, or one that cannot be used
    │   ├── LocalModelError     (ValueError)       a local model cannot be had, or ended
    │   │   └── LocalRequestError (ModelAPIError)  the same in a request, where a `FallbackModel` moves on
    │   ├── ToolsetError        (TypeError)        a toolset that cannot be built or used
    │   ├── NoWorkerError       (RuntimeError)     something of a worker is asked for where none is at work
    │   ├── NoSandboxError      (RuntimeError)     files are used where no worker with a sandbox is at work
    │   ├── WorkerFileError     (ValueError)       a worker file that does not say what a worker is
    │   ├── RuleError           (ValueError)       rules that cannot be meant, or not be understood
    │   ├── ProjectCodeError    (ImportError)      code of a project that cannot be imported
    │   ├── PathMissing         (FileNotFoundError) nothing is at that path of a root
    │   ├── PromptError         (ValueError)       an input type's own prompt cannot be had
    │   ├── ContentError        (ValueError)       a file's content is not what the call needs
    │   └── CommandError        (ValueError)       a command line cannot be read
    ├── the runtime says no
    │   ├── ApprovalDenied      (PermissionError)  a person or a rule refused the call
    │   │   └── DelegationDenied                   a worker may not call that worker
    │   ├── RunEnded            (PermissionError)  a person who was asked ended the run
    │   ├── PathDenied          (PermissionError)  a path that may not be used like this
    │   ├── PathChanged         (PermissionError)  a file is not the one that was approved
    │   ├── DepthLimitError                        calls nested too deeply
    │   ├── CallCancelled                          the call that makes this one was cancelled
    │   ├── CallEnded           (RuntimeError)     the call that makes this one, or one above it, is over
    │   └── LimitExceeded                          a budget of the session is used up
    │       └── CallTimeout     (TimeoutError)     the time of a top-level call is up
    ├── the machine fails
    │   ├── PathFailed          (OSError)          the disk is full, or the like
    │   ├── RememberedError     (OSError)          the file of remembered answers cannot be used
    │   └── ModelAnswerError    (ModelAPIError)    a provider's answer is no answer (defined in `answers`)
    └── a callee did not keep its word
        ├── OutputError         (ValueError)       the output does not fit what the entry declares
        ├── ModelBehaviorError                     the model cannot be brought to behave
        ├── AnswerCutOff                           an answer of the model was cut off
        └── ToolTimeout         (TimeoutError)     a tool ran longer than its own `timeout`

Errors of a model's provider (`pydantic_ai.exceptions.ModelAPIError` and its kin) and exceptions of
your own functions pass through unchanged, with a note that names the path of calls.
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


class UnknownEntryError(LlmDoError, KeyError):
    """No entry has the name that was called."""

    # KeyError shows the repr of its argument, which turns a sentence into a quoted one.
    __str__ = Exception.__str__


class UnknownAttributeError(UnknownEntryError, AttributeError):
    """No entry has the name of an attribute of `ctx.tools`, so `hasattr` is false."""


class DuplicateEntryError(LlmDoError, ValueError):
    """Two entries claim one name."""


class ArgumentError(LlmDoError, TypeError):
    """The arguments of a call do not fit its entry; nothing was run."""


class EventLoopError(LlmDoError, RuntimeError):
    """A call was made where it would block the event loop that serves it, or from a second event loop."""


class ScopeClosedError(LlmDoError, RuntimeError):
    """A turn was started on a scope that is closed."""


class ScopeBusyError(LlmDoError, RuntimeError):
    """A turn was started, or the scope closed, while another turn was running."""


class ModelChoiceError(LlmDoError, ValueError):
    """A worker has no model, or one that cannot be used."""


class LocalModelError(LlmDoError, ValueError):
    """A local model is unknown, cannot be fetched or loaded, or its process ended. Nothing half-fetched is left."""


class ToolsetError(LlmDoError, TypeError):
    """A toolset could not be built, or clashes with the worker's own tools."""


class NoWorkerError(LlmDoError, RuntimeError):
    """Something of a worker was asked for where no worker is at work."""


class NoSandboxError(LlmDoError, RuntimeError):
    """Files were used where no worker with a sandbox is at work."""


class WorkerFileError(LlmDoError, ValueError):
    """A worker file does not say what a worker is. Each line of the message starts with `path:line: `."""


class RuleError(LlmDoError, ValueError):
    """Rules that cannot be meant, or cannot be understood."""


class ProjectCodeError(LlmDoError, ImportError):
    """Code of a project cannot be imported, or does not have what a file refers to."""

    __str__ = Exception.__str__


class PathDenied(LlmDoError, PermissionError):
    """The path is not one that may be used like this; nothing was read or written."""

    brief: str | None = None
    """The message as if nothing was there, for those who must not know."""
    # An OSError formats its arguments as an errno.
    __str__ = Exception.__str__


class PathChanged(LlmDoError, PermissionError):
    """The file is not the one that the call was made for; it is left as it is."""

    __str__ = Exception.__str__


class PathMissing(LlmDoError, FileNotFoundError):
    """The path is allowed, and nothing is there."""

    brief: str | None = None
    """The message without the names of other files, for those who must not know them."""
    __str__ = Exception.__str__


class RememberedError(LlmDoError, OSError):
    """The file of remembered answers cannot be read, believed or written."""

    __str__ = Exception.__str__


class PathFailed(LlmDoError, OSError):
    """The operating system could not do it (the disk is full, ...); a file that was there is unchanged."""

    __str__ = Exception.__str__


class ContentError(LlmDoError, ValueError):
    """The file's content, or the content given for it, is not what the call needs; nothing was written."""


class PromptError(LlmDoError, ValueError):
    """A method that writes the prompt of a worker's input failed, or returned what is no prompt; nothing was sent."""


class CommandError(LlmDoError, ValueError):
    """A command line cannot be read."""


class ApprovalDenied(LlmDoError, PermissionError):
    """The call was refused; it did not run."""

    def __init__(self, message: str, *, note: str | None = None) -> None:
        super().__init__(message)
        self.note = note
        """What the person who refused had to say."""

    # PermissionError is an OSError, which formats its arguments as an errno.
    __str__ = Exception.__str__


class DelegationDenied(ApprovalDenied):
    """A worker wanted to call a worker that its file does not allow it; nothing was started."""


class RunEnded(LlmDoError, PermissionError):
    """A person who was asked ended the run. No model is told, and whoever catches this can make no more calls."""

    def __init__(self, message: str, *, note: str | None = None) -> None:
        super().__init__(message)
        self.note = note
        """What the person had to say."""


class DepthLimitError(LlmDoError):
    """Calls are nested deeper than the runtime allows."""


class CallCancelled(LlmDoError):
    """A call was made on behalf of one that was cancelled; nothing was run."""


class CallEnded(LlmDoError, RuntimeError):
    """A call was made with the context of a call that is over, or that stands below one that is."""


class LimitExceeded(LlmDoError):
    """A budget over the whole tree of calls is used up."""

    def __init__(self, message: str = "", *, problem: str = "", limit: str = "", worker: str | None = None) -> None:
        super().__init__(message)
        self.problem = problem
        """The limit and its use in words, without the path of the call."""
        self.limit = limit
        """The field of `Limits` that says no, such as `max_cost`; empty where no higher number would help."""
        self.worker = worker
        """The worker whose own limit it is. `None` is the session's."""


class CallTimeout(LimitExceeded, TimeoutError):
    """A top-level call or turn took longer than `Limits.timeout`."""

    __str__ = Exception.__str__


class OutputError(LlmDoError, ValueError):
    """An entry's output does not fit the type that the entry declares."""


class ModelBehaviorError(LlmDoError):
    """A model kept doing what it cannot do: it called tools that do not exist, or answered nothing."""


class AnswerCutOff(LlmDoError):
    """An answer of a model was cut off, and its worker says that this is an error (`on_cut_off`)."""


class ToolTimeout(LlmDoError, TimeoutError):
    """A tool ran longer than the `timeout` it declares."""

    def __init__(self, message: str, *, entry: object = None) -> None:
        super().__init__(message)
        self.entry = entry
        """The tool: its own caller may be a model, which is asked to try again."""

    __str__ = Exception.__str__


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """A sentence that names the closest of `known`, or all of them when none is close."""
    names = sorted(known)
    if not names:
        return ""
    if close := get_close_matches(word, names, n=3, cutoff=0.6):
        return f" Did you mean {' or '.join(map(repr, close))}?"
    shown = ", ".join(map(repr, names[:20]))
    return f" Known names: {shown}{f' and {len(names) - 20} more' if len(names) > 20 else ''}."


def summarize(exc: ValidationError) -> str:
    """What pydantic found wrong, in one line."""
    problems = exc.errors(include_url=False, include_context=False, include_input=False)
    said = []
    for error in problems:
        where = ".".join(str(part) for part in error["loc"] if part != "[key]")
        what = error["msg"].removeprefix("Value error, ")  # what we say ourselves needs no such word
        said.append(f"{where}: {what}" if where else what)
    return "; ".join(said)


def partial_messages(error: BaseException) -> "list[ModelMessage]":
    """The messages that the failed or cancelled worker call behind `error` had exchanged so far.

    Each call on the way up replaces what the one below it left, so whoever catches an error sees the
    messages of the call that they made. Empty when no worker was involved.
    """
    return list(getattr(error, _PARTIAL_MESSAGES, ()))


def attach_partial_messages(error: BaseException, messages: "list[ModelMessage]") -> None:
    """Make `partial_messages(error)` answer `messages`."""
    with suppress(Exception):  # an exception may refuse attributes
        setattr(error, _PARTIAL_MESSAGES, messages)


def note_path(error: BaseException, path: str, call: object, caller: object) -> None:
    """Say on an exception in which call it was raised, once for each raise. The innermost call knows best.

    `call` and `caller` are the records of the call that it leaves, and of the one that it reaches next.
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
    """Tell whether an error is one of ours that says in its text where it happened. A word of others is only a word."""
    if not isinstance(error, LlmDoError):
        return False
    text = str(error)
    return text.startswith((f"{path} ", f"{path}:")) or (" > " in path and path in text)


def raised_in_nested_call(error: BaseException, call: object) -> bool:
    """Tell whether an error reached a call, of which this is the record, from one that it made."""
    return call is not None and getattr(error, _REACHES, None) is call


def was_raised_at(error: BaseException, path: str) -> bool:
    """Whether an error was raised in the call at that path itself, and not in one that it made."""
    return getattr(error, _PATH, None) == path


_PATH = "_llm_do_path"
_REACHES = "_llm_do_reaches"
_NOTE = "llm-do call path: "
_PARTIAL_MESSAGES = "_llm_do_partial_messages"
