"""Command lines, parsed without a shell: words, quotes, `|` and `&&`, and nothing else.

Exactly the words that a rule allows must run. So a line is parsed here, once, and its programs are started with these
words. If only a shell can parse a line, it is left as it is, with the reason, and a rule for shells decides.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from posixpath import basename
from typing import NoReturn

from ...errors import CommandError

MAX_CHARACTERS = 20_000
MAX_WORDS = 1000


def word_set(text: str) -> frozenset[str]:
    return frozenset(text.split())


SHELLS = word_set(
    "sh bash rbash dash zsh rzsh ksh rksh mksh lksh ash posh yash fish csh tcsh pwsh elvish nu xonsh busybox toybox"
)
# They pass their arguments to a shell, or start one if they have none.
_STARTERS = word_set("su sudo doas runuser chroot unshare nsenter watch script parallel")
WRAPPERS = _STARTERS | word_set(
    "env timeout nice nohup setsid stdbuf unbuffer xargs ionice taskset find command chrt flock setpriv prlimit choom "
    "uclampset numactl setarch linux32 linux64 i386 x86_64 time strace ltrace gdb valgrind perf ssh ssh-agent "
    "dbus-run-session dbus-launch fakeroot fakechroot proot systemd-run start-stop-daemon catchsegv daemonize expect"
)
"""Programs that run another one, which their arguments name."""
_BUILTINS = word_set(
    "cd export source . eval exec alias set unset trap ulimit umask wait jobs bg fg read readonly local shift return "
    "exit break continue declare typeset unalias hash type getopts builtin enable shopt pushd popd dirs disown let :"
)
_KEYWORDS = word_set("if then else elif fi for while until do done case esac in function select time coproc")
_LOADER = re.compile(r"ld[-.].*so[.0-9]*|ld")
_EXECUTES = frozenset(("-exec", "-execdir", "-ok", "-okdir"))

# Control characters, marks of text direction, surrogates: with them, a person would not see what they approve.
_UNREADABLE = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")
_BLANK = re.compile(r"[ \t]*")
# Linear: runs are possessive, and alternatives start differently. A `#` or `~` inside a word is text.
_DOUBLE = re.compile(r'"(?:[^"\\$`]++|\\[^\n])*')
_WORD = re.compile(
    r"""(?:[^ \t\n'"\\|&;<>()$`{}*?\[\]!~#]++|'[^']*+'|"""
    + _DOUBLE.pattern
    + r""""|\\[^\n]|(?<=[^ \t\n|&])\#|(?<=[^ \t\n|&=:])~)*"""
)
_QUOTED = re.compile(r"""'([^']*+)'|"((?:[^"\\]++|\\.)*)"|\\(.)""", re.DOTALL)
_ESCAPED = re.compile(r'\\([$`"\\])')
_SPLITS = re.compile(r"-[A-Za-z0]*S|--s")
_ASSIGNMENT = re.compile(r"[A-Za-z_][A-Za-z0-9_]*\+?=")


@dataclass(frozen=True, slots=True)
class Command:
    """A parsed command line."""

    text: str
    pipelines: tuple[tuple[tuple[str, ...], ...], ...]
    """Programs with their arguments, connected by pipes. Each pipeline starts if the one before it succeeded."""
    needs_shell: str | None = None
    """Why only a shell can run it. Then its programs are unknown."""


class _NeedsShell(Exception):
    """Only a shell can parse a line, for this reason."""


def parse(text: str) -> Command:
    """Parse a command line. Raise `CommandError` if no shell could run it either."""
    if len(text) > MAX_CHARACTERS:
        raise CommandError(
            f"The command has {len(text)} characters, and {MAX_CHARACTERS} are allowed. "
            "Write a long text to a file and name the file."
        )
    if found := _UNREADABLE.search(text):
        raise CommandError(
            f"The command has the character {found[0]!r} at {found.start()}. "
            "Write it without control characters and marks of direction."
        )
    line = text.lstrip(" \t\n").rstrip("\n")
    if not line.strip(" \t"):
        raise CommandError("The command is empty. Write a program and its arguments, such as: ls -l")
    try:
        pipelines = _parse_line(line)
        for argv in (argv for pipeline in pipelines for argv in pipeline):
            _check_program(argv)
    except _NeedsShell as exc:
        return Command(text, (), str(exc))
    return Command(text, pipelines)


def is_wrapper(program: str) -> bool:
    name = basename(program)
    return name in WRAPPERS or _LOADER.fullmatch(name) is not None


def unwrap(argv: tuple[str, ...]) -> Iterator[tuple[str, ...]]:
    """Yield the commands that a command may run, each with the bare name of its program.

    `timeout 5 /bin/rm x` is `timeout ...`, and perhaps `5 ...`, `rm x` or `x`: only the wrapper knows which argument is
    the program. Rules that deny are applied to all of them.
    """
    if not argv:
        return
    yield (basename(argv[0]),) + argv[1:]  # noqa: RUF005 - faster
    if is_wrapper(argv[0]):
        for i in range(1, len(argv)):
            yield (basename(argv[i]),) + argv[i + 1 :]  # noqa: RUF005


def _parse_line(line: str) -> tuple[tuple[tuple[str, ...], ...], ...]:
    pipelines: list[list[list[str]]] = [[[]]]
    at = count = 0
    while (at := _match_end(_BLANK.match(line, at))) < len(line):
        pipeline = pipelines[-1]
        if line[at] in "|&":
            two = line[at : at + 2]
            operator = two if two in ("&&", "||", "|&") else line[at]
            if operator not in ("&&", "|"):
                raise _NeedsShell(f"`{operator}`")
            _check_part(pipeline[-1], f"before `{operator}`")
            if operator == "&&":
                pipelines.append([[]])
            else:
                pipeline.append([])
            at += len(operator)
            continue
        word, end = _read_word(line, at)
        # A line may assign to variables before its program.
        if not pipeline[-1] and _ASSIGNMENT.match(line, at, end):
            raise _NeedsShell(f"an assignment `{line[at : min(end, at + 40)]}`")
        pipeline[-1].append(word)
        at, count = end, count + 1
        if count > MAX_WORDS:
            raise CommandError(f"The command has more than {MAX_WORDS} words. Write them to a file and name the file.")
    _check_part(pipelines[-1][-1], "at the end")
    return tuple(tuple(map(tuple, pipeline)) for pipeline in pipelines)


def _read_word(line: str, at: int) -> tuple[str, int]:
    """Return the word that starts at `at`, without its quotes, and where it ends."""
    end = _match_end(_WORD.match(line, at))
    if end < len(line) and line[end] not in " \t|&":
        _raise_unreadable(line, end)
    return _QUOTED.sub(_unquote, line[at:end]), end


def _unquote(found: re.Match[str]) -> str:
    text = found[found.lastindex or 0]
    return _ESCAPED.sub(r"\1", text) if found.lastindex == 2 and "\\" in text else text


def _raise_unreadable(line: str, at: int) -> NoReturn:
    """Raise an error about the character that ends a word wrongly."""
    char = line[at]
    if char in ("'", '"'):
        # A character that needs a shell may end a double quote too early.
        stop = _match_end(_DOUBLE.match(line, at)) if char == '"' else len(line)
        if line[stop : stop + 1] in ("$", "`"):
            raise _NeedsShell(f"{_describe_character(line[stop])} in double quotes")
        if line[stop : stop + 2] == "\\\n":
            raise _NeedsShell("a line that goes on")
        raise CommandError(
            f"The quote {char} at character {at + 1} is not closed. "
            f"Close it, or write \\{char} for the character itself."
        )
    if char == "\\":
        if at + 1 < len(line):
            raise _NeedsShell("a line that goes on")
        raise CommandError("The command ends with a backslash. Write it in quotes, such as '\\'.")
    raise _NeedsShell(_describe_character(char))


def _describe_character(char: str) -> str:
    if char in "*?[]":
        return f"a glob `{char}`"
    return {"\n": "a line break", "#": "a comment `#`", "`": "a backtick"}.get(char, f"`{char}`")


def _match_end(found: re.Match[str] | None) -> int:
    assert found is not None
    return found.end()


def _check_part(words: list[str], where: str) -> None:
    if not words:
        raise CommandError(f"A command is missing {where}. Write a program and its arguments there.")
    if not words[0]:
        raise CommandError("The name of a program is empty. Write a program and its arguments, such as: ls -l")


def _check_program(argv: tuple[str, ...]) -> None:
    """Require a shell for a program that is a part of a shell or starts one, also behind a wrapper."""
    if argv[0] in _KEYWORDS or argv[0] in _BUILTINS:
        raise _NeedsShell(f"a part of the shell: {argv[0]}")
    for words in (argv[:1], argv[1:] if _wraps(argv) else ()):
        for word in words:
            if (name := basename(word)) in SHELLS or name in _STARTERS:
                raise _NeedsShell(f"a shell is started: {name}")


def _wraps(argv: tuple[str, ...]) -> bool:
    name = basename(argv[0])
    if name == "env" and any(map(_SPLITS.match, argv[1:])):
        raise _NeedsShell("words that `env` splits")
    return name in WRAPPERS and (name != "find" or not _EXECUTES.isdisjoint(argv))
