"""Checks that gather every problem of a request."""

from __future__ import annotations

import math
import re
from datetime import UTC, datetime

import pytest
from decisionssearch.common.v1 import common_pb2
from decisionssearch.ledger.v1 import proposal_pb2
from google.protobuf.timestamp_pb2 import Timestamp

from service_kit.checks import FieldChecks
from service_kit.errors import InvalidRequest, Reason, not_found
from service_kit.names import NameKind, family_name

UUID = "0198c0de-0000-7000-8000-000000000001"


def problems(checks: FieldChecks) -> dict[str, str]:
    """Return the problems by field."""
    return {p.field: p.description for p in checks.problems}


def test_a_good_request_has_no_problem() -> None:
    """Every check returns its parsed value and finds nothing."""
    checks = FieldChecks()
    assert checks.required("a", "x")
    assert checks.length("a", "éé", at_most=2)
    assert checks.count("a", [1], at_most=1)
    assert checks.pattern("a", "abc", re.compile("[a-z]+"), "rule")
    assert checks.in_range("a", 1.0, 0.0, 1.0)
    assert checks.enum("a", 1, common_pb2.PrincipalKind) == "PRINCIPAL_KIND_HUMAN"
    assert checks.optional_enum("a", 0, common_pb2.PrincipalKind) == "PRINCIPAL_KIND_UNSPECIFIED"
    assert checks.page_size(0) == 50
    assert checks.page_size(1_000) == 1_000
    parsed = checks.name("a", family_name("billing", UUID), NameKind.FAMILY, project="billing")
    assert parsed is not None
    assert parsed.id == UUID
    assert checks.name("a", "", NameKind.FAMILY, optional=True) is None
    assert checks.project("projects/billing") == "billing"
    assert checks.branch("") == "main"
    checks.raise_if_any()


def test_all_problems_are_reported_at_once() -> None:
    """S4: a caller learns every wrong field from one answer, each by its path."""
    checks = FieldChecks("requests[3].")
    checks.required("blank", " \n")
    checks.required("none", [])
    checks.length("long", "abc", at_most=2)
    checks.length("short", "", at_least=1, at_most=2)
    checks.count("many", [1, 2], at_most=1)
    checks.pattern("shape", "abc\n", re.compile("[a-z]+"), "must be a to z")
    checks.in_range("nan", math.nan, 0.0, 1.0)
    checks.enum("kind", 0, common_pb2.PrincipalKind)
    checks.enum("newer", 99, common_pb2.PrincipalKind)
    checks.page_size(-1)
    checks.name("family", "families/1", NameKind.FAMILY)
    checks.below("content").add("title", "is required")
    checks.project("billing")
    checks.branch("B")
    with pytest.raises(InvalidRequest) as refused:
        checks.raise_if_any()
    assert refused.value.reason is Reason.INVALID_FIELD
    assert [p.field.removeprefix("requests[3].") for p in refused.value.fields] == [
        *("blank", "none", "long", "short", "many", "shape", "nan", "kind", "newer", "page_size", "family"),
        *("content.title", "project", "branch"),
    ]


def test_page_size_is_never_cut() -> None:
    """L18: a page larger than allowed is refused with the limit; it is not silently made smaller."""
    checks = FieldChecks()
    checks.page_size(1_001)
    assert "1000" in problems(checks)["page_size"]


def test_other_errors_pass_through() -> None:
    """Only problems of fields are gathered; anything else leaves at once."""
    checks = FieldChecks()

    def lookup() -> None:
        raise not_found("projects/b")

    with pytest.raises(Exception, match="does not exist"):
        checks.attempt(lookup)
    assert not checks.problems


def stamp(day: int) -> Timestamp:
    """Return a day of January."""
    value = Timestamp()
    value.FromDatetime(datetime(2026, 1, day, tzinfo=UTC))
    return value


def test_intervals_are_half_open_and_never_empty() -> None:
    """L8: [from, to) needs from before to; an open end is allowed, an impossible time is named."""
    checks = FieldChecks()
    create = proposal_pb2.CreateMutation(valid_from=stamp(1), valid_to=stamp(2))
    assert checks.interval(create, "valid_from", "valid_to") == (
        datetime(2026, 1, 1, tzinfo=UTC),
        datetime(2026, 1, 2, tzinfo=UTC),
    )
    assert checks.interval(proposal_pb2.CreateMutation(), "valid_from", "valid_to") == (None, None)
    checks.raise_if_any()
    for end in (stamp(1), stamp(2)):
        reversed_one = FieldChecks()
        reversed_one.interval(proposal_pb2.CreateMutation(valid_from=stamp(2), valid_to=end), "valid_from", "valid_to")
        assert problems(reversed_one) == {"valid_from": "must be before valid_to"}
    checks.interval(
        proposal_pb2.CreateMutation(valid_to=Timestamp(nanos=1)), "valid_from", "valid_to", start_required=True
    )
    assert set(problems(checks)) == {"valid_from", "valid_to"}


def test_a_message_or_a_choice_may_be_required() -> None:
    """S4: an unset message field or oneof is named like any other missing field."""
    checks = FieldChecks()
    assert checks.present(proposal_pb2.CreateMutation(valid_from=stamp(1)), "valid_from")
    assert not checks.present(proposal_pb2.CreateMutation(), "valid_from")
    assert not checks.present(common_pb2.Consistency(), "requirement")
    assert checks.present(common_pb2.Consistency(at_least_as_fresh={"value": "x"}), "requirement")
    assert set(problems(checks)) == {"valid_from", "requirement"}
