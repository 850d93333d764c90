"""People answer a proposal: approve, reject, withdraw, take an approval back."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from datetime import datetime

from ledger_svc.domain import errors, names, validate
from ledger_svc.domain import policy as rules
from ledger_svc.domain.canonical import nfc
from ledger_svc.domain.decide.application import checked_hash
from ledger_svc.domain.decide.dependencies import moved_heads
from ledger_svc.domain.decide.finish import finish, no_commit
from ledger_svc.domain.identity import same_person
from ledger_svc.domain.model import (
    OPEN_STATUSES,
    Approval,
    AuditAction,
    ChangeSet,
    Policy,
    Principal,
    PrincipalKind,
    Proposal,
    ProposalStatus,
    Role,
)
from ledger_svc.domain.state import State


def decide_approval(
    state: State,
    proposal: Proposal,
    approvals: Iterable[Approval],
    approver: Principal,
    given_hash: str,
    policy: Policy,
    now: datetime,
    *,
    comment: str = "",
    new_id: Callable[[], str],
) -> ChangeSet:
    """A principal says yes to the exact bytes of ``given_hash``.

    Raises:
        DomainError: PROPOSAL_STATUS, PERMISSION_DENIED, APPROVER_NOT_ALLOWED, PREVIEW_HASH_MISMATCH or HEAD_MOVED.
    """
    proposal = _open(state, proposal)
    known = state.approvals.get(proposal.proposal_id, tuple(approvals))
    category_rules = rules.category_policy(policy, proposal.category)
    rules.check_approver(approver, proposal, category_rules)
    validate.check_length("comment", comment, validate.MAX_REASON)
    actual = checked_hash(state, proposal)
    if given_hash != actual:
        raise errors.preview_hash_mismatch(given_hash, actual)
    moved = moved_heads(state, proposal)
    if moved:
        raise errors.head_moved(state.project_id, moved)
    counted = rules.valid_approvals(proposal, known, actual, policy, state.evidence, now)
    if any(a.approver.kind is not PrincipalKind.POLICY and same_person(a.approver, approver) for a in counted):
        raise errors.approver_not_allowed("already_approved", "this person has approved it already")
    change = no_commit(state, now)
    approval = Approval(
        approval_id=new_id(),
        project_id=proposal.project_id,
        proposal_id=proposal.proposal_id,
        preview_hash=actual,
        approver=approver,
        comment=nfc(comment),
        approved_at=change.recorded_at,
        expires_at=change.recorded_at + category_rules.approval_lifetime,
        policy_version=policy.version,
    )
    enough = len(counted) + 1 >= category_rules.approvals_needed
    status = ProposalStatus.APPROVED if enough else ProposalStatus.PENDING
    changed = () if status is proposal.status else (replace(proposal, status=status),)
    change = replace(change, approvals_added=(approval,), proposals_changed=changed)
    return _finish(state, change, AuditAction.APPROVE, approver, proposal, {"preview_hash": actual})


def decide_rejection(
    state: State, proposal: Proposal, reviewer: Principal, reason: str, policy: Policy, now: datetime
) -> ChangeSet:
    """A reviewer says no. The same content may be proposed again at any time.

    Raises:
        DomainError: PROPOSAL_STATUS, PERMISSION_DENIED, APPROVER_NOT_ALLOWED or INVALID_FIELD.
    """
    proposal = _open(state, proposal)
    validate.check_reason(reason)
    rules.check_decider(reviewer, proposal, rules.category_policy(policy, proposal.category))
    return _close(state, proposal, ProposalStatus.REJECTED, AuditAction.REJECT, reviewer, reason, now)


def decide_withdrawal(state: State, proposal: Proposal, principal: Principal, reason: str, now: datetime) -> ChangeSet:
    """Whoever asked, the person on whose behalf an agent asked, or an admin takes a proposal back.

    Raises:
        DomainError: PROPOSAL_STATUS or PERMISSION_DENIED.
    """
    proposal = _open(state, proposal)
    validate.check_length("reason", reason, validate.MAX_REASON)
    if not (_is_requester(principal, proposal.requester) or Role.ADMIN in principal.roles):
        raise errors.permission_denied(
            proposal.project_id, "admin", "only its requester or an admin may withdraw a proposal"
        )
    return _close(state, proposal, ProposalStatus.WITHDRAWN, AuditAction.WITHDRAW, principal, reason, now)


def decide_revocation(
    state: State,
    proposal: Proposal,
    approvals: Iterable[Approval],
    approval_id: str,
    principal: Principal,
    reason: str,
    policy: Policy,
    now: datetime,
) -> ChangeSet:
    """Whoever approved, or an admin, takes an approval back before it is used; PENDING again when too few are left.

    Raises:
        DomainError: NOT_FOUND, PROPOSAL_STATUS, PERMISSION_DENIED or INVALID_FIELD.
    """
    proposal = _open(state, proposal)
    validate.check_reason(reason)
    known = state.approvals.get(proposal.proposal_id, tuple(approvals))
    approval = next((a for a in known if a.approval_id == approval_id), None)
    if approval is None:
        name = f"{names.proposal(proposal.project_id, proposal.proposal_id)}/approvals/{approval_id}"
        raise errors.not_found(name)
    is_approver = (principal.issuer, principal.subject) == (approval.approver.issuer, approval.approver.subject)
    if not (is_approver or Role.ADMIN in principal.roles):
        raise errors.permission_denied(
            proposal.project_id, "admin", "only its approver or an admin may revoke an approval"
        )
    change = no_commit(state, now)
    # Revoking twice is a repetition, not a mistake: the first time stands.
    revoked = approval
    if approval.revoked_at is None:
        revoked = replace(approval, revoked_at=change.recorded_at, revoked_by=principal)
    rest = [a for a in known if a.approval_id != approval_id]
    needed = rules.category_policy(policy, proposal.category).approvals_needed
    left = rules.valid_approvals(proposal, rest, proposal.preview_hash, policy, state.evidence, now)
    status = ProposalStatus.APPROVED if len(left) >= needed else ProposalStatus.PENDING
    changed = () if status is proposal.status else (replace(proposal, status=status),)
    change = replace(change, approvals_changed=(revoked,), proposals_changed=changed)
    details = {"approval": approval_id, "given_reason": nfc(reason)}
    return _finish(state, change, AuditAction.REVOKE_APPROVAL, principal, proposal, details)


def _open(state: State, proposal: Proposal) -> Proposal:
    current = state.proposals.get(proposal.proposal_id, proposal)
    if current.project_id != state.project_id:
        raise errors.not_found(names.proposal(state.project_id, proposal.proposal_id))
    if current.status not in OPEN_STATUSES:
        raise errors.proposal_status(
            current.project_id, current.proposal_id, current.status, " or ".join(sorted(OPEN_STATUSES))
        )
    return current


def _is_requester(principal: Principal, requester: Principal) -> bool:
    """Compared exactly: taking back is a right of one account, not of everybody who looks like it."""
    if (principal.issuer, principal.subject) == (requester.issuer, requester.subject):
        return True
    on_behalf = requester.kind is PrincipalKind.AGENT and requester.on_behalf_of == principal.subject
    return on_behalf and principal.kind is PrincipalKind.HUMAN and principal.issuer == requester.issuer


def _close(
    state: State,
    proposal: Proposal,
    status: ProposalStatus,
    action: AuditAction,
    principal: Principal,
    reason: str,
    now: datetime,
) -> ChangeSet:
    change = no_commit(state, now)
    closed = replace(
        proposal, status=status, status_reason=nfc(reason), decided_at=change.recorded_at, decided_by=principal
    )
    change = replace(change, proposals_changed=(closed,))
    return _finish(state, change, action, principal, proposal, {"preview_hash": proposal.preview_hash})


def _finish(
    state: State,
    change: ChangeSet,
    action: AuditAction,
    actor: Principal,
    proposal: Proposal,
    details: dict[str, str],
) -> ChangeSet:
    subject = names.proposal(proposal.project_id, proposal.proposal_id)
    return finish(state, change, action=action, actor=actor, subject=subject, details=details)
