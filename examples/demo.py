"""A tree of workers and functions: triage a small mailbox, file what is urgent, after a yes.

The model is scripted, so that this runs without a key: it answers by rule, and everything else is real.
"""

import asyncio
import signal
import sys

from pydantic import BaseModel
from pydantic_ai import RunContext
from pydantic_ai.messages import ModelMessage, ModelResponse, TextPart, ToolCallPart, ToolReturnPart, UserPromptPart
from pydantic_ai.models.function import AgentInfo, FunctionModel

from llm_do import ApprovalDecision, Context, Runtime, WorkerEntry, entry

MAILBOX = {
    "1": "The server room is flooding. Please call back at once!",
    "2": "Lunch on Friday?",
    "3": "Invoice 4711 over 1,250.00 EUR is overdue. Pay immediately.",
}


class Verdict(BaseModel):
    urgent: bool
    summary: str


@entry
async def read_mail(mail_id: str) -> str:
    """The text of one message."""
    return MAILBOX[mail_id]


@entry(requires_approval=True)
def open_ticket(title: str) -> str:
    """Open a ticket for something that cannot wait."""
    return f"ticket opened: {title}"


# An LLM callable: it reads one message with a tool, and answers with a Verdict.
classifier = WorkerEntry(
    name="classifier",
    description="Judges one message.",
    instructions="Read the message and decide whether it is urgent.",
    tools=[read_mail],
    output_type=Verdict,
)


# A Python callable that calls the LLM callable, once for each message and side by side.
@entry
async def triage(ctx: RunContext[Context], mail_ids: list[str]) -> list[Verdict]:
    """Judge messages."""
    return list(await asyncio.gather(*(ctx.deps.call(classifier, mail_id) for mail_id in mail_ids)))


# An LLM callable that calls the Python callable, and asks before it does something.
secretary = WorkerEntry(
    name="secretary",
    instructions="Triage the mailbox, and open a ticket for the most urgent message.",
    tools=[triage, open_ticket],
)


def scripted(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
    """What a model would do, as rules."""
    prompt = next(part.content for part in messages[0].parts if isinstance(part, UserPromptPart))
    results = [part.content for message in messages for part in message.parts if isinstance(part, ToolReturnPart)]
    tools = {tool.name for tool in info.function_tools}
    if "read_mail" in tools:  # the classifier
        if not results:
            return ModelResponse(parts=[ToolCallPart("read_mail", {"mail_id": prompt})])
        urgent = any(word in str(results[0]) for word in ("at once", "immediately"))
        verdict = {"urgent": urgent, "summary": str(results[0])[:28]}
        return ModelResponse(parts=[ToolCallPart(info.output_tools[0].name, verdict)])
    if not results:  # the secretary
        return ModelResponse(parts=[ToolCallPart("triage", {"mail_ids": sorted(MAILBOX)})])
    if len(results) == 1:
        first = next(verdict for verdict in results[0] if verdict.urgent)
        return ModelResponse(parts=[ToolCallPart("open_ticket", {"title": first.summary})])
    return ModelResponse(parts=[TextPart(f"3 messages read. {results[1]}")])


def ask(tool_name: str, payload: dict[str, object], reason: str) -> ApprovalDecision:
    if not sys.stdin.isatty():
        print(f"? {tool_name} {payload}: approved, since there is no terminal to ask at")
        return ApprovalDecision(approved=True)
    print(f"? {reason}\n  {payload}")
    # While the event loop runs, asyncio keeps Ctrl-C for itself, and input() would never hear of it.
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        return ApprovalDecision(approved=input("  run it? [y/N] ").strip().lower() in ("y", "yes"))
    except EOFError:
        return ApprovalDecision(approved=False, note="no answer")
    finally:
        signal.signal(signal.SIGINT, before)


def main() -> None:
    print("This demo runs on a scripted model: no key, no network, and nothing here was written by an LLM.\n")
    runtime = Runtime([secretary], model=FunctionModel(scripted, model_name="scripted"), approval_callback=ask)
    try:
        answer = runtime.call_sync("secretary", "Please go through my mail.")
    except KeyboardInterrupt:
        print(f"\n\nStopped. What happened until then:\n{runtime.trace}")
        raise SystemExit(130) from None
    print(f"\nAnswer: {answer}\n\nWhat happened:\n{runtime.trace}\n")
    for model, usage in runtime.usage.items():
        print(f"{model}: {usage.requests} requests, {usage.input_tokens} + {usage.output_tokens} tokens")


if __name__ == "__main__":
    main()
