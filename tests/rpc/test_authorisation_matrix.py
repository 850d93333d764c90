"""S1: who may do what, in one table: every RPC of every service, every role, own, foreign and unknown project.

The RPCs are those of the contracts: one that is added there without a row here fails the test.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any, Final

import grpc.aio
import pytest
import pytest_asyncio
from decisionssearch.ledger.v1 import admin_service_pb2, proposal_service_pb2

from service_kit.errors import Reason, from_item_error, from_rpc_error
from service_kit.ids import new_id
from tests.ledger_stack import refusal
from tests.whole_rpcs import METHODS, REQUESTS, STUBS, Home, call, furnish, rename
from tests.whole_stack import FOREIGN, OWN, PRINCIPALS, Whole, deployment

pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.timeout(300)]

CALLERS: Final = (
    *("nobody", "reader", "proposer", "reviewer", "admin", "agent", "agent-admin", "importer"),
    *("service", "root", "agent-root"),
)
"""No credential; HUMANs with one role in the own project; an AGENT that proposes and one that administers there; a
SERVICE that proposes there; a SERVICE, a HUMAN and an AGENT who administer all projects."""

MEMBERS_EVERYWHERE: Final = ("service", "root", "agent-root")

CODES: Final = {
    "+": "OK",
    "U": "UNAUTHENTICATED",
    "D": "PERMISSION_DENIED",
    "N": "NOT_FOUND",
    "E": "ALREADY_EXISTS",
    "I": "INVALID_ARGUMENT",
}

# A column for each caller, in the order of CALLERS.
#                  own            foreign        unknown project
READ: Final = ("U++++++++++", "UDDDDDDD+++", "UDDDDDDDNNN")
PROPOSE: Final = ("UD+DD+D+DDD", "UDDDDDDDDDD", "UDDDDDDDDDD")
REVIEW: Final = ("UDD+DDDDDDD", "UDDDDDDDDDD", "UDDDDDDDDDD")
ADMINISTER: Final = ("UDDD+D+D+++", "UDDDDDDD+++", "UDDDDDDDNNN")
# An admin who is no agent: the rules of a policy approve.
MAKE_POLICY: Final = ("UDDD+DDD++D", "UDDDDDDD++D", "UDDDDDDDNNN")
# The requester (here the proposer) or an admin; the approver (here the reviewer) or an admin.
WITHDRAW: Final = ("UD+D+D+D+++", "UDDDDDDD+++", "UDDDDDDDNNN")
REVOKE: Final = ("UDD++D+D+++", "UDDDDDDD+++", "UDDDDDDDNNN")
# A reviewer, or a program that may propose.
VERIFY: Final = ("UDD+DDD+DDD", "UDDDDDDDDDD", "UDDDDDDDDDD")
# Only a SERVICE that administers all projects; the second is about no project.
OUTBOX: Final = ("UDDDDDDD+DD", "UDDDDDDD+DD", "UDDDDDDDNDD")
OUTBOX_OF_ALL: Final = ("UDDDDDDD+DD", "UDDDDDDD+DD", "UDDDDDDD+DD")
MAKE_PROJECT: Final = ("UDDDEDEDEEE", "UDDDDDDDEEE", "UDDDDDDD+++")
# An admin of all projects who is no agent, whichever project it is: a file brings approvals.
IMPORT: Final = ("UDDDDDDDEED", "UDDDDDDDEED", "UDDDDDDDIID")
ANYBODY: Final = ("U++++++++++", "U++++++++++", "U++++++++++")

MATRIX: Final = {
    "LedgerService.GetFamily": READ,
    "LedgerService.ListFamilies": READ,
    "LedgerService.GetRevision": READ,
    "LedgerService.ListRevisions": READ,
    "LedgerService.GetHead": READ,
    "LedgerService.QueryHeads": READ,
    "LedgerService.BatchGetHeads": READ,
    "LedgerService.DiffRevisions": READ,
    "LedgerService.Blame": READ,
    "LedgerService.GetLineage": READ,
    "LedgerService.ListRelations": READ,
    "LedgerService.ExpandRelations": READ,
    "LedgerService.ListChanges": READ,
    "LedgerService.WatchChanges": READ,
    "LedgerService.ListProjections": READ,
    "LedgerService.BatchGetProjections": READ,
    "ProposalService.CreateProposal": PROPOSE,
    "ProposalService.BatchCreateProposals": PROPOSE,
    "ProposalService.GetProposal": READ,
    "ProposalService.ListProposals": READ,
    "ProposalService.ApproveProposal": REVIEW,
    "ProposalService.BatchApproveProposals": REVIEW,
    "ProposalService.RevokeApproval": REVOKE,
    "ProposalService.RejectProposal": REVIEW,
    "ProposalService.WithdrawProposal": WITHDRAW,
    "ProposalService.ApplyProposal": PROPOSE,
    "ProposalService.BatchApplyProposals": PROPOSE,
    "EvidenceService.RegisterEvidence": PROPOSE,
    "EvidenceService.GetEvidence": READ,
    "EvidenceService.RecordVerification": VERIFY,
    "ObservationService.RecordObservations": PROPOSE,
    "ObservationService.RecordAdmissions": PROPOSE,
    "ObservationService.ListObservations": READ,
    "ObservationService.RecordSignals": READ,
    "OutboxService.ClaimEvents": OUTBOX_OF_ALL,
    "OutboxService.AckEvents": OUTBOX_OF_ALL,
    "OutboxService.FailEvents": OUTBOX_OF_ALL,
    "OutboxService.RenewLease": OUTBOX_OF_ALL,
    "OutboxService.GetOutboxStats": OUTBOX,
    "OutboxService.ListDeadLetters": OUTBOX,
    "OutboxService.RedriveDeadLetters": OUTBOX,
    "AdminService.CreateProject": MAKE_PROJECT,
    "AdminService.GetProject": READ,
    "AdminService.ListProjects": ANYBODY,
    "AdminService.UpdatePolicy": MAKE_POLICY,
    "AdminService.ListAuditEntries": ADMINISTER,
    "AdminService.VerifyAudit": ADMINISTER,
    "AdminService.ExportProject": ADMINISTER,
    "AdminService.ImportProject": IMPORT,
    "AdminService.GetLedgerInfo": ANYBODY,
    "IndexService.SearchCandidates": READ,
    "IndexService.FindSimilar": READ,
    "IndexService.GetIndexStatus": READ,
    "IndexService.RebuildIndex": ADMINISTER,
    "IndexService.GetRebuild": ADMINISTER,
    "IndexService.VerifyIndex": ADMINISTER,
    "RetrievalService.Search": READ,
    "RetrievalService.GetContext": READ,
    "RetrievalService.ListProfiles": ANYBODY,
    "IngestService.IngestObservations": PROPOSE,
    "IngestService.EvaluateCandidate": PROPOSE,
    "IngestService.ProposeMemory": PROPOSE,
    "IngestService.SanitizeText": ANYBODY,
}
"""For own, foreign and unknown project: what each caller is answered."""

READS: Final = [rpc for rpc, row in MATRIX.items() if row is READ and rpc != "ObservationService.RecordSignals"]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def world(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[tuple[Whole, Home, Home]]:
    """A deployment with two furnished projects."""
    async with deployment(tmp_path_factory.mktemp("matrix") / "data") as whole:
        own = await furnish(whole, Home(OWN, "proposer", "reviewer", "admin"))
        foreign = await furnish(whole, Home(FOREIGN, f"{FOREIGN}-proposer", f"{FOREIGN}-reviewer", f"{FOREIGN}-admin"))
        await whole.settled()
        yield whole, own, foreign


async def _code(whole: Whole, who: str, rpc: str, request: Any) -> str:
    """The status of a call; of a batch, that of its only item."""
    try:
        answers = await call(whole.as_(who), rpc, request)
    except grpc.aio.AioRpcError as error:
        if from_rpc_error(error).metadata.get("rule") == "one_rebuild_at_a_time":
            return "OK"  # An earlier one runs: who hears that was let in.
        return error.code().name
    for result in getattr(answers[0], "results", ()):
        if "error" in result.DESCRIPTOR.fields_by_name and result.HasField("error"):
            return from_item_error(result.error).status.name
    return "OK"


async def test_every_rpc_has_a_row() -> None:
    """S1: an RPC that the contracts gain, without a row in the matrix and a request, fails here."""
    assert set(MATRIX) == set(METHODS)
    assert set(REQUESTS) == set(METHODS)
    assert all(len(codes) == len(CALLERS) and set(codes) <= set(CODES) for row in MATRIX.values() for codes in row)


async def test_what_is_served_is_what_is_in_the_contracts(world: Any) -> None:
    """S1: the deployment serves the services of the contracts and, without a credential, health and reflection only."""
    whole = world[0]
    from google.protobuf import descriptor_pool
    from grpc_reflection.v1alpha.proto_reflection_descriptor_database import ProtoReflectionDescriptorDatabase

    def served() -> set[str]:
        with grpc.insecure_channel(whole.address) as channel:
            return set(ProtoReflectionDescriptorDatabase(channel).get_services())

    import asyncio

    found = await asyncio.to_thread(served)
    pool = descriptor_pool.Default()
    ours = {name for name in found if name.startswith("decisionssearch.")}
    assert {pool.FindServiceByName(name).name for name in ours} == set(STUBS) == {m.partition(".")[0] for m in METHODS}
    assert found - ours == {"grpc.health.v1.Health", "grpc.reflection.v1alpha.ServerReflection"}


@pytest.mark.parametrize("rpc", METHODS)
async def test_the_matrix(rpc: str, world: Any) -> None:
    """S1: each cell of the row of an RPC is answered as the table says, and a refusal changes nothing abroad."""
    whole, own, foreign = world
    wrong = []
    for place, codes in zip(("own", "foreign", "unknown"), MATRIX[rpc], strict=True):
        for who, expected in zip(CALLERS, codes, strict=True):
            request = await REQUESTS[rpc](whole, foreign if place == "foreign" else own)
            if place == "unknown":
                rename(request, OWN, f"nowhere-{new_id()}")
            # What a member asks for without the role is on record; who administers everything is a member everywhere.
            outside = place != "own" and expected != "+" and who not in MEMBERS_EVERYWHERE
            before = whole.stored() if outside else None
            found = await _code(whole, who, rpc, request)
            if found != CODES[expected]:
                wrong.append(f"{place} project, {who}: {CODES[expected]} expected, {found} answered")
            if before is not None and whole.stored() != before:
                wrong.append(f"{place} project, {who}: something was stored though it was refused")
    assert not wrong, "\n".join([rpc, *wrong])


@pytest.mark.parametrize("rpc", [rpc for rpc, row in MATRIX.items() if row is not ANYBODY])
async def test_a_foreign_and_an_unknown_project_look_alike(rpc: str, world: Any) -> None:
    """S1, S2: a refusal tells nobody whether the project exists: code, text and details, but for the given name."""
    whole, own, foreign = world
    if MATRIX[rpc] is OUTBOX_OF_ALL:
        pytest.skip("is about no project")
    for who in ("reader", "proposer", "reviewer", "admin", "agent", "agent-admin", "importer"):
        answers = []
        for home, project in ((foreign, FOREIGN), (own, "nowhere")):
            request = rename(await REQUESTS[rpc](whole, home), home.project_id, project)
            error = await refusal(call(whole.as_(who), rpc, request))
            ids = dict.fromkeys(_ids_of(request), "id")
            texts = [error.message, *(f"{k}={v}" for k, v in sorted(error.metadata.items()))]
            texts += [f"{problem.field}: {problem.description}" for problem in error.fields]
            answers.append((error.reason, [_blank(text, {**ids, project: "project"}) for text in texts]))
        assert answers[0] == answers[1], who


def _ids_of(message: Any) -> set[str]:
    """Every text that a request carries and that is no project's."""
    found: set[str] = set()
    for descriptor, value in message.ListFields():
        for item in value if descriptor.is_repeated and not hasattr(value, "keys") else [value]:
            if descriptor.type == descriptor.TYPE_MESSAGE and not descriptor.is_repeated:
                found |= _ids_of(item)
            elif isinstance(item, str):
                found |= {part for part in item.split("/") if len(part) == 36}
    return found


def _blank(text: str, names: dict[str, str]) -> str:
    for name, stand_in in names.items():
        text = text.replace(name, stand_in)
    return text


@pytest.mark.parametrize("who", ["ghost-admin", "everywhere-reader"])
@pytest.mark.parametrize("rpc", [rpc for rpc, row in MATRIX.items() if row not in (ANYBODY, OUTBOX_OF_ALL)])
async def test_a_grant_is_no_project(rpc: str, who: str, world: Any) -> None:
    """S1: only who administers all projects learns that one does not exist; a role that names it is not enough."""
    whole, own, _ = world
    request = rename(await REQUESTS[rpc](whole, own), OWN, "ghost")
    if rpc == "AdminService.CreateProject" and who == "ghost-admin":
        pytest.skip("may make it")
    before = whole.stored()
    error = await refusal(call(whole.as_(who), rpc, request))
    assert error.reason is Reason.PERMISSION_DENIED, error
    assert whole.stored() == before


async def test_reads_never_make_a_project(world: Any) -> None:
    """S1: after every read of a project that does not exist, it does not exist, for the ledger and for the index."""
    whole, own, _ = world
    before = whole.stored()
    for who in ("root", "service"):
        for rpc in READS:
            request = rename(await REQUESTS[rpc](whole, own), OWN, "ghost")
            error = await refusal(call(whole.as_(who), rpc, request))
            assert error.reason is Reason.NOT_FOUND, (rpc, error)
            assert error.metadata["resource"] == "projects/ghost", (rpc, error.metadata)
    assert whole.stored() == before
    listed = await whole.as_("root").admin.ListProjects(admin_service_pb2.ListProjectsRequest(page_size=500))
    assert "projects/ghost" not in [project.name for project in listed.projects]


async def test_lists_show_ones_own_projects_only(world: Any) -> None:
    """S1: a member sees the projects of their grants, however they page; who has a grant on a ghost sees nothing."""
    whole = world[0]
    for who, expected in (
        ("reader", [OWN]),
        (f"{FOREIGN}-admin", [FOREIGN]),
        ("two-homes", [OWN, FOREIGN]),
        ("ghost-admin", []),
    ):
        request, found = admin_service_pb2.ListProjectsRequest(page_size=1), []
        while True:
            page = await whole.as_(who).admin.ListProjects(request)
            found += [project.name for project in page.projects]
            if not page.next_page_token:
                break
            request.page_token = page.next_page_token
        assert found == [f"projects/{project}" for project in expected], who


@pytest.mark.parametrize("rpc", [rpc for rpc in METHODS if ".Batch" in rpc])
async def test_a_batch_of_rubbish_is_refused_for_want_of_the_role_first(rpc: str, world: Any) -> None:
    """S1: items that are wrong by themselves do not let a stranger past the question of who they are."""
    whole, _, foreign = world
    request = await REQUESTS[rpc](whole, foreign)
    for item in getattr(request, "requests", ()):
        item.ClearField("request_id")
    error = await refusal(call(whole.as_("reader"), rpc, request))
    assert error.reason is Reason.PERMISSION_DENIED, error


async def test_a_revoked_token_is_refused_from_the_next_call_on(world: Any) -> None:
    """S1: taking a token back takes effect at once, on every service."""
    whole, own, _ = world
    text = whole.token("leaver", PRINCIPALS["reader"])
    for rpc in ("LedgerService.GetHead", "IndexService.SearchCandidates", "RetrievalService.Search"):
        await call(whole.as_("leaver"), rpc, await REQUESTS[rpc](whole, own))
    entry = next(e for e in whole.tokens.entries() if whole.tokens.find(text) and e.digest in _digests(text))
    assert whole.tokens.revoke(entry.id)
    for rpc in ("LedgerService.GetHead", "IndexService.SearchCandidates", "RetrievalService.Search"):
        error = await refusal(call(whole.as_("leaver"), rpc, await REQUESTS[rpc](whole, own)))
        assert error.reason is Reason.UNAUTHENTICATED


def _digests(text: str) -> set[str]:
    import hashlib

    digest = hashlib.sha256(text.encode()).hexdigest()
    return {digest, f"sha256:{digest}"}


async def test_a_batch_cannot_carry_the_item_of_another_project(world: Any) -> None:
    """S1: the project of a batch is that of each item; a foreign one is refused by itself, and nothing is decided."""
    whole, own, foreign = world
    for rpc, who in (
        ("ProposalService.BatchApproveProposals", "reviewer"),
        ("ProposalService.BatchApplyProposals", "proposer"),
        ("ProposalService.BatchCreateProposals", "proposer"),
    ):
        request = await REQUESTS[rpc](whole, foreign)
        request.project = own.project
        before = whole.stored()
        answer = (await call(whole.as_(who), rpc, request))[0]
        error = from_item_error(answer.results[0].error)
        assert error.reason is Reason.INVALID_FIELD, (rpc, error)
        assert whole.stored() == before
    listed = await whole.as_(f"{FOREIGN}-admin").proposals.ListProposals(
        proposal_service_pb2.ListProposalsRequest(project=foreign.project, page_size=500)
    )
    assert foreign.proposal in [proposal.name for proposal in listed.proposals]
