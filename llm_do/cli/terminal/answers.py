"""The answers to the question whether a call may run, by their keys."""

from __future__ import annotations

from typing import NamedTuple

from ...policy.requests import ApprovalDecision, ApprovalRequest
from ...privacy.display import visible

_MOST_OFFERS = 9


class Answer(NamedTuple):
    """An answer to choose."""

    text: str
    decision: ApprovalDecision | None = None
    """`None` where the person is asked for more: a note or other arguments."""


def possible_answers(
    request: ApprovalRequest, *, session: str, only_offer: str, end: str, show_all: str | None
) -> dict[str, Answer]:
    """Return the answers to a request.

    Args:
        session: The text of a yes for the session.
        only_offer: The key of an offer, if there is only one.
        end: The text of a no that ends more than the call.
        show_all: The key to show the whole request, where some of it is left out.
    """
    yes, no = ApprovalDecision(approved=True), ApprovalDecision(approved=False)
    if request.question is not None:
        return {"y": Answer("yes", yes), "n": Answer("no", no)}
    count, offers = request.count, request.offers[:_MOST_OFFERS]
    keys = [only_offer] if len(offers) == 1 else [str(number) for number in range(1, len(offers) + 1)]
    answers = {"y": Answer("yes, this once" if count == 1 else "yes, to one of them", yes)}
    if count > 1:
        answers["a"] = Answer(f"yes, to all {count:,}", ApprovalDecision(approved=True, all_calls=True))
    answers["s"] = Answer(session, ApprovalDecision(approved=True, approve_for_session=True))
    for key, offer in zip(keys, offers, strict=True):
        decision = ApprovalDecision(approved=True, grant=offer)
        answers[key] = Answer(f"yes, in this session: {visible(offer.text)}", decision)
    answers["e"] = Answer("edit the arguments" if count == 1 else "edit the arguments of one")
    answers["n"] = Answer("no, with a note" if count == 1 else f"no, to all {count:,}, with a note")
    if show_all is not None:
        answers[show_all] = Answer("show all of it")
    return answers | {"q": Answer(end, ApprovalDecision(approved=False, end_run=True))}
