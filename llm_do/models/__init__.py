"""Which model answers when nobody said which."""

from .choice import ModelChoice, announce, choose_default_model, explain_missing

__all__ = ["ModelChoice", "announce", "choose_default_model", "explain_missing"]
