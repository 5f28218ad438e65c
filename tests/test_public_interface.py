"""What is public, and what other people's code relies on."""

import ast
import importlib
import inspect
import pkgutil
import subprocess
import sys
import threading
from contextvars import ContextVar
from pathlib import Path
from types import ModuleType

import pytest

import llm_do
from llm_do import (
    ApprovalDenied,
    ArgumentError,
    CallTimeout,
    Context,
    Limits,
    LlmDoError,
    OutputError,
    Runtime,
    ScopeClosedError,
    ToolEntry,
    UnknownEntryError,
    WorkerEntry,
)
from llm_do.core import context


def test_everything_exported_exists_once_and_type_checkers_read_the_same() -> None:
    stub = ast.parse(Path(llm_do.__file__).with_suffix(".pyi").read_text())
    imported = [name for node in stub.body if isinstance(node, ast.ImportFrom) for name in node.names]
    assert all(name.asname == name.name for name in imported)  # type checkers re-export no others
    assert llm_do.__all__ == sorted({name.name for name in imported})
    assert len(imported) == len(llm_do.__all__)
    assert set(llm_do.__all__) <= set(dir(llm_do))
    assert all(hasattr(llm_do, name) for name in llm_do.__all__)
    assert llm_do.WorkerContext is Context
    with pytest.raises(AttributeError, match="No llm_do attribute Runtim"):
        _ = llm_do.Runtim


def test_importing_the_package_imports_nothing_of_it() -> None:
    code = "import sys, llm_do; print([m for m in sys.modules if m.split('.')[0] in ('pydantic', 'pydantic_ai')])"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "[]\n"


def test_signatures_that_other_people_rely_on() -> None:
    runtime = inspect.signature(Runtime).parameters
    relied_on = {"entries", "model", "approval_callback", "max_depth", "limits", "max_concurrency", "message_callback"}
    assert relied_on | {"sinks", "journal", "executor"} <= runtime.keys()
    assert runtime["max_depth"].default == 16
    assert runtime["max_concurrency"].default == 32
    assert Limits() == Limits(max_calls=10_000, max_requests=1_000, max_tokens=None, max_cost=None, timeout=None)
    worker = inspect.signature(WorkerEntry).parameters
    relied_on = {"name", "instructions", "description", "model", "tools", "toolsets", "input_type", "output_type"}
    assert relied_on | {"requires_approval", "model_settings"} <= worker.keys()
    assert list(inspect.signature(Context.from_worker).parameters)[:2] == ["worker", "model"]
    assert {"tool", "requires_approval", "schema_out"} <= inspect.signature(ToolEntry).parameters.keys()


@pytest.mark.parametrize(
    ("error", "also"),
    [
        (UnknownEntryError, KeyError),
        (ArgumentError, TypeError),
        (ApprovalDenied, PermissionError),
        (OutputError, ValueError),
        (ScopeClosedError, RuntimeError),
        (CallTimeout, TimeoutError),
    ],
)
def test_errors_are_ours_and_pythons(error: type[Exception], also: type[Exception]) -> None:
    made = error("what is wrong")
    assert isinstance(made, LlmDoError)
    assert isinstance(made, also)
    assert str(made) == "what is wrong"


def test_every_error_is_in_the_modules_docstring() -> None:
    from llm_do import errors

    assert errors.__doc__ is not None
    for name, value in vars(errors).items():
        if inspect.isclass(value) and issubclass(value, LlmDoError):
            assert name in errors.__doc__, name


def test_no_hidden_state() -> None:
    """No module of the package has a context variable, or a thread local, but one of AnyIO's.

    (No imports inside functions: `ruff` checks that.)
    """
    modules = [
        importlib.import_module(found.name)
        for found in pkgutil.walk_packages(llm_do.__path__, "llm_do.")
        if found.name.rpartition(".")[2] != "__main__"
    ]
    assert context in modules and len(modules) > 100
    # Not ours, and nothing of ours is kept in it: `anyio.from_thread.run` finds there the loop that a thread works for,
    # and works in synchronous tools only if our threads say it (tests/core/test_threads.py).
    assert context_variables_of(modules) == ["llm_do.machine.pool.anyio_locals"]


def test_hidden_state_would_be_found() -> None:
    """In a module, and in a class of it."""

    class Holder:
        inside = ContextVar[int]("inside")

    Holder.__module__ = "planted"
    planted = ModuleType("planted")
    vars(planted).update(here=ContextVar[int]("here"), Holder=Holder)
    assert context_variables_of([planted]) == ["planted.here", "planted.Holder.inside"]


def context_variables_of(modules: list[ModuleType]) -> list[str]:
    """Return the names of the context variables in modules, and in the classes that they define."""
    owners = [(module.__name__, module) for module in modules]
    owners += [
        (f"{module.__name__}.{name}", value)
        for module in modules
        for name, value in vars(module).items()
        if inspect.isclass(value) and value.__module__ == module.__name__
    ]
    return [
        f"{name}.{attribute}"
        for name, owner in owners
        for attribute, value in vars(owner).items()
        if isinstance(value, ContextVar | threading.local)
    ]
