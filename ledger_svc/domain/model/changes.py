"""What a decision hands to an adapter: everything to persist, atomically, and nothing else."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import ClassVar

from ledger_svc.domain.model.governance import Approval, AuditEntry, Policy, Proposal
from ledger_svc.domain.model.kinds import EventKind, MutationKind
from ledger_svc.domain.model.knowledge import (
    Evidence,
    Family,
    Head,
    Principal,
    Project,
    Relation,
    ReviewFlag,
    Revision,
    TimelineRow,
    Verification,
)


@dataclass(frozen=True, slots=True)
class LedgerEvent:
    """One entry of the outbox: a (family, branch) that a commit touched; what to read again, never the content.

    Every commit has at least one, and at most one for each (family, branch), so a consumer that has handled all events
    up to a position has seen every commit.
    """

    project_id: str
    position: int
    ordinal: int
    """0, 1, 2, ... within the commit."""
    kind: EventKind
    recorded_at: datetime
    family_id: str
    branch: str


@dataclass(frozen=True, slots=True)
class Commit:
    """One entry of the change feed: what a position changed."""

    SCHEMA: ClassVar[str] = "commit/1"

    project_id: str
    position: int
    recorded_at: datetime
    """Strictly later than that of the commit before."""
    kind: MutationKind
    branch: str
    family_ids: tuple[str, ...]
    """Families whose head, state or flags it changed; the target first."""
    revision_id: str
    """The revision that it published, or empty."""
    relation_id: str
    """The relation that it made or retired, or empty."""
    proposal_id: str
    requester: Principal
    approved_by: tuple[Principal, ...]
    reason: str


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
    commit: Commit | None = None
    """There exactly when there is a position."""
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
