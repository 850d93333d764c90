"""Records to messages."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import datetime, timedelta
from enum import Enum
from typing import Any, Final

from decisionssearch.common.v1 import common_pb2
from decisionssearch.ledger.v1 import (
    admin_service_pb2,
    ledger_pb2,
    ledger_service_pb2,
    observation_service_pb2,
    outbox_service_pb2,
    proposal_pb2,
)
from google.protobuf.duration_pb2 import Duration
from google.protobuf.timestamp_pb2 import Timestamp

from ledger_svc.domain import model as m
from ledger_svc.domain import names
from ledger_svc.domain.audit import details_json
from ledger_svc.instants import to_micros
from ledger_svc.outbox import EventView
from ledger_svc.service.standing import Replacing, replaced_by, replaces, state_of_head
from ledger_svc.views import (
    Detail,
    HeadView,
    HistoryStep,
    ObservationView,
    ProjectedRevision,
    ProjectionView,
    ProjectView,
    ProposalView,
)

_MILLION: Final = 1_000_000


def _numbers(kind: type[Enum], message_enum: Any, prefix: str) -> Mapping[Any, int]:
    """Return the number of each value that the contract knows; the rest are never shown."""
    known = dict(message_enum.items())
    return {value: known.get(f"{prefix}_{value.value}", 0) for value in kind}


_PRINCIPAL_KIND: Final = _numbers(m.PrincipalKind, common_pb2.PrincipalKind, "PRINCIPAL_KIND")
SCOPE: Final = _numbers(m.Scope, ledger_pb2.Scope, "SCOPE")
CATEGORY: Final = _numbers(m.Category, ledger_pb2.Category, "CATEGORY")
STANDING: Final = _numbers(m.Standing, ledger_pb2.Standing, "STANDING")
STATE: Final = _numbers(m.MemoryState, ledger_pb2.State, "STATE")
KIND: Final = _numbers(m.RelationKind, ledger_pb2.RelationKind, "RELATION_KIND")
STANCE: Final = _numbers(m.Stance, ledger_pb2.Stance, "STANCE")
VERIFICATION: Final = _numbers(m.VerificationState, ledger_pb2.VerificationState, "VERIFICATION_STATE")
SOURCE: Final = _numbers(m.SourceKind, ledger_pb2.SourceKind, "SOURCE_KIND")
# OPEN has no number: an end that is not there has no kind.
END: Final = _numbers(m.RowEnd, ledger_pb2.EndKind, "END_KIND")
STATUS: Final = _numbers(m.ProposalStatus, proposal_pb2.ProposalStatus, "PROPOSAL_STATUS")
OUTCOME: Final = _numbers(m.AdmissionOutcome, observation_service_pb2.AdmissionOutcome, "ADMISSION_OUTCOME")
CONTRADICTION: Final = _numbers(m.ContradictionRule, admin_service_pb2.ContradictionRule, "CONTRADICTION_RULE")


def time(instant: datetime | None) -> Timestamp | None:
    """Return the message of an instant, None for none."""
    if instant is None:
        return None
    seconds, micros = divmod(to_micros(instant), _MILLION)
    return Timestamp(seconds=seconds, nanos=micros * 1_000)


def duration(value: timedelta | None) -> Duration | None:
    """Return the message of a duration, None for none."""
    if value is None:
        return None
    made = Duration()
    made.FromTimedelta(value)
    return made


def principal(who: m.Principal) -> common_pb2.Principal:
    """Return who somebody is."""
    return common_pb2.Principal(
        issuer=who.issuer,
        subject=who.subject,
        kind=_PRINCIPAL_KIND[who.kind],  # type: ignore[arg-type]  # a number of this enum
        on_behalf_of=who.on_behalf_of,
    )


def content(value: m.Content) -> ledger_pb2.Content:
    """Return what a memory says."""
    return ledger_pb2.Content(
        title=value.title,
        summary=value.summary,
        details=value.details,
        objective=value.objective,
        trigger=value.trigger,
        rationale=value.rationale,
        alternatives=value.alternatives,
        examples=value.examples,
        rules=value.rules,
        steps=value.steps,
        domain=value.domain,
        modules=value.modules,
        files=value.files,
        task=value.task,
        outcome=value.outcome,
        url=value.url,
        tags=value.tags,
        importance=value.importance,
        standing=STANDING[value.standing],  # type: ignore[arg-type]  # a number of this enum
        attributes=value.attributes,
    )


def family(value: m.Family) -> ledger_pb2.Family:
    """Return a family."""
    return ledger_pb2.Family(
        name=names.family(value.project_id, value.family_id),
        identity_key=value.identity_key,
        scope=SCOPE[value.scope],  # type: ignore[arg-type]  # a number of this enum
        category=CATEGORY[value.category],  # type: ignore[arg-type]
        creator=principal(value.created_by),
        record_time=time(value.created_at),
        position=value.created_position,
        aliases=value.aliases,
    )


def link(project_id: str, value: m.EvidenceLink) -> ledger_pb2.EvidenceLink:
    """Return a link to evidence."""
    return ledger_pb2.EvidenceLink(
        evidence=names.evidence(project_id, value.evidence_id),
        stance=STANCE[value.stance],  # type: ignore[arg-type]  # a number of this enum
        confidence=value.confidence,
        claim=value.claim,
    )


def evidence(value: m.Evidence) -> ledger_pb2.Evidence:
    """Return evidence."""
    return ledger_pb2.Evidence(
        name=names.evidence(value.project_id, value.evidence_id),
        source_kind=SOURCE[value.source_kind],  # type: ignore[arg-type]  # a number of this enum
        locator=value.locator,
        source_hash=value.source_hash,
        excerpt=value.excerpt,
        excerpt_hash=value.excerpt_hash,
        author=value.author,
        extractor=value.extractor,
        reliability=value.reliability,
        verification=VERIFICATION[value.verification],  # type: ignore[arg-type]
        verifications=[_verification(check) for check in value.verifications],
        fingerprint=value.fingerprint,
        source_time=time(value.source_time),
        registrar=principal(value.registered_by),
        record_time=time(value.recorded_at),
    )


def _verification(value: m.Verification) -> ledger_pb2.Verification:
    return ledger_pb2.Verification(
        state=VERIFICATION[value.state],  # type: ignore[arg-type]  # a number of this enum
        method=value.method,
        verifier=principal(value.verifier),
        time=time(value.recorded_at),
    )


def linked(
    project_id: str, links: Iterable[m.EvidenceLink], known: Mapping[str, m.Evidence]
) -> list[ledger_pb2.LinkedEvidence]:
    """Return links with the evidence that they lead to."""
    return [
        ledger_pb2.LinkedEvidence(link=link(project_id, one), evidence=evidence(known[one.evidence_id]))
        for one in links
        if one.evidence_id in known
    ]


def revision_name(value: m.Revision) -> str:
    """Return the name of a revision."""
    return names.revision(value.project_id, value.family_id, value.revision_id)


def revision(value: m.Revision, *, with_content: bool = True) -> ledger_pb2.Revision:
    """Return a revision."""
    return ledger_pb2.Revision(
        name=revision_name(value),
        content=content(value.content) if with_content else None,
        content_hash=value.content_hash,
        revision_hash=value.revision_hash,
        parents=[names.revision(value.project_id, value.family_id, parent) for parent in value.parents],
        author=principal(value.author),
        approvers=[principal(who) for who in value.approved_by],
        reason=value.reason,
        evidence_links=[link(value.project_id, one) for one in value.evidence_links],
        valid_from=time(value.valid_from),
        valid_to=time(value.valid_to),
        position=value.position,
        record_time=time(value.recorded_at),
        proposal=names.proposal(value.project_id, value.proposal_id),
        branch=value.branch,
    )


def row(project_id: str, value: m.TimelineRow, state: m.MemoryState) -> ledger_pb2.TimelineRow:
    """Return a row of the timeline."""
    return ledger_pb2.TimelineRow(
        revision=names.revision(project_id, value.family_id, value.revision_id),
        valid_from=time(value.valid_from),
        valid_to=time(value.valid_to),
        recorded_from=time(value.recorded_from),
        recorded_to=time(value.recorded_to),
        opened_position=value.opened_position,
        closed_position=value.closed_position or 0,
        end_kind=END[value.end],  # type: ignore[arg-type]  # a number of this enum
        state=STATE[state],  # type: ignore[arg-type]
    )


def relation(value: m.Relation) -> ledger_pb2.Relation:
    """Return a relation."""
    retired = value.is_retired
    return ledger_pb2.Relation(
        name=names.relation(value.project_id, value.relation_id),
        kind=KIND[value.kind],  # type: ignore[arg-type]  # a number of this enum
        source_family=names.family(value.project_id, value.source_id),
        target_family=names.family(value.project_id, value.target_id),
        rationale=value.rationale,
        evidence_links=[link(value.project_id, one) for one in value.evidence_links],
        state=ledger_pb2.RELATION_STATE_RETIRED if retired else ledger_pb2.RELATION_STATE_ACTIVE,
        valid_from=time(value.valid_from),
        valid_to=time(value.retired_from if retired else value.valid_to),
        author=principal(value.asserted_by),
        position=value.position,
        record_time=time(value.recorded_at),
        retired_position=value.retired_position or 0,
        retire_time=time(value.retired_recorded_at),
    )


def _replacement(project_id: str, value: Replacing) -> ledger_pb2.Replacement:
    return ledger_pb2.Replacement(
        family=names.family(project_id, value.other.family_id),
        identity_key=value.other.identity_key,
        title=value.other.title,
        relation=names.relation(project_id, value.relation.relation_id),
        effective_time=time(value.relation.valid_from),
        reason=value.relation.rationale,
    )


def head(view: HeadView, valid_at: datetime, detail: Detail) -> ledger_pb2.Head:
    """Return a head."""
    project_id = view.family.project_id
    standing = state_of_head(view, valid_at)
    current = standing.row
    newest = view.rows[-1].revision_id if view.rows else view.head.revision_id
    scheduled = [r for r in standing.scheduled if r is not current]
    made = ledger_pb2.Head(
        family=family(view.family),
        branch=view.branch,
        state=STATE[standing.state],  # type: ignore[arg-type]  # a number of this enum
        revision=None if view.revision is None else revision(view.revision, with_content=detail is not Detail.STATE),
        valid_from=time(current.valid_from) if current else None,
        valid_to=time(current.valid_to) if current else None,
        end_kind=END[current.end] if current else 0,  # type: ignore[arg-type]
        head_revision=names.revision(project_id, view.family.family_id, newest),
        scheduled=[row(project_id, r, m.MemoryState.SCHEDULED) for r in scheduled],
        replaced_by=[_replacement(project_id, r) for r in replaced_by(view)],
        replaces=[_replacement(project_id, r) for r in replaces(view)],
        needs_review=[_flag(project_id, flag) for flag in view.flags],
        position=view.position,
    )
    if detail is Detail.FULL and view.revision is not None:
        made.evidence.extend(linked(project_id, view.revision.evidence_links, view.evidence))
        made.relations.extend(relation(one) for one in view.relations)
        made.past.extend(
            ledger_pb2.PastRevision(
                revision=names.revision(project_id, view.family.family_id, past.row.revision_id),
                title=past.title,
                valid_from=time(past.row.valid_from),
                valid_to=time(past.row.valid_to),
                replaced_because=past.replaced_because,
            )
            for past in view.past
        )
    return made


def _flag(project_id: str, value: m.ReviewFlag) -> ledger_pb2.ReviewFlag:
    return ledger_pb2.ReviewFlag(
        cause_family=names.family(project_id, value.cause_family_id),
        cause=value.cause,
        via=KIND[value.via],  # type: ignore[arg-type]  # a number of this enum
        time=time(value.recorded_at),
    )


def field_change(value: m.FieldChange) -> ledger_pb2.FieldChange:
    """Return one difference."""
    return ledger_pb2.FieldChange(field=value.field, before=value.before, after=value.after)


def change(value: m.Commit) -> ledger_service_pb2.Change:
    """Return a commit."""
    project_id = value.project_id
    family_id = value.family_ids[0] if value.family_ids else ""
    return ledger_service_pb2.Change(
        position=value.position,
        record_time=time(value.recorded_at),
        mutation=value.kind.value.lower(),
        branch=value.branch,
        families=[names.family(project_id, one) for one in value.family_ids],
        revision=names.revision(project_id, family_id, value.revision_id) if value.revision_id else "",
        relation=names.relation(project_id, value.relation_id) if value.relation_id else "",
        proposal=names.proposal(project_id, value.proposal_id),
        requester=principal(value.requester),
        approvers=[principal(who) for who in value.approved_by],
        reason=value.reason,
    )


def history(step: HistoryStep, now: datetime, state_of: Any) -> ledger_service_pb2.RevisionHistory:
    """Return one step of a history."""
    project_id = step.revision.project_id
    return ledger_service_pb2.RevisionHistory(
        revision=revision(step.revision), rows=[row(project_id, r, state_of(r, now)) for r in step.rows]
    )


def projection(value: ProjectionView, position: int) -> ledger_service_pb2.Projection:
    """Return what an index holds of a head."""
    return ledger_service_pb2.Projection(
        family=None if value.family is None else family(value.family),
        branch=value.branch,
        revisions=[_projected(one) for one in value.revisions],
        as_of_position=position,
    )


def _projected(value: ProjectedRevision) -> ledger_service_pb2.ProjectedRevision:
    return ledger_service_pb2.ProjectedRevision(
        revision=revision(value.revision),
        is_head=value.is_head,
        in_timeline=value.row is not None,
        valid_from=time(value.row.valid_from if value.row else value.revision.valid_from),
        valid_to=time(value.row.valid_to if value.row else value.revision.valid_to),
        position=value.position,
    )


# --- Governance -------------------------------------------------------------------------------------------------------


def proposal(view: ProposalView) -> proposal_pb2.Proposal:
    """Return a proposal."""
    value = view.proposal
    project_id = value.project_id
    about = _about(value)
    made = proposal_pb2.Proposal(
        name=names.proposal(project_id, value.proposal_id) if value.proposal_id else "",
        branch=value.branch,
        mutation=mutation(project_id, value.mutation),
        before=None if value.before.content is None else content(value.before.content),
        after=None if value.after.content is None else content(value.after.content),
        diff=[field_change(one) for one in value.diff],
        timeline_before=[_preview(project_id, about, one, value.created_at) for one in value.before.rows],
        timeline_after=[_preview(project_id, about, one, value.created_at) for one in value.after.rows],
        evidence=linked(project_id, value.evidence_links, view.evidence),
        expected_heads=[_expected(project_id, one) for one in value.expected_heads],
        reason=value.reason,
        requester=principal(value.requester),
        policy_version=value.policy_version,
        preview_hash=value.preview_hash,
        status=STATUS[value.status],  # type: ignore[arg-type]  # a number of this enum
        approvals=[approval(one) for one in view.approvals],
        approvals_needed=view.approvals_needed,
        warnings=value.warnings,
        create_time=time(value.created_at),
        update_time=time(value.decided_at),
        decision_comment=value.status_reason,
        applied_position=value.applied_position or 0,
        family=names.family(project_id, value.result_family_id or about) if value.result_family_id or about else "",
        observation=names.observation(project_id, value.observation_id) if value.observation_id else "",
    )
    if value.result_revision_id:
        made.applied_revision = names.revision(project_id, value.result_family_id, value.result_revision_id)
    return made


def _about(value: m.Proposal) -> str:
    """Return the family that a proposal is about; empty for a new one."""
    if isinstance(value.mutation, m.Create | m.CreateAndLink):
        return ""
    own: str = getattr(value.mutation, "family_id", "") or getattr(value.mutation, "source_family_id", "")
    return own


def _preview(project_id: str, family_id: str, value: m.RowPreview, moment: datetime) -> ledger_pb2.TimelineRow:
    known = value.revision_id and family_id
    return ledger_pb2.TimelineRow(
        revision=names.revision(project_id, family_id, value.revision_id) if known else "",
        valid_from=time(value.valid_from),
        valid_to=time(value.valid_to),
        end_kind=END[value.end],  # type: ignore[arg-type]  # a number of this enum
        state=STATE[_preview_state(value, moment)],  # type: ignore[arg-type]
    )


def _preview_state(value: m.RowPreview, moment: datetime) -> m.MemoryState:
    if value.valid_from is not None and value.valid_from > moment:
        return m.MemoryState.SCHEDULED
    if value.ends_at_apply or (value.valid_to is not None and value.valid_to <= moment):
        ended = {m.RowEnd.INVALIDATED: m.MemoryState.INVALIDATED, m.RowEnd.EXPIRED: m.MemoryState.EXPIRED}
        return ended.get(value.end, m.MemoryState.SUPERSEDED)
    return m.MemoryState.ACTIVE if value.standing is m.Standing.ADOPTED else m.MemoryState.NOT_IN_FORCE


def _expected(project_id: str, value: m.ExpectedHead) -> proposal_pb2.ExpectedHead:
    known = bool(value.revision_id)
    return proposal_pb2.ExpectedHead(
        family=names.family(project_id, value.family_id),
        branch=value.branch,
        revision=names.revision(project_id, value.family_id, value.revision_id) if known else "",
        role=value.role,
    )


def approval(value: m.Approval) -> proposal_pb2.Approval:
    """Return an approval."""
    return proposal_pb2.Approval(
        name=f"{names.proposal(value.project_id, value.proposal_id)}/approvals/{value.approval_id}",
        approver=principal(value.approver),
        preview_hash=value.preview_hash,
        time=time(value.approved_at),
        expire_time=time(value.expires_at),
        policy_rule=f"{value.rule_id}@{value.policy_version}" if value.rule_id else "",
        comment=value.comment,
    )


def mutation(project_id: str, value: m.Mutation) -> proposal_pb2.Mutation:
    """Return what a proposal would do."""

    def named(family_id: str) -> str:
        return names.family(project_id, family_id)

    match value:
        case m.Create():
            return proposal_pb2.Mutation(create=_create(value))
        case m.CreateAndLink():
            return proposal_pb2.Mutation(
                create_and_link=proposal_pb2.CreateAndLinkMutation(
                    create=_create(value), refines_family=named(value.refines_family_id), rationale=value.rationale
                )
            )
        case m.Update():
            update = proposal_pb2.UpdateMutation(
                family=named(value.family_id),
                content=content(value.content),
                valid_from=time(value.valid_from),
                valid_to=time(value.valid_to),
            )
            update.update_mask.paths.extend(value.fields)
            return proposal_pb2.Mutation(update=update)
        case m.Supersede():
            return proposal_pb2.Mutation(
                supersede=proposal_pb2.SupersedeMutation(
                    family=named(value.family_id),
                    content=content(value.content),
                    valid_from=time(value.valid_from),
                    valid_to=time(value.valid_to),
                )
            )
        case m.Invalidate():
            return proposal_pb2.Mutation(
                invalidate=proposal_pb2.InvalidateMutation(
                    family=named(value.family_id), effective_from=time(value.effective_from)
                )
            )
        case m.SetExpiry():
            return proposal_pb2.Mutation(
                set_expiry=proposal_pb2.SetExpiryMutation(family=named(value.family_id), valid_to=time(value.valid_to))
            )
        case m.CancelSchedule():
            return proposal_pb2.Mutation(
                cancel_schedule=proposal_pb2.CancelScheduleMutation(
                    family=named(value.family_id),
                    revision=names.revision(project_id, value.family_id, value.revision_id),
                )
            )
        case m.Deprecate():
            return proposal_pb2.Mutation(
                deprecate=proposal_pb2.DeprecateMutation(
                    family=named(value.family_id),
                    replacement_family=named(value.replacement_family_id),
                    effective_from=time(value.effective_from),
                    rationale=value.rationale,
                )
            )
        case m.Rollback():
            return proposal_pb2.Mutation(
                rollback=proposal_pb2.RollbackMutation(
                    family=named(value.family_id),
                    to_revision=names.revision(project_id, value.family_id, value.to_revision_id),
                    valid_from=time(value.valid_from),
                )
            )
        case m.Link():
            return proposal_pb2.Mutation(
                link=proposal_pb2.LinkMutation(
                    kind=KIND[value.relation_kind],  # type: ignore[arg-type]  # a number of this enum
                    source_family=named(value.source_family_id),
                    target_family=named(value.target_family_id),
                    rationale=value.rationale,
                    valid_from=time(value.valid_from),
                )
            )
        case m.Unlink():
            return proposal_pb2.Mutation(
                unlink=proposal_pb2.UnlinkMutation(relation=names.relation(project_id, value.relation_id))
            )


def _create(value: m.Create | m.CreateAndLink) -> proposal_pb2.CreateMutation:
    return proposal_pb2.CreateMutation(
        identity_key=value.identity_key,
        category=CATEGORY[value.category],  # type: ignore[arg-type]  # a number of this enum
        content=content(value.content),
        valid_from=time(value.valid_from),
        valid_to=time(value.valid_to),
    )


# --- Administration, observations, outbox -----------------------------------------------------------------------------


def project(view: ProjectView) -> admin_service_pb2.Project:
    """Return a project."""
    return admin_service_pb2.Project(
        name=names.project(view.project.project_id),
        display_name=view.project.display_name,
        policy=policy(view.policy),
        create_time=time(view.project.created_at),
        position=view.position,
    )


def policy(value: m.Policy) -> admin_service_pb2.Policy:
    """Return a policy."""
    return admin_service_pb2.Policy(
        version=value.version,
        categories=[_category_policy(category, rules) for category, rules in value.categories.items()],
        approval_rules=[_approval_rule(rule) for rule in value.auto_approvals],
    )


def _category_policy(category: m.Category, value: m.CategoryPolicy) -> admin_service_pb2.CategoryPolicy:
    return admin_service_pb2.CategoryPolicy(
        category=CATEGORY[category],  # type: ignore[arg-type]  # a number of this enum
        approvals_needed=value.approvals_needed,
        min_sources=value.evidence.min_independent_sources,
        source_kinds=sorted(SOURCE[kind] for kind in value.evidence.source_kinds),  # type: ignore[misc]
        verified_only=value.evidence.must_be_verified,
        contradiction=CONTRADICTION[value.contradiction],  # type: ignore[arg-type]
        default_validity=duration(value.default_validity),
        approval_lifetime=duration(value.approval_lifetime),
        required=[admin_service_pb2.FieldRequirement(any_of=group) for group in value.required_fields],
    )


def _approval_rule(value: m.AutoApprovalRule) -> admin_service_pb2.ApprovalRule:
    return admin_service_pb2.ApprovalRule(
        id=value.rule_id,
        issuer=value.issuer,
        subject=value.subject,
        mutations=sorted(kind.value.lower() for kind in value.mutation_kinds),
        categories=sorted(CATEGORY[category] for category in value.categories),  # type: ignore[misc]
        extractors=sorted(value.evidence.extractors),
        verified_only=value.evidence.must_be_verified,
    )


def audit_entry(value: m.AuditEntry) -> admin_service_pb2.AuditEntry:
    """Return an audit entry."""
    return admin_service_pb2.AuditEntry(
        sequence=value.sequence,
        record_time=time(value.recorded_at),
        principal=principal(value.actor),
        action=value.action.value,
        resource=value.subject,
        position=value.position,
        details=details_json(value),
        previous_hash=value.previous_hash,
        entry_hash=value.entry_hash,
    )


def observation(view: ObservationView) -> observation_service_pb2.Observation:
    """Return an observation with its latest admission."""
    value = view.observation
    return observation_service_pb2.Observation(
        name=names.observation(value.project_id, value.observation_id),
        source_kind=SOURCE[value.source_kind],  # type: ignore[arg-type]  # a number of this enum
        locator=value.locator,
        source_hash=value.source_hash,
        title=value.title,
        text=value.text,
        author=value.author,
        occur_time=time(value.source_time),
        attributes=value.attributes,
        record_time=time(value.recorded_at),
        admission=None if view.admission is None else _admission(value.project_id, view.admission),
    )


def _admission(project_id: str, value: m.Admission) -> observation_service_pb2.Admission:
    return observation_service_pb2.Admission(
        outcome=OUTCOME[value.outcome],  # type: ignore[arg-type]  # a number of this enum
        reasons=value.reasons,
        proposals=[names.proposal(project_id, one) for one in value.proposal_ids],
        duplicate_of=names.family(project_id, value.duplicate_of) if value.duplicate_of else "",
        extractor=value.extractor,
        record_time=time(value.recorded_at),
        retryable=value.retryable,
    )


def event(value: EventView) -> outbox_service_pb2.OutboxEvent:
    """Return an event of the outbox."""
    return outbox_service_pb2.OutboxEvent(
        id=value.id,
        project=names.project(value.project_id),
        position=value.position,
        record_time=time(value.recorded_at),
        family=names.family(value.project_id, value.family_id),
        branch=value.branch,
        attempts=value.attempts,
        fencing_token=value.fencing_token,
        lease_expire_time=time(value.lease_expires_at),
        last_error=value.last_error,
    )
