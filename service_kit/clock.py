"""Time: the clock port, and conversions that never lose or invent an instant.

Inside the services an instant is an aware ``datetime`` in UTC with microseconds. A naive one is refused everywhere,
because nobody can say which instant it means.
"""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from typing import Final, Protocol

from google.protobuf.timestamp_pb2 import Timestamp

from service_kit.errors import invalid

EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
EARLIEST: Final = datetime(1, 1, 1, tzinfo=UTC)
LATEST: Final = datetime(9999, 12, 31, 23, 59, 59, 999_999, tzinfo=UTC)

_MICROSECOND: Final = timedelta(microseconds=1)
_TEXT: Final = re.compile(r"\d{4}-\d{2}-\d{2}T\d{2}:\d{2}:\d{2}(\.\d{1,6})?(Z|[+-]\d{2}:\d{2})", re.ASCII)


class Clock(Protocol):
    """Where a service takes the present from."""

    def now(self) -> datetime:
        """Return the present instant, aware, in UTC."""


class SystemClock:
    """The clock of the machine."""

    def now(self) -> datetime:
        """Return the present instant."""
        return datetime.now(UTC)


class ManualClock:
    """A clock that stands still until told to move; for tests and replays."""

    def __init__(self, start: datetime) -> None:
        self._now = in_utc(start)

    def now(self) -> datetime:
        """Return the instant that was set."""
        return self._now

    def advance(self, by: timedelta) -> datetime:
        """Move by an interval and return the new present."""
        self._now += by
        return self._now

    def set(self, to: datetime) -> None:
        """Move to an instant."""
        self._now = in_utc(to)


def in_utc(instant: datetime) -> datetime:
    """Return the same instant in UTC; a naive one is a ``ValueError``."""
    if instant.tzinfo is None or instant.utcoffset() is None:
        raise ValueError("a datetime without an offset names no instant")
    return instant.astimezone(UTC)


def to_timestamp(instant: datetime) -> Timestamp:
    """Return the message for an aware instant, exact to the microsecond."""
    micros = (in_utc(instant) - EPOCH) // _MICROSECOND
    seconds, rest = divmod(micros, 1_000_000)
    return Timestamp(seconds=seconds, nanos=rest * 1_000)


def from_timestamp(timestamp: Timestamp, field: str = "timestamp") -> datetime:
    """Return the instant of a message.

    Raises:
        InvalidRequest: The message is out of range, or finer than a microsecond (rounding would silently move a
            boundary; the caller decides how to round).
    """
    if not 0 <= timestamp.nanos < 1_000_000_000:
        raise invalid(field, "nanos must be between 0 and 999999999")
    if timestamp.nanos % 1_000:
        raise invalid(field, "must not be finer than a microsecond; round it")
    try:
        return EPOCH + timedelta(seconds=timestamp.seconds, microseconds=timestamp.nanos // 1_000)
    except OverflowError:
        raise invalid(field, "must be between the years 1 and 9999") from None


def canonical_text(instant: datetime) -> str:
    """Return the one text of an instant, e.g. ``2026-01-31T12:00:00.000000Z``; sorts as the instants do."""
    utc = in_utc(instant)
    # strftime pads the year differently from platform to platform.
    return f"{utc.replace(tzinfo=None).isoformat(timespec='microseconds')}Z"


def parse_text(text: str, field: str = "time") -> datetime:
    """Return the instant of an RFC 3339 text with an offset, in UTC.

    Raises:
        InvalidRequest: The text is malformed, has no offset, or is out of range.
    """
    if not _TEXT.fullmatch(text):
        raise invalid(field, "must be RFC 3339 with an offset, e.g. 2026-01-31T12:00:00Z")
    try:
        return datetime.fromisoformat(text).astimezone(UTC)
    except (ValueError, OverflowError):
        raise invalid(field, "is not a date that exists") from None
