"""A decorator around an embedder that remembers the documents of admission: what is compared is indexed soon after.

An import asks for the neighbours of each text and then publishes it. Without this, each text would be embedded twice,
and the same text of a second attempt once more.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from typing import Final

import numpy as np

from index_svc.embedder import Embedder, EmbedderIdentity, Matrix, Vector

DEFAULT_CAPACITY: Final = 4_096
"""Texts that are remembered: 8 MB at 512 dimensions."""


class RememberingEmbedder:
    """The embedder port, with a memory that :meth:`embed_and_remember` fills and ``embed_documents`` reads."""

    def __init__(self, inner: Embedder, *, capacity: int = DEFAULT_CAPACITY) -> None:
        self._inner = inner
        self._capacity = capacity
        self._known: OrderedDict[str, Vector] = OrderedDict()

    @property
    def identity(self) -> EmbedderIdentity:
        """Model and dimensions."""
        return self._inner.identity

    @property
    def has_word_vectors(self) -> bool:
        """As the inner one says."""
        return self._inner.has_word_vectors

    async def embed_documents(self, texts: Sequence[str]) -> Matrix:
        """Return one unit vector per text; those that are remembered are not made again."""
        found = {text: vector for text in texts if (vector := self._known.get(text)) is not None}
        missing = [text for text in texts if text not in found]
        made = await self._inner.embed_documents(missing)
        if not found:
            return made
        found |= dict(zip(missing, made, strict=True))
        return np.stack([found[text] for text in texts])

    async def embed_and_remember(self, texts: Sequence[str]) -> Matrix:
        """Return one unit vector per text, and remember them; the longest unused are forgotten first."""
        vectors = await self.embed_documents(texts)
        for text, vector in zip(texts, vectors, strict=True):
            self._known[text] = vector
            self._known.move_to_end(text)
        while len(self._known) > self._capacity:
            self._known.popitem(last=False)
        return vectors

    async def embed_query(self, text: str) -> Vector:
        """Return the unit vector of one question."""
        return await self._inner.embed_query(text)

    async def embed_queries(self, texts: Sequence[str]) -> Matrix:
        """Return the unit vectors of many questions."""
        return await self._inner.embed_queries(texts)

    async def word_vectors(self, words: Sequence[str]) -> Matrix:
        """Return one unit vector per single word."""
        return await self._inner.word_vectors(words)

    async def close(self) -> None:
        """Close the inner one."""
        await self._inner.close()
