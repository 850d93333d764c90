"""Verification: ledger against index and index against ledger, family by family, with repair.

A difference counts only when it is still there after both sides were read again: writes go on meanwhile. What the
index has not caught up with yet is lag, not drift.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from enum import StrEnum

import numpy as np

from index_svc.domain import IndexPoint, PointFilter, mark_shadowed
from index_svc.follower import FollowerStatus
from index_svc.generations import Generations
from index_svc.ledger_client import FamilyProjection, LedgerClient, OutboxStats, ProjectionKey
from index_svc.projector import FamilyChange, FamilyKey, Generation, Projector, change_of
from index_svc.rebuild import fill_project
from index_svc.vectors import CollectionSpec
from service_kit.errors import DomainError

VECTOR_TOLERANCE = 1e-3
"""How far a component of a stored vector may be from the one that was computed; the engine normalises again."""


_LOG = logging.getLogger(__name__)


class DriftKind(StrEnum):
    """What is wrong with a point."""

    MISSING = "MISSING"
    STALE = "STALE"
    ORPHAN = "ORPHAN"
    WRONG_HASH = "WRONG_HASH"
    WRONG_MODEL = "WRONG_MODEL"
    FROM_THE_FUTURE = "FROM_THE_FUTURE"


@dataclass(frozen=True, slots=True)
class Drift:
    """One difference between index and ledger."""

    kind: DriftKind
    revision: str
    branch: str
    detail: str


@dataclass(frozen=True, slots=True)
class Progress:
    """How far a verification is."""

    checked: int
    drifts: tuple[Drift, ...] = ()
    done: bool = False
    total_drifts: int = 0
    repaired: int = 0
    position: int = 0
    """Commits after this one are lag, not drift."""


@dataclass(frozen=True, slots=True, eq=False)
class _Stored:
    """What the index has of one family on one branch."""

    points: Mapping[str, IndexPoint]
    wrong_vectors: frozenset[str]
    state: frozenset[tuple[str, str, str, str]]


class Verifier:
    """Compares the serving generation with the ledger."""

    def __init__(self, generations: Generations, projector: Projector, ledger: LedgerClient) -> None:
        self._generations = generations
        self._projector = projector
        self._ledger = ledger
        self._repairing = asyncio.Lock()

    async def verify(self, project: str, *, repair: bool) -> AsyncIterator[Progress]:
        """Yield progress and differences, and a summary last."""
        with self._generations.reading() as generation:
            run = _Run(self._ledger, self._projector, self._generations, generation, project)
            start = await self._ledger.stats(project)
            checked = 0
            applied = generation.state.applied_position(project)
            went_back = applied > start.head_position
            total = int(went_back)
            if went_back:
                # Without a single point from the future this would still call new commits indexed that are not.
                detail = f"the index is at {applied}; the ledger is at {start.head_position}"
                yield Progress(0, (Drift(DriftKind.FROM_THE_FUTURE, "", "", detail),))
            families: set[FamilyKey] = set()
            broken: set[FamilyKey] = set()
            token = ""
            while True:
                page = await self._ledger.projection_page(project, token)
                families |= {(project, p.branch, p.family) for p in page.projections}
                suspects = await run.differences(page.projections, start)
                drifts = await run.confirmed(suspects.keys())
                broken |= drifts.keys()
                checked += sum(len(p.revisions) for p in page.projections)
                found = tuple(d for part in drifts.values() for d in part)
                total += len(found)
                yield Progress(checked, found)
                token = page.next_page_token
                if not token:
                    break
            strangers = await run.strangers(families)
            drifts = await run.confirmed(strangers)
            broken |= drifts.keys()
            found = tuple(d for part in drifts.values() for d in part)
            total += len(found)
            if found:
                yield Progress(checked, found)
            left = total
            if repair and total:
                async with self._repairing:
                    left = await run.repair(broken, anew=went_back)
            yield Progress(
                checked,
                done=True,
                total_drifts=total,
                repaired=max(0, total - left),
                position=start.handled_position,
            )


class _Run:
    """One verification of one project in one generation."""

    def __init__(
        self,
        ledger: LedgerClient,
        projector: Projector,
        generations: Generations,
        generation: Generation,
        project: str,
    ) -> None:
        self._ledger = ledger
        self._projector = projector
        self._generations = generations
        self._generation = generation
        self._project = project

    async def differences(
        self, projections: Sequence[FamilyProjection], stats: OutboxStats
    ) -> dict[FamilyKey, list[Drift]]:
        """Return what differs, by family."""
        found: dict[FamilyKey, list[Drift]] = {}
        for projection in projections:
            change, _ = change_of(projection, self._generation.collection.spec.model, whole=True)
            drifts = await self._compare(change, stats)
            if drifts:
                found[change.key] = drifts
        return found

    async def confirmed(self, keys: Iterable[FamilyKey]) -> dict[FamilyKey, list[Drift]]:
        """Return what still differs when both sides are read again."""
        wanted = sorted(keys)
        if not wanted:
            return {}
        # The order matters: an event that is acknowledged before the ledger is read was written before that.
        stats = await self._ledger.stats(self._project)
        projections = await self._ledger.projections(self._project, [ProjectionKey(k[2], k[1]) for k in wanted])
        return await self.differences(projections, stats)

    async def strangers(self, known: set[FamilyKey]) -> set[FamilyKey]:
        """Return the families that only the index has."""
        found: set[FamilyKey] = set()
        async for points in self._generation.collection.scroll(PointFilter(self._project)):
            found |= {(self._project, p.branch, p.family) for p in points}
        return found - known

    async def repair(self, keys: set[FamilyKey], *, anew: bool) -> int:
        """Project the families again; when that is not enough, the whole project. Return how many drifts are left."""
        wanted = sorted(keys)
        left: dict[FamilyKey, list[Drift]] = {}
        if not anew:
            projections = await self._ledger.projections(self._project, [ProjectionKey(k[2], k[1]) for k in wanted])
            # A family that cannot be written at all is counted below, not raised here.
            with suppress(ValueError):
                prepared = await self._projector.prepare(projections, whole=True)
                await self._projector.write(prepared)
            left = await self.confirmed(wanted)
        if left or anew:
            # Positions from the future refuse every write: only forgetting them helps.
            self._generations.mark_incomplete(self._generation)
            await self._projector.clear_project(self._generation, self._project)
            applied, _ = await fill_project(self._ledger, self._projector, self._generation, self._project)
            self._generations.mark_complete(self._generation, await self._ledger.ledger_id())
            await self._projector.set_applied({self._project: applied})
            left = await self.confirmed(wanted)
        return sum(len(drifts) for drifts in left.values())

    async def _compare(self, change: FamilyChange, stats: OutboxStats) -> list[Drift]:
        newest_first = sorted(change.points, key=lambda p: (p.recorded_from, p.revision), reverse=True)
        expected = {p.id: p for p in mark_shadowed(newest_first)}
        stored = await self._stored(change, expected.keys() | change.removed.keys())
        newest = max((*(p.position for p in change.points), *change.removed.values()), default=0)
        # Without a pending event nothing will catch up by itself: then a dead letter is drift, too.
        lagging = stats.pending > 0 and newest > stats.handled_position
        drifts: list[Drift] = []
        for point_id in sorted(expected.keys() | stored.points.keys()):
            drift = self._of_point(
                expected.get(point_id), stored.points.get(point_id), point_id in stored.wrong_vectors, stats, lagging
            )
            if drift is not None:
                drifts.append(drift)
        if not drifts and not lagging:
            wanted = frozenset((p.id, p.role.value, p.text_hash, p.content_hash) for p in expected.values())
            if wanted != stored.state:
                revision = next(iter(expected.values())).revision if expected else change.family
                drifts.append(
                    Drift(DriftKind.STALE, revision, change.branch, "the statistics have another state of it")
                )
        return drifts

    def _of_point(
        self,
        expected: IndexPoint | None,
        stored: IndexPoint | None,
        wrong_vector: bool,
        stats: OutboxStats,
        lagging: bool,
    ) -> Drift | None:
        if stored is not None and stored.position > stats.head_position:
            detail = f"position {stored.position}; the ledger is at {stats.head_position}"
            return Drift(DriftKind.FROM_THE_FUTURE, stored.revision, stored.branch, detail)
        if stored is None:
            if expected is None or lagging:
                return None
            return Drift(DriftKind.MISSING, expected.revision, expected.branch, f"position {expected.position}")
        spec = self._generation.collection.spec
        if (stored.model, stored.recipe) != (spec.model, spec.recipe):
            made = CollectionSpec(stored.model, spec.dimensions, stored.recipe)
            return Drift(DriftKind.WRONG_MODEL, stored.revision, stored.branch, f"made by {made}")
        if lagging:
            return None
        if expected is None:
            return Drift(DriftKind.ORPHAN, stored.revision, stored.branch, f"position {stored.position}")
        if stored.position < expected.position:
            detail = f"position {stored.position} instead of {expected.position}"
            return Drift(DriftKind.STALE, stored.revision, stored.branch, detail)
        # A newer position alone is no difference: it says when the point was last looked at, see the projector.
        held = stored.payload() | {"position": expected.position}
        names = [n for n, v in expected.payload().items() if held.get(n) != v]
        if names or wrong_vector:
            detail = f"differs in {', '.join([*names, *(['vector'] if wrong_vector else [])])}"
            return Drift(DriftKind.WRONG_HASH, stored.revision, stored.branch, detail)
        return None

    async def _stored(self, change: FamilyChange, ids: Iterable[str]) -> _Stored:
        state, collection = self._generation.state, self._generation.collection
        known = await asyncio.to_thread(state.family_points, *change.key)
        found: dict[str, IndexPoint] = await collection.get(sorted({*ids, *(s.point_id for s in known)}))
        async for page in collection.scroll(PointFilter(change.project, change.branch, family=change.family)):
            found.update({p.id: p for p in page})
        vectors = await collection.vectors(list(found))
        features = state.ranking_features(change.project, sorted({p.text_hash for p in found.values()}))
        wrong = {
            i
            for i, p in found.items()
            if i not in vectors
            or (
                p.text_hash in features
                and not np.allclose(vectors[i], features[p.text_hash].dense, atol=VECTOR_TOLERANCE)
            )
        }
        return _Stored(
            points=found,
            wrong_vectors=frozenset(wrong),
            state=frozenset((s.point_id, s.role, s.text_hash, s.content_hash) for s in known),
        )


class RestoreGuard:
    """Repairs the projects whose ledger was restored to an earlier state (I5), as soon as the follower notices.

    Points from its lost future refuse what the ledger commits now at the same positions, so waiting for an operator
    would leave new knowledge out.
    """

    def __init__(self, follower: FollowerStatus, verifier: Verifier) -> None:
        self._follower = follower
        self._verifier = verifier

    async def run(self, stop: asyncio.Event) -> None:
        """Repair until ``stop`` is set."""
        while not stop.is_set():
            waits = [asyncio.ensure_future(e.wait()) for e in (self._follower.wants_repair, stop)]
            await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
            for wait in waits:
                wait.cancel()
            await asyncio.gather(*waits, return_exceptions=True)
            self._follower.wants_repair.clear()
            for project in sorted(self._follower.went_back):
                if stop.is_set():
                    return
                await self._repair(project)

    async def _repair(self, project: str) -> None:
        try:
            async for progress in self._verifier.verify(project, repair=True):
                if progress.done:
                    _LOG.warning("repaired %d of %d in %s", progress.repaired, progress.total_drifts, project)
        except DomainError as error:
            # The status keeps saying so, and the next batch of the project asks again.
            _LOG.warning("could not repair %s (%s)", project, error.reason)
        else:
            self._follower.went_back.discard(project)
