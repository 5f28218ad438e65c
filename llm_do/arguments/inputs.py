"""Input of workers that declare none, and input from outside of Python calls.

A worker that declares no input takes a `WorkerInput`, and one with `input: none` takes nothing.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from difflib import get_close_matches
from typing import Annotated, Any, NotRequired

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, TypeAdapter
from pydantic_ai.messages import MultiModalContent
from pydantic_core import PydanticCustomError, from_json, to_json

from ..errors import ArgumentError, PathDenied
from ..values.texts import is_blank, is_none_or_blank, quote
from .parameters import NAMED_ONLY, Parameters, closed_mapping
from .prompts import AttachmentInput, AttachmentPayload, is_content
from .vocabulary import Vocabulary


class WorkerInput(BaseModel):
    """The input of a worker that declares no `input_type`: `input`, files to look at, and any other keywords."""

    model_config = ConfigDict(extra="allow")

    input: Any = None
    """The task or the question: usually text, or any value that can be written as JSON."""
    attachments: list[MultiModalContent] = []
    """PydanticAI content (`BinaryContent`, `ImageUrl`, ...) that goes to the model beside the text."""


def bind_input(parameters: Parameters, input_data: Any, *, has_files: bool = False) -> dict[str, Any]:
    """Bind input from outside of Python calls: nothing, a mapping of arguments, or the value of the first one.

    Such a call passes its files separately, where they are checked. If the worker declares no input, files that are
    hidden in the input are refused.
    """
    if input_data is None:
        return parameters.bind_named({}, has_files=has_files)
    if not isinstance(input_data, Mapping):
        arguments = parameters.bind((input_data,), {}, has_files=has_files)
    else:
        _refuse_hidden(parameters, input_data)
        arguments = parameters.bind_named(input_data, has_files=has_files)
    _refuse_hidden(parameters, arguments)
    return arguments


def _refuse_hidden(parameters: Parameters, values: Mapping[str, Any]) -> None:
    if isinstance(parameters, OpenParameters) and parameters.of_worker and has_files_in(values):
        raise PathDenied("Attachments cannot be among the input data. Pass them as `attachments`.")


class OpenParameters(Parameters):
    """The parameters of a worker that declares no input: those of `WorkerInput`."""

    def __init__(self, entry: str, *, of_worker: bool = False) -> None:
        self.entry = entry
        self.of_worker = of_worker
        """Whether blank input without files is an error, since providers refuse it. Users' own classes take any."""
        # A model sees one field: it has no other caller's conventions to follow.
        self.json_schema = _TEXT_INPUT.json_schema()
        self.validator = (_FILLED_TEXT_INPUT if of_worker else _TEXT_INPUT).validator
        self.vocabulary = Vocabulary(entry, self.json_schema)

    def bind(self, args: tuple[Any, ...], kwargs: dict[str, Any], *, has_files: bool = False) -> dict[str, Any]:
        values = self._place(args, kwargs)
        if values.keys() - _OWN_NAMES:  # anything else is taken as it is, and `attachments` as well
            return dict(values)
        if "attachments" in values:
            values = {**values, "attachments": self._files(values["attachments"])}
        if self.of_worker and not has_files and not values.get("attachments") and is_none_or_blank(values.get("input")):
            problem = "argument 'input' is blank" if values.get("input") is not None else "missing argument 'input'"
            raise ArgumentError(
                f"{self.entry}(): {problem}. Give the task as text. "
                "A worker whose instructions are enough says `input: none` in its file."
            )
        return dict(values)

    def _files(self, files: Any) -> list[Any]:
        # The mapping may come from anywhere: no text in it is a path, and no JSON is an address or a provider's file.
        if _are_files(files):
            return list(files)
        raise ArgumentError(
            f"{self.entry}(): 'attachments' in a mapping takes a list of AttachmentPayload or PydanticAI content, "
            f"such as BinaryContent.from_path(...); got {quote(files)}. "
            "Give paths as a keyword: call(worker, text, attachments=[...])."
        )

    def _place(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
        if not args:
            return kwargs
        if len(args) > 1:
            raise ArgumentError(f"{self.entry}() takes one positional argument, 'input', got {len(args)}.")
        if not kwargs:
            if isinstance(args[0], WorkerInput):
                return set_fields(args[0])
            if (arguments := NAMED_ONLY.lone(self.entry, args[0])) is not None:
                return arguments
        if "input" in kwargs:
            raise ArgumentError(f"{self.entry}() got two values for argument 'input'.")
        return {"input": args[0], **kwargs}


_OWN_NAMES = frozenset(WorkerInput.model_fields)


def has_files_in(arguments: Mapping[str, Any]) -> bool:
    """Return whether `attachments` in the arguments of a worker that declares no input are its files.

    Next to other names than `input` it is plain data: a mail with a field of that name sends no file. A list of
    PydanticAI content or `AttachmentPayload` alone is the exception, since no text can become that.
    """
    if "attachments" not in arguments:
        return False
    files = arguments["attachments"]
    return (_are_files(files) and len(files) > 0) or not arguments.keys() - _OWN_NAMES


def _are_files(files: Any) -> bool:
    is_list = isinstance(files, list | tuple)
    return is_list and all(isinstance(each, AttachmentPayload) or is_content(each) for each in files)


def split_files(arguments: dict[str, Any]) -> tuple[dict[str, Any], Sequence[AttachmentInput]]:
    """Return the bound arguments of a worker that declares no input without its files, and the files."""
    if not has_files_in(arguments):
        return arguments, ()
    return {name: value for name, value in arguments.items() if name != "attachments"}, arguments["attachments"]


def set_fields(values: WorkerInput) -> dict[str, Any]:
    """Return the arguments that a `WorkerInput` was made with, without defaults."""
    return {name: getattr(values, name) for name in values.model_fields_set}


def misspelled_names(arguments: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Yield each argument that is probably a misspelled `input` or `attachments`, and the right name."""
    for name in arguments.keys() - _OWN_NAMES:
        if (close := get_close_matches(name.casefold(), _OWN_NAMES, n=1, cutoff=0.8)) and close[0] not in arguments:
            yield name, close[0]


def _check_filled(text: str) -> str:
    if is_blank(text):
        raise PydanticCustomError("argument", "Write the task or the question as text. It must not be blank.")
    return text


_Text = Annotated[str, Field(description="The task or the question, as text.")]
_TEXT_INPUT = closed_mapping({"input": _Text})
_OPTIONAL_TEXT_INPUT = closed_mapping({"input": NotRequired[_Text | None]})
_FILLED_TEXT_INPUT = closed_mapping({"input": Annotated[_Text, AfterValidator(_check_filled)]})


class NoParameters(Parameters):
    """The empty parameters of a worker whose instructions are enough (`input: none`)."""

    def __init__(self, entry: str) -> None:
        self.entry = entry
        self.json_schema = {"type": "object", "properties": {}, "additionalProperties": False}
        self.validator = _NOTHING.validator
        self.vocabulary = Vocabulary(entry, self.json_schema)

    def bind(self, args: tuple[Any, ...], kwargs: dict[str, Any], *, has_files: bool = False) -> dict[str, Any]:
        arguments = NAMED_ONLY.lone(self.entry, args[0]) if len(args) == 1 else None
        if kwargs or arguments or (args and arguments is None):
            raise ArgumentError(
                f"{self.entry}() takes no input: its instructions are enough (`input: none`). "
                "Call it without arguments, or remove `input: none` from its file."
            )
        return {}


def _check_nothing(value: Any) -> Any:
    if value:
        raise PydanticCustomError("argument", "Call this tool without arguments. It takes none.")
    return value


_NOTHING = TypeAdapter(Annotated[dict[str, Any], BeforeValidator(_check_nothing)])


class WithFiles:
    """The parameters of a worker and the paths of attachments, as the model of another worker passes them.

    For workers without a parameter `attachments`. With files, a worker that declares no input needs no text.
    """

    def __init__(self, parameters: Parameters) -> None:
        schema, self._validator = parameters.json_schema, parameters.validator
        self._beside_files = self._validator
        if isinstance(parameters, OpenParameters):
            schema = {name: part for name, part in schema.items() if name != "required"}
            self._beside_files = _OPTIONAL_TEXT_INPUT.validator
        self.json_schema = {**schema, "properties": {**schema.get("properties", {}), "attachments": _PATHS_SCHEMA}}
        self.validator: Any = self

    def validate_python(self, value: Any, **options: Any) -> dict[str, Any]:
        rest, paths = _without_paths(value)
        return {**self._validator_beside(paths).validate_python(rest, **options), **paths}

    def validate_json(self, value: str | bytes | bytearray, **options: Any) -> dict[str, Any]:
        partial_text = options.get("allow_partial", "off") not in (False, "off")
        try:
            data = from_json(value, allow_partial="trailing-strings" if partial_text else False)
        except ValueError:
            data = None  # it is not JSON, which the other validator reports
        rest, paths = _without_paths(data)
        if not paths:
            return dict(self._validator.validate_json(value, **options))
        return {**self._validator_beside(paths).validate_json(to_json(rest), **options), **paths}

    def _validator_beside(self, paths: dict[str, Any]) -> Any:
        return self._beside_files if paths.get("attachments") else self._validator


_PATHS_SCHEMA = {
    "type": "array",
    "items": {"type": "string"},
    "description": "Paths of files to hand over, such as root/folder/file.pdf.",
}
_PATHS = closed_mapping({"attachments": list[str] | None})


def _without_paths(value: Any) -> tuple[Any, dict[str, Any]]:
    if not isinstance(value, dict) or "attachments" not in value:
        return value, {}
    rest = {name: item for name, item in value.items() if name != "attachments"}
    return rest, _PATHS.validate_python({"attachments": value["attachments"]})
