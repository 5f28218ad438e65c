"""Runs the checks of one peer: each function named `fact_*` shows what its docstring says, or fails."""

import asyncio
import inspect
import sys
import traceback
from importlib.metadata import version
from typing import Any


def check(namespace: dict[str, Any], *packages: str) -> None:
    print(", ".join(f"{package} {version(package)}" for package in packages))
    wrong = 0
    for name, fact in list(namespace.items()):
        if not name.startswith("fact_"):
            continue
        try:
            result = fact()
            if inspect.iscoroutine(result):
                asyncio.run(result)
        except Exception:
            wrong += 1
            print(f"  NOT SO  {name}\n{traceback.format_exc(limit=-3)}")
        else:
            print(f"  ok  {name}: {' '.join((fact.__doc__ or '').split())}")
    sys.exit(1 if wrong else 0)
