"""The client against servers that answer as the test tells them to."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest
from decisionssearch.common.v1 import common_pb2
from decisionssearch.ingest.v1 import ingest_service_pb2 as ingest_pb2
from decisionssearch.ingest.v1 import ingest_service_pb2_grpc
from decisionssearch.ledger.v1 import (
    ledger_pb2,
    ledger_service_pb2,
    ledger_service_pb2_grpc,
    proposal_service_pb2_grpc,
)
from decisionssearch.ledger.v1 import observation_service_pb2 as observation_pb2
from decisionssearch.ledger.v1 import proposal_service_pb2 as proposals_pb2

from dsearch.client import DecisionsClient, Endpoints, SyncDecisionsClient
from dsearch.sources.importer import run_import
from dsearch.sources.model import SourceReading
from service_kit.boundary import Boundary
from service_kit.errors import DomainError, InvalidRequest, Reason
from service_kit.principals import Kind, Principal, Role, grant
from service_kit.serving import Host

ANA = Principal("local", "ana", Kind.HUMAN, grants=(grant("*", [Role.ADMIN, Role.PROPOSER]),))
Answer = Callable[[Any], Any]


class Anybody:
    """Takes every token."""

    async def authenticate(self, token: str) -> Principal:
        """Return one and the same principal."""
        return ANA


class Fakes(
    ledger_service_pb2_grpc.LedgerServiceServicer,
    proposal_service_pb2_grpc.ProposalServiceServicer,
    ingest_service_pb2_grpc.IngestServiceServicer,
):
    """Answers with what the test gives, and keeps every request."""

    def __init__(self, **answers: Answer) -> None:
        self.answers = answers
        self.requests: list[Any] = []

    def _answer(self, name: str, request: Any) -> Any:
        self.requests.append(request)
        return self.answers[name](request)


def _unary(name: str) -> Any:
    async def handler(self: Fakes, request: Any, context: Any) -> Any:
        return self._answer(name, request)

    return handler


async def _each(self: Fakes, request_iterator: Any, context: Any) -> AsyncIterator[Any]:
    async for request in request_iterator:
        yield self._answer("IngestObservations", request)


for rpc in ("GetFamily", "GetHead", "ListFamilies", "ApplyProposal"):
    setattr(Fakes, rpc, _unary(rpc))
Fakes.IngestObservations = _each  # type: ignore[method-assign]  # gRPC's names are not ours


@asynccontextmanager
async def serving(fakes: Fakes) -> AsyncIterator[str]:
    """Serve the fakes on a port of the system's choice."""
    async with Host(grace_seconds=1) as host:
        server = host.serve(Boundary(Anybody()))
        server.add(ledger_service_pb2_grpc.add_LedgerServiceServicer_to_server, fakes)
        server.add(proposal_service_pb2_grpc.add_ProposalServiceServicer_to_server, fakes)
        server.add(ingest_service_pb2_grpc.add_IngestServiceServicer_to_server, fakes)
        await host.start()
        yield server.address


def failing(times: int, reason: Reason, then: Any) -> Answer:
    """Return an answer that fails some times first."""
    left = [times]

    def answer(request: Any) -> Any:
        if left[0]:
            left[0] -= 1
            raise DomainError(reason, "not now", metadata={"a": "b"})
        return then

    return answer


async def test_a_busy_store_gets_the_same_request_again() -> None:
    """L7: WRITE_CONTENTION is answered by sending the very same request again, with the same request_id."""
    fakes = Fakes(ApplyProposal=failing(2, Reason.WRITE_CONTENTION, proposals_pb2.ApplyProposalResponse(position=3)))
    async with serving(fakes) as target, DecisionsClient.open(target, "t") as client:
        response = await client.apply("projects/p/proposals/x")
    assert response.position == 3
    assert len({request.request_id for request in fakes.requests}) == 1
    assert len(fakes.requests) == 3


@pytest.mark.parametrize("reason", [Reason.HEAD_MOVED, Reason.APPROVAL_MISSING, Reason.NOT_FRESH_ENOUGH])
async def test_what_somebody_has_to_decide_is_not_sent_again(reason: Reason) -> None:
    """A refusal that another try cannot mend reaches the caller at once, typed, with its details."""
    fakes = Fakes(GetFamily=failing(9, reason, None))
    async with serving(fakes) as target, DecisionsClient.open(target, "t") as client:
        with pytest.raises(DomainError) as caught:
            await client.get_family("p", "adr/1")
    assert caught.value.reason is reason
    assert caught.value.metadata["a"] == "b"
    sent = len(fakes.requests)
    # UNAVAILABLE is the transport's to repeat; everything else is sent once.
    assert sent == 1 or reason is Reason.NOT_FRESH_ENOUGH


async def test_no_server_is_a_typed_error_within_the_deadline() -> None:
    """A dead address is DEPENDENCY_UNAVAILABLE, soon; a deadline that passes is DEADLINE."""
    async with DecisionsClient.open("127.0.0.1:1", "t", timeout_seconds=5) as client:
        started = asyncio.get_running_loop().time()
        with pytest.raises(DomainError) as caught:
            await client.get_family("p", "adr/1")
        assert caught.value.reason is Reason.DEPENDENCY_UNAVAILABLE
        assert asyncio.get_running_loop().time() - started < 5


async def test_reads_are_at_least_as_fresh_as_the_clients_own_writes() -> None:
    """R2: after a write every read of that project names its token; other projects and known_at reads do not."""
    token = common_pb2.LedgerToken(value="abc")
    fakes = Fakes(
        ApplyProposal=lambda _: proposals_pb2.ApplyProposalResponse(token=token, position=1),
        GetHead=lambda _: ledger_service_pb2.GetHeadResponse(),
    )
    async with serving(fakes) as target, DecisionsClient.open(target, "t") as client:
        await client.get_head("mine", "adr/1")
        await client.apply("projects/mine/proposals/x")
        await client.get_head("mine", "adr/1")
        await client.get_head("other", "adr/1")
        async with DecisionsClient.open(target, "t", seen=client.seen) as later:
            await later.get_head("projects/mine", "adr/1")
        request = client.search_request("mine", "question")
    heads = [r.consistency.at_least_as_fresh.value for r in fakes.requests if hasattr(r, "identity_key")]
    assert heads == ["", "abc", "", "abc"]
    assert request.consistency.at_least_as_fresh.value == "abc"


async def test_lists_turn_pages_until_the_end() -> None:
    """L18: an iterator yields the union of all pages, each asked for with the token of the one before."""
    pages = {"": (["a", "b"], "2"), "2": (["c"], "3"), "3": ([], "")}

    def page(request: Any) -> Any:
        names, following = pages[request.page_token]
        families = [ledger_pb2.Family(name=name) for name in names]
        return ledger_service_pb2.ListFamiliesResponse(families=families, next_page_token=following)

    async with serving(Fakes(ListFamilies=page)) as target, DecisionsClient.open(target, "t") as client:
        assert [f.name async for f in client.families("p")] == ["a", "b", "c"]


async def test_the_synchronous_client_does_the_same() -> None:
    """Code without a loop gets the same answers, iterators and errors."""
    fakes = Fakes(
        GetFamily=failing(1, Reason.NOT_FOUND, ledger_service_pb2.GetFamilyResponse()),
        ListFamilies=lambda _: ledger_service_pb2.ListFamiliesResponse(families=[ledger_pb2.Family(name="a")]),
    )

    def use(target: str) -> list[str]:
        with SyncDecisionsClient.open(target, "t") as client:
            with pytest.raises(DomainError) as caught:
                client.call(lambda c: c.get_family("p", "adr/1"))
            assert caught.value.reason is Reason.NOT_FOUND
            return [family.name for family in client.iterate(lambda c: c.families("p"))]

    async with serving(fakes) as target:
        assert await asyncio.to_thread(use, target) == ["a"]


async def test_an_import_goes_on_after_a_break_and_tries_failures_again() -> None:
    """G3: observations whose answer was lost or FAILED are sent again; a final refusal is reported with its reasons."""
    seen: dict[str, int] = {}

    def outcome(request: Any) -> Any:
        locator = request.observation.locator
        seen[locator] = seen.get(locator, 0) + 1
        if locator == "breaks" and seen[locator] == 1:
            raise DomainError(Reason.DEPENDENCY_UNAVAILABLE, "the ledger went away")
        if locator == "fails" and seen[locator] == 1:
            return ingest_pb2.IngestObservationsResponse(
                sequence=request.sequence, outcome=observation_pb2.ADMISSION_OUTCOME_FAILED
            )
        if locator == "refused":
            return ingest_pb2.IngestObservationsResponse(
                sequence=request.sequence,
                outcome=observation_pb2.ADMISSION_OUTCOME_REJECTED,
                reasons=["context: no rationale"],
            )
        return ingest_pb2.IngestObservationsResponse(
            sequence=request.sequence,
            outcome=observation_pb2.ADMISSION_OUTCOME_PROPOSED,
            proposals=["projects/p/proposals/1"],
            families=["projects/p/families/1"],
            redactions={"EMAIL": 1},
        )

    reading = SourceReading(
        documents=[ingest_pb2.RawObservation(locator=name) for name in ("one", "fails", "breaks", "refused", "last")]
    )
    steps: list[int] = []
    async with serving(Fakes(IngestObservations=outcome)) as target, DecisionsClient.open(target, "t") as client:
        summary = await run_import(client, "p", reading, progress=lambda done, _: steps.append(done))
    assert seen == {"one": 1, "fails": 2, "breaks": 2, "refused": 1, "last": 1}
    assert summary.outcomes == {"PROPOSED": 4, "REJECTED": 1}
    assert summary.refused == [("refused", "REJECTED", ["context: no rationale"])]
    assert (summary.published, summary.redactions["EMAIL"], steps[-1]) == (4, 4, 5)


@pytest.mark.parametrize(
    "text", ["localhost", "host:", "ledger=a:1,index=b:2", "ledger=a,index=b:1,retrieval=c:1,ingest=d:1"]
)
def test_a_malformed_endpoint_is_refused(text: str) -> None:
    """An endpoint that is no host:port, or names only some of the services, is a usage error."""
    with pytest.raises(InvalidRequest):
        Endpoints.parse(text)


def test_four_endpoints_are_read() -> None:
    """Four processes are named one by one."""
    found = Endpoints.parse("ledger=a:1,index=b:2,retrieval=c:3,ingest=d:4")
    assert (found.ledger, found.ingest) == ("a:1", "d:4")
