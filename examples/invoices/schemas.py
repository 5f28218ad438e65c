"""What the worker answers with."""

import datetime

from pydantic import BaseModel


class Invoice(BaseModel):
    vendor: str
    date: datetime.date
    total: float
