"""What a project's policy asks of a proposal: content, evidence, approvals. The rules, not the numbers."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Final

from ledger_svc.domain.canonical import nfc
from ledger_svc.domain.errors import (
    DomainError,
    FieldProblem,
    approver_not_allowed,
    evidence_insufficient,
    invalid_fields,
    permission_denied,
)
from ledger_svc.domain.identity import acts_for, same_person
from ledger_svc.domain.model import (
    CONTENT_KINDS,
    Approval,
    AutoApprovalRule,
    Category,
    CategoryPolicy,
    ContradictionRule,
    Evidence,
    EvidenceLink,
    EvidenceRule,
    MutationKind,
    Policy,
    Principal,
    PrincipalKind,
    Proposal,
    Stance,
    VerificationState,
)
from ledger_svc.domain.validate import MAX_EVIDENCE_LINKS

POLICY_ISSUER: Final = "policy"
"""Issuer of the principals that stand for rules of a policy."""
LONGEST: Final = timedelta(days=36_525)
"""No time span of a policy is longer: a century after any moment of these days can still be written."""
_LENGTH_RULE: Final = "must be longer than nothing and not longer than a century"

_REQUIRED: Final[dict[Category, tuple[tuple[str, ...], ...]]] = {
    Category.BUSINESS_RULE: (("domain",),),
    Category.ARCHITECTURAL_DECISION: (("rationale",), ("alternatives",)),
    Category.CODE_PATTERN: (("examples",),),
    Category.FEATURE_DESCRIPTION: (("objective", "trigger", "files"),),
    Category.EPISODE: (("task",), ("outcome",)),
    Category.PROCEDURE: (("steps",),),
    Category.PULL_REQUEST: (("url",), ("files",)),
}
_SELF_EVIDENT: Final = frozenset({Category.EPISODE, Category.PULL_REQUEST})
"""Records of something that happened, which carry their own trace."""

_VERSION_IN_LOCATOR: Final = re.compile(r"@[0-9a-fA-F]{7,64}(?=[:/])")
_NEVER_COUNTS: Final = frozenset({VerificationState.CONTRADICTED, VerificationState.UNAVAILABLE})


def default_policy() -> Policy:
    """The policy of a new project: one reviewer; one source for what claims to hold, none for a record of an event."""
    return Policy(
        version=1,
        categories={
            category: CategoryPolicy(
                evidence=EvidenceRule(min_independent_sources=0 if category in _SELF_EVIDENT else 1),
                required_fields=_REQUIRED.get(category, ()),
            )
            for category in Category
        },
    )


def category_policy(policy: Policy, category: Category) -> CategoryPolicy:
    """What the policy asks of a category; one approval and nothing else when it does not name it."""
    return policy.categories.get(category) or CategoryPolicy()


def strictest(policy: Policy, categories: Iterable[Category]) -> Category:
    """Of several categories that a change touches, the one whose policy asks for the most approvals; the first wins."""
    return max(categories, key=lambda category: category_policy(policy, category).approvals_needed)


def check_policy(policy: Policy) -> None:
    """Refuse a policy that could not be met or that would let anything through unnoticed."""
    problems: list[FieldProblem] = []
    for category, rules in policy.categories.items():
        where = f"policy.categories[{category}]"
        if rules.approvals_needed not in {1, 2}:
            problems.append(FieldProblem(f"{where}.approvals_needed", "must be 1 or 2"))
        if not 0 <= rules.evidence.min_independent_sources <= MAX_EVIDENCE_LINKS:
            bounds = f"must be 0 to {MAX_EVIDENCE_LINKS}: no proposal has more evidence"
            problems.append(FieldProblem(f"{where}.min_sources", bounds))
        if not timedelta() < rules.approval_lifetime <= LONGEST:
            problems.append(FieldProblem(f"{where}.approval_lifetime", _LENGTH_RULE))
        if rules.default_validity is not None and not timedelta() < rules.default_validity <= LONGEST:
            problems.append(FieldProblem(f"{where}.default_validity", _LENGTH_RULE))
        if not rules.reviewer_roles or not rules.approver_kinds - {PrincipalKind.AGENT}:
            problems.append(FieldProblem(where, "nobody could approve"))
    seen: set[str] = set()
    for index, rule in enumerate(policy.auto_approvals):
        where = f"policy.approval_rules[{index}]"
        for name, value in (("id", rule.rule_id), ("issuer", rule.issuer), ("subject", rule.subject)):
            if not value.strip():
                problems.append(FieldProblem(f"{where}.{name}", "must not be empty"))
        if not rule.mutation_kinds:
            problems.append(FieldProblem(f"{where}.mutations", "name the mutations that it approves"))
        if not rule.evidence.extractors:
            problems.append(FieldProblem(f"{where}.extractors", "name the extractors that it trusts"))
        if rule.rule_id in seen:
            problems.append(FieldProblem(f"{where}.id", "is used by another rule"))
        seen.add(rule.rule_id)
    if problems:
        raise invalid_fields(problems)


# --- Evidence -----------------------------------------------------------------------------------------------------


def extractor_name(extractor: str) -> str:
    """An extractor without its version: ``structured/adr@2`` is ``structured/adr``."""
    return extractor.split("@", 1)[0]


def independent_sources(
    links: Iterable[EvidenceLink], evidence: Mapping[str, Evidence], rule: EvidenceRule, *, verified: bool | None = None
) -> int:
    """How many independent sources support the memory, of those that the rule lets count.

    Two pieces of evidence are one source when they come from the same place (whatever part or version of it), from
    copies of the same bytes, or quote the same excerpt; chains of such copies are one source too.

    Args:
        links: Links from the memory; only SUPPORTS counts.
        evidence: The records by id, with their verifications.
        rule: What counts.
        verified: Overrides the rule's ``must_be_verified``.
    """
    only_verified = rule.must_be_verified if verified is None else verified
    sources: list[set[tuple[str, str]]] = []
    for link in links:
        record = evidence.get(link.evidence_id)
        if link.stance is not Stance.SUPPORTS or record is None or not _counts(record, rule, only_verified):
            continue
        keys = _source_keys(record)
        joined = [source for source in sources if not source.isdisjoint(keys)]
        sources = [source for source in sources if source.isdisjoint(keys)]
        sources.append(keys.union(*joined))
    return len(sources)


def _counts(record: Evidence, rule: EvidenceRule, only_verified: bool) -> bool:
    if record.verification in _NEVER_COUNTS:
        return False
    if only_verified and record.verification is not VerificationState.VERIFIED:
        return False
    if rule.source_kinds and record.source_kind not in rule.source_kinds:
        return False
    return not rule.extractors or extractor_name(record.extractor) in {extractor_name(e) for e in rule.extractors}


def _source_keys(record: Evidence) -> set[tuple[str, str]]:
    locator = nfc(record.locator).split("#", 1)[0].strip().rstrip("/")
    keys = {("locator", _VERSION_IN_LOCATOR.sub("", locator).casefold())}
    if record.source_hash:
        keys.add(("bytes", record.source_hash.casefold()))
    if record.excerpt.strip():
        keys.add(("excerpt", " ".join(nfc(record.excerpt).casefold().split())))
    return keys


def open_contradictions(links: Iterable[EvidenceLink], evidence: Mapping[str, Evidence]) -> tuple[EvidenceLink, ...]:
    """Links that contradict the memory and whose source can still be reached."""
    return tuple(
        link
        for link in links
        if link.stance is Stance.CONTRADICTS
        and link.evidence_id in evidence
        and evidence[link.evidence_id].verification is not VerificationState.UNAVAILABLE
    )


def check_evidence(
    kind: MutationKind,
    policy: CategoryPolicy,
    links: Sequence[EvidenceLink],
    evidence: Mapping[str, Evidence],
    *,
    final: bool,
) -> tuple[str, ...]:
    """Refuse a proposal whose evidence does not meet its category's policy; return what a reviewer should know.

    Args:
        kind: What it would do; only mutations that publish a revision must bring evidence.
        policy: The category's policy.
        links: Links of the revision that it would publish.
        evidence: The records.
        final: In the apply. Before it, what can still change (a verification to come, a contradiction that may go
            away) is a warning.
    """
    warnings: list[str] = []
    against = open_contradictions(links, evidence)
    if against and policy.contradiction is ContradictionRule.BLOCK and final:
        raise evidence_insufficient(
            "contradiction",
            "0",
            str(len(against)),
            f"{len(against)} piece(s) of evidence contradict this: settle first",
        )
    if against:
        blocks = ", which blocks the apply" if policy.contradiction is ContradictionRule.BLOCK else ""
        warnings.append(f"{len(against)} piece(s) of evidence contradict this{blocks}")
    if kind not in CONTENT_KINDS:
        return tuple(warnings)
    rule = policy.evidence
    needed = rule.min_independent_sources
    found = independent_sources(links, evidence, rule, verified=None if final else False)
    if found < needed:
        raise evidence_insufficient(
            "min_independent_sources",
            str(needed),
            str(found),
            f"{needed} independent supporting source(s) needed, {found} found: link more evidence",
        )
    if not final and rule.must_be_verified and independent_sources(links, evidence, rule) < needed:
        warnings.append(f"{needed} verified source(s) needed before the apply")
    return tuple(warnings)


# --- Approvals ----------------------------------------------------------------------------------------------------


def check_decider(principal: Principal, proposal: Proposal, policy: CategoryPolicy) -> None:
    """Refuse a principal who may decide no proposal of this category.

    Raises:
        DomainError: PERMISSION_DENIED without a reviewer's role, APPROVER_NOT_ALLOWED for a kind that never decides.
    """
    if principal.kind is PrincipalKind.AGENT:
        raise approver_not_allowed("agent_never_approves", "an agent decides nothing: ask a person to review this")
    if principal.kind not in policy.approver_kinds or principal.kind is PrincipalKind.POLICY:
        raise approver_not_allowed("kind_not_allowed", f"a {principal.kind} may not decide: ask a person to review it")
    if principal.roles.isdisjoint(policy.reviewer_roles):
        wanted = ", ".join(sorted(role.value.lower() for role in policy.reviewer_roles))
        raise permission_denied(proposal.project_id, wanted)


def check_approver(principal: Principal, proposal: Proposal, policy: CategoryPolicy) -> None:
    """Refuse a principal who may not say yes to this proposal: besides ``check_decider``, its own requester.

    Raises:
        DomainError: PERMISSION_DENIED or APPROVER_NOT_ALLOWED.
    """
    check_decider(principal, proposal, policy)
    refused = own_proposal(principal, proposal.requester)
    if refused is not None:
        raise refused


def own_proposal(approver: Principal, requester: Principal) -> DomainError | None:
    """The refusal when the approver asked for this, or an agent did on their behalf; None when neither."""
    if same_person(approver, requester):
        return approver_not_allowed(
            "proposer_is_not_approver", "whoever proposed this may not approve it: ask another reviewer"
        )
    if acts_for(requester, approver):
        return approver_not_allowed(
            "principal_is_not_approver",
            "an agent proposed this on the approver's behalf: ask another reviewer",
        )
    return None


def valid_approvals(
    proposal: Proposal,
    approvals: Iterable[Approval],
    preview_hash: str,
    policy: Policy,
    evidence: Mapping[str, Evidence],
    now: datetime,
) -> tuple[Approval, ...]:
    """Approvals that count: of these bytes; not revoked, used or expired; by distinct people who may approve.

    A POLICY approval counts while its rule is still in the policy and still approves the proposal.
    """
    rules = category_policy(policy, proposal.category)
    counted: list[Approval] = []
    for approval in sorted(approvals, key=lambda a: (a.approved_at, a.approval_id)):
        is_live = approval.revoked_at is None and approval.consumed_position is None and now < approval.expires_at
        is_for_this = approval.proposal_id == proposal.proposal_id and approval.preview_hash == preview_hash
        if not (is_live and is_for_this):
            continue
        approver = approval.approver
        if approver.kind is PrincipalKind.POLICY:
            rule = matching_rule(proposal, policy, evidence)
            allowed = rule is not None and rule.rule_id == approval.rule_id
        else:
            may = approver.kind in rules.approver_kinds and approver.kind is not PrincipalKind.AGENT
            allowed = may and own_proposal(approver, proposal.requester) is None
        if allowed and not any(_same_approver(approver, other.approver) for other in counted):
            counted.append(approval)
    return tuple(counted)


def _same_approver(one: Principal, other: Principal) -> bool:
    # A rule is nobody, whatever its name looks like; but no two rules count twice either.
    if one.kind is PrincipalKind.POLICY or other.kind is PrincipalKind.POLICY:
        return one.kind is other.kind
    return same_person(one, other)


def matching_rule(proposal: Proposal, policy: Policy, evidence: Mapping[str, Evidence]) -> AutoApprovalRule | None:
    """The first rule of the policy that approves this proposal, or None.

    A rule is for one named SERVICE, compared exactly, for the mutations and categories that it names, and asks for
    supporting evidence of the extractors that it trusts. Evidence that contradicts takes the proposal to people.
    """
    requester = proposal.requester
    if requester.kind is not PrincipalKind.SERVICE or open_contradictions(proposal.evidence_links, evidence):
        return None
    for rule in policy.auto_approvals:
        if (rule.issuer, rule.subject) != (requester.issuer, requester.subject):
            continue
        if proposal.kind not in rule.mutation_kinds or (rule.categories and proposal.category not in rule.categories):
            continue
        needed = max(1, rule.evidence.min_independent_sources)
        if independent_sources(proposal.evidence_links, evidence, rule.evidence) >= needed:
            return rule
    return None


def rule_principal(rule: AutoApprovalRule, policy: Policy) -> Principal:
    """The POLICY principal that stands for a rule of one version of the policy."""
    return Principal(POLICY_ISSUER, f"{rule.rule_id}@{policy.version}", PrincipalKind.POLICY)
