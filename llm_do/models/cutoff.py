"""Truncated answers: by a limit of tokens, or because a stream ended early."""

from __future__ import annotations

from pydantic_ai.messages import ModelResponse
from pydantic_ai.models import Model
from pydantic_ai.models.wrapper import WrapperModel

from ..budgets.prices import was_reported

_REPORT_ENDS = frozenset(
    {
        "AnthropicModel",
        "BedrockConverseModel",
        "CohereModel",
        "GoogleModel",
        "GroqModel",
        "HuggingFaceModel",
        "MistralModel",
        "OpenAIChatModel",
        "OpenAIResponsesModel",
        "XaiModel",
    }
)
"""PydanticAI's models whose streams report a finish reason."""
_REPORT_NO_ENDS = frozenset({"SnowflakeModel"})
"""Subclasses of these that do not: Claude behind Snowflake never sends a finish reason."""


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
    if response.state != "complete" or not kinds & _REPORT_ENDS or kinds & _REPORT_NO_ENDS:
        return None
    if (response.provider_details or {}).get("finish_reason"):  # as the provider wrote it, known or not
        return None
    if "OpenAIChatModel" in kinds:
        # PydanticAI makes "stop" of no finish reason.
        if response.finish_reason not in (None, "stop") or was_reported(response.usage):
            return None
    elif response.finish_reason is not None:
        return None
    return "the provider's stream ended without a finish reason, so the end may be missing; ask again"
