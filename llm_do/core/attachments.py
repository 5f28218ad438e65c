"""Files for a worker: where they come from, and whether it may get them.

At the top of a session a path is one of this machine. Below a worker it is always a path in that worker's roots: it can
only hand on files that it may read.

Files of roots are read once, before the call is made: the rules, the person who is asked, the record and the worker
get the same bytes. If the rules refuse the call, nothing is read.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePath
from typing import Any, Protocol

from ..arguments.inputs import split_files
from ..arguments.prompts import AttachmentInput, AttachmentPayload, is_content, name_of, write_prompt
from ..definitions.fields import AttachmentPolicy
from ..errors import ArgumentError, LlmDoError, PathDenied, PathMissing
from ..machine.files import read_file
from ..policy.rules import Case
from ..sandbox import SandboxToolset
from ..values.texts import quote
from .entry import EntryBase
from .frame import CallFrame, WorkerFrame
from .redaction import Redaction

_FORMS = "a path, AttachmentPayload(name, data), or PydanticAI content such as BinaryContent"


class Judge(Protocol):
    """Decides about calls: the `Gate` of a session."""

    redaction: Redaction

    def refuses(self, frame: CallFrame, arguments: dict[str, Any]) -> bool:
        """Return whether the rules refuse a call, without asking."""


@dataclass(frozen=True, slots=True)
class _RootFile:
    """A file in the roots of the calling worker."""

    path: str
    place: Path


def bind_call(frame: WorkerFrame, args: tuple[Any, ...], kwargs: dict[str, Any], judge: Judge) -> dict[str, Any]:
    """Bind the arguments of a call of a worker from Python, and attach the files in the keyword `attachments`."""
    worker: Any = frame.entry
    files = None
    if "attachments" in kwargs and _means_files(worker, kwargs):
        files = _as_files(kwargs["attachments"], worker.name)
        kwargs = {name: value for name, value in kwargs.items() if name != "attachments"}
    arguments: dict[str, Any] = worker.parameters.bind(args, kwargs, has_files=bool(files))
    if worker.input_type is None and "attachments" in arguments:
        arguments, among = split_files(arguments)
        if among and files is not None:
            raise ArgumentError(f"{worker.name}() got two values for argument 'attachments'.")
        files = among or files
    attach(frame, arguments, files or (), judge)
    return arguments


def _means_files(worker: Any, kwargs: Mapping[str, Any]) -> bool:
    """Return whether the keyword `attachments` of a call contains its files, and is not a field or data of that name.

    Keywords may come from data, such as a mail, which must not choose files: a text beside keywords other than `input`
    is not a path.
    """
    attachments = kwargs["attachments"]
    if worker.input_type is None:
        is_alone = kwargs.keys() <= {"input", "attachments"}
        has_only_files = isinstance(attachments, list | tuple) and bool(attachments) and all(map(_is_file, attachments))
        return is_alone or has_only_files
    if not takes_separate_files(worker):
        return False
    if len(kwargs) > 1 and any(isinstance(item, str) for item in _as_files(attachments, worker.name)):
        raise ArgumentError(
            f"{worker.name}(): a path among 'attachments' beside other keywords must be a Path, not a text. Give "
            "Path(...), or give the input as one value before `attachments=`."
        )
    return True


def takes_files(worker: EntryBase) -> bool:
    """Return whether an entry is a worker that takes files."""
    policy = worker.attachment_policy
    return policy is not None and policy.max_attachments > 0 and policy.suffixes != ()


def takes_separate_files(worker: EntryBase) -> bool:
    """Return whether the keyword `attachments` means files beside the declared input of a worker."""
    # The shape has the fields by their aliases and by their names.
    return worker.input_type is not None and "attachments" not in worker.parameters.vocabulary.shape["properties"]


def attach(frame: WorkerFrame, arguments: dict[str, Any], files: Sequence[AttachmentInput], judge: Judge) -> None:
    """Give the call of a worker its files, and its prompt if the input type writes that.

    Raises:
        PathDenied: The policy of the worker or of its caller, or the roots of the caller do not allow it. Problems with
            the file itself are raised only after the rules allow the call: as `input_error` of the frame.
    """
    worker = frame.entry
    prompt: Sequence[Any] | None = None
    if worker.writes_prompt:
        try:
            prompt = write_prompt(worker.input_type, arguments, judge.redaction.visible_arguments(frame, arguments))
        except LlmDoError as exc:
            frame.input_error = exc
            return
    in_prompt = [item for item in prompt or () if not isinstance(item, str)]
    if not files and not in_prompt:
        frame.prompt = prompt
        return
    located = share(frame, [*in_prompt, *files])
    checks = list(_checks(frame))
    for check in checks:
        check.names(located)
    if frame.shared_files and judge.refuses(frame, arguments):
        frame.input_error = PathDenied(f"{frame.path} was refused, so no file was read for it.")
        return
    try:
        contents = [_read_file(frame, file, judge) for file in located]
        for check in checks:
            check.bytes(contents)
    except LlmDoError as exc:
        if not frame.shared_files:
            raise
        frame.input_error = exc
        return
    frame.attachments, frame.caller_files = contents, contents[len(in_prompt) :]
    if prompt is not None:
        here = iter(contents)
        frame.prompt = [*(item if isinstance(item, str) else next(here) for item in prompt), *frame.caller_files]


def check_names(frame: CallFrame, files: Sequence[AttachmentInput]) -> None:
    """Refuse files by their number and their names, before any is read: a model may name any number."""
    located = [_place(frame, item) for item in files]
    for check in _checks(frame):
        check.names(located)


def check_handed_on(frame: CallFrame, paths: Sequence[str]) -> None:
    """Refuse files that the running worker may not hand on to any worker."""
    for check in _checks_of_caller(frame):
        check.names([_RootFile(path, frame.files.manager.host_path(path)) for path in paths])


def share(frame: CallFrame, files: Sequence[Any]) -> list[Any]:
    """Note for the rules the files of the caller's roots, and return where each file is."""
    located = [_place(frame, item) for item in files]
    frame.shared_files = {file.path: file.place for file in located if isinstance(file, _RootFile)}
    return located


def separate_files(frame: CallFrame, arguments: Mapping[str, Any]) -> tuple[Mapping[str, Any], Sequence[str]]:
    """Split what a model gives another worker into the arguments and the paths of files."""
    worker = frame.entry
    if frame.parent is None or frame.parent.worker is None or not takes_files(worker):
        return arguments, ()
    is_path = takes_separate_files(worker) or arguments.keys() <= {"input", "attachments"}
    if "attachments" not in arguments or not is_path:
        return arguments, ()
    rest = {name: value for name, value in arguments.items() if name != "attachments"}
    return rest, _as_files(arguments["attachments"], worker.name)


def shared_cases(frame: CallFrame) -> list[Case]:
    """Return the cases for the rules of the files of the caller's roots: each is read, and handed over."""
    handed_over = [
        Case({"worker": frame.entry.name, "attachments": place}, path, name="worker.call")
        for path, place in frame.shared_files.items()
    ]
    return handed_over + [
        Case({"path": place}, path, name="sandbox.read") for path, place in frame.shared_files.items()
    ]


def load(attachments: Sequence[AttachmentInput], policy: AttachmentPolicy, worker: str) -> list[Any]:
    """Read attachments from a person or a program, and check that the worker may get them."""
    files, check = list(_as_files(attachments, worker)), _Check(policy, worker)
    check.names(files)
    contents = [_read_host(file, policy.max_total_bytes) for file in files]
    check.bytes(contents)
    return contents


# -- where files come from -----------------------------------------------------------------------------


def _as_files(attachments: Any, worker: str) -> Sequence[Any]:
    if isinstance(attachments, str | bytes | PurePath) or not isinstance(attachments, Sequence):
        raise ArgumentError(f"{worker}(): 'attachments' must be a list, each item {_FORMS}; got {quote(attachments)}.")
    for item in attachments:
        if not isinstance(item, str) and not _is_file(item):
            raise ArgumentError(f"{worker}(): an item of 'attachments' must be {_FORMS}; got {quote(item)}.")
    return attachments


def _is_file(item: Any) -> bool:
    """Return whether a value is certainly a file. A text is not: it may be a path."""
    return isinstance(item, PurePath | AttachmentPayload) or is_content(item)


def _place(frame: CallFrame, item: Any) -> Any:
    caller = frame.caller
    if not isinstance(item, str | PurePath) or caller.worker is None:
        return item
    return _RootFile(str(item), caller.files.manager.host_path(str(item)))


def _read_file(frame: CallFrame, file: Any, judge: Judge) -> Any:
    if isinstance(file, _RootFile):
        # As in `read_file`, secrets are removed: a model chose the file, and another one is sent it.
        return judge.redaction.for_model(read_shared(frame.caller.files, file.path).content())
    policy: Any = frame.entry.attachment_policy
    return _read_host(file, policy.max_total_bytes)


def read_shared(files: SandboxToolset, path: str) -> AttachmentPayload:
    root, rest = files.manager.parse(path)
    return AttachmentPayload(path, files.read_bytes(root.name, rest))


def _read_host(file: Any, limit: int) -> Any:
    if isinstance(file, AttachmentPayload):
        return file.content()
    if not isinstance(file, str | PurePath):
        return file
    path = Path(file)
    try:
        return AttachmentPayload(path.name, read_file(path, limit)).content()
    except FileNotFoundError:
        raise PathMissing(f"There is no file {str(path)!r} to attach.") from None
    except OSError as exc:
        raise PathDenied(f"{str(path)!r} cannot be attached: {exc.strerror or exc}.") from exc


# -- whether a worker may get them -----------------------------------------------------------------------


def _checks(frame: CallFrame) -> Iterator[_Check]:
    worker: Any = frame.entry
    yield _Check(worker.attachment_policy, worker.name)
    if frame.parent is not None:
        yield from _checks_of_caller(frame.parent)


def _checks_of_caller(frame: CallFrame) -> Iterator[_Check]:
    caller = frame.worker_entry
    if caller is not None and caller.attachment_policy is not None:
        yield _Check(caller.attachment_policy, caller.name, hands_on=True)


@dataclass(frozen=True, slots=True)
class _Check:
    """The policy of one worker, as a check of files that it takes or hands on."""

    policy: AttachmentPolicy
    worker: str
    hands_on: bool = False

    def names(self, files: Sequence[Any]) -> None:
        policy = self.policy
        if len(files) > policy.max_attachments:
            most = f"{policy.max_attachments} attachment{'' if policy.max_attachments == 1 else 's'}"
            raise PathDenied(f"{self._who} {most} at most, got {len(files)}. Give fewer.")
        for name in map(_name, files):
            if policy.suffixes is not None and not name.casefold().endswith(policy.suffixes):
                allowed = ", ".join(policy.suffixes) or "none"
                whom = "handed on by" if self.hands_on else "given to"
                verb = "hands on" if self.hands_on else "takes"
                raise PathDenied(f"{name!r} cannot be {whom} worker {self.worker!r}: it {verb} {allowed}.")

    def bytes(self, contents: Sequence[Any]) -> None:
        total = sum(len(getattr(content, "data", b"")) for content in contents)
        if total > self.policy.max_total_bytes:
            raise PathDenied(f"{self._who} {self.policy.max_total_bytes} bytes of attachments at most, got {total}.")

    @property
    def _who(self) -> str:
        return f"Worker {self.worker!r} {'hands on' if self.hands_on else 'takes'}"


def _name(file: Any) -> str:
    if isinstance(file, AttachmentPayload):
        return file.name
    if isinstance(file, _RootFile):
        return file.path
    return PurePath(file).name if isinstance(file, str | PurePath) else name_of(file)
