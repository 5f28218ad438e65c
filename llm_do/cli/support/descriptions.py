"""Descriptions of workers and functions for `llm-do show`: as JSON values, and as text."""

from __future__ import annotations

import inspect
import json
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import asdict
from decimal import Decimal
from pathlib import Path
from typing import Any, TypeAlias

from pydantic_ai import Tool

from ...budgets.limits import Limits
from ...core.adapt import adapt, rule_name
from ...core.context import Context
from ...core.entry import Entry
from ...core.plane import proxy_tool
from ...core.runtime import Runtime
from ...core.tool import ToolEntry
from ...core.worker import WorkerEntry
from ...definitions.definition import WorkerDefinition
from ...definitions.toolsets import McpToolset
from ...errors import ModelChoiceError
from ...models.choice import choose_default_model
from ...policy.catalogue import DEFAULTS
from ...policy.rules import RuleBook
from ...privacy.display import visible
from ...projects.registry import WorkerRegistry
from .options import SessionOptions
from .project_check.models import ModelProblem, find_model
from .sessions import session_limits

Description: TypeAlias = dict[str, Any]
Section: TypeAlias = tuple[str, Sequence[str | None]]
"""A title, and the texts below it. Empty ones and `None` are left out."""


def describe(registry: WorkerRegistry, entry: Entry[Any]) -> Description:
    return _worker(registry, entry) if isinstance(entry, WorkerEntry) else _function(registry, entry)


def rules_of(book: RuleBook | None) -> list[Description]:
    if book is None:
        return []
    return [
        {"tool": name, "rule": str(rule), "reason": rule.reason, "where": rule.where, "by": book.speaker}
        for name, rules in book.rules.items()
        for rule in rules
    ]


def known_tools(registry: WorkerRegistry, worker: WorkerEntry[Any]) -> list[Entry[Any]]:
    """Return the tools of a worker that are known before it starts."""
    return [registry[tool] if isinstance(tool, str) else tool for tool in worker.tools]


def _worker(registry: WorkerRegistry, entry: WorkerEntry[Any]) -> Description:
    file = registry.file_of(entry.name)
    definition = entry.definition or WorkerDefinition.model_construct()  # a worker that code makes has none
    foreign = [item for item in definition.toolsets if not isinstance(item, str) or ":" in item]
    # The seal of a generated worker says who created it; its file is not trusted.
    created_by = next(iter(entry.creators), None) if entry.generated else definition.created_by
    return {
        "name": entry.name,
        "kind": "worker",
        "description": entry.description,
        "file": _relative(f"{file.path}", registry.root) if file is not None else entry.source,
        "generated": entry.generated,
        "created_by": created_by,
        "locked": definition.locked,
        "model": _model(registry, entry),
        "model_settings": dict(entry.model_settings) if entry.model_settings else None,
        "compatible_models": list(entry.compatible_models),
        "instructions": _instructions(entry),
        "input": entry.parameters.json_schema,
        "takes_input": entry.input_type != "none",
        "output": _output(registry, entry),
        "tools": [_tool(tool, entry.proxy_of(tool)) for tool in known_tools(registry, entry)],
        "toolsets": [_toolset(item) for item in foreign],
        "native": [item if isinstance(item, str) else dict(item) for item in definition.native],
        "allow_workers": list(entry.allow_workers),
        "rules": rules_of(entry.rule_book) + rules_of(registry.rule_book()),
        "roots": _roots(entry),
        "attachments": entry.attachment_policy.model_dump(mode="json"),
        "limits": None if entry.limits is None else _limit_values(entry.limits),
        "session_limits": _limit_values(session_limits(registry.config.session_limits(), SessionOptions())),
    }


def _function(registry: WorkerRegistry, entry: Entry[Any]) -> Description:
    """Return the description of a function, or of an entry of the project's own class."""
    adapted = adapt(entry)
    signature = inspect.signature(inspect.unwrap(entry.tool.function)) if isinstance(entry, ToolEntry) else None
    return {
        **_tool(entry, adapted.proxy or proxy_tool(adapted)),
        "signature": None if signature is None else f"{entry.name}{signature}",
        "source": _relative(adapted.source, registry.root),
        "rules": [rule for rule in rules_of(registry.rule_book()) if rule["tool"] == rule_name(entry)],
    }


def _tool(entry: Entry[Any], proxy: Tool[Context]) -> Description:
    """Return a tool as the agent gets it, and whether it asks where no rule applies."""
    definition = proxy.tool_def
    asks = entry.requires_approval or DEFAULTS.get(rule_name(entry), "allow") == "ask"
    return {
        "name": definition.name,
        "kind": "function" if entry.kind == "tool" else entry.kind,
        "description": definition.description,
        "parameters": definition.parameters_json_schema,
        "rule_name": rule_name(entry),
        "without_a_rule": "ask" if asks else "allow",
        "effects": sorted(adapt(entry).effects or ()),
    }


def _model(registry: WorkerRegistry, entry: WorkerEntry[Any]) -> Description:
    if entry.model is not None:
        return _describe_model(entry.model, "the worker's own")
    try:
        choice = choose_default_model(None, registry.config.model)
    except ModelChoiceError as exc:
        return {"name": None, "reason": f"{exc}"}
    if choice.model is None:
        return {"name": None, "reason": "no setting names one: see `llm-do doctor`"}
    return _describe_model(choice.model, choice.reason)


def _describe_model(model: Any, reason: str) -> Description:
    name = model if isinstance(model, str) else f"{model.system}:{model.model_name}"
    found = find_model(name) if name.partition(":")[0] == "local" else None  # others may take seconds
    problem = {"problem": found.message} if isinstance(found, ModelProblem) else {}
    return {"name": name, "reason": reason, **problem}


def _instructions(entry: WorkerEntry[Any]) -> str | None:
    """Return the instructions that the model gets, with the description of the worker's roots."""
    text = entry.instructions
    if text is not None and not isinstance(text, str):
        text = f"(what {getattr(text, '__qualname__', text)} returns when it runs)"
    files = entry.open_sandbox()
    if files is None:
        return text
    with closing(files.manager) as manager:
        return "\n\n".join(part for part in (text, manager.describe()) if part)


def _output(registry: WorkerRegistry, entry: WorkerEntry[Any]) -> Any:
    if entry.output_schema is not None:
        return entry.output_schema
    if entry.output_type is str:
        return {"type": "string"}
    return entry.agent_for(Runtime(registry).resolve_at_top)[0].output_json_schema()


def _toolset(toolset: str | McpToolset) -> Description:
    if isinstance(toolset, str):
        return {"factory": toolset}
    server = toolset.mcp
    mcp: dict[str, Any] = {"url": server.url}
    if server.command is not None:
        mcp = {"command": [*server.command, *server.args]}
    for kind, names in (("env", server.env), ("headers", server.headers)):
        if names:  # only names: the values of variables and headers are often keys
            mcp[kind] = sorted(names)
    return {"mcp": mcp, "name": toolset.name, "prefix": toolset.prefix}


def _roots(entry: WorkerEntry[Any]) -> list[Description]:
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
        for name, root in (entry.sandbox.paths if entry.sandbox is not None else {}).items()
    ]


def _limit_values(limits: Limits) -> Description:
    return {
        key: float(value) if isinstance(value, Decimal) else value
        for key, value in asdict(limits).items()
        if value is not None
    }


def _relative(place: str | None, root: Path) -> str | None:
    """Return a path, with or without a line number, relative to the project."""
    return None if place is None else place.removeprefix(f"{root}".removesuffix("/") + "/")


# -- as text -----------------------------------------------------------------------------------------


def describe_as_text(description: Description) -> str:
    sections = _function_sections(description) if "signature" in description else _worker_sections(description)
    return "\n\n".join(_section(title, texts) for title, texts in sections)


def _section(title: str, texts: Sequence[str | None]) -> str:
    lines = [line for text in texts if text for line in visible(text, keep="\n\t").split("\n")]
    return "\n".join([visible(title), *(f"  {line}".rstrip() for line in lines)])


def _function_sections(description: Description) -> Iterator[Section]:
    title = f"{description['name']}: a {description['kind']} ({description['source']})"
    yield title, [description["description"]]
    if description["signature"]:
        yield "Signature", [description["signature"]]
    yield "Takes", [_json(description["parameters"])]
    yield "Effects", [", ".join(description["effects"]) or "none declared"]
    asks = description["without_a_rule"] == "ask"
    yield "Without a rule", ["it asks before it runs" if asks else "it runs"]
    yield "Rules", [_rule(rule) for rule in description["rules"]] or ["none in llm-do.toml"]


def _worker_sections(description: Description) -> Iterator[Section]:
    creator = description["created_by"] or "no one that its seal names"
    generated = f", created by {creator}" if description["generated"] else ""
    yield f"{description['name']}: a worker ({description['file']}{generated})", [description["description"]]
    yield "Model", list(_model_lines(description))
    yield "Instructions", [description["instructions"] or "none"]
    takes = _json(description["input"]) if description["takes_input"] else "no input: its instructions are enough"
    yield "Takes", [takes]
    yield "Returns", ["text" if description["output"] == {"type": "string"} else _json(description["output"])]
    yield "Tools", [line for tool in description["tools"] for line in _tool_lines(tool)] or ["none"]
    if description["toolsets"]:
        yield "Toolsets (their tools are known when they run)", [_json(toolset) for toolset in description["toolsets"]]
    if description["native"]:
        yield "Native tools (run by the provider)", [_json(item) for item in description["native"]]
    if description["allow_workers"]:
        allowed = description["allow_workers"]
        yield "May call with worker_call", ["any worker" if "*" in allowed else ", ".join(allowed)]
    yield "Rules", [_rule(rule) for rule in description["rules"]] or ["none"]
    if description["roots"]:
        yield "Files", [_root(root) for root in description["roots"]]
    yield "Limits", _limits(description)


def _model_lines(description: Description) -> Iterator[str | None]:
    model = description["model"]
    yield f"{model['name'] or 'none'} ({model['reason']})"
    yield model.get("problem")
    if description["model_settings"] is not None:
        yield _json(description["model_settings"])
    if description["compatible_models"]:
        yield f"it can use: {', '.join(description['compatible_models'])}"


def _tool_lines(tool: Description) -> Iterator[str]:
    alias = f", in rules {tool['rule_name']}" if tool["rule_name"] != tool["name"] else ""
    yield f"{tool['name']} ({tool['kind']}{alias}; without a rule: {tool['without_a_rule']})"
    for line in (tool["description"] or "").splitlines():
        yield f"    {line}"
    yield f"    {_json(tool['parameters'])}"


def _rule(rule: Description) -> str:
    reason = f" ({rule['reason']})" if rule["reason"] else ""
    return f"{rule['where'] or rule['by']}: {rule['tool']}: {rule['rule']}{reason}"


def _root(root: Description) -> str:
    suffixes = "" if root["suffixes"] is None else f", only {' '.join(root['suffixes']) or 'nothing'}"
    missing = "" if root["exists"] else ", which does not exist"
    return f"{root['name']}: {root['folder']}{missing} ({root['mode']}{suffixes}, {root['max_file_bytes']} bytes)"


def _limits(description: Description) -> list[str]:
    rows = [("each call", description["limits"]), ("the session", description["session_limits"])]
    return [f"{who}: {', '.join(f'{k} {v}' for k, v in limits.items())}" for who, limits in rows if limits]


def _json(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)
