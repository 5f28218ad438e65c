"""Ask at the terminal before something is written or published: what `llm-do run` does, in a program of your own."""

import signal
import sys
from pathlib import Path
from typing import Any

from scripted import scripted_model

from llm_do import ApprovalDecision, WorkerRegistry, run_worker


def ask(tool_name: str, payload: dict[str, Any], reason: str) -> ApprovalDecision:
    print(f"\n{reason}")
    for name, value in payload.items():
        print(f"  {name}: {value!r}")  # what a model wrote must not move the cursor
    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # so that Ctrl-C ends the question
    try:
        answer = input(f"{tool_name}? [y]es, [a]lways to exactly this, or why not: ").strip()
    except EOFError:
        answer = "nobody is there to answer"
    finally:
        signal.signal(signal.SIGINT, before)
    if answer in ("y", "a"):
        return ApprovalDecision(approved=True, approve_for_session=answer == "a")
    return ApprovalDecision(approved=False, note=answer or "no")


def main() -> None:
    result = run_worker(
        registry=WorkerRegistry(Path(__file__).parent),
        worker="secretary",
        input_data="garden-club.txt",
        cli_model=scripted_model() if "--scripted" in sys.argv else None,
        approval_callback=ask,
    )
    print(f"\n{result.output}\n\n{result.trace}")
    for refused in result.refusals:
        print(f"refused: {refused.name} {refused.input_data}")


if __name__ == "__main__":
    main()
