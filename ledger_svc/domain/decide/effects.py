"""What a mutation does to families, revisions, time and relations. The same code shows a preview and makes a commit."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from datetime import datetime, timedelta

from ledger_svc.domain import errors, names
from ledger_svc.domain.canonical import content_hash, revision_hash
from ledger_svc.domain.decide import relations
from ledger_svc.domain.model import (
    CASCADE_KINDS,
    SCOPE_OF,
    CancelSchedule,
    Category,
    Content,
    Create,
    CreateAndLink,
    Deprecate,
    EventKind,
    EvidenceLink,
    Family,
    Head,
    Invalidate,
    Link,
    Mutation,
    Principal,
    Relation,
    RelationKind,
    ReviewFlag,
    Revision,
    Rollback,
    RowEnd,
    SetExpiry,
    Standing,
    Supersede,
    TimelineRow,
    Unlink,
    Update,
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
    sort_rows,
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


def effect_of(state: State, mutation: Mutation, making: Making) -> Effect:
    """Work out what a mutation does.

    Raises:
        DomainError: The state does not allow it.
    """
    match mutation:
        case Create():
            return _create(state, mutation, making)
        case CreateAndLink():
            return _create_and_link(state, mutation, making)
        case Update():
            return _publish(state, making, mutation.family_id, mutation.content, mutation)
        case Supersede():
            effect = _publish(state, making, mutation.family_id, mutation.content, mutation)
            return _cascade(state, making, effect, mutation.family_id, "SUPERSEDED")
        case Rollback():
            return _roll_back(state, mutation, making)
        case Invalidate():
            return _invalidate(state, mutation, making)
        case Deprecate():
            return _deprecate(state, mutation, making)
        case SetExpiry():
            return _set_expiry(state, mutation, making)
        case CancelSchedule():
            return _cancel(state, mutation, making)
        case Link():
            return _link(state, mutation, making)
        case Unlink():
            return _unlink(state, mutation, making)


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


# --- Publications -------------------------------------------------------------------------------------------------


def _create(state: State, mutation: Create | CreateAndLink, making: Making) -> Effect:
    key = mutation.identity_key
    if key and key in state.owners:
        raise errors.identity_taken(state.project_id, key, state.owners[key])
    family = _new_family(state, mutation.category, key, making)
    start, stop = _interval(mutation.valid_from, mutation.valid_to, making)
    revision = _new_revision(state, making, family.family_id, mutation.content, None, (start, stop))
    revised = _revise(state, family.family_id, making, _publication(revision))
    return Effect(
        touched=((family.family_id, EventKind.HEAD_CHANGED),),
        families=(family,),
        revisions=(revision,),
        rows_opened=revised.opened,
        heads=(_head_of(revision, making),),
    )


def _new_family(state: State, category: Category, identity_key: str, making: Making) -> Family:
    return Family(
        family_id=making.new_id(),
        project_id=state.project_id,
        scope=SCOPE_OF[category],
        category=category,
        identity_key=identity_key,
        created_by=making.author,
        created_at=making.recorded_at,
        created_position=making.position,
    )


def _create_and_link(state: State, mutation: CreateAndLink, making: Making) -> Effect:
    parent = mutation.refines_family_id
    published_head(state, parent, making.branch)
    effect = _create(state, mutation, making)
    child = effect.families[0]
    start = effect.revisions[0].valid_from
    relation = relations.new_relation(
        state,
        making,
        RelationKind.REFINES,
        child,
        state.family(parent),
        rationale=mutation.rationale,
        valid=(start, None),
    )
    touched = (*effect.touched, (parent, EventKind.RELATION_CHANGED))
    return replace(effect, touched=touched, relations_opened=(relation,))


def _publish(
    state: State,
    making: Making,
    family_id: str,
    content: Content,
    times: Update | Supersede | Rollback,
    restored: Revision | None = None,
) -> Effect:
    head = published_head(state, family_id, making.branch)
    start, stop = _interval(times.valid_from, times.valid_to, making)
    parent = head_revision(state, head)
    _refuse_repetition(state, making, family_id, content, parent, (start, stop))
    revision = _new_revision(state, making, family_id, content, head, (start, stop), restored)
    revised = _revise(state, family_id, making, _publication(revision))
    _refuse_revival(state, making, family_id, revised.opened)
    return Effect(
        touched=((family_id, EventKind.HEAD_CHANGED),),
        revisions=(revision,),
        rows_closed=revised.closed,
        rows_opened=revised.opened,
        heads=(_head_of(revision, making),),
        flags_cleared=_cleared(state, making, family_id),
    )


def _publication(revision: Revision) -> Publish:
    return Publish(
        revision.family_id,
        revision.branch,
        revision.revision_id,
        revision.content.standing,
        revision.valid_from,
        revision.valid_to,
    )


def _roll_back(state: State, mutation: Rollback, making: Making) -> Effect:
    restored = restored_revision(state, mutation)
    effect = _publish(state, making, mutation.family_id, restored.content, mutation, restored)
    return _cascade(state, making, effect, mutation.family_id, "ROLLED_BACK")


def restored_revision(state: State, mutation: Rollback) -> Revision:
    """The revision that a rollback brings back, its bytes checked against its hash."""
    revision = state.revisions.get(mutation.to_revision_id)
    if revision is None or revision.family_id != mutation.family_id or revision.project_id != state.project_id:
        raise errors.not_found(names.revision(state.project_id, mutation.family_id, mutation.to_revision_id))
    if content_hash(revision.content) != revision.content_hash:
        name = names.revision(state.project_id, revision.family_id, revision.revision_id)
        raise errors.integrity("", f"the stored content of {name} does not match its hash")
    return revision


def _interval(
    valid_from: datetime | None, valid_to: datetime | None, making: Making
) -> tuple[datetime, datetime | None]:
    start = valid_from if valid_from is not None else making.recorded_at
    stop = valid_to
    if stop is None and making.default_validity is not None:
        stop = start + making.default_validity
    if stop is not None and stop <= start:
        raise errors.invalid_field("valid_to", "must be after valid_from; without one, after the time of the apply")
    return start, stop


def _refuse_revival(state: State, making: Making, family_id: str, opened: Iterable[TimelineRow]) -> None:
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


def _refuse_repetition(
    state: State,
    making: Making,
    family_id: str,
    content: Content,
    parent: Revision,
    valid: tuple[datetime, datetime | None],
) -> None:
    """The same content for no other time is not a change."""
    rows = sort_rows(state.rows.get((family_id, making.branch), ()))
    last = rows[-1] if rows else None
    holds = last is not None and last.revision_id == parent.revision_id and last.valid_from <= valid[0]
    if last is None or not holds or last.valid_to != valid[1]:
        return
    if content_hash(content) == parent.content_hash:
        raise errors.state_conflict(
            state.project_id, family_id, "no_change", "the head says exactly this already, for the same time"
        )


def _new_revision(
    state: State,
    making: Making,
    family_id: str,
    content: Content,
    head: Head | None,
    valid: tuple[datetime, datetime | None],
    restored: Revision | None = None,
) -> Revision:
    parent = head_revision(state, head) if head is not None else None
    links = carried_links(making.evidence_links, restored)
    hashed = content_hash(content)
    return Revision(
        revision_id=making.new_id(),
        project_id=state.project_id,
        family_id=family_id,
        branch=making.branch,
        number=head.number + 1 if head is not None else 1,
        content=content,
        content_hash=hashed,
        revision_hash=revision_hash(
            content=hashed,
            parents=[parent.revision_hash] if parent is not None else [],
            restores=restored.revision_hash if restored is not None else "",
            evidence_links=links,
            author=making.author,
            reason=making.reason,
            branch=making.branch,
            valid_from=valid[0],
            valid_to=valid[1],
        ),
        parents=(parent.revision_id,) if parent is not None else (),
        author=making.author,
        reason=making.reason,
        evidence_links=links,
        valid_from=valid[0],
        valid_to=valid[1],
        proposal_id=making.proposal_id,
        recorded_at=making.recorded_at,
        position=making.position,
        restores=restored.revision_id if restored is not None else "",
        approved_by=making.approved_by,
    )


def _head_of(revision: Revision, making: Making) -> Head:
    return Head(
        family_id=revision.family_id,
        branch=revision.branch,
        revision_id=revision.revision_id,
        number=revision.number,
        position=making.position,
        recorded_at=making.recorded_at,
    )


# --- Changes of time ----------------------------------------------------------------------------------------------


def _revise(state: State, family_id: str, making: Making, change: TimelineChange) -> Revised:
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


def _changed_time(state: State, making: Making, family_id: str, change: TimelineChange) -> Effect:
    """The effect of a change of the timeline alone; the head follows the last row that is left."""
    head = published_head(state, family_id, making.branch)
    revised = _revise(state, family_id, making, change)
    if not isinstance(change, End):
        _refuse_revival(state, making, family_id, revised.opened)
    closed = {row.key for row in revised.closed}
    rows = [row for row in state.rows.get((family_id, making.branch), ()) if row.key not in closed]
    left = sort_rows([*rows, *revised.opened])
    moved = replace(
        head,
        revision_id=left[-1].revision_id if left else head.revision_id,
        position=making.position,
        recorded_at=making.recorded_at,
        invalid_from=change.at if isinstance(change, End) else head.invalid_from,
    )
    return Effect(
        touched=((family_id, EventKind.HEAD_CHANGED),),
        rows_closed=revised.closed,
        rows_opened=revised.opened,
        heads=(moved,),
    )


def _invalidate(state: State, mutation: Invalidate, making: Making) -> Effect:
    at = mutation.effective_from if mutation.effective_from is not None else making.recorded_at
    effect = _changed_time(state, making, mutation.family_id, End(at))
    effect = replace(effect, flags_cleared=_cleared(state, making, mutation.family_id))
    return _cascade(state, making, effect, mutation.family_id, "INVALIDATED")


def _deprecate(state: State, mutation: Deprecate, making: Making) -> Effect:
    old, new = mutation.family_id, mutation.replacement_family_id
    at = mutation.effective_from if mutation.effective_from is not None else making.recorded_at
    published_head(state, old, making.branch)
    published_head(state, new, making.branch)
    relations.check_ends(RelationKind.DEPRECATES, state.family(new), state.family(old))
    _check_replacement(state, making, new, at)
    effect = _changed_time(state, making, old, End(at, RowEnd.DEPRECATED))
    effect = replace(effect, flags_cleared=_cleared(state, making, old))
    effect = _cascade(state, making, effect, old, "DEPRECATED")
    touched = (*effect.touched, (new, EventKind.RELATION_CHANGED))
    if relations.find_active(state, making.branch, RelationKind.DEPRECATES, new, old) is not None:
        return replace(effect, touched=touched)
    relation = relations.new_relation(
        state,
        making,
        RelationKind.DEPRECATES,
        state.family(new),
        state.family(old),
        rationale=mutation.rationale or making.reason,
        valid=(at, None),
    )
    return replace(effect, touched=touched, relations_opened=(relation,))


def _check_replacement(state: State, making: Making, family_id: str, at: datetime) -> None:
    """What takes over holds then or later: an adopted row does not end before.

    That covers a replacement that is replaced itself, because its rows end where that begins.
    """
    rows = state.rows.get((family_id, making.branch), ())
    if not any(r.standing is Standing.ADOPTED and (r.valid_to is None or r.valid_to > at) for r in rows):
        raise errors.state_conflict(
            state.project_id,
            family_id,
            "replacement_not_in_force",
            "the replacement is neither in force nor scheduled at that time",
        )


def _set_expiry(state: State, mutation: SetExpiry, making: Making) -> Effect:
    head = published_head(state, mutation.family_id, making.branch)
    revision_id = mutation.revision_id or expiring_revision(
        state, mutation.family_id, making.branch, making.recorded_at
    )
    ended = head.invalid_from
    if ended is not None and (mutation.valid_to is None or mutation.valid_to > ended):
        raise errors.state_conflict(
            state.project_id,
            mutation.family_id,
            "ended_for_good",
            f"it was invalidated from {ended.isoformat()} on: publish a new revision instead",
        )
    return _changed_time(state, making, mutation.family_id, Expire(revision_id, mutation.valid_to))


def expiring_revision(state: State, family_id: str, branch: str, now: datetime) -> str:
    """The revision that an expiry is about when none is named: the one that covers now, else the last one."""
    rows = sort_rows(state.rows.get((family_id, branch), ()))
    covering = next((row for row in rows if row.covers(now)), rows[-1] if rows else None)
    return covering.revision_id if covering is not None else ""


def _cancel(state: State, mutation: CancelSchedule, making: Making) -> Effect:
    return _changed_time(state, making, mutation.family_id, Cancel(mutation.revision_id, making.recorded_at))


# --- Relations ----------------------------------------------------------------------------------------------------


def _link(state: State, mutation: Link, making: Making) -> Effect:
    kind = mutation.relation_kind
    for end in (mutation.source_family_id, mutation.target_family_id):
        published_head(state, end, making.branch)
    source, target = state.family(mutation.source_family_id), state.family(mutation.target_family_id)
    start = mutation.valid_from if mutation.valid_from is not None else making.recorded_at
    if mutation.valid_to is not None and mutation.valid_to <= start:
        raise errors.invalid_field("valid_to", "must be after valid_from")
    if kind is RelationKind.DEPRECATES:
        _check_ended(state, making, target.family_id, start)
    relation = relations.new_relation(
        state, making, kind, source, target, rationale=mutation.rationale, valid=(start, mutation.valid_to)
    )
    target_event = EventKind.HEAD_CHANGED if kind is RelationKind.DEPRECATES else EventKind.RELATION_CHANGED
    return Effect(
        touched=((source.family_id, EventKind.RELATION_CHANGED), (target.family_id, target_event)),
        relations_opened=(relation,),
    )


def _check_ended(state: State, making: Making, family_id: str, start: datetime) -> None:
    """A bare DEPRECATES labels what no longer holds; what still holds has to be ended in the same commit."""
    rows = state.rows.get((family_id, making.branch), ())
    if any(r.standing is Standing.ADOPTED and (r.valid_to is None or r.valid_to > start) for r in rows):
        raise errors.state_conflict(
            state.project_id,
            family_id,
            "still_in_force",
            "the replaced family still holds at that time: propose to deprecate it, which ends it as well",
        )


def _unlink(state: State, mutation: Unlink, making: Making) -> Effect:
    relation = state.relations.get(mutation.relation_id)
    if relation is None or relation.project_id != state.project_id or relation.branch != making.branch:
        raise errors.not_found(names.relation(state.project_id, mutation.relation_id))
    at = mutation.retired_from if mutation.retired_from is not None else making.recorded_at
    if relation.is_retired:
        raise errors.state_conflict(
            state.project_id, relation.source_id, "already_retired", "the relation was taken back already"
        )
    retired = replace(
        relation,
        retired_from=max(at, relation.valid_from),
        retired_recorded_at=making.recorded_at,
        retired_position=making.position,
    )
    target_event = EventKind.HEAD_CHANGED if relation.kind is RelationKind.DEPRECATES else EventKind.RELATION_CHANGED
    return Effect(
        touched=((relation.source_id, EventKind.RELATION_CHANGED), (relation.target_id, target_event)),
        relations_retired=(retired,),
    )


# --- Review flags -------------------------------------------------------------------------------------------------


def _cascade(state: State, making: Making, effect: Effect, family_id: str, cause: str) -> Effect:
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


def _cleared(state: State, making: Making, family_id: str) -> tuple[ReviewFlag, ...]:
    flags = state.flags.get((family_id, making.branch), ())
    return tuple(replace(flag, cleared_position=making.position) for flag in flags)
