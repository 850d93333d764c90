"""A change is asked for: what it would do, shown and hashed, and whether a rule of the policy approves it."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

from ledger_svc.domain import errors, names, validate
from ledger_svc.domain import policy as rules
from ledger_svc.domain.canonical import nfc, normalised, preview_hash
from ledger_svc.domain.decide.dependencies import evidence_of, expected_heads, governing_category, resolved_links
from ledger_svc.domain.decide.effects import effect_of
from ledger_svc.domain.decide.endings import expiring_revision
from ledger_svc.domain.decide.finish import finish, no_commit
from ledger_svc.domain.decide.making import Making, carried_links, head_revision, published_head
from ledger_svc.domain.decide.publications import restored_revision
from ledger_svc.domain.decide.showing import NEW_REVISION, snapshots, time_warnings
from ledger_svc.domain.diff import diff_contents, merge_fields
from ledger_svc.domain.model import (
    Approval,
    AuditAction,
    ChangeSet,
    Content,
    Create,
    CreateAndLink,
    Draft,
    Evidence,
    Mutation,
    Policy,
    Principal,
    Proposal,
    ProposalStatus,
    Rollback,
    SetExpiry,
    Supersede,
    Update,
)
from ledger_svc.domain.state import State


def preview(state: State, draft: Draft, requester: Principal, policy: Policy, now: datetime) -> Proposal:
    """Work out what a draft would do, as a proposal without an id that nothing has stored yet.

    It is refused when the draft is malformed, when the heads that the proposer saw have moved, or when the apply would
    be refused for a reason that will not go away by itself.

    Raises:
        DomainError: INVALID_FIELD, LIMIT_EXCEEDED, NOT_FOUND, ALREADY_EXISTS, HEAD_MOVED, STATE_CONFLICT,
            RELATION_CYCLE or EVIDENCE_INSUFFICIENT.
    """
    _check_draft(draft)
    links = resolved_links(state, draft)
    heads = expected_heads(state, draft)
    mutation = resolved(state, draft, now)
    category = governing_category(state, draft, policy)
    category_rules = rules.category_policy(policy, category)
    if isinstance(mutation, Create | CreateAndLink | Update | Supersede):
        validate.check_required_fields(mutation.content, category_rules, category)
    default_validity = None
    if isinstance(mutation, Create | CreateAndLink | Update | Supersede | Rollback) and mutation.valid_to is None:
        default_validity = category_rules.default_validity
    making = Making(
        branch=draft.branch,
        author=requester,
        reason=nfc(draft.reason),
        evidence_links=links,
        proposal_id="",
        approved_by=(),
        default_validity=default_validity,
        recorded_at=state.next_recorded_at(now),
        position=state.position + 1,
        new_id=lambda: NEW_REVISION,
    )
    effect = effect_of(state, mutation, making)
    before, after = snapshots(state, draft.branch, mutation, effect, making)
    restored = restored_revision(state, mutation) if isinstance(mutation, Rollback) else None
    warnings = (
        *draft.warnings,
        *rules.check_evidence(
            mutation.KIND, category_rules, carried_links(links, restored), state.evidence, final=False
        ),
        *time_warnings(mutation, effect, now),
    )
    proposal = Proposal(
        proposal_id="",
        project_id=state.project_id,
        branch=draft.branch,
        mutation=mutation,
        category=category,
        before=before,
        after=after,
        diff=diff_contents(before.content, after.content) if after.content is not None else (),
        evidence_links=links,
        expected_heads=heads,
        reason=nfc(draft.reason),
        requester=requester,
        policy_version=policy.version,
        preview_hash="",
        created_at=no_commit(state, now).recorded_at,
        default_validity=default_validity,
        observation_id=draft.observation_id,
        warnings=warnings,
    )
    return replace(proposal, preview_hash=preview_hash(proposal, evidence_of(state, proposal)))


def decide_proposal(
    state: State,
    draft: Draft,
    requester: Principal,
    policy: Policy,
    now: datetime,
    *,
    new_id: Callable[[], str],
    new_evidence: tuple[Evidence, ...] = (),
) -> ChangeSet:
    """Make a proposal; when a rule of the policy approves it, with the approval of that rule's POLICY principal.

    Args:
        state: Facts as ``needs_of(draft)`` names them.
        draft: What is asked for.
        requester: Who asks, from the credential.
        policy: The project's policy.
        now: The ledger's clock.
        new_id: Makes ids.
        new_evidence: Evidence that the draft's links name and that is registered with it (see ``register``).

    Raises:
        DomainError: As ``preview``.
    """
    known = replace(state, evidence={**state.evidence, **{e.evidence_id: e for e in new_evidence}})
    proposal = replace(preview(known, draft, requester, policy, now), proposal_id=new_id())
    change = replace(no_commit(state, now), evidence=new_evidence)
    rule = rules.matching_rule(proposal, policy, known.evidence)
    details = {"kind": proposal.kind.value, "preview_hash": proposal.preview_hash}
    if rule is not None:
        category_rules = rules.category_policy(policy, proposal.category)
        approval = Approval(
            approval_id=new_id(),
            project_id=proposal.project_id,
            proposal_id=proposal.proposal_id,
            preview_hash=proposal.preview_hash,
            approver=rules.rule_principal(rule, policy),
            comment=f"rule {rule.rule_id} of policy version {policy.version}",
            approved_at=change.recorded_at,
            expires_at=change.recorded_at + category_rules.approval_lifetime,
            rule_id=rule.rule_id,
            policy_version=policy.version,
        )
        change = replace(change, approvals_added=(approval,))
        details |= {"rule": rule.rule_id, "policy_version": str(policy.version)}
        if category_rules.approvals_needed <= 1:
            proposal = replace(proposal, status=ProposalStatus.APPROVED)
    change = replace(change, proposals_added=(proposal,))
    return finish(
        state,
        change,
        action=AuditAction.PROPOSE,
        actor=requester,
        subject=names.proposal(proposal.project_id, proposal.proposal_id),
        details=details,
    )


def _check_draft(draft: Draft) -> None:
    validate.check_branch(draft.branch)
    validate.check_reason(draft.reason)
    validate.check_links(draft.evidence_links)
    mutation = draft.mutation
    content = getattr(mutation, "content", None)
    if isinstance(content, Content) and not (isinstance(mutation, Update) and mutation.fields):
        validate.check_content(content)
    validate.check_length("rationale", getattr(mutation, "rationale", ""), validate.MAX_TEXT)
    if isinstance(mutation, Create | CreateAndLink):
        validate.check_identity_key(mutation.identity_key)
    validate.check_times(getattr(mutation, "valid_from", None), getattr(mutation, "valid_to", None))
    for name in ("effective_from", "retired_from"):
        value = getattr(mutation, name, None)
        if value is not None and value.utcoffset() is None:
            raise errors.invalid_field(name, "a time needs an offset from UTC, e.g. 2021-01-31T00:00:00Z")


def resolved(state: State, draft: Draft, now: datetime) -> Mutation:
    """The mutation with everything filled in that only the ledger knows: whole content, UTC, the expiring revision."""
    mutation = draft.mutation
    changes: dict[str, Any] = {f.name: _resolved_value(getattr(mutation, f.name)) for f in dataclasses.fields(mutation)}
    if isinstance(mutation, Update) and mutation.fields:
        base = head_revision(state, published_head(state, mutation.family_id, draft.branch)).content
        changes["content"] = normalised(merge_fields(base, mutation.content, mutation.fields))
        changes["fields"] = ()
        validate.check_content(changes["content"])
    if isinstance(mutation, SetExpiry) and not mutation.revision_id:
        published_head(state, mutation.family_id, draft.branch)
        changes["revision_id"] = expiring_revision(state, mutation.family_id, draft.branch, now)
    return replace(mutation, **changes)


def _resolved_value(value: Any) -> Any:
    if isinstance(value, datetime):
        return value.astimezone(UTC)
    if isinstance(value, Content):
        return normalised(value)
    return nfc(value) if type(value) is str else value
