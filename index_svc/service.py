"""What the index answers: candidates, neighbours, its own state. Decides; knows neither gRPC nor a technology."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final

import numpy as np

from index_svc.domain import PointFilter, Role, micros, search_filter
from index_svc.embedder import Vector, checked
from index_svc.embedder_remembering import RememberingEmbedder
from index_svc.follower import FollowerStatus
from index_svc.generations import Generations
from index_svc.ledger_client import LedgerClient, OutboxStats
from index_svc.projector import Generation, Projector
from index_svc.rebuild import Rebuilds, Run
from index_svc.recipe import EmbeddingText, combine_views, dense_views
from index_svc.search import Failure, FoundPoint, Way
from index_svc.structural import structural_query
from index_svc.support import BANK_VERSION, Calibration, Support
from index_svc.vectors import Hit
from index_svc.verify import Progress, Verifier
from service_kit.clock import Clock
from service_kit.errors import DomainError, Reason, dependency_unavailable, invalid

HEADS: Final = frozenset({Role.HEAD})
RELEASE_BASELINE: Final = Calibration(mean=1.05, deviation=0.12, size=0, documents=0)
"""What the off-topic bank scores on the 736 PEPs: the comparison until a corpus has its own."""

_STATS_SECONDS: Final = 5.0
_LOG = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, eq=False)
class GivenVector:
    """A vector that the caller made, and with which model."""

    model: str
    values: Sequence[float]


@dataclass(frozen=True, slots=True, eq=False)
class Search:
    """A request for candidates."""

    project: str
    branch: str
    text: str
    vector: GivenVector | None = None
    ways: frozenset[Way] = frozenset(Way)
    limit: int = 50
    valid_at: datetime | None = None
    known_at: datetime | None = None
    scopes: tuple[str, ...] = ()
    categories: tuple[str, ...] = ()
    measure_support: bool = False
    in_force_only: bool = False


@dataclass(frozen=True, slots=True)
class Candidate:
    """A found point, and whether it is indexed as in force at the moment asked for."""

    found: FoundPoint
    in_force: bool


@dataclass(frozen=True, slots=True)
class MeasuredSupport:
    """The support signals with what they are compared with."""

    support: Support
    baseline: Calibration
    calibrated: bool
    version: str


@dataclass(frozen=True, slots=True)
class SearchAnswer:
    """Candidates, best first."""

    candidates: tuple[Candidate, ...]
    support: MeasuredSupport | None
    applied_position: int
    failures: tuple[Failure, ...]
    model: str
    heads: int


@dataclass(frozen=True, slots=True)
class SimilarAnswer:
    """Neighbours of each text."""

    neighbours: tuple[tuple[Hit, ...], ...]
    model: str
    applied_position: int


@dataclass(frozen=True, slots=True)
class Status:
    """What the index holds, how far behind it is and what is wrong."""

    applied_position: int
    ledger_position: int
    lag: timedelta
    dead_letters: int
    model: str
    dimensions: int
    recipe: str
    collection: str
    points: int
    heads: int
    problems: tuple[Failure, ...]
    rebuild: str
    calibrated_branches: tuple[str, ...]


class IndexService:
    """The index of all projects of one ledger."""

    def __init__(
        self,
        generations: Generations,
        projector: Projector,
        embedder: RememberingEmbedder,
        ledger: LedgerClient,
        rebuilds: Rebuilds,
        verifier: Verifier,
        follower: FollowerStatus,
        clock: Clock,
    ) -> None:
        self._generations = generations
        self._projector = projector
        self._embedder = embedder
        self._ledger = ledger
        self._rebuilds = rebuilds
        self._verifier = verifier
        self._follower = follower
        self._clock = clock

    def holds(self, project: str) -> bool:
        """Return whether commits of the project are in the index."""
        if not self._generations.is_serving:
            return False
        return self._generations.live.state.applied_position(project) > 0

    async def search(self, request: Search) -> SearchAnswer:
        """Return candidates for a question.

        Raises:
            DomainError: MODEL_MISMATCH for a vector of another model; DEPENDENCY_UNAVAILABLE when no way of searching
                works.
        """
        vector = self._given(request.vector) if request.vector is not None else None
        now = micros(self._clock.now())
        valid_at = micros(request.valid_at) if request.valid_at is not None else None
        where = search_filter(
            request.project,
            request.branch,
            valid_at=valid_at,
            known_at=micros(request.known_at) if request.known_at is not None else None,
            in_force_only=request.in_force_only,
            now=now,
            scopes=request.scopes,
            categories=request.categories,
        )
        with self._generations.reading() as generation:
            # Read first: what is found may be newer than this position, never older.
            applied = generation.state.applied_position(request.project)
            searcher = generation.searcher
            question = await searcher.ask(
                request.text,
                vector=vector,
                named=structural_query(request.text) if Way.STRUCTURAL in request.ways else None,
                with_words=request.measure_support,
            )
            result = await searcher.search(question, where, limit=request.limit, ways=request.ways)
            failed = {f.part for f in result.failures}
            if {str(w) for w in request.ways} <= failed:
                raise dependency_unavailable("index", "no way of searching that was asked for works now; try again")
            support = None
            if request.measure_support and question.vector is not None:
                scores = {f.point.text_hash: f.scores for f in result.found if f.scores is not None}
                measured = searcher.support(request.project, request.branch, question, scores)
                support = self._compared(generation, request.project, request.branch, measured)
            centre = generation.state.centre(request.project, request.branch)
        at = now if valid_at is None else valid_at
        return SearchAnswer(
            candidates=tuple(Candidate(f, f.point.in_force_at(at)) for f in best_of_families(result.found)),
            support=support,
            applied_position=applied,
            failures=result.failures,
            model=generation.collection.spec.model,
            heads=centre.documents if centre is not None else 0,
        )

    async def similar(
        self, project: str, branch: str, texts: Sequence[EmbeddingText], *, limit: int, category: str = ""
    ) -> SimilarAnswer:
        """Return the heads nearest to each text, whether or not they are in force: admission judges them.

        Raises:
            DomainError: DEPENDENCY_UNAVAILABLE, when the embedder does not answer.
        """
        views = [dense_views(text) for text in texts]
        order = list(dict.fromkeys(v for part in views for v in part))
        vectors = dict(zip(order, await self._embedder.embed_and_remember(order), strict=True))
        where = PointFilter(project, branch, roles=HEADS, categories=(category,) if category else ())
        with self._generations.reading() as generation:
            applied = generation.state.applied_position(project)
            found = [
                tuple(
                    await generation.collection.search_dense(
                        combine_views(np.stack([vectors[v] for v in part])), where, limit
                    )
                )
                for part in views
            ]
            return SimilarAnswer(tuple(found), generation.collection.spec.model, applied)

    async def status(self, project: str) -> Status:
        """Return what the index holds of a project and how far behind it is.

        Raises:
            DomainError: NOT_FOUND for a project that the ledger does not have.
        """
        problems: list[Failure] = []
        stats: OutboxStats | None = None
        try:
            async with asyncio.timeout(_STATS_SECONDS):
                stats = await self._ledger.stats(project)
            await self._projector.set_applied({project: stats.handled_position})
        except (DomainError, TimeoutError) as error:
            if isinstance(error, DomainError) and error.reason is Reason.NOT_FOUND:
                raise
            problems.append(Failure("ledger", "the ledger does not answer; the lag is not known"))
        if self._follower.problem:
            problems.append(Failure("follower", self._follower.problem))
        if project in self._follower.went_back:
            problems.append(Failure("ledger", "it was restored to an earlier state; verify the index with repair"))
        with self._generations.reading() as generation:
            state, collection = generation.state, generation.collection
            if not generation.complete:
                problems.append(Failure("index", "it was not filled completely yet"))
            outdated = set(generation.calibrator.outdated(project))
            return Status(
                applied_position=state.applied_position(project),
                ledger_position=stats.head_position if stats else 0,
                lag=stats.lag if stats else timedelta(),
                dead_letters=stats.dead if stats else 0,
                model=collection.spec.model,
                dimensions=collection.spec.dimensions,
                recipe=collection.spec.recipe,
                collection=collection.name,
                points=await collection.count(PointFilter(project)),
                heads=await collection.count(PointFilter(project, roles=HEADS)),
                problems=tuple(problems),
                rebuild=self._rebuilds.running.name if self._rebuilds.running else "",
                calibrated_branches=tuple(b for b in state.branches(project) if b not in outdated),
            )

    def rebuild(self, request_id: str, requester: str) -> Run:
        """Ask for a rebuild of the whole index."""
        return self._rebuilds.start(request_id, requester)

    def get_rebuild(self, name: str) -> Run:
        """Return a rebuild."""
        return self._rebuilds.get(name)

    def verify(self, project: str, *, repair: bool) -> AsyncIterator[Progress]:
        """Compare index and ledger."""
        return self._verifier.verify(project, repair=repair)

    def _given(self, vector: GivenVector) -> Vector:
        identity = self._embedder.identity
        actual = f"{vector.model}/{len(vector.values)}"
        if vector.model != identity.model or len(vector.values) != identity.dimensions:
            raise DomainError(
                Reason.MODEL_MISMATCH,
                f"the vector is of {actual}, the index of {identity}; embed the text with its model, or leave it out",
                metadata={"expected": str(identity), "actual": actual},
            )
        values = np.asarray(vector.values, dtype=np.float32)
        if not np.isfinite(values).all() or not values.any():
            raise invalid("query_vector.values", "must be finite numbers, not all of them zero")
        unit: Vector = checked(values[None, :], 1, identity)[0]
        return unit

    def _compared(self, generation: Generation, project: str, branch: str, support: Support) -> MeasuredSupport:
        known = generation.state.calibration(project, branch)
        calibrated = known is not None and branch not in generation.calibrator.outdated(project)
        return MeasuredSupport(
            support=support,
            baseline=known or RELEASE_BASELINE,
            calibrated=calibrated,
            version=f"support@1/{BANK_VERSION}/{generation.collection.spec.model}",
        )


class CalibrationKeeper:
    """Asks the off-topic bank again when a corpus changed and is quiet."""

    def __init__(
        self, generations: Generations, projector: Projector, clock: Clock, *, quiet_seconds: float = 2.0
    ) -> None:
        self._generations = generations
        self._projector = projector
        self._clock = clock
        self._quiet = quiet_seconds

    async def run(self, stop: asyncio.Event) -> None:
        """Calibrate until ``stop`` is set. A corpus that keeps changing keeps its old calibration."""
        seen: tuple[int, str] | None = None
        done: tuple[int, str] | None = None
        with suppress(DomainError), self._generations.reading() as generation:
            await generation.searcher.prepare()  # so that the first question after a start need not wait for it
        while not stop.is_set():
            if self._generations.is_serving:
                current = (self._projector.changes, self._generations.live.collection.name)
                if current == seen and current != done and await self.calibrate_outdated(stop):
                    done = current
                seen = current
            try:
                await asyncio.wait_for(stop.wait(), self._quiet)
            except TimeoutError:
                continue

    async def calibrate_outdated(self, stop: asyncio.Event | None = None) -> bool:
        """Calibrate every corpus that changed noticeably; return whether all are done."""
        with self._generations.reading() as generation:
            for project in generation.state.projects():
                for branch in generation.calibrator.outdated(project):
                    if stop is not None and stop.is_set():
                        return False
                    try:
                        found = await generation.calibrator.calibrate(project, branch, now=micros(self._clock.now()))
                    except DomainError as error:
                        _LOG.warning("the calibration of %s failed (%s)", project, error.reason)
                        return False
                    if found is None:
                        return False
        return True


def best_of_families(found: Sequence[FoundPoint]) -> tuple[FoundPoint, ...]:
    """Return of each family the best revision, and its head as well when another one is better: both tell something."""
    seen: set[str] = set()
    kept: list[FoundPoint] = []
    for candidate in found:
        family = candidate.point.family
        if family not in seen or candidate.point.role in HEADS:
            kept.append(candidate)
            seen.add(family)
    return tuple(kept)
