"""Closed vocabularies of the ledger. A value's text is its name, in the contracts and in every store."""

from __future__ import annotations

from enum import StrEnum
from typing import Final


class PrincipalKind(StrEnum):
    """What kind of actor a principal is."""

    HUMAN = "HUMAN"
    AGENT = "AGENT"
    SERVICE = "SERVICE"
    POLICY = "POLICY"


class Role(StrEnum):
    """What a principal may do in one project. Every role implies READER; the others do not imply each other."""

    READER = "READER"
    PROPOSER = "PROPOSER"
    REVIEWER = "REVIEWER"
    ADMIN = "ADMIN"


class Scope(StrEnum):
    """The kind of memory, fixed for a family."""

    SEMANTIC = "SEMANTIC"
    EPISODIC = "EPISODIC"
    PROCEDURAL = "PROCEDURAL"
    PULL_REQUEST = "PULL_REQUEST"


class Category(StrEnum):
    """What a memory is about; decides required fields, evidence policy and approval policy."""

    BUSINESS_RULE = "BUSINESS_RULE"
    ARCHITECTURAL_DECISION = "ARCHITECTURAL_DECISION"
    DESIGN_RULE = "DESIGN_RULE"
    DESIGN_PATTERN = "DESIGN_PATTERN"
    CODE_PATTERN = "CODE_PATTERN"
    FEATURE_DESCRIPTION = "FEATURE_DESCRIPTION"
    EPISODE = "EPISODE"
    PROCEDURE = "PROCEDURE"
    PULL_REQUEST = "PULL_REQUEST"


SCOPE_OF: Final[dict[Category, Scope]] = {
    Category.BUSINESS_RULE: Scope.SEMANTIC,
    Category.ARCHITECTURAL_DECISION: Scope.SEMANTIC,
    Category.DESIGN_RULE: Scope.SEMANTIC,
    Category.DESIGN_PATTERN: Scope.SEMANTIC,
    Category.CODE_PATTERN: Scope.SEMANTIC,
    Category.FEATURE_DESCRIPTION: Scope.SEMANTIC,
    Category.EPISODE: Scope.EPISODIC,
    Category.PROCEDURE: Scope.PROCEDURAL,
    Category.PULL_REQUEST: Scope.PULL_REQUEST,
}
"""The scope that each category lives in."""


class Standing(StrEnum):
    """What the source says about adoption. Only ADOPTED content can be in force."""

    ADOPTED = "ADOPTED"
    PROPOSED = "PROPOSED"
    DEFERRED = "DEFERRED"
    REJECTED = "REJECTED"
    WITHDRAWN = "WITHDRAWN"
    RETIRED = "RETIRED"


class MemoryState(StrEnum):
    """The state of a timeline row, or of a family, at a point of the two axes. Only ACTIVE answers as current."""

    ACTIVE = "ACTIVE"
    SCHEDULED = "SCHEDULED"
    SUPERSEDED = "SUPERSEDED"
    INVALIDATED = "INVALIDATED"
    EXPIRED = "EXPIRED"
    NOT_IN_FORCE = "NOT_IN_FORCE"
    ARCHIVED = "ARCHIVED"
    CONFLICTED = "CONFLICTED"


class RowEnd(StrEnum):
    """Why a timeline row ends where it does."""

    OPEN = "OPEN"
    REPLACED = "REPLACED"
    EXPIRED = "EXPIRED"
    INVALIDATED = "INVALIDATED"
    DEPRECATED = "DEPRECATED"


class SourceKind(StrEnum):
    """Where evidence or an observation comes from."""

    COMMIT = "COMMIT"
    DIFF = "DIFF"
    PULL_REQUEST = "PULL_REQUEST"
    ADR = "ADR"
    PEP = "PEP"
    DOCUMENT = "DOCUMENT"
    CONVERSATION = "CONVERSATION"
    FILE = "FILE"
    URL = "URL"
    STATEMENT = "STATEMENT"


class Stance(StrEnum):
    """What a piece of evidence does for a claim."""

    SUPPORTS = "SUPPORTS"
    CONTRADICTS = "CONTRADICTS"
    CONTEXT = "CONTEXT"


class VerificationState(StrEnum):
    """What checking a piece of evidence against its source gave last."""

    UNVERIFIED = "UNVERIFIED"
    VERIFIED = "VERIFIED"
    CONTRADICTED = "CONTRADICTED"
    UNAVAILABLE = "UNAVAILABLE"


class RelationKind(StrEnum):
    """Typed assertions between two families. Directed unless it is in SYMMETRIC_KINDS."""

    RELATED_TO = "RELATED_TO"
    DEPENDS_ON = "DEPENDS_ON"
    REFINES = "REFINES"
    DEPRECATES = "DEPRECATES"
    CONFLICTS_WITH = "CONFLICTS_WITH"
    EVOLVES_FROM = "EVOLVES_FROM"
    MERGED_INTO = "MERGED_INTO"
    IMPLEMENTS = "IMPLEMENTS"
    EVIDENCES = "EVIDENCES"
    MODIFIES = "MODIFIES"
    LEARNED_FROM = "LEARNED_FROM"


SYMMETRIC_KINDS: Final = frozenset({RelationKind.RELATED_TO, RelationKind.CONFLICTS_WITH})
"""A link and its reverse are one link: the ends are stored in order of their ids."""

ACYCLIC_KINDS: Final = frozenset(
    {RelationKind.DEPENDS_ON, RelationKind.REFINES, RelationKind.EVOLVES_FROM, RelationKind.DEPRECATES}
)
"""No chain of active relations of one of these kinds leads back to its start."""

CASCADE_KINDS: Final = frozenset({RelationKind.DEPENDS_ON, RelationKind.REFINES})
"""What points at a changed family with one of these needs a review."""

LEDGER_MADE_KINDS: Final = frozenset({RelationKind.MERGED_INTO})
"""Never asserted by a link: a side effect of another mutation."""

SAME_SCOPE_KINDS: Final = frozenset(
    {RelationKind.DEPRECATES, RelationKind.EVOLVES_FROM, RelationKind.CONFLICTS_WITH, RelationKind.MERGED_INTO}
)
"""Both ends are memories of the same scope."""

SOURCE_SCOPE: Final[dict[RelationKind, Scope]] = {
    RelationKind.IMPLEMENTS: Scope.PULL_REQUEST,
    RelationKind.EVIDENCES: Scope.PULL_REQUEST,
    RelationKind.MODIFIES: Scope.PULL_REQUEST,
    RelationKind.LEARNED_FROM: Scope.EPISODIC,
}
"""Kinds whose source must be of one scope; their target must be of another one."""


class MutationKind(StrEnum):
    """What a proposal would do."""

    CREATE = "CREATE"
    CREATE_AND_LINK = "CREATE_AND_LINK"
    UPDATE = "UPDATE"
    SUPERSEDE = "SUPERSEDE"
    INVALIDATE = "INVALIDATE"
    SET_EXPIRY = "SET_EXPIRY"
    CANCEL_SCHEDULE = "CANCEL_SCHEDULE"
    DEPRECATE = "DEPRECATE"
    ROLLBACK = "ROLLBACK"
    LINK = "LINK"
    UNLINK = "UNLINK"


CONTENT_KINDS: Final = frozenset(
    {
        MutationKind.CREATE,
        MutationKind.CREATE_AND_LINK,
        MutationKind.UPDATE,
        MutationKind.SUPERSEDE,
        MutationKind.ROLLBACK,
    }
)
"""Mutations that publish a revision."""

CASCADING_MUTATIONS: Final = frozenset(
    {MutationKind.SUPERSEDE, MutationKind.INVALIDATE, MutationKind.DEPRECATE, MutationKind.ROLLBACK}
)
"""Mutations that may pull the ground from under dependents."""


class ProposalStatus(StrEnum):
    """Where a proposal is in its life. Only PENDING and APPROVED can still change.

    EXPIRED and CONFLICTED belong to proposals with a deadline and to conflict cases; no decision gives them yet.
    """

    PENDING = "PENDING"
    APPROVED = "APPROVED"
    REJECTED = "REJECTED"
    WITHDRAWN = "WITHDRAWN"
    EXPIRED = "EXPIRED"
    STALE = "STALE"
    APPLIED = "APPLIED"
    CONFLICTED = "CONFLICTED"


OPEN_STATUSES: Final = frozenset({ProposalStatus.PENDING, ProposalStatus.APPROVED})
"""Statuses that can still lead to an apply."""


class ContradictionRule(StrEnum):
    """What an open CONTRADICTS among the evidence does."""

    WARN = "WARN"
    BLOCK = "BLOCK"


class AuditAction(StrEnum):
    """What an audit entry records; ``refuse_*`` when it was asked for and not done."""

    CREATE_PROJECT = "create_project"
    UPDATE_POLICY = "update_policy"
    PROPOSE = "propose"
    APPROVE = "approve"
    REVOKE_APPROVAL = "revoke_approval"
    REJECT = "reject"
    WITHDRAW = "withdraw"
    APPLY = "apply"
    REGISTER_EVIDENCE = "register_evidence"
    RECORD_VERIFICATION = "record_verification"
    REFUSE_UPDATE_POLICY = "refuse_update_policy"
    REFUSE_PROPOSE = "refuse_propose"
    REFUSE_APPROVE = "refuse_approve"
    REFUSE_REVOKE_APPROVAL = "refuse_revoke_approval"
    REFUSE_REJECT = "refuse_reject"
    REFUSE_WITHDRAW = "refuse_withdraw"
    REFUSE_APPLY = "refuse_apply"


class RecordKind(StrEnum):
    """Records that the audit chain covers."""

    PROJECT = "PROJECT"
    POLICY = "POLICY"
    FAMILY = "FAMILY"
    REVISION = "REVISION"
    HEAD = "HEAD"
    TIMELINE_ROW = "TIMELINE_ROW"
    RELATION = "RELATION"
    EVIDENCE = "EVIDENCE"
    VERIFICATION = "VERIFICATION"
    PROPOSAL = "PROPOSAL"
    APPROVAL = "APPROVAL"
    COMMIT = "COMMIT"
    REVIEW_FLAG = "REVIEW_FLAG"


class EventKind(StrEnum):
    """Why the projection of a (family, branch) must be looked at again; the first that applies."""

    HEAD_CHANGED = "HEAD_CHANGED"
    RELATION_CHANGED = "RELATION_CHANGED"
    REVIEW_FLAGGED = "REVIEW_FLAGGED"


class AdmissionOutcome(StrEnum):
    """What became of an observation."""

    PROPOSED = "PROPOSED"
    NO_MEMORY = "NO_MEMORY"
    REJECTED = "REJECTED"
    DUPLICATE = "DUPLICATE"
    FAILED = "FAILED"


class SignalKind(StrEnum):
    """Usage of a memory or feedback on it."""

    SHOWN = "SHOWN"
    USED = "USED"
    HELPFUL = "HELPFUL"
    UNHELPFUL = "UNHELPFUL"
