"""Packages of this installation: whether they are there, and commands that add them."""

from __future__ import annotations

import json
import sys
from contextlib import suppress
from functools import cache
from importlib.metadata import PackageNotFoundError, distribution
from importlib.util import find_spec
from pathlib import PurePath

_NAME = "llm-do"


def is_installed(module: str) -> bool:
    """Return whether a module is installed, without importing it."""
    try:
        return find_spec(module) is not None
    except (ImportError, ValueError):  # the parent of a dotted name is missing, or is no package
        return False


def install_extra(extra: str) -> str:
    """Return the command that adds an extra of llm-do."""
    how = _installer()
    if how == "clone":
        return f"pip install -e '.[{extra}]'"
    command = {"uv": "uv tool install", "pipx": "pipx install --force"}.get(how, "pip install")
    return f"{command} '{_NAME}[{extra}]'"


def install_package(package: str) -> str:
    """Return the command that adds another package, which may have an extra in brackets."""
    requirement = f"'{package}'" if "[" in package else package
    commands = {"uv": f"uv tool install --with {requirement} {_NAME}", "pipx": f"pipx inject {_NAME} {requirement}"}
    return commands.get(_installer(), f"pip install {requirement}")


@cache
def _installer() -> str:
    try:
        return installer_of(sys.prefix, distribution(_NAME).read_text("direct_url.json"))
    except PackageNotFoundError:
        return installer_of(sys.prefix, None)


def installer_of(prefix: str, direct_url: str | None) -> str:
    """Return how a package was installed: `clone`, `uv`, `pipx` or `pip`.

    `prefix` is its environment, and `direct_url` the record of an installation from a folder or a URL.
    """
    with suppress(ValueError, AttributeError):
        if json.loads(direct_url or "{}").get("dir_info", {}).get("editable"):
            return "clone"
    parts = PurePath(prefix).parts
    for tool, folders in (("uv", ("uv", "tools")), ("pipx", ("pipx", "venvs"))):
        if any(parts[at : at + 2] == folders for at in range(len(parts))):
            return tool
    return "pip"
