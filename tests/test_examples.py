"""The projects in `examples/`, with scripted models: their commands as they are written, and what their workers do."""

import json
import os
import re
import runpy
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from pydantic_ai.messages import ModelMessage, ModelResponse, UserPromptPart
from pydantic_ai.models.function import AgentInfo, FunctionModel
from pydantic_ai.models.test import TestModel

from llm_do import (
    ApprovalDecision,
    LimitExceeded,
    Runtime,
    WorkerEntry,
    WorkerRegistry,
    WorkerRunResult,
    approve_all_callback,
    run_worker_async,
)
from llm_do.core.trace import TraceNode
from llm_do.models.choice import ModelChoice

from .cli.server import Step, serve
from .processes import PATIENCE
from .scripted import answers, calls, says, scripted, tool_results
from .sealing import seal

ROOT = Path(__file__).parent.parent
EXAMPLES = ROOT / "examples"
GALLERY = ("approvals", "calculator", "creator", "decompose", "evaluation", "greeter", "mcp", "todo")
PROJECTS = sorted(str(path.parent.relative_to(EXAMPLES)) for path in EXAMPLES.rglob("workers"))
READMES = sorted(str(path.relative_to(EXAMPLES)) for path in EXAMPLES.rglob("README.md"))


@pytest.fixture
def examples(tmp_path: Path) -> Path:
    """A copy, since some of them write."""
    unwanted = shutil.ignore_patterns("__pycache__", "generated", "minutes")
    return Path(shutil.copytree(EXAMPLES, tmp_path / "examples", ignore=unwanted))


@pytest.fixture
def clone(examples: Path) -> Path:
    """The folder above that copy, whose environment is the one of the tests."""
    (examples.parent / ".venv").symlink_to(sys.prefix)
    return examples.parent


def commands_of(page: Path) -> list[str]:
    return re.findall(r"^```bash\n(.*?)\n```$", page.read_text(), re.MULTILINE | re.DOTALL)


def command_of(example: str, part: str = "") -> str:
    """The first command in the README of an example that has this in it."""
    return next(command for command in commands_of(EXAMPLES / example / "README.md") if part in command)


def shell(command: str, clone: Path, *, typed: str = "", **variables: str) -> "subprocess.CompletedProcess[str]":
    """Run a command as it is written, without any key."""
    given = {name: value for name, value in os.environ.items() if not name.endswith("_API_KEY")}
    return subprocess.run(
        ["bash", "-c", command],
        cwd=clone,
        env={**given, "LLM_DO_NO_LOCAL": "1", **variables},
        input=typed,
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=False,
    )


async def run(project: Path, worker: str, input_data: Any, model: Any, **options: Any) -> WorkerRunResult:
    registry = WorkerRegistry(project)
    return await run_worker_async(registry=registry, worker=worker, input_data=input_data, cli_model=model, **options)


def tree(result: WorkerRunResult) -> list[Any]:
    """The names of all calls: a call that made others is a tuple of its name and theirs."""

    def shape(node: TraceNode) -> Any:
        children = [shape(child) for child in node.children]
        return (node.entry.name, *children) if children else node.entry.name

    return [shape(node) for node in result.trace.tree()]


def prompt_of(messages: list[ModelMessage]) -> Any:
    """What a worker was given."""
    return next(part.content for part in messages[0].parts if isinstance(part, UserPromptPart))


def tools_of(info: AgentInfo) -> set[str]:
    return {tool.name for tool in info.function_tools}


def refusing(name: str) -> Callable[[str, dict[str, Any], str], ApprovalDecision]:
    return lambda tool_name, payload, reason: ApprovalDecision(approved=tool_name != name, note="not today")


def program(path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """What a program of an example defines. It imports its neighbours."""
    monkeypatch.syspath_prepend(path.parent)
    monkeypatch.delitem(sys.modules, "scripted", raising=False)  # that of another example
    return runpy.run_path(str(path))


# -- all of them -------------------------------------------------------------------------------------


def test_every_example_is_a_project_with_a_readme() -> None:
    expected = {*GALLERY, "invoices"}
    assert {path.split("/")[0] for path in READMES} == {path.split("/")[0] for path in PROJECTS} == expected


@pytest.mark.parametrize("project", PROJECTS)
def test_every_entry_can_be_built(examples: Path, project: str) -> None:
    registry = WorkerRegistry(examples / project)
    assert registry.workers()
    for name in registry:
        entry = registry[name]
        assert entry.name == name
        if isinstance(entry, WorkerEntry):
            assert entry.model is None, "a worker file of an example names no model"


@pytest.mark.parametrize("readme", READMES)
def test_python_in_a_readme_runs(readme: str, examples: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = TestModel(call_tools=[])
    monkeypatch.setattr("llm_do.projects.api.choose_default_model", lambda *_: ModelChoice(model, "a test's"))
    monkeypatch.chdir(examples.parent)
    for code in re.findall(r"```python\n(.*?)```", (examples / readme).read_text(), re.DOTALL):
        exec(compile(code, readme, "exec"), {})


@pytest.mark.parametrize("example", GALLERY)
def test_a_readme_begins_with_one_command_and_says_what_there_is_without_a_key(example: str) -> None:
    text = (EXAMPLES / example / "README.md").read_text()
    assert re.match(r"# [^\n]+\n\n```bash\n\.venv/bin/llm-do -C examples/[^\n]+\n```\n", text)
    assert "LLM_DO_MODEL" in text and "API key" in text and "**Look at**" in text
    without = text.partition("\n## Without a key\n")[2]
    assert ("-m local" in without or "`local`" in without) and re.search("run (-v )?-m local|--scripted", without)


def test_the_gallery_has_the_commands_of_the_readmes() -> None:
    page = (ROOT / "docs/examples.md").read_text()
    assert commands_of(ROOT / "docs/examples.md")[0] == "make demo"
    assert sorted(commands_of(ROOT / "docs/examples.md")[1:]) == sorted(map(command_of, GALLERY))
    written = re.findall(r"`(\.venv/bin/python examples/[^`]+)`", page)
    with_scripts = sorted(path.parent.name for path in EXAMPLES.glob("*/scripted.py"))
    assert sorted(written) == sorted(command_of(example, "--scripted") for example in with_scripts)


def test_the_gallery_points_at_the_right_lines() -> None:
    pointers = re.findall(
        r"^- `([^`:]+):(\d+)` says `([^`]+)`: ", (ROOT / "docs/examples.md").read_text(), re.MULTILINE
    )
    assert len(pointers) > 20
    for path, number, text in pointers:
        assert text in (EXAMPLES / path).read_text().splitlines()[int(number) - 1], f"{path}:{number}"


# -- their commands ----------------------------------------------------------------------------------

PLAN = {"task": "Give a garden party", "minutes": 55, "steps": ["Cook"]}
REPORT = {"question": "?", "documents": [{"name": "moon.txt", "score": 0, "reason": "It is far."}], "average": 0.0}
CREATED = {"name": "counter", "instructions": "Count.", "tools": ["count_words"]}
COMMANDS = {
    "calculator": (
        [
            Step(tool="multiply", arguments={"a": 2, "b": 12.6}),
            Step(tool="divide", arguments={"a": 25.2, "b": 3}),
            Step(tool="final_result", arguments={"expression": "2 * 12.60 / 3", "value": 8.4}),
        ],
        {"expression": "2 * 12.60 / 3", "value": 8.4},
        ["calculator", "multiply", "divide"],
    ),
    "creator": (
        [
            Step(tool="worker_create", arguments=CREATED),
            Step(tool="worker_call", arguments={"worker": "counter", "input_data": "one two"}),
            Step("2"),
            Step("It has 2 words."),
        ],
        "It has 2 words.\n",
        ["architect", "worker_create", "worker_call", "counter"],
    ),
    "decompose": (
        [
            Step(tool="plan", arguments={"task": "Cook", "levels": 1}),
            Step(tool="final_result", arguments={"task": "Cook", "minutes": 55}),
            Step(tool="final_result", arguments=PLAN),
        ],
        PLAN,
        ["plan", "plan"],
    ),
    "evaluation": (
        [
            Step(tool="read_file", arguments={"path": "documents/moon.txt"}),
            Step(tool="evaluate", arguments={"question": "?", "text": "We will be the first."}),
            Step(tool="final_result", arguments={"score": 0, "reason": "It is far."}),
            Step(tool="final_result", arguments=REPORT),
        ],
        REPORT,
        ["evaluate_all", "read_file", "evaluate"],
    ),
}


@pytest.mark.parametrize("example", COMMANDS)
def test_the_command_of_a_readme_runs(example: str, clone: Path) -> None:
    """As it is written, with a yes to what asks."""
    steps, output, calls = COMMANDS[example]
    with serve(*steps) as server:
        done = shell(f"{command_of(example)} --approve-all", clone, **server.environment)
    assert done.returncode == 0, done.stderr
    assert (done.stdout if isinstance(output, str) else json.loads(done.stdout)) == output
    assert re.findall(r"✓ (\w+) ", done.stderr) == calls
    assert len(server.requests) == len(steps)


def test_the_command_of_the_smallest_readme_runs(clone: Path) -> None:
    done = shell(command_of("greeter"), clone, LLM_DO_MODEL="test")
    assert (done.returncode, done.stdout) == (0, "success (no tool calls)\n"), done.stderr


def test_where_nobody_can_be_asked_the_secretary_writes_nothing(clone: Path) -> None:
    arguments = {"path": "minutes/garden-club.md", "content": "# Garden club\n"}
    with serve(Step(tool="write_file", arguments=arguments), Step("It was refused.")) as server:
        done = shell(command_of("approvals"), clone, **server.environment)
    assert (done.returncode, done.stdout) == (4, "It was refused.\n"), done.stderr
    assert not (clone / "examples/approvals/minutes/garden-club.md").exists()


def test_where_nobody_can_be_asked_the_clerk_looks_and_orders_nothing(clone: Path) -> None:
    """Of the two tools of the server, one is allowed and one asks."""
    steps = [
        Step(tool="shop_stock", arguments={"item": "sugar"}),
        Step(tool="shop_order", arguments={"item": "sugar", "packets": 10}),
        Step("It was refused."),
    ]
    with serve(*steps) as server:
        done = shell(command_of("mcp"), clone, **server.environment)
    assert (done.returncode, done.stdout) == (4, "It was refused.\n"), done.stderr
    results = [message["content"] for message in server.requests[-1]["messages"] if message["role"] == "tool"]
    assert results[0] == "sugar: 0 packets" and "clerk > shop_order was refused" in results[1]


def test_the_chat_of_the_readme_keeps_its_list_over_the_turns(clone: Path) -> None:
    steps = [Step(tool="add", arguments={"item": "milk"}), Step("Added."), Step(tool="show"), Step("There is milk.")]
    with serve(*steps) as server:
        done = shell(command_of("todo"), clone, typed="Add milk.\nWhat is on my list?\n", **server.environment)
    assert (done.returncode, done.stdout) == (0, "Added.\nThere is milk.\n"), done.stderr
    assert "[ ] milk" in str(server.requests[-1]["messages"][-1])
    assert re.findall("todo: .*", done.stderr) == ["todo: list 1 is opened", "todo: list 1 is closed, with 1 items"]


def test_the_rules_can_be_asked_as_the_readme_says(clone: Path) -> None:
    done = shell(command_of("approvals", "rules why"), clone)
    assert done.returncode == 0, done.stderr
    assert "Minutes are kept for ten years." in done.stdout and "workers/secretary.md:11" in done.stdout


SCRIPTED = {
    "approvals": ["The minutes are written and published.", "└─ publish("],
    "creator": ["run.py says yes", "The counter says: 6 words.", "└─ count_words(", "workers now: architect, counter"],
    "decompose": ["Give a garden party for twenty people: 150 minutes", "│  └─ plan(task='Cook', levels=0)"],
    "evaluation": ["  9  bakery.txt", "  4.0 on average, with 7 model requests", "├─ list_files("],
    "mcp": ["run.py says yes", "The shop says: 10 packets of sugar are ordered", "└─ shop_order("],
    "todo": ["keeper: The list: [x] milk, [ ] bread.", "Linus: What is on my list?\n  keeper: The list: nothing."],
}


@pytest.mark.parametrize("example", SCRIPTED)
def test_a_script_in_place_of_the_model_says_that_it_is_one(example: str, clone: Path) -> None:
    done = shell(command_of(example, "--scripted"), clone, typed="y\ny\n")
    assert done.returncode == 0, done.stderr
    assert "The model is scripted: scripted.py answers, and no language model is asked.\n" in done.stderr
    for text in SCRIPTED[example]:
        assert text in done.stdout
    if example == "todo":
        assert re.findall("todo: .*", done.stderr) == [
            "todo: list 1 is opened",
            "todo: list 2 is opened",
            "todo: list 2 is closed, with 0 items",
            "todo: list 1 is closed, with 2 items",
        ]


@pytest.mark.parametrize("example", ["approvals", "todo"])
def test_no_script_stands_in_when_nobody_asked_for_it(example: str, clone: Path) -> None:
    done = shell(command_of(example, "--scripted").replace(" --scripted", ""), clone)
    assert done.returncode == 1
    assert "has no model" in done.stderr and "scripted" not in done.stderr.partition("has no model")[2]


# -- greeter -----------------------------------------------------------------------------------------


async def test_the_greeter_greets(examples: Path) -> None:
    def greet(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
        assert "one warm sentence" in str(info.instructions) and not info.function_tools
        return says(f"Bonjour, {str(prompt_of(messages)).split(',')[0]} !")

    result = await run(examples / "greeter", "greeter", "Ada, in French", FunctionModel(greet))
    assert result.output == "Bonjour, Ada !"
    assert tree(result) == ["greeter"]
    assert result.refusals == []


# -- calculator --------------------------------------------------------------------------------------


async def test_the_calculator_uses_its_functions(examples: Path) -> None:
    def answer(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
        return answers({"expression": "2 * 12.60 / 3", "value": tool_results(messages)[-1]})(messages, info)

    model = scripted(
        calls(("multiply", {"a": 2, "b": 12.6})),
        calls(("divide", {"a": 25.2, "b": 0})),  # a slip, which the tool tells it about
        calls(("divide", {"a": 25.2, "b": 3})),
        answer,
    )
    result = await run(examples / "calculator", "calculator", "2 pizzas, 3 friends", model)
    assert result.output == {"expression": "2 * 12.60 / 3", "value": pytest.approx(8.4)}
    assert tree(result) == [("calculator", "multiply", "divide", "divide")]
    assert "divided by zero" in str(result.trace[2].error)


async def test_the_calculator_must_answer_with_a_number(examples: Path) -> None:
    model = scripted(answers({"expression": "1 + 1", "value": "two"}), answers({"expression": "1 + 1", "value": 2}))
    result = await run(examples / "calculator", "calculator", "1 + 1", model)
    assert result.output == {"expression": "1 + 1", "value": 2}


# -- approvals ---------------------------------------------------------------------------------------

MINUTES = {"path": "minutes/garden-club.md", "content": "# Garden club\n"}
SECRETARY = (
    calls(("read_file", {"path": "notes/garden-club.txt"})),
    calls(("write_file", MINUTES)),
    calls(("publish", {"path": MINUTES["path"]})),
    says("Done."),
)


async def test_the_secretary_asks_before_it_writes_and_publishes(examples: Path) -> None:
    project, asked = examples / "approvals", []

    def ask(tool_name: str, payload: dict[str, Any], reason: str) -> ApprovalDecision:
        written = (project / "minutes/garden-club.md").exists()
        asked.append((tool_name, payload, "kept for ten years" in reason, written))
        return ApprovalDecision(approved=True)

    result = await run(project, "secretary", "garden-club.txt", scripted(*SECRETARY), approval_callback=ask)
    assert asked == [
        ("sandbox.write", MINUTES, True, False),  # the rule's description is in the reason
        ("publish", {"path": MINUTES["path"]}, False, True),
    ]
    assert tree(result) == [("secretary", "read_file", "write_file", "publish")]
    assert "plant sale" in result.trace[1].output_data
    assert (project / "minutes/garden-club.md").read_text() == MINUTES["content"]
    assert result.refusals == []


async def test_what_is_refused_is_not_written(examples: Path) -> None:
    project, seen = examples / "approvals", []

    def give_up(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
        seen.extend(tool_results(messages))
        return says("It was refused.")

    model = scripted(*SECRETARY[:2], give_up)
    refuse = refusing("sandbox.write")
    result = await run(project, "secretary", "garden-club.txt", model, approval_callback=refuse)
    assert result.output == "It was refused."
    assert "not today" in str(seen[-1])
    assert [record.name for record in result.refusals] == ["write_file"]
    assert not (project / "minutes").exists() or not list((project / "minutes").iterdir())


async def test_without_anybody_to_ask_both_are_refused(examples: Path) -> None:
    result = await run(examples / "approvals", "secretary", "garden-club.txt", scripted(*SECRETARY))
    assert [record.name for record in result.refusals] == ["write_file", "publish"]
    assert not (examples / "approvals/minutes/garden-club.md").exists()


@pytest.mark.parametrize(
    ("typed", "decision"),
    [
        ("y", ApprovalDecision(approved=True)),
        ("a", ApprovalDecision(approved=True, approve_for_session=True)),
        ("too long", ApprovalDecision(approved=False, note="too long")),
        ("", ApprovalDecision(approved=False, note="no")),
    ],
)
def test_the_question_at_the_terminal(typed: str, decision: ApprovalDecision, monkeypatch: pytest.MonkeyPatch) -> None:
    ask = program(EXAMPLES / "approvals/run.py", monkeypatch)["ask"]
    monkeypatch.setattr("builtins.input", lambda prompt: typed)
    assert ask("publish", {"path": "minutes/a.md"}, "why") == decision


# -- evaluation --------------------------------------------------------------------------------------

EVALUATIONS = {
    "stage1-prompt": ("evaluate_all", "list_files", *["read_file"] * 3, *["evaluate"] * 3),
    "stage2-functions": ("evaluate_all", "read_documents", *["evaluate"] * 3, "rank"),
    "stage3-python": ("evaluate_all", *["evaluate"] * 3),
}


def test_the_caller_is_the_same_in_all_stages_of_the_evaluation(
    examples: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    defined = program(examples / "evaluation/run.py", monkeypatch)
    results = {stage: defined["evaluate"](stage, cli_model=defined["scripted_model"]()) for stage in EVALUATIONS}
    for stage, result in results.items():
        assert result.output == {
            "question": "Would you lend them money?",
            "documents": [
                {
                    "name": "bakery.txt",
                    "score": 9,
                    "reason": "Twenty-nine villages signed, and the trial had more customers than it needs.",
                },
                {"name": "repair.txt", "score": 3, "reason": "Three friends are not 2,000 customers."},
                {"name": "moon.txt", "score": 0, "reason": "There is not one fact in it."},
            ],
            "average": 4.0,
        }, stage
        assert tree(result) == [EVALUATIONS[stage]]
    requests = [sum(usage.requests for usage in result.usage.values()) for result in results.values()]
    assert requests == [4 + 3, 4 + 3, 3]


def test_only_the_kind_of_evaluate_all_differs(examples: Path) -> None:
    registries = [WorkerRegistry(examples / "evaluation" / stage) for stage in EVALUATIONS]
    assert [registry["evaluate_all"].kind for registry in registries] == ["worker", "worker", "tool"]
    one, *others = [registry.definition("evaluate") for registry in registries]
    assert others == [one, one]


# -- creator -----------------------------------------------------------------------------------------

COUNTER = {"name": "counter", "instructions": "Count words with your tool.", "tools": ["count_words"]}


def create_and_use(created: dict[str, Any], seen: list[set[str]]) -> FunctionModel:
    def take(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
        results = tool_results(messages)
        if "worker_create" in tools_of(info):
            if len(results) == 2:
                return says(f"The counter says: {results[1]}")
            call = ("worker_call", {"worker": "counter", "input_data": "one two three"})
            return calls(call if results else ("worker_create", created))
        seen.append(tools_of(info))
        assert created["instructions"] in str(info.instructions)
        return says(f"{results[0]} words") if results else calls(("count_words", {"text": prompt_of(messages)}))

    return FunctionModel(take)


async def test_the_architect_creates_a_worker_and_uses_it(examples: Path) -> None:
    project, seen, asked = examples / "creator", [], []

    def ask(tool_name: str, payload: dict[str, Any], reason: str) -> ApprovalDecision:
        asked.append((tool_name, payload["name"], payload["tools"]))
        return ApprovalDecision(approved=True)

    result = await run(project, "architect", "How many words?", create_and_use(COUNTER, seen), approval_callback=ask)
    assert result.output == "The counter says: 3 words"
    assert asked == [("worker.create", "counter", ["count_words"])]
    assert tree(result) == [("architect", "worker_create", ("worker_call", ("counter", "count_words")))]
    assert yaml.safe_load((project / "workers/generated/counter.yaml").read_text()) == {
        **COUNTER,
        "instructions": "Count words with your tool.\n",
        "created_by": "architect",
    }
    assert seen == [{"count_words"}] * 2
    assert WorkerRegistry(project).workers() == ["architect", "counter"]


async def test_what_was_created_has_no_more_than_its_creator(examples: Path) -> None:
    project, seen = examples / "creator", []
    await run(project, "architect", "x", create_and_use(COUNTER, seen), approval_callback=approve_all_callback)
    file = project / "workers/generated/counter.yaml"
    greedy = {
        "tools": ["count_words", "read_diary"],
        "toolsets": ["shell", "worker_create"],
        "sandbox": {"paths": {"all": {"root": ".", "mode": "rw"}}},
        "tool_rules": {"worker.create": "allow", "sandbox.write": "allow"},
    }
    file.write_text(yaml.safe_dump({**yaml.safe_load(file.read_text()), **greedy}))
    seal(file)  # as if the architect had written it so
    seen.clear()

    def look(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
        seen.append(tools_of(info))
        return says("ok")

    await run(project, "counter", "x", FunctionModel(look))
    assert seen == [{"count_words", "worker_create"}]  # not the diary, no shell, no files
    created = WorkerRegistry(project)["counter"]
    assert isinstance(created, WorkerEntry)
    assert (created.tool_rules, created.sandbox) == ({}, None)

    (project / "workers/architect.md").unlink()
    await run(project, "counter", "x", FunctionModel(look))
    assert seen[-1] == set()


async def test_without_a_yes_nothing_is_created(examples: Path) -> None:
    project = examples / "creator"
    model = scripted(
        calls(("worker_create", COUNTER)),
        calls(("worker_call", {"worker": "counter", "input_data": "one two"})),
        lambda messages, info: says(" / ".join(map(str, tool_results(messages)))),
    )
    result = await run(project, "architect", "x", model, approval_callback=refusing("worker.create"))
    assert [record.name for record in result.refusals] == ["worker_create"]
    assert "not today" in result.output and "no worker 'counter'" in result.output
    assert not (project / "workers/generated").exists()


# -- decompose ---------------------------------------------------------------------------------------

PARTS = {"party": ["food", "garden"], "food": ["shopping", "cooking"]}
MINUTES_OF = {"shopping": 40, "cooking": 55, "garden": 30}


def plan(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
    given, results = json.loads(str(prompt_of(messages))), tool_results(messages)
    task, levels = given["task"], given["levels"]
    parts = PARTS.get(task, []) if levels else []
    if not parts:
        return answers({"task": task, "minutes": MINUTES_OF.get(task, 90)})(messages, info)
    if not results:
        return calls(*(("plan", {"task": part, "levels": levels - 1}) for part in parts))
    steps = [line for part in results for line in (part.task, *(f"  {step}" for step in part.steps))]
    minutes = sum(part.minutes for part in results)
    return answers({"task": task, "minutes": minutes, "steps": steps})(messages, info)


async def test_a_task_is_split_until_its_parts_are_small(examples: Path) -> None:
    result = await run(examples / "decompose", "plan", {"task": "party"}, FunctionModel(plan))
    assert result.output.model_dump() == {
        "task": "party",
        "minutes": 125,
        "steps": ["food", "  shopping", "  cooking", "garden"],
    }
    # Parts run side by side, so the order of the records is not that of the plan.
    (top,) = result.trace.tree()
    nested = {
        node.entry.input_data["task"]: sorted(c.entry.input_data["task"] for c in node.children) for node in walk(top)
    }
    assert nested == {
        "party": ["food", "garden"],
        "food": ["cooking", "shopping"],
        "garden": [],
        "cooking": [],
        "shopping": [],
    }
    assert {record.name for record in result.trace} == {"plan"}
    assert max(record.depth for record in result.trace) == 2


def walk(node: TraceNode) -> list[TraceNode]:
    return [node, *(below for child in node.children for below in walk(child))]


async def test_a_task_is_split_only_so_often(examples: Path) -> None:
    result = await run(examples / "decompose", "plan", {"task": "party", "levels": 1}, FunctionModel(plan))
    assert (result.output.minutes, result.output.steps) == (120, ["food", "garden"])


async def test_a_model_that_splits_without_end_is_stopped(examples: Path) -> None:
    endless = scripted(calls(*[("plan", {"task": "more"})] * 3))
    with pytest.raises(LimitExceeded, match="plan"):
        await run(examples / "decompose", "plan", {"task": "party"}, endless)


# -- todo --------------------------------------------------------------------------------------------


async def test_each_conversation_has_a_list_of_its_own(examples: Path, capsys: pytest.CaptureFixture[str]) -> None:
    registry = WorkerRegistry(examples / "todo")
    keeper = registry["keeper"]
    assert isinstance(keeper, WorkerEntry)

    def take(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
        last = messages[-1].parts[-1]
        if not isinstance(last, UserPromptPart):
            return says(str(last.content))
        item = str(last.content)
        return calls(("add", {"item": item}) if item.islower() else ("show", {}))

    runtime = Runtime(registry, model=FunctionModel(take))
    first, second = keeper.start(runtime), keeper.start(runtime)
    assert [await first.run_turn("milk"), await first.run_turn("bread")] == [
        "['[ ] milk']",
        "['[ ] milk', '[ ] bread']",
    ]
    assert await second.run_turn("Show.") == "[]"
    await second.close()
    assert capsys.readouterr().err.splitlines()[-1] == "todo: list 2 is closed, with 0 items"
    assert await first.run_turn("Show.") == "['[ ] milk', '[ ] bread']"
    await first.close()
    assert capsys.readouterr().err == "todo: list 1 is closed, with 2 items\n"


async def test_what_is_done_must_be_on_the_list(examples: Path) -> None:
    model = scripted(
        calls(("add", {"item": "milk"})),
        calls(("done", {"item": "bread"})),
        calls(("done", {"item": "Milk"})),
        lambda messages, info: says(str(tool_results(messages)[-1])),
    )
    result = await run(examples / "todo", "keeper", "Milk is done.", model)
    assert result.output == "['[x] milk']"
    assert tree(result) == [("keeper", "add", "done", "done")]
    assert "'bread' is not on the list: ['[ ] milk']" in str(result.trace[2].error)
