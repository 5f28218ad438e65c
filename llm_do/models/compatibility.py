"""Requirements of a worker on its model: patterns of names, and capabilities (kinds of files that it accepts).

Capabilities are known only from PydanticAI's model profiles, where a flag that is on may just be a default. So a model
is refused if its flag is off. Otherwise it is used, with a notice unless llm-do assumes the capability for all current
models of its provider: any model may be behind a server or a gateway.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from fnmatch import fnmatchcase
from typing import Any

from pydantic_ai.models import Model
from pydantic_ai.models.fallback import FallbackModel
from pydantic_ai.models.wrapper import WrapperModel

from ..errors import did_you_mean

_TEST_MODELS = ("test", "function")
"""Providers whose models stand in for any other."""
_GOOGLE = ("google", "google-gla", "google-vertex", "google-cloud")
_CAPABILITIES: Mapping[str, tuple[str, Sequence[str]]] = {
    "vision": ("supports_image_input", ("anthropic", *_GOOGLE, "openai")),
    "pdf": ("supports_document_input", ("anthropic", *_GOOGLE, "openai")),
    "audio": ("supports_audio_file_input", _GOOGLE),
    "video": ("supports_video_input", _GOOGLE),
}
"""Their flags in model profiles, and the providers whose current models are assumed to have them."""
CAPABILITIES = tuple(_CAPABILITIES)
"""Capabilities that a worker can require; `vision` is images."""


def check_requirement(requirement: str) -> str:
    """Return a requirement, or raise if it is neither a pattern such as `anthropic:*` nor a capability."""
    provider, colon, name = requirement.partition(":")
    if requirement not in CAPABILITIES and not (colon and provider and name):
        raise ValueError(
            f"{requirement!r} is no pattern of models, such as 'anthropic:*', and no capability."
            f"{did_you_mean(requirement, CAPABILITIES)}"
        )
    return requirement


def id_of(model: Model) -> str:
    return f"{model.system}:{model.model_name}"


def candidates(model: Model) -> Iterator[Model]:
    """Yield the models that may answer: those inside of wrappers and `FallbackModel`."""
    if isinstance(model, FallbackModel):
        for each in model.models:
            yield from candidates(each)
    elif isinstance(model, WrapperModel):
        yield from candidates(model.wrapped)
    else:
        yield model


def find_unfit_model(model: Model, requirements: Sequence[str], requested: str | None = None) -> str | None:
    """Return the name of the first model that may answer and does not meet the requirements, if any.

    A model has to match one of the patterns, if there are any, and to have all capabilities. `requested` is the name
    that was requested: its provider may differ from the model's own.
    """
    for each in candidates(model):
        names = [id_of(each), *([] if requested is None else [requested])]
        if not any(name_fits(name, requirements) for name in names) and each.system not in _TEST_MODELS:
            return id_of(each)
        if any(lacks(each, capability) for capability in requirements if capability in CAPABILITIES):
            return id_of(each)
    return None


def name_fits(name: str, requirements: Sequence[str]) -> bool:
    """Return whether a model's name matches one of the patterns, or there are none."""
    patterns = [each.casefold() for each in requirements if each not in CAPABILITIES]
    return not patterns or any(fnmatchcase(name.casefold(), pattern) for pattern in patterns)


def find_unverified_model(
    model: Model, requirements: Sequence[str], requested: str | None = None
) -> tuple[str, str] | None:
    """Return the name of a model that may not meet the requirements, and what is not known about it."""
    is_meant = requested is not None and name_fits(requested, requirements)
    for each in candidates(model):
        if each.system in _TEST_MODELS and requirements and not is_meant:
            return requested or id_of(each), "fits"
        for capability in requirements:
            if capability in CAPABILITIES and each.system not in _CAPABILITIES[capability][1]:
                return id_of(each), f"can be sent what {capability!r} means"
    return None


def lacks(model: Model, capability: str) -> bool:
    """Return whether a model is known not to have a capability."""
    flag, _ = _CAPABILITIES[capability]
    types = model.profile.get("supported_document_media_types") if capability == "pdf" else None
    return not model.profile.get(flag, True) or (types is not None and "application/pdf" not in types)


def capability_for(content: Any) -> str | None:
    """Return the capability that a model needs to accept this content, if any."""
    kind = str(getattr(content, "kind", ""))
    media_type = kind.removesuffix("-url") if kind.endswith("-url") else str(getattr(content, "media_type", ""))
    if media_type == "application/pdf":
        return "pdf"
    return {"image": "vision", "audio": "audio", "video": "video"}.get(media_type.partition("/")[0])
