"""S6: a project moves between ledgers whole: equal bytes, equal answers, nothing half there. Between all stores."""

from __future__ import annotations

import io
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from ledger_svc import export_file
from ledger_svc.domain import errors
from ledger_svc.domain.model import Content, ProposalStatus, Supersede
from ledger_svc.domain.moving import ImportStep
from ledger_svc.outbox import MOST_ATTEMPTS
from ledger_svc.service.moving import MovingService
from ledger_svc.store import LedgerStore
from ledger_svc.views import Detail, HeadsPageQuery, RelationsQuery
from tests.contract.test_ledger_store_contract import ADAPTERS, ROOT, World
from tests.ledger_stack import TickingClock
from tests.moving_world import export_of, furnish, import_into, parts_of, problems_of

PAIRS = [("sqlite-memory", "sqlite-file"), ("sqlite-file", "neo4j"), ("neo4j", "sqlite-memory")]


@asynccontextmanager
async def _open(name: str, folder: Path, clock: TickingClock | None = None) -> AsyncIterator[World]:
    folder.mkdir(exist_ok=True)
    store = await ADAPTERS[name](folder)()
    try:
        yield World(store, clock)
    finally:
        await store.close()


async def _filled(name: str, folder: Path) -> tuple[bytes, dict[str, Any], TickingClock]:
    """Fill a ledger; return its project as a file, what it answers, and its clock."""
    async with _open(name, folder) as world:
        await world.make_project()
        await furnish(world)
        return await export_of(world), await _answers(world.store, world.clock.present), world.clock


async def _answers(store: LedgerStore, now: datetime) -> dict[str, Any]:
    """What a ledger answers about a project, along both axes, in every list."""
    found: dict[str, Any] = {"project": await store.project("p1")}
    for branch in ("main", "release/2.x"):
        for known in (None, *(now - timedelta(milliseconds=n) for n in (20, 60, 120))):
            for valid in (now - timedelta(days=15), now, now + timedelta(days=70)):
                query = HeadsPageQuery(
                    "p1", branch, valid, known, Detail.FULL, frozenset(), frozenset(), False, "", 100
                )
                found[f"heads {branch} {known} {valid}"] = await store.heads_page(query)
    found["flagged"] = await store.heads_page(
        HeadsPageQuery("p1", "main", now, None, Detail.BASIC, frozenset(), frozenset(), True, "", 100)
    )
    found["relations"] = await store.relations(RelationsQuery("p1", include_retired=True))
    found["changes"] = await store.changes("p1", 0, 1000)
    proposals, _ = await store.proposals("p1", list(ProposalStatus), "", 0, 1000)
    found["proposals"] = proposals
    families = await store.families("p1", "", "", (0, ""), 100)
    found["families"] = families
    for family in families:
        listed, _ = await store.proposals("p1", list(ProposalStatus), family.family_id, 0, 1000)
        found[f"proposals of {family.family_id}"] = listed
        found[f"history of {family.family_id}"] = await store.history(family.family_id, "main", None, 10**9, 100)
    found["observations"] = [replace(one, cursor=0) for one in await store.observations("p1", [], 0, 100)]
    found["audit"] = await store.audit("p1", 0, 1000)
    keys = await store.projection_keys("p1", ("", ""), 100)
    found["projections"] = await store.projections("p1", keys)
    return found


@pytest.mark.parametrize(("source", "target"), PAIRS)
async def test_a_project_moves_whole(source: str, target: str, tmp_path: Path) -> None:
    """S6: after the move the audit verifies, every answer along both axes is the same, and so is a second export."""
    data, answers, clock = await _filled(source, tmp_path / "a")
    now = clock.present
    async with _open(target, tmp_path / "b", clock) as world:
        made = await import_into(world, data)
        assert made.skipped == 0
        assert made.view == answers["project"]
        assert await problems_of(world.store) == []
        moved = await _answers(world.store, now)
        for question, answer in answers.items():
            assert moved[question] == answer, question
        assert await export_of(world) == data


async def test_the_round_trip_over_both_kinds_of_store_is_byte_identical(tmp_path: Path) -> None:
    """S6: SQLite, Neo4j, SQLite: three exports of the same bytes."""
    data, _, clock = await _filled("sqlite-file", tmp_path / "a")
    for number, name in enumerate(("neo4j", "sqlite-file")):
        async with _open(name, tmp_path / f"b{number}", clock) as world:
            await import_into(world, data)
            assert await export_of(world) == data


@pytest.mark.parametrize("name", sorted(ADAPTERS))
async def test_a_moved_project_goes_on(name: str, tmp_path: Path) -> None:
    """S6, L2, L14: after the move positions go on, open proposals apply, retries get the first answer."""
    data, answers, clock = await _filled("sqlite-memory", tmp_path / "a")
    async with _open(name, tmp_path / "b", clock) as world:
        world._ids = (f"00000000-0000-7000-8000-{n:012x}" for n in range(10**6, 2 * 10**6))
        await import_into(world, data)
        position = await world.store.position("p1")
        (approved,) = [v for v in answers["proposals"] if v.proposal.status is ProposalStatus.APPROVED]
        applied = await world.apply(approved)
        assert applied.position == position + 1
        family = await world.create("new here", key="adr/0099")
        await world.publish(Supersede(family, Content("newer")))
        assert await problems_of(world.store) == []
        # The first request of all was the project's: its kept answer has moved along.
        repeated = await world.admin.create_project(
            world.request(ROOT, "CreateProject", request_id="request-1"), "p1", None
        )
        assert repeated.project == replace(answers["project"].project, policy_version=1)


@pytest.mark.parametrize("name", sorted(ADAPTERS))
async def test_the_outbox_has_one_event_for_each_head(name: str, tmp_path: Path) -> None:
    """S6, I1: the index is told of every head once; until it has handled them, the lag shows."""
    data, answers, clock = await _filled("sqlite-memory", tmp_path / "a")
    async with _open(name, tmp_path / "b", clock) as world:
        version = world.store.version("p1")
        await import_into(world, data)
        assert await world.store.changed("p1", version, 1)
        now = clock.now()
        events = await world.store.claim_events("w", 100, now, now + timedelta(seconds=9), MOST_ATTEMPTS)
        keys = await world.store.projection_keys("p1", ("", ""), 100)
        assert sorted((e.family_id, e.branch) for e in events) == [(k.family_id, k.branch) for k in keys]
        stats = await world.store.outbox_stats("p1", now)
        assert stats.handled_position == stats.head_position - 1 == answers["project"].position - 1


# --- What is refused --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", sorted(ADAPTERS))
async def test_an_existing_project_is_never_written_into(name: str, tmp_path: Path) -> None:
    """S6: refused into a project that is there, however empty; nothing of it changes. Another project is no matter."""
    data, _, clock = await _filled("sqlite-memory", tmp_path / "a")
    async with _open(name, tmp_path / "b", clock) as world:
        world._ids = (f"00000000-0000-7000-8000-{n:012x}" for n in range(10**6, 2 * 10**6))
        await world.make_project("p1")
        before = await export_of(world)
        with pytest.raises(errors.DomainError) as refused:
            await import_into(world, data)
        assert refused.value.reason == errors.ALREADY_EXISTS
        assert await export_of(world) == before


@pytest.mark.parametrize("name", sorted(ADAPTERS))
async def test_the_same_file_again_is_answered_the_same(name: str, tmp_path: Path) -> None:
    """L7: sent again after the end, the file changes nothing and is no error; another file is refused."""
    data, _, clock = await _filled("sqlite-memory", tmp_path / "a")
    async with _open(name, tmp_path / "b", clock) as world:
        first = await import_into(world, data)
        again = await import_into(world, data)
        assert again.view == first.view
        assert again.skipped == again.summary.header.total
        now = clock.now()
        events = await world.store.claim_events("w", 100, now, now + timedelta(seconds=9), MOST_ATTEMPTS)
        assert len({(e.family_id, e.branch) for e in events}) == len(events)
        async with _open("sqlite-memory", tmp_path / "c") as other:
            await other.make_project()
            with pytest.raises(errors.DomainError) as refused:
                await import_into(world, await export_of(other))
        assert refused.value.reason == errors.ALREADY_EXISTS


@pytest.mark.parametrize("name", sorted(ADAPTERS))
async def test_a_half_import_is_seen_by_nobody_and_goes_on(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """S6, L1: interrupted after any number of steps there is no project; the same file goes on where it was."""
    monkeypatch.setattr(export_file, "CHUNK_RECORDS", 40)
    data, _, clock = await _filled("sqlite-memory", tmp_path / "a")
    async with _open(name, tmp_path / "b", clock) as world:
        store, most = world.store, 0
        while True:
            cut = _Interrupted(store, most)
            try:
                made = await MovingService(replace(world.ledger, store=cut)).import_project(ROOT, "p1", _whole(data))
            except _CutError:
                assert await store.project("p1") is None
                assert await store.position("p1") is None
                assert await store.projects("", 10, None) == []
                assert await store.projects("", 10, frozenset({"p1"})) == []
                now = clock.now()
                assert not await store.claim_events("w", 9, now, now + timedelta(seconds=9), MOST_ATTEMPTS)
                for refused in (export_of(world), world.admin.project(ROOT, "p1")):
                    with pytest.raises(Exception, match="does not exist"):
                        await refused
                with pytest.raises(Exception, match="is being imported"):
                    await world.make_project("p1")
                most = 1 if most == 0 else 3
                continue
            break
        assert 0 < made.skipped <= made.summary.header.total
        assert await problems_of(store) == []
        assert await export_of(world) == data


async def _whole(data: bytes) -> AsyncIterator[bytes]:
    yield data


class _CutError(Exception):
    """The import dies."""


class _Interrupted:
    """A store on which an import dies after some steps, the first three times; each is stored before it dies."""

    def __init__(self, store: LedgerStore, steps: int) -> None:
        self._store = store
        self._left = steps + 1

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    async def import_step(self, step: ImportStep, records: Any) -> bool:
        """Do the step, then die when it was the last allowed one."""
        done = await self._store.import_step(step, records)
        self._left -= 1
        if self._left == 0 and not step.last:
            raise _CutError
        return done


@pytest.mark.parametrize("name", sorted(ADAPTERS))
async def test_a_half_import_takes_no_other_file(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """S6: what another file began is not mixed with this one: refused, with the hash of the file that it waits for."""
    monkeypatch.setattr(export_file, "CHUNK_RECORDS", 40)
    data, _, clock = await _filled("sqlite-memory", tmp_path / "a")
    async with _open(name, tmp_path / "b", clock) as world, _open("sqlite-memory", tmp_path / "c") as other:
        await other.make_project()
        cut: Any = _Interrupted(world.store, 0)
        with pytest.raises(_CutError):
            await MovingService(replace(world.ledger, store=cut)).import_project(ROOT, "p1", _whole(data))
        with pytest.raises(errors.DomainError) as refused:
            await import_into(world, await export_of(other))
        assert refused.value.reason == errors.ALREADY_EXISTS
        assert refused.value.metadata["sha256"] == export_file.check(io.BytesIO(data), "p1").digest
        await import_into(world, data)
        assert await export_of(world) == data


@pytest.mark.parametrize("name", sorted(ADAPTERS))
async def test_two_projects_move_into_one_ledger_and_share_nothing(name: str, tmp_path: Path) -> None:
    """S2: a second import beside a living project leaves that as it was."""
    data, _, clock = await _filled("sqlite-memory", tmp_path / "a")
    async with _open(name, tmp_path / "b", clock) as world:
        world._ids = (f"00000000-0000-7000-8000-{n:012x}" for n in range(10**6, 2 * 10**6))
        await world.make_project("p2")
        await world.create("theirs", key="adr/0001", project="p2")
        before = await export_of(world, "p2")
        await import_into(world, data)
        assert await export_of(world, "p2") == before
        assert await problems_of(world.store, "p2") == []


# --- Exports ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", sorted(ADAPTERS))
async def test_an_interrupted_export_goes_on_or_says_that_the_project_changed(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """S6: from any complete chunk on, the rest is the rest of the same file; after a change it is refused."""
    import hashlib

    monkeypatch.setattr(export_file, "CHUNK_RECORDS", 50)
    async with _open(name, tmp_path / "a") as world:
        await world.make_project()
        await furnish(world)
        parts = await parts_of(world)
        data = b"".join(p.data for p in parts)
        assert parts[-1].chunks_done > 3
        assert parts[-1].records_done == parts[-1].records_total
        for number in (1, 2, parts[-1].chunks_done):
            had = b"".join(p.data for p in parts[:number])
            digest = f"sha256:{hashlib.sha256(had).hexdigest()}"
            assert had + b"".join(p.data for p in await parts_of(world, "p1", number, digest)) == data
        await world.create("one more")
        with pytest.raises(errors.DomainError) as refused:
            await parts_of(world, "p1", parts[-1].chunks_done, digest)
        assert refused.value.reason == errors.STATE_CONFLICT


@pytest.mark.parametrize("name", ["neo4j", "sqlite-file"])
async def test_an_export_of_a_busy_project_is_one_snapshot(name: str, tmp_path: Path) -> None:
    """S6, L1: what is written while an export reads is either wholly in it or not at all: its audit verifies."""
    import asyncio

    async with _open(name, tmp_path / "a") as world:
        await world.make_project()
        families = [await world.create(f"f{n}") for n in range(4)]

        async def write() -> None:
            for n in range(6):
                await world.publish(Supersede(families[n % 4], Content(f"v{n}")))

        writing = asyncio.ensure_future(write())
        while not writing.done():
            export_file.check(io.BytesIO(await export_of(world)), "p1")
        await writing
