"""Reads back every audited record of a project exactly as stored, and shows each to the verifier."""

from __future__ import annotations

import sqlite3
from typing import Final

from ledger_svc.audit_scan import LAYOUTS, Layout, check_entry, check_keys, check_project, check_record
from ledger_svc.domain.audit import ChainProblem, ChainVerifier
from ledger_svc.domain.model import AuditTip, RecordKind

_SOURCES: Final = {
    RecordKind.POLICY: "policies AS x WHERE x.project_id = ? ORDER BY x.version",
    RecordKind.COMMIT: "commits AS x WHERE x.project_id = ? ORDER BY x.position",
    RecordKind.FAMILY: "families AS x WHERE x.project_id = ?",
    RecordKind.REVISION: "families AS f CROSS JOIN revisions AS x ON x.family_id = f.family_id WHERE f.project_id = ?",
    RecordKind.TIMELINE_ROW: (
        "families AS f CROSS JOIN timeline_rows AS x ON x.family_id = f.family_id WHERE f.project_id = ?"
    ),
    RecordKind.HEAD: "families AS f CROSS JOIN heads AS x ON x.family_id = f.family_id WHERE f.project_id = ?",
    RecordKind.REVIEW_FLAG: (
        "families AS f CROSS JOIN review_flags AS x ON x.family_id = f.family_id WHERE f.project_id = ?"
    ),
    RecordKind.RELATION: "relations AS x WHERE x.project_id = ?",
    RecordKind.EVIDENCE: "evidence AS x WHERE x.project_id = ?",
    RecordKind.VERIFICATION: (
        "evidence AS e CROSS JOIN verifications AS x ON x.evidence_id = e.evidence_id WHERE e.project_id = ?"
    ),
    RecordKind.PROPOSAL: "proposals AS x WHERE x.project_id = ?",
    RecordKind.APPROVAL: (
        "proposals AS p CROSS JOIN approvals AS x ON x.proposal_id = p.proposal_id WHERE p.project_id = ?"
    ),
}
"""Where the records of a project are found."""


def _statement(layout: Layout) -> str:
    columns = ", ".join(f"x.{c}" for c in layout.columns.split(", "))
    return f"SELECT {columns} FROM {_SOURCES[layout.kind]}"


def scan(connection: sqlite3.Connection, project_id: str, verifier: ChainVerifier) -> list[ChainProblem]:
    """Show everything of a project to the verifier; return what is wrong."""
    run, own = connection.execute, (project_id,)
    problems: list[ChainProblem] = []
    for sequence, body in run("SELECT sequence, body FROM audit WHERE project_id = ? ORDER BY sequence", own):
        problems += check_entry(project_id, sequence, body, verifier)
    found = run("SELECT body, position, audit_sequence, audit_hash FROM projects WHERE project_id = ?", own).fetchone()
    if found is not None:
        body, position, sequence, entry_hash = found
        last = run("SELECT coalesce(max(position), 0) FROM commits WHERE project_id = ?", own).fetchone()[0]
        problems += check_project(project_id, body, position, AuditTip(sequence, entry_hash), last, verifier)
    for layout in LAYOUTS:
        for row in run(_statement(layout), own):
            problems += check_record(layout, row, project_id, verifier)
    keys = dict(run("SELECT identity_key, family_id FROM identity_keys WHERE project_id = ?", own))
    bodies = (row[0] for row in run("SELECT body FROM families WHERE project_id = ?", own))
    return problems + check_keys(keys, bodies, verifier) + verifier.missing()
