"""Arguments bind as in Python, the same for tools and workers, and never run anything when they do not fit."""

import inspect
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import BaseModel, Field
from pydantic_ai import BinaryContent, RunContext, Tool
from pydantic_ai.messages import ModelMessage, ModelRequest, ModelResponse, UserPromptPart
from pydantic_ai.models.function import AgentInfo
from typing_extensions import TypedDict

from llm_do import ArgumentError, Context, Runtime, ToolEntry, WorkerEntry, entry
from llm_do.arguments.inputs import bind_input
from llm_do.arguments.prompts import NO_INPUT
from llm_do.arguments.signatures import tool_parameters
from llm_do.core.adapt import parameters_of

from ..scripted import calls, says, scripted


class Brief(BaseModel):
    topic: str
    pages: int = 1


class Other(BaseModel):
    topic: str


class Shape(TypedDict):
    topic: str


async def bound(function: Any, *args: Any, **kwargs: Any) -> Any:
    return await Runtime().call(ToolEntry.from_function(function), *args, **kwargs)


# -- as in Python ------------------------------------------------------------------------------------


@st.composite
def signatures(draw: st.DrawFn) -> str:
    """A parameter list with every kind of parameter, such as `a, /, b=0, *rest, c, **more`."""
    names = iter("abcdef")
    parts: list[str] = []
    optional = False
    for separator in ("/", ""):
        count = draw(st.integers(0, 2))
        for _ in range(count):
            optional = optional or draw(st.booleans())
            parts.append(f"{next(names)}: int{' = 0' if optional else ''}")
        if separator and count:
            parts.append(separator)
    rest = draw(st.sampled_from(["", "*", "*rest: int"]))
    keyword_only = [f"{next(names)}: int{draw(st.sampled_from(['', ' = 0']))}" for _ in range(draw(st.integers(0, 2)))]
    if rest == "*rest: int" or (rest and keyword_only):
        parts.append(rest)
        parts.extend(keyword_only)
    if draw(st.booleans()):
        parts.append("**more: int")
    return ", ".join(parts)


@settings(max_examples=300)
@given(
    signature=signatures(),
    args=st.lists(st.integers(), max_size=5),
    kwargs=st.dictionaries(st.sampled_from("abcdefz"), st.integers(), max_size=4),
)
def test_a_call_binds_exactly_when_python_would_bind_it(
    signature: str, args: list[int], kwargs: dict[str, int]
) -> None:
    """With the same values in the same places, whatever kinds of parameters there are."""
    namespace: dict[str, Any] = {}
    exec(f"def function({signature}):\n    return dict(locals())", namespace)
    function = namespace["function"]
    parameters = inspect.signature(function).parameters.values()
    open_keywords = any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters)
    taken = {p.name for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.VAR_POSITIONAL)}
    runtime = Runtime()
    try:
        expected = function(*args, **kwargs)
    except TypeError:
        with pytest.raises(ArgumentError):
            runtime.call_sync(ToolEntry.from_function(function), *args, **kwargs)
        assert not runtime.trace
        return
    if open_keywords and taken & kwargs.keys():
        # `def f(a, /, **more)` can be called with another `a` in Python; arguments by name cannot tell them apart.
        with pytest.raises(ArgumentError):
            runtime.call_sync(ToolEntry.from_function(function), *args, **kwargs)
        return
    assert runtime.call_sync(ToolEntry.from_function(function), *args, **kwargs) == expected


@settings(max_examples=200)
@given(
    values=st.fixed_dictionaries({"topic": st.text()}, optional={"pages": st.integers(0, 99)}),
    how=st.sampled_from(["keywords", "mapping", "model", "positional", "mixed"]),
)
def test_tools_and_workers_bind_alike(values: dict[str, Any], how: str) -> None:
    """Every way to pass arguments means the same to a function and to a worker with the same parameters."""

    def function(topic: str, pages: int = 1) -> None: ...

    tool = ToolEntry.from_function(function)
    worker = WorkerEntry(name="worker", input_type=Brief)
    args: tuple[Any, ...] = ()
    kwargs: dict[str, Any] = {}
    match how:
        case "keywords":
            kwargs = values
        case "mapping":
            args = (values,)
        case "model":
            args = (Brief(**values),)
        case "positional":
            args = tuple(values[name] for name in ("topic", "pages") if name in values)
        case _:
            args, kwargs = (values["topic"],), {key: value for key, value in values.items() if key != "topic"}
    expected = {"pages": 1, **values}
    assert tool.parameters.bind(args, kwargs) == expected
    assert worker.parameters.bind(args, kwargs) == expected


async def test_no_parameter_name_collides_with_the_machinery() -> None:
    """A tool may call its parameters `self`, `entry`, `ctx`, `name` or `frame`."""

    def echo(self: int, entry: int, name: int, frame: int, args: int, kwargs: int) -> int:
        return self + entry + name + frame + args + kwargs

    runtime = Runtime([ToolEntry.from_function(echo)])
    assert await runtime.call("echo", self=1, entry=2, name=3, frame=4, args=5, kwargs=6) == 21


# -- a lone mapping or model ----------------------------------------------------------------------------


def takes_text(topic: str, pages: int = 1) -> Any:
    return topic, pages


def takes_dict(data: dict[str, Any]) -> Any:
    return data


def takes_mapping_or_none(data: Mapping[str, Any] | None) -> Any:
    return data


def takes_anything(data: Any) -> Any:
    return data


def takes_unannotated(data) -> Any:  # type: ignore[no-untyped-def]
    return data


def takes_keyword_only(*, data: dict[str, Any]) -> Any:
    return data


def takes_any_keywords(**data: Any) -> Any:
    return data


class Data(BaseModel):
    data: int


def takes_object(data: object) -> Any:
    return data


def takes_shape(data: Shape) -> Any:
    return data


def takes_brief(brief: Brief) -> Any:
    return brief


def takes_annotated_brief(brief: Annotated[Brief | None, Field(description="the brief")]) -> Any:
    return brief


def takes_any_model(model: BaseModel) -> Any:
    return model


def takes_model_with_its_own_name(brief: "Recursive") -> Any:
    return brief


class Recursive(BaseModel):
    brief: Any = None


BRIEF = Brief(topic="x", pages=2)


@pytest.mark.parametrize(
    ("function", "value", "expected"),
    [
        (takes_text, {"topic": "x"}, ("x", 1)),
        (takes_text, BRIEF, ("x", 2)),
        (takes_dict, {"topic": "x"}, {"topic": "x"}),
        (takes_mapping_or_none, {"topic": "x"}, {"topic": "x"}),
        (takes_anything, {"data": "x"}, {"data": "x"}),
        (takes_unannotated, {"data": "x"}, "x"),
        (takes_unannotated, Data(data=1), 1),
        (takes_keyword_only, {"data": {"a": 1}}, {"a": 1}),
        (takes_any_keywords, {"data": 1}, {"data": 1}),
        (takes_object, {"data": "x"}, {"data": "x"}),
        (takes_anything, BRIEF, BRIEF),
        (takes_shape, {"topic": "x"}, {"topic": "x"}),
        (takes_brief, BRIEF, BRIEF),
        (takes_brief, {"brief": {"topic": "x", "pages": 2}}, BRIEF),
        (takes_annotated_brief, BRIEF, BRIEF),
        (takes_any_model, BRIEF, BRIEF),
        (takes_model_with_its_own_name, Recursive(brief=1), Recursive(brief=1)),
        (takes_model_with_its_own_name, {"brief": Recursive(brief=1)}, Recursive(brief=1)),
    ],
    ids=lambda value: getattr(value, "__name__", None) or repr(value),
)
async def test_the_signature_decides_what_a_lone_mapping_or_model_is(function: Any, value: Any, expected: Any) -> None:
    """It is the arguments, unless the first parameter takes it."""
    assert await bound(function, value) == expected


async def test_a_model_of_another_class_is_the_arguments() -> None:
    with pytest.raises(ArgumentError, match=r"takes_brief\(\): missing argument 'brief'; unknown argument 'topic'"):
        await bound(takes_brief, Other(topic="x"))


async def test_nested_values_of_a_lone_model_stay_objects() -> None:
    """A model's fields are passed on, not dumped."""

    class Outer(BaseModel):
        brief: Brief

    assert await bound(takes_brief, Outer(brief=BRIEF)) is BRIEF


async def test_argument_names_must_be_strings() -> None:
    with pytest.raises(ArgumentError, match="argument names must be strings, got 1"):
        await bound(takes_text, {1: "x"})


# -- what goes wrong -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("args", "kwargs", "message"),
    [
        ((), {}, "takes_text(): missing argument 'topic'"),
        (("x",), {"topic": "y"}, "takes_text() got two values for argument 'topic'."),
        (("x", 1, 2), {}, "takes_text() takes at most 2 positional arguments, got 3."),
        (("x",), {"page": 3}, "takes_text(): unknown argument 'page'. Did you mean 'pages'?"),
        (("x",), {"pages": "many"}, "takes_text(): argument 'pages': Input should be a valid integer"),
    ],
)
async def test_wrong_arguments_raise_as_python_would_and_say_which(
    args: tuple[Any, ...], kwargs: dict[str, Any], message: str
) -> None:
    """An `ArgumentError` is a `TypeError`; nothing ran and nothing was recorded."""
    runtime = Runtime()
    with pytest.raises(TypeError) as caught:
        await runtime.call(ToolEntry.from_function(takes_text), *args, **kwargs)
    assert isinstance(caught.value, ArgumentError)
    assert message in str(caught.value)
    assert len(runtime.trace) == 0


async def test_a_workers_arguments_are_checked_before_its_model_is_asked() -> None:
    """`input_type` is a contract."""
    worker = WorkerEntry(name="worker", input_type=Brief)
    runtime = Runtime([worker], model=scripted(says("never")))
    for wrong in ({}, {"topic": "x", "pages": "many"}, {"topic": "x", "pgaes": 1}):
        with pytest.raises(ArgumentError, match=r"^worker\(\)"):
            await runtime.call("worker", wrong)
    with pytest.raises(ArgumentError, match="takes one positional argument, 'input', got 2"):
        await runtime.call(WorkerEntry(name="open"), "a", "b")
    with pytest.raises(ArgumentError, match="two values for argument 'input'"):
        await runtime.call(WorkerEntry(name="open"), "a", input="b")
    assert not runtime.trace
    assert not runtime.usage


async def test_an_args_validator_holds_for_calls_from_python_too() -> None:
    """PydanticAI runs it for a model's calls only."""
    from pydantic_ai import ModelRetry

    ran: list[int] = []

    def small(ctx: RunContext[Any], x: int) -> None:
        if x > 10:
            raise ModelRetry("x must be small")

    def function(x: int) -> int:
        ran.append(x)
        return x

    runtime = Runtime([ToolEntry(tool=Tool(function, args_validator=small))])
    assert await runtime.call("function", 1) == 1
    with pytest.raises(ArgumentError, match=r"function\(\): x must be small"):
        await runtime.call("function", 99)
    assert ran == [1]
    assert len(runtime.trace) == 1


async def test_a_tool_made_from_a_schema_binds_by_its_schema() -> None:
    schema = {"type": "object", "properties": {"a": {}, "b": {}}, "required": ["a"], "additionalProperties": False}

    async def add(**kwargs: Any) -> Any:
        return kwargs

    tool = ToolEntry(tool=Tool.from_schema(add, "add", "Adds.", schema))
    runtime = Runtime([tool])
    assert await runtime.call("add", 1, b=2) == {"a": 1, "b": 2}
    assert await runtime.call("add", {"a": 1}) == {"a": 1}
    with pytest.raises(ArgumentError, match="missing argument 'a'"):
        await runtime.call("add", b=2)
    with pytest.raises(ArgumentError, match="unknown argument 'c'"):
        await runtime.call("add", 1, c=2)


async def test_parameters_of_callable_objects_and_methods() -> None:
    """Anything PydanticAI makes a tool of can be bound."""

    class Store:
        def get(self, key: str) -> str:
            return f"got {key}"

    assert await bound(Store().get, key="k") == "got k"
    assert tool_parameters(Tool(Store().get)).json_schema["properties"] == {"key": {"type": "string"}}


# -- what a worker's model sees ----------------------------------------------------------------------------


async def prompt_for(worker: WorkerEntry[str], *args: Any, **kwargs: Any) -> Any:
    seen: list[Any] = []

    def look(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
        request = messages[-1]
        assert isinstance(request, ModelRequest)
        seen.extend(part.content for part in request.parts if isinstance(part, UserPromptPart))
        return says("ok")

    await Runtime(model=scripted(look)).call(worker, *args, **kwargs)
    return seen[0] if seen else None


async def test_a_lone_input_is_plain_text_and_anything_else_is_structured() -> None:
    worker = WorkerEntry(name="worker", instructions="Go.")
    assert await prompt_for(worker, "AI safety") == "AI safety"
    assert await prompt_for(worker, {"input": "AI safety"}) == "AI safety"
    assert await prompt_for(worker, input=["a", 1]) == '[\n  "a",\n  1\n]'
    assert await prompt_for(worker, input=0) == "0"
    assert await prompt_for(worker, {"topic": "AI safety"}) == '{\n  "topic": "AI safety"\n}'
    assert await prompt_for(worker, "x", depth=2) == '{\n  "input": "x",\n  "depth": 2\n}'
    assert await prompt_for(worker, BRIEF) == '{\n  "topic": "x",\n  "pages": 2\n}'


async def test_a_declared_input_is_structured() -> None:
    @dataclass
    class Order:
        item: str
        attachments: list[str]

    assert await prompt_for(WorkerEntry(name="w", input_type=Brief), "x") == '{\n  "topic": "x",\n  "pages": 1\n}'
    ordered = await prompt_for(WorkerEntry(name="w", input_type=Order), "tea", ["cup"])
    assert ordered == '{\n  "item": "tea",\n  "attachments": [\n    "cup"\n  ]\n}'


async def test_fields_are_bound_by_name_and_by_alias() -> None:
    class Mail(BaseModel):
        sender: str = Field(alias="from")

    worker = WorkerEntry(name="worker", input_type=Mail)
    assert worker.parameters.bind((), {"sender": "me"}) == {"sender": "me"}
    assert worker.parameters.bind(({"from": "me"},), {}) == {"sender": "me"}


async def test_attachments_go_to_the_model_beside_the_text() -> None:
    letter = BinaryContent(b"Dear ...", media_type="text/plain")
    assert await prompt_for(WorkerEntry(name="w"), "Look!", attachments=[letter]) == ["Look!", letter]
    with pytest.raises(ArgumentError, match="an item of 'attachments' must be a path"):
        await prompt_for(WorkerEntry(name="w"), "Look!", attachments=[5])
    with pytest.raises(ArgumentError, match="Give paths as a keyword"):  # a mapping may come from anywhere
        await prompt_for(WorkerEntry(name="w"), {"input": "Look!", "attachments": [__file__]})


def test_an_input_type_must_have_fields() -> None:
    with pytest.raises(ArgumentError, match="input_type must be a pydantic model or a dataclass"):
        WorkerEntry(name="w", input_type=str)


async def test_an_entry_of_ones_own_may_declare_its_parameters() -> None:
    class Mine:
        name = "mine"
        kind = "tool"
        requires_approval = False
        model = None
        input_type = Brief

        async def call(self, input_data: Any, ctx: Context, run_ctx: RunContext[Context]) -> Any:
            return input_data

    runtime = Runtime([Mine()])
    assert await runtime.call("mine", "x") == {"topic": "x", "pages": 1}
    with pytest.raises(ArgumentError, match=r"mine\(\): missing argument 'topic'"):
        await runtime.call("mine")


async def test_arguments_are_validated_the_same_way_for_python_and_models() -> None:
    """The lax mode of pydantic, for both."""
    seen: list[Any] = []

    @entry
    async def take(x: int) -> None:
        seen.append(x)

    worker = WorkerEntry(name="w", tools=[take])
    runtime = Runtime([take, worker], model=scripted(calls(("take", {"x": "5"})), says("ok")))
    await runtime.call("take", "5")
    await runtime.call("w", "go")
    assert seen == [5, 5]


async def test_an_instance_of_a_dataclass_input_type_is_the_arguments() -> None:
    @dataclass
    class Order:
        item: str
        count: int = 1

    worker = WorkerEntry(name="w", input_type=Order)
    assert worker.parameters.bind((Order("tea", 2),), {}) == {"item": "tea", "count": 2}


async def test_a_field_given_by_name_and_by_alias_is_given_twice() -> None:
    class Mail(BaseModel):
        sender: str = Field(alias="from")

    with pytest.raises(ArgumentError, match="two values for argument 'sender'"):
        WorkerEntry(name="w", input_type=Mail).parameters.bind(({"from": "a", "sender": "b"},), {})


@pytest.mark.parametrize("more", [False, True])
@pytest.mark.parametrize("how", ["keywords", "mapping", "named", "positional"])
async def test_a_parameter_given_by_name_and_by_alias_is_given_twice(more: bool, how: str) -> None:
    """Also where the function takes any keywords."""

    def closed(sender: Annotated[str, Field(alias="from")]) -> None: ...
    def open_to_all(sender: Annotated[str, Field(alias="from")], **more: Any) -> None: ...

    parameters = parameters_of(ToolEntry.from_function(open_to_all if more else closed))
    both = {"from": "a", "sender": "b"}
    with pytest.raises(ArgumentError, match="two values for argument 'sender', which is 'from'"):
        match how:
            case "keywords":
                parameters.bind((), both)
            case "mapping":
                parameters.bind((both,), {})
            case "named":
                parameters.bind_named(both, by_name=True)
            case _:
                parameters.bind(("b",), {"from": "a"})
    assert parameters.bind((), {"from": "a"}) == parameters.bind(("a",), {}) == {"sender": "a"}


async def test_the_model_is_held_to_the_same_contract() -> None:
    """It too is told when it sends what nobody takes."""
    inner = WorkerEntry(name="inner", input_type=Brief, model=scripted(says("in")))
    outer = WorkerEntry(name="outer", tools=[inner])
    model = scripted(calls(("inner", {"topic": "x", "pgaes": 2})), calls(("inner", {"topic": "x"})), says("ok"))
    runtime = Runtime(model=model)
    assert await runtime.call(outer, "go") == "ok"
    assert [t.input_data for t in runtime.trace if t.name == "inner"] == [{"topic": "x", "pages": 1}]


async def test_bytes_can_be_shown_to_a_model() -> None:
    assert await prompt_for(WorkerEntry(name="w"), data=b"\xff") == '{\n  "data": "_w=="\n}'


# -- a mapping of arguments is keywords ------------------------------------------------------------------


def takes_two(data: Any, n: int = 0) -> Any:
    return data, n


def takes_by_position(data: Any, /) -> Any:
    return data


@pytest.mark.parametrize(
    ("function", "values", "expected"),
    [
        (takes_two, {"data": 5, "n": 3}, (5, 3)),
        (takes_dict, {"data": {"n": 3}}, {"n": 3}),
        (takes_unannotated, {"data": 5}, 5),
        (takes_by_position, {"data": 5}, 5),
        (takes_brief, {"brief": {"topic": "x"}}, Brief(topic="x")),
    ],
)
def test_a_mapping_of_arguments_is_bound_by_name_whatever_the_first_parameter_takes(
    function: Any, values: dict[str, Any], expected: Any
) -> None:
    tool = ToolEntry.from_function(function)
    bound_values = bind_input(tool.parameters, values)
    arguments = list(bound_values.values()) if function is takes_by_position else []
    assert (function(*arguments) if arguments else function(**bound_values)) == expected


@pytest.mark.parametrize(
    "function", [takes_two, takes_dict, takes_unannotated, takes_shape, takes_brief, takes_keyword_only]
)
def test_an_error_shows_how_to_give_a_mapping_as_the_value(function: Any) -> None:
    name = next(iter(inspect.signature(function).parameters))
    with pytest.raises(ArgumentError, match=rf'If the mapping is the value of .*, write {{"{name}": {{\.\.\.}}}}\.$'):
        bind_input(ToolEntry.from_function(function).parameters, {"other": 1})


def test_no_error_shows_it_where_the_first_parameter_takes_no_mapping() -> None:
    with pytest.raises(ArgumentError) as caught:
        bind_input(ToolEntry.from_function(takes_text).parameters, {"other": 1})
    assert "{" not in str(caught.value)


def test_an_instance_of_a_workers_own_input_type_is_always_the_arguments() -> None:
    """Though its first field takes anything."""
    worker = WorkerEntry(name="w", input_type=Recursive)
    assert worker.parameters.bind((Recursive(brief=1),), {}) == {"brief": 1}
    assert bind_input(worker.parameters, Recursive(brief=1)) == {"brief": 1}


# -- blank and missing input -----------------------------------------------------------------------------


@pytest.mark.parametrize("blank", ["", " \n\t", "\u00a0\u3000\u2028", "\u200b\ufeff\u2060", "\u3164\u2800", "\x00\x1b"])
@pytest.mark.parametrize("how", ["positional", "keyword", "mapping", "turn"])
async def test_a_worker_that_declares_nothing_is_not_called_with_a_blank_input(blank: str, how: str) -> None:
    """No request is made, no record is left."""
    worker = WorkerEntry(name="w", instructions="Go.")
    runtime = Runtime([worker], model=scripted(says("never")))
    with pytest.raises(ArgumentError, match=r"^w\(\): argument 'input' is blank. Give the task as text"):
        match how:
            case "positional":
                await runtime.call(worker, blank)
            case "keyword":
                await runtime.call(worker, input=blank)
            case "mapping":
                await runtime.call(worker, {"input": blank, "attachments": []})
            case _:
                async with worker.start(runtime) as scope:
                    await scope.run_turn(blank)
    assert (list(runtime.trace), runtime.usage) == ([], {})


async def test_a_missing_input_is_no_call_either() -> None:
    runtime = Runtime([WorkerEntry(name="w", instructions="Go.")], model=scripted(says("never")))
    for args in ((), ({},), (None,)):
        with pytest.raises(ArgumentError, match="missing argument 'input'"):
            await runtime.call("w", *args)
    assert not runtime.trace


async def test_files_are_input_enough_and_no_blank_text_goes_with_them() -> None:
    letter = BinaryContent(b"Dear ...", media_type="text/plain")
    assert await prompt_for(WorkerEntry(name="w"), attachments=[letter]) == [letter]
    assert await prompt_for(WorkerEntry(name="w"), " ", attachments=[letter]) == [letter]


async def test_a_model_that_calls_a_worker_with_a_blank_input_is_asked_again() -> None:
    inner = WorkerEntry(name="inner", model=scripted(says("in")))
    outer = WorkerEntry(name="outer", tools=[inner])
    told: list[str] = []

    def again(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
        told.append(str(messages[-1]))
        return calls(("inner", {"input": "tea"}))

    runtime = Runtime(model=scripted(calls(("inner", {"input": " \u200b"})), again, says("ok")))
    assert await runtime.call(outer, "go") == "ok"
    assert "Write the task or the question as text. It must not be blank." in told[0]
    assert [record.input_data for record in runtime.trace if record.name == "inner"] == [{"input": "tea"}]


async def test_no_worker_sends_an_empty_prompt() -> None:
    """Whatever it declares."""

    class Nothing(BaseModel):
        pass

    class Lone(BaseModel):
        input: str | None = None

    assert await prompt_for(WorkerEntry(name="w", input_type=Nothing)) == NO_INPUT
    assert await prompt_for(WorkerEntry(name="w", input_type={"type": "object", "properties": {"x": {}}})) == NO_INPUT
    assert await prompt_for(WorkerEntry(name="w", input_type=Lone), " ") == '{\n  "input": " "\n}'
    assert await prompt_for(WorkerEntry(name="w", input_type=Lone)) == '{\n  "input": null\n}'


async def test_a_worker_whose_instructions_are_enough_takes_no_input() -> None:
    worker = WorkerEntry(name="daily", instructions="Report.", input_type="none")
    assert await prompt_for(worker) == NO_INPUT == "Do what your instructions say."
    assert await prompt_for(worker, {}) == NO_INPUT
    for args, kwargs in ((("x",), {}), (({"input": "x"},), {}), ((), {"input": "x"})):
        with pytest.raises(ArgumentError, match=r"daily\(\) takes no input: .*`input: none`"):
            await prompt_for(worker, *args, **kwargs)


async def test_another_model_sees_such_a_worker_as_a_tool_without_parameters() -> None:
    inner = WorkerEntry(name="daily", input_type="none", model=scripted(says("in")))
    seen: list[Any] = []

    def look(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
        seen.append(info.function_tools[0].parameters_json_schema)
        return calls(("daily", {"input": "x"}))

    runtime = Runtime(model=scripted(look, calls(("daily", {})), says("ok")))
    assert await runtime.call(WorkerEntry(name="outer", tools=[inner]), "go") == "ok"
    assert seen[0]["properties"] == {}
    assert [record.input_data for record in runtime.trace if record.name == "daily"] == [{}]


# -- names that are nearly right, and attachments that are data ------------------------------------------------


async def test_a_keyword_that_is_nearly_input_is_told() -> None:
    events: list[Any] = []
    runtime = Runtime(model=scripted(says("ok")), message_callback=events.append)
    worker = WorkerEntry(name="w")
    await runtime.call(worker, inptu="hi")
    await runtime.call(worker, topic="hi", point=1)
    await runtime.call(worker, "hi", inputs=[1])
    (notice,) = [event.text for event in events if event.type == "notice"]
    assert "'inptu'" in notice
    assert "input=..." in notice


async def test_an_argument_without_a_name_is_named_as_it_is() -> None:
    @entry
    def shout(text: str) -> str:
        return text

    with pytest.raises(ArgumentError, match="unknown argument ''"):
        await Runtime([shout]).call("shout", {"text": "x", "": 1})


@pytest.mark.parametrize("how", ["call", "keywords", "mapping", "turn"])
@pytest.mark.parametrize(
    "given", ["path", ["path"], [{"kind": "image-url", "url": "file:///path"}], [], None, {"a": 1}]
)
async def test_attachments_next_to_other_keys_are_data_and_open_no_file(tmp_path: Path, how: str, given: Any) -> None:
    secret = tmp_path / "secret.txt"
    secret.write_text("TOP SECRET")
    record = {"subject": "hi", "attachments": _with_path(given, str(secret))}
    worker = WorkerEntry(name="w")
    seen: list[Any] = []

    def look(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
        seen.append(messages[-1].parts[0].content)  # type: ignore[union-attr]
        return says("ok")

    runtime = Runtime([worker], model=scripted(look))
    match how:
        case "call":
            await runtime.call("w", "look", **record)
        case "keywords":
            await runtime.call("w", **record)
        case "mapping":
            await runtime.call("w", record)
        case _:
            async with worker.start(runtime) as scope:
                await scope.run_turn(record)
    assert isinstance(seen[0], str)
    assert "TOP SECRET" not in seen[0]
    assert json.loads(seen[0])["attachments"] == record["attachments"]


def _with_path(value: Any, path: str) -> Any:
    if isinstance(value, list):
        return [_with_path(item, path) for item in value]
    if isinstance(value, dict):
        return {key: _with_path(item, path) for key, item in value.items()}
    return value.replace("path", path) if isinstance(value, str) else value


async def test_content_that_only_python_can_make_is_a_file_next_to_other_keys_too() -> None:
    letter = BinaryContent(b"Dear ...", media_type="text/plain")
    shown = await prompt_for(WorkerEntry(name="w"), "look", depth=2, attachments=[letter])
    assert shown == ['{\n  "input": "look",\n  "depth": 2\n}', letter]
