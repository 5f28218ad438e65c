"""Weights from a hub on loopback, whose connections break, redirect and lie."""

import shutil
import ssl
import stat
import subprocess
from pathlib import Path

import pytest

from llm_do.errors import LocalModelError
from llm_do.models.local.catalogue import Progress
from llm_do.models.local.store import models_folder, pull

from .weights_servers import Server, serving
from .weights_support import (
    CONTENT,
    HUB_PATH,
    ON_HUB,
    closed_port,
    left,
    refused,
)
from .weights_support import environment as environment
from .weights_support import server as server


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
