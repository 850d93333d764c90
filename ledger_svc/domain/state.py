"""What a decision needs to know, and what it is told: the port between pure decisions and any store.

A store answers ``StateNeeds`` with a ``State`` read under the lock that its apply transaction holds, hands it to a
decision, and writes the ChangeSet that comes back: state in, ChangeSet out, atomically. For group commit it loads the
union of the needs of all waiting changes once, decides one after another on ``apply_to_state``'s result, and writes all
ChangeSets in one transaction.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields, replace
from datetime import UTC, datetime, timedelta
from typing import Any, Final, TypeVar

from ledger_svc.domain import names
from ledger_svc.domain.audit import tip_after
from ledger_svc.domain.errors import not_found
from ledger_svc.domain.model import (
    ACYCLIC_KINDS,
    SYMMETRIC_KINDS,
    Approval,
    AuditTip,
    CancelSchedule,
    ChangeSet,
    Create,
    CreateAndLink,
    Deprecate,
    Draft,
    Evidence,
    Family,
    Head,
    Invalidate,
    Link,
    Policy,
    Project,
    Proposal,
    Relation,
    RelationKind,
    ReviewFlag,
    Revision,
    Rollback,
    SetExpiry,
    Supersede,
    TimelineRow,
    Unlink,
    Update,
)

FamilyBranch = tuple[str, str]
"""(family id, branch)."""


@dataclass(frozen=True, slots=True)
class StateNeeds:
    """Which facts a decision reads. A store may load more, never less; what does not exist is simply left out.

    Every decision also reads the project itself: its record, policy, position, last record time and audit tip.
    """

    project_id: str
    families: frozenset[str] = frozenset()
    """Family records by id."""
    identity_keys: frozenset[str] = frozenset()
    """Who owns each key, as identity_key or alias."""
    heads: frozenset[FamilyBranch] = frozenset()
    """For each: the family record, the head, the head's revision, the open review flags, and the open timeline rows.

    Of the rows, the last one that starts by the moment that ``rows_since`` gives, and all later ones, are enough; a
    store that leaves earlier ones out says so in ``State.rows_since``.
    """
    revisions: frozenset[str] = frozenset()
    """Revisions by id, with the evidence that their links name."""
    evidence: frozenset[str] = frozenset()
    """Evidence records by id, with their verifications."""
    fingerprints: frozenset[str] = frozenset()
    """Evidence records by fingerprint."""
    relations: frozenset[str] = frozenset()
    """Relations by id, retired or not, with the family records of both ends."""
    pairs: frozenset[tuple[str, RelationKind, str, str]] = frozenset()
    """Active relations by (branch, kind, source, target); symmetric kinds with their ends in order."""
    reach: frozenset[tuple[str, RelationKind, str]] = frozenset()
    """All active relations of a (branch, kind) on paths that start at a family and follow source to target."""
    incoming: frozenset[FamilyBranch] = frozenset()
    """Active DEPENDS_ON, REFINES and DEPRECATES relations that point at a family on a branch."""
    proposals: frozenset[str] = frozenset()
    """Proposals by id, with all their approvals."""

    def __or__(self, other: StateNeeds) -> StateNeeds:
        if other.project_id != self.project_id:
            raise ValueError("needs of two projects are never read together")
        merged = {
            f.name: getattr(self, f.name) | getattr(other, f.name) for f in fields(self) if f.name != "project_id"
        }
        return replace(self, **merged)


def needs_of(change: Draft | Proposal) -> StateNeeds:
    """Facts that previewing a draft, or deciding a proposal in any way, reads."""
    needs = _needs_of_mutation(change)
    expected = frozenset((head.family_id, head.branch) for head in change.expected_heads)
    return replace(
        needs,
        heads=needs.heads | expected,
        evidence=needs.evidence | {link.evidence_id for link in change.evidence_links},
        proposals=frozenset({change.proposal_id}) if isinstance(change, Proposal) else frozenset(),
    )


def _needs_of_mutation(change: Draft | Proposal) -> StateNeeds:
    branch, mutation = change.branch, change.mutation
    none = StateNeeds(change.project_id)
    match mutation:
        case Create():
            return replace(none, identity_keys=_keys(mutation.identity_key))
        case CreateAndLink():
            head = (mutation.refines_family_id, branch)
            return replace(none, identity_keys=_keys(mutation.identity_key), heads=frozenset({head}))
        case Update() | Supersede() | Invalidate() | SetExpiry() | CancelSchedule() | Rollback():
            target = frozenset({(mutation.family_id, branch)})
            revision = frozenset({mutation.to_revision_id}) if isinstance(mutation, Rollback) else frozenset()
            return replace(none, heads=target, incoming=target, revisions=revision)
        case Deprecate():
            old, new = mutation.family_id, mutation.replacement_family_id
            return replace(
                none,
                heads=frozenset({(old, branch), (new, branch)}),
                incoming=frozenset({(old, branch)}),
                pairs=frozenset({(branch, RelationKind.DEPRECATES, new, old)}),
                reach=frozenset({(branch, RelationKind.DEPRECATES, old)}),
            )
        case Link():
            source, target_id = mutation.source_family_id, mutation.target_family_id
            ends = ordered_ends(mutation.relation_kind, source, target_id)
            is_acyclic = mutation.relation_kind in ACYCLIC_KINDS
            return replace(
                none,
                heads=frozenset({(source, branch), (target_id, branch)}),
                pairs=frozenset({(branch, mutation.relation_kind, *ends)}),
                reach=frozenset({(branch, mutation.relation_kind, target_id)}) if is_acyclic else frozenset(),
            )
        case Unlink():
            return replace(none, relations=frozenset({mutation.relation_id}))


def rows_since(change: Draft | Proposal, now: datetime) -> datetime:
    """From when on a change can alter the timeline: older rows need not be read, however long the history is."""
    mutation = change.mutation
    if isinstance(mutation, SetExpiry):
        # It may be about any revision of the past.
        return _BEGINNING
    given: list[datetime | None] = [getattr(mutation, name, None) for name in ("valid_from", "effective_from")]
    # A naive time is refused later, with the name of its field.
    since = min([now, *(moment for moment in given if moment is not None and moment.utcoffset() is not None)])
    # An end also alters the row that another one cuts at exactly that moment.
    return since - _MICROSECOND if isinstance(mutation, Invalidate | Deprecate) else since


_BEGINNING: Final = datetime.min.replace(tzinfo=UTC)
_MICROSECOND: Final = timedelta(microseconds=1)


def _keys(key: str) -> frozenset[str]:
    return frozenset({key}) if key else frozenset()


def ordered_ends(kind: RelationKind, source_id: str, target_id: str) -> tuple[str, str]:
    """The ends as they are stored: in order of their ids when the kind is symmetric."""
    if kind in SYMMETRIC_KINDS and target_id < source_id:
        return target_id, source_id
    return source_id, target_id


@dataclass(frozen=True, slots=True)
class State:
    """The facts, read at one moment under the lock of the apply. Nothing in it is older than the last commit."""

    project: Project
    policy: Policy
    position: int = 0
    """Position of the last commit; 0 when there is none."""
    last_recorded_at: datetime | None = None
    """When the last commit was recorded."""
    audit_tip: AuditTip = field(default_factory=AuditTip)
    families: Mapping[str, Family] = field(default_factory=dict)
    owners: Mapping[str, str] = field(default_factory=dict)
    """Identity key or alias to the id of the family that owns it."""
    heads: Mapping[FamilyBranch, Head] = field(default_factory=dict)
    rows: Mapping[FamilyBranch, tuple[TimelineRow, ...]] = field(default_factory=dict)
    """Open timeline rows."""
    rows_since: Mapping[FamilyBranch, datetime] = field(default_factory=dict)
    """Where only the rows from a moment on were read: that moment. A change that starts before it is not decided."""
    revisions: Mapping[str, Revision] = field(default_factory=dict)
    evidence: Mapping[str, Evidence] = field(default_factory=dict)
    relations: Mapping[str, Relation] = field(default_factory=dict)
    """Relations by id; those that are retired are here only when they were asked for by id."""
    flags: Mapping[FamilyBranch, tuple[ReviewFlag, ...]] = field(default_factory=dict)
    """Open review flags."""
    proposals: Mapping[str, Proposal] = field(default_factory=dict)
    approvals: Mapping[str, tuple[Approval, ...]] = field(default_factory=dict)
    """All approvals by proposal id."""

    @property
    def project_id(self) -> str:
        """Id of the project that all of it belongs to."""
        return self.project.project_id

    def family(self, family_id: str) -> Family:
        """A family, or NOT_FOUND; a family of another project does not exist here."""
        family = self.families.get(family_id)
        if family is None or family.project_id != self.project_id:
            raise not_found(names.family(self.project_id, family_id))
        return family

    def active_relations(self, branch: str) -> Iterable[Relation]:
        """Relations of a branch that are not retired."""
        return (r for r in self.relations.values() if r.branch == branch and not r.is_retired)

    def next_recorded_at(self, now: datetime) -> datetime:
        """Record time of the next commit: the clock's, but strictly later than the last commit's."""
        if self.last_recorded_at is None:
            return now
        return max(now, self.last_recorded_at + _MICROSECOND)


def apply_to_state(state: State, change: ChangeSet) -> State:
    """The state after a change set: what a store would answer once it has written it."""
    families, owners = dict(state.families), dict(state.owners)
    for family in change.families:
        families[family.family_id] = family
        owners.update(dict.fromkeys(family.keys, family.family_id))
    return State(
        project=change.project or state.project,
        policy=change.policy or state.policy,
        position=state.position if change.position is None else change.position,
        last_recorded_at=state.last_recorded_at if change.position is None else change.recorded_at,
        audit_tip=tip_after(change.audit[-1]) if change.audit else state.audit_tip,
        families=families if change.families else state.families,
        owners=owners if change.families else state.owners,
        heads=_updated(state.heads, {(h.family_id, h.branch): h for h in change.heads}),
        rows=_rows_after(state.rows, change),
        rows_since=state.rows_since,
        revisions=_updated(state.revisions, {r.revision_id: r for r in change.revisions}),
        evidence=_evidence_after(state.evidence, change),
        relations=_updated(
            state.relations, {r.relation_id: r for r in (*change.relations_opened, *change.relations_retired)}
        ),
        flags=_flags_after(state.flags, change),
        proposals=_updated(
            state.proposals, {p.proposal_id: p for p in (*change.proposals_added, *change.proposals_changed)}
        ),
        approvals=_approvals_after(state.approvals, change),
    )


Key = TypeVar("Key")
Value = TypeVar("Value")


def _updated(old: Mapping[Key, Value], new: Mapping[Key, Value]) -> Mapping[Key, Value]:
    return {**old, **new} if new else old


def _rows_after(
    rows: Mapping[FamilyBranch, tuple[TimelineRow, ...]], change: ChangeSet
) -> Mapping[FamilyBranch, tuple[TimelineRow, ...]]:
    if not change.rows_closed and not change.rows_opened:
        return rows
    after = dict(rows)
    closed = {row.key for row in change.rows_closed}
    for row in change.rows_closed:
        key = (row.family_id, row.branch)
        after[key] = tuple(other for other in after.get(key, ()) if other.key not in closed)
    for row in change.rows_opened:
        key = (row.family_id, row.branch)
        after[key] = (*after.get(key, ()), row)
    return after


def _evidence_after(evidence: Mapping[str, Evidence], change: ChangeSet) -> Mapping[str, Evidence]:
    after = dict(_updated(evidence, {e.evidence_id: e for e in change.evidence}))
    for check in change.verifications:
        record = after.get(check.evidence_id)
        if record is not None:
            after[check.evidence_id] = replace(record, verifications=(*record.verifications, check))
    return after if change.evidence or change.verifications else evidence


def _flags_after(
    flags: Mapping[FamilyBranch, tuple[ReviewFlag, ...]], change: ChangeSet
) -> Mapping[FamilyBranch, tuple[ReviewFlag, ...]]:
    if not change.flags_raised and not change.flags_cleared:
        return flags
    after: dict[Any, tuple[ReviewFlag, ...]] = dict(flags)
    cleared = {flag.key for flag in change.flags_cleared}
    for flag in (*change.flags_cleared, *change.flags_raised):
        key = (flag.family_id, flag.branch)
        after[key] = tuple(other for other in after.get(key, ()) if other.key not in cleared)
        if flag.cleared_position is None:
            after[key] = (*after[key], flag)
    return after


def _approvals_after(
    approvals: Mapping[str, tuple[Approval, ...]], change: ChangeSet
) -> Mapping[str, tuple[Approval, ...]]:
    if not change.approvals_added and not change.approvals_changed:
        return approvals
    after = dict(approvals)
    for approval in (*change.approvals_changed, *change.approvals_added):
        others = after.get(approval.proposal_id, ())
        kept = tuple(other for other in others if other.approval_id != approval.approval_id)
        after[approval.proposal_id] = (*kept, approval)
    return after
