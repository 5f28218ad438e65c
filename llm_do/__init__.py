"""llm-do: LLM workers and Python functions are the same kind of call."""

# Nothing is imported here: with `python -m llm_do`, it would be looked for in the current folder first.
TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from .answers import ModelAnswerError
    from .api import (
        RuntimeCreator,
        RuntimeDelegator,
        WorkerRunResult,
        call_worker,
        call_worker_async,
        create_worker,
        run_worker,
        run_worker_async,
    )
    from .approval import (
        ApprovalCallback,
        ApprovalController,
        ApprovalDecision,
        ApprovalRequest,
        Approver,
        approve_all_callback,
        strict_mode_callback,
    )
    from .context import BoundEntry, Context, ToolsProxy
    from .definition import AttachmentPolicy, WorkerCreationDefaults, WorkerDefinition, WorkerSpec
    from .entries import ToolEntry, WorkerEntry, entry
    from .errors import (
        AnswerCutOff,
        ApprovalDenied,
        ArgumentError,
        CallCancelled,
        CallEnded,
        CallTimeout,
        CommandError,
        ContentError,
        DelegationDenied,
        DepthLimitError,
        DuplicateEntryError,
        EventLoopError,
        LimitExceeded,
        LlmDoError,
        LocalModelError,
        ModelBehaviorError,
        ModelChoiceError,
        NoSandboxError,
        NoWorkerError,
        OutputError,
        PathChanged,
        PathDenied,
        PathFailed,
        PathMissing,
        ProjectCodeError,
        PromptError,
        RememberedError,
        RuleError,
        RunEnded,
        ScopeBusyError,
        ScopeClosedError,
        ToolsetError,
        ToolTimeout,
        UnknownAttributeError,
        UnknownEntryError,
        WorkerFileError,
        partial_messages,
    )
    from .events import (
        ApprovalDecided,
        ApprovalRequested,
        CallClosed,
        CallOpened,
        CallProgress,
        Event,
        MessageLogged,
        Notice,
        RequestEnded,
        RequestStarted,
        TextDelta,
    )
    from .frame import CallFrame
    from .inputs import WorkerInput
    from .models.local.model import LocalModel
    from .names import ToolsetResolver
    from .payloads import AttachmentInput, AttachmentPayload
    from .prices import Price
    from .protocols import (
        CallableEntry,
        Effect,
        Entry,
        Executor,
        HasPrompt,
        LimitCallback,
        MessageCallback,
        ModelLike,
        Sink,
        ToolsetFactory,
        WorkerCreator,
        WorkerDelegator,
    )
    from .registry import WorkerRegistry
    from .rules import Grant, RuleBook, Ruling, ToolRule
    from .runtime import Runtime
    from .sandbox import RootConfig, SandboxConfig, SandboxManager, SandboxToolset
    from .scope import CallScope
    from .secrets import Secret
    from .toolsets import FILE_TOOLS
    from .trace import ApprovalOutcome, Trace, TraceEntry, TraceNode
    from .usage import Account, Budget, Limits

    WorkerContext = Context
    """Another name of `Context`."""

__all__ = [
    "FILE_TOOLS",
    "Account",
    "AnswerCutOff",
    "ApprovalCallback",
    "ApprovalController",
    "ApprovalDecided",
    "ApprovalDecision",
    "ApprovalDenied",
    "ApprovalOutcome",
    "ApprovalRequest",
    "ApprovalRequested",
    "Approver",
    "ArgumentError",
    "AttachmentInput",
    "AttachmentPayload",
    "AttachmentPolicy",
    "BoundEntry",
    "Budget",
    "CallCancelled",
    "CallClosed",
    "CallEnded",
    "CallFrame",
    "CallOpened",
    "CallProgress",
    "CallScope",
    "CallTimeout",
    "CallableEntry",
    "CommandError",
    "ContentError",
    "Context",
    "DelegationDenied",
    "DepthLimitError",
    "DuplicateEntryError",
    "Effect",
    "Entry",
    "Event",
    "EventLoopError",
    "Executor",
    "Grant",
    "HasPrompt",
    "LimitCallback",
    "LimitExceeded",
    "Limits",
    "LlmDoError",
    "LocalModel",
    "LocalModelError",
    "MessageCallback",
    "MessageLogged",
    "ModelAnswerError",
    "ModelBehaviorError",
    "ModelChoiceError",
    "ModelLike",
    "NoSandboxError",
    "NoWorkerError",
    "Notice",
    "OutputError",
    "PathChanged",
    "PathDenied",
    "PathFailed",
    "PathMissing",
    "Price",
    "ProjectCodeError",
    "PromptError",
    "RememberedError",
    "RequestEnded",
    "RequestStarted",
    "RootConfig",
    "RuleBook",
    "RuleError",
    "Ruling",
    "RunEnded",
    "Runtime",
    "RuntimeCreator",
    "RuntimeDelegator",
    "SandboxConfig",
    "SandboxManager",
    "SandboxToolset",
    "ScopeBusyError",
    "ScopeClosedError",
    "Secret",
    "Sink",
    "TextDelta",
    "ToolEntry",
    "ToolRule",
    "ToolTimeout",
    "ToolsProxy",
    "ToolsetError",
    "ToolsetFactory",
    "ToolsetResolver",
    "Trace",
    "TraceEntry",
    "TraceNode",
    "UnknownAttributeError",
    "UnknownEntryError",
    "WorkerContext",
    "WorkerCreationDefaults",
    "WorkerCreator",
    "WorkerDefinition",
    "WorkerDelegator",
    "WorkerEntry",
    "WorkerFileError",
    "WorkerInput",
    "WorkerRegistry",
    "WorkerRunResult",
    "WorkerSpec",
    "approve_all_callback",
    "call_worker",
    "call_worker_async",
    "create_worker",
    "entry",
    "partial_messages",
    "run_worker",
    "run_worker_async",
    "strict_mode_callback",
]


def __getattr__(name: str) -> "Any":
    """Import what is asked for when it is asked for: a command line that only shows its help needs none of it."""
    from importlib import import_module  # noqa: PLC0415

    from ._exports import MODULES  # noqa: PLC0415

    if name not in MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(f".{MODULES[name]}", __name__), "Context" if name == "WorkerContext" else name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
