"""Outputs: a caller gets the type that the entry declares, or an error with the reason."""

import re
from dataclasses import dataclass
from typing import Annotated, Any

import pytest
from annotated_types import Gt
from pydantic import BaseModel
from pydantic_ai import (
    Agent,
    ModelRetry,
    NativeOutput,
    PromptedOutput,
    RunContext,
    TextOutput,
    ToolOutput,
    ToolReturn,
)
from pydantic_ai.messages import ModelMessage, ModelResponse
from pydantic_ai.models.function import AgentInfo, FunctionModel
from pydantic_ai.profiles import ModelProfile

from llm_do import Context, ModelBehaviorError, ModelChoiceError, OutputError, Runtime, ToolEntry, WorkerEntry, entry

from ..scripted import answers, calls, says, scripted


class Verdict(BaseModel):
    good: bool


@dataclass
class Point:
    x: int


@pytest.mark.parametrize(
    ("output_type", "answer", "expected"),
    [
        (Verdict, {"good": True}, Verdict(good=True)),
        (Point, {"x": 1}, Point(1)),
        (int, {"response": 3}, 3),
        (list[int], {"response": [1, 2]}, [1, 2]),
    ],
)
async def test_a_worker_returns_its_output_type(output_type: Any, answer: dict[str, Any], expected: Any) -> None:
    worker: WorkerEntry[Any] = WorkerEntry(name="w", output_type=output_type)
    runtime = Runtime(model=scripted(answers(answer)))
    assert await runtime.call(worker, "x") == expected
    assert runtime.trace[0].output_data == expected


async def test_a_model_that_answers_wrongly_is_asked_again() -> None:
    worker = WorkerEntry(name="w", output_type=Verdict)
    runtime = Runtime(model=scripted(answers({"good": "perhaps"}), answers({"good": False})))
    assert await runtime.call(worker, "x") == Verdict(good=False)
    assert runtime.usage["scripted"].requests == 2


async def test_a_model_that_keeps_answering_wrongly_fails_with_a_clear_error() -> None:
    inner = WorkerEntry(name="inner", output_type=Verdict, model=scripted(answers({"good": "perhaps"}), name="dreamer"))

    @entry
    async def outer(ctx: RunContext[Context]) -> Verdict:
        return await ctx.deps.call(inner, "x")

    runtime = Runtime([outer])
    with pytest.raises(ValueError) as caught:
        await runtime.call("outer")
    assert isinstance(caught.value, OutputError)
    assert str(caught.value).startswith("outer > inner: model 'dreamer' gave no valid Verdict after 2 tries: good:")
    assert "good" in str(caught.value)
    assert runtime.usage["dreamer"].requests == 2
    assert [t.output_data for t in runtime.trace] == [None, None]


async def test_plain_text_where_an_object_is_wanted_is_wrong_too() -> None:
    worker = WorkerEntry(name="w", output_type=Verdict, retries=2)
    runtime = Runtime(model=scripted(says("Well, it depends.")))
    with pytest.raises(OutputError, match="after 3 tries"):
        await runtime.call(worker, "x")
    assert runtime.usage["scripted"].requests == 3


async def test_a_model_that_says_nothing_fails_with_a_clear_error() -> None:
    from pydantic_ai.messages import ModelResponse

    with pytest.raises((OutputError, ModelBehaviorError), match="w: model 'scripted'"):
        await Runtime(model=scripted(ModelResponse(parts=[]))).call(WorkerEntry(name="w"), "x")


async def test_schema_out_is_strict_and_returns_the_original_object() -> None:
    class Sub(Verdict):
        pass

    value: list[Any] = []

    @entry(schema_out=list[int])
    async def numbers() -> Any:
        return value

    verdict = Sub(good=True)

    async def judge() -> Any:
        return verdict

    runtime = Runtime([numbers, ToolEntry.from_function(judge, schema_out=Verdict)])
    assert await runtime.call("numbers") is value
    assert await runtime.call("judge") is verdict
    value.append("1")
    with pytest.raises(OutputError, match=r"numbers\(\) returned what its schema_out does not allow: 0: Input"):
        await runtime.call("numbers")
    assert runtime.trace[-1].error is not None
    assert runtime.trace[-1].output_data is None


async def test_schema_out_takes_constraints_and_reads_rich_returns() -> None:
    async def positive(x: int) -> ToolReturn[int]:
        return ToolReturn(return_value=x, content="shown to the model")

    tool = ToolEntry.from_function(positive, schema_out=Annotated[int, Gt(0)])
    runtime = Runtime([tool])
    assert (await runtime.call(tool, 1)).return_value == 1
    with pytest.raises(OutputError, match="greater than 0"):
        await runtime.call(tool, 0)


async def test_schema_out_may_hold_what_cannot_be_hashed() -> None:
    @entry(schema_out=Annotated[int, {"unit": "cm"}])
    async def length() -> Any:
        return 3

    assert await Runtime([length]).call("length") == 3


async def test_a_worker_of_ones_own_class_is_given_its_model() -> None:
    class Mine:
        name = "mine"
        kind = "worker"
        requires_approval = False
        model = scripted(says("hi"), name="mine-own")

        async def call(self, input_data: Any, ctx: Context, run_ctx: RunContext[Context]) -> str:
            return (await Agent(run_ctx.model).run("x")).output  # type: ignore[arg-type]

    runtime = Runtime([Mine()])
    assert await runtime.call("mine") == "hi"
    assert runtime.usage["mine-own"].requests == 1
    assert runtime.trace[0].model == "mine-own"


async def test_an_entry_of_ones_own_may_declare_schema_out() -> None:
    class Mine:
        name = "mine"
        kind = "tool"
        requires_approval = False
        model = None
        schema_out = int

        async def call(self, input_data: Any, ctx: Context, run_ctx: RunContext[Context]) -> Any:
            return "text"

    with pytest.raises(OutputError, match=r"mine\(\) returned"):
        await Runtime([Mine()]).call("mine")


async def test_return_annotations_alone_are_not_enforced() -> None:
    @entry
    async def lies() -> int:
        return "text"  # type: ignore[return-value]

    assert await Runtime([lies]).call("lies") == "text"  # type: ignore[comparison-overlap]


async def test_a_model_calling_a_tool_that_breaks_its_word_ends_the_run() -> None:
    """It is a bug in the program, and nothing a model could mend."""

    @entry(schema_out=int)
    async def lies() -> Any:
        return "text"

    runtime = Runtime(model=scripted(calls(("lies", {})), says("never")))
    with pytest.raises(OutputError):
        await runtime.call(WorkerEntry(name="w", tools=[lies]), "x")
    assert runtime.usage["scripted"].requests == 1


# -- models ----------------------------------------------------------------------------------------------


async def test_a_workers_own_model_comes_before_the_sessions_and_is_not_inherited() -> None:
    child = WorkerEntry(name="child")
    parent = WorkerEntry(
        name="parent", tools=[child], model=scripted(calls(("child", {"input": "x"})), says("ok"), name="parents")
    )
    runtime = Runtime([parent], model=scripted(says("from default"), name="default"))
    await runtime.call("parent", "x")
    assert [(t.name, t.model) for t in runtime.trace] == [("parent", "parents"), ("child", "default")]


async def test_no_model_is_an_error_that_names_the_worker_and_the_ways_to_set_one() -> None:
    runtime = Runtime([WorkerEntry(name="w")])
    with pytest.raises(ModelChoiceError, match=r"^Worker 'w' has no model\. .*Runtime\(model=\.\.\.\)\.\n"):
        await runtime.call("w", "x")
    with pytest.raises(ModelChoiceError, match="Worker 'w' cannot use model 'nosuch:model'"):
        await Runtime(model="nosuch:model").call(WorkerEntry(name="w"), "x")


async def test_a_function_called_from_python_has_no_model_to_ask() -> None:
    from pydantic_ai import Agent

    @entry
    async def curious(ctx: RunContext[Context]) -> str:
        return (await Agent(ctx.model).run("x")).output  # type: ignore[arg-type]

    with pytest.raises(ModelChoiceError, match="'curious' was not called by a worker"):
        await Runtime([curious]).call("curious")


async def test_a_raw_agent_in_a_tool_can_use_the_workers_model_and_is_counted() -> None:
    from pydantic_ai import Agent

    @entry
    async def curious(ctx: RunContext[Context]) -> str:
        return (await Agent(ctx.model).run("x")).output  # type: ignore[arg-type]

    runtime = Runtime(model=scripted(calls(("curious", {})), says("inner"), says("outer")))
    assert await runtime.call(WorkerEntry(name="w", tools=[curious]), "x") == "outer"
    assert runtime.usage["scripted"].requests == 3


_PROFILE = ModelProfile(supports_json_schema_output=True)


def _short(text: str) -> str:
    if len(text) < 1000:
        raise ModelRetry("Write 1,000 characters or more.")
    return text


@pytest.mark.parametrize(
    ("wanted", "name"),
    [
        (int, "int"),
        (Verdict, "Verdict"),
        (list[Verdict], "list[Verdict]"),
        (list[int], "list[int]"),
        (int | Verdict, "int or Verdict"),
        ([int, Verdict], "int or Verdict"),
        (Verdict | None, "Verdict or nothing (None)"),
        (dict[str, int], "dict[str, int]"),
        (Annotated[int, Gt(3)], "int"),
        (NativeOutput([Verdict, int]), "Verdict or int"),
        (PromptedOutput(Verdict), "Verdict"),
        (ToolOutput(Verdict), "Verdict"),
        (ToolOutput(list[Verdict], name="answers"), "list[Verdict]"),
        (_short, "text"),
        (TextOutput(_short), "text"),
    ],
)
async def test_an_output_that_is_not_valid_is_named_in_plain_words(wanted: Any, name: str) -> None:
    """The type that was wanted, and not the class of PydanticAI that it is wrapped in."""

    def answer(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
        if info.output_tools and not info.allow_text_output:
            return calls((info.output_tools[0].name, {"unknown": "x"}))
        return says("no")

    worker = WorkerEntry(name="w", output_type=wanted, retries=1)
    with pytest.raises(OutputError) as caught:
        await Runtime(model=FunctionModel(answer, profile=_PROFILE)).call(worker, "x")
    assert re.search(r"gave no valid (.*) after 2 tries: .", str(caught.value))[1] == name  # type: ignore[index]
