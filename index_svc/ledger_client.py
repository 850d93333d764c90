"""The ledger as the index sees it: the port, and its adapter over gRPC.

The follower, the rebuild and the verification read from it; nothing here writes knowledge. Every method raises
``DomainError``; :func:`is_transient` says whether asking again later may help.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final, Protocol, TypeVar

import grpc.aio
from decisionssearch.ledger.v1 import (
    admin_service_pb2,
    admin_service_pb2_grpc,
    ledger_pb2,
    ledger_service_pb2,
    ledger_service_pb2_grpc,
    outbox_service_pb2,
    outbox_service_pb2_grpc,
)
from google.protobuf.duration_pb2 import Duration

from index_svc.recipe import MemoryText
from service_kit.clock import from_timestamp
from service_kit.errors import DomainError, Reason, from_rpc_error

MAX_BATCH: Final = 500
"""Events, keys or references in one call, as the contracts say."""

_CLAIM_SLACK_SECONDS: Final = 10.0
_BULK_TIMEOUT_SECONDS: Final = 60.0
_TRANSIENT: Final = frozenset(
    {
        Reason.DEPENDENCY_UNAVAILABLE,
        Reason.DEADLINE,
        Reason.SHUTTING_DOWN,
        Reason.OVERLOADED,
        Reason.WRITE_CONTENTION,
        Reason.NOT_FRESH_ENOUGH,
    }
)

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class EventRef:
    """A claimed event as its holder proves it."""

    id: int
    fencing_token: int


@dataclass(frozen=True, slots=True)
class OutboxEvent:
    """A (family, branch) that a commit touched, claimed by us."""

    id: int
    fencing_token: int
    project: str
    """Id of the project."""
    position: int
    family: str
    branch: str
    attempts: int

    @property
    def ref(self) -> EventRef:
        """What acknowledges it."""
        return EventRef(self.id, self.fencing_token)


@dataclass(frozen=True, slots=True)
class OutboxStats:
    """How far behind the outbox is."""

    pending: int
    dead: int
    lag: timedelta
    handled_position: int
    head_position: int


@dataclass(frozen=True, slots=True)
class ProjectionKey:
    """A (family, branch) to read, or what changed of it at or after a position."""

    family: str
    branch: str
    since_position: int = 0


@dataclass(frozen=True, slots=True)
class ProjectedRevision:
    """A revision on a branch as the ledger wants it indexed now."""

    revision: str
    content_hash: str
    position: int
    is_head: bool
    in_timeline: bool
    valid_from: datetime | None
    valid_to: datetime | None
    recorded_at: datetime | None
    standing: str
    text: MemoryText
    domain: str
    modules: tuple[str, ...]
    files: tuple[str, ...]
    importance: float


@dataclass(frozen=True, slots=True)
class FamilyProjection:
    """What the index holds of one (family, branch), or what changed of it."""

    project: str
    family: str
    branch: str
    scope: str
    category: str
    revisions: tuple[ProjectedRevision, ...]
    as_of_position: int


@dataclass(frozen=True, slots=True)
class ProjectionPage:
    """A page of all projections of a project."""

    projections: tuple[FamilyProjection, ...]
    next_page_token: str
    """Empty at the end."""
    as_of_position: int


class LedgerClient(Protocol):
    """What the index needs of the ledger."""

    async def claim(self, worker: str, *, limit: int, lease: timedelta, wait: timedelta) -> Sequence[OutboxEvent]:
        """Lease the oldest events that are due; wait for one when there is none."""

    async def ack(self, refs: Sequence[EventRef]) -> Sequence[int]:
        """Mark events as done; return the ids whose lease was lost."""

    async def fail(self, failures: Mapping[EventRef, str]) -> Sequence[int]:
        """Give events back with the reason; return the ids that are dead letters now."""

    async def renew(self, refs: Sequence[EventRef], lease: timedelta) -> Sequence[int]:
        """Keep leases; return the ids whose lease was lost."""

    async def stats(self, project: str = "") -> OutboxStats:
        """Return how far behind the outbox is, of one project (its id) or of all."""

    async def projections(self, project: str, keys: Sequence[ProjectionKey]) -> Sequence[FamilyProjection]:
        """Return the projections of the keys, in order."""

    async def projection_page(self, project: str, page_token: str = "", *, page_size: int = 100) -> ProjectionPage:
        """Return a page of all projections of a project, in order of (family, branch)."""

    async def project_ids(self) -> Sequence[str]:
        """Return the ids of all projects, in order."""

    async def ledger_id(self) -> str:
        """Return the identity of the ledger."""


def is_transient(error: BaseException) -> bool:
    """Return whether the same call may succeed later without anybody changing anything."""
    return isinstance(error, DomainError) and error.reason in _TRANSIENT


class GrpcLedgerClient:
    """The port over gRPC. The channel carries the service's own token; closing the channel is its maker's task."""

    def __init__(self, channel: grpc.aio.Channel) -> None:
        self._outbox = outbox_service_pb2_grpc.OutboxServiceStub(channel)
        self._ledger = ledger_service_pb2_grpc.LedgerServiceStub(channel)
        self._admin = admin_service_pb2_grpc.AdminServiceStub(channel)
        self._ledger_id = ""

    async def claim(self, worker: str, *, limit: int, lease: timedelta, wait: timedelta) -> Sequence[OutboxEvent]:
        """Lease the oldest events that are due."""
        request = outbox_service_pb2.ClaimEventsRequest(
            worker=worker, max_events=limit, lease=_duration(lease), wait=_duration(wait)
        )
        timeout = wait.total_seconds() + _CLAIM_SLACK_SECONDS
        try:
            response = await self._outbox.ClaimEvents(request, timeout=timeout)
        except grpc.aio.AioRpcError as error:
            raise from_rpc_error(error, "ledger") from None
        return [
            OutboxEvent(
                id=e.id,
                fencing_token=e.fencing_token,
                project=e.project.removeprefix("projects/"),
                position=e.position,
                family=e.family,
                branch=e.branch,
                attempts=e.attempts,
            )
            for e in response.events
        ]

    async def ack(self, refs: Sequence[EventRef]) -> Sequence[int]:
        """Mark events as done."""
        lost: list[int] = []
        for part in _parts(refs):
            request = outbox_service_pb2.AckEventsRequest(events=[_ref(r) for r in part])
            try:
                lost += (await self._outbox.AckEvents(request)).lost
            except grpc.aio.AioRpcError as error:
                raise from_rpc_error(error, "ledger") from None
        return lost

    async def fail(self, failures: Mapping[EventRef, str]) -> Sequence[int]:
        """Give events back."""
        dead: list[int] = []
        for part in _parts(list(failures)):
            request = outbox_service_pb2.FailEventsRequest(
                failures=[outbox_service_pb2.EventFailure(event=_ref(r), error=failures[r]) for r in part]
            )
            try:
                dead += (await self._outbox.FailEvents(request)).dead
            except grpc.aio.AioRpcError as error:
                raise from_rpc_error(error, "ledger") from None
        return dead

    async def renew(self, refs: Sequence[EventRef], lease: timedelta) -> Sequence[int]:
        """Keep leases."""
        lost: list[int] = []
        for part in _parts(refs):
            request = outbox_service_pb2.RenewLeaseRequest(events=[_ref(r) for r in part], lease=_duration(lease))
            try:
                lost += (await self._outbox.RenewLease(request)).lost
            except grpc.aio.AioRpcError as error:
                raise from_rpc_error(error, "ledger") from None
        return lost

    async def stats(self, project: str = "") -> OutboxStats:
        """Return how far behind the outbox is."""
        name = f"projects/{project}" if project else ""
        try:
            found = await self._outbox.GetOutboxStats(outbox_service_pb2.GetOutboxStatsRequest(project=name))
        except grpc.aio.AioRpcError as error:
            raise from_rpc_error(error, "ledger") from None
        return OutboxStats(
            pending=found.pending,
            dead=found.dead,
            lag=found.lag.ToTimedelta(),
            handled_position=found.handled_position,
            head_position=found.head_position,
        )

    async def projections(self, project: str, keys: Sequence[ProjectionKey]) -> Sequence[FamilyProjection]:
        """Return the projections of the keys."""
        found: list[FamilyProjection] = []
        for part in _parts(keys):
            request = ledger_service_pb2.BatchGetProjectionsRequest(
                project=f"projects/{project}",
                keys=[
                    ledger_service_pb2.ProjectionKey(family=k.family, branch=k.branch, since_position=k.since_position)
                    for k in part
                ],
            )
            try:
                response = await self._ledger.BatchGetProjections(request, timeout=_BULK_TIMEOUT_SECONDS)
            except grpc.aio.AioRpcError as error:
                raise from_rpc_error(error, "ledger") from None
            if len(response.projections) != len(part):
                raise DomainError(Reason.BUG, "the ledger answered another number of projections than was asked for")
            found += [
                projection_from_proto(project, p, family=k.family, branch=k.branch)
                for k, p in zip(part, response.projections, strict=True)
            ]
        return found

    async def projection_page(self, project: str, page_token: str = "", *, page_size: int = 100) -> ProjectionPage:
        """Return a page of all projections of a project."""
        request = ledger_service_pb2.ListProjectionsRequest(
            project=f"projects/{project}", page_size=page_size, page_token=page_token
        )
        try:
            response = await self._ledger.ListProjections(request, timeout=_BULK_TIMEOUT_SECONDS)
        except grpc.aio.AioRpcError as error:
            raise from_rpc_error(error, "ledger") from None
        return ProjectionPage(
            projections=tuple(
                projection_from_proto(project, p, family=p.family.name, branch=p.branch) for p in response.projections
            ),
            next_page_token=response.next_page_token,
            as_of_position=response.as_of_position,
        )

    async def project_ids(self) -> Sequence[str]:
        """Return the ids of all projects."""
        ids: list[str] = []
        request = admin_service_pb2.ListProjectsRequest(page_size=MAX_BATCH)
        while True:
            try:
                response = await self._admin.ListProjects(request)
            except grpc.aio.AioRpcError as error:
                raise from_rpc_error(error, "ledger") from None
            ids += [p.name.removeprefix("projects/") for p in response.projects]
            if not response.next_page_token:
                return ids
            request.page_token = response.next_page_token

    async def ledger_id(self) -> str:
        """Return the identity of the ledger; it never changes, so it is asked for once."""
        if not self._ledger_id:
            try:
                info = await self._admin.GetLedgerInfo(admin_service_pb2.GetLedgerInfoRequest())
            except grpc.aio.AioRpcError as error:
                raise from_rpc_error(error, "ledger") from None
            self._ledger_id = info.ledger_id
        return self._ledger_id


def projection_from_proto(
    project: str, message: ledger_service_pb2.Projection, *, family: str, branch: str
) -> FamilyProjection:
    """Return the projection in a message. Family and branch are those asked for: an unknown one comes back bare."""
    return FamilyProjection(
        project=project,
        family=family,
        branch=branch,
        scope=ledger_pb2.Scope.Name(message.family.scope).removeprefix("SCOPE_"),
        category=ledger_pb2.Category.Name(message.family.category).removeprefix("CATEGORY_"),
        revisions=tuple(_revision_from_proto(r) for r in message.revisions),
        as_of_position=message.as_of_position,
    )


def _revision_from_proto(message: ledger_service_pb2.ProjectedRevision) -> ProjectedRevision:
    revision, body = message.revision, message.revision.content
    return ProjectedRevision(
        revision=revision.name,
        content_hash=revision.content_hash,
        position=message.position,
        is_head=message.is_head,
        in_timeline=message.in_timeline,
        valid_from=from_timestamp(message.valid_from) if message.HasField("valid_from") else None,
        valid_to=from_timestamp(message.valid_to) if message.HasField("valid_to") else None,
        recorded_at=from_timestamp(revision.record_time) if revision.HasField("record_time") else None,
        standing=ledger_pb2.Standing.Name(body.standing or ledger_pb2.STANDING_ADOPTED).removeprefix("STANDING_"),
        text=MemoryText(
            title=body.title,
            summary=body.summary,
            details=body.details,
            objective=body.objective,
            trigger=body.trigger,
            rationale=body.rationale,
            rules=tuple(body.rules),
            steps=tuple(body.steps),
            alternatives=tuple(body.alternatives),
            examples=tuple(body.examples),
            task=body.task,
            outcome=body.outcome,
        ),
        domain=body.domain,
        modules=tuple(body.modules),
        files=tuple(body.files),
        importance=body.importance,
    )


def _ref(ref: EventRef) -> outbox_service_pb2.EventRef:
    return outbox_service_pb2.EventRef(id=ref.id, fencing_token=ref.fencing_token)


def _parts(items: Sequence[T]) -> list[Sequence[T]]:
    return [items[i : i + MAX_BATCH] for i in range(0, len(items), MAX_BATCH)]


def _duration(value: timedelta) -> Duration:
    duration = Duration()
    duration.FromTimedelta(value)
    return duration
