"""A project's own code and configuration: `tools.py`, references such as `schemas.py:Deck`, `llm-do.toml`."""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import sys
import threading
import tomllib
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from functools import reduce
from pathlib import Path
from types import ModuleType
from typing import Any

from pydantic import BaseModel, ConfigDict, ValidationError

from .definition import WorkerLimits
from .entries import ToolEntry
from .errors import ProjectCodeError, WorkerFileError, summarize
from .protocols import Entry, EntryBase
from .rules import ToolRules
from .sandbox import SandboxConfig
from .usage import Limits

CONFIG = "llm-do.toml"
_IMPORTING = threading.RLock()


class ProjectConfig(BaseModel):
    """What `llm-do.toml` says."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    model: str | None = None
    """The model of workers that have none of their own."""
    limits: WorkerLimits | None = None
    tool_rules: ToolRules = {}
    sandbox: SandboxConfig | None = None
    """The files of workers that have no `sandbox` of their own."""

    def session_limits(self) -> Limits:
        """The limits of a session of this project."""
        given = {} if self.limits is None else self.limits.model_dump(exclude_none=True)
        return Limits(**given)


def read_config(path: Path) -> ProjectConfig:
    """The configuration of a project; without a file, an empty one."""
    try:
        return ProjectConfig.model_validate(tomllib.loads(path.read_text(encoding="utf-8")))
    except FileNotFoundError:
        return ProjectConfig()
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as exc:
        raise WorkerFileError(f"{path.name}: {exc}") from exc
    except ValidationError as exc:
        raise WorkerFileError(f"{path.name}: {summarize(exc)}") from exc


def import_file(path: Path, root: Path) -> ModuleType:
    """Run a file of the project, which may import its neighbours. It is run anew at each call of this function."""
    name = f"_llm_do_project_{abs(hash(path.resolve())):x}_{path.stem}"
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise ProjectCodeError(f"{path.name} is not a Python file.")
    module = importlib.util.module_from_spec(spec)
    with _search_path(path.parent, root):
        sys.modules[name] = module  # where pydantic looks for the names in annotations
        try:
            spec.loader.exec_module(module)
        except Exception as exc:
            del sys.modules[name]
            raise _import_error(path.name, exc) from exc
    return module


def load_object(reference: str, root: Path) -> Any:
    """What `module:Name` or `file.py:Name` refers to."""
    where, _, name = reference.partition(":")
    if where.endswith(".py"):
        if not (root / where).is_file():
            raise ProjectCodeError(f"{reference!r}: the project has no file {where!r}.")
        module = import_file(root / where, root)
    else:
        with _search_path(root):
            try:
                module = importlib.import_module(where)
            except Exception as exc:
                raise _import_error(where, exc) from exc
    try:
        return reduce(getattr, name.split("."), module)
    except AttributeError:
        raise ProjectCodeError(f"{reference!r}: {where} has no {name!r}.") from None


def entries_in(module: ModuleType) -> list[Entry[Any]]:
    """The entries that a module of the project defines: what `@entry` made, and workers."""
    found = {id(value): value for value in vars(module).values() if isinstance(value, EntryBase)}
    return list(found.values())  # type: ignore[arg-type]


def functions_in(module: ModuleType) -> list[Entry[Any]]:
    """The same, and the public functions that it defines itself: the tools of one worker need no decorator."""
    plain = [
        ToolEntry.from_function(value)
        for name, value in vars(module).items()
        if inspect.isfunction(value) and not name.startswith("_") and value.__module__ == module.__name__
    ]
    return [*entries_in(module), *plain]


@contextmanager
def _search_path(*folders: Path) -> Iterator[None]:
    """Let the project's files import each other, and nobody else by accident."""
    with _IMPORTING:
        added = [str(folder) for folder in folders]
        sys.path[:0] = added
        try:
            yield
        finally:
            for folder in added:
                sys.path.remove(folder)


def _import_error(what: str, exc: Exception) -> ProjectCodeError:
    frames = [frame for frame in traceback.extract_tb(exc.__traceback__) if "importlib" not in frame.filename]
    where = f", line {frames[-1].lineno} of {Path(frames[-1].filename).name}" if frames else ""
    return ProjectCodeError(f"{what} cannot be imported{where}: {traceback.format_exception_only(exc)[-1].strip()}")
