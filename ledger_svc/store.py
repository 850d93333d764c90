"""The port to durable truth. State in, changes out, atomically; no rule lives behind it.

Promises that the contract suite (``tests/contract/test_ledger_store_contract.py``) holds every adapter to:

- decisions of one project run one after another, each seeing all before it; what one persists is all or nothing;
- when :meth:`LedgerStore.decide` returns, the changes survive a crash;
- a read is one snapshot, and sees every decision that returned before it began;
- positions become visible in order.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any, Protocol, TypeVar

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
from ledger_svc.outbox import EventRef, EventView, OutboxStats
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

T = TypeVar("T")


class StoreUnusableError(Exception):
    """A store cannot be opened; the message says why and what to do."""


class SchemaTooNewError(StoreUnusableError):
    """A newer program wrote it: an old one would write what the new one cannot read."""


def refuse_newer(version: int, known: int, where: str) -> None:
    """Refuse a schema that this program does not know.

    Args:
        version: What is stored.
        known: The newest version that the program knows.
        where: What to call the database in the message.

    Raises:
        SchemaTooNewError: It is newer.
    """
    if version > known:
        raise SchemaTooNewError(
            f"{where} has schema version {version}; this program knows {known}: start a newer program"
        )


class StoreUnreachableError(StoreUnusableError):
    """The database server does not answer, or not to this user."""


class LedgerStore(Protocol):
    """Where the ledger keeps everything."""

    @property
    def info(self) -> StoreInfo:
        """Which ledger this is."""

    async def close(self) -> None:
        """Finish what is being written, then close."""

    # --- Writes -----------------------------------------------------------------------------------------------------

    async def decide(self, decisions: Sequence[Decision[Any]]) -> list[Outcome]:
        """Decide in order, together with what others are waiting for; return when all of it is durable.

        Raises:
            DomainError: OVERLOADED, when too much is waiting already; DEPENDENCY_UNAVAILABLE, when the store fails.
        """

    def version(self, project_id: str = "") -> int:
        """Return a number that grows with every commit of a project (of any, when empty) that this process knows of."""

    async def changed(self, project_id: str, version: int, timeout_seconds: float) -> bool:
        """Wait until :meth:`version` is above a number; return whether it is, at the latest after the timeout."""

    # --- Published knowledge ----------------------------------------------------------------------------------------

    async def project(self, project_id: str) -> ProjectView | None:
        """Return a project with its policy in force."""

    async def policy(self, project_id: str, version: int) -> Policy | None:
        """Return one version of a project's policy."""

    async def projects(self, after: str, limit: int, only: frozenset[str] | None) -> list[ProjectView]:
        """Return projects in order of their ids; only some of them, when named."""

    async def position(self, project_id: str) -> int | None:
        """Return the newest position, None when there is no such project."""

    async def family(self, project_id: str, family_id: str) -> Family | None:
        """Return a family of the project."""

    async def family_by_key(self, project_id: str, identity_key: str) -> Family | None:
        """Return the family that an identity key or alias leads to."""

    async def families(
        self, project_id: str, scope: str, category: str, after: tuple[int, str], limit: int
    ) -> list[Family]:
        """Return families in order of creation."""

    async def revision(self, project_id: str, revision_id: str) -> RevisionView | None:
        """Return a revision with its evidence."""

    async def revisions(self, project_id: str, revision_ids: Sequence[str]) -> dict[str, Revision]:
        """Return revisions by id."""

    async def history(
        self, family_id: str, branch: str, known_at: datetime | None, before_number: int, limit: int
    ) -> list[HistoryStep]:
        """Return revisions with their rows, newest first."""

    async def evidence(self, project_id: str, evidence_id: str) -> Evidence | None:
        """Return one piece of evidence."""

    async def evidence_by_id(self, evidence_ids: Iterable[str]) -> dict[str, Evidence]:
        """Return evidence by id."""

    async def heads(self, query: HeadsQuery) -> HeadsRead:
        """Return heads at (valid_at, known_at)."""

    async def heads_page(self, query: HeadsPageQuery) -> tuple[list[HeadView], str, int]:
        """Return heads in order of family id, the last family looked at (empty at the end), and the position."""

    async def relations_of(
        self, family_ids: Sequence[str], branch: str, kinds: Iterable[RelationKind]
    ) -> list[Relation]:
        """Return all relations of families on a branch, retired ones included, in order of recording."""

    async def relation(self, project_id: str, relation_id: str) -> Relation | None:
        """Return one relation."""

    async def relations(self, query: RelationsQuery) -> list[Relation]:
        """Return a page of relations in order of recording."""

    async def changes(self, project_id: str, after_position: int, limit: int) -> ChangesView:
        """Return commits in order of position."""

    async def projection_keys(self, project_id: str, after: tuple[str, str], limit: int) -> list[ProjectionKey]:
        """Return the (family, branch) pairs of a project in order."""

    async def projections(self, project_id: str, keys: Sequence[ProjectionKey]) -> tuple[list[ProjectionView], int]:
        """Return what an index holds of each key, and the position that this is from."""

    # --- Governance -------------------------------------------------------------------------------------------------

    async def proposal(self, project_id: str, proposal_id: str) -> ProposalView | None:
        """Return a proposal with approvals and evidence."""

    async def proposals(
        self, project_id: str, statuses: Iterable[ProposalStatus], family_id: str, after: int, limit: int
    ) -> tuple[list[ProposalView], int]:
        """Return proposals, oldest first, and where the next page starts (0 at the end)."""

    async def observations(
        self, project_id: str, outcomes: Iterable[AdmissionOutcome], after: int, limit: int
    ) -> list[ObservationView]:
        """Return observations with their latest admission, oldest first."""

    async def observations_by_id(
        self, project_id: str, observation_ids: Sequence[str], admissions: Mapping[str, int]
    ) -> dict[str, ObservationView]:
        """Return observations, each with its admission of the given number (none for 0 or when it is not named)."""

    async def audit(self, project_id: str, after_sequence: int, limit: int) -> tuple[list[AuditEntry], int]:
        """Return audit entries in order, and the sequence of the newest one."""

    async def verify(self, project_id: str, verifier: ChainVerifier) -> list[ChainProblem]:
        """Show the verifier every audit entry and record as stored; return what it, or reading them, found wrong."""

    # --- Moving house -----------------------------------------------------------------------------------------------

    async def export(self, project_id: str, sink: RecordSink) -> bool:
        """Put every record of a project into the sink, in order and from one snapshot; False when there is none.

        The sink is called from one thread at a time. It is told to begin again when the reading has to.
        """

    async def import_progress(self, project_id: str) -> ImportProgress:
        """Return what is known of a project that is to be imported."""

    async def import_step(self, step: ImportStep, records: Sequence[MovingRecord]) -> bool:
        """Do a step of an import in one transaction, under the project's lock; False when it was done before.

        The project is seen by nobody before the last step is done. That makes one event for each head.

        Raises:
            DomainError: As ``domain.moving.is_done``; ALREADY_EXISTS when another project has these ids.
        """

    # --- Outbox -----------------------------------------------------------------------------------------------------

    async def claim_events(
        self, worker: str, limit: int, now: datetime, leased_until: datetime, most_attempts: int
    ) -> list[EventView]:
        """Lease the oldest events that are due; those whose worker died on its last attempt are given up."""

    async def ack_events(self, refs: Sequence[EventRef], now: datetime) -> list[int]:
        """Forget events that are done; return those whose lease was lost."""

    async def fail_events(
        self,
        failures: Sequence[tuple[EventRef, str]],
        now: datetime,
        due_again: Callable[[int, datetime], datetime | None],
    ) -> tuple[list[int], list[int]]:
        """Give events back; return those that are dead now, and those whose lease was lost."""

    async def renew_leases(self, refs: Sequence[EventRef], now: datetime, leased_until: datetime) -> list[int]:
        """Keep leases; return the events whose lease was lost."""

    async def outbox_stats(self, project_id: str, now: datetime) -> OutboxStats:
        """Say how far behind the consumer is."""

    async def next_event_due(self, now: datetime) -> datetime | None:
        """Return when the next event that is not due yet will be."""

    async def dead_letters(self, project_id: str, after: int, limit: int) -> list[EventView]:
        """Return events that were given up, oldest first."""

    async def redrive(self, ids: Sequence[int], project_id: str, now: datetime) -> int:
        """Put dead events back with no attempts; return how many."""
