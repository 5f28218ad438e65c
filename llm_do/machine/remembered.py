"""Remembered answers: questions to which the user said yes, so that they are not asked again.

They are in one file in the user's state folder, outside of every project and every root of a worker. A cloned project
cannot contain it.
"""

from __future__ import annotations

import json
import logging
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path

from platformdirs import user_state_path

from ..errors import RememberedError
from .files import lock_folder, own_users, read_with_status, write_atomically

VERSION = 1  # of the file's format
logger = logging.getLogger("llm_do")


def state_folder() -> Path | None:
    """Return the state folder of llm-do for this user, which need not exist; `None` without a home folder."""
    state_home = os.environ.get("XDG_STATE_HOME", "").strip()
    if state_home and not Path(state_home).is_absolute():
        # The specification says to ignore it. Relative to the current folder, a clone could contain the file.
        folder = os.path.expanduser("~/.local/state/llm-do")  # noqa: PTH111 - without a home, it stays as it is
        return Path(folder) if os.path.isabs(folder) else None  # noqa: PTH117
    try:
        return user_state_path("llm-do")
    except RuntimeError:  # as in a container whose user is a bare number
        return None


def is_remembered(kind: str, subject: str) -> bool:
    """Return whether the user said yes. A file that is not trusted counts as empty, with one warning."""
    if state_folder() is None:
        return False
    try:
        return Remembered.load().has(kind, subject)
    except RememberedError as exc:
        _warn(str(exc))
        return False


@cache
def _warn(message: str) -> None:
    logger.warning("%s", message)


class Remembered:
    """Questions that the user said yes to, by kind (such as `project`) and subject (such as the project's folder)."""

    def __init__(self, path: Path) -> None:
        """Read a file of answers. A missing one is empty; one that is not trusted raises a `RememberedError`."""
        self.path = path
        self._answers = _read_answers(path)

    @classmethod
    def load(cls) -> Remembered:
        """Read the file of this user."""
        if (folder := state_folder()) is None:
            raise RememberedError("There is no home folder to keep answers in: set HOME, or XDG_STATE_HOME.")
        return cls(folder / "remembered.json")

    def has(self, kind: str, subject: str) -> bool:
        return subject in self._answers.get(kind, ())

    def subjects(self, kind: str) -> list[str]:
        return sorted(self._answers.get(kind, ()))

    def add(self, kind: str, subject: str) -> None:
        with self._changing() as answers:
            answers.setdefault(kind, set()).add(subject)

    def remove(self, kind: str, subject: str) -> None:
        with self._changing() as answers:
            answers.get(kind, set()).discard(subject)

    def remove_all(self, kind: str) -> list[str]:
        """Forget all subjects of a kind in one step, and return them."""
        with self._changing() as answers:
            return sorted(answers.pop(kind, ()))

    @contextmanager
    def _changing(self) -> Iterator[dict[str, set[str]]]:
        """Change the current answers in the file, while no other process changes them."""
        try:
            self.path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            with lock_folder(self.path.parent):
                answers = _read_answers(self.path)
                yield answers
                yes = {kind: sorted(subjects) for kind, subjects in sorted(answers.items()) if subjects}
                text = json.dumps({"version": VERSION, "yes": yes}, indent=2)
                write_atomically(self.path, f"{text}\n".encode())
        except RememberedError:
            raise
        except OSError as exc:
            raise RememberedError(
                f"{self.path} cannot be written, so the answer is not remembered: {exc.strerror or exc}. "
                "Make its folder writable, or set XDG_STATE_HOME."
            ) from exc
        self._answers = answers


def _read_answers(path: Path) -> dict[str, set[str]]:
    try:
        content, status = read_with_status(path)
    except (FileNotFoundError, NotADirectoryError):
        return {}
    except OSError as exc:
        raise RememberedError(f"{path} cannot be read: {exc.strerror or exc}. Move it away to start anew.") from exc
    if status.st_uid not in own_users() or stat.S_IMODE(status.st_mode) & 0o022:
        raise RememberedError(
            f"{path} is not trusted: other users can write it. Make it yours, with `chown` and `chmod 600`."
        )
    try:
        data = json.loads(content)
        if data["version"] != VERSION:
            raise RememberedError(f"{path} has version {data['version']!r}, of another llm-do. Move it away.")
        return {str(kind): set(map(str, subjects)) for kind, subjects in data["yes"].items()}
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as exc:
        raise RememberedError(f"{path} is broken: move it away, and answer its questions again.") from exc
