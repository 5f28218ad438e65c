"""Decide calls: a pure function from rules and a call to a ruling that names the rule.

Restrictions are inherited along the call path and permissions are not: a `deny` or an `ask` of any worker on the path
holds for everything below it, an `allow` only for the calls of the worker that has it. The strictest disposition wins.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

from pydantic import ValidationError

from ...errors import RuleError, summarize
from ...values.canonical import canonical
from ..catalogue import ARGUMENTS, DEFAULTS, Disposition
from .calls import Call, Case
from .conditions import Places, as_list, compile_condition, holds
from .format import STRICTNESS, Condition, ToolRule, read_rules_by_name


@dataclass(frozen=True, slots=True)
class Ruling:
    """The decision on one call by rules, and its source."""

    disposition: Disposition
    """`allow`, `ask` or `deny`."""
    because: str
    """The source: the rule, or the default."""
    rule: ToolRule | None = None
    """The rule that decided, if it was one."""
    explicit: bool = True
    """Whether it comes from a rule and not from a default."""
    shell: bool = False
    """Whether a rule lets the command have a shell."""
    unsandboxed: bool = False
    """Whether a rule lets the command run outside of the sandbox."""

    @property
    def reason(self) -> str | None:
        """The reason in the rule."""
        return self.rule.reason if self.rule is not None else None

    @property
    def where(self) -> str | None:
        """The file and the line of the rule."""
        return self.rule.where if self.rule is not None else None

    def __str__(self) -> str:
        return f"{self.disposition}: {self.because}" + (f" ({self.reason})" if self.reason else "")


class _CompiledRule:
    def __init__(self, rule: ToolRule, name: str, speaker: str, kinds: Mapping[str, str], places: Places) -> None:
        self.rule = rule
        self.restricts = rule.disposition != "allow"
        self.opens = rule.shell or rule.unsandboxed
        self.strictness = STRICTNESS[rule.disposition]
        self.when = compile_condition(rule.when, kinds, places)
        self.unless = [compile_condition(condition, kinds, places) for condition in rule.unless]
        self.because = f"{speaker} says {name}: {rule}" + (f" ({rule.where})" if rule.where else "")

    def applies(self, case: Case, call: Call, restricts: bool) -> bool:
        """Return whether the rule is about this case. A rule on commands with a shell is about nothing else."""
        needs_shell = case.needs_shell is not None
        if self.rule.shell != needs_shell and (needs_shell is False or not restricts):
            return False
        if self.when and not holds(self.when, case, call, restricts):
            return False
        # An exception loosens what restricts, and restricts what loosens.
        return not self.unless or not any(holds(each, case, call, not restricts) for each in self.unless)


class RuleBook:
    """The rules of one speaker."""

    def __init__(self, speaker: str, rules: Mapping[str, Sequence[ToolRule]], places: Places | None = None) -> None:
        self.speaker = speaker
        """The owner of the rules: `worker 'x'`, `llm-do.toml`, ..."""
        self.rules = rules
        first = (rule.places for named_rules in rules.values() for rule in named_rules if rule.places is not None)
        self.places = places or next(first, Places())
        self.compiled = {name: [self._compile(name, rule) for rule in named] for name, named in rules.items()}

    def _compile(self, name: str, rule: ToolRule) -> _CompiledRule:
        try:
            return _CompiledRule(rule, name, self.speaker, ARGUMENTS.get(name, {}), self.places)
        except ValueError as error:
            raise RuleError(f"{self.where(rule)}: {name}: {error}") from None

    def where(self, rule: ToolRule) -> str:
        """Return where a rule stands, for an error."""
        return rule.where or f"The rules of {self.speaker}"

    def locate_paths(self, name: str, payload: Mapping[str, Any]) -> dict[str, Any]:
        """Return arguments as facts: paths such as `output/a.txt` as the places that the rules speak of."""
        kinds = ARGUMENTS.get(name, {})
        return {key: self.places.locate(value) if kinds.get(key) == "path" else value for key, value in payload.items()}


def read_rules(
    rules: Mapping[str, Any] | RuleBook | None, speaker: str, places: Places | None = None
) -> RuleBook | None:
    """Read the rules that a program passes, if any."""
    if isinstance(rules, RuleBook):
        return rules
    if not rules:
        return None
    try:
        return RuleBook(speaker, read_rules_by_name(rules), places)
    except ValidationError as exc:
        raise RuleError(f"The rules of {speaker}: {summarize(exc)}") from exc


def anchor_rules(rules: Mapping[str, Sequence[ToolRule]], places: Places) -> dict[str, tuple[ToolRule, ...]]:
    """Return the rules with absolute paths, which mean the same in every project and worker."""

    def absolute(name: str, condition: Condition) -> Condition:
        kinds = ARGUMENTS.get(name, {})
        return {
            key: [places.anchor(str(each)) for each in as_list(value)] if kinds.get(key) == "path" else value
            for key, value in condition.items()
        }

    return {
        name: tuple(
            replace(rule, when=absolute(name, rule.when), unless=tuple(absolute(name, one) for one in rule.unless))
            for rule in named_rules
        )
        for name, named_rules in rules.items()
    }


def judge(
    call: Call,
    *,
    own: RuleBook | None = None,
    session: RuleBook | None = None,
    path: Iterable[RuleBook] = (),
    default: Ruling | None = None,
) -> Ruling:
    """Return the ruling on a call. It runs nothing, asks no person, and depends on nothing else.

    `own` are the rules of the worker that makes the call and `session` those of the session: they may allow.
    `path` are the rules of all workers on the call path, which may only restrict. `default` applies where no rule does.
    """
    default = default or default_ruling(call.name)
    rulings: list[Ruling] = []
    for case in call.cases:
        name = case.name or call.name
        rules_on = _rules_on(name, own, session, path)
        if call.qualified_name is not None and case.name is None:
            rules_on += _rules_on(call.qualified_name, own, session, path)
        rulings.append(_judge_case(case, call, name, rules_on, default if case.name is None else default_ruling(name)))
    if len(rulings) < 2:
        return rulings[0] if rulings else default
    strictest = max(rulings, key=lambda ruling: STRICTNESS[ruling.disposition])
    unsandboxed = all(ruling.unsandboxed for ruling in rulings)
    return strictest if strictest.unsandboxed == unsandboxed else replace(strictest, unsandboxed=unsandboxed)


def denies_any(name: str, books: Iterable[RuleBook]) -> bool:
    """Return whether any rule denies some or all calls of this name."""
    return any(rule.disposition == "deny" for book in books for rule in book.rules.get(name, ()))


def _rules_on(
    name: str, own: RuleBook | None, session: RuleBook | None, path: Iterable[RuleBook]
) -> list[tuple[list[_CompiledRule], bool]]:
    """Return the rules on a name, and whether each speaker may permit anything."""
    speakers = [(book, True) for book in (own, session)]
    speakers += [(book, False) for book in path if book is not own and book is not session]
    return [(rules, may) for book, may in speakers if book is not None and (rules := book.compiled.get(name))]


def _judge_case(
    case: Case, call: Call, name: str, rules_on: list[tuple[list[_CompiledRule], bool]], default: Ruling
) -> Ruling:
    strictest: _CompiledRule | None = None
    shell = unsandboxed = False
    for rules, may_permit in rules_on:
        for rule in rules:
            if (may_permit or rule.restricts) and rule.applies(case, call, rule.restricts):
                if may_permit and rule.opens and rule.applies(case, call, restricts=False):
                    shell, unsandboxed = shell or rule.rule.shell, unsandboxed or rule.rule.unsandboxed
                if strictest is None or rule.strictness > strictest.strictness:
                    strictest = rule
    which = f", for {case.text}" if case.text is not None and len(call.cases) > 1 else ""
    if case.needs_shell is not None and not shell and (strictest is None or strictest.strictness < STRICTNESS["deny"]):
        return Ruling("deny", f"{case.needs_shell} needs a shell, which no rule allows{which}")
    if strictest is None:
        return default
    decided, because = strictest.rule, f"{strictest.because}{which}"
    return Ruling(decided.disposition, because, decided, shell=shell, unsandboxed=unsandboxed)


@lru_cache(maxsize=1024)
def default_ruling(name: str) -> Ruling:
    """Return the ruling on a name without rules."""
    disposition = DEFAULTS.get(name, "allow")
    does = "is allowed" if disposition == "allow" else "asks"
    return Ruling(disposition, f"{name} {does} unless a rule says otherwise", explicit=False)


class Grant:
    """A permission for the session, for calls like the one that was approved. Its text says all that it covers."""

    def __init__(self, name: str, condition: Condition, places: Places) -> None:
        self.name = name
        self.condition = condition
        self.text = f"{name} with " + ", ".join(f"{key} {value}" for key, value in condition.items())
        self._places = places
        self._compiled = compile_condition(condition, ARGUMENTS.get(name, {}), places)

    def covers(self, call: Call) -> bool:
        """Return whether everything that the call would do is granted."""
        return call.name == self.name and all(
            case.needs_shell is None and holds(self._compiled, case, call, restricts=False)
            for case in call.cases
            if case.name is None
        )

    def key(self) -> Hashable:
        """Return a canonical key of what it covers, with the folders that its paths mean."""
        return canonical([self.name, dict(self.condition), self._places])

    def __repr__(self) -> str:
        return f"<Grant of {self.text}>"
