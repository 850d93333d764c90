"""Mutations that assert or retire a relation."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime

from ledger_svc.domain import errors, names
from ledger_svc.domain.decide import relations
from ledger_svc.domain.decide.making import (
    Effect,
    Making,
    published_head,
)
from ledger_svc.domain.model import (
    EventKind,
    Link,
    RelationKind,
    Standing,
    Unlink,
)
from ledger_svc.domain.state import State


def link(state: State, mutation: Link, making: Making) -> Effect:
    """Assert a relation between two published families."""
    kind = mutation.relation_kind
    for end in (mutation.source_family_id, mutation.target_family_id):
        published_head(state, end, making.branch)
    source, target = state.family(mutation.source_family_id), state.family(mutation.target_family_id)
    start = mutation.valid_from if mutation.valid_from is not None else making.recorded_at
    if mutation.valid_to is not None and mutation.valid_to <= start:
        raise errors.invalid_field("valid_to", "must be after valid_from")
    if kind is RelationKind.DEPRECATES:
        _check_ended(state, making, target.family_id, start)
    relation = relations.new_relation(
        state, making, kind, source, target, rationale=mutation.rationale, valid=(start, mutation.valid_to)
    )
    target_event = EventKind.HEAD_CHANGED if kind is RelationKind.DEPRECATES else EventKind.RELATION_CHANGED
    return Effect(
        touched=((source.family_id, EventKind.RELATION_CHANGED), (target.family_id, target_event)),
        relations_opened=(relation,),
    )


def _check_ended(state: State, making: Making, family_id: str, start: datetime) -> None:
    """A bare DEPRECATES labels what no longer holds; what still holds has to be ended in the same commit."""
    rows = state.rows.get((family_id, making.branch), ())
    if any(r.standing is Standing.ADOPTED and (r.valid_to is None or r.valid_to > start) for r in rows):
        raise errors.state_conflict(
            state.project_id,
            family_id,
            "still_in_force",
            "the replaced family still holds at that time: propose to deprecate it, which ends it as well",
        )


def unlink(state: State, mutation: Unlink, making: Making) -> Effect:
    """Retire a relation; what it said about the time before stays."""
    relation = state.relations.get(mutation.relation_id)
    if relation is None or relation.project_id != state.project_id or relation.branch != making.branch:
        raise errors.not_found(names.relation(state.project_id, mutation.relation_id))
    at = mutation.retired_from if mutation.retired_from is not None else making.recorded_at
    if relation.is_retired:
        raise errors.state_conflict(
            state.project_id, relation.source_id, "already_retired", "the relation was taken back already"
        )
    retired = replace(
        relation,
        retired_from=max(at, relation.valid_from),
        retired_recorded_at=making.recorded_at,
        retired_position=making.position,
    )
    target_event = EventKind.HEAD_CHANGED if relation.kind is RelationKind.DEPRECATES else EventKind.RELATION_CHANGED
    return Effect(
        touched=((relation.source_id, EventKind.RELATION_CHANGED), (relation.target_id, target_event)),
        relations_retired=(retired,),
    )
