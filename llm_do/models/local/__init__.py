"""Models that run on this machine. This module can be imported without the rest."""

from ...errors import LocalModelError
from ...machine.installation import install_extra, is_installed

LOCAL_PACKAGE = "xllamacpp"
"""The module that runs local models."""


def check_installed() -> None:
    if not is_installed(LOCAL_PACKAGE):
        raise LocalModelError(f"Local models need `{install_extra('local')}`.")


def is_file_path(name: str) -> bool:
    """Return whether the part after `local:` is the path of a file rather than a name of the catalogue."""
    return name.lower().endswith(".gguf") or "/" in name or "\\" in name
