"""The table of commands, and `--help`. A command is a row here and the module of its name in `cli/commands`."""

COMPLETION_VARIABLE = "_LLM_DO_COMPLETE"
"""The environment variable with which the script of a shell asks click for completions."""

COMMANDS = {
    "run": "Run a worker or a function.",
    "chat": "Talk to a worker.",
    "new": "Start a project, or add a worker to one.",
    "list": "List the workers and functions of a project.",
    "show": "Show a worker as a model sees it.",
    "check": "Check all files of a project.",
    "rules": "Show the rules, and what they decide.",
    "trust": "Trust a project.",
    "models": "Fetch, list, remove and test models for this machine.",
    "schema": "Print the JSON Schema of worker files.",
    "doctor": "Check this machine: programs, keys, models.",
    "completion": "Print the completion script of a shell.",
}

HELP = """\
Usage: llm-do [OPTIONS] COMMAND [ARGS]...

  LLM workers and Python functions are the same kind of call.

Options:
  -C DIRECTORY  The project, or a folder in it, instead of the current folder.
  --version     Show the version and exit.
  -h, --help    Show this message and exit.

Commands:
""" + "".join(f"  {name:<10}  {text}\n" for name, text in COMMANDS.items())
"""The output of `llm-do --help`. A test compares it with that of click."""
