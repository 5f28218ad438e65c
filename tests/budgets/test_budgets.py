"""Tokens and money: the worst case of a request is reserved before it is sent, so no limit is ever passed."""

import asyncio
import random
import re
from collections.abc import AsyncIterator
from dataclasses import replace
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic_ai import BinaryContent, RunContext
from pydantic_ai.exceptions import ModelHTTPError
from pydantic_ai.messages import ModelMessage, ModelResponse, ToolCallPart
from pydantic_ai.models.fallback import FallbackModel
from pydantic_ai.models.function import AgentInfo, FunctionModel
from pydantic_ai.models.instrumented import InstrumentedModel
from pydantic_ai.models.ollama import OllamaModel
from pydantic_ai.models.test import TestModel
from pydantic_ai.providers.ollama import OllamaProvider
from pydantic_ai.settings import ModelSettings
from pydantic_ai.usage import RequestUsage

from llm_do import Context, Event, LimitExceeded, Limits, Price, Runtime, WorkerEntry, entry
from llm_do.budgets.ledger import DEFAULT_OUTPUT_TOKENS, LEAST_OUTPUT_TOKENS
from llm_do.budgets.prices import PriceList

from ..scripted import calls, says, scripted

CENT = {"paid": Price(request=0.01)}
"""Each request costs one cent, whatever it uses."""


def paid(text: str = "ok", name: str = "paid", **usage: Any) -> FunctionModel:
    return scripted(says(text, **(usage or {"input_tokens": 1})), name=name)


def notices(events: list[Event]) -> list[str]:
    return [event.text for event in events if event.type == "notice"]


def waiting(runtime: Runtime) -> Any:
    """The requests that wait for money."""
    return [waiter for waiter in runtime.spending.ledger._waiting if not waiter.answer.done()]


def adds_up(runtime: Runtime) -> bool:
    return all(
        account.limit is None
        or account.limit == account.spent + account.estimated + account.reserved + (account.left or 0)
        for account in (runtime.budget, runtime.budget.tokens)
    )


# -- concurrency -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("max_concurrency", [1, 7, 500])
async def test_concurrent_calls_never_spend_more_than_the_limit(max_concurrency: int) -> None:
    """200 calls at a cent each, and ten cents: ten requests are paid, and all others are refused unpaid."""
    sent = 0

    async def slow(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
        nonlocal sent
        sent += 1
        await asyncio.sleep(0.001)
        return says("ok", input_tokens=1)

    runtime = Runtime(
        model=FunctionModel(slow, model_name="paid"),
        limits=Limits(max_cost=0.10),
        prices=CENT,
        max_concurrency=max_concurrency,
    )
    worker = WorkerEntry(name="w")
    results = await asyncio.gather(*(runtime.call(worker, str(n)) for n in range(200)), return_exceptions=True)
    assert sent == results.count("ok") == 10
    refused = [result for result in results if isinstance(result, LimitExceeded)]
    assert len(refused) == 190
    budget = runtime.budget
    assert (budget.limit, budget.spent, budget.estimated, budget.reserved, budget.left) == (
        Decimal("0.1"),
        Decimal("0.1"),
        0,
        0,
        0,
    )
    assert runtime.usage["paid"].cost == Decimal("0.10")
    assert "$0.1 of $0.1 of the session are used, and the next request may use $0.01 (Limits.max_cost)" in str(
        refused[-1]
    )


async def test_a_request_that_does_not_fit_waits_for_what_others_give_back() -> None:
    """Both may cost the whole budget, and cost half of it."""
    started, first_may_end = asyncio.Event(), asyncio.Event()

    async def slow(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
        started.set()
        await first_may_end.wait()
        return says("ok", output_tokens=500)

    runtime = Runtime(
        model=FunctionModel(slow, model_name="paid", settings=ModelSettings(max_tokens=1000)),
        limits=Limits(max_cost=1),
        prices={"paid": Price(output=1000)},
    )
    worker = WorkerEntry(name="w")
    both = [asyncio.create_task(runtime.call(worker, "x")) for _ in range(2)]
    await started.wait()
    assert runtime.budget.reserved == 1
    assert runtime.usage == {}
    first_may_end.set()
    assert await both[0] == "ok"
    with pytest.raises(LimitExceeded):  # half of it is spent, and another whole one does not fit
        await both[1]
    assert runtime.budget.spent == runtime.budget.left == Decimal("0.5")


async def test_waiting_requests_are_served_in_the_order_in_which_they_came() -> None:
    order: list[str] = []

    async def slow(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
        order.append(str(messages[-1].parts[-1].content))  # type: ignore[union-attr]
        await asyncio.sleep(0)
        return says("ok", output_tokens=1)

    runtime = Runtime(
        model=FunctionModel(slow, model_name="paid", settings=ModelSettings(max_tokens=1000)),
        limits=Limits(max_cost=1),
        prices={"paid": Price(output=1000)},
    )
    worker = WorkerEntry(name="w")
    await asyncio.gather(*(runtime.call(worker, str(n)) for n in range(10)), return_exceptions=True)
    assert order == [str(n) for n in range(len(order))]


async def test_a_waiting_request_that_is_cancelled_lets_the_next_one_pass() -> None:
    started, gate = asyncio.Event(), asyncio.Event()

    async def slow(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
        started.set()
        await gate.wait()
        return says("ok", output_tokens=1)

    runtime = Runtime(
        model=FunctionModel(slow, model_name="paid", settings=ModelSettings(max_tokens=800)),
        limits=Limits(max_cost=1, timeout=None),
        prices={"paid": Price(output=1000)},
    )
    worker = WorkerEntry(name="w")
    first = asyncio.create_task(runtime.call(worker, "1"))
    await started.wait()
    second = asyncio.create_task(runtime.call(worker, "2"))
    third = asyncio.create_task(runtime.call(worker, "3"))
    while len(waiting(runtime)) < 2:
        await asyncio.sleep(0.001)
    second.cancel()
    gate.set()
    assert await asyncio.gather(first, third) == ["ok", "ok"]
    with pytest.raises(asyncio.CancelledError):
        await second
    assert runtime.budget.reserved == 0


# -- what is sent ------------------------------------------------------------------------------------------


async def sent_max_tokens(limits: Limits, price: Price, **settings: Any) -> Any:
    seen: list[Any] = []

    def note(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
        seen.append((info.model_settings or {}).get("max_tokens"))
        return says("ok", output_tokens=1)

    model = FunctionModel(note, model_name="paid")
    worker = WorkerEntry(name="w", model_settings=ModelSettings(**settings) if settings else None)  # type: ignore[typeddict-item]
    await Runtime(model=model, limits=limits, prices={"paid": price}).call(worker, "x")
    return seen[0]


async def test_the_bound_that_is_reserved_is_sent_to_the_provider() -> None:
    dear = Price(output=100)
    assert await sent_max_tokens(Limits(), dear) is None
    assert await sent_max_tokens(Limits(max_cost=1_000), dear) == DEFAULT_OUTPUT_TOKENS
    assert await sent_max_tokens(Limits(max_cost=0.1), dear) == 1000
    assert await sent_max_tokens(Limits(max_cost=1_000), dear, max_tokens=20_000) == 20_000
    assert await sent_max_tokens(Limits(max_cost=1_000), Price()) is None
    assert await sent_max_tokens(Limits(max_tokens=1_000_000), Price()) == DEFAULT_OUTPUT_TOKENS
    with pytest.raises(LimitExceeded, match=r"may use \$0\.0256"):
        await sent_max_tokens(Limits(max_cost=(LEAST_OUTPUT_TOKENS - 1) / 10_000), dear)
    with pytest.raises(LimitExceeded, match=r"may use \$0\.2 "):
        await sent_max_tokens(Limits(max_cost=0.1), dear, max_tokens=2000)


@pytest.mark.parametrize(
    ("settings", "thinking"),
    [
        ({"thinking": "high"}, 16_384),
        ({"anthropic_thinking": {"type": "enabled", "budget_tokens": 20_000}}, 20_000),
        ({"google_thinking_config": {"thinking_budget": 500}}, 500),
        ({"thinking": False}, 0),
    ],
)
async def test_what_a_model_may_think_is_sent_beside_the_answer(settings: Any, thinking: int) -> None:
    """Providers refuse a request whose `max_tokens` is not above its budget for thinking."""
    dear = Price(output=100)
    assert await sent_max_tokens(Limits(max_cost=1_000), dear, **settings) == thinking + DEFAULT_OUTPUT_TOKENS
    # What the rest buys is less, but still more than the thinking alone.
    least = Decimal(thinking + 300) / 10_000 + Decimal("0.001")
    assert thinking + 256 <= (await sent_max_tokens(Limits(max_cost=least), dear, **settings) or 0) < thinking + 400


async def test_a_refusal_of_what_the_budget_sends_names_where_it_comes_from() -> None:
    def refuse(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
        raise ModelHTTPError(400, "paid", {"message": "max_tokens is too large"})

    model = FunctionModel(refuse, model_name="paid")
    limited = Runtime(model=model, prices=CENT, limits=Limits(max_tokens=100_000))
    with pytest.raises(ModelHTTPError) as caught:
        await limited.call(WorkerEntry(name="w"), "x")
    assert "max_tokens=8192 was sent because there is a limit" in "".join(caught.value.__notes__)
    with pytest.raises(ModelHTTPError) as caught:
        await Runtime(model=model).call(WorkerEntry(name="w"), "x")
    assert "max_tokens=" not in "".join(getattr(caught.value, "__notes__", ()))


async def test_an_answer_that_the_budget_cut_off_is_told_with_the_end_of_its_request() -> None:
    events: list[Event] = []

    def cut(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
        return ModelResponse(parts=says("o").parts, usage=RequestUsage(output_tokens=9), finish_reason="length")

    runtime = Runtime(
        model=FunctionModel(cut, model_name="paid"),
        limits=Limits(max_cost=100),
        prices={"paid": Price(output=1)},
        message_callback=events.append,
    )
    for _ in range(3):
        await runtime.call(WorkerEntry(name="w"), "x")
    told = [event.cut_off for event in events if event.type == "request_ended"]
    assert told == [record.cut_off for record in runtime.trace]
    assert told[0] is not None
    assert re.fullmatch(
        r"max_tokens=\d+ is sent because there is a limit of money or tokens; set `max_tokens` in `model_settings` of "
        "the worker, or raise the limit",
        told[0],
    )
    assert notices(events) == []


async def test_a_long_prompt_is_reserved_by_its_bytes() -> None:
    runtime = Runtime(model=paid(), limits=Limits(max_tokens=10_000))
    with pytest.raises(LimitExceeded, match="may use 2[0-9]{4} tokens"):
        await runtime.call(WorkerEntry(name="w"), "ü" * 10_000)
    assert runtime.usage == {}


# -- settling ----------------------------------------------------------------------------------------------


async def test_a_report_of_more_than_was_reserved_is_counted_and_told_once() -> None:
    events: list[Event] = []
    runtime = Runtime(
        model=paid(output_tokens=50_000),
        limits=Limits(max_cost=0.1),
        prices={"paid": Price(output=1)},
        message_callback=events.append,
    )
    worker = WorkerEntry(name="w")
    assert [await runtime.call(worker, "x") for _ in range(2)] == ["ok", "ok"]
    assert (runtime.budget.spent, runtime.budget.left) == (Decimal("0.1"), 0)
    with pytest.raises(LimitExceeded):
        await runtime.call(worker, "x")
    assert [text for text in notices(events) if "more than the most that was reserved" in text] == notices(events)
    assert len(notices(events)) == 1


async def test_a_request_that_is_cancelled_in_flight_counts_as_spent_by_an_estimate() -> None:
    started = asyncio.Event()

    async def never(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
        started.set()
        await asyncio.Event().wait()
        return says("never")

    runtime = Runtime(model=FunctionModel(never, model_name="paid"), limits=Limits(max_cost=1), prices=CENT)
    task = asyncio.create_task(runtime.call(WorkerEntry(name="w"), "x"))
    await started.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    budget = runtime.budget
    assert (budget.spent, budget.estimated, budget.reserved, budget.left) == (0, Decimal("0.01"), 0, Decimal("0.99"))
    assert runtime.usage == {}


async def test_a_server_that_reports_no_usage_is_estimated() -> None:
    silent = scripted(says("ok", unmeasured_requests=1), name="paid")
    runtime = Runtime(model=silent, limits=Limits(max_cost=1), prices=CENT)
    await runtime.call(WorkerEntry(name="w"), "x")
    budget = runtime.budget
    assert (budget.spent + budget.estimated, budget.reserved) == (Decimal("0.01"), 0)


async def test_a_stream_that_is_broken_off_counts_as_spent() -> None:
    """What it reported until then is spent, and the rest of its reservation is estimated."""

    async def stream(messages: list[ModelMessage], info: AgentInfo) -> AsyncIterator[str]:
        yield "one "
        raise ConnectionResetError("gone")

    runtime = Runtime(
        model=FunctionModel(stream_function=stream, model_name="paid", settings=ModelSettings(max_tokens=1000)),
        limits=Limits(max_cost=10),
        prices={"paid": Price(output=1000)},
        text_deltas=True,
    )
    with pytest.raises(ConnectionResetError):
        await runtime.call(WorkerEntry(name="w"), "x")
    budget = runtime.budget
    assert budget.spent + budget.estimated == 1
    assert budget.spent < Decimal("0.1")
    assert (budget.reserved, budget.left) == (0, 9)


@pytest.mark.parametrize(
    ("error", "estimated"),
    [
        (ModelHTTPError(429, "paid"), 0),
        (ModelHTTPError(401, "paid"), 0),
        (ModelHTTPError(503, "paid"), 0),
        (ModelHTTPError(500, "paid"), Decimal("0.01")),
        (ModelHTTPError(504, "paid"), Decimal("0.01")),
        (ConnectionRefusedError(), 0),
        (TimeoutError(), Decimal("0.01")),
    ],
    ids=str,
)
async def test_a_failed_request_is_estimated_unless_it_was_turned_away(error: Exception, estimated: Decimal) -> None:
    def fail(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
        raise error

    runtime = Runtime(model=FunctionModel(fail, model_name="paid"), limits=Limits(max_cost=1), prices=CENT)
    with pytest.raises(type(error)):
        await runtime.call(WorkerEntry(name="w"), "x")
    assert (runtime.budget.estimated, runtime.budget.spent, runtime.budget.reserved) == (estimated, 0, 0)


async def test_an_error_that_was_handled_before_makes_no_request_free() -> None:
    """A model tries again while it handles a refused connection. The second attempt was sent."""

    def fail(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
        try:
            raise ConnectionRefusedError
        except ConnectionRefusedError:
            raise TimeoutError  # noqa: B904 - the effect is about a context that is no cause

    runtime = Runtime(model=FunctionModel(fail, model_name="paid"), limits=Limits(max_cost=1), prices=CENT)
    with pytest.raises(TimeoutError):
        await runtime.call(WorkerEntry(name="w"), "x")
    assert runtime.budget.estimated == Decimal("0.01")


async def test_a_request_that_never_got_a_slot_costs_nothing() -> None:
    started, gate = asyncio.Event(), asyncio.Event()

    async def slow(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
        started.set()
        await gate.wait()
        return says("ok", input_tokens=1)

    model = FunctionModel(slow, model_name="paid")
    runtime = Runtime(model=model, limits=Limits(max_cost=1, max_requests=2), prices=CENT, max_concurrency=1)
    first = asyncio.create_task(runtime.call(WorkerEntry(name="a"), "x"))
    await started.wait()

    @entry
    async def other_parent(ctx: RunContext[Context]) -> str:
        return await ctx.deps.call(WorkerEntry(name="b"), "x")

    second = asyncio.create_task(runtime.call(other_parent))
    while runtime.budget.reserved < Decimal("0.02"):
        await asyncio.sleep(0.001)
    second.cancel()
    with pytest.raises(asyncio.CancelledError):
        await second
    assert (runtime.budget.estimated, runtime.budget.reserved) == (0, Decimal("0.01"))
    gate.set()
    assert await first == "ok"
    assert await runtime.call(WorkerEntry(name="c"), "x") == "ok"  # the second of two requests


# -- prices ------------------------------------------------------------------------------------------------


async def test_a_model_without_a_price_is_refused_before_its_request() -> None:
    asked: list[str] = []

    def note(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
        asked.append("x")
        return says("ok")

    model = FunctionModel(note, model_name="home-made")
    with pytest.raises(LimitExceeded, match="no price is known for model 'home-made'.*give its price under"):
        await Runtime(model=model, limits=Limits(max_cost=1)).call(WorkerEntry(name="w"), "x")
    assert not asked
    limited = Runtime(model=model, limits=Limits(max_cost=1, max_unpriced_tokens=200))
    assert await limited.call(WorkerEntry(name="w", model_settings={"max_tokens": 60}), "x") == "ok"
    with pytest.raises(LimitExceeded, match="Limits.max_unpriced_tokens"):
        await limited.call(WorkerEntry(name="w", model_settings={"max_tokens": 60}), "x" * 60)


async def test_models_of_this_program_cost_nothing() -> None:
    runtime = Runtime(model=TestModel(), limits=Limits(max_cost=0))
    await runtime.call(WorkerEntry(name="w"), "x")
    assert runtime.usage["test"].cost == runtime.budget.spent == 0


def test_ollama_on_this_machine_costs_nothing() -> None:
    def price(url: str) -> Price | None:
        return PriceList().dearest(OllamaModel("tiny", provider=OllamaProvider(base_url=url, api_key="none")))

    assert price("http://127.0.0.1:11434/v1") == price("http://localhost:1/v1") == Price()
    assert price("http://gpubox:11434/v1") is None


async def test_the_price_that_says_most_about_a_model_counts() -> None:
    """The program's before the project's, and a name with its provider before one without."""
    model = paid(name="m")
    by_name, by_provider, by_project = Price(request=1), Price(request=2), Price(request=3)
    both = {"m": by_name, f"{model.system}:m": by_provider}
    assert PriceList(both).dearest(model) == by_provider
    assert PriceList(dict(reversed(both.items()))).dearest(model) == by_provider
    assert PriceList({"m": by_name}, {f"{model.system}:m": by_project}).dearest(model) == by_name
    assert PriceList({}, {"m": by_project}).dearest(model) == by_project


async def test_a_given_price_is_that_of_the_whole_session() -> None:
    runtime = Runtime(model=paid(input_tokens=1_000, output_tokens=100), prices={"paid": {"input": 3, "output": 15.5}})
    await runtime.call(WorkerEntry(name="w"), "x")
    assert runtime.budget.spent == runtime.trace[0].cost == Decimal("0.00455")
    assert runtime.budget.limit is runtime.budget.left is None
    with pytest.raises(ValueError, match="The price of 'paid' is wrong"):
        Runtime(prices={"paid": {"inptu": 3}})
    with pytest.raises(ValueError, match=r"'acme:\*' is no model"):
        Runtime(prices={"acme:*": {"input": 3}})


async def test_a_float_buys_what_it_says() -> None:
    """Ten requests at 0.01 fit into 0.1, which is a little more than a tenth as a float; eleven do not."""
    runtime = Runtime(model=paid(), limits=Limits(max_cost=0.1), prices=CENT)
    worker = WorkerEntry(name="w")
    for _ in range(10):
        await runtime.call(worker, "x")
    with pytest.raises(LimitExceeded):
        await runtime.call(worker, "x")


async def test_each_candidate_of_a_fallback_reserves_when_it_is_tried() -> None:
    tried: list[str] = []

    def fail(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
        tried.append("first")
        raise ModelHTTPError(500, "first")

    first = FunctionModel(fail, model_name="first")
    second = paid(name="second")
    prices = {"first": Price(request=0.03), "second": Price(request=0.02)}
    for model in (FallbackModel(first, second), InstrumentedModel(FallbackModel(first, second))):
        runtime = Runtime(model=model, limits=Limits(max_cost=0.05), prices=prices)
        assert await runtime.call(WorkerEntry(name="w"), "x") == "ok"
        assert (runtime.budget.spent, runtime.budget.estimated) == (Decimal("0.02"), Decimal("0.03"))
        with pytest.raises(LimitExceeded):
            await runtime.call(WorkerEntry(name="w"), "x")
    assert tried == ["first", "first"]


async def test_a_request_without_an_upper_bound_is_told_and_bounded_by_those_in_flight() -> None:
    events: list[Event] = []
    runtime = Runtime(
        model=paid(input_tokens=3_000_000),
        limits=Limits(max_cost=2),
        prices={"paid": Price(input=1)},
        message_callback=events.append,
    )
    worker = WorkerEntry(name="w", model_settings={"max_tokens": 10})
    await runtime.call(worker, "look", attachments=[BinaryContent(b"%PDF-1.7", media_type="application/pdf")])
    assert runtime.budget.left == -1
    assert adds_up(runtime)
    with pytest.raises(LimitExceeded):
        await runtime.call(worker, "x")
    assert any("a document (application/pdf)" in text for text in notices(events))


@pytest.mark.parametrize(
    ("settings", "what"),
    [
        ({"openai_previous_response_id": "resp_1"}, "a text that the provider keeps (openai_previous_response_id)"),
        ({"google_cached_content": "cache/1"}, "a text that the provider keeps (google_cached_content)"),
        ({"extra_body": {"n": 5}}, "several answers to one request (n=5)"),
        ({"openai_previous_response_id": "auto", "extra_body": {"n": 1}}, None),
    ],
)
async def test_settings_without_an_upper_bound_are_told(settings: Any, what: str | None) -> None:
    events: list[Event] = []
    runtime = Runtime(model=paid(), limits=Limits(max_cost=1), prices=CENT, message_callback=events.append)
    await runtime.call(WorkerEntry(name="w", model_settings={"max_tokens": 10, **settings}), "x")
    told = [text for text in notices(events) if "is not known before it is paid" in text]
    assert len(told) == (what is not None)
    assert all(what in text for text in told if what)


# -- meters above and below ----------------------------------------------------------------------------------


async def test_a_request_that_a_workers_limit_refuses_is_not_charged_to_the_session() -> None:
    worker = WorkerEntry(name="w", model=paid(), limits=Limits(max_requests=1))
    runtime = Runtime(limits=Limits(max_requests=10), prices=CENT)

    @entry
    async def tick() -> None: ...

    greedy = WorkerEntry(
        name="greedy", tools=[tick], model=scripted(calls(("tick", {})), name="paid"), limits=Limits(max_requests=1)
    )
    for _ in range(5):  # one request each, and one more that its own limit refuses
        with pytest.raises(LimitExceeded, match="the 1 model request of worker 'greedy' is used up"):
            await runtime.call(greedy, "x")
    for _ in range(5):
        assert await runtime.call(worker, "x") == "ok"
    with pytest.raises(LimitExceeded, match="10 model requests of the session"):
        await runtime.call(worker, "x")


async def test_a_call_that_a_workers_limit_refuses_is_not_charged_to_the_session() -> None:
    @entry
    async def tick() -> None: ...

    model = scripted(calls(("tick", {}), ("tick", {}), ("tick", {})))
    greedy = WorkerEntry(name="greedy", tools=[tick], model=model, limits=Limits(max_calls=1))
    runtime = Runtime(limits=Limits(max_calls=3))
    with pytest.raises(LimitExceeded, match="the 1 call of worker 'greedy' is used up"):
        await runtime.call(greedy, "x")
    await runtime.call(tick)
    with pytest.raises(LimitExceeded, match="3 calls of the session"):
        await runtime.call(tick)


async def test_a_workers_limit_is_a_ceiling_inside_its_callers() -> None:
    inner = WorkerEntry(name="inner", model=paid(), limits=Limits(max_cost=100))
    outer = WorkerEntry(
        name="outer",
        tools=[inner],
        model=scripted(calls(("inner", {"input": "x"})), name="paid"),
        limits=Limits(max_cost=0.04),
    )
    runtime = Runtime([outer], prices=CENT)
    with pytest.raises(LimitExceeded, match=r"worker 'outer'"):
        await runtime.call("outer", "x")
    assert runtime.budget.spent == Decimal("0.04")


# -- going on ----------------------------------------------------------------------------------------------


async def test_at_a_limit_of_the_session_somebody_may_be_asked_to_go_on() -> None:
    asked: list[str] = []

    async def more(exceeded: LimitExceeded, limits: Limits) -> Limits | None:
        asked.append(exceeded.limit)
        await asyncio.sleep(0.01)
        return Limits(max_cost=0.04) if len(asked) == 1 else None

    runtime = Runtime(model=paid(), limits=Limits(max_cost=0.01), prices=CENT, limit_callback=more)
    worker = WorkerEntry(name="w")
    results = await asyncio.gather(*(runtime.call(worker, str(n)) for n in range(8)), return_exceptions=True)
    assert results.count("ok") == 4
    assert len(asked) == 2
    assert runtime.budget.limit == Decimal("0.04")
    assert runtime.budget.left == 0


async def test_an_answer_about_one_limit_is_none_about_another() -> None:
    """Both are asked about, one after the other, and what is raised first stays raised."""
    asked: list[str] = []

    async def more(exceeded: LimitExceeded, limits: Limits) -> Limits | None:
        asked.append(exceeded.limit)
        await asyncio.sleep(0.01)
        return replace(limits, **{exceeded.limit: getattr(limits, exceeded.limit) * 1000})

    long = WorkerEntry(name="long", model=paid(name="free"), model_settings={"max_tokens": 5000})
    dear = WorkerEntry(name="dear", model=paid(name="dear"), model_settings={"max_tokens": 10})
    unknown = WorkerEntry(name="unknown", model=paid(name="unknown"))
    runtime = Runtime(
        limits=Limits(max_tokens=2000, max_cost=0.01),
        prices={"free": Price(), "dear": Price(request=1)},
        limit_callback=more,
    )
    workers = (unknown, long, dear)
    answers = await asyncio.gather(*(runtime.call(each, "x") for each in workers), return_exceptions=True)
    assert isinstance(answers[0], LimitExceeded)  # no higher number would help
    assert answers[1:] == ["ok", "ok"]
    assert asked == ["max_tokens", "max_cost"]
    assert (runtime.budget.limit, runtime.budget.tokens.limit) == (10, 2_000_000)


async def test_a_limit_callback_that_returns_the_same_limits_says_no() -> None:
    """Otherwise the request would be refused, and asked about, for ever."""
    runtime = Runtime(
        model=paid(), limits=Limits(max_cost=0), prices=CENT, limit_callback=lambda exceeded, limits: limits
    )
    with pytest.raises(LimitExceeded):
        await runtime.call(WorkerEntry(name="helper"), "Go.")


async def test_a_call_that_is_cancelled_while_it_asks_for_more_leaves_the_question_to_the_next() -> None:
    asked: list[asyncio.Event] = []

    async def more(exceeded: LimitExceeded, limits: Limits) -> Limits | None:
        asked.append(asyncio.Event())
        await asked[-1].wait()
        return Limits(max_cost=1)

    runtime = Runtime(model=paid(), limits=Limits(max_cost=0), prices=CENT, limit_callback=more)
    calls = [asyncio.create_task(runtime.call(WorkerEntry(name="w"), "x")) for _ in range(2)]
    while not asked:
        await asyncio.sleep(0)
    calls[0].cancel()
    while len(asked) < 2:
        await asyncio.sleep(0)
    asked[1].set()
    assert await calls[1] == "ok"


async def test_a_limit_callback_that_fails_fails_the_call_and_not_those_beside_it() -> None:
    def broken(exceeded: LimitExceeded, limits: Limits) -> Limits | None:
        raise RuntimeError("no terminal")

    runtime = Runtime(model=paid(), limits=Limits(max_cost=0), prices=CENT, limit_callback=broken)
    for _ in range(2):
        with pytest.raises(RuntimeError, match="no terminal"):
            await runtime.call(WorkerEntry(name="w"), "x")


# -- the proof ---------------------------------------------------------------------------------------------


class Market:
    """Models with random prices and sizes that fail, hang and forget to report, and the sum of what they could cost."""

    def __init__(self, seed: int, *, faults: bool) -> None:
        self.random = random.Random(seed)
        self.faults = faults
        self.paid = Decimal(0)
        """What really was paid, reported or not."""
        self.prices = {
            f"m{n}": Price(input=self.random.randint(1, 20), output=self.random.randint(1, 80)) for n in range(3)
        }
        self.models = {name: self.model(name) for name in self.prices}

    def model(self, name: str) -> FunctionModel:
        async def answer(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
            most = (info.model_settings or {}).get("max_tokens")
            assert isinstance(most, int)
            used = RequestUsage(input_tokens=self.random.randint(1, 60), output_tokens=self.random.randint(0, most))
            cost = self.prices[name].of(used.input_tokens, used.output_tokens)
            fault = self.random.random() if self.faults else 1.0
            await asyncio.sleep(self.random.random() * 0.002)
            if fault < 0.05:
                raise ModelHTTPError(429, name)
            self.paid += cost
            if fault < 0.1:
                raise TimeoutError("it was paid all the same")
            if fault < 0.15:
                used = RequestUsage(unmeasured_requests=1)
            tools = [tool.name for tool in info.function_tools]
            if tools and not any(isinstance(part, ToolCallPart) for part in messages[-1].parts) and len(messages) < 2:
                return ModelResponse(parts=[ToolCallPart(tool, {"input": "x"}) for tool in tools], usage=used)
            return ModelResponse(parts=says("ok").parts, usage=used)

        return FunctionModel(answer, model_name=name, settings=ModelSettings(max_tokens=100))

    def tree(self, depth: int, path: str = "w") -> WorkerEntry[Any]:
        below = [self.tree(depth - 1, f"{path}{n}") for n in range(self.random.randint(1, 2))] if depth else []
        limits = Limits(max_cost=self.random.randint(1, 100) / 10) if self.random.random() < 0.3 else None
        return WorkerEntry(name=path, tools=below, model=self.random.choice(list(self.models.values())), limits=limits)


async def spend(
    market: Market, limit: Decimal, count: int, depth: int, max_concurrency: int = 2000
) -> tuple[Runtime, list[Any]]:
    trees = [market.tree(depth, f"t{n}") for n in range(5)]
    runtime = Runtime(
        trees,
        limits=Limits(max_cost=limit, max_requests=None, max_calls=None),
        prices=market.prices,
        max_concurrency=max_concurrency,
    )

    async def one(number: int) -> Any:
        call = asyncio.ensure_future(runtime.call(trees[number % 5], "x"))
        if market.faults and market.random.random() < 0.1:
            await asyncio.sleep(market.random.random() * 0.02)
            call.cancel()
        return await call

    results = await asyncio.gather(*(one(n) for n in range(count)), return_exceptions=True)
    while runtime.budget.reserved:  # the siblings of a call that failed may still be on their way out
        await asyncio.sleep(0.001)
    assert adds_up(runtime)
    assert runtime.budget.reserved == 0
    assert runtime.budget.tokens.reserved == 0
    assert runtime.budget.spent + runtime.budget.estimated <= limit
    assert market.paid <= limit
    return runtime, results


async def test_many_concurrent_calls_spend_the_limit_and_never_more() -> None:
    """Nested trees, random prices and sizes. Where work waits, at least 95 % of the limit is spent."""
    market = Market(1, faults=False)
    limit = Decimal("0.5")  # one worst case is 0.02 or less
    runtime, results = await spend(market, limit, 150, depth=1)
    assert any(isinstance(result, LimitExceeded) for result in results)
    assert market.paid == runtime.budget.spent
    assert runtime.budget.spent >= limit * 95 / 100


async def test_many_concurrent_calls_with_faults_never_spend_more_than_the_limit() -> None:
    market = Market(2, faults=True)
    _, results = await spend(market, Decimal("0.3"), 150, depth=2)
    assert any(isinstance(result, LimitExceeded) for result in results)


@settings(max_examples=25, deadline=None)
@given(
    seed=st.integers(0, 10**9),
    cents=st.integers(0, 100),
    count=st.integers(1, 15),
    depth=st.integers(0, 3),
    max_concurrency=st.sampled_from([1, 8, 2000]),
)
def test_no_mixture_of_prices_sizes_and_faults_passes_the_limit(
    seed: int, cents: int, count: int, depth: int, max_concurrency: int
) -> None:
    asyncio.run(spend(Market(seed, faults=True), Decimal(cents) / 100, count, depth, max_concurrency))


async def test_without_a_limit_nothing_is_reserved() -> None:
    seen: list[Any] = []

    def note(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
        seen.append((runtime.budget.reserved, runtime.budget.tokens.reserved))
        return says("ok", input_tokens=3)

    runtime = Runtime(model=FunctionModel(note, model_name="paid"), prices=CENT)
    await runtime.call(WorkerEntry(name="w"), "x")
    assert seen == [(0, 0)]
    assert (runtime.budget.spent, runtime.budget.tokens.spent) == (Decimal("0.01"), 3)
