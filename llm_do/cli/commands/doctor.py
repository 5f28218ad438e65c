"""`llm-do doctor`: what this machine has, and what is missing."""

from __future__ import annotations

import json
import os
import platform
import shutil
import subprocess
import sys
from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path
from typing import NamedTuple

import click

from ...machine.installation import install_extra, install_package
from ...projects.discovery import find_root
from ..support.exits import Exit

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

    Keys are looked for by name, and their values are printed nowhere. Model servers are asked on this machine, and
    where OLLAMA_HOST, OLLAMA_BASE_URL or VLLM_BASE_URL says.
    The exit code is 1 when something is broken that llm-do cannot work without.
    """
    start = (ctx.find_root().obj or Path()).absolute()
    found = [
        *_packages(),
        *_sandbox(),
        *_keys(),
        *_servers(),
        *_local(),
        *_model(find_root(start)),
        *_database(),
        *_terminal(),
    ]
    broken = any(finding.state == "broken" for finding in found)
    if as_json:
        click.echo(json.dumps({"ok": not broken, "findings": [finding._asdict() for finding in found]}, indent=2))
    else:
        from ...privacy.display import visible  # noqa: PLC0415 - it imports pydantic

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
            yield Finding(name, "broken", f"it is not installed: {install_package(name)}")
    try:
        import llm_do.projects.registry  # noqa: F401, PLC0415 - whether it can be imported is the question
    except Exception as exc:  # whatever is wrong with an installation
        yield Finding("import", "broken", f"{type(exc).__name__}: {exc}")
    mcp = find_spec("fastmcp") is not None
    detail = "MCP servers can be used" if mcp else f"for MCP servers: {install_extra('mcp')}"
    yield Finding("MCP", "ok" if mcp else "missing", detail)


def _sandbox() -> Iterator[Finding]:
    from ...sandbox.commands.selection import select_runner  # noqa: PLC0415 - it imports pydantic

    problem = select_runner(sandboxed=True).unavailable_reason()
    where = shutil.which("bwrap")
    yield Finding("bubblewrap", "ok" if problem is None else "missing", problem or f"{where}: commands are sandboxed")


def _keys() -> Iterator[Finding]:
    from ...models.choice import KEY_OFFERS  # noqa: PLC0415 - it imports pydantic_ai

    for offer in KEY_OFFERS:
        present = [name for name in offer.variables if os.environ.get(name, "").strip()]
        needs = "" if _is_installed(offer.package) else f"needs {install_package(f'pydantic-ai-slim[{offer.extra}]')}"
        state = "ok" if present and not needs else "missing"
        empty = [name for name in offer.variables if name in os.environ and name not in present]
        detail = f"is set, for models such as {offer.model}" if present else "is empty" if empty else "is not set"
        yield Finding(
            present[0] if present else " or ".join(offer.variables), state, "; ".join(filter(None, (detail, needs)))
        )


def _is_installed(package: str) -> bool:
    try:
        return find_spec(package) is not None
    except (ImportError, ValueError):
        return False


def _servers() -> Iterator[Finding]:
    """Which model servers answer, and whether they are used without a model's name."""
    from ...errors import ModelChoiceError  # noqa: PLC0415
    from ...models.choice import local_models_enabled, setting_for  # noqa: PLC0415
    from ...models.consent import has_agreed  # noqa: PLC0415
    from ...models.servers import MODEL_SERVERS, find_offer  # noqa: PLC0415

    if not local_models_enabled():
        yield Finding("model servers", "missing", "are not looked for: LLM_DO_NO_LOCAL is set")
        return
    needs = "" if _is_installed("openai") else f"; needs {install_package('pydantic-ai-slim[openai]')}"
    for kind in MODEL_SERVERS:
        try:
            server = kind.locate(os.environ)
        except ModelChoiceError as exc:
            yield Finding(kind.name, "missing", f"{exc}")
            continue
        named = f" ({server.named_by})" if server.named_by else ""
        if (offer := find_offer(server, os.environ)) is None:
            yield Finding(server.name, "missing", f"nothing answers on {server.address}{named}")
            continue
        if server.named_by:
            use = server.describe_remote() or f"{server.named_by} names it, so it may be used"
        elif has_agreed(offer):
            use = "you agreed to use it; to take that back: llm-do models forget"
        else:
            use = f"not used without your yes: `llm-do run` asks at a terminal, or set {setting_for(offer)}"
        yield Finding(server.name, "missing" if needs else "ok", f"{offer.place} has {offer.model}; {use}{needs}")


def _local() -> Iterator[Finding]:
    """Whether models can run here, and which are here."""
    from ...errors import LocalModelError  # noqa: PLC0415
    from ...models.choice import LOCAL_PACKAGE  # noqa: PLC0415
    from ...models.local.catalogue import EMBEDDED, format_size  # noqa: PLC0415
    from ...models.local.store import cached_models, models_folder  # noqa: PLC0415

    if find_spec(LOCAL_PACKAGE) is None:
        yield Finding(LOCAL_PACKAGE, "missing", f"for models that run here: {install_extra('local')}")
    elif (problem := _import_problem(LOCAL_PACKAGE)) is not None:
        yield Finding(LOCAL_PACKAGE, "missing", f"it is installed, and cannot be imported: {problem}")
    else:
        yield Finding(LOCAL_PACKAGE, "ok", version(LOCAL_PACKAGE))
    try:
        here, folder = cached_models(), models_folder()
    except LocalModelError as exc:  # the folder that somebody named is none
        yield Finding("local models", "missing", f"{exc}")
        return
    listed = ", ".join(f"{each.name} ({format_size(each.size)})" for each in here)
    detail = f"{listed} in {folder}" if here else f"none in {folder}: llm-do models pull {EMBEDDED}"
    yield Finding("local models", "ok" if here else "missing", detail)


def _import_problem(package: str) -> str | None:
    """Why a package cannot be imported. It is tried in another process: a library may end the one that loads it."""
    command = [sys.executable, "-P", "-c", f"import {package}"]
    tried = subprocess.run(command, capture_output=True, text=True, check=False)  # noqa: S603 - this interpreter
    if tried.returncode == 0:
        return None
    said = (tried.stderr.strip().splitlines() or [f"its process ended with {tried.returncode}"])[-1]
    return f"{said}; on Debian and Ubuntu: apt install libgomp1" if "libgomp" in said else said


def _model(root: Path | None) -> Iterator[Finding]:
    """Which model a worker that names none would have, and why."""
    from ...errors import LlmDoError, LocalModelError, ModelChoiceError  # noqa: PLC0415
    from ...models import choose_default_model, custom_provider  # noqa: PLC0415
    from ...models.choice import embedded_install_command  # noqa: PLC0415
    from ...models.local.files import ModelFile  # noqa: PLC0415
    from ...projects.config import read_config  # noqa: PLC0415
    from ...projects.layout import CONFIG  # noqa: PLC0415

    yield Finding("project", "ok" if root else "missing", str(root) if root else "none here: `llm-do new` makes one")
    configured, providers = None, dict[str, str]()
    if root is not None:
        try:
            config = read_config(root / CONFIG)
            configured, providers = config.model, config.providers
        except LlmDoError as exc:
            yield Finding(CONFIG, "missing", " ".join(str(exc).split()))
    try:
        choice = choose_default_model(None, configured)
    except (LocalModelError, ModelChoiceError):  # it is told above
        choice = None
    if choice is None or choice.model is None:
        ways = "set one of the keys above, LLM_DO_MODEL, or `model` in llm-do.toml"
        yield Finding("default model", "missing", f"{ways}; or with no key: {embedded_install_command()}")
        return
    name = choice.model if isinstance(choice.model, str) else choice.model.model_name
    kind, _, local = name.partition(":")
    state, note = "ok", ""
    if kind == "local" and isinstance(choice.model, str):
        try:
            note = "" if ModelFile.from_name(local).is_here else "; its weights are fetched when it is first used"
        except LocalModelError as exc:
            state, note = "missing", f": {exc}"
    elif (prefix := custom_provider(name, providers)) is not None:
        note = f"; {providers[prefix]} makes it, as {CONFIG} says"
    yield Finding("default model", state, f"{name} ({choice.reason}){note}")


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
