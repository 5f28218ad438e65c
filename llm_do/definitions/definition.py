"""Workers as their files define them: one pydantic model is the format.

No code of the project is imported: a reference such as `schemas.py:Deck` stays text here.
"""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, Field, model_validator

from ..policy.rules import Places, ToolRule, ToolRules
from ..sandbox import SandboxConfig
from .fields import AllowedWorkers, Amount, AttachmentPolicy, CompatibleModel, Count, Flag, Name, Section, Word
from .shapes import InputShape, Shape
from .toolsets import Native, Toolset


class WorkerLimits(Section):
    """Budgets of one worker, as in `Limits`. A field that is `None` is not limited here."""

    max_calls: Count | None = None
    max_requests: Count | None = None
    max_tokens: Count | None = None
    max_cost: Amount | None = None
    timeout: Amount | None = None


class WorkerDefinition(Section):
    """A worker, as its file defines it."""

    name: Name
    description: str | None = None
    model: Word | None = None
    compatible_models: tuple[CompatibleModel, ...] = ()
    """Which models it can use: patterns such as `anthropic:*`, and capabilities such as `vision`."""
    model_settings: dict[str, Any] | None = None
    input: InputShape | None = None
    """Its parameters: a JSON Schema, or a reference to a class. `none` if its instructions are enough."""
    output: Shape | None = None
    """Its result: a JSON Schema, or a reference to a class. Without one it is text."""
    tools: tuple[Name, ...] = ()
    """Entries of the project that its model may call, each with a schema of its own."""
    toolsets: tuple[Toolset, ...] = ()
    allow_workers: AllowedWorkers = ()
    """Workers that its model may delegate to with `worker_call`; `["*"]` is any."""
    tool_rules: ToolRules = Field(default={})
    sandbox: SandboxConfig | None = None
    attachment_policy: AttachmentPolicy = AttachmentPolicy()
    native: tuple[Native, ...] = ()
    """Tools that the model's provider runs."""
    limits: WorkerLimits | None = None
    on_cut_off: Literal["note", "error"] = "note"
    """The reaction to an answer of its model that is cut off: a note in the record, or an error."""
    locked: Flag = False
    """No model may overwrite the file."""
    created_by: Word | None = None
    """The creator of a generated worker, whose rights it cannot exceed."""
    instructions: Annotated[str, AfterValidator(str.strip)] = ""

    @model_validator(mode="after")
    def _rules_know_the_roots(self) -> WorkerDefinition:
        if self.sandbox is not None and self.tool_rules:
            self.__dict__["tool_rules"] = _placed(self.tool_rules, places_of(self.sandbox, Path.cwd()))
        return self

    def at(self, base: Path, roots: SandboxConfig | None = None) -> WorkerDefinition:
        """Return the worker with rules that know which folders their paths mean in the project at `base`.

        `roots` are those of the project, for a worker without its own.
        """
        places = places_of(self.sandbox or roots, base)
        return self.model_copy(update={"tool_rules": _placed(self.tool_rules, places)}) if self.tool_rules else self


def places_of(sandbox: SandboxConfig | None, base: Path) -> Places:
    """Return the folders that paths in the rules of a worker refer to."""
    roots = sandbox.paths if sandbox is not None else {}
    return Places({name: root.folder(base) for name, root in roots.items()}, base)


def _placed(rules: dict[str, tuple[ToolRule, ...]], places: Places) -> dict[str, tuple[ToolRule, ...]]:
    return {name: tuple(dataclasses.replace(rule, places=places) for rule in listed) for name, listed in rules.items()}


class WorkerSpec(Section):
    """A worker to be created. For a field that is `None`, the default holds."""

    name: Name
    instructions: str
    description: str | None = None
    model: Word | None = None
    compatible_models: tuple[CompatibleModel, ...] | None = None
    model_settings: dict[str, Any] | None = None
    input: InputShape | None = None
    output: Shape | None = None
    tools: tuple[Name, ...] | None = None
    toolsets: tuple[Toolset, ...] | None = None
    allow_workers: AllowedWorkers | None = None
    tool_rules: ToolRules | None = None
    sandbox: SandboxConfig | None = None
    attachment_policy: AttachmentPolicy | None = None
    native: tuple[Native, ...] | None = None
    limits: WorkerLimits | None = None


class WorkerCreationDefaults(Section):
    """Values of a created worker for fields that its spec leaves out."""

    default_model: Word | None = None
    default_sandbox: SandboxConfig | None = None
    default_tool_rules: ToolRules | None = None
    default_attachment_policy: AttachmentPolicy | None = None


def define(spec: WorkerSpec, defaults: WorkerCreationDefaults, created_by: str | None) -> WorkerDefinition:
    """Return the definition of a new worker. A rule of the spec replaces the default one of that name."""
    values = {key.removeprefix("default_"): value for key, value in defaults if value is not None}
    values |= {key: value for key, value in spec if value is not None}
    values["tool_rules"] = {**(defaults.default_tool_rules or {}), **(spec.tool_rules or {})}
    return WorkerDefinition.model_validate({**values, "created_by": created_by})


def json_schema() -> dict[str, Any]:
    """Return the JSON Schema of worker files, for editors."""
    schema = WorkerDefinition.model_json_schema()
    schema["required"].remove("name")  # the file's own name says it
    schema["properties"]["input"]["anyOf"].remove({"type": "null"})  # `input:` with nothing is refused: `none` says it
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **schema}
