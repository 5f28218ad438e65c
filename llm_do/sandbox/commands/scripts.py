"""Find the files that a command executes among its words: programs, scripts of interpreters, helpers.

If the words do not tell which file is the script, all files that they name count as executed. The search ends at the
script only for interpreters with known options: the words after it are its arguments, which it may write.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Collection, Iterator
from functools import cache
from posixpath import basename, join
from stat import S_ISLNK

from ...errors import CommandError
from .command_line import SHELLS, Command, is_wrapper, word_set

_FLAGS = {
    **dict.fromkeys(("python", "pypy", "jython"), r"-[bBdEiIOPqsSuvx]+"),
    "perl": r"-[acnpstTuUwWX]*(?:i\S*|l[0-7]*|0\w*)?|-[IMmF]\S+",
    **dict.fromkeys(("ruby", "jruby"), r"-[aclnpsvw]*(?:i\S*|W\S*)?|-[Ir]\S+"),
    **dict.fromkeys(("node", "nodejs"), r"--no-\S+|--enable-source-maps|--expose-gc"),
    "php": r"-[nql]",
    **dict.fromkeys(("lua", "luajit", "texlua"), r"-[iEvW]"),
    "java": r"-jar|-ea|-[DX]\S+",
    "Rscript": r"--vanilla|--no-\S+",
    **dict.fromkeys(("tclsh", "wish", "expect", ".", "source"), ""),
    **dict.fromkeys(SHELLS - word_set("pwsh elvish nu xonsh busybox toybox"), r"[-+][eilnuvx]+|-"),
}
"""Interpreters that run the first word that is no option or value of one, and their options without a value.

Any other option may have a value: the word after it is taken for one, and counts as executed.
"""
_FLAGS_OF = {name: re.compile(rf"{flags}|--|--[^=]+=.*", re.DOTALL) for name, flags in _FLAGS.items()}
_CODE = {
    "perl": re.compile(r"-[aclnpstTuUwWX0-7]*[eE]"),
    **dict.fromkeys(("ruby", "jruby"), re.compile(r"-[aclnpsvw]*e")),
    "php": re.compile(r"-[rRBE]"),
    **dict.fromkeys(("node", "nodejs"), re.compile(r"-e|-p|-pe|--eval|--print")),
}
"""Options that are followed by code, in place of a script."""
_PYTHON_ENDS = re.compile(r"-[bBdEiIOPqsSuvx]*([cm])(.*)", re.DOTALL)
"""The last options of Python: it reads no others after these."""
_DATA_MODULES = word_set(
    "json.tool zipfile tarfile gzip base64 venv compileall py_compile tokenize ast dis http.server "
    "black isort ruff autopep8 yapf autoflake pyupgrade"
)
"""Modules of Python that do not run the files among their arguments, and may write them."""
_PYTHONS = word_set("python pypy jython")
_RUN_ALL = word_set(
    "ipython pytest py.test uv deno bun tsx ts-node raku julia guile racket octave gnuplot groovy scala kotlin swift "
    "go elixir escript dotnet mono osascript sbcl clisp coverage pdb m4 capsh npx bunx poetry pipx pipenv hatch pdm "
    "pwsh elvish nu xonsh nose2 tox nox behave robot pydoc prove jshell jrunscript irb erb rake bundle runghc "
    "runhaskell ocaml erl iex mix crystal nim dart R csi zx"
)
"""Interpreters for which every file among their arguments counts as executed."""
_NODE_RUNS_ALL = word_set("--test inspect")
_OPTIONS_ONLY = word_set("awk gawk mawk nawk sed make gmake bmake jq sqlite3 psql gdb vim nvim vi ex emacs ninja cmake")
"""Programs that run only files that options name: other words are data, which they may write."""
_FILE_OPTION = re.compile(r"-[A-Za-z]*f|--(?:file|makefile|from-file|script|load|init-file)|-init|-[PSxlu]|-ix")
_FILE_OPTIONS = {
    "sed": re.compile(r"-[A-Za-z]*f|--file"),
    **dict.fromkeys(("awk", "gawk"), re.compile(r"-[A-Za-z]*[fE]|-[il]|--(?:file|exec|include|load)")),
}
"""Options that name a file to run, for programs with others than `_FILE_OPTION`."""
_AMONG_ARGUMENTS = (_FLAGS.keys() | _RUN_ALL | _OPTIONS_ONLY) - {".", "source"}
"""Interpreters that another program may start. A `.` among arguments is a folder."""
_STARTERS = word_set(
    "busybox toybox sort tar bsdtar split rsync scp sftp git hg svn make gmake bmake ninja cmake ctest meson zip rg "
    "grep less more man pandoc gcc g++ cc c++ clang clang++ install entr run-parts logrotate ed vi vim nvim ex emacs "
    "gawk awk sed sqlite3 psql fzf bat at batch ctags dpkg rpm 7z tcpdump cargo npm yarn pnpm "
    "xvfb-run faketime eatmydata torsocks proxychains bwrap chpst cpulimit rlwrap hyperfine ccache distcc"
)
"""Programs that run another one if an option or a word names it, like wrappers."""
_LOADED = re.compile(
    r"(?:LD_PRELOAD|LD_AUDIT|BASH_ENV|ENV|MAKEFILES|PYTHONSTARTUP|NODE_OPTIONS|RUBYOPT|PERL5OPT|include\.path|"
    r"includeIf\..*\.path|--?specs|-fplugin|--preload|--audit)(?:=|$)"
)
"""Options and settings that load a file, whatever its mode."""
_FOLDER = re.compile(r"(?:-[CX]|--chdir=|--directory=|--cwd=)(.+)|-[CX]|--chdir|--directory|--cwd", re.DOTALL)
_VERSION = re.compile(r"(?<=[\w+])[-.]?\d.*", re.DOTALL)
_PIECE = re.compile(r"[=:,;@]")
_MAX_CLUSTER = 8
_MAX_DEPTH = 8
_MAX_PLACES = 16
_MAX_TEXTS = 500
_ASSIGNMENT = re.compile(r"[A-Za-z_]\w*=")
_OPENING = word_set("if then else elif do while until ! time exec command builtin eval coproc trap")
_CHANGES_FOLDER = word_set("cd pushd")
_REDIRECTION = re.compile(r"&>>?|[<>]+[&|]?")
_DESCRIPTOR = re.compile(r"(?<![^\s;&|()])\d+(?=[<>])|\$(?=['\"])")

ModeOf = Callable[[str], int | None]
"""Returns the mode of the file that a word names; `None` if it names none."""


def find_executed_files(command: Command, mode_of: ModeOf) -> list[str]:
    """Return the words, or parts of words, that name files which a command executes."""
    search = _Search(mode_of)
    if not command.pipelines:
        return list(dict.fromkeys(search.in_text(command.text, "", 0)))
    programs = (words for pipeline in command.pipelines for words in pipeline)
    return list(dict.fromkeys(file for words in programs for file in search.in_program(words, "", 0)))


class _Search:
    """A search for executed files. Words are looked up in the folder where their program starts."""

    def __init__(self, mode_of: ModeOf) -> None:
        self._mode_of = cache(mode_of)
        self._files = cache(self._find_files)
        self._texts = set[tuple[str, str]]()

    def in_text(self, text: str, folder: str, depth: int) -> Iterator[str]:
        """Find what a text for a shell runs. After `cd`, words are looked up in both folders: it may not last."""
        if (text, folder) in self._texts:
            return
        _check_count(range(depth), _MAX_DEPTH, "has", "command lines inside of each other")
        self._texts.add((text, folder))
        _check_count(self._texts, _MAX_TEXTS, "has", "command lines in its words")
        folders = {folder: None}
        for words in _shell_programs(text):
            if not _CHANGES_FOLDER.isdisjoint(words[:-1]):
                folders[join(list(folders)[-1], words[-1])] = None
                _check_count(folders, _MAX_PLACES, "works in", "folders")
            for each in folders:
                yield from self.in_program(words, each, depth)
                yield from self._in_texts(words, each, depth)

    def in_program(self, words: tuple[str, ...], folder: str, depth: int) -> Iterator[str]:
        """Find what a program runs: itself, its scripts, and what it starts."""
        if not words:
            return
        if "/" in words[0] and self._mode_of(join(folder, words[0])) is not None:
            yield join(folder, words[0])
        name = _program_name(words[0])
        folders = {folder: None, **{join(folder, each): None for each in _working_folders(words)}}
        _check_count(folders, _MAX_PLACES, "works in", "folders")
        for each in folders:
            yield from self._in_interpreter(name, words[1:], each)
            if name in SHELLS or name in _STARTERS or is_wrapper(words[0]):
                yield from self._in_texts(words[1:], each, depth)
            if name in _STARTERS or name in _RUN_ALL or is_wrapper(words[0]):
                yield from self._in_arguments(words, each)

    def _in_texts(self, words: tuple[str, ...], folder: str, depth: int) -> Iterator[str]:
        """Find what words run that are command lines themselves, as after `sh -c` and `--to-command=`."""
        for word in words:
            if len(word.split(None, 1)) > 1 or "$(" in word:
                for text in dict.fromkeys((word, word.partition("=")[2], word[2:] if word[0] == "-" else "")):
                    yield from self.in_text(text, folder, depth + 1)

    def _in_arguments(self, words: tuple[str, ...], folder: str) -> Iterator[str]:
        """Find the programs among arguments. Only the program that starts them knows which they are."""
        wraps = is_wrapper(words[0])
        places = list[int]()  # of interpreters
        for number, word in enumerate(words[1:], 1):
            before = words[number - 1]
            is_value = wraps or (before.startswith("-") and "=" not in before)
            for file in self._files(word, folder):
                mode = self._mode_of(file) or 0
                # A symlink among plain words may be just data.
                may_run = mode & 0o111 and (is_value or not S_ISLNK(mode) or file != join(folder, word))
                if may_run or _LOADED.match(word) or _LOADED.fullmatch(before):
                    yield file
            if _program_name(word) in _AMONG_ARGUMENTS:
                places.append(number)
        _check_count(places, _MAX_PLACES, "names", "interpreters")
        for number in places:
            yield from self._in_interpreter(_program_name(words[number]), words[number + 1 :], folder)

    def _in_interpreter(self, name: str, words: tuple[str, ...], folder: str) -> Iterator[str]:
        if name in _OPTIONS_ONLY:
            yield from self._after_options(_FILE_OPTIONS.get(name, _FILE_OPTION), words, folder)
        elif name in _RUN_ALL or (name in ("node", "nodejs") and not _NODE_RUNS_ALL.isdisjoint(words)):
            yield from self._all_files(words, folder)
        elif name in _FLAGS_OF:
            yield from self._up_to_script(name, words, folder)

    def _up_to_script(self, name: str, words: tuple[str, ...], folder: str) -> Iterator[str]:
        """Find the script, and all files before it: what looks like the value of an option may be the script."""
        is_python, is_shell = name in _PYTHONS, name in SHELLS
        has_code = False
        values = 0  # how many of the next words may be values of options
        for number, word in enumerate(words):
            is_option = word.startswith(("-", "+", "@")) and (word != "-" or is_shell)
            if not is_option and not values:
                if not has_code:
                    yield from self._files(word, folder)
                    yield from self._existing(f"{word}/__main__.py", folder) if is_python else ()
                return
            yield from self._files(word, folder)
            if is_python and (found := _PYTHON_ENDS.fullmatch(word)):
                rest = ((found[2],) if found[2] else ()) + words[number + 1 :]
                if found[1] == "m":
                    yield from self._in_module(rest, folder, is_certain=not values)
                    return
                if not values:
                    return
            if not is_option:
                yield from self._existing(f"{word}/__main__.py", folder) if is_python else ()
                values -= 1
            elif not values and name in _CODE and _CODE[name].fullmatch(word):
                has_code, values = True, 1
            elif _FLAGS_OF[name].fullmatch(word):
                values = max(0, values - 1)
            else:
                values = max(1, word.lower().count("o")) if is_shell else 1

    def _in_module(self, words: tuple[str, ...], folder: str, *, is_certain: bool) -> Iterator[str]:
        """Find what `python -m` runs: a module and, unless it is known to run none, the files among its arguments."""
        parts = words[0].split(".") if words else []
        inits = ["/".join([*parts[:end], "__init__.py"]) for end in range(1, len(parts) + 1)]
        path = "/".join(parts)
        found = [file for each in (f"{path}/__main__.py", f"{path}.py") for file in self._existing(each, folder)]
        yield from (file for each in inits for file in self._existing(each, folder))
        yield from found
        if not is_certain or not (found or "".join(words[:1]) in _DATA_MODULES):
            yield from self._all_files(words, folder)

    def _all_files(self, words: tuple[str, ...], folder: str) -> Iterator[str]:
        for word in words:
            yield from self._files(word, folder)

    def _after_options(self, options: re.Pattern[str], words: tuple[str, ...], folder: str) -> Iterator[str]:
        for before, word in zip(("", *words), words, strict=False):
            if word.startswith("-") or options.fullmatch(before):
                yield from self._files(word, folder)

    def _find_files(self, word: str, folder: str) -> tuple[str, ...]:
        """Return the files that a word names, as a whole or in a part: `--option=FILE`, `-oFILE`, `FILE::test`."""
        names = [word, *_PIECE.split(word)]
        names += [word[at + 1 :] for at, char in enumerate(word[:200]) if char == "="]
        if word.startswith("-"):
            names += [word[at:] for at in range(2, min(len(word), _MAX_CLUSTER))]
        return tuple(file for name in dict.fromkeys(names) if name for file in self._existing(name, folder))

    def _existing(self, name: str, folder: str) -> tuple[str, ...]:
        file = join(folder, name)
        return (file,) if self._mode_of(file) is not None else ()


def _program_name(program: str) -> str:
    """Return the name of a program without its folder and its version."""
    name = basename(program)
    return name if name in _RUN_ALL or name in _OPTIONS_ONLY else _VERSION.sub("", name)


def _working_folders(words: tuple[str, ...]) -> Iterator[str]:
    """Yield the working folders that options name, as in `env -C` and `make -C`."""
    for word, after in zip(words, (*words[1:], ""), strict=True):
        if found := _FOLDER.fullmatch(word):
            yield found[1] or after


def _check_count(found: Collection[object], most: int, verb: str, what: str) -> None:
    if len(found) > most:
        raise CommandError(
            f"The command {verb} more than {most} {what}, so what it runs cannot be told. "
            "Give several commands, one after the other."
        )


def _shell_programs(text: str) -> Iterator[tuple[str, ...]]:
    """Yield the programs in a text for a shell, as well as they can be found without a shell."""
    text = _DESCRIPTOR.sub("", text.replace("\\\n", "").replace("\n", " ; ").replace("`", " ; "))
    lexer = shlex.shlex(text, posix=True, punctuation_chars=True)
    lexer.whitespace_split, lexer.commenters = True, ""
    words = list[str]()
    redirected = False
    try:
        for part in lexer:
            if part == "{" or (part and set(part) <= set("();<>|&")):
                redirected = any(found.end() == len(part) for found in _REDIRECTION.finditer(part))
                if _REDIRECTION.sub("", part):
                    yield tuple(words)
                    words.clear()
            elif redirected:
                redirected = False
            elif not words and _ASSIGNMENT.match(part):
                words += ["env", part]
            elif words or part not in _OPENING:
                words.append(part)
    except ValueError:  # a quote that is not closed, as in a comment or a here-document
        yield from _shell_programs(re.sub(r"['\"\\]", " ", text))
    yield tuple(words)
