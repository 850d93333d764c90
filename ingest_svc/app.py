"""The composition root: settings and ports in, a service that can be added to a server out."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Final

from decisionssearch.ingest.v1 import ingest_service_pb2_grpc

from ingest_svc.extractor import Extractor, FirstThatReads
from ingest_svc.extractor_structured import StructuredExtractor
from ingest_svc.index_client import GrpcSimilaritySource, SimilaritySource
from ingest_svc.ledger_client import GrpcLedgerClient, LedgerClient
from ingest_svc.service import IngestService
from ingest_svc.servicer import IngestServicer
from ingest_svc.settings import IngestSettings
from service_kit.boundary import Boundary
from service_kit.clients import connect
from service_kit.limits import Limits
from service_kit.serving import Host, Server
from service_kit.tokens import Authenticator, TokenFile

LIMITS: Final = Limits(
    max_field_bytes=256 * 1024,
    field_bytes={
        "decisionssearch.ingest.v1.RawObservation.text": 1024 * 1024,
        "decisionssearch.ingest.v1.SanitizeTextRequest.text": 1024 * 1024,
    },
)
"""Request limits of this service, for the boundary in front of it."""

Background = Callable[[asyncio.Event], Awaitable[None]]


@dataclass(frozen=True, slots=True)
class IngestApp:
    """The service, ready to be added to servers. It keeps nothing."""

    service: IngestService
    servicers: Sequence[Callable[[Server], None]]
    close: Callable[[], Awaitable[None]]
    """Release what it made itself; the channels belong to whoever made them."""
    background: Sequence[tuple[str, Background]] = ()

    def add_to(self, host: Host) -> None:
        """Let a host run the background work and release everything when it stops, as with the other services."""
        host.on_stop("ingest", self.close)
        for name, run in self.background:
            host.background(f"ingest {name}", run)


async def create_app(
    settings: IngestSettings,
    *,
    ledger: LedgerClient,
    index: SimilaritySource,
    stopping: asyncio.Event | None = None,
    extractor: Extractor | None = None,
) -> IngestApp:
    """Return the service on its ports.

    Args:
        settings: As read at the start.
        ledger: The ledger; calls pass the caller's own token on.
        index: Where near memories are found; the same.
        stopping: Set when the shutdown begins: streams end then, after the batch that they are at.
        extractor: Reads observations; by the settings when left out.
    """
    close: Callable[[], Awaitable[None]] = _nothing
    if extractor is None:
        extractor, close = make_extractor(settings)
    service = IngestService(ledger, index, extractor)

    def add(server: Server) -> None:
        server.add(
            ingest_service_pb2_grpc.add_IngestServiceServicer_to_server,
            IngestServicer(service, stopping or asyncio.Event()),
        )

    return IngestApp(service, (add,), close)


def make_extractor(settings: IngestSettings) -> tuple[Extractor, Callable[[], Awaitable[None]]]:
    """Return the extractor that the settings name, and what releases it."""
    structured = StructuredExtractor()
    if settings.extractor == "structured":
        return FirstThatReads([structured], reads_free_text=False), _nothing
    # Not above: a deployment without a model needs none of its client.
    from ingest_svc.extractor_openai import OpenAIExtractor, OpenAIExtractorOptions

    model = OpenAIExtractor(
        OpenAIExtractorOptions(
            model=settings.openai_model,
            base_url=settings.openai_base_url,
            api_key=settings.openai_api_key.get_secret_value(),
            timeout_seconds=settings.openai_timeout_seconds,
            retry_seconds=settings.openai_retry_seconds,
            concurrency=settings.openai_concurrency,
        )
    )
    return FirstThatReads([structured, model], reads_free_text=True), model.close


async def _nothing() -> None:
    """Release nothing."""


async def serve(settings: IngestSettings, *, authenticator: Authenticator | None = None) -> None:
    """Run the service in a process of its own until it is told to stop."""
    async with Host(grace_seconds=settings.grace_seconds) as host:
        # The callers' own tokens are passed on: ledger and index judge the same principal.
        ledger, index = connect(settings.ledger_address), connect(settings.index_address)
        host.on_stop("ledger channel", ledger.close)
        host.on_stop("index channel", index.close)
        app = await create_app(
            settings,
            ledger=GrpcLedgerClient(ledger),
            index=GrpcSimilaritySource(index, timeout_seconds=settings.index_timeout_seconds),
            stopping=host.stopping,
        )
        app.add_to(host)
        boundary = Boundary(
            authenticator or TokenFile(settings.tokens_file),
            limits=LIMITS,
            max_concurrent_calls=settings.max_concurrent_calls,
        )
        server = host.serve(boundary, settings.bind)
        for add in app.servicers:
            add(server)
        await host.run()
