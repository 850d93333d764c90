"""What the stages of a search pass to each other: frozen types without behaviour of their own.

A search goes from a :class:`Question` over :class:`Candidate` (a revision that may have to do with it) and
:class:`Scored` (the same with its score, stage by stage) to :class:`Ranked` (a family that may be shown), and ends
in an :class:`Answer`. Instants are seconds since 1970 as floats here: they rank and explain, they never decide what is
in force. That is the ledger's to say, with exact times.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from typing import Any


class State(StrEnum):
    """State of a head at the moment of the question, as the ledger says."""

    ACTIVE = "ACTIVE"
    SCHEDULED = "SCHEDULED"
    SUPERSEDED = "SUPERSEDED"
    INVALIDATED = "INVALIDATED"
    EXPIRED = "EXPIRED"
    ARCHIVED = "ARCHIVED"
    CONFLICTED = "CONFLICTED"
    NOT_IN_FORCE = "NOT_IN_FORCE"
    UNKNOWN = "UNKNOWN"
    """A state of a newer version of the ledger: never shown as current."""


class Branch(StrEnum):
    """A way of finding candidates."""

    DENSE = "DENSE"
    SPARSE = "SPARSE"
    STRUCTURAL = "STRUCTURAL"


class View(StrEnum):
    """How much of a head to read."""

    STATE = "STATE"
    BASIC = "BASIC"
    FULL = "FULL"


class Origin(StrEnum):
    """How a hit came in."""

    MATCH = "MATCH"
    SUCCESSOR = "SUCCESSOR"
    LEDGER_TAIL = "LEDGER_TAIL"


class AbstentionReason(StrEnum):
    """Why there is no answer. A closed list."""

    NO_MEMORY = "NO_MEMORY"
    BELOW_THRESHOLD = "BELOW_THRESHOLD"
    ONLY_SUPERSEDED = "ONLY_SUPERSEDED"
    CONFLICTED = "CONFLICTED"
    INSUFFICIENT_EVIDENCE = "INSUFFICIENT_EVIDENCE"
    OUT_OF_SCOPE = "OUT_OF_SCOPE"
    INDEX_LAGGING = "INDEX_LAGGING"


class Confidence(StrEnum):
    """How sure it is that the hits answer the question."""

    NONE = "NONE"
    ANSWER = "ANSWER"
    CLOSEST = "CLOSEST"


class HeldBack(StrEnum):
    """Why a family that is not shown for its state was held back, beside the names of :class:`State`."""

    MISSING = "missing"
    HASH = "hash"
    FOREIGN = "foreign"
    EVIDENCE = "evidence"
    FILTER = "filter"


ANSWERS: frozenset[State] = frozenset({State.ACTIVE})
"""The only state that may be presented as current."""


@dataclass(frozen=True, slots=True)
class Vector:
    """The question's vector and the model that made it."""

    model: str
    values: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class Question:
    """A checked request to search."""

    project: str
    """Id of the project."""
    text: str
    branch: str = "main"
    valid_at: datetime | None = None
    known_at: datetime | None = None
    scopes: frozenset[int] = frozenset()
    categories: frozenset[int] = frozenset()
    states: frozenset[State] = ANSWERS
    limit: int = 10
    token: str = ""
    """The LedgerToken that the answer must be at least as fresh as, as it came; empty for none."""
    token_position: int = 0
    vector: Vector | None = None
    branches: tuple[Branch, ...] = ()
    """Ways to use; empty is those of the profile."""
    include_rejected: bool = False
    min_evidence: int = 0
    verified_evidence_only: bool = False
    family_prefix: str = field(init=False)
    """What the name of every family of the project begins with."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "family_prefix", f"projects/{self.project}/families/")


@dataclass(frozen=True, slots=True)
class Candidate:
    """A revision that may have to do with the question."""

    family: str
    revision: str
    content_hash: str = ""
    dense: float | None = None
    sparse: float | None = None
    structural: tuple[str, ...] = ()
    importance: float = 0.0
    valid_from: float | None = None
    from_ledger: bool = False
    """True when the index did not know it and its text was matched here."""


@dataclass(frozen=True, slots=True)
class Fused:
    """A candidate with one relevance."""

    candidate: Candidate
    fused: float
    relevance: float
    """The fused score on a scale from 0 to about 1, which the composite weighs."""


@dataclass(frozen=True, slots=True)
class Scored:
    """A candidate with the score that it is ranked by, and the parts that it was made of."""

    candidate: Candidate
    fused: float
    relevance: float
    recency: float | None
    importance: float | None
    final: float
    tie_break: tuple[float, ...] = ()
    """Signals that know nothing of the question, or weak ones: compared only between equal final scores."""


@dataclass(frozen=True, slots=True)
class Replacement:
    """A direct step of succession, seen from one of its ends; ``family`` is the other end."""

    family: str
    identity_key: str = ""
    title: str = ""
    effective: float | None = None
    reason: str = ""


@dataclass(frozen=True, slots=True)
class PastRevision:
    """A revision of a family that a later one of the same family replaced."""

    revision: str
    title: str
    valid_to: float | None
    reason: str


@dataclass(frozen=True, slots=True)
class LinkedEvidence:
    """What counts of an evidence when a hit needs some."""

    source: str
    """The same for two copies of one source."""
    supports: bool
    verified: bool


@dataclass(frozen=True, slots=True)
class HeadDetail:
    """What a head says and rests on (views BASIC and FULL; what BASIC leaves out is empty)."""

    title: str
    text: str
    """What its words are matched with; long texts are cut, because it only explains and stands in for an index."""
    importance: float = 0.0
    valid_from: float | None = None
    valid_to: float | None = None
    replaces: tuple[Replacement, ...] = ()
    past: tuple[PastRevision, ...] = ()
    evidence: tuple[LinkedEvidence, ...] = ()
    conflicts: tuple[str, ...] = ()
    """Families that it is in conflict with."""
    review: tuple[str, ...] = ()
    """What happened to memories that it rests on, e.g. ``SUPERSEDED``."""


@dataclass(frozen=True, slots=True)
class LedgerHead:
    """What retrieval needs of a head to judge a candidate. ``source`` is the message as the ledger sent it."""

    family: str
    branch: str
    state: State
    revision: str
    content_hash: str
    position: int = 0
    scope: int = 0
    category: int = 0
    identity_key: str = ""
    replaced_by: tuple[Replacement, ...] = ()
    view: View = View.STATE
    """How much of it was read."""
    detail: HeadDetail | None = None
    source: Any = field(default=None, compare=False, repr=False)


@dataclass(frozen=True, slots=True)
class Heads:
    """An answer of the ledger about heads, and the position that it is from."""

    by_family: Mapping[str, LedgerHead]
    token: str
    position: int
    next_page: str = ""


@dataclass(frozen=True, slots=True)
class Tail:
    """Families that commits changed after a position."""

    families: tuple[str, ...]
    complete: bool
    """False when there were too many commits to read them all."""


@dataclass(frozen=True, slots=True)
class Support:
    """How well the best candidates carry an answer, as the index measured it."""

    sentence: float
    centred: float
    late: float
    total: float
    baseline_mean: float
    baseline_deviation: float
    calibrated: bool
    version: str
    source: Any = field(default=None, compare=False, repr=False)


@dataclass(frozen=True, slots=True)
class Degradation:
    """Something that did not work this time."""

    part: str
    reason: str


@dataclass(frozen=True, slots=True)
class IndexAnswer:
    """What the index found."""

    candidates: tuple[Candidate, ...]
    support: Support | None = None
    applied_position: int = 0
    degraded: tuple[Degradation, ...] = ()
    exhausted: bool = True
    """True when a larger limit would bring nothing more."""


@dataclass(frozen=True, slots=True)
class Ranked:
    """A family that may be shown, with the best score that it has or was lent."""

    family: str
    best: Scored
    own: Scored | None
    lenders: tuple[str, ...] = ()
    """Families that it replaced, nearest first, the lender of ``best`` among them if there is one."""

    @property
    def lent_by(self) -> str:
        """The family whose score ``best`` is, when another one's; empty otherwise."""
        lender = self.best.candidate.family
        return "" if lender == self.family else lender


@dataclass(frozen=True, slots=True)
class Held:
    """A family that was held back, with its best score."""

    family: str
    reason: str
    """Name of its state, or a value of :class:`HeldBack`."""
    score: Scored
    succeeded: bool = False
    """True when a family that may be shown stands in for it."""


@dataclass(frozen=True, slots=True)
class Replaced:
    """What a hit took the place of."""

    family: str
    identity_key: str
    revision: str
    title: str
    time: float | None
    reason: str
    matched: bool


@dataclass(frozen=True, slots=True)
class Hit:
    """A family that is shown."""

    head: LedgerHead
    """View FULL."""
    origin: Origin
    ranked: Ranked
    replaced: tuple[Replaced, ...]
    reasons: tuple[str, ...]
    newer_than_index: bool


@dataclass(frozen=True, slots=True)
class Verdict:
    """Whether the hits answer; ``reason`` is set when they do not."""

    confidence: Confidence
    reason: AbstentionReason | None = None
    message: str = ""


@dataclass(frozen=True, slots=True)
class Answer:
    """The outcome of a search."""

    hits: tuple[Hit, ...]
    verdict: Verdict
    rejected: tuple[Hit, ...]
    suppressed: Mapping[str, int]
    token: str
    ledger_position: int
    index_position: int
    support: Support | None
    support_z: float | None
    degraded: tuple[Degradation, ...]
    profile: str
    valid_at: datetime
    known_at: datetime
