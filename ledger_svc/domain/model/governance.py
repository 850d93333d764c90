"""How something becomes knowledge: policy, proposals, approvals, audit."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import ClassVar

from ledger_svc.domain.model.fields import AS_SET, derived, server_made
from ledger_svc.domain.model.kinds import (
    AuditAction,
    Category,
    ContradictionRule,
    MutationKind,
    PrincipalKind,
    ProposalStatus,
    RecordKind,
    Role,
    RowEnd,
    SourceKind,
    Standing,
)
from ledger_svc.domain.model.knowledge import Content, EvidenceLink, Principal
from ledger_svc.domain.model.mutations import Mutation


@dataclass(frozen=True, slots=True)
class EvidenceRule:
    """How much evidence a publication needs. Two copies of one source count once."""

    SCHEMA: ClassVar[str] = "evidence-rule/1"

    min_independent_sources: int = 0
    source_kinds: frozenset[SourceKind] = frozenset()
    """Kinds that count; empty: all."""
    must_be_verified: bool = False
    """Count only VERIFIED evidence. Otherwise UNVERIFIED counts too; CONTRADICTED and UNAVAILABLE never do."""
    extractors: frozenset[str] = frozenset()
    """Extractors that count, e.g. ``structured/adr`` (a version after ``@`` is ignored); empty: all, and people."""


@dataclass(frozen=True, slots=True)
class CategoryPolicy:
    """What one category asks of a proposal."""

    SCHEMA: ClassVar[str] = "category-policy/1"

    approvals_needed: int = 1
    """1 or 2, by distinct people."""
    reviewer_roles: frozenset[Role] = frozenset({Role.REVIEWER})
    approver_kinds: frozenset[PrincipalKind] = frozenset({PrincipalKind.HUMAN, PrincipalKind.POLICY})
    """Kinds that may approve. AGENT never may, whatever stands here."""
    evidence: EvidenceRule = EvidenceRule()
    contradiction: ContradictionRule = ContradictionRule.WARN
    default_validity: timedelta | None = None
    """Validity of a publication that names no end; None: no end."""
    approval_lifetime: timedelta = timedelta(days=7)
    required_fields: tuple[tuple[str, ...], ...] = ()
    """Of each group at least one content field must be filled."""


@dataclass(frozen=True, slots=True)
class AutoApprovalRule:
    """Lets the structured imports of one named SERVICE be approved by the policy itself."""

    SCHEMA: ClassVar[str] = "auto-approval-rule/1"

    rule_id: str
    issuer: str
    subject: str
    mutation_kinds: frozenset[MutationKind]
    categories: frozenset[Category] = frozenset()
    """Empty: all."""
    evidence: EvidenceRule = EvidenceRule(min_independent_sources=1)


@dataclass(frozen=True, slots=True)
class Policy:
    """A project's policy. Immutable; a change is a new version."""

    SCHEMA: ClassVar[str] = "policy/1"

    version: int
    categories: Mapping[Category, CategoryPolicy] = field(default_factory=dict)
    """A category that is not here has one approval and no evidence asked for."""
    auto_approvals: tuple[AutoApprovalRule, ...] = ()


@dataclass(frozen=True, slots=True)
class ExpectedHead:
    """A head that a proposal depends on. Revision empty and position 0: nothing was published there."""

    SCHEMA: ClassVar[str] = "expected-head/1"

    family_id: str
    branch: str
    revision_id: str
    position: int
    role: str = "target"
    """What the proposal needs it for: target, source, replacement or refined."""


@dataclass(frozen=True, slots=True)
class FieldChange:
    """One field that differs between two contents; values as canonical JSON, empty text when absent."""

    SCHEMA: ClassVar[str] = "field-change/1"

    field: str
    """E.g. ``title`` or ``attributes.source_status``."""
    before: str
    after: str


@dataclass(frozen=True, slots=True)
class RowPreview:
    """A timeline row as a preview shows it; the time of the apply is not known yet, so it is a flag, not a date."""

    SCHEMA: ClassVar[str] = "row-preview/1"

    revision_id: str
    """Empty: the revision that the proposal would make."""
    standing: Standing
    valid_from: datetime | None
    """None: at apply."""
    valid_to: datetime | None
    """None: no end when ``end`` is OPEN, at apply when ``ends_at_apply``, else the default validity after it."""
    ends_at_apply: bool
    end: RowEnd


@dataclass(frozen=True, slots=True)
class Snapshot:
    """One side of a preview: the family as it is, or as it would be."""

    SCHEMA: ClassVar[str] = "snapshot/1"

    revision_id: str = ""
    content: Content | None = None
    rows: tuple[RowPreview, ...] = ()
    relations: tuple[str, ...] = field(default=(), metadata=AS_SET)
    """Relations that the change touches, as ``KIND source target`` with ids; ``new`` for a family to be made."""


@dataclass(frozen=True, slots=True)
class Draft:
    """What a proposer asks for, before the ledger has looked at it."""

    SCHEMA: ClassVar[str] = "draft/1"

    project_id: str
    branch: str
    mutation: Mutation
    reason: str
    evidence_links: tuple[EvidenceLink, ...] = field(default=(), metadata=AS_SET)
    expected_heads: tuple[ExpectedHead, ...] = field(default=(), metadata=AS_SET)
    """Heads that the proposer has seen; position 0 compares the revision alone. The ledger adds the others."""
    observation_id: str = field(default="", metadata=server_made("an id made by the server"))
    """The observation that led to it."""
    warnings: tuple[str, ...] = field(default=(), metadata=server_made("advice; no rule reads it"))
    """What a reviewer should know of how it came in, e.g. what was taken out of its texts."""


@dataclass(frozen=True, slots=True)
class Proposal:
    """A change that is not made yet, with everything that a reviewer decides on."""

    SCHEMA: ClassVar[str] = "proposal/1"

    proposal_id: str = field(metadata=server_made("an id made by the server"))
    project_id: str
    branch: str
    mutation: Mutation
    category: Category
    """The category whose policy governs it."""
    before: Snapshot
    after: Snapshot
    diff: tuple[FieldChange, ...]
    evidence_links: tuple[EvidenceLink, ...] = field(metadata=AS_SET)
    expected_heads: tuple[ExpectedHead, ...] = field(metadata=AS_SET)
    reason: str
    requester: Principal
    policy_version: int
    preview_hash: str = field(metadata=server_made("it is the hash of the fields that are not made by the server"))
    created_at: datetime = field(metadata=server_made("capture time"))
    default_validity: timedelta | None = None
    """Validity that the policy gives a publication that names no end."""
    observation_id: str = field(default="", metadata=server_made("an id made by the server"))
    """The observation that led to it."""
    warnings: tuple[str, ...] = field(default=(), metadata=server_made("advice; no rule reads it"))
    status: ProposalStatus = field(default=ProposalStatus.PENDING, metadata=server_made("where it is in its life"))
    status_reason: str = field(default="", metadata=server_made("why it is there"))
    decided_at: datetime | None = field(default=None, metadata=server_made("capture time"))
    decided_by: Principal | None = field(default=None, metadata=server_made("who brought it there"))
    applied_position: int | None = field(default=None, metadata=server_made("commit that applied it"))
    result_family_id: str = field(default="", metadata=server_made("an id made by the server"))
    result_revision_id: str = field(default="", metadata=server_made("an id made by the server"))
    result_relation_id: str = field(default="", metadata=server_made("an id made by the server"))

    @property
    def kind(self) -> MutationKind:
        """What it would do."""
        return self.mutation.KIND


@dataclass(frozen=True, slots=True)
class Approval:
    """An authenticated principal's yes to one exact preview_hash; expiring, revocable, single-use."""

    SCHEMA: ClassVar[str] = "approval/1"

    approval_id: str
    project_id: str
    proposal_id: str
    preview_hash: str
    approver: Principal
    comment: str
    approved_at: datetime
    expires_at: datetime
    rule_id: str = ""
    """For a POLICY approval: the rule that gave it."""
    policy_version: int = 0
    revoked_at: datetime | None = None
    revoked_by: Principal | None = None
    consumed_position: int | None = None
    """Commit that used it up."""


@dataclass(frozen=True, slots=True)
class RecordHash:
    """The hash of one whole record, as the audit chain remembers it."""

    SCHEMA: ClassVar[str] = "record-hash/1"

    kind: RecordKind
    record_id: str
    hash: str


@dataclass(frozen=True, slots=True)
class AuditEntry:
    """One link of the project's append-only hash chain."""

    SCHEMA: ClassVar[str] = "audit-entry/1"

    project_id: str
    sequence: int
    """1, 2, 3, ... in the project."""
    action: AuditAction
    actor: Principal
    subject: str
    """Resource name of what it is about."""
    position: int
    """Position of the commit, when it is one; 0 otherwise."""
    recorded_at: datetime
    records: tuple[RecordHash, ...]
    details: Mapping[str, str]
    previous_hash: str
    entry_hash: str = field(metadata=derived("it is the hash of the other fields"))


@dataclass(frozen=True, slots=True)
class AuditTip:
    """Where the chain ends; sequence 0 and an empty hash for a new project."""

    sequence: int = 0
    entry_hash: str = ""
