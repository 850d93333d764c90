"""From stored records to views: the judgements of reading that are the same for every store.

A store finds records; which of them count at a point of the two axes, and how they stand together, is said here once.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from typing import Final

from ledger_svc import rows as r
from ledger_svc.domain.model import (
    Commit,
    Deprecate,
    Family,
    Head,
    Invalidate,
    Mutation,
    MutationKind,
    Relation,
    RelationKind,
    ReviewFlag,
    Revision,
    TimelineRow,
)
from ledger_svc.instants import FOREVER, from_micros, to_micros
from ledger_svc.views import (
    Detail,
    HeadsPageQuery,
    HeadsQuery,
    HeadView,
    PastView,
    ProjectedRevision,
    ProjectionKey,
    ProjectionView,
)

REPLACING: Final = frozenset({RelationKind.DEPRECATES, RelationKind.MERGED_INTO})
"""Relations that say what takes the place of a family; heads carry them in every detail."""
MOST_PAST: Final = 5
"""Past revisions that a full head shows."""

_LAST: Final = from_micros(to_micros(datetime.max.replace(tzinfo=from_micros(0).tzinfo)))


def kinds_for(detail: Detail) -> frozenset[RelationKind]:
    """Return the kinds of relations that heads carry."""
    return frozenset(RelationKind) if detail is Detail.FULL else REPLACING


def is_published(rows: Sequence[TimelineRow], first_position: int | None, known_position: int | None) -> bool:
    """Return whether a family was published at all, as known then: nothing of it may hold, and yet it is there."""
    if rows or known_position is None:
        return True
    return first_position is not None and first_position <= known_position


def in_order(relations: Iterable[Relation]) -> list[Relation]:
    """Return relations in order of recording: the order of every list of them, and of its pages."""
    return sorted(relations, key=lambda relation: (relation.position, relation.relation_id))


def holding(relations: Iterable[Relation], query: HeadsQuery) -> tuple[Relation, ...]:
    """Return the relations that hold at the query's point, in order of recording, as they were known then."""
    known = _LAST if query.known_at is None else query.known_at
    found = [_relation_as_known(relation, known) for relation in relations if relation.holds(query.valid_at, known)]
    return tuple(in_order(found))


def _relation_as_known(relation: Relation, known_at: datetime) -> Relation:
    if relation.retired_recorded_at is None or relation.retired_recorded_at <= known_at:
        return relation
    return replace(relation, retired_from=None, retired_recorded_at=None, retired_position=None)


def rows_as_known(rows: Iterable[TimelineRow], known_at: datetime | None) -> tuple[TimelineRow, ...]:
    """Return rows without what the ledger learnt of them after a moment: that they are closed."""
    if known_at is None:
        return tuple(rows)
    return tuple(
        row
        if row.recorded_to is None or row.recorded_to <= known_at
        else replace(row, recorded_to=None, closed_position=None)
        for row in rows
    )


def flags_at(flags: Iterable[ReviewFlag], known_position: int | None) -> tuple[ReviewFlag, ...]:
    """Return the flags that are open, now or as known at a position."""
    if known_position is None:
        return tuple(flag for flag in flags if flag.cleared_position is None)
    return tuple(
        flag
        for flag in flags
        if flag.position <= known_position and (flag.cleared_position is None or flag.cleared_position > known_position)
    )


def last_flag_change(flags: Iterable[ReviewFlag], known_position: int | None) -> int:
    """Return the last commit, up to a position, that raised or cleared one of all flags of a head."""
    limit = FOREVER if known_position is None else known_position
    changes = [at for flag in flags for at in (flag.position, flag.cleared_position or 0)]
    return max((at for at in changes if at <= limit), default=0)


def changed_position(
    head: Head,
    flags: Iterable[ReviewFlag],
    known_position: int | None,
    *,
    last_row_change: int,
    last_flag_change: int,
) -> int:
    """Return the commit that last changed a head or its flags, of those known."""
    if known_position is None:
        return max(head.position, last_flag_change)
    return max(last_row_change, last_flag_change, *(flag.position for flag in flags), 0)


def settles(commit: Commit) -> bool:
    """Return whether a commit says by itself if a head is ended; moving an end or cancelling leaves that as it was."""
    return commit.kind not in {MutationKind.SET_EXPIRY, MutationKind.CANCEL_SCHEDULE}


def bare_head(head: Head, revision_id: str, commit: Commit | None, mutation: Mutation | None) -> Head:
    """Return a head as it was known when nothing of it held any more.

    Args:
        head: As it is known now.
        revision_id: The revision whose row was taken away last.
        commit: The last one of those known then that changed the head and :func:`settles`.
        mutation: What that one did, if it was an end.
    """
    ended = None
    if commit is not None and isinstance(mutation, Invalidate | Deprecate):
        ended = mutation.effective_from if mutation.effective_from is not None else commit.recorded_at
    return replace(head, revision_id=revision_id, invalid_from=ended)


def past_of(found: Sequence[r.Row]) -> tuple[PastView, ...]:
    """Return what came before, from rows newest first: columns of the row, title and reason of its revision."""
    return tuple(
        PastView(r.timeline_row_of(older[:13]), older[13], newer[14] or "")
        for newer, older in itertools.pairwise(found)
    )


def other_ends(family_id: str, relations: Iterable[Relation]) -> list[str]:
    """Return the families whose titles go with a family: the other ends of what replaces."""
    ends = [
        relation.target_id if relation.source_id == family_id else relation.source_id
        for relation in relations
        if relation.kind in REPLACING
    ]
    return list(dict.fromkeys(ends))


def replacement_of(family_id: str, relation: Relation) -> str | None:
    """Return the family that takes the place of a family, if that is what the relation says."""
    if relation.kind is RelationKind.DEPRECATES and relation.target_id == family_id:
        return relation.source_id
    if relation.kind is RelationKind.MERGED_INTO and relation.source_id == family_id:
        return relation.target_id
    return None


def replacements_of(views: Iterable[HeadView]) -> Iterator[str]:
    """Yield the families that take the place of those shown."""
    for view in views:
        for relation in view.relations:
            other = replacement_of(view.family.family_id, relation)
            if other is not None:
                yield other


def asked_for(families: Iterable[Family], query: HeadsPageQuery) -> list[Family]:
    """Return the families of a page whose heads were asked for; a page may show fewer than it looked at."""
    return [
        family
        for family in families
        if (not query.scopes or family.scope in query.scopes)
        and (not query.categories or family.category in query.categories)
    ]


def page_of(
    looked_at: Sequence[Family], found: Iterable[HeadView], query: HeadsPageQuery
) -> tuple[list[HeadView], str]:
    """Return the heads that a page shows, and where the next one starts: after the last family looked at.

    That is empty at the end of the list: fewer were there than could be looked at.
    """
    heads = [view for view in found if view.flags or not query.flagged_only]
    return heads, looked_at[-1].family_id if len(looked_at) == query.limit else ""


def projection_of(
    family: Family,
    key: ProjectionKey,
    head: Head,
    last_two: Sequence[str],
    wanted: Sequence[str],
    revisions: Mapping[str, Revision],
    rows: Mapping[str, Sequence[TimelineRow]],
) -> ProjectionView:
    """Return what an index holds of a (family, branch).

    Args:
        family: The family.
        key: What was asked for.
        head: The head.
        last_two: Revisions of the last two open rows.
        wanted: Revisions to project.
        revisions: Those revisions.
        rows: All rows of each of them, closed ones included.
    """
    found = []
    for revision_id in wanted:
        own = rows.get(revision_id, ())
        changed = max((max(row.opened_position, row.closed_position or 0) for row in own), default=0)
        row = next((row for row in own if row.closed_position is None), None)
        revision = revisions[revision_id]
        # The revision that stopped being the head did so by the commit that last changed the head.
        by_head = head.position if revision_id == head.revision_id or revision_id in last_two else 0
        position = max(revision.position, changed, by_head)
        found.append(ProjectedRevision(revision, revision_id == head.revision_id, row, position))
    return ProjectionView(family, key.branch, tuple(found))


def wanted_since(changed: Iterable[str], head: Head, last_two: Iterable[str]) -> list[str]:
    """Return which revisions to project when only some rows have changed."""
    return sorted({*changed, head.revision_id, *last_two})
