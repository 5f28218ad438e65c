"""`llm-do doctor`: what this machine has, and what is missing."""

from __future__ import annotations

import json
import os
import platform
import shutil
import sys
from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path
from typing import NamedTuple

import click

from .exits import Exit
from .light import find_root

_PACKAGES = ("llm-do", "pydantic-ai-slim", "pydantic", "click", "rich", "textual", "pyyaml")


class Finding(NamedTuple):
    """One thing that was looked at."""

    what: str
    state: str
    """`ok`; `missing`, which some things cannot be done without; or `broken`, which nothing works without."""
    detail: str


@click.command("doctor")
@click.option("--json", "as_json", is_flag=True, help="Print a JSON object.")
@click.pass_context
def doctor_command(ctx: click.Context, /, as_json: bool) -> None:
    """Look at this machine: programs, keys, models.

    Keys are looked for by name, and their values are printed nowhere. Model servers are asked on this machine only.
    The exit code is 1 when something is broken that llm-do cannot work without.
    """
    start = (ctx.find_root().obj or Path()).absolute()
    found = [*_packages(), *_sandbox(), *_keys(), *_servers(), *_model(find_root(start)), *_database(), *_terminal()]
    broken = any(finding.state == "broken" for finding in found)
    if as_json:
        click.echo(json.dumps({"ok": not broken, "findings": [finding._asdict() for finding in found]}, indent=2))
    else:
        from ..display import visible  # noqa: PLC0415 - it imports pydantic

        width = max(len(finding.what) for finding in found)
        for finding in found:  # names of models come from files and servers
            click.echo(visible(f"{finding.state:<8} {finding.what:<{width}}  {finding.detail}".rstrip()))
    if broken:
        ctx.exit(Exit.FAILED)


def _packages() -> Iterator[Finding]:
    fits = sys.version_info >= (3, 11)
    yield Finding("python", "ok" if fits else "broken", f"{platform.python_version()} ({sys.executable})")
    for name in _PACKAGES:
        try:
            yield Finding(name, "ok", version(name))
        except PackageNotFoundError:
            yield Finding(name, "broken", f"it is not installed: pip install {name}")
    try:
        import llm_do.registry  # noqa: F401, PLC0415 - whether it can be imported is the question
    except Exception as exc:  # whatever is wrong with an installation
        yield Finding("import", "broken", f"{type(exc).__name__}: {exc}")
    mcp = find_spec("fastmcp") is not None
    yield Finding("MCP", "ok" if mcp else "missing", "" if mcp else "for MCP servers: pip install 'llm-do[mcp]'")


def _sandbox() -> Iterator[Finding]:
    from ..sandbox.bubble import why_not  # noqa: PLC0415 - it imports pydantic

    problem = why_not()
    where = shutil.which("bwrap")
    yield Finding("bubblewrap", "ok" if problem is None else "missing", problem or f"{where}: commands are sandboxed")


def _keys() -> Iterator[Finding]:
    from ..models.choice import KEY_OFFERS  # noqa: PLC0415 - it imports pydantic_ai

    for offer in KEY_OFFERS:
        present = [name for name in offer.variables if os.environ.get(name, "").strip()]
        needs = "" if _is_installed(offer.package) else f"needs pip install 'pydantic-ai-slim[{offer.extra}]'"
        state = "ok" if present and not needs else "missing"
        detail = f"is set, for models such as {offer.model}" if present else "is not set"
        yield Finding(
            present[0] if present else " or ".join(offer.variables), state, "; ".join(filter(None, (detail, needs)))
        )


def _is_installed(package: str) -> bool:
    try:
        return find_spec(package) is not None
    except (ImportError, ValueError):
        return False


def _servers() -> Iterator[Finding]:
    from ..models.choice import LOCAL_SERVERS, _first_model, _get_json  # noqa: PLC0415

    if os.environ.get("LLM_DO_NO_LOCAL", "").strip() not in ("", "0"):
        yield Finding("model servers", "missing", "are not looked for: LLM_DO_NO_LOCAL is set")
        return
    for server in LOCAL_SERVERS:
        model = _first_model(server, _get_json(server))
        detail = f"{server.address} has {model}" if model else f"nothing answers on {server.address}"
        yield Finding(server.name, "ok" if model else "missing", detail)


def _model(root: Path | None) -> Iterator[Finding]:
    """Which model a worker that names none would have, and why."""
    from ..errors import LlmDoError  # noqa: PLC0415
    from ..models import choose_default_model  # noqa: PLC0415
    from ..project import CONFIG, read_config  # noqa: PLC0415

    yield Finding("project", "ok" if root else "missing", str(root) if root else "none here: `llm-do new` makes one")
    configured = None
    if root is not None:
        try:
            configured = read_config(root / CONFIG).model
        except LlmDoError as exc:
            yield Finding(CONFIG, "missing", " ".join(str(exc).split()))
    choice = choose_default_model(None, configured)
    if choice is None:
        yield Finding("default model", "missing", "set one of the keys above, LLM_DO_MODEL, or `model` in llm-do.toml")
        return
    name = choice.model if isinstance(choice.model, str) else choice.model.model_name
    yield Finding("default model", "ok", f"{name} ({choice.reason})")


def _database() -> Iterator[Finding]:
    try:
        import sqlite3  # noqa: PLC0415 - some Pythons are built without it

        with sqlite3.connect(":memory:") as database:
            database.execute("create table t (x)")
        database.close()
        yield Finding("sqlite", "ok", sqlite3.sqlite_version)
    except Exception as exc:  # it may be missing in many ways
        yield Finding("sqlite", "missing", f"{type(exc).__name__}: {exc}")


def _terminal() -> Iterator[Finding]:
    streams = {"stdin": sys.stdin, "stdout": sys.stdout, "stderr": sys.stderr}
    seen = [name for name, stream in streams.items() if stream is not None and stream.isatty()]
    size, term = shutil.get_terminal_size(), os.environ.get("TERM", "")
    kind = f"TERM={term or '(not set)'}, {size.columns} x {size.lines}, {getattr(sys.stdout, 'encoding', '')}"
    colour = "no colour (NO_COLOR)" if os.environ.get("NO_COLOR") else "colour"
    able = len(seen) == 3 and term not in ("", "dumb")
    state = "ok" if able else "missing"
    detail = f"{kind}, {colour}" if able else f"{kind}; a terminal: {', '.join(seen) or 'none of the three streams'}"
    yield Finding("terminal", state, detail)
