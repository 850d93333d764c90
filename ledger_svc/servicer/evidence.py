"""EvidenceService."""

from __future__ import annotations

from typing import Any

import grpc.aio
from decisionssearch.ledger.v1 import evidence_service_pb2 as pb
from decisionssearch.ledger.v1 import evidence_service_pb2_grpc

from ledger_svc.domain.model import VerificationState
from ledger_svc.service.evidence import EvidenceService
from ledger_svc.servicer import incoming, outgoing, sanitising
from ledger_svc.servicer.base import Desk
from service_kit.checks import FieldChecks
from service_kit.context import current_principal
from service_kit.names import NameKind

Context = grpc.aio.ServicerContext[Any, Any]


class EvidenceServicer(evidence_service_pb2_grpc.EvidenceServiceServicer):
    """Evidence of a project."""

    def __init__(self, desk: Desk) -> None:
        self._service = EvidenceService(desk.ledger)

    async def RegisterEvidence(  # noqa: N802 - gRPC's name
        self, request: pb.RegisterEvidenceRequest, context: Context
    ) -> pb.RegisterEvidenceResponse:
        """Register evidence."""
        del context
        checks = FieldChecks()
        (await sanitising.take(request)).check(checks)
        project_id = incoming.project(checks, request.project)
        incoming.request_id(checks, request.request_id)
        draft = incoming.registered_draft(checks, request)
        checks.raise_if_any()
        call = incoming.request(request, project_id, "RegisterEvidence", request.request_id)
        evidence, created = await self._service.register(call, draft)
        return pb.RegisterEvidenceResponse(evidence=outgoing.evidence(evidence), created=created)

    async def GetEvidence(  # noqa: N802 - gRPC's name
        self, request: pb.GetEvidenceRequest, context: Context
    ) -> pb.GetEvidenceResponse:
        """Return one evidence with all its verifications."""
        del context
        checks = FieldChecks()
        name = incoming.name(checks, "name", request.name, NameKind.EVIDENCE)
        checks.raise_if_any()
        evidence = await self._service.get(current_principal(), name.project, name.id)
        return pb.GetEvidenceResponse(evidence=outgoing.evidence(evidence))

    async def RecordVerification(  # noqa: N802 - gRPC's name
        self, request: pb.RecordVerificationRequest, context: Context
    ) -> pb.RecordVerificationResponse:
        """Record what a verifier found."""
        del context
        checks = FieldChecks()
        (await sanitising.take(request)).check(checks)
        name = incoming.name(checks, "evidence", request.evidence, NameKind.EVIDENCE)
        incoming.request_id(checks, request.request_id)
        state = incoming.choice(checks, "state", request.state, incoming.VERIFICATION, VerificationState.UNVERIFIED)
        checks.required("method", request.method)
        checks.raise_if_any()
        call = incoming.request(request, name.project, "RecordVerification", request.request_id)
        evidence = await self._service.verify(call, name.id, state, request.method)
        return pb.RecordVerificationResponse(evidence=outgoing.evidence(evidence))
