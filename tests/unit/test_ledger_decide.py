"""Decisions: propose, review, apply. Every decision runs on exactly the facts that its needs name."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime, timedelta, timezone

import pytest
from ledger_world import AGENT, ANA, BRUNO, CARLA, EVERYTHING, IMPORTER, World, day, narrowed, raising, rule

from ledger_svc.domain import decide as d
from ledger_svc.domain.authority import check_importer
from ledger_svc.domain.canonical import content_hash
from ledger_svc.domain.model import (
    Approval,
    AuditAction,
    CancelSchedule,
    Category,
    CategoryPolicy,
    ChangeSet,
    Create,
    CreateAndLink,
    Deprecate,
    EventKind,
    ExpectedHead,
    Invalidate,
    Link,
    MemoryState,
    Mutation,
    Policy,
    Principal,
    PrincipalKind,
    Proposal,
    ProposalStatus,
    RelationKind,
    Role,
    Rollback,
    RowEnd,
    SetExpiry,
    SourceKind,
    Standing,
    Supersede,
    Update,
    VerificationState,
)
from ledger_svc.domain.state import State, apply_to_state, needs_of
from ledger_svc.domain.timeline import family_state


def create(key: str = "rule/refund", title: str = "Refunds within 7 days", **content: object) -> Create:
    """A new business rule."""
    return Create(Category.BUSINESS_RULE, rule(title, **content), key)


def made(world: World, key: str = "rule/refund", **content: object) -> str:
    """The id of a new family."""
    return world.commit(create(key, **content)).families[0].family_id


def state_now(world: World, family_id: str) -> MemoryState:
    """The family's state now."""
    deprecated = any(
        r.kind is RelationKind.DEPRECATES and r.target_id == family_id and r.holds(world.clock, world.clock)
        for r in world.state.relations.values()
    )
    return family_state(world.rows_of(family_id), world.clock, world.clock, deprecated=deprecated).state


def test_the_whole_way_of_a_memory() -> None:
    """L1: one change set holds family, revision, head, row, approval, proposal, commit, audit entry and event."""
    w = World.new()
    change = w.commit(create())
    family, revision, head = change.families[0], change.revisions[0], change.heads[0]
    assert (family.identity_key, family.category) == ("rule/refund", Category.BUSINESS_RULE)
    assert (revision.family_id, revision.number, revision.parents) == (family.family_id, 1, ())
    assert revision.content_hash == content_hash(revision.content)
    assert (head.revision_id, head.position) == (revision.revision_id, 1)
    assert change.rows_opened[0].valid_from == change.recorded_at == revision.valid_from
    assert change.proposals_changed[0].status is ProposalStatus.APPLIED
    assert change.approvals_changed[0].consumed_position == 1
    assert change.commit is not None
    assert change.commit.family_ids == (family.family_id,)
    assert [(e.kind, e.family_id) for e in change.events] == [(EventKind.HEAD_CHANGED, family.family_id)]
    assert change.audit[0].action is AuditAction.APPLY


def test_record_times_strictly_grow_even_when_the_clock_stands_still_or_goes_back() -> None:
    """L8: every commit has a record time of its own, so known_at names one state."""
    w = World.new()
    first = w.commit(create("a"))
    w.clock -= timedelta(days=2)
    second = w.commit(create("b"))
    assert second.recorded_at == first.recorded_at + timedelta(microseconds=1)


@pytest.mark.parametrize(
    "broken",
    [
        lambda p: replace(p, reason="another reason"),
        lambda p: replace(p, requester=CARLA),
        lambda p: replace(p, policy_version=9),
        lambda p: replace(p, evidence_links=()),
        lambda p: replace(p, mutation=replace(p.mutation, content=rule("Refunds within 99 days"))),
        lambda p: replace(p, after=replace(p.after, content=rule("Refunds within 99 days"))),
        lambda p: replace(p, diff=()),
        lambda p: replace(p, default_validity=timedelta(days=1)),
        lambda p: replace(p, category=Category.EPISODE),
        lambda p: replace(p, branch="next"),
    ],
)
def test_a_proposal_that_was_altered_after_approval_does_not_apply(broken) -> None:  # noqa: ANN001 - a small lambda
    """L5: the hash is recomputed from stored content, whatever the stored hash says."""
    w = World.new()
    w.state = replace(w.state, policy=Policy(1))
    proposal = w.propose(create())
    w.approve(proposal)
    stored = w.proposal(proposal)
    w.state = replace(w.state, proposals={proposal.proposal_id: broken(stored)})
    assert raising(lambda: w.apply(proposal)).reason == "PREVIEW_HASH_MISMATCH"
    assert w.state.position == 0


def test_altering_the_stored_hash_as_well_does_not_help() -> None:
    """L5: the approval is of other bytes."""
    w = World.new()
    proposal = w.propose(create())
    w.approve(proposal)
    forged = w.propose(create(title="Refunds within 99 days"))
    altered = replace(forged, proposal_id=proposal.proposal_id, status=ProposalStatus.APPROVED)
    w.state = replace(w.state, proposals={**w.state.proposals, proposal.proposal_id: altered})
    assert raising(lambda: w.apply(proposal)).reason == "PREVIEW_HASH_MISMATCH"


def test_a_proposal_that_was_altered_before_approval_is_not_approved() -> None:
    """L5: the reviewer's screen and the store disagree: neither the old hash nor the altered one is approved."""
    w = World.new()
    proposal = w.propose(create())
    altered = replace(w.proposal(proposal), reason="another reason")
    w.state = replace(w.state, proposals={proposal.proposal_id: altered})
    refused = raising(lambda: w.approve(proposal))
    assert refused.reason == "PREVIEW_HASH_MISMATCH"
    assert raising(lambda: w.approve(proposal, given=refused.metadata["actual"])).reason == "PREVIEW_HASH_MISMATCH"


def test_approving_on_a_head_that_has_moved_is_refused() -> None:
    """L3: nobody approves what can never be applied; the refusal makes the proposal STALE."""
    w = World.new()
    family = made(w)
    proposal = w.propose(Update(family, rule("x")))
    w.commit(Update(family, rule("y")))
    refused = raising(lambda: w.approve(proposal))
    assert refused.reason == "HEAD_MOVED"
    w.refused(AuditAction.APPROVE, BRUNO, refused, proposal)
    assert w.proposal(proposal).status is ProposalStatus.STALE


def test_the_status_follows_the_approvals() -> None:
    """Approval policy: APPROVED from the last needed approval on, PENDING before and after a revocation."""
    w = World.new(Policy(1, {Category.BUSINESS_RULE: CategoryPolicy(approvals_needed=2)}))
    proposal = w.propose(create())
    w.approve(proposal, BRUNO)
    assert w.proposal(proposal).status is ProposalStatus.PENDING
    w.approve(proposal, CARLA)
    assert w.proposal(proposal).status is ProposalStatus.APPROVED


def test_foreign_evidence_does_not_exist_here() -> None:
    """S2: evidence of another project cannot be linked, even when a store hands it out."""
    w = World.new()
    link = w.evidence()
    w.state = replace(w.state, evidence={i: replace(e, project_id="other") for i, e in w.state.evidence.items()})
    assert raising(lambda: w.propose(create(), evidence_links=(link,))).reason == "NOT_FOUND"


def test_altered_evidence_does_not_apply() -> None:
    """L5: the evidence records are part of what was approved."""
    w = World.new()
    proposal = w.propose(create())
    w.approve(proposal)
    w.state = replace(w.state, evidence={i: replace(e, excerpt="something else") for i, e in w.state.evidence.items()})
    assert raising(lambda: w.apply(proposal)).reason == "PREVIEW_HASH_MISMATCH"


def test_verifying_evidence_does_not_undo_an_approval() -> None:
    """L5: a verification is a record of its own, not a change of what was approved."""
    w = World.new()
    proposal = w.propose(create())
    w.approve(proposal)
    w.evidence(verified=VerificationState.VERIFIED)
    assert w.apply(proposal).position == 1


def test_approving_other_bytes_is_refused() -> None:
    """L5: an approval names the exact preview_hash."""
    w = World.new()
    proposal = w.propose(create())
    refused = raising(lambda: w.approve(proposal, given="sha256:" + "0" * 64))
    assert refused.reason == "PREVIEW_HASH_MISMATCH"
    assert refused.metadata["actual"] == proposal.preview_hash


def test_preview_hash_does_not_depend_on_the_moment() -> None:
    """L7: the same draft previewed later, and the proposal made of it, have one hash."""
    w = World.new()
    family = made(w)
    draft = w.draft(Supersede(family, rule("Refunds within 30 days")))
    state = w.narrowed(needs_of(draft))
    policy = Policy(1, {Category.BUSINESS_RULE: CategoryPolicy(default_validity=timedelta(days=30))})
    hashes = {d.preview(state, draft, ANA, policy, w.now + timedelta(days=n)).preview_hash for n in range(3)}
    assert len(hashes) == 1
    assert d.preview(state, draft, BRUNO, policy, w.now).preview_hash not in hashes


def test_exactly_one_of_many_racing_applies_wins() -> None:
    """L2: N approved proposals on one head: one applies, the others are STALE with the actual head, nothing else."""
    w = World.new()
    family = made(w)
    proposals = [w.propose(Update(family, rule(f"Refunds within {n} days"))) for n in range(8, 13)]
    for proposal in proposals:
        w.approve(proposal)
    winner = w.apply(proposals[2])
    for proposal in [*proposals[:2], *proposals[3:]]:
        refused = raising(lambda proposal=proposal: w.apply(proposal))
        assert refused.reason == "HEAD_MOVED"
        assert refused.metadata["actual"].endswith(winner.revisions[0].revision_id)
        assert w.proposal(proposal).status is ProposalStatus.STALE
        change = w.changes[-1]
        assert (change.position, change.revisions, change.rows_opened, change.events) == (None, (), (), ())
        assert change.audit[0].action is AuditAction.REFUSE_APPLY
    assert w.state.position == 2


def test_one_identity_key_makes_one_family() -> None:
    """L2: of two approved creates of one key, the second is refused and STALE; a third cannot even be proposed."""
    w = World.new()
    one, other = w.propose(create()), w.propose(create(title="Otherwise"))
    w.approve(one)
    w.approve(other)
    family = w.apply(one).families[0]
    refused = raising(lambda: w.apply(other))
    assert (refused.reason, refused.metadata["identity_key"]) == ("ALREADY_EXISTS", "rule/refund")
    assert refused.metadata["family"].endswith(family.family_id)
    assert w.proposal(other).status is ProposalStatus.STALE
    assert raising(lambda: w.propose(create())).reason == "ALREADY_EXISTS"


def test_two_applies_of_one_approval_make_one_commit() -> None:
    """L2: the second apply is refused, and the winner's status stays APPLIED."""
    w = World.new()
    proposal = w.propose(create())
    w.approve(proposal)
    w.apply(proposal)
    assert raising(lambda: w.apply(proposal)).metadata["status"] == "APPLIED"
    assert w.proposal(proposal).status is ProposalStatus.APPLIED
    assert w.state.position == 1


def heads_of_three(w: World) -> tuple[str, str, str]:
    """Three families: a rule, another one, and one that changes in between."""
    return made(w, "a"), made(w, "b"), made(w, "c")


@pytest.mark.parametrize(
    ("mutation_of", "moving"),
    [
        (lambda a, _b: Update(a, rule("x")), 0),
        (lambda a, _b: Invalidate(a), 0),
        (lambda a, _b: SetExpiry(a, day(900)), 0),
        (lambda a, b: Link(RelationKind.DEPENDS_ON, a, b), 0),
        (lambda a, b: Link(RelationKind.DEPENDS_ON, a, b), 1),
        (Deprecate, 0),
        (Deprecate, 1),
        (lambda a, _b: CreateAndLink(Category.BUSINESS_RULE, rule("x"), a), 0),
    ],
)
@pytest.mark.parametrize("move", [lambda f: Update(f, rule("moved")), lambda f: SetExpiry(f, day(800))])
def test_every_head_that_a_proposal_depends_on_is_checked(mutation_of, moving: int, move) -> None:  # noqa: ANN001 - lambdas
    """L3: target, link ends, replacement and refined family; a change of time alone moves a head as well."""
    w = World.new()
    families = heads_of_three(w)[:2]
    proposal = w.propose(mutation_of(*families))
    w.approve(proposal)
    w.commit(move(families[moving]))
    refused = raising(lambda: w.apply(proposal))
    assert refused.reason == "HEAD_MOVED"
    assert refused.metadata["family"].endswith(families[moving])
    assert w.proposal(proposal).status is ProposalStatus.STALE


def test_unrelated_commits_do_not_make_a_proposal_stale() -> None:
    """L3: only the heads that a proposal names count."""
    w = World.new()
    a, b, c = heads_of_three(w)
    proposal = w.propose(Link(RelationKind.DEPENDS_ON, a, b))
    w.approve(proposal)
    w.commit(Update(c, rule("moved")))
    w.commit(Link(RelationKind.RELATED_TO, a, c))
    assert w.apply(proposal).relations_opened


def test_the_heads_that_the_proposer_saw_are_compared_first() -> None:
    """L3: a draft on a head that has moved is refused with the actual head, before anything is stored."""
    w = World.new()
    family = made(w)
    seen = w.state.heads[family, "main"]
    expected = (ExpectedHead(family, "main", seen.revision_id, 0),)
    w.propose(Update(family, rule("x")), expected_heads=expected)
    w.commit(Update(family, rule("y")))
    refused = raising(lambda: w.propose(Update(family, rule("z")), expected_heads=expected))
    assert refused.reason == "HEAD_MOVED"
    assert refused.metadata["expected"].endswith(seen.revision_id)


def test_a_rejected_or_withdrawn_proposal_never_blocks_the_same_content() -> None:
    """L7: the same draft can be proposed again, with the same hash, and applied."""
    w = World.new()
    first = w.propose(create())
    w.take(d.decide_rejection(w.state, first, BRUNO, "not now", w.state.policy, w.now))
    second = w.propose(create())
    w.take(d.decide_withdrawal(w.state, second, ANA, "", w.now))
    third = w.propose(create())
    assert first.preview_hash == second.preview_hash == third.preview_hash
    w.approve(third)
    assert w.apply(third).position == 1
    for closed in (first, second):
        assert raising(lambda closed=closed: w.approve(closed)).reason == "PROPOSAL_STATUS"
        assert raising(lambda closed=closed: w.apply(closed)).reason == "PROPOSAL_STATUS"


def test_who_may_reject_and_withdraw() -> None:
    """L6: a reviewer rejects, an agent does not; the requester, their principal or an admin withdraws."""
    w = World.new()
    reader = Principal("local", "eva", PrincipalKind.HUMAN, roles=frozenset({Role.READER}))
    proposal = w.propose(create(), by=replace(AGENT, roles=frozenset({Role.PROPOSER})))
    policy = w.state.policy
    assert raising(lambda: d.decide_rejection(w.state, proposal, AGENT, "no", policy, w.now)).reason == (
        "APPROVER_NOT_ALLOWED"
    )
    assert raising(lambda: d.decide_rejection(w.state, proposal, reader, "no", policy, w.now)).reason == (
        "PERMISSION_DENIED"
    )
    assert raising(lambda: d.decide_rejection(w.state, proposal, BRUNO, " ", policy, w.now)).reason == "INVALID_FIELD"
    for outsider in (reader, replace(reader, subject="copilot ")):
        refused = raising(lambda outsider=outsider: d.decide_withdrawal(w.state, proposal, outsider, "", w.now))
        assert refused.reason == "PERMISSION_DENIED"
    plain_bruno = replace(BRUNO, roles=frozenset({Role.READER}))
    for other in (replace(plain_bruno, kind=PrincipalKind.SERVICE), replace(plain_bruno, issuer="elsewhere")):
        refused = raising(lambda other=other: d.decide_withdrawal(w.state, proposal, other, "", w.now))
        assert refused.reason == "PERMISSION_DENIED"
    for allowed in (AGENT, plain_bruno, CARLA):
        change = d.decide_withdrawal(w.state, proposal, allowed, "", w.now)
        assert change.proposals_changed[0].status is ProposalStatus.WITHDRAWN


def test_a_revoked_approval_does_not_count() -> None:
    """L5: after its revocation the proposal waits again; it can be approved anew; strangers revoke nothing."""
    w = World.new()
    proposal = w.propose(create())
    approval = w.approve(proposal, BRUNO)

    def revoke(by: Principal) -> ChangeSet:
        approvals = w.state.approvals[proposal.proposal_id]
        return d.decide_revocation(
            w.state, proposal, approvals, approval.approval_id, by, "second thoughts", w.state.policy, w.now
        )

    stranger = replace(CARLA, roles=frozenset({Role.REVIEWER}))
    assert raising(lambda: revoke(stranger)).reason == "PERMISSION_DENIED"
    w.take(revoke(BRUNO))
    w.take(revoke(BRUNO))
    assert w.proposal(proposal).status is ProposalStatus.PENDING
    assert raising(lambda: w.apply(proposal)).reason == "APPROVAL_MISSING"
    w.approve(proposal, BRUNO)
    assert w.apply(proposal).position == 1
    assert [a.consumed_position for a in w.state.approvals[proposal.proposal_id]] == [None, 1]


def test_an_approval_of_one_proposal_is_worth_nothing_for_another() -> None:
    """L5: an approval that was moved to a proposal of the same content still does not count there."""
    w = World.new()
    one, other = w.propose(create()), w.propose(create())
    w.approve(one)
    moved: tuple[Approval, ...] = w.state.approvals[one.proposal_id]
    w.state = replace(w.state, approvals={other.proposal_id: moved})
    assert raising(lambda: w.apply(other)).reason == "APPROVAL_MISSING"


def test_update_of_named_fields_keeps_the_others() -> None:
    """An update with a mask changes these fields of the head; the proposal shows the whole content."""
    w = World.new()
    family = made(w, summary="keep me", tags=("a",))
    proposal = w.propose(Update(family, rule("New title", domain=""), fields=("title",)))
    assert proposal.after.content is not None
    assert (proposal.after.content.title, proposal.after.content.summary) == ("New title", "keep me")
    assert [c.field for c in proposal.diff] == ["title"]
    w.approve(proposal)
    assert w.apply(proposal).revisions[0].content == proposal.after.content


def test_the_same_content_for_the_same_time_is_no_change() -> None:
    """G4: an update that changes nothing is refused; with another validity, or after an invalidation, it is one."""
    w = World.new()
    family = made(w)
    same = rule("Refunds within 7 days")
    assert raising(lambda: w.propose(Update(family, same))).metadata["rule"] == "no_change"
    w.commit(Update(family, same, valid_to=day(500)))
    w.commit(Invalidate(family))
    w.commit(Update(family, same))
    assert state_now(w, family) is MemoryState.ACTIVE


def test_a_schedule_waits_is_shown_and_can_be_cancelled() -> None:
    """L8: a revision from tomorrow is SCHEDULED, the old one stays in force; cancelling gives the old one its time."""
    w = World.new()
    family = made(w)
    old = w.state.heads[family, "main"].revision_id
    new = w.commit(Supersede(family, rule("Refunds within 30 days"), valid_from=day(10))).revisions[0].revision_id
    found = family_state(w.rows_of(family), w.now, w.clock)
    assert (found.state, found.row.revision_id if found.row else "") == (MemoryState.ACTIVE, old)
    assert [r.revision_id for r in found.scheduled] == [new]
    assert w.state.heads[family, "main"].revision_id == new
    w.commit(CancelSchedule(family, new))
    assert w.state.heads[family, "main"].revision_id == old
    assert [r.revision_id for r in w.rows_of(family) if r.recorded_to is None] == [old]
    third = w.commit(Update(family, rule("Refunds within 40 days"))).revisions[0]
    assert (third.number, third.parents) == (3, (old,))
    assert raising(lambda: w.propose(CancelSchedule(family, third.revision_id))).metadata["rule"] == "not_scheduled"


def test_a_schedule_that_started_while_the_proposal_waited_is_not_cancelled() -> None:
    """L8: what counts is the moment of the apply."""
    w = World.new()
    family = made(w)
    new = w.commit(Supersede(family, rule("Refunds within 30 days"), valid_from=day(1))).revisions[0].revision_id
    proposal = w.propose(CancelSchedule(family, new))
    w.approve(proposal)
    w.clock = day(2)
    assert raising(lambda: w.apply(proposal)).reason == "STATE_CONFLICT"


def test_invalidating_ends_everything_and_revives_nothing() -> None:
    """L8: after it nothing holds, an expiry cannot bring it back, a second invalidation has nothing to end."""
    w = World.new()
    family = made(w)
    w.commit(Supersede(family, rule("Refunds within 30 days")))
    w.commit(Invalidate(family))
    assert state_now(w, family) is MemoryState.INVALIDATED
    assert raising(lambda: w.propose(SetExpiry(family, None))).metadata["rule"] == "ended_for_good"
    assert raising(lambda: w.propose(Invalidate(family))).metadata["rule"] == "nothing_in_force"


def test_invalidating_from_before_the_start_leaves_no_row_and_says_so() -> None:
    """L8: the head remembers that nothing holds because of an invalidation."""
    w = World.new()
    family = made(w)
    change = w.commit(Invalidate(family, effective_from=day(-10)))
    assert change.heads[0].invalid_from == day(-10)
    assert not [r for r in w.rows_of(family) if r.recorded_to is None]


def test_an_invalidation_from_a_boundary_ends_the_row_before_it_too() -> None:
    """L8: v2 from day 10, invalidated from day 10: v1, cut there, ends for good, and the head goes back to it."""
    w = World.new()
    family = made(w)
    first = w.state.heads[family, "main"].revision_id
    w.commit(Supersede(family, rule("Later"), valid_from=day(10)))
    change = w.commit(Invalidate(family, effective_from=day(10)))
    assert [(r.revision_id, r.end) for r in change.rows_opened] == [(first, RowEnd.INVALIDATED)]
    assert change.heads[0].revision_id == first
    assert raising(lambda: w.propose(SetExpiry(family, day(20), first))).metadata["rule"] == "ended_for_good"


def test_a_clock_that_goes_back_between_reading_and_deciding_changes_nothing() -> None:
    """L8: with only the latest rows read, a decision about an earlier moment asks to be sent again."""
    w = World.new()
    family = made(w)
    w.commit(Supersede(family, rule("Later"), valid_from=day(4)))
    proposal = w.propose(Supersede(family, rule("Sooner")))
    w.approve(proposal)
    late = narrowed(w.state, needs_of(proposal), day(4))
    refused = raising(
        lambda: d.decide(late, proposal, (), w.state.policy, day(3), actor=ANA, new_id=w.new_id),
    )
    assert refused.reason == "WRITE_CONTENTION"
    assert w.apply(proposal).position == 3


def test_an_expiry_is_set_moved_and_taken_away() -> None:
    """L8: the revision that covers now expires at the time given; None takes the expiry away."""
    w = World.new()
    family = made(w)
    w.commit(SetExpiry(family, day(5)))
    assert w.rows_of(family)[-1].end is RowEnd.EXPIRED
    w.clock = day(6)
    assert state_now(w, family) is MemoryState.EXPIRED
    w.commit(SetExpiry(family, None))
    assert state_now(w, family) is MemoryState.ACTIVE
    assert raising(lambda: w.propose(SetExpiry(family, day(-5)))).reason == "INVALID_FIELD"


def test_the_policys_default_validity_counts_from_the_start() -> None:
    """Policy: a publication that names no end gets the policy's; the preview shows it without a date."""
    w = World.new(Policy(1, {Category.BUSINESS_RULE: CategoryPolicy(default_validity=timedelta(days=30))}))
    proposal = w.propose(create())
    assert proposal.default_validity == timedelta(days=30)
    assert (proposal.after.rows[0].valid_to, proposal.after.rows[0].end) == (None, RowEnd.EXPIRED)
    w.approve(proposal)
    change = w.apply(proposal)
    assert change.rows_opened[0].valid_to == change.recorded_at + timedelta(days=30)
    assert w.commit(replace(create("b"), valid_to=day(400))).rows_opened[0].valid_to == day(400)


def test_rollback_publishes_the_old_content_anew() -> None:
    """L10: a new revision with the old content and evidence; history stays; another family's revision is refused."""
    w = World.new()
    family, other = made(w), made(w, "other")
    first = w.state.revisions[w.state.heads[family, "main"].revision_id]
    second = w.commit(Supersede(family, rule("Refunds within 30 days"))).revisions[0]
    change = w.commit(Rollback(family, first.revision_id))
    back = change.revisions[0]
    assert (back.content_hash, back.restores, back.parents) == (
        first.content_hash,
        first.revision_id,
        (second.revision_id,),
    )
    assert back.revision_id != first.revision_id
    assert {link.evidence_id for link in back.evidence_links} == {link.evidence_id for link in first.evidence_links}
    foreign = w.state.heads[other, "main"].revision_id
    assert raising(lambda: w.propose(Rollback(family, foreign))).reason == "NOT_FOUND"


def test_rolling_back_to_altered_content_is_refused() -> None:
    """L15: the restored bytes are checked against their hash."""
    w = World.new()
    family = made(w)
    first = w.state.revisions[w.state.heads[family, "main"].revision_id]
    w.commit(Supersede(family, rule("Refunds within 30 days")))
    forged = replace(first, content=rule("Refunds within 99 days"))
    w.state = replace(w.state, revisions={**w.state.revisions, first.revision_id: forged})
    assert raising(lambda: w.propose(Rollback(family, first.revision_id))).reason == "INTEGRITY"


def test_branches_are_apart() -> None:
    """L10: a family is published on the branch that a proposal names; another branch's head is another head."""
    w = World.new()
    family = made(w)
    refused = raising(lambda: w.propose(Update(family, rule("x")), branch="release/2.x"))
    assert refused.metadata["rule"] == "not_published"
    change = w.commit(create("b"), branch="release/2.x")
    assert change.heads[0].branch == change.events[0].branch == "release/2.x"


def test_changes_in_the_past_take_effect_there_and_warn() -> None:
    """L8: a publication from a past moment changes what is known about then, and the reviewer is told."""
    w = World.new()
    proposal = w.propose(replace(create(), valid_from=day(-100)))
    assert any("in the past" in warning for warning in proposal.warnings)
    w.approve(proposal)
    row = w.apply(proposal).rows_opened[0]
    assert row.valid_from == day(-100)
    assert row.recorded_from > day(0)


def test_the_reviewer_is_told_of_a_schedule_that_goes() -> None:
    """L8: publishing before a scheduled revision takes it away; the preview shows rows before and after."""
    w = World.new()
    family = made(w)
    scheduled = w.commit(Supersede(family, rule("Later"), valid_from=day(10))).revisions[0].revision_id
    proposal = w.propose(Supersede(family, rule("Sooner"), valid_from=day(5)))
    assert any(scheduled in warning for warning in proposal.warnings)
    assert [r.revision_id for r in proposal.before.rows][-1] == scheduled
    assert [(r.revision_id, r.valid_from) for r in proposal.after.rows][-1] == ("", day(5))


@pytest.mark.parametrize(
    ("mutation", "field"),
    [
        (Create(Category.BUSINESS_RULE, rule(" ")), "content.title"),
        (Create(Category.BUSINESS_RULE, rule("x", importance=1.5)), "content.importance"),
        (Create(Category.BUSINESS_RULE, rule("x", importance=float("nan"))), "content.importance"),
        (Create(Category.BUSINESS_RULE, rule("x", tags=("",))), "content.tags[0]"),
        (Create(Category.BUSINESS_RULE, rule("x", attributes={" ": "v"})), "content.attributes"),
        (Create(Category.BUSINESS_RULE, rule("x"), "has space"), "identity_key"),
        (Create(Category.BUSINESS_RULE, rule("x"), "zero\u200bwidth"), "identity_key"),
        (Create(Category.BUSINESS_RULE, rule("x"), valid_from=day(5), valid_to=day(5)), "valid_from"),
        (Create(Category.BUSINESS_RULE, rule("x"), valid_from=day(5).replace(tzinfo=None)), "valid_from"),
        (Create(Category.BUSINESS_RULE, rule("x"), valid_to=day(-5)), "valid_to"),
    ],
)
def test_bad_drafts_name_the_field(mutation: Mutation, field: str) -> None:
    """L9, S3: naive or reversed times, empty or out-of-range values are refused, naming the field."""
    refused = raising(lambda: World.new().propose(mutation))
    assert refused.reason == "INVALID_FIELD"
    assert refused.fields[0].field == field


@pytest.mark.parametrize(
    ("mutation", "field"),
    [
        (Create(Category.BUSINESS_RULE, rule("x" * 301)), "content.title"),
        (Create(Category.BUSINESS_RULE, rule("x", details="d" * 65_537)), "content.details"),
        (Create(Category.BUSINESS_RULE, rule("x", tags=("t",) * 1_001)), "content.tags"),
        (Create(Category.BUSINESS_RULE, rule("x", attributes={"k" * 101: ""})), "content.attributes"),
        (Create(Category.BUSINESS_RULE, rule("x"), "k" * 201), "identity_key"),
    ],
)
def test_limits_name_the_field_and_the_limit(mutation: Mutation, field: str) -> None:
    """S4: over a limit is a typed refusal; nothing is cut."""
    refused = raising(lambda: World.new().propose(mutation))
    assert (refused.reason, refused.metadata["field"]) == ("LIMIT_EXCEEDED", field)
    assert int(refused.metadata["actual"]) > int(refused.metadata["limit"])


def test_a_reason_and_a_branch_are_needed() -> None:
    """S3: every change says why, on a branch with a proper name."""
    w = World.new()
    assert raising(lambda: w.propose(create(), reason=" ")).fields[0].field == "reason"
    assert raising(lambda: w.propose(create(), branch="Main Line")).fields[0].field == "branch"


def test_offsets_are_stored_in_utc() -> None:
    """L9: a time given at -03:00 is kept as the same instant in UTC, and hashes like it."""
    w = World.new()
    there = datetime(2026, 3, 1, 9, tzinfo=timezone(timedelta(hours=-3)))
    one = w.propose(replace(create(), valid_from=there))
    other = w.propose(replace(create(), valid_from=there.astimezone(timezone(timedelta(hours=5, minutes=30)))))
    assert one.preview_hash == other.preview_hash
    assert str(one.mutation.valid_from) == "2026-03-01 12:00:00+00:00"  # type: ignore[union-attr]


def test_a_family_of_another_project_does_not_exist_here() -> None:
    """S2: even when a store hands the record out, a foreign family, evidence or relation is NOT_FOUND."""
    w = World.new()
    family = made(w)
    foreign = {i: replace(f, project_id="other") for i, f in w.state.families.items()}
    w.state = replace(w.state, families=foreign)
    assert raising(lambda: w.propose(Update(family, rule("x")))).reason == "NOT_FOUND"
    assert raising(lambda: w.propose(Invalidate("no-such-family"))).reason == "NOT_FOUND"


def test_draft_and_proposal_content_that_is_not_adopted_is_not_in_force() -> None:
    """R1: a published draft covers its time and is NOT_IN_FORCE."""
    w = World.new()
    family = made(w, standing=Standing.PROPOSED)
    assert state_now(w, family) is MemoryState.NOT_IN_FORCE
    w.commit(Update(family, rule("Refunds within 7 days")))
    assert state_now(w, family) is MemoryState.ACTIVE


def test_group_commit_decides_one_after_another() -> None:
    """L2: several applies decided on one loaded state, each on the state after the one before, as if one by one."""
    w = World.new()
    family = made(w)
    proposals = [
        w.propose(Update(family, rule("A"))),
        w.propose(Update(family, rule("B"))),
        w.propose(create("new")),
        w.propose(create("new")),
    ]
    for proposal in proposals:
        w.approve(proposal)
    proposals.append(proposals[0])
    needs = needs_of(proposals[0])
    for proposal in proposals[1:]:
        needs |= needs_of(proposal)
    state = w.narrowed(needs)
    results: list[str] = []
    now = w.now
    positions = []
    for proposal in proposals:
        outcome = d.decide_or_refuse(state, proposal, (), w.state.policy, now, actor=ANA, new_id=w.new_id)
        results.append(outcome.error.reason if outcome.error else "applied")
        positions.append(outcome.change.position)
        state = apply_to_state(state, outcome.change)
        w.take(outcome.change)
    assert results == ["applied", "HEAD_MOVED", "applied", "ALREADY_EXISTS", "PROPOSAL_STATUS"]
    assert positions == [2, None, 3, None, None]
    assert state.audit_tip == w.state.audit_tip


def test_evidence_is_registered_once() -> None:
    """Evidence: the same fingerprint gives the same record, within one call and later; other words another."""
    w = World.new()
    item = d.EvidenceDraft(SourceKind.DOCUMENT, "doc:1", excerpt="caf\u00e9")
    same = replace(item, excerpt="cafe\u0301")
    registration, change = d.decide_evidence(w.state, [item, same], ANA, w.now, new_id=w.new_id)
    assert change is not None
    w.take(change)
    assert len(registration.added) == 1
    again, nothing = d.decide_evidence(w.state, [item], BRUNO, w.now, new_id=w.new_id)
    assert nothing is None
    assert again.evidence[0] == registration.evidence[0] == registration.evidence[1]
    assert d.fingerprint_of(item) == registration.evidence[0].fingerprint
    assert d.fingerprint_of(replace(item, locator="doc:2")) != d.fingerprint_of(item)


def test_a_statement_is_a_persons_own_word() -> None:
    """G2: an agent cannot be its own evidence, nor verify any."""
    w = World.new()
    word = d.EvidenceDraft(SourceKind.STATEMENT, "said", excerpt="We decided so.")
    assert raising(lambda: d.register(w.state, [word], AGENT, w.now, new_id=w.new_id)).fields[0].field == (
        "evidence[0].source_kind"
    )
    assert d.register(w.state, [word], ANA, w.now, new_id=w.new_id).added
    link = w.evidence()
    refused = raising(
        lambda: d.decide_verification(w.state, link.evidence_id, VerificationState.VERIFIED, "read", AGENT, w.now)
    )
    assert refused.reason == "APPROVER_NOT_ALLOWED"
    assert d.decide_verification(w.state, link.evidence_id, VerificationState.UNAVAILABLE, "404", AGENT, w.now)


def test_evidence_can_be_registered_with_the_proposal() -> None:
    """L1: new evidence and the proposal that links it are one change set."""
    w = World.new()
    item = d.EvidenceDraft(SourceKind.DOCUMENT, "doc:1")
    registration = d.register(w.state, [item], ANA, w.now, new_id=w.new_id)
    record = registration.evidence[0]
    link = replace(w.evidence("doc:other"), evidence_id=record.evidence_id, fingerprint="made up")
    draft = w.draft(create(), evidence_links=(link,))
    change = d.decide_proposal(
        w.narrowed(needs_of(draft)),
        draft,
        ANA,
        w.state.policy,
        w.now,
        new_id=w.new_id,
        new_evidence=registration.added,
    )
    w.take(change)
    assert change.evidence == registration.added
    proposal = change.proposals_added[0]
    assert proposal.evidence_links[0].fingerprint == record.fingerprint
    w.approve(proposal)
    assert w.apply(proposal).position == 1


def test_projects_and_policies() -> None:
    """S1: a project starts with a policy at version 1; a change names the version that it was made on."""
    w = World.new()
    assert raising(lambda: d.decide_project("Bad Id", "", None, ANA, w.now)).fields[0].field == "project"
    policy = Policy(0, {Category.EPISODE: CategoryPolicy()})
    change = d.decide_policy(w.state, 1, policy, ANA, w.now)
    w.take(change)
    assert (w.state.policy.version, w.state.project.policy_version) == (2, 2)
    refused = raising(lambda: d.decide_policy(w.state, 1, policy, ANA, w.now))
    assert (refused.reason, refused.metadata["actual"]) == ("STATE_CONFLICT", "2")


def test_an_agent_makes_no_policy() -> None:
    """L6: with every role, an agent neither replaces a policy nor brings its own; a default project it may make."""
    w = World.new()
    policy = Policy(0, {})
    for asked in (
        lambda: d.decide_policy(w.state, 1, policy, AGENT, w.now),
        lambda: d.decide_project("fresh", "", policy, AGENT, w.now),
    ):
        refused = raising(asked)
        assert (refused.reason, refused.metadata["rule"]) == ("PERMISSION_DENIED", "agent_makes_no_policy")
        assert "ask a person" in refused.message
    assert d.decide_project("fresh", "", None, AGENT, w.now).project is not None


def test_an_import_is_for_an_admin_of_everything_who_is_no_agent() -> None:
    """L6: a file brings approvals: no agent imports one, nor does anybody else without the role in all projects."""
    check_importer(ANA)
    check_importer(IMPORTER)
    for who, by in (
        (AGENT, "agent_imports_nothing"),
        (replace(ANA, roles=EVERYTHING - {Role.ADMIN}), "import_needs_all_projects"),
    ):
        refused = raising(lambda who=who: check_importer(who))
        assert (refused.reason, refused.metadata["rule"]) == ("PERMISSION_DENIED", by)
        assert refused.metadata["project"] == "projects/*"
        assert "ask " in refused.message


def test_a_proposal_made_before_a_stricter_policy_answers_to_it() -> None:
    """Policy: the rules at the moment of the apply count; the hash that was approved stays."""
    w = World.new()
    proposal: Proposal = w.propose(create())
    w.approve(proposal)
    strict = {Category.BUSINESS_RULE: CategoryPolicy(approvals_needed=2)}
    w.take(d.decide_policy(w.state, 1, Policy(0, strict), ANA, w.now))
    assert raising(lambda: w.apply(proposal)).metadata == {"needed": "2", "valid": "1"}
    w.approve(proposal, CARLA)
    assert w.apply(proposal).position == 1


def test_state_is_not_changed_by_applying_a_change_set_to_it() -> None:
    """L1: a change set that is not persisted leaves nothing behind in the loaded state."""
    w = World.new()
    before: State = w.state
    proposal = w.propose(create())
    assert before.proposals == {}
    assert proposal.proposal_id in w.state.proposals
