"""S2: nothing of a project reaches who works in another one: answers, errors, tokens, deduplication, scores, logs."""

from __future__ import annotations

import base64
import io
import re
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, Final

import grpc.aio
import pytest
import pytest_asyncio
from decisionssearch.index.v1 import index_service_pb2
from decisionssearch.ingest.v1 import ingest_service_pb2
from decisionssearch.ledger.v1 import (
    admin_service_pb2,
    evidence_service_pb2,
    ledger_pb2,
    ledger_service_pb2,
    outbox_service_pb2,
    proposal_pb2,
    proposal_service_pb2,
)
from decisionssearch.retrieval.v1 import retrieval_service_pb2
from google.protobuf.timestamp_pb2 import Timestamp

from service_kit.errors import DETAILS_KEY
from service_kit.ids import new_id
from tests.kept_log import logged
from tests.ledger_stack import create_rule, evidence_input, refusal, supersede
from tests.whole_rpcs import METHODS, REQUESTS, Home, call, candidate, furnish, propose, publish, rename
from tests.whole_stack import FOREIGN, OWN, Whole, deployment, until

pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.timeout(300)]

SECRET: Final = "quokkazephyr"
"""A word that stands in every text of the own project, and that nobody in the foreign one says."""

_UUID: Final = re.compile(rb"[0-9a-f]{8}-[0-9a-f]{4}-7[0-9a-f]{3}-[0-9a-f]{4}-[0-9a-f]{12}")
_BASE64: Final = re.compile(rb"[A-Za-z0-9_-]{24,}")


@dataclass(slots=True)
class Planted:
    """The projects, and what must not be seen of the first."""

    whole: Whole
    secret: Home
    other: Home
    third: Home
    """Where the secret is said as well, by people who know nothing of the first project."""
    log: io.StringIO
    ids: set[bytes] = field(default_factory=set)


async def _plant(whole: Whole, home: Home) -> None:
    """Make the secret word stand in every kind of text that a project holds."""
    await furnish(whole, home, SECRET)
    found = (
        await whole.as_(home.admin).admin.GetProject(admin_service_pb2.GetProjectRequest(name=home.project))
    ).project
    policy = admin_service_pb2.Policy(
        approval_rules=[
            admin_service_pb2.ApprovalRule(
                id=f"rule-{SECRET}", issuer="local", subject="ci", mutations=["create"], extractors=[f"x/{SECRET}"]
            )
        ]
    )
    await whole.as_(home.admin).admin.UpdatePolicy(
        admin_service_pb2.UpdatePolicyRequest(
            project=home.project, request_id=new_id(), expected_version=found.policy.version, policy=policy
        )
    )
    content = {
        name: f"{name} {SECRET}"
        for name in ("details", "objective", "trigger", "rationale", "domain", "task", "outcome")
    }
    lists = {name: [f"{name}/{SECRET}"] for name in ("alternatives", "rules", "steps", "modules", "files", "tags")}
    full = create_rule(f"Everything about {SECRET}", **content, **lists)
    full.create.content.attributes[f"key-{SECRET}"] = f"value {SECRET}"
    await publish(whole, home, full, reason=f"reason {SECRET}")
    branched = await propose(whole, home, create_rule(f"On a branch {SECRET}"), branch=f"branch-{SECRET}")
    for rpc, fields in (
        ("ApproveProposal", {"preview_hash": branched.preview_hash, "comment": f"comment {SECRET}"}),
        ("RejectProposal", {"comment": f"comment {SECRET}"}),
    ):
        proposal = branched.name if rpc == "ApproveProposal" else home.proposal
        request = getattr(proposal_service_pb2, f"{rpc}Request")(proposal=proposal, request_id=f"id-{SECRET}", **fields)
        await getattr(whole.as_(home.reviewer).proposals, rpc)(request)
    stream = ingest_service_pb2.IngestObservationsRequest(
        project=home.project,
        sequence=1,
        observation=ingest_service_pb2.RawObservation(
            source_kind=ledger_pb2.SOURCE_KIND_ADR,
            locator=f"docs/adr/0099-{SECRET}.md",
            text=f"# 99. {SECRET}\n\nStatus: Accepted\n\n## Decision\n\nWe use {SECRET}.\n",
        ),
    )
    await call(whole.as_(home.proposer), "IngestService.IngestObservations", stream)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def planted(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Planted]:
    """A deployment in which one project is full of the secret, and another one knows nothing of it."""
    with logged() as log:
        async with deployment(tmp_path_factory.mktemp("isolation") / "data") as whole:
            secret = Home(OWN, "proposer", "reviewer", "admin")
            other = Home(FOREIGN, f"{FOREIGN}-proposer", f"{FOREIGN}-reviewer", f"{FOREIGN}-admin")
            await furnish(whole, other)
            await _plant(whole, secret)
            await whole.settled()
            await whole.make_project("ghost")
            made = Planted(whole, secret, other, Home("ghost", *["ghost-admin"] * 3), log)
            made.ids = await _ids(whole, secret)
            assert len(made.ids) > 20
            yield made


async def _ids(whole: Whole, home: Home) -> set[bytes]:
    """Every id of a project."""
    found: set[bytes] = set()
    for rpc in ("ListFamilies", "QueryHeads", "ListRelations", "ListChanges", "ListProjections"):
        request = getattr(ledger_service_pb2, f"{rpc}Request")(project=home.project)
        found |= set(_UUID.findall((await getattr(whole.as_("root").ledger, rpc)(request)).SerializeToString()))
    audit = await whole.as_("root").admin.ListAuditEntries(
        admin_service_pb2.ListAuditEntriesRequest(project=home.project, page_size=500)
    )
    found |= set(_UUID.findall(audit.SerializeToString()))
    info = await whole.as_("root").admin.GetLedgerInfo(admin_service_pb2.GetLedgerInfoRequest())
    return found - {info.ledger_id.encode()}


def _bytes_of(error: grpc.aio.AioRpcError) -> bytes:
    """Everything that a refused caller receives."""
    trailing = dict(error.trailing_metadata() or ())
    details = trailing.get(DETAILS_KEY, b"")
    return b"\n".join([str(error.details()).encode(), bytes(details), str(sorted(trailing)).encode()])


def leaks(planted: Planted, received: bytes, sent: bytes = b"") -> list[str]:
    """What of the secret project is in what somebody received, apart from what they sent themselves."""
    # Tokens are readable to who decodes them.
    opened = [received]
    for text in _BASE64.findall(received):
        try:
            opened.append(base64.urlsafe_b64decode(text + b"=" * (-len(text) % 4)))
        except ValueError:
            continue
    everything = b"\n".join(opened).lower()
    found = [f"the word {SECRET}"] if SECRET.encode() in everything and SECRET.encode() not in sent else []
    if f"projects/{OWN}".encode() in everything and f"projects/{OWN}".encode() not in sent:
        found.append("the project's name")
    found += [f"the id {i.decode()}" for i in planted.ids & set(_UUID.findall(everything)) if i not in sent]
    return found


async def _receive(planted: Planted, who: str, rpc: str, request: Any) -> bytes:
    """Everything that comes back from a call, answer or error."""
    try:
        answers = await call(planted.whole.as_(who), rpc, request)
    except grpc.aio.AioRpcError as error:
        return _bytes_of(error)
    return b"\n".join(answer.SerializeToString() for answer in answers)


@pytest.mark.parametrize("rpc", [rpc for rpc in METHODS if not rpc.startswith("OutboxService.")])
async def test_no_answer_in_another_project_holds_the_secret(rpc: str, planted: Planted) -> None:
    """S2: each RPC, as proposer, reviewer and admin of another project, with good input and with names of the first."""
    whole, secret, other = planted.whole, planted.secret, planted.other
    for who in (other.proposer, other.reviewer, other.admin):
        good = await REQUESTS[rpc](whole, other)
        if "page_size" in good.DESCRIPTOR.fields_by_name:
            good.page_size = 1
        assert not leaks(planted, await _receive(planted, who, rpc, good))
        # What is theirs by id, under one's own project and under theirs: the answer holds no more than was sent.
        spied = await REQUESTS[rpc](whole, secret)
        for request in (spied, rename(_copy(spied), OWN, FOREIGN)):
            received = await _receive(planted, who, rpc, request)
            assert not leaks(planted, received, request.SerializeToString())


def _copy(message: Any) -> Any:
    made = type(message)()
    made.CopyFrom(message)
    return made


QUESTIONS: Final = (
    "Everything about",
    "Invoices are kept for ten years",
    "We use it, on a branch, with a rule",
    "docs modules files tags steps",
)


async def test_no_search_finds_the_secret(planted: Planted) -> None:
    """S2, I6: the words that stand around the secret find nothing of it, whatever way of searching is used."""
    whole, other = planted.whole, planted.other
    client = whole.as_(other.proposer)
    for text in (*QUESTIONS, SECRET, f"Everything about {SECRET}"):
        asked = index_service_pb2.SearchCandidatesRequest(
            project=other.project, text=text, limit=500, measure_support=True
        )
        candidates = await client.index.SearchCandidates(asked)
        assert not leaks(planted, candidates.SerializeToString())
        search = retrieval_service_pb2.SearchRequest(
            project=other.project, text=text, limit=100, include_rejected=True, states=range(1, 9)
        )
        found = await client.retrieval.Search(search)
        assert not leaks(planted, found.SerializeToString())
        context = retrieval_service_pb2.GetContextRequest(search=search, token_budget=100_000)
        packed = await client.retrieval.GetContext(context)
        packed.search.ClearField("abstention")
        sent = text.encode().lower() if SECRET in text else b""
        assert not leaks(planted, packed.SerializeToString(), sent)


async def test_sameness_is_judged_within_a_project(planted: Planted) -> None:
    """S2: evidence, observations, keys and near duplicates of another project make nothing a duplicate here."""
    whole, other = planted.whole, planted.third
    client = whole.as_(other.proposer)
    draft = evidence_input(f"docs/registered {SECRET}.md").draft
    draft.excerpt = f"We decided so {SECRET}."
    registered = await client.evidence.RegisterEvidence(
        evidence_service_pb2.RegisterEvidenceRequest(project=other.project, request_id=new_id(), evidence=draft)
    )
    assert registered.created
    assert registered.evidence.name.encode().rpartition(b"/")[2] not in planted.ids
    observed = await REQUESTS["ObservationService.RecordObservations"](whole, other)
    observed.observations[0].locator = f"docs/{SECRET}.md"
    observed.observations[0].text = f"We decided {SECRET}."
    recorded = await client.observations.RecordObservations(observed)
    assert recorded.results[0].created
    same = create_rule(f"Invoices are immutable {SECRET}", key=planted.secret.identity_key)
    proposal = await propose(whole, other, same)
    assert proposal.status == proposal_pb2.PROPOSAL_STATUS_PENDING
    assert not proposal.warnings
    near = await client.index.FindSimilar(
        index_service_pb2.FindSimilarRequest(
            project=other.project, texts=[index_service_pb2.SimilarText(title=f"Everything about {SECRET}")], limit=20
        )
    )
    assert not leaks(planted, near.SerializeToString())
    twin = candidate(f"Everything about {SECRET}")
    twin.content.CopyFrom(create_rule(f"Everything about {SECRET}").create.content)
    judged = await client.ingest.EvaluateCandidate(
        ingest_service_pb2.EvaluateCandidateRequest(project=other.project, candidate=twin)
    )
    assert not [near for near in judged.similar if near.family.startswith(f"projects/{OWN}/")]
    assert not leaks(planted, judged.SerializeToString(), SECRET.encode())


async def test_a_request_id_of_another_project_answers_nothing(planted: Planted) -> None:
    """S2, L7: the answer that is kept under a request_id is its maker's; who guesses the id gets their own."""
    whole, other = planted.whole, planted.third
    made = await propose(whole, other, create_rule("Mine"), request_id=f"id-{SECRET}")
    assert not leaks(planted, made.SerializeToString(), SECRET.encode())
    assert made.mutation.create.content.title == "Mine"


def _reads(home: Home, at: Timestamp) -> list[tuple[str, Any]]:
    """Reads of a project whose answers depend on nothing but what it holds."""
    text = "How long are invoices kept?"
    return [
        (
            "LedgerService.QueryHeads",
            ledger_service_pb2.QueryHeadsRequest(project=home.project, valid_at=at, page_size=1),
        ),
        ("LedgerService.ListFamilies", ledger_service_pb2.ListFamiliesRequest(project=home.project, page_size=1)),
        ("LedgerService.ListChanges", ledger_service_pb2.ListChangesRequest(project=home.project)),
        ("LedgerService.ListRelations", ledger_service_pb2.ListRelationsRequest(project=home.project, page_size=1)),
        ("LedgerService.ListProjections", ledger_service_pb2.ListProjectionsRequest(project=home.project)),
        ("ProposalService.ListProposals", proposal_service_pb2.ListProposalsRequest(project=home.project, page_size=1)),
        ("AdminService.ListAuditEntries", admin_service_pb2.ListAuditEntriesRequest(project=home.project)),
        ("AdminService.VerifyAudit", admin_service_pb2.VerifyAuditRequest(project=home.project)),
        ("AdminService.GetProject", admin_service_pb2.GetProjectRequest(name=home.project)),
        ("AdminService.ListProjects", admin_service_pb2.ListProjectsRequest()),
        (
            "IndexService.SearchCandidates",
            index_service_pb2.SearchCandidatesRequest(
                project=home.project, text=text, valid_at=at, measure_support=True, limit=500
            ),
        ),
        (
            "IndexService.FindSimilar",
            index_service_pb2.FindSimilarRequest(
                project=home.project, texts=[index_service_pb2.SimilarText(title=text)]
            ),
        ),
        ("IndexService.GetIndexStatus", index_service_pb2.GetIndexStatusRequest(project=home.project)),
        (
            "RetrievalService.Search",
            retrieval_service_pb2.SearchRequest(
                project=home.project, text=text, valid_at=at, known_at=at, include_rejected=True
            ),
        ),
    ]


async def test_what_happens_in_a_project_changes_no_answer_in_another(planted: Planted) -> None:
    """S2: before and after much work in one project a read of another gives the same bytes: scores, counts, tokens."""
    whole, secret, other = planted.whole, planted.secret, planted.other
    await whole.settled()

    async def calibrated() -> bool:
        status = await whole.as_(other.admin).index.GetIndexStatus(
            index_service_pb2.GetIndexStatusRequest(project=other.project)
        )
        return "main" in status.calibrated_branches

    await until(calibrated)
    at = Timestamp()
    at.FromDatetime(datetime.now(UTC))
    wanted = _reads(other, at)
    before = [await _receive(planted, other.admin, rpc, request) for rpc, request in wanted]
    for number in range(20):
        await publish(whole, secret, create_rule(f"How long are invoices kept, {SECRET} {number}?"))
    await publish(whole, secret, supersede(secret.other, f"Invoices are kept for ever {SECRET}"))
    await whole.settled()
    after = [await _receive(planted, other.admin, rpc, request) for rpc, request in wanted]
    different = [rpc for (rpc, _), one, two in zip(wanted, before, after, strict=True) if one != two]
    assert not different


async def test_the_outbox_says_which_project_and_nothing_of_it(planted: Planted) -> None:
    """S2: events name families, not contents; only the service that administers everything sees them."""
    whole, secret = planted.whole, planted.secret
    for who in ("admin", "root", f"{FOREIGN}-admin"):
        error = await refusal(
            whole.as_(who).outbox.GetOutboxStats(outbox_service_pb2.GetOutboxStatsRequest(project=secret.project))
        )
        assert SECRET not in str(error)


async def test_the_log_holds_no_content(planted: Planted) -> None:
    """S2: nothing that anybody wrote is in the log, and no credential: not of good calls, not of refused ones."""
    whole = planted.whole
    for rpc in ("ProposalService.CreateProposal", "RetrievalService.Search", "IngestService.ProposeMemory"):
        request = await REQUESTS[rpc](whole, planted.secret)
        for name in ("reason", "text"):
            if name in request.DESCRIPTOR.fields_by_name:
                setattr(request, name, f"{SECRET} {SECRET}")
        await _receive(planted, "proposer", rpc, request)
        await _receive(planted, "nobody", rpc, request)
        request.branch = f"No Branch {SECRET}"
        await _receive(planted, "proposer", rpc, request)
    lines = planted.log.getvalue()
    assert lines.count('"event": "rpc"') > 100
    assert SECRET not in lines.lower()
    tokens = [whole.token(who) for who in ("proposer", "reviewer", "admin", "root", "service")]
    assert not [token for token in tokens if token in lines]


async def test_the_secret_is_where_it_belongs(planted: Planted) -> None:
    """S2: the tests of this file look for something that is there: the ledger holds the secret in many places."""
    assert planted.whole.texts().count(SECRET) > 50
    found = await planted.whole.as_("reader").retrieval.Search(
        retrieval_service_pb2.SearchRequest(project=planted.secret.project, text=f"Everything about {SECRET}")
    )
    assert leaks(planted, found.SerializeToString())
