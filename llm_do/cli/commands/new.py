"""`llm-do new`: a project that runs, or another worker in it. No file is ever overwritten."""

from __future__ import annotations

import shlex
import shutil
import sys
from pathlib import Path
from typing import Any

import click

from ...policy.catalogue import is_reserved
from ...projects.discovery import find_root, names_in
from ...projects.layout import files_of
from ...values.names import NAME_RULE, is_name
from ..support.projects import root_of, start_folder, trust_or_explain

_WORKER = """\
You are a helpful assistant. Answer in one short paragraph.

Replace this text with your instructions. The model gets them first, and then the input of the run.
"""

_PROJECT = {
    ".gitignore": """\
__pycache__/
.env
""",
    "README.md": """\
# NAME

A project of llm-do: LLM workers and Python functions that call each other by name.

- `workers/helper.md` is a worker: its settings, and below them its instructions.
- `tools.py` has functions. A worker that names one under `tools` can call it.
- `llm-do.toml` has the default model, the limits, the rules and the files of the project.

    llm-do list
    llm-do run count_words text='one two three'
    llm-do run helper 'How many words has a haiku?'
    llm-do check
""",
    "llm-do.toml": """\
# All settings are optional. Remove the # in front of those that you need.

# The model for workers that name none. LLM_DO_MODEL overrides it. Without both, an API key in the environment, a
# model server that you agreed to use or a local model decides: see `llm-do doctor`.
# model = "anthropic:claude-sonnet-5-5"

[limits]  # for each run, over all of its calls
max_requests = 50
# max_cost = 1.0  # US dollars; by default 5 on the command line

# [tool_rules]  # allow, ask or deny, for every worker
# count_words = "ask"

# [sandbox.paths]  # folders that workers may use; `root` is relative to this file
# notes = { root = "notes", mode = "rw", suffixes = [".md"] }
""",
    "tools.py": '''\
"""Functions of the project. Workers call them as tools, and `llm-do run` runs them by name."""

from llm_do import entry


@entry
def count_words(text: str) -> int:
    """Count the words of a text."""
    return len(text.split())
''',
    "workers/helper.md": """\
---
description: Answers questions, and counts words exactly.
tools: [count_words]
---
Answer the question that you are given, in one short paragraph. When it is about a number of words, write the text
first and count its words with the tool: never guess.
""",
}
"""The files of a new project, in which NAME stands for its name. A test runs the project."""


@click.group("new", invoke_without_command=True)
@click.pass_context
def new_command(ctx: click.Context, /) -> None:
    """Start a project, or add a worker to one.

    At a terminal, without a subcommand, it asks for the details.
    """
    if ctx.invoked_subcommand is not None:
        return
    if not (sys.stdin.isatty() and sys.stderr.isatty()):
        raise click.UsageError(
            "What to make is missing. Use `llm-do new project NAME`, or `llm-do new worker NAME` inside a project."
        )
    inside = find_root(start_folder(ctx)) is not None
    what = _ask("A project or a worker", "worker" if inside else "project", click.Choice(["project", "worker"]))
    name = _ask("Its name", "helper" if what == "worker" else "my-project")
    if what == "project":
        ctx.invoke(project_command, name=name, folder=None)
        return
    description = _ask("What it is for, in one sentence (may be empty)", "")
    ctx.invoke(worker_command, name=name, description=description or None, tools=(), model=None, as_yaml=False)


def _ask(text: str, default: str, kind: Any = None) -> str:
    # Standard output is for the path of the new file alone.
    answer: str = click.prompt(text, default=default, type=kind, err=True, show_default=bool(default))
    return answer


@new_command.command("project")
@click.argument("name")
@click.option(
    "--dir",
    "folder",
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    metavar="DIRECTORY",
    help="Where to make the folder, instead of the current folder.",
)
@click.pass_context
def project_command(ctx: click.Context, /, name: str, folder: Path | None) -> None:
    """Start a project.

    It makes the folder NAME with a worker, a function and a configuration, and prints its path.
    """
    _check_name(name, "project")
    parent = folder or ctx.find_root().obj or Path()
    target = parent / name
    try:
        target.mkdir()
    except FileExistsError:
        raise click.UsageError(f"{target} exists already. Nothing was changed: choose another name.") from None
    except OSError as exc:
        raise click.ClickException(f"{target} cannot be created: {exc.strerror}.") from exc
    try:
        for path, text in _PROJECT.items():
            (target / path).parent.mkdir(exist_ok=True)
            (target / path).write_text(text.replace("NAME", name), encoding="utf-8")
    except OSError as exc:
        shutil.rmtree(target, ignore_errors=True)  # all of it is new, and a partial project is useless
        raise click.ClickException(f"{target} cannot be written: {exc.strerror}.") from exc
    trust_or_explain(target)
    click.echo(target)
    click.echo(
        f"Created the project {name!r}. Next steps:\n"
        f"  cd {shlex.quote(str(target))}\n"
        "  llm-do run count_words text='one two three'      # a function: it needs no model\n"
        "  llm-do run helper 'How many words has a haiku?'  # a worker: it needs one, see `llm-do doctor`\n"
        "  llm-do check",
        err=True,
    )


@new_command.command("worker")
@click.argument("name")
@click.option("-d", "--description", metavar="TEXT", help="What it is for: other workers' models read this.")
@click.option("-t", "--tool", "tools", multiple=True, metavar="NAME", help="A function or worker that it may call.")
@click.option("-m", "--model", metavar="NAME", help="Its model. Without one, it is the project's.")
@click.option("--yaml", "as_yaml", is_flag=True, help="Write YAML instead of Markdown.")
@click.pass_context
def worker_command(
    ctx: click.Context, /, name: str, description: str | None, tools: tuple[str, ...], model: str | None, as_yaml: bool
) -> None:
    """Add a worker to the project.

    It writes workers/NAME.md, and prints its path. The text in it is the worker's instructions: change it.
    """
    from ...definitions.definition import WorkerDefinition  # noqa: PLC0415 - it imports pydantic
    from ...definitions.file_format import dump_worker, parse_worker  # noqa: PLC0415 - it imports pydantic
    from ...definitions.yaml_lines import write_yaml  # noqa: PLC0415
    from ...errors import did_you_mean  # noqa: PLC0415

    _check_name(name, "worker")
    root = root_of(ctx)
    path = root / "workers" / f"{name}.{'yaml' if as_yaml else 'md'}"
    _check_free(root, name)
    known = names_in(root)
    for tool in tools:
        if tool not in known:
            raise click.UsageError(f"There is no tool {tool!r}.{did_you_mean(tool, known)}")
    values = {"description": description, "model": model, "tools": list(dict.fromkeys(tools))}
    settings: dict[str, Any] = {key: value for key, value in values.items() if value}
    text = _WORKER if not settings else f"---\n{write_yaml(settings)}---\n{_WORKER}"
    if as_yaml:
        text = dump_worker(WorkerDefinition(name=name, instructions=_WORKER.strip(), **settings))
    # A file that could not be read again is not written.
    parse_worker(text, name=name, path=str(path.relative_to(root)), format="yaml" if as_yaml else "md")
    try:
        path.parent.mkdir(exist_ok=True)
        with path.open("x", encoding="utf-8") as file:
            file.write(text)
    except FileExistsError:
        raise click.UsageError(f"{path} exists already. Nothing was changed.") from None
    except OSError as exc:
        raise click.ClickException(f"{path} cannot be written: {exc.strerror}.") from exc
    click.echo(path)
    where = "under `instructions`" if as_yaml else "below the settings"
    click.echo(
        f"Created the worker {name!r}. Next steps:\n"
        f"  edit {path}: the instructions are {where}\n"
        f"  llm-do show {name}\n"
        f"  llm-do run {name} 'Hello'",
        err=True,
    )


def _check_name(name: str, what: str) -> None:
    if not is_name(name):
        raise click.UsageError(f"{name!r} cannot be the name of a {what}: {NAME_RULE}")
    if what == "worker" and is_reserved(name):
        raise click.UsageError(f"{name!r} cannot be the name of a worker: it is reserved. Choose another one.")


def _check_free(root: Path, name: str) -> None:
    existing = [*files_of(root, name), *(root / "workers").glob(f"{name}.yml")]
    if (root / "workers" / name).exists():
        existing.append(root / "workers" / name)
    if existing:
        raise click.UsageError(f"{existing[0]} exists already. Nothing was changed: choose another name.")
    if name in names_in(root):
        raise click.UsageError(f"{name!r} is the name of a function of the project. Choose another one.")
