"""What a worker file says. One pydantic model is the format, as Markdown with front matter and as YAML.

Reading a definition imports no code of the project: a reference such as `schemas.py:Deck` stays text here.
Nothing in a file is skipped: what is not understood is an error, and all errors of a file come together.
"""

from __future__ import annotations

import dataclasses
import json
import re
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Annotated, Any, Literal, get_args

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    PlainSerializer,
    PlainValidator,
    TypeAdapter,
    ValidationError,
    WithJsonSchema,
    model_validator,
)
from pydantic_ai.native_tools import NATIVE_TOOL_TYPES, AbstractNativeTool
from pydantic_core import PydanticSerializationError

from ..errors import WorkerFileError, did_you_mean, summarize
from ..models.compatibility import CAPABILITIES, check_wanted
from ..policy.rules import Places, ToolRule, ToolRules
from ..sandbox import SandboxConfig
from ..values.json_schema import check_bounds
from ..values.names import NAME_PATTERN, check_name
from ..values.texts import quote_json
from .yaml_lines import (
    Document,
    Problem,
    UnreadableError,
    decode,
    is_plain_text,
    problems_of,
    read_yaml,
    split_front_matter,
    write_yaml,
)

# -- words -------------------------------------------------------------------------------------------

ToolsetName = Literal["files", "shell", "worker_create"]
"""Toolsets with a name of their own; others are references to a factory, or MCP servers."""

_DOTTED = r"[A-Za-z_][A-Za-z0-9_]*(?:\.[A-Za-z_][A-Za-z0-9_]*)*"
_REFERENCE = re.compile(rf"(?:(?:[A-Za-z0-9_-]+/)*[A-Za-z0-9_-]+\.py|{_DOTTED}):{_DOTTED}")


def _check_reference(value: str) -> str:
    if _REFERENCE.fullmatch(value) is None:
        raise ValueError(f"{value!r} is no reference: write 'module:Name' or 'file.py:Name'.")
    return value


def _check_workers(names: tuple[str, ...]) -> tuple[str, ...]:
    if "*" in names and len(names) > 1:
        raise ValueError('write ["*"] for any worker, or only names.')
    return names


def _check_suffix(suffix: str) -> str:
    if len(suffix) < 2 or not suffix.startswith(".") or "/" in suffix:
        raise ValueError(f"{suffix!r} is no suffix: write it with its dot, such as '.txt'.")
    return suffix.casefold()


# A plain `bool` or `int` would take the text "yes" or "1_000" as well.
Flag = Annotated[bool, Field(strict=True)]
Count = Annotated[int, Field(strict=True, ge=0)]
Amount = Annotated[float, Field(strict=True, ge=0)]
Word = Annotated[str, Field(min_length=1)]
Argument = Annotated[str, Field(pattern=r"^[^\x00]*$")]
Suffix = Annotated[str, AfterValidator(_check_suffix)]
CompatibleModel = Annotated[
    str,
    AfterValidator(check_wanted),
    WithJsonSchema({"anyOf": [{"enum": list(CAPABILITIES)}, {"type": "string", "pattern": "^[^:]+:.+$"}]}),
]
Name = Annotated[str, AfterValidator(check_name), Field(json_schema_extra={"pattern": NAME_PATTERN})]
AllowedWorker = Annotated[
    str,
    AfterValidator(lambda name: name if name == "*" else check_name(name)),
    WithJsonSchema({"anyOf": [{"type": "string", "pattern": NAME_PATTERN}, {"const": "*"}]}),
]
AllowedWorkers = Annotated[tuple[AllowedWorker, ...], AfterValidator(_check_workers)]
Reference = Annotated[
    str,
    AfterValidator(_check_reference),
    Field(json_schema_extra={"pattern": f"^(?:{_REFERENCE.pattern})$"}),
]


class _Part(BaseModel):
    # Built when it is first used, which most of the parts are not.
    model_config = ConfigDict(
        frozen=True, extra="forbid", allow_inf_nan=False, use_attribute_docstrings=True, defer_build=True
    )


# -- input and output --------------------------------------------------------------------------------


def _check_schema(value: Any) -> Any:
    if not isinstance(value, bool):
        _JsonSchema.model_validate(value)
    return value


def _listed(value: Any) -> Any:
    return [value] if isinstance(value, str) else value


_Schema = Annotated[Any, AfterValidator(_check_schema)]
_SchemaType = Literal["object", "array", "string", "number", "integer", "boolean", "null"]


class _JsonSchema(BaseModel):
    """Those keywords of a JSON Schema whose mistakes are worth a line number."""

    type: Annotated[list[_SchemaType], BeforeValidator(_listed)] = []
    properties: dict[str, _Schema] = {}
    required: list[str] = []
    items: _Schema = {}
    enum: list[Any] = []
    defs: dict[str, _Schema] = Field(default={}, alias="$defs")
    ref: str = Field(default="#", alias="$ref", pattern="^#")  # another file's would have to be fetched

    @model_validator(mode="after")
    def _required_is_there(self) -> _JsonSchema:
        for name in self.required if self.properties else ():
            if name not in self.properties:
                raise ValueError(f"{name!r} is required, but no property.{did_you_mean(name, self.properties)}")
        return self


def _check_shape(value: Any) -> Any:
    if isinstance(value, str):
        return _check_reference(value)
    _JsonSchema.model_validate(value)
    _check_references(value)
    check_bounds(value)
    return value


def _check_references(schema: Any) -> None:
    """Whatever a schema refers to is in it: another file's would have to be fetched."""
    for key, inner in schema.items() if isinstance(schema, Mapping) else enumerate(schema):
        if key in ("$ref", "$dynamicRef") and isinstance(inner, str) and not inner.startswith("#"):
            raise ValueError(f"{key}: {quote_json(inner)} is elsewhere; a reference starts with '#'.")
        if isinstance(inner, Mapping | list):
            _check_references(inner)


def _check_input_shape(value: Any) -> Any:
    if isinstance(value, str) and value.casefold() == "none":
        if value != "none":
            raise ValueError(f"{value!r}: write `none`, in lower case, for a worker that takes no input.")
        return value
    return _check_input(_check_shape(value))


def _check_input(value: Any) -> Any:
    if isinstance(value, Mapping) and value.get("type") != "object":
        raise ValueError("an inline input needs `type: object`: its properties are the parameters.")
    return value


Shape = Annotated[str | dict[str, Any], PlainValidator(_check_shape, json_schema_input_type=Reference | dict[str, Any])]
InputShape = Annotated[
    str | dict[str, Any],
    PlainValidator(_check_input_shape, json_schema_input_type=Literal["none"] | Reference | dict[str, Any]),
]


# -- toolsets ----------------------------------------------------------------------------------------


def _read_command(value: Any) -> Any:
    if isinstance(value, str) and len(value.split()) > 1:
        raise ValueError(f"{value!r} goes to no shell: write {json.dumps(value.split())}.")
    return _listed(value)


Command = Annotated[
    tuple[Argument, ...],
    BeforeValidator(_read_command, json_schema_input_type=str | list[str]),
    Field(min_length=1),
]


class McpServer(_Part):
    """A server that is started with a command, or reached at a URL."""

    command: Command | None = None
    args: tuple[Argument, ...] = ()
    env: dict[Argument, Argument] | None = None
    cwd: Argument | None = None
    url: Annotated[str, Field(pattern=r"^https?://\S+$")] | None = None
    headers: dict[str, str] | None = None
    start_timeout: Annotated[float, Field(strict=True, gt=0)] = 30
    """Seconds that it may take to start, and to list its tools."""
    roots: tuple[Word, ...] = ()
    """Names of the worker's roots that are announced to the server. This is information: it grants nothing."""
    progress: Flag = False
    """Whether it can say how far a call is."""
    sampling: Flag = False
    """Whether it can ask the worker's model. The rule `mcp.sampling` decides about each request."""

    @model_validator(mode="after")
    def _one_way_to_reach_it(self) -> McpServer:
        if (self.command is None) == (self.url is None):
            raise ValueError("needs either 'command' or 'url'.")
        for key in ("headers",) if self.url is None else ("args", "env", "cwd"):
            if getattr(self, key):
                raise ValueError(f"{key!r} does not go with {'command' if self.url is None else 'url'!r}.")
        return self


class McpToolset(_Part):
    """The tools of an MCP server."""

    mcp: McpServer
    name: Name | None = None
    """The server's name in rules, as in `github/create_issue`."""
    prefix: Name | None = None
    """What the names of its tools start with."""


def _read_toolset(value: Any) -> str | McpToolset:
    if not isinstance(value, str):
        return McpToolset.model_validate(value)
    if value not in get_args(ToolsetName) and _REFERENCE.fullmatch(value) is None:
        raise ValueError(
            f"{value!r} is no toolset.{did_you_mean(value, get_args(ToolsetName))} "
            "Others are 'module:factory', 'file.py:factory', {mcp: {command: [...]}} and {mcp: {url: ...}}."
        )
    return value


@cache
def _native_adapter(kind: str) -> TypeAdapter[AbstractNativeTool]:
    return TypeAdapter(NATIVE_TOOL_TYPES[kind])


def native_tool(item: str | Mapping[str, Any]) -> AbstractNativeTool:
    """The provider-side tool that an item of `native` means: a kind, or `kind` and settings."""
    settings = {"kind": item} if isinstance(item, str) else dict(item)
    kind = settings.pop("kind", None)
    if not isinstance(kind, str) or kind not in NATIVE_TOOL_TYPES:
        hint = did_you_mean(str(kind), NATIVE_TOOL_TYPES)
        raise ValueError(f"{quote_json(item)} is no native tool.{hint} Write a kind, or {{kind: ..., setting: ...}}.")
    known = [field.name for field in dataclasses.fields(NATIVE_TOOL_TYPES[kind])]
    for key in settings:
        if key not in known:
            raise ValueError(f"{kind} has no setting {key!r}.{did_you_mean(str(key), known)}")
    try:
        made: AbstractNativeTool = _native_adapter(kind).validate_python(settings, extra="forbid")
    except ValidationError as error:
        raise ValueError(f"{kind}: {summarize(error)}.") from None
    return made


def _check_native(value: Any) -> Any:
    native_tool(value if isinstance(value, str | Mapping) else {"kind": value})
    return value


def _write_toolset(toolset: str | McpToolset) -> str | dict[str, Any]:
    return toolset if isinstance(toolset, str) else toolset.model_dump(mode="json", exclude_defaults=True)


Toolset = Annotated[
    str | McpToolset,
    PlainValidator(_read_toolset, json_schema_input_type=ToolsetName | Reference | McpToolset),
    PlainSerializer(_write_toolset),
]
_KINDS = {"enum": sorted(NATIVE_TOOL_TYPES)}
Native = Annotated[
    str | dict[str, Any],
    PlainValidator(_check_native),
    WithJsonSchema({"anyOf": [_KINDS, {"type": "object", "properties": {"kind": _KINDS}, "required": ["kind"]}]}),
]


# -- workers -----------------------------------------------------------------------------------------


class AttachmentPolicy(_Part):
    """Which files may be given to a worker."""

    max_attachments: Count = 4
    max_total_bytes: Count = 10_000_000
    suffixes: tuple[Suffix, ...] | None = None
    """How their names end, in upper or lower case. `None` is any way."""


class WorkerLimits(_Part):
    """Budgets of one worker, as in `Limits`. What is not given is not limited here."""

    max_calls: Count | None = None
    max_requests: Count | None = None
    max_tokens: Count | None = None
    max_cost: Amount | None = None
    timeout: Amount | None = None


class WorkerDefinition(_Part):
    """A worker, as its file says it."""

    name: Name
    description: str | None = None
    model: Word | None = None
    compatible_models: tuple[CompatibleModel, ...] = ()
    """Which models it can use: patterns such as `anthropic:*`, and capabilities such as `vision`."""
    model_settings: dict[str, Any] | None = None
    input: InputShape | None = None
    """Its parameters: a JSON Schema, or a reference to a class. `none` if its instructions are enough."""
    output: Shape | None = None
    """What it returns: a JSON Schema, or a reference to a class. Text without one."""
    tools: tuple[Name, ...] = ()
    """Entries of the project that its model may call, each with a schema of its own."""
    toolsets: tuple[Toolset, ...] = ()
    allow_workers: AllowedWorkers = ()
    """Workers that its model may delegate to with `worker_call`; `["*"]` is any."""
    tool_rules: ToolRules = {}
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
    """Whose authority a generated worker cannot exceed."""
    instructions: Annotated[str, AfterValidator(str.strip)] = ""

    @model_validator(mode="after")
    def _rules_know_the_roots(self) -> WorkerDefinition:
        if self.sandbox is not None and self.tool_rules:
            self.__dict__["tool_rules"] = _placed(self.tool_rules, places_of(self.sandbox, Path.cwd()))
        return self

    def at(self, base: Path, roots: SandboxConfig | None = None) -> WorkerDefinition:
        """Return the same worker in the project at `base`, whose rules know which folders their paths mean.

        `roots` are those of the project, for a worker that has none of its own.
        """
        places = places_of(self.sandbox or roots, base)
        return self.model_copy(update={"tool_rules": _placed(self.tool_rules, places)}) if self.tool_rules else self


def places_of(sandbox: SandboxConfig | None, base: Path) -> Places:
    """Return what paths in rules mean to a worker with these folders."""
    roots = sandbox.paths if sandbox is not None else {}
    return Places({name: root.folder(base) for name, root in roots.items()}, base)


def _placed(rules: dict[str, tuple[ToolRule, ...]], places: Places) -> dict[str, tuple[ToolRule, ...]]:
    return {name: tuple(dataclasses.replace(rule, places=places) for rule in said) for name, said in rules.items()}


class WorkerSpec(_Part):
    """A worker to be created. `None` is what the defaults say."""

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


class WorkerCreationDefaults(_Part):
    """What a created worker has where its spec says nothing."""

    default_model: Word | None = None
    default_sandbox: SandboxConfig | None = None
    default_tool_rules: ToolRules | None = None
    default_attachment_policy: AttachmentPolicy | None = None


def define(spec: WorkerSpec, defaults: WorkerCreationDefaults, created_by: str | None) -> WorkerDefinition:
    """The definition of a worker to be created. Each rule of the spec stands before the default one of that name."""
    values = {key.removeprefix("default_"): value for key, value in defaults if value is not None}
    values |= {key: value for key, value in spec if value is not None}
    values["tool_rules"] = {**(defaults.default_tool_rules or {}), **(spec.tool_rules or {})}
    return WorkerDefinition.model_validate({**values, "created_by": created_by})


def json_schema() -> dict[str, Any]:
    """The format, for editors."""
    schema = WorkerDefinition.model_json_schema()
    schema["required"].remove("name")  # the file's own name says it
    schema["properties"]["input"]["anyOf"].remove({"type": "null"})  # `input:` with nothing is refused: `none` says it
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **schema}


# -- files -------------------------------------------------------------------------------------------

_SHOWN_PROBLEMS = 20


def parse_worker(
    text: str | bytes,
    *,
    name: str,
    path: str,
    format: Literal["md", "yaml"],  # noqa: A002
) -> WorkerDefinition:
    """Read a worker's file, which is for a worker of that name."""
    try:
        source = decode(text)
        front, body, first_line = (
            (source, None, 1) if format == "yaml" else split_front_matter(source, WorkerDefinition.model_fields)
        )
        document = read_yaml(front, first_line=first_line)
    except UnreadableError as error:
        raise _file_error(path, *error.problems) from None
    values = document.value
    if values is None and not document.problems:
        if not source.strip() or body is None:
            raise _file_error(path, Problem(1, "the file is empty."))
        values = {}
    if not isinstance(values, dict):
        wrong = Problem(first_line, f"must be keys and values, such as `model: ...`; got {quote_json(values)}.")
        raise _file_error(path, *document.problems or [wrong])
    if body is not None:
        if "instructions" in values:
            document.complain(("instructions",), "the instructions are the text below the front matter.")
        values["instructions"] = body
    if "input" in values and values["input"] is None:
        document.complain(
            ("input",), "input: is empty. Write `input: none` for a worker that takes no input, or leave it out."
        )
    if isinstance(values.setdefault("name", name), str) and values["name"] != name:
        document.complain(("name",), f"name: {values['name']!r} is not the file's name, {name!r}. Leave it out.")
    try:
        definition = WorkerDefinition.model_validate(values)
    except ValidationError as error:
        document.problems.extend(problems_of(error, document, WorkerDefinition))
    if document.problems:
        raise _file_error(path, *document.problems)
    return definition.model_copy(update={"tool_rules": _with_lines(definition.tool_rules, document, path)})


def _with_lines(
    rules: dict[str, tuple[ToolRule, ...]], document: Document, path: str
) -> dict[str, tuple[ToolRule, ...]]:
    """Rules that know where they stand."""

    def line(name: str, at: int) -> int:
        return document.lines.get(("tool_rules", name, at), document.lines.get(("tool_rules", name), 1))

    return {
        name: tuple(dataclasses.replace(rule, where=f"{path}:{line(name, at)}") for at, rule in enumerate(said))
        for name, said in rules.items()
    }


def _file_error(path: str, *problems: Problem) -> WorkerFileError:
    ordered = sorted(problems, key=lambda problem: problem.line)
    lines = [f"{path}:{line}: {_printable(message)}" for line, message in ordered[:_SHOWN_PROBLEMS]]
    if more := len(ordered) - len(lines):
        lines.append(f"{path}:{ordered[_SHOWN_PROBLEMS].line}: and {more} more problems from here on.")
    return WorkerFileError("\n".join(lines))


def _printable(message: str) -> str:
    """A message in one line, whatever the file's keys and values have in them."""
    return "".join(char if char.isprintable() else repr(char)[1:-1] for char in message)


def dump_worker(definition: WorkerDefinition) -> str:
    """The YAML file of a worker: `parse_worker` makes an equal definition of it."""
    path = f"{definition.name}.yaml"
    try:
        values = definition.model_dump(mode="json", exclude_defaults=True, by_alias=True)
    except PydanticSerializationError as error:
        raise _file_error(path, Problem(1, f"cannot be written as a file: {error}")) from None
    block = ""
    if is_plain_text(definition.instructions) and values.pop("instructions", None):
        # PyYAML quotes a text in which a line ends with a space. This one is stripped, so nothing can go wrong.
        lines = definition.instructions.split("\n")
        block = "instructions: |\n" + "".join(f"  {line}\n" if line else "\n" for line in lines)
    text = write_yaml(values) + block
    # A file that cannot be read again (too large, too deep, no number) must not be written.
    if parse_worker(text, name=definition.name, path=path, format="yaml") != definition:
        raise _file_error(path, Problem(1, "holds values that a file cannot say."))
    return text
