"""What somebody is shown who is asked: never more than a screen, unless they want all of it."""

import io
from typing import Any

import pytest
from rich.console import Console

from llm_do.cli.terminal.approval_view import ApprovalView, view_request
from llm_do.policy.requests import ApprovalRequest

LONG = "z" * 400_000


def asked(tool: str, /, **payload: Any) -> ApprovalRequest:
    return ApprovalRequest(entry=tool, tool_name=tool, payload=payload, reason="", call_path="")


def on_screen(view: ApprovalView, width: int = 80) -> list[str]:
    console = Console(file=io.StringIO(), width=width, height=24, color_system=None)
    with console.capture() as captured:
        console.print(view.content)
    return captured.get().splitlines()


REQUESTS = {
    "a long line": asked("sandbox.write", path="out/x", content=LONG),
    "long lines": asked("sandbox.write", path="out/x", content="\n".join([LONG[:2000]] * 50)),
    "many lines": asked("sandbox.write", path="out/x", content="x\n" * 5000),
    "wide characters": asked("sandbox.write", path="out/x", content="世" * 30_000),
    "a replacement": asked("sandbox.write", path="out/x", old="a", new=LONG),
    "a long path": asked("sandbox.write", path="x\n" * 5000, content=LONG),
    "a command": asked("shell", command=f"echo {LONG}; rm -rf /", timeout=10),
    "a command and more": asked("shell", command="true\n" * 500, note="\n" * 5000),
    "an argument": asked("send", text=LONG),
    "lines in an argument": asked("send", to="ann", text="\n" * 5000),
    "many arguments": asked("send", **{f"a{number}": LONG[:900] for number in range(100)}),
    "long names": asked("send", **{f"{LONG[:900]}{number}": 1 for number in range(20)}),
}


@pytest.mark.parametrize("width", [60, 80, 200])
@pytest.mark.parametrize("request_", REQUESTS.values(), ids=REQUESTS)
def test_it_fits_the_screen_and_offers_the_rest(request_: ApprovalRequest, width: int) -> None:
    view = view_request(request_, room=20, width=width)
    shown = on_screen(view, width)
    assert view.is_cut
    assert len(shown) <= 21
    assert any(note in " ".join(shown) for note in ("not shown", "not all"))
    assert all(len(line) <= width for line in shown)
    assert len(on_screen(view_request(request_, room=20), width)) <= 21  # a caller that tells no width


def test_both_ends_of_a_long_line_are_seen() -> None:
    shown = "".join(on_screen(view_request(REQUESTS["a command"], room=20)))
    assert "echo zzz" in shown and "rm -rf /" in shown and "timeout: 10" in shown


def test_a_long_argument_does_not_push_another_one_out() -> None:
    request = asked("send", text="\n" * 5000, to="eve@example.org")
    assert "to: eve@example.org" in on_screen(view_request(request, room=20))


def test_the_end_of_a_long_argument_is_seen_and_no_wrong_number_of_lines_is_told() -> None:
    """A value that was abridged before has more lines than are counted."""
    request = asked("send", text="\n".join(f"line {number}" for number in range(1000)))
    shown = on_screen(view_request(request, room=8))
    assert shown == [
        "text:",
        *(f"  │ line {number}" for number in range(5)),
        "  … not all of it is shown",
        "  │ line 999",
    ]


@pytest.mark.parametrize("width", [30, 80])
def test_what_fits_is_whole(width: int) -> None:
    command = "echo " + "y" * 300 + " | end"
    view = view_request(asked("shell", command=command), room=20)
    assert not view.is_cut
    assert "".join(line[2:] for line in on_screen(view, width)) == command


def test_all_of_it_is_all_of_it() -> None:
    view = view_request(REQUESTS["a long line"], room=None)
    assert not view.is_cut
    assert "".join(on_screen(view)).count("z") == len(LONG)


def test_a_screen_that_is_narrower_than_told_hides_nothing_without_a_key() -> None:
    request = asked("send", **{f"a{number}": "x" * 70 for number in range(15)})
    view = view_request(request, room=20, width=100)
    assert not view.is_cut
    assert "".join(on_screen(view, 30)).count("x") == 15 * 70
