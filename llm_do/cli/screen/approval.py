"""A question in the conversation: may this call run?"""

from __future__ import annotations

import asyncio
import json
from time import monotonic
from typing import Any, ClassVar

from textual import on
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical
from textual.content import Content
from textual.message import Message
from textual.widgets import Input, OptionList, Static, TextArea
from textual.widgets.option_list import Option

from ...approval import ApprovalDecision, ApprovalRequest
from ...display import visible
from ..conversation import readable
from ..evidence import as_json, gather

_MOST_OFFERS = 9
_AROUND = 22
"""The lines of a screen that a question needs beside what it is about."""


class Choices(OptionList):
    """The answers there are. None of them is chosen before somebody moves to it: a stray Enter says nothing."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("pageup", "app.page(-1)", show=False),
        Binding("pagedown", "app.page(1)", show=False),
    ]


class NoteInput(Input):
    """Why not."""

    BINDINGS: ClassVar[list[BindingType]] = [Binding("escape", "back", "Back")]

    def action_back(self) -> None:
        self.post_message(ApprovalPanel.Back())


class ArgumentsArea(TextArea):
    """Other arguments to run with, as JSON."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape", "back", "Back"),
        Binding("ctrl+s", "done", "Run with these"),
    ]

    def action_back(self) -> None:
        self.post_message(ApprovalPanel.Back())

    def action_done(self) -> None:
        self.post_message(ApprovalPanel.Edited(self.text))


class ApprovalPanel(Vertical):
    """Shows what would run, and takes the answer."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding(key, f"choose('{key}')", show=False) for key in ("y", "s", "p", "e", "n", "q", "f", *"123456789")
    ]

    class Back(Message):
        """Leave the note or the editor."""

    class Edited(Message):
        """The editor is done."""

        def __init__(self, text: str) -> None:
            super().__init__()
            self.text = text

    class Settled(Message):
        """The question is answered, or nobody wants to know any more."""

    def __init__(self, request: ApprovalRequest, answer: asyncio.Future[ApprovalDecision], *, grace: float) -> None:
        super().__init__()
        self._request = request
        self._answer = answer
        self._full = False
        self._grace = grace
        self._deaf_until = monotonic() + grace
        self.border_title = Content(f"{visible(request.entry)} wants to run").markup

    def compose(self) -> ComposeResult:
        yield Static(self._head(), classes="head")
        yield Static(classes="evidence")
        yield Choices()
        yield NoteInput(placeholder="Why not? The worker reads it.")
        yield ArgumentsArea(soft_wrap=True, show_line_numbers=False)
        yield Static(classes="hint")

    def on_mount(self) -> None:
        self._show_form(None)
        self._show_evidence()
        self._answer.add_done_callback(lambda _: self.call_later(self._settle))

    def focus_choices(self) -> None:
        """Take the keys. For a moment nothing counts: somebody may be writing, and not have seen the question."""
        self._deaf_until = monotonic() + self._grace
        self.query_one(Choices).focus()

    def _head(self) -> Content:
        request, ruling = self._request, self._request.ruling
        lines = [f"calls: {visible(request.call_path)}"] if request.call_path else []
        if ruling is not None:
            where = f" ({visible(ruling.where)})" if ruling.where and ruling.where not in ruling.because else ""
            lines.append(f"rule: {visible(ruling.because)}{where}")
            lines += [f"reason: {visible(ruling.reason)}"] if ruling.reason else []
        else:
            lines.append(f"rule: {visible(request.reason)}")
        return Content("\n".join(lines))

    def _show_evidence(self) -> None:
        # The question is all on the screen, if that can be: nobody should say yes to what is above its edge.
        room = None if self._full else max(self.app.size.height - _AROUND, 5)
        evidence = gather(self._request, room=room)
        self.query_one(".evidence", Static).update(evidence.shown)
        choices = self.query_one(Choices)
        choices.clear_options()
        choices.add_options(
            Option(Content.assemble((f" {key} ", "bold reverse"), f" {text}"), id=f"key-{key}")
            for key, text in self._keys(cut=evidence.cut).items()
        )
        choices.highlighted = None

    def _keys(self, *, cut: bool) -> dict[str, str]:
        offers = self._request.offers[:_MOST_OFFERS]
        names = ["p"] if len(offers) == 1 else [str(number) for number in range(1, len(offers) + 1)]
        patterns = {
            name: f"yes, in this session: {visible(offer.text)}" for name, offer in zip(names, offers, strict=True)
        }
        return {
            "y": "yes, this once",
            "s": "yes, in this session with these arguments",
            **patterns,
            "e": "edit the arguments",
            "n": "no, with a note",
            "q": "no, and end the turn",
            **({"f": "show all of it"} if cut else {}),
        }

    # -- choosing ------------------------------------------------------------------------------------

    @on(OptionList.OptionSelected)
    def _selected(self, event: OptionList.OptionSelected) -> None:
        event.stop()
        self.action_choose((event.option_id or "").removeprefix("key-"))

    def action_choose(self, key: str) -> None:
        choices = self.query_one(Choices)
        if self._answer.done() or not choices.display or monotonic() < self._deaf_until:
            return
        offers = self._request.offers
        match key:
            case "y":
                self._decide(ApprovalDecision(approved=True))
            case "s":
                self._decide(ApprovalDecision(approved=True, approve_for_session=True))
            case "p" if len(offers) == 1:
                self._decide(ApprovalDecision(approved=True, grant=offers[0]))
            case "e":
                self._edit()
            case "n":
                self._show_form(NoteInput, "Enter refuses, with or without a note. Escape goes back.")
            case "q":
                self._decide(ApprovalDecision(approved=False, end_run=True))
            case "f":
                self._full = True
                self._show_evidence()
            case _ if key.isdigit() and len(offers) > 1 and int(key) <= len(offers):
                self._decide(ApprovalDecision(approved=True, grant=offers[int(key) - 1]))

    def _show_form(self, form: type[NoteInput | ArgumentsArea] | None, hint: str = "") -> None:
        for each in (Choices, NoteInput, ArgumentsArea):
            self.query_one(each).display = each is (form or Choices)
        label = self.query_one(".hint", Static)
        label.update(Content(hint))
        label.display = bool(hint)
        if form is not None:
            self.query_one(form).focus()

    def _edit(self) -> None:
        text, _ = as_json(self._request.arguments)
        self.query_one(ArgumentsArea).text = text
        self._show_form(ArgumentsArea, "Ctrl+S runs it with these arguments, Escape goes back.")

    @on(Back)
    def _back(self, event: Back) -> None:
        event.stop()
        self._show_form(None)
        self.query_one(Choices).focus()

    @on(Input.Submitted)
    def _denied(self, event: Input.Submitted) -> None:
        event.stop()
        self._decide(ApprovalDecision(approved=False, note=event.value.strip() or None))

    @on(Edited)
    def _edited(self, event: Edited) -> None:
        event.stop()
        before, fixed = as_json(self._request.arguments)
        try:
            made: Any = json.loads(event.text)
        except (ValueError, RecursionError) as exc:
            self._show_form(ArgumentsArea, f"That is no JSON: {exc}. Escape goes back.")
            return
        if not isinstance(made, dict):
            self._show_form(ArgumentsArea, "The arguments are an object: { ... }. Escape goes back.")
            return
        arguments = None if made == json.loads(before) else {**fixed, **made}
        self._decide(ApprovalDecision(approved=True, arguments=arguments))

    # -- afterwards ----------------------------------------------------------------------------------

    @property
    def waits(self) -> bool:
        return not self._answer.done()

    def _decide(self, decision: ApprovalDecision) -> None:
        if not self._answer.done():
            self._answer.set_result(decision)

    async def _settle(self) -> None:
        """Make room: what was decided, in a line."""
        decision = None if self._answer.cancelled() else self._answer.result()
        self.add_class("-settled" if decision is not None and decision.approved else "-refused")
        self.border_title = None
        await self.remove_children()
        await self.mount(Static(Content(f"{visible(self._request.entry)}: {_outcome(decision)}")))
        self.post_message(self.Settled())


def _outcome(decision: ApprovalDecision | None) -> str:
    if decision is None:
        return "nobody answered; it did not run"
    if decision.end_run:
        return "refused, and the turn ended"
    if not decision.approved:
        return f"refused{f': {readable(decision.note)}' if decision.note else ''}"
    if decision.grant is not None:
        return f"allowed in this session: {visible(decision.grant.text)}"
    if decision.arguments is not None:
        return "allowed with other arguments"
    return "allowed in this session, with these arguments" if decision.approve_for_session else "allowed once"
