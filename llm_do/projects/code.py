"""A project's own code: `tools.py`, and references such as `schemas.py:Deck`."""

from __future__ import annotations

import builtins
import importlib
import importlib.util
import inspect
import sys
import threading
import traceback
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext, redirect_stdout
from functools import reduce
from importlib.machinery import ModuleSpec, PathFinder, SourceFileLoader
from pathlib import Path
from types import ModuleType
from typing import Any, ClassVar

from pydantic_ai import Tool
from pydantic_ai.agent import AbstractAgent

from ..core.adapt import about_agent, entries_below
from ..core.entry import Entry, EntryBase
from ..core.tool import ToolEntry
from ..core.worker import WorkerEntry
from ..errors import ProjectCodeError
from ..machine.files import Owners, check_regular
from .import_guard import GUARD, SourceOnlyLoader
from .worker_files import stamp_of

_IMPORTING = threading.RLock()


class ProjectCode:
    """The Python files of one project as modules, which import each other by plain names like scripts in one folder.

    Two projects in one process may have files of the same name: while one imports, the modules of the other are not in
    `sys.modules`. An `import` in a function runs later, so modules have an `__import__` of the project.
    """

    _owners: ClassVar[dict[str, ProjectCode]] = {}
    """Projects by the names of their modules in `sys.modules`."""
    keeps_output_clean: ClassVar[bool] = False
    """True if modules print to standard error while they are imported, as the command line needs it."""

    def __init__(
        self, root: Path, writable: Callable[[], list[Path]], check: Callable[[], None], owners: Owners | None
    ) -> None:
        """Refuse code in the `writable` folders and, with `owners`, of other users. `check` runs after each import."""
        self.root = root
        self._writable = writable
        self._check_workers = check
        self._owners_of_files = owners
        self._modules: dict[str, ModuleType] = {}
        self._stamps: dict[Path, Hashable] = {}
        self.started: list[ModuleType] = []
        """The modules that are being imported, with those that they imported meanwhile."""
        self._importing = False
        """True while this project's modules are in `sys.modules`. Read it only under the lock `_IMPORTING`."""
        GUARD.watch(self)

    def writable_folders(self, files: Sequence[Path]) -> list[Path]:
        """Return the folders that workers can write; none if all files are right in the project's folder."""
        # A worker that could write that folder is refused, so no worker file has to be read.
        safe = all(file.parent == self.root and not file.is_symlink() for file in files)
        return [] if safe else self._writable()

    def stamp(self) -> Hashable:
        """Return a value that changes when a file that was imported changes."""
        return tuple(stamp_of(path) for path in self._stamps)

    def files(self) -> list[Path]:
        """Return the files that were imported."""
        return [path.resolve() for path in self._stamps]

    def workers(self) -> Iterator[tuple[Path, WorkerEntry[Any]]]:
        """Yield the workers that modules made, also those being imported, each with the file of its module."""
        for module in (*self._modules.values(), *self.started):
            if (file := vars(module).get("__file__")) is not None:
                found = entries_below(entries_in(module))
                yield from ((Path(file), each) for each in found if isinstance(each, WorkerEntry))

    def file(self, path: Path) -> ModuleType:
        """Return the module of a file: the same one until an imported file of the project changes."""
        relative = path.relative_to(self.root).with_suffix("")
        return self._import(".".join(relative.parts).removesuffix(".__init__"), path)

    def object(self, reference: str) -> Any:
        """Return the object that `module:Name` or `file.py:Name` names."""
        where, _, name = reference.partition(":")
        if where.endswith(".py") and not (self.root / where).is_file():
            raise ProjectCodeError(f"{reference!r}: the project has no file {where!r}.")
        module = self.file(self.root / where) if where.endswith(".py") else self._import(where)
        try:
            return reduce(getattr, name.split("."), module)
        except AttributeError:
            raise ProjectCodeError(f"{reference!r}: {where} has no {name!r}.") from None

    def _import(self, name: str, path: Path | None = None) -> ModuleType:
        with _IMPORTING, self._installed(path), redirect_stdout(sys.stderr if self.keeps_output_clean else sys.stdout):
            try:
                if path is not None:
                    check_regular(path)
                if path is None or name in self._modules or "." not in name:
                    return importlib.import_module(name)
                # A file in a folder that is no package, such as workers/calc/tools.py.
                loader = _ProjectLoader(name, str(path), self)
                spec = importlib.util.spec_from_file_location(name, path, loader=loader)
                assert spec is not None and spec.loader is not None
                GUARD.check(spec)
                self._check_owner(path)
                module = sys.modules[name] = importlib.util.module_from_spec(spec)
                try:
                    spec.loader.exec_module(module)
                except BaseException:
                    del sys.modules[name]
                    raise
                return module
            except (Exception, SystemExit) as exc:
                raise self._explain(path.name if path is not None else name, exc) from exc

    def import_for_module(
        self,
        name: str,
        globals: Mapping[str, Any] | None = None,  # noqa: A002 - as Python calls it
        locals: Mapping[str, Any] | None = None,  # noqa: A002
        fromlist: Sequence[str] | None = (),
        level: int = 0,
    ) -> ModuleType:
        """Import for a module of the project, in place of Python's `__import__`."""
        module = self._modules.get(name) if level == 0 and "." not in name else None
        if module is not None and not hasattr(module, "__path__"):
            return module  # also while another project imports
        file = None if globals is None else globals.get("__file__")
        if not self._has(name, level, file):
            return builtins.__import__(name, globals, locals, fromlist, level)
        importer = None if file is None else Path(file)
        with _IMPORTING, nullcontext() if self._importing else self._installed(importer):
            return builtins.__import__(name, globals, locals, fromlist, level)

    def _has(self, name: str, level: int, file: str | None) -> bool:
        """Return whether a module may be one of the project's files. Libraries are left to Python."""
        top = name.partition(".")[0]
        if level > 0 or top in self._modules:
            return True
        if top in sys.modules and top not in self._owners:
            return False
        folders = [self.root, *([] if file is None else [Path(file).parent])]
        return any((folder / top).is_dir() or (folder / f"{top}.py").is_file() for folder in folders)

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Find what Python would find, but give files of the project a loader of our own."""
        spec = PathFinder.find_spec(name, path, target)
        if spec is None or spec.origin is None or not self._is_own(spec.origin):
            return None
        self._check_owner(Path(spec.origin))
        if not isinstance(spec.loader, SourceFileLoader):
            return None
        spec.loader = _ProjectLoader(spec.loader.name, spec.loader.path, self)
        return spec

    def _check_owner(self, file: Path) -> None:
        if self._owners_of_files is not None and (why := self._owners_of_files.refusal(file)) is not None:
            raise ImportError(f"{file.relative_to(self.root)} is not run: {why}")

    def _is_own(self, file: str) -> bool:
        return "site-packages" not in file and Path(file).is_relative_to(self.root)

    @contextmanager
    def _installed(self, path: Path | None) -> Iterator[None]:
        """Make plain names mean this project's files, and keep the modules that are imported."""
        if any(stamp_of(file) != stamp for file, stamp in self._stamps.items()):
            for name in self._modules:
                sys.modules.pop(name, None)
            self._modules.clear()
            self._stamps.clear()
        for name, owner in self._owners.items():
            if owner is not self:
                sys.modules.pop(name, None)
        sys.modules.update(self._modules)
        before, started = set(sys.modules), len(self.started)
        folders = [str(self.root), *([] if path is None else [str(path.parent)])]
        sys.path[:0] = folders
        finder: Any = self
        sys.meta_path.insert(sys.meta_path.index(PathFinder), finder)
        importlib.invalidate_caches()
        self._importing = True
        try:
            yield
        finally:
            self._importing = False
            sys.meta_path.remove(finder)
            for folder in folders:
                sys.path.remove(folder)
            for name in set(sys.modules) - before:
                self._adopt(name)
            del self.started[started:]
        self._check_workers()

    def _adopt(self, name: str) -> None:
        module = sys.modules[name]
        file = getattr(module, "__file__", None)
        # A folder without an `__init__.py` is a package, too.
        places = [file] if file is not None else [str(folder) for folder in getattr(module, "__path__", ())]
        if not any(self._is_own(place) for place in places):
            return  # a library, wherever its environment lies
        self._modules[name] = module
        self._owners[name] = self
        if file is not None:
            self._stamps[Path(file)] = stamp_of(Path(file))

    def _explain(self, what: str, exc: BaseException) -> ProjectCodeError:
        frames = traceback.extract_tb(exc.__traceback__)
        own = [(frame.filename, frame.lineno) for frame in frames if Path(frame.filename).is_relative_to(self.root)]
        if isinstance(exc, SyntaxError) and exc.filename is not None:
            own.append((exc.filename, exc.lineno))
        where = f", line {own[-1][1]} of {Path(own[-1][0]).name}" if own else ""
        if isinstance(exc, OSError) and not own:  # the file itself
            return ProjectCodeError(f"{what} cannot be imported: {exc.strerror or exc}.")
        return ProjectCodeError(f"{what} cannot be imported{where}: {traceback.format_exception_only(exc)[-1].strip()}")


class _ProjectLoader(SourceOnlyLoader):
    """Loads a file of a project so that its imports find the project's other files at any time."""

    def __init__(self, name: str, path: str, code: ProjectCode) -> None:
        super().__init__(name, path)
        self._code = code

    def exec_module(self, module: ModuleType) -> None:
        # Python looks up `__import__` here for everything that the module defines: see `exec`.
        vars(module)["__builtins__"] = {**vars(builtins), "__import__": self._code.import_for_module}
        self._code.started.append(module)
        super().exec_module(module)


def entries_in(module: ModuleType) -> list[Entry[Any]]:
    """Return the entries that a module of the project defines: functions with `@entry`, and workers."""
    values = list(vars(module).values())  # another thread may be importing it
    # By the type: a proxy that stands for something else would have to import that first.
    found = {id(value): value for value in values if issubclass(type(value), EntryBase)}
    return list(found.values())


def functions_in(module: ModuleType) -> list[Entry[Any]]:
    """Return the entries and public functions that a module defines: the tools of one worker need no decorator."""
    plain = [
        ToolEntry.from_function(value)
        for name, value in vars(module).items()
        if inspect.isfunction(value) and not name.startswith("_") and value.__module__ == module.__name__
    ]
    return [*entries_in(module), *plain]


def explain_public_name(module: ModuleType, name: str, root: Path) -> str | None:
    """Return why a name of a module of the project is no entry, if it is a function, a tool or an agent."""
    value = vars(module).get(name)
    if isinstance(value, AbstractAgent):
        return f"{Path(module.__file__ or '').name} has {about_agent(value)}"
    if isinstance(value, Tool):
        return f"It is a PydanticAI tool there. Write {name} = ToolEntry(tool=...)."
    if not inspect.isfunction(value):
        return None
    code = inspect.unwrap(value).__code__
    file = Path(code.co_filename)
    if not file.is_relative_to(root):
        return None
    return f"The function at {file.relative_to(root)}:{code.co_firstlineno} has no @entry: write @entry above it."
