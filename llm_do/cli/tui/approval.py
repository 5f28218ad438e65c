"""The question in the conversation whether a call may run."""

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
from textual.events import Key
from textual.message import Message
from textual.widget import Widget
from textual.widgets import Input, OptionList, Static, TextArea
from textual.widgets.option_list import Option

from ...policy.requests import ApprovalDecision, ApprovalRequest
from ...privacy.display import visible
from ..terminal.approval_view import Answer, editable_json, headline, possible_answers, view_request
from ..terminal.errors import escape_controls

_LEAST_ROOM = 4
"""The lines for the view of a call on the smallest screen."""
_FITTINGS = 5
"""The most measurements after a change: wrapped lines and scrollbars change the room again."""


class Choices(OptionList):
    """The possible answers. None is highlighted at first, so that a stray Enter chooses nothing."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("pageup", "app.page(-1)", show=False),
        Binding("pagedown", "app.page(1)", show=False),
    ]


class ArgumentsArea(TextArea):
    """Edited arguments, as JSON."""


class ApprovalPanel(Vertical):
    BINDINGS: ClassVar[list[BindingType]] = [
        *(Binding(key, f"choose('{key}')", show=False) for key in "yaspenqf123456789"),
        Binding("escape", "back", "Back"),
        Binding("ctrl+s", "run_edited", "Run with these"),
    ]

    class Decided(Message):
        """The question was answered or withdrawn."""

    def __init__(self, request: ApprovalRequest, answer: asyncio.Future[ApprovalDecision], *, grace: float) -> None:
        super().__init__()
        self._request = request
        self._answer = answer
        self._full = False
        self._form: type[Input | ArgumentsArea] | None = None
        """The form that is shown instead of the answers."""
        self._room: tuple[int, int] | None = None
        """The lines and columns that the view was made for."""
        self._grace = grace
        self._ignore_until = monotonic() + grace
        self.border_title = Content(headline(request)).markup

    def compose(self) -> ComposeResult:
        yield Static(self._head(), classes="head")
        yield Static(classes="view")
        yield Choices()
        yield Input(placeholder="Why not? The worker reads this note.")
        yield ArgumentsArea(soft_wrap=True, show_line_numbers=False)
        yield Static(classes="hint")

    def on_mount(self) -> None:
        self._show_form(None)
        self._show_view(_LEAST_ROOM, 0)
        self.fit()
        self._answer.add_done_callback(lambda _: self.call_later(self._collapse))

    def focus_choices(self) -> None:
        """Take the focus, and ignore keys for a moment: a person who is typing has not seen the question yet."""
        self._ignore_until = monotonic() + self._grace
        self.query_one(Choices).focus(scroll_visible=False)

    def on_key(self, event: Key) -> None:
        if (event.is_printable or event.key == "enter") and self.query_one(Choices).has_focus and self._is_too_early():
            event.stop()

    def _is_too_early(self) -> bool:
        """Return whether it is too early for an answer. Each key extends the time: the person is still typing."""
        if monotonic() >= self._ignore_until:
            return False
        self._ignore_until = monotonic() + self._grace
        self._show_hint("Not answered yet. Read the question, pause for a moment, and press the key again.")
        return True

    def _head(self) -> Content:
        request, ruling = self._request, self._request.ruling
        lines = [f"calls: {visible(request.call_path)}"] if request.call_path else []
        if ruling is not None:
            where = f" ({visible(ruling.where)})" if ruling.where and ruling.where not in ruling.because else ""
            lines.append(f"rule: {visible(ruling.because)}{where}")
            lines += [f"reason: {visible(ruling.reason)}"] if ruling.reason else []
        else:
            lines.append(f"{'' if request.question else 'rule: '}{visible(request.reason)}")
        return Content("\n".join(lines))

    def fit(self, times: int = _FITTINGS) -> None:
        """Fit the view to the available room, once everything is laid out."""
        if self.waits and times:
            self.call_after_refresh(self._fit, times)

    def _fit(self, times: int) -> None:
        log = self.parent
        if not self.waits or not isinstance(log, Widget) or not self.is_attached:
            return
        view = self.query_one(".view", Static)
        beside = self.outer_size.height + self.styles.margin.height - view.size.height
        room = max(log.size.height - beside, _LEAST_ROOM), view.size.width
        if not self._full and room != self._room:
            self._show_view(*room)
            self.fit(times - 1)
        elif self.outer_size.height <= log.size.height:
            log.anchor()
        else:  # show the question before the answers: a yes to an unseen question means nothing
            log.anchor(False)
            log.scroll_to_widget(self, top=True, animate=False, force=True)

    def _show_view(self, room: int, width: int) -> None:
        self._room = room, width
        view = view_request(self._request, room=None if self._full else room, width=max(width, 20))
        self.query_one(".view", Static).update(view.content)
        choices = self.query_one(Choices)
        choices.clear_options()
        choices.add_options(
            Option(Content.assemble((f" {key} ", "bold reverse"), f" {answer.text}"), id=f"key-{key}")
            for key, answer in self._answers(is_cut=view.is_cut).items()
        )
        choices.highlighted = None

    def _answers(self, *, is_cut: bool) -> dict[str, Answer]:
        session = f"yes, in this session with {self._request.session_grant.removeprefix('exactly ')}"
        show_all = "f" if is_cut else None
        return possible_answers(
            self._request, session=session, only_offer="p", end="no, and end the turn", show_all=show_all
        )

    @on(OptionList.OptionSelected)
    def _selected(self, event: OptionList.OptionSelected) -> None:
        event.stop()
        self.action_choose((event.option_id or "").removeprefix("key-"))

    def action_choose(self, key: str) -> None:
        choices = self.query_one(Choices)
        if self._answer.done() or not choices.display or not self._can_be_seen or self._is_too_early():
            return
        if (answer := self._answers(is_cut=True).get(key)) is None:
            return
        if answer.decision is not None:
            self._decide(answer.decision)
        elif key == "e":
            self._edit()
        elif key == "n":
            self._show_form(Input, "Enter refuses, with or without a note. Escape goes back.")
        else:
            self._full = True
            self._show_view(*self._room or (0, 0))
            self.fit()

    @property
    def _can_be_seen(self) -> bool:
        """Return whether the terminal is large enough to draw the conversation."""
        return all(above.display for above in self.ancestors_with_self if isinstance(above, Widget))

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        return {"back": self._form is not None, "run_edited": self._form is ArgumentsArea}.get(action, True)

    def _show_form(self, form: type[Input | ArgumentsArea] | None, hint: str = "") -> None:
        self._form = form
        for each in (Choices, Input, ArgumentsArea):
            self.query_one(each).display = each is (form or Choices)
        self._show_hint(hint)
        if form is not None:
            self.query_one(form).focus()

    def _show_hint(self, hint: str) -> None:
        label = self.query_one(".hint", Static)
        label.update(Content(hint))
        label.display = bool(hint)

    def _edit(self) -> None:
        text, _ = editable_json(self._request.arguments)
        self.query_one(ArgumentsArea).text = text
        self._show_form(ArgumentsArea, "Ctrl+S runs the call with these arguments, Escape goes back.")

    def action_back(self) -> None:
        self._show_form(None)
        self.query_one(Choices).focus()

    @on(Input.Submitted)
    def _denied(self, event: Input.Submitted) -> None:
        event.stop()
        self._decide(ApprovalDecision(approved=False, note=event.value.strip() or None, all_calls=True))

    def action_run_edited(self) -> None:
        before, fixed = editable_json(self._request.arguments)
        try:
            value: Any = json.loads(self.query_one(ArgumentsArea).text)
        except (ValueError, RecursionError) as exc:
            self._show_form(ArgumentsArea, f"The text is not JSON: {exc}. Escape goes back.")
            return
        if not isinstance(value, dict):
            self._show_form(ArgumentsArea, "The arguments must be an object: { ... }. Escape goes back.")
            return
        arguments = None if value == json.loads(before) else {**fixed, **value}
        self._decide(ApprovalDecision(approved=True, arguments=arguments))

    @property
    def waits(self) -> bool:
        return not self._answer.done()

    def _decide(self, decision: ApprovalDecision) -> None:
        if not self._answer.done():
            self._answer.set_result(decision)

    async def _collapse(self) -> None:
        decision = None if self._answer.cancelled() else self._answer.result()
        self.add_class("-decided" if decision is not None and decision.approved else "-refused")
        self.border_title = None
        await self.remove_children()
        if not self.is_attached:  # the person has quit
            return
        await self.mount(Static(Content(f"{visible(self._request.entry)}: {_outcome(decision, self._request)}")))
        self.post_message(self.Decided())


def _outcome(decision: ApprovalDecision | None, request: ApprovalRequest) -> str:
    count = request.count
    if request.question is not None:
        return "yes" if decision is not None and decision.approved else "no"
    if decision is None:
        return "not answered; it did not run"
    which = "" if count == 1 else f"all {count:,} " if decision.all_calls else f"one of {count:,} "
    if decision.end_run:
        return "refused, and the turn ended"
    if not decision.approved:
        return f"{which}refused{f': {escape_controls(decision.note)}' if decision.note else ''}"
    if decision.grant is not None:
        return f"allowed in this session: {visible(decision.grant.text)}"
    if decision.arguments is not None:
        return f"{which}allowed with other arguments"
    if decision.approve_for_session:
        return f"allowed in this session, with {request.session_grant.removeprefix('exactly ')}"
    return f"{which}allowed" if which else "allowed once"
