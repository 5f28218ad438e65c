"""A local model that is loaded: one process beside this one, and a queue before it.

Requests come from any number of event loops and threads, and are answered one after the other. Nothing here blocks an
event loop: one thread writes to the process (`host.py`), and one reads what it says.
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
from contextlib import suppress
from dataclasses import dataclass
from importlib.util import find_spec
from itertools import count
from pathlib import Path
from typing import IO, Any

from ...errors import LocalModelError
from ...installation import install_extra

_HOST = Path(__file__).with_name("host.py")
_SECONDS_TO_LEAVE = 2.0
_SECONDS_TO_STOP = 20.0
# It reads files of others, and has no use for anybody's keys.
_PASSED = re.compile(
    r"(PATH|HOME|LANG|USER|TMPDIR|TEMP|TMP|SYSTEMROOT|WINDIR|APPDATA|LOCALAPPDATA)$|(PYTHON|LC_|LD_|DYLD_|GGML_|OMP_|CUDA_|HIP_|VK_)"
)
_CLOSED: dict[str, Any] = {"failed": "The answer was broken off."}


@dataclass(frozen=True, slots=True)
class Piece:
    """A part of an answer, as it is generated."""

    text: str = ""
    thinking: str = ""
    input_tokens: int = 0
    """The length of the prompt, once, before anything is said."""


@dataclass(frozen=True, slots=True)
class End:
    """How an answer ended, and what it took."""

    finish: str | None
    input_tokens: int = 0
    output_tokens: int = 0
    cached_tokens: int = 0


class _Job:
    """A request that waits or is being answered, and what was said to it that nobody has heard yet.

    `asyncio.Queue` could do this, but Python 3.11 crashes when it throws one away whose event loop was closed.
    """

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._said: deque[dict[str, Any]] = deque()
        self._waiter: asyncio.Future[None] | None = None

    def tell(self, message: dict[str, Any]) -> bool:
        """Say something, from any thread; whether there is still somebody to hear it."""
        with suppress(RuntimeError):  # its event loop is closed
            self._loop.call_soon_threadsafe(self.put, message)
            return True
        return False

    def put(self, message: dict[str, Any]) -> None:
        self._said.append(message)
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    async def get(self) -> dict[str, Any]:
        while not self._said:
            self._waiter = self._loop.create_future()
            await self._waiter
        return self._said.popleft()


class _Host:
    """One process with a loaded model."""

    def __init__(self, settings: dict[str, Any]) -> None:
        self._path = settings["path"]
        self._jobs: dict[int, _Job] = {}
        self._cancelled: set[int] = set()
        self._numbers = count(1)
        self._lock = threading.Lock()
        self._lines: queue.SimpleQueue[str | None] = queue.SimpleQueue()
        self._failure: str | None = None
        # What llama.cpp says about a file that it cannot load is in its log, and nowhere else.
        self._log: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115 - open as long as the process
        # For its socket while it loads. A process that was killed cannot remove it, so it is removed here, too.
        self._folder = tempfile.mkdtemp(prefix="llm-do-")
        self._process = subprocess.Popen(  # noqa: S603 - this interpreter and a file of this package
            [sys.executable, "-P", str(_HOST)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log,
            env={name: value for name, value in os.environ.items() if _PASSED.match(name)} | {"GGML_NO_BACKTRACE": "1"},
            text=True,
            encoding="utf-8",
            process_group=0,  # Ctrl-C is for this process, which then cancels what it wants to
        )
        self._lines.put(json.dumps({**settings, "folder": self._folder}))
        for work in (self._write, self._read):
            threading.Thread(target=work, name="llm-do-local-model", daemon=True).start()

    @property
    def is_alive(self) -> bool:
        return self._failure is None

    @property
    def process_id(self) -> int:
        return self._process.pid

    def submit(self, request: dict[str, Any]) -> tuple[int, _Job]:
        number, job = next(self._numbers), _Job()
        with self._lock:
            self._jobs[number] = job
        self._lines.put(json.dumps({"id": number, "request": request}))
        if self._failure is not None:  # it ended in between, and may have told everybody before
            job.tell({"failed": self._failure})
        return number, job

    def cancel(self, number: int) -> None:
        with self._lock:
            is_open = self._jobs.pop(number, None) is not None
        if is_open:
            self._lines.put(json.dumps({"cancel": number}))
            self._cancelled.add(number)
            timer = threading.Timer(_SECONDS_TO_STOP, self._insist, [number])
            timer.daemon = True
            timer.start()

    def _insist(self, number: int) -> None:
        """Some schemas keep llama.cpp busy for ever. Who waits behind one gets an error, and the next a new process."""
        if number in self._cancelled:
            self._process.kill()

    def close(self) -> None:
        self._lines.put(None)
        try:
            self._process.wait(_SECONDS_TO_LEAVE)
        except subprocess.TimeoutExpired:
            self._process.kill()
        self._wait()

    def _wait(self) -> int:
        """Wait until the process has ended, and remove the folder that it may have left. Return its code."""
        code = self._process.wait()
        shutil.rmtree(self._folder, ignore_errors=True)
        return code

    def _write(self) -> None:
        assert self._process.stdin is not None
        with suppress(BrokenPipeError), self._process.stdin as stdin:
            while (line := self._lines.get()) is not None:
                stdin.write(line + "\n")
                stdin.flush()

    def _read(self) -> None:
        assert self._process.stdout is not None
        reason = ""
        # The last line of a killed process may be the half of one.
        with self._process.stdout as stdout, suppress(ValueError):
            for line in stdout:
                message = json.loads(line)
                if "failed" in message:
                    reason = message["failed"]
                else:
                    self._pass_on(message)
        self._lines.put(None)
        self._failure = self._explain(self._wait(), reason)
        with self._lock:
            jobs, self._jobs = list(self._jobs.values()), {}
        for job in jobs:
            job.tell({"failed": self._failure})

    def _pass_on(self, message: dict[str, Any]) -> None:
        number, is_last = message["id"], "done" in message
        with self._lock:
            job = self._jobs.pop(number, None) if is_last else self._jobs.get(number)
        if is_last:
            self._cancelled.discard(number)
        if job is not None and not job.tell(message) and not is_last:
            self.cancel(number)

    def _explain(self, code: int, reason: str) -> str:
        self._log.seek(0, os.SEEK_END)
        self._log.seek(max(0, self._log.tell() - 4000))
        log = self._log.read().decode(errors="replace").strip().splitlines()
        self._log.close()
        if reason:
            # "0.55.873.116 E gguf_init: ...": the first error is the cause, and the others follow from it.
            said = next((line.partition(" E ")[2] for line in log if " E " in line), reason)
            return f"{self._path} cannot be loaded: {said}"
        killed = " It was killed, as happens when memory runs out." if code in (-9, 137) else ""
        last = f" It said last: {log[-1].strip()}" if log else ""
        return f"The process of the local model ended (code {code}).{killed}{last}"


class Answer:
    """The pieces of an answer as they come, and last how it ended. Closing it frees the model for the next request."""

    def __init__(self, host: _Host, request: dict[str, Any]) -> None:
        self._host = host
        self._number, self._job = host.submit(request)
        self._is_done = self._is_closed = False

    def __aiter__(self) -> Answer:
        return self

    async def __anext__(self) -> Piece | End:
        if self._is_done and not self._is_closed:
            raise StopAsyncIteration
        message = await self._job.get() if not self._is_closed else _CLOSED
        if "failed" in message:
            self._is_done = True
            raise LocalModelError(message["failed"])
        if "done" in message:
            self._is_done = True
            return _end(message)
        return Piece(message.get("text", ""), message.get("thinking", ""), message.get("prompt", 0))

    def close(self) -> None:
        if not self._is_done:
            self._is_done = self._is_closed = True
            self._host.cancel(self._number)
            self._job.put(_CLOSED)


class Engine:
    """A model file, loaded when it is first used, and again when its process ended."""

    def __init__(self, path: Path, context: int) -> None:
        self._settings = {"path": str(path), "context": context, "threads": _threads()}
        self._lock = threading.Lock()
        self._host: _Host | None = None

    def answer(self, request: dict[str, Any]) -> Answer:
        """The answer to a request of chat completions, to be iterated in this event loop."""
        how = {"stream": True, "stream_options": {"include_usage": True}, "return_progress": True}
        return Answer(self._running(), {**request, **how})

    @property
    def process_id(self) -> int | None:
        """The process that has the model, once there is one."""
        return self._host.process_id if self._host is not None else None

    def close(self) -> None:
        """End the process. The next request starts another."""
        with self._lock:
            host, self._host = self._host, None
        if host is not None:
            host.close()

    def _running(self) -> _Host:
        with self._lock:
            if self._host is None or not self._host.is_alive:
                if find_spec("xllamacpp") is None:
                    raise LocalModelError(f"Local models need `{install_extra('local')}`.")
                self._host = _Host(self._settings)
            return self._host


def _end(message: dict[str, Any]) -> End:
    if (error := message.get("error")) is not None:
        raise LocalModelError(_words(error))
    usage = message.get("usage") or {}
    details = usage.get("prompt_tokens_details") or {}
    return End(
        message["done"],
        input_tokens=usage.get("prompt_tokens", 0),
        output_tokens=usage.get("completion_tokens", 0),
        cached_tokens=details.get("cached_tokens", 0),
    )


def _words(error: dict[str, Any]) -> str:
    if error.get("type") == "exceed_context_size_error":
        return (
            f"The conversation has {error.get('n_prompt_tokens')} tokens, and the local model was given room for "
            f"{error.get('n_ctx')}. Send less, or use LocalModel(..., context=...)."
        )
    return f"The local model refused the request: {error.get('message', error)}"


def _threads() -> int:
    """One core is left for others: with more threads than free cores, all of them wait for the slowest."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return max(1, cores - 1)


_engines: dict[tuple[int, Path, int], Engine] = {}
_engines_lock = threading.Lock()


def engine_of(path: Path, context: int) -> Engine:
    """The engine of a file: one for this process, whoever asks."""
    with _engines_lock:
        # A forked child has none of the threads of its parent, so it has engines of its own.
        key = os.getpid(), path, context
        if key not in _engines:
            _engines[key] = Engine(path, context)
        return _engines[key]


@atexit.register
def close_engines() -> None:
    """End all processes of local models that this process has started. Who needs one again gets a new one."""
    with _engines_lock:
        own = [engine for (pid, _, _), engine in _engines.items() if pid == os.getpid()]
    for engine in own:
        engine.close()
