"""Moving house: reads a whole project in order, and writes one step of an import within the writer's transaction."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator, Sequence
from typing import Any, Final

from ledger_svc import rows as r
from ledger_svc.domain.model import Admission, AuditEntry, Commit, Observation, Policy, Signal
from ledger_svc.domain.moving import (
    ImportMarker,
    ImportProgress,
    ImportStep,
    MovingRecord,
    ids_taken,
    is_done,
    signal_key,
)
from ledger_svc.moving import RecordSink, changes_of, fill_events
from ledger_svc.records import dump, load
from ledger_svc.store_sqlite.writes import Persister


def _columns(alias: str, columns: str) -> str:
    return ", ".join(f"{alias}.{c}" for c in columns.split(", "))


def _in_families(table: str, columns: str, order: str) -> str:
    return (
        f"SELECT {_columns('x', columns)} FROM families AS f CROSS JOIN {table} AS x ON x.family_id = f.family_id "
        f"WHERE f.project_id = ? ORDER BY f.position, f.family_id, {_columns('x', order)}"
    )


_POLICIES: Final = "SELECT body FROM policies WHERE project_id = ? ORDER BY version"
_AUDIT: Final = "SELECT body FROM audit WHERE project_id = ? ORDER BY sequence"
_FAMILIES: Final = "SELECT family_id, body FROM families WHERE project_id = ? ORDER BY position, family_id"
_EVIDENCE: Final = "SELECT evidence_id, body FROM evidence WHERE project_id = ? ORDER BY fingerprint"
_CHECKS: Final = "SELECT body FROM verifications WHERE evidence_id = ? ORDER BY number"
_REVISIONS: Final = _in_families("revisions", "body, content", "branch, number")
_ROWS: Final = _in_families("timeline_rows", r.ROW_COLUMNS, "branch, opened_position, valid_from")
_HEADS: Final = _in_families("heads", r.HEAD_COLUMNS, "branch")
_RELATIONS: Final = f"SELECT {r.RELATION_COLUMNS} FROM relations WHERE project_id = ? ORDER BY position, relation_id"
_FLAGS: Final = _in_families("review_flags", r.FLAG_COLUMNS, "branch, cause_family_id, position")
_PROPOSALS: Final = (
    "SELECT proposal_id, body, status, progress FROM proposals INDEXED BY proposals_by_project "
    "WHERE project_id = ? ORDER BY seq"
)
_APPROVALS: Final = "SELECT body, progress FROM approvals WHERE proposal_id = ? ORDER BY seq"
_COMMITS: Final = "SELECT body FROM commits WHERE project_id = ? ORDER BY position"
_OBSERVATIONS: Final = (
    "SELECT observation_id, body FROM observations INDEXED BY observations_by_project WHERE project_id = ? ORDER BY seq"
)
_ADMISSIONS: Final = "SELECT body FROM admissions WHERE observation_id = ? ORDER BY number"
_SIGNALS: Final = "SELECT body FROM signals WHERE family_id = ? ORDER BY seq"
_REPLIES: Final = (
    "SELECT caller, rpc, request_id, request_hash, reply, recorded_at FROM replies WHERE project_id = ? "
    "ORDER BY caller, rpc, request_id"
)


class _Source:
    """Reads on one connection; nested reads have cursors of their own."""

    def __init__(self, connection: sqlite3.Connection, project_id: str) -> None:
        self._db = connection
        self._project_id = project_id

    def _rows(self, sql: str, value: str = "") -> Iterator[Any]:
        return self._db.execute(sql, (value or self._project_id,))

    def records(self) -> Iterator[MovingRecord]:
        """Yield everything in the order of an export."""
        for row in self._rows("SELECT body FROM projects WHERE project_id = ?"):
            yield r.project_of(row[0])
        yield from (load(Policy, row[0]) for row in self._rows(_POLICIES))
        yield from (load(AuditEntry, row[0]) for row in self._rows(_AUDIT))
        yield from (r.family_of(row[1]) for row in self._rows(_FAMILIES))
        for ident, body in self._rows(_EVIDENCE):
            yield r.evidence_of(body, [check[0] for check in self._rows(_CHECKS, ident)])
        yield from (r.revision_of(*row) for row in self._rows(_REVISIONS))
        yield from map(r.timeline_row_of, self._rows(_ROWS))
        yield from map(r.head_of, self._rows(_HEADS))
        yield from map(r.relation_of, self._rows(_RELATIONS))
        yield from map(r.flag_of, self._rows(_FLAGS))
        for ident, *texts in self._rows(_PROPOSALS):
            yield r.proposal_of(*texts)
            yield from (r.approval_of(*row) for row in self._rows(_APPROVALS, ident))
        yield from (load(Commit, row[0]) for row in self._rows(_COMMITS))
        for ident, body in self._rows(_OBSERVATIONS):
            yield load(Observation, body)
            yield from (load(Admission, row[0]) for row in self._rows(_ADMISSIONS, ident))
        for family_id, _ in self._rows(_FAMILIES):
            yield from sorted((load(Signal, row[0]) for row in self._rows(_SIGNALS, family_id)), key=signal_key)
        yield from (r.reply_of(self._project_id, row) for row in self._rows(_REPLIES))


def export(connection: sqlite3.Connection, project_id: str, sink: RecordSink) -> bool:
    """Put every record of a project into the sink; False when there is no such project."""
    if not progress(connection, project_id).visible:
        return False
    sink.begin()
    for record in _Source(connection, project_id).records():
        sink.put(record)
    return True


def progress(connection: sqlite3.Connection, project_id: str) -> ImportProgress:
    """Return what is known of a project that is to be imported."""
    row = connection.execute(
        "SELECT importing, import_digest, import_records FROM projects WHERE project_id = ?", (project_id,)
    ).fetchone()
    if row is None:
        return ImportProgress()
    importing, digest, records = row
    return ImportProgress(not importing, ImportMarker(digest, records) if digest else None)


def import_step(connection: sqlite3.Connection, step: ImportStep, records: Sequence[MovingRecord]) -> bool:
    """Do a step; False when it was done before."""
    known = progress(connection, step.project_id)
    if is_done(known, step):
        return False
    own = (step.project_id,)
    if known.marker is None:
        connection.execute(
            "INSERT INTO projects (project_id, body, importing, import_digest) VALUES (?, ?, 1, ?)",
            (step.project_id, dump(step.project), step.digest),
        )
    persister = Persister(connection)
    try:
        for change in changes_of(step.project_id, records):
            persister.persist(change)
    except sqlite3.IntegrityError:
        # Everything that a file can have wrong by itself was looked at before.
        raise ids_taken(step.project_id) from None
    if step.last:
        position = connection.execute("SELECT position FROM projects WHERE project_id = ?", own).fetchone()[0]
        heads = connection.execute(
            "SELECT family_id, branch FROM heads WHERE project_id = ? ORDER BY family_id, branch", own
        )
        for change in fill_events(step.project_id, position, heads, step.now):
            persister.persist(change)
    connection.execute(
        "UPDATE projects SET import_records = ?, importing = ? WHERE project_id = ?",
        (step.upto, int(not step.last), step.project_id),
    )
    return True
