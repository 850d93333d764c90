"""The state port: what the index must know besides the points, changed in one transaction with the applied position.

- which projection of which (family, branch) was written, at which position: an older one is refused;
- the statistics of BM25 per project and branch, over current heads only: number, lengths, document frequencies, and the
  sum of the heads' vectors. Nothing is shared between projects;
- the features of every text, kept once per project and text: exact term counts and the dense vector for scoring,
  sentence and word vectors for the support signals. Equal texts are computed once;
- the calibration of the support signals.

One state belongs to one collection (one model and recipe). Adapter: ``state_sqlite``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from index_svc.domain import Projection
from index_svc.sparse import CorpusStatistics, TermVector
from index_svc.support import Calibration

Vector = NDArray[np.float32]
Matrix = NDArray[np.float32]
HalfMatrix = NDArray[np.float16]


@dataclass(frozen=True, slots=True, eq=False)
class TextFeatures:
    """Everything that is computed from one embedding text."""

    text_hash: str
    terms: TermVector
    dense: Vector
    sentences: HalfMatrix
    words: tuple[str, ...]
    """Distinct words that are no stop words; empty when the model has no word vectors."""


@dataclass(frozen=True, slots=True, eq=False)
class RankingFeatures:
    """What scoring a candidate needs."""

    terms: TermVector
    dense: Vector


@dataclass(frozen=True, slots=True, eq=False)
class SupportFeatures:
    """What the support signals need of a top candidate, in single precision: halves are slow to compute with."""

    sentences: Matrix
    words: Matrix


@dataclass(frozen=True, slots=True, eq=False)
class CorpusCentre:
    """The mean of the heads' vectors of a project and branch."""

    documents: int
    mean: Vector


@dataclass(frozen=True, slots=True)
class StoredPointState:
    """What was last written of one point."""

    point_id: str
    revision: str
    role: str
    text_hash: str
    content_hash: str
    position: int


@dataclass(frozen=True, slots=True)
class Batch:
    """Changes that belong together.

    ``applied`` names for each project the position up to which, with this batch, every commit is in the index.
    Texts and words that are stored already may be left out.
    """

    projections: tuple[Projection, ...] = ()
    texts: Mapping[str, Sequence[TextFeatures]] = field(default_factory=dict)
    """By project."""
    words: Mapping[str, Mapping[str, Vector]] = field(default_factory=dict)
    """By project: vectors of words that are new there."""
    applied: Mapping[str, int] = field(default_factory=dict)


class StateStore(Protocol):
    """The state of one collection. Methods are quick and synchronous; writes belong in a thread."""

    def apply(self, batch: Batch) -> tuple[bool, ...]:
        """Write a batch atomically; say for each projection whether it was taken (an older one than stored is not).

        The applied position of a project never goes back. A projection whose text is neither stored nor in the batch
        is a ``ValueError``, and nothing is written.
        """

    def known_texts(self, project: str, text_hashes: Sequence[str]) -> frozenset[str]:
        """Return which texts have their features stored."""

    def known_words(self, project: str, words: Sequence[str]) -> frozenset[str]:
        """Return which words have their vectors stored."""

    def family_points(self, project: str, branch: str, family: str) -> tuple[StoredPointState, ...]:
        """Return the points last written for a family on a branch."""

    def family_position(self, project: str, branch: str, family: str) -> int | None:
        """Return the position of the projection last written, also after a removal; None for an unknown family."""

    def applied_position(self, project: str) -> int:
        """Return the position up to which every commit of the project is in the index."""

    def statistics(self, project: str, branch: str, terms: Sequence[int]) -> CorpusStatistics:
        """Return the statistics of the heads of a project and branch, for the given terms."""

    def centre(self, project: str, branch: str) -> CorpusCentre | None:
        """Return the mean vector of the heads; None while there are none."""

    def ranking_features(self, project: str, text_hashes: Sequence[str]) -> dict[str, RankingFeatures]:
        """Return the features that scoring needs, of the texts that are stored."""

    def support_features(self, project: str, text_hashes: Sequence[str]) -> dict[str, SupportFeatures]:
        """Return the features that the support signals need, of the texts that are stored."""

    def stored_texts(self, project: str, text_hashes: Sequence[str]) -> dict[str, TextFeatures]:
        """Return the whole features of texts, for a rebuild with the same model; damaged ones are left out.

        Vectors of their words are not among them: those are few and quickly made again.
        """

    def branches(self, project: str) -> tuple[str, ...]:
        """Return the branches of a project that have heads."""

    def projects(self) -> tuple[str, ...]:
        """Return the projects that have an applied position."""

    def calibration(self, project: str, branch: str) -> Calibration | None:
        """Return the last calibration of the support signals."""

    def save_calibration(self, project: str, branch: str, calibration: Calibration) -> None:
        """Keep a calibration."""

    def delete_project(self, project: str) -> None:
        """Remove every trace of a project."""

    def close(self) -> None:
        """Close the files. Calling it twice is harmless."""
