"""The composition root: settings and ports in, a service that can be added to a server out."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass

from decisionssearch.retrieval.v1 import retrieval_service_pb2_grpc

from retrieval_svc.index_client import CandidateSource, GrpcCandidateSource
from retrieval_svc.ledger_client import GrpcLedgerReader, LedgerReader
from retrieval_svc.pipeline import Bounds, Pipeline
from retrieval_svc.profiles import shipped_profiles
from retrieval_svc.service import RetrievalService
from retrieval_svc.servicer import RetrievalServicer
from retrieval_svc.settings import RetrievalSettings
from service_kit.boundary import Boundary
from service_kit.clients import connect
from service_kit.clock import Clock, SystemClock
from service_kit.limits import Limits
from service_kit.serving import Host, Server
from service_kit.tokens import Authenticator, TokenFile

LIMITS = Limits(list_lengths={"decisionssearch.index.v1.QueryVector.values": 4_096})
"""A vector has more entries than any other list."""


Background = Callable[[asyncio.Event], Awaitable[None]]


@dataclass(frozen=True, slots=True)
class RetrievalApp:
    """The service, ready to be added to servers. It has no background work and holds nothing to close of its own."""

    service: RetrievalService
    servicers: Sequence[Callable[[Server], None]]
    background: Sequence[tuple[str, Background]] = ()

    async def close(self) -> None:
        """Release what it holds: nothing; the channels belong to whoever made them."""

    def add_to(self, host: Host) -> None:
        """Let a host run the background work and release everything when it stops, as with the other services."""
        host.on_stop("retrieval", self.close)
        for name, run in self.background:
            host.background(f"retrieval {name}", run)


async def create_app(
    settings: RetrievalSettings, *, ledger: LedgerReader, index: CandidateSource, clock: Clock | None = None
) -> RetrievalApp:
    """Return the service on its ports. Profiles are read here, so that a broken one stops the start."""
    bounds = Bounds(
        index_timeout_seconds=settings.index_timeout_seconds,
        scan_seconds=settings.scan_seconds,
        scan_heads=settings.scan_heads,
        tail_commits=settings.tail_commits,
    )
    service = RetrievalService(
        Pipeline(ledger, index, clock or SystemClock(), bounds),
        shipped_profiles(),
        default_deadline_seconds=settings.default_deadline_seconds,
    )

    def add(server: Server) -> None:
        server.add(retrieval_service_pb2_grpc.add_RetrievalServiceServicer_to_server, RetrievalServicer(service))

    return RetrievalApp(service, (add,))


async def serve(settings: RetrievalSettings, *, authenticator: Authenticator | None = None) -> None:
    """Run the service in a process of its own until it is told to stop."""
    async with Host(grace_seconds=settings.grace_seconds) as host:
        # The callers' own tokens are passed on: ledger and index judge the same principal.
        ledger, index = connect(settings.ledger_address), connect(settings.index_address)
        host.on_stop("ledger channel", ledger.close)
        host.on_stop("index channel", index.close)
        boundary = Boundary(
            authenticator or TokenFile(settings.tokens_file),
            limits=LIMITS,
            max_concurrent_calls=settings.max_concurrent_calls,
        )
        app = await create_app(settings, ledger=GrpcLedgerReader(ledger), index=GrpcCandidateSource(index))
        app.add_to(host)
        server = host.serve(boundary, settings.bind)
        for add in app.servicers:
            add(server)
        await host.run()
