"""A generated worker never has more authority than its creator: what its file says is cut to what the creator has."""

from __future__ import annotations

from pathlib import Path

from .definition import AttachmentPolicy, WorkerDefinition, WorkerLimits
from .rules import ToolRule, stricter
from .sandbox import SandboxConfig


def cut(wanted: WorkerDefinition, creator: WorkerDefinition | None, base: Path) -> WorkerDefinition:
    """What a generated worker really has. Without its creator it has nothing but its words."""
    have = creator or WorkerDefinition(name=wanted.name)
    # A reference runs code of the project: only what the creator refers to itself.
    shapes = {
        key: None if isinstance(getattr(wanted, key), str) and getattr(wanted, key) != getattr(have, key) else value
        for key, value in (("input", wanted.input), ("output", wanted.output))
    }
    sandbox = wanted.sandbox.within(have.sandbox or SandboxConfig(), base) if wanted.sandbox is not None else None
    return wanted.model_copy(
        update={
            **shapes,
            "tools": tuple(tool for tool in wanted.tools if tool in have.tools),
            "toolsets": tuple(toolset for toolset in wanted.toolsets if toolset in have.toolsets),
            "allow_workers": _workers(wanted.allow_workers, have.allow_workers),
            "tool_rules": _rules(wanted.tool_rules, have.tool_rules),
            "sandbox": sandbox if sandbox is not None and sandbox.paths else None,
            "native": tuple(tool for tool in wanted.native if tool in have.native),
            "attachment_policy": _attachments(wanted.attachment_policy, have.attachment_policy),
            "limits": _limits(wanted.limits, have.limits),
        }
    )


def _workers(wanted: tuple[str, ...], have: tuple[str, ...]) -> tuple[str, ...]:
    if have == ("*",):
        return wanted
    return have if wanted == ("*",) else tuple(name for name in wanted if name in have)


def _rules(wanted: dict[str, ToolRule], have: dict[str, ToolRule]) -> dict[str, ToolRule]:
    """The stricter word of both. An `allow` that the creator does not have is not said at all."""
    rules = {name: rule for name, rule in have.items() if rule.disposition != "allow" or name in wanted}
    for name, rule in wanted.items():
        if name in have:
            rules[name] = stricter(rule, have[name])
        elif rule.disposition != "allow":
            rules[name] = rule
    return rules


def _attachments(wanted: AttachmentPolicy, have: AttachmentPolicy) -> AttachmentPolicy:
    suffixes = wanted.suffixes if have.suffixes is None else have.suffixes
    if wanted.suffixes is not None and have.suffixes is not None:
        suffixes = tuple(suffix for suffix in wanted.suffixes if suffix.endswith(have.suffixes))
    return AttachmentPolicy(
        max_attachments=min(wanted.max_attachments, have.max_attachments),
        max_total_bytes=min(wanted.max_total_bytes, have.max_total_bytes),
        suffixes=suffixes,
    )


def _limits(wanted: WorkerLimits | None, have: WorkerLimits | None) -> WorkerLimits | None:
    if wanted is None or have is None:
        return wanted or have
    values = {}
    for name in WorkerLimits.model_fields:
        given = [value for value in (getattr(wanted, name), getattr(have, name)) if value is not None]
        values[name] = min(given) if given else None
    return WorkerLimits(**values)
