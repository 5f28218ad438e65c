"""Models: by name, on this machine, and which one answers when nobody said which."""

from .choice import ModelChoice, announce, choose_default_model, explain_missing, named_model
from .own import HasProviders, make_own_model, own_provider
from .resolve import describe_remote, is_own_file, resolve_model
from .unusable import explain_unusable

__all__ = [
    "HasProviders",
    "ModelChoice",
    "announce",
    "choose_default_model",
    "describe_remote",
    "explain_missing",
    "explain_unusable",
    "is_own_file",
    "make_own_model",
    "named_model",
    "own_provider",
    "resolve_model",
]
