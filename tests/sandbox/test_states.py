"""A change that is meant for one very file is made to that one, or not at all, whatever happens at the last moment."""

import ctypes
import errno
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from llm_do.errors import PathChanged, PathDenied
from llm_do.sandbox import RootConfig, SandboxConfig, SandboxManager, SandboxToolset
from llm_do.sandbox.roots import folders, system_calls
from llm_do.sandbox.roots.states import ABSENT, FileState

ACTIONS: dict[str, Callable[[SandboxToolset, FileState], None]] = {
    "write": lambda files, expected: files.write_text("out", "a", "ours", expected=expected),
    "edit": lambda files, expected: files.edit_text("out", "a", "old", "ours", expected=expected),
    "delete": lambda files, expected: files.delete("out", "a", expected=expected),
    "move": lambda files, expected: files.move("out", "a", "out", "b", expected=expected),
}
DONE = {"write": {"a": "ours"}, "edit": {"a": "ours"}, "delete": {}, "move": {"b": "old"}}


@pytest.fixture
def out(tmp_path: Path) -> Path:
    (tmp_path / "out").mkdir()
    return tmp_path / "out"


@pytest.fixture
def files(out: Path) -> SandboxToolset:
    config = SandboxConfig(paths={"out": RootConfig(root="out", mode="rw", max_file_bytes=1000)})
    return SandboxToolset(SandboxManager(config, base=out.parent))


def texts(folder: Path) -> dict[str, str]:
    return {path.name: path.read_text() for path in folder.iterdir()}


def put(file: Path, text: str) -> None:
    """Replace a file in one step, as editors do."""
    file.with_name("new").write_text(text)
    file.with_name("new").replace(file)


def just_before(monkeypatch: pytest.MonkeyPatch, *steps: Callable[[], None]) -> None:
    """Let another program act right before a file is put in its place or taken out of it: one step each time."""
    waiting = list(steps)

    def interposed(real: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any) -> Any:
            if waiting:
                waiting.pop(0)()
            return real(*args)

        return call

    monkeypatch.setattr(folders, "exchange", interposed(system_calls.exchange))
    monkeypatch.setattr(folders, "rename_to_free_name", interposed(system_calls.rename_to_free_name))


@pytest.mark.parametrize("action", ACTIONS)
def test_the_expected_file_is_changed(files: SandboxToolset, out: Path, action: str) -> None:
    (out / "a").write_text("old")
    ACTIONS[action](files, files.state("out", "a"))
    assert texts(out) == DONE[action]


@pytest.mark.parametrize("action", ACTIONS)
def test_a_file_that_was_replaced_at_the_last_moment_stays(
    files: SandboxToolset, out: Path, action: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It comes after the comparison, and right before the step that changes something."""
    (out / "a").write_text("old")
    expected = files.state("out", "a")
    just_before(monkeypatch, lambda: put(out / "a", "theirs"))
    with pytest.raises(PathChanged, match="out/a' has changed"):
        ACTIONS[action](files, expected)
    assert texts(out) == {"a": "theirs"}


@pytest.mark.parametrize("action", ACTIONS)
def test_of_two_files_that_come_at_the_last_moment_the_newer_one_stays(
    files: SandboxToolset, out: Path, action: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    (out / "a").write_text("old")
    expected = files.state("out", "a")
    just_before(monkeypatch, lambda: put(out / "a", "theirs"), lambda: put(out / "a", "newer"))
    with pytest.raises(PathChanged):
        ACTIONS[action](files, expected)
    assert texts(out) == {"a": "newer"}


def test_a_new_file_is_put_only_where_none_is(
    files: SandboxToolset, out: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    just_before(monkeypatch, lambda: put(out / "a", "theirs"))
    with pytest.raises(PathChanged):
        files.write_text("out", "a", "ours", expected=ABSENT)
    assert texts(out) == {"a": "theirs"}
    (out / "a").unlink()
    files.write_text("out", "a", "ours", expected=ABSENT)
    assert texts(out) == {"a": "ours"}


def test_a_move_overwrites_nothing_that_comes_at_the_last_moment(
    files: SandboxToolset, out: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (out / "a").write_text("old")
    just_before(monkeypatch, lambda: put(out / "b", "theirs"))
    with pytest.raises(PathDenied, match="out/b' is refused: something is there already"):
        files.move("out", "a", "out", "b")
    assert texts(out) == {"a": "old", "b": "theirs"}


@pytest.mark.parametrize("action", ACTIONS)
def test_a_system_without_renameat2_compares_before_it_acts(
    files: SandboxToolset, out: Path, action: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def missing(*args: Any) -> int:
        ctypes.set_errno(errno.ENOSYS)
        return -1

    monkeypatch.setattr(system_calls, "_renameat2", missing)
    (out / "a").write_text("old")
    expected = files.state("out", "a")
    put(out / "a", "theirs")
    with pytest.raises(PathChanged):
        ACTIONS[action](files, expected)
    assert texts(out) == {"a": "theirs"}
    put(out / "a", "old")
    ACTIONS[action](files, expected)
    assert texts(out) == DONE[action]


def test_a_file_that_is_too_large_to_read_is_known_by_its_time(files: SandboxToolset, out: Path) -> None:
    (out / "a").write_text("x" * 2000)
    expected = files.state("out", "a")
    assert expected.content is None
    put(out / "a", "y" * 2000)
    with pytest.raises(PathChanged):
        files.delete("out", "a", expected=expected)
    files.delete("out", "a", expected=files.state("out", "a"))
    assert texts(out) == {}
