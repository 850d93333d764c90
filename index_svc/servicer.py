"""The gRPC face of the index: checks requests, translates, decides nothing."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from datetime import datetime
from typing import Any, Final

import grpc.aio
from decisionssearch.index.v1 import index_service_pb2, index_service_pb2_grpc
from decisionssearch.ledger.v1 import ledger_pb2
from google.protobuf.duration_pb2 import Duration

from index_svc.domain import FAR_FUTURE, FAR_PAST
from index_svc.ledger_client import LedgerClient
from index_svc.projects import Projects
from index_svc.rebuild import Run
from index_svc.recipe import MemoryText, embedding_text
from index_svc.search import Failure, Way
from index_svc.service import Candidate, GivenVector, IndexService, MeasuredSupport, Search
from index_svc.verify import Drift
from service_kit import ledger_token
from service_kit.checks import FieldChecks
from service_kit.clock import to_timestamp
from service_kit.context import current_principal
from service_kit.limits import Limits
from service_kit.principals import Role, require
from service_kit.sanitising.messages import check_identifier

MAX_QUESTION_CHARS: Final = 10_000
MAX_DIMENSIONS: Final = 4_096
MAX_SIMILAR_TEXTS: Final = 64
MAX_SIMILAR_CHARS: Final = 65_536
MAX_REQUEST_ID_CHARS: Final = 128
MAX_RUN_NAME_CHARS: Final = 64

LIMITS: Final = Limits(list_lengths={"decisionssearch.index.v1.QueryVector.values": MAX_DIMENSIONS})
"""Request limits of this service, for the boundary in front of it."""

_WAYS: Final = {
    index_service_pb2.SEARCH_BRANCH_DENSE: Way.DENSE,
    index_service_pb2.SEARCH_BRANCH_SPARSE: Way.SPARSE,
    index_service_pb2.SEARCH_BRANCH_STRUCTURAL: Way.STRUCTURAL,
}
_BRANCHES: Final = {way: branch for branch, way in _WAYS.items()}
_OPEN_ENDS: Final = frozenset({FAR_PAST, FAR_FUTURE})

Context = grpc.aio.ServicerContext[Any, Any]


class IndexServicer(index_service_pb2_grpc.IndexServiceServicer):
    """Implements ``decisionssearch.index.v1.IndexService``."""

    def __init__(self, service: IndexService, ledger: LedgerClient) -> None:
        self._service = service
        self._ledger = ledger
        self._projects = Projects(ledger, service.holds)

    async def SearchCandidates(  # noqa: N802 - gRPC's name
        self, request: index_service_pb2.SearchCandidatesRequest, context: Context
    ) -> index_service_pb2.SearchCandidatesResponse:
        """Find candidates for a question."""
        del context
        search = _search_of(request)
        await self._projects.enter(current_principal(), search.project, Role.READER)
        answer = await self._service.search(search)
        return index_service_pb2.SearchCandidatesResponse(
            candidates=[_candidate(c) for c in answer.candidates],
            support=_support(answer.support) if answer.support is not None else None,
            applied_position=answer.applied_position,
            degraded=[_degradation(f) for f in answer.failures],
            model=answer.model,
            heads=answer.heads,
        )

    async def FindSimilar(  # noqa: N802 - gRPC's name
        self, request: index_service_pb2.FindSimilarRequest, context: Context
    ) -> index_service_pb2.FindSimilarResponse:
        """Find heads that say nearly the same as each text."""
        del context
        checks = FieldChecks()
        project = _project(checks, request.project)
        branch = checks.branch(request.branch)
        checks.count("texts", request.texts, at_least=1, at_most=MAX_SIMILAR_TEXTS)
        for i, text in enumerate(request.texts):
            said = text.title + text.summary + text.details
            checks.must(bool(said.strip()), f"texts[{i}]", "must have a title, summary or details")
            checks.must(len(said) <= MAX_SIMILAR_CHARS, f"texts[{i}]", f"is longer than {MAX_SIMILAR_CHARS} characters")
        limit = checks.page_size(request.limit, field="limit", default=3, at_most=20)
        category = checks.optional_enum("category", request.category, ledger_pb2.Category)
        checks.raise_if_any()
        await self._projects.enter(current_principal(), project or "", Role.READER)
        answer = await self._service.similar(
            project or "",
            branch or "",
            [embedding_text(MemoryText(t.title, t.summary, t.details)) for t in request.texts],
            limit=limit,
            category=(category or "").removeprefix("CATEGORY_") if request.category else "",
        )
        return index_service_pb2.FindSimilarResponse(
            results=[
                index_service_pb2.Neighbours(
                    neighbours=[
                        index_service_pb2.Neighbour(
                            family=hit.point.family,
                            revision=hit.point.revision,
                            similarity=hit.score,
                            content_hash=hit.point.content_hash,
                        )
                        for hit in hits
                    ]
                )
                for hits in answer.neighbours
            ],
            model=answer.model,
            applied_position=answer.applied_position,
        )

    async def GetIndexStatus(  # noqa: N802 - gRPC's name
        self, request: index_service_pb2.GetIndexStatusRequest, context: Context
    ) -> index_service_pb2.GetIndexStatusResponse:
        """Say what the index holds, how far behind it is and what is wrong."""
        del context
        checks = FieldChecks()
        project = _project(checks, request.project)
        checks.raise_if_any()
        await self._projects.enter(current_principal(), project or "", Role.READER)
        status = await self._service.status(project or "")
        lag = Duration()
        lag.FromTimedelta(status.lag)
        return index_service_pb2.GetIndexStatusResponse(
            applied_position=status.applied_position,
            ledger_position=status.ledger_position,
            lag=lag,
            dead_letters=status.dead_letters,
            model=status.model,
            dimensions=status.dimensions,
            recipe=status.recipe,
            collection=status.collection,
            points=status.points,
            heads=status.heads,
            degraded=[_degradation(f) for f in status.problems],
            rebuild=status.rebuild,
            calibrated_branches=status.calibrated_branches,
        )

    async def RebuildIndex(  # noqa: N802 - gRPC's name
        self, request: index_service_pb2.RebuildIndexRequest, context: Context
    ) -> index_service_pb2.RebuildIndexResponse:
        """Start a rebuild."""
        del context
        checks = FieldChecks()
        project = _project(checks, request.project, Role.ADMIN)
        if checks.required("request_id", request.request_id):
            checks.length("request_id", request.request_id, at_most=MAX_REQUEST_ID_CHARS)
            check_identifier(checks, "request_id", request.request_id)
        checks.raise_if_any()
        await self._projects.enter(current_principal(), project or "", Role.ADMIN)
        run = self._service.rebuild(request.request_id, current_principal().id)
        return index_service_pb2.RebuildIndexResponse(rebuild=_rebuild(run))

    async def GetRebuild(  # noqa: N802 - gRPC's name
        self, request: index_service_pb2.GetRebuildRequest, context: Context
    ) -> index_service_pb2.GetRebuildResponse:
        """Return the progress of a rebuild."""
        del context
        checks = FieldChecks()
        project = _project(checks, request.project, Role.ADMIN)
        if checks.required("name", request.name) and checks.length("name", request.name, at_most=MAX_RUN_NAME_CHARS):
            checks.must(request.name.startswith("rebuilds/"), "name", "must be a name like rebuilds/{id}")
        checks.raise_if_any()
        await self._projects.enter(current_principal(), project or "", Role.ADMIN)
        return index_service_pb2.GetRebuildResponse(rebuild=_rebuild(self._service.get_rebuild(request.name)))

    async def VerifyIndex(  # noqa: N802 - gRPC's name
        self, request: index_service_pb2.VerifyIndexRequest, context: Context
    ) -> AsyncIterator[index_service_pb2.VerifyIndexResponse]:
        """Stream the differences between index and ledger."""
        del context
        checks = FieldChecks()
        project = _project(checks, request.project, Role.ADMIN) or ""
        checks.raise_if_any()
        await self._projects.enter(current_principal(), project, Role.ADMIN)
        async for progress in self._service.verify(project, repair=request.repair):
            response = index_service_pb2.VerifyIndexResponse(
                checked=progress.checked,
                drifts=[_drift(d) for d in progress.drifts],
                done=progress.done,
                total_drifts=progress.total_drifts,
                repaired=progress.repaired,
            )
            if progress.done:
                ledger_id = await self._ledger.ledger_id()
                response.token.CopyFrom(ledger_token.encode(ledger_id, project, progress.position))
            yield response


def _project(checks: FieldChecks, name: str, role: Role = Role.READER) -> str | None:
    """Return the id of the project when the caller holds the role in it; refuse the call otherwise, whatever exists."""
    project = checks.project(name)
    if project is None:
        # Whoever may do nothing anywhere learns nothing about what is wrong with the request either.
        current_principal()
        return None
    require(current_principal(), project, role)
    return project


def _search_of(request: index_service_pb2.SearchCandidatesRequest) -> Search:
    checks = FieldChecks()
    project = _project(checks, request.project)
    branch = checks.branch(request.branch)
    if checks.required("text", request.text):
        checks.length("text", request.text, at_most=MAX_QUESTION_CHARS)
    vector = None
    if request.HasField("query_vector"):
        given = request.query_vector
        checks.required("query_vector.model", given.model)
        checks.required("query_vector.values", given.values)
        vector = GivenVector(given.model, given.values)
    ways = []
    for i, number in enumerate(request.branches):
        if checks.enum(f"branches[{i}]", number, index_service_pb2.SearchBranch) is not None:
            ways.append(_WAYS[number])
    limit = checks.page_size(request.limit, field="limit", default=50, at_most=500)
    valid_at = checks.timestamp(request, "valid_at")
    known_at = checks.timestamp(request, "known_at")
    scopes = _names(checks, "scopes", request.scopes, ledger_pb2.Scope, "SCOPE_")
    categories = _names(checks, "categories", request.categories, ledger_pb2.Category, "CATEGORY_")
    checks.raise_if_any()
    return Search(
        project=project or "",
        branch=branch or "",
        text=request.text,
        vector=vector,
        ways=frozenset(ways) or frozenset(Way),
        limit=limit,
        valid_at=valid_at,
        known_at=known_at,
        scopes=scopes,
        categories=categories,
        measure_support=request.measure_support,
        in_force_only=request.in_force_only,
    )


def _names(checks: FieldChecks, field: str, numbers: Sequence[int], enum: Any, prefix: str) -> tuple[str, ...]:
    checks.count(field, numbers, at_most=len(enum.values()))
    found = [checks.enum(f"{field}[{i}]", number, enum) for i, number in enumerate(numbers)]
    return tuple(dict.fromkeys(name.removeprefix(prefix) for name in found if name is not None))


def _candidate(candidate: Candidate) -> index_service_pb2.Candidate:
    found = candidate.found
    point, scores = found.point, found.scores
    message = index_service_pb2.Candidate(
        family=point.family,
        revision=point.revision,
        content_hash=point.content_hash,
        position=point.position,
        is_head=point.role == "HEAD",
        in_force=candidate.in_force,
        structural=found.structural,
        found_by=[_BRANCHES[way] for way in found.found_by],
        importance=point.importance,
    )
    if scores is not None:
        message.sparse = scores.sparse
        if scores.dense is not None:
            message.dense = scores.dense
        if scores.centred is not None:
            message.centred = scores.centred
    if point.valid_from not in _OPEN_ENDS:
        # Stored in microseconds, as many as there are candidates: no need to pass by a datetime.
        seconds, rest = divmod(point.valid_from, 1_000_000)
        message.valid_from.seconds, message.valid_from.nanos = seconds, rest * 1_000
    return message


def _support(measured: MeasuredSupport) -> index_service_pb2.Support:
    support, baseline = measured.support, measured.baseline
    return index_service_pb2.Support(
        sentence=support.sent,
        centred=support.cc,
        late=support.late,
        total=support.total,
        baseline_mean=baseline.mean,
        baseline_deviation=baseline.deviation,
        calibrated=measured.calibrated,
        version=measured.version,
    )


def _degradation(failure: Failure) -> index_service_pb2.Degradation:
    return index_service_pb2.Degradation(part=str(failure.part), reason=failure.reason)


def _rebuild(run: Run) -> index_service_pb2.Rebuild:
    message = index_service_pb2.Rebuild(
        name=run.name,
        state=index_service_pb2.RebuildState.Value(f"REBUILD_STATE_{run.state.value}"),
        done=run.done,
        total=run.total,
        collection=run.collection,
        error=run.error,
        start_time=to_timestamp(run.started_at),
    )
    ended: datetime | None = run.ended_at
    if ended is not None:
        message.end_time.CopyFrom(to_timestamp(ended))
    return message


def _drift(drift: Drift) -> index_service_pb2.Drift:
    return index_service_pb2.Drift(
        kind=index_service_pb2.DriftKind.Value(f"DRIFT_KIND_{drift.kind.value}"),
        revision=drift.revision,
        branch=drift.branch,
        detail=drift.detail,
    )
