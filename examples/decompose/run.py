"""Plan a party."""

import sys
from pathlib import Path

from scripted import scripted_model

from llm_do import WorkerRegistry, run_worker

TASK = {"task": "Give a garden party for twenty people", "levels": 2}


def main() -> None:
    model = scripted_model() if "--scripted" in sys.argv else None
    result = run_worker(registry=WorkerRegistry(Path(__file__).parent), worker="plan", input_data=TASK, cli_model=model)
    plan = result.output  # a Plan: see schemas.py
    print(f"{plan.task}: {plan.minutes} minutes", *plan.steps, sep="\n  ")
    print(f"\n{result.trace}")


if __name__ == "__main__":
    main()
