import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

from .world import World

_SLOW = [HealthCheck.too_slow, HealthCheck.function_scoped_fixture]
settings.register_profile(
    "security", max_examples=12, deadline=None, derandomize=True, database=None, suppress_health_check=_SLOW
)
settings.register_profile("fuzz", max_examples=2000, deadline=None, suppress_health_check=_SLOW)
SETTINGS = settings.get_profile("fuzz" if os.environ.get("HYPOTHESIS_PROFILE") == "fuzz" else "security")


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    made = World(tmp_path)
    yield made
    made.close()
