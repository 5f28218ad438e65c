"""What needs no judgement, taken out of the prompt: which files there are, what an average is."""

from pathlib import Path
from typing import Any

from pydantic import BaseModel

from llm_do import entry

DOCUMENTS = Path(__file__).parent.parent / "documents"


class Judgement(BaseModel):
    name: str
    score: int
    reason: str


@entry
def read_documents() -> dict[str, str]:
    """The names and texts of all documents."""
    return {path.name: path.read_text(encoding="utf-8") for path in sorted(DOCUMENTS.glob("*.txt"))}


@entry
def rank(judgements: list[Judgement]) -> dict[str, Any]:
    """Sort judgements from the best score to the worst, and work out the average."""
    ordered = sorted(judgements, key=lambda judgement: -judgement.score)
    average = sum(judgement.score for judgement in ordered) / max(len(ordered), 1)
    return {"documents": [judgement.model_dump() for judgement in ordered], "average": round(average, 1)}
