"""An approved proposal becomes a commit, or is refused: inside the apply transaction, on state read under its lock."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from datetime import datetime

from ledger_svc.domain import errors, names
from ledger_svc.domain import policy as rules
from ledger_svc.domain.canonical import preview_hash
from ledger_svc.domain.decide.dependencies import evidence_of, moved_heads
from ledger_svc.domain.decide.effects import effect_of
from ledger_svc.domain.decide.finish import finish, refuse
from ledger_svc.domain.decide.making import Effect, Making, carried_links
from ledger_svc.domain.decide.publications import restored_revision
from ledger_svc.domain.errors import DomainError
from ledger_svc.domain.model import (
    Approval,
    AuditAction,
    ChangeSet,
    Commit,
    EventKind,
    LedgerEvent,
    Policy,
    Principal,
    Proposal,
    ProposalStatus,
    Rollback,
)
from ledger_svc.domain.state import State

_EVENT_ORDER = (EventKind.HEAD_CHANGED, EventKind.RELATION_CHANGED, EventKind.REVIEW_FLAGGED)


@dataclass(frozen=True, slots=True)
class Outcome:
    """What an apply comes to: a change set to persist in any case, and the refusal to raise after that, if any."""

    change: ChangeSet
    error: DomainError | None = None


def decide(
    state: State,
    proposal: Proposal,
    approvals: Iterable[Approval],
    policy: Policy,
    now: datetime,
    *,
    actor: Principal,
    new_id: Callable[[], str],
) -> ChangeSet:
    """Turn an approved proposal into a commit.

    Everything is checked again on the state at hand: the status, the hash recomputed from stored content, the
    approvals, every expected head, the evidence, then the rules of the mutation itself.

    Args:
        state: Facts as ``needs_of(proposal)`` names them, read under the lock of the apply.
        proposal: As stored; a newer version of it in ``state.proposals`` wins.
        approvals: As stored; newer ones in ``state.approvals`` win.
        policy: The project's policy now.
        now: The ledger's clock.
        actor: Who applies it.
        new_id: Makes ids.

    Raises:
        DomainError: PROPOSAL_STATUS, PREVIEW_HASH_MISMATCH, APPROVAL_MISSING, HEAD_MOVED, EVIDENCE_INSUFFICIENT,
            or what the mutation's own rules say.
    """
    proposal = state.proposals.get(proposal.proposal_id, proposal)
    known_approvals = state.approvals.get(proposal.proposal_id, tuple(approvals))
    counted = _checked(state, proposal, known_approvals, policy, now)
    position = state.position + 1
    making = Making(
        branch=proposal.branch,
        author=proposal.requester,
        reason=proposal.reason,
        evidence_links=proposal.evidence_links,
        proposal_id=proposal.proposal_id,
        approved_by=tuple(approval.approver for approval in counted),
        default_validity=proposal.default_validity,
        recorded_at=state.next_recorded_at(now),
        position=position,
        new_id=new_id,
    )
    effect = effect_of(state, proposal.mutation, making)
    return _commit(state, proposal, counted, effect, making, actor)


def decide_or_refuse(
    state: State,
    proposal: Proposal,
    approvals: Iterable[Approval],
    policy: Policy,
    now: datetime,
    *,
    actor: Principal,
    new_id: Callable[[], str],
) -> Outcome:
    """As ``decide``, but a refusal is a change set too: an audit entry and, when heads have moved, the STALE status."""
    try:
        return Outcome(decide(state, proposal, approvals, policy, now, actor=actor, new_id=new_id))
    except DomainError as error:
        return Outcome(refuse(state, AuditAction.APPLY, actor, error, now, proposal=proposal), error)


def checked_hash(state: State, proposal: Proposal) -> str:
    """The preview hash, recomputed from what is stored.

    Raises:
        DomainError: PREVIEW_HASH_MISMATCH when the stored bytes are not those that the stored hash was made of.
    """
    actual = preview_hash(proposal, evidence_of(state, proposal))
    if actual != proposal.preview_hash:
        raise errors.preview_hash_mismatch(proposal.preview_hash, actual)
    return actual


def _checked(
    state: State, proposal: Proposal, approvals: Iterable[Approval], policy: Policy, now: datetime
) -> tuple[Approval, ...]:
    if proposal.project_id != state.project_id:
        raise errors.not_found(names.proposal(state.project_id, proposal.proposal_id))
    if proposal.status not in {ProposalStatus.APPROVED, ProposalStatus.PENDING}:
        raise errors.proposal_status(
            proposal.project_id, proposal.proposal_id, proposal.status, ProposalStatus.APPROVED
        )
    moved = moved_heads(state, proposal)
    if moved:
        raise errors.head_moved(state.project_id, moved)
    actual = checked_hash(state, proposal)
    category_rules = rules.category_policy(policy, proposal.category)
    listed = tuple(approvals)
    counted = rules.valid_approvals(proposal, listed, actual, policy, state.evidence, now)
    if len(counted) < category_rules.approvals_needed:
        others = [a for a in listed if a.preview_hash != actual and a.revoked_at is None]
        if others:
            raise errors.preview_hash_mismatch(others[0].preview_hash, actual)
        raise errors.approval_missing(category_rules.approvals_needed, len(counted))
    restored = restored_revision(state, proposal.mutation) if isinstance(proposal.mutation, Rollback) else None
    links = carried_links(proposal.evidence_links, restored)
    rules.check_evidence(proposal.kind, category_rules, links, state.evidence, final=True)
    if restored is not None and proposal.after.content != restored.content:
        raise errors.integrity("", "the content to restore is not the one that was approved")
    return counted


def _commit(
    state: State,
    proposal: Proposal,
    counted: tuple[Approval, ...],
    effect: Effect,
    making: Making,
    actor: Principal,
) -> ChangeSet:
    touched = _touched(effect)
    revision_id = effect.revisions[0].revision_id if effect.revisions else ""
    changed_relations = (*effect.relations_opened, *effect.relations_retired)
    relation_id = changed_relations[0].relation_id if changed_relations else ""
    applied = replace(
        proposal,
        status=ProposalStatus.APPLIED,
        status_reason="",
        decided_at=making.recorded_at,
        decided_by=actor,
        applied_position=making.position,
        result_family_id=next(iter(touched)),
        result_revision_id=revision_id,
        result_relation_id=relation_id,
    )
    commit = Commit(
        project_id=state.project_id,
        position=making.position,
        recorded_at=making.recorded_at,
        kind=proposal.kind,
        branch=proposal.branch,
        family_ids=tuple(touched),
        revision_id=revision_id,
        relation_id=relation_id,
        proposal_id=proposal.proposal_id,
        requester=proposal.requester,
        approved_by=making.approved_by,
        reason=proposal.reason,
    )
    change = ChangeSet(
        project_id=state.project_id,
        recorded_at=making.recorded_at,
        position=making.position,
        audit=(),
        commit=commit,
        families=effect.families,
        revisions=effect.revisions,
        rows_closed=effect.rows_closed,
        rows_opened=effect.rows_opened,
        heads=effect.heads,
        relations_opened=effect.relations_opened,
        relations_retired=effect.relations_retired,
        flags_raised=effect.flags_raised,
        flags_cleared=effect.flags_cleared,
        proposals_changed=(applied,),
        approvals_changed=tuple(replace(a, consumed_position=making.position) for a in counted),
        events=tuple(
            LedgerEvent(
                project_id=state.project_id,
                position=making.position,
                ordinal=ordinal,
                kind=kind,
                recorded_at=making.recorded_at,
                family_id=family_id,
                branch=making.branch,
            )
            for ordinal, (family_id, kind) in enumerate(touched.items())
        ),
    )
    return finish(
        state,
        change,
        action=AuditAction.APPLY,
        actor=actor,
        subject=names.proposal(proposal.project_id, proposal.proposal_id),
        details={
            "kind": proposal.kind.value,
            "preview_hash": proposal.preview_hash,
            "policy_version": str(state.policy.version),
            "approvals": ",".join(a.approval_id for a in counted),
        },
    )


def _touched(effect: Effect) -> dict[str, EventKind]:
    """Each touched family once, in order, with the strongest reason."""
    touched: dict[str, EventKind] = {}
    for family_id, kind in effect.touched:
        before = touched.get(family_id, kind)
        touched[family_id] = min(before, kind, key=_EVENT_ORDER.index)
    return touched
