"""A command line is read as a shell would read it, or not at all."""

import os
import shlex
import subprocess
import time
from pathlib import Path

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from llm_do.errors import CommandError
from llm_do.sandbox.commands.command_line import MAX_CHARACTERS, MAX_WORDS, WRAPPERS, parse, unwrap


@pytest.mark.parametrize(
    ("text", "pipelines"),
    [
        ("ls -l", ((("ls", "-l"),),)),
        (" \n ls\t -l \n", ((("ls", "-l"),),)),
        ("a|b | c&&d && e", ((("a",), ("b",), ("c",)), (("d",),), (("e",),))),
        ("echo 'a && b | $x' \"c; d\" e\\ f", ((("echo", "a && b | $x", "c; d", "e f"),),)),
        (r"""echo 'it'\''s' "a\"b\\c\$d\`e\f" \*""", ((("echo", "it's", 'a"b\\c$d`e\\f', "*"),),)),
        ("echo '' \"\" a''b", ((("echo", "", "", "ab"),),)),
        ("echo a=1 x#y file~ 'two\nlines'", ((("echo", "a=1", "x#y", "file~", "two\nlines"),),)),
        ("env A=1 ls", ((("env", "A=1", "ls"),),)),
        ("find . -name bash", ((("find", ".", "-name", "bash"),),)),
        ("grep bash notes.txt", ((("grep", "bash", "notes.txt"),),)),
    ],
)
def test_plain_commands(text: str, pipelines: object) -> None:
    command = parse(text)
    assert (command.pipelines, command.needs_shell, command.text) == (pipelines, None, text)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("a; b", "`;`"),
        ("a & b", "`&`"),
        ("a &", "`&`"),
        ("a || b", "`||`"),
        ("a |& b", "`|&`"),
        ("a > b", "`>`"),
        ("a 2>&1", "`>`"),
        ("a << E", "`<`"),
        ("echo $HOME", "`$`"),
        ('echo "$HOME"', "`$` in double quotes"),
        ('echo "`id`"', "a backtick in double quotes"),
        ("echo `id`", "a backtick"),
        ("(a)", "`(`"),
        ("{ a", "`{`"),
        ("echo {a,b}", "`{`"),
        ("ls *.py", "a glob `*`"),
        ("ls ?", "a glob `?`"),
        ("[ -e a ]", "a glob `[`"),
        ("ls ~", "`~`"),
        ("ls --x=~/a", "`~`"),
        ("ls # all", "a comment `#`"),
        ("! a", "`!`"),
        ("a\nb", "a line break"),
        ("a \\\nb", "a line that goes on"),
        ('a "b\\\nc"', "a line that goes on"),
        ("A=1 ls", "an assignment `A=1`"),
        ("x && A+=1 ls", "an assignment `A+=1`"),
        ("cd /", "a part of the shell: cd"),
        ("if a", "a part of the shell: if"),
        ("x | read a", "a part of the shell: read"),
        ("'export' A", "a part of the shell: export"),
        ("time ls", "a part of the shell: time"),
        ("bash -c x", "a shell is started: bash"),
        ("/usr/bin/'z'sh", "a shell is started: zsh"),
        ("ls | sh", "a shell is started: sh"),
        ("env X=1 /bin/dash", "a shell is started: dash"),
        ("timeout 5 nice busybox rm", "a shell is started: busybox"),
        ("find . -exec sh -c x", "a shell is started: sh"),
        ("xargs -n 1 fish", "a shell is started: fish"),
        ("watch 'rm x'", "a shell is started: watch"),
        ("nice su", "a shell is started: su"),
        ("env -iS 'rm x'", "words that `env` splits"),
        ("env --split-string='rm x'", "words that `env` splits"),
    ],
)
def test_what_needs_a_shell(text: str, reason: str) -> None:
    command = parse(text)
    assert (command.needs_shell, command.pipelines) == (reason, ())


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "empty"),
        (" \n\t", "empty"),
        ("a && ", "missing at the end"),
        ("| b", "missing before `|`"),
        ("a && && b", "missing before `&&`"),
        ("a | | b", "missing before `|`"),
        ("''", "name of a program is empty"),
        ("a 'b", "quote ' at character 3 is not closed"),
        ('a "b', 'quote " at character 3 is not closed'),
        ("a \\", "ends with a backslash"),
        ("a\0b", r"'\\x00' at 1"),
        ("a\x1b[2Jb", r"'\\x1b' at 1"),
        ("a\rb", r"'\\r' at 1"),
        ("a \u202eb", r"'\\u202e' at 2"),
        ("a \ud800", "ud800"),
        ("a " * MAX_WORDS + "b", "more than 1000 words"),
        ("a" * (MAX_CHARACTERS + 1), "20001 characters, and 20000 are allowed"),
    ],
)
def test_what_cannot_be_read(text: str, message: str) -> None:
    with pytest.raises(CommandError, match=message):
        parse(text)


@pytest.mark.parametrize("piece", ["'", '"', "\\", "'\"", '"\\', "a|", "a&&", "''", '"a\\"', "\\\\", " ", "a ", "="])
def test_hostile_input_takes_no_time(piece: str) -> None:
    for size in (MAX_CHARACTERS, 100_000):
        for end in ("", "'", '"', "x"):
            text = (piece * size)[: size - 2] + end
            start = time.process_time()
            try:
                command = parse(text)
            except CommandError:
                command = None
            for argv in (argv for pipeline in command.pipelines for argv in pipeline) if command else ():
                list(unwrap(argv))
            assert time.process_time() - start < 2  # about 0.005; this only catches what never ends


def test_unwrapped() -> None:
    assert list(unwrap(("/bin/rm", "/bin/x"))) == [("rm", "/bin/x")]
    assert ("rm", "/a") in unwrap(("env", "X=1", "/bin/rm", "/a"))
    assert list(unwrap(("/usr/bin/timeout", "5", "rm", "a"))) == [
        ("timeout", "5", "rm", "a"),
        ("5", "rm", "a"),
        ("rm", "a"),
        ("a",),
    ]
    assert {"xargs", "env", "timeout", "sudo"} <= WRAPPERS
    assert list(unwrap(())) == []


PRINTABLE = st.text(st.characters(exclude_categories=["C", "Z"], include_characters=" \n\t"), max_size=20)


@given(st.lists(PRINTABLE, max_size=6))
@example(["'", '"', "\\", "$x", "a\nb", "#", "~", "&&", "|"])
@settings(max_examples=300)
def test_what_is_quoted_is_read_back(words: list[str]) -> None:
    words = ["program", *words]
    assert parse(shlex.join(words)).pipelines == ((tuple(words),),)


HOSTILE = st.text(st.sampled_from("""ab=~#!{}[]*?$`'"\\|&;<>() \t\n-./:%^+,@é"""), max_size=14)
# Mostly what can be read, so that there is something to compare.
MILD = st.lists(
    st.sampled_from(["a", "'b c'", '"d\\"\\e"', "\\'", " ", " ", "=", "~", "#", "\\ ", '"', "'", "é"]), max_size=9
)


@pytest.fixture(scope="module")
def helper(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A program that prints its arguments, each with its length, so that nothing is mistaken."""
    path = tmp_path_factory.mktemp("bin") / "p"
    path.write_text("#!/bin/sh\nfor a; do printf '%s\\036' \"$a\"; done; printf '\\035'\n")
    path.chmod(0o755)
    return path


@given(texts=st.lists(st.one_of(HOSTILE, MILD.map("".join)), min_size=40, max_size=40))
@settings(max_examples=6, suppress_health_check=list(HealthCheck))
@pytest.mark.parametrize("shell", ["sh", "bash"])
def test_a_shell_sees_the_same_words(texts: list[str], shell: str, helper: Path, tmp_path: Path) -> None:
    readable = []
    for text in texts:
        try:
            command = parse(f"p {text}")
        except CommandError:
            continue
        if command.needs_shell is None and len(command.pipelines) == len(command.pipelines[0]) == 1:
            readable.append((command.text, command.pipelines[0][0]))
    script = "\n".join(f"eval {shlex.quote(text)}" for text, _ in readable)
    ran = subprocess.run(
        [shell, "-c", script],
        capture_output=True,
        text=True,
        cwd=tmp_path,
        env={"PATH": f"{helper.parent}:{os.defpath}"},
    )
    printed = [tuple(part.split("\036")[:-1]) for part in ran.stdout.split("\035")[:-1]]
    assert ran.stderr == ""
    assert printed == [argv[1:] for _, argv in readable]
