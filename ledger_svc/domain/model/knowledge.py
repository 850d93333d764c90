"""What the ledger knows: principals, families, revisions, evidence, relations, timeline rows, heads."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import ClassVar

from ledger_svc.domain.model.fields import AS_SET, derived, server_made
from ledger_svc.domain.model.kinds import (
    Category,
    PrincipalKind,
    RelationKind,
    Role,
    RowEnd,
    Scope,
    SourceKind,
    Stance,
    Standing,
    VerificationState,
)


@dataclass(frozen=True, slots=True)
class Principal:
    """Who acts, as the credential said; never a request's field."""

    SCHEMA: ClassVar[str] = "principal/1"

    issuer: str
    subject: str
    kind: PrincipalKind
    on_behalf_of: str = ""
    """For an agent: the subject on whose behalf it acts."""
    roles: frozenset[Role] = field(
        default=frozenset(), metadata=derived("what the principal may do now, not who it is; not stored")
    )
    """Roles in the project at hand; any role implies READER."""


@dataclass(frozen=True, slots=True)
class Project:
    """The partition: unit of authorisation, ordering, consistency token and retrieval scope."""

    SCHEMA: ClassVar[str] = "project/1"

    project_id: str
    display_name: str
    policy_version: int
    created_at: datetime
    created_by: Principal


@dataclass(frozen=True, slots=True)
class Content:
    """What a revision says. One versioned schema for all categories; text that does not apply is empty."""

    SCHEMA: ClassVar[str] = "content/1"

    title: str
    summary: str = ""
    details: str = ""
    objective: str = ""
    trigger: str = ""
    rationale: str = ""
    alternatives: tuple[str, ...] = ()
    examples: tuple[str, ...] = ()
    rules: tuple[str, ...] = ()
    steps: tuple[str, ...] = ()
    domain: str = ""
    modules: tuple[str, ...] = field(default=(), metadata=AS_SET)
    files: tuple[str, ...] = field(default=(), metadata=AS_SET)
    task: str = ""
    outcome: str = ""
    url: str = ""
    tags: tuple[str, ...] = field(default=(), metadata=AS_SET)
    importance: float = 0.5
    """From 0 to 1. Breaks ties in ranking; never makes anything true."""
    standing: Standing = Standing.ADOPTED
    """What the source says about adoption; only ADOPTED content can be in force."""
    attributes: Mapping[str, str] = field(default_factory=dict)
    """Facts of the source as they were, e.g. ``source_status``."""


@dataclass(frozen=True, slots=True)
class Family:
    """Continuous identity of one memory. Its text may change; scope, category and identity do not."""

    SCHEMA: ClassVar[str] = "family/1"

    family_id: str
    project_id: str
    scope: Scope
    category: Category
    identity_key: str
    """E.g. ``adr/0007``; unique in the project, empty when the memory has no natural key."""
    created_by: Principal
    created_at: datetime
    created_position: int
    aliases: tuple[str, ...] = field(default=(), metadata=AS_SET)
    """Further keys that lead to this family, unique among keys and aliases of the project."""

    @property
    def keys(self) -> tuple[str, ...]:
        """Every key that leads to it, its own first; none twice."""
        return tuple(dict.fromkeys(key for key in (self.identity_key, *self.aliases) if key))


@dataclass(frozen=True, slots=True)
class EvidenceLink:
    """Ties a piece of evidence to a revision or relation: for or against which claim, how surely."""

    SCHEMA: ClassVar[str] = "evidence-link/1"

    evidence_id: str = field(metadata=server_made("the fingerprint names the evidence by what it says"))
    fingerprint: str
    stance: Stance
    confidence: float = 1.0
    """From 0 to 1."""
    claim: str = ""
    """What the evidence is about, in the words of the memory; empty for the memory as a whole."""


@dataclass(frozen=True, slots=True)
class Revision:
    """Immutable snapshot of a family."""

    SCHEMA: ClassVar[str] = "revision/1"

    revision_id: str
    project_id: str
    family_id: str
    branch: str
    number: int
    """1, 2, 3, ... on its family and branch."""
    content: Content
    content_hash: str
    revision_hash: str
    parents: tuple[str, ...]
    """Ids of the revisions that this one follows."""
    author: Principal
    reason: str
    evidence_links: tuple[EvidenceLink, ...] = field(metadata=AS_SET)
    valid_from: datetime
    valid_to: datetime | None
    """As published; the timeline rows say what holds now."""
    proposal_id: str
    recorded_at: datetime
    position: int
    restores: str = ""
    """For a rollback: id of the revision whose content this one brings back."""
    approved_by: tuple[Principal, ...] = ()
    """Whose approvals its proposal used."""


@dataclass(frozen=True, slots=True)
class Verification:
    """One check of a piece of evidence against its source."""

    SCHEMA: ClassVar[str] = "verification/1"

    evidence_id: str
    number: int
    """1, 2, 3, ... for one piece of evidence."""
    state: VerificationState
    method: str
    """How, and what was found, e.g. ``git@1: excerpt hash equal``."""
    verifier: Principal
    recorded_at: datetime


@dataclass(frozen=True, slots=True)
class Evidence:
    """Immutable record of something in a source that speaks for or against a claim."""

    SCHEMA: ClassVar[str] = "evidence/1"

    evidence_id: str = field(metadata=server_made("an id made by the server"))
    project_id: str = field(metadata=server_made("the same evidence means the same in every project"))
    source_kind: SourceKind
    locator: str
    """Where the source is, e.g. ``git:repo@3f2a91c:docs/adr/0007.md#L10-L20`` or a URL."""
    source_hash: str
    """Hash of the whole source as it was read, ``sha256:<hex>``, or empty."""
    excerpt: str
    excerpt_hash: str
    author: str
    """Who wrote the source."""
    extractor: str
    """What read it, e.g. ``structured/adr@1`` or a model's name; empty for a person."""
    reliability: float
    """From 0 to 1, as the extractor or a person judged."""
    source_time: datetime | None
    """When the source was written."""
    fingerprint: str = field(metadata=server_made("it is the hash of what the evidence says"))
    registered_by: Principal = field(metadata=server_made("who brought it, not what it says"))
    recorded_at: datetime = field(metadata=server_made("capture time"))
    verifications: tuple[Verification, ...] = field(
        default=(), metadata=derived("every verification is a record of its own")
    )
    """Oldest first."""

    @property
    def verification(self) -> VerificationState:
        """What the last check gave."""
        return self.verifications[-1].state if self.verifications else VerificationState.UNVERIFIED


@dataclass(frozen=True, slots=True)
class Relation:
    """Reified, typed assertion between two families, on both axes of time.

    Like a head it belongs to a branch: what a release line deprecates may live on in another. It is never edited.
    Retiring writes the three ``retired_*`` fields once; asserting the same again makes a new
    relation. Ends of symmetric kinds are stored in order of their ids.
    """

    SCHEMA: ClassVar[str] = "relation/1"

    relation_id: str
    project_id: str
    branch: str
    kind: RelationKind
    source_id: str
    target_id: str
    rationale: str
    evidence_links: tuple[EvidenceLink, ...] = field(metadata=AS_SET)
    asserted_by: Principal
    proposal_id: str
    valid_from: datetime
    valid_to: datetime | None
    recorded_at: datetime
    position: int
    retired_from: datetime | None = None
    """From when, on the valid axis, it no longer holds."""
    retired_recorded_at: datetime | None = None
    """When the ledger learned that."""
    retired_position: int | None = None

    @property
    def is_retired(self) -> bool:
        """Whether it was taken back."""
        return self.retired_position is not None

    def holds(self, valid_at: datetime, known_at: datetime) -> bool:
        """Whether it held at ``valid_at`` as known at ``known_at``; half-open on both axes."""
        if known_at < self.recorded_at or valid_at < self.valid_from:
            return False
        if self.valid_to is not None and valid_at >= self.valid_to:
            return False
        known_retired = self.retired_recorded_at is not None and known_at >= self.retired_recorded_at
        return not (known_retired and self.retired_from is not None and valid_at >= self.retired_from)


@dataclass(frozen=True, slots=True)
class TimelineRow:
    """Which revision covered which valid interval, as known during which recorded interval.

    Identified by (family, branch, opened_position, valid_from). Only the two ``*_to``/``closed`` fields of the recorded
    axis are ever written after it was opened, once. A row whose standing is not ADOPTED covers its interval but is
    not in force.
    """

    SCHEMA: ClassVar[str] = "timeline-row/1"

    family_id: str
    branch: str
    revision_id: str
    standing: Standing
    valid_from: datetime
    valid_to: datetime | None
    end: RowEnd
    """Why it ends at ``valid_to``; OPEN when it does not."""
    intrinsic_to: datetime | None
    """Where it would end if no later row cut it: its own expiry or invalidation."""
    intrinsic_end: RowEnd
    """Why it would end there."""
    recorded_from: datetime
    opened_position: int
    recorded_to: datetime | None = None
    closed_position: int | None = None

    @property
    def key(self) -> tuple[str, str, int, datetime]:
        """Identity of the row."""
        return (self.family_id, self.branch, self.opened_position, self.valid_from)

    def covers(self, valid_at: datetime) -> bool:
        """Whether the valid interval holds this instant."""
        return self.valid_from <= valid_at and (self.valid_to is None or valid_at < self.valid_to)

    def known(self, known_at: datetime) -> bool:
        """Whether the ledger held this row at that instant of its own clock."""
        return self.recorded_from <= known_at and (self.recorded_to is None or known_at < self.recorded_to)


@dataclass(frozen=True, slots=True)
class Head:
    """What is published for (family, branch): the revision of the last open row, and the last commit to change it."""

    SCHEMA: ClassVar[str] = "head/1"

    family_id: str
    branch: str
    revision_id: str
    number: int
    """The highest revision number on the branch, not always that of ``revision_id`` (a cancelled schedule)."""
    position: int
    """Position of the last commit that changed revision or timeline; what CAS compares."""
    recorded_at: datetime
    invalid_from: datetime | None = None
    """Set by an invalidation: nothing holds from here on; cleared by the next publication."""


@dataclass(frozen=True, slots=True)
class ReviewFlag:
    """Says that a memory needs a review because something it builds on has changed."""

    SCHEMA: ClassVar[str] = "review-flag/1"

    family_id: str
    branch: str
    cause_family_id: str
    via: RelationKind
    """The relation through which the cause reached it."""
    cause: str
    """What happened there: SUPERSEDED, INVALIDATED, DEPRECATED or ROLLED_BACK."""
    position: int
    """Commit that raised it."""
    recorded_at: datetime
    cleared_position: int | None = None
    """Commit that changed the flagged memory itself, which is the review."""

    @property
    def key(self) -> tuple[str, str, str, int]:
        """Identity of the flag."""
        return (self.family_id, self.branch, self.cause_family_id, self.position)
