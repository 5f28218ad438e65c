"""llm-do: LLM workers and Python functions are the same kind of call."""

# Nothing is imported here: with `python -m llm_do`, it would be looked for in the current folder first.
TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from .arguments.inputs import WorkerInput
    from .arguments.payloads import AttachmentInput, AttachmentPayload
    from .arguments.prompts import HasPrompt
    from .budgets.limits import Account, Budget, Limits
    from .budgets.prices import Price
    from .core.context import BoundEntry, Context, ToolsProxy
    from .core.entries import ToolEntry, WorkerEntry, entry
    from .core.entry import (
        CallableEntry,
        Effect,
        Entry,
        Executor,
        LimitCallback,
        MessageCallback,
        Sink,
        ToolsetFactory,
        WorkerCreator,
        WorkerDelegator,
    )
    from .core.events import (
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
    from .core.frame import CallFrame
    from .core.names import ToolsetResolver
    from .core.runtime import Runtime
    from .core.scope import CallScope
    from .core.trace import Trace, TraceEntry, TraceNode
    from .definitions.definition import AttachmentPolicy, WorkerCreationDefaults, WorkerDefinition, WorkerSpec
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
    from .models.answers import ModelAnswerError
    from .models.choice import ModelLike
    from .models.local.model import LocalModel
    from .policy.approvals import ApprovalController
    from .policy.requests import (
        ApprovalCallback,
        ApprovalDecision,
        ApprovalOutcome,
        ApprovalRequest,
        Approver,
        approve_all_callback,
        strict_mode_callback,
    )
    from .policy.rules import Grant, RuleBook, Ruling, ToolRule
    from .privacy.secret_fields import Secret
    from .projects.api import (
        RuntimeCreator,
        RuntimeDelegator,
        WorkerRunResult,
        call_worker,
        call_worker_async,
        create_worker,
        run_worker,
        run_worker_async,
    )
    from .projects.registry import WorkerRegistry
    from .sandbox import RootConfig, SandboxConfig, SandboxManager, SandboxToolset
    from .toolsets import FILE_TOOLS

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
