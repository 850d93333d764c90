"""The follower on the ledger's outbox: at least once, idempotent, fenced, and never blocked by one bad event."""

# ruff: noqa: F811 - a fixture is imported, and then named by its tests
from __future__ import annotations

import asyncio
from collections.abc import Sequence
from datetime import timedelta
from pathlib import Path

import pytest
from google.protobuf.timestamp_pb2 import Timestamp

from index_svc.follower import Follower, FollowerTiming
from index_svc.ledger_client import GrpcLedgerClient, OutboxEvent
from service_kit.clients import connect
from service_kit.clock import to_timestamp
from service_kit.serving import BackgroundTaskDied
from tests.index_ledger_stub import Row, StubLedger, content, unavailable
from tests.index_world import FAST, SERVICE_TOKEN, WordEmbedder, World, away, index_world, tmp_path, until  # noqa: F401 - a fixture


async def fresh(world: World, folder: Path) -> tuple[object, ...]:
    """Return what an index holds that is built from the ledger as it is now."""
    async with index_world(folder, ledger=world.ledger, embedder=WordEmbedder(), follow=False) as made:
        await until(lambda: _complete(made))
        return await made.everything()


async def _complete(world: World) -> bool:
    return world.app.service._rebuilds.running is None


async def test_a_new_revision_takes_the_place_of_the_old_head(tmp_path: Path) -> None:
    """I2: superseding moves the head, closes the old interval, and the statistics count the new text only."""
    async with index_world(tmp_path) as world:
        old = world.ledger.publish(content("Refunds take fourteen days"))
        await world.settled()
        family = old.name.rpartition("/revisions/")[0]
        new = world.ledger.publish(content("Refunds take thirty days"), family=family)
        await world.settled()
        points = {p.revision: p for p in (await world.points()).values()}
        assert points[new.name].role == "HEAD"
        assert points[old.name].role == "PAST"
        assert points[old.name].valid_to == points[new.name].valid_from
        answer = await world.search("refunds take fourteen days")
        assert answer.heads == 1
        assert {c.revision: c.in_force for c in answer.candidates} == {old.name: False, new.name: True}
        only = await world.search("refunds take fourteen days", in_force_only=True)
        assert [c.revision for c in only.candidates] == [new.name]


async def test_a_past_revision_with_the_words_of_its_head_is_shadowed(tmp_path: Path) -> None:
    """I2: a past revision that reads like a newer one does not fill the answer twice, and comes back by as-of."""
    async with index_world(tmp_path) as world:
        old = world.ledger.publish(content("Retries are bounded"))
        family = old.name.rpartition("/revisions/")[0]
        await world.settled()
        new = world.ledger.publish(content("Retries are bounded", importance=0.9), family=family)
        await world.settled()
        assert [c.revision for c in (await world.search("retries bounded")).candidates] == [new.name]
        then = await world.search("retries bounded", valid_at=_stamp(old))
        assert [c.revision for c in then.candidates] == [old.name]


async def test_a_cancelled_schedule_leaves_and_no_replay_brings_it_back(tmp_path: Path) -> None:
    """I2: a revision taken out of the timeline is removed; replays of its events never resurrect it."""
    async with index_world(tmp_path) as world:
        first = world.ledger.publish(content("The tax rate is five percent"))
        family = first.name.rpartition("/revisions/")[0]
        later = world.ledger.publish(
            content("The tax rate is six percent"), family=family, valid_from=world.ledger.now + timedelta(days=90)
        )
        await world.settled()
        assert len(await world.points()) == 2
        world.ledger.cancel_schedule(later.name)
        await world.settled()
        world.ledger.replay()
        await world.settled()
        points = list((await world.points()).values())
        assert [p.revision for p in points] == [first.name]
        assert points[0].role == "HEAD"
        assert await fresh(world, tmp_path / "fresh") == await world.everything()


async def test_equal_text_is_embedded_once(tmp_path: Path) -> None:
    """I2: replays, flags and new validity of the same words cost no embedding."""
    async with index_world(tmp_path) as world:
        row = world.ledger.publish(content("Logs hold no secrets"))
        family = row.name.rpartition("/revisions/")[0]
        await world.settled()
        before = list(world.embedder.embedded)
        world.ledger.touch(family)
        world.ledger.publish(content("Logs hold no secrets", importance=0.4), family=family)
        world.ledger.replay()
        await world.settled()
        assert world.embedder.embedded == before


async def test_events_of_one_family_in_one_batch_are_read_once(tmp_path: Path) -> None:
    """I2: a batch reads each (family, branch) once, since its smallest position."""
    async with StubLedger() as ledger:
        row = ledger.publish(content("One"))
        family = row.name.rpartition("/revisions/")[0]
        for i in range(5):
            ledger.publish(content(f"Version {i}"), family=family)
        async with index_world(tmp_path, ledger=ledger) as world:
            await world.settled()
            assert ledger.calls["BatchGetProjections"] == 1
            assert len(await world.points()) == 6


async def test_poison_goes_to_the_dead_letters_alone_and_redrive_works(tmp_path: Path) -> None:
    """I3: an event that always fails is given back alone until it is dead; others flow; redrive brings it in."""
    async with index_world(tmp_path) as world:
        await world.settled()
        world.embedder.broken = lambda text: ValueError("no") if "poison" in text else None
        world.ledger.backoff_seconds = 0.0
        for title in ("Alpha rule", "The poison rule", "Beta rule", "Gamma rule"):
            world.ledger.publish(content(title))
        await world.settled()
        titles = [e for e in world.ledger.events if e.dead]
        assert [e.position for e in titles] == [2]
        assert titles[0].attempts == 8
        assert "poison" not in titles[0].error
        assert len(await world.points()) == 3
        status = await world.status()
        assert status.dead_letters == 1
        assert status.applied_position == 1
        world.embedder.broken = lambda _text: None
        for event in titles:
            event.dead, event.attempts, event.due = False, 0, 0.0
        await world.settled()
        assert len(await world.points()) == 4

        async def caught_up() -> bool:
            return (await world.status()).applied_position == 4

        await until(caught_up)


async def test_an_embedder_that_is_away_buries_no_event(tmp_path: Path) -> None:
    """I3, I7: while the embedder is away events wait, the status says so, and afterwards they are indexed."""
    async with index_world(tmp_path) as world:
        await world.settled()
        world.embedder.broken = away
        world.ledger.publish(content("Alpha rule"))

        async def noted() -> bool:
            return "follower" in {d.part for d in (await world.status()).degraded}

        await until(noted)
        assert not any(e.dead or e.attempts > 1 for e in world.ledger.events)
        world.embedder.broken = lambda _text: None
        await world.settled()
        assert len(await world.points()) == 1
        assert not (await world.status()).degraded


async def test_a_ledger_that_is_away_is_waited_for(tmp_path: Path) -> None:
    """I2: a ledger that does not answer, at any call, only delays."""
    async with index_world(tmp_path) as world:
        await world.settled()
        for rpc in ("ClaimEvents", "BatchGetProjections", "AckEvents", "GetOutboxStats"):
            left = [2]

            def fault(request: object, left: list[int] = left) -> object:
                left[0] -= 1
                return unavailable(request) if left[0] >= 0 else None

            world.ledger.faults[rpc] = fault
            world.ledger.publish(content(f"Rule for {rpc}"))
            await until(_not_called_enough(left))
            world.ledger.expire_leases()
            await world.settled()
        assert len(await world.points()) == 4


def _not_called_enough(left: list[int]):
    async def spent() -> bool:
        return left[0] < 0

    return spent


async def test_leases_are_renewed_while_an_embedding_is_slow(tmp_path: Path) -> None:
    """I2: a slow embedding keeps its lease, so nobody else takes the event."""
    timing = FollowerTiming(lease=timedelta(seconds=1), claim_wait=timedelta(seconds=2))
    async with index_world(tmp_path, timing=timing) as world:
        await world.settled()
        world.embedder.gate = asyncio.Event()
        world.ledger.publish(content("Slow rule"))
        await world.embedder.waiting.wait()

        async def renewed() -> bool:
            return len(world.ledger.renewed) >= 2

        await until(renewed)
        world.embedder.gate.set()
        await world.settled()
        assert world.ledger.events[0].attempts == 1
        assert len(await world.points()) == 1


async def test_two_followers_with_expired_leases_converge(tmp_path: Path) -> None:
    """I2: a slow worker whose lease ran out finishes after a faster one with newer state; the newer state stays."""
    async with index_world(tmp_path, follow=False) as world:
        await until(lambda: _complete(world))
        channel = connect(world.ledger.address, token=lambda: SERVICE_TOKEN)
        ledger = GrpcLedgerClient(channel)
        projector = world.app.follower._projector
        slow, fast = (Follower(ledger, projector, world.embedder, worker=w, timing=FAST) for w in ("slow", "fast"))

        async def claim(worker: str) -> Sequence[OutboxEvent]:
            return await ledger.claim(worker, limit=8, lease=timedelta(seconds=30), wait=timedelta(0))

        gone = world.ledger.publish(content("Words that are taken back"))
        family = gone.name.rpartition("/revisions/")[0]
        world.embedder.gate = gate = asyncio.Event()
        behind = asyncio.create_task(slow.handle(await claim("slow")))
        await world.embedder.waiting.wait()
        world.embedder.gate = None
        world.ledger.expire_leases()
        world.ledger.publish(content("Words that stay"), family=family, valid_from=gone.valid_from)
        await fast.handle(await claim("fast"))
        before = await world.everything()
        assert [p.revision for p in before[0].values()] != [gone.name]
        gate.set()
        await behind
        await channel.close()
        assert await world.everything() == before
        assert await fresh(world, tmp_path / "fresh") == before
        assert slow.status.handled == 0


async def test_a_follower_that_the_ledger_refuses_takes_the_process_down(tmp_path: Path) -> None:
    """I1: an index whose follower cannot work ends, loudly, instead of going stale."""
    from service_kit.errors import permission_denied

    async with index_world(tmp_path) as world:
        await world.settled()
        world.ledger.faults["ClaimEvents"] = lambda _request: permission_denied("billing", "admin")
        with pytest.raises(BackgroundTaskDied, match="follower"):
            await asyncio.wait_for(world.host.run(), 20)


async def test_stopping_in_the_middle_loses_no_event(tmp_path: Path) -> None:
    """I2: a shutdown during a slow embedding leaves nothing half; the next start indexes the event."""
    async with StubLedger() as ledger:
        embedder = WordEmbedder()
        async with index_world(tmp_path, ledger=ledger, embedder=embedder) as world:
            await world.settled()
            embedder.gate = asyncio.Event()
            ledger.publish(content("Interrupted rule"))
            await embedder.waiting.wait()
            world.host._grace = 0.2
        assert not ledger.events[0].done
        ledger.expire_leases()
        embedder.gate = None
        async with index_world(tmp_path, ledger=ledger, embedder=embedder) as world:
            await world.settled()
            assert len(await world.points()) == 1
            assert ledger.calls["ListProjections"] <= 1


async def test_an_event_of_an_unknown_project_blocks_nobody(tmp_path: Path) -> None:
    """I3: a project that the ledger no longer has fails its own events only."""
    async with index_world(tmp_path) as world:
        world.ledger.backoff_seconds = 0.0
        world.ledger.publish(content("Lost"), project="shipping")
        await world.settled()
        world.ledger.publish(content("Lost again"), project="shipping")
        held = world.ledger.projects.pop("shipping")
        world.ledger.publish(content("Kept"))

        async def dead() -> bool:
            return any(e.dead for e in world.ledger.events)

        await until(dead)
        world.ledger.projects["shipping"] = held
        assert len(await world.points()) == 1


def _stamp(row: Row) -> Timestamp:
    return to_timestamp(row.valid_from)
