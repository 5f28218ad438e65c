"""The models of a session: which one a worker uses, and models that answer without a provider."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from typing import Any, NoReturn

from pydantic_ai.messages import ModelMessage, ModelResponse
from pydantic_ai.models import Model, ModelRequestParameters
from pydantic_ai.settings import ModelSettings

from ..errors import ModelChoiceError
from ..models.choice import DefaultModel, ModelLike
from ..models.compatibility import find_unfit_model, find_unverified_model
from ..models.resolve import HasProviders, describe_remote, explain_unusable, resolve_model
from ..values.texts import quote
from .entry import Entry
from .frame import CallFrame
from .recorder import Recorder

logger = logging.getLogger("llm_do")


class SessionModels:
    """Chooses the models of workers: their own, or the session's default."""

    def __init__(
        self,
        entries: Mapping[str, Entry[Any]],
        recorder: Recorder,
        default: ModelLike | None,
        choose_default: DefaultModel | None,
    ) -> None:
        self.default = default
        self._entries = entries
        self._recorder = recorder
        self._choose_default = choose_default if default is None else None
        """Asked for the default model when it is first needed; `None` after that."""
        self._by_name: dict[str, Model] = {}
        self._choosing: asyncio.Lock

    def enter_loop(self) -> None:
        self._choosing = asyncio.Lock()

    async def prepare_default(self, frame: CallFrame) -> None:
        """Choose the default model if a call needs it. Its deadline is paused, since a person may be asked."""
        if self._choose_default is None or frame.entry.model is not None:
            return
        deadline = frame.deadline
        if deadline is not None:
            deadline.pause()
        try:
            async with self._choosing:
                if self._choose_default is not None:
                    self.default = await self._choose_default(frame.entry.name, partial(self._recorder.notice, frame))
                    self._choose_default = None
        finally:
            if deadline is not None:
                deadline.resume()

    def choose(self, frame: CallFrame) -> Model | None:
        """Return the worker's own model, else the session's, if any. The caller's model is not inherited."""
        entry = frame.entry
        choice = entry.model if entry.model is not None else self.default
        if choice is None:
            return None
        if isinstance(choice, Model):
            self.check_compatible(frame, choice)
            return choice
        if not isinstance(choice, str):
            raise ModelChoiceError(
                f"Worker {entry.name!r} cannot use {quote(choice)}: give a model's name, or a model."
            )
        if choice not in self._by_name:
            try:
                self._by_name[choice] = self._make(choice)
            except Exception as exc:  # packages of providers have their own exceptions
                providers = self._entries.providers() if isinstance(self._entries, HasProviders) else ()
                reason = explain_unusable(choice, exc, providers)
                raise ModelChoiceError(f"Worker {entry.name!r} cannot use model {choice!r}: {reason}") from exc
        self.check_compatible(frame, self._by_name[choice], choice)
        return self._by_name[choice]

    def _make(self, name: str) -> Model:
        own = self._entries.make_model(name) if isinstance(self._entries, HasProviders) else None
        if own is not None:
            return own
        model = resolve_model(name)
        if remote := describe_remote(name):
            logger.warning("llm-do: %s", remote)
        return model

    def check_compatible(self, frame: CallFrame, model: Model, name: str | None = None) -> None:
        """Refuse a model that a worker cannot use. If that is unknown, send a notice."""
        entry = frame.entry
        patterns = entry.compatible_models
        if not patterns:
            return
        allowed = ", ".join(patterns)
        if (misfit := find_unfit_model(model, patterns, name)) is not None:
            by = "" if entry.model is not None else ", the session's default"
            raise ModelChoiceError(
                f"Worker {entry.name!r} cannot use model {misfit!r}{by}: its compatible_models are {allowed}. Give it "
                "a `model` of its own that fits, or the session one: `--model NAME`, `model=` / `cli_model=` in "
                "Python, LLM_DO_MODEL=NAME, or `model` in llm-do.toml."
            )
        if (unknown := find_unverified_model(model, patterns, name)) is not None:
            unsure, fact = unknown
            self._recorder.notice(
                frame,
                f"It is not known whether model {unsure!r} {fact}, as worker {entry.name!r} asks for "
                f"(compatible_models: {allowed}). It is used all the same.",
            )


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
    """Return the model of a function that no worker called. Its requests raise."""

    async def refuse(messages: list[ModelMessage], settings: ModelSettings) -> NoReturn:
        raise ModelChoiceError(
            f"{entry!r} was not called by a worker, so its RunContext has no model to ask. Call a worker instead."
        )

    return StandInModel("none", refuse)
