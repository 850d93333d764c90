"""The driver behind five verbs: read, write, one statement, close; bounded in time, and with errors of ours."""

from __future__ import annotations

import asyncio
import random
import time
import warnings
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, TypeVar

from neo4j import (
    AsyncDriver,
    AsyncGraphDatabase,
    AsyncManagedTransaction,
    AsyncSession,
    ResultSummary,
    TrustCustomCAs,
    unit_of_work,
)
from neo4j.exceptions import (
    AuthError,
    ClientError,
    DriverError,
    IncompleteCommit,
    Neo4jError,
    TransientError,
)

from ledger_svc.store import StoreUnreachableError
from ledger_svc.store_neo4j import queries as q
from service_kit.errors import dependency_unavailable
from service_kit.logs import get_logger

T = TypeVar("T")

_FIRST_PAUSE_SECONDS: Final = 0.05
_LONGEST_PAUSE_SECONDS: Final = 1.0
_ALREADY_MADE: Final = "Neo.ClientError.Schema.EquivalentSchemaRuleAlreadyExists"
_TIMED_OUT: Final = (
    "Neo.ClientError.Transaction.TransactionTimedOut",
    "Neo.ClientError.Transaction.TransactionTimedOutClientConfiguration",
)


@dataclass(frozen=True, slots=True)
class Neo4jConnection:
    """How to reach a server. Units are in the names."""

    uri: str
    """``bolt://`` for one server, ``neo4j://`` for a cluster; ``+s`` for TLS, ``+ssc`` to trust any certificate."""
    user: str
    password: str = field(repr=False)
    database: str = "neo4j"
    pool_size: int = 32
    connect_seconds: float = 10.0
    acquire_seconds: float = 20.0
    """How long a call waits for a free connection."""
    ca_file: Path | None = None
    """Certificates to trust beside the system's, for ``bolt://`` and ``neo4j://`` with TLS by a CA of one's own."""
    transaction_seconds: float = 30.0
    """After this the server ends a transaction."""
    retry_seconds: float = 20.0
    """How long a call retries what can be retried: a lost connection, a deadlock, a leader's change."""
    warnings: bool = False
    """Whether the server's warnings about statements are raised as Python warnings; for tests."""


class Transaction:
    """One transaction: runs statements, and gives back rows as lists."""

    def __init__(self, transaction: AsyncManagedTransaction, *, strict: bool = False) -> None:
        self._tx = transaction
        self._strict = strict

    async def run(self, query: str, /, **parameters: Any) -> list[list[Any]]:
        """Run one statement of ``queries`` and return all of its rows."""
        result = await self._tx.run(query, parameters)
        rows = await result.values()
        if self._strict:
            _warn(await result.consume())
        return rows

    async def one(self, query: str, /, **parameters: Any) -> list[Any] | None:
        """Return the first row, None when there is none."""
        found = await self.run(query, **parameters)
        return found[0] if found else None

    async def position(self, project_id: str) -> int | None:
        """Return the newest position of a project, None when there is no such project."""
        row = await self.one(q.POSITION, project_id=project_id)
        return None if row is None else int(row[0])

    async def each(self, query: str, /, **parameters: Any) -> Any:
        """Return the result itself, to go through rows as they arrive."""
        return await self._tx.run(query, parameters)


def _trust(ca_file: Path | None) -> dict[str, Any]:
    """Return the driver's options for a CA of one's own."""
    return {} if ca_file is None else {"encrypted": True, "trusted_certificates": TrustCustomCAs(str(ca_file))}


def _is_lost(error: Exception) -> bool:
    """Return whether an error is nobody's mistake here: the server is gone, busy, or does not know us any more."""
    return isinstance(error, (DriverError, TransientError, AuthError)) or getattr(error, "code", "") in _TIMED_OUT


def _warn(summary: ResultSummary) -> None:
    """Warn of what the server says about a statement: a name that it has never seen, a plan that will be slow.

    The driver could do it, and would look through the call stack for each statement.
    """
    for status in summary.gql_status_objects:
        if status.is_notification:
            warnings.warn(f"{status.status_description}: {summary.query}", RuntimeWarning, stacklevel=2)


class Database:
    """The driver, with its bookmarks: each session begins after everything that this process has seen or done."""

    def __init__(self, connection: Neo4jConnection) -> None:
        self._log = get_logger("store")
        self._connection = connection
        self._driver: AsyncDriver = AsyncGraphDatabase.driver(
            connection.uri,
            auth=(connection.user, connection.password),
            max_connection_pool_size=connection.pool_size,
            connection_timeout=connection.connect_seconds,
            connection_acquisition_timeout=connection.acquire_seconds,
            # Retries are ours: the driver's pauses grow beyond any restart of the server.
            max_transaction_retry_time=0.0,
            keep_alive=True,
            user_agent="decisionssearch",
            **_trust(connection.ca_file),
            notifications_min_severity="WARNING" if connection.warnings else "OFF",
        )
        self._bookmarks = AsyncGraphDatabase.bookmark_manager()
        # A follower may not have yet what another process was told is stored, so in a cluster reads go to the leader.
        self._reads_at_leader = connection.uri.startswith("neo4j")

    @property
    def where(self) -> str:
        """How to call it in a message."""
        return f"the database {self._connection.database} at {self._connection.uri}"

    async def check(self) -> None:
        """Connect once.

        Raises:
            StoreUnreachableError: With what to look at.
        """
        try:
            await self.run_alone("RETURN 1", {})
        except (Neo4jError, DriverError, OSError) as error:
            reason = " ".join(str(error).split())
            raise StoreUnreachableError(
                f"{self.where} cannot be used as {self._connection.user}: {reason}; "
                "check its address, that it runs, user and password"
            ) from None

    def _session(self) -> AsyncSession:
        return self._driver.session(database=self._connection.database, bookmark_manager=self._bookmarks)

    async def read(self, function: Callable[[Transaction], Awaitable[T]], *, seconds: float = 0.0) -> T:
        """Run a function in a transaction that only reads; again when that is worth a try.

        Args:
            function: What to run.
            seconds: How long the transaction may last; 0 is as long as any other.
        """
        return await self._execute(function, writes=self._reads_at_leader, seconds=seconds)

    async def write(self, function: Callable[[Transaction], Awaitable[T]], *, seconds: float = 0.0) -> T:
        """Run a function in one transaction; again, from its start, when that is worth a try.

        A connection that dies during the commit leaves open what became of it. The function then runs again: what
        a decision wrote, it finds by its request_id, and everything else that writes is fenced.

        Raises:
            DomainError: DEPENDENCY_UNAVAILABLE, when the server could not be reached in time.
        """
        return await self._execute(function, writes=True, seconds=seconds)

    async def _execute(self, function: Callable[[Transaction], Awaitable[T]], *, writes: bool, seconds: float) -> T:
        deadline = time.monotonic() + self._connection.retry_seconds
        unit = self._unit(function, seconds or self._connection.transaction_seconds)
        pause = _FIRST_PAUSE_SECONDS
        while True:
            try:
                async with self._session() as session:
                    return await (session.execute_write(unit) if writes else session.execute_read(unit))
            except (DriverError, Neo4jError) as error:
                if isinstance(error, IncompleteCommit):
                    self._log.warning("commit_outcome_unknown")
                elif not error.is_retryable():
                    raise (self._unavailable(error) if _is_lost(error) else error) from None
                if time.monotonic() + pause > deadline:
                    raise self._unavailable(error) from None
            # A part of it by chance, so that calls that failed together do not come back together.
            await asyncio.sleep(pause * random.uniform(0.5, 1.0))  # noqa: S311 - not a secret
            pause = min(2 * pause, _LONGEST_PAUSE_SECONDS)

    def _unit(
        self, function: Callable[[Transaction], Awaitable[T]], seconds: float
    ) -> Callable[[AsyncManagedTransaction], Awaitable[T]]:
        @unit_of_work(timeout=seconds)
        async def work(transaction: AsyncManagedTransaction) -> T:
            return await function(Transaction(transaction, strict=self._connection.warnings))

        return work

    async def run_alone(self, query: str, parameters: Mapping[str, Any]) -> list[list[Any]]:
        """Run one statement in a transaction of its own, which it may need: schema, procedures."""
        try:
            async with self._session() as session:
                result = await session.run(query, dict(parameters))
                return await result.values()
        except ClientError as error:
            # Another process made the same index at the same moment, whatever IF NOT EXISTS says.
            if error.code == _ALREADY_MADE:
                return []
            raise

    async def close(self) -> None:
        """Close all connections."""
        await self._driver.close()

    def _unavailable(self, error: Exception) -> Exception:
        self._log.error("store_failed", exc_info=error)
        return dependency_unavailable("store")
