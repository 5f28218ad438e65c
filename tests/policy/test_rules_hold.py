"""Ways around rules that were found once, and are closed."""

import asyncio
from dataclasses import dataclass
from datetime import date
from pathlib import Path
from typing import Annotated, Any
from uuid import UUID

import pytest
from pydantic import BaseModel, Field, HttpUrl
from pydantic.dataclasses import dataclass as pydantic_dataclass
from pydantic_ai import RunContext, Tool
from pydantic_ai.capabilities import Toolset
from pydantic_ai.models.function import FunctionModel
from pydantic_ai.toolsets import FunctionToolset
from typing_extensions import TypedDict

from llm_do import (
    FILE_TOOLS,
    ApprovalDecision,
    ApprovalDenied,
    ApprovalRequest,
    Context,
    ProjectCodeError,
    RootConfig,
    RuleError,
    RunEnded,
    Runtime,
    SandboxConfig,
    Secret,
    ToolEntry,
    ToolRule,
    WorkerCreationDefaults,
    WorkerEntry,
    WorkerFileError,
    WorkerRegistry,
    approve_all_callback,
    entry,
)
from llm_do.toolsets.delegation import worker_call
from llm_do.toolsets.shell import shell

from ..scripted import by_tools, calls, says, scripted, tool_results


def roots(**paths: Any) -> SandboxConfig:
    return SandboxConfig(paths={name: RootConfig(**config) for name, config in paths.items()})


async def results(worker: WorkerEntry[Any], **options: Any) -> list[str]:
    runtime = Runtime([worker], **options)
    await runtime.call(worker, "go")
    return [str(each) for each in tool_results(runtime.messages)]


def worker(tools: Any, *steps: Any, **options: Any) -> WorkerEntry[Any]:
    return WorkerEntry(
        name="w", instructions="x", tools=tools, model=scripted(*map(calls, steps), says("done")), **options
    )


# -- names of arguments ------------------------------------------------------------------------------------


class Order(BaseModel):
    amount: int = 1


class Typed(TypedDict):
    amount: int


@pydantic_dataclass
class Aliased:
    amount: int = Field(default=0, alias="Amount")


@dataclass
class Plain:
    amount: Annotated[int, Field(alias="Amount")] = 0


async def order(what: Aliased) -> str:
    return f"ran {what.amount}"


async def take(what: Plain) -> str:
    return f"ran {what.amount}"


async def pay(amount: Annotated[int, Field(alias="sum")] = 1) -> str:
    return f"ran {amount}"


async def buy(order: Order) -> str:
    return f"ran {order.amount}"


async def get(order: Typed) -> str:
    return f"ran {order['amount']}"


@pytest.mark.parametrize(
    ("function", "name", "given", "as_toolset"),
    [
        (pay, "sum", {"sum": 1000}, False),
        (pay, "amount", {"sum": 1000}, False),
        (buy, "amount", {"amount": 1000}, False),
        (get, "amount", {"amount": 1000}, False),
        (order, "Amount", {"Amount": 1000}, False),
        (take, "Amount", {"Amount": 1000}, False),
        # Of somebody else's tool only the schema is known, and so only the names in it.
        (pay, "sum", {"sum": 1000}, True),
        (buy, "amount", {"amount": 1000}, True),
        (get, "amount", {"amount": 1000}, True),
        (order, "Amount", {"Amount": 1000}, True),
        (take, "Amount", {"Amount": 1000}, True),
    ],
)
async def test_a_rule_is_about_the_value_whatever_its_name_is(
    function: Any, name: str, given: dict[str, Any], as_toolset: bool
) -> None:
    rules = {function.__name__: {"rule": "deny", "when": {name: {"over": 100}}}}
    small = dict.fromkeys(given, 5)

    def toolset(ctx: Context) -> Any:
        made: FunctionToolset[Any] = FunctionToolset()
        made.add_function(function)
        return made

    options: Any = {"toolsets": [toolset]} if as_toolset else {}
    tools = [] if as_toolset else [entry(function)]
    said = await results(
        worker(tools, (function.__name__, given), (function.__name__, small), tool_rules=rules, **options)
    )
    assert "ran" not in said[0]
    # Of somebody else's tool with other names than its schema nobody can tell, and doubt counts against the call.
    assert said[1] == "ran 5" or (as_toolset and function is pay)


async def test_a_worker_with_an_alias_is_judged_by_its_value() -> None:
    class Input(BaseModel):
        amount: int = Field(1, alias="sum")

    inner = WorkerEntry(name="inner", input_type=Input, model=scripted(says("ran")))
    outer = worker(
        [inner], ("inner", {"sum": 1000}), tool_rules={"inner": {"rule": "deny", "when": {"sum": {"over": 9}}}}
    )
    assert "ran" not in (await results(outer))[0]


async def test_whoever_edits_sees_the_names_that_can_be_written() -> None:
    tool = entry(requires_approval=True)(pay)

    class Person:
        def ask(self, request: ApprovalRequest) -> ApprovalDecision:
            return ApprovalDecision(approved=True, arguments={**request.arguments, "amount": 7})

    assert await Runtime([tool], approval_callback=Person()).call("pay", {"sum": 5}) == "ran 7"


async def test_a_marked_argument_with_an_alias_is_hidden() -> None:
    @entry(requires_approval=True)
    async def login(token: Annotated[str, Secret, Field(alias="tok")]) -> str:
        return "in"

    seen: list[Any] = []

    def ask(name: str, payload: dict[str, Any], reason: str) -> ApprovalDecision:
        seen.append(payload)
        return ApprovalDecision(approved=True)

    runtime = Runtime([login], approval_callback=ask)
    await runtime.call(login, {"tok": "tok-AAAA"})
    assert "AAAA" not in repr(seen)
    assert "AAAA" not in repr(runtime.trace[0].input_data)


async def test_a_bare_schema_is_held_to_before_its_values_are_judged() -> None:
    got: list[Any] = []

    async def run(**given: Any) -> str:
        got.append(given)
        return "ran"

    schema = {"type": "object", "properties": {"amount": {"type": "integer"}, "force": {"type": "boolean"}}}
    tool = ToolEntry[str](Tool.from_schema(run, "pay", "d", schema))
    rules = {"pay": [{"rule": "deny", "when": {"amount": {"over": 100}}}, {"rule": "deny", "when": {"force": True}}]}
    steps = [
        ("pay", given) for given in ({"amount": "1000"}, {"amount": 5, "force": "true"}, {"amount": 5, "force": 1})
    ]
    await results(worker([tool], *steps, tool_rules=rules))
    assert not got


@pytest.mark.parametrize(
    ("annotation", "condition", "hit", "miss"),
    [
        (HttpUrl, {"prefix": "https://example.com/"}, "https://example.com/a", "https://evil.com/"),
        (date, "2024-01-01", "2024-01-01", "2024-01-02"),
        (UUID, "12345678-1234-5678-1234-567812345678", "12345678-1234-5678-1234-567812345678", str(UUID(int=1))),
    ],
)
def test_parsed_values_are_compared_as_they_are_written(annotation: Any, condition: Any, hit: str, miss: str) -> None:
    async def use(what: Any) -> str:
        return "ran"

    use.__annotations__["what"] = annotation
    runtime = Runtime([entry(use)], tool_rules={"use": {"rule": "deny", "when": {"what": condition}}})
    assert runtime.why("use", {"what": hit}).disposition == "deny"
    assert runtime.why("use", {"what": miss}).disposition == "allow"


# -- places ------------------------------------------------------------------------------------------------------


async def test_a_root_inside_of_another_ones_does_not_follow_a_symlink_that_was_put_there(tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "secret").write_text("SECRET")
    base = tmp_path / "project"
    (base / "data/inbox").mkdir(parents=True)
    moves = [("shell", {"command": c}) for c in ("mv data/inbox data/old", f"ln -s {outside} data/inbox")]
    attacker = worker(
        [shell], *moves, sandbox=roots(data={"root": "data", "mode": "rw"}), base=base, tool_rules={"shell": "allow"}
    )
    await results(attacker)
    assert (base / "data/inbox").is_symlink()
    steps = [("read_file", {"path": "inbox/secret"}), ("write_file", {"path": "inbox/secret", "content": "x"})]
    victim = worker([*FILE_TOOLS], *steps, sandbox=roots(inbox={"root": "data/inbox", "mode": "rw"}), base=base)
    assert "SECRET" not in str(await results(victim, approval_callback=approve_all_callback))
    assert (outside / "secret").read_text() == "SECRET"


@pytest.mark.parametrize("pattern", ["./data/**", "{base}/link/data/**", "data/**"])
async def test_a_path_in_a_rule_is_where_it_really_is(tmp_path: Path, pattern: str) -> None:
    (tmp_path / "real/data").mkdir(parents=True)
    (tmp_path / "real/data/s.txt").write_text("SECRET")
    (tmp_path / "link").symlink_to("real")
    rules = {"sandbox.read": {"rule": "deny", "when": {"path": pattern.format(base=tmp_path)}}}
    sandbox = roots(data={"root": "data"})
    reader = worker(
        [*FILE_TOOLS], ("read_file", {"path": "data/s.txt"}), sandbox=sandbox, base=tmp_path / "link", tool_rules=rules
    )
    assert "SECRET" not in str(await results(reader))


def test_a_path_with_dots_in_a_rule_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(RuleError, match="write the path that it leads to"):
        worker([*FILE_TOOLS], tool_rules={"sandbox.read": {"rule": "deny", "when": {"path": "./x/../data/**"}}})


async def test_who_must_not_read_a_file_cannot_move_edit_or_attach_it(tmp_path: Path) -> None:
    (tmp_path / "data/secret").mkdir(parents=True)
    (tmp_path / "data/secret/s.txt").write_text("SECRET")
    seen: list[str] = []

    def look(messages: Any, info: Any) -> Any:
        seen.append(repr(messages))
        return says("ok")

    echo = WorkerEntry(name="echo", model=scripted(look))
    steps = [
        ("move_file", {"source": "data/secret/s.txt", "destination": "data/o.txt"}),
        ("edit_file", {"path": "data/secret/s.txt", "old": "SEC", "new": "x"}),
        ("worker_call", {"worker": "echo", "input_data": "say it", "attachments": ["data/secret/s.txt"]}),
    ]
    rules = {"sandbox.read": {"rule": "deny", "when": {"path": "data/secret/**"}}, "sandbox.write": "allow"}
    sandbox = roots(data={"root": "data", "mode": "rw"})
    thief = worker(
        [*FILE_TOOLS, worker_call], *steps, sandbox=sandbox, base=tmp_path, tool_rules=rules, allow_workers=["echo"]
    )
    runtime = Runtime([thief, echo])
    await runtime.call(thief, "go")
    assert [record.approval.approved for record in runtime.trace if record.approval] == [False] * 3
    assert not seen
    assert (tmp_path / "data/secret/s.txt").read_text() == "SECRET"


async def test_a_file_that_appears_while_somebody_is_asked_is_not_searched(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    (tmp_path / "data/a.txt").write_text("k: fine")
    rules = {"sandbox.read": [{"rule": "deny", "when": {"path": "data/secret/**"}}, "ask"]}

    def ask(name: str, payload: dict[str, Any], reason: str) -> ApprovalDecision:
        (tmp_path / "data/secret").mkdir(exist_ok=True)
        (tmp_path / "data/secret/s.txt").write_text("k: SECRET")
        return ApprovalDecision(approved=True)

    for tool, given in (("search_files", {"text": "k", "pattern": "data/**"}), ("find_files", {"pattern": "data/**"})):
        searcher = worker(
            [*FILE_TOOLS], (tool, given), sandbox=roots(data={"root": "data"}), base=tmp_path, tool_rules=rules
        )
        (said,) = await results(searcher, approval_callback=ask)
        assert "a.txt" in said
        assert "s.txt" not in said
        (tmp_path / "data/secret/s.txt").unlink()


# -- who calls ---------------------------------------------------------------------------------------------------


async def test_what_is_said_of_a_creator_holds_for_what_it_creates(tmp_path: Path) -> None:
    files = {
        "tools.py": "from llm_do import entry\n\n@entry\ndef pay(amount: int) -> str:\n    return f'PAID {amount}'\n",
        "llm-do.toml": '[tool_rules]\npay = {rule = "deny", when = {"call.caller" = "intern"}}\n',
        "workers/intern.yaml": (
            "tools: [pay]\ntoolsets: [worker_create]\nallow_workers: ['*']\ntool_rules: {worker.create: allow}\n"
        ),
    }
    for path, text in files.items():
        (tmp_path / path).parent.mkdir(exist_ok=True)
        (tmp_path / path).write_text(text)
    intern = scripted(
        calls(("worker_create", {"name": "x", "instructions": "pay", "tools": ["pay"]})),
        calls(("worker_call", {"worker": "x", "input_data": "go"})),
        says("done"),
    )
    child = by_tools({"pay": calls(("pay", {"amount": 9}))})

    def model(messages: Any, info: Any) -> Any:
        names = {tool.name for tool in info.function_tools}
        return (intern if "worker_create" in names else child).function(messages, info)

    runtime = Runtime(WorkerRegistry(tmp_path), model=scripted(model))
    await runtime.call("intern", "go")
    assert [record.name for record in runtime.trace] == ["intern", "worker_create", "worker_call", "x", "pay"]
    assert "PAID" not in str(runtime.messages)


async def test_a_grant_with_one_generated_worker_is_none_with_another() -> None:
    @entry(requires_approval=True)
    async def wipe() -> str:
        return "wiped"

    asked: list[str] = []

    def ask(name: str, payload: dict[str, Any], reason: str) -> ApprovalDecision:
        asked.append(reason)
        return ApprovalDecision(approved=True, approve_for_session=True)

    helper = WorkerEntry(name="helper", tools=[wipe], model=by_tools({"wipe": calls(("wipe", {}))}))
    made = [
        WorkerEntry(
            name=n, generated=True, tools=[helper], model=by_tools({"helper": calls(("helper", {"input": "x"}))})
        )
        for n in ("one", "two")
    ]
    runtime = Runtime(made, approval_callback=ask)
    for each in (*made, *made):
        await runtime.call(each, "go")
    assert len(asked) == 2


async def test_ending_a_run_ends_what_goes_on_beside_it() -> None:
    log: list[Any] = []

    @entry(requires_approval=True)
    async def danger() -> str:
        return "ran"

    @entry
    async def side(number: int) -> int:
        log.append(number)
        return number

    @entry
    async def one(ctx: RunContext[Context]) -> str:
        await asyncio.sleep(0.03)
        return await ctx.deps.call(danger)

    @entry
    async def other(ctx: RunContext[Context]) -> None:
        for number in range(10):
            await ctx.deps.call(side, number)
            await asyncio.sleep(0.02)

    @entry
    async def top(ctx: RunContext[Context]) -> list[Any]:
        return await asyncio.gather(ctx.deps.call(one), ctx.deps.call(other), return_exceptions=True)

    def stop(name: str, payload: dict[str, Any], reason: str) -> ApprovalDecision:
        log.append("ended")
        return ApprovalDecision(approved=False, end_run=True)

    outcome = await Runtime([top], approval_callback=stop).call(top)
    assert isinstance(outcome[0], RunEnded)
    assert log[-1] == "ended"


# -- what opens more than an allow -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "command", ["out/docker ps", "./docker ps", "timeout 5 docker ps", "docker ps | cat", "docker  ps -a"]
)
def test_only_the_very_command_is_unsandboxed_also_by_a_rule_that_asks(command: str, tmp_path: Path) -> None:
    rule = {"rule": "ask", "when": {"command": "docker ps"}, "unsandboxed": True}
    made = worker([shell], sandbox=roots(out={"root": "out", "mode": "rw"}), base=tmp_path, tool_rules={"shell": rule})
    runtime = Runtime([made])
    assert runtime.why("shell", {"command": "docker ps"}, worker="w").unsandboxed
    assert not runtime.why("shell", {"command": command}, worker="w").unsandboxed


@pytest.mark.parametrize(
    "make",
    [
        lambda: ToolRule("allow", unsandboxed=True),
        lambda: ToolRule("maybe"),  # type: ignore[arg-type]
        lambda: ToolRule("deny", when={"call.dept": 1}),
        lambda: ToolRule("deny", when={"x": []}),
        lambda: ToolRule("deny", when={"x": {"above": 1}}),
        lambda: ToolRule("deny", shell=True),
    ],
)
def test_a_rule_made_in_python_is_checked_like_any_other(make: Any) -> None:
    with pytest.raises(RuleError):
        make()


@pytest.mark.parametrize(
    "command",
    [
        "prlimit rm f",
        "setarch x86_64 rm f",
        "linux64 rm f",
        "/usr/bin/time rm f",
        "fakeroot rm f",
        "valgrind rm f",
        "ssh-agent rm f",
    ],
)
def test_a_deny_sees_through_more_programs(command: str, tmp_path: Path) -> None:
    rules = {"shell": [{"rule": "deny", "when": {"command": "rm **"}}, "allow"]}
    made = worker([shell], sandbox=roots(out={"root": "out", "mode": "rw"}), base=tmp_path, tool_rules=rules)
    assert Runtime([made]).why("shell", {"command": command}, worker="w").disposition == "deny"
    assert Runtime([made]).why("shell", {"command": "rbash -c 'rm f'"}, worker="w").disposition == "deny"


# -- rules that cannot be meant, and those that can -----------------------------------------------------------------


async def test_a_rule_on_a_tool_of_a_capability_holds() -> None:
    toolset: FunctionToolset[Any] = FunctionToolset()

    @toolset.tool_plain
    def wipe(x: int) -> str:
        return "WIPED"

    made = worker([], ("wipe", {"x": 1}), capabilities=[Toolset(toolset)], tool_rules={"wipe": "deny"})
    assert "WIPED" not in str(await results(made))


def test_rules_of_a_session_of_a_project_are_checked(tmp_path: Path) -> None:
    (tmp_path / "workers").mkdir()
    (tmp_path / "workers/a.md").write_text("x")
    registry = WorkerRegistry(tmp_path)
    for rules in ({"nonsense": "deny"}, {"a": {"rule": "deny", "when": {"call.caller": "bb"}}}):
        with pytest.raises(ValueError, match="there is no"):
            Runtime(registry, tool_rules=rules)
    with pytest.raises(ValueError, match="worker: there is no 'hepler'"):
        Runtime(registry, tool_rules={"worker.call": {"rule": "deny", "when": {"worker": "hepler"}}})


async def test_rules_of_the_project_hold_in_every_session_of_it(tmp_path: Path) -> None:
    (tmp_path / "tools.py").write_text("from llm_do import entry\n\n@entry\ndef pay() -> str:\n    return 'PAID'\n")
    (tmp_path / "llm-do.toml").write_text("[tool_rules]\npay = 'deny'\n")
    for options in ({}, {"tool_rules": {"pay": "allow"}}):
        with pytest.raises(ApprovalDenied, match=r"llm-do.toml says pay: deny \(llm-do.toml:2\)"):
            await Runtime(WorkerRegistry(tmp_path), **options).call("pay")  # type: ignore[arg-type]


def test_the_line_is_that_of_the_rule_which_is_wrong(tmp_path: Path) -> None:
    (tmp_path / "workers").mkdir()
    text = "tool_rules:\n  sandbox.read:\n  - ask\n  - {rule: deny, when: {path: nowhere/x}}\ninstructions: x\n"
    (tmp_path / "workers/a.yaml").write_text(text)
    with pytest.raises(WorkerFileError, match="workers/a.yaml:4: sandbox.read: 'nowhere/x' starts with no root"):
        WorkerRegistry(tmp_path)["a"]


async def test_defaults_for_created_workers_that_cannot_be_meant_are_told_to_the_model(tmp_path: Path) -> None:
    (tmp_path / "workers").mkdir()
    (tmp_path / "workers/boss.yaml").write_text("toolsets: [worker_create]\ntool_rules: {worker.create: allow}\n")
    defaults = WorkerCreationDefaults(
        default_tool_rules={"sandbox.write": {"rule": "deny", "when": {"path": "out/**"}}}  # type: ignore[dict-item]
    )
    model = scripted(calls(("worker_create", {"name": "x", "instructions": "x"})), says("went on"))
    runtime = Runtime(WorkerRegistry(tmp_path), model=model, creation_defaults=defaults)
    assert await runtime.call("boss", "go") == "went on"
    assert not (tmp_path / "workers/generated/x.yaml").exists()


def test_a_number_of_any_size_is_a_number() -> None:
    Runtime(tool_rules={"x": {"rule": "deny", "when": {"a": {"over": 10**400}}}})


def test_code_in_a_root_that_can_be_written_is_an_error(tmp_path: Path) -> None:
    for path, text in {
        "workers/a.yaml": "sandbox: {paths: {lib: {root: lib, mode: rw}}}\ninstructions: x\n",
        "workers/b.yaml": "toolsets: ['lib/x.py:make']\ninstructions: x\n",
        "lib/x.py": "def make(ctx):\n    raise RuntimeError\n",
    }.items():
        (tmp_path / path).parent.mkdir(exist_ok=True)
        (tmp_path / path).write_text(text)
    with pytest.raises(ProjectCodeError, match="lib/x.py is not run: workers can change what is in lib/"):
        WorkerRegistry(tmp_path)["b"]


# -- secrets in what is asked, and in what is streamed ----------------------------------------------------------------


async def test_a_request_has_no_secret_in_any_of_its_words(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MY_SECRET", "hunter2secret")
    asked: list[str] = []

    class Person:
        def ask(self, request: ApprovalRequest) -> ApprovalDecision:
            asked.append(request.text(full=True) + repr(request) + repr([offer.text for offer in request.offers]))
            return ApprovalDecision(approved=False)

    steps = [
        ("shell", {"command": "echo hunter2secret | wc"}),
        ("shell", {"command": "login hunter2secret"}),
        ("write_file", {"path": "data/hunter2secret/x", "content": "hunter2secret"}),
    ]
    sandbox = roots(data={"root": "data", "mode": "rw"})
    made = worker([*FILE_TOOLS, shell], *steps, sandbox=sandbox, base=tmp_path, tool_rules={"shell": "ask"})
    await results(made, approval_callback=Person(), secrets=["MY_SECRET"])
    assert len(asked) == 3
    assert "hunter2secret" not in "".join(asked)


async def test_a_secret_that_comes_in_pieces_is_not_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PIECES", "hunter2secret")

    async def stream(messages: Any, info: Any) -> Any:
        for piece in ("it is hun", "ter2", "secret, ", "and more of the same: hunter2", "secret"):
            yield piece

    told: list[str] = []
    made = WorkerEntry(name="w", model=FunctionModel(stream_function=stream))
    runtime = Runtime(
        [made],
        secrets=["PIECES"],
        text_deltas=True,
        message_callback=lambda event: told.append(event.text) if event.type == "text_delta" else None,
    )
    await runtime.call("w", "go")
    assert "".join(told) == "it is [secret PIECES], and more of the same: [secret PIECES]"
