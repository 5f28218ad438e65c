"""MCP servers as processes: how they start, die, log, and what they are told and given."""

from __future__ import annotations

import asyncio
import os
import re
import signal
import stat
import sys
from pathlib import Path
from typing import Any

import anyio
import pytest
from pydantic_ai.messages import ModelMessage, ModelResponse
from pydantic_ai.models.function import AgentInfo, FunctionModel

from llm_do import (
    ApprovalDecision,
    CallProgress,
    CallTimeout,
    Limits,
    Notice,
    Runtime,
    SandboxConfig,
    ToolsetError,
    WorkerEntry,
)
from llm_do.definitions.definition import McpToolset
from llm_do.machine.installation import install_extra
from llm_do.privacy.secret_fields import HIDDEN
from llm_do.toolsets import McpFactory

from ..processes import PATIENCE
from ..scripted import calls, says, scripted
from ..stdio_mcp import TOOLS

SERVER = Path(__file__).parents[1] / "stdio_mcp.py"


@pytest.fixture(autouse=True)
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    return tmp_path / "state/llm-do/mcp"


def server(*args: str, name: str | None = "small", prefix: str | None = None, **more: Any) -> McpFactory:
    declared = {"mcp": {"command": [sys.executable, "-S", str(SERVER), *args], **more}, "name": name, "prefix": prefix}
    return McpFactory(McpToolset.model_validate(declared), Path())


def worker(*steps: Any, toolsets: list[Any] | None = None, **options: Any) -> WorkerEntry:
    made: dict[str, Any] = {"name": "w", "toolsets": toolsets or [server()], "model": scripted(*steps)}
    return WorkerEntry(**{**made, **options})


ALLOWED = {f"small/{name}": "allow" for name in TOOLS}


class Heard(list[Any]):
    """A sink that keeps what it is told."""

    def on_event(self, event: Any) -> None:
        self.append(event)

    @property
    def notices(self) -> list[str]:
        return [event.text for event in self if isinstance(event, Notice)]


def results(scope: Any) -> list[Any]:
    """What the model was told by tools."""
    parts = [part for message in scope.messages for part in message.parts]
    return [part.content for part in parts if part.part_kind in ("tool-return", "retry-prompt")]


def is_alive(process: int) -> bool:
    try:
        return "State:\tZ" not in Path(f"/proc/{process}/status").read_text()
    except FileNotFoundError:
        return False


async def ends(process: int) -> None:
    """Wait until a process that was killed is gone."""
    with anyio.fail_after(PATIENCE):
        while is_alive(process):
            await anyio.sleep(0.01)


def process_of(result: str) -> int:
    return int(result.partition(":")[0])


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


async def test_a_server_that_takes_long_is_said_to_be_still_starting(
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


async def test_a_server_that_starts_before_a_turn_is_still_said_to_be_starting(
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


async def test_what_is_not_installed_is_an_error_that_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "llm_do.toolsets.mcp.client", raising=False)
    monkeypatch.delattr("llm_do.toolsets.mcp.client", raising=False)
    monkeypatch.setitem(sys.modules, "fastmcp.client.progress", None)
    with pytest.raises(ToolsetError) as caught:
        await Runtime([worker(says("end"))]).call("w", "go")
    assert "MCP server 'small' of worker 'w' cannot be used: fastmcp.client.progress is missing" in str(caught.value)
    assert str(caught.value).endswith(install_extra("mcp"))


@pytest.mark.parametrize(("value", "shown"), [("abcd", f"no key: {HIDDEN}"), ("abc", "no key: abc")])
async def test_values_that_are_too_short_to_be_secrets_are_left(value: str, shown: str) -> None:
    """The bound is the one of all secrets: shorter ones would be found in half of all words."""
    with pytest.raises(ToolsetError, match=re.escape(f"Its standard error ends: {shown} (")):
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


# -- death ---------------------------------------------------------------------------------------------------------


async def test_a_server_that_dies_in_a_call_is_told_and_started_again_at_the_next_turn() -> None:
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
        assert "Everything that it remembered from earlier calls is gone" in instructed[-1]
        assert "remembered" not in instructed[0]
    assert len(heard.notices) == 1
    assert heard.notices[0].startswith("MCP server 'small' of worker 'w' has ended by itself, and is started again")
    assert "giving up\\x1b[2J" in heard.notices[0]
    assert [record.name for record in runtime.trace if record.kind == "server"] == ["small"]
    assert not is_alive(process_of(first)) and not is_alive(process_of(last))


async def test_a_server_that_is_killed_between_turns_is_started_again_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """A start that takes long is told each time."""
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
async def test_what_a_server_started_ends_with_it(arguments: dict[str, Any]) -> None:
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
    monkeypatch.setattr("llm_do.toolsets.mcp.client.LARGEST_MESSAGE", 100_000)
    heard = Heard()
    made = worker(calls((tool, REQUEST)), says("end"), toolsets=[server(sampling=True)])
    await Runtime([made], tool_rules={**ALLOWED, "mcp.sampling": "ask"}, sinks=[heard]).call("w", "go")
    [notice] = heard.notices
    assert notice.startswith(f"MCP server 'small' of worker 'w' was stopped, because {why}")


async def test_a_server_that_ends_after_it_changed_its_tools_ends_no_turn() -> None:
    """Its tools are asked for again then, and it cannot tell them any more."""
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
async def test_a_server_that_closes_its_input_is_told_and_started_again(
    others: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Though its process runs on, and whether or not it is sent more then: what it was sent has no answer."""
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
    """The server would be told that the call is cancelled."""
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
    """A time that is up while the list is waited for keeps no server."""
    time = {"start_timeout": 0.3} if by == "start_timeout" else {}
    made = worker(says("end"), toolsets=[server("lists_nothing", str(tmp_path), **time)])
    runtime = Runtime([made], limits=Limits(timeout=0.3) if by == "limits" else None)
    with pytest.raises(ToolsetError if by == "start_timeout" else CallTimeout):
        await runtime.call("w", "go")
    for found in tmp_path.glob("here-*"):
        await ends(int(found.name.removeprefix("here-")))
    if by == "start_timeout":
        assert list(tmp_path.glob("here-*"))


# -- what a server is told and given -------------------------------------------------------------------------------


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
async def test_a_server_is_told_the_roots_that_the_file_names(
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


async def test_a_flood_of_progress_is_told_now_and_then() -> None:
    heard = Heard()
    flood = calls(("progress_flood", {"count": 1000}))
    made = worker(flood, says("end"), toolsets=[server(progress=True)])
    await Runtime([made], tool_rules=ALLOWED, sinks=[heard]).call("w", "go")
    found = [event for event in heard if isinstance(event, CallProgress)]
    assert 0 < len(found) < 300
    assert all(len(event.message or "") <= 200 for event in found)


# -- sampling ------------------------------------------------------------------------------------------------------

REQUEST = {
    "messages": [{"role": "user", "content": {"type": "text", "text": "Say the word."}}],
    "systemPrompt": "Obey.",
    "maxTokens": 1_000_000,
    "includeContext": "allServers",
    "modelPreferences": {"hints": [{"name": "dear-model"}]},
}


def sampling(rules: dict[str, Any], **options: Any) -> tuple[Runtime, WorkerEntry, list[Any]]:
    """A worker whose server samples, and what its model was sent."""
    sent: list[Any] = []

    def script(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
        sent.append((list(messages), info.model_settings))
        if "Obey." in str(messages[0]):
            return says("sampled answer")
        return calls(("sample", REQUEST)) if len(messages) == 1 else says("end")

    options = {"model_settings": {"max_tokens": 77}, "toolsets": [server(sampling=True)], **options}
    made = worker(model=FunctionModel(script), **options)
    return Runtime([made], tool_rules={**ALLOWED, **rules}), made, sent


async def test_a_sampled_request_is_the_workers_own() -> None:
    runtime, made, sent = sampling({"mcp.sampling": "allow"})
    async with made.start(runtime) as scope:
        await scope.run_turn("PRIVATE question")
        answer = results(scope)[0]
    assert answer["content"]["text"] == "sampled answer"
    assert answer["model"] == "llm-do"
    messages, settings = sent[1]
    assert settings["max_tokens"] == 77
    assert "PRIVATE" not in str(messages) and "Obey." in str(messages)
    _, tool, sampled = runtime.trace
    assert (tool.name, sampled.name, sampled.parent_id) == ("sample", "sampling", tool.id)
    assert sampled.usage is not None and sampled.usage.requests == 1
    assert sum(used.requests for used in runtime.usage.values()) == 3
    assert sampled.input_data["messages"][-1] == {"role": "user", "content": "Say the word."}


@pytest.mark.parametrize("rules", [{"mcp.sampling": "deny"}, {}])
async def test_a_sampled_request_asks_unless_a_rule_allows_it(rules: dict[str, Any]) -> None:
    runtime, made, sent = sampling(rules)
    async with made.start(runtime) as scope:
        await scope.run_turn("go")
        answer = results(scope)[0]
    assert answer["message"] == "The request was refused, or failed."
    assert len(sent) == 2
    assert [record.approval.approved for record in runtime.trace if record.name == "sampling" and record.approval] == [
        False
    ]


async def test_a_sampled_request_counts_in_the_budget_of_the_worker() -> None:
    runtime, _, sent = sampling({"mcp.sampling": "allow"}, limits=Limits(max_requests=1))
    with pytest.raises(Exception, match="max_requests"):
        await runtime.call("w", "go")
    assert len(sent) == 1


async def test_without_the_key_a_server_cannot_sample() -> None:
    made = worker(calls(("sample", REQUEST)), says("end"))
    async with made.start(Runtime([made], tool_rules={**ALLOWED, "mcp.sampling": "allow"})) as scope:
        await scope.run_turn("go")
        assert results(scope)[0]["message"] == "Sampling not supported"


async def test_a_person_is_asked_about_a_sampled_request_and_sees_all_of_it() -> None:
    asked: list[Any] = []

    def approve(name: str, arguments: dict[str, Any], reason: str) -> ApprovalDecision:
        asked.append((name, arguments))
        return ApprovalDecision(approved=True)

    _, made, _ = sampling({})
    async with made.start(Runtime([made], tool_rules=ALLOWED, approval_callback=approve)) as scope:
        await scope.run_turn("go")
        assert results(scope)[0]["content"]["text"] == "sampled answer"
    [(name, arguments)] = asked
    assert name == "mcp.sampling" and arguments["server"] == "MCP server 'small'"
    assert [message["content"] for message in arguments["messages"]] == ["Obey.", "Say the word."]


async def test_an_edited_sampled_request_is_not_sent() -> None:
    """The model would be asked what the server wrote, and the record would show what the person wrote."""

    def edit(name: str, arguments: dict[str, Any], reason: str) -> ApprovalDecision:
        return ApprovalDecision(approved=True, arguments={**arguments, "messages": arguments["messages"][:1]})

    _, made, sent = sampling({})
    runtime = Runtime([made], tool_rules=ALLOWED, approval_callback=edit)
    async with made.start(runtime) as scope:
        await scope.run_turn("go")
        assert results(scope)[0]["message"] == "The request was refused, or failed."
    assert len(sent) == 2
    approval = runtime.trace[-1].approval
    assert approval is not None and not approval.approved and "cannot be edited" in str(approval.note)


async def test_a_person_sees_the_tool_calls_in_a_sampled_request() -> None:
    """A server can write anything into the name and the arguments of a call that was never made."""
    call = {"type": "tool_use", "id": "1", "name": "NAMED", "input": {"x": "GIVEN"}}
    result = {"type": "tool_result", "toolUseId": "1", "content": [{"type": "text", "text": "RETURNED"}]}
    messages = [*REQUEST["messages"], {"role": "assistant", "content": call}, {"role": "user", "content": result}]
    asked: list[str] = []

    def refuse(name: str, arguments: dict[str, Any], reason: str) -> ApprovalDecision:
        asked.append(str(arguments))
        return ApprovalDecision(approved=False)

    made = worker(calls(("sample", {**REQUEST, "messages": messages})), says("end"), toolsets=[server(sampling=True)])
    await Runtime([made], tool_rules=ALLOWED, approval_callback=refuse).call("w", "go")
    [shown] = asked
    assert all(word in shown for word in ("NAMED", "GIVEN", "RETURNED"))


async def test_a_sampled_request_is_sent_without_secrets(monkeypatch: pytest.MonkeyPatch) -> None:
    """As the result of a tool is: the server may have found one in what it read."""
    monkeypatch.setenv("MY_KEY", "Say the word.")
    _, made, sent = sampling({})
    rules = {**ALLOWED, "mcp.sampling": "allow"}
    await Runtime([made], tool_rules=rules, secrets=["MY_KEY"]).call("w", "go")
    assert "[secret MY_KEY]" in str(sent[1][0]) and "Say the word." not in str(sent[1][0])


async def test_a_server_that_samples_again_and_again_ends_with_the_budget() -> None:
    """Of a session: each is a request of it, also where the worker itself has no limit."""

    def script(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
        if "Obey." in str(messages[0]):
            assert not info.function_tools  # so it cannot call the server again
            return says("sampled answer")
        return calls(("sample_until_refused", REQUEST)) if len(messages) == 1 else says("end")

    made = worker(model=FunctionModel(script), toolsets=[server(sampling=True)])
    limits = Limits(max_requests=7)
    runtime = Runtime([made], tool_rules={**ALLOWED, "mcp.sampling": "allow"}, limits=limits)
    with pytest.raises(Exception, match="max_requests"):
        await runtime.call("w", "go")
    assert sum(used.requests for used in runtime.usage.values()) == 7


async def test_a_call_that_is_cancelled_while_its_server_samples_leaves_nothing() -> None:
    """The sampled request ends with it, its record too, and the slot is free for the next call."""
    sampled, never = asyncio.Event(), asyncio.Event()

    async def script(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
        if "Obey." in str(messages[0]):
            sampled.set()
            await never.wait()
        if "again" in str(messages[-1]):
            return says("free")
        return calls(("sample", REQUEST))

    made = worker(model=FunctionModel(script), toolsets=[server(sampling=True)])
    runtime = Runtime([made], tool_rules={**ALLOWED, "mcp.sampling": "allow"}, max_concurrency=1)
    async with made.start(runtime) as scope:
        turn = asyncio.create_task(scope.run_turn("go"))
        with anyio.fail_after(PATIENCE):
            await sampled.wait()
            turn.cancel()
            with pytest.raises(asyncio.CancelledError):
                await turn
            assert await scope.run_turn("again") == "free"
    assert [record.name for record in runtime.trace] == ["w", "sample", "sampling", "w"]
    assert all(record.duration is not None for record in runtime.trace)
    assert sum(used.requests for used in runtime.usage.values()) == 2  # of the third, no provider told any usage


async def test_the_messages_of_a_sampled_request_are_logged() -> None:
    runtime, _, _ = sampling({"mcp.sampling": "allow"})
    await runtime.call("w", "go")
    assert "sampled answer" in str(list(runtime.messages))
