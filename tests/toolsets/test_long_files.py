"""Long files, long lists, and the secrets and the denied names in them."""

import asyncio
import json
import os
import re
import tracemalloc
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic_ai import BinaryContent
from pydantic_ai.messages import ModelMessage, ModelResponse, ToolReturnPart
from pydantic_ai.models.function import AgentInfo

from llm_do import (
    FILE_TOOLS,
    ApprovalDecision,
    ApprovalRequest,
    RootConfig,
    Runtime,
    SandboxConfig,
    WorkerEntry,
)
from llm_do.core.events import Event
from llm_do.privacy.secrets import Secrets
from llm_do.sandbox import FoundLine, SandboxManager, SandboxToolset
from llm_do.sandbox.excerpts import HeadAndTail, read_range

from ..scripted import calls, says, scripted
from .file_worker import use

KEY = "-----BEGIN KEY-----\nMIIEow+IBAAKC\nAQEAx/8zQ9vT\n-----END KEY-----"
LONG = SandboxConfig(paths={"d": RootConfig(root="d", mode="rw", max_file_bytes=50_000_000)})


async def read_as_model(project: Path, *tools: tuple[str, dict[str, Any]], **options: Any) -> list[str]:
    """Return the texts that a model gets when it calls these tools on the folder `d`."""
    (project / "d").mkdir(exist_ok=True)
    seen: list[str] = []

    def look(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
        seen[:] = [str(p.content) for m in messages for p in m.parts if isinstance(p, ToolReturnPart)]
        return says("done")

    worker = WorkerEntry(name="w", sandbox=LONG, base=project, tools=FILE_TOOLS)
    runtime = Runtime([worker], model=scripted(*[calls(tool) for tool in tools], look), **options)
    await runtime.call("w", "go")
    assert [str(record.output_data) for record in runtime.trace[1:] if record.error is None] == seen[: len(tools)][
        : sum(record.error is None for record in runtime.trace[1:])
    ]
    return seen


async def test_a_long_file_is_read_in_parts_and_the_last_line_says_how_to_go_on(project: Path) -> None:
    """Lines end with a line feed and nothing else; the parts put together are the file."""
    (project / "d").mkdir()
    lines = [f"line {n}\x0b\u2028 of many\r\n" for n in range(1, 4501)]
    (project / "d" / "a.txt").write_text("".join(lines), newline="")
    first, second, last, few, beyond = await read_as_model(
        project,
        ("read_file", {"path": "d/a.txt"}),
        ("read_file", {"path": "d/a.txt", "offset": 2001}),
        ("read_file", {"path": "d/a.txt", "offset": 4001}),
        ("read_file", {"path": "d/a.txt", "offset": 7, "limit": 1}),
        ("read_file", {"path": "d/a.txt", "offset": 4501}),
    )
    assert first == "".join(lines[:2000]) + "[Lines 1-2000 of 4,500. Call read_file with offset=2001 to read on.]"
    assert (
        second == "".join(lines[2000:4000]) + "[Lines 2001-4000 of 4,500. Call read_file with offset=4001 to read on.]"
    )
    assert last == "".join(lines[4000:]) + "[Lines 4001-4500 of 4,500. The file ends here.]"
    assert few == lines[6] + "[Line 7 of 4,500. Call read_file with offset=8 to read on.]"
    assert beyond == (
        "offset=4501 is behind the end of 'd/a.txt', which has 4,500 lines. Use an offset from 1 to 4500."
    )


async def test_no_more_than_100_000_characters_of_a_file_reach_a_model(project: Path) -> None:
    """Of 10 MB in lines, whole lines; of a line of 5 MB, a part, and where it goes on."""
    (project / "d").mkdir()
    (project / "d" / "large.txt").write_text(("x" * 999 + "\n") * 10_000)
    (project / "d" / "line.json").write_text("".join(f"{n:07}" for n in range(700_000)))
    large, line, rest = await read_as_model(
        project,
        ("read_file", {"path": "d/large.txt", "limit": 10_000}),
        ("read_file", {"path": "d/line.json"}),
        ("read_file", {"path": "d/line.json", "offset": 1, "column": 4_899_994}),
    )
    assert large.endswith("\n[Lines 1-99 of 10,000. Call read_file with offset=100 to read on.]")
    assert max(map(len, (large, line))) <= 100_000
    assert line.endswith(
        "\n[Line 1 of 1, characters 1-99700 of that line. Call read_file with offset=1 and column=99701 to read on.]"
    )
    assert rest == "0699999\n[Line 1 of 1, from character 4899994 on. The file ends here.]"


async def test_a_list_of_many_files_is_cut_and_a_pattern_narrows_it(project: Path) -> None:
    """Folders are listed with a slash, and `**` looks below."""
    (project / "d" / "sub").mkdir(parents=True)
    for n in range(1_500):
        os.close(os.open(project / "d" / f"f{n:05}.txt", os.O_CREAT | os.O_WRONLY))
    (project / "d" / "sub" / "a.md").write_text("needle")
    whole, some, below, folders = await read_as_model(
        project,
        ("list_files", {"path": "d"}),
        ("list_files", {"path": "d", "pattern": "f0000[12]*"}),
        ("list_files", {"path": "d", "pattern": "**/*.md"}),
        ("list_files", {"path": "d", "pattern": "s*"}),
    )
    assert whole.count("\n") == 1000
    assert whole.endswith(
        "\n[The first 1,000. There are more: call list_files with a pattern, such as a*, or with a folder below.]"
    )
    assert (some, below, folders) == ("d/f00001.txt\nd/f00002.txt", "d/sub/a.md", "d/sub/")


async def _read_with_private_names(
    project: Path, rule: dict[str, Any], *tools: tuple[str, dict[str, Any]]
) -> list[str]:
    (project / "d" / "private").mkdir(parents=True, exist_ok=True)
    (project / "d" / "private" / "plan.txt").write_text("the plan\n" * 300)
    (project / "d" / "open.txt").write_text("no plan")
    return await read_as_model(project, *tools, tool_rules={"sandbox.read": rule, "sandbox.write": "allow"})


_HIDDEN = [
    lambda guess: ("list_files", {"path": "d", "pattern": f"**/{guess}*"}),
    lambda guess: ("list_files", {"path": "d", "pattern": f"*/{guess}*.txt"}),
    lambda guess: ("list_files", {"path": f"d/private/{guess}lan.txt", "pattern": "**"}),
    lambda guess: ("find_files", {"pattern": f"d/**/{guess}*"}),
    lambda guess: ("find_files", {"pattern": f"d/private/{guess}lan.txt"}),
    lambda guess: ("find_files", {"pattern": f"d/private/[{guess}]*"}),
    lambda guess: ("search_files", {"text": "plan", "pattern": f"d/**/{guess}*"}),
    lambda guess: ("search_files", {"text": f"the {guess}lan", "pattern": "d/**"}),
]


@pytest.mark.parametrize("call", _HIDDEN)
@pytest.mark.parametrize(
    "rule",
    [
        {"rule": "deny", "when": {"path": "{project}/d/private/**"}},
        {"rule": "deny", "except": {"path": "{project}/d/*.txt"}},
    ],
    ids=["a folder is denied", "all but some files are denied"],
)
async def test_no_pattern_tells_a_model_which_names_there_are_in_a_folder_that_is_denied(
    project: Path, call: Callable[[str], tuple[str, Any]], rule: dict[str, Any]
) -> None:
    """A right guess is answered as a wrong one is."""
    name = "when" if "when" in rule else "except"
    rule = {**rule, name: {"path": rule[name]["path"].format(project=project)}}
    right, wrong = await _read_with_private_names(project, rule, call("p"), call("q"))
    assert right == wrong
    assert "plan.txt" not in right


async def test_denied_files_are_left_out_of_lists_and_searches(project: Path) -> None:
    """The rest is listed, with a sentence that there are such rules. The folder itself is refused."""
    rule = {"rule": "deny", "when": {"path": f"{project}/d/private/**"}}
    flat, *below, folder = await _read_with_private_names(
        project,
        rule,
        ("list_files", {"path": "d"}),
        ("list_files", {"path": "d", "pattern": "**"}),
        ("find_files", {"pattern": "d/**"}),
        ("search_files", {"text": "plan", "pattern": "d/**"}),
        ("find_files", {"pattern": "d/private/**"}),
    )
    assert flat == "d/open.txt\nd/private/"
    said = "\n[Files that a rule denies are not shown.]"
    assert below == [f"d/open.txt{said}", f"d/open.txt{said}", f"d/open.txt:1: no plan{said}"]
    assert "deny" in folder


@pytest.mark.parametrize(
    ("tool", "path", "rule"),
    [
        ("delete_file", "d/private/plan.tx", {"rule": "deny", "when": {"path": "d/private/**"}}),
        ("read_file", "d/private/plan.md", {"rule": "deny", "except": {"path": "d/**/*.md"}}),
        ("read_file", "d/private/plan.txt/plan.md", {"rule": "deny", "except": {"path": "d/**/*.md"}}),
        ("list_files", "d/private/open", {"rule": "deny", "except": {"path": "d/private/open/**"}}),
    ],
)
async def test_an_error_about_a_missing_file_names_none_of_a_folder_that_is_denied(
    project: Path, tool: str, path: str, rule: dict[str, Any]
) -> None:
    """Who may delete a file there, or read another one, learns nothing of what else is in it."""
    anchored = {key: {"path": f"{project}/{value['path']}"} for key, value in rule.items() if key != "rule"}
    (said,) = await _read_with_private_names(project, {**rule, **anchored}, (tool, {"path": path}))
    assert said == f"{path!r} does not exist."


async def test_a_grant_for_a_file_is_for_any_range_of_it(project: Path) -> None:
    """`offset`, `limit` and `column` are no part of it. Another file needs another approval."""
    (project / "d").mkdir()
    for name in ("a.txt", "b.txt"):
        (project / "d" / name).write_text("1\n2\n3\n")
    asked: list[dict[str, Any]] = []

    def callback(tool_name: str, payload: dict[str, Any], reason: str) -> ApprovalDecision:
        asked.append(payload)
        return ApprovalDecision(approved=True, approve_for_session=True)

    await read_as_model(
        project,
        ("read_file", {"path": "d/a.txt"}),
        ("read_file", {"path": "d/a.txt", "offset": 2}),
        ("read_file", {"path": "d/a.txt", "offset": 2, "limit": 1, "column": 1}),
        ("read_file", {"path": "d/b.txt", "offset": 2}),
        tool_rules={"sandbox.read": "ask"},
        approval_callback=callback,
    )
    assert [payload["path"] for payload in asked] == ["d/a.txt", "d/b.txt"]


async def test_the_words_of_a_grant_say_which_arguments_it_leaves_open(project: Path) -> None:
    """In the question and in the records: a yes to a part of a file is for all of it, and one to a list is not."""
    (project / "d").mkdir()
    (project / "d" / "a.txt").write_text("1\n2\n")
    tools: list[tuple[str, dict[str, Any]]] = [("read_file", {"path": "d/a.txt", "offset": n}) for n in (1, 2)]
    tools += [("list_files", {"path": "d"})] * 2
    asked: list[ApprovalRequest] = []

    class Approver:
        def ask(self, request: ApprovalRequest) -> ApprovalDecision:
            asked.append(request)
            return ApprovalDecision(approved=True, approve_for_session=True)

    worker = WorkerEntry(name="w", sandbox=LONG, base=project, tools=FILE_TOOLS)
    model = scripted(*map(calls, tools), says("done"))
    runtime = Runtime([worker], model=model, tool_rules={"sandbox.read": "ask"}, approval_callback=Approver())
    await runtime.call("w", "go")
    words = ["these arguments and any offset, limit and column", "exactly these arguments"]
    assert [request.session_grant for request in asked] == words
    granted = [record.approval.grant for record in runtime.trace if record.approval is not None]
    assert granted == [words[0]] * 2 + [words[1]] * 2


async def test_no_range_shows_a_part_of_a_secret(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A key of several lines leaves its lines empty, so that the lines behind it keep their numbers."""
    monkeypatch.setenv("KEY", KEY)
    (project / "d").mkdir()
    (project / "d" / "a.txt").write_text(f"one\nkey: {KEY}\nsix\n")
    (project / "d" / "long.txt").write_text("x" * 99_695 + KEY.replace("\n", "") + "\n" + KEY)
    tools = [("read_file", {"path": "d/a.txt", "offset": n}) for n in range(1, 7)]
    search = ("search_files", {"text": "AQEA", "pattern": "d/**"})
    *parts, found = await read_as_model(project, *tools, search, secrets=["KEY"])
    assert parts[0] == "one\nkey: [secret KEY]\n\n\n\nsix\n"
    assert parts[3] == "\n\nsix\n[Lines 4-6 of 6. The file ends here.]"
    assert not any(piece in text for text in parts for piece in KEY.split("\n"))
    # Without its line ends it is another text, which no search for the key knows; in the other lines nothing is found.
    assert found.count("\n") == 0 and found.startswith("d/long.txt:1: ")


@given(
    secret=st.text(alphabet="ab\n+/%&é", min_size=8, max_size=30).map(str.strip).filter(lambda text: len(text) >= 8),
    before=st.text(alphabet="xy\n\u2028", max_size=40),
    after=st.text(alphabet="xy\n\r", max_size=40),
    offset=st.integers(1, 12),
    limit=st.integers(1, 12),
    column=st.integers(1, 60),
    most=st.integers(301, 360),
    size=st.integers(1, 50),
    write=st.sampled_from([str, quote, lambda text: json.dumps(text)[1:-1]]),
)
def test_no_range_and_no_end_of_a_text_shows_a_part_of_a_secret(
    secret: str,
    before: str,
    after: str,
    offset: int,
    limit: int,
    column: int,
    most: int,
    size: int,
    write: Callable[[str], str],
) -> None:
    """No character of it is shown, wherever the text is cut, and in whichever pieces it comes."""
    secrets = Secrets(["KEY"], {"KEY": secret})
    data = f"{before}{write(secret)}{after}".encode()
    chunks = [data[at : at + size] for at in range(0, len(data), size)]
    make = secrets.make_cleaner()
    found = read_range(chunks, offset=offset, limit=limit, column=column, max_characters=most, make_cleaner=make)
    ends = HeadAndTail(most - 300, make)
    for chunk in chunks:
        ends.add(chunk)
    shown = found.text + re.sub(r"\[[\d,]+ (lines|char).*? are left out here.\]", "", ends.text())
    left = re.sub(r"\[?s?e?c?r?e?t? ?K?E?Y?\]?", "", shown)
    assert not set(left) & set("ab+/%&é"), shown
    assert found.lines == data.count(b"\n") + (not data.endswith(b"\n"))


def test_a_file_larger_than_memory_is_read_line_by_line() -> None:
    """Behind a range, lines are counted for a while, and then the count is a lower bound."""

    def endless() -> Iterator[bytes]:
        while True:
            yield b"x" * 999 + b"\n" + b"y" * 999_000

    found = read_range(endless(), offset=3, limit=1)
    assert found.for_model().startswith("y" * 99_700 + "\n[Line 3 of more than 6")


@pytest.mark.parametrize(
    "tool",
    [
        ("find_files", {"pattern": "input/**"}),
        ("search_files", {"text": "x", "pattern": "input/**"}),
        ("list_files", {"path": "input", "pattern": "**"}),
    ],
    ids=lambda tool: tool[0],
)
async def test_the_event_loop_goes_on_while_rules_judge_every_file(project: Path, tool: tuple[str, Any]) -> None:
    """A search is judged by all files that it finds. One refused, since there are too many, does no more."""
    (project / "in" / "many").mkdir()
    for number in range(2001):
        (project / "in" / "many" / f"{number}.txt").touch()
    beats = 0
    seen: dict[str, int] = {}

    async def beat() -> None:
        nonlocal beats
        while True:
            beats += 1
            await asyncio.sleep(0)

    def hear(event: Event) -> None:
        if event.name == tool[0]:
            seen[event.type] = beats

    beating = asyncio.create_task(beat())
    rules = {"sandbox.read": {"rule": "deny", "when": {"path": "input/none/**"}}}
    (refused,) = await use(project, tool, worker={"tool_rules": rules}, message_callback=hear)
    beating.cancel()
    assert "was refused" in str(refused.content)
    assert seen["call_closed"] - seen["call_opened"] > 20


async def test_the_content_of_a_file_decides_whether_it_is_read_as_text(project: Path) -> None:
    """Some suffixes of programs are media types of something else, and a file of text may be called anything."""
    (project / "d").mkdir()
    files = {
        **dict.fromkeys(("a.rs", "b.ts", "c.sql", "d.svg", "e.mp4", "f.md", "g.tex", "h.m"), "some tëxt\n".encode()),
        "p.pdf": b"%PDF-1.4\nall of it is ASCII\n",
        "q.mp4": b"\0\0\0\x18ftypmp42",
        "r.png": b"\x89PNG",
    }
    for name, content in files.items():
        (project / "d" / name).write_bytes(content)
    worker = WorkerEntry(name="w", sandbox=LONG, base=project, tools=FILE_TOOLS)
    tools = [calls(("read_file", {"path": f"d/{name}"})) for name in files]
    runtime = Runtime([worker], model=scripted(*tools, says("done")))
    await runtime.call("w", "go")
    got = {name: record.output_data for name, record in zip(files, runtime.trace[1:], strict=True)}
    assert {name for name, output in got.items() if output == "some tëxt\n"} == set(files) - {"p.pdf", "q.mp4", "r.png"}
    assert all(isinstance(got[name], BinaryContent) for name in ("p.pdf", "q.mp4", "r.png"))


async def test_secrets_are_removed_before_a_found_line_is_cut(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A long line is cut around the text, and never within a secret, wherever that begins or ends."""
    monkeypatch.setenv("KEY", "Zq8Rk2Vn7Wm4Xt1Yb6Uc3Jd9")
    (project / "d").mkdir()
    text = "".join(f"{'-' * n}Zq8Rk2Vn7Wm4Xt1Yb6Uc3Jd9{'-' * 300}needle{'-' * 300}\n" for n in range(0, 300, 12))
    text += "".join(f"{'-' * 300}needle{'-' * n}Zq8Rk2Vn7Wm4Xt1Yb6Uc3Jd9{'-' * 300}\n" for n in range(100, 400, 12))
    (project / "d" / "a.txt").write_text(text)
    (found,) = await read_as_model(project, ("search_files", {"text": "needle", "pattern": "d/**"}), secrets=["KEY"])
    assert found.count("needle") == 50 and "[secret KEY]" in found
    assert not any("Zq8Rk2Vn7Wm4Xt1Yb6Uc3Jd9"[at : at + 4] in found for at in range(21))


def test_a_search_makes_no_more_lines_than_it_returns(tmp_path: Path) -> None:
    """A file of nothing but hits costs as much memory as it has bytes, and no object for each line."""
    (tmp_path / "d").mkdir()
    (tmp_path / "d" / "a.txt").write_text("ab\r\n" * 100_000)
    (tmp_path / "d" / "b.txt").write_text("ab\nx\n\nxab ab\nab")
    files = SandboxToolset(SandboxManager(LONG, base=tmp_path))
    tracemalloc.start()
    found = files.search("d", "ab", limit=50)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert (len(found), found.truncated, found[49]) == (50, True, FoundLine(path="a.txt", line=50, text="ab"))
    assert peak < 4_000_000
    assert [(line.line, line.text) for line in files.search("d", "ab", pattern="b.txt")] == [
        (1, "ab"),
        (4, "xab ab"),
        (5, "ab"),
    ]
