"""Grants that outlive their session hold for the same worker, tool, rule and arguments, and for no double of them."""

import json
import os
import subprocess
import sys
import textwrap
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from types import FunctionType
from typing import Annotated, Any

import pytest
from pydantic import BaseModel
from pydantic_ai import RunContext, Tool
from pydantic_ai.capabilities import Toolset
from pydantic_ai.toolsets import AbstractToolset, FunctionToolset

from llm_do import (
    FILE_TOOLS,
    ApprovalDecision,
    ApprovalDenied,
    ApprovalRequest,
    Context,
    RootConfig,
    Runtime,
    SandboxConfig,
    Secret,
    ToolEntry,
    WorkerEntry,
    WorkerRegistry,
)
from llm_do.core.definition_digest import ToolOfToolset, definition_key
from llm_do.definitions.toolsets import McpServer, McpToolset
from llm_do.policy.approvals import ApprovalController
from llm_do.policy.plan import Plan
from llm_do.policy.rules import Call, Case, Grant, Places, Ruling
from llm_do.sandbox import FileState, Pins
from llm_do.toolsets.delegation import worker_call
from llm_do.toolsets.mcp.toolset import McpFactory
from llm_do.values.canonical import NoCanonicalForm, SameObject, digest_of_key

from ..scripted import calls, says, scripted

ALWAYS = ApprovalDecision(approved=True, approve_for_session=True)
NO = ApprovalDecision(approved=False)


class Person:
    """Answers, and counts the questions."""

    def __init__(self, answer: Callable[[ApprovalRequest], ApprovalDecision] = lambda request: ALWAYS) -> None:
        self.answer = answer
        self.asked = 0

    def ask(self, request: ApprovalRequest) -> ApprovalDecision:
        self.asked += 1
        return self.answer(request)


def accept_offer(request: ApprovalRequest) -> ApprovalDecision:
    return ApprovalDecision(approved=True, grant=request.offers[0])


def stored(runtime: Runtime) -> list[Any]:
    """What a journal would have of the grants of a session."""
    data: list[Any] = json.loads(json.dumps([asdict(grant) for grant in controller(runtime).stored_grants()]))
    return data


def controller(runtime: Runtime) -> ApprovalController:
    return runtime.context().approval_controller


def resumed(grants: list[Any], **options: Any) -> tuple[Runtime, Person]:
    """A session to which grants were given back, and the person who refuses everything in it."""
    person = Person(lambda request: NO)
    runtime = Runtime(approval_callback=person, **options)
    controller(runtime).restore_grants(grants)
    return runtime, person


async def is_asked(runtime: Runtime, person: Person, called: Any, **arguments: Any) -> bool:
    before = person.asked
    try:
        await runtime.call(called, **arguments)
    except ApprovalDenied:
        assert person.asked == before + 1
        return True
    assert person.asked == before
    return False


def pay(amount: Any, to: str = "bob") -> str:
    return f"paid {amount} to {to}"


def pay_twice(amount: Any, to: str = "bob") -> str:
    return f"paid {amount + amount} to {to}"


pay_twice.__name__, pay_twice.__qualname__ = "pay", "pay"


def payment(function: Callable[..., str] = pay, **options: Any) -> ToolEntry[str]:
    """The same tool, as each process makes it."""
    return ToolEntry.from_function(function, requires_approval=True, **options)


async def grant_payment(**arguments: Any) -> list[Any]:
    runtime = Runtime(approval_callback=Person())
    await runtime.call(payment(), **(arguments or {"amount": 5}))
    return stored(runtime)


def payer(tool: Any = None, *, amounts: tuple[int, ...] = (5,), **options: Any) -> WorkerEntry[str]:
    model = scripted(*[calls(("pay", {"amount": amount})) for amount in amounts], says("done"))
    options = {"name": "payer", "instructions": "Pay.", "model": model, **options}
    return WorkerEntry(tools=[tool or payment()], **options)


async def grant_to(worker: WorkerEntry[str], **options: Any) -> list[Any]:
    runtime = Runtime(approval_callback=Person(**options))
    await runtime.call(worker, "go")
    return stored(runtime)


async def questions(grants: list[Any], *workers: WorkerEntry[str], **options: Any) -> int:
    """How often a person is asked when workers do in a resumed session what they did before."""
    runtime, person = resumed(grants, **options)
    for worker in workers:
        await runtime.call(worker, "go")
    return person.asked


# -- what holds again ----------------------------------------------------------------------------------


async def test_a_stored_grant_holds_in_another_session_for_the_same_arguments_only() -> None:
    runtime, person = resumed(await grant_payment())
    tool = payment()
    assert not await is_asked(runtime, person, tool, amount=5)
    assert not await is_asked(runtime, person, tool, amount=5, to="bob")
    approval = runtime.trace[0].approval
    assert approval is not None
    assert (approval.by, approval.grant) == ("grant", "exactly these arguments")
    for amount in (5.0, "5", True, [5], 6):
        assert await is_asked(runtime, person, tool, amount=amount)
    assert await is_asked(runtime, person, tool, amount=5, to="eve")


async def test_a_stored_grant_is_for_one_worker_and_one_rule() -> None:
    grants = await grant_to(payer())
    assert [grant["worker"]["name"] for grant in grants] == ["payer"]
    assert await questions(grants, payer()) == 0
    assert await questions(grants, payer(name="other")) == 1
    assert await questions(grants, payer(), tool_rules={"pay": "ask"}) == 1
    runtime, person = resumed(grants)
    assert await is_asked(runtime, person, payment(), amount=5)


async def test_grants_that_were_not_needed_are_stored_again() -> None:
    grants = await grant_payment()
    unused, _ = resumed(grants)
    assert stored(unused) == grants
    used, person = resumed(stored(unused))
    assert not await is_asked(used, person, payment(), amount=5)
    assert stored(used) == grants


def writer(tmp_path: Path, *paths: str, **options: Any) -> WorkerEntry[str]:
    return WorkerEntry(
        **{
            "name": "writer",
            "sandbox": SandboxConfig(paths={"out": RootConfig(root="out", mode="rw")}),
            "base": tmp_path,
            "tools": [*FILE_TOOLS],
            "model": scripted(*[calls(("write_file", {"path": path, "content": "x"})) for path in paths], says("done")),
            **options,
        }
    )


async def test_an_offer_holds_again_for_the_same_folder_of_the_same_root(tmp_path: Path) -> None:
    grants = await grant_to(writer(tmp_path, "out/a/1"), answer=accept_offer)
    assert [grant["text"] for grant in grants] == ["sandbox.write with path out/a/*"]
    assert await questions(grants, writer(tmp_path, "out/a/2", "out/a/3")) == 0
    assert await questions(grants, writer(tmp_path, "out/b/2", "out/a/deeper/3")) == 2
    assert await questions(grants, writer(tmp_path / "elsewhere", "out/a/2")) == 1
    other_root = SandboxConfig(paths={"out": RootConfig(root="other", mode="rw")})
    assert await questions(grants, writer(tmp_path, "out/a/2", sandbox=other_root)) == 1


async def test_an_offer_ends_when_its_root_leads_elsewhere(tmp_path: Path) -> None:
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
    link = tmp_path / "link"
    sandbox = SandboxConfig(paths={"out": RootConfig(root=str(link), mode="rw")})
    link.symlink_to("one")
    grants = await grant_to(writer(tmp_path, "out/a/1", sandbox=sandbox), answer=accept_offer)
    assert await questions(grants, writer(tmp_path, "out/a/2", sandbox=sandbox)) == 0
    link.unlink()
    link.symlink_to("two")
    assert await questions(grants, writer(tmp_path, "out/a/2", sandbox=sandbox)) == 1


async def test_a_grant_of_a_generated_worker_is_stored_for_its_definition() -> None:
    grants = await grant_to(payer(generated=True))
    assert [[each["name"] for each in grant["generated"]] for grant in grants] == [["payer"]]
    assert await questions(grants, payer(generated=True)) == 0
    assert await questions(grants, payer()) == 1
    assert await questions(grants, payer(generated=True, instructions="Pay all.")) == 1
    assert await questions(await grant_to(payer()), payer(generated=True)) == 1


async def test_a_grant_below_a_generated_worker_is_for_that_one() -> None:
    def chief(instructions: str) -> WorkerEntry[str]:
        model = scripted(calls(("payer", {"input": "x"})), says("done"))
        return WorkerEntry(name="chief", instructions=instructions, generated=True, tools=[payer()], model=model)

    grants = await grant_to(chief("Lead."))
    assert await questions(grants, chief("Lead.")) == 0
    assert await questions(grants, chief("Mislead.")) == 1
    assert await questions(grants, payer()) == 1


DESCRIPTIONS = {"send": "Send a mail."}


def make_mail(ctx: Context) -> AbstractToolset[Any]:
    toolset: FunctionToolset[Any] = FunctionToolset()
    toolset.add_function(lambda: "sent", name="send", description=DESCRIPTIONS["send"], requires_approval=True)
    return toolset


@dataclass(frozen=True)
class MailFactory:
    account: str

    def __call__(self, ctx: Context) -> AbstractToolset[Any]:
        return make_mail(ctx)


def make_other_mail(ctx: Context) -> AbstractToolset[Any]:
    return make_mail(ctx)


def sender(factory: Any) -> WorkerEntry[str]:
    return WorkerEntry(name="w", toolsets=[factory], model=scripted(calls(("send", {})), says("ok")))


async def test_a_grant_for_a_tool_of_a_toolset_is_for_its_factory_and_its_description(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    grants = await grant_to(sender(make_mail))
    assert [grant["entry"]["name"] for grant in grants] == ["send"]
    assert await questions(grants, sender(make_mail)) == 0
    assert await questions(grants, sender(make_other_mail)) == 1
    monkeypatch.setitem(DESCRIPTIONS, "send", "Send it to all.")
    assert await questions(grants, sender(make_mail)) == 1
    connection = object()
    assert await grant_to(sender(lambda ctx: make_mail(ctx) if connection else None)) == []


async def test_a_factory_counts_with_its_defaults_its_fields_and_the_code_of_its_class() -> None:
    def function(account: str) -> Any:
        return lambda ctx, account=account: make_mail(ctx)

    def keyword(account: str) -> Any:
        return partial(lambda ctx, *, account: make_mail(ctx), account=account)

    def fields(account: str) -> Any:
        return MailFactory(account)

    for make in (function, keyword, fields):
        grants = await grant_to(sender(make("mine")))
        assert await questions(grants, sender(make("mine"))) == 0
        assert await questions(grants, sender(make("yours"))) == 1

    @dataclass(frozen=True)
    class Changed:
        account: str

        def __call__(self, ctx: Context) -> AbstractToolset[Any]:
            return make_other_mail(ctx)

    Changed.__qualname__ = "MailFactory"
    assert await questions(grants, sender(Changed("mine"))) == 1


async def test_grants_of_a_project_hold_again_until_its_files_change(tmp_path: Path) -> None:
    (tmp_path / "workers").mkdir()
    (tmp_path / "llm-do.toml").write_text("")
    tools, worker = tmp_path / "tools.py", tmp_path / "workers/cleaner.md"
    tools.write_text("from llm_do import entry\n@entry(effects=['write'])\ndef wipe(place: str): return 'clean'\n")
    worker.write_text("---\ntools: [wipe]\nsandbox: {paths: {out: {root: out}}}\n---\nClean.\n")
    step = calls(("wipe", {"place": "floor"}))

    async def run(grants: list[Any], answer: ApprovalDecision) -> tuple[list[Any], int]:
        person = Person(lambda request: answer)
        runtime = Runtime(WorkerRegistry(tmp_path), model=scripted(step, says("done")), approval_callback=person)
        controller(runtime).restore_grants(grants)
        await runtime.call("cleaner", "go")
        return stored(runtime), person.asked

    grants, asked = await run([], ALWAYS)
    assert asked == 1
    assert await run(grants, NO) == (grants, 0)
    worker.write_text(worker.read_text() + "Really.\n")
    assert (await run(grants, NO))[1] == 1
    worker.write_text(worker.read_text().removesuffix("Really.\n"))
    assert (await run(grants, NO))[1] == 0
    tools.write_text(tools.read_text().replace("'clean'", "'dirty'"))
    assert (await run(grants, NO))[1] == 1


def test_the_stored_form_is_the_same_in_every_process() -> None:
    code = textwrap.dedent(
        """
        from llm_do import Runtime, WorkerEntry, entry, ApprovalDecision
        from tests.scripted import calls, says, scripted

        def make(allowed):
            @entry(effects=["write", "network", "execute"])
            def send(word: str, kinds: frozenset[str] = frozenset({"a", "b", "c"})) -> bool:
                return word in {"d", "e", "f", *allowed}
            return send

        always = ApprovalDecision(approved=True, approve_for_session=True)
        model = scripted(calls(("send", {"word": "x"})), says("ok"))
        worker = WorkerEntry(name="w", tools=[make(frozenset({"x", "y", "z"}))], model=model)
        runtime = Runtime(approval_callback=lambda *args: always)
        runtime.call_sync(worker, "go")
        print(runtime.context().approval_controller.stored_grants())
        """
    )
    outputs = set()
    for seed in ("1", "2"):
        environ = {**os.environ, "PYTHONHASHSEED": seed}
        outputs.add(subprocess.check_output([sys.executable, "-c", code], env=environ, text=True))
    (output,) = outputs
    assert output.startswith("[StoredGrant(")


async def test_a_delegation_is_not_stored_since_its_worker_is_known_by_name_alone() -> None:
    worker = WorkerEntry(
        name="chief",
        tools=[worker_call],
        allow_workers=["payer"],
        tool_rules={"worker.call": "ask"},
        model=scripted(calls(("worker_call", {"worker": "payer", "input_data": "x"})), says("done")),
    )
    runtime = Runtime([payer()], approval_callback=Person())
    await runtime.call(worker, "go")
    assert [grant["entry"]["name"].rpartition(".")[2] for grant in stored(runtime)] == ["pay"]


# -- what has changed ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "changed",
    [
        {"instructions": "Pay anyone."},
        {"instructions": lambda: "Pay."},
        {"tool_rules": {"pay": "ask"}},
        {"model": scripted(calls(("pay", {"amount": 5})), says("done"), name="other")},
        {"creators": ("chief",)},
        {"allow_workers": ["*"]},
        {"sandbox": SandboxConfig(paths={"out": RootConfig(root="out", mode="rw")})},
        {"tool": payment(pay_twice)},
        {"tool": payment(description="Pays.")},
        {"tool": payment(rule="pay.any")},
        {"tool": payment(effects=["network"])},
        {"tool": ToolEntry(Tool(pay), requires_approval=True, plan=lambda arguments, frame: Plan())},
        {"tool": ToolEntry(Tool(pay, args_validator=lambda ctx, amount, to="bob": None), requires_approval=True)},
    ],
    ids=lambda changed: next(iter(changed)),
)
async def test_a_changed_worker_or_tool_is_asked_about(changed: dict[str, Any]) -> None:
    grants = await grant_to(payer())
    assert await questions(grants, payer(**changed)) == 1


def sign(number: int) -> str:
    return "+" if number >= 0 else "-"


def account(name: str, limits: Any = None) -> ToolEntry[str]:
    def pay(amount: int) -> str:
        return f"{name} paid {amount}, {limits}"

    return payment(pay)


async def test_what_a_function_closes_over_is_part_of_it() -> None:
    runtime = Runtime(approval_callback=Person())
    await runtime.call(account("test"), amount=5)
    grants = stored(runtime)
    again, person = resumed(grants)
    assert await is_asked(again, person, account("production"), amount=5)
    assert not await is_asked(again, person, account("test"), amount=5)


def task(text: str) -> Any:
    class Task(BaseModel):
        what: str

        def to_prompt(self) -> str:
            return f"{text} {self.what}"

    return Task


async def test_a_worker_counts_with_the_method_that_writes_its_prompt() -> None:
    def worker(text: str) -> WorkerEntry[str]:
        return WorkerEntry(name="w", input_type=task(text), requires_approval=True, model=scripted(says("done")))

    runtime = Runtime(approval_callback=Person())
    await runtime.call(worker("Read"), what="this")
    again, person = resumed(stored(runtime))
    assert await is_asked(again, person, worker("Burn"), what="this")
    assert not await is_asked(again, person, worker("Read"), what="this")


def test_an_offer_is_for_the_folders_that_its_paths_mean(tmp_path: Path) -> None:
    one, two = (Grant("sandbox.write", {"path": "out/*"}, Places({"out": tmp_path / name})) for name in ("a", "b"))
    assert one.text == two.text
    assert digest_of_key(one.key()) != digest_of_key(two.key())


async def test_what_cannot_be_told_is_not_stored() -> None:
    class Mine:
        name, kind, requires_approval, model = "mine", "tool", True, None

        async def call(self, input_data: Any, ctx: Context, run_ctx: RunContext[Context]) -> str:
            return "done"

    class Payment(ToolEntry[str]):
        pass

    runtime = Runtime(approval_callback=Person())
    await runtime.call(Mine())
    await runtime.call(account("x", object()), amount=5)
    await runtime.call(account("x", ["may change"]), amount=5)
    await runtime.call(Payment(Tool(pay), requires_approval=True), amount=5)
    await runtime.call(payment(sign), number=10**5000)
    send = [Toolset(FunctionToolset([Tool(pay, requires_approval=True)]))]
    await runtime.call(WorkerEntry(name="w", capabilities=send, model=payer().model), "go")
    assert stored(runtime) == []


CONTENT = {"script.sh": "echo"}


class ScriptPlan(Plan):
    def pins(self, ruling: Ruling) -> Pins:
        states = {path: FileState.of_content(content.encode(), 0o644) for path, content in CONTENT.items()}
        return Pins(states, exact=True)


def plan_script(arguments: dict[str, Any], frame: Any) -> Plan:
    return ScriptPlan()


async def test_a_grant_ends_with_the_content_of_the_files_that_it_is_for(monkeypatch: pytest.MonkeyPatch) -> None:
    def script() -> ToolEntry[str]:
        return ToolEntry(Tool(pay), requires_approval=True, plan=plan_script)

    runtime = Runtime(approval_callback=Person())
    await runtime.call(script(), amount=5)
    grants = stored(runtime)
    again, person = resumed(grants)
    monkeypatch.setitem(CONTENT, "script.sh", "rm -rf")
    assert await is_asked(again, person, script(), amount=5)
    monkeypatch.undo()
    same, person = resumed(grants)
    assert not await is_asked(same, person, script(), amount=5)


# -- two objects of one definition -------------------------------------------------------------------------


async def test_a_grant_holds_for_the_first_object_that_it_fits_and_for_no_second_one() -> None:
    runtime, person = resumed(await grant_payment(amount=5) + await grant_payment(amount=6))
    first, second = payment(), payment()
    assert not await is_asked(runtime, person, first, amount=5)
    assert await is_asked(runtime, person, second, amount=5)
    assert not await is_asked(runtime, person, first, amount=5)
    assert await is_asked(runtime, person, first, amount=6)
    assert stored(runtime) == []


@pytest.mark.parametrize("second_answer", [ALWAYS, ApprovalDecision(approved=True), NO])
async def test_nothing_is_stored_of_two_objects_that_have_one_definition(second_answer: ApprovalDecision) -> None:
    answers = iter([ALWAYS, second_answer])
    runtime = Runtime(approval_callback=Person(lambda request: next(answers)))
    await runtime.call(payment(), amount=5)
    assert len(stored(runtime)) == 1
    try:
        await runtime.call(payment(), amount=7)
    except ApprovalDenied:
        assert second_answer is NO
    assert stored(runtime) == []


async def test_namesakes_with_definitions_of_their_own_have_grants_of_their_own() -> None:
    runtime = Runtime(approval_callback=Person())
    for tool in (account("one"), account("two"), payment()):
        await runtime.call(tool, amount=5)
    grants = stored(runtime)
    assert len(grants) == 3
    again, person = resumed(grants)
    for tool in (account("two"), payment(), account("one")):
        assert not await is_asked(again, person, tool, amount=5)
    assert await is_asked(again, person, account("two"), amount=5)
    assert len(stored(again)) == 2


async def test_two_workers_of_one_definition_store_nothing_with_whatever_tools() -> None:
    runtime = Runtime(approval_callback=Person())
    tool = payment()
    for amount in (5, 6):
        await runtime.call(payer(tool, amounts=(amount,)), "go")
    assert stored(runtime) == []


async def test_a_double_is_a_double_also_when_its_state_has_changed() -> None:
    def counter() -> ToolEntry[str]:
        count = 0

        def pay(amount: int) -> str:
            nonlocal count
            count += 1
            return f"paid {amount}"

        return payment(pay)

    doubles, answers = (counter(), counter()), iter([NO, NO, ALWAYS, ALWAYS])
    runtime = Runtime(approval_callback=Person(lambda request: next(answers)))
    for double in doubles:
        with pytest.raises(ApprovalDenied):
            await runtime.call(double, amount=5)
    for double in doubles:
        await runtime.call(double, amount=5)
    assert stored(runtime) == []


async def test_two_workers_may_share_a_tool() -> None:
    tool, runtime = payment(), Runtime(approval_callback=Person())
    for name in ("a", "b"):
        await runtime.call(payer(tool, name=name), "go")
    grants = stored(runtime)
    shared = payment()
    assert await questions(grants, payer(shared, name="b"), payer(shared, name="a")) == 0


async def test_nothing_is_stored_where_too_many_have_asked_to_know_doubles_of_all() -> None:
    grants = await grant_payment()
    runtime = Runtime(approval_callback=Person())
    controller(runtime).restore_grants(grants)
    await runtime.call(account("one"), amount=5)
    assert len(stored(runtime)) == 2
    for number in range(500):
        function = FunctionType(sign.__code__, {})
        function.__qualname__ = f"sign_{number}"
        function.__annotations__ = {"number": int}
        await runtime.call(payment(function), number=1)
    assert stored(runtime) == []
    await runtime.call(payment(), amount=5)
    approval = runtime.trace[-1].approval
    assert approval is not None
    assert approval.by == "callback"


# -- secrets ------------------------------------------------------------------------------------------------


def log_in(user: str, password: Annotated[str, Secret] = "") -> str:
    return "welcome"


async def test_no_secret_is_stored_nor_a_digest_of_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TOKEN", "hunter2")
    runtime = Runtime(approval_callback=Person(), secrets=["TOKEN"])
    await runtime.call(payment(log_in), user="me", password="1234")
    await runtime.call(payment(), amount=1, to="account hunter2")
    await runtime.call(payment(), amount={"hunter2": b"hunter2"})
    await runtime.call(account("hunter2"), amount=5)
    await runtime.call(payer(instructions="Use hunter2."), "go")
    await runtime.call(payer(name="hunter2"), "go")
    assert stored(runtime) == []


async def test_what_becomes_known_as_secret_later_is_stored_no_more() -> None:
    tool, runtime = payment(), Runtime(approval_callback=Person())
    await runtime.call(tool, amount=1, to="sesame")
    await runtime.call(tool, amount=1, to="bob")
    assert len(stored(runtime)) == 2
    await runtime.call(payment(log_in), user="me", password="sesame")
    assert len(stored(runtime)) == 1


def test_a_server_that_gets_secrets_of_a_file_has_no_stored_grants(tmp_path: Path) -> None:
    def key_of(base: Path = tmp_path, **server: Any) -> str:
        factory = McpFactory(McpToolset(mcp=McpServer(**server), name="git"), base)
        return digest_of_key(definition_key(ToolOfToolset(SameObject(factory), "push", "git/push", "print")))

    assert key_of(command=["git-server"]) == key_of(command=["git-server"])
    others = [
        key_of(command=["git-server"]),
        key_of(command=["other-server"]),
        key_of(command=["git-server"], args=["--all"]),
        key_of(tmp_path / "other", command=["git-server"]),
        key_of(url="https://example.org"),
    ]
    assert len(set(others)) == len(others)
    with pytest.raises(NoCanonicalForm):
        key_of(command=["git-server"], env={"PASSWORD": "1234"})
    with pytest.raises(NoCanonicalForm):
        key_of(url="https://example.org", headers={"Authorization": "1234"})


# -- stored data that nobody should trust ----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        (lambda grant: 5, "0: Input should be a dictionary"),
        (lambda grant: {}, "0.worker: Field required"),
        (lambda grant: {**grant, "until": "noon"}, "0.until: Unexpected keyword argument"),
        (lambda grant: {**grant, "entry": None}, "0.entry: Input should be a dictionary"),
        (lambda grant: {**grant, "entry": {**grant["entry"], "any": True}}, "0.entry.any: Unexpected"),
        (lambda grant: {**grant, "worker": {"name": 1, "digest": "x"}}, "0.worker.name: Input should be a valid"),
        (lambda grant: {**grant, "generated": None}, "0.generated: Input should be a valid tuple"),
    ],
)
async def test_malformed_grants_are_refused_and_none_of_them_holds(change: Any, problem: str) -> None:
    (grant,) = await grant_payment()
    runtime, person = resumed([])
    with pytest.raises(ValueError, match=f"^The stored grants cannot be read: {problem}"):
        controller(runtime).restore_grants([change(grant), grant])
    assert await is_asked(runtime, person, payment(), amount=5)


@pytest.mark.parametrize("grants", [None, 5, "x", {"a": 1}])
def test_what_is_no_list_of_grants_is_refused(grants: Any) -> None:
    with pytest.raises(ValueError, match="^The stored grants cannot be read: Input should be a valid list"):
        ApprovalController().restore_grants(grants)


@pytest.mark.parametrize("field", ["entry", "rule", "files", "covers", "generated"])
async def test_a_grant_that_differs_in_one_field_fits_nothing(field: str) -> None:
    (grant,) = await grant_payment()
    other: Any = {"entry": {"name": "pay", "digest": ""}, "generated": [grant["entry"]]}.get(field, "")
    runtime, person = resumed([{**grant, field: other}])
    assert await is_asked(runtime, person, payment(), amount=5)


async def test_a_forged_offer_grants_nothing_that_is_not_offered(tmp_path: Path) -> None:
    runtime = Runtime(approval_callback=Person(accept_offer))
    await runtime.call(writer(tmp_path, "out/a/1"), "go")
    (grant,) = controller(runtime).stored_grants()
    everything = Grant("sandbox.write", {"path": "/**"}, Places())
    assert everything.covers(Call("sandbox.write", (Case({"path": tmp_path / "out/b/2"}),)))
    forged = replace(grant, covers=digest_of_key(everything.key()), text="sandbox.write with path out/a/*")
    assert await questions([forged], writer(tmp_path, "out/b/2")) == 1


async def test_the_text_of_a_stored_grant_decides_nothing_and_is_shown_to_nobody() -> None:
    (grant,) = await grant_payment()
    runtime, person = resumed([{**grant, "text": "\x1b[2Jeverything\udc80"}])
    assert not await is_asked(runtime, person, payment(), amount=5)
    approval = runtime.trace[0].approval
    assert approval is not None
    assert approval.grant == "exactly these arguments"
    assert stored(runtime) == [grant]


async def test_a_session_that_stores_nothing_makes_no_digest() -> None:
    made: list[str] = []

    def note(frame: Any, event: str, arg: Any) -> None:
        if event == "call" and frame.f_code.co_name in ("digest_of_key", "definition_key"):
            made.append(frame.f_code.co_name)

    tool, runtime = payment(), Runtime(approval_callback=Person())
    sys.setprofile(note)
    try:
        for amount in (5, 5, 6):
            await runtime.call(tool, amount=amount)
    finally:
        sys.setprofile(None)
    assert made == []


async def test_grants_outside_of_a_runtime_are_not_stored() -> None:
    alone = ApprovalController({"send": "ask"}, lambda *args: ALWAYS)
    assert await alone.maybe_run_async("send", {"to": "bob"}, lambda: "sent") == "sent"
    assert alone.stored_grants() == []
