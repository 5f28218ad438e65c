"""The steps that are code: going through the folder, checking what the model read, adding up, writing the report."""

import asyncio
import re
from pathlib import Path

from pydantic import BaseModel
from pydantic_ai import RunContext
from schemas import Invoice

from llm_do import Context, ModelBehaviorError, entry

PROJECT = Path(__file__).parent
AMOUNT = re.compile(r"(\d+\.\d\d)(?: EUR)?$", re.MULTILINE)


class Row(BaseModel):
    file: str
    invoice: Invoice | None
    problems: list[str]


@entry
async def report(ctx: RunContext[Context]) -> str:
    """Turn the inbox into a checked report."""
    files = sorted((PROJECT / "inbox").glob("*.txt"))
    rows = await asyncio.gather(*(ctx.deps.call("process", file.name, file.read_text()) for file in files))
    good = [row for row in rows if not row.problems]
    path = await ctx.deps.call("save_report", text=as_markdown(rows))
    total = sum(row.invoice.total for row in good)
    return f"{len(good)} invoices over {total:.2f} EUR, {len(rows) - len(good)} to look at: {path}"


@entry
async def process(ctx: RunContext[Context], file: str, text: str) -> Row:
    """One document: a worker reads it, and a function checks what it read."""
    try:
        invoice = await ctx.deps.call("read_invoice", text)
    except ModelBehaviorError as exc:
        return Row(file=file, invoice=None, problems=[str(exc)])
    return Row(file=file, invoice=invoice, problems=await ctx.deps.call("check_invoice", invoice, text))


@entry
def check_invoice(invoice: Invoice, text: str) -> list[str]:
    """What is wrong with a record, by the document that it was read from. A model can make things up; this cannot."""
    *items, total = [float(amount) for amount in AMOUNT.findall(text)] or [0.0]
    problems = []
    if invoice.vendor not in text:
        problems.append(f"there is no vendor {invoice.vendor!r} in it")
    if str(invoice.date) not in text:
        problems.append(f"there is no date {invoice.date} in it")
    if not total:
        problems.append("there is no amount in it")
    elif invoice.total != total:
        problems.append(f"the total is {total:.2f}, not {invoice.total:.2f}")
    elif items and round(sum(items), 2) != total:
        problems.append(f"the items add up to {sum(items):.2f}, the total says {total:.2f}")
    return problems


@entry(effects=["write"])
def save_report(text: str) -> str:
    """Write the report."""
    path = PROJECT / "report.md"
    path.write_text(text)
    return str(path)


def as_markdown(rows: list[Row]) -> str:
    good = [row.invoice for row in rows if row.invoice is not None and not row.problems]
    lines = ["| date | vendor | EUR |", "|---|---|--:|"]
    lines += [
        f"| {each.date} | {each.vendor} | {each.total:.2f} |" for each in sorted(good, key=lambda each: each.date)
    ]
    lines += [f"| | **Total** | **{sum(invoice.total for invoice in good):.2f}** |", "", "To look at:", ""]
    lines += [f"- {row.file}: {'; '.join(row.problems)}" for row in rows if row.problems]
    return "\n".join(["# Invoices", "", *lines, ""])
