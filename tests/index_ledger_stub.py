"""A ledger small enough to read: the contracts that the index calls, in memory, over real gRPC, with faults on demand.

It keeps one row per (family, branch, revision) as known now, an outbox with leases and fencing, and nothing else.
"""

# ruff: noqa: D102 - the methods are those of the contracts, or say what they do by name
from __future__ import annotations

import asyncio
import time
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any, Self

import grpc
from decisionssearch.ledger.v1 import (
    admin_service_pb2,
    admin_service_pb2_grpc,
    ledger_pb2,
    ledger_service_pb2,
    ledger_service_pb2_grpc,
    outbox_service_pb2,
    outbox_service_pb2_grpc,
)

from service_kit.clock import to_timestamp
from service_kit.errors import DETAILS_KEY, DomainError, Reason, not_found, to_status
from service_kit.ids import new_id

MAX_ATTEMPTS = 8
LONG_AGO = datetime(2020, 1, 1, tzinfo=UTC)


@dataclass
class Row:
    """A revision on a branch, as known now."""

    name: str
    content: ledger_pb2.Content
    content_hash: str
    recorded_at: datetime
    created_position: int
    position: int
    valid_from: datetime
    valid_to: datetime | None = None
    is_head: bool = True
    in_timeline: bool = True


@dataclass
class Event:
    """One line of the outbox."""

    id: int
    project: str
    position: int
    family: str
    branch: str
    recorded_at: datetime
    attempts: int = 0
    token: int = 0
    leased_until: float = 0.0
    due: float = 0.0
    done: bool = False
    dead: bool = False
    error: str = ""

    @property
    def open(self) -> bool:
        return not (self.done or self.dead)


@dataclass
class Project:
    """What one project holds."""

    position: int = 0
    families: dict[str, ledger_pb2.Family] = field(default_factory=dict)
    rows: dict[tuple[str, str], list[Row]] = field(default_factory=lambda: defaultdict(list))


def content(title: str, summary: str = "", **fields: Any) -> ledger_pb2.Content:
    """Return an adopted content."""
    fields.setdefault("standing", ledger_pb2.STANDING_ADOPTED)
    return ledger_pb2.Content(title=title, summary=summary, **fields)


class StubLedger(
    outbox_service_pb2_grpc.OutboxServiceServicer,
    ledger_service_pb2_grpc.LedgerServiceServicer,
    admin_service_pb2_grpc.AdminServiceServicer,
):
    """The state, the changes that a test makes, and the three servicers."""

    def __init__(self, *, ledger_id: str = "stub-ledger") -> None:
        self.ledger_id = ledger_id
        self.projects: dict[str, Project] = {}
        self.events: list[Event] = []
        self._done_before = 0
        self.calls: dict[str, int] = defaultdict(int)
        self.tokens_seen: set[str] = set()
        self.faults: dict[str, Callable[[Any], DomainError | None]] = {}
        self.renewed: list[int] = []
        self.backoff_seconds = 0.01
        self.now = LONG_AGO + timedelta(days=400)
        self._new = asyncio.Condition()
        self._server: grpc.aio.Server | None = None
        self.address = ""

    # --- Changes that a test makes --------------------------------------------------------------------------------

    def create_project(self, project: str = "billing") -> str:
        self.projects.setdefault(project, Project())
        return f"projects/{project}"

    def publish(
        self,
        body: ledger_pb2.Content,
        *,
        family: str | None = None,
        project: str = "billing",
        branch: str = "main",
        valid_from: datetime | None = None,
        valid_to: datetime | None = None,
        category: int = ledger_pb2.CATEGORY_DESIGN_RULE,
        content_hash: str | None = None,
    ) -> Row:
        """Publish a revision from ``valid_from`` (default: now): it replaces everything after."""
        self.create_project(project)
        held = self.projects[project]
        position, now = self._commit(held)
        start = valid_from or now
        if family is None or family not in held.families:
            family = family or f"projects/{project}/families/{new_id()}"
            held.families[family] = ledger_pb2.Family(
                name=family, scope=ledger_pb2.SCOPE_SEMANTIC, category=category, position=position
            )
        rows = held.rows[family, branch]
        for row in rows:
            if row.is_head:
                row.is_head, row.position = False, position
            if row.in_timeline and row.valid_from >= start:
                row.in_timeline, row.position = False, position
            elif row.in_timeline and (row.valid_to is None or row.valid_to > start):
                row.valid_to, row.position = start, position
        name = f"{family}/revisions/{new_id()}"
        digest = content_hash or f"sha256:{abs(hash((body.SerializeToString(deterministic=True), name))):064x}"
        row = Row(name, body, digest, now, position, position, start, valid_to)
        rows.append(row)
        self._emit(project, position, now, family, branch)
        return row

    def invalidate(
        self, family: str, *, at: datetime | None = None, project: str = "billing", branch: str = "main"
    ) -> None:
        """End the validity of the family's open row."""
        held = self.projects[project]
        position, now = self._commit(held)
        for row in held.rows[family, branch]:
            if row.in_timeline and (row.valid_to is None or row.valid_to > (at or now)):
                row.valid_to, row.position = at or now, position
        self._emit(project, position, now, family, branch)

    def cancel_schedule(self, revision: str, *, project: str = "billing", branch: str = "main") -> None:
        """Take a revision out of the timeline; the one before it is open again."""
        held = self.projects[project]
        position, now = self._commit(held)
        family = revision.rpartition("/revisions/")[0]
        rows = held.rows[family, branch]
        gone = next(r for r in rows if r.name == revision)
        gone.in_timeline, gone.is_head, gone.position = False, False, position
        before = [r for r in rows if r.in_timeline]
        if before:
            before[-1].valid_to, before[-1].is_head, before[-1].position = None, True, position
        self._emit(project, position, now, family, branch)

    def touch(self, family: str, *, project: str = "billing", branch: str = "main") -> None:
        """Commit something that concerns the family and changes no row of it (a flag, a link)."""
        held = self.projects[project]
        position, now = self._commit(held)
        self._emit(project, position, now, family, branch)

    def restore(self, copy: Mapping[str, Project]) -> None:
        """Go back to an earlier state, as a restored backup does."""
        self.projects = dict(copy)
        self.events = [e for e in self.events if e.position <= self.projects[e.project].position]
        self._done_before = 0

    def replay(self, events: Sequence[Event] | None = None) -> None:
        """Deliver events again, as at-least-once may."""
        self._done_before = 0
        for event in events or self.events:
            event.done, event.due, event.leased_until = False, 0.0, 0.0
        self._wake()

    def expire_leases(self) -> None:
        """Let every lease run out."""
        for event in self.events:
            event.leased_until = 0.0
        self._wake()

    @property
    def pending(self) -> int:
        return sum(e.open for e in self._undone())

    def _undone(self) -> list[Event]:
        """Return the events after the done ones at the front: a long history costs nothing."""
        while self._done_before < len(self.events) and self.events[self._done_before].done:
            self._done_before += 1
        return self.events[self._done_before :]

    def _commit(self, held: Project) -> tuple[int, datetime]:
        held.position += 1
        self.now += timedelta(seconds=1)
        return held.position, self.now

    def _emit(self, project: str, position: int, now: datetime, family: str, branch: str) -> None:
        self.events.append(Event(len(self.events) + 1, project, position, family, branch, now))
        self._wake()

    def _wake(self) -> None:
        async def notify() -> None:
            async with self._new:
                self._new.notify_all()

        try:
            task = asyncio.get_running_loop().create_task(notify())
        except RuntimeError:
            return  # no server yet
        _TASKS.add(task)
        task.add_done_callback(_TASKS.discard)

    # --- Serving ---------------------------------------------------------------------------------------------------

    async def start(self, port: int = 0) -> str:
        """Serve on loopback and return the address."""
        options = [("grpc.max_receive_message_length", 64 << 20), ("grpc.so_reuseport", 0)]
        self._server = grpc.aio.server(options=options)
        outbox_service_pb2_grpc.add_OutboxServiceServicer_to_server(self, self._server)
        ledger_service_pb2_grpc.add_LedgerServiceServicer_to_server(self, self._server)
        admin_service_pb2_grpc.add_AdminServiceServicer_to_server(self, self._server)
        bound = self._server.add_insecure_port(f"127.0.0.1:{port}")
        await self._server.start()
        self.address = f"127.0.0.1:{bound}"
        return self.address

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, *_error: object) -> None:
        await self.stop()

    async def stop(self) -> None:
        if self._server is not None:
            await self._server.stop(0)
            self._server = None

    async def _enter(self, rpc: str, request: Any, context: Any) -> None:
        self.calls[rpc] += 1
        self.tokens_seen |= {str(v) for k, v in context.invocation_metadata() or () if k == "authorization"}
        fault = self.faults.get(rpc)
        error = fault(request) if fault is not None else None
        if error is not None:
            await _abort(context, error)

    def _project(self, name: str) -> Project:
        project = self.projects.get(name.removeprefix("projects/"))
        if project is None:
            raise not_found(name)
        return project

    # --- OutboxService ----------------------------------------------------------------------------------------------

    async def ClaimEvents(self, request: Any, context: Any) -> outbox_service_pb2.ClaimEventsResponse:  # noqa: N802
        await self._enter("ClaimEvents", request, context)
        lease = request.lease.ToTimedelta().total_seconds() or 30.0
        until = time.monotonic() + request.wait.ToTimedelta().total_seconds()
        while True:
            claimed = self._claim(request.max_events or 64, lease)
            left = until - time.monotonic()
            if claimed or left <= 0:
                return outbox_service_pb2.ClaimEventsResponse(events=claimed)
            async with self._new:
                try:
                    # Short, because a backoff that ends wakes nobody.
                    await asyncio.wait_for(self._new.wait(), min(left, 0.05))
                except TimeoutError:
                    pass

    def _claim(self, count: int, lease: float) -> list[outbox_service_pb2.OutboxEvent]:
        now = time.monotonic()
        undone = self._undone()
        out = {(e.family, e.branch) for e in undone if e.open and e.leased_until > now}
        claimed: list[outbox_service_pb2.OutboxEvent] = []
        for event in undone:
            if not event.open or event.leased_until > now or event.due > now or (event.family, event.branch) in out:
                continue
            if event.attempts >= MAX_ATTEMPTS:
                event.dead = True
                continue
            event.attempts += 1
            event.token += 1
            event.leased_until = now + lease
            claimed.append(
                outbox_service_pb2.OutboxEvent(
                    id=event.id,
                    project=f"projects/{event.project}",
                    position=event.position,
                    record_time=to_timestamp(event.recorded_at),
                    family=event.family,
                    branch=event.branch,
                    attempts=event.attempts,
                    fencing_token=event.token,
                    last_error=event.error,
                )
            )
            if len(claimed) == count:
                break
        return claimed

    def _held(self, ref: outbox_service_pb2.EventRef) -> Event | None:
        event = self.events[ref.id - 1] if 0 < ref.id <= len(self.events) else None
        good = event is not None and event.open and event.token == ref.fencing_token
        return event if event is not None and good and event.leased_until > time.monotonic() else None

    async def AckEvents(self, request: Any, context: Any) -> outbox_service_pb2.AckEventsResponse:  # noqa: N802
        await self._enter("AckEvents", request, context)
        response = outbox_service_pb2.AckEventsResponse()
        for ref in request.events:
            event = self._held(ref)
            if event is None:
                response.lost.append(ref.id)
            else:
                event.done = True
        self._wake()
        return response

    async def FailEvents(self, request: Any, context: Any) -> outbox_service_pb2.FailEventsResponse:  # noqa: N802
        await self._enter("FailEvents", request, context)
        response = outbox_service_pb2.FailEventsResponse()
        for failure in request.failures:
            event = self._held(failure.event)
            if event is None:
                response.lost.append(failure.event.id)
                continue
            event.leased_until, event.error = 0.0, failure.error
            event.due = time.monotonic() + self.backoff_seconds
            if event.attempts >= MAX_ATTEMPTS:
                event.dead = True
                response.dead.append(event.id)
        self._wake()
        return response

    async def RenewLease(self, request: Any, context: Any) -> outbox_service_pb2.RenewLeaseResponse:  # noqa: N802
        await self._enter("RenewLease", request, context)
        response = outbox_service_pb2.RenewLeaseResponse()
        for ref in request.events:
            event = self._held(ref)
            if event is None:
                response.lost.append(ref.id)
            else:
                event.leased_until = time.monotonic() + request.lease.ToTimedelta().total_seconds()
                self.renewed.append(event.id)
        return response

    async def GetOutboxStats(self, request: Any, context: Any) -> outbox_service_pb2.GetOutboxStatsResponse:  # noqa: N802
        await self._enter("GetOutboxStats", request, context)
        wanted = request.project.removeprefix("projects/")
        mine = [e for e in self.events if not wanted or e.project == wanted]
        pending = [e for e in mine if e.open]
        response = outbox_service_pb2.GetOutboxStatsResponse(
            pending=len(pending),
            leased=sum(e.leased_until > time.monotonic() for e in pending),
            dead=sum(e.dead for e in mine),
            newest_id=len(self.events),
        )
        if pending:
            response.lag.FromTimedelta(self.now - min(e.recorded_at for e in pending))
        if wanted:
            held = self.projects.get(wanted)
            if held is None:
                await _abort(context, not_found(request.project))
            else:
                response.head_position = held.position
                waiting = [e.position for e in mine if not e.done]
                response.handled_position = min(waiting) - 1 if waiting else held.position
        return response

    async def RedriveDeadLetters(self, request: Any, context: Any) -> outbox_service_pb2.RedriveDeadLettersResponse:  # noqa: N802
        await self._enter("RedriveDeadLetters", request, context)
        dead = [e for e in self.events if e.dead and (not request.ids or e.id in request.ids)]
        for event in dead:
            event.dead, event.attempts, event.due = False, 0, 0.0
        self._wake()
        return outbox_service_pb2.RedriveDeadLettersResponse(redriven=len(dead))

    # --- LedgerService ----------------------------------------------------------------------------------------------

    async def BatchGetProjections(  # noqa: N802
        self, request: Any, context: Any
    ) -> ledger_service_pb2.BatchGetProjectionsResponse:
        await self._enter("BatchGetProjections", request, context)
        try:
            held = self._project(request.project)
        except DomainError as error:
            await _abort(context, error)
            raise
        return ledger_service_pb2.BatchGetProjectionsResponse(
            projections=[self._projection(held, k.family, k.branch, k.since_position) for k in request.keys]
        )

    async def ListProjections(self, request: Any, context: Any) -> ledger_service_pb2.ListProjectionsResponse:  # noqa: N802
        await self._enter("ListProjections", request, context)
        try:
            held = self._project(request.project)
        except DomainError as error:
            await _abort(context, error)
            raise
        families = sorted(held.families)
        start = int(request.page_token or 0)
        page = families[start : start + (request.page_size or 100)]
        keys = [(f, b) for f in page for b in sorted({b for (g, b) in held.rows if g == f})]
        more = start + len(page) < len(families)
        return ledger_service_pb2.ListProjectionsResponse(
            projections=[self._projection(held, f, b, 0) for f, b in keys],
            next_page_token=str(start + len(page)) if more else "",
            as_of_position=held.position,
        )

    def _projection(self, held: Project, family: str, branch: str, since: int) -> ledger_service_pb2.Projection:
        rows = held.rows.get((family, branch), []) if family in held.families else []
        projection = ledger_service_pb2.Projection(branch=branch, as_of_position=held.position)
        projection.family.CopyFrom(held.families.get(family, ledger_pb2.Family(name=family)))
        for row in rows:
            if row.position < since:
                continue
            item = projection.revisions.add(is_head=row.is_head, in_timeline=row.in_timeline, position=row.position)
            item.revision.name = row.name
            item.revision.content.CopyFrom(row.content)
            item.revision.content_hash = row.content_hash
            item.revision.position = row.created_position
            item.revision.record_time.CopyFrom(to_timestamp(row.recorded_at))
            item.valid_from.CopyFrom(to_timestamp(row.valid_from))
            if row.valid_to is not None:
                item.valid_to.CopyFrom(to_timestamp(row.valid_to))
        return projection

    # --- AdminService -----------------------------------------------------------------------------------------------

    async def ListProjects(self, request: Any, context: Any) -> admin_service_pb2.ListProjectsResponse:  # noqa: N802
        await self._enter("ListProjects", request, context)
        names = sorted(self.projects)
        start = int(request.page_token or 0)
        size = request.page_size or 100
        response = admin_service_pb2.ListProjectsResponse(
            projects=[
                admin_service_pb2.Project(name=f"projects/{n}", position=self.projects[n].position)
                for n in names[start : start + size]
            ]
        )
        if start + size < len(names):
            response.next_page_token = str(start + size)
        return response

    async def GetLedgerInfo(self, request: Any, context: Any) -> admin_service_pb2.GetLedgerInfoResponse:  # noqa: N802
        await self._enter("GetLedgerInfo", request, context)
        return admin_service_pb2.GetLedgerInfoResponse(ledger_id=self.ledger_id, store="memory", schema_version=1)


_TASKS: set[asyncio.Task[None]] = set()


async def _abort(context: Any, error: DomainError) -> None:
    details = to_status(error).SerializeToString()
    await context.abort(error.status, error.message, trailing_metadata=((DETAILS_KEY, details),))


def unavailable(_request: Any) -> DomainError:
    """Return the fault of a ledger that is away."""
    return DomainError(Reason.DEPENDENCY_UNAVAILABLE, "the ledger is away")
