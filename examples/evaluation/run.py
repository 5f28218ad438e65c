"""The caller. It does not know what `evaluate_all` is: a prompt, a prompt with functions, or a function."""

import sys
from pathlib import Path
from typing import Any

from llm_do import WorkerRegistry, WorkerRunResult, run_worker

QUESTION = "Would you lend them money?"


def evaluate(stage: str, **options: Any) -> WorkerRunResult:
    registry = WorkerRegistry(Path(__file__).parent / stage)
    return run_worker(registry=registry, worker="evaluate_all", input_data={"question": QUESTION}, **options)


if __name__ == "__main__":
    result = evaluate(sys.argv[1] if len(sys.argv) > 1 else "stage1-prompt")
    for document in result.output["documents"]:
        print(f"{document['score']:>3}  {document['name']}: {document['reason']}")
    print(f"{result.output['average']:>5.1f} on average\n\n{result.trace}")
