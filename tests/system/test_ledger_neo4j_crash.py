"""The ledger on Neo4j under kill -9: of its own processes, and of the server; and races between two processes."""

from __future__ import annotations

import asyncio
import itertools
import os
import random
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from ledger_svc.domain.audit import ChainVerifier
from ledger_svc.domain.model import Category, CategoryPolicy, Content, Create, Policy, ProposalStatus, Supersede
from ledger_svc.service.admin import AdminService
from ledger_svc.service.commands import Request
from ledger_svc.service.context import Ledger
from ledger_svc.service.proposals import Applied
from ledger_svc.store import LedgerStore
from ledger_svc.store_faults import Faults
from ledger_svc.store_neo4j import Neo4jLedgerStore
from service_kit.clock import SystemClock
from service_kit.ids import new_id
from service_kit.principals import Role
from tests import neo4j_fixture
from tests.contract.test_ledger_faults import Client
from tests.contract.test_ledger_store_contract import ANA, ROOT, World
from tests.system.ledger_crasher import PROJECT
from tests.system.test_ledger_crash import _approve_all, _life

PROCESS_KILLS = int(os.environ.get("DECISIONSSEARCH_TEST_PROCESS_KILLS", "30"))
SERVER_KILLS = int(os.environ.get("DECISIONSSEARCH_TEST_SERVER_KILLS", "4"))
RACES = int(os.environ.get("DECISIONSSEARCH_TEST_RACES", "150"))


async def _whole(store: LedgerStore, project: str, acknowledged: dict[int, str]) -> int:
    """Check that every commit is whole, and that nothing acknowledged is missing; return how many there are."""
    stored: dict[int, str] = {}
    while view := (await store.changes(project, len(stored), 500)).commits:
        stored.update({commit.position: commit.proposal_id for commit in view})
    assert sorted(stored) == list(range(1, len(stored) + 1))
    assert {p: stored.get(p) for p in acknowledged} == acknowledged
    # The chain covers every record of every commit: a half of one would be a record without entry, or the reverse.
    assert await store.verify(project, ChainVerifier()) == []
    applied = 0
    after = 0
    while True:
        views, after = await store.proposals(project, [ProposalStatus.APPLIED], "", after, 500)
        applied += len(views)
        if not after:
            break
    assert applied == len(stored)
    half = neo4j_fixture.run(
        "MATCH (v:Revision {project_id: $p}) WHERE NOT (v)-[:OF]->(:Family) OR NOT (:TimelineRow)-[:SHOWS]->(v) "
        "RETURN v.revision_id",
        p=project,
    )
    assert half == []
    return len(stored)


@pytest.mark.slow
def test_killed_processes_lose_no_acknowledged_commit_and_leave_no_half() -> None:
    """L1: kill -9 at random points of two processes that serve one project: what was acknowledged is there, whole."""
    neo4j_fixture.wipe()
    server = neo4j_fixture.server()
    where = f"{server.uri} {server.user} {server.password}"
    asyncio.run(_new_project())
    acknowledged: dict[int, str] = {}
    lock = threading.Lock()
    program = Path(__file__).with_name("ledger_crasher.py")

    def lives(which: int) -> None:
        chance = random.Random(which)
        with subprocess.Popen(
            [sys.executable, str(program), where], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        ) as crasher:
            try:
                for number in range(PROCESS_KILLS // 2):
                    after = ("ready", "ack")[number % 2]
                    for position, proposal in _life(crasher, 2 * number + which, after, chance.uniform(0.0, 0.3)):
                        with lock:
                            assert acknowledged.setdefault(position, proposal) == proposal
            finally:
                assert crasher.stdin is not None
                crasher.stdin.close()
                crasher.wait(30)

    with ThreadPoolExecutor(2) as pool:
        for done in [pool.submit(lives, which) for which in range(2)]:
            done.result()
    assert len(acknowledged) > PROCESS_KILLS // 2
    asyncio.run(_check(acknowledged))


async def _new_project() -> None:
    store = await Neo4jLedgerStore.open(neo4j_fixture.connection())
    admin = AdminService(Ledger(store, SystemClock(), new_id))
    free = Policy(1, {Category.EPISODE: CategoryPolicy()})
    await admin.create_project(Request(ROOT, PROJECT, "CreateProject", new_id(), b"", Role.ADMIN), "", free)
    await store.close()


async def _check(acknowledged: dict[int, str]) -> None:
    store = await Neo4jLedgerStore.open(neo4j_fixture.connection())
    try:
        await _whole(store, PROJECT, acknowledged)
    finally:
        await store.close()


@pytest.mark.slow
@pytest.mark.timeout(900)
async def test_a_killed_server_loses_no_acknowledged_commit() -> None:
    """L1, L7: kill -9 of Neo4j mid-transaction, and restart: who insists gets one answer, nothing is lost or half."""
    server = neo4j_fixture.server()
    if not server.owned:
        pytest.skip("only a server that was started here can be killed")
    neo4j_fixture.wipe()
    store = await Neo4jLedgerStore.open(neo4j_fixture.connection(retry_seconds=60.0))
    acknowledged: dict[int, str] = {}
    done = False
    try:
        client = Client(store, Faults())
        await client.make_project()
        numbers = itertools.count()

        async def work() -> None:
            while not done:
                content = Content(f"rule {next(numbers)}")
                applied = await client.publish_insisting(Create(Category.DESIGN_RULE, content), "p1")
                assert acknowledged.setdefault(applied.position, applied.view.proposal.proposal_id)

        writers = [asyncio.ensure_future(work()) for _ in range(8)]
        chance = random.Random(3)
        for _ in range(SERVER_KILLS):
            before = len(acknowledged)
            while len(acknowledged) < before + 10:
                await asyncio.sleep(0.02)
                for writer in writers:
                    if writer.done():
                        writer.result()
            await asyncio.sleep(chance.uniform(0.0, 0.1))
            await asyncio.to_thread(server.kill)
            await asyncio.to_thread(server.start)
        done = True
        await asyncio.gather(*writers)
        assert await _whole(store, "p1", acknowledged) == len(acknowledged)
    finally:
        done = True
        await store.close()


@pytest.mark.slow
@pytest.mark.timeout(900)
async def test_races_between_two_processes_have_one_winner_each() -> None:
    """L2: N proposals race for one head through two stores: exactly one commit each; the recorded history is linear."""
    neo4j_fixture.wipe()
    stores = [await Neo4jLedgerStore.open(neo4j_fixture.connection(warnings=False)) for _ in range(2)]
    history: list[tuple[float, float, int, int]] = []
    try:
        worlds = [World(store) for store in stores]
        worlds[1].clock = worlds[0].clock
        worlds[1].ledger.clock = worlds[0].clock  # type: ignore[misc]  # one clock for both
        worlds[1].ledger.new_id = worlds[0].ledger.new_id  # type: ignore[misc]  # ids are unique anywhere
        worlds[1]._requests = itertools.count(1_000_000)
        await worlds[0].make_project()
        family = await worlds[0].create("start")

        async def timed(world: World, view: Any) -> Any:
            started = time.perf_counter()
            try:
                applied = await world.apply(view)
            except Exception as error:  # noqa: BLE001 - what a loser gets is looked at below
                return error
            history.append((started, time.perf_counter(), view.proposal.expected_heads[0].position, applied.position))
            return applied

        for race in range(RACES):
            contenders = 2 + race % 7
            calls = [worlds[0].request(ANA, "CreateProposal") for _ in range(contenders)]
            drafts = [worlds[0].draft(Supersede(family, Content(f"race {race} by {n}"))) for n in range(contenders)]
            made = await worlds[0].proposals.create(ANA, "p1", list(zip(calls, drafts, strict=True)))
            views = [view for view in made if not isinstance(view, Exception)]
            assert len(views) == contenders
            await _approve_all(worlds[race % 2], views)
            results = await asyncio.gather(*(timed(worlds[n % 2], view) for n, view in enumerate(views)))
            won = [one for one in results if isinstance(one, Applied)]
            assert [one.position for one in won] == [race + 2]
            assert all(getattr(one, "reason", "") == "HEAD_MOVED" for one in results if not isinstance(one, Applied))
        _check_linear(history, first=1)
        assert await stores[0].verify("p1", ChainVerifier()) == []
    finally:
        for store in stores:
            await store.close()


def _check_linear(history: list[tuple[float, float, int, int]], first: int) -> None:
    """Check a recorded history of one head: (started, answered, expected head's position, own position)."""
    ordered = sorted(history, key=lambda one: one[3])
    last = first
    for _, _, expected, position in ordered:
        assert expected == last, "a commit's expected head is the commit before it"
        last = position
    for started, _, _, position in ordered:
        # In real time: what was answered before this one began comes before it.
        assert all(other < position for _, answered, _, other in ordered if answered < started)
