"""The outbox: who may work on which event, proven by a fencing number.

Whoever changes the outbox locks it first, so two processes never lease events of one (family, branch) at once. A commit
that adds events does not wait for that lock. How long to back off and when to give up is not decided here.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import datetime
from typing import Any

from ledger_svc.instants import from_micros, to_micros
from ledger_svc.outbox import EventRef, EventView, OutboxStats, handled_position
from ledger_svc.rows import event_of
from ledger_svc.store_neo4j import queries as q
from ledger_svc.store_neo4j.database import Transaction
from ledger_svc.store_neo4j.fence import Statements


class Outbox:
    """Changes, in one transaction."""

    def __init__(self, transaction: Transaction) -> None:
        self._tx = transaction

    async def _lock(self) -> None:
        await self._tx.run(q.LOCK_OUTBOX)

    async def claim(
        self, worker: str, limit: int, now: datetime, leased_until: datetime, most_attempts: int
    ) -> list[EventView]:
        """Lease the oldest events that are due; events of one (family, branch) never go to two workers."""
        await self._lock()
        moment = to_micros(now)
        await self._tx.run(q.BURY_SPENT, now=moment, most=most_attempts)
        found = await self._tx.run(q.CLAIM, now=moment, until=to_micros(leased_until), worker=worker, limit=limit)
        return [event_of(tuple(row[0])) for row in found]

    async def ack(self, refs: Sequence[EventRef], now: datetime) -> list[int]:
        """Forget events that are done; return those whose lease was lost."""
        await self._lock()
        done = await self._tx.run(q.ACK, refs=_pairs(refs), now=to_micros(now))
        return _lost(refs, done)

    async def fail(
        self,
        failures: Sequence[tuple[EventRef, str]],
        now: datetime,
        due_again: Callable[[int, datetime], datetime | None],
    ) -> tuple[list[int], list[int]]:
        """Give events back; return those that are dead now, and those whose lease was lost."""
        await self._lock()
        refs = [ref for ref, _ in failures]
        held = await self._tx.run(q.HELD, refs=_pairs(refs), now=to_micros(now))
        attempts: dict[int, int] = dict(held)
        rests: list[dict[str, Any]] = []
        dead: list[dict[str, Any]] = []
        for ref, error in failures:
            if ref.id not in attempts:
                continue
            due = due_again(attempts[ref.id], now)
            row = {"event_id": ref.id, "last_error": error}
            if due is None:
                dead.append(row)
            else:
                rests.append({**row, "rests_until": to_micros(due)})
        if rests:
            await self._tx.run(q.REST, rows=rests)
        if dead:
            await self._tx.run(q.BURY, rows=dead)
        return [row["event_id"] for row in dead], _lost(refs, held)

    async def renew(self, refs: Sequence[EventRef], now: datetime, leased_until: datetime) -> list[int]:
        """Keep leases; return the events whose lease was lost."""
        await self._lock()
        kept = await self._tx.run(q.RENEW, refs=_pairs(refs), now=to_micros(now), until=to_micros(leased_until))
        return _lost(refs, kept)

    async def redrive(self, ids: Sequence[int], project_id: str, now: datetime) -> int:
        """Put dead events back with no attempts; the fencing number stays, so that an old holder stays out."""
        await self._lock()
        moment = to_micros(now)
        if ids:
            found = await self._tx.run(q.REDRIVE, ids=list(dict.fromkeys(ids)), project_id=project_id, now=moment)
        else:
            found = await self._tx.run(q.REDRIVE_PROJECT, project_id=project_id, now=moment)
        return int(found[0][0])


class OutboxReader:
    """Reads of the outbox, in one transaction."""

    def __init__(self, transaction: Statements) -> None:
        self._tx = transaction

    async def stats(self, project_id: str, now: datetime) -> OutboxStats:
        """Count, and say how far the consumer is."""
        moment = to_micros(now)
        if project_id:
            return await self._project_stats(project_id, moment)
        (pending, oldest), *_ = await self._tx.run(q.EVENTS_PENDING)
        (leased,), *_ = await self._tx.run(q.EVENTS_LEASED, now=moment)
        (dead,), *_ = await self._tx.run(q.EVENTS_DEAD)
        newest = await self._tx.one(q.NEWEST_EVENT)
        return OutboxStats(
            pending=pending,
            leased=leased,
            dead=dead,
            oldest=None if oldest is None else from_micros(oldest),
            newest_id=0 if newest is None else int(newest[0]),
            handled_position=0,
            head_position=0,
        )

    async def _project_stats(self, project_id: str, now: int) -> OutboxStats:
        head = await self._tx.position(project_id) or 0
        found = await self._tx.one(q.EVENTS_OF_PROJECT, project_id=project_id, now=now)
        pending, leased, dead, oldest, newest, first = found or (0, 0, 0, None, 0, None)
        return OutboxStats(
            pending=pending,
            leased=leased,
            dead=dead,
            oldest=None if oldest is None else from_micros(oldest),
            newest_id=newest or 0,
            handled_position=handled_position(first, head),
            head_position=head,
        )

    async def anything_due(self, now: datetime) -> bool:
        """Return whether an event is due, whoever may have it."""
        return await self._tx.one(q.EVENT_IS_DUE, now=to_micros(now)) is not None

    async def next_due(self, now: datetime) -> datetime | None:
        """Return when the next event that is not due yet will be, None when there is none."""
        row = await self._tx.one(q.NEXT_EVENT_DUE, now=to_micros(now))
        return None if row is None else from_micros(row[0])

    async def dead_letters(self, project_id: str, after: int, limit: int) -> list[EventView]:
        """Return events that were given up, oldest first."""
        found = await self._tx.run(
            q.DEAD_LETTERS_OF_PROJECT if project_id else q.DEAD_LETTERS,
            project_id=project_id,
            after=after,
            limit=limit,
        )
        return [event_of(tuple(row[0])) for row in found]


def _pairs(refs: Sequence[EventRef]) -> list[list[int]]:
    return [[ref.id, ref.fencing_token] for ref in refs]


def _lost(refs: Sequence[EventRef], done: Sequence[Sequence[Any]]) -> list[int]:
    kept = {row[0] for row in done}
    return [ref.id for ref in refs if ref.id not in kept]
