"""Answers that the user gave once: kept outside of every project, and believed only if nobody else could write them."""

import json
import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from llm_do.errors import LocalModelError, RememberedError
from llm_do.machine.remembered import Remembered, state_folder
from llm_do.models.local.store import models_folder


@pytest.fixture
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    return tmp_path / "state" / "llm-do"


def test_a_yes_is_remembered_by_other_processes(state: Path) -> None:
    """What one process adds, another one finds: by kind and subject, and nothing else."""
    Remembered.load().add("project", "/home/ada/letters")
    again = Remembered.load()
    assert again.has("project", "/home/ada/letters")
    assert not again.has("project", "/home/ada")
    assert not again.has("server", "/home/ada/letters")
    again.remove("project", "/home/ada/letters")
    assert not Remembered.load().has("project", "/home/ada/letters")


def test_all_of_a_kind_is_forgotten_at_once(state: Path) -> None:
    """Also what another process added meanwhile; other kinds stay."""
    remembered = Remembered.load()
    for kind, subject in (("server", "b"), ("server", "a"), ("project", "/a")):
        Remembered.load().add(kind, subject)
    assert remembered.remove_all("server") == ["a", "b"]
    assert (remembered.subjects("server"), Remembered.load().subjects("server")) == ([], [])
    assert Remembered.load().subjects("project") == ["/a"]


def test_the_file_that_is_read_is_the_one_that_is_believed(
    state: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A file that is put in its place while it is read does not stand in for the one that others can write."""
    Remembered.load().add("project", "/a")
    own = tmp_path / "own.json"
    own.write_bytes((state / "remembered.json").read_bytes())
    own.chmod(0o600)
    (state / "remembered.json").chmod(0o666)
    close = os.close

    def close_and_replace(handle: int) -> None:
        close(handle)
        if own.exists():
            own.replace(state / "remembered.json")

    monkeypatch.setattr(os, "close", close_and_replace)
    with pytest.raises(RememberedError, match="chmod 600"):
        Remembered.load()


def test_only_the_user_can_read_the_file(state: Path) -> None:
    """The folder and the file are the user's own, whatever the umask is."""
    before = os.umask(0)
    try:
        remembered = Remembered.load()
        remembered.add("project", "/a")
    finally:
        os.umask(before)
    assert remembered.path.parent == state
    assert stat.S_IMODE(remembered.path.stat().st_mode) == 0o600
    assert stat.S_IMODE(state.stat().st_mode) == 0o700


def test_two_processes_lose_no_answer(state: Path) -> None:
    """Answers that several processes add at the same time are all kept."""
    add = (
        "import sys; from llm_do.machine.remembered import Remembered; r = Remembered.load()\n"
        "for n in range(20): r.add('project', sys.argv[1] + str(n))"
    )
    running = [subprocess.Popen([sys.executable, "-c", add, name]) for name in ("a", "b")]
    assert [process.wait() for process in running] == [0, 0]
    assert len(Remembered.load().subjects("project")) == 40
    assert [path.name for path in state.iterdir()] == ["remembered.json"]


def test_names_of_files_that_are_no_text_are_remembered(state: Path) -> None:
    """The path of a folder may be any bytes."""
    subject = os.fsdecode(b"/srv/z\xe9ro")
    Remembered.load().add("project", subject)
    assert Remembered.load().subjects("project") == [subject]


@pytest.mark.parametrize(
    "content",
    [
        "",
        "{",
        "[]",
        '{"yes": {}}',
        '{"version": 1}',
        '{"version": 1, "yes": []}',
        '{"version": 1, "yes": {"project": 1}}',
        '{"version": 2, "yes": {}}',
        "[" * 100_000,
        "\udcff",
    ],
)
def test_a_broken_file_is_a_clear_error(state: Path, content: str) -> None:
    """A file that says something else is named in the error, and never taken for a yes or a no."""
    state.mkdir(parents=True)
    file = state / "remembered.json"
    file.write_bytes(content.encode(errors="surrogateescape"))
    with pytest.raises(RememberedError, match=r"remembered\.json.*[Mm]ove it away"):
        Remembered.load()


@pytest.mark.parametrize("mode", [0o620, 0o602, 0o666])
def test_a_file_that_others_can_write_is_not_believed(state: Path, mode: int) -> None:
    """Where another user could have written the answer, it is none."""
    remembered = Remembered.load()
    remembered.add("project", "/a")
    remembered.path.chmod(mode)
    with pytest.raises(RememberedError, match="chmod 600"):
        Remembered.load()


def test_a_pipe_or_a_folder_in_its_place_is_a_clear_error(state: Path) -> None:
    """Nothing waits for a pipe."""
    state.mkdir(parents=True)
    file = state / "remembered.json"
    os.mkfifo(file)
    with pytest.raises(RememberedError, match="pipe"):
        Remembered.load()
    file.unlink()
    file.mkdir()
    with pytest.raises(RememberedError, match="folder"):
        Remembered.load()


def test_a_folder_that_cannot_be_made_is_a_clear_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Who cannot keep an answer is told what to do."""
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "file"))
    with pytest.raises(RememberedError, match="XDG_STATE_HOME"):
        Remembered.load().add("project", "/a")


def test_a_relative_state_folder_is_ignored(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Seen from the current folder, a clone could bring its own yes along."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setenv("XDG_STATE_HOME", "state")
    assert state_folder() == tmp_path / "home" / ".local" / "state" / "llm-do"
    (tmp_path / "state" / "llm-do").mkdir(parents=True)
    (tmp_path / "state" / "llm-do" / "remembered.json").write_text(
        json.dumps({"version": 1, "yes": {"project": ["/"]}})
    )
    assert not Remembered.load().has("project", "/")


def test_a_user_without_a_home_folder_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """In a container whose user is a bare number there is no place for answers, nor for weights."""

    def no_such_user(uid: int) -> None:
        raise KeyError(uid)

    for name in ("HOME", "XDG_STATE_HOME", "XDG_CACHE_HOME", "LLM_DO_CACHE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr("pwd.getpwuid", no_such_user)
    with pytest.raises(RememberedError, match="no home folder to keep answers in: set HOME, or XDG_STATE_HOME"):
        Remembered.load()
    with pytest.raises(LocalModelError, match="no home folder to keep weights in: set HOME, or LLM_DO_CACHE"):
        models_folder()
