"""What ingest talks about: observations, candidates, gate results, outcomes.

Everything here is a frozen value. Extractors make candidates of observations, gates judge candidates, the service
carries the result to the ledger. Nothing in this file knows a wire format, a database or a model provider.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from hashlib import sha256


class SourceKind(StrEnum):
    """Where an observation comes from; decides which extractor reads it."""

    ADR = "ADR"
    PEP = "PEP"
    """A document with a header block: PEP, RFC, KEP and their like."""
    COMMIT = "COMMIT"
    DIFF = "DIFF"
    PULL_REQUEST = "PULL_REQUEST"
    DOCUMENT = "DOCUMENT"
    CONVERSATION = "CONVERSATION"
    FILE = "FILE"
    URL = "URL"
    STATEMENT = "STATEMENT"
    """A person's own word, recorded by a person."""


class Scope(StrEnum):
    """The kind of memory; fixed for a family."""

    SEMANTIC = "SEMANTIC"
    EPISODIC = "EPISODIC"
    PROCEDURAL = "PROCEDURAL"
    PULL_REQUEST = "PULL_REQUEST"


class Category(StrEnum):
    """What a memory is about; decides its required context and its policy."""

    BUSINESS_RULE = "BusinessRule"
    ARCHITECTURAL_DECISION = "ArchitecturalDecision"
    DESIGN_RULE = "DesignRule"
    DESIGN_PATTERN = "DesignPattern"
    CODE_PATTERN = "CodePattern"
    FEATURE_DESCRIPTION = "FeatureDescription"
    EPISODE = "Episode"
    PROCEDURE = "Procedure"
    PULL_REQUEST = "PullRequest"


SCOPE_OF: Mapping[Category, Scope] = {
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


class Standing(StrEnum):
    """What the source itself says about adoption. Only ADOPTED can be in force."""

    ADOPTED = "ADOPTED"
    PROPOSED = "PROPOSED"
    DEFERRED = "DEFERRED"
    REJECTED = "REJECTED"
    WITHDRAWN = "WITHDRAWN"
    RETIRED = "RETIRED"


class RelationKind(StrEnum):
    """Relations that a source can assert."""

    RELATED_TO = "RELATED_TO"
    DEPENDS_ON = "DEPENDS_ON"
    REFINES = "REFINES"
    DEPRECATES = "DEPRECATES"
    EVOLVES_FROM = "EVOLVES_FROM"


class Action(StrEnum):
    """What a candidate asks for."""

    PUBLISH = "PUBLISH"
    """Create the family, or update it when its identity is known."""
    INVALIDATE = "INVALIDATE"
    """The source is gone: end the family's validity."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RawObservation:
    """A raw event of a source, not yet knowledge."""

    kind: SourceKind
    locator: str
    """Where the event can be found again, e.g. ``git:ba4deeb7:peps/pep-0517.rst``."""
    text: str
    title: str = ""
    files: tuple[str, ...] = ()
    author: str = ""
    occurred_at: datetime | None = None
    attributes: Mapping[str, str] = field(default_factory=dict)

    def source_hash(self) -> str:
        """Hash of what was observed; with the locator it tells a replay from news."""
        digest = sha256()
        parts = [self.kind.value, self.title, self.text, self.author, *self.files]
        parts += [f"{key}\x1f{value}" for key, value in sorted(self.attributes.items())]
        for part in parts:
            digest.update(part.encode("utf-8", "surrogatepass"))
            digest.update(b"\x1e")
        return f"sha256:{digest.hexdigest()}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Content:
    """The content of a revision: one schema for every category."""

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
    modules: tuple[str, ...] = ()
    files: tuple[str, ...] = ()
    task: str = ""
    outcome: str = ""
    url: str = ""
    tags: tuple[str, ...] = ()
    importance: float = 0.5
    standing: Standing = Standing.ADOPTED
    attributes: Mapping[str, str] = field(default_factory=dict)


class Stance(StrEnum):
    """How a piece of evidence stands to the revision that it is linked to."""

    SUPPORTS = "SUPPORTS"
    CONTRADICTS = "CONTRADICTS"
    CONTEXT = "CONTEXT"


@dataclass(frozen=True, slots=True, kw_only=True)
class EvidenceDraft:
    """Evidence for a candidate, before the ledger gives it an id."""

    kind: SourceKind
    locator: str
    source_hash: str
    excerpt: str = ""
    author: str = ""
    extractor: str = ""
    reliability: float = 1.0
    stance: Stance = Stance.SUPPORTS
    confidence: float = 1.0
    claim: str = ""
    source_time: datetime | None = None
    """When the source says that it was made; None when only the observation's own time is known."""

    @property
    def excerpt_hash(self) -> str:
        """Hash of the excerpt, or nothing when there is none."""
        if not self.excerpt:
            return ""
        return f"sha256:{sha256(self.excerpt.encode('utf-8', 'surrogatepass')).hexdigest()}"


@dataclass(frozen=True, slots=True, kw_only=True)
class EvidenceReference:
    """Evidence that is named, with how it stands to the claim."""

    name: str
    stance: Stance = Stance.SUPPORTS
    confidence: float = 1.0
    claim: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class RelationDraft:
    """A relation that the source asserts, by identity keys. Either end may be the candidate itself."""

    kind: RelationKind
    source_key: str
    target_key: str
    rationale: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """What an extractor read from an observation: possible knowledge, not yet judged."""

    category: Category
    identity_key: str
    content: Content
    evidence: tuple[EvidenceDraft, ...]
    identity_from_source: bool = True
    """True when the source names the identity (``adr/0007``). Then similarity has no say in it."""
    action: Action = Action.PUBLISH
    valid_from: datetime | None = None
    """Since when it holds, as far as the source says."""
    observed_at: datetime | None = None
    """When the source said it: the time of the commit or message. Tells news from older news."""
    relations: tuple[RelationDraft, ...] = ()
    confidence: float = 1.0
    """How sure the extractor is of its reading: 1 for a parser, what the model said for a model."""
    extractor: str = ""
    reason: str = ""

    @property
    def scope(self) -> Scope:
        """The scope that goes with the category."""
        return SCOPE_OF[self.category]


class Gate(StrEnum):
    """The gates of admission. Every one is evaluated for every candidate."""

    PROJECT = "project"
    EVIDENCE = "evidence"
    IDENTITY = "identity"
    DUPLICATE = "duplicate"
    CONTEXT = "context"
    WEIGHT = "weight"


@dataclass(frozen=True, slots=True, kw_only=True)
class GateResult:
    """What one gate said."""

    gate: Gate
    passed: bool
    reason: str
    """Machine-readable, e.g. ``MISSING_ALTERNATIVES``; ``OK`` when the gate has nothing to say."""
    detail: str = ""
    """What is wrong and how to mend it, in a sentence."""


class Disposition(StrEnum):
    """What the gates found the candidate to be."""

    NEW = "NEW"
    UPDATE = "UPDATE"
    REFINEMENT = "REFINEMENT"
    """New, and near to a memory that it will be proposed to refine; a person decides."""
    UNCHANGED = "UNCHANGED"
    """What is published already."""
    INVALIDATION = "INVALIDATION"


@dataclass(frozen=True, slots=True, kw_only=True)
class Stored:
    """What the ledger holds under a candidate's identity."""

    family: str
    head: str
    """Newest published revision."""
    identity_key: str
    category: Category
    content: Content
    valid_from: datetime | None = None
    valid_to: datetime | None = None
    ended: bool = False
    """Whether its validity ended, by invalidation, expiry or deprecation: then the same content again is news."""

    @property
    def in_force(self) -> bool:
        """Whether it holds: adopted by its source, and not ended."""
        return not self.ended and self.content.standing is Standing.ADOPTED

    @property
    def settled_since(self) -> datetime | None:
        """Since when it is as it is: the end of its validity when that ended, else the start of its newest row."""
        return self.valid_to if self.ended else self.valid_from


@dataclass(frozen=True, slots=True, kw_only=True)
class Similar:
    """A stored memory that is near to a candidate."""

    family: str
    score: float
    head: str = ""
    title: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """All gates' results, and what the candidate is."""

    disposition: Disposition
    gates: tuple[GateResult, ...]
    weight: float
    similar: tuple[Similar, ...] = ()
    """Neighbours near enough to be shown to a reviewer, nearest first."""

    @property
    def admitted(self) -> bool:
        """Whether every gate let the candidate pass."""
        return all(gate.passed for gate in self.gates)

    @property
    def failures(self) -> tuple[GateResult, ...]:
        """Every gate that refused."""
        return tuple(gate for gate in self.gates if not gate.passed)


class OutcomeKind(StrEnum):
    """How the handling of an observation ended."""

    PROPOSED = "PROPOSED"
    NO_MEMORY = "NO_MEMORY"
    REJECTED = "REJECTED"
    DUPLICATE = "DUPLICATE"
    FAILED = "FAILED"


@dataclass(frozen=True, slots=True, kw_only=True)
class Admission:
    """What the ledger records of the handling of an observation."""

    kind: OutcomeKind
    reasons: tuple[str, ...] = ()
    proposals: tuple[str, ...] = ()
    duplicate_of: str = ""
    extractor: str = ""
    retryable: bool = False

    @property
    def final(self) -> bool:
        """Whether a replay is a no-op. What failed is tried again."""
        return self.kind is not OutcomeKind.FAILED
