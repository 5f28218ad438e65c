"""Models by name, the default model, and models of this machine."""

from .choice import ModelChoice, announce, choose_default_model, explain_missing, named_model
from .custom import HasProviders, custom_provider, make_custom_model
from .resolve import describe_remote, explain_unusable, names_model_file, resolve_model

__all__ = [
    "HasProviders",
    "ModelChoice",
    "announce",
    "choose_default_model",
    "custom_provider",
    "describe_remote",
    "explain_missing",
    "explain_unusable",
    "make_custom_model",
    "named_model",
    "names_model_file",
    "resolve_model",
]
