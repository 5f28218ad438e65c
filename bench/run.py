"""What llm-do costs beside raw PydanticAI: `python bench/run.py [--quick] [--peers]`.

Only the ratios mean something, and only beside the A/A row, which says how far chance alone takes them.
"""

import argparse
import asyncio
import gc
import json
import os
import subprocess
import sys
from importlib.metadata import version
from statistics import median

from pydantic_ai import Agent, RunContext
from pydantic_ai.messages import ModelMessage, ToolCallPart
from pydantic_ai.run import AgentRun
from pydantic_ai.tool_manager import ToolManager
from pydantic_ai.usage import RunUsage
from pydantic_graph.graph_builder import GraphRun
from timing import cpu, interleave, peak_memory, row
from variants import INSTRUCTIONS, LEAF, MODEL, SLOW_MODEL, TOOLSET, Floor, session
from variants import raw_runs, raw_tree, toolset_pair, worker_runs, worker_tree

from llm_do import CallScope, WorkerEntry

FAN_OUT = 1000


async def trees(rounds: int) -> None:
    raw_toolset, our_toolset = toolset_pair(8)
    times = await interleave(
        {
            "raw 1": raw_runs(raw_tree(1), 8),
            "raw 1 again": raw_runs(raw_tree(1), 8),
            "ours 1": worker_runs(worker_tree(1), 8),
            "raw 2": raw_runs(raw_tree(2), 4),
            "ours 2": worker_runs(worker_tree(2), 4),
            "raw 5": raw_runs(raw_tree(5), 2),
            "ours 5": worker_runs(worker_tree(5), 2),
            "raw toolset": raw_toolset,
            "our toolset": our_toolset,
        },
        rounds,
    )
    row("A/A: raw tool round trip, twice", times["raw 1"], times["raw 1 again"])
    row("tool round trip", times["raw 1"], times["ours 1"], 1.05)
    row("worker > worker > tool", times["raw 2"], times["ours 2"], 1.05)
    row("depth 5", times["raw 5"], times["ours 5"], 1.05)
    row("foreign toolset", times["raw toolset"], times["our toolset"], 1.20)


async def functions(rounds: int) -> None:
    """Calls of a Python function by name. Here the other side is a floor, and PydanticAI's own way to call a tool."""
    calls = 2000
    run_ctx = RunContext(deps=None, model=MODEL, usage=RunUsage(), max_retries=1)
    manager = await ToolManager(TOOLSET).for_run_step(run_ctx)
    part = ToolCallPart("leaf", {"text": "x"})

    async def floor() -> None:
        dispatcher = Floor()
        for _ in range(calls):
            await dispatcher.call("leaf", "x")

    async def positional() -> None:
        ctx = session().context()
        for _ in range(calls):
            await ctx.call("leaf", "x")

    async def keyword() -> None:
        ctx = session().context()
        for _ in range(calls):
            await ctx.call("leaf", text="x")

    async def handled() -> None:
        for _ in range(calls // 10):
            await manager.handle_call(part)

    works = {"floor": floor, "positional": positional, "keyword": keyword}
    times = await interleave(
        {name: (work, calls) for name, work in works.items()} | {"handled": (handled, calls // 10)}, rounds
    )
    row('ctx.call("leaf", "x") / floor', times["floor"], times["positional"], 2.35)
    row('ctx.call("leaf", text="x") / floor', times["floor"], times["keyword"], 2.35)
    row("ctx.call / ToolManager.handle_call", times["handled"], times["positional"], 0.20)


async def fan_out_one(side: str) -> None:
    """One side of the fan-out, in a process of its own. Prints CPU us per run, and extra peak memory in kB."""
    # The model gives way once: with one that never waits, runs started together hardly overlap.
    agent = Agent(SLOW_MODEL, name="agent", instructions=INSTRUCTIONS, tools=[LEAF.tool])
    worker = WorkerEntry(name="agent", model=SLOW_MODEL, instructions=INSTRUCTIONS, tools=[LEAF])

    async def gather(times: int) -> None:
        runtime = session()
        run = (lambda: agent.run("x", infer_name=False)) if side == "raw" else (lambda: runtime.call(worker, "x"))
        await asyncio.gather(*(run() for _ in range(times)))

    await gather(8)
    before = peak_memory()
    microseconds = await cpu(lambda: gather(FAN_OUT))
    print(json.dumps([microseconds / FAN_OUT, peak_memory() - before]))


def fan_out(rounds: int) -> None:
    samples: dict[str, list[list[float]]] = {"raw": [], "ours": []}
    for _ in range(rounds):
        for side, values in samples.items():
            values.append(json.loads(subprocess.check_output([sys.executable, __file__, "--fan-out", side])))
    (raw_cpu, raw_memory), (our_cpu, our_memory) = (map(median, zip(*samples[side], strict=True)) for side in samples)
    row(f"{FAN_OUT} concurrent worker calls: CPU of one", raw_cpu, our_cpu, 0.70)
    row(f"{FAN_OUT} concurrent worker calls: extra memory", raw_memory / 1024, our_memory / 1024, 0.20, "MB")


async def chat(chats: int) -> None:
    """What a turn costs beyond a raw run with the same history, early in a chat and late."""
    windows = {10: range(6, 16), 200: range(191, 201)}
    raw: dict[int, list[float]] = {turn: [] for turn in windows}
    share: dict[int, list[float]] = {turn: [] for turn in windows}
    agent = Agent(MODEL, name="agent", instructions=INSTRUCTIONS)
    worker = WorkerEntry(name="agent", instructions=INSTRUCTIONS)
    for number in range(chats):
        scope = worker.start(session())
        history: list[ModelMessage] = []
        for turn in range(1, 201):
            window = next((name for name, turns in windows.items() if turn in turns), None)
            if window is None:
                await scope.run_turn("x")
            else:
                history = scope.messages
                ours_first = (turn + number) % 2 == 0
                ours = await cpu(lambda: scope.run_turn("x")) if ours_first else 0.0
                theirs = await cpu(lambda: agent.run("x", message_history=history, infer_name=False))
                ours = ours or await cpu(lambda: scope.run_turn("x"))
                raw[window].append(theirs)
                share[window].append(ours - theirs)
        await scope.close()
    early, late = (median(share[turn]) for turn in windows)
    for turn in windows:
        row(f"chat, turn {turn}", median(raw[turn]), median(raw[turn]) + median(share[turn]))
    print(f"{'chat, our share of a turn':<42} turn 10: {early:.0f} us, turn 200: {late:.0f} us, "
          f"difference {late - early:+.0f} us  (flat)")
    await idle(worker.start(session()))


async def idle(scope: CallScope) -> None:
    await scope.run_turn("x")
    gc.collect()
    alive = [sum(isinstance(thing, kind) for thing in gc.get_objects()) for kind in (AgentRun, GraphRun)]
    print(f"{'idle scope':<42} AgentRun alive: {alive[0]}, GraphRun alive: {alive[1]}  {'over' if any(alive) else 'ok'}")
    await scope.close()


def imports(rounds: int) -> None:
    code = "import time; start = time.process_time(); import {}; print(time.process_time() - start)"
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    best = {"pydantic_ai": float("inf"), "llm_do": float("inf")}
    for _ in range(rounds):
        for name in best:
            output = subprocess.check_output([sys.executable, "-c", code.format(name)], env=environment)
            best[name] = min(best[name], float(output))
    row("import llm_do / import pydantic_ai", best["pydantic_ai"] * 1e3, best["llm_do"] * 1e3, unit="ms")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="fewer rounds, about 15 seconds")
    parser.add_argument("--peers", action="store_true", help="compare with other frameworks instead")
    parser.add_argument("--fan-out", choices=["raw", "ours"], help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.fan_out:
        asyncio.run(fan_out_one(options.fan_out))
        return
    python = ".".join(map(str, sys.version_info[:3]))
    print(f"Python {python}, {os.cpu_count()} CPUs, pydantic-ai {version('pydantic-ai-slim')}, CPU time, no-latency model")
    if options.peers:
        import peers

        asyncio.run(peers.main(20 if options.quick else 60))
        return
    print(f"{'':<42} {'raw':>10} {'ours':>10} {'':<3} {'ratio':>6}  target")
    asyncio.run(trees(8 if options.quick else 40))
    asyncio.run(functions(8 if options.quick else 60))
    fan_out(1 if options.quick else 3)
    asyncio.run(chat(1 if options.quick else 8))
    imports(2 if options.quick else 5)


if __name__ == "__main__":
    main()
