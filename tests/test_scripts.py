"""Which files a command runs, told from its words: these are approved by their content."""

import pytest

from llm_do.commands import parse
from llm_do.scripts import files_run

FILES = {
    **dict.fromkeys(("out/build.py", "out/x.awk", "out/data.csv", "out/hook.js", "out/a.js", "out/x.sh"), 0o644),
    **dict.fromkeys(("out/log", "out/Makefile", "out/pkg/__main__.py", "out/pkg/m.py"), 0o644),
    "out/tool": 0o755,
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
    "python3 -m cProfile -s time out/build.py out/data.csv": ["out/build.py"],
    "coverage run out/build.py out/data.csv": ["out/build.py"],
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
    "if true; then out/tool; fi": ["out/tool"],
    "echo $(python3 out/build.py)": ["out/build.py"],
}
DATA = [
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
    assert files_run(parse(command), FILES.get) == RUN[command]


@pytest.mark.parametrize("command", DATA)
def test_data_is_not_taken_for_a_program(command: str) -> None:
    """A copy of it that cannot be written would break commands that write it."""
    assert files_run(parse(command), FILES.get) == []
