"""The process in which a local model runs: llama.cpp, one request at a time, over its standard input and output.

A thread will not do: loading a model holds Python's interpreter lock for seconds, and a crash, for instance when memory
runs out, would end the caller. `engine.py` runs this as a script, which imports nothing of `llm_do`.
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
    """Load the model of the first line, then answer the requests of the other lines."""
    # Output of llama.cpp goes to standard error: standard output is for our lines.
    out = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    settings = json.loads(sys.stdin.readline())
    jobs: queue.SimpleQueue[dict[str, Any]] = queue.SimpleQueue()
    cancelled: set[int] = set()
    threading.Thread(target=_listen, args=(jobs, cancelled, settings["folder"]), daemon=True).start()
    try:
        server = _load(**settings)
    except Exception as exc:
        _send(out, failed=f"{exc}")
        return
    _send(out, loaded=True)
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
    os._exit(0)  # the caller has ended


def _load(folder: str, path: str, context: int, threads: int) -> Any:
    import xllamacpp  # noqa: PLC0415 - its failure to load is reported

    params = xllamacpp.CommonParams()
    params.model.path = path
    params.n_ctx = context
    # The other slots keep the last prompts: the next prompt often starts like one of them.
    params.n_parallel = 4
    params.kv_unified = True
    # A cancelled request ends after its current batch, so batches are small.
    params.n_batch = params.n_ubatch = 64
    params.cpuparams.n_threads = params.cpuparams_batch.n_threads = threads
    params.cache_ram_mib = 0
    params.fit_params = False
    params.ui = False
    params.n_threads_http = 1
    params.verbosity = 1  # errors
    params.api_keys = [os.urandom(32).hex()]
    # The server always listens, but nothing can connect once the folder is removed. The name is relative, since the
    # path of a socket may have no more than 107 bytes.
    os.chdir(folder)
    params.hostnames = ["unused.sock"]
    try:
        return xllamacpp.Server(params)
    finally:
        os.chdir("/")
        shutil.rmtree(folder, ignore_errors=True)


def _answer(server: Any, number: int, request: dict[str, Any], cancelled: set[int], out: TextIO) -> None:
    end: dict[str, Any] = {"done": None, "usage": {}, "error": None}
    is_prompt_reported = False

    def receive(chunk: dict[str, Any]) -> bool:
        """Pass on a chunk. `True` ends the generation."""
        nonlocal is_prompt_reported
        if number in cancelled:
            return True
        if "error" in chunk:
            end["error"] = chunk["error"]
            return True
        if not is_prompt_reported and (progress := chunk.get("prompt_progress")):
            is_prompt_reported = True
            _send(out, id=number, prompt=progress["total"])
        for choice in chunk.get("choices") or ():
            delta = choice.get("delta") or {}
            if text := delta.get("content"):
                _send(out, id=number, text=text)
            if thinking := delta.get("reasoning_content"):
                _send(out, id=number, thinking=thinking)
            end["done"] = choice.get("finish_reason") or end["done"]
        end["usage"] = chunk.get("usage") or end["usage"]
        return False

    if number not in cancelled:
        try:
            server.handle_chat_completions(request, receive)
        except Exception as exc:
            end["error"] = {"message": f"{exc}"}
    cancelled.discard(number)
    _send(out, id=number, **end)


def _send(out: TextIO, **message: Any) -> None:
    out.write(json.dumps(message) + "\n")
    out.flush()


if __name__ == "__main__":
    main()
