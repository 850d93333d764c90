"""The one writer: a thread that takes all waiting work, does it in one transaction, and syncs once for all of it."""

from __future__ import annotations

import asyncio
import sqlite3
import threading
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from ledger_svc.group import Decision, Load, Outcome, run_group
from ledger_svc.state import Change
from ledger_svc.store_sqlite.writes import Persister, StateLoader

MOST_IN_GROUP: Final = 512


@dataclass(slots=True)
class Job:
    """Work that somebody awaits: decisions, or one function on the connection."""

    loop: asyncio.AbstractEventLoop
    future: asyncio.Future[Any]
    decisions: Sequence[Decision[Any]] = ()
    function: Callable[[sqlite3.Connection], Any] | None = None
    outcomes: list[Outcome] = field(default_factory=list)
    result: Any = None
    error: BaseException | None = None
    committed: set[str] = field(default_factory=set)
    """Projects that it added commits to."""

    @property
    def size(self) -> int:
        """How many units of work it is."""
        return len(self.decisions) or 1


class WriterClosedError(Exception):
    """The store is closing."""


class Writer:
    """Owns the writing connection.

    Args:
        connection: Nobody else uses it while ``exclusive`` is held.
        exclusive: Held during each transaction; shared with the readers of a database in memory.
        on_commit: Called in the writer's thread after each durable group with the projects that got commits, before
            anybody learns of the results.
    """

    def __init__(
        self,
        connection: sqlite3.Connection,
        exclusive: threading.Lock,
        on_commit: Callable[[frozenset[str]], None],
        most_waiting: int,
    ) -> None:
        self._db = connection
        self._exclusive = exclusive
        self._on_commit = on_commit
        self._loader = StateLoader(connection)
        self._persister = Persister(connection)
        self._queue: deque[Job] = deque()
        self._wake = threading.Condition()
        self._waiting = 0
        self._most_waiting = most_waiting
        self._closing = False
        self.groups = 0
        """Transactions so far; tests of the group commit look at it."""
        self._thread = threading.Thread(target=self._run, name="ledger-writer", daemon=True)
        self._thread.start()

    def submit(self, job: Job) -> bool:
        """Queue a job; return False when too much is waiting already."""
        with self._wake:
            if self._closing:
                raise WriterClosedError
            if self._waiting + job.size > self._most_waiting and self._waiting:
                return False
            self._waiting += job.size
            self._queue.append(job)
            self._wake.notify()
        return True

    @property
    def most_waiting(self) -> int:
        """How much may wait."""
        return self._most_waiting

    def close(self) -> None:
        """Finish what is queued, then end the thread. Blocks."""
        with self._wake:
            self._closing = True
            self._wake.notify()
        self._thread.join()

    def _run(self) -> None:
        while True:
            jobs = self._take()
            if not jobs:
                return
            try:
                self._transact(jobs)
            except Exception as error:  # noqa: BLE001 - whoever waits gets it; the writer lives on
                self._retry_one_by_one(jobs, error)
            committed = frozenset[str]().union(*(job.committed for job in jobs if job.error is None))
            self._on_commit(committed)
            self._answer(jobs)

    def _take(self) -> list[Job]:
        with self._wake:
            while not self._queue and not self._closing:
                self._wake.wait()
            jobs: list[Job] = []
            size = 0
            while self._queue and (not jobs or size + self._queue[0].size <= MOST_IN_GROUP):
                job = self._queue.popleft()
                size += job.size
                jobs.append(job)
            self._waiting -= size
            return jobs

    def _transact(self, jobs: Sequence[Job]) -> None:
        """Do all jobs in one transaction. All of it is undone when one of them fails unexpectedly."""
        self.groups += 1
        with self._exclusive:
            self._db.execute("BEGIN IMMEDIATE")
            try:
                self._decide(jobs)
                for job in jobs:
                    if job.function is not None:
                        job.result = job.function(self._db)
                self._db.execute("COMMIT")
            except BaseException:
                # A failed COMMIT may have rolled back by itself.
                if self._db.in_transaction:
                    self._db.execute("ROLLBACK")
                for job in jobs:
                    job.outcomes, job.result, job.committed = [], None, set()
                raise

    def _decide(self, jobs: Sequence[Job]) -> None:
        by_project: dict[str, list[tuple[Job, int]]] = {}
        for job in jobs:
            job.outcomes = [Outcome()] * len(job.decisions)
            for index, decision in enumerate(job.decisions):
                by_project.setdefault(decision.project_id, []).append((job, index))
        for project_id, places in by_project.items():
            outcomes, committed = self._decide_project(project_id, [job.decisions[i] for job, i in places])
            for (job, index), outcome in zip(places, outcomes, strict=True):
                job.outcomes[index] = outcome
                if committed:
                    job.committed.add(project_id)

    def _decide_project(self, project_id: str, decisions: list[Decision[Any]]) -> tuple[list[Outcome], bool]:
        state = self._loader.begin(project_id)
        before = state.state.position if state.state else 0
        steps = run_group(state, decisions)
        while True:
            try:
                step = next(steps)
            except StopIteration as end:
                outcomes: list[Outcome] = end.value
                after = state.state.position if state.state else 0
                return outcomes, after > before
            if isinstance(step, Load):
                self._loader.load(state, step.query)
            else:
                self._persist(step.changes)

    def _persist(self, changes: Sequence[Change]) -> None:
        for change in changes:
            self._persister.persist(change)

    def _retry_one_by_one(self, jobs: Sequence[Job], error: Exception) -> None:
        """One job's fault must not be its neighbours'."""
        if len(jobs) == 1:
            jobs[0].error = error
            return
        for job in jobs:
            try:
                self._transact([job])
            except Exception as own:  # noqa: BLE001 - it is this job's answer
                job.error = own

    def _answer(self, jobs: Sequence[Job]) -> None:
        by_loop: dict[asyncio.AbstractEventLoop, list[Job]] = {}
        for job in jobs:
            by_loop.setdefault(job.loop, []).append(job)
        for loop, own in by_loop.items():
            try:
                loop.call_soon_threadsafe(_resolve, own)
            except RuntimeError:
                # The loop is closed: nobody waits any more.
                continue


def _resolve(jobs: Sequence[Job]) -> None:
    for job in jobs:
        if job.future.done():
            continue
        if job.error is not None:
            job.future.set_exception(job.error)
        elif job.function is not None:
            job.future.set_result(job.result)
        else:
            job.future.set_result(job.outcomes)
