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
from ledger_svc.domain.decide.effects import (
    Effect,
    Making,
    carried_links,
    effect_of,
    expiring_revision,
    head_revision,
    published_head,
    restored_revision,
)
from ledger_svc.domain.decide.finish import finish, no_commit
from ledger_svc.domain.diff import diff_contents, merge_fields
from ledger_svc.domain.model import (
    CONTENT_KINDS,
    Approval,
    AuditAction,
    CancelSchedule,
    Category,
    ChangeSet,
    Content,
    Create,
    CreateAndLink,
    Deprecate,
    Draft,
    Evidence,
    EvidenceLink,
    ExpectedHead,
    Invalidate,
    Link,
    Mutation,
    Policy,
    Principal,
    Proposal,
    ProposalStatus,
    Relation,
    Rollback,
    RowEnd,
    RowPreview,
    SetExpiry,
    Snapshot,
    Supersede,
    TimelineRow,
    Unlink,
    Update,
)
from ledger_svc.domain.state import State
from ledger_svc.domain.timeline import sort_rows

_NEW_REVISION = ""
_NEW_FAMILY = "new"


def preview(state: State, draft: Draft, requester: Principal, policy: Policy, now: datetime) -> Proposal:
    """Work out what a draft would do, as a proposal without an id that nothing has stored yet.

    It is refused when the draft is malformed, when the heads that the proposer saw have moved, or when the apply would
    be refused for a reason that will not go away by itself.

    Raises:
        DomainError: INVALID_FIELD, LIMIT_EXCEEDED, NOT_FOUND, ALREADY_EXISTS, HEAD_MOVED, STATE_CONFLICT,
            RELATION_CYCLE or EVIDENCE_INSUFFICIENT.
    """
    _check_draft(draft)
    links = _resolved_links(state, draft)
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
        new_id=lambda: _NEW_REVISION,
    )
    effect = effect_of(state, mutation, making)
    before, after = _snapshots(state, draft.branch, mutation, effect, making)
    restored = restored_revision(state, mutation) if isinstance(mutation, Rollback) else None
    warnings = (
        *rules.check_evidence(
            mutation.KIND, category_rules, carried_links(links, restored), state.evidence, final=False
        ),
        *_time_warnings(mutation, effect, now),
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


# --- What a proposal depends on -----------------------------------------------------------------------------------


def expected_heads(state: State, draft: Draft) -> tuple[ExpectedHead, ...]:
    """Every head that the draft depends on, as it is now.

    Raises:
        DomainError: HEAD_MOVED when a head is not the one that the proposer says they saw.
    """
    needed = {(family_id, draft.branch): role for family_id, role in _dependencies(draft.mutation)}
    seen = {(head.family_id, head.branch): head for head in draft.expected_heads}
    for key, head in seen.items():
        needed.setdefault(key, head.role)
    heads = tuple(_expected(state, key, role) for key, role in needed.items())
    moved = [
        (seen[head.family_id, head.branch], head)
        for head in heads
        if (head.family_id, head.branch) in seen and not _is_same(seen[head.family_id, head.branch], head)
    ]
    if moved:
        raise errors.head_moved(state.project_id, moved)
    return heads


def _is_same(seen: ExpectedHead, actual: ExpectedHead) -> bool:
    same_commit = seen.position in {0, actual.position}
    return seen.revision_id == actual.revision_id and same_commit


def _expected(state: State, key: tuple[str, str], role: str) -> ExpectedHead:
    state.family(key[0])
    head = state.heads.get(key)
    if head is None:
        return ExpectedHead(key[0], key[1], "", 0, role)
    return ExpectedHead(key[0], key[1], head.revision_id, head.position, role)


def moved_heads(state: State, proposal: Proposal) -> list[tuple[ExpectedHead, ExpectedHead | None]]:
    """Heads that are not any more as the proposal expects them, as (expected, actual)."""
    moved: list[tuple[ExpectedHead, ExpectedHead | None]] = []
    for expected in proposal.expected_heads:
        actual = _expected(state, (expected.family_id, expected.branch), expected.role)
        if actual != expected:
            moved.append((expected, actual))
    return moved


def _dependencies(mutation: Mutation) -> tuple[tuple[str, str], ...]:
    """(family id, role) of every head that a mutation depends on."""
    match mutation:
        case Create() | Unlink():
            return ()
        case CreateAndLink():
            return ((mutation.refines_family_id, "refined"),)
        case Update() | Supersede() | Invalidate() | SetExpiry() | CancelSchedule() | Rollback():
            return ((mutation.family_id, "target"),)
        case Deprecate():
            return ((mutation.family_id, "target"), (mutation.replacement_family_id, "replacement"))
        case Link():
            return ((mutation.source_family_id, "source"), (mutation.target_family_id, "target"))


def governing_category(state: State, draft: Draft, policy: Policy) -> Category:
    """The category whose policy governs the draft: of a relation's two ends, the one that asks for more approvals."""
    mutation = draft.mutation
    match mutation:
        case Create() | CreateAndLink():
            return mutation.category
        case Link():
            ends = (mutation.target_family_id, mutation.source_family_id)
        case Unlink():
            relation = state.relations.get(mutation.relation_id)
            if relation is None or relation.project_id != state.project_id:
                raise errors.not_found(names.relation(state.project_id, mutation.relation_id))
            ends = (relation.target_id, relation.source_id)
        case Deprecate():
            ends = (mutation.family_id, mutation.replacement_family_id)
        case _:
            ends = (mutation.family_id, mutation.family_id)
    return rules.strictest(policy, [state.family(end).category for end in ends])


def evidence_of(state: State, proposal: Proposal) -> tuple[Evidence, ...]:
    """The evidence records that a proposal's hash covers: those that it links and those that a rollback brings back.

    Raises:
        DomainError: NOT_FOUND for a record that is not there.
    """
    restored = restored_revision(state, proposal.mutation) if isinstance(proposal.mutation, Rollback) else None
    links = carried_links(proposal.evidence_links, restored)
    return tuple(_evidence(state, link.evidence_id) for link in links)


def _evidence(state: State, evidence_id: str) -> Evidence:
    record = state.evidence.get(evidence_id)
    if record is None or record.project_id != state.project_id:
        raise errors.not_found(names.evidence(state.project_id, evidence_id))
    return record


def _resolved_links(state: State, draft: Draft) -> tuple[EvidenceLink, ...]:
    """The links with the fingerprints of what they point at, each once."""
    links = (
        replace(link, fingerprint=_evidence(state, link.evidence_id).fingerprint, claim=nfc(link.claim))
        for link in draft.evidence_links
    )
    return tuple({(link.evidence_id, link.stance, link.claim): link for link in links}.values())


# --- The draft itself ---------------------------------------------------------------------------------------------


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


# --- What a reviewer sees -----------------------------------------------------------------------------------------


def _snapshots(
    state: State, branch: str, mutation: Mutation, effect: Effect, making: Making
) -> tuple[Snapshot, Snapshot]:
    target = getattr(mutation, "family_id", "")
    head = state.heads.get((target, branch)) if target else None
    rows = sort_rows(state.rows.get((target, branch), ())) if target else []
    publishes = mutation.KIND in CONTENT_KINDS
    old_relations = tuple(_relation_text(relation, mutation) for relation in effect.relations_retired)
    new_relations = tuple(_relation_text(relation, mutation) for relation in effect.relations_opened)
    before = Snapshot(
        revision_id=head.revision_id if head is not None else "",
        content=head_revision(state, head).content if head is not None and publishes else None,
        rows=tuple(_row_text(row) for row in rows),
        relations=old_relations,
    )
    closed = {row.key for row in effect.rows_closed}
    after_rows = sort_rows([*(row for row in rows if row.key not in closed), *effect.rows_opened])
    at_apply = making.recorded_at if _starts_at_apply(mutation) else None
    after = Snapshot(
        revision_id=_NEW_REVISION if publishes else (effect.heads[0].revision_id if effect.heads else ""),
        content=effect.revisions[0].content if effect.revisions else None,
        rows=tuple(_row_text(row, at_apply, making) for row in after_rows),
        relations=new_relations,
    )
    return before, after


def _starts_at_apply(mutation: Mutation) -> bool:
    if isinstance(mutation, Invalidate | Deprecate):
        return mutation.effective_from is None
    return mutation.KIND in CONTENT_KINDS and getattr(mutation, "valid_from", None) is None


def _row_text(row: TimelineRow, at_apply: datetime | None = None, making: Making | None = None) -> RowPreview:
    starts_at_apply = at_apply is not None and row.valid_from == at_apply
    ends_at_apply = at_apply is not None and row.valid_to == at_apply
    # An end that the policy counts from the apply has no date yet.
    ends_later = starts_at_apply and making is not None and making.default_validity is not None
    return RowPreview(
        revision_id=row.revision_id,
        standing=row.standing,
        valid_from=None if starts_at_apply else row.valid_from,
        valid_to=None if ends_at_apply or ends_later else row.valid_to,
        ends_at_apply=ends_at_apply,
        end=row.end,
    )


def _relation_text(relation: Relation, mutation: Mutation) -> str:
    source = relation.source_id or _NEW_FAMILY
    target = relation.target_id or _NEW_FAMILY
    since = getattr(mutation, "valid_from", None) or getattr(mutation, "effective_from", None)
    tail = f" from {since.isoformat()}" if since is not None else ""
    return f"{relation.kind} {source} {target}{tail}"


def _time_warnings(mutation: Mutation, effect: Effect, now: datetime) -> tuple[str, ...]:
    kept = {row.revision_id for row in effect.rows_opened}
    cancelled = isinstance(mutation, CancelSchedule)
    warnings = [
        f"takes the schedule of revision {row.revision_id} at {row.valid_from.isoformat()} away"
        for row in effect.rows_closed
        if row.valid_from > now and row.revision_id not in kept and not cancelled
    ]
    given: tuple[datetime | None, ...] = tuple(
        getattr(mutation, name, None) for name in ("valid_from", "effective_from")
    )
    warnings += [
        f"changes what held from {moment.isoformat()} on, which is in the past"
        for moment in given
        if moment is not None and moment < now
    ]
    if cancelled and effect.rows_opened:
        extended = effect.rows_opened[0]
        if extended.end is not RowEnd.OPEN and extended.valid_to is not None:
            warnings.append(f"the revision before it then ends at {extended.valid_to.isoformat()}")
    if effect.flags_raised:
        warnings.append(f"flags {len(effect.flags_raised)} dependent memories for review")
    return tuple(warnings)
