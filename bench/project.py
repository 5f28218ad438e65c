"""A project of a thousand worker files against a project of one: opening it, and calling one worker.

Nothing of the other files may be read, so the ratio should be close to 1 (target: at most 1.2).
"""

import asyncio
import gc
import tempfile
from pathlib import Path
from statistics import median
from time import process_time

from pydantic_ai.models.test import TestModel

from llm_do import Runtime, WorkerRegistry

TARGET = 1.2
ROUNDS = 40
FILE = "---\ndescription: Number {number}.\ntools: []\n---\nYou are worker {number}. Be brief.\n"


def make_project(folder: Path, workers: int) -> Path:
    (folder / "workers").mkdir(parents=True)
    for number in range(workers):
        (folder / "workers" / f"worker{number}.md").write_text(FILE.format(number=number))
    return folder


async def open_and_call(folder: Path) -> None:
    await Runtime(WorkerRegistry(folder), model=TestModel()).call("worker0", "hello")


def sample(folder: Path) -> float:
    gc.collect()
    started = process_time()
    asyncio.run(open_and_call(folder))
    return process_time() - started


def main() -> None:
    with tempfile.TemporaryDirectory() as name:
        folders = {
            "one": make_project(Path(name, "one"), 1),
            "again": make_project(Path(name, "again"), 1),
            "many": make_project(Path(name, "many"), 1000),
        }
        times: dict[str, list[float]] = {kind: [] for kind in folders}
        for _ in range(ROUNDS):
            for kind, folder in folders.items():
                times[kind].append(sample(folder))
    one, again, many = (median(times[kind]) for kind in ("one", "again", "many"))
    verdict = "ok" if many / one <= TARGET else "over"
    print(f"project of 1 file, A/A                   {one * 1e6:8.0f} {again * 1e6:8.0f} us   {again / one:.3f}")
    print(
        f"project of 1000 files, open and call     {one * 1e6:8.0f} {many * 1e6:8.0f} us   {many / one:.3f}"
        f"  <= {TARGET}  {verdict}"
    )


if __name__ == "__main__":
    main()
