"""Code that a worker left in a folder which it can write never runs in this process, whatever its form."""

import importlib
import importlib._bootstrap_external as external
import importlib.util
import itertools
import os
import py_compile
import shutil
import subprocess
import sys
import threading
import zipfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest

from llm_do import LlmDoError, Runtime, WorkerFileError, WorkerRegistry, approve_all_callback
from llm_do.projects.import_guard import ImportGuard

from ..scripted import calls, says, scripted

_NUMBERS = itertools.count()
WRITES = "sandbox: {paths: {o: {root: out, mode: rw}}}\ninstructions: x\n"


@pytest.fixture(autouse=True)
def as_before() -> Iterator[None]:
    """Code of these projects changes what Python imports from."""
    path, modules = list(sys.path), set(sys.modules)
    yield
    sys.path[:] = path
    for name in set(sys.modules) - modules:
        del sys.modules[name]


class Project:
    """A project with a worker that writes `out/`, and a mark that appears if what was planted there runs."""

    def __init__(self, folder: Path) -> None:
        self.root = folder / "project"
        self.mark = folder / "ran"
        self.name = f"planted{next(_NUMBERS)}"
        self.code = f"open({str(self.mark)!r}, 'w').close()\nX = int\n"
        self.write("workers/writer.yaml", WRITES)
        (self.root / "out").mkdir()

    def write(self, path: str, text: str) -> Path:
        file = self.root / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
        return file

    def compiled(self, path: str) -> None:
        """Write bytecode, with no source to it."""
        source = self.write("../planted-source.py", self.code)
        py_compile.compile(str(source), cfile=str(self.root / path), doraise=True)

    def use(self) -> str:
        """Call the function `use` of the project, and return what it says or what is wrong."""
        try:
            return str(Runtime(WorkerRegistry(self.root)).call_sync("use"))
        except Exception as exc:
            return str(exc)


@pytest.fixture
def project(tmp_path: Path) -> Project:
    return Project(tmp_path)


def as_source(project: Project) -> None:
    project.write(f"out/{project.name}.py", project.code)


def as_bytecode(project: Project) -> None:
    project.compiled(f"out/{project.name}.pyc")


def as_extension(project: Project) -> None:
    project.write(f"out/{project.name}.abi3.so", "not even a library: loading it would fail with other words")


def as_package(project: Project) -> None:
    project.write(f"out/{project.name}/__init__.py", project.code)


def as_package_of_bytecode(project: Project) -> None:
    (project.root / "out" / project.name).mkdir()
    project.compiled(f"out/{project.name}/__init__.pyc")


def as_link_to_the_outside(project: Project) -> None:
    """A link is a file of the worker, wherever it leads."""
    project.write("elsewhere/real.py", project.code)
    (project.root / f"out/{project.name}.py").symlink_to("../elsewhere/real.py")


FORMS = [as_source, as_bytecode, as_extension, as_package, as_package_of_bytecode, as_link_to_the_outside]

FUNCTION = "import os, sys, importlib\nfrom llm_do import entry\nHERE = os.path.dirname(__file__)\n{top}\n"
FUNCTION += "@entry\ndef use() -> str:\n    {inside}\n    return 'used'\n"
WAYS = {
    "at_the_top": ("sys.path.insert(0, HERE + '/out')\nimport {name}", "pass"),
    "inside_a_function": ("sys.path.insert(0, HERE + '/out')", "import {name}"),
    "by_importlib": ("sys.path.append(HERE + '/out')", "importlib.import_module('{name}')"),
    "from_a_namespace": ("", "from out import {name}"),
    "from_a_namespace_at_the_top": ("from out import {name}", "pass"),
    "by_a_package_path": ("import lib\nlib.__path__.append(HERE + '/out')", "from lib import {name}"),
}


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("plant", FORMS)
def test_nothing_in_a_writable_folder_is_imported(project: Project, plant: Callable[[Project], None], way: str) -> None:
    """Whatever form it has and however it is imported, there is an error, and nothing of it ran."""
    top, inside = (part.format(name=project.name) for part in WAYS[way])
    project.write("lib/__init__.py", "")
    project.write("tools.py", FUNCTION.format(top=top, inside=inside))
    plant(project)
    assert "is not run: workers can change what is in out/" in project.use()
    assert not project.mark.exists()
    assert project.name not in sys.modules


def test_the_same_code_is_imported_from_a_folder_that_no_worker_writes(project: Project) -> None:
    """The guard is about who can write, and not about folders."""
    project.write("workers/writer.yaml", WRITES.replace("rw", "ro"))
    project.write("tools.py", FUNCTION.format(top="", inside=f"from out import {project.name}"))
    as_source(project)
    assert project.use() == "used"
    assert project.mark.exists()


def test_an_archive_in_a_writable_folder_is_not_imported_from(project: Project) -> None:
    """Python imports from zip files as from folders."""
    with zipfile.ZipFile(project.root / "out" / "lib.zip", "w") as archive:
        archive.writestr(f"{project.name}.py", project.code)
    top = f"sys.path.insert(0, HERE + '/out/lib.zip')\nimport {project.name}"
    project.write("tools.py", FUNCTION.format(top=top, inside="pass"))
    assert "is not run: workers can change what is in out/" in project.use()
    assert not project.mark.exists()


@pytest.mark.parametrize("link", ["file", "folder", "chain"])
def test_links_into_a_writable_folder_are_not_followed(project: Project, link: str) -> None:
    """A link of the project that leads through a folder of a worker means what the worker wants."""
    project.write("elsewhere/real.py", project.code)
    if link == "file":
        project.write("out/real.py", project.code)
        (project.root / f"{project.name}.py").symlink_to("out/real.py")
    elif link == "folder":
        project.write("out/sub/__init__.py", project.code)
        (project.root / project.name).symlink_to("out/sub")
    else:  # it ends where no worker writes, for now
        (project.root / "out/real.py").symlink_to("../elsewhere/real.py")
        (project.root / f"{project.name}.py").symlink_to("out/real.py")
    project.write("tools.py", FUNCTION.format(top=f"import {project.name}", inside="pass"))
    assert "is not run: workers can change what is in out/" in project.use()
    assert not project.mark.exists()


@pytest.mark.parametrize("writes", ["lib/__pycache__", "__pycache__", "workers/calc/__pycache__"])
def test_planted_bytecode_of_a_source_is_not_run(project: Project, writes: str) -> None:
    """Python would take bytecode that says of itself that it need not be compared with its source."""
    project.write("workers/writer.yaml", WRITES.replace("root: out", f"root: {writes}"))
    project.write("lib/__init__.py", "")
    project.write("lib/shapes.py", "X = 1\n")
    project.write("workers/calc/worker.md", "x")
    project.write("workers/calc/tools.py", "def add() -> int:\n    return 1\n")
    project.write("tools.py", FUNCTION.format(top="import lib.shapes", inside="pass"))
    planted = external._code_to_hash_pyc(compile(project.code, "x", "exec"), b"x" * 8, False)  # type: ignore[attr-defined]
    for source in ("tools.py", "lib/shapes.py", "lib/__init__.py", "workers/calc/tools.py"):
        cached = Path(importlib.util.cache_from_source(str(project.root / source)))
        cached.parent.mkdir(exist_ok=True)
        cached.write_bytes(planted)
    assert project.use() == "used"
    assert [tool.name for tool in WorkerRegistry(project.root).own_tools("calc")] == ["add"]
    assert not project.mark.exists()


def test_a_project_leaves_no_bytecode(project: Project) -> None:
    """Nothing is written beside the sources, so there is nothing to take for one's own."""
    project.write("tools.py", FUNCTION.format(top="", inside="pass"))
    assert project.use() == "used"
    assert not (project.root / "__pycache__").exists()


def test_bytecode_of_a_library_in_a_writable_folder_is_not_run(project: Project, tmp_path: Path) -> None:
    """A library elsewhere on the path is not imported where a worker writes its bytecode."""
    library = project.write(f"../library/{project.name}.py", "X = 1\n")
    cached = Path(importlib.util.cache_from_source(str(library)))
    project.write("workers/writer.yaml", WRITES.replace("root: out", f"root: {cached.parent}"))
    cached.parent.mkdir()
    planted = external._code_to_hash_pyc(compile(project.code, "x", "exec"), b"x" * 8, False)  # type: ignore[attr-defined]
    cached.write_bytes(planted)
    top = f"sys.path.insert(0, {str(tmp_path / 'library')!r})"
    project.write("tools.py", FUNCTION.format(top=top, inside=f"import {project.name}"))
    assert "is not run: workers can change what is in __pycache__/" in project.use()
    assert not project.mark.exists()


@pytest.mark.parametrize("key", ["input", "output", "toolsets"])
def test_a_worker_file_cannot_refer_to_what_a_worker_wrote(project: Project, key: str) -> None:
    """References of worker files are imports, too."""
    as_source(project)
    reference = f"out/{project.name}.py:X"
    project.write("workers/b.yaml", f"{key}: {[reference] if key == 'toolsets' else reference}\ninstructions: x\n")
    with pytest.raises(LlmDoError, match="is not run: workers can change what is in out/"):
        WorkerRegistry(project.root)["b"]
    assert not project.mark.exists()


def test_a_folder_that_is_made_later_is_guarded(project: Project) -> None:
    """A root need not exist when the project is opened."""
    shutil.rmtree(project.root / "out")
    project.write("tools.py", FUNCTION.format(top="", inside=f"from out import {project.name}"))
    runtime = Runtime(WorkerRegistry(project.root))
    with pytest.raises(ModuleNotFoundError):
        runtime.call_sync("use")
    as_source(project)
    with pytest.raises(ImportError, match="is not run"):
        runtime.call_sync("use")
    assert not project.mark.exists()


@pytest.mark.parametrize("file", ["workers/late.yaml", "workers/late/worker.yaml", "llm-do.toml"])
def test_a_root_that_is_declared_later_is_guarded(project: Project, file: str) -> None:
    """Which folders workers can write is kept between imports, and read again when a file that says it changes."""
    project.write("tools.py", FUNCTION.format(top="", inside="importlib.import_module(os.environ['LATE'])"))
    runtime = Runtime(WorkerRegistry(project.root))
    late = project.root / "late"
    late.mkdir()
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(late)
        for name in ("before", "after"):
            (late / f"{name}_{project.name}.py").write_text(project.code)
        patch.setenv("LATE", f"before_{project.name}")
        assert runtime.call_sync("use") == "used"
        project.mark.unlink()
        declared = WRITES.replace("root: out", "root: late")
        project.write(file, "[sandbox.paths.o]\nroot = 'late'\nmode = 'rw'\n" if "toml" in file else declared)
        patch.setenv("LATE", f"after_{project.name}")
        with pytest.raises(ImportError, match="is not run: workers can change what is in late/"):
            runtime.call_sync("use")
    assert not project.mark.exists()


def test_a_folder_with_two_names_is_one_folder(project: Project, tmp_path: Path) -> None:
    """A root that is written as a link to a folder is that folder."""
    (tmp_path / "other-name").symlink_to(project.root / "out")
    project.write("workers/writer.yaml", WRITES.replace("root: out", f"root: {tmp_path / 'other-name'}"))
    project.write("tools.py", FUNCTION.format(top="", inside=f"from out import {project.name}"))
    as_source(project)
    assert "is not run" in project.use()


def test_a_package_in_a_writable_folder_does_not_take_the_place_of_the_functions(project: Project) -> None:
    """Python prefers a package `tools/` to `tools.py`."""
    project.write("workers/writer.yaml", WRITES.replace("root: out", "root: tools"))
    project.write("tools.py", FUNCTION.format(top="", inside="pass"))
    (project.root / "tools").mkdir()
    project.compiled("tools/__init__.pyc")
    assert "is not run: workers can change what is in tools/" in project.use()
    assert not project.mark.exists()


@pytest.mark.parametrize("inside", [False, True])
def test_no_root_has_the_libraries_of_python_in_it(project: Project, tmp_path: Path, inside: bool) -> None:
    """A worker that could write there could bring code into any program, also before it starts."""
    folder = Path(os.__file__).parent
    root = folder / "json" if inside else folder
    project.write("workers/writer.yaml", WRITES.replace("root: out", f"root: {root}"))
    with pytest.raises(WorkerFileError, match="code in it that Python imports here"):
        WorkerRegistry(project.root)["writer"]


def test_no_root_is_a_folder_that_python_imports_from(project: Project, tmp_path: Path) -> None:
    """`sitecustomize` in a folder of `PYTHONPATH` runs at the next start of Python, before anything can look."""
    folder = tmp_path / "imports"
    folder.mkdir()
    sys.path.append(str(folder))
    project.write("workers/writer.yaml", WRITES.replace("root: out", f"root: {folder}"))
    with pytest.raises(WorkerFileError, match="code in it that Python imports here"):
        WorkerRegistry(project.root)["writer"]


def test_no_root_is_where_python_keeps_bytecode(project: Project, tmp_path: Path) -> None:
    """With PYTHONPYCACHEPREFIX, the bytecode of all modules is in one folder."""
    folder = tmp_path / "bytecode"
    project.write("workers/writer.yaml", WRITES.replace("root: out", f"root: {folder}"))
    code = f"from llm_do import WorkerRegistry; WorkerRegistry({str(project.root)!r})['writer']"
    environment = {**os.environ, "PYTHONPYCACHEPREFIX": str(folder), "PYTHONDONTWRITEBYTECODE": "1"}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=False)
    assert "code in it that Python imports here" in done.stderr


def test_a_worker_made_in_python_has_no_root_with_code_either(project: Project) -> None:
    """Workers of `tools.py` are held to the same."""
    top = "from llm_do import WorkerEntry, SandboxConfig, RootConfig\nimport lib\nfrom pathlib import Path\n"
    top += "files = SandboxConfig(paths={'l': RootConfig(root='lib', mode='rw')})\n"
    top += "w = WorkerEntry(name='w', base=Path(HERE), sandbox=files)"
    project.write("lib/__init__.py", "")
    project.write("tools.py", FUNCTION.format(top=top, inside="pass"))
    assert "tools.py: worker 'w': the root 'l' has code of the project in it, lib/__init__.py" in project.use()


MADE = """
from llm_do import FILE_TOOLS, RootConfig, SandboxConfig, WorkerEntry
from pathlib import Path
def make(name, root, **more):
    files = SandboxConfig(paths={'o': RootConfig(root=root, mode='rw')})
    rules = {'sandbox.write': 'allow'}
    return WorkerEntry(name=name, base=Path(BASE), sandbox=files, tools=FILE_TOOLS, tool_rules=rules)
"""
MAKERS = {
    "in_tools": {"tools.py": "made = make('made', ROOT)\n"},
    "below_another": {"tools.py": "boss = WorkerEntry(name='boss', tools=[make('made', ROOT)])\n"},
    "below_two": {
        "tools.py": "boss = WorkerEntry(name='boss', tools=[WorkerEntry(name='b', tools=[make('made', ROOT)])])\n"
    },
    "in_a_module": {"tools.py": "import helpers\n", "helpers.py": "made = make('made', ROOT)\n"},
    "in_own_tools": {"tools.py": "", "workers/calc/tools.py": "made = make('made', ROOT)\n"},
}


def make_in_python(project: Project, where: str, root: str, top: str = "", inside: str = "pass") -> None:
    """Have a module make a worker that writes a folder, in place of the worker with a file."""
    (project.root / "workers/writer.yaml").unlink()
    project.write("workers/calc/worker.md", "x")
    for path, code in MAKERS[where].items():
        made = MADE.replace("BASE", repr(str(project.root))) + code.replace("ROOT", repr(root))
        use = FUNCTION.format(top=top, inside=inside) if path == "tools.py" else ""
        project.write(path, f"{made}{use}")


@pytest.mark.parametrize("way", ["later", "while it is imported"])
@pytest.mark.parametrize("where", MAKERS)
def test_what_a_worker_made_in_python_can_write_is_not_imported(project: Project, where: str, way: str) -> None:
    """The guard knows the folders of workers that modules made, at any depth."""
    line = f"from out import {project.name}"
    make_in_python(project, where, "out", **({"inside": line} if way == "later" else {"top": line}))
    as_source(project)
    registry = WorkerRegistry(project.root)
    if where == "in_own_tools":
        assert [tool.name for tool in registry.own_tools("calc")] == ["made", "make"]
    with pytest.raises((ImportError, LlmDoError), match="is not run: workers can change what is in out/"):
        Runtime(registry).call_sync("use")
    assert not project.mark.exists()


@pytest.mark.parametrize("root", [".", "..", "workers", "workers/generated", "lib"])
@pytest.mark.parametrize("where", MAKERS)
def test_no_worker_made_in_python_writes_what_the_project_is_made_of(project: Project, where: str, root: str) -> None:
    """Neither its code nor the files that say what workers may do, at any depth."""
    project.write("lib/__init__.py", "")
    project.write("workers/other.md", "x")
    make_in_python(project, where, root, top="import lib")
    before = {file: file.read_bytes() for file in project.root.rglob("*") if file.is_file()}
    registry = WorkerRegistry(project.root)
    steps = [
        calls((name, {"input": "go"}))
        for name in {"below_another": ["made"], "below_two": ["b", "made"]}.get(where, [])
    ]
    paths = ("tools.py", "project/tools.py", "other.md", "generated.yaml", "__init__.py")
    steps.append(calls(*(("write_file", {"path": f"o/{path}", "content": "x = 1"}) for path in paths)))
    runtime = Runtime(registry, model=scripted(*steps, says("done")), approval_callback=approve_all_callback)
    refused = (
        r"worker 'made': the root 'o' (has the project in it|reaches workers|has code of)|lib/__init__.py is not run"
    )
    with pytest.raises(LlmDoError, match=refused):
        if where == "in_own_tools":
            assert registry["use"].name == "use"
            runtime.call_sync(registry.own_tools("calc")[0], "go")
        elif where == "in_a_module":
            runtime.call_sync("use")
        else:
            runtime.call_sync("made" if where == "in_tools" else "boss", "go")
    assert {file: file.read_bytes() for file in project.root.rglob("*") if file.is_file()} == before


NO_ROOT_THERE = "worker 'made': the root 'o' reaches workers, which has rights of workers"


KIT = """
from pydantic import BaseModel
made = make('made', 'workers')
class Task(BaseModel): ...
def kit(ctx): ...
"""


@pytest.mark.parametrize("key", ["toolsets: ['made.py:kit']", "input: made.py:Task", "output: made.py:Task"])
def test_a_worker_made_in_python_is_checked_whatever_its_module_is_imported_for(project: Project, key: str) -> None:
    """Also in a project without `tools.py`."""
    project.write("made.py", f"{MADE}{KIT}".replace("BASE", repr(str(project.root))))
    project.write("workers/boss.yaml", f"{key}\ninstructions: x\n")
    with pytest.raises(WorkerFileError, match=NO_ROOT_THERE):
        WorkerRegistry(project.root)["boss"]


USE = """
from llm_do import Context, entry
from pydantic_ai import RunContext
@entry
async def use(ctx: RunContext[Context]) -> str:
    from made import made
    return await ctx.deps.call(made, input='go')
"""


def test_a_worker_that_a_running_function_imports_is_checked(project: Project) -> None:
    """It does not run, and the file that it would write is as it was."""
    project.write("made.py", f"{MADE}{KIT}".replace("BASE", repr(str(project.root))))
    project.write("tools.py", USE)
    other = project.write("workers/other.md", "x")
    model = scripted(calls(("write_file", {"path": "o/other.md", "content": "y"})), says("done"))
    runtime = Runtime(WorkerRegistry(project.root), model=model, approval_callback=approve_all_callback)
    with pytest.raises(WorkerFileError, match=NO_ROOT_THERE):
        runtime.call_sync("use")
    assert other.read_text() == "x"


def test_projects_are_opened_while_other_threads_import(project: Project) -> None:
    """A project that is opened while the guard goes through all of them disturbs no import."""
    guard = ImportGuard()

    class Opened:
        root = project.root

        def writable_folders(self, files: Sequence[Path]) -> list[Path]:
            return []

    spec = importlib.util.spec_from_file_location("x", project.root / "x.py")
    assert spec is not None
    kept = [Opened() for _ in range(1000)]
    opening = threading.Thread(target=lambda: [guard.watch(each) for each in kept])
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        guard.watch(kept[0])
        opening.start()
        while opening.is_alive():
            guard.check(spec)
    finally:
        sys.setswitchinterval(before)
        opening.join()
        sys.meta_path.remove(guard)
