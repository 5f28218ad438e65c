"""Stand-ins where PydanticAI wants a model and there is none of a provider."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import NoReturn

from pydantic_ai.messages import ModelMessage, ModelResponse
from pydantic_ai.models import Model, ModelRequestParameters
from pydantic_ai.settings import ModelSettings

from ..errors import ModelChoiceError


class StandInModel(Model):
    """A model whose answers come from a function. `FunctionModel` would change them, and estimate their usage."""

    def __init__(self, name: str, answer: Callable[[list[ModelMessage], ModelSettings], Awaitable[ModelResponse]]):
        super().__init__()
        self._name = name
        self._answer = answer

    @property
    def model_name(self) -> str:
        return self._name

    @property
    def system(self) -> str:
        return self._name

    async def request(
        self,
        messages: list[ModelMessage],
        model_settings: ModelSettings | None,
        model_request_parameters: ModelRequestParameters,
    ) -> ModelResponse:
        return await self._answer(messages, model_settings or ModelSettings())


def no_model(entry: str) -> StandInModel:
    """Return the model of a function that no worker called. Any request is an error."""

    async def refuse(messages: list[ModelMessage], settings: ModelSettings) -> NoReturn:
        raise ModelChoiceError(
            f"{entry!r} was not called by a worker, so its RunContext has no model to ask. Call a worker instead."
        )

    return StandInModel("none", refuse)
