"""The outbox as a service: leases, waiting for events, giving up."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from datetime import timedelta

from ledger_svc.outbox import MOST_ATTEMPTS, EventRef, EventView, OutboxStats, backoff
from ledger_svc.service.context import Ledger
from service_kit.context import remaining_seconds
from service_kit.errors import DomainError, Reason
from service_kit.principals import ALL_PROJECTS, Kind, Role
from service_kit.principals import Principal as Caller

_TIME_TO_ANSWER_SECONDS = 0.2


class OutboxService:
    """How changes reach the index. Only a SERVICE that administers all projects."""

    def __init__(
        self, ledger: Ledger, stopping: asyncio.Event, first_backoff: timedelta = timedelta(seconds=1)
    ) -> None:
        self._ledger = ledger
        self._stopping = stopping
        self._due_again = backoff(first=first_backoff)

    def _enter(self, caller: Caller) -> None:
        if caller.kind is not Kind.SERVICE or not caller.can(ALL_PROJECTS, Role.ADMIN):
            raise DomainError(
                Reason.PERMISSION_DENIED,
                "the outbox is for services that administer all projects",
                metadata={"project": "projects/*", "role": Role.ADMIN.value},
            )

    async def claim(
        self, caller: Caller, worker: str, limit: int, lease: timedelta, wait_seconds: float
    ) -> list[EventView]:
        """Lease events; wait for one when none is due."""
        self._enter(caller)
        store = self._ledger.store
        left = remaining_seconds()
        if left is not None:
            wait_seconds = min(wait_seconds, left - _TIME_TO_ANSWER_SECONDS)
        loop = asyncio.get_running_loop()
        give_up = loop.time() + wait_seconds
        while True:
            version = store.version()
            now = self._ledger.now()
            found = await store.claim_events(worker, limit, now, now + lease, MOST_ATTEMPTS)
            left_seconds = give_up - loop.time()
            if found or left_seconds <= 0 or self._stopping.is_set():
                return found
            due = await store.next_event_due(now)
            if due is not None:
                left_seconds = min(left_seconds, max(0.01, (due - now).total_seconds()))
            await self._changed_or_stopping(version, left_seconds)

    async def _changed_or_stopping(self, version: int, seconds: float) -> None:
        changed = asyncio.ensure_future(self._ledger.store.changed("", version, seconds))
        stopping = asyncio.ensure_future(self._stopping.wait())
        try:
            await asyncio.wait((changed, stopping), return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in (changed, stopping):
                task.cancel()
            await asyncio.gather(changed, stopping, return_exceptions=True)

    async def ack(self, caller: Caller, refs: Sequence[EventRef]) -> list[int]:
        """Mark events as done; return those whose lease was lost."""
        self._enter(caller)
        return await self._ledger.store.ack_events(_once(refs), self._ledger.now())

    async def fail(self, caller: Caller, failures: Sequence[tuple[EventRef, str]]) -> tuple[list[int], list[int]]:
        """Give events back; return those that are dead now, and those whose lease was lost."""
        self._enter(caller)
        # Named twice, an event fails once, for the reason given last.
        last = tuple(dict(failures).items())
        return await self._ledger.store.fail_events(last, self._ledger.now(), self._due_again)

    async def renew(self, caller: Caller, refs: Sequence[EventRef], lease: timedelta) -> list[int]:
        """Keep leases; return the events whose lease was lost."""
        self._enter(caller)
        now = self._ledger.now()
        return await self._ledger.store.renew_leases(_once(refs), now, now + lease)

    async def stats(self, caller: Caller, project_id: str) -> tuple[OutboxStats, timedelta]:
        """Say how far behind the consumer is, and the age of the oldest pending event."""
        self._enter(caller)
        if project_id:
            await self._ledger.enter(caller, project_id)
        now = self._ledger.now()
        stats = await self._ledger.store.outbox_stats(project_id, now)
        lag = timedelta() if stats.oldest is None else max(timedelta(), now - stats.oldest)
        return stats, lag

    async def dead_letters(self, caller: Caller, project_id: str, after: int, limit: int) -> list[EventView]:
        """List events that were given up, oldest first."""
        self._enter(caller)
        if project_id:
            await self._ledger.enter(caller, project_id)
        return await self._ledger.store.dead_letters(project_id, after, limit)

    async def redrive(self, caller: Caller, ids: Sequence[int], project_id: str) -> int:
        """Put dead events back; return how many."""
        self._enter(caller)
        if project_id:
            await self._ledger.enter(caller, project_id)
        return await self._ledger.store.redrive(ids, project_id, self._ledger.now())


def _once(refs: Sequence[EventRef]) -> Sequence[EventRef]:
    """Return each event once: naming one twice says nothing more, and stores need not agree on what it would."""
    return tuple(dict.fromkeys(refs))
