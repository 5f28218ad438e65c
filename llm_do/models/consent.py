"""The yes of a person to a model server: it is asked for once, and remembered until it is taken back.

Any account of this machine can listen on the usual port of a server, and would then be sent the prompts.
"""

from __future__ import annotations

import logging

from ..errors import RememberedError
from ..remembered import Remembered
from .servers import OfferedModel

KIND = "model-server"
logger = logging.getLogger("llm_do")


def has_agreed(offer: OfferedModel) -> bool:
    """Whether the user said yes to this server, at this address, run by this account."""
    try:
        return Remembered.load().has(KIND, _subject(offer))
    except RememberedError as exc:
        logger.warning("%s", exc)
        return False


def remember(offer: OfferedModel) -> None:
    """Keep the yes.

    Raises:
        RememberedError: It cannot be written.
    """
    Remembered.load().add(KIND, _subject(offer))


def forget_all() -> list[str]:
    """Take back every yes, and return the servers that had one."""
    remembered = Remembered.load()
    subjects = remembered.subjects(KIND)
    for subject in subjects:
        remembered.remove(KIND, subject)
    return subjects


def _subject(offer: OfferedModel) -> str:
    account = "" if offer.user is None else f" of user {offer.user}"
    return f"{offer.server.provider} {offer.server.address.url}{account}"
