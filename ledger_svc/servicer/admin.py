"""AdminService."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import aclosing
from importlib.metadata import PackageNotFoundError, version
from typing import Any

import grpc.aio
from decisionssearch.ledger.v1 import admin_service_pb2 as pb
from decisionssearch.ledger.v1 import admin_service_pb2_grpc

from ledger_svc.domain.canonical import is_hash
from ledger_svc.service.admin import MOST_PROBLEMS, AdminService
from ledger_svc.service.moving import MovingService
from ledger_svc.servicer import incoming, outgoing, sanitising
from ledger_svc.servicer.base import Desk
from service_kit.checks import FieldChecks
from service_kit.context import current_principal
from service_kit.errors import invalid
from service_kit.principals import Role

Context = grpc.aio.ServicerContext[Any, Any]


class AdminServicer(admin_service_pb2_grpc.AdminServiceServicer):
    """Projects, their policy, and the audit."""

    def __init__(self, desk: Desk) -> None:
        self._desk = desk
        self._service = AdminService(desk.ledger)
        self._moving = MovingService(desk.ledger)
        # One at a time: a verification reads everything, and holds a reader meanwhile.
        self._verifying = asyncio.Semaphore(1)

    async def CreateProject(  # noqa: N802 - gRPC's name
        self, request: pb.CreateProjectRequest, context: Context
    ) -> pb.CreateProjectResponse:
        """Make a project."""
        del context
        checks = FieldChecks()
        (await sanitising.take(request)).check(checks)
        project_id = incoming.project(checks, request.name, "name")
        incoming.request_id(checks, request.request_id)
        checks.length("display_name", request.display_name, at_most=200)
        policy = incoming.policy(checks.below("policy"), request.policy) if request.HasField("policy") else None
        checks.raise_if_any()
        call = incoming.request(request, project_id, "CreateProject", request.request_id, Role.ADMIN)
        view = await self._service.create_project(call, request.display_name, policy)
        return pb.CreateProjectResponse(project=outgoing.project(view))

    async def GetProject(  # noqa: N802 - gRPC's name
        self, request: pb.GetProjectRequest, context: Context
    ) -> pb.GetProjectResponse:
        """Return a project."""
        del context
        checks = FieldChecks()
        project_id = incoming.project(checks, request.name, "name")
        checks.raise_if_any()
        view = await self._service.project(current_principal(), project_id)
        return pb.GetProjectResponse(project=outgoing.project(view))

    async def ListProjects(  # noqa: N802 - gRPC's name
        self, request: pb.ListProjectsRequest, context: Context
    ) -> pb.ListProjectsResponse:
        """List the projects that the caller may read."""
        del context
        checks = FieldChecks()
        size = incoming.page_size(checks, request.page_size)
        checks.raise_if_any()
        state = self._desk.pages.read(request)
        after = str(state["after"]) if state else ""
        views = await self._service.projects(current_principal(), after, size)
        token = ""
        if len(views) == size:
            token = self._desk.pages.issue(request, {"after": views[-1].project.project_id})
        return pb.ListProjectsResponse(projects=[outgoing.project(view) for view in views], next_page_token=token)

    async def UpdatePolicy(  # noqa: N802 - gRPC's name
        self, request: pb.UpdatePolicyRequest, context: Context
    ) -> pb.UpdatePolicyResponse:
        """Replace the policy with its next version."""
        del context
        checks = FieldChecks()
        (await sanitising.take(request)).check(checks)
        project_id = incoming.project(checks, request.project)
        incoming.request_id(checks, request.request_id)
        checks.must(request.expected_version >= 1, "expected_version", "is required: the version that you have seen")
        checks.present(request, "policy")
        policy = incoming.policy(checks.below("policy"), request.policy)
        checks.raise_if_any()
        call = incoming.request(request, project_id, "UpdatePolicy", request.request_id, Role.ADMIN)
        view = await self._service.update_policy(call, request.expected_version, policy)
        return pb.UpdatePolicyResponse(project=outgoing.project(view))

    async def ListAuditEntries(  # noqa: N802 - gRPC's name
        self, request: pb.ListAuditEntriesRequest, context: Context
    ) -> pb.ListAuditEntriesResponse:
        """List the audit of a project."""
        del context
        checks = FieldChecks()
        project_id = incoming.project(checks, request.project)
        checks.must(request.after_sequence >= 0, "after_sequence", "must not be negative")
        size = incoming.page_size(checks, request.page_size)
        checks.raise_if_any()
        entries, newest = await self._service.audit(current_principal(), project_id, request.after_sequence, size)
        return pb.ListAuditEntriesResponse(
            entries=[outgoing.audit_entry(entry) for entry in entries], newest_sequence=newest
        )

    async def VerifyAudit(  # noqa: N802 - gRPC's name
        self, request: pb.VerifyAuditRequest, context: Context
    ) -> pb.VerifyAuditResponse:
        """Recompute the chain and every hash that it covers."""
        del context
        checks = FieldChecks()
        project_id = incoming.project(checks, request.project)
        checks.raise_if_any()
        async with self._verifying:
            found = await self._service.verify(current_principal(), project_id)
        return pb.VerifyAuditResponse(
            valid=not found.problems,
            entries=found.entries,
            records=found.records,
            problems=[
                pb.AuditProblem(sequence=one.sequence, resource=one.subject, problem=one.problem)
                for one in found.problems[:MOST_PROBLEMS]
            ],
            chain_head=found.chain_head,
        )

    async def ExportProject(  # noqa: N802 - gRPC's name
        self, request: pb.ExportProjectRequest, context: Context
    ) -> AsyncIterator[pb.ExportProjectResponse]:
        """Stream a whole project as a file."""
        del context
        checks = FieldChecks()
        project_id = incoming.project(checks, request.project)
        after, digest = request.resume_after_chunk, request.resume_sha256
        checks.must(after >= 0, "resume_after_chunk", "must not be negative")
        checks.must(bool(after > 0) == bool(digest), "resume_sha256", "belongs with resume_after_chunk")
        checks.must(not digest or is_hash(digest), "resume_sha256", "must be sha256:<64 hex digits>")
        checks.raise_if_any()
        async with aclosing(self._moving.export(current_principal(), project_id, after, digest)) as parts:
            async for part in parts:
                yield pb.ExportProjectResponse(
                    data=part.data,
                    chunks_done=part.chunks_done,
                    records_done=part.records_done,
                    records_total=part.records_total,
                )

    async def ImportProject(  # noqa: N802 - gRPC's name
        self, request_iterator: AsyncIterator[pb.ImportProjectRequest], context: Context
    ) -> pb.ImportProjectResponse:
        """Store a project from the bytes of a file."""
        del context
        first = await anext(aiter(request_iterator), pb.ImportProjectRequest())
        checks = FieldChecks()
        project_id = incoming.project(checks, first.project)
        checks.raise_if_any()

        async def data() -> AsyncIterator[bytes]:
            yield first.data
            async for request in request_iterator:
                if request.project and request.project != first.project:
                    raise invalid("project", "must be that of the first message")
                yield request.data

        made = await self._moving.import_project(current_principal(), project_id, data())
        return pb.ImportProjectResponse(
            project=outgoing.project(made.view),
            records=made.summary.header.total,
            records_skipped=made.skipped,
            sha256=made.summary.digest,
            chain_head=made.summary.header.tip.audit.entry_hash,
        )

    async def GetLedgerInfo(  # noqa: N802 - gRPC's name
        self, request: pb.GetLedgerInfoRequest, context: Context
    ) -> pb.GetLedgerInfoResponse:
        """Say which ledger this is."""
        del request, context
        info = self._service.info
        return pb.GetLedgerInfoResponse(
            ledger_id=info.ledger_id,
            store=info.kind,
            schema_version=info.schema_version,
            version=_version(),
            caller=current_principal().to_proto(),
        )


def _version() -> str:
    try:
        return version("decisionssearch")
    except PackageNotFoundError:
        return "0"
