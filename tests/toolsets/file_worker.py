"""A worker with file tools, for tests."""

from pathlib import Path
from typing import Any

from pydantic_ai.messages import ModelMessage, ModelResponse, ToolReturnPart
from pydantic_ai.models.function import AgentInfo

from llm_do import (
    FILE_TOOLS,
    RootConfig,
    Runtime,
    SandboxConfig,
    WorkerEntry,
)

from ..scripted import calls, says, scripted

SANDBOX = SandboxConfig(
    paths={
        "input": RootConfig(root="in", suffixes=(".txt", ".png")),
        "output": RootConfig(root="out", mode="rw", max_file_bytes=1000),
    }
)


async def use(project: Path, *tools: tuple[str, dict[str, Any]], **options: Any) -> list[ToolReturnPart]:
    """Return what a model gets when it calls these tools one after the other."""
    seen: list[ToolReturnPart] = []

    def look(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
        parts = (part for message in messages for part in message.parts if isinstance(part, ToolReturnPart))
        seen[:] = list(parts)
        return says("done")

    worker = WorkerEntry(name="w", sandbox=SANDBOX, base=project, tools=FILE_TOOLS, **options.pop("worker", {}))
    runtime = Runtime([worker], model=scripted(*[calls(tool) for tool in tools], look), **options)
    await runtime.call("w", "go")
    return seen
