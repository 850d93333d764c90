"""Commits with decision trailers, and pull requests by their template.

Trailers are the last paragraph of a commit message, one ``Name: value`` a line, in English or Portuguese::

    Decision: Money is stored in minor units        Rationale: Floats lose cents
    Alternatives: Decimal strings; floats           Supersedes: adr/0004
    Category: BusinessRule                          Domain: billing
    Decision-Id: rule/money                         Refines, Depends-On, Module, Tag, Example, Valid-From
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import datetime

from ingest_svc import document as doc
from ingest_svc.domain import (
    Candidate,
    Category,
    Content,
    EvidenceDraft,
    RelationDraft,
    RelationKind,
    Standing,
)
from ingest_svc.extractor import CleanObservation
from ingest_svc.standing import standing_of
from service_kit.sanitising.sanitise import Sanitised, clip

COMMIT_EXTRACTOR = "structured/commit@1"
PULL_REQUEST_EXTRACTOR = "structured/pull_request@1"
IMPORTANCE = 0.5
RELIABILITY = 0.8
LONGEST_DETAILS = 16_000
LONGEST_EXCERPT = 600

_NAMES: Mapping[str, str] = {
    "decision": "decision",
    "decisao": "decision",
    "rule": "rule",
    "regra": "rule",
    "rationale": "rationale",
    "reason": "rationale",
    "motivo": "rationale",
    "justificativa": "rationale",
    "alternative": "alternatives",
    "alternatives": "alternatives",
    "alternativa": "alternatives",
    "alternativas": "alternatives",
    "supersedes": "supersedes",
    "substitui": "supersedes",
    "refines": "refines",
    "refina": "refines",
    "depends-on": "depends_on",
    "depende-de": "depends_on",
    "decision-id": "identity",
    "id-da-decisao": "identity",
    "category": "category",
    "categoria": "category",
    "domain": "domain",
    "dominio": "domain",
    "module": "modules",
    "modulo": "modules",
    "tag": "tags",
    "tags": "tags",
    "example": "examples",
    "exemplo": "examples",
    "decision-status": "status",
    "status-da-decisao": "status",
    "valid-from": "valid_from",
    "valido-a-partir-de": "valid_from",
}
_TRAILER = re.compile(r"([^\W\d_][\w \-]{0,40}?)[ \t]*:[ \t]+(.+)$")
_SPLIT = re.compile(r"[ \t]*;[ \t]*")
_CATEGORIES = {doc.fold(category.value): category for category in Category}


def read_trailers(clean: CleanObservation, extractor: str = COMMIT_EXTRACTOR) -> tuple[Candidate, ...]:
    """The decisions that the trailers of a commit message (or pull request) state."""
    observation = clean.observation
    body, groups = _decisions(observation.text)
    base = observation.attributes.get("identity_key") or _commit_key(clean)
    found: list[Candidate] = []
    for index, group in enumerate(groups):
        key = next(iter(group.get("identity", ())), "") or (base if len(groups) == 1 else f"{base}/{index + 1}")
        candidate = _candidate(clean, group, key, body, extractor)
        found.append(candidate)
    return tuple(found)


def _decisions(text: str) -> tuple[str, list[dict[str, list[str]]]]:
    """The text without its trailers, and the trailers grouped: each Decision or Rule begins a group."""
    blocks = re.split(r"\n[ \t]*\n", text.replace("\r\n", "\n").strip())
    kept: list[str] = []
    groups: list[dict[str, list[str]]] = []
    for block in blocks:
        trailers: list[tuple[str, str]] = []
        for line in block.split("\n"):
            match = _TRAILER.match(line)
            name = _NAMES.get(doc.header_key(match[1])) if match is not None else None
            if match is not None and name is not None:
                trailers.append((name, match[2].strip()))
            elif line[:1] in {" ", "\t"} and trailers:
                name, value = trailers[-1]
                trailers[-1] = (name, f"{value} {line.strip()}")
        if not any(name in {"decision", "rule"} for name, _ in trailers):
            kept.append(block)
            continue
        for name, value in trailers:
            if name in {"decision", "rule"} or not groups:
                groups.append({})
            groups[-1].setdefault(name, []).append(value)
    return "\n\n".join(kept), [group for group in groups if "decision" in group or "rule" in group]


def _commit_key(clean: CleanObservation) -> str:
    sha = clean.observation.attributes.get("sha", "")
    found = re.search(r"[0-9a-f]{7,64}", sha or clean.observation.locator)
    return f"commit/{found[0][:12]}" if found is not None else f"commit/{clean.source_hash[7:19]}"


def _candidate(
    clean: CleanObservation, group: Mapping[str, Sequence[str]], key: str, body: str, extractor: str
) -> Candidate:
    observation = clean.observation

    def first(name: str) -> str:
        return next(iter(group.get(name, ())), "")

    def many(name: str) -> tuple[str, ...]:
        return tuple(filter(None, (part for value in group.get(name, ()) for part in _SPLIT.split(value))))

    statement = first("decision") or first("rule")
    rationale = "\n".join(group.get("rationale", ()))
    alternatives = many("alternatives")
    category = _CATEGORIES.get(doc.fold(first("category")).replace(" ", ""))
    if category is None:
        if first("rule") and first("domain"):
            category = Category.BUSINESS_RULE
        elif rationale and alternatives:
            category = Category.ARCHITECTURAL_DECISION
        else:
            category = Category.DESIGN_RULE
    status = first("status")
    dated: datetime | None = doc.date_in(first("valid_from"))
    relations = [
        RelationDraft(
            kind=kind, source_key=key, target_key=target, rationale=f"{observation.locator}: {name}: {value}"[:500]
        )
        for name, kind in (
            ("supersedes", RelationKind.DEPRECATES),
            ("refines", RelationKind.REFINES),
            ("depends_on", RelationKind.DEPENDS_ON),
        )
        for value in many(name)
        for target in (doc.references(value, "adr") or (value.strip(),))
        if target != key
    ]
    return Candidate(
        category=category,
        identity_key=key,
        content=Content(
            title=statement[:300],
            summary=statement,
            details=clip(Sanitised(body), LONGEST_DETAILS),
            rationale=rationale,
            alternatives=alternatives,
            rules=many("rule"),
            examples=tuple(group.get("examples", ())),
            domain=first("domain"),
            modules=many("modules"),
            files=observation.files,
            tags=many("tags"),
            importance=IMPORTANCE,
            standing=(standing_of(status) or Standing.PROPOSED) if status else Standing.ADOPTED,
            attributes={"source_status": status} if status else {},
        ),
        valid_from=dated or observation.occurred_at,
        observed_at=observation.occurred_at,
        evidence=(_evidence(clean, statement, extractor),),
        relations=tuple(dict.fromkeys(relations)),
        extractor=extractor,
        reason=f"decided in {observation.locator}",
    )


def _evidence(clean: CleanObservation, excerpt: str, extractor: str) -> EvidenceDraft:
    observation = clean.observation
    return EvidenceDraft(
        kind=observation.kind,
        locator=observation.locator,
        source_hash=clean.source_hash,
        excerpt=clip(Sanitised(excerpt), LONGEST_EXCERPT),
        author=observation.author,
        extractor=extractor,
        reliability=RELIABILITY,
    )


_SECTIONS: Mapping[str, frozenset[str]] = {
    "summary": frozenset(
        {
            *(
                "summary",
                "description",
                "what",
                "what does this pr do",
                "what this pr does",
                "overview",
                "changes",
                "whats changed",
            ),
            *("resumo", "descricao", "o que", "o que muda", "o que este pr faz", "mudancas", "alteracoes"),
        }
    ),
    "rationale": frozenset(
        {
            *("why", "motivation", "context", "motivation and context", "background", "rationale", "problem", "reason"),
            *("por que", "motivacao", "contexto", "motivacao e contexto", "justificativa", "problema", "motivo"),
        }
    ),
    "outcome": frozenset({"result", "results", "outcome", "resultado", "resultados"}),
}
_SECTION_OF = {name: part for part, names in _SECTIONS.items() for name in names}
_STANDINGS = {
    "open": Standing.PROPOSED,
    "draft": Standing.PROPOSED,
    "merged": Standing.ADOPTED,
    "closed": Standing.REJECTED,
    "declined": Standing.REJECTED,
}


def read_pull_request(clean: CleanObservation) -> tuple[Candidate, ...]:
    """The pull request itself by its template, and the decisions that its trailers state."""
    observation = clean.observation
    body, _ = _decisions(observation.text)
    document = doc.parse(body)
    parts: dict[str, str] = {}
    others: list[tuple[str, str]] = [("", document.preamble)] if document.preamble else []
    for section in document.sections:
        name = _SECTION_OF.get(re.sub(r"[^\w ]", "", doc.fold(section.title)).strip())
        if name is None or name in parts:
            others.append((section.title, section.body))
        else:
            parts[name] = section.body
    attributes = observation.attributes
    url = attributes.get("url") or (observation.locator if observation.locator.startswith("http") else "")
    number = attributes.get("number") or next(iter(re.findall(r"/(?:pull|merge_requests|pr)s?/(\d+)", url)), "")
    key = attributes.get("identity_key") or (f"pr/{number}" if number else f"pr/{doc.slug(observation.locator)}")
    state = "merged" if attributes.get("merged") == "true" else doc.fold(attributes.get("state", ""))
    title = observation.title or document.title
    if not title:
        return read_trailers(clean, PULL_REQUEST_EXTRACTOR)
    summary = parts.get("summary", "") or document.preamble
    candidate = Candidate(
        category=Category.PULL_REQUEST,
        identity_key=key,
        content=Content(
            title=title[:300],
            summary=clip(Sanitised(summary), 4_000),
            details=clip(Sanitised(doc.join_sections(o for o in others if o[1] != summary)), LONGEST_DETAILS),
            rationale=clip(Sanitised(parts.get("rationale", "")), 8_000),
            outcome=clip(Sanitised(parts.get("outcome", "")), 4_000),
            files=observation.files,
            url=url,
            importance=IMPORTANCE,
            standing=_STANDINGS.get(state, Standing.PROPOSED),
            attributes={"source_status": state} if state else {},
        ),
        valid_from=observation.occurred_at,
        observed_at=observation.occurred_at,
        evidence=(_evidence(clean, summary or title, PULL_REQUEST_EXTRACTOR),),
        extractor=PULL_REQUEST_EXTRACTOR,
        reason=f"{key} {state or 'of unknown state'}",
    )
    trailers = read_trailers(clean, PULL_REQUEST_EXTRACTOR)
    decided = tuple(t if t.identity_key != key else _rekeyed(t, f"{key}/decision") for t in trailers)
    return (candidate, *decided)


def _rekeyed(candidate: Candidate, key: str) -> Candidate:
    relations = tuple(replace(r, source_key=key) for r in candidate.relations)
    return replace(candidate, identity_key=key, relations=relations)
