"""`llm-do rules`: what would be decided about a call, by which rule, and where that rule stands."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import click

from ..support.completers import worker_names
from ..support.projects import open_project, open_worker

if TYPE_CHECKING:
    from ...core.entries import WorkerEntry
    from ...core.entry import Entry
    from ...policy.rules import Ruling
    from ...projects.registry import WorkerRegistry


@click.group("rules")
def rules_command() -> None:
    """Say what the rules decide, and why."""


@rules_command.command("why")
@click.argument("worker", shell_complete=worker_names)
@click.argument("tool")
@click.argument("arguments", nargs=-1, metavar="[NAME=VALUE]...")
@click.option(
    "--args-json", metavar="JSON", help="The arguments as a JSON object, @FILE with one, or - for standard input."
)
@click.option("--json", "as_json", is_flag=True, help="Print a JSON object.")
@click.pass_context
def why_command(
    ctx: click.Context, /, worker: str, tool: str, arguments: tuple[str, ...], args_json: str | None, as_json: bool
) -> None:
    """Say what is decided about a call.

    WORKER would call TOOL with these arguments. A VALUE is read as `llm-do run` reads it. TOOL can be a name that
    rules use, such as sandbox.write: then it is the first of the worker's tools that rules call so, and that takes the
    arguments.

    Nothing runs, and nobody is asked.
    """
    from ...core.runtime import Runtime  # noqa: PLC0415 - with it comes everything
    from ..support.inputs import json_object, read_pairs  # noqa: PLC0415

    given = {} if args_json is None else json_object(args_json, "--args-json")
    texts = read_pairs(arguments, given)
    registry, name = open_worker(ctx, worker, asks=True)
    caller = _worker(registry, name)
    runtime = Runtime(registry, tool_rules=registry.rule_book())
    called, ruling = _judge(runtime, registry, caller, tool, given, texts)
    if as_json:
        click.echo(json.dumps(_as_json(caller.name, called, ruling), indent=2))
        return
    from ...privacy.display import visible  # noqa: PLC0415 - it imports pydantic

    click.echo(ruling.disposition)
    rows = [("because", _because(called, ruling)), ("reason", ruling.reason), ("where", ruling.where)]
    for title, text in rows:
        if text:
            click.echo(f"  {title + ':':<8} {visible(text)}")


@rules_command.command("list")
@click.argument("worker", required=False, shell_complete=worker_names)
@click.option("--json", "as_json", is_flag=True, help="Print a JSON list.")
@click.pass_context
def list_rules_command(ctx: click.Context, /, worker: str | None, as_json: bool) -> None:
    """List all rules.

    Each has the file and the line where it stands. With WORKER, they are those that hold for its calls: its own, and
    those of llm-do.toml.
    """
    from ...privacy.display import visible  # noqa: PLC0415 - it imports pydantic
    from ..support.descriptions import rules_of  # noqa: PLC0415 - with it comes everything

    registry, names = (open_project(ctx, asks=True), None) if worker is None else open_worker(ctx, worker, asks=True)
    workers = registry.workers() if names is None else [names]
    rules = rules_of(registry.rule_book())
    for name in workers:
        rules += rules_of(_worker(registry, name).rule_book)
    if as_json:
        click.echo(json.dumps(rules, indent=2))
        return
    if not rules:
        click.echo("There are no rules. What asks by default asks: writing files, commands, MCP tools.", err=True)
    for rule in rules:
        reason = f" ({rule['reason']})" if rule["reason"] else ""
        where = rule["where"] or "(no file)"
        click.echo(visible(f"{where}: {rule['by']}: {rule['tool']}: {rule['rule']}{reason}"))


def _worker(registry: WorkerRegistry, name: str) -> WorkerEntry[Any]:
    from ...core.entries import WorkerEntry  # noqa: PLC0415

    entry = registry[name]
    if not isinstance(entry, WorkerEntry):
        raise click.UsageError(f"{name!r} is a function. Rules are about what workers call: name the worker.")
    return entry


def _judge(
    runtime: Any,
    registry: WorkerRegistry,
    caller: WorkerEntry[Any],
    tool: str,
    given: Mapping[str, Any],
    texts: Mapping[str, str],
) -> tuple[Entry[Any], Ruling]:
    """What is decided, and about which tool. Of several that rules call by one name, the first that fits is meant."""
    from ...errors import ArgumentError  # noqa: PLC0415
    from ..support.inputs import typed_arguments  # noqa: PLC0415

    meant, problems = _meant(registry, caller, tool), list[Exception]()
    for entry in meant:
        try:
            ruling = runtime.why(entry, {**given, **typed_arguments(entry, texts, with_files=True)}, worker=caller)
        except (ArgumentError, click.UsageError) as exc:
            problems.append(exc)
            continue
        if entry.name != tool and "/" not in tool:
            click.echo(f"llm-do: {tool} is looked at as {entry.name}.", err=True)
        return entry, ruling
    raise problems[0]


def _meant(registry: WorkerRegistry, caller: WorkerEntry[Any], tool: str) -> list[Entry[Any]]:
    from ...core.adapt import rule_name  # noqa: PLC0415
    from ...core.gate import NativeEntry  # noqa: PLC0415
    from ...errors import UnknownEntryError, did_you_mean  # noqa: PLC0415
    from ...policy.catalogue import is_built_in  # noqa: PLC0415
    from ..support.descriptions import meant  # noqa: PLC0415

    own = meant(registry, caller)
    if found := [entry for entry in own if entry.name == tool] or [entry for entry in own if rule_name(entry) == tool]:
        return found
    if registry.get(tool) is not None:
        click.echo(f"llm-do: worker {caller.name!r} does not have {tool}; code that it runs may call it.", err=True)
        return [registry[tool]]
    definition = caller.definition
    native = [item if isinstance(item, str) else item["kind"] for item in definition.native] if definition else []
    if tool in native:
        return [NativeEntry(tool)]
    if caller.toolsets and not is_built_in(tool):  # no toolset can have such a name
        click.echo(f"llm-do: {tool} is taken for a tool of a toolset, which only a run can tell.", err=True)
        entry = NativeEntry(tool.partition("/")[2] or tool)
        entry.kind = "tool"
        entry.qualified_name = tool if "/" in tool else None
        entry.requires_approval = any(not isinstance(item, str) for item in definition.toolsets) if definition else True
        return [entry]
    known = {*(entry.name for entry in own), *map(rule_name, own), *native}
    raise UnknownEntryError(f"Worker {caller.name!r} has no tool {tool!r}.{did_you_mean(tool, known)}")


def _because(called: Entry[Any], ruling: Ruling) -> str:
    if ruling.disposition == "allow" and not ruling.explicit:
        return f"no rule speaks of it, and {called.name} asks nobody by itself"
    return ruling.because


def _as_json(worker: str, called: Entry[Any], ruling: Ruling) -> dict[str, Any]:
    from ...core.adapt import rule_name  # noqa: PLC0415

    return {
        "decision": ruling.disposition,
        "worker": worker,
        "tool": called.name,
        "rule_name": rule_name(called),
        "rule": None if ruling.rule is None else str(ruling.rule),
        "where": ruling.where,
        "reason": ruling.reason,
        "because": _because(called, ruling),
        "explicit": ruling.explicit,
        "shell": ruling.shell,
        "unsandboxed": ruling.unsandboxed,
    }
