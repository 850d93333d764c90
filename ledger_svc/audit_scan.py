"""What every stored record must look like: how it is read from its columns, and what columns it would be written as.

A record's hash covers what it says. So that no stored byte escapes, each record is also written again in memory and
compared with what is stored: a column or a text that differs from what the record would be stored as was tampered with.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from ledger_svc import rows as r
from ledger_svc.domain.audit import ChainProblem, ChainVerifier, Record, record_key
from ledger_svc.domain.model import AuditEntry, AuditTip, Commit, Policy, RecordKind, Verification
from ledger_svc.instants import to_micros
from ledger_svc.records import dump, load
from ledger_svc.rows import Row

_CORRUPT: Final = "its stored columns do not match what it says"
_UNREADABLE: Final = "its bytes cannot be read"


@dataclass(frozen=True, slots=True)
class Layout:
    """How the records of one kind are stored: columns in this order."""

    kind: RecordKind
    columns: str
    read: Callable[[Row], Record]
    write: Callable[[Any], Row]
    name: Callable[[Row], str]


LAYOUTS: Final = (
    Layout(
        RecordKind.POLICY,
        "version, body",
        lambda row: load(Policy, row[1]),
        lambda p: (p.version, dump(p)),
        lambda row: str(row[0]),
    ),
    Layout(
        RecordKind.COMMIT,
        "project_id, position, recorded_at, body",
        lambda row: load(Commit, row[3]),
        lambda c: (c.project_id, c.position, to_micros(c.recorded_at), dump(c)),
        lambda row: str(row[1]),
    ),
    Layout(
        RecordKind.FAMILY,
        "family_id, project_id, scope, category, position, body",
        lambda row: r.family_of(row[5]),
        lambda f: (f.family_id, f.project_id, f.scope.value, f.category.value, f.created_position, dump(f)),
        lambda row: str(row[0]),
    ),
    Layout(
        RecordKind.REVISION,
        r.REVISION_COLUMNS,
        lambda row: r.revision_of(row[7], row[8]),
        r.revision_row,
        lambda row: str(row[0]),
    ),
    Layout(
        RecordKind.TIMELINE_ROW,
        r.ROW_COLUMNS,
        r.timeline_row_of,
        r.timeline_row,
        lambda row: f"{row[0]}/{row[1]}/{row[2]}",
    ),
    Layout(
        RecordKind.HEAD,
        r.HEAD_COLUMNS,
        r.head_of,
        r.head_row,
        lambda row: f"{row[0]}/{row[1]}",
    ),
    Layout(
        RecordKind.REVIEW_FLAG,
        r.FLAG_COLUMNS,
        r.flag_of,
        r.flag_row,
        lambda row: f"{row[0]}/{row[1]}/{row[2]}/{row[3]}",
    ),
    Layout(
        RecordKind.RELATION,
        "relation_id, project_id, branch, kind, source_id, target_id, position, body, "
        "retired_from, retired_recorded_at, retired_position",
        lambda row: r.relation_of(row[7:]),
        r.relation_row,
        lambda row: str(row[0]),
    ),
    Layout(
        RecordKind.EVIDENCE,
        "evidence_id, project_id, fingerprint, body",
        lambda row: r.evidence_of(row[3], []),
        lambda e: (e.evidence_id, e.project_id, e.fingerprint, r.evidence_body(e)),
        lambda row: str(row[0]),
    ),
    Layout(
        RecordKind.VERIFICATION,
        "evidence_id, number, body",
        lambda row: load(Verification, row[2]),
        lambda v: (v.evidence_id, v.number, dump(v)),
        lambda row: f"{row[0]}/{row[1]}",
    ),
    Layout(
        RecordKind.PROPOSAL,
        "proposal_id, project_id, body, status, progress",
        lambda row: r.proposal_of(*row[2:]),
        lambda p: (p.proposal_id, p.project_id, *r.proposal_texts(p)),
        lambda row: str(row[0]),
    ),
    Layout(
        RecordKind.APPROVAL,
        "approval_id, project_id, proposal_id, body, progress",
        lambda row: r.approval_of(*row[3:]),
        lambda a: (a.approval_id, a.project_id, a.proposal_id, *r.approval_texts(a)),
        lambda row: str(row[0]),
    ),
)
"""Every kind of audited record but the project itself."""


def check_entry(project_id: str, sequence: int, body: str, verifier: ChainVerifier) -> list[ChainProblem]:
    """Show one audit entry, as stored, to the verifier. In order of the stored sequence."""
    try:
        entry = load(AuditEntry, body)
    except Exception:  # noqa: BLE001 - tampered text may fail anywhere; that is the finding
        return [ChainProblem(sequence, f"audit {sequence}", _UNREADABLE)]
    problems = verifier.entry(entry)
    if entry.sequence != sequence or entry.project_id != project_id or dump(entry) != body:
        problems.append(ChainProblem(sequence, f"audit {sequence}", _CORRUPT))
    return problems


def check_record(layout: Layout, row: Row, project_id: str, verifier: ChainVerifier) -> list[ChainProblem]:
    """Show one record, as stored, to the verifier."""
    try:
        record = layout.read(row)
    except Exception:  # noqa: BLE001 - tampered bytes may fail anywhere; that is the finding
        return [verifier.damaged(layout.kind, layout.name(row), _UNREADABLE)]
    sequence = verifier.sequence_of(record)
    problems = verifier.record(record)
    owner = getattr(record, "project_id", project_id)
    if not problems and (layout.write(record) != row or owner != project_id):
        kind, record_id = record_key(record)
        problems = [ChainProblem(sequence, f"{kind} {record_id}", _CORRUPT)]
    return problems


def check_project(
    project_id: str, body: str, position: int, tip: AuditTip, last_commit: int, verifier: ChainVerifier
) -> list[ChainProblem]:
    """Show the project itself, and where its chain and its commits end, to the verifier."""
    try:
        project = r.project_of(body)
    except Exception:  # noqa: BLE001 - as above
        return [verifier.damaged(RecordKind.PROJECT, project_id, _UNREADABLE)]
    sequence = verifier.sequence_of(project)
    problems = [*verifier.record(project), *verifier.tip(tip)]
    if last_commit != position or dump(project) != body:
        problems.append(ChainProblem(sequence, f"PROJECT {project_id}", _CORRUPT))
    return problems


def check_keys(stored: Mapping[str, str], bodies: Iterable[str], verifier: ChainVerifier) -> list[ChainProblem]:
    """Check that the unique names lead to the families that claim them, and to no other."""
    left = dict(stored)
    problems: list[ChainProblem] = []
    for body in bodies:
        try:
            family = r.family_of(body)
        except Exception:  # noqa: BLE001, S112 - reported with the families
            continue
        problems += [
            verifier.damaged(RecordKind.FAMILY, family.family_id, f"{key} leads elsewhere")
            for key in family.keys
            if left.pop(key, "") != family.family_id
        ]
    problems += [
        verifier.damaged(RecordKind.FAMILY, family_id, f"the key {key} is not one of its own")
        for key, family_id in left.items()
    ]
    return problems
