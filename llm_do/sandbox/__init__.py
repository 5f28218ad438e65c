"""Named folders for workers: `input/deck.pdf` is the file `deck.pdf` in the root `input`, and in no other place."""

from ..errors import ContentError, PathDenied, PathFailed, PathMissing
from .config import RootConfig, SandboxConfig
from .files import FoundLine, Listing, SandboxToolset
from .manager import SandboxManager
from .roots import Root

__all__ = [
    "ContentError",
    "FoundLine",
    "Listing",
    "PathDenied",
    "PathFailed",
    "PathMissing",
    "Root",
    "RootConfig",
    "SandboxConfig",
    "SandboxManager",
    "SandboxToolset",
]
