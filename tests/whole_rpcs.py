"""Every RPC of every service, found in the contracts themselves, each with a request that works.

Tests that go over all RPCs take them from here. An RPC that the contracts gain is found at once, and has no request.
"""

from __future__ import annotations

import importlib
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from decisionssearch.index.v1 import index_service_pb2 as index
from decisionssearch.ingest.v1 import ingest_service_pb2 as ingest
from decisionssearch.ledger.v1 import (
    admin_service_pb2 as admin,
)
from decisionssearch.ledger.v1 import (
    evidence_service_pb2 as evidence,
)
from decisionssearch.ledger.v1 import (
    ledger_pb2,
    proposal_pb2,
)
from decisionssearch.ledger.v1 import (
    ledger_service_pb2 as ledger,
)
from decisionssearch.ledger.v1 import (
    observation_service_pb2 as observations,
)
from decisionssearch.ledger.v1 import (
    outbox_service_pb2 as outbox,
)
from decisionssearch.ledger.v1 import (
    proposal_service_pb2 as proposals,
)
from decisionssearch.retrieval.v1 import retrieval_service_pb2 as retrieval
from google.protobuf.descriptor import MethodDescriptor
from google.protobuf.duration_pb2 import Duration
from google.protobuf.message import Message

from service_kit.ids import new_id
from tests.ledger_stack import create_rule, evidence_input, supersede
from tests.whole_stack import AllStubs, Whole, until

PROTO: Final = Path(__file__).resolve().parents[1] / "proto"

STUBS: Final[Mapping[str, str]] = {
    "LedgerService": "ledger",
    "ProposalService": "proposals",
    "EvidenceService": "evidence",
    "ObservationService": "observations",
    "OutboxService": "outbox",
    "AdminService": "admin",
    "IndexService": "index",
    "RetrievalService": "retrieval",
    "IngestService": "ingest",
}
"""The attribute of the stubs that talks to each service."""


def methods() -> dict[str, MethodDescriptor]:
    """Every method of every service in ``proto/``, by "Service.Method"."""
    found: dict[str, MethodDescriptor] = {}
    for file in sorted(PROTO.glob("decisionssearch/**/*.proto")):
        module = ".".join(file.relative_to(PROTO).with_suffix("").parts) + "_pb2"
        for service in importlib.import_module(module).DESCRIPTOR.services_by_name.values():
            found |= {f"{service.name}.{method.name}": method for method in service.methods}
    return found


METHODS: Final = methods()


@dataclass(slots=True)
class Home:
    """A project with one of everything in it, and who may prepare more."""

    project_id: str
    proposer: str
    reviewer: str
    admin: str
    family: str = ""
    other: str = ""
    revision: str = ""
    second: str = ""
    relation: str = ""
    evidence: str = ""
    observation: str = ""
    proposal: str = ""
    """Pending; nobody decides it."""
    identity_key: str = ""

    @property
    def project(self) -> str:
        """Its name."""
        return f"projects/{self.project_id}"


async def propose(whole: Whole, home: Home, mutation: Any, *, who: str = "", **more: Any) -> proposal_pb2.Proposal:
    """Propose."""
    fields: dict[str, Any] = {
        "project": home.project,
        "request_id": new_id(),
        "mutation": mutation,
        "reason": "because",
        "evidence": [evidence_input()],
        **more,
    }
    request = proposals.CreateProposalRequest(**fields)
    made: proposal_pb2.Proposal = (await whole.as_(who or home.proposer).proposals.CreateProposal(request)).proposal
    return made


async def approve(whole: Whole, home: Home, proposal: proposal_pb2.Proposal, *, who: str = "") -> proposal_pb2.Approval:
    """Approve what a proposal shows."""
    request = proposals.ApproveProposalRequest(
        proposal=proposal.name, request_id=new_id(), preview_hash=proposal.preview_hash
    )
    made: proposal_pb2.Approval = (await whole.as_(who or home.reviewer).proposals.ApproveProposal(request)).approval
    return made


async def apply(whole: Whole, home: Home, proposal: proposal_pb2.Proposal) -> proposals.ApplyProposalResponse:
    """Apply."""
    request = proposals.ApplyProposalRequest(proposal=proposal.name, request_id=new_id())
    made: proposals.ApplyProposalResponse = await whole.as_(home.proposer).proposals.ApplyProposal(request)
    return made


async def publish(whole: Whole, home: Home, mutation: Any, **more: Any) -> proposals.ApplyProposalResponse:
    """Propose, approve, apply."""
    proposal = await propose(whole, home, mutation, **more)
    await approve(whole, home, proposal)
    return await apply(whole, home, proposal)


async def furnish(whole: Whole, home: Home, word: str = "") -> Home:
    """Make one of everything in a project; a word is in every text of it."""
    mark = f" {word}" if word else ""
    home.identity_key = f"adr/{word or '0001'}"
    inputs = [evidence_input(f"docs/{word or 'x'}.md")]
    first = await publish(
        whole, home, create_rule(f"Invoices are immutable{mark}", key=home.identity_key), evidence=inputs
    )
    home.family, home.revision = first.head.family.name, first.head.revision.name
    other = await publish(whole, home, create_rule(f"Refunds take ten days{mark}"), evidence=inputs)
    home.other = other.head.family.name
    link = proposal_pb2.LinkMutation(
        kind=ledger_pb2.RELATION_KIND_DEPENDS_ON,
        source_family=home.other,
        target_family=home.family,
        rationale=f"rests on it{mark}",
    )
    home.relation = (await publish(whole, home, proposal_pb2.Mutation(link=link))).relation.name
    second = await publish(whole, home, supersede(home.family, f"Invoices are kept for ten years{mark}"))
    home.second = second.head.revision.name
    draft = evidence_input(f"docs/registered{mark}.md").draft
    draft.excerpt = f"We decided so{mark}."
    registered = await whole.as_(home.proposer).evidence.RegisterEvidence(
        evidence.RegisterEvidenceRequest(project=home.project, request_id=new_id(), evidence=draft)
    )
    home.evidence = registered.evidence.name
    recorded = await whole.as_(home.proposer).observations.RecordObservations(
        observations_of(home, locator=f"docs/{word or 'observed'}.md", text=f"We decided{mark}.")
    )
    home.observation = recorded.results[0].observation.name
    home.proposal = (await propose(whole, home, supersede(home.other, f"Refunds take five days{mark}"))).name
    return home


def observations_of(home: Home, *, locator: str, text: str = "so") -> observations.RecordObservationsRequest:
    """Return the request that records one observation."""
    one = observations.Observation(
        source_kind=ledger_pb2.SOURCE_KIND_ADR, locator=locator, source_hash=f"sha256:{'a' * 64}", text=text
    )
    return observations.RecordObservationsRequest(project=home.project, request_id=new_id(), observations=[one])


# --- Requests ---------------------------------------------------------------------------------------------------------

Build = Callable[[Whole, Home], Awaitable[Any]]


def _now(build: Callable[[Home], Message]) -> Build:
    """A request that needs nothing prepared."""

    async def made(whole: Whole, home: Home) -> Message:
        del whole
        return build(home)

    return made


def _project(kind: Any, **more: Any) -> Build:
    return _now(lambda home: kind(project=home.project, **more))


def _proposal(home: Home) -> proposals.CreateProposalRequest:
    return proposals.CreateProposalRequest(
        project=home.project,
        request_id=new_id(),
        mutation=create_rule("Parcels are weighed twice"),
        evidence=[evidence_input("docs/new.md")],
        reason="because",
    )


async def _approval(whole: Whole, home: Home) -> proposals.ApproveProposalRequest:
    made = await propose(whole, home, supersede(home.other, "Refunds take three days"))
    return proposals.ApproveProposalRequest(proposal=made.name, request_id=new_id(), preview_hash=made.preview_hash)


async def _approvals(whole: Whole, home: Home) -> Message:
    return proposals.BatchApproveProposalsRequest(project=home.project, requests=[await _approval(whole, home)])


async def _revocation(whole: Whole, home: Home) -> Message:
    made = await propose(whole, home, supersede(home.other, "Refunds take four days"))
    approval = await approve(whole, home, made)
    return proposals.RevokeApprovalRequest(approval=approval.name, request_id=new_id(), reason="mistaken")


async def _rejection(whole: Whole, home: Home) -> Message:
    made = await propose(whole, home, supersede(home.other, "Refunds take six days"))
    return proposals.RejectProposalRequest(proposal=made.name, request_id=new_id(), comment="no")


async def _withdrawal(whole: Whole, home: Home) -> Message:
    made = await propose(whole, home, supersede(home.other, "Refunds take seven days"))
    return proposals.WithdrawProposalRequest(proposal=made.name, request_id=new_id())


async def _application(whole: Whole, home: Home) -> proposals.ApplyProposalRequest:
    made = await propose(whole, home, create_rule(f"Rule {new_id()}"))
    await approve(whole, home, made)
    return proposals.ApplyProposalRequest(proposal=made.name, request_id=new_id())


async def _applications(whole: Whole, home: Home) -> Message:
    return proposals.BatchApplyProposalsRequest(project=home.project, requests=[await _application(whole, home)])


async def _policy(whole: Whole, home: Home) -> Message:
    found = await whole.as_(home.admin).admin.GetProject(admin.GetProjectRequest(name=home.project))
    version = found.project.policy.version
    return admin.UpdatePolicyRequest(
        project=home.project, request_id=new_id(), expected_version=version, policy=admin.Policy()
    )


def _admissions(home: Home) -> Message:
    record = observations.AdmissionRecord(
        observation=home.observation,
        admission=observations.Admission(outcome=observations.ADMISSION_OUTCOME_NO_MEMORY, reasons=["nothing in it"]),
    )
    return observations.RecordAdmissionsRequest(project=home.project, request_id=new_id(), admissions=[record])


def _signals(home: Home) -> Message:
    signal = observations.Signal(family=home.family, kind=observations.SIGNAL_KIND_USED)
    return observations.RecordSignalsRequest(project=home.project, request_id=new_id(), signals=[signal])


async def _known_rebuild(whole: Whole, home: Home) -> Message:
    async def idle() -> bool:
        return not await whole.rebuilding()

    await until(idle, 120)
    request = index.RebuildIndexRequest(project=home.project, request_id="one rebuild of the tests")
    run = (await whole.as_(home.admin).index.RebuildIndex(request)).rebuild
    return index.GetRebuildRequest(project=home.project, name=run.name)


def _search(home: Home) -> retrieval.SearchRequest:
    return retrieval.SearchRequest(project=home.project, text="How long are invoices kept?")


def candidate(title: str = "Parcels are weighed twice") -> ingest.CandidateInput:
    """Return a memory that the gates let through."""
    return ingest.CandidateInput(
        category=ledger_pb2.CATEGORY_DESIGN_RULE,
        content=ledger_pb2.Content(
            title=title,
            summary="Every parcel is weighed when it comes in and when it goes out; a difference is a claim.",
            details="The two weights are kept with the parcel for a year.",
            rationale="Half of the claims of last year were about parts that had gone missing on the way.",
            importance=0.7,
        ),
        evidence=[evidence_input("docs/weights.md")],
    )


def _observation(home: Home) -> ingest.IngestObservationsRequest:
    return ingest.IngestObservationsRequest(
        project=home.project,
        sequence=1,
        observation=ingest.RawObservation(
            source_kind=ledger_pb2.SOURCE_KIND_ADR,
            locator="docs/adr/0042-use-queues.md",
            text="# 42. Use queues between services\n\nStatus: Accepted\n\n## Decision\n\nWe use queues.\n",
        ),
    )


REQUESTS: Final[Mapping[str, Build]] = {
    "LedgerService.GetFamily": _now(lambda h: ledger.GetFamilyRequest(name=h.family)),
    "LedgerService.ListFamilies": _project(ledger.ListFamiliesRequest),
    "LedgerService.GetRevision": _now(lambda h: ledger.GetRevisionRequest(name=h.revision)),
    "LedgerService.ListRevisions": _now(lambda h: ledger.ListRevisionsRequest(family=h.family)),
    "LedgerService.GetHead": _now(lambda h: ledger.GetHeadRequest(family=h.family)),
    "LedgerService.QueryHeads": _project(ledger.QueryHeadsRequest),
    "LedgerService.BatchGetHeads": _now(
        lambda h: ledger.BatchGetHeadsRequest(project=h.project, families=[h.family], identity_keys=[h.identity_key])
    ),
    "LedgerService.DiffRevisions": _now(
        lambda h: ledger.DiffRevisionsRequest(from_revision=h.revision, to_revision=h.second)
    ),
    "LedgerService.Blame": _now(lambda h: ledger.BlameRequest(family=h.family)),
    "LedgerService.GetLineage": _now(lambda h: ledger.GetLineageRequest(family=h.family)),
    "LedgerService.ListRelations": _project(ledger.ListRelationsRequest),
    "LedgerService.ExpandRelations": _now(
        lambda h: ledger.ExpandRelationsRequest(
            project=h.project, seeds=[ledger.Activation(family=h.family, activation=1.0)]
        )
    ),
    "LedgerService.ListChanges": _project(ledger.ListChangesRequest),
    "LedgerService.WatchChanges": _project(ledger.WatchChangesRequest),
    "LedgerService.ListProjections": _project(ledger.ListProjectionsRequest),
    "LedgerService.BatchGetProjections": _now(
        lambda h: ledger.BatchGetProjectionsRequest(project=h.project, keys=[ledger.ProjectionKey(family=h.family)])
    ),
    "ProposalService.CreateProposal": _now(_proposal),
    "ProposalService.BatchCreateProposals": _now(
        lambda h: proposals.BatchCreateProposalsRequest(project=h.project, requests=[_proposal(h)])
    ),
    "ProposalService.GetProposal": _now(lambda h: proposals.GetProposalRequest(name=h.proposal)),
    "ProposalService.ListProposals": _project(proposals.ListProposalsRequest),
    "ProposalService.ApproveProposal": _approval,
    "ProposalService.BatchApproveProposals": _approvals,
    "ProposalService.RevokeApproval": _revocation,
    "ProposalService.RejectProposal": _rejection,
    "ProposalService.WithdrawProposal": _withdrawal,
    "ProposalService.ApplyProposal": _application,
    "ProposalService.BatchApplyProposals": _applications,
    "EvidenceService.RegisterEvidence": _now(
        lambda h: evidence.RegisterEvidenceRequest(
            project=h.project, request_id=new_id(), evidence=evidence_input("docs/y.md").draft
        )
    ),
    "EvidenceService.GetEvidence": _now(lambda h: evidence.GetEvidenceRequest(name=h.evidence)),
    "EvidenceService.RecordVerification": _now(
        lambda h: evidence.RecordVerificationRequest(
            evidence=h.evidence,
            request_id=new_id(),
            state=ledger_pb2.VERIFICATION_STATE_VERIFIED,
            method="git@1: equal",
        )
    ),
    "ObservationService.RecordObservations": _now(lambda h: observations_of(h, locator="docs/1.md")),
    "ObservationService.RecordAdmissions": _now(_admissions),
    "ObservationService.ListObservations": _project(observations.ListObservationsRequest),
    "ObservationService.RecordSignals": _now(_signals),
    "OutboxService.ClaimEvents": _now(lambda h: outbox.ClaimEventsRequest(worker="a test", max_events=1)),
    "OutboxService.AckEvents": _now(lambda h: outbox.AckEventsRequest(events=[_no_event()])),
    "OutboxService.FailEvents": _now(
        lambda h: outbox.FailEventsRequest(failures=[outbox.EventFailure(event=_no_event(), error="x")])
    ),
    "OutboxService.RenewLease": _now(
        lambda h: outbox.RenewLeaseRequest(events=[_no_event()], lease=Duration(seconds=60))
    ),
    "OutboxService.GetOutboxStats": _project(outbox.GetOutboxStatsRequest),
    "OutboxService.ListDeadLetters": _project(outbox.ListDeadLettersRequest),
    "OutboxService.RedriveDeadLetters": _project(outbox.RedriveDeadLettersRequest),
    "AdminService.CreateProject": _now(lambda h: admin.CreateProjectRequest(name=h.project, request_id=new_id())),
    "AdminService.GetProject": _now(lambda h: admin.GetProjectRequest(name=h.project)),
    "AdminService.ListProjects": _now(lambda h: admin.ListProjectsRequest()),
    "AdminService.UpdatePolicy": _policy,
    "AdminService.ListAuditEntries": _project(admin.ListAuditEntriesRequest),
    "AdminService.VerifyAudit": _project(admin.VerifyAuditRequest),
    "AdminService.ExportProject": _project(admin.ExportProjectRequest),
    # The bytes are no export: who may import is told so. Imports that work have tests of their own.
    "AdminService.ImportProject": _project(admin.ImportProjectRequest, data=b"no export"),
    "AdminService.GetLedgerInfo": _now(lambda h: admin.GetLedgerInfoRequest()),
    "IndexService.SearchCandidates": _project(index.SearchCandidatesRequest, text="How long are invoices kept?"),
    "IndexService.FindSimilar": _project(
        index.FindSimilarRequest, texts=[index.SimilarText(title="Invoices are kept")]
    ),
    "IndexService.GetIndexStatus": _project(index.GetIndexStatusRequest),
    "IndexService.RebuildIndex": _now(lambda h: index.RebuildIndexRequest(project=h.project, request_id=new_id())),
    "IndexService.GetRebuild": _known_rebuild,
    "IndexService.VerifyIndex": _project(index.VerifyIndexRequest),
    "RetrievalService.Search": _now(_search),
    "RetrievalService.GetContext": _now(lambda h: retrieval.GetContextRequest(search=_search(h))),
    "RetrievalService.ListProfiles": _now(lambda h: retrieval.ListProfilesRequest()),
    "IngestService.IngestObservations": _now(_observation),
    "IngestService.EvaluateCandidate": _project(ingest.EvaluateCandidateRequest, candidate=candidate()),
    "IngestService.ProposeMemory": _now(
        lambda h: ingest.ProposeMemoryRequest(
            project=h.project, request_id=new_id(), candidate=candidate(), reason="because"
        )
    ),
    "IngestService.SanitizeText": _now(lambda h: ingest.SanitizeTextRequest(text="write to ana@example.org")),
}
"""A request that works, for every RPC."""


def _no_event() -> outbox.EventRef:
    """A lease that nobody holds: the answer is that it is lost."""
    return outbox.EventRef(id=10**9, fencing_token=1)


# --- Calls ------------------------------------------------------------------------------------------------------------

ENDLESS: Final = frozenset({"LedgerService.WatchChanges"})
"""Streams that end when the caller does: their first answer is enough."""


async def call(stubs: AllStubs, rpc: str, request: Message, **more: Any) -> Sequence[Message]:
    """Make a call and return every answer to it."""
    service, _, name = rpc.partition(".")
    method = METHODS[rpc]
    made = getattr(getattr(stubs, STUBS[service]), name)(_one(request) if method.client_streaming else request, **more)
    if not method.server_streaming:
        return [await made]
    answers = []
    async for answer in made:
        answers.append(answer)
        if rpc in ENDLESS:
            break
    return answers


async def _one(request: Message) -> AsyncIterator[Message]:
    yield request


def rename(message: Any, old: str, new: str) -> Any:
    """Replace one project by another in every name of a request, and return it."""
    for descriptor, value in message.ListFields():
        if descriptor.type == descriptor.TYPE_MESSAGE:
            if not descriptor.is_repeated:
                rename(value, old, new)
            elif not hasattr(value, "keys"):
                for item in value:
                    rename(item, old, new)
        elif descriptor.type == descriptor.TYPE_STRING and not descriptor.is_repeated:
            setattr(message, descriptor.name, _renamed(value, old, new))
        elif descriptor.type == descriptor.TYPE_STRING:
            renamed = [_renamed(item, old, new) for item in value]
            del value[:]
            value.extend(renamed)
    return message


def _renamed(text: str, old: str, new: str) -> str:
    parts = text.split("/")
    return "/".join(["projects", new, *parts[2:]]) if parts[:2] == ["projects", old] else text
