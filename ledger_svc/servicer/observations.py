"""ObservationService."""

from __future__ import annotations

from typing import Any

import grpc.aio
from decisionssearch.ledger.v1 import observation_service_pb2 as pb
from decisionssearch.ledger.v1 import observation_service_pb2_grpc

from ledger_svc.domain.model import Observation
from ledger_svc.service.context import as_principal
from ledger_svc.service.observations import ObservationService
from ledger_svc.servicer import incoming, outgoing, sanitising
from ledger_svc.servicer.base import Desk, failed_item
from service_kit.checks import FieldChecks
from service_kit.context import current_principal
from service_kit.principals import Role

Context = grpc.aio.ServicerContext[Any, Any]

_MOST_SIGNALS = 500


class ObservationServicer(observation_service_pb2_grpc.ObservationServiceServicer):
    """The landing zone."""

    def __init__(self, desk: Desk) -> None:
        self._desk = desk
        self._service = ObservationService(desk.ledger)

    async def RecordObservations(  # noqa: N802 - gRPC's name
        self, request: pb.RecordObservationsRequest, context: Context
    ) -> pb.RecordObservationsResponse:
        """Record observations; a malformed one is refused by itself."""
        del context
        checks = FieldChecks()
        (await sanitising.take(request, but=("observations",))).check(checks)
        project_id = incoming.project(checks, request.project)
        incoming.request_id(checks, request.request_id)
        checks.count("observations", request.observations, at_least=1, at_most=incoming.MAX_BATCH)
        checks.raise_if_any()
        who = as_principal(current_principal(), project_id)
        each = await sanitising.take_each(request.observations)
        results = [pb.RecordObservationResult() for _ in request.observations]
        good: list[tuple[int, Observation]] = []
        for index, value in enumerate(request.observations):
            own = FieldChecks(f"observations[{index}].")
            each[index].check(own)
            try:
                observation = incoming.observation(own, value, project_id, who)
                own.raise_if_any()
                good.append((index, observation))
            except Exception as error:  # noqa: BLE001 - failed_item raises what is a bug
                results[index].error.CopyFrom(failed_item(error))
        call = incoming.request(request, project_id, "RecordObservations", request.request_id)
        recorded = await self._service.record(call, [observation for _, observation in good])
        for (index, _), one in zip(good, recorded, strict=True):
            results[index].observation.CopyFrom(outgoing.observation(one.view))
            results[index].created = one.created
        return pb.RecordObservationsResponse(results=results)

    async def RecordAdmissions(  # noqa: N802 - gRPC's name
        self, request: pb.RecordAdmissionsRequest, context: Context
    ) -> pb.RecordAdmissionsResponse:
        """Record what became of observations."""
        del context
        checks = FieldChecks()
        (await sanitising.take(request)).check(checks)
        project_id = incoming.project(checks, request.project)
        incoming.request_id(checks, request.request_id)
        checks.count("admissions", request.admissions, at_least=1, at_most=incoming.MAX_BATCH)
        who = as_principal(current_principal(), project_id)
        admissions = [
            incoming.admission(checks.below(f"admissions[{index}]"), value, project_id, who)
            for index, value in enumerate(request.admissions)
        ]
        checks.raise_if_any()
        call = incoming.request(request, project_id, "RecordAdmissions", request.request_id)
        await self._service.admit(call, admissions)
        return pb.RecordAdmissionsResponse()

    async def ListObservations(  # noqa: N802 - gRPC's name
        self, request: pb.ListObservationsRequest, context: Context
    ) -> pb.ListObservationsResponse:
        """List observations, oldest first."""
        del context
        checks = FieldChecks()
        project_id = incoming.project(checks, request.project)
        outcomes = incoming.choices(checks, "outcomes", request.outcomes, incoming.OUTCOME)
        size = incoming.page_size(checks, request.page_size, 50)
        checks.raise_if_any()
        state = self._desk.pages.read(request)
        after = int(state["after"]) if state else 0
        views = await self._service.page(current_principal(), project_id, outcomes, after, size)
        token = self._desk.pages.issue(request, {"after": views[-1].cursor}) if len(views) == size else ""
        return pb.ListObservationsResponse(
            observations=[outgoing.observation(view) for view in views], next_page_token=token
        )

    async def RecordSignals(  # noqa: N802 - gRPC's name
        self, request: pb.RecordSignalsRequest, context: Context
    ) -> pb.RecordSignalsResponse:
        """Record usage and feedback."""
        del context
        checks = FieldChecks()
        (await sanitising.take(request)).check(checks)
        project_id = incoming.project(checks, request.project)
        incoming.request_id(checks, request.request_id)
        checks.count("signals", request.signals, at_least=1, at_most=_MOST_SIGNALS)
        who, now = as_principal(current_principal(), project_id), self._desk.ledger.now()
        signals = [
            incoming.signal(checks.below(f"signals[{index}]"), value, project_id, who, now)
            for index, value in enumerate(request.signals)
        ]
        checks.raise_if_any()
        call = incoming.request(request, project_id, "RecordSignals", request.request_id, Role.READER)
        await self._service.signal(call, signals)
        return pb.RecordSignalsResponse()
