"""Models of a provider that a project brings along, by name: `[providers]` in `llm-do.toml`."""

import json
import os
from collections.abc import Callable
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from llm_do import (
    Event,
    LimitExceeded,
    Limits,
    ModelChoiceError,
    Runtime,
    WorkerCreationDefaults,
    WorkerEntry,
    WorkerFileError,
    WorkerRegistry,
    WorkerSpec,
    create_worker,
    run_worker,
)
from llm_do.models.servers import MODEL_SERVERS

from ..cli.in_process import RunHere, run_here  # noqa: F401 - a fixture

Make = Callable[..., WorkerRegistry]

CONFIG = '[providers]\nacme = "acme_models:make"\n'
CODE = """\
from pathlib import Path
from pydantic_ai.models.test import TestModel

with open(Path(__file__).with_name("imported"), "a") as file:
    file.write("x")

def make(name):
    return TestModel(custom_output_text=f"made {name}", model_name="inner")
"""
PLAIN = "instructions: x\n"
NAMED = "model: acme:fast\ninstructions: x\n"


@pytest.fixture
def make(tmp_path: Path) -> Make:
    """Makes a project with a provider of its own: the rest of its configuration, its code, and more files."""

    def project(config: str = "", code: str = CODE, **workers: str) -> WorkerRegistry:
        (tmp_path / "llm-do.toml").write_text(config + CONFIG if "[providers]" not in config else config)
        (tmp_path / "acme_models.py").write_text(code)
        (tmp_path / "workers").mkdir(exist_ok=True)
        for name, text in {"plain": PLAIN, "named": NAMED, **workers}.items():
            (tmp_path / f"workers/{name}.yaml").write_text(text)
        return WorkerRegistry(tmp_path)

    return project


def unavailable_reason(registry: WorkerRegistry, model: str = "acme:fast") -> str:
    """Return the error of a worker that is to use a model."""
    with pytest.raises(ModelChoiceError) as caught:
        run_worker(registry=registry, worker="plain", input_data="x", cli_model=model)
    return str(caught.value)


# -- where a model is named --------------------------------------------------------------------------


def test_a_worker_file_names_it(make: Make) -> None:
    """`model: acme:fast` of a worker calls the factory with "fast"; the record has the name as it was asked for."""
    result = run_worker(registry=make(), worker="named", input_data="x")
    assert result.output == "made fast"
    assert [record.model for record in result.trace] == ["acme:fast"]


def test_the_callers_of_the_api_name_it(make: Make) -> None:
    assert run_worker(registry=make(), worker="plain", input_data="x", cli_model="acme:a:b/c").output == "made a:b/c"


def test_the_default_of_the_project_names_it(make: Make) -> None:
    assert run_worker(registry=make('model = "acme:slow"\n'), worker="plain", input_data="x").output == "made slow"


@pytest.mark.parametrize(
    ("words", "env"), [(("-m", "acme:fast"), {}), ((), {"LLM_DO_MODEL": "acme:fast"})], ids=["-m", "LLM_DO_MODEL"]
)
def test_the_command_line_names_it(
    make: Make,
    tmp_path: Path,
    run_here: RunHere,  # noqa: F811
    words: tuple[str, ...],
    env: dict[str, str],
) -> None:
    make()
    done = run_here("run", *words, "plain", "hello", cwd=tmp_path, **env)
    assert (done.returncode, done.stdout.strip()) == (0, "made fast")


async def test_an_entry_of_the_session_names_it(make: Make) -> None:
    """A worker that is made in Python has it in a session of the project."""
    worker = WorkerEntry(name="inline", instructions="x", model="acme:fast")
    assert await Runtime(make()).call(worker, "x") == "made fast"


def test_one_model_is_made_once_in_a_session(make: Make, tmp_path: Path) -> None:
    """A second call of the factory would fail here."""
    code = CODE.replace("def make(name):\n", "def make(name):\n    Path(__file__).with_name(name).mkdir()\n")
    runtime = Runtime(make(code=code))
    assert [runtime.call_sync("named", "x") for _ in range(2)] == ["made fast"] * 2
    assert (tmp_path / "fast").is_dir()


# -- project code ------------------------------------------------------------------------------------


def test_nothing_is_imported_before_a_model_of_it_is_used(make: Make, tmp_path: Path) -> None:
    """Reading definitions, and workers with other models, do not import the factory's module."""
    registry = make()
    assert registry.definition("named").model == "acme:fast" and registry["named"].model == "acme:fast"
    run_worker(registry=registry, worker="plain", input_data="x", cli_model="test")
    assert not (tmp_path / "imported").exists()
    run_worker(registry=registry, worker="named", input_data="x")
    assert (tmp_path / "imported").exists()


def test_nothing_is_imported_that_a_worker_can_write(make: Make, tmp_path: Path) -> None:
    """The import guard holds for the factory as for `tools.py`."""
    registry = make(
        '[providers]\nacme = "models.acme:make"\n',
        writer="instructions: x\nsandbox: {paths: {m: {root: models, mode: rw}}}\n",
    )
    (tmp_path / "models").mkdir()
    (tmp_path / "models/acme.py").write_text(CODE)
    said = unavailable_reason(registry)
    assert "llm-do.toml, provider 'acme': the factory models.acme:make" in said and "workers can change" in said
    assert not (tmp_path / "models/imported").exists()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a file away")
def test_nothing_of_another_user_is_imported(make: Make, tmp_path: Path) -> None:
    """With `owners`, a module of another user is not run."""
    make()
    os.chown(tmp_path / "acme_models.py", 4242, -1)
    assert "is not run" in unavailable_reason(WorkerRegistry(tmp_path, owners={os.geteuid()}))
    assert not (tmp_path / "imported").exists()


# -- errors ------------------------------------------------------------------------------------------

KNOWN = ["openai", "anthropic", "mistral", "openai-responses", "litellm", "local", "test", "gateway", "google-gla"]


@pytest.mark.parametrize("prefix", [*KNOWN, *(server.provider for server in MODEL_SERVERS)])
def test_the_prefix_of_a_known_provider_cannot_be_taken(make: Make, prefix: str) -> None:
    """Also one whose package is not installed. The error has the line."""
    with pytest.raises(WorkerFileError, match=rf"^llm-do\.toml:4: the prefix '{prefix}' means another provider"):
        _ = make(f'model = "{prefix}:x"\n\n[providers]\n{prefix} = "acme_models:make"\n').config


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ('"gateway/openai" = "m:f"', "'gateway/openai' cannot be a provider's prefix"),
        ('OpenAI = "m:f"', "'OpenAI' cannot be a provider's prefix"),
        ('"" = "m:f"', "'' cannot be a provider's prefix"),
        ('acme = "acme_models"', "'acme_models' is no factory of provider 'acme': write acme = \"module:function\"."),
    ],
)
def test_what_is_no_provider_is_refused_in_its_line(make: Make, line: str, said: str) -> None:
    with pytest.raises(WorkerFileError) as caught:
        _ = make(f"[providers]\n{line}\n").config
    assert str(caught.value).startswith(f"llm-do.toml:2: {said}")


@pytest.mark.parametrize(
    ("code", "said"),
    [
        ("def make(name):\n    raise KeyError('region')\n", "failed (acme_models.py:2): KeyError: 'region'"),
        ("def make(name):\n    return 5\n", "returned 5, which is no model. Return a PydanticAI Model."),
        ("async def make(name): ...\n", "is async. Write `def`, without `async`."),
        ("make = 5\n", "is no function: it is 5."),
        ("import no_such_package\n", "No module named 'no_such_package'"),
        ("x = 1\n", "acme_models has no 'make'"),
        ("raise SystemExit(3)\n", "SystemExit: 3"),
    ],
)
def test_errors_name_file_prefix_and_factory(make: Make, code: str, said: str) -> None:
    message = unavailable_reason(make(code=code))
    begins = "Worker 'plain' cannot use model 'acme:fast': llm-do.toml, provider 'acme': the factory acme_models:make"
    assert message.startswith(begins) and said in message


def test_a_missing_module_is_named(make: Make) -> None:
    message = unavailable_reason(make('[providers]\nacme = "nowhere:make"\n'))
    assert "the factory nowhere:make" in message and "No module named 'nowhere'" in message


def test_names_that_are_not_whole_or_nearly_right(make: Make) -> None:
    assert "the name of the model is missing: write acme:MODEL." in unavailable_reason(make(), "acme:")
    assert "there is no provider 'acm'. Did you mean 'acme'?" in unavailable_reason(make(), "acm:fast")
    assert unavailable_reason(make(), "zzz:fast").endswith(" One of your own goes under [providers] in llm-do.toml.")


def test_a_factory_that_is_not_there_is_named_once(make: Make) -> None:
    message = unavailable_reason(make('[providers]\nacme = "acme_models:nowhere"\n'))
    assert message.endswith("the factory acme_models:nowhere: acme_models has no 'nowhere'.")


SCRIPTED = """\
from pydantic_ai.models.function import FunctionModel
from pydantic_ai.messages import ModelResponse, TextPart

def make(name):
    return FunctionModel(lambda *_: ModelResponse(parts=[TextPart("x")]))
"""


def notices(registry: WorkerRegistry, **session: Any) -> list[str]:
    """Return what the session tells a person in a call of `named`."""
    told: list[str] = []

    def listen(event: Event) -> None:
        if event.type == "notice":
            told.append(event.text)

    Runtime(registry, message_callback=listen, **session).call_sync("named", "x")
    return told


def test_messages_name_a_model_as_prices_do(make: Make) -> None:
    """What stands in the notice, and in the refusal, can be copied to [prices]."""
    registry = make(code=SCRIPTED)
    told = notices(registry, limits=Limits(max_cost=3, max_unpriced_tokens=100_000))
    assert any(text.startswith("The price of model 'acme:fast' is not known") for text in told)
    with pytest.raises(LimitExceeded, match="no price is known for model 'acme:fast'"):
        Runtime(registry, limits=Limits(max_cost=3)).call_sync("named", "x")


def test_the_name_of_a_model_decides_whether_it_is_compatible(make: Make) -> None:
    """`compatible_models: [acme:*]` means every model of the provider, also one that stands for another in tests."""
    assert notices(make(code=SCRIPTED, named=f"compatible_models: [acme:*]\n{NAMED}")) == []
    [told] = notices(make(code=SCRIPTED, named=f"compatible_models: [openai:*]\n{NAMED}"))
    assert told.startswith("It is not known whether model 'acme:fast' fits")


# -- prices ------------------------------------------------------------------------------------------


def test_prices_under_the_prefix_count(make: Make) -> None:
    """They are those of the name that was asked for, whatever the factory's model is called."""
    registry = make('[prices."acme:fast"]\nrequest = 2\n')
    runtime = Runtime(registry, limits=Limits(max_cost=3))
    runtime.call_sync("named", "x")
    assert runtime.budget.spent == Decimal(2)
    with pytest.raises(LimitExceeded):
        runtime.call_sync("named", "x")
    assert set(runtime.usage_by_provider) == {"acme:inner"}


def test_without_one_the_price_is_that_of_the_model_itself(make: Make) -> None:
    registry = make("[prices.inner]\nrequest = 2\n")
    runtime = Runtime(registry, limits=Limits(max_cost=3))
    runtime.call_sync("named", "x")
    assert runtime.budget.spent == Decimal(2)


# -- generated workers -------------------------------------------------------------------------------


def test_a_generated_worker_cannot_name_one_that_its_creator_has_not(make: Make, tmp_path: Path) -> None:
    """A model would choose what project code is called with. What its creator has itself, it can hand on."""
    registry = make()
    spec = WorkerSpec(name="made", instructions="x", model="acme:fast")
    with pytest.raises(WorkerFileError, match="Worker 'plain' cannot give the model 'acme:fast'"):
        registry.create(spec, created_by="plain")
    registry.create(spec, created_by="named")
    assert registry["made"].model == "acme:fast"
    (tmp_path / "workers/named.yaml").write_text(PLAIN)
    assert registry["made"].model is None


def test_a_file_that_nobody_created_has_no_model_of_its_own_provider(make: Make, tmp_path: Path) -> None:
    registry = make()
    (tmp_path / "workers/generated").mkdir()
    (tmp_path / "workers/generated/forged.yaml").write_text(NAMED)
    assert registry["forged"].model is None


def test_a_program_can_give_it(make: Make) -> None:
    registry = make()
    create_worker(
        registry=registry,
        spec=WorkerSpec(name="made", instructions="x"),
        defaults=WorkerCreationDefaults(default_model="acme:fast"),
    )
    assert run_worker(registry=registry, worker="made", input_data="x").output == "made fast"


# -- commands that look ------------------------------------------------------------------------------


def test_check_imports_factories_and_calls_none(make: Make, tmp_path: Path, run_here: RunHere) -> None:  # noqa: F811
    make(code="def make(name):\n    raise ValueError\n")
    done = run_here("check", "--json", cwd=tmp_path)
    assert done.returncode == 0, done.stdout


def test_check_tells_the_line_of_a_provider_without_a_factory(
    make: Make,
    tmp_path: Path,
    run_here: RunHere,  # noqa: F811
) -> None:
    make('model = "acme:x"\n\n[providers]\nacme = "acme_models:other"\n')
    found = json.loads(run_here("check", "--json", cwd=tmp_path).stdout)["problems"]
    errors = [problem for problem in found if problem["level"] == "error"]
    assert [(each["file"], each["line"]) for each in errors] == [("llm-do.toml", 4)]
    assert errors[0]["message"] == "provider 'acme': the factory acme_models:other: acme_models has no 'other'."


def test_show_and_doctor_import_nothing_for_it(make: Make, tmp_path: Path, run_here: RunHere) -> None:  # noqa: F811
    make('model = "acme:x"\n')
    assert "acme:x" in run_here("show", "plain", cwd=tmp_path).stdout
    assert "acme_models:make makes it" in run_here("doctor", cwd=tmp_path).stdout
    assert not (tmp_path / "imported").exists()
