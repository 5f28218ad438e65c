"""What llm-do costs beside raw PydanticAI: `python bench/run.py [--quick] [--peers]`.

Only the ratios mean something, and only beside the A/A row, which says how far chance alone takes them.
"""

import argparse
import asyncio
import gc
import os
import subprocess
import sys
import tracemalloc
from functools import partial
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from statistics import median

from pydantic_ai import Agent, RunContext
from pydantic_ai.messages import ToolCallPart
from pydantic_ai.run import AgentRun
from pydantic_ai.tool_manager import ToolManager
from pydantic_ai.usage import RunUsage
from pydantic_graph.graph_builder import GraphRun
from timing import cpu, interleave, row
from variants import (
    INSTRUCTIONS,
    LEAF,
    MODEL,
    SLOW_MODEL,
    TOOL,
    TOOLSET,
    Floor,
    raw_runs,
    raw_tree,
    session,
    worker_runs,
    worker_tree,
)

from llm_do import WorkerEntry

FAN_OUT = 1000


async def trees(rounds: int) -> None:
    bare = Agent(MODEL, name="agent", instructions=INSTRUCTIONS)
    equipped = WorkerEntry(name="agent", instructions=INSTRUCTIONS, toolsets=[lambda ctx: TOOLSET])
    times = await interleave(
        {
            "raw 1": raw_runs(raw_tree(1), 8),
            "raw 1 again": raw_runs(raw_tree(1), 8),
            "ours 1": worker_runs(worker_tree(1), 8),
            "raw 2": raw_runs(raw_tree(2), 4),
            "ours 2": worker_runs(worker_tree(2), 4),
            "raw 5": raw_runs(raw_tree(5), 2),
            "ours 5": worker_runs(worker_tree(5), 2),
            "raw toolset": raw_runs(bare, 8, toolsets=[TOOLSET]),
            "our toolset": worker_runs(equipped, 8),
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


async def fan_out_one(side: str, traced: bool) -> None:
    """One side of the fan-out, in a process of its own. Prints the CPU us of one run, or the peak MB of all."""
    # The model gives way once: with one that never waits, runs started together hardly overlap.
    agent = Agent(SLOW_MODEL, name="agent", instructions=INSTRUCTIONS, tools=[TOOL])
    worker = WorkerEntry(name="agent", model=SLOW_MODEL, instructions=INSTRUCTIONS, tools=[LEAF])

    async def gather(times: int) -> None:
        runtime = session()
        run = (lambda: agent.run("x", infer_name=False)) if side == "raw" else (lambda: runtime.call(worker, "x"))
        await asyncio.gather(*(run() for _ in range(times)))

    await gather(8)
    if traced:
        tracemalloc.start()
    microseconds = await cpu(lambda: gather(FAN_OUT))
    print(tracemalloc.get_traced_memory()[1] / 1e6 if traced else microseconds / FAN_OUT)


def fan_out(rounds: int, memory: bool) -> None:
    def start(side: str, *options: str) -> subprocess.Popen[bytes]:
        return subprocess.Popen([sys.executable, __file__, "--fan-out", side, *options], stdout=subprocess.PIPE)

    samples: dict[str, list[float]] = {"raw": [], "ours": []}
    for _ in range(rounds):
        for side, values in samples.items():
            values.append(float(start(side).communicate()[0]))
    row(f"{FAN_OUT} concurrent worker calls: CPU of one", median(samples["raw"]), median(samples["ours"]), 0.70)
    if memory:
        # Traced, because a peak of RSS hides what fits into memory that imports have left free. It is slow and exact,
        # so both sides may run side by side, once.
        raw, ours = (float(process.communicate()[0]) for process in [start(side, "--traced") for side in samples])
        row(f"{FAN_OUT} concurrent worker calls: extra memory", raw, ours, 0.20, "MB")


async def chat(chats: int) -> None:
    """What a turn costs beyond a raw run with the same history, early in a chat and late."""
    windows = {10: range(6, 15), 200: range(192, 201)}
    costs: dict[int, list[dict[str, float]]] = {turn: [] for turn in windows}
    for _ in range(chats):
        await one_chat({turn: window for window, turns in windows.items() for turn in turns}, costs)
    shares = {}
    for turn, samples in costs.items():
        shares[turn] = median(sample["ours"] - sample["raw"] for sample in samples)
        noise = median(sample["again"] - sample["raw"] for sample in samples)
        raw = median(sample["raw"] for sample in samples)
        row(f"chat, turn {turn} (share {shares[turn]:.0f} us, A/A {noise:+.0f} us)", raw, raw + shares[turn])
    print(f"{'chat, share at turn 200 - at turn 10':<42} {shares[200] - shares[10]:>+21.0f} us   (flat)")


async def one_chat(window_of: dict[int, int], costs: dict[int, list[dict[str, float]]]) -> None:
    agent = Agent(MODEL, name="agent", instructions=INSTRUCTIONS)
    scope = WorkerEntry(name="agent", instructions=INSTRUCTIONS).start(session())
    for turn in range(1, 201):
        if turn not in window_of:
            await scope.run_turn("x")
            continue
        raw = partial(agent.run, "x", message_history=scope.messages, infer_name=False)
        works = [("raw", raw), ("ours", partial(scope.run_turn, "x")), ("again", raw)]
        works = works[turn % 3 :] + works[: turn % 3]  # each comes first, second and third equally often
        costs[window_of[turn]].append({name: await cpu(work) for name, work in works})
    await scope.close()


async def idle() -> None:
    """A scope between two turns holds no run."""
    scope = WorkerEntry(name="agent", instructions=INSTRUCTIONS, tools=[LEAF]).start(session())
    await scope.run_turn("x")
    gc.collect()
    alive = [sum(isinstance(thing, kind) for thing in gc.get_objects()) for kind in (AgentRun, GraphRun)]
    print(
        f"{'idle scope':<42} AgentRun alive: {alive[0]}, GraphRun alive: {alive[1]}  {'over' if any(alive) else 'ok'}"
    )
    await scope.close()


def imports(rounds: int) -> None:
    code = "import time; start = time.process_time(); {}; print(time.process_time() - start)"
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    raw, ours = "from pydantic_ai import Agent", "from llm_do import Runtime, WorkerEntry, WorkerRegistry"
    best = {raw: float("inf"), ours: float("inf")}
    for _ in range(rounds):
        for statement in best:
            output = subprocess.check_output([sys.executable, "-c", code.format(statement)], env=environment)
            best[statement] = min(best[statement], float(output))
    row("import all of llm_do / of pydantic_ai", best[raw] * 1e3, best[ours] * 1e3, unit="ms")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="fewer rounds, about 20 seconds")
    parser.add_argument("--peers", action="store_true", help="compare with other frameworks instead")
    parser.add_argument("--fan-out", choices=["raw", "ours"], help=argparse.SUPPRESS)
    parser.add_argument("--traced", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.fan_out:
        asyncio.run(fan_out_one(options.fan_out, options.traced))
        return
    python = ".".join(map(str, sys.version_info[:3]))
    versions = f"Python {python}, pydantic-ai {version('pydantic-ai-slim')}"
    print(f"{versions}, {os.cpu_count()} CPUs, load {os.getloadavg()[0]:.1f} before; CPU time, model without latency")
    if options.peers:
        if not all(map(find_spec, ("agno", "agents", "langchain"))):
            print("The other frameworks are not installed: uv pip install -r bench/peers.txt")
        else:
            subprocess.call([sys.executable, str(Path(__file__).with_name("peers.py")), "8" if options.quick else "30"])
        return
    print(f"{'':<42} {'raw':>10} {'ours':>10} {'':<3} {'ratio':>6}  target")
    asyncio.run(trees(8 if options.quick else 40))
    asyncio.run(functions(8 if options.quick else 60))
    fan_out(1 if options.quick else 3, memory=not options.quick)
    asyncio.run(chat(1 if options.quick else 8))
    asyncio.run(idle())
    imports(2 if options.quick else 5)


if __name__ == "__main__":
    main()
