"""Generated workers for tests, as if other workers had created them."""

import re
from pathlib import Path

from llm_do.projects.worker_files import BY_PROJECT, WorkerFile, seal_of


def seal(file: Path) -> None:
    """Seal a file of `workers/generated/` in the name of the worker that it says created it."""
    if file.suffix != ".yaml" or file.parent.name != "generated":
        return
    said = re.search(r'^created_by: "?([\w-]+)"?$', file.read_text(), re.MULTILINE)
    if said is not None and said[1] != BY_PROJECT:
        WorkerFile(file).seal.write_text(seal_of(file.read_bytes(), said[1]))
