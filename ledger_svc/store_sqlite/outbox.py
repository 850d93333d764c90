"""The outbox: who may work on which event, proven by a fencing number. Runs in the writer, within its transaction.

How long to back off and when to give up is not decided here: the service hands in the function that says so.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Sequence
from datetime import datetime
from typing import Any, Final

from ledger_svc.instants import from_micros, to_micros
from ledger_svc.outbox import SPENT, EventRef, EventView, OutboxStats, handled_position
from ledger_svc.rows import event_of

_COLUMNS: Final = (
    "id, project_id, position, family_id, branch, recorded_at, attempts, fencing, leased_until, last_error"
)


class Outbox:
    """Operations on one connection."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        self._db = connection

    def claim(
        self, worker: str, limit: int, now: datetime, leased_until: datetime, most_attempts: int
    ) -> list[EventView]:
        """Lease the oldest events that are due; events of one (family, branch) never go to two workers."""
        moment = to_micros(now)
        self._bury_spent(moment, most_attempts)
        found = self._db.execute(
            # In order of id: what is passed over is only what somebody works on, or what rests after a failure.
            f"SELECT {_COLUMNS} FROM outbox AS o INDEXED BY outbox_live "
            "WHERE o.dead = 0 AND o.available_at <= ?1 AND NOT EXISTS ("
            "SELECT 1 FROM outbox AS busy INDEXED BY outbox_leased_head WHERE busy.family_id = o.family_id "
            "AND busy.branch = o.branch AND busy.leased_until > 0 AND busy.leased_until > ?1) "
            "ORDER BY o.id LIMIT ?2",
            (moment, limit),
        ).fetchall()
        until = to_micros(leased_until)
        self._db.executemany(
            "UPDATE outbox SET available_at = ?, leased_until = ?, worker = ?, attempts = attempts + 1, "
            "fencing = fencing + 1 WHERE id = ?",
            [(until, until, worker, row[0]) for row in found],
        )
        return [event_of((*row[:6], row[6] + 1, row[7] + 1, until, row[9])) for row in found]

    def _bury_spent(self, now: int, most_attempts: int) -> None:
        """Give up events whose worker died on the last attempt that they had."""
        self._db.execute(
            "UPDATE outbox SET dead = 1, leased_until = 0, last_error = ? "
            "WHERE leased_until > 0 AND leased_until <= ? AND attempts >= ? AND dead = 0",
            (SPENT, now, most_attempts),
        )

    def _held(self, ref: EventRef, now: int) -> Any:
        """Return the attempts of an event that the caller still holds, None when it does not."""
        return self._db.execute(
            "SELECT attempts FROM outbox WHERE id = ? AND fencing = ? AND dead = 0 AND leased_until > ?",
            (ref.id, ref.fencing_token, now),
        ).fetchone()

    def ack(self, refs: Sequence[EventRef], now: datetime) -> list[int]:
        """Forget events that are done; return those whose lease was lost."""
        moment, lost = to_micros(now), []
        for ref in refs:
            gone = self._db.execute(
                "DELETE FROM outbox WHERE id = ? AND fencing = ? AND dead = 0 AND leased_until > ?",
                (ref.id, ref.fencing_token, moment),
            ).rowcount
            if gone != 1:
                lost.append(ref.id)
        return lost

    def fail(
        self,
        failures: Sequence[tuple[EventRef, str]],
        now: datetime,
        due_again: Callable[[int, datetime], datetime | None],
    ) -> tuple[list[int], list[int]]:
        """Give events back; return those that are dead now, and those whose lease was lost."""
        moment = to_micros(now)
        dead: list[int] = []
        lost: list[int] = []
        for ref, error in failures:
            row = self._held(ref, moment)
            if row is None:
                lost.append(ref.id)
                continue
            due = due_again(int(row[0]), now)
            if due is None:
                dead.append(ref.id)
            self._db.execute(
                "UPDATE outbox SET available_at = ?, leased_until = 0, worker = '', dead = ?, last_error = ? "
                "WHERE id = ?",
                (moment if due is None else to_micros(due), int(due is None), error, ref.id),
            )
        return dead, lost

    def renew(self, refs: Sequence[EventRef], now: datetime, leased_until: datetime) -> list[int]:
        """Keep leases; return the events whose lease was lost."""
        moment, until, lost = to_micros(now), to_micros(leased_until), []
        for ref in refs:
            kept = self._db.execute(
                "UPDATE outbox SET available_at = ?, leased_until = ? "
                "WHERE id = ? AND fencing = ? AND dead = 0 AND leased_until > ?",
                (until, until, ref.id, ref.fencing_token, moment),
            ).rowcount
            if kept != 1:
                lost.append(ref.id)
        return lost

    def redrive(self, ids: Sequence[int], project_id: str, now: datetime) -> int:
        """Put dead events back with no attempts; the fencing number stays, so that an old holder stays out."""
        fresh = "UPDATE outbox SET dead = 0, attempts = 0, leased_until = 0, available_at = ?, worker = '' "
        moment = to_micros(now)
        if not ids:
            return self._db.execute(
                f"{fresh} WHERE id IN (SELECT id FROM outbox INDEXED BY outbox_dead_by_project "
                "WHERE dead = 1 AND project_id = ?)",
                (moment, project_id),
            ).rowcount
        where, more = ("", ()) if not project_id else (" AND project_id = ?", (project_id,))
        return sum(
            self._db.execute(
                f"{fresh} WHERE id = ? AND dead = 1{where}",
                (moment, ident, *more),
            ).rowcount
            for ident in ids
        )


class OutboxReader:
    """Reads of the outbox."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        self._db = connection

    def stats(self, project_id: str, now: datetime) -> OutboxStats:
        """Count, and say how far the consumer is."""
        one = self._db.execute
        moment = to_micros(now)
        if project_id:
            where, values = "project_id = ?", (project_id,)
            pending, dead, oldest = one(
                "SELECT count(*) FILTER (WHERE dead = 0), count(*) FILTER (WHERE dead = 1), "
                f"min(recorded_at) FILTER (WHERE dead = 0) FROM outbox INDEXED BY outbox_by_position WHERE {where}",
                values,
            ).fetchone()
            leased = one(
                f"SELECT count(*) FROM outbox WHERE leased_until > 0 AND leased_until > ? AND {where}",
                (moment, *values),
            ).fetchone()[0]
            newest = one(f"SELECT max(id) FROM outbox INDEXED BY outbox_by_position WHERE {where}", values).fetchone()
        else:
            pending = one("SELECT count(*) FROM outbox INDEXED BY outbox_due WHERE dead = 0").fetchone()[0]
            dead = one("SELECT count(*) FROM outbox INDEXED BY outbox_dead WHERE dead = 1").fetchone()[0]
            leased = one(
                "SELECT count(*) FROM outbox WHERE leased_until > 0 AND leased_until > ?", (moment,)
            ).fetchone()[0]
            oldest_row = one("SELECT recorded_at FROM outbox WHERE dead = 0 ORDER BY id LIMIT 1").fetchone()
            oldest = oldest_row[0] if oldest_row else None
            newest = one("SELECT seq FROM sqlite_sequence WHERE name = 'outbox'").fetchone()
        head = handled = 0
        if project_id:
            row = one("SELECT position FROM projects WHERE project_id = ?", (project_id,)).fetchone()
            head = int(row[0]) if row else 0
            first = one("SELECT min(position) FROM outbox WHERE project_id = ?", (project_id,)).fetchone()
            handled = handled_position(first[0], head)
        return OutboxStats(
            pending=pending,
            leased=leased,
            dead=dead,
            oldest=None if oldest is None else from_micros(oldest),
            newest_id=(newest[0] or 0) if newest else 0,
            handled_position=handled,
            head_position=head,
        )

    def anything_due(self, now: datetime) -> bool:
        """Return whether an event is due, whoever may have it."""
        row = self._db.execute(
            "SELECT 1 FROM outbox INDEXED BY outbox_due WHERE dead = 0 AND available_at <= ? LIMIT 1",
            (to_micros(now),),
        ).fetchone()
        return row is not None

    def next_due(self, now: datetime) -> datetime | None:
        """Return when the next event that is not due yet will be, None when there is none."""
        row = self._db.execute(
            "SELECT min(available_at) FROM outbox INDEXED BY outbox_due WHERE dead = 0 AND available_at > ?",
            (to_micros(now),),
        ).fetchone()
        return None if row[0] is None else from_micros(row[0])

    def dead_letters(self, project_id: str, after: int, limit: int) -> list[EventView]:
        """Return events that were given up, oldest first."""
        where, values = ("AND project_id = ?", (project_id,)) if project_id else ("", ())
        index = "outbox_dead_by_project" if project_id else "outbox_dead"
        found = self._db.execute(
            f"SELECT {_COLUMNS} FROM outbox INDEXED BY {index} WHERE dead = 1 {where} AND id > ? ORDER BY id LIMIT ?",
            (*values, after, limit),
        ).fetchall()
        return [event_of(row) for row in found]
