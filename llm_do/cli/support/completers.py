"""Completion of values, for the `shell_complete` of an argument. A shell asks at each TAB, so it is light."""

from __future__ import annotations

from pathlib import Path

import click
from click.shell_completion import CompletionItem

from ...projects.discovery import find_root, names_in

MODELS = ("smollm2-135m", "qwen2.5-0.5b", "qwen2.5-1.5b")
"""The names of the catalogue, which is slow to import. A test compares them."""


def worker_names(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Return the names of workers, or have the shell complete a file."""
    return _names(ctx, incomplete, functions=False)


def entry_names(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Return the names of workers and functions, or have the shell complete a file."""
    return _names(ctx, incomplete, functions=True)


def _names(ctx: click.Context, incomplete: str, *, functions: bool) -> list[CompletionItem]:
    folder = Path(ctx.find_root().params.get("folder") or ".").expanduser()
    root = find_root(folder.absolute())
    names = [] if root is None or "/" in incomplete else names_in(root, functions=functions)
    return _matches(names, incomplete) or [CompletionItem(incomplete, type="file")]


def model_names(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Return the names of models whose weights can be fetched."""
    return _matches([name for name in MODELS if name not in (ctx.params.get("names") or ())], incomplete)


def model_names_or_files(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Return the same, or have the shell complete a file."""
    return model_names(ctx, param, incomplete) or [CompletionItem(incomplete, type="file")]


def _matches(names: list[str], incomplete: str) -> list[CompletionItem]:
    return [CompletionItem(name) for name in names if name.startswith(incomplete)]
