"""The cost of one call of a function, with and without a sink; beside another checkout, in turns, if one is named.

.venv/bin/python bench/calls.py [/path/to/another/checkout]
"""

from __future__ import annotations

import asyncio
import gc
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent.parent
ROUNDS = 5
CALLS = 20_000


def measure(checkout: str, with_sink: bool) -> float:
    """Return the CPU microseconds of a call, in this process."""
    sys.path.insert(0, checkout)
    from llm_do import Limits, Runtime, entry  # noqa: PLC0415 - of the checkout that is measured

    class Sink:
        def on_event(self, event: Any) -> None:
            """Do nothing."""

    @entry
    async def add(a: int, b: int) -> int:
        return a + b

    async def run() -> float:
        sinks = [Sink()] if with_sink else []
        ctx = Runtime([add], sinks=sinks, max_records=10, limits=Limits(max_calls=None)).context()
        for number in range(500):
            await ctx.call("add", number, 2)
        start = time.process_time()
        for number in range(CALLS):
            await ctx.call("add", number, 2)
        return (time.process_time() - start) / CALLS * 1e6

    gc.disable()
    return min(asyncio.run(run()) for _ in range(3))


def measure_apart(checkout: str, kind: str) -> float:
    command = [sys.executable, __file__, "--measure", checkout, kind]
    return float(subprocess.run(command, capture_output=True, text=True, check=True, cwd=checkout).stdout)


def main() -> None:
    others = sys.argv[1:2]
    for kind in ("no sink", "a sink that does nothing"):
        times: dict[str, list[float]] = {}
        for _ in range(ROUNDS):
            for checkout in (str(HERE), *others):
                times.setdefault(checkout, []).append(measure_apart(checkout, kind))
        here = min(times[str(HERE)])
        ratio = f", {here / min(times[others[0]]):.2f} x the other checkout" if others else ""
        print(f"ctx.call, {kind}: {here:.2f} us{ratio}")


if __name__ == "__main__":
    if sys.argv[1:2] == ["--measure"]:
        print(measure(sys.argv[2], sys.argv[3] != "no sink"))
    else:
        main()
