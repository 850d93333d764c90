"""The ledger on Neo4j under kill -9: of its own processes, and of the server.

``DECISIONSSEARCH_TEST_FULL=1`` kills more often: 100 times the processes, 30 times the server.
"""

from __future__ import annotations

import asyncio
import itertools
import os
import random
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from ledger_svc.domain.audit import ChainVerifier
from ledger_svc.domain.model import Category, CategoryPolicy, Content, Create, Policy, ProposalStatus
from ledger_svc.service.admin import AdminService
from ledger_svc.service.commands import Request
from ledger_svc.service.context import Ledger
from ledger_svc.store import LedgerStore
from ledger_svc.store_faults import Faults
from ledger_svc.store_neo4j import Neo4jLedgerStore
from service_kit.clock import SystemClock
from service_kit.ids import new_id
from service_kit.principals import Role
from tests import neo4j_fixture
from tests.contract.test_ledger_faults import Client
from tests.contract.test_ledger_store_contract import ROOT
from tests.system.ledger_crasher import PROJECT
from tests.system.test_ledger_crash import Told, _life, _settle

FULL = os.environ.get("DECISIONSSEARCH_TEST_FULL") == "1"
PROCESS_KILLS = 100 if FULL else 30
SERVER_KILLS = 30 if FULL else 5


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
    assert applied == len(stored) == len(set(stored.values()))
    half = neo4j_fixture.run(
        "MATCH (v:Revision {project_id: $p}) WHERE NOT (v)-[:OF]->(:Family) OR NOT (:TimelineRow)-[:SHOWS]->(v) "
        "RETURN v.revision_id",
        p=project,
    )
    assert half == []
    return len(stored)


@pytest.mark.slow
@pytest.mark.timeout(3_600 if FULL else 900)
def test_killed_processes_lose_no_acknowledged_commit_and_leave_no_half() -> None:
    """L1, L7: kill -9 at random points of two processes on one project: all acknowledged is there, retries settle."""
    neo4j_fixture.wipe()
    server = neo4j_fixture.server()
    where = f"{server.uri} {server.user} {server.password}"
    asyncio.run(_new_project())
    tellers = [Told(), Told()]
    program = Path(__file__).with_name("ledger_crasher.py")

    def lives(which: int) -> None:
        chance = random.Random(which)
        with subprocess.Popen(
            [sys.executable, str(program), where], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        ) as crasher:
            try:
                for number in range(PROCESS_KILLS // 2):
                    # They die soon after the start, with an apply on its way, or among commits.
                    after = ("ready", "ask", "ack")[number % 3]
                    _life(crasher, 2 * number + which, after, chance.uniform(0.0, 0.3), tellers[which])
            finally:
                assert crasher.stdin is not None
                crasher.stdin.close()
                crasher.wait(30)

    with ThreadPoolExecutor(2) as pool:
        for done in [pool.submit(lives, which) for which in range(2)]:
            done.result()
    assert sum(len(told.acknowledged) for told in tellers) > PROCESS_KILLS // 2
    assert any(told.unanswered for told in tellers)
    asyncio.run(_check(tellers))


async def _new_project() -> None:
    store = await Neo4jLedgerStore.open(neo4j_fixture.connection())
    admin = AdminService(Ledger(store, SystemClock(), new_id))
    free = Policy(1, {Category.EPISODE: CategoryPolicy()})
    await admin.create_project(Request(ROOT, PROJECT, "CreateProject", new_id(), b"", Role.ADMIN), "", free)
    await store.close()


async def _check(tellers: list[Told]) -> None:
    store = await Neo4jLedgerStore.open(neo4j_fixture.connection())
    acknowledged: dict[int, str] = {}
    try:
        for told in tellers:
            await _settle(store, told)
            assert not told.acknowledged.keys() & acknowledged.keys()
            acknowledged |= told.acknowledged
        await _whole(store, PROJECT, acknowledged)
    finally:
        await store.close()


@pytest.mark.slow
@pytest.mark.timeout(3_600 if FULL else 900)
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
