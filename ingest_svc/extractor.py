"""The port of extraction: an observation goes in, candidates come out, or nothing to remember, or a failure.

The three answers are different things (G3): a provider that is down or answers nonsense is a failure, to be tried
again, and never "nothing to remember". Extractors only ever see sanitised text: the type of their argument says so.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol, TypeAlias

from ingest_svc.domain import Candidate, RawObservation, RelationDraft, SourceKind


@dataclass(frozen=True, slots=True, kw_only=True)
class CleanObservation:
    """An observation after sanitising, with the hash of what it was before."""

    observation: RawObservation
    source_hash: str
    redactions: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Extracted:
    """What was read from an observation."""

    extractor: str
    """Name and version, e.g. ``structured/adr@1``."""
    candidates: tuple[Candidate, ...] = ()
    relations: tuple[RelationDraft, ...] = ()
    """Relations that the observation asserts by itself, without a memory of its own."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NothingToRemember:
    """The observation was read and holds nothing worth remembering."""

    extractor: str
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ExtractionFailed:
    """The observation could not be read."""

    extractor: str
    reason: str
    """Machine-readable, e.g. ``PROVIDER_TIMEOUT``."""
    detail: str
    retryable: bool
    """Whether the same observation may succeed later without anybody changing anything."""


Extraction: TypeAlias = Extracted | NothingToRemember | ExtractionFailed


class Extractor(Protocol):
    """Reads candidates from observations. Never raises for what a source or a provider does."""

    async def extract(self, clean: CleanObservation) -> Extraction:
        """Read one observation."""


FREE_TEXT = frozenset(
    {SourceKind.DOCUMENT, SourceKind.CONVERSATION, SourceKind.FILE, SourceKind.URL, SourceKind.STATEMENT}
)
"""Kinds that hold no structure of their own: without a model nobody can say that there is nothing in them."""


class FirstThatReads:
    """Asks extractors one after another; the first that finds something, or fails, has the word.

    When none finds anything in free text and no model is among them, that is a failure and not NO_MEMORY: the text
    may well hold a decision, and is to be tried again once a model is configured.
    """

    def __init__(self, extractors: Sequence[Extractor], *, reads_free_text: bool) -> None:
        self._extractors = tuple(extractors)
        self._reads_free_text = reads_free_text

    async def extract(self, clean: CleanObservation) -> Extraction:
        """Read one observation."""
        last: Extraction = NothingToRemember(extractor="", reason="no extractor")
        for extractor in self._extractors:
            last = await extractor.extract(clean)
            if not isinstance(last, NothingToRemember):
                return last
        if clean.observation.kind in FREE_TEXT and not self._reads_free_text:
            return ExtractionFailed(
                extractor=last.extractor,
                reason="EXTRACTOR_NOT_CONFIGURED",
                detail="the text has no structure that a parser knows, and no model is configured to read free text",
                retryable=True,
            )
        return last
