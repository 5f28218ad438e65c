"""The files that `llm-do new` writes. A test runs the project that they make."""

WORKER = """\
You are a helpful assistant. Answer in one short paragraph.

Replace this text with your instructions. The model gets them first, and then the input of the run.
"""

PROJECT = {
    ".gitignore": """\
__pycache__/
.env
""",
    "README.md": """\
# NAME

A project of llm-do: LLM workers and Python functions that call each other by name.

- `workers/helper.md` is a worker: its settings, and below them its instructions.
- `tools.py` has functions. A worker that names one under `tools` can call it.
- `llm-do.toml` has the default model, the limits, the rules and the files of the project.

    llm-do list
    llm-do run count_words text='one two three'
    llm-do run helper 'How many words has a haiku?'
    llm-do check
""",
    "llm-do.toml": """\
# All settings are optional. Remove the # in front of those that you need.

# The model for workers that name none. LLM_DO_MODEL overrides it. Without both, an API key in the environment, a
# model server that you agreed to use or a local model decides: see `llm-do doctor`.
# model = "anthropic:claude-sonnet-5-5"

[limits]  # for each run, over all of its calls
max_requests = 50
# max_cost = 1.0  # US dollars; by default 5 on the command line

# [tool_rules]  # allow, ask or deny, for every worker
# count_words = "ask"

# [sandbox.paths]  # folders that workers may use; `root` is relative to this file
# notes = { root = "notes", mode = "rw", suffixes = [".md"] }
""",
    "tools.py": '''\
"""Functions of the project. Workers call them as tools, and `llm-do run` runs them by name."""

from llm_do import entry


@entry
def count_words(text: str) -> int:
    """Count the words of a text."""
    return len(text.split())
''',
    "workers/helper.md": """\
---
description: Answers questions, and counts words exactly.
tools: [count_words]
---
Answer the question that you are given, in one short paragraph. When it is about a number of words, write the text
first and count its words with the tool: never guess.
""",
}
"""The files of a new project, in which NAME stands for its name."""
