"""The script that runs all checks before a change is merged."""

import shutil
import subprocess
from pathlib import Path

SCRIPT = Path(__file__).parents[1] / ".ci/run"


def test_no_variable_of_one_machine_reaches_the_tests(tmp_path: Path) -> None:
    (tmp_path / ".ci").mkdir()
    shutil.copy(SCRIPT, tmp_path / ".ci/run")
    (tmp_path / "Makefile").write_text("check test floor:\n\t@env >> $@\n")
    common = {"HOME": "/home/ada", "PATH": "/usr/bin:/bin", "LANG": "C.UTF-8", "TERM": "xterm"}
    packages = {"PIP_INDEX_URL": "http://a b/", "UV_OFFLINE": "1", "https_proxy": "http://p", "SSL_CERT_FILE": "/c"}
    others = {"PYTHONDONTWRITEBYTECODE": "1", "LLM_DO_MODEL": "test", "OPENAI_API_KEY": "sk", "NO_COLOR": "1"}
    subprocess.run([tmp_path / ".ci/run"], env=common | packages | others, check=True)
    for target in ("check", "test", "floor"):
        lines = (tmp_path / target).read_text().splitlines()
        assert {*(f"{name}={value}" for name, value in (common | packages).items())} <= set(lines)
        assert not others.keys() & {line.partition("=")[0] for line in lines}
