"""Budgets hold against models, providers, capabilities and callbacks that do what they should not."""

import asyncio
from datetime import UTC, datetime, timedelta
from decimal import Decimal, localcontext
from typing import Annotated, Any

import pytest
from pydantic import BaseModel, Field
from pydantic_ai import Agent, BinaryContent, ConcurrencyLimit, ConcurrencyLimiter, RunContext
from pydantic_ai.capabilities import AbstractCapability
from pydantic_ai.messages import ModelMessage, ModelRequestAttempt, ModelResponse
from pydantic_ai.models import Model
from pydantic_ai.models.concurrency import ConcurrencyLimitedModel
from pydantic_ai.models.fallback import FallbackModel
from pydantic_ai.models.function import AgentInfo, FunctionModel
from pydantic_ai.models.instrumented import InstrumentedModel
from pydantic_ai.profiles import InlineDefsJsonSchemaTransformer, ModelProfile
from pydantic_ai.settings import ModelSettings
from pydantic_ai.usage import RequestUsage
from pydantic_core import to_json

from llm_do import Context, Event, LimitExceeded, Limits, Price, Runtime, WorkerEntry, entry
from llm_do.budgets.ledger import Ledger, Quote, Reservation
from llm_do.budgets.limits import UsageMeter

from ..processes import PATIENCE
from ..scripted import calls, says, scripted

WORKER = WorkerEntry(name="w")


def paid(name: str = "paid", **usage: Any) -> FunctionModel:
    return scripted(says("ok", **(usage or {"input_tokens": 1})), name=name)


async def outcomes(runtime: Runtime, worker: WorkerEntry[Any] = WORKER, count: int = 5) -> list[Any]:
    """Call one after the other, and return the answers and the errors."""
    return [(await asyncio.gather(runtime.call(worker, "x"), return_exceptions=True))[0] for _ in range(count)]


# -- models that nobody counts -----------------------------------------------------------------------------


@pytest.mark.parametrize("wrap", [lambda model: model, InstrumentedModel])
async def test_a_candidate_that_a_capability_adds_is_counted(wrap: Any) -> None:
    """The capability puts a second model beside the one it is given, which alone was counted."""

    def broken(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
        raise RuntimeError("down")

    class Spare(AbstractCapability[Context]):
        def get_wrapper_model(self, model: Model) -> Model:
            return FallbackModel(wrap(model), paid("spare"), fallback_on=(RuntimeError,))

    runtime = Runtime(
        model=FunctionModel(broken, model_name="first"),
        limits=Limits(max_cost=1),
        prices={"first": Price(), "spare": Price(request=0.4)},
    )
    answers = await outcomes(runtime, WorkerEntry(name="w", capabilities=[Spare()]))
    assert answers.count("ok") == 2
    assert (runtime.budget.spent, runtime.budget.left) == (Decimal("0.8"), Decimal("0.2"))
    assert runtime.usage["spare"].requests == 2


async def test_attempts_that_a_model_moved_on_from_by_itself_are_spent() -> None:
    """A model from elsewhere tries two, and tells what the first one used on the response of the second."""
    attempt = ModelRequestAttempt(
        model_name="first",
        outcome="rejected",
        timestamp=datetime.now(UTC),
        duration=timedelta(seconds=1),
        usage=RequestUsage(input_tokens=7, cost=Decimal("0.3")),
    )

    def answer(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
        return ModelResponse(parts=says("ok").parts, usage=RequestUsage(input_tokens=2), failed_attempts=[attempt])

    runtime = Runtime(
        model=FunctionModel(answer, model_name="paid"),
        limits=Limits(max_cost=1, max_tokens=1_000_000),
        prices={"paid": Price(request=0.1)},
    )
    assert (await outcomes(runtime)).count("ok") == 3
    assert (runtime.budget.spent, runtime.budget.tokens.spent) == (Decimal("1.2"), 27)
    assert {name: usage.requests for name, usage in runtime.usage.items()} == {"first": 3, "paid": 3}


async def test_a_worker_with_the_model_of_its_caller_is_counted_once() -> None:
    """Its requests go through the meter of its own call only: two around each other would wait for each other."""

    @entry
    async def ask(ctx: RunContext[Context]) -> str:
        assert ctx.deps.effective_model is not None
        return str(await ctx.deps.call(WorkerEntry(name="below", model=InstrumentedModel(ctx.model)), "x"))

    for limit, slots in ((0.03, 1), (0.025, 8)):
        model = scripted(calls(("ask", {})), says("below", input_tokens=1), says("ok", input_tokens=1), name="paid")
        runtime = Runtime(
            model=model, limits=Limits(max_cost=limit), prices={"paid": Price(request=0.01)}, max_concurrency=slots
        )
        answer = (await outcomes(runtime, WorkerEntry(name="w", tools=[ask]), count=1))[0]
        assert answer == "ok" if limit == 0.03 else isinstance(answer, LimitExceeded)
        assert runtime.usage["paid"].requests == runtime.budget.spent * 100


@pytest.mark.parametrize("limit", [None, 0.05, 0.025])
async def test_a_request_inside_of_another_one_does_not_wait_for_it(limit: float | None) -> None:
    """A worker is called while a stream is open: it shares its slot, and is refused where money is short."""
    below = WorkerEntry(name="below", model=paid())

    @entry
    async def look(ctx: RunContext[Context]) -> str:
        async with Agent(model=ctx.model).run_stream("x") as stream:
            async for _ in stream.stream_text(delta=True, debounce_by=None):
                await ctx.deps.call(below, "x")
        return "looked"

    model = scripted(calls(("look", {})), says("one two", input_tokens=1), says("ok", input_tokens=1), name="paid")
    runtime = Runtime(
        model=model, limits=Limits(max_cost=limit), prices={"paid": Price(request=0.01)}, max_concurrency=1
    )
    (answer,) = await outcomes(runtime, WorkerEntry(name="w", tools=[look]), count=1)
    assert answer == "ok" if limit != 0.025 else isinstance(answer, LimitExceeded)
    assert runtime.budget.reserved == 0


async def test_a_request_that_waits_behind_a_limiter_holds_no_money() -> None:
    """And one that the limiter refuses was not sent, and costs nothing."""
    limiter = ConcurrencyLimiter(max_running=1)
    workers = [
        WorkerEntry(name="plain", model=ConcurrencyLimitedModel(paid(), limiter)),
        WorkerEntry(name="several", model=ConcurrencyLimitedModel(FallbackModel(paid(), paid()), limiter)),
    ]
    runtime = Runtime(limits=Limits(max_cost=0.025), prices={"paid": Price(request=0.01)})
    answers = await asyncio.gather(*(runtime.call(each, "x") for each in [*workers, *workers]), return_exceptions=True)
    assert answers.count("ok") == 2

    async def slow(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
        await asyncio.sleep(0.05)
        return says("ok", input_tokens=1)

    queue = ConcurrencyLimit(max_running=1, max_queued=0)
    full = WorkerEntry(name="w", model=ConcurrencyLimitedModel(FunctionModel(slow, model_name="paid"), queue))
    runtime = Runtime(limits=Limits(max_cost=0.1), prices={"paid": Price(request=0.01)})
    await asyncio.gather(*(runtime.call(full, "x") for _ in range(5)), return_exceptions=True)
    assert (runtime.budget.spent, runtime.budget.estimated) == (Decimal("0.01"), 0)


async def test_an_attempt_that_reported_nothing_is_estimated() -> None:
    """A model from elsewhere moves on from an error. What that used is not known, and may be paid."""
    attempt = ModelRequestAttempt(
        model_name="first", outcome="error", timestamp=datetime.now(UTC), duration=timedelta(seconds=1)
    )

    def answer(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
        return ModelResponse(parts=says("ok").parts, usage=RequestUsage(input_tokens=2), failed_attempts=[attempt])

    runtime = Runtime(
        model=FunctionModel(answer, model_name="paid"), limits=Limits(max_cost=1), prices={"paid": Price(request=0.2)}
    )
    assert (await outcomes(runtime)).count("ok") == 3
    assert (runtime.budget.spent, runtime.budget.estimated) == (Decimal("0.6"), Decimal("0.6"))


# -- waiting -----------------------------------------------------------------------------------------------


async def test_many_requests_that_wait_are_looked_at_one_by_one() -> None:
    """Each is tried when it comes, and again when it is the next: not all of them whenever one ends."""
    tried = 0

    class Counting(Ledger):
        def _attempt(self, *arguments: Any) -> Any:
            nonlocal tried
            tried += 1
            return super()._attempt(*arguments)

    ledger, meter = Counting(), UsageMeter(Limits(max_cost=1, max_requests=None))
    quote = Quote(model="m", input_tokens=0, output_tokens=0, least_output_tokens=0, price=Price(request=0.5))

    async def request(number: int) -> None:
        reservation = await ledger.reserve([meter], quote)
        assert isinstance(reservation, Reservation)
        order.append(number)
        await asyncio.sleep(0)
        reservation.settle([RequestUsage(input_tokens=1, cost=Decimal(0))], whole=True)

    order: list[int] = []
    await asyncio.gather(*map(request, range(500)))
    assert order == sorted(order)
    assert tried < 2000
    assert meter.cost.reserved == 0


async def test_what_costs_nothing_does_not_wait_behind_what_does() -> None:
    gate = asyncio.Event()

    async def slow(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
        await gate.wait()
        return says("ok", input_tokens=1)

    dear, free = FunctionModel(slow, model_name="dear"), WorkerEntry(name="free", model=paid("free"))
    prices = {"dear": Price(request=0.6), "free": Price()}
    runtime = Runtime(model=dear, limits=Limits(max_cost=1), prices=prices)
    waiting = [asyncio.create_task(runtime.call(WORKER, str(n))) for n in range(2)]
    while runtime.budget.reserved == 0:
        await asyncio.sleep(0)
    assert await asyncio.wait_for(runtime.call(free, "x"), PATIENCE) == "ok"
    gate.set()
    await asyncio.gather(*waiting, return_exceptions=True)


# -- numbers -----------------------------------------------------------------------------------------------


async def test_the_precision_of_the_programs_own_numbers_does_not_matter() -> None:
    """With one digit, 0.09 and 0.001 make 0.09: such a sum reaches no limit."""
    runtime = Runtime(model=paid(), limits=Limits(max_cost=0.1), prices={"paid": Price(request=0.001)})
    with localcontext() as context:
        context.prec = 1
        answers = await outcomes(runtime, count=120)
        assert runtime.budget.left == 0
    assert answers.count("ok") == 100
    assert runtime.budget.spent == Decimal("0.1")


# -- reports -----------------------------------------------------------------------------------------------


async def test_a_model_without_a_price_stops_when_the_costs_that_it_reports_pass_the_limit() -> None:
    """Its tokens are limited in place of its cost, until its provider tells what it costs."""
    runtime = Runtime(
        model=paid(input_tokens=1, cost=Decimal(3)), limits=Limits(max_cost=5, max_unpriced_tokens=1_000_000)
    )
    answers = await outcomes(runtime)
    assert answers.count("ok") == 2
    assert "$6 of $5 of the session are used" in str(answers[-1])


@pytest.mark.parametrize("cost", [Decimal("NaN"), Decimal("Infinity"), Decimal(-5), "free", 0.25])
async def test_a_cost_that_is_no_amount_is_not_believed(cost: Any) -> None:
    """Neither does it give money back, nor does it break the budget. A float is an amount."""
    model = paid("mystery", input_tokens=1, cost=cost)
    limits = Limits(max_cost=1, max_unpriced_tokens=100_000)
    runtime = Runtime(model=model, limits=limits)
    await outcomes(runtime, count=2)
    budget = runtime.budget
    assert budget.spent == (Decimal("0.5") if cost == 0.25 else 0)
    assert budget.left == 1 - budget.spent
    assert runtime.spending.meter.unpriced.in_flight == 0


@pytest.mark.parametrize("usage", [{"input_tokens": 1000, "output_tokens": -900}, {"input_tokens": "7"}])
async def test_a_usage_that_cannot_be_is_estimated(usage: dict[str, Any]) -> None:
    def answer(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
        return ModelResponse(parts=says("ok").parts, usage=RequestUsage(**usage))

    runtime = Runtime(
        model=FunctionModel(answer, model_name="paid"),
        limits=Limits(max_cost=1),
        prices={"paid": Price(input=1, output=10, request=0.4)},
    )
    answers = await outcomes(runtime)
    assert [isinstance(each, LimitExceeded) for each in answers] == [False, False, True, True, True]
    budget = runtime.budget
    assert (budget.spent, budget.reserved) == (0, 0)
    assert budget.estimated > Decimal("0.8")


def test_a_request_in_flight_when_its_event_loop_ended_is_estimated() -> None:
    """Its report will never come, and the next loop would wait for it for ever."""
    stuck = True

    async def answer(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
        if stuck:
            await asyncio.Event().wait()
        return says("ok", input_tokens=1)

    runtime = Runtime(
        model=FunctionModel(answer, model_name="paid"), limits=Limits(max_cost=1), prices={"paid": Price(request=0.4)}
    )

    async def until_it_is_sent() -> None:
        while not runtime.budget.reserved:
            await asyncio.sleep(0)

    first = asyncio.new_event_loop()
    task = first.create_task(runtime.call(WORKER, "x"))
    first.run_until_complete(until_it_is_sent())
    stuck = False
    assert runtime.call_sync(WORKER, "y") == "ok"
    with pytest.raises(LimitExceeded, match="may use"):
        runtime.call_sync(WORKER, "z")
    task.cancel()
    first.run_until_complete(asyncio.wait([task]))
    first.close()
    budget = runtime.budget
    assert (budget.spent, budget.estimated, budget.reserved) == (Decimal("0.4"), Decimal("0.4"), 0)


# -- what is sent ------------------------------------------------------------------------------------------


async def test_the_settings_of_worker_and_candidate_bound_the_output_together() -> None:
    """The candidate's `extra_body` is sent beside the worker's `max_tokens`, and providers take the former."""
    model = scripted(says("ok", output_tokens=90_000), name="paid")
    model._settings = ModelSettings(extra_body={"max_tokens": 100_000})
    worker = WorkerEntry(name="w", model_settings=ModelSettings(max_tokens=100))
    runtime = Runtime(
        model=FallbackModel(model, paid("other")), limits=Limits(max_cost=0.5), prices={"paid": Price(output=10)}
    )
    with pytest.raises(LimitExceeded, match=r"may use \$1 "):
        await runtime.call(worker, "x")


async def test_schemas_are_bounded_in_the_form_in_which_they_are_sent() -> None:
    """Some models are sent each definition wherever it is used."""
    sent: list[int] = []

    def note(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
        sent.append(len(to_json(info.function_tools[0].parameters_json_schema)))
        return says("ok", input_tokens=sent[0])

    class Big(BaseModel):
        text: Annotated[str, Field(description="long " * 500)]

    @entry
    def tool(a: Big, b: Big, c: Big, d: Big, e: Big, f: Big) -> str:
        return ""

    profile = ModelProfile(json_schema_transformer=InlineDefsJsonSchemaTransformer)
    model = FunctionModel(note, model_name="paid", profile=profile)
    worker = WorkerEntry(name="w", tools=[tool], model_settings=ModelSettings(max_tokens=1))
    with pytest.raises(LimitExceeded, match=r"may use 1[56]\d{3} tokens"):
        await Runtime(model=model, limits=Limits(max_tokens=10_000)).call(worker, "x")
    assert sent == []
    await Runtime(model=model, limits=Limits(max_tokens=20_000)).call(worker, "x")
    assert sent[0] > 15_000


@pytest.mark.parametrize("media_type", ["audio/flac", "video/mp4"])
async def test_a_recording_has_no_upper_bound_and_that_is_told(media_type: str) -> None:
    """An hour of silence takes a few bytes, and is paid by the second."""
    events: list[Event] = []
    runtime = Runtime(model=paid(), limits=Limits(max_tokens=100_000), message_callback=events.append)
    await runtime.call(WORKER, "x", attachments=[BinaryContent(b"RIFF", media_type=media_type)])
    assert any(event.type == "notice" and "a recording" in event.text for event in events)


# -- numbers -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("limit", "price"),
    [(1e30, Price(output=1)), (5, Price(output=Decimal("1e-25"))), (Decimal("1e25"), Price(output=1))],
)
async def test_a_budget_that_buys_almost_anything_is_no_error(limit: Any, price: Price) -> None:
    assert await Runtime(model=paid(), limits=Limits(max_cost=limit), prices={"paid": price}).call(WORKER, "x") == "ok"


async def test_a_price_that_nothing_can_pay_is_a_limit() -> None:
    runtime = Runtime(model=paid(), limits=Limits(max_cost=1), prices={"paid": Price(output=1e40)})
    with pytest.raises(LimitExceeded, match=r"may use \$2\.560e\+36"):
        await runtime.call(WORKER, "x")


async def test_a_limit_of_tokens_that_is_written_as_a_float_is_that_number() -> None:
    assert Limits(max_tokens=1e6).max_tokens == 1_000_000  # type: ignore[arg-type]
    runtime = Runtime(model=paid(), limits=Limits(max_tokens=1e2))  # type: ignore[arg-type]
    with pytest.raises(LimitExceeded, match="of 100 tokens of the session"):
        await runtime.call(WORKER, "x")


@pytest.mark.parametrize("name", ["max_calls", "max_requests", "max_tokens", "max_unpriced_tokens"])
@pytest.mark.parametrize("value", [0.5, float("inf"), float("nan"), Decimal("1.5")])
def test_a_limit_that_counts_is_a_whole_number(name: str, value: Any) -> None:
    with pytest.raises(ValueError, match=f"Limits.{name} must be a whole number"):
        Limits(**{name: value})


@pytest.mark.parametrize("value", [float("inf"), float("nan"), Decimal("NaN")])
def test_a_price_that_is_not_finite_is_an_error_of_its_value(value: Any) -> None:
    """So the message of a project names the file and the model."""
    with pytest.raises(ValueError, match="must be a finite number"):
        Price(input=value)


# -- going on ----------------------------------------------------------------------------------------------


async def test_a_callback_that_raises_nothing_is_asked_once() -> None:
    """It would be asked for ever, and nothing else would run meanwhile."""
    asked: list[str] = []

    def same(exceeded: LimitExceeded, limits: Limits) -> Limits:
        asked.append(exceeded.limit)
        assert len(asked) < 5, "it is asked again and again"
        return limits

    runtime = Runtime(
        model=paid(), limits=Limits(max_cost=0.01), prices={"paid": Price(request=0.02)}, limit_callback=same
    )
    with pytest.raises(LimitExceeded):
        await runtime.call(WORKER, "x")
    assert len(asked) == 1


async def test_a_callback_that_returns_no_limits_is_an_error() -> None:
    limits, prices = Limits(max_cost=0.01), {"paid": Price(request=0.02)}
    runtime = Runtime(model=paid(), limits=limits, prices=prices, limit_callback=lambda exceeded, limits: True)  # type: ignore[arg-type,return-value]
    with pytest.raises(TypeError, match="limit_callback must return Limits or None, got True"):
        await runtime.call(WORKER, "x")


async def test_who_waits_for_an_answer_asks_when_the_one_who_asked_is_cancelled() -> None:
    asked: list[asyncio.Event] = []

    async def ask(exceeded: LimitExceeded, limits: Limits) -> Limits:
        asked.append(answer := asyncio.Event())
        await answer.wait()
        return Limits(max_cost=1)

    limits, prices = Limits(max_cost=0.01), {"paid": Price(request=0.02)}
    runtime = Runtime(model=paid(), limits=limits, prices=prices, limit_callback=ask)
    first, second = (asyncio.create_task(runtime.call(WORKER, text)) for text in "12")
    while not asked:
        await asyncio.sleep(0)
    for _ in range(50):  # the second one waits for the same answer
        await asyncio.sleep(0)
    first.cancel()
    while len(asked) < 2 and not second.done():
        await asyncio.sleep(0)
    asked[-1].set()
    assert await second == "ok"


async def test_a_limit_of_another_kind_holds_from_the_request_that_was_asked_about() -> None:
    limits = Limits(max_cost=1, max_requests=5)
    runtime = Runtime(
        model=paid(),
        limits=Limits(max_requests=0),
        prices={"paid": Price(request=0.4)},
        limit_callback=lambda exceeded, now: limits if now.max_cost is None else None,
    )
    assert (await outcomes(runtime))[:2] == ["ok", "ok"]
    assert runtime.budget.spent == Decimal("0.8")
