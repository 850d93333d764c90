"""The two axes of time, case by case; the random schedules are in tests/model."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from ledger_svc.domain.model import MemoryState, RowEnd, Standing, TimelineRow
from ledger_svc.domain.timeline import (
    Cancel,
    End,
    Expire,
    Publish,
    TimelineChange,
    TimelineError,
    family_state,
    in_force,
    revise_timeline,
    row_at,
    state_of,
)

EPOCH = datetime(2020, 1, 1, tzinfo=UTC)
TICK = timedelta(microseconds=1)


def day(number: int) -> datetime:
    """A moment of the world."""
    return EPOCH + timedelta(days=number)


def known(position: int) -> datetime:
    """When a commit was recorded."""
    return datetime(2030, 1, 1, tzinfo=UTC) + timedelta(minutes=position)


def publish(name: str, start: int, stop: int | None = None, standing: Standing = Standing.ADOPTED) -> Publish:
    """A publication."""
    return Publish("f", "main", name, standing, day(start), None if stop is None else day(stop))


def play(*changes: TimelineChange) -> list[TimelineRow]:
    """All rows after some changes, closed ones too."""
    rows: list[TimelineRow] = []
    for position, change in enumerate(changes, start=1):
        revised = revise_timeline([r for r in rows if r.recorded_to is None], change, known(position), position)
        closed = {row.key: row for row in revised.closed}
        rows = [closed.get(row.key, row) for row in rows] + list(revised.opened)
    return rows


def shape(rows: list[TimelineRow]) -> list[tuple[str, int, int | None, str]]:
    """Open rows as (revision, from, to, end)."""
    open_rows = sorted((r for r in rows if r.recorded_to is None), key=lambda r: r.valid_from)
    return [
        (r.revision_id, (r.valid_from - EPOCH).days, None if r.valid_to is None else (r.valid_to - EPOCH).days, r.end)
        for r in open_rows
    ]


def test_publishing_closes_the_row_and_keeps_the_past() -> None:
    """L8: v2 from T turns v1 [a, oo) into v1 [a, T) and v2 [T, oo); what was known before stays answerable."""
    rows = play(publish("v1", 0), publish("v2", 10))
    assert shape(rows) == [("v1", 0, 10, "REPLACED"), ("v2", 10, None, "OPEN")]
    assert in_force(rows, day(20), known(2)).revision_id == "v2"  # type: ignore[union-attr]
    assert in_force(rows, day(20), known(1)).revision_id == "v1"  # type: ignore[union-attr]
    assert in_force(rows, day(20), known(2) - TICK).revision_id == "v1"  # type: ignore[union-attr]
    assert in_force(rows, day(20), known(1) - TICK) is None


def test_boundaries_are_half_open() -> None:
    """L8: at valid_from a row holds, at valid_to it does not."""
    rows = play(publish("v1", 0, 10))
    assert in_force(rows, day(0), known(1)) is not None
    assert in_force(rows, day(0) - TICK, known(1)) is None
    assert in_force(rows, day(10) - TICK, known(1)) is not None
    assert in_force(rows, day(10), known(1)) is None


def test_a_row_that_stays_as_it_is_is_not_touched() -> None:
    """L8: only rows that a change alters are closed."""
    rows = play(publish("v1", 0), publish("v2", 10), publish("v3", 20))
    assert [r.recorded_to for r in rows if r.revision_id == "v1"] == [known(2), None]
    assert [r.opened_position for r in rows if r.revision_id == "v1"] == [1, 2]


def test_invalidating_never_revives_an_older_revision() -> None:
    """L8: after invalidating v2 nothing holds, and no change of v1's expiry brings it back."""
    rows = play(publish("v1", 0), publish("v2", 10), End(day(10)))
    assert shape(rows) == [("v1", 0, 10, "INVALIDATED")]
    with pytest.raises(TimelineError) as refused:
        play(publish("v1", 0), publish("v2", 10), End(day(10)), Expire("v1", None))
    assert refused.value.rule == "ended_for_good"


def test_a_schedule_can_be_cancelled_and_the_cut_row_gets_its_time_back() -> None:
    """L8: cancelling v2 restores v1 up to its own end; a schedule in force cannot be cancelled."""
    assert shape(play(publish("v1", 0, 30), publish("v2", 10), Cancel("v2", day(5)))) == [("v1", 0, 30, "EXPIRED")]
    assert shape(play(publish("v1", 0), publish("v2", 10), Cancel("v2", day(5)))) == [("v1", 0, None, "OPEN")]
    with pytest.raises(TimelineError) as refused:
        play(publish("v1", 0), publish("v2", 10), Cancel("v2", day(10)))
    assert refused.value.rule == "not_scheduled"


def test_cancelling_between_two_rows_ends_at_the_next_one() -> None:
    """L8: with equal ends the row's own end is named; with a later own end the next row cuts it."""
    tie = play(publish("v1", 0, 20), publish("v2", 10), publish("v3", 20), Cancel("v2", day(5)))
    assert shape(tie) == [("v1", 0, 20, "EXPIRED"), ("v3", 20, None, "OPEN")]
    cut = play(publish("v1", 0, 30), publish("v2", 10), publish("v3", 20), Cancel("v2", day(5)))
    assert shape(cut) == [("v1", 0, 20, "REPLACED"), ("v3", 20, None, "OPEN")]


def test_cancelling_never_reaches_past_an_invalidation() -> None:
    """L8: v2 was invalidated from 15 before it was cancelled: v1 comes back up to 15 and no further, for good."""
    changes = [publish("v1", 0), publish("v2", 10), End(day(15)), Cancel("v2", day(5))]
    assert shape(play(*changes)) == [("v1", 0, 15, "INVALIDATED")]
    with pytest.raises(TimelineError):
        play(*changes, Expire("v1", day(40)))


def test_publishing_replaces_the_schedule() -> None:
    """L8: v3 from 5 takes the schedule of v2 at 10 away."""
    assert shape(play(publish("v1", 0), publish("v2", 10), publish("v3", 5))) == [
        ("v1", 0, 5, "REPLACED"),
        ("v3", 5, None, "OPEN"),
    ]


def test_expiry_moves_and_is_cut_by_the_next_row() -> None:
    """L8: an expiry can be set, moved and taken away; a row that follows still cuts it."""
    assert shape(play(publish("v1", 0), Expire("v1", day(9)))) == [("v1", 0, 9, "EXPIRED")]
    assert shape(play(publish("v1", 0, 9), Expire("v1", None))) == [("v1", 0, None, "OPEN")]
    followed = play(publish("v1", 0, 5), publish("v2", 10), Expire("v1", day(30)))
    assert shape(followed) == [("v1", 0, 10, "REPLACED"), ("v2", 10, None, "OPEN")]
    with pytest.raises(TimelineError) as refused:
        play(publish("v1", 5), Expire("v1", day(5)))
    assert refused.value.rule == "empty_interval"


@pytest.mark.parametrize(
    ("rows", "at", "state"),
    [
        (play(publish("v1", 10)), 5, MemoryState.SCHEDULED),
        (play(publish("v1", 0)), 5, MemoryState.ACTIVE),
        (play(publish("v1", 0, 3)), 5, MemoryState.EXPIRED),
        (play(publish("v1", 0), End(day(3))), 5, MemoryState.INVALIDATED),
        (play(publish("v1", 0), End(day(3), RowEnd.DEPRECATED)), 5, MemoryState.SUPERSEDED),
        (play(publish("v1", 0, standing=Standing.PROPOSED)), 5, MemoryState.NOT_IN_FORCE),
    ],
)
def test_states_of_a_family(rows: list[TimelineRow], at: int, state: MemoryState) -> None:
    """L8, R1: only a row that covers the moment with adopted content is ACTIVE."""
    assert family_state(rows, day(at), known(99)).state is state


def test_a_deprecated_family_is_superseded_whatever_its_rows_say() -> None:
    """R1: with a DEPRECATES that points at it, a family never answers as current."""
    adopted = play(publish("v1", 0))
    retired = play(publish("v1", 0, standing=Standing.RETIRED))
    assert family_state(adopted, day(5), known(9), deprecated=True).state is MemoryState.SUPERSEDED
    assert family_state(retired, day(5), known(9), deprecated=True).state is MemoryState.SUPERSEDED
    assert family_state([], day(5), known(9), invalidated=True).state is MemoryState.INVALIDATED
    row = adopted[0]
    assert state_of(row, day(5), conflicted=True) is MemoryState.CONFLICTED
    assert state_of(row, day(5), archived=True) is MemoryState.ARCHIVED


def test_scheduled_rows_are_listed_beside_what_holds() -> None:
    """L8: v1 stays in force until v2 starts, and v2 is reported as scheduled."""
    rows = play(publish("v1", 0), publish("v2", 10))
    found = family_state(rows, day(5), known(2))
    assert found.state is MemoryState.ACTIVE
    assert found.row is not None
    assert found.row.revision_id == "v1"
    assert [r.revision_id for r in found.scheduled] == ["v2"]
    assert row_at(rows, day(12), known(2)).revision_id == "v2"  # type: ignore[union-attr]
