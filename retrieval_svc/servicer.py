"""The servicer: requests to questions, answers to responses. It decides nothing but what a well-formed request is."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Any, Final

import grpc.aio
from decisionssearch.common.v1 import common_pb2
from decisionssearch.index.v1 import index_service_pb2
from decisionssearch.ledger.v1 import ledger_pb2
from decisionssearch.retrieval.v1 import retrieval_service_pb2 as pb
from decisionssearch.retrieval.v1 import retrieval_service_pb2_grpc

from retrieval_svc.domain import (
    ANSWERS,
    AbstentionReason,
    Answer,
    Branch,
    Confidence,
    Hit,
    Origin,
    Question,
    Replaced,
    State,
    Vector,
)
from retrieval_svc.profiles import Profile
from retrieval_svc.service import RetrievalService
from service_kit import ledger_token
from service_kit.checks import FieldChecks
from service_kit.clock import to_timestamp
from service_kit.context import current_principal
from service_kit.principals import Role, require

MAX_TEXT_CHARS: Final = 10_000
MAX_LIMIT: Final = 100
MAX_VECTOR: Final = 4_096
DEFAULT_LIMIT: Final = 10
DEFAULT_TOKEN_BUDGET: Final = 2_000
MIN_TOKEN_BUDGET: Final = 100
MAX_TOKEN_BUDGET: Final = 100_000
_MAX_MODEL_CHARS: Final = 200

_REASONS: Final[Mapping[AbstentionReason, pb.AbstentionReason.ValueType]] = {
    reason: pb.AbstentionReason.Value(f"ABSTENTION_REASON_{reason.value}") for reason in AbstentionReason
}
_CONFIDENCES: Final[Mapping[Confidence, pb.AnswerConfidence.ValueType]] = {
    Confidence.NONE: pb.ANSWER_CONFIDENCE_UNSPECIFIED,
    Confidence.ANSWER: pb.ANSWER_CONFIDENCE_ANSWER,
    Confidence.CLOSEST: pb.ANSWER_CONFIDENCE_CLOSEST,
}
_ORIGINS: Final[Mapping[Origin, pb.HitOrigin.ValueType]] = {
    Origin.MATCH: pb.HIT_ORIGIN_MATCH,
    Origin.SUCCESSOR: pb.HIT_ORIGIN_SUCCESSOR,
    Origin.LEDGER_TAIL: pb.HIT_ORIGIN_LEDGER_TAIL,
}

Context = grpc.aio.ServicerContext[Any, Any]


class RetrievalServicer(retrieval_service_pb2_grpc.RetrievalServiceServicer):
    """RetrievalService over gRPC."""

    def __init__(self, service: RetrievalService) -> None:
        self._service = service

    async def Search(  # noqa: N802 - gRPC's name
        self, request: pb.SearchRequest, context: Context
    ) -> pb.SearchResponse:
        """Search the memory of a project."""
        del context
        question, profile = self._question(request, FieldChecks())
        return _response(await self._service.search(question, profile))

    async def GetContext(  # noqa: N802 - gRPC's name
        self, request: pb.GetContextRequest, context: Context
    ) -> pb.GetContextResponse:
        """Pack the hits of a search into a text."""
        del context
        checks = FieldChecks()
        budget = request.token_budget or DEFAULT_TOKEN_BUDGET
        checks.in_range("token_budget", budget, MIN_TOKEN_BUDGET, MAX_TOKEN_BUDGET)
        if not checks.present(request, "search"):
            checks.raise_if_any()
        question, profile = self._question(request.search, checks.below("search"))
        packed, answer = await self._service.context(question, profile, budget)
        response = pb.GetContextResponse(
            text=packed.text,
            tokens=packed.tokens,
            families=packed.families,
            left_out=packed.left_out,
            search=_response(answer),
        )
        for hit in (*response.search.hits, *response.search.rejected):
            hit.head.revision.ClearField("content")
            for evidence in hit.head.evidence:
                evidence.evidence.ClearField("excerpt")
        return response

    async def ListProfiles(  # noqa: N802 - gRPC's name
        self, request: pb.ListProfilesRequest, context: Context
    ) -> pb.ListProfilesResponse:
        """List the ranking profiles."""
        del request, context
        return pb.ListProfilesResponse(
            profiles=[
                pb.Profile(name=p.name, version=p.version, description=p.description, settings=p.settings)
                for p in self._service.profiles()
            ]
        )

    def _question(self, request: pb.SearchRequest, checks: FieldChecks) -> tuple[Question, Profile]:
        """Return the checked question and its profile.

        Raises:
            DomainError: INVALID_FIELD with every field at fault; PERMISSION_DENIED without the role reader.
        """
        project = checks.project(request.project) or ""
        if project:
            # Before anything is said about the rest: the answer to a stranger does not depend on it.
            require(current_principal(), project, Role.READER)
        branch = checks.branch(request.branch)
        if checks.required("text", request.text):
            checks.length("text", request.text, at_most=MAX_TEXT_CHARS)
        limit = request.limit or DEFAULT_LIMIT
        checks.in_range("limit", limit, 1, MAX_LIMIT)
        checks.in_range("min_evidence", request.min_evidence, 0, 10)
        token = request.consistency.at_least_as_fresh
        point = None
        if request.consistency.HasField("at_least_as_fresh"):
            field = "consistency.at_least_as_fresh"
            point = checks.attempt(lambda: ledger_token.decode(token, field, project=project or None))
        question = Question(
            project=project,
            text=request.text,
            branch=branch or "main",
            valid_at=checks.timestamp(request, "valid_at"),
            known_at=checks.timestamp(request, "known_at"),
            scopes=_numbers(checks, "scopes", request.scopes, ledger_pb2.Scope),
            categories=_numbers(checks, "categories", request.categories, ledger_pb2.Category),
            states=_states(checks, request.states) or ANSWERS,
            limit=limit,
            token=token.value if point else "",
            token_position=point.position if point else 0,
            vector=_vector(checks, request),
            branches=_branches(checks, request.branches),
            include_rejected=request.include_rejected,
            min_evidence=request.min_evidence,
            verified_evidence_only=request.verified_evidence_only,
        )
        profile = checks.attempt(lambda: self._service.profile(request.profile))
        checks.raise_if_any()
        if profile is None:
            raise RuntimeError("a missing profile was not reported")
        return question, profile


def _numbers(checks: FieldChecks, field: str, values: Iterable[int], enum: Any) -> frozenset[int]:
    found = list(values)
    for i, value in enumerate(found):
        checks.enum(f"{field}[{i}]", value, enum)
    return frozenset(found)


def _states(checks: FieldChecks, values: Iterable[int]) -> frozenset[State]:
    states: set[State] = set()
    for i, value in enumerate(values):
        name = checks.enum(f"states[{i}]", value, ledger_pb2.State)
        if name is not None:
            states.add(State(name.removeprefix("STATE_")))
    return frozenset(states)


def _branches(checks: FieldChecks, values: Iterable[int]) -> tuple[Branch, ...]:
    branches: dict[Branch, None] = {}
    for i, value in enumerate(values):
        name = checks.enum(f"branches[{i}]", value, index_service_pb2.SearchBranch)
        if name is not None:
            branches[Branch(name.removeprefix("SEARCH_BRANCH_"))] = None
    return tuple(branches)


def _vector(checks: FieldChecks, request: pb.SearchRequest) -> Vector | None:
    if not request.HasField("query_vector"):
        return None
    message, inner = request.query_vector, checks.below("query_vector")
    if inner.required("model", message.model):
        inner.length("model", message.model, at_most=_MAX_MODEL_CHARS)
    values = tuple(message.values)
    if inner.count("values", values, at_least=1, at_most=MAX_VECTOR):
        inner.must(all(map(math.isfinite, values)) and any(values), "values", "must be finite and not all 0")
    return Vector(message.model, values)


# --- Responses ------------------------------------------------------------------------------------------------------


def _response(answer: Answer) -> pb.SearchResponse:
    response = pb.SearchResponse(
        hits=[_hit(hit) for hit in answer.hits],
        confidence=_CONFIDENCES[answer.verdict.confidence],
        rejected=[_hit(hit) for hit in answer.rejected],
        suppressed=[pb.Suppressed(reason=reason, count=count) for reason, count in answer.suppressed.items()],
        freshness=pb.Freshness(
            token=common_pb2.LedgerToken(value=answer.token),
            ledger_position=answer.ledger_position,
            index_position=answer.index_position,
        ),
        support_z=answer.support_z,
        degraded=[index_service_pb2.Degradation(part=d.part, reason=d.reason) for d in answer.degraded],
        profile=answer.profile,
        valid_at=to_timestamp(answer.valid_at),
        known_at=to_timestamp(answer.known_at),
    )
    if answer.verdict.reason is not None:
        response.abstention.reason = _REASONS[answer.verdict.reason]
        response.abstention.message = answer.verdict.message
    if answer.support is not None and answer.support.source is not None:
        response.support.CopyFrom(answer.support.source)
    return response


def _hit(hit: Hit) -> pb.Hit:
    best = hit.ranked.best
    candidate = best.candidate
    return pb.Hit(
        head=hit.head.source,
        origin=_ORIGINS[hit.origin],
        score=pb.ScoreBreakdown(
            dense=_finite(candidate.dense),
            sparse=_finite(candidate.sparse),
            structural=candidate.structural,
            fused=best.fused,
            relevance=best.relevance,
            recency=best.recency,
            importance=best.importance,
            final=best.final,
            lent_by=hit.ranked.lent_by,
        ),
        replaced=[_replaced(item) for item in hit.replaced],
        reasons=hit.reasons,
        newer_than_index=hit.newer_than_index,
    )


def _replaced(item: Replaced) -> pb.Replaced:
    message = pb.Replaced(
        family=item.family,
        identity_key=item.identity_key,
        revision=item.revision,
        title=item.title,
        reason=item.reason,
        matched=item.matched,
    )
    if item.time is not None:
        seconds = math.floor(item.time)
        message.time.seconds = seconds
        message.time.nanos = min(999_999, round((item.time - seconds) * 1e6)) * 1_000
    return message


def _finite(value: float | None) -> float | None:
    return value if value is not None and math.isfinite(value) else None
