"""MCP servers that die, or stop answering: they are stopped, reported and restarted."""

from __future__ import annotations

import asyncio
import os
import signal
from pathlib import Path
from typing import Any

import anyio
import pytest
from pydantic_ai.messages import ModelMessage, ModelResponse
from pydantic_ai.models.function import AgentInfo, FunctionModel

from llm_do import CallTimeout, Limits, Runtime, ToolsetError

from ..processes import PATIENCE
from ..scripted import calls, says
from .mcp_worker import ALLOWED, REQUEST, Heard, ends, is_alive, process_of, results, server, worker

pytestmark = pytest.mark.usefixtures("state")


async def test_a_server_that_dies_in_a_call_is_reported_and_restarted_at_the_next_turn() -> None:
    heard = Heard()
    instructed: list[str] = []
    count, die = calls(("increment", {})), calls(("die", {}))
    steps = [count, die, count, says("gone"), count, says("back")]

    def script(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
        instructed.append(info.instructions or "")
        return steps[len(instructed) - 1]

    made = worker(model=FunctionModel(script))
    runtime = Runtime([made], tool_rules=ALLOWED, sinks=[heard])
    async with made.start(runtime) as scope:
        await scope.run_turn("go")
        first, died, again = results(scope)
        assert "has ended" in died and "Do not call its tools again in this turn" in died
        assert again == died
        await scope.run_turn("go on")
        last = results(scope)[-1]
        assert process_of(last) != process_of(first) and last.endswith(":1")
        assert "Its state from earlier calls is lost" in instructed[-1]
        assert "remembered" not in instructed[0]
    assert len(heard.notices) == 1
    assert heard.notices[0].startswith("MCP server 'small' of worker 'w' has ended by itself, and is started again")
    assert "giving up\\x1b[2J" in heard.notices[0]
    assert [record.name for record in runtime.trace if record.kind == "server"] == ["small"]
    assert not is_alive(process_of(first)) and not is_alive(process_of(last))


async def test_a_server_that_is_killed_between_turns_is_restarted_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """A notice reports each slow start."""
    monkeypatch.setattr("llm_do.toolsets.mcp.toolset.STILL_STARTING_SECONDS", 0.0)
    heard = Heard()
    one = [calls(("increment", {})), says("end")]
    made = worker(*one, *one, *one)
    runtime = Runtime([made], tool_rules=ALLOWED, sinks=[heard])
    seen: list[int] = []
    async with made.start(runtime) as scope:
        for _ in range(2):
            await scope.run_turn("go")
            seen.append(process_of(results(scope)[-1]))
            os.kill(seen[-1], signal.SIGKILL)
            await ends(seen[-1])
            await anyio.sleep(0.05)  # for the loop to read the end of its output
        assert results(scope)[-1].endswith(":1") and seen[0] != seen[1]
        for _ in range(2):  # and stays an error
            with pytest.raises(ToolsetError, match="Worker 'w': MCP server 'small' ended twice, and is not started"):
                await scope.run_turn("go")
    assert ["is started again" in text for text in heard.notices if "has ended" in text] == [True, False]
    (starting,) = [text for text in heard.notices if "still starting" in text]  # the first time, there was no turn yet
    assert starting.startswith("MCP server 'small' of worker 'w' is still starting again. It has 30 seconds")
    assert [record.kind for record in runtime.trace if record.kind == "server"] == ["server", "server"]


@pytest.mark.parametrize("arguments", [{}, {"group": 0}], ids=["its group", "a group of its own"])
async def test_processes_of_a_server_end_with_it(arguments: dict[str, Any]) -> None:
    """Also when the server ends by itself, and the other process holds its output open."""
    start = ("start_another", arguments)
    made = worker(calls(start), calls(("die", {})), says("end"), calls(start), says("2"))
    async with made.start(Runtime([made], tool_rules=ALLOWED)) as scope:
        await scope.run_turn("go")
        assert "has ended" in results(scope)[1]
        await ends(int(results(scope)[0]))
        await scope.run_turn("go on")
        second = results(scope)[-1]
        assert is_alive(int(second))
    await ends(int(second))


@pytest.mark.parametrize(
    ("tool", "why"),
    [
        ("say_without_end", "it sent a message of more than 100000 bytes"),
        ("sample_at_once", "it made more than 100 requests at once"),
    ],
)
async def test_a_server_that_sends_without_end_is_stopped(tool: str, why: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("llm_do.toolsets.mcp.process.LARGEST_MESSAGE", 100_000)
    heard = Heard()
    made = worker(calls((tool, REQUEST)), says("end"), toolsets=[server(sampling=True)])
    await Runtime([made], tool_rules={**ALLOWED, "mcp.sampling": "ask"}, sinks=[heard]).call("w", "go")
    [notice] = heard.notices
    assert notice.startswith(f"MCP server 'small' of worker 'w' was stopped, because {why}")


async def test_a_server_that_ends_after_it_changed_its_tools_ends_no_turn() -> None:
    """The runtime lists its tools again then, and it no longer answers."""
    heard = Heard()
    count = calls(("increment", {}))
    made = worker(calls(("change_and_die", {})), count, says("end"), count, says("2"))
    async with made.start(Runtime([made], tool_rules=ALLOWED, sinks=[heard])) as scope:
        await scope.run_turn("go")
        assert ["has ended" in result for result in results(scope)] == [True, True]
        await scope.run_turn("go on")
        assert results(scope)[-1].endswith(":1")
    assert len(heard.notices) == 1


@pytest.mark.parametrize("others", [[], [("increment", {})]])
async def test_a_server_that_closes_its_input_is_reported_and_restarted(
    others: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its process may run on, but the last message gets no answer."""
    monkeypatch.setattr("llm_do.toolsets.mcp.process._LAST_WORDS_SECONDS", 0.01)
    monkeypatch.setattr("llm_do.toolsets.mcp.process._GRACE_SECONDS", 0.01)
    heard = Heard()
    count = calls(("increment", {}))
    made = worker(calls(("close_input", {}), *others), says("end"), count, says("2"))
    async with made.start(Runtime([made], tool_rules=ALLOWED, sinks=[heard])) as scope:
        with anyio.fail_after(PATIENCE):
            await scope.run_turn("go")
        assert ["has ended" in result for result in results(scope)] == [True] * (1 + len(others))
        await scope.run_turn("go on")
        assert results(scope)[-1].endswith(":1")
    [notice] = heard.notices
    assert notice.startswith("MCP server 'small' of worker 'w' has closed its input, and is started again")


async def test_a_restart_that_is_cancelled_is_tried_again(tmp_path: Path) -> None:
    (tmp_path / "go").touch()
    one = [calls(("increment", {})), says("end")]
    made = worker(*one, *one, toolsets=[server("waits", str(tmp_path))])
    async with made.start(Runtime([made], tool_rules=ALLOWED)) as scope:
        await scope.run_turn("go")
        first = process_of(results(scope)[-1])
        (tmp_path / "go").unlink()
        os.kill(first, signal.SIGKILL)
        await ends(first)
        await anyio.sleep(0.05)  # for the loop to read the end of its output
        turn = asyncio.create_task(scope.run_turn("go on"))
        with anyio.fail_after(PATIENCE):
            while len(here := list(tmp_path.glob("here-*"))) < 2:
                await anyio.sleep(0.01)
        turn.cancel()
        with pytest.raises(asyncio.CancelledError):
            await turn
        (tmp_path / "go").touch()
        await scope.run_turn("go on")
        assert results(scope)[-1].endswith(":1")
    for found in here:
        assert not is_alive(int(found.name.removeprefix("here-")))


async def test_a_call_that_is_cancelled_does_not_wait_for_a_server_that_reads_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The message that cancels the call would wait for it."""
    monkeypatch.setattr("mcp.shared.jsonrpc_dispatcher._ABANDON_WRITE_TIMEOUT", 600)
    monkeypatch.setattr("llm_do.toolsets.mcp.client.LEAVING_SECONDS", 0.01)
    monkeypatch.setattr("llm_do.toolsets.mcp.process._GRACE_SECONDS", 0.01)
    monkeypatch.setattr("llm_do.toolsets.mcp.process._FLUSH_SECONDS", 0.01)
    heard = Heard()
    made = worker(calls(("read_nothing", {}), ("increment", {"much": "x" * 200_000})))
    runtime = Runtime([made], tool_rules=ALLOWED, sinks=[heard])
    async with made.start(runtime) as scope:
        turn = asyncio.create_task(scope.run_turn("go"))
        with anyio.fail_after(PATIENCE):
            while len(runtime.trace) < 3:
                await anyio.sleep(0.01)
            await anyio.sleep(0.05)  # for the second call to fill the pipe
            turn.cancel()
            with pytest.raises(asyncio.CancelledError):
                await turn


@pytest.mark.parametrize("by", ["start_timeout", "limits"])
async def test_a_server_that_never_lists_its_tools_is_stopped(by: str, tmp_path: Path) -> None:
    """No server is left when a timeout ends the wait for its list."""
    time = {"start_timeout": 0.3} if by == "start_timeout" else {}
    made = worker(says("end"), toolsets=[server("lists_nothing", str(tmp_path), **time)])
    runtime = Runtime([made], limits=Limits(timeout=0.3) if by == "limits" else None)
    with pytest.raises(ToolsetError if by == "start_timeout" else CallTimeout):
        await runtime.call("w", "go")
    for found in tmp_path.glob("here-*"):
        await ends(int(found.name.removeprefix("here-")))
    if by == "start_timeout":
        assert list(tmp_path.glob("here-*"))
