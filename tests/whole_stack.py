"""All four services as they are deployed in one process, on real stores and the real embedder, with two projects.

The composition is the application's own; the clients are raw stubs, so that a test can send what no client would.
"""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager, closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from decisionssearch.index.v1 import index_service_pb2_grpc
from decisionssearch.ingest.v1 import ingest_service_pb2_grpc
from decisionssearch.ledger.v1 import admin_service_pb2, outbox_service_pb2
from decisionssearch.retrieval.v1 import retrieval_service_pb2_grpc

from all_in_one.app import Running, open_host
from all_in_one.folder import FIRST_PRINCIPALS
from all_in_one.settings import AllInOneSettings
from service_kit.clients import connect
from service_kit.ids import new_id
from service_kit.principals import Kind, Principal, Role, grant
from service_kit.tokens import TokenFile
from tests.ledger_stack import Client

OWN: Final = "alpha"
FOREIGN: Final = "bravo"


def _who(subject: str, kind: Kind, *roles: Role, project: str = OWN, on_behalf_of: str = "") -> Principal:
    return Principal("local", subject, kind, on_behalf_of, (grant(project, roles),))


PRINCIPALS: Final[Mapping[str, Principal]] = {
    "reader": _who("rita", Kind.HUMAN, Role.READER),
    "proposer": _who("ana", Kind.HUMAN, Role.PROPOSER),
    "reviewer": _who("rui", Kind.HUMAN, Role.REVIEWER),
    "eva": _who("eva", Kind.HUMAN, Role.REVIEWER),
    "both": _who("bob", Kind.HUMAN, Role.PROPOSER, Role.REVIEWER),
    "admin": _who("ada", Kind.HUMAN, Role.ADMIN),
    "agent": _who("agent-7", Kind.AGENT, Role.PROPOSER, on_behalf_of="eva"),
    "agent-reviewer": _who("agent-8", Kind.AGENT, Role.REVIEWER, on_behalf_of="zoe"),
    "agent-admin": _who("agent-9", Kind.AGENT, Role.ADMIN, on_behalf_of="zoe"),
    "agent-root": _who("agent-10", Kind.AGENT, Role.ADMIN, project="*", on_behalf_of="zoe"),
    "importer": _who("ci", Kind.SERVICE, Role.PROPOSER),
    "service": FIRST_PRINCIPALS["indexer"],
    "root": _who("root", Kind.HUMAN, Role.ADMIN, project="*"),
    "everywhere-reader": _who("olga", Kind.HUMAN, Role.READER, project="*"),
    "ghost-admin": _who("gil", Kind.HUMAN, Role.ADMIN, Role.PROPOSER, Role.REVIEWER, project="ghost"),
    f"{FOREIGN}-proposer": _who("paul", Kind.HUMAN, Role.PROPOSER, project=FOREIGN),
    f"{FOREIGN}-reviewer": _who("rosa", Kind.HUMAN, Role.REVIEWER, project=FOREIGN),
    f"{FOREIGN}-admin": _who("aldo", Kind.HUMAN, Role.ADMIN, project=FOREIGN),
    "two-homes": Principal(
        "local",
        "tom",
        Kind.HUMAN,
        "",
        (grant(OWN, [Role.PROPOSER]), grant(FOREIGN, [Role.PROPOSER])),
    ),
}
"""Everybody by the name that the tests call them. Only "service" is among the principals of a first start."""


@dataclass(slots=True)
class AllStubs(Client):
    """The stubs of all services on one channel, for one principal."""

    index: Any = field(init=False)
    retrieval: Any = field(init=False)
    ingest: Any = field(init=False)

    def __post_init__(self) -> None:
        # Not super(): a dataclass with slots is another class than the one that this method was written in.
        Client.__post_init__(self)
        self.index = index_service_pb2_grpc.IndexServiceStub(self.channel)
        self.retrieval = retrieval_service_pb2_grpc.RetrievalServiceStub(self.channel)
        self.ingest = ingest_service_pb2_grpc.IngestServiceStub(self.channel)


@dataclass(slots=True)
class Whole:
    """A running deployment."""

    running: Running
    tokens: TokenFile
    _texts: dict[str, str] = field(default_factory=dict)
    _clients: dict[str, AllStubs] = field(default_factory=dict)

    @property
    def address(self) -> str:
        """Where it listens."""
        return self.running.address

    def token(self, who: str, principal: Principal | None = None) -> str:
        """The bearer token of a principal, issued at the first use."""
        if who not in self._texts:
            self._texts[who] = self.tokens.issue(principal or PRINCIPALS[who])
        return self._texts[who]

    def as_(self, who: str, principal: Principal | None = None) -> AllStubs:
        """The stubs for a principal; those of "nobody" carry no credential."""
        if who not in self._clients:
            text = "" if who == "nobody" else self.token(who, principal)
            # It sends more than any server takes: the server is to refuse it, not the client.
            channel = connect(self.address, token=lambda: text, timeout_seconds=30.0, max_message_bytes=64 << 20)
            self._clients[who] = AllStubs(channel)
        return self._clients[who]

    async def close(self) -> None:
        """Close all channels."""
        for client in self._clients.values():
            await client.channel.close()

    async def make_project(self, project: str, policy: admin_service_pb2.Policy | None = None) -> None:
        """Make a project."""
        request = admin_service_pb2.CreateProjectRequest(
            name=f"projects/{project}", request_id=new_id(), display_name=project.title(), policy=policy
        )
        await self.as_("root").admin.CreateProject(request)

    async def settled(self) -> None:
        """Wait until the index has handled every event and no rebuild runs."""

        async def quiet() -> bool:
            stats = await self.as_("service").outbox.GetOutboxStats(outbox_service_pb2.GetOutboxStatsRequest())
            if stats.pending:
                return False
            return not await self.rebuilding()

        await until(quiet)

    async def rebuilding(self) -> bool:
        """Whether a rebuild runs."""
        from decisionssearch.index.v1 import index_service_pb2

        request = index_service_pb2.GetIndexStatusRequest(project=f"projects/{OWN}")
        return bool((await self.as_("reader").index.GetIndexStatus(request)).rebuild)

    def stored(self) -> dict[str, int]:
        """How many records the ledger's file holds, by table: what shows that anything at all was written."""
        return rows_of(self.running.folder.ledger_file)

    def texts(self) -> str:
        """Everything that the ledger's file holds, as text."""
        with closing(_read_only(self.running.folder.ledger_file)) as file:
            return "\n".join(file.iterdump())


def rows_of(ledger_file: Path) -> dict[str, int]:
    """How many rows each table of a ledger's file has; without the outbox, which empties itself."""
    with closing(_read_only(ledger_file)) as file:
        tables = [name for (name,) in file.execute("SELECT name FROM sqlite_master WHERE type = 'table'")]
        tables = [name for name in tables if not name.startswith("outbox")]
        return {name: file.execute(f"SELECT count(*) FROM {name}").fetchone()[0] for name in sorted(tables)}  # noqa: S608 - names of its own tables


def _read_only(file: Path) -> sqlite3.Connection:
    return sqlite3.connect(f"file:{file}?mode=ro", uri=True)


async def until(condition: Callable[[], Any], seconds: float = 30.0) -> Any:
    """Wait for an awaited condition to hold, and return what it returned."""
    async with asyncio.timeout(seconds):
        while not (found := await condition()):
            await asyncio.sleep(0.01)
        return found


@asynccontextmanager
async def deployment(folder: Path, settings_file: Path | None = None) -> AsyncIterator[Whole]:
    """Serve everything for a block, with the projects made."""
    values = {name: f.default for name, f in AllInOneSettings.model_fields.items()}
    settings = AllInOneSettings.model_construct(**{**values, "data_dir": folder, "grace_seconds": 5.0})
    async with open_host(settings, settings_file) as running:
        await running.start()
        whole = Whole(running, TokenFile(running.folder.tokens_file))
        try:
            for project in (OWN, FOREIGN):
                await whole.make_project(project)
            yield whole
        finally:
            await whole.close()
