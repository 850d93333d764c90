"""The timeline against a naive oracle: a table of every moment of the world, repainted by hand at every commit."""

from __future__ import annotations

import itertools
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ledger_svc.domain.model import RowEnd, Standing, TimelineRow
from ledger_svc.domain.timeline import (
    Cancel,
    End,
    Expire,
    Publish,
    TimelineChange,
    TimelineError,
    in_force,
    revise_timeline,
    row_at,
)

START = datetime(2020, 1, 1, tzinfo=UTC)
TICKS = 4
FOREVER = 10_000


def tick(number: int) -> datetime:
    """Moment ``number`` of the little world."""
    return START + timedelta(days=number)


@dataclass
class Oracle:
    """Knows which revision covers each tick, and how far each revision may reach by itself."""

    cover: list[str | None] = field(default_factory=lambda: [None] * TICKS)
    beyond: str | None = None
    """What covers everything after the last tick."""
    own_end: dict[str, int] = field(default_factory=dict)
    dead: set[str] = field(default_factory=set)

    def cells(self) -> list[str | None]:
        """What covers each tick, and the time after the last one."""
        return [*self.cover, self.beyond]

    def paint(self, start: int, stop: int, revision: str | None) -> None:
        """Let one revision cover [start, stop)."""
        cells = self.cells()
        for index in range(start, TICKS + 1):
            if index < stop:
                cells[index] = revision
        self.cover, self.beyond = cells[:TICKS], cells[TICKS]

    def span(self, revision: str) -> tuple[int, int] | None:
        """Where a revision holds."""
        where = [index for index, cell in enumerate(self.cells()) if cell == revision]
        if not where:
            return None
        return where[0], FOREVER if where[-1] == TICKS else where[-1] + 1

    def publish(self, revision: str, start: int, stop: int) -> None:
        """Everything after the start goes; the revision holds until its end."""
        self.paint(start, FOREVER, None)
        self.paint(start, stop, revision)
        self.own_end[revision] = stop

    def end(self, at: int) -> bool:
        """Everything from here on goes, for good; says whether that changed anything."""
        touched = [c for c in self.cells()[at:] if c is not None]
        before = self.cells()[at - 1] if at else None
        changed = bool(touched)
        self.paint(at, FOREVER, None)
        if before is not None and (changed or self.own_end[before] > at) and self.own_end[before] != at:
            self.own_end[before] = at
            self.dead.add(before)
            changed = True
        return changed

    def expire(self, revision: str, stop: int) -> bool:
        """The revision's own end moves; says whether that is allowed."""
        span = self.span(revision)
        if span is None or revision in self.dead or stop <= span[0] or self.own_end[revision] == stop:
            return False
        following = next((i for i in range(span[1], TICKS + 1) if span[1] < FOREVER and self.cells()[i]), FOREVER)
        self.paint(span[0], following, None)
        self.paint(span[0], min(stop, following), revision)
        self.own_end[revision] = stop
        return True

    def cancel(self, revision: str, now: int) -> bool:
        """The revision goes, and the one before it reaches as far as both ends allow; says whether it is allowed."""
        span = self.span(revision)
        if span is None or span[0] <= now:
            return False
        start, stop = span
        before = self.cells()[start - 1] if start else None
        self.paint(start, stop, None)
        if before is not None and self.own_end[before] > start:
            reach = min(self.own_end[before], stop)
            self.paint(start, reach, before)
            if stop == self.own_end[revision] and stop < self.own_end[before]:
                self.own_end[before] = stop
                if revision in self.dead:
                    self.dead.add(before)
        return True


starts = st.integers(0, TICKS - 1)
stops = st.one_of(st.just(FOREVER), st.integers(1, TICKS - 1))
steps = st.lists(
    st.one_of(
        st.tuples(st.just("publish"), starts, stops, st.sampled_from([Standing.ADOPTED, Standing.RETIRED])),
        st.tuples(st.just("end"), starts, st.sampled_from([RowEnd.INVALIDATED, RowEnd.DEPRECATED])),
        st.tuples(st.just("expire"), st.integers(0, 2), stops),
        st.tuples(st.just("cancel"), st.integers(0, 2), st.sampled_from([0, 0, 0, 1, 2])),
        st.tuples(st.just("rollback"), st.integers(0, 2), starts),
    ),
    min_size=1,
    max_size=12,
)


def moment(number: int) -> datetime | None:
    """A tick as a moment; FOREVER is no end."""
    return None if number >= FOREVER else tick(number)


@settings(max_examples=2500, deadline=None)
@given(steps)
def test_two_axes_answer_as_a_naive_oracle_does(schedule: list[tuple]) -> None:
    """L8: for random schedules, every (valid_at, known_at) answers as a table repainted by hand; nothing overlaps."""
    oracle = Oracle()
    rows: list[TimelineRow] = []
    remembered: list[tuple[datetime, list[str | None]]] = []
    standings: dict[str, Standing] = {}
    made: list[str] = []
    for position, step in enumerate(schedule, start=1):
        recorded_at = START + timedelta(seconds=position)
        change: TimelineChange
        match step:
            case ("publish", start, stop, standing):
                stop = stop if stop > start else FOREVER
                name = f"r{len(made)}"
                made.append(name)
                standings[name] = standing
                change = Publish("f", "main", name, standing, tick(start), moment(stop))
                oracle.publish(name, start, stop)
                allowed = True
            case ("rollback", which, start):
                name = f"r{len(made)}"
                standings[name] = standings[made[-1 - which % len(made)]] if made else Standing.ADOPTED
                made.append(name)
                change = Publish("f", "main", name, standings[name], tick(start), None)
                oracle.publish(name, start, FOREVER)
                allowed = True
            case ("end", at, how):
                change = End(tick(at), how)
                allowed = oracle.end(at)
            case ("expire", which, stop):
                name = made[-1 - which % len(made)] if made else "none"
                change = Expire(name, moment(stop))
                allowed = bool(made) and oracle.expire(name, stop)
            case ("cancel", which, now):
                name = made[-1 - which % len(made)] if made else "none"
                change = Cancel(name, tick(now))
                allowed = bool(made) and oracle.cancel(name, now)
        open_rows = [row for row in rows if row.recorded_to is None]
        if not allowed:
            with pytest.raises(TimelineError):
                revise_timeline(open_rows, change, recorded_at, position)
            continue
        revised = revise_timeline(open_rows, change, recorded_at, position)
        closed = {row.key: row for row in revised.closed}
        assert all(row.recorded_to is None for row in rows if row.key in closed), "a closed row was closed again"
        rows = [closed.get(row.key, row) for row in rows] + list(revised.opened)
        assert len({row.key for row in rows}) == len(rows)
        remembered.append((recorded_at, oracle.cells()))
        _check_open_rows([row for row in rows if row.recorded_to is None])

    for known_at, cells in remembered:
        for number, expected in enumerate(cells):
            for valid_at in (tick(number), tick(number + 1) - timedelta(microseconds=1)):
                row = row_at(rows, valid_at, known_at)
                assert (row.revision_id if row else None) == expected
                current = in_force(rows, valid_at, known_at)
                adopted = expected is not None and standings[expected] is Standing.ADOPTED
                assert (current.revision_id if current else None) == (expected if adopted else None)
        assert row_at(rows, START - timedelta(microseconds=1), known_at) is None
    if remembered:
        assert row_at(rows, tick(3), remembered[0][0] - timedelta(microseconds=1)) is None


def _check_open_rows(rows: list[TimelineRow]) -> None:
    ordered = sorted(rows, key=lambda row: row.valid_from)
    for row in ordered:
        assert row.valid_to is None or row.valid_from < row.valid_to
        by_itself = row.valid_to == row.intrinsic_to
        assert row.end is (row.intrinsic_end if by_itself else RowEnd.REPLACED)
    for left, right in itertools.pairwise(ordered):
        assert left.valid_to is not None
        assert left.valid_to <= right.valid_from
        assert (left.end is RowEnd.REPLACED) <= (left.valid_to == right.valid_from)
    assert not ordered or ordered[-1].end is not RowEnd.REPLACED
