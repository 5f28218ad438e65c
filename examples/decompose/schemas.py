"""What a plan is asked for, and what it looks like."""

from pydantic import BaseModel, Field


class Task(BaseModel):
    task: str
    levels: int = Field(default=3, ge=0, description="How often it may still be split.")


class Plan(BaseModel):
    task: str
    minutes: int = Field(ge=0)
    steps: list[str] = []
