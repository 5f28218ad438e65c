"""Rules on arguments and on the path of calls: what they match, what they mean in doubt, and what is an error."""

import shlex
from decimal import Decimal
from enum import Enum
from pathlib import Path
from typing import Any, Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic_ai import RunContext
from pydantic_ai.toolsets import FunctionToolset

from llm_do import (
    ApprovalDenied,
    Context,
    Runtime,
    WorkerEntry,
    entry,
)
from llm_do.policy.rules import Call, Case, Places, Ruling, judge, read_rules
from llm_do.policy.rules.conditions import name_matcher, split_pattern
from llm_do.values.patterns import Glob

BASE = Path("/project")
PLACES = Places({"input": BASE / "input", "output": BASE / "data/out"}, BASE)


def decide(rules: Any, *facts: dict[str, Any], name: str = "pay", **call: Any) -> str:
    cases = [Case(each) for each in facts] or [Case()]
    default = Ruling("allow", "default", explicit=False)
    ruling = judge(Call(name, cases, **call), own=read_rules({name: rules}, "w", PLACES), default=default)
    return ruling.disposition if ruling is not default else "-"


# -- what matches ------------------------------------------------------------------------------------


class Currency(Enum):
    EUR = "EUR"


@pytest.mark.parametrize(
    ("condition", "hits", "misses"),
    [
        ("EUR", ["EUR", Currency.EUR], ["eur", "EURO", 1, None, True]),
        (["EUR", "USD"], ["USD"], ["GBP", "EUR,USD"]),
        (1, [1, 1.0, Decimal(1)], [True, "1", 2]),
        (True, [True], [None, False]),
        (None, [None], [0, "", False]),
        ({"over": 100}, [100.01, 10**30, float("inf")], [100, -1, None]),
        ({"at_least": 1, "under": 3}, [1, 2, 2.99, Decimal("1.5")], [0.99, 3]),
        ({"prefix": "https://"}, ["https://a", "https://"], ["http://a", " https://a", 1, None]),
    ],
)
@pytest.mark.parametrize("word", ["allow", "deny"])
def test_plain_values(word: str, condition: Any, hits: list[Any], misses: list[Any]) -> None:
    rule = {"rule": word, "when": {"x": condition}}
    assert [decide(rule, {"x": value}) for value in hits] == [word] * len(hits)
    assert [decide(rule, {"x": value}) for value in misses] == ["-"] * len(misses)


class Odd:
    pass


@pytest.mark.parametrize("value", [float("nan"), Decimal("nan"), Decimal("snan"), Odd(), {"a": 1}, b"EUR"])
@pytest.mark.parametrize("condition", ["EUR", {"over": 1}, {"prefix": "E"}, [1, 2]])
def test_what_cannot_be_judged_counts_against_the_call(condition: Any, value: Any) -> None:
    assert decide({"rule": "allow", "when": {"x": condition}}, {"x": value}) == "-"
    assert decide({"rule": "deny", "when": {"x": condition}}, {"x": value}) == "deny"
    assert decide({"rule": "deny", "when": {"x": condition}}, {}) == "deny"
    assert decide({"rule": "allow", "except": {"x": condition}}, {"x": value}) == "-"
    assert decide({"rule": "deny", "except": {"x": condition}}, {"x": value}) == "deny"


@pytest.mark.parametrize(
    ("condition", "value"), [({"over": 100}, "1000"), ({"under": 5}, True), (True, 1), (True, "true"), (False, "")]
)
def test_what_others_may_read_as_another_type_counts_against_the_call_too(condition: Any, value: Any) -> None:
    assert decide({"rule": "allow", "when": {"x": condition}}, {"x": value}) == "-"
    assert decide({"rule": "deny", "when": {"x": condition}}, {"x": value}) == "deny"


def test_of_a_list_an_allow_needs_all_and_a_deny_one() -> None:
    allow, deny = ({"rule": word, "when": {"to": ["a@x", "b@x"]}} for word in ("allow", "deny"))
    assert decide(allow, {"to": ["a@x", "b@x"]}) == "allow"
    assert decide(allow, {"to": ["a@x", "evil"]}) == "-"
    assert decide(allow, {"to": []}) == "-"
    assert decide(deny, {"to": ["evil", "b@x"]}) == "deny"
    assert decide(deny, {"to": [["b@x"]]}) == "deny"
    assert decide(deny, {"to": ["evil"]}) == "-"


def test_all_of_a_condition_must_hold_and_exceptions_are_explicit() -> None:
    rules = [
        {"rule": "deny", "when": {"amount": {"over": 1000}}},
        {"rule": "ask", "except": {"amount": {"at_most": 10}, "currency": ["EUR", "USD"]}},
        {"rule": "allow", "when": {"amount": {"at_most": 100}}},
    ]
    assert decide(rules, {"amount": 5, "currency": "EUR"}) == "allow"
    assert decide(rules, {"amount": 5, "currency": "XXX"}) == "ask"
    assert decide(rules, {"amount": 50, "currency": "EUR"}) == "ask"
    assert decide(rules, {"amount": 5000, "currency": "EUR"}) == "deny"
    several = {"rule": "deny", "except": [{"currency": "EUR"}, {"currency": "USD"}]}
    assert [decide(several, {"currency": each}) for each in ("EUR", "USD", "GBP")] == ["-", "-", "deny"]


@pytest.mark.parametrize(
    ("pattern", "hits", "misses"),
    [
        ("input/*.txt", ["input/a.txt"], ["input/a/b.txt", "input/a.txt.exe", "input/.txt/x"]),
        ("input/**", ["input", "input/a", "input/a/b/c"], ["output/a", "inputs/a"]),
        ("input/**/x", ["input/x", "input/a/x", "input/a/b/x"], ["input/a/xx", "input/x/y"]),
        ("./data/**", ["output/a"], ["input/a"]),
        ("/project/data/out/a*b*c", ["output/abc", "output/a-b-c", "output/abbcc"], ["output/acb", "output/ab"]),
        (["input/a", "output/b"], ["input/a", "output/b"], ["input/b"]),
    ],
)
def test_paths_are_places_on_the_machine(pattern: Any, hits: list[str], misses: list[str]) -> None:
    roots = {"input": "/project/input", "inputs": "/project/inputs", "output": "/project/data/out"}

    def at(path: str) -> dict[str, Any]:
        root, _, rest = path.partition("/")
        return {"path": Path(roots[root]) / rest}

    rule = {"rule": "deny", "when": {"path": pattern}}
    assert [decide(rule, at(path), name="sandbox.write") for path in hits] == ["deny"] * len(hits)
    assert [decide(rule, at(path), name="sandbox.write") for path in misses] == ["-"] * len(misses)


@pytest.mark.parametrize(
    ("pattern", "hits", "misses"),
    [
        ("git status", ["git status"], ["git status --short", "git", "gitstatus"]),
        ("git log **", ["git log", "git log -n 3"], ["git  push log"]),
        ("cat *.txt", ["cat a.txt"], ["cat a.txt b.txt", "cat a.py"]),
        ("echo 'two words'", ["echo two+words"], ["echo two words"]),
    ],
)
def test_commands_are_matched_word_by_word(pattern: str, hits: list[str], misses: list[str]) -> None:
    def command(text: str) -> dict[str, Any]:
        return {"command": tuple(word.replace("+", " ") for word in text.split())}

    for word in ("allow", "deny"):
        rule = {"rule": word, "when": {"command": pattern}}
        assert [decide(rule, command(text), name="shell") for text in hits] == [word] * len(hits)
        assert [decide(rule, command(text), name="shell") for text in misses] == ["-"] * len(misses)


@pytest.mark.parametrize("text", ["/bin/rm x", "env A=1 rm x", "timeout 5 nice rm -rf x", "xargs rm", "./rm x"])
def test_a_deny_sees_through_programs_that_start_others_and_an_allow_does_not(text: str) -> None:
    case = {"command": tuple(text.split())}
    assert decide({"rule": "deny", "when": {"command": "rm **"}}, case, name="shell") == "deny"
    assert decide({"rule": "allow", "when": {"command": "rm **"}}, case, name="shell") == "-"


def test_each_part_of_a_call_is_judged_and_the_strictest_wins() -> None:
    rules = [{"rule": "allow", "when": {"command": "ls **"}}, {"rule": "deny", "when": {"command": "rm **"}}]
    ls, rm, cat = ({"command": (name, "x")} for name in ("ls", "rm", "cat"))
    assert decide(rules, ls, ls, name="shell") == "allow"
    assert decide(rules, ls, rm, name="shell") == "deny"
    assert decide(rules, ls, cat, name="shell") == "allow"  # the default of this test is to allow
    default = Ruling("ask", "default", explicit=False)
    call = Call("shell", [Case(ls), Case(cat)])
    assert judge(call, own=read_rules({"shell": rules}, "w"), default=default) is default


def test_what_needs_a_shell_needs_a_rule_that_says_so() -> None:
    text = "ls > x"
    call = Call("shell", [Case({"command": text}, text, needs_shell="`>`")])

    def said(*rules: Any, path: Any = ()) -> Ruling:
        return judge(call, own=read_rules({"shell": list(rules)}, "w"), path=path)

    assert said("allow").disposition == "deny"
    assert said({"rule": "allow", "when": {"command": text}}).disposition == "deny"
    assert said({"rule": "ask", "shell": True}).disposition == "ask"
    very = said({"rule": "allow", "shell": True, "when": {"command": text}})
    assert (very.disposition, very.shell) == ("allow", True)
    assert said({"rule": "allow", "shell": True, "when": {"command": "other"}}).disposition == "deny"
    # Nobody knows what a shell makes of it, so a deny on any command holds.
    deny = {"rule": "deny", "when": {"command": "rm **"}}
    assert said({"rule": "allow", "shell": True}, deny).disposition == "deny"
    above = read_rules({"shell": [{"rule": "ask", "shell": True}]}, "above")
    assert judge(call, path=[above]).disposition == "deny"  # type: ignore[list-item]


def test_only_the_very_command_runs_unsandboxed_and_only_by_ones_own_rule() -> None:
    book = read_rules({"shell": {"rule": "allow", "when": {"command": "docker ps"}, "unsandboxed": True}}, "w")
    docker, other = Case({"command": ("docker", "ps")}), Case({"command": ("ls",)})
    assert judge(Call("shell", [docker]), own=book).unsandboxed
    assert not judge(Call("shell", [docker, other]), own=book).unsandboxed
    assert not judge(Call("shell", [other]), own=book).unsandboxed
    assert not judge(Call("shell", [docker]), path=[book]).unsandboxed  # type: ignore[list-item]


def test_the_path_of_calls_is_a_condition_too() -> None:
    rule = {"rule": "deny", "when": {"call.generated": True}}
    assert decide(rule, generated=True) == "deny"
    assert decide(rule) == "-"
    assert decide({"rule": "deny", "when": {"call.caller": "a"}}, caller="a") == "deny"
    assert decide({"rule": "deny", "when": {"call.caller": "a"}}, caller="b") == "-"
    assert decide({"rule": "deny", "when": {"call.through": "a"}}, path=["a", "b"]) == "deny"
    assert decide({"rule": "allow", "except": {"call.depth": {"over": 1}}}, path=["a", "b"]) == "-"
    assert decide({"rule": "allow", "except": {"call.depth": {"over": 1}}}, path=["a"]) == "allow"


def test_a_path_of_the_parent_is_the_same_place_under_the_childs_name() -> None:
    """A root has one name in one worker and another in the next, and rules of both hold for the folder."""
    parent = read_rules({"sandbox.write": {"rule": "deny", "when": {"path": "output/secret/**"}}}, "parent", PLACES)
    call = Call("sandbox.write", [Case({"path": BASE / "data/out/secret/a.txt"})])
    assert judge(call, path=[parent]).disposition == "deny"  # type: ignore[list-item]


# -- one more condition never loosens a restriction ----------------------------------------------------

NAMES = st.sampled_from(["", "a", "b", "ab", "ba", "aab"])
STEPS = st.lists(st.sampled_from(["**", "*", "a", "a*", "*b", "*a*b"]), max_size=5)


@given(STEPS, st.lists(NAMES, max_size=6))
def test_steps_match_as_their_definition_says(steps: list[str], names: list[str]) -> None:
    def matches(steps: list[str], names: list[str]) -> bool:
        if not steps:
            return not names
        if steps[0] == "**":
            return any(matches(steps[1:], names[skip:]) for skip in range(len(names) + 1))
        return bool(names) and text(steps[0], names[0]) and matches(steps[1:], names[1:])

    def text(pattern: str, name: str) -> bool:
        if not pattern:
            return not name
        if pattern[0] == "*":
            return any(text(pattern[1:], name[skip:]) for skip in range(len(name) + 1))
        return bool(name) and name[0] == pattern[0] and text(pattern[1:], name[1:])

    assert Glob(steps, name_matcher).matches(names) is matches(steps, names)


@given(st.lists(st.sampled_from(["a", "'b c'", '"d"', "e'f g'h", "''"]), max_size=5))
def test_patterns_split_as_commands_do(words: list[str]) -> None:
    assert split_pattern(" ".join(words)) == shlex.split(" ".join(words))


def test_no_argument_makes_matching_slow() -> None:
    """What is worst is decided, and takes no time that anybody notices; the bench measures it."""
    rules = [
        {"rule": "deny", "when": {"command": "** a ** a ** a ** b"}},
        {"rule": "deny", "when": {"command": "*a*a*a*a*b"}},
        {"rule": "deny", "when": {"command": "rm ** a ** b"}},
    ]
    slow = [("a",) * 10_000, ("a",) * 1000, ("a" * 100_000,), ("env", *("rm",) * 10_000), ("env", *("rm",) * 900)]
    assert [decide(rules, {"command": words}, name="shell") for words in slow] == ["deny", "-", "-", "deny", "deny"]


@pytest.mark.parametrize(
    ("name", "condition", "known", "more"),
    [
        ("pay", {"x": "a"}, {"x": ["a"] * 1000}, {"x": ["a"] * 1001}),
        ("shell", {"command": "a **"}, {"command": ("a",) * 1000}, {"command": ("a",) * 1001}),
        ("sandbox.read", {"path": "/a/**"}, {"path": Path("/", *"a" * 999)}, {"path": Path("/", *"a" * 1000)}),
    ],
    ids=["values", "words", "folders"],
)
def test_what_has_more_than_a_thousand_parts_cannot_be_judged(
    name: str, condition: dict[str, Any], known: dict[str, Any], more: dict[str, Any]
) -> None:
    """A rule that allows does not hold for it, and one that denies does, whatever the parts are."""
    allow, deny = {"rule": "allow", "when": condition}, {"rule": "deny", "when": condition}
    other = {"rule": "deny", "when": {argument: text.replace("a", "b") for argument, text in condition.items()}}
    assert [decide(rule, known, name=name) for rule in (allow, deny, other)] == ["allow", "deny", "-"]
    assert [decide(rule, more, name=name) for rule in (allow, deny, other)] == ["-", "deny", "deny"]


# -- what is an error ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("rule", "message"),
    [
        ({"rule": "deny", "when": {}}, "when"),
        ({"rule": "deny", "when": {"x": []}}, "an empty list matches nothing"),
        ({"rule": "deny", "when": {"x": {"above": 1}}}, "there is no 'above'"),
        ({"rule": "deny", "when": {"x": {"over": "1"}}}, "over needs a number"),
        ({"rule": "deny", "when": {"x": {"over": 3, "under": 2}}}, "nothing is like"),
        ({"rule": "deny", "when": {"x": {"prefix": ""}}}, "prefix needs a text"),
        ({"rule": "deny", "when": {"call.dept": 1}}, "there is no condition 'call.dept'. Did you mean 'call.depth'"),
        ({"rule": "deny", "when": {"call.generated": "yes"}}, "call.generated is true or false"),
        ({"rule": "deny", "unsandboxed": True}, "leave out shell and unsandboxed"),
        ({"rule": "allow", "unsandboxed": True}, "named in full"),
        ({"rule": "allow", "when": {"command": "docker **"}, "unsandboxed": True}, "named in full"),
        ({"rule": "deny", "wen": {"x": 1}}, "Did you mean 'when'"),
        ({"when": {"x": 1}}, "is no rule"),
        ([], "is no rule"),
        (["deny", {"rule": "allow", "when": {"x": 1}}], "has no effect"),
    ],
)
def test_what_is_no_rule(rule: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        read_rules({"shell": rule}, "w")


def test_a_path_that_starts_with_no_root_is_an_error() -> None:
    with pytest.raises(ValueError, match="'inputs/a' starts with no root .*Did you mean 'input'"):
        read_rules({"sandbox.read": {"rule": "deny", "when": {"path": "inputs/a"}}}, "w", PLACES)
    with pytest.raises(ValueError, match="no pattern of a path"):
        read_rules({"sandbox.read": {"rule": "deny", "when": {"path": {"prefix": "a"}}}}, "w", PLACES)


@entry
async def pay(amount: float, currency: Literal["EUR", "USD"] = "EUR", tags: list[str] | None = None) -> str:
    return f"paid {amount} {currency}"


@pytest.mark.parametrize(
    ("rules", "message"),
    [
        ({"payy": "deny"}, "there is no tool 'payy' for rules to speak of. Did you mean 'pay'"),
        ({"pay": {"rule": "deny", "when": {"amont": 1}}}, "there is no argument 'amont'. Did you mean 'amount'"),
        ({"pay": {"rule": "deny", "when": {"amount": "much"}}}, 'amount: it is a number, never "much"'),
        ({"pay": {"rule": "deny", "when": {"amount": {"prefix": "1"}}}}, "prefix is for a text, and it is a number"),
        ({"pay": {"rule": "deny", "when": {"currency": ["EUR", "GBP"]}}}, 'never "GBP", but one of "EUR", "USD"'),
        ({"pay": {"rule": "deny", "when": {"tags": 1}}}, "never 1"),
        ({"pay": {"rule": "deny", "except": {"currency": True}}}, "never true"),
        ({"shell": {"rule": "deny", "when": {"path": "x"}}}, "there is no argument 'path'. Known names: 'command'"),
        ({"write_file": "deny"}, "there is no tool 'write_file'"),
    ],
)
async def test_rules_that_cannot_mean_what_they_say(rules: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Runtime([pay], tool_rules=rules)
    worker = WorkerEntry(name="w", tools=[pay], tool_rules=rules, model="test")
    with pytest.raises(ValueError, match=message):
        await Runtime().call(worker, "go")


async def test_defaults_are_judged_as_if_they_were_said() -> None:
    runtime = Runtime([pay], tool_rules={"pay": {"rule": "deny", "when": {"currency": "EUR"}}})
    with pytest.raises(ApprovalDenied):
        await runtime.call("pay", 1)
    assert await runtime.call("pay", 1, "USD") == "paid 1.0 USD"


async def test_rules_on_tools_of_others_are_checked_when_they_are_there() -> None:
    def factory(ctx: Context) -> Any:
        toolset: FunctionToolset[Any] = FunctionToolset()

        @toolset.tool_plain
        def send(to: str, size: int = 1) -> str:
            return "sent"

        return toolset

    def worker(**rules: Any) -> WorkerEntry[str]:
        return WorkerEntry(name="w", toolsets=[factory], tool_rules=rules, model="test")

    with pytest.raises(ValueError, match="there is no tool 'sned'.*Did you mean 'send'"):
        await Runtime().call(worker(sned="deny"), "x")
    with pytest.raises(ValueError, match="there is no argument 'too'"):
        await Runtime().call(worker(send={"rule": "deny", "when": {"too": "x"}}), "x")
    with pytest.raises(ValueError, match="never"):
        await Runtime().call(worker(send={"rule": "deny", "when": {"size": "x"}}), "x")
    # A rule above the worker is checked as well, as soon as the tool is known.
    above = Runtime([worker()], tool_rules={"send": {"rule": "deny", "when": {"too": "x"}}})
    with pytest.raises(ValueError, match="there is no argument 'too'"):
        await above.call("w", "x")
    right = Runtime(tool_rules={"send": {"rule": "deny", "when": {"size": {"over": 10}}}})
    assert await right.call(worker(), "x")


# -- why -----------------------------------------------------------------------------------------------------


def test_why_names_the_rule_and_runs_nothing(tmp_path: Path) -> None:
    ran: list[str] = []

    @entry(requires_approval=True)
    async def wipe(ctx: RunContext[Context], disk: str) -> str:
        ran.append(disk)
        return "wiped"

    worker = WorkerEntry(name="w", tools=[wipe], tool_rules={"wipe": {"rule": "allow", "when": {"disk": "a"}}})
    rule = {"rule": "deny", "when": {"disk": "root"}, "reason": "it is needed"}
    runtime = Runtime([worker, wipe], tool_rules={"wipe": rule})
    assert runtime.why("wipe", {"disk": "a"}).disposition == "ask"
    assert runtime.why("wipe", {"disk": "a"}).because == "tool 'wipe' requires approval"
    assert runtime.why("wipe", {"disk": "a"}, worker="w").because == "worker 'w' says wipe: allow when disk: \"a\""
    denied = runtime.why("wipe", {"disk": "root"}, worker="w")
    assert (denied.disposition, denied.reason) == ("deny", "it is needed")
    assert str(denied) == 'deny: the session says wipe: deny when disk: "root" (it is needed)'
    assert not ran
    assert not list(runtime.trace)
