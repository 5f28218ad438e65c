"""Extra values never pose as fields: what is judged, shown, granted and recorded is what the function receives."""

import dataclasses
import json
from typing import Annotated, Any, NotRequired

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from pydantic import (
    AliasChoices,
    AliasPath,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    RootModel,
    create_model,
    with_config,
)
from pydantic.dataclasses import dataclass as pydantic_dataclass
from pydantic_ai.toolsets import FunctionToolset
from typing_extensions import TypedDict

from llm_do import (
    ApprovalDecision,
    ApprovalDenied,
    ApprovalRequest,
    ArgumentError,
    Runtime,
    Secret,
    ToolEntry,
    WorkerEntry,
    approve_all_callback,
    entry,
)
from llm_do.cli.support.reporting import event_line
from llm_do.core.events import Event
from llm_do.privacy.display import format_arguments
from llm_do.values.fields import fields_of

from ..scripted import calls, says, scripted

ALLOW = ConfigDict(extra="allow")


class Order(BaseModel):
    model_config = ALLOW

    amount: int = Field(default=0, alias="sum")


class Person:
    """Says what it was told to say, yes as a rule, and remembers what it was asked."""

    def __init__(self, *answers: ApprovalDecision) -> None:
        self.answers = list(answers)
        self.asked: list[ApprovalRequest] = []

    def ask(self, request: ApprovalRequest) -> ApprovalDecision:
        self.asked.append(request)
        return self.answers.pop(0) if self.answers else ApprovalDecision(approved=True)


class Shop:
    """A tool with one parameter of a type, what it received, and all that was told about its calls."""

    def __init__(self, kind: Any, *, alone: bool = True, rules: Any = "ask", person: Person | None = None) -> None:
        self.received: list[Any] = []
        self.events: list[str] = []
        self.person = person or Person()
        received = self.received

        async def pay(order: Any) -> str:
            received.append(order)
            return "paid"

        async def pay_beside(order: Any, count: int = 1) -> str:
            received.append(order)
            return "paid"

        function: Any = pay if alone else pay_beside
        function.__annotations__["order"] = kind
        self.tool = ToolEntry.from_function(function, name="pay")
        self.runtime = Runtime(
            [self.tool], tool_rules={"pay": rules}, approval_callback=self.person, message_callback=self._told
        )

    def _told(self, event: Event) -> None:
        self.events.append(event_line(event))

    def model_calls(self, *payloads: dict[str, Any]) -> None:
        """Let a model make calls, one after the other."""
        steps = [calls(("pay", payload)) for payload in payloads]
        self.runtime.call_sync(WorkerEntry(name="w", tools=[self.tool], model=scripted(*steps, says("done"))), "go")

    def recorded(self) -> list[Any]:
        return [record.input_data["order"] for record in self.runtime.trace if record.name == "pay"]

    def told(self) -> list[dict[str, Any]]:
        events = map(json.loads, self.events)
        return [event["arguments"]["order"] for event in events if event["type"] == "call_opened" and event["depth"]]


ATTACK = {"sum": 5000, "amount": 1}


@pytest.mark.parametrize("name", ["sum", "amount"])
@pytest.mark.parametrize("rule", ["deny over", "allow under"])
def test_a_rule_on_a_field_sees_the_field(name: str, rule: str) -> None:
    """An extra value called like the field neither opens nor closes what a rule says about the field."""
    deny = [{"rule": "deny", "when": {name: {"over": 1000}}}]
    allow = [{"rule": "allow", "when": {name: {"at_most": 1000}}}, {"rule": "ask", "except": {name: {"at_most": 1000}}}]
    no = Person(ApprovalDecision(approved=False), ApprovalDecision(approved=False))
    shop = Shop(Order, rules=deny if rule == "deny over" else allow, person=no)
    shop.model_calls(ATTACK, {"sum": 5})
    assert [order.amount for order in shop.received] == [5]


def test_a_name_that_means_a_field_and_an_extra_value_counts_against_the_call() -> None:
    """A function that passes `model_dump()` on uses the extra value, so a rule on that name judges both."""
    shop = Shop(Order, rules=[{"rule": "deny", "when": {"amount": {"over": 1000}}}])
    shop.model_calls({"sum": 1, "amount": 5000})
    assert not shop.received


def test_an_extra_value_is_shown_as_an_extra_value() -> None:
    """The field is the field, and what else was sent stands under a heading that nobody can write."""
    shop = Shop(Order)
    shop.model_calls({**ATTACK, "[extra]": {"amount": 3}})
    assert (
        format_arguments(shop.person.asked[0].payload)
        == 'order: Order{amount: 5000, [extra]: {amount: 1, "[extra]": {amount: 3}}}'
    )
    assert shop.told() == [{"sum": 5000, "[extra]": {"amount": 1, "[extra]": {"amount": 3}}}]
    assert "amount': 1" in str(shop.runtime.trace).partition("[extra]")[2]
    assert (
        format_arguments({"x": {"[extra]": 1}, "y": "Order{amount: 1}"}) == 'x: {"[extra]": 1}\ny: "Order{amount: 1}"'
    )


@pytest.mark.parametrize("where", ["model", "list", "dict"])
def test_extra_values_deep_inside_are_shown_and_recorded(where: str) -> None:
    """Models inside of other values are read in the same way."""
    kind, wrap = {
        "model": (create_model("Cart", first=(Order, ...)), lambda order: {"first": order}),
        "list": (list[Order], lambda order: [order]),
        "dict": (dict[str, Order], lambda order: {"a": order}),
    }[where]
    shop = Shop(kind, alone=False)
    shop.model_calls({"order": wrap(ATTACK)})
    assert "Order{amount: 5000, [extra]: {amount: 1}}" in format_arguments(shop.person.asked[0].payload)
    assert shop.told() == [wrap({"sum": 5000, "[extra]": {"amount": 1}})]


def test_extra_values_of_a_dataclass_are_shown() -> None:
    """A dataclass keeps extra values beside its fields; one inside a model that allows them takes them too."""

    @dataclasses.dataclass
    class Plain:
        amount: int = 0

    holder: Any = create_model("Holder", __config__=ALLOW, plain=(Plain, ...))
    shop = Shop(holder)
    shop.model_calls({"plain": {"amount": 1, "to": "eve"}})
    assert shop.received[0].plain.to == "eve"
    assert (
        format_arguments(shop.person.asked[0].payload) == 'order: Holder{plain: Plain{amount: 1, [extra]: {to: "eve"}}}'
    )
    assert shop.told() == [{"plain": {"amount": 1, "[extra]": {"to": "eve"}}}]


def test_a_grant_is_for_the_field_and_for_the_extra_value() -> None:
    """The same extra value beside another field is another call, and is asked about again."""
    forever = ApprovalDecision(approved=True, approve_for_session=True)
    shop = Shop(Order, person=Person(forever, ApprovalDecision(approved=False)))
    shop.model_calls({"sum": 1, "amount": 7}, {"sum": 1, "amount": 7}, {"sum": 5000, "amount": 7})
    assert [(order.amount, order.model_extra) for order in shop.received] == [(1, {"amount": 7})] * 2
    assert len(shop.person.asked) == 2


# -- a worker, whose fields are arguments ----------------------------------------------------------------------


async def test_a_worker_takes_no_extra_value_that_is_called_like_a_field() -> None:
    """Fields and extra values of an `input_type` are keywords, and there is one of each name."""
    worker = WorkerEntry(name="w", input_type=Order, model=scripted(says("done")))
    for given_arguments in (((Order.model_validate(ATTACK),), {}), ((ATTACK,), {}), ((), ATTACK)):
        with pytest.raises(ArgumentError, match="amount"):
            await Runtime().call(worker, *given_arguments[0], **given_arguments[1])
    boss = WorkerEntry(name="boss", tools=[worker], model=scripted(calls(("w", {"amount": 5000})), says("done")))
    runtime = Runtime()
    await runtime.call(boss, "go")
    assert [record.name for record in runtime.trace] == ["boss"]  # its model is told that `amount` is called `sum`


async def test_the_model_of_a_worker_is_shown_extra_values_apart() -> None:
    """JSON with one key twice would be read as either."""
    kind: Any = create_model("Input", order=(Order, ...))
    runtime = Runtime()
    await runtime.call(WorkerEntry(name="w", input_type=kind, model=scripted(says("done"))), order=ATTACK)
    prompt: Any = runtime.messages[0].parts[0].content
    assert json.loads(prompt) == {"order": {"sum": 5000, "[extra]": {"amount": 1}}}


# -- edited arguments ------------------------------------------------------------------------------------------


def edits(**arguments: Any) -> Person:
    return Person(ApprovalDecision(approved=True, arguments=arguments))


def test_an_edited_extra_value_stays_one() -> None:
    """What a person writes is read as what a model writes, with the field's own name as another name of the field."""
    shop = Shop(Order, person=edits(order={"sum": 10, "amount": 2}))
    shop.model_calls(ATTACK)
    assert [(order.amount, order.model_extra) for order in shop.received] == [(10, {"amount": 2})]
    shop = Shop(Order, person=edits(order={"amount": 10}))
    shop.model_calls({"sum": 5000})
    assert [(order.amount, order.model_extra) for order in shop.received + shop.recorded()] == [(10, {}), (10, {})]


@with_config(ALLOW)
class Wire(TypedDict):
    amount: NotRequired[Annotated[int, Field(alias="sum")]]
    to: NotRequired[str]


def test_a_typed_dict_can_be_edited_as_it_is_shown() -> None:
    """It is shown by its own keys, and these are not dropped when it is validated again."""
    shop = Shop(Wire, person=edits(order={"amount": 10, "to": "bob"}))
    shop.model_calls({"sum": 5000, "to": "bob"})
    assert shop.received == [{"amount": 10, "to": "bob"}]


async def test_what_was_left_alone_is_not_validated_again() -> None:
    """A validator that reads cents from a text would read them again from its own result."""
    paid: list[tuple[int, str]] = []
    cents = Annotated[int, BeforeValidator(lambda value: int(float(value) * 100))]

    @entry(requires_approval=True)
    async def pay(amount: cents, to: str) -> None:
        paid.append((amount, to))

    await Runtime(approval_callback=edits(amount=500, to="bob")).call(pay, "5.00", "eve")
    assert paid == [(500, "bob")]


async def test_names_that_two_parameters_have_of_each_other_are_not_swapped_by_an_edit() -> None:
    """Arguments go back to the names that they are validated by."""
    moved: list[tuple[int, int]] = []

    @entry(requires_approval=True)
    async def move(a: Annotated[int, Field(alias="b")], b: Annotated[int, Field(alias="a")]) -> None:
        moved.append((a, b))

    boss = WorkerEntry(name="boss", tools=[move], model=scripted(calls(("move", {"b": 1, "a": 2})), says("done")))
    await Runtime(approval_callback=edits(a=5, b=2)).call(boss, "go")
    assert moved == [(5, 2)]
    with pytest.raises(ApprovalDenied):
        await Runtime(tool_rules={"move": [{"rule": "deny", "when": {"a": 5}}]}).call(move, a=7, b=5)


# -- secrets ---------------------------------------------------------------------------------------------------


def test_secrets_are_hidden_in_fields_and_in_extra_values() -> None:
    """Each keeps its place, and a key that is a secret is hidden as well."""

    class Login(BaseModel):
        model_config = ALLOW

        token: Annotated[str, Secret] = Field(default="", alias="key")

    shop = Shop(Login)
    shop.model_calls({"key": "hunter-2000", "token": "hunter-3000", "note": "hunter-2000", "hunter-2000": 1})
    assert shop.received[0].token == "hunter-2000"
    told = "".join([*shop.events, str(shop.runtime.trace), str(shop.runtime.messages), shop.person.asked[0].text()])
    assert "hunter-2000" not in told
    assert fields_of(shop.recorded()[0]) == (
        {"token": "[secret]"},
        {"token": "[secret]", "note": "[secret]", "[secret]": 1},
    )


@pytest.mark.parametrize("alone", [True, False])
def test_secrets_of_a_typed_dict_are_hidden_whatever_they_are_called(alone: bool) -> None:
    """A schema has the alias of a key, and the argument has the key."""
    kind: Any = TypedDict("kind", {"token": Annotated[str, Secret, Field(alias="key")]})  # type: ignore[misc]
    shop = Shop(kind, alone=alone)
    shop.runtime.call_sync("pay", order={"key": "hunter-2000"})
    assert shop.received == [{"token": "hunter-2000"}]
    assert "hunter" not in "".join([*shop.events, str(shop.runtime.trace), shop.person.asked[0].text()])


# -- all kinds of types and payloads -----------------------------------------------------------------------------


def test_a_foreign_tool_with_another_name_for_an_argument_is_not_judged_by_a_default() -> None:
    """Equal numbers of two arguments do not make one of them known."""
    paid: list[int] = []
    toolset: FunctionToolset[Any] = FunctionToolset()

    @toolset.tool_plain
    def pay(amount: Annotated[int, Field(alias="sum")] = 0, count: int = 0, **more: int) -> str:
        paid.append(amount)
        return "paid"

    rules = {"pay": [{"rule": "deny", "when": {"sum": {"over": 50}}}]}
    steps = [calls(("pay", {"sum": 100, "count": 100})), says("done")]
    worker = WorkerEntry(name="w", toolsets=[lambda ctx: toolset], model=scripted(*steps), tool_rules=rules)
    Runtime(approval_callback=approve_all_callback).call_sync(worker, "go")
    assert not paid


ALIASES: dict[str, Any] = {
    "none": Field(default=7),
    "alias": Field(default=7, alias="sum"),
    "validation": Field(default=7, validation_alias="sum"),
    "both": Field(default=7, validation_alias="sum", serialization_alias="total"),
    "choices": Field(default=7, validation_alias=AliasChoices("sum", "total")),
    "path": Field(default=7, validation_alias=AliasChoices(AliasPath("deep", "x"), "sum")),
}


def make_type(kind: str, alias: str, config: ConfigDict) -> Any:
    """A type with the fields `amount` and `note`."""
    info = ALIASES.get(alias, Field(default=7))
    if alias == "generated":
        config = {**config, "alias_generator": lambda name: {"amount": "sum"}.get(name, name)}
    if kind in ("model", "root"):
        model: Any = create_model("Made", __config__=config, amount=(int, info), note=(int, 0))
        return model if kind == "model" else RootModel[model]
    if kind == "typed dict":
        hint: Any = int if alias in ("none", "generated") else Annotated[int, _without_default(info)]
        made: Any = TypedDict("made", {"amount": NotRequired[hint], "note": NotRequired[int]})  # type: ignore[misc]
        return with_config(config)(made)
    hint = int if alias in ("none", "generated") else Annotated[int, _without_default(info)]
    if kind == "dataclass":
        plain = dataclasses.make_dataclass("Made", [("amount", hint, 7), ("note", int, 0)])
        plain.__pydantic_config__ = config  # type: ignore[attr-defined]
        return plain
    return pydantic_dataclass(config=config)(
        type("Made", (), {"__annotations__": {"amount": hint, "note": int}, "amount": 7, "note": 0})
    )


def _without_default(info: Any) -> Any:
    return Field(alias=info.alias, validation_alias=info.validation_alias, serialization_alias=info.serialization_alias)


def declared(value: Any) -> dict[str, Any]:
    """What a function reads from a value, by attribute or by key."""
    value = value.root if isinstance(value, RootModel) else value
    if isinstance(value, dict):
        return {name: value[name] for name in ("amount", "note") if name in value}
    return {"amount": value.amount, "note": value.note}


numbers = st.sampled_from([0, 1, 7, 999, 5000])
payloads = st.fixed_dictionaries(
    {},
    optional={
        **dict.fromkeys(("amount", "sum", "total", "note", "other", "[extra]", "order"), numbers),
        "deep": st.fixed_dictionaries({}, optional={"x": numbers, "y": numbers}),
    },
)


@settings(max_examples=50, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    kind=st.sampled_from(["model", "root", "dataclass", "pydantic dataclass", "typed dict"]),
    alias=st.sampled_from([*ALIASES, "generated"]),
    extra=st.sampled_from(["allow", "ignore"]),
    by_name=st.booleans(),
    alone=st.booleans(),
    payload=payloads,
)
@example(kind="model", alias="alias", extra="allow", by_name=False, alone=True, payload=ATTACK)
@example(kind="root", alias="both", extra="allow", by_name=True, alone=True, payload={"sum": 5000, "total": 1})
@example(kind="dataclass", alias="alias", extra="allow", by_name=False, alone=True, payload=ATTACK)
@example(kind="typed dict", alias="alias", extra="allow", by_name=False, alone=True, payload=ATTACK)
def test_what_the_function_receives_is_what_was_judged_shown_and_recorded(
    kind: str, alias: str, extra: Any, by_name: bool, alone: bool, payload: dict[str, Any]
) -> None:
    """For every kind of type with extra values and aliases, and whatever a model sends."""
    made = make_type(kind, alias, ConfigDict(extra=extra, populate_by_name=by_name))
    rules: list[Any] = [{"rule": "ask"}]
    if alone:
        schema = Shop(made).tool.parameters.json_schema["properties"]
        told = next(name for name in ("sum", "total", "amount") if name in schema)
        rules.append({"rule": "deny", "when": {told: {"over": 1000}}})
    shop = Shop(made, alone=alone, rules=rules)
    shop.model_calls(payload if alone else {"order": payload})
    if not shop.received:
        return
    received = declared(shop.received[0])
    assert not alone or received.get("amount", 0) <= 1000
    shown, _, extras = format_arguments(shop.person.asked[0].payload, full=True, width=1_000).partition("[extra]: ")
    for name in ("amount", "note"):
        seen = [part.replace("}", ",").partition(",")[0] for part in shown.split(f"{name}: ")[1:]]
        assert seen == ([str(received[name])] if name in received else [])
    value = shop.received[0].root if kind == "root" else shop.received[0]
    fields = fields_of(value)
    others = {} if fields is None else fields.extra
    assert bool(extras) == bool(others)
    assert all(name in extras for name in others)
    recorded = shop.recorded()[0]
    assert type(recorded) is type(shop.received[0])
    assert declared(recorded) == received
    told_about = shop.told()[0]
    if kind == "typed dict":
        assert told_about == recorded == value
    else:
        assert [told_about[name] for name in ("amount", "sum", "total") if name in told_about] == [received["amount"]]
        assert told_about.get("[extra]", {}) == others
