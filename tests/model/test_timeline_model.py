"""The timeline against a naive oracle: a table of every moment of the world, repainted by hand at every commit."""

from __future__ import annotations

import itertools
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
    sort_rows,
)
from tests.model.timeline_table import FOREVER, Table

START = datetime(2020, 1, 1, tzinfo=UTC)
TICKS = 4


def tick(number: int) -> datetime:
    """Moment ``number`` of the little world."""
    return START + timedelta(days=number)


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
    oracle = Table(TICKS)
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
                allowed = oracle.end(at, how)
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
        remembered.append((recorded_at, list(oracle.cells)))
        now_open = [row for row in rows if row.recorded_to is None]
        _check_open_rows(now_open)
        assert [(row.revision_id, row.end) for row in sort_rows(now_open)] == [
            (run[0], run[3]) for run in oracle.runs()
        ]

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
