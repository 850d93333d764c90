"""Where a head stands: its state, its rows, who replaces it. Worked out of a view by the domain's rules."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final

from ledger_svc.domain.model import Relation, RelationKind
from ledger_svc.domain.timeline import FamilyState, family_state
from ledger_svc.views import FamilyTitle, HeadView

_AT_LAST: Final = datetime.max.replace(tzinfo=UTC)


@dataclass(frozen=True, slots=True)
class Replacing:
    """A family that takes another one's place, by a relation."""

    other: FamilyTitle
    relation: Relation


def state_of_head(view: HeadView, valid_at: datetime) -> FamilyState:
    """Return the state of a head at a moment; the rows of a view are those known at its own known_at."""
    return family_state(
        # They were chosen by what was known then: the end of that knowledge says nothing about them here.
        view.rows,
        valid_at,
        _AT_LAST if view.known_at is None else view.known_at,
        deprecated=any(True for _ in replaced_by(view)),
        invalidated=view.head.invalid_from is not None and view.head.invalid_from <= valid_at,
    )


def replaced_by(view: HeadView) -> Iterator[Replacing]:
    """Yield the families that replace this one directly."""
    own = view.family.family_id
    for relation in view.relations:
        if relation.kind is RelationKind.DEPRECATES and relation.target_id == own:
            yield Replacing(view.titles[relation.source_id], relation)
        elif relation.kind is RelationKind.MERGED_INTO and relation.source_id == own:
            yield Replacing(view.titles[relation.target_id], relation)


def replaces(view: HeadView) -> Iterator[Replacing]:
    """Yield the families that this one replaces directly."""
    own = view.family.family_id
    for relation in view.relations:
        if relation.kind is RelationKind.DEPRECATES and relation.source_id == own:
            yield Replacing(view.titles[relation.target_id], relation)
        elif relation.kind is RelationKind.MERGED_INTO and relation.target_id == own:
            yield Replacing(view.titles[relation.source_id], relation)
