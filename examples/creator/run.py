"""Let the architect make a worker and use it. It approves whatever it is asked, and shows what that was."""

import sys
from pathlib import Path
from typing import Any

from scripted import scripted_model

from llm_do import ApprovalDecision, WorkerRegistry, run_worker

TASK = "How many words has this sentence?"


def approve(tool_name: str, payload: dict[str, Any], reason: str) -> ApprovalDecision:
    print(f"{tool_name}: run.py says yes to", *(f"{name}: {value!r}" for name, value in payload.items()), sep="\n  ")
    return ApprovalDecision(approved=True)


def main() -> None:
    registry = WorkerRegistry(Path(__file__).parent)
    model = scripted_model() if "--scripted" in sys.argv else None
    result = run_worker(
        registry=registry, worker="architect", input_data=TASK, cli_model=model, approval_callback=approve
    )
    print(f"\n{result.output}\n\n{result.trace}\n\nworkers now: {', '.join(registry.workers())}")


if __name__ == "__main__":
    main()
