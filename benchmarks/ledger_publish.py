"""Governed publications per second over gRPC, and reads against history length, on this machine.

The server is a process of its own on a file with synchronous=FULL; the client drives it over loopback. Figures are also
given as ratios to an empty RPC and to a raw SQLite insert with the same durability, measured in the same run.

    python benchmarks/ledger_publish.py [--memories 2000] [--batch 100] [--json]
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import socket
import sqlite3
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from decisionssearch.ledger.v1 import (
    admin_service_pb2,
    admin_service_pb2_grpc,
    ledger_pb2,
    ledger_service_pb2,
    ledger_service_pb2_grpc,
    proposal_pb2,
    proposal_service_pb2,
    proposal_service_pb2_grpc,
)

from service_kit.clients import connect
from service_kit.ids import new_id
from service_kit.principals import Kind, Principal, Role, grant
from service_kit.tokens import TokenFile

PROJECT = "projects/bench"
TEXT = "We keep every invoice as it was issued; a correction is a new document that names the old one. " * 8


def free_port() -> int:
    """Return a port that nobody listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@contextlib.asynccontextmanager
async def server(folder: Path) -> AsyncIterator[dict[str, Any]]:
    """Run a ledger in a process of its own; yields a channel for each of two principals."""
    tokens = TokenFile(folder / "tokens.json")
    issued = {
        "proposer": tokens.issue(
            Principal("local", "importer", Kind.SERVICE, "", (grant("*", [Role.PROPOSER, Role.ADMIN]),))
        ),
        "reviewer": tokens.issue(Principal("local", "rui", Kind.HUMAN, "", (grant("*", [Role.REVIEWER]),))),
    }
    address = f"127.0.0.1:{free_port()}"
    environment = {
        **os.environ,
        "DSEARCH_LEDGER_BIND": address,
        "DSEARCH_LEDGER_DATABASE": str(folder / "ledger.sqlite"),
        "DSEARCH_LEDGER_TOKENS_FILE": str(folder / "tokens.json"),
        "DSEARCH_LEDGER_LOG_LEVEL": "warning",
    }
    process = subprocess.Popen([sys.executable, "-m", "ledger_svc"], env=environment)
    channels = {
        name: connect(address, token=lambda token=token: token, timeout_seconds=60.0)  # type: ignore[misc]
        for name, token in issued.items()
    }
    try:
        await asyncio.wait_for(channels["proposer"].channel_ready(), 20)
        yield channels
    finally:
        for channel in channels.values():
            await channel.close()
        process.terminate()
        process.wait(20)


def evidence(name: str) -> proposal_pb2.EvidenceInput:
    """Return a piece of evidence from a source of its own."""
    return proposal_pb2.EvidenceInput(
        draft=ledger_pb2.EvidenceDraft(
            source_kind=ledger_pb2.SOURCE_KIND_ADR,
            locator=f"docs/adr/{name}.md",
            excerpt=TEXT[:300],
            extractor="structured/adr@1",
            reliability=0.9,
        ),
        stance=ledger_pb2.STANCE_SUPPORTS,
        confidence=0.9,
    )


def creation(number: int) -> proposal_service_pb2.CreateProposalRequest:
    """Return a request for one new memory of a usual size, with one piece of evidence."""
    content = ledger_pb2.Content(
        title=f"Decision {number}", summary=f"Decision {number}: {TEXT[:200]}", details=TEXT, importance=0.5
    )
    return proposal_service_pb2.CreateProposalRequest(
        request_id=new_id(),
        mutation=proposal_pb2.Mutation(
            create=proposal_pb2.CreateMutation(
                identity_key=f"adr/{number:06}", category=ledger_pb2.CATEGORY_DESIGN_RULE, content=content
            )
        ),
        evidence=[evidence(f"{number:04}")],
        reason="import",
    )


async def publish(
    channels: Mapping[str, Any], requests: Sequence[proposal_service_pb2.CreateProposalRequest]
) -> list[float]:
    """Create, approve and apply one batch; return the seconds of each step."""
    proposer = proposal_service_pb2_grpc.ProposalServiceStub(channels["proposer"])
    reviewer = proposal_service_pb2_grpc.ProposalServiceStub(channels["reviewer"])
    started = time.perf_counter()
    made = await proposer.BatchCreateProposals(
        proposal_service_pb2.BatchCreateProposalsRequest(project=PROJECT, requests=requests)
    )
    created = time.perf_counter()
    proposals = [result.proposal for result in made.results]
    await reviewer.BatchApproveProposals(
        proposal_service_pb2.BatchApproveProposalsRequest(
            project=PROJECT,
            requests=[
                proposal_service_pb2.ApproveProposalRequest(
                    proposal=p.name, request_id=new_id(), preview_hash=p.preview_hash
                )
                for p in proposals
            ],
        )
    )
    approved = time.perf_counter()
    applied = await proposer.BatchApplyProposals(
        proposal_service_pb2.BatchApplyProposalsRequest(
            project=PROJECT,
            brief=True,
            requests=[
                proposal_service_pb2.ApplyProposalRequest(proposal=p.name, request_id=new_id()) for p in proposals
            ],
        )
    )
    if any(result.WhichOneof("result") != "applied" for result in applied.results):
        raise RuntimeError(f"a publication failed: {applied.results[0]}")
    return [created - started, approved - created, time.perf_counter() - approved]


async def empty_rpc(channel: Any, calls: int = 500) -> float:
    """Return the median seconds of a call that does nothing."""
    stub = admin_service_pb2_grpc.AdminServiceStub(channel)
    return await median(lambda: stub.GetLedgerInfo(admin_service_pb2.GetLedgerInfoRequest()), calls)


async def median(call: Any, calls: int) -> float:
    """Return the median seconds of a call."""
    times = []
    for _ in range(calls):
        started = time.perf_counter()
        await call()
        times.append(time.perf_counter() - started)
    return statistics.median(times)


def raw_inserts(folder: Path, rows: int, batch: int) -> float:
    """Return rows per second of a bare table, durable, one transaction for each batch."""
    database = sqlite3.connect(folder / "raw.sqlite", isolation_level=None)
    database.execute("PRAGMA journal_mode = WAL")
    database.execute("PRAGMA synchronous = FULL")
    database.execute("CREATE TABLE IF NOT EXISTS raw (id TEXT PRIMARY KEY, body TEXT NOT NULL)")
    started = time.perf_counter()
    for first in range(0, rows, batch):
        database.execute("BEGIN IMMEDIATE")
        database.executemany(
            "INSERT INTO raw VALUES (?, ?)", [(new_id(), TEXT) for _ in range(first, min(first + batch, rows))]
        )
        database.execute("COMMIT")
    seconds = time.perf_counter() - started
    database.close()
    return rows / seconds


async def measure(memories: int, batch: int, writers: int) -> dict[str, Any]:
    """Run everything and return the figures."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        async with server(folder) as channels:
            admin = admin_service_pb2_grpc.AdminServiceStub(channels["proposer"])
            await admin.CreateProject(admin_service_pb2.CreateProjectRequest(name=PROJECT, request_id=new_id()))
            ledger = ledger_service_pb2_grpc.LedgerServiceStub(channels["proposer"])
            await publish(channels, [creation(n) for n in range(10_000_000, 10_000_000 + batch)])
            empty = await empty_rpc(channels["proposer"])
            first = await ledger.GetFamily(
                ledger_service_pb2.GetFamilyRequest(project=PROJECT, identity_key="adr/10000000")
            )

            async def one_head() -> None:
                await ledger.GetHead(ledger_service_pb2.GetHeadRequest(family=first.family.name))

            small = await median(one_head, 300)
            waiting = list(range(0, memories, batch))
            steps: list[list[float]] = []
            started = time.perf_counter()

            async def writer() -> None:
                while waiting:
                    begin = waiting.pop(0)
                    numbers = range(begin, min(begin + batch, memories))
                    steps.append(await publish(channels, [creation(n) for n in numbers]))

            await asyncio.gather(*(writer() for _ in range(writers)))
            seconds = time.perf_counter() - started
            large = await median(one_head, 300)
        raw = raw_inserts(folder, memories, batch)
    rate = memories / seconds
    return {
        "memories": memories,
        "batch": batch,
        "publications_per_second": round(rate, 1),
        "seconds_per_batch_create_approve_apply": [
            round(statistics.median(one), 4) for one in zip(*steps, strict=True)
        ],
        "empty_rpc_ms": round(empty * 1_000, 3),
        "publication_in_empty_rpcs": round(1 / rate / empty, 2),
        "raw_sqlite_inserts_per_second": round(raw, 1),
        "publication_in_raw_inserts": round(raw / rate, 1),
        "get_head_ms_before": round(small * 1_000, 3),
        "get_head_ms_after": round(large * 1_000, 3),
        "get_head_in_empty_rpcs": round(large / empty, 2),
    }


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--memories", type=int, default=2_000)
    parser.add_argument("--batch", type=int, default=100)
    parser.add_argument("--writers", type=int, default=2)
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    figures = asyncio.run(measure(arguments.memories, arguments.batch, arguments.writers))
    if arguments.json:
        print(json.dumps(figures, indent=2))
        return
    for name, value in figures.items():
        print(f"{name:45} {value}")


if __name__ == "__main__":
    main()
