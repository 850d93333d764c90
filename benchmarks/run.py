"""Speed of the whole on this machine, as ratios to an empty RPC, raw SQLite and raw Qdrant of the same run.

A ratio holds on other machines, milliseconds do not: every figure is measured in turn with the baseline that it is
divided by, so that whatever else the machine does slows both. Medians throughout. The services run in processes of
their own and are driven over loopback, with tokens, limits and logs as in production.

    python -m benchmarks.run            all sizes, about ten minutes on two cores; writes benchmarks/RESULTS.md
    python -m benchmarks.run --quick    small sizes, about two minutes; prints only
"""

from __future__ import annotations

import argparse
import asyncio
import os
import platform
import random
import shutil
import sqlite3
import statistics
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import AsyncExitStack, closing
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import qdrant_edge as qe
from decisionssearch.index.v1 import index_service_pb2, index_service_pb2_grpc
from decisionssearch.ledger.v1 import (
    admin_service_pb2,
    admin_service_pb2_grpc,
    ledger_service_pb2,
    ledger_service_pb2_grpc,
    proposal_service_pb2,
)
from decisionssearch.retrieval.v1 import retrieval_service_pb2, retrieval_service_pb2_grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc

from benchmarks.index_service import sentence
from benchmarks.ledger_publish import PROJECT, creation, publish, raw_inserts, server
from benchmarks.stack import Running, embedded
from index_svc.embedder_offline import DIMENSIONS, MODEL_ID, OfflineEmbedder
from ledger_svc import rows
from service_kit.ids import new_id

Call = Callable[[], Awaitable[Any]]
Requests = list[proposal_service_pb2.CreateProposalRequest]

RESULTS = Path(__file__).resolve().parent / "RESULTS.md"
BATCH = 100
QUESTIONS = 50
FAMILIES = 100
WARM = 50


@dataclass(frozen=True, slots=True)
class Sizes:
    """How much is measured."""

    memories: Sequence[int]
    histories: Sequence[int]
    publications: Mapping[int, int]
    """How many, by size of the batch."""
    calls: int


FULL = Sizes((1_000, 10_000), (1_000, 10_000, 100_000), {1: 100, 10: 500, 100: 2_000}, 400)
QUICK = Sizes((500, 1_000), (500, 2_000), {1: 30, 10: 100, 100: 500}, 150)


@dataclass(slots=True)
class Report:
    """The table."""

    rows: list[tuple[str, str, str, str]] = field(default_factory=list)

    def add(self, what: str, value: str, ratio: str = "", *, goal: str = "", met: bool | None = None) -> None:
        """Add a row and show it."""
        verdict = "" if met is None else f"{goal} {'✓' if met else '✗'}"
        self.rows.append((what, value, ratio, verdict))
        print("  ".join(filter(None, self.rows[-1])), flush=True)

    def head(self, title: str) -> None:
        """Begin a group of rows."""
        self.rows.append((f"**{title}**", "", "", ""))
        print(f"\n{title}", flush=True)

    def markdown(self, sizes: Sizes, seconds: float) -> str:
        """Return the file."""
        lines = "\n".join(f"| {' | '.join(row)} |" for row in self.rows)
        machine = (
            f"{_processor()}, {os.cpu_count()} cores, Python {platform.python_version()}, grpcio {version('grpcio')}"
        )
        return (
            "# Benchmarks\n\n"
            f"`python -m benchmarks.run`, {datetime.now(UTC):%Y-%m-%d}, {seconds / 60:.0f} minutes on {machine}; load "
            f"{os.getloadavg()[2]:.1f} over the last quarter of an hour. Medians of {sizes.calls} calls, one after "
            "another. A ratio is to what the row names, measured in turn with it in the same run.\n\n"
            f"| | measured | ratio | goal |\n|---|---|---|---|\n{lines}\n"
        )


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text("utf-8").splitlines()
    except OSError:
        return platform.machine()
    return next((line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")), platform.machine())


async def in_turn(calls: Mapping[str, Call], rounds: int) -> dict[str, float]:
    """Return the median milliseconds of each call, made in turn."""
    for call in calls.values():
        for _ in range(WARM):
            await call()
    taken: dict[str, list[float]] = {name: [] for name in calls}
    for _ in range(rounds):
        for name, call in calls.items():
            started = time.perf_counter()
            await call()
            taken[name].append((time.perf_counter() - started) * 1_000)
    return {name: statistics.median(times) for name, times in taken.items()}


def empty(channel: Any) -> Call:
    """Return a call that does nothing but go through server and boundary."""
    stub: Any = health_pb2_grpc.HealthStub(channel)
    return lambda: stub.Check(health_pb2.HealthCheckRequest())


# --- The ledger alone -----------------------------------------------------------------------------------------------


async def ledger(report: Report, sizes: Sizes) -> None:
    """Measure publications, then reads against history length."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        async with server(folder) as channels:
            await _make_project(channels["proposer"])
            await _publications(report, sizes, folder, channels)
    await history(report, sizes)


async def _make_project(channel: Any) -> None:
    admin = admin_service_pb2_grpc.AdminServiceStub(channel)
    await admin.CreateProject(admin_service_pb2.CreateProjectRequest(name=PROJECT, request_id=new_id()))


async def _publications(report: Report, sizes: Sizes, folder: Path, channels: Mapping[str, Any]) -> None:
    report.head("Governed publications: propose, approve, apply; SQLite with synchronous=FULL")
    first = 0
    for batch, count in sizes.publications.items():
        before = await in_turn({"empty": empty(channels["proposer"])}, 100)
        requests = [creation(n) for n in range(first, first + count)]
        first += count
        seconds = await publish_all(channels, requests, batch, writers=2)
        after = await in_turn({"empty": empty(channels["proposer"])}, 100)
        raw = raw_inserts(folder, count, batch)
        rate = count / seconds
        rpc = (before["empty"] + after["empty"]) / 2
        report.add(
            f"batches of {batch}, two writers",
            f"{rate:.0f}/s",
            f"{1_000 / rate / rpc:.1f} empty RPCs each; 1/{raw / rate:.0f} of raw inserts",
            goal="≥ 250/s",
            met=rate >= 250 if batch == max(sizes.publications) else None,
        )


async def publish_all(channels: Mapping[str, Any], requests: Requests, batch: int, *, writers: int) -> float:
    """Publish in batches and return the seconds."""
    waiting = [requests[i : i + batch] for i in range(0, len(requests), batch)]
    waiting.reverse()

    async def writer() -> None:
        while waiting:
            await publish(channels, waiting.pop())

    started = time.perf_counter()
    await asyncio.gather(*(writer() for _ in range(writers)))
    return time.perf_counter() - started


async def history(report: Report, sizes: Sizes) -> None:
    """Read the heads of a hundred families with short and with long histories, in turn."""
    report.head("Reads against the length of history (a hundred families share the revisions)")
    async with AsyncExitStack() as stack:
        base = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        async with server(base) as channels:
            await _make_project(channels["proposer"])
            await publish_all(channels, [creation(n) for n in range(FAMILIES)], BATCH, writers=1)
            stub: Any = ledger_service_pb2_grpc.LedgerServiceStub(channels["proposer"])
            keys = [f"adr/{n:06}" for n in range(FAMILIES)]
            found = await stub.BatchGetHeads(
                ledger_service_pb2.BatchGetHeadsRequest(project=PROJECT, identity_keys=keys)
            )
            families = [head.family.name for head in found.heads]
        raw_inserts(base, 1_000, BATCH)
        calls: dict[str, Call] = {}
        for size in sizes.histories:
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
            shutil.copytree(base, folder, dirs_exist_ok=True)
            lengthen(folder / "ledger.sqlite", size)
            channels = await stack.enter_async_context(server(folder))
            calls |= {f"{name} at {size:,} revisions": call for name, call in _reads(channels, families).items()}
        medians = await in_turn(calls, sizes.calls)
        raw = raw_read(base)
        first, *longer = sizes.histories
        for what in READS:
            for size in sizes.histories:
                name = f"{what} at {size:,} revisions"
                report.add(
                    name,
                    f"{medians[name]:.2f} ms",
                    f"{medians[name] / medians[f'empty at {size:,} revisions']:.1f} empty RPCs, "
                    f"{medians[name] / raw:.0f} raw reads",
                    goal=f"≤ 1.5 × {first:,}",
                    met=medians[name] <= 1.5 * medians[f"{what} at {first:,} revisions"] if size in longer else None,
                )


READS = ("GetHead", "BatchGetHeads(50), states", "BatchGetHeads(50), whole")


def _reads(channels: Mapping[str, Any], families: Sequence[str]) -> dict[str, Call]:
    stub: Any = ledger_service_pb2_grpc.LedgerServiceStub(channels["proposer"])
    turn = random.Random(3)

    async def one() -> Any:
        return await stub.GetHead(ledger_service_pb2.GetHeadRequest(family=turn.choice(families)))

    def many(view: ledger_service_pb2.HeadView.ValueType) -> Call:
        request = ledger_service_pb2.BatchGetHeadsRequest(project=PROJECT, families=families[:50], view=view)
        return lambda: stub.BatchGetHeads(request)

    views = (ledger_service_pb2.HEAD_VIEW_STATE, ledger_service_pb2.HEAD_VIEW_FULL)
    return {"empty": empty(channels["proposer"]), **dict(zip(READS, (one, *map(many, views)), strict=True))}


def lengthen(database: Path, size: int) -> None:
    """Give every family as many revisions as its commits would have, without their ceremony: ``size`` in all.

    Publishing a hundred thousand revisions takes minutes and would measure something else.
    """
    with closing(sqlite3.connect(database, isolation_level=None)) as connection:
        connection.execute("BEGIN IMMEDIATE")
        (position,) = connection.execute("SELECT max(position) FROM projects").fetchone()
        heads = connection.execute("SELECT family_id, revision_id FROM heads").fetchall()
        for family_id, revision_id in heads:
            texts = connection.execute("SELECT body, content FROM revisions WHERE revision_id = ?", (revision_id,))
            revision = rows.revision_of(*texts.fetchone())
            kept = connection.execute(
                f"SELECT {rows.ROW_COLUMNS} FROM timeline_rows WHERE family_id = ?",  # noqa: S608 - a fixed text
                (family_id,),
            ).fetchone()
            row, begins = rows.timeline_row_of(kept), revision.valid_from
            revisions, timeline = [], []
            for number in range(2, size // len(heads) + 1):
                position += 1
                begins += timedelta(microseconds=1)
                ident = new_id()
                later = replace(
                    revision,
                    revision_id=ident,
                    number=number,
                    position=position,
                    recorded_at=begins,
                    valid_from=begins,
                    content=replace(revision.content, summary=f"As decided for the {number}th time."),
                )
                revisions.append(rows.revision_row(later))
                past = replace(row, valid_to=begins, opened_position=position, recorded_from=begins)
                closed = replace(row, recorded_to=begins, closed_position=position)
                timeline += [rows.timeline_row(past), rows.timeline_row(closed)]
                row = replace(
                    row,
                    revision_id=ident,
                    valid_from=begins,
                    valid_to=None,
                    opened_position=position,
                    recorded_from=begins,
                )
            # The first row is there, open: it is closed as the second revision would have.
            if timeline:
                connection.execute(
                    "UPDATE timeline_rows SET recorded_to = ?, closed_position = ? WHERE family_id = ?",
                    (timeline[1][11], timeline[1][12], family_id),
                )
            timeline.append(rows.timeline_row(row))
            marks = ", ".join("?" * len(kept))
            connection.executemany(
                f"INSERT INTO revisions ({rows.REVISION_COLUMNS}) VALUES (?,?,?,?,?,?,?,?,?)",  # noqa: S608
                revisions,
            )
            connection.executemany(
                f"INSERT OR IGNORE INTO timeline_rows ({rows.ROW_COLUMNS}) VALUES ({marks})",  # noqa: S608
                timeline,
            )
            connection.execute(
                "UPDATE heads SET revision_id = ?, number = ?, position = ? WHERE family_id = ?",
                (row.revision_id, size // len(heads), position, family_id),
            )
        connection.execute("UPDATE projects SET position = ?", (position,))
        connection.execute("COMMIT")


def raw_read(folder: Path) -> float:
    """Return the median milliseconds of reading one row by its key, from the bare table of the raw inserts."""
    with sqlite3.connect(folder / "raw.sqlite") as database:
        keys = [row[0] for row in database.execute("SELECT id FROM raw LIMIT 500")]
        times = []
        for key in keys:
            started = time.perf_counter()
            database.execute("SELECT id, body FROM raw WHERE id = ?", (key,)).fetchall()
            times.append((time.perf_counter() - started) * 1_000)
    return statistics.median(times)


# --- The whole ------------------------------------------------------------------------------------------------------


async def whole(report: Report, sizes: Sizes) -> None:
    """Measure the embedded deployment: filling, search, rebuild, memory."""
    report.head("The embedded deployment: four services in one process, with the embedder that ships")
    questions = [f"{sentence(14)}?" for _ in range(QUESTIONS)]
    embedder = OfflineEmbedder()
    vectors = [list(map(float, await embedder.embed_query(text))) for text in questions]
    await embedder.close()
    with tempfile.TemporaryDirectory() as name:
        async with embedded(Path(name)) as running:
            await _make_project(running.channels["owner"])
            report.add("memory at the start", f"{running.megabytes()} MB")
            held = 0
            for size in sizes.memories:
                await _fill(report, running, held, size)
                held = size
                await _search(report, sizes, running, size, questions, vectors)
                report.add(f"memory at {size:,} memories", f"{running.megabytes()} MB")
            await _rebuild(report, running, held)
            report.add("memory after the rebuild", f"{running.megabytes()} MB")


async def _fill(report: Report, running: Running, held: int, size: int) -> None:
    channels = {"proposer": running.channels["importer"], "reviewer": running.channels["reviewer"]}
    requests = [memory(number) for number in range(held, size)]
    started = time.perf_counter()
    await publish_all(channels, requests, BATCH, writers=1)
    published = time.perf_counter() - started
    stub = index_service_pb2_grpc.IndexServiceStub(running.channels["owner"])
    while True:
        status = await stub.GetIndexStatus(index_service_pb2.GetIndexStatusRequest(project=PROJECT))
        if status.applied_position >= status.ledger_position:
            break
        await asyncio.sleep(0.1)
    seconds = time.perf_counter() - started
    while "main" not in status.calibrated_branches:
        await asyncio.sleep(0.2)
        status = await stub.GetIndexStatus(index_service_pb2.GetIndexStatusRequest(project=PROJECT))
    count = size - held
    report.add(f"published from {held:,} to {size:,} memories, index following", f"{count / published:.0f}/s")
    report.add(f"events to searchable, from {held:,} to {size:,}", f"{count / seconds:.0f}/s")


def memory(number: int) -> proposal_service_pb2.CreateProposalRequest:
    """Return a request for a memory whose words differ from the others'."""
    request = creation(number)
    content = request.mutation.create.content
    content.title = sentence(6)
    content.summary = f"{sentence(16)}."
    content.details = ""
    content.rationale = f"{sentence(16)}."
    return request


async def _search(
    report: Report,
    sizes: Sizes,
    running: Running,
    size: int,
    questions: Sequence[str],
    vectors: Sequence[Sequence[float]],
) -> None:
    channel = running.channels["reader"]
    stub = retrieval_service_pb2_grpc.RetrievalServiceStub(channel)
    index = index_service_pb2_grpc.IndexServiceStub(channel)
    turns: dict[str, int] = {}

    def number(name: str) -> int:
        turns[name] = turns.get(name, -1) + 1
        return turns[name] % QUESTIONS

    def query(n: int) -> index_service_pb2.QueryVector:
        return index_service_pb2.QueryVector(model=MODEL_ID, values=vectors[n])

    def given() -> Awaitable[Any]:
        n = number("given")
        return stub.Search(
            retrieval_service_pb2.SearchRequest(project=PROJECT, text=questions[n], query_vector=query(n))
        )

    def text() -> Awaitable[Any]:
        # Never the same text twice: a vector from the cache would flatter.
        n = number("text")
        return stub.Search(retrieval_service_pb2.SearchRequest(project=PROJECT, text=f"{questions[n]} {turns['text']}"))

    def candidates() -> Awaitable[Any]:
        n = number("candidates")
        return index.SearchCandidates(
            index_service_pb2.SearchCandidatesRequest(
                project=PROJECT, text=questions[n], query_vector=query(n), measure_support=True
            )
        )

    calls: dict[str, Call] = {"empty": empty(channel), "given": given, "text": text, "candidates": candidates}
    medians = await in_turn(calls, sizes.calls)
    raw = raw_qdrant(size)
    rpc = medians["empty"]
    ratio = medians["given"] / rpc
    report.add(f"empty RPC, {size:,} memories stored", f"{rpc:.2f} ms")
    report.add(f"raw Qdrant query, 50 of {size:,} vectors, filtered", f"{raw:.2f} ms", f"{raw / rpc:.1f} empty RPCs")
    report.add(
        f"search at {size:,} memories, vector given",
        f"{medians['given']:.1f} ms",
        f"{ratio:.1f} empty RPCs, {medians['given'] / raw:.0f} raw queries",
        goal="≤ 20 empty RPCs",
        met=ratio <= 20,
    )
    report.add(
        f"search at {size:,} memories, from the text",
        f"{medians['text']:.1f} ms",
        f"{medians['text'] / rpc:.1f} empty RPCs",
    )
    report.add(
        f"candidates of the index alone, {size:,} memories",
        f"{medians['candidates']:.1f} ms",
        f"{medians['candidates'] / rpc:.1f} empty RPCs, {medians['candidates'] / raw:.0f} raw queries",
    )


def raw_qdrant(count: int) -> float:
    """Return the median milliseconds of the nearest 50 of so many vectors, filtered by a keyword, exactly."""
    generator = np.random.default_rng(5)
    with tempfile.TemporaryDirectory() as folder:
        config = qe.EdgeConfig(vectors={"dense": qe.EdgeVectorParams(DIMENSIONS, qe.Distance.Cosine)})
        shard = qe.EdgeShard.create(folder, config)
        shard.update(qe.UpdateOperation.create_field_index("project", qe.PayloadSchemaType.Keyword))
        for first in range(0, count, 500):
            rows = generator.normal(size=(min(500, count - first), DIMENSIONS)).astype(np.float32)
            points = [
                qe.Point(first + n, {"dense": row.tolist()}, {"project": "bench"}) for n, row in enumerate(rows, 1)
            ]
            shard.update(qe.UpdateOperation.upsert_points(points))
        where = qe.Filter(must=[qe.FieldCondition("project", match=qe.MatchValue("bench"))])
        times = []
        for row in generator.normal(size=(100, DIMENSIONS)).astype(np.float32):
            request = qe.QueryRequest(
                limit=50,
                query=qe.Query.Nearest(row.tolist(), "dense"),
                filter=where,
                params=qe.SearchParams(exact=True),
                with_payload=True,
            )
            started = time.perf_counter()
            shard.query(request)
            times.append((time.perf_counter() - started) * 1_000)
        shard.close()
    return statistics.median(times)


async def _rebuild(report: Report, running: Running, held: int) -> None:
    stub = index_service_pb2_grpc.IndexServiceStub(running.channels["owner"])
    started = time.perf_counter()
    run = (await stub.RebuildIndex(index_service_pb2.RebuildIndexRequest(project=PROJECT, request_id=new_id()))).rebuild
    while run.state == index_service_pb2.REBUILD_STATE_RUNNING:
        await asyncio.sleep(0.1)
        found = await stub.GetRebuild(index_service_pb2.GetRebuildRequest(project=PROJECT, name=run.name))
        run = found.rebuild
    if run.state != index_service_pb2.REBUILD_STATE_SUCCEEDED:
        raise RuntimeError(run.error)
    seconds = time.perf_counter() - started
    report.add(f"rebuild of {held:,} memories", f"{seconds:.1f} s", f"{held / seconds:.0f}/s")


def main() -> None:
    """Measure, print, and write the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="small sizes; writes nothing")
    parser.add_argument("--only", choices=["ledger", "whole"], help="one half; writes nothing")
    arguments = parser.parse_args()
    sizes, report, started = QUICK if arguments.quick else FULL, Report(), time.monotonic()
    if arguments.only != "whole":
        asyncio.run(ledger(report, sizes))
    if arguments.only != "ledger":
        asyncio.run(whole(report, sizes))
    if not arguments.quick and arguments.only is None:
        RESULTS.write_text(report.markdown(sizes, time.monotonic() - started), encoding="utf-8")
        print(f"\nwritten: {RESULTS}")
    missed = [row[0] for row in report.rows if row[3].endswith("✗")]
    if missed:
        print("\nmissed: " + "; ".join(missed))
        sys.exit(1)


if __name__ == "__main__":
    main()
