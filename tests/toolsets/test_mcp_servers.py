"""MCP servers as processes: how they start and log, and what they get from the runtime."""

from __future__ import annotations

import asyncio
import os
import re
import stat
import sys
from pathlib import Path
from typing import Any

import anyio
import pytest

from llm_do import (
    CallProgress,
    Notice,
    Runtime,
    SandboxConfig,
    ToolsetError,
)
from llm_do.definitions.toolsets import McpToolset
from llm_do.machine.installation import install_extra
from llm_do.privacy.secret_fields import HIDDEN
from llm_do.toolsets.mcp.toolset import McpFactory

from ..processes import PATIENCE
from ..scripted import calls, says
from .mcp_worker import ALLOWED, Heard, is_alive, results, server, worker

pytestmark = pytest.mark.usefixtures("state")


# -- starting ------------------------------------------------------------------------------------------------------


async def test_servers_of_a_worker_start_side_by_side(tmp_path: Path) -> None:
    """Each starts only when both processes are there."""
    toolsets = [server("waits", str(tmp_path), name=name, prefix=name) for name in ("a", "b")]
    made = worker(says("end"), toolsets=toolsets)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(Runtime([made]).call, "w", "go")
        with anyio.fail_after(PATIENCE):
            while len(list(tmp_path.glob("here-*"))) < 2:
                await anyio.sleep(0.01)
        (tmp_path / "go").touch()


async def test_when_one_server_fails_the_others_are_stopped_and_its_error_is_raised(tmp_path: Path) -> None:
    waiting = server("waits", str(tmp_path), name="a", prefix="a")
    made = worker(says("end"), toolsets=[waiting, server("fails", name="b", prefix="b")])
    with pytest.raises(ToolsetError, match="Worker 'w': MCP server 'b' cannot be reached"):
        await Runtime([made]).call("w", "go")
    for found in tmp_path.glob("here-*"):
        assert not is_alive(int(found.name.removeprefix("here-")))


async def test_a_call_that_is_cancelled_while_a_server_starts_leaves_no_process(tmp_path: Path) -> None:
    made = worker(says("end"), toolsets=[server("waits", str(tmp_path))])
    task = asyncio.create_task(Runtime([made]).call("w", "go"))
    with anyio.fail_after(PATIENCE):
        while not list(tmp_path.glob("here-*")):
            await anyio.sleep(0.01)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    [found] = tmp_path.glob("here-*")
    assert not is_alive(int(found.name.removeprefix("here-")))


async def test_a_notice_says_that_a_slow_server_is_still_starting(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("llm_do.toolsets.mcp.toolset.STILL_STARTING_SECONDS", 0.01)

    class Release(Heard):
        def on_event(self, event: Any) -> None:
            super().on_event(event)
            if isinstance(event, Notice):
                (tmp_path / "go").touch()

    heard = Release()
    made = worker(says("end"), toolsets=[server("waits", str(tmp_path))])
    await Runtime([made], sinks=[heard]).call("w", "go")
    assert heard.notices == ["MCP server 'small' of worker 'w' is still starting. It has 30 seconds (`start_timeout`)."]


async def test_a_notice_says_so_of_a_server_that_starts_before_a_turn(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """No sink knows of a call then, so it goes to the log."""
    monkeypatch.setattr("llm_do.toolsets.mcp.toolset.STILL_STARTING_SECONDS", 0.01)
    made = worker(says("end"), toolsets=[server("waits", str(tmp_path), start_timeout=0.2)])
    with pytest.raises(ToolsetError):
        async with made.start(Runtime([made], sinks=[Heard()])):
            pass
    assert "MCP server 'small' of worker 'w' is still starting" in caplog.text


async def test_the_time_to_start_is_a_field(tmp_path: Path) -> None:
    made = worker(says("end"), toolsets=[server("waits", str(tmp_path), start_timeout=0.2)])
    with pytest.raises(ToolsetError, match="MCP server 'small' cannot be reached: it took more than 0.2 s"):
        await Runtime([made]).call("w", "go")


async def test_the_error_of_a_server_that_dies_at_its_start_says_all_that_helps(state: Path) -> None:
    """Worker, server, command, and the end of its standard error, without the values of `env`."""
    made = worker(says("end"), toolsets=[server("fails", env={"KEY": "hunter2-secret"})])
    with pytest.raises(ToolsetError) as caught:
        await Runtime([made]).call("w", "go")
    [log] = state.glob("*.log")
    told = str(caught.value)
    assert told.startswith("Worker 'w': MCP server 'small' cannot be reached: Connection closed. Its command is ")
    assert "stdio_mcp.py fails'" in told
    assert told.endswith(f"Its standard error ends: no key: {HIDDEN} (all of it: {log})")
    assert "hunter2" not in told + log.read_text()


async def test_without_the_mcp_package_the_error_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "llm_do.toolsets.mcp.client", raising=False)
    monkeypatch.delattr("llm_do.toolsets.mcp.client", raising=False)
    monkeypatch.setitem(sys.modules, "fastmcp.client.progress", None)
    with pytest.raises(ToolsetError) as caught:
        await Runtime([worker(says("end"))]).call("w", "go")
    assert "MCP server 'small' of worker 'w' cannot be used: fastmcp.client.progress is missing" in str(caught.value)
    assert str(caught.value).endswith(install_extra("mcp"))


@pytest.mark.parametrize(("value", "expected"), [("abcd", f"no key: {HIDDEN}"), ("abc", "no key: abc")])
async def test_values_that_are_too_short_to_be_secrets_stay(value: str, expected: str) -> None:
    """The bound is the one of all secrets: shorter ones would be found in half of all words."""
    with pytest.raises(ToolsetError, match=re.escape(f"Its standard error ends: {expected} (")):
        await Runtime([worker(says("end"), toolsets=[server("fails", env={"KEY": value})])]).call("w", "go")


# -- standard error ------------------------------------------------------------------------------------------------


async def test_standard_error_goes_to_a_private_log_and_to_no_terminal(
    state: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    await Runtime([worker(calls(("die", {})), says("end"))], tool_rules=ALLOWED).call("w", "go")
    [log] = state.glob("*.log")
    assert log.read_text() == "ready\ngiving up\\x1b[2J\n"
    assert stat.S_IMODE(log.stat().st_mode) == 0o600
    assert stat.S_IMODE(log.parent.stat().st_mode) == 0o700
    printed = capfd.readouterr()
    assert "ready" not in printed.out + printed.err


async def test_a_log_is_bounded(state: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("llm_do.toolsets.mcp.log.LARGEST_LOG", 100)
    code = "import sys\nfor n in range(1000): print('x' * 50, n, file=sys.stderr)"
    declared = McpToolset.model_validate({"mcp": {"command": [sys.executable, "-S", "-c", code]}, "name": "loud"})
    with pytest.raises(ToolsetError, match="x 999"):
        await Runtime([worker(says("end"), toolsets=[McpFactory(declared, Path())])]).call("w", "go")
    [log] = state.glob("*.log")
    assert log.stat().st_size < 20_000  # one part that is read, and the bound


@pytest.mark.parametrize("end", ["", "\n"])
async def test_a_flood_of_standard_error_holds_nothing_up(state: Path, end: str) -> None:
    """Neither as lines, nor as a line without an end."""
    flood, count = calls(("complain_without_end", {"end": end})), calls(("increment", {}))
    made = worker(flood, *[count] * 20, says("end"))
    async with made.start(Runtime([made], tool_rules=ALLOWED)) as scope:
        await scope.run_turn("go")
        assert results(scope)[-1].endswith(":20")
    [log] = state.glob("*.log")
    assert log.stat().st_size < 1_100_000


async def test_no_half_of_a_secret_is_left_of_a_line_that_is_too_long(state: Path) -> None:
    code = "import os, sys\nos.write(2, b'x' * (65536 - 7) + os.environ['KEY'].encode() + b'\\nend\\n')"
    declared = {"mcp": {"command": [sys.executable, "-S", "-c", code], "env": {"KEY": "hunter2-secret" * 3000}}}
    made = McpFactory(McpToolset.model_validate({**declared, "name": "loud"}), Path())
    with pytest.raises(ToolsetError):
        await Runtime([worker(says("end"), toolsets=[made])]).call("w", "go")
    [log] = state.glob("*.log")
    assert log.read_text().endswith("x\nend\n")
    assert "secret" not in log.read_text()


# -- what a server gets --------------------------------------------------------------------------------------------


async def test_a_server_gets_the_variables_of_env_and_what_a_program_needs_and_no_descriptors(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "sk-secret")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "x")
    inherited = os.open("/dev/null", os.O_RDONLY)
    os.set_inheritable(inherited, True)
    try:
        made = worker(calls(("environment", {})), says("end"), toolsets=[server(env={"MINE": "1"})])
        async with made.start(Runtime([made], tool_rules=ALLOWED)) as scope:
            await scope.run_turn("go")
            found = results(scope)[0]
    finally:
        os.close(inherited)
    assert "MINE" in found["variables"]
    assert set(found["variables"]) <= {"MINE", "HOME", "LOGNAME", "PATH", "SHELL", "TERM", "USER", "LC_CTYPE"}
    assert found["descriptors"] == [0, 1, 2]


@pytest.mark.parametrize(("named", "told"), [(["input"], ["input"]), ([], None)])
async def test_a_server_gets_the_roots_that_the_file_names(
    named: list[str], told: list[str] | None, tmp_path: Path
) -> None:
    for name in ("input", "other"):
        (tmp_path / name).mkdir()
    paths = {name: {"root": str(tmp_path / name), "mode": "ro"} for name in ("input", "other")}
    sandbox = SandboxConfig.model_validate({"paths": paths})
    made = worker(calls(("roots", {})), says("end"), toolsets=[server(roots=named)], sandbox=sandbox)
    async with made.start(Runtime([made], tool_rules=ALLOWED)) as scope:
        await scope.run_turn("go")
        answer = results(scope)[0]
    if told is None:
        assert answer["message"] == "List roots not supported"
    else:
        assert [root["uri"] for root in answer["roots"]] == [(tmp_path / name).as_uri() for name in told]


async def test_a_root_that_the_worker_does_not_have_is_an_error() -> None:
    with pytest.raises(ToolsetError, match="Worker 'w' has no roots that an MCP server could be told"):
        await Runtime([worker(says("end"), toolsets=[server(roots=["input"])])]).call("w", "go")


@pytest.mark.parametrize("wanted", [True, False])
async def test_progress_reaches_the_sinks_where_the_file_says_so(wanted: bool) -> None:
    heard = Heard()
    made = worker(calls(("work", {})), says("end"), toolsets=[server(progress=wanted)])
    runtime = Runtime([made], tool_rules=ALLOWED, sinks=[heard])
    await runtime.call("w", "go")
    found = [event for event in heard if isinstance(event, CallProgress)]
    assert [(event.name, event.progress, event.total, event.message) for event in found] == (
        [("work", 2.0, 5.0, "two\x1b of five")] if wanted else []
    )


async def test_a_flood_of_progress_is_reported_at_intervals() -> None:
    heard = Heard()
    flood = calls(("progress_flood", {"count": 1000}))
    made = worker(flood, says("end"), toolsets=[server(progress=True)])
    await Runtime([made], tool_rules=ALLOWED, sinks=[heard]).call("w", "go")
    found = [event for event in heard if isinstance(event, CallProgress)]
    assert 0 < len(found) < 300
    assert all(len(event.message or "") <= 200 for event in found)
