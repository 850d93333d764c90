"""L1 and L7 on every store: whatever step of the port fails, is late, is done twice or is not acknowledged."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Awaitable, Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from ledger_svc.domain.audit import ChainVerifier
from ledger_svc.domain.model import Category, Content, Create, ProposalStatus, Supersede
from ledger_svc.outbox import MOST_ATTEMPTS, EventRef
from ledger_svc.service.proposals import Applied
from ledger_svc.store import LedgerStore
from ledger_svc.store_faults import Fault, Faults, at_steps, with_faults
from service_kit.errors import DomainError
from tests.contract.test_ledger_store_contract import ADAPTERS, ANA, RUI, World, _value

FAULTS = (Fault.LOST, Fault.UNACKNOWLEDGED, Fault.TWICE, Fault.LATE)


@pytest.fixture(params=["sqlite-file", "neo4j"])
async def store(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[LedgerStore]:
    """An empty store of each technology."""
    made = await ADAPTERS[request.param](tmp_path)()
    yield made
    await made.close()


class Client(World):
    """Sends each request until it has an answer, always with the same request_id."""

    def __init__(self, store: LedgerStore, faults: Faults) -> None:
        super().__init__(with_faults(store, faults))
        self.faults = faults

    async def insist(self, call: Callable[[], Awaitable[Any]]) -> Any:
        """Call until there is an answer."""
        while True:
            try:
                made = await call()
                return _value(made[0] if isinstance(made, list) else made)
            except DomainError as error:
                if error.reason != "DEPENDENCY_UNAVAILABLE":
                    raise

    async def publish_insisting(self, mutation: Any, project: str) -> Any:
        """Propose, approve and apply, each until it is answered."""
        call = self.request(ANA, "CreateProposal", project)
        draft = self.draft(mutation, project)
        view = await self.insist(lambda: self.proposals.create(ANA, project, [(call, draft)]))
        proposal = view.proposal
        approve = self.request(RUI, "ApproveProposal", project)
        item = (approve, proposal.proposal_id, proposal.preview_hash, "")
        await self.insist(lambda: self.proposals.approve(RUI, project, [item]))
        apply = self.request(ANA, "ApplyProposal", project)
        again = (apply, proposal.proposal_id, "")
        return await self.insist(lambda: self.proposals.apply(ANA, project, [again], brief=False))


async def _projects(client: Client, names: list[str]) -> None:
    for name in names:
        await client.make_project(name)


async def _one_effect(store: LedgerStore, project: str) -> None:
    """Check that a publication is there as a whole, once."""
    assert await store.position(project) == 1
    assert await store.verify(project, ChainVerifier()) == []
    views, _ = await store.proposals(project, list(ProposalStatus), "", 0, 10)
    assert [view.proposal.status for view in views] == [ProposalStatus.APPLIED]
    assert [len(view.approvals) for view in views] == [1]
    assert len((await store.changes(project, 0, 10)).commits) == 1
    assert len(await store.families(project, "", "", (0, ""), 10)) == 1


async def test_a_fault_at_any_step_of_a_publication_leaves_one_effect(store: LedgerStore) -> None:
    """L1, L7: every call of the port fails once in each way; the repeated requests end in one whole publication."""
    plain = Client(store, Faults())
    await plain.make_project("steps")
    before = len(plain.faults.steps)
    await plain.publish_insisting(Create(Category.DESIGN_RULE, Content("a rule")), "steps")
    steps = len(plain.faults.steps) - before
    assert steps >= 4
    cases = [(step, fault) for step in range(steps) for fault in FAULTS]
    names = [f"case-{number}" for number in range(len(cases))]
    await _projects(plain, names)
    for name, (step, fault) in zip(names, cases, strict=True):
        plain.faults.choose = at_steps([(len(plain.faults.steps) + step, fault)])
        plain.faults.injected.clear()
        applied = await plain.publish_insisting(Create(Category.DESIGN_RULE, Content("a rule")), name)
        assert isinstance(applied, Applied)
        assert applied.position == 1
        assert len(plain.faults.injected) == 1, (step, fault)
        await _one_effect(store, name)


async def test_many_faults_at_once_change_nothing_that_is_promised(store: LedgerStore) -> None:
    """L1, L2: eight clients on a store that fails every third call: dense positions, nothing lost, nothing twice."""
    chance = random.Random(7)
    client = Client(store, Faults())
    await client.make_project()
    family = await client.create("start")

    def choose(_name: str, _step: int) -> Fault | None:
        return chance.choice(FAULTS) if chance.random() < 0.3 else None

    client.faults.choose = choose

    async def work(number: int) -> None:
        mutation = Create(Category.DESIGN_RULE, Content(f"rule {number}"), f"adr/{number}")
        await client.publish_insisting(mutation, "p1")

    await asyncio.gather(*(work(number) for number in range(8)))
    assert len(client.faults.injected) > 10
    changes = await store.changes("p1", 0, 100)
    assert [commit.position for commit in changes.commits] == list(range(1, 10))
    assert len(await store.families("p1", "", "", (0, ""), 100)) == 9
    assert await store.verify("p1", ChainVerifier()) == []
    client.faults.choose = at_steps([])
    assert (await client.publish_insisting(Supersede(family, Content("end")), "p1")).position == 10


async def test_a_worker_under_faults_handles_every_event(store: LedgerStore) -> None:
    """I2: claims and acknowledgements that are lost or doubled cost time; every event is handled, none is kept."""
    chance = random.Random(11)
    client = Client(store, Faults())
    await client.make_project()
    families = {await client.create(f"rule {number}") for number in range(6)}
    client.faults.choose = lambda name, _: chance.choice(FAULTS) if chance.random() < 0.4 else None
    handled: set[str] = set()
    for _ in range(100):
        now = client.clock.now()
        try:
            events = await client.store.claim_events("w", 2, now, now + timedelta(seconds=5), MOST_ATTEMPTS)
            handled.update(event.family_id for event in events)
            refs = [EventRef(event.id, event.fencing_token) for event in events]
            await client.store.ack_events(refs, client.clock.now())
        except DomainError:
            # What was claimed and not heard of comes back when its lease has run out.
            client.clock.advance(timedelta(seconds=6))
        if (await store.outbox_stats("p1", client.clock.now())).pending == 0:
            break
    stats = await store.outbox_stats("p1", client.clock.now())
    assert (stats.pending, stats.dead) == (0, 0)
    assert handled == families
