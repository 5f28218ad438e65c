"""Deciding a call against 200 rules, beside the floor of a dispatch: `python bench/rules.py`.

The common case is a call of a tool that a few of many rules speak of. The worst is one tool with all the rules, and
an argument that was made to be slow.
"""

import asyncio
from collections.abc import Callable
from pathlib import Path
from statistics import quantiles
from time import perf_counter, process_time
from typing import Any

from llm_do import Runtime, entry
from llm_do.policy.rules import Call, Case, Places, RuleBook, judge, read_rules

COMMON_US = 10.0
HOSTILE_MS = 10.0
PLACES = Places({"input": Path("/project/input"), "output": Path("/project/output")}, Path("/project"))


def book_of(speaker: str, tools: int, each: int) -> RuleBook:
    def rule(at: int) -> dict[str, Any]:
        word = ("allow", "ask", "deny")[at % 3]
        conditions: list[dict[str, Any]] = [
            {"to": [f"user{at}@x", f"user{at + 1}@x"]},
            {"amount": {"over": 1000 + at}},
            {"to": {"prefix": f"group-{at}-"}, "amount": {"at_most": at}},
            {"call.through": f"worker{at}"},
        ]
        return {"rule": word, "when": conditions[at % len(conditions)]}

    book = read_rules(
        {f"tool{tool}": [rule(tool + at) for at in range(each)] for tool in range(tools)}, speaker, PLACES
    )
    assert book is not None
    return book


def micros(work: Callable[[], object], times: int = 2000, rounds: int = 15) -> float:
    samples = []
    for _ in range(rounds):
        start = process_time()
        for _ in range(times):
            work()
        samples.append((process_time() - start) / times * 1e6)
    return quantiles(samples, n=4)[0]


async def floor() -> float:
    """One dispatch of a function that does nothing, in microseconds."""

    @entry
    async def nothing() -> None:
        return None

    samples = []
    for _ in range(15):
        runtime = Runtime([nothing])
        start = process_time()
        for _ in range(2000):
            await runtime.call(nothing)
        samples.append((process_time() - start) / 2000 * 1e6)
    return quantiles(samples, n=4)[0]


def row(name: str, value: float, target: float, unit: str) -> None:
    print(f"{name:<58} {value:8.2f} {unit}  <= {target:g} {unit} {'ok' if value <= target else 'over'}")


def main() -> None:
    print(f"{'one dispatch, no rules':<58} {asyncio.run(floor()):8.2f} us")
    own, session = book_of("worker 'w'", 25, 4), book_of("the session", 25, 4)
    call = Call("tool7", [Case({"to": "user900@x", "amount": 12})], "w", ["w"])
    row(
        "200 rules of two speakers over 25 tools",
        micros(lambda: judge(call, own=own, session=session)),
        COMMON_US,
        "us",
    )
    unheard = Call("other", [Case({"to": "a"})], "w", ["w"])
    row(
        "the same, a tool that no rule speaks of",
        micros(lambda: judge(unheard, own=own, session=session)),
        COMMON_US,
        "us",
    )
    one = book_of("worker 'w'", 8, 200)
    value = micros(lambda: judge(Call("tool7", [Case({"to": "user900@x", "amount": 12})], "w", ["w"]), own=one), 200)
    print(f"{'200 rules on one tool':<58} {value:8.2f} us")
    paths = read_rules(
        {"sandbox.write": [{"rule": "deny", "when": {"path": f"output/{n}/**/*.lock"}} for n in range(200)]},
        "w",
        PLACES,
    )
    touched = Call("sandbox.write", [Case({"path": Path("/project/output/a/b/c.txt")})], "w", ["w"])
    print(f"{'200 rules with path patterns':<58} {micros(lambda: judge(touched, own=paths), 200):8.2f} us")

    print("an argument of 100 kB that was made to be slow")
    patterns = ["** a ** a ** b", "*a*a*a*b", "rm ** a ** b"]
    commands = read_rules({"shell": [{"rule": "deny", "when": {"command": pattern}} for pattern in patterns]}, "w")
    texts = read_rules({"send": {"rule": "deny", "when": {"to": {"prefix": "a" * 1000 + "b"}}}}, "w")
    deep = read_rules({"sandbox.write": {"rule": "deny", "when": {"path": "output/**/a*a*a*b/**/x"}}}, "w", PLACES)
    cases: dict[str, tuple[Any, Call]] = {
        "one word, against stars": (commands, Call("shell", [Case({"command": ("a" * 100_000,)})])),
        "50,000 words": (commands, Call("shell", [Case({"command": ("a",) * 50_000})])),
        "1,000 words": (commands, Call("shell", [Case({"command": ("a" * 100,) * 1000})])),
        "1,000 words behind env": (commands, Call("shell", [Case({"command": ("env", *("rm",) * 999)})])),
        "a text, against a prefix": (texts, Call("send", [Case({"to": "a" * 100_000})])),
        "a list of 50,000 texts": (texts, Call("send", [Case({"to": ["a"] * 50_000})])),
        "a list of 1,000 texts": (texts, Call("send", [Case({"to": ["a" * 100] * 1000})])),
        "a path of 50,000 folders": (
            deep,
            Call("sandbox.write", [Case({"path": Path("/project/output" + "/a" * 50_000)})]),
        ),
    }
    for name, (book, hostile) in cases.items():
        samples = []
        for _ in range(5):
            start = perf_counter()
            judge(hostile, own=book)
            samples.append((perf_counter() - start) * 1e3)
        row(f"  {name}", min(samples), HOSTILE_MS, "ms")


if __name__ == "__main__":
    main()
