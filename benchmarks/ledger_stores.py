"""SQLite and Neo4j as homes of the ledger: publications per second over gRPC, and costs against the size of history.

Publications are governed: created, approved by another principal, applied, over gRPC, in concurrent batches; one by
one in the same run for comparison. Costs are those of the port, in one process, with so many revisions stored: half of
them in one family, half in families of their own. Neo4j is the server that the tests take (the environment's, Docker's,
Java's); its database must be one that the tests own, because everything in it is removed.

    python -m benchmarks.ledger_stores [--stores sqlite,neo4j] [--sizes 1000,10000,100000] [--publications 1000]
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import statistics
import tempfile
import time
from collections.abc import Awaitable, Sequence
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

from decisionssearch.ledger.v1 import admin_service_pb2, admin_service_pb2_grpc

from benchmarks.ledger_publish import PROJECT, creation, publish, server
from ledger_svc.domain.model import Content, Supersede
from ledger_svc.outbox import MOST_ATTEMPTS
from ledger_svc.store import LedgerStore
from ledger_svc.store_neo4j import Neo4jLedgerStore
from ledger_svc.store_sqlite import SqliteLedgerStore
from ledger_svc.views import Detail, HeadsPageQuery, HeadsQuery
from service_kit.ids import new_id
from tests import neo4j_fixture
from tests.contract.test_ledger_store_contract import ANA, World
from tests.ledger_growth import grow, spread

CHUNK = 1_000
TURNS = 40
Figures = dict[str, float]


# --- Publications over gRPC -------------------------------------------------------------------------------------------


async def publications(store: str, count: int, batch: int, writers: int) -> Figures:
    """Return publications per second in concurrent batches, and one by one, of the same server."""
    with tempfile.TemporaryDirectory() as name, _environment(store, Path(name)):
        async with server(Path(name)) as channels:
            admin = admin_service_pb2_grpc.AdminServiceStub(channels["proposer"])
            await admin.CreateProject(admin_service_pb2.CreateProjectRequest(name=PROJECT, request_id=new_id()))
            numbers = iter(range(10_000_000))
            for _ in range(2 * writers):
                await publish(channels, [creation(next(numbers)) for _ in range(batch)])
            await _one_by_one(channels, [creation(next(numbers)) for _ in range(10)])
            single = await _one_by_one(channels, [creation(next(numbers)) for _ in range(40)])
            waiting = [[creation(next(numbers)) for _ in range(batch)] for _ in range(count // batch)]

            async def writer() -> None:
                while waiting:
                    await publish(channels, waiting.pop())

            started = time.perf_counter()
            await asyncio.gather(*(writer() for _ in range(writers)))
            together = count // batch * batch / (time.perf_counter() - started)
    return {"batches": round(together, 1), "one by one": round(single, 1), "ratio": round(together / single, 1)}


async def _one_by_one(channels: dict[str, Any], requests: Sequence[Any]) -> float:
    started = time.perf_counter()
    for request in requests:
        await publish(channels, [request])
    return len(requests) / (time.perf_counter() - started)


class _environment:  # noqa: N801 - reads as the context that it is
    """The ledger's settings for a store, in the environment that its process inherits."""

    def __init__(self, store: str, folder: Path) -> None:
        self._values = {}
        if store == "neo4j":
            neo4j_fixture.wipe()
            found = neo4j_fixture.server()
            password = folder / "password"
            password.write_text(found.password, encoding="utf-8")
            self._values = {
                "DSEARCH_LEDGER_STORE": "neo4j",
                "DSEARCH_LEDGER_NEO4J_URI": found.uri,
                "DSEARCH_LEDGER_NEO4J_USER": found.user,
                "DSEARCH_LEDGER_NEO4J_PASSWORD_FILE": str(password),
            }

    def __enter__(self) -> None:
        os.environ.update(self._values)

    def __exit__(self, *_error: object) -> None:
        for name in self._values:
            del os.environ[name]


# --- Costs against the size of history --------------------------------------------------------------------------------


async def filled(world: World, size: int) -> tuple[str, list[str]]:
    """Make a history of so many revisions; return its long family and fifty others."""
    await world.make_project()
    family = await world.create("long")
    view = await world.head(family)
    half = size // 2
    like = (view.family, view.revision, view.rows[0])
    for first in range(0, half, CHUNK):
        await spread(world.store, like, first, min(CHUNK, half - first))
        await grow(world.store, family, first, min(CHUNK, half - first))
    # What was stored has its record times in the future of the clock that made it.
    world.clock.advance(timedelta(days=1))
    return family, [f"22222222-0000-7000-8000-{number:012x}" for number in range(min(50, half))]


async def costs(store: LedgerStore, size: int, turns: int = TURNS) -> Figures:
    """Return the median milliseconds of each operation with so many revisions stored."""
    world = World(store)
    family, others = await filled(world, size)
    measured: dict[str, list[float]] = {}

    async def timed(name: str, call: Awaitable[Any]) -> None:
        started = time.perf_counter()
        await call
        measured.setdefault(name, []).append((time.perf_counter() - started) * 1_000)

    for turn in range(turns):
        now = world.clock.now()
        one = HeadsQuery("p1", "main", now, None, Detail.BASIC, (family,))
        page = HeadsPageQuery(
            "p1",
            "main",
            now,
            now,
            Detail.BASIC,
            frozenset(),
            frozenset(),
            flagged_only=False,
            after_family="",
            limit=50,
        )
        change = Supersede(family if turn % 2 else others[turn], Content(f"version {turn}"))
        view = await world.approve(await world.propose(change))
        item = (world.request(ANA, "ApplyProposal"), view.proposal.proposal_id, "")
        await timed("GetHead", store.heads(one))
        await timed("BatchGetHeads(50)", store.heads(replace(one, family_ids=tuple(others))))
        await timed("QueryHeads, first page", store.heads_page(page))
        await timed("apply of an update", world.proposals.apply(ANA, "p1", [item], brief=True))
        until = now + timedelta(seconds=60)
        await timed("one outbox claim", store.claim_events("w", 1, world.clock.now(), until, MOST_ATTEMPTS))
    return {name: round(statistics.median(times), 2) for name, times in measured.items()}


async def opened(name: str, folder: Path) -> LedgerStore:
    """Return an empty store."""
    if name == "sqlite":
        return await SqliteLedgerStore.open(folder / "ledger.sqlite")
    neo4j_fixture.wipe()
    return await Neo4jLedgerStore.open(neo4j_fixture.connection(warnings=False))


async def measure(stores: Sequence[str], sizes: Sequence[int], count: int, batch: int, writers: int) -> dict[str, Any]:
    """Run everything and return the figures."""
    figures: dict[str, Any] = {}
    for name in stores:
        if count:
            figures[f"{name}: publications per second"] = await publications(name, count, batch, writers)
        for size in sizes:
            with tempfile.TemporaryDirectory() as folder:
                store = await opened(name, Path(folder))
                try:
                    figures[f"{name}: ms with {size} revisions"] = await costs(store, size)
                finally:
                    await store.close()
    return figures


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--stores", default="sqlite,neo4j")
    parser.add_argument("--sizes", default="1000,10000,100000")
    parser.add_argument("--publications", type=int, default=1_000)
    parser.add_argument("--batch", type=int, default=100)
    parser.add_argument("--writers", type=int, default=4)
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    sizes = [int(size) for size in arguments.sizes.split(",") if size]
    try:
        figures = asyncio.run(
            measure(arguments.stores.split(","), sizes, arguments.publications, arguments.batch, arguments.writers)
        )
    finally:
        neo4j_fixture.close()
    if arguments.json:
        print(json.dumps(figures, indent=2))
        return
    for name, values in figures.items():
        print(name)
        for what, value in values.items():
            print(f"    {what:30} {value}")


if __name__ == "__main__":
    main()
