"""The commands there are, each in the module of its name in `cli/commands`. Only that one is imported."""

COMPLETION_VARIABLE = "_LLM_DO_COMPLETE"
"""The environment variable with which the script of a shell asks click for completions."""

COMMANDS = {
    "run": "Run a worker or a function.",
    "chat": "Talk with a worker.",
    "new": "Start a project, or add a worker to one.",
    "list": "List the workers and functions of a project.",
    "show": "Show what a model will see of a worker.",
    "check": "Check all files of a project.",
    "rules": "Say what the rules decide, and why.",
    "trust": "Trust a project.",
    "models": "Fetch, list, remove and try models of this machine.",
    "schema": "Print the JSON Schema of worker files.",
    "doctor": "Check this machine: programs, keys, models.",
    "completion": "Print the completion script of a shell.",
}

HELP = """\
Usage: llm-do [OPTIONS] COMMAND [ARGS]...

  LLM workers and Python functions are the same kind of call.

Options:
  -C DIRECTORY  The project, or a folder in it, in place of this one.
  --version     Show the version and exit.
  -h, --help    Show this message and exit.

Commands:
""" + "".join(f"  {name:<10}  {text}\n" for name, text in COMMANDS.items())
"""What `llm-do --help` prints. A test compares it with what click would print."""
