"""A worker file means what it says, or is refused with the line of each mistake."""

from typing import Any, Literal

import jsonschema
import pytest
import yaml
from dirty_equals import IsPartialDict
from hypothesis import given, settings
from hypothesis import strategies as st
from inline_snapshot import snapshot
from pydantic import ValidationError
from pydantic_ai.native_tools import WebFetchTool

from llm_do.definitions.definition import (
    WorkerCreationDefaults,
    WorkerDefinition,
    WorkerLimits,
    WorkerSpec,
    define,
    json_schema,
)
from llm_do.definitions.fields import AttachmentPolicy
from llm_do.definitions.file_format import dump_worker, parse_worker
from llm_do.definitions.toolsets import McpServer, McpToolset, native_tool
from llm_do.errors import WorkerFileError
from llm_do.policy.rules import ToolRule
from llm_do.sandbox import RootConfig, SandboxConfig

MARKDOWN = """\
---
description: Evaluates one pitch deck.
model: anthropic:claude-haiku-4-5
model_settings: {temperature: 0.5, max_tokens: 1000}
input: schemas.py:Deck
output: {type: object, properties: {score: {type: integer}}, required: [score]}
tools: [score, list_decks]   # entries of this project
toolsets:
  - files
  - tools.py:make_browser
  - {mcp: {command: npx, args: [-y, server], env: {PORT: "8080"}}, prefix: web}
  - {mcp: {url: https://example.com/mcp}}
allow_workers: [summarizer]
sandbox:
  paths:
    input:  {root: ./input, mode: ro, suffixes: [.pdf, .txt]}
    output: {root: ./evaluations, mode: rw, max_file_bytes: 200000}
tool_rules:
  sandbox.write: ask
  score: {allowed: true, approval_required: true, description: It costs money.}
attachment_policy: {max_attachments: 1, suffixes: [.PDF]}
native: [web_search, {kind: web_fetch, max_uses: 3}]
limits: {max_calls: 10, max_cost: 1, timeout: 2.5}
locked: true
---

You evaluate pitch decks.

Be fair.
"""

DECK = WorkerDefinition(
    name="deck",
    description="Evaluates one pitch deck.",
    model="anthropic:claude-haiku-4-5",
    model_settings={"temperature": 0.5, "max_tokens": 1000},
    input="schemas.py:Deck",
    output={"type": "object", "properties": {"score": {"type": "integer"}}, "required": ["score"]},
    tools=("score", "list_decks"),
    toolsets=(
        "files",
        "tools.py:make_browser",
        McpToolset(
            mcp=McpServer(command=("npx",), args=("-y", "server"), env={"PORT": "8080"}),
            prefix="web",
        ),
        McpToolset(mcp=McpServer(url="https://example.com/mcp")),
    ),
    allow_workers=("summarizer",),
    tool_rules={
        "sandbox.write": (ToolRule("ask"),),
        "score": (ToolRule("ask", "It costs money."),),
    },
    sandbox=SandboxConfig(
        paths={
            "input": RootConfig(root="./input", mode="ro", suffixes=(".pdf", ".txt")),
            "output": RootConfig(root="./evaluations", mode="rw", max_file_bytes=200000),
        }
    ),
    attachment_policy=AttachmentPolicy(max_attachments=1, suffixes=(".pdf",)),
    native=("web_search", {"kind": "web_fetch", "max_uses": 3}),
    limits=WorkerLimits(max_calls=10, max_cost=1, timeout=2.5),
    locked=True,
    instructions="You evaluate pitch decks.\n\nBe fair.",
)

Format = Literal["md", "yaml"]


def parse(text: str | bytes, format: Format = "yaml", name: str = "deck") -> WorkerDefinition:
    return parse_worker(text, name=name, path="w", format=format)


def error(text: str | bytes, format: Format = "yaml", name: str = "deck") -> str:
    with pytest.raises(WorkerFileError) as caught:
        parse(text, format, name)
    return str(caught.value)


# -- what is read ------------------------------------------------------------------------------------


def test_markdown_with_front_matter() -> None:
    """Every field, in the form of the design."""
    assert parse(MARKDOWN, "md") == DECK


def test_markdown_and_yaml_are_the_same_definition() -> None:
    front, body = MARKDOWN.removeprefix("---\n").split("---\n")
    indented = "".join(f"  {line}\n" for line in body.splitlines())
    assert parse(f"{front}instructions: |\n{indented}") == DECK


def test_markdown_without_front_matter_is_all_instructions() -> None:
    assert parse("Be kind.\n\n---\n\nAlways: be kind.\n", "md") == WorkerDefinition(
        name="deck", instructions="Be kind.\n\n---\n\nAlways: be kind."
    )


def test_bom_and_crlf_change_nothing() -> None:
    assert parse(b"\xef\xbb\xbf" + MARKDOWN.replace("\n", "\r\n").encode(), "md") == DECK


def test_front_matter_may_be_empty() -> None:
    assert parse("---\n# nothing\n--- \nHi", "md").instructions == "Hi"


def test_yaml_1_1_surprises_are_text() -> None:
    text = (
        "model_settings: {a: yes, b: no, c: On, d: 0755, e: 1:30, f: 2024-01-01, g: 1_000, h: 0x10, i: .inf, j: 1e999}"
    )
    assert parse(text).model_settings == {
        "a": "yes",
        "b": "no",
        "c": "On",
        "d": "0755",
        "e": "1:30",
        "f": "2024-01-01",
        "g": "1_000",
        "h": "0x10",
        "i": ".inf",
        "j": "1e999",
    }
    assert parse("allow_workers: [on, no]").allow_workers == ("on", "no")


def test_scalars() -> None:
    assert parse("model_settings: {a: ~, b: , c: true, d: -1, e: +.5, f: 1e3, g: '1', h: null}").model_settings == {
        "a": None,
        "b": None,
        "c": True,
        "d": -1,
        "e": 0.5,
        "f": 1000.0,
        "g": "1",
        "h": None,
    }


@pytest.mark.parametrize(
    ("rule", "disposition"),
    [
        ("allow", "allow"),
        ("ask", "ask"),
        ("deny", "deny"),
        ("{allowed: true}", "allow"),
        ("{allowed: false}", "deny"),
        ("{approval_required: true}", "ask"),
        ("{allowed: false, approval_required: true}", "deny"),
    ],
)
def test_both_forms_of_a_rule(rule: str, disposition: str) -> None:
    assert parse(f"tool_rules: {{x: {rule}}}").tool_rules["x"][0].disposition == disposition


def test_any_worker_is_a_star_alone() -> None:
    assert parse('allow_workers: ["*"]').allow_workers == ("*",)
    assert error('allow_workers: ["*", a]') == 'w:1: allow_workers: "*" means all workers: write ["*"], or only names.'


def test_native_tools_are_those_of_pydantic_ai() -> None:
    assert native_tool({"kind": "web_fetch", "max_uses": 3}) == WebFetchTool(max_uses=3)
    assert native_tool("web_fetch") == WebFetchTool()


def test_without_the_c_library(monkeypatch: pytest.MonkeyPatch) -> None:
    """PyYAML is a little slower and words its complaints differently; the rest is the same."""
    monkeypatch.delattr(yaml, "CSafeLoader")
    assert parse(MARKDOWN, "md") == DECK
    assert error("a: &x 1\nb: *x\nc: !y 1").count("\n") == 2
    assert "w:1: not valid YAML" in error('a: "\\UFFFFFFFF"')
    assert "w:2: not valid YAML" in error("a: 1\n b: 2")


# -- what is refused: each with its line, its key, and what would be right -----------------------------

REFUSED = {
    # keys
    "model: x\nalow_workers: []": "w:2: unknown key 'alow_workers'. Did you mean 'allow_workers'",
    "allow_worker: [a]": "w:1: unknown key 'allow_worker'. Did you mean 'allow_workers'",
    "tool_rule: {}": "w:1: unknown key 'tool_rule'. Did you mean 'tool_rules'",
    "sanbox: {}": "w:1: unknown key 'sanbox'. Did you mean 'sandbox'?",
    "expires: 2024-01-01": "w:1: unknown key 'expires'. Known names: 'allow_workers', 'attachment_policy',",
    "sandbox:\n  paths:\n    input:\n      root: ./a\n      mod: rw": (
        "w:5: unknown key 'mod' in sandbox.paths.input. Did you mean 'mode'"
    ),
    "limits: {max_call: 1}": "w:1: unknown key 'max_call' in limits. Did you mean 'max_calls'",
    "toolsets:\n- files\n- mcp: {commandz: x}": "w:3: unknown key 'commandz' in toolsets[1].mcp. Did you mean",
    "sandbox: {paths: {input: {mode: ro}}}": "w:1: sandbox.paths.input: needs 'root'.",
    "1: x": "w:1: a key must be text, not 1.",
    "true: x": "w:1: a key must be text, not true.",
    "? [a]\n: b": "w:1: a key must be text, not a list or a mapping.",
    "model: a\ntools: []\nmodel: b": "w:3: key 'model' appears twice, first in line 1.",
    "sandbox:\n  paths:\n    a: {root: x}\n    a: {root: y}": "w:4: key 'a' appears twice, first in line 3.",
    # types
    "tools: score": 'w:1: tools: must be a list, got "score"; write ["score"].',
    'allow_workers: "*"': 'w:1: allow_workers: must be a list, got "*"; write ["*"].',
    "tools:": "w:1: tools: must be a list, got nothing.",
    "tools: [a,\n  5]": "w:2: tools[1]: must be text, got 5; put it in quotes.",
    "model: true": "w:1: model: must be text, got true; put it in quotes.",
    "model: ''": 'w:1: model: must be some text, got "".',
    "locked: yes": 'w:1: locked: must be true or false, got "yes".',
    "limits: {max_calls: 1_000}": 'w:1: limits.max_calls: must be a whole number, got "1_000".',
    "limits: {max_calls: 0755}": 'w:1: limits.max_calls: must be a whole number, got "0755".',
    "limits: {max_calls: 1.0}": "w:1: limits.max_calls: must be a whole number, got 1.0.",
    "limits: {max_calls: -1}": "w:1: limits.max_calls: must be greater than or equal to 0, got -1.",
    "limits: {timeout: .inf}": 'w:1: limits.timeout: must be a number, got ".inf".',
    "limits: 5": "w:1: limits: must be keys and values, got 5.",
    "tool_rules: [a]": 'w:1: tool_rules: must be keys and values, got ["a"].',
    "attachment_policy: {max_attachments: -1}": "w:1: attachment_policy.max_attachments: must be greater than or",
    "attachment_policy: {suffixes: [pdf]}": "w:1: attachment_policy.suffixes[0]: 'pdf' is not a suffix",
    "sandbox: {paths: {a: {root: x, mode: no}}}": "w:1: sandbox.paths.a.mode: must be 'ro' or 'rw', got \"no\".",
    # names and references
    "name: desk": "w:1: name: 'desk' is not the file's name, 'deck'.",
    "name: 'deck\n\n  '": "w:1: name: 'deck\\n' is not the file's name, 'deck'.",
    "name: 5": "w:1: name: must be text, got 5; put it in quotes.",
    "tools: [../../evil]": "w:1: tools[0]: '../../evil' cannot be an entry's name: use letters",
    "tools: [sсore]": "w:1: tools[0]: 'sсore' cannot be an entry's name",  # a Cyrillic letter
    "allow_workers: [a*]": "w:1: allow_workers[0]: 'a*' cannot be an entry's name",
    "input: Deck": "w:1: input: 'Deck' is not a reference: write 'module:Name' or 'file.py:Name'.",
    "output: ../a.py:Deck": "w:1: output: '../a.py:Deck' is not a reference",
    "output: /a.py:Deck": "w:1: output: '/a.py:Deck' is not a reference",
    "input: {type: string}": "w:1: input: an inline input needs `type: object`",
    "output: true": "w:1: output: must be keys and values, got true.",
    "output:\n  type: object\n  properties:\n    a:\n      type: strnig": "w:5: output.properties.a.type: must be 'obj",
    "output: {properties: {topic: {}}, required: [topc]}": (
        "w:1: output: 'topc' is required, but not a property. Did you mean 'topic'?"
    ),
    "output: {$ref: 'http://a/b.json'}": "w:1: output.$ref: ",
    # rules
    "tool_rules: {sandbox.writez: deny}": "w:1: tool_rules.sandbox.writez: there is no rule 'sandbox.writez'. Did you",
    "tool_rules: {'*': allow}": "w:1: tool_rules.*: '*' cannot be the name of a tool.",
    "tool_rules: {a: no}": 'w:1: tool_rules.a: "no" is no rule: write allow, ask or deny, or {rule: ask, when',
    "tool_rules: {a: true}": "w:1: tool_rules.a: true is no rule",
    "tool_rules: {a: }": "w:1: tool_rules.a: nothing is no rule",
    "tool_rules: {a: {}}": "w:1: tool_rules.a: {} is no rule",
    "tool_rules: {a: {allowedz: false}}": 'w:1: tool_rules.a: {"allowedz": false} is no rule (allowedz: Extra',
    "tool_rules: {a: {allowed: no}}": 'w:1: tool_rules.a: {"allowed": "no"} is no rule (allowed: Input',
    "tool_rules: {a: {disposition: allow}}": "w:1: tool_rules.a: ",
    # toolsets and native tools
    "toolsets: [fils]": "w:1: toolsets[0]: 'fils' is not a toolset. Did you mean 'files'? Others are 'module:factory'",
    "toolsets: [5]": "w:1: toolsets[0]: must be keys and values, got 5.",
    "toolsets: [{mcp: {}}]": "w:1: toolsets[0].mcp: needs either 'command' or 'url'.",
    "toolsets: [{mcp: {command: a, url: http://a}}]": "w:1: toolsets[0].mcp: needs either 'command' or 'url'.",
    "toolsets: [{mcp: {url: http://a, env: {A: b}}}]": "w:1: toolsets[0].mcp: 'env' does not go with 'url'.",
    "toolsets: [{mcp: {command: a, headers: {A: b}}}]": "w:1: toolsets[0].mcp: 'headers' does not go with 'command'.",
    "toolsets: [{mcp: {command: npx -y server}}]": (
        'w:1: toolsets[0].mcp.command: \'npx -y server\' is not run by a shell: write ["npx", "-y", "server"].'
    ),
    "toolsets: [{mcp: {command: []}}]": "w:1: toolsets[0].mcp.command: must be a list that is not empty, got [].",
    'toolsets: [{mcp: {command: ["a\\0"]}}]': "w:1: toolsets[0].mcp.command[0]: ",
    "toolsets: [{mcp: {command: a, env: {PORT: 8080}}}]": "w:1: toolsets[0].mcp.env.PORT: must be text, got 8080; put",
    "toolsets: [{mcp: {command: a, start_timeout: 0}}]": "w:1: toolsets[0].mcp.start_timeout: ",
    "toolsets: [{mcp: {command: a, sampling: always}}]": "w:1: toolsets[0].mcp.sampling: ",
    "tool_rules: {mcp.samplign: allow}": "w:1: tool_rules",
    "toolsets: [{mcp: {url: file:///etc}}]": "w:1: toolsets[0].mcp.url: ",
    "native: [web_serch]": "w:1: native[0]: \"web_serch\" is not a native tool. Did you mean 'web_search'",
    "native: [{kind: web_search, allowedz_domains: []}]": "w:1: native[0]: web_search has no setting 'allowedz",
    "native: [{kind: web_search, max_uses: x}]": "w:1: native[0]: web_search: max_uses: ",
    "native: [{web_search: {}}]": "w:1: native[0]: ",
    "native: [5]": "w:1: native[0]: ",
    "native: [mcp_server]": "w:1: native[0]: mcp_server: id: ",
    # YAML
    "model: a\ntools: [a": "w:3: not valid YAML: did not find expected ',' or ']' while parsing a flow sequence",
    "model: a: b": 'w:1: not valid YAML: mapping values are not allowed in this context. Text that contains ": "',
    "tools:\n\t- a": "w:2: not valid YAML: found character that cannot start any token",
    "allow_workers: [*]": 'while scanning an alias that starts in line 1. Text that starts with "*" needs quotes',
    "description: 'a": "not valid YAML: found unexpected end of stream while scanning a quoted scalar",
    "model: &a x": "w:1: anchors (&a) are not allowed.",
    "model: *a": "w:1: aliases (*a) are not allowed: repeat the value.",
    "model: !!python/object:os.system x": "w:1: tags (tag:yaml.org,2002:python/object:os.system) are not allowed.",
    "model: !!str x": "w:1: tags (tag:yaml.org,2002:str) are not allowed.",
    "model: !x y": "w:1: tags (!x) are not allowed.",
    "model: x\n<<: {tools: [a]}": "w:2: merge keys (<<) are not allowed: repeat the keys.",
    "model: x\n---\nmodel: y": "w:2: a second document starts here; a worker file has only one.",
    "%YAML 1.1\n---\nmodel: x": "directives (%YAML, %TAG) are not allowed.",
    f"model_settings:\n  a: {'[' * 60}{']' * 60}": "w:2: nested too deeply; at most 50 levels.",
    "- a": 'w:1: must be keys and values, such as `model: ...`; got ["a"].',
    "just text": 'w:1: must be keys and values, such as `model: ...`; got "just text".',
    # files
    "": "w:1: the file is empty. Write the worker's instructions.",
    " \n": "w:1: the file is empty. Write the worker's instructions.",
    "# nothing": "w:1: the file is empty. Write the worker's instructions.",
    "null": "w:1: the file is empty. Write the worker's instructions.",
    "model: x\ndescription: \a": "w:2: the control character U+0007 is not allowed.",
    "model: x\rtools: [a]": "w:1: the control character U+000D is not allowed.",
    "model: \ud800": "w:1: the control character U+D800 is not allowed.",
    "model: x # comment\u2028tools: [a]": "w:1: the character U+2028 is not allowed here",
    f"description: {'x' * 1_000_000}": "w:1: the file has 1000013 bytes; at most 1000000 are allowed.",
}


@pytest.mark.parametrize("text", REFUSED)
def test_one_mistake(text: str) -> None:
    """It is named with its line, and nothing else is."""
    message = error(text)
    assert REFUSED[text] in message
    assert "\n" not in message and message.startswith("w:")


@pytest.mark.parametrize("text", [text for text in REFUSED if "\ud800" not in text and "w:3" not in REFUSED[text]])
def test_lines_in_front_matter_are_those_of_the_file(text: str) -> None:
    if not text.strip() or text in ("# nothing", "null") or "\n---\n" in text:
        return  # a Markdown file may well be so
    line = int(error(text).split(":")[1])
    assert int(error(f"---\n{text}\n---\nHi", "md").split(":")[1]) in (
        {line + 1} if "bytes" not in error(text) else {1}
    )


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("---\nmodel: x\n", "w:1: the front matter is not closed"),
        ("---\nmodel: x\n----\nHi", "w:1: the front matter is not closed"),
        ("\n---\nmodel: x\n---\nHi", "w:2: front matter must begin with `---`, alone in the first line."),
        ("----\nmodel: x\n----\nHi", "w:1: front matter must begin with `---`"),
        ("--- # settings\nmodel: x\n---\nHi", "w:1: front matter must begin with `---`"),
        ("model: x\n---\nHi", "w:1: the front matter is not opened. Start it with `---`."),
        (
            "---\nmodel: x\ninstructions: a\n---\nHi",
            "w:3: instructions: must be the text below the front matter",
        ),
        ("---\n- a\n---\nHi", "w:2: must be keys and values"),
        (" \n", "w:1: the file is empty. Write the worker's instructions."),
        ("---\nmodel: x\n---\nHi\n\x00", "w:5: the control character U+0000 is not allowed."),
    ],
)
def test_front_matter_is_never_taken_for_instructions(text: str, message: str) -> None:
    assert error(text, "md").startswith(message)


def test_invalid_utf8_has_its_offset() -> None:
    assert error(b"model: x\ntools: [\xff]") == snapshot(
        "w:2: not UTF-8: the byte 0xff at offset 17 (invalid start byte)."
    )


@pytest.mark.parametrize("name", ["../../evil", "deck\n", "dесk", "", "-a", "a" * 65, "a.b"])
def test_a_file_with_a_bad_name(name: str) -> None:
    assert error("model: x", name=name).startswith(f"w:1: name: {name!r} cannot be an entry's name")


def test_all_mistakes_come_together_in_the_order_of_the_file() -> None:
    text = "tools: score\nallow_workers: &a [b]\nmodel: 5\nsandbox: {paths: {a: {}}}\ntols: []\nmodel: *b\n"
    assert error(text) == snapshot("""\
w:1: tools: must be a list, got "score"; write ["score"].
w:2: anchors (&a) are not allowed.
w:4: sandbox.paths.a: needs 'root'.
w:5: unknown key 'tols'. Did you mean 'tools' or 'toolsets'?
w:6: key 'model' appears twice, first in line 3.
w:6: aliases (*b) are not allowed: repeat the value.\
""")


def test_a_file_full_of_mistakes_does_not_fill_the_screen() -> None:
    message = error("\n".join(f"key{number}: 1" for number in range(100)))
    assert message.count("\n") == 20
    assert message.endswith("\nw:21: and 80 more problems from here on.")


# -- what is written ---------------------------------------------------------------------------------


def test_dump_is_readable() -> None:
    definition = DECK.model_copy(update={"instructions": "One line\n\n  - two: *", "locked": False})
    assert dump_worker(definition) == snapshot("""\
name: deck
description: Evaluates one pitch deck.
model: anthropic:claude-haiku-4-5
model_settings: {temperature: 0.5, max_tokens: 1000}
input: schemas.py:Deck
output:
  type: object
  properties:
    score: {type: integer}
  required: [score]
tools: [score, list_decks]
toolsets:
- files
- tools.py:make_browser
- mcp:
    command: [npx]
    args: [-y, server]
    env: {PORT: '8080'}
  prefix: web
- mcp: {url: 'https://example.com/mcp'}
allow_workers: [summarizer]
tool_rules:
  sandbox.write: ask
  score: {rule: ask, reason: It costs money.}
sandbox:
  paths:
    input:
      root: ./input
      suffixes: [.pdf, .txt]
    output: {root: ./evaluations, mode: rw, max_file_bytes: 200000}
attachment_policy:
  max_attachments: 1
  suffixes: [.pdf]
native:
- web_search
- {kind: web_fetch, max_uses: 3}
limits: {max_calls: 10, max_cost: 1.0, timeout: 2.5}
instructions: |
  One line

    - two: *
""")
    assert dump_worker(WorkerDefinition(name="deck")) == "name: deck\n"
    spaced = WorkerDefinition(name="deck", instructions="a  \n\n   \n\tb")
    assert dump_worker(spaced) == "name: deck\ninstructions: |\n  a  \n\n     \n  \tb\n"


@pytest.mark.parametrize(
    "settings",
    [{"a": float("nan")}, {"a": float("inf")}, {"a": "\ud800"}, {"a": 10**200}, {"a": object()}, {"a": (1,)}],
)
def test_what_a_file_cannot_say_is_not_written(settings: Any) -> None:
    with pytest.raises((WorkerFileError, UnicodeError)):
        dump_worker(WorkerDefinition(name="deck", model_settings=settings))


def test_a_file_that_would_be_too_large_is_not_written() -> None:
    with pytest.raises(WorkerFileError, match="deck.yaml:1: the file has"):
        dump_worker(WorkerDefinition(name="deck", instructions="x" * 1_000_001))


AWKWARD = [
    "yes",
    "no",
    "~",
    "null",
    "1e3",
    "0755",
    "1:30",
    "2024-01-01",
    "*",
    "<<",
    "=",
    "---",
    "a: b",
    "# a",
    " a",
    "a ",
]
AWKWARD += [
    "\n",
    "a\nb",
    "\na",
    "a\n\n",
    " a\nb",
    "a \nb",
    "\ta\nb",
    "a\r\nb",
    "\x85",
    "a\u2028b",
    "\ufeff",
    "\0",
    "é😀",
    "\U0010ffff",
]
texts = st.sampled_from(AWKWARD) | st.text(st.characters(exclude_categories=["Cs"]), max_size=30)
words = texts.filter(bool)
names = st.from_regex(r"[A-Za-z0-9][A-Za-z0-9_-]{0,63}", fullmatch=True) | st.sampled_from(
    ["yes", "1", "1e3", "0", "null"]
)
values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | texts,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts, inner, max_size=3),
    max_leaves=8,
)
arguments = texts.filter(lambda text: "\0" not in text)
operands = st.integers() | st.floats(allow_nan=False, allow_infinity=False)
matches = (
    texts
    | st.booleans()
    | operands
    | st.none()
    | st.lists(texts | operands, min_size=1, max_size=3)
    | words.map(lambda text: {"prefix": text})
    | st.dictionaries(st.sampled_from(["over", "at_least"]), operands, min_size=1, max_size=1)
)
conditions = st.dictionaries(names | st.just("call.through"), matches, min_size=1, max_size=2)
rules = st.builds(
    ToolRule,
    st.sampled_from(["allow", "ask", "deny"]),
    st.none() | texts,
    conditions,
    st.lists(conditions, max_size=2).map(tuple),
)
several = st.lists(rules, min_size=1, max_size=3).map(tuple) | st.builds(ToolRule, st.just("ask")).map(
    lambda one: (one,)
)
roots = st.builds(
    RootConfig,
    root=words.filter(lambda text: "\0" not in text and not text.startswith("~")),
    mode=st.sampled_from(["ro", "rw"]),
    suffixes=st.none() | st.lists(st.sampled_from([".a", ".tar.gz", ".é"]), max_size=2),
)
servers = st.builds(
    McpServer,
    command=st.lists(arguments, min_size=1, max_size=2).map(tuple),
    args=st.lists(arguments, max_size=2).map(tuple),
    env=st.none() | st.dictionaries(arguments, arguments, max_size=2),
    cwd=st.none() | arguments,
) | st.builds(McpServer, url=st.just("https://a/b"), headers=st.none() | st.dictionaries(texts, texts, max_size=2))
shapes = st.none() | st.just("a.b:C.D") | values.map(lambda value: {"type": "object", "default": value})
definitions = st.builds(
    WorkerDefinition,
    name=names,
    description=st.none() | texts,
    model=st.none() | words,
    model_settings=st.none() | st.dictionaries(texts, values, max_size=3),
    input=shapes,
    output=shapes,
    tools=st.lists(names, max_size=3).map(tuple),
    toolsets=st.lists(
        st.sampled_from(["files", "a/b.py:c"]) | st.builds(McpToolset, mcp=servers, prefix=st.none() | names),
        max_size=2,
    ).map(tuple),
    allow_workers=st.just(("*",)) | st.lists(names, max_size=3).map(tuple),
    tool_rules=st.dictionaries(names | st.just("sandbox.write"), several, max_size=3),
    sandbox=st.none() | st.builds(SandboxConfig, paths=st.dictionaries(names, roots, max_size=2)),
    attachment_policy=st.builds(
        AttachmentPolicy, max_attachments=st.integers(0, 9), suffixes=st.none() | st.just((".a",))
    ),
    native=st.lists(st.sampled_from(["web_search", {"kind": "web_fetch", "max_uses": 1}]), max_size=2).map(tuple),
    limits=st.none()
    | st.builds(WorkerLimits, max_calls=st.none() | st.integers(0), timeout=st.none() | st.floats(0, 1e9)),
    on_cut_off=st.sampled_from(["note", "error"]),
    locked=st.booleans(),
    created_by=st.none() | words,
    instructions=texts | st.lists(texts, max_size=4).map("\n".join),
)


@given(definitions)
@settings(max_examples=200)
def test_what_is_written_reads_back_equal(definition: WorkerDefinition) -> None:
    text = dump_worker(definition)
    assert parse(text, name=definition.name) == definition
    assert dump_worker(parse(text.encode(), name=definition.name)) == text
    # Other readers of YAML, which know more than JSON's values, read the same.
    assert yaml.safe_load(text) == IsPartialDict(name=definition.name, **plain(definition, "instructions", "model"))


def plain(definition: WorkerDefinition, *fields: str) -> dict[str, Any]:
    values = {field: getattr(definition, field) for field in fields if getattr(definition, field)}
    return {key: value + "\n" if key == "instructions" and is_block(value) else value for key, value in values.items()}


def is_block(text: str) -> bool:
    return "instructions: |\n" in dump_worker(WorkerDefinition(name="a", instructions=text))


# -- anything at all ---------------------------------------------------------------------------------


def reads_or_refuses(text: str | bytes, format: Format) -> None:
    try:
        definition = parse(text, format)
    except WorkerFileError as refused:
        message = str(refused)
    else:
        message, written = "w:", dump_worker(definition)
        assert parse(written) == definition
    assert all(line.startswith("w:") and line.isprintable() for line in message.split("\n"))


@given(st.text(max_size=60) | st.binary(max_size=60), st.sampled_from(["md", "yaml"]))
@settings(max_examples=200)
def test_any_text_is_read_or_refused(text: str | bytes, format: Format) -> None:
    reads_or_refuses(text, format)


TOKENS = [
    "---",
    "\n",
    "  ",
    "- ",
    ": ",
    "? ",
    "[",
    "]",
    "{",
    "}",
    ",",
    "&a ",
    "*a",
    "!t ",
    "'",
    '"',
    "|",
    ">",
    "#",
    "%",
    "<<",
]
TOKENS += [
    "tools",
    "sandbox",
    "paths",
    "name",
    "deck",
    "toolsets",
    "mcp",
    "native",
    "input",
    "type",
    "object",
    "\t",
    "1",
    "no",
    "@",
]


@given(st.lists(st.sampled_from(TOKENS), max_size=30).map("".join), st.sampled_from(["md", "yaml"]))
@settings(max_examples=300)
def test_any_yaml_is_read_or_refused(text: str, format: Format) -> None:
    reads_or_refuses(text, format)


@given(st.data())
@settings(max_examples=300)
def test_a_damaged_file_is_read_or_refused(data: st.DataObject) -> None:
    text = MARKDOWN
    for _ in range(data.draw(st.integers(1, 3))):
        start = data.draw(st.integers(0, len(text)))
        end = data.draw(st.integers(start, min(len(text), start + 10)))
        text = text[:start] + data.draw(st.sampled_from(["", *TOKENS]) | st.text(max_size=3)) + text[end:]
    reads_or_refuses(text, "md")


FIELDS = [
    "toolsets",
    "native",
    "tool_rules",
    "input",
    "output",
    "sandbox",
    "limits",
    "attachment_policy",
    "allow_workers",
]


@given(st.dictionaries(st.sampled_from([*FIELDS, "tools", "model", "locked", "name"]), values, max_size=3))
@settings(max_examples=200)
def test_any_values_are_read_or_refused(content: dict[str, Any]) -> None:
    reads_or_refuses(yaml.safe_dump(content), "yaml")


# -- creation ----------------------------------------------------------------------------------------


def test_a_spec_and_defaults_make_a_definition() -> None:
    defaults = WorkerCreationDefaults(
        default_model="openai:gpt-4",
        default_sandbox=SandboxConfig(paths={"input": RootConfig(root="./input")}),
        default_tool_rules={"sandbox.write": "deny", "shell": "deny"},  # type: ignore[dict-item]
        default_attachment_policy=AttachmentPolicy(max_attachments=0),
    )
    spec = WorkerSpec(
        name="new-worker",
        instructions=" You are a helpful assistant.\n",
        description="A simple worker",
        tool_rules={"shell": (ToolRule("ask"),)},
    )
    assert define(spec, defaults, created_by="boss") == WorkerDefinition(
        name="new-worker",
        description="A simple worker",
        model="openai:gpt-4",
        sandbox=SandboxConfig(paths={"input": RootConfig(root="./input")}),
        tool_rules={"sandbox.write": (ToolRule("deny"),), "shell": (ToolRule("ask"),)},
        attachment_policy=AttachmentPolicy(max_attachments=0),
        created_by="boss",
        instructions="You are a helpful assistant.",
    )


def test_a_spec_stands_before_the_defaults() -> None:
    spec = WorkerSpec(name="a", instructions="", model="own", tools=(), sandbox=SandboxConfig())
    definition = define(spec, WorkerCreationDefaults(default_model="other"), None)
    assert definition == WorkerDefinition(name="a", model="own", sandbox=SandboxConfig())


@pytest.mark.parametrize("name", ["../../evil", "a\n", "а", "a/b", ""])
def test_a_spec_with_a_bad_name(name: str) -> None:
    with pytest.raises(ValidationError, match="cannot be an entry's name"):
        WorkerSpec(name=name, instructions="")


def test_a_definition_does_not_change() -> None:
    with pytest.raises(ValidationError):
        DECK.tools = ()  # type: ignore[misc]


# -- for editors -------------------------------------------------------------------------------------


def accepts(content: Any) -> bool:
    return bool(jsonschema.Draft202012Validator(json_schema()).is_valid(content))


def test_the_json_schema_accepts_what_the_parser_reads() -> None:
    jsonschema.Draft202012Validator.check_schema(json_schema())
    assert accepts(yaml.safe_load(MARKDOWN.split("---\n")[1]))
    assert accepts(yaml.safe_load(dump_worker(DECK)))
    assert accepts({"input": "none"})
    assert accepts({"allow_workers": ["*"], "tool_rules": {"a": "deny", "b": {"allowed": False}}})
    rule = {
        "rule": "deny",
        "when": {"path": ["a/**"], "size": {"over": 1}},
        "except": [{"call.depth": 1}],
        "reason": "x",
    }
    assert accepts({"tool_rules": {"a": ["ask", rule]}})
    assert accepts({"on_cut_off": "error"}) and accepts({"on_cut_off": "note"})


@pytest.mark.parametrize(
    "content",
    [
        {"alow_workers": []},
        {"allow_workers": "*"},
        {"tools": ["../evil"]},
        {"tool_rules": {"a": True}},
        {"tool_rules": {"a": {"allowedz": False}}},
        {"tool_rules": {"a": {"rule": "perhaps"}}},
        {"tool_rules": {"a": {"rule": "deny", "whenn": {"b": 1}}}},
        {"toolsets": ["fils"]},
        {"toolsets": [{"mcp": {"commandz": "x"}}]},
        {"native": ["web_serch"]},
        {"input": "Deck"},
        {"input": None},
        {"limits": {"max_calls": -1}},
        {"on_cut_off": "never"},
        {"sandbox": {"paths": {"a": {"root": ".", "mode": "no"}}}},
    ],
)
def test_the_json_schema_refuses_what_the_parser_refuses(content: dict[str, Any]) -> None:
    assert not accepts(content)
    error(yaml.safe_dump(content))


def test_a_worker_can_say_that_it_takes_no_input() -> None:
    """`none` is a word of the format, and not YAML's null."""
    assert parse_worker("input: none\n", name="w", path="w", format="yaml").input == "none"
    for text, message in {
        "input:": "w:1: input: is empty. Write `input: none`",
        "input: ~": "w:1: input: is empty. Write `input: none`",
        "input: null": "w:1: input: is empty. Write `input: none`",
        "input: None": "w:1: input: 'None' is not in lower case: write `none`",
    }.items():
        with pytest.raises(WorkerFileError) as caught:
            parse_worker(f"{text}\n", name="w", path="w", format="yaml")
        assert str(caught.value).startswith(message)
    definition = WorkerDefinition(name="w", input="none")
    assert parse_worker(dump_worker(definition), name="w", path="w", format="yaml") == definition
