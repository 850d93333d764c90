"""Differences between contents, blame, lineage."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ledger_svc.domain.canonical import content_hash
from ledger_svc.domain.diff import CONTENT_FIELDS, blame, diff_contents, lineage, merge_fields
from ledger_svc.domain.errors import DomainError
from ledger_svc.domain.model import Content, FieldChange, Principal, PrincipalKind, Revision, Standing

NOW = datetime(2026, 1, 1, tzinfo=UTC)


def revision(name: str, content: Content, *parents: str) -> Revision:
    """A revision that matters only by its content and parents."""
    return Revision(
        revision_id=name,
        project_id="p",
        family_id="f",
        branch="main",
        number=1,
        content=content,
        content_hash="",
        revision_hash="",
        parents=parents,
        author=Principal("local", "ana", PrincipalKind.HUMAN),
        reason="",
        evidence_links=(),
        valid_from=NOW,
        valid_to=None,
        proposal_id="",
        recorded_at=NOW,
        position=1,
    )


def test_a_diff_names_fields_in_order_with_canonical_values() -> None:
    """L4: changed, new and removed fields, attributes one by one; a reordered set is no difference."""
    before = Content("A", summary="old", tags=("x", "y"), attributes={"source_status": "Draft", "n": "1"})
    after = Content(
        "A", details="new", tags=("y", "x"), standing=Standing.RETIRED, attributes={"source_status": "Final"}
    )
    assert diff_contents(before, after) == (
        FieldChange("summary", '"old"', ""),
        FieldChange("details", "", '"new"'),
        FieldChange("standing", '"ADOPTED"', '"RETIRED"'),
        FieldChange("attributes.n", '"1"', ""),
        FieldChange("attributes.source_status", '"Draft"', '"Final"'),
    )
    assert diff_contents(None, Content("A")) == (
        FieldChange("title", "", '"A"'),
        FieldChange("importance", "", "0.5"),
        FieldChange("standing", "", '"ADOPTED"'),
    )


texts = st.sampled_from(["", "a", "b", "é", "e\u0301"])
contents = st.builds(
    Content,
    title=texts,
    summary=texts,
    rules=st.lists(texts, max_size=2).map(tuple),
    tags=st.lists(texts, max_size=3).map(tuple),
    attributes=st.dictionaries(st.sampled_from(["k", "l"]), texts, max_size=2),
    standing=st.sampled_from(Standing),
)


@given(contents, contents)
def test_no_difference_exactly_when_the_hashes_are_equal(one: Content, other: Content) -> None:
    """L4: the diff and the hash agree on what is the same."""
    assert (diff_contents(one, other) == ()) == (content_hash(one) == content_hash(other))


@given(contents, contents)
def test_merging_the_fields_that_differ_gives_the_other_content(one: Content, other: Content) -> None:
    """An update that names the fields of a diff ends where the diff ends."""
    fields = [change.field for change in diff_contents(one, other)]
    assert content_hash(merge_fields(one, other, fields)) == content_hash(other)


def test_merging_refuses_a_field_that_content_does_not_have() -> None:
    """S3: a misspelled field is named, not ignored."""
    with pytest.raises(DomainError) as refused:
        merge_fields(Content("A"), Content("B"), ["titel"])
    assert refused.value.reason == "INVALID_FIELD"


def test_blame_names_the_revision_that_set_each_field() -> None:
    """Each field goes to the oldest revision since which its value did not change, a set back value to its setter."""
    history = lineage(
        "r4",
        {
            r.revision_id: r
            for r in [
                revision("r1", Content("A", summary="s", domain="billing")),
                revision("r2", Content("B", summary="s", domain="billing"), "r1"),
                revision("r3", Content("A", summary="t", domain="billing"), "r2"),
                revision("r4", Content("A", summary="s", domain="billing", tags=("x",)), "r3"),
            ]
        },
    )
    assert [r.revision_id for r in history] == ["r1", "r2", "r3", "r4"]
    assert {o.field: o.revision_id for o in blame(history)} == {
        "title": "r3",
        "summary": "r4",
        "domain": "r1",
        "tags": "r4",
        "importance": "r1",
        "standing": "r1",
    }
    assert blame(()) == ()


def test_lineage_survives_a_missing_parent_and_a_loop() -> None:
    """Reading history of a damaged store ends instead of hanging."""
    assert [r.revision_id for r in lineage("b", {"b": revision("b", Content("B"), "gone")})] == ["b"]
    loop = {"a": revision("a", Content("A"), "b"), "b": revision("b", Content("B"), "a")}
    assert len(lineage("a", loop)) == 2
    assert lineage("none", {}) == ()


def test_content_fields_are_in_the_order_of_the_record() -> None:
    """Diffs and blame read in the order in which content is written."""
    assert CONTENT_FIELDS[0] == "title"
    assert CONTENT_FIELDS[-1] == "attributes"
