"""What a mutation does to families, revisions, time and relations. The same code shows a preview and makes a commit."""

from __future__ import annotations

from ledger_svc.domain.decide.endings import cancel, deprecate, invalidate, set_expiry
from ledger_svc.domain.decide.linking import link, unlink
from ledger_svc.domain.decide.making import (
    Effect,
    Making,
    cascade,
)
from ledger_svc.domain.decide.publications import create, create_and_link, publish, roll_back
from ledger_svc.domain.model import (
    CancelSchedule,
    Create,
    CreateAndLink,
    Deprecate,
    Invalidate,
    Link,
    Mutation,
    Rollback,
    SetExpiry,
    Supersede,
    Unlink,
    Update,
)
from ledger_svc.domain.state import State


def effect_of(state: State, mutation: Mutation, making: Making) -> Effect:
    """Work out what a mutation does.

    Raises:
        DomainError: The state does not allow it.
    """
    match mutation:
        case Create():
            return create(state, mutation, making)
        case CreateAndLink():
            return create_and_link(state, mutation, making)
        case Update():
            return publish(state, making, mutation.family_id, mutation.content, mutation)
        case Supersede():
            effect = publish(state, making, mutation.family_id, mutation.content, mutation)
            return cascade(state, making, effect, mutation.family_id, "SUPERSEDED")
        case Rollback():
            return roll_back(state, mutation, making)
        case Invalidate():
            return invalidate(state, mutation, making)
        case Deprecate():
            return deprecate(state, mutation, making)
        case SetExpiry():
            return set_expiry(state, mutation, making)
        case CancelSchedule():
            return cancel(state, mutation, making)
        case Link():
            return link(state, mutation, making)
        case Unlink():
            return unlink(state, mutation, making)
