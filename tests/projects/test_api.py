"""One call, from a project's files to a result, and the tools that come with llm-do."""

import json
import os
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError
from pydantic_ai.messages import ModelMessage, ModelResponse
from pydantic_ai.models.function import FunctionModel

from llm_do import (
    AnswerCutOff,
    ApprovalDecision,
    ApprovalDenied,
    ArgumentError,
    AttachmentPayload,
    CallClosed,
    CallOpened,
    Context,
    DelegationDenied,
    EventLoopError,
    MessageLogged,
    ModelChoiceError,
    PathDenied,
    PathMissing,
    RuleError,
    Runtime,
    RuntimeCreator,
    RuntimeDelegator,
    WorkerCreationDefaults,
    WorkerCreator,
    WorkerDelegator,
    WorkerEntry,
    WorkerFileError,
    WorkerInput,
    WorkerRegistry,
    WorkerRunResult,
    WorkerSpec,
    approve_all_callback,
    call_worker,
    call_worker_async,
    create_worker,
    run_worker,
    run_worker_async,
    strict_mode_callback,
)

from ..processes import PATIENCE
from ..scripted import by_tools, calls, says, scripted, tool_results

Make = Callable[[dict[str, str]], WorkerRegistry]
SERVER = Path(__file__).parents[1] / "mcp_server.py"
TOOLS = """
from llm_do import entry

@entry(requires_approval=True)
def wipe(what: str) -> str:
    return "wiped " + what
"""


@pytest.fixture
def make(tmp_path: Path) -> Make:
    """Makes a project of files: paths, and what is in them."""

    def project(files: dict[str, str]) -> WorkerRegistry:
        for path, text in {"workers/.keep": "", **files}.items():
            (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / path).write_text(text)
        return WorkerRegistry(tmp_path)

    return project


@pytest.fixture(autouse=True)
def _no_models(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LLM_DO_NO_LOCAL", "1")
    for name in list(os.environ):
        if name.endswith("_API_KEY") or name == "LLM_DO_MODEL":
            monkeypatch.delenv(name)


def last_result(messages: list[ModelMessage], info: Any) -> ModelResponse:
    return says(str(tool_results(messages)[-1]) or "(nothing)")


# -- run_worker --------------------------------------------------------------------------------------------


def test_a_worker_runs_with_one_call_and_everything_is_in_the_result(make: Make) -> None:
    registry = make({"workers/a.yaml": "tools: [wipe]\ninstructions: x\n", "tools.py": TOOLS})
    model = scripted(
        calls(("wipe", {"what": "one"}), ("wipe", {"what": "two"})),
        says("done", input_tokens=10, output_tokens=5),
        name="priced",
    )
    asked: list[str] = []

    def callback(tool_name: str, payload: dict[str, Any], reason: str) -> ApprovalDecision:
        asked.append(tool_name)
        return ApprovalDecision(approved=payload["what"] == "one", note="not that one")

    result = run_worker(
        registry=registry,
        worker="a",
        input_data={"input": "go"},
        attachments=None,
        cli_model=model,
        approval_callback=callback,
        message_callback=None,
    )
    assert isinstance(result, WorkerRunResult)
    assert result.output == "done"
    assert asked == ["wipe", "wipe"]
    assert tool_results(result.messages)[0] == "wiped one"
    assert "not that one" in tool_results(result.messages)[1]
    assert [record.name for record in result.trace] == ["a", "wipe", "wipe"]
    assert [record.input_data for record in result.refusals] == [{"what": "two"}]
    assert (result.usage["priced"].requests, result.usage["priced"].output_tokens >= 5) == (2, True)
    assert result.cost is None  # nobody knows the price of a scripted model


async def test_the_async_form_takes_the_same(make: Make) -> None:
    registry = make({"workers/a.md": "x"})
    result = await run_worker_async(registry=registry, worker="a", input_data="go", cli_model=scripted(says("hello")))
    assert result.output == "hello"
    assert len(result.messages) == 2


def test_a_function_runs_like_a_worker_and_costs_nothing(make: Make) -> None:
    registry = make({"tools.py": TOOLS})
    result = run_worker(
        registry=registry, worker="wipe", input_data={"what": "x"}, approval_callback=approve_all_callback
    )
    assert (result.output, result.messages, result.usage, result.cost) == ("wiped x", [], {}, Decimal(0))
    with pytest.raises(ApprovalDenied):
        run_worker(registry=registry, worker="wipe", input_data="x", approval_callback=strict_mode_callback)


async def test_the_sync_form_where_a_loop_runs_names_the_async_one(make: Make) -> None:
    registry = make({"workers/a.md": "x"})
    with pytest.raises(EventLoopError, match="run_worker_async"):
        run_worker(registry=registry, worker="a", cli_model=scripted(says("x")))


def test_an_error_of_the_project_starts_nothing(make: Make) -> None:
    registry = make({"workers/a.yaml": "tools: [nothing]\n"})
    events: list[Any] = []
    with pytest.raises(WorkerFileError):
        run_worker(registry=registry, worker="a", cli_model=scripted(says("x")), message_callback=events.append)
    with pytest.raises(KeyError):
        run_worker(registry=registry, worker="b", cli_model=scripted(says("x")), message_callback=events.append)
    assert events == []


def test_a_worker_without_a_model_says_so(make: Make) -> None:
    with pytest.raises(ModelChoiceError, match="'a' has no model"):
        run_worker(registry=make({"workers/a.md": "x"}), worker="a", input_data="go")


def test_the_configuration_of_the_project_holds(make: Make) -> None:
    registry = make(
        {
            "llm-do.toml": "model = 'test'\n[tool_rules]\nwipe = 'deny'\n",
            "workers/a.yaml": "tools: [wipe]\ninstructions: x\n",
            "tools.py": TOOLS,
        }
    )
    result = run_worker(registry=registry, worker="a", input_data="go", approval_callback=approve_all_callback)
    assert [record.name for record in result.refusals] == ["wipe"]
    assert list(result.usage) == ["test"]
    own = scripted(says("mine"), name="mine")
    assert run_worker(registry=registry, worker="a", input_data="go", cli_model=own).output == "mine"


def test_attachments_reach_the_model(make: Make, tmp_path: Path) -> None:
    registry = make({"workers/a.md": "x"})
    (tmp_path / "note.txt").write_text("text")
    given = [tmp_path / "note.txt", str(tmp_path / "note.txt"), AttachmentPayload("dot.png", b"\x89PNG")]
    for input_data in ("look", {"input": "look"}, None):
        result = run_worker(
            registry=registry, worker="a", input_data=input_data, attachments=given, cli_model=scripted(says("seen"))
        )
        content: Any = result.messages[0].parts[0].content  # type: ignore[union-attr]
        shown = [item for item in content if not isinstance(item, str)]
        assert [(item.data, item.media_type) for item in shown] == [
            (b"text", "text/plain"),
            (b"text", "text/plain"),
            (b"\x89PNG", "image/png"),
        ]


@pytest.mark.parametrize(
    ("attachments", "error"),
    [
        ([AttachmentPayload("a.txt", b"x"), AttachmentPayload("b.txt", b"x")], PathDenied),
        ([AttachmentPayload("a.pdf", b"x")], PathDenied),
        ([AttachmentPayload("a.txt", b"x" * 11)], PathDenied),
        (["nowhere/a.txt"], PathMissing),
        (["/"], PathDenied),
    ],
)
@pytest.mark.parametrize("declared", ["", "input: {type: object, properties: {deck: {type: string}}}\n"])
def test_attachments_that_do_not_fit_start_nothing(
    make: Make, attachments: Any, error: type[Exception], declared: str
) -> None:
    text = f"{declared}attachment_policy: {{max_attachments: 1, max_total_bytes: 10, suffixes: [.txt]}}\n"
    registry = make({"workers/a.yaml": text, "tools.py": TOOLS})
    events: list[Any] = []
    with pytest.raises(error):
        run_worker(
            registry=registry,
            worker="a",
            attachments=attachments,
            cli_model=scripted(says("x")),
            message_callback=events.append,
        )
    assert events == []
    with pytest.raises(TypeError, match="and no attachments"):
        run_worker(registry=registry, worker="wipe", input_data="x", attachments=attachments)


SCHEMAS = """
from dataclasses import dataclass
from pydantic import BaseModel

class Deck(BaseModel):
    deck: str

@dataclass
class Plain:
    deck: str
"""
LOOK = """
from pydantic_ai import RunContext
from llm_do import Context, entry

@entry
def look(ctx: RunContext[Context]) -> str:
    return " ".join(f"{file.name}={file.data!r}" for file in ctx.deps.attachments) or "nothing"
"""
DECK = "{type: object, properties: {deck: {type: string}, attachments: {type: array}}, required: [deck]}"


@pytest.mark.parametrize("declared", [DECK, "schemas.py:Deck", "schemas.py:Plain"])
@pytest.mark.parametrize("input_data", [{"deck": "acme"}, "acme"])
def test_a_worker_that_declares_its_input_gets_files_beside_it(make: Make, declared: str, input_data: Any) -> None:
    text = f"input: {declared}\ntools: [look]\ninstructions: x\n"
    registry = make({"workers/a.yaml": text, "schemas.py": SCHEMAS, "tools.py": LOOK})
    events: list[Any] = []
    result = run_worker(
        registry=registry,
        worker="a",
        input_data=input_data,
        attachments=[AttachmentPayload("a.txt", b"hello")],
        cli_model=scripted(calls(("look", {})), last_result),
        message_callback=events.append,
    )
    assert result.output == "a.txt=b'hello'"
    text, file = result.messages[0].parts[0].content  # type: ignore[union-attr, misc, assignment]
    assert text == '{\n  "deck": "acme"\n}'
    record = result.trace[0]
    assert record.input_data == {"deck": "acme"}
    assert list(record.attachments) == [file]
    assert str(record).startswith("a(deck='acme') + a.txt (5 bytes) [worker")
    opened = next(event for event in events if isinstance(event, CallOpened))
    assert (opened.arguments, list(opened.attachments)) == ({"deck": "acme"}, [file])
    assert (record.attachments[0] is file, opened.attachments[0] is file) == (False, False)


def test_a_declared_field_that_is_called_attachments_is_the_workers_own(make: Make) -> None:
    registry = make({"workers/a.yaml": f"input: {DECK}\ntools: [look]\ninstructions: x\n", "tools.py": LOOK})
    link = {"kind": "image-url", "url": "http://127.0.0.1/x.png"}
    own = {"deck": "acme", "attachments": [link]}
    model = scripted(calls(("look", {})), last_result)
    result = run_worker(registry=registry, worker="a", input_data=own, cli_model=model)
    assert result.output == "nothing"
    assert isinstance(result.messages[0].parts[0].content, str)  # type: ignore[union-attr]
    given = [AttachmentPayload("a.txt", b"hello")]
    model = scripted(calls(("look", {})), last_result)
    result = run_worker(registry=registry, worker="a", input_data=own, attachments=given, cli_model=model)
    assert result.output == "a.txt=b'hello'"
    shown: Any = result.messages[0].parts[0].content  # type: ignore[union-attr]
    assert [type(item).__name__ for item in shown] == ["str", "BinaryContent"]
    assert "image-url" in shown[0]
    assert (result.trace[0].input_data, len(result.trace[0].attachments)) == (own, 1)


async def test_files_beside_the_input_are_those_of_one_turn(make: Make) -> None:
    registry = make({"workers/a.yaml": f"input: {DECK}\ntools: [look]\ninstructions: x\n", "tools.py": LOOK})
    worker = registry["a"]
    assert isinstance(worker, WorkerEntry)
    content = AttachmentPayload("a.txt", b"hello").content()
    model = scripted(calls(("look", {})), last_result, calls(("look", {})), last_result)
    async with worker.start(Runtime(registry, model=model)) as scope:
        assert await scope.take_turn({"deck": "acme"}, [content]) == "a.txt=b'hello'"
        assert await scope.run_turn("acme") == "nothing"


def test_events_of_the_whole_tree_reach_the_callback(make: Make) -> None:
    registry = make({"workers/a.yaml": "allow_workers: [b]\ninstructions: x\n", "workers/b.md": "b"})
    events: list[Any] = []
    model = by_tools({"worker_call": calls(("worker_call", {"worker": "b", "input_data": "x"}))})
    result = run_worker(registry=registry, worker="a", input_data="go", cli_model=model, message_callback=events.append)
    assert result.output == "done"
    assert isinstance(events[0], CallOpened)
    assert isinstance(events[2], MessageLogged)
    tags = [(event.name, event.worker, event.depth) for event in events if isinstance(event, CallOpened)]
    assert tags == [("a", "a", 0), ("worker_call", "a", 1), ("b", "b", 2)]
    assert [event.name for event in events if isinstance(event, CallClosed)] == ["b", "worker_call", "a"]
    assert all(event.duration > 0 for event in events if isinstance(event, CallClosed))
    assert {event.worker for event in events if isinstance(event, MessageLogged)} == {"a", "b"}
    requests = [(event.type, event.worker) for event in events if event.type in ("request_started", "request_ended")]
    assert requests[:2] == [("request_started", "a"), ("request_ended", "a")]
    assert len(requests) == 6
    assert not any(event.type == "text_delta" for event in events)


def test_text_reaches_the_callback_as_it_comes_with_stream(make: Make) -> None:
    """Without `stream` no request is a stream."""
    registry, events = make({"workers/a.md": "a"}), list[Any]()
    run_worker(
        registry=registry,
        worker="a",
        input_data="go",
        cli_model=scripted(says("one two")),
        message_callback=events.append,
        stream=True,
    )
    types = [event.type for event in events]
    deltas = [event.text for event in events if event.type == "text_delta"]
    assert "".join(deltas).split() == ["one", "two"]
    assert types.index("request_started") < types.index("text_delta") < types.index("request_ended")


def test_a_callback_that_raises_does_not_end_the_run(make: Make, caplog: pytest.LogCaptureFixture) -> None:
    def fail(event: Any) -> None:
        raise RuntimeError("no screen")

    registry = make({"workers/a.md": "x"})
    model = scripted(says("fine"))
    result = run_worker(registry=registry, worker="a", input_data="go", cli_model=model, message_callback=fail)
    assert result.output == "fine"
    assert len(caplog.records) == 1


# -- call_worker, the seams --------------------------------------------------------------------------------------

SEAMS: dict[str, Callable[[Context], Any]] = {}
SEAM_TOOLS = """
from pydantic_ai import RunContext
from llm_do import Context, entry
from tests.projects.test_api import SEAMS

@entry
async def seam(ctx: RunContext[Context]) -> str:
    return str(await SEAMS["seam"](ctx.deps))

@entry
def sync_seam(ctx: RunContext[Context]) -> str:
    return str(SEAMS["sync_seam"](ctx.deps))
"""


def seams(make: Make, **more: str) -> WorkerRegistry:
    return make(
        {
            "workers/a.yaml": "tools: [seam, sync_seam]\nallow_workers: [b]\ninstructions: x\n",
            "workers/b.md": "b",
            "workers/c.md": "c",
            "tools.py": SEAM_TOOLS,
            **more,
        }
    )


def run_seam(registry: WorkerRegistry, name: str, function: Callable[[Context], Any], **options: Any) -> Any:
    SEAMS[name] = function

    def step(messages: list[ModelMessage], info: Any) -> ModelResponse:
        if not info.function_tools:
            return says("b did it")
        return last_result(messages, info) if tool_results(messages) else calls((name, {}))

    return run_worker(registry=registry, worker="a", input_data="go", cli_model=scripted(step), **options)


def test_python_delegates_on_behalf_of_a_worker(make: Make) -> None:
    registry = seams(make)

    async def delegate(ctx: Context) -> Any:
        delegator: WorkerDelegator = RuntimeDelegator(ctx)
        first = await call_worker_async(registry=registry, worker="b", input_data="x", caller_context=ctx)
        return [first, await delegator.call_async("b", {"input": "x"}, [])]

    result = run_seam(registry, "seam", delegate)
    assert result.output == "['b did it', 'b did it']"
    assert [record.name for record in result.trace] == ["a", "seam", "worker_call", "b", "worker_call", "b"]
    result = run_seam(
        registry,
        "sync_seam",
        lambda ctx: call_worker(registry=registry, worker="b", input_data="x", caller_context=ctx, attachments=None),
    )
    assert result.output == "b did it"


def test_what_is_not_allowed_is_not_started_from_python_either(make: Make) -> None:
    registry = seams(make)

    async def delegate(ctx: Context) -> str:
        with pytest.raises(DelegationDenied, match="may not call worker 'c': it may call b"):
            await call_worker_async(registry=registry, worker="c", input_data="x", caller_context=ctx)
        with pytest.raises(ValueError, match="another registry"):
            await call_worker_async(
                registry=WorkerRegistry(registry.root), worker="b", input_data="x", caller_context=ctx
            )
        with pytest.raises(EventLoopError):
            call_worker(registry=registry, worker="b", input_data="x", caller_context=ctx)
        return "refused"

    result = run_seam(registry, "seam", delegate)
    assert result.output == "refused"
    assert {record.name for record in result.trace} == {"a", "seam", "worker_call"}

    def sync(ctx: Context) -> str:
        with pytest.raises(DelegationDenied):
            call_worker(registry=registry, worker="c", input_data="x", caller_context=ctx)
        return "refused"

    assert run_seam(registry, "sync_seam", sync).output == "refused"


async def test_at_the_top_nobody_may_delegate(make: Make) -> None:
    registry = make({"workers/b.md": "b"})
    ctx = Runtime(registry, model=scripted(says("x"))).context()
    with pytest.raises(DelegationDenied):
        await call_worker_async(registry=registry, worker="b", input_data="x", caller_context=ctx)


def test_python_creates_on_behalf_of_a_worker(make: Make) -> None:
    registry = seams(make)

    def create(ctx: Context) -> Any:
        creator: WorkerCreator = RuntimeCreator(ctx)
        return creator.create("helper", "Help.", description="d")

    assert "a > sync_seam > worker_create was refused" in run_seam(registry, "sync_seam", create).output
    assert not (registry.root / "workers" / "generated").exists()
    result = run_seam(registry, "sync_seam", create, approval_callback=approve_all_callback)
    assert result.output == str({"name": "helper", "description": "d", "created_by": "a", "instructions": "Help."})
    assert registry.definition("helper").created_by == "a"

    def again(ctx: Context) -> str:
        with pytest.raises(WorkerFileError, match="exists"):
            RuntimeCreator(ctx).create("helper", "Again.")
        with pytest.raises(ValueError, match="cannot be an entry's name"):
            RuntimeCreator(ctx).create("../../evil", "x")
        return "ok"

    assert run_seam(registry, "sync_seam", again, approval_callback=approve_all_callback).output == "ok"
    assert registry.definition("helper").instructions == "Help."


def test_a_worker_is_created_on_behalf_of_the_project(make: Make) -> None:
    registry = make({"workers/mine.md": "x", "tools.py": TOOLS})
    spec = WorkerSpec(name="new-worker", instructions="Help.", description="A simple worker", tools=("wipe",))
    defaults = WorkerCreationDefaults(default_model="test", default_tool_rules={"wipe": "deny"})  # type: ignore[dict-item]
    definition = create_worker(registry=registry, spec=spec, defaults=defaults, force=False)
    assert (definition.model, definition.created_by) == ("test", "(project)")
    assert registry.definition("new-worker") == definition
    result = run_worker(registry=registry, worker="new-worker", input_data="go")
    assert [record.name for record in result.refusals] == ["wipe"]
    with pytest.raises(WorkerFileError, match="exists"):
        create_worker(registry=registry, spec=WorkerSpec(name="new-worker", instructions="Other."))
    assert registry.definition("new-worker").instructions == "Help."
    create_worker(registry=registry, spec=WorkerSpec(name="new-worker", instructions="Other."), force=True)
    assert registry.definition("new-worker").instructions == "Other."
    for name in ("mine", "wipe"):
        with pytest.raises(WorkerFileError, match="Choose another name"):
            create_worker(registry=registry, spec=WorkerSpec(name=name, instructions="x"), force=True)
    with pytest.raises(ValueError, match="cannot be an entry's name"):
        WorkerSpec(name="../../evil", instructions="x")
    files = sorted(path.name for path in (registry.root / "workers" / "generated").iterdir())
    assert files == [".new-worker.seal", "new-worker.yaml"]


# -- toolsets --------------------------------------------------------------------------------------------------


def mcp(more: str = "") -> str:
    return f"toolsets:\n  - mcp: {{command: [{sys.executable!r}, {str(SERVER)!r}]}}\n{more}instructions: x\n"


def is_running(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def until_gone(pid: int) -> bool:
    end = time.monotonic() + PATIENCE
    while is_running(pid) and time.monotonic() < end:
        time.sleep(0.02)
    return not is_running(pid)


def test_the_tools_of_an_mcp_server_ask_and_a_rule_can_allow_them(make: Make) -> None:
    registry = make(
        {
            "workers/asks.yaml": mcp(),
            "workers/may.yaml": mcp("    prefix: my\ntool_rules: {my_increment: allow}\n"),
        }
    )
    model = scripted(calls(("increment", {"by": 2})), says("done"))
    result = run_worker(registry=registry, worker="asks", input_data="go", cli_model=model)
    assert [record.name for record in result.refusals] == ["increment"]
    model = scripted(calls(("my_increment", {"by": 2})), calls(("my_increment", {"by": 3})), last_result)
    output = run_worker(registry=registry, worker="may", input_data="go", cli_model=model).output
    pid, _, count = output.partition(":")
    assert count == "5"  # one server for the whole call
    assert until_gone(int(pid))


def test_a_server_that_cannot_be_started_is_an_error(make: Make) -> None:
    registry = make({"workers/a.yaml": "toolsets: [{mcp: {command: [/no/such/program]}}]\n"})
    with pytest.raises(Exception, match="program"):
        run_worker(registry=registry, worker="a", input_data="go", cli_model=scripted(says("x")))


def test_a_server_that_starts_slowly_is_waited_for(make: Make) -> None:
    """A busy machine takes its time, and so does a server that is downloaded first."""
    command = ["sh", "-c", 'sleep 6; exec "$@"', "sh", sys.executable, str(SERVER)]
    registry = make(
        {"workers/a.yaml": f"toolsets: [{{mcp: {{command: {command}}}}}]\ntool_rules: {{increment: allow}}\n"}
    )
    model = scripted(calls(("increment", {"by": 2})), last_result)
    result = run_worker(registry=registry, worker="a", input_data="go", cli_model=model)
    assert result.output.endswith(":2")


@pytest.mark.parametrize(
    ("rules", "message"),
    [
        ("{incremnt: deny}", "workers/a.yaml:3: there is no tool 'incremnt' .*Did you mean 'increment'"),
        (
            "{increment: {rule: deny, when: {nothing: 1}}}",
            "workers/a.yaml:3: increment: there is no argument 'nothing'",
        ),
    ],
)
def test_rules_on_tools_of_a_server_are_checked_when_it_is_connected(make: Make, rules: str, message: str) -> None:
    registry = make({"workers/a.yaml": mcp(f"tool_rules: {rules}\n")})
    with pytest.raises(RuleError, match=message):
        run_worker(registry=registry, worker="a", input_data="go", cli_model=scripted())


def test_rules_that_cannot_be_read_refuse_to_start(make: Make) -> None:
    registry = make({"workers/a.yaml": "instructions: x\n"})
    (registry.root / "llm-do.toml").mkdir()
    with pytest.raises(WorkerFileError, match="llm-do.toml cannot be read: it is a folder"):
        run_worker(registry=registry, worker="a", input_data="go", cli_model=scripted(says("x")))


def test_a_toolset_from_a_factory_of_the_project(make: Make) -> None:
    code = """
from pydantic_ai.toolsets import FunctionToolset

def make(ctx):
    toolset = FunctionToolset()

    @toolset.tool_plain
    def shout(text: str) -> str:
        return text.upper()

    return toolset
"""
    registry = make({"workers/a.yaml": "toolsets: ['shouting.py:make']\ninstructions: x\n", "shouting.py": code})
    model = scripted(calls(("shout", {"text": "hey"})), last_result)
    result = run_worker(registry=registry, worker="a", input_data="go", cli_model=model)
    assert result.output == "HEY"
    assert [record.name for record in result.trace] == ["a", "shout"]


def test_a_delegation_that_is_not_allowed_is_among_the_refusals(make: Make) -> None:
    files = {"workers/a.yaml": "allow_workers: [b]\ninstructions: x\n", "workers/b.md": "b", "workers/c.md": "c"}
    model = scripted(calls(("worker_call", {"worker": "c", "input_data": "x"})), says("done"))
    result = run_worker(registry=make(files), worker="a", input_data="go", cli_model=model)
    assert [record.input_data["worker"] for record in result.refusals] == ["c"]


def test_two_projects_in_one_process_have_modules_of_their_own(tmp_path: Path) -> None:
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "helper_of_both.py").write_text(f"NAME = {name!r}\n")
        code = "from llm_do import entry\nimport helper_of_both\n\n@entry\ndef who() -> str:\n"
        (tmp_path / name / "tools.py").write_text(f"{code}    return helper_of_both.NAME\n")
        assert run_worker(registry=WorkerRegistry(tmp_path / name), worker="who").output == name


# -- arguments -----------------------------------------------------------------------------------------------------

KEEPS = """
from typing import Any
from llm_do import entry

@entry
def keep(data: Any, n: int = 0) -> Any:
    return [data, n]

def plain() -> None: ...
"""


def test_a_mapping_of_input_data_is_the_arguments_by_name(make: Make) -> None:
    registry = make({"tools.py": KEEPS})
    assert run_worker(registry=registry, worker="keep", input_data={"data": 5, "n": 3}).output == [5, 3]
    with pytest.raises(ArgumentError, match=r'write {"data": {\.\.\.}}\.$'):
        run_worker(registry=registry, worker="keep", input_data={"topic": "tea"})


def test_an_instance_of_the_input_type_is_the_arguments_for_every_caller(make: Make) -> None:
    registry = seams(
        make,
        **{
            "workers/b.yaml": "input: 'schemas.py:Deck'\ninstructions: b\n",
            "schemas.py": SCHEMAS,
            "workers/b.md": "",
        },
    )
    (registry.root / "workers/b.md").unlink()
    deck = registry.code.object("schemas.py:Deck")(deck="acme")
    result = run_worker(registry=registry, worker="b", input_data=deck, cli_model=scripted(says("ok")))
    assert result.trace[0].input_data == {"deck": "acme"}

    async def delegate(ctx: Context) -> Any:
        return await RuntimeDelegator(ctx).call_async("b", deck, [])

    assert run_seam(registry, "seam", delegate).trace[-1].input_data == {"deck": "acme"}


def test_a_worker_input_is_delegated_as_it_was_given(make: Make) -> None:
    """Attachments that it was not given are not among it."""
    registry = seams(make)

    async def delegate(ctx: Context) -> Any:
        return await RuntimeDelegator(ctx).call_async("b", WorkerInput(input="hi"), [])

    assert run_seam(registry, "seam", delegate).trace[-1].input_data == {"input": "hi"}


@pytest.mark.parametrize("how", ["run_worker", "worker_call"])
def test_attachments_of_a_record_are_data_and_files_go_beside_them(make: Make, how: str) -> None:
    registry = make(
        {
            "workers/a.yaml": "allow_workers: [b]\nsandbox: {paths: {in: {root: in}}}\ninstructions: x\n",
            "workers/b.yaml": "tools: [look]\ninstructions: x\n",
            "tools.py": LOOK,
            "in/a.txt": "alpha",
            "in/secret.txt": "TOP SECRET",
        }
    )
    record = {"subject": "hi", "attachments": ["in/secret.txt", str(registry.root / "in/secret.txt")]}
    shown: list[Any] = []

    def step(messages: list[ModelMessage], info: Any) -> ModelResponse:
        if tool_results(messages):
            return last_result(messages, info)
        if "look" in [tool.name for tool in info.function_tools]:
            shown.append(messages[0].parts[0].content)  # type: ignore[union-attr]
            return calls(("look", {}))
        return calls(("worker_call", {"worker": "b", "input_data": record, "attachments": ["in/a.txt"]}))

    if how == "run_worker":
        result = run_worker(
            registry=registry,
            worker="b",
            input_data=record,
            attachments=[AttachmentPayload("in/a.txt", b"alpha")],
            cli_model=scripted(step),
        )
    else:
        result = run_worker(registry=registry, worker="a", input_data="go", cli_model=scripted(step))
    assert result.output == "in/a.txt=b'alpha'"
    text, file = shown[0]
    assert json.loads(text) == record
    assert file.data == b"alpha"
    assert "TOP SECRET" not in str(result.messages)


def test_attachments_cannot_be_hidden_in_the_input_from_the_policy(make: Make) -> None:
    registry = make({"workers/b.yaml": "attachment_policy: {max_attachments: 0}\ninstructions: x\n"})
    content = AttachmentPayload("a.txt", b"alpha").content()
    for hidden in (
        {"input": "x", "attachments": ["a.txt"]},
        {"topic": "x", "attachments": [content]},
        WorkerInput(input="x", attachments=[content]),
    ):
        with pytest.raises(PathDenied):
            run_worker(registry=registry, worker="b", input_data=hidden, cli_model=scripted(says("never")))


def test_a_model_delegates_to_a_worker_without_input_and_is_told_of_a_blank_one(make: Make) -> None:
    registry = make(
        {
            "workers/a.yaml": "allow_workers: [b, c]\ninstructions: x\n",
            "workers/b.yaml": "input: none\ninstructions: b\n",
            "workers/c.md": "c",
        }
    )
    asked = calls(("worker_call", {"worker": "b"}), ("worker_call", {"worker": "c", "input_data": " "}))

    def step(messages: list[ModelMessage], info: Any) -> ModelResponse:
        if not info.function_tools:
            return says("b did it")
        return says("|".join(map(str, tool_results(messages)))) if tool_results(messages) else asked

    result = run_worker(registry=registry, worker="a", input_data="go", cli_model=scripted(step))
    assert "b did it" in result.output
    assert "argument 'input' is blank" in result.output
    assert sorted(record.name for record in result.trace) == ["a", "b", "worker_call", "worker_call"]


def test_the_seams_name_their_async_forms(make: Make) -> None:
    registry = seams(make, **{"workers/a.yaml": "tools: [seam]\ntoolsets: [worker_create]\nallow_workers: [b]\n"})

    async def create(ctx: Context) -> Any:
        with pytest.raises(EventLoopError, match=r"await RuntimeCreator\(ctx.deps\).create_async"):
            RuntimeCreator(ctx).create("poet", "Write.")
        with pytest.raises(EventLoopError, match="await call_worker_async"):
            call_worker(registry=registry, worker="b", input_data="x", caller_context=ctx)
        return (await RuntimeCreator(ctx).create_async("poet", "Write."))["name"]

    assert run_seam(registry, "seam", create, approval_callback=approve_all_callback).output == "poet"


def test_a_function_without_entry_is_named_with_its_line(make: Make) -> None:
    registry = make({"tools.py": KEEPS, "workers/a.yaml": "tools: [plain]\ninstructions: x\n"})
    for name, error in (("plain", KeyError), ("a", WorkerFileError)):
        with pytest.raises(error, match=r"The function at tools.py:9 has no @entry: write @entry above it\."):
            run_worker(registry=registry, worker=name, input_data="x")
    with pytest.raises(KeyError, match="tools.py:9 has no @entry"):
        Runtime(registry).call_sync("plain")


def test_a_worker_file_makes_an_answer_that_was_cut_off_an_error(make: Make) -> None:
    """Also the file of a worker that a model made: it gives no right. A model that makes one cannot say it."""
    registry = make(
        {
            "workers/lenient.md": "Write.",
            "workers/strict.md": "---\non_cut_off: error\n---\nWrite.",
            "workers/generated/made.yaml": "created_by: (project)\non_cut_off: error\n",
        }
    )
    half = FunctionModel(lambda messages, info: replace(says("half an"), finish_reason="length"))
    assert run_worker(registry=registry, worker="lenient", input_data="x", cli_model=half).output == "half an"
    for name in ("strict", "made"):
        with pytest.raises(AnswerCutOff, match=f"^{name}: an answer of model .* was cut off: the model's own limit"):
            run_worker(registry=registry, worker=name, input_data="x", cli_model=half)
    with pytest.raises(ValidationError, match="on_cut_off"):
        WorkerSpec.model_validate({"name": "w", "instructions": "", "on_cut_off": "error"})
