"""Grants of a session, and how they are stored for another one.

In a session a grant is for the very worker and tool that asked, whatever their names. A stored grant knows them by name
and by a digest of their definition, and holds for the first objects that fit. Nothing is stored or restored where a
session has two such objects: equal names never share a grant.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

from pydantic import ConfigDict, TypeAdapter, ValidationError

from ..errors import summarize
from ..values.canonical import NoCanonicalForm, digest_of_key
from .rules import Call, Grant

_MOST_MEMBERS = 500  # workers and tools that are noted. With more, nothing is stored: a double could be missed


@dataclass(frozen=True, slots=True)
class Definition:
    """A worker or a tool as stored grants know it."""

    __pydantic_config__: ClassVar = ConfigDict(extra="forbid")

    name: str
    digest: str


@dataclass(frozen=True, slots=True)
class Member:
    """A worker or a tool that takes part in a call. It is equal to itself only."""

    identity: Hashable
    name: str = field(compare=False)
    definition_key: Callable[[], Hashable] = field(compare=False, repr=False)
    """Returns what tells its definition from a changed one. Raises if nothing can."""
    redact: Callable[[Any], Any] = field(compare=False, repr=False)
    """Returns a value without the secrets of the session."""

    def define(self) -> Definition | None:
        """Return its definition; `None` if it cannot be told, or has a secret in it."""
        try:
            told = (self.name, self.definition_key())
            return Definition(self.name, digest_of_key(told)) if self.redact(told) == told else None
        except Exception:  # there is code of the user's own in definitions, such as the class of a model
            return None


@dataclass(frozen=True, slots=True, kw_only=True)
class Subject:
    """All that a grant is for except the arguments."""

    worker: Member | None
    """The worker that calls; `None` is Python."""
    entry: Member
    rule: str
    """The rule that asked."""
    generated: tuple[Member, ...]
    """The generated workers on the call path: a grant with some of them does not hold with others."""
    files: Hashable
    """The files of the call, if no grant outlasts a change of them."""
    are_arguments_storable: bool = field(compare=False)
    """Whether a digest of the arguments may be stored, and says all of them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredGrant:
    """A grant as plain data: `dataclasses.asdict` makes JSON of it, and `restore_grants` reads that."""

    __pydantic_config__: ClassVar = ConfigDict(extra="forbid")

    worker: Definition | None
    entry: Definition
    rule: str
    generated: tuple[Definition, ...]
    files: str | None
    """A digest of the contents of the files."""
    covers: str
    """A digest of the arguments, or of the offer that was accepted."""
    text: str = field(compare=False)
    """A description of what it covers, for people: the digest decides."""


_STORED_GRANTS = TypeAdapter(list[StoredGrant], config=ConfigDict(defer_build=True))


class SessionGrants:
    """Grants of one session. Digests are made only to store or restore grants, or to tell namesakes apart."""

    def __init__(self) -> None:
        self._exact: dict[tuple[Hashable, Hashable], str] = {}
        """The texts of grants, by subject and arguments."""
        self._offers: dict[Hashable, list[Grant]] = {}
        self._members: dict[str, dict[Member, Definition | None]] = {}
        """The workers and tools of all questions, by name, each with its definition then, if that was made."""
        self._ambiguous: set[Definition | None] = set()
        """Definitions of which there are two objects."""
        self._restorable: set[StoredGrant] = set()

    def find(self, subject: Hashable, arguments: Hashable | None, call: Call) -> str | None:
        """Return the text of a grant that covers a call. `arguments` are their canonical key, if they have one."""
        for offer in self._offers.get(subject, ()):
            if offer.covers(call):
                return offer.text
        return None if arguments is None else self._exact.get((subject, arguments))

    def add_exact(self, subject: Hashable, arguments: Hashable, text: str) -> None:
        self._exact[subject, arguments] = text

    def add_offer(self, subject: Hashable, offer: Grant) -> None:
        self._offers.setdefault(subject, []).append(offer)

    def begin_question(self, subject: Hashable, arguments: Hashable | None, text: str, offers: Sequence[Grant]) -> None:
        """Note who asks, and restore what is stored for this very question: its arguments, or one of its offers."""
        # So no stored grant, whatever it says, can allow more than a person who is asked now.
        if isinstance(subject, Subject) and not self._is_crowded:
            for member in (subject.worker, subject.entry, *subject.generated):
                self._note(member)
        if not self._restorable:
            return
        if arguments is not None and self._take(self._store(subject, arguments, text)):
            self.add_exact(subject, arguments, text)
        for offer in offers:
            if self._take(self._store(subject, offer, offer.text)):
                self.add_offer(subject, offer)

    def stored(self) -> list[StoredGrant]:
        """Return the grants that can be stored, including restored ones that were not needed yet."""
        if self._is_crowded:
            return []
        stored = [self._store(subject, arguments, text) for (subject, arguments), text in self._exact.items()]
        stored += [self._store(subject, each, each.text) for subject, offers in self._offers.items() for each in offers]
        for grant in sorted(self._restorable, key=repr):
            if self._ambiguous.isdisjoint((grant.worker, grant.entry, *grant.generated)):
                stored.append(grant)
        return list(filter(None, stored))

    def restore(self, grants: Iterable[Any]) -> None:
        """Let stored grants hold. Raises `ValueError` for anything else, and then restores none."""
        try:
            self._restorable.update(_STORED_GRANTS.validate_python(grants))
        except ValidationError as exc:
            raise ValueError(f"The stored grants cannot be read: {summarize(exc)}") from None

    @property
    def _is_crowded(self) -> bool:
        return sum(map(len, self._members.values())) > _MOST_MEMBERS

    def _take(self, grant: StoredGrant | None) -> bool:
        if grant is None or grant not in self._restorable:
            return False
        self._restorable.remove(grant)
        return True

    def _store(self, subject: Hashable, covered: Hashable | Grant, text: str) -> StoredGrant | None:
        """Return a grant as data; `None` if it cannot be told, has a secret in it, or its objects have doubles."""
        # A digest of a short secret gives it away to anyone who tries out all short texts.
        if not isinstance(subject, Subject) or not (isinstance(covered, Grant) or subject.are_arguments_storable):
            return None
        try:
            key = covered.key() if isinstance(covered, Grant) else covered
            told = (key, text, subject.rule, subject.files)
            if subject.entry.redact(told) != told:
                return None
            return StoredGrant(
                worker=None if subject.worker is None else self._define(subject.worker),
                entry=self._define(subject.entry),
                rule=subject.rule,
                generated=tuple(map(self._define, subject.generated)),
                files=None if subject.files is None else digest_of_key(subject.files),
                covers=digest_of_key(key),
                text=text,
            )
        except NoCanonicalForm:
            return None

    def _define(self, member: Member) -> Definition:
        namesakes, definition = self._members.get(member.name, {}), member.define()
        is_same = member in namesakes and namesakes[member] in (None, definition)
        if definition is None or not is_same or definition in self._ambiguous:
            raise NoCanonicalForm(member.name)
        return definition

    def _note(self, member: Member | None) -> None:
        """Note a worker or tool, unless another one has its definition. Without a namesake it needs no digest."""
        namesakes = {} if member is None else self._members.setdefault(member.name, {})
        if member is None or member in namesakes:
            return
        definition = member.define() if namesakes else None
        for other, made in namesakes.items():
            namesakes[other] = made or other.define()
        if definition is not None and definition in namesakes.values():
            self._ambiguous.add(definition)
        elif definition is not None or not namesakes:
            namesakes[member] = definition
