"""The last step of every decision: the audit entry that covers all records of the change set."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from datetime import datetime

from ledger_svc.domain import audit, errors, names
from ledger_svc.domain.errors import DomainError
from ledger_svc.domain.model import (
    OPEN_STATUSES,
    AuditAction,
    ChangeSet,
    Principal,
    Proposal,
    ProposalStatus,
)
from ledger_svc.domain.state import State

_REFUSALS = {
    AuditAction.UPDATE_POLICY: AuditAction.REFUSE_UPDATE_POLICY,
    AuditAction.PROPOSE: AuditAction.REFUSE_PROPOSE,
    AuditAction.APPROVE: AuditAction.REFUSE_APPROVE,
    AuditAction.REVOKE_APPROVAL: AuditAction.REFUSE_REVOKE_APPROVAL,
    AuditAction.REJECT: AuditAction.REFUSE_REJECT,
    AuditAction.WITHDRAW: AuditAction.REFUSE_WITHDRAW,
    AuditAction.APPLY: AuditAction.REFUSE_APPLY,
}
_MAKES_STALE = frozenset({errors.HEAD_MOVED, errors.ALREADY_EXISTS})


def finish(
    state: State,
    change: ChangeSet,
    *,
    action: AuditAction,
    actor: Principal,
    subject: str,
    details: Mapping[str, str],
) -> ChangeSet:
    """The change set with the audit entry that covers all of its records."""
    entry = audit.append(
        state.audit_tip,
        project_id=change.project_id,
        action=action,
        actor=actor,
        subject=subject,
        position=change.position or 0,
        recorded_at=change.recorded_at,
        records=audit.records_of(change),
        details=details,
    )
    return replace(change, audit=(entry,))


def no_commit(state: State, now: datetime) -> ChangeSet:
    """An empty change set that takes no position."""
    recorded_at = now if state.last_recorded_at is None else max(now, state.last_recorded_at)
    return ChangeSet(project_id=state.project_id, recorded_at=recorded_at, position=None, audit=())


def refuse(
    state: State,
    action: AuditAction,
    actor: Principal,
    error: DomainError,
    now: datetime,
    *,
    subject: str = "",
    proposal: Proposal | None = None,
) -> ChangeSet:
    """What a refused decision leaves behind: an audit entry and, when it can never succeed as it is, a status.

    A proposal whose heads have moved, or whose identity or relation somebody else has made, becomes STALE. One that
    lacks approvals in the apply goes back to PENDING, where reviewers see it.

    Args:
        state: The state that the decision saw.
        action: What was asked for: APPLY, APPROVE, ...
        actor: Who asked.
        error: The refusal.
        now: The ledger's clock.
        subject: Resource name of what it was about; the proposal's when left out.
        proposal: The proposal, if it was about one.
    """
    change = no_commit(state, now)
    current = None if proposal is None else state.proposals.get(proposal.proposal_id, proposal)
    if current is not None:
        subject = subject or names.proposal(current.project_id, current.proposal_id)
        status = _status_after(current, action, error)
        if status is not current.status:
            moved = replace(
                current,
                status=status,
                status_reason=error.message if status is ProposalStatus.STALE else "",
                decided_at=change.recorded_at if status is ProposalStatus.STALE else None,
                decided_by=None,
            )
            change = replace(change, proposals_changed=(moved,))
    details = {"reason": error.reason, **{f"error.{key}": value for key, value in sorted(error.metadata.items())}}
    return finish(
        state,
        change,
        action=_REFUSALS.get(action, action),
        actor=actor,
        subject=subject or names.project(state.project_id),
        details=details,
    )


def _status_after(proposal: Proposal, action: AuditAction, error: DomainError) -> ProposalStatus:
    if proposal.status not in OPEN_STATUSES or action not in {AuditAction.APPLY, AuditAction.APPROVE}:
        return proposal.status
    if error.reason in _MAKES_STALE:
        return ProposalStatus.STALE
    if error.reason == errors.APPROVAL_MISSING:
        return ProposalStatus.PENDING
    return proposal.status
