"""Checks of outputs against their types, and the names of these types for error messages."""

from __future__ import annotations

import inspect
from functools import lru_cache
from types import UnionType
from typing import Annotated, Any, Union, get_args, get_origin, get_type_hints

from pydantic import TypeAdapter, ValidationError
from pydantic_ai import NativeOutput, PromptedOutput, TextOutput, ToolOutput
from pydantic_ai.messages import ToolReturn

from ..errors import OutputError, summarize


def check_output(name: str, schema_out: Any, output: Any) -> None:
    """Check an output strictly against the type that its entry declares."""
    value = output.return_value if isinstance(output, ToolReturn) else output
    try:
        adapter = _adapter(schema_out)
    except TypeError:  # annotations may contain values without a hash
        adapter = TypeAdapter(schema_out)
    try:
        adapter.validate_python(value, strict=True)
    except ValidationError as exc:
        raise OutputError(f"{name}() returned what its schema_out does not allow: {summarize(exc)}") from exc


@lru_cache(maxsize=1024)
def _adapter(schema_out: Any) -> TypeAdapter[Any]:
    return TypeAdapter(schema_out)


def name_of_type(output_type: Any) -> str:
    """Return the name of an output type, as a person would write it."""
    if isinstance(output_type, NativeOutput | PromptedOutput):
        output_type = output_type.outputs
    elif isinstance(output_type, ToolOutput):
        output_type = output_type.output
    elif isinstance(output_type, TextOutput):
        output_type = str
    if isinstance(output_type, list | tuple):
        return " or ".join(map(name_of_type, output_type))
    if get_origin(output_type) in (Union, UnionType):
        return " or ".join(map(name_of_type, get_args(output_type)))
    if inspect.isroutine(output_type):  # its argument is what the model gives
        hints = [hint for name, hint in get_type_hints(output_type).items() if name != "return"]
        return name_of_type(hints[-1]) if hints else output_type.__name__
    if output_type in (str, None, type(None)):
        return "text" if output_type is str else "nothing (None)"
    return _name_of(output_type)


def _name_of(kind: Any) -> str:
    """Return the text of a type without modules."""
    origin, parts = get_origin(kind), get_args(kind)
    if origin is Annotated:
        return _name_of(parts[0])
    if origin in (Union, UnionType):
        return " | ".join(map(_name_of, parts))
    if isinstance(origin, type):
        return f"{origin.__name__}[{', '.join(map(_name_of, parts))}]"
    if kind is type(None):
        return "None"
    return kind.__name__ if isinstance(kind, type) else str(kind).replace("typing.", "")
