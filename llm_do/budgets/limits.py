"""Limits of a session and of workers, and the meters of their usage."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from decimal import Decimal
from typing import TypeAlias

from pydantic_ai.usage import RequestUsage, RunUsage

from .prices import money, money_context

Amount: TypeAlias = Decimal | int
"""US dollars, or tokens."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Budgets of one session, over every call at every depth. `None` means no limit."""

    max_calls: int | None = 10_000
    """Calls of tools and workers together."""
    max_requests: int | None = 1_000
    """Requests to models."""
    max_tokens: int | None = None
    """Input and output tokens. The most that a request can use is reserved before it is sent."""
    max_cost: Decimal | float | None = None
    """US dollars. The most that a request can cost is reserved before it is sent."""
    max_unpriced_tokens: int | None = None
    """Tokens of models without a known price, where there is a `max_cost`. `None` refuses such models."""
    timeout: float | None = None
    """Seconds for each top-level call or turn. The clock stops while a person is being asked."""

    def __post_init__(self) -> None:
        for name in ("max_calls", "max_requests", "max_tokens", "max_unpriced_tokens", "timeout"):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int | float | Decimal | None):
                raise TypeError(f"Limits.{name} must be a number or None, got {value!r}.")
            if name != "timeout" and isinstance(value, float | Decimal):
                if not math.isfinite(value) or value != int(value):
                    raise ValueError(f"Limits.{name} must be a whole number, or None for no limit; got {value!r}.")
                object.__setattr__(self, name, int(value))
            if value is not None and not value >= 0:
                raise ValueError(f"Limits.{name} must not be negative, got {value!r}.")
        if self.max_cost is not None:
            object.__setattr__(self, "max_cost", money(self.max_cost, "Limits.max_cost"))


@dataclass(frozen=True, slots=True, kw_only=True)
class Account:
    """One budget at one moment. `limit` is always the sum of the other four."""

    limit: Amount | None
    """The limit; with `None`, nothing is reserved and `left` is `None`."""
    spent: Amount
    """The sum of what providers reported."""
    estimated: Amount
    """The most that requests without a report can have used: interrupted, cancelled, or never reported."""
    reserved: Amount
    """The most that the requests in flight can use."""

    @property
    @money_context()
    def left(self) -> Amount | None:
        """The rest. It is negative where a provider reported more than was reserved."""
        return None if self.limit is None else self.limit - self.spent - self.estimated - self.reserved


@dataclass(frozen=True, slots=True, kw_only=True)
class Budget(Account):
    """The money of a session, in US dollars, and its tokens."""

    tokens: Account
    """The tokens, against `Limits.max_tokens`."""


class Pool:
    """One budget of one meter, in dollars or in tokens."""

    def __init__(self, name: str, owner: str, zero: Amount) -> None:
        self.name = name
        """The field of `Limits` that has its limit."""
        self.owner = owner
        self.zero = zero
        self.limit: Amount | None = None
        self.spent: Amount = zero
        self.estimated: Amount = zero
        self.reserved: Amount = zero
        self.in_flight = 0
        """The number of open reservations, which may still release a part."""

    @property
    def left(self) -> Amount:
        assert self.limit is not None
        return self.limit - self.spent - self.estimated - self.reserved

    def reserve(self, amount: Amount) -> None:
        self.reserved += amount
        self.in_flight += 1

    def release(self, amount: Amount) -> None:
        self.in_flight -= 1
        # Exactly zero at the end: rounding must not leave a rest that no request holds.
        self.reserved = self.reserved - amount if self.in_flight else self.zero

    def account(self) -> Account:
        return Account(limit=self.limit, spent=self.spent, estimated=self.estimated, reserved=self.reserved)

    def lacks(self, amount: Amount | None) -> str:
        """Return why an amount is not available; `None` stands for an unknown amount."""
        assert self.limit is not None
        used = f"{_number(self.spent)} of {_with_unit(self.limit)} of {self.owner} are used"
        if self.estimated:
            used += f", up to {_with_unit(self.estimated)} more by requests that reported nothing"
        if self.reserved:
            used += f", up to {_with_unit(self.reserved)} by requests in flight"
        more = "any amount" if amount is None else _with_unit(amount)
        return f"{used}, and the next request may use {more} (Limits.{self.name})"


def _number(amount: Amount) -> str:
    if isinstance(amount, int):
        return str(amount)
    return f"${amount:.3e}" if amount.adjusted() > 15 else f"${amount:.6f}".rstrip("0").rstrip(".")


def _with_unit(amount: Amount) -> str:
    return f"{amount} tokens" if isinstance(amount, int) else _number(amount)


def full_name(provider: str | None, model: str) -> str:
    """Return `provider:model`, or `model` for test models, and for a model that tries several and names them."""
    if not provider or provider in ("test", "function") or provider.startswith("fallback:"):
        return model
    return f"{provider}:{model}"


class UsageMeter:
    """Counts calls, requests, tokens and money of a session, or of one call of a worker with limits."""

    def __init__(self, limits: Limits, worker: str | None = None) -> None:
        self.worker = worker
        """The worker whose call this counts; `None` for the session."""
        self.owner = "the session" if worker is None else f"worker {worker!r}"
        self.by_model: dict[str, RunUsage] = {}
        self.by_provider: dict[str, RunUsage] = {}
        """The same by `provider:model`, since providers have different prices for one model."""
        self.calls = 0
        self.requests = 0
        self.cost = Pool("max_cost", self.owner, Decimal(0))
        self.tokens = Pool("max_tokens", self.owner, 0)
        self.unpriced = Pool("max_unpriced_tokens", self.owner, 0)
        self.set_limits(limits)

    def set_limits(self, limits: Limits) -> None:
        self.limits = limits
        self.cost.limit = None if limits.max_cost is None else money(limits.max_cost, "Limits.max_cost")
        self.tokens.limit, self.unpriced.limit = limits.max_tokens, limits.max_unpriced_tokens

    @property
    def reserves(self) -> bool:
        """Whether the worst case of a request must be reserved here before it is sent."""
        return self.cost.limit is not None or self.tokens.limit is not None

    def no_more_calls(self) -> str | None:
        """Return why no further call may be made, or `None`."""
        return self._used_up("max_calls", self.limits.max_calls, self.calls, "call")

    def no_more_requests(self) -> str | None:
        """Return why no further model request may be sent, or `None`."""
        return self._used_up("max_requests", self.limits.max_requests, self.requests, "model request")

    def _used_up(self, name: str, limit: int | None, used: int, what: str) -> str | None:
        if limit is None or used < limit:
            return None
        text = f"{what} of {self.owner} is" if limit == 1 else f"{what}s of {self.owner} are"
        return f"the {limit} {text} used up (Limits.{name})"

    @money_context()
    def count_usage(self, model: str, provider: str | None, usage: RequestUsage) -> None:
        """Count the usage of one request, as its provider reported it."""
        for table, name in ((self.by_model, model), (self.by_provider, full_name(provider, model))):
            total = table.get(name)
            if total is None:
                total = table[name] = RunUsage()
            total.requests += 1
            total.incr(usage)

    def budget(self) -> Budget:
        return Budget(**asdict(self.cost.account()), tokens=self.tokens.account())
