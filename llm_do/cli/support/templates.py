"""The files that `llm-do new` makes. What they say is true of the project that they make, and a test runs it."""

WORKER = """\
You are a helpful assistant. Answer in one short paragraph.

Change this text: it is all that the model is told. It then gets whatever the worker is run with.
"""

PROJECT = {
    ".gitignore": """\
__pycache__/
.env
""",
    "README.md": """\
# NAME

A project of llm-do: LLM workers and Python functions that call each other by name.

- `workers/helper.md` is a worker: its settings, and below them what the model is told.
- `tools.py` has functions. A worker that names one under `tools` can call it.
- `llm-do.toml` has the default model, the limits, the rules and the files of the project.

    llm-do list
    llm-do run count_words text='one two three'
    llm-do run helper 'How many words has a haiku?'
    llm-do check
""",
    "llm-do.toml": """\
# All of it is optional. Remove the # in front of what you need.

# The model of workers that name none. LLM_DO_MODEL stands before it. Without both, an API key in the environment, a
# model server that you agreed to or a local model decides: `llm-do doctor` tells which.
# model = "anthropic:claude-sonnet-5-5"

[limits]  # of each run, over all of its calls
max_requests = 50
# max_cost = 1.0  # US dollars; 5 without it, on the command line

# [tool_rules]  # what is allowed, asks or is denied, for every worker
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
"""The files of a new project. NAME stands for its name."""
