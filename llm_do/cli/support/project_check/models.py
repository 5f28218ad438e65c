"""The models and providers of a project: whether this machine and the workers can use them."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache, partial
from typing import NamedTuple

from pydantic_ai.exceptions import UserError
from pydantic_ai.models import Model

from ....definitions.toolsets import native_tool
from ....errors import LocalModelError, ModelChoiceError
from ....models.choice import choose_default_model
from ....models.compatibility import find_unfit_model, name_fits
from ....models.resolve import custom_provider, explain_unusable, load_factory, missing_variable, resolve_model
from ....projects.layout import CONFIG
from .project import CheckedProject, Problem, join_names, line_of


class ModelProblem(NamedTuple):
    message: str
    is_name_wrong: bool
    """If not, something is missing on this machine."""


@cache
def find_model(name: str) -> ModelProblem | Model:
    """Return the model of this name, or why it cannot be used. Nothing is sent."""
    try:
        return resolve_model(name)
    except (LocalModelError, ModelChoiceError) as exc:
        return ModelProblem(f"{exc}", is_name_wrong=isinstance(exc, LocalModelError))
    except (ImportError, UserError) as exc:
        is_name_wrong = isinstance(exc, UserError) and missing_variable(exc) is None
        return ModelProblem(explain_unusable(name, exc), is_name_wrong)
    except Exception as exc:  # a provider's package may raise anything
        return ModelProblem(f"{type(exc).__name__}: {exc}", is_name_wrong=False)


def check_providers(project: CheckedProject) -> Iterator[Problem]:
    """Yield own providers without a factory. No factory is called, since that takes the name of a model."""
    path = project.config_file
    for prefix, reference in project.registry.providers().items():
        load = partial(load_factory, prefix, reference, project.registry.load)
        for problem in project.attempt("provider", load, path):
            if problem.file == CONFIG:
                message = problem.message.removeprefix(f"{CONFIG}, ")
                problem = problem._replace(message=message, line=line_of(path, prefix, "[providers"))
            yield problem


def check_models(project: CheckedProject) -> Iterator[Problem]:
    """Yield models that cannot be used, each once, and workers that have none."""
    config = project.registry.config
    users: dict[str, list[str]] = {}
    for name, definition in project.definitions.items():
        if definition.model is not None:
            users.setdefault(definition.model, []).append(name)
    if config.model is not None:
        users.setdefault(config.model, [])
    for model, workers in users.items():
        if custom_provider(model, config.providers) is None:
            yield from _check_model(project, model, workers)
    without = [name for name, definition in project.definitions.items() if definition.model is None]
    if config.model is not None and custom_provider(config.model, config.providers) is None:
        yield from _find_misfits(project, config.model, find_model(config.model), without)
    if without and choose_default_model(None, config.model, servers=()).model is None:
        message = f"no model is set for {join_names(without)}: write `model` in {CONFIG}, or see `llm-do doctor`."
        yield Problem("note", "no-model", message, names=tuple(without))


def _check_model(project: CheckedProject, model: str, workers: list[str]) -> Iterator[Problem]:
    path, found = project.path_of(workers[0]) if workers else project.config_file, find_model(model)
    if isinstance(found, ModelProblem):
        level = "error" if found.is_name_wrong else "warning"
        users = f" ({join_names(workers)})" if len(workers) > 1 else ""
        message = f"model {model!r}{users}: {found.message}"
        yield project.problem(level, "model", message, path, model, "model", names=(model,))
    yield from _find_misfits(project, model, found, workers)
    if isinstance(found, ModelProblem) or (supported := found.profile.get("supported_native_tools")) is None:
        return
    for worker in workers:
        for tool in map(native_tool, project.definitions[worker].native):
            if type(tool) not in supported:
                message = f"worker {worker!r}: the model {model!r} does not support the native tool {tool.kind}."
                yield project.problem("warning", "native", message, path, model, "model", names=(worker,))


def _find_misfits(
    project: CheckedProject, model: str, found: ModelProblem | Model, workers: list[str]
) -> Iterator[Problem]:
    """Yield workers that cannot use this model. If it cannot be loaded, only its name is compared."""
    for worker in workers:
        definition = project.definitions[worker]
        compatible = definition.compatible_models
        if isinstance(found, ModelProblem):
            level, fits = "warning", name_fits(model, compatible)
        else:
            level, fits = "error", find_unfit_model(found, compatible, model) is None
        if not fits:
            its = f"its model {model!r}" if definition.model else f"the model {model!r} of {CONFIG}"
            message = f"worker {worker!r}: {its} is none of its compatible_models: {', '.join(compatible)}."
            path = project.path_of(worker)
            yield project.problem(level, "compatible-models", message, path, "compatible_models", names=(worker,))
