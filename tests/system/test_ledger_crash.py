"""The ledger under kill -9 and under races."""

from __future__ import annotations

import asyncio
import os
import random
import signal
import sqlite3
import subprocess
import sys
import threading
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from ledger_svc.domain.audit import ChainVerifier
from ledger_svc.domain.model import Category, CategoryPolicy, Content, Create, Policy, Supersede
from ledger_svc.service.admin import AdminService
from ledger_svc.service.commands import Request
from ledger_svc.service.context import Ledger
from ledger_svc.service.proposals import Applied, ProposalService
from ledger_svc.store import LedgerStore
from ledger_svc.store_sqlite import AlreadyOpenError, SqliteLedgerStore
from ledger_svc.views import ProposalView
from service_kit.clock import SystemClock
from service_kit.ids import new_id
from service_kit.principals import Role
from tests.contract.test_ledger_store_contract import ANA, ROOT, RUI, World
from tests.system.ledger_crasher import APPLY, LOST, PROJECT

KILLS = 200


async def _new_ledger(file: Path) -> None:
    store = await SqliteLedgerStore.open(file)
    admin = AdminService(Ledger(store, SystemClock(), new_id))
    free = Policy(1, {Category.EPISODE: CategoryPolicy()})
    await admin.create_project(Request(ROOT, PROJECT, "CreateProject", new_id(), b"", Role.ADMIN), "", free)
    await store.close()


def _half_commits(file: Path, *, thorough: bool) -> list[str]:
    """Name every commit of which a part is missing, by looking at the tables themselves."""
    database = sqlite3.connect(file)
    try:
        one = database.execute
        position = one("SELECT position FROM projects WHERE project_id = ?", (PROJECT,)).fetchone()[0]
        counted, highest = one("SELECT count(*), coalesce(max(position), 0) FROM commits").fetchone()
        problems = [] if position == counted == highest else [f"position {position}, {counted} commits to {highest}"]
        checks = {
            "revision": "SELECT 1 FROM published AS v WHERE v.position = c.position",
            "row": "SELECT 1 FROM published AS v JOIN timeline_rows AS t ON t.revision_id = v.revision_id "
            "WHERE t.opened_position = c.position AND v.position = c.position",
            "audit": "SELECT 1 FROM audited AS a WHERE a.position = c.position",
            "proposal": "SELECT 1 FROM proposals AS p WHERE p.proposal_id = json_extract(c.body, '$.proposal_id') "
            "AND p.status = 'APPLIED' AND json_extract(p.progress, '$.applied_position') = c.position",
            "approval": "SELECT 1 FROM approvals AS a WHERE a.proposal_id = json_extract(c.body, '$.proposal_id') "
            "AND json_extract(a.progress, '$.consumed_position') = c.position",
            "head": "SELECT 1 FROM published AS v JOIN heads AS h ON h.family_id = v.family_id "
            "WHERE v.position = c.position AND h.position >= c.position",
            "reply": "SELECT 1 FROM replied AS r WHERE r.position = c.position",
        }
        if not thorough:
            return problems
        # To look commits up by what is inside the texts.
        one("CREATE TEMP TABLE audited AS SELECT json_extract(body, '$.position') AS position FROM audit")
        one("CREATE INDEX temp.audited_position ON audited (position)")
        one(
            "CREATE TEMP TABLE replied AS "
            "SELECT json_extract(CAST(reply AS TEXT), '$.position') AS position FROM replies"
        )
        one("CREATE INDEX temp.replied_position ON replied (position)")
        one("CREATE TEMP TABLE published AS SELECT position, family_id, revision_id FROM revisions")
        one("CREATE INDEX temp.published_position ON published (position)")
        for part, query in checks.items():
            found = one(f"SELECT position FROM commits AS c WHERE NOT EXISTS ({query})")  # noqa: S608 - own texts
            problems += [f"commit {row[0]} without its {part}" for row in found]
        # A revision, row or applied proposal that no commit tells of is the other half.
        orphans = one(
            "SELECT revision_id FROM revisions AS v WHERE NOT EXISTS "
            "(SELECT 1 FROM commits AS c WHERE c.project_id = v.project_id AND c.position = v.position)"
        )
        problems += [f"revision {row[0]} without a commit" for row in orphans]
        return problems
    finally:
        database.close()


@dataclass(slots=True)
class Told:
    """What writers said of their applies before they died."""

    acknowledged: dict[int, str] = field(default_factory=dict)
    """Position to proposal."""
    unanswered: dict[str, str] = field(default_factory=dict)
    """Proposal to request id: nobody knows what became of it."""


def _life(crasher: subprocess.Popen[str], number: int, after: str, delay: float, told: Told) -> None:
    """Let one writer live until a moment after its first line of a kind; note what it said."""
    assert crasher.stdin is not None
    assert crasher.stdout is not None
    crasher.stdin.write(f"go {number}\n")
    crasher.stdin.flush()
    child = 0
    timer: threading.Timer | None = None
    for line in crasher.stdout:
        words = line.split()
        if words[0] == "pid":
            child = int(words[1])
        elif words[0] == "ask":
            told.unanswered[words[1]] = words[2]
        elif words[0] == "lost":
            del told.unanswered[words[1]]
        elif words[0] == "ack":
            del told.unanswered[words[1]]
            assert told.acknowledged.setdefault(int(words[2]), words[1]) == words[1]
        elif words[0] == "dead":
            break
        if words[0] == after and timer is None:
            timer = threading.Timer(delay, os.kill, (child, signal.SIGKILL))
            timer.start()
    assert timer is not None, "the writer died by itself"
    timer.join()


async def _settle(store: LedgerStore, told: Told) -> None:
    """Send every request again that was not answered: one commit, or the answer of a loser; twice the same."""
    service = ProposalService(Ledger(store, SystemClock(), new_id))
    for proposal_id, request_id in told.unanswered.items():
        item = (Request(ANA, PROJECT, APPLY, request_id, b"", Role.READER), proposal_id, "")
        first, again = [(await service.apply(ANA, PROJECT, [item], brief=True))[0] for _ in range(2)]
        if isinstance(first, Applied):
            assert again == first
            assert told.acknowledged.setdefault(first.position, proposal_id) == proposal_id
        else:
            assert getattr(first, "reason", "") in LOST
            assert str(first) == str(again)


@pytest.mark.slow
def test_two_hundred_kills_lose_no_acknowledged_commit_and_leave_no_half(tmp_path: Path) -> None:
    """L1: 200 times kill -9 at a random point under load: every acknowledged commit is there, whole, in order."""
    file = tmp_path / "ledger.sqlite"
    asyncio.run(_new_ledger(file))
    chance = random.Random(7)
    told = Told()
    program = Path(__file__).with_name("ledger_crasher.py")
    with subprocess.Popen(
        [sys.executable, str(program), str(file)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as crasher:
        try:
            for number in range(KILLS):
                # Half of them die soon after opening the file, half among commits.
                after = ("ready", "ack")[number % 2]
                _life(crasher, number, after, chance.uniform(0.0, 0.08), told)
                assert _half_commits(file, thorough=number % 20 == 19) == []
        finally:
            assert crasher.stdin is not None
            crasher.stdin.close()
            crasher.wait(30)
    assert len(told.acknowledged) > KILLS
    assert told.unanswered
    asyncio.run(_check(file, told))


async def _check(file: Path, told: Told) -> None:
    store = await SqliteLedgerStore.open(file)
    try:
        await _settle(store, told)
        stored: dict[int, str] = {}
        while True:
            view = await store.changes(PROJECT, len(stored), 500)
            stored.update({c.position: c.proposal_id for c in view.commits})
            if not view.commits:
                break
        assert sorted(stored) == list(range(1, len(stored) + 1))
        assert {p: stored.get(p) for p in told.acknowledged} == told.acknowledged
        assert len(set(stored.values())) == len(stored)
        assert await store.verify(PROJECT, ChainVerifier()) == []
    finally:
        await store.close()


async def test_a_second_process_on_one_ledger_is_refused(tmp_path: Path) -> None:
    """S5: whoever comes second is told who holds the file and what to do, and disturbs nothing."""
    file = tmp_path / "ledger.sqlite"
    store = await SqliteLedgerStore.open(file)
    try:
        with pytest.raises(AlreadyOpenError, match="in use by another process"):
            await SqliteLedgerStore.open(file)
    finally:
        await store.close()
    again = await SqliteLedgerStore.open(file)
    await again.close()


@pytest.mark.slow
async def test_a_thousand_races_on_one_head_have_one_winner_each() -> None:
    """L2: 1,000 times N proposals race for one head from several tasks: exactly one commit each, nothing else moves."""
    store = await SqliteLedgerStore.open(":memory:")
    try:
        world = World(store)
        await world.make_project()
        family = await world.create("start")
        for race in range(1_000):
            contenders = 2 + race % 3
            calls = [world.request(ANA, "CreateProposal") for _ in range(contenders)]
            drafts = [world.draft(Supersede(family, Content(f"race {race} by {n}"))) for n in range(contenders)]
            made = await world.proposals.create(ANA, "p1", list(zip(calls, drafts, strict=True)))
            views = [view for view in made if not isinstance(view, Exception)]
            assert len(views) == contenders
            await _approve_all(world, views)
            results = await asyncio.gather(*(world.apply(view) for view in views), return_exceptions=True)
            won = [r for r in results if isinstance(r, Applied)]
            # The first commit made the family.
            assert [w.position for w in won] == [race + 2]
            assert all(getattr(r, "reason", "") == "HEAD_MOVED" for r in results if not isinstance(r, Applied))
        head = await world.head(family)
        assert head.head.number == 1_001
    finally:
        await store.close()


async def _approve_all(world: World, views: list[ProposalView]) -> None:
    proposals = [view.proposal for view in views]
    asked = [(world.request(RUI, "ApproveProposal"), p.proposal_id, p.preview_hash, "") for p in proposals]
    for answer in await world.proposals.approve(RUI, "p1", asked):
        if isinstance(answer, Exception):
            raise answer


async def test_an_apply_that_is_repeated_after_a_crash_is_free(tmp_path: Path) -> None:
    """L1, L7: whoever does not know whether the apply got through asks again and gets one commit."""
    file = tmp_path / "ledger.sqlite"
    store = await SqliteLedgerStore.open(file)
    world = World(store)
    await world.make_project()
    view = await world.approve(await world.propose(Create(Category.DESIGN_RULE, Content("once"))))
    item = (world.request(ANA, "ApplyProposal", request_id="the one"), view.proposal.proposal_id, "")
    first = await world.proposals.apply(ANA, "p1", [item], brief=True)
    await store.close()
    store = await SqliteLedgerStore.open(file)
    try:
        again = World(store)
        assert await again.proposals.apply(ANA, "p1", [item], brief=True) == first
        assert await store.position("p1") == 1
    finally:
        await store.close()
