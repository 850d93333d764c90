"""The composition root: settings and ports in, a service with its servicers out."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from decisionssearch.ledger.v1 import (
    admin_service_pb2_grpc,
    evidence_service_pb2_grpc,
    ledger_service_pb2_grpc,
    observation_service_pb2_grpc,
    outbox_service_pb2_grpc,
    proposal_service_pb2_grpc,
)

from ledger_svc.service.context import Ledger
from ledger_svc.servicer.admin import AdminServicer
from ledger_svc.servicer.base import Desk
from ledger_svc.servicer.evidence import EvidenceServicer
from ledger_svc.servicer.observations import ObservationServicer
from ledger_svc.servicer.outbox import OutboxServicer
from ledger_svc.servicer.proposals import ProposalServicer
from ledger_svc.servicer.reads import LedgerServicer
from ledger_svc.settings import LedgerSettings
from ledger_svc.store import LedgerStore, StoreUnusableError
from ledger_svc.store_sqlite import SqliteLedgerStore
from service_kit.boundary import Boundary
from service_kit.clock import Clock, SystemClock
from service_kit.ids import new_id
from service_kit.limits import Limits
from service_kit.serving import Host, Server
from service_kit.tokens import Authenticator, TokenFile

Background = Callable[[asyncio.Event], Awaitable[None]]

LIMITS: Final = Limits(
    max_message_bytes=16 * 1024 * 1024,
    # The domain bounds texts in characters, which take up to four bytes.
    max_field_bytes=256 * 1024,
    field_bytes={
        "decisionssearch.ledger.v1.Observation.text": 1024 * 1024,
        "decisionssearch.ledger.v1.ImportProjectRequest.data": 1024 * 1024,
    },
)
"""Request limits of this service, for the boundary in front of it."""


@dataclass(frozen=True, slots=True)
class LedgerApp:
    """The service, ready to be added to a server."""

    store: LedgerStore
    servicers: Sequence[Callable[[Server], None]]
    background: Sequence[tuple[str, Background]]
    """What must run while it serves; nothing so far."""
    close: Callable[[], Awaitable[None]]
    """Finish what is being written and release the file, after the last call has ended."""

    def add_to(self, host: Host) -> None:
        """Let a host run the background work, and release everything when it stops."""
        host.on_stop("ledger", self.close)
        for name, run in self.background:
            host.background(f"ledger {name}", run)


async def create_app(
    settings: LedgerSettings,
    *,
    stopping: asyncio.Event,
    store: LedgerStore | None = None,
    clock: Clock | None = None,
    new_ids: Callable[[], str] = new_id,
) -> LedgerApp:
    """Open the ledger and return the service on its ports.

    Args:
        settings: As read at the start.
        stopping: Set when the shutdown begins: watches and waiting claims end then.
        store: Where everything is kept; the settings' SQLite file when left out.
        clock: The ledger's clock.
        new_ids: Makes ids.

    Raises:
        StoreUnusableError: It is open elsewhere, unreachable, or was written by a newer program.
    """
    opened = store or await _open_store(settings)
    desk = Desk.of(Ledger(opened, clock or SystemClock(), new_ids))

    def add(server: Server) -> None:
        server.add(
            ledger_service_pb2_grpc.add_LedgerServiceServicer_to_server,
            LedgerServicer(desk, stopping, settings.heartbeat_seconds),
        )
        server.add(proposal_service_pb2_grpc.add_ProposalServiceServicer_to_server, ProposalServicer(desk))
        server.add(evidence_service_pb2_grpc.add_EvidenceServiceServicer_to_server, EvidenceServicer(desk))
        server.add(observation_service_pb2_grpc.add_ObservationServiceServicer_to_server, ObservationServicer(desk))
        server.add(outbox_service_pb2_grpc.add_OutboxServiceServicer_to_server, OutboxServicer(desk, stopping))
        server.add(admin_service_pb2_grpc.add_AdminServiceServicer_to_server, AdminServicer(desk))

    return LedgerApp(opened, (add,), (), opened.close)


async def _open_store(settings: LedgerSettings) -> LedgerStore:
    if settings.store == "sqlite":
        return await SqliteLedgerStore.open(
            settings.database, most_waiting=settings.max_waiting_writes, readers=settings.readers
        )
    # Imported here: an embedded ledger starts without the driver.
    from ledger_svc.store_neo4j import Neo4jConnection, Neo4jLedgerStore

    connection = Neo4jConnection(
        uri=settings.neo4j_uri,
        user=settings.neo4j_user,
        password=_password(settings.neo4j_password_file),
        database=settings.neo4j_database,
        ca_file=settings.neo4j_ca_file,
        pool_size=settings.neo4j_pool_size,
        connect_seconds=settings.neo4j_connect_seconds,
        transaction_seconds=settings.neo4j_transaction_seconds,
        retry_seconds=settings.neo4j_retry_seconds,
    )
    return await Neo4jLedgerStore.open(connection, most_waiting=settings.max_waiting_writes)


def _password(file: Path | None) -> str:
    try:
        return file.read_text(encoding="utf-8").strip() if file is not None else ""
    except OSError as error:
        raise StoreUnusableError(f"neo4j_password_file cannot be read: {error}") from None


async def serve(settings: LedgerSettings, *, authenticator: Authenticator | None = None) -> None:
    """Run the service in a process of its own until it is told to stop."""
    async with Host(grace_seconds=settings.grace_seconds) as host:
        app = await create_app(settings, stopping=host.stopping)
        app.add_to(host)
        boundary = Boundary(authenticator or TokenFile(settings.tokens_file), limits=LIMITS)
        server = host.serve(boundary, settings.bind)
        for add in app.servicers:
            add(server)
        await host.run()
