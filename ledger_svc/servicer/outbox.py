"""OutboxService."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from datetime import timedelta
from typing import Any, Final

import grpc.aio
from decisionssearch.ledger.v1 import outbox_service_pb2 as pb
from decisionssearch.ledger.v1 import outbox_service_pb2_grpc
from google.protobuf.message import Message

from ledger_svc.outbox import EventRef
from ledger_svc.service.outbox import OutboxService
from ledger_svc.servicer import incoming, outgoing, sanitising
from ledger_svc.servicer.base import Desk
from service_kit.checks import FieldChecks
from service_kit.context import current_principal

Context = grpc.aio.ServicerContext[Any, Any]

_MOST_EVENTS: Final = 500
_DEFAULT_EVENTS: Final = 64
_DEFAULT_LEASE: Final = timedelta(seconds=30)
_SHORTEST_LEASE: Final = timedelta(seconds=1)
_LONGEST_LEASE: Final = timedelta(minutes=10)
_LONGEST_WAIT: Final = timedelta(seconds=30)


class OutboxServicer(outbox_service_pb2_grpc.OutboxServiceServicer):
    """How changes reach the index."""

    def __init__(self, desk: Desk, stopping: asyncio.Event) -> None:
        self._desk = desk
        self._service = OutboxService(desk.ledger, stopping)

    async def ClaimEvents(  # noqa: N802 - gRPC's name
        self, request: pb.ClaimEventsRequest, context: Context
    ) -> pb.ClaimEventsResponse:
        """Lease events that are due."""
        del context
        checks = FieldChecks()
        (await sanitising.take(request)).check(checks)
        if checks.required("worker", request.worker):
            checks.length("worker", request.worker, at_most=200)
        count = checks.page_size(request.max_events, field="max_events", default=_DEFAULT_EVENTS, at_most=_MOST_EVENTS)
        lease = self._lease(checks, request, required=False)
        wait = incoming.duration(checks, request, "wait") or timedelta()
        checks.must(timedelta() <= wait <= _LONGEST_WAIT, "wait", "must be up to 30 seconds")
        checks.raise_if_any()
        found = await self._service.claim(current_principal(), request.worker, count, lease, wait.total_seconds())
        return pb.ClaimEventsResponse(events=[outgoing.event(one) for one in found])

    async def AckEvents(  # noqa: N802 - gRPC's name
        self, request: pb.AckEventsRequest, context: Context
    ) -> pb.AckEventsResponse:
        """Mark events as done."""
        del context
        checks = FieldChecks()
        refs = self._refs(checks, "events", request.events)
        checks.raise_if_any()
        return pb.AckEventsResponse(lost=await self._service.ack(current_principal(), refs))

    async def FailEvents(  # noqa: N802 - gRPC's name
        self, request: pb.FailEventsRequest, context: Context
    ) -> pb.FailEventsResponse:
        """Give events back."""
        del context
        checks = FieldChecks()
        (await sanitising.take(request)).check(checks)
        checks.count("failures", request.failures, at_least=1, at_most=_MOST_EVENTS)
        failures = []
        for index, failure in enumerate(request.failures):
            own = checks.below(f"failures[{index}]")
            own.length("error", failure.error, at_most=2_000)
            OutboxServicer._ref(own.below("event"), failure.event)
            failures.append((EventRef(failure.event.id, failure.event.fencing_token), failure.error))
        checks.raise_if_any()
        dead, lost = await self._service.fail(current_principal(), failures)
        return pb.FailEventsResponse(dead=dead, lost=lost)

    async def RenewLease(  # noqa: N802 - gRPC's name
        self, request: pb.RenewLeaseRequest, context: Context
    ) -> pb.RenewLeaseResponse:
        """Keep a lease."""
        del context
        checks = FieldChecks()
        refs = self._refs(checks, "events", request.events)
        lease = self._lease(checks, request, required=True)
        checks.raise_if_any()
        return pb.RenewLeaseResponse(lost=await self._service.renew(current_principal(), refs, lease))

    async def GetOutboxStats(  # noqa: N802 - gRPC's name
        self, request: pb.GetOutboxStatsRequest, context: Context
    ) -> pb.GetOutboxStatsResponse:
        """Say how far behind the consumer is."""
        del context
        project_id = self._project(request.project)
        stats, lag = await self._service.stats(current_principal(), project_id)
        return pb.GetOutboxStatsResponse(
            pending=stats.pending,
            leased=stats.leased,
            dead=stats.dead,
            lag=outgoing.duration(lag),
            newest_id=stats.newest_id,
            handled_position=stats.handled_position,
            head_position=stats.head_position,
        )

    async def ListDeadLetters(  # noqa: N802 - gRPC's name
        self, request: pb.ListDeadLettersRequest, context: Context
    ) -> pb.ListDeadLettersResponse:
        """List events that were given up."""
        del context
        checks = FieldChecks()
        project_id = incoming.project(checks, request.project) if request.project else ""
        size = incoming.page_size(checks, request.page_size, 50)
        checks.raise_if_any()
        state = self._desk.pages.read(request)
        after = int(state["after"]) if state else 0
        found = await self._service.dead_letters(current_principal(), project_id, after, size)
        token = self._desk.pages.issue(request, {"after": found[-1].id}) if len(found) == size else ""
        return pb.ListDeadLettersResponse(events=[outgoing.event(one) for one in found], next_page_token=token)

    async def RedriveDeadLetters(  # noqa: N802 - gRPC's name
        self, request: pb.RedriveDeadLettersRequest, context: Context
    ) -> pb.RedriveDeadLettersResponse:
        """Put dead events back in the queue."""
        del context
        checks = FieldChecks()
        checks.must(bool(request.ids or request.project), "project", "is required when ids is empty")
        for index, ident in enumerate(request.ids):
            checks.must(ident > 0, f"ids[{index}]", "is no id of an event")
        project_id = incoming.project(checks, request.project) if request.project else ""
        checks.raise_if_any()
        count = await self._service.redrive(current_principal(), list(request.ids), project_id)
        return pb.RedriveDeadLettersResponse(redriven=count)

    @staticmethod
    def _project(value: str) -> str:
        checks = FieldChecks()
        project_id = incoming.project(checks, value) if value else ""
        checks.raise_if_any()
        return project_id

    @staticmethod
    def _refs(checks: FieldChecks, field: str, values: Sequence[pb.EventRef]) -> list[EventRef]:
        refs = [EventRef(value.id, value.fencing_token) for value in values]
        checks.count(field, refs, at_least=1, at_most=_MOST_EVENTS)
        for index, value in enumerate(values):
            OutboxServicer._ref(checks.below(f"{field}[{index}]"), value)
        return refs

    @staticmethod
    def _ref(checks: FieldChecks, value: pb.EventRef) -> None:
        checks.must(value.id > 0, "id", "is required")
        checks.must(value.fencing_token > 0, "fencing_token", "is required, from the claim")

    @staticmethod
    def _lease(checks: FieldChecks, request: Message, *, required: bool) -> timedelta:
        lease = incoming.duration(checks, request, "lease")
        if lease is None:
            checks.must(not required, "lease", "is required")
            return _DEFAULT_LEASE
        checks.must(_SHORTEST_LEASE <= lease <= _LONGEST_LEASE, "lease", "must be 1 second to 10 minutes")
        return lease
