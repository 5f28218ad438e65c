"""The process in which a local model runs: llama.cpp, one request at a time, over its standard input and output.

It is a process of its own, and not a thread, because loading a model holds Python's interpreter lock for seconds, and
because what goes wrong in there, for instance when memory runs out, must not take the caller with it. It is run as a
script and imports nothing of `llm_do`. `engine.py` is the other end, and says what the lines mean.
"""

from __future__ import annotations

import json
import os
import queue
import shutil
import sys
import threading
from typing import Any, TextIO


def main() -> None:
    """Load the model that the first line names, then answer one line after the other."""
    # Whatever llama.cpp prints goes to standard error: lines on standard output have a meaning.
    out = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    settings = json.loads(sys.stdin.readline())
    jobs: queue.SimpleQueue[dict[str, Any]] = queue.SimpleQueue()
    cancelled: set[int] = set()
    threading.Thread(target=_listen, args=(jobs, cancelled, settings["folder"]), daemon=True).start()
    try:
        server = _load(**settings)
    except Exception as exc:
        _say(out, failed=f"{exc}")
        return
    _say(out, loaded=True)
    while True:
        job = jobs.get()
        _answer(server, job["id"], job["request"], cancelled, out)


def _listen(jobs: queue.SimpleQueue[dict[str, Any]], cancelled: set[int], folder: str) -> None:
    for line in sys.stdin:
        message = json.loads(line)
        if "cancel" in message:
            cancelled.add(message["cancel"])
        else:
            jobs.put(message)
    shutil.rmtree(folder, ignore_errors=True)
    os._exit(0)  # nobody is there any more


def _load(folder: str, path: str, context: int, threads: int) -> Any:
    import xllamacpp  # noqa: PLC0415 - its failure to load is reported

    params = xllamacpp.CommonParams()
    params.model.path = path
    params.n_ctx = context
    # One request at a time, and the last few prompts are kept: the next one mostly starts like one of them.
    params.n_parallel = 4
    params.kv_unified = True
    # A cancelled request ends after the batch that it is at: not too big, then.
    params.n_batch = params.n_ubatch = 64
    params.cpuparams.n_threads = params.cpuparams_batch.n_threads = threads
    params.cache_ram_mib = 0
    params.fit_params = False
    params.ui = False
    params.n_threads_http = 1
    params.verbosity = 1  # errors
    params.api_keys = [os.urandom(32).hex()]
    if sys.platform != "win32":
        # It cannot be told not to listen. Once the folder is gone, nobody finds the socket. The name is relative, since
        # the path of a socket may have 107 bytes and no more.
        os.chdir(folder)
        params.hostnames = ["unused.sock"]
    try:
        return xllamacpp.Server(params)
    finally:
        os.chdir("/")
        shutil.rmtree(folder, ignore_errors=True)


def _answer(server: Any, number: int, request: dict[str, Any], cancelled: set[int], out: TextIO) -> None:
    usage: dict[str, int] = {}
    finish: str | None = None
    error: dict[str, Any] | None = None
    is_prompt_reported = False

    def receive(chunk: dict[str, Any]) -> bool:
        """Pass on a piece. True ends the generation."""
        nonlocal finish, error, usage, is_prompt_reported
        if number in cancelled:
            return True
        if "error" in chunk:
            error = chunk["error"]
            return True
        if not is_prompt_reported and (progress := chunk.get("prompt_progress")):
            is_prompt_reported = True
            _say(out, id=number, prompt=progress["total"])
        for choice in chunk.get("choices") or ():
            delta = choice.get("delta") or {}
            if text := delta.get("content"):
                _say(out, id=number, text=text)
            if thinking := delta.get("reasoning_content"):
                _say(out, id=number, thinking=thinking)
            finish = choice.get("finish_reason") or finish
        usage = chunk.get("usage") or usage
        return False

    if number not in cancelled:
        try:
            server.handle_chat_completions(request, receive)
        except Exception as exc:
            error = {"message": f"{exc}"}
    cancelled.discard(number)
    _say(out, id=number, done=finish, usage=usage, error=error)


def _say(out: TextIO, **message: Any) -> None:
    out.write(json.dumps(message) + "\n")
    out.flush()


if __name__ == "__main__":
    main()
