"""The index as retrieval sees it: the port, and its adapter over gRPC. It is believed in nothing but scores."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Final, Protocol

import grpc.aio
from decisionssearch.index.v1 import index_service_pb2 as pb
from decisionssearch.index.v1 import index_service_pb2_grpc

from retrieval_svc.domain import Branch, Candidate, Degradation, IndexAnswer, Question, Support
from service_kit.clock import to_timestamp
from service_kit.errors import from_rpc_error

MAX_CANDIDATES: Final = 500
"""Candidates per way that one call may ask for."""

_BRANCHES: Final[Mapping[Branch, pb.SearchBranch.ValueType]] = {
    Branch.DENSE: pb.SEARCH_BRANCH_DENSE,
    Branch.SPARSE: pb.SEARCH_BRANCH_SPARSE,
    Branch.STRUCTURAL: pb.SEARCH_BRANCH_STRUCTURAL,
}


class CandidateSource(Protocol):
    """What finds candidates."""

    async def search(
        self,
        question: Question,
        branches: Sequence[Branch],
        *,
        limit: int,
        in_force_only: bool,
        measure_support: bool,
        timeout_seconds: float,
    ) -> IndexAnswer:
        """Return candidates for a question.

        Raises:
            DomainError: The index refused or did not answer in time.
        """


class GrpcCandidateSource:
    """The port over gRPC. The channel passes on the caller's token; closing it is its maker's task."""

    def __init__(self, channel: grpc.aio.Channel) -> None:
        self._stub = index_service_pb2_grpc.IndexServiceStub(channel)

    async def search(
        self,
        question: Question,
        branches: Sequence[Branch],
        *,
        limit: int,
        in_force_only: bool,
        measure_support: bool,
        timeout_seconds: float,
    ) -> IndexAnswer:
        """Return candidates for a question."""
        request = pb.SearchCandidatesRequest(
            project=f"projects/{question.project}",
            branch=question.branch,
            text=question.text,
            branches=[_BRANCHES[b] for b in branches],
            limit=limit,
            # The generated types list the values of an enum; these were checked to be among them.
            scopes=sorted(question.scopes),  # type: ignore[arg-type]
            categories=sorted(question.categories),  # type: ignore[arg-type]
            measure_support=measure_support,
            in_force_only=in_force_only,
        )
        if question.vector is not None:
            request.query_vector.model = question.vector.model
            request.query_vector.values.extend(question.vector.values)
        if question.valid_at is not None:
            request.valid_at.CopyFrom(to_timestamp(question.valid_at))
        if question.known_at is not None:
            request.known_at.CopyFrom(to_timestamp(question.known_at))
        try:
            # A dead index is answered for at once: the ledger stands in, and that needs the time.
            response = await self._stub.SearchCandidates(request, timeout=timeout_seconds, wait_for_ready=False)
        except grpc.aio.AioRpcError as error:
            raise from_rpc_error(error, "index") from None
        return _answer(response, limit)


def _answer(response: pb.SearchCandidatesResponse, limit: int) -> IndexAnswer:
    found_by: Counter[int] = Counter()
    candidates = []
    for message in response.candidates:
        found_by.update(message.found_by)
        candidates.append(_candidate(message))
    full = any(count >= limit for count in found_by.values()) or (not found_by and len(candidates) >= limit)
    return IndexAnswer(
        candidates=tuple(candidates),
        support=_support(response.support) if response.HasField("support") else None,
        applied_position=response.applied_position,
        degraded=tuple(Degradation(d.part, d.reason) for d in response.degraded),
        exhausted=not full,
    )


def _candidate(message: pb.Candidate) -> Candidate:
    return Candidate(
        family=message.family,
        revision=message.revision,
        content_hash=message.content_hash,
        dense=message.dense if message.HasField("dense") else None,
        sparse=message.sparse if message.HasField("sparse") else None,
        structural=tuple(message.structural),
        importance=message.importance,
        valid_from=message.valid_from.seconds + message.valid_from.nanos / 1e9
        if message.HasField("valid_from")
        else None,
    )


def _support(message: pb.Support) -> Support:
    return Support(
        sentence=message.sentence,
        centred=message.centred,
        late=message.late,
        total=message.total,
        baseline_mean=message.baseline_mean,
        baseline_deviation=message.baseline_deviation,
        calibrated=message.calibrated,
        version=message.version,
        source=message,
    )
