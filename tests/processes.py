"""Programs that tests start: how long they may take, and whether an interrupt ends them.

The tests themselves may have been started with SIGINT ignored, which every child inherits: a shell without job control
does that to what it starts in the background (`nohup make test &`), and so do many CI runners.
"""

import signal
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

PATIENCE = 120
"""Seconds after which something that should have happened never will. Machines that run tests are busy."""


def start_interruptible(command: Sequence[str | Path], **options: Any) -> "subprocess.Popen[str]":
    """Start a program with text streams and with the default handling of SIGINT."""
    return subprocess.Popen(command, text=True, preexec_fn=lambda: _handle(signal.SIG_DFL), **options)


def start_uninterruptible(command: Sequence[str | Path], **options: Any) -> "subprocess.Popen[str]":
    """Start a program as a shell without job control starts one in the background: with SIGINT ignored."""
    return subprocess.Popen(command, text=True, preexec_fn=lambda: _handle(signal.SIG_IGN), **options)


def _handle(how: signal.Handlers) -> None:
    signal.signal(signal.SIGINT, how)
