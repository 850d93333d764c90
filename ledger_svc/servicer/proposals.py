"""ProposalService."""

from __future__ import annotations

from typing import Any

import grpc.aio
from decisionssearch.ledger.v1 import proposal_service_pb2 as pb
from decisionssearch.ledger.v1 import proposal_service_pb2_grpc

from ledger_svc.domain.model import OPEN_STATUSES
from ledger_svc.service.commands import Request
from ledger_svc.service.proposals import Applied, ProposalService, Proposing
from ledger_svc.servicer import incoming, outgoing, sanitising
from ledger_svc.servicer.base import Desk, failed_item
from ledger_svc.views import Detail
from service_kit.checks import FieldChecks
from service_kit.context import current_principal
from service_kit.names import NameKind
from service_kit.principals import Role
from service_kit.sanitising.messages import Taken

Context = grpc.aio.ServicerContext[Any, Any]


class ProposalServicer(proposal_service_pb2_grpc.ProposalServiceServicer):
    """The only way to change published knowledge."""

    def __init__(self, desk: Desk) -> None:
        self._desk = desk
        self._service = ProposalService(desk.ledger)

    # --- Propose ----------------------------------------------------------------------------------------------------

    async def CreateProposal(  # noqa: N802 - gRPC's name
        self, request: pb.CreateProposalRequest, context: Context
    ) -> pb.CreateProposalResponse:
        """Propose a change, or show what it would be."""
        del context
        checks = FieldChecks()
        taken = (await sanitising.take(request)).check(checks)
        project_id = incoming.project(checks, request.project)
        if not request.validate_only:
            incoming.request_id(checks, request.request_id)
        proposing = incoming.proposing(checks, request, project_id, sanitising.warnings(taken.replaced))
        checks.raise_if_any()
        if request.validate_only:
            view = await self._service.preview(current_principal(), proposing)
            return pb.CreateProposalResponse(proposal=outgoing.proposal(view))
        call = incoming.request(request, project_id, "CreateProposal", request.request_id)
        made = await self._service.create(call.caller, project_id, [(call, proposing)])
        if isinstance(made[0], Exception):
            raise made[0]
        return pb.CreateProposalResponse(proposal=outgoing.proposal(made[0]))

    async def BatchCreateProposals(  # noqa: N802 - gRPC's name
        self, request: pb.BatchCreateProposalsRequest, context: Context
    ) -> pb.BatchCreateProposalsResponse:
        """Propose many changes, each by itself."""
        del context
        checks = FieldChecks()
        project_id = incoming.project(checks, request.project)
        checks.count("requests", request.requests, at_least=1, at_most=incoming.MAX_BATCH)
        checks.raise_if_any()
        each = await sanitising.take_each(request.requests)
        results = [pb.CreateProposalResult() for _ in request.requests]
        items: list[tuple[int, tuple[Request, Proposing]]] = []
        for index, item in enumerate(request.requests):
            try:
                items.append((index, self._item(item, project_id, index, each[index])))
            except Exception as error:  # noqa: BLE001 - failed_item raises what is a bug
                results[index].error.CopyFrom(failed_item(error))
        made = await self._service.create(current_principal(), project_id, [item for _, item in items])
        for (index, _), view in zip(items, made, strict=True):
            if isinstance(view, Exception):
                results[index].error.CopyFrom(failed_item(view))
            else:
                results[index].proposal.CopyFrom(outgoing.proposal(view))
        return pb.BatchCreateProposalsResponse(results=results)

    @staticmethod
    def _item(item: pb.CreateProposalRequest, project_id: str, index: int, taken: Taken) -> tuple[Request, Proposing]:
        checks = FieldChecks(f"requests[{index}].")
        taken.check(checks)
        if item.project:
            checks.must(item.project == f"projects/{project_id}", "project", "must be that of the batch, or empty")
        item.project = f"projects/{project_id}"
        checks.must(not item.validate_only, "validate_only", "is not for batches")
        incoming.request_id(checks, item.request_id)
        proposing = incoming.proposing(checks, item, project_id, sanitising.warnings(taken.replaced))
        checks.raise_if_any()
        return incoming.request(item, project_id, "CreateProposal", item.request_id), proposing

    # --- Reads ------------------------------------------------------------------------------------------------------

    async def GetProposal(  # noqa: N802 - gRPC's name
        self, request: pb.GetProposalRequest, context: Context
    ) -> pb.GetProposalResponse:
        """Return a proposal."""
        del context
        checks = FieldChecks()
        name = incoming.name(checks, "name", request.name, NameKind.PROPOSAL)
        checks.raise_if_any()
        view = await self._service.get(current_principal(), name.project, name.id)
        return pb.GetProposalResponse(proposal=outgoing.proposal(view))

    async def ListProposals(  # noqa: N802 - gRPC's name
        self, request: pb.ListProposalsRequest, context: Context
    ) -> pb.ListProposalsResponse:
        """List proposals, oldest first."""
        del context
        checks = FieldChecks()
        project_id = incoming.project(checks, request.project)
        statuses = incoming.choices(checks, "statuses", request.statuses, incoming.STATUS)
        family_id = incoming.ident(checks, "family", request.family, NameKind.FAMILY, project_id, optional=True)
        size = incoming.page_size(checks, request.page_size, 50)
        checks.raise_if_any()
        state = self._desk.pages.read(request)
        after = int(state["after"]) if state else 0
        views, cursor = await self._service.page(
            current_principal(), project_id, statuses or OPEN_STATUSES, family_id, after, size
        )
        return pb.ListProposalsResponse(
            proposals=[outgoing.proposal(view) for view in views],
            next_page_token=self._desk.pages.issue(request, {"after": cursor}) if cursor else "",
        )

    # --- Decide -----------------------------------------------------------------------------------------------------

    async def ApproveProposal(  # noqa: N802 - gRPC's name
        self, request: pb.ApproveProposalRequest, context: Context
    ) -> pb.ApproveProposalResponse:
        """Say yes to exact bytes."""
        del context
        checks = FieldChecks()
        (await sanitising.take(request)).check(checks)
        project_id, item = self._approval(checks, request, None)
        made = (await self._service.approve(current_principal(), project_id, [item]))[0]
        if isinstance(made, Exception):
            raise made
        return pb.ApproveProposalResponse(proposal=outgoing.proposal(made[0]), approval=outgoing.approval(made[1]))

    async def BatchApproveProposals(  # noqa: N802 - gRPC's name
        self, request: pb.BatchApproveProposalsRequest, context: Context
    ) -> pb.BatchApproveProposalsResponse:
        """Say yes to many, each by itself."""
        del context
        checks = FieldChecks()
        project_id = incoming.project(checks, request.project)
        checks.count("requests", request.requests, at_least=1, at_most=incoming.MAX_BATCH)
        checks.raise_if_any()
        each = await sanitising.take_each(request.requests)
        results = [pb.ApproveProposalResult() for _ in request.requests]
        items = []
        for index, item in enumerate(request.requests):
            own = FieldChecks(f"requests[{index}].")
            each[index].check(own)
            try:
                items.append((index, self._approval(own, item, project_id)[1]))
            except Exception as error:  # noqa: BLE001 - failed_item raises what is a bug
                results[index].error.CopyFrom(failed_item(error))
        made = await self._service.approve(current_principal(), project_id, [item for _, item in items])
        for (index, _), answer in zip(items, made, strict=True):
            if isinstance(answer, Exception):
                results[index].error.CopyFrom(failed_item(answer))
            else:
                results[index].approved.proposal.CopyFrom(outgoing.proposal(answer[0]))
                results[index].approved.approval.CopyFrom(outgoing.approval(answer[1]))
        return pb.BatchApproveProposalsResponse(results=results)

    @staticmethod
    def _approval(
        checks: FieldChecks, request: pb.ApproveProposalRequest, project_id: str | None
    ) -> tuple[str, tuple[Request, str, str, str]]:
        name = incoming.name(checks, "proposal", request.proposal, NameKind.PROPOSAL, project_id)
        incoming.request_id(checks, request.request_id)
        checks.required("preview_hash", request.preview_hash)
        checks.length("comment", request.comment, at_most=2_000)
        checks.raise_if_any()
        call = incoming.request(request, name.project, "ApproveProposal", request.request_id, Role.REVIEWER)
        return name.project, (call, name.id, request.preview_hash, request.comment)

    async def RevokeApproval(  # noqa: N802 - gRPC's name
        self, request: pb.RevokeApprovalRequest, context: Context
    ) -> pb.RevokeApprovalResponse:
        """Take an approval back."""
        del context
        checks = FieldChecks()
        (await sanitising.take(request)).check(checks)
        name = incoming.name(checks, "approval", request.approval, NameKind.APPROVAL)
        incoming.request_id(checks, request.request_id)
        if checks.required("reason", request.reason):
            checks.length("reason", request.reason, at_most=2_000)
        checks.raise_if_any()
        call = incoming.request(request, name.project, "RevokeApproval", request.request_id, Role.READER)
        view = await self._service.revoke(call, name.ids[0], name.ids[1], request.reason)
        return pb.RevokeApprovalResponse(proposal=outgoing.proposal(view))

    async def RejectProposal(  # noqa: N802 - gRPC's name
        self, request: pb.RejectProposalRequest, context: Context
    ) -> pb.RejectProposalResponse:
        """Say no."""
        del context
        checks = FieldChecks()
        (await sanitising.take(request)).check(checks)
        name = incoming.name(checks, "proposal", request.proposal, NameKind.PROPOSAL)
        incoming.request_id(checks, request.request_id)
        if checks.required("comment", request.comment):
            checks.length("comment", request.comment, at_most=2_000)
        checks.raise_if_any()
        call = incoming.request(request, name.project, "RejectProposal", request.request_id, Role.REVIEWER)
        view = await self._service.reject(call, name.id, request.comment)
        return pb.RejectProposalResponse(proposal=outgoing.proposal(view))

    async def WithdrawProposal(  # noqa: N802 - gRPC's name
        self, request: pb.WithdrawProposalRequest, context: Context
    ) -> pb.WithdrawProposalResponse:
        """Take a proposal back."""
        del context
        checks = FieldChecks()
        (await sanitising.take(request)).check(checks)
        name = incoming.name(checks, "proposal", request.proposal, NameKind.PROPOSAL)
        incoming.request_id(checks, request.request_id)
        checks.length("comment", request.comment, at_most=2_000)
        checks.raise_if_any()
        call = incoming.request(request, name.project, "WithdrawProposal", request.request_id, Role.READER)
        view = await self._service.withdraw(call, name.id, request.comment)
        return pb.WithdrawProposalResponse(proposal=outgoing.proposal(view))

    # --- Apply ------------------------------------------------------------------------------------------------------

    async def ApplyProposal(  # noqa: N802 - gRPC's name
        self, request: pb.ApplyProposalRequest, context: Context
    ) -> pb.ApplyProposalResponse:
        """Commit an approved proposal."""
        del context
        checks = FieldChecks()
        (await sanitising.take(request)).check(checks)
        project_id, item = self._application(checks, request, None)
        made = (await self._service.apply(current_principal(), project_id, [item], brief=False))[0]
        if isinstance(made, Exception):
            raise made
        return self._applied(project_id, made)

    async def BatchApplyProposals(  # noqa: N802 - gRPC's name
        self, request: pb.BatchApplyProposalsRequest, context: Context
    ) -> pb.BatchApplyProposalsResponse:
        """Commit many, each by itself and in order."""
        del context
        checks = FieldChecks()
        project_id = incoming.project(checks, request.project)
        checks.count("requests", request.requests, at_least=1, at_most=incoming.MAX_BATCH)
        checks.raise_if_any()
        each = await sanitising.take_each(request.requests)
        results = [pb.ApplyProposalResult() for _ in request.requests]
        items = []
        for index, item in enumerate(request.requests):
            own = FieldChecks(f"requests[{index}].")
            each[index].check(own)
            try:
                items.append((index, self._application(own, item, project_id)[1]))
            except Exception as error:  # noqa: BLE001 - failed_item raises what is a bug
                results[index].error.CopyFrom(failed_item(error))
        made = await self._service.apply(
            current_principal(), project_id, [item for _, item in items], brief=request.brief
        )
        for (index, _), answer in zip(items, made, strict=True):
            if isinstance(answer, Exception):
                results[index].error.CopyFrom(failed_item(answer))
            else:
                results[index].applied.CopyFrom(self._applied(project_id, answer))
        return pb.BatchApplyProposalsResponse(results=results)

    @staticmethod
    def _application(
        checks: FieldChecks, request: pb.ApplyProposalRequest, project_id: str | None
    ) -> tuple[str, tuple[Request, str, str]]:
        name = incoming.name(checks, "proposal", request.proposal, NameKind.PROPOSAL, project_id)
        incoming.request_id(checks, request.request_id)
        checks.raise_if_any()
        call = incoming.request(request, name.project, "ApplyProposal", request.request_id)
        return name.project, (call, name.id, request.preview_hash)

    def _applied(self, project_id: str, made: Applied) -> pb.ApplyProposalResponse:
        return pb.ApplyProposalResponse(
            proposal=None if made.view is None else outgoing.proposal(made.view),
            head=None if made.head is None else outgoing.head(made.head, made.recorded_at, Detail.BASIC),
            relation=None if made.relation is None else outgoing.relation(made.relation),
            token=self._desk.token(project_id, made.position),
            position=made.position,
        )
