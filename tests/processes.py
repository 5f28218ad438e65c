"""Programs that tests start: how long they may take, and whether an interrupt ends them.

The tests themselves may have been started with SIGINT ignored, which every child inherits: a shell without job control
does that to what it starts in the background (`nohup make test &`), and so do many CI runners.
"""

import signal
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

PATIENCE = 300
"""Seconds after which something that should have happened never will. Machines that run tests are busy."""


def start_interruptible(command: Sequence[str | Path], **options: Any) -> "subprocess.Popen[str]":
    """Start a program with text streams and with the default handling of SIGINT."""
    return subprocess.Popen(command, text=True, preexec_fn=heed_interrupts, **options)


def start_uninterruptible(command: Sequence[str | Path], **options: Any) -> "subprocess.Popen[str]":
    """Start a program as a shell without job control starts one in the background: with SIGINT ignored."""
    return subprocess.Popen(command, text=True, preexec_fn=ignore_interrupts, **options)


def heed_interrupts() -> None:
    """Let SIGINT end the program that this process becomes."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


def ignore_interrupts() -> None:
    """Let the program that this process becomes ignore SIGINT."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
