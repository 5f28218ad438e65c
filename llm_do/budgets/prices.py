"""Prices of models: those of the user, and those of the price list that PydanticAI uses."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, fields
from datetime import UTC, datetime
from decimal import ROUND_HALF_EVEN, Context, Decimal, DivisionByZero, InvalidOperation, Overflow, localcontext
from typing import Any, Protocol, runtime_checkable
from urllib.parse import urlsplit

from genai_prices.data_snapshot import get_snapshot
from genai_prices.types import ModelInfo, ModelPrice, TieredPrices, TimeOfDateConstraint
from pydantic_ai.exceptions import UserError
from pydantic_ai.messages import ModelResponse
from pydantic_ai.models import Model
from pydantic_ai.models.wrapper import WrapperModel
from pydantic_ai.usage import RequestUsage

MILLION = Decimal(1_000_000)
_ARITHMETIC = Context(
    prec=28, rounding=ROUND_HALF_EVEN, Emin=-999_999, Emax=999_999, traps=[DivisionByZero, InvalidOperation, Overflow]
)
_INTERFACES = ("openai", "openai-chat", "openai-responses")
_FREE = frozenset({"local", "test"})
"""Providers of this program: the embedded models, and PydanticAI's `TestModel`."""


@contextmanager
def money_context() -> Iterator[None]:
    """Set the precision of decimal numbers for money, independent of the program's own."""
    with localcontext(_ARITHMETIC):
        yield


def money(value: Any, what: str) -> Decimal:
    """Return an amount of US dollars as an exact decimal number: 0.1 is one tenth."""
    if isinstance(value, bool) or not isinstance(value, int | float | Decimal):
        raise TypeError(f"{what} must be a number, got {value!r}.")
    amount = Decimal(str(value)) if isinstance(value, float) else Decimal(value)
    if not amount.is_finite():
        raise ValueError(f"{what} must be a finite number, got {value!r}.")
    if amount < 0:
        raise ValueError(f"{what} must not be negative, got {value!r}.")
    return amount


@dataclass(frozen=True, slots=True, kw_only=True)
class Price:
    """The price of a model, in US dollars."""

    input: Decimal | float = Decimal(0)
    """For a million input tokens, cached or not."""
    output: Decimal | float = Decimal(0)
    """For a million output tokens."""
    request: Decimal | float = Decimal(0)
    """For each request, whatever it uses."""

    def __post_init__(self) -> None:
        for each in fields(self):
            object.__setattr__(self, each.name, money(getattr(self, each.name), f"Price.{each.name}"))

    def of(self, input_tokens: int, output_tokens: int) -> Decimal:
        """Return the cost of one request."""
        tokens = Decimal(self.input) * input_tokens + Decimal(self.output) * output_tokens
        return Decimal(self.request) + tokens / MILLION


FREE = Price()


@runtime_checkable
class HasPrices(Protocol):
    """Entries with prices of models, which hold in every session that gives no others."""

    def model_prices(self) -> Mapping[str, Price]: ...


class PriceList:
    """The prices of a session: first those of the user, then those that a provider reports, then the public list."""

    def __init__(self, *prices: Mapping[str, Price | Mapping[str, Any]]) -> None:
        """Take the user's prices, those with precedence first."""
        self._user_prices = [{name: _read_price(name, price) for name, price in each.items()} for each in prices]
        self._dearest: dict[tuple[str, str | None], Price | None] = {}
        self._unknown: set[tuple[str | None, str | None]] = set()
        """Models that the list does not have, remembered since searching it is slow."""

    @money_context()
    def dearest(self, model: Model) -> Price | None:
        """Return the highest price that a request to `model` can have; `None` if it is not known."""
        key = (model.model_id, _base_url(model))
        if key not in self._dearest:
            self._dearest[key] = self._user_price(model) or _list_price(model)
        return self._dearest[key]

    @money_context()
    def cost(self, model: Model, response: ModelResponse) -> Decimal | None:
        """Return the cost of a response; `None` if it is not known."""
        if (price := self._user_price(model)) is not None:
            return price.of(response.usage.input_tokens, response.usage.output_tokens)
        if (reported := _amount(response.usage.cost)) is not None:
            return reported
        answered = (response.provider_name, response.model_name)
        if not response.model_name or answered in self._unknown:
            return None
        try:
            return response.cost().total_price
        except LookupError:
            self._unknown.add(answered)
        except ValueError:  # a usage that cannot be priced
            pass
        return None

    def _user_price(self, model: Model) -> Price | None:
        for prices in self._user_prices:
            for each in _layers(model):
                for name in (*_full_names(each), each.model_name):
                    if (price := prices.get(name)) is not None:
                        return price
        return FREE if any(each.system in _FREE or _is_ollama_here(each) for each in _layers(model)) else None


def _layers(model: Model) -> Iterator[Model]:
    """Yield a model and those that it wraps. A model of a project's own provider has another name than these."""
    yield model
    while isinstance(model, WrapperModel):
        model = model.wrapped
        yield model


def _full_names(model: Model) -> list[str]:
    """Return the names of a model with its provider. All interfaces of one provider have the same prices."""
    providers = _INTERFACES if model.system in _INTERFACES else (model.system,)
    return [f"{provider}:{model.model_name}" for provider in (model.system, *providers)]


def _is_ollama_here(model: Model) -> bool:
    return model.system == "ollama" and urlsplit(_base_url(model) or "").hostname in ("127.0.0.1", "::1", "localhost")


def is_plausible(usage: RequestUsage) -> bool:
    return all(isinstance(count, int) and count >= 0 for count in (usage.input_tokens, usage.output_tokens))


def was_reported(usage: RequestUsage) -> bool:
    return usage.total_tokens > 0 and not usage.unmeasured_requests


def _amount(cost: Any) -> Decimal | None:
    """Return the cost that a provider reported; `None` if it is no amount of money."""
    try:
        return None if cost is None else money(cost, "cost")
    except (TypeError, ValueError):
        return None


def check_priced_name(name: str) -> str:
    """Return the name of a model that has a price. Raise `ValueError` for a pattern, which would never match."""
    if set(name) & set("*?["):
        raise ValueError(f"{name!r} is no model: a price is for one model, so write one for each")
    return name


def _read_price(name: str, price: Price | Mapping[str, Any]) -> Price:
    check_priced_name(name)
    if isinstance(price, Price):
        return price
    try:
        return Price(**price)
    except (TypeError, ValueError) as exc:
        raise ValueError(f"The price of {name!r} is wrong: {exc} Give input, output and request.") from exc


def _base_url(model: Model) -> str | None:
    with suppress(AttributeError, UserError):  # a client may be made later, or have no address
        return model.base_url
    return None


def _list_price(model: Model) -> Price | None:
    """Look a model up as PydanticAI does for its responses: by the provider's address, then by its name."""
    for each in _layers(model):
        for provider, url in ((None, _base_url(each)), (each.system, None)):
            if provider is None and url is None:
                continue
            try:
                _, info = get_snapshot().find_provider_model(each.model_name, None, provider, url)
            except LookupError:
                continue
            return _highest(info)
    return None


def _highest(model: ModelInfo) -> Price | None:
    prices = list(_may_apply(model))
    inputs, outputs = ([each for price in prices for each in _rates(price, way)] for way in ("input", "output"))
    requests = [each / 1000 for price in prices for each in _amounts(price.requests_kcount)]
    if not inputs and not outputs and not any(requests):
        return None
    return Price(input=max(inputs, default=0), output=max(outputs, default=0), request=max(requests, default=0))


def _may_apply(model: ModelInfo) -> Iterator[ModelPrice]:
    """Yield the present price, and those of other hours of the day and of other tiers of service."""
    now = datetime.now(UTC)
    yield model.get_prices(now)
    if not isinstance(model.prices, ModelPrice):
        by_hour = any(isinstance(each.constraint, TimeOfDateConstraint) for each in model.prices)
        for each in model.prices if by_hour else ():
            if each.constraint is None or isinstance(each.constraint, TimeOfDateConstraint):
                yield each.prices
    for variant in model.price_variants or ():
        if variant.constraint is None or variant.constraint.active(now):
            yield variant.prices


def _rates(price: ModelPrice, direction: str) -> Iterator[Decimal]:
    """Yield the costs of a million tokens of input or output: plain, cached, written to a cache, or as audio."""
    for name, value in vars(price).items():
        if name.endswith("_mtok") and (name.startswith("output") == (direction == "output")):
            yield from _amounts(value)


def _amounts(value: Decimal | TieredPrices | None) -> Iterable[Decimal]:
    if value is None:
        return ()
    return (value.base, *(tier.price for tier in value.tiers)) if isinstance(value, TieredPrices) else (value,)
