"""Mutations that change only when something holds: invalidate, deprecate, set an expiry, cancel a schedule."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime

from ledger_svc.domain import errors
from ledger_svc.domain.decide import relations
from ledger_svc.domain.decide.making import (
    Effect,
    Making,
    cascade,
    cleared,
    published_head,
    refuse_revival,
    revise,
)
from ledger_svc.domain.model import (
    CancelSchedule,
    Deprecate,
    EventKind,
    Invalidate,
    RelationKind,
    RowEnd,
    SetExpiry,
    Standing,
)
from ledger_svc.domain.state import State
from ledger_svc.domain.timeline import (
    Cancel,
    End,
    Expire,
    TimelineChange,
    sort_rows,
)


def invalidate(state: State, mutation: Invalidate, making: Making) -> Effect:
    """End everything from a moment on."""
    at = mutation.effective_from if mutation.effective_from is not None else making.recorded_at
    effect = _changed_time(state, making, mutation.family_id, End(at))
    effect = replace(effect, flags_cleared=cleared(state, making, mutation.family_id))
    return cascade(state, making, effect, mutation.family_id, "INVALIDATED")


def deprecate(state: State, mutation: Deprecate, making: Making) -> Effect:
    """End a family and say which one replaces it, in one commit."""
    old, new = mutation.family_id, mutation.replacement_family_id
    at = mutation.effective_from if mutation.effective_from is not None else making.recorded_at
    published_head(state, old, making.branch)
    published_head(state, new, making.branch)
    relations.check_ends(RelationKind.DEPRECATES, state.family(new), state.family(old))
    _check_replacement(state, making, new, at)
    effect = _changed_time(state, making, old, End(at, RowEnd.DEPRECATED))
    effect = replace(effect, flags_cleared=cleared(state, making, old))
    effect = cascade(state, making, effect, old, "DEPRECATED")
    touched = (*effect.touched, (new, EventKind.RELATION_CHANGED))
    if relations.find_active(state, making.branch, RelationKind.DEPRECATES, new, old) is not None:
        return replace(effect, touched=touched)
    relation = relations.new_relation(
        state,
        making,
        RelationKind.DEPRECATES,
        state.family(new),
        state.family(old),
        rationale=mutation.rationale or making.reason,
        valid=(at, None),
    )
    return replace(effect, touched=touched, relations_opened=(relation,))


def _check_replacement(state: State, making: Making, family_id: str, at: datetime) -> None:
    """What takes over holds then or later: an adopted row does not end before.

    That covers a replacement that is replaced itself, because its rows end where that begins.
    """
    rows = state.rows.get((family_id, making.branch), ())
    if not any(r.standing is Standing.ADOPTED and (r.valid_to is None or r.valid_to > at) for r in rows):
        raise errors.state_conflict(
            state.project_id,
            family_id,
            "replacement_not_in_force",
            "the replacement is neither in force nor scheduled at that time",
        )


def set_expiry(state: State, mutation: SetExpiry, making: Making) -> Effect:
    """Move the end of one revision's validity, or take it away."""
    head = published_head(state, mutation.family_id, making.branch)
    revision_id = mutation.revision_id or expiring_revision(
        state, mutation.family_id, making.branch, making.recorded_at
    )
    ended = head.invalid_from
    if ended is not None and (mutation.valid_to is None or mutation.valid_to > ended):
        raise errors.state_conflict(
            state.project_id,
            mutation.family_id,
            "ended_for_good",
            f"it was invalidated from {ended.isoformat()} on: publish a new revision instead",
        )
    return _changed_time(state, making, mutation.family_id, Expire(revision_id, mutation.valid_to))


def expiring_revision(state: State, family_id: str, branch: str, now: datetime) -> str:
    """The revision that an expiry is about when none is named: the one that covers now, else the last one."""
    rows = sort_rows(state.rows.get((family_id, branch), ()))
    covering = next((row for row in rows if row.covers(now)), rows[-1] if rows else None)
    return covering.revision_id if covering is not None else ""


def cancel(state: State, mutation: CancelSchedule, making: Making) -> Effect:
    """Take a scheduled revision out."""
    return _changed_time(state, making, mutation.family_id, Cancel(mutation.revision_id, making.recorded_at))


def _changed_time(state: State, making: Making, family_id: str, change: TimelineChange) -> Effect:
    """The effect of a change of the timeline alone; the head follows the last row that is left."""
    head = published_head(state, family_id, making.branch)
    revised = revise(state, family_id, making, change)
    if not isinstance(change, End):
        refuse_revival(state, making, family_id, revised.opened)
    closed = {row.key for row in revised.closed}
    rows = [row for row in state.rows.get((family_id, making.branch), ()) if row.key not in closed]
    left = sort_rows([*rows, *revised.opened])
    moved = replace(
        head,
        revision_id=left[-1].revision_id if left else head.revision_id,
        position=making.position,
        recorded_at=making.recorded_at,
        invalid_from=change.at if isinstance(change, End) else head.invalid_from,
    )
    return Effect(
        touched=((family_id, EventKind.HEAD_CHANGED),),
        rows_closed=revised.closed,
        rows_opened=revised.opened,
        heads=(moved,),
    )
