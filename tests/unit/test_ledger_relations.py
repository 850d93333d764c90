"""Relations: direction, cycles, ends, retiring and asserting again, cascade, deprecation."""

from __future__ import annotations

from dataclasses import replace

import pytest
from ledger_world import World, day, raising, rule

from ledger_svc.domain.model import (
    ACYCLIC_KINDS,
    CancelSchedule,
    Category,
    Content,
    Create,
    CreateAndLink,
    Deprecate,
    EventKind,
    Invalidate,
    Link,
    MemoryState,
    Relation,
    RelationKind,
    Rollback,
    RowEnd,
    SetExpiry,
    Standing,
    Supersede,
    Unlink,
    Update,
)
from ledger_svc.domain.timeline import family_state

EPISODE = Create(Category.EPISODE, Content("Outage", task="deploy", outcome="down"))
PULL_REQUEST = Create(Category.PULL_REQUEST, Content("PR 42", url="https://x.example/42", files=("a.py",)))
PROCEDURE = Create(Category.PROCEDURE, Content("Deploy", steps=("build", "ship")))


def families(w: World, count: int = 3) -> list[str]:
    """Some business rules."""
    made = [w.commit(Create(Category.BUSINESS_RULE, rule(f"Rule {n}"), f"rule/{n}")) for n in range(count)]
    return [change.families[0].family_id for change in made]


def link(w: World, kind: RelationKind, source: str, target: str, **more: object) -> Relation:
    """Assert a relation."""
    return w.commit(Link(kind, source, target, "because", **more)).relations_opened[0]  # type: ignore[arg-type]


@pytest.mark.parametrize("kind", sorted(ACYCLIC_KINDS - {RelationKind.DEPRECATES}))
def test_cycles_are_refused_with_their_path(kind: RelationKind) -> None:
    """L12: a to b to c, then c to a is refused and the path is named; other kinds and ways stay free."""
    w = World.new()
    a, b, c = families(w)
    link(w, kind, a, b)
    link(w, kind, b, c)
    refused = raising(lambda: w.propose(Link(kind, c, a)))
    assert (refused.reason, refused.metadata["path"]) == ("RELATION_CYCLE", f"{c},{a},{b},{c}")
    assert raising(lambda: w.propose(Link(kind, b, a))).reason == "RELATION_CYCLE"
    link(w, RelationKind.RELATED_TO, c, a)
    link(w, kind, a, c)


def test_a_cycle_that_closes_while_a_proposal_waits_is_refused_in_the_apply() -> None:
    """L12: what counts is the graph at the moment of the apply."""
    w = World.new()
    a, b, _ = families(w)
    forth, back = w.propose(Link(RelationKind.DEPENDS_ON, a, b)), w.propose(Link(RelationKind.DEPENDS_ON, b, a))
    w.approve(forth)
    w.approve(back)
    w.apply(forth)
    assert raising(lambda: w.apply(back)).reason == "RELATION_CYCLE"


def test_a_retired_link_closes_no_cycle_and_can_be_asserted_again() -> None:
    """L12: after retiring a to b, b to a is free; a retired link can be asserted again, as a new relation."""
    w = World.new()
    a, b, _ = families(w)
    first = link(w, RelationKind.DEPENDS_ON, a, b)
    assert raising(lambda: w.propose(Link(RelationKind.DEPENDS_ON, a, b))).reason == "ALREADY_EXISTS"
    w.commit(Unlink(first.relation_id))
    assert raising(lambda: w.propose(Unlink(first.relation_id))).metadata["rule"] == "already_retired"
    again = link(w, RelationKind.DEPENDS_ON, a, b)
    assert again.relation_id != first.relation_id
    w.commit(Unlink(again.relation_id))
    link(w, RelationKind.DEPENDS_ON, b, a)


def test_directed_links_are_two_and_symmetric_ones_are_one() -> None:
    """L12: IMPLEMENTS of a reverse end is another thing; RELATED_TO in reverse is the same link."""
    w = World.new()
    a, b, _ = families(w)
    stored = link(w, RelationKind.RELATED_TO, b, a)
    assert (stored.source_id, stored.target_id) == (a, b)
    assert raising(lambda: w.propose(Link(RelationKind.RELATED_TO, a, b))).reason == "ALREADY_EXISTS"
    link(w, RelationKind.CONFLICTS_WITH, b, a)


def test_a_retired_relation_still_answers_for_its_time() -> None:
    """L8: on both axes: what held, what was known to hold, half-open."""
    w = World.new()
    a, b, _ = families(w)
    made = link(w, RelationKind.DEPENDS_ON, a, b, valid_from=day(-10))
    before = w.clock
    w.clock = day(20)
    retired = w.commit(Unlink(made.relation_id, retired_from=day(10))).relations_retired[0]
    assert retired.holds(day(5), w.clock)
    assert not retired.holds(day(10), w.clock)
    assert retired.holds(day(10), before)
    assert not retired.holds(day(-11), w.clock)
    assert not retired.holds(day(5), day(-1))


@pytest.mark.parametrize(
    ("kind", "source", "target", "field"),
    [
        (RelationKind.MERGED_INTO, "a", "b", "kind"),
        (RelationKind.DEPENDS_ON, "a", "a", "target_family"),
        (RelationKind.IMPLEMENTS, "a", "b", "source_family"),
        (RelationKind.IMPLEMENTS, "pr", "pr2", "target_family"),
        (RelationKind.LEARNED_FROM, "a", "episode", "source_family"),
        (RelationKind.EVOLVES_FROM, "a", "procedure", "target_family"),
        (RelationKind.CONFLICTS_WITH, "a", "episode", "target_family"),
    ],
)
def test_ends_that_a_kind_does_not_join_are_refused(kind: RelationKind, source: str, target: str, field: str) -> None:
    """L12: MERGED_INTO is the ledger's own; pull requests and episodes are sources of their kinds; scopes match."""
    w = World.new()
    a, b, _ = families(w)
    ends = {"a": a, "b": b}
    for name, mutation in (("pr", PULL_REQUEST), ("pr2", PULL_REQUEST), ("episode", EPISODE), ("procedure", PROCEDURE)):
        ends[name] = w.commit(mutation).families[0].family_id
    refused = raising(lambda: w.propose(Link(kind, ends[source], ends[target])))
    assert (refused.reason, refused.fields[0].field) == ("INVALID_FIELD", field)
    link(w, RelationKind.IMPLEMENTS, ends["pr"], a)
    link(w, RelationKind.LEARNED_FROM, ends["episode"], ends["procedure"])


def test_create_and_link_is_one_commit() -> None:
    """L1: the new family and its REFINES are there together, and the refined family's projection is told."""
    w = World.new()
    (a,) = families(w, 1)
    change = w.commit(CreateAndLink(Category.BUSINESS_RULE, rule("Finer"), a, "more precise", "rule/finer"))
    child = change.families[0].family_id
    relation = change.relations_opened[0]
    assert (relation.kind, relation.source_id, relation.target_id) == (RelationKind.REFINES, child, a)
    assert [(e.family_id, e.kind) for e in change.events] == [
        (child, EventKind.HEAD_CHANGED),
        (a, EventKind.RELATION_CHANGED),
    ]
    assert raising(lambda: w.propose(CreateAndLink(Category.BUSINESS_RULE, rule("x"), "nothing"))).reason == "NOT_FOUND"


def first_revision(w: World, family: str) -> str:
    """The first revision of a family."""
    return next(r.revision_id for r in w.state.revisions.values() if r.family_id == family and r.number == 1)


@pytest.mark.parametrize(
    ("mutation_of", "cause"),
    [
        (lambda _w, f, _g: Supersede(f, rule("other")), "SUPERSEDED"),
        (lambda _w, f, _g: Invalidate(f), "INVALIDATED"),
        (lambda _w, f, g: Deprecate(f, g), "DEPRECATED"),
        (lambda w, f, _g: Rollback(f, first_revision(w, f)), "ROLLED_BACK"),
        (lambda _w, f, _g: Update(f, rule("better words")), None),
        (lambda _w, f, _g: SetExpiry(f, day(300)), None),
    ],
)
def test_what_builds_on_a_changed_memory_is_flagged(mutation_of, cause: str | None) -> None:  # noqa: ANN001 - lambdas
    """Cascade: direct dependents and refinements are flagged when the decision changes, not when its words do."""
    w = World.new()
    f, g, dependent, refining, beyond = families(w, 5)
    w.commit(Update(f, rule("second")))
    link(w, RelationKind.DEPENDS_ON, dependent, f)
    link(w, RelationKind.REFINES, refining, f)
    link(w, RelationKind.DEPENDS_ON, beyond, dependent)
    link(w, RelationKind.RELATED_TO, g, f)
    gone = link(w, RelationKind.DEPENDS_ON, g, f)
    w.commit(Unlink(gone.relation_id))
    change = w.commit(mutation_of(w, f, g))
    expected = set() if cause is None else {(dependent, cause), (refining, cause)}
    assert {(flag.family_id, flag.cause) for flag in change.flags_raised} == expected
    flagged = {e.family_id for e in change.events if e.kind is EventKind.REVIEW_FLAGGED}
    assert flagged == {family for family, _ in expected}


def test_a_family_is_told_once_with_the_strongest_reason() -> None:
    """I1: one event for each family and branch of a commit, though it is related and flagged at once."""
    w = World.new()
    old, new, _ = families(w)
    link(w, RelationKind.REFINES, new, old)
    change = w.commit(Deprecate(old, new))
    assert {flag.family_id for flag in change.flags_raised} == {new}
    assert [(e.family_id, e.kind) for e in change.events] == [
        (old, EventKind.HEAD_CHANGED),
        (new, EventKind.RELATION_CHANGED),
    ]


def test_a_change_of_the_flagged_memory_is_its_review() -> None:
    """Cascade: the flag goes with the next publication of the flagged family, and with no other change."""
    w = World.new()
    f, dependent, other = families(w)
    link(w, RelationKind.DEPENDS_ON, dependent, f)
    w.commit(Supersede(f, rule("other")))
    w.commit(Update(other, rule("unrelated")))
    w.commit(SetExpiry(dependent, day(500)))
    assert len(w.state.flags[dependent, "main"]) == 1
    change = w.commit(Update(dependent, rule("checked against the new rule")))
    assert [flag.cleared_position for flag in change.flags_cleared] == [change.position]
    assert w.state.flags[dependent, "main"] == ()


def state_at(w: World, family: str) -> MemoryState:
    """The state of a family now."""
    found = [r for r in w.state.relations.values() if r.kind is RelationKind.DEPRECATES and r.target_id == family]
    deprecated = any(r.holds(w.clock, w.clock) for r in found)
    return family_state(w.rows_of(family), w.clock, w.clock, deprecated=deprecated).state


def test_deprecating_ends_the_old_and_names_the_new() -> None:
    """L8, L12: one commit ends the old family and asserts DEPRECATES from the replacement to it."""
    w = World.new()
    old, new, _ = families(w)
    change = w.commit(Deprecate(old, new, rationale="simpler"))
    relation = change.relations_opened[0]
    assert (relation.source_id, relation.target_id, relation.rationale) == (new, old, "simpler")
    assert change.rows_opened[0].end is RowEnd.DEPRECATED
    assert (state_at(w, old), state_at(w, new)) == (MemoryState.SUPERSEDED, MemoryState.ACTIVE)


def test_a_deprecated_family_does_not_come_back_by_a_publication() -> None:
    """R1: adopted content for a replaced family is refused until the relation is retired; retired content is not."""
    w = World.new()
    old, new, _ = families(w)
    relation = w.commit(Deprecate(old, new)).relations_opened[0]
    assert raising(lambda: w.propose(Update(old, rule("again")))).metadata["rule"] == "family_deprecated"
    w.commit(Update(old, rule("as a record", standing=Standing.RETIRED)))
    assert state_at(w, old) is MemoryState.SUPERSEDED
    w.commit(Update(old, rule("what held before"), valid_from=day(-30), valid_to=day(-20)))
    w.commit(Unlink(relation.relation_id))
    w.commit(Update(old, rule("again")))
    assert state_at(w, old) is MemoryState.ACTIVE


def test_neither_an_expiry_nor_a_cancelled_schedule_brings_a_deprecated_family_back() -> None:
    """R1: moving the end of a row, or giving it its time back, is refused where the replacement holds."""
    w = World.new()
    old, new, later = families(w)
    w.commit(SetExpiry(old, day(5)))
    w.commit(Link(RelationKind.DEPRECATES, new, old, valid_from=day(10)))
    assert raising(lambda: w.propose(SetExpiry(old, None))).metadata["rule"] == "family_deprecated"
    w.commit(SetExpiry(old, day(10)))
    retired = Supersede(later, rule("retired", standing=Standing.RETIRED), valid_from=day(5))
    scheduled = w.commit(retired).revisions[0].revision_id
    w.commit(Link(RelationKind.DEPRECATES, new, later, valid_from=day(6)))
    assert raising(lambda: w.propose(CancelSchedule(later, scheduled))).metadata["rule"] == "family_deprecated"


def test_the_replacement_holds_or_is_scheduled() -> None:
    """R1: a family is not replaced by one that is gone, only drafted, or replaced itself; a scheduled one will do."""
    w = World.new()
    old, gone, draft, replaced, end = families(w, 5)
    w.commit(Invalidate(gone))
    w.commit(Update(draft, rule("a draft", standing=Standing.PROPOSED)))
    w.commit(Deprecate(replaced, end))
    for bad in (gone, draft, replaced):
        refused = raising(lambda bad=bad: w.propose(Deprecate(old, bad)))
        assert refused.metadata["rule"] == "replacement_not_in_force"
    later = w.commit(replace(Create(Category.BUSINESS_RULE, rule("Later")), valid_from=day(30))).families[0].family_id
    w.commit(Deprecate(old, later, effective_from=day(30)))
    assert state_at(w, old) is MemoryState.ACTIVE


def test_deprecating_in_the_past_asks_who_held_then() -> None:
    """L8: an import of history may replace a by b in the past though b has been replaced by c since."""
    w = World.new()
    a, b, c = families(w)
    for family in (a, b, c):
        w.commit(Update(family, rule(f"since long {family}"), valid_from=day(-300)))
    w.commit(Deprecate(b, c, effective_from=day(-100)))
    w.commit(Deprecate(a, b, effective_from=day(-200)))
    assert [state_at(w, f) for f in (a, b, c)] == [MemoryState.SUPERSEDED, MemoryState.SUPERSEDED, MemoryState.ACTIVE]


def test_deprecations_form_no_circle() -> None:
    """L12: the old family does not come to replace its replacement."""
    w = World.new()
    a, b, c = families(w)
    w.commit(Deprecate(a, b))
    w.commit(Deprecate(b, c))
    w.commit(Update(a, rule("a record", standing=Standing.RETIRED)))
    refused = raising(lambda: w.propose(Link(RelationKind.DEPRECATES, a, c)))
    assert refused.reason in {"RELATION_CYCLE", "STATE_CONFLICT"}
    w.commit(Invalidate(c))
    assert raising(lambda: w.propose(Link(RelationKind.DEPRECATES, a, c))).reason == "RELATION_CYCLE"


def test_a_bare_deprecates_labels_only_what_has_ended() -> None:
    """R1: linking DEPRECATES to a family in force is refused; to a retired one it makes its state SUPERSEDED."""
    w = World.new()
    old, new, _ = families(w)
    assert raising(lambda: w.propose(Link(RelationKind.DEPRECATES, new, old))).metadata["rule"] == "still_in_force"
    w.commit(Update(old, rule("retired", standing=Standing.RETIRED)))
    assert state_at(w, old) is MemoryState.NOT_IN_FORCE
    change = w.commit(Link(RelationKind.DEPRECATES, new, old))
    assert state_at(w, old) is MemoryState.SUPERSEDED
    assert (old, EventKind.HEAD_CHANGED) in {(e.family_id, e.kind) for e in change.events}


def test_relations_belong_to_a_branch() -> None:
    """L10: what a release line asserts says nothing about main."""
    w = World.new()
    a, b, _ = families(w)
    assert raising(lambda: w.propose(Link(RelationKind.RELATED_TO, a, b), branch="release/2.x")).metadata["rule"] == (
        "not_published"
    )
    relation = link(w, RelationKind.RELATED_TO, a, b)
    assert raising(lambda: w.propose(Unlink(relation.relation_id), branch="release/2.x")).reason == "NOT_FOUND"
