"""The projects in `examples/`, with scripted models."""

import json
import re
import runpy
import shutil
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
    WorkerEntry,
    WorkerRegistry,
    WorkerRunResult,
    approve_all_callback,
    run_worker_async,
)
from llm_do.models import ModelChoice
from llm_do.trace import TraceNode

from .scripted import answers, calls, says, scripted, tool_results

EXAMPLES = Path(__file__).parent.parent / "examples"
PROJECTS = sorted(str(path.parent.relative_to(EXAMPLES)) for path in EXAMPLES.rglob("workers"))
READMES = sorted(str(path.relative_to(EXAMPLES)) for path in EXAMPLES.rglob("README.md"))


@pytest.fixture
def examples(tmp_path: Path) -> Path:
    """A copy, since some of them write."""
    unwanted = shutil.ignore_patterns("__pycache__", "generated", "minutes")
    return Path(shutil.copytree(EXAMPLES, tmp_path / "examples", ignore=unwanted))


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


# -- all of them -------------------------------------------------------------------------------------


def test_there_are_six() -> None:
    expected = {"approvals", "calculator", "creator", "decompose", "evaluation", "greeter"}
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
def test_what_a_readme_shows_runs(readme: str, examples: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = TestModel(call_tools=[])
    monkeypatch.setattr("llm_do.api.choose_default_model", lambda *_: ModelChoice(model, "a test's"))
    monkeypatch.chdir(examples.parent)
    text = (examples / readme).read_text()
    assert "LLM_DO_MODEL" in text and "API key" in text
    (code,) = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    exec(compile(code, readme, "exec"), {})


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
    ask = runpy.run_path(str(EXAMPLES / "approvals/run.py"))["ask"]
    monkeypatch.setattr("builtins.input", lambda prompt: typed)
    assert ask("publish", {"path": "minutes/a.md"}, "why") == decision


# -- evaluation --------------------------------------------------------------------------------------

SCORES = {"bakery": 9, "moon": 0, "repair": 3}


def judgement(text: str) -> dict[str, Any]:
    word = next(word for word in ("Moon", "repair", "bakery") if word in text)
    return {"score": SCORES[word.lower()], "reason": f"It is about a {word}."}


def judge(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
    """A model for all workers of all stages: it goes by the tools that it has, and by what came back so far."""
    given, results, tools = json.loads(str(prompt_of(messages))), tool_results(messages), tools_of(info)
    if not tools:
        return answers(judgement(given["text"]))(messages, info)
    if not results:
        return calls(("list_files", {"path": "documents"}) if "list_files" in tools else ("read_documents", {}))
    if "list_files" in tools:
        paths = results[0].split()
        if len(results) == 1:
            return calls(*(("read_file", {"path": path}) for path in paths))
        texts = {path.removeprefix("documents/"): text for path, text in zip(paths, results[1:4], strict=False)}
    else:
        texts = results[0]
    verdicts = [result for result in results if isinstance(result, dict) and "score" in result]
    if not verdicts:
        return calls(*(("evaluate", {**given, "text": text}) for text in texts.values()))
    judgements = [{"name": name, **verdict} for name, verdict in zip(texts, verdicts, strict=True)]
    if "rank" in tools:
        if "average" not in results[-1]:
            return calls(("rank", {"judgements": judgements}))
        return answers({**given, **results[-1]})(messages, info)
    ordered = sorted(judgements, key=lambda one: -one["score"])
    return answers({**given, "documents": ordered, "average": 4.0})(messages, info)


EVALUATIONS = {
    "stage1-prompt": ("evaluate_all", "list_files", *["read_file"] * 3, *["evaluate"] * 3),
    "stage2-functions": ("evaluate_all", "read_documents", *["evaluate"] * 3, "rank"),
    "stage3-python": ("evaluate_all", *["evaluate"] * 3),
}


def test_the_caller_is_the_same_in_all_stages_of_the_evaluation(examples: Path) -> None:
    evaluate = runpy.run_path(str(examples / "evaluation/run.py"))["evaluate"]
    results = {stage: evaluate(stage, cli_model=FunctionModel(judge)) for stage in EVALUATIONS}
    for stage, result in results.items():
        assert result.output == {
            "question": "Would you lend them money?",
            "documents": [
                {"name": "bakery.txt", "score": 9, "reason": "It is about a bakery."},
                {"name": "repair.txt", "score": 3, "reason": "It is about a repair."},
                {"name": "moon.txt", "score": 0, "reason": "It is about a Moon."},
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
