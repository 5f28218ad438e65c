"""Attacks by paths: whatever a model writes, it stays in its roots, and out of what the project is made of."""

import os
from pathlib import Path
from typing import Any

import pytest

from .world import CANARY, Person, World, call, together

ROOTS = "sandbox: {paths: {in: {root: in}, out: {root: out, mode: rw}}}\n"
ALLOW = "tool_rules: {sandbox.write: allow}\n"

ESCAPES = {
    "dots": "out/../../outside/secret.txt",
    "dots_behind_a_folder": "out/new/../../../outside/secret.txt",
    "dots_as_the_root": "../outside/secret.txt",
    "absolute": "{outside}/secret.txt",
    "absolute_behind_a_root": "out/{outside}/secret.txt",
    "absolute_behind_a_double_slash": "out//{outside}/secret.txt",
    "home": "out/~/secret.txt",
    "home_of_root": "~root/secret.txt",
    "home_as_the_root": "~/secret.txt",
    "link_to_a_file": "out/file_link",
    "link_to_a_folder": "out/folder_link/secret.txt",
    "link_to_a_link": "out/link_link",
    "link_through_proc": "out/proc_link/cwd/secret.txt",
    "link_loop": "out/loop/loop/loop",
    "hard_link": "out/hard.txt",
    "pipe": "out/pipe",
    "socket": "out/socket",
    "proc_of_self": "/proc/self/root{outside}/secret.txt",
    "proc_behind_a_root": "out/../../../../proc/self/environ",
    "nul": "out/a.txt\0../../outside/secret.txt",
    "line_break": "out/a.txt\n../../outside/secret.txt",
    "backslashes": "out\\..\\..\\outside\\secret.txt",
    "backslashes_in_a_root": "out/..\\..\\outside\\secret.txt",
    "percent": "out/%2e%2e/%2e%2e/outside/secret.txt",
    "overlong_dots": "out/\u2025/\u2025/outside/secret.txt",
    "wide_dots": "out/\uff0e\uff0e/\uff0e\uff0e/outside/secret.txt",
    "wide_slashes": "out/..\uff0f..\uff0foutside\uff0fsecret.txt",
    "turned_around": "out/\u202e/../../outside/secret.txt",
    "dots_and_spaces": "out/.. /.. /outside/secret.txt",
    "three_dots": "out/.../.../outside/secret.txt",
    "url": "file://{outside}/secret.txt",
    "very_long": "out/" + "../" * 3000 + "{outside}/secret.txt",
    "very_deep": "out/" + "d/" * 500 + "x",
    "very_long_name": "out/" + "n" * 5000,
    "nothing": "",
    "a_slash": "/",
    "a_dot": ".",
    "name_of_a_temporary_file": "out/.llm-do-x",
}


@pytest.fixture
def trapped(world: World) -> World:
    """A root full of things that lead out of it."""
    out, outside = world.project / "out", world.outside
    (out / "file_link").symlink_to(world.secret)
    (out / "folder_link").symlink_to(outside)
    (out / "link_link").symlink_to("file_link")
    (out / "proc_link").symlink_to("/proc/self")
    (out / "loop").symlink_to("loop")
    os.link(world.secret, out / "hard.txt")
    os.mkfifo(out / "pipe")
    world.listen("unix", out / "socket")
    world.worker("a", ROOTS + ALLOW)
    return world


@pytest.mark.parametrize("escape", ESCAPES)
def test_no_path_reads_writes_edits_moves_or_deletes_what_is_outside(trapped: World, escape: str) -> None:
    path = ESCAPES[escape].format(outside=trapped.outside)
    with trapped.untouched("out"):
        outcome = trapped.attack(
            call("read_file", path=path),
            call("list_files", path=path),
            call("list_files", path=path.rpartition("/")[0]),
            call("edit_file", path=path, old="canary", new="gone"),
            call("move_file", source=path, destination="out/stolen.txt"),
            call("read_file", path="out/stolen.txt"),
            call("edit_file", path="out/stolen.txt", old="canary", new="gone"),
            call("move_file", source="out/stolen.txt", destination=path),
            call("search_files", text="canary", pattern=path),
            call("find_files", pattern=path),
            call("write_file", path=path, content="written"),
            call("write_file", path=f"{path}/new.txt", content="written"),
            call("delete_file", path=path),
        )
    assert not outcome.told(CANARY)
    assert outcome.requests > 1


WAYS_IN = {
    "a_worker": "all/workers/a.yaml",
    "a_new_worker": "all/workers/new.yaml",
    "a_generated_worker": "all/workers/generated/new.yaml",
    "a_seal": "all/workers/generated/.new.seal",
    "a_worker_in_capitals": "all/WORKERS/new.yaml",
    "the_history": "all/.git/config",
    "a_hook": "all/.git/hooks/pre-commit",
    "the_history_in_capitals": "all/.GIT/config",
    "the_configuration": "all/llm-do.toml",
    "the_configuration_in_capitals": "all/LLM-DO.TOML",
    "the_functions": "all/tools.py",
    "a_module": "all/other.py",
}


@pytest.mark.parametrize("way", WAYS_IN)
def test_a_root_around_the_project_does_not_reach_what_the_project_is_made_of(world: World, way: str) -> None:
    for path in ("workers/generated/old.yaml", ".git/config", ".git/hooks/x", "llm-do.toml", "tools.py", "other.py"):
        world.write(path, f"# {CANARY}\n")
    world.write("workers/generated/old.yaml", f"instructions: {CANARY}\n")
    world.worker("a", "sandbox: {paths: {all: {root: .}, out: {root: out, mode: rw}}}\n" + ALLOW)
    with world.untouched("out"):
        outcome = world.attack(
            call("read_file", path=WAYS_IN[way]),
            call("write_file", path=WAYS_IN[way], content="x"),
            call("move_file", source=WAYS_IN[way], destination="out/x"),
            call("delete_file", path=WAYS_IN[way]),
            call("search_files", text="canary-", pattern="all/**"),
            call("search_files", text="canary-", pattern=WAYS_IN[way]),
        )
    assert not outcome.told(CANARY)


@pytest.mark.parametrize("root", [".", "..", "/", "{project}", "in/..", "{link}"])
def test_a_writable_root_around_the_project_runs_nothing(world: World, root: str) -> None:
    (world.top / "link").symlink_to(world.project)
    written = root.format(project=world.project, link=world.top / "link")
    world.worker("a", f"sandbox: {{paths: {{all: {{root: '{written}', mode: rw}}}}}}\n" + ALLOW)
    with world.untouched():
        world.attack(
            call("write_file", path="all/tools.py", content="x"),
            call("write_file", path="all/project/tools.py", content="x"),
            call("write_file", path="all/new.txt", content="x"),
        )


@pytest.mark.parametrize("root", ["workers", "workers/generated", ".git", "./in/../workers", "link"])
def test_a_root_on_what_the_project_is_made_of_gives_nothing(world: World, root: str) -> None:
    world.write(".git/config", CANARY)
    world.write("workers/generated/x.yaml", f"instructions: {CANARY}\n")
    (world.project / "link").symlink_to("workers")
    world.worker("a", f"sandbox: {{paths: {{w: {{root: '{root}', mode: rw}}}}}}\n" + ALLOW)
    with world.untouched():
        outcome = world.attack(
            call("read_file", path="w/config"),
            call("read_file", path="w/x.yaml"),
            call("read_file", path="w/generated/x.yaml"),
            call("search_files", text="canary-", pattern="w/**"),
            call("write_file", path="w/new.yaml", content="instructions: x"),
        )
    assert not outcome.told(CANARY)


@pytest.mark.parametrize("tool", ["write_file", "edit_file", "move_file", "delete_file"])
def test_a_read_only_root_stays_as_it_is(world: World, tool: str) -> None:
    world.worker("a", ROOTS + ALLOW)
    arguments: dict[str, dict[str, Any]] = {
        "write_file": {"path": "in/plain.txt", "content": "x"},
        "edit_file": {"path": "in/plain.txt", "old": "plain", "new": "x"},
        "move_file": {"source": "in/plain.txt", "destination": "out/plain.txt"},
        "delete_file": {"path": "in/plain.txt"},
    }
    with world.untouched():
        world.attack(call(tool, **arguments[tool]))


def test_nothing_is_moved_into_a_read_only_root_or_over_another_file(world: World) -> None:
    world.write("out/mine.txt", "mine")
    world.write("out/theirs.txt", "theirs")
    world.worker("a", ROOTS + ALLOW)
    with world.untouched():
        world.attack(
            call("move_file", source="out/mine.txt", destination="in/mine.txt"),
            call("move_file", source="out/mine.txt", destination="in/plain.txt"),
            call("move_file", source="out/mine.txt", destination="out/theirs.txt"),
        )


def test_one_folder_under_two_names_is_as_strict_as_each_name(world: World) -> None:
    world.worker("a", "sandbox: {paths: {ro: {root: out}, rw: {root: ./out/, mode: rw, suffixes: [.txt]}}}\n" + ALLOW)
    world.attack(
        call("write_file", path="ro/a.txt", content="x"),
        call("write_file", path="rw/a.sh", content="x"),
        call("move_file", source="rw/b.txt", destination="ro/c.txt"),
        call("write_file", path="rw/b.txt", content="x"),
        call("move_file", source="rw/b.txt", destination="ro/c.txt"),
        call("move_file", source="rw/b.txt", destination="rw/c.sh"),
        call("delete_file", path="ro/b.txt"),
    )
    assert [path.name for path in (world.project / "out").iterdir()] == ["b.txt"]


@pytest.mark.parametrize(
    "name",
    [
        "a.exe",
        "a.txt.exe",
        "a.txt ",
        "a.txt.",
        "a.txt/",
        "a.txt\0.exe",
        "a.tx\u0131",
        "a",
        ".exe",
        "a.exe\n.txt",
        "txt",
    ],
)
def test_no_trick_with_a_suffix_makes_another_kind_of_file(world: World, name: str) -> None:
    world.write("out/ok.txt", "ok")
    world.write("out/hidden.exe", CANARY)
    world.worker("a", "sandbox: {paths: {out: {root: out, mode: rw, suffixes: [.txt]}}}\n" + ALLOW)
    outcome = world.attack(
        call("write_file", path=f"out/{name}", content="x"),
        call("move_file", source="out/ok.txt", destination=f"out/{name}"),
        call("read_file", path="out/hidden.exe"),
        call("search_files", text="canary-", pattern="out/**"),
        call("move_file", source="out/hidden.exe", destination="out/hidden.txt"),
        call("read_file", path="out/hidden.txt"),
    )
    assert not outcome.told(CANARY)
    assert all(path.name.endswith(".txt") or path.name == "hidden.exe" for path in (world.project / "out").iterdir())


def test_no_trick_with_sizes_makes_or_reads_a_large_file(world: World) -> None:
    world.write("out/large.bin", b"x" * 2000)
    world.write("out/small.txt", "b" * 60)
    world.write("in/large.txt", "x" * 2000)
    roots = "sandbox: {paths: {in: {root: in}, out: {root: out, mode: rw, max_file_bytes: 100}}}\n"
    world.worker("a", roots + ALLOW)
    outcome = world.attack(
        call("write_file", path="out/a.txt", content="\u20ac" * 34),  # 34 characters, 102 bytes
        call("edit_file", path="out/small.txt", old="b" * 60, new="c" * 101),
        call("read_file", path="out/large.bin"),
        call("move_file", source="out/large.bin", destination="out/moved.bin"),
    )
    assert not outcome.told("x" * 101)
    files = {path.name: path.stat().st_size for path in (world.project / "out").iterdir()}
    assert files == {"large.bin": 2000, "small.txt": 60}


@pytest.mark.parametrize(
    "spell",
    [
        call("read_file", path="in/secret/key.txt"),
        call("read_file", path="in/./secret//key.txt"),
        call("read_file", path="again/key.txt"),
        call("read_file", path="around/in/secret/key.txt"),
        call("search_files", text="canary-", pattern="in/**"),
        call("search_files", text="canary-", pattern="in/secret/*"),
        call("search_files", text="canary-", pattern="in/s*/k?y.txt"),
        call("search_files", text="canary-", pattern="in/secre[t]/key.txt"),
        call("search_files", text="canary-", pattern="in"),
        call("search_files", text="canary-", pattern="again"),
        call("search_files", text="canary-", pattern="around/**/key.txt"),
        call("find_files", pattern="in/secret/**"),
        call("list_files", path="in/secret"),
        call("list_files", path="again"),
    ],
    ids=lambda response: str(list(response.parts[0].args.values())),
)
def test_a_denied_folder_is_not_read_by_any_spelling_or_other_root(world: World, spell: Any) -> None:
    world.write("in/secret/key.txt", CANARY)
    world.worker(
        "a",
        "sandbox: {paths: {in: {root: in}, again: {root: in/secret}, around: {root: .}}}\n"
        "tool_rules:\n  sandbox.read: {rule: deny, when: {path: in/secret/**}}",
    )
    person = Person()
    outcome = world.attack(spell, callback=person)
    assert not outcome.told(CANARY)
    assert not person.asked


def test_a_deny_holds_for_a_worker_below_whose_root_has_another_name(world: World) -> None:
    world.write("out/keep/a.txt", CANARY)
    world.worker(
        "a",
        "sandbox: {paths: {out: {root: out, mode: rw}}}\nallow_workers: [b]\ntools: [b]\ntool_rules:\n"
        "  sandbox.read: {rule: deny, when: {path: out/keep/**}}\n"
        "  sandbox.write: {rule: deny, when: {path: out/keep/**}}",
    )
    world.worker("b", "sandbox: {paths: {mine: {root: out/keep, mode: rw}, all: {root: out, mode: rw}}}\n" + ALLOW)
    steps = [
        call("read_file", path="mine/a.txt"),
        call("write_file", path="mine/a.txt", content="x"),
        call("write_file", path="mine/new.txt", content="x"),
        call("move_file", source="mine/a.txt", destination="all/a.txt"),
        call("move_file", source="all/keep/a.txt", destination="all/a.txt"),
        call("delete_file", path="all/keep/a.txt"),
        call("read_file", path="all/a.txt"),
        call("search_files", text="canary-", pattern="all/**"),
    ]
    with world.untouched():
        for way in (call("worker_call", worker="b", input_data="go"), call("b", input="go")):
            outcome = world.attack(way, b=steps, callback=Person())
            assert not outcome.told(CANARY)
            assert outcome.requests > len(steps)


def test_a_search_of_more_files_than_can_be_judged_does_not_run(world: World) -> None:
    for number in range(2005):
        (world.project / "in" / f"f{number:05}.txt").write_text("x")
    world.write("in/z/key.txt", CANARY)
    rule = "tool_rules:\n  sandbox.read: {rule: deny, when: {path: in/z/**}}"
    world.worker("a", "sandbox: {paths: {in: {root: in}}}\n" + rule)
    outcome = world.attack(call("search_files", text="canary-", pattern="in/**"))
    assert not outcome.told(CANARY)


def test_a_hundred_calls_at_once_change_one_file_one_after_the_other(world: World) -> None:
    world.write("out/n.txt", "".join(f"<{number}>" for number in range(100)))
    world.worker("a", ROOTS + ALLOW)
    edits = [call("edit_file", path="out/n.txt", old=f"<{number}>", new=".") for number in range(100)]
    with world.untouched("out"):
        world.attack(together(*edits))
    assert (world.project / "out/n.txt").read_text() == "." * 100
    assert [path.name for path in (world.project / "out").iterdir()] == ["n.txt"]


# -- code, attachments, moves, symlinks ------------------------------------------------------------------


def test_a_model_cannot_write_the_functions_of_the_project_as_a_package(world: World) -> None:
    world.worker("a", "sandbox: {paths: {tools: {root: tools, mode: rw}}}\n" + ALLOW)
    code = f"open({str(world.top / 'ran')!r}, 'w').close()\n"
    world.attack(call("write_file", path="tools/__init__.py", content=code))
    world.attack()
    assert not (world.top / "ran").exists()


@pytest.mark.parametrize("module", ["lib/helper.py", "speedups/__init__.py"])
def test_a_model_cannot_write_a_module_that_the_project_imports(world: World, module: str) -> None:
    world.write("lib/helper.py", "")
    world.write(
        "tools.py",
        "from llm_do import entry\nimport lib.helper\n@entry\ndef t() -> int:\n"
        "    try:\n        import speedups\n    except ImportError:\n        return 0\n    return 1\n",
    )
    folder, _, name = module.partition("/")
    world.worker("a", f"tools: [t]\nsandbox: {{paths: {{x: {{root: {folder}, mode: rw}}}}}}\n" + ALLOW)
    code = f"open({str(world.top / 'ran')!r}, 'w').close()\n"
    world.attack(call("write_file", path=f"x/{name}", content=code), call("t"))
    world.attack(call("t"))
    assert not (world.top / "ran").exists()


def test_a_denied_file_cannot_be_attached_to_a_call(world: World) -> None:
    world.write("in/secret/key.txt", CANARY)
    world.worker(
        "a",
        "sandbox: {paths: {in: {root: in}}}\nallow_workers: [b]\n"
        "tool_rules:\n  sandbox.read: {rule: deny, when: {path: in/secret/**}}",
    )
    world.worker("b")
    outcome = world.attack(call("worker_call", worker="b", input_data="x", attachments=["in/secret/key.txt"]))
    assert not outcome.told(CANARY)


def test_a_file_that_may_not_be_read_cannot_be_moved_to_where_it_may(world: World) -> None:
    world.write("out/secret/key.txt", CANARY)
    world.worker(
        "a",
        "sandbox: {paths: {out: {root: out, mode: rw}}}\ntool_rules:\n  sandbox.write: allow\n"
        "  sandbox.read: {rule: deny, when: {path: out/secret/**}}",
    )
    outcome = world.attack(
        call("move_file", source="out/secret/key.txt", destination="out/key.txt"), call("read_file", path="out/key.txt")
    )
    assert not outcome.told(CANARY)


@pytest.mark.parametrize("link", ["the_project", "a_folder"])
def test_a_deny_by_a_path_of_the_project_holds_behind_a_symlink(world: World, link: str) -> None:
    if link == "the_project":
        world.write("data/secret/key.txt", CANARY)
    else:
        (world.top / "disk" / "secret").mkdir(parents=True)
        (world.top / "disk/secret/key.txt").write_text(CANARY)
        (world.project / "data").symlink_to(world.top / "disk")
    world.worker(
        "a",
        "sandbox: {paths: {data: {root: data}}}\n"
        "tool_rules:\n  sandbox.read: {rule: deny, when: {path: ./data/secret/**}}",
    )
    if link == "the_project":
        there = world.project
        world.project = Path(world.top, "here")
        world.project.symlink_to(there)
    outcome = world.attack(call("read_file", path="data/secret/key.txt"))
    assert not outcome.told(CANARY)


def test_a_refused_search_does_not_tell_the_names_of_denied_files(world: World) -> None:
    world.write(f"in/secret/{CANARY}.txt", "x")
    world.worker(
        "a",
        "sandbox: {paths: {in: {root: in}}}\ntool_rules:\n  sandbox.read: {rule: deny, when: {path: in/secret/**}}",
    )
    outcome = world.attack(call("find_files", pattern="in/**"), call("search_files", text="x", pattern="in/**"))
    assert not outcome.told(CANARY)
