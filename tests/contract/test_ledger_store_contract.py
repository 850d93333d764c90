"""What every store of the ledger promises. A new adapter is added to ``ADAPTERS`` and passes unchanged."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from ledger_svc.domain import errors
from ledger_svc.domain.audit import ChainVerifier
from ledger_svc.domain.decide import EvidenceDraft
from ledger_svc.domain.errors import DomainError
from ledger_svc.domain.model import (
    CancelSchedule,
    Category,
    ChangeSet,
    Content,
    Create,
    Deprecate,
    Draft,
    Invalidate,
    Link,
    MemoryState,
    Mutation,
    Observation,
    ProposalStatus,
    RelationKind,
    SourceKind,
    Stance,
    Supersede,
)
from ledger_svc.domain.state import StateNeeds
from ledger_svc.group import Decided, Refused
from ledger_svc.outbox import MOST_ATTEMPTS, EventRef, backoff
from ledger_svc.service.admin import AdminService
from ledger_svc.service.commands import Request
from ledger_svc.service.context import Ledger, as_principal
from ledger_svc.service.observations import ObservationService
from ledger_svc.service.outbox import OutboxService
from ledger_svc.service.proposals import Applied, EvidenceInput, ProposalService, Proposing
from ledger_svc.service.standing import state_of_head
from ledger_svc.state import BEGINNING, StateQuery, WorkingState
from ledger_svc.store import LedgerStore
from ledger_svc.store_neo4j import Neo4jLedgerStore
from ledger_svc.store_sqlite import SqliteLedgerStore
from ledger_svc.views import Detail, HeadsPageQuery, HeadsQuery, ProjectionKey, ProposalView, RelationsQuery
from service_kit.principals import Kind, Principal, Role, grant
from tests import neo4j_fixture
from tests.ledger_stack import TickingClock

Open = Callable[[], Awaitable[LedgerStore]]


def _sqlite_memory(_folder: Path) -> Open:
    return lambda: SqliteLedgerStore.open(":memory:")


def _sqlite_file(folder: Path) -> Open:
    return lambda: SqliteLedgerStore.open(folder / "ledger.sqlite")


def _neo4j(_folder: Path) -> Open:
    neo4j_fixture.wipe()
    return lambda: Neo4jLedgerStore.open(neo4j_fixture.connection())


ADAPTERS: dict[str, Callable[[Path], Open]] = {
    "sqlite-memory": _sqlite_memory,
    "sqlite-file": _sqlite_file,
    "neo4j": _neo4j,
}
DURABLE = ("sqlite-file", "neo4j")

ROOT = Principal("local", "root", Kind.HUMAN, "", (grant("*", [Role.ADMIN]),))
INDEXER = Principal("local", "indexer", Kind.SERVICE, "", (grant("*", [Role.ADMIN]),))
ANA = Principal("local", "ana", Kind.HUMAN, "", (grant("*", [Role.PROPOSER]),))
RUI = Principal("local", "rui", Kind.HUMAN, "", (grant("*", [Role.REVIEWER]),))

EVIDENCE = EvidenceInput(EvidenceDraft(SourceKind.ADR, "docs/adr/7.md", excerpt="so"), Stance.SUPPORTS, 1.0, "")


class World:
    """A store with the services on top, and short cuts."""

    def __init__(self, store: LedgerStore, clock: TickingClock | None = None) -> None:
        self.store = store
        self.clock = clock or TickingClock()
        self._ids = (f"00000000-0000-7000-8000-{n:012x}" for n in itertools.count(1))
        self.ledger = Ledger(store, self.clock, lambda: next(self._ids))
        self.proposals = ProposalService(self.ledger)
        self.admin = AdminService(self.ledger)
        self.observations = ObservationService(self.ledger)
        self._requests = itertools.count(1)

    def request(self, caller: Principal, rpc: str, project: str = "p1", request_id: str = "") -> Request:
        """Return a mutating call."""
        ident = request_id or f"request-{next(self._requests)}"
        return Request(caller, project, rpc, ident, rpc.encode(), Role.READER)

    async def make_project(self, project: str = "p1") -> None:
        """Make a project."""
        await self.admin.create_project(self.request(ROOT, "CreateProject", project), project, None)

    def draft(self, mutation: Mutation, project: str = "p1", branch: str = "main") -> Proposing:
        """Return what is asked for, with evidence."""
        return Proposing(Draft(project, branch, mutation, "because"), (EVIDENCE,))

    async def propose(self, mutation: Mutation, project: str = "p1", branch: str = "main") -> ProposalView:
        """Propose as Ana."""
        call = self.request(ANA, "CreateProposal", project)
        made = await self.proposals.create(ANA, project, [(call, self.draft(mutation, project, branch))])
        return _value(made[0])

    async def approve(self, view: ProposalView) -> ProposalView:
        """Approve as Rui."""
        project, proposal = view.proposal.project_id, view.proposal
        call = self.request(RUI, "ApproveProposal", project)
        made = await self.proposals.approve(RUI, project, [(call, proposal.proposal_id, proposal.preview_hash, "")])
        return _value(made[0])[0]

    async def apply(self, view: ProposalView) -> Applied:
        """Apply as Ana."""
        project = view.proposal.project_id
        item = (self.request(ANA, "ApplyProposal", project), view.proposal.proposal_id, "")
        return _value((await self.proposals.apply(ANA, project, [item], brief=False))[0])

    async def publish(self, mutation: Mutation, project: str = "p1", branch: str = "main") -> Applied:
        """Propose, approve, apply."""
        return await self.apply(await self.approve(await self.propose(mutation, project, branch)))

    async def create(self, title: str = "a rule", key: str = "", project: str = "p1", **times: Any) -> str:
        """Publish a family and return its id."""
        made = await self.publish(Create(Category.DESIGN_RULE, Content(title), key, **times), project)
        return made.view.proposal.result_family_id

    async def head(self, family_id: str, **more: Any) -> Any:
        """Read one head in full; None when there is none."""
        now = self.clock.now()
        query = HeadsQuery("p1", "main", more.pop("valid_at", now), more.pop("known_at", None), Detail.FULL, **more)
        found = await self.store.heads(replace(query, family_ids=(family_id,)))
        return found.heads[0] if found.heads else None


def _value(made: Any) -> Any:
    if isinstance(made, BaseException):
        raise made
    return made


@asynccontextmanager
async def _world(name: str, folder: Path) -> AsyncIterator[World]:
    store = await ADAPTERS[name](folder)()
    try:
        world = World(store)
        await world.make_project()
        yield world
    finally:
        await store.close()


@pytest.fixture(params=sorted(ADAPTERS))
async def world(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[World]:
    """A fresh store of each adapter with one project."""
    async with _world(request.param, tmp_path) as made:
        yield made


@dataclass(slots=True)
class Step:
    """A decision made of functions, to look at the port itself."""

    project_id: str
    run: Callable[[WorkingState], Any]
    query: StateQuery | None = None

    def needs(self, working: WorkingState) -> StateQuery:
        """Return the query that was given."""
        return self.query or StateQuery(StateNeeds(self.project_id), BEGINNING)

    def decide(self, working: WorkingState) -> Any:
        """Run the function."""
        return self.run(working)


# --- Writes -----------------------------------------------------------------------------------------------------------


async def test_decisions_of_a_project_see_all_before_them(world: World) -> None:
    """L14: many writers at once get dense positions, each on top of the last, with strictly later record times."""
    views = [
        await world.approve(await world.propose(Create(Category.DESIGN_RULE, Content(f"rule {n}")))) for n in range(12)
    ]
    applied = await asyncio.gather(*(world.apply(view) for view in views))
    assert sorted(one.position for one in applied) == list(range(1, 13))
    changes = await world.store.changes("p1", 0, 100)
    assert [c.position for c in changes.commits] == list(range(1, 13))
    times = [c.recorded_at for c in changes.commits]
    assert times == sorted(set(times))


async def test_of_racing_applies_exactly_one_wins_and_the_losers_change_nothing(world: World) -> None:
    """L2: N applies prepared against one head in one group: one commit, N-1 HEAD_MOVED, their proposals STALE."""
    family = await world.create()
    racers = [await world.approve(await world.propose(Supersede(family, Content(f"version {n}")))) for n in range(6)]
    items = [(world.request(ANA, "ApplyProposal"), v.proposal.proposal_id, "") for v in racers]
    results = await world.proposals.apply(ANA, "p1", items, brief=False)
    won = [r for r in results if isinstance(r, Applied)]
    assert len(won) == 1
    assert [r.reason for r in results if isinstance(r, Exception)] == [errors.HEAD_MOVED] * 5
    assert await world.store.position("p1") == 2
    stale, _ = await world.store.proposals("p1", [ProposalStatus.STALE], "", 0, 100)
    assert len(stale) == 5
    assert (await world.head(family)).head.number == 2


async def test_racing_creates_of_one_identity_make_one_family(world: World) -> None:
    """L2: N concurrent creates of one identity_key: one family, the others ALREADY_EXISTS."""
    views = [
        await world.approve(await world.propose(Create(Category.DESIGN_RULE, Content(f"v{n}"), "adr/1")))
        for n in range(5)
    ]
    results = await asyncio.gather(*(world.apply(v) for v in views), return_exceptions=True)
    won = [r for r in results if isinstance(r, Applied)]
    assert len(won) == 1
    assert {r.reason for r in results if isinstance(r, Exception)} == {errors.ALREADY_EXISTS}
    found = await world.store.family_by_key("p1", "adr/1")
    assert found is not None
    assert found.family_id == won[0].view.proposal.result_family_id
    assert len(await world.store.families("p1", "", "", (0, ""), 10)) == 1


async def test_a_decision_that_fails_writes_nothing_and_hurts_nobody(world: World) -> None:
    """L1: a bug in one decision of a group is its own answer; its neighbours are stored."""
    good = await world.approve(await world.propose(Create(Category.DESIGN_RULE, Content("good"))))

    def crash(working: WorkingState) -> Any:
        raise ZeroDivisionError

    apply = world.apply(good)
    crashed, applied = await asyncio.gather(world.store.decide([Step("p1", crash)]), apply)
    assert isinstance(crashed[0].error, ZeroDivisionError)
    assert applied.position == 1


async def test_a_change_that_cannot_be_written_is_undone_as_a_whole(world: World) -> None:
    """L1: when persisting fails in the middle of a change, nothing of it is there, and others of its group are."""
    family = await world.create()
    good = await world.approve(await world.propose(Supersede(family, Content("good"))))

    def broken(working: WorkingState) -> Any:
        state = working.state
        assert state is not None
        head = state.heads[family, "main"]
        revision = state.revisions[head.revision_id]
        # A second revision with a number that is taken, and a row that does not exist.
        change = ChangeSet(
            "p1",
            world.clock.now(),
            state.position + 1,
            (),
            revisions=(replace(revision, revision_id="ffffffff-0000-7000-8000-000000000001", number=head.number),),
        )
        return Decided(None, (change,))

    query = StateQuery(StateNeeds("p1", heads=frozenset({(family, "main")})), BEGINNING)
    bad = world.store.decide([Step("p1", broken, query)])
    results = await asyncio.gather(bad, world.apply(good), return_exceptions=True)
    assert isinstance(results[0], Exception)
    assert isinstance(results[1], Applied)
    assert await world.store.position("p1") == 2
    assert await world.store.revision("p1", "ffffffff-0000-7000-8000-000000000001") is None


async def test_a_refusal_may_leave_a_trace(world: World) -> None:
    """L2: what a refused decision hands over (an audit entry, a STALE status) is stored with its refusal."""
    family = await world.create()
    first, second = [await world.approve(await world.propose(Supersede(family, Content(f"v{n}")))) for n in range(2)]
    await world.apply(first)
    before, newest = await world.store.audit("p1", 0, 500)
    with pytest.raises(Exception, match="head"):
        await world.apply(second)
    entries, after = await world.store.audit("p1", newest, 500)
    assert after == newest + 1 == len(before) + 1
    assert entries[0].action.value == "refuse_apply"


async def test_projects_do_not_see_each_other(world: World) -> None:
    """S2: ids, keys, positions and evidence of one project mean nothing in another."""
    await world.make_project("p2")
    family = await world.create(key="adr/1")
    other = await world.create(key="adr/1", project="p2")
    assert family != other
    assert await world.store.family("p2", family) is None
    assert (await world.store.family_by_key("p2", "adr/1")).family_id == other
    assert await world.store.position("p1") == await world.store.position("p2") == 1
    read = await world.store.heads(
        HeadsQuery("p2", "main", world.clock.now(), None, Detail.BASIC, family_ids=(family,))
    )
    assert read.missing_families == (family,)


async def test_an_answer_is_kept_with_its_effect(world: World) -> None:
    """L7: the same request_id gives the first answer; with other content it is refused."""
    draft = world.draft(Create(Category.DESIGN_RULE, Content("once")))
    call = world.request(ANA, "CreateProposal", request_id="r1")
    first = _value((await world.proposals.create(ANA, "p1", [(call, draft)]))[0])
    again = _value((await world.proposals.create(ANA, "p1", [(call, draft)]))[0])
    assert again == first
    other = Request(ANA, "p1", "CreateProposal", "r1", b"something else", Role.PROPOSER)
    refused = (await world.proposals.create(ANA, "p1", [(other, draft)]))[0]
    assert refused.reason == errors.REQUEST_ID_REUSED
    views, _ = await world.store.proposals("p1", list(ProposalStatus), "", 0, 10)
    assert len(views) == 1


async def test_too_many_waiting_decisions_are_refused(tmp_path: Path) -> None:
    """S4: beyond the bound a write is refused as OVERLOADED at once, not queued without end."""
    store = await SqliteLedgerStore.open(":memory:", most_waiting=4)
    try:
        nothing = Step("nowhere", lambda working: Decided(None))
        calls = [asyncio.ensure_future(store.decide([nothing] * 3)) for _ in range(20)]
        results = await asyncio.gather(*calls, return_exceptions=True)
        assert any(getattr(r, "reason", "") == "OVERLOADED" for r in results)
        assert any(isinstance(r, list) for r in results)
    finally:
        await store.close()


async def test_watchers_are_told_after_the_commit_is_visible(world: World) -> None:
    """L14: whoever waits for a change wakes up when it can be read."""
    version = world.store.version("p1")
    waiting = asyncio.ensure_future(world.store.changed("p1", version, 10))
    await world.create()
    assert await waiting
    assert (await world.store.changes("p1", 0, 10)).position == 1
    assert not await world.store.changed("p1", world.store.version("p1"), 0.01)


# --- Time -------------------------------------------------------------------------------------------------------------


async def test_heads_answer_at_any_point_of_the_two_axes(world: World) -> None:
    """L8: valid_at and known_at are asked separately; the past stays as it was known."""
    day = timedelta(days=1)
    start = world.clock.present
    family = await world.create("first", valid_from=start - 10 * day)
    known_first = world.clock.now()
    world.clock.advance(day)
    await world.publish(Supersede(family, Content("second"), start - 5 * day))
    known_second = world.clock.now()
    world.clock.advance(day)
    await world.publish(Invalidate(family, start - 2 * day))

    async def title(valid_at: datetime, known_at: datetime | None) -> tuple[str, MemoryState]:
        view = await world.head(family, valid_at=valid_at, known_at=known_at)
        return view.revision.content.title, state_of_head(view, valid_at).state

    assert await title(start - 6 * day, None) == ("first", MemoryState.ACTIVE)
    assert await title(start - 3 * day, known_first) == ("first", MemoryState.ACTIVE)
    assert await title(start - 3 * day, known_second) == ("second", MemoryState.ACTIVE)
    assert await title(start - day, known_second) == ("second", MemoryState.ACTIVE)
    assert await title(start - day, None) == ("second", MemoryState.INVALIDATED)
    assert await title(start - 5 * day, None) == ("second", MemoryState.ACTIVE)
    assert await world.head(family, known_at=start - day) is None


async def test_a_page_of_heads_is_one_snapshot(world: World) -> None:
    """L18: pages read at one known_at add up to what was there then, whatever is written in between."""
    families = [await world.create(f"rule {n}") for n in range(7)]
    view = await world.store.project("p1")
    query = HeadsPageQuery(
        "p1", "main", world.clock.now(), view.recorded_at, Detail.BASIC, frozenset(), frozenset(), False, "", 3
    )
    seen: list[tuple[str, str]] = []
    for page in itertools.count():
        heads, cursor, _ = await world.store.heads_page(query)
        seen += [(h.family.family_id, h.revision.content.title) for h in heads]
        await world.publish(Supersede(families[-1], Content(f"changed {page}")))
        await world.create(f"new {page}")
        if not cursor:
            break
        query = replace(query, after_family=cursor)
    assert seen == sorted((family, f"rule {n}") for n, family in enumerate(families))


async def test_replacements_are_followed_and_titled(world: World) -> None:
    """R1: a deprecated family names the family that replaces it, and the read can bring that along."""
    old, new = await world.create("old way", key="adr/1"), await world.create("new way", key="adr/2")
    await world.publish(Deprecate(old, new, None, "better"))
    query = HeadsQuery("p1", "main", world.clock.now(), None, Detail.BASIC, (old,), (), True)
    read = await world.store.heads(query)
    assert [h.family.family_id for h in read.heads] == [old, new]
    assert state_of_head(read.heads[0], query.valid_at).state is MemoryState.SUPERSEDED
    assert read.heads[0].titles[new].title == "new way"
    assert read.heads[0].titles[new].identity_key == "adr/2"


async def test_dependents_are_flagged_until_they_change(world: World) -> None:
    """L3: what depends on a superseded memory carries a flag; its own change clears it; known_at sees both."""
    base, above = await world.create("base"), await world.create("above")
    await world.publish(Link(RelationKind.DEPENDS_ON, above, base))
    await world.publish(Supersede(base, Content("other base")))
    flagged = world.clock.now()
    assert [f.cause_family_id for f in (await world.head(above)).flags] == [base]
    await world.publish(Supersede(above, Content("adapted")))
    assert not (await world.head(above)).flags
    assert (await world.head(above, known_at=flagged)).flags


async def test_relations_page_in_order_and_by_family(world: World) -> None:
    """L18: pages of relations add up, of a project and of a family in both directions."""
    families = [await world.create(f"f{n}") for n in range(4)]
    for other in families[1:]:
        await world.publish(Link(RelationKind.DEPENDS_ON, other, families[0]))
    query = RelationsQuery("p1", families[0], limit=2)
    first = await world.store.relations(query)
    rest = await world.store.relations(replace(query, after=(first[-1].position, first[-1].relation_id)))
    assert [r.source_id for r in (*first, *rest)] == families[1:]
    assert len(await world.store.relations(RelationsQuery("p1"))) == 3
    assert await world.store.relations(RelationsQuery("p1", kinds=frozenset({RelationKind.REFINES}))) == []


async def test_projections_carry_growing_positions(world: World) -> None:
    """I2: what an index is told of a revision grows with every commit that changes its row or its being head."""
    family = await world.create("first")
    views, position = await world.store.projections("p1", [ProjectionKey(family, "main")])
    assert position == 1
    assert [(r.is_head, r.position) for r in views[0].revisions] == [(True, 1)]
    await world.publish(Supersede(family, Content("second")))
    views, _ = await world.store.projections("p1", [ProjectionKey(family, "main", 2)])
    assert {(r.revision.content.title, r.is_head, r.position) for r in views[0].revisions} == {
        ("first", False, 2),
        ("second", True, 2),
    }
    assert await world.store.projection_keys("p1", ("", ""), 10) == [ProjectionKey(family, "main")]


# --- Outbox -----------------------------------------------------------------------------------------------------------


async def _claim(world: World, worker: str = "w1", seconds: int = 30, limit: int = 10) -> list[Any]:
    now = world.clock.now()
    return await world.store.claim_events(worker, limit, now, now + timedelta(seconds=seconds), MOST_ATTEMPTS)


async def test_every_commit_has_its_events_in_order(world: World) -> None:
    """I1: events arrive with the commit that they tell of, oldest first, and are gone when acknowledged."""
    families = [await world.create(f"f{n}") for n in range(3)]
    events = await _claim(world)
    assert [(e.family_id, e.position) for e in events] == [(f, n) for n, f in enumerate(families, 1)]
    assert await _claim(world, "w2") == []
    stats = await world.store.outbox_stats("p1", world.clock.now())
    assert (stats.pending, stats.leased, stats.handled_position, stats.head_position) == (3, 3, 0, 3)
    assert await world.store.ack_events([EventRef(e.id, e.fencing_token) for e in events[:2]], world.clock.now()) == []
    stats = await world.store.outbox_stats("p1", world.clock.now())
    assert (stats.pending, stats.handled_position) == (1, 2)


async def test_events_of_one_head_are_never_out_at_two_workers(world: World) -> None:
    """I2: while one event of a (family, branch) is leased, later ones of it wait, others do not."""
    family = await world.create("first")
    assert len(await _claim(world)) == 1
    await world.publish(Supersede(family, Content("second")))
    other = await world.create("other")
    assert [e.family_id for e in await _claim(world, "w2")] == [other]


async def test_a_late_worker_cannot_touch_an_event_that_was_claimed_since(world: World) -> None:
    """I2: fencing: after its lease ran out a worker can neither ack, fail nor renew."""
    await world.create()
    (late,) = await _claim(world, seconds=1)
    world.clock.advance(timedelta(seconds=5))
    (current,) = await _claim(world, "w2")
    assert (current.id, current.attempts) == (late.id, 2)
    assert current.fencing_token > late.fencing_token
    ref, now = EventRef(late.id, late.fencing_token), world.clock.now()
    assert await world.store.ack_events([ref], now) == [late.id]
    assert await world.store.renew_leases([ref], now, now + timedelta(seconds=9)) == [late.id]
    assert await world.store.fail_events([(ref, "x")], now, backoff()) == ([], [late.id])
    own = EventRef(current.id, current.fencing_token)
    assert await world.store.renew_leases([own], now, now + timedelta(seconds=60)) == []
    assert await world.store.ack_events([own], world.clock.now()) == []


async def test_an_event_that_is_named_twice_is_one(world: World) -> None:
    """I2, L16: acknowledging, failing or renewing an event twice in one call is doing it once, on every store."""
    for title in ("acknowledged", "failed"):
        await world.create(title)
    first, second = [EventRef(event.id, event.fencing_token) for event in await _claim(world)]
    outbox = OutboxService(world.ledger, asyncio.Event())
    assert await outbox.renew(INDEXER, [first, first], timedelta(seconds=60)) == []
    assert await outbox.ack(INDEXER, [first, first]) == []
    assert await outbox.fail(INDEXER, [(second, "first reason"), (second, "second reason")]) == ([], [])
    world.clock.advance(timedelta(minutes=10))
    (again,) = await _claim(world)
    assert (again.id, again.last_error, again.attempts) == (second.id, "second reason", 2)


async def test_a_failing_event_backs_off_and_is_given_up_after_its_attempts(world: World) -> None:
    """I3: poison does not block: each failure waits longer, the eighth is the last, redrive starts over."""
    await world.create("poison")
    waits = []
    for attempt in range(1, MOST_ATTEMPTS + 1):
        (event,) = await _claim(world)
        assert event.attempts == attempt
        now = world.clock.now()
        dead, lost = await world.store.fail_events(
            [(EventRef(event.id, event.fencing_token), "no")], now, backoff(lambda: 0.0)
        )
        assert lost == []
        assert dead == ([event.id] if attempt == MOST_ATTEMPTS else [])
        if not dead:
            assert await _claim(world) == []
            due = await world.store.next_event_due(world.clock.now())
            waits.append(due - now)
            world.clock.advance(due - now)
    assert waits == sorted(waits)
    assert len(set(waits)) > 3
    assert await _claim(world) == []
    (letter,) = await world.store.dead_letters("p1", 0, 10)
    assert (letter.last_error, letter.attempts) == ("no", MOST_ATTEMPTS)
    assert (await world.store.outbox_stats("p1", world.clock.now())).dead == 1
    assert await world.store.redrive([], "p1", world.clock.now()) == 1
    assert [e.attempts for e in await _claim(world)] == [1]


async def test_a_worker_that_dies_after_each_claim_buries_the_event(world: World) -> None:
    """I3: attempts are counted at the claim, so an event that kills its workers ends in the dead letters."""
    await world.create("killer")
    for attempt in range(1, MOST_ATTEMPTS + 1):
        assert [e.attempts for e in await _claim(world, seconds=1)] == [attempt]
        world.clock.advance(timedelta(seconds=2))
    assert await _claim(world) == []
    assert len(await world.store.dead_letters("", 0, 10)) == 1


# --- Landing zone, audit ----------------------------------------------------------------------------------------------


async def test_an_observation_is_recorded_once(world: World) -> None:
    """G4: the same source, locator and hash give the same observation, within a batch and after it."""
    who = as_principal(ANA, "p1")
    one = Observation(
        "", "p1", SourceKind.ADR, "docs/1.md", "sha256:" + "a" * 64, "t", "x", "", None, {}, who, BEGINNING
    )
    first = await world.observations.record(world.request(ANA, "RecordObservations"), [one, one])
    again = await world.observations.record(world.request(ANA, "RecordObservations"), [one])
    ids = {r.view.observation.observation_id for r in (*first, *again)}
    assert len(ids) == 1
    assert [r.created for r in (*first, *again)] == [True, False, False]
    assert len(await world.store.observations("p1", [], 0, 10)) == 1


async def test_the_audit_covers_every_record(world: World) -> None:
    """L15: after every kind of write the chain verifies, and covers all records that are stored."""
    old, new = await world.create("old", key="adr/1"), await world.create("new")
    await world.publish(Link(RelationKind.DEPENDS_ON, old, new))
    await world.publish(Supersede(new, Content("newer")))
    await world.publish(Deprecate(old, new))
    verifier = ChainVerifier()
    assert await world.store.verify("p1", verifier) == []
    assert verifier.records > 30
    _, newest = await world.store.audit("p1", 0, 1)
    assert verifier.entries == newest


@pytest.mark.parametrize("name", DURABLE)
async def test_everything_is_there_after_reopening(name: str, tmp_path: Path) -> None:
    """L1, L7: what was acknowledged survives; a repetition after the restart gives the first answer."""
    opener = ADAPTERS[name](tmp_path)
    store = await opener()
    world = World(store)
    await world.make_project()
    family = await world.create("kept", key="adr/1")
    proposing = world.draft(Supersede(family, Content("second")))
    call = world.request(ANA, "CreateProposal", request_id="again")
    first = _value((await world.proposals.create(ANA, "p1", [(call, proposing)]))[0])
    await store.close()
    store = await opener()
    try:
        later = World(store, TickingClock(world.clock.now()))
        assert store.info.ledger_id == world.store.info.ledger_id
        again = _value((await later.proposals.create(ANA, "p1", [(call, proposing)]))[0])
        assert again == first
        assert (await later.head(family)).revision.content.title == "kept"
        assert await later.store.verify("p1", ChainVerifier()) == []
    finally:
        await store.close()


def test_the_port_lists_what_the_domain_refuses() -> None:
    """L1: a refusal is an answer with changes, told apart from a bug."""
    refused = Refused(DomainError(errors.HEAD_MOVED, "moved"), ())
    assert isinstance(refused.error, DomainError)


async def test_an_answer_of_when_nothing_held_stays_as_it_was(world: World) -> None:
    """L8: what was said of a family without a row is said again, whatever was published or ended since."""
    now = world.clock.now()
    ended = await world.create("ended", valid_from=now)
    cancelled = await world.create("cancelled", valid_from=now + timedelta(days=30))
    first = {family: (await world.head(family)).head.revision_id for family in (ended, cancelled)}
    await world.publish(Invalidate(ended, now - timedelta(days=1)))
    await world.publish(CancelSchedule(cancelled, first[cancelled]))
    known = world.clock.now()
    valid = now + timedelta(days=60)

    async def said() -> list[tuple[Any, ...]]:
        views = [await world.head(family, valid_at=valid, known_at=known) for family in (ended, cancelled)]
        return [(state_of_head(v, valid).state, v.rows, v.head.revision_id, v.revision.content.title) for v in views]

    before = await said()
    assert before == [
        (MemoryState.INVALIDATED, (), first[ended], "ended"),
        (MemoryState.NOT_IN_FORCE, (), first[cancelled], "cancelled"),
    ]
    await world.publish(Supersede(ended, Content("again")))
    await world.publish(Supersede(cancelled, Content("later")))
    await world.publish(Invalidate(cancelled))
    assert await said() == before
