"""Which words of a command name a file that is run: the program itself, and the script of an interpreter."""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Iterable, Iterator
from posixpath import basename, join

from .commands import SHELLS, Command, is_wrapper, word_set

_OPTIONS_ONLY = word_set("awk gawk mawk nawk sed make gmake bmake jq sqlite3 psql gdb vim nvim emacs ninja cmake")
"""Programs that run only a file which an option names: other words are data, which they may write."""
_INTERPRETERS = _OPTIONS_ONLY | word_set(
    "python pypy ipython jython pytest py.test uv node nodejs deno bun tsx ts-node ruby jruby perl raku php Rscript "
    "lua luajit texlua tclsh wish expect julia guile racket octave gnuplot groovy scala kotlin swift go elixir "
    "escript java dotnet mono osascript sbcl clisp"
)
"""Programs that run a file which is named among their arguments."""
_FILE_OPTIONS = word_set("-f --file --makefile --from-file --script -init -P -S -x -l --load")
_PRELOAD_OPTIONS = word_set("-r --require --import --loader -jar --rcfile --init-file")
"""Options after which a file is named that is run: of those that run only such a file, and of the others."""
_INLINE = {
    **dict.fromkeys(("python", "pypy", "jython"), re.compile(r"-[A-Za-z]*c")),
    "perl": re.compile(r"-[A-Za-z0-9]*[eE]"),
    "ruby": re.compile(r"-[A-Za-z0-9]*e"),
    "php": re.compile(r"-r"),
    **dict.fromkeys(("node", "nodejs", "bun", "deno"), re.compile(r"-e|-p|-pe|--eval|--print|eval")),
}
"""Options after which code stands in the command itself. The words after it are data."""
_INLINE_ELSEWHERE = re.compile(r"-e|--eval")
_VERSION = re.compile(r"[-.0-9]+$")
_DEEPEST = 3
_ASSIGNMENT = re.compile(r"[A-Za-z_]\w*=")
_OPENING = frozenset(("if", "then", "else", "elif", "do", "while", "until", "!", "{", "time", "exec", "command"))

ModeOf = Callable[[str], int | None]
"""The mode of the file that a word names, if it names one."""


def files_run(command: Command, mode_of: ModeOf) -> list[str]:
    """The words of a command that name files which it runs, as far as the words tell."""
    programs = [words for pipeline in command.pipelines for words in pipeline] or list(_shell_programs(command.text))
    return list(dict.fromkeys(_of_programs(programs, mode_of, 0)))


def _of_programs(programs: Iterable[tuple[str, ...]], mode_of: ModeOf, depth: int) -> Iterator[str]:
    """The files that programs run one after the other, also in the folder that a `cd` before them names."""
    folder = ""
    for words in programs:
        if len(words) == 2 and words[0] == "cd":
            folder = join(folder, words[1])
            continue
        yield from _of_program(words, mode_of, depth)
        if folder:
            yield from (join(folder, word) for word in _of_program(words, _inside(folder, mode_of), depth))


def _inside(folder: str, mode_of: ModeOf) -> ModeOf:
    return lambda word: mode_of(join(folder, word))


def _of_program(words: tuple[str, ...], mode_of: ModeOf, depth: int) -> Iterator[str]:
    """The files that one program runs. `depth` is how many wrappers and shells are around it."""
    program, rest = words[0] if words else "", words[1:]
    if depth > _DEEPEST:
        return
    # Of the arguments of a wrapper, only what can be executed may be the program.
    if "/" in program and (mode := mode_of(program)) is not None and (not depth or mode & 0o111):
        yield program
    name = _VERSION.sub("", basename(program))
    if is_wrapper(program):
        for at in range(len(rest)):  # which of its arguments is the program, only the wrapper knows
            yield from _of_program(rest[at:], mode_of, depth + 1)
        if name in _INTERPRETERS:
            yield from _of_interpreter(name, rest, mode_of)
    elif name in SHELLS and (code := _code_of_shell(rest)) is not None:
        yield from _of_programs(_shell_programs(code), mode_of, depth + 1)
    elif name in _INTERPRETERS or name in SHELLS or program in (".", "source"):
        yield from _of_interpreter(name, rest, mode_of)


def _of_interpreter(name: str, words: tuple[str, ...], mode_of: ModeOf) -> Iterator[str]:
    """The files that options name, and the first word that names one: what follows are arguments of the script."""
    is_python = _INLINE.get(name) is _INLINE["python"]
    inline = None if name in SHELLS or name in _OPTIONS_ONLY else _INLINE.get(name, _INLINE_ELSEWHERE)
    options = _FILE_OPTIONS if name in _OPTIONS_ONLY else frozenset() if is_python else _PRELOAD_OPTIONS
    after_option = False
    for number, word in enumerate(words):
        if after_option:
            after_option = False
            if mode_of(word) is not None:
                yield word
        elif inline is not None and inline.fullmatch(word):
            return
        elif is_python and word == "-m":
            yield from _modules(words[number + 1 : number + 2], mode_of)
            return
        elif word.startswith("-"):
            after_option = word in options
            attached = word.partition("=")[2] if "=" in word else word[2:]
            if "/" in attached and mode_of(attached) is not None:
                yield attached
        elif name not in _OPTIONS_ONLY:
            for file in (word, f"{word}/__main__.py") if is_python else (word,):
                if mode_of(file) is not None:
                    yield file
                    return


def _modules(names: tuple[str, ...], mode_of: ModeOf) -> Iterator[str]:
    """The file that `python -m` runs, if it is found from the current folder."""
    for name in names:
        path = name.replace(".", "/")
        yield from (file for file in (f"{path}/__main__.py", f"{path}.py") if mode_of(file) is not None)


def _code_of_shell(words: tuple[str, ...]) -> str | None:
    """The text that `sh -c` runs."""
    for number, word in enumerate(words):
        if not word.startswith("-"):
            return None
        if "c" in word and not word.startswith("--"):
            return next((code for code in words[number + 1 :] if not code.startswith("-")), "")
    return None


def _shell_programs(text: str) -> Iterator[tuple[str, ...]]:
    """The programs in a text for a shell, as far as they can be told without one."""
    lexer = shlex.shlex(text.replace("\n", " ; "), posix=True, punctuation_chars=True)
    lexer.whitespace_split, lexer.commenters = True, ""
    words = list[str]()
    redirected = False
    try:
        for token in lexer:
            if token and set(token) <= set("();<>|&"):
                redirected = token[-1] in "<>"
                if not redirected:
                    yield tuple(words)
                    words.clear()
            elif redirected:
                redirected = False
            elif words or not (_ASSIGNMENT.match(token) or token in _OPENING):
                words.append(token)
    except ValueError:  # a quote that is not closed, as in what a shell calls a here-document
        pass
    yield tuple(words)
