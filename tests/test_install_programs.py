"""`tools/install-programs`, with which `make demo` begins."""

import ctypes.util
import subprocess
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parent.parent / "tools" / "install-programs"


@pytest.mark.skipif(ctypes.util.find_library("gomp") is None, reason="libgomp is not installed here")
def test_an_ordinary_user_is_not_told_to_install_what_is_there(tmp_path: Path) -> None:
    """`ldconfig`, which knows libraries, is not on the PATH of an ordinary user of Debian."""
    (tmp_path / "id").write_text("#!/bin/sh\necho 1000\n")  # not root: nothing is ever installed by this test
    (tmp_path / "id").chmod(0o755)
    done = subprocess.run(
        ["sh", str(SCRIPT), "libgomp"], env={"PATH": f"{tmp_path}:/usr/bin:/bin"}, capture_output=True, check=False
    )
    assert (done.returncode, done.stderr) == (0, b"")
