"""Identifiers that the server makes: UUIDv7 (RFC 9562), ordered by the moment they were made."""

from __future__ import annotations

import secrets
import threading
import time
from collections.abc import Callable
from typing import Final
from uuid import UUID

_RANDOM_BITS: Final = 74
_RANDOM_MASK: Final = (1 << _RANDOM_BITS) - 1
_LOW_BITS: Final = 62


class IdFactory:
    """Makes UUIDv7s that strictly grow within the process, also when the clock stands still or goes back."""

    def __init__(self, now_ms: Callable[[], int] | None = None) -> None:
        self._now_ms = now_ms or (lambda: time.time_ns() // 1_000_000)
        self._lock = threading.Lock()
        self._ms = -1
        self._random = 0

    def uuid7(self) -> UUID:
        """Return the next UUID."""
        with self._lock:
            now = self._now_ms()
            if now > self._ms:
                # The top bit starts at 0, so that counting up within one millisecond practically never overflows.
                self._ms, self._random = now, secrets.randbits(_RANDOM_BITS - 1)
            else:
                # A random step keeps the next id unguessable.
                self._random += 1 + secrets.randbits(32)
                if self._random > _RANDOM_MASK:
                    self._ms, self._random = self._ms + 1, secrets.randbits(_RANDOM_BITS - 1)
            ms, random = self._ms, self._random
        high, low = random >> _LOW_BITS, random & ((1 << _LOW_BITS) - 1)
        return UUID(int=(ms << 80) | (0x7 << 76) | (high << 64) | (0b10 << 62) | low)

    def new_id(self) -> str:
        """Return the next UUID as lower-case text with dashes."""
        return str(self.uuid7())


_FACTORY: Final = IdFactory()


def uuid7() -> UUID:
    """Return the next UUIDv7 of this process."""
    return _FACTORY.uuid7()


def new_id() -> str:
    """Return the next UUIDv7 of this process as lower-case text with dashes."""
    return _FACTORY.new_id()
