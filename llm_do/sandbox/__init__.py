"""Named folders of workers, and the commands that run in them: `input/deck.pdf` is `deck.pdf` in the root `input`."""

from .roots.config import RootConfig, SandboxConfig
from .roots.manager import FoundLine, Listing, SandboxManager, SandboxToolset
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
