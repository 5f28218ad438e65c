r"""Texts of any value that can be written: without half of a character, even if the value's own code fails.

Half of a character (a lone surrogate) comes from a JSON or YAML escape such as `\ud800`, from a command line or from a
file name that is not UTF-8. Python holds it in a text, and fails when it writes that text.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from contextlib import suppress
from math import isfinite
from typing import Any, Literal

from pydantic_core import ValidationError, to_json, to_jsonable_python

from .fields import EXTRA, Fields, parts_of, separate_extra


def escape_surrogates(text: str) -> str:
    r"""Return a text with each half of a character as an escape, such as `\ud800`."""
    return text if text.isascii() else text.encode(errors="backslashreplace").decode()


_INK = re.compile(
    # White space, control characters, and characters without width or ink: joiners, marks of direction, fillers.
    "[^\\s\\x00-\\x1f\\x7f-\\x9f\\xad\\u034f\\u061c\\u115f\\u1160\\u17b4\\u17b5\\u180b-\\u180f\\u200b-\\u200f\\u202a-\\u202e"
    "\\u2060-\\u206f\\u2800\\u3164\\ufe00-\\ufe0f\\ufeff\\uffa0\\ufff0-\\ufff8\\U000e0000-\\U000e0fff]"
)


def is_blank(text: str) -> bool:
    """Return whether a text has no visible character."""
    return _INK.search(text) is None


def is_none_or_blank(value: object) -> bool:
    return value is None or (isinstance(value, str) and is_blank(value))


def safe_repr(value: object) -> str:
    """Return the repr of a value, with extra values apart, or its type if its own code fails."""
    try:
        return repr(separate_extra(value))
    except Exception:
        return f"<{type(value).__name__} that cannot be shown>"


def quote(value: object, most: int = 200) -> str:
    """Return the repr of a value in one line for an error message, or only its length if it is long."""
    # It is never cut: half of a secret would not be found any more when the message is recorded.
    for describe in (safe_repr, repr):  # the repr of a class may be shorter than its fields
        with suppress(Exception):
            text = escape_surrogates(describe(value)).replace("\n", "\\n")
            if len(text) <= most:
                return text
    if isinstance(value, str):
        return f"<text of {len(value):,} characters>"
    return f"<{type(value).__name__}, too long to show>"


def json_text(value: Any, *, indent: int | None = None, inf_nan_mode: Literal["null", "constants"] = "null") -> str:
    """Return any value as JSON: as its class serializes it, or, where that fails, as its fields and items."""
    try:
        data = to_json(value, indent=indent, fallback=text_of, bytes_mode="base64", inf_nan_mode=inf_nan_mode)
        return data.decode()
    except Exception:
        # Only texts have anything but ASCII, and there the escapes are those of JSON.
        return escape_surrogates(json.dumps(_plain(value, ()), indent=indent, ensure_ascii=False))


def text_of(value: object) -> str:
    """Return `str(value)`, or the type of the value if its own code fails."""
    try:
        return _validation_text(value) if isinstance(value, ValidationError) else str(value)
    except Exception:
        return safe_repr(value)


def _validation_text(error: ValidationError) -> str:
    """Return the text of pydantic's error with each value as `quote` writes it: pydantic would cut it."""
    problems = error.errors(include_url=False, include_context=False)
    lines = [f"{len(problems)} validation error{'s' * (len(problems) > 1)} for {error.title}"]
    for problem in problems:
        lines += [
            ".".join(map(str, problem["loc"])),
            f"  {problem['msg']} [type={problem['type']}, input={quote(problem['input'])}]",
        ]
    return "\n".join(filter(None, lines))


def _plain(value: Any, inside: tuple[int, ...]) -> Any:
    """Return a value as JSON data, without its own serialization."""
    if value is None or isinstance(value, bool | str):
        return value if not isinstance(value, str) else str.__str__(value)
    if id(value) in inside or len(inside) > 100:
        return safe_repr(type(value))
    below = (*inside, id(value))
    try:
        match parts_of(value):
            case None:
                data = to_jsonable_python(value, fallback=text_of, bytes_mode="base64")
                return None if isinstance(data, float) and not isfinite(data) else data
            case Fields(declared, extra):
                named = {**declared, EXTRA: extra} if extra else declared
                return {name: _plain(item, below) for name, item in named.items()}
            case Mapping() as items:
                return {text_of(key): _plain(item, below) for key, item in items.items()}
            case items:
                return [_plain(item, below) for item in items]
    except Exception:
        return safe_repr(value)


def shorten(value: Any, limit: int = 80) -> str:
    """Return a value without secrets in one line, cut in the middle when it is long. Errors use `quote`."""
    if type(value) is dict:
        text = ", ".join(f"{key}={safe_repr(item)}" for key, item in value.items())
    else:
        text = safe_repr(value)
    text = text.replace("\n", "\\n")
    if len(text) <= limit:
        return text
    half = (limit - 3) // 2
    return f"{text[:half]}...{text[-half:]}"


def quote_json(value: Any) -> str:
    """Return a value of a file for an error message, like `quote`, as JSON."""
    text = "nothing" if value is None else json.dumps(value, default=safe_repr, ensure_ascii=False, skipkeys=True)
    text = escape_surrogates(text)
    return text if len(text) <= 200 else quote(value)
