"""Which folders a worker may use, and how."""

from __future__ import annotations

import os
from functools import partial
from pathlib import Path
from typing import Annotated, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, PrivateAttr

from ...values.names import check_name


def _check_folder(folder: str) -> str:
    if not folder or "\0" in folder or folder.startswith("~"):
        raise ValueError(f"{folder!r} is no folder: write a path relative to the project, or an absolute one.")
    return folder


def _check_suffix(suffix: str) -> str:
    if len(suffix) < 2 or not suffix.startswith(".") or "/" in suffix:
        raise ValueError(f"{suffix!r} is no suffix: write it with its dot, such as '.txt'.")
    return suffix.casefold()


class RootConfig(BaseModel):
    """One folder that workers reach under a name."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    root: Annotated[str, AfterValidator(_check_folder)]
    """The folder, relative to the project folder or absolute."""
    mode: Literal["ro", "rw"] = "ro"
    """Read only, or writable."""
    suffixes: tuple[Annotated[str, AfterValidator(_check_suffix)], ...] | None = None
    """How the names of files end, in upper or lower case. `None` is any way, an empty list none at all."""
    max_file_bytes: int = Field(default=10_000_000, gt=0)
    """How large a file may be that is read or written."""

    # Set by `cut`, which compared this very folder: a symlink put in its place later must not be followed.
    _resolved: Path | None = PrivateAttr(default=None)

    def folder(self, base: Path) -> Path:
        """Where the folder is.

        A path of the project is taken as it is written, so that nothing is opened if there is a symlink on its way: a
        worker may have made it, in another root of its own. An absolute one is whatever it means now.
        """
        if self._resolved is not None:
            return self._resolved
        if Path(self.root).is_absolute():
            return Path(self.root).resolve()
        return Path(os.path.normpath(base.resolve() / self.root))

    def allows_name(self, name: str) -> bool:
        """Whether a file may be called so."""
        return self.suffixes is None or name.casefold().endswith(self.suffixes)

    def cut(self, other: RootConfig, folder: Path) -> RootConfig:
        """What is left of this root, which is at `folder`, when it has no more than `other` allows."""
        suffixes = self.suffixes if other.suffixes is None else other.suffixes
        if self.suffixes is not None and other.suffixes is not None:
            # Of '.gz' and '.tar.gz', what both allow is the longer one.
            longer = {max(a, b, key=len) for a in self.suffixes for b in other.suffixes if _one_ends_other(a, b)}
            suffixes = tuple(sorted(longer))
        result = RootConfig(
            root=str(folder),
            mode="rw" if self.mode == other.mode == "rw" else "ro",
            suffixes=suffixes,
            max_file_bytes=min(self.max_file_bytes, other.max_file_bytes),
        )
        result._resolved = folder
        return result


def _one_ends_other(a: str, b: str) -> bool:
    return a.endswith(b) or b.endswith(a)


class SandboxConfig(BaseModel):
    """The roots of a worker, by name."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    paths: dict[Annotated[str, AfterValidator(partial(check_name, owner="a root", hint=""))], RootConfig] = {}

    def within(self, other: SandboxConfig, base: Path) -> SandboxConfig:
        """What is left of this configuration when it has no more than `other` allows.

        A root stays only if it is at or below a root of `other`. If it is below several, the deepest decides;
        where one folder has two names there, both do.
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
                        root = root.cut(one, folder)
                paths[name] = root
        return SandboxConfig(paths=paths)
