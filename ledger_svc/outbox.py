"""The outbox's words and its rules: how long a failed event rests, when it is given up, what counts as handled."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final

MOST_ATTEMPTS: Final = 8
SPENT: Final = "the lease ran out on the last attempt"
"""The last error of an event whose worker died on the last attempt that it had."""
_FIRST_BACKOFF: Final = timedelta(seconds=1)
_LONGEST_BACKOFF: Final = timedelta(minutes=5)


@dataclass(frozen=True, slots=True)
class EventRef:
    """An event as its holder names it."""

    id: int
    fencing_token: int


@dataclass(frozen=True, slots=True)
class EventView:
    """A (family, branch) that a commit touched, with the state of its delivery."""

    id: int
    project_id: str
    position: int
    family_id: str
    branch: str
    recorded_at: datetime
    attempts: int
    fencing_token: int
    lease_expires_at: datetime | None
    last_error: str


@dataclass(frozen=True, slots=True)
class OutboxStats:
    """How far behind the consumer is."""

    pending: int
    leased: int
    dead: int
    oldest: datetime | None
    """When the oldest pending event was recorded."""
    newest_id: int
    handled_position: int
    head_position: int


def handled_position(first_left: int | None, head: int) -> int:
    """Return the position up to which everything was handled.

    Args:
        first_left: The lowest position that has an event left, given up or not; None when there is none.
        head: The position of the project.
    """
    return head if first_left is None else first_left - 1


def backoff(
    jitter: Callable[[], float] = random.random, first: timedelta = _FIRST_BACKOFF
) -> Callable[[int, datetime], datetime | None]:
    """Return the rule: attempts so far and the present to when it is due again, None to give it up.

    Doubles from the first backoff to five minutes; between half and the whole of it, so that events which failed
    together do not come back together.
    """

    def due_again(attempts: int, now: datetime) -> datetime | None:
        if attempts >= MOST_ATTEMPTS:
            return None
        # The exponent is bounded by MOST_ATTEMPTS.
        longest = min(first * (1 << max(0, attempts - 1)), _LONGEST_BACKOFF)
        return now + longest * (0.5 + jitter() / 2)

    return due_again
