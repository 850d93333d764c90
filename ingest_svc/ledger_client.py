"""What ingest needs of the ledger: a port in ingest's own words, and its adapter over gRPC.

Every call acts with the credential of the caller that is passed on; ingest has no authority of its own.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Final, Protocol, TypeVar

import grpc.aio
from decisionssearch.ledger.v1 import (
    admin_service_pb2,
    admin_service_pb2_grpc,
    ledger_pb2,
    ledger_service_pb2,
    ledger_service_pb2_grpc,
    observation_service_pb2,
    observation_service_pb2_grpc,
    proposal_pb2,
    proposal_service_pb2,
    proposal_service_pb2_grpc,
)
from google.protobuf.message import Message

from ingest_svc import translate
from ingest_svc.domain import (
    Admission,
    Candidate,
    EvidenceDraft,
    EvidenceReference,
    OutcomeKind,
    RelationKind,
    Similar,
    Stored,
)
from ingest_svc.extractor import CleanObservation
from ingest_svc.gates import EvidencePolicy, Rules
from service_kit.clock import from_timestamp
from service_kit.errors import DomainError, from_item_error, from_rpc_error
from service_kit.ids import new_id
from service_kit.sanitising.sanitise import Sanitised, clip

MAX_BATCH: Final = 200
MAX_BATCH_BYTES: Final = 2_000_000
"""A batch stays well below the 4 MiB that a server accepts."""
MAX_OBSERVATION_CHARS: Final = 250_000
"""How much of a text is kept with its observation; the hash covers all of it, and ``text_cut`` says so."""
BULK_TIMEOUT_SECONDS: Final = 60.0

T = TypeVar("T")
M = TypeVar("M", bound=Message)


@dataclass(frozen=True, slots=True)
class Recorded:
    """An observation as the ledger holds it."""

    name: str
    created: bool
    admission: Admission | None
    """What became of it earlier, when it was there already."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Publication:
    """A proposal to publish, update or end a memory."""

    request_id: str
    candidate: Candidate
    stored: Stored | None
    """None for a new family."""
    takes_effect: datetime | None
    refines: Similar | None = None
    """For a new family: the one that it refines."""
    supersedes: bool = False
    """The decision itself changed: what depends on it is flagged for review."""
    reason: str = ""
    observation: str = ""
    registered: tuple[EvidenceReference, ...] = ()
    """Evidence that the ledger holds already."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Linking:
    """A proposal to assert a relation between two stored families.

    A DEPRECATES whose target still holds also ends it: nothing may be replaced and in force at once.
    """

    request_id: str
    kind: RelationKind
    source_family: str
    target_family: str
    rationale: str
    takes_effect: datetime | None
    ends_target: bool
    evidence: tuple[EvidenceDraft, ...]
    reason: str
    observation: str


@dataclass(frozen=True, slots=True)
class Proposed:
    """A proposal as the ledger holds it."""

    name: str
    approved: bool
    """Whether it may be applied: a rule of the project's policy approved it."""
    family: str
    applied: bool
    message: proposal_pb2.Proposal
    """As received, for a response that carries it on."""


@dataclass(frozen=True, slots=True)
class HeadSummary:
    """A family's head as far as ingest looks at it."""

    family: str
    head: str
    title: str
    active: bool


@dataclass(frozen=True, slots=True)
class AdmissionRecord:
    """An admission of one observation, to record."""

    observation: str
    admission: Admission


class LedgerClient(Protocol):
    """What ingest needs of the ledger. Failures of a whole call are raised as ``DomainError``."""

    async def rules(self, project: str) -> Rules:
        """Return the policy of a project as far as the gates read it."""

    async def record(
        self, project: str, observations: Sequence[CleanObservation], *, request_id: str = ""
    ) -> Sequence[Recorded | DomainError]:
        """Record observations; the same locator and hash is the same observation.

        Under a request id of the caller's the answer is that of the first time, and other content is refused.
        """

    async def stored(self, project: str, branch: str, keys: Sequence[str]) -> Mapping[str, Stored]:
        """Return what is published under identity keys; missing ones are left out."""

    async def heads(self, project: str, branch: str, families: Sequence[str]) -> Mapping[str, HeadSummary]:
        """Return heads of families; missing ones are left out."""

    async def propose(
        self, project: str, branch: str, changes: Sequence[Publication | Linking]
    ) -> Sequence[Proposed | DomainError]:
        """Propose, each by itself."""

    async def apply(self, project: str, proposals: Sequence[str]) -> Sequence[DomainError | None]:
        """Apply approved proposals in order, each by itself."""

    async def proposal(self, name: str) -> Proposed:
        """Return a proposal."""

    async def admit(self, project: str, records: Sequence[AdmissionRecord]) -> None:
        """Record what became of observations."""


class GrpcLedgerClient:
    """The port over gRPC. Closing the channel is its maker's task."""

    def __init__(self, channel: grpc.aio.Channel) -> None:
        self._ledger = ledger_service_pb2_grpc.LedgerServiceStub(channel)
        self._proposals = proposal_service_pb2_grpc.ProposalServiceStub(channel)
        self._observations = observation_service_pb2_grpc.ObservationServiceStub(channel)
        self._admin = admin_service_pb2_grpc.AdminServiceStub(channel)

    async def rules(self, project: str) -> Rules:
        """Return the policy of a project as far as the gates read it."""
        try:
            response = await self._admin.GetProject(admin_service_pb2.GetProjectRequest(name=_project(project)))
        except grpc.aio.AioRpcError as error:
            raise from_rpc_error(error, "ledger") from None
        return rules_of(response.project.policy)

    async def record(
        self, project: str, observations: Sequence[CleanObservation], *, request_id: str = ""
    ) -> Sequence[Recorded | DomainError]:
        """Record observations."""
        found: list[Recorded | DomainError] = []
        for part in _parts([_observation(clean) for clean in observations]):
            request = observation_service_pb2.RecordObservationsRequest(
                project=_project(project), request_id=request_id or new_id(), observations=part
            )
            try:
                response = await self._observations.RecordObservations(request, timeout=BULK_TIMEOUT_SECONDS)
            except grpc.aio.AioRpcError as error:
                raise from_rpc_error(error, "ledger") from None
            found += [_recorded(result) for result in response.results]
        return found

    async def stored(self, project: str, branch: str, keys: Sequence[str]) -> Mapping[str, Stored]:
        """Return what is published under identity keys, newest revision, also when it lies in the future."""
        asked = list(dict.fromkeys(key for key in keys if key))
        found: dict[str, Stored] = {}
        for part in _slices(asked):
            heads = await self._heads(project, branch, keys=part, view=ledger_service_pb2.HEAD_VIEW_BASIC)
            by_key: dict[str, ledger_pb2.Head] = {}
            for head in heads:
                for key in (head.family.identity_key, *head.family.aliases):
                    by_key[key] = head
            found.update({key: _stored(key, by_key[key]) for key in part if key in by_key})
        return found

    async def heads(self, project: str, branch: str, families: Sequence[str]) -> Mapping[str, HeadSummary]:
        """Return heads of families."""
        found: dict[str, HeadSummary] = {}
        for part in _slices(list(dict.fromkeys(families))):
            for head in await self._heads(project, branch, families=part, view=ledger_service_pb2.HEAD_VIEW_BASIC):
                found[head.family.name] = HeadSummary(
                    family=head.family.name,
                    head=head.head_revision,
                    title=head.revision.content.title,
                    active=head.state == ledger_pb2.STATE_ACTIVE,
                )
        return found

    async def _heads(
        self,
        project: str,
        branch: str,
        *,
        keys: Sequence[str] = (),
        families: Sequence[str] = (),
        view: ledger_service_pb2.HeadView.ValueType,
    ) -> Sequence[ledger_pb2.Head]:
        if not keys and not families:
            return ()
        request = ledger_service_pb2.BatchGetHeadsRequest(
            project=_project(project), branch=branch, identity_keys=keys, families=families, view=view
        )
        try:
            response = await self._ledger.BatchGetHeads(request, timeout=BULK_TIMEOUT_SECONDS)
            missing = list(response.missing_identity_keys)
            heads = list(response.heads)
            if missing:
                # What is published with a start in the future is not there yet at this moment, and exists all the same.
                later = ledger_service_pb2.BatchGetHeadsRequest(
                    project=_project(project), branch=branch, identity_keys=missing, view=view
                )
                later.valid_at.FromJsonString("9999-12-31T00:00:00Z")
                heads += (await self._ledger.BatchGetHeads(later, timeout=BULK_TIMEOUT_SECONDS)).heads
        except grpc.aio.AioRpcError as error:
            raise from_rpc_error(error, "ledger") from None
        return heads

    async def propose(
        self, project: str, branch: str, changes: Sequence[Publication | Linking]
    ) -> Sequence[Proposed | DomainError]:
        """Propose, each by itself."""
        found: list[Proposed | DomainError] = []
        for part in _parts([_proposal_request(project, branch, change) for change in changes]):
            request = proposal_service_pb2.BatchCreateProposalsRequest(project=_project(project), requests=part)
            try:
                response = await self._proposals.BatchCreateProposals(request, timeout=BULK_TIMEOUT_SECONDS)
            except grpc.aio.AioRpcError as error:
                raise from_rpc_error(error, "ledger") from None
            found += [
                _proposed(result.proposal) if result.HasField("proposal") else from_item_error(result.error)
                for result in response.results
            ]
        return found

    async def apply(self, project: str, proposals: Sequence[str]) -> Sequence[DomainError | None]:
        """Apply approved proposals in order."""
        found: list[DomainError | None] = []
        for part in _slices(list(proposals)):
            request = proposal_service_pb2.BatchApplyProposalsRequest(
                project=_project(project),
                brief=True,
                requests=[
                    # One proposal is applied once, so its own id is the id of the request.
                    proposal_service_pb2.ApplyProposalRequest(
                        proposal=name, request_id=f"ingest/apply/{name.rpartition('/')[2]}"
                    )
                    for name in part
                ],
            )
            try:
                response = await self._proposals.BatchApplyProposals(request, timeout=BULK_TIMEOUT_SECONDS)
            except grpc.aio.AioRpcError as error:
                raise from_rpc_error(error, "ledger") from None
            found += [
                from_item_error(result.error) if result.HasField("error") else None for result in response.results
            ]
        return found

    async def proposal(self, name: str) -> Proposed:
        """Return a proposal."""
        try:
            response = await self._proposals.GetProposal(proposal_service_pb2.GetProposalRequest(name=name))
        except grpc.aio.AioRpcError as error:
            raise from_rpc_error(error, "ledger") from None
        return _proposed(response.proposal)

    async def admit(self, project: str, records: Sequence[AdmissionRecord]) -> None:
        """Record what became of observations."""
        for part in _parts([_admission_record(record) for record in records]):
            request = observation_service_pb2.RecordAdmissionsRequest(
                project=_project(project), request_id=new_id(), admissions=part
            )
            try:
                await self._observations.RecordAdmissions(request, timeout=BULK_TIMEOUT_SECONDS)
            except grpc.aio.AioRpcError as error:
                raise from_rpc_error(error, "ledger") from None


def rules_of(policy: admin_service_pb2.Policy) -> Rules:
    """Return a project's policy as far as the gates read it."""
    required = {}
    evidence = {}
    for category in policy.categories:
        found = translate.category_from_proto(category.category)
        if found is None:
            continue
        required[found] = tuple(tuple(requirement.any_of) for requirement in category.required)
        kinds = [translate.source_kind_from_proto(kind) for kind in category.source_kinds]
        evidence[found] = EvidencePolicy(
            min_sources=category.min_sources, kinds=frozenset(kind for kind in kinds if kind is not None)
        )
    return Rules(required=required, evidence=evidence)


def _project(project: str) -> str:
    return f"projects/{project}"


def _observation(clean: CleanObservation) -> observation_service_pb2.Observation:
    observation = clean.observation
    attributes = dict(observation.attributes)
    text = clip(Sanitised(observation.text), MAX_OBSERVATION_CHARS)
    if len(text) < len(observation.text):
        attributes["text_cut"] = f"{MAX_OBSERVATION_CHARS} of {len(observation.text)} characters are kept"
    message = observation_service_pb2.Observation(
        source_kind=translate.source_kind_to_proto(observation.kind),
        locator=observation.locator,
        source_hash=clean.source_hash,
        title=observation.title,
        text=text,
        author=observation.author,
        attributes=attributes,
    )
    translate.set_time(message.occur_time, observation.occurred_at)
    return message


def _recorded(result: observation_service_pb2.RecordObservationResult) -> Recorded | DomainError:
    if result.HasField("error"):
        return from_item_error(result.error)
    observation = result.observation
    admission = None
    if observation.HasField("admission"):
        known = observation.admission
        outcome = observation_service_pb2.AdmissionOutcome.Name(known.outcome).removeprefix("ADMISSION_OUTCOME_")
        admission = Admission(
            kind=OutcomeKind(outcome),
            reasons=tuple(known.reasons),
            proposals=tuple(known.proposals),
            duplicate_of=known.duplicate_of,
            extractor=known.extractor,
            retryable=known.retryable,
        )
    return Recorded(observation.name, result.created, admission)


def _stored(key: str, head: ledger_pb2.Head) -> Stored:
    category = translate.category_from_proto(head.family.category)
    if category is None:
        raise ValueError(f"the ledger answered the unknown category {head.family.category}")
    return Stored(
        family=head.family.name,
        head=head.head_revision,
        identity_key=key,
        category=category,
        content=translate.content_from_proto(head.revision.content),
        valid_from=from_timestamp(head.valid_from) if head.HasField("valid_from") else None,
        valid_to=from_timestamp(head.valid_to) if head.HasField("valid_to") else None,
        ended=head.state in {ledger_pb2.STATE_INVALIDATED, ledger_pb2.STATE_EXPIRED}
        or head.end_kind == ledger_pb2.END_KIND_DEPRECATED,
    )


def _proposal_request(
    project: str, branch: str, change: Publication | Linking
) -> proposal_service_pb2.CreateProposalRequest:
    request = proposal_service_pb2.CreateProposalRequest(
        project=_project(project),
        request_id=change.request_id,
        branch=branch,
        reason=(change.reason or "ingested")[:2_000],
        observation=change.observation,
    )
    if isinstance(change, Linking):
        if change.ends_target:
            ended = request.mutation.deprecate
            ended.family, ended.replacement_family = change.target_family, change.source_family
            ended.rationale = change.rationale
            translate.set_time(ended.effective_from, change.takes_effect)
        else:
            link = request.mutation.link
            link.kind = translate.relation_kind_to_proto(change.kind)
            link.source_family, link.target_family = change.source_family, change.target_family
            link.rationale = change.rationale
            translate.set_time(link.valid_from, change.takes_effect)
        request.evidence.extend(translate.evidence_to_proto(evidence) for evidence in change.evidence)
        return request
    _publish(request, change)
    request.evidence.extend(
        translate.evidence_to_proto(evidence, change.candidate.observed_at) for evidence in change.candidate.evidence
    )
    request.evidence.extend(translate.reference_to_proto(reference) for reference in change.registered)
    return request


def _publish(request: proposal_service_pb2.CreateProposalRequest, change: Publication) -> None:
    candidate, stored = change.candidate, change.stored
    mutation = request.mutation
    if stored is None:
        create = mutation.create_and_link.create if change.refines else mutation.create
        create.identity_key = candidate.identity_key
        create.category = translate.category_to_proto(candidate.category)
        create.content.CopyFrom(translate.content_to_proto(candidate.content))
        translate.set_time(create.valid_from, change.takes_effect)
        if change.refines is not None:
            mutation.create_and_link.refines_family = change.refines.family
            mutation.create_and_link.rationale = f"similarity {change.refines.score:.2f} to {change.refines.title}"[
                :500
            ]
            request.expected_heads.add(
                family=change.refines.family, branch=request.branch, revision=change.refines.head, role="refined"
            )
        return
    if translate.ends(candidate):
        mutation.invalidate.family = stored.family
        translate.set_time(mutation.invalidate.effective_from, change.takes_effect)
    else:
        target = mutation.supersede if change.supersedes else mutation.update
        target.family = stored.family
        target.content.CopyFrom(translate.content_to_proto(candidate.content))
        translate.set_time(target.valid_from, change.takes_effect)
    request.expected_heads.add(family=stored.family, branch=request.branch, revision=stored.head, role="target")


def _proposed(proposal: proposal_pb2.Proposal) -> Proposed:
    return Proposed(
        name=proposal.name,
        approved=proposal.status == proposal_pb2.PROPOSAL_STATUS_APPROVED,
        family=proposal.family,
        applied=proposal.status == proposal_pb2.PROPOSAL_STATUS_APPLIED,
        message=proposal,
    )


def _admission_record(record: AdmissionRecord) -> observation_service_pb2.AdmissionRecord:
    admission = record.admission
    return observation_service_pb2.AdmissionRecord(
        observation=record.observation,
        admission=observation_service_pb2.Admission(
            outcome=translate.outcome_to_proto(admission.kind),
            reasons=[reason[:1_000] for reason in admission.reasons[:50]],
            proposals=admission.proposals,
            duplicate_of=admission.duplicate_of,
            extractor=admission.extractor,
            retryable=admission.retryable,
        ),
    )


def _slices(items: Sequence[T]) -> Iterable[Sequence[T]]:
    for start in range(0, len(items), MAX_BATCH):
        yield items[start : start + MAX_BATCH]


def _parts(messages: Sequence[M]) -> Iterable[Sequence[M]]:
    """Parts of a batch that are within its number and bytes."""
    part: list[M] = []
    size = 0
    for message in messages:
        bytes_of_it = message.ByteSize()
        if part and (len(part) >= MAX_BATCH or size + bytes_of_it > MAX_BATCH_BYTES):
            yield part
            part, size = [], 0
        part.append(message)
        size += bytes_of_it
    if part:
        yield part
