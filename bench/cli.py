"""The command line beside Python itself: `python bench/cli.py`. Wall time of whole processes, interleaved."""

import os
import subprocess
import sys
import tempfile
from pathlib import Path
from statistics import quantiles
from time import perf_counter

AGENT = """
from pydantic_ai import Agent
agent = Agent("test", instructions="Say something.")
print(agent.run_sync("hello").output)
"""


def measure(commands: dict[str, tuple[list[str], dict[str, str]]], folder: Path, rounds: int = 15) -> dict[str, float]:
    samples: dict[str, list[float]] = {name: [] for name in commands}
    for _ in range(rounds):
        for name, (command, variables) in commands.items():
            start = perf_counter()
            subprocess.run(
                command, cwd=folder, env={**os.environ, **variables}, check=True, capture_output=True,
                stdin=subprocess.DEVNULL,
            )  # fmt: skip
            samples[name].append((perf_counter() - start) * 1e3)
    return {name: quantiles(values, n=4)[0] for name, values in samples.items()}


def main() -> None:
    python, program = sys.executable, str(Path(sys.executable).with_name("llm-do"))
    quiet = {"PYDANTIC_AI_NO_BANNER": "1", "LLM_DO_NO_LOCAL": "1"}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "workers").mkdir()
        for number in range(100):
            text = f"---\ndescription: Worker number {number}.\nmodel: test\n---\nSay something.\n"
            (folder / "workers" / f"worker{number}.md").write_text(text)
        tab = {"_LLM_DO_COMPLETE": "bash_complete", "COMP_CWORD": "1", "COMP_WORDS": "llm-do r"}
        names = {"_LLM_DO_COMPLETE": "bash_complete", "COMP_CWORD": "2", "COMP_WORDS": "llm-do run work"}
        commands = {
            "python -c pass": ([python, "-c", "pass"], {}),
            "llm-do --help": ([program, "--help"], {}),
            "TAB on a command": ([program], tab),
            "TAB on a worker": ([program], names),
            "llm-do list, 100 workers": ([program, "list"], {}),
            "pydantic_ai, the same agent": ([python, "-c", AGENT], quiet),
            "llm-do run": ([program, "run", "worker1", "hello"], quiet),
        }
        times = measure(commands, folder)
    targets = {"llm-do --help": 4, "TAB on a command": 5, "TAB on a worker": 8, "llm-do list, 100 workers": 15}
    for name, time in times.items():
        base = "pydantic_ai, the same agent" if name == "llm-do run" else "python -c pass"
        target = 1.15 if name == "llm-do run" else targets.get(name)
        ratio = time / times[base]
        verdict = "" if target is None else f"<= {target} {'ok' if ratio <= target else 'over'}"
        print(f"{name:<30} {time:8.1f} ms  {ratio:6.2f} x {base:<28} {verdict}")


if __name__ == "__main__":
    main()
