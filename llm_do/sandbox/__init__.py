"""Named folders for workers: `input/deck.pdf` is the file `deck.pdf` in the root `input`, and in no other place."""

from ..errors import ContentError, PathChanged, PathDenied, PathFailed, PathMissing
from .roots.config import RootConfig, SandboxConfig
from .roots.manager import SandboxManager
from .roots.operations import FoundLine, Listing, SandboxToolset
from .roots.root import Root
from .roots.states import FileState, Pins

__all__ = [
    "ContentError",
    "FileState",
    "FoundLine",
    "Listing",
    "PathChanged",
    "PathDenied",
    "PathFailed",
    "PathMissing",
    "Pins",
    "Root",
    "RootConfig",
    "SandboxConfig",
    "SandboxManager",
    "SandboxToolset",
]
