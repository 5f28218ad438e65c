"""Named folders for workers: `input/deck.pdf` is the file `deck.pdf` in the root `input`, and in no other place."""

from .roots.config import RootConfig, SandboxConfig
from .roots.manager import SandboxManager
from .roots.operations import FoundLine, Listing, SandboxToolset
from .roots.root import Root
from .roots.states import FileState, Pins

__all__ = [
    "FileState",
    "FoundLine",
    "Listing",
    "Pins",
    "Root",
    "RootConfig",
    "SandboxConfig",
    "SandboxManager",
    "SandboxToolset",
]
