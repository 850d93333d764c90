"""What stores share when a project moves: who takes its records, and the changes by which they are written again."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from datetime import datetime
from typing import Any, Final, Protocol

from ledger_svc.domain.model import (
    Admission,
    Approval,
    AuditEntry,
    ChangeSet,
    Commit,
    EventKind,
    Evidence,
    Family,
    Head,
    LedgerEvent,
    Observation,
    Policy,
    Project,
    Proposal,
    Relation,
    ReviewFlag,
    Revision,
    Signal,
    StoredReply,
    TimelineRow,
)
from ledger_svc.domain.moving import MovingRecord
from ledger_svc.state import BEGINNING, Change, Landing

EVENTS_AT_ONCE: Final = 1_000


class RecordSink(Protocol):
    """Takes the records of a project in the order of ``domain.moving.SECTIONS``."""

    def begin(self) -> None:
        """Forget what was put: the reading starts over."""

    def put(self, record: MovingRecord) -> None:
        """Take a record."""


_FIELDS: Final[dict[type[Any], str]] = {
    AuditEntry: "audit",
    Family: "families",
    Evidence: "evidence",
    Revision: "revisions",
    TimelineRow: "rows_opened",
    Head: "heads",
    ReviewFlag: "flags_raised",
    Proposal: "proposals_added",
    Approval: "approvals_added",
}
"""Where in a ChangeSet records of a kind go as they are; of each, one may hold many."""

_LANDINGS: Final[dict[type[Any], str]] = {
    Observation: "observations",
    Admission: "admissions",
    Signal: "signals",
    StoredReply: "replies",
}


def changes_of(project_id: str, records: Sequence[MovingRecord]) -> list[Change]:
    """Return changes that write records as they are, with all that became of them. The project itself is left out."""
    changes: list[Change] = []
    gathered: dict[str, list[Any]] = {}
    landed: dict[str, list[Any]] = {}

    def close() -> None:
        if gathered:
            fields = {name: tuple(items) for name, items in gathered.items()}
            changes.append(_change(project_id, audit=fields.pop("audit", ()), **fields))
            gathered.clear()

    for record in records:
        kind = type(record)
        if kind in _LANDINGS:
            landed.setdefault(_LANDINGS[kind], []).append(record)
        elif isinstance(record, Evidence):
            gathered.setdefault("evidence", []).append(replace(record, verifications=()))
            gathered.setdefault("verifications", []).extend(record.verifications)
        elif kind in _FIELDS:
            gathered.setdefault(_FIELDS[kind], []).append(record)
        elif not isinstance(record, Project):
            # One for each: a change has at most one commit and one policy, and a relation that was retired makes
            # room for the next of its kind.
            close()
            changes.append(_alone(project_id, record))
    close()
    if landed:
        changes.append(Landing(project_id, **{name: tuple(items) for name, items in landed.items()}))
    return changes


def _alone(project_id: str, record: MovingRecord) -> ChangeSet:
    if isinstance(record, Commit):
        return ChangeSet(project_id, record.recorded_at, record.position, (), commit=record)
    if isinstance(record, Policy):
        return _change(project_id, policy=record)
    if isinstance(record, Relation):
        if not record.is_retired:
            return _change(project_id, relations_opened=(record,))
        asserted = replace(record, retired_from=None, retired_recorded_at=None, retired_position=None)
        return _change(project_id, relations_opened=(asserted,), relations_retired=(record,))
    raise TypeError(type(record).__name__)


def _change(project_id: str, *, audit: tuple[AuditEntry, ...] = (), **fields: Any) -> ChangeSet:
    return ChangeSet(project_id, BEGINNING, None, audit, **fields)


def fill_events(project_id: str, position: int, heads: Iterable[tuple[str, str]], now: datetime) -> Iterable[ChangeSet]:
    """Return the events that let the index fill itself: one for each (family, branch), in bounded parts."""
    events: list[LedgerEvent] = []
    for ordinal, (family_id, branch) in enumerate(heads):
        events.append(LedgerEvent(project_id, position, ordinal, EventKind.HEAD_CHANGED, now, family_id, branch))
        if len(events) == EVENTS_AT_ONCE:
            yield _change(project_id, events=tuple(events))
            events = []
    if events:
        yield _change(project_id, events=tuple(events))
