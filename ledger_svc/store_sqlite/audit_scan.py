"""Reads back every audited record of a project exactly as stored, and shows each to the verifier.

A record's hash covers what it says. So that no stored byte escapes, each record is also written again in memory and
compared with its row: a column or a text that differs from what the record would be stored as was tampered with.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from typing import Any, Final

from ledger_svc import rows as r
from ledger_svc.domain.audit import ChainProblem, ChainVerifier, Record, record_key
from ledger_svc.domain.model import (
    AuditEntry,
    AuditTip,
    Commit,
    Evidence,
    Family,
    Policy,
    RecordKind,
    Revision,
    Verification,
)
from ledger_svc.instants import to_micros
from ledger_svc.records import dump, load

Row = tuple[Any, ...]

_CORRUPT: Final = "its stored columns do not match what it says"


class _Table:
    """How to read the records of one table, and what row each of them would be written as."""

    def __init__(
        self,
        kind: RecordKind,
        sql: str,
        read: Callable[[Row], Record],
        write: Callable[[Any], Row],
        name: Callable[[Row], str],
    ) -> None:
        self.kind, self.sql, self.read, self.write, self.name = kind, sql, read, write, name


def scan(connection: sqlite3.Connection, project_id: str, verifier: ChainVerifier) -> list[ChainProblem]:
    """Show everything of a project to the verifier; return what is wrong."""
    problems: list[ChainProblem] = []
    for sequence, body in connection.execute(
        "SELECT sequence, body FROM audit WHERE project_id = ? ORDER BY sequence", (project_id,)
    ):
        try:
            entry = load(AuditEntry, body)
        except Exception:  # noqa: BLE001 - tampered text may fail anywhere; that is the finding
            problems.append(ChainProblem(sequence, f"audit {sequence}", "its bytes cannot be read"))
            continue
        problems += verifier.entry(entry)
        if entry.sequence != sequence or entry.project_id != project_id or dump(entry) != body:
            problems.append(ChainProblem(sequence, f"audit {sequence}", _CORRUPT))
    problems += _project(connection, project_id, verifier)
    for table in _TABLES:
        for row in connection.execute(table.sql, (project_id,)):
            problems += _check(table, row, project_id, verifier)
    problems += _keys(connection, project_id, verifier)
    problems += verifier.missing()
    return problems


def _check(table: _Table, row: Row, project_id: str, verifier: ChainVerifier) -> list[ChainProblem]:
    try:
        record = table.read(row)
    except Exception:  # noqa: BLE001 - tampered bytes may fail anywhere; that is the finding
        return [verifier.damaged(table.kind, table.name(row), "its bytes cannot be read")]
    sequence = verifier.sequence_of(record)
    problems = verifier.record(record)
    owner = getattr(record, "project_id", project_id)
    if not problems and (table.write(record) != row or owner != project_id):
        kind, record_id = record_key(record)
        problems = [ChainProblem(sequence, f"{kind} {record_id}", _CORRUPT)]
    return problems


def _project(connection: sqlite3.Connection, project_id: str, verifier: ChainVerifier) -> list[ChainProblem]:
    row = connection.execute(
        "SELECT body, position, audit_sequence, audit_hash FROM projects WHERE project_id = ?", (project_id,)
    ).fetchone()
    try:
        project = r.project_of(row[0])
    except Exception:  # noqa: BLE001 - as above
        return [verifier.damaged(RecordKind.PROJECT, project_id, "its bytes cannot be read")]
    sequence = verifier.sequence_of(project)
    problems = [*verifier.record(project), *verifier.tip(AuditTip(row[2], row[3]))]
    last = connection.execute(
        "SELECT coalesce(max(position), 0) FROM commits WHERE project_id = ?", (project_id,)
    ).fetchone()[0]
    if last != row[1] or dump(project) != row[0]:
        problems.append(ChainProblem(sequence, f"PROJECT {project_id}", _CORRUPT))
    return problems


def _keys(connection: sqlite3.Connection, project_id: str, verifier: ChainVerifier) -> list[ChainProblem]:
    """Check that the unique names lead to the families that claim them, and to no other."""
    stored = dict(
        connection.execute("SELECT identity_key, family_id FROM identity_keys WHERE project_id = ?", (project_id,))
    )
    problems = []
    for (body,) in connection.execute("SELECT body FROM families WHERE project_id = ?", (project_id,)):
        try:
            family = r.family_of(body)
        except Exception:  # noqa: BLE001, S112 - reported with the families
            continue
        problems += [
            verifier.damaged(RecordKind.FAMILY, family.family_id, f"{key} leads elsewhere")
            for key in dict.fromkeys((family.identity_key, *family.aliases))
            if key and stored.pop(key, "") != family.family_id
        ]
    problems += [
        verifier.damaged(RecordKind.FAMILY, family_id, f"the key {key} is not one of its own")
        for key, family_id in stored.items()
    ]
    return problems


def _evidence_row(record: Evidence) -> Row:
    return (record.evidence_id, record.project_id, record.fingerprint, r.evidence_body(record))


def _family_row(record: Family) -> Row:
    return (
        record.family_id,
        record.project_id,
        record.scope.value,
        record.category.value,
        record.created_position,
        dump(record),
    )


def _revision_columns(record: Revision) -> Row:
    return r.revision_row(record)


def _commit_row(record: Commit) -> Row:
    return (record.project_id, record.position, to_micros(record.recorded_at), dump(record))


def _verification_row(record: Verification) -> Row:
    return (record.evidence_id, record.number, dump(record))


_TABLES: Final[tuple[_Table, ...]] = (
    _Table(
        RecordKind.POLICY,
        "SELECT version, body FROM policies WHERE project_id = ? ORDER BY version",
        lambda row: load(Policy, row[1]),
        lambda p: (p.version, dump(p)),
        lambda row: str(row[0]),
    ),
    _Table(
        RecordKind.COMMIT,
        "SELECT project_id, position, recorded_at, body FROM commits WHERE project_id = ? ORDER BY position",
        lambda row: load(Commit, row[3]),
        _commit_row,
        lambda row: str(row[1]),
    ),
    _Table(
        RecordKind.FAMILY,
        "SELECT family_id, project_id, scope, category, position, body FROM families WHERE project_id = ?",
        lambda row: load(Family, row[5]),
        _family_row,
        lambda row: str(row[0]),
    ),
    _Table(
        RecordKind.REVISION,
        f"SELECT {', '.join('v.' + c for c in r.REVISION_COLUMNS.split(', '))} FROM families AS f "
        "CROSS JOIN revisions AS v ON v.family_id = f.family_id WHERE f.project_id = ?",
        lambda row: r.revision_of(row[7], row[8]),
        _revision_columns,
        lambda row: str(row[0]),
    ),
    _Table(
        RecordKind.TIMELINE_ROW,
        f"SELECT {', '.join('t.' + c for c in r.ROW_COLUMNS.split(', '))} FROM families AS f "
        "CROSS JOIN timeline_rows AS t ON t.family_id = f.family_id WHERE f.project_id = ?",
        r.timeline_row_of,
        r.timeline_row,
        lambda row: f"{row[0]}/{row[1]}/{row[2]}",
    ),
    _Table(
        RecordKind.HEAD,
        f"SELECT {', '.join('h.' + c for c in r.HEAD_COLUMNS.split(', '))} FROM families AS f "
        "CROSS JOIN heads AS h ON h.family_id = f.family_id WHERE f.project_id = ?",
        r.head_of,
        r.head_row,
        lambda row: f"{row[0]}/{row[1]}",
    ),
    _Table(
        RecordKind.REVIEW_FLAG,
        f"SELECT {', '.join('g.' + c for c in r.FLAG_COLUMNS.split(', '))} FROM families AS f "
        "CROSS JOIN review_flags AS g ON g.family_id = f.family_id WHERE f.project_id = ?",
        r.flag_of,
        r.flag_row,
        lambda row: f"{row[0]}/{row[1]}/{row[2]}/{row[3]}",
    ),
    _Table(
        RecordKind.RELATION,
        "SELECT relation_id, project_id, branch, kind, source_id, target_id, position, body, retired_from, "
        "retired_recorded_at, retired_position FROM relations WHERE project_id = ?",
        lambda row: r.relation_of(row[7:]),
        r.relation_row,
        lambda row: str(row[0]),
    ),
    _Table(
        RecordKind.EVIDENCE,
        "SELECT evidence_id, project_id, fingerprint, body FROM evidence WHERE project_id = ?",
        lambda row: r.evidence_of(row[3], []),
        _evidence_row,
        lambda row: str(row[0]),
    ),
    _Table(
        RecordKind.VERIFICATION,
        "SELECT v.evidence_id, v.number, v.body FROM evidence AS e "
        "CROSS JOIN verifications AS v ON v.evidence_id = e.evidence_id WHERE e.project_id = ?",
        lambda row: load(Verification, row[2]),
        _verification_row,
        lambda row: f"{row[0]}/{row[1]}",
    ),
    _Table(
        RecordKind.PROPOSAL,
        "SELECT proposal_id, project_id, body, status, progress FROM proposals WHERE project_id = ?",
        lambda row: r.proposal_of(*row[2:]),
        lambda p: (p.proposal_id, p.project_id, *r.proposal_texts(p)),
        lambda row: str(row[0]),
    ),
    _Table(
        RecordKind.APPROVAL,
        "SELECT a.approval_id, a.project_id, a.proposal_id, a.body, a.progress FROM proposals AS p "
        "CROSS JOIN approvals AS a ON a.proposal_id = p.proposal_id WHERE p.project_id = ?",
        lambda row: r.approval_of(*row[3:]),
        lambda a: (a.approval_id, a.project_id, a.proposal_id, *r.approval_texts(a)),
        lambda row: str(row[0]),
    ),
)
