"""The ruling about one call that a worker could make, for `llm-do rules why`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import click

from ...core.adapt import rule_name
from ...core.entry import Entry
from ...core.gate import NativeEntry
from ...core.worker import WorkerEntry
from ...errors import ArgumentError, UnknownEntryError, did_you_mean
from ...policy.catalogue import is_built_in
from ...policy.rules import Ruling
from ...projects.registry import WorkerRegistry
from .descriptions import known_tools
from .inputs import typed_arguments


def rule_on_call(
    registry: WorkerRegistry,
    caller: WorkerEntry[Any],
    tool: str,
    arguments: Mapping[str, Any],
    texts: Mapping[str, str],
) -> dict[str, Any]:
    """Return the ruling about a call, as JSON values. Of tools with this rule name, the first that fits is taken."""
    runtime = registry.runtime()
    problems: list[Exception] = []
    for entry in _find_tools(registry, caller, tool):
        try:
            ruling = runtime.why(entry, {**arguments, **typed_arguments(entry, texts, with_files=True)}, worker=caller)
        except (ArgumentError, click.UsageError) as exc:
            problems.append(exc)
            continue
        if entry.name != tool and "/" not in tool:
            click.echo(f"llm-do: {tool} is taken as {entry.name}.", err=True)
        return _describe_ruling(caller, entry, ruling)
    raise problems[0]


def _find_tools(registry: WorkerRegistry, caller: WorkerEntry[Any], tool: str) -> list[Entry[Any]]:
    """Return the tools that a name could mean, and print a note if only a run can tell."""
    own = known_tools(registry, caller)
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
        click.echo(f"llm-do: {tool} is taken as a tool of a toolset; only a run can tell.", err=True)
        entry = NativeEntry(tool.partition("/")[2] or tool)
        entry.kind = "tool"
        entry.qualified_name = tool if "/" in tool else None
        entry.requires_approval = any(not isinstance(item, str) for item in definition.toolsets) if definition else True
        return [entry]
    known = {*(entry.name for entry in own), *map(rule_name, own), *native}
    raise UnknownEntryError(f"Worker {caller.name!r} has no tool {tool!r}.{did_you_mean(tool, known)}")


def _describe_ruling(caller: WorkerEntry[Any], tool: Entry[Any], ruling: Ruling) -> dict[str, Any]:
    by_default = f"no rule applies, and {tool.name} needs no approval by default"
    return {
        "decision": ruling.disposition,
        "worker": caller.name,
        "tool": tool.name,
        "rule_name": rule_name(tool),
        "rule": None if ruling.rule is None else str(ruling.rule),
        "where": ruling.where,
        "reason": ruling.reason,
        "because": by_default if ruling.disposition == "allow" and not ruling.explicit else ruling.because,
        "explicit": ruling.explicit,
        "shell": ruling.shell,
        "unsandboxed": ruling.unsandboxed,
    }
