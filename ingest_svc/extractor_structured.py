"""The extractor that needs no model: documents, commits and pull requests that carry their structure.

An importer that knows a whole source states who replaces whom itself, in the attribute ``relations`` (JSON, a list of
``{kind, source, target, rationale}``) of observations that hold nothing else; it also names identities, in the
attribute ``identity_key``. The relations that a single document claims are taken only when no importer identified it:
one document alone cannot know whether its successor is a draft or says otherwise.
"""

from __future__ import annotations

import asyncio
import json
from dataclasses import replace

from ingest_svc.domain import Candidate, RelationDraft, RelationKind, SourceKind
from ingest_svc.extractor import CleanObservation, Extracted, Extraction, ExtractionFailed, NothingToRemember
from ingest_svc.structured_adr import EXTRACTOR as ADR_EXTRACTOR
from ingest_svc.structured_adr import looks_like_adr, read_adr
from ingest_svc.structured_commit import (
    COMMIT_EXTRACTOR,
    PULL_REQUEST_EXTRACTOR,
    read_pull_request,
    read_trailers,
)
from ingest_svc.structured_headers import EXTRACTOR as HEADERS_EXTRACTOR
from ingest_svc.structured_headers import looks_like_headers, read_headers

_EXTRACTOR_OF = {
    SourceKind.ADR: ADR_EXTRACTOR,
    SourceKind.PEP: HEADERS_EXTRACTOR,
    SourceKind.COMMIT: COMMIT_EXTRACTOR,
    SourceKind.DIFF: COMMIT_EXTRACTOR,
    SourceKind.PULL_REQUEST: PULL_REQUEST_EXTRACTOR,
}
_MOST_RELATIONS = 100
_MOST_CANDIDATES = 50
_LONG_CHARS = 50_000


class StructuredExtractor:
    """Reads what has a known structure; everything else is nothing to it."""

    async def extract(self, clean: CleanObservation) -> Extraction:
        """Read one observation; a long one in a thread, so that other calls go on."""
        if len(clean.observation.text) > _LONG_CHARS:
            return await asyncio.to_thread(read, clean)
        return read(clean)


def read(clean: CleanObservation) -> Extraction:
    """Read one observation; pure."""
    observation = clean.observation
    kind = _kind(clean)
    extractor = _EXTRACTOR_OF.get(kind, "structured@1")
    stated = observation.attributes.get("relations", "")
    if stated:
        return _stated_relations(stated, extractor)
    candidates: tuple[Candidate, ...] = ()
    if kind is SourceKind.ADR:
        candidates = tuple(filter(None, (read_adr(clean),)))
    elif kind is SourceKind.PEP:
        candidates = tuple(filter(None, (read_headers(clean),)))
    elif kind is SourceKind.PULL_REQUEST:
        candidates = read_pull_request(clean)
    else:
        candidates = read_trailers(clean)
    if not candidates:
        return NothingToRemember(extractor=extractor, reason="no structured decision in it")
    if len(candidates) > _MOST_CANDIDATES:
        return ExtractionFailed(
            extractor=extractor,
            reason="TOO_MANY_DECISIONS",
            detail=f"it states {len(candidates)} decisions; the limit of one observation is {_MOST_CANDIDATES}",
            retryable=False,
        )
    if observation.attributes.get("identity_key") and kind in {SourceKind.ADR, SourceKind.PEP}:
        candidates = tuple(replace(candidate, relations=()) for candidate in candidates)
    return Extracted(extractor=extractor, candidates=candidates)


def _kind(clean: CleanObservation) -> SourceKind:
    """The kind to read it as: a document is looked at."""
    kind = clean.observation.kind
    if kind in {SourceKind.DOCUMENT, SourceKind.FILE, SourceKind.URL}:
        if looks_like_adr(clean):
            return SourceKind.ADR
        if looks_like_headers(clean.observation.text):
            return SourceKind.PEP
    return kind


def _stated_relations(stated: str, extractor: str) -> Extraction:
    try:
        rows = json.loads(stated)
        relations = tuple(
            RelationDraft(
                kind=RelationKind(row["kind"]),
                source_key=str(row["source"]),
                target_key=str(row["target"]),
                rationale=str(row.get("rationale", ""))[:2_000],
            )
            for row in rows[:_MOST_RELATIONS]
        )
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        return ExtractionFailed(
            extractor=extractor,
            reason="MALFORMED_RELATIONS",
            detail=f"the attribute 'relations' must be a list of {{kind, source, target}}: {type(error).__name__}",
            retryable=False,
        )
    if len(rows) > _MOST_RELATIONS:
        return ExtractionFailed(
            extractor=extractor,
            reason="TOO_MANY_RELATIONS",
            detail=f"the attribute 'relations' holds {len(rows)}; the limit is {_MOST_RELATIONS}",
            retryable=False,
        )
    if not relations:
        return NothingToRemember(extractor=extractor, reason="an empty list of relations")
    return Extracted(extractor=extractor, relations=relations)
