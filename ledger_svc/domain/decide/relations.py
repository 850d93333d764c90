"""Rules of relations: which ends, which direction, no cycles, each asserted once at a time."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Iterator
from datetime import datetime
from typing import Protocol

from ledger_svc.domain import errors
from ledger_svc.domain.model import (
    ACYCLIC_KINDS,
    LEDGER_MADE_KINDS,
    SAME_SCOPE_KINDS,
    SOURCE_SCOPE,
    EvidenceLink,
    Family,
    Principal,
    Relation,
    RelationKind,
)
from ledger_svc.domain.state import State, ordered_ends


class Asserting(Protocol):
    """Who asserts a relation, when and why."""

    @property
    def branch(self) -> str:
        """Where it is asserted."""

    @property
    def author(self) -> Principal:
        """Who asserts it."""

    @property
    def evidence_links(self) -> tuple[EvidenceLink, ...]:
        """What it rests on."""

    @property
    def proposal_id(self) -> str:
        """The proposal that asked for it."""

    @property
    def recorded_at(self) -> datetime:
        """When the ledger records it."""

    @property
    def position(self) -> int:
        """The commit."""

    @property
    def new_id(self) -> Callable[[], str]:
        """Makes its id."""


def new_relation(
    state: State,
    asserting: Asserting,
    kind: RelationKind,
    source: Family,
    target: Family,
    *,
    rationale: str,
    valid: tuple[datetime, datetime | None],
) -> Relation:
    """Assert a relation.

    Raises:
        DomainError: INVALID_FIELD for ends that the kind does not join, ALREADY_EXISTS when it is asserted already,
            RELATION_CYCLE.
    """
    check_ends(kind, source, target)
    first, second = ordered_ends(kind, source.family_id, target.family_id)
    existing = find_active(state, asserting.branch, kind, first, second)
    if existing is not None:
        raise errors.relation_exists(state.project_id, existing.relation_id)
    if kind in ACYCLIC_KINDS:
        path = _path(state, asserting.branch, kind, second, first)
        if path:
            raise errors.relation_cycle(kind, (first, *path))
    return Relation(
        relation_id=asserting.new_id(),
        project_id=state.project_id,
        branch=asserting.branch,
        kind=kind,
        source_id=first,
        target_id=second,
        rationale=rationale,
        evidence_links=asserting.evidence_links,
        asserted_by=asserting.author,
        proposal_id=asserting.proposal_id,
        valid_from=valid[0],
        valid_to=valid[1],
        recorded_at=asserting.recorded_at,
        position=asserting.position,
    )


def check_ends(kind: RelationKind, source: Family, target: Family) -> None:
    """Refuse ends that the kind does not join."""
    if kind in LEDGER_MADE_KINDS:
        raise errors.invalid_field("kind", f"{kind} is made by the ledger, not asserted")
    if source.family_id == target.family_id:
        raise errors.invalid_field("target_family", "a memory has no relation to itself")
    wanted = SOURCE_SCOPE.get(kind)
    if wanted is not None and source.scope is not wanted:
        raise errors.invalid_field("source_family", f"a {kind} starts at a memory of scope {wanted}")
    if wanted is not None and target.scope is wanted:
        raise errors.invalid_field("target_family", f"a {kind} leads to a memory of another scope than {wanted}")
    if kind in SAME_SCOPE_KINDS and source.scope is not target.scope:
        raise errors.invalid_field("target_family", f"a {kind} joins two memories of one scope")


def find_active(state: State, branch: str, kind: RelationKind, source_id: str, target_id: str) -> Relation | None:
    """The active relation with exactly these ends, in this direction."""
    for relation in state.active_relations(branch):
        if (relation.kind, relation.source_id, relation.target_id) == (kind, source_id, target_id):
            return relation
    return None


def incoming(state: State, branch: str, family_id: str, kinds: Collection[RelationKind]) -> Iterator[Relation]:
    """Active relations of some kinds that point at a family, oldest first."""
    found = (r for r in state.active_relations(branch) if r.target_id == family_id and r.kind in kinds)
    return iter(sorted(found, key=lambda r: (r.position, r.relation_id)))


def deprecations_of(state: State, branch: str, family_id: str) -> Iterator[Relation]:
    """Active DEPRECATES relations that point at a family."""
    return incoming(state, branch, family_id, {RelationKind.DEPRECATES})


def _path(state: State, branch: str, kind: RelationKind, start: str, goal: str) -> tuple[str, ...]:
    """A shortest way from ``start`` to ``goal`` along active relations of one kind; empty when there is none."""
    onward: dict[str, list[str]] = {}
    for relation in state.active_relations(branch):
        if relation.kind is kind:
            onward.setdefault(relation.source_id, []).append(relation.target_id)
    came_from = {start: ""}
    queue = deque([start])
    while queue:
        here = queue.popleft()
        if here == goal:
            way = [here]
            while came_from[way[-1]]:
                way.append(came_from[way[-1]])
            return tuple(reversed(way))
        for there in sorted(onward.get(here, ())):
            if there not in came_from:
                came_from[there] = here
                queue.append(there)
    return ()
