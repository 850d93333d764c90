"""A store that fails as networks and disks do, around a real one: for tests of everything above the port.

Each call of the port is a step. At each step it can be told to fail before the store hears of it, to lose the answer
after the store has done it, to do it twice, or to be late. What the store promises holds all the same, so whoever
repeats a call with its request_id must find one effect and one answer.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Final, cast

from ledger_svc.store import LedgerStore
from service_kit.errors import dependency_unavailable

_PLAIN: Final = frozenset({"info", "version", "close", "groups"})
"""What answers from memory, or ends everything: no step."""


class Fault(StrEnum):
    """What goes wrong with one call."""

    LOST = "LOST"
    """The call never reaches the store."""
    UNACKNOWLEDGED = "UNACKNOWLEDGED"
    """The store does it; its answer is lost."""
    TWICE = "TWICE"
    """The call reaches the store twice at the same time; the caller hears the first answer."""
    LATE = "LATE"
    """The call waits first, so that others overtake it."""


Choose = Callable[[str, int], Fault | None]
"""Name of the port's method, and how many calls there were before, to what goes wrong."""


def at_steps(faults: Iterable[tuple[int, Fault]]) -> Choose:
    """Return a choice by the number of the call, whatever it is."""
    planned = dict(faults)
    return lambda _, step: planned.get(step)


@dataclass(slots=True)
class Faults:
    """What goes wrong, and a record of it."""

    choose: Choose = field(default=lambda _name, _step: None)
    late_seconds: float = 0.01
    error: Callable[[], Exception] = field(default=lambda: dependency_unavailable("store"))
    steps: list[str] = field(default_factory=list)
    """Every call so far, by name."""
    injected: list[tuple[str, Fault]] = field(default_factory=list)

    def next(self, name: str) -> Fault | None:
        """Count a call, and say what goes wrong with it."""
        fault = self.choose(name, len(self.steps))
        self.steps.append(name)
        if fault is not None:
            self.injected.append((name, fault))
        return fault


def with_faults(store: LedgerStore, faults: Faults) -> LedgerStore:
    """Return the store with faults around it; closing it closes the store."""
    return cast("LedgerStore", _FaultyStore(store, faults))


class _FaultyStore:
    """Every method of the port, each call a step."""

    def __init__(self, store: LedgerStore, faults: Faults) -> None:
        self._store = store
        self._faults = faults

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._store, name)
        if name in _PLAIN or name.startswith("_") or not callable(found):
            return found

        async def step(*values: Any, **named: Any) -> Any:
            return await self._step(name, lambda: found(*values, **named))

        return step

    async def _step(self, name: str, call: Callable[[], Awaitable[Any]]) -> Any:
        match self._faults.next(name):
            case Fault.LOST:
                raise self._faults.error()
            case Fault.UNACKNOWLEDGED:
                await call()
                raise self._faults.error()
            case Fault.TWICE:
                first, _ = await asyncio.gather(call(), call())
                return first
            case Fault.LATE:
                await asyncio.sleep(self._faults.late_seconds)
        return await call()
