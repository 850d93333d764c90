"""An index service over real gRPC, with the ledger stub behind it and an embedder that a test can disturb."""

# ruff: noqa: D102 - the methods are those of the contracts, or say what they do by name
from __future__ import annotations

import asyncio
import hashlib
import os
import tempfile
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Any

import grpc.aio
import numpy as np
import pytest
from decisionssearch.index.v1 import index_service_pb2 as pb
from decisionssearch.index.v1 import index_service_pb2_grpc

from index_svc.app import IndexApp, create_app
from index_svc.embedder import EmbedderIdentity, Matrix, Vector, checked
from index_svc.follower import FollowerTiming
from index_svc.ledger_client import GrpcLedgerClient
from index_svc.servicer import LIMITS
from index_svc.settings import IndexSettings
from index_svc.sparse import fold
from service_kit.boundary import Boundary
from service_kit.clients import connect
from service_kit.errors import dependency_unavailable, from_rpc_error, unauthenticated
from service_kit.principals import Kind, Principal, Role, grant
from service_kit.serving import Host
from tests.index_ledger_stub import StubLedger

SERVICE_TOKEN = "service-token"
FAST = FollowerTiming(
    lease=timedelta(seconds=30), claim_wait=timedelta(seconds=2), first_backoff=0.01, last_backoff=0.05
)

PRINCIPALS = {
    "reader": Principal("local", "rita", Kind.HUMAN, "", (grant("billing", [Role.READER]),)),
    "admin": Principal("local", "ada", Kind.HUMAN, "", (grant("*", [Role.ADMIN]),)),
    "foreign": Principal("local", "fred", Kind.HUMAN, "", (grant("shipping", [Role.READER]),)),
}


@pytest.fixture
def tmp_path(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A folder, in memory where the system has such: the engine syncs every step, and that is not what is tested."""
    memory = Path("/dev/shm")  # noqa: S108 - only a faster place for a folder with a random name
    if not (memory.is_dir() and os.access(memory, os.W_OK)):
        yield tmp_path_factory.mktemp("index")
        return
    with tempfile.TemporaryDirectory(dir=memory, prefix="dsearch-test-") as folder:
        yield Path(folder)


class Tokens:
    """An authenticator whose tokens are names."""

    async def authenticate(self, token: str) -> Principal:
        if token not in PRINCIPALS:
            raise unauthenticated()
        return PRINCIPALS[token]


class WordEmbedder:
    """Deterministic vectors from the words of a text: texts that share words are near. Counts, and fails on demand."""

    def __init__(self, model: str = "words", dimensions: int = 64) -> None:
        self._identity = EmbedderIdentity(model, dimensions)
        self.embedded: list[str] = []
        self.broken: Callable[[str], Exception | None] = lambda _text: None
        self.gate: asyncio.Event | None = None
        """When set, bulk work waits for it."""
        self.waiting = asyncio.Event()
        self.closed = False

    @property
    def identity(self) -> EmbedderIdentity:
        return self._identity

    @property
    def has_word_vectors(self) -> bool:
        return True

    async def embed_documents(self, texts: Sequence[str]) -> Matrix:
        if self.gate is not None:
            self.waiting.set()
            await self.gate.wait()
        self.embedded += texts
        return self._embed(texts)

    async def embed_query(self, text: str) -> Vector:
        return self._embed([text])[0]

    async def embed_queries(self, texts: Sequence[str]) -> Matrix:
        return self._embed(texts)

    async def word_vectors(self, words: Sequence[str]) -> Matrix:
        return self._embed(words)

    async def close(self) -> None:
        self.closed = True

    def _embed(self, texts: Sequence[str]) -> Matrix:
        for text in texts:
            error = self.broken(text)
            if error is not None:
                raise error
        rows = [self._vector(t) for t in texts]
        found = np.stack(rows) if rows else np.empty((0, self._identity.dimensions), dtype=np.float32)
        return checked(found, len(rows), self._identity)

    def _vector(self, text: str) -> Vector:
        total = np.full(self._identity.dimensions, 0.01)
        for word in fold(text).lower().replace(".", " ").split():
            seed = int.from_bytes(hashlib.sha256(f"{self._identity.model}:{word}".encode()).digest()[:4], "big")
            total += np.random.default_rng(seed).normal(size=self._identity.dimensions)
        return total.astype(np.float32)


def away(_text: str) -> Exception:
    """Return the failure of an embedder that does not answer."""
    return dependency_unavailable("embedder")


@dataclass
class World:
    """Everything that a test touches."""

    ledger: Any
    """The stub, or whatever else has an address."""
    outbox: GrpcLedgerClient
    embedder: WordEmbedder
    app: IndexApp
    channel: grpc.aio.Channel
    folder: Path
    host: Host
    _stubs: dict[str, Any] = field(default_factory=dict)

    @property
    def stub(self) -> index_service_pb2_grpc.IndexServiceStub:
        return index_service_pb2_grpc.IndexServiceStub(self.channel)

    def as_(self, who: str) -> tuple[tuple[str, str], ...]:
        return (("authorization", f"Bearer {who}"),)

    async def search(self, text: str, who: str = "reader", project: str = "billing", **fields: Any) -> Any:
        request = pb.SearchCandidatesRequest(project=f"projects/{project}", text=text, **fields)
        return await self.call("SearchCandidates", request, who)

    async def status(self, project: str = "billing", who: str = "admin") -> Any:
        return await self.call("GetIndexStatus", pb.GetIndexStatusRequest(project=f"projects/{project}"), who)

    async def call(self, rpc: str, request: Any, who: str = "admin") -> Any:
        try:
            return await getattr(self.stub, rpc)(request, metadata=self.as_(who), timeout=20)
        except grpc.aio.AioRpcError as error:
            raise from_rpc_error(error, "index") from None

    async def verify(self, project: str = "billing", *, repair: bool = False, who: str = "admin") -> list[Any]:
        request = pb.VerifyIndexRequest(project=f"projects/{project}", repair=repair)
        return [r async for r in self.stub.VerifyIndex(request, metadata=self.as_(who), timeout=30)]

    async def drifts(self, project: str = "billing", *, repair: bool = False) -> list[str]:
        found = await self.verify(project, repair=repair)
        for drift in (d for r in found for d in r.drifts):
            print(drift)  # shown when the test fails
        return sorted(pb.DriftKind.Name(d.kind).removeprefix("DRIFT_KIND_") for r in found for d in r.drifts)

    async def rebuild(self, request_id: str = "r1") -> Any:
        response = await self.call(
            "RebuildIndex", pb.RebuildIndexRequest(project="projects/billing", request_id=request_id)
        )
        return await self.rebuilt(response.rebuild.name)

    async def rebuilt(self, name: str) -> Any:
        async def ended() -> Any:
            request = pb.GetRebuildRequest(project="projects/billing", name=name)
            found = (await self.call("GetRebuild", request)).rebuild
            return found if found.state != pb.REBUILD_STATE_RUNNING else None

        return await until(ended)

    async def settled(self) -> None:
        """Wait until every event is handled and no rebuild runs."""

        async def quiet() -> bool:
            pending = (
                self.ledger.pending if isinstance(self.ledger, StubLedger) else (await self.outbox.stats()).pending
            )
            return pending == 0 and self.app.service._rebuilds.running is None

        await until(quiet)

    async def points(self, project: str = "billing") -> dict[str, Any]:
        """Return every point as it is stored, by id."""
        from index_svc.domain import PointFilter

        with self.app.generations.reading() as generation:
            return {p.id: p async for page in generation.collection.scroll(PointFilter(project)) for p in page}

    async def everything(self, project: str = "billing") -> tuple[Any, ...]:
        """Return every point, and what the state says of every family and of the corpus: what a rebuild must equal."""
        points = await self.points(project)
        with self.app.generations.reading() as generation:
            state = generation.state
            keys = sorted({(project, p.branch, p.family) for p in points.values()})
            families = {key: state.family_points(*key) for key in keys}
            corpora = {b: state.statistics(project, b, []) for b in state.branches(project)}
        return points, families, corpora


async def until(condition: Callable[[], Any], seconds: float = 20.0) -> Any:
    """Wait for a condition to hold, and return what it returned."""
    async with asyncio.timeout(seconds):
        while True:
            found = await condition()
            if found:
                return found
            await asyncio.sleep(0.01)


@asynccontextmanager
async def index_world(
    folder: Path,
    *,
    ledger: Any = None,
    token: str = SERVICE_TOKEN,
    embedder: Any = None,
    follow: bool = True,
    timing: FollowerTiming = FAST,
    **settings: Any,
) -> AsyncIterator[World]:
    """Serve an index. A ledger that is given is already started and stays open."""
    mine = ledger is None
    ledger = ledger or StubLedger()
    address = await ledger.start() if mine else ledger.address
    made = embedder if embedder is not None else WordEmbedder()
    async with AsyncExitStack() as stack:
        if mine:
            stack.push_async_callback(ledger.stop)
        host = await stack.enter_async_context(Host(grace_seconds=5))
        channel = connect(address, token=lambda: token)
        host.on_stop("channel", channel.close)
        outbox = GrpcLedgerClient(channel)
        values: dict[str, Any] = {"calibration_quiet_seconds": 0.05, "batch_size": 16, **settings}
        app = await create_app(
            IndexSettings.model_construct(**{**IndexSettings().model_dump(), "data_dir": folder, **values}),
            ledger=outbox,
            embedder=made,
            timing=timing,
        )
        host.on_stop("index", app.close)
        for name, run in app.background:
            if follow or name != "follower":
                host.background(name, run)
        server = host.serve(Boundary(Tokens(), limits=LIMITS))
        for add in app.servicers:
            add(server)
        await host.start()
        client = grpc.aio.insecure_channel(server.address)
        try:
            yield World(ledger, outbox, made, app, client, folder, host)
        finally:
            await client.close()
