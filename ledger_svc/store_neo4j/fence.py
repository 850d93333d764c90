"""Reads of one snapshot on a database that has none: every read is checked, and done again when a commit came between.

Neo4j reads what is committed at the moment of each step, and a commit becomes visible piece by piece: first new nodes,
which no index leads to yet, then changed properties, then index entries. Each group that is committed gives its project
a new version, in the same commit. So a read of several steps looks at the version before and after, and:

- a version that this process does not know to be wholly visible may still be on its way: the read takes the project's
  lock for a moment, which the writer holds until all of it is visible, and starts over;
- a version that differs afterwards means that a commit came between: the read starts over.

A read that is never let through takes the lock for as long as it lasts, so it ends in any case.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from functools import cache
from typing import Any, Final, Protocol, TypeVar

from ledger_svc.store_neo4j import queries as q
from ledger_svc.store_neo4j.database import Database, Transaction

T = TypeVar("T")

_MOST_TRIES: Final = 5
_fenced = cache(q.fenced)


class Statements(Protocol):
    """What a reader needs of a transaction."""

    async def run(self, query: str, /, **parameters: Any) -> list[list[Any]]:
        """Run one statement of ``queries`` and return all of its rows."""

    async def one(self, query: str, /, **parameters: Any) -> list[Any] | None:
        """Return the first row, None when there is none."""

    async def position(self, project_id: str) -> int | None:
        """Return the newest position of a project, None when there is no such project."""


class _StartOverError(Exception):
    """What was read is not one snapshot."""

    def __init__(self, unsettled: bool) -> None:
        super().__init__()
        self.unsettled = unsettled


class Snapshot:
    """Statements of one transaction on one project, each checked as it is answered: all are of the same version."""

    def __init__(self, transaction: Transaction, project_id: str, settled: int) -> None:
        self._tx = transaction
        self._project_id = project_id
        self._settled = settled
        self._version: int | None = None
        self._position: int | None = None
        self._recorded_at = 0

    async def run(self, query: str, /, **parameters: Any) -> list[list[Any]]:
        """Run one statement of ``queries`` and return all of its rows; none when the project is not there."""
        row = await self._tx.one(_fenced(query), **{**parameters, "project_id": self._project_id})
        if row is None:
            return []
        before, after, position, recorded_at, found = row
        if self._version is None:
            if before > self._settled:
                raise _StartOverError(unsettled=True)
            self._version, self._position, self._recorded_at = before, position, recorded_at
        if not before == after == self._version:
            raise _StartOverError(unsettled=False)
        rows: list[list[Any]] = found
        return rows

    async def one(self, query: str, /, **parameters: Any) -> list[Any] | None:
        """Return the first row, None when there is none."""
        found = await self.run(query, **parameters)
        return found[0] if found else None

    async def position(self, project_id: str) -> int | None:
        """Return the newest position of the project, None when there is no such project."""
        if self._version is None:
            await self.run(q.POSITION, project_id=project_id)
        return self._position


class Fence:
    """Which versions are wholly visible, and reads that hold to it."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._settled: dict[str, int] = {}
        self._asking: dict[str, asyncio.Task[None]] = {}

    def settled(self, project_id: str, version: int) -> None:
        """Note that a version is wholly visible: its commit was acknowledged."""
        self._settled[project_id] = max(self._settled.get(project_id, 0), version)

    async def ask(self, project_id: str, function: Callable[[Statements], Awaitable[T]]) -> T:
        """Run a function that asks a few statements about one project, on one snapshot; it may be run several times."""
        for _ in range(_MOST_TRIES):
            try:
                return await self._database.read(lambda tx: function(self._snapshot(tx, project_id)))
            except _StartOverError as error:
                if error.unsettled:
                    await self._settle(project_id)
        return await self.locked(project_id, function)

    def _snapshot(self, transaction: Transaction, project_id: str) -> Snapshot:
        return Snapshot(transaction, project_id, self._settled.get(project_id, 0))

    async def read(
        self,
        project_id: str,
        function: Callable[[Transaction], Awaitable[T]],
        *,
        tries: int = _MOST_TRIES,
        seconds: float = 0.0,
    ) -> T:
        """Run a function that reads one project, on one snapshot.

        Args:
            project_id: The project.
            function: What to run; it may be run several times.
            tries: How often, before the project's lock is taken for it.
            seconds: How long each may last; 0 is as long as any other transaction.
        """
        for _ in range(tries):
            try:
                return await self._database.read(lambda tx: self._checked(tx, project_id, function), seconds=seconds)
            except _StartOverError as error:
                if error.unsettled:
                    await self._settle(project_id)
        return await self.locked(project_id, function, seconds=seconds)

    async def locked(
        self, project_id: str, function: Callable[[Transaction], Awaitable[T]], *, seconds: float = 0.0
    ) -> T:
        """Run a function that reads one project, with nobody writing meanwhile."""

        async def work(tx: Transaction) -> T:
            await tx.run(q.SETTLE, project_id=project_id)
            return await function(tx)

        return await self._database.write(work, seconds=seconds)

    async def _checked(self, tx: Transaction, project_id: str, function: Callable[[Transaction], Awaitable[T]]) -> T:
        before = await self._version(tx, project_id)
        if before > self._settled.get(project_id, 0):
            raise _StartOverError(unsettled=True)
        try:
            found = await function(tx)
        except Exception:
            # Half of a commit may look like anything.
            if await self._version(tx, project_id) != before:
                raise _StartOverError(unsettled=False) from None
            raise
        if await self._version(tx, project_id) != before:
            raise _StartOverError(unsettled=False)
        return found

    @staticmethod
    async def _version(tx: Transaction, project_id: str) -> int:
        row = await tx.one(q.VERSION, project_id=project_id)
        return 0 if row is None else int(row[0])

    async def _settle(self, project_id: str) -> None:
        """Wait until the commit that is on its way is wholly visible; all readers that need it wait together."""
        task = self._asking.get(project_id)
        if task is None:
            task = asyncio.create_task(self._ask(project_id))
            self._asking[project_id] = task
            task.add_done_callback(lambda _: self._asking.pop(project_id, None))
        await asyncio.shield(task)

    async def _ask(self, project_id: str) -> None:
        row = await self._database.write(lambda tx: tx.one(q.SETTLE, project_id=project_id))
        if row is not None:
            self.settled(project_id, int(row[0]))
