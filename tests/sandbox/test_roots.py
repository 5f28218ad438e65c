"""A worker reaches the files of its roots, and nothing else, by whatever path and whoever changes things meanwhile."""

import errno
import os
import socket
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from inline_snapshot import snapshot
from pydantic import ValidationError

from llm_do.errors import ContentError, PathDenied, PathFailed, PathMissing
from llm_do.sandbox import RootConfig, SandboxConfig, SandboxManager, SandboxToolset
from llm_do.sandbox.roots.system_calls import Opener, best_opener, openat2, walk

from ..processes import PATIENCE

SECRET = "outside content"


@pytest.fixture(params=[openat2, walk], ids=["openat2", "walk"])
def opener(request: pytest.FixtureRequest) -> Opener:
    """Both ways to resolve a path. This test run needs a kernel that has openat2."""
    return request.param  # type: ignore[no-any-return]


class Project:
    """A project folder with an `in` root (ro), an `out` root (rw) and a `text` root (rw, two suffixes, 100 bytes)."""

    def __init__(self, base: Path, opener: Opener | None = None, **roots: RootConfig) -> None:
        self.base = base
        self.outside = base / "outside"
        self.outside.mkdir(parents=True)
        (self.outside / "secret.txt").write_text(SECRET)
        (base / "in").mkdir()
        (base / "in" / "a.txt").write_text("hello")
        (base / "out").mkdir()
        (base / "text").mkdir()
        self.config = SandboxConfig(
            paths={
                "in": RootConfig(root="in"),
                "out": RootConfig(root="out", mode="rw"),
                "text": RootConfig(root="text", mode="rw", suffixes=(".txt", ".MD"), max_file_bytes=100),
                **roots,
            }
        )
        self.opener = opener
        self.manager = SandboxManager(self.config, base=base, opener=opener)
        self.files = SandboxToolset(self.manager)

    def everything(self) -> dict[str, str]:
        """Every path in the project, and what is there."""
        return {str(path.relative_to(self.base)): _content(path) for path in sorted(self.base.rglob("*"))}


def _content(path: Path) -> str:
    if path.is_symlink():
        return f"-> {path.readlink()}"
    return path.read_bytes().decode(errors="replace") if path.is_file() else "folder" if path.is_dir() else "special"


@pytest.fixture
def project(tmp_path: Path, opener: Opener) -> Iterator[Project]:
    project = Project(tmp_path / "project", opener)
    yield project
    project.manager.close()


def refused(project: Project, work: Callable[[], object], *words: str, error: type[Exception] = PathDenied) -> str:
    """The message of an error after which everything is as before, and which does not name the host's path."""
    before = project.everything()
    with pytest.raises(error) as caught:
        work()
    assert project.everything() == before
    message = str(caught.value)
    assert [word for word in words if word not in message] == []
    assert str(project.base) not in message
    assert caught.value.__context__ is None or caught.value.__suppress_context__
    return message


class TestUse:
    def test_what_is_written_can_be_read_listed_found_searched_edited_moved_and_deleted(self, project: Project) -> None:
        files = project.files
        files.write_text("out", "a/b/c.txt", "one\r\ntwo\n")
        files.write_bytes("out", "a/d.bin", b"\xff\x00")
        assert files.read_text("out", "a/b/c.txt") == "one\r\ntwo\n"
        assert files.read_bytes("out", "./a//d.bin") == b"\xff\x00"
        assert files.stat("out", "a/d.bin").st_size == 2
        assert files.list_files("out") == ["a/"]
        assert files.list_files("out", "a/") == ["a/b/", "a/d.bin"]
        assert files.find("out", "**/*.txt") == ["a/b/c.txt"]
        assert [(found.path, found.line, found.text) for found in files.search("out", "w")] == [("a/b/c.txt", 2, "two")]
        files.edit_text("out", "a/b/c.txt", "two", "three")
        files.move("out", "a/b/c.txt", "text", "new/c.md")
        assert (project.base / "text/new/c.md").read_bytes() == b"one\r\nthree\n"
        files.delete("text", "new/c.md")
        assert files.find("text", "**") == []
        assert files.read_text("in", "a.txt") == "hello"

    @pytest.mark.parametrize(
        "path",
        [
            "ünïcode/日本語.txt",
            "emoji 👩‍👩‍👧.txt",
            "back\\slash.txt",
            "C:\\x.txt",
            "sp ace/.hidden",
            "-rf",
            "a..b",
            "...",
        ],
    )
    def test_any_readable_name_is_only_a_name(self, project: Project, path: str) -> None:
        project.files.write_text("out", path, "x")
        assert (project.base / "out" / path).read_text() == "x"
        assert project.files.find("out", "**") == [path]

    def test_a_file_keeps_its_mode_and_a_new_one_follows_the_umask(self, project: Project) -> None:
        script = project.base / "out/run.sh"
        script.write_text("old")
        script.chmod(0o750)
        project.files.write_text("out", "run.sh", "new")
        before = os.umask(0o027)
        try:
            project.files.write_text("out", "new.txt", "x")
        finally:
            os.umask(before)
        assert [path.stat().st_mode & 0o7777 for path in (script, project.base / "out/new.txt")] == [0o750, 0o640]

    def test_lists_are_cut_and_say_so(self, project: Project) -> None:
        for number in range(5):
            project.files.write_text("out", f"{number}.txt", "line\n" * 3)
        cut, whole = project.files.list_files("out", limit=4), project.files.find("out", "*", limit=5)
        lines, all_lines = project.files.search("out", "line", limit=14), project.files.search("out", "line", limit=15)
        assert [(len(x), x.truncated) for x in (cut, whole, lines, all_lines)] == [
            (4, True),
            (5, False),
            (14, True),
            (15, False),
        ]

    @pytest.mark.parametrize(
        ("pattern", "expected"),
        [
            ("*", ["a.txt", "b.md"]),
            ("**", ["a.txt", "b.md", "d/c.txt", "d/e/f.txt"]),
            ("**/*.txt", ["a.txt", "d/c.txt", "d/e/f.txt"]),
            ("d/**", ["d/c.txt", "d/e/f.txt"]),
            ("d/**/f.txt", ["d/e/f.txt"]),
            ("**/e/**/*", ["d/e/f.txt"]),
            ("*/*.txt", ["d/c.txt"]),
            ("[ab].*", ["a.txt", "b.md"]),
            ("A.TXT", []),
            ("d", []),
            ("", []),
            ("/".join(["**"] * 30) + "/" + "*t" * 30 + "x", []),
        ],
    )
    def test_patterns(self, project: Project, pattern: str, expected: list[str]) -> None:
        for path in ("a.txt", "b.md", "d/c.txt", "d/e/f.txt"):
            project.files.write_text("out", path, "")
        assert project.files.find("out", pattern) == expected

    def test_search_shows_a_part_of_a_long_line_and_passes_over_what_is_no_text(self, project: Project) -> None:
        project.files.write_bytes("out", "binary", b"\xffneedle")
        project.files.write_text("out", "long", "x" * 5000 + "needle" + "y" * 5000)
        [found] = project.files.search("out", "needle")
        assert found.path == "long" and "needle" in found.text and len(found.text) == 406
        for text in ("", "a\nb"):
            with pytest.raises(ContentError, match="part of one line"):
                project.files.search("out", text)

    def test_paths_that_start_with_a_root(self, project: Project) -> None:
        root, rest = project.manager.parse("in/a/./b.txt")
        assert (root.name, rest) == ("in", "a/b.txt")
        assert project.manager.parse("out")[1] == ""
        assert project.manager.host_path("in/x/y.txt") == project.base / "in/x/y.txt"

    def test_a_model_is_told_what_there_is(self, project: Project) -> None:
        assert project.manager.describe() == snapshot("""\
Begin a path with the name of a root, for example in/folder/file.txt. Roots:
- in: read only, any files, up to 10000000 bytes each
- out: read and write, any files, up to 10000000 bytes each
- text: read and write, files that end with .txt, .md, up to 100 bytes each\
""")
        assert SandboxManager(SandboxConfig(), base=project.base).describe() == "There are no files to use."

    def test_a_closed_manager_holds_no_descriptors_and_opens_again(self, tmp_path: Path, opener: Opener) -> None:
        before = _descriptors()
        with Project(tmp_path / "p", opener).manager as manager:
            SandboxToolset(manager).read_text("in", "a.txt")
            assert _descriptors() == before + 1
        assert _descriptors() == before
        assert SandboxToolset(manager).read_text("in", "a.txt") == "hello"
        del manager
        assert _descriptors() == before

    def test_no_operation_leaks_a_descriptor(self, project: Project) -> None:
        (project.base / "out/link").symlink_to(project.outside)
        project.files.read_text("in", "a.txt")
        project.files.write_text("out", "x", "")
        before = _descriptors()
        for path in ("a.txt", "a.txt/b", "no/no", "..", "link/x", "link", ""):
            for work in (project.files.read_text, project.files.list_files, project.files.delete, project.files.find):
                for root in ("in", "out"):
                    with _ignored():
                        work(root, path)
            with _ignored():
                project.files.write_text("out", path, "x")
        assert _descriptors() == before

    def test_a_folder_that_is_missing_or_removed(self, project: Project) -> None:
        (project.base / "in/a.txt").unlink()
        (project.base / "in").rmdir()
        (project.base / "out").rmdir()
        message = refused(project, lambda: project.files.read_text("in", "a.txt"), error=PathMissing)
        assert message == snapshot("'in/a.txt' does not exist. The folder of root 'in' is not there.")
        assert refused(project, lambda: project.files.list_files("out"), error=PathMissing) == snapshot(
            "'out' does not exist. The folder of root 'out' is not there: the first file that is written makes it."
        )
        for _ in range(2):  # the second time, the open descriptor is one of a folder that is gone
            project.files.write_text("out", "a/b.txt", "x")
            assert (project.base / "out/a/b.txt").read_text() == "x"
            subprocess.run(["rm", "-r", project.base / "out"], check=True)


def _descriptors() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


class _ignored:
    def __enter__(self) -> None: ...

    def __exit__(self, kind: Any, exc: Any, tb: Any) -> bool:
        return isinstance(exc, PathDenied | PathMissing)


ESCAPES = [
    "../outside/secret.txt",
    "..",
    "x/../../outside/secret.txt",
    "x/../a.txt",
    "/etc/passwd",
    "//etc/passwd",
    "~",
    "~/x",
    "~root/x",
    "a\0b",
    "a.txt\0",
    "a\nb",
    "a\x1b[31m",
    "a\x7f",
    "a\x85",
    "a\u2028b",
    "a\u202etxt.exe",
    "a\udcff",
    "n" * 256,
    "ü" * 128,
    "d/" * 70 + "x",
    "x/" * 3000,
    ".llm-do-1",
]


class TestRefusals:
    @pytest.mark.parametrize("path", ESCAPES)
    def test_paths_that_are_no_paths_in_a_root(self, project: Project, path: str) -> None:
        files = project.files
        refused(project, lambda: files.read_text("out", path))
        refused(project, lambda: files.write_text("out", path, "x"))
        refused(project, lambda: files.list_files("out", path))
        refused(project, lambda: files.find("out", path))
        refused(project, lambda: files.delete("out", path))
        refused(project, lambda: files.stat("out", path))
        refused(project, lambda: files.move("in", "a.txt", "out", path))
        refused(project, lambda: project.manager.parse(f"out/{path}"))
        refused(project, lambda: project.manager.host_path(f"out/{path}"))

    @pytest.mark.parametrize("path", ["", "/etc/passwd", "~/x", "../in/a.txt", "nope/a.txt", "in\n/a.txt", "In/a.txt"])
    def test_an_unknown_root_names_the_known_ones(self, project: Project, path: str) -> None:
        refused(project, lambda: project.manager.parse(path), "'in', 'out', 'text'")
        refused(project, lambda: project.files.read_text(path, "a.txt"), "'in', 'out', 'text'")

    def test_a_read_only_root_is_not_changed(self, project: Project) -> None:
        files = project.files
        refused(project, lambda: files.write_text("in", "new.txt", "x"), "'in/new.txt'", "read only", "'out', 'text'")
        refused(project, lambda: files.edit_text("in", "a.txt", "hello", "x"), "read only")
        refused(project, lambda: files.delete("in", "a.txt"), "read only")
        refused(project, lambda: files.move("in", "a.txt", "out", "a.txt"), "'in/a.txt'", "read only")
        files.write_text("out", "b.txt", "x")
        refused(project, lambda: files.move("out", "b.txt", "in", "b.txt"), "'in/b.txt'", "read only")

    def test_suffixes(self, project: Project) -> None:
        files = project.files
        (project.base / "text/x.exe").write_text("x")
        (project.base / "text/txt").write_text("x")
        files.write_text("text", "a.TXT", "x")
        files.write_text("text", "b.md", "x")
        for work in (
            lambda: files.read_text("text", "x.exe"),
            lambda: files.write_text("text", "y.exe", "x"),
            lambda: files.write_text("text", "txt", "y"),
            lambda: files.delete("text", "x.exe"),
            lambda: files.stat("text", "x.exe"),
            lambda: files.move("text", "a.TXT", "text", "a.exe"),
        ):
            refused(project, work, "'.txt' or '.md'")
        assert files.list_files("text") == ["a.TXT", "b.md"]
        assert files.find("text", "**") == ["a.TXT", "b.md"]

    def test_too_large(self, project: Project) -> None:
        files = project.files
        (project.base / "text/big.txt").write_text("x" * 101)
        files.write_text("text", "full.txt", "x" * 100)
        files.write_text("out", "big.txt", "x" * 101)
        for work in (
            lambda: files.read_text("text", "big.txt"),
            lambda: files.write_text("text", "full.txt", "y" * 101),
            lambda: files.move("text", "big.txt", "out", "x.txt"),
            lambda: files.move("out", "big.txt", "text", "x.txt"),
            lambda: files.edit_text("text", "full.txt", "x" * 100, "y" * 101),
        ):
            refused(project, work, "101", "100")

    def test_a_file_that_claims_to_be_empty_is_read_up_to_the_limit(self, tmp_path: Path, opener: Opener) -> None:
        config = SandboxConfig(paths={"proc": RootConfig(root="/proc/sys/kernel", max_file_bytes=3)})
        with SandboxManager(config, base=tmp_path, opener=opener) as manager:
            with pytest.raises(PathDenied, match="3 at most"):
                SandboxToolset(manager).read_text("proc", "ostype")

    def test_symlinks_are_not_followed(self, project: Project) -> None:
        out, files = project.base / "out", project.files
        (out / "real").mkdir()
        (out / "real/x.txt").write_text("x")
        (out / "file.txt").symlink_to("../outside/secret.txt")
        (out / "inside.txt").symlink_to("real/x.txt")
        (out / "folder").symlink_to("../outside")
        (out / "dangling.txt").symlink_to("../outside/new.txt")
        (out / "zero").symlink_to("/dev/zero")
        (out / "self").symlink_to("/proc/self/cwd")
        for path in ("file.txt", "inside.txt", "folder/secret.txt", "dangling.txt", "zero", "self/x"):
            refused(
                project, lambda path=path: files.read_text("out", path), f"'out/{path}'", "symlinks are not followed"
            )
            refused(project, lambda path=path: files.write_text("out", path, "x"), "symlinks are not followed")
            refused(project, lambda path=path: files.delete("out", path), "symlinks are not followed")
            refused(project, lambda path=path: files.move("out", path, "out", "new"), "symlinks are not followed")
            refused(project, lambda path=path: files.stat("out", path), "symlinks are not followed")
        for path in ("file.txt", "dangling.txt", "folder"):
            refused(project, lambda path=path: files.move("out", "real/x.txt", "out", path), "already")
        refused(project, lambda: files.write_text("out", "folder/deep/x.txt", "x"), "symlinks are not followed")
        refused(project, lambda: files.list_files("out", "folder"), "symlinks are not followed")
        assert files.list_files("out") == ["real/"]
        assert files.find("out", "**") == ["real/x.txt"]
        assert files.search("out", SECRET) == []

    def test_a_root_of_the_project_is_no_symlink_and_an_absolute_one_does_not_become_one(
        self, project: Project, opener: Opener
    ) -> None:
        """A worker with a root around it may have made the symlink: a person who did writes where it leads."""
        (project.base / "alias").symlink_to("in")
        config = SandboxConfig(
            paths={
                "a": RootConfig(root="alias"),
                "b": RootConfig(root=str(project.base / "alias")),
                "late": RootConfig(root=str(project.base / "out/sub")),
            }
        )
        with SandboxManager(config, base=project.base, opener=opener) as manager:
            files = SandboxToolset(manager)
            refused(project, lambda: files.read_text("a", "a.txt"), "write where it leads")
            assert files.read_text("b", "a.txt") == "hello"
            (project.base / "out/sub").symlink_to(project.outside)
            refused(project, lambda: files.read_text("late", "secret.txt"), "symlink")

    def test_what_is_no_regular_file_is_refused_at_once(self, project: Project, opener: Opener) -> None:
        out, files = project.base / "out", project.files
        os.mkfifo(out / "pipe")
        with socket.socket(socket.AF_UNIX) as server:
            here = Path.cwd()
            os.chdir(out)  # the path of a socket is short
            try:
                server.bind("socket")
            finally:
                os.chdir(here)
        (out / "folder").mkdir()
        for path in ("pipe", "socket", "folder", ""):
            for work in (
                lambda path=path: files.read_bytes("out", path),
                lambda path=path: files.write_text("out", path, "x"),
                lambda path=path: files.delete("out", path),
                lambda path=path: files.move("out", path, "out", "new"),
            ):
                refused(project, work, "not a")
        assert files.list_files("out") == ["folder/"]
        devices = SandboxConfig(paths={"dev": RootConfig(root="/dev", mode="rw")})
        with SandboxManager(devices, base=project.base, opener=opener) as manager:
            for name in ("zero", "null"):
                refused(project, lambda name=name: SandboxToolset(manager).read_bytes("dev", name), "a device")
                refused(project, lambda name=name: SandboxToolset(manager).write_text("dev", name, "x"), "a device")
            assert "zero" not in SandboxToolset(manager).list_files("dev")

    def test_a_hard_link_is_not_read_or_edited_and_replacing_it_leaves_the_other_name(self, project: Project) -> None:
        os.link(project.outside / "secret.txt", project.base / "out/x.txt")
        refused(project, lambda: project.files.read_text("out", "x.txt"), "hard link")
        refused(project, lambda: project.files.edit_text("out", "x.txt", "outside", "x"), "hard link")
        assert project.files.search("out", "outside") == []
        project.files.write_text("out", "x.txt", "new")
        assert (project.outside / "secret.txt").read_text() == SECRET

    def test_a_missing_file_names_what_is_there(self, project: Project) -> None:
        (project.base / "in/report.txt").write_text("x")
        read = lambda path: lambda: project.files.read_text("in", path)  # noqa: E731
        assert [refused(project, read(path), error=PathMissing) for path in ("report1.txt", "zzz/b.txt")] == snapshot(
            [
                "'in/report1.txt' does not exist. Did you mean 'in/report.txt'?",
                "'in/zzz/b.txt' does not exist. Known names in 'in': 'a.txt', 'report.txt'.",
            ]
        )
        refused(project, lambda: project.files.list_files("out", "no"), "'out' is empty", error=FileNotFoundError)
        refused(project, lambda: project.files.delete("out", "no"), error=PathMissing)
        refused(project, lambda: project.files.edit_text("out", "no", "a", "b"), error=PathMissing)
        refused(project, lambda: project.files.move("out", "no", "out", "b"), error=PathMissing)
        refused(project, read("a.txt/b"), "not a folder")
        refused(project, lambda: project.files.list_files("in", "a.txt"), "not a folder")

    def test_content_that_does_not_fit(self, project: Project) -> None:
        files = project.files
        files.write_bytes("out", "x.bin", b"ok\xff")
        files.write_text("out", "x.txt", "aaa b b")
        refused(project, lambda: files.read_text("out", "x.bin"), "'out/x.bin'", "read_bytes", error=ContentError)
        refused(project, lambda: files.edit_text("out", "x.txt", "zz", "n"), "'zz' is not there", error=ContentError)
        refused(project, lambda: files.edit_text("out", "x.txt", "b", "n"), "is more than once", error=ContentError)
        for old in ("", "zz", "b", "aa"):
            refused(
                project, lambda old=old: files.edit_text("out", "x.txt", old, "n"), "exactly once", error=ContentError
            )
        refused(project, lambda: files.write_text("out", "y.txt", "\ud800"), "UTF-8", error=ContentError)

    def test_a_move_never_overwrites(self, project: Project) -> None:
        project.files.write_text("out", "a", "1")
        project.files.write_text("out", "b", "2")
        for destination in ("b", "a"):
            refused(project, lambda to=destination: project.files.move("out", "a", "out", to), "already")

    def test_a_move_to_another_disk(self, tmp_path: Path, opener: Opener) -> None:
        other = Path("/dev/shm") / tmp_path.name
        other.mkdir()
        try:
            assert other.stat().st_dev != tmp_path.stat().st_dev
            project = Project(tmp_path / "p", opener, other=RootConfig(root=str(other), mode="rw"))
            project.files.write_text("out", "a", "1")
            project.files.move("out", "a", "other", "sub/b")
            assert project.files.read_text("other", "sub/b") == "1"
            assert project.files.find("out", "**") == []
            project.files.write_text("out", "a", "2")
            refused(project, lambda: project.files.move("out", "a", "other", "sub/b"), "already")
            assert project.files.find("other", "**") == ["sub/b"]
        finally:
            subprocess.run(["rm", "-r", other], check=True)

    def test_of_two_that_move_to_one_name_one_succeeds(self, project: Project) -> None:
        for number in range(20):
            project.files.write_text("out", f"{number}", str(number))

        def move(number: int) -> bool:
            with _ignored():
                project.files.move("out", str(number), "out", "one")
                return True
            return False

        with ThreadPoolExecutor(8) as pool:
            assert sum(pool.map(move, range(20))) == 1
        assert len(project.files.find("out", "*")) == 20

    def test_a_failing_disk_leaves_the_old_file_and_nothing_else(self, project: Project, opener: Opener) -> None:
        """The kernel itself refuses to write more than 1000 bytes, in a process of its own."""
        project.files.write_text("out", "a.txt", "old")
        program = f"""
            import resource, signal
            from pathlib import Path
            from llm_do.errors import PathFailed
            from llm_do.sandbox import *
            from llm_do.sandbox.roots.system_calls import openat2, walk
            signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
            resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))
            config = SandboxConfig(paths={{"out": RootConfig(root="out", mode="rw")}})
            manager = SandboxManager(config, base=Path({str(project.base)!r}), opener={opener.__name__})
            for path in ("a.txt", "new.txt"):
                try:
                    SandboxToolset(manager).write_text("out", path, "x" * 5000)
                except PathFailed as exc:
                    print(exc.errno, exc)
        """
        before = project.everything()
        done = subprocess.run(
            [sys.executable, "-c", textwrap.dedent(program)],
            capture_output=True,
            text=True,
            check=True,
            timeout=PATIENCE,
        )
        assert project.everything() == before
        assert done.stdout == snapshot("""\
27 'out/a.txt' failed: File too large. A file that was there is unchanged.
27 'out/new.txt' failed: File too large. A file that was there is unchanged.
""")

    def test_a_full_disk(self, project: Project, opener: Opener) -> None:
        small = project.base / "small"
        small.mkdir()
        if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", small], capture_output=True).returncode:
            pytest.skip("only root may mount")
        try:
            config = SandboxConfig(paths={"small": RootConfig(root="small", mode="rw")})
            with SandboxManager(config, base=project.base, opener=opener) as manager:
                files = SandboxToolset(manager)
                files.write_text("small", "a", "old")
                with pytest.raises(PathFailed, match="No space left") as caught:
                    files.write_text("small", "a", "x" * 200_000)
                assert caught.value.errno == errno.ENOSPC
                assert {path.name: path.read_text() for path in small.iterdir()} == {"a": "old"}
        finally:
            subprocess.run(["umount", "--lazy", small], check=True)


class TestProtected:
    @pytest.fixture
    def guarded(self, project: Project, opener: Opener) -> Iterator[Project]:
        """One root over the whole project, which has a journal, a `.git` and a `workers` that is not there yet."""
        (project.base / ".git/hooks").mkdir(parents=True)
        (project.base / ".git/config").write_text(SECRET)
        (project.base / "journal.db").write_text(SECRET)
        (project.base / "in/.git").mkdir()
        protected = [project.base / name for name in (".git", "journal.db", "workers", "later.db")]
        roots = {name: RootConfig(root=path, mode="rw") for name, path in _WHOLE.items()}
        config = SandboxConfig(paths=roots)
        project.manager = SandboxManager(config, base=project.base, protected=protected, opener=opener)
        project.files = SandboxToolset(project.manager)
        return project

    @pytest.mark.parametrize(
        "path",
        [
            *(".git", ".git/config", ".git/new", ".git/hooks/x", ".git/a/b/c", "./.git/config", ".GIT/x"),
            *("journal.db", "JOURNAL.db", "later.db", "workers/x.md", "Workers/x.md"),
        ],
    )
    def test_protected_paths_are_not_read_written_listed_or_created(self, guarded: Project, path: str) -> None:
        files = guarded.files
        files.write_text("all", "ok.txt", "x")
        refused(guarded, lambda: files.read_text("all", path), "the project itself")
        refused(guarded, lambda: files.write_text("all", path, "x"), "the project itself")
        refused(guarded, lambda: files.delete("all", path), "the project itself")
        refused(guarded, lambda: files.move("all", path, "all", "new"), "the project itself")
        refused(guarded, lambda: files.move("all", "ok.txt", "all", path), "the project itself")
        refused(guarded, lambda: files.list_files("all", path), "the project itself")
        assert files.list_files("all") == ["in/", "ok.txt", "out/", "outside/", "text/"]
        assert [line.path for line in files.search("all", SECRET)] == ["outside/secret.txt"]

    def test_a_root_at_or_below_a_protected_path_is_refused_as_a_whole(self, guarded: Project) -> None:
        for root in ("git", "hooks", "workers"):
            refused(guarded, lambda root=root: guarded.files.list_files(root), "the project itself")
            refused(guarded, lambda root=root: guarded.files.write_text(root, "x/y", "x"), "the project itself")

    def test_other_names_of_protected_things_do_not_help(self, guarded: Project, opener: Opener) -> None:
        """Bind mounts and hard links have the inode of what is protected."""
        os.link(guarded.base / "journal.db", guarded.base / "out/link.db")
        files = guarded.files
        refused(guarded, lambda: files.read_text("all", "out/link.db"), "the project itself")
        refused(guarded, lambda: files.write_text("all", "out/link.db", "x"), "the project itself")
        mounts = {guarded.base / ".git": guarded.base / "out/alias", guarded.base: guarded.outside / "whole"}
        made: list[Path] = []
        try:
            for source, target in mounts.items():
                target.mkdir()
                if subprocess.run(["mount", "--bind", source, target], capture_output=True).returncode:
                    pytest.skip("only root may mount")
                made.append(target)
            config = SandboxConfig(paths={"whole": RootConfig(root="outside/whole", mode="rw")})
            whole = SandboxToolset(
                SandboxManager(config, base=guarded.base, protected=[guarded.base / ".git"], opener=opener)
            )
            for work in (
                lambda: files.read_text("all", "out/alias/config"),
                lambda: files.list_files("all", "out/alias/hooks"),
                lambda: files.write_text("all", "out/alias/hooks/x", "x"),
                lambda: files.write_text("all", "out/alias/new/deep/x", "x"),
                lambda: whole.read_text("whole", ".git/config"),
                lambda: whole.write_text("whole", ".git/new/x", "x"),
            ):
                with pytest.raises(PathDenied, match="the project itself"):
                    work()
            assert "out/alias/" not in files.list_files("all", "out")
            assert ".git/" not in whole.list_files("whole")
            assert sorted(path.name for path in (guarded.base / ".git").iterdir()) == ["config", "hooks"]
        finally:
            for target in reversed(made):
                subprocess.run(["umount", "--lazy", target], check=True)


_WHOLE = {"all": ".", "git": ".git", "hooks": ".git/hooks", "workers": "workers/generated"}

SWAPPER = """
import ctypes, os, sys
os.chdir(sys.argv[1])
exchange = lambda a, b: ctypes.CDLL(None).renameat2(-100, a, -100, b, 2)
assert exchange(b"d", b"d.link") == exchange(b"d", b"d.link") == 0
print("ready", flush=True)
while True:
    exchange(b"d", b"d.link")
    exchange(b"f", b"f.link")
"""


def test_no_race_reaches_the_outside(tmp_path: Path, opener: Opener) -> None:
    """Another process swaps a folder and a file with symlinks to the outside, as fast as it can."""
    project = Project(tmp_path / "project", opener)
    out, files = project.base / "out", project.files
    (out / "d").mkdir()
    (out / "d/secret.txt").write_text("inside")
    (out / "f").write_text("inside")
    (out / "d.link").symlink_to(project.outside)
    (out / "f.link").symlink_to(project.outside / "secret.txt")
    attempts: dict[str, Callable[[], object]] = {
        "read in folder": lambda: files.read_text("out", "d/secret.txt"),
        "read file": lambda: files.read_text("out", "f"),
        "find": lambda: files.find("out", "**/secret.txt"),
        "search": lambda: files.search("out", SECRET),
        "write in folder": lambda: files.write_text("out", "d/secret.txt", "inside"),
        "write new": lambda: files.write_text("out", f"d/new/{time.monotonic_ns() % 50}", "x"),
        "edit": lambda: files.edit_text("out", "d/secret.txt", "inside", "inside"),
        "delete": lambda: files.delete("out", "d/new/1"),
        "move": lambda: files.move("out", "d/new/2", "out", "d/moved/2"),
    }
    done = {name: [0, 0] for name in attempts}
    process = subprocess.Popen([sys.executable, "-c", SWAPPER, str(out)], stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None and process.stdout.readline() == "ready\n"
        end = time.monotonic() + 1.8
        while time.monotonic() < end:
            for name, attempt in attempts.items():
                try:
                    result = attempt()
                except (PathDenied, PathMissing):
                    done[name][1] += 1
                else:
                    done[name][0] += 1
                    assert SECRET not in str(result)
            assert process.poll() is None
    finally:
        process.kill()
        process.wait()
        assert process.stdout is not None
        process.stdout.close()
    assert {path.name: path.read_text() for path in project.outside.iterdir()} == {"secret.txt": SECRET}
    assert not list(out.rglob(".llm-do-*"))
    for name in ("read in folder", "read file", "write in folder"):
        assert min(done[name]) > 0, f"the race did not happen: {done}"


def test_edits_in_parallel_are_all_kept(project: Project, opener: Opener) -> None:
    """Two managers over one folder, as two workers have them."""
    project.files.write_text("out", "a.txt", "".join(f"<{number}>" for number in range(40)))
    other = SandboxToolset(SandboxManager(project.config, base=project.base, opener=opener))
    with ThreadPoolExecutor(8) as pool:
        list(
            pool.map(
                lambda n: (project.files, other)[n % 2].edit_text("out", "a.txt", f"<{n}>", f"[{n}]"),
                range(40),
            )
        )
    assert project.files.read_text("out", "a.txt") == "".join(f"[{number}]" for number in range(40))


def test_a_manager_closed_while_threads_use_it_never_means_another_folder(project: Project) -> None:
    project.files.write_text("out", "a.txt", "inside")
    stop = threading.Event()

    def disturb() -> None:
        while not stop.is_set():
            project.manager.close()
            os.close(os.open(project.outside, os.O_RDONLY))

    thread = threading.Thread(target=disturb)
    thread.start()
    try:
        for _ in range(1000):
            assert project.files.read_text("out", "a.txt") == "inside"
            assert project.files.list_files("out") == ["a.txt"]
    finally:
        stop.set()
        thread.join()


def test_this_machine_uses_the_kernel() -> None:
    """Also keeps the tests honest: `openat2` above is the real one."""
    assert best_opener() is openat2


class TestConfig:
    @pytest.mark.parametrize("name", ["", "a/b", "..", "in\n", "-x", "_x", "ä", "x" * 65, "a b", "ｉn"])
    def test_names_of_roots(self, name: str) -> None:
        with pytest.raises(ValidationError, match="cannot be a root's name"):
            SandboxConfig.model_validate({"paths": {name: {"root": "x"}}})

    @pytest.mark.parametrize(
        "config",
        [
            {},
            {"root": ""},
            {"root": "~/x"},
            {"root": "a\0"},
            {"root": "x", "mode": "w"},
            {"root": "x", "suffixes": ["txt"]},
            {"root": "x", "suffixes": ["."]},
            {"root": "x", "suffixes": [".a/b"]},
            {"root": "x", "max_file_bytes": 0},
            {"root": "x", "suffix": [".txt"]},
        ],
    )
    def test_what_is_wrong_in_a_root(self, config: dict[str, Any]) -> None:
        with pytest.raises(ValidationError):
            RootConfig.model_validate(config)

    def test_the_deepest_root_decides_what_is_left(self, tmp_path: Path) -> None:
        creator = SandboxConfig(
            paths={
                "all": RootConfig(root="data", mode="rw", suffixes=(".gz", ".txt")),
                "raw": RootConfig(root="data/raw", max_file_bytes=10),
            }
        )
        wanted = SandboxConfig(
            paths={
                "a": RootConfig(root="data/out", mode="rw", suffixes=(".tar.gz", ".exe")),
                "b": RootConfig(root="data/raw/deep", mode="rw"),
                "c": RootConfig(root="data2"),
                "d": RootConfig(root="."),
                "e": RootConfig(root="data/../../etc"),
            }
        )
        left = wanted.restrict_to(creator, tmp_path)
        assert left.model_dump() == {
            "paths": {
                "a": {
                    "root": f"{tmp_path}/data/out",
                    "mode": "rw",
                    "suffixes": (".tar.gz",),
                    "max_file_bytes": 10_000_000,
                },
                "b": {"root": f"{tmp_path}/data/raw/deep", "mode": "ro", "suffixes": None, "max_file_bytes": 10},
            }
        }

    def test_a_link_out_of_the_creators_root_is_out_of_it_also_when_it_comes_later(
        self, tmp_path: Path, opener: Opener
    ) -> None:
        project = Project(tmp_path / "p", opener)
        (project.base / "out/link").symlink_to(project.outside)
        (project.base / "out/sub").mkdir()
        wanted = SandboxConfig(paths={"x": RootConfig(root="out/link"), "y": RootConfig(root="out/sub")})
        left = wanted.restrict_to(project.config, project.base)
        (project.base / "out/sub").rmdir()
        (project.base / "out/sub").symlink_to(project.outside)
        with SandboxManager(left, base=project.base, opener=opener) as manager:
            for name in left.paths:
                refused(project, lambda name=name: SandboxToolset(manager).read_text(name, "secret.txt"), "symlink")


FOLDERS = st.lists(st.sampled_from(["a", "b", ".."]), max_size=4).map("/".join).map(lambda path: path or ".")
SUFFIXES = st.none() | st.lists(st.sampled_from([".a", ".b", ".c.a", ".A"]), max_size=3).map(tuple)
ROOTS = st.builds(
    RootConfig,
    root=FOLDERS,
    mode=st.sampled_from(["ro", "rw"]),
    suffixes=SUFFIXES,
    max_file_bytes=st.integers(min_value=1, max_value=5),
)
CONFIGS = st.dictionaries(st.sampled_from("xyz"), ROOTS, max_size=3).map(lambda paths: SandboxConfig(paths=paths))


def _may(config: SandboxConfig, base: Path, file: Path) -> list[tuple[str, int]]:
    """The modes and sizes with which a configuration reaches a file."""
    return [
        (root.mode, root.max_file_bytes)
        for root in config.paths.values()
        if file.is_relative_to(root.folder(base)) and root.allows_name(file.name)
    ]


def _compare(config: SandboxConfig) -> dict[str, Any]:
    return {
        name: root.model_dump() | {"suffixes": root.suffixes and set(root.suffixes)}
        for name, root in config.paths.items()
    }


@given(CONFIGS, CONFIGS)
def test_what_is_left_is_never_more_than_either(wanted: SandboxConfig, creator: SandboxConfig) -> None:
    base = Path("/nowhere/base/x/y")
    left = wanted.restrict_to(creator, base)
    folders = [base, base.parent, base / "a", base / "a/b", base / "b/a/a", base.parent / "a", Path("/etc")]
    for file in [folder / name for folder in folders for name in ("f", "f.a", "f.b", "f.c.a")]:
        for mode, size in _may(left, base, file):
            for config in (wanted, creator):
                assert any(mode in ("ro", other) and size <= limit for other, limit in _may(config, base, file))
    assert _compare(left.restrict_to(creator, base)) == _compare(left)
    assert wanted.restrict_to(SandboxConfig(), base).paths == {}


PIECES = ["..", ".", "", "/", "~", "a", "d", "link", "secret.txt", "outside", "out", "in", "\0", "\n", "\\", "x" * 300]
PATHS = st.lists(st.sampled_from(PIECES) | st.text(max_size=4), max_size=8).map("/".join) | st.text(max_size=20)


@settings(max_examples=120, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(path=PATHS, to=PATHS)
@example(path="link/secret.txt", to="../outside/new")
@example(path="d/../../outside/secret.txt", to="link/new")
def test_no_path_whatever_reaches_the_outside(
    tmp_path_factory: pytest.TempPathFactory, opener: Opener, path: str, to: str
) -> None:
    project = Project(tmp_path_factory.mktemp("p") / "p", opener)
    (project.base / "out/link").symlink_to("../outside")
    (project.base / "out/d").mkdir()
    (project.base / "out/a").write_text("inside")
    files = project.files
    before = _elsewhere(project)
    for work in (
        lambda: files.read_text("out", path),
        lambda: files.search("out", "content", pattern=path),
        lambda: files.find("out", path),
        lambda: files.list_files("out", path),
        lambda: files.write_text("out", path, "written"),
        lambda: files.edit_text("out", path, "written", "edited"),
        lambda: files.move("out", path, "out", to),
        lambda: files.delete("out", path),
        lambda: files.write_text("in", path, "written"),
        lambda: files.read_text(*to.partition("/")[::2]),
        lambda: project.manager.host_path(path).relative_to(project.base),
    ):
        with _ignored():
            shown = str(work())
            assert SECRET not in shown
            assert "secret.txt" not in shown or "secret.txt" in path + to  # then it is only its own name
    assert _elsewhere(project) == before
    project.manager.close()


def _elsewhere(project: Project) -> dict[str, str]:
    return {path: content for path, content in project.everything().items() if not path.startswith("out/")}
