"""Plain BM25 without governance: what a search engine out of the box would answer.

k1 1.2, b 0.75, lower-cased words without accents, no stemming, over title and text (Robertson and Zaragoza 2009).
"""

from __future__ import annotations

import math
import re
import unicodedata
from collections import Counter
from collections.abc import Sequence

from dsearch.evaluation.dataset import Document

K1 = 1.2
B = 0.75


def words(text: str) -> list[str]:
    """Return the lower-cased words of a text, accents stripped."""
    folded = "".join(c for c in unicodedata.normalize("NFKD", text.lower()) if not unicodedata.combining(c))
    return re.findall(r"[a-z0-9]+", folded)


class PlainBm25:
    """An index of all documents, in force or not."""

    def __init__(self, documents: Sequence[Document]) -> None:
        self._ids = [document.id for document in documents]
        self._counts = [Counter(words(f"{document.title}\n{document.text}")) for document in documents]
        self._lengths = [sum(counts.values()) for counts in self._counts]
        self._average = sum(self._lengths) / max(1, len(self._lengths))
        frequency = Counter(term for counts in self._counts for term in counts)
        total = len(documents)
        self._idf = {term: math.log(1 + (total - n + 0.5) / (n + 0.5)) for term, n in frequency.items()}

    def rank(self, text: str, depth: int = 50) -> list[tuple[str, float]]:
        """Return (document id, score), best first."""
        scores: list[tuple[float, int]] = []
        terms = words(text)
        for index, counts in enumerate(self._counts):
            norm = K1 * (1 - B + B * self._lengths[index] / self._average)
            score = sum(
                self._idf[term] * counts[term] * (K1 + 1) / (counts[term] + norm) for term in terms if term in counts
            )
            if score > 0:
                scores.append((-score, index))
        scores.sort()
        return [(self._ids[index], -score) for score, index in scores[:depth]]
