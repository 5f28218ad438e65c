"""Tools that llm-do brings for workers."""

from .files import FILE_TOOLS

__all__ = ["FILE_TOOLS"]
