"""Writes projections of the ledger into the index: embed what is new, then points and state, never older over newer.

The slow part (embedding) runs without a lock and holds up nobody. The write is short, one at a time, and decides by the
position that the family was read at; so two followers, a late replay and a rebuild end with the same points in any
order. Points are written before the state: a crash in between is mended by the replay, because the state still names
everything that has to leave.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Final

from index_svc.calibrator import Calibrator
from index_svc.domain import FAR_FUTURE, FAR_PAST, IndexPoint, Projection, Role, mark_shadowed, micros, point_id, prefer
from index_svc.embedder import Embedder, Vector
from index_svc.features import compute_features, distinct_words
from index_svc.ledger_client import FamilyProjection, ProjectedRevision
from index_svc.recipe import RECIPE_VERSION, EmbeddingText, embedding_text, sparse_text
from index_svc.search import Searcher
from index_svc.sparse import point_vector
from index_svc.state import Batch, StateStore, TextFeatures
from index_svc.structural import file_names, memory_identifiers, name_of, names
from index_svc.vectors import Collection, StoredPoint, Tombstone

TEXTS_PER_CALL: Final = 64
"""Texts embedded in one call: many, because a batch is cheaper by the text; few enough to stop soon."""

FamilyKey = tuple[str, str, str]
"""Project id, branch, family."""


class NoTargetError(Exception):
    """There is no generation to write to: what was read must not be acknowledged."""


class IncompleteBaseError(Exception):
    """What changed of a family cannot be merged, because the index misses the rest: read these families as a whole."""

    def __init__(self, keys: frozenset[FamilyKey]) -> None:
        super().__init__(f"{len(keys)} families have to be read as a whole")
        self.keys = keys


@dataclass(slots=True, eq=False)
class Generation:
    """A collection with its state: what one (re)build fills, serves and is replaced by."""

    collection: Collection
    state: StateStore
    searcher: Searcher
    calibrator: Calibrator
    complete: bool
    """True when everything of the ledger was listed into it once: from then on, changes alone keep it right."""
    readers: int = 0
    """Searches that use it now: it is closed when the last one has left."""


@dataclass(frozen=True, slots=True)
class FamilyChange:
    """A family's projection as points: all of them, or only those that changed."""

    project: str
    branch: str
    family: str
    as_of_position: int
    points: tuple[IndexPoint, ...]
    removed: Mapping[str, int]
    """Ids of points that left the timeline, with the position at which they did."""
    whole: bool
    """True when the points are everything that there is of the family."""

    @property
    def key(self) -> FamilyKey:
        """Which family."""
        return (self.project, self.branch, self.family)


@dataclass(frozen=True, slots=True, eq=False)
class Prepared:
    """A batch with every vector that it needs, ready to be written."""

    changes: tuple[FamilyChange, ...]
    texts: Mapping[str, Mapping[str, TextFeatures]] = field(default_factory=dict)
    """By project and text hash: features that were computed for this batch."""
    words: Mapping[str, Mapping[str, Vector]] = field(default_factory=dict)
    """By project: vectors of words that were new."""


def change_of(
    projection: FamilyProjection, model: str, *, whole: bool
) -> tuple[FamilyChange, dict[str, EmbeddingText]]:
    """Return the points of a projection, and their embedding texts by hash."""
    points: list[IndexPoint] = []
    removed: dict[str, int] = {}
    texts: dict[str, EmbeddingText] = {}
    for revision in projection.revisions:
        if not revision.in_timeline:
            removed[point_id(projection.project, revision.revision, projection.branch)] = revision.position
            continue
        text = embedding_text(revision.text)
        texts[text.text_hash] = text
        points.append(_point(projection, revision, text, model))
    change = FamilyChange(
        project=projection.project,
        branch=projection.branch,
        family=projection.family,
        as_of_position=projection.as_of_position,
        points=tuple(points),
        removed=removed,
        whole=whole,
    )
    return change, texts


def _point(projection: FamilyProjection, revision: ProjectedRevision, text: EmbeddingText, model: str) -> IndexPoint:
    adopted = revision.standing == "ADOPTED"
    return IndexPoint(
        project=projection.project,
        family=projection.family,
        revision=revision.revision,
        branch=projection.branch,
        scope=projection.scope,
        category=projection.category,
        # A hint for people who look into the index; whether it is in force, the ledger says.
        state="NOT_IN_FORCE" if not adopted else "ACTIVE" if revision.is_head else "SUPERSEDED",
        standing=revision.standing,
        role=Role.HEAD if revision.is_head else Role.PAST,
        content_hash=revision.content_hash,
        text_hash=text.text_hash,
        position=revision.position,
        model=model,
        recipe=RECIPE_VERSION,
        valid_from=micros(revision.valid_from) if revision.valid_from else FAR_PAST,
        valid_to=micros(revision.valid_to) if revision.valid_to else FAR_FUTURE,
        recorded_from=micros(revision.recorded_at) if revision.recorded_at else FAR_PAST,
        domain=name_of(revision.domain),
        modules=names(revision.modules),
        files=file_names(revision.files),
        identifiers=memory_identifiers(sparse_text(text)),
        importance=min(1.0, max(0.0, revision.importance)),
    )


class Projector:
    """The writer of the index. One per process: it serialises the writes of followers, rebuild and repair."""

    def __init__(self, embedder: Embedder) -> None:
        self._embedder = embedder
        self._writing = asyncio.Lock()
        self._targets: list[Generation] = []
        self.changes = 0
        """Grows with every write: what watches for a quiet corpus compares it."""

    @property
    def targets(self) -> tuple[Generation, ...]:
        """The generations that every write goes to."""
        return tuple(self._targets)

    @property
    def reads_whole_families(self) -> bool:
        """True while a target is incomplete: what changed alone would leave holes in it."""
        return not all(t.complete for t in self._targets)

    async def add_target(self, generation: Generation) -> None:
        """Let every write from now on go to this generation too; returns when earlier writes are done."""
        async with self._writing:
            self._targets.append(generation)

    async def remove_target(self, generation: Generation) -> None:
        """Let no further write go to this generation."""
        async with self._writing:
            self._targets = [t for t in self._targets if t is not generation]

    async def prepare(
        self, projections: Sequence[FamilyProjection], *, whole: bool, targets: Sequence[Generation] | None = None
    ) -> Prepared:
        """Return the batch with the features of every text that a target does not have yet."""
        model = self._embedder.identity.model
        aims = self.targets if targets is None else targets
        changes: list[FamilyChange] = []
        wanted: dict[str, dict[str, EmbeddingText]] = defaultdict(dict)
        for projection in projections:
            change, texts = change_of(projection, model, whole=whole)
            changes.append(change)
            wanted[change.project].update(texts)
        found: dict[str, dict[str, TextFeatures]] = {}
        found_words: dict[str, dict[str, Vector]] = {}
        for project, texts in wanted.items():
            found[project], found_words[project] = await self._features(project, texts, aims)
        return Prepared(tuple(changes), found, found_words)

    async def write(self, prepared: Prepared, *, targets: Sequence[Generation] | None = None) -> None:
        """Write a batch to every target. Runs to its end even when the caller is cancelled: nothing is left half.

        Raises:
            IncompleteBaseError: Some families must be read as a whole first; nothing was written.
        """
        task = asyncio.ensure_future(self._write_all(prepared, targets))
        try:
            await asyncio.shield(task)
        except asyncio.CancelledError:
            with suppress(Exception):
                await task
            raise

    async def set_applied(self, positions: Mapping[str, int]) -> None:
        """Note up to which position of each project every commit is in the complete generations."""
        async with self._writing:
            for target in self._targets:
                if target.complete:
                    await asyncio.to_thread(target.state.apply, Batch(applied=positions))

    async def clear_project(self, generation: Generation, project: str) -> None:
        """Forget everything of a project, positions included: for a ledger that went back in time.

        The generation must be marked incomplete before: a part of a family must not pass for all of it.
        """
        async with self._writing:
            await generation.collection.delete_project(project)
            await asyncio.to_thread(generation.state.delete_project, project)
            self.changes += 1

    async def _features(
        self, project: str, texts: Mapping[str, EmbeddingText], targets: Sequence[Generation]
    ) -> tuple[dict[str, TextFeatures], dict[str, Vector]]:
        hashes = list(texts)
        known = [await asyncio.to_thread(t.state.known_texts, project, hashes) for t in targets]
        missing = [texts[h] for h in hashes if not all(h in k for k in known)]
        features: dict[str, TextFeatures] = {}
        vectors: dict[str, Vector] = {}
        for start in range(0, len(missing), TEXTS_PER_CALL):
            part = missing[start : start + TEXTS_PER_CALL]
            words: list[str] = []
            if self._embedder.has_word_vectors:
                words = list(dict.fromkeys(w for t in part for w in distinct_words(t)))
            stored = [await asyncio.to_thread(t.state.known_words, project, words) for t in targets]
            common = frozenset(vectors) | (frozenset.intersection(*stored) if stored else frozenset())
            # A rebuild takes what the generation that serves has, intact, of the same model and recipe.
            ready: dict[str, TextFeatures] = {}
            for donor in self._targets:
                wanted = [t.text_hash for t in part if t.text_hash not in ready]
                ready |= await asyncio.to_thread(donor.state.stored_texts, project, wanted)
            computed = await compute_features(self._embedder, part, common, ready)
            features.update({t.text_hash: t for t in computed.texts})
            vectors.update(computed.words)
        return features, vectors

    async def _write_all(self, prepared: Prepared, targets: Sequence[Generation] | None) -> None:
        async with self._writing:
            aims = self._targets if targets is None else targets
            if not aims:
                raise NoTargetError("the index has no collection to write to")
            # Everything is planned before anything is written: a hole in one target leaves all of them as they were.
            plans = [await self._plan(target, prepared) for target in aims]
            holes = frozenset(key for plan in plans for key in plan.holes)
            if holes:
                raise IncompleteBaseError(holes)
            for plan in plans:
                if plan.tombstones:
                    await plan.target.collection.remove(plan.tombstones)
                if plan.points:
                    await plan.target.collection.upsert(plan.points)
                if plan.batch.projections:
                    await asyncio.to_thread(plan.target.state.apply, plan.batch)
            self.changes += 1

    async def _plan(self, target: Generation, prepared: Prepared) -> _Plan:
        holes: set[FamilyKey] = set()
        merged: list[_Merged] = []
        parts, again = await asyncio.to_thread(_compare, target, prepared.changes)
        holes |= again
        for part in parts:
            rest = await target.collection.get(part.rest) if part.rest else {}
            if len(rest) < len(part.rest):
                holes.add(part.change.key)
            merged.append(part.with_rest(rest))
        points: list[StoredPoint] = []
        for project in dict.fromkeys(m.change.project for m in merged):
            computed = prepared.texts.get(project, {})
            mine = [m for m in merged if m.change.project == project]
            others = list({p.text_hash for m in mine for p in m.to_write} - computed.keys())
            known = await asyncio.to_thread(target.state.ranking_features, project, others)
            for m in mine:
                for point in m.to_write:
                    features = computed.get(point.text_hash) or known.get(point.text_hash)
                    if features is None:  # dropped since it was looked up: read and embed the family again
                        holes.add(m.change.key)
                    else:
                        points.append(StoredPoint(point, features.dense, point_vector(features.terms)))
        batch = Batch(
            projections=tuple(m.projection for m in merged),
            texts={project: tuple(texts.values()) for project, texts in prepared.texts.items()},
            words=prepared.words,
        )
        tombstones = [Tombstone(m.change.project, i, p) for m in merged for i, p in m.to_remove.items()]
        return _Plan(target, frozenset(holes), tombstones, points, batch)


@dataclass(frozen=True, slots=True, eq=False)
class _Plan:
    """Everything that a batch changes in one generation."""

    target: Generation
    holes: frozenset[FamilyKey]
    tombstones: Sequence[Tombstone]
    points: Sequence[StoredPoint]
    batch: Batch


@dataclass(frozen=True, slots=True, eq=False)
class _Merged:
    """What is to be done for one family in one generation."""

    change: FamilyChange
    rest: tuple[str, ...]
    """Ids of stored points of the family that the change says nothing about."""
    gone: tuple[str, ...]
    """Ids of stored points that a whole reading no longer has."""
    written: Mapping[str, int]
    """Stored positions, by id."""
    final: tuple[IndexPoint, ...] = ()
    to_write: tuple[IndexPoint, ...] = ()

    def with_rest(self, rest: Mapping[str, IndexPoint]) -> _Merged:
        unmarked = {p.id: self._at_least_as_new(p) for p in self.change.points} | dict(rest)
        # Recorded times strictly increase within a project: they order the revisions of a family.
        newest_first = sorted(unmarked.values(), key=lambda p: (p.recorded_from, p.revision), reverse=True)
        final = mark_shadowed(newest_first)
        changed = tuple(p for p in final if rest.get(p.id) != p)
        return _Merged(self.change, self.rest, self.gone, self.written, final, changed)

    def _at_least_as_new(self, point: IndexPoint) -> IndexPoint:
        """Keep a stored position that is newer than the reading's own, while the reading as a whole is not older.

        A ledger may report a smaller position than before, once what raised it no longer counts for the revision. The
        reading is newer all the same, and must not be refused for it.
        """
        stored = self.written.get(point.id, 0)
        if point.position < stored <= self.change.as_of_position:
            return replace(point, position=stored)
        return point

    @property
    def to_remove(self) -> Mapping[str, int]:
        return {**dict.fromkeys(self.gone, self.change.as_of_position), **self.change.removed}

    @property
    def projection(self) -> Projection:
        c = self.change
        return Projection(c.project, c.branch, c.family, c.as_of_position, self.final)


def _compare(target: Generation, changes: Sequence[FamilyChange]) -> tuple[list[_Merged], set[FamilyKey]]:
    """Return what to do for each family, and which must be read as a whole before that can be said."""
    plans: list[_Merged] = []
    holes: set[FamilyKey] = set()
    for change in changes:
        known = target.state.family_position(*change.key)
        if not prefer(known, change.as_of_position):
            # A whole reading that is older holds nothing that the stored one has not; a part may.
            if not change.whole:
                holes.add(change.key)
            continue
        if not change.whole and known is None and not target.complete:
            holes.add(change.key)  # the part would pass for all that there is
            continue
        stored = target.state.family_points(*change.key)
        named = {p.id: p.position for p in change.points} | dict(change.removed)
        unnamed = tuple(s.point_id for s in stored if s.point_id not in named)
        rest, gone = ((), unnamed) if change.whole else (unnamed, ())
        plans.append(_Merged(change, rest, gone, {s.point_id: s.position for s in stored}))
    return plans, holes
