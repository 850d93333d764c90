"""The audit chain: append-only, each entry holding the hash of the one before and of every record that it touched.

A record that lives on (a proposal, a timeline row, a head) is hashed again by every entry that changes it; the last
entry that names a record is the one that its stored bytes must match.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from ledger_svc.domain.canonical import audit_entry_hash, canonical_json, instant_text, record_hash
from ledger_svc.domain.model import (
    Approval,
    AuditAction,
    AuditEntry,
    AuditTip,
    ChangeSet,
    Commit,
    Evidence,
    Family,
    Head,
    Policy,
    Principal,
    Project,
    Proposal,
    RecordHash,
    RecordKind,
    Relation,
    ReviewFlag,
    Revision,
    TimelineRow,
    Verification,
)

Record = (
    Project
    | Policy
    | Family
    | Revision
    | Head
    | TimelineRow
    | Relation
    | Evidence
    | Verification
    | Proposal
    | Approval
    | ReviewFlag
    | Commit
)


def record_key(record: Record) -> tuple[RecordKind, str]:
    """Kind and id under which the chain remembers a record."""
    match record:
        case Project():
            return RecordKind.PROJECT, record.project_id
        case Policy():
            return RecordKind.POLICY, str(record.version)
        case Family():
            return RecordKind.FAMILY, record.family_id
        case Revision():
            return RecordKind.REVISION, record.revision_id
        case Head():
            return RecordKind.HEAD, f"{record.family_id}/{record.branch}"
        case TimelineRow():
            start = instant_text(record.valid_from)
            return RecordKind.TIMELINE_ROW, f"{record.family_id}/{record.branch}/{record.opened_position}/{start}"
        case Relation():
            return RecordKind.RELATION, record.relation_id
        case Evidence():
            return RecordKind.EVIDENCE, record.evidence_id
        case Verification():
            return RecordKind.VERIFICATION, f"{record.evidence_id}/{record.number}"
        case Proposal():
            return RecordKind.PROPOSAL, record.proposal_id
        case Approval():
            return RecordKind.APPROVAL, record.approval_id
        case ReviewFlag():
            key = f"{record.family_id}/{record.branch}/{record.cause_family_id}/{record.position}"
            return RecordKind.REVIEW_FLAG, key
        case Commit():
            return RecordKind.COMMIT, str(record.position)


def hash_record(record: Record) -> RecordHash:
    """What the chain remembers of a record."""
    kind, record_id = record_key(record)
    return RecordHash(kind, record_id, record_hash(record))


def records_of(change: ChangeSet) -> Iterator[Record]:
    """Every record that a change set writes, as it is after the change."""
    if change.project is not None:
        yield change.project
    if change.policy is not None:
        yield change.policy
    if change.commit is not None:
        yield change.commit
    yield from change.families
    yield from change.revisions
    yield from change.rows_closed
    yield from change.rows_opened
    yield from change.heads
    yield from change.relations_opened
    yield from change.relations_retired
    yield from change.flags_raised
    yield from change.flags_cleared
    yield from change.evidence
    yield from change.verifications
    yield from change.proposals_added
    yield from change.proposals_changed
    yield from change.approvals_added
    yield from change.approvals_changed


def append(
    tip: AuditTip,
    *,
    project_id: str,
    action: AuditAction,
    actor: Principal,
    subject: str,
    position: int,
    recorded_at: datetime,
    records: Iterable[Record],
    details: Mapping[str, str],
) -> AuditEntry:
    """Make the entry that follows ``tip``."""
    entry = AuditEntry(
        project_id=project_id,
        sequence=tip.sequence + 1,
        action=action,
        actor=actor,
        subject=subject,
        position=position,
        recorded_at=recorded_at,
        records=tuple(hash_record(record) for record in records),
        details=dict(details),
        previous_hash=tip.entry_hash,
        entry_hash="",
    )
    return dataclasses.replace(entry, entry_hash=audit_entry_hash(entry))


def tip_after(entry: AuditEntry) -> AuditTip:
    """Where the chain ends after an entry."""
    return AuditTip(entry.sequence, entry.entry_hash)


def details_json(entry: AuditEntry) -> str:
    """An entry's facts and record hashes as one canonical JSON object, for readers."""
    facts: dict[str, Any] = dict(entry.details)
    facts["records"] = [f"{r.kind} {r.record_id} {r.hash}" for r in entry.records]
    return canonical_json(facts).decode()


@dataclass(frozen=True, slots=True)
class ChainProblem:
    """Something that does not match; ``sequence`` names the entry, 0 when no entry covers the record."""

    sequence: int
    subject: str
    problem: str


@dataclass(slots=True)
class ChainVerifier:
    """Checks a chain as it streams by, then the stored records against it.

    Call ``entry`` for every entry in order, ``tip`` once, ``record`` for every stored record, then ``missing``.
    """

    entries: int = 0
    records: int = 0
    _tip: AuditTip = field(default_factory=AuditTip)
    _expected: dict[tuple[RecordKind, str], tuple[int, str]] = field(default_factory=dict)
    _seen: set[tuple[RecordKind, str]] = field(default_factory=set)

    @property
    def chain_head(self) -> str:
        """Hash of the newest entry seen."""
        return self._tip.entry_hash

    def entry(self, entry: AuditEntry) -> list[ChainProblem]:
        """Check one entry: its place, its link to the one before, its own hash."""
        problems: list[ChainProblem] = []
        where = entry.sequence
        if entry.sequence != self._tip.sequence + 1:
            text = f"follows entry {self._tip.sequence}: one is missing, doubled or out of order"
            problems.append(ChainProblem(where, entry.subject, text))
        if entry.previous_hash != self._tip.entry_hash:
            problems.append(ChainProblem(where, entry.subject, "does not hold the hash of the entry before it"))
        if audit_entry_hash(entry) != entry.entry_hash:
            problems.append(ChainProblem(where, entry.subject, "its bytes do not match its hash"))
        for record in entry.records:
            self._expected[record.kind, record.record_id] = (entry.sequence, record.hash)
        self._tip = tip_after(entry)
        self.entries += 1
        return problems

    def tip(self, stored: AuditTip) -> list[ChainProblem]:
        """Check that the chain ends where the project says: entries cut off at the end are missed otherwise."""
        if stored == self._tip:
            return []
        text = f"the project's chain ends at entry {stored.sequence}, the entries at {self._tip.sequence}"
        return [ChainProblem(max(stored.sequence, self._tip.sequence), "", text)]

    def record(self, record: Record) -> list[ChainProblem]:
        """Check one stored record against the last entry that names it."""
        self.records += 1
        key = record_key(record)
        sequence, expected = self._expected.get(key, (0, ""))
        subject = f"{key[0]} {key[1]}"
        if not expected:
            return [ChainProblem(0, subject, "no audit entry covers it")]
        if key in self._seen:
            return [ChainProblem(sequence, subject, "is stored twice")]
        self._seen.add(key)
        if record_hash(record) != expected:
            return [ChainProblem(sequence, subject, "its bytes do not match the hash in the entry")]
        return []

    def sequence_of(self, record: Record) -> int:
        """The last entry that names a record; 0 when none does."""
        return self._expected.get(record_key(record), (0, ""))[0]

    def damaged(self, kind: RecordKind, record_id: str, problem: str) -> ChainProblem:
        """A stored record that cannot even be read, or is not where it should be; names its entry."""
        self.records += 1
        sequence, _ = self._expected.get((kind, record_id), (0, ""))
        self._seen.add((kind, record_id))
        return ChainProblem(sequence, f"{kind} {record_id}", problem)

    def missing(self) -> list[ChainProblem]:
        """Records that entries name and that were not seen."""
        return [
            ChainProblem(sequence, f"{kind} {record_id}", "is not stored any more")
            for (kind, record_id), (sequence, _) in sorted(self._expected.items(), key=lambda item: item[1][0])
            if (kind, record_id) not in self._seen
        ]


def verify_chain(entries: Iterable[AuditEntry], tip: AuditTip | None = None) -> list[ChainProblem]:
    """Check a whole chain without the records that it covers."""
    verifier = ChainVerifier()
    problems = [problem for entry in entries for problem in verifier.entry(entry)]
    return problems + (verifier.tip(tip) if tip is not None else [])
