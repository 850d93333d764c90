# ruff: noqa: F811 - a fixture is imported, and then named by its tests
"""The index killed without warning, again and again, under load: it ends where a fresh one does."""

from __future__ import annotations

import asyncio
import random
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import grpc.aio
import pytest
from decisionssearch.index.v1 import index_service_pb2 as pb
from decisionssearch.index.v1 import index_service_pb2_grpc

from tests.index_ledger_stub import StubLedger, content
from tests.index_world import index_world, tmp_path  # noqa: F401 - a fixture

ADMIN = (("authorization", "Bearer admin"),)
KILLS = 6
"""Fewer than the attempts of an event: a worker that dies with it counts as one."""


@dataclass
class Killable:
    """A running index."""

    process: asyncio.subprocess.Process
    stub: index_service_pb2_grpc.IndexServiceStub


@asynccontextmanager
async def killable(folder: Path, ledger: StubLedger) -> AsyncIterator[Killable]:
    """Run an index in a process of its own; it is killed at the end."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "tests.index_process", str(folder), ledger.address), stdout=asyncio.subprocess.PIPE
    )
    try:
        assert process.stdout is not None
        address = (await asyncio.wait_for(process.stdout.readline(), 60)).decode().strip()
        assert address, "the index did not start"
        async with grpc.aio.insecure_channel(address) as channel:
            yield Killable(process, index_service_pb2_grpc.IndexServiceStub(channel))
    finally:
        with suppress(ProcessLookupError):
            process.kill()
        await process.wait()


@pytest.mark.slow
@pytest.mark.timeout(240)
async def test_an_index_that_is_killed_under_load_converges(tmp_path: Path) -> None:
    """I2, I4: kill -9 at random moments, rebuilds among them; afterwards the points equal those of a fresh index."""
    dice = random.Random(11)
    async with StubLedger() as ledger:
        ledger.create_project()
        families = [ledger.publish(content(f"Rule {i}")).name.rpartition("/revisions/")[0] for i in range(5)]

        async def write() -> None:
            number = 0
            while True:
                number += 1
                family = dice.choice(families)
                kind = dice.random()
                if kind < 0.4:
                    row = ledger.publish(content(f"Rule {number} about {dice.randint(0, 9)}"))
                    families.append(row.name.rpartition("/revisions/")[0])
                elif kind < 0.8:
                    ledger.publish(content(f"Words {number}"), family=family)
                else:
                    ledger.invalidate(family)
                await asyncio.sleep(0.01)

        for kill in range(KILLS):
            writer = asyncio.create_task(write())
            async with killable(tmp_path / "lived", ledger) as index:
                if kill % 2:
                    request = pb.RebuildIndexRequest(project="projects/billing", request_id=f"r{kill}")
                    with suppress(grpc.aio.AioRpcError):  # the first fill may still run
                        await index.stub.RebuildIndex(request, metadata=ADMIN, timeout=20)
                await asyncio.sleep(dice.uniform(0.0, 0.6))
            writer.cancel()
            await asyncio.gather(writer, return_exceptions=True)
            ledger.expire_leases()
        async with index_world(tmp_path / "lived", ledger=ledger) as world:
            await world.settled()
            lived = await world.points()
            assert await world.drifts() == []
            assert not any(e.dead for e in ledger.events)
        async with index_world(tmp_path / "fresh", ledger=ledger, follow=False) as world:
            await world.settled()
            assert await world.points() == lived
            assert len(lived) > 50
