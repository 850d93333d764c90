"""Architecture decision records: Nygard's form and MADR, with English and Portuguese headings."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime

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

EXTRACTOR = "structured/adr@1"
IMPORTANCE = 0.7
RELIABILITY = 0.9
LONGEST_DETAILS = 24_000
LONGEST_EXCERPT = 600

_PARTS: Mapping[str, frozenset[str]] = {
    "status": frozenset({"status", "estado", "situacao"}),
    "date": frozenset({"date", "data"}),
    "context": frozenset(
        {
            *("context", "context and problem statement", "problem", "problem statement", "background", "issue"),
            *("motivation", "context and problem", "contexto", "contexto e problema", "problema", "motivacao"),
            *("contexto e declaracao do problema", "declaracao do problema", "descricao do problema"),
        }
    ),
    "drivers": frozenset(
        {
            *("decision drivers", "drivers", "forces", "criteria", "rationale", "justification", "reasoning"),
            *("fatores de decisao", "direcionadores da decisao", "direcionadores de decisao", "forcas", "criterios"),
            *("justificativa", "motivadores", "motivadores da decisao", "fundamentacao", "argument", "arguments"),
        }
    ),
    "decision": frozenset(
        {
            *("decision", "decision outcome", "outcome", "resolution", "solution", "decisions", "the decision"),
            *("decisao", "resultado da decisao", "decisao tomada", "resolucao", "solucao", "resultado", "decisoes"),
        }
    ),
    "alternatives": frozenset(
        {
            *("considered options", "options considered", "alternatives", "alternatives considered", "options"),
            *("considered alternatives", "rejected alternatives", "rejected ideas", "other options", "positions"),
            *("opcoes consideradas", "alternativas", "alternativas consideradas", "opcoes", "alternativas rejeitadas"),
            *("alternatives rejected", "opcoes avaliadas", "alternativas avaliadas"),
        }
    ),
    "options": frozenset(
        {"pros and cons of the options", "pros e contras das opcoes", "pros e contras", "pros and cons"}
    ),
    "consequences": frozenset(
        {
            *("consequences", "positive consequences", "negative consequences", "implications", "impact"),
            *("consequencias", "consequencias positivas", "consequencias negativas", "implicacoes", "impacto"),
        }
    ),
    "rules": frozenset({"rules", "regras", "principles", "principios"}),
    "examples": frozenset({"examples", "example", "exemplos", "exemplo"}),
}
_PART_OF = {name: part for part, names in _PARTS.items() for name in names}
_SUPERSEDED_BY = re.compile(
    r"(?:supersed|superced|replac)ed by|substituid[ao] (?:por|pel[ao])|superad[ao] (?:por|pel[ao])"
)
_SUPERSEDES = re.compile(r"\b(?:supersedes|supercedes|replaces|substitui|supera|revoga)\b")
_AMENDS = re.compile(r"\b(?:amends|refines|clarifies|extends|altera|emenda|refina|complementa|estende)\b")
_AMENDED_BY = re.compile(
    r"amended by|clarified by|refined by|alterad[ao] (?:por|pel[ao])|complementad[ao] (?:por|pel[ao])"
)
_RELATED = re.compile(r"\b(?:relates to|related to|relacionad[ao] (?:a|com)|ver tambem|see also)\b")
_DEPENDS = re.compile(r"\b(?:depends on|requires|depende de|requer)\b")
_NUMBER_IN_TITLE = re.compile(r"(?:adr|rad)?[ \-_#]{0,2}0*(\d{1,5})[ \t]*[.:)\-–—][ \t]*(.+)$", re.IGNORECASE)
_STATUS_FIELDS = frozenset({"status", "estado", "situacao", "superseded-by", "substituida-por"})
_BECAUSE = re.compile(
    r"\b(because|since it|as it|porque|pois|por ser|ja que|já que|uma vez que|in order to|para que)\b", re.IGNORECASE
)
_CHOSEN = re.compile(
    r"(?:chosen option|opção escolhida|opcao escolhida|we chose|escolhemos)[: ]*[\"“*_`]*([^\"”*_`,.\n]+)",
    re.IGNORECASE,
)
_INSTEAD = re.compile(
    r"\b(?:instead of|rather than|alternativ\w*|we considered|was considered|were considered|rejected|ruled out|"
    r"em vez de|ao inv[ée]s de|no lugar de|consideramos|descart\w+|rejeit\w+|em lugar de)\b",
    re.IGNORECASE,
)
_SENTENCE = re.compile(r"(?<=[.!?])\s+(?=[A-ZÀ-Ý\"“(])")


@dataclass(frozen=True, slots=True)
class _Status:
    text: str
    standing: Standing
    relations: tuple[tuple[RelationKind, bool, str], ...]
    """Kind, whether the record is the relation's source, the other end's key."""


def looks_like_adr(clean: CleanObservation) -> bool:
    """Whether a document of unnamed kind is a decision record: by its place, or by its headings."""
    observation = clean.observation
    path = _path(clean).lower()
    if re.search(
        r"(?:^|/)(?:adrs?|decisions?|decisoes|architecture-decisions)/[^/]+\.(?:md|markdown|adoc|rst|txt)$", path
    ):
        return True
    parts = {_PART_OF.get(_heading(section.title)) for section in doc.parse(observation.text[:20_000]).sections}
    return {"decision", "context"} <= parts


def read_adr(clean: CleanObservation) -> Candidate | None:
    """Read a decision record; None when the text holds neither a title nor a word of content."""
    observation = clean.observation
    if observation.attributes.get("removed") == "true":
        return _removal(clean)
    document = doc.parse(observation.text)
    parts, others = _parts(document)
    number, title = _title(clean, document)
    if not title or not (parts or others or document.preamble):
        return None
    fields = {
        **doc.field_lines(document.preamble),
        **doc.field_lines(parts.pop("fields", "")),
        **document.headers,
    }
    identified = observation.attributes.get("identity_key", "")
    key = identified or _identity(clean, number, title)
    stated = observation.attributes.get("status", "")
    if stated:
        # An importer that knows the status as of then says so: the text may be a later one.
        fields = {name: value for name, value in fields.items() if name not in _STATUS_FIELDS} | {"status": stated}
    status = _status(fields, parts)
    decision = parts.get("decision", "")
    context = parts.get("context", "")
    because = " ".join(p for p in doc.paragraphs(decision) if _BECAUSE.search(p))
    rationale = doc.join_sections((("", parts.get("drivers", "")), ("", because))) or context
    alternatives = _alternatives(parts, decision, context)
    category = Category.ARCHITECTURAL_DECISION if rationale and alternatives else Category.DESIGN_RULE
    summary = " ".join(doc.paragraphs(decision)[:2]) or next(iter(doc.paragraphs(context)), "")
    dated = doc.date_in(fields.get("date") or fields.get("data") or parts.get("date", ""))
    # What stands in a field of its own is not said again in the details.
    said = {"decision": len(doc.paragraphs(decision)) <= 2, "context": rationale == context}
    named = [(name, parts.get(name, "")) for name in ("context", "decision", "consequences", "options")]
    details = doc.join_sections((*((name.capitalize(), body) for name, body in named if not said.get(name)), *others))
    attributes = {
        **({"source_status": status.text} if status.text else {}),
        **({"source_date": dated.date().isoformat()} if dated else {}),
        **({"path": path} if (path := _path(clean)) else {}),
        **_people(fields),
    }
    content = Content(
        title=title[:300],
        summary=clip(Sanitised(summary), 2_000),
        details=clip(Sanitised(details), LONGEST_DETAILS),
        rationale=clip(Sanitised(rationale), 8_000),
        alternatives=alternatives,
        rules=doc.bullets(parts.get("rules", "")),
        examples=tuple(filter(None, (parts.get("examples", ""),))),
        domain=fields.get("domain") or fields.get("dominio") or fields.get("area", ""),
        tags=_list(fields.get("tags") or fields.get("categories") or fields.get("etiquetas", "")),
        importance=IMPORTANCE,
        standing=status.standing,
        attributes=attributes,
    )
    return Candidate(
        category=category,
        identity_key=key,
        content=content,
        valid_from=_valid_from(dated, observation.occurred_at, identified=bool(identified)),
        observed_at=observation.occurred_at,
        evidence=(
            EvidenceDraft(
                kind=SourceKind.ADR,
                locator=observation.locator,
                source_hash=clean.source_hash,
                excerpt=clip(Sanitised(decision or summary or title), LONGEST_EXCERPT),
                author=observation.author,
                extractor=EXTRACTOR,
                reliability=RELIABILITY,
            ),
        ),
        relations=tuple(
            RelationDraft(
                kind=kind,
                source_key=key if outgoing else other,
                target_key=other if outgoing else key,
                rationale=f"{key} says so: {clip(Sanitised(' '.join(status.text.split())), 300)}"
                if status.text
                else "",
            )
            for kind, outgoing, other in status.relations
            if other != key
        ),
        extractor=EXTRACTOR,
        reason=f"{key} as of {observation.locator}",
    )


def _removal(clean: CleanObservation) -> Candidate:
    observation = clean.observation
    key = observation.attributes.get("identity_key") or _identity(clean, None, observation.title)
    return Candidate(
        category=Category.DESIGN_RULE,
        identity_key=key,
        content=Content(title=observation.title or key),
        action=Action.INVALIDATE,
        valid_from=observation.occurred_at,
        observed_at=observation.occurred_at,
        evidence=(
            EvidenceDraft(
                kind=SourceKind.ADR,
                locator=observation.locator,
                source_hash=clean.source_hash,
                author=observation.author,
                extractor=EXTRACTOR,
                reliability=RELIABILITY,
            ),
        ),
        extractor=EXTRACTOR,
        reason=f"{key} was removed in {observation.locator}",
    )


def _valid_from(dated: datetime | None, occurred_at: datetime | None, *, identified: bool = False) -> datetime | None:
    # An importer has weighed the record's own date already; the date stays the same in every later text of it.
    if identified and occurred_at is not None:
        return occurred_at
    # A date in the document is what its authors say; the commit or file only says when the text got there.
    return dated or occurred_at


def _heading(title: str) -> str:
    return re.sub(r"^[\d.\s]+", "", doc.fold(title)).strip(" :.")


def _parts(document: doc.Document) -> tuple[dict[str, str], list[tuple[str, str]]]:
    """The known parts by name, and the others in order. What stands deeper under a known heading belongs to it."""
    parts: dict[str, str] = {}
    others: list[tuple[str, str]] = []
    current, depth = "", 0
    for index, section in enumerate(document.sections):
        if index == 0 and section.level == 1 and section.title == document.title:
            if section.body and not doc.field_lines(section.body):
                others.append(("", section.body))
            elif section.body:
                parts["fields"] = section.body
            continue
        name = _PART_OF.get(_heading(section.title))
        if name is not None:
            current, depth = name, section.level
            parts[name] = "\n\n".join(filter(None, (parts.get(name, ""), section.body)))
        elif current and section.level > depth:
            text = f"{section.title}\n{section.body}".strip()
            parts[current] = "\n\n".join(filter(None, (parts.get(current, ""), text)))
        else:
            current = ""
            others.append((section.title, section.body))
    return parts, others


def _title(clean: CleanObservation, document: doc.Document) -> tuple[int | None, str]:
    title = document.headers.get("title") or document.headers.get("titulo") or document.title
    title = title or clean.observation.title
    numbered = _NUMBER_IN_TITLE.match(title)
    if numbered is not None:
        return int(numbered[1]), numbered[2].strip()
    return None, title.strip()


def _path(clean: CleanObservation) -> str:
    observation = clean.observation
    if observation.attributes.get("path"):
        return observation.attributes["path"]
    if len(observation.files) == 1:
        return observation.files[0]
    tail = observation.locator.rsplit(":", 1)[-1]
    return tail if re.search(r"\.(?:md|markdown|adoc|rst|txt)$", tail, re.IGNORECASE) else ""


def _identity(clean: CleanObservation, number: int | None, title: str) -> str:
    path = _path(clean)
    from_path = doc.identity_of_path(path, "adr") if path else ""
    if re.fullmatch(r"adr/\d{4,}", from_path):
        return from_path
    if number is not None:
        return doc.identity_of_number("adr", number)
    return from_path or f"adr/{doc.slug(title)}"


def _status(fields: Mapping[str, str], parts: Mapping[str, str]) -> _Status:
    text = fields.get("status") or fields.get("estado") or fields.get("situacao") or parts.get("status", "")
    lines = [line.strip() for line in text.split("\n") if line.strip()]
    relations: list[tuple[RelationKind, bool, str]] = []
    standing: Standing | None = None
    for line in lines:
        plain = doc.fold(line)
        found = doc.references(line, "adr", bare_numbers=True)
        for pattern, kind, outgoing in (
            (_SUPERSEDED_BY, RelationKind.DEPRECATES, False),
            (_SUPERSEDES, RelationKind.DEPRECATES, True),
            (_AMENDED_BY, RelationKind.REFINES, False),
            (_AMENDS, RelationKind.REFINES, True),
            (_DEPENDS, RelationKind.DEPENDS_ON, True),
            (_RELATED, RelationKind.RELATED_TO, True),
        ):
            if pattern.search(plain):
                relations += [(kind, outgoing, other) for other in found]
                break
        if _SUPERSEDED_BY.search(plain):
            standing = Standing.RETIRED
        elif not (_SUPERSEDES.search(plain) or _AMENDS.search(plain) or _AMENDED_BY.search(plain)):
            # A status section may be a log: the last line that says something is the state now.
            said = standing_of(line)
            standing = standing if standing is Standing.RETIRED else said or standing
    for name, outgoing in (
        ("superseded-by", False),
        ("substituida-por", False),
        ("supersedes", True),
        ("replaces", True),
    ):
        for other in doc.references(fields.get(name, ""), "adr", bare_numbers=True):
            relations.append((RelationKind.DEPRECATES, outgoing, other))
            standing = standing if outgoing else Standing.RETIRED
    if standing is None:
        # No status at all: a record in the folder of decisions. A status that nobody knows is not adoption.
        standing = Standing.PROPOSED if lines else Standing.ADOPTED
    return _Status(" ".join(lines)[:500], standing, tuple(dict.fromkeys(relations)))


def _alternatives(parts: Mapping[str, str], decision: str, context: str) -> tuple[str, ...]:
    """What else was considered: the section of that name, else the sentences that say so."""
    section = parts.get("alternatives", "")
    listed: Sequence[str] = doc.bullets(section) or doc.paragraphs(section)
    if not listed and parts.get("options"):
        listed = doc.bullets(parts["options"]) or doc.paragraphs(parts["options"])
    chosen = _CHOSEN.search(decision)
    if chosen is not None and len(listed) > 1:
        name = doc.fold(chosen[1])
        listed = [option for option in listed if name not in doc.fold(option)] or listed
    if not listed:
        listed = [
            " ".join(sentence.split())
            for text in (decision, context, parts.get("consequences", ""))
            for sentence in _SENTENCE.split(text)
            if _INSTEAD.search(sentence)
        ]
    return tuple(clip(Sanitised(option), 1_000) for option in listed)[:40]


def _people(fields: Mapping[str, str]) -> dict[str, str]:
    for name in ("deciders", "decision-makers", "decisores", "participantes", "authors", "author", "autores", "autor"):
        if fields.get(name):
            return {"deciders": fields[name][:500]}
    return {}


def _list(text: str) -> tuple[str, ...]:
    return tuple(dict.fromkeys(part.strip() for part in re.split(r"[,;]", text) if part.strip()))
