"""Every RPC of the ledger with a request that works, the role that it needs, and the fields that it requires.

Tests that go over all RPCs take them from here, and check against the contracts that none is left out.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

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
from google.protobuf.duration_pb2 import Duration

from service_kit.ids import new_id
from tests.ledger_stack import PROJECT, Stack, create_rule, evidence_input, rule_content, supersede

SERVICES = {
    "ledger": ledger.DESCRIPTOR.services_by_name["LedgerService"],
    "proposals": proposals.DESCRIPTOR.services_by_name["ProposalService"],
    "evidence": evidence.DESCRIPTOR.services_by_name["EvidenceService"],
    "observations": observations.DESCRIPTOR.services_by_name["ObservationService"],
    "outbox": outbox.DESCRIPTOR.services_by_name["OutboxService"],
    "admin": admin.DESCRIPTOR.services_by_name["AdminService"],
}
"""Attribute of the client to the service."""

ELSEWHERE = {("admin", "ExportProject"), ("admin", "ImportProject")}
"""Streams of a whole project: tests/contract/test_ledger_moving.py and tests/whole_rpcs.py go over them."""

ALL_RPCS = [
    (area, method.name)
    for area, service in SERVICES.items()
    for method in service.methods
    if (area, method.name) not in ELSEWHERE
]


@dataclass(slots=True)
class Things:
    """What the requests are about."""

    family: str
    other: str
    revision: str
    second: str
    relation: str
    evidence: str
    observation: str
    proposal: str
    """Pending."""
    preview_hash: str
    approved: str
    """Approved, not applied."""
    approval: str
    event: outbox.EventRef

    @property
    def project(self) -> str:
        """Name of the project."""
        return f"projects/{PROJECT}"


async def fill(stack: Stack) -> Things:
    """Make one of everything."""
    await stack.make_project()
    first = await stack.create("first", key="adr/0001")
    other = await stack.create("other")
    family, other_family = first.head.family.name, other.head.family.name
    linked = await stack.publish(
        proposal_pb2.Mutation(
            link=proposal_pb2.LinkMutation(
                kind=ledger_pb2.RELATION_KIND_DEPENDS_ON, source_family=other_family, target_family=family
            )
        )
    )
    second = await stack.publish(supersede(family, "second"))
    registered = await stack.as_("ana").evidence.RegisterEvidence(
        evidence.RegisterEvidenceRequest(
            project=f"projects/{PROJECT}", request_id=new_id(), evidence=evidence_input("docs/x.md").draft
        )
    )
    recorded = await stack.as_("ana").observations.RecordObservations(_observations(new_id()))
    pending = await stack.propose(supersede(other_family, "pending"))
    approved = await stack.propose(supersede(family, "approved"))
    approval = (await stack.approve(approved)).approval
    claimed = await stack.as_("indexer").outbox.ClaimEvents(
        outbox.ClaimEventsRequest(worker="filler", max_events=1, lease=Duration(seconds=600))
    )
    event = claimed.events[0]
    return Things(
        family=family,
        other=other_family,
        revision=first.head.revision.name,
        second=second.head.revision.name,
        relation=linked.relation.name,
        evidence=registered.evidence.name,
        observation=recorded.results[0].observation.name,
        proposal=pending.name,
        preview_hash=pending.preview_hash,
        approved=approved.name,
        approval=approval.name,
        event=outbox.EventRef(id=event.id, fencing_token=event.fencing_token),
    )


def _observations(request_id: str) -> observations.RecordObservationsRequest:
    one = observations.Observation(
        source_kind=ledger_pb2.SOURCE_KIND_ADR, locator="docs/1.md", source_hash=f"sha256:{'a' * 64}", text="so"
    )
    return observations.RecordObservationsRequest(
        project=f"projects/{PROJECT}", request_id=request_id, observations=[one]
    )


@dataclass(frozen=True, slots=True)
class Rpc:
    """One RPC."""

    role: str
    """What it needs: reader, proposer, reviewer, admin, service (the outbox), anyone, party (the decision checks)."""
    who: str
    """A principal that may."""
    request: Callable[[Things], Any]
    required: tuple[str, ...] = ()
    """Fields without which it is refused."""
    mutates: bool = False
    """Takes a request_id."""


def _project(kind: Any, **more: Any) -> Callable[[Things], Any]:
    return lambda t: kind(project=t.project, **more)


def _proposal_request(t: Things) -> proposals.CreateProposalRequest:
    return proposals.CreateProposalRequest(
        project=t.project,
        request_id=new_id(),
        mutation=create_rule("new one"),
        evidence=[evidence_input("docs/new.md")],
        reason="because",
    )


RPCS: dict[tuple[str, str], Rpc] = {
    ("ledger", "GetFamily"): Rpc("reader", "reader", lambda t: ledger.GetFamilyRequest(name=t.family), ("name",)),
    ("ledger", "ListFamilies"): Rpc("reader", "reader", _project(ledger.ListFamiliesRequest), ("project",)),
    ("ledger", "GetRevision"): Rpc("reader", "reader", lambda t: ledger.GetRevisionRequest(name=t.revision), ("name",)),
    ("ledger", "ListRevisions"): Rpc(
        "reader", "reader", lambda t: ledger.ListRevisionsRequest(family=t.family), ("family",)
    ),
    ("ledger", "GetHead"): Rpc("reader", "reader", lambda t: ledger.GetHeadRequest(family=t.family), ("family",)),
    ("ledger", "QueryHeads"): Rpc("reader", "reader", _project(ledger.QueryHeadsRequest), ("project",)),
    ("ledger", "BatchGetHeads"): Rpc(
        "reader",
        "reader",
        lambda t: ledger.BatchGetHeadsRequest(project=t.project, families=[t.family]),
        ("project", "families"),
    ),
    ("ledger", "DiffRevisions"): Rpc(
        "reader",
        "reader",
        lambda t: ledger.DiffRevisionsRequest(from_revision=t.revision, to_revision=t.second),
        ("from_revision", "to_revision"),
    ),
    ("ledger", "Blame"): Rpc("reader", "reader", lambda t: ledger.BlameRequest(family=t.family), ("family",)),
    ("ledger", "GetLineage"): Rpc("reader", "reader", lambda t: ledger.GetLineageRequest(family=t.family), ("family",)),
    ("ledger", "ListRelations"): Rpc("reader", "reader", _project(ledger.ListRelationsRequest), ("project",)),
    ("ledger", "ExpandRelations"): Rpc(
        "reader",
        "reader",
        lambda t: ledger.ExpandRelationsRequest(
            project=t.project, seeds=[ledger.Activation(family=t.family, activation=1.0)]
        ),
        ("project", "seeds"),
    ),
    ("ledger", "ListChanges"): Rpc("reader", "reader", _project(ledger.ListChangesRequest), ("project",)),
    ("ledger", "WatchChanges"): Rpc("reader", "reader", _project(ledger.WatchChangesRequest), ("project",)),
    ("ledger", "ListProjections"): Rpc("reader", "reader", _project(ledger.ListProjectionsRequest), ("project",)),
    ("ledger", "BatchGetProjections"): Rpc(
        "reader",
        "reader",
        lambda t: ledger.BatchGetProjectionsRequest(project=t.project, keys=[ledger.ProjectionKey(family=t.family)]),
        ("project", "keys"),
    ),
    ("proposals", "CreateProposal"): Rpc(
        "proposer", "ana", _proposal_request, ("project", "request_id", "mutation", "reason"), mutates=True
    ),
    ("proposals", "BatchCreateProposals"): Rpc(
        "proposer",
        "ana",
        lambda t: proposals.BatchCreateProposalsRequest(project=t.project, requests=[_proposal_request(t)]),
        ("project", "requests"),
    ),
    ("proposals", "GetProposal"): Rpc(
        "reader", "reader", lambda t: proposals.GetProposalRequest(name=t.proposal), ("name",)
    ),
    ("proposals", "ListProposals"): Rpc("reader", "reader", _project(proposals.ListProposalsRequest), ("project",)),
    ("proposals", "ApproveProposal"): Rpc(
        "reviewer",
        "rui",
        lambda t: proposals.ApproveProposalRequest(
            proposal=t.proposal, request_id=new_id(), preview_hash=t.preview_hash
        ),
        ("proposal", "request_id", "preview_hash"),
        mutates=True,
    ),
    ("proposals", "BatchApproveProposals"): Rpc(
        "reviewer",
        "rui",
        lambda t: proposals.BatchApproveProposalsRequest(
            project=t.project,
            requests=[
                proposals.ApproveProposalRequest(proposal=t.proposal, request_id=new_id(), preview_hash=t.preview_hash)
            ],
        ),
        ("project", "requests"),
    ),
    ("proposals", "RevokeApproval"): Rpc(
        "party",
        "rui",
        lambda t: proposals.RevokeApprovalRequest(approval=t.approval, request_id=new_id(), reason="mistaken"),
        ("approval", "request_id", "reason"),
        mutates=True,
    ),
    ("proposals", "RejectProposal"): Rpc(
        "reviewer",
        "rui",
        lambda t: proposals.RejectProposalRequest(proposal=t.proposal, request_id=new_id(), comment="no"),
        ("proposal", "request_id", "comment"),
        mutates=True,
    ),
    ("proposals", "WithdrawProposal"): Rpc(
        "party",
        "ana",
        lambda t: proposals.WithdrawProposalRequest(proposal=t.proposal, request_id=new_id()),
        ("proposal", "request_id"),
        mutates=True,
    ),
    ("proposals", "ApplyProposal"): Rpc(
        "proposer",
        "ana",
        lambda t: proposals.ApplyProposalRequest(proposal=t.approved, request_id=new_id()),
        ("proposal", "request_id"),
        mutates=True,
    ),
    ("proposals", "BatchApplyProposals"): Rpc(
        "proposer",
        "ana",
        lambda t: proposals.BatchApplyProposalsRequest(
            project=t.project, requests=[proposals.ApplyProposalRequest(proposal=t.approved, request_id=new_id())]
        ),
        ("project", "requests"),
    ),
    ("evidence", "RegisterEvidence"): Rpc(
        "proposer",
        "ana",
        lambda t: evidence.RegisterEvidenceRequest(
            project=t.project, request_id=new_id(), evidence=evidence_input("docs/y.md").draft
        ),
        ("project", "request_id", "evidence"),
        mutates=True,
    ),
    ("evidence", "GetEvidence"): Rpc(
        "reader", "reader", lambda t: evidence.GetEvidenceRequest(name=t.evidence), ("name",)
    ),
    ("evidence", "RecordVerification"): Rpc(
        "reviewer",
        "rui",
        lambda t: evidence.RecordVerificationRequest(
            evidence=t.evidence,
            request_id=new_id(),
            state=ledger_pb2.VERIFICATION_STATE_VERIFIED,
            method="git@1: equal",
        ),
        ("evidence", "request_id", "state", "method"),
        mutates=True,
    ),
    ("observations", "RecordObservations"): Rpc(
        "proposer",
        "ana",
        lambda t: _observations(new_id()),
        ("project", "request_id", "observations"),
        mutates=True,
    ),
    ("observations", "RecordAdmissions"): Rpc(
        "proposer",
        "ana",
        lambda t: observations.RecordAdmissionsRequest(
            project=t.project,
            request_id=new_id(),
            admissions=[
                observations.AdmissionRecord(
                    observation=t.observation,
                    admission=observations.Admission(
                        outcome=observations.ADMISSION_OUTCOME_PROPOSED, proposals=[t.proposal]
                    ),
                )
            ],
        ),
        ("project", "request_id", "admissions"),
        mutates=True,
    ),
    ("observations", "ListObservations"): Rpc(
        "reader", "reader", _project(observations.ListObservationsRequest), ("project",)
    ),
    ("observations", "RecordSignals"): Rpc(
        "reader",
        "reader",
        lambda t: observations.RecordSignalsRequest(
            project=t.project,
            request_id=new_id(),
            signals=[observations.Signal(family=t.family, kind=observations.SIGNAL_KIND_USED)],
        ),
        ("project", "request_id", "signals"),
        mutates=True,
    ),
    ("outbox", "ClaimEvents"): Rpc("service", "indexer", lambda t: outbox.ClaimEventsRequest(worker="w"), ("worker",)),
    ("outbox", "AckEvents"): Rpc(
        "service", "indexer", lambda t: outbox.AckEventsRequest(events=[t.event]), ("events",)
    ),
    ("outbox", "FailEvents"): Rpc(
        "service",
        "indexer",
        lambda t: outbox.FailEventsRequest(failures=[outbox.EventFailure(event=t.event, error="x")]),
        ("failures",),
    ),
    ("outbox", "RenewLease"): Rpc(
        "service",
        "indexer",
        lambda t: outbox.RenewLeaseRequest(events=[t.event], lease=Duration(seconds=60)),
        ("events", "lease"),
    ),
    ("outbox", "GetOutboxStats"): Rpc("service", "indexer", _project(outbox.GetOutboxStatsRequest)),
    ("outbox", "ListDeadLetters"): Rpc("service", "indexer", _project(outbox.ListDeadLettersRequest)),
    ("outbox", "RedriveDeadLetters"): Rpc(
        "service", "indexer", _project(outbox.RedriveDeadLettersRequest), ("project",)
    ),
    ("admin", "CreateProject"): Rpc(
        "admin",
        "root",
        lambda t: admin.CreateProjectRequest(name=f"{t.project}-2", request_id=new_id()),
        ("name", "request_id"),
        mutates=True,
    ),
    ("admin", "GetProject"): Rpc("reader", "reader", lambda t: admin.GetProjectRequest(name=t.project), ("name",)),
    ("admin", "ListProjects"): Rpc("anyone", "reader", lambda t: admin.ListProjectsRequest()),
    ("admin", "UpdatePolicy"): Rpc(
        "admin",
        "admin",
        lambda t: admin.UpdatePolicyRequest(
            project=t.project, request_id=new_id(), expected_version=1, policy=admin.Policy()
        ),
        ("project", "request_id", "expected_version", "policy"),
        mutates=True,
    ),
    ("admin", "ListAuditEntries"): Rpc("admin", "admin", _project(admin.ListAuditEntriesRequest), ("project",)),
    ("admin", "VerifyAudit"): Rpc("admin", "admin", _project(admin.VerifyAuditRequest), ("project",)),
    ("admin", "GetLedgerInfo"): Rpc("anyone", "reader", lambda t: admin.GetLedgerInfoRequest()),
}


def rename(message: Any, old: str, new: str) -> None:
    """Replace one project by another in every name of a request."""
    for descriptor, value in message.ListFields():
        if descriptor.type == descriptor.TYPE_MESSAGE:
            if descriptor.is_repeated and not hasattr(value, "keys"):
                for item in value:
                    rename(item, old, new)
            elif not descriptor.is_repeated:
                rename(value, old, new)
        elif descriptor.type == descriptor.TYPE_STRING and not descriptor.is_repeated:
            setattr(message, descriptor.name, _renamed(value, old, new))
        elif descriptor.type == descriptor.TYPE_STRING:
            renamed = [_renamed(item, old, new) for item in value]
            del value[:]
            value.extend(renamed)


def _renamed(text: str, old: str, new: str) -> str:
    head, _, rest = text.partition(f"projects/{old}")
    return text if head or text == rest or (rest and rest[0] not in "/-") else f"projects/{new}{rest}"


async def call(stack: Stack, rpc: tuple[str, str], who: str, request: Any) -> Any:
    """Make a call; of a stream, read the first answer."""
    area, name = rpc
    made = getattr(getattr(stack.as_(who), area), name)(request)
    if name == "WatchChanges":
        async for answer in made:
            return answer
    return await made


def content_of_rule() -> ledger_pb2.Content:
    """Content that is accepted."""
    return rule_content()
