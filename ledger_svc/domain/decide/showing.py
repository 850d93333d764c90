"""What a reviewer sees of a proposal: both sides of the change, and warnings."""

from __future__ import annotations

from datetime import datetime

from ledger_svc.domain.decide.making import Effect, Making, head_revision
from ledger_svc.domain.model import (
    CONTENT_KINDS,
    CancelSchedule,
    Deprecate,
    Invalidate,
    Mutation,
    Relation,
    RowEnd,
    RowPreview,
    Snapshot,
    TimelineRow,
)
from ledger_svc.domain.state import State
from ledger_svc.domain.timeline import sort_rows

NEW_REVISION = ""
"""Stands for the id of the revision, or family, that the apply will make."""
_NEW_FAMILY = "new"


def snapshots(
    state: State, branch: str, mutation: Mutation, effect: Effect, making: Making
) -> tuple[Snapshot, Snapshot]:
    """Both sides of a change, before and after."""
    target = getattr(mutation, "family_id", "")
    head = state.heads.get((target, branch)) if target else None
    rows = sort_rows(state.rows.get((target, branch), ())) if target else []
    publishes = mutation.KIND in CONTENT_KINDS
    old_relations = tuple(_relation_text(relation, mutation) for relation in effect.relations_retired)
    new_relations = tuple(_relation_text(relation, mutation) for relation in effect.relations_opened)
    before = Snapshot(
        revision_id=head.revision_id if head is not None else "",
        content=head_revision(state, head).content if head is not None and publishes else None,
        rows=tuple(_row_text(row) for row in rows),
        relations=old_relations,
    )
    closed = {row.key for row in effect.rows_closed}
    after_rows = sort_rows([*(row for row in rows if row.key not in closed), *effect.rows_opened])
    at_apply = making.recorded_at if _starts_at_apply(mutation) else None
    after = Snapshot(
        revision_id=NEW_REVISION if publishes else (effect.heads[0].revision_id if effect.heads else ""),
        content=effect.revisions[0].content if effect.revisions else None,
        rows=tuple(_row_text(row, at_apply, making) for row in after_rows),
        relations=new_relations,
    )
    return before, after


def _starts_at_apply(mutation: Mutation) -> bool:
    if isinstance(mutation, Invalidate | Deprecate):
        return mutation.effective_from is None
    return mutation.KIND in CONTENT_KINDS and getattr(mutation, "valid_from", None) is None


def _row_text(row: TimelineRow, at_apply: datetime | None = None, making: Making | None = None) -> RowPreview:
    starts_at_apply = at_apply is not None and row.valid_from == at_apply
    ends_at_apply = at_apply is not None and row.valid_to == at_apply
    # An end that the policy counts from the apply has no date yet.
    ends_later = starts_at_apply and making is not None and making.default_validity is not None
    return RowPreview(
        revision_id=row.revision_id,
        standing=row.standing,
        valid_from=None if starts_at_apply else row.valid_from,
        valid_to=None if ends_at_apply or ends_later else row.valid_to,
        ends_at_apply=ends_at_apply,
        end=row.end,
    )


def _relation_text(relation: Relation, mutation: Mutation) -> str:
    source = relation.source_id or _NEW_FAMILY
    target = relation.target_id or _NEW_FAMILY
    since = getattr(mutation, "valid_from", None) or getattr(mutation, "effective_from", None)
    tail = f" from {since.isoformat()}" if since is not None else ""
    return f"{relation.kind} {source} {target}{tail}"


def time_warnings(mutation: Mutation, effect: Effect, now: datetime) -> tuple[str, ...]:
    """What a reviewer should know about the times of a change."""
    kept = {row.revision_id for row in effect.rows_opened}
    cancelled = isinstance(mutation, CancelSchedule)
    warnings = [
        f"takes the schedule of revision {row.revision_id} at {row.valid_from.isoformat()} away"
        for row in effect.rows_closed
        if row.valid_from > now and row.revision_id not in kept and not cancelled
    ]
    given: tuple[datetime | None, ...] = tuple(
        getattr(mutation, name, None) for name in ("valid_from", "effective_from")
    )
    warnings += [
        f"changes what held from {moment.isoformat()} on, which is in the past"
        for moment in given
        if moment is not None and moment < now
    ]
    if cancelled and effect.rows_opened:
        extended = effect.rows_opened[0]
        if extended.end is not RowEnd.OPEN and extended.valid_to is not None:
            warnings.append(f"the revision before it then ends at {extended.valid_to.isoformat()}")
    if effect.flags_raised:
        warnings.append(f"flags {len(effect.flags_raised)} dependent memories for review")
    return tuple(warnings)
