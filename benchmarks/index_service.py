"""The index service on this machine: events to searchable, search latency, rebuild; as ratios to an empty RPC.

The index runs in a process of its own, with the ledger's contracts played by the stub of the tests in this one. Search
is measured with the query vector given, so that the embedder does not count; filling is measured with the embedder that
ships, and with one that costs nothing, which shows what the rest of the way costs.

    python benchmarks/index_service.py [--memories 1000 10000] [--real 300] [--json]
"""

from __future__ import annotations

import argparse
import asyncio
import json
import multiprocessing
import random
import signal
import statistics
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import grpc.aio
import psutil
from decisionssearch.index.v1 import index_service_pb2 as pb
from decisionssearch.index.v1 import index_service_pb2_grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc

from index_svc.app import create_app
from index_svc.embedder_offline import OfflineEmbedder
from index_svc.ledger_client import GrpcLedgerClient
from index_svc.servicer import LIMITS
from index_svc.settings import IndexSettings
from service_kit.boundary import Boundary
from service_kit.clients import connect
from service_kit.logs import configure
from service_kit.serving import Host
from tests.index_ledger_stub import StubLedger, content
from tests.index_world import SERVICE_TOKEN, Tokens, WordEmbedder

DIMENSIONS = 512
CALLS = 300
AS_ADMIN = (("authorization", "Bearer admin"),)
RANDOM = random.Random(7)
SYLLABLES = [a + b for a in "bcdfglmnprstvz" for b in ("a", "e", "i", "o", "u", "an", "er", "is", "or")]
WORDS = sorted({"".join(RANDOM.choices(SYLLABLES, k=RANDOM.randint(2, 4))) for _ in range(4_000)})


class CheapEmbedder(WordEmbedder):
    """Random vectors by text: costs nothing and finds nothing; good for the time of everything else."""

    def __init__(self) -> None:
        super().__init__("cheap", DIMENSIONS)

    def _vector(self, text: str) -> Any:
        import numpy as np

        return np.random.default_rng(abs(hash(text)) % 2**32).normal(size=DIMENSIONS).astype(np.float32)


def sentence(words: int) -> str:
    """Return a sentence of made-up words, frequent ones more often."""
    return " ".join(WORDS[min(int(RANDOM.expovariate(1 / 400)), len(WORDS) - 1)] for _ in range(words)).capitalize()


def memory(sentences: int) -> Any:
    """Return the content of a memory: a title and so many sentences."""
    return content(sentence(6), ". ".join(sentence(14) for _ in range(sentences)), modules=[RANDOM.choice(WORDS)])


def serve(address: Connection, folder: str, ledger: str, real: bool) -> None:
    """Run the index in this process until told to stop."""

    async def run() -> None:
        configure("error", "console")
        async with Host(grace_seconds=5) as host:
            channel = connect(ledger, token=lambda: SERVICE_TOKEN)
            host.on_stop("ledger channel", channel.close)
            settings = IndexSettings.load(data_dir=Path(folder), calibration_quiet_seconds=3_600.0)
            embedder = OfflineEmbedder() if real else CheapEmbedder()
            host.on_stop("embedder", embedder.close)
            app = await create_app(settings, ledger=GrpcLedgerClient(channel), embedder=embedder)
            app.add_to(host)
            server = host.serve(Boundary(Tokens(), limits=LIMITS))
            for add in app.servicers:
                add(server)
            await host.start()
            address.send(server.address)
            await host.run()

    asyncio.run(run())


@asynccontextmanager
async def index(folder: Path, ledger: StubLedger, *, real: bool) -> AsyncIterator[tuple[grpc.aio.Channel, int]]:
    """Run an index in a process of its own; yields a channel to it and its process id."""
    ours, theirs = multiprocessing.Pipe()
    spawn = multiprocessing.get_context("spawn")
    process = spawn.Process(target=serve, args=(theirs, str(folder), ledger.address, real))
    process.start()
    try:
        address = await asyncio.to_thread(ours.recv)
        async with grpc.aio.insecure_channel(address) as channel:
            yield channel, process.pid or 0
    finally:
        if process.pid and process.is_alive():
            psutil.Process(process.pid).send_signal(signal.SIGTERM)
        await asyncio.to_thread(process.join, 20)


async def timed(call: Callable[[], Awaitable[Any]], count: int = CALLS) -> tuple[float, float]:
    """Return p50 and p95 of a call in milliseconds, one after another."""
    for _ in range(20):
        await call()
    taken = []
    for _ in range(count):
        started = time.perf_counter()
        await call()
        taken.append((time.perf_counter() - started) * 1_000)
    taken.sort()
    return statistics.median(taken), taken[int(len(taken) * 0.95)]


async def fill(ledger: StubLedger, channel: grpc.aio.Channel, count: int, sentences: int) -> float:
    """Publish memories and return the seconds until the last one is searchable."""
    stub = index_service_pb2_grpc.IndexServiceStub(channel)
    started = time.perf_counter()
    for number in range(count):
        ledger.publish(memory(sentences))
        if number % 100 == 99:
            await asyncio.sleep(0)  # the stub serves in this loop
    while True:
        status = await stub.GetIndexStatus(pb.GetIndexStatusRequest(project="projects/billing"), metadata=AS_ADMIN)
        if status.applied_position == status.ledger_position == ledger.projects["billing"].position:
            return time.perf_counter() - started
        await asyncio.sleep(0.05)


async def search_times(channel: grpc.aio.Channel, base: float) -> dict[str, Any]:
    """Measure searches with a given vector, against the time of an empty RPC."""
    stub = index_service_pb2_grpc.IndexServiceStub(channel)
    embedder = CheapEmbedder()
    vectors = [list(await embedder.embed_query(str(n))) for n in range(50)]
    asked = [sentence(14) for _ in range(50)]
    rows: dict[str, Any] = {}
    for name, fields in {
        "all ways": {},
        "all ways, with support": {"measure_support": True},
        "dense": {"branches": [pb.SEARCH_BRANCH_DENSE]},
        "sparse": {"branches": [pb.SEARCH_BRANCH_SPARSE]},
        "structural": {"branches": [pb.SEARCH_BRANCH_STRUCTURAL]},
    }.items():
        turn = iter(range(10**6))

        async def call(fields: dict[str, Any] = fields, turn: Any = turn) -> None:
            i = next(turn) % 50
            vector = pb.QueryVector(model="cheap", values=vectors[i])
            request = pb.SearchCandidatesRequest(
                project="projects/billing", text=asked[i], query_vector=vector, **fields
            )
            await stub.SearchCandidates(request, metadata=AS_ADMIN)

        p50, p95 = await timed(call)
        rows[name] = {"p50_ms": round(p50, 2), "p95_ms": round(p95, 2), "empty_rpcs": round(p50 / base, 1)}
    return rows


async def rebuild_seconds(channel: grpc.aio.Channel, request_id: str) -> float:
    """Return the seconds of a rebuild."""
    stub = index_service_pb2_grpc.IndexServiceStub(channel)
    started = time.perf_counter()
    request = pb.RebuildIndexRequest(project="projects/billing", request_id=request_id)
    run = (await stub.RebuildIndex(request, metadata=AS_ADMIN)).rebuild
    while run.state == pb.REBUILD_STATE_RUNNING:
        await asyncio.sleep(0.1)
        found = await stub.GetRebuild(
            pb.GetRebuildRequest(project="projects/billing", name=run.name), metadata=AS_ADMIN
        )
        run = found.rebuild
    if run.state != pb.REBUILD_STATE_SUCCEEDED:
        raise RuntimeError(run.error)
    return time.perf_counter() - started


async def cheap(sizes: Sequence[int], report: dict[str, Any]) -> None:
    """Measure everything but the embedder, at growing sizes."""
    with tempfile.TemporaryDirectory() as folder:
        async with StubLedger() as ledger, index(Path(folder), ledger, real=False) as (channel, pid):
            health = health_pb2_grpc.HealthStub(channel)
            base, base95 = await timed(lambda: health.Check(health_pb2.HealthCheckRequest(), wait_for_ready=True))
            report["empty_rpc"] = {"p50_ms": round(base, 2), "p95_ms": round(base95, 2)}
            held = 0
            for size in sizes:
                seconds = await fill(ledger, channel, size - held, 3)
                rate = (size - held) / seconds
                held = size
                taken = await rebuild_seconds(channel, f"r{size}")
                report[f"{size} memories"] = {
                    "events_to_searchable_per_s": round(rate),
                    "rebuild_s": round(taken, 1),
                    "memory_mb": round(psutil.Process(pid).memory_info().rss / 2**20),
                    "search": await search_times(channel, base),
                }


async def real(count: int, report: dict[str, Any]) -> None:
    """Measure filling with the embedder that ships."""
    with tempfile.TemporaryDirectory() as folder:
        async with StubLedger() as ledger, index(Path(folder), ledger, real=True) as (channel, _):
            await fill(ledger, channel, 20, 3)  # the weights load
            seconds = await fill(ledger, channel, count, 8)
            report["shipped embedder"] = {
                "memories": count,
                "sentences_each": 8,
                "events_to_searchable_per_s": round(count / seconds, 1),
                "rebuild_s": round(await rebuild_seconds(channel, "real"), 1),
            }


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--memories", type=int, nargs="*", default=[1_000, 10_000], help="sizes to measure search at")
    parser.add_argument("--real", type=int, default=300, help="memories to fill with the shipped embedder; 0 skips it")
    parser.add_argument("--json", action="store_true", help="print JSON only")
    arguments = parser.parse_args()
    report: dict[str, Any] = {}
    asyncio.run(cheap(sorted(arguments.memories), report))
    if arguments.real:
        asyncio.run(real(arguments.real, report))
    if arguments.json:
        print(json.dumps(report, indent=2))
        return
    for part, values in report.items():
        print(f"\n{part}")
        for name, value in values.items():
            if isinstance(value, dict):
                for inner, row in value.items():
                    print(f"  {inner:24} " + "  ".join(f"{k} {v}" for k, v in row.items()))
            else:
                print(f"  {name:28} {value}")


if __name__ == "__main__":
    main()
