"""llm-do: LLM workers and Python functions are the same kind of call."""

from .approval import (
    ApprovalCallback,
    ApprovalController,
    ApprovalDecision,
    approve_all_callback,
    strict_mode_callback,
)
from .context import BoundEntry, Context, ToolsProxy
from .entries import ToolEntry, WorkerEntry, entry
from .errors import (
    ApprovalDenied,
    ArgumentError,
    CallCancelled,
    CallTimeout,
    DepthLimitError,
    DuplicateEntryError,
    EventLoopError,
    LimitExceeded,
    LlmDoError,
    ModelBehaviorError,
    ModelChoiceError,
    OutputError,
    ScopeBusyError,
    ScopeClosedError,
    ToolsetError,
    ToolTimeout,
    UnknownEntryError,
    partial_messages,
)
from .events import (
    ApprovalDecided,
    ApprovalRequested,
    CallClosed,
    CallOpened,
    Event,
    MessageLogged,
    TextDelta,
)
from .frame import CallFrame
from .inputs import WorkerInput
from .names import ToolsetResolver
from .protocols import CallableEntry, Entry, Executor, MessageCallback, ModelLike, Sink, ToolsetFactory
from .runtime import Runtime
from .scope import CallScope
from .trace import ApprovalOutcome, Trace, TraceEntry, TraceNode
from .usage import Limits

__all__ = [
    "ApprovalCallback",
    "ApprovalController",
    "ApprovalDecided",
    "ApprovalDecision",
    "ApprovalDenied",
    "ApprovalOutcome",
    "ApprovalRequested",
    "ArgumentError",
    "BoundEntry",
    "CallCancelled",
    "CallClosed",
    "CallFrame",
    "CallOpened",
    "CallScope",
    "CallTimeout",
    "CallableEntry",
    "Context",
    "DepthLimitError",
    "DuplicateEntryError",
    "Entry",
    "Event",
    "EventLoopError",
    "Executor",
    "LimitExceeded",
    "Limits",
    "LlmDoError",
    "MessageCallback",
    "MessageLogged",
    "ModelBehaviorError",
    "ModelChoiceError",
    "ModelLike",
    "OutputError",
    "Runtime",
    "ScopeBusyError",
    "ScopeClosedError",
    "Sink",
    "TextDelta",
    "ToolEntry",
    "ToolTimeout",
    "ToolsProxy",
    "ToolsetError",
    "ToolsetFactory",
    "ToolsetResolver",
    "Trace",
    "TraceEntry",
    "TraceNode",
    "UnknownEntryError",
    "WorkerEntry",
    "WorkerInput",
    "approve_all_callback",
    "entry",
    "partial_messages",
    "strict_mode_callback",
]
