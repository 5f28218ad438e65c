"""Keys of calls, which are the same in every run, whatever the order in which calls start.

    key     = parent's key "/" [branch] name [variant] ":" digest [":" request "." position] ["#" ordinal]
    turn    = scope's key "." number of the turn
    scope   = parent's key "/" [branch] name [variant] "@" [digest of its history] ["#" ordinal]

The digest is of the original arguments, the files beside them, and the messages that a worker is started with. Turn 0
is the opening of a scope, in which its toolsets may make calls. The request and the position are the place of the call
in the responses of the model. The ordinal distinguishes equal calls, in the order in which they start. The variant, a
digest of the definition, is there if the entry was passed as an object and its name means another one here.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from pydantic_ai.messages import ModelMessage, ModelMessagesTypeAdapter

from .frame import CallFrame

_UNLIKE_IN_EACH_RUN = frozenset(
    ("timestamp", "run_id", "conversation_id", "provider_response_id", "metadata", "failed_attempts")
)
"""Fields of messages that differ from run to run, or that no model is sent."""


def key_of_call(frame: CallFrame) -> str:
    """Return the key of a call whose caller has one. It counts the call, so it is made once."""
    if frame.scope_key is not None:
        return f"{frame.scope_key}.{frame.turn}"
    place = "" if frame.request_place is None else ":{}.{}".format(*frame.request_place)
    return _with_ordinal(frame, f"{frame.entry.name}{frame.variant}:{frame.digest}{place}")


def key_of_scope(frame: CallFrame) -> str:
    return _with_ordinal(frame, f"{frame.entry.name}{frame.variant}@{frame.history_digest}")


def _with_ordinal(frame: CallFrame, step: str) -> str:
    caller = frame.caller
    step = f"{frame.branch}{step}"
    if caller.ordinals is None:
        caller.ordinals = {}
    ordinal = caller.ordinals.get(step, 0)
    caller.ordinals[step] = ordinal + 1
    return f"{caller.key or ''}/{step}#{ordinal}" if ordinal else f"{caller.key or ''}/{step}"


def release_key(frame: CallFrame) -> None:
    """Release the key of a call that is not made, for the next equal call, unless another has a later one."""
    ordinals = frame.caller.ordinals
    assert frame.key is not None and ordinals is not None
    step, _, ordinal = frame.key.removeprefix(f"{frame.caller.key}/").partition("#")
    ordinals[f"{step}#{ordinal or 0}"] = 0  # a mark: those after it may be released, too, in any order
    while ordinals[step] and ordinals.pop(f"{step}#{ordinals[step] - 1}", None) is not None:
        ordinals[step] -= 1


def comparable_messages(messages: Sequence[ModelMessage]) -> list[Any]:
    """Return messages as data, without what differs from run to run: times, and ids, in whose place are numbers."""
    ids: dict[Any, int] = {}
    # The lowest supported pydantic warns of the members of a union that it tries first.
    return [
        {**_comparable(message, ids), "parts": [_comparable(part, ids) for part in message["parts"]]}
        for message in ModelMessagesTypeAdapter.dump_python(
            list(messages), mode="json", warnings="none", fallback=lambda value: type(value).__qualname__
        )
    ]


def _comparable(data: dict[str, Any], ids: dict[Any, int]) -> dict[str, Any]:
    """Return a message or a part of one with its tool call numbered. What a tool got and returned is left as it is."""
    alike = {key: item for key, item in data.items() if key not in _UNLIKE_IN_EACH_RUN}
    if "tool_call_id" in alike:
        alike["tool_call_id"] = ids.setdefault(alike["tool_call_id"], len(ids))
    return alike
