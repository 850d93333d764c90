"""What a decision hands to an adapter: everything to persist, atomically, and nothing else."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from ledger_svc.domain.model.governance import Approval, AuditEntry, Policy, Proposal
from ledger_svc.domain.model.kinds import EventKind
from ledger_svc.domain.model.knowledge import (
    Evidence,
    Family,
    Head,
    Project,
    Relation,
    ReviewFlag,
    Revision,
    TimelineRow,
    Verification,
)


@dataclass(frozen=True, slots=True)
class LedgerEvent:
    """One entry of the outbox: enough to know what to read again, never the content itself.

    Every commit has at least one, so a consumer that has handled all events up to a position has seen it.
    """

    project_id: str
    position: int
    ordinal: int
    """0, 1, 2, ... within the commit."""
    kind: EventKind
    recorded_at: datetime
    family_id: str = ""
    branch: str = ""
    revision_id: str = ""
    """For HEAD_CHANGED: the head's revision after the commit."""
    relation_id: str = ""
    evidence_id: str = ""


@dataclass(frozen=True, slots=True)
class StoredReply:
    """The first answer to a request_id, kept in the same transaction as its effect."""

    project_id: str
    caller: str
    """``issuer subject`` of the credential: one caller's ids never meet another's."""
    request_id: str
    rpc: str
    request_hash: str
    reply: bytes
    """The serialised response message."""
    recorded_at: datetime


@dataclass(frozen=True, slots=True)
class ChangeSet:
    """All effects of one decision.

    An adapter writes it in one transaction, in any order, or not at all. ``*_opened``, ``*_added`` and names without
    a suffix are inserts; ``*_closed``, ``*_retired``, ``*_changed``, ``*_cleared`` hold the whole record as it is
    after the change, to be found by its id or key. ``heads`` are upserts by (family, branch).
    """

    project_id: str
    recorded_at: datetime
    position: int | None
    """The commit's position, one after the last; None when the decision is no commit (a proposal, an approval)."""
    audit: tuple[AuditEntry, ...]
    project: Project | None = None
    policy: Policy | None = None
    """A new version of the project's policy."""
    families: tuple[Family, ...] = ()
    revisions: tuple[Revision, ...] = ()
    rows_closed: tuple[TimelineRow, ...] = ()
    rows_opened: tuple[TimelineRow, ...] = ()
    heads: tuple[Head, ...] = ()
    relations_opened: tuple[Relation, ...] = ()
    relations_retired: tuple[Relation, ...] = ()
    flags_raised: tuple[ReviewFlag, ...] = ()
    flags_cleared: tuple[ReviewFlag, ...] = ()
    evidence: tuple[Evidence, ...] = ()
    """New evidence; its verifications are empty."""
    verifications: tuple[Verification, ...] = ()
    proposals_added: tuple[Proposal, ...] = ()
    proposals_changed: tuple[Proposal, ...] = ()
    """Only status, decision and result fields differ from what is stored."""
    approvals_added: tuple[Approval, ...] = ()
    approvals_changed: tuple[Approval, ...] = ()
    """Only revocation and consumption differ from what is stored."""
    events: tuple[LedgerEvent, ...] = ()
    replies: tuple[StoredReply, ...] = ()
    """Filled in by the service, which knows the response; decisions leave it empty."""
