"""The adapter: reads behind the fence, decisions with the project's committer, watchers told of all commits."""

from __future__ import annotations

import asyncio
import contextlib
import functools
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from datetime import datetime
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
from ledger_svc.store_neo4j import moving, schema
from ledger_svc.store_neo4j import queries as q
from ledger_svc.store_neo4j.committer import MOST_IN_GROUP, Committed, Committer, Job
from ledger_svc.store_neo4j.database import Database, Neo4jConnection
from ledger_svc.store_neo4j.fence import Fence
from ledger_svc.store_neo4j.governance_reads import GovernanceReader
from ledger_svc.store_neo4j.outbox import Outbox, OutboxReader
from ledger_svc.store_neo4j.persister import Persister
from ledger_svc.store_neo4j.verify import scan
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
from service_kit.errors import DomainError, overloaded, shutting_down
from service_kit.ids import new_id
from service_kit.logs import get_logger

T = TypeVar("T")

MOST_WAITING: Final = 4_096
POLL_SECONDS: Final = 0.2
"""How late, at most, a watcher learns of a commit of another process."""
_INDEX_SECONDS: Final = 300
_MOVE_SECONDS: Final = 3_600.0
"""How long reading a whole project may take."""
_MOST_OWNERS: Final = 65_536


class Neo4jLedgerStore:
    """The ledger in one database of a server. Open it with :meth:`open`; it belongs to the event loop of that call."""

    def __init__(self, info: StoreInfo, database: Database, *, most_waiting: int, poll_seconds: float) -> None:
        self._info = info
        self._database = database
        self._most_waiting = most_waiting
        self._poll_seconds = poll_seconds
        self._fence = Fence(database)
        self._news = News()
        self._committers: dict[str, Committer] = {}
        self._waiting = 0
        self._groups = 0
        self._closing = False
        self._positions: dict[str, int] = {}
        self._polling: asyncio.Task[None] | None = None
        self._owners: dict[str, str] = {}
        self._log = get_logger("store")

    @classmethod
    async def open(
        cls,
        connection: Neo4jConnection,
        *,
        most_waiting: int = MOST_WAITING,
        poll_seconds: float = POLL_SECONDS,
    ) -> Neo4jLedgerStore:
        """Open a ledger, creating it in an empty database; wait until its indexes are there.

        Raises:
            SchemaTooNewError: A newer program wrote it.
            StoreUnreachableError: The server does not answer, or not to this user.
        """
        database = Database(connection)
        try:
            await database.check()
            ledger_id, version = await schema.prepare(database.run_alone, new_id(), database.where, _INDEX_SECONDS)
            await database.write(Persister.prepare)
        except BaseException:
            await database.close()
            raise
        info = StoreInfo(ledger_id, "neo4j", version)
        return cls(info, database, most_waiting=most_waiting, poll_seconds=poll_seconds)

    @property
    def info(self) -> StoreInfo:
        """Which ledger this is."""
        return self._info

    @property
    def groups(self) -> int:
        """How many write transactions of decisions there were."""
        return self._groups + sum(committer.groups for committer in self._committers.values())

    async def close(self) -> None:
        """Finish what is being written, then close."""
        self._closing = True
        while self._committers:
            await asyncio.gather(*(committer.finish() for committer in list(self._committers.values())))
        if self._polling is not None:
            self._polling.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._polling
        await self._database.close()

    # --- Writes -----------------------------------------------------------------------------------------------------

    async def decide(self, decisions: Sequence[Decision[Any]]) -> list[Outcome]:
        """Decide in order; return when all of it is durable."""
        if self._closing:
            raise shutting_down()
        if not decisions:
            return []
        if self._waiting and self._waiting + len(decisions) > self._most_waiting:
            raise overloaded("max_waiting_writes", self._most_waiting)
        places: dict[str, list[int]] = {}
        for index, decision in enumerate(decisions):
            places.setdefault(decision.project_id, []).append(index)
        self._waiting += len(decisions)
        parts = [part for listed in places.values() for part in _cut(listed)]
        jobs = [Job([decisions[i] for i in part]) for part in parts]
        for job in jobs:
            job.future.add_done_callback(functools.partial(self._done, len(job.decisions)))
            self._committer(job.decisions[0].project_id).submit(job)
        # Shielded: what is queued is decided and stored whether or not its caller still waits.
        answers = await asyncio.shield(asyncio.gather(*(job.future for job in jobs)))
        outcomes = [Outcome()] * len(decisions)
        for part, answer in zip(parts, answers, strict=True):
            for index, outcome in zip(part, answer, strict=True):
                outcomes[index] = outcome
        return outcomes

    def _done(self, size: int, future: asyncio.Future[Any]) -> None:
        self._waiting -= size
        # When the caller has gone, nobody else asks for the error; it is not a loose end.
        if not future.cancelled():
            future.exception()

    def _committer(self, project_id: str) -> Committer:
        committer = self._committers.get(project_id)
        if committer is None:
            committer = Committer(self._database, project_id, self._committed, self._idle)
            self._committers[project_id] = committer
        return committer

    def _committed(self, project_id: str, committed: Committed) -> None:
        self._fence.settled(project_id, committed.version)
        if committed.grew:
            self._positions[project_id] = max(committed.position, self._positions.get(project_id, 0))
            self._news.announce((project_id,))

    def _idle(self, project_id: str) -> None:
        self._groups += self._committers.pop(project_id).groups

    # --- Watching ---------------------------------------------------------------------------------------------------

    def version(self, project_id: str = "") -> int:
        """Return a number that grows with every commit."""
        return self._news.version(project_id)

    async def changed(self, project_id: str, version: int, timeout_seconds: float) -> bool:
        """Wait until the version is above a number."""
        if self._polling is None and not self._closing:
            self._polling = asyncio.create_task(self._poll(), name="ledger-poll")
        return await self._news.changed(project_id, version, timeout_seconds)

    async def _poll(self) -> None:
        """Look for commits of other processes, as long as somebody waits for news."""
        while True:
            await asyncio.sleep(self._poll_seconds)
            awaited = self._news.awaited
            try:
                if awaited - {""}:
                    await self._poll_positions(sorted(awaited - {""}))
                if "" in awaited:
                    await self._poll_events()
            except DomainError:
                # The server is away: whoever waits finds out by its own calls, and this goes on when it is back.
                continue

    async def _poll_events(self) -> None:
        if await self._database.read(lambda tx: tx.run(q.EVENT_IS_FRESH)):
            self._news.announce(())

    async def _poll_positions(self, projects: Sequence[str]) -> None:
        for project_id, position in await self._database.read(lambda tx: tx.run(q.POSITIONS, ids=list(projects))):
            if position > self._positions.get(project_id, -1):
                known = project_id in self._positions
                self._positions[project_id] = position
                if known or position:
                    self._news.announce((project_id,))

    # --- Reads ------------------------------------------------------------------------------------------------------

    async def _point(self, function: Callable[[GovernanceReader], Awaitable[T]]) -> T:
        """Read records by id, that are written once or whole."""
        return await self._database.read(lambda tx: function(GovernanceReader(tx)))

    async def _read(self, project_id: str, function: Callable[[GovernanceReader], Awaitable[T]]) -> T:
        """Read several records of a project, in one snapshot."""
        return await self._fence.ask(project_id, lambda tx: function(GovernanceReader(tx)))

    async def _project_of(self, family_id: str) -> str:
        found = self._owners.get(family_id)
        if found is None:
            row = await self._database.read(lambda tx: tx.one(q.PROJECT_OF_FAMILY, family_id=family_id))
            if row is None:
                return ""
            if len(self._owners) >= _MOST_OWNERS:
                self._owners.clear()
            found = self._owners[family_id] = str(row[0])
        return found

    async def project(self, project_id: str) -> ProjectView | None:
        """Return a project with its policy in force."""
        return await self._point(lambda r: r.project(project_id))

    async def policy(self, project_id: str, version: int) -> Policy | None:
        """Return one version of a project's policy."""
        return await self._point(lambda r: r.policy(project_id, version))

    async def projects(self, after: str, limit: int, only: frozenset[str] | None) -> list[ProjectView]:
        """Return projects in order of their ids."""
        return await self._point(lambda r: r.projects(after, limit, only))

    async def position(self, project_id: str) -> int | None:
        """Return the newest position, None when there is no such project."""
        return await self._point(lambda r: r.position(project_id))

    async def family(self, project_id: str, family_id: str) -> Family | None:
        """Return a family of the project."""
        return await self._point(lambda r: r.family(project_id, family_id))

    async def family_by_key(self, project_id: str, identity_key: str) -> Family | None:
        """Return the family that an identity key or alias leads to."""
        return await self._point(lambda r: r.family_by_key(project_id, identity_key))

    async def families(
        self, project_id: str, scope: str, category: str, after: tuple[int, str], limit: int
    ) -> list[Family]:
        """Return families in order of creation."""
        return await self._read(project_id, lambda r: r.families(project_id, scope, category, after, limit))

    async def revision(self, project_id: str, revision_id: str) -> RevisionView | None:
        """Return a revision with its evidence."""
        return await self._point(lambda r: r.revision(project_id, revision_id))

    async def revisions(self, project_id: str, revision_ids: Sequence[str]) -> dict[str, Revision]:
        """Return revisions by id."""
        return await self._point(lambda r: r.revisions(project_id, revision_ids))

    async def history(
        self, family_id: str, branch: str, known_at: datetime | None, before_number: int, limit: int
    ) -> list[HistoryStep]:
        """Return revisions with their rows, newest first."""
        project_id = await self._project_of(family_id)
        return await self._read(project_id, lambda r: r.history(family_id, branch, known_at, before_number, limit))

    async def evidence(self, project_id: str, evidence_id: str) -> Evidence | None:
        """Return one piece of evidence."""
        found = (await self._point(lambda r: r.evidence([evidence_id]))).get(evidence_id)
        return found if found is not None and found.project_id == project_id else None

    async def evidence_by_id(self, evidence_ids: Iterable[str]) -> dict[str, Evidence]:
        """Return evidence by id."""
        wanted = list(evidence_ids)
        return await self._point(lambda r: r.evidence(wanted))

    async def heads(self, query: HeadsQuery) -> HeadsRead:
        """Return heads at (valid_at, known_at)."""
        return await self._read(query.project_id, lambda r: r.heads(query))

    async def heads_page(self, query: HeadsPageQuery) -> tuple[list[HeadView], str, int]:
        """Return heads in order of family id, the last family looked at, and the position."""
        return await self._read(query.project_id, lambda r: r.heads_page(query))

    async def relations_of(
        self, family_ids: Sequence[str], branch: str, kinds: Iterable[RelationKind]
    ) -> list[Relation]:
        """Return all relations of families on a branch."""
        wanted = frozenset(kinds)
        if not family_ids or not wanted:
            return []
        project_id = await self._project_of(family_ids[0])
        return await self._read(project_id, lambda r: r.relations_of(family_ids, branch, wanted))

    async def relation(self, project_id: str, relation_id: str) -> Relation | None:
        """Return one relation."""
        return await self._point(lambda r: r.relation(project_id, relation_id))

    async def relations(self, query: RelationsQuery) -> list[Relation]:
        """Return a page of relations in order of recording."""
        return await self._read(query.project_id, lambda r: r.relations(query))

    async def changes(self, project_id: str, after_position: int, limit: int) -> ChangesView:
        """Return commits in order of position."""
        return await self._read(project_id, lambda r: r.changes(project_id, after_position, limit))

    async def projection_keys(self, project_id: str, after: tuple[str, str], limit: int) -> list[ProjectionKey]:
        """Return the (family, branch) pairs of a project in order."""
        return await self._read(project_id, lambda r: r.projection_keys(project_id, after, limit))

    async def projections(self, project_id: str, keys: Sequence[ProjectionKey]) -> tuple[list[ProjectionView], int]:
        """Return what an index holds of each key, and the position that this is from."""
        return await self._read(project_id, lambda r: r.projections(project_id, keys))

    # --- Governance -------------------------------------------------------------------------------------------------

    async def proposal(self, project_id: str, proposal_id: str) -> ProposalView | None:
        """Return a proposal with approvals and evidence."""
        return await self._read(project_id, lambda r: r.proposal(project_id, proposal_id))

    async def proposals(
        self, project_id: str, statuses: Iterable[ProposalStatus], family_id: str, after: int, limit: int
    ) -> tuple[list[ProposalView], int]:
        """Return proposals, oldest first, and where the next page starts."""
        wanted = frozenset(statuses)
        return await self._read(project_id, lambda r: r.proposals(project_id, wanted, family_id, after, limit))

    async def observations(
        self, project_id: str, outcomes: Iterable[AdmissionOutcome], after: int, limit: int
    ) -> list[ObservationView]:
        """Return observations with their latest admission, oldest first."""
        wanted = frozenset(outcomes)
        return await self._read(project_id, lambda r: r.observations(project_id, wanted, after, limit))

    async def observations_by_id(
        self, project_id: str, observation_ids: Sequence[str], admissions: Mapping[str, int]
    ) -> dict[str, ObservationView]:
        """Return observations, each with its admission of the given number (0: none)."""
        return await self._point(lambda r: r.observations_by_id(project_id, observation_ids, admissions))

    async def audit(self, project_id: str, after_sequence: int, limit: int) -> tuple[list[AuditEntry], int]:
        """Return audit entries in order, and the sequence of the newest one."""
        return await self._read(project_id, lambda r: r.audit(project_id, after_sequence, limit))

    async def verify(self, project_id: str, verifier: ChainVerifier) -> list[ChainProblem]:
        """Show the verifier everything as stored; under the project's lock, because what it sees must stand still."""
        return await self._fence.locked(project_id, lambda tx: scan(tx, project_id, verifier))

    # --- Moving house -----------------------------------------------------------------------------------------------

    async def export(self, project_id: str, sink: RecordSink) -> bool:
        """Put every record of a project into the sink; on a busy project, with its writers waiting."""
        return await self._fence.read(
            project_id, lambda tx: moving.export(tx, project_id, sink), tries=2, seconds=_MOVE_SECONDS
        )

    async def import_progress(self, project_id: str) -> ImportProgress:
        """Return what is known of a project that is to be imported."""
        return await self._database.read(lambda tx: moving.progress(tx, project_id))

    async def import_step(self, step: ImportStep, records: Sequence[MovingRecord]) -> bool:
        """Do a step of an import; False when it was done before."""
        done, version, position = await self._database.write(lambda tx: moving.import_step(tx, step, records))
        if done and step.last:
            self._committed(step.project_id, Committed([], version, position, grew=True))
        return done

    # --- Outbox -----------------------------------------------------------------------------------------------------

    async def claim_events(
        self, worker: str, limit: int, now: datetime, leased_until: datetime, most_attempts: int
    ) -> list[EventView]:
        """Lease the oldest events that are due."""
        # Looked at first: a poll that finds nothing takes no lock.
        if not await self._database.read(lambda tx: OutboxReader(tx).anything_due(now)):
            return []
        return await self._database.write(lambda tx: Outbox(tx).claim(worker, limit, now, leased_until, most_attempts))

    async def ack_events(self, refs: Sequence[EventRef], now: datetime) -> list[int]:
        """Forget events that are done; return those whose lease was lost."""
        return await self._database.write(lambda tx: Outbox(tx).ack(refs, now))

    async def fail_events(
        self,
        failures: Sequence[tuple[EventRef, str]],
        now: datetime,
        due_again: Callable[[int, datetime], datetime | None],
    ) -> tuple[list[int], list[int]]:
        """Give events back; return those that are dead now, and those whose lease was lost."""
        return await self._database.write(lambda tx: Outbox(tx).fail(failures, now, due_again))

    async def renew_leases(self, refs: Sequence[EventRef], now: datetime, leased_until: datetime) -> list[int]:
        """Keep leases; return the events whose lease was lost."""
        return await self._database.write(lambda tx: Outbox(tx).renew(refs, now, leased_until))

    async def outbox_stats(self, project_id: str, now: datetime) -> OutboxStats:
        """Say how far behind the consumer is."""
        if project_id:
            # Behind the fence: a position whose events cannot be seen yet is not handled.
            return await self._fence.ask(project_id, lambda tx: OutboxReader(tx).stats(project_id, now))
        return await self._database.read(lambda tx: OutboxReader(tx).stats("", now))

    async def next_event_due(self, now: datetime) -> datetime | None:
        """Return when the next event that is not due yet will be."""
        return await self._database.read(lambda tx: OutboxReader(tx).next_due(now))

    async def dead_letters(self, project_id: str, after: int, limit: int) -> list[EventView]:
        """Return events that were given up, oldest first."""
        return await self._database.read(lambda tx: OutboxReader(tx).dead_letters(project_id, after, limit))

    async def redrive(self, ids: Sequence[int], project_id: str, now: datetime) -> int:
        """Put dead events back with no attempts; return how many."""
        found = await self._database.write(lambda tx: Outbox(tx).redrive(ids, project_id, now))
        if found:
            self._news.announce(())
        return found


def _cut(places: Sequence[int]) -> list[Sequence[int]]:
    """Return parts that fit into a group each, in order: every decision stands alone."""
    return [places[at : at + MOST_IN_GROUP] for at in range(0, len(places), MOST_IN_GROUP)]
