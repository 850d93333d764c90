"""What every mutation's effect is made with: who and when, the head, the timeline, the flags of dependents."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from datetime import datetime, timedelta

from ledger_svc.domain import errors, names
from ledger_svc.domain.decide import relations
from ledger_svc.domain.model import (
    CASCADE_KINDS,
    EventKind,
    EvidenceLink,
    Family,
    Head,
    Principal,
    Relation,
    ReviewFlag,
    Revision,
    Standing,
    TimelineRow,
)
from ledger_svc.domain.state import State
from ledger_svc.domain.timeline import (
    Cancel,
    End,
    Expire,
    Publish,
    Revised,
    TimelineChange,
    TimelineError,
    revise_timeline,
)


@dataclass(frozen=True, slots=True)
class Making:
    """Who changes what, when and why: what every record of a commit carries."""

    branch: str
    author: Principal
    reason: str
    evidence_links: tuple[EvidenceLink, ...]
    proposal_id: str
    approved_by: tuple[Principal, ...]
    default_validity: timedelta | None
    recorded_at: datetime
    position: int
    new_id: Callable[[], str]


@dataclass(frozen=True, slots=True)
class Effect:
    """The records that a mutation makes and alters."""

    touched: tuple[tuple[str, EventKind], ...]
    """Families whose projection may change, the target first."""
    families: tuple[Family, ...] = ()
    revisions: tuple[Revision, ...] = ()
    rows_closed: tuple[TimelineRow, ...] = ()
    rows_opened: tuple[TimelineRow, ...] = ()
    heads: tuple[Head, ...] = ()
    relations_opened: tuple[Relation, ...] = ()
    relations_retired: tuple[Relation, ...] = ()
    flags_raised: tuple[ReviewFlag, ...] = ()
    flags_cleared: tuple[ReviewFlag, ...] = ()


def published_head(state: State, family_id: str, branch: str) -> Head:
    """The head of a family on a branch, or the refusal when there is no such family or nothing was published."""
    state.family(family_id)
    head = state.heads.get((family_id, branch))
    if head is None:
        raise errors.state_conflict(
            state.project_id, family_id, "not_published", f"nothing of this family is published on branch {branch}"
        )
    return head


def head_revision(state: State, head: Head) -> Revision:
    """The revision of a head."""
    revision = state.revisions.get(head.revision_id)
    if revision is None:
        raise errors.integrity("", f"the revision of {names.family(state.project_id, head.family_id)} is not stored")
    return revision


def carried_links(making_links: Iterable[EvidenceLink], restored: Revision | None) -> tuple[EvidenceLink, ...]:
    """Links of a new revision: those given and, for a rollback, those of the revision that it brings back."""
    links = {
        (link.evidence_id, link.stance, link.claim): link for link in (restored.evidence_links if restored else ())
    }
    links.update({(link.evidence_id, link.stance, link.claim): link for link in making_links})
    return tuple(links.values())


def revise(state: State, family_id: str, making: Making, change: TimelineChange) -> Revised:
    """Change the open rows of a family, with the timeline's refusals as the domain's."""
    rows = state.rows.get((family_id, making.branch), ())
    since = state.rows_since.get((family_id, making.branch))
    if since is not None and _first_moment(change, since) < since:
        raise errors.read_too_little()
    try:
        return revise_timeline(rows, change, making.recorded_at, making.position)
    except TimelineError as error:
        if error.rule == "empty_interval":
            raise errors.invalid_field("valid_to", error.message) from error
        raise errors.state_conflict(state.project_id, family_id, error.rule, error.message) from error


def _first_moment(change: TimelineChange, since: datetime) -> datetime:
    """The earliest moment whose row a change may alter."""
    match change:
        case Publish():
            return change.valid_from
        case End():
            return change.at - timedelta(microseconds=1)
        case Cancel():
            return change.now
        case Expire():
            # The row is found by its revision, and what follows it was read with it.
            return since


def refuse_revival(state: State, making: Making, family_id: str, opened: Iterable[TimelineRow]) -> None:
    """A deprecated family does not come back into force by a change of its own: its replacement is what holds."""
    adopted = [row for row in opened if row.standing is Standing.ADOPTED]
    for relation in relations.deprecations_of(state, making.branch, family_id):
        if any(row.valid_to is None or row.valid_to > relation.valid_from for row in adopted):
            by = names.family(state.project_id, relation.source_id)
            raise errors.state_conflict(
                state.project_id,
                family_id,
                "family_deprecated",
                f"{by} replaces this family: change that one, or retire the relation first",
            )


def cascade(state: State, making: Making, effect: Effect, family_id: str, cause: str) -> Effect:
    """Flag what DEPENDS_ON or REFINES the changed family directly.

    Only directly: a flagged memory that changes in its turn flags its own dependents, one that is found unaffected
    shields them.
    """
    flags = tuple(
        ReviewFlag(
            family_id=relation.source_id,
            branch=making.branch,
            cause_family_id=family_id,
            via=relation.kind,
            cause=cause,
            position=making.position,
            recorded_at=making.recorded_at,
        )
        for relation in relations.incoming(state, making.branch, family_id, CASCADE_KINDS)
    )
    unique = {flag.key: flag for flag in flags}
    touched = (*effect.touched, *((flag.family_id, EventKind.REVIEW_FLAGGED) for flag in unique.values()))
    return replace(effect, touched=touched, flags_raised=tuple(unique.values()))


def cleared(state: State, making: Making, family_id: str) -> tuple[ReviewFlag, ...]:
    """The open flags of a family, cleared by this commit, which is its review."""
    flags = state.flags.get((family_id, making.branch), ())
    return tuple(replace(flag, cleared_position=making.position) for flag in flags)
