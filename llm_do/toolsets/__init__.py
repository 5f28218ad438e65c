"""Tools that llm-do brings for workers. Each is imported when it is asked for: most workers use few of them."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .delegation import worker_call, worker_create
    from .files import FILE_TOOLS
    from .mcp.toolset import McpFactory
    from .shell import shell

__all__ = ["FILE_TOOLS", "McpFactory", "shell", "worker_call", "worker_create"]

_MODULES = {
    "FILE_TOOLS": "files",
    "McpFactory": "mcp.toolset",
    "shell": "shell",
    "worker_call": "delegation",
    "worker_create": "delegation",
}


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(f".{_MODULES[name]}", __name__), name)
    globals()[name] = value  # also over the module `shell`, which importing it put there
    return value
