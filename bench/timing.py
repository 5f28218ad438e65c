"""How things are measured: CPU time, interleaved, on a collected heap."""

import gc
from collections.abc import Awaitable, Callable, Mapping
from statistics import quantiles
from time import process_time

Work = Callable[[], Awaitable[object]]


async def cpu(work: Work) -> float:
    """CPU microseconds of one piece of work. What others left behind is not collected at its expense."""
    gc.collect()
    start = process_time()
    await work()
    return (process_time() - start) * 1e6


def repeated(prepare: Callable[[], Callable[[str], Awaitable[object]]], times: int) -> tuple[Work, int]:
    """Work that prepares a function once and calls it some times, one after the other."""

    async def work() -> None:
        call = prepare()
        for _ in range(times):
            await call("x")

    return work, times


async def interleave(variants: Mapping[str, tuple[Work, int]], rounds: int) -> dict[str, float]:
    """The CPU microseconds of each variant, which is given with the number of repetitions that its work does.

    One round measures every variant once, and each round starts with another one: a machine that gets slower
    or busier on the way then does so for all of them. The lower quartile counts: as steady as the median when the
    machine is quiet, and steadier when it is not.
    """
    names = list(variants)
    samples: dict[str, list[float]] = {name: [] for name in names}
    for work, _ in variants.values():
        await work()
    for number in range(rounds):
        first = number % len(names)
        for name in names[first:] + names[:first]:
            work, repetitions = variants[name]
            samples[name].append(await cpu(work) / repetitions)
    return {name: quantiles(values, n=4)[0] for name, values in samples.items()}


def row(name: str, raw: float, ours: float, target: float | None = None, unit: str = "us") -> None:
    """Print a comparison, and whether it keeps its target."""
    ratio = ours / raw
    verdict = "" if target is None else f"<= {target:4.2f}  {'ok' if ratio <= target else 'over'}"
    print(f"{name:<42} {raw:>10.1f} {ours:>10.1f} {unit:<3} {ratio:>6.3f}  {verdict}".rstrip(), flush=True)
