"""Reservations: the worst case of a model request is set aside before it is sent, and settled by the usage.

A request is reserved in every meter above it, or in none. If there is too little left, it waits for requests in flight
that may release a part, and is refused if none can. So concurrent requests never exceed a limit.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence, Set
from contextlib import suppress
from dataclasses import dataclass
from decimal import Decimal

from pydantic_ai.usage import RequestUsage

from .limits import Amount, Pool, UsageMeter
from .prices import MILLION, Price, money_context

DEFAULT_OUTPUT_TOKENS = 8_192
"""The `max_tokens` that is sent under a limit of money or tokens if the settings have none."""
LEAST_OUTPUT_TOKENS = 256
"""The lowest `max_tokens` that is sent, if the rest of a budget pays for no more."""
GIVE_PRICE = "give its price under [prices] in llm-do.toml, or with Runtime(prices=...)"


@dataclass(frozen=True, slots=True, kw_only=True)
class Quote:
    """The worst case of one request."""

    model: str
    input_tokens: int
    output_tokens: int
    """The most output tokens: those of the settings, or a default."""
    least_output_tokens: int
    """The fewest that are useful; `output_tokens` if the settings have a number."""
    price: Price | None
    """The highest price that can apply; `None` if it is not known."""


@dataclass(frozen=True, slots=True)
class Refusal:
    """The reason why a request cannot be sent, and the meter whose limit it is."""

    problem: str
    limit: str
    """The field of `Limits`; empty if no higher number would help."""
    meter: UsageMeter


@dataclass(frozen=True, slots=True)
class _Claim:
    """The part of one budget that one request takes."""

    pool: Pool
    meter: UsageMeter
    fixed: Amount
    """The amount without any output."""
    per_token: Amount
    """The amount for each token of output."""

    def amount(self, output_tokens: int) -> Amount:
        return self.fixed + self.per_token * output_tokens

    def affords(self, rest: Amount, output_tokens: int) -> int:
        """Return how many of the output tokens the rest pays for; -1 if not even for the input."""
        if rest < self.fixed:
            return -1
        if rest >= self.amount(output_tokens):
            return output_tokens
        return int((rest - self.fixed) // self.per_token)


class Reservation:
    """The amounts that one request reserves until it is settled, once."""

    def __init__(
        self, ledger: Ledger, meters: Sequence[UsageMeter], claims: Sequence[_Claim], quote: Quote, output_tokens: int
    ) -> None:
        self._ledger = ledger
        self._meters = meters
        self.shares = {claim.pool: claim.amount(output_tokens) for claim in claims}
        self._price = quote.price
        self.output_tokens = output_tokens
        """The most output tokens of the request."""
        self.is_open = True
        if self.shares:
            ledger.in_flight.add(self)
        for pool, share in self.shares.items():
            pool.reserve(share)
        for meter in meters:
            meter.requests += 1

    @money_context()
    def settle(self, usages: Sequence[RequestUsage], *, whole: bool, unreported: int = 0) -> bool:
        """Count the usage of a request, unless it is settled. Return whether it is more than was reserved.

        If `usages`, of the response and of attempts before it, are not the `whole` usage, the rest of the reservation
        counts as estimated, since it may be billed. Each of the `unreported` attempts counts as a whole reservation.
        """
        if not self.is_open:
            return False
        self._close()
        over = False
        for meter in self._meters:
            for pool in (meter.cost, meter.tokens, meter.unpriced):
                spent, estimated = pool.zero, pool.zero
                for usage in usages:
                    reported, by_price = self._used(meter, pool, usage)
                    spent, estimated = spent + reported, estimated + by_price
                pool.spent += spent
                if (share := self.shares.get(pool)) is not None:
                    pool.release(share)
                    over = over or spent + estimated > share
                    pool.estimated += estimated if whole else max(share - spent, estimated)
                    if unreported:
                        pool.estimated += share * unreported
        self._ledger.serve()
        return over

    def _used(self, meter: UsageMeter, pool: Pool, usage: RequestUsage) -> tuple[Amount, Amount]:
        """Return the reported and the estimated usage, in the unit of a budget."""
        if pool is meter.unpriced and pool not in self.shares:
            return pool.zero, pool.zero
        if pool is not meter.cost:
            return usage.total_tokens, 0
        if usage.cost is None and self._price is not None:  # the model that answered has no known price
            return pool.zero, self._price.of(usage.input_tokens, usage.output_tokens)
        return usage.cost or pool.zero, pool.zero

    @money_context()
    def cancel(self) -> None:
        """Release everything: the request was not sent."""
        if not self.is_open:
            return
        self._close()
        for pool, share in self.shares.items():
            pool.release(share)
        for meter in self._meters:
            meter.requests -= 1
        self._ledger.serve()

    def _close(self) -> None:
        self.is_open = False
        self._ledger.in_flight.discard(self)


@dataclass(frozen=True, slots=True)
class _Waiter:
    answer: asyncio.Future[Reservation | Refusal]
    line: Set[Pool]
    """All budgets that it takes from."""
    request: tuple[Sequence[UsageMeter], Quote, Sequence[Reservation]]


class Ledger:
    """Makes the reservations of a session, first come, first served."""

    def __init__(self) -> None:
        self._waiting: list[_Waiter] = []
        self._awaited: Set[Pool] = frozenset()
        """The budgets that have too little left for a waiting request."""
        self.in_flight: set[Reservation] = set()

    async def reserve(
        self, meters: Sequence[UsageMeter], quote: Quote, outer: Sequence[Reservation] = ()
    ) -> Reservation | Refusal:
        """Reserve a request in all `meters`, or return why it is refused. It may have to wait.

        It does not wait for `outer`, the reservations of requests that end only after this one.
        """
        answer = self._attempt(meters, quote, outer)
        if not isinstance(answer, _MustWait):
            return answer
        self._awaited |= answer.pools
        future: asyncio.Future[Reservation | Refusal] = asyncio.get_running_loop().create_future()
        self._waiting.append(_Waiter(future, answer.line, (meters, quote, outer)))
        try:
            return await future
        except asyncio.CancelledError:
            if not future.cancelled() and isinstance(reservation := future.result(), Reservation):
                reservation.cancel()
            self.serve()  # others may have waited for it
            raise

    def serve(self) -> None:
        """Answer as many waiting requests as possible. None takes an amount that an earlier one waits for."""
        self._awaited = frozenset()
        still_waiting, blocked = list[_Waiter](), set[Set[Pool]]()
        for waiter in self._waiting:
            if waiter.line not in blocked:  # only the first of a line can be next
                if waiter.answer.done():  # it was cancelled
                    continue
                answer = self._attempt(*waiter.request)
                if not isinstance(answer, _MustWait):
                    waiter.answer.set_result(answer)
                    continue
                self._awaited |= answer.pools
                blocked.add(waiter.line)
            still_waiting.append(waiter)
        self._waiting = still_waiting

    def leave_loop(self) -> None:
        """Drop the requests of an event loop that has ended: no usage of those in flight will be reported."""
        waiting, self._waiting, self._awaited = self._waiting, [], frozenset()
        for waiter in waiting:
            with suppress(RuntimeError):  # its loop is closed, and no task waits any more
                waiter.answer.cancel()
        for reservation in list(self.in_flight):
            reservation.settle((), whole=False)

    @money_context()
    def _attempt(
        self, meters: Sequence[UsageMeter], quote: Quote, outer: Sequence[Reservation]
    ) -> Reservation | Refusal | _MustWait:
        """Reserve, refuse, or return the budgets that have too little left while requests are in flight."""
        claims: list[_Claim] = []
        for meter in meters:
            if (problem := meter.no_more_requests()) is not None:
                return Refusal(problem, "max_requests", meter)
            if isinstance(more := _claims(meter, quote), Refusal):
                return more
            claims += more
        output = quote.output_tokens
        for claim in claims:
            shares = [each.shares[claim.pool] for each in outer if each.is_open and claim.pool in each.shares]
            left_at_best = claim.pool.left + claim.pool.reserved - sum(shares)  # if everything that can be released is
            most = claim.affords(left_at_best, output)
            if most < quote.least_output_tokens:
                return Refusal(claim.pool.lacks(claim.amount(quote.least_output_tokens)), claim.pool.name, claim.meter)
            if claim.pool.in_flight == len(shares):  # nothing will be released, so the output must be shorter
                output = most
        short = {
            claim.pool
            for claim in claims
            if claim.pool in self._awaited or claim.affords(claim.pool.left, output) < output
        }
        if short:
            return _MustWait(short, frozenset(claim.pool for claim in claims))
        return Reservation(self, meters, claims, quote, output)


@dataclass(frozen=True, slots=True)
class _MustWait:
    pools: Set[Pool]
    """The budgets that have too little left."""
    line: Set[Pool]


def _claims(meter: UsageMeter, quote: Quote) -> list[_Claim] | Refusal:
    claims = []
    if meter.tokens.limit is not None:
        claims.append(_Claim(meter.tokens, meter, quote.input_tokens, 1))
    if meter.cost.limit is None:
        return claims
    if quote.price is not None:
        fixed, per_token = quote.price.of(quote.input_tokens, 0), Decimal(quote.price.output) / MILLION
        if fixed or per_token:  # free requests never wait
            claims.append(_Claim(meter.cost, meter, fixed, per_token))
    elif meter.unpriced.limit is not None:
        if meter.cost.spent and meter.cost.spent >= meter.cost.limit:  # its cost is known only afterwards
            return Refusal(meter.cost.lacks(None), meter.cost.name, meter)
        claims.append(_Claim(meter.unpriced, meter, quote.input_tokens, 1))
    else:
        problem = f"no price is known for model {quote.model!r}, so Limits.max_cost cannot be kept; {GIVE_PRICE}"
        return Refusal(problem, "", meter)
    return claims
