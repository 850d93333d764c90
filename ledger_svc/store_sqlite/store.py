"""The adapter: puts reads on a pool of connections in threads, and everything else on the one writer."""

from __future__ import annotations

import asyncio
import sqlite3
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime
from pathlib import Path
from typing import Any, Final, TypeVar

from ledger_svc.domain.audit import ChainProblem, ChainVerifier
from ledger_svc.domain.model import (
    AdmissionOutcome,
    AuditEntry,
    Evidence,
    Family,
    Policy,
    ProposalStatus,
    Relation,
    RelationKind,
    Revision,
)
from ledger_svc.domain.moving import ImportProgress, ImportStep, MovingRecord
from ledger_svc.group import Decision, Outcome
from ledger_svc.moving import RecordSink
from ledger_svc.news import News
from ledger_svc.outbox import EventRef, EventView, OutboxStats
from ledger_svc.store import refuse_newer
from ledger_svc.store_sqlite import moving, schema
from ledger_svc.store_sqlite.audit_scan import scan
from ledger_svc.store_sqlite.connection import MEMORY, FileLock, connect
from ledger_svc.store_sqlite.governance_reads import GovernanceReader
from ledger_svc.store_sqlite.outbox import Outbox, OutboxReader
from ledger_svc.store_sqlite.writer import Job, Writer, WriterClosedError
from ledger_svc.views import (
    ChangesView,
    HeadsPageQuery,
    HeadsQuery,
    HeadsRead,
    HeadView,
    HistoryStep,
    ObservationView,
    ProjectionKey,
    ProjectionView,
    ProjectView,
    ProposalView,
    RelationsQuery,
    RevisionView,
    StoreInfo,
)
from service_kit.errors import dependency_unavailable, overloaded, shutting_down
from service_kit.ids import new_id
from service_kit.logs import get_logger

T = TypeVar("T")

MOST_WAITING: Final = 4_096
READERS: Final = 4


class _Readers:
    """Connections for reading, one for each thread of a pool."""

    def __init__(self, database: str, shared: sqlite3.Connection | None, exclusive: threading.Lock, count: int) -> None:
        self._database = database
        self._shared = shared
        self._exclusive = exclusive
        self._local = threading.local()
        self._connections: list[sqlite3.Connection] = []
        self._pool = ThreadPoolExecutor(max_workers=1 if shared else count, thread_name_prefix="ledger-reader")

    async def run(self, function: Callable[[sqlite3.Connection], T]) -> T:
        """Run a function on a snapshot."""
        return await asyncio.get_running_loop().run_in_executor(self._pool, self._read, function)

    def _read(self, function: Callable[[sqlite3.Connection], T]) -> T:
        if self._shared is not None:
            # A database in memory has one connection: nobody writes while somebody reads.
            with self._exclusive:
                return self._in_snapshot(self._shared, function)
        connection = getattr(self._local, "connection", None)
        if connection is None:
            connection = connect(self._database, read_only=True)
            self._local.connection = connection
            self._connections.append(connection)
        return self._in_snapshot(connection, function)

    @staticmethod
    def _in_snapshot(connection: sqlite3.Connection, function: Callable[[sqlite3.Connection], T]) -> T:
        connection.execute("BEGIN")
        try:
            return function(connection)
        finally:
            connection.execute("COMMIT")

    def close(self) -> None:
        """Wait for reads in progress, then close."""
        self._pool.shutdown(wait=True)
        for connection in self._connections:
            connection.close()


class SqliteLedgerStore:
    """The ledger in one file. Open it with :meth:`open`; it belongs to the event loop that opened it."""

    def __init__(
        self,
        info: StoreInfo,
        writer_connection: sqlite3.Connection,
        database: str,
        lock: FileLock | None,
        *,
        most_waiting: int,
        readers: int,
    ) -> None:
        self._info = info
        self._connection = writer_connection
        self._lock = lock
        self._loop = asyncio.get_running_loop()
        self._news = News()
        self._log = get_logger("store")
        exclusive = threading.Lock()
        shared = writer_connection if database == MEMORY else None
        self._readers = _Readers(database, shared, exclusive, readers)
        self._writer = Writer(writer_connection, exclusive, self._committed, most_waiting)

    @classmethod
    async def open(
        cls, database: Path | str = MEMORY, *, most_waiting: int = MOST_WAITING, readers: int = READERS
    ) -> SqliteLedgerStore:
        """Open a ledger, creating it in an empty or absent file; ``:memory:`` for one that is gone when closed.

        Raises:
            AlreadyOpenError: Another process has it open.
            SchemaTooNewError: A newer program wrote it.
        """
        path = str(database)
        lock = None
        if path != MEMORY:
            Path(path).parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            lock = FileLock(Path(path))
            lock.acquire()
        try:
            connection, info = await asyncio.to_thread(_prepare, path)
        except BaseException:
            if lock is not None:
                lock.release()
            raise
        return cls(info, connection, path, lock, most_waiting=most_waiting, readers=readers)

    @property
    def info(self) -> StoreInfo:
        """Which ledger this is."""
        return self._info

    @property
    def groups(self) -> int:
        """How many write transactions there were."""
        return self._writer.groups

    async def close(self) -> None:
        """Finish what is being written, then close."""
        await asyncio.to_thread(self._writer.close)
        await asyncio.to_thread(self._readers.close)
        self._connection.close()
        if self._lock is not None:
            self._lock.release()

    # --- Writes -----------------------------------------------------------------------------------------------------

    async def decide(self, decisions: Sequence[Decision[Any]]) -> list[Outcome]:
        """Decide in order; return when all of it is durable."""
        if not decisions:
            return []
        found: list[Outcome] = await self._submit(Job(self._loop, self._loop.create_future(), decisions=decisions))
        return found

    async def _write(self, function: Callable[[sqlite3.Connection], T]) -> T:
        found: T = await self._submit(Job(self._loop, self._loop.create_future(), function=function))
        return found

    async def _submit(self, job: Job) -> Any:
        try:
            if not self._writer.submit(job):
                raise overloaded("max_waiting_writes", self._writer.most_waiting)
        except WriterClosedError:
            raise shutting_down() from None
        # When the caller has gone, nobody else asks for the error; it is not a loose end.
        job.future.add_done_callback(_look)
        try:
            # Shielded: what is queued is decided and stored whether or not its caller still waits.
            return await asyncio.shield(job.future)
        except sqlite3.OperationalError as error:
            # A full disk, a failing one: nothing that this program did wrong, and nothing was stored.
            self._log.error("store_failed", exc_info=error)
            raise dependency_unavailable("store") from None

    def version(self, project_id: str = "") -> int:
        """Return a number that grows with every commit."""
        return self._news.version(project_id)

    async def changed(self, project_id: str, version: int, timeout_seconds: float) -> bool:
        """Wait until the version is above a number."""
        return await self._news.changed(project_id, version, timeout_seconds)

    def _committed(self, projects: frozenset[str]) -> None:
        """Note commits; called in the writer's thread, before the results are."""
        if projects:
            try:
                self._loop.call_soon_threadsafe(self._news.announce, projects)
            except RuntimeError:
                return  # The loop is closed: nobody waits any more.

    # --- Reads ------------------------------------------------------------------------------------------------------

    async def _read(self, function: Callable[[GovernanceReader], T]) -> T:
        return await self._readers.run(lambda connection: function(GovernanceReader(connection)))

    async def project(self, project_id: str) -> ProjectView | None:
        """Return a project with its policy in force."""
        return await self._read(lambda r: r.project(project_id))

    async def policy(self, project_id: str, version: int) -> Policy | None:
        """Return one version of a project's policy."""
        return await self._read(lambda r: r.policy(project_id, version))

    async def projects(self, after: str, limit: int, only: frozenset[str] | None) -> list[ProjectView]:
        """Return projects in order of their ids."""
        return await self._read(lambda r: r.projects(after, limit, only))

    async def position(self, project_id: str) -> int | None:
        """Return the newest position, None when there is no such project."""
        return await self._read(lambda r: r.position(project_id))

    async def family(self, project_id: str, family_id: str) -> Family | None:
        """Return a family of the project."""
        return await self._read(lambda r: r.family(project_id, family_id))

    async def family_by_key(self, project_id: str, identity_key: str) -> Family | None:
        """Return the family that an identity key or alias leads to."""
        return await self._read(lambda r: r.family_by_key(project_id, identity_key))

    async def families(
        self, project_id: str, scope: str, category: str, after: tuple[int, str], limit: int
    ) -> list[Family]:
        """Return families in order of creation."""
        return await self._read(lambda r: r.families(project_id, scope, category, after, limit))

    async def revision(self, project_id: str, revision_id: str) -> RevisionView | None:
        """Return a revision with its evidence."""
        return await self._read(lambda r: r.revision(project_id, revision_id))

    async def revisions(self, project_id: str, revision_ids: Sequence[str]) -> dict[str, Revision]:
        """Return revisions by id."""
        return await self._read(lambda r: r.revisions(project_id, revision_ids))

    async def history(
        self, family_id: str, branch: str, known_at: datetime | None, before_number: int, limit: int
    ) -> list[HistoryStep]:
        """Return revisions with their rows, newest first."""
        return await self._read(lambda r: r.history(family_id, branch, known_at, before_number, limit))

    async def evidence(self, project_id: str, evidence_id: str) -> Evidence | None:
        """Return one piece of evidence."""
        return await self._read(lambda r: r.evidence_of_project(project_id, evidence_id))

    async def evidence_by_id(self, evidence_ids: Iterable[str]) -> dict[str, Evidence]:
        """Return evidence by id."""
        wanted = list(evidence_ids)
        return await self._read(lambda r: r.evidence(wanted))

    async def heads(self, query: HeadsQuery) -> HeadsRead:
        """Return heads at (valid_at, known_at)."""
        return await self._read(lambda r: r.heads(query))

    async def heads_page(self, query: HeadsPageQuery) -> tuple[list[HeadView], str, int]:
        """Return heads in order of family id."""
        return await self._read(lambda r: r.heads_page(query))

    async def relations_of(
        self, family_ids: Sequence[str], branch: str, kinds: Iterable[RelationKind]
    ) -> list[Relation]:
        """Return all relations of families on a branch, in order of recording."""
        wanted = frozenset(kinds)
        return await self._read(lambda r: r.relations_of(family_ids, branch, wanted))

    async def relation(self, project_id: str, relation_id: str) -> Relation | None:
        """Return one relation."""
        return await self._read(lambda r: r.relation(project_id, relation_id))

    async def relations(self, query: RelationsQuery) -> list[Relation]:
        """Return a page of relations in order of recording."""
        return await self._read(lambda r: r.relations(query))

    async def changes(self, project_id: str, after_position: int, limit: int) -> ChangesView:
        """Return commits in order of position."""
        return await self._read(lambda r: r.changes(project_id, after_position, limit))

    async def projection_keys(self, project_id: str, after: tuple[str, str], limit: int) -> list[ProjectionKey]:
        """Return the (family, branch) pairs of a project in order."""
        return await self._read(lambda r: r.projection_keys(project_id, after, limit))

    async def projections(self, project_id: str, keys: Sequence[ProjectionKey]) -> tuple[list[ProjectionView], int]:
        """Return what an index holds of each key, and the position that this is from."""
        return await self._read(lambda r: r.projections(project_id, keys))

    async def proposal(self, project_id: str, proposal_id: str) -> ProposalView | None:
        """Return a proposal with approvals and evidence."""
        return await self._read(lambda r: r.proposal(project_id, proposal_id))

    async def proposals(
        self, project_id: str, statuses: Iterable[ProposalStatus], family_id: str, after: int, limit: int
    ) -> tuple[list[ProposalView], int]:
        """Return proposals, oldest first, and where the next page starts."""
        wanted = frozenset(statuses)
        return await self._read(lambda r: r.proposals(project_id, wanted, family_id, after, limit))

    async def observations(
        self, project_id: str, outcomes: Iterable[AdmissionOutcome], after: int, limit: int
    ) -> list[ObservationView]:
        """Return observations with their latest admission, oldest first."""
        wanted = frozenset(outcomes)
        return await self._read(lambda r: r.observations(project_id, wanted, after, limit))

    async def observations_by_id(
        self, project_id: str, observation_ids: Sequence[str], admissions: Mapping[str, int]
    ) -> dict[str, ObservationView]:
        """Return observations, each with its admission of the given number."""
        return await self._read(lambda r: r.observations_by_id(project_id, observation_ids, admissions))

    async def audit(self, project_id: str, after_sequence: int, limit: int) -> tuple[list[AuditEntry], int]:
        """Return audit entries in order, and the sequence of the newest one."""
        return await self._read(lambda r: r.audit(project_id, after_sequence, limit))

    async def verify(self, project_id: str, verifier: ChainVerifier) -> list[ChainProblem]:
        """Show the verifier everything as stored."""
        return await self._readers.run(lambda connection: scan(connection, project_id, verifier))

    # --- Moving house -----------------------------------------------------------------------------------------------

    async def export(self, project_id: str, sink: RecordSink) -> bool:
        """Put every record of a project into the sink, in order and from one snapshot."""
        return await self._readers.run(lambda connection: moving.export(connection, project_id, sink))

    async def import_progress(self, project_id: str) -> ImportProgress:
        """Return what is known of a project that is to be imported."""
        return await self._readers.run(lambda connection: moving.progress(connection, project_id))

    async def import_step(self, step: ImportStep, records: Sequence[MovingRecord]) -> bool:
        """Do a step of an import; False when it was done before."""
        done = await self._write(lambda connection: moving.import_step(connection, step, records))
        if done and step.last:
            self._news.announce((step.project_id,))
        return done

    # --- Outbox -----------------------------------------------------------------------------------------------------

    async def claim_events(
        self, worker: str, limit: int, now: datetime, leased_until: datetime, most_attempts: int
    ) -> list[EventView]:
        """Lease the oldest events that are due."""
        # Looked at in a reader first: a poll that finds nothing costs no transaction.
        if not await self._readers.run(lambda c: OutboxReader(c).anything_due(now)):
            return []
        return await self._write(lambda c: Outbox(c).claim(worker, limit, now, leased_until, most_attempts))

    async def ack_events(self, refs: Sequence[EventRef], now: datetime) -> list[int]:
        """Forget events that are done; return those whose lease was lost."""
        return await self._write(lambda c: Outbox(c).ack(refs, now))

    async def fail_events(
        self,
        failures: Sequence[tuple[EventRef, str]],
        now: datetime,
        due_again: Callable[[int, datetime], datetime | None],
    ) -> tuple[list[int], list[int]]:
        """Give events back; return those that are dead now, and those whose lease was lost."""
        return await self._write(lambda c: Outbox(c).fail(failures, now, due_again))

    async def renew_leases(self, refs: Sequence[EventRef], now: datetime, leased_until: datetime) -> list[int]:
        """Keep leases; return the events whose lease was lost."""
        return await self._write(lambda c: Outbox(c).renew(refs, now, leased_until))

    async def outbox_stats(self, project_id: str, now: datetime) -> OutboxStats:
        """Say how far behind the consumer is."""
        return await self._readers.run(lambda c: OutboxReader(c).stats(project_id, now))

    async def next_event_due(self, now: datetime) -> datetime | None:
        """Return when the next event that is not due yet will be."""
        return await self._readers.run(lambda c: OutboxReader(c).next_due(now))

    async def dead_letters(self, project_id: str, after: int, limit: int) -> list[EventView]:
        """Return events that were given up, oldest first."""
        return await self._readers.run(lambda c: OutboxReader(c).dead_letters(project_id, after, limit))

    async def redrive(self, ids: Sequence[int], project_id: str, now: datetime) -> int:
        """Put dead events back with no attempts; return how many."""
        found = await self._write(lambda c: Outbox(c).redrive(ids, project_id, now))
        if found:
            self._news.announce(())
        return found


def _look(future: asyncio.Future[Any]) -> None:
    if not future.cancelled():
        future.exception()


def _prepare(database: str) -> tuple[sqlite3.Connection, StoreInfo]:
    """Open the writing connection, make or check the schema."""
    if database != MEMORY and not Path(database).exists():
        Path(database).touch(mode=0o600)
    connection = connect(database)
    try:
        version = schema.stored_version(connection)
        if version is None:
            connection.execute("BEGIN IMMEDIATE")
            schema.create(connection, new_id())
            connection.execute("COMMIT")
            version = schema.SCHEMA_VERSION
        refuse_newer(version, schema.SCHEMA_VERSION, database)
        version = schema.migrate(connection, version)
        ledger_id = connection.execute("SELECT value FROM meta WHERE key = 'ledger_id'").fetchone()[0]
    except BaseException:
        connection.close()
        raise
    return connection, StoreInfo(ledger_id, "sqlite", version)
