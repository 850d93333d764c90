"""The composition root of the embedded deployment: the same factories as four processes, on one loopback port.

The parts call each other over that port with the same clients as between machines, so that nothing works here that
would not work there; only the wiring differs.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from all_in_one.folder import DataFolder
from all_in_one.settings import AllInOneSettings
from index_svc import app as index_app
from index_svc.ledger_client import GrpcLedgerClient
from index_svc.servicer import LIMITS as INDEX_LIMITS
from index_svc.settings import IndexSettings
from ingest_svc import app as ingest_app
from ingest_svc.index_client import GrpcSimilaritySource
from ingest_svc.ledger_client import GrpcLedgerClient as IngestLedgerClient
from ingest_svc.settings import IngestSettings
from ledger_svc import app as ledger_app
from ledger_svc.settings import LedgerSettings
from retrieval_svc import app as retrieval_app
from retrieval_svc.index_client import GrpcCandidateSource
from retrieval_svc.ledger_client import GrpcLedgerReader
from retrieval_svc.settings import RetrievalSettings
from service_kit.boundary import Boundary
from service_kit.clients import connect
from service_kit.limits import Limits
from service_kit.logs import get_logger
from service_kit.serving import Host
from service_kit.settings import ServiceSettings
from service_kit.tokens import TokenFile

S = TypeVar("S", bound=ServiceSettings)
Close = Callable[[], Awaitable[None]]


@dataclass(frozen=True, slots=True)
class Running:
    """A deployment that is ready to run."""

    host: Host
    address: str
    folder: DataFolder

    async def start(self) -> None:
        """Begin to answer, and say where."""
        await self.host.start()
        self.folder.write_endpoint(self.address)

    async def run(self) -> None:
        """Answer until SIGTERM, SIGINT or ``host.stop()``, then shut down in order."""
        try:
            await self.start()
        except BaseException:
            self.folder.remove_endpoint()
            raise
        await self.serve()

    async def serve(self) -> None:
        """As :meth:`run`, once it has started."""
        try:
            await self.host.run()
        finally:
            self.folder.remove_endpoint()


def widest(limits: Sequence[Limits]) -> Limits:
    """Return limits under which each service accepts what it accepts alone; overrides are by the field's full name."""
    return Limits(
        max_message_bytes=max(one.max_message_bytes for one in limits),
        max_field_bytes=max(one.max_field_bytes for one in limits),
        max_list_length=max(one.max_list_length for one in limits),
        field_bytes={name: size for one in limits for name, size in one.field_bytes.items()},
        list_lengths={name: size for one in limits for name, size in one.list_lengths.items()},
    )


@asynccontextmanager
async def open_host(
    settings: AllInOneSettings, settings_file: Path | None = None, *, held: bool = False
) -> AsyncIterator[Running]:
    """Open the data folder and everything in it, ready to run; closed in order at the end of the block.

    Args:
        settings: Of the deployment.
        settings_file: A TOML file with a table for each service, as for four processes.
        held: The caller holds the folder already.

    Raises:
        FolderInUseError: Another process holds the folder.
        FolderUnusableError: The folder cannot be made or written.
        BindError: The address cannot be bound.
        DomainError: MODEL_MISMATCH, when the index was made by another embedder.
    """
    folder = DataFolder(settings.data_dir)
    with nullcontext() if held else folder.exclusive():
        tokens = folder.issue_first_tokens()
        async with Host(grace_seconds=settings.grace_seconds) as host:
            yield Running(host, await _compose(host, settings, settings_file, folder, tokens["indexer"]), folder)


async def _compose(
    host: Host, settings: AllInOneSettings, settings_file: Path | None, folder: DataFolder, indexer_token: str
) -> str:
    """Add every part to the host and return the address.

    The order is that of stopping, backwards: the follower ends first, then the server lets calls in progress finish
    with channels, index and ledger still there, then those are closed.
    """

    def load(kind: type[S], section: str, **arguments: object) -> S:
        return kind.load(toml_file=settings_file, section=section if settings_file else "", **arguments)

    closing: list[tuple[str, Close]] = []

    async def close_parts() -> None:
        log = get_logger("all_in_one")
        for name, close in reversed(closing):
            try:
                await close()
            except Exception:
                # The rest is closed all the same.
                log.exception("close_failed", part=name)

    host.on_stop("parts", close_parts)
    authenticator = TokenFile(folder.tokens_file)
    limits = widest([ledger_app.LIMITS, INDEX_LIMITS, retrieval_app.LIMITS, ingest_app.LIMITS])
    server = host.serve(Boundary(authenticator, limits=limits), settings.bind)

    ledger_settings = load(LedgerSettings, "ledger", database=folder.ledger_file, tokens_file=folder.tokens_file)
    ledger = await ledger_app.create_app(ledger_settings, stopping=host.stopping)
    closing.append(("ledger", ledger.close))

    # One for the callers, whose own tokens are passed on, and one for the follower.
    shared = connect(server.address)
    closing.append(("channel", shared.close))
    follower = connect(server.address, token=lambda: indexer_token)
    closing.append(("follower channel", follower.close))

    index_settings = load(
        IndexSettings,
        "index",
        data_dir=folder.index_folder,
        tokens_file=folder.tokens_file,
        ledger_address=server.address,
        ledger_token_file=folder.token_file("indexer"),
    )
    index = await index_app.create_app(index_settings, ledger=GrpcLedgerClient(follower))
    closing.append(("index", index.close))
    retrieval_settings = load(
        RetrievalSettings,
        "retrieval",
        tokens_file=folder.tokens_file,
        ledger_address=server.address,
        index_address=server.address,
    )
    retrieval = await retrieval_app.create_app(
        retrieval_settings, ledger=GrpcLedgerReader(shared), index=GrpcCandidateSource(shared)
    )
    ingest_settings = load(
        IngestSettings,
        "ingest",
        tokens_file=folder.tokens_file,
        ledger_address=server.address,
        index_address=server.address,
    )
    ingest = await ingest_app.create_app(
        ingest_settings,
        ledger=IngestLedgerClient(shared),
        index=GrpcSimilaritySource(shared, timeout_seconds=ingest_settings.index_timeout_seconds),
        stopping=host.stopping,
    )
    closing.append(("ingest", ingest.close))

    for part in (ledger, index, retrieval, ingest):
        for add in part.servicers:
            add(server)
    for name, run in (*ledger.background, *index.background, *ingest.background):
        host.background(name, run)
    return server.address
