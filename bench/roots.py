"""A small file through a root, beside a plain open: `python bench/roots.py`.

CPU time, interleaved, in memory (where a plain write is cheapest) and on the disk of the temporary folder.
"""

import tempfile
from collections.abc import Callable
from pathlib import Path
from statistics import median
from time import process_time

from llm_do.sandbox import RootConfig, SandboxConfig, SandboxManager, SandboxToolset
from llm_do.sandbox.roots.system_calls import best_opener, walk

TARGET = 3.0
TEXT = "a line of text\n" * 60


def measure(variants: dict[str, Callable[[], object]], rounds: int = 41, times: int = 300) -> dict[str, float]:
    samples: dict[str, list[float]] = {name: [] for name in variants}
    for _ in range(rounds):
        for name, work in variants.items():
            start = process_time()
            for _ in range(times):
                work()
            samples[name].append((process_time() - start) / times * 1e6)
    return {name: median(values) for name, values in samples.items()}


def main(folder: Path) -> None:
    config = SandboxConfig(paths={"data": RootConfig(root="data", mode="rw")})
    protected = [folder / "workers", folder / ".git", folder / "journal.db"]
    (folder / ".git").mkdir()
    (folder / "workers").mkdir()
    for depth, path in {1: "a.txt", 3: "some/folder/a.txt"}.items():
        plain = folder / "data" / path
        plain.parent.mkdir(parents=True, exist_ok=True)
        plain.write_text(TEXT)
        variants: dict[str, Callable[[], object]] = {
            "plain read": plain.read_text,
            "plain read again": plain.read_text,
            "plain write": lambda plain=plain: plain.write_text(TEXT),
        }
        for label, opener in {"best": best_opener(), "walk": walk}.items():
            files = SandboxToolset(SandboxManager(config, base=folder, protected=protected, opener=opener))
            variants[f"{label} read"] = lambda files=files, path=path: files.read_text("data", path)
            variants[f"{label} write"] = lambda files=files, path=path: files.write_text("data", path, TEXT)
        times = measure(variants)
        for name, time in times.items():
            ratio = time / times["plain write" if name.endswith("write") else "plain read"]
            verdict = "ok" if ratio <= TARGET else "over"
            print(f"depth {depth}  {name:<18} {time:8.1f} us  {ratio:5.2f} x  <= {TARGET} {verdict}")


if __name__ == "__main__":
    print(f"openat2 is {'used' if best_opener() is not walk else 'not there: walk is used'}")
    for parent in (Path("/dev/shm"), Path(tempfile.gettempdir())):
        if parent.is_dir():
            print(f"in {parent}")
            with tempfile.TemporaryDirectory(dir=parent) as name:
                main(Path(name))
