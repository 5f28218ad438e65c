"""The configuration of a worker's folders."""

from __future__ import annotations

import os
from functools import partial
from itertools import product
from pathlib import Path
from typing import Annotated, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, PrivateAttr

from ...values.names import check_name, check_suffix


def _check_folder(folder: str) -> str:
    if not folder or "\0" in folder or folder.startswith("~"):
        raise ValueError(f"{folder!r} is no folder: write a path relative to the project, or an absolute one.")
    return folder


class RootConfig(BaseModel):
    """A folder that workers use under a name."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    root: Annotated[str, AfterValidator(_check_folder)]
    """The folder, relative to the project folder or absolute."""
    mode: Literal["ro", "rw"] = "ro"
    """Read only, or writable."""
    suffixes: tuple[Annotated[str, AfterValidator(check_suffix)], ...] | None = None
    """The suffixes that file names may have, in upper or lower case. `None` allows any, an empty list none."""
    max_file_bytes: int = Field(default=10_000_000, gt=0)
    """The size up to which a file is read or written."""

    # Set by `restrict_to`, which has compared this folder: a symlink that takes its place later must not be followed.
    _resolved: Path | None = PrivateAttr(default=None)

    def folder(self, base: Path) -> Path:
        """Return the path of the folder.

        A relative path is not resolved, so that nothing is opened if a symlink is on its way: a worker may have made it
        in another root. An absolute path is resolved now.
        """
        if self._resolved is not None:
            return self._resolved
        if Path(self.root).is_absolute():
            return Path(self.root).resolve()
        return Path(os.path.normpath(base.resolve() / self.root))

    def allows_name(self, name: str) -> bool:
        """Return whether a file may have this name."""
        return self.suffixes is None or name.casefold().endswith(self.suffixes)

    def restrict_to(self, other: RootConfig, folder: Path) -> RootConfig:
        """Return this root, at `folder`, with no more rights than `other` has."""
        suffixes = self.suffixes if other.suffixes is None else other.suffixes
        if self.suffixes is not None and other.suffixes is not None:
            # Of '.gz' and '.tar.gz', both allow the longer one.
            pairs = product(self.suffixes, other.suffixes)
            suffixes = tuple(sorted({max(a, b, key=len) for a, b in pairs if a.endswith(b) or b.endswith(a)}))
        result = RootConfig(
            root=str(folder),
            mode="rw" if self.mode == other.mode == "rw" else "ro",
            suffixes=suffixes,
            max_file_bytes=min(self.max_file_bytes, other.max_file_bytes),
        )
        result._resolved = folder
        return result


class SandboxConfig(BaseModel):
    """The roots of a worker, by name."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    paths: dict[Annotated[str, AfterValidator(partial(check_name, owner="a root", hint=""))], RootConfig] = {}

    def restrict_to(self, other: SandboxConfig, base: Path) -> SandboxConfig:
        """Return this configuration with no more rights than `other` has.

        A root stays only if it is at or below a root of `other`. If it is below several, the deepest decides. If two
        roots of `other` are that folder, both decide.
        """
        theirs = [(root.folder(base), root) for root in other.paths.values()]
        paths = {}
        for name, root in self.paths.items():
            folder = root.folder(base)
            around = [(len(above.parts), one) for above, one in theirs if folder.is_relative_to(above)]
            if around:
                deepest = max(depth for depth, _ in around)
                for depth, one in around:
                    if depth == deepest:
                        root = root.restrict_to(one, folder)
                paths[name] = root
        return SandboxConfig(paths=paths)
