"""Who waits for commits, and how they learn of them: one number for each project that only grows."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable


class News:
    """Versions of projects, and those who wait for the next one. Belongs to one event loop.

    The empty project id stands for all projects together.
    """

    def __init__(self) -> None:
        self._versions: dict[str, int] = {}
        self._waiters: dict[str, set[asyncio.Future[None]]] = {}

    def version(self, project_id: str = "") -> int:
        """Return a number that grows with every commit."""
        return self._versions.get(project_id, 0)

    @property
    def awaited(self) -> frozenset[str]:
        """The projects that somebody waits for."""
        return frozenset(self._waiters)

    def announce(self, projects: Iterable[str]) -> None:
        """Say that projects have got commits."""
        for project_id in (*projects, ""):
            self._versions[project_id] = self._versions.get(project_id, 0) + 1
            for waiter in self._waiters.get(project_id, ()):
                if not waiter.done():
                    waiter.set_result(None)

    async def changed(self, project_id: str, version: int, timeout_seconds: float) -> bool:
        """Wait until the version is above a number; return whether it is, at the latest after the timeout."""
        if self.version(project_id) > version:
            return True
        waiter = asyncio.get_running_loop().create_future()
        self._waiters.setdefault(project_id, set()).add(waiter)
        try:
            await asyncio.wait_for(waiter, timeout_seconds)
        except TimeoutError:
            pass
        finally:
            waiting = self._waiters[project_id]
            waiting.discard(waiter)
            if not waiting:
                del self._waiters[project_id]
        return self.version(project_id) > version
