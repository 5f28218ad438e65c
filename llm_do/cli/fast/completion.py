"""The answer to TAB. A shell asks with every key, so what needs no more than names is answered without click."""

from __future__ import annotations

import os
import sys

from .help import COMMANDS

VARIABLE = "_LLM_DO_COMPLETE"
"""The environment variable with which the script of a shell asks; click reads the same one."""

WORDS: dict[tuple[str, ...], dict[str, str]] = {
    ("new",): {"project": "Start a project.", "worker": "Add a worker to the project."},
    ("rules",): {"why": "Say what is decided about a call.", "list": "List all rules."},
    ("models",): {
        "forget": "Take back the yes to model servers.",
        "list": "List the models that can be fetched.",
        "pull": "Fetch the weights of a model.",
        "rm": "Remove the weights of models.",
        "test": "Load a model and try it.",
    },
    ("completion",): {"bash": "", "zsh": "", "fish": ""},
}
"""What comes after a command that has no more than a few words. A test compares it with click."""

_NAMES: dict[tuple[str, ...], bool] = {
    ("run",): True,
    ("chat",): False,
    ("show",): True,
    ("rules", "why"): False,
    ("rules", "list"): False,
}
"""After which words the name of a worker comes, and whether a function will do."""

MODELS = ("smollm2-135m", "qwen2.5-0.5b", "qwen2.5-1.5b")
"""The names of the catalogue, which imports pydantic. A test compares them."""

_SESSION = "--model --approve-all --strict --max-cost --max-tokens --max-depth --timeout --quiet --help"
OPTIONS = {
    "": "--version --help",
    "run": f"--input-json --attach --json --events --output --usage --allow-refusals --verbose {_SESSION}",
    "chat": f"--attach --plain {_SESSION}",
    "new": "--help",
    "new project": "--dir --help",
    "new worker": "--description --tool --model --yaml --help",
    "list": "--json --help",
    "show": "--json --help",
    "check": "--json --strict --help",
    "rules": "--help",
    "rules why": "--args-json --json --help",
    "rules list": "--json --help",
    "trust": "--list --remove --help",
    "models": "--help",
    "models forget": "--help",
    "models list": "--json --help",
    "models pull": "--help",
    "models rm": "--help",
    "models test": "--help",
    "schema": "--output --help",
    "doctor": "--json --help",
    "completion": "--help",
}
"""The long options of each command. A test compares them with click."""

Answer = list[tuple[str, str, str]]
"""Kind (`plain` or `file`), text and help of each word that can stand there."""


def complete() -> None:
    """Print what can stand where the cursor is. Whatever is wrong, a shell that completes must not be disturbed."""
    shell, _, instruction = os.environ[VARIABLE].partition("_")
    try:
        found = _answer(*_words(shell)) if instruction == "complete" else None
        if found is None:
            _ask_click()
        else:
            sys.stdout.write("".join(f"{_formatted(shell, *item)}\n" for item in found))
    except (Exception, SystemExit, KeyboardInterrupt):
        return


def _words(shell: str) -> tuple[list[str], str]:
    """The words before the cursor, and the one that it is in."""
    text, at = os.environ["COMP_WORDS"], os.environ["COMP_CWORD"]
    words = _split(text)
    if shell == "fish":  # which tells the word itself, and has it among the words as well
        word = (_split(at) or [""])[0]
        before = words[1:]
        return (before[:-1] if word and before[-1:] == [word] else before), word
    number = int(at)
    return words[1:number], words[number] if number < len(words) else ""


def _split(text: str) -> list[str]:
    if not any(char in text for char in "\\'\""):
        return text.split()
    import shlex  # noqa: PLC0415 - for quotes, which are rare

    words, lexer = list[str](), shlex.shlex(text, posix=True)
    lexer.whitespace_split, lexer.commenters = True, ""
    try:
        words.extend(lexer)
    except ValueError:  # a quote that is not closed yet
        words.append(lexer.token)
    return words


def _answer(before: list[str], word: str) -> Answer | None:
    """What can stand there, or `None` where only click knows."""
    folder = "."
    while before[:1] == ["-C"]:
        if len(before) == 1:
            return None
        folder, before = before[1], before[2:]
    if word.startswith("-"):
        command = " ".join(before[:2]) if " ".join(before[:2]) in OPTIONS else " ".join(before[:1])
        return _plain(dict.fromkeys(OPTIONS.get(command, "").split(), ""), word)
    if not before:
        return _plain(COMMANDS, word)
    if before[0].startswith("-"):
        return None
    if before[0] not in COMMANDS:
        return []
    if (words := WORDS.get(tuple(before))) is not None:
        return _plain(words, word)
    if before[0] == "models":
        return _models(before[1], before[2:], word)
    if (functions := _NAMES.get(tuple(before))) is None:
        return None
    return _workers(folder, word, functions)


def _workers(folder: str, word: str, functions: bool) -> Answer:
    from pathlib import Path  # noqa: PLC0415

    from ...projects.discovery import find_root, names_in  # noqa: PLC0415 - most keys need no files

    root = find_root(Path(folder).expanduser().absolute())
    names = [] if root is None or "/" in word else names_in(root, functions=functions)
    return _plain(dict.fromkeys(names, ""), word) or [("file", word, "")]


def _models(command: str, given: list[str], word: str) -> Answer:
    if command not in ("pull", "rm", "test") or (given and command != "rm"):
        return []
    left = dict.fromkeys((name for name in MODELS if name not in given), "")
    return _plain(left, word) or ([("file", word, "")] if command == "test" else [])


def _plain(words: dict[str, str], word: str) -> Answer:
    return [("plain", text, help_text) for text, help_text in words.items() if text.startswith(word)]


def _formatted(shell: str, kind: str, text: str, help_text: str) -> str:
    """An answer as click's script for that shell reads it."""
    if shell == "zsh":
        return f"{kind}\n{text}\n{help_text or '_'}"
    return f"{kind},{text}" + (f"\t{help_text}" if shell == "fish" and help_text else "")


def _ask_click() -> None:
    from ..main import program  # noqa: PLC0415 - click is most of the time that this takes

    program.main(standalone_mode=False, prog_name="llm-do")
