"""What only the Neo4j store has to show: plans, schema, the fence, lost connections, two processes on one database."""

from __future__ import annotations

import asyncio
import functools
import inspect
import itertools
import math
import re
import time
from collections.abc import AsyncIterator, Awaitable, Iterator, Mapping
from dataclasses import replace
from datetime import timedelta
from typing import Any, Final

import pytest
from neo4j.exceptions import ServiceUnavailable

from ledger_svc.domain import errors
from ledger_svc.domain.audit import ChainVerifier
from ledger_svc.domain.model import Category, Content, Create, Link, RelationKind, Supersede, Unlink
from ledger_svc.outbox import MOST_ATTEMPTS, EventRef
from ledger_svc.service.proposals import Applied
from ledger_svc.store import SchemaTooNewError, StoreUnreachableError
from ledger_svc.store_neo4j import (
    SCHEMA_VERSION,
    Neo4jConnection,
    Neo4jLedgerStore,
    database,
    governance_reads,
    queries,
    reads,
    schema,
)
from ledger_svc.views import Detail, HeadsPageQuery, HeadsQuery
from service_kit.errors import DomainError
from tests import neo4j_fixture
from tests.bolt_proxy import relaying
from tests.contract.test_ledger_store_contract import ANA, World
from tests.ledger_growth import grow, spread

SCANS = {"NodeByLabelScan", "AllNodesScan", "CartesianProduct", "NodeIndexScan", "AllRelationshipsScan"}
LABELS = {
    *("Project", "Family", "Revision", "Evidence", "Proposal", "Approval"),
    *("TimelineRow", "Relation", "OutboxEvent", "AuditEntry"),
}


@pytest.fixture
async def world() -> AsyncIterator[World]:
    """A fresh ledger on the server, with one project."""
    neo4j_fixture.wipe()
    store = await Neo4jLedgerStore.open(neo4j_fixture.connection())
    try:
        made = World(store)
        await made.make_project()
        yield made
    finally:
        await store.close()


@pytest.fixture
async def other(world: World) -> AsyncIterator[World]:
    """A second store on the same database, as another process has it, with its own ids."""
    store = await Neo4jLedgerStore.open(neo4j_fixture.connection(), poll_seconds=0.02)
    try:
        made = World(store, world.clock)
        made._ids = (f"00000000-0000-7000-9000-{n:012x}" for n in itertools.count(1))
        made.ledger.new_id = lambda: next(made._ids)  # type: ignore[misc]  # a second process makes other ids
        made._requests = itertools.count(1_000_000)
        yield made
    finally:
        await store.close()


# --- Plans ------------------------------------------------------------------------------------------------------------


def _statements() -> Iterator[tuple[str, str]]:
    for name, value in vars(queries).items():
        if name.isupper() and not name.startswith("_"):
            if isinstance(value, str):
                yield name, value
            elif isinstance(value, dict) and name != "PERSIST_PARTS":
                yield from ((f"{name}[{kind}]", text) for kind, text in value.items())


def _fenced_statements() -> Iterator[tuple[str, str]]:
    """Statements as reads run them, with the fence around."""
    sources = "".join(inspect.getsource(module) for module in (reads, governance_reads))
    for name in sorted(set(re.findall(r"\bq\.([A-Z_]+)\b", sources))):
        yield f"fenced {name}", queries.fenced(getattr(queries, name))


def _operators(plan: dict[str, Any]) -> Iterator[str]:
    yield plan["operatorType"].partition("@")[0]
    for child in plan.get("children", ()):
        yield from _operators(child)


@pytest.mark.slow
async def test_no_statement_scans(world: World) -> None:
    """L17: every statement finds its nodes by an index seek, on an empty database as on a full one."""
    from neo4j import GraphDatabase

    server = neo4j_fixture.server()
    found = {**dict(_statements()), **dict(_fenced_statements())}
    assert len(found) > 120
    with (
        GraphDatabase.driver(
            server.uri, auth=(server.user, server.password), notifications_min_severity="OFF"
        ) as driver,
        driver.session() as session,
    ):
        for name, text in found.items():
            operators = set(_operators(session.run(f"EXPLAIN {text}").consume().plan))
            assert not operators & SCANS, name
            if "$rows" not in text and "$parts" not in text:
                assert any("Seek" in one for one in operators), name


@pytest.mark.slow
async def test_the_cost_does_not_grow_with_history(world: World) -> None:
    """L17: heads, pages, applies and claims cost the same at 1,000 and 20,000 revisions, in a family and around it."""
    family = await world.create("long")
    view = await world.head(family)
    like = (view.family, view.revision, view.rows[0])
    stored, best = 0, []
    for size in (1_000, 20_000):
        while stored < size // 2:
            await spread(world.store, like, stored, 500)
            await grow(world.store, family, stored, 500)
            stored += 500
        # The records were made with times in the future of the clock.
        world.clock.advance(timedelta(days=1))
        others = tuple(f"22222222-0000-7000-8000-{number:012x}" for number in range(50))
        found: dict[str, float] = {}
        for turn in range(60):
            for name, seconds in (await _measure(world, family, others, turn)).items():
                found[name] = min(seconds, found.get(name, seconds))
        best.append(found)
    small, large = best
    # Half a millisecond is one step of a busy machine's clock.
    assert {n: (small[n], large[n]) for n in small if large[n] > small[n] * 1.5 + 0.0005} == {}


async def _measure(world: World, family: str, others: tuple[str, ...], turn: int) -> dict[str, float]:
    """Return the seconds of one call of each kind."""

    async def timed(call: Awaitable[Any]) -> float:
        started = time.perf_counter()
        await call
        return time.perf_counter() - started

    now = world.clock.now()
    one = HeadsQuery("p1", "main", now, None, Detail.BASIC, (family,))
    page = HeadsPageQuery("p1", "main", now, now, Detail.BASIC, frozenset(), frozenset(), False, "", 50)
    changed = family if turn % 2 else others[turn % len(others)]
    view = await world.approve(await world.propose(Supersede(changed, Content(f"version {now}"))))
    return {
        "head": await timed(world.store.heads(one)),
        "batch": await timed(world.store.heads(replace(one, family_ids=others))),
        "page": await timed(world.store.heads_page(page)),
        "apply": await timed(world.apply(view)),
        "claim": await timed(world.store.claim_events("w", 1, now, now + timedelta(seconds=9), MOST_ATTEMPTS)),
    }


# --- Schema -----------------------------------------------------------------------------------------------------------


async def test_a_newer_schema_is_refused(world: World) -> None:
    """L1: an old program does not write into what a newer one has made."""
    neo4j_fixture.run("MATCH (l:Ledger {key: 'ledger'}) SET l.schema_version = $v", v=SCHEMA_VERSION + 1)
    with pytest.raises(SchemaTooNewError, match="start a newer program"):
        await Neo4jLedgerStore.open(neo4j_fixture.connection())


async def test_several_processes_may_open_an_empty_database_at_once() -> None:
    """L1: constraints, indexes and the ledger's id are made once, whoever is first."""
    neo4j_fixture.wipe()
    for name in ("family_page", "row_open"):
        neo4j_fixture.run(f"DROP INDEX {name} IF EXISTS")
    stores = await asyncio.gather(*(Neo4jLedgerStore.open(neo4j_fixture.connection()) for _ in range(4)))
    try:
        assert len({store.info.ledger_id for store in stores}) == 1
        made = {row[0] for row in neo4j_fixture.run("SHOW INDEXES YIELD name, state WHERE state = 'ONLINE'")}
        assert made >= {*schema.UNIQUE, *schema.INDEXES}
    finally:
        for store in stores:
            await store.close()


_STORED: Final = "MATCH (l:Ledger {key: 'ledger'}) RETURN l.schema_version"


async def _reopen() -> int:
    store = await Neo4jLedgerStore.open(neo4j_fixture.connection())
    await store.close()
    return store.info.schema_version


async def test_migrations_run_in_order_each_once(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """S6: a database of an older version goes through every step between; an index that a step drops is made anew."""
    await world.create("kept", key="adr/1")
    ran: list[int] = []

    async def first(run: schema.Run) -> None:
        ran.append(1)
        await run("DROP INDEX family_page", {})

    async def second(run: schema.Run) -> None:
        ran.append(2)
        assert await run(_STORED, {}) == [[2]]

    monkeypatch.setattr(schema, "SCHEMA_VERSION", 3)
    monkeypatch.setattr(schema, "MIGRATIONS", {1: first, 2: second})
    assert [await _reopen(), await _reopen()] == [3, 3]
    assert ran == [1, 2]
    assert "family_page" in {
        row[0] for row in neo4j_fixture.run("SHOW INDEXES YIELD name, state WHERE state = 'ONLINE'")
    }
    found = await world.store.family_by_key("p1", "adr/1")
    assert found is not None


async def test_an_empty_database_is_not_migrated(monkeypatch: pytest.MonkeyPatch) -> None:
    """S6: the first start makes the newest schema; steps are for what an older program has written."""
    neo4j_fixture.wipe()
    monkeypatch.setattr(schema, "SCHEMA_VERSION", 3)
    monkeypatch.setattr(schema, "MIGRATIONS", {})
    assert await _reopen() == 3


async def test_a_migration_that_dies_is_gone_on_with(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """S6, L1: steps before the one that fails stay done; the next start goes on with that one."""
    ran: list[int] = []

    async def step(number: int, run: schema.Run) -> None:
        del run
        ran.append(number)
        if ran == [1, 2]:
            raise OSError("the server went away")

    monkeypatch.setattr(schema, "SCHEMA_VERSION", 3)
    monkeypatch.setattr(schema, "MIGRATIONS", {n: functools.partial(step, n) for n in (1, 2)})
    with pytest.raises(OSError, match="went away"):
        await _reopen()
    assert neo4j_fixture.run(_STORED) == [[2]]
    assert await _reopen() == 3
    assert ran == [1, 2, 2]


async def test_an_old_program_does_not_take_a_newer_version_back(world: World) -> None:
    """S6: an old program that looked before a new one migrated is refused in the end, and leaves the version alone."""
    found = database.Database(neo4j_fixture.connection())

    async def overtaken(query: str, parameters: Mapping[str, Any]) -> list[list[Any]]:
        if "awaitIndexes" in query:
            neo4j_fixture.run("MATCH (l:Ledger {key: 'ledger'}) SET l.schema_version = $v", v=SCHEMA_VERSION + 1)
        return await found.run_alone(query, parameters)

    try:
        with pytest.raises(SchemaTooNewError, match="start a newer program"):
            await schema.prepare(overtaken, "an id", "here", 60)
    finally:
        await found.close()
    assert neo4j_fixture.run(_STORED) == [[SCHEMA_VERSION + 1]]


async def test_a_start_that_dies_anywhere_is_begun_anew() -> None:
    """L1: a start that dies at any of its statements leaves nothing that the next one cannot finish."""
    found = database.Database(neo4j_fixture.connection())

    async def prepare(most: float) -> int:
        """Prepare with so many statements; return how many it took."""
        done = 0

        async def run(query: str, parameters: Mapping[str, Any]) -> list[list[Any]]:
            nonlocal done
            if done >= most:
                raise OSError("killed")
            done += 1
            return await found.run_alone(query, parameters)

        await schema.prepare(run, f"id after {most}", "here", 60)
        return done

    try:
        neo4j_fixture.wipe()
        await prepare(math.inf)
        missing = ("ledger_key", "head_page")
        for most in itertools.count():
            neo4j_fixture.wipe()
            neo4j_fixture.run(f"DROP CONSTRAINT {missing[0]} IF EXISTS")
            neo4j_fixture.run(f"DROP INDEX {missing[1]} IF EXISTS")
            try:
                await prepare(most)
            except OSError:
                await prepare(math.inf)
            else:
                break
            assert neo4j_fixture.run(_STORED) == [[SCHEMA_VERSION]]
            assert neo4j_fixture.run("MATCH (l:Ledger) RETURN count(l)") == [[2]]
            names = {row[0] for row in neo4j_fixture.run("SHOW INDEXES YIELD name, state WHERE state = 'ONLINE'")}
            assert names >= {*schema.UNIQUE, *schema.INDEXES}
        assert most > len(missing)
    finally:
        await found.close()


def test_every_step_has_its_migration() -> None:
    """S6: from each older version a step leads on, so no database that was ever written is left behind."""
    assert set(schema.MIGRATIONS) == set(range(1, SCHEMA_VERSION))


async def test_a_server_that_is_not_there_is_named_with_what_to_check() -> None:
    """S3: a ledger without its server does not start, and says why; there is no other store to fall back to."""
    nowhere = Neo4jConnection("bolt://127.0.0.1:9", "neo4j", "secret", retry_seconds=0.1)
    with pytest.raises(StoreUnreachableError, match=r"bolt://127.0.0.1:9 .* check its address") as refused:
        await Neo4jLedgerStore.open(nowhere)
    assert "secret" not in str(refused.value)


# --- The graph --------------------------------------------------------------------------------------------------------


async def test_the_graph_can_be_read_in_a_browser(world: World) -> None:
    """L16: records are nodes with edges between them; an active relation is also a direct edge, until it is retired."""
    base, above = await world.create("base", key="adr/1"), await world.create("above")
    await world.publish(Supersede(base, Content("newer base")))
    made = await world.publish(Link(RelationKind.DEPENDS_ON, above, base))
    labels = {row[0] for row in neo4j_fixture.run("MATCH (n) UNWIND labels(n) AS label RETURN DISTINCT label")}
    assert labels >= LABELS
    titles = neo4j_fixture.run("MATCH (v:Revision)-[:PARENT]->(q)-[:OF]->(f:Family) RETURN v.title, q.title, f.title")
    assert titles == [["newer base", "base", "newer base"]]
    direct = "MATCH (a:Family)-[e:DEPENDS_ON]->(b:Family) RETURN a.family_id, b.family_id, e.branch"
    assert neo4j_fixture.run(direct) == [[above, base, "main"]]
    await world.publish(Unlink(made.view.proposal.result_relation_id))
    assert neo4j_fixture.run(direct) == []
    again = await world.publish(Link(RelationKind.DEPENDS_ON, above, base))
    assert again.view.proposal.result_relation_id != made.view.proposal.result_relation_id
    assert len(neo4j_fixture.run(direct)) == 1


@pytest.mark.parametrize(
    ("spoil", "named"),
    [
        ("MATCH (v:Revision) SET v.content = replace(v.content, 'a rule', 'no rule')", "REVISION"),
        ("MATCH (v:Revision) SET v.title = 'another'", "REVISION"),
        ("MATCH (t:TimelineRow) SET t.valid_from = t.valid_from + 1", "TIMELINE_ROW"),
        ("MATCH (h:Head) SET h.position = 7", "HEAD"),
        ("MATCH (a:Approval) DETACH DELETE a", "APPROVAL"),
        ("MATCH (e:Evidence) SET e.fingerprint = 'other'", "EVIDENCE"),
        ("MATCH (:Revision)-[e:OF]->(:Family) DELETE e", "REVISION"),
        ("MATCH (a:AuditEntry {sequence: 3}) SET a.body = replace(a.body, 'local', 'other')", ""),
        ("MATCH (a:AuditEntry {sequence: 3}) DETACH DELETE a", ""),
        ("MATCH (p:Project) SET p.position = p.position + 1", "PROJECT"),
        ("MATCH (k:IdentityKey) DETACH DELETE k", "FAMILY"),
    ],
)
async def test_tampering_is_found(world: World, spoil: str, named: str) -> None:
    """L15: whatever is changed behind the ledger's back, verifying the chain names the record or the entry."""
    await world.create(key="adr/1")
    assert await world.store.verify("p1", ChainVerifier()) == []
    neo4j_fixture.run(spoil)
    problems = await world.store.verify("p1", ChainVerifier())
    assert problems
    assert any(problem.subject.startswith(named) for problem in problems)


# --- Lost connections -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("what", ["acknowledgement", "commit"])
async def test_an_unknown_outcome_is_settled(world: World, what: str) -> None:
    """L1, L7: a connection that dies in the commit leaves one commit, and its caller with the right answer."""
    view = await world.approve(await world.propose(Create(Category.DESIGN_RULE, Content("once"))))
    async with relaying(neo4j_fixture.server().uri) as proxy:
        store = await Neo4jLedgerStore.open(neo4j_fixture.connection(uri=proxy.uri))
        try:
            own = World(store, world.clock)
            own.ledger.new_id = lambda: next(world._ids)  # type: ignore[misc]  # ids go on where they were
            own._requests = itertools.count(500)
            before = store.groups
            if what == "acknowledgement":
                proxy.lose_acknowledgements = 3
            else:
                proxy.lose_commits = 3
            # A read ends with a commit as well: whichever it is, it is done again.
            applied = await own.apply(view)
            assert proxy.lost == 3
            assert store.groups == before + 1
        finally:
            await store.close()
    assert applied.position == 1
    assert await world.store.position("p1") == 1
    assert await world.store.verify("p1", ChainVerifier()) == []


async def test_a_server_that_stays_away_is_reported_in_time(world: World) -> None:
    """R7: when every connection dies the call ends as DEPENDENCY_UNAVAILABLE, within its bound, without driver text."""
    async with relaying(neo4j_fixture.server().uri) as proxy:
        store = await Neo4jLedgerStore.open(neo4j_fixture.connection(uri=proxy.uri, retry_seconds=0.5))
        try:
            own = World(store, world.clock)
            proxy.lose_commits = 1_000
            with pytest.raises(DomainError) as refused:
                await own.propose(Create(Category.DESIGN_RULE, Content("never")))
            assert refused.value.reason == "DEPENDENCY_UNAVAILABLE"
            assert "bolt" not in refused.value.message
        finally:
            proxy.lose_commits = 0
            await store.close()


async def test_a_fault_at_any_statement_of_an_apply_leaves_all_or_nothing(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """L1: whichever statement of the apply fails: nothing is there; asked again, all of it is."""
    base, above = await world.create("base"), await world.create("above")
    await world.publish(Link(RelationKind.DEPENDS_ON, above, base))
    run = database.Transaction.run
    left = 0

    async def failing(self: Any, query: str, /, **parameters: Any) -> list[list[Any]]:
        nonlocal left
        left -= 1
        if left == 0:
            raise ServiceUnavailable("cut")
        return await run(self, query, **parameters)

    monkeypatch.setattr(database.Transaction, "run", failing)
    store = await Neo4jLedgerStore.open(neo4j_fixture.connection(retry_seconds=0.0))
    own = World(store, world.clock)
    own.ledger.new_id = lambda: next(world._ids)  # type: ignore[misc]  # ids go on where they were
    own._requests = itertools.count(1_000)
    position, faults = 3, 0
    try:
        for statement in range(2, 40):
            view = await world.approve(await world.propose(Supersede(base, Content(f"statement {statement}"))))
            item = (own.request(ANA, "ApplyProposal"), view.proposal.proposal_id, "")
            left = statement
            (answer,) = await asyncio.gather(own.proposals.apply(ANA, "p1", [item], brief=True), return_exceptions=True)
            left = 0
            if not isinstance(answer, BaseException):
                break
            assert getattr(answer, "reason", "") == "DEPENDENCY_UNAVAILABLE"
            faults += 1
            assert await world.store.position("p1") == position
            assert await world.store.verify("p1", ChainVerifier()) == []
            (applied,) = await own.proposals.apply(ANA, "p1", [item], brief=True)
            position += 1
            assert getattr(applied, "position", 0) == position
    finally:
        await store.close()
    assert faults >= 5
    assert await world.store.verify("p1", ChainVerifier()) == []


# --- Two processes ----------------------------------------------------------------------------------------------------


async def test_two_stores_share_a_project(world: World, other: World) -> None:
    """L2, L14: of racing applies from two processes one wins, positions stay dense, each sees the other's commits."""
    families = [await world.create(f"rule {n}") for n in range(4)]
    for number, family in enumerate(families):
        mine = await world.approve(await world.propose(Supersede(family, Content(f"mine {number}"))))
        theirs = await other.approve(await other.propose(Supersede(family, Content(f"theirs {number}"))))
        results = await asyncio.gather(world.apply(mine), other.apply(theirs), return_exceptions=True)
        assert sum(isinstance(one, Applied) for one in results) == 1
        assert [getattr(one, "reason", "") for one in results if isinstance(one, Exception)] == [errors.HEAD_MOVED]
    for store in (world.store, other.store):
        changes = await store.changes("p1", 0, 100)
        assert [commit.position for commit in changes.commits] == list(range(1, 9))
    assert await other.store.verify("p1", ChainVerifier()) == []


async def test_a_repetition_at_another_process_gets_the_first_answer(world: World, other: World) -> None:
    """L7: request ids are known to every process."""
    draft = world.draft(Create(Category.DESIGN_RULE, Content("once")))
    call = world.request(ANA, "CreateProposal", request_id="r1")
    first, again = await asyncio.gather(
        world.proposals.create(ANA, "p1", [(call, draft)]), other.proposals.create(ANA, "p1", [(call, draft)])
    )
    assert first == again


async def test_racing_creations_of_a_project_make_one(world: World, other: World) -> None:
    """L2: a project that two processes create at once is there once; one of the two is told that it exists."""
    for number in range(5):
        name = f"both-{number}"
        results = await asyncio.gather(world.make_project(name), other.make_project(name), return_exceptions=True)
        reasons = [getattr(one, "reason", None) for one in results]
        assert sorted(reasons, key=str) == [errors.ALREADY_EXISTS, None]


async def test_a_watcher_hears_of_commits_of_another_process(world: World, other: World) -> None:
    """L14: a watcher misses nothing and skips nothing, whichever process commits."""
    await world.create("first")
    seen: list[int] = []

    async def watch() -> None:
        while len(seen) < 12:
            version = other.store.version("p1")
            changes = await other.store.changes("p1", seen[-1] if seen else 0, 100)
            seen.extend(commit.position for commit in changes.commits)
            if not changes.commits:
                await other.store.changed("p1", version, 5)

    watching = asyncio.ensure_future(watch())
    for number in range(11):
        await world.create(f"rule {number}")
    await asyncio.wait_for(watching, 20)
    assert seen == list(range(1, 13))


async def test_a_waiting_worker_hears_of_events_of_another_process(world: World, other: World) -> None:
    """I1: a claim that waits in one process wakes up for a commit of another."""
    version = other.store.version()
    waiting = asyncio.ensure_future(other.store.changed("", version, 20))
    await world.create()
    assert await waiting


async def test_leases_hold_across_processes(world: World, other: World) -> None:
    """I2: two processes that claim at once get different events, and a lease fences the other one out."""
    for number in range(12):
        await world.create(f"rule {number}")
    now = world.clock.now()
    until = now + timedelta(seconds=30)
    claims = await asyncio.gather(
        *(one.store.claim_events(f"w{n}", 3, now, until, MOST_ATTEMPTS) for n, one in enumerate([world, other] * 3))
    )
    ids = [event.id for claimed in claims for event in claimed]
    assert len(ids) == len(set(ids)) == 12
    first = next(event for claimed in claims for event in claimed)
    wrong = EventRef(first.id, first.fencing_token + 1)
    assert await other.store.ack_events([wrong], now) == [first.id]
    assert await other.store.ack_events([EventRef(first.id, first.fencing_token)], now) == []


async def test_reads_are_snapshots_while_another_process_writes(world: World, other: World) -> None:
    """L14: what is read while commits arrive is from one moment: rows, head, revision and position fit together."""
    family = await world.create("version 1")
    done = asyncio.Event()

    async def write() -> None:
        try:
            for number in range(2, 26):
                await world.publish(Supersede(family, Content(f"version {number}")))
        finally:
            done.set()

    writing = asyncio.ensure_future(write())
    reads = 0
    while not done.is_set():
        query = HeadsQuery("p1", "main", world.clock.now() + timedelta(days=1), None, Detail.FULL, (family,))
        read = await other.store.heads(query)
        (head,) = read.heads
        assert head.revision.content.title == f"version {head.head.number}"
        assert head.head.revision_id == head.revision.revision_id == head.rows[-1].revision_id
        assert head.head.position == read.position
        changes = await other.store.changes("p1", 0, 100)
        assert [commit.position for commit in changes.commits] == list(range(1, changes.position + 1))
        reads += 1
    await writing
    assert reads > 10
