"""What can be found wrong with a project: in its files one by one, in what they name, and in the calls they allow."""

from __future__ import annotations

import re
import shutil
import traceback
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from difflib import get_close_matches
from functools import partial
from importlib.util import find_spec
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

from pydantic import BaseModel, ValidationError
from pydantic_ai.models import Model
from pydantic_ai.settings import ModelSettings

from ...core.entries import WorkerEntry
from ...core.names import no_such_tool
from ...definitions.definition import McpToolset, WorkerDefinition, WorkerLimits, native_tool, places_of
from ...errors import LlmDoError, ProjectCodeError, did_you_mean
from ...machine.files import read_file
from ...machine.installation import install_extra
from ...models import choose_default_model, own_provider
from ...models.compatibility import find_misfit, name_fits
from ...models.own import load_factory
from ...policy.rules import RuleBook, check_rules
from ...projects.code import ProjectConfig
from ...projects.discovery import worker_files
from ...projects.layout import CONFIG, tools_file
from ...projects.registry import ProjectTools, WorkerRegistry
from ...sandbox import RootConfig
from ...sandbox.commands.bwrap import why_not
from ...values.names import AMONG_FILES, is_name
from .call_graph import circles, mentioned, way_round
from .providers import ModelProblem, look_at_model

MAX_DEPTH = 16
"""The depth at which a runtime ends a recursion, unless it is told otherwise."""

_PLACED = re.compile(r"(?P<file>[^\s:][^:\n]*?):(?P<line>\d+): (?P<message>.*)", re.DOTALL)
_IN_FILE = re.compile(r"(?P<file>[^\s:]+\.(?:toml|md|ya?ml|py)): (?P<message>.*)", re.DOTALL)
_IMPORT = re.compile(r"(?:, )?line (?P<line>\d+) of (?P<file>[^:]+\.py)(?=: )")
_MOST_MISSING = 100
_TOML = re.compile(r"\(at line (?P<line>\d+), column \d+\)")
_PARTS: Mapping[str, type[BaseModel]] = {"limits": WorkerLimits}


class Problem(NamedTuple):
    """Something to say about a project."""

    level: str
    """`error`, `warning` or `note`."""
    code: str
    message: str
    file: str | None = None
    line: int | None = None
    names: tuple[str, ...] = ()
    """The workers, functions or models that it is about."""


@dataclass
class Findings:
    """All that there is to say, the worst first."""

    workers: int = 0
    functions: int = 0
    problems: list[Problem] = field(default_factory=list)


def find_problems(registry: WorkerRegistry, *, strict: bool = False) -> Findings:
    """Everything that can be found without running anything. With `strict`, warnings are errors."""
    checker = _Checker(registry)
    found = list(dict.fromkeys(checker.problems()))
    if strict:
        found = [problem._replace(level="error") if problem.level == "warning" else problem for problem in found]
    levels = ("error", "warning", "note")
    found.sort(key=lambda problem: (levels.index(problem.level), problem.file or "", problem.line or 0))
    return Findings(len(registry.workers()), len(checker.functions), found)


class _Checker:
    def __init__(self, registry: WorkerRegistry) -> None:
        self._registry = registry
        self._names = registry.workers()
        self.functions: dict[str, Any] = {}
        self._definitions: dict[str, WorkerDefinition] = {}
        self._own: dict[str, set[str]] = {}

    def problems(self) -> Iterator[Problem]:
        yield from self._strays()
        config = list(self._try("config", lambda: self._registry.config, CONFIG))
        tools = tools_file(self._registry.root)
        functions = list(self._try("code", self._read_functions, None if tools is None else self._shown(tools)))
        yield from (*config, *functions)
        all_files = worker_files(self._registry.root)
        for name in self._names:
            files = all_files.get(name)
            yield from self._try("file", lambda name=name: self._read(name), self._shown(files[0]) if files else None)
        if config or functions:
            left = [problem.file for problem in (*config, *functions) if problem.file]
            because = f"since {' and '.join(dict.fromkeys(left)) or 'the project'} cannot be used"
            yield Problem("note", "not-built", f"No worker was built, {because}.")
            for name in () if functions else [name for name in self._definitions if not self._is_generated(name)]:
                yield from self._missing(self._definitions[name], self._where(name))
        else:
            for name in self._definitions:
                yield from self._worker(name)
            if len(self._own) == len(self._definitions):
                yield from self._try("rules", self._registry.rule_book, CONFIG)
            elif self._registry.config.tool_rules:
                message = "its rules were not compared with tools, since not all tools can be imported."
                yield Problem("note", "not-checked", message, CONFIG)
            yield from self._providers()
            yield from self._models()
        yield from self._cycles()
        yield from self._unused()

    # -- one by one ----------------------------------------------------------------------------------

    def _try(self, code: str, work: Any, file: str | None = None) -> Iterator[Problem]:
        """Do something, and yield what is wrong instead of raising it."""
        try:
            work()
        except Exception as exc:  # code of the project may raise anything
            yield from _explained(exc, code, file, self._registry.root)

    def _read_functions(self) -> None:
        registry = self._registry
        workers = set(self._names)
        self.functions = {name: registry[name] for name in registry if name not in workers}

    def _read(self, name: str) -> None:
        self._definitions[name] = self._registry.definition(name)

    def _shown(self, path: Path) -> str:
        return str(path.relative_to(self._registry.root))

    def _where(self, name: str) -> str:
        file = self._registry.file_of(name)
        assert file is not None
        return self._shown(file.path)

    def _is_generated(self, name: str) -> bool:
        file = self._registry.file_of(name)
        return file is not None and file.generated

    def _worker(self, name: str) -> Iterator[Problem]:
        """What one worker names and is made of: all that is missing, and only then what the registry says first."""
        registry, definition = self._registry, self._definitions[name]
        file = registry.file_of(name)
        assert file is not None
        where = self._shown(file.path)
        if file.generated:  # what it names is not believed, and nothing of it is imported before it is cut
            self._own[name] = set()
            yield from self._build(name, where)
            return
        code = self._shown(file.own_tools) if file.own_tools is not None else where
        found = list(self._try("code", lambda: self._read_own(name), code))
        found += self._missing(definition, where)
        for reference in _references(definition):
            found += [
                _at_reference(problem, where, file.path, reference)
                for problem in self._try("reference", lambda ref=reference: registry._code.object(ref), where)
            ]
        yield from found
        yield from self._settings(definition, file.path)
        if found:
            # It cannot be built, but its rules can be looked at.
            yield from self._try("rules", lambda: self._check_rules(definition), where)
        else:
            yield from self._build(name, where)

    def _settings(self, definition: WorkerDefinition, path: Path) -> Iterator[Problem]:
        """Yield settings of the model that are nearly one that every model knows: no provider would tell."""
        for name in (definition.model_settings or {}).keys() - ModelSettings.__annotations__.keys():
            if close := get_close_matches(name, ModelSettings.__annotations__, n=1, cutoff=0.8):
                message = f"model_settings has {name!r}, which no model knows. Did you mean {close[0]!r}?"
                yield Problem(
                    "warning", "settings", message, self._shown(path), _line_of(path, name), (definition.name,)
                )

    def _build(self, name: str, where: str) -> Iterator[Problem]:
        entry: list[Any] = []
        yield from self._try("worker", lambda: entry.append(self._registry[name]), where)
        if entry and isinstance(entry[0], WorkerEntry):
            if entry[0].definition is not None:
                self._definitions[name] = entry[0].definition  # what it has, which is perhaps less than its file says
            yield from self._around(entry[0], where)

    def _check_rules(self, definition: WorkerDefinition) -> None:
        registry = self._registry
        sandbox = definition.sandbox or registry.config.sandbox
        own = registry.own_tools(definition.name)
        book = RuleBook(f"worker {definition.name!r}", definition.tool_rules, places_of(sandbox, registry.root))
        check_rules(book, ProjectTools(registry, definition, own))

    def _read_own(self, name: str) -> None:
        self._own[name] = {tool.name for tool in self._registry.own_tools(name)}

    def _missing(self, definition: WorkerDefinition, where: str) -> Iterator[Problem]:
        registry = self._registry
        path, workers = registry.root / where, self._names
        known = {*workers, *self.functions, *self._own.get(definition.name, ())}
        # Of a file with thousands of them, the first ones say what is wrong.
        for tool in islice((tool for tool in dict.fromkeys(definition.tools) if tool not in known), _MOST_MISSING):
            message = no_such_tool(tool, known)
            yield Problem("error", "no-tool", message, where, _line_of(path, tool, "tools"), (tool,))
        there = {"*", *workers}
        for worker in islice(
            (each for each in dict.fromkeys(definition.allow_workers) if each not in there), _MOST_MISSING
        ):
            message = f"there is no worker {worker!r}.{did_you_mean(worker, workers)}"
            yield Problem("error", "no-worker", message, where, _line_of(path, worker, "allow_workers"), (worker,))

    def _around(self, entry: WorkerEntry[Any], where: str) -> Iterator[Problem]:
        """What a worker needs of this machine: folders, programs, the kernel."""
        path, definition = self._registry.root / where, entry.definition
        for name, root in (entry.sandbox.paths if entry.sandbox is not None else {}).items():
            if not (folder := root.folder(entry.base.absolute())).is_dir():
                message = f"the folder of the root {name!r} does not exist: {folder}"
                yield Problem("note", "no-folder", message, where, _line_of(path, root.root, "sandbox"), (entry.name,))
        if definition is None:
            return
        if "shell" in definition.toolsets and (problem := why_not()):
            yield Problem("warning", "no-sandbox", problem, where, _line_of(path, "shell", "toolsets"), (entry.name,))
        for toolset in definition.toolsets:
            if isinstance(toolset, McpToolset) and (why := _unreachable(toolset)):
                yield Problem("warning", "mcp", why, where, _line_of(path, "mcp", "toolsets"), (entry.name,))

    # -- files that are nothing ----------------------------------------------------------------------

    def _strays(self) -> Iterator[Problem]:
        """Files that look like workers and are none: nobody would ever say so."""
        root = self._registry.root
        folder = root / "workers"
        if not folder.is_dir():
            return
        how = "llm-do looks for workers/NAME.md, workers/NAME.yaml, and workers/NAME/worker.md or worker.yaml"
        for path in sorted(folder.iterdir()):
            shown = str(path.relative_to(root))
            if path.suffix in (".md", ".yaml", ".yml") and path.is_file():
                yield from _stray(path, shown)
            elif path.is_dir() and path.name not in ("generated", "__pycache__"):
                inside = [child.name for child in path.iterdir()]
                if not {"worker.md", "worker.yaml"} & set(inside):
                    if any(name.endswith((".md", ".yaml", ".yml")) or name == "tools.py" for name in inside):
                        yield Problem("warning", "no-worker-file", f"there is no worker in this folder: {how}.", shown)
                elif not is_name(path.name):
                    yield Problem("error", "name", _bad_name(path.name), shown)
        for path in sorted((folder / "generated").glob("*")):
            if path.suffix in (".md", ".yml"):
                shown = str(path.relative_to(root))
                yield Problem("warning", "no-worker-file", "a generated worker is a .yaml file, not this.", shown)

    # -- all together --------------------------------------------------------------------------------

    def _providers(self) -> Iterator[Problem]:
        """Providers of the project's own whose factory is not there. None is called: only a name could tell more."""
        path = self._registry.root / CONFIG
        for prefix, reference in self._registry.providers().items():
            load = partial(load_factory, prefix, reference, self._registry.load)
            for problem in self._try("provider", load, CONFIG):
                if problem.file == CONFIG:
                    said = problem.message.removeprefix(f"{CONFIG}, ")
                    problem = problem._replace(message=said, line=_line_of(path, prefix, "[providers"))
                yield problem

    def _models(self) -> Iterator[Problem]:
        """Models that cannot be used, each once, and workers that have none."""
        config = self._registry.config
        named: dict[str, list[str]] = {}
        for name, definition in self._definitions.items():
            if definition.model is not None:
                named.setdefault(definition.model, []).append(name)
        if config.model is not None:
            named.setdefault(config.model, [])
        for model, workers in named.items():
            if own_provider(model, config.providers) is None:
                yield from self._model(model, workers)
        without = [name for name, definition in self._definitions.items() if definition.model is None]
        if config.model is not None and own_provider(config.model, config.providers) is None:
            yield from self._misfits(config.model, look_at_model(config.model), without)
        if without and choose_default_model(None, config.model, servers=()).model is None:
            message = f"no model is set for {_listed(without)}: write `model` in {CONFIG}, or see `llm-do doctor`."
            yield Problem("note", "no-model", message, names=tuple(without))

    def _model(self, model: str, workers: list[str]) -> Iterator[Problem]:
        file = self._registry.file_of(workers[0]) if workers else None
        path = file.path if file is not None else self._registry.root / CONFIG
        where = self._shown(path)
        line, looked = _line_of(path, model, "model"), look_at_model(model)
        if isinstance(looked, ModelProblem):
            level = "error" if looked.hopeless else "warning"
            users = f" ({_listed(workers)})" if len(workers) > 1 else ""
            yield Problem(level, "model", f"model {model!r}{users}: {looked.message}", where, line, (model,))
        yield from self._misfits(model, looked, workers)
        if isinstance(looked, ModelProblem) or (known := looked.profile.get("supported_native_tools")) is None:
            return
        for worker in workers:
            for tool in map(native_tool, self._definitions[worker].native):
                if type(tool) not in known:
                    message = f"worker {worker!r}: the model {model!r} does not run {tool.kind} for anybody."
                    yield Problem("warning", "native", message, where, line, (worker,))

    def _misfits(self, model: str, looked: ModelProblem | Model, workers: list[str]) -> Iterator[Problem]:
        """Yield workers whose model is none that they can use. Of one that cannot be had, the name is compared."""
        for worker in workers:
            wanted, file = self._definitions[worker].compatible_models, self._registry.file_of(worker)
            assert file is not None
            if isinstance(looked, ModelProblem):
                level, fits = "warning", name_fits(model, wanted)
            else:
                level, fits = "error", find_misfit(looked, wanted, model) is None
            if not fits:
                its = f"its model {model!r}" if self._definitions[worker].model else f"the model {model!r} of {CONFIG}"
                message = f"worker {worker!r}: {its} is none of its compatible_models: {', '.join(wanted)}."
                line = _line_of(file.path, "compatible_models")
                yield Problem(level, "compatible-models", message, self._shown(file.path), line, (worker,))

    def _edges(self) -> dict[str, list[str]]:
        """Which worker can call which, as their files say."""
        workers = set(self._names)
        return {
            name: sorted(workers & {*definition.tools, *definition.allow_workers})
            if "*" not in definition.allow_workers
            else self._names
            for name, definition in self._definitions.items()
        }

    def _cycles(self) -> Iterator[Problem]:
        registry, edges = self._registry, self._edges()
        for group in circles(edges):
            way = way_round(group, edges)
            who = f"{' > '.join(way)}: they can call each other" if len(group) > 1 else f"{group[0]} can call itself"
            message = (
                f"{who} without end. It is fine as long as max_depth ({MAX_DEPTH} unless it is set) and the limits "
                "end it in time."
            )
            where = self._where(group[0])
            path = registry.root / where
            line = _line_of(path, way[1], "tools") or _line_of(path, "allow_workers")
            yield Problem("warning", "cycle", message, where, line, tuple(group))

    def _unused(self) -> Iterator[Problem]:
        """What no worker and no code of the project names. It can still be run by name."""
        by_code = mentioned(self._registry.root)
        called = {callee for name, callees in self._edges().items() for callee in callees if callee != name}
        alone = [name for name in self._definitions if name not in called | by_code]
        if alone and len(self._definitions) > len(alone):  # some call others, so those that nobody calls stand out
            yield Problem("note", "unreached", f"nobody calls {_listed(alone)}: run by name only.", names=tuple(alone))
        tools = {tool for definition in self._definitions.values() for tool in definition.tools}
        idle = [name for name in self.functions if name not in tools | by_code]
        if idle:
            tools_at = tools_file(self._registry.root)
            where = None if tools_at is None else str(tools_at.relative_to(self._registry.root))
            yield Problem(
                "note", "unused", f"no worker has {_listed(idle)}: run by name only.", where, names=tuple(idle)
            )


# -- messages ----------------------------------------------------------------------------------------


def _explained(exc: Exception, code: str, file: str | None, root: Path) -> Iterator[Problem]:
    """An error as problems: each line of ours that starts with a place is one."""
    if not isinstance(exc, LlmDoError):
        text = traceback.format_exception_only(exc)[-1].strip()
        yield Problem("error", code, text, *(_place(exc, root) or (file, None)))
        return
    if isinstance(exc.__cause__, ValidationError) and file == CONFIG:
        yield from _of_config(exc.__cause__, root / CONFIG)
        return
    if isinstance(exc, ProjectCodeError) and exc.__cause__ is not None and (place := _place(exc.__cause__, root)):
        yield Problem("error", "code", _IMPORT.sub("", str(exc), count=1), *place)
        return
    for text in _parts(str(exc)):
        if placed := _PLACED.fullmatch(text):
            yield Problem("error", code, placed["message"], placed["file"], int(placed["line"]))
        elif placed := _IN_FILE.fullmatch(text):
            at = _TOML.search(text)
            yield Problem("error", code, placed["message"], placed["file"], int(at["line"]) if at else None)
        else:
            yield Problem("error", code, text, file)


def _parts(text: str) -> list[str]:
    """The lines of a message, each with those that do not start with a place and so belong to it."""
    parts: list[str] = []
    for line in text.splitlines():
        if parts and not _PLACED.fullmatch(line):
            parts[-1] += f" {line.strip()}"
        else:
            parts.append(line)
    return parts or ["(it says nothing)"]


def _of_config(error: ValidationError, path: Path) -> Iterator[Problem]:
    """Each mistake in the configuration, in its line."""
    for details in error.errors(include_url=False):
        keys = [str(part) for part in details["loc"] if isinstance(part, str) and part != "[key]"]
        line = next((line for key in reversed(keys) if (line := _line_of(path, key)) is not None), None)
        said = details["msg"].removeprefix("Value error, ").rstrip(".") + "."
        if details["type"] == "extra_forbidden":
            part = ProjectConfig if len(keys) == 1 else _PARTS.get(keys[0], RootConfig if len(keys) > 2 else None)
            said = f"unknown key.{did_you_mean(keys[-1], part.model_fields) if part is not None else ''}"
        yield Problem("error", "config", f"{'.'.join(keys)}: {said}", path.name, line)


def _references(definition: WorkerDefinition) -> list[str]:
    named = [definition.input, definition.output, *definition.toolsets]
    return [item for item in named if isinstance(item, str) and ":" in item]


def _at_reference(problem: Problem, where: str, path: Path, reference: str) -> Problem:
    """A reference that leads nowhere is wrong where it is written; code that cannot be imported is wrong itself."""
    if problem.file != where:
        return problem
    return problem._replace(line=_line_of(path, reference))


def _line_of(path: Path, word: str, below: str = "") -> int | None:
    """The line of a file where a word stands, in or after the line that starts with a key."""
    whole = re.compile(rf"(?<![\w-]){re.escape(word)}(?![\w-])")
    try:
        lines = read_file(path).decode(errors="replace").splitlines()
    except OSError:
        return None
    first = next((number for number, line in enumerate(lines) if line.startswith(below)), 0)
    return next((number for number, line in enumerate(lines, 1) if number > first and whole.search(line)), None)


def _place(exc: BaseException, root: Path) -> tuple[str, int | None] | None:
    """The last line of the project's own code that an exception came through."""
    places = [(frame.filename, frame.lineno) for frame in traceback.extract_tb(exc.__traceback__)]
    if isinstance(exc, SyntaxError) and exc.filename is not None:
        places.append((exc.filename, exc.lineno))
    own = [
        (str(Path(file).relative_to(root)), line)
        for file, line in places
        if Path(file).is_relative_to(root) and "site-packages" not in file
    ]
    return own[-1] if own else None


def _stray(path: Path, shown: str) -> Iterator[Problem]:
    if path.suffix == ".yml":
        yield Problem("error", "name", "a worker's file ends with .yaml or .md. Rename it.", shown)
    elif path.stem in AMONG_FILES:
        yield Problem("error", "name", f"no worker can be called {path.stem!r}. Rename it.", shown)
    elif not is_name(path.stem):
        yield Problem("error", "name", _bad_name(path.stem), shown)


def _bad_name(name: str) -> str:
    return f"{name!r} cannot be a worker's name: use letters, digits, '_' and '-', 64 characters at most. Rename it."


def _unreachable(toolset: McpToolset) -> str | None:
    """Why the server of a toolset cannot be started here. Whether it works, only starting it can tell."""
    if find_spec("fastmcp") is None:
        return f"MCP servers need `{install_extra('mcp')}`."
    command = toolset.mcp.command
    if command is not None and "/" not in command[0] and shutil.which(command[0]) is None:
        return f"the program {command[0]!r} of an MCP server is not on PATH."
    return None


def _listed(names: Sequence[str]) -> str:
    shown = ", ".join(names[:10])
    return f"{shown} and {len(names) - 10} more" if len(names) > 10 else shown
