"""The composition root: settings and ports in, a service with its background work out."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from datetime import timedelta

from decisionssearch.index.v1 import index_service_pb2_grpc

from index_svc.embedder import Embedder
from index_svc.embedder_openai import OpenAIEmbedder, OpenAIEmbedderOptions
from index_svc.embedder_remembering import RememberingEmbedder
from index_svc.follower import Follower, FollowerTiming
from index_svc.generations import Generations, StateFolder
from index_svc.ledger_client import GrpcLedgerClient, LedgerClient
from index_svc.projector import Projector
from index_svc.rebuild import Rebuilds, RunLog
from index_svc.service import CalibrationKeeper, IndexService
from index_svc.servicer import LIMITS, IndexServicer
from index_svc.settings import IndexSettings
from index_svc.state_sqlite import SqliteState
from index_svc.vectors import VectorStore
from index_svc.vectors_edge import EdgeVectorStore
from index_svc.verify import RestoreGuard, Verifier
from service_kit.boundary import Boundary
from service_kit.clients import connect
from service_kit.clock import Clock, SystemClock
from service_kit.errors import DomainError, Reason
from service_kit.ids import new_id
from service_kit.logs import get_logger
from service_kit.serving import Host, Server
from service_kit.tokens import Authenticator, TokenFile

Background = Callable[[asyncio.Event], Awaitable[None]]


@dataclass(frozen=True, slots=True)
class IndexApp:
    """The service, ready to be added to a server, with its background work."""

    service: IndexService
    servicers: Sequence[Callable[[Server], None]]
    background: Sequence[tuple[str, Background]]
    """What must run while it serves: each gets its stop event and ends soon after that is set."""
    close: Callable[[], Awaitable[None]]
    """Release what it holds, after the background work has ended."""
    generations: Generations
    follower: Follower
    calibration: CalibrationKeeper

    def add_to(self, host: Host) -> None:
        """Let a host run the background work, and release everything when it stops."""
        host.on_stop("index", self.close)
        for name, run in self.background:
            host.background(f"index {name}", run)


async def create_app(
    settings: IndexSettings,
    *,
    ledger: LedgerClient,
    embedder: Embedder | None = None,
    store: VectorStore | None = None,
    clock: Clock | None = None,
    timing: FollowerTiming | None = None,
) -> IndexApp:
    """Open the index and return the service on its ports.

    Raises:
        DomainError: MODEL_MISMATCH, when the index holds vectors of another model, dimensions or recipe and no
            rebuild is asked for; DEPENDENCY_UNAVAILABLE, when another process holds the folder.
    """
    log = get_logger("index")
    now = clock or SystemClock()
    made = RememberingEmbedder(embedder if embedder is not None else make_embedder(settings))
    vectors = store if store is not None else EdgeVectorStore(settings.data_dir)
    states = StateFolder(settings.data_dir / "state", SqliteState)
    projector = Projector(made)
    generations = Generations(vectors, states, made, projector)
    wanted = settings.rebuild
    try:
        if not await generations.open():
            wanted = True
    except DomainError as error:
        if error.reason is not Reason.MODEL_MISMATCH or not settings.rebuild:
            await generations.close()
            if embedder is None:
                await made.close()
            raise
        log.warning("another_model", expected=error.metadata.get("expected"), actual=error.metadata.get("actual"))
    try:
        # Before the first question, because it starts the worker process, which takes seconds on a busy machine.
        await generations.live.searcher.prepare()
    except DomainError as error:
        log.warning("embedder_not_ready", reason=error.reason)
    rebuilds = Rebuilds(generations, projector, ledger, now, RunLog(settings.data_dir / "rebuilds.json"))
    if wanted:
        # A new or damaged index, or an operator's wish: everything is read from the ledger again.
        rebuilds.start(new_id(), "local:index")
    follower = Follower(
        ledger,
        projector,
        made,
        worker=settings.worker,
        batch_size=settings.batch_size,
        timing=timing
        or FollowerTiming(
            lease=timedelta(seconds=settings.lease_seconds),
            claim_wait=timedelta(seconds=settings.claim_wait_seconds),
        ),
    )
    calibration = CalibrationKeeper(generations, projector, now, quiet_seconds=settings.calibration_quiet_seconds)
    verifier = Verifier(generations, projector, ledger)
    service = IndexService(generations, projector, made, ledger, rebuilds, verifier, follower.status, now)

    def add(server: Server) -> None:
        server.add(index_service_pb2_grpc.add_IndexServiceServicer_to_server, IndexServicer(service, ledger))

    async def close() -> None:
        await generations.close()
        if embedder is None:  # one that was given belongs to whoever made it
            await made.close()

    return IndexApp(
        service=service,
        servicers=(add,),
        background=(
            ("follower", follower.run),
            ("rebuilds", rebuilds.run),
            ("calibration", calibration.run),
            ("repair", RestoreGuard(follower.status, verifier).run),
        ),
        close=close,
        generations=generations,
        follower=follower,
        calibration=calibration,
    )


def make_embedder(settings: IndexSettings) -> Embedder:
    """Return the embedder that the settings name."""
    if settings.embedder == "openai":
        return OpenAIEmbedder(
            OpenAIEmbedderOptions(
                model=settings.openai_model,
                dimensions=settings.openai_dimensions,
                base_url=settings.openai_base_url,
                api_key=settings.openai_api_key.get_secret_value(),
            )
        )
    # Not above: its weights load with the package, and a deployment with another embedder needs none of them.
    from index_svc.embedder_offline import OfflineEmbedder

    return OfflineEmbedder()


async def serve(settings: IndexSettings, *, authenticator: Authenticator | None = None) -> None:
    """Run the service in a process of its own until it is told to stop."""
    token = settings.ledger_token_file.read_text("ascii").strip()
    async with Host(grace_seconds=settings.grace_seconds) as host:
        channel = connect(settings.ledger_address, token=lambda: token)
        host.on_stop("ledger channel", channel.close)
        app = await create_app(settings, ledger=GrpcLedgerClient(channel))
        app.add_to(host)
        boundary = Boundary(authenticator or TokenFile(settings.tokens_file), limits=LIMITS)
        server = host.serve(boundary, settings.bind)
        for add in app.servicers:
            add(server)
        await host.run()
