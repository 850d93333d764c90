"""What the index holds: points, the filters that find them, and the rules that turn time into them. Pure.

One point stands for one published revision on one branch. Times are microseconds since 1970 as numbers, open ends are
far-away sentinels: a missing value and an open end must never be told apart by luck in a filter.
"""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from typing import Any, Final

FAR_FUTURE: Final = 9_007_199_254_740_991
"""2**53 - 1 µs, in the year 2255: the largest that a filter's double holds exactly. Later moments count as it."""

FAR_PAST: Final = -FAR_FUTURE

MAX_IDENTIFIERS: Final = 256
"""Identifiers kept of one memory; the first ones named."""

_NAMESPACE: Final = uuid.UUID("6f0b3f57-5d5e-5c0a-9a53-0d2c1a6f9b11")
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND: Final = timedelta(microseconds=1)


class Role(StrEnum):
    """What a point is for its family on its branch."""

    HEAD = "HEAD"
    """The newest revision; the corpus statistics cover these."""
    PAST = "PAST"
    """An older revision: answers as-of questions and leads to its head."""


def point_id(project: str, revision: str, branch: str) -> str:
    """Return the id of the point of a revision on a branch: the same in every rebuild."""
    return str(uuid.uuid5(_NAMESPACE, f"{project}\x1f{revision}\x1f{branch}"))


def micros(moment: datetime) -> int:
    """Return a moment as microseconds since 1970, within the sentinels; a naive datetime is refused."""
    if moment.tzinfo is None:
        raise ValueError("a moment needs a time zone")
    return max(FAR_PAST, min(FAR_FUTURE, (moment - _EPOCH) // _MICROSECOND))


def moment(value: int) -> datetime | None:
    """Return the moment of a number; None for an open end."""
    return None if value in {FAR_PAST, FAR_FUTURE} else _EPOCH + value * _MICROSECOND


@dataclass(frozen=True, slots=True)
class IndexPoint:
    """The payload of one point: every field that a filter may name, and what a candidate reports."""

    project: str
    family: str
    revision: str
    branch: str
    scope: str
    category: str
    state: str
    standing: str
    role: Role
    content_hash: str
    text_hash: str
    position: int
    model: str
    recipe: str
    valid_from: int = FAR_PAST
    valid_to: int = FAR_FUTURE
    recorded_from: int = FAR_PAST
    shadowed: bool = False
    domain: str = ""
    modules: tuple[str, ...] = ()
    files: tuple[str, ...] = ()
    identifiers: tuple[str, ...] = ()
    importance: float = 0.0

    @property
    def id(self) -> str:
        """The point's id."""
        return point_id(self.project, self.revision, self.branch)

    def in_force_at(self, valid_at: int) -> bool:
        """Say whether it is indexed as adopted and valid at a moment. A hint: the ledger has the last word."""
        return self.standing == "ADOPTED" and self.valid_from <= valid_at < self.valid_to

    def payload(self) -> dict[str, Any]:
        """Return the stored form."""
        result: dict[str, Any] = {}
        for name in _FIELDS:
            value = getattr(self, name)
            result[name] = list(value) if isinstance(value, tuple) else value.value if name == "role" else value
        # A number: the embedded engine matches a Python bool as an integer, and so never finds a stored bool.
        result["shadowed"] = int(self.shadowed)
        return result

    @classmethod
    def from_payload(cls, payload: Mapping[str, Any]) -> IndexPoint:
        """Return the point of a stored payload; ValueError when it is not one of ours."""
        # Field by field, because a search does it a hundred times.
        try:
            return cls(
                project=payload["project"],
                family=payload["family"],
                revision=payload["revision"],
                branch=payload["branch"],
                scope=payload["scope"],
                category=payload["category"],
                state=payload["state"],
                standing=payload["standing"],
                role=Role(payload["role"]),
                content_hash=payload["content_hash"],
                text_hash=payload["text_hash"],
                position=payload["position"],
                model=payload["model"],
                recipe=payload["recipe"],
                valid_from=payload["valid_from"],
                valid_to=payload["valid_to"],
                recorded_from=payload["recorded_from"],
                shadowed=bool(payload["shadowed"]),
                domain=payload["domain"],
                modules=tuple(payload["modules"]),
                files=tuple(payload["files"]),
                identifiers=tuple(payload["identifiers"]),
                importance=payload["importance"],
            )
        except (KeyError, TypeError) as error:
            raise ValueError(f"not the payload of a point: {error}") from error


_FIELDS: Final = tuple(f.name for f in fields(IndexPoint))


@dataclass(frozen=True, slots=True)
class PointFilter:
    """Which points a search may see. Always one project: there is no filter that means all."""

    project: str
    branch: str | None = None
    roles: frozenset[Role] = frozenset(Role)
    with_shadowed: bool = True
    valid_at: int | None = None
    recorded_until: int | None = None
    scopes: tuple[str, ...] = ()
    categories: tuple[str, ...] = ()
    standings: tuple[str, ...] = ()
    family: str | None = None

    def __post_init__(self) -> None:
        if not self.project:
            raise ValueError("a filter names its project")
        if not self.roles:
            raise ValueError("a filter allows at least one role")

    def matches(self, point: IndexPoint) -> bool:
        """Say whether the point passes: the meaning that every vector store's own filter must have."""
        return (
            point.project == self.project
            and (self.branch is None or point.branch == self.branch)
            and point.role in self.roles
            and (self.with_shadowed or not point.shadowed)
            and (self.valid_at is None or point.valid_from <= self.valid_at < point.valid_to)
            and (self.recorded_until is None or point.recorded_from <= self.recorded_until)
            and (not self.scopes or point.scope in self.scopes)
            and (not self.categories or point.category in self.categories)
            and (not self.standings or point.standing in self.standings)
            and (self.family is None or point.family == self.family)
        )


def search_filter(
    project: str,
    branch: str,
    *,
    valid_at: int | None = None,
    known_at: int | None = None,
    in_force_only: bool = False,
    now: int,
    scopes: Sequence[str] = (),
    categories: Sequence[str] = (),
) -> PointFilter:
    """Return the filter of a question at a moment.

    - now: heads, and past revisions unless a newer one of the family says the same words (they lead to their head);
    - ``valid_at``: whatever covers that moment as known today, shadowed or not;
    - ``known_at``: the stored interval is today's knowledge and says nothing about what was known then, so only the
      recording time filters; the ledger decides the rest.
    """
    base = PointFilter(project, branch, scopes=tuple(scopes), categories=tuple(categories))
    if known_at is not None:
        found = replace(base, recorded_until=known_at)
    elif valid_at is not None:
        found = replace(base, valid_at=valid_at)
    else:
        found = replace(base, with_shadowed=False)
    if in_force_only:
        found = replace(found, standings=("ADOPTED",))
        if known_at is None:
            found = replace(found, valid_at=now if valid_at is None else valid_at)
    return found


@dataclass(frozen=True, slots=True)
class StructuralQuery:
    """What a question names: files, modules, identifiers, domains, folded and in lower case."""

    files: tuple[str, ...] = ()
    modules: tuple[str, ...] = ()
    identifiers: tuple[str, ...] = ()
    domains: tuple[str, ...] = ()
    _wanted: tuple[tuple[str, frozenset[str]], ...] = field(init=False, repr=False, compare=False, default=())

    def __post_init__(self) -> None:
        # A question offers a hundred names to every candidate: looked up in sets, they cost next to nothing.
        pairs = (
            ("file", self.files),
            ("module", self.modules),
            ("identifier", self.identifiers),
            ("domain", self.domains),
        )
        object.__setattr__(self, "_wanted", tuple((kind, frozenset(names)) for kind, names in pairs))

    @property
    def is_empty(self) -> bool:
        """Whether nothing is named."""
        return not (self.files or self.modules or self.identifiers or self.domains)

    def matched_by(self, point: IndexPoint) -> tuple[str, ...]:
        """Return what of it a point has, as ``kind:name``."""
        has = (point.files, point.modules, point.identifiers, (point.domain,))
        return tuple(
            f"{kind}:{name}"
            for (kind, wanted), names in zip(self._wanted, has, strict=True)
            if wanted
            for name in names
            if name in wanted
        )


@dataclass(frozen=True, slots=True)
class Projection:
    """Everything that the index holds of one family on one branch, as read from the ledger at ``position``.

    No points means that the family left the branch: what was there is removed, and the position stays as a tombstone.
    """

    project: str
    branch: str
    family: str
    position: int
    points: tuple[IndexPoint, ...] = field(default=())


def mark_shadowed(points: Sequence[IndexPoint]) -> tuple[IndexPoint, ...]:
    """Return the points of one family and branch, newest first, with ``shadowed`` set where a newer one reads the same.

    A past revision whose embedding text a newer revision repeats would only fill the answer twice. Heads never are.
    """
    seen: set[str] = set()
    marked: list[IndexPoint] = []
    for point in points:
        shadowed = point.role is Role.PAST and point.text_hash in seen
        marked.append(point if point.shadowed == shadowed else replace(point, shadowed=shadowed))
        seen.add(point.text_hash)
    return tuple(marked)


def prefer(stored_position: int | None, new_position: int) -> bool:
    """Say whether a projection may be written over the stored one: never an older one over a newer one.

    The same position is written again, because a replay must repair what a crash left half done.
    """
    return stored_position is None or new_position >= stored_position
