"""A ledger and an index in memory behind real aio servers, for the tests of retrieval: small, and able to lie.

The ledger keeps one timeline per family (valid time only) and answers the reads that retrieval makes. The index scores
by shared words and returns whatever the test makes of that.
"""

# ruff: noqa: N802, D102 - the methods of a servicer have the names of its RPCs, described in the contract
from __future__ import annotations

import asyncio
import hashlib
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

from decisionssearch.index.v1 import index_service_pb2 as ipb
from decisionssearch.index.v1 import index_service_pb2_grpc
from decisionssearch.ledger.v1 import ledger_pb2 as lpb
from decisionssearch.ledger.v1 import ledger_service_pb2 as lspb
from decisionssearch.ledger.v1 import ledger_service_pb2_grpc
from decisionssearch.retrieval.v1 import retrieval_service_pb2 as pb
from decisionssearch.retrieval.v1 import retrieval_service_pb2_grpc

from retrieval_svc.app import LIMITS, create_app
from retrieval_svc.index_client import GrpcCandidateSource
from retrieval_svc.ledger_client import GrpcLedgerReader
from retrieval_svc.lexical import query_terms, terms
from retrieval_svc.settings import RetrievalSettings
from service_kit import ledger_token
from service_kit.boundary import Boundary
from service_kit.clients import connect
from service_kit.clock import from_timestamp, to_timestamp
from service_kit.errors import DomainError, Reason, dependency_unavailable, invalid, unauthenticated
from service_kit.ids import new_id
from service_kit.principals import Grant, Kind, Principal, Role
from service_kit.serving import Host

PROJECT = "billing"
LEDGER_ID = "01990000-0000-7000-8000-000000000000"
TOKEN = "dst_reader"
READER = Principal("local", "ana", Kind.HUMAN, grants=(Grant(PROJECT, frozenset({Role.READER})),))
LONG_AGO = datetime(2020, 1, 1, tzinfo=UTC)


class OneReader:
    """Knows one token."""

    async def authenticate(self, token: str) -> Principal:
        """Return its owner."""
        if token != TOKEN:
            raise unauthenticated()
        return READER


@dataclass
class Row:
    """A revision and the time that it covers."""

    name: str
    content: lpb.Content
    content_hash: str
    valid_from: datetime
    valid_to: datetime | None
    reason: str


@dataclass
class Memory:
    """A family."""

    name: str
    identity_key: str
    category: lpb.Category.ValueType
    rows: list[Row] = field(default_factory=list)
    state: lpb.State.ValueType | None = None
    position: int = 0
    evidence: list[lpb.LinkedEvidence] = field(default_factory=list)


@dataclass
class Step:
    """Old was replaced by new."""

    old: str
    new: str
    time: datetime
    reason: str


class World:
    """What the ledger holds, and what the index has seen of it."""

    def __init__(self) -> None:
        self.memories: dict[str, Memory] = {}
        self.steps: list[Step] = []
        self.changes: list[tuple[str, ...]] = []
        self.applied: int | None = None
        """Position that the index claims; None is the ledger's own."""
        self.unindexed: set[str] = set()
        self.index_rows: dict[str, list[Row]] = {}
        self.lie: Callable[[list[ipb.Candidate]], list[ipb.Candidate]] = lambda c: c
        self.index_fault: Callable[[], Any] | None = None
        self.ledger_fault: Callable[[str], Any] | None = None
        self.support: ipb.Support | None = ipb.Support(total=3.0, baseline_mean=1.0, baseline_deviation=0.5)
        self.degraded: list[ipb.Degradation] = []
        self.dense = True
        self.calls: list[str] = []
        self.tokens: list[str] = []

    @property
    def position(self) -> int:
        """Newest commit."""
        return len(self.changes)

    def token(self, position: int | None = None) -> Any:
        """Return a token of the ledger."""
        return ledger_token.encode(LEDGER_ID, PROJECT, self.position if position is None else position)

    def commit(self, *families: str) -> int:
        """Record a commit."""
        self.changes.append(families)
        for family in families:
            self.memories[family].position = self.position
        return self.position

    def add(
        self,
        title: str,
        summary: str = "",
        *,
        key: str = "",
        category: lpb.Category.ValueType = lpb.CATEGORY_DESIGN_RULE,
        valid_from: datetime = LONG_AGO,
        importance: float = 0.5,
        state: lpb.State.ValueType | None = None,
        files: Sequence[str] = (),
        project: str = PROJECT,
    ) -> str:
        """Publish a new memory and return its name."""
        name = f"projects/{project}/families/{new_id()}"
        self.memories[name] = Memory(name, key, category, state=state)
        self._row(name, title, summary, valid_from, importance, files, "")
        self.commit(name)
        return name

    def revise(
        self, name: str, title: str, summary: str = "", *, valid_from: datetime | None = None, reason: str = "changed"
    ) -> str:
        """Publish another revision of a memory and return its name."""
        start = valid_from or LONG_AGO + timedelta(days=400)
        self.memories[name].rows[-1].valid_to = start
        row = self._row(name, title, summary, start, 0.5, (), reason)
        self.commit(name)
        return row.name

    def replace(self, old: str, new: str, *, reason: str = "better", time: datetime | None = None) -> None:
        """Let one memory replace another."""
        start = time or LONG_AGO + timedelta(days=500)
        self.memories[old].state = lpb.STATE_SUPERSEDED
        self.steps.append(Step(old, new, start, reason))
        self.commit(old, new)

    def set_state(self, name: str, state: lpb.State.ValueType | None) -> None:
        """Put a memory into a state."""
        self.memories[name].state = state
        self.commit(name)

    def support_evidence(self, name: str, source: str, *, verified: bool = False) -> None:
        """Link a supporting evidence."""
        state = lpb.VERIFICATION_STATE_VERIFIED if verified else lpb.VERIFICATION_STATE_UNVERIFIED
        self.memories[name].evidence.append(
            lpb.LinkedEvidence(
                link=lpb.EvidenceLink(stance=lpb.STANCE_SUPPORTS),
                evidence=lpb.Evidence(
                    name=f"projects/{PROJECT}/evidence/{new_id()}", locator=source, excerpt="x", verification=state
                ),
            )
        )

    def _row(
        self, name: str, title: str, summary: str, start: datetime, importance: float, files: Sequence[str], reason: str
    ) -> Row:
        content = lpb.Content(title=title, summary=summary, importance=importance, files=files)
        digest = f"sha256:{hashlib.sha256(content.SerializeToString()).hexdigest()}"
        row = Row(f"{name}/revisions/{new_id()}", content, digest, start, None, reason)
        self.memories[name].rows.append(row)
        return row

    # --- The ledger's answers ---------------------------------------------------------------------------------------

    def head(self, name: str, moment: datetime, view: int) -> lpb.Head | None:
        """Return a head, as the ledger would."""
        memory = self.memories.get(name)
        if memory is None:
            return None
        started = [r for r in memory.rows if r.valid_from <= moment]
        if not started:
            return None
        row = started[-1]
        covered = row.valid_to is None or moment < row.valid_to
        # A state that a replacement brought about holds from its moment on.
        began = min((s.time for s in self.steps if s.old == name), default=LONG_AGO)
        state = memory.state if memory.state is not None and moment >= began else lpb.STATE_ACTIVE
        if not covered and state == lpb.STATE_ACTIVE:
            state = lpb.STATE_EXPIRED
        head = lpb.Head(
            family=lpb.Family(
                name=name, identity_key=memory.identity_key, category=memory.category, scope=lpb.SCOPE_SEMANTIC
            ),
            branch="main",
            state=state,
            revision=lpb.Revision(name=row.name, content_hash=row.content_hash),
            valid_from=to_timestamp(row.valid_from),
            head_revision=memory.rows[-1].name,
            position=memory.position,
        )
        if row.valid_to is not None:
            head.valid_to.CopyFrom(to_timestamp(row.valid_to))
        for step in self.steps:
            if step.time > moment:
                continue
            other = {name == step.old: step.new, name == step.new: step.old}.get(True)
            if other is None:
                continue
            known = self.memories[other]
            (head.replaced_by if name == step.old else head.replaces).append(
                lpb.Replacement(
                    family=other,
                    identity_key=known.identity_key,
                    title=known.rows[-1].content.title,
                    effective_time=to_timestamp(step.time),
                    reason=step.reason,
                )
            )
        if view != lspb.HEAD_VIEW_STATE:
            head.revision.content.CopyFrom(row.content)
        if view == lspb.HEAD_VIEW_FULL:
            head.evidence.extend(memory.evidence)
            following = dict(zip([r.name for r in memory.rows], memory.rows[1:], strict=False))
            for past in reversed(started[:-1]):
                head.past.append(
                    lpb.PastRevision(
                        revision=past.name,
                        title=past.content.title,
                        valid_from=to_timestamp(past.valid_from),
                        valid_to=to_timestamp(past.valid_to) if past.valid_to else None,
                        replaced_because=following[past.name].reason,
                    )
                )
        return head


class Ledger(ledger_service_pb2_grpc.LedgerServiceServicer):
    """The reads that retrieval makes."""

    def __init__(self, world: World) -> None:
        self._world = world

    async def _enter(self, name: str, request: Any, context: Any) -> datetime:
        world = self._world
        world.calls.append(name)
        world.tokens.append(dict(context.invocation_metadata()).get("authorization", ""))
        if world.ledger_fault is not None:
            await _maybe(world.ledger_fault(name))
        if hasattr(request, "consistency") and request.consistency.HasField("at_least_as_fresh"):
            point = ledger_token.decode(request.consistency.at_least_as_fresh, "consistency")
            if point.position > world.position:
                raise DomainError(Reason.NOT_FRESH_ENOUGH, "behind")
        if hasattr(request, "valid_at") and request.HasField("valid_at"):
            return from_timestamp(request.valid_at)
        return datetime.now(UTC)

    async def BatchGetHeads(self, request: lspb.BatchGetHeadsRequest, context: Any) -> lspb.BatchGetHeadsResponse:
        view = lspb.HeadView.Name(request.view).removeprefix("HEAD_VIEW_")
        moment = await self._enter(f"BatchGetHeads:{view}", request, context)
        world, response = self._world, lspb.BatchGetHeadsResponse(token=self._world.token())
        if not 1 <= len(request.families) <= 500:
            raise invalid("families", "1 to 500 are allowed")
        if any(not f.startswith(f"{request.project}/families/") for f in request.families):
            raise invalid("families", "must be of the project")
        waiting, seen = list(request.families), set(request.families)
        while waiting:
            family = waiting.pop(0)
            head = world.head(family, moment, request.view)
            if head is None:
                response.missing_families.append(family)
                continue
            response.heads.append(head)
            for step in head.replaced_by if request.follow_replacements else ():
                if step.family not in seen:
                    seen.add(step.family)
                    waiting.append(step.family)
        return response

    async def QueryHeads(self, request: lspb.QueryHeadsRequest, context: Any) -> lspb.QueryHeadsResponse:
        moment = await self._enter("QueryHeads", request, context)
        world = self._world
        states = set(request.states) or {lpb.STATE_ACTIVE}
        found = [
            head
            for name in sorted(world.memories)
            if name.startswith(f"{request.project}/")
            and (head := world.head(name, moment, request.view)) is not None
            and head.state in states
            and (not request.categories or head.family.category in request.categories)
        ]
        start = int(request.page_token or 0)
        end = start + request.page_size
        return lspb.QueryHeadsResponse(
            heads=found[start:end], next_page_token=str(end) if end < len(found) else "", token=world.token()
        )

    async def ListChanges(self, request: lspb.ListChangesRequest, context: Any) -> lspb.ListChangesResponse:
        await self._enter("ListChanges", request, context)
        world = self._world
        rows = list(enumerate(world.changes, start=1))[request.after_position :][: request.page_size]
        return lspb.ListChangesResponse(
            changes=[lspb.Change(position=p, families=f, branch="main") for p, f in rows], head_position=world.position
        )


class Index(index_service_pb2_grpc.IndexServiceServicer):
    """Finds by shared words; lies as told."""

    def __init__(self, world: World) -> None:
        self._world = world
        self.requests: list[ipb.SearchCandidatesRequest] = []

    async def SearchCandidates(
        self, request: ipb.SearchCandidatesRequest, context: Any
    ) -> ipb.SearchCandidatesResponse:
        world = self._world
        world.calls.append("SearchCandidates")
        world.tokens.append(dict(context.invocation_metadata()).get("authorization", ""))
        self.requests.append(request)
        if world.index_fault is not None:
            await _maybe(world.index_fault())
        query = query_terms(request.text)
        moment = from_timestamp(request.valid_at) if request.HasField("valid_at") else datetime.now(UTC)
        found = []
        for memory in world.memories.values():
            if memory.name in world.unindexed:
                continue
            for row in world.index_rows.get(memory.name, memory.rows):
                text = f"{row.content.title} {row.content.summary}"
                share = sum(t in set(terms(text)) for t in query) / max(1, len(query))
                head = row is memory.rows[-1]
                live = world.head(memory.name, moment, lspb.HEAD_VIEW_STATE)
                in_force = live is not None and live.state == lpb.STATE_ACTIVE and live.revision.name == row.name
                if request.in_force_only and not in_force:
                    continue
                found.append(
                    ipb.Candidate(
                        family=memory.name,
                        revision=row.name,
                        content_hash=row.content_hash,
                        position=memory.position,
                        is_head=head,
                        in_force=in_force,
                        dense=share if world.dense else None,
                        sparse=share,
                        structural=[f"file:{f}" for f in row.content.files if f in request.text],
                        found_by=[ipb.SEARCH_BRANCH_DENSE] if world.dense else [ipb.SEARCH_BRANCH_SPARSE],
                        importance=row.content.importance,
                        valid_from=to_timestamp(row.valid_from),
                    )
                )
        found.sort(key=lambda c: (-c.sparse, c.revision))
        response = ipb.SearchCandidatesResponse(
            candidates=world.lie(found[: request.limit or 50]),
            applied_position=world.position if world.applied is None else world.applied,
            degraded=world.degraded,
            heads=len(world.memories),
        )
        if world.support is not None and request.measure_support:
            response.support.CopyFrom(world.support)
        return response


async def _maybe(value: Any) -> None:
    if asyncio.iscoroutine(value):
        await value


async def too_slow() -> None:
    """Answer long after anybody waits; ends with the call."""
    await asyncio.get_running_loop().create_future()


def gone() -> None:
    """Answer as a dead server would."""
    raise dependency_unavailable("server")


@dataclass
class Running:
    """A retrieval service over a world."""

    world: World
    index: Index
    stub: retrieval_service_pb2_grpc.RetrievalServiceStub
    settings: RetrievalSettings

    async def search(self, text: str, *, timeout: float = 10.0, **rest: Any) -> pb.SearchResponse:
        """Search the project."""
        request = pb.SearchRequest(project=f"projects/{PROJECT}", text=text, **rest)
        response: pb.SearchResponse = await self.stub.Search(request, timeout=timeout)
        return response


@asynccontextmanager
async def running(world: World | None = None, **settings: Any) -> AsyncIterator[Running]:
    """Serve a world: ledger, index and retrieval, each on a port of its own."""
    world = world or World()
    loaded = RetrievalSettings.load(**settings)
    async with Host(grace_seconds=1.0) as host:
        boundary = Boundary(OneReader(), limits=LIMITS)
        ledger_server, index_server = host.serve(boundary), host.serve(boundary)
        index = Index(world)
        ledger_server.add(ledger_service_pb2_grpc.add_LedgerServiceServicer_to_server, Ledger(world))
        index_server.add(index_service_pb2_grpc.add_IndexServiceServicer_to_server, index)
        to_ledger, to_index = connect(ledger_server.address), connect(index_server.address)
        app = await create_app(loaded, ledger=GrpcLedgerReader(to_ledger), index=GrpcCandidateSource(to_index))
        server = host.serve(boundary)
        for add in app.servicers:
            add(server)
        client = connect(server.address, token=lambda: TOKEN)
        host.on_stop("client", client.close)
        host.on_stop("ledger channel", to_ledger.close)
        host.on_stop("index channel", to_index.close)
        await host.start()
        yield Running(world, index, retrieval_service_pb2_grpc.RetrievalServiceStub(client), loaded)


def titles(response: pb.SearchResponse) -> list[str]:
    """Return the titles of the hits."""
    return [h.head.revision.content.title for h in response.hits]


def suppressed(response: pb.SearchResponse) -> dict[str, int]:
    """Return what was held back."""
    return {s.reason: s.count for s in response.suppressed}
