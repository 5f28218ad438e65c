"""Answers of a provider that are no answers: HTML of a proxy, empty bodies, cut-off JSON, `choices: []`.

PydanticAI raises an error of its own for some of these and lets an `IndexError` out for others. Here all become one
named error, which is a `ModelAPIError`, so that a `FallbackModel` goes on to its next model.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import suppress
from json import JSONDecodeError
from types import FrameType
from typing import Any
from urllib.parse import urlsplit

from pydantic import BaseModel
from pydantic_ai.exceptions import ContentFilterError, ModelAPIError, UnexpectedModelBehavior
from pydantic_ai.messages import ModelResponse
from pydantic_ai.models import Model, StreamedResponse
from pydantic_core import from_json

from ..budgets.prices import was_reported
from ..errors import LlmDoError
from ..privacy.display import abridge, visible

_LONGEST = 160
"""How many characters of an answer are shown."""
_READERS = frozenset({"_process_response", "_process_streamed_response", "_get_event_iterator", "_finish_response"})
"""The functions of PydanticAI's models that read an answer. All its models have the first three."""
_PACKAGES_OF_READERS = frozenset({"pydantic_ai", "pydantic"})
_RAISED_BY_READERS = (UnexpectedModelBehavior, LookupError, AttributeError, TypeError, ValueError)
_NOT_DECODED = (
    *("Failed to decode response as JSON", "Expected a JSON response"),
    *("Unexpected response received", "Response validation failed"),  # Mistral's client
)
"""The beginnings of PydanticAI's errors about answers that its models' clients could not read."""
_ADVICE = "Check the address and the key of the provider, or try again later."


class ModelAnswerError(LlmDoError, ModelAPIError):
    """A provider answered a request with something that is no answer, such as HTML or JSON that was cut off."""


def unreadable_answer(exc: BaseException, model: Model, redact: Callable[[str], str] = str) -> ModelAnswerError | None:
    """Return the named error for an answer that could not be read; `None` where something else went wrong."""
    frames = list(_frames(exc))
    readers = [frame for frame in frames if _module(frame).startswith("pydantic_ai.models") and _is_reader(frame)]
    if type(exc) is ModelAPIError and exc.message.startswith(_NOT_DECODED):
        return _error(model, _describe(_body_of_cause(exc), exc.message, redact))
    if type(exc).__name__ == "ResponseNotRead" and any(_module(frame).startswith("mistralai") for frame in frames):
        return _error(model, "it is empty")  # what Mistral's client raises about an empty stream, instead of that
    # Code that a user put into a model may fail while an answer is read, and that is no fault of the answer.
    below = frames[frames.index(readers[-1]) :] if readers else []
    is_theirs = bool(below) and all(_module(frame).partition(".")[0] in _PACKAGES_OF_READERS for frame in below)
    if not is_theirs or not isinstance(exc, _RAISED_BY_READERS) or isinstance(exc, ContentFilterError):
        return None
    message = exc.message if isinstance(exc, UnexpectedModelBehavior) else f"{type(exc).__name__}: {exc}"
    return _error(model, _describe(_body(readers[-1]), message, redact))


def refuse_empty_response(response: ModelResponse, model: Model) -> None:
    """Raise for a response in which there is nothing at all: no part, no reason why it ended, no usage."""
    ended = (response.provider_details or {}).get("finish_reason") or (
        response.finish_reason if response.finish_reason != "stop" else None
    )
    is_to_be_continued = response.state == "suspended" and response.provider_response_id
    if not response.parts and not ended and not is_to_be_continued and not was_reported(response.usage):
        raise _error(model, "it is empty")


async def refuse_empty_stream(stream: StreamedResponse, events: AsyncIterator[Any], model: Model) -> AsyncIterator[Any]:
    """Yield the events of a stream, and raise at its end if it brought nothing."""
    async for event in events:
        yield event
    if not stream.cancelled:
        refuse_empty_response(stream.get(), model)


def _error(model: Model, what: str) -> ModelAnswerError:
    place = _place(model)
    return ModelAnswerError(
        model.model_name,
        f"Model {visible(model.model_name)!r}{f' at {place}' if place else ''} gave an answer that cannot be read: "
        f"{what}. {_ADVICE}",
    )


def _place(model: Model) -> str:
    """Return the address that a model is asked at, without what may be secret in it."""
    with suppress(Exception):  # a user's model may do anything here
        parts = urlsplit(model.base_url or "")
        port = f":{parts.port}" if parts.port is not None else ""
        return visible(f"{parts.scheme}://{parts.hostname}{port}{parts.path}") if parts.hostname else ""
    return ""


def _describe(body: str | None, message: str, redact: Callable[[str], str]) -> str:
    """Say what an answer is. Secrets are taken out before it is cut: half of one would not be known as one."""
    if body is None:
        return abridge(visible(" ".join(redact(message).split())), _LONGEST).rstrip(".")
    text = " ".join(redact(body[:10_000]).split())
    if not text:
        return "it is empty"
    begins = f"it begins with {abridge(visible(text), _LONGEST)}"
    if text.startswith("<"):
        return f"it is HTML, not JSON; {begins}"
    if text.startswith(("{", "[")):
        return f"{'it lacks what an answer has' if _is_json(body) else 'it is JSON that was cut off'}; {begins}"
    return f"it is not JSON; {begins}"


def _is_json(text: str) -> bool:
    try:
        from_json(text)
    except ValueError:
        return False
    return True


def _body_of_cause(exc: ModelAPIError) -> str | None:
    """Return the answer that a client of a provider could not read, where its own error has it."""
    cause = exc.__cause__
    body = cause.doc if isinstance(cause, JSONDecodeError) else getattr(cause, "body", None)
    return body if isinstance(body, str) else None


def _body(frame: FrameType) -> str | None:
    """Return the answer that a function of PydanticAI was reading, where it can be found."""
    with suppress(Exception):
        response = frame.f_locals.get("response")
        if isinstance(response, BaseModel):
            return response.model_dump_json(exclude_none=True, warnings=False)
        return response if isinstance(response, str) else None
    return None


def _is_reader(frame: FrameType) -> bool:
    return frame.f_code.co_name in _READERS


def _module(frame: FrameType) -> str:
    return str(frame.f_globals.get("__name__", ""))


def _frames(exc: BaseException) -> Iterator[FrameType]:
    at = exc.__traceback__
    while at is not None:
        yield at.tb_frame
        at = at.tb_next
