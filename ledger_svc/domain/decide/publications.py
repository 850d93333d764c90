"""Mutations that publish a revision: create, create and link, update, supersede, roll back."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime
from typing import Final

from ledger_svc.domain import errors, names
from ledger_svc.domain.canonical import content_hash, revision_hash
from ledger_svc.domain.decide import relations
from ledger_svc.domain.decide.making import (
    Effect,
    Making,
    carried_links,
    cascade,
    cleared,
    head_revision,
    published_head,
    refuse_revival,
    revise,
)
from ledger_svc.domain.model import (
    SCOPE_OF,
    Category,
    Content,
    Create,
    CreateAndLink,
    EventKind,
    Family,
    Head,
    RelationKind,
    Revision,
    Rollback,
    Supersede,
    Update,
)
from ledger_svc.domain.state import State
from ledger_svc.domain.timeline import (
    Publish,
    sort_rows,
)

_LAST: Final = datetime.max.replace(tzinfo=UTC)
"""A default end after that is none."""


def create(state: State, mutation: Create | CreateAndLink, making: Making) -> Effect:
    """Make a family with its first revision."""
    key = mutation.identity_key
    if key and key in state.owners:
        raise errors.identity_taken(state.project_id, key, state.owners[key])
    family = _new_family(state, mutation.category, key, making)
    start, stop = _interval(mutation.valid_from, mutation.valid_to, making)
    revision = _new_revision(state, making, family.family_id, mutation.content, None, (start, stop))
    revised = revise(state, family.family_id, making, _publication(revision))
    return Effect(
        touched=((family.family_id, EventKind.HEAD_CHANGED),),
        families=(family,),
        revisions=(revision,),
        rows_opened=revised.opened,
        heads=(_head_of(revision, making),),
    )


def create_and_link(state: State, mutation: CreateAndLink, making: Making) -> Effect:
    """Make a family with its first revision, and a REFINES from it to a published one."""
    parent = mutation.refines_family_id
    published_head(state, parent, making.branch)
    effect = create(state, mutation, making)
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


def publish(
    state: State,
    making: Making,
    family_id: str,
    content: Content,
    times: Update | Supersede | Rollback,
    restored: Revision | None = None,
) -> Effect:
    """Publish a revision of a family that is published already."""
    head = published_head(state, family_id, making.branch)
    start, stop = _interval(times.valid_from, times.valid_to, making)
    parent = head_revision(state, head)
    _refuse_repetition(state, making, family_id, content, parent, (start, stop))
    revision = _new_revision(state, making, family_id, content, head, (start, stop), restored)
    revised = revise(state, family_id, making, _publication(revision))
    refuse_revival(state, making, family_id, revised.opened)
    return Effect(
        touched=((family_id, EventKind.HEAD_CHANGED),),
        revisions=(revision,),
        rows_closed=revised.closed,
        rows_opened=revised.opened,
        heads=(_head_of(revision, making),),
        flags_cleared=cleared(state, making, family_id),
    )


def roll_back(state: State, mutation: Rollback, making: Making) -> Effect:
    """Publish the content of an older revision anew."""
    restored = restored_revision(state, mutation)
    effect = publish(state, making, mutation.family_id, restored.content, mutation, restored)
    return cascade(state, making, effect, mutation.family_id, "ROLLED_BACK")


def restored_revision(state: State, mutation: Rollback) -> Revision:
    """The revision that a rollback brings back, its bytes checked against its hash."""
    revision = state.revisions.get(mutation.to_revision_id)
    if revision is None or revision.family_id != mutation.family_id or revision.project_id != state.project_id:
        raise errors.not_found(names.revision(state.project_id, mutation.family_id, mutation.to_revision_id))
    if content_hash(revision.content) != revision.content_hash:
        name = names.revision(state.project_id, revision.family_id, revision.revision_id)
        raise errors.integrity("", f"the stored content of {name} does not match its hash")
    return revision


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


def _interval(
    valid_from: datetime | None, valid_to: datetime | None, making: Making
) -> tuple[datetime, datetime | None]:
    start = valid_from if valid_from is not None else making.recorded_at
    stop = valid_to
    if stop is None and making.default_validity is not None and start <= _LAST - making.default_validity:
        stop = start + making.default_validity
    if stop is not None and stop <= start:
        raise errors.invalid_field("valid_to", "must be after valid_from; without one, after the time of the apply")
    return start, stop


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


def _publication(revision: Revision) -> Publish:
    return Publish(
        revision.family_id,
        revision.branch,
        revision.revision_id,
        revision.content.standing,
        revision.valid_from,
        revision.valid_to,
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
