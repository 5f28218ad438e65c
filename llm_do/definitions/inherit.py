"""Restrict generated workers to what their creators have."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

from ..models.resolve import custom_provider, names_model_file
from ..policy.rules import ToolRule, anchor_rules, remove_ineffective
from ..sandbox import SandboxConfig
from .definition import WorkerDefinition, WorkerLimits, places_of
from .fields import AttachmentPolicy

T = TypeVar("T")

_HARMLESS_SETTINGS = frozenset(
    {
        *("max_tokens", "temperature", "top_p", "top_k", "seed", "presence_penalty", "frequency_penalty", "logit_bias"),
        *("stop_sequences", "thinking", "parallel_tool_calls", "timeout"),
    }
)
"""Settings that change how a model writes. Others reach its provider as they are: headers, and tools that it runs."""


def restrict_to(
    worker: WorkerDefinition, creator: WorkerDefinition | None, base: Path, providers: Mapping[str, str]
) -> WorkerDefinition:
    """Return a generated worker without what its creator does not have. Without a creator, only its words are left.

    `providers` are the project's own: their factories are code, which gets the name of a model.
    """
    creator = creator or WorkerDefinition(name=worker.name)
    # A reference runs code of the project: only what the creator refers to itself.
    shapes = {
        key: None if isinstance(shape, str) and shape != getattr(creator, key) else shape
        for key, shape in (("input", worker.input), ("output", worker.output))
    }
    sandbox = worker.sandbox and worker.sandbox.restrict_to(creator.sandbox or SandboxConfig(), base)
    runs_code = names_model_file(worker.model) or custom_provider(worker.model, providers) is not None
    common = {key: _common(getattr(worker, key), getattr(creator, key)) for key in ("tools", "toolsets", "native")}
    return worker.model_copy(
        update={
            **shapes,
            **common,
            "model": creator.model if runs_code else worker.model,
            "model_settings": _restrict_settings(worker.model_settings, creator.model_settings or {}),
            "allow_workers": _restrict_workers(worker.allow_workers, creator.allow_workers),
            "tool_rules": _restrict_rules(worker, creator, base),
            "sandbox": sandbox if sandbox and sandbox.paths else None,
            "attachment_policy": _stricter_policy(worker.attachment_policy, creator.attachment_policy),
            "limits": _lower_limits(worker.limits, creator.limits),
        }
    )


def _common(items: tuple[T, ...], allowed: tuple[T, ...]) -> tuple[T, ...]:
    return tuple(item for item in items if item in allowed)


def _restrict_settings(settings: dict[str, Any] | None, allowed: dict[str, Any]) -> dict[str, Any] | None:
    return settings and {
        name: value
        for name, value in settings.items()
        if name in _HARMLESS_SETTINGS or (name in allowed and allowed[name] == value)
    }


def _restrict_workers(names: tuple[str, ...], allowed: tuple[str, ...]) -> tuple[str, ...]:
    if allowed == ("*",):
        return names
    return allowed if names == ("*",) else _common(names, allowed)


def _restrict_rules(worker: WorkerDefinition, creator: WorkerDefinition, base: Path) -> dict[str, tuple[ToolRule, ...]]:
    """Return the restrictions of both. A permission stays only if the creator has the very same.

    Paths become absolute: a root of one worker may be another folder than the root of that name of another.
    """
    own, inherited = (anchor_rules(each.tool_rules, places_of(each.sandbox, base)) for each in (worker, creator))
    restricted: dict[str, tuple[ToolRule, ...]] = {}
    for name in (*inherited, *(name for name in own if name not in inherited)):
        rules, above = own.get(name, ()), inherited.get(name, ())
        combined = [_without_permission(rule) for rule in above if rule not in rules]
        combined += [rule if _is_permitted(rule, above) else _without_permission(rule) for rule in rules]
        if effective := remove_ineffective([rule for rule in combined if rule is not None]):
            restricted[name] = effective
    return restricted


def _is_permitted(rule: ToolRule, above: Sequence[ToolRule]) -> bool:
    only_allows = rule.disposition == "allow" and not rule.shell and not rule.unsandboxed
    return rule in above or (only_allows and any(other.disposition == "allow" and other.always for other in above))


def _without_permission(rule: ToolRule) -> ToolRule | None:
    """Return the restriction in a rule, if it has one."""
    # Without a rule on them, commands that need a shell are refused, which is less than asking.
    return None if rule.disposition == "allow" or rule.shell else replace(rule, unsandboxed=False)


def _stricter_policy(own: AttachmentPolicy, above: AttachmentPolicy) -> AttachmentPolicy:
    suffixes = own.suffixes if above.suffixes is None else above.suffixes
    if own.suffixes is not None and above.suffixes is not None:
        suffixes = tuple(suffix for suffix in own.suffixes if suffix.endswith(above.suffixes))
    return AttachmentPolicy(
        max_attachments=min(own.max_attachments, above.max_attachments),
        max_total_bytes=min(own.max_total_bytes, above.max_total_bytes),
        suffixes=suffixes,
    )


def _lower_limits(own: WorkerLimits | None, above: WorkerLimits | None) -> WorkerLimits | None:
    if own is None or above is None:
        return own or above
    values = {}
    for name in WorkerLimits.model_fields:
        limits = [value for value in (getattr(own, name), getattr(above, name)) if value is not None]
        values[name] = min(limits, default=None)
    return WorkerLimits(**values)
