"""Random histories of a whole ledger: its invariants, answers that stay, and group commit against one by one."""

from __future__ import annotations

import copy
from dataclasses import replace
from datetime import datetime, timedelta

from hypothesis import given, settings
from hypothesis import strategies as st
from ledger_world import ANA, START, World, day, narrowed, rule

from ledger_svc.domain import decide as d
from ledger_svc.domain.audit import verify_chain
from ledger_svc.domain.errors import DomainError
from ledger_svc.domain.model import (
    ACYCLIC_KINDS,
    CancelSchedule,
    Category,
    ChangeSet,
    Create,
    CreateAndLink,
    Deprecate,
    Invalidate,
    Link,
    Mutation,
    Proposal,
    RelationKind,
    Rollback,
    SetExpiry,
    Standing,
    Supersede,
    Unlink,
    Update,
)
from ledger_svc.domain.state import apply_to_state, needs_of
from ledger_svc.domain.timeline import in_force, row_at

WHEN = st.one_of(st.none(), st.integers(-3, 6).map(day))
PICK = st.integers(0, 3)
STEP = st.tuples(
    st.sampled_from(
        [
            "create",
            "create_and_link",
            "update",
            "update",
            "supersede",
            "supersede",
            "invalidate",
            "set_expiry",
            "cancel",
            "deprecate",
            "rollback",
            "link",
            "link",
            "unlink",
        ]
    ),
    PICK,
    PICK,
    WHEN,
    WHEN,
    st.integers(0, 99),
    st.sampled_from([Standing.ADOPTED, Standing.ADOPTED, Standing.RETIRED]),
    st.sampled_from([RelationKind.DEPENDS_ON, RelationKind.REFINES, RelationKind.RELATED_TO, RelationKind.DEPRECATES]),
)


def mutation_of(world: World, step: tuple) -> Mutation:
    """A mutation of what is there; pointless ones are refused by the decisions."""
    what, one, two, start, stop, number, standing, kind = step
    families = sorted(world.state.families)
    a, b = families[one % len(families)], families[two % len(families)]
    revisions = sorted(r.revision_id for r in world.state.revisions.values() if r.family_id == a)
    revision = revisions[number % len(revisions)]
    relations = sorted(world.state.relations)
    content = rule(f"Rule {number}", standing=standing)
    match what:
        case "create":
            return Create(Category.BUSINESS_RULE, content, f"key/{number % 5}", start, stop)
        case "create_and_link":
            return CreateAndLink(Category.BUSINESS_RULE, content, a, "finer")
        case "update":
            return Update(a, content, start, stop)
        case "supersede":
            return Supersede(a, content, start, stop)
        case "invalidate":
            return Invalidate(a, start)
        case "set_expiry":
            return SetExpiry(a, stop)
        case "cancel":
            return CancelSchedule(a, revision)
        case "deprecate":
            return Deprecate(a, b, start)
        case "rollback":
            return Rollback(a, revision, start)
        case "link":
            return Link(kind, a, b, valid_from=start)
        case _:
            return Unlink(relations[number % len(relations)] if relations else "none", start)


def world_of_three() -> World:
    """A ledger with three families."""
    world = World.new()
    for number in range(3):
        world.commit(Create(Category.BUSINESS_RULE, rule(f"First {number}"), f"first/{number}", day(-5)))
    return world


Answer = tuple[str | None, str | None]


def answers(world: World, known_at: datetime) -> dict[tuple[str, int], Answer]:
    """What covers and what is in force, for every family at every moment, as known then."""
    found: dict[tuple[str, int], Answer] = {}
    for family in world.state.families:
        rows = world.rows_of(family)
        for number in range(-6, 8):
            covering, current = row_at(rows, day(number), known_at), in_force(rows, day(number), known_at)
            found[family, number] = (
                covering.revision_id if covering else None,
                current.revision_id if current else None,
            )
    return found


def check_invariants(world: World) -> None:
    """What must hold after every commit."""
    for (family, branch), head in world.state.heads.items():
        rows = sorted(world.state.rows.get((family, branch), ()), key=lambda r: r.valid_from)
        assert rows == sorted((r for r in world.rows_of(family) if r.recorded_to is None), key=lambda r: r.valid_from)
        if rows:
            assert head.revision_id == rows[-1].revision_id
        assert head.number == max(r.number for r in world.state.revisions.values() if r.family_id == family)
    keys = [f.identity_key for f in world.state.families.values() if f.identity_key]
    assert len(keys) == len(set(keys))
    active = [r for r in world.state.relations.values() if not r.is_retired]
    assert len({(r.kind, r.source_id, r.target_id) for r in active}) == len(active)
    for kind in ACYCLIC_KINDS:
        onward = {f: {r.target_id for r in active if r.kind is kind and r.source_id == f} for f in world.state.families}
        while ends := {f for f, targets in onward.items() if not targets}:
            onward = {f: targets - ends for f, targets in onward.items() if f not in ends}
        assert not onward, f"a cycle of {kind}"
    for relation in active:
        if relation.kind is not RelationKind.DEPRECATES:
            continue
        later = max(relation.valid_from, world.clock)
        row = in_force(world.rows_of(relation.target_id), later, world.clock)
        assert row is None, "a replaced family is in force"


@settings(max_examples=250, deadline=None)
@given(st.lists(STEP, min_size=1, max_size=14))
def test_histories_keep_their_invariants_and_every_earlier_answer(steps: list[tuple]) -> None:
    """L8, L12, L15: random mutations never break an invariant, and what was answered once is answered again."""
    world = world_of_three()
    remembered = [(world.clock, answers(world, world.clock))]
    for step in steps:
        world.clock += timedelta(hours=7)
        try:
            world.commit(mutation_of(world, step))
        except DomainError:
            continue
        check_invariants(world)
        remembered.append((world.state.last_recorded_at or START, answers(world, world.clock)))
    for known_at, expected in remembered:
        now = answers(world, known_at)
        assert {key: now[key] for key in expected} == expected
        assert all(now[key] == (None, None) for key in now.keys() - expected.keys())
    assert verify_chain(world.entries, world.state.audit_tip) == []
    positions = [c.position for c in world.changes if c.position is not None]
    assert positions == list(range(1, len(positions) + 1))


def approved(world: World, steps: list[tuple]) -> list[Proposal]:
    """Proposals that are approved and wait for their apply, all made on the same heads."""
    proposals: list[Proposal] = []
    for step in steps:
        try:
            proposal = world.propose(mutation_of(world, step))
            world.approve(proposal)
        except DomainError:
            continue
        proposals.append(proposal)
    return proposals


def results(changes: list[ChangeSet]) -> list[ChangeSet]:
    """Change sets as they can be compared."""
    return [replace(change, replies=()) for change in changes]


@settings(max_examples=150, deadline=None)
@given(st.lists(STEP, max_size=8), st.lists(STEP, min_size=2, max_size=8))
def test_group_commit_equals_one_by_one(before: list[tuple], waiting: list[tuple]) -> None:
    """L2, L16: deciding many on one loaded state gives, record by record, what loading before each would give."""
    world = world_of_three()
    for step in before:
        try:
            world.commit(mutation_of(world, step))
        except DomainError:
            continue
    proposals = approved(world, waiting)
    if not proposals:
        return
    now = world.now
    grouped = copy.deepcopy(world)

    one_by_one: list[ChangeSet] = []
    for proposal in proposals:
        state = world.state_for(proposal)
        outcome = d.decide_or_refuse(state, proposal, (), world.state.policy, now, actor=ANA, new_id=world.new_id)
        one_by_one.append(world.take(outcome.change))

    needs = needs_of(proposals[0])
    for proposal in proposals[1:]:
        needs |= needs_of(proposal)
    state = narrowed(grouped.state, needs)
    together: list[ChangeSet] = []
    for proposal in proposals:
        outcome = d.decide_or_refuse(state, proposal, (), grouped.state.policy, now, actor=ANA, new_id=grouped.new_id)
        together.append(outcome.change)
        state = apply_to_state(state, outcome.change)
    assert results(together) == results(one_by_one)
