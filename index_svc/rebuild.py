"""Rebuilds: a new generation is filled from the ledger while the old one serves and takes writes, then they change.

The follower writes to both from the moment the new one exists, always whole families; pages of the ledger are written
to the new one only and never over something newer. So when the last page is in, nothing is missing. A crash at any
moment leaves the old generation serving; the next start removes what was half filled.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from datetime import datetime
from enum import StrEnum
from pathlib import Path
from typing import Any, Final, TypeVar

from index_svc.domain import PointFilter, Role
from index_svc.follower import Backoff
from index_svc.generations import Generations
from index_svc.ledger_client import FamilyProjection, LedgerClient, ProjectionPage, is_transient
from index_svc.projector import Generation, IncompleteBaseError, Projector
from service_kit.clock import Clock, canonical_text, parse_text
from service_kit.errors import DomainError, Reason, not_found
from service_kit.ids import new_id

MAX_RUNS: Final = 50
"""Runs that are remembered."""

PATIENCE_ATTEMPTS: Final = 60
"""How often something that is away is asked again: about five minutes."""

T = TypeVar("T")
Advance = Callable[[int], None]
"""Told how many families were done since it was last told."""

_LOG = logging.getLogger(__name__)


class RunState(StrEnum):
    """Where a rebuild stands."""

    RUNNING = "RUNNING"
    SUCCEEDED = "SUCCEEDED"
    FAILED = "FAILED"


@dataclass(frozen=True, slots=True)
class Run:
    """One rebuild."""

    name: str
    request_id: str
    requester: str
    state: RunState
    started_at: datetime
    ended_at: datetime | None = None
    done: int = 0
    total: int = 0
    collection: str = ""
    error: str = ""


class RunLog:
    """The runs in a file, so that a retry of a request finds its run after a restart too."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def load(self) -> list[Run]:
        """Return the runs, oldest first; none when the file cannot be read: it is only a record."""
        try:
            return [_run_from_json(item) for item in json.loads(self._path.read_text("utf-8"))]
        except FileNotFoundError:
            return []
        except (ValueError, KeyError, TypeError):
            _LOG.warning("the record of rebuilds cannot be read; starting a new one")
            return []

    def save(self, runs: Sequence[Run]) -> None:
        """Replace the file as a whole."""
        part = self._path.with_name(f"{self._path.name}.new")
        part.write_text(json.dumps([_run_to_json(r) for r in runs], indent=1), "utf-8")
        part.replace(self._path)


class Rebuilds:
    """Starts rebuilds, one at a time, and knows how they went."""

    def __init__(
        self, generations: Generations, projector: Projector, ledger: LedgerClient, clock: Clock, log: RunLog
    ) -> None:
        self._generations = generations
        self._projector = projector
        self._ledger = ledger
        self._clock = clock
        self._log = log
        self._wanted = asyncio.Event()
        self._runs = [self._interrupted(r) for r in log.load()]
        log.save(self._runs)

    @property
    def running(self) -> Run | None:
        """The run in progress."""
        return next((r for r in self._runs if r.state is RunState.RUNNING), None)

    def get(self, name: str) -> Run:
        """Return a run.

        Raises:
            DomainError: NOT_FOUND.
        """
        for run in self._runs:
            if run.name == name:
                return run
        raise not_found(name)

    def start(self, request_id: str, requester: str) -> Run:
        """Ask for a rebuild; the same request by the same requester gives the same run.

        Raises:
            DomainError: STATE_CONFLICT, when another one runs.
        """
        for run in self._runs:
            if (run.request_id, run.requester) == (request_id, requester):
                return run
        if self.running is not None:
            raise DomainError(
                Reason.STATE_CONFLICT,
                f"{self.running.name} runs; wait for its end",
                metadata={"rebuild": self.running.name, "rule": "one_rebuild_at_a_time"},
            )
        run = Run(f"rebuilds/{new_id()}", request_id, requester, RunState.RUNNING, self._clock.now())
        self._runs = [*self._runs, run][-MAX_RUNS:]
        self._log.save(self._runs)
        self._wanted.set()
        return run

    async def run(self, stop: asyncio.Event) -> None:
        """Carry out what is asked for, until ``stop`` is set."""
        check = asyncio.ensure_future(self._refuse_another_ledger())
        await _first(check, stop.wait(), cancel=False)
        if not check.done():
            check.cancel()
        while not stop.is_set():
            await _first(self._wanted.wait(), stop.wait())
            self._wanted.clear()
            current = self.running
            if current is None or stop.is_set():
                continue
            work = asyncio.ensure_future(self._carry_out(current))
            await _first(work, stop.wait(), cancel=False)
            if not work.done():
                # What is filled so far is of no use to the next start: it begins anew.
                work.cancel()
                with suppress(asyncio.CancelledError):
                    await work
                return
            await work

    async def _refuse_another_ledger(self) -> None:
        """Ask for a rebuild when the index was filled from another ledger than the one that it follows now."""
        try:
            ledger_id = await patiently(self._ledger.ledger_id)
        except DomainError as error:
            _LOG.warning("could not ask the ledger who it is (%s)", error.reason)
            return
        if self._generations.is_serving and not self._generations.is_of(ledger_id) and self.running is None:
            _LOG.warning("the index is of another ledger; filling it anew")
            self.start(new_id(), "local:index")

    async def _carry_out(self, run: Run) -> None:
        try:
            generation = await self._generations.begin()
        except Exception as error:  # noqa: BLE001 - the run ends with it, and says so; what serves goes on
            self._end(run, error)
            return
        self._update(replace(run, collection=generation.collection.name, total=await self._expected()))
        try:
            applied, skipped = await self._fill(run.name, generation)
            with suppress(DomainError):  # an embedder that is away now is asked again by the first question
                await generation.searcher.prepare()
            await self._generations.promote(generation, await patiently(self._ledger.ledger_id))
            await self._projector.set_applied(applied)
        except asyncio.CancelledError:
            raise
        except Exception as error:  # noqa: BLE001 - the run ends with it, and says so; what serves goes on
            await self._generations.abandon()
            self._end(run, error)
            return
        done = self.get(run.name)
        note = f"{skipped} families could not be indexed and were left out" if skipped else ""
        self._update(
            replace(done, state=RunState.SUCCEEDED, total=done.done, ended_at=self._clock.now(), error=note), save=True
        )
        _LOG.info("%s filled %s with %d families", run.name, generation.collection.name, done.done)

    async def _fill(self, name: str, generation: Generation) -> tuple[dict[str, int], int]:
        applied: dict[str, int] = {}
        skipped = 0
        for project in await patiently(self._ledger.project_ids):
            first, left_out = await fill_project(
                self._ledger, self._projector, generation, project, lambda n: self._advance(name, n)
            )
            applied[project] = first
            skipped += left_out
        return applied, skipped

    async def _expected(self) -> int:
        """Return about how many families there are: the heads that serve now."""
        with suppress(DomainError), self._generations.reading() as live:
            counts = [
                await live.collection.count(PointFilter(p, roles=frozenset({Role.HEAD})))
                for p in await asyncio.to_thread(live.state.projects)
            ]
            return sum(counts)
        return 0

    def _advance(self, name: str, count: int) -> None:
        run = self.get(name)
        done = run.done + count
        self._update(replace(run, done=done, total=max(run.total, done)))

    def _end(self, run: Run, error: Exception) -> None:
        _LOG.error("%s failed", run.name, exc_info=error)
        reason = error.message if isinstance(error, DomainError) else "an internal failure; the log of the index has it"
        failed = replace(self.get(run.name), state=RunState.FAILED, ended_at=self._clock.now(), error=reason)
        self._update(failed, save=True)

    def _update(self, run: Run, *, save: bool = False) -> None:
        self._runs = [run if r.name == run.name else r for r in self._runs]
        if save:
            self._log.save(self._runs)

    def _interrupted(self, run: Run) -> Run:
        if run.state is not RunState.RUNNING:
            return run
        return replace(
            run, state=RunState.FAILED, ended_at=self._clock.now(), error="the process stopped before it was done"
        )


async def fill_project(
    ledger: LedgerClient,
    projector: Projector,
    generation: Generation,
    project: str,
    advance: Advance = lambda _count: None,
) -> tuple[int, int]:
    """Write everything of a project into a generation that already takes the follower's writes.

    Returns:
        The position up to which, with the follower's writes, every commit is in; and how many families had to be
        left out because they cannot be indexed.
    """
    token, first, skipped = "", None, 0
    while True:
        at = token
        page: ProjectionPage = await patiently(lambda: ledger.projection_page(project, at))  # noqa: B023 - awaited here
        first = page.as_of_position if first is None else first
        skipped += await _write(projector, generation, page.projections)
        advance(len(page.projections))
        token = page.next_page_token
        if not token:
            return first, skipped


async def _write(projector: Projector, generation: Generation, projections: Sequence[FamilyProjection]) -> int:
    """Write families; halve them on failure until those at fault stand alone. Return how many were left out."""
    if not projections:
        return 0
    try:
        await patiently(lambda: _write_together(projector, generation, projections))
    except (DomainError, ValueError, IncompleteBaseError) as error:
        if len(projections) == 1:
            _LOG.error("%s cannot be indexed", projections[0].family, exc_info=error)
            return 1
        middle = len(projections) // 2
        return await _write(projector, generation, projections[:middle]) + await _write(
            projector, generation, projections[middle:]
        )
    return 0


async def _write_together(
    projector: Projector, generation: Generation, projections: Sequence[FamilyProjection]
) -> None:
    prepared = await projector.prepare(projections, whole=True, targets=(generation,))
    await projector.write(prepared, targets=(generation,))


async def patiently(call: Callable[[], Awaitable[T]]) -> T:
    """Return what the call returns; wait for a ledger or embedder that is away, some minutes at most."""
    backoff = Backoff(0.2, 5.0)
    for attempt in range(PATIENCE_ATTEMPTS):
        try:
            return await call()
        except DomainError as error:
            if not is_transient(error) or attempt == PATIENCE_ATTEMPTS - 1:
                raise
            await asyncio.sleep(backoff.next())
    raise AssertionError("the loop returns or raises")


async def _first(*waits: Awaitable[object], cancel: bool = True) -> None:
    tasks = [asyncio.ensure_future(w) for w in waits]
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in tasks[0 if cancel else 1 :]:
            if not task.done():
                task.cancel()
                with suppress(asyncio.CancelledError):
                    await task


def _run_to_json(run: Run) -> dict[str, object]:
    return {
        **asdict(run),
        "started_at": canonical_text(run.started_at),
        "ended_at": canonical_text(run.ended_at) if run.ended_at else None,
    }


def _run_from_json(item: dict[str, Any]) -> Run:
    ended = item["ended_at"]
    values = {
        **item,
        "state": RunState(item["state"]),
        "started_at": parse_text(item["started_at"]),
        "ended_at": parse_text(ended) if ended else None,
    }
    return Run(**values)
