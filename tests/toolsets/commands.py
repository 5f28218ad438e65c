"""Workers that run commands, for tests."""

from collections.abc import Callable
from typing import Any

from llm_do import ApprovalDecision, ApprovalRequest, WorkerRunResult

from ..scripted import tool_results

HEAD = "toolsets: [shell]\nsandbox: {paths: {in: {root: in}, out: {root: out, mode: rw}}}\ninstructions: x\n"
Shell = Callable[..., WorkerRunResult]


def printed(result: WorkerRunResult) -> list[str]:
    return [str(each) for each in tool_results(result.messages)]


def rule(text: str) -> str:
    return f"tool_rules:\n  shell: {text}\n"


class Person:
    def __init__(self, *answers: Any) -> None:
        self.answers, self.asked = list(answers), list[ApprovalRequest]()

    def ask(self, request: ApprovalRequest) -> ApprovalDecision:
        self.asked.append(request)
        answer = self.answers.pop(0) if self.answers else ApprovalDecision(approved=False)
        return answer(request) if callable(answer) else answer
