"""Tools that llm-do brings for workers."""

from .delegation import worker_call, worker_create
from .files import FILE_TOOLS
from .mcp import McpFactory
from .shell import shell

__all__ = ["FILE_TOOLS", "McpFactory", "shell", "worker_call", "worker_create"]
