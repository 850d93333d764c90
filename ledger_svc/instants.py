"""Instants as stores keep them: integers in microseconds since 1970, with a far end in the place of "no end"."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Final

EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
FOREVER: Final = 2**63 - 1
"""Stored where an interval has no end, so that ranges are compared without a special case."""

_MICROSECOND: Final = timedelta(microseconds=1)


def to_micros(instant: datetime) -> int:
    """Return an aware instant as microseconds."""
    delta = instant - EPOCH
    return (delta.days * 86_400 + delta.seconds) * 1_000_000 + delta.microseconds


def from_micros(micros: int) -> datetime:
    """Return the instant of microseconds."""
    return EPOCH + timedelta(microseconds=micros)


def end_to_micros(instant: datetime | None) -> int:
    """Return the end of an interval, FOREVER for none."""
    return FOREVER if instant is None else to_micros(instant)


def end_from_micros(micros: int) -> datetime | None:
    """Return the end of an interval, None for FOREVER."""
    return None if micros == FOREVER else from_micros(micros)
