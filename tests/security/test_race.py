"""A process that swaps folders and files for symlinks, as fast as it can, while a model reads and writes."""

import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest
from pydantic_ai.messages import ModelResponse

from ..processes import PATIENCE
from .world import CANARY, Person, World, call, together

SECONDS = 0.8

SWAPPER = """
import os, sys, time
place, real, link, until = sys.argv[1], sys.argv[2], sys.argv[3], time.monotonic() + float(sys.argv[4])
spare, count = place + ".spare", 0
while time.monotonic() < until:
    try:
        os.symlink(link, spare)
        os.rename(place, real)   # the real one aside
        os.rename(spare, place)  # and the symlink in its place
        os.unlink(place)
        os.rename(real, place)
        count += 1
    except OSError:
        # Somebody made a new one in the gap: it goes out of the way.
        for undo in (lambda: os.unlink(spare), lambda: os.path.islink(place) and os.unlink(place),
                     lambda: os.path.lexists(real) and os.rename(place, f"{place}.made-{time.monotonic_ns()}"),
                     lambda: os.rename(real, place)):
            try:
                undo()
            except OSError:
                pass
print(count)
"""

EXCHANGER = """
import ctypes, os, sys, time
place, other, until = sys.argv[1].encode(), sys.argv[2].encode(), time.monotonic() + float(sys.argv[4])
libc, count = ctypes.CDLL(None), 0
os.symlink(sys.argv[3], other)
while time.monotonic() < until:
    count += libc.renameat2(-100, place, -100, other, 2) == 0  # the two change places in one step
if os.path.islink(place):
    libc.renameat2(-100, place, -100, other, 2)
print(count)
"""


@contextmanager
def swapping(program: str, place: str, aside: str, link: str) -> Iterator[None]:
    """A process of our own that swaps, and that has really done so."""
    command = [sys.executable, "-c", program, place, aside, link, str(SECONDS)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        yield
        swapped, _ = process.communicate(timeout=PATIENCE)
    assert int(swapped) > 20


@pytest.mark.parametrize("program", [SWAPPER, EXCHANGER], ids=["by_names", "in_one_step"])
@pytest.mark.parametrize("what", ["folder", "file"])
def test_no_swap_gets_a_model_out_of_its_root(world: World, what: str, program: str) -> None:
    world.write("out/d/secret.txt", "mine")
    world.write("out/d/more.txt", "mine")
    (world.outside / "more.txt").write_text(CANARY)
    world.worker("a", "sandbox: {paths: {out: {root: out, mode: rw}}}\ntool_rules: {sandbox.write: allow}\n")
    out = world.project / "out"
    place, link = (out / "d", world.outside) if what == "folder" else (out / "d/secret.txt", world.secret)
    round_of: list[Callable[[], ModelResponse]] = [
        lambda: call("read_file", path="out/d/secret.txt"),
        lambda: call("write_file", path="out/d/secret.txt", content="mine"),
        lambda: call("edit_file", path="out/d/more.txt", old="mine", new="mine"),
        lambda: call("edit_file", path="out/d/secret.txt", old="canary", new="gone"),
        lambda: call("search_files", text="canary-", pattern="out/**"),
        lambda: call("list_files", path="out/d"),
        lambda: call("write_file", path="out/d/deep/more.txt", content="mine"),
        lambda: call("move_file", source="out/d/more.txt", destination="out/d/moved.txt"),
        lambda: call("move_file", source="out/d/moved.txt", destination="out/d/more.txt"),
        lambda: call("delete_file", path="out/d/deep/more.txt"),
        lambda: call("delete_file", path="out/d/secret.txt"),
        lambda: call("write_file", path="out/d/secret.txt", content="mine"),
    ]
    until, rounds = time.monotonic() + SECONDS, 0
    with world.untouched("out"), swapping(program, str(place), str(out / "aside"), str(link)):
        while time.monotonic() < until:
            steps = [together(*(make() for make in round_of)) for _ in range(5)]
            outcome = world.attack(*steps)
            assert not outcome.told(CANARY)
            rounds += outcome.requests
    assert rounds > 5


def test_no_swap_gets_a_command_out_of_its_root(world: World) -> None:
    world.write("work/data/x.txt", "mine")
    world.worker("a", "toolsets: [shell]\nsandbox: {paths: {work: {root: work, mode: rw}}}\n")
    place = world.project / "work/data"
    until = time.monotonic() + SECONDS
    with world.untouched("work"), swapping(EXCHANGER, str(place), f"{place}.other", str(world.outside)):
        while time.monotonic() < until:
            steps = [call("shell", command="cat work/data/secret.txt"), call("shell", command="touch work/data/new")]
            assert not world.attack(*steps, callback=Person()).told(CANARY)
