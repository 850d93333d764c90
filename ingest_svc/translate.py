"""Between the words of ingest and those of the contracts: categories, kinds, contents, evidence, times."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any, Final

from decisionssearch.ledger.v1 import ledger_pb2, observation_service_pb2, proposal_pb2
from google.protobuf.timestamp_pb2 import Timestamp

from ingest_svc.domain import (
    Action,
    Candidate,
    Category,
    Content,
    EvidenceDraft,
    EvidenceReference,
    OutcomeKind,
    RelationKind,
    SourceKind,
    Stance,
    Standing,
)
from service_kit.clock import to_timestamp

CATEGORIES: Final[Mapping[Category, ledger_pb2.Category.ValueType]] = {
    Category.BUSINESS_RULE: ledger_pb2.CATEGORY_BUSINESS_RULE,
    Category.ARCHITECTURAL_DECISION: ledger_pb2.CATEGORY_ARCHITECTURAL_DECISION,
    Category.DESIGN_RULE: ledger_pb2.CATEGORY_DESIGN_RULE,
    Category.DESIGN_PATTERN: ledger_pb2.CATEGORY_DESIGN_PATTERN,
    Category.CODE_PATTERN: ledger_pb2.CATEGORY_CODE_PATTERN,
    Category.FEATURE_DESCRIPTION: ledger_pb2.CATEGORY_FEATURE_DESCRIPTION,
    Category.EPISODE: ledger_pb2.CATEGORY_EPISODE,
    Category.PROCEDURE: ledger_pb2.CATEGORY_PROCEDURE,
    Category.PULL_REQUEST: ledger_pb2.CATEGORY_PULL_REQUEST,
}
_CATEGORY_OF: Final = {number: category for category, number in CATEGORIES.items()}
_TEXTS: Final = (
    *("title", "summary", "details", "objective", "trigger", "rationale", "domain", "task", "outcome", "url"),
)
_LISTS: Final = ("alternatives", "examples", "rules", "steps", "modules", "files", "tags")


def category_to_proto(category: Category) -> ledger_pb2.Category.ValueType:
    """The contract's category."""
    return CATEGORIES[category]


def category_from_proto(number: int) -> Category | None:
    """The category of a number; None for one that this version does not know."""
    return next((category for known, category in _CATEGORY_OF.items() if known == number), None)


def source_kind_to_proto(kind: SourceKind) -> ledger_pb2.SourceKind.ValueType:
    """The contract's kind of source."""
    return ledger_pb2.SourceKind.Value(f"SOURCE_KIND_{kind.value}")


def source_kind_from_proto(number: int) -> SourceKind | None:
    """The kind of a number; None for one that this version does not know, or UNSPECIFIED."""
    names = {value: name for name, value in ledger_pb2.SourceKind.items()}
    name = names.get(ledger_pb2.SourceKind.ValueType(number), "").removeprefix("SOURCE_KIND_")
    return SourceKind(name) if name in SourceKind.__members__ else None


def relation_kind_to_proto(kind: RelationKind) -> ledger_pb2.RelationKind.ValueType:
    """The contract's kind of relation."""
    return ledger_pb2.RelationKind.Value(f"RELATION_KIND_{kind.value}")


def outcome_to_proto(kind: OutcomeKind) -> observation_service_pb2.AdmissionOutcome.ValueType:
    """The contract's outcome."""
    return observation_service_pb2.AdmissionOutcome.Value(f"ADMISSION_OUTCOME_{kind.value}")


def content_to_proto(content: Content) -> ledger_pb2.Content:
    """The contract's content."""
    message = ledger_pb2.Content(
        importance=content.importance,
        standing=ledger_pb2.Standing.Value(f"STANDING_{content.standing.value}"),
        attributes=content.attributes,
    )
    for name in _TEXTS:
        setattr(message, name, getattr(content, name))
    for name in _LISTS:
        # An empty item is no item; the ledger refuses it.
        getattr(message, name).extend(item for item in getattr(content, name) if item.strip())
    return message


def content_from_proto(message: ledger_pb2.Content) -> Content:
    """The content in a message; an unset standing is ADOPTED."""
    standing = ledger_pb2.Standing.Name(message.standing or ledger_pb2.STANDING_ADOPTED).removeprefix("STANDING_")
    # Any: the names are those of fields of both, whose types agree.
    named: dict[str, Any] = {name: getattr(message, name) for name in _TEXTS}
    named.update({name: tuple(getattr(message, name)) for name in _LISTS})
    return Content(
        **named,
        importance=message.importance,
        standing=Standing(standing),
        attributes=dict(message.attributes),
    )


def evidence_to_proto(evidence: EvidenceDraft, source_time: datetime | None = None) -> proposal_pb2.EvidenceInput:
    """The contract's evidence, to be registered with a proposal."""
    message = proposal_pb2.EvidenceInput(
        draft=ledger_pb2.EvidenceDraft(
            source_kind=source_kind_to_proto(evidence.kind),
            locator=evidence.locator,
            source_hash=evidence.source_hash,
            excerpt=evidence.excerpt,
            author=evidence.author,
            extractor=evidence.extractor,
            reliability=evidence.reliability,
        ),
        stance=stance_to_proto(evidence.stance),
        confidence=evidence.confidence,
        claim=evidence.claim,
    )
    set_time(message.draft.source_time, evidence.source_time or source_time)
    return message


def reference_to_proto(reference: EvidenceReference) -> proposal_pb2.EvidenceInput:
    """The contract's evidence, named."""
    return proposal_pb2.EvidenceInput(
        name=reference.name,
        stance=stance_to_proto(reference.stance),
        confidence=reference.confidence,
        claim=reference.claim,
    )


def stance_to_proto(stance: Stance) -> ledger_pb2.Stance.ValueType:
    """The contract's stance."""
    return ledger_pb2.Stance.Value(f"STANCE_{stance.value}")


def set_time(field: Timestamp, instant: datetime | None) -> None:
    """Set a time field of a message; nothing leaves it unset."""
    if instant is not None:
        field.CopyFrom(to_timestamp(instant))


def ends(candidate: Candidate) -> bool:
    """Whether a candidate asks to end a memory."""
    return candidate.action is Action.INVALIDATE
