"""Types of the values in worker files."""

from __future__ import annotations

import re
from typing import Annotated

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, WithJsonSchema

from ..models.compatibility import CAPABILITIES, check_requirement
from ..values.names import NAME_PATTERN, check_name, check_suffix

_DOTTED = r"[A-Za-z_][A-Za-z0-9_]*(?:\.[A-Za-z_][A-Za-z0-9_]*)*"
_REFERENCE = re.compile(rf"(?:(?:[A-Za-z0-9_-]+/)*[A-Za-z0-9_-]+\.py|{_DOTTED}):{_DOTTED}")


def is_reference(value: str) -> bool:
    """Return whether a text can name an object of the project's code."""
    return _REFERENCE.fullmatch(value) is not None


def check_reference(value: str) -> str:
    """Return a reference, or raise `ValueError`."""
    if not is_reference(value):
        raise ValueError(f"{value!r} is not a reference: write 'module:Name' or 'file.py:Name'.")
    return value


def _check_workers(names: tuple[str, ...]) -> tuple[str, ...]:
    if "*" in names and len(names) > 1:
        raise ValueError('"*" means all workers: write ["*"], or only names.')
    return names


# A plain `bool` or `int` would take the text "yes" or "1_000" as well.
Flag = Annotated[bool, Field(strict=True)]
Count = Annotated[int, Field(strict=True, ge=0)]
Amount = Annotated[float, Field(strict=True, ge=0)]
Word = Annotated[str, Field(min_length=1)]
Argument = Annotated[str, Field(pattern=r"^[^\x00]*$")]
Suffix = Annotated[str, AfterValidator(check_suffix)]
CompatibleModel = Annotated[
    str,
    AfterValidator(check_requirement),
    WithJsonSchema({"anyOf": [{"enum": list(CAPABILITIES)}, {"type": "string", "pattern": "^[^:]+:.+$"}]}),
]
Name = Annotated[str, AfterValidator(check_name), Field(json_schema_extra={"pattern": NAME_PATTERN})]
AllowedWorker = Annotated[
    str,
    AfterValidator(lambda name: name if name == "*" else check_name(name)),
    WithJsonSchema({"anyOf": [{"type": "string", "pattern": NAME_PATTERN}, {"const": "*"}]}),
]
AllowedWorkers = Annotated[tuple[AllowedWorker, ...], AfterValidator(_check_workers)]
Reference = Annotated[
    str, AfterValidator(check_reference), Field(json_schema_extra={"pattern": f"^(?:{_REFERENCE.pattern})$"})
]


class Section(BaseModel):
    """A part of a worker file, in which unknown keys are errors."""

    # Built when it is first used, which most sections are not.
    model_config = ConfigDict(
        frozen=True, extra="forbid", allow_inf_nan=False, use_attribute_docstrings=True, defer_build=True
    )


class AttachmentPolicy(Section):
    """Limits of the files that may be given to a worker."""

    max_attachments: Count = 4
    max_total_bytes: Count = 10_000_000
    suffixes: tuple[Suffix, ...] | None = None
    """Allowed ends of their names, in upper or lower case. `None` allows all."""
