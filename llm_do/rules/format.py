"""Rules on tools by name: `allow`, `ask` or `deny`, said by workers, by a project or by a session.

Restrictions flow down the path of calls and permissions do not: a `deny` or an `ask` of any worker on the
path holds for everything below it, while an `allow` counts only for the calls of the worker that says it.
The strictest word wins.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Literal, TypeAlias

from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Field,
    PlainSerializer,
    PlainValidator,
    TypeAdapter,
    ValidationError,
)

from .errors import did_you_mean, summarize
from .values import shown

Disposition: TypeAlias = Literal["allow", "ask", "deny"]

STANDARD: Mapping[str, Disposition] = {
    "sandbox.read": "allow",
    "sandbox.write": "ask",
    "shell": "ask",
    "worker.call": "allow",
    "worker.create": "ask",
}
"""What holds for the runtime's own kinds of tools when no rule speaks of them."""

_STRICTNESS: Mapping[Disposition, int] = {"allow": 0, "ask": 1, "deny": 2}


class _Rule(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class ToolRule(_Rule):
    """What happens when a tool is to be called."""

    disposition: Disposition
    description: str | None = None
    """Why, for the person who is asked."""


class _LongRule(_Rule):
    """A rule as a mapping."""

    # A plain `bool` would take the text "yes" as well.
    allowed: Annotated[bool, Field(strict=True)] = True
    approval_required: Annotated[bool, Field(strict=True)] = False
    description: str | None = None


def _read_rule(value: Any) -> ToolRule:
    why = ""
    if isinstance(value, ToolRule):
        return value
    if value in ("allow", "ask", "deny"):
        return ToolRule(disposition=value)
    if isinstance(value, Mapping):
        try:
            rule = _LongRule.model_validate(value)
        except ValidationError as error:
            rule, why = _LongRule(), f" ({summarize(error)})"
        # A description alone, or nothing, would allow what asks without a rule.
        if rule.model_fields_set & {"allowed", "approval_required"}:
            disposition: Disposition = "ask" if rule.approval_required else "allow"
            return ToolRule(disposition=disposition if rule.allowed else "deny", description=rule.description)
    raise ValueError(
        f"{shown(value)} is no rule{why}: write allow, ask or deny, "
        "or {allowed: true, approval_required: false, description: ...}."
    )


def _write_rule(rule: ToolRule) -> str | dict[str, Any]:
    if rule.description is None:
        return rule.disposition
    allowed, ask = rule.disposition != "deny", rule.disposition == "ask"
    return {"allowed": allowed, "approval_required": ask, "description": rule.description}


_RULE_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,127}")


def _check_rule_name(name: str) -> str:
    if _RULE_NAME.fullmatch(name) is None:
        raise ValueError(f"{name!r} cannot be the name of a tool.")
    if name.startswith(("sandbox.", "worker.")) and name not in STANDARD:
        raise ValueError(f"there is no rule {name!r}.{did_you_mean(name, STANDARD)}")
    return name


AnyRule = Annotated[
    ToolRule,
    PlainValidator(_read_rule, json_schema_input_type=Literal["allow", "ask", "deny"] | _LongRule),
    PlainSerializer(_write_rule),
]
ToolRules = dict[Annotated[str, AfterValidator(_check_rule_name)], AnyRule]
"""Rules by name, as a file or a program gives them: in a word, or as a mapping."""

_TOOL_RULES: TypeAdapter[dict[str, ToolRule]] = TypeAdapter(ToolRules)


def read_rules(rules: Mapping[str, Any] | None, speaker: str) -> RuleBook | None:
    """The rules that a program gives, if any."""
    if not rules:
        return None
    try:
        return RuleBook(speaker, _TOOL_RULES.validate_python(dict(rules)))
    except ValidationError as exc:
        raise ValueError(f"The rules of {speaker}: {summarize(exc)}") from exc


@dataclass(frozen=True, slots=True)
class RuleBook:
    """The rules of one speaker."""

    speaker: str
    """Who says so: `worker 'x'`, `llm-do.toml`, ..."""
    rules: Mapping[str, ToolRule]


@dataclass(frozen=True, slots=True)
class Ruling:
    """What holds for one call, and who said so."""

    disposition: Disposition
    because: str
    description: str | None = None
    explicit: bool = True
    """Whether somebody said so, rather than nobody saying anything."""


def judge(
    name: str, *, own: RuleBook | None = None, session: RuleBook | None = None, path: Iterable[RuleBook] = ()
) -> Ruling | None:
    """What the rules say about a call by name, if they say anything.

    `own` are the rules of the worker that makes the call and `session` those of the session: they may allow.
    `path` are the rules of everybody on the path of calls, who may only restrict.
    """
    strictest: Ruling | None = None
    for book in (own, session, *path):
        rule = book.rules.get(name) if book is not None else None
        if book is None or rule is None or (rule.disposition == "allow" and book is not own and book is not session):
            continue
        if strictest is None or _STRICTNESS[rule.disposition] > _STRICTNESS[strictest.disposition]:
            strictest = Ruling(rule.disposition, f"{book.speaker} says {name}: {rule.disposition}", rule.description)
    return strictest


def stricter(one: ToolRule, other: ToolRule) -> ToolRule:
    """The one of two rules that allows less."""
    return max(one, other, key=lambda rule: _STRICTNESS[rule.disposition])


def by_default(name: str) -> Ruling:
    """What holds when no rule speaks of `name`."""
    disposition = STANDARD.get(name, "allow")
    return Ruling(disposition, f"{name} asks unless a rule says otherwise", explicit=False)
