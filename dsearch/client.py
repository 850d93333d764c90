"""Typed client of the four services, asynchronous, and a thin synchronous face of it.

    async with DecisionsClient.open("127.0.0.1:7420", token) as client:
        answer = await client.search("billing", "How long may a refund take?")

What it adds to the generated stubs:

- every call has a deadline, every mutation a ``request_id``;
- a call that failed in transit, or that lost a race for the store, is sent again **unchanged** within its deadline
  (the request_id makes that free of effects); nothing else is ever sent twice;
- a refusal is raised as ``service_kit.errors.DomainError`` with the server's reason, fields and details;
- lists are iterators that turn pages;
- a read never answers from before this client's own last write to the project (``at_least_as_fresh``).

Project and family arguments take what people type: ``billing`` or ``projects/billing``; a resource name, or a natural
key such as ``adr/0007``.
"""

from __future__ import annotations

import asyncio
import random
import threading
import time
from collections.abc import (
    AsyncIterable,
    AsyncIterator,
    Awaitable,
    Callable,
    Coroutine,
    Iterable,
    Iterator,
    Mapping,
    Sequence,
)
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final, Protocol, Self, TypeVar

import grpc
import grpc.aio
from decisionssearch.common.v1 import common_pb2
from decisionssearch.index.v1 import index_service_pb2 as index_pb2
from decisionssearch.index.v1.index_service_pb2_grpc import IndexServiceStub
from decisionssearch.ingest.v1 import ingest_service_pb2 as ingest_pb2
from decisionssearch.ingest.v1.ingest_service_pb2_grpc import IngestServiceStub
from decisionssearch.ledger.v1 import (
    admin_service_pb2 as admin_pb2,
)
from decisionssearch.ledger.v1 import (
    evidence_service_pb2 as evidence_pb2,
)
from decisionssearch.ledger.v1 import (
    ledger_pb2,
    ledger_service_pb2,
    outbox_service_pb2,
    proposal_pb2,
)
from decisionssearch.ledger.v1 import (
    observation_service_pb2 as observation_pb2,
)
from decisionssearch.ledger.v1 import (
    proposal_service_pb2 as proposals_pb2,
)
from decisionssearch.ledger.v1.admin_service_pb2_grpc import AdminServiceStub
from decisionssearch.ledger.v1.evidence_service_pb2_grpc import EvidenceServiceStub
from decisionssearch.ledger.v1.ledger_service_pb2_grpc import LedgerServiceStub
from decisionssearch.ledger.v1.observation_service_pb2_grpc import ObservationServiceStub
from decisionssearch.ledger.v1.outbox_service_pb2_grpc import OutboxServiceStub
from decisionssearch.ledger.v1.proposal_service_pb2_grpc import ProposalServiceStub
from decisionssearch.retrieval.v1 import retrieval_service_pb2 as retrieval_pb2
from decisionssearch.retrieval.v1.retrieval_service_pb2_grpc import RetrievalServiceStub
from google.protobuf.message import Message
from google.protobuf.timestamp_pb2 import Timestamp

from service_kit.clients import connect
from service_kit.clock import to_timestamp
from service_kit.errors import Reason, deadline_exceeded, from_rpc_error, invalid
from service_kit.ids import new_id

T = TypeVar("T")
Req = TypeVar("Req", bound=Message)
Resp = TypeVar("Resp", bound=Message)
Req_contra = TypeVar("Req_contra", bound=Message, contravariant=True)
Resp_co = TypeVar("Resp_co", bound=Message, covariant=True)

DEFAULT_TIMEOUT_SECONDS: Final = 15.0
LONG_TIMEOUT_SECONDS: Final = 600.0
MOVE_TIMEOUT_SECONDS: Final = 6 * 3_600.0
"""How long a whole project may take from or to a file."""
_FIRST_PAUSE_SECONDS: Final = 0.05
_LONGEST_PAUSE_SECONDS: Final = 1.0
_MOST_ATTEMPTS: Final = 2
_POLL_SECONDS: Final = 0.1
_PAGE: Final = 200

RETRIED: Final = frozenset({Reason.DEPENDENCY_UNAVAILABLE, Reason.SHUTTING_DOWN, Reason.WRITE_CONTENTION})
"""Reasons that the same request may overcome. HEAD_MOVED is not one: somebody has to decide again.
NOT_FRESH_ENOUGH is not one either: the server has already waited as long as the deadline allowed."""


@dataclass(frozen=True, slots=True)
class Endpoints:
    """Where the four services listen, each as ``host:port``."""

    ledger: str
    index: str
    retrieval: str
    ingest: str

    @classmethod
    def at(cls, target: str) -> Self:
        """Return the endpoints of one server that hosts all four."""
        return cls(target, target, target, target)

    @classmethod
    def parse(cls, text: str) -> Self:
        """Return the endpoints in ``host:port``, or in ``ledger=host:port,index=...,retrieval=...,ingest=...``.

        Raises:
            InvalidRequest: The text is neither.
        """
        if "=" not in text:
            if not _is_target(text):
                raise invalid("endpoint", f"must be host:port, got {text!r}")
            return cls.at(text)
        parts = dict(part.strip().split("=", 1) for part in text.split(",") if "=" in part)
        if set(parts) != {"ledger", "index", "retrieval", "ingest"} or not all(map(_is_target, parts.values())):
            raise invalid("endpoint", "must name ledger, index, retrieval and ingest, each as name=host:port")
        return cls(**parts)


def _is_target(text: str) -> bool:
    host, _, port = text.rpartition(":")
    return bool(host) and port.isdigit()


class UnaryCall(Protocol[Req_contra, Resp_co]):
    """A method of a generated asynchronous stub."""

    def __call__(self, request: Req_contra, *, timeout: float | None = None) -> Awaitable[Resp_co]:
        """Send the request."""


def project_name(project: str) -> str:
    """Return the resource name of a project given by id or name."""
    return project if project.startswith("projects/") else f"projects/{project}"


def _stamp(instant: datetime | None) -> Timestamp | None:
    return to_timestamp(instant) if instant is not None else None


class DecisionsClient:
    """Client of a deployment, as one principal. Use it in the event loop that it was opened in."""

    def __init__(
        self,
        endpoints: Endpoints,
        token: str,
        *,
        timeout_seconds: float = DEFAULT_TIMEOUT_SECONDS,
        wait_for_ready: bool = False,
        seen: Mapping[str, str] | None = None,
    ) -> None:
        """Prepare the channels; nothing connects before the first call.

        Args:
            endpoints: Where the services are.
            token: Bearer token.
            timeout_seconds: Deadline of a call, its retries included.
            wait_for_ready: Wait within the deadline for a server that is not there yet.
            seen: LedgerTokens by project name from an earlier client, to go on reading one's own writes.
        """
        self._channels = {
            target: connect(target, token=lambda: token, timeout_seconds=timeout_seconds, wait_for_ready=wait_for_ready)
            for target in {endpoints.ledger, endpoints.index, endpoints.retrieval, endpoints.ingest}
        }
        ledger = self._channels[endpoints.ledger]
        self._ledger = LedgerServiceStub(ledger)
        self._proposals = ProposalServiceStub(ledger)
        self._evidence = EvidenceServiceStub(ledger)
        self._observations = ObservationServiceStub(ledger)
        self._outbox = OutboxServiceStub(ledger)
        self._admin = AdminServiceStub(ledger)
        self._index = IndexServiceStub(self._channels[endpoints.index])
        self._retrieval = RetrievalServiceStub(self._channels[endpoints.retrieval])
        self._ingest = IngestServiceStub(self._channels[endpoints.ingest])
        self._timeout = timeout_seconds
        self._seen: dict[str, str] = dict(seen or {})

    @classmethod
    def open(cls, target: str, token: str, **settings: Any) -> Self:
        """Return a client of a server that hosts all four services."""
        return cls(Endpoints.parse(target), token, **settings)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Close the channels."""
        await asyncio.gather(*(channel.close() for channel in self._channels.values()))

    # --- Sending ----------------------------------------------------------------------------------------------------

    async def _call(self, method: UnaryCall[Req, Resp], request: Req, timeout_seconds: float | None = None) -> Resp:
        """Send a request; the same one again while that may help and the deadline allows it."""
        deadline = time.monotonic() + (self._timeout if timeout_seconds is None else timeout_seconds)
        pause = _FIRST_PAUSE_SECONDS
        attempt = 0
        while True:
            left = deadline - time.monotonic()
            if left <= 0:
                raise deadline_exceeded()
            try:
                return await method(request, timeout=left)
            except grpc.RpcError as failure:
                error = from_rpc_error(failure, "the server")
            # Full jitter: racing clients must not meet again at the same moment.
            wait = random.uniform(0, pause)  # noqa: S311 - spreads load, guards nothing
            attempt += 1
            # Whoever waits for a store that is busy gets their turn; a server that is not there is not worth long.
            spent = attempt >= _MOST_ATTEMPTS and error.reason is not Reason.WRITE_CONTENTION
            if error.reason not in RETRIED or spent or time.monotonic() + wait >= deadline:
                raise error
            await asyncio.sleep(wait)
            pause = min(pause * 2, _LONGEST_PAUSE_SECONDS)

    async def _stream(self, call: AsyncIterable[Resp]) -> AsyncIterator[Resp]:
        try:
            async for message in call:
                yield message
        except grpc.RpcError as failure:
            raise from_rpc_error(failure, "the server") from None

    # --- Read your writes -------------------------------------------------------------------------------------------

    @property
    def seen(self) -> Mapping[str, str]:
        """The newest LedgerToken of this client's own writes, by project name."""
        return dict(self._seen)

    def saw(self, project: str, token: common_pb2.LedgerToken) -> None:
        """Make reads of the project at least as fresh as this token."""
        if token.value:
            self._seen[project_name(project)] = token.value

    def consistency(self, project: str) -> common_pb2.Consistency | None:
        """Return how fresh a read of the project must be."""
        value = self._seen.get(project_name(project))
        if value is None:
            return None
        return common_pb2.Consistency(at_least_as_fresh=common_pb2.LedgerToken(value=value))

    # --- Projects and operation -------------------------------------------------------------------------------------

    async def ledger_info(self) -> admin_pb2.GetLedgerInfoResponse:
        """Return which ledger this is, and who the caller is."""
        return await self._call(self._admin.GetLedgerInfo, admin_pb2.GetLedgerInfoRequest())

    async def create_project(
        self,
        project: str,
        *,
        display_name: str = "",
        policy: admin_pb2.Policy | None = None,
        request_id: str | None = None,
    ) -> admin_pb2.Project:
        """Make a project; without a policy it gets the default one."""
        request = admin_pb2.CreateProjectRequest(
            name=project_name(project), request_id=request_id or new_id(), display_name=display_name, policy=policy
        )
        return (await self._call(self._admin.CreateProject, request)).project

    async def get_project(self, project: str) -> admin_pb2.Project:
        """Return a project with its policy."""
        request = admin_pb2.GetProjectRequest(name=project_name(project))
        return (await self._call(self._admin.GetProject, request)).project

    async def projects(self) -> AsyncIterator[admin_pb2.Project]:
        """Yield the projects that the caller may read."""
        page = ""
        while True:
            response = await self._call(
                self._admin.ListProjects, admin_pb2.ListProjectsRequest(page_size=_PAGE, page_token=page)
            )
            for project in response.projects:
                yield project
            page = response.next_page_token
            if not page:
                return

    async def update_policy(
        self, project: str, policy: admin_pb2.Policy, *, expected_version: int, request_id: str | None = None
    ) -> admin_pb2.Project:
        """Replace the policy of a project."""
        request = admin_pb2.UpdatePolicyRequest(
            project=project_name(project),
            request_id=request_id or new_id(),
            expected_version=expected_version,
            policy=policy,
        )
        return (await self._call(self._admin.UpdatePolicy, request)).project

    async def verify_audit(self, project: str) -> admin_pb2.VerifyAuditResponse:
        """Have the hash chain and all that it covers recomputed."""
        request = admin_pb2.VerifyAuditRequest(project=project_name(project))
        return await self._call(self._admin.VerifyAudit, request, LONG_TIMEOUT_SECONDS)

    async def audit_entries(self, project: str, *, after: int = 0) -> AsyncIterator[admin_pb2.AuditEntry]:
        """Yield the audit in order."""
        while True:
            response = await self._call(
                self._admin.ListAuditEntries,
                admin_pb2.ListAuditEntriesRequest(project=project_name(project), after_sequence=after, page_size=_PAGE),
            )
            for entry in response.entries:
                yield entry
                after = entry.sequence
            if not response.entries or after >= response.newest_sequence:
                return

    async def export_project(
        self, project: str, *, after_chunk: int = 0, sha256: str = ""
    ) -> AsyncIterator[admin_pb2.ExportProjectResponse]:
        """Yield a whole project as the parts of a file; to go on after a chunk, with the hash of all up to its end."""
        request = admin_pb2.ExportProjectRequest(
            project=project_name(project), resume_after_chunk=after_chunk, resume_sha256=sha256
        )
        async for part in self._stream(self._admin.ExportProject(request, timeout=MOVE_TIMEOUT_SECONDS)):
            yield part

    async def import_project(
        self, project: str, data: AsyncIterable[bytes] | Iterable[bytes]
    ) -> admin_pb2.ImportProjectResponse:
        """Store a project from the bytes of such a file, in pieces of at most 1 MiB; it may be sent again."""

        async def requests() -> AsyncIterator[admin_pb2.ImportProjectRequest]:
            async for piece in _each(data):
                yield admin_pb2.ImportProjectRequest(project=project_name(project), data=piece)

        try:
            return await self._admin.ImportProject(requests(), timeout=MOVE_TIMEOUT_SECONDS)
        except grpc.RpcError as failure:
            raise from_rpc_error(failure, "the server") from None

    async def outbox_stats(self, project: str = "") -> outbox_service_pb2.GetOutboxStatsResponse:
        """Return how far behind the consumer of the outbox is."""
        request = outbox_service_pb2.GetOutboxStatsRequest(project=project_name(project) if project else "")
        return await self._call(self._outbox.GetOutboxStats, request)

    async def dead_letters(self, project: str) -> AsyncIterator[outbox_service_pb2.OutboxEvent]:
        """Yield the events that were given up."""
        page = ""
        while True:
            response = await self._call(
                self._outbox.ListDeadLetters,
                outbox_service_pb2.ListDeadLettersRequest(
                    project=project_name(project), page_size=_PAGE, page_token=page
                ),
            )
            for event in response.events:
                yield event
            page = response.next_page_token
            if not page:
                return

    async def redrive_dead_letters(self, project: str) -> int:
        """Put the dead events of a project back in the queue; return how many."""
        request = outbox_service_pb2.RedriveDeadLettersRequest(project=project_name(project))
        return (await self._call(self._outbox.RedriveDeadLetters, request)).redriven

    # --- Reads ------------------------------------------------------------------------------------------------------

    async def get_family(self, project: str, family: str) -> ledger_pb2.Family:
        """Return a family by resource name or identity key."""
        request = ledger_service_pb2.GetFamilyRequest(consistency=self.consistency(project))
        if family.startswith("projects/"):
            request.name = family
        else:
            request.project, request.identity_key = project_name(project), family
        return (await self._call(self._ledger.GetFamily, request)).family

    async def family_name(self, project: str, family: str) -> str:
        """Return the resource name of a family given by resource name or identity key."""
        if family.startswith("projects/"):
            return family
        return (await self.get_family(project, family)).name

    async def families(
        self,
        project: str,
        *,
        scope: ledger_pb2.Scope.ValueType = ledger_pb2.SCOPE_UNSPECIFIED,
        category: ledger_pb2.Category.ValueType = ledger_pb2.CATEGORY_UNSPECIFIED,
    ) -> AsyncIterator[ledger_pb2.Family]:
        """Yield the families of a project in order of creation."""
        page = ""
        while True:
            response = await self._call(
                self._ledger.ListFamilies,
                ledger_service_pb2.ListFamiliesRequest(
                    project=project_name(project), scope=scope, category=category, page_size=_PAGE, page_token=page
                ),
            )
            for family in response.families:
                yield family
            page = response.next_page_token
            if not page:
                return

    async def get_head(
        self,
        project: str,
        family: str,
        *,
        branch: str = "",
        valid_at: datetime | None = None,
        known_at: datetime | None = None,
        view: ledger_service_pb2.HeadView.ValueType = ledger_service_pb2.HEAD_VIEW_FULL,
    ) -> ledger_pb2.Head:
        """Return what is published of a family at a moment of the world, as known at a moment."""
        request = ledger_service_pb2.GetHeadRequest(
            branch=branch,
            valid_at=_stamp(valid_at),
            known_at=_stamp(known_at),
            view=view,
            consistency=None if known_at is not None else self.consistency(project),
        )
        if family.startswith("projects/"):
            request.family = family
        else:
            request.project, request.identity_key = project_name(project), family
        return (await self._call(self._ledger.GetHead, request)).head

    async def heads(
        self,
        project: str,
        *,
        branch: str = "",
        scopes: Sequence[ledger_pb2.Scope.ValueType] = (),
        categories: Sequence[ledger_pb2.Category.ValueType] = (),
        states: Sequence[ledger_pb2.State.ValueType] = (),
        valid_at: datetime | None = None,
        known_at: datetime | None = None,
        view: ledger_service_pb2.HeadView.ValueType = ledger_service_pb2.HEAD_VIEW_BASIC,
        needs_review_only: bool = False,
    ) -> AsyncIterator[ledger_pb2.Head]:
        """Yield heads by scope, category and state; all pages are of one snapshot."""
        page = ""
        while True:
            response = await self._call(
                self._ledger.QueryHeads,
                ledger_service_pb2.QueryHeadsRequest(
                    project=project_name(project),
                    branch=branch,
                    scopes=scopes,
                    categories=categories,
                    states=states,
                    valid_at=_stamp(valid_at),
                    known_at=_stamp(known_at),
                    view=view,
                    page_size=_PAGE,
                    page_token=page,
                    consistency=None if known_at is not None else self.consistency(project),
                    needs_review_only=needs_review_only,
                ),
            )
            for head in response.heads:
                yield head
            page = response.next_page_token
            if not page:
                return

    async def batch_get_heads(
        self, request: ledger_service_pb2.BatchGetHeadsRequest
    ) -> ledger_service_pb2.BatchGetHeadsResponse:
        """Return many heads in one call."""
        return await self._call(self._ledger.BatchGetHeads, request)

    async def get_revision(self, revision: str) -> ledger_service_pb2.GetRevisionResponse:
        """Return a revision with its evidence."""
        return await self._call(self._ledger.GetRevision, ledger_service_pb2.GetRevisionRequest(name=revision))

    async def history(
        self, family: str, *, branch: str = "", known_at: datetime | None = None
    ) -> AsyncIterator[ledger_service_pb2.RevisionHistory]:
        """Yield the revisions of a family (by resource name), newest first, with their timeline rows."""
        page = ""
        while True:
            response = await self._call(
                self._ledger.ListRevisions,
                ledger_service_pb2.ListRevisionsRequest(
                    family=family, branch=branch, known_at=_stamp(known_at), page_size=_PAGE, page_token=page
                ),
            )
            for step in response.history:
                yield step
            page = response.next_page_token
            if not page:
                return

    async def diff(self, from_revision: str, to_revision: str) -> Sequence[ledger_pb2.FieldChange]:
        """Return the differences between the contents of two revisions."""
        request = ledger_service_pb2.DiffRevisionsRequest(from_revision=from_revision, to_revision=to_revision)
        return list((await self._call(self._ledger.DiffRevisions, request)).changes)

    async def blame(
        self, family: str, *, branch: str = "", revision: str = ""
    ) -> Sequence[ledger_service_pb2.FieldBlame]:
        """Return for each field who set it, why, and on what evidence."""
        request = ledger_service_pb2.BlameRequest(family=family, branch=branch, revision=revision)
        return list((await self._call(self._ledger.Blame, request)).fields)

    async def lineage(self, family: str, *, branch: str = "", depth: int = 0) -> ledger_service_pb2.GetLineageResponse:
        """Return the graph around a family."""
        request = ledger_service_pb2.GetLineageRequest(family=family, branch=branch, depth=depth)
        return await self._call(self._ledger.GetLineage, request)

    async def relations(
        self,
        project: str,
        *,
        family: str = "",
        kinds: Sequence[ledger_pb2.RelationKind.ValueType] = (),
        include_retired: bool = False,
    ) -> AsyncIterator[ledger_pb2.Relation]:
        """Yield relations of a family or of the project."""
        page = ""
        while True:
            response = await self._call(
                self._ledger.ListRelations,
                ledger_service_pb2.ListRelationsRequest(
                    project=project_name(project),
                    family=family,
                    kinds=kinds,
                    include_retired=include_retired,
                    page_size=_PAGE,
                    page_token=page,
                ),
            )
            for relation in response.relations:
                yield relation
            page = response.next_page_token
            if not page:
                return

    async def changes(self, project: str, *, after: int = 0) -> AsyncIterator[ledger_service_pb2.Change]:
        """Yield the commits of a project in order, up to now."""
        while True:
            response = await self._call(
                self._ledger.ListChanges,
                ledger_service_pb2.ListChangesRequest(
                    project=project_name(project), after_position=after, page_size=_PAGE
                ),
            )
            for change in response.changes:
                yield change
                after = change.position
            if not response.changes or after >= response.head_position:
                return

    async def watch(self, project: str, *, after: int = 0) -> AsyncIterator[ledger_service_pb2.Change]:
        """Yield the commits of a project in order, also those to come. Does not end by itself."""
        call = self._ledger.WatchChanges(
            ledger_service_pb2.WatchChangesRequest(project=project_name(project), after_position=after)
        )
        async for message in self._stream(call):
            if message.HasField("change"):
                yield message.change

    # --- Governance -------------------------------------------------------------------------------------------------

    async def propose(
        self,
        project: str,
        mutation: proposal_pb2.Mutation,
        *,
        reason: str,
        evidence: Iterable[proposal_pb2.EvidenceInput] = (),
        expected_heads: Iterable[proposal_pb2.ExpectedHead] = (),
        branch: str = "",
        validate_only: bool = False,
        request_id: str | None = None,
    ) -> proposal_pb2.Proposal:
        """Propose a change, or with ``validate_only`` see what it would be."""
        request = proposals_pb2.CreateProposalRequest(
            project=project_name(project),
            request_id=request_id or new_id(),
            branch=branch,
            mutation=mutation,
            evidence=evidence,
            reason=reason,
            expected_heads=expected_heads,
            validate_only=validate_only,
        )
        return (await self._call(self._proposals.CreateProposal, request)).proposal

    async def get_proposal(self, proposal: str) -> proposal_pb2.Proposal:
        """Return a proposal with diff, evidence and approvals."""
        request = proposals_pb2.GetProposalRequest(name=proposal)
        return (await self._call(self._proposals.GetProposal, request)).proposal

    async def proposals(
        self, project: str, *, statuses: Sequence[proposal_pb2.ProposalStatus.ValueType] = (), family: str = ""
    ) -> AsyncIterator[proposal_pb2.Proposal]:
        """Yield proposals, oldest first; without statuses those that wait."""
        page = ""
        while True:
            response = await self._call(
                self._proposals.ListProposals,
                proposals_pb2.ListProposalsRequest(
                    project=project_name(project), statuses=statuses, family=family, page_size=_PAGE, page_token=page
                ),
            )
            for proposal in response.proposals:
                yield proposal
            page = response.next_page_token
            if not page:
                return

    async def approve(
        self, proposal: str, *, preview_hash: str, comment: str = "", request_id: str | None = None
    ) -> proposals_pb2.ApproveProposalResponse:
        """Say yes to the exact bytes that the preview hash names."""
        request = proposals_pb2.ApproveProposalRequest(
            proposal=proposal, request_id=request_id or new_id(), preview_hash=preview_hash, comment=comment
        )
        return await self._call(self._proposals.ApproveProposal, request)

    async def reject(self, proposal: str, *, comment: str, request_id: str | None = None) -> proposal_pb2.Proposal:
        """Say no."""
        request = proposals_pb2.RejectProposalRequest(
            proposal=proposal, request_id=request_id or new_id(), comment=comment
        )
        return (await self._call(self._proposals.RejectProposal, request)).proposal

    async def withdraw(
        self, proposal: str, *, comment: str = "", request_id: str | None = None
    ) -> proposal_pb2.Proposal:
        """Take one's own proposal back."""
        request = proposals_pb2.WithdrawProposalRequest(
            proposal=proposal, request_id=request_id or new_id(), comment=comment
        )
        return (await self._call(self._proposals.WithdrawProposal, request)).proposal

    async def revoke_approval(
        self, approval: str, *, reason: str, request_id: str | None = None
    ) -> proposal_pb2.Proposal:
        """Take an approval back before it is used."""
        request = proposals_pb2.RevokeApprovalRequest(
            approval=approval, request_id=request_id or new_id(), reason=reason
        )
        return (await self._call(self._proposals.RevokeApproval, request)).proposal

    async def apply(
        self, proposal: str, *, preview_hash: str = "", request_id: str | None = None
    ) -> proposals_pb2.ApplyProposalResponse:
        """Commit an approved proposal; later reads of this client see it."""
        request = proposals_pb2.ApplyProposalRequest(
            proposal=proposal, request_id=request_id or new_id(), preview_hash=preview_hash
        )
        response = await self._call(self._proposals.ApplyProposal, request)
        self.saw("/".join(proposal.split("/")[:2]), response.token)
        return response

    async def register_evidence(
        self, project: str, draft: ledger_pb2.EvidenceDraft, *, request_id: str | None = None
    ) -> ledger_pb2.Evidence:
        """Register evidence; the same fingerprint gives the same evidence."""
        request = evidence_pb2.RegisterEvidenceRequest(
            project=project_name(project), request_id=request_id or new_id(), evidence=draft
        )
        return (await self._call(self._evidence.RegisterEvidence, request)).evidence

    async def record_verification(
        self,
        evidence: str,
        state: ledger_pb2.VerificationState.ValueType,
        *,
        method: str,
        request_id: str | None = None,
    ) -> ledger_pb2.Evidence:
        """Record what was found at the source of an evidence."""
        request = evidence_pb2.RecordVerificationRequest(
            evidence=evidence, request_id=request_id or new_id(), state=state, method=method
        )
        return (await self._call(self._evidence.RecordVerification, request)).evidence

    # --- Retrieval --------------------------------------------------------------------------------------------------

    def search_request(
        self,
        project: str,
        text: str,
        *,
        branch: str = "",
        valid_at: datetime | None = None,
        known_at: datetime | None = None,
        scopes: Sequence[ledger_pb2.Scope.ValueType] = (),
        categories: Sequence[ledger_pb2.Category.ValueType] = (),
        states: Sequence[ledger_pb2.State.ValueType] = (),
        limit: int = 0,
        profile: str = "",
        min_evidence: int = 0,
        verified_evidence_only: bool = False,
        include_rejected: bool = False,
        branches: Sequence[index_pb2.SearchBranch.ValueType] = (),
    ) -> retrieval_pb2.SearchRequest:
        """Return the request of a search that sees this client's own writes."""
        return retrieval_pb2.SearchRequest(
            project=project_name(project),
            text=text,
            branch=branch,
            valid_at=_stamp(valid_at),
            known_at=_stamp(known_at),
            scopes=scopes,
            categories=categories,
            states=states,
            limit=limit,
            profile=profile,
            consistency=None if known_at is not None else self.consistency(project),
            branches=branches,
            include_rejected=include_rejected,
            min_evidence=min_evidence,
            verified_evidence_only=verified_evidence_only,
        )

    async def search(self, project: str, text: str, **options: Any) -> retrieval_pb2.SearchResponse:
        """Search the memory of a project; the options are those of :meth:`search_request`."""
        return await self.send_search(self.search_request(project, text, **options))

    async def send_search(self, request: retrieval_pb2.SearchRequest) -> retrieval_pb2.SearchResponse:
        """Send a search as it is."""
        return await self._call(self._retrieval.Search, request)

    async def context(
        self, project: str, text: str, *, token_budget: int = 0, **options: Any
    ) -> retrieval_pb2.GetContextResponse:
        """Return the hits of a search as a text for a prompt."""
        search = self.search_request(project, text, **options)
        request = retrieval_pb2.GetContextRequest(search=search, token_budget=token_budget)
        return await self._call(self._retrieval.GetContext, request)

    async def profiles(self) -> Sequence[retrieval_pb2.Profile]:
        """Return the ranking profiles."""
        response = await self._call(self._retrieval.ListProfiles, retrieval_pb2.ListProfilesRequest())
        return list(response.profiles)

    # --- Ingest -----------------------------------------------------------------------------------------------------

    async def ingest(
        self,
        project: str,
        observations: AsyncIterable[ingest_pb2.RawObservation] | Iterable[ingest_pb2.RawObservation],
        *,
        branch: str = "",
        apply_approved: bool = True,
    ) -> AsyncIterator[ingest_pb2.IngestObservationsResponse]:
        """Send observations and yield their outcomes as they come; ``sequence`` counts from 1."""

        async def requests() -> AsyncIterator[ingest_pb2.IngestObservationsRequest]:
            sequence = 0
            async for observation in _each(observations):
                sequence += 1
                yield ingest_pb2.IngestObservationsRequest(
                    project=project_name(project),
                    branch=branch,
                    sequence=sequence,
                    observation=observation,
                    apply_approved=apply_approved,
                )

        call = self._ingest.IngestObservations(requests())
        async for outcome in self._stream(call):
            yield outcome

    async def propose_memory(
        self,
        project: str,
        candidate: ingest_pb2.CandidateInput,
        *,
        reason: str,
        branch: str = "",
        request_id: str | None = None,
    ) -> ingest_pb2.ProposeMemoryResponse:
        """Propose a memory of the caller's own wording through all gates: the write path of agents."""
        request = ingest_pb2.ProposeMemoryRequest(
            project=project_name(project),
            request_id=request_id or new_id(),
            branch=branch,
            candidate=candidate,
            reason=reason,
        )
        return await self._call(self._ingest.ProposeMemory, request)

    async def evaluate_candidate(
        self, project: str, candidate: ingest_pb2.CandidateInput, *, branch: str = ""
    ) -> ingest_pb2.EvaluateCandidateResponse:
        """Run a candidate through all gates; nothing is stored."""
        request = ingest_pb2.EvaluateCandidateRequest(project=project_name(project), branch=branch, candidate=candidate)
        return await self._call(self._ingest.EvaluateCandidate, request)

    async def sanitize(self, text: str) -> ingest_pb2.SanitizeTextResponse:
        """Return what sanitising makes of a text; nothing is stored."""
        return await self._call(self._ingest.SanitizeText, ingest_pb2.SanitizeTextRequest(text=text))

    async def observations(
        self, project: str, *, outcomes: Sequence[observation_pb2.AdmissionOutcome.ValueType] = ()
    ) -> AsyncIterator[observation_pb2.Observation]:
        """Yield observations with their latest admission, oldest first."""
        page = ""
        while True:
            response = await self._call(
                self._observations.ListObservations,
                observation_pb2.ListObservationsRequest(
                    project=project_name(project), outcomes=outcomes, page_size=_PAGE, page_token=page
                ),
            )
            for observation in response.observations:
                yield observation
            page = response.next_page_token
            if not page:
                return

    # --- Index ------------------------------------------------------------------------------------------------------

    async def index_status(self, project: str) -> index_pb2.GetIndexStatusResponse:
        """Return what the index holds, how far behind it is and what is wrong."""
        request = index_pb2.GetIndexStatusRequest(project=project_name(project))
        return await self._call(self._index.GetIndexStatus, request)

    async def wait_for_index(
        self, project: str, *, calibrated_branch: str = "", timeout_seconds: float = LONG_TIMEOUT_SECONDS
    ) -> index_pb2.GetIndexStatusResponse:
        """Return the status once every commit of now is in the index.

        Args:
            project: The project.
            calibrated_branch: Wait also until the off-topic bank has been asked of what this branch holds: before
                that a search abstains by the release's average of other corpora.
            timeout_seconds: How long at most.

        Raises:
            DomainError: DEADLINE, when it is not within the time.
        """
        deadline = time.monotonic() + timeout_seconds
        target: int | None = None
        while True:
            status = await self.index_status(project)
            target = status.ledger_position if target is None else target
            ready = not calibrated_branch or calibrated_branch in status.calibrated_branches
            if status.applied_position >= target and ready:
                return status
            if time.monotonic() >= deadline:
                raise deadline_exceeded()
            await asyncio.sleep(_POLL_SECONDS)

    async def search_candidates(self, request: index_pb2.SearchCandidatesRequest) -> index_pb2.SearchCandidatesResponse:
        """Find candidates; for evaluation and debugging, since nothing has checked them."""
        return await self._call(self._index.SearchCandidates, request)

    async def find_similar(self, request: index_pb2.FindSimilarRequest) -> index_pb2.FindSimilarResponse:
        """Find heads that say nearly the same as a text."""
        return await self._call(self._index.FindSimilar, request)

    async def rebuild_index(self, project: str, *, request_id: str | None = None) -> index_pb2.Rebuild:
        """Start a rebuild; it goes on without the caller."""
        request = index_pb2.RebuildIndexRequest(project=project_name(project), request_id=request_id or new_id())
        return (await self._call(self._index.RebuildIndex, request)).rebuild

    async def get_rebuild(self, project: str, rebuild: str) -> index_pb2.Rebuild:
        """Return the progress of a rebuild."""
        request = index_pb2.GetRebuildRequest(project=project_name(project), name=rebuild)
        return (await self._call(self._index.GetRebuild, request)).rebuild

    async def verify_index(self, project: str, *, repair: bool = False) -> AsyncIterator[index_pb2.VerifyIndexResponse]:
        """Compare index and ledger in both directions; the last message has the summary."""
        call = self._index.VerifyIndex(index_pb2.VerifyIndexRequest(project=project_name(project), repair=repair))
        async for message in self._stream(call):
            yield message


async def _each(items: AsyncIterable[T] | Iterable[T]) -> AsyncIterator[T]:
    if isinstance(items, AsyncIterable):
        async for item in items:
            yield item
    else:
        for item in items:
            yield item
            # A plain iterable must not keep the loop from reading the outcomes.
            await asyncio.sleep(0)


async def _first(items: AsyncIterator[T]) -> AsyncIterator[T]:
    try:
        yield await anext(items)
    except StopAsyncIteration:
        return


class SyncDecisionsClient:
    """The same client for code without an event loop: it runs one in a thread of its own.

    with SyncDecisionsClient.open("127.0.0.1:7420", token) as client:
        answer = client.call(lambda c: c.search("billing", "How long may a refund take?"))
        waiting = list(client.iterate(lambda c: c.proposals("billing")))
    """

    def __init__(self, endpoints: Endpoints, token: str, **settings: Any) -> None:
        """Start the loop and prepare the client; the settings are those of :class:`DecisionsClient`."""
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="dsearch-client", daemon=True)
        self._thread.start()
        self._client = self._run(self._make(endpoints, token, settings))

    @staticmethod
    async def _make(endpoints: Endpoints, token: str, settings: Mapping[str, Any]) -> DecisionsClient:
        return DecisionsClient(endpoints, token, **settings)

    @classmethod
    def open(cls, target: str, token: str, **settings: Any) -> Self:
        """Return a client of a server that hosts all four services."""
        return cls(Endpoints.parse(target), token, **settings)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the channels and end the thread."""
        if self._loop.is_closed():
            return
        self._run(self._client.close())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def call(self, make: Callable[[DecisionsClient], Awaitable[T]]) -> T:
        """Return the result of a call of the asynchronous client."""

        async def run() -> T:
            return await make(self._client)

        return self._run(run())

    def iterate(self, make: Callable[[DecisionsClient], AsyncIterator[T]]) -> Iterator[T]:
        """Yield the items of an iterator of the asynchronous client."""
        items = make(self._client)

        async def step() -> list[T]:
            return [item async for item in _first(items)]

        while step_items := self._run(step()):
            yield from step_items

    def _run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop).result()
