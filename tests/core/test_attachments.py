"""Files that go with a call: from where, to whom, under which policies and rules; and prompts that inputs write."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import pytest
from pydantic import BaseModel, Field, SecretStr
from pydantic_ai import BinaryContent, RunContext
from pydantic_ai.messages import ModelMessage, ModelResponse
from pydantic_ai.models.fallback import FallbackModel
from pydantic_ai.models.function import AgentInfo, FunctionModel
from pydantic_ai.models.test import TestModel
from pydantic_ai.profiles import ModelProfile

from llm_do import (
    ApprovalController,
    ApprovalDecision,
    ApprovalDenied,
    ArgumentError,
    AttachmentPayload,
    AttachmentPolicy,
    Context,
    HasPrompt,
    LocalModel,
    ModelChoiceError,
    Notice,
    PathDenied,
    PathMissing,
    PromptError,
    Runtime,
    SandboxConfig,
    Secret,
    WorkerDefinition,
    WorkerEntry,
    WorkerRegistry,
    approve_all_callback,
    entry,
)
from llm_do.toolsets.delegation import worker_call

from ..scripted import calls, says, scripted, tool_results


class Deck(BaseModel):
    """An input that says nothing about its prompt."""

    title: str


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A folder with files, beside one that no worker may read."""
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "a.txt").write_text("alpha")
    (tmp_path / "in" / "b.txt").write_text("beta")
    (tmp_path / "outside.txt").write_text("secret")
    (tmp_path / "in" / "link.txt").symlink_to(tmp_path / "outside.txt")
    return tmp_path


def boss(base: Path, *tools: Any, **options: Any) -> WorkerEntry[str]:
    """Return a worker with the folder `in` as its root."""
    sandbox = SandboxConfig.model_validate({"paths": {"in": {"root": "in"}}})
    return WorkerEntry(name="boss", instructions="x", tools=tools, sandbox=sandbox, base=base, **options)


class Script:
    """A model that calls one tool for the worker `boss`, and keeps the prompts of all others."""

    def __init__(self, tool: str, arguments: dict[str, Any]) -> None:
        self.call = tool, arguments
        self.prompts: list[Any] = []
        self.schemas: dict[str, Any] = {}
        self.model = scripted(self.step)

    def step(self, messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
        if not any(tool.name == self.call[0] for tool in info.function_tools):
            self.prompts.append(messages[0].parts[-1].content)  # type: ignore[union-attr]
            return says("seen")
        self.schemas = {tool.name: tool.parameters_json_schema for tool in info.function_tools}
        results = tool_results(messages)
        return says(str(results[-1])) if results else calls(self.call)

    @property
    def files(self) -> list[list[bytes]]:
        return [[item.data for item in prompt if isinstance(item, BinaryContent)] for prompt in self.prompts]


@pytest.mark.parametrize("input_type", [None, Deck])
async def test_a_worker_that_is_a_tool_takes_files_of_its_callers_roots(root: Path, input_type: Any) -> None:
    """The model of the caller has a parameter `attachments`, and the files that it names are read and sent."""
    analyst = WorkerEntry[str](name="analyst", instructions="x", input_type=input_type)
    given = {"input": "look"} if input_type is None else {"title": "T"}
    script = Script("analyst", {**given, "attachments": ["in/a.txt", "in/b.txt"]})
    runtime = Runtime([boss(root, analyst)], model=script.model)
    assert await runtime.call("boss", "go") == "seen"
    assert script.files == [[b"alpha", b"beta"]]
    assert script.schemas["analyst"]["properties"]["attachments"]["items"] == {"type": "string"}


async def test_files_are_offered_only_where_there_are_some_to_give_and_to_take(root: Path) -> None:
    """No root, a policy of none, or a field of the worker's own of that name: the schema is the worker's."""

    class Own(BaseModel):
        attachments: list[str]

    none = AttachmentPolicy(max_attachments=0)
    closed = WorkerEntry[str](name="closed", instructions="x", attachment_policy=none)
    own = WorkerEntry[str](name="own", instructions="x", input_type=Own)
    script = Script("own", {"attachments": ["in/a.txt"]})
    assert await Runtime([boss(root, closed, own)], model=script.model).call("boss", "go") == "seen"
    assert script.schemas["closed"]["properties"].keys() == {"input"}
    assert script.prompts == ['{\n  "attachments": [\n    "in/a.txt"\n  ]\n}']  # its field, and no file
    bare = WorkerEntry[str](name="boss", instructions="x", tools=[WorkerEntry[str](name="own", instructions="x")])
    script = Script("own", {"input": "x"})
    await Runtime([bare], model=script.model).call("boss", "go")
    assert script.schemas["own"]["properties"].keys() == {"input"}


@pytest.mark.parametrize(
    "path", ["/etc/hostname", "../outside.txt", "in/../outside.txt", "in/link.txt", "out/a.txt", "in/none.txt", ""]
)
async def test_no_path_below_a_worker_leaves_its_roots(root: Path, path: str) -> None:
    """Nothing is read if a model, or Python below it, names the path, and the model gets the error."""
    analyst = WorkerEntry[str](name="analyst", instructions="x")
    script = Script("analyst", {"input": "look", "attachments": [path]})
    assert await Runtime([boss(root, analyst)], model=script.model).call("boss", "go") != "seen"
    assert script.prompts == []

    @entry
    async def send(ctx: RunContext[Context]) -> str:
        with pytest.raises((PathDenied, PathMissing)):
            await ctx.deps.call(analyst, "look", attachments=[Path(path)])
        return "refused"

    script = Script("send", {})
    assert await Runtime([boss(root, send, analyst)], model=script.model).call("boss", "go") == "refused"
    assert script.prompts == []


async def test_a_call_takes_all_forms_of_files_at_the_top_and_below(root: Path) -> None:
    """At the top a path is one of this machine, below a worker one of its roots. All are payloads to a tool."""
    picture = BinaryContent(b"png", media_type="image/png")
    seen: list[AttachmentPayload] = []

    @entry
    def look(ctx: RunContext[Context]) -> str:
        seen.extend(ctx.deps.attachments)
        return "looked"

    for input_type, given in ((None, "go"), (Deck, Deck(title="T"))):
        seen.clear()
        worker = WorkerEntry[str](name="w", instructions="x", tools=[look], input_type=input_type)
        forms = [str(root / "outside.txt"), root / "in" / "a.txt", AttachmentPayload("n.txt", b"n"), picture]
        await Runtime([worker], model=TestModel(custom_output_text="ok")).call(worker, given, attachments=forms)
        assert [(type(file), file.data) for file in seen] == [
            (AttachmentPayload, data) for data in (b"secret", b"alpha", b"n", b"png")
        ]
        assert (seen[0].name, seen[2].name, seen[3].media_type) == ("outside.txt", "n.txt", "image/png")
        assert seen[3].name.endswith(".png")

    reader = WorkerEntry[str](name="reader", instructions="x")

    @entry
    async def send(ctx: RunContext[Context]) -> str:
        result: str = await ctx.deps.call(reader, "x", attachments=["in/a.txt", AttachmentPayload("n.txt", b"n")])
        return result

    script = Script("send", {})
    assert await Runtime([boss(root, send)], model=script.model).call("boss", "go") == "seen"
    assert script.files == [[b"alpha", b"n"]]


async def test_turns_take_files_as_calls_do(root: Path) -> None:
    """The files of one turn are not those of the next."""
    worker = WorkerEntry[str](name="w", instructions="x", input_type=Deck)
    script = Script("none", {})
    async with worker.start(Runtime([worker], model=script.model)) as scope:
        await scope.run_turn(Deck(title="T"), attachments=[root / "in" / "a.txt"])
        await scope.run_turn(Deck(title="U"))
        assert scope.frame.attachments == ()
    assert script.files[0] == [b"alpha"]


async def test_data_never_chooses_files(root: Path) -> None:
    """A path that stands among other keywords, or in a mapping, is not opened."""
    typed = WorkerEntry[str](name="typed", instructions="x", input_type=Deck)
    plain = WorkerEntry[str](name="plain", instructions="x")
    script, path = Script("none", {}), str(root / "outside.txt")
    runtime = Runtime([typed, plain], model=script.model)
    with pytest.raises(ArgumentError, match="must be a Path"):
        await runtime.call(typed, title="T", attachments=[path])
    with pytest.raises(ArgumentError):
        await runtime.call(typed, {"title": "T", "attachments": [path]})
    with pytest.raises(ArgumentError):
        await runtime.call(plain, {"input": "x", "attachments": [path]})
    assert script.prompts == []
    await runtime.call(typed, title="T", attachments=[Path(path)])
    assert script.files == [[b"secret"]]


@pytest.mark.parametrize(
    ("policy", "files", "problem"),
    [
        ({"max_attachments": 1}, ["in/a.txt", "in/b.txt"], "hands on 1 attachment at most, got 2. Give fewer."),
        ({"max_total_bytes": 4}, ["in/a.txt"], "hands on 4 bytes of attachments at most, got 5"),
        ({"suffixes": (".pdf",)}, ["in/a.txt"], "cannot be handed on by worker 'boss': it hands on .pdf"),
    ],
)
@pytest.mark.parametrize("way", ["tool", "worker_call"])
async def test_the_callers_policy_counts_as_the_callees_does(
    root: Path, policy: dict[str, Any], files: list[str], problem: str, way: str
) -> None:
    """Whatever the callee takes, its caller hands on no more than its own policy says."""
    from llm_do.toolsets.delegation import worker_call

    analyst = WorkerEntry[str](name="analyst", instructions="x")
    tools = (analyst,) if way == "tool" else (worker_call,)
    arguments = {"input": "x"} if way == "tool" else {"worker": "analyst"}
    name = "analyst" if way == "tool" else "worker_call"
    script = Script(name, {**arguments, "attachments": files})
    worker = boss(root, *tools, attachment_policy=AttachmentPolicy(**policy), allow_workers=["*"])
    answer = await Runtime([worker, analyst], model=script.model).call("boss", "go")
    assert problem in answer
    assert script.prompts == []


async def test_worker_call_needs_no_input_where_there_are_files(root: Path) -> None:
    """The prompt of the worker is the files alone."""
    from llm_do.toolsets.delegation import worker_call

    analyst = WorkerEntry[str](name="analyst", instructions="x")
    script = Script("worker_call", {"worker": "analyst", "attachments": ["in/a.txt"]})
    runtime = Runtime([boss(root, worker_call, allow_workers=["*"]), analyst], model=script.model)
    assert await runtime.call("boss", "go") == "seen"
    assert script.files == [[b"alpha"]]


@pytest.mark.parametrize("rule", ["sandbox.read", "worker.call"])
@pytest.mark.parametrize("name", ["a.txt", "none.txt"])
async def test_rules_judge_each_file_and_refuse_before_it_is_read(root: Path, rule: str, name: str) -> None:
    """Paths that may not be read or handed on are refused, and the refusal does not tell whether they exist."""
    key = "path" if rule == "sandbox.read" else "attachments"
    rules = {rule: {"rule": "deny", "when": {key: f"in/{name}"}}}
    analyst = WorkerEntry[str](name="analyst", instructions="x")
    script = Script("analyst", {"input": "x", "attachments": ["in/b.txt", f"in/{name}"]})
    runtime = Runtime([boss(root, analyst, tool_rules=rules)], model=script.model)
    assert "was refused" in await runtime.call("boss", "go")
    record = next(record for record in runtime.trace if record.name == "analyst")
    assert record.approval is not None and not record.approval.approved
    assert "alpha" not in repr(record) and "beta" not in repr(record)
    assert script.prompts == []


async def test_worker_call_hands_a_whole_number_on_as_it_is(root: Path) -> None:
    """As a float, a long one would be another number."""
    script = Script("worker_call", {"worker": "analyst", "input_data": 12345678901234567})
    runtime = Runtime([boss(root, worker_call, allow_workers=["*"]), WorkerEntry(name="analyst")], model=script.model)
    await runtime.call("boss", "go")
    assert script.prompts == ["12345678901234567"]


async def test_worker_call_reads_no_file_before_it_has_counted_them(root: Path) -> None:
    """A model can name one large file a thousand times."""
    analyst = WorkerEntry(name="analyst", attachment_policy=AttachmentPolicy(max_attachments=2))
    script = Script("worker_call", {"worker": "analyst", "attachments": ["in/missing.txt"] * 1000})
    runtime = Runtime([boss(root, worker_call, allow_workers=["*"]), analyst], model=script.model)
    await runtime.call("boss", "go")
    assert "takes 2 attachments at most, got 1000" in str(runtime.trace[1].error)


async def test_no_person_is_asked_about_more_files_than_a_worker_may_hand_on(root: Path) -> None:
    """All that a question is about is read before it is asked."""
    (root / "a.txt").write_text("alpha")
    analyst = WorkerEntry(name="analyst", attachment_policy=AttachmentPolicy(max_attachments=1000))
    script = Script("worker_call", {"worker": "analyst", "attachments": ["in/a.txt"] * 9})
    asked: list[Any] = []
    runtime = Runtime(
        [boss(root, worker_call, allow_workers=["*"]), analyst],
        model=script.model,
        tool_rules={"worker.call": "ask"},
        approval_callback=lambda *given: asked.append(given),  # type: ignore[arg-type, return-value]
    )
    await runtime.call("boss", "go")
    assert "Worker 'boss' hands on 4 attachments at most, got 9" in str(runtime.trace[1].error)
    assert not asked


@pytest.mark.parametrize(
    "item",
    [
        {"kind": "document-url", "url": "http://127.0.0.1/admin", "force_download": "allow-local"},
        {"kind": "uploaded-file", "file_id": "file-1", "provider_name": "openai", "media_type": "text/plain"},
        {"kind": "binary", "data": "aGk=", "media_type": "text/plain"},
    ],
    ids=lambda item: item["kind"],
)
async def test_no_json_in_a_mapping_becomes_a_file(item: dict[str, Any]) -> None:
    """An address that is fetched, or a file at the provider, is chosen by code and not by a record."""
    runtime = Runtime([WorkerEntry(name="w")], model=scripted(says("ok")))
    with pytest.raises(ArgumentError, match=r"takes a list of AttachmentPayload or PydanticAI content"):
        await runtime.call("w", {"input": "look", "attachments": [item]})
    assert not runtime.usage


@pytest.mark.parametrize("way", ["tool", "worker_call"])
async def test_an_approval_is_for_the_very_content(root: Path, way: str) -> None:
    """A file that changes while a person thinks is not handed on unseen, and a grant does not outlast a change."""
    from llm_do.toolsets.delegation import worker_call

    analyst = WorkerEntry[str](name="analyst", instructions="x")
    asked: list[Any] = []

    def swap(tool_name: str, payload: dict[str, Any], reason: str) -> ApprovalDecision:
        asked.append(payload)
        if len(asked) == 1:
            (root / "in" / "a.txt").write_text("swapped")
        return ApprovalDecision(approved=True, approve_for_session=True)

    tool, name = (analyst, "analyst") if way == "tool" else (worker_call, "worker_call")
    arguments = {"input": "x"} if way == "tool" else {"worker": "analyst", "input_data": "x"}
    script = Script(name, {**arguments, "attachments": ["in/a.txt"]})
    rules = {"sandbox.read": "ask"}
    worker = boss(root, tool, tool_rules=rules, allow_workers=["*"])
    runtime = Runtime([worker, analyst], model=script.model, approval_callback=swap)
    assert await runtime.call("boss", "go") == "seen"
    # The tool has the bytes that were shown. worker_call reads again, finds others, and asks about those.
    assert script.files == ([[b"alpha"]] if way == "tool" else [[b"swapped"]])
    count = len(asked)
    assert count == (1 if way == "tool" else 2)
    (root / "in" / "a.txt").write_text("third")
    await runtime.call("boss", "go")
    assert len(asked) == count + 1
    await runtime.call("boss", "go")
    assert len(asked) == count + 1


@pytest.mark.parametrize("given", [{}, {"input": " "}, {"input": None}])
async def test_a_model_that_hands_over_files_needs_no_input(root: Path, given: dict[str, Any]) -> None:
    """Without files, a blank input is asked for again."""
    analyst = WorkerEntry[str](name="analyst", instructions="x")
    script = Script("analyst", {**given, "attachments": ["in/a.txt"]})
    assert await Runtime([boss(root, analyst)], model=script.model).call("boss", "go") == "seen"
    assert script.files == [[b"alpha"]]
    assert "input" not in script.schemas["analyst"].get("required", ())
    for empty in ([], None):
        script = Script("analyst", {**given, "attachments": empty})
        assert await Runtime([boss(root, analyst)], model=script.model).call("boss", "go") != "seen"
        assert script.prompts == []


async def test_files_are_beside_the_arguments_in_every_form_of_a_call(root: Path) -> None:
    """The record, the approver and the worker find them in one place, whatever was written."""
    worker = WorkerEntry[str](name="w", instructions="x")
    content, path = BinaryContent(b"c", media_type="text/plain"), root / "in" / "a.txt"
    script = Script("none", {})
    runtime = Runtime([worker], model=script.model)
    await runtime.call(worker, "x", attachments=[str(path)])
    await runtime.call(worker, {"input": "x", "attachments": [content]})
    await runtime.call(worker, {"input": "x"}, attachments=[path])
    await runtime.call(worker, "x", depth=2, attachments=[path])
    with pytest.raises(ArgumentError, match="two values for argument 'attachments'"):
        await runtime.call(worker, {"input": "x", "attachments": [content]}, attachments=[path])
    assert [record.input_data for record in runtime.trace] == [{"input": "x"}] * 3 + [{"input": "x", "depth": 2}]
    assert [[file.data for file in record.attachments] for record in runtime.trace] == [
        [b"alpha"],
        [b"c"],
        [b"alpha"],
        [b"alpha"],
    ]


async def test_a_field_that_is_called_attachments_stays_the_workers_own(root: Path) -> None:
    """Also where another name stands in its schema."""

    class Mail(BaseModel):
        attachments: list[str] = Field(alias="files")

    worker = WorkerEntry[str](name="w", instructions="x", input_type=Mail)
    script = Script("none", {})
    runtime = Runtime([worker], model=script.model)
    await runtime.call(worker, attachments=[str(root / "outside.txt")])
    assert isinstance(script.prompts[0], str) and "secret" not in script.prompts[0]


@pytest.mark.parametrize("way", ["tool", "worker_call"])
@pytest.mark.parametrize("rule", ["sandbox.read", "worker.call"])
def test_why_judges_each_file_and_reads_none(root: Path, way: str, rule: str) -> None:
    """The explanation of a decision judges the files of the call too."""
    from llm_do.toolsets.delegation import worker_call

    key = "path" if rule == "sandbox.read" else "attachments"
    rules = {rule: {"rule": "deny", "when": {key: "in/none.txt"}}}
    analyst = WorkerEntry[str](name="analyst", instructions="x")
    caller = boss(root, analyst, worker_call, tool_rules=rules, allow_workers=["*"])
    runtime = Runtime([caller, analyst])
    target: Any = analyst if way == "tool" else worker_call
    given = {} if way == "tool" else {"worker": "analyst"}
    for paths, decided in (["in/a.txt"], "allow"), (["in/a.txt", "in/none.txt"], "deny"):
        assert runtime.why(target, {**given, "attachments": paths}, worker=caller).disposition == decided


# -- prompts that inputs write ---------------------------------------------------------------------------


class Pitch(BaseModel):
    """An input that writes its own prompt."""

    company: str
    token: Annotated[str, Secret] = "no token"
    key: SecretStr = SecretStr("k")
    deck: str | None = None

    def to_prompt(self) -> list[str | Path]:
        files = [] if self.deck is None else ["Deck:", Path(self.deck)]
        return [f"Judge {self.company} with {self.token} and {self.key.get_secret_value()}.", *files, "Be brief."]


@dataclass
class Note:
    """A dataclass that does."""

    text: str

    def to_prompt(self) -> str:
        return self.text.upper()


async def test_an_input_type_writes_its_own_prompt_for_every_caller(root: Path) -> None:
    """Python, a turn, a model and the project's own run show the same, without secrets and with files in place."""
    assert isinstance(Note("x"), HasPrompt)
    judge = WorkerEntry[str](name="judge", instructions="x", input_type=Pitch)
    note = WorkerEntry[str](name="note", instructions="x", input_type=Note)
    script = Script("judge", {"company": "Acme", "deck": "in/a.txt", "token": "hunter22"})
    runtime = Runtime([judge, note, boss(root, judge)], model=script.model)
    await runtime.call(note, text="quiet")
    await runtime.call(judge, company="Acme", token="hunter22", key="swordfish")
    async with judge.start(runtime) as scope:
        await scope.run_turn(Pitch(company="Acme", deck=str(root / "in" / "b.txt")))
    assert await runtime.call("boss", "go") == "seen"
    shown = [
        prompt if isinstance(prompt, str) else [item if isinstance(item, str) else item.data for item in prompt]
        for prompt in script.prompts
    ]
    hidden = "Judge Acme with [secret] and [secret]."
    assert shown[:2] == ["QUIET", [hidden, "Be brief."]]
    assert shown[2][1:] == ["Deck:", b"beta", "Be brief."]
    assert shown[3] == [hidden, "Deck:", b"alpha", "Be brief."]
    record = next(record for record in runtime.trace if record.name == "judge" and record.depth == 1)
    assert [file.data for file in record.attachments] == [b"alpha"]


async def test_files_of_a_prompt_follow_roots_policy_and_rules(root: Path) -> None:
    """A path that an input turns into a file is one of the caller's roots, and is judged."""
    judge = WorkerEntry[str](name="judge", instructions="x", input_type=Pitch)
    for deck, rules, problem in [
        ("/etc/hostname", {}, "no root"),
        ("in/none.txt", {}, "none.txt"),
        ("in/a.txt", {"sandbox.read": {"rule": "deny", "when": {"path": "in/a.txt"}}}, "was refused"),
    ]:
        script = Script("judge", {"company": "Acme", "deck": deck})
        runtime = Runtime([boss(root, judge, tool_rules=rules)], model=script.model)
        assert problem in await runtime.call("boss", "go")
        assert script.prompts == []
    closed = WorkerEntry[str](
        name="w", instructions="x", input_type=Pitch, attachment_policy=AttachmentPolicy(max_attachments=0)
    )
    with pytest.raises(PathDenied, match="takes 0 attachments"):
        await Runtime([closed], model=TestModel()).call(closed, company="A", deck=str(root / "in" / "a.txt"))


async def test_what_goes_wrong_in_a_prompt_names_class_and_method() -> None:
    """An exception, and a value that is no prompt."""

    class Bad(BaseModel):
        what: Any = None

        def to_prompt(self) -> Any:
            return {"raise": lambda: 1 / 0, "number": lambda: 5, "item": lambda: ["a", 5]}[self.what]()

    bad = WorkerEntry[str](name="bad", instructions="x", input_type=Bad)
    runtime = Runtime([bad], model=TestModel())
    for what, problem in [("raise", "failed: ZeroDivisionError"), ("number", "must return"), ("item", "got 5 among")]:
        with pytest.raises(PromptError, match=rf"Bad\.to_prompt\(\) {problem}" if what != "item" else problem):
            await runtime.call(bad, what=what)
    assert len(runtime.trace) == 3 and all(record.error for record in runtime.trace)


async def test_a_person_who_edits_the_arguments_edits_the_prompt() -> None:
    """The prompt is written from the arguments that run."""
    note = WorkerEntry[str](name="note", instructions="x", input_type=Note, requires_approval=True)
    script = Script("none", {})

    def edit(tool_name: str, payload: dict[str, Any], reason: str) -> ApprovalDecision:
        return ApprovalDecision(approved=True, arguments={"text": "other"})

    await Runtime([note], model=script.model, approval_callback=edit).call(note, "quiet")
    assert script.prompts == ["OTHER"]


async def test_the_record_of_an_edited_call_has_the_files_that_went(root: Path) -> None:
    """Those that the prompt of the edited arguments names, and those that the caller gave."""
    judge = WorkerEntry[str](name="judge", instructions="x", input_type=Pitch, requires_approval=True)
    decks = iter([str(root / "in" / "b.txt"), None])

    def edit(tool_name: str, payload: dict[str, Any], reason: str) -> ApprovalDecision:
        return ApprovalDecision(approved=True, arguments={"company": "Acme", "deck": next(decks)})

    script = Script("none", {})
    runtime = Runtime([judge], model=script.model, approval_callback=edit)
    for _ in range(2):
        brief = Pitch(company="Acme", deck=str(root / "in" / "a.txt"))
        await runtime.call(judge, brief, attachments=[AttachmentPayload("n.txt", b"n")])
    assert script.files == [[b"beta", b"n"], [b"n"]]
    assert [[file.data for file in record.attachments] for record in runtime.trace] == script.files


@pytest.mark.parametrize("tool", ["reader", "worker_call"])
async def test_a_file_that_a_model_hands_on_goes_without_secrets(
    root: Path, monkeypatch: pytest.MonkeyPatch, tool: str
) -> None:
    """As `read_file` gives it: who is asked sees no secret, and the other model is sent none."""
    monkeypatch.setenv("MY_KEY", "alpha-key-123456")
    (root / "in" / "a.txt").write_text("key: alpha-key-123456")
    script = Script("none", {})
    reader = WorkerEntry[str](name="reader", instructions="x", model=script.model)
    more = {"worker": "reader", "input_data": "look"} if tool == "worker_call" else {"input": "look"}
    boss = WorkerEntry[str](
        name="boss",
        model=scripted(calls((tool, {**more, "attachments": ["in/a.txt"]})), says("end")),
        tools=[reader, worker_call],
        allow_workers=("reader",),
        sandbox=SandboxConfig.model_validate({"paths": {"in": {"root": str(root / "in")}}}),
    )
    await Runtime([boss, reader], secrets=["MY_KEY"], approval_callback=approve_all_callback).call(boss, "go")
    assert script.files == [[b"key: [secret MY_KEY]"]]


@pytest.mark.parametrize("kept", [0, 1])
async def test_a_person_cannot_take_a_file_off_the_list(kept: int) -> None:
    """Files go as they are, so an edited list refuses the call; the list as it was shown changes nothing."""
    judge = WorkerEntry[str](name="judge", instructions="x", requires_approval=True)

    def edit(tool_name: str, payload: dict[str, Any], reason: str) -> ApprovalDecision:
        return ApprovalDecision(
            approved=True, arguments={"input": "other", "attachments": payload["attachments"][:kept]}
        )

    script = Script("none", {})
    runtime = Runtime([judge], model=script.model, approval_callback=edit)
    call = runtime.call(judge, "look", attachments=[AttachmentPayload("n.txt", b"n")])
    if kept:
        await call
        assert script.files == [[b"n"]]
    else:
        with pytest.raises(ApprovalDenied, match="attachments cannot be edited"):
            await call
        assert script.files == []


# -- models that fit -------------------------------------------------------------------------------------


def model_of(provider: str, **profile: Any) -> FunctionModel:
    """Return a model of some provider, with a profile."""

    class Provided(FunctionModel):
        @property
        def system(self) -> str:
            return provider

    def answer(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
        asked.append(provider)
        return says("ok")

    return Provided(answer, model_name="m1", profile=ModelProfile(**profile))


asked: list[str] = []


@pytest.mark.parametrize(
    ("wanted", "model", "fits"),
    [
        (["anthropic:*"], lambda: model_of("anthropic"), True),
        (["openai:*", "anthropic:M*"], lambda: model_of("anthropic"), True),
        (["anthropic:*"], lambda: model_of("openai"), False),
        (["vision"], lambda: model_of("openai"), True),
        (["vision"], lambda: model_of("openai", supports_image_input=False), False),
        (["vision", "pdf"], lambda: model_of("openai", supports_document_input=False), False),
        (["openai:*", "pdf"], lambda: model_of("anthropic"), False),
        (["vision"], lambda: model_of("ollama"), None),
        (["anthropic:*"], lambda: TestModel(), None),
        (["anthropic:*"], lambda: FallbackModel(model_of("anthropic"), model_of("openai")), False),
        (["vision"], lambda: LocalModel("smollm2-135m"), False),
    ],
)
async def test_a_model_that_is_known_not_to_fit_is_refused_before_the_request(
    wanted: list[str], model: Callable[[], Any], fits: bool | None
) -> None:
    """One that may fit runs, with a notice where nothing is known."""
    asked.clear()
    told: list[Any] = []
    worker = WorkerEntry[str](name="w", instructions="x", compatible_models=wanted)
    runtime = Runtime([worker], model=model(), message_callback=told.append)
    if fits is False:
        with pytest.raises(ModelChoiceError, match=r"Worker 'w' cannot use model '.*', the session's default.*--model"):
            await runtime.call(worker, "x")
        assert asked == []
    else:
        await runtime.call(worker, "x")
    notices = [event.text for event in told if isinstance(event, Notice)]
    assert [("'w'" in text and "not known" in text) for text in notices] == ([True] if fits is None else [])


def test_a_worker_is_not_made_with_a_model_that_does_not_fit() -> None:
    """The error names both."""
    with pytest.raises(
        ModelChoiceError, match=r"has the model 'openai:m1', and its compatible_models are anthropic:\*"
    ):
        WorkerEntry[str](name="w", instructions="x", model=model_of("openai"), compatible_models=["anthropic:*"])


def test_what_is_no_model_and_no_capability_is_refused_where_it_is_written(tmp_path: Path) -> None:
    """The nearest word is named, and a file takes the field."""
    with pytest.raises(ValueError, match="Did you mean 'vision'"):
        WorkerEntry[str](name="w", instructions="x", compatible_models=["vison"])
    with pytest.raises(ValueError, match="no pattern of models"):
        WorkerDefinition(name="w", compatible_models=("gpt-*",))
    (tmp_path / "workers").mkdir()
    (tmp_path / "workers" / "w.md").write_text("---\ncompatible_models: [anthropic:*, vision]\n---\nLook.")
    worker = WorkerRegistry(tmp_path)["w"]
    assert isinstance(worker, WorkerEntry)
    assert worker.compatible_models == ("anthropic:*", "vision")


async def test_a_picture_for_a_model_that_reads_text_only_is_refused_before_the_request() -> None:
    """The error names worker, model and file; no weights are looked for."""
    worker = WorkerEntry[str](name="w", instructions="x")
    picture = AttachmentPayload("cat.png", b"png")
    with pytest.raises(ModelChoiceError, match=r"w: model 'local:smollm2-135m' cannot be sent 'cat.png'.*'vision'"):
        await Runtime([worker], model=LocalModel("smollm2-135m")).call(worker, "x", attachments=[picture])


# -- rules of a file, outside of a runtime -----------------------------------------------------------------


def test_an_approval_controller_knows_the_roots_of_the_definition_whose_rules_it_gets(tmp_path: Path) -> None:
    """The rules of a definition mean the same files when a controller applies them to `root/path`."""
    (tmp_path / "workers").mkdir()
    (tmp_path / "workers" / "w.yaml").write_text(
        "instructions: x\nsandbox: {paths: {output: {root: out, mode: rw}}}\n"
        "tool_rules:\n  sandbox.write:\n    - {rule: allow, when: {path: output/free/**}}\n"
        "    - {rule: deny, when: {path: output/kept/**}}\n"
    )
    definition = WorkerRegistry(tmp_path).definition("w")
    by_hand = WorkerDefinition.model_validate(definition.model_dump())
    asked: list[str] = []

    def ask(tool_name: str, payload: dict[str, Any], reason: str) -> ApprovalDecision:
        asked.append(payload["path"])
        return ApprovalDecision(approved=True)

    for rules in (definition.tool_rules, by_hand.tool_rules):
        asked.clear()
        controller = ApprovalController(tool_rules=rules, approval_callback=ask)
        for path in ("output/free/a.txt", "output/other.txt", "output/free/../kept/a.txt"):
            try:
                controller.maybe_run(tool_name="sandbox.write", payload={"path": path}, func=lambda: None)
            except ApprovalDenied:
                asked.append(f"denied {path}")
        with pytest.raises(ApprovalDenied):
            controller.maybe_run(tool_name="sandbox.write", payload={"path": "output/kept/a.txt"}, func=lambda: None)
        assert asked == ["output/other.txt", "denied output/free/../kept/a.txt"]
    Runtime([], tool_rules=definition.tool_rules, approval_callback=approve_all_callback)


def test_a_symlink_in_a_root_is_judged_by_where_it_leads(tmp_path: Path) -> None:
    """A function behind a controller opens the path as it is, and a worker may have put a link there."""
    for folder in ("output/ok", "output/no"):
        (tmp_path / folder).mkdir(parents=True)
    (tmp_path / "output/ok/link").symlink_to(tmp_path / "output/no")
    (tmp_path / "workers").mkdir()
    (tmp_path / "workers/w.yaml").write_text(
        "sandbox: {paths: {out: {root: ./output, mode: rw}}}\n"
        "tool_rules: {sandbox.write: {rule: allow, when: {path: out/ok/**}}}\n"
    )
    controller = ApprovalController(tool_rules=WorkerRegistry(tmp_path).definition("w").tool_rules)
    assert controller.maybe_run("sandbox.write", {"path": "out/ok/a.txt"}, lambda: "ran") == "ran"
    with pytest.raises(ApprovalDenied):
        controller.maybe_run("sandbox.write", {"path": "out/ok/link/a.txt"}, lambda: "ran")
