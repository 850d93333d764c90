"""The follower: outbox events in, points out. Claim, read, embed, write, acknowledge; again and again.

- A batch holds each (family, branch) once, read since its smallest position.
- What fails alone is given back alone (the ledger counts its attempts and buries it); the rest of the batch flows.
- While a batch is worked on, its leases are renewed. A lost lease costs nothing: writes are idempotent and ordered by
  position, and the acknowledgement of a lost event is refused.
- A ledger or an embedder that is away is waited for; that is nobody's fault and buries no event.
- Any other failure leaves :meth:`Follower.run` and takes the process down: an index must not go stale in silence.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections import defaultdict
from collections.abc import AsyncIterator, Awaitable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Final, TypeVar

from index_svc.embedder import Embedder
from index_svc.ledger_client import (
    EventRef,
    FamilyProjection,
    LedgerClient,
    OutboxEvent,
    OutboxStats,
    ProjectionKey,
    is_transient,
)
from index_svc.projector import FamilyKey, IncompleteBaseError, Projector
from service_kit.errors import DomainError, Reason

T = TypeVar("T")

MAX_ERROR_CHARS: Final = 300
MERGE_ATTEMPTS: Final = 5
"""How often a batch is read again because the index changed under it, before it is given back."""

_PROBE: Final = "Which decision is in force?"
_LOG = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class FollowerTiming:
    """How long things take. The defaults are those of production; tests shorten them."""

    lease: timedelta = timedelta(seconds=30)
    claim_wait: timedelta = timedelta(seconds=10)
    first_backoff: float = 0.2
    """Seconds before the first new attempt when something is away; doubles up to ``last_backoff``."""
    last_backoff: float = 5.0


@dataclass(slots=True)
class FollowerStatus:
    """What the follower says about itself."""

    problem: str = ""
    """What it waits for now; empty when it works."""
    handled: int = 0
    """Events acknowledged since the start."""
    given_back: int = 0
    """Events failed since the start."""
    batches: int = 0
    went_back: set[str] = field(default_factory=set)
    """Projects whose ledger position is below what was indexed: a ledger restored from a backup."""
    wants_repair: asyncio.Event = field(default_factory=asyncio.Event)
    """Set when a project went back."""


class _LedgerAwayError(Exception):
    """Reading failed and may work later: nothing of the batch is to blame."""

    def __init__(self, cause: DomainError) -> None:
        super().__init__(str(cause))
        self.cause = cause


@dataclass(frozen=True, slots=True)
class _Work:
    """One (family, branch) of a batch."""

    key: FamilyKey
    since: int
    refs: tuple[EventRef, ...]


class Follower:
    """One worker on the outbox. Several may run; they share a projector, or the ledger shares out the events."""

    def __init__(
        self,
        ledger: LedgerClient,
        projector: Projector,
        embedder: Embedder,
        *,
        worker: str = "index",
        batch_size: int = 128,
        timing: FollowerTiming | None = None,
    ) -> None:
        self._ledger = ledger
        self._projector = projector
        self._embedder = embedder
        self._worker = worker
        self._batch_size = batch_size
        self._timing = timing or FollowerTiming()
        self.status = FollowerStatus()

    async def run(self, stop: asyncio.Event) -> None:
        """Work until ``stop`` is set; the batch in hand is finished first.

        Raises:
            DomainError: The ledger refuses the service itself (its token, its role).
        """
        backoff = self._backoff()
        looked_back = False
        while not stop.is_set():
            if not self._projector.targets:
                self._note("no collection is open; a rebuild makes one")
                await _sleep(stop, backoff.next())
                continue
            try:
                if not looked_back:
                    # What was acknowledged right before the last stop, or a ledger that was restored meanwhile.
                    await self.refresh_applied({p for t in self._projector.targets for p in t.state.projects()})
                    looked_back = True
                events = await _unless(stop, self._claim())
                if events:
                    await self.handle(events, stop)
                backoff = self._backoff()
                self.status.problem = ""
            except DomainError as error:
                if not is_transient(error):
                    raise
                self._note(f"the ledger is away ({error.reason})")
                await _sleep(stop, backoff.next())

    async def handle(self, events: Sequence[OutboxEvent], stop: asyncio.Event | None = None) -> None:
        """Index a batch and acknowledge it; give back what fails alone."""
        ended = stop or asyncio.Event()
        works = _group(events)
        async with self._renewing([e.ref for e in events]):
            failures = await self._index(works, ended)
            bad = {ref: failures[w.key] for w in works if w.key in failures for ref in w.refs}
            good = [e.ref for e in events if e.ref not in bad]
        if good:
            lost = await self._ledger.ack(good)
            self.status.handled += len(good) - len(lost)
        if bad:
            dead = await self._ledger.fail(bad)
            self.status.given_back += len(bad)
            _LOG.warning("gave back %d events, %d of them dead: %s", len(bad), len(dead), next(iter(bad.values())))
        self.status.batches += 1
        await self.refresh_applied({e.project for e in events})

    async def refresh_applied(self, projects: set[str]) -> Mapping[str, OutboxStats]:
        """Ask up to where every commit is handled, and note it beside the statistics."""
        stats: dict[str, OutboxStats] = {}
        for project in sorted(projects):
            try:
                stats[project] = await self._ledger.stats(project)
            except DomainError as error:
                if error.reason is not Reason.NOT_FOUND:
                    raise
        await self._projector.set_applied({p: s.handled_position for p, s in stats.items()})
        for project, found in stats.items():
            reached = max((t.state.applied_position(project) for t in self._projector.targets), default=0)
            if reached > found.head_position and project not in self.status.went_back:
                self.status.went_back.add(project)
                self.status.wants_repair.set()
                _LOG.error(
                    "project %s: the index is at %d, the ledger only at %d: it was restored; repairing the index",
                    project,
                    reached,
                    found.head_position,
                )
        return stats

    def _claim(self) -> Awaitable[Sequence[OutboxEvent]]:
        timing = self._timing
        return self._ledger.claim(self._worker, limit=self._batch_size, lease=timing.lease, wait=timing.claim_wait)

    async def _index(self, works: Sequence[_Work], stop: asyncio.Event) -> dict[FamilyKey, str]:
        """Index everything that can be; return why the rest cannot."""
        failures: dict[FamilyKey, str] = {}
        by_project: dict[str, list[_Work]] = defaultdict(list)
        for work in works:
            by_project[work.key[0]].append(work)
        for project, mine in by_project.items():
            await self._index_part(project, mine, failures, stop)
        return failures

    async def _index_part(
        self, project: str, works: Sequence[_Work], failures: dict[FamilyKey, str], stop: asyncio.Event
    ) -> None:
        """Index works of one project; halve them on failure until the ones at fault stand alone."""
        backoff = self._backoff()
        while True:
            try:
                await self._index_together(project, works)
            except _LedgerAwayError as error:
                raise error.cause from None  # nothing of the batch is to blame
            except (DomainError, ValueError) as error:
                if await self._embedder_is_away(error):
                    self._note("the embedder is away")
                    await _sleep(stop, backoff.next())
                    if stop.is_set():
                        raise
                    continue
                if len(works) == 1:
                    failures[works[0].key] = _describe(error)
                    return
                middle = len(works) // 2
                await self._index_part(project, works[:middle], failures, stop)
                await self._index_part(project, works[middle:], failures, stop)
            return

    async def _index_together(self, project: str, works: Sequence[_Work]) -> None:
        whole = frozenset[FamilyKey]()
        for _ in range(MERGE_ATTEMPTS):
            all_whole = self._projector.reads_whole_families
            keys = [
                ProjectionKey(w.key[2], w.key[1], 0 if all_whole or w.key in whole else _since(w.since)) for w in works
            ]
            found = await self._read(project, keys)
            parts: dict[bool, list[FamilyProjection]] = {True: [], False: []}
            for key, projection in zip(keys, found, strict=True):
                parts[key.since_position == 0].append(projection)
            try:
                for is_whole, projections in parts.items():
                    if projections:
                        await self._projector.write(await self._projector.prepare(projections, whole=is_whole))
            except IncompleteBaseError as error:
                whole |= error.keys
                continue
            return
        raise DomainError(Reason.WRITE_CONTENTION, "the index changed under every attempt to write")

    async def _read(self, project: str, keys: Sequence[ProjectionKey]) -> Sequence[FamilyProjection]:
        try:
            return await self._ledger.projections(project, keys)
        except DomainError as error:
            if is_transient(error):
                raise _LedgerAwayError(error) from error
            raise

    async def _embedder_is_away(self, error: Exception) -> bool:
        """Tell a text that cannot be embedded from an embedder that embeds nothing."""
        if not (is_transient(error) and isinstance(error, DomainError)):
            return False
        if error.metadata.get("dependency") != "embedder" and error.reason is not Reason.OVERLOADED:
            return False
        try:
            await self._embedder.embed_documents([_PROBE])
        except DomainError as again:
            return is_transient(again)
        return False

    @asynccontextmanager
    async def _renewing(self, refs: Sequence[EventRef]) -> AsyncIterator[None]:
        task = asyncio.create_task(self._renew(refs), name="renew-leases")
        try:
            yield
        finally:
            task.cancel()
            with suppress(asyncio.CancelledError):
                await task

    async def _renew(self, refs: Sequence[EventRef]) -> None:
        held = list(refs)
        while held:
            await asyncio.sleep(self._timing.lease.total_seconds() / 3)
            try:
                lost = set(await self._ledger.renew(held, self._timing.lease))
            except DomainError as error:
                _LOG.warning("could not renew %d leases (%s)", len(held), error.reason)
                continue
            held = [r for r in held if r.id not in lost]

    def _note(self, problem: str) -> None:
        if problem != self.status.problem:
            _LOG.warning("follower %s: %s", self._worker, problem)
        self.status.problem = problem

    def _backoff(self) -> Backoff:
        return Backoff(self._timing.first_backoff, self._timing.last_backoff)


class Backoff:
    """Waits that double up to a limit, each with jitter."""

    def __init__(self, first: float, last: float) -> None:
        self._next = first
        self._last = last

    def next(self) -> float:
        """Return how many seconds to wait now."""
        wait, self._next = self._next, min(self._next * 2, self._last)
        return wait * random.uniform(0.5, 1.0)  # noqa: S311 - jitter, not a secret


def _group(events: Sequence[OutboxEvent]) -> list[_Work]:
    """Return each (project, branch, family) once, with its smallest position and all its events."""
    found: dict[FamilyKey, list[OutboxEvent]] = defaultdict(list)
    for event in events:
        found[event.project, event.branch, event.family].append(event)
    return [_Work(key, min(e.position for e in mine), tuple(e.ref for e in mine)) for key, mine in found.items()]


def _since(position: int) -> int:
    # 0 would mean "all"; a commit has a position of 1 or more.
    return max(1, position)


def _describe(error: BaseException) -> str:
    """Return the reason of a failure for the ledger's record: never content."""
    if isinstance(error, DomainError):
        return f"{error.reason}: {error.message}"[:MAX_ERROR_CHARS]
    return type(error).__name__


async def _unless(stop: asyncio.Event, work: Awaitable[T]) -> T | None:
    """Return what the work returns; None, with the work cancelled, when the stop comes first."""
    task = asyncio.ensure_future(work)
    ending = asyncio.ensure_future(stop.wait())
    try:
        await asyncio.wait((task, ending), return_when=asyncio.FIRST_COMPLETED)
        if task.done():
            return task.result()
        return None
    finally:
        for each in (task, ending):
            if not each.done():
                each.cancel()
                with suppress(asyncio.CancelledError, DomainError):
                    await each


async def _sleep(stop: asyncio.Event, seconds: float) -> None:
    with suppress(TimeoutError):
        await asyncio.wait_for(stop.wait(), seconds)
