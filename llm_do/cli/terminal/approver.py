"""Approval of calls in the terminal."""

from __future__ import annotations

import json
import os
import shlex
import signal
import tempfile
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

from rich.padding import Padding
from rich.text import Text

from ...machine import pool
from ...policy.requests import ApprovalDecision, ApprovalRequest
from ...privacy.display import visible
from .approval_view import editable_json, headline, possible_answers, view_request
from .keys import Keyboard
from .live import stderr_console

_MAX_LINES = 20
_AROUND = 14
"""The other screen lines that a question needs."""


class TerminalApprover:
    one_at_a_time = True

    def __init__(self, keyboard: Keyboard, pause: Callable[[], AbstractContextManager[None]] = nullcontext) -> None:
        """`pause` makes room on the screen for a question."""
        self._console = stderr_console()
        self._print = self._console.print
        self._keyboard = keyboard
        self._pause = pause

    async def ask(self, request: ApprovalRequest) -> ApprovalDecision:
        with self._pause():
            return await self._decide(request)

    async def _decide(self, request: ApprovalRequest) -> ApprovalDecision:
        is_cut = self._show(request, full=False)
        await self._keyboard.wait_until_idle()  # the answers are shown once keys count
        session = f"yes, in this session, with {request.session_grant}"
        while True:
            answers = possible_answers(
                request, session=session, only_offer="1", end="no, and end the run", show_all="v" if is_cut else None
            )
            self._print(Text("\n".join(f"  {key}  {answer.text}" for key, answer in answers.items())))
            while (key := (await self._keyboard.read_key()).lower()) not in answers:
                pass
            self._print(Text(f"  → {answers[key].text}", style="bold"))
            if key == "v":
                is_cut = self._show(request, full=True)
            elif (decision := answers[key].decision or await self._ask_for_more(key, request)) is not None:
                return decision

    async def _ask_for_more(self, key: str, request: ApprovalRequest) -> ApprovalDecision | None:
        if key == "e":
            arguments = await self._edit(request)
            return None if arguments is None else ApprovalDecision(approved=True, arguments=arguments)
        self._print(Text("  Why not? (Enter: no note) ", style="bold"), end="")
        return ApprovalDecision(approved=False, note=await self._keyboard.read_line() or None, all_calls=True)

    def _show(self, request: ApprovalRequest, *, full: bool) -> bool:
        """Show a request, and return whether some of it is left out."""
        ruling = request.ruling
        because = visible(ruling.because if ruling is not None else request.reason)
        self._print(Text(f"\n? {headline(request)}", style="bold magenta"))
        path = f"  {visible(request.call_path)}\n" if request.call_path else ""
        self._print(Text(f"{path}  {because}", style="dim"))
        if ruling is not None and ruling.reason:
            self._print(Text(f"  {visible(ruling.reason)}"))
        room = None if full else min(max(self._console.height - _AROUND, 5), _MAX_LINES)
        view = view_request(request, room=room, width=self._console.width - 2)
        self._print(Padding(view.content, (0, 0, 0, 2)))
        return view.is_cut

    async def _edit(self, request: ApprovalRequest) -> dict[str, Any] | None:
        before, fixed = editable_json(request.arguments)
        try:
            edited = await _in_editor(before)
            arguments = json.loads(edited)
        except (OSError, ValueError) as exc:
            why = visible(str(exc.strerror if isinstance(exc, OSError) else exc))
            self._print(Text(f"  The arguments were not edited: {why}. Set EDITOR to choose an editor.", style="red"))
            return None
        if edited == before:
            self._print(Text("  Nothing was changed.", style="yellow"))
            return None
        if not isinstance(arguments, dict):
            self._print(Text("  The arguments must be an object: { ... }.", style="red"))
            return None
        return {**fixed, **arguments}


async def _in_editor(text: str) -> str:
    """Return a text as edited in the person's editor. While it runs, only the editor gets Ctrl-C."""
    editor = shlex.split(os.environ.get("VISUAL") or os.environ.get("EDITOR") or "vi")
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "arguments.json"
        file.write_text(text, encoding="utf-8")
        handler = signal.signal(signal.SIGINT, signal.SIG_IGN)
        try:
            words = [*editor, str(file)]
            # With `subprocess`, the editor would ignore interrupts as well.
            process = os.posix_spawnp(editor[0], words, os.environ, setsigdef=[signal.SIGINT])  # noqa: ASYNC221
            _, status = await pool.run(os.waitpid, process, 0)
            if code := os.waitstatus_to_exitcode(status):
                raise ValueError(f"{editor[0]} ended with {code}")
        finally:
            signal.signal(signal.SIGINT, handler)
        return file.read_text(encoding="utf-8")
