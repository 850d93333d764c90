"""How strongly the stored memories support an answer at all: three signals, apart from the ranking score. Pure.

- ``sent``: the best cosine of the question with one sentence of the top three;
- ``cc``: the best centred cosine over the candidates (memory minus the corpus mean, question minus the mean of generic
  questions of its language): centring takes away what all memories, and all questions, have in common;
- ``late``: the best of the top three of Σ idf(w) · max(0, best cosine of w with a word of the memory) / Σ idf.

``total`` is their sum. Its scale differs between corpora, so a bank of questions that no corpus answers is asked once
per project and branch; ``z`` says how far a question lies above that bank. Who decides is the caller.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from importlib.resources import files
from typing import Final

import numpy as np
from numpy.typing import NDArray

from index_svc.recipe import unit_rows
from index_svc.sparse import fold

TOP: Final = 3
BANK_VERSION: Final = "b1"
LANGUAGES: Final = ("en", "pt")

_PORTUGUESE_TEXT: Final = """
    a ao aos as com como da das de do dos e em essa esse esta este foi ha isso ja mais mas na nao nas no nos o onde
    os ou para pela pelo por porque posso preciso pode qual quais quando quanto que quem se sem ser seu sobre sua tem
    um uma
"""
_PORTUGUESE: Final[frozenset[str]] = frozenset(_PORTUGUESE_TEXT.split())
_ENGLISH_TEXT: Final = """
    a about an and are be can did do does for from has have how i if in is it its me my of on one or our should some
    that the there they this to was we were what when where which who why will with without you your
"""
_ENGLISH: Final[frozenset[str]] = frozenset(_ENGLISH_TEXT.split())


@dataclass(frozen=True, slots=True)
class Support:
    """The signals for one question against one corpus."""

    sent: float
    cc: float
    late: float

    @property
    def total(self) -> float:
        """The sum of the signals: the number that is compared with the bank."""
        return self.sent + self.cc + self.late


NO_SUPPORT: Final = Support(0.0, 0.0, 0.0)


@dataclass(frozen=True, slots=True)
class Calibration:
    """What questions that nobody answers score against one corpus."""

    mean: float
    deviation: float
    size: int
    documents: int
    """How many heads the corpus had when it was measured."""
    bank: str = BANK_VERSION

    def z(self, total: float) -> float:
        """Return how many deviations a total lies above the bank's mean."""
        return (total - self.mean) / self.deviation if self.deviation > 0 else 0.0

    def is_outdated(self, documents: int) -> bool:
        """Say whether the corpus changed noticeably: by more than a tenth and more than five heads."""
        changed = abs(documents - self.documents)
        return self.bank != BANK_VERSION or (changed > 5 and changed > 0.1 * max(self.documents, 1))


def calibrate(totals: Sequence[float], documents: int) -> Calibration | None:
    """Return mean and deviation of the bank's totals; None when there is nothing to measure against."""
    if documents == 0 or len(totals) < 2:
        return None
    values = np.asarray(totals, dtype=np.float64)
    return Calibration(float(values.mean()), float(values.std(ddof=1)), len(totals), documents)


@dataclass(frozen=True, slots=True, eq=False)
class QueryWords:
    """The distinct non-stop words of a question: their weights and vectors."""

    idf: NDArray[np.float64]
    vectors: NDArray[np.float32]


def sentence_signal(query: NDArray[np.float32], sentences: Sequence[NDArray[np.floating]]) -> float:
    """Return ``sent`` over the sentence vectors of the top memories."""
    best = [float((m.astype(np.float32) @ query).max()) for m in sentences[:TOP] if len(m)]
    return max(best, default=0.0)


def centre(vectors: NDArray[np.floating], mean: NDArray[np.floating]) -> NDArray[np.float32]:
    """Return the unit rows of vectors minus a mean."""
    return unit_rows(np.asarray(vectors, dtype=np.float32) - np.asarray(mean, dtype=np.float32))


def centred_signal(
    query: NDArray[np.float32],
    generic_mean: NDArray[np.float32],
    documents: NDArray[np.floating],
    corpus_mean: NDArray[np.floating],
) -> NDArray[np.float32]:
    """Return the centred cosine of every candidate; ``cc`` is the largest."""
    if not len(documents):
        return np.zeros(0, dtype=np.float32)
    return np.asarray(centre(documents, corpus_mean) @ centre(query[None, :], generic_mean)[0], dtype=np.float32)


def late_signal(words: QueryWords, documents: Sequence[NDArray[np.floating]]) -> float:
    """Return ``late`` over the word vectors of the top memories; 0 without word vectors."""
    total = float(words.idf.sum()) if len(words.idf) else 0.0
    if total <= 0.0:
        return 0.0
    best = 0.0
    for matrix in documents[:TOP]:
        if len(matrix):
            nearest = (words.vectors @ matrix.astype(np.float32).T).max(axis=1)
            best = max(best, float(words.idf @ np.maximum(nearest, 0.0)) / total)
    return best


def language_of(text: str) -> str:
    """Return ``en`` or ``pt``, by the function words of a question; English when in doubt."""
    words = fold(text).lower().split()
    stripped = [w.strip(".,;:!?\"'()¿¡") for w in words]
    portuguese = sum(w in _PORTUGUESE for w in stripped) + 0.5 * sum(ch in "ãõçáéíóúâêôà" for ch in text.lower())
    english = sum(w in _ENGLISH for w in stripped)
    return "pt" if portuguese > english else "en"


@lru_cache(maxsize=1)
def generic_questions() -> Mapping[str, tuple[str, ...]]:
    """Return the questions that could be asked of any corpus, by language: what all questions have in common."""
    rows = _lines("generic.jsonl")
    return {lang: tuple(r["text"] for r in rows if r["lang"] == lang) for lang in LANGUAGES}


@lru_cache(maxsize=1)
def offtopic_questions() -> tuple[tuple[str, str], ...]:
    """Return the bank: (language, text) of questions that a store of a team's decisions does not answer."""
    return tuple((r["lang"], r["text"]) for r in _lines("offtopic.jsonl"))


def finite(value: float) -> float:
    """Return the value, or 0 for NaN and infinity: a score that leaves this service is a number."""
    return value if math.isfinite(value) else 0.0


def _lines(name: str) -> list[dict[str, str]]:
    text = files("index_svc").joinpath("data", name).read_text("utf-8")
    return [json.loads(line) for line in text.splitlines() if line.strip()]
