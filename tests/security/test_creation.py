"""Attacks by creating workers: a worker that a model made never has more than whoever made it."""

import hashlib
import json
from typing import Any

import pytest
from pydantic_ai.native_tools import NATIVE_TOOL_TYPES

from llm_do import WorkerCreationDefaults, WorkerFileError, WorkerRegistry, WorkerSpec, create_worker
from llm_do.policy.catalogue import CATALOGUE, RULE_NAMES, is_reserved
from llm_do.projects.registry import load_toolset
from llm_do.projects.worker_files import seal_of

from .world import CANARY, COUNTED, Person, World, call, calls_made, entry_of, together

BOSS = "tools: [look]\ntoolsets: [worker_create]\nallow_workers: ['*']\nsandbox: {paths: {in: {root: in}}}\n"
CREATE = {"name": "g", "instructions": "I am <g>."}
GREEDY = together(
    call("look", place="x"),
    call("wipe", place="x"),
    call("pay", amount=1),
    call("write_file", path="out/x", content="x"),
    call("write_file", path="in/x", content="x"),
    call("read_file", path="outside/secret.txt"),
    call("read_file", path="in/secret.txt"),
    call("shell", command="touch out/x"),
    call("strong", input="go"),
    call("worker_create", name="h", instructions="x"),
)
LOOKED = ["look", "x"]


@pytest.fixture
def boss(world: World) -> World:
    world.write("tools.py", COUNTED)
    world.worker("boss", BOSS)
    world.worker("strong", "tools: [wipe, pay]\ntool_rules: {wipe: allow}")
    return world


def run(world: World, *steps: Any, callback: Any = None, **others: Any) -> Any:
    return world.attack(*steps, worker="boss", callback=callback or Person(), **others)


CLAIMS = {
    "tools": "tools: [look, wipe, pay]\n",
    "a_worker_as_a_tool": "tools: [strong]\n",
    "rules": "tools: [wipe]\ntool_rules: {wipe: allow, sandbox.write: allow}\n",
    "a_writable_root": "sandbox: {paths: {in: {root: in, mode: rw}, out: {root: out, mode: rw}}}\n",
    "a_root_outside": "sandbox: {paths: {outside: {root: ../outside}, in: {root: ../outside}}}\n",
    "a_root_around": "sandbox: {paths: {outside: {root: .., mode: rw}, in: {root: ., mode: rw}}}\n",
    "a_root_by_dots": "sandbox: {paths: {in: {root: in/../../outside}}}\n",
    "a_shell": "toolsets: [shell]\nsandbox: {paths: {in: {root: in}}}\n",
    "a_toolset": "toolsets: ['tools.py:COUNTED']\n",
    "a_server": "toolsets: [{mcp: {command: [touch, '{top}/ran']}}]\n",
    "native_tools": "native: [web_search, code_execution]\n",
    "a_class": "output: tools.py:LOG\n",
    "code_elsewhere": "output: evil:X\n",
    "limits": "limits: {max_requests: 100000}\ntools: [wipe]\n",
    "settings": "model_settings: {temperature: 0, extra_body: {tools: [{type: x}]}, openai_native_tools: []}\n",
    "attachments": "attachment_policy: {max_attachments: 1000}\ntools: [wipe]\n",
}
CREATORS = {
    "the_boss": "created_by: boss\n",
    "nobody": "",
    "the_project": "created_by: (project)\n",
    "itself": "created_by: g\n",
    "someone_gone": "created_by: gone\n",
    "a_circle": "created_by: h\n",
    "someone_weak": "created_by: weak\n",
}
BELIEVABLE = ("the_boss", "the_project")


LIARS = [(claim, creator) for claim in CLAIMS for creator in CREATORS if claim == "rules" or creator in BELIEVABLE]


@pytest.mark.parametrize(("claim", "creator"), LIARS)
def test_a_generated_file_that_claims_more_gets_no_more(boss: World, claim: str, creator: str) -> None:
    boss.worker("weak")
    boss.write("workers/generated/h.yaml", "created_by: g\ntools: [wipe]\ninstructions: I am <h>.\n")
    (boss.project / "evil.py").write_text(f"open({str(boss.top / 'ran')!r}, 'w').close()\nclass X: pass\n")
    text = CREATORS[creator] + CLAIMS[claim].replace("{top}", str(boss.top)) + "instructions: I am <g>.\n"
    boss.write("workers/generated/g.yaml", text)
    go = call("worker_call", worker="g", input_data="go")
    with boss.untouched():
        outcome = run(boss, go, g=[GREEDY], strong=[call("wipe", place="x")])
    assert not outcome.told(CANARY)
    assert calls_made(boss) in ([], [LOOKED])
    made = entry_of(boss, "g")
    assert not made.capabilities and not made.toolsets
    assert set(made.model_settings or ()) <= {"temperature"}


@pytest.mark.parametrize(
    "wish",
    [
        {"tools": ["wipe"]},
        {"tools": ["look", "strong"]},
        {"tools": ["worker_create"]},
        {"tools": ["shell"]},
        {"tools": ["*"]},
        {"name": "../g"},
        {"name": "../../outside/g"},
        {"name": "/etc/g"},
        {"name": ".hidden"},
        {"name": "g\n"},
        {"name": "g\0"},
        {"name": "generated"},
        {"name": "worker"},
        {"name": ""},
        {"name": "g" * 65},
        {"name": "boss", "force": True},
        {"name": "strong", "force": True},
        {"name": "look", "force": True},
        {"name": "locked", "force": True},
        {"name": "others", "force": True},
        {"name": "projects", "force": True},
        {"name": "taken"},
        {"sandbox": {"paths": {"x": {"root": "/", "mode": "rw"}}}},
        {"model_settings": {"extra_headers": {"x-org": "other"}}},
        {"created_by": "(project)"},
        {"tool_rules": {"wipe": "allow"}},
    ],
    ids=lambda wish: ascii(wish)[:50],
)
def test_a_wish_that_goes_too_far_leaves_nothing_behind(boss: World, wish: dict[str, Any]) -> None:
    generated = "workers/generated"
    boss.write(f"{generated}/locked.yaml", "created_by: boss\nlocked: true\ninstructions: x\n")
    boss.write(f"{generated}/others.yaml", "created_by: strong\ninstructions: x\n")
    boss.write(f"{generated}/taken.yaml", "created_by: boss\ninstructions: x\n")
    create_worker(
        registry=WorkerRegistry(boss.project), spec=WorkerSpec(name="projects", instructions="x", tools=("wipe",))
    )
    with boss.untouched():
        run(boss, call("worker_create", **{**CREATE, **wish}))


@pytest.mark.parametrize(
    "instructions",
    [
        "x\ntools: [wipe]\n",
        "x\n---\ntools: [wipe]",
        "|\n  x\ntools: [wipe]",
        '"\ntools: [wipe]\n#',
        "x\n\ncreated_by: (project)",
        "\ufefftools: [wipe]",
        "x\u2028tools: [wipe]",
        "# comment\ntools: [wipe]",
        "{tools: [wipe]}",
        "  x\ntools: [wipe]",
        "\ttools: [wipe]",
        "x\r\ntools: [wipe]\r\n",
        "x\x00\ntools: [wipe]",
        "\x1b[2J\x85tools: [wipe]",
    ],
    ids=ascii,
)
@pytest.mark.parametrize("field", ["instructions", "description"])
def test_words_stay_words(boss: World, instructions: str, field: str) -> None:
    run(boss, call("worker_create", **{**CREATE, field: instructions}))
    registry = WorkerRegistry(boss.project)
    if "g" in registry.workers():
        made = registry.definition("g")
        assert (made.tools, made.created_by) == ((), "boss")
    assert set(registry.workers()) <= {"boss", "strong", "g"}


def test_what_was_not_approved_is_not_created(boss: World) -> None:
    for callback in (None, Person(False)):
        with boss.untouched():
            boss.attack(call("worker_create", **CREATE), worker="boss", callback=callback)


def test_a_worker_that_was_created_has_no_more_than_it_was_created_with(boss: World) -> None:
    person = Person(True)
    run(
        boss,
        call("worker_create", **CREATE, tools=["look"]),
        call("worker_call", worker="g", input_data="go"),
        g=[GREEDY],
        callback=person,
    )
    assert calls_made(boss) == [LOOKED]
    assert person.names == ["worker.create"]


def test_a_file_that_the_project_made_is_worth_nothing_once_it_was_edited(boss: World) -> None:
    create_worker(registry=WorkerRegistry(boss.project), spec=WorkerSpec(name="g", instructions="I am <g>."))
    path = boss.project / "workers/generated/g.yaml"
    path.write_text(path.read_text() + "tools: [wipe]\ntool_rules: {wipe: allow}\n")
    go = call("worker_call", worker="g", input_data="go")
    run(boss, go, g=[GREEDY])
    assert calls_made(boss) == []


def test_the_seal_of_one_worker_does_not_do_for_another(boss: World) -> None:
    registry = WorkerRegistry(boss.project)
    create_worker(registry=registry, spec=WorkerSpec(name="p", instructions="x", tools=("wipe",)))
    folder = boss.project / "workers/generated"
    (folder / "g.yaml").write_text("created_by: (project)\ntools: [wipe]\ninstructions: I am <g>.\n")
    for seal in (folder.joinpath(".p.seal").read_text(), hashlib.sha256(b"").hexdigest(), "", "*"):
        (folder / ".g.seal").write_text(seal)
        run(boss, call("worker_call", worker="g", input_data="go"), g=[GREEDY])
    assert calls_made(boss) == []


def test_a_model_that_replaces_a_sealed_worker_does_not_inherit_the_seal(boss: World) -> None:
    registry = WorkerRegistry(boss.project)
    create_worker(registry=registry, spec=WorkerSpec(name="g", instructions="x", tools=("wipe",)))
    sealed = (boss.project / "workers/generated/g.yaml").read_bytes()
    (boss.project / "workers/generated/g.yaml").unlink()
    run(boss, call("worker_create", **CREATE))
    (boss.project / "workers/generated/g.yaml").write_bytes(sealed)
    run(boss, call("worker_call", worker="g", input_data="go"), g=[GREEDY])
    assert calls_made(boss) == []


@pytest.mark.parametrize("change", ["narrowed", "deleted"])
def test_what_the_creator_loses_its_creature_loses(boss: World, change: str) -> None:
    boss.worker("maker", "tools: [look, pay]\ntoolsets: [worker_create]")
    boss.write("workers/generated/g.yaml", "created_by: maker\ntools: [look, pay]\ninstructions: I am <g>.\n")
    go, steps = call("worker_call", worker="g", input_data="go"), [call("pay", amount=1), call("look", place="x")]
    run(boss, go, g=steps)
    before = calls_made(boss)
    if change == "narrowed":
        boss.worker("maker", "tools: [look]\ntoolsets: [worker_create]")
    else:
        (boss.project / "workers/maker.yaml").unlink()
    run(boss, go, g=steps)
    after = calls_made(boss)[len(before) :]
    assert [name for name, *_ in before] == ["pay", "look"]
    assert [name for name, *_ in after] == (["look"] if change == "narrowed" else [])


def test_a_chain_of_creators_is_cut_at_each_link(boss: World) -> None:
    boss.worker("maker", "tools: [look]\ntoolsets: [worker_create]")
    head = "tools: [look, pay, wipe]\ntool_rules: {wipe: allow}\ntoolsets: [worker_create]\n"
    for name, creator in (("g", "h"), ("h", "i"), ("i", "maker")):
        boss.write(f"workers/generated/{name}.yaml", f"created_by: {creator}\n{head}instructions: I am <{name}>.\n")
    run(boss, call("worker_call", worker="g", input_data="go"), g=[GREEDY])
    assert calls_made(boss) == [LOOKED]


def test_a_generated_worker_does_not_call_whom_its_creator_may_not(boss: World) -> None:
    boss.worker("maker", "toolsets: [worker_create]\nallow_workers: [weak]")
    boss.worker("weak")
    boss.write("workers/generated/g.yaml", "created_by: maker\nallow_workers: ['*']\ninstructions: I am <g>.\n")
    go = call("worker_call", worker="strong", input_data="go")
    run(boss, call("worker_call", worker="g", input_data="go"), g=[go], strong=[call("wipe", place="x")])
    assert calls_made(boss) == []


def test_a_generated_worker_keeps_the_restrictions_of_its_creator(boss: World) -> None:
    boss.worker("maker", "tools: [pay]\ntoolsets: [worker_create]\ntool_rules: {pay: {rule: deny, when: {to: eve}}}")
    boss.write(
        "workers/generated/g.yaml",
        "created_by: maker\ntools: [pay]\ntool_rules: {pay: allow}\ninstructions: I am <g>.\n",
    )
    pays = [call("pay", amount=1, to="eve"), call("pay", amount=1, to="bob")]
    outcome = run(boss, call("worker_call", worker="g", input_data="go"), g=pays)
    assert outcome.error is None
    assert [to for _, _, to in calls_made(boss)] == ["bob"]


def test_defaults_for_new_workers_give_a_model_no_more_than_it_has(boss: World) -> None:
    from llm_do import Runtime

    defaults = WorkerCreationDefaults(
        default_sandbox={"paths": {"out": {"root": "out", "mode": "rw"}}},  # type: ignore[arg-type]
        default_tool_rules={"sandbox.write": "allow"},  # type: ignore[dict-item]
    )
    registry = WorkerRegistry(boss.project)
    steps = [call("worker_create", **CREATE), call("worker_call", worker="g", input_data="go")]
    model = boss.model({"boss": steps, "g": [GREEDY]})
    runtime = Runtime(registry, model=model, approval_callback=Person(), creation_defaults=defaults)
    with boss.untouched("workers/generated"):
        runtime.call_sync("boss", "go")


def test_a_name_that_a_creature_takes_from_a_deleted_worker_brings_no_authority(boss: World) -> None:
    """`g` was made by `maker`, which is gone. Whoever makes a new `maker` does not give `g` what the old one had."""
    boss.write("workers/generated/g.yaml", "created_by: maker\ntools: [look, pay, wipe]\ninstructions: I am <g>.\n")
    create = call("worker_create", name="maker", instructions="x", tools=["look"])
    run(boss, create, call("worker_call", worker="g", input_data="go"), g=[GREEDY])
    assert calls_made(boss) == [LOOKED]


@pytest.mark.parametrize("way", ["edited", "without_a_seal", "with_the_seal_of_another"])
def test_a_file_that_names_another_creator_has_no_more(boss: World, way: str) -> None:
    """Who created a worker is in its seal: a creator that the file names by itself gives nothing."""
    run(boss, call("worker_create", **CREATE, tools=["look"]))
    folder = boss.project / "workers/generated"
    file, seal = folder / "g.yaml", folder / ".g.seal"
    assert json.loads(seal.read_text())["created_by"] == "boss"
    claim = "created_by: strong\ntools: [look, wipe]\ntool_rules: {wipe: allow}\n"
    file.write_text(claim + "instructions: I am <g>.\n")
    if way == "without_a_seal":
        seal.unlink()
    elif way == "with_the_seal_of_another":
        create_worker(registry=WorkerRegistry(boss.project), spec=WorkerSpec(name="p", instructions="x"))
        seal.write_bytes((folder / ".p.seal").read_bytes())
    run(boss, call("worker_call", worker="g", input_data="go"), g=[GREEDY])
    assert calls_made(boss) == []


def test_a_creator_is_believed_by_the_seal_and_not_by_the_file(boss: World) -> None:
    """A seal that fits decides, whatever the file says."""
    boss.write("workers/generated/g.yaml", "created_by: strong\ntools: [look, wipe]\ninstructions: I am <g>.\n")
    file = boss.project / "workers/generated/g.yaml"
    (boss.project / "workers/generated/.g.seal").write_text(seal_of(file.read_bytes(), "boss"))
    run(boss, call("worker_call", worker="g", input_data="go"), g=[GREEDY])
    assert calls_made(boss) == [LOOKED]


RESERVED_NAMES = ["shell", "Shell", "SHELL", "worker_call", "read_file", "worker_create", "con", "NUL", "Com1", "lpt9"]
RESERVED_NAMES += ["files", "worker", "generated", "Generated", "web_search", "final_result", "sandbox"]


@pytest.mark.parametrize("name", RESERVED_NAMES)
def test_no_model_creates_a_worker_with_the_name_of_something_else(boss: World, name: str) -> None:
    """A rule, a person or a disk could take it for that."""
    with boss.untouched():
        run(boss, call("worker_create", name=name, instructions="x"))
    with pytest.raises(WorkerFileError, match="is reserved"):
        create_worker(registry=WorkerRegistry(boss.project), spec=WorkerSpec(name=name, instructions="x"))


@pytest.mark.parametrize("name", ["shell", "Shell", "worker_call", "read_file"])
def test_a_worker_file_with_the_name_of_a_tool_is_an_error(boss: World, name: str) -> None:
    """What a rule on `shell` says would be said of both."""
    boss.worker(name)
    with pytest.raises(WorkerFileError, match=f"workers/{name}.yaml: '{name}' is the name of a built-in tool"):
        WorkerRegistry(boss.project)[name]


def test_the_names_of_tools_that_are_reserved_are_those_of_the_tools() -> None:
    """None is missing."""
    found = [load_toolset(row.name) for row in CATALOGUE if row.name != "mcp"]
    ours = [tool for each in found for tool in (each if isinstance(each, tuple) else (each,))]
    assert {tool.name: tool.rule for tool in ours} == RULE_NAMES
    assert callable(load_toolset("mcp"))
    assert all(is_reserved(name) for name in NATIVE_TOOL_TYPES)


@pytest.mark.parametrize("name", ["BOSS", "Weak", "LOOK"])
def test_no_new_worker_has_a_name_that_differs_only_in_case(boss: World, name: str) -> None:
    """A person who is asked, and some disks, would take one for the other."""
    boss.worker("weak")
    with pytest.raises(WorkerFileError, match="only in case"):
        WorkerRegistry(boss.project).create(WorkerSpec(name=name, instructions="x"), created_by="boss", by_model=True)
