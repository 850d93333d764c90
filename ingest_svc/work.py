"""Observations and candidates on their way through ingest, and what becomes of them. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import timedelta
from hashlib import sha256
from typing import Final

from ingest_svc.domain import (
    Action,
    Admission,
    Candidate,
    Disposition,
    EvidenceDraft,
    Gate,
    GateResult,
    OutcomeKind,
    RawObservation,
    RelationDraft,
    RelationKind,
    Standing,
    Stored,
    Verdict,
)
from ingest_svc.extractor import CleanObservation, ExtractionFailed
from ingest_svc.gates import canonical, takes_effect
from ingest_svc.ledger_client import Linking, Publication, Recorded
from ingest_svc.sanitise import sanitise_content, sanitise_evidence, sanitise_observation
from service_kit.errors import DomainError, Reason

TRANSIENT: Final = frozenset(
    {
        Reason.DEPENDENCY_UNAVAILABLE,
        Reason.SHUTTING_DOWN,
        Reason.OVERLOADED,
        Reason.WRITE_CONTENTION,
        Reason.HEAD_MOVED,
        Reason.DEADLINE,
        Reason.NOT_FRESH_ENOUGH,
    }
)
"""Reasons that the same observation may overcome when it is sent again."""
MOVED: Final = frozenset({Reason.HEAD_MOVED, Reason.ALREADY_EXISTS})
"""Somebody else published under the same identity meanwhile: judge anew."""
REFUSED: Final = frozenset(
    {
        Reason.INVALID_FIELD,
        Reason.LIMIT_EXCEEDED,
        Reason.EVIDENCE_INSUFFICIENT,
        Reason.STATE_CONFLICT,
        Reason.RELATION_CYCLE,
    }
)
"""The ledger's own rules say no: the same as a gate."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """Where a stream of observations goes."""

    project: str
    branch: str
    apply_approved: bool = False


@dataclass(frozen=True, slots=True)
class Incoming:
    """An observation with the number that its outcome carries back."""

    sequence: int
    observation: RawObservation


@dataclass(frozen=True, slots=True, kw_only=True)
class Handled:
    """What became of one observation."""

    sequence: int
    admission: Admission
    observation: str = ""
    families: tuple[str, ...] = ()
    gates: tuple[GateResult, ...] = ()
    error: DomainError | None = None
    redactions: Mapping[str, int] = field(default_factory=dict)
    replayed: bool = False


@dataclass(slots=True)
class Item:
    """One candidate on its way."""

    candidate: Candidate
    index: int
    verdict: Verdict | None = None
    stored: Stored | None = None
    proposal: str = ""
    applied: bool = False
    error: DomainError | None = None


@dataclass(slots=True)
class Work:
    """One observation on its way."""

    incoming: Incoming
    clean: CleanObservation
    name: str = ""
    extractor: str = ""
    items: list[Item] = field(default_factory=list)
    relations: list[RelationDraft] = field(default_factory=list)
    only_relations: bool = False
    links: list[str] = field(default_factory=list)
    linked: list[str] = field(default_factory=list)
    known_links: int = 0
    missing: list[str] = field(default_factory=list)
    link_errors: list[DomainError] = field(default_factory=list)
    handled: Handled | None = None


def waves(works: Sequence[Work]) -> Iterable[Sequence[tuple[Work, Item]]]:
    """Split the candidates into waves: the n-th occurrence of an identity is in the n-th wave."""
    ordered: list[list[tuple[Work, Item]]] = []
    seen: dict[str, int] = {}
    for work in works:
        for item in work.items:
            key = item.candidate.identity_key
            number = seen.get(key, 0) if key else 0
            if key:
                seen[key] = number + 1
            while len(ordered) <= number:
                ordered.append([])
            ordered[number].append((work, item))
    return ordered


def clean_of(observation: RawObservation) -> tuple[CleanObservation, Mapping[str, int]]:
    """Sanitise an observation; its hash is of what it was before."""
    clean, redactions = sanitise_observation(observation)
    return (
        CleanObservation(observation=clean, source_hash=observation.source_hash(), redactions=redactions),
        redactions,
    )


def sanitise_batch(batch: Sequence[Incoming]) -> list[Work]:
    """Sanitise the observations of a batch; runs in a thread."""
    return [Work(incoming, clean_of(incoming.observation)[0]) for incoming in batch]


def sanitised_candidate(candidate: Candidate) -> tuple[Candidate, Mapping[str, int]]:
    """Sanitise a candidate that did not come from an extractor."""
    content, found = sanitise_content(candidate.content)
    evidence: list[EvidenceDraft] = []
    for one in candidate.evidence:
        clean_one, in_evidence = sanitise_evidence(one)
        evidence.append(clean_one)
        found.update(in_evidence)
    return replace(candidate, content=content, evidence=tuple(evidence)), dict(found)


def publication_of(item: Item, observation: str) -> Publication:
    """The proposal for a judged candidate; its request id is made of all that it says."""
    candidate, stored, verdict = item.candidate, item.stored, item.verdict
    if verdict is None:
        raise AssertionError("only what was judged is proposed")
    effect = takes_effect(candidate, stored)
    refines = verdict.similar[0] if verdict.disposition is Disposition.REFINEMENT else None
    supersedes = (
        stored is not None
        and stored.content.standing is Standing.ADOPTED
        and candidate.content.standing is not Standing.ADOPTED
    )
    parts = (
        canonical(candidate.content),
        effect,
        stored.head if stored else "",
        refines.head if refines else "",
        candidate.action,
    )
    digest = sha256(repr(parts).encode("utf-8", "surrogatepass")).hexdigest()[:16]
    return Publication(
        request_id=f"ingest/{observation.rpartition('/')[2]}/{item.index}/{digest}",
        candidate=candidate,
        stored=stored,
        takes_effect=effect,
        refines=refines,
        supersedes=supersedes,
        reason=candidate.reason,
        observation=observation,
    )


def linking_of(work: Work, relation: RelationDraft, source: Stored, end: Stored, *, later: bool = False) -> Linking:
    """The proposal for a relation between two stored families.

    A replacement takes effect when it was claimed. When the replaced memory held on after that (its own source ended
    it later), ``later`` makes it take effect when that end came; one that holds to this day is ended by it.
    """
    observation = work.clean.observation
    effect = observation.occurred_at
    ends = relation.kind is RelationKind.DEPRECATES and end.in_force
    if (ends or later) and effect is not None and end.settled_since is not None:
        effect = max(effect, end.settled_since)
        if ends and effect == end.settled_since:
            # Its last text was said in the same moment: it keeps an instant, so that history can still show it.
            effect += timedelta(microseconds=1)
    said = f"{relation.kind.value}|{source.family}|{end.family}|{effect}|{ends}"
    digest = sha256(said.encode()).hexdigest()[:24]
    evidence = next((item.candidate.evidence for item in work.items if item.candidate.evidence), ())
    if not evidence:
        evidence = (
            EvidenceDraft(
                kind=observation.kind,
                locator=observation.locator,
                source_hash=work.clean.source_hash,
                excerpt=relation.rationale or observation.text[:500],
                author=observation.author,
                extractor=work.extractor,
                reliability=0.9,
            ),
        )
    return Linking(
        request_id=f"ingest/{work.name.rpartition('/')[2]}/link/{digest}",
        kind=relation.kind,
        source_family=source.family,
        target_family=end.family,
        rationale=relation.rationale,
        takes_effect=effect,
        ends_target=ends,
        evidence=evidence[:1],
        reason=relation.rationale or f"{relation.source_key} {relation.kind.value} {relation.target_key}",
        observation=work.name,
    )


def settle(work: Work, made: Mapping[str, Stored]) -> Handled:
    """What became of an observation whose candidates and relations have been dealt with."""
    if work.only_relations:
        return settle_relations(work)
    errors = [item.error for item in work.items if item.error is not None]
    admission = admission_of_items(work.items, work.extractor)
    notes = [f"a relation waits: nothing is published as {key}" for key in dict.fromkeys(work.missing)]
    notes += [f"a relation was refused: {error.message}" for error in work.link_errors]
    proposals = (*admission.proposals, *work.links)
    admission = replace(admission, reasons=(*admission.reasons, *notes), proposals=proposals)
    families = [
        item.stored.family if item.stored is not None else made[item.candidate.identity_key].family
        for item in work.items
        if item.applied and (item.stored is not None or item.candidate.identity_key in made)
    ]
    return Handled(
        sequence=work.incoming.sequence,
        admission=admission,
        observation=work.name,
        families=tuple(dict.fromkeys(families)),
        gates=tuple(gate for item in work.items if item.verdict is not None for gate in item.verdict.gates),
        error=errors[0] if admission.kind is OutcomeKind.FAILED and errors else None,
        redactions=work.clean.redactions,
    )


def settle_relations(work: Work) -> Handled:
    """The outcome of an observation that asserts relations and nothing else."""
    if work.missing or work.link_errors:
        # Not lost: it is tried again when it is sent again, and by then the other end may be published.
        error = (
            work.link_errors[0]
            if work.link_errors
            else DomainError(
                Reason.STATE_CONFLICT,
                f"nothing is published as {work.missing[0]}; send this again when it is",
                metadata={"family": work.missing[0], "rule": "relation_end_missing"},
            )
        )
        failed = failed_as(work, error)
        retryable = error.reason in TRANSIENT or error.reason is Reason.STATE_CONFLICT
        return replace(failed, admission=replace(failed.admission, retryable=retryable, proposals=tuple(work.links)))
    if work.links:
        admission = Admission(kind=OutcomeKind.PROPOSED, proposals=tuple(work.links), extractor=work.extractor)
    else:
        reason = "duplicate: UNCHANGED: the relation is asserted already"
        admission = Admission(kind=OutcomeKind.DUPLICATE, reasons=(reason,), extractor=work.extractor)
    return replace(handled_as(work, admission), families=tuple(dict.fromkeys(work.linked)))


def relinked(work: Work) -> Work:
    """An observation whose waiting relations were proposed after its outcome was told: recorded as an addition."""
    work.missing = []
    known = work.handled
    if known is None:
        raise AssertionError("only settled works wait")
    added = replace(known.admission, proposals=tuple(dict.fromkeys((*known.admission.proposals, *work.links))))
    work.handled = replace(known, admission=added)
    return work


def admission_of_items(items: Sequence[Item], extractor: str) -> Admission:
    """One outcome for all candidates of an observation: proposed if any was, else the worst that happened."""
    proposals = tuple(item.proposal for item in items if item.proposal)
    errors = [item.error for item in items if item.error is not None and item.error.reason not in REFUSED]
    refusals = [item.error for item in items if item.error is not None and item.error.reason in REFUSED]
    failures = [gate for item in items if item.verdict is not None for gate in item.verdict.failures]
    said = [f"{gate.gate.value}: {gate.reason}: {gate.detail}" for gate in failures]
    said += [f"ledger: {error.reason.value}: {error.message}" for error in refusals]
    reasons = tuple(dict.fromkeys(said))
    if errors:
        return Admission(
            kind=OutcomeKind.FAILED,
            reasons=(*(error.message for error in errors), *reasons),
            proposals=proposals,
            extractor=extractor,
            retryable=any(error.reason in TRANSIENT or error.reason in MOVED for error in errors),
        )
    if refusals:
        return Admission(kind=OutcomeKind.REJECTED, reasons=reasons, proposals=proposals, extractor=extractor)
    if proposals:
        return Admission(kind=OutcomeKind.PROPOSED, reasons=reasons, proposals=proposals, extractor=extractor)
    unchanged = [
        item
        for item in items
        if item.verdict is not None and item.verdict.disposition is Disposition.UNCHANGED and item.stored is not None
    ]
    if len(unchanged) == len(items) and unchanged:
        family = unchanged[0].stored.family if unchanged[0].stored is not None else ""
        return Admission(kind=OutcomeKind.DUPLICATE, reasons=reasons, duplicate_of=family, extractor=extractor)
    gone = all(item.candidate.action is Action.INVALIDATE for item in items)
    if gone:
        # The source of a memory that was never published, or has ended, is gone: there is nothing to do.
        return Admission(kind=OutcomeKind.NO_MEMORY, reasons=reasons, extractor=extractor)
    return Admission(kind=OutcomeKind.REJECTED, reasons=reasons, extractor=extractor)


def gates_of(admission: Admission) -> tuple[GateResult, ...]:
    """The gates that refused, from the record of an admission."""
    known = {gate.value: gate for gate in Gate}
    found: list[GateResult] = []
    for reason in admission.reasons:
        gate, _, rest = reason.partition(": ")
        word, _, detail = rest.partition(": ")
        if gate in known and word:
            found.append(GateResult(gate=known[gate], passed=False, reason=word, detail=detail))
    return tuple(found)


def handled_as(work: Work, admission: Admission) -> Handled:
    """An observation that ended with an admission."""
    return Handled(
        sequence=work.incoming.sequence,
        admission=admission,
        observation=work.name,
        redactions=work.clean.redactions,
    )


def replayed_as(work: Work, recorded: Recorded) -> Handled:
    """An observation that was handled before: its recorded outcome."""
    if recorded.admission is None:
        raise AssertionError("a replay has an admission")
    return replace(handled_as(work, recorded.admission), gates=gates_of(recorded.admission), replayed=True)


def failed_as(work: Work, error: DomainError) -> Handled:
    """An observation that could not be handled."""
    admission = Admission(
        kind=OutcomeKind.FAILED,
        reasons=(error.message,),
        extractor=work.extractor,
        retryable=error.reason in TRANSIENT,
    )
    return replace(handled_as(work, admission), error=error)


def not_extracted(work: Work, failure: ExtractionFailed) -> Handled:
    """An observation that no extractor could read."""
    # Trying again at once helps against a provider that is down, not against one that nobody configured.
    at_once = failure.retryable and failure.reason != "EXTRACTOR_NOT_CONFIGURED"
    reason = Reason.DEPENDENCY_UNAVAILABLE if at_once else Reason.STATE_CONFLICT
    error = DomainError(
        reason, failure.detail, metadata={"dependency": failure.extractor or "extractor", "rule": failure.reason}
    )
    admission = Admission(
        kind=OutcomeKind.FAILED,
        reasons=(f"{failure.reason}: {failure.detail}",),
        extractor=failure.extractor,
        retryable=failure.retryable,
    )
    return replace(handled_as(work, admission), error=error)
