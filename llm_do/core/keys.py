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

from .frame import CallFrame


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
