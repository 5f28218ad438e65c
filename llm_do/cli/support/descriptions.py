"""What `llm-do show` tells about a worker or a function: first as plain values, and then in words."""

from __future__ import annotations

import inspect
import json
from collections.abc import Iterator
from dataclasses import asdict
from decimal import Decimal
from pathlib import Path
from typing import Any, TypeAlias

from pydantic_ai import Tool

from ...budgets.limits import Limits
from ...core.adapt import adapt, rule_name
from ...core.adapt import adapt, rule_name
from ...core.context import Context
from ...core.entries import ToolEntry, WorkerEntry
from ...core.entry import Entry
from ...core.plane import proxy_tool
from ...core.runtime import Runtime
from ...definitions.definition import McpToolset
from ...errors import ModelChoiceError
from ...models import choose_default_model
from ...policy.catalogue import DEFAULTS
from ...policy.rules import RuleBook
from ...projects.registry import WorkerRegistry
from .options import SessionOptions
from .project_check.usable import ModelProblem, find_model
from .sessions import session_limits

Described: TypeAlias = dict[str, Any]
Section: TypeAlias = tuple[str, list[str]]


def describe(registry: WorkerRegistry, entry: Entry[Any]) -> Described:
    """All that there is to tell about an entry, as JSON can say it."""
    return _worker(registry, entry) if isinstance(entry, WorkerEntry) else _function(registry, entry)


def rules_of(book: RuleBook | None) -> list[Described]:
    """The rules of one speaker, with where they stand."""
    if book is None:
        return []
    return [
        {"tool": name, "rule": str(rule), "reason": rule.reason, "where": rule.where, "by": book.speaker}
        for name, said in book.rules.items()
        for rule in said
    ]


def known_tools(registry: WorkerRegistry, worker: WorkerEntry[Any]) -> list[Entry[Any]]:
    """The tools of a worker that are known without starting anything."""
    return [registry[tool] if isinstance(tool, str) else tool for tool in worker.tools]


def _worker(registry: WorkerRegistry, entry: WorkerEntry[Any]) -> Described:
    file, definition = registry.file_of(entry.name), entry.definition
    session_rules = registry.rule_book()
    return {
        "name": entry.name,
        "kind": "worker",
        "description": entry.description,
        "file": _shown_path(file.path, registry.root) if file is not None else entry.source,
        "generated": entry.generated,
        "created_by": _creator(entry),
        "locked": definition.locked if definition is not None else False,
        "model": _model(registry, entry),
        "model_settings": dict(entry.model_settings) if entry.model_settings else None,
        "compatible_models": list(entry.compatible_models),
        "instructions": _instructions(entry),
        "input": entry.parameters.json_schema,
        "takes_input": entry.input_type != "none",
        "output": _output(registry, entry),
        "tools": [_tool(tool, entry.proxy_of(tool)) for tool in known_tools(registry, entry)],
        "toolsets": [_toolset(item) for item in definition.toolsets if not _is_ours(item)] if definition else [],
        "native": [item if isinstance(item, str) else dict(item) for item in definition.native] if definition else [],
        "allow_workers": list(entry.allow_workers),
        "rules": rules_of(entry.rule_book) + rules_of(session_rules),
        "roots": _roots(entry),
        "attachments": entry.attachment_policy.model_dump(mode="json"),
        "limits": None if entry.limits is None else _given_limits(entry.limits),
        "session_limits": _given_limits(session_limits(registry.config.session_limits(), SessionOptions())),
    }


def _creator(worker: WorkerEntry[Any]) -> str | None:
    """Return who created a worker. Of a generated one, its seal tells, and not what its file says."""
    if worker.generated:
        return next(iter(worker.creators), None)
    return worker.definition.created_by if worker.definition is not None else None


def _function(registry: WorkerRegistry, entry: Entry[Any]) -> Described:
    """A function, or an entry of a class of the project's own."""
    book = registry.rule_book()
    source = adapt(entry).source
    signature = inspect.signature(inspect.unwrap(entry.tool.function)) if isinstance(entry, ToolEntry) else None
    return {
        **_tool(entry, _proxy(entry)),
        "kind": "function" if entry.kind == "tool" else entry.kind,
        "signature": None if signature is None else f"{entry.name}{signature}",
        "source": _shown_source(source, registry.root),
        "rules": [rule for rule in rules_of(book) if rule["tool"] == rule_name(entry)],
    }


def _tool(entry: Entry[Any], proxy: Tool[Context]) -> Described:
    """A tool as the agent is given it, and what becomes of a call that no rule speaks of."""
    shown = proxy.tool_def
    asks = entry.requires_approval or DEFAULTS.get(rule_name(entry), "allow") == "ask"
    return {
        "name": shown.name,
        "kind": "function" if entry.kind == "tool" else entry.kind,
        "description": shown.description,
        "parameters": shown.parameters_json_schema,
        "rule_name": rule_name(entry),
        "without_a_rule": "ask" if asks else "allow",
        "effects": sorted(adapt(entry).effects),
    }


def _proxy(entry: Entry[Any]) -> Tool[Context]:
    own = adapt(entry)
    return own.proxy or proxy_tool(own)


def _model(registry: WorkerRegistry, entry: WorkerEntry[Any]) -> Described:
    if entry.model is not None:
        return _described_model(entry.model, "the worker's own")
    try:
        choice = choose_default_model(None, registry.config.model)
    except ModelChoiceError as exc:
        return {"name": None, "reason": f"{exc}"}
    if choice.model is None:
        return {"name": None, "reason": "nothing says which: `llm-do doctor` tells what can"}
    return _described_model(choice.model, choice.reason)


def _described_model(model: Any, reason: str) -> Described:
    name = _model_name(model)
    looked = find_model(name) if name.partition(":")[0] == "local" else None  # of others it may take seconds
    problem = {"problem": looked.message} if isinstance(looked, ModelProblem) else {}
    return {"name": name, "reason": reason, **problem}


def _model_name(model: Any) -> str:
    return model if isinstance(model, str) else f"{model.system}:{model.model_name}"


def _instructions(entry: WorkerEntry[Any]) -> str | None:
    """What the model is told. A worker with files is told about its roots as well."""
    said = entry.instructions
    if said is not None and not isinstance(said, str):
        said = f"(what {getattr(said, '__qualname__', said)} returns when it runs)"
    files = entry.open_sandbox()
    if files is None:
        return said
    try:
        return "\n\n".join(part for part in (said, files.manager.describe()) if part)
    finally:
        files.manager.close()


def _output(registry: WorkerRegistry, entry: WorkerEntry[Any]) -> Any:
    if entry.output_schema is not None:
        return entry.output_schema
    if entry.output_type is str:
        return {"type": "string"}
    session = Runtime(registry)
    return entry.agent_for(session)[0].output_json_schema()


def _is_ours(toolset: str | McpToolset) -> bool:
    return isinstance(toolset, str) and ":" not in toolset


def _toolset(toolset: str | McpToolset) -> Described:
    if isinstance(toolset, str):
        return {"factory": toolset}
    server = toolset.mcp
    # The values of variables and headers are often keys.
    hidden: dict[str, Any] = {"env": sorted(server.env or ()), "headers": sorted(server.headers or ())}
    reached = {"command": [*server.command, *server.args]} if server.command is not None else {"url": server.url}
    return {
        "mcp": {**reached, **{key: names for key, names in hidden.items() if names}},
        "name": toolset.name,
        "prefix": toolset.prefix,
    }


def _roots(entry: WorkerEntry[Any]) -> list[Described]:
    roots = entry.sandbox.paths if entry.sandbox is not None else {}
    base = entry.base.absolute()
    return [
        {
            "name": name,
            "folder": str(root.folder(base)),
            "mode": root.mode,
            "suffixes": None if root.suffixes is None else list(root.suffixes),
            "max_file_bytes": root.max_file_bytes,
            "exists": root.folder(base).is_dir(),
        }
        for name, root in roots.items()
    ]


def _given_limits(limits: Limits) -> Described:
    return {
        key: float(value) if isinstance(value, Decimal) else value
        for key, value in asdict(limits).items()
        if value is not None
    }


def _shown_path(path: Path, root: Path) -> str:
    return str(path.relative_to(root)) if path.is_relative_to(root) else str(path)


def _shown_source(source: str | None, root: Path) -> str | None:
    if source is None:
        return None
    path, _, line = source.rpartition(":")
    return f"{_shown_path(Path(path), root)}:{line}" if path and line.isdigit() else source


# -- in words ----------------------------------------------------------------------------------------


def sections(described: Described) -> Iterator[Section]:
    """The same for a person: titles, and the lines below them."""
    if "signature" in described:
        yield from _function_sections(described)
    else:
        yield from _worker_sections(described)


def _function_sections(described: Described) -> Iterator[Section]:
    yield f"{described['name']}: a {described['kind']} ({described['source']})", _lines(described["description"])
    if described["signature"]:
        yield "Signature", [described["signature"]]
    yield "Takes", [_json(described["parameters"])]
    yield "Effects", [", ".join(described["effects"]) or "none declared"]
    asks = described["without_a_rule"] == "ask"
    yield "Without a rule", ["it asks before it runs" if asks else "it runs"]
    yield "Rules", [_rule(rule) for rule in described["rules"]] or ["none of llm-do.toml"]


def _worker_sections(described: Described) -> Iterator[Section]:
    creator = described["created_by"] or "no one that its seal names"
    generated = f", created by {creator}" if described["generated"] else ""
    yield f"{described['name']}: a worker ({described['file']}{generated})", _lines(described["description"])
    model, settings = described["model"], described["model_settings"]
    yield (
        "Model",
        [
            f"{model['name'] or 'none'} ({model['reason']})",
            *([model["problem"]] if "problem" in model else []),
            *([] if settings is None else [_json(settings)]),
            *([f"it can use: {', '.join(described['compatible_models'])}"] if described["compatible_models"] else []),
        ],
    )
    yield "Instructions", _lines(described["instructions"]) or ["none"]
    yield "Takes", [_json(described["input"]) if described["takes_input"] else "no input: its instructions are enough"]
    yield "Returns", ["text" if described["output"] == {"type": "string"} else _json(described["output"])]
    yield "Tools", [line for tool in described["tools"] for line in _tool_lines(tool)] or ["none"]
    if described["toolsets"]:
        yield "Toolsets, whose tools are known when they run", [_json(toolset) for toolset in described["toolsets"]]
    if described["native"]:
        yield "Native tools, which the provider runs", [_json(item) for item in described["native"]]
    if described["allow_workers"]:
        allowed = described["allow_workers"]
        yield "May call with worker_call", ["any worker" if "*" in allowed else ", ".join(allowed)]
    yield "Rules", [_rule(rule) for rule in described["rules"]] or ["none"]
    if described["roots"]:
        yield "Files", [_root(root) for root in described["roots"]]
    yield "Limits", _limits(described)


def _lines(text: str | None) -> list[str]:
    return [text] if text else []


def _tool_lines(tool: Described) -> Iterator[str]:
    spoken_of = f", in rules {tool['rule_name']}" if tool["rule_name"] != tool["name"] else ""
    yield f"{tool['name']} ({tool['kind']}{spoken_of}; without a rule: {tool['without_a_rule']})"
    for line in (tool["description"] or "").splitlines():
        yield f"    {line}"
    yield f"    {_json(tool['parameters'])}"


def _rule(rule: Described) -> str:
    reason = f" ({rule['reason']})" if rule["reason"] else ""
    return f"{rule['where'] or rule['by']}: {rule['tool']}: {rule['rule']}{reason}"


def _root(root: Described) -> str:
    suffixes = "" if root["suffixes"] is None else f", only {' '.join(root['suffixes']) or 'nothing'}"
    missing = "" if root["exists"] else ", which does not exist"
    return f"{root['name']}: {root['folder']}{missing} ({root['mode']}{suffixes}, {root['max_file_bytes']} bytes)"


def _limits(described: Described) -> list[str]:
    rows = [("each call", described["limits"]), ("the session", described["session_limits"])]
    return [f"{who}: {', '.join(f'{k} {v}' for k, v in limits.items())}" for who, limits in rows if limits]


def _json(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)
