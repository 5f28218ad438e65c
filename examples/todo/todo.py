"""A toolset with state: a todo list in a database in memory. Each conversation has its own."""

import itertools
import sqlite3
import sys
from typing import Any

from pydantic_ai import ModelRetry
from pydantic_ai.toolsets import FunctionToolset

from llm_do import Context

_numbers = itertools.count(1)


def open_list(ctx: Context) -> "TodoList":
    """The factory that `workers/keeper.md` names. It is called once for each conversation, not once for each turn."""
    return TodoList(next(_numbers))


class TodoList(FunctionToolset[Context]):
    def __init__(self, number: int) -> None:
        super().__init__()
        self.number = number
        for tool in (self.add, self.done, self.show):
            self.add_function(tool)

    async def __aenter__(self) -> "TodoList":
        self.database = sqlite3.connect(":memory:")
        self.database.execute("CREATE TABLE items (item TEXT PRIMARY KEY COLLATE NOCASE, done INTEGER DEFAULT 0)")
        self._tell("opened")
        return self

    async def __aexit__(self, *args: Any) -> None:
        left = await self.show()
        self.database.close()
        self._tell(f"closed, with {len(left)} items")

    def _tell(self, what: str) -> None:
        print(f"todo: list {self.number} is {what}", file=sys.stderr)

    # The tools are async although they wait for nothing: those that are not run in threads, which SQLite forbids.

    async def add(self, item: str) -> list[str]:
        """Add an item to the list."""
        self.database.execute("INSERT OR IGNORE INTO items (item) VALUES (?)", [item])
        return await self.show()

    async def done(self, item: str) -> list[str]:
        """Mark an item of the list as done."""
        if self.database.execute("UPDATE items SET done = 1 WHERE item = ?", [item]).rowcount == 0:
            raise ModelRetry(f"{item!r} is not on the list: {await self.show()}")
        return await self.show()

    async def show(self) -> list[str]:
        """Look at the list."""
        rows = self.database.execute("SELECT item, done FROM items ORDER BY rowid")
        return [f"[{'x' if done else ' '}] {item}" for item, done in rows]
