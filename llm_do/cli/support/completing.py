"""Words that click offers at TAB, where `tab` leaves the answer to it."""

from __future__ import annotations

from pathlib import Path

import click

from ...projects.discovery import find_root, names_in
from ..fast.completion import MODELS


def worker_names(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[str]:
    """Names that a word may become: for the `shell_complete` of an argument."""
    root = find_root(Path(ctx.find_root().params.get("folder") or ".").absolute())
    return [] if root is None else [name for name in names_in(root) if name.startswith(incomplete)]


def model_names(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[str]:
    """Names of models whose weights can be fetched."""
    return [name for name in MODELS if name.startswith(incomplete)]
