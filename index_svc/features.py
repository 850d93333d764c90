"""From embedding texts to stored features: all that a batch needs of the embedder, in as few calls as possible."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from index_svc.embedder import Embedder, Matrix, Vector
from index_svc.recipe import EmbeddingText, combine_views, dense_views, sentences, sparse_text
from index_svc.sparse import MAX_TOKEN_CHARS, term_vector, words
from index_svc.state import TextFeatures

MAX_WORDS = 512
"""Distinct words of one text that get a vector; the first ones."""


@dataclass(frozen=True, slots=True, eq=False)
class ComputedTexts:
    """Features of texts, and the vectors of their words that were not known before."""

    texts: tuple[TextFeatures, ...]
    words: Mapping[str, Vector]


def distinct_words(text: EmbeddingText) -> tuple[str, ...]:
    """Return the words of a text that get a vector."""
    found = dict.fromkeys(w for w in words(sparse_text(text)) if len(w) <= MAX_TOKEN_CHARS)
    return tuple(found)[:MAX_WORDS]


async def compute_features(
    embedder: Embedder,
    texts: Sequence[EmbeddingText],
    known_words: frozenset[str] = frozenset(),
    stored: Mapping[str, TextFeatures] | None = None,
) -> ComputedTexts:
    """Return the features of texts; equal texts are computed once.

    Args:
        embedder: Makes the vectors.
        texts: What to compute.
        known_words: Words whose vectors are not made again.
        stored: Features by text hash that the same model made before; taken as they are.
    """
    ready = stored or {}
    distinct = {t.text_hash: t for t in texts}
    new = {h: t for h, t in distinct.items() if h not in ready}
    views = {h: dense_views(t) for h, t in new.items()}
    split = {h: sentences(t) for h, t in new.items()}
    spoken = {h: distinct_words(t) if embedder.has_word_vectors else () for h, t in new.items()}
    spoken |= {h: ready[h].words for h in distinct if h in ready}
    new_words = sorted({w for found in spoken.values() for w in found} - known_words)
    order = list(dict.fromkeys(s for h in new for s in (*views[h], *split[h])))
    vectors = await embedder.embed_documents(order)
    row = {s: i for i, s in enumerate(order)}

    def rows(of: Sequence[str]) -> Matrix:
        return vectors[[row[s] for s in of]] if of else np.empty((0, vectors.shape[1]), dtype=np.float32)

    word_matrix = await embedder.word_vectors(new_words) if new_words else np.empty((0, 0), dtype=np.float32)
    computed = [
        ready[h]
        if h in ready
        else TextFeatures(
            text_hash=h,
            terms=term_vector(sparse_text(t)),
            dense=combine_views(rows(views[h])),
            sentences=rows(split[h]).astype(np.float16),
            words=spoken[h],
        )
        for h, t in distinct.items()
    ]
    return ComputedTexts(tuple(computed), dict(zip(new_words, word_matrix, strict=True)))
