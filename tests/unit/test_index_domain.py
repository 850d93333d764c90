"""The index's domain: ids, times, filters of a question, shadowing, what may overwrite what."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta, timezone

import pytest
from hypothesis import given
from hypothesis import strategies as st

from index_svc.domain import (
    FAR_FUTURE,
    FAR_PAST,
    IndexPoint,
    Role,
    StructuralQuery,
    mark_shadowed,
    micros,
    moment,
    point_id,
    prefer,
    search_filter,
)

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def point(**changes: object) -> IndexPoint:
    """Return a point."""
    values: dict[str, object] = {
        "project": "p",
        "family": "f",
        "revision": "r",
        "branch": "main",
        "scope": "SEMANTIC",
        "category": "DESIGN_RULE",
        "state": "ACTIVE",
        "standing": "ADOPTED",
        "role": Role.HEAD,
        "content_hash": "c",
        "text_hash": "t",
        "position": 1,
        "model": "m",
        "recipe": "r1",
        **changes,
    }
    return IndexPoint(**values)  # type: ignore[arg-type]  # a dict of the right values


def test_ids_are_stable_and_tell_projects_and_branches_apart() -> None:
    """I2: a rebuild makes the same ids; the same revision on two branches is two points."""
    assert len(point_id("p", "r", "main")) == 36
    assert point_id("p", "r", "main") == point_id("p", "r", "main")
    assert len({point_id(p, r, b) for p in ("p", "q") for r in ("r", "s") for b in ("main", "x")}) == 8


@given(st.integers(-4_000_000_000_000_000, 8_000_000_000_000_000).map(lambda us: EPOCH + timedelta(microseconds=us)))
def test_times_round_trip_to_the_microsecond(when: datetime) -> None:
    """L9: every moment up to 2255 comes back exactly, and a filter's double holds it."""
    value = micros(when)
    assert moment(value) == when
    assert int(float(value)) == value


def test_open_ends_are_sentinels_and_naive_times_are_refused() -> None:
    """L9: an open end is far away, later moments count as it, an offset is converted, a naive time is an error."""
    assert moment(FAR_FUTURE) is None
    assert moment(FAR_PAST) is None
    assert micros(datetime(9999, 1, 1, tzinfo=UTC)) == FAR_FUTURE
    assert micros(datetime(1, 1, 1, tzinfo=UTC)) == FAR_PAST
    brazil = timezone(timedelta(hours=-3))
    assert micros(datetime(2024, 1, 1, 9, tzinfo=brazil)) == micros(datetime(2024, 1, 1, 12, tzinfo=UTC))
    with pytest.raises(ValueError, match="time zone"):
        micros(datetime(2024, 1, 1))  # noqa: DTZ001 - the mistake under test


def test_payload_round_trip_and_foreign_payloads() -> None:
    """A payload is the whole point; one that is not ours is a ValueError, never a half point."""
    p = point(modules=("a", "b"), files=("x.py",), shadowed=True, importance=0.5)
    assert IndexPoint.from_payload(p.payload()) == p
    for broken in ({}, {**p.payload(), "role": "REMOVED"}, {k: v for k, v in p.payload().items() if k != "family"}):
        with pytest.raises(ValueError, match=r"REMOVED|not the payload"):
            IndexPoint.from_payload(broken)


def test_a_question_about_now_sees_heads_and_what_leads_to_them() -> None:
    """R1: now sees heads and unshadowed past revisions of its project and branch, whatever their interval."""
    where = search_filter("p", "main", now=50)
    assert where.matches(point())
    assert where.matches(point(role=Role.PAST, valid_to=10))
    assert not where.matches(point(role=Role.PAST, shadowed=True))
    assert not where.matches(point(project="q"))
    assert not where.matches(point(branch="other"))


def test_in_force_only_is_adopted_and_valid_at_the_moment() -> None:
    """R1: in_force_only leaves out drafts, the expired and the scheduled; bounds are half-open."""
    where = search_filter("p", "main", now=50, in_force_only=True)
    assert where.matches(point(valid_from=50))
    assert not where.matches(point(valid_to=50))
    assert not where.matches(point(valid_from=51))
    assert not where.matches(point(standing="REJECTED"))
    earlier = search_filter("p", "main", now=50, valid_at=10, in_force_only=True)
    assert earlier.matches(point(valid_from=10, valid_to=11))
    assert not earlier.matches(point(valid_from=11))


def test_as_of_sees_what_covered_the_moment_shadowed_or_not() -> None:
    """R2: a shadowed revision is hidden from now, but it is the answer to a question about its own time."""
    old = point(role=Role.PAST, shadowed=True, valid_from=0, valid_to=10)
    assert search_filter("p", "main", now=50, valid_at=9).matches(old)
    assert not search_filter("p", "main", now=50, valid_at=10).matches(old)


def test_as_known_then_filters_by_recording_only() -> None:
    """L8: what was known then may have been cut since, so today's interval must not hide it."""
    cut_later = point(role=Role.PAST, valid_from=0, valid_to=10, recorded_from=5)
    where = search_filter("p", "main", now=50, valid_at=40, known_at=7)
    assert where.matches(cut_later)
    assert not where.matches(replace(cut_later, recorded_from=8))


def test_scopes_and_categories_narrow() -> None:
    """S1: a filter that names scopes or categories lets nothing else through."""
    where = search_filter("p", "main", now=0, scopes=["EPISODIC"], categories=["EPISODE"])
    assert not where.matches(point())
    assert where.matches(point(scope="EPISODIC", category="EPISODE"))


def test_shadowing_keeps_the_newest_of_equal_texts() -> None:
    """A past revision is shadowed when a newer one reads the same; a head never is; marking twice changes nothing."""
    points = [
        point(revision="4", text_hash="a"),
        point(revision="3", text_hash="b", role=Role.PAST),
        point(revision="2", text_hash="a", role=Role.PAST),
        point(revision="1", text_hash="b", role=Role.PAST, shadowed=False),
    ]
    marked = mark_shadowed(points)
    assert [p.shadowed for p in marked] == [False, False, True, True]
    assert mark_shadowed(marked) == marked
    assert [p.shadowed for p in mark_shadowed([replace(p, role=Role.HEAD) for p in points])] == [False] * 4


def test_structural_matches_name_what_they_matched() -> None:
    """R4: a candidate says which of the question's names it has."""
    named = StructuralQuery(files=("a.py",), modules=("billing",), identifiers=("err_42", "x.y"), domains=("tax",))
    p = point(files=("a.py", "b.py"), identifiers=("err_42",), domain="tax")
    assert named.matched_by(p) == ("file:a.py", "identifier:err_42", "domain:tax")
    assert StructuralQuery().is_empty
    assert not named.is_empty


@given(st.lists(st.integers(1, 50), min_size=1))
def test_positions_only_move_forward(positions: list[int]) -> None:
    """I2: whatever order projections arrive in, the newest position stays."""
    stored: int | None = None
    for position in positions:
        if prefer(stored, position):
            stored = position
    assert stored == max(positions)
