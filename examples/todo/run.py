"""Two conversations with one worker, at the same time: each has a list of its own."""

import asyncio
import os
import sys
from pathlib import Path

from scripted import scripted_model

from llm_do import Runtime, WorkerRegistry


async def main() -> None:
    model = scripted_model() if "--scripted" in sys.argv else os.environ.get("LLM_DO_MODEL")
    registry = WorkerRegistry(Path(__file__).parent)
    runtime, keeper = Runtime(registry, model=model), registry["keeper"]
    async with keeper.start(runtime) as ada, keeper.start(runtime) as linus:
        for name, scope, text in (
            ("Ada", ada, "Add milk."),
            ("Ada", ada, "Add bread."),
            ("Linus", linus, "What is on my list?"),
            ("Ada", ada, "Milk is done."),
            ("Ada", ada, "What is on my list?"),
        ):
            print(f"{name}: {text}\n  keeper: {await scope.run_turn(text)}", flush=True)
    print(f"\n{runtime.trace}")


if __name__ == "__main__":
    asyncio.run(main())
