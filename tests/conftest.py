import os
import sys
import tempfile
from collections.abc import Iterator

import pytest
from hypothesis import HealthCheck, settings

USERS_CACHE = os.environ.get("LLM_DO_CACHE", "")
"""What the variable was before the tests; empty is the usual folder of the user."""
_EMPTY = tempfile.TemporaryDirectory(prefix="llm-do-no-weights-")
# Which weights somebody has on their machine decides no test. What is set here holds for the programs they start, too.
os.environ["LLM_DO_CACHE"] = _EMPTY.name
# Neither does what they said yes to once.
_STATE = tempfile.TemporaryDirectory(prefix="llm-do-no-answers-")
os.environ["XDG_STATE_HOME"] = _STATE.name
# Neither does who started them: a CI job is asked nothing, whatever its terminal.
os.environ.pop("CI", None)
# How fast a machine is decides no test either.
settings.register_profile("llm-do", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("llm-do")


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture(autouse=True)
def _forget_projects() -> Iterator[None]:
    """Let no import look at the projects of earlier tests, which the command line keeps from the garbage collector."""
    yield
    if (importing := sys.modules.get("llm_do.projects.import_guard")) is not None:
        importing.GUARD._projects = ()
