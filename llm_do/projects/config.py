"""The configuration of a project: `llm-do.toml`."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Annotated

from pydantic import AfterValidator, BaseModel, ConfigDict, ValidationError

from ..budgets.limits import Limits
from ..budgets.prices import Price, check_priced_name
from ..definitions.definition import WorkerLimits
from ..errors import WorkerFileError, did_you_mean, summarize
from ..machine.files import read_file
from ..models.resolve import invalid_provider_reason
from ..policy.rules import ToolRule, ToolRules
from ..privacy.display import visible
from ..sandbox import SandboxConfig

_MAX_BYTES = 100_000
_MAX_PARTS = 50  # dots in one line, not counting those in quotes
_PLACE = re.compile(r" \(at line (\d+), column (\d+)\)$")
_QUOTED = re.compile(r'"[^"]*"|' r"'[^']*'")


class ProjectConfig(BaseModel):
    """The settings of `llm-do.toml`."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    model: str | None = None
    """The model of workers that have none of their own."""
    limits: WorkerLimits | None = None
    tool_rules: ToolRules = {}
    sandbox: SandboxConfig | None = None
    """The files of workers that have no `sandbox` of their own."""
    prices: dict[Annotated[str, AfterValidator(check_priced_name)], Price] = {}
    """Prices of models, by name, in US dollars."""
    providers: dict[str, str] = {}
    """Providers of the project's own, by the prefix of their models: `module:factory`."""
    secrets: tuple[str, ...] = ()
    """Names of environment variables with secrets: their values are not recorded, and no tool sends them to a model."""

    def session_limits(self) -> Limits:
        """Return the limits of a session of this project."""
        return Limits(**({} if self.limits is None else self.limits.model_dump(exclude_none=True)))


def read_config(path: Path) -> ProjectConfig:
    """Return the configuration of a project; without a file, an empty one."""
    try:
        text = read_file(path, _MAX_BYTES).decode()
        _check_keys(text, path.name)
        config = ProjectConfig.model_validate(tomllib.loads(text))
        _check_providers(config.providers, text, path.name)
        return config.model_copy(update={"tool_rules": _with_lines(config.tool_rules, text, path.name)})
    except FileNotFoundError:
        return ProjectConfig()
    except WorkerFileError:  # it names the file and the line
        raise
    except OSError as exc:  # it may have rules, so nothing starts without it
        raise WorkerFileError(f"{path.name} cannot be read: {exc.strerror or exc}.") from exc
    except ValidationError as exc:
        unknown = [str(error["loc"][0]) for error in exc.errors() if error["type"] == "extra_forbidden"]
        hint = did_you_mean(unknown[0], ProjectConfig.model_fields) if unknown else ""
        if any(error["loc"][:1] == ("prices",) and error["loc"][-1] != "[key]" for error in exc.errors()):
            hint = " A price has input and output, for a million tokens, and request, for each one."
        raise WorkerFileError(f"{path.name}: {summarize(exc)}.{hint}") from exc
    except RecursionError as exc:
        raise WorkerFileError(f"{path.name}: values are nested too deeply. Use fewer levels.") from exc
    except tomllib.TOMLDecodeError as exc:
        raise WorkerFileError(_syntax_error(path.name, text, str(exc))) from exc
    except ValueError as exc:  # no UTF-8, or a number that is too long
        raise WorkerFileError(f"{path.name}: {exc}") from exc


def _syntax_error(file: str, text: str, problem: str) -> str:
    """Return an error of the TOML parser with the line and a mark below the place."""
    lines = text.split("\n")
    if place := _PLACE.search(problem):
        line, column = int(place[1]), int(place[2])
    else:  # at the end of the document
        line = max(1, len(lines) - text.endswith("\n"))
        column = len(lines[line - 1].rstrip("\r")) + 1
    start = max(0, column - 60)
    shown = lines[line - 1].rstrip("\r")[start : start + 80].replace("\t", " ")
    what = _PLACE.sub("", problem).removesuffix(" (at end of document)")
    return f"{file}:{line}: {what} (column {column}):\n  {visible(shown)}\n  {' ' * (column - 1 - start)}^"


def _check_keys(text: str, file: str) -> None:
    """Refuse keys of thousands of parts: the time that Python's TOML parser takes grows with their square."""
    for number, line in enumerate(text.splitlines(), 1):
        if line.count(".") > _MAX_PARTS and _QUOTED.sub("", line).count(".") > _MAX_PARTS:
            raise WorkerFileError(f"{file}:{number}: a key of more than {_MAX_PARTS} parts is too long. Shorten it.")


def _check_providers(providers: Mapping[str, str], text: str, file: str) -> None:
    """Refuse prefixes that already have a meaning. Nothing is imported."""
    problems = []
    for prefix, reference in providers.items():
        if (why := invalid_provider_reason(prefix, reference)) is not None:
            key = re.compile(rf"""(^|[\s.{{,])["']?{re.escape(prefix)}["']?\s*=""")
            problems.append(f"{file}:{_lines_of(key, text)[-1]}: {why}")
    if problems:
        raise WorkerFileError("\n".join(problems))


def _with_lines(rules: Mapping[str, tuple[ToolRule, ...]], text: str, file: str) -> dict[str, tuple[ToolRule, ...]]:
    """Return rules with their file and line: that of the key, or of each table."""
    placed = {}
    for name, listed in rules.items():
        key = re.compile(rf"""^\s*(\[+\s*)?(["']?tool_rules["']?\s*\.\s*)?["']?{re.escape(name)}["']?\s*[\]=]""")
        lines = _lines_of(key, text)
        placed[name] = tuple(
            replace(rule, where=f"{file}:{lines[min(at, len(lines) - 1)]}") for at, rule in enumerate(listed)
        )
    return placed


def _lines_of(key: re.Pattern[str], text: str) -> list[int]:
    return [number for number, line in enumerate(text.splitlines(), 1) if key.search(line)] or [1]
