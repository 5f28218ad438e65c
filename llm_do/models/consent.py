"""The user's consent to a model server, which is asked once and remembered until it is withdrawn.

Any account of this machine can listen on the usual port of a server, and would then receive the prompts.
"""

from __future__ import annotations

from ..machine.remembered import Remembered, is_remembered
from .listeners import user_name
from .servers import OfferedModel, server_of

KIND = "model-server"


def has_agreed(offer: OfferedModel) -> bool:
    """Return whether the user agreed to this server, at this address, run by this account."""
    return is_remembered(KIND, _subject(offer))


def remember(offer: OfferedModel) -> None:
    """Remember the consent, or raise `RememberedError` if it cannot be written."""
    Remembered.load().add(KIND, _subject(offer))


def forget_all() -> list[str]:
    """Withdraw all consent, and return a line about each server that had it."""
    return [_describe(subject) for subject in Remembered.load().remove_all(KIND)]


def _subject(offer: OfferedModel) -> str:
    account = "" if offer.user is None else f" of user {offer.user}"
    return f"{offer.server.provider} {offer.server.address.url}{account}"


def _describe(subject: str) -> str:
    """Return a remembered subject in words."""
    place, _, uid = subject.partition(" of user ")
    provider, _, url = place.partition(" ")
    server = server_of(provider)
    account = f", run by user {user_name(int(uid))}" if uid.isdecimal() else ""
    return f"{provider if server is None else server.name} on {url}{account}"
