"""Attacks by the files of a project: whatever a worker file says, it opens nothing that it does not plainly say."""

import os
import threading
import unicodedata
from typing import Any

import pytest
from pydantic_ai.messages import ModelResponse, ToolCallPart

from llm_do import LlmDoError, WorkerFileError, WorkerRegistry, WorkerSpec
from llm_do.projects.worker_files import BY_PROJECT, seal_of

from .world import CANARY, COUNTED, Person, World, call, calls_made

BOMB = "\n".join(
    [
        "a: &a [x, x, x, x, x, x, x, x, x]",
        *(f"{b}: &{b} [{', '.join([f'*{a}'] * 9)}]" for a, b in zip("abcdefgh", "bcdefghi", strict=True)),
    ]
)

HOSTILE: dict[str, str | bytes] = {
    "alias": "tools: &t [look]\nallow_workers: *t\ninstructions: x\n",
    "bomb": f"{BOMB}\ninstructions: x\n",
    "merge_key": "base: &b {tools: [wipe]}\n<<: *b\ninstructions: x\n",
    "merge_key_without_an_alias": "<<: {tools: [wipe]}\ninstructions: x\n",
    "python_tag": "instructions: !!python/object/apply:os.system ['touch {top}/ran']\n",
    "python_name": "instructions: !!python/name:os.system\n",
    "own_tag": "instructions: !include /etc/passwd\n",
    "binary_tag": "instructions: !!binary aGVsbG8=\n",
    "two_documents": "tool_rules: {wipe: deny}\n---\ntools: [wipe]\ninstructions: x\n",
    "duplicate_key": "tool_rules: {wipe: deny}\ntool_rules: {wipe: allow}\ntools: [wipe]\ninstructions: x\n",
    "duplicate_rule": "tool_rules: {wipe: deny, wipe: allow}\ntools: [wipe]\ninstructions: x\n",
    "duplicate_rule_in_quotes": "tool_rules: {wipe: deny, 'wipe': allow}\ntools: [wipe]\ninstructions: x\n",
    "deep": "instructions: " + "[" * 5000 + "]" * 5000 + "\n",
    "deep_mappings": "instructions: " + "{a: " * 3000 + "1" + "}" * 3000 + "\n",
    "huge": "instructions: " + "x" * 2_000_000 + "\n",
    "many_keys": "\n".join(f"k{number}: 1" for number in range(50_000)),
    "nul": b"instructions: a\0b\n",
    "not_utf8": b"instructions: \xff\xfe\n",
    "utf16": "instructions: x\n".encode("utf-16"),
    "hidden_line_break": "tools: []  # \u2028tools: [wipe]\ninstructions: x\n",
    "next_line": "tools: []  # \u0085tools: [wipe]\ninstructions: x\n",
    "second_mark": "\ufeff\ufefftools: [wipe]\ninstructions: x\n",
    "escape_codes": b"instructions: \x1b[2Jx\n",
    "misspelled_rules": "tool_rule: {wipe: deny}\ntools: [wipe]\ninstructions: x\n",
    "rules_in_capitals": "Tool_Rules: {wipe: deny}\ntools: [wipe]\ninstructions: x\n",
    "misspelled_word": "tool_rules: {wipe: dney}\ntools: [wipe]\ninstructions: x\n",
    "word_in_capitals": "tool_rules: {wipe: DENY}\ntools: [wipe]\ninstructions: x\n",
    "word_is_false": "tool_rules: {wipe: false}\ntools: [wipe]\ninstructions: x\n",
    "word_is_nothing": "tool_rules: {wipe: }\ntools: [wipe]\ninstructions: x\n",
    "misspelled_tool": "tool_rules: {wype: deny}\ntools: [wipe]\ninstructions: x\n",
    "misspelled_argument": "tool_rules: {wipe: {rule: deny, when: {plce: x}}}\ntools: [wipe]\ninstructions: x\n",
    "misspelled_when": "tool_rules: {wipe: {rule: deny, wenn: {place: x}}}\ntools: [wipe]\ninstructions: x\n",
    "allowed_is_a_text": "tool_rules: {wipe: {allowed: 'false'}}\ntools: [wipe]\ninstructions: x\n",
    "a_rule_that_says_nothing": "tool_rules: {wipe: {description: x}}\ntools: [wipe]\ninstructions: x\n",
    "rules_as_a_list": "tool_rules: [{wipe: deny}]\ntools: [wipe]\ninstructions: x\n",
    "a_rule_on_a_root_that_is_not_there": (
        "tool_rules: {sandbox.read: {rule: deny, when: {path: inn/**}}}\nsandbox: {paths: {in: {root: in}}}\n"
        "tools: [wipe]\ninstructions: x\n"
    ),
    "mode_misspelled": "sandbox: {paths: {out: {root: out, mode: RW}}}\ntools: [wipe]\ninstructions: x\n",
    "negative_limit": "limits: {max_requests: -1}\ntools: [wipe]\ninstructions: x\n",
    "endless_limit": "limits: {max_cost: .inf}\ntools: [wipe]\ninstructions: x\n",
    "no_number": "limits: {timeout: .nan}\ntools: [wipe]\ninstructions: x\n",
    "limit_as_a_word": "limits: {max_calls: true}\ntools: [wipe]\ninstructions: x\n",
    "root_with_a_tilde": "sandbox: {paths: {out: {root: ~/x, mode: rw}}}\ntools: [wipe]\ninstructions: x\n",
    "root_with_a_bad_name": "sandbox: {paths: {../out: {root: out, mode: rw}}}\ntools: [wipe]\ninstructions: x\n",
    "another_name": "name: someone_else\ntools: [wipe]\ninstructions: x\n",
    "unsandboxed_with_a_star": (
        "toolsets: [shell]\nsandbox: {paths: {out: {root: out, mode: rw}}}\ninstructions: x\ntools: [wipe]\n"
        "tool_rules: {shell: {rule: allow, unsandboxed: true, when: {command: touch *}}}\n"
    ),
    "unsandboxed_without_a_command": (
        "toolsets: [shell]\nsandbox: {paths: {out: {root: out, mode: rw}}}\ninstructions: x\ntools: [wipe]\n"
        "tool_rules: {shell: {rule: allow, unsandboxed: true}}\n"
    ),
    "remote_schema": (
        "input: {type: object, properties: {x: {$ref: 'http://127.0.0.1:{port}/s.json'}}}\n"
        "tools: [wipe]\ninstructions: x\n"
    ),
    "reference_outside": "output: ../outside/evil.py:X\ntools: [wipe]\ninstructions: x\n",
    "absolute_reference": "output: '{outside}/evil.py:X'\ntools: [wipe]\ninstructions: x\n",
    "reference_to_a_function": "output: os:system\ntools: [wipe]\ninstructions: x\n",
    "factory_that_is_no_toolset": "toolsets: ['os:system']\ntools: [wipe]\ninstructions: x\n",
}


@pytest.mark.parametrize("kind", HOSTILE)
def test_a_hostile_file_runs_nothing_reads_nothing_and_does_not_hang(world: World, kind: str) -> None:
    world.write("tools.py", COUNTED)
    (world.outside / "evil.py").write_text(f"open({str(world.top / 'ran')!r}, 'w').close()\nclass X: pass\n")
    ear = world.listen("tcp")
    text = HOSTILE[kind]
    if isinstance(text, str):
        for key, value in (("{top}", world.top), ("{outside}", world.outside), ("{port}", ear.port)):
            text = text.replace(key, str(value))
    world.write("workers/a.yaml", text)
    with world.untouched():
        steps = [call("wipe", place="x"), call("shell", command="touch out/x")]
        outcome = world.attack(*steps, callback=Person(), data={"x": 1})
    assert outcome.requests == 0, "the model of a file that cannot be right was asked"
    assert calls_made(world) == []
    assert not ear.heard()


FRONT = {
    "not_closed": "---\ntool_rules: {wipe: deny}\ntools: [wipe]\nDo it.",
    "a_line_above": "\n---\ntool_rules: {wipe: deny}\ntools: [wipe]\n---\nDo it.",
    "without_the_first_line": "tool_rules: {wipe: deny}\ntools: [wipe]\n---\nDo it.",
    "indented": "  ---\ntool_rules: {wipe: deny}\ntools: [wipe]\n  ---\nDo it.",
    "more_dashes": "----\ntool_rules: {wipe: deny}\ntools: [wipe]\n----\nDo it.",
}


@pytest.mark.parametrize("kind", FRONT)
def test_rules_in_a_broken_front_matter_are_not_taken_for_words(world: World, kind: str) -> None:
    world.write("tools.py", COUNTED)
    world.write("workers/a.md", FRONT[kind])
    outcome = world.attack(call("wipe", place="x"), callback=Person())
    assert calls_made(world) == []
    assert outcome.requests == 0


NAMES = [
    "../outside/w", "..", ".", "", "/etc/passwd", "generated/g", "generated", "worker", "a\n", "a\0", " a", "a ",
    "A/../a",
    "a.yaml", "a.md", "\u0430", "a\u200b", "\uff41", "x" * 65, "-", "*", "a/worker", ".hidden", "~", "%61", "a#b",
]  # fmt: skip


@pytest.mark.parametrize("name", NAMES, ids=lambda name: ascii(name)[:20])
def test_no_odd_name_finds_a_worker(world: World, name: str) -> None:
    world.worker("boss", "allow_workers: ['*']")
    world.worker("a")
    world.write("workers/generated/g.yaml", "instructions: I am <g>.\n")
    world.write("workers/.hidden.yaml", "instructions: I am <hidden>.\n")
    (world.outside / "w.yaml").write_text("instructions: I am <w>.\n")
    outcome = world.attack(call("worker_call", worker=name, input_data="go"), worker="boss")
    assert not any(f"I am <{who}>" in sent for sent in outcome.sent for who in ("a", "g", "w", "hidden"))
    with pytest.raises((LlmDoError, ValueError)):
        WorkerRegistry(world.project)[name]


def test_names_that_look_the_same_are_not_one_worker(world: World) -> None:
    world.worker("boss", "allow_workers: [safe]")
    world.worker("safe")
    for twin in ("s\u0430fe", unicodedata.normalize("NFKC", "\uff53afe") + "\u200d"):
        world.write(f"workers/{twin}.yaml", "instructions: I am <twin>.\n")
        outcome = world.attack(call("worker_call", worker=twin, input_data="go"), worker="boss")
        assert not any("I am <twin>" in sent for sent in outcome.sent)


CODE = {
    "raises": "raise RuntimeError('x')",
    "exits": "raise SystemExit(3)",
    "exits_by_sys": "import sys; sys.exit(4)",
    "is_no_python": "def :",
    "imports_nothing": "import no_such_module_at_all",
    "raises_in_a_class": "class A:\n    x = 1 / 0",
}


@pytest.mark.parametrize("kind", CODE)
def test_functions_that_cannot_be_imported_end_neither_the_process_nor_give_a_worker_less_to_obey(
    world: World, kind: str
) -> None:
    world.write("tools.py", CODE[kind])
    world.worker("a", "tools: [wipe]\ntool_rules: {wipe: deny}")
    outcome = world.attack(call("wipe", place="x"))
    assert isinstance(outcome.error, LlmDoError)
    assert outcome.requests == 0


@pytest.mark.parametrize("kind", CODE)
def test_reading_a_project_runs_none_of_its_code(world: World, kind: str) -> None:
    world.write("tools.py", CODE[kind] if kind != "raises" else f"open({str(world.top / 'ran')!r}, 'w').close()")
    world.worker("a", "tools: [wipe]\noutput: tools.py:X\ntoolsets: [tools.py:make]")
    registry = WorkerRegistry(world.project)
    registry.workers()
    registry.definition("a")
    _ = registry.config
    assert not (world.top / "ran").exists()


TOML: dict[str, str | bytes] = {
    "misspelled_table": "[tool_rule]\nwipe = 'deny'\n",
    "misspelled_tool": "[tool_rules]\nwype = 'deny'\n",
    "misspelled_word": "[tool_rules]\nwipe = 'dney'\n",
    "no_toml": "[tool_rules\nwipe = 'deny'\n",
    "twice": "[tool_rules]\nwipe = 'deny'\nwipe = 'allow'\n",
    "not_utf8": b"# \xff\n[tool_rules]\nwipe = 'deny'\n",
    "limit_misspelled": "[limits]\nmax_request = 1\n",
    "a_folder": "",
    "not_for_us": "",
}


@pytest.mark.parametrize("kind", TOML)
def test_a_configuration_that_cannot_be_right_lets_nothing_run(world: World, kind: str) -> None:
    world.write("tools.py", COUNTED)
    world.worker("a", "tools: [wipe]\ntool_rules: {wipe: allow}")
    if kind == "a_folder":
        (world.project / "llm-do.toml").mkdir()
    elif kind == "not_for_us":
        (world.project / "llm-do.toml").symlink_to("llm-do.toml")
    else:
        world.write("llm-do.toml", TOML[kind])
    outcome = world.attack(call("wipe", place="x"), callback=Person())
    assert calls_made(world) == []
    assert outcome.requests == 0


def test_rules_that_appear_while_a_session_runs_hold_at_the_next_call(world: World) -> None:
    world.write("tools.py", COUNTED)
    world.worker("a", "tools: [wipe]\ntool_rules: {wipe: allow}\nallow_workers: [b]")
    path = world.worker("b", "tools: [wipe]\ntool_rules: {wipe: allow}")

    def narrow(messages: Any, info: Any) -> Any:
        path.write_text("tools: [wipe]\ntool_rules: {wipe: deny}\ninstructions: I am <b>.\n")
        os.utime(path, (1, 1))
        return call("worker_call", worker="b", input_data="go")

    go = call("worker_call", worker="b", input_data="go")
    world.attack(go, narrow, b=[call("wipe", place="x")])
    assert calls_made(world) == [["wipe", "x"]]


def test_a_worker_with_two_files_runs_by_neither(world: World) -> None:
    world.write("tools.py", COUNTED)
    world.worker("a", "tools: [wipe]\ntool_rules: {wipe: deny}")
    world.write("workers/a/worker.yaml", "tools: [wipe]\ntool_rules: {wipe: allow}\ninstructions: I am <a>.\n")
    outcome = world.attack(call("wipe", place="x"), callback=Person())
    assert outcome.requests == 0
    assert calls_made(world) == []


def test_a_worker_that_takes_the_name_of_a_function_runs_by_neither(world: World) -> None:
    world.write("tools.py", COUNTED)
    world.worker("wipe")
    world.worker("a", "tools: [wipe]\ntool_rules: {wipe: allow}")
    world.attack(call("wipe", input="x"), call("wipe", place="x"), callback=Person())
    assert calls_made(world) == []


# -- holes -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("where", ["input", "output"])
@pytest.mark.parametrize(
    "schema",
    [
        "anyOf: [{items: {$ref: 'URL'}}]",
        "allOf: [{$ref: 'URL'}]",
        "not: {$ref: 'URL'}",
        "if: {$ref: 'URL'}",
        "contains: {$ref: 'URL'}",
        "$dynamicRef: 'URL'",
    ],
)
def test_no_schema_of_a_worker_is_fetched_from_elsewhere(world: World, schema: str, where: str) -> None:
    ear = world.listen("tcp")
    url = f"http://127.0.0.1:{ear.port}/schema.json"
    world.worker("a", f"{where}: {{type: object, properties: {{x: {{{schema.replace('URL', url)}}}}}}}")

    def answer(messages: Any, info: Any) -> ModelResponse:
        return ModelResponse(parts=[ToolCallPart(info.output_tools[0].name, {"x": [1]})])

    heard: list[bool] = []

    def hang_up() -> None:  # who fetches waits for an answer
        heard.append(ear.heard())
        world.close()

    closing = threading.Timer(0.07, hang_up)
    closing.start()
    world.attack(*([answer] if where == "output" else []), data={"x": [1]} if where == "input" else "go")
    closing.join()
    assert heard == [False]


# -- symlinks into a folder that a worker writes --------------------------------------------------------------------

LINKS = {
    "a file": ("workers/x.yaml", "out/x.yaml", "x.yaml"),
    "a file by way of another place": ("workers/x.yaml", "out/x.yaml", "x.yaml"),
    "a folder": ("workers/x", "out/x", "worker.yaml"),
    "all workers": ("workers", "out/all", "x.yaml"),
    "generated workers": ("workers/generated", "out/gen", "x.yaml"),
    "a seal": ("workers/generated/.x.seal", "out/x.seal", ".x.seal"),
    "settings": ("llm-do.toml", "out/settings", "llm-do.toml"),
}
MADE = """
from pathlib import Path
from llm_do import RootConfig, SandboxConfig, WorkerEntry
files = SandboxConfig(paths={"o": RootConfig(root="out", mode="rw")})
made = [WorkerEntry(name="made", base=Path(__file__).parent, sandbox=files)]
"""
WRITERS = {
    "another": ("workers/w.yaml", "sandbox: {paths: {o: {root: out, mode: rw}}}\ninstructions: x\n"),
    "itself": ("", "o: {root: out, mode: rw}"),
    "one made in Python": ("tools.py", f"{MADE}writer = made[0]\n"),
    "one below another": ("tools.py", f"{MADE}boss = WorkerEntry(name='boss', tools=made)\n"),
    "nobody": ("", ""),
}


def plant(world: World, link: str, more: str) -> None:
    """Leave a worker `x` that may read what is outside of the project, and a symlink that leads to it."""
    name, target, planted = LINKS[link]
    link_path, target_path = world.project / name, world.project / target
    paths = f"{{p: {{root: {world.outside}}}{', ' if more else ''}{more}}}"
    worker = f"sandbox: {{paths: {paths}}}\ninstructions: I am <x>.\n"
    if link == "settings":
        world.worker("x")
        planted_text = (
            f"[sandbox]\npaths = {paths.replace(': ', ' = ').replace(str(world.outside), repr(str(world.outside)))}\n"
        )
        planted_text = planted_text.replace("= out", "= 'out'").replace("= rw", "= 'rw'")
    elif link == "a seal":
        world.write("workers/generated/x.yaml", worker)
        planted_text = seal_of(worker.encode(), BY_PROJECT)
    else:
        planted_text = worker
    if link == "all workers":
        (world.project / "workers").rmdir()
    if target_path.suffix in (".yaml", ".seal"):
        target_path.write_text(planted_text)
    else:
        target_path.mkdir()
        (target_path / planted).write_text(planted_text)
    if link == "generated workers":
        (target_path / ".x.seal").write_text(seal_of(worker.encode(), BY_PROJECT))
    if link == "settings":
        target_path /= planted
    if link == "a file by way of another place":  # it ends where no worker writes yet
        target_path.rename(world.project / "in/x.yaml")
        target_path.symlink_to("../in/x.yaml")
    link_path.symlink_to(os.path.relpath(target_path, link_path.parent))


@pytest.mark.parametrize("writer", WRITERS)
@pytest.mark.parametrize("link", LINKS)
def test_no_worker_has_rights_from_a_file_that_a_worker_can_write(world: World, link: str, writer: str) -> None:
    """A symlink into a folder of a worker would let it say what it may do. Elsewhere, a symlink is fine."""
    path, text = WRITERS[writer]
    plant(world, link, text if writer == "itself" else "")
    if path:
        world.write(path, text)
    outcome = world.attack(call("read_file", path="p/secret.txt"), worker="x")
    assert outcome.told(CANARY) == (writer == "nobody")
    if writer in ("another", "itself"):
        assert "is not used: a symlink leads to it through out/, which workers can change" in str(outcome.error)
    elif writer != "nobody":
        assert "tools.py: worker 'made': the root 'o' reaches " in str(outcome.error)


@pytest.mark.parametrize("link", ["generated workers", "a seal"])
def test_no_worker_is_created_where_another_can_write(world: World, link: str) -> None:
    """It would be in the way, and is not used anyway."""
    plant(world, link, "")
    world.write(*WRITERS["another"])
    with world.untouched(), pytest.raises(WorkerFileError, match="a symlink leads to it through out/"):
        WorkerRegistry(world.project).create(WorkerSpec(name="x", instructions="y"), force=True)


@pytest.mark.parametrize("link", LINKS)
def test_a_worker_made_in_python_does_not_run_if_it_reaches_the_file_of_another(world: World, link: str) -> None:
    """Its module may be imported later than the file is used, so it must never write there."""
    plant(world, link, "")
    world.write("workers/y/worker.yaml", "instructions: y\n")
    world.write(
        "workers/y/tools.py", WRITERS["one made in Python"][1].replace("__file__", repr(str(world.project / "_")))
    )
    with pytest.raises(LlmDoError, match=r"worker 'made': the root 'o' (reaches|has code of)|workers can change what"):
        WorkerRegistry(world.project).own_tools("y")


@pytest.mark.parametrize("writer", ["another", "one made in Python", "one below another"])
def test_a_symlink_that_appears_while_a_session_runs_is_not_followed(world: World, writer: str) -> None:
    """Where a file lies is looked at in every call."""
    world.write(*WRITERS[writer])
    (world.project / "workers/x").mkdir()
    world.worker("x", path="workers/x/worker.yaml")
    registry = WorkerRegistry(world.project)
    assert registry["x"].name == "x"
    (world.project / "workers/x").rename(world.project / "out/x")
    (world.project / "workers/x").symlink_to("../out/x")
    with pytest.raises(WorkerFileError, match="a symlink leads to it through out/"):
        registry["x"]
