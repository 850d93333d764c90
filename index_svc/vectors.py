"""The vector store port: one searchable set of points per (model, dimensions, recipe), swapped as a whole.

Adapters: ``vectors_edge`` (Qdrant in process). The contract is ``tests/contract/test_vectors_contract.py``.

Writes are conditional on the ledger position that a projection was read at: a slow worker never overwrites a newer
state, and a removal leaves its position behind so that a late replay cannot bring the point back.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Protocol

import numpy as np
from numpy.typing import NDArray

from index_svc.domain import IndexPoint, PointFilter, StructuralQuery
from service_kit.errors import DomainError, Reason

Vector = NDArray[np.float32]

_SLUG: Final = re.compile(r"[^a-z0-9]+")


@dataclass(frozen=True, slots=True)
class CollectionSpec:
    """What the vectors of a collection are. Two specs never share a collection."""

    model: str
    dimensions: int
    recipe: str

    def __str__(self) -> str:
        return f"{self.model}/{self.dimensions}/{self.recipe}"

    def base_name(self) -> str:
        """Return the collection's name without its generation: readable, and unique per spec."""
        digest = hashlib.sha256(str(self).encode("utf-8")).hexdigest()[:8]
        slug = _SLUG.sub("-", self.model.lower()).strip("-")[:40]
        return f"memories-{slug}-{self.dimensions}-{self.recipe}-{digest}"


@dataclass(frozen=True, slots=True, eq=False)
class StoredPoint:
    """A point with its vectors."""

    point: IndexPoint
    dense: Vector
    sparse: Mapping[int, float]


@dataclass(frozen=True, slots=True)
class Tombstone:
    """A point that left the index, and the position at which it did."""

    project: str
    point_id: str
    position: int


@dataclass(frozen=True, slots=True)
class Hit:
    """A found point; the score is the engine's, good for order only."""

    point_id: str
    point: IndexPoint
    score: float


class Collection(Protocol):
    """One set of points of one spec."""

    @property
    def name(self) -> str:
        """Its name, with its generation."""

    @property
    def spec(self) -> CollectionSpec:
        """What its vectors are."""

    async def upsert(self, points: Sequence[StoredPoint]) -> int:
        """Write the points whose stored position is not newer; return how many. Refuses vectors that are none."""

    async def remove(self, tombstones: Sequence[Tombstone]) -> int:
        """Remove points unless their stored position is newer; return how many were there. Positions stay."""

    async def search_dense(self, vector: Vector, where: PointFilter, limit: int) -> list[Hit]:
        """Return the nearest points by cosine, exactly."""

    async def search_sparse(self, weights: Mapping[int, float], where: PointFilter, limit: int) -> list[Hit]:
        """Return the points with the largest dot product; those that share nothing are not among them."""

    async def search_structural(self, named: StructuralQuery, where: PointFilter, limit: int) -> list[Hit]:
        """Return points that have something that the question names; the score counts the matches."""

    async def get(self, point_ids: Sequence[str]) -> dict[str, IndexPoint]:
        """Return the points that exist, by id."""

    async def vectors(self, point_ids: Sequence[str]) -> dict[str, Vector]:
        """Return the dense unit vectors of the points that exist."""

    def scroll(self, where: PointFilter, page: int = 500) -> AsyncIterator[Sequence[IndexPoint]]:
        """Yield all matching points in pages, in the order of their ids."""

    async def count(self, where: PointFilter) -> int:
        """Return how many points match."""

    async def is_empty(self) -> bool:
        """Return whether nothing was ever written, of any project."""

    async def delete_project(self, project: str) -> None:
        """Remove every trace of a project, tombstones included."""

    async def flush(self) -> None:
        """Make everything written so far survive a power cut."""


class VectorStore(Protocol):
    """The collections: one live, at most one being filled."""

    @property
    def live(self) -> Collection:
        """The collection that serves. Take it once per request: it stays usable until it is retired."""

    async def ensure_collection(self, spec: CollectionSpec) -> Collection:
        """Open the live collection, or create the first one. Another spec than the live one is refused."""

    async def begin_rebuild(self, spec: CollectionSpec) -> Collection:
        """Return a new empty collection; leftovers of an abandoned rebuild are removed."""

    async def swap(self, collection: Collection) -> Collection | None:
        """Make a filled collection the live one, atomically, also for the next start; return the one before.

        None when the one before is not open, because it is of another spec; it is removed.
        """

    async def discard(self, collection: Collection) -> None:
        """Close and delete a collection that is not live."""

    async def close(self) -> None:
        """Flush and close everything. Calling it twice is harmless."""


def model_mismatch(expected: CollectionSpec, actual: CollectionSpec) -> DomainError:
    """Return the refusal to mix vector spaces, with the remedy."""
    return DomainError(
        Reason.MODEL_MISMATCH,
        f"the index holds vectors of {expected}, the configured embedder makes {actual}; "
        "configure the old model again, or rebuild the index with the new one",
        metadata={"expected": str(expected), "actual": str(actual)},
    )


def check_vector(vector: Vector, spec: CollectionSpec) -> Vector:
    """Return the vector as float32; refuse another dimension, NaN, infinity and zero.

    The engine would take NaN silently, and no search would ever be right again.
    """
    array = np.asarray(vector, dtype=np.float32)
    if array.shape != (spec.dimensions,):
        raise DomainError(
            Reason.MODEL_MISMATCH,
            f"a vector of shape {array.shape} does not fit {spec}",
            metadata={"expected": str(spec), "actual": f"dimensions={array.shape}"},
        )
    if not np.isfinite(array).all() or not array.any():
        raise ValueError("a vector must be finite and not zero")
    return array
