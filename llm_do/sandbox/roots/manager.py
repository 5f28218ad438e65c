"""All roots of a worker."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from ...errors import PathDenied
from ...machine.remembered import state_folder
from ...values.texts import quote
from .config import RootConfig, SandboxConfig
from .folders import Protected
from .root import Root
from .system_calls import Opener, best_opener


class SandboxManager:
    """The roots of a configuration. They are opened when they are used, and closed with the manager."""

    def __init__(
        self,
        config: SandboxConfig,
        *,
        base: Path,
        protected: Sequence[Path] = (),
        opener: Opener | None = None,
    ) -> None:
        """`base` is the project folder; no root reaches a path that is at or below one in `protected`.

        The remembered answers of the user are always protected.
        """
        self.config = config
        self.base = base
        answers = state_folder()
        guard = Protected([*(base / path for path in protected), *([] if answers is None else [answers])])
        self.protected = guard.paths
        """The paths that no root reaches."""
        self.roots = {
            name: Root(name, config, base=base, protected=guard, opener=opener or best_opener())
            for name in config.paths
        }

    def __enter__(self) -> SandboxManager:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the folders that are open."""
        for root in self.roots.values():
            root.close()

    def root(self, name: str) -> Root:
        """Return the root of a name."""
        if name not in self.roots:
            raise PathDenied(f"There is no root {quote(name)}. {self._how_to_write}")
        return self.roots[name]

    @property
    def _how_to_write(self) -> str:
        return f"Roots: {', '.join(map(repr, self.roots)) or 'none'}. Write a path as 'root/path/in/it'."

    def parse(self, path: str) -> tuple[Root, str]:
        """Return the root that a path like `input/a/b.txt` starts with, and the rest."""
        name, _, rest = path.partition("/")
        if not name:
            raise PathDenied(f"{quote(path)} starts with no root. {self._how_to_write}")
        root = self.root(name)
        return root, root.normalize(rest)

    def host_path(self, path: str) -> Path:
        """Return the path on this machine, to show it to people. Nothing is opened."""
        root, rest = self.parse(path)
        return root.folder / rest

    def describe(self) -> str:
        """Return a description of the roots for a model."""
        if not self.roots:
            return "There are no files to use."
        lines = [f"- {name}: {_describe(config)}" for name, config in self.config.paths.items()]
        return "\n".join(
            ["A path is the name of a root and a path in it, such as root/folder/file.txt. Roots:", *lines]
        )


def _describe(config: RootConfig) -> str:
    mode = "read and write" if config.mode == "rw" else "read only"
    names = "any files" if config.suffixes is None else f"files that end with {', '.join(config.suffixes) or '(none)'}"
    return f"{mode}, {names}, up to {config.max_file_bytes} bytes each"
