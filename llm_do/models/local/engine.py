"""Loaded local models: a process for each (`host.py`), and a queue of requests from any event loop and thread.

The process gets one request at a time. One thread writes to it and another reads from it, so no event loop is blocked.
"""

from __future__ import annotations

import asyncio
import atexit
import json
import os
import queue
import re
import shutil
import subprocess
import sys
import tempfile
import threading
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from time import monotonic
from typing import IO, Any

from ...errors import LocalModelError
from . import check_installed

_HOST = Path(__file__).with_name("host.py")
_SECONDS_TO_LEAVE = 2.0
_SECONDS_TO_STOP = 20.0
# The process gets no keys, since it parses files from others.
_PASSED_VARIABLES = re.compile(
    r"(PATH|HOME|LANG|USER|TMPDIR|TEMP|TMP)$|(PYTHON|LC_|LD_|DYLD_|GGML_|OMP_|CUDA_|HIP_|VK_)"
)


@dataclass(frozen=True, slots=True)
class Chunk:
    """A part of an answer while it is generated."""

    text: str = ""
    thinking: str = ""
    input_tokens: int = 0
    """The length of the prompt, in a chunk of its own before the answer."""


@dataclass(frozen=True, slots=True)
class End:
    """The end of an answer: its finish reason and usage."""

    finish: str | None
    input_tokens: int = 0
    output_tokens: int = 0
    cached_tokens: int = 0


class Answer:
    """The chunks of an answer, and then its end. Closing it frees the model for the next request.

    It cannot use `asyncio.Queue`: Python 3.11 crashes when it frees one after the event loop was closed.
    """

    def __init__(self, request: dict[str, Any]) -> None:
        self.request = request
        self.host: _Host | None = None
        self.is_closed = False
        self._is_done = False
        self._loop = asyncio.get_running_loop()
        self._unread: deque[dict[str, Any]] = deque()
        self._has_news = asyncio.Event()

    def __aiter__(self) -> Answer:
        return self

    async def __anext__(self) -> Chunk | End:
        if self._is_done:
            raise StopAsyncIteration
        while not self._unread and not self.is_closed:
            self._has_news.clear()
            await self._has_news.wait()
        if self.is_closed:
            raise LocalModelError("The answer was broken off.")
        message = self._unread.popleft()
        self._is_done = "failed" in message or "done" in message
        if "failed" in message:
            raise LocalModelError(message["failed"])
        if "done" in message:
            return _end(message)
        return Chunk(message.get("text", ""), message.get("thinking", ""), message.get("prompt", 0))

    def deliver(self, message: dict[str, Any]) -> bool:
        """Deliver a message from any thread. Return whether the reader's event loop is still open."""
        with suppress(RuntimeError):  # it is closed
            self._loop.call_soon_threadsafe(self._receive, message)
            return True
        return False

    def _receive(self, message: dict[str, Any]) -> None:
        self._unread.append(message)
        self._has_news.set()

    def close(self) -> None:
        """Take the request out of the queue, or stop its generation."""
        if not self._is_done and not self.is_closed:
            self.is_closed = True
            if self.host is not None:
                self.host.cancel(self)
            self._has_news.set()


class _Host:
    """One process with a loaded model, and its queue of requests."""

    def __init__(self, settings: dict[str, Any], requeue: Callable[[Answer], None]) -> None:
        self._path = settings["path"]
        self._requeue = requeue
        self._lock = threading.Lock()
        self._waiting: deque[Answer] = deque()
        self._current: Answer | None = None
        self._number = 0
        """The number of the current request: messages about the one before may still arrive."""
        self._is_loaded = False
        self._stop_by: float | None = None
        """The time by which the process has to stop the current request, if that was cancelled."""
        self._lines: queue.SimpleQueue[str | None] = queue.SimpleQueue()
        self._failure: str | None = None
        self._was_stuck = False
        # llama.cpp explains only in its log why it cannot load a file.
        self._log: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115 - open as long as the process
        # For the socket of the process while it loads. It is removed here too, since a killed process cannot do it.
        self._folder = tempfile.mkdtemp(prefix="llm-do-")
        self.process = subprocess.Popen(  # noqa: S603 - this interpreter and a file of this package
            [sys.executable, "-P", str(_HOST)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log,
            env={name: value for name, value in os.environ.items() if _PASSED_VARIABLES.match(name)}
            | {"GGML_NO_BACKTRACE": "1"},
            text=True,
            encoding="utf-8",
            process_group=0,  # Ctrl-C is handled in this process
        )
        self._lines.put(json.dumps({**settings, "folder": self._folder}))
        try:
            for work in (self._write, self._read):
                threading.Thread(target=work, name="llm-do-local-model", daemon=True).start()
        except RuntimeError as exc:
            self.process.kill()
            self._wait()
            raise LocalModelError(f"The local model cannot be started: {exc}.") from exc

    @property
    def is_alive(self) -> bool:
        return self._failure is None and not self._was_stuck

    def submit(self, answer: Answer) -> None:
        with self._lock:
            answer.host = self
            if self._failure is not None:
                answer.deliver({"failed": self._failure})
            elif not answer.is_closed:
                self._waiting.append(answer)
                self._send_next()

    def _send_next(self) -> None:
        """Send the next request to the process if it is idle. The lock has to be held."""
        if self._is_loaded and self._current is None and self._waiting:
            self._current = self._waiting.popleft()
            self._number += 1
            self._lines.put(json.dumps({"id": self._number, "request": self._current.request}))

    def cancel(self, answer: Answer) -> None:
        with self._lock:
            if answer in self._waiting:
                self._waiting.remove(answer)
            elif answer is self._current and self._stop_by is None:
                self._stop_by = monotonic() + _SECONDS_TO_STOP
                self._lines.put(json.dumps({"cancel": self._number}))  # this wakes the thread that checks the deadline

    def _end_if_stuck(self) -> None:
        """Kill a process that does not stop a cancelled request in time: some schemas keep llama.cpp busy forever."""
        with self._lock:
            if self._stop_by is None or monotonic() < self._stop_by:
                return
            self._stop_by, self._was_stuck = None, True
        self.process.kill()

    def close(self) -> None:
        self._lines.put(None)
        try:
            self.process.wait(_SECONDS_TO_LEAVE)
        except subprocess.TimeoutExpired:
            self.process.kill()
        self._wait()

    def _wait(self) -> int:
        """Wait for the process, remove a folder that it left, and return its exit code."""
        code = self.process.wait()
        shutil.rmtree(self._folder, ignore_errors=True)
        return code

    def _write(self) -> None:
        assert self.process.stdin is not None
        with suppress(BrokenPipeError), self.process.stdin as stdin:
            while True:
                stop_by = self._stop_by
                try:
                    line = self._lines.get(timeout=None if stop_by is None else max(0.0, stop_by - monotonic()))
                except queue.Empty:
                    self._end_if_stuck()
                    continue
                if line is None:
                    return
                stdin.write(line + "\n")
                stdin.flush()

    def _read(self) -> None:
        assert self.process.stdout is not None
        reason = ""
        # The last line of a killed process may be incomplete.
        with self.process.stdout as stdout, suppress(ValueError):
            for line in stdout:
                message = json.loads(line)
                if "failed" in message:
                    reason = message["failed"]
                elif "loaded" in message:
                    with self._lock:
                        self._is_loaded = True
                        self._send_next()
                else:
                    self._pass_on(message)
        self._lines.put(None)
        failure = self._explain(self._wait(), reason)
        with self._lock:
            self._failure = failure
            current, waiting = self._current, self._waiting
            self._current, self._waiting = None, deque()
        for answer in filter(None, (current, *waiting)):
            if self._was_stuck and answer is not current:  # the requests behind it are not to blame
                self._requeue(answer)
            else:
                answer.deliver({"failed": failure})

    def _pass_on(self, message: dict[str, Any]) -> None:
        is_last = "done" in message
        with self._lock:
            answer = self._current if message["id"] == self._number else None
            if answer is not None and is_last:
                self._current = self._stop_by = None
                self._send_next()
        if answer is not None and not answer.is_closed and not answer.deliver(message) and not is_last:
            self.cancel(answer)  # its event loop is closed

    def _explain(self, code: int, reason: str) -> str:
        self._log.seek(0, os.SEEK_END)
        self._log.seek(max(0, self._log.tell() - 4000))
        log = self._log.read().decode(errors="replace").strip().splitlines()
        self._log.close()
        if reason:
            # "0.55.873.116 E gguf_init: ...": the first error is the cause of the others.
            error = next((line.partition(" E ")[2] for line in log if " E " in line), reason)
            return f"{self._path} cannot be loaded: {error}"
        if self._was_stuck:
            return (
                f"The local model's process was ended: it did not stop a cancelled request in {_SECONDS_TO_STOP:g} s."
            )
        killed = " It was killed, as happens when memory runs out." if code in (-9, 137) else ""
        last = f" It said last: {log[-1].strip()}" if log else ""
        return f"The process of the local model ended (code {code}).{killed}{last}"


class Engine:
    """A model file, loaded on first use, and again after its process has ended."""

    def __init__(self, path: Path, context: int) -> None:
        self._settings = {"path": str(path), "context": context, "threads": _thread_count()}
        self._lock = threading.Lock()
        self._host: _Host | None = None

    def answer(self, request: dict[str, Any]) -> Answer:
        """Return the answer to a chat completions request, to be iterated in this event loop."""
        options = {"stream": True, "stream_options": {"include_usage": True}, "return_progress": True}
        answer = Answer({**request, **options})
        self._running_host().submit(answer)
        return answer

    @property
    def process_id(self) -> int | None:
        """The id of the process, if it was started."""
        return self._host.process.pid if self._host is not None else None

    def close(self) -> None:
        """End the process. The next request starts another."""
        with self._lock:
            host, self._host = self._host, None
        if host is not None:
            host.close()

    def _requeue(self, answer: Answer) -> None:
        """Queue a request of a killed process again."""
        try:
            self._running_host().submit(answer)
        except (LocalModelError, OSError) as exc:
            answer.deliver({"failed": f"The process of the local model cannot be started again: {exc}"})

    def _running_host(self) -> _Host:
        with self._lock:
            if self._host is None or not self._host.is_alive:
                check_installed()
                self._host = _Host(self._settings, self._requeue)
            return self._host


def _end(message: dict[str, Any]) -> End:
    if (error := message.get("error")) is not None:
        raise LocalModelError(_error_text(error))
    usage = message.get("usage") or {}
    details = usage.get("prompt_tokens_details") or {}
    return End(
        message["done"],
        input_tokens=usage.get("prompt_tokens", 0),
        output_tokens=usage.get("completion_tokens", 0),
        cached_tokens=details.get("cached_tokens", 0),
    )


def _error_text(error: dict[str, Any]) -> str:
    if error.get("type") == "exceed_context_size_error":
        return (
            f"The conversation has {error.get('n_prompt_tokens')} tokens, and the local model was given room for "
            f"{error.get('n_ctx')}. Send less, or use LocalModel(..., context=...)."
        )
    return f"The local model refused the request: {error.get('message', error)}"


def _thread_count() -> int:
    """Return one less than the cores: with more threads than free cores, all wait for the slowest."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return max(1, cores - 1)


_engines: dict[tuple[int, Path, int], Engine] = {}
_engines_lock = threading.Lock()


def get_engine(path: Path, context: int) -> Engine:
    """Return the engine of a file. All models in this process share it."""
    with _engines_lock:
        # A forked child has none of its parent's threads, so it needs engines of its own.
        key = os.getpid(), path, context
        if key not in _engines:
            _engines[key] = Engine(path, context)
        return _engines[key]


@atexit.register
def close_engines() -> None:
    """End all processes of local models that this process has started. The next request starts one again."""
    with _engines_lock:
        engines = [engine for (pid, _, _), engine in _engines.items() if pid == os.getpid()]
    for engine in engines:
        engine.close()
