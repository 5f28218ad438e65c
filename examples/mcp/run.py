"""Let the clerk look after the sugar. It approves whatever it is asked, and shows what that was."""

import sys
from pathlib import Path
from typing import Any

from scripted import scripted_model

from llm_do import ApprovalDecision, WorkerRegistry, run_worker

TASK = "If there is no sugar left, order 10 packets."


def approve(tool_name: str, payload: dict[str, Any], reason: str) -> ApprovalDecision:
    print(f"{reason}\nrun.py says yes to {tool_name} {payload}")
    return ApprovalDecision(approved=True)


def main() -> None:
    result = run_worker(
        registry=WorkerRegistry(Path(__file__).parent),
        worker="clerk",
        input_data=TASK,
        cli_model=scripted_model() if "--scripted" in sys.argv else None,
        approval_callback=approve,
    )
    print(f"\n{result.output}\n\n{result.trace}")


if __name__ == "__main__":
    main()
