"""Messages to records. Gathers every wrong field of a request before it refuses."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import datetime, timedelta
from enum import Enum
from typing import Any, Final, TypeVar

from decisionssearch.common.v1 import common_pb2
from decisionssearch.ledger.v1 import (
    admin_service_pb2,
    evidence_service_pb2,
    ledger_pb2,
    observation_service_pb2,
    proposal_pb2,
    proposal_service_pb2,
)
from google.protobuf.message import Message

from ledger_svc.domain import model as m
from ledger_svc.domain.decide import EvidenceDraft
from ledger_svc.service.commands import Request
from ledger_svc.service.proposals import EvidenceInput, Proposing
from ledger_svc.state import BEGINNING
from service_kit import ledger_token
from service_kit.checks import FieldChecks
from service_kit.context import current_principal
from service_kit.names import NameKind, ResourceName
from service_kit.principals import Role

E = TypeVar("E", bound=Enum)

MAX_REQUEST_ID: Final = 128
MAX_BATCH: Final = 200
MAX_PAGE: Final = 500
_HASH_RULE: Final = "must be sha256:<64 hex digits>"
_NOWHERE: Final = ResourceName(NameKind.FAMILY, "", ("", ""))


def _values(kind: type[E], message_enum: Any, prefix: str) -> Mapping[int, E]:
    known = dict(message_enum.items())
    return {known[f"{prefix}_{v.value}"]: v for v in kind if f"{prefix}_{v.value}" in known}


SCOPE: Final = _values(m.Scope, ledger_pb2.Scope, "SCOPE")
CATEGORY: Final = _values(m.Category, ledger_pb2.Category, "CATEGORY")
STANDING: Final = _values(m.Standing, ledger_pb2.Standing, "STANDING")
STATE: Final = _values(m.MemoryState, ledger_pb2.State, "STATE")
KIND: Final = _values(m.RelationKind, ledger_pb2.RelationKind, "RELATION_KIND")
STANCE: Final = _values(m.Stance, ledger_pb2.Stance, "STANCE")
VERIFICATION: Final = _values(m.VerificationState, ledger_pb2.VerificationState, "VERIFICATION_STATE")
SOURCE: Final = _values(m.SourceKind, ledger_pb2.SourceKind, "SOURCE_KIND")
STATUS: Final = _values(m.ProposalStatus, proposal_pb2.ProposalStatus, "PROPOSAL_STATUS")
OUTCOME: Final = _values(m.AdmissionOutcome, observation_service_pb2.AdmissionOutcome, "ADMISSION_OUTCOME")
SIGNAL: Final = _values(m.SignalKind, observation_service_pb2.SignalKind, "SIGNAL_KIND")
CONTRADICTION: Final = _values(m.ContradictionRule, admin_service_pb2.ContradictionRule, "CONTRADICTION_RULE")
_MUTATIONS: Final = {kind.value.lower(): kind for kind in m.MutationKind}


def choice(checks: FieldChecks, field: str, number: int, known: Mapping[int, E], default: E) -> E:
    """Return a required choice; the default stands in for a refused one."""
    if number == 0:
        checks.add(field, "is required")
        return default
    return optional_choice(checks, field, number, known, default)


def optional_choice(checks: FieldChecks, field: str, number: int, known: Mapping[int, E], default: E) -> E:
    """Return a choice, the default for one that is left out."""
    if number == 0:
        return default
    found = known.get(number)
    if found is None:
        checks.add(field, f"{number} is not a value that this version knows")
        return default
    return found


def choices(checks: FieldChecks, field: str, numbers: Iterable[int], known: Mapping[int, E]) -> frozenset[E]:
    """Return a set of choices."""
    found: set[E] = set()
    for index, number in enumerate(numbers):
        value = known.get(number)
        if value is None:
            checks.add(f"{field}[{index}]", f"{number} is not a value that this version knows")
        else:
            found.add(value)
    return frozenset(found)


def project(checks: FieldChecks, value: str, field: str = "project") -> str:
    """Return the id of a project."""
    return checks.project(value, field) or ""


def name(
    checks: FieldChecks,
    field: str,
    value: str,
    kind: NameKind,
    project_id: str | None = None,
    *,
    optional: bool = False,
) -> ResourceName:
    """Return a parsed name; the name of nothing stands in for a refused or left out one."""
    return checks.name(field, value, kind, project=project_id or None, optional=optional) or _NOWHERE


def ident(
    checks: FieldChecks,
    field: str,
    value: str,
    kind: NameKind,
    project_id: str | None = None,
    *,
    optional: bool = False,
) -> str:
    """Return the last id of a name, empty for a refused or left out one."""
    return name(checks, field, value, kind, project_id, optional=optional).id


def branch(checks: FieldChecks, value: str, field: str = "branch") -> str:
    """Return a branch, ``main`` when it is left out."""
    return checks.branch(value, field) or "main"


def request_id(checks: FieldChecks, value: str) -> str:
    """Return a request id."""
    if checks.required("request_id", value):
        checks.length("request_id", value, at_most=MAX_REQUEST_ID)
    return value


def request(message: Message, project_id: str, rpc: str, ident_: str, role: Role = Role.PROPOSER) -> Request:
    """Return one mutating call."""
    content = message.SerializeToString(deterministic=True)
    return Request(current_principal(), project_id, rpc, ident_, content, role)


def freshness(
    checks: FieldChecks, message: Message, ledger_id: str, project_id: str, field: str = "consistency"
) -> int:
    """Return the position that an answer must not be older than; 0 when any will do."""
    if not message.HasField(field):
        return 0
    wanted: common_pb2.Consistency = getattr(message, field)
    if not wanted.HasField("at_least_as_fresh"):
        return 0
    point = checks.attempt(
        lambda: ledger_token.decode(
            wanted.at_least_as_fresh, f"{field}.at_least_as_fresh", ledger_id=ledger_id, project=project_id or None
        )
    )
    return point.position if point is not None else 0


def page_size(checks: FieldChecks, value: int, default: int = 100) -> int:
    """Return how many to list."""
    return checks.page_size(value, default=default, at_most=MAX_PAGE)


def identity_key(checks: FieldChecks, value: str, field: str = "identity_key") -> str:
    """Return an identity key that is asked for."""
    if checks.required(field, value):
        checks.length(field, value, at_most=200)
    return value


# --- Knowledge --------------------------------------------------------------------------------------------------------


def content(checks: FieldChecks, message: Message, field: str = "content") -> m.Content:
    """Return what a memory says. The domain judges the texts; here only what has no value of its own."""
    if not message.HasField(field):
        checks.add(field, "is required")
        return m.Content(title="")
    value: ledger_pb2.Content = getattr(message, field)
    return m.Content(
        title=value.title,
        summary=value.summary,
        details=value.details,
        objective=value.objective,
        trigger=value.trigger,
        rationale=value.rationale,
        alternatives=tuple(value.alternatives),
        examples=tuple(value.examples),
        rules=tuple(value.rules),
        steps=tuple(value.steps),
        domain=value.domain,
        modules=tuple(value.modules),
        files=tuple(value.files),
        task=value.task,
        outcome=value.outcome,
        url=value.url,
        tags=tuple(value.tags),
        importance=value.importance,
        standing=optional_choice(checks, f"{field}.standing", value.standing, STANDING, m.Standing.ADOPTED),
        attributes=dict(value.attributes),
    )


def evidence_draft(checks: FieldChecks, value: ledger_pb2.EvidenceDraft) -> EvidenceDraft:
    """Return evidence to register."""
    # Here too: the fingerprint, which is asked for before the domain looks, has no form for what is no number.
    checks.in_range("reliability", value.reliability, 0, 1)
    return EvidenceDraft(
        source_kind=choice(checks, "source_kind", value.source_kind, SOURCE, m.SourceKind.DOCUMENT),
        locator=value.locator,
        source_hash=value.source_hash,
        excerpt=value.excerpt,
        author=value.author,
        extractor=value.extractor,
        reliability=value.reliability,
        source_time=checks.timestamp(value, "source_time"),
    )


def registered_draft(checks: FieldChecks, message: evidence_service_pb2.RegisterEvidenceRequest) -> EvidenceDraft:
    """Return the evidence of a RegisterEvidence."""
    if not checks.present(message, "evidence"):
        return EvidenceDraft(m.SourceKind.DOCUMENT, "")
    return evidence_draft(checks.below("evidence"), message.evidence)


def evidence_inputs(
    checks: FieldChecks, values: Iterable[proposal_pb2.EvidenceInput], project_id: str
) -> tuple[EvidenceInput, ...]:
    """Return the evidence of a proposal."""
    made = []
    for index, value in enumerate(values):
        own = checks.below(f"evidence[{index}]")
        source: str | EvidenceDraft = ""
        match value.WhichOneof("evidence"):
            case "name":
                source = ident(own, "name", value.name, NameKind.EVIDENCE, project_id)
            case "draft":
                source = evidence_draft(own.below("draft"), value.draft)
            case _:
                own.add("evidence", "is required: a name or a draft")
        stance = choice(own, "stance", value.stance, STANCE, m.Stance.CONTEXT)
        made.append(EvidenceInput(source, stance, value.confidence, value.claim))
    return tuple(made)


# --- Mutations --------------------------------------------------------------------------------------------------------


def proposing(
    checks: FieldChecks,
    value: proposal_service_pb2.CreateProposalRequest,
    project_id: str,
    warnings: tuple[str, ...] = (),
) -> Proposing:
    """Return what a proposer asks for; the warnings are for who reviews it."""
    on = branch(checks, value.branch)
    asked = mutation(checks, value, project_id)
    draft = m.Draft(
        project_id=project_id,
        branch=on,
        mutation=asked,
        reason=value.reason,
        expected_heads=_expected_heads(checks, value.expected_heads, project_id),
        observation_id=ident(checks, "observation", value.observation, NameKind.OBSERVATION, project_id, optional=True),
        warnings=warnings,
    )
    return Proposing(draft, evidence_inputs(checks, value.evidence, project_id))


_ROLES: Final = ("target", "source", "replacement", "refined")


def _expected_heads(
    checks: FieldChecks, values: Iterable[proposal_pb2.ExpectedHead], project_id: str
) -> tuple[m.ExpectedHead, ...]:
    made = []
    for index, value in enumerate(values):
        own = checks.below(f"expected_heads[{index}]")
        family_id = ident(own, "family", value.family, NameKind.FAMILY, project_id)
        revision = name(own, "revision", value.revision, NameKind.REVISION, project_id, optional=True)
        if value.revision and revision is not _NOWHERE and revision.ids[0] != family_id:
            own.add("revision", "must be a revision of the family")
        own.must(not value.role or value.role in _ROLES, "role", f"must be one of {', '.join(_ROLES)}, or empty")
        on = branch(own, value.branch)
        made.append(m.ExpectedHead(family_id, on, revision.id, 0, value.role or "target"))
    return tuple(made)


def mutation(outer: FieldChecks, message: proposal_service_pb2.CreateProposalRequest, project_id: str) -> m.Mutation:
    """Return the change that is asked for."""
    which = message.mutation.WhichOneof("kind") if message.HasField("mutation") else None
    if which is None:
        outer.add("mutation", "is required: exactly one kind of change")
        return m.Invalidate("")
    checks = outer.below("mutation").below(which)
    value: Any = getattr(message.mutation, which)
    made: m.Mutation = _BUILDERS[which](checks, value, project_id)
    return made


def _family(checks: FieldChecks, value: Any, project_id: str, field: str = "family") -> str:
    return ident(checks, field, getattr(value, field), NameKind.FAMILY, project_id)


def _create(checks: FieldChecks, value: proposal_pb2.CreateMutation, _project_id: str) -> m.Mutation:
    begins, ends = checks.interval(value, "valid_from", "valid_to")
    return m.Create(
        category=choice(checks, "category", value.category, CATEGORY, m.Category.DESIGN_RULE),
        content=content(checks, value),
        identity_key=value.identity_key,
        valid_from=begins,
        valid_to=ends,
    )


def _create_and_link(checks: FieldChecks, value: proposal_pb2.CreateAndLinkMutation, project_id: str) -> m.Mutation:
    refined = _family(checks, value, project_id, "refines_family")
    if not checks.present(value, "create"):
        return m.Invalidate("")
    create, own = value.create, checks.below("create")
    begins, ends = own.interval(create, "valid_from", "valid_to")
    return m.CreateAndLink(
        category=choice(own, "category", create.category, CATEGORY, m.Category.DESIGN_RULE),
        content=content(own, create),
        refines_family_id=refined,
        rationale=value.rationale,
        identity_key=create.identity_key,
        valid_from=begins,
        valid_to=ends,
    )


def _update(checks: FieldChecks, value: proposal_pb2.UpdateMutation, project_id: str) -> m.Mutation:
    begins, ends = checks.interval(value, "valid_from", "valid_to")
    return m.Update(
        family_id=_family(checks, value, project_id),
        content=content(checks, value),
        valid_from=begins,
        valid_to=ends,
        fields=tuple(value.update_mask.paths),
    )


def _supersede(checks: FieldChecks, value: proposal_pb2.SupersedeMutation, project_id: str) -> m.Mutation:
    begins, ends = checks.interval(value, "valid_from", "valid_to")
    return m.Supersede(_family(checks, value, project_id), content(checks, value), begins, ends)


def _invalidate(checks: FieldChecks, value: proposal_pb2.InvalidateMutation, project_id: str) -> m.Mutation:
    return m.Invalidate(_family(checks, value, project_id), checks.timestamp(value, "effective_from"))


def _set_expiry(checks: FieldChecks, value: proposal_pb2.SetExpiryMutation, project_id: str) -> m.Mutation:
    return m.SetExpiry(_family(checks, value, project_id), checks.timestamp(value, "valid_to"))


def _of_family(checks: FieldChecks, field: str, text: str, family_id: str, project_id: str) -> str:
    revision = name(checks, field, text, NameKind.REVISION, project_id)
    if revision is not _NOWHERE and family_id and revision.ids[0] != family_id:
        checks.add(field, "must be a revision of the family")
    return revision.id


def _cancel(checks: FieldChecks, value: proposal_pb2.CancelScheduleMutation, project_id: str) -> m.Mutation:
    family_id = _family(checks, value, project_id)
    return m.CancelSchedule(family_id, _of_family(checks, "revision", value.revision, family_id, project_id))


def _deprecate(checks: FieldChecks, value: proposal_pb2.DeprecateMutation, project_id: str) -> m.Mutation:
    return m.Deprecate(
        family_id=_family(checks, value, project_id),
        replacement_family_id=_family(checks, value, project_id, "replacement_family"),
        effective_from=checks.timestamp(value, "effective_from"),
        rationale=value.rationale,
    )


def _rollback(checks: FieldChecks, value: proposal_pb2.RollbackMutation, project_id: str) -> m.Mutation:
    family_id = _family(checks, value, project_id)
    wanted = _of_family(checks, "to_revision", value.to_revision, family_id, project_id)
    return m.Rollback(family_id, wanted, checks.timestamp(value, "valid_from"))


def _link(checks: FieldChecks, value: proposal_pb2.LinkMutation, project_id: str) -> m.Mutation:
    return m.Link(
        relation_kind=choice(checks, "kind", value.kind, KIND, m.RelationKind.RELATED_TO),
        source_family_id=_family(checks, value, project_id, "source_family"),
        target_family_id=_family(checks, value, project_id, "target_family"),
        rationale=value.rationale,
        valid_from=checks.timestamp(value, "valid_from"),
    )


def _unlink(checks: FieldChecks, value: proposal_pb2.UnlinkMutation, project_id: str) -> m.Mutation:
    return m.Unlink(ident(checks, "relation", value.relation, NameKind.RELATION, project_id))


_BUILDERS: Final[Mapping[str, Any]] = {
    "create": _create,
    "create_and_link": _create_and_link,
    "update": _update,
    "supersede": _supersede,
    "invalidate": _invalidate,
    "set_expiry": _set_expiry,
    "cancel_schedule": _cancel,
    "deprecate": _deprecate,
    "rollback": _rollback,
    "link": _link,
    "unlink": _unlink,
}


# --- Policy -----------------------------------------------------------------------------------------------------------


def policy(checks: FieldChecks, value: admin_service_pb2.Policy) -> m.Policy:
    """Return a policy; its version is the ledger's to give."""
    categories: dict[m.Category, m.CategoryPolicy] = {}
    for index, item in enumerate(value.categories):
        own = checks.below(f"categories[{index}]")
        category = choice(own, "category", item.category, CATEGORY, m.Category.DESIGN_RULE)
        own.must(category not in categories, "category", "is named twice")
        categories[category] = _category_policy(own, item)
    rules = tuple(_approval_rule(checks.below(f"approval_rules[{i}]"), r) for i, r in enumerate(value.approval_rules))
    return m.Policy(version=0, categories=categories, auto_approvals=rules)


def _category_policy(checks: FieldChecks, value: admin_service_pb2.CategoryPolicy) -> m.CategoryPolicy:
    known_fields = ledger_pb2.Content.DESCRIPTOR.fields_by_name
    required = []
    for index, requirement in enumerate(value.required):
        field = f"required[{index}].any_of"
        checks.must(bool(requirement.any_of), field, "names no field")
        for wanted in requirement.any_of:
            checks.must(wanted in known_fields, field, "names a field that Content does not have")
        required.append(tuple(requirement.any_of))
    lifetime = duration(checks, value, "approval_lifetime")
    default = m.CategoryPolicy()
    checks.must(value.approvals_needed in {0, 1, 2}, "approvals_needed", "must be 1 or 2, or 0 for 1")
    return m.CategoryPolicy(
        approvals_needed=value.approvals_needed or 1,
        evidence=m.EvidenceRule(
            min_independent_sources=value.min_sources,
            source_kinds=choices(checks, "source_kinds", value.source_kinds, SOURCE),
            must_be_verified=value.verified_only,
        ),
        contradiction=optional_choice(
            checks, "contradiction", value.contradiction, CONTRADICTION, m.ContradictionRule.WARN
        ),
        default_validity=duration(checks, value, "default_validity"),
        approval_lifetime=default.approval_lifetime if lifetime is None else lifetime,
        required_fields=tuple(required),
    )


def _approval_rule(checks: FieldChecks, value: admin_service_pb2.ApprovalRule) -> m.AutoApprovalRule:
    kinds = set()
    for index, text in enumerate(value.mutations):
        kind = _MUTATIONS.get(text)
        if kind is None:
            checks.add(f"mutations[{index}]", f"must be one of {', '.join(sorted(_MUTATIONS))}")
        else:
            kinds.add(kind)
    return m.AutoApprovalRule(
        rule_id=value.id,
        issuer=value.issuer,
        subject=value.subject,
        mutation_kinds=frozenset(kinds),
        categories=choices(checks, "categories", value.categories, CATEGORY),
        evidence=m.EvidenceRule(
            min_independent_sources=1,
            must_be_verified=value.verified_only,
            extractors=frozenset(value.extractors),
        ),
    )


def duration(checks: FieldChecks, message: Message, field: str) -> timedelta | None:
    """Return a duration, None when it is left out."""
    if not message.HasField(field):
        return None
    value = getattr(message, field)
    try:
        found: timedelta = value.ToTimedelta()
    except (ValueError, OverflowError):
        checks.add(field, "is out of range")
        return None
    return found


# --- Observations -----------------------------------------------------------------------------------------------------


def observation(
    checks: FieldChecks, value: observation_service_pb2.Observation, project_id: str, who: m.Principal
) -> m.Observation:
    """Return an observation to record."""
    if checks.required("locator", value.locator):
        checks.length("locator", value.locator, at_most=2_000)
    checks.must(_is_hash(value.source_hash), "source_hash", _HASH_RULE)
    checks.length("title", value.title, at_most=2_000)
    checks.length("author", value.author, at_most=2_000)
    return m.Observation(
        observation_id="",
        project_id=project_id,
        source_kind=choice(checks, "source_kind", value.source_kind, SOURCE, m.SourceKind.DOCUMENT),
        locator=value.locator,
        source_hash=value.source_hash,
        title=value.title,
        text=value.text,
        author=value.author,
        source_time=checks.timestamp(value, "occur_time"),
        attributes=dict(value.attributes),
        recorded_by=who,
        recorded_at=BEGINNING,
    )


def admission(
    checks: FieldChecks, value: observation_service_pb2.AdmissionRecord, project_id: str, who: m.Principal
) -> m.Admission:
    """Return an admission to record."""
    observation_id = ident(checks, "observation", value.observation, NameKind.OBSERVATION, project_id)
    checks.present(value, "admission")
    own, said = checks.below("admission"), value.admission
    return m.Admission(
        observation_id=observation_id,
        number=0,
        outcome=choice(own, "outcome", said.outcome, OUTCOME, m.AdmissionOutcome.FAILED),
        reasons=tuple(said.reasons),
        proposal_ids=tuple(
            ident(own, f"proposals[{i}]", text, NameKind.PROPOSAL, project_id) for i, text in enumerate(said.proposals)
        ),
        extractor=said.extractor,
        recorded_by=who,
        recorded_at=BEGINNING,
        duplicate_of=ident(own, "duplicate_of", said.duplicate_of, NameKind.FAMILY, project_id, optional=True),
        retryable=said.retryable,
    )


def signal(
    checks: FieldChecks,
    value: observation_service_pb2.Signal,
    project_id: str,
    who: m.Principal,
    now: datetime,
) -> m.Signal:
    """Return a signal to record; one without a time happened now."""
    return m.Signal(
        project_id=project_id,
        family_id=ident(checks, "family", value.family, NameKind.FAMILY, project_id),
        kind=choice(checks, "kind", value.kind, SIGNAL, m.SignalKind.SHOWN),
        happened_at=checks.timestamp(value, "time") or now,
        recorded_by=who,
        recorded_at=BEGINNING,
    )


def _is_hash(text: str) -> bool:
    prefix, _, digest = text.partition(":")
    return prefix == "sha256" and len(digest) == 64 and all(c in "0123456789abcdef" for c in digest)
