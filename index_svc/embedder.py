"""The embedder port: texts to unit vectors, and the one place that refuses vectors that are none.

Adapters: ``embedder_offline`` (a model that ships in a package), ``embedder_openai`` (any OpenAI-compatible API).
The contract is ``tests/contract/test_embedder_contract.py``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from service_kit.errors import DomainError, Reason, dependency_unavailable

Matrix = NDArray[np.float32]
Vector = NDArray[np.float32]

# Below this a "vector" has no direction that a float16 copy would keep.
_MIN_NORM = 1e-6


@dataclass(frozen=True, slots=True)
class EmbedderIdentity:
    """Which vector space the vectors of an embedder live in. Two identities never share a collection."""

    model: str
    dimensions: int

    def __str__(self) -> str:
        return f"{self.model}/{self.dimensions}"


class Embedder(Protocol):
    """Texts to unit vectors of one model.

    Every method returns finite unit vectors of ``identity.dimensions`` or raises: a ``DomainError`` with
    ``DEPENDENCY_UNAVAILABLE`` when trying again may help, with ``MODEL_MISMATCH`` when it cannot. No input text
    (empty, 10 kB, lone surrogates) makes it raise anything else.
    """

    @property
    def identity(self) -> EmbedderIdentity:
        """Model and dimensions."""

    @property
    def has_word_vectors(self) -> bool:
        """Whether :meth:`word_vectors` means something for this model (single words in the space of sentences)."""

    async def embed_documents(self, texts: Sequence[str]) -> Matrix:
        """Return one unit vector per text, in order. For bulk work; it never holds up :meth:`embed_query`."""

    async def embed_query(self, text: str) -> Vector:
        """Return the unit vector of one question. Answers are cached."""

    async def embed_queries(self, texts: Sequence[str]) -> Matrix:
        """Return the unit vectors of questions asked in bulk (calibration); like embed_query, but in the background."""

    async def word_vectors(self, words: Sequence[str]) -> Matrix:
        """Return one unit vector per single word. Only where ``has_word_vectors``."""

    async def close(self) -> None:
        """Stop workers and connections. Calling it twice is harmless."""


def checked(vectors: NDArray[np.floating], count: int, identity: EmbedderIdentity) -> Matrix:
    """Return the vectors as unit float32 rows; refuse what cannot be searched.

    NaN and infinity would be stored silently by the vector engine and poison every score; a zero vector has no
    direction; another dimension or number of rows means that the answer belongs to something else.
    """
    matrix = np.asarray(vectors, dtype=np.float32)
    if matrix.ndim != 2 or matrix.shape[0] != count:
        raise dependency_unavailable("embedder", f"the embedder answered {matrix.shape} for {count} texts")
    if count and matrix.shape[1] != identity.dimensions:
        raise DomainError(
            Reason.MODEL_MISMATCH,
            f"the embedder answers vectors of {matrix.shape[1]} dimensions where {identity} is configured; "
            "set the dimensions of the model and rebuild the index",
            metadata={"expected": str(identity), "actual": f"{identity.model}/{matrix.shape[1]}"},
        )
    norms = np.linalg.norm(matrix, axis=1, keepdims=True)
    if not np.isfinite(norms).all() or not np.isfinite(matrix).all():
        raise dependency_unavailable("embedder", "the embedder answered a vector with NaN or infinite components")
    if (norms < _MIN_NORM).any():
        raise dependency_unavailable("embedder", "the embedder answered a zero vector")
    return np.asarray(matrix / norms, dtype=np.float32)
