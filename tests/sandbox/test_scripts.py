"""Which files a command runs, told from its words: these are approved by their content."""

from stat import S_IFLNK

import pytest

from llm_do.errors import CommandError
from llm_do.sandbox.commands.command_line import parse
from llm_do.sandbox.commands.scripts import find_executed_files

FILES = {
    **dict.fromkeys(("out/build.py", "out/x.awk", "out/data.csv", "out/hook.js", "out/a.js", "out/x.sh"), 0o644),
    **dict.fromkeys(("out/log", "out/Makefile", "out/pkg/__main__.py", "out/pkg/m.py"), 0o644),
    **dict.fromkeys(("out/decoy", "out/errexit", "out/nounset", "out/run", "out/-x"), 0o644),
    "out/tool": 0o755,
    "out/link": S_IFLNK | 0o777,
}  # fmt: skip

RUN = {
    "python3 out/build.py out/data.csv": ["out/build.py"],
    "python3.11 -W ignore out/build.py": ["out/build.py"],
    "python3 -E -S out/build.py out/data.csv": ["out/build.py"],
    "python3 -m out.pkg": ["out/pkg/__main__.py"],
    "python3 -m out.pkg.m out/data.csv": ["out/pkg/m.py"],
    "python3 out/pkg": ["out/pkg/__main__.py"],
    "/usr/bin/python3 out/build.py": ["out/build.py"],
    "out/tool out/data.csv": ["out/tool"],
    "cd out; cd pkg; python3 m.py": ["out/pkg/m.py"],
    "sh -c 'cd out && sh x.sh'": ["out/x.sh"],
    "cd out && timeout 5 sh -c 'python3 build.py'": ["out/build.py"],
    "gdb -x out/build.py": ["out/build.py"],
    "awk -f out/x.awk out/data.csv": ["out/x.awk"],
    "awk -fout/x.awk out/data.csv": ["out/x.awk"],
    "sed -i -f out/x.awk out/data.csv": ["out/x.awk"],
    "make -f out/Makefile out/log": ["out/Makefile"],
    "node --require out/hook.js out/a.js out/data.csv": ["out/hook.js", "out/a.js"],
    "node --require=out/hook.js out/a.js": ["out/hook.js", "out/a.js"],
    "ruby -rout/hook.js out/a.js": ["out/hook.js", "out/a.js"],
    "deno run out/a.js": ["out/a.js"],
    "timeout 5 python3 out/build.py out/data.csv": ["out/build.py"],
    "env A=1 nice out/tool": ["out/tool"],
    "flock out/log out/tool out/data.csv": ["out/tool"],
    "find in -exec out/tool '{}' ';'": ["out/tool"],
    "expect out/x.sh": ["out/x.sh"],
    "env -C out python3 build.py": ["out/build.py"],
    "env --chdir=out A=1 nice python3 build.py": ["out/build.py"],
    "env -S 'python3 -u out/build.py'": ["out/build.py"],
    "python3 -m cProfile -s time out/build.py out/data.csv": ["out/build.py", "out/data.csv"],
    "coverage run out/build.py out/data.csv": ["out/build.py", "out/data.csv"],
    "npx tsx out/a.js": ["out/a.js"],
    "sed -nf out/x.awk out/data.csv": ["out/x.awk"],
    "sqlite3 -init out/x.sh out/data.csv": ["out/x.sh"],
    "cat out/data.csv | python3 out/build.py && out/tool": ["out/build.py", "out/tool"],
    # for a shell
    "bash -x out/x.sh out/data.csv": ["out/x.sh"],
    "sh -ec 'python3 out/build.py > out/log'": ["out/build.py"],
    "X=1 python3 out/build.py > out/log; . out/x.sh": ["out/build.py", "out/x.sh"],
    "cd out && python3 build.py data.csv": ["out/build.py"],
    "sh -c 'cd out; sh x.sh > log'": ["out/x.sh"],
    "(cd out && true); python3 out/build.py": ["out/build.py"],
    'echo "$(out/tool)"': ["out/tool"],
    "echo `out/tool`": ["out/tool"],
    "2>&1 out/tool": ["out/tool"],
    "bash -c 'builtin source out/x.sh'": ["out/x.sh"],
    "bash -c 'pushd out; sh x.sh'": ["out/x.sh"],
    "bash -c 'trap out/tool EXIT'": ["out/tool"],
    "BASH_ENV=out/x.sh bash -c true": ["out/x.sh"],
    "if true; then out/tool; fi": ["out/tool"],
    "echo $(python3 out/build.py)": ["out/build.py"],
}
DECOYS = [
    *(f"python3 {options} out/decoy out/build.py" for options in ("-W", "-X", "-uW", "-W -u -X", "-X -W -W", "-W -c")),
    "python3 --check-hash-based-pycs out/decoy out/build.py",
    "python3 -W -- -X out/decoy out/build.py",
    "python3 -W -c out/build.py",
    "python3 -Wc out/build.py",
    "python3 -W - out/build.py",
    "python3 -X -W -m out.build",
    "python3 -mout.build",
    "python3 -um out.build",
    "python3 -W ignore -m pytest out/decoy out/build.py",
    "python3 -m unittest out/decoy out/build.py",
    "perl -I out/decoy out/build.py",
    "perl -Ie out/build.py",
    "perl -pie out/build.py",
    "perl -I -e out/build.py",
    "ruby -I out/decoy out/build.py",
    "ruby -C out build.py",
    "ruby -e 1 -r out/build.py",
    "node --conditions out/decoy out/build.py",
    "node --test out/decoy out/build.py",
    "node -e 1 --require out/build.py",
    "lua -l out/decoy out/build.py",
    "lua -e x out/build.py",
    "java -cp out/decoy out/build.py",
    "java @out/decoy out/build.py",
    "java -cp out/decoy:out/build.py Main",
    "php -d auto_prepend_file=out/build.py out/decoy",
    "pytest -c out/decoy out/build.py",
    "pytest out/decoy out/build.py::test_x",
    "deno run --config out/decoy out/build.py",
    "go run out/decoy out/build.py",
    "make -C out -sf build.py",
    "awk -v x=out/decoy -f out/build.py",
    "gawk -E out/build.py",
    "env MAKEFILES=out/build.py make",
    "git -c include.path=out/build.py log",
    "timeout -s perl out/decoy python3 out/build.py",
    "tar -xf out/decoy --to-command='python3 out/build.py'",
    "git -c core.pager='python3 out/build.py' log",
    # for a shell
    "bash -O out/decoy out/build.py",
    "bash +O out/decoy out/build.py",
    "bash --rcfile out/decoy out/build.py",
    "bash - out/build.py",
    "cd out && bash -oo errexit nounset build.py",
    "cd out && deno run build.py",
    "cd out && eval 'python3 build.py'",
    "true # it's\npython3 out/build.py",
    "true # it's\npython3 out/build.py # it's",
    "python3 \\\n out/build.py",
    'echo "`python3 out/build.py`"',
    "LD_PRELOAD=out/build.py true",
    "env -S'python3 out/build.py'",
    "node inspect out/build.py",
    "python3-dbg out/build.py",
    "perl5.36-x86_64-linux-gnu out/build.py",
    "ruby -X out build.py",
    "ld.so --preload out/build.py /usr/bin/true",
    "function f { python3 out/build.py; }; f",
    "coproc python3 out/build.py",
    "2>/dev/null python3 out/build.py",
    "python3 2>&1 out/build.py",
    "true;>out/log python3 out/build.py",
    "cat <(python3 out/build.py)",
    "python3 $'out/build.py'",
    "CDPATH=/work cd out; python3 build.py",
]
HELPERS = [
    "sort --compress-program=out/tool out/data.csv",
    "sort --compress-program out/tool out/data.csv",
    "tar -xf out/data.csv --to-command=out/tool",
    "tar -Iout/tool -xf out/data.csv",
    "split --filter=out/tool out/data.csv",
    "rsync -e out/tool in out",
    "git -c core.pager=out/tool log",
    "git bisect run out/tool",
    "make SHELL=out/tool out/log",
    "find in -exec out/tool ';'",
    "xargs -a out/data.csv out/tool",
    "flock out/log nice timeout 5 out/tool",
]
DATA = [
    "python3 in/convert.py out/data.csv",
    "python3 -W ignore in/convert.py out/data.csv",
    "python3 - out/data.csv",
    "python3 -m black out/build.py",
    "perl -i.bak -pe s/a/b/ out/data.csv",
    "java -cp in/x.jar Main out/data.csv",
    "sed -e s/a/b/ -i out/data.csv",
    "make -j4 out/log",
    "cp in/tool out/tool",
    "tar -cf out/log out/data.csv out/link",
    "tar -C in . -cf out/log",
    "git diff --output=out/log out/link",
    "OUT=out/log; sort in/names > $OUT",
    "cat out/data.csv",
    "sort -o out/data.csv out/data.csv",
    "python3 -c x out/data.csv",
    "python3 -Ic x out/data.csv",
    "perl -pi -e s/a/b/ out/data.csv",
    "php -r x out/data.csv",
    "node -e x out/data.csv",
    "awk '{ print }' out/data.csv",
    "make out/log",
    "python3 -m json.tool out/data.csv out/log",
    "cd out && sort -o data.csv data.csv",
    "timeout 5 sort -o out/data.csv",
]


@pytest.mark.parametrize("command", RUN)
def test_files_that_are_run_are_found(command: str) -> None:
    assert find_executed_files(parse(command), FILES.get) == RUN[command]


@pytest.mark.parametrize("command", DECOYS)
def test_no_other_word_keeps_a_script_from_being_found(command: str) -> None:
    """The value of an option may look like the script, and an option like the value of another."""
    assert "out/build.py" in find_executed_files(parse(command), FILES.get)


@pytest.mark.parametrize("command", HELPERS)
def test_programs_that_another_one_is_told_to_run_are_found(command: str) -> None:
    assert find_executed_files(parse(command), FILES.get) == ["out/tool"]


def test_a_symlink_that_an_option_names_counts_as_a_program() -> None:
    """It is refused then, and one among plain words is data."""
    assert find_executed_files(parse("sort --compress-program=out/link in/x"), FILES.get) == ["out/link"]
    assert find_executed_files(parse("sort --compress-program out/link in/x"), FILES.get) == ["out/link"]


def test_only_the_script_is_found_where_the_options_before_it_have_no_values() -> None:
    commands = ("python3 -uB -- out/build.py out/data.csv", "java -jar out/build.py out/data.csv")
    assert [find_executed_files(parse(command), FILES.get) for command in commands] == [["out/build.py"]] * 2


@pytest.mark.parametrize(
    "command", ["env " + "python3 -W " * 400, "cd a; " * 3000, "make " + "".join(f"-C{each} " for each in range(20))]
)
def test_a_command_that_would_take_long_to_look_through_is_refused(command: str) -> None:
    with pytest.raises(CommandError, match="Give several commands"):
        find_executed_files(parse(command), FILES.get)


@pytest.mark.parametrize("command", DATA)
def test_data_is_not_taken_for_a_program(command: str) -> None:
    """A copy of it that cannot be written would break commands that write it."""
    assert find_executed_files(parse(command), FILES.get) == []
