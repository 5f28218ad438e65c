"""The embedded model through llm-do beside xllamacpp called directly: `python bench/local.py`. Wall time, interleaved.

The same weights, threads and settings, and the same prompts, each of them new. Both engines stay loaded, and the one
that is not asked does nothing. The direct calls are what xllamacpp's own users write: in this process, with a callback.
"""

import asyncio
import subprocess
import sys
from pathlib import Path
from statistics import median
from time import perf_counter

import xllamacpp
from pydantic_ai.messages import ModelMessage, ModelRequest
from pydantic_ai.models import ModelRequestParameters
from timing import row

from llm_do import LocalModel
from llm_do.models.local.catalogue import EMBEDDED, lookup
from llm_do.models.local.engine import _thread_count
from llm_do.models.local.files import pull_with_progress
from llm_do.models.local.model import _REPLY_SETTINGS, CONTEXT

ROUNDS, TOKENS = 12, 64
SETTINGS = {"max_tokens": TOKENS, "temperature": 0.0, "ignore_eos": True, **_REPLY_SETTINGS}


def direct_server(path: Path) -> xllamacpp.Server:
    params = xllamacpp.CommonParams()
    params.model.path = str(path)
    params.n_ctx, params.n_parallel, params.verbosity = CONTEXT, 1, -1
    params.cpuparams.n_threads = params.cpuparams_batch.n_threads = _thread_count()
    return xllamacpp.Server(params)


def ask_directly(server: xllamacpp.Server, question: str) -> tuple[float, float]:
    """Seconds to the first token, and to all of them."""
    first = 0.0
    start = perf_counter()

    def receive(chunk: dict) -> None:
        nonlocal first
        if not first and chunk["choices"] and chunk["choices"][0]["delta"].get("content"):
            first = perf_counter() - start

    request = {"messages": [{"role": "user", "content": question}], "stream": True, **SETTINGS}
    server.handle_chat_completions(request, receive)
    return first, perf_counter() - start


async def ask_model(model: LocalModel, question: str) -> tuple[float, float]:
    first = 0.0
    start = perf_counter()
    messages: list[ModelMessage] = [ModelRequest.user_text_prompt(question)]
    body = {"max_tokens": TOKENS, "extra_body": {"ignore_eos": True}}
    async with model.request_stream(messages, body, ModelRequestParameters()) as stream:
        async for _ in stream:
            first = first or perf_counter() - start
    return first, perf_counter() - start


def import_seconds(statement: str) -> float:
    code = f"import time, llm_do; s = time.perf_counter(); {statement}; print(time.perf_counter() - s)"
    return min(float(subprocess.check_output([sys.executable, "-c", code])) for _ in range(5))


async def main() -> None:
    path = pull_with_progress(lookup(EMBEDDED))
    model = LocalModel(EMBEDDED)
    start = perf_counter()
    server = direct_server(path)
    loaded = perf_counter() - start
    start = perf_counter()
    await ask_model(model, "Hello!")
    print(
        f"load: xllamacpp {loaded:.2f} s; llm-do {perf_counter() - start:.2f} s with {TOKENS} tokens, once a process\n"
    )
    ask_directly(server, "Hello!")
    direct, ours = [], []
    for number in range(ROUNDS):
        question = f"{number}. Tell me a story about {number + 3} ships, the sea, a storm, and what the sailors found."
        if number % 2:
            ours.append(await ask_model(model, question))
        direct.append(ask_directly(server, question))
        if not number % 2:
            ours.append(await ask_model(model, question))
    first = [median(sample[0] for sample in samples) for samples in (direct, ours)]
    speed = [TOKENS / median(sample[1] for sample in samples) for samples in (direct, ours)]
    print(f"{'':<42} {'xllamacpp':>10} {'llm-do':>10}      ratio")
    row("first token", first[0] * 1e3, first[1] * 1e3, 1 / 0.95, unit="ms")
    ratio = speed[1] / speed[0]
    verdict = "ok" if ratio >= 0.95 else "under"
    print(f"{'tokens per second':<42} {speed[0]:>10.1f} {speed[1]:>10.1f}     {ratio:>6.3f}  >= 0.95  {verdict}")
    without, used = import_seconds("llm_do.Runtime"), import_seconds("llm_do.Runtime; llm_do.LocalModel")
    print(
        f"\nimport: Runtime {without * 1e3:.0f} ms, with LocalModel {used * 1e3:.0f} ms; it is imported when it is used"
    )


if __name__ == "__main__":
    asyncio.run(main())
