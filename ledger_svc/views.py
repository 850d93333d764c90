"""What the store's reads return: records of one snapshot, gathered so that one question is one round trip.

Plain facts without judgement: the state of a head, who replaces whom and what a reader may see are worked out by the
service from these.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from enum import IntEnum

from ledger_svc.domain.model import (
    Admission,
    Approval,
    Category,
    Commit,
    Content,
    Evidence,
    Family,
    Head,
    Observation,
    Policy,
    Project,
    Proposal,
    Relation,
    RelationKind,
    ReviewFlag,
    Revision,
    Scope,
    TimelineRow,
)


@dataclass(frozen=True, slots=True)
class StoreInfo:
    """Which ledger a store holds."""

    ledger_id: str
    kind: str
    """Technology, e.g. ``sqlite``."""
    schema_version: int


@dataclass(frozen=True, slots=True)
class ProjectView:
    """A project with its policy in force and where its history ends."""

    project: Project
    policy: Policy
    position: int
    recorded_at: datetime
    """When its last commit was recorded; 1970 when there is none."""


class Detail(IntEnum):
    """How much of each head to read."""

    STATE = 0
    """No content (that of a revision is then only its title)."""
    BASIC = 1
    FULL = 2
    """Also evidence, all relations, past revisions."""


@dataclass(frozen=True, slots=True)
class HeadsQuery:
    """Which heads to read, at which point of the two axes."""

    project_id: str
    branch: str
    valid_at: datetime
    known_at: datetime | None
    """None: as known now."""
    detail: Detail
    family_ids: tuple[str, ...] = ()
    identity_keys: tuple[str, ...] = ()
    follow_replacements: bool = False


@dataclass(frozen=True, slots=True)
class FamilyTitle:
    """How to call another family."""

    family_id: str
    identity_key: str
    title: str


@dataclass(frozen=True, slots=True)
class PastView:
    """A revision that a later one took over from."""

    row: TimelineRow
    title: str
    replaced_because: str


@dataclass(frozen=True, slots=True)
class HeadView:
    """What is known of one (family, branch) at a point."""

    family: Family
    branch: str
    rows: tuple[TimelineRow, ...]
    """Known rows: the last one that starts by valid_at, and all later ones."""
    head: Head
    """As known now; where nothing of it was known to hold, revision and end as known then."""
    revision: Revision | None
    """That of the first row, else of the head; without content (a title only) in detail STATE."""
    relations: tuple[Relation, ...]
    """Relations of the family on the branch that hold then: in detail FULL all, else DEPRECATES and MERGED_INTO."""
    titles: Mapping[str, FamilyTitle]
    """The families at the other ends of DEPRECATES and MERGED_INTO."""
    flags: tuple[ReviewFlag, ...]
    known_at: datetime | None
    position: int
    """Commit that last changed this head or its flags, as far as known then."""
    evidence: Mapping[str, Evidence] = field(default_factory=dict)
    past: tuple[PastView, ...] = ()


@dataclass(frozen=True, slots=True)
class HeadsRead:
    """Heads found, those asked for first, in the order asked for."""

    heads: tuple[HeadView, ...]
    missing_families: tuple[str, ...]
    missing_keys: tuple[str, ...]
    position: int


@dataclass(frozen=True, slots=True)
class HeadsPageQuery:
    """A page over the heads of a branch, in order of family id."""

    project_id: str
    branch: str
    valid_at: datetime
    known_at: datetime
    detail: Detail
    scopes: frozenset[Scope]
    categories: frozenset[Category]
    """Empty sets: all."""
    flagged_only: bool
    after_family: str
    limit: int


@dataclass(frozen=True, slots=True)
class HistoryStep:
    """A revision with all its rows, those closed on the recorded axis included."""

    revision: Revision
    rows: tuple[TimelineRow, ...]


@dataclass(frozen=True, slots=True)
class RevisionView:
    """A revision with its evidence by id."""

    revision: Revision
    evidence: Mapping[str, Evidence]


@dataclass(frozen=True, slots=True)
class RelationsQuery:
    """Relations of one family or of a project, in order of recording."""

    project_id: str
    family_id: str = ""
    kinds: frozenset[RelationKind] = frozenset()
    include_retired: bool = False
    after: tuple[int, str] = (0, "")
    """Position and id of the last one seen."""
    limit: int = 100


@dataclass(frozen=True, slots=True)
class ProposalView:
    """A proposal with its approvals and evidence."""

    proposal: Proposal
    approvals: tuple[Approval, ...]
    evidence: Mapping[str, Evidence]
    approvals_needed: int = 1


@dataclass(frozen=True, slots=True)
class ProjectionKey:
    """One (family, branch) to project; only what changed at or after a position."""

    family_id: str
    branch: str
    since_position: int = 0


@dataclass(frozen=True, slots=True)
class ProjectedRevision:
    """A revision as an index holds it."""

    revision: Revision
    is_head: bool
    row: TimelineRow | None
    """Its row as known now; None when it has none."""
    position: int
    """Commit that last changed its row or its being head."""


@dataclass(frozen=True, slots=True)
class ProjectionView:
    """Everything that an index holds of (family, branch), or what changed of it."""

    family: Family | None
    """None when there is no such family in the project."""
    branch: str
    revisions: tuple[ProjectedRevision, ...]


@dataclass(frozen=True, slots=True)
class ObservationView:
    """An observation with its latest admission."""

    observation: Observation
    admission: Admission | None
    cursor: int


@dataclass(frozen=True, slots=True)
class ChangesView:
    """Commits in order, and where the project is."""

    commits: tuple[Commit, ...]
    position: int


@dataclass(frozen=True, slots=True)
class ContentStep:
    """A revision on the way from a revision back to its first ancestors, for blame."""

    revision: Revision
    content: Content
