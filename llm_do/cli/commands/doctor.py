"""`llm-do doctor`: what this machine has, and what is missing."""

from __future__ import annotations

import platform
import sys
from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

import click

from ...machine.installation import install_extra, install_package
from ...projects.discovery import find_root
from ..support.projects import start_folder
from ..terminal.errors import Exit, escape
from ..terminal.stdout import print_json

if TYPE_CHECKING:
    from ..support.environment import Row

_PACKAGES = ("llm-do", "pydantic-ai-slim", "pydantic", "click", "rich", "textual", "pyyaml")


@click.command("doctor")
@click.option("--json", "as_json", is_flag=True, help="Print a JSON object.")
@click.pass_context
def doctor_command(ctx: click.Context, /, as_json: bool) -> None:
    """Check this machine: programs, keys, models.

    Keys are looked up by name, and their values are never printed. Model servers are looked for on this machine, and
    at the addresses in OLLAMA_HOST, OLLAMA_BASE_URL and VLLM_BASE_URL. The exit code is 1 if something is broken that
    llm-do cannot work without.
    """
    root = find_root(start_folder(ctx))
    rows = [*_packages(), *_environment(root)]
    is_ok = all(state != "broken" for _, state, _ in rows)
    if as_json:
        findings = [{"what": what, "state": state, "detail": detail} for what, state, detail in rows]
        print_json({"ok": is_ok, "findings": findings})
    else:
        width = max(len(what) for what, _, _ in rows)
        for what, state, detail in rows:  # names of models come from files and servers
            click.echo(escape(f"{state:<8} {what:<{width}}  {detail}".rstrip()))
    if not is_ok:
        ctx.exit(Exit.FAILED)


def _packages() -> Iterator[Row]:
    yield "python", "ok", f"{platform.python_version()} ({sys.executable})"
    for name in _PACKAGES:
        try:
            yield name, "ok", version(name)
        except PackageNotFoundError:
            yield name, "broken", f"it is not installed: {install_package(name)}"
    mcp = find_spec("fastmcp") is not None
    detail = "MCP servers can be used" if mcp else f"for MCP servers: {install_extra('mcp')}"
    yield "MCP", "ok" if mcp else "missing", detail


def _environment(root: Path | None) -> Iterator[Row]:
    try:
        import llm_do.projects.registry  # noqa: F401, PLC0415 - whether it can be imported is the question

        from ..support.environment import inspect_environment  # noqa: PLC0415
    except Exception as exc:  # a broken installation can raise anything
        yield "import", "broken", f"{type(exc).__name__}: {exc}"
    else:
        yield from inspect_environment(root)
