"""What a policy asks for: evidence, independence of sources, who may approve, which approvals count, rules."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

import pytest
from ledger_world import AGENT, ANA, BRUNO, CARLA, EVERYTHING, IMPORTER, World, raising, rule

from ledger_svc.domain import policy as p
from ledger_svc.domain.errors import DomainError
from ledger_svc.domain.model import (
    AutoApprovalRule,
    Category,
    CategoryPolicy,
    ContradictionRule,
    Create,
    EvidenceRule,
    Invalidate,
    MutationKind,
    Policy,
    Principal,
    PrincipalKind,
    ProposalStatus,
    Role,
    SourceKind,
    Stance,
    VerificationState,
)

RULE = Principal("policy", "any@1", PrincipalKind.POLICY, roles=EVERYTHING)
CREATE = Create(Category.BUSINESS_RULE, rule("Refunds within 7 days"), "rule/refund")


def world(**rules: object) -> World:
    """A ledger whose business rules follow these rules."""
    category = CategoryPolicy(**{"evidence": EvidenceRule(min_independent_sources=1), **rules})  # type: ignore[arg-type]
    return World.new(Policy(1, {Category.BUSINESS_RULE: category}))


def sources(w: World, *locators: str, kind: EvidenceRule | None = None, **draft: object) -> int:
    """How many independent sources these are."""
    links = [w.evidence(locator, **draft) for locator in locators]
    return p.independent_sources(links, w.state.evidence, kind or EvidenceRule())


def test_copies_of_one_source_are_one() -> None:
    """Evidence policy: parts and versions of one file, copies of the same bytes and the same quotation count once."""
    w = World.new()
    assert sources(w, "git:r@3f2a91c:docs/a.md#L1", "git:r@77aa001:docs/a.md#L9") == 1
    assert sources(w, "https://x.example/a/", "https://X.example/a") == 1
    assert sources(w, "https://x.example/a", "https://x.example/b") == 2
    assert sources(w, "file:c1", "file:c2", source_hash="sha256:" + "0" * 64) == 1
    assert sources(w, "doc:q1", "doc:q2", excerpt="We   refund within\n7 days.") == 1
    assert sources(w, "git:r@3f2a91c", "git:r@77aa001") == 2


def test_a_chain_of_copies_is_one_source() -> None:
    """Evidence policy: a is a copy of b, b quotes c: one source, in whatever order they are linked."""
    w = World.new()
    a = w.evidence("doc:a", source_hash="sha256:" + "1" * 64)
    b = w.evidence("doc:b", source_hash="sha256:" + "1" * 64, excerpt="seven days")
    c = w.evidence("doc:c", excerpt="Seven days")
    for links in ([a, b, c], [a, c, b], [c, b, a]):
        assert p.independent_sources(links, w.state.evidence, EvidenceRule()) == 1
    assert p.independent_sources([a, c], w.state.evidence, EvidenceRule()) == 2


def test_only_supporting_reachable_and_trusted_evidence_counts() -> None:
    """Evidence policy: stance, verification, kind and extractor decide what counts."""
    w = World.new()
    rule_ = EvidenceRule()
    for link, counts in [
        (w.evidence("doc:1"), 1),
        (w.evidence("doc:2", Stance.CONTRADICTS), 0),
        (w.evidence("doc:3", Stance.CONTEXT), 0),
        (w.evidence("doc:4", verified=VerificationState.CONTRADICTED), 0),
        (w.evidence("doc:5", verified=VerificationState.UNAVAILABLE), 0),
        (w.evidence("doc:6", verified=VerificationState.VERIFIED), 1),
    ]:
        assert p.independent_sources([link], w.state.evidence, rule_) == counts
    plain, checked = w.evidence("doc:1"), w.evidence("doc:6")
    only_verified = EvidenceRule(must_be_verified=True)
    assert p.independent_sources([plain, checked], w.state.evidence, only_verified) == 1
    only_commits = EvidenceRule(source_kinds=frozenset({SourceKind.COMMIT}))
    assert p.independent_sources([plain], w.state.evidence, only_commits) == 0
    structured = EvidenceRule(extractors=frozenset({"structured/adr"}))
    by_tool = w.evidence("doc:7", extractor="structured/adr@2")
    by_other = w.evidence("doc:8", extractor="structured/adr-like@2")
    assert p.independent_sources([plain, by_tool, by_other], w.state.evidence, structured) == 1


def test_too_little_evidence_is_refused_at_once_and_verification_in_the_apply() -> None:
    """Evidence policy: what cannot change is refused when proposed, what can still be verified when applied."""
    w = world(evidence=EvidenceRule(min_independent_sources=2, must_be_verified=True))
    one = w.evidence("doc:1")
    refused = raising(lambda: w.propose(CREATE, evidence_links=(one,)))
    assert (refused.reason, refused.metadata["needed"], refused.metadata["found"]) == (
        "EVIDENCE_INSUFFICIENT",
        "2",
        "1",
    )
    proposal = w.propose(CREATE, evidence_links=(one, w.evidence("doc:2")))
    assert any("verified" in warning for warning in proposal.warnings)
    w.approve(proposal)
    assert raising(lambda: w.apply(proposal)).reason == "EVIDENCE_INSUFFICIENT"
    w.evidence("doc:1", verified=VerificationState.VERIFIED)
    w.evidence("doc:2", verified=VerificationState.VERIFIED)
    assert w.apply(proposal).position == 1


def test_a_mutation_that_publishes_nothing_needs_no_evidence() -> None:
    """Evidence policy: an end of validity rests on its reason."""
    w = world()
    family = w.commit(CREATE).families[0]
    assert w.commit(Invalidate(family.family_id)).position == 2


def test_open_contradictions_warn_or_block() -> None:
    """Evidence policy: BLOCK refuses the apply while contradicting evidence can be reached, WARN says so."""
    for contradiction, allowed in ((ContradictionRule.WARN, True), (ContradictionRule.BLOCK, False)):
        w = world(contradiction=contradiction)
        links = (w.evidence("doc:for"), w.evidence("doc:against", Stance.CONTRADICTS))
        proposal = w.propose(CREATE, evidence_links=links)
        assert any("contradict" in warning for warning in proposal.warnings)
        w.approve(proposal)
        if allowed:
            assert w.apply(proposal).position == 1
            continue
        assert raising(lambda w=w, proposal=proposal: w.apply(proposal)).metadata["policy"] == "contradiction"
        w.evidence("doc:against", Stance.CONTRADICTS, verified=VerificationState.UNAVAILABLE)
        assert w.apply(proposal).position == 1


@pytest.mark.parametrize(
    ("approver", "reason", "rule_name"),
    [
        (AGENT, "APPROVER_NOT_ALLOWED", "agent_never_approves"),
        (replace(AGENT, subject="alice"), "APPROVER_NOT_ALLOWED", "agent_never_approves"),
        (IMPORTER, "APPROVER_NOT_ALLOWED", "kind_not_allowed"),
        (
            Principal("policy", "any@1", PrincipalKind.POLICY, roles=EVERYTHING),
            "APPROVER_NOT_ALLOWED",
            "kind_not_allowed",
        ),
        (ANA, "APPROVER_NOT_ALLOWED", "proposer_is_not_approver"),
        (replace(ANA, issuer="https://other.example"), "APPROVER_NOT_ALLOWED", "proposer_is_not_approver"),
        (replace(ANA, subject="Ana "), "APPROVER_NOT_ALLOWED", "proposer_is_not_approver"),
        (replace(ANA, subject="аna"), "APPROVER_NOT_ALLOWED", "proposer_is_not_approver"),
        (replace(ANA, subject="a\u200bna@corp"), "APPROVER_NOT_ALLOWED", "proposer_is_not_approver"),
        (replace(BRUNO, roles=frozenset({Role.ADMIN, Role.PROPOSER})), "PERMISSION_DENIED", None),
    ],
)
def test_who_may_not_approve(approver: Principal, reason: str, rule_name: str | None) -> None:
    """L6: agents, services, rules, the requester under any spelling, and whoever lacks the role approve nothing."""
    w = World.new()
    proposal = w.propose(CREATE, by=ANA)
    refused = raising(lambda: w.approve(proposal, approver))
    assert refused.reason == reason
    assert refused.metadata.get("rule") == rule_name
    assert w.proposal(proposal).status is ProposalStatus.PENDING


def test_nobody_approves_what_an_agent_asked_for_on_their_behalf() -> None:
    """L6: bruno's agent proposed it, so bruno, however spelled, does not approve it; carla does."""
    w = World.new()
    proposal = w.propose(CREATE, by=AGENT)
    for bruno in (BRUNO, replace(BRUNO, subject="Bruno@corp"), replace(BRUNO, issuer="https://other.example")):
        refused = raising(lambda bruno=bruno: w.approve(proposal, bruno))
        assert refused.metadata["rule"] == "principal_is_not_approver"
    w.approve(proposal, CARLA)
    assert w.apply(proposal, AGENT).position == 1


def test_two_approvals_are_two_people() -> None:
    """Approval policy: with two needed, one person under two spellings stays one; two people do."""
    w = world(approvals_needed=2)
    proposal = w.propose(CREATE)
    w.approve(proposal, BRUNO)
    again = raising(lambda: w.approve(proposal, replace(BRUNO, subject="bruno@corp", issuer="https://other.example")))
    assert again.metadata["rule"] == "already_approved"
    assert raising(lambda: w.apply(proposal)).metadata == {"needed": "2", "valid": "1"}
    w.approve(proposal, CARLA)
    change = w.apply(proposal)
    assert {a.subject for a in change.revisions[0].approved_by} == {"bruno", "carla"}


def test_an_approval_expires() -> None:
    """Approval policy: after its lifetime an approval counts no more, the proposal waits again and can be approved."""
    w = world(approval_lifetime=timedelta(hours=1))
    proposal = w.propose(CREATE)
    w.approve(proposal)
    w.clock += timedelta(hours=2)
    assert raising(lambda: w.apply(proposal)).reason == "APPROVAL_MISSING"
    assert w.proposal(proposal).status is ProposalStatus.PENDING
    w.approve(proposal)
    assert w.apply(proposal).position == 1


IMPORT_RULE = AutoApprovalRule(
    "structured-import",
    "local",
    "importer",
    frozenset({MutationKind.CREATE}),
    frozenset({Category.BUSINESS_RULE}),
    EvidenceRule(min_independent_sources=1, extractors=frozenset({"structured/adr"})),
)


def importing(**more: object) -> World:
    """A ledger whose policy trusts the importer."""
    category = CategoryPolicy(evidence=EvidenceRule(min_independent_sources=1))
    policy = Policy(1, {Category.BUSINESS_RULE: category}, (replace(IMPORT_RULE, **more),))
    return World.new(policy)


def test_a_rule_approves_the_named_importer_as_a_policy_principal() -> None:
    """Authority: a structured import of the named service is approved by rule, and recorded as such."""
    w = importing()
    proposal = w.propose(CREATE, by=IMPORTER, evidence_links=(w.evidence(extractor="structured/adr@1"),))
    assert proposal.status is ProposalStatus.APPROVED
    change = w.apply(proposal, IMPORTER)
    assert change.revisions[0].approved_by == (Principal("policy", "structured-import@1", PrincipalKind.POLICY),)


def test_a_rule_named_like_its_importer_still_counts() -> None:
    """Authority: a rule is nobody, so a look-alike of its name is not the requester."""
    w = importing(rule_id="importer")
    proposal = w.propose(CREATE, by=IMPORTER, evidence_links=(w.evidence(extractor="structured/adr@1"),))
    assert w.apply(proposal, IMPORTER).position == 1


@pytest.mark.parametrize(
    ("by", "mutation", "extractor"),
    [
        (replace(IMPORTER, subject="Importer"), CREATE, "structured/adr@1"),
        (replace(IMPORTER, issuer="elsewhere"), CREATE, "structured/adr@1"),
        (replace(IMPORTER, kind=PrincipalKind.AGENT), CREATE, "structured/adr@1"),
        (replace(IMPORTER, kind=PrincipalKind.HUMAN), CREATE, "structured/adr@1"),
        (IMPORTER, CREATE, "gpt-x"),
        (IMPORTER, CREATE, ""),
        (IMPORTER, replace(CREATE, category=Category.DESIGN_RULE), "structured/adr@1"),
    ],
)
def test_a_rule_approves_nothing_else(by: Principal, mutation: Create, extractor: str) -> None:
    """Authority: another spelling, issuer or kind, another extractor or category needs a reviewer."""
    w = importing()
    proposal = w.propose(mutation, by=by, evidence_links=(w.evidence(extractor=extractor),))
    assert proposal.status is ProposalStatus.PENDING
    assert raising(lambda: w.apply(proposal, by)).reason == "APPROVAL_MISSING"


def test_contradicting_evidence_takes_an_import_to_people() -> None:
    """Authority: a rule does not decide what evidence contradicts."""
    w = importing()
    links = (w.evidence("doc:1", extractor="structured/adr@1"), w.evidence("doc:2", Stance.CONTRADICTS))
    assert w.propose(CREATE, by=IMPORTER, evidence_links=links).status is ProposalStatus.PENDING


def test_an_approval_by_rule_ends_with_the_rule() -> None:
    """Authority: when the rule has gone from the policy before the apply, its approval does not count."""
    w = importing()
    proposal = w.propose(CREATE, by=IMPORTER, evidence_links=(w.evidence(extractor="structured/adr@1"),))
    w.state = replace(w.state, policy=replace(w.state.policy, auto_approvals=(), version=2))
    assert raising(lambda: w.apply(proposal, IMPORTER)).reason == "APPROVAL_MISSING"


def test_required_fields_of_a_category() -> None:
    """G2: no write path goes round what a category asks for; every missing field is named."""
    w = World.new()
    bare = rule("Use PostgreSQL", domain="")
    refused = raising(lambda: w.propose(Create(Category.ARCHITECTURAL_DECISION, bare)))
    assert {f.field for f in refused.fields} == {"content.rationale", "content.alternatives"}
    refused = raising(lambda: w.propose(Create(Category.FEATURE_DESCRIPTION, bare)))
    assert refused.fields[0].description == "a FEATURE_DESCRIPTION needs one of objective, trigger, files"
    w.propose(Create(Category.FEATURE_DESCRIPTION, rule("Export", files=("a.py",))))


@pytest.mark.parametrize(
    "policy",
    [
        Policy(1, {Category.EPISODE: CategoryPolicy(approvals_needed=0)}),
        Policy(1, {Category.EPISODE: CategoryPolicy(approvals_needed=3)}),
        Policy(1, {Category.EPISODE: CategoryPolicy(approver_kinds=frozenset({PrincipalKind.AGENT}))}),
        Policy(1, {Category.EPISODE: CategoryPolicy(reviewer_roles=frozenset())}),
        Policy(1, {Category.EPISODE: CategoryPolicy(approval_lifetime=timedelta(0))}),
        Policy(1, auto_approvals=(replace(IMPORT_RULE, subject=" "),)),
        Policy(1, auto_approvals=(replace(IMPORT_RULE, mutation_kinds=frozenset()),)),
        Policy(1, auto_approvals=(replace(IMPORT_RULE, evidence=EvidenceRule()),)),
        Policy(1, auto_approvals=(IMPORT_RULE, IMPORT_RULE)),
    ],
)
def test_a_policy_that_makes_no_sense_is_refused(policy: Policy) -> None:
    """S1: a policy under which nobody, or anybody, could approve is refused, naming the field."""
    with pytest.raises(DomainError) as refused:
        p.check_policy(policy)
    assert refused.value.reason == "INVALID_FIELD"
    assert refused.value.fields


def test_an_agent_approves_nothing_even_when_a_policy_says_so() -> None:
    """L6: that an agent never approves is no setting."""
    w = world(approver_kinds=frozenset(PrincipalKind))
    proposal = w.propose(CREATE)
    assert raising(lambda: w.approve(proposal, AGENT)).metadata["rule"] == "agent_never_approves"
