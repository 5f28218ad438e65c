"""Answers of providers that are invalid (HTML of a proxy, empty bodies, truncated JSON, `choices: []`) or cut off.

PydanticAI raises an error of its own for some invalid answers and an `IndexError` for others. Here all become
`ModelAnswerError`, a `ModelAPIError`, so that a `FallbackModel` goes on to its next model.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import suppress
from json import JSONDecodeError
from traceback import walk_tb
from types import FrameType
from typing import Any
from urllib.parse import urlsplit

from pydantic import BaseModel
from pydantic_ai.exceptions import ContentFilterError, ModelAPIError, UnexpectedModelBehavior
from pydantic_ai.messages import ModelResponse
from pydantic_ai.models import Model, StreamedResponse
from pydantic_ai.models.wrapper import WrapperModel
from pydantic_core import from_json

from ..budgets.prices import was_reported
from ..errors import LlmDoError
from ..privacy.display import abridge, visible

_EXCERPT_LENGTH = 160
_READERS = frozenset({"_process_response", "_process_streamed_response", "_get_event_iterator", "_finish_response"})
"""The functions of PydanticAI's models that parse an answer. All its models have the first three."""
_PACKAGES_OF_READERS = frozenset({"pydantic_ai", "pydantic"})
_RAISED_BY_READERS = (UnexpectedModelBehavior, LookupError, AttributeError, TypeError, ValueError)
_PARSE_ERRORS_BEGIN = (
    *("Failed to decode response as JSON", "Expected a JSON response"),
    *("Unexpected response received", "Response validation failed"),  # Mistral's client
)
_REPORT_FINISH_REASONS = frozenset(
    {"AnthropicModel", "BedrockConverseModel", "CohereModel", "GoogleModel", "GroqModel", "HuggingFaceModel"}
    | {"MistralModel", "OpenAIChatModel", "OpenAIResponsesModel", "XaiModel"}
)


class ModelAnswerError(LlmDoError, ModelAPIError):
    """A provider sent an invalid answer, such as HTML or truncated JSON."""


def unreadable_answer(exc: BaseException, model: Model, redact: Callable[[str], str] = str) -> ModelAnswerError | None:
    """Return a `ModelAnswerError` for an answer that could not be parsed; `None` if something else went wrong."""
    frames = [frame for frame, _ in walk_tb(exc.__traceback__)]
    readers = [
        frame
        for frame in frames
        if _module(frame).startswith("pydantic_ai.models") and frame.f_code.co_name in _READERS
    ]
    if type(exc) is ModelAPIError and exc.message.startswith(_PARSE_ERRORS_BEGIN):
        return _error(model, _describe(_body_of_cause(exc), exc.message, redact))
    if type(exc).__name__ == "ResponseNotRead" and any(_module(frame).startswith("mistralai") for frame in frames):
        return _error(model, "it is empty")  # as Mistral's client fails for an empty stream
    # A user's code inside a model may fail while an answer is read: then the answer is not to blame.
    inner = frames[frames.index(readers[-1]) :] if readers else []
    is_in_reader = bool(inner) and all(_module(frame).partition(".")[0] in _PACKAGES_OF_READERS for frame in inner)
    if not is_in_reader or not isinstance(exc, _RAISED_BY_READERS) or isinstance(exc, ContentFilterError):
        return None
    message = exc.message if isinstance(exc, UnexpectedModelBehavior) else f"{type(exc).__name__}: {exc}"
    return _error(model, _describe(_body(readers[-1]), message, redact))


def refuse_empty_response(response: ModelResponse, model: Model) -> None:
    """Raise for an empty response: no part, no finish reason, no usage."""
    finish = (response.provider_details or {}).get("finish_reason") or (
        response.finish_reason if response.finish_reason != "stop" else None
    )
    will_continue = response.state == "suspended" and response.provider_response_id
    if not response.parts and not finish and not will_continue and not was_reported(response.usage):
        raise _error(model, "it is empty")


async def refuse_empty_stream(stream: StreamedResponse, events: AsyncIterator[Any], model: Model) -> AsyncIterator[Any]:
    """Yield the events of a stream, and raise at its end if it was empty."""
    async for event in events:
        yield event
    if not stream.cancelled:
        refuse_empty_response(stream.get(), model)


def describe_cutoff(response: ModelResponse, max_tokens: int | None, *, bounded_by_budget: bool) -> str | None:
    """Describe the limit that truncated an answer, and how to raise it; `None` if the answer is complete.

    `max_tokens` is the number that was sent, if any; `bounded_by_budget` tells that it came from a budget.
    """
    if response.finish_reason != "length":
        return None
    if bounded_by_budget:
        return (
            f"max_tokens={max_tokens} is sent because there is a limit of money or tokens; set `max_tokens` "
            "in `model_settings` of the worker, or raise the limit"
        )
    if max_tokens is not None:
        return f"max_tokens={max_tokens} of its settings was reached; raise it in `model_settings`"
    return "the model's own limit was reached; ask for a shorter answer, or set `max_tokens` in `model_settings`"


def describe_missing_end(response: ModelResponse, model: Model) -> str | None:
    """Describe a stream that seems to have ended early; `None` if it is complete.

    OpenAI-compatible servers report the usage last. Some never send a finish reason, so that report is an end too.
    """
    while isinstance(model, WrapperModel):
        model = model.wrapped
    kinds = {kind.__name__ for kind in type(model).__mro__ if kind.__module__.startswith("pydantic_ai.models.")}
    # Claude behind Snowflake never sends a finish reason.
    if response.state != "complete" or not kinds & _REPORT_FINISH_REASONS or "SnowflakeModel" in kinds:
        return None
    if (response.provider_details or {}).get("finish_reason"):  # as the provider wrote it, known or not
        return None
    if "OpenAIChatModel" in kinds:
        # PydanticAI sets "stop" if there was no finish reason.
        if response.finish_reason not in (None, "stop") or was_reported(response.usage):
            return None
    elif response.finish_reason is not None:
        return None
    return "the provider's stream ended without a finish reason, so the end may be missing; ask again"


def _error(model: Model, what: str) -> ModelAnswerError:
    address = _address(model)
    return ModelAnswerError(
        model.model_name,
        f"Model {visible(model.model_name)!r}{f' at {address}' if address else ''} gave an answer that cannot be read: "
        f"{what}. Check the address and the key of the provider, or try again later.",
    )


def _address(model: Model) -> str:
    """Return the address of a model's API without credentials and query; empty if unknown."""
    with suppress(Exception):  # a user's model may do anything here
        parts = urlsplit(model.base_url or "")
        port = f":{parts.port}" if parts.port is not None else ""
        return visible(f"{parts.scheme}://{parts.hostname}{port}{parts.path}") if parts.hostname else ""
    return ""


def _describe(body: str | None, message: str, redact: Callable[[str], str]) -> str:
    """Describe an invalid answer. It is redacted before it is shortened: half a secret would not be recognised."""
    if body is None:
        return abridge(visible(" ".join(redact(message).split())), _EXCERPT_LENGTH).rstrip(".")
    text = " ".join(redact(body[:10_000]).split())
    if not text:
        return "it is empty"
    begins = f"it begins with {abridge(visible(text), _EXCERPT_LENGTH)}"
    if text.startswith("<"):
        return f"it is HTML, not JSON; {begins}"
    if text.startswith(("{", "[")):
        try:
            from_json(body)
        except ValueError:
            return f"it is JSON that was cut off; {begins}"
        return f"it lacks what an answer has; {begins}"
    return f"it is not JSON; {begins}"


def _body_of_cause(exc: ModelAPIError) -> str | None:
    """Return the answer that a provider's client could not parse, if the client's error has it."""
    cause = exc.__cause__
    body = cause.doc if isinstance(cause, JSONDecodeError) else getattr(cause, "body", None)
    return body if isinstance(body, str) else None


def _body(frame: FrameType) -> str | None:
    """Return the answer that a function of PydanticAI was parsing, if it can be found."""
    with suppress(Exception):
        response = frame.f_locals.get("response")
        if isinstance(response, BaseModel):
            return response.model_dump_json(exclude_none=True, warnings=False)
        return response if isinstance(response, str) else None
    return None


def _module(frame: FrameType) -> str:
    return str(frame.f_globals.get("__name__", ""))
