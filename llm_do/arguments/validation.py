"""Validate values against JSON Schemas from anywhere, in bounded time.

A schema of a server, or of a worker that a model wrote, can refer to itself without end, double its work with every
reference, or have a pattern that takes years. So patterns run on `patterns`, and every step is counted. No part of a
schema can choose another validator: `$schema` counts at the top only.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from functools import cache, partial
from itertools import islice
from typing import Any

from ..privacy.secret_fields import HIDDEN, SecretFields
from ..values.json_schema import check_bounds, mentions
from ..values.patterns import Matcher, UncheckablePattern, compile_pattern, measure

Problem = str | None
_SHOWN_PROBLEMS = 5
_LONGEST_PROBLEM = 500
_STEPS = 20_000
_STEPS_FOR_EACH_VALUE = 25


class _TooManyStepsError(Exception):
    """Validating a value against a schema takes too long."""


def schema_validator(
    schema: dict[str, Any], secret_fields: SecretFields | None = None, *, foreign: bool = False
) -> Callable[[Any], Problem]:
    """Return a function that returns the problem with a value, or `None`. It does not quote secret fields.

    A schema that is not valid raises `ValueError`, and so does a pattern that cannot be matched within bounds. In the
    schema of a `foreign` tool, such a pattern is left to the server that wrote it, and a schema that is not valid fits
    no value.
    """
    # Most programs have no bare JSON Schema, and importing this costs more than all of llm-do's own calls.
    import referencing  # noqa: PLC0415

    dialect = _dialect(schema)
    if not foreign:  # this takes long: schemas of others would have to be small
        _check_schema(schema, dialect)
    steps = _Steps()
    keywords = _Keywords(schema, foreign, dialect, steps).all
    make_checker = cache(partial(_bounded, schema, dialect, keywords, steps))

    def validate(value: Any) -> Problem:
        try:
            steps.begin(_STEPS + _STEPS_FOR_EACH_VALUE * _size(value))
            errors = list(islice(make_checker().iter_errors(value), 100))
        except referencing.exceptions.Unresolvable as exc:
            return f"its schema refers to what is not there: {_whole(str(exc))}"
        except RecursionError:
            return "its schema, or the value, is nested without end"
        except _TooManyStepsError:
            return "its schema takes too long to check"
        except Exception as exc:  # jsonschema has many ways to fail at a schema that is none
            return f"its schema cannot be checked: {_whole(str(exc).partition(chr(10))[0])}"
        problems = sorted(errors, key=lambda error: list(map(str, error.path)))
        return "; ".join(map(say, problems[:_SHOWN_PROBLEMS])) or None

    def say(error: Any) -> str:
        where = ".".join(map(str, error.path)) or "value"
        names_only = not error.path and error.validator in ("required", "additionalProperties")
        if secret_fields is None or names_only or (error.path and not secret_fields.has_secret_in(error.path[0])):
            return f"{where}: {_whole(str(error.message), f'it does not have the {error.validator} that it must have')}"
        return f"{where}: {HIDDEN} does not have the {error.validator} that it must have"

    return validate


def _dialect(schema: dict[str, Any]) -> Any:
    """Return the validator of the draft that a schema names: many servers have draft 7. Without one, it is 2020-12."""
    import jsonschema  # noqa: PLC0415

    drafts = (jsonschema.Draft7Validator, jsonschema.Draft6Validator, jsonschema.Draft4Validator)
    name = str(schema.get("$schema", "")).rstrip("#")
    matches = (draft for draft in drafts if str(draft.META_SCHEMA["$schema"]).rstrip("#") == name)
    return next(matches, jsonschema.Draft202012Validator)


def _bounded(schema: dict[str, Any], dialect: Any, keywords: dict[str, Any], steps: _Steps) -> Any:
    """Return the validator of a schema whose every step is counted."""
    import jsonschema  # noqa: PLC0415
    import referencing.jsonschema  # noqa: PLC0415

    extend: Any = jsonschema.validators.extend
    bounded = extend(dialect, {name: steps.count_calls(check) for name, check in keywords.items()})
    evolve = bounded.evolve

    def evolve_counted(self: Any, **changes: Any) -> Any:
        steps.spend(1)
        part = changes.get("schema", self.schema)
        if isinstance(part, dict) and "$schema" in part:  # jsonschema would go on with a validator of its own
            changes["schema"] = {key: value for key, value in part.items() if key != "$schema"}
        return evolve(self, **changes)

    bounded.evolve = evolve_counted
    specification = referencing.jsonschema.specification_with(str(dialect.META_SCHEMA["$schema"]))
    root = specification.create_resource(schema)
    # A registry of nothing else: what a schema refers to elsewhere is not fetched. Anchors are looked for once, here.
    registry = referencing.Registry().with_resource(root.id() or "", root).crawl()
    return bounded(schema, registry=registry, _resolver=registry.resolver(root.id() or ""))


def _check_schema(schema: dict[str, Any], dialect: Any) -> None:
    """Raise `ValueError` for a schema that is not valid, too large, or has a pattern that cannot be checked."""
    import jsonschema  # noqa: PLC0415

    check_bounds(schema)
    try:
        dialect.check_schema(schema, format_checker=None)  # which would compile patterns for another engine
    except jsonschema.SchemaError as error:
        where = "/".join(map(str, error.absolute_path))
        raise ValueError(
            f"the JSON Schema is not valid: {where or 'schema'}: {_whole(error.message, f'{error.validator} is wrong')}"
        ) from None
    except RecursionError:
        raise ValueError("the JSON Schema is nested too deep") from None


def _whole(message: str, instead: str = "see the schema") -> str:
    """Return a message whole, or another if it is long: it may quote a secret, and half of one would not be found."""
    return message if len(message) <= _LONGEST_PROBLEM else instead


def _size(value: Any) -> int:
    """Count the parts of a value, long texts more than once."""
    count, waiting = 0, [value]
    while waiting:
        part = waiting.pop()
        count += 1
        if isinstance(part, str):
            count += len(part) // 64
        elif isinstance(part, Mapping):
            waiting.extend(part.values())
        elif isinstance(part, list | tuple):
            waiting.extend(part)
    return count


class _Steps:
    """Counts the work of one comparison."""

    def __init__(self) -> None:
        self._budget = 0
        self._compiled: dict[str, Matcher | None] = {}

    def begin(self, steps: int) -> None:
        self._budget = steps
        self._compiled.clear()

    def spend(self, steps: int) -> None:
        self._budget -= steps
        if self._budget < 0:
            raise _TooManyStepsError

    def fits(self, pattern: str, text: str) -> bool | None:
        """Return whether a pattern matches some part of a text; `None` if that cannot be told within bounds."""
        size = measure(pattern)
        if pattern not in self._compiled:
            self.spend(size.steps_to_compile)
            self._compiled[pattern] = None
            with suppress(UncheckablePattern):
                self._compiled[pattern] = compile_pattern(pattern)
        self.spend(size.steps_to_match(len(text)))
        compiled = self._compiled[pattern]
        return None if compiled is None else compiled(text)

    def count_calls(self, check: Callable[..., Any]) -> Callable[..., Iterator[Any]]:
        def check_counted(validator: Any, value: Any, instance: Any, schema: Any) -> Iterator[Any]:
            self.spend(1 + (len(value) if isinstance(value, list | dict) else len(str(value)[:100_000]) // 20))
            for error in check(validator, value, instance, schema) or ():
                self.spend(_size(instance))  # which the message quotes
                yield error

        return check_counted


class _Keywords:
    """The keywords with patterns, and `uniqueItems`, for which jsonschema compares all items with each other."""

    def __init__(self, schema: dict[str, Any], foreign: bool, dialect: Any, steps: _Steps) -> None:
        import jsonschema  # noqa: PLC0415

        self._error: Any = jsonschema.ValidationError
        self._foreign = foreign
        self._steps = steps
        self.all: dict[str, Callable[..., Any]] = {
            **dialect.VALIDATORS,
            "pattern": self._pattern,
            "patternProperties": self._pattern_properties,
            "additionalProperties": self._additional_properties,
            "uniqueItems": self._unique_items,
        }
        if mentions(schema, "patternProperties"):
            # jsonschema looks for these by itself, with Python's regular expressions.
            if not foreign and mentions(schema, "unevaluatedProperties"):
                raise ValueError("unevaluatedProperties does not go with patternProperties: use additionalProperties")
            self.all["unevaluatedProperties"] = lambda *_: ()

    def _pattern(self, validator: Any, pattern: str, value: Any, schema: Any) -> Iterator[Any]:
        if isinstance(value, str):
            yield from self._mismatch(pattern, value)

    def _mismatch(self, pattern: str, text: str) -> Iterator[Any]:
        fits = self._steps.fits(pattern, text)
        if fits is None and not self._foreign:
            yield self._error(f"a text of {len(text)} characters is too long to compare with the pattern {pattern!r}")
        elif fits is False:
            yield self._error(f"{text!r} does not match {pattern!r}")

    def _pattern_properties(self, validator: Any, inner: dict[str, Any], value: Any, schema: Any) -> Iterator[Any]:
        for pattern, subschema in inner.items():
            for name, item in value.items() if isinstance(value, dict) else ():
                fits = self._steps.fits(pattern, name)
                if fits is None:
                    yield from self._mismatch(pattern, name)
                elif fits:
                    yield from validator.descend(item, subschema, path=name, schema_path=pattern)

    def _additional_properties(self, validator: Any, allowed: Any, value: Any, schema: Any) -> Iterator[Any]:
        properties, patterns = schema.get("properties", {}), schema.get("patternProperties", {})
        others = [name for name in value if name not in properties] if isinstance(value, dict) else []
        # A pattern that cannot be checked is left to the server that wrote it.
        extras = [name for name in others if all(self._steps.fits(pattern, name) is False for pattern in patterns)]
        for name in extras if isinstance(allowed, dict) else ():
            yield from validator.descend(value[name], allowed, path=name)
        if allowed is False and extras:
            verb = "was" if len(extras) == 1 else "were"
            names = ", ".join(map(repr, extras))
            yield self._error(f"Additional properties are not allowed ({names} {verb} unexpected)")

    def _unique_items(self, validator: Any, unique: Any, value: Any, schema: Any) -> Iterator[Any]:
        if unique and isinstance(value, list) and len(set(map(_key, value))) < len(value):
            yield self._error(f"{value!r} has non-unique elements")


def _key(value: Any) -> Any:
    """Return a key that is equal for values that JSON Schema calls equal: 1 and 1.0, but not 1 and true."""
    if isinstance(value, dict):
        return frozenset((name, _key(item)) for name, item in value.items())
    if isinstance(value, list):
        return tuple(map(_key, value))
    return (bool, value) if isinstance(value, bool) else value
