"""Rebuilds and verification: the index can be thrown away, changed under load, and checked in both directions."""

# ruff: noqa: F811 - a fixture is imported, and then named by its tests
from __future__ import annotations

import asyncio
import copy
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from decisionssearch.index.v1 import index_service_pb2 as pb

from index_svc.domain import IndexPoint, PointFilter
from index_svc.vectors import StoredPoint, Vector
from service_kit.errors import DomainError, Reason
from tests.index_ledger_stub import Row, StubLedger, content
from tests.index_world import WordEmbedder, World, index_world, tmp_path, until  # noqa: F401 - a fixture


async def test_a_rebuild_under_writes_loses_nothing(tmp_path: Path) -> None:
    """I4: writes before, during and after the filling are all in the new collection; readers never see a gap."""
    async with index_world(tmp_path) as world:
        rows = [world.ledger.publish(content(f"Rule number {i}")) for i in range(30)]
        await world.settled()
        old = world.app.generations.live.collection.name
        gaps: list[int] = []
        done = asyncio.Event()

        async def read() -> None:
            while not done.is_set():
                answer = await world.search("rule number 7", limit=100)
                gaps.append(len({c.family for c in answer.candidates}))

        reader = asyncio.create_task(read())
        world.ledger.faults["ListProjections"] = _publish_while_listing(world, rows)
        run = await world.rebuild()
        await world.settled()
        done.set()
        await reader
        assert run.state == pb.REBUILD_STATE_SUCCEEDED, run.error
        assert run.done >= 30
        assert run.collection != old
        assert world.app.generations.live.collection.name == run.collection
        assert min(gaps) >= 30
        assert await world.drifts() == []
        points = await world.points()
        assert len(points) == sum(len(r) for r in world.ledger.projects["billing"].rows.values())
        assert not list(tmp_path.glob(f"**/{old}*"))


def _publish_while_listing(world: World, rows: Sequence[Row]) -> Callable[[object], None]:
    count = [0]

    def publish(_request: object) -> None:
        count[0] += 1
        family = rows[count[0] % len(rows)].name.rpartition("/revisions/")[0]
        world.ledger.publish(content(f"Changed while listing {count[0]}"), family=family)
        world.ledger.publish(content(f"New while listing {count[0]}"))

    return publish


async def test_a_late_page_of_a_rebuild_takes_nothing_away(tmp_path: Path) -> None:
    """I4: a page that was read before a change and is written after it: the whole family is there, in its new state."""
    async with index_world(tmp_path) as world:
        first = world.ledger.publish(content("First words"))
        family = first.name.rpartition("/revisions/")[0]
        world.ledger.publish(content("Second words"), family=family)
        await world.settled()
        projector = world.app.follower._projector
        generation = await world.app.generations.begin()
        page = await world.outbox.projection_page("billing")
        world.ledger.publish(content("Third words"), family=family)
        await world.settled()
        late = await projector.prepare(page.projections, whole=True, targets=(generation,))
        await projector.write(late, targets=(generation,))
        await world.app.generations.promote(generation)
        assert sorted(p.role for p in (await world.points()).values()) == ["HEAD", "PAST", "PAST"]
        assert await world.drifts() == []


async def test_a_search_in_progress_keeps_its_collection(tmp_path: Path) -> None:
    """I4: the swap is atomic for readers: who began on the old collection ends on it; then it is removed."""
    async with index_world(tmp_path) as world:
        world.ledger.publish(content("Some words"))
        await world.settled()
        with world.app.generations.reading() as old:
            request = pb.RebuildIndexRequest(project="projects/billing", request_id="a")
            run = (await world.call("RebuildIndex", request)).rebuild

            async def swapped() -> bool:
                return world.app.generations.live is not old

            await until(swapped)
            assert await old.collection.count(PointFilter("billing")) == 1
            assert old.state.applied_position("billing") >= 0
            assert (await world.search("words")).candidates
        assert (await world.rebuilt(run.name)).state == pb.REBUILD_STATE_SUCCEEDED
        assert not list(tmp_path.glob(f"**/{old.collection.name}*"))


async def test_the_same_request_gives_the_same_run_also_after_a_restart(tmp_path: Path) -> None:
    """I4, L7: a repeated request makes no second rebuild; a second one at the same time is refused with the name."""
    async with index_world(tmp_path) as world:
        world.ledger.create_project()
        await world.settled()
        first = await world.rebuild("same")
    async with index_world(tmp_path, ledger=None) as world:
        world.ledger.create_project()
        await world.settled()
        request = pb.RebuildIndexRequest(project="projects/billing", request_id="same")
        assert (await world.call("RebuildIndex", request)).rebuild == first


async def test_a_second_rebuild_at_the_same_time_is_refused(tmp_path: Path) -> None:
    """I4: one rebuild at a time; the refusal names the one that runs."""
    async with index_world(tmp_path) as world:
        world.ledger.publish(content("Slow rule"))
        await world.settled()
        world.embedder.gate = asyncio.Event()
        request = pb.RebuildIndexRequest(project="projects/billing", request_id="a")
        running = (await world.call("RebuildIndex", request)).rebuild
        await world.embedder.waiting.wait()
        with pytest.raises(DomainError) as refused:
            await world.call("RebuildIndex", pb.RebuildIndexRequest(project="projects/billing", request_id="b"))
        assert refused.value.reason is Reason.STATE_CONFLICT
        assert refused.value.metadata["rebuild"] == running.name
        assert (await world.status()).rebuild == running.name
        world.embedder.gate.set()
        assert (await world.rebuilt(running.name)).state == pb.REBUILD_STATE_SUCCEEDED


async def test_a_crash_in_the_middle_leaves_the_old_collection_serving(tmp_path: Path) -> None:
    """I4: what was half filled is removed at the next start; the old collection serves, the run says it failed."""
    async with StubLedger() as ledger:
        embedder = WordEmbedder()
        async with index_world(tmp_path, ledger=ledger, embedder=embedder) as world:
            row = ledger.publish(content("Old and good"))
            await world.settled()
            name = world.app.generations.live.collection.name
            embedder.gate = asyncio.Event()
            request = pb.RebuildIndexRequest(project="projects/billing", request_id="a")
            run = (await world.call("RebuildIndex", request)).rebuild
            await embedder.waiting.wait()
            half = world.app.generations._filling.collection.name
            world.host._grace = 0.2
        embedder.gate = None
        async with index_world(tmp_path, ledger=ledger, embedder=embedder) as world:
            assert world.app.generations.live.collection.name == name
            answer = await world.search("old good")
            assert [c.revision for c in answer.candidates] == [row.name]
            ended = await world.rebuilt(run.name)
            assert ended.state == pb.REBUILD_STATE_FAILED
            again = await world.rebuild("b")
            assert again.state == pb.REBUILD_STATE_SUCCEEDED
            assert not list(tmp_path.glob(f"state/{half}*")) or again.collection == half
            assert len(list((tmp_path / "collections").iterdir())) == 1


async def test_a_rebuild_repairs_corruption(tmp_path: Path) -> None:
    """I4: points that were damaged, removed or invented are right again after a rebuild."""
    async with index_world(tmp_path) as world:
        for i in range(6):
            world.ledger.publish(content(f"Rule number {i}"))
        await world.settled()
        good = await world.points()
        await damage(world)
        assert await world.points() != good
        await world.rebuild()
        assert await world.points() == good
        assert await world.drifts() == []


async def test_another_model_is_refused_with_the_remedy(tmp_path: Path) -> None:
    """I8: same dimensions, other model: the start is refused and says what to do; a rebuild replaces the vectors."""
    async with StubLedger() as ledger:
        async with index_world(tmp_path, ledger=ledger, embedder=WordEmbedder("words", 64)) as world:
            ledger.publish(content("Refunds take fourteen days"))
            await world.settled()
        with pytest.raises(DomainError) as refused:
            async with index_world(tmp_path, ledger=ledger, embedder=WordEmbedder("other", 64)):
                pass
        assert refused.value.reason is Reason.MODEL_MISMATCH
        assert "rebuild" in refused.value.message
        async with index_world(tmp_path, ledger=ledger, embedder=WordEmbedder("other", 64), rebuild=True) as world:
            await until(lambda: _serving(world))
            await world.settled()
            points = list((await world.points()).values())
            assert [p.model for p in points] == ["other"]
            assert len((await world.search("refunds fourteen days")).candidates) == 1
            assert len(list((tmp_path / "collections").iterdir())) == 1
            assert len(list((tmp_path / "state").glob("*.sqlite"))) == 1


async def test_another_recipe_is_refused_and_rebuilt(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """I8, I4: a changed embedding recipe is a changed vector space."""
    async with StubLedger() as ledger:
        async with index_world(tmp_path, ledger=ledger) as world:
            ledger.publish(content("Refunds take fourteen days"))
            await world.settled()
        monkeypatch.setattr("index_svc.generations.RECIPE_VERSION", "r2")
        monkeypatch.setattr("index_svc.projector.RECIPE_VERSION", "r2")
        with pytest.raises(DomainError) as refused:
            async with index_world(tmp_path, ledger=ledger):
                pass
        assert refused.value.reason is Reason.MODEL_MISMATCH
        async with index_world(tmp_path, ledger=ledger, rebuild=True) as world:
            await until(lambda: _serving(world))
            assert (await world.status()).recipe == "r2"
            assert [p.recipe for p in (await world.points()).values()] == ["r2"]


async def test_a_lost_state_or_folder_fills_itself_again(tmp_path: Path) -> None:
    """I1, I4: an index whose files were deleted, with every event acknowledged long ago, reads the ledger again."""
    async with StubLedger() as ledger:
        async with index_world(tmp_path / "one", ledger=ledger) as world:
            for i in range(5):
                ledger.publish(content(f"Rule number {i}"))
            await world.settled()
            good = await world.points()
        for path in (tmp_path / "one" / "state").glob("*.sqlite*"):
            path.unlink()
        for folder in ("one", "two"):
            async with index_world(tmp_path / folder, ledger=ledger) as world:
                await world.settled()
                assert await world.points() == good
                assert (await world.status()).applied_position == 5
                assert (await world.search("rule number 3")).heads == 5


async def test_an_index_of_another_ledger_fills_itself_anew(tmp_path: Path) -> None:
    """I4, I5: a folder that belongs to another ledger is noticed at the start, though positions and names may agree."""
    async with StubLedger(ledger_id="one") as ledger, index_world(tmp_path, ledger=ledger) as world:
        ledger.publish(content("A rule of the first ledger"))
        await world.settled()
    async with StubLedger(ledger_id="two") as ledger, index_world(tmp_path, ledger=ledger) as world:
        row = ledger.publish(content("A rule of the second ledger"))

        async def only_the_second() -> bool:
            return [p.revision for p in (await world.points()).values()] == [row.name]

        await until(only_the_second)
        await world.settled()
        assert await world.drifts() == []


async def test_a_restored_ledger_is_noticed_at_the_start(tmp_path: Path) -> None:
    """I5: a ledger that was restored while the index was down is met with a repair, without any new commit."""
    async with StubLedger() as ledger:
        async with index_world(tmp_path, ledger=ledger) as world:
            kept = ledger.publish(content("Kept rule"))
            await world.settled()
            backup = copy.deepcopy(ledger.projects)
            ledger.publish(content("Rule from the future"))
            await until(lambda: _applied(world, 2))
        ledger.restore(backup)
        async with index_world(tmp_path, ledger=ledger) as world:
            await until(lambda: _applied(world, 1))
            assert [p.revision for p in (await world.points()).values()] == [kept.name]


async def test_verification_finds_every_kind_and_repairs_it(tmp_path: Path) -> None:
    """I4: missing, stale, orphan, wrong hash, wrong vector: each is found, named and mended; then nothing is left."""
    async with index_world(tmp_path) as world:
        for i in range(6):
            world.ledger.publish(content(f"Rule number {i}"))
        await world.settled()
        good = await world.points()
        assert await world.drifts() == []
        await damage(world)
        found = await world.drifts()
        assert found == ["MISSING", "ORPHAN", "STALE", "WRONG_HASH", "WRONG_HASH"]
        last = (await world.verify(repair=True))[-1]
        assert last.done
        assert last.total_drifts == 5
        assert last.repaired == 5
        assert last.token.value
        assert await world.drifts() == []
        assert await world.points() == good


async def test_what_is_not_indexed_yet_is_lag_and_not_drift(tmp_path: Path) -> None:
    """I4: verification during indexing reports only what will not mend itself."""
    async with index_world(tmp_path) as world:
        row = world.ledger.publish(content("Settled rule"))
        await world.settled()
        world.embedder.gate = asyncio.Event()
        world.ledger.publish(content("New words"), family=row.name.rpartition("/revisions/")[0])
        world.ledger.publish(content("New rule"))
        await world.embedder.waiting.wait()
        assert await world.drifts() == []
        world.embedder.gate.set()
        await world.settled()
        assert await world.drifts() == []


async def test_points_from_the_future_of_a_restored_ledger_are_found_and_removed(tmp_path: Path) -> None:
    """I5: points of commits that a restored ledger lost are found and removed; new commits at their positions count."""
    async with index_world(tmp_path) as world:
        kept = world.ledger.publish(content("Kept rule"))
        await world.settled()
        backup = copy.deepcopy(world.ledger.projects)
        family = kept.name.rpartition("/revisions/")[0]
        world.ledger.publish(content("Words from the future"), family=family)
        world.ledger.publish(content("Rule from the future"))
        await until(lambda: _applied(world, 3))
        world.ledger.restore(backup)
        assert set(await world.drifts()) == {"FROM_THE_FUTURE"}
        await world.verify(repair=True)
        assert await world.drifts() == []
        assert [p.revision for p in (await world.points()).values()] == [kept.name]
        world.ledger.publish(content("Another future"), family=family)
        await until(lambda: _applied(world, 2))
        assert len(await world.points()) == 2
        assert await world.drifts() == []


async def test_a_follower_that_meets_a_restored_ledger_repairs_by_itself(tmp_path: Path) -> None:
    """I5: the first commit after a restore shows that the ledger went back; the index mends itself and catches up."""
    async with index_world(tmp_path) as world:
        kept = world.ledger.publish(content("Kept rule"))
        await world.settled()
        backup = copy.deepcopy(world.ledger.projects)
        family = kept.name.rpartition("/revisions/")[0]
        for i in range(5):
            world.ledger.publish(content(f"Words {i} from the future"), family=family)
        await until(lambda: _applied(world, 6))
        world.ledger.restore(backup)
        new = world.ledger.publish(content("Another future"), family=family)
        await until(lambda: _applied(world, 2))
        assert {p.revision for p in (await world.points()).values()} == {kept.name, new.name}
        assert await world.drifts() == []
        assert not (await world.status()).degraded


async def _applied(world: World, position: int) -> bool:
    status = await world.status()
    return status.applied_position == status.ledger_position == position


async def _serving(world: World) -> bool:
    return world.app.generations.is_serving


async def damage(world: World) -> None:
    """Damage five of six points, each in another way, behind the back of the index."""
    live = world.app.generations.live
    points = sorted((await world.points()).values(), key=lambda p: p.position)
    vectors = await live.collection.vectors([p.id for p in points])
    features = live.state.ranking_features("billing", [p.text_hash for p in points])

    async def put(point: IndexPoint, vector: Vector) -> None:
        await live.collection.upsert([StoredPoint(point, vector, {1: 1.0})])

    # Conditional writes refuse older positions, so the engine is told to forget before it is told lies.
    await live.collection.delete_project("billing")
    for point in points[4:]:
        await put(point, vectors[point.id])
    await put(replace(points[1], position=points[1].position - 1), vectors[points[1].id])
    await put(replace(points[2], content_hash="sha256:0"), vectors[points[2].id])
    await put(points[3], -features[points[3].text_hash].dense)
    name = f"{points[0].family}/revisions/00000000-0000-7000-8000-000000000000"
    await put(replace(points[4], revision=name), vectors[points[4].id])
