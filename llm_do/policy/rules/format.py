"""Read and write rules: a word, a mapping, or a list of both."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any, TypeAlias

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

from ...errors import RuleError, did_you_mean, summarize
from ...values.texts import escape_surrogates, quote_json, safe_repr
from ..catalogue import DEFAULTS, PREFIXES, Disposition
from .conditions import Places, as_list, check_condition

Condition: TypeAlias = Mapping[str, Any]
"""Tests of arguments and of the call path, all of which have to hold."""

STRICTNESS: Mapping[Disposition, int] = {"allow": 0, "ask": 1, "deny": 2}


@dataclass(frozen=True, slots=True)
class ToolRule:
    """A disposition for calls of a tool, and the calls that it is for."""

    disposition: Disposition
    """`allow`, `ask` or `deny`."""
    reason: str | None = None
    """The reason, for the person who is asked."""
    when: Condition = field(default_factory=dict)
    """The condition on calls that it holds for. Empty means all calls."""
    unless: tuple[Condition, ...] = ()
    """The conditions on calls that it does not hold for. `except` in a file."""
    shell: bool = False
    """It is for commands that need a shell. Pipes and `&&` need none, other shell syntax does."""
    unsandboxed: bool = False
    """The command runs outside of the sandbox."""
    where: str | None = field(default=None, compare=False)
    """Its file and line."""
    places: Places | None = field(default=None, compare=False, repr=False)
    """The default meaning of its paths: the roots of the worker in whose file it stands."""

    def __post_init__(self) -> None:
        if self.disposition not in STRICTNESS:
            raise RuleError(f"{quote_json(self.disposition)} is none of allow, ask and deny")
        for condition in (self.when, *self.unless):
            check_condition(condition)
        if self.disposition == "deny" and (self.shell or self.unsandboxed):
            raise RuleError("a deny holds with and without a shell or a sandbox: leave out shell and unsandboxed")
        commands = self.when.get("command")
        lines = [commands] if isinstance(commands, str) else commands
        if self.unsandboxed and not (isinstance(lines, list | tuple) and all("*" not in str(each) for each in lines)):
            raise RuleError("what runs unsandboxed is named in full: when: {command: ...}, without *")

    @property
    def always(self) -> bool:
        """Return whether it holds for all calls."""
        return not self.when and not self.unless and not self.shell

    def __str__(self) -> str:
        parts: list[str] = [self.disposition]
        parts += [f"when {_inline(self.when)}"] if self.when else []
        parts += [f"except {_inline(condition)}" for condition in self.unless]
        parts += ["with a shell"] if self.shell else []
        parts += ["without the sandbox"] if self.unsandboxed else []
        return " ".join(parts)


def _check_texts(*values: Any) -> None:
    """Refuse half of a character: a text with one can be neither written nor shown."""
    try:
        json.dumps(values, ensure_ascii=False, default=safe_repr).encode()
    except UnicodeEncodeError as exc:
        raise RuleError(f"{exc.object[exc.start]!r} is half of a character: write the whole character") from None


def _inline(condition: Condition) -> str:
    return ", ".join(f"{name}: {quote_json(value)}" for name, value in condition.items())


# A plain `bool` would take the text "yes" as well.
_Flag = Annotated[bool, Field(strict=True)]
_Condition = Annotated[dict[str, Any], Field(min_length=1)]


class _Mapping(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", defer_build=True)


class _SeedRule(_Mapping):
    """A rule as two flags."""

    allowed: _Flag = True
    approval_required: _Flag = False
    description: str | None = None

    def to_rule(self) -> ToolRule:
        # A description alone, or nothing, would allow what asks without a rule.
        if not self.model_fields_set & {"allowed", "approval_required"}:
            raise RuleError("it says neither yes nor no")
        disposition: Disposition = "ask" if self.approval_required else "allow"
        return ToolRule(disposition if self.allowed else "deny", self.description)


class _FullRule(_Mapping):
    """A rule with all its keys."""

    rule: Disposition
    when: _Condition | None = None
    unless: _Condition | Annotated[list[_Condition], Field(min_length=1)] | None = Field(default=None, alias="except")
    reason: str | None = None
    shell: _Flag = False
    unsandboxed: _Flag = False

    def to_rule(self) -> ToolRule:
        unless = as_list(self.unless or [])
        return ToolRule(self.rule, self.reason, self.when or {}, tuple(unless), self.shell, self.unsandboxed)


_One: TypeAlias = Disposition | _FullRule | _SeedRule
_HOW = (
    "write allow, ask or deny, or {rule: ask, when: {argument: value}, reason: ...}, "
    "or {allowed: true, approval_required: false, description: ...}."
)


def _read_rule(value: Any) -> ToolRule:
    why = ""
    if isinstance(value, ToolRule):
        _check_texts(value.reason, value.when, value.unless)
        return value
    if value == "allow" or value == "ask" or value == "deny":
        return ToolRule(value)
    if isinstance(value, Mapping):
        is_full = not {"rule", "when", "except", "reason", "shell", "unsandboxed"}.isdisjoint(value)
        kind = _FullRule if is_full else _SeedRule
        try:
            _check_texts(value)
            return kind.model_validate(value).to_rule()
        except ValidationError as error:
            keys = {field.alias or name for name, field in kind.model_fields.items()}
            unknown = [str(key) for key in value if key not in keys]
            hint = did_you_mean(unknown[0], keys) if unknown else ""
            why = f" ({summarize(error)}.{hint})"
        except RuleError as error:
            why = f" ({error})"
    raise ValueError(escape_surrogates(f"{quote_json(value)} is no rule{why}: {_HOW}"))


def _read_rules(value: Any) -> tuple[ToolRule, ...]:
    if not isinstance(value, list | tuple):
        return (_read_rule(value),)
    if not value:
        raise ValueError(f"[] is no rule: {_HOW}")
    return tuple(_read_rule(item) for item in value)


def _write_rule(rule: ToolRule) -> str | dict[str, Any]:
    if rule.always and not rule.unsandboxed and rule.reason is None:
        return rule.disposition
    unless = list(map(dict, rule.unless))
    data = {
        "rule": rule.disposition,
        "when": dict(rule.when),
        "except": unless[0] if len(unless) == 1 else unless,
        "reason": rule.reason,
        "shell": rule.shell,
        "unsandboxed": rule.unsandboxed,
    }
    return {key: value for key, value in data.items() if value or (key == "reason" and value is not None)}


def _write_rules(rules: tuple[ToolRule, ...]) -> Any:
    return _write_rule(rules[0]) if len(rules) == 1 else [_write_rule(rule) for rule in rules]


_TOOL_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,127}")


def is_tool_name(name: str) -> bool:
    """Return whether rules can speak of a tool or a server by this name."""
    return _TOOL_NAME.fullmatch(name) is not None


def _check_rule_name(name: str) -> str:
    if not all(map(is_tool_name, name.split("/", 1))):
        raise ValueError(f"{name!r} cannot be the name of a tool. Write 'tool', or 'server/tool'.")
    if name.startswith(PREFIXES) and name not in DEFAULTS:
        raise ValueError(f"there is no rule {name!r}.{did_you_mean(name, DEFAULTS)}")
    return name


def _stricter_rule(rule: ToolRule, rules: Sequence[ToolRule]) -> ToolRule | None:
    """Return a stricter rule on all calls, which makes this one ineffective."""
    return next(
        (one for one in rules if one.always and STRICTNESS[one.disposition] > STRICTNESS[rule.disposition]), None
    )


def remove_ineffective(rules: Sequence[ToolRule]) -> tuple[ToolRule, ...]:
    """Return the rules without duplicates, and without those that another one overrules."""
    return tuple(
        rule for at, rule in enumerate(rules) if _stricter_rule(rule, rules) is None and rule not in rules[:at]
    )


def _check_rules(rules: dict[str, tuple[ToolRule, ...]]) -> dict[str, tuple[ToolRule, ...]]:
    for name, named_rules in rules.items():
        for rule in named_rules:
            if (rule.shell or rule.unsandboxed) and name != "shell":
                raise ValueError(f"{name}: only rules on shell say shell or unsandboxed.")
            if (stricter := _stricter_rule(rule, named_rules)) is not None:
                raise ValueError(
                    f"{name}: `{rule}` has no effect, since `{stricter.disposition}` holds for all calls and the "
                    f"strictest rule wins. Give that one an `except`."
                )
    return rules


AnyRules = Annotated[
    tuple[ToolRule, ...],
    PlainValidator(_read_rules, json_schema_input_type=_One | list[_One]),
    PlainSerializer(_write_rules),
]
ToolRules = Annotated[dict[Annotated[str, AfterValidator(_check_rule_name)], AnyRules], AfterValidator(_check_rules)]
"""Rules by name, as in a file or a program."""

_TOOL_RULES: TypeAdapter[dict[str, tuple[ToolRule, ...]]] = TypeAdapter(ToolRules, config=ConfigDict(defer_build=True))


def read_rules_by_name(rules: Mapping[str, Any]) -> dict[str, tuple[ToolRule, ...]]:
    """Read rules from a program."""
    return _TOOL_RULES.validate_python(dict(rules))
