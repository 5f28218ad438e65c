"""Which models a worker can use: by patterns of their names, and by the kinds of files that they can be sent.

Only PydanticAI's model profiles say what a model can be sent. There, a flag that is off is knowledge, and one that is
on means that nothing says otherwise. So a model is refused where its profile says no. Elsewhere it is taken: without a
word where llm-do assumes that all current models of its provider can be sent such files, and with a notice otherwise,
since behind a server or a gateway may be any model.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from fnmatch import fnmatchcase
from typing import Any

from pydantic_ai.models import Model
from pydantic_ai.models.fallback import FallbackModel
from pydantic_ai.models.wrapper import WrapperModel

from ..errors import did_you_mean

_STAND_INS = ("test", "function")
"""Providers of models in tests, which stand for any other."""


def _takes_pdf(profile: Mapping[str, Any]) -> bool:
    types = profile.get("supported_document_media_types")
    return profile.get("supports_document_input", True) and (types is None or "application/pdf" in types)


_FLAGS: Mapping[str, Callable[[Mapping[str, Any]], bool]] = {
    "vision": lambda profile: profile.get("supports_image_input", True),
    "pdf": _takes_pdf,
    "audio": lambda profile: profile.get("supports_audio_file_input", True),
    "video": lambda profile: profile.get("supports_video_input", True),
}
CAPABILITIES = tuple(_FLAGS)
"""Capabilities that a worker can ask of its model: `vision` is images."""

_ASSUMED: Mapping[str, Sequence[str]] = {
    "vision": ("anthropic", "google", "google-gla", "google-vertex", "google-cloud", "openai"),
    "pdf": ("anthropic", "google", "google-gla", "google-vertex", "google-cloud", "openai"),
    "audio": ("google", "google-gla", "google-vertex", "google-cloud"),
    "video": ("google", "google-gla", "google-vertex", "google-cloud"),
}
"""Providers of which llm-do assumes that all current models take such files. Nothing that it could ask says so."""


def check_requirement(wanted: str) -> str:
    """Return what a worker wants of its model, if it is a pattern such as `anthropic:*`, or a capability."""
    provider, colon, name = wanted.partition(":")
    if wanted not in CAPABILITIES and not (colon and provider and name):
        raise ValueError(
            f"{wanted!r} is no pattern of models, such as 'anthropic:*', and no capability."
            f"{did_you_mean(wanted, CAPABILITIES)}"
        )
    return wanted


def id_of(model: Model) -> str:
    """Return `provider:name` of a model."""
    return f"{model.system}:{model.model_name}"


def candidates(model: Model) -> Iterator[Model]:
    """Yield the models that answer behind one that wraps or tries others."""
    if isinstance(model, FallbackModel):
        for each in model.models:
            yield from candidates(each)
    elif isinstance(model, WrapperModel):
        yield from candidates(model.wrapped)
    else:
        yield model


def find_unfit_model(model: Model, wanted: Sequence[str], named: str | None = None) -> str | None:
    """Return the name of a model that is known not to fit, if there is one among those that may answer.

    A model fits if one of the patterns means it, where there are any, and if it has all of the capabilities.
    `named` is what the model was called by, which may have another provider's name than the model has.
    """
    for each in candidates(model):
        names = [id_of(each), *([] if named is None else [named])]
        if not any(name_fits(name, wanted) for name in names) and each.system not in _STAND_INS:
            return id_of(each)
        if any(lacks(each, capability) for capability in wanted if capability in CAPABILITIES):
            return id_of(each)
    return None


def name_fits(name: str, wanted: Sequence[str]) -> bool:
    """Whether one of the patterns means the model of this name; true where there are none."""
    patterns = [each.casefold() for each in wanted if each not in CAPABILITIES]
    return not patterns or any(fnmatchcase(name.casefold(), pattern) for pattern in patterns)


def find_unverified_model(model: Model, wanted: Sequence[str], named: str | None = None) -> tuple[str, str] | None:
    """Return a model and what is not known of it: whether it has a capability, or whether it fits at all.

    `named` is as for `find_unfit_model`.
    """
    is_meant = named is not None and name_fits(named, wanted)
    for each in candidates(model):
        if each.system in _STAND_INS and wanted and not is_meant:
            return named or id_of(each), "fits"
        for capability in wanted:
            if capability in CAPABILITIES and each.system not in _ASSUMED[capability]:
                return id_of(each), f"can be sent what {capability!r} means"
    return None


def lacks(model: Model, capability: str) -> bool:
    """Whether a model is known not to have a capability."""
    return not _FLAGS[capability](model.profile)


def capability_for(content: Any) -> str | None:
    """Return the capability that a model needs to be sent this content, if it is one of those that are known."""
    kind = getattr(content, "kind", None)
    if isinstance(kind, str) and kind.endswith("-url"):
        return {"image-url": "vision", "audio-url": "audio", "video-url": "video"}.get(kind)
    media_type = str(getattr(content, "media_type", ""))
    if media_type == "application/pdf":
        return "pdf"
    return {"image": "vision", "audio": "audio", "video": "video"}.get(media_type.partition("/")[0])
