"""Reserving a model request: its worst case is taken from every budget above it before it is sent."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import cast

from pydantic_ai.messages import ModelMessage, ModelResponse
from pydantic_ai.models import Model, ModelRequestParameters
from pydantic_ai.settings import ModelSettings, merge_model_settings

from ..budgets.estimates import InputBound, thinking_tokens
from ..budgets.ledger import DEFAULT_OUTPUT_TOKENS, GIVE_PRICE, LEAST_OUTPUT_TOKENS, Quote, Reservation
from ..budgets.limits import full_name
from ..budgets.prices import FREE
from ..errors import LimitExceeded
from ..models.answers import describe_cutoff
from ..privacy.histories import SentHistory
from .frame import CallFrame, RequestFrame
from .session import Session

_NOTHING = Quote(model="", input_tokens=0, output_tokens=0, least_output_tokens=0, price=None)


@dataclass(slots=True)
class OutgoingRequest:
    """A request that a worker is about to make."""

    number: int
    """Its number within the call."""
    messages: list[ModelMessage]
    settings: ModelSettings | None
    parameters: ModelRequestParameters


@dataclass(slots=True)
class ReservedRequest(OutgoingRequest):
    """A request as it is sent, with its reservation."""

    reservation: Reservation
    bounded_by_budget: bool
    """Whether the budget, and not the user, set `max_tokens`."""
    max_tokens: int | None
    """The bound of the output that is sent; `None` if none is."""
    sent_at: float = 0.0
    """When it was sent, on the clock that durations are measured with."""

    def describe_cutoff(self, response: ModelResponse) -> str | None:
        return describe_cutoff(response, self.max_tokens, bounded_by_budget=self.bounded_by_budget)


async def reserve(session: Session, frame: RequestFrame, model: Model, request: OutgoingRequest) -> ReservedRequest:
    """Reserve the worst case of a request, and return it as it is sent: without secrets, and with a bound."""
    session.gate.check_not_ended(frame)
    if (configured := session.recorder.secrets.configured) is not None:
        history = frame.conversation.sent_history = frame.conversation.sent_history or SentHistory()
        request = replace(request, messages=history.without_secrets(request.messages, configured))
    spending = session.spending
    meters = (spending.meter, *frame.inherited.meters)
    agreed_to = None
    while True:
        quote = _quote(session, frame, model, request)
        answer = await spending.ledger.reserve(meters, quote, open_requests_above(frame))
        if isinstance(answer, Reservation):
            break
        problem, limit, worker = answer.problem, answer.limit, answer.meter.worker
        exceeded = LimitExceeded(f"{frame.path} stops: {problem}.", problem=problem, limit=limit, worker=worker)
        # After an answer that leaves the problem as it was, the same question would be asked without end.
        if not limit or worker is not None or problem == agreed_to:
            raise exceeded
        agreed = await spending.raise_limits(frame, exceeded)
        if agreed is False:
            raise exceeded
        agreed_to = problem if agreed else agreed_to
    settings = request.settings
    most = _max_tokens(merge_model_settings(model.settings, settings))
    by_budget = most is None and answer.output_tokens > 0
    if by_budget:
        most = answer.output_tokens
        settings = cast(ModelSettings, {**(settings or {}), "max_tokens": most})
    return ReservedRequest(request.number, request.messages, settings, request.parameters, answer, by_budget, most)


def open_requests_above(frame: CallFrame) -> tuple[Reservation, ...]:
    """Return the requests in flight of the workers above, which may wait for this one: in the body of a stream."""
    workers = [above for above in frame.callers() if isinstance(above, RequestFrame)]
    return tuple(request for worker in workers for request in worker.open_requests)


def _quote(session: Session, frame: CallFrame, model: Model, request: OutgoingRequest) -> Quote:
    """Return the worst case of a request; `_NOTHING` if no budget needs it."""
    meters = [meter for meter in (session.spending.meter, *frame.inherited.meters) if meter.reserves]
    if not meters:
        return _NOTHING
    notice, name = session.recorder.notice, full_name(model.system, model.model_name)
    price = session.spending.prices.dearest(model)
    of_cost = [meter for meter in meters if meter.cost.limit is not None]
    if price is None and of_cost and all(meter.unpriced.limit is not None for meter in of_cost):
        notice(
            frame,
            f"The price of model {name!r} is not known, so its tokens are limited in place of its cost. "
            f"To limit that, {GIVE_PRICE}.",
        )
    if price == FREE and not any(meter.tokens.limit is not None for meter in meters):
        return replace(_NOTHING, price=price)
    # Some models get schemas in another form, which may be much longer.
    settings = merge_model_settings(model.settings, request.settings)
    parameters = model.prepare_request(request.settings, request.parameters)[1]
    bound = InputBound(request.messages, parameters, settings)
    if bound.unbounded is not None:
        notice(
            frame,
            f"The cost of {bound.unbounded} is not known before it is paid: the limit may be passed by the "
            "requests in flight.",
        )
    default: int = getattr(model, "default_max_tokens", DEFAULT_OUTPUT_TOKENS)
    thinking, max_tokens = thinking_tokens(settings), _max_tokens(settings)
    output_tokens = max_tokens or thinking + default
    return Quote(
        model=name,
        input_tokens=bound.tokens,
        output_tokens=output_tokens,
        least_output_tokens=max_tokens or min(output_tokens, thinking + LEAST_OUTPUT_TOKENS),
        price=price,
    )


def _max_tokens(settings: ModelSettings | None) -> int | None:
    """Return the bound of the output in the settings; `None` without one."""
    if not settings:
        return None
    body = settings.get("extra_body")
    candidates = [settings.get("max_tokens")]
    if isinstance(body, dict):
        candidates += [body.get(name) for name in ("max_tokens", "max_completion_tokens", "max_output_tokens")]
    return max((each for each in candidates if isinstance(each, int) and each > 0), default=None)
