"""llm-do: LLM workers and Python functions are the same kind of call."""

import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any


def _attach_public_names() -> None:
    # Imported here: with `python -m llm_do`, the current folder is on the path until `__main__` has run.
    from lazy_loader import attach_stub  # noqa: PLC0415

    globals().update(zip(("__getattr__", "__dir__", "__all__"), attach_stub(__name__, __file__), strict=True))


def __getattr__(name: str) -> "Any":
    """Import a public name of `__init__.pyi` when it is first used: the help of the command line needs none."""
    _attach_public_names()
    return getattr(sys.modules[__name__], name)


def __dir__() -> list[str]:
    _attach_public_names()
    return dir(sys.modules[__name__])
