"""Attacks on resources: whatever a model starts comes to an end, and nothing of it is left."""

import asyncio
import os
import resource
import threading
import time
from typing import Any

import pytest
from pydantic_ai.messages import ModelResponse, TextPart
from pydantic_ai.usage import RequestUsage

from llm_do import AttachmentPayload, Limits, Runtime, WorkerRegistry

from ..processes import PATIENCE
from .world import COUNTED, Person, World, call, calls_made, say, together


def endless(response: Any) -> list[Any]:
    """The same step, again and again."""
    return [response] * 5000


def test_a_worker_that_calls_itself_ends(world: World) -> None:
    world.worker("a", "tools: [a]\nallow_workers: ['*']")
    for step in (call("a", input="go"), call("worker_call", worker="a", input_data="go")):
        outcome = world.attack(*endless(step))
        assert outcome.requests <= 17


def test_two_workers_that_call_each_other_end(world: World) -> None:
    world.worker("a", "tools: [b]")
    world.worker("b", "allow_workers: [a]")
    back = call("worker_call", worker="a", input_data="go")
    outcome = world.attack(*endless(call("b", input="go")), b=endless(back))
    assert outcome.requests <= 17


def test_recursion_through_a_function_ends(world: World) -> None:
    world.write(
        "tools.py",
        "from pydantic_ai import RunContext\nfrom llm_do import Context, entry\n"
        "@entry\nasync def again(ctx: RunContext[Context]) -> str:\n    return await ctx.deps.call('a', 'go')\n",
    )
    world.worker("a", "tools: [again]")
    assert world.attack(*endless(call("again"))).requests <= 17


@pytest.mark.parametrize("limit", [1, 3])
def test_a_tool_loop_without_an_end_ends_at_max_requests(world: World, limit: int) -> None:
    world.write("tools.py", COUNTED)
    world.worker("a", f"tools: [look]\nlimits: {{max_requests: {limit}}}")
    outcome = world.attack(*endless(call("look")))
    assert outcome.error is not None
    assert outcome.requests == limit
    assert len(calls_made(world)) <= limit


def test_no_worker_below_has_more_than_the_limit_of_one_above(world: World) -> None:
    world.write("tools.py", COUNTED)
    world.worker("a", "tools: [b]\nlimits: {max_requests: 4}")
    world.worker("b", "tools: [look]\nlimits: {max_requests: 1000}")
    outcome = world.attack(*endless(call("b", input="go")), b=endless(call("look")))
    assert outcome.requests == 4


@pytest.mark.parametrize("table", ["max_requests = 5", "max_calls = 5"])
def test_no_worker_has_more_than_the_limit_of_the_project(world: World, table: str) -> None:
    world.write("llm-do.toml", f"[limits]\n{table}\n")
    world.write("tools.py", COUNTED)
    world.worker("a", "tools: [look]\nlimits: {max_requests: 1000, max_calls: 1000}")
    outcome = world.attack(*endless(call("look")))
    assert outcome.error is not None
    assert outcome.requests <= 6
    assert len(calls_made(world)) <= 5


def test_a_fan_out_stops_exactly_at_max_calls(world: World) -> None:
    world.write("tools.py", COUNTED)
    world.write("llm-do.toml", "[limits]\nmax_calls = 20\n")
    world.worker("a", "tools: [look]")
    world.attack(together(*(call("look", place=str(n)) for n in range(500))))
    assert len(calls_made(world)) <= 19


def test_a_tree_of_workers_stops_at_max_requests(world: World) -> None:
    world.write("llm-do.toml", "[limits]\nmax_requests = 12\n")
    world.worker("a", "tools: [a]")
    many = [together(*(call("a", input=str(n)) for n in range(4)))]
    outcome = world.attack(*many)
    assert outcome.requests <= 12


def test_no_more_workers_run_side_by_side_than_may(world: World) -> None:
    world.write(
        "tools.py",
        "import asyncio\nfrom pathlib import Path\nfrom llm_do import entry\n"
        "LOG, now = Path(__file__).parent.parent / 'most', [0]\n"
        "@entry\nasync def busy() -> str:\n    now[0] += 1\n    await asyncio.sleep(0.01)\n"
        "    LOG.write_text(str(max(now[0], int(LOG.read_text() or 0) if LOG.exists() else 0)))\n"
        "    now[0] -= 1\n    return 'x'\n",
    )
    world.worker("a", "tools: [b]")
    world.worker("b", "tools: [busy]")
    many = together(*(call("b", input=str(n)) for n in range(40)))
    world.session([many], scripts={"b": [call("busy")]}, max_concurrency=3)
    assert 1 <= int((world.top / "most").read_text()) <= 3


def test_a_tool_that_never_returns_ends_with_the_time_of_its_worker(world: World) -> None:
    world.write(
        "tools.py",
        "import asyncio\nfrom llm_do import entry\n@entry\nasync def hang() -> str:\n    await asyncio.sleep(300)\n",
    )
    world.worker("a", "tools: [hang]\nlimits: {timeout: 0.2}")
    outcome = world.attack(*endless(call("hang")))
    assert outcome.requests == 1


def test_a_worker_below_that_never_ends_ends_with_the_time_of_the_one_above(world: World) -> None:
    world.worker("a", "tools: [b]\nlimits: {timeout: 0.3}")
    world.worker("b", "toolsets: [shell]\nsandbox: {paths: {out: {root: out, mode: rw}}}\nlimits: {timeout: 500}")
    sleep = call("shell", command=f"sleep {world.mark}")
    world.attack(call("b", input="go"), b=endless(sleep), callback=Person())
    assert not world.processes()


def test_a_budget_in_tokens_stops_the_next_request(world: World) -> None:
    world.write("tools.py", COUNTED)
    world.worker("a", "tools: [look]\nlimits: {max_tokens: 3000}")
    dear = call("look")
    dear = ModelResponse(parts=dear.parts, usage=RequestUsage(input_tokens=1600, output_tokens=600))
    outcome = world.attack(*endless(dear))
    assert outcome.requests == 1


def test_a_model_without_a_price_is_not_used_under_a_budget_in_money(world: World) -> None:
    world.worker("a", "limits: {max_cost: 0.01}")
    outcome = world.attack(say())
    assert outcome.error is not None
    assert outcome.requests == 0


def test_fifty_megabytes_of_a_tool_do_not_multiply(world: World) -> None:
    world.write("tools.py", "from llm_do import entry\n@entry\ndef much() -> str:\n    return 'x' * 50_000_000\n")
    world.worker("a", "tools: [much]")
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    outcome = world.attack(call("much"))
    world.sent.clear()
    grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
    assert outcome.error is None
    assert grown < 1_500_000  # kilobytes


@pytest.mark.parametrize(
    ("policy", "files"),
    [
        ("{max_attachments: 2}", [("a.txt", 1), ("b.txt", 1), ("c.txt", 1)]),
        ("{max_total_bytes: 100}", [("a.txt", 60), ("b.txt", 60)]),
        ("{suffixes: [.txt]}", [("a.txt", 1), ("b.exe", 1)]),
        ("{suffixes: [.txt]}", [("a.txt\0.exe", 1)]),
        ("{suffixes: []}", [("a.txt", 1)]),
        ("{max_attachments: 0}", [("a.txt", 1)]),
    ],
    ids=range(6),
)
@pytest.mark.parametrize("declared", ["", "input: {type: object, properties: {input: {}}}\n"], ids=["open", "declared"])
def test_a_file_that_a_worker_does_not_take_reaches_no_model(
    world: World, policy: str, files: list[tuple[str, int]], declared: str
) -> None:
    world.worker("b", f"{declared}attachment_policy: {policy}")
    world.worker("a", "allow_workers: [b]\nsandbox: {paths: {in: {root: in}}}")
    given = [AttachmentPayload(name, b"#" * size) for name, size in files]
    outcome = world.attack(worker="b", attachments=given, data={"input": "x"})
    assert outcome.requests == 0
    for name, size in files:
        if "\0" not in name:
            world.write(f"in/{name}", "#" * size)
    paths = [f"in/{name}" for name, _ in files]
    arguments = {"worker": "b", "input_data": {"input": "x"}, "attachments": paths}
    outcome = world.attack(call("worker_call", **arguments))
    assert not any("I am <b>" in sent for sent in outcome.sent)


@pytest.mark.parametrize(
    "path",
    ["out/../in/plain.txt", "../outside/secret.txt", "{outside}/secret.txt", "in/link", "in/hard", "in/pipe", "in", ""],
)
def test_a_model_attaches_no_file_from_outside_of_its_roots(world: World, path: str) -> None:
    (world.project / "in/link").symlink_to(world.secret)
    os.link(world.secret, world.project / "in/hard")
    os.mkfifo(world.project / "in/pipe")
    world.worker("a", "allow_workers: [b]\nsandbox: {paths: {in: {root: in}}}")
    world.worker("b")
    given = [path.format(outside=world.outside)]
    outcome = world.attack(call("worker_call", worker="b", input_data="x", attachments=given))
    assert not any("I am <b>" in sent for sent in outcome.sent)


@pytest.mark.parametrize(
    "hidden",
    [
        {"attachments": ["in/plain.txt"]},
        {"attachments": [{"kind": "image-url", "url": "file:///etc/passwd"}]},
        {"input": "x", "attachments": [{"kind": "binary", "data": "QQ==", "media_type": "text/plain"}]},
    ],
    ids=["path", "url", "bytes"],
)
def test_no_file_is_smuggled_in_among_the_arguments(world: World, hidden: dict[str, Any]) -> None:
    world.worker("a", "allow_workers: [b]\ntools: [b]\nsandbox: {paths: {in: {root: in}}}")
    world.worker("b", "attachment_policy: {max_attachments: 0}")
    for step in (call("worker_call", worker="b", input_data=hidden), call("b", **{"input": "x", **hidden})):
        outcome = world.attack(step)
        assert not any("I am <b>" in sent for sent in outcome.sent)


def test_a_run_that_is_cancelled_leaves_no_process_thread_or_task(world: World) -> None:
    world.worker("a", "toolsets: [shell]\nsandbox: {paths: {out: {root: out, mode: rw}}}\n")
    sleeps = together(*(call("shell", command=f"sleep {world.mark}{n}") for n in range(3)))
    model = world.model({"a": [sleeps]})
    left: list[int] = []

    async def run() -> None:
        runtime = Runtime(WorkerRegistry(world.project), model=model, approval_callback=Person(), limits=Limits())
        task = asyncio.create_task(runtime.call("a", "go"))
        while len(world.processes()) < 3 and not task.done():
            await asyncio.sleep(0.02)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        left.append(len(asyncio.all_tasks()) - 1)

    before = threading.active_count()
    asyncio.run(run())
    assert left == [0]
    assert not world.processes()
    until = time.monotonic() + PATIENCE
    while threading.active_count() > before and time.monotonic() < until:  # idle threads of the pool end on their own
        time.sleep(0.02)
    assert threading.active_count() <= before


def test_a_pattern_that_makes_matching_slow_does_not(world: World) -> None:
    world.write("in/" + "a" * 200, "x")
    world.worker(
        "a", "sandbox: {paths: {in: {root: in}}}\ntool_rules: {sandbox.read: {rule: deny, when: {path: in/z}}}"
    )
    slow = ["in/" + "a*" * 60 + "b", "in/" + "*a" * 60 + "b", "in/" + "**/" * 60 + "b", "in/" + "[" * 100, "in/[z-a]*"]
    world.attack(*(call("find_files", pattern=pattern) for pattern in slow))
    world.attack(*(call("search_files", text="x", pattern=pattern) for pattern in slow))


def test_a_command_that_takes_long_to_read_is_read_in_no_time(world: World) -> None:
    world.worker(
        "a",
        "toolsets: [shell]\nsandbox: {paths: {out: {root: out}}}\n"
        "tool_rules: {shell: [ask, {rule: deny, when: {command: '** a ** b ** c ** d'}}]}",
    )
    slow = ["env " * 900 + "x", "a " * 900, '"' + "\\\\" * 9000, "'" * 9999, "env " + "a b c " * 150]
    with world.untouched():
        world.attack(*(call("shell", command=command) for command in slow), callback=Person(False))


def test_an_answer_without_content_does_not_go_on_for_ever(world: World) -> None:
    world.worker("a")
    outcome = world.attack(*endless(ModelResponse(parts=[TextPart("")])))
    assert outcome.requests <= 4
    outcome = world.attack(*endless(ModelResponse(parts=[])))
    assert outcome.requests <= 4
