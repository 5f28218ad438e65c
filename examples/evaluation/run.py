"""The caller. It does not know what `evaluate_all` is: a prompt, a prompt with functions, or a function."""

import sys
from pathlib import Path
from typing import Any

from scripted import scripted_model

from llm_do import WorkerRegistry, WorkerRunResult, run_worker

QUESTION = "Would you lend them money?"


def evaluate(stage: str, **options: Any) -> WorkerRunResult:
    registry = WorkerRegistry(Path(__file__).parent / stage)
    return run_worker(registry=registry, worker="evaluate_all", input_data={"question": QUESTION}, **options)


def main(stage: str = "stage1-prompt") -> None:
    result = evaluate(stage, cli_model=scripted_model() if "--scripted" in sys.argv else None)
    for document in result.output["documents"]:
        print(f"{document['score']:>3}  {document['name']}: {document['reason']}")
    requests = sum(usage.requests for usage in result.usage.values())
    print(f"{result.output['average']:>5.1f} on average, with {requests} model requests\n\n{result.trace}")


if __name__ == "__main__":
    main(*[word for word in sys.argv[1:] if word != "--scripted"])
