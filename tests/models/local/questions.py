"""Requests to an engine, and tools that a model can call."""

from typing import Any

from llm_do.models.local.engine import Chunk, Engine

QUESTION = {"messages": [{"role": "user", "content": "Say hello."}], "max_tokens": 8, "temperature": 0}
STORY = {**QUESTION, "messages": [{"role": "user", "content": "Tell me a long story."}], "max_tokens": 2000}


async def answer_text(engine: Engine, request: dict[str, Any]) -> str:
    return "".join([piece.text async for piece in engine.answer(request) if isinstance(piece, Chunk)])


def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


def weather(city: str) -> str:
    """Look up the weather in a city."""
    return f"It is sunny in {city}."
