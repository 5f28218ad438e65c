"""A stand-in where PydanticAI wants a model and there is none."""

from __future__ import annotations

from pydantic_ai.messages import ModelMessage, ModelResponse
from pydantic_ai.models import Model, ModelRequestParameters
from pydantic_ai.settings import ModelSettings

from ..errors import ModelChoiceError


class NoModel(Model):
    """Stands where PydanticAI wants a model and there is none: in a function that no worker called."""

    def __init__(self, entry: str) -> None:
        super().__init__()
        self._entry = entry

    @property
    def model_name(self) -> str:
        return "none"

    @property
    def system(self) -> str:
        return "none"

    async def request(
        self,
        messages: list[ModelMessage],
        model_settings: ModelSettings | None,
        model_request_parameters: ModelRequestParameters,
    ) -> ModelResponse:
        raise ModelChoiceError(
            f"{self._entry!r} was not called by a worker, so its RunContext has no model to ask. Call a worker instead."
        )
