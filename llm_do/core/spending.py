"""The limits of a session: counting calls, and asking whether to raise a limit."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable, Callable, Iterable
from typing import TypeAlias

from ..budgets.ledger import Ledger
from ..budgets.limits import Limits, UsageMeter
from ..budgets.prices import PriceList
from ..errors import LimitExceeded
from ..values.texts import quote
from .frame import CallFrame
from .trace import ModelUsage

LimitCallback: TypeAlias = Callable[[LimitExceeded, Limits], "Limits | Awaitable[Limits | None] | None"]
"""Gets the error that a limit of the session would raise, and the limits. It returns new limits to continue with."""


class Spending:
    """The meter, the reservations and the prices of a session."""

    def __init__(self, limits: Limits, prices: PriceList, limit_callback: LimitCallback | None) -> None:
        self.limits = limits
        """The limits that the session began with. Those in force are `meter.limits`."""
        self.meter = UsageMeter(limits)
        self.ledger = Ledger()
        self.prices = prices
        self._callback = limit_callback
        self.question: tuple[str, asyncio.Future[bool | None], CallFrame] | None = None
        """The question whether to raise a limit, while it is open: the limit, the answer, and the call that asks."""

    def enter_loop(self) -> None:
        self.ledger.leave_loop()
        self.question = None

    def count_call(self, frame: CallFrame) -> None:
        """Count a call in all meters that hold for it. If one of them raises, it is counted in none."""
        above = frame.caller.inherited.meters
        meters = (self.meter, *above) if above else (self.meter,)
        for meter in meters:
            if meter.limits.max_calls is not None and (problem := meter.no_more_calls()) is not None:
                raise LimitExceeded(
                    f"{frame.path} does not run: {problem}.", problem=problem, limit="max_calls", worker=meter.worker
                )
        for meter in meters:
            meter.calls += 1

    def restore(self, spent: Iterable[ModelUsage]) -> None:
        """Count the usage of requests that an earlier run has paid for."""
        for each in spent:
            self.meter.count_usage(each.model, each.provider, each.usage)

    async def raise_limits(self, frame: CallFrame, exceeded: LimitExceeded) -> bool | None:
        """Ask whether to raise a limit of the session. All calls that wait for it share one answer.

        `None` means that another limit was asked about. The answer may have raised this one as well.
        """
        if self._callback is None:
            return False
        with frame.stop_clocks():
            while self.question is not None:
                limit, question, asker = self.question
                if frame.is_below(asker):  # the callback makes this call, and would wait for its own answer
                    return False
                agreed = await asyncio.shield(question)
                if agreed is not None:
                    return agreed if limit == exceeded.limit else None
            return await self._ask(self._callback, exceeded, frame)

    async def _ask(self, callback: LimitCallback, exceeded: LimitExceeded, frame: CallFrame) -> bool:
        """Ask for new limits. The same limits are a refusal: the request would be asked about without end."""
        question: asyncio.Future[bool | None] = asyncio.get_running_loop().create_future()
        self.question = exceeded.limit, question, frame
        agreed: bool | None = None  # if the callback fails, the next call that waits asks again
        try:
            answer = callback(exceeded, self.meter.limits)
            limits = await answer if inspect.isawaitable(answer) else answer
            if not isinstance(limits, Limits | None):
                raise TypeError(f"limit_callback must return Limits or None, got {quote(limits)}.")
            agreed = limits is not None and limits != self.meter.limits
            if limits is not None and agreed:
                self.meter.set_limits(limits)
                self.ledger.serve()
                await asyncio.sleep(0)  # lets a timeout end a request for which the limits never suffice
            return agreed
        finally:
            self.question = None
            question.set_result(agreed)
