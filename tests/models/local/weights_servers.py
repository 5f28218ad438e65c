"""Servers on loopback: a hub and a package index, which can stop in the middle, cheat and refuse."""

import base64
import hashlib
import io
import threading
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from ...processes import PATIENCE


class Server(ThreadingHTTPServer):
    """Serves `files`, path to content, and keeps the requests."""

    daemon_threads = True
    block_on_close = False

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.files: dict[str, bytes] = {}
        self.redirects: dict[str, str] = {}
        self.requests: list[tuple[str, str | None]] = []
        """Path and Range of each."""
        self.headers: list[dict[str, str]] = []
        self.statuses: list[int] = []
        """What the next requests for big files are answered with, in place of the file."""
        self.cuts = 0
        """So many big answers end in the middle."""
        self.ranges = True
        self.lengths = True
        self.pause_at: float | None = None
        """The part of a big file after which the server waits."""
        self.paused = threading.Event()
        self.go_on = threading.Event()

    @property
    def address(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that goes away is no news."""


class _Handler(BaseHTTPRequestHandler):
    server: Server
    protocol_version = "HTTP/1.1"

    def log_message(self, *args: Any) -> None:
        pass

    def do_HEAD(self) -> None:
        self.do_GET()

    def do_GET(self) -> None:
        self.close_connection = True
        server, path = self.server, self.path
        server.requests.append((path, self.headers["Range"]))
        server.headers.append(dict(self.headers))
        if path in server.redirects:
            self.answer(302, b"", Location=server.redirects[path])
        elif path not in server.files:
            self.answer(404, b"")
        elif len(content := server.files[path]) < 10_000:
            self.answer(200, content, **{"Content-Type": "text/html"})
        elif server.statuses:
            self.answer(server.statuses.pop(0), b"")
        else:
            self.big(content)

    def big(self, content: bytes) -> None:
        start = 0
        wanted = self.headers["Range"]
        if wanted and self.server.ranges:
            start = int(wanted.removeprefix("bytes=").split("-")[0] or 0)
            if start >= len(content):
                return self.answer(416, b"")
            self.answer(206, content[start:], **{"Content-Range": f"bytes {start}-{len(content) - 1}/{len(content)}"})
        else:
            self.answer(200, content)
        return None

    def answer(self, status: int, body: bytes, **headers: str) -> None:
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        if self.server.lengths:
            self.send_header("Content-Length", str(len(body)))
        self.send_header("Connection", "close")
        self.end_headers()
        if self.command == "HEAD":
            return
        if len(body) >= 10_000 and self.server.cuts:
            self.server.cuts -= 1
            self.wfile.write(body[: len(body) // 2])
        elif len(body) >= 10_000 and self.server.pause_at is not None:
            cut = int(len(body) * self.server.pause_at)
            self.wfile.write(body[:cut])
            self.wfile.flush()
            self.server.paused.set()
            self.server.go_on.wait(PATIENCE)
            self.wfile.write(body[cut:])
        else:
            self.wfile.write(body)


@contextmanager
def serving() -> Iterator[Server]:
    server = Server()
    thread = threading.Thread(target=server.serve_forever, args=(0.05,))
    thread.start()
    try:
        yield server
    finally:
        server.go_on.set()
        server.shutdown()
        server.server_close()
        thread.join()


def wheel_of(member: str, content: bytes, *, stored: bool = True) -> bytes:
    """A wheel of the package `tiny-weights` 1.0 with one file in it."""
    info = "tiny_weights-1.0.dist-info"
    files = {
        member: content,
        f"{info}/METADATA": b"Metadata-Version: 2.1\nName: tiny-weights\nVersion: 1.0\nRequires-Dist: not-to-be-had\n",
        f"{info}/WHEEL": b"Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    rows = [f"{name},sha256={_urlsafe(data)},{len(data)}" for name, data in files.items()]
    files[f"{info}/RECORD"] = "\n".join([*rows, f"{info}/RECORD,,", ""]).encode()
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w", zipfile.ZIP_STORED if stored else zipfile.ZIP_DEFLATED) as wheel:
        for name, data in files.items():
            wheel.writestr(name, data)
    return packed.getvalue()


def _urlsafe(data: bytes) -> str:
    return base64.urlsafe_b64encode(hashlib.sha256(data).digest()).decode().rstrip("=")


def offer_wheel(server: Server, wheel: bytes) -> str:
    """Make the server an index (PEP 503, PEP 658) with that wheel; the path of the wheel."""
    path = "/files/tiny_weights-1.0-py3-none-any.whl"
    with zipfile.ZipFile(io.BytesIO(wheel)) as opened:
        metadata = opened.read("tiny_weights-1.0.dist-info/METADATA")
    marks = f'data-core-metadata="sha256={hashlib.sha256(metadata).hexdigest()}"'
    server.files[path] = wheel
    server.files[f"{path}.metadata"] = metadata
    page = f'<!DOCTYPE html><html><body><a href="{path}" {marks}>{path.rpartition("/")[2]}</a></body></html>'
    server.files["/simple/tiny-weights/"] = page.encode()
    return path
