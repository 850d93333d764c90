"""The gRPC face of ingest: checks requests, translates, decides nothing."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Sequence
from datetime import datetime
from hashlib import sha256
from typing import Any, Final

import grpc.aio
from decisionssearch.ingest.v1 import ingest_service_pb2 as pb
from decisionssearch.ingest.v1 import ingest_service_pb2_grpc
from decisionssearch.ledger.v1 import ledger_pb2, observation_service_pb2, proposal_pb2

from ingest_svc import translate
from ingest_svc.domain import (
    Candidate,
    Category,
    Content,
    Disposition,
    EvidenceDraft,
    EvidenceReference,
    GateResult,
    RawObservation,
    SourceKind,
    Stance,
)
from ingest_svc.service import Evaluation, IngestService
from ingest_svc.work import Handled, Incoming, Target
from service_kit import names
from service_kit.checks import FieldChecks
from service_kit.context import current_principal
from service_kit.errors import DomainError, invalid, to_item_error
from service_kit.principals import Role, require
from service_kit.sanitising.messages import check_identifier
from service_kit.serving import until_stopping

MAX_LOCATOR_CHARS: Final = 2_000
MAX_TITLE_CHARS: Final = 2_000
MAX_FILES: Final = 1_000
MAX_ATTRIBUTES: Final = 200
MAX_REASON_CHARS: Final = 2_000
MAX_REQUEST_ID_CHARS: Final = 100
MAX_EVIDENCE: Final = 50
# What the ledger takes; asked for here, before anything of a request is recorded.
MAX_IDENTITY_KEY_CHARS: Final = 200
MAX_CLAIM_CHARS: Final = 2_000
MAX_TEXT_CHARS: Final = 65_536
MAX_TEXTS_CHARS: Final = {"title": 300}
MAX_ITEMS: Final = 1_000
MAX_ITEM_CHARS: Final = 16_384
MAX_CONTENT_ATTRIBUTES: Final = 100
MAX_ATTRIBUTE_NAME_CHARS: Final = 100
MAX_ATTRIBUTE_CHARS: Final = 2_000
PROPOSER: Final = "proposer"

_MUTATIONS: Final = {
    Disposition.NEW: "create",
    Disposition.UPDATE: "update",
    Disposition.REFINEMENT: "create_and_link",
}
_HASH: Final = re.compile(r"sha256:[0-9a-f]{64}", re.ASCII)
_REQUEST_ID: Final = re.compile(r"[\x21-\x7e]{1,100}", re.ASCII)

Context = grpc.aio.ServicerContext[Any, Any]


class IngestServicer(ingest_service_pb2_grpc.IngestServiceServicer):
    """Implements ``decisionssearch.ingest.v1.IngestService``."""

    def __init__(self, service: IngestService, stopping: asyncio.Event) -> None:
        self._service = service
        self._stopping = stopping

    async def IngestObservations(  # noqa: N802 - gRPC's name
        self, request_iterator: AsyncIterator[pb.IngestObservationsRequest], context: Context
    ) -> AsyncIterator[pb.IngestObservationsResponse]:
        """Take observations and answer each with its outcome."""
        del context
        requests = until_stopping(self._stopping, aiter(request_iterator))
        first = await anext(requests, None)
        if first is None:
            return
        target = _target(first.project, first.branch, apply_approved=first.apply_approved)
        refused: asyncio.Queue[pb.IngestObservationsResponse] = asyncio.Queue()
        source = _observations(first, requests, target, refused)
        async for handled in self._service.ingest(target, source):
            while not refused.empty():
                yield refused.get_nowait()
            yield _response(handled)
        while not refused.empty():
            yield refused.get_nowait()

    async def EvaluateCandidate(  # noqa: N802 - gRPC's name
        self, request: pb.EvaluateCandidateRequest, context: Context
    ) -> pb.EvaluateCandidateResponse:
        """Run a candidate through all gates and store nothing."""
        del context
        target = _target(request.project, request.branch)
        checks = FieldChecks()
        candidate, registered = _candidate(checks, request, target.project)
        checks.raise_if_any()
        evaluation = await self._service.evaluate(target, candidate, registered)
        verdict = evaluation.verdict
        return pb.EvaluateCandidateResponse(
            gates=[_gate(gate) for gate in verdict.gates],
            admitted=verdict.admitted,
            mutation=_mutation(evaluation),
            similar=[
                pb.SimilarMemory(family=near.family, title=near.title, similarity=near.score)
                for near in verdict.similar
            ],
            weight=verdict.weight,
        )

    async def ProposeMemory(  # noqa: N802 - gRPC's name
        self, request: pb.ProposeMemoryRequest, context: Context
    ) -> pb.ProposeMemoryResponse:
        """Propose a memory of the caller's own wording through the same gates."""
        del context
        target = _target(request.project, request.branch)
        checks = FieldChecks()
        if checks.required("request_id", request.request_id):
            checks.pattern("request_id", request.request_id, _REQUEST_ID, "must be 1 to 100 visible ASCII characters")
            check_identifier(checks, "request_id", request.request_id)
        if checks.required("reason", request.reason):
            checks.length("reason", request.reason, at_most=MAX_REASON_CHARS)
        candidate, registered = _candidate(checks, request, target.project)
        checks.raise_if_any()
        answer = await self._service.propose_memory(
            target,
            request.request_id,
            _statement(request, candidate),
            candidate,
            request.reason,
            registered,
        )
        return pb.ProposeMemoryResponse(
            outcome=translate.outcome_to_proto(answer.admission.kind),
            gates=[_gate(gate) for gate in answer.gates],
            proposal=answer.proposal.message if answer.proposal is not None else None,
            duplicate_of=answer.admission.duplicate_of,
            redactions=answer.redactions,
        )

    async def SanitizeText(  # noqa: N802 - gRPC's name
        self, request: pb.SanitizeTextRequest, context: Context
    ) -> pb.SanitizeTextResponse:
        """Show what sanitising would make of a text and store nothing."""
        del context
        current_principal()
        done = await self._service.sanitise_text(request.text)
        return pb.SanitizeTextResponse(
            text=done.text,
            redactions=[pb.Redaction(kind=kind, count=count) for kind, count in sorted(done.findings.items())],
        )


def _target(project: str, branch: str, *, apply_approved: bool = False) -> Target:
    """The project and branch of a request whose caller may propose there."""
    checks = FieldChecks()
    project_id = checks.project(project)
    on = checks.branch(branch)
    check_identifier(checks, "branch", branch)
    checks.raise_if_any()
    if project_id is None or on is None:
        raise AssertionError("a problem was raised")
    require(current_principal(), project_id, Role.PROPOSER)
    return Target(project=project_id, branch=on, apply_approved=apply_approved)


# --- Observations ---------------------------------------------------------------------------------------------------


async def _observations(
    first: pb.IngestObservationsRequest,
    rest: AsyncIterator[pb.IngestObservationsRequest],
    target: Target,
    refused: asyncio.Queue[pb.IngestObservationsResponse],
) -> AsyncIterator[Incoming]:
    """The observations of a stream. A malformed one is refused by itself; a change of context ends the stream."""
    seen: set[int] = set()
    request: pb.IngestObservationsRequest | None = first
    while request is not None:
        if request.project not in {"", names.project_name(target.project)}:
            raise invalid("project", "must be that of the first message; open another stream for another project")
        if (request.branch or "main") != target.branch and request.branch:
            raise invalid("branch", "must be that of the first message; open another stream for another branch")
        if request.sequence in seen:
            raise invalid("sequence", f"{request.sequence} was used before in this stream")
        seen.add(request.sequence)
        try:
            yield Incoming(request.sequence, _observation(request))
        except DomainError as error:
            refused.put_nowait(
                pb.IngestObservationsResponse(
                    sequence=request.sequence,
                    outcome=observation_service_pb2.ADMISSION_OUTCOME_FAILED,
                    reasons=[error.message],
                    error=to_item_error(error),
                )
            )
        request = await anext(rest, None)


def _observation(request: pb.IngestObservationsRequest) -> RawObservation:
    checks = FieldChecks()
    checks.must(request.sequence > 0, "sequence", "must be above 0 and unique in the stream")
    if not checks.present(request, "observation"):
        checks.raise_if_any()
    value = request.observation
    own = checks.below("observation")
    kind: SourceKind | None = None
    if own.enum("source_kind", value.source_kind, ledger_pb2.SourceKind) is not None:
        kind = translate.source_kind_from_proto(value.source_kind)
    if own.required("locator", value.locator):
        own.length("locator", value.locator, at_most=MAX_LOCATOR_CHARS)
    own.length("title", value.title, at_most=MAX_TITLE_CHARS)
    own.length("author", value.author, at_most=MAX_TITLE_CHARS)
    own.count("files", value.files, at_most=MAX_FILES)
    own.count("attributes", list(value.attributes), at_most=MAX_ATTRIBUTES)
    occurred_at = own.timestamp(value, "occur_time")
    checks.raise_if_any()
    if kind is None:
        raise AssertionError("a problem was raised")
    return RawObservation(
        kind=kind,
        locator=value.locator,
        text=value.text,
        title=value.title,
        files=tuple(value.files),
        author=value.author,
        occurred_at=occurred_at,
        attributes=dict(value.attributes),
    )


def _response(handled: Handled) -> pb.IngestObservationsResponse:
    admission = handled.admission
    # In a failure only the first problem has a status; all are in the reasons.
    return pb.IngestObservationsResponse(
        sequence=handled.sequence,
        outcome=translate.outcome_to_proto(admission.kind),
        observation=handled.observation,
        proposals=admission.proposals,
        families=handled.families,
        gates=[_gate(gate) for gate in handled.gates],
        reasons=admission.reasons,
        error=to_item_error(handled.error) if handled.error is not None else None,
        redactions=handled.redactions,
        replayed=handled.replayed,
    )


def _gate(gate: GateResult) -> pb.GateResult:
    reason = f"{gate.reason}: {gate.detail}" if gate.detail else gate.reason
    return pb.GateResult(gate=gate.gate.value, passed=gate.passed, reason=reason)


# --- Candidates -----------------------------------------------------------------------------------------------------


def _candidate(
    checks: FieldChecks, request: pb.EvaluateCandidateRequest | pb.ProposeMemoryRequest, project: str
) -> tuple[Candidate, tuple[EvidenceReference, ...]]:
    """The candidate of a request, and the evidence that it only names; problems are gathered in the checks."""
    if not checks.present(request, "candidate"):
        checks.raise_if_any()
    value = request.candidate
    own = checks.below("candidate")
    own.enum("category", value.category, ledger_pb2.Category)
    category = translate.category_from_proto(value.category) or Category.DESIGN_RULE
    own.length("identity_key", value.identity_key, at_most=MAX_IDENTITY_KEY_CHARS)
    check_identifier(own, "identity_key", value.identity_key)
    content = _content(own, value)
    valid_from = own.timestamp(value, "valid_from")
    own.count("evidence", value.evidence, at_most=MAX_EVIDENCE)
    drafts: list[EvidenceDraft] = []
    registered: list[EvidenceReference] = []
    for index, evidence in enumerate(value.evidence):
        made = _evidence(own.below(f"evidence[{index}]"), evidence, project)
        if isinstance(made, EvidenceDraft):
            drafts.append(made)
        elif made is not None:
            registered.append(made)
    candidate = Candidate(
        category=category,
        identity_key=value.identity_key,
        identity_from_source=bool(value.identity_key),
        content=content,
        evidence=tuple(drafts),
        valid_from=valid_from,
        extractor=PROPOSER,
    )
    return candidate, tuple(registered)


def _content(checks: FieldChecks, value: pb.CandidateInput) -> Content:
    if not checks.present(value, "content"):
        return Content(title="")
    own = checks.below("content")
    own.required("title", value.content.title)
    for field, text in value.content.ListFields():
        if isinstance(text, str):
            own.length(field.name, text, at_most=MAX_TEXTS_CHARS.get(field.name, MAX_TEXT_CHARS))
        elif field.type == field.TYPE_STRING and own.count(field.name, text, at_most=MAX_ITEMS):
            for index, item in enumerate(text):
                own.length(f"{field.name}[{index}]", item, at_most=MAX_ITEM_CHARS)
    if own.count("attributes", list(value.content.attributes), at_most=MAX_CONTENT_ATTRIBUTES):
        for name, text in value.content.attributes.items():
            own.length("attributes", name, at_most=MAX_ATTRIBUTE_NAME_CHARS)
            own.length(f"attributes.{name}", text, at_most=MAX_ATTRIBUTE_CHARS)
    own.in_range("importance", value.content.importance, 0, 1)
    if own.optional_enum("standing", value.content.standing, ledger_pb2.Standing) is None:
        return Content(title="")
    return translate.content_from_proto(value.content)


def _evidence(
    checks: FieldChecks, value: proposal_pb2.EvidenceInput, project: str
) -> EvidenceDraft | EvidenceReference | None:
    stance = checks.enum("stance", value.stance, ledger_pb2.Stance)
    checks.in_range("confidence", value.confidence, 0, 1)
    checks.length("claim", value.claim, at_most=MAX_CLAIM_CHARS)
    if value.WhichOneof("evidence") == "name":
        checks.name("name", value.name, names.NameKind.EVIDENCE, project=project)
        if stance is None:
            return None
        return EvidenceReference(
            name=value.name,
            stance=Stance(stance.removeprefix("STANCE_")),
            confidence=value.confidence,
            claim=value.claim,
        )
    if not checks.present(value, "evidence"):
        return None
    own, draft = checks.below("draft"), value.draft
    own.enum("source_kind", draft.source_kind, ledger_pb2.SourceKind)
    if own.required("locator", draft.locator):
        own.length("locator", draft.locator, at_most=MAX_LOCATOR_CHARS)
    own.in_range("reliability", draft.reliability, 0, 1)
    own.length("excerpt", draft.excerpt, at_most=MAX_TEXT_CHARS)
    own.length("author", draft.author, at_most=MAX_LOCATOR_CHARS)
    own.length("extractor", draft.extractor, at_most=MAX_LOCATOR_CHARS)
    if draft.source_hash:
        own.pattern("source_hash", draft.source_hash, _HASH, "must be sha256:<64 hex digits> or empty")
    source_time = own.timestamp(draft, "source_time")
    kind = translate.source_kind_from_proto(draft.source_kind)
    if stance is None or kind is None:
        return None
    return EvidenceDraft(
        kind=kind,
        locator=draft.locator,
        source_hash=draft.source_hash,
        excerpt=draft.excerpt,
        author=draft.author,
        extractor=draft.extractor,
        reliability=draft.reliability,
        stance=Stance(stance.removeprefix("STANCE_")),
        confidence=value.confidence,
        claim=value.claim,
        source_time=source_time,
    )


def _statement(request: pb.ProposeMemoryRequest, candidate: Candidate) -> RawObservation:
    """The request as an observation: what the caller stated, found again by principal and request id."""
    content = candidate.content
    said: Sequence[str] = (
        *(content.summary, content.details, content.objective, content.trigger, content.rationale),
        *(content.task, content.outcome, *content.rules, *content.steps, *content.alternatives, *content.examples),
    )
    principal = current_principal()
    when: datetime | None = candidate.valid_from
    return RawObservation(
        kind=SourceKind.STATEMENT,
        locator=f"statement:{principal.id}/{request.request_id}",
        title=content.title,
        text="\n\n".join(part for part in said if part),
        files=content.files,
        author=principal.id,
        occurred_at=when,
        attributes={
            "category": candidate.category.value,
            "identity_key": candidate.identity_key,
            "reason": request.reason,
            "branch": request.branch or "main",
            # Tells another request under the same id apart, also where its texts are the same.
            "request_hash": sha256(request.SerializeToString(deterministic=True)).hexdigest(),
        },
    )


def _mutation(evaluation: Evaluation) -> str:
    if not evaluation.verdict.admitted:
        return ""
    return _MUTATIONS.get(evaluation.verdict.disposition, "")
