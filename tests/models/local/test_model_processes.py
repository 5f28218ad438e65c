"""Files of models, and the processes and folders that must not outlive their use."""

import asyncio
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from pydantic_ai import (
    Agent,
)
from pydantic_ai.messages import (
    ModelRequest,
    TextPart,
    UserPromptPart,
)
from pydantic_ai.models import ModelRequestParameters

from llm_do import (
    LocalModel,
    LocalModelError,
    WorkerEntry,
    WorkerRegistry,
)
from llm_do.models.local.engine import Engine

from ...processes import PATIENCE, start_interruptible
from ...sealing import seal
from .questions import QUESTION, answer_text


async def test_a_file_of_ones_own(file: Path, tmp_path: Path) -> None:
    own = tmp_path / "my model.gguf"
    own.symlink_to(file)
    result = await Agent(LocalModel(str(own), context=512)).run("Hello!", model_settings={"max_tokens": 4})
    assert result.output and result.response.model_name == str(own)


@pytest.mark.parametrize(
    ("content", "words"),
    [(None, "cannot be read: No such file"), (b"MZ\0\0", "no GGUF file"), (b"GGUF\x03\0\0\0rest", "cannot be loaded")],
)
async def test_a_file_that_is_no_model(content: bytes | None, words: str, tmp_path: Path) -> None:
    own = tmp_path / "model.gguf"
    if content is not None:
        own.write_bytes(content)
    with pytest.raises(LocalModelError, match=words) as caught:
        await Agent(LocalModel(str(own))).run("Hello!")
    assert str(own) in str(caught.value)


def test_an_unknown_name_is_an_error_at_once() -> None:
    with pytest.raises(LocalModelError, match=r"smollm2-135m"):
        LocalModel("smollm")


@pytest.mark.parametrize("context", [0, 1, -5])
def test_there_must_be_room_for_a_conversation(context: int) -> None:
    with pytest.raises(LocalModelError, match="context=64 or more"):
        LocalModel("smollm2-135m", context=context)


@pytest.mark.parametrize("name", ["~nobody-at-all/x.gguf", "a\0b.gguf", "/dev/zero", "/", "x.GGUF"])
async def test_a_path_that_is_none(name: str) -> None:
    with pytest.raises(LocalModelError, match="cannot be read"):
        await Agent(LocalModel(name)).run("Hello!")


def put_temporary_files(monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
    """Let this process, and those that it starts, put their temporary files in a folder."""
    monkeypatch.setenv("TMPDIR", str(folder))
    monkeypatch.setattr(tempfile, "tempdir", str(folder))


async def test_a_long_folder_for_temporary_files(file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    long = tmp_path / ("x" * 120)
    long.mkdir()
    put_temporary_files(monkeypatch, long)
    engine = Engine(file, 512)
    assert await answer_text(engine, QUESTION)
    engine.close()
    assert list(long.iterdir()) == []


@pytest.mark.parametrize("number", [signal.SIGSTOP, signal.SIGKILL])
async def test_a_process_that_cannot_clean_up_leaves_nothing(
    file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    """While it loads there is a folder for its socket. The process hangs there, or runs out of memory."""
    put_temporary_files(monkeypatch, tmp_path)
    engine = Engine(file, 512)
    answer = engine.answer(QUESTION)
    while not list(tmp_path.iterdir()):
        await asyncio.sleep(0.001)
    assert engine.process_id is not None
    os.kill(engine.process_id, number)
    if number == signal.SIGKILL:
        with pytest.raises(LocalModelError, match="was killed"):
            await anext(answer)
    engine.close()
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("seconds", [0.05, 0.3, 0.6])
async def test_who_leaves_while_it_loads_leaves_nothing(
    file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seconds: float
) -> None:
    put_temporary_files(monkeypatch, tmp_path)
    engine = Engine(file, 512)
    answer = engine.answer(QUESTION)
    await asyncio.sleep(seconds)
    answer.close()
    engine.close()
    assert list(tmp_path.iterdir()) == []


async def test_the_process_is_told_no_secrets(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ANTHROPIC_API_KEY", "hush")
    engine = Engine(file, 512)
    await answer_text(engine, QUESTION)
    environment = Path(f"/proc/{engine.process_id}/environ").read_bytes()
    engine.close()
    assert b"hush" not in environment and b"PATH=" in environment


@pytest.fixture
def environ(smollm2: Path) -> dict[str, str]:
    return {**os.environ, "LLM_DO_CACHE": str(smollm2)}


def children_of(pid: int) -> list[int]:
    return [int(word) for word in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


@pytest.fixture
def program(environ: dict[str, str], tmp_path: Path) -> Iterator[subprocess.Popen[str]]:
    """A program in the middle of a long answer."""
    (tmp_path / "program.py").write_text(
        "from pydantic_ai import Agent\n"
        "from llm_do import LocalModel\n"
        "import asyncio\n"
        "async def main():\n"
        "    settings = {'max_tokens': 4000, 'extra_body': {'ignore_eos': True}}\n"
        "    async with Agent(LocalModel('smollm2-135m')).run_stream('A story.', model_settings=settings) as stream:\n"
        "        async for _ in stream.stream_text(delta=True):\n"
        "            print('started', flush=True)\n"
        "asyncio.run(main())\n"
    )
    command = [sys.executable, "program.py"]
    process = start_interruptible(command, cwd=tmp_path, env=environ, stdout=-1, stderr=-1)
    yield process
    process.kill()
    process.communicate()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_no_process_is_left_behind(program: subprocess.Popen[str], number: int) -> None:
    assert program.stdout is not None and program.stdout.readline() == "started\n"
    (host,) = children_of(program.pid)
    program.send_signal(number)
    program.wait()
    while is_running(host):
        time.sleep(0.02)


def is_running(pid: int) -> bool:
    try:  # nobody waits for orphans in some containers
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def test_an_event_loop_that_was_closed_frees_the_engine(environ: dict[str, str]) -> None:
    """And the interpreter can still throw away what waited there."""
    code = (
        "import asyncio\n"
        "from pydantic_ai import Agent\n"
        "from llm_do import LocalModel\n"
        "agent = Agent(LocalModel('smollm2-135m'))\n"
        "async def start():\n"
        "    settings = {'max_tokens': 5000, 'extra_body': {'ignore_eos': True}}\n"
        "    task = asyncio.create_task(agent.run('A story.', model_settings=settings))\n"
        "    await asyncio.sleep(1.5)\n"
        "    return task\n"
        "loop = asyncio.new_event_loop()\n"
        "task = loop.run_until_complete(start())\n"
        "loop.close()\n"
        "print(bool(agent.run_sync('Hello!', model_settings={'max_tokens': 3}).output))\n"
    )
    # 5000 tokens would take more than a minute.
    done = subprocess.run([sys.executable, "-c", code], env=environ, capture_output=True, text=True, timeout=PATIENCE)
    assert (done.returncode, done.stdout) == (0, "True\n")


def test_it_costs_nothing_who_does_not_use_it() -> None:
    code = (
        "import sys, llm_do\nllm_do.Runtime\nfrom llm_do.models.choice import choose_default_model\n"
        "print([name for name in sys.modules if name.startswith('llm_do.models.local.') or name == 'xllamacpp'])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


def test_the_demo_does_its_work(environ: dict[str, str], tmp_path: Path) -> None:
    root = Path(__file__).parents[3] / "examples" / "invoices"
    project = shutil.copytree(root, tmp_path / "invoices", ignore=shutil.ignore_patterns("report.md", "__pycache__"))
    for file in ("pixel-and-sons", "north-star", "cafe-morgana"):  # fewer will do
        (project / "inbox" / f"{file}.txt").unlink()
    environ.pop("LLM_DO_MODEL", None)
    command = [sys.executable, project / "demo.py"]
    done = subprocess.run(command, env=environ, capture_output=True, text=True, check=False, stdin=subprocess.DEVNULL)
    assert done.returncode == 0, done.stderr
    assert "without asking (--approve-all)" in done.stdout
    assert done.stderr.count("read_invoice") == 4 and "smollm2-135m: 4 requests" in done.stderr
    report = (project / "report.md").read_text()
    assert "**Total**" in report and "lunch.txt" in report and "the items add up to 232.00" in report


async def test_a_model_can_be_asked_directly(model: LocalModel) -> None:
    """Without an agent, as PydanticAI's own `direct` does it."""
    asked = [ModelRequest(parts=[UserPromptPart("Say hello.")], instructions="You are kind.")]
    response = await model.request(asked, {"max_tokens": 8}, ModelRequestParameters())
    assert isinstance(response.parts[0], TextPart) and response.usage.output_tokens <= 8
    assert json.dumps(model.model_id) == '"local:smollm2-135m"'


@pytest.mark.parametrize("model", ["local:/tmp/evil.gguf", "' local:/tmp/evil.gguf'", "'local:evil.gguf '"])
def test_a_generated_worker_cannot_name_a_file_as_its_model(tmp_path: Path, model: str) -> None:
    """llama.cpp would read whatever a model has put there. Spaces around a name mean nothing."""
    (tmp_path / "workers" / "generated").mkdir(parents=True)
    (tmp_path / "workers" / "maker.md").write_text("---\ntoolsets: [worker_create]\nmodel: test\n---\nMake workers.\n")
    made = tmp_path / "workers" / "generated" / "made.yaml"
    made.write_text(f"instructions: Hello.\ncreated_by: maker\nmodel: {model}\n")
    seal(made)
    entry = WorkerRegistry(tmp_path)["made"]
    assert isinstance(entry, WorkerEntry) and entry.model == "test"
