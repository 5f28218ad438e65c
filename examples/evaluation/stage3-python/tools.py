"""The steps are understood, so they are code. Only the judgement is still a worker's."""

import asyncio
from pathlib import Path
from typing import Any

from pydantic_ai import RunContext

from llm_do import Context, entry

DOCUMENTS = Path(__file__).parent.parent / "documents"


@entry
async def evaluate_all(ctx: RunContext[Context], question: str) -> dict[str, Any]:
    """Judge all documents by one question."""

    async def judge(name: str, text: str) -> dict[str, Any]:
        return {"name": name, **await ctx.deps.call("evaluate", question=question, text=text)}

    texts = await asyncio.to_thread(read_documents)
    judgements = await asyncio.gather(*(judge(name, text) for name, text in texts.items()))
    ordered = sorted(judgements, key=lambda judgement: -judgement["score"])
    average = sum(judgement["score"] for judgement in ordered) / max(len(ordered), 1)
    return {"question": question, "documents": ordered, "average": round(average, 1)}


def read_documents() -> dict[str, str]:
    return {path.name: path.read_text(encoding="utf-8") for path in sorted(DOCUMENTS.glob("*.txt"))}
