"""Names that a worker cannot have, or that a new one is not given. Only the standard library is imported."""

from __future__ import annotations

import re
from typing import Any

AMONG_FILES = ("generated", "worker")
"""Names that mean something else among the files of a project."""

STANDARD_TOOLS = (
    *("read_file", "write_file", "edit_file", "move_file", "delete_file", "list_files", "find_files", "search_files"),
    *("shell", "worker_call", "worker_create"),
)
"""Tools that llm-do brings, whose names mean nothing else anywhere. A test compares the list with the tools."""

_FOR_NEW_WORKERS = frozenset(
    (
        # the toolsets of worker files, and what rules speak of
        *("files", "sandbox", "worker", "call", "mcp"),
        # tools of providers, and the tool by which a model gives its answer
        *("web_search", "x_search", "code_execution", "web_fetch", "image_generation", "memory", "mcp_server"),
        *("file_search", "advisor", "tool_search", "final_result"),
        # devices: on Windows, no file can be called so, whatever it ends with
        *("con", "prn", "aux", "nul"),
        *(f"{device}{number}" for device in ("com", "lpt") for number in range(10)),
    )
)


def is_standard_tool(name: str) -> bool:
    """Whether a worker of this name could be taken for a tool that llm-do brings."""
    return name.casefold() in STANDARD_TOOLS


def is_ours(name: str) -> bool:
    """Whether this name means a tool that llm-do brings, in every rule."""
    return name in STANDARD_TOOLS or name.startswith(("sandbox.", "worker.", "mcp."))


def is_reserved(name: str) -> bool:
    """Whether no new worker is given this name, in upper or lower case."""
    return name.casefold() in (*AMONG_FILES, *STANDARD_TOOLS, *_FOR_NEW_WORKERS)


_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,63}")


def is_name(name: Any) -> bool:
    """Whether an entry may have this name."""
    return isinstance(name, str) and _NAME.fullmatch(name) is not None


def check_name(name: Any) -> str:
    """`name`, if an entry may have it."""
    if not is_name(name):
        raise ValueError(
            f"{name!r} cannot be an entry's name: use letters, digits, '_' and '-', "
            "starting with a letter or a digit, 64 characters at most. Give one with name=..."
        )
    return str(name)
