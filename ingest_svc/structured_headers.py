"""Documents with a header block: PEPs, KEPs, RFCs and their like. The headers are as of the commit observed."""

from __future__ import annotations

import re
from collections.abc import Mapping

from ingest_svc import document as doc
from ingest_svc.domain import (
    Action,
    Candidate,
    Category,
    Content,
    EvidenceDraft,
    RelationDraft,
    RelationKind,
    SourceKind,
    Standing,
)
from ingest_svc.extractor import CleanObservation
from ingest_svc.standing import standing_of
from service_kit.sanitising.sanitise import Sanitised, clip

EXTRACTOR = "structured/pep@1"
IMPORTANCE = 0.6
RELIABILITY = 0.9
LONGEST_DETAILS = 24_000
LONGEST_EXCERPT = 600

_SUMMARY = frozenset({"abstract", "summary", "overview", "resumo", "sumario"})
_RATIONALE = frozenset(
    {"rationale", "motivation", "why", "goals", "justificativa", "motivacao", "motivation and rationale"}
)
_ALTERNATIVES = frozenset(
    {
        *(
            "rejected ideas",
            "alternatives",
            "rejected alternatives",
            "alternatives considered",
            "rationale and alternatives",
        ),
        *("drawbacks and alternatives", "ideias rejeitadas", "alternativas", "alternativas rejeitadas"),
    }
)
_NUMBER_HEADERS: Mapping[str, str] = {
    "pep": "pep",
    "rfc": "rfc",
    "request-for-comments": "rfc",
    "kep": "kep",
    "kep-number": "kep",
    "rfc-number": "rfc",
}
_REPLACED = ("superseded-by", "replaced-by", "obsoleted-by", "substituida-por", "substituido-por")
_REPLACES = ("replaces", "supersedes", "obsoletes", "substitui")
_REQUIRES = ("requires", "depends-on", "requer")
_AMENDS = ("updates", "amends", "extends")
_CREATED = ("created", "creation-date", "date", "start-date", "criado", "data")
_KEPT = ("type", "python-version", "created", "resolution", "sig", "stage", "category")


def looks_like_headers(text: str) -> bool:
    """Whether a text begins with a header block that has a title or number and a status."""
    headers = doc.parse(text[:8_000]).headers
    return "status" in headers and bool({"title", *_NUMBER_HEADERS} & headers.keys())


def read_headers(clean: CleanObservation) -> Candidate | None:
    """Read a document with a header block; None when it has neither a title nor a number."""
    observation = clean.observation
    document = doc.parse(observation.text)
    headers = document.headers
    kind, number = _number(headers)
    key = observation.attributes.get("identity_key") or _identity(clean, kind, number)
    evidence = EvidenceDraft(
        kind=SourceKind.PEP,
        locator=observation.locator,
        source_hash=clean.source_hash,
        author=observation.author,
        extractor=EXTRACTOR,
        reliability=RELIABILITY,
        excerpt=clip(Sanitised(_header_text(headers) or observation.text), LONGEST_EXCERPT),
    )
    if observation.attributes.get("removed") == "true":
        return Candidate(
            category=Category.DESIGN_RULE,
            identity_key=key,
            content=Content(title=observation.title or key),
            action=Action.INVALIDATE,
            valid_from=observation.occurred_at,
            observed_at=observation.occurred_at,
            evidence=(evidence,),
            extractor=EXTRACTOR,
            reason=f"{key} was removed in {observation.locator}",
        )
    title = headers.get("title") or document.title or observation.title
    if not title or not key:
        return None
    status = headers.get("status", "")
    content = _content(clean, document, title, status)
    return Candidate(
        category=Category.DESIGN_RULE,
        identity_key=key,
        content=content,
        valid_from=observation.occurred_at or doc.date_in(_first(headers, _CREATED)),
        observed_at=observation.occurred_at,
        evidence=(evidence,),
        relations=_relations(headers, kind, key, content.standing),
        extractor=EXTRACTOR,
        reason=f"{key} {status or 'without a status'} as of {observation.locator}"[:500],
    )


def _content(clean: CleanObservation, document: doc.Document, title: str, status: str) -> Content:
    observation, headers = clean.observation, document.headers
    summary, rationale, alternatives, others = [], [], [], []
    for section in document.sections:
        name = doc.fold(section.title).strip("0123456789. ")
        if name in _SUMMARY:
            summary.append(section.body)
        elif name in _RATIONALE:
            rationale.append(section.body)
        elif name in _ALTERNATIVES:
            alternatives += [*(doc.bullets(section.body) or doc.paragraphs(section.body))]
        elif section.body and section.title != title:
            others.append((section.title, section.body))
    if not summary and document.preamble:
        summary.append(document.preamble)
    attributes = {name.replace("-", "_"): headers[name] for name in _KEPT if headers.get(name)}
    for name, keys in (("superseded_by", _REPLACED), ("replaces", _REPLACES), ("requires", _REQUIRES)):
        if value := _first(headers, keys):
            attributes[name] = value
    if status:
        attributes["source_status"] = status
    return Content(
        title=" ".join(title.split())[:300],
        summary=clip(Sanitised("\n\n".join(summary)), 8_000),
        details=clip(Sanitised(doc.join_sections(others)), LONGEST_DETAILS),
        rationale=clip(Sanitised("\n\n".join(rationale)), 12_000),
        alternatives=tuple(clip(Sanitised(item), 1_000) for item in alternatives)[:40],
        files=observation.files,
        tags=tuple(filter(None, (part.strip() for part in headers.get("topic", "").split(",")))),
        importance=IMPORTANCE,
        standing=standing_of(status) or Standing.PROPOSED,
        attributes={name: value[:1_000] for name, value in attributes.items()},
    )


def _number(headers: Mapping[str, str]) -> tuple[str, int | None]:
    for name, kind in _NUMBER_HEADERS.items():
        digits = re.search(r"\d{1,6}", headers.get(name, ""))
        if digits is not None:
            return kind, int(digits[0])
    return "pep" if "pep" in headers else "rfc", None


def _identity(clean: CleanObservation, kind: str, number: int | None) -> str:
    if number is not None:
        return doc.identity_of_number(kind, number)
    path = clean.observation.attributes.get("path") or next(iter(clean.observation.files), "")
    path = path or clean.observation.locator.rsplit(":", 1)[-1]
    return doc.identity_of_path(path, kind)


def _header_text(headers: Mapping[str, str]) -> str:
    return "\n".join(f"{name}: {value}" for name, value in headers.items() if value)


def _first(headers: Mapping[str, str], names: tuple[str, ...]) -> str:
    return next((headers[name] for name in names if headers.get(name)), "")


def _relations(headers: Mapping[str, str], kind: str, key: str, standing: Standing) -> tuple[RelationDraft, ...]:
    found: list[RelationDraft] = []
    for names, relation, outgoing in (
        (_REPLACED, RelationKind.DEPRECATES, False),
        (_REPLACES, RelationKind.DEPRECATES, True),
        (_REQUIRES, RelationKind.DEPENDS_ON, True),
        (_AMENDS, RelationKind.REFINES, True),
    ):
        # What a draft says of others is its wish; it binds nobody until it is adopted.
        if relation is RelationKind.DEPRECATES and outgoing and standing is not Standing.ADOPTED:
            continue
        value = _first(headers, names)
        for other in doc.references(value, kind, bare_numbers=True):
            if other != key:
                source, target = (key, other) if outgoing else (other, key)
                header = next(name for name in names if headers.get(name))
                found.append(
                    RelationDraft(
                        kind=relation, source_key=source, target_key=target, rationale=f"{key}: {header}: {value}"[:500]
                    )
                )
    return tuple(found)
