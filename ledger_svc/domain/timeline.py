"""The two axes of time: how a change turns the open rows of a (family, branch) into new ones, and what rows answer.

``valid_*`` is when something is true in the world, ``recorded_*`` when the ledger knew it. Open rows (recorded_to is
None) are what the ledger holds to be true now; they never overlap. A change closes the rows that it alters and opens
their successors; rows that stay as they are stay open, and closed rows are never touched again, so every earlier
answer can be given again. All intervals are half-open, [from, to).

Invariant of every open row: its end is its intrinsic end exactly when ``valid_to == intrinsic_to``; otherwise a later
row cuts it and the end is REPLACED.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime

from ledger_svc.domain.model import MemoryState, RowEnd, Standing, TimelineRow

_ENDED_FOR_GOOD = frozenset({RowEnd.INVALIDATED, RowEnd.DEPRECATED})


class TimelineError(Exception):
    """The change contradicts the rows; ``rule`` names how, the text says it in a sentence."""

    def __init__(self, rule: str, message: str) -> None:
        super().__init__(message)
        self.rule = rule
        self.message = message


@dataclass(frozen=True, slots=True)
class Publish:
    """A revision covers [valid_from, valid_to) and replaces everything after valid_from, scheduled rows included."""

    family_id: str
    branch: str
    revision_id: str
    standing: Standing
    valid_from: datetime
    valid_to: datetime | None = None


@dataclass(frozen=True, slots=True)
class End:
    """Nothing holds from ``at`` on; no older revision comes back."""

    at: datetime
    end: RowEnd = RowEnd.INVALIDATED
    """INVALIDATED or DEPRECATED."""


@dataclass(frozen=True, slots=True)
class Expire:
    """The revision's own end moves to ``valid_to`` or, with None, goes away; a later row still cuts it."""

    revision_id: str
    valid_to: datetime | None


@dataclass(frozen=True, slots=True)
class Cancel:
    """A revision that starts after ``now`` is taken out; the row that it cut gets the time back up to its own end."""

    revision_id: str
    now: datetime


TimelineChange = Publish | End | Expire | Cancel


@dataclass(frozen=True, slots=True)
class Revised:
    """Rows that a change closes, as they are after that, and rows that it opens."""

    closed: tuple[TimelineRow, ...]
    opened: tuple[TimelineRow, ...]


def revise_timeline(
    open_rows: Sequence[TimelineRow], change: TimelineChange, recorded_at: datetime, position: int
) -> Revised:
    """Work out what ``change`` does to the open rows of one (family, branch).

    Args:
        open_rows: All rows that are open on the recorded axis, in any order.
        change: What happens on the valid axis.
        recorded_at: Time of the commit; later than that of every commit before.
        position: Position of the commit.

    Raises:
        TimelineError: The rows do not allow the change (nothing to end, not scheduled, already ended for good).
    """
    before = sort_rows(open_rows)
    match change:
        case Publish():
            after = _publish(before, change, recorded_at, position)
        case End():
            after = _end(before, change)
        case Expire():
            after = _expire(before, change)
        case Cancel():
            after = _cancel(before, change)
    kept = [row for row in before if any(row is other for other in after)]
    closed = tuple(
        replace(row, recorded_to=recorded_at, closed_position=position)
        for row in before
        if not any(row is other for other in kept)
    )
    opened = tuple(
        replace(row, recorded_from=recorded_at, opened_position=position)
        for row in after
        if not any(row is other for other in kept)
    )
    return Revised(closed, opened)


def sort_rows(rows: Iterable[TimelineRow]) -> list[TimelineRow]:
    """Rows in order of their start on the valid axis."""
    return sorted(rows, key=lambda row: row.valid_from)


def _publish(before: list[TimelineRow], change: Publish, recorded_at: datetime, position: int) -> list[TimelineRow]:
    start = change.valid_from
    after = [
        row if row.valid_to is not None and row.valid_to <= start else replace(row, valid_to=start, end=RowEnd.REPLACED)
        for row in before
        if row.valid_from < start
    ]
    own_end = RowEnd.OPEN if change.valid_to is None else RowEnd.EXPIRED
    after.append(
        TimelineRow(
            family_id=change.family_id,
            branch=change.branch,
            revision_id=change.revision_id,
            standing=change.standing,
            valid_from=start,
            valid_to=change.valid_to,
            end=own_end,
            intrinsic_to=change.valid_to,
            intrinsic_end=own_end,
            recorded_from=recorded_at,
            opened_position=position,
        )
    )
    return after


def _end(before: list[TimelineRow], change: End) -> list[TimelineRow]:
    at = change.at
    after: list[TimelineRow] = []
    for row in before:
        if row.valid_from >= at:
            continue
        reaches = row.valid_to is None or row.valid_to > at
        # A row that the dropped one had cut exactly here must not get its time back by a later change of expiry.
        was_cut_here = row.valid_to == at and row.end is RowEnd.REPLACED
        if reaches or was_cut_here:
            after.append(replace(row, valid_to=at, end=change.end, intrinsic_to=at, intrinsic_end=change.end))
        else:
            after.append(row)
    if len(after) == len(before) and all(a is b for a, b in zip(after, before, strict=True)):
        raise TimelineError("nothing_in_force", f"nothing of it holds at or after {at.isoformat()}: nothing to end")
    return after


def _expire(before: list[TimelineRow], change: Expire) -> list[TimelineRow]:
    index = _index_of(before, change.revision_id)
    if index is None:
        raise TimelineError("not_published", "the revision is not part of the timeline any more")
    row = before[index]
    if row.intrinsic_end in _ENDED_FOR_GOOD:
        raise TimelineError(
            "ended_for_good", "the revision was invalidated: publish a new revision instead of moving its end"
        )
    if change.valid_to is not None and change.valid_to <= row.valid_from:
        raise TimelineError("empty_interval", f"the end must be after the start, {row.valid_from.isoformat()}")
    own_end = RowEnd.OPEN if change.valid_to is None else RowEnd.EXPIRED
    following = before[index + 1].valid_from if index + 1 < len(before) else None
    is_cut = following is not None and (change.valid_to is None or following < change.valid_to)
    moved = replace(
        row,
        valid_to=following if is_cut else change.valid_to,
        end=RowEnd.REPLACED if is_cut else own_end,
        intrinsic_to=change.valid_to,
        intrinsic_end=own_end,
    )
    if moved == row:
        raise TimelineError("no_change", "the revision ends there already")
    return [*before[:index], moved, *before[index + 1 :]]


def _cancel(before: list[TimelineRow], change: Cancel) -> list[TimelineRow]:
    index = _index_of(before, change.revision_id)
    if index is None:
        raise TimelineError("not_scheduled", "the revision is not part of the timeline any more")
    removed = before[index]
    if removed.valid_from <= change.now:
        raise TimelineError(
            "not_scheduled", f"the revision came into force at {removed.valid_from.isoformat()}: invalidate it instead"
        )
    after = [*before[:index], *before[index + 1 :]]
    if index == 0:
        return after
    cut = before[index - 1]
    if cut.valid_to != removed.valid_from or cut.end is not RowEnd.REPLACED:
        return after
    after[index - 1] = _extend(cut, removed)
    return after


def _extend(cut: TimelineRow, removed: TimelineRow) -> TimelineRow:
    """Give the time of a removed row back to the row that it had cut, but never beyond either's end."""
    limit = removed.valid_to
    if limit is None or (cut.intrinsic_to is not None and cut.intrinsic_to <= limit):
        return replace(cut, valid_to=cut.intrinsic_to, end=cut.intrinsic_end)
    if removed.end is RowEnd.REPLACED:
        return replace(cut, valid_to=limit, end=RowEnd.REPLACED)
    return replace(cut, valid_to=limit, end=removed.end, intrinsic_to=limit, intrinsic_end=removed.end)


def _index_of(rows: Sequence[TimelineRow], revision_id: str) -> int | None:
    return next((index for index, row in enumerate(rows) if row.revision_id == revision_id), None)


def row_at(rows: Iterable[TimelineRow], valid_at: datetime, known_at: datetime) -> TimelineRow | None:
    """The row that covers ``valid_at`` as known at ``known_at``, whatever its standing; at most one does."""
    return next((row for row in rows if row.covers(valid_at) and row.known(known_at)), None)


def in_force(rows: Iterable[TimelineRow], valid_at: datetime, known_at: datetime) -> TimelineRow | None:
    """The row in force: it covers ``valid_at`` as known at ``known_at`` and its content is ADOPTED."""
    row = row_at(rows, valid_at, known_at)
    return row if row is not None and row.standing is Standing.ADOPTED else None


_STATE_OF_END = {
    RowEnd.REPLACED: MemoryState.SUPERSEDED,
    RowEnd.DEPRECATED: MemoryState.SUPERSEDED,
    RowEnd.INVALIDATED: MemoryState.INVALIDATED,
    RowEnd.EXPIRED: MemoryState.EXPIRED,
}


def state_of(
    row: TimelineRow,
    valid_at: datetime,
    *,
    deprecated: bool = False,
    archived: bool = False,
    conflicted: bool = False,
) -> MemoryState:
    """State of one row at a moment of the world.

    Args:
        row: Any row, open or closed.
        valid_at: The moment.
        deprecated: A DEPRECATES relation points at the family, and holds at that moment.
        archived: The family is hidden.
        conflicted: The revision is in an open conflict case.
    """
    if valid_at < row.valid_from:
        return MemoryState.SCHEDULED
    if row.valid_to is not None and valid_at >= row.valid_to:
        state = _STATE_OF_END[row.end]
        # Whatever ended it, what a reader needs to know is that there is a replacement.
        return MemoryState.SUPERSEDED if deprecated else state
    if deprecated:
        return MemoryState.SUPERSEDED
    if row.standing is not Standing.ADOPTED:
        return MemoryState.NOT_IN_FORCE
    if conflicted:
        return MemoryState.CONFLICTED
    return MemoryState.ARCHIVED if archived else MemoryState.ACTIVE


@dataclass(frozen=True, slots=True)
class FamilyState:
    """What a (family, branch) answers at a point of the two axes."""

    state: MemoryState
    row: TimelineRow | None
    """The row that covers the moment, else the last one before it, else the first one after it."""
    scheduled: tuple[TimelineRow, ...]
    """Rows that start after the moment, in order."""


def family_state(
    rows: Iterable[TimelineRow],
    valid_at: datetime,
    known_at: datetime,
    *,
    deprecated: bool = False,
    archived: bool = False,
    conflicted: bool = False,
    invalidated: bool = False,
) -> FamilyState:
    """State of a (family, branch) at ``valid_at`` as known at ``known_at``.

    Args:
        rows: Rows of the (family, branch), open and closed ones alike.
        valid_at: Moment of the world.
        known_at: Moment of the ledger's clock.
        deprecated: A DEPRECATES relation points at the family, and holds at that point.
        archived: The family is hidden.
        conflicted: The covering revision is in an open conflict case.
        invalidated: The head says that an invalidation took the whole timeline away; matters when no row is left.
    """
    known = sort_rows(row for row in rows if row.known(known_at))
    scheduled = tuple(row for row in known if row.valid_from > valid_at)
    started = [row for row in known if row.valid_from <= valid_at]
    row = started[-1] if started else (scheduled[0] if scheduled else None)
    if row is None:
        gone = MemoryState.INVALIDATED if invalidated else MemoryState.NOT_IN_FORCE
        return FamilyState(MemoryState.SUPERSEDED if deprecated else gone, None, ())
    state = state_of(row, valid_at, deprecated=deprecated, archived=archived, conflicted=conflicted)
    return FamilyState(state, row, scheduled)
