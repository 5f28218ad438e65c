"""Downloads of weights from the Hugging Face hub, which are resumed after an interruption.

Only the size is checked here; `store` checks the hash before a file gets its final name.
"""

from __future__ import annotations

import os
import stat
from contextlib import suppress
from pathlib import Path
from time import monotonic, sleep
from typing import IO
from urllib.parse import quote

import httpx2

from ...errors import LocalModelError
from ...privacy.display import visible
from .catalogue import REPORT_INTERVAL, HubSource, OnProgress, Progress, Weights, format_size, mask_credentials

_HUB = "https://huggingface.co"
_PAUSES = (0.2, 0.5, 1.0)
"""Seconds between attempts."""
_REFUSALS = dict.fromkeys((401, 403), "the server refuses access") | {404: "the server does not have it"}


class _DownloadError(Exception):
    """A failure that another attempt would repeat."""


class _RetryableError(Exception):
    """A failure that may be temporary."""


def download_from_hub(weights: Weights, source: HubSource, part: Path, progress: OnProgress) -> None:
    """Download the rest of `part`. After an error `part` stays, unless it is empty."""
    url = _address(source)
    try:
        with _open_part(part) as file, _client(url) as client:
            _fetch_with_retries(client, url, file, weights.size, progress)
    except _DownloadError as error:
        what = mask_credentials(f"The weights of {weights.name} could not be fetched from {url}: {error}")
        raise weights.fetch_error(what) from None
    finally:
        with suppress(FileNotFoundError):
            if part.lstat().st_size == 0:
                part.unlink()


def _fetch_with_retries(client: httpx2.Client, url: str, file: IO[bytes], size: int, progress: OnProgress) -> None:
    for pause in (*_PAUSES, 0):
        try:
            return _fetch_rest(client, url, file, size, progress)
        except (httpx2.HTTPError, _RetryableError) as error:
            problem = str(error).rstrip(".") or type(error).__name__
        except httpx2.InvalidURL as error:
            raise _DownloadError(f"{error}. HF_ENDPOINT may be wrong.") from None
        sleep(pause)
    if kept := file.seek(0, os.SEEK_END):
        problem += f". {format_size(kept)} of {format_size(size)} are kept, and the next try goes on from there"
    raise _DownloadError(f"{problem}.")


def _address(source: HubSource) -> str:
    base = os.environ.get("HF_ENDPOINT", "").strip().rstrip("/") or _HUB
    if not base.startswith(("https://", "http://")):
        raise LocalModelError(f"HF_ENDPOINT has to start with https://, unlike {mask_credentials(base)!r}.")
    return f"{base}/{source.repository}/resolve/{source.revision}/{quote(source.file)}"


def _client(url: str) -> httpx2.Client:
    """Return a client that uses the proxies of the environment. It sends no token: these files are public."""

    def stay_encrypted(request: httpx2.Request) -> None:
        if request.url.scheme != "https" and url.startswith("https:"):
            raise _DownloadError(f"it leads to {request.url}, which is not encrypted.")

    try:
        return httpx2.Client(
            follow_redirects=True,
            timeout=httpx2.Timeout(30, connect=15),
            headers={"Accept-Encoding": "identity", "User-Agent": "llm-do"},
            event_hooks={"request": [stay_encrypted]},
        )
    except (ValueError, ImportError, OSError, httpx2.InvalidURL) as error:
        raise LocalModelError(
            f"The proxy or certificate settings of the environment cannot be used: {mask_credentials(str(error))}"
        ) from None


def _open_part(part: Path) -> IO[bytes]:
    """Open the partial file. A link, or anything else of its name, is replaced."""
    with suppress(FileNotFoundError):
        status = part.lstat()
        if not stat.S_ISREG(status.st_mode) or status.st_nlink != 1:
            part.unlink()
    return os.fdopen(os.open(part, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o600), "r+b")


def _fetch_rest(client: httpx2.Client, url: str, file: IO[bytes], size: int, progress: OnProgress) -> None:
    have = file.seek(0, os.SEEK_END)
    if have > size:
        have = _truncate(file)
    if have == size:
        return
    with client.stream("GET", url, headers={"Range": f"bytes={have}-"} if have else {}) as response:
        status, content_range = response.status_code, response.headers.get("Content-Range", "")
        if status == 416 or (status == 206 and not content_range.startswith(f"bytes {have}-")):
            _truncate(file)
            raise _RetryableError(f"the server cannot go on after {have:,} bytes")
        if status == 429 or status >= 500:
            raise _RetryableError(f"the server answers {status} {response.reason_phrase}")
        if status not in (200, 206):
            refusal = _REFUSALS.get(status, "the server does not give it")
            raise _DownloadError(f"{refusal} ({status} {visible(response.reason_phrase)}).")
        if status == 200:
            have = _truncate(file)
        announced = response.headers.get("Content-Length", "")
        if announced.isdecimal() and have + int(announced) != size:
            _truncate(file)
            raise _wrong_size(f"{have + int(announced):,}", size)
        reported_at = 0.0
        for block in response.iter_raw():
            have += len(block)
            if have > size:
                _truncate(file)
                raise _wrong_size(f"more than {size:,}", size)
            file.write(block)
            if monotonic() - reported_at >= REPORT_INTERVAL:
                reported_at = monotonic()
                progress(Progress("fetching", have, size))
    if have < size:
        raise _RetryableError(f"the server ended after {have:,} of {size:,} bytes")
    progress(Progress("fetching", have, size))


def _truncate(file: IO[bytes]) -> int:
    file.seek(0)
    file.truncate()
    return 0


def _wrong_size(size: str, expected: int) -> _DownloadError:
    return _DownloadError(f"it is not the file that llm-do knows: {size} bytes instead of {expected:,}.")
