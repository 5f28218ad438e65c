"""What docs/migrating.md shows, with the files of the page itself; and what docs/comparison.md leans on."""

import json
import re
from pathlib import Path

import pytest
import yaml

from llm_do import ApprovalDecision, ApprovalRequest, Runtime, WorkerFileError, WorkerRegistry, run_worker
from tests.scripted import calls, says, scripted

ROOT = Path(__file__).parent.parent
PAGE = (ROOT / "docs" / "migrating.md").read_text()
FILES = dict(re.findall(r'^```\w+ title="([^"]+)"\n(.*?)^```$', PAGE, re.MULTILINE | re.DOTALL))
AGENTS = [name for name in FILES if name.startswith(".claude/agents/")]


def front_matter(text: str) -> tuple[dict[str, str], str]:
    _, settings, prompt = text.split("---\n", 2)
    return yaml.safe_load(settings), prompt


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """The folder after the migration, with something to write about."""
    for name, text in FILES.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    (tmp_path / "changes/private").mkdir(parents=True)
    (tmp_path / "notes").mkdir()
    (tmp_path / "changes/17.md").write_text("Tea is served faster.\n")
    (tmp_path / "changes/private/plan.md").write_text("The shop will be sold.\n")
    return tmp_path


def test_the_page_has_the_files_before_and_after() -> None:
    assert sorted(FILES) == [
        ".claude/agents/fact-checker.md",
        ".claude/agents/release-notes.md",
        ".claude/settings.json",
        "llm-do.toml",
        "workers/fact-checker.md",
        "workers/release-notes.md",
    ]


@pytest.mark.parametrize("name", AGENTS)
def test_an_agent_file_is_refused_as_it_is(tmp_path: Path, name: str) -> None:
    worker = tmp_path / "workers" / Path(name).name
    worker.parent.mkdir()
    worker.write_text(FILES[name])
    with pytest.raises(WorkerFileError, match=r"tools"):
        WorkerRegistry(tmp_path).definition(worker.stem)


@pytest.mark.parametrize("name", AGENTS)
def test_name_and_description_are_those_of_the_agent(project: Path, name: str) -> None:
    settings, _ = front_matter(FILES[name])
    definition = WorkerRegistry(project).definition(Path(name).stem)
    assert (definition.name, definition.description) == (settings["name"], settings["description"])


def test_rules_say_what_the_permissions_said(project: Path) -> None:
    """Each line of settings.json, as a call that it is about."""
    like = {
        "Edit(/notes/**)": ("write_file", {"path": "notes/NEXT.md", "content": "x"}),
        "Bash(wc *)": ("shell", {"command": "wc -w notes/NEXT.md"}),
        "Read(/changes/private/**)": ("read_file", {"path": "changes/private/plan.md"}),
        "Bash(rm *)": ("shell", {"command": "rm -r notes"}),
    }
    permissions = json.loads(FILES[".claude/settings.json"])["permissions"]
    runtime = Runtime(WorkerRegistry(project))
    said = {
        rule: runtime.why(*like.pop(rule), worker="release-notes").disposition
        for rules in permissions.values()
        for rule in rules
    }
    assert said == {rule: word for word, rules in permissions.items() for rule in rules}
    assert like == {}


def test_the_workers_do_what_the_agents_did(project: Path) -> None:
    """Both run on one script; what the permissions denied is denied, and what they said nothing about asks."""
    script = scripted(
        calls(("find_files", {"pattern": "changes/*.md"}), ("read_file", {"path": "changes/17.md"})),
        calls(("read_file", {"path": "changes/private/plan.md"})),
        calls(("fact-checker", {"input": "Tea is served faster."})),
        calls(("read_file", {"path": "changes/private/plan.md"})),  # the fact-checker tries
        says("That is so."),
        calls(("write_file", {"path": "notes/NEXT.md", "content": "Tea is served faster.\n"})),
        calls(("shell", {"command": "git log"})),
        says("The notes are written."),
    )
    asked: list[tuple[str, object]] = []

    class Nobody:
        def ask(self, request: ApprovalRequest) -> ApprovalDecision:
            asked.append((request.entry, request.arguments["command"]))
            return ApprovalDecision(approved=False)

    result = run_worker(
        registry=WorkerRegistry(project),
        worker="release-notes",
        input_data="Go.",
        cli_model=script,
        approval_callback=Nobody(),
    )
    assert result.output == "The notes are written."
    assert (project / "notes/NEXT.md").read_text() == "Tea is served faster.\n"
    assert asked == [("shell", "git log")]
    assert [(record.depth, record.name) for record in result.refusals] == [
        (1, "read_file"),
        (2, "read_file"),
        (1, "shell"),
    ]


def test_a_search_is_refused_only_in_a_folder_that_is_denied(project: Path) -> None:
    """Elsewhere, what is denied is left out of it."""
    runtime = Runtime(WorkerRegistry(project))
    for pattern, word in (("changes/*.md", "allow"), ("changes/**/*.md", "allow"), ("changes/private/*", "deny")):
        ruling = runtime.why("find_files", {"pattern": pattern}, worker="release-notes")
        assert ruling.disposition == word, pattern


@pytest.mark.parametrize(
    "settings",
    [
        "native: [web_search]",
        "native: [web_fetch]",
        "limits: {max_requests: 20}",
        "allow_workers: [other]",
        "toolsets: [{mcp: {command: [server]}, prefix: weather}]",
        "model: anthropic:claude-sonnet-5-5",
    ],
)
def test_what_the_table_names_can_be_written(tmp_path: Path, settings: str) -> None:
    (tmp_path / "workers").mkdir()
    (tmp_path / "workers/some.md").write_text(f"---\n{settings}\n---\nDo it.")
    assert WorkerRegistry(tmp_path).definition("some").model_dump(exclude_defaults=True)


def test_an_exception_to_a_denied_command(tmp_path: Path) -> None:
    """The one in the text: `aws` is denied, but for `aws s3 ls`."""
    rule = "{rule: deny, when: {command: aws **}, except: {command: aws s3 ls}}"
    assert rule in " ".join(PAGE.split())
    (tmp_path / "workers").mkdir()
    (tmp_path / "workers/some.yaml").write_text(
        f"toolsets: [shell]\nsandbox: {{paths: {{out: {{root: ./out}}}}}}\ntool_rules: {{shell: {rule}}}\n"
    )
    runtime = Runtime(WorkerRegistry(tmp_path))
    for command, word in (("aws s3 rm x", "deny"), ("aws s3 ls", "ask")):
        assert runtime.why("shell", {"command": command}, worker="some").disposition == word


def test_the_comparison_names_all_checks_and_no_others() -> None:
    """The checks run elsewhere, with the peers installed: here is whether they are those that the page names."""
    named = re.findall(r"`(fact_\w+)`", (ROOT / "docs" / "comparison.md").read_text())
    programs = (ROOT / "bench" / "comparison").glob("*.py")
    there = re.findall(r"^(?:async )?def (fact_\w+)", "\n".join(path.read_text() for path in programs), re.MULTILINE)
    assert set(named) == set(there)
