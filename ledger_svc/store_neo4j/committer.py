"""Group commit on Neo4j: one committer for each project takes all waiting decisions and writes them in one transaction.

The transaction holds the lock of the project's node from its first statement on, so commits of one project are serial,
whichever process they come from; those of different projects do not wait for each other.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from neo4j.exceptions import ConstraintError

from ledger_svc.group import Decision, Load, Outcome, Persist, run_group
from ledger_svc.store_neo4j.database import Database, Transaction
from ledger_svc.store_neo4j.loader import StateLoader
from ledger_svc.store_neo4j.persister import Persister

MOST_IN_GROUP: Final = 128
"""More decisions hardly make a commit cheaper, and the server holds all of a transaction in its heap."""
_TRIES: Final = 3


@dataclass(frozen=True, slots=True)
class Committed:
    """What a group left behind."""

    outcomes: list[Outcome]
    version: int
    position: int
    grew: bool
    """Whether it added commits."""


@dataclass(slots=True)
class Job:
    """Decisions of one project that somebody awaits."""

    decisions: Sequence[Decision[Any]]
    future: asyncio.Future[list[Outcome]] = field(default_factory=lambda: asyncio.get_running_loop().create_future())


class Committer:
    """Decides and writes for one project. Works while there is something to do.

    Args:
        database: Where.
        project_id: The project.
        on_commit: Called after each durable group, before anybody learns of its results.
        on_idle: Called when nothing is left to do.
    """

    def __init__(
        self,
        database: Database,
        project_id: str,
        on_commit: Callable[[str, Committed], None],
        on_idle: Callable[[str], None],
    ) -> None:
        self._database = database
        self._project_id = project_id
        self._on_commit = on_commit
        self._on_idle = on_idle
        self._queue: deque[Job] = deque()
        self._task: asyncio.Task[None] | None = None
        self.groups = 0
        """Transactions so far; tests of the group commit look at it."""

    def submit(self, job: Job) -> None:
        """Queue decisions."""
        self._queue.append(job)
        if self._task is None:
            self._task = asyncio.create_task(self._run(), name=f"ledger-committer-{self._project_id}")

    async def finish(self) -> None:
        """Wait until everything that is queued is done."""
        if self._task is not None:
            await self._task

    async def _run(self) -> None:
        try:
            while self._queue:
                await self._group(self._take())
        finally:
            self._task = None
            self._on_idle(self._project_id)

    def _take(self) -> list[Job]:
        jobs = [self._queue.popleft()]
        size = len(jobs[0].decisions)
        while self._queue and size + len(self._queue[0].decisions) <= MOST_IN_GROUP:
            jobs.append(self._queue.popleft())
            size += len(jobs[-1].decisions)
        return jobs

    async def _group(self, jobs: Sequence[Job]) -> None:
        try:
            committed = await self._transact([d for job in jobs for d in job.decisions])
        except Exception as error:  # noqa: BLE001 - whoever waits gets it; the committer lives on
            await self._one_by_one(jobs, error)
            return
        outcomes = iter(committed.outcomes)
        for job in jobs:
            _answer(job, [next(outcomes) for _ in job.decisions])

    async def _one_by_one(self, jobs: Sequence[Job], error: Exception) -> None:
        """One job's fault must not be its neighbours'."""
        for job in jobs:
            if len(jobs) == 1:
                _refuse(job, error)
                return
            try:
                committed = await self._transact(job.decisions)
            except Exception as own:  # noqa: BLE001 - it is this job's answer
                _refuse(job, own)
            else:
                _answer(job, committed.outcomes)

    async def _transact(self, decisions: Sequence[Decision[Any]]) -> Committed:
        """Do all in one transaction. All of it is undone when one of them fails unexpectedly."""
        for attempt in range(1, _TRIES + 1):
            self.groups += 1
            try:
                committed = await self._database.write(lambda tx: self._decide(tx, decisions))
            except ConstraintError:
                # Another process made what this one did not see: a project has no lock before it is there. The
                # decisions see it now, and have an answer of their own.
                if attempt == _TRIES:
                    raise
            else:
                self._on_commit(self._project_id, committed)
                return committed
        raise AssertionError("unreachable")

    async def _decide(self, transaction: Transaction, decisions: Sequence[Decision[Any]]) -> Committed:
        loader = StateLoader(transaction)
        working, counters = await loader.begin(self._project_id)
        persister = Persister(transaction, self._project_id, counters)
        before = working.state.position if working.state else 0
        steps = run_group(working, decisions)
        while True:
            # Hashing takes a while; in a thread, other calls go on meanwhile.
            step = await asyncio.to_thread(_advance, steps)
            if isinstance(step, Load):
                await persister.flush()
                await loader.load(working, step.query)
            elif isinstance(step, Persist):
                persister.persist(step.changes)
            else:
                version = await persister.finish()
                position = working.state.position if working.state else 0
                return Committed(step, version, position, position > before)


def _advance(steps: Generator[Load | Persist, None, list[Outcome]]) -> Load | Persist | list[Outcome]:
    try:
        return next(steps)
    except StopIteration as end:
        outcomes: list[Outcome] = end.value
        return outcomes


def _answer(job: Job, outcomes: list[Outcome]) -> None:
    if not job.future.done():
        job.future.set_result(outcomes)


def _refuse(job: Job, error: Exception) -> None:
    if not job.future.done():
        job.future.set_exception(error)
