"""A short storm, without streams: several cancellations of one still leave generators open (`make soak` counts it)."""

import asyncio

from .storm import storm


def test_a_storm_of_cancelled_calls_leaves_nothing_behind() -> None:
    """No open record, task, thread, descriptor or session; and the usage is what the models counted."""
    counts = asyncio.run(storm(calls=100, seed=12, streams=False))
    assert counts.is_clean, str(counts)
    assert counts.cancelled and counts.limited and counts.calls >= 100
