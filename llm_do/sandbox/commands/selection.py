"""The choice of how commands are run on this machine."""

from __future__ import annotations

from .bwrap import BwrapRunner
from .runner import CommandRunner
from .unsandboxed import UnsandboxedRunner


def select_runner(*, sandboxed: bool) -> CommandRunner:
    """Return the runner for commands in a sandbox, or for those that a rule allows without one."""
    return BwrapRunner() if sandboxed else UnsandboxedRunner()
