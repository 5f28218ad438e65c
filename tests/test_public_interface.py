"""What is public, and what other people's code relies on."""

import ast
import inspect
import subprocess
import sys
from pathlib import Path

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
from llm_do._exports import MODULES


def test_everything_exported_exists_once_and_type_checkers_read_the_same() -> None:
    assert all(hasattr(llm_do, name) for name in llm_do.__all__)
    assert len(set(llm_do.__all__)) == len(llm_do.__all__)
    assert MODULES.keys() == set(llm_do.__all__)
    tree = ast.parse(Path(llm_do.__file__).read_text())
    imports = [node for node in ast.walk(tree) if isinstance(node, ast.ImportFrom) and node.level == 1]
    read = {name.name: node.module for node in imports for name in node.names if node.module != "_exports"}
    assert {**read, "WorkerContext": "context"} == MODULES
    with pytest.raises(AttributeError, match="no attribute 'Runtim'"):
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


def test_every_error_is_drawn_in_the_tree_of_the_modules_docstring() -> None:
    from llm_do import errors

    assert errors.__doc__ is not None
    for name, value in vars(errors).items():
        if inspect.isclass(value) and issubclass(value, LlmDoError):
            assert name in errors.__doc__, name


def test_no_hidden_state() -> None:
    """No context variables and no imports inside functions in the package: `ruff` checks the latter."""
    code = "import llm_do, contextvars, gc; print(sum('llm_do' in repr(v) for v in gc.get_objects() if isinstance(v, contextvars.ContextVar)))"  # noqa: E501
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "0"
