"""The trace and the usage of a session, folded from its events."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from llm_do.budgets.limits import Limits, UsageMeter
from llm_do.core.events import Event
from llm_do.core.trace import ModelUsage, Trace, TraceEntry


@dataclass(frozen=True)
class Folded:
    """A session as its events tell it."""

    trace: Trace = field(default_factory=Trace)
    meter: UsageMeter = field(default_factory=lambda: UsageMeter(Limits()))
    """The usage, by model and by provider."""


def fold(events: Iterable[Event]) -> Folded:
    """Return what a session's own trace and usage are, from a recording of its events."""
    folded, records = Folded(), dict[int, TraceEntry]()
    for event in events:
        match event.type:
            case "call_opened":
                record = records[event.call_id] = TraceEntry(
                    event.call_id, event.parent_id, event.name, event.kind, event.depth, event.arguments, event.at
                )
                record.key, record.attachments = event.key, event.attachments
                folded.trace.append(record)
            case "approval_decided":
                record = records[event.call_id]
                record.approval = event.outcome
                if event.outcome.edited:
                    record.input_data, record.attachments = event.arguments, event.attachments
            case "call_started":
                records[event.call_id].model = event.model
            case "request_started":
                record = records[event.call_id]
                record.model = record.model or event.model
            case "request_ended":
                records[event.call_id].add_requests(event.spent, event.cut_off)
                _count(folded.meter, event.spent)
            case "call_closed":
                record = records[event.call_id]
                record.add_requests(event.spent, None)
                _count(folded.meter, event.spent)
                outcome = (event.output, event.error, event.failure, event.error_type, event.waited)
                record.close(event.state, event.duration, *outcome)
            case _:
                pass
    return folded


def _count(meter: UsageMeter, spent: Iterable[ModelUsage]) -> None:
    for each in spent:
        meter.count_usage(each.model, each.provider, each.usage)
