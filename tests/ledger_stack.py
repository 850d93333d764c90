"""A real ledger server over loopback, with principals of every kind and short cuts through governance."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import grpc
from decisionssearch.ledger.v1 import (
    admin_service_pb2,
    admin_service_pb2_grpc,
    evidence_service_pb2_grpc,
    ledger_pb2,
    ledger_service_pb2,
    ledger_service_pb2_grpc,
    observation_service_pb2_grpc,
    outbox_service_pb2_grpc,
    proposal_pb2,
    proposal_service_pb2,
    proposal_service_pb2_grpc,
)
from google.protobuf.timestamp_pb2 import Timestamp

from ledger_svc.app import LIMITS, LedgerApp, create_app
from ledger_svc.settings import LedgerSettings
from ledger_svc.store import LedgerStore
from ledger_svc.store_sqlite import SqliteLedgerStore
from service_kit.boundary import Boundary
from service_kit.clients import connect
from service_kit.clock import Clock
from service_kit.errors import DomainError, from_rpc_error, unauthenticated
from service_kit.ids import new_id
from service_kit.principals import Kind, Principal, Role, grant
from service_kit.serving import Host

PROJECT = "billing"
FOREIGN = "payroll"
START = datetime(2026, 1, 1, tzinfo=UTC)


class TickingClock:
    """A clock that moves a millisecond at every look, and more when told to: no two instants are equal."""

    def __init__(self, start: datetime = START) -> None:
        self.present = start

    def now(self) -> datetime:
        """The next instant."""
        self.present += timedelta(milliseconds=1)
        return self.present

    def advance(self, by: timedelta) -> datetime:
        """Move on."""
        self.present += by
        return self.present


def _who(subject: str, kind: Kind, *roles: Role, project: str = PROJECT, on_behalf_of: str = "") -> Principal:
    return Principal("local", subject, kind, on_behalf_of, (grant(project, roles),))


PRINCIPALS = {
    "root": _who("root", Kind.HUMAN, Role.ADMIN, project="*"),
    "admin": _who("ada", Kind.HUMAN, Role.ADMIN),
    "ana": _who("ana", Kind.HUMAN, Role.PROPOSER),
    "rui": _who("rui", Kind.HUMAN, Role.REVIEWER),
    "eva": _who("eva", Kind.HUMAN, Role.REVIEWER),
    "both": _who("bob", Kind.HUMAN, Role.PROPOSER, Role.REVIEWER),
    "agent": _who("agent-7", Kind.AGENT, Role.PROPOSER, on_behalf_of="eva"),
    "agent-reviewer": _who("agent-8", Kind.AGENT, Role.REVIEWER, on_behalf_of="zoe"),
    "importer": _who("importer", Kind.SERVICE, Role.PROPOSER),
    "reader": _who("rita", Kind.HUMAN, Role.READER),
    "indexer": _who("indexer", Kind.SERVICE, Role.ADMIN, project="*"),
    "stranger": _who("sam", Kind.HUMAN, Role.ADMIN, Role.PROPOSER, Role.REVIEWER, project=FOREIGN),
}


class Tokens:
    """Every principal's token is its name."""

    async def authenticate(self, token: str) -> Principal:
        """Whose token it is."""
        found = PRINCIPALS.get(token)
        if found is None:
            raise unauthenticated()
        return found


def stamp(moment: datetime | None) -> Timestamp | None:
    """The message of an instant."""
    if moment is None:
        return None
    made = Timestamp()
    made.FromDatetime(moment.astimezone(UTC))
    return made


def rule_content(title: str = "Invoices are immutable", **more: Any) -> ledger_pb2.Content:
    """Content that a DESIGN_RULE accepts."""
    return ledger_pb2.Content(title=title, summary=f"{title}, always.", importance=0.5, **more)


def evidence_input(locator: str = "git:ba4deeb7:docs/adr/0007.md", **more: Any) -> proposal_pb2.EvidenceInput:
    """Evidence that supports."""
    draft = ledger_pb2.EvidenceDraft(
        source_kind=ledger_pb2.SOURCE_KIND_ADR,
        locator=locator,
        excerpt="We decided so.",
        extractor="structured/adr@1",
        reliability=0.9,
    )
    fields = {"draft": draft, "stance": ledger_pb2.STANCE_SUPPORTS, "confidence": 0.9, **more}
    return proposal_pb2.EvidenceInput(**fields)


@dataclass(slots=True)
class Client:
    """All stubs of the ledger on one channel, for one principal."""

    channel: grpc.aio.Channel
    ledger: Any = field(init=False)
    proposals: Any = field(init=False)
    evidence: Any = field(init=False)
    observations: Any = field(init=False)
    outbox: Any = field(init=False)
    admin: Any = field(init=False)

    def __post_init__(self) -> None:
        self.ledger = ledger_service_pb2_grpc.LedgerServiceStub(self.channel)
        self.proposals = proposal_service_pb2_grpc.ProposalServiceStub(self.channel)
        self.evidence = evidence_service_pb2_grpc.EvidenceServiceStub(self.channel)
        self.observations = observation_service_pb2_grpc.ObservationServiceStub(self.channel)
        self.outbox = outbox_service_pb2_grpc.OutboxServiceStub(self.channel)
        self.admin = admin_service_pb2_grpc.AdminServiceStub(self.channel)


@dataclass(slots=True)
class Stack:
    """A running ledger."""

    address: str
    app: LedgerApp
    host: Host
    clock: Any
    _clients: dict[str, Client] = field(default_factory=dict)

    @property
    def store(self) -> LedgerStore:
        """The store below."""
        return self.app.store

    def as_(self, who: str) -> Client:
        """The stubs for a principal."""
        if who not in self._clients:
            self._clients[who] = Client(connect(self.address, token=lambda: who, timeout_seconds=30.0))
        return self._clients[who]

    async def close_clients(self) -> None:
        """Close all channels."""
        for client in self._clients.values():
            await client.channel.close()

    # --- Short cuts ---------------------------------------------------------------------------------------------------

    async def make_project(self, project: str = PROJECT, policy: admin_service_pb2.Policy | None = None) -> Any:
        """Make a project as root."""
        request = admin_service_pb2.CreateProjectRequest(
            name=f"projects/{project}", request_id=new_id(), display_name=project.title(), policy=policy
        )
        return (await self.as_("root").admin.CreateProject(request)).project

    async def propose(
        self,
        mutation: proposal_pb2.Mutation,
        *,
        who: str = "ana",
        project: str = PROJECT,
        branch: str = "",
        evidence: Sequence[proposal_pb2.EvidenceInput] | None = None,
        reason: str = "because",
        **more: Any,
    ) -> proposal_pb2.Proposal:
        """Propose."""
        request = proposal_service_pb2.CreateProposalRequest(
            project=f"projects/{project}",
            request_id=new_id(),
            branch=branch,
            mutation=mutation,
            evidence=[evidence_input()] if evidence is None else evidence,
            reason=reason,
            **more,
        )
        made: proposal_pb2.Proposal = (await self.as_(who).proposals.CreateProposal(request)).proposal
        return made

    async def approve(self, proposal: proposal_pb2.Proposal, *, who: str = "rui") -> Any:
        """Approve the bytes that the proposal shows."""
        return await self.as_(who).proposals.ApproveProposal(
            proposal_service_pb2.ApproveProposalRequest(
                proposal=proposal.name, request_id=new_id(), preview_hash=proposal.preview_hash
            )
        )

    async def apply(self, proposal: proposal_pb2.Proposal, *, who: str = "ana") -> Any:
        """Apply."""
        return await self.as_(who).proposals.ApplyProposal(
            proposal_service_pb2.ApplyProposalRequest(proposal=proposal.name, request_id=new_id())
        )

    async def publish(self, mutation: proposal_pb2.Mutation, **more: Any) -> Any:
        """Propose, approve, apply."""
        proposal = await self.propose(mutation, **more)
        await self.approve(proposal)
        return await self.apply(proposal)

    async def create(
        self, title: str = "Invoices are immutable", *, key: str = "", project: str = PROJECT, **more: Any
    ) -> Any:
        """Publish a new DESIGN_RULE."""
        times = {name: more.pop(name) for name in ("valid_from", "valid_to") if name in more}
        return await self.publish(create_rule(title, key=key, **times), project=project, **more)

    async def head(self, family: str, *, who: str = "reader", **more: Any) -> ledger_pb2.Head:
        """Read one head."""
        request = ledger_service_pb2.GetHeadRequest(family=family, **more)
        found: ledger_pb2.Head = (await self.as_(who).ledger.GetHead(request)).head
        return found


def create_rule(
    title: str = "Invoices are immutable",
    *,
    key: str = "",
    valid_from: datetime | None = None,
    valid_to: datetime | None = None,
    category: Any = ledger_pb2.CATEGORY_DESIGN_RULE,
    **content: Any,
) -> proposal_pb2.Mutation:
    """The mutation that makes a DESIGN_RULE."""
    return proposal_pb2.Mutation(
        create=proposal_pb2.CreateMutation(
            identity_key=key,
            category=category,
            content=rule_content(title, **content),
            valid_from=stamp(valid_from),
            valid_to=stamp(valid_to),
        )
    )


def supersede(family: str, title: str, valid_from: datetime | None = None) -> proposal_pb2.Mutation:
    """The mutation that decides otherwise."""
    return proposal_pb2.Mutation(
        supersede=proposal_pb2.SupersedeMutation(
            family=family, content=rule_content(title), valid_from=stamp(valid_from)
        )
    )


@asynccontextmanager
async def running(
    database: Path | str = ":memory:", clock: Clock | None = None, **settings: Any
) -> AsyncIterator[Stack]:
    """A ledger server for the duration of a block."""
    own = clock or TickingClock()
    made = LedgerSettings.model_construct(
        **{**{name: f.default for name, f in LedgerSettings.model_fields.items()}, **settings}
    )
    async with Host(grace_seconds=5.0) as host:
        store = await SqliteLedgerStore.open(database)
        app = await create_app(made, stopping=host.stopping, store=store, clock=own)
        app.add_to(host)
        server = host.serve(Boundary(Tokens(), limits=LIMITS))
        for add in app.servicers:
            add(server)
        await host.start()
        stack = Stack(server.address, app, host, own)
        try:
            yield stack
        finally:
            await stack.close_clients()


async def refusal(call: Any) -> DomainError:
    """The typed error that a call is answered with; fails when it is not refused."""
    try:
        answer = await call
    except grpc.aio.AioRpcError as error:
        return from_rpc_error(error)
    raise AssertionError(f"was not refused: {answer}")


async def eventually(condition: Any, timeout: float = 10.0) -> None:
    """Wait until an awaited condition holds."""
    async with asyncio.timeout(timeout):
        while not await condition():
            await asyncio.sleep(0.005)
