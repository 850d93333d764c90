"""The embedding text: which fields of a memory the vectors are made of, and how. Documented here, versioned below.

Three parts, measured on four decision corpora (leaving ``M`` out was the largest single mistake):

==== ==========================================================================================================
T    title
A    summary
M    details, objective, trigger, rationale, rules, steps, alternatives, examples, task, outcome, in that order
==== ==========================================================================================================

- **sparse**: one field, ``T + A + M`` (:func:`sparse_text`);
- **dense**: two views, ``T. A`` and ``T. M``; the vector is the unit mean of the two unit vectors
  (:func:`dense_views`, :func:`combine_views`). A part that is empty drops its view;
- **sentences** of ``T``, ``A`` and ``M``, 25 to 400 characters, for the evidence that a hit answers a question
  (:func:`sentences`).

Metadata (modules, files, domain, tags) is matched by structure, never put into the text: it made ranking worse.

Change anything that alters a text or a vector, and ``RECIPE_VERSION`` changes with it: the version is part of the
name of the collection, so old and new vectors never meet.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

RECIPE_VERSION: Final = "r1"

MIN_SENTENCE_CHARS: Final = 25
MAX_SENTENCE_CHARS: Final = 400
MAX_SENTENCES: Final = 64
"""Sentences kept for one memory: the first ones; the rest of a very long text adds cost and no evidence."""

# A sentence ends at .!?… or the CJK full stops, before white space or (CJK) anything; a blank line always ends one.
_BOUNDARY: Final = re.compile(r"(?<=[.!?…])[\"')\]]*\s+|(?<=[。！？])|\n\s*\n|\n(?=\s*(?:[-*•]|\d{1,2}[.)])\s)")
_SPACE: Final = re.compile(r"\s+")
# "e.g. x", "p. ex. y", "Dr. Z": a stop after these ends no sentence.
_ABBREVIATION: Final = re.compile(
    r"(?:\b(?:e\.g|i\.e|etc|vs|cf|p\.ex|p|ex|fig|sec|dr|sr|sra|no|art)\.|\b[A-Z]\.)$", re.IGNORECASE
)


@dataclass(frozen=True, slots=True)
class MemoryText:
    """The fields of a revision's content that its embedding text is made of."""

    title: str
    summary: str = ""
    details: str = ""
    objective: str = ""
    trigger: str = ""
    rationale: str = ""
    rules: tuple[str, ...] = ()
    steps: tuple[str, ...] = ()
    alternatives: tuple[str, ...] = ()
    examples: tuple[str, ...] = ()
    task: str = ""
    outcome: str = ""


@dataclass(frozen=True, slots=True)
class EmbeddingText:
    """The three parts, cleaned: what every vector and every term of a memory comes from."""

    title: str
    summary: str
    matter: str

    @property
    def text_hash(self) -> str:
        """SHA-256 over recipe version and parts: equal hashes mean equal vectors, terms and sentences."""
        body = f"{RECIPE_VERSION}\x1f{self.title}\x1f{self.summary}\x1f{self.matter}"
        return hashlib.sha256(body.encode("utf-8")).hexdigest()


def embedding_text(memory: MemoryText) -> EmbeddingText:
    """Return the three parts of a memory's embedding text."""
    matter = (
        memory.details,
        memory.objective,
        memory.trigger,
        memory.rationale,
        *memory.rules,
        *memory.steps,
        *memory.alternatives,
        *memory.examples,
        memory.task,
        memory.outcome,
    )
    return EmbeddingText(
        title=_clean(memory.title),
        summary=_clean(memory.summary),
        matter="\n\n".join(part for part in map(_clean, matter) if part),
    )


def sparse_text(text: EmbeddingText) -> str:
    """Return the one field that BM25 sees."""
    return "\n".join(part for part in (text.title, text.summary, text.matter) if part)


def dense_views(text: EmbeddingText) -> tuple[str, ...]:
    """Return the one or two texts to embed."""
    views = tuple(f"{text.title}. {part}" for part in (text.summary, text.matter) if part)
    return views or (text.title,)


def combine_views(vectors: NDArray[np.float32]) -> NDArray[np.float32]:
    """Return the unit mean of the unit vectors of a memory's views, ``[views, dimensions]`` → ``[dimensions]``."""
    total = unit_rows(vectors).sum(axis=0, keepdims=True)
    mean: NDArray[np.float32] = unit_rows(total)[0]
    return mean


def sentences(text: EmbeddingText) -> tuple[str, ...]:
    """Return the sentences that can show what a memory says, shortest 25, longest 400 characters.

    A fragment that is too short joins the sentence after it; one that is too long is cut at a space.
    """
    found: list[str] = []
    for part in (text.title, text.summary, text.matter):
        found += _split(part)
        if len(found) >= MAX_SENTENCES:
            return tuple(found[:MAX_SENTENCES])
    if not found and text.title:
        found = [_SPACE.sub(" ", text.title)[:MAX_SENTENCE_CHARS]]
    return tuple(found)


def unit_rows(vectors: NDArray[np.float32]) -> NDArray[np.float32]:
    """Return the rows divided by their length; a zero row stays zero."""
    norms = np.linalg.norm(vectors, axis=-1, keepdims=True)
    return np.asarray(vectors / np.where(norms > 0, norms, 1.0), dtype=np.float32)


def _split(part: str) -> Sequence[str]:
    found: list[str] = []
    open_text = ""
    for raw in _BOUNDARY.split(part):
        piece = _SPACE.sub(" ", raw).strip()
        if not piece:
            continue
        joined = f"{open_text} {piece}" if open_text else piece
        if len(joined) < MIN_SENTENCE_CHARS or _ABBREVIATION.search(joined):
            open_text = joined
            continue
        found += _cut(joined)
        open_text = ""
    if open_text:
        if len(open_text) >= MIN_SENTENCE_CHARS:
            found += _cut(open_text)
        elif found and len(found[-1]) + len(open_text) < MAX_SENTENCE_CHARS:
            found[-1] = f"{found[-1]} {open_text}"
    return found


def _cut(sentence: str) -> Sequence[str]:
    pieces: list[str] = []
    while len(sentence) > MAX_SENTENCE_CHARS:
        at = sentence.rfind(" ", MIN_SENTENCE_CHARS, MAX_SENTENCE_CHARS)
        at = at if at > 0 else MAX_SENTENCE_CHARS
        pieces.append(sentence[:at].strip())
        sentence = sentence[at:].strip()
    if len(sentence) >= MIN_SENTENCE_CHARS:
        pieces.append(sentence)
    return pieces


def _clean(text: str) -> str:
    """Drop what no model reads: lone surrogates and NUL, which also break encoders and drivers."""
    return text.encode("utf-8", "replace").decode("utf-8").replace("\x00", " ").strip()
