"""`make demo`: runs the project of this folder on a model of this machine, and shows the command that does it."""

import os
import shlex
import subprocess
import sys
from pathlib import Path

REFUSED = 4  # of the exit codes in docs/cli.md
PROJECT = Path(os.path.relpath(Path(__file__).parent))


def main() -> int:
    model = os.environ.get("LLM_DO_MODEL", "local")
    command = ["llm-do", "-C", str(PROJECT), "run", "report", "--model", model, "--verbose", "--usage"]
    print(
        "A folder of documents becomes a checked report. For each of them a worker, which is a prompt with a model,\n"
        "reads vendor, date and total; Python functions check that against the text, add it up and write the report.\n"
    )
    if not (sys.stdin.isatty() and sys.stderr.isatty()):
        command.append("--approve-all")
        print("There is no terminal to ask at, so the report is written without asking (--approve-all).\n")
    print(f"$ .venv/bin/{shlex.join(command)}", flush=True)
    with subprocess.Popen([str(Path(sys.executable).with_name("llm-do")), *command[1:]]) as process:
        try:
            code = process.wait()
        except KeyboardInterrupt:  # it was interrupted too, and says so
            return process.wait()
    if code == REFUSED:
        print("\nYou said no, so nothing was written.")
        return 0
    if code == 0:
        report = PROJECT / "report.md"
        print(f"\n{report}:\n\n{report.read_text()}")
        print(f"What to look at, and how to run it on a big model: {PROJECT}/README.md")
    return code


if __name__ == "__main__":
    sys.exit(main())
