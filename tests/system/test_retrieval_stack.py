"""Retrieval on a real ledger and a real index: whatever happened there, only what is in force is shown as current."""

# ruff: noqa: F811 - a fixture is imported, and then named by its tests
from __future__ import annotations

import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import grpc.aio
import pytest
from decisionssearch.ledger.v1 import ledger_pb2, ledger_service_pb2, proposal_pb2
from decisionssearch.retrieval.v1 import retrieval_service_pb2 as pb
from decisionssearch.retrieval.v1 import retrieval_service_pb2_grpc

from retrieval_svc.app import LIMITS, create_app
from retrieval_svc.index_client import GrpcCandidateSource
from retrieval_svc.ledger_client import GrpcLedgerReader
from retrieval_svc.settings import RetrievalSettings
from service_kit.boundary import Boundary
from service_kit.clients import connect
from service_kit.errors import from_rpc_error
from service_kit.serving import Host, Server
from tests.index_world import World, index_world, tmp_path, until  # noqa: F401 - a fixture
from tests.ledger_stack import PROJECT, Stack, Tokens, create_rule, running, stamp, supersede

WORDS = ["refund", "invoice", "retry", "tax", "parcel", "courier", "ledger", "branch", "release", "audit"]
EVERY_STATE = [number for number in ledger_pb2.State.values() if number != ledger_pb2.STATE_UNSPECIFIED]


@dataclass
class Trio:
    """Ledger, index and retrieval, all real."""

    stack: Stack
    index: World
    stub: Any

    async def search(self, text: str, **rest: Any) -> pb.SearchResponse:
        """Search, keeping the closest hits also when it abstains."""
        request = pb.SearchRequest(project=f"projects/{PROJECT}", text=text, include_rejected=True, **rest)
        found: pb.SearchResponse = await self.stub.Search(request, timeout=20)
        return found

    async def in_force(self, **moment: Any) -> dict[str, str]:
        """Return the oracle's answer: the revision in force of every family, as the ledger lists it."""
        request = ledger_service_pb2.QueryHeadsRequest(
            project=f"projects/{PROJECT}", view=ledger_service_pb2.HEAD_VIEW_STATE, page_size=500, **moment
        )
        response = await self.stack.as_("reader").ledger.QueryHeads(request)
        return {h.family.name: h.revision.name for h in response.heads}


def hits_of(found: pb.SearchResponse) -> list[pb.Hit]:
    """Return what was found, answered or not."""
    return [*found.hits, *found.rejected]


@asynccontextmanager
async def trio(folder: Path, *, follow: bool = True) -> AsyncIterator[Trio]:
    """Run all three over loopback."""
    async with running() as stack:
        await stack.make_project()
        async with (
            index_world(folder, ledger=stack, token="indexer", follow=follow) as index,
            Host(grace_seconds=2.0) as host,
        ):
            address = next(p.address for p in index.host._parts if isinstance(p, Server))
            to_ledger, to_index = connect(stack.address), connect(address)
            host.on_stop("ledger channel", to_ledger.close)
            host.on_stop("index channel", to_index.close)
            settings = RetrievalSettings.model_construct(
                **{name: f.default for name, f in RetrievalSettings.model_fields.items()}
            )
            app = await create_app(
                settings, ledger=GrpcLedgerReader(to_ledger), index=GrpcCandidateSource(to_index), clock=stack.clock
            )
            server = host.serve(Boundary(Tokens(), limits=LIMITS))
            for add in app.servicers:
                add(server)
            client = connect(server.address, token=lambda: "reader")
            host.on_stop("client", client.close)
            await host.start()
            yield Trio(stack, index, retrieval_service_pb2_grpc.RetrievalServiceStub(client))


class History:
    """Random changes; what the ledger refuses is no change."""

    def __init__(self, stack: Stack, seed: int) -> None:
        self._stack = stack
        self._random = random.Random(seed)
        self.families: list[str] = []
        self.moments: list[datetime] = []

    async def step(self) -> None:
        """Make one change, mostly creations at first."""
        rng, clock = self._random, self._stack.clock
        clock.advance(timedelta(days=rng.randint(0, 20)))
        title = " ".join(rng.sample(WORDS, 3))
        soon = clock.now() + timedelta(days=rng.randint(1, 60))
        kind = rng.choice(["create", "create", "supersede", "schedule", "invalidate", "expire", "deprecate"])
        if len(self.families) < 3 or kind == "create":
            mutation = create_rule(title)
        elif kind in {"supersede", "schedule"}:
            mutation = supersede(rng.choice(self.families), title, soon if kind == "schedule" else None)
        elif kind == "invalidate":
            target = rng.choice(self.families)
            mutation = proposal_pb2.Mutation(invalidate=proposal_pb2.InvalidateMutation(family=target))
        elif kind == "expire":
            mutation = proposal_pb2.Mutation(
                set_expiry=proposal_pb2.SetExpiryMutation(family=rng.choice(self.families), valid_to=stamp(soon))
            )
        else:
            old, new = rng.sample(self.families, 2)
            mutation = proposal_pb2.Mutation(
                deprecate=proposal_pb2.DeprecateMutation(family=old, replacement_family=new, rationale="newer")
            )
        try:
            applied = await self._stack.publish(mutation)
        except grpc.aio.AioRpcError as error:
            from_rpc_error(error)
            return
        if mutation.WhichOneof("kind") == "create":
            self.families.append(applied.head.family.name)
        self.moments.append(clock.now())


@pytest.mark.timeout(120)
@pytest.mark.parametrize("seed", [11, 12])
async def test_random_histories_show_only_what_is_in_force(tmp_path: Path, seed: int) -> None:
    """R1, L8: over random histories, wherever the index is, exactly what is in force comes back, now and as of."""
    rng = random.Random(seed)
    async with trio(tmp_path) as svc:
        history = History(svc.stack, seed)
        for number in range(60):
            await history.step()
            if number % 6:
                continue
            question = " ".join(rng.sample(WORDS, 3))
            expected = await svc.in_force()
            found = await svc.search(question, limit=8, profile=rng.choice(["default", "article"]))
            shown = {h.head.family.name: h.head.revision.name for h in hits_of(found)}
            assert shown.items() <= expected.items()
            assert {h.head.state for h in hits_of(found)} <= {ledger_pb2.STATE_ACTIVE}
        await svc.index.settled()
        for _ in range(12):
            moment = {"valid_at": stamp(rng.choice(history.moments))}
            if rng.random() < 0.5:
                moment["known_at"] = stamp(rng.choice(history.moments))
            expected = await svc.in_force(**moment)
            found = await svc.search(" ".join(WORDS), limit=100, **moment)
            shown = {h.head.family.name: h.head.revision.name for h in hits_of(found)}
            assert shown == expected


async def test_superseded_decision_is_answered_by_the_one_in_force(tmp_path: Path) -> None:
    """DESIGN 6: the best match was replaced, by another family or a later revision: both lead to what is in force."""
    async with trio(tmp_path) as svc:
        old = await svc.stack.create("vouchers expire yearly", key="rule/1")
        new = await svc.stack.create("credit never lapses", key="rule/2")
        await svc.stack.publish(
            proposal_pb2.Mutation(
                deprecate=proposal_pb2.DeprecateMutation(
                    family=old.head.family.name, replacement_family=new.head.family.name, rationale="the law changed"
                )
            )
        )
        fee = await svc.stack.create("fee of two percent")
        await svc.stack.publish(supersede(fee.head.family.name, "surcharge abolished"), reason="customers left")
        await svc.index.settled()
        by_family = await svc.search("vouchers expire yearly")
        by_revision = await svc.search("fee of two percent")
    first = hits_of(by_family)[0]
    assert first.head.revision.content.title == "credit never lapses"
    assert first.origin == pb.HIT_ORIGIN_SUCCESSOR
    assert [(r.identity_key, r.title, r.reason, r.matched) for r in first.replaced] == [
        ("rule/1", "vouchers expire yearly", "the law changed", True)
    ]
    assert first.replaced[0].HasField("time")
    first = hits_of(by_revision)[0]
    assert first.head.revision.content.title == "surcharge abolished"
    assert [(r.title, r.reason, r.matched) for r in first.replaced] == [("fee of two percent", "customers left", True)]
    assert first.head.evidence[0].evidence.locator


async def test_writes_are_read_while_the_index_stands_still(tmp_path: Path) -> None:
    """R2: with the token of a write it is seen though nothing indexes it; the answer says how far the index is."""
    async with trio(tmp_path, follow=False) as svc:

        async def filled() -> bool:
            return svc.index.app.generations.live.complete

        await until(filled)
        for title in ("refund window thirty days", "invoice numbers are sequential"):
            applied = await svc.stack.create(title)
            found = await svc.search(title, consistency={"at_least_as_fresh": applied.token})
            assert hits_of(found)[0].head.revision.content.title == title
            assert found.confidence == pb.ANSWER_CONFIDENCE_ANSWER
            assert found.freshness.ledger_position == applied.position
            assert found.freshness.index_position < applied.position


async def test_other_states_come_back_labelled(tmp_path: Path) -> None:
    """States beyond ACTIVE only when asked for, each with its own label."""
    async with trio(tmp_path) as svc:
        gone = await svc.stack.create("coupons are stackable")
        target = proposal_pb2.InvalidateMutation(family=gone.head.family.name)
        await svc.stack.publish(proposal_pb2.Mutation(invalidate=target))
        await svc.stack.publish(create_rule("coupons draft", standing=ledger_pb2.STANDING_PROPOSED))
        await svc.index.settled()
        plain = await svc.search("coupons stackable")
        asked = await svc.search("coupons stackable", states=EVERY_STATE)
    assert hits_of(plain) == []
    assert plain.abstention.reason
    labelled = {h.head.revision.content.title: h.head.state for h in hits_of(asked)}
    assert labelled == {
        "coupons are stackable": ledger_pb2.STATE_INVALIDATED,
        "coupons draft": ledger_pb2.STATE_NOT_IN_FORCE,
    }
