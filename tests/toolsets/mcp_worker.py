"""Workers with a small MCP server, for tests."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import anyio

from llm_do import Notice, WorkerEntry
from llm_do.definitions.toolsets import McpToolset
from llm_do.toolsets.mcp.toolset import McpFactory

from ..processes import PATIENCE
from ..scripted import scripted
from ..stdio_mcp import TOOLS

SERVER = Path(__file__).parents[1] / "stdio_mcp.py"


def server(*args: str, name: str | None = "small", prefix: str | None = None, **more: Any) -> McpFactory:
    declared = {"mcp": {"command": [sys.executable, "-S", str(SERVER), *args], **more}, "name": name, "prefix": prefix}
    return McpFactory(McpToolset.model_validate(declared), Path())


def worker(*steps: Any, toolsets: list[Any] | None = None, **options: Any) -> WorkerEntry:
    made: dict[str, Any] = {"name": "w", "toolsets": toolsets or [server()], "model": scripted(*steps)}
    return WorkerEntry(**{**made, **options})


ALLOWED = {f"small/{name}": "allow" for name in TOOLS}

REQUEST = {
    "messages": [{"role": "user", "content": {"type": "text", "text": "Say the word."}}],
    "systemPrompt": "Obey.",
    "maxTokens": 1_000_000,
    "includeContext": "allServers",
    "modelPreferences": {"hints": [{"name": "dear-model"}]},
}
"""A sampling request of the server."""


class Heard(list[Any]):
    """A sink that keeps its events."""

    def on_event(self, event: Any) -> None:
        self.append(event)

    @property
    def notices(self) -> list[str]:
        return [event.text for event in self if isinstance(event, Notice)]


def results(scope: Any) -> list[Any]:
    """Return the results of tools that the model got."""
    parts = [part for message in scope.messages for part in message.parts]
    return [part.content for part in parts if part.part_kind in ("tool-return", "retry-prompt")]


def is_alive(process: int) -> bool:
    try:
        return "State:\tZ" not in Path(f"/proc/{process}/status").read_text()
    except FileNotFoundError:
        return False


async def ends(process: int) -> None:
    """Wait until a process that was killed is gone."""
    with anyio.fail_after(PATIENCE):
        while is_alive(process):
            await anyio.sleep(0.01)


def process_of(result: str) -> int:
    return int(result.partition(":")[0])
