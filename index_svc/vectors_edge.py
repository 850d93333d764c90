"""The vector store on Qdrant Edge: a real Qdrant shard inside this process, one folder per collection.

    root/
      LOCK               held exclusively while the store is open
      LIVE               name of the live collection; replaced by rename
      collections/
        <name>/
          collection.json    the spec
          shard/             Qdrant's own files

What the engine does not do for us, and what follows here:

- A second opener of a shard breaks the first holder's flush, so our own lock is taken before anything is opened.
- ``optimize()`` holds the interpreter lock for seconds to minutes: it is never called. Without it search is exact.
- NaN is accepted silently: vectors are checked on the way in.
- A bool in a match is taken as an integer and finds no stored bool: flags are stored as 0 and 1.
- Ids come back as UUID objects: they leave here as text.
- A conditional upsert takes one condition for a whole batch, but positions differ by point. This process is the only
  writer (by the lock), so positions are read and compared under a mutex instead.
"""

from __future__ import annotations

import asyncio
import fcntl
import json
import os
import shutil
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from threading import Lock
from typing import Any, Final

import numpy as np
import qdrant_edge as qe

from index_svc.domain import IndexPoint, PointFilter, Role, StructuralQuery
from index_svc.vectors import (
    Collection,
    CollectionSpec,
    Hit,
    StoredPoint,
    Tombstone,
    Vector,
    check_vector,
    model_mismatch,
)
from service_kit.errors import DomainError, Reason, dependency_unavailable, shutting_down

DENSE: Final = "dense"
SPARSE: Final = "terms"
REMOVED: Final = "REMOVED"
"""The role of a tombstone: a point without vectors that only keeps its position."""

BATCH: Final = 500
STRUCTURAL_SCAN: Final = 500
"""Points with a structural match that are scored, at most, before the best are taken."""

_ALL_ROLES: Final = frozenset(Role)
_KEYWORDS: Final = (
    "corpus",
    "visible",
    "family",
    "revision",
    "branch",
    "scope",
    "category",
    "state",
    "standing",
    "role",
    "domain",
    "modules",
    "files",
    "identifiers",
    "text_hash",
)
_INTEGERS: Final = ("valid_from", "valid_to", "recorded_from", "position")


class EdgeCollection:
    """One shard. Safe for several threads; writes take turns."""

    def __init__(self, name: str, spec: CollectionSpec, folder: Path, shard: qe.EdgeShard) -> None:
        self._name = name
        self._spec = spec
        self.folder = folder
        self._shard: qe.EdgeShard | None = shard
        self._writing = Lock()

    @property
    def name(self) -> str:
        """Its name, with its generation."""
        return self._name

    @property
    def spec(self) -> CollectionSpec:
        """What its vectors are."""
        return self._spec

    async def upsert(self, points: Sequence[StoredPoint]) -> int:
        """Write the points whose stored position is not newer."""
        prepared = [(p, check_vector(p.dense, self._spec)) for p in points]
        for stored in points:
            if (stored.point.model, stored.point.recipe) != (self._spec.model, self._spec.recipe):
                actual = CollectionSpec(stored.point.model, self._spec.dimensions, stored.point.recipe)
                raise model_mismatch(self._spec, actual)
            if not np.isfinite(np.fromiter(stored.sparse.values(), dtype=np.float64)).all():
                raise ValueError("a sparse vector must be finite")
        written = 0
        for start in range(0, len(prepared), BATCH):
            written += await asyncio.to_thread(self._upsert, prepared[start : start + BATCH])
        return written

    async def remove(self, tombstones: Sequence[Tombstone]) -> int:
        """Remove points unless their stored position is newer."""
        removed = 0
        for start in range(0, len(tombstones), BATCH):
            removed += await asyncio.to_thread(self._remove, tombstones[start : start + BATCH])
        return removed

    async def search_dense(self, vector: Vector, where: PointFilter, limit: int) -> list[Hit]:
        """Return the nearest points by cosine, exactly."""
        query = qe.Query.Nearest(check_vector(vector, self._spec), DENSE)  # type: ignore[arg-type]  # takes arrays too
        return self._query(query, where, limit, exact=True)

    async def search_sparse(self, weights: Mapping[int, float], where: PointFilter, limit: int) -> list[Hit]:
        """Return the points with the largest dot product."""
        used = {i: w for i, w in weights.items() if w > 0}
        if not used:
            return []
        query = qe.Query.Nearest(qe.SparseVector(list(used), list(used.values())), SPARSE)
        return [hit for hit in self._query(query, where, limit) if hit.score > 0]

    async def search_structural(self, named: StructuralQuery, where: PointFilter, limit: int) -> list[Hit]:
        """Return points that have something that the question names, most matches first."""
        if named.is_empty or limit <= 0:
            return []
        pairs = (
            ("files", named.files),
            ("modules", named.modules),
            ("identifiers", named.identifiers),
            ("domain", named.domains),
        )
        any_of = [qe.FieldCondition(key, match=qe.MatchAny(list(names))) for key, names in pairs if names]
        condition = qe.Filter(must=_conditions(where), should=list(any_of))
        records, _ = self._open().scroll(
            qe.ScrollRequest(limit=max(STRUCTURAL_SCAN, limit), filter=condition, with_payload=True)
        )
        hits = [
            Hit(str(r.id), point, float(len(named.matched_by(point))))
            for r in records
            if (point := _point(r.payload)) is not None
        ]
        return sorted(hits, key=lambda h: (-h.score, -h.point.importance, h.point_id))[:limit]

    async def get(self, point_ids: Sequence[str]) -> dict[str, IndexPoint]:
        """Return the points that exist, by id."""
        records = self._open().retrieve(list(point_ids), with_payload=True, with_vector=False)
        return {str(r.id): point for r in records if (point := _point(r.payload)) is not None}

    async def vectors(self, point_ids: Sequence[str]) -> dict[str, Vector]:
        """Return the dense vectors of the points that exist."""
        records = self._open().retrieve(list(point_ids), with_payload=False, with_vector=[DENSE])
        return {
            str(r.id): np.asarray(r.vector[DENSE], dtype=np.float32)
            for r in records
            if isinstance(r.vector, dict) and DENSE in r.vector
        }

    async def scroll(self, where: PointFilter, page: int = 500) -> AsyncIterator[Sequence[IndexPoint]]:
        """Yield all matching points in pages."""
        condition = qe.Filter(must=_conditions(where))
        after: Any = None
        while True:
            request = qe.ScrollRequest(offset=after, limit=page, filter=condition, with_payload=True)
            records, after = await asyncio.to_thread(self._open().scroll, request)
            points = [point for r in records if (point := _point(r.payload)) is not None]
            if points:
                yield points
            if after is None:
                return

    async def count(self, where: PointFilter) -> int:
        """Return how many points match."""
        return self._open().count(qe.CountRequest(exact=True, filter=qe.Filter(must=_conditions(where))))

    async def is_empty(self) -> bool:
        """Return whether nothing was ever written."""
        records, _ = self._open().scroll(qe.ScrollRequest(limit=1, with_payload=False))
        return not records

    async def delete_project(self, project: str) -> None:
        """Remove every trace of a project."""
        condition = qe.Filter(must=[_equals("project", project)])
        await asyncio.to_thread(self._update, qe.UpdateOperation.delete_points_by_filter(condition))

    async def flush(self) -> None:
        """Write everything to disk."""
        await asyncio.to_thread(self._flush)

    def close(self) -> None:
        """Flush and let go of the files."""
        with self._writing:
            shard, self._shard = self._shard, None
            if shard is not None:
                shard.flush()
                shard.close()

    def _open(self) -> qe.EdgeShard:
        if self._shard is None:
            raise shutting_down()
        return self._shard

    def _update(self, operation: qe.UpdateOperation) -> None:
        with self._writing:
            self._open().update(operation)

    def _flush(self) -> None:
        with self._writing:
            self._open().flush()

    def _upsert(self, points: Sequence[tuple[StoredPoint, Vector]]) -> int:
        with self._writing:
            shard = self._open()
            stored = self._positions([p.point.id for p, _ in points])
            newest: dict[str, qe.Point] = {}
            for p, dense in points:
                known = stored.get(p.point.id)
                if known is not None and known > p.point.position:
                    continue
                stored[p.point.id] = p.point.position
                vector = {DENSE: dense, SPARSE: qe.SparseVector(list(p.sparse), list(p.sparse.values()))}
                newest[p.point.id] = qe.Point(p.point.id, vector, _payload(p.point))  # type: ignore[arg-type]  # arrays
            if newest:
                shard.update(qe.UpdateOperation.upsert_points(list(newest.values())))
            return len(newest)

    def _remove(self, tombstones: Sequence[Tombstone]) -> int:
        with self._writing:
            shard = self._open()
            ids: list[Any] = [t.point_id for t in tombstones]
            records = shard.retrieve(ids, with_payload=["position", "role"], with_vector=False)
            stored = {str(r.id): _position(r.payload) for r in records}
            there = {str(r.id) for r in records if (r.payload or {}).get("role") != REMOVED}
            gone: dict[str, qe.Point] = {}
            for t in tombstones:
                known = stored.get(t.point_id)
                if known is None or known <= t.position:
                    stored[t.point_id] = t.position
                    payload = {"project": t.project, "position": t.position, "role": REMOVED}
                    gone[t.point_id] = qe.Point(t.point_id, {}, payload)
            if gone:
                shard.update(qe.UpdateOperation.upsert_points(list(gone.values())))
            return len(there & gone.keys())

    def _positions(self, ids: Sequence[str]) -> dict[str, int]:
        records = self._open().retrieve(list(ids), with_payload=["position"], with_vector=False)
        return {str(r.id): _position(r.payload) for r in records}

    def _query(self, query: qe.Query, where: PointFilter, limit: int, *, exact: bool = False) -> list[Hit]:
        if limit <= 0:
            return []
        found = self._open().query(
            qe.QueryRequest(
                limit,
                query=query,
                filter=qe.Filter(must=_conditions(where)),
                params=qe.SearchParams(exact=exact),
                with_payload=True,
            )
        )
        return [Hit(str(s.id), point, float(s.score)) for s in found if (point := _point(s.payload)) is not None]


class EdgeVectorStore:
    """The collections under one folder.

    Args:
        root: Folder of the store; made when missing. A second store on it is refused while this one is open.
    """

    def __init__(self, root: Path) -> None:
        self._root = root
        self._live: EdgeCollection | None = None
        self._others: dict[str, EdgeCollection] = {}
        (root / "collections").mkdir(parents=True, exist_ok=True)
        self._lock_file: int | None = os.open(root / "LOCK", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(self._lock_file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            os.close(self._lock_file)
            self._lock_file = None
            raise dependency_unavailable(
                "index", f"another process has the index in {root} open; stop it or use another folder"
            ) from error

    @property
    def live(self) -> EdgeCollection:
        """The collection that serves."""
        if self._live is None:
            raise dependency_unavailable("index", "the index is not open")
        return self._live

    async def ensure_collection(self, spec: CollectionSpec) -> EdgeCollection:
        """Open the live collection, or create the first one."""
        if self._live is not None:
            if self._live.spec != spec:
                raise model_mismatch(self._live.spec, spec)
            return self._live
        name = self._live_name()
        if name is None:
            self._live = self._create(spec)
            self._point_to(self._live.name)
        else:
            stored = self._stored_spec(name)
            if stored != spec:
                raise model_mismatch(stored, spec)
            self._live = self._load(name, stored)
        return self._live

    async def begin_rebuild(self, spec: CollectionSpec) -> EdgeCollection:
        """Return a new empty collection."""
        for other in list(self._others.values()):
            await self.discard(other)
        await self._remove_folders()
        collection = self._create(spec)
        self._others[collection.name] = collection
        return collection

    async def swap(self, collection: Collection) -> EdgeCollection | None:
        """Make a filled collection the live one."""
        new = self._others.get(collection.name)
        if new is None:
            raise ValueError(f"{collection.name} is not a collection being filled")
        await new.flush()
        before = self._live
        self._point_to(new.name)
        self._live = self._others.pop(new.name)
        if before is not None:
            self._others[before.name] = before
        else:
            # What was live could not be opened (another model): nobody reads it, and now nothing names it.
            await self._remove_folders()
        return before

    async def discard(self, collection: Collection) -> None:
        """Close and delete a collection that is not live."""
        if self._live is not None and collection.name == self._live.name:
            raise ValueError("the live collection cannot be discarded")
        other = self._others.pop(collection.name, None)
        if other is not None:
            await asyncio.to_thread(other.close)
            await asyncio.to_thread(shutil.rmtree, other.folder, ignore_errors=True)

    async def close(self) -> None:
        """Flush and close everything."""
        live, self._live = self._live, None
        for collection in [*self._others.values(), *([live] if live else [])]:
            await asyncio.to_thread(collection.close)
        self._others.clear()
        if self._lock_file is not None:
            os.close(self._lock_file)
            self._lock_file = None

    async def _remove_folders(self) -> None:
        """Remove every collection that is neither live nor in use."""
        kept = {self._live_name(), *self._others}
        for folder in self._collections():
            if folder.name not in kept:
                await asyncio.to_thread(shutil.rmtree, folder, ignore_errors=True)

    def _collections(self) -> list[Path]:
        return [p for p in sorted((self._root / "collections").iterdir()) if p.is_dir()]

    def _live_name(self) -> str | None:
        try:
            return (self._root / "LIVE").read_text("utf-8").strip() or None
        except FileNotFoundError:
            return None

    def _point_to(self, name: str) -> None:
        part = self._root / "LIVE.new"
        with part.open("w", encoding="utf-8") as file:
            file.write(f"{name}\n")
            file.flush()
            os.fsync(file.fileno())
        part.replace(self._root / "LIVE")
        _sync_folder(self._root)

    def _stored_spec(self, name: str) -> CollectionSpec:
        path = self._root / "collections" / name / "collection.json"
        try:
            data = json.loads(path.read_text("utf-8"))
            return CollectionSpec(str(data["model"]), int(data["dimensions"]), str(data["recipe"]))
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise DomainError(
                Reason.INTEGRITY,
                f"the description of collection {name} cannot be read; delete the index folder and rebuild",
                metadata={"entry": name},
            ) from error

    def _create(self, spec: CollectionSpec) -> EdgeCollection:
        taken = {p.name for p in self._collections()}
        number = next(n for n in range(1, 1_000_000) if f"{spec.base_name()}-{n:06d}" not in taken)
        name = f"{spec.base_name()}-{number:06d}"
        folder = self._root / "collections" / name
        (folder / "shard").mkdir(parents=True)
        shard = qe.EdgeShard.create(str(folder / "shard"), _config(spec))
        for operation in _index_operations():
            shard.update(operation)
        shard.flush()
        described = {"model": spec.model, "dimensions": spec.dimensions, "recipe": spec.recipe}
        (folder / "collection.json").write_text(json.dumps(described), "utf-8")
        _sync_folder(folder)
        return EdgeCollection(name, spec, folder, shard)

    def _load(self, name: str, spec: CollectionSpec) -> EdgeCollection:
        folder = self._root / "collections" / name
        shard = qe.EdgeShard.load(str(folder / "shard"))
        size = shard_dimensions(shard)
        if size is not None and size != spec.dimensions:
            raise model_mismatch(CollectionSpec(spec.model, size, spec.recipe), spec)
        return EdgeCollection(name, spec, folder, shard)


def shard_dimensions(shard: qe.EdgeShard) -> int | None:
    """Return the dimensions of a shard's stored vectors; None while it is empty."""
    records, _ = shard.scroll(qe.ScrollRequest(limit=1, with_payload=False, with_vector=[DENSE]))
    for record in records:
        if isinstance(record.vector, dict) and DENSE in record.vector:
            return len(record.vector[DENSE])  # type: ignore[arg-type]  # DENSE is a plain vector
    return None


def _config(spec: CollectionSpec) -> qe.EdgeConfig:
    return qe.EdgeConfig(
        vectors={DENSE: qe.EdgeVectorParams(spec.dimensions, qe.Distance.Cosine)},
        sparse_vectors={SPARSE: qe.EdgeSparseVectorParams()},
    )


def _index_operations() -> list[qe.UpdateOperation]:
    index = qe.UpdateOperation.create_field_index
    return [
        index("project", qe.KeywordIndexParams(is_tenant=True)),
        *(index(name, qe.PayloadSchemaType.Keyword) for name in _KEYWORDS),
        *(index(name, qe.IntegerIndexParams(lookup=name == "position", range=True)) for name in _INTEGERS),
        index("shadowed", qe.IntegerIndexParams(lookup=True, range=False)),
        index("importance", qe.PayloadSchemaType.Float),
    ]


def _payload(point: IndexPoint) -> dict[str, Any]:
    """Return the stored payload: the point's own, and two keys that answer the usual filters in one condition."""
    corpus = _corpus(point.project, point.branch)
    return {**point.payload(), "corpus": corpus, "visible": "" if point.shadowed else corpus}


def _corpus(project: str, branch: str) -> str:
    return f"{project}\x1f{branch}"  # neither name can hold the separator


def _conditions(where: PointFilter) -> list[Any]:
    conditions: list[Any] = []
    if where.branch is None:
        conditions.append(_equals("project", where.project))
        if not where.with_shadowed:
            conditions.append(_equals("shadowed", 0))
        if where.roles == _ALL_ROLES:
            conditions.append(qe.FieldCondition("role", match=qe.MatchAny([r.value for r in Role])))
    else:
        # A tombstone has neither key, so it is never found.
        key = "corpus" if where.with_shadowed else "visible"
        conditions.append(_equals(key, _corpus(where.project, where.branch)))
    if where.roles != _ALL_ROLES:
        conditions.append(qe.FieldCondition("role", match=qe.MatchAny([r.value for r in where.roles])))
    if where.family is not None:
        conditions.append(_equals("family", where.family))
    if where.valid_at is not None:
        conditions.append(qe.FieldCondition("valid_from", range=qe.RangeFloat(lte=float(where.valid_at))))
        conditions.append(qe.FieldCondition("valid_to", range=qe.RangeFloat(gt=float(where.valid_at))))
    if where.recorded_until is not None:
        conditions.append(qe.FieldCondition("recorded_from", range=qe.RangeFloat(lte=float(where.recorded_until))))
    for key, allowed in (("scope", where.scopes), ("category", where.categories), ("standing", where.standings)):
        if allowed:
            conditions.append(qe.FieldCondition(key, match=qe.MatchAny(list(allowed))))
    return conditions


def _equals(key: str, value: str | int) -> qe.FieldCondition:
    return qe.FieldCondition(key, match=qe.MatchValue(value))


def _point(payload: Mapping[str, Any] | None) -> IndexPoint | None:
    """Return the point; None for a tombstone or a payload that is not ours, which must not stop a search."""
    if payload is None or payload.get("role") == REMOVED:
        return None
    with suppress(ValueError):
        return IndexPoint.from_payload(payload)
    return None


def _position(payload: Mapping[str, Any] | None) -> int:
    return int((payload or {}).get("position", 0))


def _sync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
