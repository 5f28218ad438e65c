"""Checks what docs/comparison.md says about each peer: `python bench/comparison/run.py`. It needs `uv`."""

import os
import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

HERE = Path(__file__).parent
PEERS = {
    "langgraph_langchain.py": "requirements.txt",
    "openai_agents.py": "requirements.txt",
    "pydantic_ai_delegation.py": "requirements.txt",
    "crewai_crews.py": "requirements-crewai.txt",
}


def main() -> None:
    failed = []
    with TemporaryDirectory() as folder:
        for requirements in sorted(set(PEERS.values())):
            python = Path(folder, requirements, "bin/python")
            subprocess.run(["uv", "venv", "--quiet", "--python", sys.executable, python.parent.parent], check=True)
            subprocess.run(
                ["uv", "pip", "install", "--quiet", "--python", python, "-r", HERE / requirements], check=True
            )
        # No key of yours, no folder of yours, and nothing is sent anywhere.
        quiet = {"CREWAI_DISABLE_TELEMETRY": "true", "OTEL_SDK_DISABLED": "true", "LANGSMITH_TRACING": "false"}
        environment = {"PATH": os.environ["PATH"], "HOME": folder, **quiet}
        for program, requirements in PEERS.items():
            python = Path(folder, requirements, "bin/python")
            run = subprocess.run(
                [python, HERE / program], env=environment, cwd=folder, stderr=subprocess.PIPE, text=True
            )
            if run.returncode:
                failed.append(program)
                print(run.stderr)
    sys.exit(f"not so any more: {', '.join(failed)}" if failed else 0)


if __name__ == "__main__":
    main()
