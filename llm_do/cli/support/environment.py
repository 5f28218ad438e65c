"""The state of this machine: sandbox, keys, model servers, models, terminal."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path
from typing import TypeAlias

from ...errors import LlmDoError, LocalModelError, ModelChoiceError
from ...machine.installation import install_extra, install_package, is_installed
from ...models import servers
from ...models.choice import KEY_OFFERS, choose_default_model, embedded_install_command, local_models_enabled
from ...models.local import LOCAL_PACKAGE
from ...models.local.catalogue import EMBEDDED, format_size
from ...models.local.files import ModelFile
from ...models.local.store import cached_models, models_folder
from ...models.resolve import custom_provider
from ...projects.config import read_config
from ...projects.layout import CONFIG
from ...sandbox.commands.bwrap import find_sandbox_problem

Row: TypeAlias = tuple[str, str, str]
"""A thing, its state (`ok`, `missing`, or `broken` if no command works without it), and details."""


def inspect_environment(root: Path | None) -> Iterator[Row]:
    problem = find_sandbox_problem()
    found = f"{shutil.which('bwrap')}: commands are sandboxed"
    yield "bubblewrap", "ok" if problem is None else "missing", problem or found
    yield from _keys()
    yield from _servers()
    yield from _local_models()
    yield from _default_model(root)
    yield from _database()
    yield from _terminal()


def _keys() -> Iterator[Row]:
    for offer in KEY_OFFERS:
        present = [name for name in offer.variables if os.environ.get(name, "").strip()]
        needs = "" if is_installed(offer.package) else f"needs {install_package(f'pydantic-ai-slim[{offer.extra}]')}"
        state = "ok" if present and not needs else "missing"
        empty = [name for name in offer.variables if name in os.environ and name not in present]
        detail = f"is set, for models such as {offer.model}" if present else "is empty" if empty else "is not set"
        name = present[0] if present else " or ".join(offer.variables)
        yield name, state, "; ".join(filter(None, (detail, needs)))


def _servers() -> Iterator[Row]:
    """Yield the model servers, and whether they are used if no model is named."""
    if not local_models_enabled():
        yield "model servers", "missing", "are not looked for: LLM_DO_NO_LOCAL is set"
        return
    needs = "" if is_installed("openai") else f"; needs {install_package('pydantic-ai-slim[openai]')}"
    for kind in servers.MODEL_SERVERS:
        try:
            server = kind.locate(os.environ)
        except ModelChoiceError as exc:
            yield kind.name, "missing", f"{exc}"
            continue
        named = f" ({server.named_by})" if server.named_by else ""
        if (offer := servers.find_offer(server, os.environ)) is None:
            yield server.name, "missing", f"nothing answers on {server.address}{named}"
            continue
        if server.named_by:
            use = server.describe_remote() or f"{server.named_by} names it, so it may be used"
        elif servers.has_agreed(offer):
            use = "you agreed to use it; to take that back: llm-do models forget"
        else:
            use = f"not used without your yes: `llm-do run` asks at a terminal, or set {offer.setting}"
        yield server.name, "missing" if needs else "ok", f"{offer.place} has {offer.model}; {use}{needs}"


def _local_models() -> Iterator[Row]:
    if not is_installed(LOCAL_PACKAGE):
        yield LOCAL_PACKAGE, "missing", f"for models that run here: {install_extra('local')}"
    elif (problem := _import_problem(LOCAL_PACKAGE)) is not None:
        yield LOCAL_PACKAGE, "missing", f"it is installed, and cannot be imported: {problem}"
    else:
        yield LOCAL_PACKAGE, "ok", version(LOCAL_PACKAGE)
    try:
        here, folder = cached_models(), models_folder()
    except LocalModelError as exc:  # the configured folder cannot be used
        yield "local models", "missing", f"{exc}"
        return
    names = ", ".join(f"{each.name} ({format_size(each.size)})" for each in here)
    detail = f"{names} in {folder}" if here else f"none in {folder}: llm-do models pull {EMBEDDED}"
    yield "local models", "ok" if here else "missing", detail


def _import_problem(package: str) -> str | None:
    """Return why a package cannot be imported. Another process tries it, since a broken library may end its process."""
    command = [sys.executable, "-P", "-c", f"import {package}"]
    tried = subprocess.run(command, capture_output=True, text=True, check=False)  # noqa: S603 - this interpreter
    if tried.returncode == 0:
        return None
    error = (tried.stderr.strip().splitlines() or [f"its process ended with {tried.returncode}"])[-1]
    return f"{error}; on Debian and Ubuntu: apt install libgomp1" if "libgomp" in error else error


def _default_model(root: Path | None) -> Iterator[Row]:
    """Yield the project, and the model for its workers that name none."""
    yield "project", "ok" if root else "missing", str(root) if root else "none here: `llm-do new` makes one"
    configured, providers = None, dict[str, str]()
    if root is not None:
        try:
            config = read_config(root / CONFIG)
            configured, providers = config.model, config.providers
        except LlmDoError as exc:
            yield CONFIG, "missing", " ".join(str(exc).split())
    try:
        choice = choose_default_model(None, configured)
    except (LocalModelError, ModelChoiceError):  # reported above
        choice = None
    if choice is None or choice.model is None:
        ways = "set one of the keys above, LLM_DO_MODEL, or `model` in llm-do.toml"
        yield "default model", "missing", f"{ways}; or with no key: {embedded_install_command()}"
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
    yield "default model", state, f"{name} ({choice.reason}){note}"


def _database() -> Iterator[Row]:
    try:
        import sqlite3  # noqa: PLC0415 - some Pythons are built without it

        with sqlite3.connect(":memory:") as database:
            database.execute("create table t (x)")
        database.close()
        yield "sqlite", "ok", sqlite3.sqlite_version
    except Exception as exc:  # it may be missing in many ways
        yield "sqlite", "missing", f"{type(exc).__name__}: {exc}"


def _terminal() -> Iterator[Row]:
    streams = {"stdin": sys.stdin, "stdout": sys.stdout, "stderr": sys.stderr}
    terminals = [name for name, stream in streams.items() if stream is not None and stream.isatty()]
    size, term = shutil.get_terminal_size(), os.environ.get("TERM", "")
    kind = f"TERM={term or '(not set)'}, {size.columns} x {size.lines}, {getattr(sys.stdout, 'encoding', '')}"
    if len(terminals) == 3 and term not in ("", "dumb"):
        colour = "no colour (NO_COLOR)" if os.environ.get("NO_COLOR") else "colour"
        yield "terminal", "ok", f"{kind}, {colour}"
    else:
        which = ", ".join(terminals) or "none of the three streams"
        yield "terminal", "missing", f"{kind}; a terminal: {which}"
