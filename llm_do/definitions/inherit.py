"""A generated worker never has more authority than its creator: what its file says is cut to what the creator has."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from ..models import is_own_file, own_provider
from ..policy.rules import ToolRule, anchor_rules, remove_ineffective
from ..sandbox import SandboxConfig
from .definition import AttachmentPolicy, WorkerDefinition, WorkerLimits, places_of

_HARMLESS_SETTINGS = frozenset(
    {
        *("max_tokens", "temperature", "top_p", "top_k", "seed", "presence_penalty", "frequency_penalty", "logit_bias"),
        *("stop_sequences", "thinking", "parallel_tool_calls", "timeout"),
    }
)
"""Settings that change how a model writes. Others reach its provider as they are: headers, and tools that it runs."""


def cut(
    wanted: WorkerDefinition, creator: WorkerDefinition | None, base: Path, providers: Mapping[str, str]
) -> WorkerDefinition:
    """Return what a generated worker has in fact. Without its creator it has nothing but its words.

    `providers` are the project's own: their factories are code, which gets the name of a model.
    """
    have = creator or WorkerDefinition(name=wanted.name)
    # A reference runs code of the project: only what the creator refers to itself.
    shapes = {
        key: None if isinstance(getattr(wanted, key), str) and getattr(wanted, key) != getattr(have, key) else value
        for key, value in (("input", wanted.input), ("output", wanted.output))
    }
    sandbox = wanted.sandbox.within(have.sandbox or SandboxConfig(), base) if wanted.sandbox is not None else None
    runs_code = is_own_file(wanted.model) or own_provider(wanted.model, providers) is not None
    return wanted.model_copy(
        update={
            **shapes,
            "model": have.model if runs_code else wanted.model,
            "model_settings": _settings(wanted.model_settings, have.model_settings),
            "tools": tuple(tool for tool in wanted.tools if tool in have.tools),
            "toolsets": tuple(toolset for toolset in wanted.toolsets if toolset in have.toolsets),
            "allow_workers": _workers(wanted.allow_workers, have.allow_workers),
            "tool_rules": _rules(wanted, have, base),
            "sandbox": sandbox if sandbox is not None and sandbox.paths else None,
            "native": tuple(tool for tool in wanted.native if tool in have.native),
            "attachment_policy": _attachments(wanted.attachment_policy, have.attachment_policy),
            "limits": _limits(wanted.limits, have.limits),
        }
    )


def _settings(wanted: dict[str, Any] | None, have: dict[str, Any] | None) -> dict[str, Any] | None:
    if wanted is None:
        return None
    given = have or {}
    return {
        name: value
        for name, value in wanted.items()
        if name in _HARMLESS_SETTINGS or (name in given and given[name] == value)
    }


def _workers(wanted: tuple[str, ...], have: tuple[str, ...]) -> tuple[str, ...]:
    if have == ("*",):
        return wanted
    return have if wanted == ("*",) else tuple(name for name in wanted if name in have)


def _rules(wanted: WorkerDefinition, have: WorkerDefinition, base: Path) -> dict[str, tuple[ToolRule, ...]]:
    """The restrictions of both. What permits something stays only if the creator says the very same.

    Paths become absolute: a root of one worker may be another folder than the root of that name of another.
    """
    ours, theirs = (anchor_rules(worker.tool_rules, places_of(worker.sandbox, base)) for worker in (wanted, have))
    rules: dict[str, tuple[ToolRule, ...]] = {}
    for name in (*theirs, *(name for name in ours if name not in theirs)):
        said, given = ours.get(name, ()), theirs.get(name, ())
        kept = [_restriction(rule) for rule in given if rule not in said]
        kept += [rule if _is_given(rule, given) else _restriction(rule) for rule in said]
        if left := remove_ineffective([rule for rule in kept if rule is not None]):
            rules[name] = left
    return rules


def _is_given(rule: ToolRule, given: Sequence[ToolRule]) -> bool:
    anything = rule.disposition == "allow" and not rule.shell and not rule.unsandboxed
    return rule in given or (anything and any(other.disposition == "allow" and other.always for other in given))


def _restriction(rule: ToolRule) -> ToolRule | None:
    """What is left of a rule that may open nothing."""
    # Without a rule on them, commands that need a shell are refused, which is less than asking.
    return None if rule.disposition == "allow" or rule.shell else replace(rule, unsandboxed=False)


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
