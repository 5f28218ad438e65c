"""What a session uses, per model, and the budgets over its whole tree of calls."""

from __future__ import annotations

from dataclasses import dataclass
from decimal import Decimal

from pydantic_ai.messages import ModelResponse
from pydantic_ai.usage import RequestUsage, RunUsage


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Budgets of one session, over every call at every depth. `None` means no limit."""

    max_calls: int | None = 10_000
    """Calls of tools and workers together."""
    max_requests: int | None = 1_000
    """Requests to models."""
    max_tokens: int | None = None
    """Input and output tokens. A request that is under way when they run out is still paid."""
    max_cost: Decimal | float | None = None
    """US dollars. A model whose price is not known cannot be used under it."""
    timeout: float | None = None
    """Seconds for each top-level call or turn. The clock stops while a person is being asked."""

    def __post_init__(self) -> None:
        for name in ("max_calls", "max_requests", "max_tokens", "max_cost", "timeout"):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int | float | Decimal | None):
                raise TypeError(f"Limits.{name} must be a number or None, got {value!r}.")
            if value is not None and value < 0:
                raise ValueError(f"Limits.{name} must not be negative, got {value!r}.")


class UsageMeter:
    """Counts calls, requests, tokens and money. What a method returns is the budget that forbids to go on."""

    __slots__ = ("_calls", "_cost", "_limits", "_owner", "_requests", "_tokens", "_unpriced", "by_model")

    def __init__(self, limits: Limits, owner: str = "the session") -> None:
        self._owner = owner
        self.by_model: dict[str, RunUsage] = {}
        self._limits = limits
        self._calls = 0
        self._requests = 0
        self._tokens = 0
        self._cost = Decimal(0)
        self._unpriced: set[str] = set()

    def start_call(self) -> str | None:
        """Count a call, or say why there may be none."""
        limit = self._limits.max_calls
        if limit is not None and self._calls >= limit:
            return f"the {limit} calls of {self._owner} are used up (Limits.max_calls)"
        self._calls += 1
        return None

    def start_request(self) -> str | None:
        """Reserve a model request, or say why there may be none.

        The number of requests is exact under concurrency. Tokens and prices are known only afterwards.
        """
        limits = self._limits
        if limits.max_requests is not None and self._requests >= limits.max_requests:
            return f"the {limits.max_requests} model requests of {self._owner} are used up (Limits.max_requests)"
        if limits.max_tokens is not None and self._tokens >= limits.max_tokens:
            return f"{self._tokens} of {limits.max_tokens} tokens are used (Limits.max_tokens)"
        if limits.max_cost is not None and self._cost >= limits.max_cost:
            return f"${self._cost} of ${limits.max_cost} are spent (Limits.max_cost)"
        self._requests += 1
        return None

    def add(self, model: str, response: ModelResponse) -> str | None:
        """Count a response; say if it overdrew a budget."""
        usage = response.usage
        if usage.cost is None and model not in self._unpriced:
            # Where PydanticAI keeps the price, and then need not look it up again.
            usage.cost = price(response)
            if usage.cost is None:
                self._unpriced.add(model)
        self.add_usage(model, usage)
        limits = self._limits
        if limits.max_tokens is not None and self._tokens > limits.max_tokens:
            return f"{self._tokens} tokens are used, {limits.max_tokens} are allowed (Limits.max_tokens)"
        if limits.max_cost is not None and usage.cost is None:
            return f"no price is known for model {model!r}, so Limits.max_cost cannot be kept; set max_tokens instead"
        if limits.max_cost is not None and self._cost > limits.max_cost:
            return f"${self._cost} are spent, ${limits.max_cost} are allowed (Limits.max_cost)"
        return None

    def add_usage(self, model: str, usage: RequestUsage) -> None:
        """Count what one request used."""
        total = self.by_model.get(model)
        if total is None:
            total = self.by_model[model] = RunUsage()
        total.requests += 1
        total.incr(usage)
        self._tokens += usage.total_tokens
        self._cost += usage.cost or 0


def price(response: ModelResponse) -> Decimal | None:
    """What a response cost in US dollars, if the price list knows."""
    if not response.model_name:
        return None
    try:
        return response.cost().total_price
    except (LookupError, ValueError):  # a model, or a usage, that cannot be priced
        return None
